//! `bareverbs asyncwatch`.

use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context as _, Result};
use bareverbs::device::EventType;
use bareverbs::{AsyncEvent, Device};
use rustix::event::PollFlags;
use serde::Serialize;

use crate::cli::Asyncwatch;
use crate::output;
use crate::signal::{Interrupted, Stop, Wake};

/// The first line of JSON: the watch on this device has started.
#[derive(Debug, Serialize)]
struct Start<'a> {
    device: &'a str,
    watching: bool,
}

/// An event as JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    device: &'a str,
    /// `None` if this program has no name for the event type.
    event: Option<&'static str>,
    number: u32,
    /// Port events only.
    port: Option<u8>,
}

/// `bareverbs asyncwatch`: prints a line for each event at once, until a signal arrives or the
/// device is removed.
pub(crate) fn watch(options: &Asyncwatch) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let context = match &options.ib_dev {
        Some(name) => Device::find(name)?.open()?,
        None => bareverbs::Context::open_first()?,
    };
    let (name, events) = (context.device().name(), context.async_events());
    let start = match options.json {
        true => serde_json::to_string(&Start { device: name, watching: true })?,
        false => format!("{name}: async event FD {}", events.as_fd().as_raw_fd()),
    };
    output::line(&start)?;
    loop {
        if stop.wait(events.as_fd(), PollFlags::IN, None)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
        while let Some(event) = events.try_wait()? {
            stop.check()?;
            output::line(&if options.json { json(name, &event)? } else { text(&event) })?;
        }
    }
}

fn port(event: &AsyncEvent) -> Option<u8> {
    match *event {
        AsyncEvent::Port { port, .. } => Some(port.into()),
        _ => None,
    }
}

fn text(event: &AsyncEvent) -> String {
    let EventType(number) = event.event();
    let name = event.event().name().map_or("unexpected".to_owned(), |name| format!("IBV_EVENT_{name}"));
    format!("  event_type {name} ({number}), port {}", port(event).unwrap_or(0))
}

fn json(device: &str, event: &AsyncEvent) -> serde_json::Result<String> {
    let EventType(number) = event.event();
    serde_json::to_string(&Line { device, event: event.event().name(), number, port: port(event) })
}
