//! Operations on borrowed memory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bareverbs::owned::Endpoint;
use bareverbs::{Access, Buffer, Error, LocalAccess, Mr, Pd, WcStatus};

use crate::owned::endpoints;
use crate::pair::{TIMEOUT, counts, open, region};

fn pair(pd: &Pd) -> (Endpoint, Endpoint) {
    endpoints(pd, 8)
}

pub(crate) fn scope_sends_and_receives_borrowed_memory() {
    let before = counts();
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = pair(&pd);
    let (mut question, mut answer) = (*b"question", [0; 16]);
    for round in 0..3 {
        let ask = pd.register_borrowed(&mut question, LocalAccess::Read).unwrap();
        let mut room = pd.register_borrowed(&mut answer, LocalAccess::ReadWrite).unwrap();
        let len = bob.scope(|bob| {
            bob.post_recv(&mut room, 1).unwrap();
            alice.scope(|alice| alice.post_send(&ask, ..=round, 2).unwrap()).unwrap();
            let done = bob.wait_timeout(TIMEOUT).unwrap().expect("no timeout");
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

pub(crate) fn scope_waits_for_operations_that_were_not_polled() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let shared = region(&pd, &[7; 64]);
    let mut regions: Vec<Mr<Buffer>> =
        (0..4).map(|_| pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap()).collect();
    let remote = shared.remote(0).unwrap();
    alice
        .scope(|scope| {
            for (region, tag) in regions.iter_mut().zip(0..) {
                scope.post_read(region, .., remote, tag).unwrap();
            }
        })
        .unwrap();
    assert!(regions.iter().all(|region| region.bytes() == Some(&[7; 64][..])));
    for tag in 0..4 {
        assert_eq!(alice.poll().unwrap().unwrap().tag, tag);
    }
    assert_eq!(alice.pending(), 0);
}

pub(crate) fn panic_in_a_scope_ends_its_operations() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let mut room = [0; 64];
    let mut region = pd.register_borrowed(&mut room, LocalAccess::ReadWrite).unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        alice.scope(|scope| {
            scope.post_recv(&mut region, 5).unwrap();
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

pub(crate) fn scope_ends_at_its_timeout() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = pair(&pd);
    let mut region = pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    let begin = Instant::now();
    let result = alice.scope(|scope| {
        scope.set_timeout(Duration::from_millis(50));
        scope.post_recv(&mut region, 1).unwrap();
    });
    assert!((Duration::from_millis(50)..TIMEOUT).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    let late = result.unwrap_err();
    assert!(late.to_string().contains("did not complete in time"), "{late}");
    drop(region);
    assert!(alice.post_send_inline(b"").is_err(), "the connection has failed");
}

pub(crate) fn owned_operations_outlive_a_scope() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = pair(&pd);
    let buffer = || pd.register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
    for tag in 1..=2 {
        bob.post_recv_tagged(buffer(), tag).unwrap();
    }
    let mut third = buffer();
    let sent = buffer();
    bob.scope(|bob| {
        bob.post_recv(&mut third, 3).unwrap();
        alice
            .scope(|alice| {
                for len in 1..=3 {
                    alice.post_send(&sent, ..len, len as u64).unwrap();
                }
            })
            .unwrap();
    })
    .unwrap();
    let received: Vec<_> = (0..3).map(|_| bob.poll().unwrap().unwrap()).collect();
    let of: Vec<_> = received.iter().map(|done| (done.tag, done.len, done.buffer.is_some())).collect();
    assert_eq!(of, [(1, 1, true), (2, 2, true), (3, 3, false)]);
}
