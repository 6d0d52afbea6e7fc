//! Unsolicited asynchronous events.

use std::time::Instant;

use bareverbs::cq::CqInit;
use bareverbs::device::{EventType, PortState};
use bareverbs::qp::{Operation, Payload, QpInit, Rc};
use bareverbs::{Access, AsyncEvent, Buffer, Context, Endpoint, Error, Gid, Op, PortNum, WcStatus};
use bareverbs_kernel_tests::device::{self, netdev};
use bareverbs_kernel_tests::iproute2::ip;
use bareverbs_kernel_tests::loopback::{Plan, domain, join, open, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};

use super::event;

#[kernel_test]
fn cq_overrun_raises_cq_err() {
    nothing_leaks(|| {
        let pd = domain();
        let plan = Plan::default();
        let cq = pd.context().create_cq(&CqInit { user_data: 0xc0ffee, ..CqInit::new(1) }).unwrap();
        let (mut a, mut b) = (side(&pd, plan), side(&pd, plan));
        a.qp = pd.create_qp::<Rc>(&QpInit { cap: plan.cap, ..QpInit::new(&cq, &cq) }).unwrap();
        a.cq = cq;
        join(&mut a, &mut b);
        b.recv_into(0, 4, &[]);
        for wr_id in 0..4 {
            a.send(&[request(wr_id, Operation::Send, Payload::Sges(&[]))]).unwrap();
        }
        let overrun = event(pd.context(), |event| matches!(event, AsyncEvent::Cq { .. }));
        assert_eq!(overrun, AsyncEvent::Cq { event: EventType::CQ_ERR, user_data: 0xc0ffee });
        assert_eq!(a.completions(1)[0].wr_id, 0, "what fitted is still there");
    });
}

#[kernel_test(device::has_netdev)]
fn port_state_changes_raise_events() {
    let context = open();
    let (device, address) = (netdev(), device::gid());
    let of_port = |wanted| move |event: &AsyncEvent| matches!(event, AsyncEvent::Port { event, .. } if *event == wanted);
    ip(&format!("link set dev {device} down"));
    let down = event(&context, of_port(EventType::PORT_ERR));
    assert_eq!(down, AsyncEvent::Port { event: EventType::PORT_ERR, port: PortNum(1) });
    assert_ne!(context.query_port(1).unwrap().state, PortState::ACTIVE);
    ip(&format!("link set dev {device} up"));
    let up = event(&context, of_port(EventType::PORT_ACTIVE));
    assert_eq!(up, AsyncEvent::Port { event: EventType::PORT_ACTIVE, port: PortNum(1) });
    assert_eq!(context.query_port(1).unwrap().state, PortState::ACTIVE);
    wait_for_address(&context, address);
}

/// Later tests need the address at the same index.
fn wait_for_address(context: &Context, address: Gid) {
    let begin = Instant::now();
    while context.default_gid(1).map(|entry| entry.gid).ok() != Some(address) {
        assert!(begin.elapsed() < TIMEOUT, "the address did not come back");
    }
}

#[kernel_test(device::soft_roce)]
fn failed_operation_names_a_link_that_is_down() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let (device, address) = (netdev(), device::gid());
        let ends = || {
            let mut ends = [Endpoint::new(&pd, 1, 16).unwrap(), Endpoint::new(&pd, 1, 16).unwrap()];
            let [a, b] = &mut ends;
            let addresses = [b.address(), a.address()];
            a.connect(&addresses[0]).unwrap();
            b.connect(&addresses[1]).unwrap();
            ends
        };
        let [mut a, _b] = ends();
        assert_eq!(context.link_down(1), None);
        ip(&format!("link set dev {device} down"));
        let down = context.link_down(1).expect("the link is down");
        let buffer = || pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
        a.post(Op::recv(buffer())).unwrap();
        a.post(Op::send(buffer(), ..)).unwrap();
        let failures = [a.next().wait().unwrap_err(), a.next().wait().unwrap_err()];
        let explained = context.explain(WcStatus::LOC_QP_OP_ERR);
        ip(&format!("link set dev {device} up"));
        assert_eq!((down.port, down.netdev.as_deref()), (PortNum(1), Some(&device[..])));
        let start =
            format!("the link is down: port 1 of {} is DOWN: set its network interface up", device::name());
        assert!(down.to_string().starts_with(&start), "{down}");
        assert!(explained.starts_with("the link of port 1 is down: "), "{explained}");
        // The send, and the receive that was flushed behind it.
        for failed in failures {
            let link = matches!(failed.error, Error::Completion { link_down: Some(PortNum(1)), .. });
            assert!(link && failed.to_string().contains(", the link of port 1 is down: "), "{failed}");
        }
        wait_for_address(context, address);
        assert_eq!(context.link_down(1), None);
    });
}

#[kernel_test(device::has_netdev, device::gid_table)]
fn new_ip_address_raises_gid_change() {
    let context = open();
    let device = netdev();
    let before = context.gid_table().unwrap().len();
    ip(&format!("address add 10.77.0.1/24 dev {device}"));
    let change = event(&context, |event| event.event() == EventType::GID_CHANGE);
    assert_eq!(change, AsyncEvent::Port { event: EventType::GID_CHANGE, port: PortNum(1) });
    let begin = Instant::now();
    while context.gid_table().unwrap().len() <= before {
        assert!(begin.elapsed() < TIMEOUT, "the table did not grow");
    }
    ip(&format!("address del 10.77.0.1/24 dev {device}"));
    while context.gid_table().unwrap().len() > before {
        assert!(begin.elapsed() < TIMEOUT, "the table did not shrink");
    }
}
