//! The types that the operations of a transport keep and return.

use bareverbs_provider::traits::Completion;
use bareverbs_provider::work::{Operation, WorkCompletion};

use super::super::Done;
use super::super::operation::Receive;
use crate::WcOpcode;

/// What the operations in flight of a transport keep and return.
pub(crate) trait QueueKind {
    /// What a send holds until it is complete, besides its buffer.
    type Held;
    /// What the completion of a receive says about the sender.
    type Sender: Copy + Default;
    /// A successful operation.
    type Done<B>;

    /// Why a closed list accepts no operation.
    const CLOSED: &'static str;

    /// Name of the method that waits.
    const WAIT: &'static str;

    /// Name of the method that arms the CQ.
    const ARM: &'static str;

    /// Name of the method that closes.
    const CLOSE: &'static str;

    /// The call that posts operations with this opcode.
    fn verb(opcode: WcOpcode) -> &'static str;

    /// The sender of a received message.
    fn sender(completion: &impl Completion) -> Self::Sender;

    /// As [`QueueKind::sender`].
    fn sender_of(completion: &WorkCompletion) -> Self::Sender;

    /// The result of an operation of the send queue.
    fn sent<B>(done: Done<B>) -> Self::Done<B>;

    /// The result of a receive.
    fn received<B>(done: Done<B>, sender: Self::Sender) -> Self::Done<B>;
}

/// An operation that a list posts.
pub(crate) trait ListOperation: Copy {
    /// The opcode of its completion.
    fn opcode(&self) -> WcOpcode;
}

/// An operation that a list of `K` posts to the send queue.
pub(crate) trait SendOperation<K: QueueKind>: ListOperation {
    /// What it holds until it is complete.
    fn held(&self) -> K::Held;
}

/// RC: operations of a connection.
pub(crate) enum Reliable {}

impl QueueKind for Reliable {
    type Held = ();
    type Sender = ();
    type Done<B> = Done<B>;

    const CLOSED: &'static str =
        "the connection has failed, or this side has ended it: create a new endpoint";
    const WAIT: &'static str = "Endpoint::next";
    const ARM: &'static str = "Endpoint::arm";
    const CLOSE: &'static str = "Endpoint::close";

    fn verb(opcode: WcOpcode) -> &'static str {
        match opcode {
            WcOpcode::RDMA_WRITE => "Endpoint::post(Op::write)",
            WcOpcode::RDMA_READ => "Endpoint::post(Op::read)",
            WcOpcode::FETCH_ADD => "Endpoint::post(Op::fetch_add)",
            WcOpcode::COMP_SWAP => "Endpoint::post(Op::compare_swap)",
            WcOpcode::SEND => "Endpoint::post(Op::send)",
            _ => "Endpoint::post(Op::recv)",
        }
    }

    #[inline(always)]
    fn sender(_: &impl Completion) {}

    fn sender_of(_: &WorkCompletion) {}

    #[inline(always)]
    fn sent<B>(done: Done<B>) -> Done<B> {
        done
    }

    #[inline(always)]
    fn received<B>(done: Done<B>, (): ()) -> Done<B> {
        done
    }
}

impl ListOperation for Receive {
    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        WcOpcode::RECV
    }
}

impl ListOperation for Operation {
    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        match self {
            Self::Write(_) | Self::WriteImm(..) => WcOpcode::RDMA_WRITE,
            Self::Read(_) => WcOpcode::RDMA_READ,
            Self::CmpSwp { .. } => WcOpcode::COMP_SWAP,
            Self::FetchAdd { .. } => WcOpcode::FETCH_ADD,
            _ => WcOpcode::SEND,
        }
    }
}

impl SendOperation<Reliable> for Operation {
    #[inline(always)]
    fn held(&self) {}
}
