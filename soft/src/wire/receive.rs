//! Datagrams of a socket in batches, with the fields of their IP headers.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::sys::last_errno;

/// Most datagrams of one call.
const BATCH: usize = 32;
/// Room of a call after one that has found few datagrams.
const FEW: usize = 4;
/// Length of the largest packet: transport headers, 4096 bytes of payload, the ICRC.
const LARGEST: usize = 4096 + 128;
/// Length of a `sockaddr_in6`.
const NAME: usize = 28;

/// Room for the control messages of a datagram: TTL, TOS, and the count of lost datagrams.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 96]);

/// Buffers for the datagrams of one call.
pub(super) struct Batch {
    bytes: Box<[[u8; LARGEST]]>,
    names: [[u8; NAME]; BATCH],
    controls: [Control; BATCH],
    /// What the call gets: each call sets the pointers that it uses.
    vectors: [libc::iovec; BATCH],
    headers: [libc::mmsghdr; BATCH],
    /// Room of the next call, in datagrams: a small one is prepared sooner.
    room: usize,
}

/// A datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) source: SocketAddr,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    /// The number of datagrams that the socket has lost so far, if there is any.
    pub(super) lost: Option<u32>,
}

impl Batch {
    pub(super) fn new() -> Self {
        // SAFETY: all-zero is a valid value of these plain structs.
        let (vectors, headers) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Self {
            bytes: vec![[0; LARGEST]; BATCH].into(),
            names: [[0; NAME]; BATCH],
            controls: [Control([0; 96]); BATCH],
            vectors,
            headers,
            room: FEW,
        }
    }

    /// Takes datagrams from a socket, without waiting. `each` gets `None` for a datagram that is
    /// longer than any packet. Returns whether the socket may have more.
    pub(super) fn take(
        &mut self,
        socket: BorrowedFd<'_>,
        mut each: impl FnMut(Option<Datagram<'_>>),
    ) -> Result<bool, Errno> {
        let room = self.room;
        // Control messages end where a length is 0.
        self.controls[..room].fill(Control([0; 96]));
        for at in 0..room {
            let (vector, header) = (&mut self.vectors[at], &mut self.headers[at].msg_hdr);
            vector.iov_base = self.bytes[at].as_mut_ptr().cast();
            vector.iov_len = LARGEST;
            header.msg_name = self.names[at].as_mut_ptr().cast();
            header.msg_namelen = NAME as u32;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = self.controls[at].0.as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each of the first `room` headers points to a name, an I/O vector and control messages of
        // the given lengths, which nothing else uses during the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                room as u32,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            return match last_errno() {
                Errno::AGAIN => Ok(false),
                errno => Err(errno),
            };
        }
        let count = (count as usize).min(room);
        self.room = (2 * count).clamp(FEW, BATCH);
        for (at, header) in self.headers[..count].iter().enumerate() {
            let length = (header.msg_len as usize).min(LARGEST);
            let cut = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
            let Some(source) = address(&self.names[at]).filter(|_| !cut) else {
                each(None);
                continue;
            };
            let fields = Fields::of(&self.controls[at].0);
            each(Some(Datagram {
                bytes: &self.bytes[at][..length],
                source,
                hop_limit: fields.hop_limit,
                traffic_class: fields.traffic_class,
                lost: fields.lost,
            }));
        }
        Ok(count == room)
    }
}

/// The address in a `sockaddr_in` or `sockaddr_in6`.
fn address(name: &[u8; NAME]) -> Option<SocketAddr> {
    let field = |at: usize| -> [u8; 4] { std::array::from_fn(|byte| name[at + byte]) };
    let port = u16::from_be_bytes([name[2], name[3]]);
    match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(field(4))), port)),
        libc::AF_INET6 => {
            let octets: [u8; 16] = std::array::from_fn(|byte| name[8 + byte]);
            let scope = u32::from_ne_bytes(field(24));
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into())
        }
        _ => None,
    }
}

/// What control messages contain.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fields {
    hop_limit: u8,
    traffic_class: u8,
    lost: Option<u32>,
}

impl Fields {
    /// Parses control messages: each has its length, level and type, and its data.
    fn of(mut messages: &[u8]) -> Self {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        /// Place of the level, behind the length.
        const LEVEL: usize = HEADER - 8;
        let mut fields = Self::default();
        while let Some((header, rest)) = messages.split_at_checked(HEADER) {
            let number = |at: usize| i32::from_ne_bytes(std::array::from_fn(|byte| header[at + byte]));
            let length = usize::from_ne_bytes(std::array::from_fn(|byte| header[byte]));
            let Some(data) = length.checked_sub(HEADER).and_then(|length| rest.get(..length)) else { break };
            // Values are an int, or one byte.
            let value = match data {
                [byte] => u32::from(*byte),
                [a, b, c, d, ..] => u32::from_ne_bytes([*a, *b, *c, *d]),
                _ => 0,
            };
            match (number(LEVEL), number(LEVEL + 4)) {
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    fields.hop_limit = value as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    fields.traffic_class = value as u8;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => fields.lost = Some(value),
                _ => {}
            }
            messages = rest.get(data.len().next_multiple_of(size_of::<usize>())..).unwrap_or_default();
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut message = (size_of::<libc::cmsghdr>() + data.len()).to_ne_bytes().to_vec();
        message.extend_from_slice(&level.to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(data);
        message.resize(message.len().next_multiple_of(8), 0);
        message
    }

    #[test]
    fn control_messages_are_found_in_any_order() {
        let messages = [
            message(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &7u32.to_ne_bytes()),
            message(libc::IPPROTO_IP, libc::IP_TOS, &[0x1c]),
            message(libc::IPPROTO_IP, libc::IP_TTL, &64u32.to_ne_bytes()),
        ];
        let expected = Fields { hop_limit: 64, traffic_class: 0x1c, lost: Some(7) };
        assert_eq!(Fields::of(&messages.concat()), expected);
        assert_eq!(Fields::of(&[&messages[2][..], &messages[0], &messages[1]].concat()), expected);
    }

    proptest! {
        #[test]
        fn arbitrary_control_messages_end(bytes in proptest::collection::vec(any::<u8>(), 0..96), length in 0..64usize) {
            Fields::of(&bytes);
            let mut message = message(libc::IPPROTO_IP, libc::IP_TTL, &bytes);
            message[..8].copy_from_slice(&length.to_ne_bytes());
            Fields::of(&message);
        }
    }
}
