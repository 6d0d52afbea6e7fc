//! Queues in memory of the caller and in dma-bufs.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use bareverbs::cq::{Cq, CqInit};
use bareverbs::error::{CreateError, Feature, Limit};
use bareverbs::qp::{
    Allocation, Operation, Payload, Qp, QpCap, QpInit, QueueAllocator, QueueBuffer, QueueMemory,
    QueueResource, RawPacket, Rc, Ud,
};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Buffer, Error, MemoryOwner, Pd, WcStatus};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::loopback::{Plan, Side, contents, domain, join, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, kernel_test, skip};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::foreign_memory::dma_buf;
use crate::huge_pages::SetAside;
use crate::raw_packets::{BOB, EXPERIMENT, Side as FrameSide, frame, to_bob};

const LEN: usize = 1 << 16;

/// Bytes of a CQ of 127 CQEs.
const CQ_BYTES: usize = 128 * 64;

/// For tests of queues in dma-bufs.
///
/// # Errors
/// If the kernel or the driver lacks them.
pub(crate) fn queue_dmabufs() -> Requirement {
    if device::open().capabilities().queue_dmabufs {
        Ok(())
    } else {
        Err("queues in dma-bufs require mlx5 on Linux 7.2".to_owned())
    }
}

/// For tests of mlx5 without queues in dma-bufs.
///
/// # Errors
/// If the device is another one, or has them.
pub(crate) fn no_queue_dmabufs() -> Requirement {
    device::connectx()?;
    if queue_dmabufs().is_err() { Ok(()) } else { Err("the device has queues in dma-bufs".to_owned()) }
}

fn memory() -> QueueBuffer {
    QueueBuffer::new(Buffer::zeroed(LEN).unwrap()).unwrap()
}

/// A huge page of 2 MiB.
struct HugePage(NonNull<u8>);

const HUGE: usize = 2 << 20;

impl HugePage {
    fn new() -> rustix::io::Result<Self> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB);
        // SAFETY: the kernel chooses an unused range.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), HUGE, access, flags) }?;
        Ok(Self(NonNull::new(start.cast()).unwrap()))
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the page, and only this value has it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), HUGE) };
    }
}

// SAFETY: the page belongs to the value, not to a thread.
unsafe impl Send for HugePage {}
// SAFETY: a shared reference gives no access.
unsafe impl Sync for HugePage {}

// SAFETY: the page does not move and is unmapped by drop only.
unsafe impl MemoryOwner for HugePage {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (self.0, HUGE)
    }
}

/// Sends messages both ways, so often that all rings wrap.
fn carries_messages(pd: &Pd, a: &mut Side, b: &mut Side) {
    let (from, to) = (region(pd, &[7; 64], Access::empty()), region(pd, &[0; 64], Access::LOCAL_WRITE));
    join(a, b);
    for wr_id in 0..300 {
        let (one, other) = if wr_id % 2 == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
        other.recv_into(wr_id, 1, &[to.sge(..).unwrap()]);
        one.send(&[request(wr_id, Operation::Send, Payload::Sges(&[from.sge(..).unwrap()]))]).unwrap();
        assert_eq!(one.ends(1), [(wr_id, WcStatus::SUCCESS)]);
        assert_eq!(other.ends(1), [(wr_id, WcStatus::SUCCESS)]);
    }
    assert_eq!(contents(&to), [7; 64]);
}

fn cq_in(pd: &Pd, buffer: &QueueBuffer) -> Cq {
    pd.context().create_cq(&CqInit { memory: QueueMemory::From(buffer), ..CqInit::new(100) }).unwrap()
}

fn qp_in(pd: &Pd, cq: &Cq, buffer: &QueueBuffer) -> Qp<Rc> {
    let init = QpInit { cap: Plan::default().cap, memory: QueueMemory::From(buffer), ..QpInit::new(cq, cq) };
    pd.create_qp(&init).unwrap()
}

#[kernel_test]
fn queue_dmabufs_are_reported_by_mlx5_since_linux_7_2() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    let kernel = (numbers.next().unwrap(), numbers.next().unwrap());
    let expected = device::connectx().is_ok() && kernel >= (7, 2);
    let context = device::open();
    let capabilities = context.capabilities();
    assert_eq!(capabilities.queue_dmabufs, expected, "Linux {release}");
    assert_eq!(capabilities.queue_buffers, device::connectx().is_ok());
}

#[kernel_test(device::connectx)]
fn cq_in_caller_memory_carries_completions() {
    nothing_leaks(|| {
        let (pd, buffer) = (domain(), memory());
        let cq = cq_in(&pd, &buffer);
        assert_eq!(cq.capacity(), 127);
        let plan = Plan::default();
        let (mut a, mut b) = (Side::on(&pd, plan, cq), bareverbs_kernel_tests::loopback::side(&pd, plan));
        carries_messages(&pd, &mut a, &mut b);
        drop((a, b));
        let bytes = buffer.into_memory::<Buffer>().unwrap();
        // The last byte of a CQE has its opcode; 0xf0 if the device has written none.
        assert!(bytes[..CQ_BYTES].chunks(64).all(|cqe| cqe[63] >> 4 != 0xf), "the CQEs are in this memory");
        assert!(bytes[CQ_BYTES..].iter().all(|byte| *byte == 0), "nothing else is");
    });
}

#[kernel_test(device::connectx)]
fn cq_in_a_callers_huge_page_carries_completions() -> Outcome {
    let pages = SetAside::pages(1);
    let page = match HugePage::new() {
        Ok(page) => page,
        Err(errno) => return skip(format!("the kernel has no free huge page: {errno}")),
    };
    let mut page = Some(page);
    nothing_leaks(|| {
        let Some(page) = page.take() else { return };
        let (pd, buffer) = (domain(), QueueBuffer::new(page).unwrap());
        let plan = Plan::default();
        let mut a = Side::on(&pd, plan, cq_in(&pd, &buffer));
        let mut b = bareverbs_kernel_tests::loopback::side(&pd, plan);
        carries_messages(&pd, &mut a, &mut b);
        drop((a, b));
        assert!(buffer.into_memory::<HugePage>().is_ok());
    });
    drop(pages);
    Ok(Completion::Completed)
}

#[kernel_test(device::connectx)]
fn qp_in_caller_memory_carries_messages() {
    nothing_leaks(|| {
        let (pd, plan) = (domain(), Plan::default());
        let (cq_memory, qp_memory) = (memory(), memory());
        let cq = cq_in(&pd, &cq_memory);
        let qp = qp_in(&pd, &cq, &qp_memory);
        let mut a = Side::of(qp, cq, plan);
        let mut b = bareverbs_kernel_tests::loopback::side(&pd, plan);
        carries_messages(&pd, &mut a, &mut b);
        assert!(qp_memory.is_in_use());
        drop((a, b));
        let bytes = qp_memory.into_memory::<Buffer>().unwrap();
        assert!(bytes.iter().any(|byte| *byte != 0), "the WQEs are in this memory");
    });
}

#[kernel_test(queue_dmabufs)]
fn queues_in_a_dmabuf_carry_messages() -> Outcome {
    let (file, dmabuf) = match dma_buf(4 * LEN as u64) {
        Ok(made) => made,
        Err(error) => return skip(format!("this kernel makes no dma-bufs of memory: {error}")),
    };
    nothing_leaks(|| {
        // SAFETY: the parts differ, and the file is only read while the queues have them.
        let part = |offset| unsafe { QueueBuffer::dmabuf(dmabuf.try_clone().unwrap(), offset, LEN) }.unwrap();
        let (pd, plan) = (domain(), Plan::default());
        let (cq_memory, qp_memory) = (part(LEN as u64), part(2 * LEN as u64));
        let cq = cq_in(&pd, &cq_memory);
        let qp = qp_in(&pd, &cq, &qp_memory);
        let mut a = Side::of(qp, cq, plan);
        let mut b = bareverbs_kernel_tests::loopback::side(&pd, plan);
        carries_messages(&pd, &mut a, &mut b);
        // The parts before and after are untouched, and the first has CQEs.
        let at = |offset: usize| {
            let mut bytes = vec![0; LEN];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset as u64).unwrap();
            bytes
        };
        assert!(at(0).iter().chain(&at(3 * LEN)).all(|byte| *byte == 0));
        assert!(at(LEN)[..CQ_BYTES].chunks(64).all(|cqe| cqe[63] >> 4 != 0xf));
        assert!(at(2 * LEN).iter().any(|byte| *byte != 0));
        drop((a, b));
        cq_memory.into_dmabuf().unwrap();
        rustix::fs::ftruncate(&file, 4 * LEN as u64).unwrap();
        let zeros = vec![0; 4 * LEN];
        std::os::unix::fs::FileExt::write_all_at(&file, &zeros, 0).unwrap();
    });
    Ok(Completion::Completed)
}

#[kernel_test(device::raw_packets)]
fn raw_packet_queues_in_caller_memory_carry_frames() {
    nothing_leaks(|| {
        let mut a = FrameSide::new(&domain());
        let (pd, buffer) = (domain(), memory());
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let cap = QpCap { max_inline_data: 128, ..QpCap::default() };
        let init = QpInit { cap, memory: QueueMemory::From(&buffer), ..QpInit::new(&cq, &cq) };
        let qp = pd.create_qp::<RawPacket>(&init).unwrap();
        let mut b = FrameSide::of(&pd, qp, cq);
        b.qp.create_flow(&to_bob()).unwrap();
        for round in 0..40u8 {
            b.receive(0);
            let bytes = frame(BOB, EXPERIMENT, &[round; 70]);
            a.send(&bytes);
            assert_eq!(b.next(), bytes);
            b.send(&frame(BOB, EXPERIMENT, b"from this side"));
        }
        drop(b);
        assert!(buffer.into_memory::<Buffer>().unwrap().iter().any(|byte| *byte != 0));
    });
}

#[kernel_test(device::connectx)]
fn resized_cq_leaves_the_caller_memory() {
    nothing_leaks(|| {
        let (pd, plan, buffer) = (domain(), Plan::default(), memory());
        let mut a = Side::on(&pd, plan, cq_in(&pd, &buffer));
        let mut b = bareverbs_kernel_tests::loopback::side(&pd, plan);
        assert!(buffer.is_in_use());
        a.cq.resize(1000).unwrap();
        assert!(!buffer.is_in_use());
        carries_messages(&pd, &mut a, &mut b);
        drop(buffer.into_memory::<Buffer>().unwrap());
    });
}

#[kernel_test(device::connectx)]
fn unsuitable_queue_buffers_are_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let short = QueueBuffer::new(Buffer::zeroed(CQ_BYTES - 1).unwrap()).unwrap();
        let create = |init: &CqInit<'_>| pd.context().create_cq(init).map(drop).unwrap_err();
        let refused = create(&CqInit { memory: QueueMemory::From(&short), ..CqInit::new(100) });
        let (asked, max) = (CQ_BYTES as u64, CQ_BYTES as u64 - 1);
        assert!(
            matches!(refused, Error::Limit { limit: Limit::QueueBytes, asked: a, max: m, .. } if (a, m) == (asked, max)),
            "{refused}"
        );
        let buffer = memory();
        let cq = cq_in(&pd, &buffer);
        let refused = create(&CqInit { memory: QueueMemory::From(&buffer), ..CqInit::new(100) });
        assert!(refused.to_string().contains("a buffer of its own to each queue"), "{refused}");
        let init = QpInit { memory: QueueMemory::From(&buffer), ..QpInit::new(&cq, &cq) };
        let refused = pd.create_qp::<Rc>(&init).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        drop(cq);
        drop(cq_in(&pd, &buffer));
        drop(buffer.into_memory::<Buffer>().unwrap());
    });
}

/// An allocator whose memory is counted.
#[derive(Debug, Default)]
struct Counting {
    live: Arc<Mutex<Vec<QueueResource>>>,
}

/// Memory of the allocator.
struct Counted {
    resource: QueueResource,
    memory: Buffer,
    bytes: usize,
    live: Arc<Mutex<Vec<QueueResource>>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut live = self.live.lock().unwrap();
        let at = live.iter().position(|live| *live == self.resource).expect("it was allocated");
        live.remove(at);
    }
}

// SAFETY: the memory is that of the buffer, of at most its length.
unsafe impl MemoryOwner for Counted {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (self.memory.region().0, self.bytes)
    }
}

impl QueueAllocator for Counting {
    fn allocate(&self, resource: QueueResource, layout: Layout) -> Allocation {
        let (bytes, live) = (layout.size(), Arc::clone(&self.live));
        if resource == QueueResource::DoorbellRecord {
            assert_eq!((bytes, layout.align()), (8, 8));
        }
        let memory = Buffer::zeroed(bytes).unwrap();
        live.lock().unwrap().push(resource);
        Ok(Some(QueueBuffer::new(Counted { resource, memory, bytes, live }).unwrap().into()))
    }
}

/// An allocator without memory, and one that leaves it to the provider.
#[derive(Debug)]
struct Fixed(Option<CreateError>);

impl QueueAllocator for Fixed {
    fn allocate(&self, _: QueueResource, _: Layout) -> Allocation {
        self.0.map_or(Ok(None), Err)
    }
}

#[kernel_test(device::connectx)]
fn allocator_has_the_memory_of_queues_until_they_are_destroyed() {
    nothing_leaks(|| {
        use QueueResource::{Cq, DoorbellRecord, Qp, Srq};
        let allocator = Counting::default();
        let live = || {
            let mut live = allocator.live.lock().unwrap().clone();
            live.sort_by_key(|resource| format!("{resource:?}"));
            live
        };
        let (pd, plan) = (domain(), Plan::default());
        let memory = QueueMemory::From(&allocator);
        let cq = pd.context().create_cq(&CqInit { memory, ..CqInit::new(100) }).unwrap();
        let srq = pd.create_srq(&SrqInit { memory, ..SrqInit::new(8) }).unwrap();
        assert_eq!(live(), [Cq, DoorbellRecord, DoorbellRecord, Srq]);
        drop(srq);
        let init = QpInit { cap: plan.cap, memory, ..QpInit::new(&cq, &cq) };
        let datagrams = pd.create_qp::<Ud>(&init).unwrap();
        assert_eq!(live(), [Cq, DoorbellRecord, DoorbellRecord, Qp]);
        drop(datagrams);
        let qp = pd.create_qp::<Rc>(&init).unwrap();
        assert_eq!(live(), [Cq, DoorbellRecord, DoorbellRecord, Qp]);
        let mut a = Side::of(qp, cq, plan);
        let mut b = bareverbs_kernel_tests::loopback::side(&pd, plan);
        carries_messages(&pd, &mut a, &mut b);
        // Both rings exist during the resize.
        a.cq.resize_in(1000, memory).unwrap();
        assert_eq!(live(), [Cq, DoorbellRecord, DoorbellRecord, Qp]);
        for side in [&mut a, &mut b] {
            side.qp.reset().unwrap();
        }
        carries_messages(&pd, &mut a, &mut b);
        a.cq.resize(100).unwrap();
        assert_eq!(live(), [DoorbellRecord, DoorbellRecord, Qp]);
        drop((a, b));
        assert_eq!(live(), []);
    });
}

#[kernel_test(device::connectx)]
fn allocator_can_decline_or_fail() {
    nothing_leaks(|| {
        let pd = domain();
        let with = |fixed: &Fixed| {
            let memory = QueueMemory::From(fixed);
            pd.context().create_cq(&CqInit { memory, ..CqInit::new(4) }).map(drop)
        };
        with(&Fixed(None)).unwrap();
        let none = CreateError::NoMemory { bytes: 4096 };
        let refused = with(&Fixed(Some(none))).unwrap_err();
        assert!(matches!(refused, Error::Provider { reason, .. } if reason == none), "{refused}");
    });
}

#[kernel_test(no_queue_dmabufs)]
fn queues_in_dmabufs_are_unsupported_without_the_capability() -> Outcome {
    let Ok((_file, dmabuf)) = dma_buf(LEN as u64) else {
        return skip("this kernel makes no dma-bufs of memory");
    };
    // SAFETY: nothing else accesses the dma-buf.
    let buffer = unsafe { QueueBuffer::dmabuf(dmabuf, 0, LEN) }.unwrap();
    let memory = QueueMemory::From(&buffer);
    let refused = device::open().create_cq(&CqInit { memory, ..CqInit::new(4) }).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { feature: Feature::QueueDmabufs, .. }), "{refused}");
    assert!(!buffer.is_in_use());
    Ok(Completion::Completed)
}

#[kernel_test(device::rxe_abi)]
fn queues_in_caller_memory_are_unsupported_on_rxe() {
    nothing_leaks(|| {
        let (pd, buffer) = (domain(), memory());
        let mut cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let memory = QueueMemory::From(&buffer);
        let refusals = [
            pd.context().create_cq(&CqInit { memory, ..CqInit::new(4) }).map(drop).unwrap_err(),
            pd.create_qp::<Rc>(&QpInit { memory, ..QpInit::new(&cq, &cq) }).map(drop).unwrap_err(),
            pd.create_srq(&SrqInit { memory, ..SrqInit::new(4) }).map(drop).unwrap_err(),
            cq.resize_in(8, memory).map(drop).unwrap_err(),
        ];
        for refused in refusals {
            assert!(
                matches!(refused, Error::Unsupported { feature: Feature::QueueBuffers, .. }),
                "{refused}"
            );
        }
        drop(buffer.into_memory::<Buffer>().unwrap());
    });
}
