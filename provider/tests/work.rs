//! Requests as values.

use bareverbs_provider::work::{
    AccessFlags, Datagram, Imm, MwBind, MwType, Operation, Payload, PlacementType, Remote, SelectivityLevel,
    SendFlags, SendRequest,
};

#[test]
fn datagram_over_another_ah_keeps_qpn_qkey_and_imm() {
    let first =
        Datagram { ah: &1_u8, qp_num: 0x12_3456, qkey: 0x8001_0000, imm: Some(Imm(7)), header: b"head" };
    let Datagram { ah, qp_num, qkey, imm, .. } = first.over(&"handle");
    assert_eq!((*ah, qp_num, qkey, imm), ("handle", 0x12_3456, 0x8001_0000, Some(Imm(7))));
}

#[test]
fn request_with_another_operation_keeps_all_other_fields() {
    let parts: [&[u8]; 1] = [b"payload"];
    let request = SendRequest {
        wr_id: u64::MAX,
        operation: Operation::Send,
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        payload: Payload::Inline(&parts),
    };
    let changed = request.with(Remote { addr: 1, rkey: 2 });
    assert_eq!((changed.operation.addr, changed.operation.rkey), (1, 2));
    assert_eq!((changed.wr_id, changed.flags), (u64::MAX, SendFlags::SIGNALED | SendFlags::FENCE));
    assert!(matches!(changed.payload, Payload::Inline([bytes]) if *bytes == b"payload"));
}

#[test]
fn constructors_name_their_operation() {
    let (remote, rkey) = (Remote { addr: 8, rkey: 9 }, 7);
    let bind = MwBind {
        mw_type: MwType::TYPE_2,
        mw_rkey: rkey,
        rkey: 8,
        mr_lkey: 3,
        addr: 16,
        length: 32,
        access: AccessFlags::REMOTE_READ,
    };
    let (placement, level) = (PlacementType::GLOBAL, SelectivityLevel::MR);
    let flush = Operation::Flush { remote, length: 64, placement, level };
    for (request, operation) in [
        (SendRequest::send_inv(5, rkey, &[]), Operation::SendInv(rkey)),
        (SendRequest::local_inv(5, rkey), Operation::LocalInv(rkey)),
        (SendRequest::bind_mw(5, bind), Operation::BindMw(bind)),
        (SendRequest::flush(5, remote, 64, placement, level), flush),
        (SendRequest::atomic_write(5, remote, [1; 8]), Operation::AtomicWrite { remote, value: [1; 8] }),
    ] {
        assert_eq!((request.wr_id, request.operation, request.flags), (5, operation, SendFlags::empty()));
        assert!(matches!(request.payload, Payload::Sges([])));
    }
}
