//! Programs of Debian over libibverbs or librdmacm that the Debian root of the guests lacks.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;

/// Packages with `fi_pingpong`, fio's engine `rdma`, and `qperf`.
const PACKAGES: [&str; 3] = ["libfabric-bin", "fio", "qperf"];

/// The unpacked packages, with those that they depend on.
#[derive(Clone, Debug)]
pub struct VerbsPrograms {
    /// The folder to share with guests.
    pub root: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl VerbsPrograms {
    /// The root, fetched if it isn't cached.
    ///
    /// # Errors
    /// apt can't fetch the packages, or the cache can't be written.
    pub fn fetch(cache: &Cache) -> Result<Self> {
        let (folder, _) = cache.ensure("verbs-programs", false, |folder| {
            let apt = Apt::open(cache, Channel::SID)?;
            let (what, debs) = ("programs over libibverbs", folder.join("debs"));
            let packages = apt.download_closure(what, &PACKAGES, None, &debs)?;
            deb::unpack_all(what, &debs, &folder.join("root"))?;
            let first = packages.into_iter().find(|package| package.name == PACKAGES[0]);
            Ok(Manifest { version: first.context("apt planned no libfabric-bin")?.version })
        })?;
        Ok(Self { root: folder.join("root") })
    }
}
