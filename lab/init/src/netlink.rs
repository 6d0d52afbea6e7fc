//! The netlink requests of the guest: rtnetlink for links and addresses, RDMA netlink for software
//! devices.

use std::io;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use bareverbs_uapi::netlink::{Content, MessageFlags, MessageWriter, messages};
use bareverbs_uapi::nldev::{Attribute, Command};
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};
use zerocopy::{Immutable, IntoBytes};

/// A netlink family.
pub(crate) trait Family {
    /// The netlink protocol number.
    const PROTOCOL: SockProtocol;
}

/// rtnetlink.
pub(crate) struct Route;

/// RDMA netlink.
pub(crate) struct Rdma;

impl Family for Route {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkRoute;
}

impl Family for Rdma {
    const PROTOCOL: SockProtocol = SockProtocol::NetlinkRDMA;
}

/// An open netlink socket.
pub(crate) struct Netlink<F> {
    socket: OwnedFd,
    sequence: u32,
    family: PhantomData<F>,
}

/// `VETH_INFO_PEER` (linux/veth.h).
const VETH_INFO_PEER: u16 = 1;

/// `struct ifinfomsg` (linux/rtnetlink.h).
#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct LinkMessage {
    family: u8,
    pad: u8,
    kind: u16,
    index: u32,
    flags: u32,
    change: u32,
}

/// `struct ifaddrmsg` (linux/if_addr.h).
#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct AddressMessage {
    family: u8,
    prefix: u8,
    flags: u8,
    scope: u8,
    index: u32,
}

/// The index of a link.
pub(crate) fn index(name: &str) -> Result<u32> {
    if_nametoindex(name).with_context(|| format!("no link is named {name}"))
}

impl<F: Family> Netlink<F> {
    pub(crate) fn open() -> Result<Self> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, F::PROTOCOL)
            .with_context(|| format!("opening {:?}", F::PROTOCOL))?;
        Ok(Self { socket, sequence: 0, family: PhantomData })
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn request(
        &mut self,
        kind: u16,
        flags: MessageFlags,
        fill: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Result<()> {
        self.sequence += 1;
        let mut buffer = [0; 512];
        let mut writer = MessageWriter::new(&mut buffer);
        fill(writer.begin(kind, MessageFlags::REQUEST | MessageFlags::ACK | flags, self.sequence));
        let request = writer.finish().context("the netlink request is too long")?;
        send(self.socket.as_raw_fd(), request, MsgFlags::empty())?;

        let mut answer = [0; 8192];
        let count = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        let answer = messages(&answer[..count]).next().context("no netlink response")??;
        match answer.content()? {
            Content::Acknowledged(_) => Ok(()),
            Content::Error(report) => Err(io::Error::from_raw_os_error(report.errno).into()),
            other => bail!("unexpected netlink response {other:?}"),
        }
    }
}

impl Netlink<Route> {
    /// Sets a link up.
    pub(crate) fn set_up(&mut self, name: &str) -> Result<()> {
        let up = libc::IFF_UP as u32;
        let link = LinkMessage { index: index(name)?, flags: up, change: up, ..LinkMessage::default() };
        self.request(libc::RTM_NEWLINK, MessageFlags::empty(), |message| {
            message.put_struct(&link);
        })
        .with_context(|| format!("setting {name} up"))
    }

    /// Creates a pair of joined links.
    pub(crate) fn add_veth(&mut self, name: &str, peer: &str) -> Result<()> {
        self.request(libc::RTM_NEWLINK, MessageFlags::CREATE | MessageFlags::EXCLUSIVE, |message| {
            message.put_struct(&LinkMessage::default()).put_str(libc::IFLA_IFNAME, name);
            message.put_nested(libc::IFLA_LINKINFO, |info| {
                info.put_str(libc::IFLA_INFO_KIND, "veth").put_nested(libc::IFLA_INFO_DATA, |data| {
                    data.put_nested(VETH_INFO_PEER, |other| {
                        other.put_struct(&LinkMessage::default()).put_str(libc::IFLA_IFNAME, peer);
                    });
                });
            });
        })
        .with_context(|| format!("creating the veth pair {name}, {peer}"))
    }

    /// Adds an IPv4 address to a link.
    pub(crate) fn add_address(&mut self, name: &str, address: Ipv4Addr, prefix: u8) -> Result<()> {
        let family = libc::AF_INET as u8;
        let head = AddressMessage { family, prefix, index: index(name)?, ..AddressMessage::default() };
        self.request(libc::RTM_NEWADDR, MessageFlags::CREATE | MessageFlags::EXCLUSIVE, |message| {
            message
                .put_struct(&head)
                .put_bytes(libc::IFA_LOCAL, &address.octets())
                .put_bytes(libc::IFA_ADDRESS, &address.octets());
        })
        .with_context(|| format!("adding {address}/{prefix} to {name}"))
    }
}

impl Netlink<Rdma> {
    /// Creates a software RDMA device over a link (`rdma link add`).
    pub(crate) fn add_link(&mut self, name: &str, kind: &str, over: &str) -> Result<()> {
        self.request(Command::NEWLINK.message_type(), MessageFlags::empty(), |message| {
            message
                .put_str(Attribute::DEV_NAME.0, name)
                .put_str(Attribute::NDEV_NAME.0, over)
                .put_str(Attribute::LINK_TYPE.0, kind);
        })
        .with_context(|| format!("adding {name} of type {kind} over {over}"))
    }
}
