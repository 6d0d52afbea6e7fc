//! Descriptors that are registered with an async runtime, for drivers of hubs.

/// A descriptor that is registered with an async runtime. `tokio::Readiness` and
/// `async_io::Readiness` of this crate implement it. It is sealed.
pub trait Readiness: sealed::Readiness {}

pub(crate) mod sealed {
    use std::task::{Context, Poll};

    use crate::{CompChannel, Result};

    pub trait Readiness: Sized + Send + 'static {
        /// Registers the descriptor of a channel with the runtime.
        fn register(channel: &CompChannel) -> Result<Self>;

        /// Waits until the descriptor is readable. Then it calls `drain`, which reads until the
        /// descriptor is empty, and forgets the readiness from before that call.
        fn poll_drain(&self, cx: &mut Context<'_>, drain: &mut dyn FnMut() -> Result<()>)
        -> Poll<Result<()>>;
    }
}
