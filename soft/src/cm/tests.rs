//! Two CMs and a network between them, in virtual time.

mod faults;
mod states;

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};

use bareverbs_transport::packet::Transport;

use super::message::{Mad, Message};
use super::{
    Cm, CmEvent, CmSink, ConnId, ConnState, DatagramReply, DatagramRequest, Ece, Path, Reply, Request,
    Verdict,
};

const SERVICE: u64 = 0x0106_1234;

/// One millisecond in nanoseconds.
const MS: u64 = 1_000_000;

/// Nanoseconds until an unanswered REQ is repeated: twice the packet life time and the response time.
const REQUEST_TIME: u64 = (2 * 256 + 4096) * MS;

/// The same of the other messages, of the side that accepts.
const RESPONSE_TIME: u64 = 4096 * MS;

/// Keeps the events of a side.
#[derive(Debug)]
struct Recorder {
    events: Mutex<Vec<(ConnId, CmEvent)>>,
    verdict: Mutex<Verdict>,
}

impl CmSink for Recorder {
    fn event(&self, id: ConnId, event: CmEvent) -> Verdict {
        self.events.lock().unwrap().push((id, event));
        *self.verdict.lock().unwrap()
    }
}

struct Side {
    cm: Cm,
    sink: Arc<Recorder>,
}

impl Side {
    fn new(which: usize, first_id: u32) -> Self {
        let sink = Recorder { events: Mutex::default(), verdict: Mutex::new(Verdict::Keep) };
        Self { cm: Cm::new(0x0200_00ff_fe00_0000 + which as u64, first_id), sink: Arc::new(sink) }
    }

    /// Takes the events since the last call.
    fn events(&self) -> Vec<(ConnId, CmEvent)> {
        mem::take(&mut *self.sink.events.lock().unwrap())
    }

    /// The only event since the last call.
    fn event(&self) -> (ConnId, CmEvent) {
        let mut events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    /// The same, if it is a request.
    fn request(&self) -> (ConnId, Request, Path) {
        match self.event().1 {
            CmEvent::Request { connection, request, path } => (connection, request, path),
            event => panic!("{event:?}"),
        }
    }

    /// Nothing is left of connections.
    fn assert_empty(&self) {
        assert!(self.cm.connections.is_empty(), "{:?}", self.cm.connections);
        assert!(self.cm.remote_ids.is_empty() && self.cm.remote_qps.is_empty());
        assert!(self.cm.datagram_requests.is_empty() && self.cm.timers.is_empty());
    }
}

fn gid(which: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&[127, 0, 0, 1 + which as u8]);
    gid
}

/// The path from a side to the other.
fn path(from: usize) -> Path {
    Path {
        source: gid(from),
        destination: gid(1 - from),
        flow_label: 0x1_2345,
        traffic_class: 8,
        hop_limit: 64,
        service_level: 3,
        mtu: 5,
        rate: 2,
        packet_life: 16,
        pkey: 0xffff,
    }
}

fn request() -> Request {
    Request {
        service_id: SERVICE,
        transport: Transport::Rc,
        qpn: 0x11,
        starting_psn: 0x12_3456,
        responder_resources: 4,
        initiator_depth: 3,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 6,
        max_retries: 15,
        srq: true,
        ece: Ece { vendor: 0x00_15_b3, options: 0x5a5a_0001 },
        private_data: vec![1; 92],
    }
}

fn reply() -> Reply {
    Reply {
        qpn: 0x22,
        starting_psn: 0x65_4321,
        responder_resources: 3,
        initiator_depth: 4,
        flow_control: true,
        rnr_retry_count: 5,
        srq: false,
        ack_delay: 15,
        ece: Ece { vendor: 0x12_34_56, options: 7 },
        private_data: vec![2; 196],
    }
}

/// What the network does with a message: the delays in nanoseconds after which it arrives.
type Policy = Box<dyn FnMut(usize, &Message) -> Vec<u64>>;

/// The network: side 0 connects, side 1 accepts.
struct Net {
    sides: [Side; 2],
    now: u64,
    sent: u64,
    /// Messages under way by time and number, with the side that receives them.
    under_way: BTreeMap<(u64, u64), (usize, [u8; 256])>,
    policy: Policy,
    /// The messages of both sides with their times.
    log: Vec<(u64, usize, Message)>,
}

impl Net {
    fn new() -> Self {
        Self {
            sides: [Side::new(0, 1), Side::new(1, 1000)],
            now: 0,
            sent: 0,
            under_way: BTreeMap::new(),
            policy: Box::new(|_, _| vec![0]),
            log: Vec::new(),
        }
    }

    fn listening() -> (Self, ConnId) {
        let mut net = Self::new();
        let listener = net.call(1, |cm, sink| cm.listen(SERVICE, sink)).unwrap();
        (net, listener)
    }

    /// Loses all messages that `lost` says.
    fn lose(&mut self, mut lost: impl FnMut(usize, &Message) -> bool + 'static) {
        self.policy = Box::new(move |from, message| if lost(from, message) { vec![] } else { vec![0] });
    }

    /// Calls a side, and sends its messages.
    fn call<R>(&mut self, side: usize, f: impl FnOnce(&mut Cm, Arc<dyn CmSink>) -> R) -> R {
        let sink: Arc<dyn CmSink> = Arc::<Recorder>::clone(&self.sides[side].sink);
        let cm = &mut self.sides[side].cm;
        cm.set_now(self.now);
        let result = f(cm, sink);
        for outgoing in cm.take_outgoing() {
            assert_eq!((outgoing.path.source, outgoing.path.destination), (gid(side), gid(1 - side)));
            let message = Mad::decode(&outgoing.mad).expect("a MAD of the CM").message;
            for delay in (self.policy)(side, &message) {
                self.sent += 1;
                self.under_way.insert((self.now + delay, self.sent), (1 - side, outgoing.mad));
            }
            self.log.push((self.now, side, message));
        }
        result
    }

    /// Delivers the next message, or lets the next timer expire, until `end`. Returns whether there
    /// was one.
    fn step(&mut self, end: u64) -> bool {
        let arrival = self.under_way.keys().next().map(|(time, _)| *time);
        let timers = self.sides.iter().filter_map(|side| side.cm.next_timer());
        let Some(next) = timers.chain(arrival).min().filter(|next| *next <= end) else {
            self.now = self.now.max(end);
            return false;
        };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (side, mad)) = self.under_way.pop_first().expect("a message");
            let back = Path { packet_life: 0, mtu: 0, rate: 0, ..path(side) };
            self.call(side, |cm, _| cm.receive(back, &mad));
        } else {
            for side in 0..2 {
                self.call(side, |cm, _| cm.expire());
            }
        }
        true
    }

    /// Runs for a time.
    fn run(&mut self, time: u64) {
        let end = self.now + time;
        while self.step(end) {}
    }

    /// Sends a request, which arrives. Returns the ids of both sides.
    fn requested(&mut self) -> (ConnId, ConnId) {
        let client = self.call(0, |cm, sink| cm.connect(&request(), path(0), sink)).unwrap();
        self.run(0);
        (client, self.sides[1].request().0)
    }

    /// Establishes a connection.
    fn connected(&mut self) -> (ConnId, ConnId) {
        let (client, server) = self.requested();
        self.call(1, |cm, _| cm.reply(server, &reply())).unwrap();
        self.run(0);
        assert_eq!(self.sides[0].event(), (client, CmEvent::Reply(reply())));
        self.call(0, |cm, _| cm.establish(client, &[])).unwrap();
        self.run(0);
        assert_eq!(self.sides[1].event(), (server, CmEvent::Established));
        (client, server)
    }

    fn state(&self, side: usize, id: ConnId) -> ConnState {
        self.sides[side].cm.state(id).expect("a connection that was not destroyed")
    }

    /// The number of messages of a side for which `f` is true.
    fn count(&self, side: usize, f: impl Fn(&Message) -> bool) -> usize {
        self.log.iter().filter(|(_, from, message)| *from == side && f(message)).count()
    }
}
