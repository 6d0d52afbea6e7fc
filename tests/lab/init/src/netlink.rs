//! The few netlink requests the guest needs: rtnetlink for links and addresses, RDMA netlink for rxe.

use std::io;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use nix::libc;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// A netlink family.
pub(crate) trait Family {
    /// The protocol to open.
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

// include/uapi/linux/veth.h
const VETH_INFO_PEER: u16 = 1;
// include/uapi/rdma/rdma_netlink.h
const RDMA_NL_NLDEV: u16 = 5;
const RDMA_NLDEV_CMD_NEWLINK: u16 = 3;
const RDMA_NLDEV_ATTR_DEV_NAME: u16 = 2;
const RDMA_NLDEV_ATTR_NDEV_NAME: u16 = 51;
const RDMA_NLDEV_ATTR_LINK_TYPE: u16 = 65;

/// `struct ifinfomsg`: family, pad, type, index, flags, change.
fn interface(index: u32, flags: u32) -> Vec<u8> {
    let mut message = vec![libc::AF_UNSPEC as u8, 0, 0, 0];
    for word in [index, flags, flags] {
        message.extend_from_slice(&word.to_ne_bytes());
    }
    message
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = 4 + value.len();
    out.extend_from_slice(&(length as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn text(value: &str) -> Vec<u8> {
    let mut bytes = value.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// The index of a link.
pub(crate) fn index(name: &str) -> Result<u32> {
    if_nametoindex(name).with_context(|| format!("no link named {name}"))
}

impl<F: Family> Netlink<F> {
    pub(crate) fn open() -> Result<Self> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, F::PROTOCOL)
            .with_context(|| format!("opening {:?}", F::PROTOCOL))?;
        Ok(Self { socket, sequence: 0, family: PhantomData })
    }

    /// Sends a request and waits for the kernel's acknowledgement.
    fn request(&mut self, kind: u16, flags: i32, body: &[u8]) -> Result<()> {
        self.sequence += 1;
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut message = Vec::with_capacity(16 + body.len());
        message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        message.extend_from_slice(&self.sequence.to_ne_bytes());
        message.extend_from_slice(&0_u32.to_ne_bytes());
        message.extend_from_slice(body);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;

        let mut answer = [0; 8192];
        let count = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        let Some(answer) = answer[..count].get(..20) else {
            bail!("netlink answered {count} bytes");
        };
        let kind = u16::from_ne_bytes([answer[4], answer[5]]);
        let status = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        match (i32::from(kind), status) {
            (libc::NLMSG_ERROR, 0) => Ok(()),
            (libc::NLMSG_ERROR, errno) => Err(io::Error::from_raw_os_error(-errno).into()),
            _ => bail!("netlink answered message type {kind}"),
        }
    }
}

impl Netlink<Route> {
    /// Sets a link up.
    pub(crate) fn set_up(&mut self, name: &str) -> Result<()> {
        let body = interface(index(name)?, libc::IFF_UP as u32);
        self.request(libc::RTM_NEWLINK, 0, &body).with_context(|| format!("setting {name} up"))
    }

    /// Creates a pair of joined links.
    pub(crate) fn add_veth(&mut self, name: &str, peer: &str) -> Result<()> {
        let mut other = interface(0, 0);
        attribute(&mut other, libc::IFLA_IFNAME, &text(peer));
        let mut data = Vec::new();
        attribute(&mut data, VETH_INFO_PEER, &other);
        let mut info = Vec::new();
        attribute(&mut info, libc::IFLA_INFO_KIND, &text("veth"));
        attribute(&mut info, libc::IFLA_INFO_DATA, &data);
        let mut body = interface(0, 0);
        attribute(&mut body, libc::IFLA_IFNAME, &text(name));
        attribute(&mut body, libc::IFLA_LINKINFO, &info);
        self.request(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body)
            .with_context(|| format!("creating the veth pair {name}, {peer}"))
    }

    /// Adds an IPv4 address to a link.
    pub(crate) fn add_address(&mut self, name: &str, address: Ipv4Addr, prefix: u8) -> Result<()> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let mut body = vec![libc::AF_INET as u8, prefix, 0, libc::RT_SCOPE_UNIVERSE];
        body.extend_from_slice(&index(name)?.to_ne_bytes());
        attribute(&mut body, libc::IFA_LOCAL, &address.octets());
        attribute(&mut body, libc::IFA_ADDRESS, &address.octets());
        self.request(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL, &body)
            .with_context(|| format!("adding {address}/{prefix} to {name}"))
    }
}

impl Netlink<Rdma> {
    /// Creates a software RDMA device over a link (`rdma link add`).
    pub(crate) fn add_link(&mut self, name: &str, kind: &str, over: &str) -> Result<()> {
        let mut body = Vec::new();
        attribute(&mut body, RDMA_NLDEV_ATTR_DEV_NAME, &text(name));
        attribute(&mut body, RDMA_NLDEV_ATTR_NDEV_NAME, &text(over));
        attribute(&mut body, RDMA_NLDEV_ATTR_LINK_TYPE, &text(kind));
        self.request((RDMA_NL_NLDEV << 10) | RDMA_NLDEV_CMD_NEWLINK, 0, &body)
            .with_context(|| format!("adding {name} of type {kind} over {over}"))
    }
}
