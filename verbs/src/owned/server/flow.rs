//! Flow control and the orderly end of a connection between servers and clients.
//!
//! Every message is a send with immediate data: 4 bits of kind, and 28 bits of credit.
//!
//! | kind | value | consumes a credit | payload |
//! |---|---|---|---|
//! | data | 1 | yes | the message |
//! | credit | 2 | no | none |
//! | FIN: no more data follows | 3 | no | none |
//! | FIN acknowledged: all data arrived | 4 | no | none |
//! | drain: send a FIN, and no more data | 5 | no | none |
//!
//! The credit is an absolute count: how many data messages the sender of this message permits since
//! the connection began, modulo 2^28. So the latest count replaces all earlier ones.
//!
//! # No deadlock
//!
//! A data message is sent only with a credit, so a receive is posted for it. The application's drop
//! of a message returns its credit: with the next data message, or in a credit message once half of
//! the window is unreported. Control messages need no credit: [`CONTROL_RECEIVES`] receives of each
//! connection are reserved for them, and posted again when they are reaped. A peer has at most that
//! many control messages that were not reaped:
//!
//! - Two credit messages. Credits that the peer has not seen are at most the window, and each
//!   credit message carries at least half of it.
//! - One FIN, one acknowledgement of it, and one drain.
//!
//! Neither waits for the application. A peer that sends more control messages has no credits left for
//! them: a credit message without a credit is a violation, and so are more credits than the peer has
//! receives.
//!
//! # Drain
//!
//! An end that drains asks for the peer's FIN, and sends its own when the application has dropped all
//! messages of the peer. The peer sends no data after it has reaped the drain: messages that wait for
//! credits fail.
//!
//! # Versions
//!
//! An address names the [`VERSION`] of its end. Ends of two versions do not connect.
//!
//! | version | kinds |
//! |---|---|
//! | 1 | 1 to 4 |
//! | 2 | 1 to 5 |

use std::collections::VecDeque;

use crate::Imm;

/// The version of the protocol.
pub(crate) const VERSION: u8 = 2;
/// Receives that a connection reserves for control messages.
pub(crate) const CONTROL_RECEIVES: u32 = 5;
/// Sends that a connection reserves for control messages: a credit, a FIN, its acknowledgement, a drain,
/// a keepalive.
pub(crate) const CONTROL_SENDS: u32 = 5;

const COUNT: u32 = (1 << 28) - 1;
/// The largest window: the difference of two counts modulo 2^28 must be unambiguous.
pub(crate) const MAX_WINDOW: u32 = 1 << 20;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ControlKind {
    Data = 1,
    Credit = 2,
    Fin = 3,
    FinAck = 4,
    Drain = 5,
}

impl ControlKind {
    /// The kinds without a payload.
    pub(crate) const CONTROL: [Self; 4] = [Self::Credit, Self::Fin, Self::FinAck, Self::Drain];

    fn of(imm: Imm) -> Option<Self> {
        [Self::Data].into_iter().chain(Self::CONTROL).find(|kind| *kind as u32 == imm.0 >> 28)
    }
}

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;

/// One end of a connection. `T` is a data message that waits for a credit.
#[derive(Debug)]
pub(crate) struct FlowControl<T> {
    /// Receives for data of the peer.
    window: u32,
    /// Data messages that arrived, and those of them whose receive is posted again.
    received: u32,
    released: u32,
    /// The count of credits that was last sent.
    advertised: u32,
    credit_in_flight: bool,
    /// Data messages that the peer permits, and those that were sent.
    granted: u32,
    sent: u32,
    /// Receives of the peer for data of this end.
    peer_window: u32,
    queue: VecDeque<T>,
    connected: bool,
    closing: bool,
    /// It closes when the peer has sent its FIN and its messages are released.
    draining: bool,
    drain_sent: bool,
    drain_received: bool,
    fin_sent: bool,
    /// The peer's device has acknowledged the FIN.
    fin_done: bool,
    /// The peer has received everything.
    fin_acked: bool,
    fin_received: bool,
    fin_ack_sent: bool,
    fin_ack_done: bool,
}

impl<T> FlowControl<T> {
    /// `window` receives are posted for the peer's data, and the peer has that count from the
    /// address. Up to `depth` messages wait for credits.
    pub(crate) fn new(window: u32, depth: usize) -> Self {
        Self {
            window,
            received: 0,
            released: 0,
            advertised: window,
            credit_in_flight: false,
            granted: 0,
            sent: 0,
            peer_window: 0,
            queue: VecDeque::with_capacity(depth),
            connected: false,
            closing: false,
            draining: false,
            drain_sent: false,
            drain_received: false,
            fin_sent: false,
            fin_done: false,
            fin_acked: false,
            fin_received: false,
            fin_ack_sent: false,
            fin_ack_done: false,
        }
    }

    /// The peer has posted `window` receives for data of this end.
    pub(crate) fn connected(&mut self, window: u32) {
        (self.granted, self.peer_window, self.connected) = (window & COUNT, window, true);
    }

    /// Adds a data message. This end must not be closing.
    pub(crate) fn push(&mut self, message: T) {
        debug_assert!(!self.closing);
        self.queue.push_back(message);
    }

    /// Puts back the message that `next` has returned.
    pub(crate) fn put_back(&mut self, message: T) {
        self.sent = self.sent.wrapping_sub(1) & COUNT;
        self.queue.push_front(message);
    }

    /// The messages that wait for credits.
    pub(crate) fn take_queue(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.queue)
    }

    /// No more data is added: a FIN follows the queue.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// The peer is to send no more data. A FIN follows when its messages are released and the queue is
    /// sent. It is at once if it was never connected.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        self.closing |= !self.connected;
    }

    /// Whether the peer accepts no more data.
    pub(crate) fn is_peer_draining(&self) -> bool {
        self.drain_received
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// A message of the peer arrived.
    pub(crate) fn arrived(&mut self, imm: Imm) -> Result<ControlKind, Violation> {
        let kind = ControlKind::of(imm).ok_or(Violation)?;
        // Messages arrive in order, so the count never falls.
        let more = (imm.0 & COUNT).wrapping_sub(self.granted) & COUNT;
        let granted = self.granted.wrapping_add(more) & COUNT;
        // The peer has no receives for more, and no reason to send a credit message without a credit. So
        // control messages, which consume no credit, can't follow each other without end.
        let unused = granted.wrapping_sub(self.sent) & COUNT;
        if more > MAX_WINDOW || unused > self.peer_window || kind == ControlKind::Credit && more == 0 {
            return Err(Violation);
        }
        match kind {
            ControlKind::Data => {
                // More messages than it has credits for.
                if self.fin_received || self.received.wrapping_sub(self.released) >= self.window {
                    return Err(Violation);
                }
                self.received = self.received.wrapping_add(1);
            }
            ControlKind::Credit => {}
            ControlKind::Fin => {
                if std::mem::replace(&mut self.fin_received, true) {
                    return Err(Violation);
                }
                // An end that drains answers first.
                self.closing |= !self.draining;
            }
            ControlKind::Drain => {
                if self.fin_received || std::mem::replace(&mut self.drain_received, true) {
                    return Err(Violation);
                }
                self.closing = true;
            }
            ControlKind::FinAck => {
                if !self.fin_sent || std::mem::replace(&mut self.fin_acked, true) {
                    return Err(Violation);
                }
            }
        }
        self.granted = granted;
        Ok(kind)
    }

    /// The receive of a data message is posted again.
    pub(crate) fn released(&mut self) {
        self.released = self.released.wrapping_add(1);
    }

    /// The next message to post, with its immediate data. `None` if there is none at the moment.
    pub(crate) fn next(&mut self) -> Option<(ControlKind, Imm, Option<T>)> {
        let total = self.window.wrapping_add(self.released);
        let unadvertised = total.wrapping_sub(self.advertised);
        self.closing |= self.draining && self.fin_received && !self.holds_messages();
        let (kind, message) = if self.sent != self.granted
            && let Some(message) = self.queue.pop_front()
        {
            self.sent = (self.sent + 1) & COUNT;
            (ControlKind::Data, Some(message))
        } else if self.fin_received && !self.fin_ack_sent {
            self.fin_ack_sent = true;
            (ControlKind::FinAck, None)
        } else if self.draining && !self.drain_sent && !self.closing && !self.fin_received {
            self.drain_sent = true;
            (ControlKind::Drain, None)
        } else if self.closing && self.queue.is_empty() && !self.fin_sent {
            self.fin_sent = true;
            (ControlKind::Fin, None)
        } else if !self.credit_in_flight && !self.fin_received && unadvertised >= self.window.div_ceil(2) {
            self.credit_in_flight = true;
            (ControlKind::Credit, None)
        } else {
            return None;
        };
        self.advertised = total;
        Some((kind, Imm((kind as u32) << 28 | total & COUNT), message))
    }

    /// The peer's device has acknowledged a control message.
    pub(crate) fn control_done(&mut self, kind: ControlKind) {
        match kind {
            ControlKind::Credit => self.credit_in_flight = false,
            ControlKind::FinAck => self.fin_ack_done = true,
            ControlKind::Fin => self.fin_done = true,
            ControlKind::Data | ControlKind::Drain => {}
        }
    }

    /// Whether the peer has received everything that this end sent: nothing, if it was never
    /// connected.
    ///
    /// A peer that sent its own FIN may leave when that is acknowledged, and then answers no more.
    /// Its device has all messages when it has acknowledged the FIN behind them.
    pub(crate) fn is_delivered(&self) -> bool {
        self.fin_acked || !self.connected || self.fin_received && self.fin_done
    }

    /// Whether it was closed before it was connected: it has no event.
    pub(crate) fn is_unused(&self) -> bool {
        self.closing && !self.connected
    }

    /// Whether the application holds messages of the peer.
    pub(crate) fn holds_messages(&self) -> bool {
        self.received != self.released
    }

    /// Whether both ends have received everything. The last acknowledgement may be missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_delivered() && self.fin_received
    }

    /// Whether the QP can be destroyed without a loss at either end: the peer has the
    /// acknowledgement of its FIN.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_complete() && self.fin_ack_done
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An end with its application, and the messages to the peer that were not reaped there.
    struct End {
        flow: FlowControl<u32>,
        wire: VecDeque<(ControlKind, Imm, Option<u32>)>,
        /// Messages that the application holds.
        held: u32,
        sent: u32,
        heard: Vec<u32>,
        /// Messages that were not sent because the peer drains.
        refused: Vec<u32>,
        control: u32,
    }

    impl End {
        fn new(window: u32, peers: u32) -> Self {
            let mut flow = FlowControl::new(window, 8);
            flow.connected(peers);
            Self {
                flow,
                wire: VecDeque::new(),
                held: 0,
                sent: 0,
                heard: Vec::new(),
                refused: Vec::new(),
                control: 0,
            }
        }

        fn post(&mut self) {
            while let Some(message) = self.flow.next() {
                if message.0 != ControlKind::Data {
                    self.control += 1;
                    // The acknowledgement comes before the peer reaps, the worst case.
                    self.flow.control_done(message.0);
                }
                self.wire.push_back(message);
            }
        }

        fn reap(&mut self, from: &mut Self) {
            let Some((kind, imm, message)) = from.wire.pop_front() else { return };
            assert_eq!(self.flow.arrived(imm), Ok(kind));
            if let Some(message) = message {
                self.heard.push(message);
                self.held += 1;
            } else {
                from.control -= 1;
            }
            if kind == ControlKind::Drain {
                self.refused.extend(self.flow.take_queue());
            }
            self.post();
        }

        fn release(&mut self) {
            if self.held > 0 {
                self.held -= 1;
                self.flow.released();
                self.post();
            }
        }
    }

    proptest! {
        #[test]
        fn every_message_is_delivered_once_and_has_a_posted_receive(
            windows in (1u32..6, 1u32..6),
            steps in prop::collection::vec((0u8..9, any::<bool>()), 1..300),
        ) {
            let mut ends = [End::new(windows.0, windows.1), End::new(windows.1, windows.0)];
            let receives = [windows.0, windows.1];
            for (step, which) in steps {
                let [a, b] = &mut ends;
                let (end, other) = if which { (a, b) } else { (b, a) };
                match step {
                    0 | 1 if !end.flow.is_closing() => {
                        end.flow.push(end.sent);
                        end.sent += 1;
                        end.post();
                    }
                    2..=4 => end.reap(other),
                    5 | 6 => end.release(),
                    7 if end.sent > 20 => {
                        end.flow.close();
                        end.post();
                    }
                    8 if end.sent > 10 => {
                        end.flow.drain();
                        end.post();
                    }
                    _ => {}
                }
                for at in 0..2 {
                    let data = ends[1 - at].wire.iter().filter(|(kind, ..)| *kind == ControlKind::Data).count() as u32;
                    prop_assert!(data + ends[at].held <= receives[at], "each message has a receive");
                    prop_assert!(ends[at].control <= CONTROL_RECEIVES);
                }
            }
            // Both end in order.
            for end in &mut ends {
                end.flow.close();
                end.post();
            }
            for _ in 0..1000 {
                let [a, b] = &mut ends;
                a.reap(b);
                b.reap(a);
                a.release();
                b.release();
            }
            let [a, b] = &ends;
            prop_assert!(a.flow.is_finished() && b.flow.is_finished());
            for (end, other) in [(a, b), (b, a)] {
                let all = [other.heard.as_slice(), end.refused.as_slice()].concat();
                prop_assert_eq!(all, (0..end.sent).collect::<Vec<_>>(), "received in order, or refused");
            }
        }

        #[test]
        fn any_immediate_data_is_accepted_or_rejected(imms in prop::collection::vec(any::<u32>(), 1..20)) {
            let mut flow = FlowControl::<()>::new(2, 1);
            flow.connected(2);
            let mut data = 0;
            for imm in imms {
                data += u32::from(flow.arrived(Imm(imm)) == Ok(ControlKind::Data));
            }
            prop_assert!(data <= 2);
        }
    }

    #[test]
    fn credit_counts_wrap_modulo_2_28() {
        let mut ends = [End::new(4, 4), End::new(4, 4)];
        for end in &mut ends {
            let start = u32::MAX - 5;
            (end.flow.received, end.flow.released) = (start, start);
            end.flow.advertised = start.wrapping_add(4);
            end.flow.sent = start & COUNT;
            end.flow.granted = start.wrapping_add(4) & COUNT;
        }
        let [a, b] = &mut ends;
        for message in 0..20 {
            a.flow.push(message);
            a.post();
            b.reap(a);
            b.release();
            a.reap(b);
        }
        assert_eq!(b.heard, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn message_that_is_put_back_keeps_its_credit_and_its_place() {
        let mut flow = FlowControl::new(2, 2);
        flow.connected(2);
        [1, 2].into_iter().for_each(|message| flow.push(message));
        let Some((ControlKind::Data, _, Some(first))) = flow.next() else { panic!("there are credits") };
        flow.put_back(first);
        let messages = std::iter::from_fn(|| flow.next()).map(|(_, _, message)| message);
        assert_eq!(messages.collect::<Vec<_>>(), [Some(1), Some(2)]);
    }

    #[test]
    fn credits_beyond_the_receives_of_the_peer_are_violations() {
        let mut flow = FlowControl::new(1, 1);
        flow.connected(2);
        let credit = |count: u32| Imm((ControlKind::Credit as u32) << 28 | count);
        assert_eq!(flow.arrived(credit(3)), Err(Violation), "nothing was sent");
        flow.push(());
        assert!(flow.next().is_some());
        assert_eq!(flow.arrived(credit(4)), Err(Violation), "one message was sent");
        assert_eq!(flow.arrived(credit(3)), Ok(ControlKind::Credit));
        assert_eq!(flow.arrived(credit(3)), Err(Violation), "it has no credit");
    }

    #[test]
    fn end_that_drains_sends_its_fin_when_the_messages_of_the_peer_are_released() {
        let [mut server, mut client] = [End::new(4, 4), End::new(4, 4)];
        (0..6).for_each(|message| client.flow.push(message));
        client.post();
        server.flow.drain();
        server.post();
        (0..4).for_each(|_| server.reap(&mut client));
        client.reap(&mut server);
        assert_eq!(client.refused, [4, 5], "the messages without a credit");
        assert!(client.flow.is_closing() && client.flow.is_peer_draining());
        server.reap(&mut client);
        assert!(!server.flow.is_closing(), "it has four messages to answer");
        for answer in 0..4 {
            server.flow.push(answer);
            server.post();
            server.release();
        }
        (0..8).for_each(|_| client.reap(&mut server));
        (0..4).for_each(|_| client.release());
        (0..4).for_each(|_| server.reap(&mut client));
        assert_eq!(client.heard, [0, 1, 2, 3]);
        assert!(server.flow.is_finished() && client.flow.is_finished());
    }

    #[test]
    fn drain_follows_no_fin_and_no_other_drain() {
        let mut flow = FlowControl::<()>::new(1, 1);
        flow.connected(1);
        let imm = |kind: ControlKind| Imm((kind as u32) << 28 | 1);
        assert_eq!(flow.arrived(imm(ControlKind::Drain)), Ok(ControlKind::Drain));
        assert_eq!(flow.arrived(imm(ControlKind::Drain)), Err(Violation));
        let mut flow = FlowControl::<()>::new(1, 1);
        flow.connected(1);
        assert_eq!(flow.arrived(imm(ControlKind::Fin)), Ok(ControlKind::Fin));
        assert_eq!(flow.arrived(imm(ControlKind::Drain)), Err(Violation));
    }

    #[test]
    fn excess_data_and_repeated_fins_are_violations() {
        let mut flow = FlowControl::<()>::new(1, 1);
        flow.connected(3);
        let imm = |kind: ControlKind, count: u32| Imm((kind as u32) << 28 | count);
        assert_eq!(flow.arrived(imm(ControlKind::Data, 3)), Ok(ControlKind::Data));
        assert_eq!(flow.arrived(imm(ControlKind::Data, 3)), Err(Violation), "the window is 1");
        assert_eq!(flow.arrived(imm(ControlKind::Credit, 2)), Err(Violation), "the count falls");
        assert_eq!(flow.arrived(imm(ControlKind::FinAck, 3)), Err(Violation), "no FIN was sent");
        assert_eq!(flow.arrived(imm(ControlKind::Fin, 3)), Ok(ControlKind::Fin));
        assert_eq!(flow.arrived(imm(ControlKind::Fin, 3)), Err(Violation));
        flow.released();
        assert_eq!(flow.arrived(imm(ControlKind::Data, 3)), Err(Violation), "after the FIN");
        assert_eq!(flow.arrived(Imm(3)), Err(Violation));
    }
}
