use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::thread;
use std::time::Duration;

use bareverbs::values::AckTimeout;
use bareverbs::{Access, Buffer, Errno, RegionMut, RemoteRegion};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{InTime, TIMEOUT, device, kernel_test};
use bareverbs_netlink::RdmaNetlink;
use bareverbs_rdmacm::IdOptions;
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::stream::{RdmaListener, RdmaStream, StreamError, StreamOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{any_port, listener, pair, pair_with, pattern};

#[kernel_test(crate::has_ip)]
pub(crate) fn stream_carries_bytes_both_ways() {
    nothing_leaks(|| {
        let (mut a, mut b) = pair();
        assert_eq!(a.peer_addr(), b.local_addr());
        assert_eq!(b.peer_addr(), a.local_addr());
        assert_eq!(a.peer_addr().ip(), any_port().ip());

        a.write_all(b"hello, bob").unwrap();
        let mut read = [0; 10];
        b.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"hello, bob");
        // A read returns what is there, and leaves the rest.
        b.write_all(b"hello, alice").unwrap();
        let mut read = [0; 5];
        a.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"hello");
        let mut rest = [0; 64];
        assert_eq!(a.read(&mut rest).unwrap(), 7);
        assert_eq!(&rest[..7], b", alice");
        assert_eq!(a.read(&mut []).unwrap(), 0);
        assert_eq!(a.write(&[]).unwrap(), 0);
    });
}

/// Sends `bytes` from `a` to `b` and the end after them.
fn transfer(mut a: impl Write + Send, b: &mut impl Read, bytes: &[u8], end: impl FnOnce() + Send) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(move || {
            a.write_all(bytes).unwrap();
            end();
        });
        let mut read = Vec::new();
        b.read_to_end(&mut read).unwrap();
        read
    })
}

#[kernel_test(crate::has_ip)]
pub(crate) fn large_transfer_arrives_whole() {
    nothing_leaks(|| {
        let (a, mut b) = pair();
        let bytes = pattern(8 << 20);
        let read = transfer(&a, &mut b, &bytes, || a.shutdown(std::net::Shutdown::Write).unwrap());
        assert!(read == bytes, "{} bytes of {}", read.len(), bytes.len());
    });
}

#[kernel_test(crate::has_ip)]
pub(crate) fn small_writes_arrive_in_order() {
    nothing_leaks(|| {
        let (mut a, mut b) = pair();
        let bytes = pattern(6000);
        thread::scope(|scope| {
            scope.spawn(|| bytes.chunks(3).for_each(|chunk| a.write_all(chunk).unwrap()));
            let mut read = vec![0; bytes.len()];
            b.read_exact(&mut read).unwrap();
            assert!(read == bytes);
        });
    });
}

#[kernel_test(crate::has_ip)]
fn small_buffers_carry_large_transfers() {
    nothing_leaks(|| {
        let options = StreamOptions::default().send_buffer(2048).recv_buffer(6).sends(16).recvs(16);
        let (a, mut b) = pair_with(&options);
        let bytes = pattern(3000);
        let read = transfer(&a, &mut b, &bytes, || a.shutdown(std::net::Shutdown::Write).unwrap());
        assert!(read == bytes, "{} bytes of {}", read.len(), bytes.len());
    });
}

#[kernel_test(crate::has_ip)]
pub(crate) fn both_ends_send_at_once_from_two_threads() {
    nothing_leaks(|| {
        let (a, b) = pair();
        let bytes = pattern(2 << 20);
        thread::scope(|scope| {
            for stream in [&a, &b] {
                let bytes = &bytes;
                scope.spawn(move || {
                    let mut stream = stream;
                    stream.write_all(bytes).unwrap();
                });
                scope.spawn(move || {
                    let mut stream = stream;
                    let mut read = vec![0; bytes.len()];
                    stream.read_exact(&mut read).unwrap();
                    assert!(&read == bytes);
                });
            }
        });
    });
}

#[kernel_test(crate::has_ip)]
fn reader_is_woken_when_another_thread_handles_its_completion() {
    nothing_leaks(|| {
        let options = StreamOptions::default().send_buffer(2048).recv_buffer(64).sends(16).recvs(16);
        let (mut a, b) = pair_with(&options);
        // The other end does not read, so that `b` is not writable, and each look at it arms.
        b.set_write_timeout(Some(Duration::from_millis(50)));
        while (&b).write(&[0; 64]).is_ok() {}
        assert!(!b.is_writable().unwrap());
        b.set_read_timeout(Some(TIMEOUT));
        thread::scope(|scope| {
            let (answer, answers) = std::sync::mpsc::channel();
            let mut reader = b.handle();
            scope.spawn(move || {
                for _ in 0..100 {
                    reader.read_exact(&mut [0]).unwrap();
                    answer.send(()).unwrap();
                }
            });
            for round in 0..100 {
                // The reader sleeps.
                thread::sleep(Duration::from_millis(1));
                a.write_all(b"x").unwrap();
                let start = std::time::Instant::now();
                while answers.try_recv().is_err() {
                    b.is_writable().unwrap();
                    assert!(start.elapsed() < TIMEOUT, "the reader sleeps in round {round}");
                }
            }
        });
    });
}

#[kernel_test(crate::has_ip)]
pub(crate) fn full_stream_blocks_its_writer_until_the_peer_reads() {
    nothing_leaks(|| {
        let (mut a, mut b) = pair();
        a.set_nonblocking(true);
        let bytes = pattern(1 << 20);
        let mut sent = 0;
        loop {
            match a.write(&bytes[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Completions of the messages may still free room in the send buffer.
                    thread::sleep(Duration::from_millis(50));
                    if !a.is_writable().unwrap() {
                        break;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        // The peer's receive buffer has 128 KiB.
        assert_eq!(sent, 128 << 10);
        let mut read = vec![0; sent];
        b.read_exact(&mut read).unwrap();
        assert!(read == bytes[..sent]);
        // The grant of the room is on its way.
        a.set_nonblocking(false);
        a.set_write_timeout(Some(TIMEOUT));
        a.write_all(b"more").unwrap();
    });
}

#[kernel_test(crate::has_ip)]
fn descriptor_tells_when_a_call_is_worthwhile() {
    nothing_leaks(|| {
        let (a, mut b) = pair();
        let limit = Timespec::try_from(TIMEOUT).unwrap();
        b.set_nonblocking(true);
        let mut read = [0; 16];
        // What is left of the beginning, such as the first grant.
        loop {
            assert_eq!(b.read(&mut read).unwrap_err().kind(), ErrorKind::WouldBlock);
            let waited = poll(
                &mut [PollFd::new(&b, PollFlags::IN)],
                Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }),
            );
            if waited.unwrap() == 0 {
                break;
            }
        }
        (&a).write_all(b"now").unwrap();
        loop {
            assert_eq!(poll(&mut [PollFd::new(&b, PollFlags::IN)], Some(&limit)).unwrap(), 1);
            match b.read(&mut read) {
                Ok(len) => break assert_eq!(&read[..len], b"now"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        assert!(a.is_writable().unwrap());
        assert!(!a.is_readable().unwrap());
        let readiness = a.readiness().unwrap();
        assert_eq!((readiness.readable, readiness.writable), (false, true));
    });
}

/// Memory of the stream's protection domain that the peer may write.
fn exposed(stream: &RdmaStream, len: usize) -> RemoteRegion {
    let part = RegionMut::register(stream.pd(), Buffer::zeroed(len).unwrap()).unwrap();
    part.expose(Access::REMOTE_WRITE).unwrap()
}

fn write_all_mapped(stream: &RdmaStream, bytes: &[u8], offset: u64) {
    let mut written = 0;
    while written < bytes.len() {
        written += stream.write_mapped(&bytes[written..], offset + written as u64).unwrap();
    }
}

#[kernel_test(crate::has_ip)]
pub(crate) fn mapped_memory_is_written_directly() {
    const LEN: usize = 100 << 10;
    nothing_leaks(|| {
        let options = StreamOptions::default().iomap_size(2);
        let (mut a, mut b) = pair_with(&options);
        let memory = [exposed(&a, LEN), exposed(&a, LEN)];
        // Two mappings that follow each other.
        assert_eq!(a.map(&memory[0], 1 << 40).unwrap(), 0);
        assert_eq!(a.map(&memory[1], (1 << 40) + LEN as u64).unwrap(), 1);
        assert!(matches!(a.map(&exposed(&a, 1), 9), Err(StreamError::IomapFull { entries: 2 })));
        // The peer knows the mappings when it has read what was sent after them.
        a.write_all(b"mapped").unwrap();
        b.read_exact(&mut [0; 6]).unwrap();
        assert!(matches!(b.write_mapped(b"x", 0), Err(StreamError::NotMapped { offset: 0 })));

        let bytes = pattern(2 * LEN);
        write_all_mapped(&b, &bytes, 1 << 40);
        // The bytes are there before the byte that was sent after them.
        b.write_all(b"!").unwrap();
        a.read_exact(&mut [0]).unwrap();
        for (memory, expected) in memory.iter().zip(bytes.chunks(LEN)) {
            let mut found = vec![0; LEN];
            memory.read(0, &mut found).unwrap();
            assert!(found == expected);
        }
    });
}

#[kernel_test(crate::has_ip)]
pub(crate) fn mappings_are_renewed_more_often_than_there_are_receives() {
    const ROUNDS: u64 = 100;
    nothing_leaks(|| {
        let options = StreamOptions::default().iomap_size(1).sends(16).recvs(16);
        let (mut a, mut b) = pair_with(&options);
        let memory = exposed(&a, 64);
        let peer = thread::spawn(move || {
            let mut bytes = [0; 8];
            for round in 0..ROUNDS {
                b.read_exact(&mut bytes).unwrap();
                let offset = u64::from_le_bytes(bytes);
                assert_eq!(offset, round << 20);
                write_all_mapped(&b, &[round as u8; 64], offset);
                b.write_all(b"!").unwrap();
            }
        });
        for round in 0..ROUNDS {
            // Each word takes a receive of the peer and no credit.
            let mut mapping = 0;
            for attempt in 0..3 {
                mapping = a.map(&memory, (round << 20) + attempt).unwrap();
                if attempt < 2 {
                    a.unmap(mapping);
                }
            }
            a.unmap(mapping);
            a.map(&memory, round << 20).unwrap();
            a.write_all(&(round << 20).to_le_bytes()).unwrap();
            a.read_exact(&mut [0]).unwrap();
            let mut found = [0; 64];
            memory.read(0, &mut found).unwrap();
            assert_eq!(found, [round as u8; 64]);
            a.unmap(0);
        }
        peer.join().unwrap();
    });
}

/// The device files that this process has open.
fn open_devices() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    targets.filter(|target| target.starts_with("/dev/infiniband") && !target.ends_with("rdma_cm")).count()
}

#[kernel_test(crate::has_ip, device::has_device_node)]
fn streams_share_the_open_device_of_the_process() {
    nothing_leaks(|| {
        let before = open_devices();
        let (a, b) = pair();
        assert_eq!(open_devices(), before + 1);
        let own = Domains::default();
        let (c, _d) = pair_with(&StreamOptions::default().domains(&own));
        assert_eq!(open_devices(), before + 2);
        let (e, f) = pair();
        assert_eq!(open_devices(), before + 2);
        drop((a, b, e, f));
        assert_eq!(open_devices(), before + 1);
        drop(own);
        assert_eq!(c.pd().context().device().name(), bareverbs_kernel_tests::device::name());
    });
}

#[kernel_test(crate::has_ip)]
fn stream_has_the_options_of_its_identifier() {
    nothing_leaks(|| {
        let source = SocketAddr::new(any_port().ip(), 0);
        let id_options = IdOptions {
            source: Some(source.into()),
            tos: Some(0x20),
            ack_timeout: AckTimeout::new(15),
            reuse_addr: true,
            backlog: 3,
            ..IdOptions::default()
        };
        let (mut a, mut b) = pair_with(&StreamOptions::default().id_options(id_options));
        assert_eq!(a.local_addr().ip(), source.ip());
        a.write_all(b"x").unwrap();
        b.read_exact(&mut [0]).unwrap();
        // An address of another host.
        let foreign = IdOptions { source: Some((Ipv4Addr::new(192, 0, 2, 1), 0).into()), ..id_options };
        let refused = StreamOptions::default().id_options(foreign).connect(listener().1).wait().unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::ADDRNOTAVAIL), "{refused}");
    });
}

#[kernel_test(crate::has_ip)]
fn fifty_streams_share_a_listener() {
    const STREAMS: usize = 50;
    nothing_leaks(|| {
        let options = StreamOptions::default().send_buffer(4096).recv_buffer(4096).sends(16).recvs(16);
        let (listener, addr) = listener();
        thread::scope(|scope| {
            scope.spawn(|| {
                let accepted: Vec<_> = (0..STREAMS).map(|_| listener.accept().wait().unwrap()).collect();
                for mut stream in accepted {
                    let mut read = [0; 2];
                    stream.read_exact(&mut read).unwrap();
                    stream.write_all(&read).unwrap();
                    stream.close().in_time().unwrap();
                }
            });
            let connected: Vec<_> = (0..STREAMS).map(|_| options.connect(addr).wait().unwrap()).collect();
            for (number, mut stream) in connected.into_iter().enumerate() {
                let bytes = (number as u16).to_le_bytes();
                stream.write_all(&bytes).unwrap();
                let mut read = Vec::new();
                stream.read_to_end(&mut read).unwrap();
                assert_eq!(read, bytes);
            }
        });
    });
}

/// The sum of the device's counters of packets that were sent again, or out of order.
fn retransmissions() -> u64 {
    const NAMES: [&str; 4] =
        ["duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"];
    let mut netlink = RdmaNetlink::open().unwrap();
    let counters = netlink.port_counters(device::name(), 1).unwrap().expect("the device counts");
    let counted: Vec<_> = counters.iter().filter(|counter| NAMES.contains(&counter.name.as_str())).collect();
    assert_eq!(counted.len(), NAMES.len(), "{counters:?}");
    counted.iter().map(|counter| counter.value).sum()
}

/// The peer's QP is moved to RTR after the response to its request has arrived.
#[kernel_test(device::soft_roce)]
fn accepting_side_sends_nothing_before_its_peer_can_receive() {
    nothing_leaks(|| {
        let before = retransmissions();
        for round in 0..20 {
            let (listener, addr) = listener();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut accepted = listener.accept().wait().unwrap();
                    match round % 4 {
                        // Each kind of first message.
                        0 => accepted.write_all(&[7]).unwrap(),
                        1 => assert!(!accepted.is_readable().unwrap()),
                        2 => accepted.set_keepalive(Some(Duration::from_millis(1))).unwrap(),
                        _ => {}
                    }
                    accepted.shutdown(std::net::Shutdown::Write).unwrap();
                    // The queue pair exists until the peer's messages are acknowledged.
                    assert_eq!(accepted.read_to_end(&mut Vec::new()).unwrap(), 0);
                });
                let mut connected = RdmaStream::connect(addr).wait().unwrap();
                let mut read = Vec::new();
                connected.read_to_end(&mut read).unwrap();
                assert_eq!(read.len(), usize::from(round % 4 == 0));
                connected.close().in_time().unwrap();
            });
        }
        assert_eq!(retransmissions(), before);
    });
}

#[kernel_test(device::has_netdev, device::gid_table)]
fn ipv6_streams_carry_bytes() {
    nothing_leaks(|| {
        let table = bareverbs_kernel_tests::device::open().gid_table().unwrap();
        let entry = table.iter().find(|entry| entry.gid.is_link_local()).expect("a link-local address");
        let addr = SocketAddrV6::new(entry.gid.0.into(), 0, 0, entry.netdev_ifindex);
        let listener = RdmaListener::bind(addr).unwrap();
        thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept().wait().unwrap());
            let mut a = RdmaStream::connect(listener.local_addr()).wait().unwrap();
            let mut b = accepted.join().unwrap();
            assert!(a.local_addr().is_ipv6() && a.peer_addr().ip() == *addr.ip());
            a.write_all(b"six").unwrap();
            let mut read = [0; 3];
            b.read_exact(&mut read).unwrap();
            assert_eq!(&read, b"six");
        });
    });
}
