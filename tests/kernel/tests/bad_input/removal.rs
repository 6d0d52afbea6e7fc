//! Device removal while a program uses the device.

use std::thread;
use std::time::Instant;

use bareverbs::{
    Access, AsyncEvent, CompChannel, CqInit, EventType, Operation, Payload, RecvRequest, SrqInit, WcStatus,
};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::bus::Bus;
use bareverbs_kernel_tests::loopback::{Plan, domain, pair, region, request};
use rustix::io::Errno;

pub(crate) fn device_removal_under_traffic_is_reported() {
    let bus = Bus::new();
    let pd = domain();
    let context = pd.context().clone();
    let events = context.async_events();
    let channel: CompChannel = context.create_comp_channel().unwrap();
    let asleep = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) }).unwrap();
    let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
    let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
    let memory = region(&pd, &[7; 4096], Access::LOCAL_WRITE);
    let sges = [memory.sge(..).unwrap()];
    let turn = |a: &mut bareverbs_kernel_tests::loopback::Side,
                b: &mut bareverbs_kernel_tests::loopback::Side| {
        // Accepted or rejected, no call hangs and no request is lost.
        let _ = b.recv(&[RecvRequest { wr_id: 1, sges: &sges }]);
        let _ = a.send(&[request(2, Operation::Send, Payload::Sges(&sges))]);
        std::iter::from_fn(|| a.cq.poll_one().or_else(|| b.cq.poll_one())).take(64).count()
    };
    b.recv_into(1, 1, &sges);
    a.send(&[request(2, Operation::Send, Payload::Sges(&sges))]).unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));

    let reported = thread::scope(|scope| {
        let unbinding = scope.spawn(|| bus.unbind());
        let begin = Instant::now();
        let reported = loop {
            turn(&mut a, &mut b);
            match events.try_wait().unwrap() {
                Some(reported @ AsyncEvent::Device { .. }) => break reported,
                _ => assert!(begin.elapsed() < TIMEOUT, "no DEVICE_FATAL event"),
            }
        };
        unbinding.join().unwrap();
        reported
    });
    assert_eq!(reported, AsyncEvent::Device { event: EventType::DEVICE_FATAL });

    // Each command is rejected as on a removed device.
    let io = |refused: bareverbs::Error| assert_eq!(refused.errno(), Some(Errno::IO), "{refused}");
    io(context.query_port(1).unwrap_err());
    io(context.alloc_pd().map(drop).unwrap_err());
    io(context.create_cq(&CqInit::new(1)).map(drop).unwrap_err());
    io(a.qp.query().map(drop).unwrap_err());
    io(a.go_to(bareverbs::QpState::ERR).unwrap_err());
    // The queues are memory, and can still be polled.
    for _ in 0..200 {
        turn(&mut a, &mut b);
    }
    assert!(bareverbs::devices().unwrap().is_empty());
    drop((asleep, srq, a, b, memory, channel, events, pd, context));

    bus.bind();
    let pd = domain();
    let (mut a, mut b) = pair(&pd, Plan::long_timeouts());
    b.recv_into(1, 1, &[]);
    a.send(&[request(2, Operation::Send, Payload::Sges(&[]))]).unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
}
