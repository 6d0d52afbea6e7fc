//! Kernel headers for user space, as the distribution ships them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Package};
use crate::cache::Cache;
use crate::deb;
use crate::kernel::Series;

/// Include folders of one kernel's user-space headers, to hand to `cc -I`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderDirs {
    /// The package version, such as `6.12.107-1`.
    pub version: String,
    /// Folders in search order.
    pub include: Vec<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

/// The cached headers of a kernel series (`6.1`, `6.12`, `7.2`); `None` if they weren't fetched.
///
/// Never uses the network; `cargo xtask lab fetch --headers` fills the cache.
pub fn headers(series: &str) -> Option<HeaderDirs> {
    let cache = Cache::open().ok()?;
    let (folder, manifest) = cache.get::<Manifest>(&format!("headers-{}", series.parse::<Series>().ok()?))?;
    Some(dirs(folder, manifest))
}

/// The headers of a kernel series, fetched if they aren't cached.
pub fn fetch_headers(cache: &Cache, series: Series, refresh: bool) -> Result<HeaderDirs> {
    let (folder, manifest) = cache.ensure(&format!("headers-{series}"), refresh, |folder| {
        let apt = Apt::open(cache, series.channel())?;
        let package = newest(&apt, series)?;
        let debs = folder.join("debs");
        fs::create_dir_all(&debs)?;
        let what = format!("headers of kernel {series}");
        apt.download(&what, std::slice::from_ref(&package), &debs)?;
        deb::unpack_all(&what, &debs, &folder.join("root"))?;
        Ok(Manifest { version: package.version })
    })?;
    Ok(dirs(folder, manifest))
}

fn newest(apt: &Apt, series: Series) -> Result<Package> {
    let known = apt.show("linux-libc-dev")?;
    match known.into_iter().find(|package| series.matches(&package.version)) {
        Some(package) => Ok(package),
        None => bail!("{} has no linux-libc-dev of kernel {series}", apt.channel().name()),
    }
}

/// The architecture's `asm` folder lies apart, under the multiarch name.
fn dirs(folder: PathBuf, manifest: Manifest) -> HeaderDirs {
    let include = folder.join("root/usr/include");
    HeaderDirs { version: manifest.version, include: vec![include.join("x86_64-linux-gnu"), include] }
}
