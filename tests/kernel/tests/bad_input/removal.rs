//! Device removal while a program uses the device.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::{
    Access, AsyncEvent, CompChannel, CqInit, EventType, Operation, Payload, RecvRequest, SrqInit, WcStatus,
};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::{Plan, domain, pair, region, request};
use rustix::io::Errno;

/// The device's driver and its address on the bus.
struct Bus {
    driver: String,
    place: String,
    netdev: Option<String>,
}

impl Bus {
    fn new() -> Self {
        let last =
            |path: &Path| path.canonicalize().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let folder = device::sysfs("device");
        let driver = folder.join("driver").canonicalize().unwrap().to_str().unwrap().to_owned();
        let netdev = (!device::is_infiniband()).then(device::netdev);
        Self { driver, place: last(&folder), netdev }
    }

    fn write_driver_file(&self, what: &str) {
        fs::write(format!("{}/{what}", self.driver), &self.place).unwrap();
    }

    /// Binds the driver again and waits until the device is as before; panics after the timeout.
    fn bind(&self) {
        self.write_driver_file("bind");
        let begin = Instant::now();
        let mut addressed = self.netdev.is_none();
        let is_back = || {
            fs::read_to_string(device::sysfs("ports/1/state"))
                .is_ok_and(|reported| reported.contains("ACTIVE"))
        };
        while !addressed
            || !is_back()
            || device::device().open().and_then(|context| context.default_gid(1)).is_err()
        {
            assert!(begin.elapsed() < 2 * TIMEOUT, "the device does not come back");
            let interfaces = fs::read_dir(format!("/sys/bus/pci/devices/{}/net", self.place));
            if let (false, Some(Ok(name))) = (addressed, interfaces.ok().and_then(|mut names| names.next())) {
                let name = name.file_name();
                let ip =
                    |words: &[&str]| Command::new("ip").args(words).arg(&name).status().unwrap().success();
                addressed =
                    ip(&["link", "set", "up", "dev"]) && ip(&["address", "add", "10.1.0.1/24", "dev"]);
            }
            thread::sleep(Duration::from_millis(20));
        }
        while self.netdev.is_some() && device::gid().ipv4().is_none() {
            assert!(begin.elapsed() < 2 * TIMEOUT, "the device's address does not come back");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

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
        let unbinding = scope.spawn(|| bus.write_driver_file("unbind"));
        let begin = Instant::now();
        let reported = loop {
            turn(&mut a, &mut b);
            match events.try_get().unwrap() {
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
