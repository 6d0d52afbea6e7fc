//! Completion timestamps and the device's clock.

use std::time::{Duration, Instant, SystemTime};

use bareverbs::cq::{Completion, Cq, CqInit};
use bareverbs::error::Feature;
use bareverbs::qp::{Operation, Payload, RecvRequest};
use bareverbs::{Access, Error, Pd, Remote, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, join, pair, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};

/// A side with completion timestamps.
fn timed_side(pd: &Pd) -> Side {
    let cq = pd.context().create_cq(&CqInit { timestamps: true, ..CqInit::new(64) }).unwrap();
    Side::on(pd, Plan::default(), cq)
}

/// Id, status and timestamp of the next completion.
fn next(cq: &mut Cq) -> (u64, WcStatus, Option<u64>) {
    let begin = Instant::now();
    loop {
        if let Some(done) = cq.poll().next() {
            return (done.wr_id(), done.status(), done.timestamp());
        }
        assert!(begin.elapsed() < TIMEOUT, "no completion");
    }
}

#[kernel_test(device::timestamps)]
fn completions_carry_timestamps() {
    nothing_leaks(|| {
        let pd = domain();
        let clock = || pd.context().raw_clock().unwrap();
        let (mut a, mut b) = (timed_side(&pd), timed_side(&pd));
        join(&mut a, &mut b);
        let memory = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let sges = [memory.sge(..8).unwrap()];
        let mut last = clock();
        for number in 0..100 {
            b.recv(&[RecvRequest { wr_id: number, sges: &sges }]).unwrap();
            let before = clock();
            a.send(&[request(number, Operation::Send, Payload::Sges(&sges))]).unwrap();
            let (received, sent) = (next(&mut b.cq), next(&mut a.cq));
            let after = clock();
            for (wr_id, status, time) in [received, sent] {
                assert_eq!((wr_id, status), (number, WcStatus::SUCCESS));
                let time = time.expect("the device tells");
                assert!((before..=after).contains(&time), "{time} is not from {before} to {after}");
            }
            assert!(received.2.unwrap() <= sent.2.unwrap(), "received before it was acknowledged");
            assert!(last <= before, "the clock goes forward");
            last = after;
        }
    });
}

#[kernel_test(device::timestamps)]
fn raw_clock_runs_at_hca_core_clock() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        let attr = context.query_device().unwrap();
        assert!(attr.hca_core_clock > 0 && attr.completion_timestamp_mask > u64::from(u32::MAX));
        let (begin, first) = (Instant::now(), context.raw_clock().unwrap());
        std::thread::sleep(Duration::from_millis(300));
        let ticks = context.raw_clock().unwrap() - first;
        let passed = begin.elapsed();
        let reported = Duration::from_micros(ticks * 1000 / attr.hca_core_clock);
        // The guest's clock and the device's run on the same host, but neither is exact.
        assert!(
            reported > passed / 2 && reported < passed * 2,
            "{reported:?} passed on the device, {passed:?} here"
        );
    });
}

#[kernel_test(device::timestamps)]
fn completions_have_wall_clock_times() {
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap();
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let (mut a, mut b) = (timed_side(&pd), timed_side(&pd));
        join(&mut a, &mut b);
        let memory = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let sges = [memory.sge(..8).unwrap()];
        let time = |ticks| context.clock_info().unwrap().time(ticks);
        let info = context.clock_info().unwrap();
        println!("{info:?}, now {:?}, of the clock {:?}", now(), time(context.raw_clock().unwrap()));
        let mask = context.query_device().unwrap().completion_timestamp_mask;
        // The kernel converts fewer bits than a timestamp has.
        assert!(info.mask & !mask == 0 && info.mask > u32::MAX.into(), "{info:?}");
        // The frequency of the conversion is that of the clock.
        let khz = context.query_device().unwrap().hca_core_clock;
        let second = time(info.cycles + khz * 1000) - time(info.cycles);
        assert!(second.abs_diff(Duration::from_secs(1)) < Duration::from_millis(1), "{second:?}");
        for number in 0..20 {
            b.recv(&[RecvRequest { wr_id: number, sges: &sges }]).unwrap();
            let before = time(context.raw_clock().unwrap());
            a.send(&[request(number, Operation::Send, Payload::Sges(&sges))]).unwrap();
            let (received, sent) = (next(&mut b.cq).2.unwrap(), next(&mut a.cq).2.unwrap());
            let after = time(context.raw_clock().unwrap());
            for ticks in [received, sent] {
                // An update of the page between two conversions may correct the time.
                let slack = Duration::from_millis(10);
                assert!((before - slack..=after + slack).contains(&time(ticks)));
            }
        }
        // The kernel set the device clock to the system's time when it loaded the driver. The two
        // clocks drift.
        let difference = time(context.raw_clock().unwrap()).abs_diff(now());
        assert!(difference < Duration::from_secs(300), "{difference:?}");
    });
}

#[kernel_test(device::timestamps)]
fn error_completions_have_no_timestamp() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = (timed_side(&pd), timed_side(&pd));
        join(&mut a, &mut b);
        let nowhere = Operation::Write(Remote { addr: 0x1000, rkey: 0x1234 });
        let memory = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let sges = [memory.sge(..8).unwrap()];
        a.send(&[request(3, nowhere, Payload::Sges(&sges))]).unwrap();
        assert_eq!(next(&mut a.cq), (3, WcStatus::REM_ACCESS_ERR, None));
    });
}

#[kernel_test(device::no_timestamps)]
fn timestamps_are_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let refused =
            context.create_cq(&CqInit { timestamps: true, ..CqInit::new(4) }).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert_eq!(
            refused.to_string(),
            "create_cq: completion timestamps are not supported by this kernel or device"
        );
        let refused = context.raw_clock().unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert_eq!(context.query_device().unwrap().completion_timestamp_mask, 0);
        let refused = context.clock_info().unwrap_err();
        assert!(matches!(refused, Error::Unsupported { feature: Feature::ClockInfo, .. }), "{refused}");

        // Without the option, completions have no timestamps.
        let (mut a, b) = pair(&pd, Plan::default());
        let memory = region(&pd, &[0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        let write = Operation::Write(memory.remote(32).unwrap());
        let sges = [memory.sge(..8).unwrap()];
        a.send(&[request(3, write, Payload::Sges(&sges))]).unwrap();
        assert_eq!(next(&mut a.cq), (3, WcStatus::SUCCESS, None));
        drop((a, b, side(&pd, Plan::default())));
    });
}
