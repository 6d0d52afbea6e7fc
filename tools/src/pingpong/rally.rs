//! Whose turn it is: the counting of a ping-pong, apart from the device.

/// The `wr_id` of receives.
pub(crate) const RECV_ID: u64 = 1;
/// The `wr_id` of sends.
pub(crate) const SEND_ID: u64 = 2;

/// Which side of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// Waits for the peer's TCP connection and for its first message.
    Server,
    /// Connects, and sends the first message.
    Client,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

/// A run in progress.
///
/// A side sends its next message when the last one is complete and the peer's next one has come.
#[derive(Debug)]
pub(crate) struct Rally {
    messages: u64,
    rx_depth: u32,
    posted_recvs: u32,
    waiting_for_send: bool,
    waiting_for_recv: bool,
    sent: u64,
    received: u64,
}

/// What a completion makes due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Receives to post.
    pub(crate) recvs: u32,
    /// Post the next message.
    pub(crate) send: bool,
}

impl Rally {
    /// A run of `messages` messages each way, with all `rx_depth` receives posted and, on the client's side, the
    /// first message under way.
    pub(crate) fn new(side: Side, messages: u64, rx_depth: u32) -> Self {
        Self {
            messages,
            rx_depth,
            posted_recvs: rx_depth,
            waiting_for_send: side == Side::Client,
            waiting_for_recv: true,
            sent: 0,
            received: 0,
        }
    }

    /// Whether every message is sent and received.
    pub(crate) fn is_over(&self) -> bool {
        self.sent >= self.messages && self.received >= self.messages
    }

    /// Messages of this side that are complete.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages of the peer that have come.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Takes the send queue's only place, if it is free.
    pub(crate) fn start_sending(&mut self) -> bool {
        !std::mem::replace(&mut self.waiting_for_send, true)
    }

    /// Requests that are posted and not complete.
    pub(crate) fn outstanding(&self) -> u64 {
        u64::from(self.posted_recvs) + u64::from(self.waiting_for_send)
    }

    /// A send is complete.
    pub(crate) fn on_send(&mut self) -> Due {
        self.sent += 1;
        self.waiting_for_send = false;
        Due { recvs: 0, send: self.take_turn() }
    }

    /// A message has come.
    pub(crate) fn on_recv(&mut self) -> Due {
        self.received += 1;
        self.posted_recvs -= 1;
        let recvs = if self.posted_recvs <= 1 { self.rx_depth - self.posted_recvs } else { 0 };
        self.posted_recvs += recvs;
        self.waiting_for_recv = false;
        Due { recvs, send: self.take_turn() }
    }

    fn take_turn(&mut self) -> bool {
        let turn = self.sent < self.messages && !self.waiting_for_send && !self.waiting_for_recv;
        if turn {
            self.start_sending();
            self.waiting_for_recv = true;
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_server_answers_each_message_once() {
        let mut server = Rally::new(Side::Server, 2, 500);
        assert_eq!(server.on_recv(), Due { recvs: 0, send: true });
        assert_eq!(server.on_send(), Due::default());
        assert!(!server.is_over());
        assert_eq!(server.on_recv(), Due { recvs: 0, send: true });
        assert_eq!(server.on_send(), Due::default());
        assert!(server.is_over());
    }

    #[test]
    fn the_client_stops_after_the_last_answer() {
        let mut client = Rally::new(Side::Client, 1, 500);
        assert_eq!(client.on_send(), Due::default());
        assert!(!client.is_over());
        assert_eq!(client.on_recv(), Due::default());
        assert!(client.is_over());
    }

    #[test]
    fn an_answer_may_come_before_the_completion_of_what_it_answers() {
        let mut client = Rally::new(Side::Client, 2, 500);
        assert_eq!(client.on_recv(), Due::default());
        assert_eq!(client.outstanding(), 500);
        assert_eq!(client.on_send(), Due { recvs: 0, send: true });
    }

    #[test]
    fn one_receive_is_reposted_before_it_is_answered() {
        let mut server = Rally::new(Side::Server, 3, 1);
        assert_eq!(server.on_recv(), Due { recvs: 1, send: true });
    }

    #[test]
    fn receives_are_reposted_when_one_is_left() {
        let mut server = Rally::new(Side::Server, 10, 4);
        let mut reposted = Vec::new();
        for _ in 0..7 {
            reposted.push(server.on_recv().recvs);
            server.on_send();
        }
        assert_eq!(reposted, [0, 0, 3, 0, 0, 3, 0]);
    }

    proptest! {
        /// Two sides, completions in any order: the run ends, with a receive posted for each message.
        #[test]
        fn every_run_ends(messages in 1..60u64, depths in (1..9u32, 1..9u32), order: Vec<bool>) {
            let mut sides =
                [Rally::new(Side::Client, messages, depths.0), Rally::new(Side::Server, messages, depths.1)];
            let mut recvs = [depths.0, depths.1];
            // What each side has to complete: own sends, messages that came.
            let mut sends = [1u32, 0];
            let mut arrived = [0u32, 1];
            let mut order = order.into_iter().cycle();
            while !(sides[0].is_over() && sides[1].is_over()) {
                let send_first = order.next().unwrap_or(true);
                let runnable = (0..2).find(|&s| sends[s] + arrived[s] > 0).expect("neither side stands still");
                let due = if sends[runnable] > 0 && (send_first || arrived[runnable] == 0) {
                    sends[runnable] -= 1;
                    sides[runnable].on_send()
                } else {
                    arrived[runnable] -= 1;
                    prop_assert!(recvs[runnable] > 0, "a message found no receive");
                    recvs[runnable] -= 1;
                    sides[runnable].on_recv()
                };
                recvs[runnable] += due.recvs;
                if due.send {
                    sends[runnable] += 1;
                    arrived[1 - runnable] += 1;
                }
            }
            for side in &sides {
                prop_assert_eq!((side.sent(), side.received()), (messages, messages));
            }
        }
    }
}
