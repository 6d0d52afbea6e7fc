use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bareverbs::runtime::{AsyncIo, Runtime, Tokio};
use bareverbs::{
    Access, Buffer, Done, Endpoint, Error, Imm, MemoryOwner, Mr, Op, Pd, RegionMut, WcOpcode, WcStatus,
};
use bareverbs_kernel_tests::{cm, kernel_test};

use crate::pair::{ALL_REMOTE, TIMEOUT, contents, counts, open, region};

pub(crate) fn endpoints<B>(pd: &Pd, depth: u32) -> (Endpoint<B>, Endpoint<B>) {
    let (mut alice, mut bob) = (Endpoint::new(pd, 1, depth).unwrap(), Endpoint::new(pd, 1, depth).unwrap());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    (alice, bob)
}

fn local(pd: &Pd, bytes: &[u8]) -> Mr<Buffer> {
    let mut region = pd.register(Buffer::zeroed(bytes.len()).unwrap(), Access::LOCAL_WRITE).unwrap();
    region.write(0, bytes).unwrap();
    region
}

#[kernel_test]
fn endpoints_exchange_messages_without_unsafe() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 4);
    let mut ball = local(&pd, b"ping");
    for _ in 0..10 {
        bob.post(Op::recv(local(&pd, &[0; 64]))).unwrap();
        alice.post(Op::send(ball, ..)).unwrap();
        let received = bob.next().wait().unwrap();
        assert_eq!(received.message(), Some(&b"ping"[..]));
        let sent = alice.next().wait().unwrap();
        assert_eq!((sent.message(), alice.pending(), bob.pending()), (None, 0, 0));
        ball = sent.into_buffer();
    }
}

#[kernel_test]
fn header_and_body_are_sent_and_received_as_one_message() {
    let pd = open().alloc_pd().unwrap();
    let build = || Endpoint::options().max_sge(2).sends(4).recvs(4).build(&pd).unwrap();
    let (mut alice, mut bob): (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) = (build(), build());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    for round in 0..5 {
        bob.post(Op::recv_parts([(local(&pd, &[0; 8]), 0..4), (local(&pd, &[0; 64]), 0..64)]).tag(1))
            .unwrap();
        alice
            .post(Op::send_parts([(local(&pd, b"headers"), 0..6), (local(&pd, b"body"), 0..4)]).tag(2))
            .unwrap();
        let [header, body] = [(), ()].map(|()| bob.next().wait_timeout(TIMEOUT).unwrap().unwrap());
        assert_eq!((header.message(), header.tag), (Some(&b"head"[..]), 1), "round {round}");
        assert_eq!((body.message(), body.tag), (Some(&b"erbody"[..]), 1), "round {round}");
        let sent = [(), ()].map(|()| alice.next().wait_timeout(TIMEOUT).unwrap().unwrap());
        assert_eq!(sent.map(|done| (done.tag, done.len)), [(2, 6), (2, 4)]);
    }
    let shared = region(&pd, &[0; 16]);
    let parts = [(local(&pd, b"one"), 0..3), (local(&pd, b"two"), 0..3)];
    alice.post(Op::write_parts(parts, shared.remote(4).unwrap()).tag(3)).unwrap();
    for _ in 0..2 {
        assert_eq!(alice.next().wait_timeout(TIMEOUT).unwrap().unwrap().len, 3);
    }
    assert_eq!(contents(&shared), b"\0\0\0\0onetwo\0\0\0\0\0\0");
    // More buffers than `max_sge` are refused.
    let more = [(); 3].map(|()| (local(&pd, b"more"), 0..4));
    let refused = alice.post(Op::send_parts(more).tag(4)).unwrap_err();
    assert!(matches!(refused.error, Error::Post(_)), "{refused}");
    assert_eq!(alice.pending(), 0);
    // No receive is posted: the buffers of the send fail together.
    bob.abort();
    alice.post(Op::send_parts([(local(&pd, b"lost"), 0..4), (local(&pd, b"too"), 0..3)]).tag(5)).unwrap();
    for _ in 0..2 {
        let failed = alice.next().wait_timeout(4 * TIMEOUT).transpose().unwrap_err();
        assert_eq!((failed.tag, failed.buffer.is_some()), (5, true), "{failed}");
    }
}

#[kernel_test]
fn endpoints_write_and_read_remote_memory() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, _bob) = endpoints(&pd, 4);
    let shared = region(&pd, &[0; 16]);
    alice.post(Op::write(local(&pd, b"-written-"), 1..8, shared.remote(4).unwrap())).unwrap();
    alice.next().wait().unwrap();
    assert_eq!(contents(&shared), b"\0\0\0\0written\0\0\0\0\0");
    alice.post(Op::read(local(&pd, &[b'.'; 9]), 1..8, shared.remote(4).unwrap())).unwrap();
    let read = alice.next().wait().unwrap().into_buffer();
    assert_eq!(read.bytes(), Some(&b".written."[..]));
}

#[kernel_test]
fn refused_post_returns_its_buffer() {
    let pd = open().alloc_pd().unwrap();
    let mut single = Endpoint::new(&pd, 1, 1).unwrap();
    let refused = single.post(Op::send(local(&pd, b"early"), ..)).unwrap_err();
    assert!(refused.to_string().contains("the QP is in INIT"), "{refused}");
    let early = refused.object.into_buffer();
    assert_eq!(early.bytes(), Some(&b"early"[..]));
    let refused = single.post(Op::send(early, 3..9)).unwrap_err();
    assert_eq!(refused.to_string(), "Endpoint::post(Op::send): bytes 3..9 exceed the length of 5 bytes");

    let mut buffer = Some(refused.object.into_buffer());
    let mut taken = 0;
    let full = loop {
        match single.post(Op::recv(buffer.take().unwrap_or_else(|| local(&pd, b"next")))) {
            Ok(()) => taken += 1,
            Err(full) => break full,
        }
    };
    assert!(full.is_full(), "{full}");
    assert_eq!((taken, single.pending()), (1, 1));
    assert_eq!(full.object.into_buffer().len(), 4);
}

#[kernel_test]
fn receives_leave_room_for_sends() {
    let pd = open().alloc_pd().unwrap();
    for depth in [1, 2] {
        let (mut alice, mut bob) = endpoints(&pd, depth);
        for _ in 0..3 {
            for end in [&mut alice, &mut bob] {
                while end.post(Op::recv(local(&pd, &[0; 8]))).is_ok() {}
                assert_eq!(end.pending_recvs(), depth as usize);
            }
            for end in [&mut alice, &mut bob] {
                end.post(Op::send(local(&pd, b"hello"), ..)).unwrap();
            }
            for end in [&mut alice, &mut bob] {
                let ended: Vec<_> = (0..2).map(|_| end.next().wait().unwrap()).collect();
                assert_eq!(ended.iter().filter_map(Done::message).collect::<Vec<_>>(), [b"hello"]);
            }
        }
    }
}

#[kernel_test]
fn operations_return_tag_length_and_immediate() {
    let pd = open().alloc_pd().unwrap();
    let options = Endpoint::options().sends(8).inline(16).access(ALL_REMOTE);
    let (mut alice, mut bob): (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) =
        (options.build(&pd).unwrap(), options.build(&pd).unwrap());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    let shared = region(&pd, &[0; 64]);
    let remote = shared.remote(8).unwrap();
    for tag in 1..=4 {
        bob.post(Op::recv(local(&pd, &[0; 64])).tag(tag)).unwrap();
    }
    alice.post(Op::send_imm(local(&pd, b"hello"), ..4, 0x0102_0304).tag(11)).unwrap();
    alice.post(Op::send_inline(b"inline").tag(12)).unwrap();
    alice.post(Op::write_imm(local(&pd, &7_u64.to_ne_bytes()), .., remote, 5).tag(13)).unwrap();
    alice.post(Op::fetch_add(local(&pd, &[0; 16]), remote, 3).tag(14)).unwrap();
    alice.post(Op::compare_swap(local(&pd, &[0; 8]), remote, 10, 99).tag(15)).unwrap();
    alice.post(Op::read(local(&pd, &[0; 8]), .., remote).tag(16)).unwrap();
    alice.post(Op::send_imm_inline(b"", 6).tag(17)).unwrap();
    let sent: Vec<_> = (0..7).map(|_| alice.next().wait().unwrap()).collect();
    let of = |done: &Done<Mr<Buffer>>| (done.tag, done.len, done.opcode);
    assert_eq!(
        sent.iter().map(of).collect::<Vec<_>>(),
        [
            (11, 4, WcOpcode::SEND),
            (12, 6, WcOpcode::SEND),
            (13, 8, WcOpcode::RDMA_WRITE),
            (14, 8, WcOpcode::FETCH_ADD),
            (15, 8, WcOpcode::COMP_SWAP),
            (16, 8, WcOpcode::RDMA_READ),
            (17, 0, WcOpcode::SEND),
        ]
    );
    let word = |at: usize| {
        let mut word = [0; 8];
        sent[at].buffer.as_ref().unwrap().read(0, &mut word).unwrap();
        u64::from_ne_bytes(word)
    };
    assert_eq!([word(3), word(4), word(5)], [7, 10, 99]);
    let received: Vec<_> = (0..4).map(|_| bob.next().wait().unwrap()).collect();
    let of = |done: &Done<Mr<Buffer>>| (done.tag, done.imm, done.message().map(<[u8]>::to_vec));
    assert_eq!(
        received.iter().map(of).collect::<Vec<_>>(),
        [
            (1, Some(Imm(0x0102_0304)), Some(b"hell".to_vec())),
            (2, None, Some(b"inline".to_vec())),
            (3, Some(Imm(5)), None),
            (4, Some(Imm(6)), Some(Vec::new())),
        ]
    );
}

#[kernel_test]
fn unsignaled_runs_and_batches_complete_in_order() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob): (Endpoint<RegionMut>, Endpoint<RegionMut>) = endpoints(&pd, 8);
    let part = |len| RegionMut::register(&pd, Buffer::zeroed(len).unwrap()).unwrap();
    for receive in part(8 * 64).chunks(64) {
        bob.post(Op::recv(receive)).unwrap();
    }
    let mut whole = part(8 * 16);
    whole.bytes_mut().copy_from_slice(&std::array::from_fn::<u8, 128, _>(|at| at as u8 / 16));
    let mut batch = alice.batch();
    for (chunk, tag) in whole.chunks(16).zip(0..) {
        batch.post(Op::send(chunk, ..).tag(tag).unsignaled()).unwrap();
    }
    batch.ring().unwrap();
    for tag in 0..8 {
        // The send that filled the queue was signalled.
        assert_eq!(alice.next().wait_timeout(TIMEOUT).unwrap().unwrap().tag, tag);
        assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&[tag as u8; 16][..]));
    }
    assert_eq!((alice.pending(), bob.pending()), (0, 0));
}

#[kernel_test]
fn operations_of_a_dropped_batch_are_not_sent() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob): (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) = endpoints(&pd, 4);
    for _ in 0..3 {
        bob.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
    }
    // More of them than the queue takes at a time.
    for _ in 0..3 {
        let mut batch = alice.batch();
        for _ in 0..4 {
            batch.post(Op::send(local(&pd, b"dropped"), ..)).unwrap();
        }
        drop(batch);
        assert_eq!(alice.pending(), 0);
    }
    for (text, tag) in [(b"one", 1), (b"two", 2)] {
        let mut batch = alice.batch();
        batch.post(Op::send(local(&pd, text), ..).tag(tag)).unwrap();
        batch.ring().unwrap();
        assert_eq!(alice.next().wait_timeout(TIMEOUT).unwrap().unwrap().tag, tag);
        assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&text[..]));
    }
    assert_eq!((alice.pending(), bob.pending()), (0, 1));
}

#[kernel_test]
fn receive_without_a_buffer_takes_immediate_data() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob): (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) = endpoints(&pd, 4);
    let shared = region(&pd, &[b'.'; 8]);
    bob.post(Op::recv_empty().tag(5)).unwrap();
    bob.post(Op::recv_empty().tag(6)).unwrap();
    alice.post(Op::write_imm(local(&pd, b"word"), .., shared.remote(2).unwrap(), 7)).unwrap();
    alice.post(Op::send_imm(local(&pd, b"none"), ..0, 8)).unwrap();
    let received = [(); 2].map(|()| bob.next().wait_timeout(TIMEOUT).unwrap().unwrap());
    let [word, none] = received.map(|done| (done.tag, done.imm, done.buffer.is_none()));
    assert_eq!((word, none), ((5, Some(Imm(7)), true), (6, Some(Imm(8)), true)));
    assert_eq!(contents(&shared), b"..word..");
    // A message with bytes has no room.
    bob.post(Op::recv_empty().tag(7)).unwrap();
    alice.post(Op::send(local(&pd, b"bytes"), ..)).unwrap();
    let failed = bob.next().wait_timeout(TIMEOUT).unwrap().unwrap_err();
    assert_eq!((failed.tag, failed.is_recv(), failed.buffer.is_none()), (7, true, true), "{failed}");
}

#[kernel_test]
fn aborted_endpoint_returns_all_operations() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 8);
    bob.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
    alice.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
    alice.post(Op::send(local(&pd, b"first"), ..).tag(1).unsignaled()).unwrap();
    assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&b"first"[..]));
    assert!(alice.next().wait_timeout(Duration::from_millis(1)).is_none());
    alice.abort();
    let mut ended = 0;
    while alice.pending() > 0 {
        let buffer = match alice.next().wait_timeout(TIMEOUT).transpose() {
            Ok(done) => done.expect("no timeout").buffer,
            Err(failed) => failed.buffer,
        };
        ended += usize::from(buffer.is_some());
    }
    assert_eq!(ended, 2);
}

/// The peer has no receive, so its device asks for retries until the limit.
#[kernel_test]
fn close_whose_limit_passes_goes_on_or_is_aborted() {
    let pd = open().alloc_pd().unwrap();
    for abort in [false, true] {
        let (mut alice, mut bob) = endpoints(&pd, 4);
        alice.post(Op::recv(local(&pd, &[0; 8])).tag(1)).unwrap();
        alice.post(Op::send(local(&pd, b"late"), ..).tag(2)).unwrap();
        let mut closing = alice.close();
        assert!(closing.wait_timeout(Duration::from_millis(200)).is_none());
        let ended = if abort {
            closing.abort().wait().unwrap()
        } else {
            bob.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
            closing.wait_timeout(TIMEOUT).unwrap().unwrap()
        };
        assert_eq!(ended.len(), 2, "{ended:?}");
        for ended in ended {
            match ended {
                Ok(done) => assert!(!abort && done.tag == 2 && done.buffer.is_some(), "{done:?}"),
                Err(failed) => {
                    let text = "was flushed, because this side has ended the connection";
                    assert!(failed.to_string().ends_with(text), "{failed}");
                    assert!((abort || failed.is_recv()) && failed.buffer.is_some(), "{failed:?}");
                }
            }
        }
    }
}

#[kernel_test]
fn close_is_awaited_by_tasks() {
    async fn closes(runtime: impl Runtime, pd: Pd) {
        let (mut alice, mut bob) = endpoints(&pd, 4);
        alice.attach(runtime).unwrap();
        alice.post(Op::recv(local(&pd, &[0; 8])).tag(1)).unwrap();
        alice.post(Op::send(local(&pd, b"last"), ..).tag(2)).unwrap();
        let mut closing = alice.close();
        // The peer has no receive yet.
        let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut closing).poll(cx))).await;
        assert!(polled.is_pending(), "{polled:?}");
        bob.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
        let ended = closing.await.unwrap();
        assert!(
            matches!(&ended[..], [Ok(sent), Err(unused)] if sent.tag == 2 && unused.tag == 1),
            "{ended:?}"
        );
        assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&b"last"[..]));
    }
    let before = counts();
    let pd = open().alloc_pd().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(closes(Tokio, pd.clone()));
    async_io::block_on(closes(AsyncIo, pd));
    assert_eq!(counts(), before);
}

#[kernel_test]
fn closed_endpoint_returns_messages_and_unused_receives() {
    let before = counts();
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 4);
    for tag in 1..=2 {
        bob.post(Op::recv(local(&pd, &[0; 8])).tag(tag)).unwrap();
    }
    alice.post(Op::send(local(&pd, b"last"), ..)).unwrap();
    let ended = alice.close().wait_timeout(TIMEOUT).unwrap().unwrap();
    assert!(matches!(&ended[..], [Ok(done)] if done.opcode == WcOpcode::SEND), "{ended:?}");
    let received = bob.next().wait_timeout(TIMEOUT).unwrap().unwrap();
    assert_eq!(received.message(), Some(&b"last"[..]));
    let unused = bob.close().wait_timeout(TIMEOUT).unwrap().unwrap();
    assert!(matches!(&unused[..], [Err(failed)] if failed.tag == 2 && failed.buffer.is_some()), "{unused:?}");
    drop((ended, received, unused, pd));
    assert_eq!(counts(), before);
}

#[kernel_test]
fn closed_endpoint_waits_for_unsignaled_sends() {
    let pd = open().alloc_pd().unwrap();
    for receive in [false, true] {
        let (mut alice, mut bob) = endpoints(&pd, 4);
        if receive {
            alice.post(Op::recv(local(&pd, &[0; 8])).tag(2)).unwrap();
        }
        alice.post(Op::send(local(&pd, b"last"), ..).tag(1).unsignaled()).unwrap();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // Until then the peer's device repeats the message.
                std::thread::sleep(Duration::from_millis(50));
                bob.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
            });
            let start = Instant::now();
            let ended = alice.close().wait_timeout(TIMEOUT).unwrap().unwrap();
            assert!(start.elapsed() < TIMEOUT, "it does not wait for the receive");
            assert!(matches!(&ended[0], Ok(done) if done.tag == 1), "{ended:?}");
            assert_eq!(ended.len(), 1 + usize::from(receive), "{ended:?}");
        });
        assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&b"last"[..]));
    }
}

#[kernel_test]
fn failed_operation_returns_its_buffer() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 2);
    bob.post(Op::recv(local(&pd, b"..."))).unwrap();
    alice.post(Op::send(local(&pd, b"much too long"), ..)).unwrap();
    let failed = alice.next().wait().unwrap_err();
    let refused_by_peer = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_OP_ERR];
    assert!(
        matches!(failed.error, Error::Completion { verb: "Endpoint::post(Op::send)", status, .. } if refused_by_peer.contains(&status)),
        "{failed}"
    );
    assert_eq!(failed.buffer.unwrap().bytes(), Some(&b"much too long"[..]));
    let failed = bob.next().wait().unwrap_err();
    assert!(failed.to_string().starts_with("Endpoint::post(Op::recv) failed: LOC_"), "{failed}");
    assert_eq!(failed.buffer.unwrap().len(), 3);
}

#[kernel_test]
fn wait_without_pending_operations_is_rejected() {
    let pd = open().alloc_pd().unwrap();
    let mut endpoint = Endpoint::<Buffer>::new(&pd, 1, 1).unwrap();
    assert_eq!(
        endpoint.next().wait().unwrap_err().to_string(),
        "Endpoint::next: no operation is outstanding: post one first"
    );
    assert!(endpoint.poll().is_none());
}

#[kernel_test]
fn wait_timeout_ends() {
    let pd = open().alloc_pd().unwrap();
    let (mut alice, mut bob) = endpoints(&pd, 2);
    bob.post(Op::recv(local(&pd, &[0; 8]))).unwrap();
    assert!(bob.next().wait_timeout(Duration::from_millis(20)).is_none());
    assert_eq!(bob.pending(), 1);
    alice.post(Op::send(local(&pd, b"late"), ..)).unwrap();
    assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().message(), Some(&b"late"[..]));
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

fn with_work_under_way(pd: &Pd, freed: &Arc<AtomicUsize>) -> Endpoint<Mr<Watched>> {
    let (mut endpoint, _) = endpoints(pd, 4);
    for _ in 0..3 {
        let memory = Watched(Buffer::zeroed(64).unwrap(), Arc::clone(freed));
        endpoint.post(Op::recv(pd.register(memory, ALL_REMOTE).unwrap())).unwrap();
    }
    endpoint
}

#[kernel_test]
fn endpoint_dropped_with_outstanding_work_frees_its_buffers() {
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

#[kernel_test]
fn forgotten_endpoint_keeps_its_buffers() {
    let freed = Arc::new(AtomicUsize::new(0));
    let pd = open().alloc_pd().unwrap();
    let before = counts().mr;
    std::mem::forget(with_work_under_way(&pd, &freed));
    drop(pd);
    assert_eq!((freed.load(Ordering::Relaxed), counts().mr), (0, before + 3));
}
