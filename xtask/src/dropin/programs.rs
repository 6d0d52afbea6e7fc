//! `cargo xtask dropin programs`: Debian's programs on Soft-RoCE, or perftest on the software ConnectX, with
//! our libraries and with those of Debian on either side.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use bareverbs_lab::{Accelerator, Exec, Guests, Setup, VerbsPrograms};
use clap::Args;

use super::{GUEST_FOLDER, guest_programs};
use crate::experiment::{self, Files};
use crate::print::heading;

/// The guest's device.
struct Target {
    name: &'static str,
    address: &'static str,
    /// The option with the index of its GID.
    gid: &'static str,
}

impl Target {
    fn new(hca: Option<experiment::Port>) -> Self {
        match hca {
            None => Self { name: "rxe0", address: "10.1.0.1", gid: "-x 1" },
            // The first entries are those of its IPv6 address, and of RoCE v1.
            Some(experiment::Port::Roce) => Self { name: "mlx5_0", address: "10.1.0.1", gid: "-x 3" },
            Some(experiment::Port::Ib) => Self { name: "mlx5_0", address: "10.2.0.1", gid: "" },
        }
    }
}

/// Where the guest has the programs that its Debian root lacks.
const SHARE: &str = "/programs";

/// Timeout of a run.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct RunPrograms {
    /// A series such as 6.12, or rc.
    #[arg(long, default_value = experiment::DEFAULT_KERNEL)]
    kernel: String,
    /// Run perftest on the software ConnectX instead, with this type of port.
    #[arg(long, value_enum)]
    hca: Option<experiment::Port>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// Run only commands that contain this text.
    name: Option<String>,
}

/// Starts the server `$3` with the library folder `$1`, and the client `$4` with `$2`: again, until it
/// succeeds, because the server may not listen yet. `$5` is `stop` for servers that serve without end. The
/// exit status is 0 if both succeed.
const RUN: &str = r#"
export PATH="$PATH:/programs/usr/bin"
others=/programs/usr/lib/x86_64-linux-gnu:/programs/usr/lib/x86_64-linux-gnu/ceph
run() { library=$1 limit=$2; shift 2; LD_LIBRARY_PATH=$library:$others exec timeout -k 1 "$limit" "$@"; }
(run "$1" 60 $3) >/tmp/server 2>&1 & server=$!
# A server that listens at once needs no second client.
sleep 1
: >/tmp/client
tries=0
until (run "$2" 20 $4) >>/tmp/client 2>&1; do
    echo "the client ended with status $?" >>/tmp/client
    tries=$((tries + 1))
    if [ $tries = 20 ] || ! kill -0 $server 2>/dev/null; then
        kill $server 2>/dev/null; cat /tmp/server /tmp/client >&2; exit 1
    fi
    sleep 0.5
done
if [ "$5" = stop ]; then kill $server; wait $server; exit 0; fi
wait $server || { cat /tmp/server >&2; exit 1; }"#;

/// A server and its client.
struct Pair {
    server: String,
    client: String,
    /// Whether the server serves without end.
    serves_on: bool,
}

/// perftest's programs, with the options of which each has all but those that it refuses.
fn perftest(target: &Target) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (operation, has_events, has_sizes) in
        [("send", true, true), ("write", false, true), ("read", true, true), ("atomic", true, false)]
    {
        for kind in ["bw", "lat"] {
            let mut variants = vec!["-n 20", "-n 20 -R"];
            variants.extend(has_events.then_some("-n 20 -e"));
            // The lines of all sizes take longest, and a latency test sends them one by one.
            variants.extend((has_sizes && kind == "bw").then_some("-n 5 -a"));
            variants.extend((kind == "bw").then_some("-n 20 -q 4"));
            for options in variants {
                let Target { name, gid, address } = target;
                let server = format!("ib_{operation}_{kind} -d {name} {gid} -F {options}");
                pairs.push(Pair { client: format!("{server} {address}"), server, serves_on: false });
            }
        }
    }
    pairs
}

fn pairs(target: &Target) -> Vec<Pair> {
    let host = target.address;
    let pair = |server: &str, client: &str, serves_on| Pair {
        server: server.to_owned(),
        client: client.replace("HOST", host),
        serves_on,
    };
    let fio = "fio --ioengine=rdma --bs=4k --size=64k --iodepth=4 --port=8888 --name";
    let mut all = vec![
        pair(
            "fi_pingpong -p verbs -e msg -I 20 -S 1024",
            "fi_pingpong -p verbs -e msg -I 20 -S 1024 HOST",
            false,
        ),
        pair(
            "fi_pingpong -p verbs -e dgram -I 20 -S 1024",
            "fi_pingpong -p verbs -e dgram -I 20 -S 1024 HOST",
            false,
        ),
        pair(
            &format!("{fio}=s --rw=read"),
            &format!("{fio}=c --rw=write --verb=write --hostname=HOST"),
            false,
        ),
        pair("rdma_server", "rdma_client -s HOST", false),
        pair("rping -s -a HOST -C 10".replace("HOST", host).as_str(), "rping -c -a HOST -C 10 -V", false),
        pair("riostream -S 1000 -C 10", "riostream -S 1000 -C 10 -s HOST", false),
        pair("rcopy", "rcopy /etc/passwd HOST:/tmp/copied", true),
    ];
    for test in
        ["rc_bw", "rc_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_compare_swap_mr", "ver_rc_fetch_add"]
    {
        all.push(pair("qperf", &format!("qperf -cm1 -t 1 HOST {test}"), true));
    }
    for program in ["rc", "uc", "ud", "srq"] {
        for options in ["", " -e", " -m 512", " -r 20", " -s 1"] {
            let server = format!("ibv_{program}_pingpong -g 1 -n 50 -c{options}");
            all.push(Pair { client: format!("{server} {host}"), server, serves_on: false });
        }
    }
    for options in [" -N", " -e -N", " -s 1000000 -n 5"] {
        let server = format!("ibv_rc_pingpong -g 1 -n 50 -c{options}");
        all.push(Pair { client: format!("{server} {host}"), server, serves_on: false });
    }
    all.extend(perftest(target));
    all
}

/// The libraries of server and client.
const SIDES: [(&str, [&str; 2]); 4] = [
    ("ours/ours", [GUEST_FOLDER; 2]),
    ("ours/C", [GUEST_FOLDER, ""]),
    ("C/ours", ["", GUEST_FOLDER]),
    ("C/C", [""; 2]),
];

impl RunPrograms {
    pub(crate) fn run(self) -> Result<()> {
        let files = Files::with_rdma_core(&self.kernel, guest_programs()?)?;
        let programs = VerbsPrograms::fetch(&files.cache)?;
        let target = Target::new(self.hca);
        heading(&format!("Debian's programs with our library on {}, {}", files.kernel.version, target.name));
        let shares = vec![(programs.root, SHARE.to_owned())];
        let setup = Setup { accelerator: self.accel, shares, ..files.setup() };
        let hca = experiment::start_hca(self.hca, 1, &[])?;
        let pairs = if hca.is_some() { perftest(&target) } else { pairs(&target) };
        let mut failed = Vec::new();
        experiment::run(&setup, hca.as_ref(), |guests| {
            for pair in pairs {
                if self.name.as_ref().is_none_or(|name| pair.client.contains(name)) {
                    failed.extend(run_pair(guests, &pair)?);
                }
            }
            Ok(())
        })?;
        ensure!(failed.is_empty(), "they fail with our library only:\n{}", failed.join("\n"));
        Ok(())
    }
}

/// Runs a pair with all combinations of libraries, and prints the outcomes. Returns those that are worse than
/// with Debian's library on both sides.
fn run_pair(guests: &mut Guests, pair: &Pair) -> Result<Vec<String>> {
    let ends = if pair.serves_on { "stop" } else { "" };
    let mut outcomes = BTreeMap::new();
    for (name, [server_library, client_library]) in SIDES {
        let arguments =
            ["sh", "-c", RUN, "sh", server_library, client_library, &pair.server, &pair.client, ends];
        let argv = arguments.map(str::to_owned).into();
        let finished = guests.run(0, Exec { argv, ..Exec::default() }, LIMIT)?;
        let is_ok = finished.status == 0 && !finished.timed_out;
        outcomes.insert(name, (is_ok, String::from_utf8_lossy(&finished.stderr).into_owned()));
    }
    let text = SIDES.map(|(name, _)| format!("{name} {}", if outcomes[name].0 { "ok" } else { "fails" }));
    println!("{}: {}", pair.client, text.join(", "));
    let is_comparable = outcomes["C/C"].0;
    let worse = outcomes.iter().filter(|(_, (is_ok, _))| is_comparable && !is_ok);
    Ok(worse.map(|(name, (_, printed))| format!("{name} {}: {printed}", pair.client)).collect())
}
