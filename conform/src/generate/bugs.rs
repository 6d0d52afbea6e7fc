//! Known bugs of rxe and of the core that no other check shows (docs/kernel-bugs.md).

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::{Method, UHW_IN, UHW_OUT};
use bareverbs_uapi::mlx5::steering::{CreateFlowFlags, MatchParams};
use bareverbs_uapi::mlx5::{CreateFlow, CreateWqReq, FlowMatcherCreate};
use bareverbs_uapi::rxe::{RdmaWr, SendWqe};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::uverbs::{AdviseMr, ObjectClass, WqCreate};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState, SendFlags, WcStatus};
use bareverbs_uapi::write::structs::{ModifyQpReq, RegMrResp};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::IntoBytes;

use super::pair::{LENGTH, Options, Pair, REGION, SEND_ID};
use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::check::{Bug, Check, EVERY, Row, RowBody, row};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

const SINCE_7_2: &[Since] = &[Since::V7_2, Since::V7_3];

/// How long a completion that may never come is awaited. Retries of the checks take less.
const PATIENCE: Duration = Duration::from_millis(500);

/// The status of a request, `Answer::Nothing` if it does not complete.
fn status_within(pair: &mut Pair, wr_id: u64, timeout: Duration) -> Answer {
    let begin = Instant::now();
    loop {
        if let Some(wc) = pair.pending(wr_id) {
            return Answer::Status(wc.status.0);
        }
        if begin.elapsed() > timeout {
            return Answer::Nothing;
        }
        sleep(Duration::from_millis(1));
    }
}

/// Number of completions with an identifier that arrive in time.
fn completions(pair: &mut Pair, wr_id: u64, wanted: u64) -> Answer {
    let begin = Instant::now();
    let mut count = 0;
    while count < wanted && begin.elapsed() < PATIENCE {
        match pair.pending(wr_id) {
            Some(_) => count += 1,
            None => sleep(Duration::from_millis(1)),
        }
    }
    Answer::Value(count)
}

fn modify(session: &mut Session<'_>, request: &ModifyQpReq) -> Step<()> {
    session.invoke::<write::ModifyQp>(request).map(drop)
}

/// Moves the sender's QP to a state that needs no other attribute.
fn move_sender(session: &mut Session<'_>, pair: &Pair, state: QpState) -> Step<()> {
    let request = ModifyQpReq { attr_mask: QpAttrMask::STATE, qp_state: state, ..pair.sender.qp.request };
    modify(session, &request)
}

fn read(wqe: &mut SendWqe, pair_start: u64, rkey: u32) {
    (wqe.wr.opcode, wqe.iova) = (WrOpcode::RDMA_READ, pair_start);
    wqe.wr.set(&RdmaWr { remote_addr: pair_start, rkey, reserved: 0 });
}

type Body = fn(&mut Session<'_>) -> Step<Answer>;

/// A bug: its page, the series that have it, what is judged, the right and the wrong answer.
struct Known {
    page: &'static str,
    series: &'static [Since],
    title: &'static str,
    right: Answer,
    wrong: Answer,
    body: Body,
}

/// Bytes in a private mapping of the program's file, without write permission.
static READ_ONLY: [u8; 3 * 4096] = [0x5a; 3 * 4096];

const SUCCESS: Answer = Answer::Status(WcStatus::SUCCESS.0);

const KNOWN: [Known; 10] = [
    Known {
        page: "receives-posted-after-a-failure-are-not-flushed",
        series: EVERY,
        title: "the completions of a receive that is posted behind a failed request",
        right: Answer::Value(1),
        wrong: Answer::Value(0),
        body: |session| {
            let mut pair = Pair::new(session, QpType::RC, None)?;
            pair.receiver.post_send(session, &|_, sge| sge.lkey ^= 0xff)?;
            pair.completion(SEND_ID)?;
            super::data::wait_state(session, &pair.receiver, QpState::ERR, "receiver")?;
            // The responder may still be running for the change of state.
            sleep(Duration::from_millis(50));
            pair.post_recv(0, &|_, _| {})?;
            Ok(completions(&mut pair, super::pair::RECV_ID, 1))
        },
    },
    Known {
        page: "return-from-sqd-does-not-start-the-send-queue",
        series: EVERY,
        title: "a send that was posted in SQD, after the return to RTS",
        right: SUCCESS,
        wrong: Answer::Nothing,
        body: |session| {
            let mut pair = Pair::new(session, QpType::RC, None)?;
            pair.post_recv(0, &|_, _| {})?;
            move_sender(session, &pair, QpState::SQD)?;
            super::data::wait_state(session, &pair.sender, QpState::SQD, "sender")?;
            pair.post_send(session, &|_, _| {})?;
            sleep(Duration::from_millis(50));
            move_sender(session, &pair, QpState::RTS)?;
            Ok(status_within(&mut pair, SEND_ID, PATIENCE))
        },
    },
    Known {
        page: "reads-hang-with-max_rd_atomic-0",
        series: EVERY,
        title: "an RDMA READ with max_rd_atomic 0",
        right: Answer::Status(WcStatus::LOC_QP_OP_ERR.0),
        wrong: Answer::Nothing,
        body: |session| {
            let options =
                Options { attributes: |request| request.max_rd_atomic = 0, ..Options::of(QpType::RC) };
            let mut pair = Pair::with(session, &options)?;
            let (start, rkey) = (pair.receiver.region.start, pair.receiver.region.rkey);
            pair.post_send(session, &|wqe, _| read(wqe, start, rkey))?;
            let got = status_within(&mut pair, SEND_ID, PATIENCE);
            Ok(if got == Answer::Status(WcStatus::WR_FLUSH_ERR.0) {
                Answer::Status(pair.sender.first_status()?)
            } else {
                got
            })
        },
    },
    Known {
        page: "retry_cnt-7-retries-without-limit",
        series: EVERY,
        title: "a send to a QP in RESET with retry_cnt 7 and a timeout of 1 ms",
        right: Answer::Status(WcStatus::RETRY_EXC_ERR.0),
        wrong: Answer::Nothing,
        body: |session| {
            let attributes: fn(&mut ModifyQpReq) = |request| (request.timeout, request.retry_cnt) = (8, 7);
            let mut pair = Pair::with(session, &Options { attributes, ..Options::of(QpType::RC) })?;
            pair.receiver.qp.reset(session)?;
            pair.post_send(session, &|_, _| {})?;
            // Seven retries of a few jiffies each.
            let got = status_within(&mut pair, SEND_ID, 2 * PATIENCE);
            move_sender(session, &pair, QpState::ERR)?;
            Ok(got)
        },
    },
    Known {
        page: "a-retried-fenced-request-never-completes",
        series: EVERY,
        title: "a fenced send that waited for a receive, with an RDMA READ behind it",
        right: SUCCESS,
        wrong: Answer::Nothing,
        body: |session| {
            let attributes: fn(&mut ModifyQpReq) = |request| request.min_rnr_timer.0 = 14;
            let mut pair = Pair::with(session, &Options { attributes, ..Options::of(QpType::RC) })?;
            let (start, rkey) = (pair.receiver.region.start, pair.receiver.region.rkey);
            pair.sender.push_send(&|wqe, _| {
                wqe.wr.send_flags = SendFlags::SIGNALED | SendFlags::FENCE;
            })?;
            pair.sender.push_send(&|wqe, _| {
                read(wqe, start, rkey);
                wqe.wr.wr_id = SEND_ID + 1;
            })?;
            let mut call = pair.sender.doorbell(session);
            session.prepare(&mut call)?;
            pair.post_recv(0, &|_, _| {})?;
            let got = status_within(&mut pair, SEND_ID, PATIENCE);
            move_sender(session, &pair, QpState::ERR)?;
            Ok(got)
        },
    },
    Known {
        page: "sends-posted-in-err-are-not-flushed",
        series: &[Since::V6_1],
        title: "the completions of six sends that are posted in ERR, in lists of one, two and three",
        right: Answer::Value(6),
        wrong: Answer::Value(0),
        body: |session| {
            let mut pair = Pair::new(session, QpType::RC, None)?;
            move_sender(session, &pair, QpState::ERR)?;
            let mut completed = 0;
            for length in 1..=3 {
                for _ in 0..length {
                    pair.sender.push_send(&|_, _| {})?;
                }
                let mut call = pair.sender.doorbell(session);
                session.prepare(&mut call)?;
                if let Answer::Value(count) = completions(&mut pair, SEND_ID, length) {
                    completed += count;
                }
            }
            // Each list that is not seen is a symptom.
            Ok(Answer::Value(if completed == 6 { 6 } else { 0 }))
        },
    },
    Known {
        page: "registration-breaks-copy-on-write",
        series: &[Since::V6_1],
        title: "REG_MR with LOCAL_WRITE of a private mapping without write permission",
        right: Answer::FAULT,
        wrong: Answer::Ok,
        body: |session| {
            let pd = session.pd()?;
            let mut request = session.mr_request(pd, AccessFlags::LOCAL_WRITE.bits());
            let start = (READ_ONLY.as_ptr().expose_provenance() as u64).next_multiple_of(4096);
            (request.start, request.hca_va) = (start, start);
            let number = write::RegMr::INFO.number;
            let mut call = session.command(number, request.as_bytes(), size_of::<RegMrResp>(), 0);
            let got = session.execute(&mut call);
            if got == Answer::Ok {
                session.note_new(ObjectClass::MR.0)?;
            }
            Ok(got)
        },
    },
    Known {
        page: "unicast-port-counters-stay-zero",
        series: SINCE_7_2,
        title: "whether unicast_xmit_packets counts a message",
        right: Answer::Value(1),
        wrong: Answer::Value(0),
        body: |session| {
            let name = session.target.name();
            let path = format!("/sys/class/infiniband/{name}/ports/1/counters/unicast_xmit_packets");
            let counter = || fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
            let Some(before) = counter() else { return skip("the port has no counter of unicast packets") };
            let mut pair = Pair::new(session, QpType::RC, None)?;
            pair.post_recv(0, &|_, _| {})?;
            pair.post_send(session, &|_, _| {})?;
            pair.completion(SEND_ID)?;
            Ok(Answer::Value(u64::from(counter() != Some(before))))
        },
    },
    Known {
        page: "uc-accepts-send-with-invalidate",
        series: EVERY,
        title: "SEND_WITH_INV on UC",
        right: Answer::Status(WcStatus::LOC_QP_OP_ERR.0),
        wrong: SUCCESS,
        body: |session| {
            let mut pair = Pair::new(session, QpType::UC, None)?;
            let rkey = pair.receiver.region.rkey;
            pair.post_send(session, &|wqe, _| (wqe.wr.opcode, wqe.wr.ex) = (WrOpcode::SEND_WITH_INV, rkey))?;
            pair.completion(SEND_ID)?;
            pair.sender.first_status().map(Answer::Status)
        },
    },
    Known {
        page: "odp-copies-ignore-the-offset-in-the-page",
        series: SINCE_7_2,
        title: "the bytes that a WRITE to an on-demand region changes at its target",
        right: Answer::Value(LENGTH as u64),
        wrong: Answer::Value(0),
        body: |session| {
            if session.series < Since::V7_2 {
                return skip("rxe has on-demand paging since 7.2");
            }
            let options = Options::of(QpType::RC);
            let options = Options { remote: options.remote | AccessFlags::ON_DEMAND, ..options };
            let mut pair = Pair::with(session, &options)?;
            let region = pair.receiver.region;
            session.fill(region.offset, REGION, 0);
            session.fill(pair.sender.region.offset, REGION, 0x5a);
            // In the middle of a page of the region.
            let offset = 4096 - (region.start % 4096) + 1024;
            let target = region.start + offset;
            pair.post_send(session, &|wqe, _| {
                (wqe.wr.opcode, wqe.iova) = (WrOpcode::RDMA_WRITE, target);
                wqe.wr.set(&RdmaWr { remote_addr: target, rkey: region.rkey, reserved: 0 });
            })?;
            if pair.completion(SEND_ID)?.status != WcStatus::SUCCESS {
                return fail("the write failed");
            }
            let bytes = session.bytes(region.offset + offset as usize, LENGTH as usize);
            Ok(Answer::Value(bytes.iter().filter(|byte| **byte == 0x5a).count() as u64))
        },
    },
];

fn known(checks: &mut Vec<Check>) {
    let rule = Rule::KnownBug;
    for Known { page, series, title, right, wrong, body } in KNOWN {
        let name = format!("bug::rxe::{page}::{}", rule.id());
        let check = Check::new(name, rule, right, move |session| {
            session.needs_rxe_payloads()?;
            let got = body(session)?;
            session.compare(&title, right, got).map(drop)
        });
        checks.push(check.of_bug(Bug { page, series, answer: wrong }));
    }
}

const fn bug(place: &'static str, answer: Answer, body: RowBody) -> Row {
    row(place, Rule::KnownBug, "", answer, body)
}

/// Bugs that crash or corrupt a kernel, or take minutes.
const HAZARDOUS: [Row; 4] = [
    bug("rxe::odp-lookups-ignore-the-difference-of-iova-and-address", SUCCESS, |session, answer| {
        if session.series < Since::V7_2 {
            return skip("rxe has on-demand paging since 7.2");
        }
        let mut pair = Pair::new(session, QpType::RC, None)?;
        pair.post_recv(0, &|_, _| {})?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
        let mut request = session.mr_request(pair.pd, access.bits());
        request.hca_va = (1 << 40) + request.start % 4096;
        let response = session.invoke::<write::RegMr>(&request)?;
        session.note_object(ObjectClass::MR.0, response.mr_handle);
        let lkey = response.lkey;
        pair.post_send(session, &|_, sge| (sge.addr, sge.lkey) = (request.hca_va, lkey))?;
        let got = Answer::Status(pair.completion(SEND_ID)?.status.0);
        session.compare(&"a send from an on-demand region with another iova", answer, got).map(drop)
    })
    .hazardous("7.2 reads kernel memory beyond an array"),
    bug("rxe::advice-accepts-a-pinned-region", Answer::INVAL, |session, answer| {
        if session.series < Since::V7_2 {
            return skip("rxe has the method since 7.2");
        }
        let pd = session.pd()?;
        let region = session.mr_with(pd, 1)?;
        let memory = session.memory();
        let mut element = memory.to_ne_bytes().to_vec();
        element.extend(LENGTH.to_ne_bytes());
        element.extend(region.lkey.to_ne_bytes());
        let flush = 1;
        let mut call = Call::of(session.driver_id(), &AdviseMr::INFO)
            .with(Slot::word(AdviseMr::PD_HANDLE.id(), pd.into()))
            .with(Slot::number(AdviseMr::ADVICE.id(), 0))
            .with(Slot::number(AdviseMr::FLAGS.id(), flush))
            .with(Slot::input(AdviseMr::SGE_LIST.id(), &element));
        session.judge(&mut call, answer).map(drop)
    })
    // The answer if the memory beyond the object, the range of an on-demand region, is zero.
    .of_bug("advice-accepts-a-pinned-region", SINCE_7_2, Answer::FAULT)
    .hazardous("kernels read memory beyond an object"),
    bug("rxe::growing-max_dest_rd_atomic-corrupts-memory", Answer::Ok, |session, answer| {
        let mut qp = super::qp_states::Qp::new(session, QpType::RC)?;
        qp.to(session, QpState::RTS)?;
        let request =
            ModifyQpReq { attr_mask: QpAttrMask::MAX_DEST_RD_ATOMIC, max_dest_rd_atomic: 128, ..qp.request };
        if session.series < Since::V6_12 {
            return skip("the state table of this kernel refuses the change outside of SQD");
        }
        let mut call = session.command(write::ModifyQp::INFO.number, request.as_bytes(), 0, 0);
        session.judge(&mut call, answer).map(drop)
    })
    .hazardous("6.1 before 6.1.191 and 6.12 before 6.12.108 write beyond an allocation"),
    bug("rxe::destroy-waits-50-seconds-for-a-bound-window", Answer::Value(0), |session, answer| {
        let handle = super::data::bound_window(session)?;
        let begin = Instant::now();
        let got = session.destroy(ObjectClass::QP.0, handle)?;
        if got != Answer::Ok {
            return fail(format!("QP_DESTROY failed with {got}"));
        }
        let waited = Answer::Value(u64::from(begin.elapsed() > Duration::from_secs(10)));
        let text = "whether QP_DESTROY takes more than 10 seconds with a bound window";
        session.compare(&text, answer, waited).map(drop)
    })
    .of_bug("destroy-waits-50-seconds-for-a-bound-window", EVERY, Answer::Value(1))
    .hazardous("kernels wait 50 seconds and free a QP that the window refers to"),
];

/// `WQ_CREATE` of mlx5 without its optional CQ.
const WQ_CREATE: Row = bug("mlx5::wq_create-without-a-cq-crashes", Answer::NOENT, |session, answer| {
    let pd = session.pd()?;
    let start = session.memory().next_multiple_of(4096);
    let payload = CreateWqReq {
        buf_addr: start,
        db_addr: start + 0x8000,
        rq_wqe_count: 16,
        rq_wqe_shift: 4,
        ..CreateWqReq::zeroed()
    };
    let number = |id: u16, value: u32| Slot::input(id, &value.to_ne_bytes());
    let mut call = Call::of(session.driver_id(), &WqCreate::INFO)
        .with(Slot::word(WqCreate::HANDLE.id(), 0))
        .with(Slot::word(WqCreate::PD_HANDLE.id(), pd.into()))
        .with(Slot::number(WqCreate::USER_HANDLE.id(), 0))
        .with(Slot::number(WqCreate::TYPE.id(), 0))
        .with(number(WqCreate::MAX_WR.id(), 16))
        .with(number(WqCreate::MAX_SGE.id(), 1))
        .with(Slot::number(WqCreate::FLAGS.id(), 0))
        .with(Slot::output(WqCreate::RESP_MAX_WR.id(), 4))
        .with(Slot::output(WqCreate::RESP_MAX_SGE.id(), 4))
        .with(Slot::input(UHW_IN, payload.as_bytes()))
        .with(Slot::output(UHW_OUT, 8));
    match session.execute(&mut call) {
        // Only ports on Ethernet have the class (`hw/mlx5/main.c`: `mlx5_ib_dev_common_roce_ops`).
        Answer::PROTONOSUPPORT => skip("the device has no WQs"),
        got => session.compare(&call, answer, got).map(drop),
    }
})
.hazardous("kernels use an error pointer as the CQ (wq_create-without-a-cq-crashes)");

/// A flow of mlx5 with a match value of the length that the method declares as its maximum.
const CREATE_FLOW: Row =
    bug("mlx5::create_flow-copies-beyond-its-match-value", Answer::OPNOTSUPP, |session, answer| {
        /// Bytes that the kernel has room for (`fte_match_param` in `mlx5_ifc.h`).
        const ROOM: usize = 512;
        /// The destination address in it.
        const DESTINATION: std::ops::Range<usize> = 8..14;
        const OUTER_HEADERS: u8 = 1 << 0;
        session.context()?;
        let mut mask = [0; ROOM];
        mask[DESTINATION].fill(0xff);
        let priority = 0_u16;
        // The element of the enumeration is 0: a normal flow.
        let mut matcher = Call::of(session.driver_id(), &FlowMatcherCreate::INFO)
            .with(Slot::word(FlowMatcherCreate::HANDLE.id(), 0))
            .with(Slot::input(FlowMatcherCreate::MATCH_MASK.id(), &mask))
            .with(Slot::input(FlowMatcherCreate::FLOW_TYPE.id(), priority.as_bytes()))
            .with(Slot::input(FlowMatcherCreate::MATCH_CRITERIA.id(), &[OUTER_HEADERS]));
        session.prepare(&mut matcher)?;
        let matcher = matcher.slot(FlowMatcherCreate::HANDLE.id()).map_or(0, |slot| slot.raw.data);
        let value = MatchParams::zeroed();
        let mut call = Call::of(session.driver_id(), &CreateFlow::INFO)
            .with(Slot::word(CreateFlow::HANDLE.id(), 0))
            .with(Slot::input(CreateFlow::MATCH_VALUE.id(), value.as_bytes()))
            .with(Slot::word(CreateFlow::MATCHER.id(), matcher))
            .with(Slot::number(CreateFlow::FLAGS.id(), CreateFlowFlags::DROP.bits().into()));
        session.judge(&mut call, answer).map(drop)
    })
    .hazardous("kernels write beyond an array (create_flow-copies-beyond-its-match-value)");

pub(crate) fn of_mlx5() -> Vec<Check> {
    vec![WQ_CREATE.check("bug"), CREATE_FLOW.check("bug")]
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    known(&mut checks);
    checks.extend(HAZARDOUS.iter().map(|row| row.check("bug")));
    checks
}
