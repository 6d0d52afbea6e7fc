//! tshark, unpacked with its dependencies, so that any Linux host can run it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;
use crate::process::bind_to_parent;
use crate::tools::unpacked_program;

/// The packets that Wireshark calls malformed, or about which it has an error. It does not verify ICRCs.
const FAULTY: &str = "_ws.malformed || _ws.expert.severity == \"Error\"";

/// The protocols that are dissected. Others take payload of InfiniBand for theirs by its looks, and call it
/// malformed.
const PROTOCOLS: [&str; 7] = ["frame", "eth", "ethertype", "ip", "ipv6", "udp", "infiniband"];

/// The unpacked program.
#[derive(Clone, Debug)]
pub struct Tshark {
    root: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl Tshark {
    /// The program, fetched if it isn't cached.
    pub fn fetch(cache: &Cache) -> Result<Self> {
        let (folder, _) = cache.ensure("tshark", false, |folder| {
            let apt = Apt::open(cache, Channel::SID)?;
            let debs = folder.join("debs");
            let packages = apt.download_closure("tshark", &["tshark"], None, &debs)?;
            deb::unpack_all("tshark", &debs, &folder.join("root"))?;
            let tshark = packages.into_iter().find(|package| package.name == "tshark");
            Ok(Manifest { version: tshark.context("apt planned no tshark")?.version })
        })?;
        Ok(Self { root: folder.join("root") })
    }

    /// Fails if the capture has a packet that Wireshark can't dissect without an error. Returns how many
    /// packets of RoCE v2 there are.
    pub fn check(&self, capture: &Path) -> Result<usize> {
        let faulty = self.list(capture, FAULTY)?;
        if let Some(first) = faulty.first() {
            bail!("{} malformed packets in {}, such as {first}", faulty.len(), capture.display());
        }
        Ok(self.list(capture, "infiniband")?.len())
    }

    /// The lines of the packets that a display filter selects.
    fn list(&self, capture: &Path, filter: &str) -> Result<Vec<String>> {
        let mut command = unpacked_program(&self.root, "usr/bin/tshark", "tshark");
        command.env("WIRESHARK_DATA_DIR", self.root.join("usr/share/wireshark"));
        command.arg("--disable-all-protocols");
        command.args(PROTOCOLS.iter().flat_map(|protocol| ["--enable-protocol", protocol]));
        command.arg("-r").arg(capture).args(["-Y", filter]);
        let run = bind_to_parent(&mut command).output().context("running tshark")?;
        if !run.status.success() {
            bail!("tshark: {}", String::from_utf8_lossy(&run.stderr).trim_end());
        }
        Ok(String::from_utf8_lossy(&run.stdout).lines().map(str::to_owned).collect())
    }
}
