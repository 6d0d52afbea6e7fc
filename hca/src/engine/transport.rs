//! The device that the transport works for: its hooks on the engine's queues, keys and events.

use bareverbs_transport::{
    Access, AccessError, AddressVector, Counters, Device, Event, Fetched, KeyRange, PageFault, Policy, Pool,
    QueueFault, Receive, RecvFetch, RecvOutcome, SendCompletion, Status, gather,
};

use super::core::Core;
use super::eq::EventKind;
use super::limits::MAX_MESSAGE;
use super::mkey::{self, Accessor};
use super::packet::{Packet, Route, syndrome};
use super::page_fault::{PageFaultInfo, kind};
use super::queues::{QpQueues, ReceiveQueue};
use super::service::Service;
use super::wqe::{Frame, Local, SendWqe, Work};
use super::{ethernet, receive_queue, send_queue, umr};

impl Device for Core {
    const MAX_MESSAGE: u64 = MAX_MESSAGE;
    const POLICY: Policy = Policy {
        memory_placement: false,
        send_queue_error: true,
        short_receive: Status::LocalLength,
        short_receive_nak: syndrome::NAK_INVALID,
        drops_long_datagrams: false,
        refused_write_consumes_receive: false,
        refused_invalidate: Status::RemoteAccess,
        receive_flush_interval: 2_000_000,
        adaptive_window: false,
        packets_per_turn: 32,
    };
    type Queues = QpQueues;
    type Local = Local;
    type RecvWqe = u16;
    type Accessor = Accessor;

    fn now(&self) -> u64 {
        self.now
    }

    fn transmit(&mut self, _queues: &QpQueues, packet: Packet) {
        self.outgoing.push(packet);
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn lid(&self) -> u16 {
        self.port.lid
    }

    fn is_own(&self, route: &Route) -> bool {
        let mac = if self.is_ethernet() { self.port.mac } else { [0; 6] };
        (route.source_lid, route.source_mac) == (self.port.lid, mac)
    }

    fn route(&self, address: &AddressVector) -> Option<Route> {
        self.port.route(address)
    }

    fn read_producer(&self, queues: &mut QpQueues) -> Result<(), QueueFault> {
        send_queue::read_producer(queues, &self.memory)
    }

    fn fetch(&self, queues: &mut QpQueues, work: &mut Work) -> Fetched {
        send_queue::fetch(queues, &self.memory, work)
    }

    fn begin(&mut self, queues: &mut QpQueues, work: &Work) -> SendWqe {
        send_queue::begin(queues, &mut self.recording, work)
    }

    fn reload(&self, queues: &mut QpQueues, work: &mut Work, wqe: SendWqe) -> bool {
        queues.loaded == Some(wqe.index)
            || matches!(send_queue::load(queues, &self.memory, work, wqe.index), Ok(Ok(())))
    }

    fn take_posted(&self, queues: &mut QpQueues) -> Vec<SendWqe> {
        send_queue::take_posted(queues, &self.memory)
    }

    fn execute(&mut self, queues: &QpQueues, work: &Work) -> Result<u64, Status> {
        match work.action {
            bareverbs_transport::Action::Local(Local::Umr) => {
                umr::execute(self, self.accessor(queues, None), work).map(|()| 0)
            }
            bareverbs_transport::Action::Local(Local::Frame(how)) => send_frame(self, queues, work, how),
            _ => Ok(0),
        }
    }

    fn complete_send(&mut self, queues: &QpQueues, completion: &SendCompletion<'_, SendWqe>) {
        send_queue::report(self, queues, completion);
    }

    fn take_receive(&mut self, queues: &mut QpQueues, xrc: Option<u32>) -> RecvFetch<u16> {
        match (xrc, &queues.setup.receive) {
            (Some(srq), _) | (None, &ReceiveQueue::Shared(srq)) => self.take_shared(srq),
            (None, ReceiveQueue::None) => RecvFetch::Empty,
            (None, &ReceiveQueue::Own { log_size, log_stride }) => {
                let size = (log_size, log_stride);
                receive_queue::take_own(queues, &self.memory, &mut self.recording, size)
            }
        }
    }

    fn complete_receive(&mut self, queues: &QpQueues, receive: &Receive<u16>, outcome: RecvOutcome<'_>) {
        receive_queue::report(self, queues, receive, outcome);
    }

    fn accepts_xrc(&self, queues: &QpQueues, srq: u32) -> bool {
        let xrcd = self.srqs.get(srq).and_then(|srq| srq.setup.xrcd);
        xrcd.is_some() && xrcd == queues.setup.xrcd
    }

    #[inline]
    fn accessor(&self, queues: &QpQueues, srq: Option<u32>) -> Accessor {
        let setup = &queues.setup;
        Accessor {
            pd: srq.and_then(|srq| self.srqs.get(srq)).map_or(setup.pd, |srq| srq.setup.pd),
            qp: queues.number,
            reserved_lkey: setup.reserved_lkey,
            any_pd: setup.service == Service::RegUmr,
        }
    }

    #[inline]
    fn check(&self, range: &KeyRange<Accessor>, length: u64) -> Result<(), AccessError> {
        let rights = rights(range.access);
        Ok(mkey::check(&self.mkeys, range.who, range.key, range.address, length, rights)?)
    }

    #[inline]
    fn read(&self, range: &KeyRange<Accessor>, to: &mut [u8]) -> Result<(), AccessError> {
        let (place, rights) = ((range.key, range.address), rights(range.access));
        Ok(mkey::read(&self.mkeys, &self.memory, range.who, place, rights, to)?)
    }

    #[inline]
    fn write(&self, range: &KeyRange<Accessor>, from: &[u8]) -> Result<(), AccessError> {
        let (place, rights) = ((range.key, range.address), rights(range.access));
        Ok(mkey::write(&self.mkeys, &self.memory, range.who, place, rights, from)?)
    }

    #[inline]
    fn update(&self, range: &KeyRange<Accessor>, change: impl Fn(u64) -> u64) -> Result<u64, AccessError> {
        let (place, rights) = ((range.key, range.address), rights(range.access));
        Ok(mkey::update(&self.mkeys, &self.memory, range.who, place, rights, change)?)
    }

    fn invalidate(&mut self, queues: &QpQueues, key: u32) -> bool {
        let who = self.accessor(queues, None);
        mkey::invalidate(&mut self.mkeys, who, key)
    }

    fn page_fault(
        &mut self,
        queues: &QpQueues,
        fault: PageFault<SendWqe, u16>,
        committed: u32,
        packet: usize,
    ) -> Option<u32> {
        let list = |kind, queue, index| PageFaultInfo::List { kind, queue, index };
        let info = match fault {
            PageFault::Send(wqe) => list(kind::SEND_OR_WRITE, queues.number, wqe.index),
            PageFault::Response(wqe) => list(kind::READ_OR_ATOMIC, queues.number, wqe.index),
            PageFault::Receive(index, None) => list(kind::RECEIVE, queues.number, index),
            PageFault::Receive(index, Some(srq)) => list(kind::SHARED_RECEIVE, srq, index),
            PageFault::Remote { key, address, length, written } => {
                PageFaultInfo::Remote { key, address, length, written }
            }
        };
        self.page_fault_event(queues.number, info, committed, packet)
    }

    fn event(&mut self, queues: &QpQueues, event: Event) {
        let kind = match event {
            Event::PathMigrated => EventKind::PathMigrated,
            Event::PathMigrationFailed => EventKind::PathMigrationFailed,
            Event::CommunicationEstablished => EventKind::CommunicationEstablished,
            Event::SendQueueDrained => EventKind::SendQueueDrained,
            Event::QueueFault => EventKind::WqCatastrophic,
            Event::InvalidRequest => EventKind::InvalidRequest,
            Event::AccessError => EventKind::AccessError,
            Event::LastWqe => EventKind::SrqLastWqe,
        };
        self.qp_event(kind, queues.number);
    }

    fn counters(&mut self, set: u8) -> &mut Counters {
        &mut self.counters[usize::from(set)]
    }

    fn pkey_violation(&mut self) {
        self.port.pkey_violations = self.port.pkey_violations.saturating_add(1);
    }

    fn qkey_violation(&mut self) {
        self.port.qkey_violations = self.port.qkey_violations.saturating_add(1);
    }
}

/// The rights that an access needs.
#[inline]
fn rights(access: Access) -> u8 {
    match access {
        Access::LocalRead => mkey::access::LOCAL_READ,
        Access::LocalWrite => mkey::access::LOCAL_WRITE,
        Access::RemoteRead => mkey::access::REMOTE_READ,
        Access::RemoteWrite => mkey::access::REMOTE_WRITE,
        Access::RemoteAtomic => mkey::access::ATOMIC,
    }
}

impl From<mkey::AccessError> for AccessError {
    fn from(error: mkey::AccessError) -> Self {
        match error {
            mkey::AccessError::Absent => Self::Absent,
            _ => Self::Denied,
        }
    }
}

/// Sends an Ethernet frame. Returns the number of its bytes on the wire.
fn send_frame(core: &mut Core, queues: &QpQueues, work: &Work, how: Frame) -> Result<u64, Status> {
    ethernet::check_length(how, work.length)?;
    let mut frame = vec![0; work.length as usize];
    gather(core, queues, work, 0, &mut frame).map_err(|_| Status::LocalProtection)?;
    ethernet::send(core, queues.number, how, frame)
}
