//! Safe posting: an operation owns its buffer until its completion is polled.
//!
//! An [`Endpoint`] is a connected QP with its CQ. A posted buffer moves into the endpoint and comes
//! back with its completion, so safe code can't touch a buffer while the device uses it.
//! `mem::forget` of an endpoint or a result leaks the buffer. The buffer then stays registered and
//! valid.
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
//! The sender can't reach a posted buffer:
//!
//! ```compile_fail,E0382
//! # use bareverbs::{Buffer, Mr, owned::Endpoint};
//! # fn touch(endpoint: &mut Endpoint, mut buffer: Mr<Buffer>) -> bareverbs::Result<()> {
//! endpoint.post_send(buffer, ..)?;
//! buffer.write(0, b"too late")?;
//! # Ok(())
//! # }
//! ```
//!
//! Borrowed memory can't be posted here. `mem::forget` of an endpoint ends the borrow while the
//! device still uses the memory. So posting requires a [`MemoryOwner`], which
//! [`Borrowed`](crate::Borrowed) does not implement:
//!
//! ```compile_fail,E0599
//! # use bareverbs::{Borrowed, Mr, owned::Endpoint};
//! # fn lend<'a>(endpoint: &mut Endpoint<Borrowed<'a>>, buffer: Mr<Borrowed<'a>>) {
//! endpoint.post_recv(buffer).unwrap();
//! # }
//! ```
//!
//! ```compile_fail,E0599
//! # use bareverbs::{Borrowed, Mr, owned::Endpoint};
//! # fn lend<'a>(endpoint: &mut Endpoint<Borrowed<'a>>, buffer: Mr<Borrowed<'a>>) {
//! endpoint.post_send(buffer, ..).unwrap();
//! # }
//! ```
//!
//! [`RawMemory`](crate::RawMemory) does not own its bytes and does not implement it either:
//!
//! ```compile_fail,E0599
//! # use bareverbs::{Mr, RawMemory, owned::Endpoint};
//! # fn lend(endpoint: &mut Endpoint<RawMemory>, buffer: Mr<RawMemory>) {
//! endpoint.post_recv(buffer).unwrap();
//! # }
//! ```

#![expect(clippy::result_large_err, reason = "errors return the buffer without an allocation")]

mod address;
mod buffer;
mod exposed;
mod in_flight;
mod part;
mod pool;

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;

pub use self::address::{Address, ParseAddressError};
use self::buffer::checked_sge;
use self::in_flight::{InFlight, Operations};
use crate::{
    Access, AnyProvider, Arm, Buffer, CompChannel, ConnectAttr, Cq, CqInit, Error, InitAttr, MemoryOwner, Mr,
    Operation, Payload, Pd, PortNum, PostError, Qp, QpCap, QpInit, QpState, Rc, RecvRequest, Remote, Result,
    SendFlags, SendRequest, Sge, WcOpcode, WcStatus, WorkCompletion,
};

pub use self::buffer::{AnyBuffer, Source, Target};
pub use self::exposed::{ExposeError, Exposed, RevokeError, Word};
pub use self::part::{Chunks, Part, PartError, Shared};
pub use self::pool::{Lease, Pool};

/// A reliable connection whose operations own their buffers. Each buffer is an MR over an `M`.
///
/// The first failed operation moves the QP to ERR. All operations in flight then fail, and posting
/// is rejected.
///
/// The endpoint accepts MRs of its own protection domain only: [`Qp::pd`] of [`Endpoint::qp`].
///
/// # Connection
///
/// | attribute | value |
/// |---|---|
/// | access of the peer | `REMOTE_READ` and `REMOTE_WRITE`, to MRs that allow it |
/// | `timeout`, `retry_cnt`, `rnr_retry` | [`RtsAttr::default`](crate::RtsAttr::default) |
/// | `max_rd_atomic`, `max_dest_rd_atomic` | the smaller of both addresses' `rd_atomic` |
/// | path MTU | the smaller of both addresses' `mtu` |
///
/// Both ends must be connected before the first send.
///
/// Drop destroys the QP before it frees the buffers of operations in flight. `mem::forget` leaks
/// the buffers. Drop leaks them too if the kernel refuses to destroy the QP, because the device may
/// still use them.
///
/// # Validation of completions
///
/// Each operation has a unique `wr_id`: the slot, and the number of times that the slot was used. A
/// completion with any other `wr_id` (never posted, of an earlier operation, or a duplicate)
/// returns no buffer. It moves the QP to ERR and is reported as [`Error::UnknownCompletion`].
///
/// The endpoint cannot detect a device that reports success for an operation in flight before it
/// has finished. The provider guarantees that its devices don't.
///
/// # Errors of posting
///
/// `post_recv`, `post_send`, `post_write` and `post_read` fail with [`PostOwnedError`]. It holds
/// the buffer and one of these errors:
///
/// | [`PostOwnedError::error`] | cause |
/// |---|---|
/// | [`Error::Invalid`] | The range is beyond the MR, or longer than 4 GiB. |
/// | [`Error::Invalid`] | The MR belongs to another protection domain. |
/// | [`Error::Invalid`] | On Soft-RoCE: the MR has `ON_DEMAND` and is not page-aligned. |
/// | [`Error::Invalid`] | The QP is in ERR. |
/// | [`Error::Invalid`] | The endpoint has no free slot: its maximum of operations is in flight. |
/// | [`Error::Post`], [`PostReason::State`] | A send, write or read before [`Endpoint::connect`]. |
/// | [`Error::Post`], [`PostReason::Queue`] | The queue is full, or the operation is unsupported. |
/// | [`Error::Post`], [`PostReason::Doorbell`] | The kernel refused the doorbell, and the request was taken back. |
///
/// If the kernel refused the doorbell but may still execute the request, posting returns `Ok`: the
/// operation is in flight.
///
/// # Device removal
///
/// After the device was removed, posting may return `Ok`, because queues are memory.
/// [`Endpoint::poll`] finds no new completions. [`Endpoint::wait`], [`Endpoint::wait_timeout`] and
/// [`Endpoint::arm`] fail with `EIO` from the kernel: [`Error::Kernel`] if the kernel arms the CQ
/// (Soft-RoCE), else [`Error::System`]. [`Failed::buffer`] is `None`.
///
/// Drop leaks the buffers in flight, because the kernel refuses to destroy the QP.
/// [`Context::async_events`](crate::Context::async_events) reports
/// [`EventType::DEVICE_FATAL`](crate::EventType::DEVICE_FATAL).
///
/// [`PostReason::State`]: crate::PostReason::State
/// [`PostReason::Queue`]: crate::PostReason::Queue
/// [`PostReason::Doorbell`]: crate::PostReason::Doorbell
pub struct Endpoint<M = Buffer, P: Provider = AnyProvider> {
    qp: Qp<Rc, P>,
    cq: Cq<P>,
    channel: CompChannel,
    /// Dropped after the QP is destroyed: see `Drop`.
    operations: Operations<InFlight<M>>,
    address: Address,
    attr: ConnectAttr,
    /// Whether a completion failed or matched no operation. No operation is posted then, even if
    /// the kernel refused the transition to ERR.
    failed: bool,
}

impl<M, P: Provider> Endpoint<M, P> {
    /// Creates an endpoint at `port` for `depth` sends and `depth` receives in
    /// flight. It uses the port's [default GID](crate::Context::default_gid).
    ///
    /// # Errors
    /// - [`Error::NoPort`]: the device has no such port.
    /// - [`Error::NoGid`]: the port has no GID.
    /// - [`Error::Invalid`]: `depth` is 0.
    /// - [`Error::Limit`]: `depth` is above the device's limits.
    /// - [`Error::Kernel`], [`Error::Provider`]: a command of the setup failed.
    pub fn new(pd: &Pd<P>, port: impl Into<PortNum>, depth: u32) -> Result<Self> {
        let (context, port) = (pd.context(), port.into());
        let gid_index = context.default_gid(port)?.index;
        let limits = context.limits();
        let max = limits.max_qp_wr.min(limits.max_cqe / 2);
        Error::check_limit("Endpoint::new", "depth", depth.into(), max.into())?;
        let entries = 2 * depth;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(entries) })?;
        let cap = QpCap { max_send_wr: depth, max_recv_wr: depth, ..QpCap::default() };
        let mut qp = pd.create_qp::<Rc>(&QpInit { cap, signal_all: true, ..QpInit::new(&cq, &cq) })?;
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        qp.init(&InitAttr { access, ..InitAttr::new(port) })?;
        Ok(Self {
            address: qp.address(port, gid_index)?,
            attr: ConnectAttr { access, ..ConnectAttr::new(port, gid_index) },
            qp,
            cq,
            channel,
            // The rings may be deeper than requested. `operations` limits the depth to `entries`.
            operations: Operations::new(entries),
            failed: false,
        })
    }

    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(crate) fn channel(&self) -> &CompChannel {
        &self.channel
    }

    /// The address of this endpoint, for the peer.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The QP.
    #[must_use]
    pub fn qp(&self) -> &Qp<Rc, P> {
        &self.qp
    }

    /// Connects to the endpoint at `peer`, which must also connect to this one. Receives can be
    /// posted before, sends only afterwards.
    ///
    /// The connection uses the smaller MTU of the two addresses, and the smaller number of reads and
    /// atomics at a time.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the endpoint is already connected, or `peer` is not a valid address.
    /// - [`Error::Kernel`]: the peer is unreachable, or the kernel rejects a transition.
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        self.qp.connect(&self.address, peer, &self.attr)
    }

    /// The number of operations in flight.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.operations.len()
    }

    /// Polls one completion and returns its operation, or `None` if the CQ is empty.
    ///
    /// # Errors
    /// - [`Error::Completion`]: the operation failed. The error returns the buffer.
    /// - [`Error::UnknownCompletion`]: the completion matches no operation in flight. It has no
    ///   buffer.
    pub fn poll(&mut self) -> Option<Result<Done<M>, Failed<M>>> {
        let completion = self.cq.poll_one()?;
        let ended = self.operations.take(completion.wr_id);
        let failed = ended.is_none() || completion.status != WcStatus::SUCCESS;
        self.failed |= failed;
        if failed && self.qp.state() != QpState::ERR {
            // Soft-RoCE flushes receives that were posted after the QP had failed only on a
            // transition to ERR. If the kernel refuses it, the device is gone.
            let _ = self.qp.set_error();
        }
        let WorkCompletion { wr_id, mut status, vendor_err, .. } = completion;
        let Some(InFlight { verb, buffer }) = ended else {
            return Some(Err(Error::UnknownCompletion { wr_id }.into()));
        };
        if !failed {
            return Some(Ok(Done { completion, buffer }));
        }
        if let Some(failure) = self.qp.failure().filter(|failure| failure.wr_id == wr_id) {
            status = failure.status;
        }
        Some(Err(Failed {
            error: Error::Completion { verb, status, vendor_err, driver: self.qp.pd().context().driver() },
            buffer: Some(buffer),
        }))
    }

    /// Blocks until an operation completes.
    ///
    /// # Errors
    /// - [`Error::Completion`] and [`Error::UnknownCompletion`], as for [`Endpoint::poll`].
    /// - [`Error::Invalid`]: no operation is in flight.
    /// - [`Error::Kernel`] or [`Error::System`] with `EIO`: [the device was
    ///   removed](Endpoint#device-removal).
    /// - [`Error::Kernel`] with `ESTALE`: this process was forked from the one that opened the
    ///   device.
    pub fn wait(&mut self) -> Result<Done<M>, Failed<M>> {
        loop {
            // Without a timeout, `wait_until` returns only with an operation.
            if let Some(done) = self.wait_until(None)? {
                return Ok(done);
            }
        }
    }

    /// Blocks until an operation completes, at most for `timeout`. Returns `Ok(None)` on a timeout.
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
                return Err(Error::invalid("Endpoint::wait", "no operation is outstanding").into());
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

    /// Arms the CQ: the file descriptor becomes readable at the next completion. Poll once more
    /// after this call and before waiting on the descriptor.
    ///
    /// # Errors
    /// [`Error::Kernel`] or [`Error::System`], as for [`Endpoint::wait`].
    pub fn arm(&mut self) -> Result<()> {
        // Discards events of earlier completions.
        while self.channel.try_get_event()?.is_some() {}
        self.cq.arm(Arm::Any)
    }
}

impl<M: MemoryOwner + Send + 'static, P: Provider> Endpoint<M, P> {
    /// Posts `buffer` for one message of up to its whole length.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_recv(&mut self, buffer: Mr<M>) -> Result<(), PostOwnedError<M>> {
        self.post("Endpoint::post_recv", buffer, .., |qp, wr_id, sge| {
            // SAFETY: `post` has moved the MR into `operations`. It stays there, registered and
            // untouched, until the provider reports the completion of `wr_id` or `Drop` has
            // destroyed the QP. If the endpoint is forgotten or the kernel refuses to destroy the
            // QP, the MR is leaked. The bytes outlive that: `M` is a `MemoryOwner`, whose bytes
            // stay valid for ever if it is forgotten. `post` has also checked that the MR belongs
            // to this QP's protection domain, so its keys name this MR.
            unsafe { qp.post_recv(&[RecvRequest { wr_id, sges: &[sge] }]) }
        })
    }

    /// Posts the bytes of `buffer` in `range` as one message.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_send(
        &mut self,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
    ) -> Result<(), PostOwnedError<M>> {
        self.post_operation("Endpoint::post_send", buffer, range, Operation::Send)
    }

    /// Posts a write of the bytes of `buffer` in `range` to the peer's memory.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_write(
        &mut self,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        remote: Remote,
    ) -> Result<(), PostOwnedError<M>> {
        self.post_operation("Endpoint::post_write", buffer, range, Operation::Write(remote))
    }

    /// Posts a read of the peer's memory into the bytes of `buffer` in `range`.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the buffer.
    pub fn post_read(
        &mut self,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        remote: Remote,
    ) -> Result<(), PostOwnedError<M>> {
        self.post_operation("Endpoint::post_read", buffer, range, Operation::Read(remote))
    }

    fn post_operation(
        &mut self,
        verb: &'static str,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        operation: Operation,
    ) -> Result<(), PostOwnedError<M>> {
        self.post(verb, buffer, range, |qp, wr_id, sge| {
            let payload = Payload::Sges(&[sge]);
            let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: `post` has moved the MR into `operations`. It stays there, registered and
            // untouched, until the provider reports the completion of `wr_id` or `Drop` has
            // destroyed the QP. If the endpoint is forgotten or the kernel refuses to destroy the
            // QP, the MR is leaked. The bytes outlive that: `M` is a `MemoryOwner`, whose bytes
            // stay valid for ever if it is forgotten. `post` has also checked that the MR belongs
            // to this QP's protection domain, so its keys name this MR.
            unsafe { qp.post_send(&[request]) }
        })
    }

    fn post(
        &mut self,
        verb: &'static str,
        buffer: Mr<M>,
        range: impl RangeBounds<usize>,
        post: impl FnOnce(&mut Qp<Rc, P>, u64, Sge) -> Result<(), PostError>,
    ) -> Result<(), PostOwnedError<M>> {
        let sge = match checked_sge(verb, &buffer, self.qp.pd().domain(), range) {
            Ok(sge) => sge,
            Err(error) => return Err(PostOwnedError { error, buffer }),
        };
        if self.failed || self.qp.state() == QpState::ERR {
            let reason = "the connection has failed: create a new endpoint";
            return Err(PostOwnedError { error: Error::invalid(verb, reason), buffer });
        }
        // The endpoint owns the buffer before the device learns of it, so a panic in between does
        // not free it.
        let wr_id = match self.operations.insert(InFlight { verb, buffer }) {
            Ok(wr_id) => wr_id,
            Err(InFlight { buffer, .. }) => {
                let reason =
                    format!("{} operations are outstanding: wait for one of them first", self.pending());
                return Err(PostOwnedError { error: Error::invalid(verb, reason), buffer });
            }
        };
        match post(&mut self.qp, wr_id, sge) {
            Ok(()) => Ok(()),
            // A request that counts as posted will complete, even if its doorbell was refused.
            Err(error) if error.accepted > 0 => Ok(()),
            Err(error) => match self.operations.take(wr_id) {
                Some(InFlight { buffer, .. }) => Err(PostOwnedError { error: error.into(), buffer }),
                None => unreachable!("the operation was inserted above"),
            },
        }
    }
}

impl<M, P: Provider> Drop for Endpoint<M, P> {
    fn drop(&mut self) {
        // Not dropped, even if destroying the QP panics.
        let mut operations = ManuallyDrop::new(mem::take(&mut self.operations));
        // SAFETY: `self` owns the QP, is being dropped and does not use the QP otherwise.
        if unsafe { self.qp.destroy_inner() }.is_ok() {
            // SAFETY: `operations` is not used after this.
            unsafe { ManuallyDrop::drop(&mut operations) };
        }
    }
}

impl<M, P: Provider> AsFd for Endpoint<M, P> {
    /// The file descriptor that [`Endpoint::arm`] makes readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A successful operation, with its buffer.
pub struct Done<M> {
    /// The work completion.
    pub completion: WorkCompletion,
    /// Its buffer.
    pub buffer: Mr<M>,
}

impl<M> Done<M> {
    /// The received message. `None` if the operation was not a receive, or if the MR is writable by
    /// peers.
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
    /// The cause.
    #[source]
    pub error: Error,
    /// The buffer. `None` if the error belongs to no operation in flight, such as
    /// [`Error::UnknownCompletion`].
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
pub struct PostOwnedError<M> {
    /// The cause.
    #[source]
    pub error: Error,
    /// The buffer.
    pub buffer: Mr<M>,
}

impl<M> From<PostOwnedError<M>> for Error {
    fn from(refused: PostOwnedError<M>) -> Self {
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

// Written by hand, so that `M` need not implement `Debug`.
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
    PostOwnedError { error, buffer }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bareverbs_provider::device::IoctlError;
    use rustix::io::Errno;

    use super::*;
    use crate::testing::{Plain, completion};
    use crate::{DriverId, Gid, ImplicitMr, RegisterError};

    /// Memory that counts how often it is freed.
    struct Counted(Vec<u8>, Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    // SAFETY: the heap block of the vector does not move with the vector, and is never freed if the
    // vector is forgotten.
    unsafe impl MemoryOwner for Counted {
        fn region(&mut self) -> (NonNull<u8>, usize) {
            // From the second byte on: not page-aligned.
            (NonNull::from(&mut self.0[1..]).cast(), self.0.len() - 1)
        }
    }

    #[test]
    fn rxe_odp_mr_must_be_page_aligned() {
        let mut setup = Setup::of(DriverId::RXE);
        let pd = setup.endpoint.qp.pd().clone();
        setup.region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE | Access::ON_DEMAND);
        let mut memory = Buffer::zeroed(64).unwrap();
        let (start, _) = memory.region();
        // SAFETY: within the buffer.
        let within_page = unsafe { start.add(1) };
        for (start, refused) in [(start, false), (within_page, true)] {
            let part = setup.region.part(Placed(start)).map_err(|failed| failed.error).unwrap();
            assert_eq!(part.check_odp_bounds("Endpoint::post_recv").is_err(), refused);
            for right in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
                let rights = Access::LOCAL_WRITE | right | Access::ON_DEMAND;
                let failed = pd.register(Placed(start), rights).map_err(|failed| failed.error).unwrap_err();
                assert_eq!(matches!(failed, Error::Invalid { .. }), refused, "{right:?}: {failed}");
            }
        }
        let part = setup.region.part(Counted(vec![0; 64], Arc::default())).map_err(|failed| failed.error);
        let refused = setup.endpoint.post_recv(part.unwrap()).unwrap_err();
        assert!(refused.to_string().contains("without ON_DEMAND"), "{refused}");
        assert!(setup.plain.log().received.is_empty());
    }

    /// 32 bytes at a given address.
    struct Placed(NonNull<u8>);

    // SAFETY: the only test that uses it keeps the buffer of these bytes.
    unsafe impl MemoryOwner for Placed {
        fn region(&mut self) -> (NonNull<u8>, usize) {
            (self.0, 32)
        }
    }

    struct Setup {
        plain: Plain,
        region: ImplicitMr,
        endpoint: Endpoint<Counted, Plain>,
        freed: Arc<AtomicUsize>,
    }

    impl Setup {
        fn new() -> Self {
            Self::of(DriverId::UNKNOWN)
        }

        fn of(driver: DriverId) -> Self {
            let plain = Plain::default();
            let pd = plain.domain_of(driver);
            let context = pd.context();
            let endpoint = Endpoint {
                qp: plain.queue_pair(&pd),
                cq: context.create_cq(&CqInit::new(8)).unwrap(),
                channel: CompChannel::for_test(context.file()),
                operations: Operations::new(4),
                address: Address::new(Gid::default(), 1),
                attr: ConnectAttr::new(1, 0),
                failed: false,
            };
            let region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
            Self { plain, region, endpoint, freed: Arc::default() }
        }

        /// A part of an implicit MR. Dropping it frees its memory without a kernel command.
        fn buffer(&self) -> Mr<Counted> {
            let part = self.region.part(Counted(vec![7; 16], Arc::clone(&self.freed)));
            part.map_err(|RegisterError { error, .. }| error).unwrap()
        }

        fn freed(&self) -> usize {
            self.freed.load(Ordering::Relaxed)
        }

        /// Posts a receive and returns its `wr_id`.
        fn post(&mut self) -> u64 {
            let buffer = self.buffer();
            self.endpoint.post_recv(buffer).unwrap();
            *self.plain.log().received.last().unwrap()
        }

        fn complete(&self, wr_id: u64, status: WcStatus) {
            self.plain.log().completions.push_back(completion(wr_id, status));
        }

        /// Polls a completion of an operation that is not in flight.
        fn poll_unknown(&mut self, expected: u64) {
            let failed = self.endpoint.poll().unwrap().unwrap_err();
            assert!(
                matches!(failed.error, Error::UnknownCompletion { wr_id } if wr_id == expected),
                "{failed}"
            );
            assert!(failed.buffer.is_none());
        }
    }

    #[test]
    fn mr_of_another_pd_is_rejected_and_returned() {
        let mut setup = Setup::new();
        let same_context = setup.endpoint.qp.pd().context().alloc_pd().unwrap();
        let other_context = setup.plain.domain();
        for pd in [&same_context, &other_context] {
            setup.region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
            let remote = Remote { addr: 0, rkey: 1 };
            for posted in [
                setup.endpoint.post_recv(setup.buffer()),
                setup.endpoint.post_send(setup.buffer(), ..),
                setup.endpoint.post_write(setup.buffer(), .., remote),
                setup.endpoint.post_read(setup.buffer(), .., remote),
            ] {
                let PostOwnedError { error, buffer } = posted.unwrap_err();
                assert!(matches!(error, Error::Invalid { .. }), "{error}");
                assert!(error.to_string().contains("different PDs"), "{error}");
                assert_eq!(buffer.len(), 15);
            }
        }
        assert_eq!(setup.endpoint.pending(), 0);
        let (received, sent) = {
            let log = setup.plain.log();
            (log.received.len(), log.sent.len())
        };
        assert_eq!((received, sent), (0, 0));
    }

    #[test]
    fn in_flight_buffers_are_leaked_if_destroy_qp_fails() {
        let mut setup = Setup::new();
        setup.post();
        setup.post();
        let Setup { plain, endpoint, freed, .. } = setup;
        drop(endpoint);
        assert_eq!((freed.load(Ordering::Relaxed), plain.log().freed.len()), (0, 0));
    }

    #[test]
    fn unknown_completion_returns_no_buffer_and_moves_qp_to_err() {
        for nonsense in [0, 1, 1 << 32 | 1, 2 << 32, u64::MAX] {
            for status in [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR] {
                let mut setup = Setup::new();
                let posted = setup.post();
                setup.complete(nonsense, status);
                setup.complete(posted, WcStatus::WR_FLUSH_ERR);
                setup.poll_unknown(nonsense);
                assert_eq!((setup.endpoint.pending(), setup.freed()), (1, 0));
                assert_eq!(setup.endpoint.qp().state(), QpState::ERR);
                let refused = setup.endpoint.post_recv(setup.buffer()).unwrap_err();
                assert!(refused.error.to_string().contains("the connection has failed"), "{refused}");
                let flushed = setup.endpoint.wait().unwrap_err();
                assert!(flushed.buffer.is_some());
                // The transition to ERR is issued once.
                assert_eq!(setup.plain.log().states, [QpState::ERR]);
            }
        }
    }

    #[test]
    fn failed_endpoint_rejects_posts_even_if_the_kernel_refuses_err() {
        let mut setup = Setup::new();
        setup.post();
        let refused = IoctlError { method: "ModifyQp", errno: Errno::NOMEM };
        setup.plain.log().answers.push_back(Err(refused));
        setup.complete(0, WcStatus::SUCCESS);
        setup.poll_unknown(0);
        assert_ne!(setup.endpoint.qp().state(), QpState::ERR);
        let refused = setup.endpoint.post_recv(setup.buffer()).unwrap_err();
        assert!(refused.error.to_string().contains("the connection has failed"), "{refused}");
    }

    #[test]
    fn duplicate_completion_returns_no_second_buffer() {
        let mut setup = Setup::new();
        let first = setup.post();
        setup.complete(first, WcStatus::SUCCESS);
        let done = setup.endpoint.poll().unwrap().unwrap();
        assert_eq!(done.message(), Some(&[7][..]));
        // In the same slot.
        let second = setup.post();
        assert_eq!(second as u32, first as u32);
        setup.complete(first, WcStatus::SUCCESS);
        setup.poll_unknown(first);
        assert_eq!(setup.endpoint.pending(), 1);
        setup.complete(second, WcStatus::SUCCESS);
        assert!(setup.endpoint.poll().unwrap().is_ok());
    }

    #[test]
    fn caller_panic_between_post_and_poll_keeps_in_flight_buffers() {
        let mut setup = Setup::new();
        let freed = Arc::clone(&setup.freed);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            setup.post();
            panic!("in between");
        }))
        .unwrap_err();
        assert_eq!(freed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn provider_panic_in_post_keeps_the_buffer() {
        let mut setup = Setup::new();
        let buffer = setup.buffer();
        let Setup { endpoint, freed, .. } = &mut setup;
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = endpoint
                .post("Endpoint::post_recv", buffer, .., |_, _, _| panic!("after the device was told"));
        }))
        .unwrap_err();
        assert_eq!((freed.load(Ordering::Relaxed), endpoint.pending()), (0, 1));
    }
}
