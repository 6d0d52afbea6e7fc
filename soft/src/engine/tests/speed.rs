//! Measurements; run by name, in release. A figure is a line with its name, a colon and its value.

use std::hint::black_box;
use std::net::IpAddr;

use rustix::time::{ClockId, clock_gettime};

use super::*;
use crate::SoftDevice;
use crate::wire::tests::on_free_address;

/// Runs are short, so that some of them are not interrupted.
const BEST_OF: usize = 50;

/// The shortest time of several runs, divided by the number of rounds of a run.
fn best(rounds: u32, mut run: impl FnMut()) -> f64 {
    let measure = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() / f64::from(rounds)
    };
    (0..BEST_OF).map(measure).fold(f64::INFINITY, f64::min)
}

/// The resident memory of the process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
#[ignore = "a measurement"]
fn figures_of_devices_in_the_process() {
    const ROUNDS: u32 = 500;
    let mut pair = Pair::on(&Fabric::new(), QpType::RC, |attributes| attributes.mtu = 4096);
    let (sa, sb) = ([pair.a.sge(0, 64)], [pair.b.sge(0, 64)]);
    let round_trip = best(ROUNDS, || {
        for _ in 0..ROUNDS {
            pair.qb.receive(1, &sb);
            pair.qa.post(1, Operation::Send, &sa);
            assert!(pair.b.poll().is_some() && pair.a.poll().is_some());
            pair.qa.receive(1, &sa);
            pair.qb.post(1, Operation::Send, &sb);
            assert!(pair.a.poll().is_some() && pair.b.poll().is_some());
        }
    });
    println!("\n64-byte ping-pong, µs: {:.2}", round_trip * 1e6);

    const WRITES: u32 = 50;
    let (ra, rb) = (pair.a.sge(0, MEMORY), pair.b.remote(0));
    let write = best(WRITES, || {
        for _ in 0..WRITES {
            pair.qa.post(1, Operation::Write(rb), &[ra]);
            assert!(pair.a.poll().is_some());
        }
    });
    let [from, to] = [&pair.a, &pair.b].map(|peer| peer.memory.as_ptr().as_ptr());
    let copy = best(WRITES, || {
        for _ in 0..WRITES {
            // SAFETY: within the mappings.
            unsafe { black_box(to).copy_from_nonoverlapping(black_box(from), MEMORY) };
        }
    });
    println!("1 MiB writes, bandwidth as a part of memcpy's: {:.2}", copy / write);

    const DEVICES: u32 = 100;
    let before = resident();
    let mut opened = Vec::new();
    let fabric = Fabric::new();
    let start = Instant::now();
    for _ in 0..DEVICES {
        let device = SoftDevice::new(&fabric);
        opened.push((device.open().unwrap(), device));
    }
    let each = start.elapsed() / DEVICES;
    println!("opening a device, ms: {:.3}", each.as_secs_f64() * 1e3);
    println!("an open device at rest, KiB: {:.1}", (resident() - before) as f64 / f64::from(DEVICES));
    println!("threads of a fabric at rest: {}", u8::from(fabric.has_thread()));

    let before = resident();
    let start = Instant::now();
    let bind = |address: IpAddr| SoftDevice::bind(&Fabric::new(), address);
    let device = on_free_address(bind);
    let _context = device.open().unwrap();
    println!("opening a device with UDP, ms: {:.3}", start.elapsed().as_secs_f64() * 1e3);
    let before_rest = cpu_time();
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time() - before_rest;
    println!("an open device with UDP at rest, KiB: {}", resident() - before);
    println!("CPU time of the process in a second at rest, µs: {}", used.as_micros());
}

/// The CPU time of the process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
