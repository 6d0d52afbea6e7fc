//! Queue pairs of connections.

use std::sync::Arc;

use bareverbs::ah::AhAttr;
use bareverbs::device::RdAtomicLimits;
use bareverbs::qp::{Ece, Qp, QpAttr, QpAttrMask, QpState, QpType, Rc, RtrAttr, Uc};
use bareverbs::runtime::Runtime;
use bareverbs::values::{MinRnrTimer, RetryCount, RnrRetry};
use bareverbs::xrc::{XrcSend, XrcTarget};
use bareverbs::{Access, Endpoint, Provider};

use crate::command::is_iwarp_mask;
use crate::event::{EstablishedParam, EventKind};
use crate::param::RequestParam;
use crate::steps::{failure_of, refused};
use crate::{CmId, ConnParam, ConnectRequest, Error, PeerParam, Result};

/// Most reads and atomics at a time that a connection has by default.
const RD_ATOMIC: u8 = 16;

mod sealed {
    use std::sync::Arc;

    use bareverbs::Provider;
    use bareverbs::qp::{Ece, Qp, QpAttr, QpAttrMask, QpType, Transport};
    use bareverbs::runtime::Runtime;

    pub trait Sealed {
        fn qp_type(&self) -> QpType;
        /// The most reads and atomics that the device has outstanding as responder and as requester.
        fn rd_atomic(&self) -> [u32; 2];
        fn qp_num(&self) -> u32;
        fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> bareverbs::Result<()>;
        /// The kernel's connection manager has moved it to RTS, on iWARP.
        fn moved_to_rts(&mut self) -> bareverbs::Result<()>;

        /// `None`: it uses no ECE options.
        fn ece(&self) -> Option<Ece> {
            None
        }

        fn set_ece(&mut self, _: Ece) -> bareverbs::Result<()> {
            Ok(())
        }

        /// Private data that tells the peer what its probes read, on iWARP.
        fn probe_offer(&self) -> Option<[u8; 20]> {
            None
        }

        /// Takes the [`probe_offer`](Self::probe_offer) of the peer.
        fn take_probe_offer(&mut self, _: Option<&[u8; 20]>) {}

        /// Registers it with the runtime of a task, if it has waits.
        fn attach(&mut self, _: Arc<dyn Runtime>) -> bareverbs::Result<()> {
            Ok(())
        }
    }

    /// A transport that the connection manager connects.
    pub trait Connects: Transport {
        /// As [`Sealed::moved_to_rts`]. iWARP has RC only.
        fn moved_to_rts<P: Provider>(_: &mut Qp<Self, P>) -> bareverbs::Result<()>
        where
            Self: Sized,
        {
            Ok(())
        }
    }
}

/// A queue pair that a connection moves to RTS: [`Qp<Rc>`](bareverbs::qp::Qp), `Qp<Uc>`, the safe
/// [`Endpoint`](bareverbs::Endpoint) over an RC one, or one end of an XRC connection. It is
/// sealed.
///
/// The identifiers of UC and XRC queue pairs are those of
/// [`IdOptions::qp_type`](crate::IdOptions::qp_type). An XRC connection has a
/// [`Qp<XrcSend>`](bareverbs::xrc::XrcSend) at its active side and an
/// [`XrcTarget`](bareverbs::xrc::XrcTarget) at its passive side. It uses no ECE options.
pub trait ConnectQueue: sealed::Sealed {}

impl<T: sealed::Connects, P: Provider> ConnectQueue for Qp<T, P> {}
impl<B, P: Provider> ConnectQueue for Endpoint<B, P> {}
impl<P: Provider> ConnectQueue for XrcTarget<P> {}

impl sealed::Connects for Rc {
    fn moved_to_rts<P: Provider>(qp: &mut Qp<Self, P>) -> bareverbs::Result<()> {
        qp.set_cm_state(QpState::RTS)
    }
}

impl sealed::Connects for Uc {}
impl sealed::Connects for XrcSend {}

impl<T: sealed::Connects, P: Provider> sealed::Sealed for Qp<T, P> {
    fn qp_type(&self) -> QpType {
        T::QP_TYPE
    }

    /// UC has no reads and no atomics. An XRC requester does not answer them.
    fn rd_atomic(&self) -> [u32; 2] {
        let RdAtomicLimits { responder, requester, .. } = self.pd().context().rd_atomic_limits();
        match T::QP_TYPE {
            QpType::RC => [responder, requester],
            QpType::XRC_INI => [0, requester],
            _ => [0; 2],
        }
    }

    fn qp_num(&self) -> u32 {
        Qp::qp_num(self)
    }

    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> bareverbs::Result<()> {
        Qp::modify(self, attr, mask)
    }

    fn moved_to_rts(&mut self) -> bareverbs::Result<()> {
        T::moved_to_rts(self)
    }

    fn ece(&self) -> Option<Ece> {
        if T::QP_TYPE == QpType::XRC_INI { None } else { self.query_ece().ok() }
    }

    fn set_ece(&mut self, ece: Ece) -> bareverbs::Result<()> {
        Qp::set_ece(self, ece)
    }
}

impl<P: Provider> sealed::Sealed for XrcTarget<P> {
    fn qp_type(&self) -> QpType {
        QpType::XRC_TGT
    }

    /// It sends no requests.
    fn rd_atomic(&self) -> [u32; 2] {
        let RdAtomicLimits { responder, .. } = self.xrcd().context().rd_atomic_limits();
        [responder, 0]
    }

    fn qp_num(&self) -> u32 {
        XrcTarget::qp_num(self)
    }

    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> bareverbs::Result<()> {
        XrcTarget::modify(self, attr, mask)
    }

    /// iWARP has no XRC.
    fn moved_to_rts(&mut self) -> bareverbs::Result<()> {
        Ok(())
    }
}

impl<B, P: Provider> sealed::Sealed for Endpoint<B, P> {
    fn qp_type(&self) -> QpType {
        QpType::RC
    }

    fn rd_atomic(&self) -> [u32; 2] {
        self.qp().rd_atomic()
    }

    fn qp_num(&self) -> u32 {
        self.qp().qp_num()
    }

    fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> bareverbs::Result<()> {
        self.modify_qp(attr, mask)
    }

    fn moved_to_rts(&mut self) -> bareverbs::Result<()> {
        self.set_cm_state(QpState::RTS)
    }

    fn probe_offer(&self) -> Option<[u8; 20]> {
        Endpoint::probe_offer(self)
    }

    fn take_probe_offer(&mut self, offer: Option<&[u8; 20]>) {
        Endpoint::take_probe_offer(self, offer);
    }

    fn attach(&mut self, runtime: Arc<dyn Runtime>) -> bareverbs::Result<()> {
        Endpoint::attach(self, runtime)
    }
}

/// Parameters of a connection whose QP is made by the caller and moved by this crate.
///
/// # Keepalive
///
/// An idle peer is probed by RDMA writes of length 0 (on iWARP by reads), so that a dead one ends a wait
/// for receives: [`EndpointOptions::keepalive`](bareverbs::EndpointOptions::keepalive). The kernel's
/// connection manager sets `REMOTE_WRITE` of the peer's QP. Set `keepalive(None)` for a peer that removes
/// this right: a probe would end the connection.
///
/// # Example
///
/// ```
/// use bareverbs_rdmacm::ConnectOptions;
///
/// let options = ConnectOptions { private_data: b"hello", ..ConnectOptions::default() };
/// assert_eq!(options.rd_atomic, 16);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions<'a> {
    /// Data for the application of the peer; at most
    /// [`Message::max_private_data`](crate::Message::max_private_data) bytes.
    ///
    /// On iWARP, an endpoint without private data sends 20 bytes, `PRB1` and the memory that the probes of
    /// the peer read. A peer that uses this crate sees no private data then, another one the 20 bytes.
    pub private_data: &'a [u8],
    /// Remote operations that the peer may execute, on memory that allows them. An endpoint has the
    /// rights of its own options instead.
    pub access: Access,
    /// Maximum of outstanding reads and atomics, in each direction; less if the device or the peer
    /// has less. The default is 16.
    pub rd_atomic: u8,
    /// Retries after a timeout, of the QPs of both sides. The value of the active side counts.
    pub retry_count: RetryCount,
    /// RNR retries of the peer's QP. The default is no limit, so that receives may be posted after
    /// the connection is established.
    pub rnr_retry_count: RnrRetry,
    /// The time after which the peer repeats a message for which no receive was posted. The default is
    /// 0.64 ms (code 12).
    pub min_rnr_timer: MinRnrTimer,
    /// The ECE options that are offered or accepted, out of those of the device. `None` is all of
    /// them, and [`Ece::default`] is none. An endpoint and devices without ECE use no options.
    #[doc(alias = "rdma_set_local_ece")]
    pub ece: Option<Ece>,
}

impl Default for ConnectOptions<'_> {
    /// No private data, RDMA reads and writes by the peer, 16 reads and atomics, 6 retries, RNR
    /// retries without limit, the RNR timer of [`RtrAttr::new`], and all ECE options.
    fn default() -> Self {
        let RtrAttr { min_rnr_timer, .. } = RtrAttr::new(AhAttr::default(), 0);
        Self {
            private_data: &[],
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            rd_atomic: RD_ATOMIC,
            retry_count: RetryCount::DEFAULT,
            rnr_retry_count: RnrRetry::INFINITE,
            min_rnr_timer,
            ece: None,
        }
    }
}

impl<'a> ConnectOptions<'a> {
    /// The options of the device that the caller wants.
    pub(crate) fn limit_ece(&self, own: Ece) -> Ece {
        match self.ece {
            None => own,
            Some(wanted) if wanted.vendor_id == own.vendor_id => {
                Ece { options: own.options & wanted.options, ..own }
            }
            Some(_) => Ece { options: 0, ..own },
        }
    }

    /// The parameters of this side of a queue, without the limits of a peer.
    pub(crate) fn param<Q: ConnectQueue>(&self, queue: &Q) -> ConnParam<'a> {
        let [responder, initiator] = queue.rd_atomic().map(|limit| limit.min(self.rd_atomic.into()) as u8);
        ConnParam {
            private_data: self.private_data,
            responder_resources: responder,
            initiator_depth: initiator,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ece: queue.ece().map(|own| self.limit_ece(own)).unwrap_or_default(),
            ..ConnParam::new(queue.qp_num())
        }
    }
}

/// Rejects a queue of another type than its identifier has.
pub(crate) fn check_type<Q: ConnectQueue>(verb: &'static str, id: &CmId, queue: &Q) -> Result<()> {
    let (own, expected) = (queue.qp_type(), id.qp_type());
    if own == expected {
        return Ok(());
    }
    Err(Error::invalid(verb, format!("the queue pair is {own:?}, the identifier is for {expected:?}")))
}

/// Who moves a QP to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum MovedBy {
    /// This side, by [`bring_up`].
    Program,
    /// The kernel's connection manager, on iWARP: when it has established the connection. On the passive
    /// side, ACCEPT does.
    Kernel,
}

impl MovedBy {
    /// The connection is established.
    pub(crate) fn established<Q: ConnectQueue>(self, queue: &mut Q) -> Result<()> {
        match self {
            Self::Program => Ok(()),
            Self::Kernel => Ok(queue.moved_to_rts()?),
        }
    }

    /// The connection to `peer` is established. The queue learns what its probes read only now: it may get
    /// another peer if a connection fails.
    pub(crate) fn established_with<Q: ConnectQueue>(self, queue: &mut Q, peer: &PeerParam) -> Result<()> {
        queue.take_probe_offer(peer.probe_offer.as_ref());
        self.established(queue)
    }
}

/// Moves a QP to RTS by the attributes of its identifier, unless the kernel does. `param` limits the depths
/// of the passive side; for the active side, those of the response count.
pub(crate) fn bring_up<Q: ConnectQueue>(
    id: &CmId,
    queue: &mut Q,
    options: &ConnectOptions<'_>,
    param: Option<&ConnParam<'_>>,
) -> Result<MovedBy> {
    if id.is_established() {
        return Ok(MovedBy::Kernel);
    }
    let explain = |error| match param {
        None => refused(id, "connect", error),
        Some(_) => error.withdrawn("accept"),
    };
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        let (mut attr, mask) = id.init_qp_attr(state).map_err(explain)?;
        if state == QpState::INIT && is_iwarp_mask(mask) {
            return Ok(MovedBy::Kernel);
        }
        // The kernel's rights are those of the connection parameters, and grant FLUSH on devices
        // that have it; its RNR timer is 655 ms.
        (attr.access, attr.min_rnr_timer) = (options.access, options.min_rnr_timer);
        if let Some(param) = param {
            (attr.max_dest_rd_atomic, attr.max_rd_atomic) =
                (param.responder_resources, param.initiator_depth);
        }
        queue.modify(&attr, mask)?;
    }
    Ok(MovedBy::Program)
}

/// Uses the peer's ECE options that the caller wants, if they are of this device's vendor, else none.
fn agree_on_ece<Q: ConnectQueue>(queue: &mut Q, options: &ConnectOptions<'_>, peer: Ece) -> Result<()> {
    if let Some(own) = queue.ece() {
        let offered = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
        queue.set_ece(options.limit_ece(Ece { options: offered, ..own }))?;
    }
    Ok(())
}

/// The options with the memory of probes as private data, if the caller has none.
pub(crate) fn with_offer<'a>(
    options: &ConnectOptions<'a>,
    offer: Option<&'a [u8; 20]>,
) -> ConnectOptions<'a> {
    match offer {
        Some(offer) if options.private_data.is_empty() => ConnectOptions { private_data: offer, ..*options },
        _ => *options,
    }
}

/// Moves the queue of the active side to RTS, when the peer has accepted.
pub(crate) fn answered<Q: ConnectQueue>(
    id: &CmId,
    queue: &mut Q,
    options: &ConnectOptions<'_>,
    peer: &PeerParam,
) -> Result<()> {
    agree_on_ece(queue, options, peer.ece)?;
    bring_up(id, queue, options, None)?.established_with(queue, peer)
}

/// Moves the queue of the passive side to RTS, before the request is accepted with the parameters that
/// this returns.
pub(crate) fn prepare_accept<'a, Q: ConnectQueue>(
    verb: &'static str,
    request: &ConnectRequest,
    queue: &mut Q,
    options: &ConnectOptions<'a>,
) -> Result<(PeerParam, ConnParam<'a>, MovedBy)> {
    let RequestParam::Connection(peer) = request.param().clone() else {
        return Err(Error::invalid(verb, "the request is for a datagram QP"));
    };
    check_type(verb, request.id(), queue)?;
    let mut param = options.param(queue);
    // Resources that the peer can't use are not reserved.
    param.responder_resources = param.responder_resources.min(peer.responder_resources);
    param.initiator_depth = param.initiator_depth.min(peer.initiator_depth);
    agree_on_ece(queue, options, peer.ece)?;
    let moved_by = bring_up(request.id(), queue, options, Some(&param))?;
    param.ece = queue.ece().unwrap_or_default();
    Ok((peer, param, moved_by))
}

impl CmId {
    /// Sends a connection request for the queue. The identifier must have a resolved route. Pass its events
    /// to [`CmId::establish_qp`].
    ///
    /// `connect_qp`, `establish_qp` and [`ConnectRequest::accept_qp`] are for programs that handle the
    /// events of many identifiers in a loop of their own.
    /// [`Route::connect`](crate::connection::Route::connect) has all steps in one call.
    ///
    /// ```
    /// use bareverbs::qp::{Qp, Rc};
    /// use bareverbs_rdmacm::event::EventKind;
    /// use bareverbs_rdmacm::{CmId, ConnectOptions, ConnectRequest, EventChannel};
    ///
    /// /// Returns when the connection is established.
    /// fn connect(id: &CmId, qp: &mut Qp<Rc>) -> bareverbs_rdmacm::Result<()> {
    ///     let options = ConnectOptions::default();
    ///     id.connect_qp(qp, &options)?;
    ///     loop {
    ///         let event = id.channel().next().wait()?;
    ///         if event.key == id.key() && id.establish_qp(qp, &options, event.kind)? {
    ///             return Ok(());
    ///         }
    ///     }
    /// }
    ///
    /// fn accept(request: ConnectRequest, qp: &mut Qp<Rc>) -> bareverbs_rdmacm::Result<CmId> {
    ///     request.accept_qp(qp, &ConnectOptions::default())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the QP has another type than the identifier.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect_qp<Q: ConnectQueue>(&self, queue: &Q, options: &ConnectOptions<'_>) -> Result<()> {
        check_type("connect_qp", self, queue)?;
        let offer = queue.probe_offer();
        self.connect(&with_offer(options, offer.as_ref()).param(queue))
    }

    /// Handles an event of an identifier whose connection has a queue. Returns whether the connection is
    /// established and the queue in RTS.
    ///
    /// | event | InfiniBand, RoCE | iWARP |
    /// |---|---|---|
    /// | [`ConnectResponse`](EventKind::ConnectResponse) | moves the queue to RTS, confirms, returns `true` | does not come |
    /// | [`Established`](EventKind::Established), active side | does not come | the kernel has moved the QP: `true` |
    /// | `Established`, passive side | the peer has confirmed: `true` | `true` |
    ///
    /// Every other event: `false`, or its error. `options` are those of [`CmId::connect_qp`]. On the passive
    /// side, the request was accepted by [`ConnectRequest::accept_qp`], or on iWARP by
    /// [`ConnectRequest::accept`] with the queue's QP number. Read the peer's private data from the event
    /// before this call.
    ///
    /// # Errors
    /// - An event that means failure, as its error: [`Error::Rejected`], [`Error::Unreachable`],
    ///   [`Error::Disconnected`], [`Error::DeviceRemoved`], and those of a resolution.
    /// - [`Error::Verbs`]: a transition of the queue pair failed.
    /// - The errors of [`CmId::establish`].
    #[doc(alias = "rdma_establish")]
    pub fn establish_qp<Q: ConnectQueue>(
        &self,
        queue: &mut Q,
        options: &ConnectOptions<'_>,
        event: EventKind,
    ) -> Result<bool> {
        const VERB: &str = "establish_qp";
        let peer = match event {
            EventKind::Established(_) if self.has_accepted() => {
                // Accepted by `ConnectRequest::accept`: the kernel has moved the QP, and the queue does not
                // know it.
                if !self.is_established() && self.is_iwarp().unwrap_or(false) {
                    self.set_established();
                    queue.moved_to_rts()?;
                }
                return Ok(true);
            }
            EventKind::ConnectResponse(peer) => peer,
            EventKind::Established(EstablishedParam::Connection(peer)) => {
                self.set_established();
                peer
            }
            other => return failure_of(self, other, VERB).map_or(Ok(false), Err),
        };
        answered(self, queue, options, &peer)?;
        self.establish().map_err(|error| refused(self, VERB, error))?;
        Ok(true)
    }
}

impl ConnectRequest {
    /// Moves the queue to RTS and accepts the request. The identifier gets
    /// [`EventKind::Established`] next. On iWARP, the kernel has moved the QP when this returns.
    ///
    /// # Errors
    /// The request is rejected then, or the accepted connection ends.
    ///
    /// - [`Error::Verbs`]: a transition of the queue pair failed.
    /// - [`Error::Invalid`]: the request is for a datagram QP, or the QP has another type.
    /// - The errors of [`ConnectRequest::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept_qp<Q: ConnectQueue>(self, queue: &mut Q, options: &ConnectOptions<'_>) -> Result<CmId> {
        let offer = queue.probe_offer();
        let options = with_offer(options, offer.as_ref());
        let (peer, param, moved_by) = prepare_accept("accept_qp", &self, queue, &options)?;
        let id = self.accept(&param)?;
        moved_by.established_with(queue, &peer)?;
        if moved_by == MovedBy::Kernel {
            id.set_established();
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::rdma_cm::{Accept, structs};
    use rustix::io::Errno;

    use super::*;
    use crate::{EventChannel, Feature, PortSpace};

    /// A queue that records its states.
    #[derive(Debug, Default)]
    struct Recorder {
        states: Vec<QpState>,
        moved_to_rts: u32,
        offer: Option<[u8; 20]>,
    }

    impl ConnectQueue for Recorder {}

    impl sealed::Sealed for Recorder {
        fn qp_type(&self) -> QpType {
            QpType::RC
        }

        fn rd_atomic(&self) -> [u32; 2] {
            [1; 2]
        }

        fn qp_num(&self) -> u32 {
            7
        }

        fn modify(&mut self, attr: &QpAttr, _: QpAttrMask) -> bareverbs::Result<()> {
            self.states.push(attr.qp_state);
            Ok(())
        }

        fn moved_to_rts(&mut self) -> bareverbs::Result<()> {
            self.moved_to_rts += 1;
            Ok(())
        }

        fn take_probe_offer(&mut self, offer: Option<&[u8; 20]>) {
            self.offer = offer.copied();
        }
    }

    /// A request with this private data.
    fn request(channel: &EventChannel, private_data: &[u8]) -> ConnectRequest {
        let id = CmId::new(channel, PortSpace::Tcp).unwrap();
        let listener = id.key();
        let param = ConnParam { private_data, ..ConnParam::new(1) };
        let peer = PeerParam::from_kernel(&param.to_kernel(), param.kernel_ece());
        ConnectRequest::new(id, listener, RequestParam::Connection(peer))
    }

    #[test]
    fn events_establish_a_queue_on_every_transport() {
        let peer = || PeerParam::from_kernel(&structs::ConnParam::zeroed(), structs::Ece::zeroed());
        let established = || EventKind::Established(EstablishedParam::Connection(peer()));
        let options = ConnectOptions::default();
        for is_iwarp in [false, true] {
            let channel = EventChannel::simulated();
            let kernel = channel.file().kernel();
            if is_iwarp {
                kernel.set_iwarp();
            }
            let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
            let mut queue = Recorder::default();
            id.connect_qp(&queue, &options).unwrap();
            let mut handle = |kind| id.establish_qp(&mut queue, &options, kind);
            assert!(!handle(EventKind::RouteResolved).unwrap());
            let failed = handle(EventKind::ConnectError(Errno::INVAL)).unwrap_err();
            assert!(matches!(failed, Error::Unreachable(Errno::INVAL)), "{failed}");
            let answer = if is_iwarp { established() } else { EventKind::ConnectResponse(peer()) };
            assert!(handle(answer).unwrap());
            let moved = (&queue.states[..], queue.moved_to_rts, kernel.count::<Accept>());
            let own = [QpState::INIT, QpState::RTR, QpState::RTS];
            assert_eq!(moved, if is_iwarp { (&[][..], 1, 0) } else { (&own[..], 0, 1) });
            // The passive side.
            let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
            let listener = id.key();
            let request = ConnectRequest::new(id, listener, RequestParam::Connection(peer()));
            let mut queue = Recorder::default();
            let id = request.accept_qp(&mut queue, &options).unwrap();
            let moved = (&queue.states[..], queue.moved_to_rts);
            assert_eq!(moved, if is_iwarp { (&[][..], 1) } else { (&own[..], 0) });
            assert!(id.establish_qp(&mut queue, &options, established()).unwrap());
            assert_eq!(queue.moved_to_rts, u32::from(is_iwarp), "once");
        }
    }

    #[test]
    fn established_event_moves_a_queue_of_iwarp_that_a_plain_accept_has_named() {
        let channel = EventChannel::simulated();
        channel.file().kernel().set_iwarp();
        let mut queue = Recorder::default();
        let id = request(&channel, b"").accept(&ConnParam::new(7)).unwrap();
        let peer = PeerParam::from_kernel(&structs::ConnParam::zeroed(), structs::Ece::zeroed());
        for _ in 0..2 {
            let established = EventKind::Established(EstablishedParam::Connection(peer));
            assert!(id.establish_qp(&mut queue, &ConnectOptions::default(), established).unwrap());
            assert_eq!(queue.moved_to_rts, 1);
        }
    }

    #[test]
    fn queue_gets_the_memory_of_probes_of_an_accepted_peer_only() {
        let offer = *b"PRB1\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\x10\0";
        let channel = EventChannel::simulated();
        channel.file().kernel().set_iwarp();
        let (mut queue, options) = (Recorder::default(), ConnectOptions::default());
        let long = ConnectOptions { private_data: &[0; 252], ..options };
        assert!(request(&channel, &offer).accept_qp(&mut queue, &long).is_err());
        assert_eq!(queue.offer, None);
        let request = request(&channel, &offer);
        assert!(request.private_data().is_empty());
        request.accept_qp(&mut queue, &options).unwrap();
        assert_eq!(queue.offer, Some(offer));
    }

    #[test]
    fn datagrams_of_iwarp_are_unsupported() {
        let channel = EventChannel::simulated();
        channel.file().kernel().set_iwarp();
        let id = CmId::new(&channel, PortSpace::Udp).unwrap();
        for refused in [id.init_qp_attr(QpState::INIT).map(drop), id.listen(0)] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, Error::Unsupported { feature: Feature::Datagrams, .. }), "{refused}");
        }
        assert!(id.is_iwarp().unwrap());
    }

    #[test]
    fn ece_options_are_those_that_the_caller_wants_of_the_device() {
        let own = Ece { vendor_id: 0x15b3, options: 0b1110 };
        let limited = |ece| ConnectOptions { ece, ..ConnectOptions::default() }.limit_ece(own);
        assert_eq!(limited(None), own);
        assert_eq!(limited(Some(Ece { options: 0b0011, ..own })), Ece { options: 0b0010, ..own });
        assert_eq!(limited(Some(Ece::default())), Ece { options: 0, ..own });
    }
}
