//! `bareverbs monitor`: devices that come, go and change, and the state of their ports.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use bareverbs::device::{DriverId, PortState};
use bareverbs::{AsyncEvent, AsyncEvents, Device};
use bareverbs_netlink::{
    AddressEvent, Event, EventSources, Events, NetdevEvent, RdmaEvent, RdmaNetlink, Uevent,
};
use rustix::event::PollFlags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use serde::Serialize;

use crate::cli::device::Monitor;
use crate::signal::{Interrupted, Stop, Timeout, Wake};
use crate::{link, output};

/// Drivers update the state of a port after the notification of its network interface.
const SETTLE: Duration = Duration::from_millis(100);

/// A line of output.
#[derive(Debug, Serialize)]
#[serde(tag = "source", rename_all = "lowercase")]
enum Line<'a> {
    /// The monitor has started, with these sources.
    Monitor { watching: Vec<&'static str> },
    /// A notification of RDMA netlink.
    Rdma {
        event: String,
        device: Option<&'a str>,
        device_index: Option<u32>,
        port: Option<u32>,
        netdev: Option<&'a str>,
        netdev_index: Option<u32>,
    },
    /// A uevent of the RDMA subsystem.
    Uevent { action: &'a str, subsystem: &'a str, name: &'a str, devpath: &'a str },
    /// A change of a network interface below an RDMA port.
    Netdev {
        netdev: &'a str,
        device: &'a str,
        port: u32,
        removed: bool,
        up: bool,
        running: bool,
        mtu: Option<u32>,
    },
    /// A change of an address of such a network interface.
    Address { netdev: &'a str, device: &'a str, port: u32, address: String, removed: bool },
    /// The state of a port changed.
    Port { device: &'a str, port: u32, state: String, before: Option<String> },
    /// An asynchronous event of a device.
    Async { device: &'a str, event: Option<&'static str>, number: u32, port: Option<u32> },
    /// Notifications were lost.
    Lost { lost: &'static str },
}

/// A line with its time.
#[derive(Debug, Serialize)]
struct Timed<'a> {
    /// Seconds since 1970.
    time: f64,
    #[serde(flatten)]
    line: Line<'a>,
}

/// A port and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    device: String,
    index: u32,
    port: u32,
    state: PortState,
    netdev: Option<(u32, String)>,
}

/// A device that is open for its asynchronous events.
struct Watched {
    name: String,
    index: u32,
    events: AsyncEvents,
}

struct Watcher {
    json: bool,
    netlink: RdmaNetlink,
    events: Events,
    /// Readable if `events` or the events of a device are.
    epoll: OwnedFd,
    ports: Vec<Port>,
    watched: Vec<Watched>,
}

/// `bareverbs monitor`: prints a line for each event, until a signal arrives.
pub(crate) fn watch(options: &Monitor) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let mut netlink = RdmaNetlink::open()?;
    let (events, sources) = subscribe(&mut netlink)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &events, EventData::new_u64(0), EventFlags::IN)?;
    let mut watcher =
        Watcher { json: options.json, netlink, events, epoll, ports: Vec::new(), watched: Vec::new() };
    // The subscription precedes the first list, so no change is missed.
    watcher.ports = watcher.list_ports();
    watcher.open_devices();
    watcher.print(Line::Monitor { watching: names(sources) })?;
    let mut settling = false;
    loop {
        let mut timeout = settling.then(|| Timeout::after(SETTLE));
        match stop.wait(watcher.epoll.as_fd(), PollFlags::IN, timeout.as_mut())? {
            Wake::Stopped => return Err(Interrupted.into()),
            Wake::Ready => settling = watcher.take()?,
            Wake::TimedOut => {
                settling = false;
                watcher.refresh()?;
            }
        }
    }
}

/// Subscribes to all sources that the kernel has and this process may use.
fn subscribe(netlink: &mut RdmaNetlink) -> Result<(Events, EventSources)> {
    let others = EventSources::UEVENT | EventSources::NETDEV;
    if !netlink.system()?.monitor {
        output::diagnostic("this kernel has no notifications of RDMA netlink (Linux 6.12 has)");
        return Ok((Events::open(others)?, others));
    }
    match Events::open(EventSources::all()) {
        Ok(events) => Ok((events, EventSources::all())),
        Err(error) if error.errno() == Some(rustix::io::Errno::PERM) => {
            output::diagnostic(&format!("without notifications of RDMA netlink: {error}"));
            Ok((Events::open(others)?, others))
        }
        Err(error) => Err(error.into()),
    }
}

fn names(sources: EventSources) -> Vec<&'static str> {
    [EventSources::RDMA, EventSources::UEVENT, EventSources::NETDEV]
        .into_iter()
        .filter(|source| sources.contains(*source))
        .map(name)
        .collect()
}

fn name(source: EventSources) -> &'static str {
    match source {
        EventSources::RDMA => "rdma",
        EventSources::UEVENT => "uevent",
        _ => "netdev",
    }
}

impl Watcher {
    /// Prints all pending events. Returns whether port states may still change because of them.
    fn take(&mut self) -> Result<bool> {
        let mut taken = Vec::new();
        loop {
            match self.events.try_wait() {
                Ok(Some(event)) => taken.push(event),
                Ok(None) => break,
                Err(error @ bareverbs_netlink::Error::Malformed { .. }) => {
                    output::diagnostic(&format!("{error}"))
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !taken.is_empty() {
            // Interfaces of removed ports are looked up in the old list.
            let now = self.list_ports();
            for event in &taken {
                self.print_event(event, &now)?;
            }
            self.refresh()?;
            self.open_devices();
        }
        self.take_async_events()?;
        Ok(!taken.is_empty())
    }

    fn take_async_events(&mut self) -> Result<()> {
        let mut removed = Vec::new();
        for (place, device) in self.watched.iter().enumerate() {
            loop {
                match device.events.try_wait() {
                    Ok(Some(event)) => self.print(async_line(&device.name, &event))?,
                    Ok(None) => break,
                    Err(_) => {
                        // The device was removed.
                        removed.push(place);
                        break;
                    }
                }
            }
        }
        for place in removed.into_iter().rev() {
            let device = self.watched.remove(place);
            epoll::delete(&self.epoll, &device.events)?;
        }
        Ok(())
    }

    fn print(&self, line: Line<'_>) -> Result<()> {
        let text = if self.json {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            serde_json::to_string(&Timed { time, line })?
        } else {
            text(&line)
        };
        Ok(output::line(&text)?)
    }

    fn print_event(&self, event: &Event, now: &[Port]) -> Result<()> {
        match event {
            Event::Rdma(event) => self.print(rdma_line(event)),
            Event::Uevent(event) => self.print(uevent_line(event)),
            Event::Netdev(event) => match above(now, &self.ports, event.index) {
                Some(port) => self.print(netdev_line(event, port)),
                None => Ok(()),
            },
            Event::Address(event) => match above(now, &self.ports, event.netdev_index) {
                Some(port) => self.print(address_line(event, port)),
                None => Ok(()),
            },
            Event::Lost(source) => self.print(Line::Lost { lost: name(*source) }),
            _ => Ok(()),
        }
    }

    /// The ports now. Devices may be removed meanwhile; they are left out.
    fn list_ports(&mut self) -> Vec<Port> {
        let mut found = Vec::new();
        for device in self.netlink.devices().unwrap_or_default() {
            for port in self.netlink.ports(device.index).unwrap_or_default() {
                found.push(Port {
                    device: device.name.clone(),
                    index: device.index,
                    port: port.port.into(),
                    state: port.state,
                    netdev: port.netdev_index.zip(port.netdev_name),
                });
            }
        }
        found
    }

    /// Prints the ports whose state changed since the last list.
    fn refresh(&mut self) -> Result<()> {
        let now = self.list_ports();
        for (port, before) in changed(&self.ports, &now) {
            self.print(Line::Port {
                device: &port.device,
                port: port.port,
                state: link::state_name(port.state),
                before: before.map(link::state_name),
            })?;
        }
        self.ports = now;
        Ok(())
    }

    /// Opens devices for their asynchronous events.
    fn open_devices(&mut self) {
        self.watched.retain(|watched| self.ports.iter().any(|port| port.index == watched.index));
        for device in bareverbs::devices().unwrap_or_default() {
            let Some(index) = device.index() else { continue };
            if self.watched.iter().any(|watched| watched.index == index) || !may_stay_open(&device) {
                continue;
            }
            let Ok(context) = device.open() else { continue };
            let events = context.async_events();
            if epoll::add(&self.epoll, &events, EventData::new_u64(0), EventFlags::IN).is_ok() {
                self.watched.push(Watched { name: device.name().to_owned(), index, events });
            }
        }
    }
}

/// Whether the kernel can remove the device while it is open. Software devices are left out: before
/// Linux 7.3 their removal waits until all processes have closed them. The states of their ports
/// follow the network interface.
fn may_stay_open(device: &Device) -> bool {
    !matches!(device.driver_id(), None | Some(DriverId::RXE | DriverId::SIW))
}

/// The port over a network interface.
fn above<'a>(now: &'a [Port], before: &'a [Port], netdev: u32) -> Option<&'a Port> {
    let is_it = |port: &&Port| port.netdev.as_ref().is_some_and(|(index, _)| *index == netdev);
    now.iter().find(is_it).or_else(|| before.iter().find(is_it))
}

/// The new ports and those with a new state, with their earlier state.
fn changed<'a>(before: &[Port], now: &'a [Port]) -> Vec<(&'a Port, Option<PortState>)> {
    let mut changed = Vec::new();
    for port in now {
        let known = before.iter().find(|known| (known.index, known.port) == (port.index, port.port));
        match known.map(|known| known.state) {
            Some(state) if state == port.state => {}
            state => changed.push((port, state)),
        }
    }
    changed
}

fn rdma_line(event: &RdmaEvent) -> Line<'_> {
    let name =
        |event: bareverbs_netlink::EventType| event.name().map_or_else(|| event.0.to_string(), str::to_owned);
    Line::Rdma {
        event: event.event.map_or_else(|| "unknown".into(), name),
        device: event.device.as_deref(),
        device_index: event.device_index,
        port: event.port.map(u32::from),
        netdev: event.netdev.as_deref(),
        netdev_index: event.netdev_index,
    }
}

fn uevent_line(event: &Uevent) -> Line<'_> {
    let name = event.devpath.rsplit('/').next().unwrap_or_default();
    Line::Uevent { action: &event.action, subsystem: &event.subsystem, name, devpath: &event.devpath }
}

fn netdev_line<'a>(event: &'a NetdevEvent, port: &'a Port) -> Line<'a> {
    Line::Netdev {
        netdev: &event.name,
        device: &port.device,
        port: port.port,
        removed: event.removed,
        up: event.up,
        running: event.running,
        mtu: event.mtu,
    }
}

fn address_line<'a>(event: &AddressEvent, port: &'a Port) -> Line<'a> {
    Line::Address {
        netdev: port.netdev.as_ref().map_or("", |(_, name)| name),
        device: &port.device,
        port: port.port,
        address: format!("{}/{}", event.address, event.prefix),
        removed: event.removed,
    }
}

fn async_line<'a>(device: &'a str, event: &AsyncEvent) -> Line<'a> {
    let port = match *event {
        AsyncEvent::Port { port, .. } => Some(port.into()),
        _ => None,
    };
    let kind = event.event();
    Line::Async { device, event: kind.name(), number: kind.0, port }
}

fn text(line: &Line<'_>) -> String {
    let optional = |name: &str, value: &Option<String>| {
        value.as_ref().map_or_else(String::new, |value| format!(" {name} {value}"))
    };
    match line {
        Line::Monitor { watching } => format!("monitor watching {}", watching.join(", ")),
        Line::Rdma { event, device, port, netdev, .. } => {
            let device = device.map_or_else(String::new, |device| format!(" {device}"));
            let port = optional("port", &port.map(|port| port.to_string()));
            format!("rdma    {event}{device}{port}{}", optional("netdev", &netdev.map(str::to_owned)))
        }
        Line::Uevent { action, subsystem, name, .. } => format!("uevent  {action} {subsystem} {name}"),
        Line::Netdev { netdev, device, port, removed: true, .. } => {
            format!("netdev  {netdev} ({device}/{port}) removed")
        }
        Line::Netdev { netdev, device, port, up, running, mtu, .. } => {
            let [up, running] = [if *up { "up" } else { "down" }, if *running { " running" } else { "" }];
            let mtu = optional("mtu", &mtu.map(|mtu| mtu.to_string()));
            format!("netdev  {netdev} ({device}/{port}) {up}{running}{mtu}")
        }
        Line::Address { netdev, device, port, address, removed } => {
            let done = if *removed { "removed" } else { "added" };
            format!("address {netdev} ({device}/{port}) {address} {done}")
        }
        Line::Port { device, port, state, before } => {
            let before = before.as_ref().map_or_else(String::new, |before| format!(", was {before}"));
            format!("port    {device}/{port} {state}{before}")
        }
        Line::Async { device, event, number, port } => {
            let event = event.map_or_else(|| number.to_string(), str::to_owned);
            format!("async   {device} {event}{}", optional("port", &port.map(|port| port.to_string())))
        }
        Line::Lost { lost } => format!("lost    notifications of {lost}; list the devices again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(index: u32, state: PortState) -> Port {
        Port {
            device: format!("rxe{index}"),
            index,
            port: 1,
            state,
            netdev: Some((index + 2, "eth0".into())),
        }
    }

    #[test]
    fn new_ports_and_new_states_are_changes() {
        let before = [port(0, PortState::ACTIVE), port(1, PortState::DOWN), port(2, PortState::DOWN)];
        let now = [port(0, PortState::ACTIVE), port(1, PortState::ACTIVE), port(3, PortState::INIT)];
        assert_eq!(changed(&before, &now), [(&now[1], Some(PortState::DOWN)), (&now[2], None)]);
        assert_eq!(changed(&now, &now), []);
    }

    #[test]
    fn interface_belongs_to_its_present_or_last_port() {
        let (before, now) = ([port(0, PortState::ACTIVE)], [port(1, PortState::ACTIVE)]);
        assert_eq!(above(&now, &before, 3), Some(&now[0]));
        assert_eq!(above(&now, &before, 2), Some(&before[0]));
        assert_eq!(above(&now, &before, 9), None);
    }

    #[test]
    fn lines_are_texts() {
        let rdma = Line::Rdma {
            event: "NETDEV_ATTACH".into(),
            device: Some("rxe0"),
            device_index: Some(0),
            port: Some(1),
            netdev: Some("eth0"),
            netdev_index: Some(2),
        };
        assert_eq!(text(&rdma), "rdma    NETDEV_ATTACH rxe0 port 1 netdev eth0");
        let netdev = |removed, up| Line::Netdev {
            netdev: "eth0",
            device: "rxe0",
            port: 1,
            removed,
            up,
            running: up,
            mtu: Some(1500),
        };
        assert_eq!(text(&netdev(false, true)), "netdev  eth0 (rxe0/1) up running mtu 1500");
        assert_eq!(text(&netdev(false, false)), "netdev  eth0 (rxe0/1) down mtu 1500");
        assert_eq!(text(&netdev(true, false)), "netdev  eth0 (rxe0/1) removed");
        let state =
            Line::Port { device: "rxe0", port: 1, state: "DOWN".into(), before: Some("ACTIVE".into()) };
        assert_eq!(text(&state), "port    rxe0/1 DOWN, was ACTIVE");
        let event = Line::Async { device: "mlx5_0", event: Some("PORT_ERR"), number: 10, port: Some(1) };
        assert_eq!(text(&event), "async   mlx5_0 PORT_ERR port 1");
    }

    #[test]
    fn json_names_the_source() {
        let line = Line::Port { device: "rxe0", port: 1, state: "ACTIVE".into(), before: None };
        assert_eq!(
            serde_json::to_string(&Timed { time: 1.5, line }).unwrap(),
            r#"{"time":1.5,"source":"port","device":"rxe0","port":1,"state":"ACTIVE","before":null}"#
        );
    }
}
