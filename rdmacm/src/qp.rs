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
use crate::steps::refused;
use crate::{CmId, ConnParam, Error, Result};

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

    fn attach(&mut self, runtime: Arc<dyn Runtime>) -> bareverbs::Result<()> {
        Endpoint::attach(self, runtime)
    }
}

/// Parameters of a connection whose QP is made by the caller and moved by this crate.
///
/// # Keepalive
///
/// An idle peer is probed by RDMA writes of length 0, so that a dead one ends a wait for receives:
/// [`EndpointOptions::keepalive`](bareverbs::EndpointOptions::keepalive). The kernel's connection
/// manager sets `REMOTE_WRITE` of the peer's QP. Set `keepalive(None)` for a peer that removes this
/// right: a probe would end the connection.
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
    /// The kernel's connection manager, on iWARP: when it has established the connection.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ece_options_are_those_that_the_caller_wants_of_the_device() {
        let own = Ece { vendor_id: 0x15b3, options: 0b1110 };
        let limited = |ece| ConnectOptions { ece, ..ConnectOptions::default() }.limit_ece(own);
        assert_eq!(limited(None), own);
        assert_eq!(limited(Some(Ece { options: 0b0011, ..own })), Ece { options: 0b0010, ..own });
        assert_eq!(limited(Some(Ece::default())), Ece { options: 0, ..own });
    }
}
