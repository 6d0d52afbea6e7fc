//! The order of completions of a send queue.
//!
//! The kernel completes a SEND or RDMA WRITE when TCP has taken it, and an RDMA READ when its data has
//! arrived. So a SEND that was posted after a READ may complete before it. A send queue reports its
//! completions in the order of posting: a completion waits for the earlier READs.
//!
//! The kernel's fence (`SIW_WQE_READ_FENCE`) would do the same. It is used only if the caller asks for it,
//! because it stops the transmission of read responses to the peer as well: two peers that each wait behind a
//! fence for the other's response wait for ever (`siw_activate_tx_from_sq`, `siw_init_rresp`). And the kernel
//! transmits a fenced request early if the socket gets room meanwhile (`siw_qp_llp_write_space`).
//!
//! Some requests are signalled to the kernel although the caller does not ask for it. Their successful
//! completions are not reported:
//!
//! - READs: later completions wait for them.
//! - Payloads of a page and more: without a completion, TCP sends them from the pages of the caller, which
//!   it may still do after a later request has completed (`siw_qp_prepare_tx` of `siw_qp_tx.c`).
//!
//! An entry here is found by the `wr_id` of its completion. READs complete in the order of posting, and so
//! do the other requests. A `wr_id` that is not unique can match the entry of a later request. Then the
//! completion is held back longer than necessary, and may be reported behind a READ that was posted after its
//! request. None is reported before a READ that was posted before its request. So callers that need the order
//! in both directions give each outstanding request a `wr_id` of its own.

use std::collections::VecDeque;

use bareverbs_uapi::siw::{Cqe, Opcode, WcStatus};

/// A READ that was posted and not reported.
#[derive(Debug)]
struct Read {
    wr_id: u64,
    is_hidden: bool,
    /// Its completion, while earlier READs are outstanding.
    done: Option<Cqe>,
}

/// Another request that was posted while READs were outstanding, or is hidden.
#[derive(Clone, Copy, Debug)]
struct Other {
    wr_id: u64,
    /// The number of READs that were posted before.
    after: u64,
    /// Whether success makes a completion of the kernel.
    is_signaled: bool,
    /// Whether success is not reported.
    is_hidden: bool,
}

/// The requests of a send queue whose completions are held back or not reported.
#[derive(Debug, Default)]
pub(crate) struct Order {
    reads: VecDeque<Read>,
    reads_posted: u64,
    others: VecDeque<Other>,
    /// Completions that wait until so many READs were reported.
    held: VecDeque<(u64, Cqe)>,
    /// Whether the last requests are not published yet.
    pub(crate) is_publishing: bool,
}

impl Order {
    /// Makes room for so many requests of each kind.
    pub(crate) fn with_capacity(requests: usize) -> Self {
        Self {
            reads: VecDeque::with_capacity(requests),
            reads_posted: 0,
            others: VecDeque::with_capacity(requests),
            held: VecDeque::new(),
            is_publishing: false,
        }
    }

    /// Whether all completions can be reported as they are.
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.others.is_empty() && self.held.is_empty()
    }

    /// READs that were posted and not reported.
    pub(crate) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// A READ is about to be published.
    pub(crate) fn read(&mut self, wr_id: u64, is_hidden: bool) {
        self.reads.push_back(Read { wr_id, is_hidden, done: None });
        self.reads_posted += 1;
    }

    /// Another request is about to be published.
    pub(crate) fn other(&mut self, wr_id: u64, is_signaled: bool, is_hidden: bool) {
        self.others.push_back(Other { wr_id, after: self.reads_posted, is_signaled, is_hidden });
    }

    /// Takes a completion of this send queue, of the kernel or of a flushed request, and passes on those that
    /// can be reported. Returns `true` for a request whose success is not reported.
    pub(crate) fn complete(&mut self, cqe: Cqe, mut report: impl FnMut(Cqe)) -> bool {
        if matches!(cqe.opcode, Opcode::READ | Opcode::READ_LOCAL_INV) {
            // A READ that can't be transmitted fails before earlier ones have completed.
            let mut waiting = self.reads.iter_mut().filter(|read| read.done.is_none());
            let Some(read) = waiting.find(|read| read.wr_id == cqe.id) else {
                report(cqe);
                return false;
            };
            read.done = Some(cqe);
            let is_hidden = read.is_hidden;
            self.report_reads(&mut report);
            return is_hidden;
        }
        let other = self.find_other(&cqe);
        let is_hidden = other.is_some_and(|other| other.is_hidden);
        if cqe.status != WcStatus::SUCCESS || !is_hidden {
            self.held.push_back((other.map_or(0, |other| other.after), cqe));
            self.report_held(&mut report);
        }
        self.forget_others();
        is_hidden
    }

    /// The entry of a completion. `None` of a request that was posted while no READ was outstanding.
    fn find_other(&mut self, cqe: &Cqe) -> Option<Other> {
        // Unsignalled requests before a signalled one that completes were successful.
        let signaled = self.others.iter().position(|other| other.is_signaled);
        let may_be = signaled.map_or(self.others.len(), |first| first + 1);
        let mut candidates = self.others.range(..may_be);
        let has_failed = cqe.status != WcStatus::SUCCESS;
        // The last one: an unsignalled request with the same `wr_id` may have been successful.
        let found =
            candidates.rposition(|other| other.wr_id == cqe.id && (has_failed || other.is_signaled))?;
        self.others.drain(..=found).next_back()
    }

    /// The number of READs that were posted, all of which are published. `None` while some are not.
    pub(crate) fn published_reads(&self) -> Option<u64> {
        (!self.is_publishing).then_some(self.reads_posted)
    }

    /// The kernel reports no more completions of the first `count` READs, and those that it did not take were
    /// completed: flushes those that are left, whose completions the kernel lost. Returns the number of those
    /// whose success would not have been reported.
    pub(crate) fn end(
        &mut self,
        count: u64,
        flushed: impl Fn(u64) -> Cqe,
        mut report: impl FnMut(Cqe),
    ) -> u32 {
        let mut hidden = 0;
        let ended = count.saturating_sub(self.reported());
        for read in self.reads.iter_mut().take(ended as usize).filter(|read| read.done.is_none()) {
            hidden += u32::from(read.is_hidden);
            read.done = Some(flushed(read.wr_id));
        }
        self.report_reads(&mut report);
        hidden
    }

    /// Forgets all requests. Returns the number of those whose success would not have been reported.
    pub(crate) fn clear(&mut self) -> u32 {
        let Self { reads, others, .. } = std::mem::take(self);
        let reads = reads.iter().filter(|read| read.is_hidden && read.done.is_none());
        (others.iter().filter(|other| other.is_hidden).count() + reads.count()) as u32
    }

    fn report_reads(&mut self, report: &mut impl FnMut(Cqe)) {
        while let Some(Read { done: Some(cqe), is_hidden, .. }) = self.reads.front() {
            if !*is_hidden || cqe.status != WcStatus::SUCCESS {
                report(*cqe);
            }
            self.reads.pop_front();
            self.report_held(report);
        }
        self.forget_others();
    }

    /// Forgets the entries that make no difference any more: their earlier READs were reported, and they are
    /// not hidden.
    fn forget_others(&mut self) {
        let reported = self.reported();
        while self.others.front().is_some_and(|other| other.after <= reported && !other.is_hidden) {
            self.others.pop_front();
        }
    }

    /// READs that were posted and reported.
    fn reported(&self) -> u64 {
        self.reads_posted - self.reads.len() as u64
    }

    fn report_held(&mut self, report: &mut impl FnMut(Cqe)) {
        let reported = self.reported();
        while let Some((_, cqe)) = self.held.front().filter(|(after, _)| *after <= reported) {
            report(*cqe);
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn done(opcode: Opcode, id: u64) -> Cqe {
        Cqe { id, opcode, ..Cqe::zeroed() }
    }

    #[test]
    fn end_leaves_reads_that_were_posted_later() {
        let mut order = Order::with_capacity(4);
        order.read(1, false);
        order.is_publishing = true;
        assert_eq!(order.published_reads(), None);
        order.is_publishing = false;
        let count = order.published_reads().unwrap();
        order.read(2, false);
        let flushed = |wr_id| Cqe { status: WcStatus::WR_FLUSH_ERR, ..done(Opcode::READ, wr_id) };
        let mut reported = Vec::new();
        for _ in 0..2 {
            order.end(count, flushed, |cqe| reported.push(cqe.id));
        }
        assert_eq!(reported, [1]);
    }

    #[test]
    fn unsignalled_requests_between_reads_leave_nothing_behind() {
        let mut order = Order::with_capacity(4);
        for wr_id in 0..100 {
            order.read(wr_id, false);
            order.other(wr_id, false, false);
            // One READ behind.
            if wr_id > 0 {
                let done = Cqe { id: wr_id - 1, opcode: Opcode::READ, ..Cqe::zeroed() };
                let mut reported = Vec::new();
                assert!(!order.complete(done, |cqe| reported.push(cqe.id)));
                assert_eq!(reported, [wr_id - 1]);
            }
        }
        assert!(order.others.len() <= 2, "{}", order.others.len());
    }

    #[test]
    fn requests_that_end_without_a_report_are_counted_once() {
        let mut order = Order::with_capacity(4);
        order.read(1, false);
        order.read(2, true);
        order.other(3, true, true);
        order.other(4, true, false);
        // A READ that can't be transmitted. It is reported behind the first one.
        let failed = Cqe { status: WcStatus::LOC_QP_OP_ERR, ..done(Opcode::READ, 2) };
        assert!(order.complete(failed, |cqe| panic!("{cqe:?} is early")));
        assert_eq!(order.clear(), 1);
        order.read(5, true);
        order.read(6, false);
        let flushed = |wr_id| Cqe { status: WcStatus::WR_FLUSH_ERR, ..done(Opcode::READ, wr_id) };
        assert_eq!(order.end(2, flushed, |_| {}), 1);
        assert_eq!(order.clear(), 0);
    }

    #[test]
    fn reads_with_one_wr_id_fail_one_by_one() {
        let mut order = Order::with_capacity(4);
        [1, 2, 2].into_iter().for_each(|wr_id| order.read(wr_id, false));
        let mut reported = Vec::new();
        for (wr_id, status) in
            [(2, WcStatus::LOC_QP_OP_ERR), (2, WcStatus::WR_FLUSH_ERR), (1, WcStatus::SUCCESS)]
        {
            order.complete(Cqe { status, ..done(Opcode::READ, wr_id) }, |cqe| reported.push(cqe.status));
        }
        assert_eq!(reported, [WcStatus::SUCCESS, WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR]);
    }

    #[test]
    fn failure_is_reported_behind_the_reads_before_its_request_if_an_earlier_one_has_its_wr_id() {
        let mut order = Order::with_capacity(4);
        order.read(1, false);
        order.other(5, false, false);
        order.read(2, false);
        order.other(5, true, false);
        let mut reported = Vec::new();
        let failed = Cqe { status: WcStatus::LOC_PROT_ERR, ..done(Opcode::SEND, 5) };
        for cqe in [failed, done(Opcode::READ, 1), done(Opcode::READ, 2)] {
            order.complete(cqe, |cqe| reported.push(cqe.id));
        }
        assert_eq!(reported, [1, 2, 5]);
        assert!(order.is_empty());
    }

    #[test]
    fn completion_of_a_request_before_a_read_may_be_late_if_a_later_request_has_its_wr_id() {
        let mut order = Order::with_capacity(4);
        // A send with the `wr_id` 5 is outstanding: it was posted without a READ before it.
        order.read(1, false);
        order.other(5, true, false);
        let mut reported = Vec::new();
        for (opcode, id) in [(Opcode::SEND, 5), (Opcode::SEND, 5), (Opcode::READ, 1)] {
            order.complete(done(opcode, id), |cqe| reported.push(cqe.id));
        }
        assert_eq!(reported, [1, 5, 5]);
        assert!(order.is_empty());
    }

    /// A request of a random program.
    #[derive(Clone, Copy, Debug)]
    struct Step {
        wr_id: u64,
        is_read: bool,
        is_signaled: bool,
        is_large: bool,
        /// READs whose responses arrive before the next request is posted.
        responses: usize,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (0u64..3, any::<bool>(), any::<bool>(), any::<bool>(), 0usize..3).prop_map(
            |(wr_id, is_read, is_signaled, is_large, responses)| Step {
                wr_id,
                is_read,
                is_signaled,
                is_large,
                responses,
            },
        );
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        /// The kernel completes other requests when they are posted, and READs later. `bytes` numbers the
        /// completions.
        #[test]
        fn completions_with_equal_wr_ids_come_in_the_order_of_posting(steps in steps()) {
            let (mut order, mut outstanding) = (Order::with_capacity(60), VecDeque::new());
            let (mut expected, mut reported) = (Vec::new(), Vec::new());
            for (number, step) in (0u32..).zip(&steps) {
                let Step { wr_id, is_read, is_signaled, is_large, responses } = *step;
                if is_signaled {
                    expected.push(number);
                }
                let opcode = if is_read { Opcode::READ } else { Opcode::SEND };
                let done = Cqe { bytes: number, ..done(opcode, wr_id) };
                if is_read {
                    order.read(wr_id, !is_signaled);
                    outstanding.push_back(done);
                } else {
                    let is_hidden = is_large && !is_signaled;
                    if is_hidden || order.reads() > 0 {
                        order.other(wr_id, is_signaled || is_hidden, is_hidden);
                    }
                    if is_signaled || is_hidden {
                        let ended = order.complete(done, |cqe| reported.push(cqe.bytes));
                        prop_assert_eq!(ended, is_hidden);
                    }
                }
                for done in outstanding.drain(..responses.min(outstanding.len())) {
                    order.complete(done, |cqe| reported.push(cqe.bytes));
                }
            }
            for done in outstanding {
                order.complete(done, |cqe| reported.push(cqe.bytes));
            }
            prop_assert_eq!(reported, expected);
            prop_assert_eq!(order.clear(), 0);
        }
    }
}
