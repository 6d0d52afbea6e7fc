//! Code that the modules for async runtimes share.

use std::io;

use rustix::io::Errno;

use crate::Error;

pub(crate) fn failed(error: io::Error) -> Error {
    Error::system("waiting for events in an async task", Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Declares the async wrapper types over the module's `Readiness`, which has `new` and `until`.
macro_rules! adapters {
    ($runtime:literal) => {
        #[doc = concat!("A [completion channel](crate::CompChannel) that tasks of ", $runtime, " wait on.")]
        ///
        /// A channel can have one wrapper at a time.
        #[derive(Debug)]
        pub struct CompChannel {
            channel: crate::CompChannel,
            readiness: Readiness,
        }

        impl CompChannel {
            /// Registers the channel with the runtime.
            ///
            /// # Errors
            /// There is no runtime, or the channel is registered already (`EEXIST`).
            pub fn new(channel: crate::CompChannel) -> $crate::Result<Self> {
                Ok(Self { readiness: Readiness::new(channel.events())?, channel })
            }

            /// Unregisters the channel from the runtime and returns it.
            #[must_use]
            pub fn into_inner(self) -> $crate::CompChannel {
                self.channel
            }

            /// Waits for an event. The future is cancel-safe: dropping it loses no event.
            ///
            /// # Errors
            /// As for [`CompChannel::get_event`](crate::CompChannel::get_event).
            pub async fn get_event(&self) -> $crate::Result<$crate::CompEvent> {
                self.readiness.until(|| self.channel.try_get_event()).await
            }

            /// Polls one completion of `cq`, and waits if the CQ is empty. It polls, arms the CQ,
            /// polls again and then sleeps, so it misses no completion.
            ///
            /// It discards events of other CQs on the channel. One task waits at a time and polls
            /// first, so this is correct with any number of CQs. To wait for several CQs at once,
            /// arm them, poll them all once more and wait for
            #[doc = "[an event](Self::get_event)."]
            ///
            /// The future is cancel-safe: dropping it loses no completion.
            ///
            /// # Errors
            /// - [`Error::Invalid`](crate::Error::Invalid): the CQ was not created with this
            ///   channel.
            /// - The errors of [`Cq::arm`](crate::Cq::arm) and [`get_event`](Self::get_event).
            pub async fn completion<P: $crate::Provider>(
                &mut self,
                cq: &mut $crate::Cq<P>,
            ) -> $crate::Result<$crate::WorkCompletion> {
                if !cq.channel().is_some_and(|channel| channel.is(&self.channel)) {
                    let reason = "the CQ does not use this channel: create the CQ with it";
                    return Err($crate::Error::invalid("CompChannel::completion", reason));
                }
                loop {
                    if let Some(completion) = cq.poll_one() {
                        return Ok(completion);
                    }
                    cq.arm($crate::Arm::Any)?;
                    // Completions before the arm raise no event.
                    if let Some(completion) = cq.poll_one() {
                        return Ok(completion);
                    }
                    self.get_event().await?;
                }
            }
        }

        #[doc = concat!("A stream of [asynchronous events](crate::AsyncEvents) that tasks of ", $runtime, " wait for.")]
        ///
        /// The stream of a context can have one wrapper at a time.
        #[derive(Debug)]
        pub struct AsyncEvents {
            events: $crate::AsyncEvents,
            readiness: Readiness,
        }

        impl AsyncEvents {
            /// Registers the stream with the runtime.
            ///
            /// # Errors
            /// There is no runtime, or the stream is registered already (`EEXIST`).
            pub fn new(events: $crate::AsyncEvents) -> $crate::Result<Self> {
                Ok(Self { readiness: Readiness::new(events.events())?, events })
            }

            /// Unregisters the stream from the runtime and returns it.
            #[must_use]
            pub fn into_inner(self) -> $crate::AsyncEvents {
                self.events
            }

            /// Waits for an event. The future is cancel-safe: dropping it loses no event.
            ///
            /// # Errors
            /// As for [`AsyncEvents::get`](crate::AsyncEvents::get).
            pub async fn get(&self) -> $crate::Result<$crate::AsyncEvent> {
                self.readiness.until(|| self.events.try_get()).await
            }
        }

        #[doc = concat!("An [endpoint](crate::owned::Endpoint) that tasks of ", $runtime, " wait on.")]
        #[derive(Debug)]
        pub struct Endpoint<B = $crate::Mr<$crate::Buffer>, P: $crate::Provider = $crate::AnyProvider> {
            endpoint: $crate::owned::Endpoint<B, P>,
            channel: $crate::CompChannel,
            readiness: Readiness,
        }

        impl<B, P: $crate::Provider> Endpoint<B, P> {
            /// Registers the endpoint with the runtime.
            ///
            /// # Errors
            /// There is no runtime.
            pub fn new(endpoint: $crate::owned::Endpoint<B, P>) -> $crate::Result<Self> {
                let channel = endpoint.channel().clone();
                Ok(Self { readiness: Readiness::new(channel.events())?, endpoint, channel })
            }

            /// Unregisters the endpoint from the runtime and returns it.
            #[must_use]
            pub fn into_inner(self) -> $crate::owned::Endpoint<B, P> {
                self.endpoint
            }

            /// The endpoint, for posting.
            ///
            /// The caller must not replace it by another endpoint: [`Endpoint::wait`] then fails.
            #[must_use]
            pub fn get_mut(&mut self) -> &mut $crate::owned::Endpoint<B, P> {
                &mut self.endpoint
            }

            /// Waits until an operation completes. The future is cancel-safe: dropping it loses no
            /// operation.
            ///
            /// # Errors
            /// - The errors of [`owned::Endpoint::wait`](crate::owned::Endpoint::wait).
            /// - [`Error::Invalid`](crate::Error::Invalid): the endpoint was replaced through
            ///   [`get_mut`](Self::get_mut).
            pub async fn wait(
                &mut self,
            ) -> $crate::Result<$crate::owned::Done<B>, $crate::owned::Failed<B>> {
                loop {
                    if let Some(ended) = self.endpoint.poll() {
                        return ended;
                    }
                    if self.endpoint.pending() == 0 {
                        let reason = "no operation is outstanding";
                        return Err($crate::Error::invalid("Endpoint::wait", reason).into());
                    }
                    if !self.endpoint.channel().is(&self.channel) {
                        let reason = "the endpoint was replaced by another one: wrap the new one";
                        return Err($crate::Error::invalid("Endpoint::wait", reason).into());
                    }
                    self.endpoint.arm()?;
                    // Completions before the arm raise no event.
                    if let Some(ended) = self.endpoint.poll() {
                        return ended;
                    }
                    self.readiness.until(|| self.channel.try_get_event()).await?;
                }
            }
        }

        impl std::fmt::Debug for Readiness {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($runtime)
            }
        }
    };
}

pub(crate) use adapters;

#[cfg(test)]
mod tests {
    /// Requires a `Send` future, as multi-threaded runtimes do.
    fn can_move<T: Send>(_: &T) {}

    macro_rules! futures_can_move {
        ($name:ident, $runtime:ident) => {
            #[test]
            fn $name() {
                #[expect(dead_code, reason = "compiling it is the test")]
                fn futures(
                    channel: &mut crate::$runtime::CompChannel,
                    cq: &mut crate::Cq,
                    events: &crate::$runtime::AsyncEvents,
                    endpoint: &mut crate::$runtime::Endpoint,
                ) {
                    can_move(&channel.get_event());
                    can_move(&channel.completion(cq));
                    can_move(&events.get());
                    can_move(&endpoint.wait());
                }
            }
        };
    }

    #[cfg(feature = "tokio")]
    futures_can_move!(tokio_futures_are_send, tokio);
    #[cfg(feature = "async-io")]
    futures_can_move!(async_io_futures_are_send, async_io);
}
