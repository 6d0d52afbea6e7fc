//! The guest's initramfs: our init, its job, its modules and our programs. It contains no
//! distribution.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bareverbs_lab_init::{JOB_PATH, Job, MODULE_DIR, PROGRAM_DIR};

use crate::cpio::Archive;

/// Our programs for the guest, statically linked.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The program that runs as PID 1.
    pub init: PathBuf,
    /// Programs for the PATH, by name.
    pub on_path: BTreeMap<String, PathBuf>,
}

/// Builds the archive; `modules` are files in load order, named in `job` by their base names.
pub(crate) fn build(programs: &Programs, modules: &[PathBuf], job: &Job) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    for folder in ["/dev", "/lab", MODULE_DIR, PROGRAM_DIR] {
        archive.folder(folder);
    }
    archive.character_device("/dev/console", 5, 1);
    archive.file("/init", &read(&programs.init)?);
    archive.file(JOB_PATH, &serde_json::to_vec(job)?);
    for module in modules {
        archive.file(&format!("{MODULE_DIR}/{}", base_name(module)), &read(module)?);
    }
    for (name, program) in &programs.on_path {
        archive.file(&format!("{PROGRAM_DIR}/{name}"), &read(program)?);
    }
    Ok(archive.finish())
}

/// The last part of a path.
pub(crate) fn base_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}
