//! The creation of a thread's objects.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use anyhow::{Context as _, Result};
use bareverbs::device::DriverId;
use bareverbs::qp::{InitAttr, MULTICAST_QP, Qp, QpCap, QpInit};
use bareverbs::srq::SrqInit;
use bareverbs::xrc::{XrcSrqInit, XrcTarget, Xrcd, XrcdShare};
use bareverbs::{Access, Context, Pd, Remote};

use super::completions::Completions;
use super::{Endpoint, Lane, Receives, Sends, Shared, SharedQueue};
use crate::cli::perf::choice::{Measure, Verb};
use crate::perf::exchange::Preamble;
use crate::perf::memory::Memory;
use crate::perf::multicast::Group;
use crate::perf::plan::Plan;
use crate::perf::posting::Posting;
use crate::perf::transport::Service;
use crate::perf::verify::Verifier;
use crate::perf::wire::KeyRecord;
use crate::session::path::random_psn;

/// perftest's limits of inline data in latency tests on ConnectX.
const INLINE_SEND: u32 = 236;
const INLINE_WRITE: u32 = 220;
const INLINE_DATAGRAM: u32 = 188;

/// Slots of a send queue, at least. If all are in use, as after each post to a queue of one slot, the
/// next post takes the slow path, which reads how far the device is.
const SEND_SLOTS: u32 = 64;

/// What the endpoints of a run are created from.
pub(crate) struct Setup<'s> {
    pub(crate) plan: &'s Plan<'s>,
    pub(crate) context: &'s Context,
    pub(crate) agreed: &'s Preamble,
    /// Reads and atomics that a queue pair can have outstanding.
    pub(crate) out_reads: u8,
    /// The address of this side: a record without a queue pair.
    pub(crate) address: &'s KeyRecord,
    /// The group that the queue pairs receive from.
    pub(crate) group: Option<&'s Group>,
}

/// The memory of a thread: areas for sends, then areas for receives and for the peer's writes, then
/// one for the receives of an SRQ.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of an area.
    area: u64,
    count: u64,
    srq_area: u64,
}

impl Layout {
    fn new<T: Service>(plan: &Plan<'_>, agreed: &Preamble, count: u32) -> Self {
        let page = rustix::param::page_size() as u64;
        let postings = || plan.sizes.iter().map(|&size| Posting::new::<T>(plan, agreed, size));
        let receive = |posting: &Posting| posting.recv_steps.bytes(posting.size + T::HEADROOM);
        let bytes = |posting: Posting| posting.send_steps.bytes(posting.size).max(receive(&posting));
        let area = postings().map(bytes).max().unwrap_or(0).max(agreed.cycle_buffer.into());
        let srq_area = match plan.shares_receives() {
            true => postings().map(|one| receive(&one)).max().unwrap_or(0).max(agreed.cycle_buffer.into()),
            false => 0,
        };
        let pages = |bytes: u64| bytes.next_multiple_of(page);
        Self { area: pages(area), count: count.into(), srq_area: pages(srq_area) }
    }

    fn bytes(self) -> Option<usize> {
        let bytes = self.area.checked_mul(2 * self.count)?.checked_add(self.srq_area)?;
        usize::try_from(bytes).ok()
    }

    fn send(self, index: u64) -> u64 {
        index * self.area
    }

    fn receive(self, index: u64) -> u64 {
        (self.count + index) * self.area
    }

    fn srq(self) -> u64 {
        2 * self.count * self.area
    }
}

impl<T: Service> Endpoint<T> {
    /// Creates the objects of the queue pairs `ids`, and brings the queue pairs to INIT.
    pub(crate) fn new(setup: &Setup<'_>, ids: Range<u32>) -> Result<Self> {
        let Setup { plan, context, agreed, .. } = *setup;
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let pd = context.alloc_pd()?;
        let layout = Layout::new::<T>(plan, agreed, count);
        let bytes = layout.bytes().context("the buffers exceed the address space")?;
        let access = Access::LOCAL_WRITE | plan.remote_access();
        let memory = Memory::register(plan, &pd, bytes, access, |bytes| {
            if plan.verb != Verb::Write || plan.measure == Measure::Bandwidth {
                fill(bytes);
            }
        })?;
        let completions = Completions::new::<T>(plan, context, count)?;
        let receives = Receives::new(memory.addr() + layout.srq());
        let (xrcd, shared) = shared_receives::<T>(plan, &pd, &completions, receives)?;
        let inline = plan.inline(context.driver());
        let message = vec![0; inline.min(plan.largest()) as usize];
        let mut endpoint = Self {
            lanes: Vec::with_capacity(count as usize),
            shared,
            completions,
            memory,
            verifier: plan.options.verify.then(Verifier::default),
            message,
            inline,
            local: Vec::new(),
            targets: Vec::new(),
            paths: Vec::new(),
            context: context.clone(),
            port: plan.options.ib_port,
        };
        for (index, id) in (0..).zip(ids) {
            let failed = || format!("cannot create queue pair {id}");
            let qp = T::requests(plan).then(|| endpoint.create_qp(plan, &pd, index)).transpose();
            let target = xrcd.as_ref().map(|xrcd| xrcd.create_target(0)).transpose();
            let (qp, target) = (qp.with_context(failed)?, target.with_context(failed)?);
            endpoint.add_lane(setup, &layout, id, qp, target)?;
        }
        Ok(endpoint)
    }

    /// Creates the queue pair of a lane that sends.
    fn create_qp(&self, plan: &Plan<'_>, pd: &Pd, index: usize) -> Result<Qp<T>> {
        let cap = QpCap {
            max_send_wr: plan.tx_depth.max(SEND_SLOTS),
            max_recv_wr: if self.shared.is_some() { 0 } else { plan.rx_depth.max(1) },
            max_inline_data: self.inline,
            ..QpCap::default()
        };
        let srq = match &self.shared {
            Some(Shared { srq: SharedQueue::Srq(srq), .. }) => Some(srq),
            _ => None,
        };
        let (send, receive) = (self.completions.send.of_lane(index), self.completions.receive.of_lane(index));
        Ok(pd.create_qp::<T>(&QpInit { cap, srq, ..QpInit::new(send, receive) })?)
    }

    /// Brings the queue pairs of a lane to INIT, and adds it with its records.
    fn add_lane(
        &mut self,
        setup: &Setup<'_>,
        layout: &Layout,
        id: u32,
        mut qp: Option<Qp<T>>,
        mut target: Option<XrcTarget>,
    ) -> Result<()> {
        let attr = InitAttr {
            pkey_index: setup.plan.options.pkey_index.unwrap_or(0),
            access: setup.plan.remote_access(),
            ..InitAttr::new(self.port)
        };
        let index = self.lanes.len();
        let base = self.memory.addr();
        let receive_at = base + layout.receive(index as u64);
        let srqn = match &self.shared {
            Some(Shared { srq: SharedQueue::Xrc(srq), .. }) => srq.srq_num(),
            _ => 0,
        };
        let (rkey, out_reads) = (self.memory.rkey(), setup.out_reads.into());
        let record = |qpn| -> Result<KeyRecord> {
            Ok(KeyRecord {
                qpn,
                psn: random_psn()?,
                rkey,
                vaddr: receive_at,
                out_reads,
                srqn,
                ..*setup.address
            })
        };
        if let Some(qp) = &mut qp {
            // The connection manager moves its queue pairs from RESET on.
            if !setup.plan.options.cm {
                T::init(qp, &attr, setup.group)?;
            }
            let qpn = if setup.group.is_some() { MULTICAST_QP } else { qp.qp_num() };
            self.local.push(record(qpn)?);
        }
        if let Some(target) = &mut target {
            target.init(&attr)?;
            self.targets.push(record(target.qp_num())?);
        }
        let receiver = target.as_ref().map(XrcTarget::qp_num).or(qp.as_ref().map(Qp::qp_num));
        if let (Some(shared), Some(number)) = (&mut self.shared, receiver) {
            shared.lanes.insert(number, index);
        }
        self.lanes.push(Lane {
            qp,
            route: None,
            target,
            sends: Sends::new(id, base + layout.send(index as u64), setup.plan.tx_depth),
            receives: Receives::new(receive_at),
            target_at: receive_at,
            received: 0,
            next_number: 0,
        });
        Ok(())
    }
}

/// The SRQ of a thread, if its queue pairs have one. With XRC, also the domain of its targets.
fn shared_receives<T: Service>(
    plan: &Plan<'_>,
    pd: &Pd,
    completions: &Completions,
    receives: Receives,
) -> Result<(Option<Xrcd>, Option<Shared>)> {
    let srq = SrqInit::new(plan.rx_depth.max(1));
    let (xrcd, srq) = if T::HAS_TARGETS && plan.responds() {
        let xrcd = pd.context().open_xrcd(XrcdShare::Private)?;
        let init = XrcSrqInit { srq, xrcd: &xrcd, cq: completions.receive.of_lane(0) };
        let srq = pd.create_xrc_srq(&init).context("cannot create the XRC SRQ")?;
        (Some(xrcd), SharedQueue::Xrc(srq))
    } else if !T::HAS_TARGETS && plan.options.srq {
        (None, SharedQueue::Srq(pd.create_srq(&srq).context("cannot create the SRQ")?))
    } else {
        return Ok((None, None));
    };
    Ok((xrcd, Some(Shared { srq, receives, lanes: HashMap::new() })))
}

impl Sends {
    /// The sends of the queue pair `id`, whose messages begin at `at`.
    fn new(id: u32, at: u64, tx_depth: u32) -> Self {
        Self {
            id,
            at,
            remote: Remote { addr: 0, rkey: 0 },
            offset: 0,
            posted: 0,
            posted_bytes: 0,
            completed: 0,
            completed_bytes: 0,
            signaled: 0,
            signals: VecDeque::with_capacity(tx_depth as usize + 1),
        }
    }
}

/// Fills a buffer with words that differ from each other.
fn fill(buffer: &mut [u8]) {
    for (index, word) in buffer.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
    }
}

impl Plan<'_> {
    /// Bytes that are sent inline.
    fn inline(&self, driver: DriverId) -> u32 {
        if matches!(self.verb, Verb::Read | Verb::Atomic) {
            return 0;
        }
        if let Some(size) = self.options.inline_size {
            return size;
        }
        match (self.measure, driver) {
            (Measure::Latency, DriverId::MLX5) => match self.verb {
                Verb::Send if self.datagrams() => INLINE_DATAGRAM,
                Verb::Send => INLINE_SEND,
                _ => INLINE_WRITE,
            },
            _ => 0,
        }
    }
}
