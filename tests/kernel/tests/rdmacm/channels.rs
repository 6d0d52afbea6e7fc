//! Channels, and the life of identifiers and events.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::Errno;
use bareverbs_kernel_tests::device::is_infiniband;
use bareverbs_kernel_tests::{child, device, kernel_test};
use bareverbs_rdmacm::command::{self, CmFile};
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{CmId, Error, EventChannel, PortSpace};
use bareverbs_uapi::rdma_cm;
use bareverbs_uapi::rdma_cm::structs::*;

use crate::host::*;
use crate::options::kernel_is_7_2;

#[kernel_test(crate::host::has_ip)]
fn ids_outlive_their_channel() {
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        drop(channel);
        let (listener, addr) = listener(PortSpace::Tcp, 1);
        resolve(&id, addr);
        id.connect(&param()).unwrap();
        drop(request(&listener));
        let kind = next_of(id.channel(), id.key());
        assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
    });
}

#[kernel_test(crate::host::has_ip)]
fn destroyed_id_takes_its_events_along() {
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let (one, other) =
            (CmId::new(&channel, PortSpace::Tcp).unwrap(), CmId::new(&channel, PortSpace::Tcp).unwrap());
        for id in [&one, &other] {
            id.resolve_addr(None, (ip(), 1), RESOLVE).unwrap();
        }
        // Both events wait.
        thread::sleep(QUIET);
        one.destroy().unwrap();
        let kind = next_of(&channel, other.key());
        assert!(matches!(kind, EventKind::AddrResolved), "{kind:?}");
        quiet(&channel);
    });
}

#[kernel_test(crate::host::has_ip)]
fn events_may_outlive_their_id() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 1);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        // librdmacm's destroy would wait for the acknowledgement of this event.
        let request = request(&listener);
        let begin = Instant::now();
        listener.destroy().unwrap();
        assert!(begin.elapsed() < TIMEOUT);
        // The request goes on without the listener.
        let passive = request.accept(&param()).unwrap();
        establish(&active, &passive);
        disconnect(&active, &passive);
    });
}

#[kernel_test(crate::host::has_ip)]
fn requests_of_a_destroyed_listener_are_rejected() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        thread::sleep(QUIET);
        // The request waits, and was not read.
        drop(listener);
        let kind = next_of(active.channel(), active.key());
        let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
        assert_eq!(rejected.reason, by_application());
    });
}

#[kernel_test(crate::host::has_ip)]
fn migrated_id_takes_its_events_along() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let (old, new) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
        let mut active = CmId::new(&old, PortSpace::Tcp).unwrap();
        let key = active.key();
        active.resolve_addr(None, addr, RESOLVE).unwrap();
        thread::sleep(QUIET);
        active.migrate(&new).unwrap();
        assert!(active.channel().same_channel(&new) && active.key() == key);
        assert!(old.try_wait().unwrap().is_none());
        drop(old);
        let kind = next_of(&new, key);
        assert!(matches!(kind, EventKind::AddrResolved), "{kind:?}");
        active.resolve_route(RESOLVE).unwrap();
        assert!(matches!(next_of(&new, key), EventKind::RouteResolved));
        active.connect(&param()).unwrap();

        // A child moves before it is accepted.
        let channel = EventChannel::new().unwrap();
        let mut passive = request(&listener).into_id();
        passive.migrate(&channel).unwrap();
        passive.accept(&param()).unwrap();
        establish(&active, &passive);
        disconnect(&active, &passive);
        // To its own channel.
        passive.migrate(&channel).unwrap();
    });
}

#[kernel_test(crate::host::has_ip)]
fn migration_wakes_a_waiting_reader() {
    nothing_leaks(|| {
        let (old, new) = (EventChannel::new().unwrap(), EventChannel::new().unwrap());
        let mut id = CmId::new(&old, PortSpace::Tcp).unwrap();
        let key = id.key();
        let reader = {
            let new = new.clone();
            thread::spawn(move || new.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("a wake").key)
        };
        id.resolve_addr(None, (ip(), 1), RESOLVE).unwrap();
        thread::sleep(QUIET);
        let begin = Instant::now();
        id.migrate(&new).unwrap();
        assert_eq!(reader.join().unwrap(), key);
        assert!(begin.elapsed() < TIMEOUT / 2);
    });
}

#[kernel_test(crate::host::has_ip)]
fn listener_is_not_migrated() {
    let (mut listener, _) = listener(PortSpace::Tcp, 8);
    let refused = listener.migrate(&EventChannel::new().unwrap()).unwrap_err();
    assert!(matches!(refused, Error::Invalid { verb: "migrate", .. }), "{refused}");
}

#[kernel_test(crate::host::has_ip)]
fn wait_has_a_time_limit() {
    let channel = EventChannel::new().unwrap();
    let begin = Instant::now();
    assert!(channel.next().wait_timeout(QUIET).transpose().unwrap().is_none());
    assert!(begin.elapsed() >= QUIET && begin.elapsed() < TIMEOUT);
    assert!(channel.next().wait_timeout(Duration::ZERO).is_none());
}

#[kernel_test(crate::host::has_ip)]
fn threads_share_a_channel() {
    const EACH: usize = 50;
    nothing_leaks(|| {
        let channel = EventChannel::new().unwrap();
        let read = AtomicUsize::new(0);
        let ids: Vec<_> = (0..4 * EACH).map(|_| CmId::new(&channel, PortSpace::Tcp).unwrap()).collect();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while read.load(Ordering::Relaxed) < ids.len() {
                        if let Some(event) =
                            channel.next().wait_timeout(Duration::from_millis(20)).transpose().unwrap()
                        {
                            assert!(matches!(event.kind, EventKind::AddrResolved), "{:?}", event.kind);
                            assert!(ids.iter().any(|id| id.key() == event.key));
                            read.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for ids in ids.chunks(EACH) {
                scope.spawn(|| ids.iter().for_each(|id| id.resolve_addr(None, (ip(), 1), RESOLVE).unwrap()));
            }
        });
        quiet(&channel);
    });
}

#[kernel_test(crate::host::has_ip)]
fn identifiers_are_destroyed_while_another_thread_reads_their_events() {
    const ROUNDS: u32 = 300;
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 0);
        let (active, over) = (EventChannel::new().unwrap(), AtomicBool::new(false));
        // Both threads drop what they read, requests included.
        let read_all = |channel: &EventChannel| {
            let mut read = 0;
            while !over.load(Ordering::Relaxed) {
                read += usize::from(
                    channel.next().wait_timeout(Duration::from_millis(20)).transpose().unwrap().is_some(),
                );
            }
            read
        };
        thread::scope(|scope| {
            let events = scope.spawn(|| read_all(&active));
            scope.spawn(|| read_all(listener.channel()));
            for round in 0..ROUNDS {
                let id = CmId::new(&active, PortSpace::Tcp).unwrap();
                id.resolve_addr(None, addr, RESOLVE).unwrap();
                // Its event is queued, on its way, read, or was delivered.
                let begin = Instant::now();
                let time = Duration::from_micros(u64::from(round % 10) * 100);
                while begin.elapsed() < time {
                    thread::yield_now();
                }
                // The route of an address that is not resolved yet is refused. On InfiniBand, the kernel
                // crashes if an identifier is destroyed during its path query.
                if !is_infiniband() && id.resolve_route(RESOLVE).is_ok() && round % 2 == 0 {
                    let _ = id.connect(&param());
                }
                id.destroy().unwrap();
            }
            over.store(true, Ordering::Relaxed);
            assert!(events.join().unwrap() > 0);
        });
    });
}

#[kernel_test(crate::host::has_ip, device::between_processes)]
fn forked_child_can_not_use_a_channel() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let mut slot = Some(resolved(addr, PortSpace::Tcp));
        child::run(|| {
            let id = slot.take().unwrap();
            assert_eq!(errno(id.connect(&param())), Errno::STALE);
            assert_eq!(errno(id.channel().try_wait()), Errno::STALE);
            assert_eq!(errno(CmId::new(id.channel(), PortSpace::Tcp)), Errno::STALE);
            // Drop destroys nothing, and a new channel works. A soft device is of one process: the child
            // has its own.
            drop(id);
            let _device = device::device();
            CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        });
        let id = slot.take().unwrap();
        id.connect(&param()).unwrap();
        drop(request(&listener));
    });
}

#[kernel_test(device::root)]
fn changed_credentials_are_refused() {
    child::run(|| {
        let channel = EventChannel::new().unwrap();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        child::drop_privileges();
        let key = id.key();
        let refused = id.destroy().unwrap_err();
        assert_eq!(refused.error.errno(), Some(Errno::ACCESS));
        assert_eq!(refused.object.key(), key);
        assert!(refused.to_string().contains("credentials"), "{refused}");
    });
}

#[kernel_test(device::has_device_node)]
fn raw_commands_return_the_errors_of_the_kernel() {
    let (file, other) = (CmFile::open().unwrap(), CmFile::open().unwrap());
    let create = CreateIdReq { uid: 1, ps: rdma_cm::PortSpace::TCP, ..CreateIdReq::zeroed() };
    let id = command::create_id(&file, create).unwrap().id;
    let destroy = DestroyIdReq { id, ..DestroyIdReq::zeroed() };
    let foreign = command::destroy_id(&other, destroy).unwrap_err();
    assert_eq!(foreign.errno(), Some(Errno::INVAL));
    assert!(foreign.to_string().ends_with("belongs to another file of the connection manager"), "{foreign}");
    let service = ResolveIbServiceReq { id, ..ResolveIbServiceReq::zeroed() };
    let refused = command::resolve_ib_service(&file, service).unwrap_err().to_string();
    let event = WriteCmEventReq { id, event: rdma_cm::EventType::ESTABLISHED, ..WriteCmEventReq::zeroed() };
    let event = command::write_cm_event(&file, event).unwrap_err().to_string();
    if kernel_is_7_2() {
        assert!(refused.contains(": the identifier has no device"), "{refused}");
        assert!(event.ends_with(": programs write the events USER and INTERNAL only"), "{event}");
    } else {
        for refused in [refused, event] {
            assert!(refused.ends_with(": Linux 7.2 and later have this command"), "{refused}");
        }
    }
    let unknown = DestroyIdReq { id: u32::MAX, ..destroy };
    let refused = command::destroy_id(&file, unknown).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::NOENT));
    assert!(refused.to_string().ends_with("no identifier has this number: it was destroyed"), "{refused}");
    let wrong = CreateIdReq { ps: rdma_cm::PortSpace(9), ..create };
    let refused = command::create_id(&file, wrong).unwrap_err();
    assert_eq!(refused.errno(), Some(Errno::INVAL));
    assert!(refused.to_string().starts_with("CREATE_ID was refused by the "), "{refused}");
    assert!(refused.to_string().ends_with(": the port space is unknown"), "{refused}");
    let option = SetOptionReq { id, level: rdma_cm::OptionLevel(5), ..SetOptionReq::zeroed() };
    assert_eq!(errno(command::set_option(&file, option, &[1])), Errno::NOSYS);
    let short = SetOptionReq { level: rdma_cm::OptionLevel::ID, ..option };
    assert_eq!(errno(command::set_option(&file, short, &[1, 2])), Errno::INVAL);
    let bind = BindReq { id, addr_size: 3, ..BindReq::zeroed() };
    assert_eq!(errno(command::bind(&file, bind)), Errno::INVAL);
    assert_eq!(command::destroy_id(&file, destroy).unwrap().events_reported, 0);
    assert_eq!(errno(command::destroy_id(&file, destroy)), Errno::NOENT);
    assert!(command::get_event(&file).unwrap().is_none());

    // The older commands for IP addresses.
    let id = command::create_id(&file, create).unwrap().id;
    let addr = rdma_cm::address::SocketAddressIn6::zeroed();
    assert_eq!(errno(command::bind_ip(&file, BindIpReq { id, addr, response: 0 })), Errno::INVAL);
    let route = command::query_route(&file, QueryReq { id, ..QueryReq::zeroed() }).unwrap();
    assert_eq!((route.node_guid, route.num_paths), (0, 0));
}
