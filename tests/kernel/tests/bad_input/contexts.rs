//! Objects that are used with another context or PD than their own.

use bareverbs::cq::{Completion, CqInit};
use bareverbs::mw::{Mw, MwType};
use bareverbs::qp::{
    Datagram, Operation, Payload, QpCap, QpInit, QpState, Rc, RecvRequest, SendFlags, Ud, UdInitAttr,
};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Error, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, join, open, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Outcome, device, kernel_test, skip};

use crate::refusals::invalid;

#[kernel_test]
fn create_qp_rejects_queues_of_another_context() {
    nothing_leaks(|| {
        let (here, elsewhere) = (domain(), domain());
        // The queue's handle in the other context is the handle of another queue in this one.
        let (own, _other) = (here.context(), elsewhere.context());
        let good = own.create_cq(&CqInit::new(16)).unwrap();
        let foreign = elsewhere.context().create_cq(&CqInit::new(16)).unwrap();
        let srq = elsewhere.create_srq(&SrqInit::new(16)).unwrap();
        let remedy = "belongs to another context: create it in the same context";
        for (init, what) in [
            (QpInit::new(&foreign, &good), "send CQ"),
            (QpInit::new(&good, &foreign), "receive CQ"),
            (QpInit { srq: Some(&srq), ..QpInit::new(&good, &good) }, "SRQ"),
        ] {
            invalid(here.create_qp::<Rc>(&init), &format!("create_qp: the {what} {remedy}"));
        }
        let channel = elsewhere.context().create_comp_channel().unwrap();
        let init = CqInit { channel: Some(&channel), ..CqInit::new(16) };
        invalid(own.create_cq(&init), &format!("create_cq: the completion channel {remedy}"));
        // A clone is the same context.
        let clone = own.clone();
        let channel = clone.create_comp_channel().unwrap();
        own.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(16) }).unwrap();
        clone.alloc_pd().unwrap().create_qp::<Rc>(&QpInit::new(&good, &good)).unwrap();
    });
}

#[kernel_test]
fn rereg_mr_rejects_pd_of_another_context() -> Outcome {
    nothing_leaks(|| {
        let (here, elsewhere) = (domain(), domain());
        let mut memory = region(&here, &[7; 64], ALL_REMOTE);
        let text = "rereg_mr: the PD and the MR belong to different contexts";
        invalid(memory.move_to(&elsewhere), text);
        match memory.move_to(&here) {
            Err(refused @ Error::Unsupported { .. }) => skip(refused.to_string()),
            moved => {
                moved.unwrap();
                Ok(bareverbs_kernel_tests::Completion::Completed)
            }
        }
    })
}

#[kernel_test]
fn srq_of_another_pd_uses_its_own_mrs() {
    nothing_leaks(|| {
        let pd = domain();
        let other = pd.context().alloc_pd().unwrap();
        let mut srq = other.create_srq(&SrqInit::new(16)).unwrap();
        let (mut a, mut b) = (
            bareverbs_kernel_tests::loopback::side(&pd, Plan::default()),
            bareverbs_kernel_tests::loopback::side(&pd, Plan::default()),
        );
        b.qp = pd.create_qp::<Rc>(&QpInit { srq: Some(&srq), ..QpInit::new(&b.cq, &b.cq) }).unwrap();
        join(&mut a, &mut b);
        // The device decides whose PD counts; the result must be a status.
        let memory = region(&other, &[0; 16], Access::LOCAL_WRITE);
        // SAFETY: the region outlives the queue, and its bytes are only copied.
        unsafe { srq.post_recv(&[RecvRequest { wr_id: 1, sges: &[memory.sge(..).unwrap()] }]) }.unwrap();
        a.send(&[request(2, Operation::Send, Payload::Inline(&[b"hello"]))]).unwrap();
        let (sent, received) = (a.ends(1)[0].1, b.ends(1)[0].1);
        assert_eq!(sent == WcStatus::SUCCESS, received == WcStatus::SUCCESS, "{sent:?} {received:?}");
        let arrived = contents(&memory)[..5] == *b"hello";
        assert_eq!(arrived, received == WcStatus::SUCCESS, "{received:?}");
    });
}

#[kernel_test(device::memory_windows)]
fn mw_bind_validates_pd_and_access() {
    nothing_leaks(|| {
        let pd = domain();
        let other = pd.context().alloc_pd().unwrap();
        let bindable = Access::LOCAL_WRITE | Access::MW_BIND;
        let good = region(&pd, &[0; 64], bindable);
        let foreign = region(&other, &[0; 64], bindable);
        let plain = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let read_only = region(&pd, &[0; 64], Access::MW_BIND);
        for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
            let window: Mw = pd.alloc_mw(mw_type).unwrap();
            let read = Access::REMOTE_READ;
            invalid(window.bind(&foreign, .., read), "bind_mw: the MR and the MW belong to different PDs");
            invalid(window.bind(&plain, .., read), "bind_mw: the MR was registered without MW_BIND");
            for writes in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
                let text = format!("bind_mw: {writes:?} requires an MR registered with LOCAL_WRITE");
                invalid(window.bind(&read_only, .., writes | read), &text);
            }
            for access in [Access::LOCAL_WRITE, Access::MW_BIND, Access::from_bits_retain(1 << 31)] {
                let text = format!("bind_mw: an MW cannot grant access {access:?}");
                invalid(window.bind(&good, .., access | read), &text);
            }
            let empty = "bind_mw: an MW is bound to at least 1 byte; unbind a type 1 MW with `unbind`";
            invalid(window.bind(&good, 5..5, read), empty);
            invalid(window.bind(&good, 60..65, read), "bind_mw: bytes 60..65 exceed the length of 64 bytes");
            invalid(
                window.bind(&good, 1..=usize::MAX, read),
                "bind_mw: bytes 1.. exceed the length of 64 bytes",
            );
            window.bind(&read_only, .., read).unwrap();
            window.bind(&good, 63.., ALL_REMOTE.difference(Access::LOCAL_WRITE)).unwrap();
        }
        for strange in [0, 3, 77, 255] {
            let mw_type = MwType(strange);
            let text = format!("alloc_mw: invalid memory window type {mw_type:?}: use TYPE_1 or TYPE_2");
            invalid(pd.alloc_mw(mw_type), &text);
        }
    });
}

/// A datagram over an address handle of another PD.
#[kernel_test(device::soft_roce_validates_ah)]
fn ah_of_another_pd_fails_the_send() {
    nothing_leaks(|| {
        let pd = domain();
        let own_context = pd.context();
        for other in [own_context.alloc_pd().unwrap(), open().alloc_pd().unwrap()] {
            let mut cq = own_context.create_cq(&CqInit::new(16)).unwrap();
            let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
            let mut qp = pd.create_qp::<Ud>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
            qp.init(&UdInitAttr::new(1, 7)).unwrap();
            qp.ready_to_receive().unwrap();
            qp.ready_to_send(0).unwrap();
            let gid = own_context.default_gid(1).unwrap();
            let way = bareverbs::ah::AhAttr::global(1, gid.gid, gid.index);
            let ah = other.create_ah(&way).unwrap();
            let to = Datagram::new(&ah, qp.qp_num(), 7);
            let mut batch = qp.start_send();
            batch.send_to_inline(1, to, b"hello", SendFlags::SIGNALED).unwrap();
            batch.ring().unwrap();
            let begin = std::time::Instant::now();
            let status = loop {
                if let Some(completion) = cq.poll().next() {
                    break completion.status();
                }
                assert!(begin.elapsed() < bareverbs_kernel_tests::TIMEOUT, "no completion");
            };
            assert_ne!(status, WcStatus::SUCCESS);
            assert_eq!(qp.query().unwrap().0.qp_state, QpState::ERR);
        }
    });
}
