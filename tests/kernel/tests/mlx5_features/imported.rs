//! A context that two processes share.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bareverbs::cq::CqInit;
use bareverbs::device::EventType;
use bareverbs::dm::DmInit;
use bareverbs::error::ObjectClass;
use bareverbs::qp::{Operation, Payload, QpInit, Rc, RecvRequest};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, AsyncEvent, Context, Error, Remote, WcStatus};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::loopback::{
    ALL_REMOTE, Plan, contents, domain, join, open, pair, region, request, side,
};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device, kernel_test};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::sys::wait::{WaitStatus, waitpid};
use rustix::io::Errno;

/// Sends numbers and the descriptor of the context to the other process.
fn send(socket: &UnixStream, context: &Context, numbers: &[u64; 8]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let fds = [context.as_fd().as_raw_fd()];
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&bytes)],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::empty(),
        None,
    );
    assert_eq!(sent, Ok(64));
}

fn receive(socket: &UnixStream) -> (OwnedFd, [u64; 8]) {
    let mut bytes = [0; 64];
    let mut space = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
    let Some(ControlMessageOwned::ScmRights(fds)) = message.cmsgs().unwrap().next() else {
        panic!("no descriptor came");
    };
    // SAFETY: the kernel created the descriptor for this message.
    let fd = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    (fd, std::array::from_fn(|index| u64::from_ne_bytes(bytes[index * 8..][..8].try_into().unwrap())))
}

/// Receives a number from the other process.
fn recv_number(mut socket: &UnixStream) -> u64 {
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes).expect("the other process speaks");
    u64::from_ne_bytes(bytes)
}

fn send_number(mut socket: &UnixStream, number: u64) {
    socket.write_all(&number.to_ne_bytes()).expect("the other process hears");
}

/// Runs `theirs` in a child process and `ours` in this one, with a socket pair between them.
fn two_processes(theirs: impl FnOnce(UnixStream), ours: impl FnOnce(&UnixStream)) {
    let (near, far) = UnixStream::pair().unwrap();
    for end in [&near, &far] {
        end.set_read_timeout(Some(3 * TIMEOUT)).unwrap();
    }
    let child = child::start(|| theirs(far));
    ours(&near);
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)), "the other process failed");
}

#[kernel_test(device::import)]
fn imported_pd_and_mr_work_in_another_process() {
    let theirs = |socket: UnixStream| {
        let (fd, [pd, mr, qp_num, target, rkey, ..]) = receive(&socket);
        let context = Context::import(fd).unwrap();
        assert_eq!(context.device().name(), device::name());
        let pd = context.import_pd(pd as u32).unwrap();
        let mr = pd.import_mr(mr as u32).unwrap();
        let mut side = side(&pd, Plan::long_timeouts());
        side.connect(qp_num as u32);
        send_number(&socket, side.qp.qp_num().into());
        assert_eq!(recv_number(&socket), 1);
        // The other process's memory in parts, with memory of this process between them.
        let own = region(&pd, b" of mine, ", Access::LOCAL_WRITE);
        let sges = [mr.sge(..5).unwrap(), own.sge(..).unwrap(), mr.sge(5..).unwrap()];
        let write = Operation::Write(Remote { addr: target, rkey: rkey as u32 });
        side.send(&[request(1, write, Payload::Sges(&sges))]).unwrap();
        assert_eq!(side.ends(1), [(1, WcStatus::SUCCESS)]);
        // Also with the remote key.
        let into = region(&pd, &[0; 10], Access::LOCAL_WRITE);
        let elements = [into.sge(..).unwrap()];
        side.send(&[request(2, Operation::Read(mr.remote(0).unwrap()), Payload::Sges(&elements))]).unwrap();
        assert_eq!(side.ends(1), [(2, WcStatus::SUCCESS)]);
        assert_eq!(contents(&into), b"bytestheir");
        drop((side, own, into, mr, pd, context));
        send_number(&socket, 2);
        assert_eq!(recv_number(&socket), 3);
    };
    two_processes(theirs, |socket| {
        nothing_leaks(|| {
            let pd = domain();
            let mut ours = side(&pd, Plan::long_timeouts());
            let source = region(&pd, b"bytestheir", ALL_REMOTE);
            let target = region(&pd, &[b'.'; 24], ALL_REMOTE);
            let remote = target.remote(2).unwrap();
            let numbers = [pd.handle(), source.handle(), ours.qp.qp_num()].map(u64::from);
            let [pd_handle, mr_handle, qp_num] = numbers;
            let numbers = [pd_handle, mr_handle, qp_num, remote.addr, remote.rkey.into(), 0, 0, 0];
            send(socket, pd.context(), &numbers);
            ours.connect(recv_number(socket) as u32);
            send_number(socket, 1);
            assert_eq!(recv_number(socket), 2);
            assert_eq!(contents(&target), b"..bytes of mine, their..");
            // The other process has released only its own objects.
            assert_eq!(source.query().unwrap().lkey, source.lkey());
            let context = pd.context();
            assert_eq!(context.object_count(ObjectClass::QP).unwrap(), 1);
            assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 1);
            drop((ours, source, target));
        });
        send_number(socket, 3);
    });
}

#[kernel_test(device::import)]
fn async_events_go_to_the_owning_process() {
    let theirs = |socket: UnixStream| {
        let (fd, [pd, ..]) = receive(&socket);
        let pd = Context::import(fd).unwrap().import_pd(pd as u32).unwrap();
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let mut srq = pd.create_srq(&SrqInit { user_data: 77, ..SrqInit::new(8) }).unwrap();
        let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
        b.qp = pd.create_qp::<Rc>(&QpInit { srq: Some(&srq), ..QpInit::new(&cq, &cq) }).unwrap();
        b.cq = cq;
        a.go_to(bareverbs::qp::QpState::RESET).unwrap();
        join(&mut a, &mut b);
        // SAFETY: the receives have no SGEs.
        unsafe { srq.post_recv(&[0, 1, 2].map(|wr_id| RecvRequest { wr_id, sges: &[] })) }.unwrap();
        srq.set_limit(3).unwrap();
        a.send(&[request(1, Operation::Send, Payload::Sges(&[]))]).unwrap();
        assert_eq!((a.ends(1)[0].1, b.ends(1)[0].1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        let event = pd.context().async_events().next().wait_timeout(TIMEOUT).transpose().unwrap();
        assert_eq!(event, Some(AsyncEvent::Srq { event: EventType::SRQ_LIMIT_REACHED, user_data: 77 }));
        drop((a, b));
        assert_eq!(srq.destroy().unwrap(), 1);
        send_number(&socket, 1);
    };
    two_processes(theirs, |socket| {
        let pd = domain();
        send(socket, pd.context(), &[pd.handle().into(), 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(recv_number(socket), 1);
        let event =
            pd.context().async_events().next().wait_timeout(Duration::from_millis(100)).transpose().unwrap();
        assert_eq!(event, None);
    });
}

#[kernel_test(device::import)]
fn imported_dm_works_in_another_process() {
    let theirs = |socket: UnixStream| {
        let (fd, [dm, mr, ..]) = receive(&socket);
        let context = Context::import(fd).unwrap();
        let mut dm = context.import_dm(dm as u32).unwrap();
        let mut bytes = [0; 12];
        dm.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes, dm.len()), (b"on the card.", 100));
        dm.write(0, b"ON").unwrap_err();
        dm.write(0, b"ON T").unwrap();
        // A region of its own over the device memory.
        let pd = context.alloc_pd().unwrap();
        let all = pd.register_dm(&dm, .., ALL_REMOTE).unwrap();
        assert_eq!((all.len(), pd.import_mr(mr as u32).unwrap().len()), (100, 8));
        drop(all);
        dm.free().unwrap();
        send_number(&socket, 1);
    };
    two_processes(theirs, |socket| {
        let pd = domain();
        let mut dm = pd.context().alloc_dm(&DmInit::new(100)).unwrap();
        dm.write(0, b"on the card.").unwrap();
        let mr = region(&pd, &[0; 8], Access::empty());
        send(socket, pd.context(), &[dm.handle().into(), mr.handle().into(), 0, 0, 0, 0, 0, 0]);
        assert_eq!(recv_number(socket), 1);
        let mut bytes = [0; 12];
        dm.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"ON The card.");
        assert_eq!(pd.context().object_count(ObjectClass::DM).unwrap(), 1);
    });
}

#[kernel_test(device::import)]
fn leaked_objects_are_freed_with_the_shared_context() {
    nothing_leaks(|| {
        let theirs = |socket: UnixStream| {
            let (fd, [pd, ..]) = receive(&socket);
            let pd = Context::import(fd).unwrap().import_pd(pd as u32).unwrap();
            let sides = pair(&pd, Plan::long_timeouts());
            let memory = region(&pd, &[0; 64], ALL_REMOTE);
            send_number(&socket, 1);
            std::mem::forget((sides, memory));
        };
        two_processes(theirs, |socket| {
            let pd = domain();
            send(socket, pd.context(), &[pd.handle().into(), 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(recv_number(socket), 1);
            assert_eq!(pd.context().object_count(ObjectClass::QP).unwrap(), 2);
            // Its own queue pairs still work.
            let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
            b.recv_into(1, 1, &[]);
            a.send(&[request(2, Operation::Send, Payload::Sges(&[]))]).unwrap();
            assert_eq!((a.ends(1)[0].1, b.ends(1)[0].1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        });
    });
}

#[kernel_test(device::import)]
fn unknown_import_handles_are_rejected() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let nothing =
        [context.import_pd(4321).map(drop), context.import_dm(4321).map(drop), pd.import_mr(4321).map(drop)];
    for error in nothing.map(Result::unwrap_err) {
        assert_eq!(error.errno(), Some(Errno::NOENT), "{error}");
    }
    // The handle of a PD is not valid as a region, nor the reverse.
    let memory = region(&pd, &[0; 8], Access::empty());
    let others = [context.import_pd(memory.handle()).map(drop), pd.import_mr(pd.handle()).map(drop)];
    for error in others.map(Result::unwrap_err) {
        assert_eq!(error.errno(), Some(Errno::INVAL), "{error}");
    }
}

#[kernel_test(device::import)]
fn import_rejects_other_descriptors() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let pipe = std::io::pipe().unwrap().0;
    for fd in [null.into(), pipe.into()] {
        let refused = Context::import(fd).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        assert!(refused.to_string().contains("not an RDMA device file"), "{refused}");
    }
    let path = device::device().uverbs_path().unwrap().to_owned();
    let fresh = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let refused = Context::import(fresh.into()).map(drop).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::INVAL), "{refused}");
    assert!(refused.to_string().contains("the sending process must open the device first"), "{refused}");
}

#[kernel_test(device::no_import, device::has_device_node)]
fn import_is_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let fd = context.as_fd().try_clone_to_owned().unwrap();
        let errors = [
            Context::import(fd).map(drop).unwrap_err(),
            context.import_pd(pd.handle()).map(drop).unwrap_err(),
            context.import_dm(0).map(drop).unwrap_err(),
            pd.import_mr(0).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, Error::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("imported"), "{error}");
        }
    });
}
