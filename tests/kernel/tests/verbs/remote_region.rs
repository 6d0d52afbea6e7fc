//! Memory that peers access, and the end of their access.

use std::sync::Barrier;
use std::thread;

use bareverbs::buffer::LocalAtomics;
use bareverbs::device::AtomicCap;
use bareverbs::qp::{Operation, Payload, QpCap};
use bareverbs::{Access, AnyBuffer, Buffer, Endpoint, Error, Mr, Op, Pd, RegionMut, RemoteRegion, WcStatus};
use bareverbs_kernel_tests::loopback::{contents, region, request};
use bareverbs_kernel_tests::{cm, kernel_test};

use crate::pair::{End, join, open};

fn peers(pd: &Pd) -> (End, End) {
    let (mut a, mut b) = (End::new(pd, QpCap::default()), End::new(pd, QpCap::default()));
    join(&mut a, &mut b);
    (a, b)
}

/// Executes `operation` with the bytes of `local`.
fn execute(peer: &mut End, operation: Operation, local: &Mr<Buffer>) -> WcStatus {
    let sges = [local.sge(..).unwrap()];
    peer.send(&request(1, operation, Payload::Sges(&sges)));
    peer.completions(1)[0].status
}

fn part(pd: &Pd, len: usize) -> RegionMut {
    RegionMut::register(pd, Buffer::zeroed(len).unwrap()).unwrap()
}

#[kernel_test]
fn revoked_memory_rejects_peers_and_is_a_slice_again() {
    let pd = open().alloc_pd().unwrap();
    let words = region(&pd, b"by a peer", Access::LOCAL_WRITE);
    let (mut left, right) = part(&pd, 8192).split_at(5000);
    left.bytes_mut().fill(b'.');
    for round in 0..3 {
        let exposed = left.expose(Access::REMOTE_WRITE).unwrap();
        let remote = exposed.remote(100 + round).unwrap();
        let (mut peer, owner) = peers(&pd);
        assert_eq!(execute(&mut peer, Operation::Write(remote), &words), WcStatus::SUCCESS);
        let mut seen = [0; 9];
        exposed.read(100 + round, &mut seen).unwrap();
        assert_eq!(&seen, b"by a peer");

        left = exposed.revoke().unwrap();
        let refused = execute(&mut peer, Operation::Write(remote), &words);
        assert_eq!(refused, WcStatus::REM_ACCESS_ERR);
        assert_eq!(&left.bytes()[100 + round..][..10], b"by a peer.");
        left.bytes_mut().fill(b'.');
        drop((peer, owner));
    }
    left.try_join(right).unwrap();
    assert_eq!(left.into_mr().unwrap().len(), 8192);
}

#[kernel_test]
fn dropped_exposure_rejects_peers() {
    let pd = open().alloc_pd().unwrap();
    let words = region(&pd, b"late", Access::LOCAL_WRITE);
    let (left, _right) = part(&pd, 64).split_at(32);
    let exposed = left.expose(Access::REMOTE_WRITE).unwrap();
    let remote = exposed.remote(0).unwrap();
    drop(exposed);
    let (mut peer, _owner) = peers(&pd);
    assert_eq!(execute(&mut peer, Operation::Write(remote), &words), WcStatus::REM_ACCESS_ERR);
}

#[kernel_test]
fn key_opens_the_exposed_range_only() {
    let pd = open().alloc_pd().unwrap();
    let words = region(&pd, b"12345678", Access::LOCAL_WRITE);
    // All three lie in one page.
    let (before, rest) = part(&pd, 300).split_at(100);
    let (middle, after) = rest.split_at(100);
    let exposed = middle.expose(Access::REMOTE_WRITE | Access::REMOTE_READ).unwrap();
    let first = exposed.remote(0).unwrap();
    for (offset, status) in [
        (0, WcStatus::SUCCESS),
        (92, WcStatus::SUCCESS),
        (-1, WcStatus::REM_ACCESS_ERR),
        (-8, WcStatus::REM_ACCESS_ERR),
        (93, WcStatus::REM_ACCESS_ERR),
        (100, WcStatus::REM_ACCESS_ERR),
    ] {
        let remote = bareverbs::Remote { addr: first.addr.wrapping_add_signed(offset), ..first };
        for operation in [Operation::Write(remote), Operation::Read(remote)] {
            let (mut peer, _owner) = peers(&pd);
            assert_eq!(execute(&mut peer, operation, &words), status, "{operation:?} at {offset}");
        }
    }
    assert_eq!((before.bytes(), after.bytes()), (&[0; 100][..], &[0; 100][..]));
    assert_eq!(&exposed.revoke().unwrap().bytes()[92..], b"12345678");
}

#[kernel_test]
fn words_are_shared_with_peers() {
    let pd = open().alloc_pd().unwrap();
    let result = region(&pd, &[0; 8], Access::LOCAL_WRITE);
    let exposed: RemoteRegion = part(&pd, 64).expose(Access::REMOTE_ATOMIC | Access::REMOTE_READ).unwrap();
    exposed.store(8, 40u64).unwrap();
    let remote = exposed.remote(8).unwrap();
    let (mut peer, _owner) = peers(&pd);
    let add = Operation::FetchAdd { remote, add: 2 };
    assert_eq!(execute(&mut peer, add, &result), WcStatus::SUCCESS);
    assert_eq!(contents(&result), 40u64.to_ne_bytes());
    assert_eq!(exposed.load::<u64>(8).unwrap(), 42);
    exposed.store(8, 7u32).unwrap();
    exposed.store(12, 9u32).unwrap();
    assert_eq!(execute(&mut peer, Operation::Read(remote), &result), WcStatus::SUCCESS);
    assert_eq!(contents(&result), [7u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat());

    let global = pd.context().query_device().unwrap().atomic_cap == AtomicCap::GLOB;
    assert_eq!(exposed.fetch_add(16, 5).is_ok(), global);
    assert_eq!(exposed.compare_swap(16, 5, 6).is_ok(), global);
    assert_eq!(exposed.load::<u64>(16).unwrap(), if global { 6 } else { 0 });
}

#[kernel_test]
fn atomic_operation_before_a_message_is_visible_with_it() {
    let pd = open().alloc_pd().unwrap();
    let word: RemoteRegion = part(&pd, 64).expose(Access::REMOTE_ATOMIC).unwrap();
    let options = Endpoint::options().access(Access::REMOTE_ATOMIC | Access::REMOTE_WRITE);
    let [mut alice, mut bob]: [Endpoint<Mr<Buffer>>; 2] = [(); 2].map(|()| options.build(&pd).unwrap());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    let local = || pd.register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
    for round in 1..=100_u64 {
        bob.post(Op::recv(local())).unwrap();
        alice.post(Op::fetch_add(local(), word.remote(8).unwrap(), 1)).unwrap();
        alice.post(Op::send(local(), ..)).unwrap();
        drop(bob.next().wait().unwrap());
        assert_eq!(word.load::<u64>(8).unwrap(), round);
        for _ in 0..2 {
            drop(alice.next().wait().unwrap());
        }
    }
}

#[kernel_test]
fn exposed_memory_is_sent_without_a_copy() {
    let pd = open().alloc_pd().unwrap();
    let exposed = part(&pd, 8192).expose(Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    exposed.write(5000, b"a value").unwrap();
    let options = Endpoint::options();
    let mut server: Endpoint<AnyBuffer> = options.build(&pd).unwrap();
    let mut client: Endpoint<Mr<Buffer>> = options.build(&pd).unwrap();
    let [to_server, to_client] = cm::introduce(server.address(), client.address());
    server.connect(&to_client).unwrap();
    client.connect(&to_server).unwrap();
    client.post(Op::recv(pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap())).unwrap();
    server.post(Op::send(exposed.source(5000..5007).unwrap(), ..).any()).unwrap();
    let refused = exposed.revoke().unwrap_err();
    assert!(refused.to_string().contains("a source"), "{refused}");
    assert_eq!(client.next().wait().unwrap().message(), Some(&b"a value"[..]));
    // Peers still access it while it was sent.
    let room = pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    client.post(Op::read(room, ..7, refused.object.remote(5000).unwrap())).unwrap();
    assert_eq!(client.next().wait().unwrap().into_buffer().bytes().unwrap()[..7], *b"a value");
    assert!(server.next().wait().unwrap().into_buffer().bytes().is_none());
    assert_eq!(&refused.object.revoke().unwrap().bytes()[5000..5007], b"a value");
}

/// The value that an atomic operation returned.
fn old(result: &Mr<Buffer>) -> u64 {
    u64::from_ne_bytes(contents(result).try_into().unwrap())
}

#[kernel_test]
fn local_atomics_are_atomic_with_those_of_a_peer() {
    const ROUNDS: u64 = 300;
    let pd = open().alloc_pd().unwrap();
    let exposed = part(&pd, 64).expose(Access::REMOTE_ATOMIC).unwrap();
    let remote = exposed.remote(8).unwrap();
    let mut atomics = LocalAtomics::new(&pd, 1).unwrap();
    let (mut peer, _owner) = peers(&pd);
    let start = Barrier::new(2);
    let mut olds = thread::scope(|scope| {
        let theirs = scope.spawn(|| {
            let result = region(&pd, &[0; 8], Access::LOCAL_WRITE);
            start.wait();
            let add = Operation::FetchAdd { remote, add: 1 };
            let round = |_| {
                assert_eq!(execute(&mut peer, add, &result), WcStatus::SUCCESS);
                old(&result)
            };
            (0..ROUNDS).map(round).collect::<Vec<_>>()
        });
        start.wait();
        let mut olds: Vec<_> = (0..ROUNDS).map(|_| atomics.fetch_add(&exposed, 8, 1).unwrap()).collect();
        olds.extend(theirs.join().unwrap());
        olds
    });
    // No value was returned twice, and none was lost.
    olds.sort_unstable();
    assert!(olds.iter().copied().eq(0..2 * ROUNDS), "{olds:?}");
    assert_eq!(exposed.load::<u64>(8).unwrap(), 2 * ROUNDS);
    assert_eq!(exposed.load::<u64>(0).unwrap() + exposed.load::<u64>(16).unwrap(), 0);
}

#[kernel_test]
fn local_atomics_lock_a_word_against_a_peer() {
    const ROUNDS: u64 = 40;
    const LOCK: usize = 0;
    const COUNT: usize = 8;
    let pd = open().alloc_pd().unwrap();
    let access = Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let exposed = part(&pd, 16).expose(access).unwrap();
    let (lock, count) = (exposed.remote(LOCK).unwrap(), exposed.remote(COUNT).unwrap());
    let mut atomics = LocalAtomics::new(&pd, 1).unwrap();
    let (mut peer, _owner) = peers(&pd);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut word = region(&pd, &[0; 8], Access::LOCAL_WRITE);
            let take = Operation::CmpSwp { remote: lock, compare: 0, swap: 2 };
            let release = Operation::CmpSwp { remote: lock, compare: 2, swap: 0 };
            for _ in 0..ROUNDS {
                while {
                    assert_eq!(execute(&mut peer, take, &word), WcStatus::SUCCESS);
                    old(&word) != 0
                } {}
                assert_eq!(execute(&mut peer, Operation::Read(count), &word), WcStatus::SUCCESS);
                let more = old(&word) + 1;
                word.write(0, &more.to_ne_bytes()).unwrap();
                assert_eq!(execute(&mut peer, Operation::Write(count), &word), WcStatus::SUCCESS);
                assert_eq!(execute(&mut peer, release, &word), WcStatus::SUCCESS);
                assert_eq!(old(&word), 2, "the lock is the peer's until it is released");
            }
        });
        for _ in 0..ROUNDS {
            while atomics.compare_swap(&exposed, LOCK, 0, 1).unwrap() != 0 {}
            let more = exposed.load::<u64>(COUNT).unwrap() + 1;
            exposed.store(COUNT, more).unwrap();
            assert_eq!(atomics.compare_swap(&exposed, LOCK, 1, 0).unwrap(), 1);
        }
    });
    assert_eq!(exposed.load::<u64>(COUNT).unwrap(), 2 * ROUNDS);
}

#[kernel_test]
fn local_atomics_reject_words_that_they_cannot_reach() {
    let (pd, other) = (open().alloc_pd().unwrap(), open().alloc_pd().unwrap());
    let exposed = part(&pd, 24).expose(Access::REMOTE_ATOMIC).unwrap();
    let readable = part(&pd, 8).expose(Access::REMOTE_READ).unwrap();
    let foreign = part(&other, 8).expose(Access::REMOTE_ATOMIC).unwrap();
    let mut atomics = LocalAtomics::new(&pd, 1).unwrap();
    for (refused, reason) in [
        (atomics.fetch_add(&exposed, 4, 1), "not aligned"),
        (atomics.fetch_add(&exposed, 24, 1), "24"),
        (atomics.compare_swap(&exposed, usize::MAX, 0, 1), "24"),
        (atomics.compare_swap(&readable, 0, 0, 1), "REMOTE_ATOMIC"),
        (atomics.fetch_add(&foreign, 0, 1), "another protection domain"),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        assert!(refused.to_string().contains(reason), "{refused}: {reason}");
    }
    // The connection is intact, and a failed comparison changes nothing.
    assert_eq!(atomics.fetch_add(&exposed, 16, u64::MAX).unwrap(), 0);
    assert_eq!(atomics.compare_swap(&exposed, 16, 0, 5).unwrap(), u64::MAX);
    assert_eq!(atomics.compare_swap(&exposed, 16, u64::MAX, 5).unwrap(), u64::MAX);
    assert_eq!(exposed.load::<u64>(16).unwrap(), 5);
}
