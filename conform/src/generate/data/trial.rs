//! One request between two QPs, and the comparison of everything that it changes.

use std::borrow::Cow;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rxe::{RecvWqe, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpState, WcFlags, WcStatus};
use bareverbs_uapi::write::structs::Wc;
use bareverbs_uapi::write::types::WrOpcode;

use super::operation::{LOCAL_BYTE, Memory, Operation, REMOTE_BYTE};
use crate::answer::{Answer, Expect};
use crate::check::Check;
use crate::generate::pair::{Endpoint, Options, Pair, RECV_ID, REGION, Region, SEND_ID};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

/// The status of the request.
#[derive(Clone, Copy)]
pub(crate) enum Requester {
    /// The request completes with this status.
    Completes(Expect),
    /// The request fails before it is sent. Its status is that in the WQE, if the WQE has one.
    Refused(Expect),
}

/// The status of the receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receive {
    /// No receive is posted.
    None,
    /// The receive completes with this status.
    Completes(WcStatus),
    /// The receive stays posted.
    Stays,
}

/// What a request does to memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// The effect of the operation on the receiver's region. The response is lost.
    Remote,
    /// The effect of the operation.
    All,
}

/// The results of a request.
#[derive(Clone, Copy)]
pub(crate) struct Results {
    pub(crate) requester: Requester,
    pub(crate) receive: Receive,
    pub(crate) effect: Effect,
    /// Whether the receiver's QP ends in ERR.
    pub(crate) breaks_receiver: bool,
}

pub(crate) const fn status(status: WcStatus) -> Answer {
    Answer::Status(status.0)
}

impl Results {
    /// The request succeeds.
    pub(crate) fn success(operation: &Operation) -> Self {
        let receive = if operation.receives { Receive::Completes(WcStatus::SUCCESS) } else { Receive::None };
        let requester = Requester::Completes(status(WcStatus::SUCCESS).into());
        Self { requester, receive, effect: Effect::All, breaks_receiver: false }
    }

    /// The receiver of an RC QP refuses the request: the requester has one status, the receive another.
    pub(crate) fn refused(operation: &Operation, requester: WcStatus, receive: WcStatus) -> Self {
        let receive = if operation.receives { Receive::Completes(receive) } else { Receive::None };
        let requester = Requester::Completes(status(requester).into());
        Self { requester, receive, effect: Effect::None, breaks_receiver: true }
    }

    /// The receiver of an unreliable QP drops the request.
    pub(crate) fn dropped(operation: &Operation) -> Self {
        let receive = if operation.receives { Receive::Stays } else { Receive::None };
        Self { receive, effect: Effect::None, ..Self::success(operation) }
    }

    /// The requester does not send the request.
    pub(crate) fn not_sent(operation: &Operation, expect: impl Into<Expect>) -> Self {
        let receive = if operation.receives { Receive::Stays } else { Receive::None };
        Self {
            requester: Requester::Refused(expect.into()),
            receive,
            effect: Effect::None,
            breaks_receiver: false,
        }
    }

    /// The expectation of the judged status.
    pub(crate) fn expect(&self) -> Expect {
        match self.requester {
            Requester::Completes(expect) | Requester::Refused(expect) => expect,
        }
    }
}

/// Changes a request. The receiver's region is the target.
pub(crate) type Change = fn(&mut SendWqe, &mut Sge, &Operation, &Region);

/// A request.
#[derive(Clone, Copy)]
pub(crate) struct Trial {
    pub(crate) operation: &'static Operation,
    pub(crate) options: Options,
    pub(crate) length: u32,
    pub(crate) change: Change,
    pub(crate) receive: fn(&mut RecvWqe, &mut Sge),
}

/// Identifier of the fence's send, and of its receive.
const FENCE_ID: u64 = 0xfe4c;
/// Immediate data of the fence.
const FENCE: u32 = 0x1234_5678;

/// Timeout of a state that follows a completion.
const SETTLE: Duration = Duration::from_secs(5);

impl Trial {
    pub(crate) fn new(operation: &'static Operation, qp_type: QpType) -> Self {
        let mut options = Options::of(qp_type);
        if operation.opcode == WrOpcode::FLUSH {
            options.access |= operation.right;
            options.remote |= operation.right;
        }
        Self { operation, options, length: operation.length, change: |_, _, _, _| {}, receive: |_, _| {} }
    }

    /// Skips operations that the kernel lacks.
    fn needs_operation(&self, session: &Session<'_>) -> Step<()> {
        let since = self.operation.since;
        if session.series < since {
            return skip(format!("kernels have the operation since {}", since.name()));
        }
        Ok(())
    }

    /// Posts the request and, if the operation consumes one, a receive.
    pub(crate) fn post(&self, session: &mut Session<'_>) -> Step<Pair> {
        self.post_with(session, self.operation.receives)
    }

    /// Posts the request, with or without a receive.
    pub(crate) fn post_with(&self, session: &mut Session<'_>, receive: bool) -> Step<Pair> {
        let mut pair = self.prepare(session)?;
        if receive {
            pair.post_recv(0, &self.receive)?;
        }
        self.send(session, &mut pair)?;
        Ok(pair)
    }

    /// Makes the QPs and fills their memory.
    pub(crate) fn prepare(&self, session: &mut Session<'_>) -> Step<Pair> {
        self.needs_operation(session)?;
        let pair = Pair::with(session, &self.options)?;
        session.fill(pair.sender.region.offset, REGION, LOCAL_BYTE);
        session.fill(pair.receiver.region.offset, REGION, REMOTE_BYTE);
        Ok(pair)
    }

    /// Posts the request only.
    pub(crate) fn send(&self, session: &mut Session<'_>, pair: &mut Pair) -> Step<()> {
        let remote = pair.receiver.region;
        pair.post_send(session, &|wqe, sge| {
            self.operation.fill(wqe, sge, self.length, &remote);
            (self.change)(wqe, sge, self.operation, &remote);
        })
    }

    /// The name of a check of the request.
    pub(crate) fn name(&self, rule: Rule, suffix: &str) -> String {
        format!("data::{}::{}::{}-{suffix}", self.options.qp_type, self.operation.name, rule.id())
    }

    /// The check of the results of the request.
    pub(crate) fn check(
        self,
        rule: Rule,
        suffix: &str,
        title: impl Into<Cow<'static, str>>,
        results: Results,
    ) -> Check {
        let title = title.into();
        Check::new(self.name(rule, suffix), rule, results.expect(), move |session| {
            self.judge(session, &title, &results)
        })
    }

    /// Judges the results of the request.
    fn judge(&self, session: &mut Session<'_>, title: &str, results: &Results) -> Step<()> {
        let mut pair = self.post(session)?;
        let before = Memory { local: vec![LOCAL_BYTE; REGION], remote: vec![REMOTE_BYTE; REGION] };
        let wc = pair.completion(SEND_ID)?;
        let text = format!(
            "{} of {} bytes on {}, {title}; the receiver's QP allows {:?}, its region {:?}",
            self.operation.name, self.length, self.options.qp_type, self.options.access, self.options.remote
        );
        let fails = self.judge_requester(session, &pair, &wc, &text, results)?;
        if session.shows_bug {
            return Ok(());
        }
        self.judge_receive(session, &mut pair, results, fails)?;
        let mut expected = before.clone();
        if results.effect != Effect::None {
            (self.operation.effect)(&mut expected, self.length as usize);
        }
        if results.effect == Effect::Remote {
            expected.local = before.local;
        }
        let mut memory = |region: &Region| session.bytes(region.offset, REGION);
        let (local, remote) = (memory(&pair.sender.region), memory(&pair.receiver.region));
        if (Memory { local, remote }) != expected {
            return fail("the memory is not as the request should leave it");
        }
        let end = |broken| if broken { QpState::ERR } else { QpState::RTS };
        // rxe has no SQE.
        let sender = if fails && self.options.qp_type == QpType::UC && !session.is_rxe() {
            QpState::SQE
        } else {
            end(fails)
        };
        wait_state(session, &pair.sender, sender, "sender")?;
        wait_state(session, &pair.receiver, end(results.breaks_receiver), "receiver")
    }

    /// Judges the status of the request. Returns whether it failed.
    fn judge_requester(
        &self,
        session: &mut Session<'_>,
        pair: &Pair,
        wc: &Wc,
        text: &str,
        results: &Results,
    ) -> Step<bool> {
        let expected = results.expect().on(session.series);
        match results.requester {
            Requester::Completes(_) => {
                session.compare(&text, expected, Answer::Status(wc.status.0))?;
            }
            Requester::Refused(_) => {
                let stored = pair.sender.status_of(0, wc)?;
                session.compare(&format!("{text}; the status of the WQE"), expected, status(stored))?;
                if session.shows_bug {
                    return Ok(false);
                }
                // Since 6.4, rxe leaves the completion to the flush of the queue.
                let flushed = session.is_rxe() && session.series >= Since::V6_12;
                let completed = if flushed { status(WcStatus::WR_FLUSH_ERR) } else { expected };
                if Answer::Status(wc.status.0) != completed {
                    return fail(format!("the request completed with {:?}, expected {completed}", wc.status));
                }
            }
        }
        Ok(expected != status(WcStatus::SUCCESS))
    }

    /// Judges the status of the receive.
    fn judge_receive(
        &self,
        session: &mut Session<'_>,
        pair: &mut Pair,
        results: &Results,
        fails: bool,
    ) -> Step<()> {
        let reliable = self.options.qp_type == QpType::RC;
        let taken = if reliable || results.breaks_receiver {
            None
        } else if fails {
            // A sender in ERR sends no fence. Nothing was sent either.
            pair.pending(RECV_ID)
        } else {
            fence(session, pair)?
        };
        match results.receive {
            Receive::None => Ok(()),
            Receive::Stays if reliable || fails => match pair.pending(RECV_ID) {
                None => Ok(()),
                Some(wc) => fail(format!("the receive completed with {:?}", wc.status)),
            },
            Receive::Stays => match taken {
                None => Ok(()),
                Some(wc) => fail(format!("the receive completed with {:?}", wc.status)),
            },
            Receive::Completes(expected) => {
                let wc = match taken {
                    Some(wc) => wc,
                    None => pair.completion(RECV_ID)?,
                };
                if wc.status != expected {
                    return fail(format!(
                        "the receive completed with {:?}, expected {expected:?}",
                        wc.status
                    ));
                }
                Ok(())
            }
        }
    }
}

/// Sends an empty message behind a request of an unreliable QP, and waits until the receiver has it.
/// Returns the completion of the request's receive, `None` if the fence consumed it.
fn fence(session: &mut Session<'_>, pair: &mut Pair) -> Step<Option<Wc>> {
    let empty = |wqe: &mut RecvWqe, _: &mut Sge| {
        wqe.wr_id = FENCE_ID;
        (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (0, 0, 0);
    };
    pair.post_recv(0, &empty)?;
    pair.post_send(session, &|wqe, _| {
        (wqe.wr.wr_id, wqe.wr.opcode, wqe.wr.ex) = (FENCE_ID + 1, WrOpcode::SEND_WITH_IMM, FENCE);
        (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (0, 0, 0);
    })?;
    let begin = Instant::now();
    let mut of_request = None;
    loop {
        if let Some(wc) = pair.pending(FENCE_ID) {
            return if is_fence(&wc) { Ok(of_request) } else { fail("the fence has no immediate data") };
        }
        match pair.pending(RECV_ID) {
            Some(wc) if is_fence(&wc) => return Ok(None),
            Some(wc) => of_request = Some(wc),
            None => {}
        }
        if begin.elapsed() > SETTLE {
            return fail("a later message does not arrive");
        }
        sleep(Duration::from_millis(1));
    }
}

fn is_fence(wc: &Wc) -> bool {
    wc.status == WcStatus::SUCCESS && wc.wc_flags.contains(WcFlags::WITH_IMM) && wc.ex == FENCE
}

/// Waits for the state of a QP. Completions may precede it.
pub(crate) fn wait_state(
    session: &mut Session<'_>,
    endpoint: &Endpoint,
    expected: QpState,
    side: &str,
) -> Step<()> {
    let begin = Instant::now();
    loop {
        let state = endpoint.qp.query(session)?.qp_state;
        if state == expected {
            return Ok(());
        }
        if begin.elapsed() > SETTLE {
            return fail(format!("the {side}'s QP is in {state:?}, expected {expected:?}"));
        }
        sleep(Duration::from_millis(1));
    }
}
