//! Protection domains and their objects.

use bareverbs::{AhAttr, Error, MwType, ObjectClass, Pd};
use bareverbs_kernel_tests::loopback::{domain, open};
use bareverbs_kernel_tests::resources::nothing_leaks;

pub(crate) fn pds_are_allocated_and_freed_repeatedly() {
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

pub(crate) fn ah_is_created_and_destroyed() {
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
        }
    });
}

pub(crate) fn unknown_mw_type_is_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        for number in [0, 3, 255] {
            let refused = pd.alloc_mw(MwType(number)).map(drop).unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        }
        assert_eq!(pd.context().object_count(ObjectClass::MW).unwrap(), 0);
    });
}
