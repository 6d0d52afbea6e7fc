//! The driver: executes verbs on the RDMA device and compares the results with the model.

mod execute;

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bareverbs::ah::{Ah, AhAttr};
use bareverbs::cq::{Completion, Cq, CqInit};
use bareverbs::mw::{Mw, MwType};
use bareverbs::qp::{InitAttr, Qp, QpCap, QpInit, Rc, RtrAttr, RtsAttr, Uc, UcRtrAttr, Ud, UdInitAttr};
use bareverbs::soft::Fabric;
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::values::{AckTimeout, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::{Buffer, Context, Mr, Pd, WcStatus};
pub(crate) use bareverbs_test_support::TIMEOUT;

use crate::model::{Model, Quirks, Region};
use crate::op::{Connection, End, Id, Kind, Op, QpPlan, RECEIVE, Seen};
use crate::{PORT, loopback_path};

/// A key of no object: its index is beyond those of all objects.
pub(crate) const INVALID_KEY: u32 = 0xdead_be00;
/// Time after which the RNR timer of these queue pairs (10 µs, in the kernel's ticks) has certainly
/// expired.
const RNR_TIMER_EXPIRY: Duration = Duration::from_millis(50);
/// The Q_Key of datagrams, and a wrong one.
const QKEYS: [u32; 2] = [0x1234_5678, 0x0bad_0bad];

/// A queue pair of any transport.
enum AnyQp {
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>),
}

/// Evaluates an expression for a queue pair of any transport.
macro_rules! any {
    ($any:expr, $qp:ident => $value:expr) => {
        match $any {
            AnyQp::Rc($qp) => $value,
            AnyQp::Uc($qp) => $value,
            AnyQp::Ud($qp) => $value,
        }
    };
}
use any;

/// How time passes while an iteration waits.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The device works by itself.
    Real,
    /// The device works, and time passes, while the iteration waits.
    Virtual(Fabric),
}

impl Clock {
    /// The time since some point.
    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        match self {
            Self::Real => START.elapsed(),
            Self::Virtual(fabric) => fabric.now(),
        }
    }

    /// Waits.
    fn wait(&self, time: Duration) {
        match self {
            Self::Real => thread::sleep(time),
            Self::Virtual(fabric) => fabric.advance(time),
        }
    }

    /// Lets the device do the work that there is without waiting.
    fn run(&self) {
        if let Self::Virtual(fabric) = self {
            fabric.run_until_idle();
        }
    }
}

/// Statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Verbs.
    pub ops: u64,
    /// Posted requests.
    pub requests: u64,
    /// Completions, all as predicted.
    pub completions: u64,
    /// Completions with an error status.
    pub failures: u64,
    /// Compared bytes of memory.
    pub compared: u64,
}

/// Objects on the device, and their model.
pub struct Iteration {
    /// The expected state.
    pub model: Model,
    /// Statistics.
    pub tally: Tally,
    // The drop order follows the kernel's references: users first.
    mws: BTreeMap<Id, Mw>,
    qps: BTreeMap<Id, AnyQp>,
    ahs: BTreeMap<Id, Ah>,
    mrs: BTreeMap<Id, Mr<Buffer>>,
    srqs: BTreeMap<Id, Srq>,
    cqs: BTreeMap<Id, Cq>,
    pds: BTreeMap<Id, Pd>,
    ids_by_qpn: HashMap<u32, Id>,
    resets: HashMap<Id, Instant>,
    path: AhAttr,
    context: Context,
    clock: Clock,
}

impl Iteration {
    /// An iteration without objects.
    ///
    /// # Errors
    /// If the port has no address.
    pub fn new(context: &Context, quirks: Quirks) -> Result<Self> {
        Self::with_clock(context, quirks, Clock::Real)
    }

    /// The same for a device with this kind of time.
    ///
    /// # Errors
    /// If the port has no address.
    pub fn with_clock(context: &Context, quirks: Quirks, clock: Clock) -> Result<Self> {
        Ok(Self {
            model: Model::new(quirks),
            tally: Tally::default(),
            mws: BTreeMap::new(),
            qps: BTreeMap::new(),
            ahs: BTreeMap::new(),
            mrs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            pds: BTreeMap::new(),
            ids_by_qpn: HashMap::new(),
            resets: HashMap::new(),
            path: loopback_path(context)?,
            context: context.clone(),
            clock,
        })
    }

    /// Executes a verb on the device and in the model.
    ///
    /// # Errors
    /// If a result differs from the model.
    pub fn run(&mut self, op: &Op) -> Result<()> {
        self.tally.ops += 1;
        let begin = Instant::now();
        self.execute(op)?;
        ensure!(begin.elapsed() < TIMEOUT, "it took {:.1?}", begin.elapsed());
        // CQs are polled often enough that none overruns.
        self.poll_all()
    }

    fn execute(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::PostRecv(..) | Op::PostSrq(..) | Op::PostSend(..) => self.post(op)?,
            Op::Abort(a, b, end) => {
                self.model.apply(op);
                self.end(*a, *end)?;
                self.end(*b, *end)?;
                self.poll_all()?;
                self.model.aborted([*a, *b], *end);
                self.remove_destroyed();
            }
            Op::Settle => self.settle()?,
            Op::End(_, End::Reset | End::Destroy) => {
                self.change(op)?;
                // The flushed completions are in the CQ, and no more will follow.
                self.poll_all()?;
                self.model.apply(op);
                self.remove_destroyed();
            }
            _ => {
                self.change(op)?;
                self.model.apply(op);
                self.update_capacity(op);
                self.remove_destroyed();
            }
        }
        Ok(())
    }

    /// Destroys all objects, whatever their state.
    ///
    /// # Errors
    /// If the kernel refuses to destroy an object.
    pub fn destroy(mut self) -> Result<()> {
        let up: Vec<Id> =
            self.qps.keys().copied().filter(|qp| self.model.needs_error_before_destroy(*qp)).collect();
        up.into_iter().try_for_each(|qp| self.end(qp, End::Error))
    }

    /// Tries to create an object where the device refuses it. Returns the device's error.
    pub fn expect_error(&mut self, op: &Op) -> anyhow::Error {
        self.change(op).err().unwrap_or_else(|| anyhow!("it succeeded"))
    }

    fn change(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::AllocPd(id) => drop(self.pds.insert(*id, self.context.alloc_pd()?)),
            Op::DeallocPd(id) => {
                self.ahs.remove(id);
                self.pds.remove(id);
            }
            Op::MakeCq(id, entries) => {
                drop(self.cqs.insert(*id, self.context.create_cq(&CqInit::new(*entries))?))
            }
            Op::ResizeCq(id, entries) => {
                let room = self.cqs.get_mut(id).context("no such CQ")?.resize(*entries)?;
                ensure!(room >= *entries, "a resize to {entries} gave room for {room}");
            }
            Op::DestroyCq(id) => drop(self.cqs.remove(id)),
            Op::MakeSrq(id, pd, room) => {
                drop(self.srqs.insert(*id, self.pds[pd].create_srq(&SrqInit::new(*room))?))
            }
            Op::DestroySrq(id) => drop(self.srqs.remove(id)),
            Op::Register(id, pd, len, access) => {
                let mut buffer = Buffer::zeroed(*len)?;
                buffer.copy_from_slice(&Region::filling(*id, *len));
                self.mrs.insert(*id, self.pds[pd].register(buffer, *access).map_err(|failed| failed.error)?);
            }
            Op::Deregister(id) => drop(self.mrs.remove(id).context("no such MR")?.into_inner()?),
            Op::AllocMw(id, pd, type_2) => {
                let mw_type = if *type_2 { MwType::TYPE_2 } else { MwType::TYPE_1 };
                self.mws.insert(*id, self.pds[pd].alloc_mw(mw_type)?);
            }
            Op::DeallocMw(id) => self.mws.remove(id).context("no such MW")?.dealloc()?,
            Op::MakeQp(id, plan) => self.make_qp(*id, plan)?,
            Op::Connect(connection) => {
                self.connect(connection, connection.a, connection.b)?;
                self.connect(connection, connection.b, connection.a)?;
            }
            Op::BringUp(id) => {
                let Some(AnyQp::Ud(qp)) = self.qps.get_mut(id) else { bail!("no such UD QP") };
                qp.init(&UdInitAttr::new(PORT, QKEYS[0]))?;
                qp.ready_to_receive()?;
                qp.ready_to_send(0)?;
            }
            Op::End(id, end) => self.end(*id, *end)?,
            _ => unreachable!("handled by `run`"),
        }
        Ok(())
    }

    fn make_qp(&mut self, id: Id, plan: &QpPlan) -> Result<()> {
        let init = QpInit {
            srq: plan.srq.map(|srq| &self.srqs[&srq]),
            cap: QpCap {
                max_send_wr: plan.sends,
                max_recv_wr: plan.receives,
                max_send_sge: plan.pieces,
                max_recv_sge: plan.pieces,
                max_inline_data: plan.inline,
            },
            signal_all: plan.signal_all,
            ..QpInit::new(&self.cqs[&plan.send_cq], &self.cqs[&plan.recv_cq])
        };
        let pd = &self.pds[&plan.pd];
        let qp = match plan.kind {
            Kind::Rc => AnyQp::Rc(pd.create_qp(&init)?),
            Kind::Uc => AnyQp::Uc(pd.create_qp(&init)?),
            Kind::Ud => AnyQp::Ud(pd.create_qp(&init)?),
        };
        let number = any!(&qp, qp => qp.qp_num());
        ensure!(self.ids_by_qpn.insert(number, id).is_none(), "two queue pairs have the number {number:#x}");
        self.qps.insert(id, qp);
        Ok(())
    }

    /// Updates the model with the actual capacities.
    fn update_capacity(&mut self, op: &Op) {
        match op {
            Op::MakeQp(id, _) => {
                let room = any!(self.qps.get_mut(id).expect("just made"), qp => {
                    let (send, recv) = qp.split();
                    (send.capacity() as usize, recv.capacity() as usize)
                });
                self.model.qp_mut(*id).room = room;
            }
            Op::MakeSrq(id, ..) => {
                let room = self.srqs[id].capacity() as usize;
                self.model.srqs.get_mut(id).expect("just made").room = room;
            }
            _ => {}
        }
    }

    fn connect(&mut self, connection: &Connection, id: Id, peer: Id) -> Result<()> {
        let peer = any!(&self.qps[&peer], qp => qp.qp_num());
        let [mut sq_psn, mut rq_psn] = connection.psn;
        if id == connection.b {
            std::mem::swap(&mut sq_psn, &mut rq_psn);
        }
        let init = InitAttr { access: connection.access, ..InitAttr::new(PORT) };
        let path_mtu = match connection.mtu {
            256 => Mtu::Mtu256,
            512 => Mtu::Mtu512,
            _ => Mtu::Mtu1024,
        };
        match self.qps.get_mut(&id).context("no such QP")? {
            AnyQp::Rc(qp) => {
                let reset = self.resets.remove(&id).filter(|_| self.model.quirks.timer_outlives_reset);
                if let Some(reset) = reset {
                    thread::sleep(RNR_TIMER_EXPIRY.saturating_sub(reset.elapsed()));
                }
                let rtr = RtrAttr {
                    rq_psn,
                    path_mtu,
                    max_dest_rd_atomic: 4,
                    min_rnr_timer: MinRnrTimer::new(1).unwrap(),
                    ..RtrAttr::new(self.path, peer)
                };
                // Without an ACK timeout on a kernel: no packet is lost, and the kernel's timer may
                // expire although none is late (`retransmit_timer` of `rxe_comp.c`). A fenced read
                // that is retried waits for itself without limit (`rxe_wqe_is_fenced`).
                let timeout = match self.clock {
                    Clock::Real => 0,
                    // 4.2 ms.
                    Clock::Virtual(_) => 10,
                };
                let timeout = AckTimeout::new(timeout).unwrap();
                let rts = RtsAttr {
                    sq_psn,
                    timeout,
                    retry_cnt: RetryCount::new(7).unwrap(),
                    rnr_retry: if connection.rnr_retry_zero {
                        RnrRetry::new(0).unwrap()
                    } else {
                        RnrRetry::new(7).unwrap()
                    },
                    max_rd_atomic: 4,
                };
                qp.init(&init)?;
                qp.ready_to_receive(&rtr)?;
                qp.ready_to_send(&rts)?;
            }
            AnyQp::Uc(qp) => {
                qp.init(&init)?;
                qp.ready_to_receive(&UcRtrAttr { rq_psn, path_mtu, ..UcRtrAttr::new(self.path, peer) })?;
                qp.ready_to_send(sq_psn)?;
            }
            AnyQp::Ud(_) => bail!("a UD QP has no peer"),
        }
        Ok(())
    }

    fn end(&mut self, id: Id, end: End) -> Result<()> {
        let qp = self.qps.get_mut(&id).context("no such QP")?;
        match end {
            End::Error => any!(qp, qp => qp.set_error())?,
            End::Reset => {
                any!(qp, qp => qp.reset())?;
                self.resets.insert(id, Instant::now());
            }
            End::Destroy => drop(self.qps.remove(&id)),
        }
        Ok(())
    }

    /// Forgets destroyed queue pairs after their completions are polled. The kernel may reuse a QPN
    /// earlier.
    fn remove_destroyed(&mut self) {
        let qps = &self.model.qps;
        self.ids_by_qpn.retain(|_, id| qps.contains_key(id));
    }

    /// Polls all available completions. Returns their number.
    fn poll_once(&mut self) -> Result<usize> {
        let mut seen = Vec::new();
        for cq in self.cqs.values_mut() {
            let mut completions = cq.poll();
            while let Some(completion) = completions.next() {
                seen.push((
                    completion.to_value(),
                    completion.imm().map(u32::from),
                    completion.invalidated_rkey(),
                ));
            }
        }
        let count = seen.len();
        for (wc, imm, invalidated) in seen {
            let qp = *self
                .ids_by_qpn
                .get(&wc.qp_num)
                .ok_or_else(|| anyhow!("a completion of an unknown QP: {wc:?}"))?;
            let window = |rkey| self.mws.iter().find(|(_, mw)| mw.rkey() == rkey).map(|(id, _)| *id);
            let is_flushed_send = wc.wr_id & RECEIVE == 0 && wc.status == WcStatus::WR_FLUSH_ERR;
            let failure =
                self.qps.get(&qp).filter(|_| is_flushed_send).and_then(|qp| any!(qp, qp => qp.failure()));
            let seen = Seen {
                qp,
                wr_id: wc.wr_id,
                status: wc.status,
                opcode: wc.opcode,
                byte_len: wc.byte_len,
                imm,
                invalidated: invalidated.and_then(window),
                sender: self.ids_by_qpn.get(&wc.src_qp).copied(),
                failure: failure.map(|failure| (failure.wr_id, failure.status)),
            };
            self.tally.completions += 1;
            self.tally.failures += u64::from(wc.status != WcStatus::SUCCESS);
            self.model.observe(&seen).map_err(|why| anyhow!(why))?;
        }
        Ok(count)
    }

    fn poll_all(&mut self) -> Result<()> {
        self.poll_once().map(drop)
    }

    /// Waits for all expected completions, and compares memory.
    fn settle(&mut self) -> Result<()> {
        let begin = self.clock.now();
        self.clock.run();
        loop {
            let some = self.poll_once()? > 0;
            let Some(missing) = self.model.missing() else { break };
            ensure!(self.clock.now() - begin < TIMEOUT, "{missing}; {}", self.states()?);
            if !some {
                self.clock.wait(Duration::from_micros(100));
            }
        }
        loop {
            match self.compare() {
                Ok(()) => break,
                // UC writes are not acknowledged, so their arrival is only visible in memory.
                Err(_) if self.clock.now() - begin < TIMEOUT => self.clock.wait(Duration::from_millis(1)),
                Err(why) => return Err(why),
            }
        }
        self.poll_all()?;
        self.model.settle().map_err(|why| anyhow!(why))
    }

    /// The states of all queue pairs, as queried from the kernel.
    fn states(&self) -> Result<String> {
        let of = |(id, qp): (&Id, &AnyQp)| -> Result<String> {
            let (attr, _) = any!(qp, qp => qp.query())?;
            let plan = &self.model.qp(*id).plan;
            Ok(format!(
                "{id} (completes in {} and {}): {:?}, sends {:#x}, expects {:#x}",
                plan.send_cq, plan.recv_cq, attr.qp_state, attr.sq_psn, attr.rq_psn
            ))
        };
        Ok(self.qps.iter().map(of).collect::<Result<Vec<_>>>()?.join("; "))
    }

    fn compare(&mut self) -> Result<()> {
        for (id, region) in &mut self.model.mrs {
            let mr = &self.mrs[id];
            let mut found = vec![0; mr.len()];
            mr.read(0, &mut found)?;
            self.tally.compared += found.len() as u64;
            region.compare(&found).map_err(|why| anyhow!("region {id}, {why}"))?;
        }
        Ok(())
    }
}
