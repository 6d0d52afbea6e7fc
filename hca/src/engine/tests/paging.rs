//! On-demand paging: faults, answers, resets and destruction.

use proptest::prelude::*;

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::layout::{be32, be64};
use crate::engine::mkey::NULL_MKEY;
use crate::engine::packet::Transport;
use crate::engine::wqe::opcode;
use crate::engine::{EngineError, EventKind, KeyKind, State};

/// Guest address of the first pageable page, and address of the key.
const PAGE: u64 = DATA + 0x8_0000;
const SIZE: u64 = 0x1000;
/// Pinned memory.
const FROM: u64 = DATA + 0x100;
const PD: u32 = 1;
/// The event type.
const PAGE_FAULT: u8 = 0x0c;

/// Presence bits of an MTT entry.
const READ: u64 = 1;
const WRITE: u64 = 2;

/// Fault types.
const SEND: u8 = 1;
const RECEIVE: u8 = 2;
const READ_OR_ATOMIC: u8 = 3;
const REMOTE: u8 = 4;
const REMOTE_WRITE: u8 = 6;

/// The fields of a page-fault event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    committed: u32,
    kind: u8,
    token: u32,
    queue: u32,
    /// The WQE index, or the virtual address.
    place: u64,
    length: u32,
}

/// A pair with a key of four absent pages at `PAGE`.
fn pair() -> (Pair, u32) {
    pair_over(Transport::Rc)
}

fn pair_over(transport: Transport) -> (Pair, u32) {
    let mut pair = Pair::new(transport);
    let key = lay_out(&mut pair, KeyKind::Mtt, &[0; 4]);
    (pair, key)
}

/// A key of 16 KiB at `PAGE` with these entries. UMRs are tested elsewhere.
fn lay_out(pair: &mut Pair, kind: KeyKind, entries: &[u64]) -> u32 {
    let key = pair.engine.create_mkey_free(PD, kind, 4).unwrap();
    let mkey = pair.engine.core.mkeys.get_mut(key >> 8).unwrap();
    (mkey.free, mkey.access, mkey.start, mkey.length) = (false, 0x1f, PAGE, 4 * SIZE);
    fill(pair, key, entries);
    key
}

fn fill(pair: &mut Pair, key: u32, entries: &[u64]) {
    pair.engine.core.mkeys.get_mut(key >> 8).unwrap().translation = entries.to_vec();
}

/// Makes all four pages present with these bits.
fn bring_in(pair: &mut Pair, key: u32, bits: u64) {
    fill(pair, key, &[0, 1, 2, 3].map(|page| (PAGE + page * SIZE) | bits));
}

/// The reported faults, oldest first.
fn faults(pair: &mut Pair) -> Vec<Fault> {
    let kinds = pair.events();
    let slots: Vec<usize> = (0..kinds.len()).filter(|slot| kinds[*slot] == PAGE_FAULT).collect();
    slots
        .into_iter()
        .map(|slot| {
            let entry = pair.event(slot);
            let (committed, last) = (be32(&entry, 32), be32(&entry, 56));
            if entry[3] == 0 {
                let place = u64::from(be32(&entry, 36) & 0xffff);
                let (token, queue) = (be32(&entry, 44), last & 0xff_ffff);
                Fault { committed, kind: (last >> 24) as u8, token, queue, place, length: 0 }
            } else {
                let token = last & 0xff_ffff;
                let (place, length) = (be64(&entry, 48), be32(&entry, 44));
                Fault { committed, kind: (last >> 24) as u8, token, queue: token, place, length }
            }
        })
        .collect()
}

fn answer(pair: &mut Pair, fault: Fault, failed: bool) -> Result<(), EngineError> {
    pair.engine.resume(fault.token, fault.kind, fault.queue, failed)
}

/// Runs for a while without an answer to the fault. The peer retries several times.
fn wait(pair: &mut Pair) {
    let end = pair.now + 50_000;
    pair.settle_over(end, |packets| packets);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Send,
    Receive,
    Write,
    Read,
    ReadInto,
    Add,
    AddInto,
}

const OPERATIONS: [Operation; 7] = [
    Operation::Send,
    Operation::Receive,
    Operation::Write,
    Operation::Read,
    Operation::ReadInto,
    Operation::Add,
    Operation::AddInto,
];

const LENGTH: u32 = 0x2800;

/// Posts an operation of the first QP that accesses the pages of `key`, from the middle of the
/// first page on.
fn post(pair: &mut Pair, operation: Operation, key: u32) {
    let (pinned, at) = (pair.key, PAGE + 0x800);
    let bytes: Vec<u8> = (0..LENGTH).map(|at| at as u8 ^ (at >> 8) as u8).collect();
    match operation {
        Operation::Send => {
            pair.write(at, &bytes);
            pair.post_receive(1, FROM, LENGTH);
            pair.post(0, opcode::SEND, 0, &data(key, at, LENGTH));
        }
        Operation::Receive => {
            pair.write(FROM, &bytes);
            pair.post_receive_with(1, key, at, LENGTH);
            pair.post(0, opcode::SEND, 0, &data(pinned, FROM, LENGTH));
        }
        Operation::Write => {
            pair.write(FROM, &bytes);
            pair.post(0, opcode::WRITE, 0, &[remote(key, at), data(pinned, FROM, LENGTH)].concat());
        }
        Operation::Read => {
            pair.write(at, &bytes);
            pair.post(0, opcode::READ, 0, &[remote(key, at), data(pinned, FROM, LENGTH)].concat());
        }
        Operation::ReadInto => {
            pair.write(FROM, &bytes);
            pair.post(0, opcode::READ, 0, &[remote(pinned, FROM), data(key, at, LENGTH)].concat());
        }
        Operation::Add | Operation::AddInto => {
            let (from, to) = if operation == Operation::Add {
                ((key, at), (pinned, FROM))
            } else {
                ((pinned, FROM), (key, at))
            };
            pair.write(from.1, &41u64.to_le_bytes());
            let operands = [1u64.to_be_bytes(), [0; 8]].concat();
            let body = [remote(from.0, from.1), operands, data(to.0, to.1, 8)].concat();
            pair.post(0, opcode::FETCH_ADD, 0, &body);
        }
    }
}

/// Whether the operation took effect completely and exactly once.
fn done(pair: &mut Pair, operation: Operation) -> bool {
    let (here, there) = (pair.read(FROM, LENGTH as usize), pair.read(PAGE + 0x800, LENGTH as usize));
    match operation {
        Operation::Add | Operation::AddInto => {
            let mut both = [here[0], there[0]];
            both.sort_unstable();
            both == [41, 42]
        }
        _ => here == there && here.iter().enumerate().all(|(at, byte)| *byte == at as u8 ^ (at >> 8) as u8),
    }
}

/// The expected first fault of an operation: type and committed bytes. The other fields are copied
/// from `fault`.
fn expected(pair: &Pair, operation: Operation, fault: Fault) -> Fault {
    let [left, right] = pair.qps;
    let (kind, queue, place, length) = match operation {
        Operation::Send => (SEND, left, 0, 0),
        Operation::ReadInto | Operation::AddInto => (READ_OR_ATOMIC, left, 0, 0),
        Operation::Receive => (RECEIVE, right, 0, 0),
        Operation::Write => (REMOTE_WRITE, fault.token, PAGE + 0x800, LENGTH),
        Operation::Read => (REMOTE, fault.token, PAGE + 0x800, LENGTH),
        Operation::Add => (REMOTE_WRITE, fault.token, PAGE + 0x800, 8),
    };
    Fault { committed: 0, kind, token: fault.token, queue, place, length }
}

#[test]
fn operations_complete_after_page_fault_resume() {
    for operation in OPERATIONS {
        let (mut pair, key) = pair();
        post(&mut pair, operation, key);
        wait(&mut pair);
        assert_eq!(pair.poll(), [], "{operation:?}");
        let [fault] = faults(&mut pair)[..] else { panic!("{operation:?}: {:?}", faults(&mut pair)) };
        assert_eq!(fault, expected(&pair, operation, fault), "{operation:?}");
        // An answer without present pages leads to another fault.
        answer(&mut pair, fault, false).unwrap();
        wait(&mut pair);
        let [_, again] = faults(&mut pair)[..] else { panic!("{operation:?}: {:?}", faults(&mut pair)) };
        assert_eq!(
            Fault { token: 0, queue: 0, ..again },
            Fault { token: 0, queue: 0, ..fault },
            "{operation:?}"
        );
        bring_in(&mut pair, key, READ | WRITE);
        answer(&mut pair, again, false).unwrap();
        pair.settle(|packets| packets);
        assert!(pair.poll().iter().all(|cqe| cqe.syndrome == 0), "{operation:?}");
        assert!(done(&mut pair, operation), "{operation:?}");
        assert_eq!(faults(&mut pair).len(), 2, "{operation:?}");
    }
}

#[test]
fn message_resumes_at_faulting_page() {
    for operation in [Operation::Send, Operation::Receive, Operation::Write, Operation::ReadInto] {
        let (mut pair, key) = pair();
        fill(&mut pair, key, &[PAGE | READ | WRITE, (PAGE + SIZE) | READ | WRITE, 0, 0]);
        post(&mut pair, operation, key);
        wait(&mut pair);
        let [fault] = faults(&mut pair)[..] else { panic!("{operation:?}: {:?}", faults(&mut pair)) };
        // Two packets of 1 KiB from the first page, four of the second.
        assert_eq!(fault.committed, 0x1800, "{operation:?}");
        bring_in(&mut pair, key, READ | WRITE);
        answer(&mut pair, fault, false).unwrap();
        pair.settle(|packets| packets);
        assert!(pair.poll().iter().all(|cqe| cqe.syndrome == 0), "{operation:?}");
        assert!(done(&mut pair, operation), "{operation:?}");
    }
}

#[test]
fn read_only_page_faults_on_write() {
    for operation in OPERATIONS {
        let (mut pair, key) = pair();
        bring_in(&mut pair, key, READ);
        post(&mut pair, operation, key);
        wait(&mut pair);
        let reads = matches!(operation, Operation::Send | Operation::Read);
        assert_eq!(faults(&mut pair).is_empty(), reads, "{operation:?}");
        assert_eq!(done(&mut pair, operation), reads, "{operation:?}");
    }
}

#[test]
fn failed_page_fault_resume_fails_operation() {
    for (operation, ours) in [
        (Operation::Send, Some(0x04)),
        (Operation::ReadInto, Some(0x04)),
        (Operation::AddInto, Some(0x04)),
        (Operation::Receive, Some(0x14)),
        (Operation::Write, Some(0x13)),
        (Operation::Read, Some(0x13)),
        (Operation::Add, Some(0x13)),
    ] {
        let (mut pair, key) = pair();
        post(&mut pair, operation, key);
        wait(&mut pair);
        let [fault] = faults(&mut pair)[..] else { panic!("{operation:?}") };
        answer(&mut pair, fault, true).unwrap();
        pair.settle(|packets| packets);
        let [left, right] = pair.qps;
        let completions = pair.poll();
        let first = |qp: u32| completions.iter().find(|cqe| cqe.qp == qp).map(|cqe| cqe.syndrome);
        assert_eq!(first(left), ours, "{operation:?}");
        assert_eq!(pair.engine.qp_attributes(left).unwrap().0, State::Error, "{operation:?}");
        if operation == Operation::Receive {
            assert_eq!(first(right), Some(0x04));
        }
        // A failure of the requester doesn't affect the responder.
        let untouched = matches!(operation, Operation::Send | Operation::ReadInto | Operation::AddInto);
        let state = pair.engine.qp_attributes(right).unwrap().0;
        assert_eq!(state != State::Error, untouched, "{operation:?}");
    }
}

#[test]
fn page_fault_is_resumed_once() {
    let (mut pair, key) = pair();
    post(&mut pair, Operation::Send, key);
    wait(&mut pair);
    let [fault] = faults(&mut pair)[..] else { panic!() };
    assert_eq!(
        answer(&mut pair, Fault { token: fault.token + 1, ..fault }, false),
        Err(EngineError::Missing)
    );
    assert_eq!(answer(&mut pair, Fault { kind: RECEIVE, ..fault }, false), Err(EngineError::Invalid));
    assert_eq!(
        answer(&mut pair, Fault { queue: fault.queue + 1, ..fault }, false),
        Err(EngineError::Invalid)
    );
    assert_eq!(answer(&mut pair, fault, false), Ok(()));
    assert_eq!(answer(&mut pair, fault, false), Err(EngineError::Missing));
}

#[test]
fn page_fault_resume_after_reset_has_no_effect() {
    for operation in OPERATIONS {
        let (mut pair, key) = pair();
        post(&mut pair, operation, key);
        wait(&mut pair);
        let [fault] = faults(&mut pair)[..] else { panic!("{operation:?}") };
        pair.connect(|_| {});
        post(&mut pair, operation, key);
        wait(&mut pair);
        let [_, second] = faults(&mut pair)[..] else { panic!("{operation:?}: {:?}", faults(&mut pair)) };
        // The reset QP waits for the answer to its new fault. The old answer has no effect.
        answer(&mut pair, fault, true).unwrap();
        bring_in(&mut pair, key, READ | WRITE);
        answer(&mut pair, second, false).unwrap();
        pair.settle(|packets| packets);
        assert!(done(&mut pair, operation), "{operation:?}");
    }
}

#[test]
fn destroying_qp_drops_its_wqe_page_faults() {
    for operation in OPERATIONS {
        let (mut pair, key) = pair();
        post(&mut pair, operation, key);
        wait(&mut pair);
        let [fault] = faults(&mut pair)[..] else { panic!("{operation:?}") };
        for qp in pair.qps {
            pair.engine.destroy_qp(qp).unwrap();
        }
        // The driver doesn't answer faults of a destroyed queue. It answers R_Key faults, which it
        // looks up by number.
        let expected = if fault.kind & REMOTE == 0 { Err(EngineError::Missing) } else { Ok(()) };
        assert_eq!(answer(&mut pair, fault, false), expected, "{operation:?}");
        assert_eq!(pair.engine.core.faults.iter().count(), 0, "{operation:?}");
    }
}

#[test]
fn page_fault_without_eq_fails_access() {
    for (operation, syndrome) in
        [(Operation::Send, 0x04), (Operation::Write, 0x13), (Operation::Receive, 0x14)]
    {
        let (mut pair, key) = pair();
        // Fill the EQ.
        for _ in 0..64 {
            pair.engine.event(EventKind::PortChange, 0, &[0; 28]);
        }
        post(&mut pair, operation, key);
        pair.settle(|packets| packets);
        let left = pair.qps[0];
        let first = pair.poll().into_iter().find(|cqe| cqe.qp == left).map(|cqe| cqe.syndrome);
        assert_eq!(first, Some(syndrome), "{operation:?}");
        assert_eq!(pair.engine.core.faults.iter().count(), 0, "{operation:?}");
    }
}

#[test]
fn null_mkey_entry_takes_page_fault() {
    let (mut pair, key) = pair();
    bring_in(&mut pair, key, READ | WRITE);
    let null = u64::from(NULL_MKEY);
    let table = lay_out(&mut pair, KeyKind::Ksm, &[null, 0, null, 0, null, 0, null, 0]);
    let (pinned, bytes) = (pair.key, [7; 64]);
    pair.write(FROM, &bytes);
    pair.post(0, opcode::WRITE, 0, &[remote(table, PAGE), data(pinned, FROM, 64)].concat());
    wait(&mut pair);
    let [fault] = faults(&mut pair)[..] else { panic!() };
    assert_eq!((fault.kind, fault.place), (REMOTE_WRITE, PAGE));
    fill(&mut pair, table, &[u64::from(key), PAGE, null, 0, null, 0, null, 0]);
    answer(&mut pair, fault, false).unwrap();
    pair.settle(|packets| packets);
    assert_eq!(pair.read(PAGE, 64), bytes);
}

#[test]
fn uc_page_fault_drops_message_and_keeps_receive() {
    let (mut pair, key) = pair_over(Transport::Uc);
    let pinned = pair.key;
    pair.post_receive_with(1, key, PAGE, 0x1000);
    pair.write(FROM, &[5; 0x1000]);
    pair.post(0, opcode::SEND, 0, &data(pinned, FROM, 0x1000));
    wait(&mut pair);
    let [left, right] = pair.qps;
    assert_eq!(pair.poll().iter().map(|cqe| (cqe.qp, cqe.syndrome)).collect::<Vec<_>>(), [(left, 0)]);
    let [fault] = faults(&mut pair)[..] else { panic!() };
    bring_in(&mut pair, key, READ | WRITE);
    answer(&mut pair, fault, false).unwrap();
    pair.post(0, opcode::SEND, 0, &data(pinned, FROM, 0x1000));
    pair.settle(|packets| packets);
    let mut ends: Vec<_> = pair.poll().iter().map(|cqe| (cqe.qp, cqe.syndrome)).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(left, 0), (right, 0)]);
    assert_eq!(pair.read(PAGE, 0x1000), [5; 0x1000]);
}

proptest! {
    /// The driver unmaps and faults in pages under traffic of all operations, over a wire that
    /// loses packets. Every operation completes in order, and every reported fault can be answered.
    #[test]
    fn concurrent_page_faults_preserve_data_and_order(
        which in proptest::collection::vec(0usize..7, 1..8),
        moves in proptest::collection::vec((0u8..16, 0u64..200_000), 1..40),
        lost in proptest::collection::vec(any::<bool>(), 24),
    ) {
        let (mut pair, key) = pair();
        pair.connect(|attributes| attributes.ack_timeout = 8);
        for which in &which {
            post(&mut pair, OPERATIONS[*which], key);
        }
        let (mut seen, mut lost) = (0, lost.into_iter());
        for (pages, time) in moves {
            let entries = [0u64, 1, 2, 3].map(|page| if pages >> page & 1 == 1 { (PAGE + page * SIZE) | 3 } else { 0 });
            fill(&mut pair, key, &entries);
            for fault in faults(&mut pair).split_off(seen) {
                seen += 1;
                // Limits the number of events to the size of the EQ.
                prop_assume!(seen < 50);
                answer(&mut pair, fault, false).unwrap();
            }
            let end = pair.now + time;
            pair.settle_over(end, |mut packets| {
                packets.retain(|_| !lost.next().unwrap_or(false));
                packets
            });
        }
        bring_in(&mut pair, key, READ | WRITE);
        for fault in faults(&mut pair).split_off(seen) {
            answer(&mut pair, fault, false).unwrap();
        }
        pair.settle(|packets| packets);
        let left = pair.qps[0];
        let ends: Vec<_> = pair.poll().into_iter().filter(|cqe| cqe.qp == left).map(|cqe| cqe.syndrome).collect();
        prop_assert_eq!(ends, vec![0; which.len()]);
        prop_assert_eq!(pair.engine.core.faults.iter().count(), 0);
    }
}
