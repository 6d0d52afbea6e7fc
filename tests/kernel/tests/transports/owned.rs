//! Datagrams of the safe layer.

use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::time::Duration;

use bareverbs::datagram::{DatagramAddress, DatagramDone, ReceivedDatagram};
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{GRH_BYTES, QpState};
use bareverbs::runtime::{AsyncIo, Tokio};
use bareverbs::values::GidIndex;
use bareverbs::{Datagrams, Destination, Errno, Error, Gid, Imm, Op, Pool, PoolBuffer, WcStatus};
use bareverbs_kernel_tests::{device, kernel_test};
use futures_core::Stream;

use crate::host::{Host, QKEY, QUIET, TIMEOUT, on_device};
use crate::multicast::LID;

/// Length of most messages.
const LEN: usize = 64;

fn pool(host: &Host) -> Pool {
    Pool::new(&host.pd, 32, GRH_BYTES + LEN).unwrap()
}

fn datagrams(host: &Host) -> Datagrams {
    Datagrams::options().qkey(QKEY).inline(LEN as u32).build(&host.pd).unwrap()
}

fn message(pool: &Pool, text: &[u8]) -> PoolBuffer {
    let mut buffer = pool.take().unwrap();
    buffer.bytes_mut()[..text.len()].copy_from_slice(text);
    buffer
}

fn wait_recv(datagrams: &mut Datagrams) -> ReceivedDatagram<PoolBuffer> {
    datagrams.next_recv().wait_timeout(TIMEOUT).transpose().unwrap().expect("a datagram")
}

fn is_quiet(datagrams: &mut Datagrams) -> bool {
    datagrams.next_recv().wait_timeout(QUIET).is_none()
}

#[kernel_test]
fn owned_datagrams_are_received_and_answered() {
    on_device(|host| {
        let (pool, mut alice, mut bob) = (pool(host), datagrams(host), datagrams(host));
        for tag in 1..=3 {
            bob.post(Op::recv(pool.take().unwrap()).tag(tag)).unwrap();
        }
        let to: DatagramAddress = bob.address().to_string().parse().unwrap();
        let to = alice.destination(&to).wait().unwrap();
        assert_eq!((to.qp_num(), to.qkey()), (bob.qp().qp_num(), QKEY));
        alice.post(Op::send_to(&to, message(&pool, b"a buffer"), ..8)).unwrap();
        alice.post(Op::send_to_imm(&to, message(&pool, b"..and a number"), 2..14, 77)).unwrap();
        alice.post(Op::send_to_imm_inline(&to, b"inline", 78).tag(7).solicited()).unwrap();

        let expected = [(&b"a buffer"[..], None), (b"and a number", Some(77)), (b"inline", Some(78))];
        for ((text, imm), tag) in expected.into_iter().zip(1..) {
            let received = wait_recv(&mut bob);
            assert_eq!((received.message(), received.imm()), (text, imm.map(Imm)));
            assert_eq!(received.tag(), tag);
            let sender = received.sender();
            assert_eq!((sender.qp_num, sender.gid), (alice.qp().qp_num(), Some(alice.address().gid)));
            assert_eq!(sender.lid, alice.address().lid);
            assert_eq!(received.grh().unwrap().dgid, bob.address().gid);
            assert_eq!(received.ah_attr(&bob).unwrap().grh.unwrap().dgid, alice.address().gid);
            if tag == 3 {
                let back = received.reply_to(&bob).wait().unwrap();
                alice.post(Op::recv(pool.take().unwrap())).unwrap();
                bob.post(Op::send_to_inline(&back, b"and back")).unwrap();
            }
        }
        assert_eq!(wait_recv(&mut alice).message(), b"and back");
        for (tag, len, has_buffer) in [(0, 8, true), (0, 12, true), (7, 6, false)] {
            let sent = alice.next_send().wait().unwrap();
            assert_eq!((sent.tag, sent.len, sent.buffer.is_some()), (tag, len, has_buffer));
        }
        assert!(matches!(bob.next().wait().unwrap(), DatagramDone::Sent(_)));
        assert_eq!((alice.pending(), bob.pending()), (0, 0));
    });
}

fn group_of(datagrams: &Datagrams, group: Gid) -> Destination {
    let mut address = DatagramAddress::group(group, QKEY);
    if device::is_infiniband() {
        address.lid = LID;
        return datagrams.destination(&address).wait().unwrap();
    }
    datagrams.group(group).wait().unwrap()
}

fn join(datagrams: &mut Datagrams, group: Gid) -> Result<(), Error> {
    if device::is_infiniband() { datagrams.join_with_lid(group, LID) } else { datagrams.join(group) }
}

#[kernel_test]
fn owned_datagrams_to_a_group_reach_its_members() {
    on_device(|host| {
        let (pool, mut sender) = (pool(host), datagrams(host));
        let group = Gid::from(std::net::Ipv4Addr::new(239, 7, 7, 11));
        let to = group_of(&sender, group);
        let mut members = [datagrams(host), datagrams(host)];
        for member in &mut members {
            join(member, group).unwrap();
            join(member, group).expect("once more changes nothing");
            member.post(Op::recv(pool.take().unwrap())).unwrap();
        }
        sender.post(Op::send_to_inline(&to, b"to all")).unwrap();
        sender.next_send().wait().unwrap();
        let (pool_len, own) = (GRH_BYTES + LEN, sender.address());
        for member in &mut members {
            let received = wait_recv(member);
            assert_eq!((received.message(), received.grh().unwrap().dgid), (&b"to all"[..], group));
            assert_eq!((received.sender().qp_num, received.sender().gid), (own.qp_num, Some(own.gid)));
            received.reply_to(member).wait().unwrap();
            let buffer = received.into_buffer();
            assert_eq!(buffer.len(), pool_len);
            member.post(Op::recv(buffer)).unwrap();
        }
        let [leaves, stays] = &mut members;
        leaves.leave(group).unwrap();
        assert!(matches!(leaves.leave(group), Err(Error::Invalid { .. })));
        sender.post(Op::send_to_inline(&to, b"to one")).unwrap();
        assert_eq!(wait_recv(stays).message(), b"to one");
        assert!(is_quiet(leaves));
        assert!(matches!(stays.join(stays.address().gid), Err(Error::Invalid { .. })), "no multicast GID");
    });
}

#[kernel_test]
fn owned_datagrams_have_the_length_of_a_packet() {
    on_device(|host| {
        let (mut alice, mut bob) = (datagrams(host), datagrams(host));
        let max = alice.max_message() as usize;
        let pool = Pool::new(&host.pd, 4, GRH_BYTES + max).unwrap();
        let to = alice.destination(&bob.address()).wait().unwrap();
        let mut longest = pool.take().unwrap();
        longest.bytes_mut().fill(7);
        bob.post(Op::recv(pool.take().unwrap())).unwrap();
        bob.post(Op::recv(pool.take().unwrap())).unwrap();
        alice.post(Op::send_to(&to, longest, ..max)).unwrap();
        assert_eq!(wait_recv(&mut bob).message(), vec![7; max]);
        let longest = alice.next_send().wait().unwrap().into_buffer();
        let refused = alice.post(Op::send_to(&to, longest, ..=max)).unwrap_err();
        let Error::Post(error) = &refused.error else { panic!("{refused}") };
        let PostReason::Queue(PushError::DatagramTooLong { given, max: limit }) = error.reason else {
            panic!("{refused}")
        };
        assert_eq!((given as usize, limit as usize), (max + 1, max));
        drop(refused);
        // An empty datagram has a GRH only.
        alice.post(Op::send_to_inline(&to, b"")).unwrap();
        assert_eq!(wait_recv(&mut bob).message(), b"");

        let small = Pool::new(&host.pd, 1, GRH_BYTES).unwrap();
        let refused = bob.post(Op::recv(small.take().unwrap())).unwrap_err();
        assert!(matches!(refused.error, Error::BufferTooShort { len: 40, min: 41, .. }), "{refused}");
        assert_eq!(refused.object.into_buffer().bytes().len(), GRH_BYTES);
        assert_eq!(bob.pending_recvs(), 0);
    });
}

/// A datagram that is longer than the receive never completes it successfully.
#[kernel_test]
fn datagram_beyond_its_receive_is_no_message() {
    on_device(|host| {
        let (pool, mut alice, mut bob) = (pool(host), datagrams(host), datagrams(host));
        let short = Pool::new(&host.pd, 1, GRH_BYTES + 1).unwrap();
        let to = alice.destination(&bob.address()).wait().unwrap();
        bob.post(Op::recv(short.take().unwrap())).unwrap();
        bob.post(Op::recv(pool.take().unwrap())).unwrap();
        alice.post(Op::send_to_inline(&to, b"too long")).unwrap();
        alice.next_send().wait().unwrap();
        match bob.next_recv().wait_timeout(QUIET).transpose() {
            Ok(received) => assert!(received.is_none(), "{received:?}"),
            Err(failed) => {
                assert!(failed.is_recv() && failed.buffer.is_some(), "{failed}");
                assert!(matches!(failed.error, Error::Completion { .. }), "{failed}");
            }
        }
    });
}

#[kernel_test]
fn aborted_datagrams_return_their_buffers() {
    on_device(|host| {
        let (pool, mut alice, bob) = (pool(host), datagrams(host), datagrams(host));
        let to = alice.destination(&bob.address()).wait().unwrap();
        for tag in 0..4 {
            alice.post(Op::recv(pool.take().unwrap()).tag(tag)).unwrap();
        }
        alice.post(Op::send_to(&to, message(&pool, b"x"), ..1).tag(9).unsignaled()).unwrap();
        alice.abort();
        assert_eq!(alice.qp().state(), QpState::ERR);
        let mut buffers = 0;
        while alice.pending() > 0 {
            match alice.next().wait_timeout(TIMEOUT).transpose() {
                Ok(done) => {
                    let DatagramDone::Sent(sent) = done.expect("in time") else {
                        panic!("no datagram was sent")
                    };
                    assert_eq!(sent.tag, 9);
                    buffers += u32::from(sent.buffer.is_some());
                }
                Err(failed) => {
                    let status = WcStatus::WR_FLUSH_ERR;
                    assert!(
                        matches!(failed.error, Error::Completion { status: s, .. } if s == status),
                        "{failed}"
                    );
                    buffers += u32::from(failed.buffer.is_some());
                }
            }
        }
        assert_eq!(buffers, 5);
        let refused = alice.post(Op::recv(pool.take().unwrap())).unwrap_err();
        assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
        let refused = alice.post(Op::send_to_inline(&to, b"x")).unwrap_err();
        assert!(matches!(refused, Error::Closed { .. }), "{refused}");
        let failed = alice.next().wait().unwrap_err();
        assert!(matches!(failed.error, Error::Invalid { .. }), "{failed}");
    });
}

#[kernel_test]
fn destination_may_be_dropped_before_its_sends_complete() {
    on_device(|host| {
        let (pool, mut alice, mut bob) = (pool(host), datagrams(host), datagrams(host));
        for _ in 0..8 {
            bob.post(Op::recv(pool.take().unwrap())).unwrap();
        }
        for number in 0..8 {
            let to = alice.destination(&bob.address()).wait().unwrap();
            let op = Op::send_to(&to, message(&pool, &[number]), ..1).tag(number.into());
            alice.post(if number % 2 == 0 { op.unsignaled() } else { op }).unwrap();
        }
        for number in 0..8 {
            assert_eq!(wait_recv(&mut bob).message(), [number]);
            assert_eq!(alice.next_send().wait().unwrap().tag, number.into());
        }
    });
}

#[kernel_test]
fn closed_datagrams_return_every_operation() {
    on_device(|host| {
        let (pool, mut alice, mut bob) = (pool(host), datagrams(host), datagrams(host));
        let to = alice.destination(&bob.address()).wait().unwrap();
        for tag in 1..=3 {
            bob.post(Op::recv(pool.take().unwrap()).tag(tag)).unwrap();
        }
        alice.post(Op::send_to_inline(&to, b"first").unsignaled().tag(1)).unwrap();
        alice.post(Op::send_to_inline(&to, b"second").tag(2)).unwrap();
        let sent = alice.close().wait_timeout(TIMEOUT).unwrap().unwrap();
        assert_eq!(sent.iter().filter(|ended| ended.is_ok()).count(), 2, "{sent:?}");
        assert_eq!(wait_recv(&mut bob).message(), b"first");
        // The second one is not polled, and stays in the CQ.
        std::thread::sleep(QUIET);
        let ended = bob.close().wait_timeout(TIMEOUT).unwrap().unwrap();
        let messages = ended.into_iter().map(|ended| match ended {
            Ok(done) => done.into_received().map(|received| received.message().to_vec()),
            Err(failed) => {
                assert!(failed.is_recv() && failed.buffer.is_some(), "{failed}");
                None
            }
        });
        assert_eq!(messages.collect::<Vec<_>>(), [Some(b"second".to_vec()), None]);
    });
}

#[kernel_test]
fn full_queues_of_datagrams_accept_posts_after_a_completion() {
    on_device(|host| {
        let pool = pool(host);
        let options = Datagrams::options().qkey(QKEY).sends(2).recvs(2).inline(LEN as u32);
        let mut datagrams: Datagrams = options.build(&host.pd).unwrap();
        let own = datagrams.destination(&datagrams.address()).wait().unwrap();
        for _ in 0..2 {
            datagrams.post(Op::recv(pool.take().unwrap())).unwrap();
            datagrams.post(Op::send_to_inline(&own, b"x")).unwrap();
        }
        let refused = datagrams.post(Op::recv(pool.take().unwrap())).unwrap_err();
        assert!(refused.is_full(), "{refused}");
        assert!(datagrams.post(Op::send_to_inline(&own, b"x")).unwrap_err().is_full());
        for _ in 0..100 {
            let received = wait_recv(&mut datagrams);
            datagrams.post(Op::recv(received.into_buffer())).unwrap();
            datagrams.next_send().wait().unwrap();
            datagrams.post(Op::send_to_inline(&own, b"x")).unwrap();
        }
    });
}

#[kernel_test]
fn datagram_options_out_of_range_are_refused() {
    on_device(|host| {
        let build = |options: bareverbs::datagram::DatagramOptions| {
            let built: Result<Datagrams, _> = options.build(&host.pd);
            built.map(drop).unwrap_err()
        };
        let options = Datagrams::options;
        for (refused, expected) in [
            (build(options().sends(0)), "DatagramOptions::build"),
            (build(options().recvs(0)), "DatagramOptions::build"),
            (build(options().recvs(1 << 30)), "DatagramOptions::build"),
            (build(options().signal_every(0)), "signal_every"),
            (build(options().port(200)), "has no port 200"),
            (build(options().gid_index(GidIndex(250))), "GID index 250"),
        ] {
            assert!(refused.to_string().contains(expected), "{refused}");
        }
        // A privileged Q_Key: the tests run as root.
        let datagrams: Datagrams = options().qkey(0x8000_0001).build(&host.pd).unwrap();
        assert_eq!(datagrams.address().qkey, 0x8000_0001);
    });
}

/// Sends itself datagrams, and receives them by a stream.
async fn flow(mut tasks: Datagrams, pool: Pool) {
    let own = tasks.destination(&tasks.address()).await.unwrap();
    tasks.post(Op::recv(pool.take().unwrap())).unwrap();
    for number in 0..50u8 {
        tasks.post(Op::send_to(&own, message(&pool, &[number]), ..1)).unwrap();
        let item = poll_fn(|cx| Pin::new(&mut tasks).poll_next(cx)).await.unwrap().unwrap();
        assert_eq!(item.message(), [number]);
        while tasks.poll_send().transpose().unwrap().is_some() {}
        if number < 49 {
            tasks.post(Op::recv(item.into_buffer())).unwrap();
        }
    }
    assert!(poll_fn(|cx| Pin::new(&mut tasks).poll_next(cx)).await.is_none(), "no receive is posted");
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.expect("in time")
}

#[kernel_test]
fn datagrams_of_tokio_tasks_flow() {
    on_device(|host| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pool = pool(host);
            let (mut bob, mut alice) = (datagrams(host), datagrams(host));
            bob.attach(Tokio).unwrap();
            alice.attach(Tokio).unwrap();
            bob.post(Op::recv(pool.take().unwrap())).unwrap();
            // A wait that is cancelled loses nothing.
            let cancelled = tokio::time::timeout(Duration::from_millis(20), bob.next_recv()).await;
            assert!(cancelled.is_err());
            let to = alice.destination(&bob.address()).await.unwrap();
            alice.post(Op::send_to_inline(&to, b"hello")).unwrap();
            assert!(matches!(in_time(alice.next()).await.unwrap(), DatagramDone::Sent(_)));
            assert_eq!(in_time(bob.next_recv()).await.unwrap().message(), b"hello");
            let refused = bob.next_recv().await.unwrap_err();
            assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
            drop(alice);
            in_time(flow(bob, pool)).await;
        });
    });
}

#[kernel_test]
fn datagrams_of_async_io_tasks_flow() {
    on_device(|host| {
        let mut tasks = datagrams(host);
        tasks.attach(AsyncIo).unwrap();
        async_io::block_on(flow(tasks, pool(host)));
    });
}

#[kernel_test]
fn descriptor_of_datagrams_is_readable_after_a_completion() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    on_device(|host| {
        let (pool, mut datagrams) = (pool(host), datagrams(host));
        let own = datagrams.destination(&datagrams.address()).wait().unwrap();
        datagrams.post(Op::recv(pool.take().unwrap())).unwrap();
        let readable = |datagrams: &Datagrams, milliseconds: u16| {
            let mut descriptors = [PollFd::new(datagrams.as_fd(), PollFlags::POLLIN)];
            poll(&mut descriptors, PollTimeout::from(milliseconds)).unwrap() == 1
        };
        datagrams.arm().unwrap();
        assert!(!readable(&datagrams, 20));
        datagrams.post(Op::send_to_inline(&own, b"x")).unwrap();
        assert!(readable(&datagrams, 10_000));
        assert_eq!(wait_recv(&mut datagrams).message(), b"x");
        datagrams.next_send().wait().unwrap();
        datagrams.arm().unwrap();
        assert!(!readable(&datagrams, 20));
    });
}

/// On InfiniBand, a group without a LID is refused with the remedy.
#[kernel_test(device::infiniband)]
fn owned_datagrams_join_groups_of_infiniband_by_lid() {
    on_device(|host| {
        let refused = datagrams(host).join("ff12::7".parse().unwrap()).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL));
        assert!(refused.to_string().contains("requires the LID of the group"), "{refused}");
    });
}
