//! The source of Debian's kernels, with the headers, the compiler and the tools that they were built with.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Package};
use crate::cache::Cache;
use crate::deb;
use crate::process::bind_to_parent;
use crate::series::Series;

/// What the build needs beside the packages that the kernel's headers depend on, and the programs.
const TOOL_PACKAGES: [&str; 2] = ["make", "xz-utils"];
const TOOLS: [&str; 2] = ["make", "xz"];

/// The prefix of the programs of Debian's compiler and binutils.
const TARGET: &str = "x86_64-linux-gnu-";

/// The folders of the libraries in the root.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// The first words of a wrapper: the root's own dynamic loader. [`KernelSource::command`] sets the
/// variables.
const LOAD: &str = r#"exec "$LAB_LOADER" --library-path "$LAB_LIBRARIES""#;

/// The source was not fetched: there is no network, or Debian no longer offers this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotFetched;

impl std::fmt::Display for NotFetched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the kernel's source can't be fetched")
    }
}

/// The source of one build of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct KernelSource {
    /// The packed source, the headers and the tools.
    folder: PathBuf,
    /// The release, such as `6.12.118+deb13-amd64`.
    release: String,
    /// The package version, such as `6.12.118-1`.
    version: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl KernelSource {
    /// The source of exactly this kernel, fetched if it isn't cached. The cache has one version of
    /// a series.
    ///
    /// # Errors
    /// [`NotFetched`] is in the context of an error of apt.
    pub(crate) fn fetch(cache: &Cache, series: Series, release: &str, version: &str) -> Result<Self> {
        let set = format!("source-{series}");
        let other = cache.get::<Manifest>(&set).is_some_and(|(_, manifest)| manifest.version != version);
        let (folder, _) = cache.ensure(&set, other, |folder| {
            let debs = folder.join("debs");
            let what = format!("source and compiler of kernel {version}");
            download(cache, series, release, version, &what, &debs).context(NotFetched)?;
            let root = folder.join("root");
            deb::unpack_all(&what, &debs, &root)?;
            wrap_compiler(&root, folder)?;
            wrap_host_programs(&root.join("usr"))?;
            Ok(Manifest { version: version.to_owned() })
        })?;
        Ok(Self { folder, release: release.to_owned(), version: version.to_owned() })
    }

    /// Builds the module in the folder `part` of the source, such as `drivers/infiniband/sw/siw`, with
    /// this option set. `scratch` receives the folder. Returns the module's file.
    pub(crate) fn build_module(&self, part: &str, option: &str, scratch: &Path) -> Result<PathBuf> {
        let source = self.unpack(part, scratch)?;
        let headers = self.root().join("usr/src").join(format!("linux-headers-{}", self.release));
        let common = format!("linux-headers-{}-common", self.release.trim_end_matches("-amd64"));
        let makefile = headers.with_file_name(common).join("Makefile");
        eprintln!("lab: building {part} of kernel {}", self.version);
        // The Makefile beside the headers names the place where the package would be installed.
        let mut make = self.make();
        make.arg("-C").arg(&headers).arg("-f").arg(makefile);
        make.arg(format!("KBUILD_OUTPUT={}", headers.display())).arg(format!("M={}", source.display()));
        // Debugging information is not used, and would be ten times the module.
        make.arg(format!("{option}=m")).args([
            "CONFIG_DEBUG_INFO=",
            "CONFIG_DEBUG_INFO_BTF_MODULES=",
            "modules",
        ]);
        run(&mut make, &format!("building {part}"))?;
        let name = source.file_name().context("the source is a folder")?;
        let module = source.join(name).with_extension("ko");
        ensure!(module.is_file(), "the build of {part} made no module");
        Ok(module)
    }

    /// Unpacks a folder of the source into another folder.
    fn unpack(&self, part: &str, into: &Path) -> Result<PathBuf> {
        let tree = source_package(&self.version);
        let member = format!("{tree}/{part}");
        let mut tar = self.command("tar");
        let archive = self.root().join("usr/src").join(format!("{tree}.tar.xz"));
        tar.arg("--use-compress-program=xz").arg("--extract").arg("--file").arg(archive);
        tar.arg("--directory").arg(into).arg(&member);
        run(&mut tar, &format!("unpacking {member}"))?;
        Ok(into.join(member))
    }

    fn make(&self) -> Command {
        let mut make = self.command("make");
        make.args(["--silent", "DEB_BUILD_ARCH=amd64", "DEB_HOST_ARCH=amd64"]);
        make.arg(format!("MAKE={}", self.tools().join("make").display()));
        make.arg(format!("--jobs={}", std::thread::available_parallelism().map_or(1, usize::from)));
        make
    }

    /// A program that finds the fetched tools before the machine's.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(self.tools()).chain(std::env::split_paths(&path)));
        let libraries = LIBRARIES.map(|folder| self.root().join(folder));
        let loader = libraries.iter().map(|folder| folder.join(LOADER)).find(|loader| loader.exists());
        command.env("LC_ALL", "C").env("LAB_ROOT", self.root()).env("LAB_LOADER", loader.unwrap_or_default());
        command.env("LAB_LIBRARIES", libraries.map(|folder| folder.display().to_string()).join(":"));
        command.env("PATH", path.unwrap_or_default());
        command
    }

    fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The folder of the wrappers.
    fn tools(&self) -> PathBuf {
        self.folder.join("tools")
    }
}

/// Downloads the source, the headers, and what these depend on.
fn download(
    cache: &Cache,
    series: Series,
    release: &str,
    version: &str,
    what: &str,
    debs: &Path,
) -> Result<()> {
    let apt = Apt::open(cache, series.channel())?;
    let exact = |name: &str| -> Result<Package> {
        let package = apt.show(name)?.into_iter().find(|package| package.version == version);
        package.with_context(|| {
            format!("Debian does not offer {name} {version}: `cargo xtask lab fetch --refresh` gets a newer kernel")
        })
    };
    let headers = exact(&format!("linux-headers-{release}"))?;
    let common = exact(&format!("linux-headers-{}-common", release.trim_end_matches("-amd64")))?;
    let source = exact(&source_package(version))?;
    let needed: Vec<_> = build_dependencies(&headers.depends).into_iter().chain(TOOL_PACKAGES).collect();
    apt.download_closure(&format!("compiler of kernel {version}"), &needed, None, debs)?;
    apt.download(what, &[source, headers, common], debs)
}

/// The package of the source: that of `6.12.118-1` is `linux-source-6.12`.
fn source_package(version: &str) -> String {
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    format!("linux-source-{major}.{minor}")
}

/// The compiler and the tools that the headers depend on. They also depend on other headers, and on
/// the kernel.
fn build_dependencies(depends: &str) -> Vec<&str> {
    let names = depends.split(',').filter_map(|dependency| dependency.split_whitespace().next());
    names
        .filter(|name| {
            !["linux-headers-", "linux-image-", "linux-base"].iter().any(|other| name.starts_with(other))
        })
        .collect()
}

/// Writes the folder `tools` with a wrapper for each program of the compiler, by its name with and
/// without prefix.
fn wrap_compiler(root: &Path, folder: &Path) -> Result<()> {
    let (programs, tools, cross) = (root.join("usr/bin"), folder.join("tools"), folder.join("cross"));
    fs::create_dir_all(&tools)?;
    fs::create_dir_all(&cross)?;
    for entry in fs::read_dir(&programs).with_context(|| programs.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let plain = match name.strip_prefix(TARGET) {
            Some(plain) => plain,
            None if TOOLS.contains(&name.as_str()) => &name,
            None => continue,
        };
        let mut line = format!(r#"{LOAD} "$LAB_ROOT/usr/bin/{name}""#);
        if plain.strip_prefix("gcc-").is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit()))
        {
            // The driver starts the compiler proper and the assembler, which need the loader as well.
            line += r#" -wrapper "$LAB_LOADER,--library-path,$LAB_LIBRARIES" -B "$LAB_ROOT/../cross/""#;
        }
        for alias in [plain, &name] {
            write_wrapper(&tools.join(alias), &line)?;
        }
        let _ = fs::remove_file(cross.join(plain));
        symlink(Path::new("../root/usr/bin").join(&name), cross.join(plain))?;
    }
    Ok(())
}

/// Replaces the programs of `linux-kbuild` by wrappers.
fn wrap_host_programs(folder: &Path) -> Result<()> {
    for top in fs::read_dir(folder.join("lib"))? {
        let top = top?.path();
        if top.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"linux-kbuild-")) {
            wrap_programs_of(&top)?;
        }
    }
    Ok(())
}

fn wrap_programs_of(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            wrap_programs_of(&path)?;
        } else if entry.file_type()?.is_file() && is_program(&path)? {
            let mut moved = path.clone().into_os_string();
            moved.push(".elf");
            fs::rename(&path, moved)?;
            // Some of these programs start another one that is named after themselves.
            write_wrapper(&path, &format!(r#"{LOAD} --argv0 "$0" "$0.elf""#))?;
        }
    }
    Ok(())
}

fn is_program(path: &Path) -> Result<bool> {
    if path.metadata()?.permissions().mode() & 0o111 == 0 {
        return Ok(false);
    }
    let mut head = Vec::new();
    fs::File::open(path)?.take(4).read_to_end(&mut head)?;
    Ok(head == b"\x7fELF")
}

fn write_wrapper(path: &Path, command: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{command} \"$@\"\n"))
        .with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn run(command: &mut Command, what: &str) -> Result<()> {
    let output = bind_to_parent(command).output().with_context(|| what.to_owned())?;
    if !output.status.success() {
        bail!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_package_is_named_after_the_series() {
        assert_eq!(source_package("6.12.118-1"), "linux-source-6.12");
        assert_eq!(source_package("7.3~rc7-1~exp1"), "linux-source-7.3");
    }

    #[test]
    fn kernel_and_headers_are_not_build_dependencies() {
        let of_7_2 = "gcc-16-for-host, linux-base (>= 4.12~), linux-base-7.2.13+deb14-amd64 (= 7.2.13-1), \
                      linux-headers-7.2.13+deb14-common (= 7.2.13-1), linux-kbuild-7.2.13+deb14";
        assert_eq!(build_dependencies(of_7_2), ["gcc-16-for-host", "linux-kbuild-7.2.13+deb14"]);
        let of_6_12 = "linux-image-6.12.118+deb13-amd64 (= 6.12.118-1) | linux-image-6.12.118+deb13-amd64-unsigned \
                       (= 6.12.118-1), linux-kbuild-6.12.118+deb13, gcc-14";
        assert_eq!(build_dependencies(of_6_12), ["linux-kbuild-6.12.118+deb13", "gcc-14"]);
    }
}
