use std::time::Instant;

use bareverbs::{
    Access, Buffer, Connection, Endpoint, Error, Hub, Op, Pd, Pending, Pool, PoolBuffer, RegionMut, WcStatus,
};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, contents, domain};
use bareverbs_kernel_tests::resources::{held, nothing_leaks, settles_at};
use bareverbs_kernel_tests::{TIMEOUT, cm, device, kernel_test};

/// Two connected ends on one hub.
pub(crate) fn pair<B>(hub: &Hub<B>, depth: u32) -> (Connection<B>, Connection<B>) {
    let (a, b) = (hub.connection(1, depth).unwrap(), hub.connection(1, depth).unwrap());
    let [to_a, to_b] = cm::introduce(a.address(), b.address());
    a.connect(&to_b).unwrap();
    b.connect(&to_a).unwrap();
    (a, b)
}

pub(crate) fn setup(entries: u32, buffers: usize) -> (Pd, Hub, Pool) {
    let pd = domain();
    let hub = Hub::new(&pd, entries).unwrap();
    let pool = Pool::new(&pd, buffers, 64).unwrap();
    (pd, hub, pool)
}

pub(crate) fn take(pool: &Pool) -> PoolBuffer {
    pool.take().expect("a free buffer")
}

/// A buffer whose 64 bytes are made from `seed`.
pub(crate) fn message(pool: &Pool, seed: u64) -> PoolBuffer {
    fill(take(pool), seed)
}

/// The buffer, whose 64 bytes are made from `seed`.
pub(crate) fn fill(mut buffer: PoolBuffer, seed: u64) -> PoolBuffer {
    for (at, word) in (0..).zip(buffer.bytes_mut().chunks_mut(8)) {
        word.copy_from_slice(&(seed.rotate_left(at * 7) ^ u64::from(at)).to_le_bytes());
    }
    buffer
}

/// The seed of a received message. Panics unless it is complete.
pub(crate) fn seed_of(bytes: &[u8]) -> u64 {
    assert_eq!(bytes.len(), 64);
    let word = |at: usize| u64::from_le_bytes(bytes[8 * at..][..8].try_into().unwrap());
    let seed = word(0);
    assert!((0..8).all(|at| seed.rotate_left(7 * at as u32) ^ at as u64 == word(at)), "{bytes:x?}");
    seed
}

#[kernel_test(device::immediates)]
fn hub_executes_every_operation() {
    nothing_leaks(|| {
        let (pd, hub, pool) = setup(16, 8);
        let options = Endpoint::options().sends(4).recvs(4).inline(32).access(ALL_REMOTE);
        let [a, b] = [(); 2].map(|()| hub.connection_with(&options).unwrap());
        let [to_a, to_b] = cm::introduce(a.address(), b.address());
        a.connect(&to_b).unwrap();
        b.connect(&to_a).unwrap();
        let mut target = pd.register(Buffer::zeroed(64).unwrap(), ALL_REMOTE).unwrap();
        let receives = [b.post(Op::recv(take(&pool))), b.post(Op::recv(take(&pool)))];
        a.post(Op::send(message(&pool, 1), ..)).wait().unwrap();
        a.post(Op::send_imm(message(&pool, 2), 8..64, 77)).wait().unwrap();
        let [first, second] = receives.map(|pending| pending.wait().unwrap());
        assert_eq!(seed_of(first.message().unwrap()), 1);
        assert_eq!(second.message().unwrap().len(), 56);

        a.post(Op::write(message(&pool, 3), .., target.remote(0).unwrap())).wait().unwrap();
        assert_eq!(seed_of(&contents(&target)), 3);
        let read = a.post(Op::read(take(&pool), .., target.remote(0).unwrap())).wait().unwrap();
        assert_eq!(seed_of(read.into_buffer().bytes()), 3);

        target.write(0, &[0; 8]).unwrap();
        let word = target.remote(0).unwrap();
        let old = |pending: Pending<PoolBuffer>| {
            let done = pending.wait().unwrap();
            u64::from_ne_bytes(done.into_buffer().bytes()[..8].try_into().unwrap())
        };
        let values =
            [a.post(Op::fetch_add(take(&pool), word, 5)), a.post(Op::compare_swap(take(&pool), word, 5, 9))]
                .map(old);
        assert_eq!(values, [0, 5]);
        assert_eq!(contents(&target)[..8], 9_u64.to_ne_bytes());

        let received = b.post(Op::recv(take(&pool)).tag(12));
        let mut inline = vec![Op::write_inline(&[6; 32], word), Op::send_inline(b"end").tag(11)];
        let mut reads = vec![Op::read(take(&pool), ..32, word).fenced().tag(10)];
        let mut pending = Vec::new();
        a.post_all(&mut inline, &mut pending);
        a.post_all(&mut reads, &mut pending);
        let done: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap()).collect();
        assert_eq!(done[2].buffer.as_ref().unwrap().bytes()[..32], [6; 32]);
        assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [0, 11, 10]);
        let received = received.wait().unwrap();
        assert_eq!((received.message(), received.tag), (Some(&b"end"[..]), 12));
        let long = a.post(Op::send_inline(&[0; 4096])).wait().unwrap_err();
        assert!(matches!(long.error, Error::Post(_)), "{long}");
    });
}

#[kernel_test(device::read_lists)]
fn header_and_body_are_one_message_of_a_hub() {
    nothing_leaks(|| {
        let (pd, hub, pool) = setup(16, 16);
        let options = Endpoint::options().sends(4).recvs(4).max_sge(2).access(ALL_REMOTE);
        let [a, b] = [(); 2].map(|()| hub.connection_with(&options).unwrap());
        let [to_a, to_b] = cm::introduce(a.address(), b.address());
        a.connect(&to_b).unwrap();
        b.connect(&to_a).unwrap();
        let text = |text: &[u8]| {
            let mut buffer = take(&pool);
            buffer.bytes_mut()[..text.len()].copy_from_slice(text);
            buffer
        };
        for round in 0..5 {
            let received = b.post(Op::recv_parts([(take(&pool), 0..4), (take(&pool), 0..64)]).tag(1));
            let sent = a.post(Op::send_parts([(text(b"headers"), 0..6), (text(b"body"), 0..4)]).tag(2));
            // The last buffer is awaited first.
            let [header, body] = received;
            let (body, header) = (body.wait().unwrap(), header.wait().unwrap());
            assert_eq!((header.message(), header.tag), (Some(&b"head"[..]), 1), "round {round}");
            assert_eq!((body.message(), body.tag), (Some(&b"erbody"[..]), 1), "round {round}");
            let sent = sent.map(|pending| pending.wait().unwrap());
            assert_eq!(sent.map(|done| (done.tag, done.len)), [(2, 6), (2, 4)]);
        }
        let target = pd.register(Buffer::zeroed(64).unwrap(), ALL_REMOTE).unwrap();
        let remote = target.remote(4).unwrap();
        let parts = [(text(b"one"), 0..3), (text(b"two"), 0..3)];
        for pending in a.post(Op::write_parts(parts, remote)) {
            pending.wait().unwrap();
        }
        assert_eq!(contents(&target)[..12], *b"\0\0\0\0onetwo\0\0");
        let read = a.post(Op::read_parts([(take(&pool), 1..3), (take(&pool), 0..4)], remote));
        let [first, second] = read.map(|pending| pending.wait().unwrap().into_buffer());
        assert_eq!((&first.bytes()[1..3], &second.bytes()[..4]), (&b"on"[..], &b"etwo"[..]));
        // More buffers than `max_sge`, or than the depth has room for, are refused.
        for refused in a.post(Op::send_parts([(); 3].map(|()| (take(&pool), 0..4)))) {
            assert!(matches!(refused.wait().unwrap_err().error, Error::Post(_)));
        }
        let posted = [(); 2].map(|()| b.post(Op::recv_parts([(); 2].map(|()| (take(&pool), ..)))));
        for refused in b.post(Op::recv_parts([(); 2].map(|()| (take(&pool), ..)))) {
            assert!(refused.wait().unwrap_err().is_full());
        }
        b.abort();
        for failed in posted.into_iter().flatten().map(|pending| pending.wait().unwrap_err()) {
            assert!(failed.is_recv() && failed.buffer.is_some(), "{failed}");
        }
        let lost = a.post(Op::send_parts([(text(b"lost"), 0..4), (text(b"too"), 0..3)]).tag(5));
        for failed in lost.map(|pending| pending.wait().unwrap_err()) {
            assert_eq!((failed.tag, failed.buffer.is_some()), (5, true), "{failed}");
        }
    });
}

#[kernel_test]
fn hub_room_is_reserved_and_released() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(8, 8);
        assert_eq!(hub.free_entries(), 8);
        let (a, b) = pair(&hub, 2);
        assert_eq!(hub.free_entries(), 0);
        let full = hub.connection(1, 1).unwrap_err();
        assert!(matches!(full, Error::Limit { verb: "Hub::connection", asked: 2, max: 0, .. }), "{full}");
        // With operations in flight, detached.
        drop([b.post(Op::recv(take(&pool))), b.post(Op::recv(take(&pool)))]);
        drop(b);
        assert_eq!(hub.free_entries(), 4);
        drop(a);
        assert_eq!(hub.free_entries(), 8);
        assert_eq!((0..8).map(|_| take(&pool)).collect::<Vec<_>>().len(), 8, "all buffers came back");
        for _ in 0..20 {
            let (a, b) = pair(&hub, 2);
            let received = b.post(Op::recv(take(&pool)));
            a.post(Op::send(message(&pool, 5), ..)).wait().unwrap();
            assert_eq!(seed_of(received.wait().unwrap().message().unwrap()), 5);
        }
        assert!(matches!(hub.connection(1, 0), Err(Error::Invalid { .. })));
        assert!(matches!(hub.connection(99, 1), Err(Error::NoPort { .. })));
        assert_eq!(hub.free_entries(), 8);
    });
}

#[kernel_test]
fn full_cq_at_its_exact_reserve_loses_nothing() {
    nothing_leaks(|| {
        const DEPTH: u32 = 16;
        let (_pd, hub, pool) = setup(4 * DEPTH, 4 * DEPTH as usize + 1);
        let (a, b) = pair(&hub, DEPTH);
        for round in 0..10 {
            let mut pending = Vec::new();
            for peer in [&a, &b] {
                pending.extend((0..DEPTH).map(|_| peer.post(Op::recv(take(&pool)))));
            }
            for peer in [&a, &b] {
                pending.extend((0..DEPTH).map(|_| peer.post(Op::send(message(&pool, round), ..))));
            }
            // No thread reaps until all have completed: the CQ is full.
            std::thread::sleep(std::time::Duration::from_millis(20));
            let refused = a.post(Op::send(take(&pool), ..)).wait().unwrap_err();
            assert!(refused.is_full(), "{refused}");
            for pending in pending {
                pending.wait().unwrap();
            }
        }
    });
}

#[kernel_test]
fn aborted_connection_returns_its_buffers() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(16, 8);
        let (a, b) = pair(&hub, 4);
        let receives: Vec<_> = (0..4).map(|_| b.post(Op::recv(take(&pool)))).collect();
        b.abort();
        for pending in receives {
            let failed = pending.wait().unwrap_err();
            assert!(
                matches!(failed.error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. }),
                "{failed}"
            );
            assert_eq!(failed.buffer.unwrap().len(), 64);
        }
        assert!(b.post(Op::recv(take(&pool))).wait().unwrap_err().buffer.is_some());
        assert!(a.failure().is_none());
    });
}

#[kernel_test(device::acknowledges)]
fn dead_peer_costs_its_connection_only() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(32, 16);
        let ((a, dead), (c, d)) = (pair(&hub, 4), pair(&hub, 4));
        let waiting = a.post(Op::recv(take(&pool)));
        drop(dead);
        let begin = Instant::now();
        let lost = a.post(Op::send(message(&pool, 1), ..));
        let received = d.post(Op::recv(take(&pool)));
        c.post(Op::send(message(&pool, 2), ..)).wait().unwrap();
        assert_eq!(seed_of(received.wait().unwrap().message().unwrap()), 2);
        let failed = lost.wait().unwrap_err();
        assert!(
            matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }),
            "{failed}"
        );
        assert!(begin.elapsed() < TIMEOUT);
        assert!(waiting.wait().unwrap_err().buffer.is_some());
        assert!(matches!(a.failure(), Some(Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. })));
        c.post(Op::send(message(&pool, 2), ..)).detach();
        d.post(Op::recv(take(&pool))).wait().unwrap();
    });
}

#[kernel_test]
fn qp_is_destroyed_with_its_last_handle() {
    let (_pd, hub, pool) = setup(16, 8);
    let before = held();
    let with_qps = |count| {
        let mut expected = before;
        expected.qp += count;
        // On iWARP, each connection registers the byte that probes of its peer read.
        expected.mr += if device::is_iwarp() { count } else { 0 };
        settles_at(expected);
    };
    let (a, b) = pair(&hub, 4);
    with_qps(2);
    let pending = b.post(Op::recv(take(&pool)));
    let clone = b.clone();
    drop((a, b));
    with_qps(1);
    drop(clone);
    // The operation keeps it.
    with_qps(1);
    drop(pending);
    with_qps(0);
}

#[kernel_test]
fn two_hundred_connections_share_a_cq() {
    nothing_leaks(|| {
        const PAIRS: usize = 100;
        let pd = domain();
        let hub = Hub::<RegionMut>::new(&pd, 4 * PAIRS as u32).unwrap();
        let memory =
            RegionMut::new(pd.register(Buffer::zeroed(128 * PAIRS).unwrap(), Access::LOCAL_WRITE).unwrap());
        let mut parts = memory.map_err(Error::from).unwrap().chunks(64);
        let pairs: Vec<_> = (0..PAIRS).map(|_| pair(&hub, 1)).collect();
        let mut pending = Vec::new();
        for (number, (a, b)) in pairs.iter().enumerate() {
            pending.push((number, b.post(Op::recv(parts.next().unwrap()))));
            let mut message = parts.next().unwrap();
            message.bytes_mut().fill(number as u8);
            a.post(Op::send(message, ..)).detach();
        }
        for (number, received) in pending.into_iter().rev() {
            assert_eq!(received.wait().unwrap().message().unwrap(), [number as u8; 64]);
        }
    });
}
