//! Queues in huge pages.

use std::fs;

use bareverbs::cq::CqInit;
use bareverbs::error::Feature;
use bareverbs::qp::{Operation, Payload, Qp, QpInit, QueueMemory, Rc, RecvRequest};
use bareverbs::rss::{HashFields, WqInit};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Error, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, Side, contents, domain, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::raw_packets::{BOB, EXPERIMENT, Side as FrameSide, frame, to_bob};
use crate::rss::{Queues, spread};

const SET_ASIDE: &str = "/proc/sys/vm/nr_hugepages";

/// For tests with huge pages.
///
/// # Errors
/// If the kernel can't reserve any: it does not support them or has no free memory.
pub(crate) fn huge_pages() -> device::Requirement {
    device::connectx()?;
    let given = SetAside::pages(16).free();
    if given == 16 {
        Ok(())
    } else {
        Err(format!("the kernel sets {given} huge pages aside when asked for 16"))
    }
}

/// For tests with huge pages and work queues.
///
/// # Errors
/// If the kernel can't reserve huge pages, or the device has no work queues.
pub(crate) fn huge_work_queues() -> device::Requirement {
    device::work_queues()?;
    huge_pages()
}

/// Reserves huge pages in the kernel until it is dropped.
pub(crate) struct SetAside;

impl SetAside {
    pub(crate) fn pages(count: u32) -> Self {
        // If the write fails, there are no huge pages.
        let _ = fs::write(SET_ASIDE, count.to_string());
        Self
    }

    /// The number of free huge pages.
    fn free(&self) -> u32 {
        let reported = fs::read_to_string("/proc/meminfo").unwrap();
        let line = reported.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let _ = fs::write(SET_ASIDE, "0");
    }
}

fn huge_cq() -> CqInit<'static> {
    CqInit { memory: QueueMemory::HugePages, ..CqInit::new(100) }
}

#[kernel_test(huge_pages)]
fn queues_in_huge_pages_carry_messages() {
    let pages = SetAside::pages(16);
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let mut a = Side::on(
            &pd,
            Plan { memory: QueueMemory::HugePages, ..Plan::default() },
            context.create_cq(&huge_cq()).unwrap(),
        );
        assert_eq!(pages.free(), 14, "a queue pair and a CQ");
        let mut srq =
            pd.create_srq(&SrqInit { memory: QueueMemory::HugePages, ..SrqInit::new(100) }).unwrap();
        assert_eq!(pages.free(), 13);
        let plan = Plan::default();
        let mut cq = context.create_cq(&huge_cq()).unwrap();
        let init = QpInit { srq: Some(&srq), memory: QueueMemory::HugePages, ..QpInit::new(&cq, &cq) };
        let mut b: Qp<Rc> = pd.create_qp(&init).unwrap();
        assert_eq!(pages.free(), 11);
        a.connect(b.qp_num());
        b.init(&bareverbs::qp::InitAttr { access: plan.access, ..bareverbs::qp::InitAttr::new(1) }).unwrap();
        b.ready_to_receive(&a.towards(a.qp.qp_num())).unwrap();
        b.ready_to_send(&a.sending()).unwrap();
        let (from, to) = (region(&pd, &[7; 64], Access::empty()), region(&pd, &[0; 64], Access::LOCAL_WRITE));
        // Often enough that the rings wrap, also after a resize of the CQ.
        for round in 0..300u64 {
            let sges = [to.sge(..).unwrap()];
            // SAFETY: the memory is only copied from, after the completion.
            unsafe { srq.post_recv(&[RecvRequest { wr_id: round, sges: &sges }]) }.unwrap();
            a.send(&[request(round, Operation::Send, Payload::Sges(&[from.sge(..).unwrap()]))]).unwrap();
            assert_eq!(a.ends(1), [(round, WcStatus::SUCCESS)]);
            let done = bareverbs_kernel_tests::loopback::take(&mut cq, 1)[0];
            assert_eq!((done.wr_id, done.status, done.byte_len), (round, WcStatus::SUCCESS, 64));
            if round == 150 {
                cq.resize(60_000).unwrap();
                // 65,536 entries of 64 bytes fill two pages.
                assert_eq!(pages.free(), 10, "its new memory is as the old was");
            }
        }
        assert_eq!(contents(&to), [7; 64]);
    });
    assert_eq!(pages.free(), 16, "all come back");
}

#[kernel_test(huge_work_queues)]
fn work_queues_in_huge_pages_receive_frames() {
    let pages = SetAside::pages(16);
    nothing_leaks(|| {
        let (pd, mut sender) = (domain(), FrameSide::new(&domain()));
        let mut queues = Queues::ready_in(&pd, 2, QueueMemory::HugePages);
        assert_eq!(pages.free(), 14, "one for each queue");
        let mut qp = spread(&pd, &queues.table(), HashFields::SRC_IPV4 | HashFields::DST_IPV4).unwrap();
        qp.create_flow(&to_bob()).unwrap();
        // Often enough that the ring wraps.
        for round in 0..20u8 {
            let bytes = frame(BOB, EXPERIMENT, &[round; 70]);
            sender.send(&bytes);
            assert_eq!(queues.next().1, bytes);
        }
    });
    assert_eq!(pages.free(), 16, "all come back");
}

#[kernel_test(huge_pages)]
fn missing_huge_pages_error_names_the_remedy() {
    let pages = SetAside::pages(0);
    nothing_leaks(|| {
        assert_eq!(pages.free(), 0);
        let pd = domain();
        let context = pd.context();
        let cq = context.create_cq(&CqInit::new(4)).unwrap();
        let memory = QueueMemory::HugePages;
        let mut refusals = vec![
            context.create_cq(&huge_cq()).map(drop).unwrap_err(),
            pd.create_srq(&SrqInit { memory, ..SrqInit::new(4) }).map(drop).unwrap_err(),
            pd.create_qp::<Rc>(&QpInit { memory, ..QpInit::new(&cq, &cq) }).map(drop).unwrap_err(),
        ];
        if context.capabilities().work_queues {
            refusals.push(pd.create_wq(&WqInit { memory, ..WqInit::new(&cq, 4) }).map(drop).unwrap_err());
        }
        for refused in refusals {
            assert!(matches!(refused, Error::Provider { .. }), "{refused}");
            assert!(refused.to_string().contains("sysctl vm.nr_hugepages"), "{refused}");
        }
    });
}

#[kernel_test(device::rxe_abi)]
fn rxe_rejects_huge_page_queues() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let memory = QueueMemory::HugePages;
        let refusals = [
            pd.context().create_cq(&huge_cq()).map(drop).unwrap_err(),
            pd.create_srq(&SrqInit { memory, ..SrqInit::new(4) }).map(drop).unwrap_err(),
            pd.create_qp::<Rc>(&QpInit { memory, ..QpInit::new(&cq, &cq) }).map(drop).unwrap_err(),
        ];
        for refused in refusals {
            assert!(
                matches!(refused, Error::Unsupported { feature: Feature::HugePageQueues, .. }),
                "{refused}"
            );
        }
    });
}
