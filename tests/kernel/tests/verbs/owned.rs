use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bareverbs::owned::Endpoint;
use bareverbs::{Access, Buffer, Error, MemoryOwner, Mr, Pd, WcStatus};

use crate::pair::{ALL_REMOTE, TIMEOUT, contents, counts, open, region};

fn endpoints<M>(pd: &Pd, depth: u32) -> (Endpoint<M>, Endpoint<M>) {
    let (mut alice, mut bob) = (Endpoint::new(pd, 1, depth).unwrap(), Endpoint::new(pd, 1, depth).unwrap());
    alice.connect(&bob.address()).unwrap();
    bob.connect(&alice.address()).unwrap();
    (alice, bob)
}

fn local(pd: &Pd, bytes: &[u8]) -> Mr<Buffer> {
    let mut region = pd.register(Buffer::zeroed(bytes.len()).unwrap(), Access::LOCAL_WRITE).unwrap();
    region.write(0, bytes).unwrap();
    region
}

pub(crate) fn endpoints_exchange_messages_without_unsafe() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 4);
    let mut ball = local(&pd, b"ping");
    for _ in 0..10 {
        bob.post_recv(local(&pd, &[0; 64])).unwrap();
        alice.post_send(ball, ..).unwrap();
        let received = bob.wait().unwrap();
        assert_eq!(received.message(), Some(&b"ping"[..]));
        let sent = alice.wait().unwrap();
        assert_eq!((sent.message(), alice.pending(), bob.pending()), (None, 0, 0));
        ball = sent.buffer;
    }
}

pub(crate) fn endpoints_write_and_read_remote_memory() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = endpoints(&pd, 4);
    let shared = region(&pd, &[0; 16]);
    alice.post_write(local(&pd, b"-written-"), 1..8, shared.remote(4).unwrap()).unwrap();
    alice.wait().unwrap();
    assert_eq!(contents(&shared), b"\0\0\0\0written\0\0\0\0\0");
    alice.post_read(local(&pd, &[b'.'; 9]), 1..8, shared.remote(4).unwrap()).unwrap();
    let read = alice.wait().unwrap().buffer;
    assert_eq!(read.bytes(), Some(&b".written."[..]));
}

pub(crate) fn refused_post_returns_its_buffer() {
    let pd = open().alloc_pd().unwrap();
    let mut single = Endpoint::new(&pd, 1, 1).unwrap();
    let refused = single.post_send(local(&pd, b"early"), ..).unwrap_err();
    assert!(refused.to_string().contains("the QP is in INIT"), "{refused}");
    assert_eq!(refused.buffer.bytes(), Some(&b"early"[..]));
    let refused = single.post_send(refused.buffer, 3..9).unwrap_err();
    assert_eq!(refused.to_string(), "Endpoint::post_send: bytes 3..9 exceed the length of 5 bytes");

    let mut buffer = Some(refused.buffer);
    let mut taken = 0;
    let full = loop {
        match single.post_recv(buffer.take().unwrap_or_else(|| local(&pd, b"next"))) {
            Ok(()) => taken += 1,
            Err(full) => break full,
        }
    };
    assert!(taken >= 1 && single.pending() == taken, "{taken}");
    assert_eq!(full.buffer.len(), 4);
}

pub(crate) fn failed_operation_returns_its_buffer() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 2);
    bob.post_recv(local(&pd, b"...")).unwrap();
    alice.post_send(local(&pd, b"much too long"), ..).unwrap();
    let failed = alice.wait().unwrap_err();
    let refused_by_peer = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
    assert!(
        matches!(failed.error, Error::Completion { verb: "Endpoint::post_send", status, .. } if refused_by_peer.contains(&status)),
        "{failed}"
    );
    assert_eq!(failed.buffer.unwrap().bytes(), Some(&b"much too long"[..]));
    let failed = bob.wait().unwrap_err();
    assert!(failed.to_string().starts_with("Endpoint::post_recv failed: LOC_"), "{failed}");
    assert_eq!(failed.buffer.unwrap().len(), 3);
}

pub(crate) fn wait_without_pending_operations_is_rejected() {
    let pd = open().alloc_pd().unwrap();
    let mut endpoint = Endpoint::<Buffer>::new(&pd, 1, 1).unwrap();
    assert_eq!(endpoint.wait().unwrap_err().to_string(), "Endpoint::wait: no operation is outstanding");
    assert!(endpoint.poll().is_none());
}

pub(crate) fn wait_timeout_ends() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 2);
    bob.post_recv(local(&pd, &[0; 8])).unwrap();
    assert!(bob.wait_timeout(Duration::from_millis(20)).unwrap().is_none());
    assert_eq!(bob.pending(), 1);
    alice.post_send(local(&pd, b"late"), ..).unwrap();
    assert_eq!(bob.wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&b"late"[..]));
}

/// Memory that counts when it is freed.
struct Watched(Buffer, Arc<AtomicUsize>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the buffer's bytes stay in place when it moves.
unsafe impl MemoryOwner for Watched {
    fn region(&mut self) -> (std::ptr::NonNull<u8>, usize) {
        self.0.region()
    }
}

fn with_work_under_way(pd: &Pd, freed: &Arc<AtomicUsize>) -> Endpoint<Watched> {
    let (mut endpoint, _) = endpoints(pd, 4);
    for _ in 0..3 {
        let memory = Watched(Buffer::zeroed(64).unwrap(), Arc::clone(freed));
        endpoint.post_recv(pd.register(memory, ALL_REMOTE).unwrap()).unwrap();
    }
    endpoint
}

pub(crate) fn endpoint_dropped_with_outstanding_work_frees_its_buffers() {
    let before = counts();
    let freed = Arc::new(AtomicUsize::new(0));
    let pd = open().alloc_pd().unwrap();
    let endpoint = with_work_under_way(&pd, &freed);
    assert_eq!((endpoint.pending(), freed.load(Ordering::Relaxed)), (3, 0));
    drop(endpoint);
    assert_eq!(freed.load(Ordering::Relaxed), 3);
    drop(pd);
    assert_eq!(counts(), before);
}

pub(crate) fn forgotten_endpoint_keeps_its_buffers() {
    let freed = Arc::new(AtomicUsize::new(0));
    let pd = open().alloc_pd().unwrap();
    let before = counts().mr;
    std::mem::forget(with_work_under_way(&pd, &freed));
    drop(pd);
    assert_eq!((freed.load(Ordering::Relaxed), counts().mr), (0, before + 3));
}
