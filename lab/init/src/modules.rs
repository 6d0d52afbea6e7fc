//! Loading kernel modules.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use bareverbs_lab_init::MODULE_DIR;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module};

/// `MODULE_INIT_COMPRESSED_FILE` (include/uapi/linux/module.h).
const COMPRESSED_FILE: u32 = 4;

/// Loads the files in the order given. A module that is already loaded is not an error.
pub(crate) fn load(files: &[String]) -> Result<()> {
    for name in files {
        let path = Path::new(MODULE_DIR).join(name);
        let file = File::open(&path).with_context(|| format!("opening module {name}"))?;
        let flags = if name.ends_with(".ko") { 0 } else { COMPRESSED_FILE };
        match finit_module(&file, c"", ModuleInitFlags::from_bits_retain(flags)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error).with_context(|| format!("loading module {name}")),
        }
    }
    Ok(())
}
