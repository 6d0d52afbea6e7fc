use bareverbs::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
use bareverbs::{Access, Buffer, Imm, WcOpcode, WcStatus};
use bareverbs_kernel_tests::kernel_test;

use crate::pair::{End, contents, message, pair, region};

#[kernel_test]
fn message_arrives_with_its_length() {
    let (pd, mut a, mut b) = pair();
    let (source, target) = (region(&pd, b"hello, bob"), region(&pd, &[0; 64]));
    b.recv(1, &target);
    a.send(&message(2, Payload::Sges(&[source.sge(..).unwrap()])));
    let sent = a.completion();
    assert_eq!((sent.wr_id, sent.opcode, sent.qp_num), (2, WcOpcode::SEND, a.qp.qp_num()));
    let received = b.completion();
    assert_eq!((received.wr_id, received.opcode, received.byte_len), (1, WcOpcode::RECV, 10));
    assert_eq!(received.qp_num, b.qp.qp_num());
    assert_eq!(&contents(&target)[..12], b"hello, bob\0\0");
}

#[kernel_test]
fn immediate_data_arrives_as_sent() {
    let (pd, mut a, mut b) = pair();
    let target = region(&pd, &[0; 8]);
    b.recv(1, &target);
    b.recv(2, &target);
    let request = |wr_id, operation| SendRequest {
        wr_id,
        operation,
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(&[b"imm"]),
    };
    a.send(&request(3, Operation::SendImm(Imm(0x1234_5678))));
    a.send(&request(4, Operation::WriteImm(target.remote(4).unwrap(), Imm(77))));
    let [first, second] = b.completions(2)[..] else { unreachable!() };
    assert_eq!((first.opcode, first.imm()), (WcOpcode::RECV, Some(Imm(0x1234_5678))));
    assert_eq!((second.opcode, second.imm()), (WcOpcode::RECV_RDMA_WITH_IMM, Some(Imm(77))));
    assert_eq!((first.byte_len, second.byte_len), (3, 3));
    assert_eq!(contents(&target), b"imm\0imm\0");
}

#[kernel_test]
fn inline_data_may_change_after_posting() {
    let (pd, mut a, mut b) = pair();
    let target = region(&pd, &[0; 8]);
    b.recv(1, &target);
    let mut bytes = *b"before";
    let mut batch = a.qp.start_send();
    batch.send_inline(2, &bytes, SendFlags::SIGNALED).unwrap();
    bytes.copy_from_slice(b"after!");
    batch.ring().unwrap();
    a.completion();
    b.completion();
    assert_eq!(&contents(&target)[..6], b"before");
}

#[kernel_test]
fn reads_writes_and_atomics_change_only_their_target() {
    let (pd, mut a, _b) = pair();
    let local = region(&pd, b"abcdefgh");
    let remote = region(&pd, &[0; 16]);
    let sge = [local.sge(..).unwrap()];
    let mut run = |operation, flags| {
        a.send(&SendRequest {
            wr_id: 1,
            operation,
            flags: flags | SendFlags::SIGNALED,
            payload: Payload::Sges(&sge),
        });
        a.completion().opcode
    };
    let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let none = SendFlags::empty();

    assert_eq!(run(Operation::Write(remote.remote(8).unwrap()), none), WcOpcode::RDMA_WRITE);
    assert_eq!(contents(&remote), b"\0\0\0\0\0\0\0\0abcdefgh");

    assert_eq!(run(Operation::Read(remote.remote(0).unwrap()), none), WcOpcode::RDMA_READ);
    assert_eq!(contents(&local), [0; 8]);

    let add = Operation::FetchAdd { remote: remote.remote(0).unwrap(), add: 5 };
    assert_eq!(run(add, none), WcOpcode::FETCH_ADD);
    assert_eq!(run(add, SendFlags::FENCE), WcOpcode::FETCH_ADD);
    assert_eq!(number(&contents(&local)), 5, "the value before the second addition");
    assert_eq!(number(&contents(&remote)[..8]), 10);

    let swap = |compare| Operation::CmpSwp { remote: remote.remote(0).unwrap(), compare, swap: 99 };
    assert_eq!(run(swap(11), none), WcOpcode::COMP_SWAP);
    assert_eq!((number(&contents(&local)), number(&contents(&remote)[..8])), (10, 10), "it was not 11");
    assert_eq!(run(swap(10), none), WcOpcode::COMP_SWAP);
    assert_eq!((number(&contents(&local)), number(&contents(&remote)[..8])), (10, 99));
}

#[kernel_test]
fn three_sges_of_two_mrs_arrive_in_two_sges() {
    let (pd, mut a, mut b) = pair();
    let (one, two) = (region(&pd, b"-abc-def-"), region(&pd, b"123456"));
    let (head, tail) = (region(&pd, &[b'.'; 6]), region(&pd, &[b'.'; 8]));
    let targets = [head.sge(1..6).unwrap(), tail.sge(2..).unwrap()];
    // SAFETY: the regions exist until the message has arrived.
    unsafe { b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &targets }]) }.unwrap();
    let sources = [one.sge(1..4).unwrap(), two.sge(1..5).unwrap(), one.sge(5..8).unwrap()];
    a.send(&message(2, Payload::Sges(&sources)));
    a.completion();
    assert_eq!(b.completion().byte_len, 10);
    assert_eq!(contents(&head), b".abc23");
    assert_eq!(contents(&tail), b"..45def.");
}

#[kernel_test]
fn mr_is_addressed_by_its_iova() {
    let (pd, mut a, _b) = pair();
    let source = region(&pd, b"renamed!");
    let mut target = Buffer::zeroed(4096).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: the buffer outlives the region and is not read while the region exists.
    let named =
        unsafe { pd.register_raw(target.as_mut_ptr(), 4096, Some(0x7000_0000_0000), access) }.unwrap();
    assert_eq!((named.addr(), named.remote(16).unwrap().addr), (0x7000_0000_0000, 0x7000_0000_0010));
    a.send(&SendRequest {
        wr_id: 1,
        operation: Operation::Write(named.remote(16).unwrap()),
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&[source.sge(..).unwrap()]),
    });
    a.completion();
    drop(named);
    assert_eq!(&target[16..24], b"renamed!");
}

#[kernel_test]
fn message_of_one_megabyte_arrives() {
    let (pd, mut a, mut b) = pair();
    let bytes: Vec<u8> =
        (0..1_u32 << 18).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    let (source, target) = (region(&pd, &bytes), region(&pd, &vec![0; bytes.len()]));
    b.recv(1, &target);
    a.send(&message(2, Payload::Sges(&[source.sge(..).unwrap()])));
    a.completion();
    assert_eq!(b.completion().byte_len as usize, bytes.len());
    assert!(contents(&target) == bytes, "the bytes differ");
}

#[kernel_test]
fn split_halves_work_on_two_threads() {
    const MESSAGES: u64 = 200;
    let (pd, mut a, mut b) = pair();
    let targets: Vec<_> = (0..8).map(|_| region(&pd, &[0; 8])).collect();
    let post = |end: &mut End, index: u64| end.recv(index, &targets[index as usize % 8]);
    for index in 0..8 {
        post(&mut b, index);
    }
    std::thread::scope(|scope| {
        let (mut send, _recv) = a.qp.split();
        let cq = &mut a.cq;
        scope.spawn(move || {
            for number in 0..MESSAGES {
                let mut batch = send.start_send();
                batch.send_inline(number, &number.to_ne_bytes(), SendFlags::SIGNALED).unwrap();
                batch.ring().unwrap();
                let completion = loop {
                    if let Some(completion) = cq.poll_one() {
                        break completion;
                    }
                };
                assert_eq!((completion.status, completion.wr_id), (WcStatus::SUCCESS, number));
            }
        });
        for number in 0..MESSAGES {
            assert_eq!(b.completion().wr_id, number);
            assert_eq!(contents(&targets[number as usize % 8]), number.to_ne_bytes());
            post(&mut b, number + 8);
        }
    });
}
