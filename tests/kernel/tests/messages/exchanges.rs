//! Messages, writes and reads in both directions.

use bareverbs::{
    Access, Arm, CompChannel, CqInit, LocalAccess, Mr, Operation, Payload, RecvRequest, SendFlags,
    SendRequest, WcFlags, WcOpcode, WcStatus,
};
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, PATIENCE, Side, contents, domain, pair, region, request, take,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::rounds::{Correspondent, IMM, Player, correspondents, play, players, unhurried};

const ROUNDS: usize = 25;
const LEN: usize = 1024;

pub(crate) fn messages_go_back_and_forth_on_a_reliable_connection() {
    nothing_leaks(|| {
        let mut both = players(&domain(), LEN, Access::LOCAL_WRITE);
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            let received = from.tells(to, Operation::Send, text);
            assert_eq!(received.opcode, WcOpcode::RECV);
            assert!(!received.wc_flags.contains(WcFlags::WITH_IMM));
        });
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            let received = from.tells(to, Operation::SendImm(IMM), text);
            assert_eq!((received.opcode, received.imm_data), (WcOpcode::RECV, IMM));
            assert!(received.wc_flags.contains(WcFlags::WITH_IMM));
        });
    });
}

pub(crate) fn datagrams_go_back_and_forth() {
    nothing_leaks(|| {
        let mut both = correspondents(&domain(), LEN, Access::LOCAL_WRITE);
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            assert!(!from.tells(to, None, text).wc_flags.contains(WcFlags::WITH_IMM));
        });
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            let received = from.tells(to, Some(IMM), text);
            assert!(received.wc_flags.contains(WcFlags::WITH_IMM));
            assert_eq!(received.imm_data, IMM);
        });
    });
}

pub(crate) fn writes_with_immediate_data_go_back_and_forth() {
    nothing_leaks(|| {
        let mut both = players(&domain(), LEN, ALL_REMOTE);
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            let operation = Operation::WriteImm(to.memory.remote(0).unwrap(), IMM);
            let received = from.tells(to, operation, text);
            assert_eq!((received.opcode, received.imm_data), (WcOpcode::RECV_RDMA_WITH_IMM, IMM));
        });
    });
}

pub(crate) fn both_sides_read_and_write() {
    nothing_leaks(|| {
        let mut both = players(&domain(), LEN, ALL_REMOTE);
        play(&mut both, ROUNDS, LEN, write);
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            to.memory.write(0, text).unwrap();
            let operation = Operation::Read(to.memory.remote(0).unwrap());
            let completion = from.does(operation, Payload::Sges(&from.first(text.len())));
            assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::RDMA_READ, LEN as u32));
            assert!(from.holds(text.len()) == text, "other bytes were read");
        });
    });
}

fn write(from: &mut Player, to: &mut Player, text: &[u8]) {
    from.memory.write(0, text).unwrap();
    let operation = Operation::Write(to.memory.remote(0).unwrap());
    let completion = from.does(operation, Payload::Sges(&from.first(text.len())));
    assert_eq!(completion.opcode, WcOpcode::RDMA_WRITE);
    assert!(to.holds(text.len()) == text, "other bytes were written");
}

pub(crate) fn operations_of_no_bytes_complete() {
    nothing_leaks(|| {
        let pd = domain();
        let mut both = players(&pd, 8, ALL_REMOTE);
        play(&mut both, 1, 8, |from, to, text| {
            to.memory.write(0, text).unwrap();
            from.memory.write(0, &[0; 8]).unwrap();
            for payload in [Payload::Sges(&[]), Payload::Sges(&from.first(0)), Payload::Inline(&[])] {
                let remote = to.memory.remote(0).unwrap();
                assert_eq!(from.does(Operation::Write(remote), payload).opcode, WcOpcode::RDMA_WRITE);
                if !matches!(payload, Payload::Inline(_)) {
                    assert_eq!(from.does(Operation::Read(remote), payload).opcode, WcOpcode::RDMA_READ);
                }
                to.side.recv_into(8, 1, &to.first(8));
                from.does(Operation::Send, payload);
                let received = to.side.completions(1)[0];
                assert_eq!((received.status, received.byte_len), (WcStatus::SUCCESS, 0));
            }
            assert_eq!((from.holds(8), to.holds(8)), (vec![0; 8], text.to_vec()), "nothing moved");
        });
        play(&mut correspondents(&pd, 0, Access::LOCAL_WRITE), 2, 0, |from, to, text| {
            from.tells(to, None, text);
        });
    });
}

pub(crate) fn regions_of_relaxed_ordering_carry_the_same() {
    nothing_leaks(|| {
        let pd = domain();
        let access = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
        let mut both = players(&pd, LEN, access);
        play(&mut both, ROUNDS, LEN, |from, to, text| {
            from.tells(to, Operation::Send, text);
        });
        play(&mut players(&pd, LEN, access | Access::REMOTE_WRITE), ROUNDS, LEN, write);
        play(&mut correspondents(&pd, LEN, access), ROUNDS, LEN, |from, to, text| {
            from.tells(to, None, text);
        });
    });
}

/// Posts a receive into all of `to`, and all of `from` as a message for it.
fn carry<A, B>(sides: &mut [Side; 2], from: &Mr<A>, to: &Mr<B>) {
    let [a, b] = sides;
    b.recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(..).unwrap()] }]).unwrap();
    let payload = Payload::Sges(&[from.sge(..).unwrap()]);
    a.send(&[SendRequest { wr_id: 2, operation: Operation::Send, flags: SendFlags::SIGNALED, payload }])
        .unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
}

pub(crate) fn two_regions_lie_in_one_buffer() {
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

        let (a, b) = pair(&pd, unhurried());
        carry(&mut [a, b], &low, &high);
        assert_eq!(contents(&high), [b'a'; PAGE]);
        drop((low, high));
        assert_eq!(memory, [b'a'; 2 * PAGE]);
    });
}

/// Sleeps until the queue with this user data has completions.
fn woken(channel: &CompChannel, user_data: u64) {
    let event = channel.get_event_timeout(PATIENCE).unwrap();
    assert_eq!(event.expect("the completion raises an event").user_data, user_data);
}

pub(crate) fn events_tell_of_every_message_of_a_connection() {
    nothing_leaks(|| {
        let pd = domain();
        let channels = [(); 2].map(|()| pd.context().create_comp_channel().unwrap());
        let mut sides = [0, 1].map(|i| {
            let init = CqInit { channel: Some(&channels[i]), user_data: i as u64, ..CqInit::new(64) };
            Side::on(&pd, unhurried(), pd.context().create_cq(&init).unwrap())
        });
        let numbers = [0, 1].map(|i| sides[i].qp.qp_num());
        sides[0].connect(numbers[1]);
        sides[1].connect(numbers[0]);
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

pub(crate) fn events_tell_of_every_datagram() {
    nothing_leaks(|| {
        let pd = domain();
        let channels = [(); 2].map(|()| pd.context().create_comp_channel().unwrap());
        let mut both = [0, 1].map(|i| {
            let init = CqInit { channel: Some(&channels[i]), user_data: i as u64, ..CqInit::new(64) };
            Correspondent::new(&pd, init, LEN, Access::LOCAL_WRITE)
        });
        let mut turn = 0;
        play(&mut both, ROUNDS / 2, LEN, |from, to, text| {
            let (sender, receiver) = (turn % 2, 1 - turn % 2);
            turn += 1;
            from.cq.arm(Arm::Any).unwrap();
            to.cq.arm(Arm::Any).unwrap();
            to.listen();
            from.post(to, None, text);
            woken(&channels[sender], sender as u64);
            woken(&channels[receiver], receiver as u64);
            let sent = from.cq.poll_one().expect("the event says that there is one");
            let received = to.cq.poll_one().expect("the event says that there is one");
            assert_eq!((sent.wr_id, sent.status, received.wr_id), (7, WcStatus::SUCCESS, 8));
            to.has(&received, from, text);
        });
        assert!(take(&mut both[0].cq, 0).is_empty());
    });
}
