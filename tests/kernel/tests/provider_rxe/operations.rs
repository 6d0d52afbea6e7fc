//! The operations.

use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_provider::traits::CompletionQueue;
use bareverbs_provider::work::{Imm, Operation, Payload, WcOpcode};
use bareverbs_uapi::uverbs::types::QpCap;

use crate::host::Memory;
use crate::pair::{CAP, Pair, succeeds};

#[kernel_test(device::rxe_abi)]
fn every_operation_moves_its_bytes() {
    let mut pair = Pair::new(CAP);
    let (local, remote) = (Memory::new(&pair.host, 8192), Memory::new(&pair.host, 8192));
    local.write(0, b"from the client");
    remote.write(4096, b"from the server");
    let bytes = [local.sge(0, 15)];

    pair.receive(100, &[remote.sge(0, 64)]);
    pair.send(1, Operation::Send, Payload::Sges(&bytes));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    let received = succeeds(&mut pair.server_cq, 100, WcOpcode::RECV);
    assert_eq!((received.byte_len, received.qp_num), (15, pair.server.qp_num));
    assert_eq!(remote.read(0, 16), b"from the client\0");

    pair.receive(101, &[remote.sge(64, 64)]);
    pair.send(2, Operation::SendImm(Imm(0x0102_0304)), Payload::Inline(&[b"with ", b"data"]));
    succeeds(&mut pair.client_cq, 2, WcOpcode::SEND);
    pair.server_cq.queue.release();
    let received = succeeds(&mut pair.server_cq, 101, WcOpcode::RECV);
    assert_eq!((received.byte_len, received.imm()), (9, Some(Imm(0x0102_0304))));
    assert_eq!(remote.read(64, 9), b"with data");

    pair.send(3, Operation::Write(remote.remote(128)), Payload::Sges(&bytes));
    succeeds(&mut pair.client_cq, 3, WcOpcode::RDMA_WRITE);
    assert_eq!(remote.read(128, 15), b"from the client");

    pair.receive(102, &[]);
    pair.send(4, Operation::WriteImm(remote.remote(192), Imm(7)), Payload::Sges(&bytes));
    succeeds(&mut pair.client_cq, 4, WcOpcode::RDMA_WRITE);
    let received = succeeds(&mut pair.server_cq, 102, WcOpcode::RECV_RDMA_WITH_IMM);
    assert_eq!((received.byte_len, received.imm()), (15, Some(Imm(7))));
    assert_eq!(remote.read(192, 15), b"from the client");

    pair.send(
        5,
        Operation::Read(remote.remote(4096)),
        Payload::Sges(&[local.sge(1024, 5), local.sge(2048, 10)]),
    );
    let read = succeeds(&mut pair.client_cq, 5, WcOpcode::RDMA_READ);
    assert_eq!(read.byte_len, 15);
    assert_eq!((local.read(1024, 5), local.read(2048, 10)), (b"from ".to_vec(), b"the server".to_vec()));

    remote.write(512, &40u64.to_ne_bytes());
    let old = [local.sge(3072, 8)];
    pair.send(6, Operation::FetchAdd { remote: remote.remote(512), add: 2 }, Payload::Sges(&old));
    succeeds(&mut pair.client_cq, 6, WcOpcode::FETCH_ADD);
    assert_eq!(
        (local.read(3072, 8), remote.read(512, 8)),
        (40u64.to_ne_bytes().into(), 42u64.to_ne_bytes().into())
    );

    for (wr_id, compare, expected) in [(7, 41, 42u64), (8, 42, 99)] {
        let swap = Operation::CmpSwp { remote: remote.remote(512), compare, swap: 99 };
        pair.send(wr_id, swap, Payload::Sges(&old));
        succeeds(&mut pair.client_cq, wr_id, WcOpcode::COMP_SWAP);
        assert_eq!(local.read(3072, 8), 42u64.to_ne_bytes());
        assert_eq!(remote.read(512, 8), expected.to_ne_bytes());
    }
}

#[kernel_test(device::rxe_abi)]
fn sges_of_several_mrs_are_gathered_and_scattered_in_order() {
    let mut pair = Pair::new(QpCap { max_send_sge: 3, ..CAP });
    let (one, other) = (Memory::new(&pair.host, 8192), Memory::new(&pair.host, 8192));
    let bytes: Vec<u8> = (0..3000u32).map(|i| (i * 7) as u8).collect();
    one.write(10, &bytes[..1000]);
    other.write(20, &bytes[1000..1001]);
    one.write(5000, &bytes[1001..]);
    pair.receive(2, &[other.sge(4096, 2500), one.sge(2048, 600)]);
    let gather = [one.sge(10, 1000), other.sge(20, 1), one.sge(5000, 1999)];
    pair.send(1, Operation::Send, Payload::Sges(&gather));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    assert_eq!(succeeds(&mut pair.server_cq, 2, WcOpcode::RECV).byte_len, 3000);
    assert_eq!(other.read(4096, 2500), bytes[..2500]);
    assert_eq!(one.read(2048, 500), bytes[2500..]);
}

#[kernel_test(device::rxe_abi)]
fn inline_data_needs_no_sge_and_no_mr() {
    // Kernels that check a request's SGEs during execution reject inline data on a queue with
    // max_send_sge 0. The provider's queues have at least one.
    let mut pair = Pair::new(QpCap { max_send_sge: 0, max_inline_data: 8, ..CAP });
    let memory = Memory::new(&pair.host, 4096);
    assert!(pair.client.cap.max_inline_data >= 8);
    pair.receive(2, &[memory.sge(0, 64)]);
    pair.send(1, Operation::Send, Payload::Inline(&[b"8 bytes."]));
    succeeds(&mut pair.client_cq, 1, WcOpcode::SEND);
    succeeds(&mut pair.server_cq, 2, WcOpcode::RECV);
    assert_eq!(memory.read(0, 8), b"8 bytes.");
}
