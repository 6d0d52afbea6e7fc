//! The contents of a slot for every operation, byte for byte.
//!
//! The offsets are those of the C structs in the kernel's `rdma_user_rxe.h`. Slots are filled with
//! 0xAA first, so that unwritten bytes are detected.

use bareverbs_provider::traits::{RecvQueue, SendQueue};
use bareverbs_provider::work::{
    AccessFlags, Datagram, Imm, MwBind, MwType, Operation, Payload, PlacementType, PushError, RecvRequest,
    Remote, SelectivityLevel, SendFlags, SendRequest, Sge,
};
use bareverbs_rxe::testing::{CountingDoorbell, PlainMemory};
use bareverbs_rxe::{RxeAh, RxeRq, RxeSq, SendLimits};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::WcStatus;
use bareverbs_uapi::write::types::DeviceCapFlags;

const BLANK: u8 = 0xaa;
const REMOTE: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc };
const SGES: [Sge; 2] =
    [Sge { addr: 0x1000, length: 16, lkey: 7 }, Sge { addr: 0x2000_0000_0000, length: 5, lkey: 9 }];

/// The expected bytes of a slot.
struct Slot(Vec<u8>);

impl Slot {
    fn blank(len: usize) -> Self {
        Self(vec![BLANK; len])
    }

    fn put(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u32(self, offset: usize, value: u32) -> Self {
        self.put(offset, &value.to_ne_bytes())
    }

    fn u64(self, offset: usize, value: u64) -> Self {
        self.put(offset, &value.to_ne_bytes())
    }

    /// The fields of every send WQE: number, opcode, flags, key or immediate data, and zeros in the
    /// fields that the kernel reads before it writes them (status, state, ssn and the read/atomic
    /// mark).
    fn send(self, wr_id: u64, opcode: u32, flags: u32, ex: u32) -> Self {
        self.u64(0, wr_id).u32(8, 0).u32(12, opcode).u32(16, flags).u32(20, ex).u64(144, 0).u64(176, 0)
    }

    fn iova(self, value: u64) -> Self {
        self.u64(152, value)
    }

    fn rdma(self) -> Self {
        self.u64(24, REMOTE.addr).u32(32, REMOTE.rkey).u32(36, 0).iova(REMOTE.addr)
    }

    /// Length, remaining bytes, current SGE, number of SGEs, offset, reserved.
    fn dma(self, offset: usize, length: u32, num_sge: u32) -> Self {
        self.u32(offset, length)
            .u32(offset + 4, length)
            .u32(offset + 8, 0)
            .u32(offset + 12, num_sge)
            .u32(offset + 16, 0)
            .u32(offset + 20, 0)
    }

    fn sges(mut self, offset: usize, sges: &[Sge]) -> Self {
        for (i, sge) in sges.iter().enumerate() {
            let at = offset + 16 * i;
            self = self.u64(at, sge.addr).u32(at + 8, sge.length).u32(at + 12, sge.lkey);
        }
        self
    }
}

fn send_queue(qp_type: QpType) -> (RxeSq<CountingDoorbell, PlainMemory>, PlainMemory) {
    let memory = PlainMemory::new(7, 208 + 64);
    memory.fill(BLANK);
    let limits = SendLimits::new(qp_type, 4, 64).expect("a type that rxe has");
    // SAFETY: the memory is plain, and this is the only queue in it.
    let queue = unsafe { RxeSq::new(memory.clone(), 7, limits, CountingDoorbell::default()) }
        .expect("a sound header");
    (queue, memory)
}

#[track_caller]
fn shows(request: SendRequest<'_>, expected: Slot) {
    let (mut queue, memory) = send_queue(QpType::RC);
    // SAFETY: no kernel executes the request.
    unsafe { queue.push(&request) }.expect("a request within the limits");
    queue.ring().expect("the doorbell answers well");
    assert_eq!(memory.slot_bytes(0), expected.0);
}

fn request<'a>(operation: Operation, payload: Payload<'a>) -> SendRequest<'a> {
    SendRequest { wr_id: 0x0102_0304_0506_0708, operation, flags: SendFlags::SIGNALED, payload }
}

fn slot(opcode: u32, ex: u32) -> Slot {
    Slot::blank(512).send(0x0102_0304_0506_0708, opcode, 2, ex)
}

#[test]
fn send() {
    let expected = slot(2, 0).iova(0).dma(184, 21, 2).sges(208, &SGES);
    shows(request(Operation::Send, Payload::Sges(&SGES)), expected);
}

#[test]
fn send_of_no_bytes() {
    shows(request(Operation::Send, Payload::Sges(&[])), slot(2, 0).iova(0).dma(184, 0, 0));
}

#[test]
fn immediate_data_is_written_in_network_byte_order() {
    let expected = slot(3, 0).put(20, &[1, 2, 3, 4]).iova(0).dma(184, 16, 1).sges(208, &SGES[..1]);
    shows(request(Operation::SendImm(Imm(0x0102_0304)), Payload::Sges(&SGES[..1])), expected);
}

#[test]
fn send_with_invalidate() {
    let expected = slot(9, 0xdead_beef).iova(0).dma(184, 16, 1).sges(208, &SGES[..1]);
    shows(request(Operation::SendInv(0xdead_beef), Payload::Sges(&SGES[..1])), expected);
}

#[test]
fn write() {
    let expected = slot(0, 0).rdma().dma(184, 21, 2).sges(208, &SGES);
    shows(request(Operation::Write(REMOTE), Payload::Sges(&SGES)), expected);
}

#[test]
fn write_with_immediate_data() {
    let expected = slot(1, 0x0a0b_0c0d_u32.to_be()).rdma().dma(184, 21, 2).sges(208, &SGES);
    shows(request(Operation::WriteImm(REMOTE, Imm(0x0a0b_0c0d)), Payload::Sges(&SGES)), expected);
}

#[test]
fn read() {
    let expected = slot(4, 0).rdma().dma(184, 21, 2).sges(208, &SGES);
    shows(request(Operation::Read(REMOTE), Payload::Sges(&SGES)), expected);
}

#[test]
fn compare_and_swap() {
    let result = [Sge { addr: 0x3000, length: 8, lkey: 3 }];
    let expected = slot(5, 0)
        .u64(24, REMOTE.addr)
        .u64(32, 17)
        .u64(40, 18)
        .u32(48, REMOTE.rkey)
        .u32(52, 0)
        .iova(REMOTE.addr)
        .dma(184, 8, 1)
        .sges(208, &result);
    let operation = Operation::CmpSwp { remote: REMOTE, compare: 17, swap: 18 };
    shows(request(operation, Payload::Sges(&result)), expected);
}

#[test]
fn fetch_and_add() {
    let result = [Sge { addr: 0x3000, length: 8, lkey: 3 }];
    let expected = slot(6, 0)
        .u64(24, REMOTE.addr)
        .u64(32, 99)
        .u64(40, 0)
        .u32(48, REMOTE.rkey)
        .u32(52, 0)
        .iova(REMOTE.addr)
        .dma(184, 8, 1)
        .sges(208, &result);
    shows(request(Operation::FetchAdd { remote: REMOTE, add: 99 }, Payload::Sges(&result)), expected);
}

#[test]
fn local_invalidate() {
    let expected = slot(7, 0xdead_be00).iova(0).dma(184, 0, 0);
    shows(request(Operation::LocalInv(0xdead_be00), Payload::Sges(&[])), expected);
}

#[test]
fn bind_of_a_memory_window() {
    let bind = MwBind {
        mw_type: MwType::TYPE_2,
        mw_rkey: 0x1100,
        rkey: 0x1101,
        mr_lkey: 0x2200,
        addr: REMOTE.addr,
        length: 0x1_0000_0001,
        access: AccessFlags::REMOTE_WRITE,
    };
    let expected = slot(8, 0)
        .u64(24, REMOTE.addr)
        .u64(32, 0x1_0000_0001)
        .u32(40, 0x2200)
        .u32(44, 0x1100)
        .u32(48, 0x1101)
        .u32(52, 2)
        .iova(0)
        .dma(184, 0, 0);
    shows(request(Operation::BindMw(bind), Payload::Sges(&[])), expected);
}

fn capable_shows(request: SendRequest<'_>, expected: Slot) {
    let memory = PlainMemory::new(7, 208 + 64);
    memory.fill(BLANK);
    let capabilities = DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::ATOMIC_WRITE;
    let limits =
        SendLimits::new(QpType::RC, 4, 64).expect("a type that rxe has").with_capabilities(capabilities);
    let mut queue =
        // SAFETY: the memory is plain, and this is the only queue in it.
        unsafe { RxeSq::new(memory.clone(), 7, limits, CountingDoorbell::default()) }.expect("a sound header");
    // SAFETY: no kernel executes the request.
    unsafe { queue.push(&request) }.expect("a request within the limits");
    queue.ring().expect("the doorbell answers well");
    assert_eq!(memory.slot_bytes(0), expected.0);
}

#[test]
fn flush() {
    let operation = Operation::Flush {
        remote: REMOTE,
        length: 0x1234,
        placement: PlacementType::PERSISTENT,
        level: SelectivityLevel::MR,
    };
    let expected = slot(14, 0)
        .u64(24, REMOTE.addr)
        .u32(32, 0x1234)
        .u32(36, REMOTE.rkey)
        .put(40, &[2, 1, 0, 0, 0, 0, 0, 0])
        .iova(REMOTE.addr)
        .dma(184, 0x1234, 0);
    capable_shows(request(operation, Payload::Sges(&[])), expected);
}

#[test]
fn atomic_write_value_follows_the_wqe() {
    let operation = Operation::AtomicWrite { remote: REMOTE, value: *b"8 bytes!" };
    let expected = slot(15, 0).rdma().dma(184, 8, 0).put(208, b"8 bytes!");
    capable_shows(request(operation, Payload::Sges(&[])), expected);
}

#[test]
fn flush_and_atomic_write_need_device_support() {
    let operation = Operation::AtomicWrite { remote: REMOTE, value: [0; 8] };
    assert_eq!(
        refused(QpType::RC, operation, Payload::Sges(&[])),
        PushError::Unsupported { operation: "an atomic write" }
    );
    let unreliable = SendLimits::new(QpType::UC, 4, 64).expect("a type that rxe has");
    let memory = PlainMemory::new(7, 208 + 64);
    let limits = unreliable.with_capabilities(DeviceCapFlags::all());
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue =
        unsafe { RxeSq::new(memory, 7, limits, CountingDoorbell::default()) }.expect("a sound header");
    // SAFETY: no kernel executes the request.
    let refusal = unsafe { queue.push(&request(operation, Payload::Sges(&[]))) };
    assert_eq!(refusal, Err(PushError::Unsupported { operation: "an atomic write" }));
}

#[test]
fn operations_without_payload_reject_a_payload() {
    let expected = PushError::UnexpectedPayload { operation: "a local invalidate" };
    assert_eq!(refused(QpType::RC, Operation::LocalInv(1), Payload::Sges(&SGES)), expected);
    assert_eq!(refused(QpType::RC, Operation::LocalInv(1), Payload::Inline(&[b"x"])), expected);
}

#[test]
fn inline_parts_are_contiguous_and_set_the_inline_flag() {
    let parts: [&[u8]; 3] = [b"one", b"", b"two and three"];
    let expected = Slot::blank(512)
        .send(0x0102_0304_0506_0708, 2, 2 | 8, 0)
        .iova(0)
        .dma(184, 16, 0)
        .put(208, b"onetwo and three");
    shows(request(Operation::Send, Payload::Inline(&parts)), expected);
}

#[test]
fn inline_write_fills_the_slot_to_the_limit() {
    let bytes = [0x5a; 64];
    let expected =
        Slot::blank(512).send(0x0102_0304_0506_0708, 0, 2 | 8, 0).rdma().dma(184, 64, 0).put(208, &bytes);
    shows(request(Operation::Write(REMOTE), Payload::Inline(&[&bytes])), expected);
}

#[test]
fn caller_flags_never_set_inline() {
    let mut all = request(Operation::Send, Payload::Sges(&SGES));
    all.flags = SendFlags::from_bits_retain(u32::MAX);
    let expected = Slot::blank(512).send(all.wr_id, 2, 1 | 2 | 4, 0).iova(0).dma(184, 21, 2).sges(208, &SGES);
    shows(all, expected);
}

const AH: RxeAh = RxeAh { number: 0x0005_0007 };

fn datagram(imm: Option<Imm>) -> Datagram<'static, RxeAh> {
    Datagram { ah: &AH, qp_num: 0x0012_3456, qkey: 0x8765_4321, imm, header: &[] }
}

fn datagram_request<'a>(imm: Option<Imm>, payload: Payload<'a>) -> SendRequest<'a, Datagram<'static, RxeAh>> {
    SendRequest {
        wr_id: 0x0102_0304_0506_0708,
        operation: datagram(imm),
        flags: SendFlags::SIGNALED,
        payload,
    }
}

/// The peer's QPN and Q_Key, the P_Key index, and the number of the address handle. With a number,
/// the kernel ignores the address vector after it.
fn addressed(slot: Slot) -> Slot {
    slot.u32(24, 0x0012_3456).u32(28, 0x8765_4321).u32(32, 0).u32(36, 0x0005_0007).iova(0)
}

#[track_caller]
fn datagram_shows(request: SendRequest<'_, Datagram<'_, RxeAh>>, expected: Slot) {
    let (mut queue, memory) = send_queue(QpType::UD);
    // SAFETY: no kernel executes the request.
    unsafe { queue.push_datagram(&request) }.expect("a request within the limits");
    queue.ring().expect("the doorbell answers well");
    assert_eq!(memory.slot_bytes(0), expected.0);
}

#[test]
fn datagram_over_an_address_handle() {
    let expected = addressed(slot(2, 0)).dma(184, 21, 2).sges(208, &SGES);
    datagram_shows(datagram_request(None, Payload::Sges(&SGES)), expected);
}

#[test]
fn datagram_with_immediate_data_inline() {
    let imm = Imm(0x0102_0304);
    let expected = addressed(Slot::blank(512).send(0x0102_0304_0506_0708, 3, 2 | 8, imm.to_be()))
        .dma(184, 7, 0)
        .put(208, b"to whom");
    datagram_shows(datagram_request(Some(imm), Payload::Inline(&[b"to ", b"whom"])), expected);
}

#[test]
fn datagrams_above_the_mtu_are_rejected_and_not_published() {
    let memory = PlainMemory::new(7, 208 + 64);
    let limits = SendLimits::new(QpType::UD, 4, 64).expect("rxe has datagrams").with_mtu(60);
    let mut queue =
        // SAFETY: the memory is plain, and this is the only queue in it.
        unsafe { RxeSq::new(memory.clone(), 7, limits, CountingDoorbell::default()) }.expect("a sound header");
    let sges = |length| [Sge { addr: 0, length, lkey: 0 }, Sge { addr: 0, length: 40, lkey: 0 }];
    let too_long = Err(PushError::DatagramTooLong { given: 61, max: 60 });
    // SAFETY: no kernel executes the requests.
    unsafe {
        assert_eq!(queue.push_datagram(&datagram_request(None, Payload::Sges(&sges(21)))), too_long);
        assert_eq!(queue.push_datagram(&datagram_request(None, Payload::Inline(&[&[0; 61]]))), too_long);
    }
    queue.ring().expect("nothing to ring for");
    // SAFETY: the word is accessed through this function only.
    assert_eq!(unsafe { bareverbs_provider::barrier::read_peer_index(memory.producer()) }, 0);
    // SAFETY: no kernel executes the request.
    unsafe { queue.push_datagram(&datagram_request(None, Payload::Sges(&sges(20)))) }.expect("60 bytes fit");
}

#[test]
fn ud_and_connected_requests_are_rejected_on_the_other_transport() {
    let refusal = refused(QpType::UD, Operation::Send, Payload::Sges(&SGES));
    assert_eq!(refusal, PushError::Unsupported { operation: "a send" });
    for connected in [QpType::RC, QpType::UC] {
        let (mut queue, _) = send_queue(connected);
        // SAFETY: no kernel executes the request.
        let refusal = unsafe { queue.push_datagram(&datagram_request(None, Payload::Sges(&SGES))) };
        assert_eq!(refusal, Err(PushError::Unsupported { operation: "a datagram" }));
    }
}

#[test]
fn failure_status_is_read_from_the_slot_until_it_is_reused() {
    let (mut queue, memory) = send_queue(QpType::RC);
    memory.fill(0);
    let mut post = |wr_id| {
        let request = SendRequest { wr_id, ..request(Operation::Send, Payload::Sges(&SGES)) };
        // SAFETY: no kernel executes the request.
        unsafe { queue.push(&request) }.expect("there is room");
        queue.ring().expect("the doorbell answers well");
        queue.failure()
    };
    for wr_id in 0..7 {
        assert_eq!(post(wr_id), None);
    }
    // The status, followed by the state "error".
    let fails =
        |index, status: WcStatus| memory.put(index, 144, &[status.0, 4].map(u32::to_ne_bytes).concat());
    fails(3, WcStatus::LOC_QP_OP_ERR);
    fails(4, WcStatus::WR_FLUSH_ERR);
    memory.set_indices(7, 7);
    for wr_id in 10..14 {
        assert_eq!(post(wr_id), Some((3, WcStatus::LOC_QP_OP_ERR)));
    }
    assert_eq!(post(14), None);
}

#[test]
fn receive() {
    let memory = PlainMemory::new(3, 40 + 32);
    memory.fill(BLANK);
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeRq::new(memory.clone(), 3, 2) }.expect("a sound header");
    // SAFETY: no kernel executes the request.
    unsafe { queue.push(&RecvRequest { wr_id: 77, sges: &SGES }) }.expect("a request within the limits");
    queue.ring();
    let expected = Slot::blank(128).u64(0, 77).u64(8, 0).dma(16, 21, 2).sges(40, &SGES);
    assert_eq!(memory.slot_bytes(0), expected.0);
}

#[track_caller]
fn refused(qp_type: QpType, operation: Operation, payload: Payload<'_>) -> PushError {
    let (mut queue, memory) = send_queue(qp_type);
    // SAFETY: no kernel executes the request.
    let refusal = unsafe { queue.push(&request(operation, payload)) }.expect_err("to be refused");
    queue.ring().expect("nothing to ring for");
    // SAFETY: the word is accessed through this function only.
    let producer = unsafe { bareverbs_provider::barrier::read_peer_index(memory.producer()) };
    assert_eq!(producer, 0, "a refused request is not published");
    refusal
}

#[test]
fn oversized_requests_are_rejected_and_not_published() {
    let five = [SGES[0]; 5];
    assert_eq!(
        refused(QpType::RC, Operation::Send, Payload::Sges(&five)),
        PushError::TooManySges { given: 5, max: 4 }
    );
    let halves: [&[u8]; 2] = [&[0; 40], &[0; 25]];
    assert_eq!(
        refused(QpType::RC, Operation::Send, Payload::Inline(&halves)),
        PushError::InlineTooLong { given: 65, max: 64 }
    );
    let huge = [Sge { addr: 0, length: u32::MAX, lkey: 0 }; 2];
    assert_eq!(
        refused(QpType::RC, Operation::Write(REMOTE), Payload::Sges(&huge)),
        PushError::MessageTooLong { given: 2 * u64::from(u32::MAX), max: 1 << 31 }
    );
}

#[test]
fn operations_with_a_result_need_registered_memory_of_the_right_size() {
    let aligned = Remote { addr: 8, rkey: 0 };
    let add = |remote| Operation::FetchAdd { remote, add: 1 };
    let eight = [Sge { addr: 0, length: 8, lkey: 0 }];
    assert_eq!(
        refused(QpType::RC, Operation::Read(REMOTE), Payload::Inline(&[&[0; 8]])),
        PushError::InlineResult
    );
    assert_eq!(refused(QpType::RC, add(aligned), Payload::Inline(&[&[0; 8]])), PushError::InlineResult);
    assert_eq!(
        refused(QpType::RC, add(aligned), Payload::Sges(&SGES)),
        PushError::AtomicResult { given: 21 }
    );
    assert_eq!(
        refused(QpType::RC, add(Remote { addr: 12, rkey: 0 }), Payload::Sges(&eight)),
        PushError::AtomicAddress { addr: 12 }
    );
}

#[test]
fn uc_rejects_operations_without_uc_opcodes() {
    assert!(matches!(
        refused(QpType::UC, Operation::Read(REMOTE), Payload::Sges(&SGES)),
        PushError::Unsupported { operation: "an RDMA read" }
    ));
    assert!(matches!(
        refused(QpType::UC, Operation::SendInv(1), Payload::Sges(&SGES)),
        PushError::Unsupported { operation: "a send with invalidate" }
    ));
    let (mut queue, _) = send_queue(QpType::UC);
    // SAFETY: no kernel executes the request.
    unsafe { queue.push(&request(Operation::Write(REMOTE), Payload::Sges(&SGES))) }.expect("writes work");
}

#[test]
fn other_qp_types_are_rejected() {
    assert!(SendLimits::new(QpType::RAW_PACKET, 1, 0).is_none());
    assert!(SendLimits::new(QpType(77), 1, 0).is_none());
}
