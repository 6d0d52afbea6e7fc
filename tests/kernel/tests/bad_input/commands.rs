//! The kernel's commands with handles and descriptors of wrong objects.
//!
//! The typed layer can't name such objects; direct callers of the commands can.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bareverbs::AnyProvider;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, CreatedMr, DriverPayload, MrRequest, RegMrMethod, ReregMr};
use bareverbs_provider::device::{DeviceFile, IoctlError, OpenError};
use bareverbs_provider::request::{
    AhRequest, CqRequest, CqeSize, DoorbellChoice, QpRequest, QueueMemory, SrqRequest,
};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{AccessFlags, DriverId, GidEntry, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::{MwType, QpAttrMask, QpState, SrqAttrMask};
use bareverbs_uapi::write::structs::{AhAttr, GlobalRoute, ModifyQpReq, ModifySrqReq};

const PATH: &str = "/dev/infiniband/uverbs0";
const PAGE: usize = 4096;

/// Objects of each class, in one context.
struct Testbed {
    file: Arc<DeviceFile>,
    provider: AnyProvider,
    /// The queues live until the kernel has destroyed their objects.
    queues: RefCell<Vec<OwnedQueue>>,
    page: Box<[u8; 2 * PAGE]>,
    pd: u32,
    mr: u32,
    mw: u32,
    cq: u32,
    srq: u32,
    qp: u32,
    ah: u32,
}

/// A queue whose object exists in the kernel.
#[expect(clippy::large_enum_variant, reason = "few values exist")]
enum OwnedQueue {
    Cq { _queue: <AnyProvider as Provider>::Cq },
    Srq { _queue: <AnyProvider as Provider>::Srq },
    Qp { _sq: <AnyProvider as Provider>::Sq, _rq: Option<<AnyProvider as Provider>::Rq> },
}

const CLASSES: [ObjectClass; 7] = [
    ObjectClass::PD,
    ObjectClass::MR,
    ObjectClass::MW,
    ObjectClass::CQ,
    ObjectClass::SRQ,
    ObjectClass::QP,
    ObjectClass::AH,
];

/// The driver's id.
fn driver() -> u32 {
    device::device().driver_id().expect("a driver id from RDMA netlink").0
}

fn cq_request(channel: Option<BorrowedFd<'_>>) -> CqRequest<'_> {
    CqRequest {
        entries: 16,
        user_handle: 0,
        channel,
        vector: 0,
        compressed: false,
        cqe_size: CqeSize::Bytes64,
        flags: bareverbs_uapi::write::types::CqCreateFlags::empty(),
        memory: QueueMemory::BasePages,
    }
}

impl Testbed {
    fn new() -> Self {
        let file = Arc::new(device::file());
        let provider = AnyProvider::open(file.clone()).unwrap();
        let page = Box::new([0; 2 * PAGE]);
        let pd = provider.alloc_pd().unwrap();
        let queues = RefCell::default();
        let mut testbed =
            Self { file, provider, queues, page, pd, mr: 0, mw: 0, cq: 0, srq: 0, qp: 0, ah: 0 };
        testbed.mr = testbed.reg_mr(pd).unwrap().handle;
        testbed.mw = command::alloc_mw(&testbed.file, pd, MwType::TYPE_2).unwrap().handle;
        // SAFETY: `queues` has the queue until the kernel has destroyed the object.
        let cq = unsafe { testbed.provider.create_cq(&cq_request(None)) }.unwrap();
        testbed.cq = cq.handle;
        testbed.queues.get_mut().push(OwnedQueue::Cq { _queue: cq.queue });
        testbed.srq = testbed.create_srq(pd).unwrap();
        testbed.qp = testbed.create_qp(pd, testbed.cq, None).unwrap();
        testbed.ah = testbed.create_ah(pd).unwrap();
        testbed
    }

    fn reg_mr(&self, pd: u32) -> Result<CreatedMr, IoctlError> {
        let addr = self.page.as_ptr().expose_provenance() as u64;
        let access = AccessFlags::empty();
        let request = MrRequest { pd, addr, length: PAGE as u64, iova: addr, access, dmah: None };
        // SAFETY: the page outlives the file, and the device may only read it.
        unsafe { RegMrMethod::default().register(&self.file, &request) }
    }

    fn create_srq(&self, pd: u32) -> Result<u32, IoctlError> {
        let request = SrqRequest {
            pd,
            max_wr: 16,
            max_sge: 1,
            limit: 0,
            memory: QueueMemory::BasePages,
            user_handle: 0,
            xrc: None,
        };
        // SAFETY: `queues` has the queue until the kernel has destroyed the object.
        let made = refused(unsafe { self.provider.create_srq(&request) })?;
        self.queues.borrow_mut().push(OwnedQueue::Srq { _queue: made.queue });
        Ok(made.handle)
    }

    fn create_qp(&self, pd: u32, cq: u32, srq: Option<u32>) -> Result<u32, IoctlError> {
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (qp_type, flags) = (QpType::UD, QpCreateFlags::empty());
        let request = QpRequest {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq,
            qp_type,
            cap,
            max_tso_header: 0,
            flags,
            source_qpn: None,
            scatter_to_cqe: false,
            user_handle: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::BasePages,
        };
        // SAFETY: `queues` has the queues until the kernel has destroyed the object.
        let made = refused(unsafe { self.provider.create_qp(&request) })?;
        self.queues.borrow_mut().push(OwnedQueue::Qp { _sq: made.sq, _rq: made.rq });
        Ok(made.handle)
    }

    fn create_ah(&self, pd: u32) -> Result<u32, IoctlError> {
        let mut table = [GidEntry::zeroed(); 8];
        command::query_gid_table(&self.file, &mut table).unwrap();
        let (dgid, sgid_index) = (table[0].gid, table[0].gid_index as u8);
        let grh =
            GlobalRoute { dgid, sgid_index, flow_label: 0, hop_limit: 1, traffic_class: 0, reserved: 0 };
        let attr = AhAttr { grh, is_global: 1, port_num: 1, ..AhAttr::zeroed() };
        refused(self.provider.create_ah(&AhRequest { pd, attr }).map(|made| made.handle))
    }

    fn handle(&self, class: ObjectClass) -> u32 {
        match class {
            ObjectClass::PD => self.pd,
            ObjectClass::MR => self.mr,
            ObjectClass::MW => self.mw,
            ObjectClass::CQ => self.cq,
            ObjectClass::SRQ => self.srq,
            ObjectClass::QP => self.qp,
            ObjectClass::AH => self.ah,
            class => panic!("no {class:?} here"),
        }
    }

    fn destroy(&self, class: ObjectClass, handle: u32) -> Result<(), IoctlError> {
        let file = &self.file;
        // SAFETY: all objects of this file are the test's own, and nothing is posted to them.
        unsafe {
            match class {
                ObjectClass::PD => command::dealloc_pd(file, handle),
                ObjectClass::MR => command::dereg_mr(file, handle),
                ObjectClass::MW => command::dealloc_mw(file, handle),
                ObjectClass::CQ => command::destroy_cq(file, handle).map(drop),
                ObjectClass::SRQ => command::destroy_srq(file, handle).map(drop),
                ObjectClass::QP => command::destroy_qp(file, handle).map(drop),
                ObjectClass::AH => command::destroy_ah(file, handle),
                class => panic!("no {class:?} here"),
            }
        }
    }

    /// The results of all commands on an object of the class, with `handle` as the object.
    fn use_as(&self, class: ObjectClass, handle: u32) -> Vec<(&'static str, Result<(), IoctlError>)> {
        let file = &self.file;
        let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        let mut commands = match class {
            ObjectClass::PD => vec![
                ("reg_mr", self.reg_mr(handle).map(drop)),
                ("alloc_mw", command::alloc_mw(file, handle, MwType::TYPE_1).map(drop)),
                ("create_srq", self.create_srq(handle).map(drop)),
                ("create_qp", self.create_qp(handle, self.cq, None).map(drop)),
                ("create_ah", self.create_ah(handle).map(drop)),
                (
                    "rereg_mr",
                    self.rereg_mr(self.mr, ReregMr { translation: None, pd: Some(handle), access: None }),
                ),
            ],
            ObjectClass::MR => vec![
                ("query_mr", command::query_mr(file, handle).map(drop)),
                (
                    "rereg_mr",
                    self.rereg_mr(handle, ReregMr { translation: None, pd: Some(self.pd), access: None }),
                ),
            ],
            ObjectClass::CQ => vec![
                ("create_qp", self.create_qp(self.pd, handle, None).map(drop)),
                ("req_notify_cq", command::req_notify_cq(file, handle, false)),
                ("resize_cq", self.resize_cq(handle)),
            ],
            ObjectClass::SRQ => vec![
                ("create_qp", self.create_qp(self.pd, self.cq, Some(handle)).map(drop)),
                ("query_srq", command::query_srq(file, handle).map(drop)),
                ("modify_srq", self.modify_srq(handle)),
            ],
            ObjectClass::QP => vec![
                ("query_qp", command::query_qp(file, handle, QpAttrMask::STATE).map(drop)),
                ("modify_qp", self.modify_qp(handle)),
                ("attach_mcast", command::attach_mcast(file, handle, group, 0)),
                // SAFETY: all objects of this file are the test's own, and nothing is posted to
                // them.
                ("detach_mcast", unsafe { command::detach_mcast(file, handle, group, 0) }),
            ],
            _ => Vec::new(),
        };
        commands.push(("destroy", self.destroy(class, handle)));
        commands
    }

    fn resize_cq(&self, cq: u32) -> Result<(), IoctlError> {
        // SAFETY: there is no driver payload.
        unsafe { command::resize_cq(&self.file, cq, 32, DriverPayload::default()) }.map(drop)
    }

    fn rereg_mr(&self, mr: u32, change: ReregMr) -> Result<(), IoctlError> {
        // SAFETY: neither the range nor the rights change.
        unsafe { command::rereg_mr(&self.file, mr, &change) }.map(drop)
    }

    fn modify_srq(&self, srq_handle: u32) -> Result<(), IoctlError> {
        let request = ModifySrqReq { srq_handle, attr_mask: SrqAttrMask::LIMIT, ..ModifySrqReq::zeroed() };
        let payload = DriverPayload { input: &[0; 8], output: &mut [] };
        // SAFETY: the kernel writes to the payload's address only for a resize.
        unsafe { command::modify_srq(&self.file, &request, payload) }
    }

    fn modify_qp(&self, qp_handle: u32) -> Result<(), IoctlError> {
        let (attr_mask, qp_state) = (QpAttrMask::STATE, QpState::RESET);
        // SAFETY: all objects of this file are the test's own, and nothing is posted to them.
        unsafe {
            command::modify_qp(
                &self.file,
                &ModifyQpReq { qp_handle, attr_mask, qp_state, ..ModifyQpReq::zeroed() },
            )
        }
    }

    /// Destroys all objects, users first.
    fn clear(self) {
        for class in CLASSES.into_iter().rev() {
            self.destroy(class, self.handle(class)).unwrap_or_else(|refused| panic!("{class:?}: {refused}"));
        }
    }
}

/// The kernel's error; the provider returns none of its own.
fn refused<T>(answer: Result<T, bareverbs_provider::error::CreateError>) -> Result<T, IoctlError> {
    answer.map_err(|error| match error {
        bareverbs_provider::error::CreateError::Ioctl(refused) => refused,
        error => panic!("{error}"),
    })
}

fn no_such_object(class: ObjectClass, handle: u32, answers: Vec<(&'static str, Result<(), IoctlError>)>) {
    for (verb, answer) in answers {
        let refused = answer.expect_err(verb);
        // A kernel without a command rejects it before it checks the handle.
        let wrong = [Errno::NOENT, Errno::INVAL, Errno::BADF];
        let lacking = ["rereg_mr", "req_notify_cq"].contains(&verb) && refused.errno == Errno::OPNOTSUPP;
        assert!(wrong.contains(&refused.errno) || lacking, "{verb} of {class:?} {handle:#x}: {refused}");
        let text = refused.to_string();
        assert!(text.contains(&format!("was refused by {}: ", device::error_origin())), "{text}");
    }
}

#[kernel_test(device::ib_transports)]
fn handles_of_another_class_are_rejected() {
    nothing_leaks(|| {
        let testbed = Testbed::new();
        for class in CLASSES {
            for other in CLASSES.into_iter().filter(|other| *other != class) {
                let handle = testbed.handle(other);
                no_such_object(class, handle, testbed.use_as(class, handle));
            }
        }
        testbed.clear();
    });
}

#[kernel_test(device::ib_transports)]
fn unknown_handles_are_rejected() {
    nothing_leaks(|| {
        let testbed = Testbed::new();
        for class in CLASSES {
            for handle in [0xdead, i32::MAX as u32, 1 << 31, u32::MAX] {
                no_such_object(class, handle, testbed.use_as(class, handle));
            }
        }
        testbed.clear();
    });
}

#[kernel_test(device::ib_transports)]
fn freed_handles_are_rejected() {
    nothing_leaks(|| {
        let testbed = Testbed::new();
        // Objects are destroyed before the objects that they use.
        for class in CLASSES.into_iter().rev() {
            let handle = testbed.handle(class);
            testbed.destroy(class, handle).unwrap();
            // A new object could get the freed handle, but all creations below fail.
            no_such_object(class, handle, testbed.use_as(class, handle));
        }
    });
}

#[kernel_test(device::ib_transports)]
fn objects_in_use_are_not_destroyed() {
    nothing_leaks(|| {
        let testbed = Testbed::new();
        let srq_user = testbed.create_qp(testbed.pd, testbed.cq, Some(testbed.srq)).unwrap();
        for class in [ObjectClass::PD, ObjectClass::CQ, ObjectClass::SRQ] {
            let refused = testbed.destroy(class, testbed.handle(class)).unwrap_err();
            assert_eq!(refused.errno, Errno::BUSY, "{class:?}");
            assert!(refused.to_string().ends_with("(another object still uses it)"), "{refused}");
        }
        let group = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        // An InfiniBand multicast group has a LID.
        let lid = if device::is_infiniband() { 0xc000 } else { 0 };
        command::attach_mcast(&testbed.file, testbed.qp, group, lid).unwrap();
        let refused = testbed.destroy(ObjectClass::QP, testbed.qp).unwrap_err();
        assert_eq!(refused.errno, Errno::BUSY);
        // SAFETY: all objects of this file are the test's own, and nothing is posted to them.
        unsafe { command::detach_mcast(&testbed.file, testbed.qp, group, lid) }.unwrap();
        testbed.destroy(ObjectClass::QP, srq_user).unwrap();
        testbed.clear();
    });
}

#[kernel_test(device::ib_transports)]
fn objects_of_another_file_are_not_seen() {
    nothing_leaks(|| {
        let (one, other) = (Testbed::new(), Testbed::new());
        // Gives the first file handles that the second one does not have.
        let far: Vec<u32> =
            (0..20).map(|_| command::alloc_mw(&one.file, one.pd, MwType::TYPE_1).unwrap().handle).collect();
        let handle = *far.last().unwrap();
        for class in CLASSES {
            no_such_object(class, handle, other.use_as(class, handle));
        }
        for handle in far {
            one.destroy(ObjectClass::MW, handle).unwrap();
        }
        one.clear();
        other.clear();
    });
}

#[kernel_test(device::has_device_node, device::ib_transports)]
fn create_cq_rejects_other_descriptors_as_channel() {
    nothing_leaks(|| {
        let testbed = Testbed::new();
        let null = File::open("/dev/null").unwrap();
        let events = command::async_event_alloc(&testbed.file).unwrap();
        let device = File::options().read(true).write(true).open(PATH).unwrap();
        let elsewhere = Testbed::new();
        let channel = command::create_comp_channel(&elsewhere.file).unwrap();
        for fd in [null.as_fd(), events.as_fd(), device.as_fd(), channel.as_fd()] {
            // SAFETY: there is no queue to keep.
            let made = unsafe { testbed.provider.create_cq(&cq_request(Some(fd))) };
            let refused = refused(made.map(drop)).unwrap_err();
            assert!([Errno::BADF, Errno::INVAL, Errno::NOENT].contains(&refused.errno), "{fd:?}: {refused}");
        }
        drop(channel);
        elsewhere.clear();
        testbed.clear();
    });
}

#[kernel_test(device::has_device_node, device::ib_transports)]
fn device_file_without_context_rejects_commands() {
    nothing_leaks(|| {
        let with = |path: &str, driver| DeviceFile::open(path, driver).unwrap();
        for path in ["/dev/null", "/dev/zero", "/dev/kmsg"] {
            let refused = DeviceFile::open(path, driver()).map(drop).unwrap_err();
            assert_eq!(refused, OpenError::NotUverbs, "{path}");
        }
        // The checks in order: the method, the file's own driver, a context.
        for (file, errnos) in [
            (with(PATH, DriverId::MLX4.0), [Errno::INVAL, Errno::INVAL]),
            (with(PATH, u32::MAX), [Errno::INVAL, Errno::INVAL]),
            (with(PATH, driver()), [Errno::INVAL, Errno::NOENT]),
        ] {
            // SAFETY: there is no driver payload.
            let made = unsafe { command::alloc_pd(&file, DriverPayload::default()) };
            for refused in [
                made.map(drop),
                // SAFETY: the file has no objects.
                unsafe { command::dealloc_pd(&file, 0) },
                command::create_comp_channel(&file).map(drop),
                command::query_qp(&file, 0, QpAttrMask::STATE).map(drop),
                command::query_mr(&file, 0).map(drop),
                // SAFETY: the file has no objects.
                unsafe { command::destroy_cq(&file, 0) }.map(drop),
            ] {
                let refused = refused.unwrap_err();
                assert!(errnos.contains(&refused.errno), "{refused}");
            }
        }
        let testbed = Testbed::new();
        // SAFETY: there is no driver payload.
        let again = unsafe { command::get_context(&testbed.file, DriverPayload::default()) }.unwrap_err();
        assert_eq!(again, IoctlError::new("GetContext", Errno::INVAL));
        testbed.clear();
    });
}

#[kernel_test(device::ib_transports)]
fn queries_handle_any_buffer_size() {
    nothing_leaks(|| {
        let testbed = Testbed::new();
        let file = &testbed.file;
        let filled = command::query_gid_table(file, &mut vec![GidEntry::zeroed(); 100_000]).unwrap();
        assert!(filled >= 1);
        assert_eq!(command::query_gid_table(file, &mut []).unwrap_err().errno, Errno::INVAL);
        let mut fewer = vec![GidEntry::zeroed(); filled - 1];
        assert_eq!(command::query_gid_table(file, &mut fewer).unwrap_err().errno, Errno::INVAL);
        assert_eq!(command::info_handles(file, ObjectClass::PD, &mut vec![0; 1 << 20]).unwrap(), 1);
        for class in [ObjectClass(0x0fff), ObjectClass(u16::MAX)] {
            assert!(command::info_handles(file, class, &mut [0; 8]).is_err(), "{class:?}");
        }
        for port in [0, 2, 255] {
            assert_eq!(command::query_port(file, port).unwrap_err().errno, Errno::INVAL);
            assert_eq!(command::query_gid_entry(file, port.into(), 0).unwrap_err().errno, Errno::INVAL);
        }
        for index in [1 << 20, u32::MAX] {
            assert!(command::query_gid_entry(file, 1, index).is_err());
        }
        testbed.clear();
    });
}
