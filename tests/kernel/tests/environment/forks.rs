//! Forked children: inherited objects and failing calls.

use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};

use bareverbs::cq::{Arm, CqInit};
use bareverbs::qp::{Operation, Payload, QpAttr, QpAttrMask, QpInit, QpState, Rc};
use bareverbs::rss::WqInit;
use bareverbs::server::{Client, Event, Server};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Buffer, Endpoint, Error, MemoryOwner, Mr, Op, Pd, WcStatus};
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Plan, Side, contents, domain, pair, region, request, side_on,
};
use bareverbs_kernel_tests::resources::{held, nothing_leaks, settles_at};
use bareverbs_kernel_tests::{Completion, Outcome, child, cm, device, kernel_test, skip};
use bareverbs_netlink::RdmaNetlink;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

fn exchange(a: &mut Side, b: &mut Side) {
    b.recv_into(7, 1, &[]);
    a.send(&[request(8, Operation::Send, Payload::Sges(&[]))]).unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(8, WcStatus::SUCCESS)], vec![(7, WcStatus::SUCCESS)]));
}

#[kernel_test(device::has_device_node)]
fn memory_is_copied_on_fork() {
    assert!(RdmaNetlink::open().unwrap().system().unwrap().copy_on_fork);
}

#[kernel_test]
fn child_drop_does_not_destroy_parent_objects() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
        let channel = context.create_comp_channel().unwrap();
        let extra = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
        let srq = pd.create_srq(&SrqInit::new(8)).unwrap();
        let memory = region(&pd, &[7; 4096], ALL_REMOTE);
        let endpoint = Endpoint::<bareverbs::Mr<Buffer>>::new(&pd, 1, 2).unwrap();
        exchange(&mut a, &mut b);

        let before = held();
        let mut everything = Some((a, b, extra, srq, memory, endpoint, channel, pd, context));
        child::run(|| drop(everything.take()));
        assert_eq!(held(), before);
        let (mut a, mut b, _, mut srq, memory, ..) = everything.take().unwrap();
        exchange(&mut a, &mut b);
        srq.set_limit(4).unwrap();
        assert_eq!(memory.query().unwrap().lkey, memory.lkey());
    });
}

#[kernel_test]
fn batch_dropped_in_a_forked_child_is_not_rung() {
    nothing_leaks(|| {
        let pd = domain();
        let [mut a, mut b]: [Endpoint<Mr<Buffer>>; 2] =
            std::array::from_fn(|_| Endpoint::options().inline(16).build(&pd).unwrap());
        let [to_a, to_b] = cm::introduce(a.address(), b.address());
        a.connect(&to_b).unwrap();
        b.connect(&to_a).unwrap();
        b.post(Op::recv(region(&pd, &[0; 64], Access::LOCAL_WRITE))).unwrap();
        let mut batch = a.batch();
        batch.post(Op::send_inline(b"once")).unwrap();
        let mut slot = Some(batch);
        child::run(|| drop(slot.take()));
        slot.take().unwrap().ring().unwrap();
        drop(slot);
        assert_eq!(b.next().wait().unwrap().message(), Some(&b"once"[..]));
        a.next().wait().unwrap();
    });
}

#[kernel_test]
fn message_of_a_server_dropped_in_a_forked_child_stays_with_its_parent() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server: Server = Server::options().peers(1).window(1).message_size(64).build(&pd).unwrap();
        let mut client: Client = Client::options().window(1).message_size(64).build(&pd).unwrap();
        cm::admit(server.handle(), &client);
        for text in [b"one", b"two"] {
            let mut buffer = client.take().unwrap();
            buffer.bytes_mut()[..3].copy_from_slice(text);
            client.send(buffer, ..3).wait().unwrap();
            let Event::Message(message) = server.next().wait().unwrap() else { panic!("no message") };
            let mut slot = Some(message);
            child::run(|| drop(slot.take()));
            // Its buffer and its credit are the parent's, which sends the answer.
            let message = slot.take().unwrap();
            assert_eq!(message.bytes(), text);
            message.reply(server.handle().take().unwrap(), ..3).wait().unwrap();
            assert!(matches!(client.next().wait().unwrap(), Event::Message(_)));
        }
    });
}

#[kernel_test]
fn child_exit_does_not_destroy_parent_objects() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
        let before = held();
        child::run(|| ());
        settles_at(before);
        exchange(&mut a, &mut b);
    });
}

#[track_caller]
fn refused_as_foreign<T>(result: bareverbs::Result<T>) {
    let Err(error) = result else { panic!("a child may not do that") };
    assert_eq!(error.errno().map(|errno| errno.raw_os_error()), Some(Errno::ESTALE as i32), "{error}");
    assert!(error.to_string().contains("opened before fork"), "{error}");
}

#[kernel_test(device::moves_qps)]
fn commands_in_a_forked_child_fail_with_estale() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let events = context.async_events();
        let channel = context.create_comp_channel().unwrap();
        let plan = Plan::long_timeouts();
        let init = CqInit { channel: Some(&channel), user_data: 3, ..CqInit::new(64) };
        let (mut a, mut b) = pair(&pd, plan);
        let mut c = side_on(&pd, plan, context.create_cq(&init).unwrap(), 3);
        c.cq.arm(Arm::Any).unwrap();
        c.connect(0x1234);
        c.recv_into(0, 1, &[]);
        c.go_to(QpState::ERR).unwrap();
        exchange(&mut a, &mut b);

        let has_wqs = context.capabilities().work_queues;
        child::run(|| {
            refused_as_foreign(context.create_cq(&CqInit::new(8)));
            refused_as_foreign(pd.create_srq(&SrqInit::new(8)));
            refused_as_foreign(pd.create_qp::<Rc>(&QpInit::new(&a.cq, &a.cq)));
            if has_wqs {
                refused_as_foreign(pd.create_wq(&WqInit::new(&a.cq, 8)));
            }
            refused_as_foreign(context.alloc_pd());
            refused_as_foreign(context.create_comp_channel());
            refused_as_foreign(context.query_port(1));
            refused_as_foreign(pd.register(Buffer::zeroed(8).unwrap(), Access::empty()).map_err(Error::from));
            refused_as_foreign(a.qp.query());
            refused_as_foreign(a.go_to(QpState::RESET));
            refused_as_foreign(a.qp.modify(&QpAttr::default(), QpAttrMask::STATE));
            refused_as_foreign(a.cq.arm(Arm::Any));
            refused_as_foreign(a.cq.resize(100));
            refused_as_foreign(channel.try_wait());
            refused_as_foreign(events.try_wait());
        });
        assert_eq!(channel.try_wait().unwrap().map(|event| event.user_data), Some(3), "it is still there");
        assert_eq!(a.kernel_state(), QpState::RTS);
        exchange(&mut a, &mut b);
    });
}

#[kernel_test]
fn queue_memory_is_not_inherited_over_fork() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
        child::run(|| {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            assert!(!maps.contains("uverbs"), "{maps}");
        });
        // A child that accesses them is killed by a memory fault.
        let process = child::start(|| assert!(a.cq.poll_one().is_none()));
        assert!(matches!(waitpid(process, None), Ok(WaitStatus::Signaled(_, Signal::SIGSEGV, _))));
        exchange(&mut a, &mut b);
    });
}

/// A child that overwrites its copy of the regions' memory and waits for the parent.
struct WritingChild {
    process: nix::unistd::Pid,
    leave: PipeWriter,
}

impl WritingChild {
    fn start<M: MemoryOwner>(regions: [&mut Mr<M>; 2]) -> Self {
        let ((mut ready, mut done), (mut wait, leave)) = (pipe().unwrap(), pipe().unwrap());
        let scribble = |wait: &mut PipeReader, done: &mut PipeWriter| {
            let before = regions.map(|region| {
                let before = contents(region);
                region.write(0, &vec![0xee; region.len()]).unwrap();
                (region, before)
            });
            done.write_all(b"!").unwrap();
            wait.read_exact(&mut [0]).unwrap();
            for (region, before) in before {
                assert!(
                    before.iter().all(|byte| *byte == 1),
                    "the child has what was there when it was forked"
                );
                assert!(contents(region).iter().all(|byte| *byte == 0xee), "and its copy is its own");
            }
        };
        let process = child::start(|| scribble(&mut wait, &mut done));
        ready.read_exact(&mut [0]).unwrap();
        Self { process, leave }
    }

    fn leave(mut self) {
        self.leave.write_all(b"!").unwrap();
        assert_eq!(waitpid(self.process, None), Ok(WaitStatus::Exited(self.process, 0)));
    }
}

/// Messages between regions of memory from `make` are intact although a child overwrites its copy.
fn messages_pass_beside_a_child<M: MemoryOwner>(pd: &Pd, access: Access, make: impl Fn() -> M) {
    let filled = || {
        let mut region = pd.register(make(), access).unwrap();
        region.write(0, &vec![1; region.len()]).unwrap();
        region
    };
    let (mut a, mut b) = pair(pd, Plan::long_timeouts());
    let (mut from, mut to) = (filled(), filled());
    let exchange = |a: &mut Side, b: &mut Side, from: &mut Mr<M>, to: &Mr<M>, pattern: u8| {
        from.write(0, &vec![pattern; from.len()]).unwrap();
        let (from_sges, to_sges) = ([from.sge(..).unwrap()], [to.sge(..).unwrap()]);
        b.recv_into(1, 1, &to_sges);
        a.send(&[request(2, Operation::Send, Payload::Sges(&from_sges))]).unwrap();
        assert_eq!((a.ends(1)[0].1, b.ends(1)[0].1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        assert!(
            contents(to).iter().all(|byte| *byte == pattern),
            "the device and the parent share their pages"
        );
    };
    let scribbler = WritingChild::start([&mut from, &mut to]);
    exchange(&mut a, &mut b, &mut from, &to, 2);
    scribbler.leave();
    exchange(&mut a, &mut b, &mut from, &to, 3);
}

#[kernel_test]
fn child_writes_to_mr_are_private() {
    nothing_leaks(|| {
        let pd = domain();
        messages_pass_beside_a_child(&pd, ALL_REMOTE, || Buffer::zeroed(3 * 4096).unwrap());
        // These pages also hold other values.
        messages_pass_beside_a_child(&pd, ALL_REMOTE, || vec![0_u8; 3 * 4096]);
    });
}

#[kernel_test]
fn child_writes_to_odp_mr_are_private() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        if !pd.context().capabilities().odp {
            return skip("this device has no on-demand paging");
        }
        let access = ALL_REMOTE | Access::ON_DEMAND;
        // One packet, because Soft-RoCE of Linux 7.2 ignores the offset in the page of later ones.
        messages_pass_beside_a_child(&pd, access, || Buffer::zeroed(1024).unwrap());
        Ok(Completion::Completed)
    })
}

#[kernel_test]
fn forked_child_can_open_its_own_context() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
        child::run(|| {
            let own = domain();
            let (mut c, mut d) = pair(&own, Plan::long_timeouts());
            exchange(&mut c, &mut d);
            refused_as_foreign(pd.context().query_port(1));
            // A child's context is not usable in its own child either.
            child::run(|| refused_as_foreign(own.context().query_port(1)));
            exchange(&mut c, &mut d);
        });
        exchange(&mut a, &mut b);
    });
}
