//! Transports as types.

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{Imm, Operation, Remote};
use bareverbs_uapi::uverbs::types::QpType;

use super::datagram::Datagram;

/// The operations that a send queue takes: those of a [`Transport`], or of a transport that is
/// known at run time only ([`AnyTransport`](crate::untyped::AnyTransport)).
pub trait Operations: private::Sealed + Copy + 'static {
    /// The type of its send operations.
    type Operation<'a, P: Provider>: Copy;
}

/// A transport of QPs, as a type. A QP has only the operations of its transport.
pub trait Transport: Operations + private::Typed {
    /// The QP type in the kernel's encoding.
    const QP_TYPE: QpType;
}

/// A transport between two connected QPs.
pub trait Connected: private::Shared {}

/// Reliable connected (RC): sends, reads, writes and atomics between two QPs, in order and
/// acknowledged.
#[doc(alias = "IBV_QPT_RC")]
#[derive(Clone, Copy, Debug)]
pub struct Rc;

/// Unreliable connected (UC): sends and writes between two QPs, in order. A lost message is lost
/// whole and is not reported.
///
/// UC has no reads, atomics or send-with-invalidate. Reads and atomics need a response, and UC has
/// none:
///
/// ```compile_fail,E0308
/// # use bareverbs::Remote;
/// # use bareverbs::qp::{Operation, Payload, Qp, SendFlags, SendRequest, Uc};
/// # fn read(qp: &mut Qp<Uc>, remote: Remote) {
/// let operation = Operation::Read(remote);
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
///
/// ```
/// # use bareverbs::Remote;
/// # use bareverbs::qp::{Payload, Qp, SendFlags, SendRequest, Uc, UcOperation};
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

/// Unreliable datagram (UD): messages of one packet to any QP, each with an address handle. A lost
/// message is not reported.
///
/// UD supports sends only, and each send needs an address:
///
/// ```compile_fail,E0308
/// # use bareverbs::qp::{Operation, Payload, Qp, SendFlags, SendRequest, Ud};
/// # fn send(qp: &mut Qp<Ud>) {
/// let operation = Operation::Send;
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # use bareverbs::Remote;
/// # use bareverbs::qp::{Operation, Payload, Qp, SendFlags, SendRequest, Ud};
/// # fn read(qp: &mut Qp<Ud>, remote: Remote) {
/// let operation = Operation::Read(remote);
/// let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
/// // SAFETY: no elements, so no memory that the device could reach.
/// unsafe { qp.post_send(&[request]) }.unwrap();
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn send(qp: &mut bareverbs::qp::Qp<bareverbs::qp::Ud>) {
/// qp.start_send().send_inline(1, b"to whom?", bareverbs::qp::SendFlags::SIGNALED);
/// # }
/// ```
#[doc(alias = "IBV_QPT_UD")]
#[derive(Clone, Copy, Debug)]
pub struct Ud;

/// Operation of a UC request; see [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UcOperation {
    /// Send: consumes a receive of the peer.
    Send,
    /// Send with immediate data.
    SendImm(Imm),
    /// RDMA write to the peer's memory.
    Write(Remote),
    /// RDMA write with immediate data; consumes a receive of the peer.
    WriteImm(Remote, Imm),
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

impl Operations for Rc {
    type Operation<'a, P: Provider> = Operation;
}

impl Transport for Rc {
    const QP_TYPE: QpType = QpType::RC;
}

impl Operations for Uc {
    type Operation<'a, P: Provider> = UcOperation;
}

impl Transport for Uc {
    const QP_TYPE: QpType = QpType::UC;
}

impl Operations for Ud {
    type Operation<'a, P: Provider> = Datagram<'a, P>;
}

impl Transport for Ud {
    const QP_TYPE: QpType = QpType::UD;
}

impl Connected for Rc {}
impl Connected for Uc {}

pub(crate) mod private {
    use bareverbs_provider::error::DoorbellError;
    use bareverbs_provider::traits::{Provider, SendQueue};
    use bareverbs_provider::work::{Operation, PushError, SendRequest};
    use bareverbs_uapi::uverbs::types::QpType;

    use crate::qp::datagram::Datagram;
    use crate::qp::transport::{Operations, Rc, Transport, Uc, UcOperation, Ud};

    pub trait Typed: Sealed {
        /// The transport as a value.
        const VALUE: Self;
    }

    /// Posting. The values of the transports of QPs have no size.
    pub trait Sealed: Sized {
        /// The QP type in the kernel's encoding.
        fn qp_type(self) -> QpType;

        /// Pushes a request by the fast path. Returns `false` if the fast path declined it.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        #[inline(always)]
        unsafe fn try_push<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, <Self as Operations>::Operation<'_, P>>,
        ) -> bool
        where
            Self: Operations + Copy,
        {
            let _ = (queue, request);
            false
        }

        /// Pushes requests by the fast path until it declines one. Returns the number pushed.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        #[inline(always)]
        unsafe fn try_push_all<P: Provider>(
            self,
            queue: &mut P::Sq,
            requests: &[SendRequest<'_, <Self as Operations>::Operation<'_, P>>],
        ) -> usize
        where
            Self: Operations + Copy,
        {
            let mut rest = requests;
            while let [request, more @ ..] = rest {
                // SAFETY: the caller's contract is the same.
                if !unsafe { self.try_push::<P>(queue, request) } {
                    break;
                }
                rest = more;
            }
            requests.len() - rest.len()
        }

        /// Posts a request by the fast path, with the doorbell or deferred. Returns `None` if the
        /// fast path declined it.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        #[inline(always)]
        unsafe fn try_post<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, <Self as Operations>::Operation<'_, P>>,
            defer: bool,
        ) -> Option<Result<(), DoorbellError>>
        where
            Self: Operations + Copy,
        {
            let _ = (queue, request, defer);
            None
        }

        /// Pushes a request by the slow path.
        ///
        /// # Safety
        ///
        /// As for [`SendQueue::push`].
        unsafe fn push<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, <Self as Operations>::Operation<'_, P>>,
        ) -> Result<(), PushError>
        where
            Self: Operations;
    }

    pub trait Shared: Transport {
        /// Converts a UC operation to the transport's operation type.
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

    impl Typed for Rc {
        const VALUE: Self = Self;
    }

    impl Sealed for Rc {
        #[inline(always)]
        fn qp_type(self) -> QpType {
            Self::QP_TYPE
        }

        #[inline(always)]
        unsafe fn try_push<P: Provider>(self, queue: &mut P::Sq, request: &SendRequest<'_>) -> bool {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.try_push(request) }
        }

        #[inline(always)]
        unsafe fn try_push_all<P: Provider>(self, queue: &mut P::Sq, requests: &[SendRequest<'_>]) -> usize {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.try_push_all(requests) }
        }

        #[inline(always)]
        unsafe fn try_post<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_>,
            defer: bool,
        ) -> Option<Result<(), DoorbellError>> {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.try_post(request, defer) }
        }

        #[inline]
        unsafe fn push<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_>,
        ) -> Result<(), PushError> {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.push(request) }
        }
    }

    impl Typed for Uc {
        const VALUE: Self = Self;
    }

    impl Sealed for Uc {
        #[inline(always)]
        fn qp_type(self) -> QpType {
            Self::QP_TYPE
        }

        #[inline(always)]
        unsafe fn try_push<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, UcOperation>,
        ) -> bool {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.try_push(&request.with(request.operation.into())) }
        }

        #[inline(always)]
        unsafe fn try_post<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, UcOperation>,
            defer: bool,
        ) -> Option<Result<(), DoorbellError>> {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.try_post(&request.with(request.operation.into()), defer) }
        }

        #[inline]
        unsafe fn push<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, UcOperation>,
        ) -> Result<(), PushError> {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.push(&request.with(request.operation.into())) }
        }
    }

    impl Typed for Ud {
        const VALUE: Self = Self;
    }

    impl Sealed for Ud {
        #[inline(always)]
        fn qp_type(self) -> QpType {
            Self::QP_TYPE
        }

        #[inline]
        unsafe fn push<P: Provider>(
            self,
            queue: &mut P::Sq,
            request: &SendRequest<'_, Datagram<'_, P>>,
        ) -> Result<(), PushError> {
            // SAFETY: the caller's contract is the same.
            unsafe { queue.push_datagram(&request.with(request.operation.to_provider())) }
        }
    }
}
