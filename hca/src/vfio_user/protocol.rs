//! Messages of vfio-user, protocol version 0.0 (QEMU's `docs/interop/vfio-user.rst`), over a Unix
//! socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};

/// Maximum number of file descriptors in one message.
pub(super) const MAX_FDS: usize = 16;
/// Maximum number of data bytes in one message.
pub(super) const MAX_TRANSFER: usize = 1 << 20;
const HEADER: usize = 16;
const LONGEST: usize = HEADER + 64 + MAX_TRANSFER;

/// Command numbers.
pub(super) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
}

/// A request.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: u16,
    pub(super) command: u16,
    pub(super) wants_reply: bool,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Fields of a request's body, read in order.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*field))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*field))
    }
}

/// Receives a request. Returns `None` at end of file. A malformed request is an error, after which
/// the connection must be closed.
pub(super) fn receive(socket: &UnixStream) -> io::Result<Option<Message>> {
    let mut header = [0; HEADER];
    let mut fds = Vec::new();
    let mut have = 0;
    while have < HEADER {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut header[have..])];
        let received = match recvmsg(socket, &mut room, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return if have == 0 { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        have += received.bytes;
    }
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (size, flags) = (word(4) as usize, word(8));
    if !(HEADER..=LONGEST).contains(&size) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {size} bytes")));
    }
    const KIND: u32 = 0xf;
    const NO_REPLY: u32 = 1 << 4;
    if flags & KIND != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an unexpected reply"));
    }
    let mut body = vec![0; size - HEADER];
    io::Read::read_exact(&mut &*socket, &mut body)?;
    Ok(Some(Message { id: half(0), command: half(2), wants_reply: flags & NO_REPLY == 0, body, fds }))
}

/// Sends the reply to a request: a body or an errno.
pub(super) fn reply(socket: &UnixStream, to: &Message, answer: Result<Vec<u8>, Errno>) -> io::Result<()> {
    let Some(bytes) = reply_bytes(to, answer) else { return Ok(()) };
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let mut none = SendAncillaryBuffer::default();
        match sendmsg(socket, &[IoSlice::new(rest)], &mut none, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => rest = &rest[sent?..],
        }
    }
    Ok(())
}

/// Encodes the reply to a request. Returns `None` if the peer wants no reply.
pub(super) fn reply_bytes(to: &Message, answer: Result<Vec<u8>, Errno>) -> Option<Vec<u8>> {
    const REPLY: u32 = 1;
    const ERROR: u32 = 1 << 5;
    if !to.wants_reply {
        return None;
    }
    let (flags, errno, body) = match answer {
        Ok(body) => (REPLY, 0, body),
        Err(Errno(errno)) => (REPLY | ERROR, errno, Vec::new()),
    };
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&to.id.to_le_bytes());
    bytes.extend_from_slice(&to.command.to_le_bytes());
    bytes.extend_from_slice(&((HEADER + body.len()) as u32).to_le_bytes());
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&errno.to_le_bytes());
    bytes.extend_from_slice(&body);
    Some(bytes)
}

/// An errno for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Errno(pub(super) u32);

impl Errno {
    pub(super) const INVALID: Self = Self(22);
    pub(super) const EXISTS: Self = Self(17);
    pub(super) const NO_SPACE: Self = Self(28);
    pub(super) const NOT_SUPPORTED: Self = Self(95);
}
