//! Soft devices.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::cq::{Arm, CqInit, WorkCompletion};
use bareverbs::device::{DriverId, EventType, FoundBy, LinkLayer, PortState};
use bareverbs::mw::MwType;
use bareverbs::qp::{
    ConnectAttr, Operation, Payload, Qp, QpCap, QpInit, Rc, RecvRequest, SendFlags, SendRequest, Uc,
};
use bareverbs::server::{Client, Event, Server};
use bareverbs::soft::{Fabric, SoftDevice};
use bareverbs::srq::SrqInit;
use bareverbs::values::{AckTimeout, MinRnrTimer, RetryCount, RnrRetry};
use bareverbs::{
    Access, AsyncEvent, Buffer, Context, Datagrams, Device, Endpoint, EndpointOptions, Errno, Error, Gid,
    Hub, Mr, Op, Pd, Pool, Remote, WcStatus,
};
use bareverbs_test_support::TIMEOUT;

const ALL_REMOTE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn open(fabric: &Fabric) -> Context {
    Device::from(SoftDevice::new(fabric)).open().unwrap()
}

/// The protection domains of two devices on one fabric.
fn two() -> [Pd; 2] {
    let fabric = Fabric::new();
    [(); 2].map(|()| open(&fabric).alloc_pd().unwrap())
}

fn connect<B>(pds: &[Pd; 2], options: &EndpointOptions) -> [Endpoint<B>; 2] {
    let mut ends = pds.each_ref().map(|pd| options.build(pd).unwrap());
    let [a, b] = ends.each_ref().map(Endpoint::address);
    ends[0].connect(&b).unwrap();
    ends[1].connect(&a).unwrap();
    ends
}

fn memory(pd: &Pd, bytes: &[u8], access: Access) -> Mr<Buffer> {
    let mut buffer = Buffer::zeroed(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    pd.register(buffer, access).unwrap()
}

fn contents(mr: &Mr<Buffer>) -> Vec<u8> {
    let mut bytes = vec![0; mr.len()];
    mr.read(0, &mut bytes).unwrap();
    bytes
}

/// Retries that end within a second.
fn impatient() -> EndpointOptions {
    Endpoint::options().timeout(AckTimeout::new(14).unwrap()).retry_cnt(RetryCount::new(1).unwrap())
}

#[track_caller]
fn complete(cq: &mut bareverbs::cq::Cq) -> WorkCompletion {
    let begin = Instant::now();
    loop {
        if let Some(completion) = cq.poll_one() {
            return completion;
        }
        assert!(begin.elapsed() < TIMEOUT, "no completion");
        thread::yield_now();
    }
}

/// Connects two QPs of these devices to each other.
macro_rules! bring_up {
    ($a:ident, $b:ident) => {
        let index = |qp: &Qp<_>| qp.pd().context().default_gid(1).unwrap().index;
        let [at_a, at_b] = [index(&$a), index(&$b)];
        let (own, peer) = ($a.address(1, at_a).unwrap(), $b.address(1, at_b).unwrap());
        $a.connect(&own, &peer, &ConnectAttr { access: ALL_REMOTE, ..ConnectAttr::new(1, at_a) }).unwrap();
        $b.connect(&peer, &own, &ConnectAttr { access: ALL_REMOTE, ..ConnectAttr::new(1, at_b) }).unwrap();
    };
}

#[test]
fn device_has_the_properties_of_soft_roce_and_its_own_address() {
    let fabric = Fabric::new();
    let soft = SoftDevice::new(&fabric);
    let address = soft.address();
    let device = Device::from(soft);
    assert_eq!((device.found_by(), device.driver_id()), (FoundBy::Soft, Some(DriverId::RXE)));
    assert_eq!((device.uverbs_path(), device.port_count(), device.index()), (None, 1, None));
    let context = device.open().unwrap();
    let port = context.query_port(1).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::ACTIVE, LinkLayer::ETHERNET));
    let gid = context.default_gid(1).unwrap();
    assert_eq!(IpAddr::from(gid.gid.0).to_canonical(), address);
    assert_eq!(context.query_device().unwrap().node_guid, device.node_guid());
    assert_eq!((context.pkey(1, 0).unwrap(), context.pkey_index(1, 0xffff).unwrap()), (0xffff, 0));
    assert!(matches!(context.pkey(1, 1), Err(Error::Invalid { .. })));
    assert!(context.link_down(1).is_none());
    let other = SoftDevice::new(&fabric);
    assert_ne!(other.address(), address);
}

#[test]
fn cq_exists_while_there_are_references_to_it() {
    let [pd, _] = two();
    let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
    let reference = cq.reference().clone();
    let refused = cq.destroy().unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{}", refused.error);
    let handle = refused.object.handle();
    drop(refused.object);
    // The kernel object, and so its handle, is still in use.
    assert_ne!(pd.context().create_cq(&CqInit::new(4)).unwrap().handle(), handle);
    let qp = pd.create_qp::<Rc>(&QpInit::with_cqs(&reference, &reference)).unwrap();
    drop(reference);
    assert!(qp.destroy().is_ok());
    assert_eq!(pd.context().create_cq(&CqInit::new(4)).unwrap().handle(), handle);
}

#[test]
fn named_device_is_the_same_at_each_call() {
    let [first, second] = [(); 2].map(|()| Device::find("soft7").unwrap());
    assert_eq!((first.name(), second.name()), ("soft7", "soft7"));
    let pds = [first, second].map(|device| device.open().unwrap().alloc_pd().unwrap());
    deliver(&pds, b"the same");
    let other = Device::find("soft8").unwrap().open().unwrap().alloc_pd().unwrap();
    deliver(&[pds[0].clone(), other], b"another");
    for name in ["soft", "soft07", "soft-1", "soft16777214", "soft1 ", "softly"] {
        assert!(matches!(Device::find(name), Err(Error::UnknownDevice { .. })), "{name}");
    }
    for name in ["soft:", "soft:localhost", "soft:127.0.0.1:4791", "soft:../uverbs0"] {
        assert!(matches!(Device::find(name), Err(Error::Invalid { .. })), "{name}");
    }
    let foreign = Device::find("soft:198.51.100.7").unwrap_err();
    assert_eq!(foreign.errno(), Some(Errno::ADDRNOTAVAIL), "{foreign}");
    assert!(matches!(&foreign, Error::SoftAddress { device, .. } if device == "soft:198.51.100.7"));
    assert!(!foreign.to_string().contains("os error"), "the text has the errno already: {foreign}");
}

/// Sends a message from the first device to the second.
fn deliver(pds: &[Pd; 2], text: &[u8]) {
    let [mut sender, mut receiver]: [Endpoint<Mr<Buffer>>; 2] =
        connect(pds, &Endpoint::options().inline(text.len() as u32));
    receiver.post(Op::recv(memory(&pds[1], &[0; 64], Access::LOCAL_WRITE))).unwrap();
    sender.post(Op::send_inline(text)).unwrap();
    assert_eq!(receiver.next().wait().unwrap().message(), Some(text));
}

#[test]
fn devices_are_not_listed_and_not_imported() {
    let context = open(&Fabric::new());
    let found = bareverbs::devices().unwrap_or_default();
    assert!(found.iter().all(|device| device.found_by() != FoundBy::Soft));
    let fd = std::os::fd::AsFd::as_fd(&context).try_clone_to_owned().unwrap();
    assert!(Context::import(fd).is_err());
}

#[test]
fn devices_of_other_fabrics_are_out_of_reach() {
    let pds = ["127.0.0.5", "127.0.0.6"].map(|address| {
        let device = SoftDevice::with_address(&Fabric::new(), address.parse().unwrap()).unwrap();
        Device::from(device).open().unwrap().alloc_pd().unwrap()
    });
    let mut ends: [Endpoint<Mr<Buffer>>; 2] = connect(&pds, &impatient());
    ends[0].post(Op::send_inline(b"lost")).unwrap();
    let failed = ends[0].next().wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
}

#[test]
fn threads_exchange_messages_and_wait_without_polling() {
    const ROUNDS: u32 = 500;
    let pds = two();
    let options = Endpoint::options().sends(2).recvs(2).spin(bareverbs::Spin::Never);
    let [mut client, mut server] = connect(&pds, &options);
    let [ours, theirs] = pds.each_ref().map(|pd| memory(pd, &[0; 4096], Access::LOCAL_WRITE));
    let answer = [(); 1].map(|()| memory(&pds[0], &[0; 4096], Access::LOCAL_WRITE));
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = theirs;
            for round in 0..ROUNDS {
                server.post(Op::recv(buffer)).unwrap();
                let mut received = None;
                while received.is_none() {
                    let done = server.next().wait().unwrap();
                    if done.is_recv() {
                        assert_eq!(done.message().unwrap()[..4], round.to_le_bytes());
                        received = Some(done.into_buffer());
                    }
                }
                buffer = received.unwrap();
                server.post(Op::send_inline(&round.to_le_bytes())).unwrap();
            }
            while server.pending_sends() > 0 {
                let _ = server.next().wait().unwrap();
            }
        });
        let [mut buffer] = answer;
        let mut message = ours;
        for round in 0..ROUNDS {
            client.post(Op::recv(buffer)).unwrap();
            message.write(0, &round.to_le_bytes()).unwrap();
            client.post(Op::send(message, ..)).unwrap();
            let (mut sent, mut received) = (None, None);
            while sent.is_none() || received.is_none() {
                let done = client.next().wait().unwrap();
                if done.is_recv() {
                    assert_eq!(done.message(), Some(&round.to_le_bytes()[..]));
                    received = Some(done.into_buffer());
                } else {
                    sent = Some(done.into_buffer());
                }
            }
            (message, buffer) = (sent.unwrap(), received.unwrap());
        }
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_exchange_messages() {
    use bareverbs::runtime::Tokio;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pds = two();
    runtime.block_on(async {
        let [mut client, mut server] = connect(&pds, &Endpoint::options());
        client.attach(Tokio).unwrap();
        server.attach(Tokio).unwrap();
        let pd = pds[1].clone();
        let task = tokio::spawn(async move {
            for _ in 0..50 {
                server.post(Op::recv(memory(&pd, &[0; 64], Access::LOCAL_WRITE))).unwrap();
                loop {
                    let done = server.next().await.unwrap();
                    if let Some(message) = done.message() {
                        let echo = message.to_vec();
                        server.post(Op::send_inline(&echo)).unwrap();
                        break;
                    }
                }
            }
            while server.pending_sends() > 0 {
                let _ = server.next().await.unwrap();
            }
        });
        for round in 0..50_u8 {
            client.post(Op::recv(memory(&pds[0], &[0; 64], Access::LOCAL_WRITE))).unwrap();
            client.post(Op::send_inline(&[round; 16])).unwrap();
            loop {
                let done = client.next().await.unwrap();
                if let Some(message) = done.message() {
                    assert_eq!(message, [round; 16]);
                    break;
                }
            }
        }
        task.await.unwrap();
    });
}

#[test]
fn receive_posted_late_is_found_by_the_retry() {
    let pds = two();
    let options =
        Endpoint::options().rnr_retry(RnrRetry::INFINITE).min_rnr_timer(MinRnrTimer::new(1).unwrap());
    let [mut sender, mut receiver] = connect(&pds, &options);
    sender.post(Op::send_inline(b"early")).unwrap();
    // The device has tried, and asks no one for a receive.
    assert!(sender.next().wait_timeout(Duration::from_millis(20)).is_none());
    receiver.post(Op::recv(memory(&pds[1], &[0; 64], Access::LOCAL_WRITE))).unwrap();
    assert_eq!(receiver.next().wait().unwrap().message(), Some(&b"early"[..]));
    let _: bareverbs::Done<Mr<Buffer>> = sender.next().wait().unwrap();
}

#[test]
fn peer_that_is_gone_ends_the_retries() {
    let pds = two();
    let [mut sender, receiver]: [Endpoint<Mr<Buffer>>; 2] = connect(&pds, &impatient());
    drop(receiver);
    sender.post(Op::send_inline(b"lost")).unwrap();
    let failed = sender.next().wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
    assert!(failed.is_peer_lost());
}

#[test]
fn reads_writes_and_atomics_reach_the_peers_memory() {
    let pds = two();
    let [mut a, _b] = connect(&pds, &Endpoint::options().access(ALL_REMOTE).inline(64));
    let target = memory(&pds[1], &[0; 10_000], ALL_REMOTE);
    let text: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
    let remote = target.remote(0).unwrap();
    let mut buffer = memory(&pds[0], &text, Access::LOCAL_WRITE);
    let mut run = |op| {
        a.post(op).unwrap();
        a.next().wait().unwrap().into_buffer()
    };
    buffer = run(Op::write(buffer, .., remote));
    assert_eq!(contents(&target), text);
    buffer.write(0, &[0; 10_000]).unwrap();
    buffer = run(Op::read(buffer, .., remote));
    assert_eq!(contents(&buffer), text);
    let word = |mr: &Mr<Buffer>| u64::from_ne_bytes(contents(mr)[..8].try_into().unwrap());
    let before = word(&target);
    let result = run(Op::fetch_add(memory(&pds[0], &[0; 8], Access::LOCAL_WRITE), remote, 5));
    assert_eq!((word(&result), word(&target)), (before, before.wrapping_add(5)));
    let result = run(Op::compare_swap(result, remote, before.wrapping_add(5), 9));
    assert_eq!((word(&result), word(&target)), (before.wrapping_add(5), 9));
    let result = run(Op::compare_swap(result, remote, 1, 2));
    assert_eq!((word(&result), word(&target)), (9, 9));
}

#[test]
fn wrong_keys_ranges_and_rights_are_rejected() {
    let pds = two();
    let readable = memory(&pds[1], &[7; 64], Access::LOCAL_WRITE | Access::REMOTE_READ);
    let remote = readable.remote(0).unwrap();
    let stale = memory(&pds[1], &[7; 64], ALL_REMOTE);
    let dead = stale.remote(0).unwrap();
    drop(stale);
    let foreign_pd = pds[1].context().alloc_pd().unwrap();
    let foreign = memory(&foreign_pd, &[7; 64], ALL_REMOTE);
    for remote in [
        Remote { rkey: remote.rkey ^ 1, ..remote },
        Remote { addr: remote.addr + 1, ..remote },
        Remote { addr: u64::MAX - 7, ..remote },
        dead,
        foreign.remote(0).unwrap(),
    ] {
        let [mut a, _b] = connect(&pds, &Endpoint::options().access(ALL_REMOTE));
        a.post(Op::read(memory(&pds[0], &[0; 64], Access::LOCAL_WRITE), .., remote)).unwrap();
        let failed = a.next().wait().unwrap_err();
        let is_access = matches!(failed.error, Error::Completion { status: WcStatus::REM_ACCESS_ERR, .. });
        assert!(is_access, "{remote:?}: {failed}");
        assert_eq!(contents(&failed.buffer.unwrap()), [0; 64]);
    }
    let [mut a, _b] = connect(&pds, &Endpoint::options().access(ALL_REMOTE));
    a.post(Op::write(memory(&pds[0], &[1; 64], Access::LOCAL_WRITE), .., remote)).unwrap();
    let failed = a.next().wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::REM_ACCESS_ERR, .. }), "{failed}");
    assert_eq!(contents(&readable), [7; 64]);
}

#[test]
fn hub_and_pool_carry_many_connections() {
    let pds = two();
    let hubs = pds.each_ref().map(|pd| Hub::new(pd, 64).unwrap());
    let pools = pds.each_ref().map(|pd| Pool::new(pd, 16, 64).unwrap());
    thread::scope(|scope| {
        for number in 0..4_u8 {
            let ends = hubs.each_ref().map(|hub| hub.connection(1, 4).unwrap());
            ends[0].connect(&ends[1].address()).unwrap();
            ends[1].connect(&ends[0].address()).unwrap();
            let pools = &pools;
            scope.spawn(move || {
                for round in 0..50 {
                    let received = ends[1].post(Op::recv(pools[1].acquire().wait().unwrap()));
                    let mut message = pools[0].acquire().wait().unwrap();
                    message.bytes_mut().fill(number ^ round);
                    let sent = ends[0].post(Op::send(message, ..));
                    assert_eq!(received.wait().unwrap().message(), Some(&[number ^ round; 64][..]));
                    let _ = sent.wait().unwrap();
                }
            });
        }
    });
}

#[test]
fn server_answers_its_clients() {
    let fabric = Fabric::new();
    let pd = open(&fabric).alloc_pd().unwrap();
    let mut server = Server::options().peers(4).message_size(64).build(&pd).unwrap();
    let clients: Vec<Client> = (0..3)
        .map(|_| {
            let client =
                Client::options().message_size(64).build(&open(&fabric).alloc_pd().unwrap()).unwrap();
            let (_, address) = server.handle().admit(&client.address()).unwrap();
            client.connect(&address).unwrap();
            client
        })
        .collect();
    thread::scope(|scope| {
        for (number, mut client) in (0_u8..).zip(clients) {
            scope.spawn(move || {
                for round in 0..20 {
                    let mut question = client.take().unwrap();
                    question.bytes_mut()[..2].copy_from_slice(&[number, round]);
                    client.send(question, ..2).detach();
                    match client.next().wait().unwrap() {
                        Event::Message(answer) => assert_eq!(answer.bytes(), [round, number]),
                        other => panic!("{other:?}"),
                    }
                }
                let ending = client.shutdown();
                while !matches!(client.next().wait().unwrap(), Event::Ended) {}
                ending.wait().unwrap();
            });
        }
        let mut closed = 0;
        while closed < 3 {
            match server.next().wait().unwrap() {
                Event::Message(question) => {
                    let mut answer = server.handle().take().unwrap();
                    let [number, round] = question.bytes().try_into().unwrap();
                    answer.bytes_mut()[..2].copy_from_slice(&[round, number]);
                    question.reply(answer, ..2).detach();
                }
                Event::Closed(_) => closed += 1,
                Event::Failed(peer, error) => panic!("{peer:?}: {error}"),
                _ => {}
            }
        }
    });
}

#[test]
fn datagrams_are_received_with_their_sender_and_answered() {
    let pds = two();
    let [mut alice, mut bob] = pds.each_ref().map(|pd| Datagrams::options().inline(64).build(pd).unwrap());
    for (end, pd) in [(&mut alice, &pds[0]), (&mut bob, &pds[1])] {
        end.post(Op::recv(memory(pd, &[0; 256], Access::LOCAL_WRITE))).unwrap();
    }
    let to = alice.destination(&bob.address()).wait().unwrap();
    alice.post(Op::send_to_inline(&to, b"hello, bob")).unwrap();
    let hello = bob.next_recv().wait().unwrap();
    assert_eq!(hello.message(), b"hello, bob");
    let back = hello.reply_to(&bob).wait().unwrap();
    bob.post(Op::send_to_inline(&back, b"hello, alice")).unwrap();
    assert_eq!(alice.next_recv().wait().unwrap().message(), b"hello, alice");
}

#[test]
fn multicast_reaches_the_members_on_all_devices_of_the_fabric() {
    let pds = two();
    let [mut alice, mut bob] = pds.each_ref().map(|pd| Datagrams::options().inline(64).build(pd).unwrap());
    let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
    for (end, pd) in [(&mut alice, &pds[0]), (&mut bob, &pds[1])] {
        end.join(group).unwrap();
        end.post(Op::recv(memory(pd, &[0; 256], Access::LOCAL_WRITE))).unwrap();
    }
    let to = alice.group(group).wait().unwrap();
    alice.post(Op::send_to_inline(&to, b"to all")).unwrap();
    assert_eq!(bob.next_recv().wait().unwrap().message(), b"to all");
    assert_eq!(alice.next_recv().wait().unwrap().message(), b"to all");
    bob.leave(group).unwrap();
}

#[test]
fn srq_serves_several_qps_and_raises_its_limit_event() {
    let pds = two();
    let (mut from_cq, mut to_cq) = {
        let cq = |pd: &Pd| pd.context().create_cq(&CqInit::new(16)).unwrap();
        (cq(&pds[0]), cq(&pds[1]))
    };
    let mut srq = pds[1].create_srq(&SrqInit { user_data: 0xfeed, ..SrqInit::new(8) }).unwrap();
    let inbox = memory(&pds[1], &[0; 512], Access::LOCAL_WRITE);
    for wr_id in 0..8 {
        let at = wr_id as usize * 64;
        let sges = [inbox.sge(at..at + 64).unwrap()];
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { srq.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
    }
    srq.set_limit(7).unwrap();
    let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let init = QpInit { cap, ..QpInit::new(&from_cq, &from_cq) };
        let mut from = pds[0].create_qp::<Rc>(&init).unwrap();
        let mut to =
            pds[1].create_qp::<Rc>(&QpInit { srq: Some(&srq), ..QpInit::new(&to_cq, &to_cq) }).unwrap();
        bring_up!(from, to);
        pairs.push((from, to));
    }
    let events = pds[1].context().async_events();
    for number in 0..4_u64 {
        let (from, to) = &mut pairs[number as usize % 2];
        let mut batch = from.start_send();
        batch.send_inline(number, &number.to_le_bytes(), SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        assert_eq!(complete(&mut from_cq).status, WcStatus::SUCCESS);
        let received = complete(&mut to_cq);
        assert_eq!((received.wr_id, received.qp_num), (number, to.qp_num()));
        assert_eq!(contents(&inbox)[number as usize * 64..][..8], number.to_le_bytes());
    }
    let event = events.next().wait_timeout(TIMEOUT).transpose().unwrap();
    assert!(matches!(event, Some(AsyncEvent::Srq { user_data: 0xfeed, .. })), "{event:?}");
    assert_eq!(events.try_wait().unwrap(), None);
}

#[test]
fn memory_window_grants_the_bound_range_until_it_is_invalidated() {
    let pds = two();
    let mut cqs = pds.each_ref().map(|pd| pd.context().create_cq(&CqInit::new(16)).unwrap());
    let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
    let [mut a, mut b] = [0, 1].map(|at: usize| {
        pds[at].create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cqs[at], &cqs[at]) }).unwrap()
    });
    bring_up!(a, b);
    let region = memory(&pds[1], &[0; 128], Access::LOCAL_WRITE | Access::MW_BIND);
    let mut window = pds[1].alloc_mw(MwType::TYPE_2).unwrap();
    let bind = window.bind(&region, 64..128, Access::REMOTE_WRITE).unwrap();
    let request =
        |operation, payload| SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
    // SAFETY: the region outlives the window's binding.
    unsafe { b.post_send(&[request(Operation::BindMw(bind), Payload::Sges(&[]))]) }.unwrap();
    assert_eq!(complete(&mut cqs[1]).status, WcStatus::SUCCESS);
    window.bound(&bind);
    let remote = window.remote(bind.addr);
    let write = request(Operation::Write(remote), Payload::Inline(&[b"through"]));
    // SAFETY: inline.
    unsafe { a.post_send(&[write]) }.unwrap();
    assert_eq!(complete(&mut cqs[0]).status, WcStatus::SUCCESS);
    assert_eq!(contents(&region)[64..71], *b"through");
    let invalidate = request(Operation::LocalInv(remote.rkey), Payload::Sges(&[]));
    // SAFETY: it names no memory.
    unsafe { b.post_send(&[invalidate]) }.unwrap();
    assert_eq!(complete(&mut cqs[1]).status, WcStatus::SUCCESS);
    // SAFETY: inline.
    unsafe { a.post_send(&[write]) }.unwrap();
    assert_eq!(complete(&mut cqs[0]).status, WcStatus::REM_ACCESS_ERR);
}

#[test]
fn uc_messages_without_a_receive_are_dropped() {
    let pds = two();
    let mut cqs = pds.each_ref().map(|pd| pd.context().create_cq(&CqInit::new(16)).unwrap());
    let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
    let [mut a, mut b] = [0, 1].map(|at: usize| {
        pds[at].create_qp::<Uc>(&QpInit { cap, ..QpInit::new(&cqs[at], &cqs[at]) }).unwrap()
    });
    bring_up!(a, b);
    let inbox = memory(&pds[1], &[0; 64], Access::LOCAL_WRITE);
    for (text, arrives) in [(b"dropped.", false), (b"arrives.", true)] {
        let sges = [inbox.sge(..).unwrap()];
        if arrives {
            // SAFETY: the memory is only copied from, after the completion.
            unsafe { b.post_recv(&[RecvRequest { wr_id: 5, sges: &sges }]) }.unwrap();
        }
        let mut batch = a.start_send();
        batch.send_inline(4, text, SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        assert_eq!(complete(&mut cqs[0]).status, WcStatus::SUCCESS);
    }
    assert_eq!(complete(&mut cqs[1]).wr_id, 5);
    assert_eq!(contents(&inbox)[..8], *b"arrives.");
    assert!(cqs[1].poll_one().is_none());
}

#[test]
fn armed_cq_raises_one_event() {
    let pds = two();
    let context = pds[1].context();
    let channel = context.create_comp_channel().unwrap();
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) }).unwrap();
    let mut from_cq = pds[0].context().create_cq(&CqInit::new(16)).unwrap();
    let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
    let mut from = pds[0].create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&from_cq, &from_cq) }).unwrap();
    let mut to = pds[1].create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
    bring_up!(from, to);
    cq.arm(Arm::Any).unwrap();
    assert!(channel.try_wait().unwrap().is_none());
    for _ in 0..2 {
        // SAFETY: it has no memory.
        unsafe { to.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }.unwrap();
        let mut batch = from.start_send();
        batch.send_inline(2, &[], SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        complete(&mut from_cq);
    }
    assert!(channel.next().wait_timeout(TIMEOUT).is_some());
    assert!(channel.try_wait().unwrap().is_none());
    assert_eq!([complete(&mut cq), complete(&mut cq)].map(|done| done.wr_id), [1, 1]);
}

#[test]
fn removal_ends_waits_and_calls() {
    let fabric = Fabric::new();
    let soft = SoftDevice::new(&fabric);
    let context = Device::from(soft.clone()).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let peer = open(&fabric).alloc_pd().unwrap();
    let pds = [pd, peer];
    let [mut gone, mut left]: [Endpoint<Mr<Buffer>>; 2] = connect(&pds, &impatient());
    gone.post(Op::recv(memory(&pds[0], &[0; 64], Access::LOCAL_WRITE))).unwrap();
    let events = context.async_events();
    thread::scope(|scope| {
        let wait = scope.spawn(move || gone.next().wait());
        soft.remove();
        let failed = wait.join().unwrap().unwrap_err();
        assert!(matches!(failed.error, Error::DeviceRemoved { .. }), "{failed}");
        assert!(failed.buffer.is_some());
    });
    let fatal = events.next().wait().unwrap();
    assert_eq!(fatal, AsyncEvent::Device { event: EventType::DEVICE_FATAL });
    assert_eq!(events.next().wait().unwrap_err().errno(), Some(Errno::IO));
    assert_eq!(context.query_port(1).unwrap_err().errno(), Some(Errno::IO));
    let refused =
        [(context.alloc_pd().unwrap_err(), Errno::IO), (Device::from(soft).open().unwrap_err(), Errno::NXIO)];
    for (refused, errno) in refused {
        assert_eq!(refused.errno(), Some(errno));
        let text = refused.to_string();
        assert!(text.contains(" was refused by the device: "), "{text}");
        assert!(text.contains("open a device again"), "{text}");
    }
    left.post(Op::send_inline(b"lost")).unwrap();
    let failed = left.next().wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
}

#[test]
fn unmapped_and_read_only_memory_is_rejected_at_registration() {
    let pd = open(&Fabric::new()).alloc_pd().unwrap();
    let errno = |address: *mut u8, len, access| {
        // SAFETY: nothing posts the region, and no peer knows its key.
        unsafe { pd.register_raw(address, len, None, access) }.map(drop).map_err(|error| error.errno())
    };
    let hole = Buffer::zeroed(2 * 4096).unwrap();
    let start = hole.as_ptr().cast_mut();
    // SAFETY: the second page of the buffer is used by nothing.
    unsafe { rustix::mm::munmap(start.add(4096).cast(), 4096) }.unwrap();
    assert_eq!(errno(start, 4096, Access::LOCAL_WRITE), Ok(()));
    assert_eq!(errno(start, 4097, Access::LOCAL_WRITE), Err(Some(Errno::FAULT)));
    assert_eq!(errno(start.wrapping_add(4096), 1, Access::empty()), Err(Some(Errno::FAULT)));
    static CONSTANT: [u8; 16] = [7; 16];
    let constant = CONSTANT.as_ptr().cast_mut();
    assert_eq!(errno(constant, 16, Access::empty()), Ok(()));
    assert_eq!(errno(constant, 16, Access::LOCAL_WRITE), Err(Some(Errno::FAULT)));
    // The buffer's drop unmaps what is left of it.
    drop(hole);
}

#[test]
fn forked_child_is_refused_and_leaves_its_parents_devices_alone() {
    if !is_alone("forked_child_is_refused_and_leaves_its_parents_devices_alone") {
        return;
    }
    let pds = two();
    let [mut sender, mut receiver]: [Endpoint<Mr<Buffer>>; 2] = connect(&pds, &Endpoint::options());
    receiver.post(Op::recv(memory(&pds[1], &[0; 64], Access::LOCAL_WRITE))).unwrap();
    Device::find("soft0").unwrap();
    // SAFETY: glibc makes its allocator usable in the child, which takes no lock of another thread and
    // ends by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("no process more"),
        0 => {
            let work = std::panic::AssertUnwindSafe(|| {
                assert_eq!(pds[0].context().query_port(1).unwrap_err().errno(), Some(Errno::STALE));
                drop((sender, receiver, pds));
                // It has devices of its own.
                let context = Device::find("soft0").unwrap().open().unwrap();
                context.query_port(1).unwrap();
            });
            let ended_well = std::panic::catch_unwind(work).is_ok();
            // SAFETY: `_exit` may be called at any time.
            unsafe { libc::_exit(i32::from(!ended_well)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
        }
    }
    sender.post(Op::send_inline(b"alive")).unwrap();
    assert_eq!(receiver.next().wait().unwrap().message(), Some(&b"alive"[..]));
}

#[test]
fn forked_child_finds_devices_while_its_parent_looks_for_one() {
    if !is_alone("forked_child_finds_devices_while_its_parent_looks_for_one") {
        return;
    }
    let stopped = AtomicBool::new(false);
    let failed = thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                // No address of a host.
                assert!(Device::find("soft:192.0.2.1").is_err());
            }
        });
        let failed = (0..100).find_map(|_| {
            // SAFETY: glibc makes its allocator usable in the child, which ends by a signal or `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: no handler of the signal is installed.
                unsafe { libc::alarm(10) };
                let is_found = Device::find("soft0").is_ok();
                // SAFETY: `_exit` may be called at any time.
                unsafe { libc::_exit(i32::from(!is_found)) }
            }
            let mut status = 0;
            // SAFETY: `status` is a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            (status != 0).then_some(status)
        });
        stopped.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None);
}

#[test]
fn few_descriptors_are_enough_and_none_left_is_an_error() {
    if !is_alone("few_descriptors_are_enough_and_none_left_is_an_error") {
        return;
    }
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the limit is a valid struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let pds = two();
    let [mut sender, mut receiver] = connect(&pds, &Endpoint::options());
    let mut held = Vec::new();
    let refused = loop {
        match pds[0].context().create_comp_channel() {
            Ok(channel) => held.push(channel),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.errno(), Some(Errno::MFILE));
    assert!(held.len() > 10, "{} channels", held.len());
    receiver.post(Op::recv(memory(&pds[1], &[0; 64], Access::LOCAL_WRITE))).unwrap();
    sender.post(Op::send_inline(b"sent")).unwrap();
    assert_eq!(receiver.next().wait().unwrap().message(), Some(&b"sent"[..]));
    drop(held);
    pds[0].context().create_comp_channel().unwrap();
}

/// Runs the test `name` in a process of its own, and returns whether this is that process.
fn is_alone(name: &str) -> bool {
    const VARIABLE: &str = "BAREVERBS_SOFT_TEST";
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program).args(["--exact", name, "--nocapture"]).env(VARIABLE, "1").status();
    assert!(status.unwrap().success(), "{name} failed in its own process");
    false
}
