//! Messages, writes and reads in both directions.

use bareverbs::cq::{Arm, CompChannel, CqInit, WcFlags};
use bareverbs::mr::LocalAccess;
use bareverbs::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
use bareverbs::{Access, Mr, WcOpcode, WcStatus};
use bareverbs_kernel_tests::exchange::{
    IMM, RcEndpoint, UdEndpoint, exchange_rounds, long_timeout_plan, rc_endpoints, ud_endpoints,
};
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Side, contents, domain, join, pair, region, request, take,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};

const ROUNDS: usize = 25;
const LEN: usize = 1024;

#[kernel_test]
fn rc_messages_in_both_directions() {
    nothing_leaks(|| {
        let mut both = rc_endpoints(&domain(), LEN, Access::LOCAL_WRITE);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            let received = from.send_to(to, Operation::Send, text);
            assert_eq!(received.opcode, WcOpcode::RECV);
            assert!(!received.wc_flags.contains(WcFlags::WITH_IMM));
        });
        if device::immediates().is_err() {
            return;
        }
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            let received = from.send_to(to, Operation::SendImm(IMM), text);
            assert_eq!((received.opcode, received.imm()), (WcOpcode::RECV, Some(IMM)));
            assert!(received.wc_flags.contains(WcFlags::WITH_IMM));
        });
    });
}

#[kernel_test(device::ib_transports)]
fn datagrams_in_both_directions() {
    nothing_leaks(|| {
        let mut both = ud_endpoints(&domain(), LEN, Access::LOCAL_WRITE);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            assert!(!from.send_to(to, None, text).wc_flags.contains(WcFlags::WITH_IMM));
        });
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            let received = from.send_to(to, Some(IMM), text);
            assert!(received.wc_flags.contains(WcFlags::WITH_IMM));
            assert_eq!(received.imm(), Some(IMM));
        });
    });
}

#[kernel_test(device::immediates)]
fn writes_with_immediate_in_both_directions() {
    nothing_leaks(|| {
        let mut both = rc_endpoints(&domain(), LEN, ALL_REMOTE);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            let operation = Operation::WriteImm(to.memory.remote(0).unwrap(), IMM);
            let received = from.send_to(to, operation, text);
            assert_eq!((received.opcode, received.imm()), (WcOpcode::RECV_RDMA_WITH_IMM, Some(IMM)));
        });
    });
}

#[kernel_test]
fn both_sides_read_and_write() {
    nothing_leaks(|| {
        let mut both = rc_endpoints(&domain(), LEN, ALL_REMOTE);
        exchange_rounds(&mut both, ROUNDS, LEN, write);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            to.memory.write(0, text).unwrap();
            let operation = Operation::Read(to.memory.remote(0).unwrap());
            let completion = from.execute(operation, Payload::Sges(&from.first(text.len())));
            assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::RDMA_READ, LEN as u32));
            assert!(from.bytes(text.len()) == text, "other bytes were read");
        });
    });
}

fn write(from: &mut RcEndpoint, to: &mut RcEndpoint, text: &[u8]) {
    from.memory.write(0, text).unwrap();
    let operation = Operation::Write(to.memory.remote(0).unwrap());
    let completion = from.execute(operation, Payload::Sges(&from.first(text.len())));
    assert_eq!(completion.opcode, WcOpcode::RDMA_WRITE);
    assert!(to.bytes(text.len()) == text, "other bytes were written");
}

#[kernel_test]
fn zero_byte_operations_complete() {
    nothing_leaks(|| {
        let pd = domain();
        let mut both = rc_endpoints(&pd, 8, ALL_REMOTE);
        exchange_rounds(&mut both, 1, 8, |from, to, text| {
            to.memory.write(0, text).unwrap();
            from.memory.write(0, &[0; 8]).unwrap();
            for payload in [Payload::Sges(&[]), Payload::Sges(&from.first(0)), Payload::Inline(&[])] {
                let remote = to.memory.remote(0).unwrap();
                assert_eq!(from.execute(Operation::Write(remote), payload).opcode, WcOpcode::RDMA_WRITE);
                if !matches!(payload, Payload::Inline(_)) {
                    assert_eq!(from.execute(Operation::Read(remote), payload).opcode, WcOpcode::RDMA_READ);
                }
                to.side.recv_into(8, 1, &to.first(8));
                from.execute(Operation::Send, payload);
                let received = to.side.completions(1)[0];
                assert_eq!((received.status, received.byte_len), (WcStatus::SUCCESS, 0));
            }
            assert_eq!((from.bytes(8), to.bytes(8)), (vec![0; 8], text.to_vec()), "nothing moved");
        });
        if device::ib_transports().is_err() {
            return;
        }
        exchange_rounds(&mut ud_endpoints(&pd, 0, Access::LOCAL_WRITE), 2, 0, |from, to, text| {
            from.send_to(to, None, text);
        });
    });
}

#[kernel_test(device::ib_transports)]
fn relaxed_ordering_mrs_work() {
    nothing_leaks(|| {
        let pd = domain();
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        let mut both = rc_endpoints(&pd, LEN, access);
        exchange_rounds(&mut both, ROUNDS, LEN, |from, to, text| {
            from.send_to(to, Operation::Send, text);
        });
        exchange_rounds(&mut rc_endpoints(&pd, LEN, access | Access::REMOTE_WRITE), ROUNDS, LEN, write);
        exchange_rounds(&mut ud_endpoints(&pd, LEN, access), ROUNDS, LEN, |from, to, text| {
            from.send_to(to, None, text);
        });
    });
}

/// Posts a receive into all of `to`, and sends all of `from` to it.
fn carry<A, B>(sides: &mut [Side; 2], from: &Mr<A>, to: &Mr<B>) {
    let [a, b] = sides;
    b.recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(..).unwrap()] }]).unwrap();
    let payload = Payload::Sges(&[from.sge(..).unwrap()]);
    a.send(&[SendRequest { wr_id: 2, operation: Operation::Send, flags: SendFlags::SIGNALED, payload }])
        .unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
}

#[kernel_test]
fn two_mrs_share_one_buffer() {
    const PAGE: usize = 4096;
    nothing_leaks(|| {
        let pd = domain();
        let mut memory = vec![0; 2 * PAGE];
        let start = memory.as_ptr() as u64;
        let (low, high) = memory.split_at_mut(PAGE);
        let mut low = pd.register_borrowed(low, LocalAccess::ReadWrite).unwrap();
        let mut high = pd.register_borrowed(high, LocalAccess::ReadWrite).unwrap();
        assert_ne!(low.lkey(), high.lkey());
        assert_eq!((low.addr(), high.addr()), (start, start + PAGE as u64));
        low.write(0, &[b'a'; PAGE]).unwrap();
        high.write(0, &[b'b'; PAGE]).unwrap();
        assert_eq!((contents(&low), contents(&high)), (vec![b'a'; PAGE], vec![b'b'; PAGE]));

        let (a, b) = pair(&pd, long_timeout_plan());
        carry(&mut [a, b], &low, &high);
        assert_eq!(contents(&high), [b'a'; PAGE]);
        drop((low, high));
        assert_eq!(memory, [b'a'; 2 * PAGE]);
    });
}

/// Sleeps until the CQ with this user data has completions.
fn woken(channel: &CompChannel, user_data: u64) {
    let event = channel.next().wait_timeout(TIMEOUT).transpose().unwrap();
    assert_eq!(event.expect("the completion raises an event").user_data, user_data);
}

#[kernel_test]
fn rc_messages_with_completion_events() {
    nothing_leaks(|| {
        let pd = domain();
        let channels = [(); 2].map(|()| pd.context().create_comp_channel().unwrap());
        let mut sides = [0, 1].map(|i| {
            let init = CqInit { channel: Some(&channels[i]), user_data: i as u64, ..CqInit::new(64) };
            Side::on(&pd, long_timeout_plan(), pd.context().create_cq(&init).unwrap())
        });
        let [a, b] = &mut sides;
        join(a, b);
        let memory = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        for round in 0..ROUNDS {
            let (from, to) = (round % 2, 1 - round % 2);
            sides.iter_mut().for_each(|side| side.cq.arm(Arm::Any).unwrap());
            sides[to].recv_into(8, 1, &[memory.sge(..).unwrap()]);
            let text = (round as u64).to_ne_bytes();
            sides[from].send(&[request(7, Operation::Send, Payload::Inline(&[&text]))]).unwrap();
            for (who, wr_id) in [(from, 7), (to, 8)] {
                woken(&channels[who], who as u64);
                let completion = sides[who].cq.poll_one().expect("the event says that there is one");
                assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::SUCCESS));
            }
            assert_eq!(contents(&memory), text);
        }
        drop(sides);
    });
}

#[kernel_test(device::ib_transports)]
fn datagrams_with_completion_events() {
    nothing_leaks(|| {
        let pd = domain();
        let channels = [(); 2].map(|()| pd.context().create_comp_channel().unwrap());
        let mut both = [0, 1].map(|i| {
            let init = CqInit { channel: Some(&channels[i]), user_data: i as u64, ..CqInit::new(64) };
            UdEndpoint::new(&pd, init, LEN, Access::LOCAL_WRITE)
        });
        let mut turn = 0;
        exchange_rounds(&mut both, ROUNDS / 2, LEN, |from, to, text| {
            let (sender, receiver) = (turn % 2, 1 - turn % 2);
            turn += 1;
            from.cq.arm(Arm::Any).unwrap();
            to.cq.arm(Arm::Any).unwrap();
            to.post_inbox();
            from.post(to, None, text);
            woken(&channels[sender], sender as u64);
            woken(&channels[receiver], receiver as u64);
            let sent = from.cq.poll_one().expect("the event says that there is one");
            let received = to.cq.poll_one().expect("the event says that there is one");
            assert_eq!((sent.wr_id, sent.status, received.wr_id), (7, WcStatus::SUCCESS, 8));
            to.check_received(&received, from, text);
        });
        assert!(take(&mut both[0].cq, 0).is_empty());
    });
}
