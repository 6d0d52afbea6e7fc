//! Running guests: commands, kernel consoles, power-off.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::frame::{FromGuest, ToGuest};
use bareverbs_lab_init::{Exec, Job, Link, LinkType, RDMA_CORE_TAG, Share};

use crate::cache::Cache;
use crate::console::Console;
use crate::hca::Hca;
use crate::initramfs::{self, Programs};
use crate::kernel::Kernel;
use crate::pcap::Recorder;
use crate::qemu::{self, Accelerator, Folder, Machine};
use crate::tools::Tools;
use crate::wire::{self, Recording};

/// Timeout from power-on until the guest is ready. It is many times the usual duration, for busy
/// machines.
const BOOT_LIMIT: Duration = Duration::from_secs(240);
/// Time for a failed kernel to print its report.
const PANIC_OUTPUT_LIMIT: Duration = Duration::from_secs(3);
/// Timeout of the power-off.
const OFF_LIMIT: Duration = Duration::from_secs(60);

/// The configuration of a boot.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The cache, which also records whether KVM works.
    pub cache: &'a Cache,
    /// QEMU.
    pub tools: &'a Tools,
    /// The kernel for all hosts.
    pub kernel: &'a Kernel,
    /// Our programs for the guest.
    pub programs: &'a Programs,
    /// The number of hosts. A wire connects them if there is more than one.
    pub hosts: u8,
    /// The Debian root of the commands, instead of the bare initramfs.
    pub rdma_core: Option<PathBuf>,
    /// Host folders and their paths in the guests, read-only.
    pub shares: Vec<(PathBuf, String)>,
    /// The accelerator of the guests.
    pub accelerator: Accelerator,
    /// Whether guest time counts instructions instead of following the host's clock.
    pub instruction_clock: bool,
    /// File for the packets on the wire.
    pub recording: Option<PathBuf>,
    /// The software device of the hosts.
    pub link_type: LinkType,
    /// HCAs for the hosts, instead of the software device.
    pub hca: Option<&'a Hca>,
}

/// Why guests failed.
#[derive(Debug)]
pub enum Failure {
    /// The time limit passed.
    TimedOut(Report),
    /// The kernel itself failed: an oops, a bug, a panic, a lockup.
    Kernel(String, Report),
    /// The guest ended, or QEMU did.
    Exited(String, Report),
    /// The guest's init could not set it up.
    SetUp(String, Report),
}

/// The host, and the last output of its kernel.
#[derive(Debug)]
pub struct Report {
    host: usize,
    tail: String,
}

impl Failure {
    /// The failure, in one line.
    pub fn headline(&self) -> String {
        match self {
            Self::TimedOut(report) => format!("host {}: the time limit passed", report.host),
            Self::Kernel(line, report) => format!("host {}: the kernel failed: {}", report.host, line.trim()),
            Self::Exited(how, report) => {
                format!("host {}: the guest exited unexpectedly ({how})", report.host)
            }
            Self::SetUp(why, report) => format!("host {}: the guest could not be set up: {why}", report.host),
        }
    }

    fn report(&self) -> &Report {
        let (Self::TimedOut(report)
        | Self::Kernel(_, report)
        | Self::Exited(_, report)
        | Self::SetUp(_, report)) = self;
        report
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        match self.report().tail.as_str() {
            "" => write!(f, "; its kernel printed nothing"),
            tail => write!(f, "; its kernel's last lines:\n{tail}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A command's output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Receives a command's output: host index, stream, bytes.
pub type Output<'a> = &'a mut dyn FnMut(usize, Stream, &[u8]) -> io::Result<()>;

enum Event {
    Frame(FromGuest),
    KernelFailed,
    Closed,
}

/// A host and its boot count: output of a killed guest is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    host: usize,
    generation: u32,
}

/// Running guests. Dropping them kills them.
pub struct Guests {
    hosts: Vec<Host>,
    events: mpsc::Receiver<(Source, Event)>,
    /// For hosts that are restarted; dropped at the end.
    sender: Option<mpsc::Sender<(Source, Event)>>,
    /// The guests' ends of the wire.
    wires: Vec<Option<OwnedFd>>,
    recording: Recording,
    /// The accelerator in use: never [`Accelerator::Auto`].
    pub accelerator: Accelerator,
}

struct Host {
    qemu: Child,
    port: UnixStream,
    console: Arc<Mutex<Console>>,
    release: Option<String>,
    running: bool,
    status: Option<u8>,
    generation: u32,
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests")
            .field("hosts", &self.hosts.len())
            .field("accelerator", &self.accelerator)
            .finish_non_exhaustive()
    }
}

impl Guests {
    /// Boots the guests and waits until all of them are ready.
    pub fn boot(setup: &Setup<'_>) -> Result<Self> {
        if setup.hosts == 0 || setup.hosts > 200 {
            bail!("{} hosts requested; the range is 1 to 200", setup.hosts);
        }
        let accelerator = match setup.accelerator {
            Accelerator::Auto if setup.instruction_clock => Accelerator::Tcg,
            chosen => chosen.settle(setup.cache),
        };
        match Self::boot_with(setup, accelerator) {
            Err(error) if setup.accelerator == Accelerator::Auto && accelerator == Accelerator::Kvm => {
                let why = error.downcast_ref().map_or_else(|| format!("{error:#}"), Failure::headline);
                eprintln!("lab: the guests do not boot with KVM; using TCG from now on ({why})");
                qemu::record_kvm_failure(setup.cache);
                Self::boot_with(setup, Accelerator::Tcg)
            }
            result => result,
        }
    }

    fn boot_with(setup: &Setup<'_>, accelerator: Accelerator) -> Result<Self> {
        let recording = match &setup.recording {
            Some(path) => {
                let recorder =
                    Recorder::create(path).with_context(|| format!("creating {}", path.display()))?;
                Some(Arc::new(Mutex::new(recorder)))
            }
            None => None,
        };
        let hosts = usize::from(setup.hosts);
        let wires = if hosts > 1 { wire::join(hosts, &recording)? } else { Vec::new() };
        let (sender, events) = mpsc::channel();
        let mut wires: Vec<Option<OwnedFd>> = wires.into_iter().map(Some).collect();
        wires.resize_with(hosts, || None);
        let mut guests =
            Self { hosts: Vec::new(), events, sender: Some(sender), wires, recording, accelerator };
        for host in 0..hosts {
            let host = guests.start_host(setup, Source { host, generation: 0 })?;
            guests.hosts.push(host);
        }
        guests.wait_until_ready()?;
        Ok(guests)
    }

    fn start_host(&self, setup: &Setup<'_>, source: Source) -> Result<Host> {
        let wire = self.wires[source.host].as_ref().map(OwnedFd::try_clone).transpose()?;
        let sender = self.sender.as_ref().context("the guests are being powered off")?;
        Host::start(setup, self.accelerator, source, wire, sender)
    }

    /// Kills a host's virtual machine, like a power failure. Its command has no status.
    pub fn kill(&mut self, host: usize) -> Result<()> {
        let host = &mut self.hosts[host];
        host.generation += 1;
        (host.running, host.status) = (false, None);
        host.qemu.kill()?;
        host.qemu.wait()?;
        Ok(())
    }

    /// Boots killed hosts again with their setup, and waits until they are ready.
    pub fn restart(&mut self, setup: &Setup<'_>, hosts: &[usize]) -> Result<()> {
        for &host in hosts {
            let generation = self.hosts[host].generation;
            self.hosts[host] = self.start_host(setup, Source { host, generation })?;
        }
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + BOOT_LIMIT;
        while self.hosts.iter().any(|host| host.release.is_none()) {
            let pending = self.hosts.iter().position(|host| host.release.is_none()).unwrap_or(0);
            match self.next(Some(deadline), pending)? {
                (host, FromGuest::Ready(release)) => self.hosts[host].release = Some(release),
                (host, FromGuest::Failed(why)) => return Err(Failure::SetUp(why, self.report(host)).into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// The kernel release that the guests run.
    pub fn release(&self) -> &str {
        self.hosts.first().and_then(|host| host.release.as_deref()).unwrap_or("unknown")
    }

    /// Starts a command on a host (by index, from 0). One command runs per host at a time.
    pub fn start(&mut self, host: usize, exec: Exec) -> Result<()> {
        self.send(host, &ToGuest::Exec(exec))?;
        self.hosts[host].running = true;
        self.hosts[host].status = None;
        Ok(())
    }

    /// Kills the command that runs on a host. Its status is reported as usual.
    pub fn end_command(&mut self, host: usize) -> Result<()> {
        self.send(host, &ToGuest::Kill)
    }

    /// Whether the command on this host still runs.
    pub fn is_running(&self, host: usize) -> bool {
        self.hosts[host].running
    }

    /// The status of the last command on this host, if it ended.
    pub fn status(&self, host: usize) -> Option<u8> {
        self.hosts[host].status
    }

    /// Waits until all started commands have ended. Returns their statuses (128+n after signal n).
    pub fn wait(&mut self, deadline: Option<Instant>, output: Output<'_>) -> Result<Vec<u8>> {
        while self.hosts.iter().any(|host| host.running) {
            self.step(deadline, output)?;
        }
        Ok(self.hosts.iter().filter_map(|host| host.status).collect())
    }

    /// Waits for the next event of a running command: output, or its end.
    pub fn step(&mut self, deadline: Option<Instant>, output: Output<'_>) -> Result<()> {
        let pending = self.hosts.iter().position(|host| host.running).unwrap_or(0);
        match self.next(deadline, pending)? {
            (host, FromGuest::Stdout(bytes)) => output(host, Stream::Stdout, &bytes)?,
            (host, FromGuest::Stderr(bytes)) => output(host, Stream::Stderr, &bytes)?,
            (host, FromGuest::Exited(status)) => {
                self.hosts[host].running = false;
                self.hosts[host].status = Some(status);
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs a command on one host to its end. Returns status and output.
    pub fn run(&mut self, host: usize, exec: Exec, limit: Duration) -> Result<Finished> {
        let mut finished = Finished::default();
        self.start(host, exec)?;
        let mut collect = |_: usize, stream: Stream, bytes: &[u8]| {
            match stream {
                Stream::Stdout => finished.stdout.extend_from_slice(bytes),
                Stream::Stderr => finished.stderr.extend_from_slice(bytes),
            }
            Ok(())
        };
        let statuses = match self.wait(Some(Instant::now() + limit), &mut collect) {
            Err(error) if matches!(error.downcast_ref(), Some(Failure::TimedOut(_))) => {
                self.send(host, &ToGuest::Kill)?;
                let statuses = self.wait(Some(Instant::now() + OFF_LIMIT), &mut collect)?;
                finished.timed_out = true;
                statuses
            }
            other => other?,
        };
        finished.status = self.hosts[host].status.or(statuses.first().copied()).unwrap_or(255);
        Ok(finished)
    }

    /// A handle with which another thread can send frames to a host.
    pub fn port(&self, host: usize) -> Result<UnixStream> {
        Ok(self.hosts[host].port.try_clone()?)
    }

    /// Powers the guests off. Returns the kernels' warnings, or an error if a kernel has failed.
    pub fn shut_down(mut self) -> Result<Vec<String>> {
        for host in 0..self.hosts.len() {
            // A guest that has already ended is detected below.
            let _ = self.send(host, &ToGuest::PowerOff);
        }
        let deadline = Instant::now() + OFF_LIMIT;
        let mut warnings = Vec::new();
        for host in 0..self.hosts.len() {
            while self.hosts[host].qemu.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    return Err(Failure::TimedOut(self.report(host)).into());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        // The console readers end with their QEMU, after they have read all output.
        self.sender = None;
        while let Ok((_, event)) = self.events.recv_timeout(PANIC_OUTPUT_LIMIT) {
            if let Event::Frame(FromGuest::Packet(frame)) = event {
                wire::record(&self.recording, &frame);
            }
        }
        for host in 0..self.hosts.len() {
            let failure = self.console(host).failure().map(str::to_owned);
            if let Some(line) = failure {
                return Err(Failure::Kernel(line, self.report(host)).into());
            }
            warnings.extend(
                self.console(host).warnings().iter().map(|line| format!("host {}: {line}", host + 1)),
            );
        }
        Ok(warnings)
    }

    fn send(&mut self, host: usize, frame: &ToGuest) -> Result<()> {
        frame
            .write_to(&mut self.hosts[host].port)
            .with_context(|| format!("host {}: writing to the guest", host + 1))
    }

    /// The next frame of any host. A timeout is reported for host `pending`.
    fn next(&mut self, deadline: Option<Instant>, pending: usize) -> Result<(usize, FromGuest)> {
        loop {
            let event = match deadline {
                Some(deadline) => {
                    self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok((source, _)) if source.generation != self.hosts[source.host].generation => {}
                Ok((_, Event::Frame(FromGuest::Packet(frame)))) => wire::record(&self.recording, &frame),
                Ok((source, Event::Frame(frame))) => return Ok((source.host, frame)),
                Ok((source, Event::KernelFailed | Event::Closed)) => {
                    return Err(self.ended(source.host).into());
                }
                Err(RecvTimeoutError::Timeout) => return Err(Failure::TimedOut(self.report(pending)).into()),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended(pending).into()),
            }
        }
    }

    /// Finds out why a guest ended, after its kernel has printed its report.
    fn ended(&mut self, host: usize) -> Failure {
        let deadline = Instant::now() + PANIC_OUTPUT_LIMIT;
        let mut exit = None;
        while exit.is_none() && Instant::now() < deadline {
            exit = self.hosts[host].qemu.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(20));
        }
        // QEMU's output may still be in the pipe.
        std::thread::sleep(Duration::from_millis(100));
        let failure = self.console(host).failure().map(str::to_owned);
        match failure {
            Some(line) => Failure::Kernel(line, self.report(host)),
            None => {
                Failure::Exited(exit.map_or_else(|| "its port closed".into(), describe), self.report(host))
            }
        }
    }

    fn report(&self, host: usize) -> Report {
        Report { host: host + 1, tail: self.console(host).tail() }
    }

    fn console(&self, host: usize) -> MutexGuard<'_, Console> {
        self.hosts[host].console.lock().expect("no console reader panics")
    }
}

fn describe(status: ExitStatus) -> String {
    format!("QEMU: {status}")
}

/// A command that has ended.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Its exit status; 128+n after signal n.
    pub status: u8,
    /// Whether it was killed at the time limit.
    pub timed_out: bool,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
}

impl Host {
    fn start(
        setup: &Setup<'_>,
        accelerator: Accelerator,
        source: Source,
        wire: Option<OwnedFd>,
        events: &mpsc::Sender<(Source, Event)>,
    ) -> Result<Self> {
        let number = u8::try_from(source.host + 1).context("host numbers fit a byte")?;
        let link = if wire.is_some() { Link::Nic } else { Link::Veth };
        let mut folders = Vec::new();
        let mut shares = Vec::new();
        if let Some(root) = &setup.rdma_core {
            folders.push(Folder { tag: RDMA_CORE_TAG.into(), path: root.clone() });
        }
        for (number, (path, target)) in setup.shares.iter().enumerate() {
            let tag = format!("share{number}");
            folders.push(Folder { tag: tag.clone(), path: path.clone() });
            shares.push(Share { tag, target: target.clone() });
        }
        let modules = setup.kernel.modules.in_order(&wanted_modules(setup, link))?;
        let job = Job {
            host: number,
            modules: modules.iter().map(|path| initramfs::base_name(path)).collect(),
            rdma_core: setup.rdma_core.is_some(),
            shares,
            link,
            link_type: setup.link_type,
            hca: setup.hca.map(|hca| hca.port),
            capture: setup.recording.is_some() && link == Link::Veth,
        };
        let archive = initramfs::build(setup.programs, &modules, &job)?;
        let (port, guest_port) = UnixStream::pair().context("creating a socket pair for the guest's port")?;
        let mut qemu = Machine {
            kernel: &setup.kernel.image,
            initramfs: &archive,
            accelerator,
            instruction_clock: setup.instruction_clock,
            processors: processors(setup.hosts),
            folders: &folders,
            wire: wire.map(|wire| (wire, number)),
            port: guest_port.into(),
            hca: setup.hca.and_then(|hca| hca.sockets.get(source.host)).map(PathBuf::as_path),
        }
        .start(setup.tools)?;

        let console = Arc::new(Mutex::new(Console::default()));
        for output in [qemu.stdout.take().map(OwnedFd::from), qemu.stderr.take().map(OwnedFd::from)] {
            let output = std::fs::File::from(output.context("QEMU's outputs are piped")?);
            let (console, events) = (console.clone(), events.clone());
            std::thread::spawn(move || watch_console(output, source, &console, &events));
        }
        let (frames, events) = (port.try_clone()?, events.clone());
        std::thread::spawn(move || read_frames(frames, source, &events));
        Ok(Self {
            qemu,
            port,
            console,
            release: None,
            running: false,
            status: None,
            generation: source.generation,
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Two processors if the machine has enough for all hosts, else one: busy polling slows other
/// guests down.
fn processors(hosts: u8) -> usize {
    let there = std::thread::available_parallelism().map_or(1, usize::from);
    (there / usize::from(hosts)).clamp(1, 2)
}

fn wanted_modules(setup: &Setup<'_>, link: Link) -> Vec<&'static str> {
    let modules = &setup.kernel.modules;
    let mut wanted = vec!["virtio_pci", "virtio_console"];
    if setup.rdma_core.is_some() || !setup.shares.is_empty() {
        wanted.extend(["9pnet_virtio", "9p"]);
    }
    if setup.rdma_core.is_some() {
        wanted.push("overlay");
    }
    wanted.push(match link {
        Link::Veth => "veth",
        Link::Nic => "virtio_net",
    });
    // rxe of Linux 6.1 requests crc32 from the crypto layer when a link is added; later kernels
    // call it directly.
    // The tests make links lose, delay and reorder packets by netem, and drop long ones by tbf.
    wanted.extend(
        ["crc32_generic", "af_packet", "sch_netem", "sch_tbf"].into_iter().filter(|name| modules.has(name)),
    );
    if setup.hca.is_some() {
        wanted.push("mlx5_ib");
    } else {
        wanted.push("rdma_rxe");
        // Tests also add a siw device to guests with rxe, if the kernel has it.
        if setup.link_type == LinkType::Siw || modules.has("siw") {
            // Up to 6.12, siw requests crc32c from the crypto layer when it is loaded.
            wanted.extend(["crc32c_generic"].into_iter().filter(|name| modules.has(name)));
            wanted.push("siw");
        }
    }
    wanted.extend(["ib_uverbs", "rdma_ucm", "ib_umad"]);
    if setup.hca.is_some_and(|hca| hca.port == crate::HcaPort::Ib) {
        wanted.extend(["ib_ipoib"].into_iter().filter(|name| modules.has(name)));
    }
    wanted
}

fn watch_console(
    mut output: impl Read,
    source: Source,
    console: &Mutex<Console>,
    events: &mpsc::Sender<(Source, Event)>,
) {
    let mut buffer = [0; 4096];
    let mut reported = false;
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        let mut console = console.lock().expect("no console reader panics");
        console.feed(&buffer[..count]);
        if !reported && console.failure().is_some() {
            reported = true;
            // The receiver is gone while the guests are dropped.
            let _ = events.send((source, Event::KernelFailed));
        }
    }
}

fn read_frames(mut port: UnixStream, source: Source, events: &mpsc::Sender<(Source, Event)>) {
    while let Ok(Some(frame)) = FromGuest::read_from(&mut port) {
        if events.send((source, Event::Frame(frame))).is_err() {
            return;
        }
    }
    let _ = events.send((source, Event::Closed));
}
