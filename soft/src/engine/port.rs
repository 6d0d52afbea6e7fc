//! The device under the transport: queues, keys, addresses and events.

use std::sync::Arc;
use std::time::Duration;

use bareverbs_transport::packet::{Flush, Packet, Route, syndrome};
use bareverbs_transport::{
    AccessError, Action, AddressVector, Counters, Device, Event, Fetched, KeyRange, PageFault, Policy, Pool,
    QueueFault, Receive, RecvFetch, RecvOutcome, SendCompletion, Status, Step, Table,
};
use bareverbs_uapi::verbs_values::{EventType, QpState, WcStatus};
use bareverbs_uapi::write::structs::Wc;
use zerocopy::FromZeros;

use super::address::{Addresses, Ah, PortAddress};
use super::completion::{self, Cq};
use super::completion_faults::CompletionFaults;
use super::memory::{Accessor, Keys};
use super::queues::{QpQueues, Receives};
use super::range::Range;
use super::receive::{RecvWqeRef, Srq};
use super::send::{Local, SendWqeRef, Work};
use super::{MAX_AH, MAX_CQ, MAX_SRQ};
use crate::channel::CqSink;
use crate::event_log::{DeviceLog, PacketSummary, QpAction};

/// The port of a device.
#[derive(Debug)]
pub(crate) struct EnginePort {
    pub(super) address: PortAddress,
    pub(super) keys: Keys,
    pub(super) cqs: Table<Cq>,
    pub(super) srqs: Table<Srq>,
    pub(super) handles: Table<Ah>,
    /// The time of the fabric in nanoseconds.
    pub(super) now: u64,
    /// Packets for the wire.
    pub(super) outgoing: Vec<Packet>,
    pub(super) pool: Pool,
    pub(super) completion_faults: CompletionFaults,
    /// The log of actions, if there is one.
    pub(super) log: Option<DeviceLog>,
    /// Whether no receive WQE is found: an injected fault.
    pub(super) hides_receives: bool,
    /// Whether the fabric delivers the packets before it releases its lock, and keeps none.
    pub(super) delivers_at_once: bool,
    /// Whether packets without a copy of their payload are on the way. A program may write the memory of a
    /// request as soon as it polls the completion, which may be the flush of a request that was sent.
    withholds_completions: bool,
    /// The completions until these packets are delivered: CQ, completion, whether it is solicited.
    withheld: Vec<(u32, Wc, bool)>,
    /// The CQs whose events wait until the fabric's lock is released, while packets of a wire are
    /// delivered.
    pub(super) withheld_events: Option<Vec<Arc<CqSink>>>,
    /// The number of WQEs that have completed.
    pub(super) completed: u64,
    counters: Counters,
}

impl EnginePort {
    pub(super) fn new(address: PortAddress) -> Self {
        Self {
            address,
            keys: Keys::new(),
            cqs: Table::new(1, MAX_CQ as usize),
            srqs: Table::new(1, MAX_SRQ as usize),
            handles: Table::new(1, MAX_AH as usize),
            now: 0,
            outgoing: Vec::new(),
            pool: Pool::default(),
            completion_faults: CompletionFaults::default(),
            log: None,
            hides_receives: false,
            delivers_at_once: false,
            withholds_completions: false,
            withheld: Vec::new(),
            withheld_events: None,
            completed: 0,
            counters: Counters::default(),
        }
    }

    /// Adds an action of a QP to the log.
    pub(super) fn log(&self, qp: u32, action: QpAction) {
        if let Some(log) = &self.log {
            log.add(self.now, qp, action);
        }
    }

    /// Adds a completion to a CQ.
    fn post(&mut self, cq: u32, completion: Wc, solicited: bool) {
        if self.withholds_completions {
            self.withheld.push((cq, completion, solicited));
        } else {
            self.post_now(cq, &completion, solicited);
        }
    }

    fn post_now(&mut self, cq: u32, completion: &Wc, solicited: bool) {
        let sink = self.cqs.get_mut(cq).and_then(|cq| cq.post(completion, solicited));
        match (sink, &mut self.withheld_events) {
            (Some(sink), Some(events)) => events.push(Arc::clone(sink)),
            (Some(sink), None) => sink.completed(),
            (None, _) => {}
        }
    }

    /// Adds the completions that were withheld to their CQs.
    pub(super) fn post_withheld(&mut self) {
        self.withholds_completions = false;
        for (cq, completion, solicited) in std::mem::take(&mut self.withheld) {
            self.post_now(cq, &completion, solicited);
        }
    }

    /// Raises an asynchronous event of a QP.
    pub(super) fn raise(&self, queues: &QpQueues, event: EventType) {
        self.log(queues.number, QpAction::Raised(event));
        queues.sink.raise(event);
    }

    fn addresses(&self, queues: &QpQueues) -> Addresses<'_> {
        Addresses { handles: &self.handles, pd: queues.pd, qp: queues.number, mtu: self.address.mtu }
    }
}

impl Device for EnginePort {
    const MAX_MESSAGE: u64 = 1 << 31;
    const POLICY: Policy = Policy {
        memory_placement: true,
        send_queue_error: false,
        short_receive: Status::LocalLength,
        short_receive_nak: syndrome::NAK_OPERATION,
        drops_long_datagrams: true,
        refused_write_consumes_receive: true,
        refused_invalidate: Status::RemoteInvalidRequest,
        receive_flush_interval: 20_000_000,
        adaptive_window: true,
        // Few packets, whose payloads the cache holds until they are delivered.
        packets_per_turn: 4,
    };
    type Queues = QpQueues;
    type Local = Local;
    type RecvWqe = RecvWqeRef;
    type Accessor = Accessor;

    fn now(&self) -> u64 {
        self.now
    }

    fn transmit(&mut self, queues: &QpQueues, packet: Packet) {
        if self.log.is_some() {
            self.log(queues.number, QpAction::Sent(PacketSummary::of(&packet)));
        }
        self.withholds_completions |= packet.zero_copy.is_some();
        self.outgoing.push(packet);
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn lid(&self) -> u16 {
        0
    }

    fn is_own(&self, route: &Route) -> bool {
        route.global.is_some_and(|global| self.address.gids.contains(&global.source))
    }

    fn route(&self, address: &AddressVector) -> Option<Route> {
        self.address.route(address)
    }

    fn read_producer(&self, _queues: &mut QpQueues) -> Result<(), QueueFault> {
        // `fetch` reads it.
        Ok(())
    }

    fn fetch(&self, queues: &mut QpQueues, work: &mut Work) -> Fetched {
        let addresses = self.addresses(queues);
        queues.sends.fetch(queues.service, &addresses, work)
    }

    fn begin(&mut self, queues: &mut QpQueues, _work: &Work) -> SendWqeRef {
        let wqe = queues.sends.begin();
        self.log(queues.number, QpAction::Fetched { wr_id: wqe.wr_id, opcode: wqe.opcode });
        wqe
    }

    fn reload(&self, queues: &mut QpQueues, work: &mut Work, wqe: SendWqeRef) -> bool {
        let addresses = self.addresses(queues);
        queues.sends.reload(queues.service, &addresses, work, wqe)
    }

    fn take_posted(&self, queues: &mut QpQueues) -> Vec<SendWqeRef> {
        queues.sends.take_posted()
    }

    fn execute(&mut self, queues: &QpQueues, work: &Work) -> Result<u64, Status> {
        let who = self.accessor(queues, None);
        match work.action {
            Action::Local(Local::Invalidate(key)) => {
                self.keys.invalidate(who, key).map_err(|_| Status::LocalQpOperation)?;
            }
            Action::Local(Local::Bind(bind)) => {
                self.keys.bind(who, &bind).map_err(|_| Status::MemoryWindowBind)?;
            }
            _ => {}
        }
        Ok(0)
    }

    fn complete_send(&mut self, queues: &QpQueues, completion: &SendCompletion<'_, SendWqeRef>) {
        let SendCompletion { wqe, failure, .. } = *completion;
        self.completed += 1;
        let failure = match failure {
            Some(failure) => Some(completion::status_of_send(wqe.opcode, failure)),
            None => self.completion_faults.next(queues.number),
        };
        queues.sends.release(wqe, failure);
        let status = failure.unwrap_or(WcStatus::SUCCESS);
        self.log(queues.number, QpAction::Completed { wr_id: wqe.wr_id, opcode: wqe.opcode, status });
        if !wqe.signaled && failure.is_none() {
            return;
        }
        let entry = completion::of_send(queues.number, wqe.wr_id, wqe.opcode, wqe.length(), failure);
        self.post(queues.send_cq, entry, false);
    }

    fn take_receive(&mut self, queues: &mut QpQueues, _xrc: Option<u32>) -> RecvFetch<RecvWqeRef> {
        if self.hides_receives {
            return RecvFetch::Empty;
        }
        match &mut queues.receives {
            Receives::Own(ring) => ring.take(None),
            Receives::Srq(number) => match self.srqs.get_mut(*number) {
                Some(srq) => srq.take(*number),
                None => RecvFetch::Empty,
            },
        }
    }

    fn complete_receive(
        &mut self,
        queues: &QpQueues,
        receive: &Receive<RecvWqeRef>,
        outcome: RecvOutcome<'_>,
    ) {
        self.completed += 1;
        if let Receives::Own(ring) = &queues.receives {
            ring.release(receive.wqe.position);
        }
        let (mut entry, solicited) =
            completion::of_receive(queues.number, receive.wqe.wr_id, receive.placed, &outcome);
        if entry.status == WcStatus::SUCCESS
            && let Some(status) = self.completion_faults.next(queues.number)
        {
            entry = Wc {
                wr_id: entry.wr_id,
                qp_num: queues.number,
                opcode: entry.opcode,
                status,
                ..Wc::new_zeroed()
            };
        }
        let Wc { wr_id, opcode, status, .. } = entry;
        self.log(queues.number, QpAction::Completed { wr_id, opcode, status });
        self.post(queues.recv_cq, entry, solicited);
    }

    fn accepts_xrc(&self, _queues: &QpQueues, _srq: u32) -> bool {
        false
    }

    fn accessor(&self, queues: &QpQueues, srq: Option<u32>) -> Accessor {
        let pd = srq.and_then(|srq| self.srqs.get(srq)).map_or(queues.pd, |srq| srq.pd);
        Accessor { pd, qp: queues.number }
    }

    fn check(&self, range: &KeyRange<Accessor>, length: u64) -> Result<(), AccessError> {
        self.keys.find(range.who, range.key, range.access, range.address, length).map(drop)
    }

    fn read(&self, range: &KeyRange<Accessor>, to: &mut [u8]) -> Result<(), AccessError> {
        if !to.is_empty() {
            let length = to.len() as u64;
            self.keys.find(range.who, range.key, range.access, range.address, length)?.read(to);
        }
        Ok(())
    }

    fn write(&self, range: &KeyRange<Accessor>, from: &[u8]) -> Result<(), AccessError> {
        if !from.is_empty() {
            let length = from.len() as u64;
            self.keys.find(range.who, range.key, range.access, range.address, length)?.write(from);
        }
        Ok(())
    }

    fn zero_copy(&self, range: &KeyRange<Accessor>, length: u32) -> Option<u64> {
        if !self.delivers_at_once || length == 0 {
            return None;
        }
        let found = self.keys.find(range.who, range.key, range.access, range.address, length.into()).ok()?;
        Some(found.start())
    }

    fn copy(&self, range: &KeyRange<Accessor>, address: u64, length: u32) -> Result<(), AccessError> {
        let length = length.into();
        let to = self.keys.find(range.who, range.key, range.access, range.address, length)?;
        // A device of the fabric has found this range in one of its regions. The fabric's lock has been held
        // since, and a region is deregistered under that lock. The device withholds its completions until the
        // packets are delivered.
        Range::new(address, length).copy_to(to);
        Ok(())
    }

    fn update(&self, range: &KeyRange<Accessor>, change: impl Fn(u64) -> u64) -> Result<u64, AccessError> {
        let found = self.keys.find(range.who, range.key, range.access, range.address, 8)?;
        found.update(change).ok_or(AccessError::Denied)
    }

    /// Memory of the process is coherent: earlier writes are visible to all processors.
    fn flush(
        &self,
        who: Accessor,
        key: u32,
        address: u64,
        length: u32,
        flush: Flush,
    ) -> Result<(), AccessError> {
        self.keys.find_for_flush(who, key, (address, length), flush).map(drop)
    }

    fn invalidate(&mut self, queues: &QpQueues, key: u32) -> bool {
        let who = self.accessor(queues, None);
        self.keys.invalidate(who, key).is_ok()
    }

    fn page_fault(
        &mut self,
        _queues: &QpQueues,
        _fault: PageFault<SendWqeRef, RecvWqeRef>,
        _committed: u32,
        _packet: usize,
    ) -> Option<u32> {
        None
    }

    fn event(&mut self, queues: &QpQueues, event: Event) {
        let event = match event {
            Event::PathMigrated => EventType::PATH_MIG,
            Event::PathMigrationFailed => EventType::PATH_MIG_ERR,
            Event::CommunicationEstablished => EventType::COMM_EST,
            Event::SendQueueDrained => EventType::SQ_DRAINED,
            Event::QueueFault => EventType::QP_FATAL,
            // rxe reports none.
            Event::InvalidRequest => return,
            Event::AccessError => EventType::QP_ACCESS_ERR,
            Event::LastWqe => EventType::QP_LAST_WQE_REACHED,
        };
        self.raise(queues, event);
    }

    fn observe(&mut self, queues: &QpQueues, step: Step) {
        let action = match step {
            Step::AckTimeout => QpAction::AckTimeout,
            Step::RnrWait(nanos) => QpAction::RnrWait(Duration::from_nanos(nanos)),
            Step::Retry(psn) => QpAction::Retry { psn },
            Step::Error => QpAction::State(QpState::ERR),
        };
        self.log(queues.number, action);
    }

    fn counters(&mut self, _set: u8) -> &mut Counters {
        &mut self.counters
    }

    fn pkey_violation(&mut self) {}

    fn qkey_violation(&mut self) {}
}
