//! Queue pairs.
//!
//! | items | purpose |
//! |---|---|
//! | [`Qp`], [`Rc`], [`Uc`], [`Ud`], [`QpInitAttr`], [`QpCap`] | a QP whose transport is its type |
//! | [`BringUp`], [`ConnectAttr`], [`InitAttr`], [`RtrAttr`], [`RtsAttr`] | the way from RESET to RTS |
//! | [`Operation`], [`Datagram`], [`Sge`] | what is posted |
//! | [`QpCore`] | a QP whose transport is a value |

mod alternate_path;
pub(crate) mod any;
pub(crate) mod attr;
mod bring_up;
mod cm_state;
mod comp_cntr;
mod connect;
pub(crate) mod core;
pub(crate) mod datagram;
mod drain_reset;
mod ece;
pub(crate) mod flow;
pub(crate) mod flow_counters;
mod flow_specs;
pub(crate) mod init;
mod modify;
mod multicast;
pub(crate) mod post;
mod rate_limit;
mod raw;
pub(crate) mod transport;
pub(crate) mod xrc;

use std::marker::PhantomData;

use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;

pub use attr::{InitAttr, QpAttr, QpCap, QpInitAttr, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr};
pub use bring_up::BringUp;
pub use connect::ConnectAttr;
pub use datagram::{Datagram, GRH_BYTES, MULTICAST_QP};
pub use init::QpInit;
pub use post::{Batch, RecvHalf, SendHalf};
pub use raw::RawPacket;
pub use transport::{Connected, Operations, Rc, Transport, Uc, UcOperation, Ud};

#[cfg(doc)]
use crate::Error;
use crate::cq::{Completions, Cq};
use crate::error::{PostError, Refused, Result, SendFailure};
use crate::pd::Pd;
use crate::provider::AnyProvider;
use crate::qp::core::{QpCore, QpLayout};

pub use crate::qp::core::{AlternatePath, RateLimit};
pub use crate::queue_buffer::QueueBuffer;
pub use crate::wr_id::WrId;
pub use bareverbs_provider::queue_allocator::{Allocation, QueueAllocator, QueueResource};
pub use bareverbs_provider::request::{DoorbellChoice, Ece, QueueMemory};
pub use bareverbs_provider::thread_domain::ThreadDomain;
pub use bareverbs_provider::work::{Frame, Operation, Payload, RecvRequest, SendFlags, SendRequest, Sge};
pub use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};
pub use bareverbs_uapi::verbs_values::{MigState, QpAttrMask, QpState};

/// A queue pair.
///
/// It is brought up in three steps. Each step sets exactly the attributes that the kernel requires:
///
/// ```
/// use bareverbs::ah::AhAttr;
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::{InitAttr, QpInit, Rc, RtrAttr, RtsAttr};
/// use bareverbs::{Device, Gid};
///
/// # let (peer_gid, peer_qp_num) = (Gid::from(std::net::Ipv4Addr::new(127, 0, 0, 2)), 17);
/// let context = Device::find("soft0")?.open()?;
/// let cq = context.create_cq(&CqInit::new(32))?;
/// let mut qp = context.alloc_pd()?.create_qp::<Rc>(&QpInit::new(&cq, &cq))?;
/// let gid = context.default_gid(1)?;
/// // Send `gid.gid` and `qp.qp_num()` to the peer, and receive those of the peer.
/// qp.init(&InitAttr::new(1))?;
/// qp.ready_to_receive(&RtrAttr::new(AhAttr::global(1, peer_gid, gid.index), peer_qp_num))?;
/// qp.ready_to_send(&RtsAttr::default())?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// It has one owner. Its [halves](Qp::split) can move to two threads, but a half cannot be shared:
///
/// ```compile_fail,E0596
/// # fn shared(qp: &bareverbs::qp::Qp<bareverbs::qp::Rc>) {
/// qp.start_send();
/// # }
/// ```
#[doc(alias = "ibv_qp")]
pub struct Qp<T: Transport, P: Provider = AnyProvider> {
    core: QpCore<P>,
    _transport: PhantomData<T>,
}

impl<P: Provider> Pd<P> {
    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// - [`Error::Limit`] for a depth or a number of SGEs above the device's limit.
    /// - [`Error::Invalid`] for queues of another context.
    /// - [`Error::Unsupported`] for [XRC](crate::xrc::XrcSend) if the device has none.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp<T: Transport>(&self, init: &QpInit<'_, P>) -> Result<Qp<T, P>> {
        Qp::create(self, init)
    }
}

impl<T: Transport, P: Provider> Qp<T, P> {
    pub(crate) fn create(pd: &Pd<P>, init: &QpInit<'_, P>) -> Result<Self> {
        Ok(Self { core: QpCore::create(pd, T::QP_TYPE, init)?, _transport: PhantomData })
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.core.handle()
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed. Its queues and their memory are leaked; flows and multicast
    /// groups stay. Posted requests stay in use until the object is destroyed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.core.into_handle()
    }

    /// The addresses of its rings, doorbell record and register. They are valid until the QP is
    /// destroyed.
    ///
    /// ```
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [(qp, _cq), _peer] = example::qps(&pd)?;
    /// if let Some(send) = qp.layout().send {
    ///     println!("{} slots of {} bytes at {:?}, doorbell {:?}", send.slots, send.stride, send.ring, send.doorbell);
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "mlx5dv_init_obj")]
    #[doc(alias = "mlx5dv_qp")]
    #[must_use]
    pub fn layout(&self) -> QpLayout {
        self.core.layout()
    }

    /// Sets the cached state without asking the kernel.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn assume_state(&mut self, state: QpState) {
        self.core.assume_state(state);
    }

    /// The QP number (QPN), 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.core.qp_num()
    }

    /// The state that the last transition set. A QP moves itself to ERR on an error; [`Qp::query`]
    /// reports that.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.core.state()
    }

    /// Depths and widths of the queues, at least as large as requested.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.core.cap()
    }

    /// [`QpInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.core.user_data()
    }

    /// Whether no other QP uses the same doorbell register; see [`QpInit::doorbell`].
    #[must_use]
    pub fn owns_doorbell(&self) -> bool {
        self.core.owns_doorbell()
    }

    /// The protection domain of the QP.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        self.core.pd()
    }

    /// Queries the attributes from the kernel.
    ///
    /// # Errors
    /// - [`Error::Kernel`]: the kernel rejects the command.
    /// - [`Error::Value`]: the kernel reports a value that the type of its field lacks, such as an
    ///   ACK timeout of 40. The kernel takes such values only from a raw call, and
    ///   [`RawContext::invoke`](crate::raw::RawContext::invoke) of `QueryQp` returns them.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<(QpAttr, QpInitAttr)> {
        self.core.query()
    }

    /// Destroys the QP. Returns the number of its [events](crate::AsyncEvent::Qp) that have been
    /// read; unread events are discarded. Drop also destroys the QP, and ignores errors.
    ///
    /// # Errors
    /// The QP and [`Error::Kernel`]: the kernel refuses to destroy it. Its rings and posted
    /// requests stay in use. It may be detached from its multicast groups, and its flows may be
    /// destroyed.
    #[expect(clippy::result_large_err, reason = "the error returns the QP without an allocation")]
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<u32, Refused<Self>> {
        self.core.destroy().map_err(|refused| refused.map(|core| Self { core, _transport: PhantomData }))
    }

    /// As [`QpCore::needs_error_before_destroy`].
    pub(crate) fn needs_error_before_destroy(&self) -> bool {
        self.core.needs_error_before_destroy()
    }

    /// As [`QpCore::destroy_inner`].
    ///
    /// # Safety
    ///
    /// As for [`QpCore::destroy_inner`].
    pub(crate) unsafe fn destroy_inner(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.core.destroy_inner() }
    }

    /// As [`QpCore::destroy_object`].
    ///
    /// # Safety
    ///
    /// As for [`QpCore::destroy_object`].
    pub(crate) unsafe fn destroy_object(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.core.destroy_object() }
    }

    /// As [`QpCore::try_destroy_object`].
    ///
    /// # Safety
    ///
    /// As for [`QpCore::try_destroy_object`].
    pub(crate) unsafe fn try_destroy_object(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.core.try_destroy_object() }
    }

    /// Whether the kernel has destroyed the QP; see [`QpCore::destroy_object`].
    pub(crate) fn is_destroyed(&self) -> bool {
        self.core.is_destroyed()
    }

    /// The send that failed locally, with its original status. `None` if the completion has that
    /// status. Soft-RoCE since Linux 6.4 completes the failed send with `WR_FLUSH_ERR`.
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.core.failure()
    }

    /// Splits the QP into its halves: for two threads on one connection, or two borrows.
    ///
    /// Each half has a ring of its own, and each thread polls a CQ of its own: no lock is taken.
    /// Posting is `unsafe`. The safe layer's way is a connection of a [`Hub`](crate::owned::Hub):
    /// clones of a [`Connection`](crate::owned::Connection) post from any thread or task. Instructions
    /// on mlx5 with [`AnyProvider`] (`docs/fastpath.md`):
    ///
    /// | | half | hub |
    /// |---|---|---|
    /// | post a write of 64 bytes | 71 | 217 |
    /// | poll a send; await of a hub | 42 | 122 |
    ///
    /// One thread sends 100 messages, the other receives 100:
    ///
    /// ```
    /// use std::hint::spin_loop;
    /// use std::thread;
    ///
    /// use bareverbs::ah::AhAttr;
    /// use bareverbs::cq::{Cq, CqInit};
    /// use bareverbs::qp::{InitAttr, QpInit, Rc, RecvRequest, RtrAttr, RtsAttr, SendRequest};
    /// use bareverbs::{Access, Buffer, Context, Device, Result, WcStatus};
    ///
    /// /// Waits for the one request in flight.
    /// fn complete(cq: &mut Cq, verb: &'static str, wr_id: u64, context: &Context) -> Result<()> {
    ///     loop {
    ///         match cq.poll_one() {
    ///             Some(done) if done.wr_id == wr_id => {
    ///                 if done.status == WcStatus::SUCCESS {
    ///                     return Ok(());
    ///                 }
    ///                 return Err(context.completion_error(verb, done.status, done.vendor_err));
    ///             }
    ///             _ => spin_loop(),
    ///         }
    ///     }
    /// }
    ///
    /// fn main() -> Result<()> {
    ///     let context = Device::find("soft0")?.open()?;
    ///     let pd = context.alloc_pd()?;
    ///     let mut send_cq = context.create_cq(&CqInit::new(16))?;
    ///     let mut recv_cq = context.create_cq(&CqInit::new(16))?;
    ///     let outgoing = pd.register(Buffer::zeroed(4096)?, Access::empty())?;
    ///     let incoming = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
    ///     let mut qp = pd.create_qp::<Rc>(&QpInit::new(&send_cq, &recv_cq))?;
    ///     // Exchange QPN and GID with the peer. Here the QP is its own peer.
    ///     let gid = context.default_gid(1)?;
    ///     let (peer_gid, peer_qp_num) = (gid.gid, qp.qp_num());
    ///     qp.init(&InitAttr::new(1))?;
    ///     qp.ready_to_receive(&RtrAttr::new(AhAttr::global(1, peer_gid, gid.index), peer_qp_num))?;
    ///     qp.ready_to_send(&RtsAttr::default())?;
    ///
    ///     let (mut send, mut recv) = qp.split();
    ///     thread::scope(|scope| {
    ///         let sender = scope.spawn(|| {
    ///             let sges = [outgoing.sge(..64)?];
    ///             for wr_id in 1..=100 {
    ///                 // SAFETY: `outgoing` stays registered and unchanged until `complete` returns.
    ///                 unsafe { send.post_send(&[SendRequest::send(wr_id, &sges).signaled()]) }?;
    ///                 complete(&mut send_cq, "send", wr_id, &context)?;
    ///             }
    ///             Ok(())
    ///         });
    ///         let receiver = scope.spawn(|| {
    ///             let sges = [incoming.sge(..)?];
    ///             for wr_id in 1..=100 {
    ///                 // SAFETY: `incoming` stays registered, and nothing reads it, until `complete` returns.
    ///                 unsafe { recv.post_recv(&[RecvRequest::new(wr_id, &sges)]) }?;
    ///                 complete(&mut recv_cq, "recv", wr_id, &context)?;
    ///                 println!("received {:?}", incoming.bytes().map(|bytes| &bytes[..8]));
    ///             }
    ///             Ok(())
    ///         });
    ///         let sent = sender.join().expect("the sender does not panic");
    ///         sent.and(receiver.join().expect("the receiver does not panic"))
    ///     })
    /// }
    /// ```
    ///
    /// Each half borrows the QP, which owns the rings. So the QP outlives both halves:
    ///
    /// ```compile_fail,E0505
    /// # fn outlive(mut qp: bareverbs::qp::Qp<bareverbs::qp::Rc>) {
    /// let (mut send, _recv) = qp.split();
    /// drop(qp);
    /// send.flush().unwrap();
    /// # }
    /// ```
    ///
    /// The halves of two QPs can be exchanged. The rings stay with their QPs:
    ///
    /// ```
    /// # fn exchange(a: &mut bareverbs::qp::Qp<bareverbs::qp::Rc>, b: &mut bareverbs::qp::Qp<bareverbs::qp::Rc>) {
    /// let ((mut to_a, _), (mut to_b, _)) = (a.split(), b.split());
    /// std::mem::swap(&mut to_a, &mut to_b);
    /// // Requests that are posted to `to_a` now go to the QP `b`.
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let [(mut a, _cq_a), (mut b, _cq_b)] = example::qps(&example::pd()?)?;
    /// # exchange(&mut a, &mut b);
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    #[must_use]
    #[inline]
    pub fn split(&mut self) -> (SendHalf<'_, T, P>, RecvHalf<'_, T, P>) {
        self.core.split_as(T::VALUE)
    }

    /// Starts a batch of sends; see [`SendHalf::start_send`].
    #[doc(alias = "ibv_wr_start")]
    #[doc(alias = "ibv_qp_to_qp_ex")]
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, T, P> {
        self.core.start_send_as(T::VALUE)
    }

    /// Posts sends with one doorbell.
    ///
    /// # Errors
    /// As for [`SendHalf::post_send`].
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub unsafe fn post_send(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.core.post_send_as(T::VALUE, requests) }
    }

    /// Posts sends and defers the doorbell to the next flush, `flush_and_poll` or post; see
    /// [`SendHalf::post_send_deferred`].
    ///
    /// # Errors
    /// As for [`SendHalf::post_send_deferred`].
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline]
    pub unsafe fn post_send_deferred(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.core.post_send_deferred_as(T::VALUE, requests) }
    }

    /// Rings the doorbell for all deferred requests; see [`SendHalf::flush`].
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        self.split().0.flush()
    }

    /// Rings the doorbell for all deferred requests, then polls; see [`SendHalf::flush_and_poll`].
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush_and_poll<'c>(&mut self, cq: &'c mut Cq<P>) -> Result<Completions<'c, P>, PostError> {
        self.split().0.flush_and_poll(cq)
    }

    /// Posts receives.
    ///
    /// # Errors
    /// As for [`RecvHalf::post_recv`].
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.core.post_recv_as(T::VALUE, requests) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
    use crate::testing::Plain;

    fn send<T: Connected>(half: &mut SendHalf<'_, T, Plain>, wr_id: u64) {
        let mut batch = half.start_send();
        batch.send_inline(wr_id, b"x", SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
    }

    #[test]
    fn swapping_split_halves_keeps_each_ring_in_its_qp() {
        let plain = Plain::default();
        let pd = plain.domain();
        let (mut a, mut b) = (plain.queue_pair(&pd), plain.queue_pair(&pd));
        let (ring_a, ring_b) = (a.qp_num(), b.qp_num());
        {
            let ((mut to_a, mut from_a), (mut to_b, mut from_b)) = (a.split(), b.split());
            std::mem::swap(&mut to_a, &mut to_b);
            std::mem::swap(&mut from_a, &mut from_b);
            send(&mut to_a, 1);
        }
        drop(a);
        send(&mut b.split().0, 2);
        assert_eq!(plain.log().sent, [(ring_b, 1), (ring_b, 2)]);
        let mut batch = b.start_send();
        // SAFETY: the QP is in RTS, and its queue stays its own.
        assert_eq!(unsafe { batch.provider_queue() }.number, ring_b);
        assert_ne!(ring_a, ring_b);
    }

    #[test]
    fn split_halves_post_lists_to_their_own_queues() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let ring = qp.qp_num();
        let request = |wr_id| SendRequest {
            wr_id,
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Inline(&[b"x"]),
        };
        let (mut send, mut recv) = qp.split();
        // SAFETY: there is no device, and the requests name no memory.
        unsafe {
            send.post_send(&[request(1), request(2)]).unwrap();
            send.post_send_deferred(&[request(3)]).unwrap();
            recv.post_recv(&[RecvRequest { wr_id: 4, sges: &[] }]).unwrap();
        }
        send.flush().unwrap();
        let log = plain.log();
        assert_eq!(log.sent, [(ring, 1), (ring, 2), (ring, 3)]);
        assert_eq!(log.received, [4]);
    }

    #[test]
    fn rings_are_leaked_if_destroy_qp_fails() {
        let plain = Plain::default();
        let pd = plain.domain();
        let qp = plain.queue_pair(&pd);
        drop(qp.destroy().unwrap_err());
        drop(plain.queue_pair(&pd));
        drop(pd);
        let log = plain.log();
        assert_eq!((&log.freed[..], log.abandoned), (&[][..], 2));
    }

    #[test]
    fn released_queues_are_leaked_and_no_longer_written() {
        let plain = Plain::default();
        let pd = plain.domain();
        let _ = plain.queue_pair(&pd).into_handle();
        let _ = pd.create_srq(&crate::srq::SrqInit::new(4)).unwrap().into_handle();
        let log = plain.log();
        assert_eq!((&log.freed[..], log.abandoned), (&[][..], 2));
    }

    #[test]
    fn qp_of_a_refused_destroy_posts_to_its_ring() {
        let plain = Plain::default();
        let qp = plain.queue_pair(&plain.domain());
        let ring = qp.qp_num();
        let mut refused = qp.destroy().unwrap_err();
        assert_eq!(plain.log().abandoned, 0);
        send(&mut refused.object.split().0, 1);
        assert_eq!(plain.log().sent, [(ring, 1)]);
        let again = refused.object.destroy().unwrap_err();
        assert!(matches!(crate::Error::from(again), crate::Error::Kernel(_)));
        assert_eq!(plain.log().abandoned, 1);
    }

    #[test]
    fn dropped_batch_aborts_pushes_through_provider_queue() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let mut batch = qp.start_send();
        // SAFETY: the QP counts as being in RTS, and its queue stays its own.
        unsafe { batch.provider_queue() }.pushed.push(7);
        assert!(batch.is_empty());
        drop(batch);
        qp.start_send().ring().unwrap();
        assert_eq!(plain.log().sent, []);
    }
}
