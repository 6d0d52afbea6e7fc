//! The data path of one device: rings, memory keys, addresses, and the QPs of the transport.
//!
//! | module | content |
//! |---|---|
//! | `queue` | a ring that the program shares |
//! | `send`, `receive`, `completion` | the WQEs and CQEs in it |
//! | `completion_faults` | completions that fail by fault injection |
//! | `queues` | the queues of a QP |
//! | `memory`, `range` | memory keys, and the memory of the program behind them |
//! | `address` | GIDs, address handles, routes |
//! | `port` | the transport's [`Device`](bareverbs_transport::Device) |
//! | `management` | the communication manager on QP 1 |
//!
//! The fabric owns the engines and drives them. Statuses and events are those of Soft-RoCE on Linux 7.2.

mod address;
mod completion;
mod completion_faults;
mod management;
mod memory;
mod port;
mod queue;
mod queues;
mod range;
mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_transport::packet::{Packet, Route, Transport};
use bareverbs_transport::{QpAttributes, Scheduler, Service, State};
use bareverbs_uapi::rxe::Av;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{EventType, MwType, QpState, WcStatus};

use crate::channel::{CqSink, ObjectSink};
use crate::cm::Cm;
use crate::event_log::{DeviceLog, EventLog, PacketSummary, QpAction};
use crate::mac::eui64;
use crate::wire::{UdpWire, address_of};
use address::{Ah, PortAddress, address_vector, udp_source};
use completion::Cq;
use management::MANAGEMENT_QP;
pub(crate) use memory::{Mr, MrAttr, PreparedMr, check_rights, known_rights};
use port::EnginePort;
pub(crate) use queue::QueueMemory;
use queues::{QpQueues, Receives};
use receive::{RecvRing, Srq};
use send::SendRing;

/// The first QPN. The lower ones are those of management QPs and of the kernel.
const FIRST_QP: u32 = 0x11;

/// The highest QPN: the next one is that of multicast.
const MAX_QPN: u32 = 0xff_fffe;

/// First communication ids of devices of a fabric differ by this.
const CM_IDS_APART: u32 = 0x9e37_79b1;

/// The MTU of a port on a network in this process, in bytes.
const PORT_MTU: u32 = 4096;

// Numbers of objects that a device has at most, as Soft-RoCE reports them.
pub(crate) const MAX_QP: u32 = (1 << 20) - 16;
pub(crate) const MAX_CQ: u32 = 1 << 20;
pub(crate) const MAX_SRQ: u32 = (1 << 20) - 1;
pub(crate) const MAX_AH: u32 = (1 << 15) - 1;
pub(crate) const MAX_GROUPS: u32 = 8192;
pub(crate) const MAX_GROUP_MEMBERS: u32 = 56;

/// The parameters of a new QP.
#[derive(Debug)]
pub(crate) struct QpInit {
    pub(crate) pd: u32,
    pub(crate) qp_type: QpType,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) all_signaled: bool,
    pub(crate) sink: Arc<ObjectSink>,
}

/// A new QP.
#[derive(Debug)]
pub(crate) struct CreatedQp {
    pub(crate) qpn: u32,
    /// The capacities, which are at least those asked for.
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) sq: QueueMemory,
    /// None with an SRQ.
    pub(crate) rq: Option<QueueMemory>,
}

/// The state of a QP as programs see it.
pub(crate) fn state_of(state: State) -> QpState {
    match state {
        State::Reset => QpState::RESET,
        State::Init => QpState::INIT,
        State::ReadyToReceive => QpState::RTR,
        State::ReadyToSend => QpState::RTS,
        State::SendQueueDrained => QpState::SQD,
        State::SendQueueError => QpState::SQE,
        State::Error => QpState::ERR,
    }
}

fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// The data path of a device.
#[derive(Debug)]
pub(crate) struct Engine {
    port: EnginePort,
    qps: Scheduler<EnginePort>,
    /// The wire to other processes, if there is one.
    wire: Option<Arc<UdpWire>>,
    link: bool,
    /// Packets of the fabric with a wrong ICRC.
    corrupt: u64,
    cm: Cm,
    /// The PSN of the last packet of the management QP.
    management_psn: u32,
}

impl Engine {
    /// `number` is that of the device among all that the fabric has had.
    pub(crate) fn new(gids: Vec<[u8; 16]>, mac: [u8; 6], number: u32) -> Self {
        let port = EnginePort::new(PortAddress { gids, mac, mtu: PORT_MTU });
        let qps = Scheduler::new(FIRST_QP, MAX_QP as usize);
        let cm = Cm::new(u64::from_be_bytes(eui64(mac)), number.wrapping_mul(CM_IDS_APART));
        Self { port, qps, wire: None, link: true, corrupt: 0, cm, management_psn: 0 }
    }

    /// Adds the actions of the QPs to a log.
    pub(crate) fn log_to(&mut self, log: &EventLog) {
        // The last GID is that of the address.
        let address = self.port.address.gids.last().map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address_of);
        self.port.log = Some(DeviceLog::new(log.clone(), address));
    }

    /// Sets whether the link is up. Without it, all packets are lost.
    pub(crate) fn set_link(&mut self, up: bool) {
        self.link = up;
    }

    /// Raises an asynchronous event of a QP. Returns `false` if there is no such QP.
    pub(crate) fn raise(&mut self, qpn: u32, event: EventType) -> bool {
        self.qps.get(qpn).map(|qp| self.port.raise(&qp.queues, event)).is_some()
    }

    /// Connects the port with a wire to other processes. It has no QPs yet.
    pub(crate) fn connect(&mut self, wire: Arc<UdpWire>) {
        self.port.address.mtu = wire.mtu();
        // Peers may have connections of an earlier process that was killed. They reject a new one of the
        // same QPN as stale, once.
        self.cm.set_next_id(random());
        let first = FIRST_QP + random() % (MAX_QPN - MAX_QP - FIRST_QP + 2);
        self.qps = Scheduler::new(first, MAX_QP as usize);
        self.wire = Some(wire);
    }

    /// The wire to other processes.
    pub(crate) fn wire(&self) -> Option<&UdpWire> {
        self.wire.as_deref()
    }

    /// Registers memory of the program.
    pub(crate) fn register(&mut self, mr: PreparedMr) -> Result<Mr, Errno> {
        self.port.keys.register(mr)
    }

    /// Changes PD and rights of a region. Rights to write to memory that was
    /// registered without them are `EACCES`.
    pub(crate) fn reregister(
        &mut self,
        mr: u32,
        pd: Option<u32>,
        access: Option<AccessFlags>,
    ) -> Result<Mr, Errno> {
        self.port.keys.reregister(mr, pd, access)
    }

    /// Ends a registration: `EINVAL` while windows are bound to it.
    pub(crate) fn deregister(&mut self, mr: u32) -> Result<(), Errno> {
        self.port.keys.deregister(mr)
    }

    pub(crate) fn mr(&self, mr: u32) -> Option<(Mr, MrAttr)> {
        self.port.keys.mr(mr)
    }

    /// Returns the window's number and its R_Key.
    pub(crate) fn allocate_window(&mut self, pd: u32, ty: MwType) -> Result<(u32, u32), Errno> {
        self.port.keys.allocate_window(pd, ty)
    }

    pub(crate) fn free_window(&mut self, mw: u32) -> Result<(), Errno> {
        self.port.keys.free_window(mw)
    }

    pub(crate) fn create_cq(&mut self, entries: u32, sink: Arc<CqSink>) -> Result<(u32, QueueMemory), Errno> {
        let cq = Cq::new(entries, sink)?;
        let memory = cq.memory();
        Ok((self.port.cqs.insert_with(|_| cq).ok_or(Errno::NOMEM)?, memory))
    }

    /// Moves a CQ to another ring: `EINVAL` if more than `entries` completions were not polled.
    pub(crate) fn resize_cq(&mut self, cq: u32, entries: u32) -> Result<QueueMemory, Errno> {
        self.port.cqs.get_mut(cq).ok_or(Errno::INVAL)?.resize(entries)
    }

    pub(crate) fn arm_cq(&mut self, cq: u32, solicited_only: bool) {
        if let Some(cq) = self.port.cqs.get_mut(cq) {
            cq.arm(solicited_only);
        }
    }

    pub(crate) fn destroy_cq(&mut self, cq: u32) {
        self.port.cqs.remove(cq);
    }

    pub(crate) fn create_srq(
        &mut self,
        pd: u32,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
        sink: Arc<ObjectSink>,
    ) -> Result<(u32, QueueMemory), Errno> {
        let srq = Srq::new(pd, max_wr, max_sge, limit, sink)?;
        let memory = srq.memory();
        Ok((self.port.srqs.insert_with(|_| srq).ok_or(Errno::NOMEM)?, memory))
    }

    /// Sets the number of receives below which the event is raised, once: `EINVAL` above the capacity.
    pub(crate) fn set_srq_limit(&mut self, srq: u32, limit: u32) -> Result<(), Errno> {
        self.port.srqs.get_mut(srq).ok_or(Errno::INVAL)?.set_limit(limit)
    }

    /// Moves an SRQ to another ring: `EINVAL` if its limit or its receives are more than `max_wr`.
    pub(crate) fn resize_srq(&mut self, srq: u32, max_wr: u32) -> Result<QueueMemory, Errno> {
        self.port.srqs.get_mut(srq).ok_or(Errno::INVAL)?.resize(max_wr)
    }

    /// The maximum number of WQEs and of SGEs, and the limit.
    pub(crate) fn srq(&self, srq: u32) -> Option<(u32, u32, u32)> {
        self.port.srqs.get(srq).map(Srq::attributes)
    }

    pub(crate) fn destroy_srq(&mut self, srq: u32) {
        self.port.srqs.remove(srq);
    }

    /// Creates a QP in RESET: `EOPNOTSUPP` for types other than RC, UC and UD.
    pub(crate) fn create_qp(&mut self, init: QpInit) -> Result<CreatedQp, Errno> {
        let service = match init.qp_type {
            QpType::RC => Service::Connected(Transport::Rc),
            QpType::UC => Service::Connected(Transport::Uc),
            QpType::UD => Service::Datagram(None),
            _ => return Err(Errno::OPNOTSUPP),
        };
        let sends = SendRing::new(init.max_send_wr, init.max_send_sge, init.max_inline, init.all_signaled)?;
        let receives = match init.srq {
            Some(srq) => Receives::Srq(srq),
            None => Receives::Own(RecvRing::new(init.max_recv_wr, init.max_recv_sge)?),
        };
        let (rq, max_recv_wr) = match &receives {
            Receives::Own(ring) => (Some(ring.memory()), ring.capacity()),
            Receives::Srq(_) => (None, 0),
        };
        let (sq, max_send_wr) = (sends.memory(), sends.capacity());
        let (max_send_sge, max_inline) = (sends.max_sge, sends.max_inline);
        let queues = |number| QpQueues {
            number,
            pd: init.pd,
            service,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            sends,
            receives,
            sink: init.sink,
        };
        let qpn = self.qps.create(queues, QpAttributes::default()).ok_or(Errno::NOMEM)?;
        Ok(CreatedQp { qpn, max_send_wr, max_recv_wr, max_send_sge, max_inline, sq, rq })
    }

    /// Moves a QP to a state. The caller has checked that the transition is legal.
    pub(crate) fn modify_qp(&mut self, qpn: u32, state: State, mut attributes: QpAttributes) {
        let Some(qp) = self.qps.get(qpn) else { return };
        if let Service::Datagram(_) = qp.queues.service {
            attributes.mtu = self.port.address.mtu;
        }
        attributes.route.udp_source = udp_source(qpn);
        if matches!(state, State::Reset | State::Error) {
            self.qps.answer(&mut self.port, qpn);
        }
        if state != State::Error {
            self.port.log(qpn, QpAction::State(state_of(state)));
        }
        self.qps.modify(&mut self.port, qpn, state, attributes);
    }

    pub(crate) fn qp_state(&self, qpn: u32) -> Option<State> {
        self.qps.get(qpn).map(bareverbs_transport::Qp::state)
    }

    /// The PSN that the responder expects, and that of the next request.
    pub(crate) fn psns(&self, qpn: u32) -> (u32, u32) {
        let Some(qp) = self.qps.get(qpn) else { return (0, 0) };
        match qp.state() {
            State::Reset | State::Init => (qp.attributes.receive_psn, qp.attributes.send_psn),
            State::ReadyToReceive => (qp.expected_psn(), qp.attributes.send_psn),
            _ => (qp.expected_psn(), qp.next_psn()),
        }
    }

    /// Destroys a QP. It acknowledges first what it has received: a program may do so as soon as it has
    /// polled the last completion.
    pub(crate) fn destroy_qp(&mut self, qpn: u32) {
        self.qps.answer(&mut self.port, qpn);
        self.qps.destroy(qpn);
        if let Some(wire) = &self.wire {
            wire.retain_groups(|group| !self.qps.group(group).is_empty());
        }
        self.port.keys.forget_qp(qpn);
        self.port.completion_faults.forget(qpn);
    }

    /// The doorbell of a QP: `EINVAL` below RTS. The ring isn't read then.
    pub(crate) fn post_send(&mut self, qpn: u32) -> Result<(), Errno> {
        match self.qp_state(qpn) {
            None | Some(State::Reset | State::Init | State::ReadyToReceive) => Err(Errno::INVAL),
            Some(_) => {
                self.qps.wake(qpn);
                Ok(())
            }
        }
    }

    /// The route of a path. `None` if the port doesn't have its source GID.
    pub(crate) fn route(&self, av: &Av) -> Option<Route> {
        self.port.address.route(&address_vector(av))
    }

    /// Creates an address handle. Returns its number.
    pub(crate) fn create_ah(&mut self, pd: u32, av: Av) -> Result<u32, Errno> {
        self.port.handles.insert_with(|_| Ah { pd, av }).ok_or(Errno::NOMEM)
    }

    pub(crate) fn destroy_ah(&mut self, ah: u32) {
        self.port.handles.remove(ah);
    }

    /// Adds a QP to a multicast group, unless it is a member. `ENOMEM` at the limit of groups and of
    /// members of a group.
    pub(crate) fn attach(&mut self, qpn: u32, group: [u8; 16]) -> Result<(), Errno> {
        self.qps.get(qpn).ok_or(Errno::INVAL)?;
        let members = self.qps.group(&group);
        if members.contains(&qpn) {
            return Ok(());
        }
        let new_group = members.is_empty() && self.qps.groups() >= MAX_GROUPS as usize;
        if new_group || members.len() >= MAX_GROUP_MEMBERS as usize {
            return Err(Errno::NOMEM);
        }
        if let Some(wire) = &self.wire {
            wire.join(group)?;
        }
        self.qps.attach(group, qpn);
        Ok(())
    }

    /// Removes a QP from a multicast group: `EINVAL` if it isn't a member.
    pub(crate) fn detach(&mut self, qpn: u32, group: [u8; 16]) -> Result<(), Errno> {
        if !self.qps.detach(&group, qpn) {
            return Err(Errno::INVAL);
        }
        if let Some(wire) = &self.wire {
            wire.retain_groups(|group| !self.qps.group(group).is_empty());
        }
        Ok(())
    }

    /// Runs the QPs that are ready or whose timers have expired. Returns whether there were any.
    ///
    /// `delivers_at_once`: the caller delivers the packets to devices of the fabric before it releases the
    /// lock of the fabric, keeps no copy of them, and calls [`Self::post_withheld`] then.
    pub(crate) fn run(&mut self, now: u64, delivers_at_once: bool) -> bool {
        self.expire_timers(now);
        let had_work = self.has_work();
        // A wire encodes packets.
        self.port.delivers_at_once = delivers_at_once && self.wire.is_none();
        self.qps.run(&mut self.port);
        self.port.delivers_at_once = false;
        self.fail_qps();
        had_work
    }

    /// Posts the completions that have waited until the packets of a [run](Self::run) were delivered.
    pub(crate) fn post_withheld(&mut self) {
        self.port.post_withheld();
    }

    /// From now on, the events of CQs wait until they are [taken](Self::take_withheld_events).
    pub(crate) fn withhold_events(&mut self) {
        self.port.withheld_events.get_or_insert_default();
    }

    /// The CQs whose events have waited. Later ones don't wait.
    pub(crate) fn take_withheld_events(&mut self) -> Vec<Arc<CqSink>> {
        self.port.withheld_events.take().unwrap_or_default()
    }

    /// Sets the time, and makes the QPs ready whose timers have expired.
    pub(crate) fn expire_timers(&mut self, now: u64) {
        self.port.now = now;
        self.with_cm(Cm::expire);
        self.qps.expire_timers(&mut self.port);
    }

    /// Whether a QP is ready to run.
    pub(crate) fn has_work(&self) -> bool {
        self.qps.has_work()
    }

    /// Gives one turn to the QP that has been ready for the longest time.
    pub(crate) fn step(&mut self) {
        self.qps.step(&mut self.port);
        self.fail_qps();
    }

    /// The number of WQEs that have completed.
    pub(crate) fn completed(&self) -> u64 {
        self.port.completed
    }

    /// Sets the time.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.port.now = now;
    }

    /// Takes the packets for the wire. `buffer` is empty, and is used for further packets.
    pub(crate) fn take_packets(&mut self, buffer: Vec<Packet>) -> Vec<Packet> {
        let mut packets = std::mem::replace(&mut self.port.outgoing, buffer);
        if !self.link {
            packets.drain(..).for_each(|packet| self.port.pool.give(packet.payload));
        }
        packets
    }

    /// Receives a packet from the wire. Connected QPs receive those of their path only.
    pub(crate) fn receive(&mut self, packet: &Packet) {
        if !self.link {
            return;
        }
        if self.port.log.is_some() {
            self.port.log(packet.destination, QpAction::Received(PacketSummary::of(packet)));
        }
        if packet.destination == MANAGEMENT_QP {
            self.receive_mad(packet);
        } else if self.is_of_path(packet) {
            self.qps.receive(&mut self.port, packet);
            self.fail_qps();
        }
    }

    /// Moves the QPs to ERR of which a completion has failed by fault injection.
    fn fail_qps(&mut self) {
        while let Some(qpn) = self.port.completion_faults.take_failed() {
            self.qps.fail(&mut self.port, qpn);
        }
    }

    /// Makes the n-th completion of a QP from now on fail. Returns `false` if there is no such QP.
    pub(crate) fn fail_completion(&mut self, qpn: u32, nth: u64, status: WcStatus) -> bool {
        let exists = self.qps.get(qpn).is_some();
        if exists {
            self.port.completion_faults.add(qpn, nth, status);
        }
        exists
    }

    /// The same while no QP has a receive WQE.
    pub(crate) fn receive_without_wqes(&mut self, packet: &Packet) {
        self.port.hides_receives = true;
        self.receive(packet);
        self.port.hides_receives = false;
    }

    /// Counts a packet with a wrong ICRC.
    pub(crate) fn drop_corrupt(&mut self) {
        self.corrupt += 1;
    }

    /// The packets with a wrong ICRC from devices of the fabric.
    pub(crate) fn corrupt(&self) -> u64 {
        self.corrupt
    }

    /// Whether a packet for a connected QP comes from its peer's address to its own.
    fn is_of_path(&self, packet: &Packet) -> bool {
        let qp = self.qps.get(packet.destination);
        let Some(qp) = qp.filter(|qp| matches!(qp.queues.service, Service::Connected(_))) else {
            return true;
        };
        let addresses = |route: &Route| route.global.map(|global| (global.source, global.destination));
        addresses(&packet.route).is_some_and(|(from, to)| addresses(&qp.attributes.route) == Some((to, from)))
    }

    /// Returns the buffer of a packet that was delivered.
    pub(crate) fn recycle(&mut self, payload: Vec<u8>) {
        self.port.pool.give(payload);
    }

    /// The time of the next timer.
    pub(crate) fn next_timer(&mut self) -> Option<u64> {
        let timers = [self.qps.next_timer(), self.cm.next_timer()];
        timers.into_iter().flatten().min()
    }
}
