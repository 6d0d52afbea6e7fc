//! Allocations of the data path.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use bareverbs::{Access, Completion, Operation, Payload, QpCap, RecvRequest, SendFlags, WcStatus};
use bareverbs_kernel_tests::loopback::{PATIENCE, Plan, domain, pair, region, request};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is handed to the system's allocator as it came; the counter is a plain cell of
// the thread, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: by this function's own contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often `work` allocated.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

pub(crate) fn ten_thousand_messages_allocate_nothing() {
    const BURST: usize = 50;
    let pd = domain();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, ..Plan::default().cap };
    let (mut a, mut b) = pair(&pd, Plan { cap, ..Plan::default() });
    let memory = region(&pd, &[1; 64], Access::LOCAL_WRITE);
    let sges = [memory.sge(..).unwrap()];
    let receives = [RecvRequest { wr_id: 1, sges: &sges }; BURST];
    let sends = [request(2, Operation::Send, Payload::Sges(&sges)); BURST];
    let begin = Instant::now();

    let mut arrived = 0;
    let counted = allocations(|| {
        for burst in 0..10_000 / BURST {
            b.recv(&receives).unwrap();
            if burst % 2 == 0 {
                a.send(&sends).unwrap();
            } else {
                let mut batch = a.qp.start_send();
                for _ in 0..BURST {
                    batch.send_inline(2, b"inline", SendFlags::SIGNALED).unwrap();
                }
                batch.ring().unwrap();
            }
            for side in [&mut a, &mut b] {
                let mut left = BURST;
                while left > 0 {
                    assert!(begin.elapsed() < 4 * PATIENCE, "{left} of burst {burst} are missing");
                    let mut completions = side.cq.poll();
                    while let Some(completion) = completions.next() {
                        assert_eq!(completion.status(), WcStatus::SUCCESS);
                        left -= 1;
                    }
                }
            }
            arrived += BURST;
        }
    });
    assert_eq!((arrived, counted), (10_000, 0));
    // The counter does see what is there to be seen.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1_u64)))), 1);
}
