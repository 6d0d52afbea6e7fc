//! System calls of the data path and of the setup.

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bareverbs::cq::{Arm, CqInit, WorkCompletion};
use bareverbs::qp::{Operation, Payload, QpCap, RecvRequest, SendFlags, SendRequest};
use bareverbs::server::{Client, Event, Server};
use bareverbs::{Access, Endpoint, Hub, Imm, Op, Pool, PoolBuffer, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{cm, device, kernel_test};
use nix::libc;

use crate::tracer::{Call, between_marks, calls_of, mark};

fn deep() -> Plan {
    let cap = QpCap { max_send_wr: 128, max_recv_wr: 128, ..Plan::default().cap };
    Plan { cap, ..Plan::default() }
}

/// The system calls of a doorbell.
fn doorbell() -> &'static [i64] {
    if device::posts_by_call() { &[libc::SYS_write] } else { &[] }
}

fn numbers(calls: &[Call]) -> Vec<i64> {
    calls.iter().map(|call| call.number).collect()
}

#[kernel_test(device::off_caller_thread)]
fn batch_of_64_sends_is_one_system_call() {
    let calls = calls_of(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, deep());
        let memory = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        let sges = [memory.sge(..).unwrap()];
        b.recv_into(0, 128, &sges);
        let list: Vec<_> =
            (0..64).map(|wr_id| request(wr_id, Operation::Send, Payload::Sges(&sges))).collect();
        mark();
        a.send(&list).unwrap();
        mark();
        // The clock is not read here: on a kernel without a fast clock that is a system call.
        let mut completed = 0;
        while completed < 64 {
            completed += usize::from(a.cq.poll_one().is_some());
        }
        mark();
        let mut batch = a.qp.start_send();
        for wr_id in 0..64 {
            batch.send_inline(wr_id, b"inline", SendFlags::SIGNALED).unwrap();
        }
        batch.ring().unwrap();
        mark();
        assert!(a.ends(64).iter().all(|(_, status)| *status == WcStatus::SUCCESS));
        assert_eq!(b.ends(128).len(), 128);
    });
    let [list, polling, batch] = between_marks(&calls)[..] else { panic!("three parts") };
    for posted in [list, batch] {
        assert_eq!(numbers(posted), doorbell(), "{posted:?}");
        assert!(posted.iter().all(Call::is_on_the_device), "{posted:?}");
    }
    assert_eq!(polling, []);
}

#[kernel_test(device::off_caller_thread)]
fn deferred_sends_cost_one_system_call_at_flush() {
    let calls = calls_of(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, deep());
        let memory = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        b.recv_into(0, 64, &[memory.sge(..).unwrap()]);
        mark();
        for wr_id in 0..64 {
            let request = request(wr_id, Operation::Send, Payload::Inline(&[b"deferred"]));
            // SAFETY: the request is inline.
            unsafe { a.qp.post_send_deferred(&[request]) }.unwrap();
        }
        mark();
        drop(a.qp.flush_and_poll(&mut a.cq).unwrap());
        mark();
        drop(a.qp.flush_and_poll(&mut a.cq).unwrap());
        mark();
        assert!(a.ends(64).iter().all(|(_, status)| *status == WcStatus::SUCCESS));
    });
    let [deferring, flush, nothing] = between_marks(&calls)[..] else { panic!("three parts") };
    assert_eq!((deferring, nothing), (&[][..], &[][..]));
    assert_eq!(numbers(flush), doorbell());
}

#[kernel_test(device::off_caller_thread)]
fn post_recv_and_poll_take_no_system_call() {
    let calls = calls_of(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, deep());
        let memory = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        let sges = [memory.sge(..).unwrap()];
        let receives: Vec<_> = (0..64).map(|wr_id| RecvRequest { wr_id, sges: &sges }).collect();
        let mut taken = vec![None::<WorkCompletion>; 64];
        mark();
        b.recv(&receives).unwrap();
        // There is no completion yet.
        for _ in 0..100 {
            assert!(b.cq.poll_one().is_none());
            assert!(b.cq.poll().next().is_none());
        }
        mark();
        a.send(&[request(0, Operation::Send, Payload::Inline(&[b"hello"])); 64]).unwrap();
        mark();
        for slot in &mut taken {
            while slot.is_none() {
                *slot = b.cq.poll_one();
            }
        }
        mark();
        assert!(taken.iter().flatten().all(|completion| completion.byte_len == 5));
        a.ends(64);
    });
    let [receiving, sending, polling] = between_marks(&calls)[..] else { panic!("three parts") };
    assert_eq!((receiving, polling), (&[][..], &[][..]));
    // The tracer does detect a system call.
    assert_eq!(numbers(sending), doorbell());
}

#[kernel_test(device::off_caller_thread)]
fn req_notify_cq_is_one_system_call() {
    let calls = calls_of(|| {
        let pd = domain();
        let channel = pd.context().create_comp_channel().unwrap();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let memory = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        let init = CqInit { channel: Some(&channel), ..CqInit::new(16) };
        let mut armed = pd.context().create_cq(&init).unwrap();
        mark();
        armed.arm(Arm::Any).unwrap();
        mark();
        b.recv_into(0, 1, &[memory.sge(..).unwrap()]);
        a.send(&[request(0, Operation::Send, Payload::Inline(&[b"hello"]))]).unwrap();
        assert_eq!((a.ends(1).len(), b.ends(1).len()), (1, 1));
        mark();
        drop(armed);
        mark();
    });
    let [arming, _, dropping] = between_marks(&calls)[..] else { panic!("three parts") };
    // mlx5 has a doorbell register for it.
    assert_eq!(numbers(arming), if device::has_rxe_abi() { &[libc::SYS_ioctl][..] } else { &[] });
    // The kernel destroys it, and its ring is unmapped.
    assert!(dropping.iter().all(|call| [libc::SYS_ioctl, libc::SYS_munmap].contains(&call.number)));
}

/// System calls of files.
const BY_FILE: [i64; 8] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_sendfile,
];

/// Commands are ioctls. The doorbells of `sends` alone are writes.
fn commands_are_ioctls(calls: &[Call], sends: usize) {
    let on_device: Vec<_> = calls.iter().filter(|call| call.is_on_the_device()).collect();
    let ioctls = on_device.iter().filter(|call| call.number == libc::SYS_ioctl).count();
    assert!(ioctls > 15, "a set-up takes more than {ioctls} calls");
    let by_file = on_device.iter().map(|call| call.number).filter(|number| BY_FILE.contains(number));
    assert_eq!(by_file.collect::<Vec<_>>(), doorbell().repeat(sends));
}

#[kernel_test(device::off_caller_thread)]
fn commands_to_the_device_file_are_ioctls() {
    let calls = nothing_leaks(|| {
        calls_of(|| {
            let pd = domain();
            let context = pd.context();
            context.query_device().unwrap();
            context.query_port(1).unwrap();
            context.gid_table().unwrap();
            let (mut a, mut b) = pair(&pd, Plan::default());
            let memory = region(&pd, &[0; 8], Access::LOCAL_WRITE);
            b.recv_into(0, 1, &[memory.sge(..).unwrap()]);
            let operation =
                if device::immediates().is_ok() { Operation::SendImm(Imm(7)) } else { Operation::Send };
            a.send(&[SendRequest {
                flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
                ..request(0, operation, Payload::Inline(&[b"hello"]))
            }])
            .unwrap();
            assert_eq!((a.ends(1).len(), b.ends(1).len()), (1, 1));
            a.qp.query().unwrap();
            assert!(context.async_events().try_wait().unwrap().is_none());
            assert_eq!(contents(&memory), *b"hello\0\0\0");
        })
    });
    commands_are_ioctls(&calls, 1);
}

#[kernel_test(device::shared_between_processes, device::moves_qps)]
fn commands_of_the_tool_are_ioctls() {
    for events in [&[][..], &["-e"]] {
        let mut server = Command::new("bareverbs");
        server.args(["pingpong", "rc", "-n", "20"]).args(events).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("local address"));
        let calls = calls_of(|| {
            let mut client = Command::new("bareverbs");
            client.args(["pingpong", "rc", "-n", "20", "10.1.0.1"]).args(events).stdout(Stdio::null());
            panic!("it does not start: {}", client.exec());
        });
        assert!(server.wait().unwrap().success());
        commands_are_ioctls(&calls, 20);
    }
}

/// Maximum system calls of a ping-pong of one message, from `exec` to exit: as a client, and as a
/// server, which listens too. A ConnectX has a page of doorbells and one of doorbell records beside its rings,
/// and its driver is asked for methods that Soft-RoCE lacks.
fn most_of_ping_pong() -> usize {
    if device::has_rxe_abi() { 90 } else { 95 }
}

/// The calls of a program after its `exec`, without clock reads, which are system calls only if the
/// kernel's clock source is a device.
fn of_the_program(calls: Vec<Call>) -> Vec<Call> {
    let start = calls.iter().rposition(|call| call.number == libc::SYS_execve).expect("a program starts");
    calls.into_iter().skip(start).filter(|call| call.number != libc::SYS_clock_gettime).collect()
}

fn ping_pong(arguments: &[&str]) -> Command {
    let mut tool = Command::new("bareverbs");
    tool.args(["pingpong", "rc", "-n", "1"]).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    tool
}

#[kernel_test(device::not_instrumented, device::shared_between_processes, device::moves_qps)]
fn pingpong_of_one_message_takes_few_system_calls() {
    let mut server = ping_pong(&[]);
    let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("local address"));
    let client = calls_of(|| panic!("it does not start: {}", ping_pong(&["10.1.0.1"]).exec()));
    assert!(server.wait().unwrap().success());

    // Clients are started until the server has served one.
    let mut clients = Command::new("sh");
    clients.args(["-c", "until bareverbs pingpong rc -n 1 10.1.0.1; do sleep 0.1; done"]);
    let mut clients = clients.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let server = calls_of(|| panic!("it does not start: {}", ping_pong(&[]).exec()));
    assert!(clients.wait().unwrap().success());

    let most = most_of_ping_pong();
    for (side, calls) in [("client", client), ("server", server)] {
        let calls = of_the_program(calls);
        println!("the {side} takes {} system calls", calls.len());
        assert!(calls.len() <= most, "{} of the {side}: {:?}", calls.len(), numbers(&calls));
    }
}

/// Times in which operations complete: most often, and on a busy machine.
const WAITS: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(2), Duration::from_secs(10)];

/// Asserts that these of all `parts` between marks take no system call, in a program that waits for its
/// operations for a time. A program whose time is too short makes calls, and runs again with a longer
/// one.
fn expect_no_calls(parts: usize, quiet: &[usize], program: impl Fn(Duration)) {
    let mut made = Vec::new();
    for wait in WAITS {
        let calls = calls_of(|| program(wait));
        let between = between_marks(&calls);
        assert_eq!(between.len(), parts, "{between:?}");
        made = quiet.iter().map(|&part| numbers(between[part])).collect();
        if made.iter().all(Vec::is_empty) {
            return;
        }
    }
    panic!("system calls of the parts {quiet:?}: {made:?}");
}

#[kernel_test]
fn wait_for_a_complete_operation_takes_no_system_call() {
    expect_no_calls(5, &[0, 2, 4], |time| {
        let pd = domain();
        let mut ends: [Endpoint<PoolBuffer>; 2] = [(); 2].map(|()| Endpoint::new(&pd, 1, 16).unwrap());
        let [alice, bob] = ends.each_mut();
        let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
        alice.connect(&to_bob).unwrap();
        bob.connect(&to_alice).unwrap();
        let pool = Pool::new(&pd, 32, 64).unwrap();
        for _ in 0..16 {
            bob.post(Op::recv(pool.take().unwrap())).unwrap();
            alice.post(Op::send(pool.take().unwrap(), ..8)).unwrap();
        }
        std::thread::sleep(time);
        mark();
        for _ in 0..8 {
            drop(alice.next().wait().unwrap());
        }
        mark();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let [mut alice, mut bob] = ends;
        runtime.block_on(async {
            bob.attach(bareverbs::runtime::Tokio).unwrap();
            mark();
            for _ in 0..8 {
                drop(bob.next().await.unwrap());
            }
            mark();
        });
        async_io::block_on(async {
            alice.attach(bareverbs::runtime::AsyncIo).unwrap();
            mark();
            for _ in 0..8 {
                drop(alice.next().await.unwrap());
            }
            mark();
        });
    });
}

#[kernel_test]
fn complete_operations_of_a_hub_take_no_system_call() {
    expect_no_calls(2, &[0, 1], |time| {
        let pd = domain();
        let pool = Pool::new(&pd, 32, 64).unwrap();
        let hub: Hub<PoolBuffer> = Hub::new(&pd, 64).unwrap();
        let (carol, dave) = (hub.connection(1, 16).unwrap(), hub.connection(1, 16).unwrap());
        let [to_carol, to_dave] = cm::introduce(carol.address(), dave.address());
        carol.connect(&to_dave).unwrap();
        dave.connect(&to_carol).unwrap();
        let mut pending = Vec::new();
        for _ in 0..8 {
            pending.push(dave.post(Op::recv(pool.take().unwrap())));
            pending.push(carol.post(Op::send(pool.take().unwrap(), ..8)));
        }
        std::thread::sleep(time);
        mark();
        for operation in pending.drain(..8) {
            drop(operation.wait().unwrap());
        }
        mark();
        let mut context = Context::from_waker(Waker::noop());
        for operation in pending.drain(..) {
            assert!(matches!(pin!(operation).poll(&mut context), Poll::Ready(Ok(_))));
        }
        mark();
    });
}

#[kernel_test]
fn message_that_has_arrived_takes_no_system_call() {
    // Dropping a message posts its receive again, which takes no system call.
    expect_no_calls(2, &[0, 1], |time| {
        let pd = domain();
        let mut server = Server::options().peers(1).message_size(64).build(&pd).unwrap();
        let client = Client::options().message_size(64).build(&pd).unwrap();
        cm::admit(server.handle(), &client);
        for _ in 0..4 {
            client.send(client.take().unwrap(), ..8).wait().unwrap();
        }
        std::thread::sleep(time);
        let mut context = Context::from_waker(Waker::noop());
        let mut events = Vec::with_capacity(4);
        // A thread that waits the first time has a descriptor made.
        assert!(matches!(server.next().wait().unwrap(), Event::Message(_)));
        mark();
        assert!(matches!(server.next().wait().unwrap(), Event::Message(_)));
        mark();
        for _ in 0..2 {
            let mut next = pin!(server.next());
            let event = loop {
                if let Poll::Ready(event) = next.as_mut().poll(&mut context) {
                    break event;
                }
            };
            events.push(event.unwrap());
        }
        mark();
    });
}
