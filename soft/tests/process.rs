//! Devices and what happens to their process. One test: it forks, and closes a descriptor of another owner.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bareverbs_provider::Errno;
use bareverbs_soft::{Fabric, SoftDevice};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Seconds after which a child that waits for a lock is killed.
const PATIENCE: u32 = 10;

/// A child of `fork` gets an error from its parent's devices and waits for no lock of the parent.
fn forked_child_is_refused_without_waiting(fabric: &Fabric, device: &SoftDevice) {
    let (stopped, mut failed) = (AtomicBool::new(false), None);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stopped.load(Ordering::Relaxed) {
                    let _ = (device.resources(), SoftDevice::new(fabric));
                }
            });
        }
        for _ in 0..50 {
            // SAFETY: glibc makes its allocator usable in the child, which ends by a signal or `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: no handler of the signal is installed.
                unsafe { libc::alarm(PATIENCE) };
                let work = AssertUnwindSafe(|| {
                    assert_eq!(device.open().map(drop).map_err(|refused| refused.errno), Err(Errno::STALE));
                    device.remove();
                    assert_eq!(device.resources().contexts, 0);
                    drop(device.clone());
                });
                let ended_well = catch_unwind(work).is_ok();
                // SAFETY: `_exit` may be called at any time.
                unsafe { libc::_exit(i32::from(!ended_well)) }
            }
            let child = Pid::from_raw(child).expect("fork");
            let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
            if status.exit_status() != Some(0) {
                failed = Some(status);
                break;
            }
        }
        stopped.store(true, Ordering::Relaxed);
    });
    assert!(failed.is_none(), "{failed:?}");
    device.open().unwrap();
}

/// The time that this process has used the processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A program that closes descriptors of others gets no busy thread.
fn closed_socket_is_no_load(fabric: &Fabric) {
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let before: Vec<_> = sockets();
    let address = IpAddr::from(Ipv4Addr::new(127, 9, 9, 9));
    let device = SoftDevice::bind(fabric, address).unwrap();
    let open = device.open().unwrap();
    let new: Vec<_> = sockets().into_iter().filter(|socket| !before.contains(socket)).collect();
    assert!(!new.is_empty());
    for socket in new {
        // SAFETY: no other thread opens descriptors, and the device survives the loss, which is tested.
        unsafe { libc::close(socket) };
    }
    // The kernel keeps a socket open while the thread waits for it. A datagram ends that.
    sender.send_to(&[0], (address, 4791)).unwrap();
    thread::sleep(Duration::from_millis(100));
    let start = processor_time();
    thread::sleep(Duration::from_millis(500));
    let used = processor_time() - start;
    assert!(used < Duration::from_millis(250), "{used:?}");
    // The standard library aborts on the drop of a descriptor that is closed.
    std::mem::forget((open, device));
}

/// The sockets of this process.
fn sockets() -> Vec<i32> {
    let of = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let is_socket = target.to_str()?.starts_with("socket:");
        is_socket.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(of).collect()
}

#[test]
fn device_survives_forks_and_a_closed_socket() {
    let fabric = Fabric::new();
    let device = SoftDevice::new(&fabric);
    forked_child_is_refused_without_waiting(&fabric, &device);
    closed_socket_is_no_load(&fabric);
}
