//! Requests as values.

use bareverbs_provider::work::{Datagram, Imm, Operation, Payload, Remote, SendFlags, SendRequest};

#[test]
fn datagram_over_another_ah_keeps_qpn_qkey_and_imm() {
    let first = Datagram { ah: &1_u8, qp_num: 0x12_3456, qkey: 0x8001_0000, imm: Some(Imm(7)) };
    let Datagram { ah, qp_num, qkey, imm } = first.over(&"handle");
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
