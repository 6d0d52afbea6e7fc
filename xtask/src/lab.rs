//! `cargo xtask lab …`

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{
    Accelerator, Cache, Exec, Guests, Hca, Kernel, Prefixed, RdmaCore, Series, Setup, Since, Stream, ToGuest,
    Tools, fetch_headers,
};
use clap::{Args, Subcommand};

use crate::experiment::{self, Files, Tested};
use crate::{build, dropin, terminal};

/// The default of `--timeout`, in seconds.
const DEFAULT_LIMIT: u64 = 600;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Fill the cache with the files of a lab run.
    Fetch(Fetch),
    /// Run a command as root in a fresh guest with an RDMA device up, rxe0 at 10.1.0.1 by default.
    Run(Run),
    /// A prompt in a fresh guest.
    Shell(Shell),
}

#[derive(Args)]
pub(crate) struct Fetch {
    /// A series such as 6.12, or rc; may be given more than once (default: 6.12).
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<Series>,
    /// Also the Debian root with rdma-core and its tools.
    #[arg(long, alias = "peers")]
    rdma_core: bool,
    /// Also the headers of each series, both those for user space and the kernel's own.
    #[arg(long)]
    headers: bool,
    /// Also the module of Soft-iWARP, built from the kernel's source.
    #[arg(long)]
    siw: bool,
    /// Also look for newer versions of cached files.
    #[arg(long)]
    refresh: bool,
}

#[derive(Args)]
pub(crate) struct Machine {
    /// A series such as 6.12, rc, a built kernel tree, a folder with vmlinuz or bzImage and
    /// lib/modules, or a bzImage with all drivers built in.
    #[arg(long, default_value = experiment::DEFAULT_KERNEL)]
    kernel: String,
    /// Run in a Debian root with rdma-core, perftest, pyverbs, strace and iproute2.
    #[arg(long, alias = "peers")]
    rdma_core: bool,
    /// Let programs load our libraries for C programs in place of rdma-core's.
    #[arg(long, requires = "rdma_core")]
    dropin: bool,
    /// A host folder to mount at /share in the guest, read-only.
    #[arg(long, value_name = "FOLDER")]
    share: Option<PathBuf>,
    /// Let guest time count instructions, one nanosecond each.
    #[arg(long)]
    icount: bool,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// The device of each host: rxe, siw, or the software HCA with a port of ib or roce, bound by the
    /// kernel's mlx5 driver.
    #[arg(long, alias = "hca", value_enum, default_value = "rxe")]
    device: Tested,
    /// An argument for the HCA's own program; may be given more than once.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    hca_arg: Vec<String>,
    /// Record the packets on the wire (with one host: of the link below rxe0 or siw0).
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    machine: Machine,
    /// How many hosts, joined by a wire; each runs the command with its number in HOST.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=200))]
    hosts: u8,
    /// Seconds until the command counts as hung.
    #[arg(long, value_name = "SECS", default_value_t = DEFAULT_LIMIT)]
    timeout: u64,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Shell {
    #[command(flatten)]
    machine: Machine,
}

pub(crate) fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Fetch(fetch) => fetch.run(),
        Command::Run(run) => run.run(),
        Command::Shell(shell) => shell.run(),
    }
}

impl Fetch {
    fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, self.refresh)?;
        println!("QEMU {}", tools.version);
        let kernels =
            if self.kernels.is_empty() { vec![Series::Released(Since::V6_12)] } else { self.kernels };
        for series in kernels {
            let mut kernel = Kernel::debian(&cache, &tools, series, self.refresh)?;
            println!("kernel {}", kernel.version);
            if self.siw {
                kernel.add_siw(&cache, series)?;
            }
        }
        if self.rdma_core {
            println!("Debian root with rdma-core {}", RdmaCore::fetch(&cache, self.refresh)?.version);
        }
        if self.headers {
            for series in Series::RELEASED {
                println!("headers {}", fetch_headers(&cache, series, self.refresh)?.version);
            }
            println!(
                "headers of rdma-core in {}",
                RdmaCore::fetch(&cache, false)?.headers(&cache)?.display()
            );
        }
        println!("all in {}", cache.root().display());
        Ok(ExitCode::SUCCESS)
    }
}

impl Machine {
    fn start_hca(&self, hosts: u8) -> Result<Option<Hca>> {
        let port = self.device.port();
        ensure!(port.is_some() || self.hca_arg.is_empty(), "--hca-arg needs `--device ib` or `roce`");
        experiment::start_hca(port, hosts, &self.hca_arg)
    }

    /// Environment variables of the command.
    fn env(&self) -> Vec<(String, String)> {
        let folder = self.dropin.then_some(dropin::GUEST_FOLDER);
        folder.map(|folder| ("LD_LIBRARY_PATH".to_owned(), folder.to_owned())).into_iter().collect()
    }

    fn boot(&self, hosts: u8, hca: Option<&Hca>) -> Result<Guests> {
        let programs = if self.dropin { dropin::guest_programs()? } else { build::guest_programs()? };
        let mut files = match self.rdma_core {
            true => Files::with_rdma_core(&self.kernel, programs)?,
            false => Files::fetch(&self.kernel, programs)?,
        };
        if self.device == Tested::Siw {
            files.add_siw(&self.kernel)?;
        }
        let mut shares = Vec::new();
        if let Some(folder) = &self.share {
            shares.push((shared_folder(folder)?, "/share".to_owned()));
        }
        let setup = Setup {
            hosts,
            shares,
            accelerator: self.accel,
            instruction_clock: self.icount,
            recording: self.pcap.clone(),
            link_type: self.device.link_type(),
            hca,
            ..files.setup()
        };
        let guests = Guests::boot(&setup)?;
        eprintln!(
            "lab: kernel {} ({})",
            files.kernel.version,
            experiment::describe(guests.accelerator, self.icount)
        );
        Ok(guests)
    }
}

fn shared_folder(folder: &Path) -> Result<PathBuf> {
    let folder = folder.canonicalize().with_context(|| format!("--share {}", folder.display()))?;
    if !folder.is_dir() {
        bail!("--share {}: not a folder", folder.display());
    }
    Ok(folder)
}

impl Run {
    fn run(self) -> Result<ExitCode> {
        let hca = self.machine.start_hca(self.hosts)?;
        let mut guests = self.machine.boot(self.hosts, hca.as_ref())?;
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        for host in 0..usize::from(self.hosts) {
            let (argv, env) = (self.command.clone(), self.machine.env());
            guests.start(host, Exec { argv, env, ..Exec::default() })?;
        }
        let mut lines: Vec<_> = (1..=self.hosts)
            .map(|number| [Stream::Stdout, Stream::Stderr].map(|_| Prefixed::new(format!("{number}| "))))
            .collect();
        let mut forward = |host: usize, stream: Stream, bytes: &[u8]| match (self.hosts, stream) {
            (1, Stream::Stdout) => write_through(&mut io::stdout(), bytes),
            (1, Stream::Stderr) => write_through(&mut io::stderr(), bytes),
            (_, Stream::Stdout) => lines[host][0].write(bytes, &mut io::stdout()),
            (_, Stream::Stderr) => lines[host][1].write(bytes, &mut io::stderr()),
        };
        let waited = guests.wait(Some(deadline), &mut forward);
        for [stdout, stderr] in &mut lines {
            stdout.finish(&mut io::stdout())?;
            stderr.finish(&mut io::stderr())?;
        }
        let statuses = waited?;
        warn(&guests.shut_down()?);
        let failed = statuses.into_iter().find(|&status| status != 0);
        Ok(ExitCode::from(failed.unwrap_or(0)))
    }
}

fn write_through(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("lab: {warning}");
    }
}

impl Shell {
    fn run(self) -> Result<ExitCode> {
        let hca = self.machine.start_hca(1)?;
        let mut guests = self.machine.boot(1, hca.as_ref())?;
        let argv =
            if self.machine.rdma_core { vec!["bash".into(), "-l".into()] } else { vec!["/init".into()] };
        let stdin = io::stdin();
        let size = terminal::size(&stdin);
        let mut env = self.machine.env();
        env.extend(std::env::var("TERM").map(|term| ("TERM".to_owned(), term)));
        let mut port = guests.port(0)?;
        let statuses = {
            let _raw = terminal::Raw::enter(&stdin)?;
            guests.start(0, Exec { argv, env, terminal: Some(size) })?;
            std::thread::spawn(move || forward_keys(&mut port));
            guests.wait(None, &mut |_, _, bytes| write_through(&mut io::stdout(), bytes))?
        };
        warn(&guests.shut_down()?);
        Ok(ExitCode::from(statuses.into_iter().next().unwrap_or(0)))
    }
}

/// Sends the keys to the guest, and the terminal's size when it has changed.
fn forward_keys(port: &mut impl Write) {
    let mut size = terminal::size(&io::stdin());
    let mut buffer = [0; 4096];
    loop {
        let keys = match io::stdin().lock().read(&mut buffer) {
            // A terminal reports the end of input as ^D.
            Ok(0) | Err(_) => {
                let _ = ToGuest::Stdin(vec![4]).write_to(port);
                return;
            }
            Ok(count) => buffer[..count].to_vec(),
        };
        let now = terminal::size(&io::stdin());
        if now != size {
            size = now;
            if ToGuest::Resize(size).write_to(port).is_err() {
                return;
            }
        }
        if ToGuest::Stdin(keys).write_to(port).is_err() {
            return;
        }
    }
}
