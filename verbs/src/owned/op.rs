//! The public names of operations.

pub use super::hub::connection::PostOn;
pub use super::operation::{
    ByteRange, Inline, NoBuffer, Op, OpPayload, Parts, PostTo, Receive, SendQueueOperation,
};
