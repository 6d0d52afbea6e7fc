//! The two ways to wait: a thread sleeps, a task is woken.

use std::task::Waker;
use std::time::{Duration, Instant};

/// The caller of a wait: a thread or a task. A value that is waited for has one function for both,
/// `poll_by`.
#[derive(Clone, Copy, Debug)]
pub enum Caller<'w> {
    /// A thread. `poll_by` blocks, and is pending if this time has passed; `None`: no limit.
    Thread(Option<Instant>),
    /// A task. `poll_by` is pending if the waker will be woken.
    Task(&'w Waker),
}

impl Caller<'_> {
    /// A thread that waits at most for `limit`. One that overflows `Instant` is no limit.
    pub fn thread(limit: Duration) -> Self {
        Self::Thread(end_of(limit))
    }
}

/// The end of a wait that begins now, at most for `limit`. One that overflows `Instant` is no limit.
#[must_use]
pub fn end_of(limit: Duration) -> Option<Instant> {
    let end = Instant::now().checked_add(limit);
    #[cfg(feature = "backend")]
    LIMIT.set(end.map(|end| (end, limit)));
    end
}

#[cfg(feature = "backend")]
thread_local! {
    /// The limit of this thread's last wait with one, and its end.
    static LIMIT: std::cell::Cell<Option<(Instant, Duration)>> = const { std::cell::Cell::new(None) };
}

/// The limit of a wait that ends at `end`: the exact one for the last wait of this thread, otherwise
/// the time that is left.
#[cfg(feature = "backend")]
#[must_use]
pub fn limit_of(end: Instant) -> Duration {
    let exact = LIMIT.get().filter(|(last, _)| *last == end).map(|(_, limit)| limit);
    exact.unwrap_or_else(|| end.saturating_duration_since(Instant::now()))
}

/// Whether a time limit has passed. `None`: no limit.
#[inline]
pub fn is_past(end: Option<Instant>) -> bool {
    end.is_some_and(|end| Instant::now() >= end)
}

/// The ways to wait for a value, by its `poll_by`: its await, `wait` and `wait_timeout`. `threads`: the
/// latter two only. They call the function `first` before, if there is one: it returns a result that is
/// there.
#[doc(hidden)]
#[macro_export]
macro_rules! waits {
    ([$($generics:tt)*] $ty:ty => $output:ty $(, first $first:ident)?) => {
        $crate::waits!(threads [$($generics)*] $ty => $output $(, first $first)?);

        impl<$($generics)*> std::future::Future for $ty {
            type Output = $output;

            /// A poll that is pending loses no result. What dropping it does, its type says.
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
    (threads [$($generics:tt)*] $ty:ty => $output:ty $(, first $first:ident)?) => {
        impl<$($generics)*> $ty {
            /// Blocks the thread until the result is there.
            ///
            /// # Errors
            /// The errors of the await, without those of a missing runtime or driver.
            // It is inlined, so that a result that is there is returned in registers.
            #[inline(always)]
            pub fn wait(mut self) -> $output {
                $(if let Some(output) = self.$first() {
                    return output;
                })?
                match self.poll_by($crate::wait::Caller::Thread(None)) {
                    std::task::Poll::Ready(output) => output,
                    std::task::Poll::Pending => unreachable!("a thread without a limit gets a result"),
                }
            }

            /// Blocks the thread until the result is there, at most for `limit`. `None`: the limit has
            /// passed. Wait for it again.
            ///
            /// # Errors
            /// As for [`wait`](Self::wait).
            pub fn wait_timeout(&mut self, limit: std::time::Duration) -> Option<$output> {
                $(if let Some(output) = self.$first() {
                    return Some(output);
                })?
                match self.poll_by($crate::wait::Caller::thread(limit)) {
                    std::task::Poll::Ready(output) => Some(output),
                    std::task::Poll::Pending => None,
                }
            }
        }
    };
}
pub use crate::waits;
