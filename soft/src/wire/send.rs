//! Packets on their way to a socket, in batches.

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrOpaque};
use rustix::net::{SendFlags, sendto};

use super::at;
use crate::sys::last_errno;

/// Most packets of one call: those up to an ACK.
const BATCH: usize = 32;

/// What a socket sends.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// The hop limit and traffic class that the socket has.
    pub(super) fields: Option<(u8, u8)>,
    pub(super) batch: Batch,
}

/// Packets to one address.
#[derive(Debug, Default)]
pub(super) struct Batch {
    to: Option<IpAddr>,
    /// Buffers, and how many of them have a packet.
    packets: Vec<Vec<u8>>,
    count: usize,
}

impl Batch {
    /// Whether there is room for a packet to this address.
    pub(super) fn takes(&self, to: IpAddr) -> bool {
        self.count == 0 || self.count < BATCH && self.to == Some(to)
    }

    /// The empty buffer of the next packet.
    pub(super) fn begin(&mut self, to: IpAddr) -> &mut Vec<u8> {
        self.to = Some(to);
        if self.count == self.packets.len() {
            self.packets.push(Vec::new());
        }
        let packet = &mut self.packets[self.count];
        packet.clear();
        packet
    }

    /// Adds the packet that was begun.
    pub(super) fn end(&mut self) {
        self.count += 1;
    }

    /// Sends the packets in order, and forgets them. Returns the number of packets that the kernel has
    /// refused, and the last error.
    pub(super) fn send(
        &mut self,
        socket: impl AsFd,
        interface: u32,
        mut flags: SendFlags,
    ) -> (u64, Option<Errno>) {
        let (mut refused, mut last_error) = (0, None);
        let Some(to) = self.to.take() else { return (0, None) };
        let mut left = &self.packets[..mem::take(&mut self.count)];
        while !left.is_empty() {
            let done = send_first(&socket, left, flags, &at(to, interface)).unwrap_or_else(|errno| {
                // The interface takes no packet now.
                flags.set(SendFlags::DONTWAIT, flags.contains(SendFlags::DONTWAIT) || errno == Errno::AGAIN);
                (refused, last_error) = (refused + 1, Some(errno));
                1
            });
            left = &left[done.clamp(1, left.len())..];
        }
        (refused, last_error)
    }
}

/// Sends the first of several packets, up to one that the kernel refuses. Returns their number. An error is
/// that of the very first one.
fn send_first(
    socket: impl AsFd,
    packets: &[Vec<u8>],
    flags: SendFlags,
    to: &SocketAddr,
) -> Result<usize, Errno> {
    // No list is prepared for one packet, such as an ACK.
    if let [packet] = packets {
        return sendto(socket, packet, flags, to).map(|_| 1);
    }
    let count = packets.len().min(BATCH);
    let mut vectors: [libc::iovec; BATCH] = std::array::from_fn(|at| {
        let packet = packets.get(at).map_or(&[][..], Vec::as_slice);
        libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() }
    });
    // SAFETY: all-zero is a valid value of this plain struct.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    let call = |name: *const SocketAddrOpaque, length| {
        for (header, vector) in headers.iter_mut().zip(&mut vectors) {
            let header = &mut header.msg_hdr;
            (header.msg_name, header.msg_namelen) = (name.cast_mut().cast(), length);
            (header.msg_iov, header.msg_iovlen) = (vector, 1);
        }
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: each of the first `count` headers points to an address and to an I/O vector of a packet,
        // which the kernel only reads during the call.
        unsafe { libc::sendmmsg(socket, headers.as_mut_ptr(), count as u32, flags.bits() as _) }
    };
    // SAFETY: the address is used during the call only.
    let sent = unsafe { to.with_sockaddr(call) };
    usize::try_from(sent).map_err(|_| last_errno())
}
