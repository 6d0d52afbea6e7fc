//! The two ways to wait.

pub(crate) use bareverbs_provider::wait::{Caller, is_past, waits};

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
