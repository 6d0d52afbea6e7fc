//! Alternate paths of connections. The kernel's connection manager has no command for them: each side
//! loads its own.

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use bareverbs::cq::CqInit;
use bareverbs::device::{DeviceCapFlags, EventType};
use bareverbs::qp::{AlternatePath, MigState, Operation, Payload, Qp, QpInit, Rc, SendFlags, SendRequest};
use bareverbs::{AsyncEvent, Context, Errno, Pd, Remote};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_rdmacm::connection::{Connected, Connector};
use bareverbs_rdmacm::{ConnectOptions, Error, Listener, PortSpace};

use crate::host::*;

/// For tests of path migration.
///
/// # Errors
/// If the device or the link layer does not support it.
pub(crate) fn migrates() -> Requirement {
    has_ip()?;
    device::infiniband()?;
    let flags = device::open().query_device().map_err(|error| error.to_string())?.device_cap_flags;
    let has = flags.contains(DeviceCapFlags::AUTO_PATH_MIG);
    if has { Ok(()) } else { Err("the device has no path migration".to_owned()) }
}

fn queue(pd: &Pd) -> Qp<Rc> {
    let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
    pd.create_qp(&QpInit::new(&cq, &cq)).unwrap()
}

/// A write of 0 bytes, which is a message of both ports.
fn touch(qp: &mut Qp<Rc>) {
    let operation = Operation::Write(Remote { addr: 0, rkey: 0 });
    let request =
        SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) };
    // SAFETY: the request names no memory.
    unsafe { qp.post_send(&[request]) }.unwrap();
}

/// Waits for the migration events of `count` QPs.
fn migrated(context: &Context, count: usize) {
    let (events, end) = (context.async_events(), Instant::now() + TIMEOUT);
    let mut found = 0;
    while found < count {
        match events.next().wait_timeout(end.saturating_duration_since(Instant::now())).transpose().unwrap() {
            Some(AsyncEvent::Qp { event: EventType::PATH_MIG, .. }) => found += 1,
            // The first message of a QP that was in RTR.
            Some(AsyncEvent::Qp { event: EventType::COMM_EST, .. }) => {}
            other => panic!("{found} of {count} events, then {other:?}"),
        }
    }
}

/// Waits until the sides have told each other that they have an alternate path.
fn armed(active: &mut Connected<Qp<Rc>>) {
    let end = Instant::now() + TIMEOUT;
    while active.queue.path_migration().unwrap() != MigState::ARMED {
        assert!(Instant::now() < end, "not armed");
        thread::yield_now();
    }
}

#[kernel_test(migrates)]
fn connection_migrates_to_the_paths_that_its_sides_load() {
    nothing_leaks(|| {
        let pd = device::open().alloc_pd().unwrap();
        let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let options = ConnectOptions::default();
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let incoming = listener.request().in_time().unwrap();
                incoming.accept(queue(&pd), &options).in_time().unwrap()
            });
            let route = Connector::new().resolve(addr).in_time().unwrap();
            let mut active = route.connect(queue(&pd), &options).in_time().unwrap();
            let mut passive = server.join().unwrap();
            // The kernel asks for one path, and offers one.
            for side in [&active, &passive] {
                assert_eq!(side.link.id().paths().unwrap().len(), 1);
            }
            for side in [&mut active, &mut passive] {
                let address = side.queue.query().unwrap().0.ah_attr;
                side.queue
                    .load_alternate_path(&AlternatePath::new(bareverbs::ah::AhAttr { sl: 3, ..address }))
                    .unwrap();
            }
            touch(&mut active.queue);
            armed(&mut active);
            active.queue.migrate().unwrap();
            touch(&mut active.queue);
            migrated(pd.context(), 2);
            for side in [&active, &passive] {
                let attr = side.queue.query().unwrap().0;
                assert_eq!((attr.path_mig_state, attr.ah_attr.sl), (MigState::MIGRATED, 3));
            }
            // The messages of the connection manager keep to the path that it knows.
            let end = scope.spawn(move || active.link.disconnect().in_time().unwrap());
            passive.link.ended().in_time().unwrap();
            end.join().unwrap();
        });
    });
}

#[kernel_test(has_ip, device::connects_any_qp_number)]
fn migration_is_not_reported_without_an_alternate_path() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let (active, passive) = connected(&listener, addr);
        for side in [&active, &passive] {
            let refused = side.notify(EventType::PATH_MIG).unwrap_err();
            assert!(matches!(refused, Error::Invalid { verb: "notify", .. }), "{refused}");
            assert_eq!(errno(side.notify(EventType::PORT_ERR)), Errno::INVAL);
        }
        disconnect(&active, &passive);
    });
}
