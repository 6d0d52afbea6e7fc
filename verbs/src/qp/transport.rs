//! Transports as types.

use bareverbs_provider::contract::{DoorbellError, Provider, SendQueue};
use bareverbs_uapi::uverbs::types::QpType;

use super::Datagram;
use crate::{Operation, PushError, Remote, SendRequest};

/// A transport of queue pairs, as a type: what a transport cannot do, its queue pairs do not offer.
pub trait Transport: private::Sealed + 'static {
    /// The kernel's number for it.
    const QP_TYPE: QpType;

    /// What its send requests can do.
    type Operation<'a, P: Provider>: Copy;
}

/// A transport between two queue pairs that know each other.
pub trait Connected: private::Shared {}

/// Reliable connected: messages, reads, writes and atomics between two queue pairs, in order and
/// acknowledged.
#[doc(alias = "IBV_QPT_RC")]
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connected: messages and writes between two queue pairs, in order; what gets lost is
/// lost whole, and nobody is told.
///
/// It has no reads and no atomics, because nothing comes back from the peer, and its packets
/// invalidate no keys:
///
/// ```compile_fail,E0308
/// # use bareverbs::{Operation, Payload, Qp, Remote, SendFlags, SendRequest, Uc};
/// # fn read(qp: &mut Qp<Uc>, remote: Remote) {
/// let operation = Operation::Read(remote);
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
///
/// ```
/// # use bareverbs::{Payload, Qp, Remote, SendFlags, SendRequest, Uc, UcOperation};
/// # fn write(qp: &mut Qp<Uc>, remote: Remote) {
/// let operation = UcOperation::Write(remote);
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
#[doc(alias = "IBV_QPT_UC")]
#[derive(Clone, Copy, Debug)]
pub struct Uc;

/// Unreliable datagram: messages of one packet to any queue pair, each over an address handle; what
/// gets lost is lost.
///
/// It has nothing but messages, and each needs an address:
///
/// ```compile_fail,E0308
/// # use bareverbs::{Operation, Payload, Qp, SendFlags, SendRequest, Ud};
/// # fn send(qp: &mut Qp<Ud>) {
/// let operation = Operation::Send;
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # use bareverbs::{Operation, Payload, Qp, Remote, SendFlags, SendRequest, Ud};
/// # fn read(qp: &mut Qp<Ud>, remote: Remote) {
/// let operation = Operation::Read(remote);
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn send(qp: &mut bareverbs::Qp<bareverbs::Ud>) {
/// qp.start_send().send_inline(1, b"to whom?", bareverbs::SendFlags::SIGNALED);
/// # }
/// ```
#[doc(alias = "IBV_QPT_UD")]
#[derive(Clone, Copy, Debug)]
pub struct Ud;

/// What a request of an unreliable connection does; see [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UcOperation {
    /// A message into a receive of the peer.
    Send,
    /// A message with immediate data.
    SendImm(u32),
    /// Bytes into memory of the peer.
    Write(Remote),
    /// Bytes into memory of the peer, and a receive with immediate data.
    WriteImm(Remote, u32),
}

impl From<UcOperation> for Operation {
    #[inline(always)]
    fn from(operation: UcOperation) -> Self {
        match operation {
            UcOperation::Send => Self::Send,
            UcOperation::SendImm(imm) => Self::SendImm(imm),
            UcOperation::Write(remote) => Self::Write(remote),
            UcOperation::WriteImm(remote, imm) => Self::WriteImm(remote, imm),
        }
    }
}

impl Transport for Rc {
    const QP_TYPE: QpType = QpType::RC;
    type Operation<'a, P: Provider> = Operation;
}

impl Transport for Uc {
    const QP_TYPE: QpType = QpType::UC;
    type Operation<'a, P: Provider> = UcOperation;
}

impl Transport for Ud {
    const QP_TYPE: QpType = QpType::UD;
    type Operation<'a, P: Provider> = Datagram<'a, P>;
}

impl Connected for Rc {}
impl Connected for Uc {}

pub(super) mod private {
    use super::*;

    pub trait Sealed {
        /// Pushes a request of the transport's own kind by the fast path, or not at all.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        #[inline(always)]
        unsafe fn try_push<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_, <Self as Transport>::Operation<'_, P>>,
        ) -> bool
        where
            Self: Transport,
        {
            let _ = (queue, request);
            false
        }

        /// Pushes requests of the transport's own kind by the fast path, until one is not; tells
        /// how many.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        #[inline(always)]
        unsafe fn try_push_all<P: Provider>(
            queue: &mut P::Sq,
            requests: &[SendRequest<'_, <Self as Transport>::Operation<'_, P>>],
        ) -> usize
        where
            Self: Transport,
        {
            let mut rest = requests;
            while let [request, more @ ..] = rest {
                // SAFETY: the caller's promise is the same.
                if !unsafe { Self::try_push::<P>(queue, request) } {
                    break;
                }
                rest = more;
            }
            requests.len() - rest.len()
        }

        /// Posts a request of the transport's own kind by the fast path, with the doorbell now or
        /// later, or not at all.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        #[inline(always)]
        unsafe fn try_post<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_, <Self as Transport>::Operation<'_, P>>,
            defer: bool,
        ) -> Option<Result<(), DoorbellError>>
        where
            Self: Transport,
        {
            let _ = (queue, request, defer);
            None
        }

        /// Pushes a request of the transport's own kind.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        unsafe fn push<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_, <Self as Transport>::Operation<'_, P>>,
        ) -> Result<(), PushError>
        where
            Self: Transport;
    }

    pub trait Shared: Transport {
        /// The transport's own word for what all connections do.
        fn operation<P: Provider>(operation: UcOperation) -> Self::Operation<'static, P>;
    }

    impl Shared for Rc {
        #[inline(always)]
        fn operation<P: Provider>(operation: UcOperation) -> Operation {
            operation.into()
        }
    }

    impl Shared for Uc {
        #[inline(always)]
        fn operation<P: Provider>(operation: UcOperation) -> UcOperation {
            operation
        }
    }

    impl Sealed for Rc {
        #[inline(always)]
        unsafe fn try_push<P: Provider>(queue: &mut P::Sq, request: &SendRequest<'_>) -> bool {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.try_push(request) }
        }

        #[inline(always)]
        unsafe fn try_push_all<P: Provider>(queue: &mut P::Sq, requests: &[SendRequest<'_>]) -> usize {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.try_push_all(requests) }
        }

        #[inline(always)]
        unsafe fn try_post<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_>,
            defer: bool,
        ) -> Option<Result<(), DoorbellError>> {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.try_post(request, defer) }
        }

        #[inline]
        unsafe fn push<P: Provider>(queue: &mut P::Sq, request: &SendRequest<'_>) -> Result<(), PushError> {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.push(request) }
        }
    }

    impl Sealed for Uc {
        #[inline(always)]
        unsafe fn try_push<P: Provider>(queue: &mut P::Sq, request: &SendRequest<'_, UcOperation>) -> bool {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.try_push(&request.with(request.operation.into())) }
        }

        #[inline(always)]
        unsafe fn try_post<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_, UcOperation>,
            defer: bool,
        ) -> Option<Result<(), DoorbellError>> {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.try_post(&request.with(request.operation.into()), defer) }
        }

        #[inline]
        unsafe fn push<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_, UcOperation>,
        ) -> Result<(), PushError> {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.push(&request.with(request.operation.into())) }
        }
    }

    impl Sealed for Ud {
        #[inline]
        unsafe fn push<P: Provider>(
            queue: &mut P::Sq,
            request: &SendRequest<'_, Datagram<'_, P>>,
        ) -> Result<(), PushError> {
            // SAFETY: the caller's promise is the same.
            unsafe { queue.push_datagram(&request.with(request.operation.to_provider())) }
        }
    }
}
