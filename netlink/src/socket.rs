//! A netlink socket: requests and their responses.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bareverbs_uapi::netlink::{Attributes, Content, Malformed, MessageFlags, MessageWriter, messages};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::error::KernelError;
use crate::{Error, Result};

/// Size of the largest response: a dump of 32 KiB (`netlink_dump` in `net/netlink/af_netlink.c`).
/// Other responses are smaller.
pub(crate) const RESPONSE_BYTES: usize = 32 * 1024;

/// Size of the largest request: one that enables 200 optional counters.
const REQUEST_BYTES: usize = 2048;

/// A netlink socket for requests.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    seq: u32,
    answer: Vec<u8>,
}

impl Socket {
    /// Opens a netlink socket of `protocol`. `None`: rtnetlink (`NETLINK_ROUTE`, 0).
    pub(crate) fn open(what: &str, protocol: Option<Protocol>) -> Result<Self> {
        let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(|errno| Error::system(what, errno))?;
        report_reasons(fd.as_fd());
        Ok(Self { fd, seq: 0, answer: vec![0; RESPONSE_BYTES] })
    }

    /// Sends one request and calls `each` for every message of the response.
    pub(crate) fn request(
        &mut self,
        what: &str,
        kind: u16,
        flags: MessageFlags,
        fill: impl FnOnce(&mut MessageWriter<'_>),
        mut each: impl FnMut(&Attributes<'_>) -> Result<(), Malformed>,
    ) -> Result<()> {
        self.seq = self.seq.wrapping_add(1);
        let mut buffer = [0; REQUEST_BYTES];
        let mut writer = MessageWriter::new(&mut buffer);
        fill(writer.begin(kind, MessageFlags::REQUEST | flags, self.seq));
        let request =
            writer.finish().map_err(|error| Error::invalid("netlink", format!("{what}: {error}")))?;
        retry_on_intr(|| net::send(&self.fd, request, SendFlags::empty()))
            .map_err(|errno| Error::system(what, errno))?;

        // Only dumps and acknowledged requests end with a final message.
        let needs_ack = flags.intersects(MessageFlags::DUMP | MessageFlags::ACK);
        loop {
            let (_, length) = retry_on_intr(|| net::recv(&self.fd, &mut self.answer[..], RecvFlags::TRUNC))
                .map_err(|errno| Error::system(what, errno))?;
            let datagram = self.answer.get(..length).ok_or_else(|| {
                Error::malformed(what, format_args!("{length} bytes exceed the maximum of {RESPONSE_BYTES}"))
            })?;
            match read_answers(datagram, self.seq, &mut each) {
                Ok(Outcome::Ended) => return Ok(()),
                Ok(Outcome::Data) if !needs_ack => return Ok(()),
                Ok(Outcome::Data | Outcome::Nothing) => {}
                Ok(Outcome::Refused(errno, message)) => {
                    return Err(KernelError::new(what, errno, message).into());
                }
                Err(malformed) => return Err(Error::malformed(what, malformed)),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a non-blocking socket that receives the notifications of the multicast groups in the mask
/// `groups`.
pub(crate) fn subscribe(protocol: Option<Protocol>, groups: u32) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Requests the reasons of refused requests as text (extended acknowledgements). If the kernel has
/// none, errors lack the text.
fn report_reasons(fd: BorrowedFd<'_>) {
    let on: c_int = 1;
    // SAFETY: the kernel reads the four bytes of `on`, which outlives the call.
    let _ = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_EXT_ACK,
            (&raw const on).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
}

/// Outcome of a request, according to one datagram.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Nothing,
    Data,
    Ended,
    /// The errno, and the kernel's explanation if there is one.
    Refused(Errno, Option<String>),
}

pub(crate) fn read_answers(
    datagram: &[u8],
    seq: u32,
    each: &mut impl FnMut(&Attributes<'_>) -> Result<(), Malformed>,
) -> Result<Outcome, Malformed> {
    let mut outcome = Outcome::Nothing;
    for message in messages(datagram) {
        let message = message?;
        if message.header.seq != seq {
            continue;
        }
        match message.content()? {
            Content::Data => {
                each(&message.attributes())?;
                outcome = Outcome::Data;
            }
            Content::Acknowledged(_) => return Ok(Outcome::Ended),
            Content::Error(report) | Content::Done(report) => {
                let text = || report.message.map(str::to_owned);
                return Ok(match report.errno {
                    0 => Outcome::Ended,
                    // A value outside the errno range is a kernel bug. It must not panic.
                    errno @ 1..4096 => Outcome::Refused(Errno::from_raw_os_error(errno), text()),
                    _ => Outcome::Refused(Errno::PROTO, text()),
                });
            }
            Content::Noop => {}
            Content::Overrun => return Ok(Outcome::Refused(Errno::NOBUFS, None)),
        }
    }
    Ok(outcome)
}
