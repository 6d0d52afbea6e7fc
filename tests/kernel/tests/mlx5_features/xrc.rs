//! XRC.

use std::fs::File;
use std::os::fd::AsFd;

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit, WcFlags};
use bareverbs::error::{PostReason, PushError};
use bareverbs::mw::{MwBind, MwType};
use bareverbs::qp::{
    InitAttr, Operation, Payload, Qp, QpCap, QpInit, QpState, RecvRequest, RtrAttr, RtsAttr, SendFlags,
    SendRequest, UcRtrAttr,
};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::values::{AckTimeout, MinRnrTimer, RnrRetry};
use bareverbs::xrc::{
    XrcOperation, XrcSend, XrcSrq, XrcSrqInit, XrcTarget, XrcTargetRtsAttr, Xrcd, XrcdShare,
};
use bareverbs::{Access, AsyncEvent, Buffer, Context, Error, Imm, Mr, Pd, WcOpcode, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, contents, domain, region, take};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, TIMEOUT, device, kernel_test, skip};
use rustix::io::Errno;

const CAP: QpCap =
    QpCap { max_send_wr: 16, max_recv_wr: 0, max_send_sge: 2, max_recv_sge: 0, max_inline_data: 64 };

/// The loopback path of the port.
fn here(context: &Context) -> AhAttr {
    let gid = context.default_gid(1).unwrap();
    let dlid = context.query_port(1).unwrap().lid;
    AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) }
}

/// An XRC initiator in `pd`, connected to a new target in the XRC domain.
fn connection(pd: &Pd, cq: &Cq, xrcd: &Xrcd) -> (Qp<XrcSend>, XrcTarget) {
    let mut sender = pd.create_qp::<XrcSend>(&QpInit { cap: CAP, ..QpInit::new(cq, cq) }).unwrap();
    let mut target = xrcd.create_target(0).unwrap();
    assert_eq!(target.xrcd().context().device().name(), pd.context().device().name());
    let way = here(pd.context());
    let init = InitAttr { access: ALL_REMOTE, ..InitAttr::new(1) };
    target.init(&init).unwrap();
    let rtr = RtrAttr {
        max_dest_rd_atomic: 4,
        min_rnr_timer: MinRnrTimer::new(1).unwrap(),
        ..RtrAttr::new(way, sender.qp_num())
    };
    target.ready_to_receive(&rtr).unwrap();
    target.ready_to_send(&XrcTargetRtsAttr::default()).unwrap();
    sender.init(&InitAttr::new(1)).unwrap();
    sender.ready_to_receive(&UcRtrAttr::new(way, target.qp_num())).unwrap();
    let rts = RtsAttr {
        timeout: AckTimeout::new(16).unwrap(),
        rnr_retry: RnrRetry::new(1).unwrap(),
        max_rd_atomic: 4,
        ..RtsAttr::default()
    };
    sender.ready_to_send(&rts).unwrap();
    (sender, target)
}

/// An XRC SRQ of the domain, with receives of 64 bytes each into a region of its own.
struct Inbox {
    srq: XrcSrq,
    cq: Cq,
    memory: Mr<Buffer>,
}

const SLOT: usize = 64;

impl Inbox {
    fn new(pd: &Pd, xrcd: &Xrcd, receives: u64) -> Self {
        Self::with_access(pd, xrcd, receives, ALL_REMOTE)
    }

    fn with_access(pd: &Pd, xrcd: &Xrcd, receives: u64, access: Access) -> Self {
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let init = XrcSrqInit { srq: SrqInit::new(16), xrcd, cq: &cq };
        let srq = pd.create_xrc_srq(&init).unwrap();
        let memory = region(pd, &[0; 16 * SLOT], access);
        let mut inbox = Self { srq, cq, memory };
        inbox.post(0..receives);
        inbox
    }

    fn post(&mut self, ids: std::ops::Range<u64>) {
        for wr_id in ids {
            let start = wr_id as usize % 16 * SLOT;
            let sges = [self.memory.sge(start..start + SLOT).unwrap()];
            // SAFETY: the memory is only copied from, after the completion.
            unsafe { self.srq.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
        }
    }

    /// The bytes of the next message, with its receive and its target.
    fn next(&mut self) -> (u64, u32, Vec<u8>) {
        let done = take(&mut self.cq, 1)[0];
        assert_eq!((done.status, done.opcode), (WcStatus::SUCCESS, WcOpcode::RECV), "{done:?}");
        let start = done.wr_id as usize % 16 * SLOT;
        let bytes = contents(&self.memory)[start..start + done.byte_len as usize].to_vec();
        (done.wr_id, done.qp_num, bytes)
    }
}

fn send(qp: &mut Qp<XrcSend>, cq: &mut Cq, srq: u32, bytes: &[u8]) -> WcStatus {
    let mut batch = qp.start_send();
    batch.send_to_srq_inline(7, srq, bytes, SendFlags::SIGNALED).unwrap();
    batch.ring().unwrap();
    let done = take(cq, 1)[0];
    assert_eq!((done.wr_id, done.qp_num), (7, qp.qp_num()));
    done.status
}

#[kernel_test(device::xrc)]
fn xrc_send_reaches_the_named_srq() {
    nothing_leaks(|| {
        let pd = domain();
        let xrcd = pd.context().open_xrcd(XrcdShare::Private).unwrap();
        let mut cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let mut inboxes = [(); 3].map(|()| Inbox::new(&pd, &xrcd, 16));
        let mut connections = [(); 2].map(|()| connection(&pd, &cq, &xrcd));
        // More than the depth of the rings, so that each wraps.
        for number in 0..120u64 {
            let inbox = &mut inboxes[number as usize % 3];
            let (sender, target) = &mut connections[number as usize % 2];
            let message = number.to_be_bytes();
            assert_eq!(send(sender, &mut cq, inbox.srq.srq_num(), &message), WcStatus::SUCCESS);
            let turn = number / 3;
            assert_eq!(inbox.next(), (turn, target.qp_num(), message.to_vec()));
            inbox.post(turn + 16..turn + 17);
        }
        assert!(inboxes.iter_mut().all(|inbox| inbox.cq.poll_one().is_none()));
    });
}

#[kernel_test(device::xrc)]
fn xrc_carries_every_rc_operation() {
    nothing_leaks(|| {
        let pd = domain();
        let xrcd = pd.context().open_xrcd(XrcdShare::Private).unwrap();
        let mut cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let mut inbox = Inbox::new(&pd, &xrcd, 4);
        let (mut sender, _target) = connection(&pd, &cq, &xrcd);
        let theirs = region(&pd, &[0; 128], ALL_REMOTE);
        let ours = region(&pd, &[5; 128], Access::LOCAL_WRITE);
        let remote = theirs.remote(64).unwrap();
        let sges = [ours.sge(..8).unwrap(), ours.sge(16..24).unwrap()];
        for (operation, elements, expected) in [
            (Operation::SendImm(Imm(0x0102_0304)), 2, WcOpcode::SEND),
            (Operation::Write(remote), 2, WcOpcode::RDMA_WRITE),
            (Operation::WriteImm(remote, Imm(0x0506_0708)), 1, WcOpcode::RDMA_WRITE),
            (Operation::FetchAdd { remote, add: 2 }, 1, WcOpcode::FETCH_ADD),
            (Operation::CmpSwp { remote, compare: 0, swap: 1 }, 1, WcOpcode::COMP_SWAP),
            (Operation::Read(remote), 1, WcOpcode::RDMA_READ),
        ] {
            let request = SendRequest {
                wr_id: 9,
                operation: XrcOperation { remote_srq: inbox.srq.srq_num(), operation },
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&sges[..elements]),
            };
            // SAFETY: the regions outlive the queue pair, and their bytes are only copied.
            unsafe { sender.post_send(&[request]) }.unwrap();
            let done = take(&mut cq, 1)[0];
            assert_eq!(
                (done.wr_id, done.status, done.opcode),
                (9, WcStatus::SUCCESS, expected),
                "{operation:?}"
            );
        }
        let took = take(&mut inbox.cq, 2);
        let of = |index: usize| (took[index].opcode, took[index].wc_flags, took[index].imm());
        assert_eq!(of(0), (WcOpcode::RECV, took[0].wc_flags | WcFlags::WITH_IMM, Some(Imm(0x0102_0304))));
        assert_eq!(
            of(1),
            (WcOpcode::RECV_RDMA_WITH_IMM, took[1].wc_flags | WcFlags::WITH_IMM, Some(Imm(0x0506_0708)))
        );
        assert_eq!(contents(&inbox.memory)[..17], [&[5; 16][..], &[0]].concat());
        let sum = 0x0505_0505_0505_0505u64 + 2;
        assert_eq!(contents(&theirs)[64..88], [&sum.to_ne_bytes()[..], &[5; 8], &[0; 8]].concat());
        assert_eq!(contents(&ours)[..8], sum.to_ne_bytes());
    });
}

#[kernel_test(device::xrc)]
fn xrc_operations_reach_odp_mr() -> Outcome {
    if !domain().context().capabilities().odp {
        return skip("the device does not page on demand");
    }
    nothing_leaks(|| {
        let pd = domain();
        let xrcd = pd.context().open_xrcd(XrcdShare::Private).unwrap();
        let mut cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let mut inbox = Inbox::with_access(&pd, &xrcd, 4, ALL_REMOTE | Access::ON_DEMAND);
        let (mut sender, _target) = connection(&pd, &cq, &xrcd);
        // The device has no page of these regions before the first access.
        let theirs = region(&pd, &[0; 64], ALL_REMOTE | Access::ON_DEMAND);
        let ours = region(&pd, &7u64.to_ne_bytes(), Access::LOCAL_WRITE | Access::ON_DEMAND);
        let remote = theirs.remote(8).unwrap();
        for operation in [
            Operation::Send,
            Operation::Write(remote),
            Operation::FetchAdd { remote, add: 2 },
            Operation::Read(remote),
        ] {
            let request = SendRequest {
                wr_id: 9,
                operation: XrcOperation { remote_srq: inbox.srq.srq_num(), operation },
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&[ours.sge(..).unwrap()]),
            };
            // SAFETY: the regions outlive the queue pair, and their bytes are only copied.
            unsafe { sender.post_send(&[request]) }.unwrap();
            assert_eq!(take(&mut cq, 1)[0].status, WcStatus::SUCCESS, "{operation:?}");
        }
        assert_eq!(contents(&theirs)[8..16], 9u64.to_ne_bytes());
        assert_eq!(contents(&ours), 9u64.to_ne_bytes());
        assert_eq!(inbox.next().2, 7u64.to_ne_bytes());
    });
    Ok(Completion::Completed)
}

/// A file that no other process uses.
fn file(name: &str) -> File {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[kernel_test(device::xrc)]
fn xrc_domain_is_shared_by_file() {
    nothing_leaks(|| {
        let file = file("xrc-domain");
        let (one, other) = (domain(), domain());
        let shared = |pd: &Pd| pd.context().open_xrcd(XrcdShare::JoinOrCreate(file.as_fd())).unwrap();
        let (first, second) = (shared(&one), shared(&other));
        let mut cq = one.context().create_cq(&CqInit::new(64)).unwrap();
        // Messages to the first process's target may go to the second's SRQ.
        let (mut sender, target) = connection(&one, &cq, &first);
        let mut inbox = Inbox::new(&other, &second, 4);
        assert_eq!(send(&mut sender, &mut cq, inbox.srq.srq_num(), b"over there"), WcStatus::SUCCESS);
        assert_eq!(inbox.next(), (0, target.qp_num(), b"over there".to_vec()));

        // An opened target stays while it is open.
        let opened = second.open_target(target.qp_num(), 5).unwrap();
        assert_eq!((opened.state(), opened.qp_num(), opened.user_data()), (QpState::RTS, target.qp_num(), 5));
        let number = target.qp_num();
        target.destroy().unwrap();
        assert_eq!(send(&mut sender, &mut cq, inbox.srq.srq_num(), b"still there"), WcStatus::SUCCESS);
        assert_eq!(inbox.next(), (1, number, b"still there".to_vec()));
        drop((first, second.clone()));
        let refused = second.open_target(0xff_fff0, 0).map(drop).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL), "{refused}");
        assert!(refused.to_string().contains("may have no such target"), "{refused}");
        drop(opened);
    });
}

#[kernel_test(device::xrc)]
fn xrcd_create_and_join_are_distinguished() {
    nothing_leaks(|| {
        let (file, context) = (file("xrc-made"), domain().context().clone());
        let open = |share| context.open_xrcd(share);
        let refused = open(XrcdShare::Join(file.as_fd())).map(drop).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::AGAIN), "{refused}");
        assert!(refused.to_string().contains("create it first"), "{refused}");
        let made = open(XrcdShare::Create(file.as_fd())).unwrap();
        let refused = open(XrcdShare::Create(file.as_fd())).map(drop).unwrap_err();
        assert!(refused.to_string().contains("join it"), "{refused}");
        open(XrcdShare::Join(file.as_fd())).unwrap().close().unwrap();
        made.close().unwrap();
        open(XrcdShare::Join(file.as_fd())).map(drop).unwrap_err();
    });
}

#[kernel_test(device::xrc)]
fn xrc_srq_limit_event_is_raised_once() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let xrcd = context.open_xrcd(XrcdShare::Private).unwrap();
        let mut cq = context.create_cq(&CqInit::new(64)).unwrap();
        let inbox_cq = context.create_cq(&CqInit::new(64)).unwrap();
        let init = SrqInit { user_data: 0xfeed, ..SrqInit::new(16) };
        let srq = pd.create_xrc_srq(&XrcSrqInit { srq: init, xrcd: &xrcd, cq: &inbox_cq }).unwrap();
        assert_eq!((srq.user_data(), srq.pd().handle()), (0xfeed, pd.handle()));
        assert!(srq.capacity() >= init.max_wr && srq.max_sge() >= init.max_sge);
        let memory = region(&pd, &[0; 16 * SLOT], Access::LOCAL_WRITE);
        let mut inbox = Inbox { srq, cq: inbox_cq, memory };
        inbox.post(0..4);
        inbox.srq.set_limit(3).unwrap();
        assert_eq!(inbox.srq.query().unwrap().limit, 3);
        let (mut sender, _target) = connection(&pd, &cq, &xrcd);
        for _ in 0..2 {
            assert_eq!(send(&mut sender, &mut cq, inbox.srq.srq_num(), b"one less"), WcStatus::SUCCESS);
            inbox.next();
        }
        let event = context
            .async_events()
            .next()
            .wait_timeout(TIMEOUT)
            .transpose()
            .unwrap()
            .expect("fewer than 3 are left");
        assert!(matches!(event, AsyncEvent::Srq { user_data: 0xfeed, .. }), "{event:?}");
        assert_eq!(inbox.srq.destroy().unwrap(), 1, "one event was read");
    });
}

#[kernel_test(device::xrc)]
fn xrc_send_to_unknown_srq_fails() {
    nothing_leaks(|| {
        let pd = domain();
        let xrcd = pd.context().open_xrcd(XrcdShare::Private).unwrap();
        let elsewhere = pd.context().open_xrcd(XrcdShare::Private).unwrap();
        let foreign = Inbox::new(&pd, &elsewhere, 1);
        let gone = Inbox::new(&pd, &xrcd, 1);
        let number = gone.srq.srq_num();
        drop(gone);
        // An SRQ of another XRC domain, a destroyed one, and an invalid number.
        for srq in [foreign.srq.srq_num(), number, 0xff_fff0] {
            let mut cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
            let (mut sender, _target) = connection(&pd, &cq, &xrcd);
            let status = send(&mut sender, &mut cq, srq, b"nobody");
            assert_ne!(status, WcStatus::SUCCESS, "{srq:#x}");
        }
    });
}

#[kernel_test(device::xrc)]
fn xrc_rejects_unsupported_operations() {
    nothing_leaks(|| {
        let pd = domain();
        let xrcd = pd.context().open_xrcd(XrcdShare::Private).unwrap();
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let (mut sender, mut target) = connection(&pd, &cq, &xrcd);
        assert_eq!(sender.cap().max_recv_wr, 0);
        // An initiator has no receives, so their limits are ignored.
        let cap = QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..CAP };
        let init = QpInit { cap, ..QpInit::new(&cq, &cq) };
        assert_eq!(pd.create_qp::<XrcSend>(&init).unwrap().cap().max_recv_wr, 0);
        let mut refused = |remote_srq, operation| {
            let request = SendRequest {
                wr_id: 1,
                operation: XrcOperation { remote_srq, operation },
                flags: SendFlags::SIGNALED,
                payload: Payload::Sges(&[]),
            };
            // SAFETY: the request has no SGEs.
            unsafe { sender.post_send(&[request]) }.unwrap_err().reason
        };
        assert_eq!(
            refused(1 << 24, Operation::Send),
            PostReason::Queue(PushError::SrqNumber { srq_num: 1 << 24 })
        );
        let bind = MwBind {
            mw_type: MwType::TYPE_2,
            mw_rkey: 0,
            rkey: 0,
            mr_lkey: 0,
            addr: 0,
            length: 0,
            access: Access::empty(),
        };
        for operation in [Operation::BindMw(bind), Operation::LocalInv(5)] {
            assert!(matches!(refused(1, operation), PostReason::Queue(PushError::Unsupported { .. })));
        }
        // SAFETY: the request has no SGEs.
        let reason = unsafe { sender.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }.unwrap_err().reason;
        assert_eq!(reason, PostReason::XrcInitiator);
        let refused = target.init(&InitAttr::new(1)).unwrap_err();
        assert!(refused.to_string().contains("is in RTS, not in RESET"), "{refused}");
        target.reset().unwrap();
        let refused = target.ready_to_send(&XrcTargetRtsAttr::default()).unwrap_err();
        assert!(refused.to_string().contains("is in RESET, not in RTR"), "{refused}");
        let refused = target.set_error().unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        let srq = pd.create_srq(&SrqInit::new(4)).unwrap();
        let init = QpInit { srq: Some(&srq), ..QpInit::new(&cq, &cq) };
        let refused = pd.create_qp::<XrcSend>(&init).map(drop).unwrap_err();
        assert!(refused.to_string().contains("omit `srq`"), "{refused}");
    });
}

#[kernel_test(device::xrc)]
fn xrc_domain_closes_after_its_objects() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let xrcd = context.open_xrcd(XrcdShare::Private).unwrap();
        let cq = context.create_cq(&CqInit::new(64)).unwrap();
        let (sender, target) = connection(&pd, &cq, &xrcd);
        let inbox = Inbox::new(&pd, &xrcd, 1);
        let refused = xrcd.close().unwrap_err();
        assert!(refused.to_string().contains("drop them first"), "{refused}");
        drop((pd, cq, refused));
        let Inbox { srq, cq, memory } = inbox;
        drop(cq);
        drop((srq, memory));
        drop(target);
        drop(sender);
        assert_eq!(context.object_count(bareverbs::error::ObjectClass::XRCD).unwrap(), 0);
    });
}

#[kernel_test(device::xrc)]
fn xrc_objects_of_another_context_are_rejected() {
    nothing_leaks(|| {
        let (one, other) = (domain(), domain());
        let xrcd = one.context().open_xrcd(XrcdShare::Private).unwrap();
        let cq = other.context().create_cq(&CqInit::new(4)).unwrap();
        for pd in [&one, &other] {
            let init = XrcSrqInit { srq: SrqInit::new(4), xrcd: &xrcd, cq: &cq };
            let refused = pd.create_xrc_srq(&init).map(drop).unwrap_err();
            assert!(refused.to_string().contains("belongs to another context"), "{refused}");
        }
    });
}

#[kernel_test(device::no_xrc)]
fn xrc_is_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let pd = domain();
        let file = file("xrc-none");
        for share in [XrcdShare::Private, XrcdShare::Join(file.as_fd()), XrcdShare::Create(file.as_fd())] {
            let refused = pd.context().open_xrcd(share).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            assert_eq!(
                refused.to_string(),
                "open_xrcd: XRC domains are not supported by this kernel or device"
            );
        }
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let refused = pd.create_qp::<XrcSend>(&QpInit::new(&cq, &cq)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        // Normal SRQs are supported.
        let _srq: Srq = pd.create_srq(&SrqInit::new(4)).unwrap();
    });
}
