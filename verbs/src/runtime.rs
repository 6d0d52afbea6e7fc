//! What the modules for runtimes share.

use std::io;

use rustix::io::Errno;

use crate::Error;

pub(crate) fn failed(error: io::Error) -> Error {
    Error::system("waiting for events in a task", Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Declares the types that wait, over the module's own `Readiness`, which has `new` and `until`.
macro_rules! adapters {
    ($runtime:literal) => {
        #[doc = concat!("A [completion channel](crate::CompChannel) that tasks of ", $runtime, " wait on.")]
        ///
        /// A channel can be wrapped once at a time.
        #[derive(Debug)]
        pub struct CompChannel {
            channel: crate::CompChannel,
            readiness: Readiness,
        }

        impl CompChannel {
            /// Takes the channel into the runtime's care.
            ///
            /// # Errors
            /// There is no runtime here; it has the channel already (`EEXIST`).
            pub fn new(channel: crate::CompChannel) -> $crate::Result<Self> {
                Ok(Self { readiness: Readiness::new(channel.events())?, channel })
            }

            /// The channel, out of the runtime's care.
            #[must_use]
            pub fn into_inner(self) -> $crate::CompChannel {
                self.channel
            }

            /// Waits for an event.
            ///
            /// Where the future is dropped, no event is lost.
            ///
            /// # Errors
            /// The device is gone.
            pub async fn get_event(&self) -> $crate::Result<$crate::CompEvent> {
                self.readiness.until(|| self.channel.try_get_event()).await
            }

            /// Takes the next completion of `cq`, and waits for it where there is none: polls, arms
            /// the queue, polls again and only then sleeps, so that no completion is slept through.
            ///
            /// It takes events of other queues on the channel as reasons to look, and drops them.
            /// That is right with any number of queues, since one task waits at a time and begins
            /// by polling; where several shall be waited for together, arm them, poll them all once
            /// more and wait for
            #[doc = "[an event](Self::get_event)."]
            ///
            /// Where the future is dropped, no completion is lost.
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid) where the queue's events do not go to this
            /// channel; the kernel refuses to arm it; the device is gone.
            pub async fn completion<P: $crate::Provider>(
                &mut self,
                cq: &mut $crate::Cq<P>,
            ) -> $crate::Result<$crate::WorkCompletion> {
                if !cq.channel().is_some_and(|channel| channel.is(&self.channel)) {
                    let reason = "the queue's events do not go to this channel: create it with the channel";
                    return Err($crate::Error::invalid("CompChannel::completion", reason));
                }
                loop {
                    if let Some(completion) = cq.poll_one() {
                        return Ok(completion);
                    }
                    cq.arm($crate::Arm::Any)?;
                    // What completed before the queue was armed raises no event.
                    if let Some(completion) = cq.poll_one() {
                        return Ok(completion);
                    }
                    self.get_event().await?;
                }
            }
        }

        #[doc = concat!("A stream of [asynchronous events](crate::AsyncEvents) that tasks of ", $runtime, " wait for.")]
        ///
        /// The stream of a context can be wrapped once at a time.
        #[derive(Debug)]
        pub struct AsyncEvents {
            events: $crate::AsyncEvents,
            readiness: Readiness,
        }

        impl AsyncEvents {
            /// Takes the stream into the runtime's care.
            ///
            /// # Errors
            /// There is no runtime here; it has the stream already (`EEXIST`).
            pub fn new(events: $crate::AsyncEvents) -> $crate::Result<Self> {
                Ok(Self { readiness: Readiness::new(events.events())?, events })
            }

            /// The stream, out of the runtime's care.
            #[must_use]
            pub fn into_inner(self) -> $crate::AsyncEvents {
                self.events
            }

            /// Waits for an event.
            ///
            /// Where the future is dropped, no event is lost.
            ///
            /// # Errors
            /// The device is gone.
            pub async fn get(&self) -> $crate::Result<$crate::AsyncEvent> {
                self.readiness.until(|| self.events.try_get()).await
            }
        }

        #[doc = concat!("An [endpoint](crate::owned::Endpoint) that tasks of ", $runtime, " wait on.")]
        #[derive(Debug)]
        pub struct Endpoint<M = $crate::Buffer, P: $crate::Provider = $crate::AnyProvider> {
            endpoint: $crate::owned::Endpoint<M, P>,
            channel: $crate::CompChannel,
            readiness: Readiness,
        }

        impl<M, P: $crate::Provider> Endpoint<M, P> {
            /// Takes the endpoint into the runtime's care.
            ///
            /// # Errors
            /// There is no runtime here.
            pub fn new(endpoint: $crate::owned::Endpoint<M, P>) -> $crate::Result<Self> {
                let channel = endpoint.channel().clone();
                Ok(Self { readiness: Readiness::new(channel.events())?, endpoint, channel })
            }

            /// The endpoint, out of the runtime's care.
            #[must_use]
            pub fn into_inner(self) -> $crate::owned::Endpoint<M, P> {
                self.endpoint
            }

            /// The endpoint, to post to it.
            ///
            /// It has to stay in its place: [`Endpoint::wait`] refuses to wait for another one put
            /// there.
            #[must_use]
            pub fn get_mut(&mut self) -> &mut $crate::owned::Endpoint<M, P> {
                &mut self.endpoint
            }

            /// Waits until an operation ends.
            ///
            /// Where the future is dropped, no operation is lost.
            ///
            /// # Errors
            /// As for [`owned::Endpoint::wait`](crate::owned::Endpoint::wait);
            /// [`Error::Invalid`](crate::Error::Invalid) where [`get_mut`](Self::get_mut) was used
            /// to exchange the endpoint for another one.
            pub async fn wait(
                &mut self,
            ) -> $crate::Result<$crate::owned::Done<M>, $crate::owned::Failed<M>> {
                loop {
                    if let Some(ended) = self.endpoint.poll() {
                        return ended;
                    }
                    if self.endpoint.pending() == 0 {
                        return Err($crate::Error::invalid("Endpoint::wait", "no operation is under way").into());
                    }
                    if !self.endpoint.channel().is(&self.channel) {
                        let reason = "the endpoint was exchanged for another one: wrap that one anew";
                        return Err($crate::Error::invalid("Endpoint::wait", reason).into());
                    }
                    self.endpoint.arm()?;
                    // What ended before the endpoint was armed raises no event.
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
    /// Futures that can go from thread to thread, as runtimes with several want.
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
