//! The state machine of a ping-pong, independent of the device.

use crate::session::Role;

/// The `wr_id` of receives.
pub(crate) const RECV_ID: u64 = 1;
/// The `wr_id` of sends.
pub(crate) const SEND_ID: u64 = 2;

/// A run in progress, on one queue pair or on several that share their receives.
///
/// A queue pair sends its next message when its last send is complete and the peer's next message
/// has arrived. The run ends when the sums over all queue pairs reach the number of messages. Some
/// queue pairs may have outstanding requests at this point.
#[derive(Debug)]
pub(crate) struct RunState {
    messages: u64,
    rx_depth: u32,
    posted_recvs: u32,
    queue_pairs: Vec<Outstanding>,
    sent: u64,
    received: u64,
}

/// The outstanding requests of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    for_send: bool,
    for_recv: bool,
}

/// The requests to post after a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Actions {
    /// Receives to post.
    pub(crate) recvs: u32,
    /// Post the queue pair's next message.
    pub(crate) send: bool,
}

impl RunState {
    /// A run of `messages` messages each way, with all `rx_depth` receives posted. On the client,
    /// the first send of each queue pair is posted too.
    pub(crate) fn new(side: Role, messages: u64, rx_depth: u32, queue_pairs: usize) -> Self {
        let waiting = Outstanding { for_send: side == Role::Client, for_recv: true };
        Self {
            messages,
            rx_depth,
            posted_recvs: rx_depth,
            queue_pairs: vec![waiting; queue_pairs],
            sent: 0,
            received: 0,
        }
    }

    /// Whether all messages are sent and received.
    pub(crate) fn is_over(&self) -> bool {
        self.sent >= self.messages && self.received >= self.messages
    }

    /// Completed sends.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Received messages.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Reserves the only slot of a queue pair's send queue, if it is free.
    pub(crate) fn start_sending(&mut self, place: usize) -> bool {
        !std::mem::replace(&mut self.queue_pairs[place].for_send, true)
    }

    /// Posted receives that are not complete.
    pub(crate) fn outstanding_recvs(&self) -> u64 {
        self.posted_recvs.into()
    }

    /// Posted sends that are not complete.
    pub(crate) fn outstanding_sends(&self) -> u64 {
        self.queue_pairs.iter().map(|waiting| u64::from(waiting.for_send)).sum()
    }

    /// Records the completion of a send.
    pub(crate) fn on_send(&mut self, place: usize) -> Actions {
        self.sent += 1;
        self.queue_pairs[place].for_send = false;
        Actions { recvs: 0, send: self.take_turn(place) }
    }

    /// Records a received message.
    pub(crate) fn on_recv(&mut self, place: usize) -> Actions {
        self.received += 1;
        self.posted_recvs -= 1;
        let low = self.posted_recvs as usize <= self.queue_pairs.len();
        let recvs = if low { self.rx_depth - self.posted_recvs } else { 0 };
        self.posted_recvs += recvs;
        self.queue_pairs[place].for_recv = false;
        Actions { recvs, send: self.take_turn(place) }
    }

    fn take_turn(&mut self, place: usize) -> bool {
        let waiting = self.queue_pairs[place];
        let turn = self.sent < self.messages && !waiting.for_send && !waiting.for_recv;
        if turn {
            self.queue_pairs[place] = Outstanding { for_send: true, for_recv: true };
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn server_replies_to_each_message_once() {
        let mut server = RunState::new(Role::Server, 2, 500, 1);
        assert_eq!(server.on_recv(0), Actions { recvs: 0, send: true });
        assert_eq!(server.on_send(0), Actions::default());
        assert!(!server.is_over());
        assert_eq!(server.on_recv(0), Actions { recvs: 0, send: true });
        assert_eq!(server.on_send(0), Actions::default());
        assert!(server.is_over());
    }

    #[test]
    fn client_stops_after_the_last_reply() {
        let mut client = RunState::new(Role::Client, 1, 500, 1);
        assert_eq!(client.on_send(0), Actions::default());
        assert!(!client.is_over());
        assert_eq!(client.on_recv(0), Actions::default());
        assert!(client.is_over());
    }

    #[test]
    fn reply_may_arrive_before_the_send_completion() {
        let mut client = RunState::new(Role::Client, 2, 500, 1);
        assert_eq!(client.on_recv(0), Actions::default());
        assert_eq!((client.outstanding_recvs(), client.outstanding_sends()), (499, 1));
        assert_eq!(client.on_send(0), Actions { recvs: 0, send: true });
    }

    #[test]
    fn one_receive_is_reposted_before_it_is_answered() {
        let mut server = RunState::new(Role::Server, 3, 1, 1);
        assert_eq!(server.on_recv(0), Actions { recvs: 1, send: true });
    }

    #[test]
    fn receives_are_reposted_when_one_is_left() {
        let mut server = RunState::new(Role::Server, 10, 4, 1);
        let mut reposted = Vec::new();
        for _ in 0..7 {
            reposted.push(server.on_recv(0).recvs);
            server.on_send(0);
        }
        assert_eq!(reposted, [0, 0, 3, 0, 0, 3, 0]);
    }

    #[test]
    fn qps_take_turns_independently_and_share_receives() {
        let mut client = RunState::new(Role::Client, 100, 4, 2);
        assert_eq!((client.outstanding_recvs(), client.outstanding_sends()), (4, 2));
        assert_eq!(client.on_recv(1), Actions::default());
        assert_eq!(client.on_send(0), Actions::default());
        // Two receives remain, one for each queue pair.
        assert_eq!(client.on_send(1), Actions { recvs: 0, send: true });
        assert_eq!(client.on_recv(0), Actions { recvs: 2, send: true });
        assert!(!client.start_sending(0) && !client.start_sending(1));
    }

    #[test]
    fn count_is_the_total_of_all_qps() {
        let mut server = RunState::new(Role::Server, 2, 500, 3);
        for place in 0..2 {
            assert!(server.on_recv(place).send);
            assert!(!server.is_over());
            server.on_send(place);
        }
        assert!(server.is_over());
        assert!(!server.on_recv(2).send, "enough was sent");
    }

    proptest! {
        /// Two sides with completions in any order. Each side exits when its run is over. Both runs
        /// end, and each message finds a posted receive.
        #[test]
        fn every_run_ends(
            messages in 1..60u64,
            queue_pairs in 1..5usize,
            more in (0..9u32, 0..9u32),
            order: Vec<prop::sample::Index>,
        ) {
            let depths = [more.0, more.1].map(|more| queue_pairs as u32 + more);
            let mut sides = [(Role::Client, depths[0]), (Role::Server, depths[1])]
                .map(|(side, depth)| RunState::new(side, messages, depth, queue_pairs));
            let mut recvs = depths;
            // Pending completions of each side, by queue pair: own sends, and received messages.
            let mut sends = [vec![1u32; queue_pairs], vec![0; queue_pairs]];
            let mut arrived = [vec![0u32; queue_pairs], vec![1; queue_pairs]];
            let mut order = order.into_iter().cycle();
            loop {
                let mut possible = Vec::new();
                for side in (0..2).filter(|&side| !sides[side].is_over()) {
                    for place in 0..queue_pairs {
                        possible.extend((sends[side][place] > 0).then_some((side, place, true)));
                        possible.extend((arrived[side][place] > 0).then_some((side, place, false)));
                    }
                }
                if possible.is_empty() {
                    break;
                }
                let (side, place, is_send) = order.next().map_or(possible[0], |index| *index.get(&possible));
                let due = if is_send {
                    sends[side][place] -= 1;
                    sides[side].on_send(place)
                } else {
                    arrived[side][place] -= 1;
                    prop_assert!(recvs[side] > 0, "a message found no receive");
                    recvs[side] -= 1;
                    sides[side].on_recv(place)
                };
                recvs[side] += due.recvs;
                prop_assert_eq!(u64::from(recvs[side]), sides[side].outstanding_recvs());
                if due.send {
                    sends[side][place] += 1;
                    arrived[1 - side][place] += 1;
                }
            }
            for side in &sides {
                prop_assert!(side.is_over(), "a side stands still: {side:?}");
                if queue_pairs == 1 {
                    prop_assert_eq!((side.sent(), side.received()), (messages, messages));
                }
            }
        }
    }
}
