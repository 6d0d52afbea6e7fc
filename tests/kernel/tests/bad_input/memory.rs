//! Memory that can't be registered, and keys without the required rights.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::{self, NonNull};

use bareverbs::cq::CqInit;
use bareverbs::qp::{Operation, Payload, RecvRequest, Sge};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Buffer, Pd, Remote, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device, kernel_test};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, setrlimit};

use crate::refusals::refused_by_kernel;

const PAGE: usize = 4096;

/// A private mapping of pages.
struct Pages(NonNull<u8>);

/// The statuses with which Soft-RoCE's kernels fail a request whose local key does not allow it.
const LOCAL_CAUSES: [WcStatus; 3] = [WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];

impl Pages {
    const BYTES: NonZeroUsize = NonZeroUsize::new(2 * PAGE).unwrap();

    fn new(protection: ProtFlags) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(None, Self::BYTES, protection, MapFlags::MAP_PRIVATE) };
        Self(start.unwrap().cast())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { munmap(self.0.cast(), Self::BYTES.get()) }.unwrap();
    }
}

fn register(pd: &Pd, start: *mut u8, len: usize, iova: Option<u64>, access: Access) -> bareverbs::Result<()> {
    // SAFETY: the region is dropped at once and never used.
    unsafe { pd.register_raw(start, len, iova, access) }.map(drop)
}

#[kernel_test]
fn reg_mr_failure_names_the_cause() {
    nothing_leaks(|| {
        let pd = domain();
        let refused = |start: *mut u8, len, iova, access| {
            register(&pd, start, len, iova, access).unwrap_err().to_string()
        };
        let local = Access::LOCAL_WRITE;
        let writable = Pages::new(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        let start = writable.0.as_ptr();

        let empty = "reg_mr: the length of an MR must be at least 1 byte";
        assert_eq!(refused(start, 0, None, local), empty);
        assert_eq!(pd.register(Vec::new(), local).map(drop).unwrap_err().to_string(), empty);
        assert_eq!(pd.register(Buffer::zeroed(0).unwrap(), local).unwrap_err().to_string(), empty);

        let beyond = "exceed the address space";
        for len in [usize::MAX, usize::MAX - start.addr() + 1] {
            assert!(refused(start, len, None, local).ends_with(beyond));
        }
        assert!(refused(start, PAGE, Some(u64::MAX - 10), local).ends_with(beyond));
        assert!(refused(ptr::without_provenance_mut(usize::MAX), 1, None, local).contains(beyond));

        // A huge length that does not wrap: no memory is that large.
        let huge = refused(start, 1 << 46, None, local);
        assert!(huge.starts_with("reg_mr (70368744177664 bytes at 0x"), "{huge}");
        // The kernel's half of the address space.
        let kernels = refused(ptr::without_provenance_mut(0xffff_8880_0000_0000), PAGE, None, local);
        assert!(kernels.ends_with("is not mapped"), "{kernels}");

        for (protection, what) in
            [(ProtFlags::PROT_NONE, "not readable"), (ProtFlags::PROT_READ, "not writable")]
        {
            let pages = Pages::new(protection);
            let start = pages.0.as_ptr();
            for access in [local, ALL_REMOTE] {
                let text = refused(start, 2 * PAGE, None, access);
                assert!(text.starts_with("reg_mr (8192 bytes at 0x"), "{text}");
                assert!(text.contains(&format!("was refused by {}: ", device::error_origin())), "{text}");
                assert!(text.ends_with(&format!("is {what}")), "{text}");
            }
        }
        let gone = Pages::new(ProtFlags::PROT_READ).0.as_ptr();
        assert!(refused(gone, 2 * PAGE, None, Access::empty()).ends_with("is not mapped"));
        // The range itself is still valid.
        register(&pd, start, 2 * PAGE, None, local).unwrap();
    });
}

#[kernel_test]
fn memory_needs_no_alignment() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        for (offset, len) in [(1, 1), (7, 13), (4095, 2), (3, 4097), (4097, 9000)] {
            let (from, to) = (Buffer::zeroed(16384).unwrap(), Buffer::zeroed(16384).unwrap());
            let at = |buffer: &Buffer| buffer.as_ptr().cast_mut().wrapping_add(offset);
            // SAFETY: both buffers outlive their regions, and their bytes are only copied.
            let made = unsafe {
                [
                    pd.register_raw(at(&from), len, None, Access::empty()),
                    pd.register_raw(at(&to), len, None, Access::LOCAL_WRITE),
                ]
            };
            let [mut from, to] = made.map(Result::unwrap);
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + offset) as u8).collect();
            from.write(0, &bytes).unwrap();
            b.recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(..).unwrap()] }]).unwrap();
            a.send(&[request(2, Operation::Send, Payload::Sges(&[from.sge(..).unwrap()]))]).unwrap();
            assert_eq!(a.ends(1), [(2, WcStatus::SUCCESS)]);
            assert_eq!(b.completions(1)[0].byte_len as usize, len);
            assert_eq!(contents(&to), bytes);
        }
    });
}

#[kernel_test(device::pins_memory)]
fn reg_mr_above_rlimit_memlock_names_the_limit() {
    nothing_leaks(|| {
        child::run(|| {
            setrlimit(Resource::RLIMIT_MEMLOCK, 65536, 65536).unwrap();
            child::drop_privileges();
            let pd = domain();
            let refused = pd.register(Buffer::zeroed(1 << 20).unwrap(), Access::LOCAL_WRITE).unwrap_err();
            assert_eq!(refused.error.errno().map(|errno| errno.raw_os_error()), Some(nix::libc::ENOMEM));
            let text = refused.to_string();
            assert!(text.starts_with("reg_mr (1048576 bytes at 0x"), "{text}");
            assert!(
                text.contains(": 1048576 bytes and the ")
                    && text.ends_with(
                        " bytes that the process has pinned exceed the limit on locked memory, \
                         RLIMIT_MEMLOCK = 65536 bytes: raise it with `ulimit -l` or LimitMEMLOCK=, or run \
                         with CAP_IPC_LOCK"
                    ),
                "{text}"
            );
            // The memory is released, and registrations within the limit still work.
            assert_eq!(refused.object.len(), 1 << 20);
            drop(pd.register(Buffer::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap());
        });
    });
}

#[kernel_test(device::pins_memory)]
fn rlimit_memlock_of_zero_is_named() {
    const CAUSE: &str = ": RLIMIT_MEMLOCK is 0, so the process may not pin memory: raise it with `ulimit -l` or \
                         LimitMEMLOCK=, or run with CAP_IPC_LOCK";
    nothing_leaks(|| {
        child::run(|| {
            setrlimit(Resource::RLIMIT_MEMLOCK, 0, 0).unwrap();
            child::drop_privileges();
            let pd = domain();
            let refused = pd.register(Buffer::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap_err().error;
            refused_by_kernel::<()>(Err(refused), "reg_mr", nix::libc::EPERM, CAUSE);
            // Soft-RoCE and Soft-iWARP allocate queues in the kernel. Other drivers pin those of the process.
            let cq = pd.context().create_cq(&CqInit::new(16)).map(drop);
            let srq = pd.create_srq(&SrqInit::new(16)).map(drop);
            if device::posts_by_call() {
                cq.and(srq).unwrap();
                return;
            }
            for (refused, verb) in [(cq, "create_cq"), (srq, "create_srq")] {
                refused_by_kernel(refused, verb, nix::libc::EPERM, CAUSE);
            }
        });
    });
}

#[kernel_test(device::pins_memory)]
fn rlimit_memlock_that_queues_exceed_is_named() {
    nothing_leaks(|| {
        child::run(|| {
            setrlimit(Resource::RLIMIT_MEMLOCK, 65536, 65536).unwrap();
            child::drop_privileges();
            let pd = domain();
            for (verb, refused) in [
                ("create_cq (", pd.context().create_cq(&CqInit::new(4096)).map(drop)),
                ("create_srq (", pd.create_srq(&SrqInit::new(8192)).map(drop)),
            ] {
                if device::posts_by_call() {
                    refused.unwrap();
                    continue;
                }
                let text = refused.unwrap_err().to_string();
                assert!(
                    text.starts_with(verb) && text.contains("RLIMIT_MEMLOCK = 65536 bytes, of which "),
                    "{text}"
                );
            }
        });
    });
}

#[kernel_test]
fn mappings_that_cannot_be_pinned_are_named() {
    nothing_leaks(|| {
        let pd = domain();
        let path = std::env::temp_dir().join("bareverbs-mapped");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(PAGE as u64).unwrap();
        let map = |protection, flags| {
            // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
            let start = unsafe { mmap(None, Pages::BYTES, protection, flags, &file, 0) };
            Pages(start.unwrap().cast())
        };
        let writable = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // The second page is beyond the end of the file.
        for flags in [MapFlags::MAP_PRIVATE, MapFlags::MAP_SHARED] {
            let pages = map(writable, flags);
            let start = pages.0.as_ptr();
            register(&pd, start, PAGE, None, Access::LOCAL_WRITE).unwrap();
            let refused = register(&pd, start, 2 * PAGE, None, Access::LOCAL_WRITE);
            let cause = format!(
                "{:#x} to {:#x} is beyond the end of {} (4096 bytes)",
                start.addr() + PAGE,
                start.addr() + 2 * PAGE,
                path.display()
            );
            refused_by_kernel(refused, "reg_mr", nix::libc::EFAULT, &cause);
        }
        // Linux 6.1 pins memory for writing, also for read access.
        let shared = map(ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
        let start = shared.0.as_ptr();
        let made = register(&pd, start, PAGE, None, Access::REMOTE_READ);
        if nix::sys::utsname::uname().unwrap().release().to_str().unwrap().starts_with("6.1.") {
            let cause = format!(
                "{:#x} to {:#x} is a shared mapping that is not writable, and this kernel pins memory for \
                 writing, also for read access (before Linux 6.2): map it writable or private",
                start.addr(),
                start.addr() + PAGE
            );
            refused_by_kernel(made, "reg_mr", nix::libc::EFAULT, &cause);
        } else {
            made.unwrap();
        }
        let private = map(ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE);
        register(&pd, private.0.as_ptr(), PAGE, None, Access::REMOTE_READ).unwrap();
        std::fs::remove_file(path).unwrap();
    });
}

#[kernel_test]
fn lkey_violations_complete_with_protection_errors() {
    nothing_leaks(|| {
        let pd = domain();
        let own = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        let foreign = region(&pd.context().alloc_pd().unwrap(), &[2; 64], Access::LOCAL_WRITE);
        let freed = region(&pd, &[3; 64], Access::LOCAL_WRITE).sge(..).unwrap();
        let good = own.sge(..).unwrap();
        let cases: [(&str, Sge); 5] = [
            ("another domain's", foreign.sge(..).unwrap()),
            ("a freed region's", freed),
            ("one that never was", Sge { lkey: 0xdead_be00, ..good }),
            ("bytes beyond the region", Sge { length: 65, ..good }),
            ("bytes before the region", Sge { addr: good.addr - 1, ..good }),
        ];
        for (what, sge) in cases {
            let (mut a, mut b) = pair(&pd, Plan::default());
            b.recv(&[RecvRequest { wr_id: 9, sges: &[good] }]).unwrap();
            a.send(&[
                request(1, Operation::Send, Payload::Sges(&[sge])),
                request(2, Operation::Send, Payload::Inline(&[b"after it"])),
            ])
            .unwrap();
            let [(1, status), (2, WcStatus::WR_FLUSH_ERR)] = a.ends(2)[..] else {
                panic!("{what}: wrong ends")
            };
            // Newer kernels put the queue pair into ERR first and then flush the failing request.
            assert!(LOCAL_CAUSES.contains(&status), "{what}: {status:?}");
            assert!(pd.context().explain(status).contains("another PD"), "{status:?}");
            assert_eq!(a.kernel_state(), bareverbs::qp::QpState::ERR, "{what}");
            // Soft-iWARP ends the connection, which flushes the receive.
            if device::is_iwarp() {
                assert_eq!(b.ends(1), [(9, WcStatus::WR_FLUSH_ERR)], "{what}");
            }
            assert!(b.cq.poll_one().is_none(), "{what}: nothing was to arrive");
        }
        assert_eq!(contents(&own), [1; 64]);
    });
}

#[kernel_test(device::acknowledges)]
fn rkey_violations_complete_with_access_errors() {
    nothing_leaks(|| {
        let pd = domain();
        let source = region(&pd, &[1; 64], Access::LOCAL_WRITE);
        let open = region(&pd, &[2; 64], ALL_REMOTE);
        let closed = region(&pd, &[3; 64], Access::LOCAL_WRITE);
        let foreign = region(&pd.context().alloc_pd().unwrap(), &[4; 64], ALL_REMOTE);
        let good = open.remote(0).unwrap();
        let cases: [(&str, Remote); 5] = [
            ("a region closed to peers", closed.remote(0).unwrap()),
            ("another domain's", foreign.remote(0).unwrap()),
            ("a key that never was", Remote { rkey: 0xdead_be00, ..good }),
            ("bytes beyond the region", Remote { addr: good.addr + 60, ..good }),
            ("bytes before the region", Remote { addr: good.addr - 8, ..good }),
        ];
        for (what, remote) in cases {
            let eight = [source.sge(..8).unwrap()];
            for operation in [
                Operation::Write(remote),
                Operation::Read(remote),
                Operation::FetchAdd { remote: Remote { addr: remote.addr & !7, ..remote }, add: 1 },
            ] {
                // Rounded down to an atomic's alignment, the bytes are within the region.
                if matches!(operation, Operation::FetchAdd { .. }) && what == "bytes beyond the region" {
                    continue;
                }
                let (mut a, _b) = pair(&pd, Plan::default());
                a.send(&[request(1, operation, Payload::Sges(&eight))]).unwrap();
                assert_eq!(a.ends(1), [(1, WcStatus::REM_ACCESS_ERR)], "{what}: {operation:?}");
            }
        }
        // The peer's queue pair may have fewer rights than its region.
        let (mut a, _b) = pair(&pd, Plan { access: Access::LOCAL_WRITE, ..Plan::default() });
        a.send(&[request(1, Operation::Write(good), Payload::Inline(&[b"unwanted"]))]).unwrap();
        let status = a.ends(1)[0].1;
        assert!([WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR].contains(&status), "{status:?}");
        let cause =
            if status == WcStatus::REM_ACCESS_ERR { "the rkey" } else { "the access flags of its QP" };
        assert!(pd.context().explain(status).contains(cause), "{status:?}");

        let untouched = [(&source, 1), (&open, 2), (&closed, 3), (&foreign, 4)];
        assert!(untouched.iter().all(|(region, byte)| contents(region) == [*byte; 64]));
    });
}
