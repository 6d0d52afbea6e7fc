//! The two ends of extended reliable connections.

use bareverbs_provider::command::{self, QpHandle};
use bareverbs_provider::contract::{Provider, SendQueue, XrcTargetRequest};
use bareverbs_provider::device::IoctlError;
use bareverbs_uapi::uverbs::types::QpType;

use super::modify::{INIT, RTR, RTS, check_init, check_max, check_peer, check_rtr};
use super::state_table::check_24_bits;
use super::transport::private::Sealed;
use super::{Batch, InitAttr, PostReason, Qp, QpAttr, RtrAttr, RtsAttr, Transport, UcRtrAttr};
use crate::{
    AnyProvider, Error, Operation, Payload, PushError, QpAttrMask, QpState, Result, SendFlags, SendRequest,
    XrcOperation, Xrcd,
};

/// The sending end of an extended reliable connection, whose requests each name the shared receive
/// queue that they go to; see [`Xrcd`].
///
/// It carries all that a reliable connection does, but binds and invalidates no memory windows of
/// its own side. What [`QpInit`](crate::QpInit) says of receives is not used, `recv_cq` included.
/// It is connected to an [`XrcTarget`], and brought up with what a sending end needs:
///
/// ```no_run
/// # use bareverbs::{AhAttr, Cq, InitAttr, Pd, QpInit, RtsAttr, SendFlags, UcRtrAttr, XrcSend};
/// # fn example(pd: &Pd, cq: &Cq, to: AhAttr, target: u32, srq: u32) -> Result<(), Box<dyn std::error::Error>> {
/// let mut qp = pd.create_qp::<XrcSend>(&QpInit::new(cq, cq))?;
/// qp.init(&InitAttr::new(1))?;
/// qp.ready_to_receive(&UcRtrAttr::new(to, target))?;
/// qp.ready_to_send(&RtsAttr::default())?;
/// let mut batch = qp.start_send();
/// batch.send_to_srq_inline(1, srq, b"to one of many", SendFlags::SIGNALED)?;
/// batch.ring()?;
/// # Ok(())
/// # }
/// ```
///
/// A request without the queue that it goes to does not compile:
///
/// ```compile_fail,E0308
/// # use bareverbs::{Operation, Payload, Qp, SendFlags, SendRequest, XrcSend};
/// # fn send(qp: &mut Qp<XrcSend>) {
/// let operation = Operation::Send;
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
#[doc(alias = "IBV_QPT_XRC_SEND")]
#[derive(Clone, Copy, Debug)]
pub struct XrcSend;

impl Transport for XrcSend {
    const QP_TYPE: QpType = QpType::XRC_INI;
    type Operation<'a, P: Provider> = XrcOperation;
}

impl Sealed for XrcSend {
    #[inline]
    unsafe fn push<P: Provider>(
        queue: &mut P::Sq,
        request: &SendRequest<'_, XrcOperation>,
    ) -> Result<(), PushError> {
        // SAFETY: the caller's promise is the same.
        unsafe { queue.push_xrc(request) }
    }
}

impl<P: Provider> Qp<XrcSend, P> {
    /// RESET → INIT.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, for a P_Key index beyond the port's table or rights
    /// that only regions have; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        self.reset_to_init(attr)
    }

    /// INIT → RTR: towards the [`XrcTarget`] `dest_qp_num`.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, without a global route on RoCE or a LID on
    /// InfiniBand, towards a multicast group, for numbers out of range or an MTU above the port's;
    /// [`Error::NoPort`]; [`Error::NoGid`]; the kernel refuses.
    pub fn ready_to_receive(&mut self, attr: &UcRtrAttr) -> Result<()> {
        let address = self.check_peer(&attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        self.init_to_rtr((&UcRtrAttr { address, ..*attr }).into())
    }

    /// RTR → RTS: sends are carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state or for a packet number of more than 24 bits;
    /// [`Error::Limit`]; the kernel refuses.
    pub fn ready_to_send(&mut self, attr: &RtsAttr) -> Result<()> {
        self.rtr_to_rts_reliable(attr)
    }
}

impl<P: Provider> Batch<'_, XrcSend, P> {
    /// A message to the peer's shared receive queue `remote_srq`, whose bytes are copied now, so
    /// that nothing has to stay registered.
    ///
    /// # Errors
    /// The request is refused, for instance since the queue pair was made for fewer bytes inline.
    pub fn send_to_srq_inline(
        &mut self,
        wr_id: u64,
        remote_srq: u32,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let operation = XrcOperation { remote_srq, operation: Operation::Send };
        let request = SendRequest { wr_id, operation, flags, payload: Payload::Inline(&[bytes]) };
        // SAFETY: the request names no memory but what is copied before this returns.
        unsafe { self.push(&request) }
    }
}

/// What RTR → RTS sets in receiving ends of extended reliable connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcTargetRtsAttr {
    /// Number of the first packet sent, 24 bits; it sends acknowledgements only.
    pub sq_psn: u32,
    /// As [`RtsAttr::timeout`].
    pub timeout: u8,
}

impl Default for XrcTargetRtsAttr {
    /// Timeout 14 (67 ms), packets numbered from 0.
    fn default() -> Self {
        Self { sq_psn: 0, timeout: 14 }
    }
}

/// The receiving end of an extended reliable connection, which the kernel and the device have to
/// themselves: it has no queues, and no owner needs to look at it once it is up.
/// [`Xrcd::create_target`] makes one.
///
/// Requests that come to it take receives of the [`XrcSrq`](crate::XrcSrq) that they name. Those
/// that take none, such as writes and reads, reach the memory of the protection domain of that
/// queue.
///
/// ```no_run
/// # use bareverbs::{AhAttr, InitAttr, RtrAttr, XrcTarget, XrcTargetRtsAttr};
/// # fn example(target: &mut XrcTarget, to: AhAttr, sender: u32) -> bareverbs::Result<()> {
/// target.init(&InitAttr::new(1))?;
/// target.ready_to_receive(&RtrAttr::new(to, sender))?;
/// target.ready_to_send(&XrcTargetRtsAttr::default())?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub struct XrcTarget<P: Provider = AnyProvider> {
    xrcd: Xrcd<P>,
    handle: u32,
    qp_num: u32,
    user_data: u64,
    state: QpState,
    destroyed: bool,
}

impl<P: Provider> XrcTarget<P> {
    pub(crate) fn create(xrcd: &Xrcd<P>, user_data: u64) -> Result<Self> {
        let request = XrcTargetRequest { xrcd: xrcd.handle(), user_handle: user_data };
        let QpHandle { handle, qp_num, .. } = xrcd
            .context()
            .provider()
            .create_xrc_target(&request)
            .map_err(|reason| Error::create("create_qp", format!("{:?}", QpType::XRC_TGT), reason))?;
        let xrcd = xrcd.clone();
        Ok(Self { xrcd, handle, qp_num, user_data, state: QpState::RESET, destroyed: false })
    }

    pub(crate) fn open(xrcd: &Xrcd<P>, qp_num: u32, user_data: u64) -> Result<Self> {
        const VERB: &str = "open_qp";
        check_24_bits(VERB, "qp_num", qp_num)?;
        let request = XrcTargetRequest { xrcd: xrcd.handle(), user_handle: user_data };
        let opened =
            command::open_xrc_target(xrcd.context().file(), &request, qp_num).map_err(|refused| {
                Error::kernel(VERB, format!("QP {qp_num:#x}"), refused).or_hint(|errno| {
                    (errno == rustix::io::Errno::INVAL)
                        .then(|| "the domain may have no such target".to_owned())
                })
            })?;
        let (xrcd, handle) = (xrcd.clone(), opened.handle);
        let mut target = Self { xrcd, handle, qp_num, user_data, state: QpState::RESET, destroyed: false };
        target.state = target.query()?.qp_state;
        Ok(target)
    }

    /// Its number on the wire, 24 bits.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The state that it was last brought to through this handle, or had when it was opened.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// What comes back in asynchronous events.
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// The domain that it receives for.
    #[must_use]
    pub fn xrcd(&self) -> &Xrcd<P> {
        &self.xrcd
    }

    /// RESET → INIT.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, for a P_Key index beyond the port's table or rights
    /// that only regions have; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        self.check_state(INIT, QpState::RESET)?;
        check_init(self.xrcd.context(), attr)?;
        self.modify_qp(INIT, attr.into())
    }

    /// INIT → RTR: what the [`XrcSend`] queue pair `dest_qp_num` sends is carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, without a global route on RoCE or a LID on
    /// InfiniBand, towards a multicast group, for numbers out of range or an MTU above the port's;
    /// [`Error::Limit`]; [`Error::NoPort`]; [`Error::NoGid`]; the kernel refuses.
    pub fn ready_to_receive(&mut self, attr: &RtrAttr) -> Result<()> {
        self.check_state(RTR, QpState::INIT)?;
        let context = self.xrcd.context();
        let address = check_peer(context, &attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        check_rtr(context, attr)?;
        self.modify_qp(RTR, (&RtrAttr { address, ..*attr }).into())
            .map_err(|error| self.xrcd.context().path_error(error, &address))
    }

    /// RTR → RTS. It receives without that too.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state or for numbers out of range; the kernel refuses.
    pub fn ready_to_send(&mut self, attr: &XrcTargetRtsAttr) -> Result<()> {
        self.check_state(RTS, QpState::RTR)?;
        check_24_bits(RTS, "sq_psn", attr.sq_psn)?;
        check_max(RTS, "timeout", attr.timeout, 31)?;
        let XrcTargetRtsAttr { sq_psn, timeout } = *attr;
        let attr = QpAttr { qp_state: QpState::RTS, sq_psn, timeout, ..QpAttr::default() };
        self.modify_qp(RTS, (attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT))
    }

    /// To ERR, from any state but RESET: nothing is received any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET; the kernel refuses.
    pub fn set_error(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp to ERR";
        if self.state == QpState::RESET {
            return Err(Error::invalid(VERB, "the queue pair is in RESET, where nothing is under way"));
        }
        self.modify_qp(VERB, (QpAttr { qp_state: QpState::ERR, ..QpAttr::default() }, QpAttrMask::STATE))
    }

    /// To RESET, from any state: it can be brought up again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn reset(&mut self) -> Result<()> {
        let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        self.modify_qp("modify_qp to RESET", (attr, QpAttrMask::STATE))
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        command::query_qp(self.xrcd.context().file(), self.handle, QpAttrMask::STATE)
            .map(|resp| QpAttr::from_kernel(&resp))
            .map_err(|refused| Error::kernel("query_qp", format!("QP {:#x}", self.qp_num), refused))
    }

    /// Lets go of it and tells how many of its [events](crate::AsyncEvent::Qp) have been read here;
    /// with the last process that has it, it goes. Dropping does the same in silence.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<u32> {
        let number = self.qp_num;
        // SAFETY: it was not ended, and is dropped next.
        unsafe { self.destroy_inner() }
            .map_err(|refused| Error::kernel("destroy_qp", format!("QP {number:#x}"), refused))
    }

    /// # Safety
    ///
    /// It must not have been ended before, and must not be used afterwards, except to drop it.
    unsafe fn destroy_inner(&mut self) -> Result<u32, IoctlError> {
        self.destroyed = true;
        // SAFETY: the handle is this value's, which is used no more; the queue pair has no rings.
        unsafe { command::destroy_qp(self.xrcd.context().file(), self.handle) }
            .map(|resp| resp.events_reported)
    }

    fn check_state(&self, verb: &'static str, needed: QpState) -> Result<()> {
        if self.state == needed {
            return Ok(());
        }
        Err(Error::invalid(verb, format!("the queue pair is in {:?}, not in {needed:?}", self.state)))
    }

    fn modify_qp(&mut self, verb: &'static str, (attr, mask): (QpAttr, QpAttrMask)) -> Result<()> {
        let request = attr.to_kernel(self.handle, mask);
        // SAFETY: the request names the queue pair that this value has a handle of, and which has
        // no rings to reset.
        unsafe { command::modify_qp(self.xrcd.context().file(), &request.base) }.map_err(|refused| {
            Error::kernel(verb, format!("QP {:#x} in {:?}, {mask:?}", self.qp_num, self.state), refused)
        })?;
        self.state = attr.qp_state;
        Ok(())
    }
}

impl<P: Provider> Drop for XrcTarget<P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: it was not ended, and is being dropped.
            let _ = unsafe { self.destroy_inner() };
        }
    }
}
