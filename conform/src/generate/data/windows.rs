//! Memory windows of type 2: binding, use and invalidation.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rxe::{MwWr, RdmaWr, SendWqe, Sge};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{SendFlags, WcFlags, WcStatus};
use bareverbs_uapi::write::structs::{AllocMwReq, AllocMwResp, Wc};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self};
use zerocopy::FromZeros;

use super::Device;
use super::trial::status;
use crate::answer::{Answer, Change};
use crate::check::{Bug, Check, EVERY, Row, RowBody, row};
use crate::generate::pair::{LENGTH, Options, Pair, RECV_ID, REGION, Region, SEND_ID};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

static RXE_WINDOW_ACCESS: Change = Change {
    name: "rxe-window-access-unsupported",
    since: Since::V6_12,
    why: "BIND_MW with access flags that rxe lacks fails since 6.3; before, they were ignored \
          (sw/rxe/rxe_mw.c: rxe_bind_mw)",
};

/// Identifier of a bind.
const BIND_ID: u64 = 0xb14d;
/// Identifier of an invalidation.
const INVALIDATE_ID: u64 = 0x14fa;

/// First byte of a window in its region, and its length.
const START: u64 = 0x1000;
const LEN: u64 = 0x1000;

const ALL: AccessFlags = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_READ);

/// A pair whose receiver has a window.
struct Windowed {
    pair: Pair,
    /// The R_Key of the unbound window.
    unbound: u32,
    /// Number of requests that the receiver has posted.
    posted: u32,
}

fn window_on(session: &mut Session<'_>, pd: u32) -> Step<u32> {
    let mut request = AllocMwReq::new_zeroed();
    (request.pd_handle, request.mw_type.0) = (pd, 2);
    let response: AllocMwResp = session.invoke::<write::AllocMw>(&request)?;
    session.note_object(ObjectClass::MW.0, response.mw_handle);
    Ok(response.rkey)
}

impl Windowed {
    fn new(session: &mut Session<'_>, remote: AccessFlags) -> Step<Self> {
        let pair = Pair::with(session, &Options { remote, ..Options::of(QpType::RC) })?;
        let unbound = window_on(session, pair.pd)?;
        Ok(Self { pair, unbound, posted: 0 })
    }

    /// The R_Key of the bound window.
    fn rkey(&self) -> u32 {
        self.unbound ^ 0x55
    }

    /// Binds the window at the receiver. Returns the status in the WQE.
    fn bind(&mut self, session: &mut Session<'_>, change: &dyn Fn(&mut MwWr)) -> Step<WcStatus> {
        let Region { start, lkey, .. } = self.pair.receiver.region;
        let mut bind = MwWr {
            addr: start + START,
            length: LEN,
            mr_lkey: lkey,
            mw_rkey: self.unbound,
            rkey: self.rkey(),
            access: ALL,
        };
        change(&mut bind);
        self.pair.receiver.post_send(session, &|wqe, _| {
            (wqe.wr.wr_id, wqe.wr.opcode) = (BIND_ID, WrOpcode::BIND_MW);
            (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (0, 0, 0);
            wqe.wr.set(&bind);
        })?;
        let wc = self.pair.completion(BIND_ID)?;
        self.posted += 1;
        self.pair.receiver.status_of(self.posted - 1, &wc)
    }

    fn bound(session: &mut Session<'_>, access: AccessFlags) -> Step<Self> {
        let mut windowed = Self::new(session, BINDABLE)?;
        match windowed.bind(session, &|bind| bind.access = access)? {
            WcStatus::SUCCESS => Ok(windowed),
            got => fail(format!("the bind that prepares the check: {got:?}")),
        }
    }

    /// A write or read of the sender through the window.
    fn access(&mut self, session: &mut Session<'_>, opcode: WrOpcode, offset: u64) -> Step<Wc> {
        let (target, rkey) = (self.pair.receiver.region.start + offset, self.rkey());
        self.pair.post_send(session, &|wqe, _| aim(wqe, opcode, target, rkey))?;
        self.pair.completion(SEND_ID)
    }

    /// Invalidates a key at the receiver. Returns the status of the WQE.
    fn invalidate(&mut self, session: &mut Session<'_>, key: u32) -> Step<WcStatus> {
        self.pair.receiver.post_send(session, &|wqe, _| {
            (wqe.wr.wr_id, wqe.wr.opcode) = (INVALIDATE_ID, WrOpcode::LOCAL_INV);
            (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (0, 0, 0);
            wqe.wr.ex = key;
        })?;
        let wc = self.pair.completion(INVALIDATE_ID)?;
        self.posted += 1;
        self.pair.receiver.status_of(self.posted - 1, &wc)
    }
}

/// A QP with a bound window. Returns its handle; its peer and their queues are unmapped.
pub(crate) fn bound_window(session: &mut Session<'_>) -> Step<u32> {
    Ok(Windowed::bound(session, ALL)?.pair.receiver.qp.request.qp_handle)
}

/// Makes a request an access of memory of the peer.
pub(super) fn aim(wqe: &mut SendWqe, opcode: WrOpcode, remote_addr: u64, rkey: u32) {
    (wqe.wr.opcode, wqe.iova) = (opcode, remote_addr);
    wqe.wr.set(&RdmaWr { remote_addr, rkey, reserved: 0 });
}

/// The rights of a region that windows may be bound to.
const BINDABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::MW_BIND);

/// A bind: its name, the rights of the region, its status and what is wrong with it.
type Bind = (&'static str, AccessFlags, WcStatus, fn(&mut MwWr));

const BINDS: [Bind; 14] = [
    ("good", BINDABLE, WcStatus::SUCCESS, |_| {}),
    ("whole-region", BINDABLE, WcStatus::SUCCESS, |bind| {
        (bind.addr, bind.length) = (bind.addr - START, REGION as u64);
    }),
    ("read-of-read-only", AccessFlags::MW_BIND, WcStatus::SUCCESS, |bind| {
        bind.access = AccessFlags::REMOTE_READ;
    }),
    ("region-without-mw_bind", AccessFlags::LOCAL_WRITE, WcStatus::MW_BIND_ERR, |_| {}),
    ("write-to-read-only", AccessFlags::MW_BIND, WcStatus::MW_BIND_ERR, |bind| {
        bind.access = AccessFlags::REMOTE_WRITE;
    }),
    ("atomic-to-read-only", AccessFlags::MW_BIND, WcStatus::MW_BIND_ERR, |bind| {
        bind.access = AccessFlags::REMOTE_ATOMIC;
    }),
    ("length-0", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.length = 0),
    ("before-region", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.addr -= START + 1),
    ("across-the-end", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.length = REGION as u64 - START + 1),
    ("l_key-unknown", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.mr_lkey = 0x00de_ad00),
    ("l_key-low-byte", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.mr_lkey ^= 0xff),
    ("window-unknown", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.mw_rkey = 0x00ff_ff01),
    ("window-low-byte", BINDABLE, WcStatus::MW_BIND_ERR, |bind| bind.mw_rkey ^= 0xff),
    ("zero-based-too-long", BINDABLE, WcStatus::MW_BIND_ERR, |bind| {
        bind.access |= AccessFlags::ZERO_BASED;
        bind.length = REGION as u64 + 1;
    }),
];

/// Judges the status of a bind.
fn judge(session: &mut Session<'_>, title: &str, answer: Answer, got: WcStatus) -> Step<()> {
    session.compare(&title, answer, status(got)).map(drop)
}

/// The binds that mlx5 judges when they are executed. It judges the region at each access.
const BINDS_OF_MLX5: [&str; 4] = ["good", "whole-region", "read-of-read-only", "window-unknown"];

type Unusable = (&'static str, u64, fn(&mut MwWr));

/// Binds of mlx5 to memory that the window may not open: a name, the first byte of a write, and what is
/// wrong.
const UNUSABLE: [Unusable; 3] = [
    ("l_key-unknown", START, |bind| bind.mr_lkey = 0x00de_ad00),
    ("l_key-low-byte", START, |bind| bind.mr_lkey ^= 0xff),
    ("across-the-end", REGION as u64, |bind| bind.length = REGION as u64),
];

/// Accesses through windows of mlx5 that are bound to memory which they may not open.
fn of_unusable_binds(checks: &mut Vec<Check>) {
    let rule = Rule::Window;
    for (suffix, offset, change) in UNUSABLE {
        let name = format!("data::RC::MW::{}-use-of-{suffix}", rule.id());
        checks.push(Check::new(name, rule, VIOLATION, move |session| {
            let mut windowed = Windowed::new(session, BINDABLE)?;
            let got = windowed.bind(session, &change)?;
            if got != WcStatus::SUCCESS {
                return fail(format!("the bind has the status {got:?}"));
            }
            let wc = windowed.access(session, WrOpcode::RDMA_WRITE, offset)?;
            judge(session, "a write through a window on other memory", VIOLATION, wc.status)
        }));
    }
}

fn of_binds(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Window;
    for (suffix, remote, expected, change) in BINDS {
        if device == Device::Mlx5 && !BINDS_OF_MLX5.contains(&suffix) {
            continue;
        }
        let answer = status(expected);
        checks.push(Check::new(format!("data::RC::BIND_MW::{}-{suffix}", rule.id()), rule, answer, {
            move |session| {
                let got = Windowed::new(session, remote)?.bind(session, &change)?;
                judge(session, &format!("BIND_MW {suffix}"), answer, got)
            }
        }));
    }
}

const MW_BIND_ERR: Answer = status(WcStatus::MW_BIND_ERR);

const fn bind(suffix: &'static str, body: RowBody) -> Row {
    row("RC::BIND_MW", Rule::Window, suffix, MW_BIND_ERR, body)
}

/// Binds of windows that may not be bound.
const UNBINDABLE: [Row; 2] = [
    bind("twice", |session, answer| {
        let mut windowed = Windowed::bound(session, ALL)?;
        windowed.unbound = windowed.rkey();
        let got = windowed.bind(session, &|_| {})?;
        judge(session, "BIND_MW of a bound window", answer, got)
    }),
    bind("window-of-another-pd", |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let pd = session.pd()?;
        windowed.unbound = window_on(session, pd)?;
        let got = windowed.bind(session, &|_| {})?;
        judge(session, "BIND_MW of a window of another PD", answer, got)
    }),
];

/// Binds that rxe judges when they are executed.
const BINDS_OF_RXE: [Row; 3] = [
    bind("access-unsupported", |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let got = windowed.bind(session, &|bind| bind.access |= AccessFlags::HUGETLB)?;
        judge(session, "BIND_MW with HUGETLB", answer, got)
    })
    .since(&RXE_WINDOW_ACCESS, status(WcStatus::SUCCESS)),
    bind("wraps", |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let got = windowed.bind(session, &|bind| {
            (bind.addr, bind.length) = (LEN.wrapping_neg(), 2 * LEN);
        })?;
        judge(session, "BIND_MW of a range that wraps", answer, got)
    })
    .of_bug("bind_mw-does-not-check-for-overflow", EVERY, status(WcStatus::SUCCESS)),
    bind("region-of-another-pd", |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let pd = session.pd()?;
        let region = Region::new(session, pd, 0, BINDABLE)?;
        let got = windowed.bind(session, &|bind| {
            (bind.addr, bind.mr_lkey) = (region.start, region.lkey);
        })?;
        judge(session, "BIND_MW to a region of another PD", answer, got)
    })
    .of_bug("bind_mw-does-not-compare-protection-domains", EVERY, status(WcStatus::SUCCESS)),
];

/// An access through a window: its name, the rights of the window, the operation, the first byte in
/// the region and its status.
const USES: [(&str, AccessFlags, WrOpcode, u64, WcStatus); 7] = [
    ("write", ALL, WrOpcode::RDMA_WRITE, START, WcStatus::SUCCESS),
    ("read", ALL, WrOpcode::RDMA_READ, START, WcStatus::SUCCESS),
    ("last-bytes", ALL, WrOpcode::RDMA_WRITE, START + LEN - LENGTH as u64, WcStatus::SUCCESS),
    ("write-to-read", AccessFlags::REMOTE_READ, WrOpcode::RDMA_WRITE, START, WcStatus::REM_ACCESS_ERR),
    ("read-of-write", AccessFlags::REMOTE_WRITE, WrOpcode::RDMA_READ, START, WcStatus::REM_ACCESS_ERR),
    ("before", ALL, WrOpcode::RDMA_WRITE, START - 8, WcStatus::REM_ACCESS_ERR),
    ("across-the-end", ALL, WrOpcode::RDMA_WRITE, START + LEN - 8, WcStatus::REM_ACCESS_ERR),
];

fn of_uses(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Window;
    for (suffix, access, opcode, offset, expected) in USES {
        let answer = status(expected);
        let name = format!("data::RC::MW::{}-{suffix}", rule.id());
        let check = Check::new(name, rule, answer, move |session| {
            let mut windowed = Windowed::bound(session, access)?;
            let wc = windowed.access(session, opcode, offset)?;
            judge(session, &format!("{opcode} through a window: {suffix}"), answer, wc.status)
        });
        checks.push(if device == Device::Rxe && ["before", "across-the-end"].contains(&suffix) {
            check.of_bug(Bug {
                page: "a-window-opens-the-whole-region",
                series: EVERY,
                answer: status(WcStatus::SUCCESS),
            })
        } else {
            check
        });
    }
}

const VIOLATION: Answer = status(WcStatus::REM_ACCESS_ERR);

/// Accesses through windows that are not bound to the key or the QP, or no more.
const UNUSABLE_WINDOWS: [Row; 5] = [
    row("RC::MW", Rule::Window, "unbound", VIOLATION, |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let wc = windowed.access(session, WrOpcode::RDMA_WRITE, START)?;
        judge(session, "a write through an unbound window", answer, wc.status)
    }),
    row("RC::MW", Rule::Window, "former-key", VIOLATION, |session, answer| {
        let mut windowed = Windowed::bound(session, ALL)?;
        let (target, rkey) = (windowed.pair.receiver.region.start + START, windowed.unbound);
        windowed.pair.post_send(session, &|wqe, _| aim(wqe, WrOpcode::RDMA_WRITE, target, rkey))?;
        let wc = windowed.pair.completion(SEND_ID)?;
        judge(session, "a write with the key before the bind", answer, wc.status)
    }),
    row("RC::MW", Rule::Window, "of-another-qp", VIOLATION, |session, answer| {
        // The window is bound to the receiver's QP; the receiver uses it at the sender.
        let mut windowed = Windowed::bound(session, ALL)?;
        let (target, rkey) = (windowed.pair.receiver.region.start + START, windowed.rkey());
        windowed.pair.receiver.post_send(session, &|wqe, _| {
            aim(wqe, WrOpcode::RDMA_WRITE, target, rkey);
        })?;
        let wc = windowed.pair.completion(SEND_ID)?;
        judge(session, "a write through a window of another QP", answer, wc.status)
    }),
    row("RC::LOCAL_INV", Rule::Invalidate, "window", VIOLATION, |session, answer| {
        let mut windowed = Windowed::bound(session, ALL)?;
        let rkey = windowed.rkey();
        let got = windowed.invalidate(session, rkey)?;
        if got != WcStatus::SUCCESS {
            return fail(format!("the invalidation has the status {got:?}"));
        }
        let wc = windowed.access(session, WrOpcode::RDMA_WRITE, START)?;
        judge(session, "a write through an invalidated window", answer, wc.status)
    }),
    row("RC::SEND_WITH_INV", Rule::Invalidate, "window", VIOLATION, |session, answer| {
        let mut windowed = Windowed::bound(session, ALL)?;
        let rkey = windowed.rkey();
        send_with_invalidate(session, &mut windowed.pair, rkey)?;
        if windowed.pair.completion(SEND_ID)?.status != WcStatus::SUCCESS {
            return fail("SEND_WITH_INV failed");
        }
        let wc = windowed.pair.completion(RECV_ID)?;
        if !wc.wc_flags.contains(WcFlags::WITH_INVALIDATE) || wc.ex != rkey {
            return fail(format!("the receive has the flags {:?} and the key {:#x}", wc.wc_flags, wc.ex));
        }
        let wc = windowed.access(session, WrOpcode::RDMA_WRITE, START)?;
        judge(session, "a write through an invalidated window", answer, wc.status)
    }),
];

/// An invalidation of a key that names nothing: its place, its title, and how its status is found.
type Invalidation = (&'static str, &'static str, fn(&mut Session<'_>, &mut Windowed, u32) -> Step<WcStatus>);

const INVALIDATIONS: [Invalidation; 2] = [
    ("LOCAL_INV", "LOCAL_INV of a key that names nothing", |session, windowed, key| {
        windowed.invalidate(session, key)
    }),
    ("SEND_WITH_INV", "a receive of SEND_WITH_INV of a key that names nothing", |session, windowed, key| {
        send_with_invalidate(session, &mut windowed.pair, key)?;
        Ok(windowed.pair.completion(RECV_ID)?.status)
    }),
];

fn of_invalidations(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Invalidate;
    // IBTA has MW_BIND_ERR for both sides' key; rxe deviates (docs/kernel-bugs.md: statuses).
    let statuses = match device {
        Device::Rxe => [RXE_INVALIDATION, status(WcStatus::REM_INV_REQ_ERR)],
        Device::Mlx5 => [MW_BIND_ERR, VIOLATION],
    };
    for (suffix, key) in [("unknown-window", 0x00ff_ff01), ("unknown-region", 0x00de_ad00)] {
        for ((place, title, invalidate), answer) in INVALIDATIONS.into_iter().zip(statuses) {
            let name = format!("data::RC::{place}::{}-{suffix}", rule.id());
            checks.push(Check::new(name, rule, answer, move |session| {
                let mut windowed = Windowed::new(session, BINDABLE)?;
                let got = invalidate(session, &mut windowed, key)?;
                judge(session, title, answer, got)
            }));
        }
    }
}

const RXE_INVALIDATION: Answer = status(WcStatus::LOC_QP_OP_ERR);

/// Invalidations of keys that exist. It is not known how a ConnectX answers them.
const INVALIDATIONS_OF_RXE: [Row; 2] = [
    row("RC::LOCAL_INV", Rule::Invalidate, "user-region", RXE_INVALIDATION, |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let key = windowed.pair.receiver.region.lkey;
        let got = windowed.invalidate(session, key)?;
        judge(session, "LOCAL_INV of a region that a method made", answer, got)
    }),
    row("RC::LOCAL_INV", Rule::Invalidate, "unbound-window", RXE_INVALIDATION, |session, answer| {
        let mut windowed = Windowed::new(session, BINDABLE)?;
        let key = windowed.unbound;
        let got = windowed.invalidate(session, key)?;
        judge(session, "LOCAL_INV of an unbound window", answer, got)
    })
    .hazardous("kernels dereference a null pointer (invalidating-an-unbound-window-crashes)"),
];

fn send_with_invalidate(session: &mut Session<'_>, pair: &mut Pair, key: u32) -> Step<()> {
    pair.post_recv(0, &|_, _| {})?;
    pair.post_send(session, &|wqe: &mut SendWqe, _: &mut Sge| {
        (wqe.wr.opcode, wqe.wr.ex) = (WrOpcode::SEND_WITH_INV, key);
        wqe.wr.send_flags = SendFlags::SIGNALED;
    })
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    of_binds(checks, device);
    of_uses(checks, device);
    of_invalidations(checks, device);
    let mut add = |rows: &[Row]| checks.extend(rows.iter().map(|row| row.check("data")));
    add(&UNBINDABLE);
    add(&UNUSABLE_WINDOWS);
    match device {
        Device::Rxe => {
            add(&BINDS_OF_RXE);
            add(&INVALIDATIONS_OF_RXE);
        }
        Device::Mlx5 => of_unusable_binds(checks),
    }
}
