//! An open device with counted objects, and helpers of the tests.

use std::time::Duration;

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::device::GidEntry;
use bareverbs::error::ObjectClass;
use bareverbs::qp::{Qp, QpCap, QpInit, RecvRequest, Ud, UdInitAttr};
use bareverbs::{Access, Buffer, Context, Mr, Pd, WcStatus};
pub(crate) use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::device;
pub(crate) use bareverbs_kernel_tests::loopback::next;

/// Time without an event after which none is expected.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

pub(crate) const CAP: QpCap =
    QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };

pub(crate) const QKEY: u32 = 0x1234_5678;

pub(crate) struct Host {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
}

/// Runs a test and asserts that the context has no object afterwards.
pub(crate) fn on_device(test: impl FnOnce(&Host)) {
    let context = device::open();
    let host = Host { pd: context.alloc_pd().unwrap(), context: context.clone() };
    test(&host);
    drop(host);
    for class in [
        ObjectClass::QP,
        ObjectClass::CQ,
        ObjectClass::SRQ,
        ObjectClass::AH,
        ObjectClass::MR,
        ObjectClass::PD,
    ] {
        assert_eq!(context.object_count(class).unwrap(), 0, "leaked: {class:?}");
    }
}

impl Host {
    pub(crate) fn cq(&self) -> Cq {
        self.context.create_cq(&CqInit::new(256)).unwrap()
    }

    pub(crate) fn memory(&self, len: usize) -> Mr<Buffer> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        self.pd.register(Buffer::zeroed(len).unwrap(), access).unwrap()
    }

    pub(crate) fn gid(&self) -> GidEntry {
        self.context.default_gid(1).unwrap()
    }

    /// The GID of the link-local IPv6 address.
    pub(crate) fn ipv6_gid(&self) -> GidEntry {
        let table = self.context.gid_table().unwrap();
        *table.iter().find(|entry| entry.gid.ipv4().is_none()).expect("a link-local address")
    }

    /// The loopback path.
    pub(crate) fn here(&self) -> AhAttr {
        let gid = self.gid();
        AhAttr::global(1, gid.gid, gid.index)
    }

    /// A UD queue pair in RTS.
    pub(crate) fn datagrams(&self, cq: &Cq, qkey: u32) -> Qp<Ud> {
        let mut qp = self.pd.create_qp::<Ud>(&QpInit { cap: CAP, ..QpInit::new(cq, cq) }).unwrap();
        ready(&mut qp, qkey);
        qp
    }
}

pub(crate) fn ready(qp: &mut Qp<Ud>, qkey: u32) {
    qp.init(&UdInitAttr::new(1, qkey)).unwrap();
    qp.ready_to_receive().unwrap();
    qp.ready_to_send(0).unwrap();
}

pub(crate) fn receive(qp: &mut Qp<Ud>, wr_id: u64, memory: &Mr<Buffer>) {
    let sges = [memory.sge(..).unwrap()];
    // SAFETY: tests look at the memory by copying, after the completion.
    unsafe { qp.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
}

pub(crate) fn bytes(memory: &Mr<Buffer>, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes).unwrap();
    bytes
}

/// The next completion, which must be a success.
#[track_caller]
pub(crate) fn done(cq: &mut Cq) -> WorkCompletion {
    let completion = next(cq);
    assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
    completion
}

/// Asserts that no completion arrives for a while.
pub(crate) fn quiet(cq: &mut Cq) {
    std::thread::sleep(QUIET);
    assert_eq!(cq.poll_one(), None);
}
