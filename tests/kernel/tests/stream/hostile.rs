//! Peers that are not streams, or break the protocol: a QP that is connected by hand.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::qp::QpState;
use bareverbs::{Access, Buffer, Endpoint, Op, RegionMut, Remote, RemoteRegion};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{InTime, TIMEOUT, device, kernel_test};
use bareverbs_rdmacm::event::{EventKind, RejectReason};
use bareverbs_rdmacm::stream::{OfferError, ProtocolError, RdmaStream, StreamError, StreamOptions};
use bareverbs_rdmacm::{CmId, ConnParam, Error, EventChannel, PortSpace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::any_port;

/// Private data of a stream with 16 credits, a table of data buffers, and no memory for data.
fn offer(table: Remote) -> Vec<u8> {
    let mut offer = vec![0; 40];
    offer[0] = 1;
    offer[3] = 16; // credits
    offer[8..16].copy_from_slice(&table.addr.to_be_bytes());
    offer[16..20].copy_from_slice(&table.rkey.to_be_bytes());
    offer[23] = 2; // entries of the table
    offer[39] = 64; // bytes of the data buffer
    offer
}

/// A peer that was made by hand, and what the listener made of it.
struct Asked {
    id: CmId,
    answer: EventKind,
    endpoint: Endpoint<RegionMut>,
    table: RemoteRegion,
    stream: Option<RdmaStream>,
}

/// What a listener answers to a request with the private data.
fn ask(private_data: impl Fn(Remote) -> Vec<u8>) -> Asked {
    ask_with(&StreamOptions::default(), private_data)
}

/// As [`ask`], of a listener with these options.
fn ask_with(options: &StreamOptions, private_data: impl Fn(Remote) -> Vec<u8>) -> Asked {
    let listener = options.listen(any_port()).unwrap();
    let addr = listener.local_addr();
    thread::scope(|scope| {
        let accepted =
            scope.spawn(|| listener.accept().wait_timeout(Duration::from_secs(1)).transpose().unwrap());
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        let event = || channel.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("an event").kind;
        id.resolve_addr(None, addr, TIMEOUT).unwrap();
        assert!(matches!(event(), EventKind::AddrResolved));
        id.resolve_route(TIMEOUT).unwrap();
        assert!(matches!(event(), EventKind::RouteResolved));
        let pd = device::open().alloc_pd().unwrap();
        let mut endpoint: Endpoint<RegionMut> = Endpoint::options().inline(64).build(&pd).unwrap();
        // Receives for the words of the stream.
        let words = RegionMut::register(&pd, Buffer::zeroed(64).unwrap()).unwrap();
        words.chunks(4).for_each(|word| endpoint.post(Op::recv(word)).unwrap());
        let table = RegionMut::register(&pd, Buffer::zeroed(32).unwrap()).unwrap();
        let table = table.expose(Access::REMOTE_WRITE).unwrap();
        let private_data = &private_data(table.remote(0).unwrap())[..];
        let param = ConnParam { private_data, ..ConnParam::new(endpoint.qp().qp_num()) };
        id.connect(&param).unwrap();
        let answer = event();
        if matches!(answer, EventKind::ConnectResponse(_)) {
            for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
                let (attr, mask) = id.init_qp_attr(state).unwrap();
                endpoint.modify_qp(&attr, mask).unwrap();
            }
            id.establish().unwrap();
        }
        Asked { id, answer, endpoint, table, stream: accepted.join().unwrap() }
    })
}

#[kernel_test(crate::has_ip, device::immediates)]
fn request_of_another_protocol_is_rejected() {
    nothing_leaks(|| {
        let another_version = |table| {
            let mut offer = offer(table);
            offer[0] = 2;
            offer
        };
        let foreign: [&dyn Fn(Remote) -> Vec<u8>; 3] =
            [&|_| Vec::new(), &|_| b"hello".to_vec(), &another_version];
        for private_data in foreign {
            let asked = ask(private_data);
            let EventKind::Rejected(rejected) = &asked.answer else { panic!("{:?}", asked.answer) };
            assert_eq!(rejected.reason, RejectReason::Consumer);
            assert!(asked.stream.is_none());
        }
    });
}

/// The error of a stream whose peer sends `words`.
fn error_after(words: &[u32]) -> StreamError {
    let Asked { id: _id, answer, mut endpoint, table: _table, stream } = ask(offer);
    assert!(matches!(answer, EventKind::ConnectResponse(_)), "{answer:?}");
    let mut stream = stream.expect("a stream");
    for word in words {
        let op = Op::write_imm_inline(&[], Remote { addr: 0, rkey: 0 }, *word);
        endpoint.post(op).unwrap();
    }
    stream.set_read_timeout(Some(TIMEOUT));
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    let error = error.into_inner().expect("the stream's error");
    *error.downcast::<StreamError>().expect("the stream's error")
}

#[kernel_test(crate::has_ip)]
fn peer_that_breaks_the_protocol_ends_its_stream() {
    nothing_leaks(|| {
        let data = |len: u32| len;
        let credits = |limit: u32| 4 << 29 | limit;
        for (words, expected) in [
            // Half of the receive buffer has 65,536 bytes.
            (vec![data(65_537)], ProtocolError::BeyondBuffer { len: 65_537, room: 65_536 }),
            (vec![data(65_000), data(1000)], ProtocolError::BeyondBuffer { len: 1000, room: 536 }),
            (vec![credits(40)], ProtocolError::Credits { limit: 40, sent: 0, window: 16 }),
            (vec![credits(15)], ProtocolError::Credits { limit: 15, sent: 0, window: 16 }),
            (vec![1 << 29], ProtocolError::UnknownWord(1 << 29)),
            (vec![6 << 29], ProtocolError::IomapIndex { index: 0, entries: 0 }),
        ] {
            let error = error_after(&words);
            assert!(matches!(error, StreamError::Protocol(found) if found == expected), "{error:?}");
        }
    });
}

#[kernel_test(crate::has_ip, device::immediates)]
fn announced_buffer_without_room_ends_the_stream() {
    nothing_leaks(|| {
        let with_memory = |memory: Remote| {
            let mut offer = offer(memory);
            offer[24..32].copy_from_slice(&memory.addr.to_be_bytes());
            offer[32..36].copy_from_slice(&memory.rkey.to_be_bytes());
            offer[39] = 32; // bytes of the data buffer
            offer
        };
        let Asked { id: _id, mut endpoint, table: _table, stream, .. } = ask(with_memory);
        let mut stream = stream.expect("a stream");
        stream.set_write_timeout(Some(TIMEOUT));
        // The word announces the second buffer, whose entry the peer has not written.
        endpoint.post(Op::write_imm_inline(&[], Remote { addr: 0, rkey: 0 }, 4 << 29 | 16)).unwrap();
        let error = stream.write_all(&[0; 33]).unwrap_err().into_inner().expect("the stream's error");
        let error = *error.downcast::<StreamError>().expect("the stream's error");
        assert!(matches!(error, StreamError::Protocol(ProtocolError::EmptyBuffer)), "{error:?}");
    });
}

#[kernel_test(crate::has_ip, device::immediates)]
fn vanished_peer_is_noticed() {
    nothing_leaks(|| {
        let Asked { id, endpoint, table, stream, .. } = ask(offer);
        let mut stream = stream.expect("a stream");
        // As the kernel does for a process that was killed.
        let gone = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop((endpoint, id, table));
        });
        stream.set_read_timeout(Some(TIMEOUT));
        assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
        gone.join().unwrap();
        stream.write_all(b"x").unwrap_err();
    });
}

/// Whichever thread reads the event, both know the end.
#[kernel_test(crate::has_ip, device::immediates)]
fn reader_is_woken_when_another_thread_reads_the_end_of_the_connection() {
    nothing_leaks(|| {
        for _ in 0..20 {
            let Asked { id, mut endpoint, table, stream, .. } = ask(offer);
            let stream = stream.expect("a stream");
            // The connection is established on this side, too.
            endpoint.post(Op::write_imm_inline(&[], Remote { addr: 0, rkey: 0 }, 7 << 29 | 1)).unwrap();
            stream.set_read_timeout(Some(TIMEOUT));
            thread::scope(|scope| {
                let reader = scope.spawn(|| stream.recv(&mut [0]));
                let end = thread::scope(|scope| {
                    // The reader sleeps by then.
                    scope.spawn(|| {
                        thread::sleep(Duration::from_millis(20));
                        drop((endpoint, id, table));
                    });
                    let start = Instant::now();
                    while !stream.is_readable().unwrap() {
                        assert!(start.elapsed() < TIMEOUT, "the end is not noticed");
                    }
                    Instant::now()
                });
                assert_eq!(reader.join().unwrap().unwrap(), 0);
                assert!(end.elapsed() < TIMEOUT / 2, "the reader sleeps up to its limit");
            });
        }
    });
}

/// Waits until the peer's messages have ended the stream, which is not read.
fn error_of(stream: &RdmaStream) -> StreamError {
    let begin = Instant::now();
    loop {
        stream.is_readable().unwrap();
        if let Some(error) = stream.error() {
            return error;
        }
        assert!(begin.elapsed() < TIMEOUT, "the stream goes on");
        thread::sleep(Duration::from_millis(1));
    }
}

#[kernel_test(crate::has_ip, device::immediates)]
fn messages_beyond_the_credits_end_the_stream() {
    nothing_leaks(|| {
        let options = StreamOptions::default().recvs(16);
        let Asked { id, mut endpoint, table: _table, stream, .. } = ask_with(&options, offer);
        let stream = stream.expect("a stream");
        for _ in 0..17 {
            // One byte, which the stream's owner does not read.
            endpoint.post(Op::write_imm_inline(&[], Remote { addr: 0, rkey: 0 }, 1)).unwrap();
            while endpoint.next().wait().unwrap().is_recv() {}
        }
        let error = error_of(&stream);
        assert!(matches!(error, StreamError::Protocol(ProtocolError::Overrun { window: 16 })), "{error:?}");
        // The peer gets a DREQ, although the stream was not dropped.
        let event = id.channel().next().wait_timeout(TIMEOUT).transpose().unwrap().expect("an event");
        assert!(matches!(event.kind, EventKind::Disconnected(None)), "{:?}", event.kind);
        id.disconnect().unwrap();
        drop(stream);
    });
}

#[kernel_test(crate::has_ip, device::immediates)]
fn message_without_immediate_data_ends_the_stream() {
    nothing_leaks(|| {
        let Asked { id: _id, mut endpoint, table: _table, stream, .. } = ask(offer);
        let stream = stream.expect("a stream");
        let pd = endpoint.qp().pd().clone();
        let message = RegionMut::register(&pd, Buffer::zeroed(4).unwrap()).unwrap();
        endpoint.post(Op::send(message, ..)).unwrap();
        let error = error_of(&stream);
        assert!(matches!(error, StreamError::Protocol(ProtocolError::MissingWord)), "{error:?}");
    });
}

/// Whether a call is worthwhile within `limit`.
fn is_ready(stream: &RdmaStream, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

#[kernel_test(crate::has_ip, device::immediates)]
fn flood_of_words_is_handled_in_bounded_steps() {
    nothing_leaks(|| {
        let Asked { id: _id, mut endpoint, table: _table, stream, .. } = ask(offer);
        let stream = stream.expect("a stream");
        stream.set_nonblocking(true);
        let read = || matches!(stream.recv(&mut [0; 1]).unwrap_err(), StreamError::WouldBlock);
        // What is left of the beginning, such as the first grant.
        while read() && is_ready(&stream, Duration::from_millis(100)) {}
        for _ in 0..200 {
            endpoint.post(Op::write_imm_inline(&[], Remote { addr: 0, rkey: 0 }, 7 << 29 | 1)).unwrap();
            while endpoint.pending_sends() > 0 {
                endpoint.next().wait().unwrap();
            }
        }
        // A call handles 64 completions before it arms the CQ, and 64 afterwards.
        assert!(read());
        assert!(is_ready(&stream, Duration::ZERO), "completions are left");
        assert!(read());
        // A device may raise an event for the completions that were there when the CQ was armed.
        assert!(!is_ready(&stream, Duration::ZERO) || read());
        assert!(!is_ready(&stream, Duration::ZERO));
    });
}

#[kernel_test(crate::has_ip)]
fn answer_of_another_protocol_is_an_error_of_connect() {
    nothing_leaks(|| {
        let nothing = Remote { addr: 0, rkey: 0 };
        let with = |at: usize, byte: u8| {
            let mut offer = offer(nothing);
            offer[at] = byte;
            offer
        };
        for (answer, expected) in [
            (Vec::new(), OfferError::Version(0)),
            (b"hello".to_vec(), OfferError::Version(b'h')),
            (with(0, 2), OfferError::Version(2)),
            (with(3, 0), OfferError::NoCredits),
            (with(23, 1), OfferError::Table(1)),
            (with(39, 0), OfferError::NoData),
        ] {
            let listener = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
            listener.bind_addr(any_port()).unwrap();
            listener.listen(1).unwrap();
            let addr = listener.addresses().unwrap().local.unwrap().ip().unwrap();
            let connecting = thread::spawn(move || RdmaStream::connect(addr).wait());
            let request = listener.request().in_time().unwrap();
            // The connection manager does not look at the queue pair.
            let param = ConnParam { private_data: &answer, ..ConnParam::new(0x77_0000) };
            let refused = request.accept(&param).unwrap().established().in_time().unwrap_err();
            assert!(matches!(refused, Error::Rejected(_)), "{refused}");
            let error = connecting.join().unwrap().unwrap_err();
            assert!(matches!(error, StreamError::Offer(found) if found == expected), "{error:?}");
        }
    });
}

#[kernel_test(crate::has_ip)]
fn peer_that_ends_during_the_handshake_has_rejected() {
    nothing_leaks(|| {
        let listener = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        listener.bind_addr(any_port()).unwrap();
        listener.listen(8).unwrap();
        let addr = listener.addresses().unwrap().local.unwrap().ip().unwrap();
        for round in 0..8 {
            let connected = thread::scope(|scope| {
                scope.spawn(|| {
                    let event = listener
                        .channel()
                        .next()
                        .wait_timeout(TIMEOUT)
                        .transpose()
                        .unwrap()
                        .expect("a request");
                    let EventKind::ConnectRequest(request) = event.kind else { panic!("{:?}", event.kind) };
                    let private_data = &offer(Remote { addr: 0, rkey: 0 })[..];
                    let param = ConnParam { private_data, ..ConnParam::new(0x77_0000 + round) };
                    drop(request.accept(&param).unwrap());
                });
                RdmaStream::connect(addr).wait()
            });
            // The handshake ends before the rejection arrives, or after.
            if let Err(error) = connected {
                let StreamError::Cm(error) = &error else { panic!("{error:?}") };
                assert!(matches!(**error, Error::Rejected(_)), "{error}");
            }
        }
    });
}

#[kernel_test(crate::has_ip)]
fn peer_that_gives_up_before_it_is_accepted_is_skipped() {
    nothing_leaks(|| {
        let listener = StreamOptions::default().listen(any_port()).unwrap();
        let addr = listener.local_addr();
        let gone = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        gone.resolve(None, addr).in_time().unwrap();
        let private_data = &offer(Remote { addr: 0, rkey: 0 })[..];
        gone.connect(&ConnParam { private_data, ..ConnParam::new(0x77_0100) }).unwrap();
        let limit = Timespec::try_from(TIMEOUT).unwrap();
        assert_eq!(poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&limit)), Ok(1));
        drop(gone);
        // Its rejection arrives soon.
        thread::sleep(Duration::from_millis(200));
        thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept().wait().unwrap());
            let mut connected = RdmaStream::connect(addr).wait().unwrap();
            connected.write_all(b"second").unwrap();
            let mut read = [0; 6];
            accepted.join().unwrap().read_exact(&mut read).unwrap();
            assert_eq!(&read, b"second");
        });
    });
}
