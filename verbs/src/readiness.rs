//! Descriptors that are registered with an async runtime.

/// A descriptor that is registered with an async runtime. `tokio::Readiness` and
/// `async_io::Readiness` of this crate implement it. It is sealed.
pub trait Readiness: sealed::Readiness {}

pub(crate) mod sealed {
    use std::future::Future;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use crate::Result;
    use crate::event_fd::EventFd;

    /// The events of a descriptor, for the crate only.
    #[derive(Debug)]
    #[cfg_attr(
        not(any(feature = "async-io", feature = "tokio")),
        expect(dead_code, reason = "only runtimes read it")
    )]
    pub struct Events<'a>(pub(crate) &'a Arc<EventFd>);

    /// A file descriptor that is registered with a runtime.
    pub trait Readiness: Sized + Send + Sync + 'static {
        /// Name of the runtime.
        const RUNTIME: &'static str;

        /// Registers the descriptor.
        fn new(events: Events<'_>) -> Result<Self>;

        /// Calls `take` whenever the descriptor may be readable, until it returns a value. Several
        /// tasks can wait.
        fn until<T: Send>(
            &self,
            take: impl FnMut() -> Result<Option<T>> + Send,
        ) -> impl Future<Output = Result<T>> + Send;

        /// Runs a call that blocks beside the tasks of the runtime. If the future is dropped, the call
        /// ends by itself.
        fn blocking<T: Send + 'static>(
            call: impl FnOnce() -> Result<T> + Send + 'static,
        ) -> impl Future<Output = Result<T>> + Send;

        /// Waits until the descriptor is readable. Then it calls `drain`, which reads until the
        /// descriptor is empty, and forgets the readiness from before that call. One task can wait.
        fn poll_drain(&self, cx: &mut Context<'_>, drain: &mut dyn FnMut() -> Result<()>)
        -> Poll<Result<()>>;
    }
}
