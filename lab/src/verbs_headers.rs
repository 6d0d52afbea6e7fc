//! rdma-core's headers, to compile C programs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

/// The folder of `infiniband/verbs.h`, from the Debian release of the [Debian
/// root](crate::RdmaCore); fetched if it isn't cached.
pub fn fetch_verbs_headers(cache: &Cache, refresh: bool) -> Result<PathBuf> {
    let (folder, _) = cache.ensure("headers-verbs", refresh, |folder| {
        let apt = Apt::open(cache, Channel::SID)?;
        let newest =
            apt.show("libibverbs-dev")?.into_iter().next().context("libibverbs-dev is not available")?;
        let manifest = Manifest { version: newest.version.clone() };
        let debs = folder.join("debs");
        fs::create_dir_all(&debs)?;
        apt.download("verbs headers", &[newest], &debs)?;
        deb::unpack_all("verbs headers", &debs, &folder.join("root"))?;
        Ok(manifest)
    })?;
    Ok(folder.join("root/usr/include"))
}
