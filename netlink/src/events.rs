//! Notifications of devices and network interfaces.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bareverbs_uapi::netlink::{Malformed, Message, messages};
pub use bareverbs_uapi::nldev::EventType;
use bareverbs_uapi::nldev::{Command, Group};
use bareverbs_uapi::rtnetlink::{
    ADDRESS, ADDRESS_LOCAL, AddressMessage, DEL_ADDRESS, DEL_LINK, GROUP_IPV4_ADDRESS, GROUP_IPV6_ADDRESS,
    GROUP_LINK, LINK_MTU, LINK_NAME, LinkMessage, NEW_ADDRESS, NEW_LINK,
};
use bitflags::bitflags;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::{KOBJECT_UEVENT, RDMA, SocketAddrNetlink};
use rustix::net::{RecvFlags, recvfrom};

use crate::attrs::netlink_struct;
use crate::error::KernelError;
use crate::socket::{RESPONSE_BYTES, subscribe};
use crate::{Error, PortNum, Result};

/// Multicast group of the kernel's own uevents. Group 2 has those of udev.
const KERNEL_UEVENTS: u32 = 1;

/// Size of the receive buffer of notifications in the kernel: 1 MiB.
const RECEIVE_BUFFER: usize = 1 << 20;

bitflags! {
    /// Where [`Events`] come from.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EventSources: u8 {
        /// RDMA netlink: devices that come, go and are renamed, and their network interfaces.
        ///
        /// Linux 6.12 and later ([`SystemInfo::monitor`](super::SystemInfo::monitor)). It requires
        /// `CAP_NET_ADMIN` before Linux 7.2.
        #[doc(alias = "RDMA_NL_GROUP_NOTIFY")]
        const RDMA = 1;
        /// Uevents of the subsystems whose names begin with `infiniband`: the devices and their
        /// character devices. All kernels.
        #[doc(alias = "NETLINK_KOBJECT_UEVENT")]
        const UEVENT = 2;
        /// rtnetlink: network interfaces and their addresses. All kernels.
        #[doc(alias = "RTMGRP_LINK")]
        const NETDEV = 4;
    }
}

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An RDMA device changed.
    Rdma(RdmaEvent),
    /// A kernel object of the RDMA subsystem was added, removed or changed.
    Uevent(Uevent),
    /// A network interface was added, removed or changed.
    Netdev(NetdevEvent),
    /// An address of a network interface was added, removed or changed.
    Address(AddressEvent),
    /// Notifications of the source were lost, because they were not taken in time. List the
    /// devices again.
    Lost(EventSources),
}

netlink_struct! {
    /// A notification of RDMA netlink.
    RdmaEvent {
        /// The change.
        event: Option<EventType> = EVENT_TYPE;
        /// Index of the device.
        device_index: Option<u32> = DEV_INDEX;
        /// Name of the device.
        device: Option<String> = DEV_NAME;
        /// The port whose network interface changed; `None` if its number is above 255.
        port: Option<PortNum> = PORT_INDEX;
        /// Index of the network interface.
        netdev_index: Option<u32> = NDEV_INDEX;
        /// Name of the network interface.
        netdev: Option<String> = NDEV_NAME;
    }
}

/// A uevent of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uevent {
    /// The change: `add`, `remove`, `move` (renamed), `bind`, `change` and others.
    pub action: String,
    /// The subsystem: `infiniband`, `infiniband_verbs`, `infiniband_mad` and others.
    pub subsystem: String,
    /// Path of the object below `/sys`.
    pub devpath: String,
    /// All values, in the kernel's order.
    pub values: Vec<(String, String)>,
}

/// A notification of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetdevEvent {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether the interface was removed.
    pub removed: bool,
    /// Whether it is administratively up.
    #[doc(alias = "IFF_UP")]
    pub up: bool,
    /// Whether it can carry traffic.
    #[doc(alias = "IFF_RUNNING")]
    pub running: bool,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
}

/// A notification of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressEvent {
    /// Index of the network interface.
    pub netdev_index: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of its network prefix in bits.
    pub prefix: u8,
    /// Whether the address was removed.
    pub removed: bool,
}

/// A stream of notifications about RDMA devices and the network interfaces below them.
///
/// The file descriptor is readable while there may be a notification. It works with `poll`, `epoll`
/// and the reactors built on them. Take notifications until there is none before waiting again.
///
/// ```no_run
/// use bareverbs_netlink::{Event, EventSources, Events};
///
/// let mut events = Events::open(EventSources::UEVENT | EventSources::NETDEV)?;
/// loop {
///     match events.wait()? {
///         Event::Uevent(event) => println!("{} {}", event.action, event.devpath),
///         Event::Lost(_) => println!("list the devices again"),
///         other => println!("{other:?}"),
///     }
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), bareverbs_netlink::Error>(())
/// ```
#[derive(Debug)]
pub struct Events {
    sockets: Vec<(EventSources, OwnedFd)>,
    epoll: OwnedFd,
    /// Notifications that were received and not yet taken.
    pending: VecDeque<Event>,
    buffer: Vec<u8>,
}

impl Events {
    /// Opens a stream of notifications from `sources`.
    ///
    /// # Errors
    /// - [`Error::Invalid`] without sources.
    /// - [`Error::Kernel`] with `EPERM`: the kernel reserves notifications of
    ///   [`EventSources::RDMA`] for processes with `CAP_NET_ADMIN`.
    /// - [`Error::System`]: a socket can't be opened.
    #[doc(alias = "rdma monitor")]
    pub fn open(sources: EventSources) -> Result<Self> {
        const NOTIFY: u32 = 1 << (Group::NOTIFY.0 - 1);
        const ROUTE: u32 = GROUP_LINK | GROUP_IPV4_ADDRESS | GROUP_IPV6_ADDRESS;
        let all = [
            (EventSources::RDMA, "subscribing to notifications of RDMA devices", Some(RDMA), NOTIFY),
            (EventSources::UEVENT, "subscribing to uevents", Some(KOBJECT_UEVENT), KERNEL_UEVENTS),
            (EventSources::NETDEV, "subscribing to network interfaces", None, ROUTE),
        ];
        let failed = |errno| Error::system("creating an epoll descriptor for notifications", errno);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let mut sockets = Vec::new();
        for (source, what, protocol, groups) in all {
            if !sources.contains(source) {
                continue;
            }
            let socket = subscribe(protocol, groups).map_err(|errno| match errno {
                Errno::PERM => KernelError::new(what, errno, None).into(),
                errno => Error::system(what, errno),
            })?;
            // The default buffer holds fewer than 100 notifications of network interfaces. A
            // larger one is limited by `net.core.rmem_max`, so this is best effort.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
            epoll::add(&epoll, &socket, EventData::new_u64(0), EventFlags::IN).map_err(failed)?;
            sockets.push((source, socket));
        }
        if sockets.is_empty() {
            return Err(Error::invalid(
                "Events::open",
                "`sources` is empty: pass `EventSources::RDMA`, `UEVENT` or `NETDEV`",
            ));
        }
        Ok(Self { sockets, epoll, pending: VecDeque::new(), buffer: vec![0; RESPONSE_BYTES] })
    }

    /// Takes a notification if there is one.
    ///
    /// # Errors
    /// [`Error::System`] if a socket fails; [`Error::Malformed`] for a malformed notification, which
    /// is skipped.
    pub fn try_wait(&mut self) -> Result<Option<Event>> {
        for index in 0..self.sockets.len() {
            while self.pending.is_empty() && self.receive(index)? {}
        }
        Ok(self.pending.pop_front())
    }

    /// Blocks until there is a notification.
    ///
    /// # Errors
    /// As for [`Events::try_wait`].
    pub fn wait(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.next(None)? {
                return Ok(event);
            }
        }
    }

    /// Blocks until there is a notification, at most for `timeout`.
    ///
    /// # Errors
    /// As for [`Events::try_wait`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Event>> {
        self.next(Some(timeout))
    }

    fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Event>> {
        // A timeout that overflows `Instant` means no timeout.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.try_wait()? {
                return Ok(Some(event));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let time = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut fds, time.as_ref()) {
                Ok(0) if timeout.is_some() => return self.try_wait(),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::system("waiting for notifications", errno)),
            }
        }
    }

    /// Receives a datagram of a socket, if there is one. Returns whether there was one.
    fn receive(&mut self, index: usize) -> Result<bool> {
        let Some((source, socket)) = self.sockets.get(index) else { return Ok(false) };
        let what = "receiving notifications";
        let received =
            retry_on_intr(|| recvfrom(socket, &mut self.buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC));
        let (length, sender) = match received {
            Ok((_, length, sender)) => (length, sender),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::NOBUFS) => {
                self.pending.push_back(Event::Lost(*source));
                return Ok(true);
            }
            Err(errno) => return Err(Error::system(what, errno)),
        };
        // Other processes can send to the socket; they can't send in the kernel's name.
        let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
        if sender.is_none_or(|sender| sender.pid() != 0) {
            return Ok(true);
        }
        let Some(datagram) = self.buffer.get(..length) else {
            self.pending.push_back(Event::Lost(*source));
            return Ok(true);
        };
        let read = match *source {
            EventSources::RDMA => read_rdma_events(datagram),
            EventSources::UEVENT => Ok(Uevent::read(datagram).map(Event::Uevent).into_iter().collect()),
            _ => read_route_events(datagram),
        };
        let events = read.map_err(|error| Error::malformed(what, error))?;
        self.pending.extend(events);
        Ok(true)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

pub(crate) fn read_rdma_events(datagram: &[u8]) -> Result<Vec<Event>, Malformed> {
    let mut events = Vec::new();
    for message in messages(datagram) {
        let message = message?;
        if Command::from_message_type(message.header.kind) == Some(Command::MONITOR) {
            events.push(Event::Rdma(RdmaEvent::read(&message.attributes())?));
        }
    }
    Ok(events)
}

pub(crate) fn read_route_events(datagram: &[u8]) -> Result<Vec<Event>, Malformed> {
    let mut events = Vec::new();
    for message in messages(datagram) {
        let message = message?;
        match message.header.kind {
            NEW_LINK | DEL_LINK => events.extend(read_netdev(&message)?.map(Event::Netdev)),
            NEW_ADDRESS | DEL_ADDRESS => events.extend(read_address(&message)?.map(Event::Address)),
            _ => {}
        }
    }
    Ok(events)
}

/// `None` for the membership of a bridge or the settings of an address family, which have the same
/// message types.
fn read_netdev(message: &Message<'_>) -> Result<Option<NetdevEvent>, Malformed> {
    let (head, attributes) = message.body::<LinkMessage>()?;
    if head.family != 0 {
        return Ok(None);
    }
    let has = |flag: i32| head.flags & flag.cast_unsigned() != 0;
    Ok(Some(NetdevEvent {
        index: head.interface.cast_unsigned(),
        name: attributes.find(LINK_NAME).map(|name| name.str()).transpose()?.unwrap_or_default().to_owned(),
        removed: message.header.kind == DEL_LINK,
        up: has(libc::IFF_UP),
        running: has(libc::IFF_RUNNING),
        mtu: attributes.find(LINK_MTU).map(|mtu| mtu.u32()).transpose()?,
    }))
}

/// `None` for addresses of other families than IP.
fn read_address(message: &Message<'_>) -> Result<Option<AddressEvent>, Malformed> {
    let (head, attributes) = message.body::<AddressMessage>()?;
    let address = |attribute| {
        let bytes = attributes.find(attribute)?.payload;
        let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
        v4.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
    };
    Ok(address(ADDRESS_LOCAL).or_else(|| address(ADDRESS)).map(|address| AddressEvent {
        netdev_index: head.interface,
        address,
        prefix: head.prefix_length,
        removed: message.header.kind == DEL_ADDRESS,
    }))
}

impl Uevent {
    /// The value named `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// `None` for other subsystems, and for bytes that are not a uevent.
    pub(crate) fn read(datagram: &[u8]) -> Option<Self> {
        let text = str::from_utf8(datagram).ok()?;
        let mut lines = text.split_terminator('\0');
        // The first line is `ACTION@DEVPATH`.
        let (action, devpath) = lines.next()?.split_once('@')?;
        let values: Vec<_> = lines
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut event =
            Self { action: action.to_owned(), subsystem: String::new(), devpath: devpath.to_owned(), values };
        event.subsystem = event.value("SUBSYSTEM").filter(|name| name.starts_with("infiniband"))?.to_owned();
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::netlink::{MessageFlags, MessageWriter};
    use bareverbs_uapi::nldev::Attribute;
    use proptest::prelude::*;

    use super::*;

    const ADDED: &[u8] = b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0\
        DEVPATH=/devices/virtual/infiniband/rxe0\0SUBSYSTEM=infiniband\0NAME=rxe0\0SEQNUM=812\0";

    fn datagram(fill: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
        let mut buffer = [0; 512];
        let mut writer = MessageWriter::new(&mut buffer);
        fill(&mut writer);
        writer.finish().unwrap().to_vec()
    }

    #[test]
    fn uevents_of_the_rdma_subsystem_are_read() {
        let event = Uevent::read(ADDED).unwrap();
        assert_eq!((event.action.as_str(), event.subsystem.as_str()), ("add", "infiniband"));
        assert_eq!(event.devpath, "/devices/virtual/infiniband/rxe0");
        assert_eq!((event.value("NAME"), event.value("SEQNUM")), (Some("rxe0"), Some("812")));
        assert_eq!(event.value("nothing"), None);
    }

    #[test]
    fn other_uevents_are_skipped() {
        for other in [
            &b""[..],
            b"libudev\0\xfe\xed\xca\xfe",
            b"add@/devices/virtual/net/eth0\0ACTION=add\0SUBSYSTEM=net\0",
            b"add@/devices/x\0ACTION=add\0",
            b"SUBSYSTEM=infiniband\0",
        ] {
            assert_eq!(Uevent::read(other), None, "{other:?}");
        }
    }

    #[test]
    fn rdma_notifications_are_read() {
        let bytes = datagram(|writer| {
            writer
                .begin(Command::MONITOR.message_type(), MessageFlags::empty(), 0)
                .put_u32(Attribute::DEV_INDEX.0, 3)
                .put_str(Attribute::DEV_NAME.0, "rxe0")
                .put_u32(Attribute::PORT_INDEX.0, 1)
                .put_u32(Attribute::NDEV_INDEX.0, 2)
                .put_str(Attribute::NDEV_NAME.0, "eth0")
                .put_u8(Attribute::EVENT_TYPE.0, 2);
            writer.begin(Command::GET.message_type(), MessageFlags::empty(), 0);
            writer
                .begin(Command::MONITOR.message_type(), MessageFlags::empty(), 0)
                .put_u32(Attribute::DEV_INDEX.0, 3)
                .put_u8(Attribute::EVENT_TYPE.0, 77);
        });
        let attached = RdmaEvent {
            event: Some(EventType::NETDEV_ATTACH),
            device_index: Some(3),
            device: Some("rxe0".into()),
            port: Some(PortNum(1)),
            netdev_index: Some(2),
            netdev: Some("eth0".into()),
        };
        let unknown = RdmaEvent {
            event: Some(EventType(77)),
            device_index: Some(3),
            device: None,
            port: None,
            netdev_index: None,
            netdev: None,
        };
        assert_eq!(read_rdma_events(&bytes), Ok(vec![Event::Rdma(attached), Event::Rdma(unknown)]));
    }

    #[test]
    fn network_interfaces_and_addresses_are_read() {
        let link = LinkMessage { interface: 2, flags: 0x1_0043, ..LinkMessage::zeroed() };
        let bridge = LinkMessage { family: 7, ..link };
        let address =
            AddressMessage { family: 2, prefix_length: 24, interface: 2, ..AddressMessage::zeroed() };
        let bytes = datagram(|writer| {
            let none = MessageFlags::empty();
            let put_link = |writer: &mut MessageWriter<'_>, kind, head: &LinkMessage| {
                writer
                    .begin(kind, none, 0)
                    .put_struct(head)
                    .put_str(LINK_NAME, "eth0")
                    .put_u32(LINK_MTU, 1500);
            };
            put_link(writer, NEW_LINK, &link);
            put_link(writer, NEW_LINK, &bridge);
            put_link(writer, DEL_LINK, &LinkMessage { flags: 0, ..link });
            writer
                .begin(NEW_ADDRESS, none, 0)
                .put_struct(&address)
                .put_bytes(ADDRESS, &[10, 1, 0, 9])
                .put_bytes(ADDRESS_LOCAL, &[10, 1, 0, 1]);
            writer.begin(DEL_ADDRESS, none, 0).put_struct(&address).put_bytes(ADDRESS, &[0xfe; 16]);
            writer.begin(DEL_ADDRESS, none, 0).put_struct(&address).put_bytes(ADDRESS, &[1, 2, 3]);
        });
        let netdev = |removed: bool| {
            let (name, mtu) = ("eth0".to_owned(), Some(1500));
            Event::Netdev(NetdevEvent { index: 2, name, removed, up: !removed, running: !removed, mtu })
        };
        let address =
            |address, removed| Event::Address(AddressEvent { netdev_index: 2, address, prefix: 24, removed });
        assert_eq!(
            read_route_events(&bytes),
            Ok(vec![
                netdev(false),
                netdev(true),
                address([10, 1, 0, 1].into(), false),
                address([0xfe; 16].into(), true),
            ])
        );
    }

    #[test]
    fn subscription_without_sources_is_refused() {
        let refused = Events::open(EventSources::empty()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "Events::open: `sources` is empty: pass `EventSources::RDMA`, `UEVENT` or `NETDEV`"
        );
    }

    #[test]
    fn poll_without_messages_returns_no_event() {
        // Any user may subscribe to network interfaces.
        let mut events = Events::open(EventSources::NETDEV).unwrap();
        events.wait_timeout(Duration::ZERO).unwrap();
    }

    proptest! {
        #[test]
        fn any_bytes_are_events_or_malformed(bytes: Vec<u8>) {
            let _ = read_rdma_events(&bytes);
            let _ = read_route_events(&bytes);
            let _ = Uevent::read(&bytes);
        }

        #[test]
        fn uevent_values_are_kept_in_order(values in proptest::collection::vec(("[A-Z]{1,8}", "[^\0]{0,12}"), 0..8)) {
            let mut bytes = b"change@/devices/x\0SUBSYSTEM=infiniband_verbs\0".to_vec();
            for (name, value) in &values {
                bytes.extend(format!("{name}={value}\0").bytes());
            }
            let event = Uevent::read(&bytes).unwrap();
            prop_assert_eq!(&event.values[1..], &values[..]);
        }
    }
}
