//! Streams across a wire that loses, delays and reorders packets.

use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::values::{AckTimeout, RetryCount};
use bareverbs_kernel_tests::wire::{End, Impairment, Wire, lossy_wire};
use bareverbs_kernel_tests::{InTime, TIMEOUT, kernel_test};
use bareverbs_rdmacm::IdOptions;
use bareverbs_rdmacm::stream::{RdmaStream, StreamError, StreamOptions};

use crate::pattern;

/// Both ends of a stream across the wire.
fn pair(retry_count: RetryCount) -> (RdmaStream, RdmaStream) {
    // A lost packet at the end of a message is repeated after this time, 67 ms.
    let ack_timeout = AckTimeout::new(14);
    let options = StreamOptions::default().id_options(IdOptions { ack_timeout, ..IdOptions::default() });
    let options = options.retry_count(retry_count);
    let listener = options.listen((End::Far.ip(), 0)).unwrap();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().wait().unwrap());
        (options.connect(listener.local_addr()).wait().unwrap(), accepted.join().unwrap())
    })
}

/// What ends a read that waits for a peer which is cut off.
fn read_without_a_peer(keepalive: Option<Duration>) -> StreamError {
    let wire = Wire::new();
    let error = {
        let (a, b) = pair(RetryCount::DEFAULT);
        for stream in [&a, &b] {
            stream.set_keepalive(keepalive).unwrap();
            stream.set_linger(Duration::ZERO);
        }
        // The probes of several intervals are no bytes of the stream, and take no credits.
        b.set_read_timeout(Some(Duration::from_millis(500)));
        assert!(matches!(b.recv(&mut [0]), Err(StreamError::TimedOut { .. })));
        (&a).write_all(b"x").unwrap();
        b.set_read_timeout(Some(TIMEOUT));
        (&b).read_exact(&mut [0]).unwrap();
        a.sent().in_time().unwrap();
        for end in [End::Near, End::Far] {
            wire.cut(end);
        }
        a.set_read_timeout(Some(Duration::from_secs(5)));
        a.recv(&mut [0]).unwrap_err()
    };
    wire.heal();
    wire.settle();
    error
}

#[kernel_test(lossy_wire)]
fn keepalive_notices_a_peer_that_is_cut_off() {
    let error = read_without_a_peer(Some(Duration::from_millis(100)));
    assert!(matches!(error, StreamError::Verbs(_)), "{error:?}");
    // Without it, the read has its time limit only.
    let error = read_without_a_peer(None);
    assert!(matches!(error, StreamError::TimedOut { .. }), "{error:?}");
}

/// The peer's device does not acknowledge the bytes.
#[kernel_test(lossy_wire)]
fn close_of_a_stream_ends_at_its_time_limit() {
    let limit = Duration::from_millis(200);
    let wire = Wire::new();
    {
        let (a, b) = pair(RetryCount::MAX);
        for stream in [&a, &b] {
            stream.set_linger(Duration::ZERO);
        }
        (&a).write_all(b"x").unwrap();
        (&b).read_exact(&mut [0]).unwrap();
        a.sent().in_time().unwrap();
        for end in [End::Near, End::Far] {
            wire.cut(end);
        }
        (&a).write_all(b"x").unwrap();
        assert!(a.close().wait_timeout(limit).is_none());
    }
    wire.heal();
    wire.settle();
}

/// Sends `blocks` blocks in both directions at once, and compares what arrives.
fn exchange(block: &[u8], blocks: usize) {
    // A block has 64 packets. Each that is lost or late counts as a retry of the block.
    let (a, b) = pair(RetryCount::MAX);
    let mut expected = DefaultHasher::new();
    (0..blocks).for_each(|_| expected.write(block));
    let expected = expected.finish();
    for stream in [&a, &b] {
        stream.set_write_timeout(Some(TIMEOUT));
    }
    thread::scope(|scope| {
        for stream in [&a, &b] {
            scope.spawn(move || {
                (0..blocks).for_each(|_| (&mut &*stream).write_all(block).unwrap());
                stream.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let (mut read, mut room) = (0, vec![0; block.len()]);
                let mut found = DefaultHasher::new();
                stream.set_read_timeout(Some(TIMEOUT));
                loop {
                    // Whole blocks, so that the hash is that of the blocks.
                    match (&mut &*stream).read_exact(&mut room) {
                        Ok(()) => found.write(&room),
                        Err(error) => break assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
                    }
                    read += 1;
                }
                assert_eq!((read, found.finish()), (blocks, expected));
            });
        }
    });
}

fn impaired(impairment: Impairment, blocks: usize) {
    let wire = Wire::new();
    let block = pattern(64 << 10);
    for end in [End::Near, End::Far] {
        wire.inject(end, impairment);
    }
    let begin = Instant::now();
    exchange(&block, blocks);
    println!("{} KiB each way in {:.1} s: {impairment}", 64 * blocks, begin.elapsed().as_secs_f64());
    wire.heal();
    wire.settle();
}

#[kernel_test(lossy_wire)]
fn streams_lose_nothing_when_packets_are_lost() {
    impaired(Impairment::Loss(1), 1024);
}

/// The delay is constant: netem's jitter also reorders nearly all packets.
#[kernel_test(lossy_wire)]
fn streams_lose_nothing_when_packets_are_late() {
    impaired(Impairment::Delay(Duration::from_millis(3)), 32);
}

#[kernel_test(lossy_wire)]
fn streams_lose_nothing_when_packets_overtake_each_other() {
    // Two of a hundred packets are late, so that those after them arrive first.
    impaired(Impairment::Reorder(Duration::from_millis(1), 2), 32);
}
