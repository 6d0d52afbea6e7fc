//! The two ways to wait: a thread sleeps, a task is woken.

use std::task::Waker;
use std::time::{Duration, Instant};

/// The caller of a wait: a thread or a task. A value that is waited for has one function for both,
/// `poll_by`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Caller<'w> {
    /// A thread. `poll_by` blocks, and is pending if this time has passed; `None`: no limit.
    Thread(Option<Instant>),
    /// A task. `poll_by` is pending if the waker will be woken.
    Task(&'w Waker),
}

impl Caller<'_> {
    /// A thread that waits at most for `limit`. One that overflows `Instant` is no limit.
    pub(crate) fn thread(limit: Duration) -> Self {
        Self::Thread(Instant::now().checked_add(limit))
    }
}

/// The ways to wait for a value, by its `poll_by`: its await, `wait` and `wait_timeout`. `threads`: the
/// latter two only.
macro_rules! waits {
    ([$($generics:tt)*] $ty:ty => $output:ty) => {
        waits!(threads [$($generics)*] $ty => $output);

        impl<$($generics)*> std::future::Future for $ty {
            type Output = $output;

            /// Cancel-safe: dropping it loses no result.
            // It is inlined, so that a result that is there is returned in registers.
            #[inline(always)]
            fn poll(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
            ) -> std::task::Poll<$output> {
                self.get_mut().poll_by($crate::wait::Caller::Task(cx.waker()))
            }
        }
    };
    (threads [$($generics:tt)*] $ty:ty => $output:ty) => {
        impl<$($generics)*> $ty {
            /// Blocks the thread until the result is there.
            ///
            /// # Errors
            /// The errors of the await, without those of a missing runtime or driver.
            // It is inlined, so that a result that is there is returned in registers.
            #[inline(always)]
            pub fn wait(mut self) -> $output {
                match self.poll_by($crate::wait::Caller::Thread(None)) {
                    std::task::Poll::Ready(output) => output,
                    std::task::Poll::Pending => unreachable!("a thread without a limit gets a result"),
                }
            }

            /// Blocks the thread until the result is there, at most for `limit`. `None`: the limit has
            /// passed. Nothing is lost: wait for it again, or drop it.
            ///
            /// # Errors
            /// As for [`wait`](Self::wait).
            pub fn wait_timeout(&mut self, limit: std::time::Duration) -> Option<$output> {
                match self.poll_by($crate::wait::Caller::thread(limit)) {
                    std::task::Poll::Ready(output) => Some(output),
                    std::task::Poll::Pending => None,
                }
            }
        }
    };
}
pub(crate) use waits;

#[cfg(test)]
mod tests {
    /// Requires a `Send` future, as multi-threaded runtimes do.
    fn can_move<T: Send>(_: &T) {}

    #[test]
    fn futures_are_send() {
        #[expect(dead_code, reason = "compiling it is the test")]
        fn futures(
            channel: &mut crate::cq::CompChannel,
            cq: &mut crate::cq::Cq,
            events: &crate::AsyncEvents,
            endpoint: &mut crate::owned::Endpoint,
            datagrams: &mut crate::owned::Datagrams,
            server: &mut crate::owned::server::Server,
        ) {
            can_move(&channel.next());
            can_move(&channel.completion(cq));
            can_move(&events.next());
            can_move(&endpoint.next());
            can_move(&datagrams.next());
            can_move(&datagrams.next_recv());
            can_move(&datagrams.group(crate::Gid::default()));
            can_move(&server.next());
            can_move(&server.handle().acquire());
            can_move(&server.handle().shutdown());
        }
    }
}
