//! A device whose queues are vectors and whose memory is a vector: the smallest that the transport
//! works for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use bareverbs_transport::packet::{Flush, Global, Network, Operation, Packet, Route, Transport, syndrome};
use bareverbs_transport::{
    Access, AccessError, Action, AddressVector, Counters, Device, Event, Fetched, KeyRange, PageFault,
    Policy, Pool, QpAttributes, QueueFault, Queues, Receive, ReceiveQueue, RecvFetch, RecvOutcome, Scheduler,
    Segment, SendCompletion, Service, Sge, State, Status, Work, roce,
};

/// Operations that the device executes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Local {
    #[default]
    Nop,
    /// Invalidates a key.
    Invalidate(u32),
}

pub(crate) type Request = Work<Local>;

/// A completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    Send(usize, Result<(), Status>),
    Receive(u64, Result<(Operation, u32), Status>),
}

pub(crate) struct PlainQueues {
    number: u32,
    service: Service,
    requests: Vec<Request>,
    next: usize,
    receives: VecDeque<Receive<u64>>,
}

impl Queues for PlainQueues {
    type SendWqe = usize;

    fn number(&self) -> u32 {
        self.number
    }
    fn service(&self) -> Option<Service> {
        Some(self.service)
    }
    fn has_send_queue(&self) -> bool {
        true
    }
    fn receive_queue(&self) -> ReceiveQueue {
        ReceiveQueue::Own { size: 64 }
    }
    fn blocks_own_multicast(&self) -> bool {
        false
    }
    fn inline_responses(&self) -> u32 {
        0
    }
    fn inline_receives(&self) -> usize {
        0
    }
    fn continue_after(&mut self, wqe: usize) {
        self.next = wqe + 1;
    }
    fn reset(&mut self) {
        (self.next, self.requests, self.receives) = (0, Vec::new(), VecDeque::new());
    }
}

/// A memory key: a range of the memory with access rights.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) start: usize,
    pub(crate) length: usize,
    pub(crate) rights: Vec<Access>,
}

#[derive(Default)]
pub(crate) struct Plain {
    address: u8,
    pub(crate) now: u64,
    outgoing: Vec<Packet>,
    pub(crate) memory: RefCell<Vec<u8>>,
    pub(crate) keys: BTreeMap<u32, Key>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) events: Vec<Event>,
    /// The number of atomic updates.
    pub(crate) updates: Cell<u32>,
    pub(crate) flushes: RefCell<Vec<(u64, u32, Flush)>>,
    counters: Counters,
    pool: Pool,
}

impl Plain {
    fn place(&self, range: &KeyRange<()>, length: usize) -> Result<usize, AccessError> {
        let key = self.keys.get(&range.key).ok_or(AccessError::Denied)?;
        let offset = usize::try_from(range.address).map_err(|_| AccessError::Denied)?;
        let end = offset.checked_add(length).ok_or(AccessError::Denied)?;
        if end > key.length || !key.rights.contains(&range.access) {
            return Err(AccessError::Denied);
        }
        Ok(key.start + offset)
    }
}

impl Device for Plain {
    const MAX_MESSAGE: u64 = 1 << 20;
    const POLICY: Policy = Policy {
        memory_placement: true,
        send_queue_error: false,
        short_receive: Status::RemoteInvalidRequest,
        short_receive_nak: syndrome::NAK_INVALID,
        drops_long_datagrams: false,
        refused_write_consumes_receive: false,
        refused_invalidate: Status::RemoteAccess,
        receive_flush_interval: 2_000_000,
        adaptive_window: true,
        packets_per_turn: 32,
    };
    type Queues = PlainQueues;
    type Local = Local;
    type RecvWqe = u64;
    type Accessor = ();

    fn now(&self) -> u64 {
        self.now
    }
    fn transmit(&mut self, _queues: &PlainQueues, packet: Packet) {
        self.outgoing.push(packet);
    }
    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }
    fn lid(&self) -> u16 {
        0
    }
    fn is_own(&self, route: &Route) -> bool {
        *route == route_from(self.address)
    }
    fn route(&self, _address: &AddressVector) -> Option<Route> {
        Some(route_from(self.address))
    }

    fn read_producer(&self, _queues: &mut PlainQueues) -> Result<(), QueueFault> {
        Ok(())
    }
    fn fetch(&self, queues: &mut PlainQueues, work: &mut Request) -> Fetched {
        let Some(request) = queues.requests.get(queues.next) else { return Fetched::Empty };
        work.clone_from(request);
        Fetched::Work
    }
    fn begin(&mut self, queues: &mut PlainQueues, _work: &Request) -> usize {
        queues.next += 1;
        queues.next - 1
    }
    fn reload(&self, queues: &mut PlainQueues, work: &mut Request, wqe: usize) -> bool {
        work.clone_from(&queues.requests[wqe]);
        true
    }
    fn take_posted(&self, queues: &mut PlainQueues) -> Vec<usize> {
        let posted = queues.next..queues.requests.len();
        queues.next = posted.end;
        posted.collect()
    }
    fn execute(&mut self, _queues: &PlainQueues, work: &Request) -> Result<u64, Status> {
        match work.action {
            Action::Local(Local::Invalidate(key)) if self.keys.remove(&key).is_none() => {
                Err(Status::MemoryWindowBind)
            }
            _ => Ok(0),
        }
    }
    fn complete_send(&mut self, _queues: &PlainQueues, completion: &SendCompletion<'_, usize>) {
        let result = completion.failure.map_or(Ok(()), Err);
        self.completions.push(Completion::Send(completion.wqe, result));
    }

    fn take_receive(&mut self, queues: &mut PlainQueues, _xrc: Option<u32>) -> RecvFetch<u64> {
        queues.receives.pop_front().map_or(RecvFetch::Empty, RecvFetch::Receive)
    }
    fn complete_receive(&mut self, _queues: &PlainQueues, receive: &Receive<u64>, outcome: RecvOutcome<'_>) {
        let result = match outcome {
            RecvOutcome::Message { packet, .. } => Ok((packet.operation, receive.placed)),
            RecvOutcome::Failed(status) => Err(status),
        };
        self.completions.push(Completion::Receive(receive.wqe, result));
    }
    fn accepts_xrc(&self, _queues: &PlainQueues, _srq: u32) -> bool {
        false
    }

    fn accessor(&self, _queues: &PlainQueues, _srq: Option<u32>) {}
    fn check(&self, range: &KeyRange<()>, length: u64) -> Result<(), AccessError> {
        self.place(range, length as usize).map(drop)
    }
    fn read(&self, range: &KeyRange<()>, to: &mut [u8]) -> Result<(), AccessError> {
        if !to.is_empty() {
            let at = self.place(range, to.len())?;
            to.copy_from_slice(&self.memory.borrow()[at..at + to.len()]);
        }
        Ok(())
    }
    fn write(&self, range: &KeyRange<()>, from: &[u8]) -> Result<(), AccessError> {
        let at = self.place(range, from.len())?;
        self.memory.borrow_mut()[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn update(&self, range: &KeyRange<()>, change: impl Fn(u64) -> u64) -> Result<u64, AccessError> {
        self.updates.set(self.updates.get() + 1);
        let at = self.place(range, 8)?;
        let word = &mut self.memory.borrow_mut()[at..at + 8];
        let old = u64::from_le_bytes(word.try_into().unwrap());
        word.copy_from_slice(&change(old).to_le_bytes());
        Ok(old)
    }
    fn flush(&self, (): (), key: u32, address: u64, length: u32, flush: Flush) -> Result<(), AccessError> {
        let found = self.keys.get(&key).ok_or(AccessError::Denied)?;
        let inside = address + u64::from(length) <= found.length as u64;
        if !inside && !flush.whole_key {
            return Err(AccessError::Denied);
        }
        self.flushes.borrow_mut().push((address, length, flush));
        Ok(())
    }
    fn invalidate(&mut self, _queues: &PlainQueues, key: u32) -> bool {
        self.keys.remove(&key).is_some()
    }
    fn page_fault(
        &mut self,
        _queues: &PlainQueues,
        _fault: PageFault<usize, u64>,
        _committed: u32,
        _packet: usize,
    ) -> Option<u32> {
        None
    }

    fn event(&mut self, _queues: &PlainQueues, event: Event) {
        self.events.push(event);
    }
    fn counters(&mut self, _set: u8) -> &mut Counters {
        &mut self.counters
    }
    fn pkey_violation(&mut self) {}
    fn qkey_violation(&mut self) {}
}

/// The route from one side to the other.
fn route_from(address: u8) -> Route {
    let gid = |last: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
    Route {
        source_mac: [2, 0, 0, 0, 0, address],
        destination_mac: [2, 0, 0, 0, 0, 3 - address],
        udp_source: 0xc000,
        global: Some(Global {
            source: gid(address),
            destination: gid(3 - address),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            network: Network::Ipv4,
        }),
        ..Route::default()
    }
}

/// One side of a pair.
pub(crate) struct Side {
    pub(crate) device: Plain,
    pub(crate) qps: Scheduler<Plain>,
    pub(crate) qp: u32,
}

/// Two devices, each with a QP in RTS that is connected to the other's.
pub(crate) struct Pair {
    pub(crate) sides: [Side; 2],
    /// The payload of the largest packet.
    pub(crate) mtu: u32,
    /// Nanoseconds.
    pub(crate) now: u64,
}

/// A key of each side with all rights over its whole memory.
pub(crate) const KEY: u32 = 7;
/// The PSN of the first packet in each direction.
pub(crate) const FIRST_PSN: u32 = 0xff_fff0;
const QPN: u32 = 0x11;
const MEMORY: usize = 0x1_0000;

impl Pair {
    pub(crate) fn new(service: Service) -> Self {
        const MTU: u32 = 256;
        use Access::{LocalRead, LocalWrite, RemoteAtomic, RemoteRead, RemoteWrite};
        let rights = vec![LocalRead, LocalWrite, RemoteRead, RemoteWrite, RemoteAtomic];
        let sides = [1, 2].map(|address| {
            let memory = RefCell::new(vec![0; MEMORY]);
            let key = Key { start: 0, length: MEMORY, rights: rights.clone() };
            let keys = BTreeMap::from([(KEY, key)]);
            let mut device = Plain { address, memory, keys, ..Plain::default() };
            let attributes = QpAttributes {
                mtu: MTU,
                remote_qp: QPN,
                route: route_from(address),
                qkey: 0x1111,
                remote_read: true,
                remote_write: true,
                remote_atomic: true,
                remote_flush: Flush::GLOBAL | Flush::PERSISTENT,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 1,
                retry_count: 7,
                rnr_retry: 7,
                ack_timeout: 10,
                send_psn: FIRST_PSN,
                receive_psn: FIRST_PSN,
                ..QpAttributes::default()
            };
            let queues = |number| PlainQueues {
                number,
                service,
                requests: Vec::new(),
                next: 0,
                receives: VecDeque::new(),
            };
            let mut qps = Scheduler::new(QPN, 1);
            let qp = qps.create(queues, attributes.clone()).unwrap();
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                assert!(qps.modify(&mut device, qp, state, attributes.clone()));
            }
            Side { device, qps, qp }
        });
        Self { sides, mtu: MTU, now: 1 }
    }

    /// A pair of RC QPs.
    pub(crate) fn rc() -> Self {
        Self::new(Service::Connected(Transport::Rc))
    }

    /// Changes attributes of a QP in RTS.
    pub(crate) fn change(&mut self, side: usize, change: impl FnOnce(&mut QpAttributes)) {
        let Side { device, qps, qp } = &mut self.sides[side];
        let mut attributes = qps.get(*qp).unwrap().attributes.clone();
        change(&mut attributes);
        assert!(qps.modify(device, *qp, State::ReadyToSend, attributes));
    }

    /// Posts a signaled request over `length` bytes of memory at `from`.
    pub(crate) fn post(&mut self, side: usize, action: Action<Local>, from: u64, to: u64, length: u32) {
        let mut request = Request { action, signaled: true, remote: (to, KEY), ..Request::default() };
        if length > 0 {
            request.segments.push(Segment::Memory(Sge { key: KEY, address: from, length }));
            request.length = length.into();
        }
        self.post_request(side, request);
    }

    pub(crate) fn post_request(&mut self, side: usize, request: Request) {
        let Side { qps, qp, .. } = &mut self.sides[side];
        qps.get_mut(*qp).unwrap().queues.requests.push(request);
        qps.wake(*qp);
    }

    pub(crate) fn post_receive(&mut self, side: usize, wqe: u64, address: u64, length: u32) {
        let Side { qps, qp, .. } = &mut self.sides[side];
        let sges = vec![Sge { key: KEY, address, length }];
        let receive = Receive { wqe, srq: None, sges, placed: 0 };
        qps.get_mut(*qp).unwrap().queues.receives.push_back(receive);
    }

    pub(crate) fn write(&self, side: usize, at: usize, bytes: &[u8]) {
        self.sides[side].device.memory.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn read(&self, side: usize, at: usize, length: usize) -> Vec<u8> {
        self.sides[side].device.memory.borrow()[at..at + length].to_vec()
    }

    pub(crate) fn take_completions(&mut self, side: usize) -> Vec<Completion> {
        std::mem::take(&mut self.sides[side].device.completions)
    }

    pub(crate) fn state(&self, side: usize) -> State {
        self.sides[side].qps.get(self.sides[side].qp).unwrap().state()
    }

    /// Runs until both sides are idle. The packets of each turn pass through `wire`, then as RoCE v2
    /// frames to the other side.
    pub(crate) fn settle(&mut self, wire: impl FnMut(&mut Vec<Packet>)) {
        self.settle_until(wire, || false);
    }

    /// The same, but ends early when `is_done`.
    pub(crate) fn settle_until(
        &mut self,
        mut wire: impl FnMut(&mut Vec<Packet>),
        is_done: impl Fn() -> bool,
    ) {
        const TURNS: usize = 100_000;
        for _ in 0..TURNS {
            if is_done() {
                return;
            }
            let mut idle = true;
            for from in [0, 1] {
                let Side { device, qps, .. } = &mut self.sides[from];
                device.now = self.now;
                qps.expire_timers(device);
                idle &= !qps.run(device);
                let mut packets = std::mem::take(&mut device.outgoing);
                wire(&mut packets);
                idle &= packets.is_empty();
                let Side { device, qps, .. } = &mut self.sides[1 - from];
                for packet in packets {
                    let arrived = roce::decode(&roce::encode(&packet)).expect("a valid frame");
                    assert_eq!(arrived, packet);
                    qps.receive(device, &arrived);
                    device.pool.give(arrived.payload);
                }
            }
            if !idle {
                continue;
            }
            // A QP in ERR polls for receives without end.
            let deadlines = [0, 1]
                .map(|side| self.sides[side].qps.next_timer().filter(|_| self.state(side) != State::Error));
            match deadlines.into_iter().flatten().min() {
                Some(deadline) => self.now = self.now.max(deadline),
                None => return,
            }
        }
        panic!("the pair never comes to rest");
    }
}
