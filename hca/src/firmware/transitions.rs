//! QP transitions: the legal ones, and the attributes that each may change.

use super::bits::{Field, View, ViewMut};
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateQpIn, CreateQpOut, Rts2rtsQpIn};
use super::layout::object::{AddressPath, Qpc};
use super::opcode;
use super::qps::{address, migration_code, supported_ece, use_alternate_path};
use super::state::Firmware;
use crate::engine::{AlternatePath, Engine, Migration, QpAttributes, QpSetup, ReceiveQueue, Service, State};

/// Bits of the optional parameter mask (`enum mlx5_qp_optpar` in `include/linux/mlx5/qp.h`).
mod optpar {
    pub(super) const ALTERNATE_PATH: u32 = 1 << 0;
    pub(super) const REMOTE_READ: u32 = 1 << 1;
    pub(super) const REMOTE_ATOMIC: u32 = 1 << 2;
    pub(super) const REMOTE_WRITE: u32 = 1 << 3;
    pub(super) const PKEY: u32 = 1 << 4;
    pub(super) const QKEY: u32 = 1 << 5;
    pub(super) const RNR_TIMER: u32 = 1 << 6;
    pub(super) const PATH: u32 = 1 << 7;
    pub(super) const MAX_REQUESTED: u32 = 1 << 8;
    pub(super) const MAX_RESPONDING: u32 = 1 << 9;
    pub(super) const MIGRATION: u32 = 1 << 10;
    pub(super) const RETRY_COUNT: u32 = 1 << 12;
    pub(super) const RNR_RETRY: u32 = 1 << 13;
    pub(super) const ACK_TIMEOUT: u32 = 1 << 14;
    pub(super) const SRQ: u32 = 1 << 18;
    pub(super) const RECEIVE_CQ: u32 = 1 << 19;
    pub(super) const RATE: u32 = 1 << 22;
    pub(super) const COUNTERS: u32 = 1 << 25;
}

/// The only bit of the second mask: the UDP source port of the primary path.
const UDP_SPORT: u64 = 1 << 2;

/// Source states, target state and required attributes of a transition.
struct Transition {
    from: &'static [State],
    to: State,
    required: u32,
    wires: bool,
    /// Whether the command has an ECE field.
    carries_ece: bool,
    sequence: Sequence,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sequence {
    Keep,
    Receive,
    Send,
}

fn transition(code: u16) -> Result<Transition> {
    use opcode::*;
    use optpar::*;
    let carries_ece = matches!(code, RST2INIT_QP | INIT2INIT_QP | INIT2RTR_QP | RTR2RTS_QP | RTS2RTS_QP);
    let plain =
        |from, to| Transition { from, to, required: 0, wires: false, carries_ece, sequence: Sequence::Keep };
    Ok(match code {
        RST2INIT_QP => Transition {
            required: REMOTE_READ | REMOTE_WRITE | REMOTE_ATOMIC | PKEY | QKEY | COUNTERS,
            wires: true,
            ..plain(&[State::Reset], State::Init)
        },
        INIT2INIT_QP => plain(&[State::Init], State::Init),
        INIT2RTR_QP => Transition {
            required: PATH | MAX_RESPONDING | RNR_TIMER,
            sequence: Sequence::Receive,
            ..plain(&[State::Init], State::ReadyToReceive)
        },
        RTR2RTS_QP => Transition {
            required: MAX_REQUESTED | RETRY_COUNT | RNR_RETRY | ACK_TIMEOUT,
            sequence: Sequence::Send,
            ..plain(&[State::ReadyToReceive], State::ReadyToSend)
        },
        RTS2RTS_QP => plain(&[State::ReadyToSend], State::ReadyToSend),
        SQERR2RTS_QP => plain(&[State::SendQueueError], State::ReadyToSend),
        SQD_RTS_QP => plain(&[State::SendQueueDrained], State::ReadyToSend),
        QP_2ERR => plain(
            &[
                State::Init,
                State::ReadyToReceive,
                State::ReadyToSend,
                State::SendQueueError,
                State::SendQueueDrained,
                State::Error,
            ],
            State::Error,
        ),
        QP_2RST => plain(
            &[
                State::Reset,
                State::Init,
                State::ReadyToReceive,
                State::ReadyToSend,
                State::SendQueueError,
                State::SendQueueDrained,
                State::Error,
            ],
            State::Reset,
        ),
        _ => return Err(Status::BadOpcode),
    })
}

impl Firmware {
    pub(super) fn modify_qp(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let transition = transition(request.opcode())?;
        let number = request.object()?;
        let (state, attributes) = engine.qp_attributes(number)?;
        let attributes = attributes.clone();
        if !self.qps.contains_key(&number) {
            return Err(Status::BadResource);
        }
        if !transition.from.contains(&state) {
            return Err(Status::BadQpState);
        }
        if matches!(transition.to, State::Error | State::Reset) {
            let attributes = if transition.to == State::Reset { QpAttributes::default() } else { attributes };
            if transition.to == State::Reset
                && let Some(mut context) =
                    self.qps.get_mut(&number).and_then(|entry| ViewMut::<Qpc>::new(&mut entry.context))
            {
                context.set(Qpc::PACKET_PACING_RATE_LIMIT_INDEX, 0u8);
            }
            return Ok(engine.modify_qp(number, transition.to, attributes)?);
        }
        let input = request.view::<CreateQpIn>()?;
        let given = input.part(CreateQpIn::QPC);
        let changes = transition.required | input.get32(CreateQpIn::OPT_PARAM_MASK);
        let service = engine.qp_setup(number)?.service;
        let mut attributes =
            self.changed(engine, service, attributes, &given, changes, transition.sequence)?;
        if request.opcode() == opcode::RTS2RTS_QP {
            let more = request.view::<Rts2rtsQpIn>()?.get(Rts2rtsQpIn::OPT_PARAM_MASK_95_32);
            if more & !UDP_SPORT != 0 {
                return Err(Status::BadParameter);
            }
            if more & UDP_SPORT != 0 {
                let path = given.part(Qpc::PRIMARY_ADDRESS_PATH);
                attributes.route.udp_source = path.get(AddressPath::UDP_SPORT) as u16;
            }
        }
        if transition.wires {
            self.rewire(engine, number, &given)?;
        }
        // The field is reserved in other transitions.
        if transition.carries_ece {
            let ece = supported_ece(input.get32(CreateQpIn::ECE));
            reply.view::<CreateQpOut>()?.set(CreateQpOut::ECE, ece);
        }
        let migrates = changes & optpar::MIGRATION != 0 && migration(&given)? == Migration::Migrated;
        let armed = attributes.migration == Migration::Armed;
        if attributes.on_alternate {
            self.move_to_alternate(number);
        }
        engine.modify_qp(number, transition.to, QpAttributes { on_alternate: false, ..attributes })?;
        if migrates && armed {
            engine.migrate_qp(number)?;
        }
        self.store_attrs(number, &given, changes, transition.sequence);
        Ok(())
    }

    /// The attributes after the changes in the mask.
    fn changed(
        &self,
        engine: &Engine,
        service: Service,
        mut attributes: QpAttributes,
        given: &View<'_, Qpc>,
        changes: u32,
        sequence: Sequence,
    ) -> Result<QpAttributes> {
        let wants = |bit: u32| changes & bit != 0;
        let path = given.part(Qpc::PRIMARY_ADDRESS_PATH);
        if wants(optpar::REMOTE_READ) {
            attributes.remote_read = given.flag(Qpc::RRE);
        }
        if wants(optpar::REMOTE_WRITE) {
            attributes.remote_write = given.flag(Qpc::RWE);
        }
        if wants(optpar::REMOTE_ATOMIC) {
            attributes.remote_atomic = given.flag(Qpc::RAE);
        }
        if wants(optpar::PKEY) {
            let index = path.get(AddressPath::PKEY_INDEX) as usize;
            attributes.pkey = *engine.port().pkeys.get(index).ok_or(Status::BadIndex)?;
        }
        if wants(optpar::QKEY) {
            attributes.qkey = given.get32(Qpc::Q_KEY);
        }
        if wants(optpar::RNR_TIMER) {
            attributes.min_rnr_timer = given.get8(Qpc::MIN_RNR_NAK);
        }
        if wants(optpar::MAX_REQUESTED) {
            attributes.max_rd_atomic = 1 << given.get8(Qpc::LOG_SRA_MAX);
        }
        if wants(optpar::MAX_RESPONDING) {
            attributes.max_dest_rd_atomic = 1 << given.get8(Qpc::LOG_RRA_MAX);
        }
        if wants(optpar::RETRY_COUNT) {
            attributes.retry_count = given.get8(Qpc::RETRY_COUNT);
        }
        if wants(optpar::RNR_RETRY) {
            attributes.rnr_retry = given.get8(Qpc::RNR_RETRY);
        }
        if wants(optpar::ACK_TIMEOUT) {
            attributes.ack_timeout = path.get8(AddressPath::ACK_TIMEOUT);
        }
        if wants(optpar::COUNTERS) {
            attributes.counters = given.get8(Qpc::COUNTER_SET_ID);
        }
        if wants(optpar::RATE) {
            attributes.rate = self.rate(given.get(Qpc::PACKET_PACING_RATE_LIMIT_INDEX))?;
        }
        let connected = matches!(service, Service::Connected(_));
        if wants(optpar::PATH) && connected {
            attributes.route = engine.port().route(&address(&path)).ok_or(Status::BadIndex)?;
        }
        if wants(optpar::ALTERNATE_PATH) && connected {
            let path = given.part(Qpc::SECONDARY_ADDRESS_PATH);
            let index = path.get(AddressPath::PKEY_INDEX) as usize;
            attributes.alternate = Some(AlternatePath {
                route: engine.port().route(&address(&path)).ok_or(Status::BadIndex)?,
                pkey: *engine.port().pkeys.get(index).ok_or(Status::BadIndex)?,
                ack_timeout: path.get8(AddressPath::ACK_TIMEOUT),
            });
        }
        if wants(optpar::MIGRATION) {
            // The driver may arm a path that is loaded and give up an armed one. The device itself
            // moves the QP from REARM to ARMED.
            match (attributes.migration, migration(given)?) {
                (Migration::Migrated, Migration::Rearm) if attributes.alternate.is_some() => {
                    attributes.migration = Migration::Rearm;
                }
                (Migration::Migrated | Migration::Armed, Migration::Migrated) => {}
                _ => return Err(Status::BadParameter),
            }
        }
        match sequence {
            Sequence::Keep => {}
            Sequence::Receive => {
                attributes.receive_psn = given.get32(Qpc::NEXT_RCV_PSN);
                attributes.remote_qp = given.get32(Qpc::REMOTE_QPN);
                attributes.mtu = mtu(given.get8(Qpc::MTU), connected)?;
            }
            Sequence::Send => attributes.send_psn = given.get32(Qpc::NEXT_SEND_PSN),
        }
        Ok(attributes)
    }

    /// PD, CQs, SRQ and doorbell record may still change on the transition from RESET.
    fn rewire(&mut self, engine: &mut Engine, number: u32, given: &View<'_, Qpc>) -> Result<()> {
        let pd = given.get32(Qpc::PD);
        if pd != 0 {
            self.resources.require_pd(pd)?;
        }
        let (send_cq, receive_cq) = (given.get32(Qpc::CQN_SND), given.get32(Qpc::CQN_RCV));
        for cq in [send_cq, receive_cq] {
            if cq != 0 {
                engine.cq_progress(cq)?;
            }
        }
        let srq = given.get32(Qpc::SRQN_RMPN_XRQN);
        let shares = matches!(engine.qp_setup(number)?.receive, ReceiveQueue::Shared(_)) && srq != 0;
        if shares {
            engine.srq_progress(srq)?;
        }
        let doorbell = given.get(Qpc::DBR_ADDR);
        Ok(engine.rewire_qp(number, |setup: &mut QpSetup| {
            let keep = |new: u32, old: u32| if new != 0 { new } else { old };
            setup.pd = keep(pd, setup.pd);
            setup.send_cq = keep(send_cq, setup.send_cq);
            setup.receive_cq = keep(receive_cq, setup.receive_cq);
            setup.doorbell = if doorbell != 0 { doorbell } else { setup.doorbell };
            if shares {
                setup.receive = ReceiveQueue::Shared(srq);
            }
        })?)
    }

    /// Makes the alternate path of a context the primary one.
    fn move_to_alternate(&mut self, number: u32) {
        if let Some(mut context) =
            self.qps.get_mut(&number).and_then(|entry| ViewMut::<Qpc>::new(&mut entry.context))
        {
            use_alternate_path(&mut context);
        }
    }

    /// Updates the context for QUERY_QP.
    fn store_attrs(&mut self, number: u32, given: &View<'_, Qpc>, changes: u32, sequence: Sequence) {
        let Some(entry) = self.qps.get_mut(&number) else { return };
        let Some(mut context) = ViewMut::<Qpc>::new(&mut entry.context) else { return };
        let mut take = |bit: u32, fields: &[Field<Qpc>]| {
            if changes & bit != 0 {
                for field in fields {
                    context.set(*field, given.get(*field));
                }
            }
        };
        take(optpar::REMOTE_READ, &[Qpc::RRE]);
        take(optpar::REMOTE_WRITE, &[Qpc::RWE]);
        take(optpar::REMOTE_ATOMIC, &[Qpc::RAE]);
        take(optpar::QKEY, &[Qpc::Q_KEY]);
        take(optpar::RNR_TIMER, &[Qpc::MIN_RNR_NAK]);
        take(optpar::MAX_REQUESTED, &[Qpc::LOG_SRA_MAX]);
        take(optpar::MAX_RESPONDING, &[Qpc::LOG_RRA_MAX]);
        take(optpar::RETRY_COUNT, &[Qpc::RETRY_COUNT]);
        take(optpar::RNR_RETRY, &[Qpc::RNR_RETRY]);
        take(optpar::RATE, &[Qpc::PACKET_PACING_RATE_LIMIT_INDEX]);
        take(optpar::COUNTERS, &[Qpc::COUNTER_SET_ID]);
        take(optpar::SRQ, &[Qpc::SRQN_RMPN_XRQN]);
        take(optpar::RECEIVE_CQ, &[Qpc::CQN_RCV]);
        match sequence {
            Sequence::Keep => {}
            Sequence::Receive => {
                take(u32::MAX, &[Qpc::REMOTE_QPN, Qpc::NEXT_RCV_PSN, Qpc::MTU, Qpc::LOG_MSG_MAX])
            }
            Sequence::Send => take(u32::MAX, &[Qpc::NEXT_SEND_PSN, Qpc::LOG_ACK_REQ_FREQ]),
        }
        if changes & optpar::ALTERNATE_PATH != 0 {
            let alternate = given.part(Qpc::SECONDARY_ADDRESS_PATH);
            context.part(Qpc::SECONDARY_ADDRESS_PATH).fill(alternate.raw());
        }
        let from = given.part(Qpc::PRIMARY_ADDRESS_PATH);
        let mut path = context.part(Qpc::PRIMARY_ADDRESS_PATH);
        let (pkey, timeout, port) = (
            path.get(AddressPath::PKEY_INDEX),
            path.get(AddressPath::ACK_TIMEOUT),
            path.get(AddressPath::VHCA_PORT_NUM),
        );
        if changes & optpar::PATH != 0 {
            path.fill(from.raw()).set(AddressPath::PKEY_INDEX, pkey).set(AddressPath::ACK_TIMEOUT, timeout);
            path.set(AddressPath::VHCA_PORT_NUM, port);
        }
        if changes & optpar::PKEY != 0 {
            path.set(AddressPath::PKEY_INDEX, from.get(AddressPath::PKEY_INDEX));
            path.set(AddressPath::VHCA_PORT_NUM, from.get(AddressPath::VHCA_PORT_NUM));
        }
        if changes & optpar::ACK_TIMEOUT != 0 {
            path.set(AddressPath::ACK_TIMEOUT, from.get(AddressPath::ACK_TIMEOUT));
        }
    }
}

/// The path migration state of a context.
fn migration(context: &View<'_, Qpc>) -> Result<Migration> {
    [Migration::Armed, Migration::Rearm, Migration::Migrated]
        .into_iter()
        .find(|state| migration_code(*state) == context.get8(Qpc::PM_STATE))
        .ok_or(Status::BadParameter)
}

/// The path MTU of a code in bytes. QPs without a connection ignore the code.
fn mtu(code: u8, connected: bool) -> Result<u32> {
    match code {
        1..=5 => Ok(128 << code),
        _ if connected => Err(Status::BadParameter),
        _ => Ok(4096),
    }
}
