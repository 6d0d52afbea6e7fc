//! Time of a fabric: timers, waits, and packets in transit.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::sync::Mutex;

use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::wait::end_of;
use bareverbs_transport::Fault;

use super::*;

/// The sources of captured packets.
#[derive(Clone, Default)]
struct Sources(Arc<Mutex<Vec<u8>>>);

impl Sources {
    /// The number of packets from the address with this last byte.
    fn count(&self, last: u8) -> usize {
        // Ethernet, then the IPv4 header with the source in its bytes 12 to 15.
        self.0.lock().unwrap().iter().filter(|source| **source == last).count()
    }
}

impl Write for Sources {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const RECORD: usize = 16;
        self.0.lock().unwrap().extend(bytes.get(RECORD + 14 + 15));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn condition_of_a_wait_may_use_the_fabric() {
    let fabric = Fabric::seeded(1);
    let is_ready = || fabric.now() > Duration::ZERO;
    assert_eq!(fabric.before_wait(None, None, &is_ready), Err(Errno::DEADLK));
}

#[test]
fn wait_ends_at_the_earlier_one_of_its_limit_and_its_alarm() {
    const SECOND: Duration = Duration::from_secs(1);
    let fabric = Fabric::seeded(5);
    let wait = |end, alarm| fabric.before_wait(end, alarm, &|| false);
    let end = end_of(10 * SECOND);
    for _ in 0..2 {
        assert_eq!(wait(end, Some(4 * SECOND)), Ok(BeforeWait::Ready));
        assert_eq!(fabric.now(), 4 * SECOND);
    }
    // The limit counts from the first call of the wait on.
    for alarm in [None, Some(20 * SECOND)] {
        assert_eq!(wait(end, alarm), Ok(BeforeWait::TimedOut));
        assert_eq!(fabric.now(), 10 * SECOND);
    }
    assert_eq!(wait(None, Some(20 * SECOND)), Ok(BeforeWait::Ready));
    assert_eq!(fabric.now(), 20 * SECOND);
}

#[test]
fn wait_without_a_limit_goes_on_while_requests_complete() {
    const REQUESTS: u32 = 11_000;
    let fabric = Fabric::seeded(6);
    let pair = RefCell::new(Pair::on(&fabric, QpType::RC, |_| {}));
    fabric.inject(Fault::delay(Duration::from_nanos(1)));
    let completed = Cell::new(0);
    let post = |Pair { a, qa, b, .. }: &mut Pair| {
        qa.post(1, Operation::Write(b.remote(0)), &[a.sge(0, 8)]);
    };
    post(&mut pair.borrow_mut());
    let is_ready = || {
        if pair.borrow_mut().a.poll().is_some() {
            completed.set(completed.get() + 1);
            post(&mut pair.borrow_mut());
        }
        completed.get() == REQUESTS
    };
    assert_eq!(fabric.before_wait(None, None, &is_ready), Ok(BeforeWait::Ready));
    // Each request and each ACK was delayed. A wait without completions ends after 20,000 timers.
    assert_eq!(fabric.now(), Duration::from_nanos(2 * u64::from(REQUESTS)));
}

#[test]
fn time_passes_to_its_end_although_a_qp_polls() {
    let fabric = Fabric::seeded(2);
    let pair = Pair::on(&fabric, QpType::RC, |_| {});
    pair.a.modify(pair.qa.qpn, State::Error, &QpAttributes::default());
    fabric.advance(Duration::MAX);
    let end = fabric.now();
    assert!(end > Duration::from_secs(290 * 365 * 86_400), "{end:?}");
    fabric.advance(Duration::from_secs(1));
    assert_eq!(fabric.now(), end);
}

#[test]
fn removed_device_takes_back_its_delayed_and_reordered_packets() {
    for fault in [Fault::delay(Duration::from_millis(1)), Fault::reorder()] {
        let fabric = Fabric::seeded(3);
        let mut pair = Pair::on(&fabric, QpType::UC, |_| {});
        pair.a.fill(0, b"late");
        let affected = fabric.inject(fault);
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
        while affected.count() == 0 {
            assert!(fabric.step(), "the packet is on the wire");
        }
        pair.a.remove();
        fabric.advance(Duration::from_secs(1));
        assert_eq!(pair.b.bytes(0, 4), [0; 4]);
    }
}

#[test]
fn reordered_packet_is_overtaken_by_one_of_its_own_device() {
    let fabric = Fabric::seeded(4);
    let mut pair = Pair::on(&fabric, QpType::UC, |_| {});
    pair.a.fill(0, b"held");
    pair.b.fill(100, b"other");
    let held = fabric.inject(Fault::reorder().from(&[gid(2)]).nth(1));
    let step_until = |is_done: &dyn Fn() -> bool| {
        while !is_done() {
            assert!(fabric.step(), "there is work");
        }
    };
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
    step_until(&|| held.count() == 1);
    pair.qb.post(2, Operation::Write(pair.a.remote(100)), &[pair.b.sge(100, 5)]);
    step_until(&|| pair.a.bytes(100, 5) == b"other");
    assert_eq!(pair.b.bytes(0, 4), [0; 4]);
    pair.qa.post(3, Operation::Write(pair.b.remote(200)), &[pair.a.sge(0, 4)]);
    step_until(&|| pair.b.bytes(200, 4) == b"held");
    assert_eq!(pair.b.bytes(0, 4), b"held");
}

#[test]
fn removed_device_takes_back_packets_that_wait_for_their_delivery() {
    for (seed, steps) in (0..16).flat_map(|seed| (1..6).map(move |steps| (seed, steps))) {
        let fabric = Fabric::seeded(seed);
        let sources = Sources::default();
        fabric.capture(sources.clone()).unwrap();
        let mut pair = Pair::on(&fabric, QpType::UC, |_| {});
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
        pair.qb.post(2, Operation::Write(pair.a.remote(0)), &[pair.b.sge(0, 4)]);
        for _ in 0..steps {
            fabric.step();
        }
        let before = sources.count(2);
        pair.a.remove();
        fabric.run_until_idle();
        assert_eq!((sources.count(2), sources.count(3)), (before, 1), "seed {seed}, {steps} steps");
    }
}

#[test]
fn delayed_packet_does_not_keep_the_fabric() {
    let fabric = Fabric::new();
    let exists = fabric.watch();
    let mut pair = Pair::on(&fabric, QpType::UC, |_| {});
    fabric.inject(Fault::delay(Duration::from_secs(3600)));
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
    assert!(fabric.has_thread());
    drop((pair, fabric));
    let deadline = Instant::now() + TIMEOUT;
    while exists() {
        assert!(Instant::now() < deadline, "the fabric is kept");
        std::thread::yield_now();
    }
}

#[test]
fn receivers_use_the_time_of_the_delivery() {
    let fabric = Fabric::new();
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    let log = fabric.log(64);
    let before = fabric.now();
    while fabric.now() == before {}
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
    assert_eq!(pair.a.drain(), [(1, WcStatus::SUCCESS)]);
    let entries = log.entries();
    assert!(entries.iter().all(|entry| entry.time > before), "{log}");
    assert!(entries.len() > 4 && entries.is_sorted_by_key(|entry| entry.time), "{log}");
}

#[test]
fn seeds_choose_the_order_of_turns() {
    let first = |seed| {
        let fabric = Fabric::seeded(seed);
        let sources = Sources::default();
        fabric.capture(sources.clone()).unwrap();
        let mut pair = Pair::on(&fabric, QpType::UC, |_| {});
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
        pair.qb.post(2, Operation::Write(pair.a.remote(0)), &[pair.b.sge(0, 4)]);
        fabric.run_until_idle();
        sources.0.lock().unwrap()[0]
    };
    let mut firsts: Vec<_> = (0..64).map(first).collect();
    firsts.sort_unstable();
    firsts.dedup();
    assert_eq!(firsts, [2, 3]);
}

#[test]
fn one_copy_of_a_duplicated_packet_is_delayed() {
    let fabric = Fabric::seeded(4);
    let mut pair = Pair::on(&fabric, QpType::UD, |_| {});
    fabric.inject(Fault::delay(Duration::from_millis(1)));
    fabric.inject(Fault::duplicate());
    for wr_id in 1..4 {
        pair.qb.receive(wr_id, &[pair.b.sge(0, 48)]);
    }
    let ah = pair.a.with(|engine| engine.create_ah(PD, av(3))).unwrap();
    pair.qa.post_datagram(1, ah, pair.qb.qpn, &[pair.a.sge(0, 8)]);
    fabric.run_until_idle();
    assert_eq!(pair.b.drain(), [(1, WcStatus::SUCCESS)]);
    fabric.advance(Duration::from_millis(1));
    assert_eq!(pair.b.drain(), [(2, WcStatus::SUCCESS)]);
}
