//! SRQs.

use std::time::Duration;

use bareverbs::cq::Cq;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{
    Datagram, GRH_BYTES, InitAttr, Qp, QpCap, QpInit, Rc, RecvRequest, RtrAttr, RtsAttr, SendFlags, Ud,
};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::{AsyncEvent, Buffer, Error, Mr};
use bareverbs_kernel_tests::{device, kernel_test};

use crate::host::{CAP, Host, QKEY, TIMEOUT, bytes, done, on_device, ready};

/// A connection whose second end uses `srq`.
fn connection(host: &Host, client_cq: &Cq, server_cq: &Cq, srq: &Srq) -> (Qp<Rc>, Qp<Rc>) {
    let mut client =
        host.pd.create_qp::<Rc>(&QpInit { cap: CAP, ..QpInit::new(client_cq, client_cq) }).unwrap();
    let init = QpInit { cap: CAP, srq: Some(srq), ..QpInit::new(server_cq, server_cq) };
    let mut server = host.pd.create_qp::<Rc>(&init).unwrap();
    let numbers = (client.qp_num(), server.qp_num());
    for (qp, peer) in [(&mut client, numbers.1), (&mut server, numbers.0)] {
        qp.init(&InitAttr::new(1)).unwrap();
        qp.ready_to_receive(&RtrAttr::new(host.here(), peer)).unwrap();
        qp.ready_to_send(&RtsAttr::default()).unwrap();
    }
    (client, server)
}

/// Posts the receives `ids`, each with its own 64 bytes of `memory`.
fn post(srq: &mut Srq, memory: &Mr<Buffer>, ids: std::ops::Range<u64>) {
    for wr_id in ids {
        let start = place(wr_id);
        let sges = [memory.sge(start..start + 64).unwrap()];
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { srq.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
    }
}

fn place(wr_id: u64) -> usize {
    wr_id as usize % 512 * 64
}

fn send(qp: &mut Qp<Rc>, cq: &mut Cq, number: u64) {
    let mut batch = qp.start_send();
    batch.send_inline(number, &number.to_be_bytes(), SendFlags::SIGNALED).unwrap();
    batch.ring().unwrap();
    assert_eq!(done(cq).wr_id, number);
}

#[kernel_test]
fn srq_serves_several_qps() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let mut srq = host.pd.create_srq(&SrqInit::new(16)).unwrap();
        let memory = host.memory(512 * 64);
        let mut connections = [(); 3].map(|()| connection(host, &client_cq, &server_cq, &srq));
        post(&mut srq, &memory, 0..12);
        for number in 0..12 {
            let (client, server) = &mut connections[number as usize % 3];
            send(client, &mut client_cq, number);
            let received = done(&mut server_cq);
            assert_eq!((received.wr_id, received.qp_num), (number, server.qp_num()));
            assert_eq!(bytes(&memory, place(number), 8), number.to_be_bytes());
        }
        drop(connections);
    });
}

#[kernel_test]
fn srq_receives_datagrams() {
    on_device(|host| {
        let (mut from_cq, mut to_cq) = (host.cq(), host.cq());
        let mut srq = host.pd.create_srq(&SrqInit::new(16)).unwrap();
        let memory = host.memory(512 * 64);
        let mut from = host.datagrams(&from_cq, QKEY);
        let init = QpInit { cap: CAP, srq: Some(&srq), ..QpInit::new(&to_cq, &to_cq) };
        let mut peers = [(); 2].map(|()| host.pd.create_qp::<Ud>(&init).unwrap());
        peers.iter_mut().for_each(|peer| ready(peer, QKEY));
        post(&mut srq, &memory, 0..2);
        let ah = host.pd.create_ah(&host.here()).unwrap();
        for (number, peer) in peers.iter().enumerate() {
            let mut batch = from.start_send();
            let to = Datagram::new(&ah, peer.qp_num(), QKEY);
            batch.send_to_inline(9, to, b"datagram", SendFlags::SIGNALED).unwrap();
            batch.ring().unwrap();
            assert_eq!(done(&mut from_cq).wr_id, 9);
            let received = done(&mut to_cq);
            assert_eq!((received.wr_id, received.qp_num), (number as u64, peer.qp_num()));
            assert_eq!(bytes(&memory, place(number as u64) + GRH_BYTES, 8), b"datagram");
        }
        drop((from, peers));
    });
}

#[kernel_test]
fn srq_limit_event_is_raised_once() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let init = SrqInit { user_data: 0xfeed, ..SrqInit::new(16) };
        let mut srq = host.pd.create_srq(&init).unwrap();
        let memory = host.memory(512 * 64);
        let (mut client, server) = connection(host, &client_cq, &server_cq, &srq);
        post(&mut srq, &memory, 0..10);
        srq.set_limit(8).unwrap();
        assert_eq!(srq.query().unwrap().limit, 8);
        let events = host.context.async_events();
        for number in 0..2 {
            send(&mut client, &mut client_cq, number);
            done(&mut server_cq);
        }
        assert_eq!(events.try_wait().unwrap(), None, "8 are left");
        for number in 2..5 {
            send(&mut client, &mut client_cq, number);
            done(&mut server_cq);
        }
        let event = events.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("fewer than 8 are left");
        assert!(matches!(event, AsyncEvent::Srq { user_data: 0xfeed, .. }), "{event:?}");
        assert_eq!(events.next().wait_timeout(Duration::from_millis(200)).transpose().unwrap(), None, "once");
        assert_eq!(srq.query().unwrap().limit, 0, "the limit is gone");
        drop((client, server));
    });
}

#[kernel_test(device::srq_resize)]
fn srq_resize_preserves_receives() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let mut srq = host.pd.create_srq(&SrqInit::new(15)).unwrap();
        let memory = host.memory(512 * 64);
        let (mut client, server) = connection(host, &client_cq, &server_cq, &srq);
        // The indices are in the middle of the ring, and the receives wrap around its end.
        post(&mut srq, &memory, 0..10);
        for number in 0..10 {
            send(&mut client, &mut client_cq, number);
            assert_eq!(done(&mut server_cq).wr_id, number);
        }
        let full = 10 + u64::from(srq.capacity());
        post(&mut srq, &memory, 10..full);
        srq.resize(100).unwrap();
        assert!(srq.capacity() >= 100);
        assert_eq!(srq.query().unwrap().max_wr, srq.capacity());
        let more = full + u64::from(srq.capacity()) - (full - 10);
        post(&mut srq, &memory, full..more);
        // SAFETY: the request is rejected.
        let refused = unsafe { srq.post_recv(&[RecvRequest { wr_id: 0, sges: &[] }]) }.unwrap_err();
        assert!(matches!(refused.reason, PostReason::Queue(PushError::QueueFull { .. })));
        for number in 10..more {
            send(&mut client, &mut client_cq, number);
            assert_eq!(done(&mut server_cq).wr_id, number);
            assert_eq!(bytes(&memory, place(number), 8), number.to_be_bytes());
        }
        srq.resize(3).unwrap();
        assert!(srq.capacity() < 100);
        post(&mut srq, &memory, more..more + 1);
        send(&mut client, &mut client_cq, more);
        assert_eq!(done(&mut server_cq).wr_id, more);
        drop((client, server));
    });
}

#[kernel_test(device::srq_resize)]
fn srq_is_resized_under_traffic() {
    on_device(|host| {
        const MESSAGES: u64 = 400;
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let mut srq = host.pd.create_srq(&SrqInit::new(40)).unwrap();
        let memory = host.memory(512 * 64);
        let (mut client, server) = connection(host, &client_cq, &server_cq, &srq);
        post(&mut srq, &memory, 0..20);
        let sender = std::thread::spawn(move || {
            for number in 0..MESSAGES {
                send(&mut client, &mut client_cq, number);
            }
            drop(client);
        });
        for number in 0..MESSAGES {
            assert_eq!(done(&mut server_cq).wr_id, number);
            assert_eq!(bytes(&memory, place(number), 8), number.to_be_bytes());
            post(&mut srq, &memory, number + 20..number + 21);
            if number % 7 == 0 {
                srq.resize(if number % 2 == 0 { 200 } else { 40 }).unwrap();
            }
        }
        sender.join().unwrap();
        drop(server);
    });
}

#[kernel_test(device::srq_resize)]
fn srq_resize_below_posted_receives_is_rejected() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let mut srq = host.pd.create_srq(&SrqInit::new(63)).unwrap();
        let memory = host.memory(512 * 64);
        let (mut client, server) = connection(host, &client_cq, &server_cq, &srq);
        post(&mut srq, &memory, 0..40);
        let before = srq.capacity();
        let Err(error) = srq.resize(10) else { panic!("40 receives have no room there") };
        assert!(error.to_string().contains("40 posted receives exceed"), "{error}");
        assert_eq!(srq.capacity(), before);
        for number in 0..40 {
            send(&mut client, &mut client_cq, number);
            assert_eq!(done(&mut server_cq).wr_id, number);
        }
        srq.resize(10).unwrap();
        drop((client, server));
    });
}

#[kernel_test]
fn create_srq_checks_limits() {
    on_device(|host| {
        let attr = host.context.query_device().unwrap();
        let refused = |init| host.pd.create_srq(&init).expect_err("refused");
        assert!(matches!(refused(SrqInit::new(0)), Error::Invalid { .. }));
        assert!(matches!(refused(SrqInit::new(attr.max_srq_wr + 1)), Error::Limit { .. }));
        let init = SrqInit { max_sge: attr.max_srq_sge + 1, ..SrqInit::new(4) };
        assert!(matches!(refused(init), Error::Limit { .. }));
        assert!(matches!(refused(SrqInit { limit: 5, ..SrqInit::new(4) }), Error::Invalid { .. }));

        let mut srq = host.pd.create_srq(&SrqInit { max_sge: 3, ..SrqInit::new(4) }).unwrap();
        assert!(srq.capacity() >= 4 && srq.max_sge() >= 3);
        assert_eq!(srq.query().unwrap().max_sge, srq.max_sge());
        assert!(matches!(srq.resize(0), Err(Error::Invalid { .. })));
        assert!(matches!(srq.resize(attr.max_srq_wr + 1), Err(Error::Limit { .. })));
        assert!(matches!(srq.set_limit(srq.capacity() + 1), Err(Error::Invalid { .. })));
    });
}

#[kernel_test]
fn qp_with_srq_rejects_post_recv() {
    on_device(|host| {
        let cq = host.cq();
        let srq = host.pd.create_srq(&SrqInit::new(4)).unwrap();
        let (client, mut server) = connection(host, &cq, &cq, &srq);
        // SAFETY: the request is rejected.
        let refused = unsafe { server.post_recv(&[RecvRequest { wr_id: 0, sges: &[] }]) }.unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (0, PostReason::UsesSrq));
        assert_eq!(server.cap().max_recv_wr, 0);
        drop((client, server));
    });
}

#[kernel_test]
fn receive_limits_are_ignored_with_an_srq() {
    on_device(|host| {
        let cq = host.cq();
        let srq = host.pd.create_srq(&SrqInit::new(4)).unwrap();
        let cap = QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..CAP };
        let with = |srq| QpInit { cap, srq, ..QpInit::new(&cq, &cq) };
        let granted = [
            host.pd.create_qp::<Rc>(&with(Some(&srq))).unwrap().cap(),
            host.pd.create_qp::<Ud>(&with(Some(&srq))).unwrap().cap(),
        ];
        assert_eq!(granted.map(|cap| (cap.max_recv_wr, cap.max_recv_sge)), [(0, 0); 2]);
        let refused = host.pd.create_qp::<Rc>(&with(None)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Limit { .. }), "{refused}");
    });
}

#[kernel_test]
fn srq_and_its_qps_drop_in_any_order() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let mut srq = host.pd.create_srq(&SrqInit::new(4)).unwrap();
        let memory = host.memory(512 * 64);
        let (mut client, server) = connection(host, &client_cq, &server_cq, &srq);
        post(&mut srq, &memory, 0..1);
        drop(srq);
        send(&mut client, &mut client_cq, 0);
        assert_eq!(done(&mut server_cq).wr_id, 0, "what was posted is still good");
        assert_eq!(bytes(&memory, place(0), 8), 0_u64.to_be_bytes());
        drop((server, client));

        let srq = host.pd.create_srq(&SrqInit::new(4)).unwrap();
        drop(connection(host, &client_cq, &server_cq, &srq));
        drop(srq);
    });
}
