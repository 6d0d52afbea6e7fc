//! Device memory.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use bareverbs::dm::{Dm, DmInit, DmMr};
use bareverbs::error::{Feature, ObjectClass};
use bareverbs::qp::{Operation, Payload, RecvRequest};
use bareverbs::{Access, Context, Error, Imm, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, Side, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, device, kernel_test, skip};

fn take(context: &Context, len: usize) -> Dm {
    context.alloc_dm(&DmInit::new(len)).unwrap()
}

fn read(dm: &Dm, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    dm.read(offset, &mut bytes).unwrap();
    bytes
}

#[kernel_test(device::device_memory)]
fn device_memory_is_copied_to_and_from() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        // Two adjacent allocations, not at the start of a page.
        let (mut one, mut other) = (take(&context, 200), take(&context, 100));
        let bytes: Vec<u8> = (0..200).collect();
        one.write(0, &bytes).unwrap();
        other.write(0, &[0xff; 100]).unwrap();
        assert_eq!((read(&one, 0, 200), read(&other, 0, 100)), (bytes.clone(), vec![0xff; 100]));
        one.write(8, b"12345678").unwrap();
        assert_eq!(read(&one, 7, 10), [&[7], &b"12345678"[..], &[16]].concat());
        assert_eq!((one.len(), context.object_count(ObjectClass::DM).unwrap()), (200, 2));
        one.free().unwrap();
        other.free().unwrap();
        assert_eq!(context.object_count(ObjectClass::DM).unwrap(), 0);
        let aligned = context.alloc_dm(&DmInit { len: 64, log_align: 6 }).unwrap();
        drop(aligned);
    });
}

#[kernel_test(device::device_memory)]
fn peers_reach_device_memory_with_every_operation() {
    nothing_leaks(|| {
        let pd = domain();
        let mut dm = take(pd.context(), 256);
        dm.write(0, &[0; 256]).unwrap();
        let theirs = pd.register_dm(&dm, .., ALL_REMOTE).unwrap();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let ours = region(&pd, b"the host's bytes", Access::LOCAL_WRITE);
        let done = |a: &mut Side, operation, elements: &[bareverbs::qp::Sge]| {
            a.send(&[request(1, operation, Payload::Sges(elements))]).unwrap();
            assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)], "{operation:?}");
        };
        let whole = [ours.sge(..).unwrap()];
        done(&mut a, Operation::Write(theirs.remote(64).unwrap()), &whole);
        assert_eq!(read(&dm, 64, 16), b"the host's bytes");
        dm.write(64, b"THE card").unwrap();
        done(&mut a, Operation::Read(theirs.remote(64).unwrap()), &whole);
        assert_eq!(contents(&ours), b"THE card's bytes");
        let add = Operation::FetchAdd { remote: theirs.remote(128).unwrap(), add: 5 };
        done(&mut a, add, &[ours.sge(..8).unwrap()]);
        assert_eq!(read(&dm, 128, 8), 5u64.to_ne_bytes());
        let swap = Operation::CmpSwp { remote: theirs.remote(128).unwrap(), compare: 5, swap: 6 };
        done(&mut a, swap, &[ours.sge(..8).unwrap()]);
        assert_eq!(read(&dm, 128, 8), 6u64.to_ne_bytes());
        b.recv(&[RecvRequest { wr_id: 4, sges: &[] }]).unwrap();
        let write = Operation::WriteImm(theirs.remote(160).unwrap(), Imm(7));
        done(&mut a, write, &[ours.sge(8..16).unwrap()]);
        assert_eq!(b.completions(1)[0].imm(), Some(Imm(7)));
        assert_eq!(read(&dm, 160, 8), contents(&ours)[8..]);
        // As the source and as the target of a message.
        b.recv(&[RecvRequest { wr_id: 2, sges: &[theirs.sge(192..208).unwrap()] }]).unwrap();
        done(&mut a, Operation::Send, &[theirs.sge(64..80).unwrap()]);
        assert_eq!(b.ends(1), [(2, WcStatus::SUCCESS)]);
        assert_eq!(read(&dm, 192, 16), b"THE card's bytes");

        // A region over a part of it.
        let part: DmMr = pd.register_dm(&dm, 192..200, ALL_REMOTE).unwrap();
        assert_eq!((part.len(), part.addr(), part.remote(0).unwrap().addr), (8, 0, 0));
        assert_eq!(part.rkey(), part.remote(0).unwrap().rkey);
        assert_eq!(part.lkey(), part.sge(..).unwrap().lkey);
        done(&mut a, Operation::Read(part.remote(0).unwrap()), &[ours.sge(8..16).unwrap()]);
        assert_eq!(contents(&ours)[8..], b"THE card"[..]);
        let beyond = bareverbs::Remote { addr: 1, ..part.remote(0).unwrap() };
        let elements = [ours.sge(..8).unwrap()];
        a.send(&[request(3, Operation::Read(beyond), Payload::Sges(&elements))]).unwrap();
        assert_eq!(a.ends(1), [(3, WcStatus::REM_ACCESS_ERR)]);
    });
}

#[kernel_test(device::device_memory)]
fn device_memory_is_checked_before_it_is_touched() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let mut dm = take(context, 10);
        for (offset, len) in [(0, 11), (10, 1), (usize::MAX, 1)] {
            let refused = dm.read(offset, &mut vec![0; len]).unwrap_err();
            assert!(refused.to_string().contains("exceed the length of 10 bytes"), "{refused}");
        }
        for (offset, len) in [(0, 3), (2, 4), (1, 1)] {
            let refused = dm.write(offset, &vec![0; len]).unwrap_err();
            assert!(refused.to_string().contains("both must be multiples of 4"), "{refused}");
        }
        assert!(matches!(dm.write(8, &[0; 4]), Err(Error::Invalid { .. })));
        let refused = pd.register_dm(&dm, 0..11, Access::LOCAL_WRITE).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        let empty = pd.register_dm(&dm, 3..3, Access::LOCAL_WRITE).unwrap();
        assert_eq!(empty.len(), 0);
        let refused = domain().register_dm(&dm, .., Access::LOCAL_WRITE).map(drop).unwrap_err();
        assert!(refused.to_string().contains("belongs to another context"), "{refused}");
        // An access right that device memory does not support.
        let refused = pd.register_dm(&dm, .., Access::ON_DEMAND).map(drop).unwrap_err();
        assert!(refused.errno().is_some(), "{refused}");
        let refused = context.alloc_dm(&DmInit::new(0)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        let most = context.query_device().unwrap().max_dm_size as usize;
        let refused = context.alloc_dm(&DmInit::new(most + 1)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Limit { .. }), "{refused}");
        let refused = context.alloc_dm(&DmInit { len: 8, log_align: 60 }).map(drop).unwrap_err();
        assert!(refused.errno().is_some(), "{refused}");
    });
}

#[kernel_test(device::device_memory)]
fn device_memory_is_freed_after_its_last_mr() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context().clone();
        let dm = take(&context, 64);
        let region = pd.register_dm(&dm, .., ALL_REMOTE).unwrap();
        let refused = dm.free().unwrap_err();
        assert!(refused.to_string().contains("drop them first"), "{refused}");
        refused.object.read(0, &mut [0; 64]).unwrap();
        drop(refused);
        let (mut a, b) = pair(&pd, Plan::default());
        let ours = region_of_zeros(&pd);
        let write = Operation::Write(region.remote(0).unwrap());
        a.send(&[request(1, write, Payload::Sges(&[ours.sge(..).unwrap()]))]).unwrap();
        assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
        drop((a, b, ours));
        assert_eq!(context.object_count(ObjectClass::DM).unwrap(), 1);
        region.dereg().unwrap();
        assert_eq!(context.object_count(ObjectClass::DM).unwrap(), 0);
    });
}

fn region_of_zeros(pd: &bareverbs::Pd) -> bareverbs::Mr<bareverbs::Buffer> {
    region(pd, &[0; 8], Access::LOCAL_WRITE)
}

#[kernel_test(device::device_memory)]
fn freed_device_memory_can_be_allocated_again() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        let most = context.query_device().unwrap().max_dm_size as usize;
        for _ in 0..3 {
            let mut all = Vec::new();
            let refused = loop {
                match context.alloc_dm(&DmInit::new(most.min(1 << 16))) {
                    Ok(dm) => all.push(dm),
                    Err(refused) => break refused,
                }
                assert!(all.len() < 100_000, "a device without bounds");
            };
            assert!(refused.errno().is_some() && !all.is_empty(), "{refused}");
        }
    });
}

#[kernel_test(device::no_device_memory)]
fn device_memory_is_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        for len in [0, 64] {
            let refused = context.alloc_dm(&DmInit::new(len)).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            assert_eq!(
                refused.to_string(),
                "alloc_dm: device memory allocations are not supported by this kernel or device"
            );
        }
        assert_eq!(context.query_device().unwrap().max_dm_size, 0);
    });
}

#[kernel_test(device::device_memory)]
fn device_memory_is_exported_as_a_dmabuf() -> Outcome {
    const PAGE: u64 = 4096;
    let context = domain().context().clone();
    if let Err(refused) = take(&context, 64).export_dmabuf() {
        assert!(matches!(refused, Error::Unsupported { feature: Feature::DmabufExport, .. }), "{refused}");
        return skip("the kernel exports no device memory");
    }
    nothing_leaks(|| {
        let pd = domain();
        for len in [64, 4096, 5000] {
            let dm = take(pd.context(), len);
            let exported = dm.export_dmabuf().unwrap();
            let size = File::from(exported.buffer.try_clone().unwrap()).seek(SeekFrom::End(0)).unwrap();
            assert!(
                size.is_multiple_of(PAGE) && size >= exported.offset + len as u64,
                "{exported:?}: {size}"
            );
            // A second export has the same pages.
            assert_eq!(dm.export_dmabuf().unwrap().offset, exported.offset);
            let register =
                || pd.register_dmabuf(&exported.buffer, 0, PAGE as usize, 0, Access::LOCAL_WRITE).map(drop);
            register().unwrap();
            // The dma-buf stays, but gives no access to memory that was freed.
            dm.free().unwrap();
            let refused = register().unwrap_err();
            assert!(refused.errno().is_some(), "{refused}");
        }
    });
    Ok(Completion::Completed)
}
