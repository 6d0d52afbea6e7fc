//! Results of operations, and received datagrams.

use std::fmt;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{WcFlags, WorkCompletion};

use super::super::{Completed, Done, Failed, Outcome, Source};
use super::Datagrams;
use crate::ah::{AhAttr, Grh};
use crate::qp::GRH_BYTES;
use crate::{Error, Gid, Imm, Result};

/// A successful operation of [`Datagrams`], with its buffer.
#[derive(Debug)]
pub enum DatagramDone<B> {
    /// The device has sent a datagram. It may be lost.
    Sent(Done<B>),
    /// A datagram was received.
    Received(ReceivedDatagram<B>),
}

impl<B> DatagramDone<B> {
    /// Whether the operation was a receive.
    #[must_use]
    pub fn is_recv(&self) -> bool {
        matches!(self, Self::Received(_))
    }

    /// The received datagram. `None` if the operation was a send.
    #[must_use]
    pub fn into_received(self) -> Option<ReceivedDatagram<B>> {
        match self {
            Self::Received(received) => Some(received),
            Self::Sent(_) => None,
        }
    }
}

/// What a completion says about the sender.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sender {
    pub(super) qp_num: u32,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
    pub(super) has_grh: bool,
}

/// The sender of a datagram, such as a key of a map of peers. Nothing authenticates it: a sender
/// may forge all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DatagramSender {
    /// QPN of the sender.
    pub qp_num: u32,
    /// LID of the sender's port; 0 on RoCE.
    pub lid: u16,
    /// GID of the sender's port. `None` if the datagram has no GRH, which only InfiniBand allows.
    pub gid: Option<Gid>,
}

/// A received datagram, with its buffer.
pub struct ReceivedDatagram<B> {
    done: Done<B>,
    pub(super) sender: Sender,
}

impl<B> ReceivedDatagram<B> {
    pub(super) fn new(done: Done<B>, sender: Sender) -> Self {
        Self { done, sender }
    }

    /// The caller's number of the receive.
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.done.tag
    }

    /// Immediate data of the datagram.
    #[must_use]
    pub fn imm(&self) -> Option<Imm> {
        self.done.imm
    }

    /// The buffer. Its first 40 bytes are the GRH, or undefined.
    ///
    /// # Panics
    /// Never: each receive has a buffer.
    #[must_use]
    pub fn into_buffer(self) -> B {
        self.done.into_buffer()
    }
}

impl<B: Source> ReceivedDatagram<B> {
    /// The bytes that the device has written: 40 bytes for the GRH, then the message. `None` if the
    /// device reports an impossible length.
    fn bytes(&self) -> Option<&[u8]> {
        let bytes = self.done.buffer.as_ref()?.try_bytes()?;
        bytes.get(..usize::try_from(self.done.len).ok()?)
    }

    fn message_bytes(&self) -> Option<&[u8]> {
        self.bytes()?.get(GRH_BYTES..)
    }

    /// The message: the bytes behind the GRH.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        // `checked` has rejected impossible lengths.
        self.message_bytes().unwrap_or_default()
    }

    fn header(&self) -> Option<&[u8; GRH_BYTES]> {
        self.bytes()?.first_chunk()
    }

    /// The global route header. `None` if the datagram has none, which only InfiniBand allows, or if
    /// it is malformed.
    #[must_use]
    pub fn grh(&self) -> Option<Grh> {
        self.header().filter(|_| self.sender.has_grh).and_then(Grh::parse)
    }

    /// The sender.
    #[must_use]
    pub fn sender(&self) -> DatagramSender {
        let Sender { qp_num, slid, .. } = self.sender;
        DatagramSender { qp_num, lid: slid, gid: self.grh().map(|grh| grh.sgid) }
    }

    /// The path to the sender, for [`Pd::create_ah`](crate::Pd::create_ah). `datagrams` received the
    /// datagram.
    ///
    /// # Errors
    /// As for [`Context::ah_attr_from_wc`](crate::Context::ah_attr_from_wc).
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn ah_attr<A, P: Provider>(&self, datagrams: &Datagrams<A, P>) -> Result<AhAttr> {
        let Sender { slid, sl, dlid_path_bits, has_grh, .. } = self.sender;
        let wc_flags = if has_grh { WcFlags::GRH } else { WcFlags::empty() };
        let completion = WorkCompletion { slid, sl, dlid_path_bits, wc_flags, ..WorkCompletion::default() };
        let header = self.header().unwrap_or(&[0; GRH_BYTES]);
        let context = datagrams.queues.qp.pd().context();
        context.ah_attr_from_wc(datagrams.attr.port, &completion, header)
    }
}

/// Rejects a received datagram whose length is impossible.
pub(crate) fn checked<B: Source>(done: DatagramDone<B>) -> Completed<B, DatagramDone<B>> {
    match done {
        DatagramDone::Received(received) if received.message_bytes().is_none() => Err(received.failed()),
        done => Ok(done),
    }
}

/// The datagram of a receive.
pub(crate) fn received<B: Source>(done: DatagramDone<B>) -> Completed<B, ReceivedDatagram<B>> {
    match checked(done)? {
        DatagramDone::Received(received) => Ok(received),
        DatagramDone::Sent(_) => unreachable!("an operation of the receive queue"),
    }
}

/// The result of a send.
pub(super) fn sent<B>(done: DatagramDone<B>) -> Done<B> {
    match done {
        DatagramDone::Sent(done) => done,
        DatagramDone::Received(_) => unreachable!("an operation of the send queue"),
    }
}

impl<B: Source> ReceivedDatagram<B> {
    #[cold]
    #[inline(never)]
    fn failed(self) -> Failed<B> {
        let Done { tag, buffer, len, .. } = self.done;
        let max = buffer.as_ref().map_or(0, |buffer| buffer.length() as u64);
        let error = Error::DatagramLength { len, max };
        Failed::new(error, (buffer, tag), Outcome::Unknown, true)
    }
}

impl<B> fmt::Debug for ReceivedDatagram<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedDatagram")
            .field("done", &self.done)
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}
