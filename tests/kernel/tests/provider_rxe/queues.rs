//! Capacities and attributes of queues.

use std::io::Read;
use std::os::fd::AsFd;

use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_provider::command;
use bareverbs_provider::request::{CqRequest, CqeSize, QueueMemory, SrqRequest};
use bareverbs_provider::traits::{CompletionQueue, Provider, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, Payload, PushError, RecvRequest, WcOpcode};
use bareverbs_uapi::uverbs::types::QpCap;

use crate::host::Memory;
use crate::pair::{CAP, Pair, push, succeeds};

#[kernel_test(device::rxe_abi)]
fn queue_accepts_exactly_its_capacity() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    assert_eq!((pair.client.cap.max_send_wr, pair.client.cap.max_recv_wr), (15, 15));
    assert_eq!(pair.client_cq.entries, 127);

    let recv = pair.server.rq.as_mut().unwrap();
    for wr_id in 0..15 {
        // SAFETY: the memory stays registered.
        unsafe { recv.push(&RecvRequest { wr_id, sges: &[memory.sge(0, 8)] }) }.unwrap();
    }
    // SAFETY: the request has no SGEs.
    let refusal = unsafe { recv.push(&RecvRequest { wr_id: 15, sges: &[] }) };
    assert_eq!(refusal, Err(PushError::QueueFull { capacity: 15 }));
    recv.ring();

    for wr_id in 0..15 {
        push(&mut pair.client, wr_id, Operation::Send, Payload::Inline(&[b"12345678"])).unwrap();
    }
    let refusal = push(&mut pair.client, 15, Operation::Send, Payload::Inline(&[]));
    assert_eq!(refusal, Err(PushError::QueueFull { capacity: 15 }));
    pair.client.sq.ring().unwrap();
    for wr_id in 0..15 {
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
    }
    for wr_id in 15..30 {
        push(&mut pair.client, wr_id, Operation::Send, Payload::Inline(&[]))
            .expect("all of it is free again");
    }
    pair.client.sq.abort();
}

#[kernel_test(device::rxe_abi)]
fn small_rings_carry_many_messages() {
    let mut pair = Pair::new(QpCap { max_send_wr: 3, max_recv_wr: 3, ..CAP });
    let memory = Memory::new(&pair.host, 4096);
    let (mut sent, mut received, mut posted) = (0u64, 0u64, 0u64);
    while received < 500 {
        while posted < 500 && posted < received + 3 {
            pair.receive(posted, &[memory.sge(8 * (posted % 4) as usize, 8)]);
            posted += 1;
        }
        let from = sent;
        while sent < posted {
            push(&mut pair.client, sent, Operation::Send, Payload::Inline(&[&sent.to_ne_bytes()])).unwrap();
            sent += 1;
        }
        pair.client.sq.ring().unwrap();
        for wr_id in from..sent {
            succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
            succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
            assert_eq!(memory.read(8 * (wr_id % 4) as usize, 8), wr_id.to_ne_bytes());
            received += 1;
        }
    }
}

#[kernel_test(device::rxe_abi)]
fn armed_cq_raises_one_event() {
    let mut pair = Pair::unconnected(CAP);
    let channel = command::create_comp_channel(&pair.host.file).unwrap();
    let request = CqRequest {
        entries: 10,
        user_handle: 0x1234,
        channel: Some(channel.as_fd()),
        vector: 0,
        compressed: false,
        cqe_size: CqeSize::Bytes64,
        flags: bareverbs_uapi::write::types::CqCreateFlags::empty(),
        memory: QueueMemory::BasePages,
    };
    // SAFETY: rxe keeps a ring's pages as long as its object, mapped or not, and no request is
    // posted to the queues dropped here.
    pair.server_cq = unsafe { pair.host.rxe.create_cq(&request) }.unwrap();
    pair.server = pair.host.qp(&pair.server_cq, None, CAP);
    pair.host.connect(&pair.client, &pair.server);

    pair.server_cq.queue.arm(false).unwrap();
    for wr_id in 0..2 {
        pair.receive(wr_id, &[]);
        pair.send(wr_id, Operation::Send, Payload::Inline(&[]));
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
    }
    let mut event = [0; 64];
    let read = std::fs::File::from(channel).read(&mut event).unwrap();
    assert_eq!((read, &event[..8]), (8, &0x1234u64.to_ne_bytes()[..]), "one event, with the queue's number");
}

#[kernel_test(device::rxe_abi)]
fn srq_receives_messages_of_a_connection() {
    let mut pair = Pair::unconnected(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let request = SrqRequest {
        pd: pair.host.pd,
        max_wr: 20,
        max_sge: 2,
        limit: 0,
        memory: QueueMemory::BasePages,
        user_handle: 0,
        xrc: None,
    };
    // SAFETY: rxe keeps a ring's pages as long as its object, mapped or not, and all posted
    // requests are complete when the test drops the queue.
    let mut srq = unsafe { pair.host.rxe.create_srq(&request) }.unwrap();
    assert_eq!((srq.max_wr, srq.max_sge), (31, 2));
    pair.server = pair.host.qp(&pair.server_cq, Some(srq.handle), CAP);
    assert!(pair.server.rq.is_none() && pair.server.cap.max_recv_wr == 0);
    pair.host.connect(&pair.client, &pair.server);
    for wr_id in 0..31 {
        let sges = [memory.sge(0, 2), memory.sge(16, 8)];
        // SAFETY: the memory stays registered.
        unsafe { srq.queue.push(&RecvRequest { wr_id, sges: &sges }) }.unwrap();
    }
    // SAFETY: the request has no SGEs.
    let refusal = unsafe { srq.queue.push(&RecvRequest { wr_id: 31, sges: &[] }) };
    assert_eq!(refusal, Err(PushError::QueueFull { capacity: 31 }));
    srq.queue.ring();
    for wr_id in 0..31 {
        pair.send(wr_id, Operation::Send, Payload::Inline(&[b"shared"]));
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::SEND);
        succeeds(&mut pair.server_cq, wr_id, WcOpcode::RECV);
        assert_eq!((memory.read(0, 2), memory.read(16, 4)), (b"sh".to_vec(), b"ared".to_vec()));
    }
}
