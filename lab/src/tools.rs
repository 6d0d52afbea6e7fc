//! QEMU and depmod, unpacked with their dependencies, so that any Linux host can run them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;
use crate::process::bind_to_parent;

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The unpacked programs.
#[derive(Clone, Debug)]
pub struct Tools {
    root: PathBuf,
    /// QEMU's package version.
    pub version: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl Tools {
    /// The tools, fetched if they aren't cached.
    pub fn fetch(cache: &Cache, refresh: bool) -> Result<Self> {
        let (folder, manifest) = cache.ensure("tools", refresh, |folder| {
            let apt = Apt::open(cache, Channel::TRIXIE)?;
            let debs = folder.join("debs");
            let packages = apt.download_closure(
                "QEMU packages",
                &["qemu-system-x86", "kmod"],
                Some("trixie-backports"),
                &debs,
            )?;
            deb::unpack_all("QEMU packages", &debs, &folder.join("root"))?;
            let qemu = packages.into_iter().find(|package| package.name == "qemu-system-x86");
            Ok(Manifest { version: qemu.context("apt planned no qemu-system-x86")?.version })
        })?;
        Ok(Self { root: folder.join("root"), version: manifest.version })
    }

    /// QEMU's command, without options.
    pub(crate) fn qemu(&self) -> Command {
        let mut command = self.program("usr/bin/qemu-system-x86_64", "qemu-system-x86_64");
        command.env("QEMU_MODULE_DIR", self.root.join(LIBRARIES).join("qemu"));
        for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(self.root.join(data));
        }
        command
    }

    /// Writes `modules.dep` for the module tree (`…/lib/modules/RELEASE`) into the folder `output`,
    /// which is outside the tree.
    pub(crate) fn depmod(&self, tree: &Path, output: &Path) -> Result<()> {
        // depmod requires BASE/lib/modules/RELEASE, and the same path below its output folder.
        let release = tree.file_name().context("a module tree has a name")?;
        eprintln!("lab: listing the modules of kernel {}", release.display());
        let base = output.join("base");
        fs::create_dir_all(base.join("lib/modules"))?;
        symlink(fs::canonicalize(tree)?, base.join("lib/modules").join(release))?;
        let result = output.join("result");
        let mut command = self.program("usr/bin/kmod", "depmod");
        command.arg("-b").arg(&base).arg("-o").arg(&result).arg(release);
        let run = bind_to_parent(&mut command).output().context("running depmod")?;
        if !run.status.success() {
            bail!("depmod for {}: {}", tree.display(), String::from_utf8_lossy(&run.stderr).trim_end());
        }
        fs::rename(result.join("lib/modules").join(release).join("modules.dep"), output.join("modules.dep"))
            .context("depmod wrote no modules.dep")?;
        fs::remove_dir_all(base)?;
        fs::remove_dir_all(result)?;
        Ok(())
    }

    fn program(&self, path: &str, name: &str) -> Command {
        unpacked_program(&self.root, path, name)
    }
}

/// A program of an unpacked Debian root, run by the root's own dynamic loader.
pub(crate) fn unpacked_program(root: &Path, path: &str, name: &str) -> Command {
    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(root.join(LIBRARIES)).args(["--argv0", name]).arg(root.join(path));
    command
}
