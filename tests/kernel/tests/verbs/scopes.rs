//! Operations on borrowed memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bareverbs::buffer::{Lend, LendRange};
use bareverbs::mr::LocalAccess;
use bareverbs::{Access, Buffer, Endpoint, Error, Mr, Op, Pd, Pool, RegionMut, WcStatus};
use bareverbs_kernel_tests::{Completion, Outcome, cm, kernel_test, skip};

use crate::owned::endpoints;
use crate::pair::{ALL_REMOTE, TIMEOUT, contents, counts, open, region};

fn pair(pd: &Pd) -> (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) {
    endpoints(pd, 8)
}

#[kernel_test]
fn scope_sends_and_receives_borrowed_memory() {
    let before = counts();
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = pair(&pd);
    let (mut question, mut answer) = (*b"question", [0; 16]);
    for round in 0..3 {
        let ask = pd.register_borrowed(&mut question, LocalAccess::Read).unwrap();
        let mut room = pd.register_borrowed(&mut answer, LocalAccess::ReadWrite).unwrap();
        let len = bob.scope(|bob| {
            bob.post(Op::recv(&mut room).tag(1)).unwrap();
            alice.scope(|alice| alice.post(Op::send(&ask, ..=round).tag(2)).unwrap()).unwrap();
            let done = bob.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("no timeout");
            assert_eq!((done.tag, done.buffer.is_none()), (1, true));
            done.len as usize
        });
        drop((ask, room));
        let len = len.unwrap();
        assert_eq!((len, &answer[..len]), (round + 1, &b"question"[..=round]));
        // Its result was not polled in the scope.
        assert_eq!(alice.poll().unwrap().unwrap().tag, 2);
    }
    drop((alice, bob, pd));
    assert_eq!(counts(), before);
}

#[kernel_test]
fn scope_waits_for_operations_that_were_not_polled() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let shared = region(&pd, &[7; 64]);
    let mut regions: Vec<Mr<Buffer>> =
        (0..4).map(|_| pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap()).collect();
    let remote = shared.remote(0).unwrap();
    alice
        .scope(|scope| {
            for (region, tag) in regions.iter_mut().zip(0..) {
                scope.post(Op::read(region, .., remote).tag(tag)).unwrap();
            }
        })
        .unwrap();
    assert!(regions.iter().all(|region| region.bytes() == Some(&[7; 64][..])));
    for tag in 0..4 {
        assert_eq!(alice.poll().unwrap().unwrap().tag, tag);
    }
    assert_eq!(alice.pending(), 0);
}

#[kernel_test]
fn panic_in_a_scope_ends_its_operations() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let mut room = [0; 64];
    let mut region = pd.register_borrowed(&mut room, LocalAccess::ReadWrite).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        alice.scope(|scope| {
            scope.post(Op::recv(&mut region).tag(5)).unwrap();
            panic!("in the scope");
        })
    }));
    assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"in the scope"));
    drop(region);
    assert_eq!(room, [0; 64]);
    let failed = alice.poll().unwrap().unwrap_err();
    assert!(
        matches!(failed.error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. }) && failed.tag == 5,
        "{failed}"
    );
    assert_eq!(alice.pending(), 0);
}

#[kernel_test]
fn scope_ends_at_its_timeout() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let mut region = pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    let begin = Instant::now();
    let result = alice.scope(|scope| {
        scope.set_timeout(Duration::from_millis(50));
        scope.post(Op::recv(&mut region).tag(1)).unwrap();
    });
    assert!((Duration::from_millis(50)..TIMEOUT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let late = result.unwrap_err();
    assert!(matches!(late, Error::TimedOut { .. }), "{late}");
    drop(region);
    assert!(alice.post(Op::send_inline(b"")).is_err(), "the connection has failed");
}

#[kernel_test]
fn owned_operations_outlive_a_scope() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = pair(&pd);
    let buffer = || pd.register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
    for tag in 1..=2 {
        bob.post(Op::recv(buffer()).tag(tag)).unwrap();
    }
    let mut third = buffer();
    let sent = buffer();
    bob.scope(|bob| {
        bob.post(Op::recv(&mut third).tag(3)).unwrap();
        alice
            .scope(|alice| {
                for len in 1..=3 {
                    alice.post(Op::send(&sent, ..len).tag(len as u64)).unwrap();
                }
            })
            .unwrap();
    })
    .unwrap();
    let received: Vec<_> = (0..3).map(|_| bob.poll().unwrap().unwrap()).collect();
    let of: Vec<_> = received.iter().map(|done| (done.tag, done.len, done.buffer.is_some())).collect();
    assert_eq!(of, [(1, 1, true), (2, 2, true), (3, 3, false)]);
}

#[kernel_test]
fn lent_odp_range_leaves_its_neighbour_alone() -> Outcome {
    let pd = open().alloc_pd().unwrap();
    if !pd.context().capabilities().odp {
        return skip("the device does not page on demand");
    }
    let (mut alice, _bob) = pair(&pd);
    let shared = region(&pd, &[7; 100]);
    let rights = Access::LOCAL_WRITE | Access::ON_DEMAND;
    let mut whole = pd.register(Buffer::zeroed(200).unwrap(), rights).unwrap();
    let (_neighbour, mut rest) = whole.lend().split_at(100);
    let remote = shared.remote(0).unwrap();
    let posted = alice.scope(|scope| scope.post(Op::read(&mut rest, .., remote).tag(1)).is_ok()).unwrap();
    let (neighbour, rest) = whole.bytes().unwrap().split_at(100);
    assert_eq!((neighbour, rest), (&[0; 100][..], &[if posted { 7 } else { 0 }; 100][..]));
    Ok(Completion::Completed)
}

#[kernel_test]
fn scope_reads_into_disjoint_ranges_of_a_region() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let bytes: Vec<u8> = (0..200).collect();
    let shared = region(&pd, &bytes);
    let mut whole = pd.register(Buffer::zeroed(200).unwrap(), Access::LOCAL_WRITE).unwrap();
    let (head, rest) = whole.lend().split_at(8);
    let mut ranges: Vec<_> = std::iter::once(head).chain(rest.chunks(64)).collect();
    assert_eq!(ranges.iter().map(LendRange::len).collect::<Vec<_>>(), [8, 64, 64, 64]);
    let mut at = 0;
    alice
        .scope(|scope| {
            for (range, tag) in ranges.iter_mut().zip(0..) {
                let (len, remote) = (range.len(), shared.remote(at).unwrap());
                scope.post(Op::read(range, .., remote).tag(tag)).unwrap();
                at += len;
            }
        })
        .unwrap();
    assert_eq!(whole.bytes(), Some(&bytes[..]));
}

#[kernel_test]
fn scope_borrows_regions_and_pool_buffers_and_posts_all_kinds_of_writes() {
    let pd = open().alloc_pd().unwrap();
    let options = Endpoint::options().inline(16);
    let (mut alice, mut bob): (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) =
        (options.build(&pd).unwrap(), options.build(&pd).unwrap());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    let target = pd.register(Buffer::zeroed(64).unwrap(), ALL_REMOTE).unwrap();
    let mut part = RegionMut::register(&pd, Buffer::zeroed(64).unwrap()).unwrap();
    part.bytes_mut()[..4].copy_from_slice(b"part");
    let mut rooms = [(); 2].map(|()| Pool::new(&pd, 1, 64).unwrap().take().unwrap());
    bob.scope(|bob| {
        for (room, tag) in rooms.iter_mut().zip(0..) {
            bob.post(Op::recv(room).tag(tag)).unwrap();
        }
        alice
            .scope(|alice| {
                alice.post(Op::write_imm(&part, ..4, target.remote(8).unwrap(), 7).tag(1)).unwrap();
                alice.post(Op::write_inline(b"inline", target.remote(32).unwrap()).tag(2)).unwrap();
                alice.post(Op::send_inline(b"message").tag(3)).unwrap();
                assert!(alice.post(Op::send_inline(&[0; 1 << 16]).tag(4)).is_err());
            })
            .unwrap();
        let written = bob.next().wait_timeout(TIMEOUT).unwrap().unwrap();
        assert_eq!((written.tag, written.imm), (0, Some(7.into())));
        assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().len, 7);
    })
    .unwrap();
    assert_eq!(&rooms[1].bytes()[..7], b"message");
    assert_eq!((&contents(&target)[8..12], &contents(&target)[32..38]), (&b"part"[..], &b"inline"[..]));
    // The scope waits for borrowed memory only, and bob may receive a message before its acknowledgement.
    let tags: Vec<_> = (0..3).map(|_| alice.next().wait_timeout(TIMEOUT).unwrap().unwrap().tag).collect();
    assert_eq!(tags, [1, 2, 3]);
}
