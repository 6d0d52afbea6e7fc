//! `cargo xtask demo`: ping-pong between two processes, or two hosts on a wire.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bareverbs_lab::{Accelerator, Cache, Exec, Guests, Prefixed, RdmaCore, Setup, Stream, Tools};
use clap::Args;

use crate::experiment;
use crate::experiment::command::announced;
use crate::print::{heading, microseconds};
use crate::{build, native};

/// Timeout of one ping-pong.
const LIMIT: Duration = Duration::from_secs(120);
/// The text that a server prints to standard error once it listens.
const LISTENING: &[u8] = b"listening\n";
/// Round trips per ping-pong.
const ITERATIONS: &str = "500";

#[derive(Args)]
pub(crate) struct Demo {
    /// Run on Soft-RoCE in two virtual hosts with this kernel: a series such as 6.12, rc, or a folder
    /// with a kernel. Default: two processes with RoCE devices in user space.
    #[arg(long)]
    kernel: Option<String>,
    /// The accelerator of the virtual hosts: auto, kvm or tcg.
    #[arg(long, default_value = "auto", requires = "kernel")]
    accel: Accelerator,
    /// Run on this machine's own RDMA device.
    #[arg(long, conflicts_with_all = ["kernel", "accel"])]
    native: bool,
}

impl Demo {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.native {
            return native::run();
        }
        let Some(kernel) = &self.kernel else { return native::run_soft() };
        heading("Set-up");
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        println!("QEMU {}", tools.version);
        let kernel = experiment::kernel(&cache, &tools, kernel)?;
        println!("kernel {}", kernel.version);
        let rdma_core = RdmaCore::fetch(&cache, false)?;
        println!("rdma-core {}", rdma_core.version);
        let programs = build::guest_programs()?;
        println!("bareverbs, static, {} KiB", build::tool(&programs)?.metadata()?.len() / 1024);
        let begin = Instant::now();
        let mut guests = Guests::boot(&Setup {
            hosts: 2,
            rdma_core: Some(rdma_core.root),
            accelerator: self.accel,
            ..experiment::one_host(&cache, &tools, &kernel, &programs)
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "two hosts on a wire, up in {seconds:.1} s ({})",
            experiment::describe(guests.accelerator, false)
        );

        heading("Devices");
        both(&mut guests, &["bareverbs", "devices"])?;

        let ours = |peer: Option<&str>| command(&["bareverbs", "pingpong", "rc", "-n", ITERATIONS], peer);
        let theirs = |peer: Option<&str>| {
            command(&["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", ITERATIONS], peer)
        };
        let mut times = Vec::new();
        for (title, server, client) in [
            ("bareverbs and bareverbs", ours(None), ours(Some("10.1.0.1"))),
            ("bareverbs serves ibv_rc_pingpong", ours(None), theirs(Some("10.1.0.1"))),
            ("ibv_rc_pingpong serves bareverbs", theirs(None), ours(Some("10.1.0.1"))),
        ] {
            heading(title);
            times.push((title, ping_pong(&mut guests, server, client)?));
        }
        for warning in guests.shut_down()? {
            eprintln!("lab: {warning}");
        }

        heading("Microseconds per iteration");
        for (title, microseconds) in times {
            println!("{title:36}{microseconds:>10.2}");
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn command(words: &[&str], peer: Option<&str>) -> Vec<String> {
    words.iter().copied().chain(peer).map(str::to_owned).collect()
}

/// Runs a command on both hosts, one after the other.
fn both(guests: &mut Guests, words: &[&str]) -> Result<()> {
    for host in 0..2 {
        let mut output = Forward::new();
        guests.start(host, Exec { argv: command(words, None), ..Exec::default() })?;
        let statuses = guests
            .wait(Some(Instant::now() + LIMIT), &mut |host, stream, bytes| output.take(host, stream, bytes));
        output.finish()?;
        if statuses?.get(host).is_some_and(|&status| status != 0) {
            bail!("host {}: {} failed", host + 1, words.join(" "));
        }
    }
    Ok(())
}

/// Runs a server on host 1 and, once it listens, a client on host 2. Returns the client's time per
/// round trip.
fn ping_pong(guests: &mut Guests, server: Vec<String>, client: Vec<String>) -> Result<f64> {
    println!("host 1: {}\nhost 2: {}", server.join(" "), client.join(" "));
    let deadline = Some(Instant::now() + LIMIT);
    let mut output = Forward::new();
    guests.start(0, Exec { argv: announced(&server), ..Exec::default() })?;
    while guests.is_running(0) && !output.listening {
        guests.step(deadline, &mut |host, stream, bytes| output.take(host, stream, bytes))?;
    }
    if guests.is_running(0) {
        guests.start(1, Exec { argv: client, ..Exec::default() })?;
    }
    let statuses = guests.wait(deadline, &mut |host, stream, bytes| output.take(host, stream, bytes));
    output.finish()?;
    if let Some(host) = statuses?.iter().position(|&status| status != 0) {
        bail!("the ping-pong failed on host {}", host + 1);
    }
    microseconds(&output.text[1]).context("the client printed no time per iteration")
}

/// Forwards the hosts' lines and stores them.
struct Forward {
    lines: [Prefixed; 2],
    text: [Vec<u8>; 2],
    listening: bool,
}

impl Forward {
    fn new() -> Self {
        Self {
            lines: [Prefixed::new("1| "), Prefixed::new("2| ")],
            text: [Vec::new(), Vec::new()],
            listening: false,
        }
    }

    fn take(&mut self, host: usize, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if stream == Stream::Stderr && bytes == LISTENING {
            self.listening = true;
            return Ok(());
        }
        self.text[host].extend_from_slice(bytes);
        self.lines[host].write(bytes, &mut io::stdout())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.lines.iter_mut().try_for_each(|lines| lines.finish(&mut io::stdout()))?;
        io::stdout().flush()
    }
}
