//! Safe posting: an operation owns its buffer until its completion is reaped.
//!
//! An [`Endpoint`] is a connected queue pair with its completion queue. What is posted to it moves in and comes back
//! with the completion, so that nobody can touch a buffer while the device uses it, even where an endpoint or a
//! result is forgotten:
//!
//! ```no_run
//! use bareverbs::owned::Endpoint;
//! use bareverbs::{Access, Buffer, Device};
//!
//! let pd = Device::first()?.open()?.alloc_pd()?;
//! let (mut alice, mut bob) = (Endpoint::new(&pd, 1, 16)?, Endpoint::new(&pd, 1, 16)?);
//! alice.connect(&bob.address())?;
//! bob.connect(&alice.address())?;
//!
//! bob.post_recv(pd.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE)?)?;
//! let mut hello = pd.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE)?;
//! hello.write(0, b"hello, bob")?;
//! alice.post_send(hello, ..10)?;
//!
//! assert_eq!(bob.wait()?.message(), Some(&b"hello, bob"[..]));
//! let hello = alice.wait()?.buffer;
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! A posted buffer is gone from its sender's hands:
//!
//! ```compile_fail,E0382
//! # use bareverbs::{Buffer, Mr, owned::Endpoint};
//! # fn touch(endpoint: &mut Endpoint, mut buffer: Mr<Buffer>) -> bareverbs::Result<()> {
//! endpoint.post_send(buffer, ..)?;
//! buffer.write(0, b"too late")?;
//! # Ok(())
//! # }
//! ```

#![expect(
    clippy::result_large_err,
    reason = "errors give the buffer back, and nothing is allocated for that"
)]

use std::fmt;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bareverbs_provider::contract::{DoorbellError, Provider};

use crate::{
    Access, AhAttr, AnyProvider, Arm, Buffer, CompChannel, Cq, CqInit, Error, Gid, InitAttr, Mr, Mtu,
    Operation, Payload, Pd, PostError, PostReason, Qp, QpCap, QpInit, QpState, Rc, RecvRequest, Remote,
    Result, RtrAttr, RtsAttr, SendFlags, SendRequest, Sge, WcOpcode, WcStatus, WorkCompletion,
};

/// A reliable connection whose operations own their buffers, each a region over an `M`.
///
/// With the first operation that fails, the connection has failed: those under way end with an error too, and no more
/// are taken.
///
/// Dropping it destroys the queue pair before it frees the buffers of operations that are not complete; forgetting it
/// leaks them.
pub struct Endpoint<M = Buffer, P: Provider = AnyProvider> {
    // Fields are dropped in this order: the queue pair goes before the buffers that it may be using.
    qp: Qp<Rc, P>,
    cq: Cq<P>,
    channel: CompChannel,
    /// Operations under way, at the index that is the request's `wr_id`.
    in_flight: Vec<Option<InFlight<M>>>,
    /// Indices of `in_flight` that are free.
    free: Vec<usize>,
    address: Address,
    port: u8,
    gid_index: u8,
    mtu: Mtu,
}

struct InFlight<M> {
    verb: &'static str,
    buffer: Mr<M>,
}

/// Where an endpoint is reached: what the two ends tell each other before they [connect](Endpoint::connect).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// GID of its port.
    pub gid: Gid,
    /// LID of its port; 0 on RoCE.
    pub lid: u16,
    /// Number of its queue pair.
    pub qp_num: u32,
    /// Number of the first packet that it sends.
    pub psn: u32,
}

impl<M, P: Provider> Endpoint<M, P> {
    /// Makes an endpoint at `port`, counted from 1, that can have `depth` sends and `depth` receives under way. It uses
    /// the port's [default GID](crate::Context::default_gid).
    ///
    /// # Errors
    /// The port does not exist or has no address; `depth` is 0 or beyond the device's limits; the kernel refuses.
    pub fn new(pd: &Pd<P>, port: u8, depth: u32) -> Result<Self> {
        let context = pd.context();
        let attr = context.query_port(port.into())?;
        let gid = context.default_gid(port.into())?;
        let gid_index = u8::try_from(gid.index).map_err(|_| context.no_gid(port.into(), gid.index))?;
        let entries = depth.checked_mul(2).ok_or_else(|| {
            Error::invalid("Endpoint::new", format!("a depth of {depth} is beyond any device's"))
        })?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(entries) })?;
        let cap = QpCap { max_send_wr: depth, max_recv_wr: depth, ..QpCap::default() };
        let mut qp = pd.create_qp::<Rc>(&QpInit { cap, signal_all: true, ..QpInit::new(&cq, &cq) })?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        qp.init(&InitAttr { access, ..InitAttr::new(port) })?;
        let address = Address { gid: gid.gid, lid: attr.lid, qp_num: qp.qp_num(), psn: qp.qp_num() };
        // The queues may be deeper than asked for; what does not fit here is refused as if they were full.
        let slots = entries as usize;
        Ok(Self {
            qp,
            cq,
            channel,
            in_flight: std::iter::repeat_with(|| None).take(slots).collect(),
            free: (0..slots).rev().collect(),
            address,
            port,
            gid_index,
            mtu: attr.active_mtu,
        })
    }

    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(crate) fn channel(&self) -> &CompChannel {
        &self.channel
    }

    /// Where this end is reached.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The queue pair.
    #[must_use]
    pub fn qp(&self) -> &Qp<Rc, P> {
        &self.qp
    }

    /// Connects to the endpoint at `peer`, which has to connect to this one. Receives can be posted before, sends only
    /// after.
    ///
    /// Both ends use the smaller of their ports' MTUs only where these are equal; see [`Endpoint::set_mtu`].
    ///
    /// # Errors
    /// It is connected already; there is no way to the peer; the kernel refuses.
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        let address = AhAttr { dlid: peer.lid, ..AhAttr::global(self.port, peer.gid, self.gid_index) };
        self.qp.ready_to_receive(&RtrAttr {
            rq_psn: peer.psn,
            path_mtu: self.mtu,
            ..RtrAttr::new(address, peer.qp_num)
        })?;
        self.qp.ready_to_send(&RtsAttr { sq_psn: self.address.psn, ..RtsAttr::default() })
    }

    /// Sets the path MTU, which must be the same at both ends; without it, that is the port's active one.
    pub fn set_mtu(&mut self, mtu: Mtu) {
        self.mtu = mtu;
    }

    /// Posts `buffer` for one message, which may fill all of it.
    ///
    /// # Errors
    /// The request is refused; the error gives the buffer back.
    pub fn post_recv(&mut self, buffer: Mr<M>) -> Result<(), Refused<M>> {
        self.post("recv", buffer, .., |qp, wr_id, sge| {
            // SAFETY: the buffer lies in `in_flight`, where nobody touches it, until its completion is reaped or the
            // queue pair is destroyed.
            unsafe { qp.post_recv(&[RecvRequest { wr_id, sges: &[sge] }]) }
        })
    }

    /// Posts the bytes of `buffer` in `range` as one message.
    ///
    /// # Errors
    /// The request is refused; the error gives the buffer back.
    pub fn post_send(&mut self, buffer: Mr<M>, range: impl RangeBounds<usize>) -> Result<(), Refused<M>> {
        self.post_operation("send", buffer, range, Operation::Send)
    }

    /// Posts a write of the bytes of `buffer` in `range` to the peer's memory.
    ///
    /// # Errors
    /// The request is refused; the error gives the buffer back.
    pub fn post_write(
        &mut self,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        remote: Remote,
    ) -> Result<(), Refused<M>> {
        self.post_operation("write", buffer, range, Operation::Write(remote))
    }

    /// Posts a read of the peer's memory into the bytes of `buffer` in `range`.
    ///
    /// # Errors
    /// The request is refused; the error gives the buffer back.
    pub fn post_read(
        &mut self,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        remote: Remote,
    ) -> Result<(), Refused<M>> {
        self.post_operation("read", buffer, range, Operation::Read(remote))
    }

    fn post_operation(
        &mut self,
        verb: &'static str,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        operation: Operation,
    ) -> Result<(), Refused<M>> {
        self.post(verb, buffer, range, |qp, wr_id, sge| {
            let payload = Payload::Sges(&[sge]);
            let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: the buffer lies in `in_flight`, where nobody touches it, until its completion is reaped or the
            // queue pair is destroyed.
            unsafe { qp.post_send(&[request]) }
        })
    }

    fn post(
        &mut self,
        verb: &'static str,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        post: impl FnOnce(&mut Qp<Rc, P>, u64, Sge) -> Result<(), PostError>,
    ) -> Result<(), Refused<M>> {
        let sge = match buffer.sge(range) {
            Ok(sge) => sge,
            Err(error) => return Err(Refused { error, buffer }),
        };
        if self.qp.state() == QpState::ERR {
            let reason = "the connection has failed: make a new endpoint";
            return Err(Refused { error: Error::invalid(verb, reason), buffer });
        }
        let Some(slot) = self.free.pop() else {
            let reason = format!("{} operations are under way: wait for one first", self.in_flight.len());
            return Err(Refused { error: Error::invalid(verb, reason), buffer });
        };
        match post(&mut self.qp, slot as u64, sge) {
            // A request that counts as posted completes, also where its doorbell was refused.
            Ok(()) | Err(PostError { reason: PostReason::Doorbell(DoorbellError::Posted(_)), .. }) => {
                self.in_flight[slot] = Some(InFlight { verb, buffer });
                Ok(())
            }
            Err(error) => {
                self.free.push(slot);
                Err(Refused { error: error.into(), buffer })
            }
        }
    }

    /// How many operations are under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Takes an operation that has ended, if there is one.
    pub fn poll(&mut self) -> Option<Result<Done<M>, Failed<M>>> {
        let completion = self.cq.poll_one()?;
        let slot = usize::try_from(completion.wr_id).ok()?;
        // A completion of nothing that was posted is a device's mistake; there is no buffer to give back for it.
        let InFlight { verb, buffer } = self.in_flight.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(if completion.status == WcStatus::SUCCESS {
            Ok(Done { completion, buffer })
        } else {
            let WorkCompletion { wr_id, mut status, vendor_err, .. } = completion;
            if let Some(failure) = self.qp.failure().filter(|failure| failure.wr_id == wr_id) {
                status = failure.status;
            }
            if self.qp.state() != QpState::ERR {
                // Receives that were posted after the queue pair had failed are looked at only when it is told to fail. Where
                // it cannot be told, the device is gone.
                let _ = self.qp.set_error();
            }
            Err(Failed { error: Error::Completion { verb, status, vendor_err }, buffer: Some(buffer) })
        })
    }

    /// Sleeps until an operation ends.
    ///
    /// # Errors
    /// The operation failed, and the error gives the buffer back; none is under way; the device is gone.
    pub fn wait(&mut self) -> Result<Done<M>, Failed<M>> {
        loop {
            // An unending wait ends with an operation.
            if let Some(done) = self.wait_until(None)? {
                return Ok(done);
            }
        }
    }

    /// Sleeps until an operation ends, but no longer than `timeout`.
    ///
    /// # Errors
    /// As for [`Endpoint::wait`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Done<M>>, Failed<M>> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&mut self, end: Option<Instant>) -> Result<Option<Done<M>>, Failed<M>> {
        loop {
            if let Some(ended) = self.poll() {
                return ended.map(Some);
            }
            if self.pending() == 0 {
                return Err(Error::invalid("wait", "no operation is under way").into());
            }
            self.cq.arm(Arm::Any)?;
            if let Some(ended) = self.poll() {
                return ended.map(Some);
            }
            match end {
                None => {
                    self.channel.get_event()?;
                }
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if self.channel.get_event_timeout(left)?.is_none() {
                        return self.poll().transpose();
                    }
                }
            }
        }
    }

    /// Makes the descriptor readable at the next end of an operation; poll once more after this and before waiting
    /// for it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn arm(&mut self) -> Result<()> {
        // What was told of earlier ends must not be taken for news.
        while self.channel.try_get_event()?.is_some() {}
        self.cq.arm(Arm::Any)
    }
}

impl<M, P: Provider> AsFd for Endpoint<M, P> {
    /// The descriptor that [`Endpoint::arm`] is about.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// An operation that ended well, with its buffer.
pub struct Done<M> {
    /// What completed.
    pub completion: WorkCompletion,
    /// Its buffer.
    pub buffer: Mr<M>,
}

impl<M> Done<M> {
    /// The message, where the operation was a receive and the buffer one that peers cannot write by themselves.
    #[must_use]
    pub fn message(&self) -> Option<&[u8]> {
        (self.completion.opcode == WcOpcode::RECV).then(|| self.buffer.bytes())?.and_then(|bytes| {
            let length = usize::try_from(self.completion.byte_len).ok()?;
            bytes.get(..length)
        })
    }
}

/// An operation that failed.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Failed<M> {
    /// Why.
    #[source]
    pub error: Error,
    /// Its buffer; none where no single operation failed.
    pub buffer: Option<Mr<M>>,
}

impl<M> From<Error> for Failed<M> {
    fn from(error: Error) -> Self {
        Self { error, buffer: None }
    }
}

impl<M> From<Failed<M>> for Error {
    fn from(failed: Failed<M>) -> Self {
        failed.error
    }
}

/// An operation that was not posted, with its buffer.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<M> {
    /// Why.
    #[source]
    pub error: Error,
    /// Its buffer.
    pub buffer: Mr<M>,
}

impl<M> From<Refused<M>> for Error {
    fn from(refused: Refused<M>) -> Self {
        refused.error
    }
}

impl<M, P: Provider> fmt::Debug for Endpoint<M, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("state", &self.qp.state())
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

// By hand, so that they can be printed whatever the memory is.
macro_rules! debug {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl<M> fmt::Debug for $name<M> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }
    )*};
}

debug! {
    Done { completion, buffer }
    Failed { error, buffer }
    Refused { error, buffer }
}
