//! Protection domains and their objects.

use bareverbs::ah::AhAttr;
use bareverbs::error::{InvalidCause, ObjectClass};
use bareverbs::mw::MwType;
use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::uverbs::object;
use bareverbs::raw::uapi::write::AllocMw;
use bareverbs::raw::uapi::write::structs::{AllocMwReq, AllocMwResp};
use bareverbs::{Errno, Error, Pd};
use bareverbs_kernel_tests::loopback::{domain, open};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

#[kernel_test]
fn pds_are_allocated_and_freed_repeatedly() {
    nothing_leaks(|| {
        let context = open();
        let count = || context.object_count(ObjectClass::PD).unwrap();
        for _ in 0..200 {
            let pd = context.alloc_pd().unwrap();
            assert_eq!(count(), 1);
            // A clone is the same PD.
            let same = Pd::clone(&pd);
            drop(pd);
            assert_eq!(count(), 1);
            drop(same);
            assert_eq!(count(), 0);
        }
        let many: Vec<_> = (0..200).map(|_| context.alloc_pd().unwrap()).collect();
        assert_eq!(count(), many.len());
        drop(many);
        assert_eq!(count(), 0);
    });
}

#[kernel_test(device::memory_windows)]
fn pd_in_use_is_returned_by_dealloc() {
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        let pd = context.alloc_pd().unwrap();
        let clone = pd.clone();
        let refused = pd.dealloc().unwrap_err();
        let text = "dealloc_pd: clones or objects of the PD are left: drop them first";
        assert!(matches!(refused.error, Error::Invalid { cause: InvalidCause::InUse(_), .. }));
        assert_eq!(refused.to_string(), text);
        drop(clone);

        // An object that only the kernel knows.
        let pd = refused.object;
        let request = AllocMwReq { pd_handle: pd.handle(), mw_type: MwType::TYPE_1, ..AllocMwReq::zeroed() };
        let mut response = AllocMwResp::zeroed();
        // SAFETY: the command only creates an object.
        unsafe { raw.invoke::<AllocMw>(&request, &mut response) }.unwrap();
        // SAFETY: the handle is that of a new window, and nothing else has it.
        let window = unsafe { RawObject::of::<object::Mw>(&raw, response.mw_handle) };
        let refused = pd.dealloc().unwrap_err();
        assert_eq!(refused.error.errno(), Some(Errno::BUSY), "{refused}");
        assert!(refused.to_string().ends_with("of a raw call or of another process is left in it"));
        window.destroy().unwrap();
        // The domain still works, and is deallocated once.
        let pd = refused.object;
        pd.alloc_mw(MwType::TYPE_1).unwrap().dealloc().unwrap();
        pd.dealloc().unwrap();
        assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 0);
    });
}

#[kernel_test(device::ib_transports)]
fn ah_is_created_and_destroyed() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        for gid in context.gid_table().unwrap() {
            let attr = AhAttr::global(1, gid.gid, gid.index);
            let ah = pd.create_ah(&attr).unwrap();
            assert_eq!(ah.attr(), &attr);
            assert_eq!(context.object_count(ObjectClass::AH).unwrap(), 1);
            drop(ah);
            assert_eq!(context.object_count(ObjectClass::AH).unwrap(), 0);
            pd.create_ah(&attr).unwrap().destroy().unwrap();
            assert_eq!(context.object_count(ObjectClass::AH).unwrap(), 0);
        }
    });
}

#[kernel_test(device::memory_windows)]
fn unknown_mw_type_is_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        for number in [0, 3, 255] {
            let refused = pd.alloc_mw(MwType(number)).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        }
        assert_eq!(pd.context().object_count(ObjectClass::MW).unwrap(), 0);
    });
}
