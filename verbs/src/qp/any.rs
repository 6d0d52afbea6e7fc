//! Send operations whose transport is a value.

use std::fmt;

use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::traits::{Provider, SendQueue};
use bareverbs_provider::work::{Frame, Operation, PushError, SendRequest, XrcOperation};
use bareverbs_uapi::uverbs::types::QpType;

use crate::provider::AnyProvider;
use crate::qp::datagram::Datagram;
use crate::qp::transport::Operations;
use crate::qp::transport::private::Sealed;

/// A transport that is known at run time only: the parameter of the halves and batches of a
/// [`QpCore`](crate::untyped::QpCore). Its operations are [`AnyOperation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyTransport(QpType);

impl AnyTransport {
    /// `None` if QPs of the type take no requests from user space, or are unknown.
    pub(in crate::qp) fn new(qp_type: QpType) -> Option<Self> {
        let taken = [QpType::RC, QpType::UC, QpType::UD, QpType::XRC_INI, QpType::RAW_PACKET];
        taken.contains(&qp_type).then_some(Self(qp_type))
    }

    /// Whether a request with this operation may be pushed as one of RC.
    #[inline(always)]
    fn takes(self, operation: &Operation) -> bool {
        use Operation::{Send, SendImm, Write, WriteImm};
        self.0 == QpType::RC
            || self.0 == QpType::UC && matches!(operation, Send | SendImm(_) | Write(_) | WriteImm(..))
    }
}

/// A send operation of any transport.
#[non_exhaustive]
pub enum AnyOperation<'a, P: Provider = AnyProvider> {
    /// RC: any operation. UC: sends and writes, with and without immediate data.
    Connected(Operation),
    /// UD: the address handle, QPN and Q_Key of the peer.
    Datagram(Datagram<'a, P>),
    /// XRC initiator: an operation and the number of the peer's SRQ.
    Xrc(XrcOperation),
    /// Raw packet: the headers and offloads of an Ethernet frame.
    Frame(Frame<'a>),
}

impl<P: Provider> AnyOperation<'_, P> {
    /// Name for error messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Connected(operation) => operation.name(),
            Self::Datagram(_) => "a datagram",
            Self::Xrc(_) => "an XRC request",
            Self::Frame(_) => "a raw packet",
        }
    }
}

impl<P: Provider> Clone for AnyOperation<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for AnyOperation<'_, P> {}

impl<P: Provider> fmt::Debug for AnyOperation<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected(operation) => f.debug_tuple("Connected").field(operation).finish(),
            Self::Datagram(datagram) => f.debug_tuple("Datagram").field(datagram).finish(),
            Self::Xrc(operation) => f.debug_tuple("Xrc").field(operation).finish(),
            Self::Frame(frame) => f.debug_tuple("Frame").field(frame).finish(),
        }
    }
}

impl<P: Provider> From<Operation> for AnyOperation<'_, P> {
    fn from(operation: Operation) -> Self {
        Self::Connected(operation)
    }
}

impl<'a, P: Provider> From<Datagram<'a, P>> for AnyOperation<'a, P> {
    fn from(datagram: Datagram<'a, P>) -> Self {
        Self::Datagram(datagram)
    }
}

impl<P: Provider> From<XrcOperation> for AnyOperation<'_, P> {
    fn from(operation: XrcOperation) -> Self {
        Self::Xrc(operation)
    }
}

impl<'a, P: Provider> From<Frame<'a>> for AnyOperation<'a, P> {
    fn from(frame: Frame<'a>) -> Self {
        Self::Frame(frame)
    }
}

impl Operations for AnyTransport {
    type Operation<'a, P: Provider> = AnyOperation<'a, P>;
}

impl Sealed for AnyTransport {
    #[inline(always)]
    fn qp_type(self) -> QpType {
        self.0
    }

    #[inline(always)]
    unsafe fn try_push<P: Provider>(
        self,
        queue: &mut P::Sq,
        request: &SendRequest<'_, AnyOperation<'_, P>>,
    ) -> bool {
        match request.operation {
            // The fast path of a queue declines the operations that its transport lacks.
            AnyOperation::Connected(operation) => {
                // SAFETY: the caller's contract is the same.
                unsafe { queue.try_push(&request.with(operation)) }
            }
            _ => false,
        }
    }

    #[inline(always)]
    unsafe fn try_post<P: Provider>(
        self,
        queue: &mut P::Sq,
        request: &SendRequest<'_, AnyOperation<'_, P>>,
        defer: bool,
    ) -> Option<Result<(), DoorbellError>> {
        match request.operation {
            // As in `try_push`.
            AnyOperation::Connected(operation) => {
                // SAFETY: the caller's contract is the same.
                unsafe { queue.try_post(&request.with(operation), defer) }
            }
            _ => None,
        }
    }

    /// An operation that the transport lacks is [`PushError::Unsupported`].
    unsafe fn push<P: Provider>(
        self,
        queue: &mut P::Sq,
        request: &SendRequest<'_, AnyOperation<'_, P>>,
    ) -> Result<(), PushError> {
        // SAFETY: the caller's contract is the same.
        unsafe {
            match (self.0, request.operation) {
                (_, AnyOperation::Connected(operation)) if self.takes(&operation) => {
                    queue.push(&request.with(operation))
                }
                (QpType::UD, AnyOperation::Datagram(datagram)) => {
                    queue.push_datagram(&request.with(datagram.to_provider()))
                }
                (QpType::XRC_INI, AnyOperation::Xrc(operation)) => queue.push_xrc(&request.with(operation)),
                (QpType::RAW_PACKET, AnyOperation::Frame(frame)) => queue.push_frame(&request.with(frame)),
                (_, operation) => Err(PushError::Unsupported { operation: operation.name() }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ah::Ah;
    use crate::qp::{Payload, SendFlags};
    use crate::testing::Plain;
    use bareverbs_provider::work::Remote;

    #[test]
    fn queue_takes_the_operations_of_its_transport_only() {
        let plain = Plain::default();
        let ah = Ah::for_test(&plain.domain(), ());
        let remote = Remote { addr: 8, rkey: 0 };
        let operations: [AnyOperation<'_, Plain>; 6] = [
            Operation::Send.into(),
            Operation::Write(remote).into(),
            Operation::Read(remote).into(),
            Datagram::new(&ah, 1, 2).into(),
            XrcOperation { remote_srq: 1, operation: Operation::Send }.into(),
            Frame::default().into(),
        ];
        for (qp_type, taken) in [
            (QpType::RC, &[0, 1, 2][..]),
            (QpType::UC, &[0, 1]),
            (QpType::UD, &[3]),
            (QpType::XRC_INI, &[4]),
            (QpType::RAW_PACKET, &[5]),
        ] {
            let transport = AnyTransport::new(qp_type).unwrap();
            for (at, operation) in operations.iter().enumerate() {
                let payload = Payload::Inline(&[]);
                let request =
                    SendRequest { wr_id: 1, operation: *operation, flags: SendFlags::empty(), payload };
                let mut queue = plain.ring();
                // SAFETY: there is no device, and the request names no memory.
                let pushed = unsafe { transport.push::<Plain>(&mut queue, &request) };
                let expected = if taken.contains(&at) {
                    Ok(())
                } else {
                    Err(PushError::Unsupported { operation: operation.name() })
                };
                assert_eq!(pushed, expected, "{qp_type:?} {operation:?}");
                assert_eq!(queue.pushed.len(), usize::from(pushed.is_ok()));
            }
        }
    }

    #[test]
    fn types_without_send_queues_in_user_space_have_no_transport() {
        for qp_type in
            [QpType::SMI, QpType::GSI, QpType::XRC_TGT, QpType::DRIVER, QpType(7), QpType(u32::MAX)]
        {
            assert_eq!(AnyTransport::new(qp_type), None);
        }
    }
}
