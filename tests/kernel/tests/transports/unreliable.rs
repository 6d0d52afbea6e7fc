//! UC.

use bareverbs::cq::Cq;
use bareverbs::qp::{
    ConnectAttr, InitAttr, Operation, Payload, Qp, QpAttr, QpAttrMask, QpInit, QpState, RecvRequest,
    SendFlags, SendRequest, Uc, UcOperation, UcRtrAttr,
};
use bareverbs::values::{Mtu, RetryCount};
use bareverbs::{Access, Imm, WcOpcode};
use bareverbs_kernel_tests::kernel_test;

use crate::host::{CAP, Host, bytes, done, next, on_device, quiet};

fn pair(host: &Host, client_cq: &Cq, server_cq: &Cq) -> (Qp<Uc>, Qp<Uc>) {
    let qp = |cq| host.pd.create_qp::<Uc>(&QpInit { cap: CAP, ..QpInit::new(cq, cq) }).unwrap();
    let (mut client, mut server) = (qp(client_cq), qp(server_cq));
    let numbers = (client.qp_num(), server.qp_num());
    for (qp, peer) in [(&mut client, numbers.1), (&mut server, numbers.0)] {
        qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) }).unwrap();
        qp.ready_to_receive(&UcRtrAttr::new(host.here(), peer)).unwrap();
        qp.ready_to_send(0).unwrap();
    }
    (client, server)
}

fn post(qp: &mut Qp<Uc>, wr_id: u64, operation: UcOperation, payload: Payload<'_>) {
    let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
    // SAFETY: the memory stays registered until the completion.
    unsafe { qp.post_send(&[request]) }.unwrap();
}

#[kernel_test]
fn uc_carries_messages_and_writes() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let (mut client, mut server) = pair(host, &client_cq, &server_cq);
        let (mut from, to) = (host.memory(4096), host.memory(4096));
        from.write(0, b"message, written").unwrap();
        let half = to.sge(..8).unwrap();
        for wr_id in 1..=4 {
            // SAFETY: the memory is only copied from, after the completion.
            unsafe { server.post_recv(&[RecvRequest { wr_id, sges: &[half] }]) }.unwrap();
        }

        post(&mut client, 11, UcOperation::Send, Payload::Sges(&[from.sge(..7).unwrap()]));
        let received = done(&mut server_cq);
        assert_eq!((received.wr_id, received.byte_len, received.opcode), (1, 7, WcOpcode::RECV));
        assert_eq!(bytes(&to, 0, 8), b"message\0");

        let imm = Imm(0x0102_0304);
        post(&mut client, 12, UcOperation::SendImm(imm), Payload::Sges(&[from.sge(9..16).unwrap()]));
        let received = done(&mut server_cq);
        assert_eq!((received.wr_id, received.imm(), received.byte_len), (2, Some(imm), 7));
        assert_eq!(bytes(&to, 0, 8), b"written\0");

        let remote = to.remote(1000).unwrap();
        post(&mut client, 13, UcOperation::Write(remote), Payload::Sges(&[from.sge(..16).unwrap()]));
        let remote = to.remote(1016).unwrap();
        post(&mut client, 14, UcOperation::WriteImm(remote, imm), Payload::Inline(&[b"end"]));
        let received = done(&mut server_cq);
        assert_eq!((received.wr_id, received.opcode), (3, WcOpcode::RECV_RDMA_WITH_IMM));
        assert_eq!(bytes(&to, 1000, 19), b"message, writtenend");

        let mut batch = client.start_send();
        batch.send_inline(15, b"inline", SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        assert_eq!(done(&mut server_cq).wr_id, 4);
        assert_eq!(bytes(&to, 0, 8), b"inlinen\0");
        for wr_id in 11..=15 {
            assert_eq!(done(&mut client_cq).wr_id, wr_id);
        }
        drop((client, server));
    });
}

#[kernel_test]
fn uc_connects_by_exchanged_addresses() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let qp = |cq| host.pd.create_qp::<Uc>(&QpInit { cap: CAP, ..QpInit::new(cq, cq) }).unwrap();
        let (mut client, mut server) = (qp(&client_cq), qp(&server_cq));
        let gid_index = host.pd.context().default_gid(1).unwrap().index;
        let attr = ConnectAttr { access: Access::REMOTE_WRITE, ..ConnectAttr::new(1, gid_index) };
        let [mut to_client, to_server] = [&client, &server].map(|qp| qp.address(1, gid_index).unwrap());
        (to_client.psn, to_client.mtu) = (0xff_ffff, Mtu::Mtu512);
        client.connect(&to_client, &to_server, &attr).unwrap();
        server.connect(&to_server, &to_client, &attr).unwrap();
        let (reported, _) = server.query().unwrap();
        assert_eq!((reported.qp_state, reported.dest_qp_num), (QpState::RTS, client.qp_num()));
        assert_eq!((reported.rq_psn, reported.path_mtu), (0xff_ffff, Some(Mtu::Mtu512)));

        let (mut from, to) = (host.memory(4096), host.memory(4096));
        from.write(0, b"by address").unwrap();
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { server.post_recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(..).unwrap()] }]) }.unwrap();
        post(&mut client, 2, UcOperation::Send, Payload::Sges(&[from.sge(..1000).unwrap()]));
        assert_eq!((done(&mut client_cq).wr_id, done(&mut server_cq).byte_len), (2, 1000));
        assert_eq!(bytes(&to, 0, 10), b"by address");
        drop((client, server));
    });
}

#[kernel_test]
fn uc_message_of_many_packets_arrives() {
    on_device(|host| {
        const LEN: usize = 60_001;
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let (mut client, mut server) = pair(host, &client_cq, &server_cq);
        let (mut from, to) = (host.memory(65_536), host.memory(65_536));
        let text: Vec<u8> = (0..LEN).map(|i| (i * 31 % 251) as u8).collect();
        from.write(0, &text).unwrap();
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { server.post_recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(..).unwrap()] }]) }.unwrap();
        post(&mut client, 2, UcOperation::Send, Payload::Sges(&[from.sge(..LEN).unwrap()]));
        assert_eq!(done(&mut client_cq).wr_id, 2);
        assert_eq!(done(&mut server_cq).byte_len as usize, LEN);
        assert!(bytes(&to, 0, LEN) == text);
        drop((client, server));
    });
}

#[kernel_test]
fn uc_message_without_receive_is_dropped_silently() {
    on_device(|host| {
        let (mut client_cq, mut server_cq) = (host.cq(), host.cq());
        let (mut client, mut server) = pair(host, &client_cq, &server_cq);
        let to = host.memory(4096);
        post(&mut client, 1, UcOperation::Send, Payload::Inline(&[b"lost"]));
        assert_eq!(done(&mut client_cq).wr_id, 1);
        quiet(&mut server_cq);

        // SAFETY: the memory is only copied from, after the completion.
        unsafe { server.post_recv(&[RecvRequest { wr_id: 2, sges: &[to.sge(..).unwrap()] }]) }.unwrap();
        post(&mut client, 3, UcOperation::Send, Payload::Inline(&[b"found"]));
        assert_eq!(done(&mut client_cq).wr_id, 3);
        assert_eq!(next(&mut server_cq).wr_id, 2);
        assert_eq!(bytes(&to, 0, 5), b"found");
        drop((client, server));
    });
}

#[kernel_test]
fn uc_bring_up_sets_exactly_the_required_attributes() {
    on_device(|host| {
        let cq = host.cq();
        let mut qp = host.pd.create_qp::<Uc>(&QpInit { cap: CAP, ..QpInit::new(&cq, &cq) }).unwrap();
        qp.init(&InitAttr::new(1)).unwrap();
        qp.ready_to_receive(&UcRtrAttr { rq_psn: 7, ..UcRtrAttr::new(host.here(), 99) }).unwrap();
        let rts = QpAttr { qp_state: QpState::RTS, retry_cnt: RetryCount::MAX, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN | QpAttrMask::RETRY_CNT;
        qp.modify(&rts, mask).expect_err("nothing is retried");
        assert_eq!(qp.state(), QpState::RTR);
        qp.ready_to_send(0x0012_3456).unwrap();
        let (attr, _) = qp.query().unwrap();
        assert_eq!((attr.qp_state, attr.dest_qp_num, attr.rq_psn), (QpState::RTS, 99, 7));
        assert_eq!(attr.sq_psn, 0x0012_3456);
        assert_eq!(Operation::from(UcOperation::Send), Operation::Send);
    });
}
