//! Kernels to boot: Debian's, or a folder of the user.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Package};
use crate::cache::Cache;
use crate::deb;
use crate::kernel_source::KernelSource;
use crate::modules::Modules;
use crate::process::bind_to_parent;
use crate::series::Series;
use crate::tools::Tools;

/// A bootable kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The version, such as `6.12.107-1`.
    pub version: String,
    /// The compressed kernel image.
    pub image: PathBuf,
    /// Its modules.
    pub modules: Modules,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl Kernel {
    /// Debian's newest kernel of a series, fetched if it isn't cached.
    pub fn debian(cache: &Cache, tools: &Tools, series: Series, refresh: bool) -> Result<Self> {
        let (folder, manifest) = cache.ensure(&format!("kernel-{series}"), refresh, |folder| {
            let apt = Apt::open(cache, series.channel())?;
            let packages = packages(&apt, series)?;
            let version = packages[0].version.clone();
            let debs = folder.join("debs");
            fs::create_dir_all(&debs)?;
            let what = format!("kernel {version}");
            apt.download(&what, &packages, &debs)?;
            let root = folder.join("root");
            deb::unpack_all(&what, &debs, &root)?;
            let (_, tree) = locate(&root)?;
            let dependencies = folder.join("depmod");
            fs::create_dir(&dependencies)?;
            tools.depmod(&tree, &dependencies)?;
            Ok(Manifest { version })
        })?;
        let (image, tree) = locate(&folder.join("root"))?;
        Ok(Self { version: manifest.version, image, modules: Modules::read(&tree, &folder.join("depmod"))? })
    }

    /// Adds the module of Soft-iWARP to a kernel of [`Self::debian`]. Debian's kernels lack it; it is
    /// built from their source, and cached for this version of the kernel.
    ///
    /// # Errors
    /// The context of the error is [`NotFetched`](crate::NotFetched) if the source can't be fetched.
    pub fn add_siw(&mut self, cache: &Cache, series: Series) -> Result<()> {
        let version = &self.version;
        let (folder, ()) = cache.ensure(&format!("siw-{version}"), false, |folder| {
            let source = KernelSource::fetch(cache, series, &self.modules.release(), version)?;
            let scratch = folder.join("build");
            fs::create_dir(&scratch)?;
            let built = source.build_module("drivers/infiniband/sw/siw", "CONFIG_RDMA_SIW", &scratch)?;
            fs::rename(built, folder.join(SIW))?;
            fs::remove_dir_all(scratch)?;
            Ok(())
        })?;
        self.modules.add(&folder.join(SIW))
    }

    /// The options that it was built with, as in `/boot/config-…`, which distributions ship beside the
    /// image.
    pub fn config(&self) -> Result<String> {
        let image = self.image.file_name().context("the image is a file")?.to_string_lossy();
        let path = self.image.with_file_name(image.replacen("vmlinuz", "config", 1));
        fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    /// A kernel of the user: a built kernel tree, a folder with an image and modules, or a bzImage.
    ///
    /// The modules of a tree are installed into the cache by the tree's own `make modules_install`. A
    /// bzImage without modules must have all drivers built in.
    pub fn at(path: &Path, tools: &Tools, cache: &Cache) -> Result<Self> {
        if path.is_file() {
            return Self::image(path);
        }
        let image = path.join(TREE_IMAGE);
        if !(image.is_file() && path.join("Kbuild").is_file()) {
            return Self::folder(path, tools, cache);
        }
        let built = fs::read_to_string(path.join("modules.order")).unwrap_or_default();
        if built.trim().is_empty() {
            return Self::image(&image);
        }
        let tree = path.canonicalize().with_context(|| path.display().to_string())?;
        let (folder, ()) = cache.ensure("tree", true, |scratch| {
            let mut make = Command::new("make");
            make.args(["--silent", "-C"]).arg(&tree).arg("modules_install");
            // The lab runs its own depmod.
            make.arg(format!("INSTALL_MOD_PATH={}", scratch.display())).arg("DEPMOD=true");
            let run = bind_to_parent(&mut make).output().context("running make modules_install")?;
            if !run.status.success() {
                bail!("make modules_install: {}", String::from_utf8_lossy(&run.stderr).trim_end());
            }
            fs::copy(&image, scratch.join("bzImage")).context("copying the image")?;
            Ok(())
        })?;
        Self::folder(&folder, tools, cache)
    }

    /// A kernel with all drivers built in.
    fn image(image: &Path) -> Result<Self> {
        let bytes = fs::read(image).with_context(|| format!("reading {}", image.display()))?;
        let version =
            image_release(&bytes).with_context(|| format!("{} is not a bzImage", image.display()))?;
        Ok(Self { version, image: image.to_owned(), modules: Modules::built_in() })
    }

    /// A kernel in a folder: `vmlinuz`, `bzImage` or `boot/vmlinuz-*`, and `lib/modules/*`.
    ///
    /// A folder without `modules.dep` is not changed; the file is created in the cache.
    fn folder(folder: &Path, tools: &Tools, cache: &Cache) -> Result<Self> {
        let (image, tree) = locate(folder)?;
        let release = tree.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let modules = if tree.join("modules.dep").exists() {
            Modules::read(&tree, &tree)?
        } else {
            let (dependencies, _) = cache.ensure("depmod", true, |scratch| {
                tools.depmod(&tree, scratch)?;
                Ok(release.clone())
            })?;
            Modules::read(&tree, &dependencies)?
        };
        Ok(Self { version: release, image, modules })
    }
}

/// The module of Soft-iWARP in its set of the cache.
const SIW: &str = "siw.ko";

/// The image of a built kernel tree.
const TREE_IMAGE: &str = "arch/x86/boot/bzImage";

/// The release in the header of a bzImage (`Documentation/arch/x86/boot.rst`: `kernel_version`).
fn image_release(image: &[u8]) -> Option<String> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let offset = u16::from_le_bytes(*image.get(0x20e..)?.first_chunk()?);
    let text = image.get(0x200 + usize::from(offset)..)?;
    let release = text.split(|byte| [0, b' '].contains(byte)).next()?;
    (!release.is_empty()).then(|| String::from_utf8_lossy(release).into_owned())
}

/// Finds the image and the module tree (the folder named as the release).
fn locate(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let trees: Vec<PathBuf> = ["lib/modules", "usr/lib/modules"]
        .iter()
        .flat_map(|place| fs::read_dir(root.join(place)).into_iter().flatten())
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("kernel").is_dir())
        .collect();
    let [tree] = trees.as_slice() else {
        bail!(
            "{} has {} module trees (lib/modules/RELEASE with a folder `kernel`) instead of one",
            root.display(),
            trees.len()
        );
    };
    let release = tree.file_name().unwrap_or_default().to_string_lossy();
    let candidates = [
        tree.join("vmlinuz"),
        root.join(format!("boot/vmlinuz-{release}")),
        root.join("vmlinuz"),
        root.join("bzImage"),
        root.join("boot/vmlinuz"),
        root.join("boot/bzImage"),
    ];
    let image = candidates.into_iter().find(|path| path.is_file());
    let image = image
        .with_context(|| format!("{} has no vmlinuz, bzImage or boot/vmlinuz-{release}", root.display()))?;
    Ok((image, tree.clone()))
}

/// The packages of the image and the modules. The metapackage names the image package. From 7.x on,
/// the image package only depends on others of the same source.
fn packages(apt: &Apt, series: Series) -> Result<Vec<Package>> {
    let known = apt.show("linux-image-amd64")?;
    let Some(meta) = known.iter().find(|package| series.matches(&package.version)) else {
        let there = known.iter().map(|package| package.version.as_str()).collect::<Vec<_>>().join(", ");
        match series {
            Series::Rc => {
                bail!("Debian experimental has no release candidate (available: {there})")
            }
            _ => bail!("Debian {} no longer has kernel {series} (available: {there})", apt.channel().name()),
        }
    };
    let mut found: BTreeMap<String, Package> = BTreeMap::new();
    let mut open = kernel_dependencies(meta);
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let known = apt.show(&name)?;
        let package = known.into_iter().find(|package| package.version == meta.version);
        let package =
            package.with_context(|| format!("{name} of version {} is not available", meta.version))?;
        open.extend(kernel_dependencies(&package));
        found.insert(name, package);
    }
    if found.is_empty() {
        bail!("linux-image-amd64 {} names no kernel package", meta.version);
    }
    Ok(found.into_values().collect())
}

/// Dependencies on packages of the same kernel build: `linux-…-RELEASE (= VERSION)`.
fn kernel_dependencies(package: &Package) -> Vec<String> {
    let exact = format!("(= {})", package.version);
    let dependencies = package.depends.split(',').map(str::trim);
    dependencies
        .filter_map(|dependency| dependency.strip_suffix(&exact).map(str::trim))
        .filter(|name| {
            let kinds = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];
            let release = kinds.iter().find_map(|kind| name.strip_prefix(kind));
            // A metapackage has the architecture in place of the release.
            release.is_some_and(|release| release.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(version: &str, depends: &str) -> Package {
        Package { name: "p".into(), version: version.into(), depends: depends.into(), size: 1 }
    }

    #[test]
    fn only_packages_of_the_same_build_are_followed() {
        let split = package(
            "7.2.13-1",
            "dracut | initramfs-tools (>= 0.120), linux-base-7.2.13+deb14-amd64 (= 7.2.13-1), kmod, \
             linux-binary-7.2.13+deb14-amd64 (= 7.2.13-1), linux-base-amd64 (= 7.2.13-1)",
        );
        assert_eq!(
            kernel_dependencies(&split),
            ["linux-base-7.2.13+deb14-amd64", "linux-binary-7.2.13+deb14-amd64"]
        );
    }

    #[test]
    fn release_is_read_from_the_image_header() {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x30f].copy_from_slice(b"7.3.0-rc1+ (me)");
        assert_eq!(image_release(&image).as_deref(), Some("7.3.0-rc1+"));
        assert_eq!(image_release(&image[..0x300]), None, "the text is not in the file");
        image[0x202] = 0;
        assert_eq!(image_release(&image), None, "no bzImage");
    }
}
