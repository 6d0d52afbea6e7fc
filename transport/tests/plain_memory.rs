//! The transport on a device of plain memory: messages over a sound and a faulty wire.

mod plain;

use std::time::Duration;

use bareverbs_transport::packet::{Operation, Transport};
use bareverbs_transport::{Action, FaultInjector, Faults, Service, State, Status};
use plain::{Completion, KEY, Local, Pair, Request};
use proptest::prelude::*;

const FROM: u64 = 0x1000;
const TO: u64 = 0x8000;
const SEND: Action<Local> = Action::Send { immediate: false, invalidate: false };

fn pattern(length: u32, seed: u32) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive() {
    for transport in [Transport::Rc, Transport::Uc] {
        for length in [0, 1, 255, 256, 257, 3000] {
            let mut pair = Pair::new(Service::Connected(transport));
            pair.write(0, FROM as usize, &pattern(length, 1));
            pair.post_receive(1, 9, TO, 4096);
            pair.post(0, SEND, FROM, 0, length);
            pair.post(0, Action::Write { immediate: false }, FROM, TO + 0x2000, length);
            pair.settle(|_| {});
            for at in [TO, TO + 0x2000] {
                assert_eq!(pair.read(1, at as usize, length as usize), pattern(length, 1));
            }
            assert_eq!(pair.take_completions(0), [Completion::Send(0, Ok(())), Completion::Send(1, Ok(()))]);
            let last = if length <= pair.mtu { Operation::SendOnly } else { Operation::SendLast };
            assert_eq!(pair.take_completions(1), [Completion::Receive(9, Ok((last, length)))]);
        }
    }
}

#[test]
fn datagram_is_preceded_by_its_ip_header() {
    let mut pair = Pair::new(Service::Datagram(None));
    pair.write(0, FROM as usize, &pattern(100, 2));
    pair.post_receive(1, 1, TO, 140);
    pair.post_receive(1, 2, TO, 139);
    for _ in 0..2 {
        let mut request = Request { action: SEND, signaled: true, ..Request::default() };
        request.bytes = pattern(100, 2);
        request.segments.push(bareverbs_transport::Segment::Inline { at: 0, length: 100 });
        request.length = 100;
        (request.address.qp, request.address.qkey) = (0x11, 0x1111);
        pair.post_request(0, request);
    }
    pair.settle(|_| {});
    assert_eq!(pair.read(1, TO as usize + 40, 100), pattern(100, 2));
    assert_eq!(pair.read(1, TO as usize + 20, 1), [0x45]);
    let arrived = Completion::Receive(1, Ok((Operation::SendOnly, 140)));
    assert_eq!(pair.take_completions(1), [arrived, Completion::Receive(2, Err(Status::LocalLength))]);
}

#[test]
fn local_operations_run_in_the_order_of_the_queue() {
    let mut pair = Pair::rc();
    for action in [
        Action::Local(Local::Nop),
        Action::Write { immediate: false },
        Action::Local(Local::Invalidate(KEY)),
        Action::Write { immediate: false },
    ] {
        pair.post(0, action, FROM, TO, 8);
    }
    pair.settle(|_| {});
    let failed = Completion::Send(3, Err(Status::LocalProtection));
    let done = |index| Completion::Send(index, Ok(()));
    assert_eq!(pair.take_completions(0), [done(0), done(1), done(2), failed]);
    assert_eq!((pair.state(0), pair.state(1)), (State::Error, State::ReadyToSend));
}

#[test]
fn access_to_an_unknown_key_moves_both_sides_to_error() {
    let mut pair = Pair::rc();
    pair.sides[1].device.keys.clear();
    pair.post(0, Action::Write { immediate: false }, FROM, TO, 8);
    pair.post(0, Action::Read, FROM, TO, 8);
    pair.settle(|_| {});
    let failures =
        [Completion::Send(0, Err(Status::RemoteAccess)), Completion::Send(1, Err(Status::Flushed))];
    assert_eq!(pair.take_completions(0), failures);
    assert_eq!((pair.state(0), pair.state(1)), (State::Error, State::Error));
    assert_eq!(pair.sides[1].device.events, [bareverbs_transport::Event::AccessError]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_operation_executes_once_and_in_order_over_a_faulty_wire(
        seed: u64,
        operations in proptest::collection::vec((0u8..4, 1u32..1500), 1..20),
    ) {
        let mut pair = Pair::rc();
        let faults = Faults { loss: 50, duplication: 50, reordering: 50, seed, ..Faults::default() };
        let mut injector = FaultInjector::new(faults);
        pair.write(0, FROM as usize, &pattern(1500, 3));
        let mut adds = 0;
        for (index, &(kind, length)) in operations.iter().enumerate() {
            match kind {
                0 => {
                    pair.post_receive(1, index as u64, TO, 1500);
                    pair.post(0, SEND, FROM, 0, length);
                }
                1 => pair.post(0, Action::Write { immediate: false }, FROM, TO, length),
                2 => pair.post(0, Action::Read, 0x4000, TO, length),
                _ => {
                    let mut add = Request {
                        action: Action::Atomic { add: true, masks: None },
                        signaled: true,
                        remote: (0, KEY),
                        swap_or_add: 1,
                        length: 8,
                        ..Request::default()
                    };
                    add.segments.push(bareverbs_transport::Segment::Memory(bareverbs_transport::Sge {
                        key: KEY, address: 0x4000, length: 8,
                    }));
                    pair.post_request(0, add);
                    adds += 1;
                }
            }
        }
        pair.settle(|packets| injector.pass(packets, &mut Vec::<(Duration, _)>::new()));
        let done: Vec<_> = (0..operations.len()).map(|index| Completion::Send(index, Ok(()))).collect();
        prop_assert_eq!(pair.take_completions(0), done);
        let received: Vec<_> = pair.take_completions(1).into_iter().map(|completion| match completion {
            Completion::Receive(wqe, Ok((_, length))) => (wqe, length),
            other => panic!("{other:?}"),
        }).collect();
        let sent: Vec<_> = operations.iter().enumerate()
            .filter(|(_, (kind, _))| *kind == 0)
            .map(|(index, (_, length))| (index as u64, *length))
            .collect();
        prop_assert_eq!(received, sent);
        prop_assert_eq!(pair.read(1, 0, 8), u64::to_le_bytes(adds));
    }
}
