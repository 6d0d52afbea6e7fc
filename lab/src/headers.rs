//! Kernel headers of the distribution: the user-space API and the kernel's own.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Package};
use crate::cache::Cache;
use crate::deb;
use crate::series::Series;

/// One kernel's headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderDirs {
    /// The package version, such as `6.12.107-1`.
    pub version: String,
    /// Folders of the user-space headers, in search order, for `cc -I`.
    pub include: Vec<PathBuf>,
    /// The kernel's own `include`. User-space programs can't be compiled against it.
    pub kernel: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
    /// Folder of the kernel's own headers under `usr/src`.
    kernel: String,
}

/// The cached headers of a kernel series; `None` if they are not cached.
///
/// Does not use the network. `cargo xtask lab fetch --headers` fills the cache.
pub fn headers(series: Series) -> Option<HeaderDirs> {
    let cache = Cache::open().ok()?;
    let (folder, manifest) = cache.get::<Manifest>(&format!("headers-{series}"))?;
    Some(dirs(folder, manifest))
}

/// The headers of a kernel series, fetched if they aren't cached.
pub fn fetch_headers(cache: &Cache, series: Series, refresh: bool) -> Result<HeaderDirs> {
    let (folder, manifest) = cache.ensure(&format!("headers-{series}"), refresh, |folder| {
        let apt = Apt::open(cache, series.channel())?;
        let (user, kernel) = (newest(&apt, "linux-libc-dev", series)?, kernel_headers(&apt, series)?);
        let manifest = Manifest { version: user.version.clone(), kernel: kernel.name.clone() };
        let debs = folder.join("debs");
        fs::create_dir_all(&debs)?;
        let what = format!("headers of kernel {series}");
        apt.download(&what, &[user, kernel], &debs)?;
        deb::unpack_all(&what, &debs, &folder.join("root"))?;
        Ok(manifest)
    })?;
    Ok(dirs(folder, manifest))
}

fn newest(apt: &Apt, name: &str, series: Series) -> Result<Package> {
    let known = apt.show(name)?;
    match known.into_iter().find(|package| series.matches(&package.version)) {
        Some(package) => Ok(package),
        None => bail!("{} has no {name} of kernel {series}", apt.channel().name()),
    }
}

/// The package of the kernel's own headers that all flavours share. The metapackage names the
/// build.
fn kernel_headers(apt: &Apt, series: Series) -> Result<Package> {
    let meta = newest(apt, "linux-headers-amd64", series)?;
    let common = common_headers(&meta).with_context(|| {
        format!("linux-headers-amd64 {} names no package of headers: {}", meta.version, meta.depends)
    })?;
    let known = apt.show(&common)?;
    let package = known.into_iter().find(|package| package.version == meta.version);
    package.with_context(|| format!("{common} of version {} is not available", meta.version))
}

fn common_headers(meta: &Package) -> Option<String> {
    let names = meta.depends.split(',').filter_map(|dependency| dependency.split_whitespace().next());
    let flavour = names.filter_map(|name| name.strip_suffix("-amd64"));
    let mut builds = flavour.filter(|name| name.starts_with("linux-headers-"));
    builds.next().map(|build| format!("{build}-common"))
}

/// The architecture's `asm` folder is separate, under the multiarch name.
fn dirs(folder: PathBuf, manifest: Manifest) -> HeaderDirs {
    let include = folder.join("root/usr/include");
    HeaderDirs {
        version: manifest.version,
        include: vec![include.join("x86_64-linux-gnu"), include],
        kernel: folder.join("root/usr/src").join(manifest.kernel).join("include"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metapackage_names_kernel_headers_build() {
        let meta = Package {
            name: "linux-headers-amd64".into(),
            version: "7.2.13-1".into(),
            depends: "linux-base-amd64 (= 7.2.13-1), linux-headers-7.2.13+deb14-amd64 (= 7.2.13-1)".into(),
            size: 1,
        };
        assert_eq!(common_headers(&meta).as_deref(), Some("linux-headers-7.2.13+deb14-common"));
    }
}
