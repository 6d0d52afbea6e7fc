//! Memory regions: invalid rights, ranges outside of the region, unsupported advice.

use std::ops::Bound;

use bareverbs::error::ObjectClass;
use bareverbs::mr::LocalAccess;
use bareverbs::{Access, Buffer, Error};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, contents, domain, region};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::refusals::{invalid, refused_by_kernel};

const EINVAL: i32 = 22;

#[kernel_test]
fn invalid_access_flags_name_the_remedy() {
    nothing_leaks(|| {
        let pd = domain();
        let register = |access| pd.register(Buffer::zeroed(4096).unwrap(), access);
        for right in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ]
        {
            let refused = register(right).map_err(Error::from);
            let hint = "remote write access requires LOCAL_WRITE: add it";
            refused_by_kernel(refused, "reg_mr", EINVAL, hint);
        }
        if !pd.context().capabilities().odp {
            let refused = register(Access::LOCAL_WRITE | Access::ON_DEMAND).map(drop).unwrap_err();
            let text = refused.to_string();
            assert!(
                text.ends_with("the device has no on-demand paging: register without ON_DEMAND"),
                "{text}"
            );
            assert_eq!(refused.object.len(), 4096, "the memory is given back");
        }
        // Undefined bits may be rejected or ignored, but do not change the defined ones.
        for bit in [10, 15, 19, 30, 31] {
            let access = Access::LOCAL_WRITE | Access::from_bits_retain(1 << bit);
            match register(access) {
                Ok(memory) => assert_eq!(memory.query().unwrap().length, 4096),
                Err(refused) => {
                    let text = refused.to_string();
                    let hint = format!("unknown access flags {:?}", Access::from_bits_retain(1 << bit));
                    assert!(text.starts_with("reg_mr (4096 bytes at 0x") && text.ends_with(&hint), "{text}");
                }
            }
        }
        register(Access::LOCAL_WRITE | Access::RELAXED_ORDERING).unwrap();
    });
}

#[kernel_test(device::iova)]
fn iova_must_match_the_page_offset() {
    nothing_leaks(|| {
        let pd = domain();
        let mut pages = Buffer::zeroed(3 * 4096).unwrap();
        let start = pages.as_mut_ptr().wrapping_add(100);
        let register = |iova, access| {
            // SAFETY: the pages outlive the region, which is never used.
            unsafe { pd.register_raw(start, 4096, iova, access) }
        };
        for iova in [0, 99, 101, 0x7000_0000_0000, 0x7000_0000_0800] {
            let hint = "iova and address must have the same offset within their page";
            refused_by_kernel(register(Some(iova), Access::LOCAL_WRITE), "reg_mr", EINVAL, hint);
        }
        let zero_based = register(None, Access::LOCAL_WRITE | Access::ZERO_BASED);
        assert!(zero_based.is_err(), "its first byte is not a page's first");
        assert_eq!(register(Some(0x7000_0000_0064), Access::LOCAL_WRITE).unwrap().addr(), 0x7000_0000_0064);
    });
}

#[kernel_test]
fn set_access_rejects_invalid_flags() {
    nothing_leaks(|| {
        let pd = domain();
        let mut memory = region(&pd, &[7; 64], Access::LOCAL_WRITE);
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC | Access::REMOTE_READ] {
            let refused = memory.set_access(access).unwrap_err();
            let text = refused.to_string();
            match refused {
                Error::Unsupported { verb: "rereg_mr", .. } => {}
                Error::Kernel(_) => {
                    assert!(text.ends_with("remote write access requires LOCAL_WRITE: add it"), "{text}")
                }
                other => panic!("{other:?}"),
            }
            // Its rights and its length are unchanged.
            assert_eq!((memory.access(), memory.query().unwrap().length), (Access::LOCAL_WRITE, 64));
        }
        // After an error the device may have changed the rights, so peers may have had access.
        assert_eq!((memory.bytes(), contents(&memory)), (None, vec![7; 64]));
        let empty = "reg_mr: the length of an MR must be at least 1 byte";
        for access in [LocalAccess::Read, LocalAccess::ReadWrite] {
            invalid(pd.register_borrowed(&mut [], access), empty);
        }
    });
}

#[kernel_test]
fn every_method_rejects_ranges_outside_the_mr() {
    nothing_leaks(|| {
        let pd = domain();
        let mut memory = region(&pd, &[7; 64], ALL_REMOTE);
        let starts =
            [Bound::Included(0), Bound::Included(65), Bound::Excluded(usize::MAX), Bound::Excluded(63)];
        let ends =
            [Bound::Included(64), Bound::Excluded(65), Bound::Included(usize::MAX), Bound::Excluded(0)];
        for range in starts.into_iter().flat_map(|start| ends.map(|end| (start, end))) {
            if range == (Bound::Included(0), Bound::Excluded(0)) {
                assert_eq!(memory.sge(range).unwrap().length, 0);
                continue;
            }
            let refused = memory.sge(range).unwrap_err();
            let text = refused.to_string();
            assert!(matches!(refused, Error::Invalid { verb: "Mr::sge", .. }), "{refused:?}");
            assert!(text.ends_with("exceed the length of 64 bytes"), "{text}");
        }
        for (offset, length) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 1), (usize::MAX, 0), (1, 64)] {
            let mut bytes = vec![0; length];
            let end = offset.saturating_add(length);
            let text = |verb| format!("{verb}: bytes {offset}..{end} exceed the length of 64 bytes");
            invalid(memory.read(offset, &mut bytes), &text("Mr::read"));
            invalid(memory.write(offset, &bytes), &text("Mr::write"));
        }
        for offset in [64, 65, usize::MAX] {
            assert!(matches!(memory.remote(offset), Err(Error::Invalid { verb: "Mr::remote", .. })));
        }
        memory.read(64, &mut []).unwrap();
        memory.write(64, &[]).unwrap();
        let beyond = [(Bound::Included(0), Bound::Included(64))];
        for range in beyond {
            assert!(matches!(memory.prefetch(range), Err(Error::Invalid { .. })));
        }
    });
}

#[kernel_test]
fn advise_mr_requires_on_demand() {
    nothing_leaks(|| {
        let pd = domain();
        let pinned = region(&pd, &[0; 4096], Access::LOCAL_WRITE);
        if pd.context().capabilities().advise_mr {
            let text = "advise_mr: the MR is pinned: advice requires an MR registered with ON_DEMAND";
            invalid(pinned.prefetch(..), text);
            let access = Access::LOCAL_WRITE | Access::ON_DEMAND;
            let memory = pd.register(Buffer::zeroed(8192).unwrap(), access).unwrap();
            memory.prefetch(100..100).unwrap();
            memory.prefetch(..).unwrap();
        } else {
            let refused = pinned.prefetch(..).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { verb: "advise_mr", .. }), "{refused:?}");
            let text = "advise_mr: MR advice is not supported by this kernel or device";
            assert_eq!(refused.to_string(), text);
        }
    });
}

#[kernel_test]
fn unsupported_queries_return_typed_errors() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        if !context.capabilities().port_speed {
            let refused = context.port_speed(1).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { verb: "query_port_speed", .. }), "{refused:?}");
        }
        for class in [ObjectClass(0x0fff), ObjectClass(u16::MAX), ObjectClass::DEVICE] {
            match context.object_count(class) {
                Ok(count) => assert_eq!(count, 0, "{class:?}"),
                Err(refused) => {
                    let text = refused.to_string();
                    assert!(text.starts_with(&format!("info_handles ({class:?}): ")), "{text}");
                }
            }
        }
        let length = context.query_port(1).unwrap().pkey_tbl_len;
        for index in [length, u16::MAX] {
            let text =
                format!("query_pkey: P_Key index {index} exceeds the table of {length} entries of port 1");
            invalid(context.pkey(1, index), &text);
        }
    });
}
