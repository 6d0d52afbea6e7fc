//! Each operation between rxe and a soft device, in both directions: the bytes and the completions.

use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::mw::MwType;
use bareverbs::qp::Operation;
use bareverbs::values::Mtu;
use bareverbs::{Access, Imm, WcOpcode, WcStatus};
use bareverbs_test_support::{Completion, Outcome, device, kernel_test, skip};

use crate::host::{Hosts, Ip, Peer};

const MTUS: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];
const IMM: Imm = Imm(0x8765_4321);
/// Bytes around the payload, which must stay as they are. Odd, so that addresses are unaligned.
const MARGIN: usize = 13;
const LARGE: usize = 1 << 20;
/// What memory holds where nothing was received.
const UNTOUCHED: u8 = 0xee;

/// Sizes of messages around the path MTU.
fn sizes(mtu: Mtu) -> [usize; 8] {
    let mtu = mtu.bytes() as usize;
    [0, 1, 7, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5]
}

/// Bytes that differ from message to message, and from offset to offset.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(7) ^ (at >> 8).wrapping_mul(31) ^ seed.wrapping_mul(101)) as u8 | 1)
        .collect()
}

/// Both peers, the requester first. The devices swap roles.
fn each_direction(peers: &mut [Peer; 2], mut run: impl FnMut(&mut Peer, &mut Peer)) {
    let [a, b] = peers;
    run(a, b);
    run(b, a);
}

/// Asserts that the memory holds the data at [`MARGIN`], and is untouched around it.
#[track_caller]
fn expect_data(memory: &Peer, data: &[u8], what: &str) {
    let mut bytes = vec![0; MARGIN + data.len() + MARGIN];
    memory.memory.read(0, &mut bytes).expect("the memory is longer");
    let (before, rest) = bytes.split_at(MARGIN);
    let (found, after) = rest.split_at(data.len());
    if let Some(at) = found.iter().zip(data).position(|(found, wanted)| found != wanted) {
        panic!("{what}: byte {at} of {} is {:#04x} instead of {:#04x}", data.len(), found[at], data[at]);
    }
    assert!([before, after].concat().iter().all(|byte| *byte == UNTOUCHED), "{what}: bytes beside the data");
}

/// Fills the memory of both, up to a message of `len` bytes with its margins.
fn prepare(source: &mut Peer, target: &mut Peer, data: &[u8]) {
    target.memory.write(0, &vec![UNTOUCHED; MARGIN + data.len() + MARGIN]).expect("the memory is longer");
    source.memory.write(MARGIN, data).expect("the memory is longer");
}

/// A message, a write and a read of these bytes, each with all variants.
fn transfer(requester: &mut Peer, responder: &mut Peer, seed: usize, len: usize) {
    let range = MARGIN..MARGIN + len;
    for (variant, operation) in [Operation::Send, Operation::SendImm(IMM)].into_iter().enumerate() {
        let data = pattern(seed + variant, len);
        prepare(requester, responder, &data);
        responder.receive(8, range.clone());
        let sent = requester.execute(operation, range.clone());
        let received = responder.completion();
        assert_eq!((sent.opcode, received.opcode), (WcOpcode::SEND, WcOpcode::RECV));
        assert_eq!((received.wr_id, received.status, received.byte_len), (8, WcStatus::SUCCESS, len as u32));
        assert_eq!(received.imm(), (variant == 1).then_some(IMM));
        expect_data(responder, &data, &format!("{operation:?} of {len} bytes"));
    }
    for with_imm in [false, true] {
        let data = pattern(seed + 2 + usize::from(with_imm), len);
        prepare(requester, responder, &data);
        let remote = responder.memory.remote(MARGIN).expect("the memory is longer");
        if with_imm {
            responder.receive(8, 0..0);
            requester.execute(Operation::WriteImm(remote, IMM), range.clone());
            let received = responder.completion();
            assert_eq!((received.opcode, received.imm()), (WcOpcode::RECV_RDMA_WITH_IMM, Some(IMM)));
            assert_eq!((received.status, received.byte_len), (WcStatus::SUCCESS, len as u32));
        } else {
            requester.execute(Operation::Write(remote), range.clone());
        }
        expect_data(responder, &data, &format!("write of {len} bytes, immediate data: {with_imm}"));
    }
    let data = pattern(seed + 4, len);
    prepare(responder, requester, &data);
    let remote = responder.memory.remote(MARGIN).expect("the memory is longer");
    let read = requester.execute(Operation::Read(remote), range);
    assert_eq!((read.opcode, read.byte_len), (WcOpcode::RDMA_READ, len as u32));
    expect_data(requester, &data, &format!("read of {len} bytes"));
}

#[kernel_test(device::soft_roce)]
fn messages_writes_and_reads_of_all_sizes_and_mtus_arrive() {
    for (ip, mtus) in [(Ip::V4, &MTUS[..]), (Ip::V6, &[Mtu::Mtu1024])] {
        let hosts = Hosts::new(ip);
        for &mtu in mtus {
            let mut peers = hosts.peers(mtu, 4 * 4096);
            let mut seed = 0;
            each_direction(&mut peers, |requester, responder| {
                for len in sizes(mtu) {
                    transfer(requester, responder, seed, len);
                    seed += 5;
                }
            });
        }
        let mut peers = hosts.peers(Mtu::Mtu4096, LARGE + 2 * MARGIN);
        each_direction(&mut peers, |requester, responder| transfer(requester, responder, 3, LARGE));
    }
}

#[kernel_test(device::soft_roce)]
fn large_messages_writes_and_reads_arrive_at_each_mtu() {
    let hosts = Hosts::new(Ip::V4);
    for mtu in MTUS {
        let mut peers = hosts.peers(mtu, LARGE + 2 * MARGIN);
        each_direction(&mut peers, |requester, responder| {
            for (seed, len) in [LARGE, LARGE - 1, 100_003].into_iter().enumerate() {
                transfer(requester, responder, seed, len);
            }
        });
    }
}

/// The number at the start of the memory.
fn number(peer: &Peer) -> u64 {
    let mut bytes = [0; 8];
    peer.memory.read(0, &mut bytes).expect("the memory is longer");
    u64::from_ne_bytes(bytes)
}

#[kernel_test(device::soft_roce)]
fn atomics_change_and_return_the_value() {
    let hosts = Hosts::new(Ip::V4);
    let mut peers = hosts.peers(Mtu::Mtu1024, 64);
    each_direction(&mut peers, |requester, responder| {
        responder.memory.write(0, &0x0123_4567_89ab_cdef_u64.to_ne_bytes()).unwrap();
        let remote = responder.memory.remote(0).unwrap();
        for add in [0, 1, 0x0202_0202_0202_0202, u64::MAX] {
            let before = number(responder);
            let done = requester.execute(Operation::FetchAdd { remote, add }, 0..8);
            assert_eq!((done.opcode, done.byte_len), (WcOpcode::FETCH_ADD, 8));
            assert_eq!((number(requester), number(responder)), (before, before.wrapping_add(add)));
        }
        let before = number(responder);
        for (compare, swap, after) in [(!before, 1, before), (before, !before, !before), (!before, 3, 3)] {
            let old = number(responder);
            let done = requester.execute(Operation::CmpSwp { remote, compare, swap }, 0..8);
            assert_eq!((done.opcode, done.byte_len), (WcOpcode::COMP_SWAP, 8));
            assert_eq!((number(requester), number(responder)), (old, after));
        }
    });
}

#[kernel_test(device::soft_roce)]
fn flushes_and_atomic_writes_reach_the_memory() -> Outcome {
    let hosts = Hosts::new(Ip::V4);
    let rxe = hosts.rxe.context().capabilities();
    if !rxe.flush || !rxe.atomic_write {
        return skip("Soft-RoCE of this kernel has no FLUSH and no ATOMIC WRITE");
    }
    let mut peers = hosts.peers(Mtu::Mtu1024, 64);
    each_direction(&mut peers, |requester, responder| {
        let remote = responder.memory.remote(8).unwrap();
        let done = requester.execute(Operation::AtomicWrite { remote, value: *b"8 at one" }, 0..0);
        assert_eq!(done.opcode, WcOpcode::ATOMIC_WRITE);
        let mut bytes = [0; 24];
        responder.memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0\0\0\0\08 at one\0\0\0\0\0\0\0\0");
        for (level, length) in [(SelectivityLevel::RANGE, 8), (SelectivityLevel::MR, 0)] {
            let flush = Operation::Flush { remote, length, placement: PlacementType::GLOBAL, level };
            assert_eq!(requester.execute(flush, 0..0).opcode, WcOpcode::FLUSH);
        }
    });
    // A flush that the responder refuses: its memory allows global flushes only.
    for requester in [0, 1] {
        let mut peers = hosts.peers(Mtu::Mtu1024, 64);
        let remote = peers[1 - requester].memory.remote(0).unwrap();
        let placement = PlacementType::PERSISTENT;
        let flush = Operation::Flush { remote, length: 8, placement, level: SelectivityLevel::RANGE };
        assert_eq!(peers[requester].attempt(flush, 0..0).status, WcStatus::REM_INV_REQ_ERR);
    }
    Ok(Completion::Completed)
}

#[kernel_test(device::soft_roce)]
fn memory_windows_grant_access_until_they_are_invalidated() {
    let hosts = Hosts::new(Ip::V4);
    for owner in [0, 1] {
        for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
            let mut peers = hosts.peers(Mtu::Mtu1024, 256);
            let pd = peers[owner].qp.pd().clone();
            let mut window = pd.alloc_mw(mw_type).unwrap();
            let bind = window.bind(&peers[owner].memory, 64..128, Access::REMOTE_WRITE | Access::REMOTE_READ);
            let bind = bind.unwrap();
            assert_eq!(peers[owner].execute(Operation::BindMw(bind), 0..0).opcode, WcOpcode::BIND_MW);
            window.bound(&bind);
            let remote = window.remote(bind.addr);
            let data = pattern(owner, 64);
            let user = 1 - owner;
            peers[user].memory.write(0, &data).unwrap();
            peers[user].execute(Operation::Write(remote), 0..64);
            peers[user].execute(Operation::Read(remote), 128..192);
            let mut bytes = [0; 64];
            peers[owner].memory.read(64, &mut bytes).unwrap();
            assert_eq!(bytes[..], data[..]);
            peers[user].memory.read(128, &mut bytes).unwrap();
            assert_eq!(bytes[..], data[..]);
            if mw_type == MwType::TYPE_2 {
                let done = peers[owner].execute(Operation::LocalInv(window.rkey()), 0..0);
                assert_eq!(done.opcode, WcOpcode::LOCAL_INV);
            } else {
                let unbind = window.unbind();
                peers[owner].execute(Operation::BindMw(unbind), 0..0);
                window.bound(&unbind);
            }
            let refused = peers[user].attempt(Operation::Write(remote), 0..64);
            assert_eq!(refused.status, WcStatus::REM_ACCESS_ERR);
        }
    }
}

#[kernel_test(device::soft_roce)]
fn send_with_invalidate_invalidates_the_window() {
    let hosts = Hosts::new(Ip::V4);
    for owner in [0, 1] {
        let user = 1 - owner;
        let mut peers = hosts.peers(Mtu::Mtu1024, 4096);
        let pd = peers[owner].qp.pd().clone();
        let mut window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        let bind = window.bind(&peers[owner].memory, .., Access::REMOTE_WRITE).unwrap();
        peers[owner].execute(Operation::BindMw(bind), 0..0);
        window.bound(&bind);
        let remote = window.remote(bind.addr);
        peers[user].execute(Operation::Write(remote), 0..100);
        let data = pattern(owner, 1500);
        {
            let [a, b] = &mut peers;
            let (from, to) = if user == 0 { (a, b) } else { (b, a) };
            prepare(from, to, &data);
        }
        peers[owner].receive(8, MARGIN..MARGIN + data.len());
        peers[user].execute(Operation::SendInv(window.rkey()), MARGIN..MARGIN + data.len());
        let received = peers[owner].completion();
        assert_eq!((received.wr_id, received.status), (8, WcStatus::SUCCESS), "{received:?}");
        assert_eq!(received.invalidated_rkey(), Some(window.rkey()));
        expect_data(&peers[owner], &data, "send with invalidate");
        let refused = peers[user].attempt(Operation::Write(remote), 0..100);
        assert_eq!(refused.status, WcStatus::REM_ACCESS_ERR);
    }
}
