//! `bareverbs trace`: the RDMA calls of a program, decoded. `bareverbs replay` makes them again.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context as _, Result};
use bareverbs::Device;
use bareverbs::device::DriverId;
use bareverbs_trace::replay::{self, Difference, Header, Replay as Replayed};
use bareverbs_trace::trace::{End, Interface, Record, Summary, Target, trace};
use nix::libc::PIPE_BUF;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};

use crate::cli::conform::TextOrJson;
use crate::cli::trace::{Replay, Trace};
use crate::signal::Interrupted;
use crate::{output, signal};

/// `bareverbs trace`. The exit status is that of the program, or 128 plus the signal that killed it.
pub(crate) fn run(options: &Trace) -> Result<u8> {
    let target = match options.pid {
        Some(process) => Target::Process(process),
        None => Target::Command(options.command.clone()),
    };
    let file = options.output.as_deref().map(create).transpose()?;
    // Not buffered: a reader sees the calls up to now.
    let mut out: Box<dyn Write> = match (&file, options.pid) {
        (Some(file), _) => Box::new(Interruptible::new(file)?),
        (None, Some(_)) => Box::new(Interruptible::new(io::stdout())?),
        (None, None) => Box::new(Interruptible::new(io::stderr())?),
    };
    let mut recording = options.record.as_deref().map(create).transpose()?.map(BufWriter::new);
    if let Some(file) = &mut recording {
        writeln!(file, "{}", json(&Header::of_this_kernel())?).context("cannot write the recording")?;
    }
    let mut summary = Summary::default();
    let mut failed = Ok(());
    let end = trace(&target, |record| {
        summary.add(record);
        let written = print(record, options, &mut out)
            .and_then(|()| recording.as_mut().map_or(Ok(()), |file| writeln!(file, "{}", json(record)?)));
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Err(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let End::Interrupted(signal) = end {
        signal::arrived(signal).context("cannot set up signal handling")?;
    }
    if options.summary && failed.is_ok() {
        failed = match options.format {
            TextOrJson::Text => write!(out, "{summary}"),
            TextOrJson::Json => json(&summary).and_then(|line| writeln!(out, "{line}")),
        };
    }
    failed = failed.and_then(|()| out.flush());
    if options.output.is_none() {
        failed = failed.map_err(output::of_output);
    }
    drop(out);
    failed = failed.and_then(|()| file.map_or(Ok(()), output::close));
    failed = failed.and_then(|()| recording.map_or(Ok(()), |file| output::close(file.into_inner()?)));
    failed.context("cannot write the trace")?;
    Ok(match end {
        End::Exited(status) => u8::try_from(status).unwrap_or(u8::MAX),
        End::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        End::Interrupted(_) | End::Detached => return Err(Interrupted.into()),
    })
}

/// An output of the tracer, which blocks the signals that end it. A signal ends a write that waits.
struct Interruptible<T> {
    out: T,
    signals: SignalFd,
}

impl<T> Interruptible<T> {
    fn new(out: T) -> Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        Ok(Self { out, signals: SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)? })
    }
}

impl<T: Write + AsFd> Write for Interruptible<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut fds = [
            PollFd::from_borrowed_fd(self.out.as_fd(), PollFlags::OUT),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, None)?;
        if fds[0].revents().is_empty() {
            return Err(io::Error::other(Interrupted));
        }
        // A pipe that is writable takes this without waiting.
        self.out.write(&bytes[..bytes.len().min(PIPE_BUF)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot create {}", path.display()))
}

fn print(record: &Record, options: &Trace, out: &mut dyn Write) -> io::Result<()> {
    match options.format {
        _ if options.summary => Ok(()),
        // One write for each line, so that lines stay whole beside the program's own.
        TextOrJson::Text => out.write_all(format!("{}\n", record.text()).as_bytes()),
        TextOrJson::Json => out.write_all(format!("{}\n", json(&record.json())?).as_bytes()),
    }
}

fn json(value: &impl serde::Serialize) -> io::Result<String> {
    serde_json::to_string(value).map_err(io::Error::from)
}

/// `bareverbs replay`. The exit status is 1 if an answer differs.
pub(crate) fn replay(options: &Replay) -> Result<u8> {
    let name = options.file.display();
    let file = File::open(&options.file).with_context(|| format!("cannot open {name}"))?;
    let records = replay::read(BufReader::new(file))?;
    let device = match &options.device {
        Some(name) => Device::find(name)?,
        None => first_device(&records)?,
    };
    let replayed = replay::replay(&records, &device)?;
    let text = match options.format {
        TextOrJson::Json => serde_json::to_string(&replayed)?,
        TextOrJson::Text => describe(&replayed),
    };
    output::line(&text)?;
    Ok(u8::from(!replayed.is_same()))
}

/// The first device with the driver of the recording that can be opened; otherwise the first device
/// that can be opened.
fn first_device(records: &[Record]) -> bareverbs::Result<Device> {
    let driver = records.iter().find_map(|record| match record.interface {
        Interface::Uverbs { driver, .. } => Some(DriverId(driver)),
        _ => None,
    });
    let fits = |device: &Device| device.driver_id() == driver && device.open().is_ok();
    match bareverbs::devices()?.into_iter().find(fits) {
        Some(device) => Ok(device),
        None => Ok(bareverbs::Context::open_first()?.device().clone()),
    }
}

/// The result of a replay as text.
fn describe(replayed: &Replayed) -> String {
    let mut text = match &replayed.difference {
        None => format!("{} calls have the same answers", replayed.same),
        Some(Difference { line, call, place, recorded, here }) => format!(
            "line {line} differs, after {} calls with the same answers: {place}\n  call:     {call}\n  \
             recorded: {recorded}\n  here:     {here}",
            replayed.same
        ),
    };
    if replayed.unanswered > 0 {
        text += &format!("\n{} calls had no recorded answer", replayed.unanswered);
    }
    for (reason, count) in &replayed.skipped {
        text += &format!("\n{count} calls were skipped: {reason}");
    }
    if let Some(leak) = &replayed.leak {
        text += &format!("\nobjects of the device after the replay: {leak}");
    }
    text
}
