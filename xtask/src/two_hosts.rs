//! Tests that are driven by the host: two or three guests on a wire, the packets on it, and guests with
//! only our program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bareverbs::soft::{Fabric, SoftDevice};
use bareverbs::{Access, Buffer, Device, Endpoint, Op, Pd};
use bareverbs_lab::pcap::{RocePacket, frames};
use bareverbs_lab::{Exec, Guests, Setup, Since, Stream, TerminalSize, Tshark};
use bareverbs_transport::roce;
use serde_json::Value;

use crate::build;
use crate::experiment::command::announced;

/// The kernel of these tests.
pub(crate) const KERNEL: &str = Since::V6_12.name();
/// Timeout of one run or report.
const LIMIT: Duration = Duration::from_secs(60);
/// Iterations of a run.
const ITERATIONS: &str = "50";
/// A message size in bytes that fits one packet.
const SIZE: &str = "256";
const SERVER: [u8; 4] = [10, 1, 0, 1];
const CLIENT: [u8; 4] = [10, 1, 0, 2];

/// A test; it boots its own guests.
pub(crate) type Test = fn(&Setup<'_>) -> Result<()>;

/// All tests by name.
pub(crate) const TESTS: [(&str, Test); 8] = [
    ("two_hosts::bareverbs_runs_in_empty_root", bareverbs_alone),
    ("two_hosts::rc_pingpong_interop_over_wire", with_the_c_program),
    ("two_hosts::other_pingpongs_interop_over_wire", on_every_transport),
    ("two_hosts::connection_tools_interop_over_wire", tools_of_connections),
    ("two_hosts::datagram_tools_interop_over_wire", tools_of_datagrams),
    ("two_hosts::stream_tools_interop_over_wire", tools_of_streams),
    ("two_hosts::perf_runs_between_three_hosts", perf_of_several_hosts),
    ("two_hosts::soft_device_and_rxe_send_sound_packets", soft_device_and_rxe),
];

/// A tool over the connection manager: name, options of the server, options of the client.
type Tool = (&'static str, &'static str, &'static str);

const CONNECTION_TOOLS: [Tool; 4] = [
    ("rping", "-s -v", "-c -a 10.1.0.1 -C 5 -v -V"),
    ("ucmatose", "-c 4 -C 20", "-s 10.1.0.1 -c 4 -C 20"),
    ("rdma_PEER", "server", "client -s 10.1.0.1"),
    (CMTIME, "-L -b 10.1.0.1 -C 10.1.0.1 -c 20", "-b 10.1.0.2 -C 10.1.0.1 -c 20"),
];
const UDADDY: Tool = ("udaddy", "-c 4 -C 20", "-s 10.1.0.1 -c 4 -C 20");
const STREAM_TOOLS: [Tool; 3] = [
    ("rstream", "-S 5000 -C 10 -I 5 -T v", "-s 10.1.0.1 -S 5000 -C 10 -I 5 -T v"),
    ("riostream", "-S 5000 -C 10 -I 5 -T v", "-s 10.1.0.1 -S 5000 -C 10 -I 5 -T v"),
    (RCOPY, "", "/bin/ls 10.1.0.1:/tmp/copy"),
];

/// The tool whose peers meet over TCP before they use the connection manager.
const CMTIME: &str = "cmtime";
/// The tool whose server does not end.
const RCOPY: &str = "rcopy";
/// What a script prints when its server listens, or has ended.
const LISTENING: &str = "the server listens";
/// `riostream` of librdmacm listens before it sets `RDMA_IOMAPSIZE`. A stream that its thread accepts
/// in between has no entries. Our client says so.
const NO_ENTRIES: &str = "all 0 entries of the peer's iomap table are in use";

fn bareverbs_alone(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot(&Setup { rdma_core: None, ..setup.clone() }, "alone")?;
    for (words, sign) in [
        (&["bareverbs", "devices"][..], "rxe0"),
        (&["bareverbs", "devinfo", "-v"], "PORT_ACTIVE (4)"),
        (&["bareverbs", "devinfo", "--json"], "\"name\": \"rxe0\""),
    ] {
        let argv = words.iter().copied().map(str::to_owned).collect();
        let finished = wire.guests.run(0, Exec { argv, ..Exec::default() }, LIMIT)?;
        let text = String::from_utf8_lossy(&finished.stdout);
        ensure!(finished.status == 0 && text.contains(sign), "{words:?} printed no `{sign}`: {finished:?}");
    }
    let run = wire.run_pingpong(bareverbs_rc(None), bareverbs_rc(Some("10.1.0.1")))?;
    wire.expect_packets(&[run])
}

fn with_the_c_program(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot(setup, "rdma-core")?;
    let runs = [
        wire.run_pingpong(bareverbs_rc(None), rdma_core_rc(Some("10.1.0.1")))?,
        wire.run_pingpong(rdma_core_rc(None), bareverbs_rc(Some("10.1.0.1")))?,
    ];
    wire.expect_packets(&runs)
}

fn on_every_transport(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot(setup, "transports")?;
    let mut runs = Vec::new();
    for transport in [UC, UD, SRQ] {
        let (bareverbs_rc, rdma_core_rc) =
            (|host| bareverbs(transport, host), |host| rdma_core(transport, host));
        for (server, client) in [
            (bareverbs_rc(None), rdma_core_rc(Some("10.1.0.1"))),
            (rdma_core_rc(None), bareverbs_rc(Some("10.1.0.1"))),
            (bareverbs_rc(None), bareverbs_rc(Some("10.1.0.1"))),
        ] {
            runs.push(PingpongRun { transport, ..wire.run_pingpong(server, client)? });
        }
    }
    wire.expect_packets(&runs)
}

/// Whether server and client are ours: each tool runs with the program of librdmacm in both roles.
const ORIGINS: [[bool; 2]; 2] = [[true, false], [false, true]];

fn tools_of_connections(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot_for_tools(setup, "connections")?;
    for tool in CONNECTION_TOOLS {
        ORIGINS.into_iter().try_for_each(|origins| wire.run_tool(tool, origins))?;
    }
    wire.guests.shut_down()?;
    Ok(())
}

fn tools_of_datagrams(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot_for_tools(setup, "datagrams")?;
    for origins in ORIGINS {
        wire.run_tool(UDADDY, origins)?;
        let [is_ours, is_senders_ours] = origins;
        let receiver = command("mckey", "-m 239.7.7.7 -b 10.1.0.1 -C 4", is_ours);
        let sender = command("mckey", "-m 239.7.7.7 -b 10.1.0.2 -C 100 -s", is_senders_ours);
        wire.run_until_received(&receiver, &sender)?;
    }
    wire.guests.shut_down()?;
    Ok(())
}

fn tools_of_streams(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot_for_tools(setup, "streams")?;
    for origins in ORIGINS {
        STREAM_TOOLS.into_iter().try_for_each(|tool| wire.run_tool(tool, origins))?;
        let compare = ["sh", "-c", "cmp /bin/ls /tmp/copy && rm /tmp/copy"].map(str::to_owned).into();
        let compared = wire.guests.run(0, Exec { argv: compare, ..Exec::default() }, LIMIT)?;
        ensure!(compared.status == 0, "rcopy has copied something else: {compared:?}");
    }
    wire.guests.shut_down()?;
    Ok(())
}

/// Messages of a run of `bareverbs perf` with each peer.
const PERF_MESSAGES: u64 = 100;

/// Clients of two hosts on a server of the third one, then all hosts with each other.
fn perf_of_several_hosts(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot_hosts(setup, "perf", 3)?;
    let both = format!("-s 4096 -n {PERF_MESSAGES}");
    // The client may come before the server listens.
    let client = |command: &str| {
        let file = format!("/tmp/{}", command.split(' ').next().unwrap_or_default());
        format!(
            "for i in $(seq 100); do {command} {both} 10.1.0.1 >{file} 2>&1 && exit; sleep 0.2; done; \
             cat {file} >&2; exit 1"
        )
    };
    for (operation, perftest) in [("send", "ib_send_bw"), ("write", "ib_write_bw")] {
        let server = format!("bareverbs perf {operation} bw --clients 3 --json {both}");
        let (ours, theirs) = (format!("bareverbs perf {operation} bw"), format!("{perftest} -F"));
        let two = format!("({}) & ({}); first=$?; wait $! && exit $first", client(&ours), client(&theirs));
        let output = wire.run_all(&[&server, &two, &client(&ours)])?;
        expect_peers(&output[0], &["10.1.0.2", "10.1.0.2", "10.1.0.3"])?;
    }
    for operation in ["send", "write", "read"] {
        let hosts = "10.1.0.1,10.1.0.2,10.1.0.3";
        let each = format!("bareverbs perf {operation} bw -b --all-to-all {hosts} --json {both}");
        let output = wire.run_all(&[each.as_str(); 3])?;
        for (host, output) in output.iter().enumerate() {
            let mut others = vec!["10.1.0.1", "10.1.0.2", "10.1.0.3"];
            others.remove(host);
            expect_peers(output, &others)?;
        }
    }
    wire.guests.shut_down()?;
    Ok(())
}

/// The access rights of memory for each operation.
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The soft device of the second host.
const SOFT: &str = "soft:10.1.0.2";

/// Programs on rxe with a soft device of another host. Wireshark and the decoder of soft devices, which
/// verifies ICRCs, find no fault in the packets of both, and in those that a fabric records.
fn soft_device_and_rxe(setup: &Setup<'_>) -> Result<()> {
    let mut wire = Wire::boot(setup, "soft")?;
    // Without its module, rxe leaves UDP port 4791 to others.
    wire.run_scripts("true", "bareverbs link del rxe0 && /usr/sbin/rmmod rdma_rxe")?;
    let mut runs = Vec::new();
    for transport in [RC, UC, UD] {
        let mut client = bareverbs(transport, Some("10.1.0.1"));
        client.extend(["-d", SOFT].map(str::to_owned));
        let run = wire.run_pingpong(rdma_core(transport, None), client)?;
        // The QPs of soft devices of later programs may have the same QPNs.
        runs.extend((transport == RC).then_some(run));
    }
    for operation in ["send", "write", "read", "atomic"] {
        let command = format!("bareverbs perf {operation} bw -b -n {PERF_MESSAGES}");
        let client = format!("{command} -d {SOFT} 10.1.0.1");
        // The client may come before the server listens.
        let client = format!("for i in $(seq 100); do {client} && exit; sleep 0.1; done; exit 1");
        wire.run_scripts(&command, &client)?;
    }
    let recording = wire.recording.clone();
    wire.expect_packets(&runs)?;
    let tshark = Tshark::fetch(setup.cache)?;
    let seen = tshark.check(&recording)?;
    let capture = fs::read(&recording)?;
    let packets = frames(&capture).context("the recording is whole")?;
    let packets: Vec<_> = packets.into_iter().filter(|frame| RocePacket::parse(frame).is_some()).collect();
    ensure!(packets.len() == seen, "Wireshark knows {seen} packets of {}", packets.len());
    for frame in packets {
        ensure!(roce::decode(frame).is_some(), "a malformed frame, or a wrong ICRC: {frame:02x?}");
    }
    let captured = recording.with_file_name("soft-fabric.pcap");
    let count = capture_fabric(&captured)?;
    let seen = tshark.check(&captured)?;
    ensure!(seen >= count, "Wireshark knows {seen} packets of {count} operations or more");
    Ok(())
}

/// Records the packets of two devices in this process. Returns the number of operations.
fn capture_fabric(capture: &Path) -> Result<usize> {
    const LENGTHS: [usize; 4] = [0, 1, 1024, 5001];
    let fabric = Fabric::seeded(1);
    let [alice, bob] = [(); 2].map(|()| Device::from(SoftDevice::new(&fabric)));
    let [alice, bob] = [alice.open()?.alloc_pd()?, bob.open()?.alloc_pd()?];
    let mut requester = Endpoint::new(&alice, 1, 1)?;
    let mut responder = Endpoint::options().sends(1).recvs(1).access(ALL).build(&bob)?;
    requester.connect(&responder.address())?;
    responder.connect(&requester.address())?;
    fabric.capture(fs::File::create(capture)?)?;
    let memory = |pd: &Pd| Ok::<_, bareverbs::Error>(pd.register(Buffer::zeroed(8192)?, ALL)?);
    let target = memory(&bob)?;
    let remote = target.remote(0)?;
    for length in LENGTHS {
        responder.post(Op::recv(memory(&bob)?))?;
        for op in [
            Op::send(memory(&alice)?, ..length),
            Op::write(memory(&alice)?, ..length, remote),
            Op::read(memory(&alice)?, ..length, remote),
            Op::fetch_add(memory(&alice)?, remote, 1),
        ] {
            requester.post(op)?;
            requester.next().wait()?;
        }
        responder.next().wait()?;
    }
    fabric.end_capture()?;
    Ok(4 * LENGTHS.len())
}

/// Asserts that a side ran with these peers, and that its result is the sum of all.
fn expect_peers(output: &str, peers: &[&str]) -> Result<()> {
    let json: Value = serde_json::from_str(output).with_context(|| format!("no JSON: {output}"))?;
    let messages = |side: &Value| {
        let result = &side["results"][0];
        let own = result["messages"].as_u64().filter(|&count| count > 0);
        own.or(result["peer"]["iterations"].as_u64())
    };
    let found = json["peers"].as_array().context("there are several peers")?;
    let mut hosts: Vec<_> = found.iter().filter_map(|peer| peer["host"].as_str()).collect();
    hosts.sort_unstable();
    ensure!(hosts == peers, "the peers are {hosts:?}, not {peers:?}: {json:#}");
    let each = found.iter().all(|peer| messages(peer) == Some(PERF_MESSAGES));
    let sum = messages(&json) == Some(PERF_MESSAGES * peers.len() as u64);
    ensure!(each && sum, "not {PERF_MESSAGES} messages with each peer: {json:#}");
    Ok(())
}

/// The command of a tool: ours, or the program of librdmacm.
fn command(name: &str, options: &str, is_ours: bool) -> String {
    // Two programs have their role in their names.
    let (name, options) = match name.strip_suffix("PEER") {
        Some(start) => {
            let (role, rest) = options.split_once(' ').unwrap_or((options, ""));
            (format!("{start}{role}"), rest)
        }
        None => (name.to_owned(), options),
    };
    if is_ours {
        format!("bareverbs {} {options}", name.replace('_', "-"))
    } else {
        format!("{name} {options}")
    }
}

/// A transport of ping-pong, and its packets.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Transport {
    name: &'static str,
    opcode: u8,
    acknowledged: bool,
    /// Additional options.
    options: &'static [&'static str],
}

const RC: Transport =
    Transport { name: "rc", opcode: RocePacket::RC_SEND_ONLY, acknowledged: true, options: &[] };
const UC: Transport =
    Transport { name: "uc", opcode: RocePacket::UC_SEND_ONLY, acknowledged: false, options: &[] };
const UD: Transport =
    Transport { name: "ud", opcode: RocePacket::UD_SEND_ONLY, acknowledged: false, options: &[] };
/// With one queue pair, which then carries all messages.
const SRQ: Transport = Transport { name: "srq", options: &["-q", "1"], ..RC };

fn bareverbs_rc(host: Option<&str>) -> Vec<String> {
    bareverbs(RC, host)
}

fn rdma_core_rc(host: Option<&str>) -> Vec<String> {
    rdma_core(RC, host)
}

fn bareverbs(transport: Transport, host: Option<&str>) -> Vec<String> {
    let words = ["bareverbs", "pingpong", transport.name, "-n", ITERATIONS, "-s", SIZE];
    words.iter().chain(transport.options).copied().chain(host).map(str::to_owned).collect()
}

/// A server prints a line when it listens.
fn rdma_core(transport: Transport, host: Option<&str>) -> Vec<String> {
    let program = format!("ibv_{}_pingpong", transport.name);
    let words = [&program, "-g", "1", "-n", ITERATIONS, "-s", SIZE];
    let command: Vec<_> =
        words.iter().chain(transport.options).copied().chain(host).map(str::to_owned).collect();
    if host.is_some() { command } else { announced(&command) }
}

/// A script whose output is complete also if it is killed: programs write each line to a terminal.
fn in_terminal(script: &str) -> Exec {
    let argv = ["sh", "-c", script].map(str::to_owned).into();
    Exec { argv, terminal: Some(TerminalSize { rows: 24, columns: 200 }), ..Exec::default() }
}

/// Two guests and the capture of their packets.
struct Wire {
    guests: Guests,
    recording: PathBuf,
}

/// QPN and first PSN of a side.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Side {
    qpn: u32,
    psn: u32,
}

/// A run's server and client.
#[derive(PartialEq, Eq)]
struct PingpongRun {
    transport: Transport,
    server: Side,
    client: Side,
}

impl Wire {
    fn boot(setup: &Setup<'_>, name: &str) -> Result<Self> {
        Self::boot_hosts(setup, name, 2)
    }

    fn boot_hosts(setup: &Setup<'_>, name: &str, hosts: u8) -> Result<Self> {
        let recording = build::target_folder().join(format!("two-hosts-{name}.pcap"));
        let setup = Setup { hosts, recording: Some(recording.clone()), shares: Vec::new(), ..setup.clone() };
        Ok(Self { guests: Guests::boot(&setup)?, recording })
    }

    /// Runs a server on the first host and a client on the second.
    fn run_pingpong(&mut self, server: Vec<String>, client: Vec<String>) -> Result<PingpongRun> {
        // Ours listens when it prints its address. The wrapper of the C program prints `listening`.
        let sign = if server[0] == "bareverbs" { "local address:" } else { "listening\n" };
        let mut output = [String::new(), String::new()];
        let commands = [server, client].map(|argv| Exec { argv, ..Exec::default() });
        let statuses = self.run_pair(commands, sign, false, Instant::now() + LIMIT, &mut output);
        let statuses = statuses.with_context(|| format!("{output:#?}"))?;
        ensure!(statuses == [Some(0); 2], "the run failed with {statuses:?}: {output:#?}");
        let [server, client] = &output;
        let between = |server, client| PingpongRun { transport: RC, server, client };
        let run = between(side(server, "local")?, side(client, "local")?);
        let seen = between(side(client, "remote")?, side(server, "remote")?);
        ensure!(run == seen, "the sides don't name each other: {output:#?}");
        Ok(run)
    }

    /// Boots two hosts that know each other's Ethernet addresses. The programs wait for them for 2
    /// seconds at most.
    fn boot_for_tools(setup: &Setup<'_>, name: &str) -> Result<Self> {
        let mut wire = Self::boot(setup, name)?;
        let resolve = |peer: &str| {
            format!(
                "until set -- $(ip neigh show {peer}) && [ \"$4\" = lladdr ]; do \
                 bash -c ': </dev/tcp/{peer}/9' 2>/dev/null; done; \
                 ip neigh replace {peer} lladdr $5 dev $3 nud permanent"
            )
        };
        wire.run_scripts(&resolve("10.1.0.2"), &resolve("10.1.0.1"))?;
        Ok(wire)
    }

    /// Runs a tool. Server and client must succeed.
    fn run_tool(&mut self, tool: Tool, [is_ours, is_clients_ours]: [bool; 2]) -> Result<()> {
        let (name, server, client) = tool;
        let server = command(name, server, is_ours);
        let client = command(name, client, is_clients_ours);
        let listens = match name {
            CMTIME => "grep -q ':1D2F .* 0A ' /proc/net/tcp",
            _ => "rdma resource show cm_id | grep -q LISTEN",
        };
        let announced = format!(
            "{server} & until {listens}; do kill -0 $! 2>/dev/null || break; sleep 0.05; done; \
             echo {LISTENING}; wait $!"
        );
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut output = [String::new(), String::new()];
            let commands = [&announced, &client].map(|script| in_terminal(script));
            let run = self.run_pair(commands, LISTENING, name == RCOPY, deadline, &mut output);
            let run = run.with_context(|| format!("{server}, {client}: {output:#?}"))?;
            if run[1] == Some(0) && (run[0] == Some(0) || name == RCOPY) {
                return Ok(());
            }
            let precedes_options = !is_ours && output[1].contains(NO_ENTRIES);
            ensure!(precedes_options, "{server}, {client} failed with {run:?}: {output:#?}");
        }
    }

    /// Runs a server on the first host and, when it has printed `sign`, a client on the second one.
    /// Returns their statuses. After a client that has failed, and if it `is_endless`, the server is
    /// killed.
    fn run_pair(
        &mut self,
        [server, client]: [Exec; 2],
        sign: &str,
        is_endless: bool,
        deadline: Instant,
        output: &mut [String; 2],
    ) -> Result<[Option<u8>; 2]> {
        self.guests.start(0, server)?;
        while self.guests.is_running(0) && !output[0].contains(sign) {
            self.step(deadline, output)?;
        }
        self.guests.start(1, client)?;
        while self.guests.is_running(1) {
            self.step(deadline, output)?;
        }
        let is_client_done = self.guests.status(1) == Some(0);
        if self.guests.is_running(0) && (is_endless || !is_client_done) {
            self.guests.end_command(0)?;
        }
        while self.guests.is_running(0) {
            self.step(deadline, output)?;
        }
        Ok([0, 1].map(|host| self.guests.status(host)))
    }

    /// Waits for the next event of the hosts, and adds what they print to `output`.
    fn step(&mut self, deadline: Instant, output: &mut [String; 2]) -> Result<()> {
        self.guests.step(Some(deadline), &mut |host, _, bytes| {
            output[host] += &String::from_utf8_lossy(bytes);
            Ok(())
        })
    }

    /// Runs a script on each host. Both must succeed.
    fn run_scripts(&mut self, server: &str, client: &str) -> Result<()> {
        self.run_all(&[server, client]).map(drop)
    }

    /// Runs a receiver on the first host, and a sender on the second one again and again until the
    /// receiver has all messages. librdmacm's sender destroys its QP before its sends are out, so it posts
    /// far more than the receiver waits for.
    fn run_until_received(&mut self, receiver: &str, sender: &str) -> Result<()> {
        let mut output = [String::new(), String::new()];
        let run = self.send_until_received(receiver, sender, &mut output);
        let run = run.with_context(|| format!("{receiver}, {sender}: {output:#?}"))?;
        ensure!(run == [Some(0); 2], "{receiver}, {sender} failed with {run:?}: {output:#?}");
        Ok(())
    }

    fn send_until_received(
        &mut self,
        receiver: &str,
        sender: &str,
        output: &mut [String; 2],
    ) -> Result<[Option<u8>; 2]> {
        let deadline = Instant::now() + LIMIT;
        self.guests.start(0, in_terminal(receiver))?;
        let mut sent = Some(0);
        while sent == Some(0) && self.guests.is_running(0) {
            self.guests.start(1, in_terminal(sender))?;
            while self.guests.is_running(1) {
                self.step(deadline, output)?;
            }
            sent = self.guests.status(1);
        }
        Ok([self.guests.status(0), sent])
    }

    fn start_script(&mut self, host: usize, script: &str) -> Result<()> {
        let argv = ["sh", "-c", script].map(str::to_owned).into();
        self.guests.start(host, Exec { argv, ..Exec::default() })
    }

    /// Runs a script on each host. All must succeed. Returns what each has printed.
    fn run_all(&mut self, scripts: &[&str]) -> Result<Vec<String>> {
        let deadline = Some(Instant::now() + LIMIT);
        let (mut output, mut errors) =
            (vec![String::new(); scripts.len()], vec![String::new(); scripts.len()]);
        for (host, script) in scripts.iter().enumerate() {
            self.start_script(host, script)?;
        }
        let statuses = self.guests.wait(deadline, &mut |host: usize, stream: Stream, bytes: &[u8]| {
            let text = if stream == Stream::Stderr { &mut errors } else { &mut output };
            text[host] += &String::from_utf8_lossy(bytes);
            Ok(())
        });
        let statuses = statuses.with_context(|| format!("{output:#?}, {errors:#?}"))?;
        ensure!(
            statuses.iter().all(|&status| status == 0),
            "the run failed with {statuses:?}: {output:#?}, {errors:#?}"
        );
        Ok(output)
    }

    /// Asserts that the messages of these runs, and acknowledgements, are in the capture in both
    /// directions.
    fn expect_packets(self, runs: &[PingpongRun]) -> Result<()> {
        self.guests.shut_down()?;
        let capture = fs::read(&self.recording)?;
        let frames = frames(&capture).context("the recording is whole")?;
        let packets: Vec<RocePacket> = frames.into_iter().filter_map(RocePacket::parse).collect();
        for PingpongRun { transport, server, client } in runs {
            for (from, source, to, destination) in
                [(CLIENT, client, SERVER, server), (SERVER, server, CLIENT, client)]
            {
                let numbers = |opcode: u8| -> Vec<u32> {
                    let between = packets.iter().filter(|packet| {
                        (packet.source, packet.destination) == (from, to)
                            && packet.destination_qp == destination.qpn
                            && packet.opcode == opcode
                    });
                    between.map(|packet| packet.psn).collect()
                };
                let sends = numbers(transport.opcode);
                // A packet may be retried, but each PSN occurs, from the printed first one on.
                for number in 0..ITERATIONS.parse()? {
                    let psn = source.psn.wrapping_add(number) & 0xff_ffff;
                    ensure!(
                        sends.contains(&psn),
                        "no SEND ONLY ({}) {psn:#x} from {from:?} to {to:?}: {sends:x?}",
                        transport.name
                    );
                }
                let acks = numbers(RocePacket::RC_ACKNOWLEDGE);
                ensure!(
                    acks.is_empty() != transport.acknowledged,
                    "{} ACKs from {from:?} to {to:?} in {} packets of {}",
                    acks.len(),
                    packets.len(),
                    transport.name
                );
            }
        }
        Ok(())
    }
}

/// The numbers in `  local address:  LID 0x0000, QPN 0x000011, PSN 0x14b5d8, GID ::ffff:10.1.0.1`.
fn side(output: &str, whose: &str) -> Result<Side> {
    let number = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(&format!("  {whose} address:")))?;
        let digits = line.split_once(&format!("{name} 0x"))?.1.get(..6)?;
        u32::from_str_radix(digits, 16).ok()
    };
    number("QPN")
        .zip(number("PSN"))
        .map(|(qpn, psn)| Side { qpn, psn })
        .with_context(|| format!("no {whose} address in {output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_ours_or_those_of_librdmacm() {
        assert_eq!(command("rping", "-s -v", false), "rping -s -v");
        assert_eq!(command("rping", "-s -v", true), "bareverbs rping -s -v");
        assert_eq!(command("rdma_PEER", "client -s 10.1.0.1", true), "bareverbs rdma-client -s 10.1.0.1");
        assert_eq!(command("rdma_PEER", "server", false), "rdma_server ");
    }

    #[test]
    fn pingpong_address_line_is_parsed() {
        let output = "using\n  local address:  LID 0x0000, QPN 0x000011, PSN 0x14b5d8, GID ::ffff:10.1.0.1\n";
        let side = side(output, "local").unwrap();
        assert_eq!((side.qpn, side.psn), (0x11, 0x14_b5d8));
        assert!(super::side(output, "remote").is_err());
    }
}
