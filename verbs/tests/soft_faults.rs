//! Faults of soft devices.

use std::time::Duration;

use bareverbs::device::{EventType, PortState};
use bareverbs::qp::{Qp, QpInit, Rc};
use bareverbs::soft::{Fabric, FaultError, Method, SoftDevice};
use bareverbs::values::{AckTimeout, RetryCount};
use bareverbs::{
    Access, AsyncEvent, AsyncEvents, Buffer, Context, Device, Endpoint, EndpointOptions, Errno, Error, Mr,
    Op, Pd, WcStatus,
};

fn open() -> (SoftDevice, Context) {
    let device = SoftDevice::new(&Fabric::new());
    let context = Device::from(device.clone()).open().unwrap();
    (device, context)
}

fn next(events: &AsyncEvents) -> AsyncEvent {
    events.next().wait_timeout(Duration::from_secs(10)).expect("an event").unwrap()
}

/// Two endpoints of one device.
fn pair(pd: &Pd, options: &EndpointOptions) -> [Endpoint<Mr<Buffer>>; 2] {
    let mut ends = [(); 2].map(|()| options.build(pd).unwrap());
    let [a, b] = ends.each_ref().map(Endpoint::address);
    ends[0].connect(&b).unwrap();
    ends[1].connect(&a).unwrap();
    ends
}

fn receive(pd: &Pd, end: &mut Endpoint<Mr<Buffer>>) {
    let memory = pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    end.post(Op::recv(memory)).unwrap();
}

#[test]
fn link_that_is_down_loses_packets_and_reports_its_state() {
    let (device, context) = open();
    let events = context.async_events();
    let pd = context.alloc_pd().unwrap();
    let options =
        Endpoint::options().timeout(AckTimeout::new(14).unwrap()).retry_cnt(RetryCount::new(7).unwrap());
    let [mut a, mut b] = pair(&pd, &options);
    receive(&pd, &mut b);
    device.set_link(true);
    device.set_link(false);
    device.set_link(false);
    assert_eq!(next(&events), AsyncEvent::Port { event: EventType::PORT_ERR, port: 1.into() });
    assert_eq!(context.query_port(1).unwrap().state, PortState::DOWN);
    a.post(Op::send_inline(b"late")).unwrap();
    assert!(b.next().wait_timeout(Duration::from_millis(20)).is_none());
    device.set_link(true);
    assert_eq!(next(&events), AsyncEvent::Port { event: EventType::PORT_ACTIVE, port: 1.into() });
    assert_eq!(context.query_port(1).unwrap().state, PortState::ACTIVE);
    assert_eq!(b.next().wait().unwrap().message(), Some(&b"late"[..]));
    a.next().wait().unwrap();
    assert!(events.try_wait().unwrap().is_none());
}

#[test]
fn link_that_stays_down_ends_the_retries() {
    let (device, context) = open();
    let pd = context.alloc_pd().unwrap();
    let options =
        Endpoint::options().timeout(AckTimeout::new(8).unwrap()).retry_cnt(RetryCount::new(1).unwrap());
    let [mut a, mut b] = pair(&pd, &options);
    receive(&pd, &mut b);
    device.set_link(false);
    a.post(Op::send_inline(b"lost")).unwrap();
    let failed = a.next().wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }), "{failed}");
}

#[test]
fn nth_call_fails_and_the_others_succeed() {
    let (device, context) = open();
    let pd = context.alloc_pd().unwrap();
    device.fail_call(Method::RegMr, 2, Errno::NOMEM).unwrap();
    device.fail_call(Method::CreateQp, 1, Errno::AGAIN).unwrap();
    let register =
        || pd.register(vec![0; 64], Access::LOCAL_WRITE).map(drop).map_err(|error| error.error.errno());
    assert_eq!([register(), register(), register()], [Ok(()), Err(Some(Errno::NOMEM)), Ok(())]);
    let cq = context.create_cq(&bareverbs::cq::CqInit::new(4)).unwrap();
    let create = || pd.create_qp::<Rc>(&QpInit::new(&cq, &cq));
    assert_eq!(create().unwrap_err().errno(), Some(Errno::AGAIN));
    let mut qp: Qp<Rc> = create().unwrap();
    device.fail_call(Method::ModifyQp, 1, Errno::TIMEDOUT).unwrap();
    let init = bareverbs::qp::InitAttr::new(1);
    assert_eq!(qp.init(&init).unwrap_err().errno(), Some(Errno::TIMEDOUT));
    qp.init(&init).unwrap();
    drop((qp, cq));
    let found = device.resources();
    assert_eq!((found.qps, found.cqs, found.mrs, found.pds), (0, 0, 0, 1));
}

#[test]
fn refused_destruction_keeps_the_object() {
    let (device, context) = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&bareverbs::cq::CqInit::new(4)).unwrap();
    let qp: Qp<Rc> = pd.create_qp(&QpInit::new(&cq, &cq)).unwrap();
    device.fail_call(Method::DestroyQp, 1, Errno::BUSY).unwrap();
    let refused = qp.destroy().unwrap_err();
    assert_eq!(refused.error.errno(), Some(Errno::BUSY));
    assert_eq!(device.resources().qps, 1);
    drop(refused);
    assert_eq!(device.resources().qps, 0);
}

#[test]
fn failed_doorbell_leaves_its_requests_posted() {
    let (device, context) = open();
    let pd = context.alloc_pd().unwrap();
    let [mut a, mut b] = pair(&pd, &Endpoint::options());
    receive(&pd, &mut b);
    device.fail_call(Method::PostSend, 1, Errno::NOMEM).unwrap();
    let _ = a.post(Op::send_inline(b"first"));
    receive(&pd, &mut b);
    a.post(Op::send_inline(b"second")).unwrap();
    assert_eq!(b.next().wait().unwrap().message(), Some(&b"first"[..]));
    assert_eq!(b.next().wait().unwrap().message(), Some(&b"second"[..]));
    let (method, errno) = (Method::PostSend, Errno::INVAL);
    assert_eq!(device.fail_call(method, 1, errno), Err(FaultError::Errno { method, errno }));
}

#[test]
fn raised_events_arrive_at_their_objects() {
    let (device, context) = open();
    let events = context.async_events();
    device.raise_event(EventType::GID_CHANGE).unwrap();
    assert_eq!(next(&events), AsyncEvent::Port { event: EventType::GID_CHANGE, port: 1.into() });
    device.raise_event(EventType::DEVICE_FATAL).unwrap();
    assert_eq!(next(&events), AsyncEvent::Device { event: EventType::DEVICE_FATAL });
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&bareverbs::cq::CqInit::new(4)).unwrap();
    let qp: Qp<Rc> = pd.create_qp(&QpInit::new(&cq, &cq)).unwrap();
    device.raise_qp_event(qp.qp_num(), EventType::QP_FATAL).unwrap();
    assert!(matches!(next(&events), AsyncEvent::Qp { event: EventType::QP_FATAL, .. }));
    assert_eq!(device.raise_event(EventType::QP_FATAL), Err(FaultError::Event(EventType::QP_FATAL)));
    let none = qp.qp_num() + 1;
    assert_eq!(device.raise_qp_event(none, EventType::QP_FATAL), Err(FaultError::NoQp(none)));
}

#[test]
fn failed_completion_moves_the_qp_to_err() {
    let (device, context) = open();
    let pd = context.alloc_pd().unwrap();
    let [mut a, mut b] = pair(&pd, &Endpoint::options());
    (0..3).for_each(|_| receive(&pd, &mut b));
    let qp_num = a.address().qp_num;
    device.fail_completion(qp_num, 2, WcStatus::REM_OP_ERR).unwrap();
    a.post(Op::send_inline(b"first")).unwrap();
    a.next().wait().unwrap();
    a.post(Op::send_inline(b"second")).unwrap();
    let failed = a.next().wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion { status: WcStatus::REM_OP_ERR, .. }), "{failed}");
    // The message has arrived.
    for text in [&b"first"[..], b"second"] {
        assert_eq!(b.next().wait().unwrap().message(), Some(text));
    }
    assert!(a.post(Op::send_inline(b"third")).is_err() || a.next().wait().is_err());
    let status = WcStatus::WR_FLUSH_ERR;
    assert_eq!(device.fail_completion(qp_num, 1, status), Err(FaultError::Status(status)));
    let none = 0x7_0000;
    assert_eq!(device.fail_completion(none, 1, WcStatus::REM_OP_ERR), Err(FaultError::NoQp(none)));
}

#[test]
fn failed_receive_flushes_the_others() {
    let (device, context) = open();
    let pd = context.alloc_pd().unwrap();
    let [mut a, mut b] = pair(&pd, &Endpoint::options());
    (0..2).for_each(|_| receive(&pd, &mut b));
    device.fail_completion(b.address().qp_num, 1, WcStatus::LOC_PROT_ERR).unwrap();
    a.post(Op::send_inline(b"lost")).unwrap();
    for status in [WcStatus::LOC_PROT_ERR, WcStatus::WR_FLUSH_ERR] {
        let failed = b.next().wait().unwrap_err();
        assert!(
            matches!(failed.error, Error::Completion { status: found, .. } if found == status),
            "{failed}"
        );
    }
}

#[test]
fn events_beyond_the_socket_buffer_are_not_lost() {
    const EVENTS: usize = 5000;
    let device = SoftDevice::new(&Fabric::new());
    let context = Device::from(device.clone()).open().unwrap();
    let events = context.async_events();
    (0..EVENTS).for_each(|_| device.raise_event(EventType::GID_CHANGE).unwrap());
    for _ in 0..EVENTS {
        next(&events);
    }
    assert!(events.try_wait().unwrap().is_none());
}
