//! UC and UD between rxe and a soft device while packets are lost, reordered and duplicated.
//!
//! Both transports promise little: each message that arrives is one that was sent, whole. A message may
//! be lost. A message of one packet may arrive late or twice, in UC too: its PSN is not that expected, but
//! a message begins with it.

use std::ops::Range;
use std::time::{Duration, Instant};

use bareverbs::ah::Ah;
use bareverbs::qp::{
    Datagram, GRH_BYTES, InitAttr, Payload, QpState, SendFlags, SendRequest, Transport, Uc, UcOperation,
    UcRtrAttr, Ud, UdInitAttr,
};
use bareverbs::values::Mtu;
use bareverbs::{Access, AnyProvider, Imm, Remote, WcStatus};
use bareverbs_test_support::{TIMEOUT, device, kernel_test, wire};

use crate::host::{Hosts, Ip, Peer, path};
use crate::messages::message;

/// Messages that are sent at once.
const WINDOW: usize = 16;
/// Posted receives: a window may arrive twice.
const RECEIVES: usize = 3 * WINDOW;
/// Messages that a peer writes at most. Each has a place of its own, so that a late packet of an earlier
/// message does not change a later one.
const WRITES: usize = 2000;
/// The path MTU in bytes.
const MTU: usize = 1024;
/// Bytes of the place of a message of four packets.
const SLOT: usize = 4096;
/// Messages that arrive while the network is impaired, and afterwards.
const ARRIVALS: usize = 100;
/// How long the receiver waits for messages of a window. Later ones are received with the next window.
const PAUSE: Duration = Duration::from_millis(10);
const QKEY: u32 = 0x1111;

const IMPAIRMENTS: [&str; 3] = ["loss 5%", "delay 500us reorder 90%", "duplicate 10%"];

/// The memory of a message.
fn slot(index: usize, len: usize) -> Range<usize> {
    index * SLOT..index * SLOT + len
}

/// An unreliable transport.
trait Unreliable: Transport {
    /// What a request needs to reach the peer.
    type Route;
    /// Bytes of the longest message.
    const MOST: usize;
    /// Bytes before the message in the memory of a receive.
    const HEADROOM: usize = 0;

    /// RESET → RTS.
    fn connect(hosts: &Hosts, peers: &mut [Peer<Self>; 2]) -> [Self::Route; 2]
    where
        Self: Sized;

    /// The operation of a message: a send, or a write to the place of the message. UD has no writes.
    fn operation(route: &Self::Route, place: Option<(Remote, Imm)>) -> Self::Operation<'_, AnyProvider>;
}

impl Unreliable for Uc {
    type Route = ();
    const MOST: usize = SLOT;

    fn connect(hosts: &Hosts, peers: &mut [Peer<Self>; 2]) -> [(); 2] {
        let numbers = peers.each_ref().map(|peer| peer.qp.qp_num());
        for (own, peer) in peers.iter_mut().enumerate() {
            let address = path(peer.qp.pd(), hosts.addresses()[own], hosts.addresses()[1 - own]);
            let rtr = UcRtrAttr { path_mtu: Mtu::Mtu1024, ..UcRtrAttr::new(address, numbers[1 - own]) };
            peer.qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) }).expect("INIT");
            peer.qp.ready_to_receive(&rtr).expect("RTR");
            peer.qp.ready_to_send(0).expect("RTS");
        }
        [(); 2]
    }

    fn operation((): &(), place: Option<(Remote, Imm)>) -> UcOperation {
        match place {
            Some((remote, imm)) => UcOperation::WriteImm(remote, imm),
            None => UcOperation::Send,
        }
    }
}

impl Unreliable for Ud {
    type Route = (Ah, u32);
    const MOST: usize = MTU;
    const HEADROOM: usize = GRH_BYTES;

    fn connect(hosts: &Hosts, peers: &mut [Peer<Self>; 2]) -> [Self::Route; 2] {
        for peer in peers.iter_mut() {
            peer.qp.init(&UdInitAttr::new(1, QKEY)).expect("INIT");
            peer.qp.ready_to_receive().expect("RTR");
            peer.qp.ready_to_send(0).expect("RTS");
        }
        [0, 1].map(|own| {
            let pd = peers[own].qp.pd();
            let address = path(pd, hosts.addresses()[own], hosts.addresses()[1 - own]);
            (pd.create_ah(&address).expect("an address handle"), peers[1 - own].qp.qp_num())
        })
    }

    fn operation((ah, qp_num): &Self::Route, _: Option<(Remote, Imm)>) -> Datagram<'_> {
        Datagram { ah, qp_num: *qp_num, qkey: QKEY, imm: None, header: &[] }
    }
}

/// The messages from one peer to the other.
struct Stream<'p, T: Unreliable> {
    from: &'p mut Peer<T>,
    to: &'p mut Peer<T>,
    route: &'p T::Route,
    /// Messages that were sent.
    sent: usize,
    /// The number after that of the last message that arrived.
    next: usize,
    /// Bytes of the longest message.
    most: usize,
    /// Whether messages are written with immediate data, rather than sent.
    writes: bool,
}

/// What arrived.
#[derive(Debug, Default)]
struct Arrivals {
    count: usize,
    /// Messages before which others are missing.
    gaps: usize,
    /// Messages that arrived after a later one, or again.
    late: usize,
}

impl<T: Unreliable> Stream<'_, T> {
    fn post_receive(&mut self, index: usize) {
        self.to.receive(index as u64, slot(WINDOW + index, T::HEADROOM + T::MOST));
    }

    /// Sends the next message.
    fn post(&mut self) {
        let text = message(self.sent, self.most);
        let range = slot(self.sent % WINDOW, text.len());
        self.from.memory.write(range.start, &text).expect("the memory has the slot");
        let place = self.writes.then(|| {
            assert!(self.sent < WRITES, "too few messages arrive");
            let place = slot(WINDOW + RECEIVES + self.sent, 0).start;
            let remote = self.to.memory.remote(place).expect("the memory has the slot");
            (remote, Imm(self.sent as u32))
        });
        let sges = [self.from.memory.sge(range).expect("the memory has the slot")];
        let (wr_id, flags) = (self.sent as u64, SendFlags::SIGNALED);
        let operation = T::operation(self.route, place);
        let request = SendRequest { wr_id, operation, flags, payload: Payload::Sges(&sges) };
        // SAFETY: the memory is registered, and written again after the completion. The QP is dropped first.
        unsafe { self.from.qp.post_send(&[request]) }.expect("the queue has room");
        self.sent += 1;
    }

    /// Receives a message if one has arrived, asserts that it is one that was sent, and returns its number.
    fn receive(&mut self) -> Option<usize> {
        let completion = self.to.cq.poll_one()?;
        assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
        let index = completion.wr_id as usize;
        let (number, start) = if self.writes {
            let number = completion.imm().expect("immediate data").0 as usize;
            (number, slot(WINDOW + RECEIVES + number, 0).start)
        } else {
            let start = slot(WINDOW + index, 0).start + T::HEADROOM;
            let mut number = [0; 8];
            self.to.memory.read(start, &mut number).expect("the memory has the slot");
            (u64::from_le_bytes(number) as usize, start)
        };
        assert!(number < self.sent, "message {number} was not sent: {completion:?}");
        let text = message(number, self.most);
        assert_eq!(completion.byte_len as usize, T::HEADROOM + text.len(), "message {number}");
        let mut bytes = vec![0; text.len()];
        self.to.memory.read(start, &mut bytes).expect("the memory has the slot");
        assert!(bytes == text, "message {number} has other bytes");
        self.post_receive(index);
        Some(number)
    }

    /// Sends messages until [`ARRIVALS`] have arrived and `is_done`.
    #[track_caller]
    fn run(&mut self, is_done: fn(&Arrivals) -> bool) {
        let begin = Instant::now();
        let mut arrivals = Arrivals::default();
        while arrivals.count < ARRIVALS || !is_done(&arrivals) {
            assert!(begin.elapsed() < TIMEOUT, "of {} messages arrived: {arrivals:?}", self.sent);
            for _ in 0..WINDOW {
                self.post();
            }
            for number in self.sent - WINDOW..self.sent {
                let sent = self.from.completion();
                assert_eq!((sent.wr_id, sent.status), (number as u64, WcStatus::SUCCESS), "{sent:?}");
            }
            let mut quiet = Instant::now();
            while self.next < self.sent && quiet.elapsed() < PAUSE {
                let Some(number) = self.receive() else {
                    std::thread::yield_now();
                    continue;
                };
                quiet = Instant::now();
                arrivals.count += 1;
                arrivals.gaps += usize::from(number > self.next);
                arrivals.late += usize::from(number < self.next);
                self.next = self.next.max(number + 1);
            }
        }
    }
}

/// Messages in each direction while packets are impaired in both, and afterwards.
fn messages_arrive_whole<T: Unreliable>(writes: bool) {
    let hosts = Hosts::new(Ip::V4);
    let slots = WINDOW + RECEIVES + if writes { WRITES } else { 0 };
    for netem in IMPAIRMENTS {
        for is_to_rxe in [false, true] {
            let mut peers = [&hosts.rxe, &hosts.soft].map(|pd| Peer::<T>::new(pd, slots * SLOT));
            let routes = T::connect(&hosts, &mut peers);
            let [rxe, soft] = &mut peers;
            let (from, to, route) = match is_to_rxe {
                false => (rxe, soft, &routes[0]),
                true => (soft, rxe, &routes[1]),
            };
            // Soft-RoCE receives nothing more after a write whose packets are not all received.
            let most = if writes && is_to_rxe { MTU } else { T::MOST };
            let mut stream = Stream { from, to, route, sent: 0, next: 0, most, writes };
            (0..RECEIVES).for_each(|index| stream.post_receive(index));
            hosts.namespace.impair_rxe(netem);
            hosts.namespace.impair_soft(netem);
            stream.run(|arrivals| arrivals.gaps + arrivals.late > 0);
            hosts.namespace.heal();
            stream.run(|_| true);
            for peer in &peers {
                assert_eq!(peer.qp.query().expect("the QP").0.qp_state, QpState::RTS);
            }
        }
    }
}

#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn uc_messages_arrive_whole_or_not_when_packets_are_impaired() {
    messages_arrive_whole::<Uc>(false);
}

#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn uc_writes_arrive_whole_or_not_when_packets_are_impaired() {
    messages_arrive_whole::<Uc>(true);
}

#[kernel_test(device::soft_roce, wire::lossy_wire)]
fn datagrams_arrive_whole_or_not_when_packets_are_impaired() {
    messages_arrive_whole::<Ud>(false);
}
