//! Folders of programs that a guest gets in addition to ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Cache, RdmaCore, Series, fetch_headers};

use crate::build;

/// A folder, and its path in the guest.
pub(crate) struct Folder {
    path: PathBuf,
    guest: &'static str,
}

impl Folder {
    /// A folder of this name in our target folder.
    pub(crate) fn new(name: &Path, guest: &'static str) -> Result<Self> {
        let path = build::target_folder().join(name);
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path, guest })
    }

    /// The path of a file, on the host.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Copies a program.
    pub(crate) fn copy(&self, program: &Path) -> Result<()> {
        let name = program.file_name().context("a program has a name")?;
        fs::copy(program, self.path.join(name)).with_context(|| format!("copying {}", program.display()))?;
        Ok(())
    }

    /// Compiles a C program of our sources against the guest's rdma-core.
    pub(crate) fn compile(
        &self,
        cache: &Cache,
        rdma_core: &RdmaCore,
        source: &str,
        program: &str,
    ) -> Result<()> {
        self.compile_with(cache, rdma_core, source, program, &["libibverbs.so.1"], &[])
    }

    /// The same with `librdmacm`, and the macro `RDMA_CM`.
    pub(crate) fn compile_with_rdmacm(
        &self,
        cache: &Cache,
        rdma_core: &RdmaCore,
        source: &str,
        program: &str,
    ) -> Result<()> {
        let libraries = ["libibverbs.so.1", "librdmacm.so.1"];
        self.compile_with(cache, rdma_core, source, program, &libraries, &["-DRDMA_CM"])
    }

    fn compile_with(
        &self,
        cache: &Cache,
        rdma_core: &RdmaCore,
        source: &str,
        program: &str,
        libraries: &[&str],
        options: &[&str],
    ) -> Result<()> {
        let source = build::workspace().join(source);
        let mut cc = Command::new("cc");
        cc.arg("-O2").args(options).arg("-o").arg(self.path.join(program)).arg(source);
        cc.arg("-I").arg(rdma_core.headers(cache)?);
        for folder in fetch_headers(cache, Series::NEWEST, false)?.include {
            cc.arg("-I").arg(folder);
        }
        let folder = rdma_core.root.join("usr/lib/x86_64-linux-gnu");
        cc.args(libraries.iter().map(|library| folder.join(library)));
        // The libraries' own dependencies exist in the guest only.
        cc.arg("-Wl,--allow-shlib-undefined");
        ensure!(cc.status().context("running cc")?.success(), "the C program could not be compiled");
        Ok(())
    }

    /// The folder and its path in the guest.
    pub(crate) fn share(&self) -> (PathBuf, String) {
        (self.path.clone(), self.guest.to_owned())
    }

    /// The path of a file, in the guest.
    pub(crate) fn in_guest(&self, name: &str) -> String {
        format!("{}/{name}", self.guest)
    }
}
