//! DMA handles: hints for the device's memory accesses (TLP processing hints, TPH).

use std::os::unix::fs::FileExt;
use std::{fs, thread};

use bareverbs::error::{Feature, ObjectClass};
use bareverbs::mr::{Dmah, DmahInit, TphMemType};
use bareverbs::qp::{Operation, Payload, RecvRequest, Sge};
use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::method::Call;
use bareverbs::raw::uapi::uverbs::{DmahAlloc, object};
use bareverbs::{Access, Buffer, Context, Error, WcStatus};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, Side, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, kernel_test, skip};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use rustix::io::Errno;

use crate::device_state::mkey_context;
use crate::foreign_memory::dma_buf;

/// For tests of DMA handles. mlx5's driver has this function only with `CONFIG_PCIE_TPH`.
///
/// # Errors
/// If the device is not a ConnectX, or the kernel is built without TLP processing hints.
pub(crate) fn dma_handles() -> Requirement {
    device::connectx()?;
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    if symbols.lines().any(|line| line.split_whitespace().nth(2) == Some("mlx5_st_alloc_index")) {
        Ok(())
    } else {
        Err("the kernel is built without CONFIG_PCIE_TPH".to_owned())
    }
}

/// For tests of a device or a kernel without DMA handles.
///
/// # Errors
/// If it has them.
pub(crate) fn no_dma_handles() -> Requirement {
    if dma_handles().is_err() { Ok(()) } else { Err("the kernel has DMA handles".to_owned()) }
}

fn hint(processing_hint: u8) -> DmahInit {
    DmahInit { processing_hint: Some(processing_hint), cpu: None }
}

fn alloc(context: &Context, processing_hint: u8) -> Dmah {
    context.alloc_dmah(&hint(processing_hint)).unwrap()
}

/// The processing hint of an mkey, if its hints are enabled, and its steering tag index
/// (`pcie_tph_en`, `pcie_tph_ph` and `pcie_tph_steering_tag_index` of `mlx5_ifc_mkc_bits`).
fn mkey_hint(lkey: u32) -> (Option<u8>, u8) {
    let context = mkey_context(lkey);
    ((context[60] & 0x04 != 0).then_some(context[60] & 0x03), context[61])
}

fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::zeroed(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

#[kernel_test(no_dma_handles)]
fn dma_handles_are_unsupported_without_tph() {
    nothing_leaks(|| {
        let pd = domain();
        let volatile = DmahInit { cpu: Some((0, TphMemType::VOLATILE)), ..hint(3) };
        for init in [hint(1), volatile, DmahInit::default()] {
            let refused = pd.context().alloc_dmah(&init).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { feature: Feature::DmaHandles, .. }), "{refused}");
        }
        let refused = pd.context().alloc_dmah(&hint(4)).map(drop);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    });
}

#[kernel_test(dma_handles)]
fn processing_hints_reach_the_mkey() {
    nothing_leaks(|| {
        let pd = domain();
        // Small and large regions take different paths in the driver.
        for len in [8, 4096, 4 << 20] {
            let bytes = vec![0; len];
            for processing_hint in 0..=3 {
                let hints = alloc(pd.context(), processing_hint);
                let mr = pd.register_with_hints(buffer(&bytes), Access::LOCAL_WRITE, &hints.clone()).unwrap();
                assert_eq!(mkey_hint(mr.lkey()), (Some(processing_hint), 0), "{len} bytes");
                // A region without hints does not get the mkey of a deregistered one with hints.
                drop(mr);
                let plain = region(&pd, &bytes, Access::LOCAL_WRITE);
                assert_eq!(mkey_hint(plain.lkey()), (None, 0), "{len} bytes after {processing_hint}");
            }
        }
        assert_eq!(pd.context().object_count(ObjectClass::DMAH).unwrap(), 0);
    });
}

/// Every operation, from and to regions with hints.
fn carries_every_operation(a: &mut Side, b: &mut Side, hints: &Dmah) {
    let pd = a.qp.pd().clone();
    let ours = pd.register_with_hints(buffer(b"ABCDEFGH"), Access::LOCAL_WRITE, hints).unwrap();
    let theirs = pd.register_with_hints(buffer(&[0; 24]), ALL_REMOTE, hints).unwrap();
    let whole: [Sge; 1] = [ours.sge(..).unwrap()];
    let received = [theirs.sge(8..16).unwrap()];
    b.recv(&[RecvRequest { wr_id: 9, sges: &received }]).unwrap();
    a.send(&[request(1, Operation::Send, Payload::Sges(&whole))]).unwrap();
    assert_eq!((a.ends(1), b.ends(1)), (vec![(1, WcStatus::SUCCESS)], vec![(9, WcStatus::SUCCESS)]));
    let operations = [
        Operation::Write(theirs.remote(16).unwrap()),
        Operation::FetchAdd { remote: theirs.remote(0).unwrap(), add: 5 },
        Operation::Read(theirs.remote(8).unwrap()),
    ];
    for operation in operations {
        a.send(&[request(2, operation, Payload::Sges(&whole))]).unwrap();
        assert_eq!(a.ends(1), [(2, WcStatus::SUCCESS)], "{operation:?}");
    }
    assert_eq!(contents(&theirs), [&5u64.to_ne_bytes(), &b"ABCDEFGH"[..], b"ABCDEFGH"].concat());
    assert_eq!(contents(&ours), b"ABCDEFGH");
}

#[kernel_test(dma_handles)]
fn regions_with_hints_carry_every_operation() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        for processing_hint in 0..=3 {
            carries_every_operation(&mut a, &mut b, &alloc(pd.context(), processing_hint));
        }
    });
}

#[kernel_test(dma_handles)]
fn dmabuf_with_hints_is_remotely_accessible() -> Outcome {
    let (file, memory) = match dma_buf(1 << 16) {
        Ok(made) => made,
        Err(error) => return skip(format!("this kernel makes no dma-bufs of memory: {error}")),
    };
    nothing_leaks(|| {
        let pd = domain();
        let hints = alloc(pd.context(), 2);
        let register = |len, hints: &Dmah| {
            pd.register_dmabuf_with_hints(&memory, 4096, len, 0x7000_0000, ALL_REMOTE, hints)
        };
        let theirs = register(8192, &hints).unwrap();
        assert_eq!(mkey_hint(theirs.lkey()), (Some(2), 0));
        let (mut a, _b) = pair(&pd, Plan::default());
        let ours = region(&pd, b"over the wire", Access::LOCAL_WRITE);
        let whole = [ours.sge(..).unwrap()];
        a.send(&[request(1, Operation::Write(theirs.remote(16).unwrap()), Payload::Sges(&whole))]).unwrap();
        assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
        let mut bytes = [0; 13];
        file.read_exact_at(&mut bytes, 4096 + 16).unwrap();
        assert_eq!(&bytes, b"over the wire");

        let refused = register(1 << 16, &hints).map(drop).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL), "beyond the dma-buf: {refused}");
        let foreign = alloc(domain().context(), 2);
        let refused = register(8192, &foreign).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        // The region keeps the kernel's object.
        let refused = hints.dealloc().unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{}", refused.error);
        theirs.dereg().unwrap();
        refused.object.dealloc().unwrap();
    });
    Ok(Completion::Completed)
}

#[kernel_test(dma_handles)]
fn dma_handle_is_busy_while_a_region_uses_it() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let count = || context.object_count(ObjectClass::DMAH).unwrap();
        // A handle outlives its clones, and exists while a region uses it.
        let hints = alloc(context, 1);
        let mr = pd.register_with_hints(buffer(&[0; 64]), Access::LOCAL_WRITE, &hints).unwrap();
        let refused = hints.dealloc().unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{}", refused.error);
        drop(refused.object);
        assert_eq!(count(), 1);
        drop(mr);
        assert_eq!(count(), 0);

        // The kernel refuses it too.
        let hints = alloc(context, 1);
        let bytes = buffer(&[0; 64]);
        let start = bytes.as_ptr().cast_mut();
        // SAFETY: nothing is posted on the region, and the buffer outlives it.
        let mr = unsafe { pd.register_raw_with_hints(start, 64, None, Access::LOCAL_WRITE, &hints) }.unwrap();
        // SAFETY: the handle is released, so nothing else destroys the object.
        let raw = unsafe { RawObject::of::<object::Dmah>(&context.raw(), hints.into_handle()) };
        let refused = raw.destroy().unwrap_err();
        assert_eq!(refused.errno, Errno::BUSY);
        drop(mr);
        refused.object.destroy().unwrap();
        assert_eq!(count(), 0);
    });
}

#[kernel_test(dma_handles)]
fn mlx5_rejects_changes_of_regions_with_hints() {
    nothing_leaks(|| {
        let pd = domain();
        let other = pd.context().alloc_pd().unwrap();
        let hints = alloc(pd.context(), 3);
        let mut mr = pd.register_with_hints(buffer(b"unchanged"), Access::LOCAL_WRITE, &hints).unwrap();
        let lkey = mr.lkey();
        let unsupported = |refused: Error| {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        };
        unsupported(mr.set_access(Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap_err());
        unsupported(mr.move_to(&other).unwrap_err());
        let refused = mr.replace(buffer(b"other")).map(drop).unwrap_err();
        unsupported(refused.error);
        let mr = match refused.object {
            bareverbs::mr::NotReplaced::Unchanged { region, .. } => region,
            changed => panic!("{changed:?}"),
        };
        assert_eq!((mr.lkey(), mkey_hint(lkey)), (lkey, (Some(3), 0)));
        let (mut a, mut b) = pair(&pd, Plan::default());
        let received = region(&pd, &[0; 9], Access::LOCAL_WRITE);
        let (from, to) = ([mr.sge(..).unwrap()], [received.sge(..).unwrap()]);
        b.recv(&[RecvRequest { wr_id: 1, sges: &to }]).unwrap();
        a.send(&[request(2, Operation::Send, Payload::Sges(&from))]).unwrap();
        assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
        assert_eq!(contents(&received), b"unchanged");
    });
}

#[kernel_test(dma_handles)]
fn regions_reject_unsuitable_hints() {
    nothing_leaks(|| {
        let pd = domain();
        let hints = alloc(pd.context(), 1);
        let refused = pd
            .register_with_hints(buffer(&[0; 64]), Access::LOCAL_WRITE | Access::ON_DEMAND, &hints)
            .map(drop)
            .unwrap_err();
        assert_eq!(refused.error.errno(), Some(Errno::OPNOTSUPP), "{}", refused.error);
        assert!(refused.error.to_string().contains("register it without one"), "{}", refused.error);
        let foreign = alloc(domain().context(), 1);
        let refused =
            pd.register_with_hints(buffer(&[0; 64]), Access::LOCAL_WRITE, &foreign).map(drop).unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { .. }), "{}", refused.error);
    });
}

/// The kernel's response to hints that the typed layer can't express.
fn raw_alloc(
    context: &Context,
    processing_hint: Option<u8>,
    cpu: Option<u32>,
    memory: Option<TphMemType>,
) -> Errno {
    let raw = context.raw();
    let mut call = Call::<DmahAlloc>::new(raw.driver_id());
    call.make(DmahAlloc::HANDLE);
    if let Some(cpu) = &cpu {
        call.input(DmahAlloc::CPU_ID, cpu);
    }
    if let Some(memory) = memory {
        call.enumeration(DmahAlloc::TPH_MEM_TYPE, memory, &[]);
    }
    if let Some(hint) = &processing_hint {
        call.input(DmahAlloc::PH, hint);
    }
    // SAFETY: the call names no memory. If it succeeds, closing the file frees the handle.
    unsafe { raw.execute(&mut call) }.unwrap_err()
}

#[kernel_test(dma_handles)]
fn invalid_dma_handles_are_rejected() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        let refused = context.alloc_dmah(&hint(4)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        let errno = |init: &DmahInit| {
            let refused = context.alloc_dmah(init).map(drop).unwrap_err();
            refused.errno().unwrap_or_else(|| panic!("{init:?}: {refused}"))
        };
        // mlx5 requires a processing hint.
        assert_eq!(errno(&DmahInit::default()), Errno::INVAL);
        let unknown = DmahInit { cpu: Some((u32::MAX, TphMemType::VOLATILE)), ..hint(1) };
        assert_eq!(errno(&unknown), Errno::INVAL);

        assert_eq!(raw_alloc(&context, Some(4), None, None), Errno::INVAL);
        assert_eq!(raw_alloc(&context, Some(0xff), None, None), Errno::INVAL);
        assert_eq!(raw_alloc(&context, Some(1), Some(0), None), Errno::INVAL);
        assert_eq!(raw_alloc(&context, Some(1), None, Some(TphMemType::VOLATILE)), Errno::INVAL);
        assert_eq!(raw_alloc(&context, None, Some(0), Some(TphMemType::VOLATILE)), Errno::INVAL);
        assert_eq!(raw_alloc(&context, Some(1), Some(0), Some(TphMemType(2))), Errno::OPNOTSUPP);
        assert_eq!(context.object_count(ObjectClass::DMAH).unwrap(), 0);
    });
}

/// A steering tag comes from the root port's firmware. An endpoint that is integrated in the root
/// complex has no root port (`pcie_tph_get_cpu_st` of `drivers/pci/tph.c`).
#[kernel_test(dma_handles)]
fn dma_handle_of_a_cpu_needs_a_root_port() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        for memory in [TphMemType::VOLATILE, TphMemType::PERSISTENT] {
            let init = DmahInit { cpu: Some((0, memory)), ..hint(1) };
            let refused = context.alloc_dmah(&init).map(drop).unwrap_err();
            assert_eq!(refused.errno(), Some(Errno::NODEV), "{refused}");
            assert!(refused.to_string().contains("no root port"), "{refused}");
        }
    });
}

#[kernel_test(dma_handles)]
fn dma_handle_of_a_forbidden_cpu_is_rejected() -> Outcome {
    if thread::available_parallelism().unwrap().get() < 2 {
        return skip("the guest has one CPU");
    }
    nothing_leaks(|| {
        let context = domain().context().clone();
        let pinned = thread::spawn(move || {
            let mut first = CpuSet::new();
            first.set(0).unwrap();
            sched_setaffinity(Pid::from_raw(0), &first).unwrap();
            let init = DmahInit { cpu: Some((1, TphMemType::VOLATILE)), ..hint(1) };
            context.alloc_dmah(&init).map(drop).unwrap_err()
        });
        let refused = pinned.join().unwrap();
        assert_eq!(refused.errno(), Some(Errno::PERM), "{refused}");
    });
    Ok(Completion::Completed)
}
