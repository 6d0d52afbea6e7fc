//! Devices and what happens to their process. One test: it forks, and closes a descriptor of another
//! owner.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bareverbs_provider::Errno;
use bareverbs_soft::{DroppedPackets, Fabric, Method, SoftDevice};
use bareverbs_uapi::write::structs::{CmdHdr, GetContextReq, GetContextResp};
use bareverbs_uapi::write::{GetContext, WriteCommand};
use rustix::process::{
    Pid, Resource, Rlimit, WaitOptions, WaitStatus, getpid, getrlimit, setrlimit, waitpid,
};
use zerocopy::IntoBytes;

/// Seconds after which a child that waits for a lock is killed.
const PATIENCE: u32 = 10;

/// Runs `work` in a child of `fork`, which exits with status 1 if `work` panics.
fn in_child(work: impl FnOnce()) -> WaitStatus {
    // SAFETY: glibc makes its allocator usable in the child, which ends by a signal or `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no handler of the signal is installed.
        unsafe { libc::alarm(PATIENCE) };
        let ended_well = catch_unwind(AssertUnwindSafe(work)).is_ok();
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(i32::from(!ended_well)) }
    }
    let child = Pid::from_raw(child).expect("fork");
    waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap().1
}

fn is_stale(error: std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::STALE.raw_os_error())
}

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
            let status = in_child(|| {
                assert_eq!(device.open().map(drop).map_err(|refused| refused.errno), Err(Errno::STALE));
                device.remove();
                assert_eq!(device.resources().contexts, 0);
                assert_eq!(device.dropped(), DroppedPackets::default());
                device.fail_call(Method::RegMr, 1, Errno::NOMEM).unwrap();
                assert!(fabric.capture(std::io::sink()).is_err_and(is_stale));
                assert!(fabric.end_capture().is_err_and(is_stale));
                assert!(fabric.log(1).entries().is_empty());
                assert_eq!(fabric.before_wait(None, None, &|| false), Err(Errno::STALE));
                drop(device.clone());
            });
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

/// The child of a process is another process, even with the same PID in its own namespace.
fn process_id_is_no_identity() {
    let unshare = |flags| {
        // SAFETY: the process has one thread.
        let result = unsafe { libc::unshare(flags) };
        if result != 0 {
            println!("not tested: no new PID namespace: {}", std::io::Error::last_os_error());
        }
        result == 0
    };
    let in_child = |work: &dyn Fn()| assert_eq!(in_child(work).exit_status(), Some(0));
    in_child(&|| {
        if !unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWPID) {
            return;
        }
        in_child(&|| {
            let (device, process) = (SoftDevice::new(&Fabric::new()), getpid());
            if !unshare(libc::CLONE_NEWPID) {
                return;
            }
            in_child(&|| {
                assert_eq!(getpid(), process);
                assert_eq!(device.open().map(drop).map_err(|refused| refused.errno), Err(Errno::STALE));
            });
        });
    });
}

/// A context that lacks a descriptor can be created again.
fn failed_context_leaves_no_context(fabric: &Fabric) {
    let file = SoftDevice::new(fabric).open().unwrap();
    let mut response = GetContextResp::zeroed();
    let address = (&raw mut response).expose_provenance() as u64;
    let header = CmdHdr { command: GetContext::INFO.number, in_words: 4, out_words: 2 };
    let request = GetContextReq { response: address, driver_data: [] };
    let command = [header.as_bytes(), request.as_bytes()].concat();
    let before = getrlimit(Resource::Nofile);
    // Each step allows at most one descriptor more.
    let created = (3..).find_map(|limit| {
        let limit = Rlimit { current: Some(limit), maximum: before.maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
        // SAFETY: the response is written to `response`.
        let created = unsafe { file.write_raw(&command) };
        (created != Err(Errno::MFILE)).then_some(created)
    });
    setrlimit(Resource::Nofile, before).unwrap();
    assert_eq!(created, Some(Ok(())));
}

/// Lets system calls fail with `EPERM` in this process from here on.
fn forbid(calls: [libc::c_long; 2]) {
    let step = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let is_call = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut steps = [
        // The number of the call is the first field.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(is_call, calls[0] as u32, 1, 0),
        step(is_call, calls[1] as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the filter is valid during the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// A seccomp filter may forbid the copies between processes, by which a device reaches responses.
fn commands_work_without_copies_between_processes() {
    let status = in_child(|| {
        forbid([libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
        let file = SoftDevice::new(&Fabric::new()).open().unwrap();
        let mut response = GetContextResp::zeroed();
        let header = CmdHdr { command: GetContext::INFO.number, in_words: 4, out_words: 2 };
        let command = |response| {
            let request = GetContextReq { response, driver_data: [] };
            [header.as_bytes(), request.as_bytes()].concat()
        };
        // SAFETY: the kernel refuses the address.
        assert_eq!(unsafe { file.write_raw(&command(64)) }, Err(Errno::FAULT));
        let address = (&raw mut response).expose_provenance() as u64;
        // SAFETY: the response is written to `response`.
        unsafe { file.write_raw(&command(address)) }.unwrap();
        assert_ne!(response.as_bytes(), GetContextResp::zeroed().as_bytes());
    });
    assert_eq!(status.exit_status(), Some(0));
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
    // On a busy machine, a busy thread has a part of a processor only.
    assert!(used < Duration::from_millis(20), "{used:?}");
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

/// A child of `fork` finds no devices of its parent, and waits for no lock of it.
fn forked_child_finds_none_by_index(device: &SoftDevice) {
    let (stopped, mut failed) = (AtomicBool::new(false), None);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                assert!(SoftDevice::find(device.index()).is_some());
            }
        });
        for _ in 0..50 {
            let status = in_child(|| assert!(SoftDevice::find(device.index()).is_none()));
            if status.exit_status() != Some(0) {
                failed = Some(status);
                break;
            }
        }
        stopped.store(true, Ordering::Relaxed);
    });
    assert!(failed.is_none(), "{failed:?}");
}

#[test]
fn device_survives_forks_and_a_closed_socket() {
    let fabric = Fabric::new();
    let device = SoftDevice::new(&fabric);
    forked_child_is_refused_without_waiting(&fabric, &device);
    forked_child_finds_none_by_index(&device);
    process_id_is_no_identity();
    commands_work_without_copies_between_processes();
    failed_context_leaves_no_context(&fabric);
    closed_socket_is_no_load(&fabric);
}
