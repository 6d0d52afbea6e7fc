//! Regions over memory of other devices (dma-buf), and the null MR.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use bareverbs::qp::{Operation, Payload, RecvRequest};
use bareverbs::{Access, Error, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, device, kernel_test, skip};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

/// A memfd, and a dma-buf of its pages; an error if the kernel does not support udmabuf.
pub(crate) fn dma_buf(len: u64) -> io::Result<(File, OwnedFd)> {
    /// `struct udmabuf_create` of `linux/udmabuf.h`.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    nix::ioctl_write_ptr!(udmabuf_create, b'u', 0x42, Create);
    let maker = File::options().read(true).write(true).open("/dev/udmabuf")?;
    let memory = memfd_create("dma-buf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, len)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK)?;
    let create = Create { memfd: memory.as_raw_fd() as u32, flags: 1, offset: 0, size: len };
    // SAFETY: the ioctl reads the struct and returns a new descriptor without another owner.
    let buffer = unsafe { OwnedFd::from_raw_fd(udmabuf_create(maker.as_raw_fd(), &create)?) };
    Ok((File::from(memory), buffer))
}

#[kernel_test(device::null_mr)]
fn null_mr_skips_part_of_a_message() {
    nothing_leaks(|| {
        let pd = domain();
        let nowhere = pd.alloc_null_mr().unwrap();
        assert_eq!(nowhere.sge(10).lkey, nowhere.lkey());
        let (mut a, mut b) = pair(&pd, Plan::default());
        let ours = region(&pd, b"first, second, third", Access::LOCAL_WRITE);
        let theirs = region(&pd, &[b'.'; 32], Access::LOCAL_WRITE);
        let sges = [theirs.sge(..5).unwrap(), nowhere.sge(10), theirs.sge(5..10).unwrap()];
        b.recv(&[RecvRequest { wr_id: 1, sges: &sges }]).unwrap();
        let whole = [ours.sge(..).unwrap()];
        a.send(&[request(2, Operation::Send, Payload::Sges(&whole))]).unwrap();
        assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
        assert_eq!(contents(&theirs)[..11], *b"firstthird.");
    });
}

#[kernel_test(device::rxe_abi)]
fn rxe_has_no_null_mr() {
    nothing_leaks(|| {
        let refused = domain().alloc_null_mr().unwrap_err();
        assert_eq!(refused.to_string(), "alloc_null_mr: null MRs are not supported by this kernel or device");
    });
}

#[kernel_test]
fn dmabuf_mr_is_remotely_accessible() -> Outcome {
    let (file, buffer) = match dma_buf(1 << 16) {
        Ok(made) => made,
        Err(error) => return skip(format!("this kernel makes no dma-bufs of memory: {error}")),
    };
    if !device::has_rxe_abi()
        && let Err(Error::Unsupported { .. }) =
            domain().register_dmabuf(&buffer, 0, 4096, 0, Access::LOCAL_WRITE)
    {
        // ConnectX's driver needs page faults of the device for dma-bufs that move.
        return skip("this device has no memory on demand, without which its driver reaches no dma-bufs");
    }
    nothing_leaks(|| {
        let pd = domain();
        let register = || pd.register_dmabuf(&buffer, 4096, 8192, 0x7000_0000, ALL_REMOTE);
        if device::has_rxe_abi() {
            let refused = register().map(drop).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            return;
        }
        let theirs = register().unwrap();
        assert_eq!((theirs.len(), theirs.remote(16).unwrap().addr), (8192, 0x7000_0010));
        let (mut a, b) = pair(&pd, Plan::default());
        let ours = region(&pd, b"over the wire", Access::LOCAL_WRITE);
        let whole = [ours.sge(..).unwrap()];
        a.send(&[request(1, Operation::Write(theirs.remote(4090).unwrap()), Payload::Sges(&whole))]).unwrap();
        assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
        let mut bytes = [0; 13];
        file.read_exact_at(&mut bytes, 4096 + 4090).unwrap();
        assert_eq!(&bytes, b"over the wire");
        file.write_all_at(b"and then back", 4096).unwrap();
        a.send(&[request(2, Operation::Read(theirs.remote(0).unwrap()), Payload::Sges(&whole))]).unwrap();
        assert_eq!(a.ends(1), [(2, WcStatus::SUCCESS)]);
        assert_eq!(contents(&ours), b"and then back");
        drop((a, b, ours));
        theirs.dereg().unwrap();
    });
    Ok(Completion::Completed)
}

#[kernel_test]
fn invalid_dmabuf_registrations_are_rejected() -> Outcome {
    if device::posts_by_call() {
        return skip("the driver reaches no dma-bufs");
    }
    let Ok((file, buffer)) = dma_buf(1 << 16) else {
        return skip("this kernel makes no dma-bufs of memory");
    };
    nothing_leaks(|| {
        let pd = domain();
        let register = |offset, len, iova| {
            pd.register_dmabuf(&buffer, offset, len, iova, Access::LOCAL_WRITE).map(drop).unwrap_err()
        };
        for (offset, len, iova) in [(0, 0, 0), (u64::MAX, 2, 0), (0, 2, u64::MAX)] {
            let refused = register(offset, len, iova);
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        }
        // Beyond the buffer, and at another offset in the page.
        for (offset, len, iova) in [(1 << 16, 4096, 0), (4096, 1 << 16, 0), (0, 4096, 8)] {
            let refused = register(offset, len, iova);
            assert_eq!(refused.errno(), Some(Errno::INVAL), "{refused}");
        }
        let refused = pd.register_dmabuf(&file, 0, 4096, 0, Access::LOCAL_WRITE).map(drop).unwrap_err();
        assert!(refused.errno().is_some(), "{refused}");
    });
    Ok(Completion::Completed)
}
