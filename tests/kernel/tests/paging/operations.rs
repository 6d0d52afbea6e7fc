//! All operations, on regions with discarded pages.

use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::qp::{Operation, Payload, RecvRequest};
use bareverbs::{Access, WcOpcode, WcStatus};
use bareverbs_kernel_tests::exchange::{
    RcEndpoint, exchange_rounds, long_timeout_plan, rc_endpoints, ud_endpoints,
};
use bareverbs_kernel_tests::loopback::{contents, region, request};
use bareverbs_kernel_tests::{Outcome, kernel_test, loopback, skip};

use super::{LEN, ON_DEMAND, PAGE, ROUNDS, evict_pages, faults_await, on_demand, passed};

#[kernel_test]
fn odp_messages_survive_page_reclaim() -> Outcome {
    on_demand(|pd| {
        exchange_rounds(&mut rc_endpoints(pd, LEN, ON_DEMAND), ROUNDS, LEN, |from, to, text| {
            faults_await(from, to);
            from.send_to(to, Operation::Send, text);
        });
        passed()
    })
}

#[kernel_test]
fn datagrams_are_sent_from_odp_mr() -> Outcome {
    on_demand(|pd| {
        exchange_rounds(
            &mut ud_endpoints(pd, LEN, Access::LOCAL_WRITE | Access::ON_DEMAND),
            ROUNDS,
            LEN,
            |from, to, text| {
                evict_pages(&from.memory);
                from.send_to(to, None, text);
            },
        );
        passed()
    })
}

#[kernel_test]
fn odp_and_pinned_sges_form_one_message() -> Outcome {
    on_demand(|pd| {
        let mut both = rc_endpoints(pd, LEN, ON_DEMAND);
        let pinned = [(); 2].map(|()| region(pd, &[0; 500], Access::LOCAL_WRITE));
        let [mut from_pinned, mut to_pinned] = pinned;
        exchange_rounds(&mut both, ROUNDS, LEN + 500, |from, to, text| {
            faults_await(from, to);
            let (start, end) = text.split_at(LEN);
            from.memory.write(0, start).unwrap();
            from_pinned.write(0, end).unwrap();
            let sges = [to.first(LEN)[0], to_pinned.sge(..).unwrap()];
            to.side.recv(&[RecvRequest { wr_id: 8, sges: &sges }]).unwrap();
            from.execute(Operation::Send, Payload::Sges(&[from.first(LEN)[0], from_pinned.sge(..).unwrap()]));
            let received = to.side.completions(1)[0];
            assert_eq!((received.status, received.byte_len as usize), (WcStatus::SUCCESS, text.len()));
            assert!(to.bytes(LEN) == start && contents(&to_pinned) == end, "other bytes arrived");
            std::mem::swap(&mut from_pinned, &mut to_pinned);
        });
        passed()
    })
}

fn writes(from: &mut RcEndpoint, to: &mut RcEndpoint, text: &[u8]) {
    faults_await(from, to);
    from.memory.write(0, text).unwrap();
    from.execute(Operation::Write(to.memory.remote(0).unwrap()), Payload::Sges(&from.first(LEN)));
    assert!(to.bytes(LEN) == text, "other bytes were written");
}

#[kernel_test]
fn odp_mr_is_read_and_written() -> Outcome {
    on_demand(|pd| {
        let mut both = rc_endpoints(pd, LEN, ON_DEMAND);
        exchange_rounds(&mut both, ROUNDS, LEN, writes);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            faults_await(from, to);
            to.memory.write(0, text).unwrap();
            from.execute(Operation::Read(to.memory.remote(0).unwrap()), Payload::Sges(&from.first(LEN)));
            assert!(from.bytes(LEN) == text, "other bytes were read");
        });
        passed()
    })
}

#[kernel_test]
fn atomics_reach_odp_mr() -> Outcome {
    on_demand(|pd| {
        exchange_rounds(&mut rc_endpoints(pd, LEN, ON_DEMAND), ROUNDS, 8, |from, to, text| {
            let number = u64::from_ne_bytes(text.try_into().unwrap());
            let remote = to.memory.remote(0).unwrap();
            // Discarded pages are zero afterwards.
            for (operation, after) in [
                (Operation::FetchAdd { remote, add: number }, number),
                (Operation::CmpSwp { remote, compare: 0, swap: number }, number),
                (Operation::CmpSwp { remote, compare: 1, swap: number }, 0),
            ] {
                faults_await(from, to);
                from.memory.write(0, text).unwrap();
                from.execute(operation, Payload::Sges(&from.first(8)));
                assert_eq!(from.bytes(8), [0; 8], "{operation:?}: what was there before");
                assert_eq!(to.bytes(8), after.to_ne_bytes(), "{operation:?}: what is there now");
            }
        });
        passed()
    })
}

#[kernel_test]
fn atomic_write_reaches_odp_mr() -> Outcome {
    on_demand(|pd| {
        if !pd.context().capabilities().atomic_write {
            return skip("no atomic writes");
        }
        exchange_rounds(&mut rc_endpoints(pd, LEN, ON_DEMAND), ROUNDS, 8, |from, to, text| {
            faults_await(from, to);
            let remote = to.memory.remote(LEN - 8).unwrap();
            let write = Operation::AtomicWrite { remote, value: text.try_into().unwrap() };
            assert_eq!(from.execute(write, Payload::Sges(&[])).opcode, WcOpcode::ATOMIC_WRITE);
            assert_eq!(to.bytes(LEN)[LEN - 8..], *text);
        });
        passed()
    })
}

#[kernel_test]
fn odp_mr_is_flushed() -> Outcome {
    on_demand(|pd| {
        if !pd.context().capabilities().flush {
            return skip("no flushes");
        }
        let access = ON_DEMAND | Access::FLUSH_GLOBAL;
        let plan = loopback::Plan { access, ..long_timeout_plan() };
        let (a, b) = loopback::pair(pd, plan);
        let mut both = [a, b].map(|side| RcEndpoint { side, memory: region(pd, &vec![0; LEN], access) });
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            writes(from, to, text);
            let remote = to.memory.remote(0).unwrap();
            let placement = PlacementType::GLOBAL;
            for (length, level) in [
                (LEN as u32, SelectivityLevel::RANGE),
                (0, SelectivityLevel::MR),
                (12_345_678, SelectivityLevel::MR),
            ] {
                let flush = Operation::Flush { remote, length, placement, level };
                from.side.send(&[request(9, flush, Payload::Sges(&[]))]).unwrap();
                assert_eq!(from.side.ends(1), [(9, WcStatus::SUCCESS)], "{length} bytes, {level:?}");
            }
            assert!(to.bytes(LEN) == text);
        });
        passed()
    })
}

#[kernel_test]
fn odp_mr_is_written_at_any_offset() -> Outcome {
    on_demand(|pd| {
        let [mut from, mut to] = rc_endpoints(pd, 2 * PAGE, ON_DEMAND);
        let text: Vec<u8> = (1..=200).collect();
        // Within a page, and across a page boundary.
        for offset in [100, PAGE - 100] {
            faults_await(&from, &to);
            from.memory.write(0, &text).unwrap();
            let write = Operation::Write(to.memory.remote(offset).unwrap());
            from.execute(write, Payload::Sges(&from.first(text.len())));
            let holds = to.bytes(2 * PAGE);
            if holds[offset..][..text.len()] != text {
                // `__rxe_odp_mr_copy` of 7.2 ignores the offset in the page and the offset in the
                // data.
                let first = if offset == 100 { &text[..] } else { &text[..100] };
                assert!(
                    holds[..first.len()] == *first,
                    "neither where they belong nor where Soft-RoCE puts them"
                );
                return skip("this kernel's Soft-RoCE writes to the start of the page");
            }
            to.memory.write(0, &[0; 2 * PAGE]).unwrap();
        }
        passed()
    })
}
