//! Memory use of a device's objects.

use bareverbs_hca::engine::{CqSetup, QpSetup, ReceiveQueue};
use bareverbs_hca::{InProcessHca, Link};

const QPS: u32 = 10_000;
const LIMIT: usize = 200 << 20;

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("a Linux process");
    let pages: usize =
        pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
    pages * rustix::param::page_size()
}

/// Ten thousand connected QPs, each with a ring of 64 blocks and a CQ. All have sent a message.
#[test]
fn ten_thousand_qps_take_less_than_200_mib() {
    const LOG_RING: u8 = 6;
    const RING: usize = 64 << LOG_RING;
    let mut hca = InProcessHca::new(Link::InfiniBand).unwrap();
    // All QPs share the driver's ring and doorbell record, so that only the device's own memory
    // counts.
    let memory = hca.allocate(0x4000).unwrap();
    let before = resident();
    let mut qps = Vec::new();
    for _ in 0..QPS / 2 {
        let [left, right] = [(); 2].map(|()| {
            let cq = CqSetup {
                ring: memory.ring(0, RING),
                log_size: LOG_RING,
                eq: InProcessHca::EVENTS,
                doorbell: memory.address() + 0x3000,
                ignore_overrun: true,
                ..CqSetup::default()
            };
            let cq = hca.engine().create_cq(cq).unwrap();
            let setup = QpSetup {
                pd: 1,
                ring: memory.ring(0x1000, RING),
                log_send_size: Some(LOG_RING),
                receive: ReceiveQueue::None,
                doorbell: memory.address() + 0x3040,
                send_cq: cq,
                receive_cq: cq,
                ..QpSetup::default()
            };
            hca.engine().create_qp(setup, Default::default()).unwrap()
        });
        hca.connect(left, right).unwrap();
        for qp in [left, right] {
            let mut nop = [0; 64];
            nop[4..8].copy_from_slice(&(qp << 8 | 1).to_be_bytes());
            memory.write(0x1000, &nop);
            memory.write(0x3044, &1u32.to_be_bytes());
            hca.store(0x800, &nop[..8]);
            hca.run();
            memory.write(0x3044, &[0; 4]);
        }
        qps.extend([left, right]);
    }
    let taken = resident().saturating_sub(before);
    println!("{QPS} queue pairs: {} KiB, {} bytes each", taken >> 10, taken / QPS as usize);
    assert!(taken < LIMIT, "{} MiB", taken >> 20);

    for qp in qps {
        hca.engine().destroy_qp(qp).unwrap();
        assert!(hca.engine().qp_attributes(qp).is_err());
    }
}
