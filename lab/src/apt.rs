//! Debian packages, fetched by the machine's own apt with a separate state folder. It needs no root
//! and does not change the system.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nix::fcntl::Flock;

use crate::cache::Cache;
use crate::process::bind_to_parent;
use crate::sources::Mirrors;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A Debian release with its update suites, by codename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channel(pub(crate) &'static str);

impl Channel {
    /// The release of the guests' rdma-core.
    pub(crate) const SID: Self = Self("sid");
    /// The suite with packages newer than sid.
    pub(crate) const EXPERIMENTAL: Self = Self("experimental");
    /// The release with the required QEMU in its backports.
    pub(crate) const TRIXIE: Self = Self("trixie");
    /// The release with the oldest C library that our libraries for C programs run with.
    pub(crate) const BULLSEYE: Self = Self("bullseye");

    pub(crate) fn name(self) -> &'static str {
        self.0
    }

    fn suites(self) -> Vec<String> {
        match self {
            Self::SID => vec!["sid".into()],
            Self::EXPERIMENTAL => vec!["sid".into(), "experimental".into()],
            Self(stable) => {
                let backports = (self == Self::TRIXIE).then_some("-backports");
                let parts = ["", "-updates", "-security"].into_iter().chain(backports);
                parts.map(|part| format!("{stable}{part}")).collect()
            }
        }
    }
}

/// One version of a package in apt's lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) depends: String,
    pub(crate) size: u64,
}

/// apt with its own lists for one [`Channel`].
pub(crate) struct Apt {
    state: PathBuf,
    channel: Channel,
    /// apt does not share its state between processes.
    _lock: Flock<File>,
}

impl Apt {
    /// Reads the channel's package lists again.
    pub(crate) fn open(cache: &Cache, channel: Channel) -> Result<Self> {
        let state = cache.root().join("apt").join(channel.name());
        let lock = cache.lock(&format!("apt-{}", channel.name()))?;
        for folder in ["lists/partial", "cache/archives/partial", "preferences.d"] {
            fs::create_dir_all(state.join(folder))?;
        }
        let mirrors = Mirrors::of_machine();
        fs::write(state.join("sources.list"), sources_list(channel, &mirrors, Path::new(KEYRING).exists()))?;
        fs::write(state.join("status"), "")?;
        let apt = Self { state, channel, _lock: lock };
        let mut update = apt.command("apt-get");
        update.arg("update");
        run(update, &format!("package lists of {}", channel.name()), None)?;
        Ok(apt)
    }

    /// All known versions of a package, newest first.
    pub(crate) fn show(&self, name: &str) -> Result<Vec<Package>> {
        let output = self.command("apt-cache").arg("show").arg(name).output().context("running apt-cache")?;
        Ok(stanzas(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Downloads exactly these packages into `folder`.
    pub(crate) fn download(&self, what: &str, packages: &[Package], folder: &Path) -> Result<()> {
        let mut command = self.command("apt-get");
        command.current_dir(folder).arg("download");
        command.args(packages.iter().map(|package| format!("{}={}", package.name, package.version)));
        run(command, what, Some(packages.iter().map(|package| package.size).sum()))
    }

    /// Downloads the packages with everything they depend on into `folder`.
    pub(crate) fn download_closure(
        &self,
        what: &str,
        packages: &[&str],
        from: Option<&str>,
        folder: &Path,
    ) -> Result<Vec<Package>> {
        fs::create_dir_all(folder.join("partial"))?;
        let install = |extra: &[&str]| {
            let mut command = self.command("apt-get");
            command.args(from.map(|suite| format!("--target-release={suite}")));
            command.arg("-o").arg(format!("Dir::Cache::archives={}/", folder.display()));
            command.args(["-o", "APT::Keep-Downloaded-Packages=true"]);
            command.args(["install", "--yes", "--no-install-recommends"]).args(extra).args(packages);
            command
        };
        let plan = install(&["--print-uris"]).output().context("running apt-get")?;
        if !plan.status.success() {
            bail!("apt-get can't resolve {}:\n{}", packages.join(" "), String::from_utf8_lossy(&plan.stderr));
        }
        let planned = planned(&String::from_utf8_lossy(&plan.stdout));
        run(install(&["--download-only"]), what, Some(planned.iter().map(|package| package.size).sum()))?;
        fs::remove_dir_all(folder.join("partial"))?;
        Ok(planned)
    }

    fn command(&self, program: &str) -> Command {
        let state = self.state.display();
        let mut command = Command::new(program);
        command.env("LC_ALL", "C");
        for option in [
            format!("Dir::State={state}"),
            format!("Dir::State::lists={state}/lists"),
            format!("Dir::State::status={state}/status"),
            format!("Dir::Cache={state}/cache"),
            format!("Dir::Etc::sourcelist={state}/sources.list"),
            "Dir::Etc::sourceparts=-".into(),
            format!("Dir::Etc::preferences={state}/preferences"),
            format!("Dir::Etc::preferencesparts={state}/preferences.d"),
            // The user _apt has no access to a cache below a home folder.
            "APT::Sandbox::User=root".into(),
            "APT::Architecture=amd64".into(),
            "Acquire::Languages=none".into(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".into(),
            "Acquire::Retries=3".into(),
        ] {
            command.arg("-o").arg(option);
        }
        bind_to_parent(&mut command);
        command
    }

    /// The suites of this apt, for messages.
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }
}

fn sources_list(channel: Channel, mirrors: &Mirrors, keyring: bool) -> String {
    let options = if keyring { format!("[arch=amd64 signed-by={KEYRING}]") } else { "[arch=amd64]".into() };
    let mut list = String::new();
    for suite in channel.suites() {
        let mirror = if suite.ends_with("-security") { &mirrors.security } else { &mirrors.archive };
        let _ = writeln!(list, "deb {options} {mirror} {suite} main");
    }
    list
}

/// The stanzas of `apt-cache show`.
fn stanzas(text: &str) -> Vec<Package> {
    let mut packages = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            let value = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            value.unwrap_or_default().trim().to_owned()
        };
        let package = Package {
            name: field("Package"),
            version: field("Version"),
            depends: field("Depends"),
            size: field("Size").parse().unwrap_or(0),
        };
        if !package.name.is_empty() {
            packages.push(package);
        }
    }
    packages
}

/// The lines `'URI' NAME_VERSION_ARCH.deb SIZE HASH` of `--print-uris`.
fn planned(text: &str) -> Vec<Package> {
    text.lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (file, size) = (words.next()?, words.next()?);
            let mut parts = file.split('_');
            Some(Package {
                name: parts.next()?.to_owned(),
                version: parts.next()?.replace("%3a", ":"),
                depends: String::new(),
                size: size.parse().ok()?,
            })
        })
        .collect()
}

/// Runs apt with a progress bar fed by its status lines.
fn run(mut command: Command, what: &str, bytes: Option<u64>) -> Result<()> {
    command.args(["-o", "APT::Status-Fd=1", "--quiet"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting apt-get: the lab fetches with Debian's apt")?;
    let mut stderr = child.stderr.take().expect("stderr is piped");
    let stderr = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });

    let bar = progress_bar(what, bytes);
    let total = bytes.unwrap_or(1000);
    for line in BufReader::new(child.stdout.take().expect("stdout is piped")).lines() {
        if let Some(percent) = downloaded_percent(&line?) {
            bar.set_position((total as f64 * percent / 100.0) as u64);
        }
    }
    let status = child.wait()?;
    let stderr = stderr.join().unwrap_or_default();
    if !status.success() {
        bar.abandon();
        bail!("fetching the {what} failed ({status}):\n{}", stderr.trim_end());
    }
    bar.finish_and_clear();
    Ok(())
}

fn progress_bar(what: &str, bytes: Option<u64>) -> ProgressBar {
    match bytes {
        Some(bytes) => eprintln!("lab: fetching the {what} ({} MB)", bytes.div_ceil(1_000_000)),
        None => eprintln!("lab: fetching the {what}"),
    }
    // Hidden if standard error is not a terminal.
    let bar = ProgressBar::new(bytes.unwrap_or(1000));
    if bar.is_hidden() {
        return bar;
    }
    let template = match bytes {
        Some(_) => "{msg:40} {wide_bar} {bytes:>10}/{total_bytes} {eta:>4}",
        None => "{msg:40} {wide_bar} {percent}%",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// `dlstatus:ITEM:PERCENT:text`
fn downloaded_percent(line: &str) -> Option<f64> {
    line.strip_prefix("dlstatus:")?.split(':').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_suites_come_from_the_security_mirror() {
        let mirrors = Mirrors { archive: "http://a".into(), security: "http://s".into() };
        let list = sources_list(Channel("bookworm"), &mirrors, false);
        assert_eq!(
            list,
            "deb [arch=amd64] http://a bookworm main\ndeb [arch=amd64] http://a bookworm-updates main\n\
             deb [arch=amd64] http://s bookworm-security main\n"
        );
    }

    #[test]
    fn apt_cache_stanzas_keep_order() {
        let text =
            "Package: k\nVersion: 2-1\nDepends: k-2 (= 2-1), x\nSize: 30\n\nPackage: k\nVersion: 1-1\n\n";
        let found = stanzas(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].depends, "k-2 (= 2-1), x");
        assert_eq!((found[0].size, found[1].version.as_str()), (30, "1-1"));
    }

    #[test]
    fn print_uris_output_is_parsed() {
        let text = "Reading package lists...\n\
                    'http://m/q_11.deb' qemu-system-x86_1%3a11.1+ds-1_amd64.deb 10377056 SHA256:ab\n";
        let plan = planned(text);
        assert_eq!((plan[0].name.as_str(), plan[0].version.as_str()), ("qemu-system-x86", "1:11.1+ds-1"));
        assert_eq!(plan[0].size, 10_377_056);
    }

    #[test]
    fn status_lines_carry_the_percentage() {
        assert_eq!(downloaded_percent("dlstatus:3:46.5:Retrieving file 3 of 9"), Some(46.5));
        assert_eq!(downloaded_percent("Get:1 http://…"), None);
    }
}
