//! Requests in each state of a queue pair.

use std::time::{Duration, Instant};

use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_provider::Errno;
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::traits::{CreatedQp, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, Payload, WcOpcode, WcStatus};
use bareverbs_rxe::Rxe;
use bareverbs_uapi::verbs_values::QpState;
use nix::unistd::setfsuid;

use crate::host::Memory;
use crate::pair::{CAP, Pair, poll, push, succeeds, try_poll};

#[kernel_test(device::rxe_abi)]
fn batch_rejected_before_rts_is_never_sent() {
    let mut pair = Pair::unconnected(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let refused = |qp: &mut CreatedQp<Rxe>| {
        for wr_id in [901, 902] {
            push(qp, wr_id, Operation::Send, Payload::Inline(&[b"lost"])).unwrap();
        }
        match qp.sq.ring() {
            Err(DoorbellError::TakenBack(refused)) => assert_eq!(refused.errno, Errno::INVAL),
            other => panic!("{other:?}"),
        }
    };
    refused(&mut pair.client);
    for qp in [&pair.client, &pair.server] {
        pair.host.init(qp);
    }
    refused(&mut pair.client);
    pair.host.ready_to_receive(&pair.client, &pair.server);
    pair.host.ready_to_receive(&pair.server, &pair.client);
    refused(&mut pair.client);
    pair.host.ready_to_send(&pair.client);

    pair.receive(1, &[memory.sge(0, 8)]);
    pair.receive(2, &[memory.sge(8, 8)]);
    pair.send(1, Operation::Send, Payload::Inline(&[b"found"]));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    succeeds(&mut pair.server_cq, 1, WcOpcode::RECV);
    assert_eq!(memory.read(0, 5), b"found");
    pair.send(2, Operation::Send, Payload::Inline(&[b"too"]));
    succeeds(&mut pair.client_cq, 2, WcOpcode::SEND);
    succeeds(&mut pair.server_cq, 2, WcOpcode::RECV);
    assert_eq!(try_poll(&mut pair.client_cq), None);
}

/// Resets both queue pairs, and brings them to RTR.
fn reset_to_rtr(pair: &mut Pair) {
    for qp in [&mut pair.client, &mut pair.server] {
        for _ in 0..2 {
            pair.host.state(qp, QpState::RESET);
        }
        // SAFETY: the kernel has executed two requests to RESET, and no other since.
        unsafe {
            qp.sq.reset();
            qp.rq.as_mut().unwrap().reset();
        }
        pair.host.init(qp);
    }
    pair.host.ready_to_receive(&pair.client, &pair.server);
    pair.host.ready_to_receive(&pair.server, &pair.client);
}

#[kernel_test(device::rxe_abi)]
fn batch_posted_in_rtr_after_reset_is_never_sent() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    for round in 0..20 {
        // The server has no receive: both timers of the client are armed.
        pair.send(1, Operation::Send, Payload::Inline(&[b"early"]));
        std::thread::sleep(Duration::from_millis(round % 4));
        reset_to_rtr(&mut pair);
        pair.receive(2, &[memory.sge(0, 8)]);
        let end = Instant::now() + Duration::from_millis(100);
        while Instant::now() < end {
            push(&mut pair.client, 3, Operation::Send, Payload::Inline(&[b"lost"])).unwrap();
            assert!(matches!(pair.client.sq.ring(), Err(DoorbellError::TakenBack(_))));
        }
        assert_eq!((try_poll(&mut pair.client_cq), try_poll(&mut pair.server_cq)), (None, None));
        for qp in [&pair.client, &pair.server] {
            pair.host.ready_to_send(qp);
        }
        pair.send(4, Operation::Send, Payload::Inline(&[b"found"]));
        succeeds(&mut pair.client_cq, 4, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, 2, WcOpcode::RECV);
        assert_eq!(memory.read(0, 5), b"found");
    }
}

fn flushed(pair: &mut Pair) {
    for wr_id in 1..=3 {
        push(&mut pair.client, wr_id, Operation::Send, Payload::Inline(&[b"x"])).unwrap();
    }
    pair.client.sq.ring().expect("the doorbell is answered in the error state");
    for wr_id in 1..=3 {
        let completion = poll(&mut pair.client_cq);
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::WR_FLUSH_ERR));
    }
}

#[kernel_test(device::rxe_abi)]
fn doorbell_flushes_a_qp_in_err() {
    let mut pair = Pair::new(CAP);
    pair.receive(50, &[]);
    for qp in [&pair.client, &pair.server] {
        pair.host.state(qp, QpState::ERR);
    }
    let completion = poll(&mut pair.server_cq);
    assert_eq!((completion.wr_id, completion.status), (50, WcStatus::WR_FLUSH_ERR));
    flushed(&mut pair);
    flushed(&mut pair);
}

#[kernel_test(device::rxe_abi)]
fn doorbell_rings_for_a_thread_with_other_credentials() {
    let mut pair = Pair::new(CAP);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread only. The kernel refuses its `write()` from now on.
            setfsuid(1.into());
            for wr_id in 1..=2 {
                pair.receive(wr_id, &[]);
                pair.send(wr_id, Operation::Send, Payload::Sges(&[]));
                succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
            }
        });
    });
    // The doorbell stays usable in the other threads.
    pair.receive(3, &[]);
    pair.send(3, Operation::Send, Payload::Sges(&[]));
    succeeds(&mut pair.client_cq, 3, WcOpcode::SEND);
}

#[kernel_test(device::rxe_abi)]
fn qp_works_after_reset() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    for round in 0..5 {
        pair.receive(round, &[memory.sge(0, 8)]);
        pair.receive(99, &[memory.sge(0, 8)]);
        pair.send(round, Operation::Send, Payload::Inline(&[b"again"]));
        succeeds(&mut pair.client_cq, round, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, round, WcOpcode::RECV);
        if round % 2 == 0 {
            pair.host.state(&pair.client, QpState::ERR);
            flushed(&mut pair);
        }
        for qp in [&pair.client, &pair.server] {
            pair.host.state(qp, QpState::RESET);
        }
        while try_poll(&mut pair.server_cq).is_some() {}
        pair.host.connect(&pair.client, &pair.server);
    }
}
