//! Alternate paths: automatic path migration (APM).

use std::time::Instant;

use bareverbs::ah::AhAttr;
use bareverbs::device::{DeviceCapFlags, EventType};
use bareverbs::error::Feature;
use bareverbs::qp::{AlternatePath, MigState, Operation, Payload, QpAttr, QpAttrMask};
use bareverbs::values::AckTimeout;
use bareverbs::{Access, AsyncEvent, Context, Error, WcStatus};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::loopback::{Plan, Side, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};
use rustix::io::Errno;

/// For tests of path migration.
///
/// # Errors
/// If the device or the link layer does not support it.
pub(crate) fn apm() -> Requirement {
    device::infiniband()?;
    let flags = device::open().query_device().map_err(|error| error.to_string())?.device_cap_flags;
    let has = flags.contains(DeviceCapFlags::AUTO_PATH_MIG);
    if has { Ok(()) } else { Err("the device has no path migration".to_owned()) }
}

/// The path to the side itself, with this service level.
fn path(side: &Side, sl: u8) -> AlternatePath {
    let address = AhAttr { sl, ..side.towards(1).address };
    AlternatePath { timeout: AckTimeout::new(12).unwrap(), ..AlternatePath::new(address) }
}

/// Writes from `a` to `b`'s memory, and checks it.
fn write(a: &mut Side, pd: &bareverbs::Pd, byte: u8) {
    let from = region(pd, &[byte; 64], Access::empty());
    let to = region(pd, &[0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let operation = Operation::Write(to.remote(0).unwrap());
    a.send(&[request(u64::from(byte), operation, Payload::Sges(&[from.sge(..).unwrap()]))]).unwrap();
    assert_eq!(a.ends(1), [(u64::from(byte), WcStatus::SUCCESS)]);
    assert_eq!(contents(&to), [byte; 64]);
}

/// Waits for the migration events of `count` QPs.
fn migrated(context: &Context, count: usize) {
    let events = context.async_events();
    let begin = Instant::now();
    let mut found = 0;
    while found < count {
        let left = TIMEOUT.saturating_sub(begin.elapsed());
        match events.next().wait_timeout(left).transpose().unwrap() {
            Some(AsyncEvent::Qp { event: EventType::PATH_MIG, .. }) => found += 1,
            Some(other) => panic!("{other:?}"),
            None => panic!("{found} of {count} events"),
        }
    }
}

#[kernel_test(apm)]
fn armed_qps_migrate_to_the_alternate_path() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let primary = a.qp.query().unwrap().0;
        assert_eq!(primary.path_mig_state, MigState::MIGRATED);
        for (sl, byte) in [(3, 10), (5, 20)] {
            let loaded = path(&a, sl);
            a.qp.load_alternate_path(&loaded).unwrap();
            let attr = a.qp.query().unwrap().0;
            assert_eq!(attr.path_mig_state, MigState::REARM);
            assert_eq!(
                (attr.alt_ah_attr.sl, attr.alt_port_num, attr.alt_timeout),
                (sl, loaded.address.port, loaded.timeout)
            );
            assert_ne!(attr.ah_attr.sl, sl);
            // The peer has no alternate path.
            write(&mut a, &pd, byte);
            assert_eq!(a.qp.path_migration().unwrap(), MigState::REARM);
            let refused = a.qp.migrate().unwrap_err();
            assert!(refused.to_string().ends_with("is REARM, not ARMED"), "{refused}");

            b.qp.load_alternate_path(&path(&b, sl)).unwrap();
            write(&mut a, &pd, byte + 1);
            assert_eq!(a.qp.path_migration().unwrap(), MigState::ARMED);
            assert_eq!(b.qp.path_migration().unwrap(), MigState::ARMED);

            a.qp.migrate().unwrap();
            migrated(pd.context(), 1);
            let attr = a.qp.query().unwrap().0;
            assert_eq!(attr.path_mig_state, MigState::MIGRATED);
            assert_eq!(
                (attr.ah_attr.sl, attr.timeout),
                (sl, loaded.timeout),
                "the alternate path is the path"
            );
            assert_eq!(b.qp.path_migration().unwrap(), MigState::ARMED);
            write(&mut a, &pd, byte + 2);
            migrated(pd.context(), 1);
            assert_eq!(b.qp.query().unwrap().0.ah_attr.sl, sl, "the peer has followed");
            write(&mut b, &pd, byte + 3);
        }
    });
}

#[kernel_test(device::ethernet)]
fn alternate_path_is_rejected_on_ethernet() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, Plan::default());
        let loaded = path(&a, 0);
        let refused = a.qp.load_alternate_path(&loaded).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { feature: Feature::AlternatePath, .. }), "{refused}");
        // The kernel itself bans it (`_ib_modify_qp` in its core/verbs.c).
        let attr = QpAttr {
            alt_ah_attr: loaded.address,
            alt_port_num: loaded.address.port,
            path_mig_state: MigState::REARM,
            ..QpAttr::default()
        };
        let refused = a.qp.modify(&attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL), "{refused}");
        assert_eq!(a.qp.path_migration().unwrap(), MigState::MIGRATED);
    });
}
