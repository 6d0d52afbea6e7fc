//! The differences between the transports.

use bareverbs::ah::{Ah, AhAttr};
use bareverbs::qp::{
    Datagram, GRH_BYTES, InitAttr, Operation, Qp, Rc, RtrAttr, RtsAttr, Transport, Uc, UcOperation,
    UcRtrAttr, Ud, UdInitAttr,
};
use bareverbs::values::{AckTimeout, MinRnrTimer, Mtu, RnrRetry};
use bareverbs::xrc::{XrcOperation, XrcSend, XrcTarget, XrcTargetRtsAttr};
use bareverbs::{AnyProvider, Remote};

use super::multicast::Group;
use super::plan::Plan;
use super::wire::KeyRecord;
use crate::cli::perf::choice::{Connection, Verb};
use crate::session::{QKEY, RETRY_CNT};

/// The RNR NAK timer of perftest.
pub(crate) const MIN_RNR_TIMER: MinRnrTimer = MinRnrTimer::new(12).unwrap();

/// The operands of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

/// The path from a queue pair to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) address: AhAttr,
    pub(crate) mtu: Mtu,
    pub(crate) local: KeyRecord,
    pub(crate) remote: KeyRecord,
    pub(crate) timeout: AckTimeout,
    /// Whether the connection manager has connected the queue pair.
    pub(crate) managed: bool,
}

/// A transport that the benchmarks run on.
pub(crate) trait Service: Transport + Sized + Send {
    const CONNECTION: Connection;
    /// Bytes before the message in the memory of a receive.
    const HEADROOM: u32 = 0;
    /// Whether a queue pair only sends, and an XRC target executes the peer's requests.
    const HAS_TARGETS: bool = false;
    /// The peer's address, if each request needs it.
    type Route: Send;

    /// Whether this side has queue pairs that send. With XRC, a side that only receives has none.
    fn requests(plan: &Plan<'_>) -> bool {
        !Self::HAS_TARGETS || plan.requests()
    }

    /// RESET → INIT. A datagram queue pair is attached to the group, if there is one.
    fn init(qp: &mut Qp<Self>, attr: &InitAttr, group: Option<&Group>) -> bareverbs::Result<()>;

    /// The queue pair, if the connection manager connects it with `--cm`.
    fn managed(_: &mut Qp<Self>) -> Option<&mut Qp<Rc>> {
        None
    }

    /// INIT → RTS.
    fn connect(qp: &mut Qp<Self>, path: &Path) -> bareverbs::Result<Self::Route>;

    /// The operation of a message to `remote`. `atomic` is that of an atomic operation.
    fn operation<'r>(
        verb: Verb,
        remote: Remote,
        atomic: Atomic,
        route: &'r Self::Route,
    ) -> Self::Operation<'r, AnyProvider>;
}

/// Attributes of INIT → RTR of UC, and of a requester whose responder is another queue pair.
fn requester_rtr(path: &Path) -> UcRtrAttr {
    let (rq_psn, path_mtu) = (path.remote.psn, path.mtu);
    UcRtrAttr { rq_psn, path_mtu, ..UcRtrAttr::new(path.address, path.remote.qpn) }
}

/// Attributes of INIT → RTR of a reliable responder.
fn responder_rtr(path: &Path) -> RtrAttr {
    RtrAttr {
        rq_psn: path.remote.psn,
        path_mtu: path.mtu,
        max_dest_rd_atomic: limit(path.local.out_reads),
        min_rnr_timer: MIN_RNR_TIMER,
        ..RtrAttr::new(path.address, path.remote.qpn)
    }
}

/// Attributes of RTR → RTS of a reliable requester.
fn requester_rts(path: &Path) -> RtsAttr {
    RtsAttr {
        sq_psn: path.local.psn,
        timeout: path.timeout,
        retry_cnt: RETRY_CNT,
        rnr_retry: RnrRetry::INFINITE,
        max_rd_atomic: limit(path.remote.out_reads),
    }
}

fn limit(out_reads: u16) -> u8 {
    u8::try_from(out_reads).unwrap_or(u8::MAX)
}

/// INIT → RTS of an XRC target. The peer is a requester.
pub(crate) fn connect_target(target: &mut XrcTarget, path: &Path) -> bareverbs::Result<()> {
    target.ready_to_receive(&responder_rtr(path))?;
    target.ready_to_send(&XrcTargetRtsAttr { sq_psn: path.local.psn, timeout: path.timeout })
}

impl Service for Rc {
    const CONNECTION: Connection = Connection::Rc;
    type Route = ();

    fn managed(qp: &mut Qp<Self>) -> Option<&mut Qp<Self>> {
        Some(qp)
    }

    fn init(qp: &mut Qp<Self>, attr: &InitAttr, _: Option<&Group>) -> bareverbs::Result<()> {
        qp.init(attr)
    }

    fn connect(qp: &mut Qp<Self>, path: &Path) -> bareverbs::Result<()> {
        if path.managed {
            return Ok(());
        }
        qp.ready_to_receive(&responder_rtr(path))?;
        qp.ready_to_send(&requester_rts(path))
    }

    #[inline(always)]
    fn operation(verb: Verb, remote: Remote, atomic: Atomic, (): &()) -> Operation {
        match (verb, atomic) {
            (Verb::Send, _) => Operation::Send,
            (Verb::Write, _) => Operation::Write(remote),
            (Verb::WriteImm, _) => Operation::WriteImm(remote, 0.into()),
            (Verb::Read, _) => Operation::Read(remote),
            (Verb::Atomic, Atomic::Add(add)) => Operation::FetchAdd { remote, add },
            (Verb::Atomic, Atomic::Swap { compare, swap }) => Operation::CmpSwp { remote, compare, swap },
        }
    }
}

impl Service for Uc {
    const CONNECTION: Connection = Connection::Uc;
    type Route = ();

    fn init(qp: &mut Qp<Self>, attr: &InitAttr, _: Option<&Group>) -> bareverbs::Result<()> {
        qp.init(attr)
    }

    fn connect(qp: &mut Qp<Self>, path: &Path) -> bareverbs::Result<()> {
        qp.ready_to_receive(&requester_rtr(path))?;
        qp.ready_to_send(path.local.psn)
    }

    #[inline(always)]
    fn operation(verb: Verb, remote: Remote, _: Atomic, (): &()) -> UcOperation {
        match verb {
            Verb::Write => UcOperation::Write(remote),
            Verb::WriteImm => UcOperation::WriteImm(remote, 0.into()),
            // `Plan` has rejected reads and atomics.
            Verb::Send | Verb::Read | Verb::Atomic => UcOperation::Send,
        }
    }
}

impl Service for XrcSend {
    const CONNECTION: Connection = Connection::Xrc;
    const HAS_TARGETS: bool = true;
    /// The number of the peer's SRQ.
    type Route = u32;

    fn init(qp: &mut Qp<Self>, attr: &InitAttr, _: Option<&Group>) -> bareverbs::Result<()> {
        qp.init(attr)
    }

    /// The peer is an XRC target.
    fn connect(qp: &mut Qp<Self>, path: &Path) -> bareverbs::Result<u32> {
        qp.ready_to_receive(&requester_rtr(path))?;
        qp.ready_to_send(&requester_rts(path))?;
        Ok(path.remote.srqn)
    }

    #[inline(always)]
    fn operation(verb: Verb, remote: Remote, atomic: Atomic, srqn: &u32) -> XrcOperation {
        XrcOperation { remote_srq: *srqn, operation: Rc::operation(verb, remote, atomic, &()) }
    }
}

impl Service for Ud {
    const CONNECTION: Connection = Connection::Ud;
    const HEADROOM: u32 = GRH_BYTES as u32;
    type Route = (Ah, u32);

    fn init(qp: &mut Qp<Self>, attr: &InitAttr, group: Option<&Group>) -> bareverbs::Result<()> {
        qp.init(&UdInitAttr { pkey_index: attr.pkey_index, ..UdInitAttr::new(attr.port, QKEY) })?;
        group.map_or(Ok(()), |group| group.attach(qp))
    }

    fn connect(qp: &mut Qp<Self>, path: &Path) -> bareverbs::Result<(Ah, u32)> {
        qp.ready_to_receive()?;
        qp.ready_to_send(path.local.psn)?;
        Ok((qp.pd().create_ah(&path.address)?, path.remote.qpn))
    }

    #[inline(always)]
    fn operation<'r>(_: Verb, _: Remote, _: Atomic, (ah, qpn): &'r (Ah, u32)) -> Datagram<'r> {
        Datagram::new(ah, *qpn, QKEY)
    }
}
