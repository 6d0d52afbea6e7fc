//! Queue pairs.

mod attr;
mod datagram;
mod drain_reset;
mod ece;
mod flow;
mod modify;
mod post;
mod raw;
mod state_table;
mod transport;
mod xrc;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::contract::{
    CreateError, CreatedQp, DoorbellChoice, Provider, QpRequest, RecvQueue, SendQueue,
};
use bareverbs_provider::device::IoctlError;
use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};

pub use attr::{
    AhAttr, GlobalRoute, InitAttr, QpAttr, QpCap, QpInitAttr, RtrAttr, RtsAttr, UcRtrAttr, UdInitAttr,
};
pub use datagram::{Datagram, GRH_BYTES, MULTICAST_QP};
pub(crate) use flow::Flows;
pub use flow::{EthernetMatch, FlowId, FlowRule, Ipv4Match, PortMatch, UpperMatch};
pub(crate) use post::post_receives;
pub use post::{Batch, PostError, PostReason, RecvHalf, SendFailure, SendHalf};
pub use raw::RawPacket;
pub use transport::{Connected, Rc, Transport, Uc, UcOperation, Ud};
pub use xrc::{XrcSend, XrcTarget, XrcTargetRtsAttr};

use crate::cq::CqShared;
use crate::srq::SrqShared;
use crate::{
    AnyProvider, Completions, Cq, Error, Gid, Pd, QpAttrMask, QpState, QueueMemory, RecvRequest, Result,
    SendRequest, Srq,
};

/// What a queue pair is to be.
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInit<'a, P: Provider = AnyProvider> {
    /// The queue for completions of sends.
    pub send_cq: &'a Cq<P>,
    /// The queue for completions of receives; may be the same.
    pub recv_cq: &'a Cq<P>,
    /// The shared queue that receives are taken from, in place of an own one.
    pub srq: Option<&'a Srq<P>>,
    /// Depths and widths.
    pub cap: QpCap,
    /// Bytes of the longest header of a large send ([`Frame::mss`](crate::Frame::mss)), 14 or more;
    /// 0 where there are to be none. Queue pairs of [`RawPacket`] only, where the device cuts
    /// frames ([`DeviceAttr::max_tso`](crate::DeviceAttr), `tso_supported_qpts`).
    ///
    /// Large datagrams of IPoIB, which C has as `IBV_QP_CREATE_IPOIB_UD_LSO`, are kept by kernels
    /// for themselves.
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub max_tso_header: u16,
    /// Whether every send makes a completion, asked for or not.
    pub signal_all: bool,
    /// Whether the device may put messages of up to 32 bytes into their completions instead of
    /// writing them to memory (inline scatter), which spares it a transfer. Polling brings them
    /// where they belong, so nothing else changes, except that receives of such a queue pair must
    /// name memory by the addresses that this process reaches it by: a region
    /// [registered](Pd::register_raw) at another one will not do.
    ///
    /// Adapters only, and reliable and unreliable connections with receives of their own and
    /// without [`signal_all`](Self::signal_all).
    #[doc(alias = "MLX5_QP_FLAG_SCATTER_CQE")]
    pub scatter_to_cqe: bool,
    /// Comes back in [asynchronous events](crate::AsyncEvent::Qp). What shall come back with
    /// completions goes into the requests' numbers: see [`WrId`](crate::WrId).
    pub user_data: u64,
    /// By what its sends are announced to the device. On ConnectX a doorbell of its own is a page
    /// of the device, into which, where the machine can do it, single requests are copied whole
    /// (*BlueFlame*): the device need not fetch them. On such machines the first 16 queue pairs of
    /// a context get one; a program with more of them says here which are to have one.
    ///
    /// C's thread domains serve the same end. They also spare locks, which queues of single owners
    /// have none of.
    pub doorbell: DoorbellChoice,
    /// What pages the memory of its queues lies in. ConnectX only: elsewhere the kernel chooses.
    pub memory: QueueMemory,
}

impl<'a, P: Provider> QpInit<'a, P> {
    /// A queue pair with [`QpCap::default`], whose sends make completions when asked to.
    #[must_use]
    pub fn new(send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        Self {
            send_cq,
            recv_cq,
            srq: None,
            cap: QpCap::default(),
            max_tso_header: 0,
            signal_all: false,
            scatter_to_cqe: false,
            user_data: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::Ordinary,
        }
    }
}

/// A queue pair.
///
/// It is brought up in three steps, each of which sets just what the kernel asks for:
///
/// ```no_run
/// use bareverbs::{AhAttr, CqInit, Device, Gid, InitAttr, QpInit, Rc, RtrAttr, RtsAttr};
///
/// # let (peer_gid, peer_qp_num) = (Gid::default(), 17);
/// let context = Device::find("rxe0")?.open()?;
/// let cq = context.create_cq(&CqInit::new(32))?;
/// let mut qp = context.alloc_pd()?.create_qp::<Rc>(&QpInit::new(&cq, &cq))?;
/// let gid = context.default_gid(1)?;
/// // Tell the peer `gid.gid` and `qp.qp_num()`, and learn its own.
/// qp.init(&InitAttr::new(1))?;
/// qp.ready_to_receive(&RtrAttr::new(AhAttr::global(1, peer_gid, gid.index as u8), peer_qp_num))?;
/// qp.ready_to_send(&RtsAttr::default())?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// It has one owner. Its [halves](Qp::split) can go to two threads, but neither half is shared:
///
/// ```compile_fail,E0596
/// # fn shared(qp: &bareverbs::Qp<bareverbs::Rc>) {
/// qp.start_send();
/// # }
/// ```
#[doc(alias = "ibv_qp")]
pub struct Qp<T: Transport, P: Provider = AnyProvider> {
    /// [`Qp::destroy_inner`] frees both rings after the kernel has destroyed the queue pair. Until
    /// then the device uses them, so they are lent out in views only ([`SendHalf`], [`RecvHalf`],
    /// [`Batch`]): no safe code exchanges them for other rings.
    sq: ManuallyDrop<P::Sq>,
    /// None where a shared receive queue takes its place.
    rq: Option<ManuallyDrop<P::Rq>>,
    state: QpState,
    /// Whether the kernel refused one of several requests to RESET, and none has succeeded since.
    reset_is_incomplete: bool,
    _transport: PhantomData<T>,
    handle: u32,
    qp_num: u32,
    cap: QpCap,
    user_data: u64,
    pd: Pd<P>,
    /// The kernel's side of them is given back after that of the queue pair.
    _cqs: [Arc<CqShared<P>>; 2],
    /// The same holds for it.
    _srq: Option<Arc<SrqShared<P>>>,
    /// Multicast groups that it is in, with their LIDs where they have one.
    groups: Vec<(Gid, u16)>,
    /// Flows that bring it packets.
    flows: Flows,
    destroyed: bool,
}

impl<T: Transport, P: Provider> Qp<T, P> {
    pub(crate) fn create(pd: &Pd<P>, init: &QpInit<'_, P>) -> Result<Self> {
        const VERB: &str = "create_qp";
        let context = pd.context();
        let (mut cap, limits) = (init.cap, context.limits());
        if T::QP_TYPE == QpType::XRC_INI {
            if !context.capabilities().xrc {
                return Err(Error::Unsupported { verb: VERB, what: "XRC queue pairs are" });
            }
            if init.srq.is_some() {
                return Err(Error::invalid(
                    VERB,
                    "an XRC queue pair that sends receives nothing: leave `srq` out",
                ));
            }
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if T::QP_TYPE == QpType::RAW_PACKET && !context.capabilities().raw_packets {
            return Err(Error::Unsupported { verb: VERB, what: "raw packet QPs are" });
        }
        for (what, asked, max) in [
            ("max_send_wr", cap.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", cap.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", cap.max_send_sge, limits.max_sge),
            ("max_recv_sge", cap.max_recv_sge, limits.max_sge),
        ] {
            Error::check_limit(VERB, what, asked.into(), max.into())?;
        }
        context.check_same_context(VERB, "send completion queue", init.send_cq.shared().context().file())?;
        context.check_same_context(
            VERB,
            "receive completion queue",
            init.recv_cq.shared().context().file(),
        )?;
        if let Some(srq) = init.srq {
            context.check_same_context(VERB, "shared receive queue", srq.shared().context().file())?;
        }
        let request = QpRequest {
            pd: pd.domain().handle,
            send_cq: init.send_cq.shared().handle,
            recv_cq: init.recv_cq.shared().handle,
            srq: init.srq.map(|srq| srq.shared().handle),
            qp_type: T::QP_TYPE,
            cap: cap.into(),
            max_tso_header: init.max_tso_header,
            flags: if init.signal_all { QpCreateFlags::SQ_SIG_ALL } else { QpCreateFlags::empty() },
            scatter_to_cqe: init.scatter_to_cqe,
            user_handle: init.user_data,
            doorbell: init.doorbell,
            memory: init.memory,
        };
        // SAFETY: `destroy_inner` keeps the queues until the kernel has destroyed the object, and
        // leaks them otherwise.
        let CreatedQp { handle, qp_num, cap, sq, rq } = unsafe { context.provider().create_qp(&request) }
            .map_err(|reason| {
                if init.doorbell == DoorbellChoice::Own && matches!(reason, CreateError::Unsupported { .. }) {
                    return Error::Unsupported { verb: VERB, what: "dedicated doorbells are" };
                }
                Error::create(VERB, format!("{:?}, {cap:?}", T::QP_TYPE), reason).or_hint(|errno| {
                    if errno == rustix::io::Errno::PERM && T::QP_TYPE == QpType::RAW_PACKET {
                        return Some("raw packets require CAP_NET_RAW".into());
                    }
                    (errno == rustix::io::Errno::INVAL && cap.max_inline_data > 0).then(|| {
                        format!(
                            "the device may not carry {} bytes inline: ask for fewer",
                            cap.max_inline_data
                        )
                    })
                })
            })?;
        Ok(Self {
            sq: ManuallyDrop::new(sq),
            rq: rq.map(ManuallyDrop::new),
            state: QpState::RESET,
            reset_is_incomplete: false,
            _transport: PhantomData,
            handle,
            qp_num,
            cap: cap.into(),
            user_data: init.user_data,
            pd: pd.clone(),
            _cqs: [Arc::clone(init.send_cq.shared()), Arc::clone(init.recv_cq.shared())],
            _srq: init.srq.map(|srq| Arc::clone(srq.shared())),
            groups: Vec::new(),
            flows: Flows::default(),
            destroyed: false,
        })
    }

    /// Takes it to be in `state` without asking the kernel.
    #[cfg(test)]
    pub(crate) fn assume_state(&mut self, state: QpState) {
        self.state = state;
    }

    /// Its number on the wire, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The state that it was last brought to. On an error it goes to ERR by itself; [`Qp::query`]
    /// tells that.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Depths and widths that it has, at least those asked for.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// [`QpInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// Whether no other queue pair rings the doorbell that it does; see [`QpInit::doorbell`].
    #[must_use]
    pub fn owns_doorbell(&self) -> bool {
        self.sq.owns_doorbell()
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.pd
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<(QpAttr, QpInitAttr)> {
        let resp =
            command::query_qp(self.pd.context().file(), self.handle, QpAttrMask::STATE | QpAttrMask::CAP)
                .map_err(|refused| Error::kernel("query_qp", format!("QP {:#x}", self.qp_num), refused))?;
        let mut attr = QpAttr::from_kernel(&resp);
        if attr.cap.max_send_wr == 0 {
            // Where users lay out their queues themselves, as on ConnectX, the kernel does not tell
            // what they hold.
            attr.cap = self.cap();
        }
        Ok((attr, QpInitAttr { cap: attr.cap, signal_all: resp.sq_sig_all != 0 }))
    }

    /// Destroys it and tells how many of its [events](crate::AsyncEvent::Qp) have been read; events
    /// that were not are gone. Dropping does the same in silence.
    ///
    /// # Errors
    /// The kernel refuses. The device may then go on using the rings and the memory that posted
    /// requests name, for the life of the process: the rings are leaked, and the memory is for its
    /// owner to keep.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<u32> {
        let number = self.qp_num;
        // SAFETY: the queue pair was not ended, and is dropped next.
        unsafe { self.destroy_inner() }
            .map_err(|refused| Error::kernel("destroy_qp", format!("QP {number:#x}"), refused))
    }

    /// Destroys it and tells how many of its events have been read. Where the kernel refuses, the
    /// rings and whatever is posted stay in use.
    ///
    /// # Safety
    ///
    /// The queue pair must not have been ended before, and must not be used afterwards, except to
    /// drop it.
    pub(crate) unsafe fn destroy_inner(&mut self) -> Result<u32, IoctlError> {
        self.destroyed = true;
        // The kernel keeps a queue pair that is in a group.
        for (group, lid) in self.groups.drain(..) {
            // SAFETY: the queue pair is this value's.
            let _ = unsafe { command::detach_mcast(self.pd.context().file(), self.handle, group.0, lid) };
        }
        // Nor does it let go of one that a flow leads to.
        self.flows.destroy_all(self.pd.context().file());
        // SAFETY: the handle is this queue pair's own, and nothing asks for anything by it after
        // `destroy_inner`. The rings are freed below, after the kernel has destroyed the queue
        // pair.
        let resp =
            unsafe { command::destroy_qp(self.pd.context().file(), self.handle) }.inspect_err(|_| {
                // The device may go on using the rings, so they are leaked.
                if let Some(rq) = &mut self.rq {
                    rq.abandon();
                }
            })?;
        // SAFETY: by the contract of `destroy_inner`, this runs once, and nothing looks at the ring
        // afterwards.
        unsafe { ManuallyDrop::drop(&mut self.sq) };
        if let Some(rq) = &mut self.rq {
            // SAFETY: by the contract of `destroy_inner`, this runs once, and nothing looks at the
            // ring afterwards.
            unsafe { ManuallyDrop::drop(rq) };
        }
        Ok(resp.events_reported)
    }

    /// The send that brought it down, where more is known of that than its completion said; see
    /// [`SendHalf::failure`].
    #[must_use]
    pub fn failure(&self) -> Option<SendFailure> {
        self.sq.failure().map(SendFailure::from)
    }

    /// Its halves, for two borrows or two threads.
    ///
    /// One thread sends 100 messages, the other receives 100:
    ///
    /// ```no_run
    /// use std::hint::spin_loop;
    /// use std::thread;
    ///
    /// use bareverbs::{
    ///     Access, AhAttr, Buffer, Cq, CqInit, Device, Error, Gid, InitAttr, Operation, Payload, QpInit, Rc,
    ///     RecvRequest, Result, RtrAttr, RtsAttr, SendFlags, SendRequest, WcStatus,
    /// };
    ///
    /// /// Waits for the one request in flight.
    /// fn complete(cq: &mut Cq, verb: &'static str, wr_id: u64) -> Result<()> {
    ///     loop {
    ///         match cq.poll_one() {
    ///             Some(done) if done.wr_id == wr_id => {
    ///                 let (status, vendor_err) = (done.status, done.vendor_err);
    ///                 let failed = Error::Completion { verb, status, vendor_err };
    ///                 return if status == WcStatus::SUCCESS { Ok(()) } else { Err(failed) };
    ///             }
    ///             _ => spin_loop(),
    ///         }
    ///     }
    /// }
    ///
    /// fn main() -> Result<()> {
    ///     let context = Device::first()?.open()?;
    ///     let pd = context.alloc_pd()?;
    ///     let mut send_cq = context.create_cq(&CqInit::new(16))?;
    ///     let mut recv_cq = context.create_cq(&CqInit::new(16))?;
    ///     let outgoing = pd.register(Buffer::zeroed(4096)?, Access::empty())?;
    ///     let incoming = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
    ///     let mut qp = pd.create_qp::<Rc>(&QpInit::new(&send_cq, &recv_cq))?;
    ///     // The peer is told this queue pair's number and GID, and tells its own.
    ///     let (peer_gid, peer_qp_num) = (Gid::default(), 17);
    ///     let gid = context.default_gid(1)?;
    ///     qp.init(&InitAttr::new(1))?;
    ///     qp.ready_to_receive(&RtrAttr::new(AhAttr::global(1, peer_gid, gid.index as u8), peer_qp_num))?;
    ///     qp.ready_to_send(&RtsAttr::default())?;
    ///
    ///     let (mut send, mut recv) = qp.split();
    ///     thread::scope(|scope| {
    ///         let sender = scope.spawn(|| {
    ///             let sges = [outgoing.sge(..64)?];
    ///             for wr_id in 1..=100 {
    ///                 let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
    ///                 let request = SendRequest { wr_id, operation: Operation::Send, flags, payload };
    ///                 // SAFETY: `outgoing` stays registered and unchanged until `complete` returns.
    ///                 unsafe { send.post_send(&[request]) }?;
    ///                 complete(&mut send_cq, "send", wr_id)?;
    ///             }
    ///             Ok(())
    ///         });
    ///         let receiver = scope.spawn(|| {
    ///             let sges = [incoming.sge(..)?];
    ///             for wr_id in 1..=100 {
    ///                 // SAFETY: `incoming` stays registered, and nothing reads it, until `complete` returns.
    ///                 unsafe { recv.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }?;
    ///                 complete(&mut recv_cq, "recv", wr_id)?;
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
    /// Each half refers to the queue pair, which owns the rings. So the queue pair outlives both
    /// halves:
    ///
    /// ```compile_fail,E0505
    /// # fn outlive(mut qp: bareverbs::Qp<bareverbs::Rc>) {
    /// let (mut send, _recv) = qp.split();
    /// drop(qp);
    /// send.flush().unwrap();
    /// # }
    /// ```
    ///
    /// The halves of two queue pairs can be exchanged; the rings stay where they are:
    ///
    /// ```
    /// # fn exchange(a: &mut bareverbs::Qp<bareverbs::Rc>, b: &mut bareverbs::Qp<bareverbs::Rc>) {
    /// let ((mut to_a, _), (mut to_b, _)) = (a.split(), b.split());
    /// std::mem::swap(&mut to_a, &mut to_b);
    /// // What is posted to `to_a` goes to `b` from here on.
    /// # }
    /// ```
    #[must_use]
    #[inline]
    pub fn split(&mut self) -> (SendHalf<'_, T, P>, RecvHalf<'_, T, P>) {
        let Self { sq, rq, state, .. } = self;
        (SendHalf::new(&mut **sq, state), RecvHalf::new(rq.as_deref_mut(), state))
    }

    /// Starts a batch of sends; see [`SendHalf::start_send`].
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, T, P> {
        Batch::new(&mut *self.sq, self.state)
    }

    /// Posts sends, all with one doorbell.
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
        // The fast path is here too, not in a half, and the slow one gets the queue pair as its
        // only other argument: a view costs registers.
        if let [request] = requests
            // SAFETY: the caller vouches for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(&mut self.sq, request, false) }
        {
            return posted.map_err(|error| post::doorbell_error(error, 1));
        }
        // SAFETY: the caller vouches for every request; none of them has been posted.
        unsafe { self.post_send_slow(requests, false) }
    }

    /// Posts what the fast path declined.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    unsafe fn post_send_slow(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        defer: bool,
    ) -> Result<(), PostError> {
        match requests {
            // From a copy, so that a request that is known where it is posted need not lie in
            // memory for the fast path.
            // SAFETY: the caller's promise is the same, and a copy names the same memory.
            [request] => unsafe { self.post_send_list(&[*request], defer) },
            // SAFETY: the caller's promise is the same.
            _ => unsafe { self.post_send_list(requests, defer) },
        }
    }

    /// Posts any requests in any state, with a doorbell now or later.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(never)]
    unsafe fn post_send_list(
        &mut self,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        defer: bool,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { post::post_sends::<T, P>(&mut self.sq, self.state, requests, defer) }
    }

    /// Posts sends and leaves the doorbell to the next flush, poll with a flush, or post; see
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
        if let [request] = requests
            // SAFETY: the caller vouches for the request.
            && let Some(posted) = unsafe { T::try_post::<P>(&mut self.sq, request, true) }
        {
            return posted.map_err(|error| post::doorbell_error(error, 1));
        }
        // SAFETY: the caller vouches for every request; none of them has been posted.
        unsafe { self.post_send_slow(requests, true) }
    }

    /// Hands all deferred requests to the device; see [`SendHalf::flush`].
    ///
    /// # Errors
    /// As for [`SendHalf::flush`].
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        self.split().0.flush()
    }

    /// Hands all deferred requests to the device, then polls; see [`SendHalf::flush_and_poll`].
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
        let posted = if let ([request], Some(queue)) = (requests, &mut self.rq)
            // SAFETY: the caller vouches for the request.
            && unsafe { queue.try_post(request) }
        {
            Ok(())
        } else {
            match requests {
                // From a copy, as sends are, and its element too.
                [RecvRequest { wr_id, sges: [sge] }] => {
                    let (wr_id, sge) = (*wr_id, *sge);
                    // SAFETY: the caller vouches for the request, which was not posted; the copy
                    // names the same memory.
                    unsafe { self.post_recv_list(&[RecvRequest { wr_id, sges: &[sge] }]) }
                }
                // SAFETY: the caller vouches for every request; none of them has been posted.
                _ => unsafe { self.post_recv_list(requests) },
            }
        };
        if self.state() == QpState::ERR {
            // A device need not look at the queue by itself. Where it cannot be told to, it is
            // gone.
            let _ = self.set_error();
        }
        posted
    }

    /// Posts any receives in any state.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline(never)]
    unsafe fn post_recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { post::post_receives_in::<T, _>(self.rq.as_deref_mut(), self.state, requests) }
    }
}

impl<T: Transport, P: Provider> Drop for Qp<T, P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: it was not ended, and is being dropped.
            let _ = unsafe { self.destroy_inner() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SendFlags;
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
        assert_eq!(b.sq.number, ring_b);
        assert_ne!(ring_a, ring_b);
    }

    #[test]
    fn rings_are_leaked_if_destroy_qp_fails() {
        let plain = Plain::default();
        let pd = plain.domain();
        let qp = plain.queue_pair(&pd);
        qp.destroy().unwrap_err();
        drop(plain.queue_pair(&pd));
        drop(pd);
        let log = plain.log();
        assert_eq!((&log.freed[..], log.abandoned), (&[][..], 2));
    }

    #[test]
    fn dropped_batch_aborts_pushes_through_provider_queue() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let mut batch = qp.start_send();
        // SAFETY: the queue pair counts as being in RTS, and its queue stays its own.
        unsafe { batch.provider_queue() }.pushed.push(7);
        assert!(batch.is_empty());
        drop(batch);
        qp.start_send().ring().unwrap();
        assert_eq!(plain.log().sent, []);
    }
}
