//! The C library of Debian 11, to link libraries that run with it and each newer one.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;

/// The C library, its development files, and the support library of the compiler that goes with it.
const PACKAGES: [&str; 3] = ["libc6", "libc6-dev", "libgcc-10-dev"];

/// What a shared library is linked with, in this order. The names are those of files: the development
/// links of the packages lead out of an unpacked root.
const FILES: [&str; 7] = [
    "usr/lib/gcc/x86_64-linux-gnu/10/libgcc_eh.a",
    "usr/lib/gcc/x86_64-linux-gnu/10/libgcc.a",
    "lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/x86_64-linux-gnu/libc_nonshared.a",
    "lib/x86_64-linux-gnu/libpthread.so.0",
    "lib/x86_64-linux-gnu/libdl.so.2",
    "lib/x86_64-linux-gnu/ld-2.31.so",
];

/// The unpacked files.
#[derive(Clone, Debug)]
pub struct OldGlibc {
    root: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl OldGlibc {
    /// The files, fetched if they aren't cached.
    ///
    /// # Errors
    /// apt can't fetch the packages, or the cache can't be written.
    pub fn fetch(cache: &Cache) -> Result<Self> {
        let (folder, _) = cache.ensure("glibc-bullseye", false, |folder| {
            let apt = Apt::open(cache, Channel::BULLSEYE)?;
            let newest = |name| apt.show(name)?.into_iter().next().with_context(|| format!("no {name}"));
            let packages = PACKAGES.into_iter().map(newest).collect::<Result<Vec<_>>>()?;
            let (what, debs) = ("glibc of Debian 11", folder.join("debs"));
            fs::create_dir_all(&debs)?;
            apt.download(what, &packages, &debs)?;
            deb::unpack_all(what, &debs, &folder.join("root"))?;
            Ok(Manifest { version: packages[0].version.clone() })
        })?;
        Ok(Self { root: folder.join("root") })
    }

    /// The linker's inputs in place of the libraries that the compiler adds (`-nodefaultlibs`).
    pub fn inputs(&self) -> impl Iterator<Item = PathBuf> {
        FILES.into_iter().map(|file| self.root.join(file))
    }
}
