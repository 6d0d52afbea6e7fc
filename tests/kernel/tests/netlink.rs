//! RDMA netlink's lists and counters, compared with the objects of a test.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bareverbs::qp::{Operation, Payload, QpCap, QpInit, QpState, Rc};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Mr, PortNum};
use bareverbs_kernel_tests::iproute2::ip;
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::loopback::{Plan, domain, pair, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device};
use bareverbs_netlink::{
    CounterMask, Error, Event, EventSources, Events, MigState, NetdevEvent, Owner, QpType, RdmaNetlink,
    RouteNetlink, SrqType,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::io::Errno;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}

fn netlink() -> RdmaNetlink {
    RdmaNetlink::open().expect("the lab has RDMA netlink")
}

fn me() -> Owner {
    Owner::Process(std::process::id())
}

/// The only element that matches.
fn only<T: std::fmt::Debug>(list: Vec<T>, is_it: impl Fn(&T) -> bool) -> T {
    let mut found: Vec<T> = list.into_iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[kernel_test(device::has_device_node)]
fn resources_have_owner_and_parent() {
    nothing_leaks(|| {
        let pd = domain();
        let mr: Mr<_> = region(&pd, &[0; 5000], Access::LOCAL_WRITE);
        let end = side(&pd, Plan::default());
        let mut netlink = netlink();

        let context = only(netlink.contexts(device::name()).unwrap(), |context| context.owner == me());
        let domain = only(netlink.protection_domains(device::name()).unwrap(), |domain| domain.owner == me());
        assert_eq!(domain.context, Some(context.number));
        assert!(domain.users >= 2, "a region and a queue pair: {domain:?}");

        let listed = only(netlink.memory_regions(device::name()).unwrap(), |region| region.owner == me());
        assert_eq!((listed.lkey, listed.rkey), (Some(mr.lkey()), Some(mr.rkey())));
        assert_eq!((listed.length, listed.pd), (5000, Some(domain.number)));

        let queue = only(netlink.completion_queues(device::name()).unwrap(), |queue| queue.owner == me());
        assert_eq!(queue.context, Some(context.number));
        assert_eq!((queue.users, queue.poll_context), (2, None), "sends and receives of one: {queue:?}");
        let asked = Plan::default().cap.max_send_wr + Plan::default().cap.max_recv_wr;
        assert!(queue.cqe >= asked, "{queue:?}");

        let listed = only(netlink.queue_pairs(device::name()).unwrap(), |qp| qp.owner == me());
        assert_eq!((listed.qp_num, listed.pd), (end.qp.qp_num(), Some(domain.number)));
        assert_eq!((listed.port, listed.state), (None, Some(device::reported_reset())));
    });
    let mut netlink = netlink();
    assert!(netlink.contexts(device::name()).unwrap().iter().all(|context| context.owner != me()));
    assert!(netlink.memory_regions(device::name()).unwrap().iter().all(|region| region.owner != me()));
}

#[kernel_test(device::has_device_node, device::moves_qps)]
fn qps_are_listed_with_state_and_peer() {
    let pd = domain();
    let (mut a, b) = pair(&pd, Plan::default());
    let mut netlink = netlink();
    let (one, other) = (a.qp.qp_num(), b.qp.qp_num());
    let listed = only(netlink.queue_pairs(device::name()).unwrap(), |qp| qp.qp_num == one);
    assert_eq!((listed.port, listed.remote_qp_num), (Some(PortNum(1)), Some(other)));
    assert_eq!((listed.qp_type, listed.state), (Some(QpType::RC), Some(QpState::RTS)));
    assert_eq!((listed.rq_psn, listed.sq_psn), (Some(0), Some(0)));
    assert_eq!(listed.path_mig_state, Some(MigState::MIGRATED));
    a.go_to(QpState::ERR).unwrap();
    let listed = only(netlink.queue_pairs(device::name()).unwrap(), |qp| qp.qp_num == one);
    assert_eq!(listed.state, Some(QpState::ERR));
}

#[kernel_test(device::has_device_node)]
fn srq_is_listed_with_its_qps() {
    let pd = domain();
    let srq = pd.create_srq(&SrqInit::new(8)).unwrap();
    let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(16)).unwrap();
    let cap = QpCap { max_recv_wr: 0, ..QpCap::default() };
    let init = QpInit { cap, srq: Some(&srq), ..QpInit::new(&cq, &cq) };
    let sharing: Vec<_> = (0..3).map(|_| pd.create_qp::<Rc>(&init).unwrap()).collect();
    let _alone = side(&pd, Plan::default());
    let listed = only(netlink().shared_receive_queues(device::name()).unwrap(), |srq| srq.owner == me());
    assert_eq!((listed.srq_type, listed.cq), (Some(SrqType::BASIC), None));
    let named: BTreeSet<u32> = listed.queue_pairs.iter().cloned().flatten().collect();
    assert_eq!(named, sharing.iter().map(|qp| qp.qp_num()).collect());
}

#[kernel_test(device::has_device_node, device::ib_transports)]
fn kernel_objects_are_listed_by_name() {
    let mut netlink = netlink();
    let services = only(netlink.queue_pairs(device::name()).unwrap(), |qp| qp.qp_type == Some(QpType::GSI));
    assert_eq!(services.owner, Owner::Kernel("ib_core".into()));
    assert_eq!((services.qp_num, services.remote_qp_num, services.pd), (1, None, None));
    let queues = netlink.completion_queues(device::name()).unwrap();
    assert!(queues.iter().any(|queue| queue.poll_context.is_some() && queue.context.is_none()), "{queues:?}");
    // No address is resolved, and nothing listens.
    assert_eq!(netlink.cm_ids(device::name()).unwrap(), []);
}

#[kernel_test(device::has_device_node)]
fn mr_keys_require_cap_net_admin() {
    let pd = domain();
    let mr = region(&pd, &[0; 100], Access::LOCAL_WRITE);
    let owner = me();
    child::run(|| {
        child::drop_privileges();
        let region = only(netlink().memory_regions(device::name()).unwrap(), |region| region.owner == owner);
        assert_eq!((region.lkey, region.rkey, region.length), (None, None, 100));
        let domains = netlink().protection_domains(device::name()).unwrap();
        assert!(domains.iter().all(|domain| domain.local_dma_lkey.is_none()), "{domains:?}");
    });
    drop(mr);
}

/// The value of a port's counter.
fn counter(name: &str) -> u64 {
    let counters = netlink().port_counters(device::name(), 1).unwrap().expect("the device counts");
    only(counters, |counter| counter.name == name).value
}

#[kernel_test(device::soft_roce)]
fn port_counters_grow_with_traffic() {
    let pd = domain();
    let (mut a, mut b) = pair(&pd, Plan::default());
    let (sent, received) = (counter("sent_pkts"), counter("rcvd_pkts"));
    b.recv_into(0, 10, &[]);
    for wr_id in 0..10 {
        a.send(&[request(wr_id, Operation::Send, Payload::Sges(&[]))]).unwrap();
    }
    a.completions(10);
    // Ten messages, and at least one acknowledgement.
    assert!(counter("sent_pkts") >= sent + 11 && counter("rcvd_pkts") >= received + 11);
}

#[kernel_test(device::has_device_node, device::has_counters)]
fn counters_have_the_names_of_their_status() {
    let mut netlink = netlink();
    let status = netlink.counter_status(device::name(), 1).unwrap().expect("the device counts");
    let counters = netlink.port_counters(device::name(), 1).unwrap().expect("the device counts");
    let names: Vec<_> = counters.iter().map(|counter| counter.name.as_str()).collect();
    assert!(
        ["ack_deferred", "sent_pkts", "out_of_buffer"].iter().any(|name| names.contains(name)),
        "{names:?}"
    );
    // Optional counters are off by default.
    let on = status.iter().filter(|counter| counter.enabled != Some(false));
    assert_eq!(names, on.map(|counter| counter.name.as_str()).collect::<Vec<_>>());
    for (place, counter) in status.iter().enumerate() {
        assert_eq!(counter.index as usize, place, "{counter:?}");
        assert_ne!(counter.enabled, Some(true), "{counter:?}");
    }
}

#[kernel_test(device::soft_roce)]
fn rxe_has_no_per_qp_counters() {
    let pd = domain();
    let mr = region(&pd, &[0; 100], Access::LOCAL_WRITE);
    let mut netlink = netlink();
    assert_eq!(netlink.qp_counters(device::name()).unwrap(), []);
    if let Some(binding) = netlink.counter_binding(device::name(), 1).unwrap() {
        assert_eq!((binding.mode, binding.shared_by), (Some(bareverbs_netlink::CounterMode::NONE), None));
    }
    let own = only(netlink.memory_regions(device::name()).unwrap(), |region| region.lkey == Some(mr.lkey()));
    let counted = only(netlink.mr_counters(device::name()).unwrap(), |counted| counted.number == own.number);
    assert_eq!(counted.counters, []);
}

#[kernel_test(device::has_device_node)]
fn unknown_device_or_port_is_rejected() {
    let mut netlink = netlink();
    let refused = netlink.queue_pairs("rxe7").unwrap_err().to_string();
    assert!(refused.contains("rxe7") && refused.contains(device::name()), "{refused}");
    let refused = netlink.port_counters(device::name(), 2).unwrap_err().to_string();
    assert!(refused.contains("port 2 of"), "{refused}");
    netlink.counter_status(device::name(), 0).unwrap_err();
    netlink.counter_binding(device::name(), 9).unwrap_err();
    netlink.qp_counters("rxe7").unwrap_err();
}

#[kernel_test(device::has_device_node)]
fn unknown_ports_and_counters_are_not_changed() {
    let mut netlink = netlink();
    let name = device::name();
    for refused in [
        netlink.set_optional_counters(name, 2, &[]),
        netlink.set_counter_auto(name, 2, CounterMask::QP_TYPE, None),
        netlink.bind_counter(name, 2, 1, None).map(drop),
        netlink.unbind_counter(name, 2, 1, 1),
    ] {
        assert!(matches!(refused, Err(Error::NoPort { port: PortNum(2), count: 1, .. })), "{refused:?}");
    }
    let refused = netlink.set_optional_counters(name, 1, &["no such counter"]).unwrap_err();
    assert!(refused.to_string().contains("has no optional counter \"no such counter\""), "{refused}");
    assert!(matches!(
        netlink.set_counter_auto("rxe7", 1, CounterMask::PID, None),
        Err(Error::UnknownDevice { .. })
    ));
}

/// The interface that events are caused on.
const INTERFACE: &str = "lo";

fn set_mtu(mtu: u32) {
    ip(&format!("link set dev {INTERFACE} mtu {mtu}"));
}

fn is_readable(events: &Events) -> bool {
    let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

#[kernel_test(device::root)]
fn events_wake_a_poller_of_the_descriptor() {
    let mut events = Events::open(EventSources::NETDEV).unwrap();
    while events.wait_timeout(Duration::from_millis(200)).unwrap().is_some() {}
    assert!(!is_readable(&events));
    let begin = Instant::now();
    assert_eq!(events.wait_timeout(Duration::from_millis(50)).unwrap(), None);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    set_mtu(40_000);
    assert!(is_readable(&events));
    let Event::Netdev(event) = events.wait().unwrap() else { panic!("another event") };
    let NetdevEvent { name, removed, up, mtu, .. } = event;
    assert_eq!((name.as_str(), removed, up, mtu), (INTERFACE, false, true, Some(40_000)));
    while events.try_wait().unwrap().is_some() {}
    assert!(!is_readable(&events));
    set_mtu(65_536);
}

#[kernel_test(device::root)]
fn lost_events_are_reported_and_others_follow() {
    let mut events = Events::open(EventSources::NETDEV).unwrap();
    let mut lines = String::new();
    for mtu in 30_000..33_000 {
        lines += &format!("link set dev {INTERFACE} mtu {mtu}\n");
    }
    let path = std::env::temp_dir().join("mtu-changes");
    std::fs::write(&path, lines).unwrap();
    ip(&format!("-batch {}", path.display()));
    std::fs::remove_file(&path).unwrap();
    let taken: Vec<Event> = std::iter::from_fn(|| events.try_wait().unwrap()).collect();
    assert!(taken.contains(&Event::Lost(EventSources::NETDEV)), "{} events", taken.len());
    assert!(taken.len() > 20, "{taken:?}");
    set_mtu(65_536);
    let last = std::iter::from_fn(|| events.try_wait().unwrap()).last();
    assert!(matches!(&last, Some(Event::Netdev(event)) if event.mtu == Some(65_536)), "{last:?}");
}

#[kernel_test(device::has_device_node)]
fn rdma_events_require_privileges_before_linux_7_2() {
    let system = netlink().system().unwrap();
    Events::open(EventSources::all()).unwrap();
    child::run(|| {
        child::drop_privileges();
        Events::open(EventSources::UEVENT | EventSources::NETDEV).unwrap();
        match Events::open(EventSources::RDMA) {
            Ok(_) => assert!(system.monitor, "this kernel is older than RDMA notifications"),
            Err(Error::Kernel(refused)) => {
                assert_eq!(refused.errno, Errno::PERM);
                assert!(refused.to_string().contains("CAP_NET_ADMIN"), "{refused}");
            }
            Err(error) => panic!("{error:?}"),
        }
    });
}

#[kernel_test(device::root)]
fn refused_request_has_the_kernels_explanation() {
    let mut route = RouteNetlink::open().unwrap();
    let multicast = "ff02::9".parse().unwrap();
    let refused = match route.add_address(INTERFACE, multicast, 64) {
        Err(Error::Kernel(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused.errno, Errno::ADDRNOTAVAIL);
    // Not every kernel explains it.
    if let Some(message) = &refused.message {
        assert!(refused.to_string().contains(&format!("({message:?})")), "{refused}");
    }
    let refused = route.add_address(INTERFACE, "10.9.0.1".parse().unwrap(), 33).unwrap_err();
    assert!(
        refused.to_string().ends_with("the prefix of 10.9.0.1 has 33 bits; the maximum is 32"),
        "{refused}"
    );
    route.set_up(INTERFACE).unwrap();
    // It may have the address already.
    route.add_address(INTERFACE, "127.0.0.1".parse().unwrap(), 8).unwrap();
}
