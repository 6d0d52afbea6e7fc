//! Decoding of calls.

use bareverbs_uapi::decode::{DecodeError, DecodedCall, DecodedValue, Layout, Memory, NoMemory, decode};
use bareverbs_uapi::ioctl::AttributeFlags;
use bareverbs_uapi::method::{Access, AttributeKind, Call, MethodInfo, PayloadSize};
use bareverbs_uapi::registry::{COMMANDS, OBJECTS};
use bareverbs_uapi::uverbs::types::{AccessFlags, DriverId, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::uverbs::{
    AsyncEventAlloc, CqCreate, InfoHandles, ObjectClass, PdDestroy, QpCreate, QueryGidEntry,
};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState, SendFlags};
use bareverbs_uapi::write::structs::{
    AllocPdReq, AllocPdResp, ModifyQpReq, PostSendReq, QueryPortReq, RegMrReq, RegMrResp, SendWr, Sge, Wc,
};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::{mlx5, rxe, write};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// The buffers of a call, by address.
struct Buffers(Vec<(u64, Vec<u8>)>);

impl Buffers {
    fn of(buffers: &[&[u8]]) -> Self {
        Self(
            buffers.iter().map(|bytes| (bytes.as_ptr().expose_provenance() as u64, bytes.to_vec())).collect(),
        )
    }
}

impl Memory for Buffers {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let source = self.0.iter().find(|(start, bytes)| *start == address && bytes.len() >= buffer.len());
        source.is_some_and(|(_, bytes)| {
            buffer.copy_from_slice(&bytes[..buffer.len()]);
            true
        })
    }
}

/// Memory with the same byte at every address.
struct Filled(u8);

impl Memory for Filled {
    fn read(&self, _address: u64, buffer: &mut [u8]) -> bool {
        buffer.fill(self.0);
        true
    }
}

fn printed(call: &[u8], memory: &dyn Memory) -> String {
    decode(call, memory).expect("the header is good").to_string()
}

/// Sets the flag by which the kernel marks output attribute number `index` as written.
fn written(call: &[u8], index: usize) -> Vec<u8> {
    let mut call = call.to_vec();
    let flags = (AttributeFlags::MANDATORY | AttributeFlags::VALID_OUTPUT).bits();
    call[24 + 16 * index + 4..][..2].copy_from_slice(&flags.to_ne_bytes());
    call
}

#[test]
fn objects_values_flags_and_structs_are_named() {
    let cap =
        QpCap { max_send_wr: 10, max_recv_wr: 20, max_send_sge: 1, max_recv_sge: 2, max_inline_data: 64 };
    let mut number = 0;
    let place = core::ptr::from_mut(&mut number).expose_provenance();
    let mut call = Call::<QpCreate>::new(DriverId::RXE.0);
    call.make(QpCreate::HANDLE)
        .handle(QpCreate::PD_HANDLE, 1)
        .input_struct(QpCreate::CAP, &cap)
        .constant(QpCreate::TYPE, QpType::RC)
        .flags(QpCreate::FLAGS, QpCreateFlags::SQ_SIG_ALL | QpCreateFlags::SCATTER_FCS)
        .descriptor(QpCreate::EVENT_FD, 5)
        .output(QpCreate::RESP_QP_NUM, &mut number);
    assert_eq!(
        printed(call.as_bytes(), &Buffers::of(&[cap.as_bytes()])),
        format!(
            "QpCreate on RXE {{HANDLE: new Qp 0, PD_HANDLE: Pd 1, CAP: QpCap {{ max_send_wr: 10, max_recv_wr: 20, \
             max_send_sge: 1, max_recv_sge: 2, max_inline_data: 64 }}, TYPE: RC, FLAGS: SCATTER_FCS | SQ_SIG_ALL, \
             EVENT_FD: AsyncEvent fd 5, RESP_QP_NUM: 4 bytes at {place:#x}}}"
        )
    );
}

#[test]
fn alternate_form_prints_one_line_per_field() {
    let request = RegMrReq {
        start: 4096,
        length: 100,
        hca_va: 4096,
        pd_handle: 2,
        access_flags: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
        ..RegMrReq::zeroed()
    };
    let mut response = RegMrResp::zeroed();
    let call = write::invoke::<write::RegMr>(DriverId::RXE.0, &request, &mut response);
    let response = RegMrResp { mr_handle: 3, lkey: 4, rkey: 5, driver_data: [] };
    let mut buffers = Buffers::of(&[request.as_bytes()]);
    let bytes = written(call.as_bytes(), 2);
    let place = u64::from_ne_bytes(bytes[24 + 2 * 16 + 8..].try_into().expect("8 bytes are left"));
    buffers.0.push((place, response.as_bytes().to_vec()));
    let decoded = decode(&bytes, &buffers).expect("the header is good");
    assert_eq!(
        format!("{decoded:#}"),
        "\
InvokeWrite on RXE {
    WRITE_CMD: RegMr,
    CORE_IN: RegMrReq {
        response: 0,
        start: 4096,
        length: 100,
        hca_va: 4096,
        pd_handle: 2,
        access_flags: LOCAL_WRITE | REMOTE_READ,
    },
    CORE_OUT: RegMrResp {
        mr_handle: 3,
        lkey: 4,
        rkey: 5,
    },
}"
    );
}

#[test]
fn response_is_printed_after_the_kernel_wrote_it() {
    let (request, mut response) = (AllocPdReq::zeroed(), AllocPdResp::zeroed());
    let call = write::invoke::<write::AllocPd>(DriverId::RXE.0, &request, &mut response);
    let (before, after) = (call.as_bytes().to_vec(), written(call.as_bytes(), 2));
    assert!(printed(&before, &Filled(0)).contains("CORE_OUT: 4 bytes at 0x"));
    assert!(printed(&after, &Filled(0)).contains("CORE_OUT: AllocPdResp { pd_handle: 0 }"));
}

#[test]
fn extended_commands_and_driver_payloads_are_printed() {
    let request = write::structs::ExQueryDevice::zeroed();
    let mut response = write::structs::ExQueryDeviceResp::zeroed();
    let payload = [0x12, 0xab];
    let mut call = write::invoke::<write::ex::QueryDevice>(DriverId::MLX5.0, &request, &mut response);
    call.driver_input(&payload);
    let printed = printed(call.as_bytes(), &NoMemory);
    assert!(
        printed.starts_with("InvokeWrite on MLX5 {WRITE_CMD: ex::QueryDevice, CORE_IN: ExQueryDevice"),
        "{printed}"
    );
    assert!(printed.ends_with("UHW_IN: 0x12ab}"), "{printed}");
}

#[test]
fn driver_payloads_are_printed_by_field() {
    let payload = mlx5::CreateCqReq { cqe_size: 128, ..mlx5::CreateCqReq::zeroed() };
    let bytes = [payload.as_bytes(), &[7]].concat();
    let mut call = Call::<CqCreate>::new(DriverId::MLX5.0);
    call.driver_input(&bytes);
    let text = printed(call.as_bytes(), &Buffers::of(&[&bytes]));
    assert!(text.contains("UHW_IN: CreateCqReq { ") && text.contains("cqe_size: 128"), "{text}");
    assert!(text.ends_with(" } and 0x07}"), "{text}");

    let request = write::structs::CreateCqReq::zeroed();
    let mut response = write::structs::CreateCqResp::zeroed();
    let mut driver = rxe::CreateCqResp { mi: rxe::MmapInfo { size: 4096, ..rxe::MmapInfo::zeroed() } };
    let mut call = write::invoke::<write::CreateCq>(DriverId::RXE.0, &request, &mut response);
    call.driver_output(driver.as_mut_bytes());
    let call = written(call.as_bytes(), 3);
    let text = printed(&call, &Buffers::of(&[driver.as_bytes()]));
    assert!(text.contains("UHW_OUT: CreateCqResp { mi: MmapInfo { offset: 0, size: 4096,"), "{text}");
}

#[test]
fn posted_requests_and_their_entries_follow_the_command() {
    let head = PostSendReq { qp_handle: 1, wr_count: 1, sge_count: 1, wqe_size: 56, ..PostSendReq::zeroed() };
    let wr = SendWr {
        wr_id: 9,
        num_sge: 1,
        opcode: WrOpcode::SEND,
        send_flags: SendFlags::SIGNALED,
        ..SendWr::zeroed()
    };
    let sge = Sge { addr: 8, length: 16, lkey: 32 };
    let request = [head.as_bytes(), wr.as_bytes(), sge.as_bytes()].concat();
    let call = write::invoke_bytes::<write::PostSend>(DriverId::RXE.0, &request, &mut []);
    assert_eq!(
        printed(call.as_bytes(), &Buffers::of(&[&request])),
        "InvokeWrite on RXE {WRITE_CMD: PostSend, CORE_IN: PostSendReq { response: 0, qp_handle: 1, wr_count: 1, \
         sge_count: 1, wqe_size: 56, wr: [SendWr { wr_id: 9, num_sge: 1, opcode: SEND, send_flags: SIGNALED, ex: 0, \
         wr: [0, 0, 0, 0] }], sge: [Sge { addr: 8, length: 16, lkey: 32 }] }}"
    );
}

#[test]
fn wrong_wr_counts_do_not_panic_the_decoder() {
    let head =
        PostSendReq { wr_count: u32::MAX, sge_count: u32::MAX, wqe_size: u32::MAX, ..PostSendReq::zeroed() };
    let request = [head.as_bytes(), &[1; 40]].concat();
    let call = write::invoke_bytes::<write::PostSend>(DriverId::RXE.0, &request, &mut []);
    assert!(printed(call.as_bytes(), &Buffers::of(&[&request])).contains("wr: ["));
}

#[test]
fn truncated_requests_print_the_fields_present() {
    let request = QueryPortReq { response: 0, port_num: 1, reserved: [0; 7], driver_data: [] };
    let cut = &request.as_bytes()[..9];
    let call = write::invoke_bytes::<write::QueryPort>(DriverId::RXE.0, cut, &mut []);
    let printed = printed(call.as_bytes(), &Buffers::of(&[cut]));
    assert!(printed.ends_with("CORE_IN: QueryPortReq { response: 0, port_num: 1 }}"), "{printed}");
}

#[test]
fn classes_print_as_names_and_unnamed_constants_as_numbers() {
    let mut call = Call::<InfoHandles>::new(DriverId::RXE.0);
    call.constant(InfoHandles::OBJECT_ID, ObjectClass::MR);
    assert_eq!(printed(call.as_bytes(), &NoMemory), "InfoHandles on RXE {OBJECT_ID: MR}");
    let mut call = Call::<QueryGidEntry>::new(DriverId::RXE.0);
    call.constant(QueryGidEntry::PORT, 1).flags(QueryGidEntry::FLAGS, 0);
    assert_eq!(printed(call.as_bytes(), &NoMemory), "QueryGidEntry on RXE {PORT: 1, FLAGS: 0}");
}

#[test]
fn driver_attributes_on_core_methods_are_decoded_by_driver_id() {
    let index = 3;
    let mut call = Call::<CqCreate>::new(DriverId::MLX5.0);
    call.input(mlx5::attributes::CqCreate::UAR_INDEX, &index);
    assert_eq!(printed(call.as_bytes(), &NoMemory), "CqCreate on MLX5 {UAR_INDEX: 3}");
    let mut call = Call::<CqCreate>::new(DriverId::RXE.0);
    call.input(mlx5::attributes::CqCreate::UAR_INDEX, &index);
    assert_eq!(
        printed(call.as_bytes(), &NoMemory),
        format!("CqCreate on RXE {{0x1002: 4 bytes, data {:#x}}}", word(3))
    );
}

/// A data word that begins with the 4 bytes of `value`.
fn word(value: u32) -> u64 {
    let [a, b, c, d] = value.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

#[test]
fn unknown_ids_are_printed_as_numbers() {
    let mut call = Call::<AsyncEventAlloc>::new(77);
    call.make_descriptor(AsyncEventAlloc::FD_HANDLE);
    assert_eq!(call.made_descriptor(AsyncEventAlloc::FD_HANDLE), -1, "the kernel wrote none");
    let mut bytes = call.as_bytes().to_vec();
    bytes[32..40].copy_from_slice(&0_u64.to_ne_bytes());
    assert_eq!(
        printed(&bytes, &NoMemory),
        "AsyncEventAlloc on DriverId(77) {FD_HANDLE: new AsyncEvent fd 0}"
    );
    bytes[4..6].copy_from_slice(&9_u16.to_ne_bytes());
    assert_eq!(printed(&bytes, &NoMemory), "AsyncEvent method 0x9 on DriverId(77) {0x0: 0 bytes, data 0x0}");
    bytes[2..4].copy_from_slice(&0x1005_u16.to_ne_bytes());
    assert_eq!(
        printed(&bytes, &NoMemory),
        "object 0x1005 method 0x9 on DriverId(77) {0x0: 0 bytes, data 0x0}"
    );
}

#[test]
fn malformed_headers_are_reported() {
    let mut call = Call::<AsyncEventAlloc>::new(14);
    let whole = call.make_descriptor(AsyncEventAlloc::FD_HANDLE).as_bytes();
    let error = |bytes: &[u8]| decode(bytes, &NoMemory).err();
    assert_eq!(error(&whole[..23]), Some(DecodeError::Header { given: 23 }));
    assert_eq!(error(&whole[..39]), Some(DecodeError::Truncated { length: 40, given: 39 }));
    let mut wrong = whole.to_vec();
    wrong[0] = wrong[0].wrapping_add(1);
    wrong[1] = wrong[1].wrapping_add(1);
    assert!(matches!(error(&wrong), Some(DecodeError::Length { attributes: 1, .. })));
    assert!(error(whole).is_none());
}

/// A call of `method` with all its attributes, each of the length that the kernel accepts.
fn every_attribute(method: &MethodInfo, data: u64) -> Vec<u8> {
    let n = method.attributes.len() as u16;
    let mut call = Vec::new();
    for half in [24 + 16 * n, method.object, method.id, n] {
        call.extend(half.to_ne_bytes());
    }
    call.extend([0; 8]);
    call.extend(DriverId::RXE.0.to_ne_bytes());
    call.extend([0; 4]);
    for attribute in method.attributes {
        let len = match attribute.kind {
            AttributeKind::Constant { .. } | AttributeKind::Flags { .. } => 8,
            AttributeKind::Input { size, .. } | AttributeKind::Output { size, .. } => match size {
                PayloadSize::Exact(size) | PayloadSize::AtLeast(size) => size,
                PayloadSize::Extensible { minimum, .. } | PayloadSize::Within { minimum, .. } => minimum,
            },
            _ => 0,
        };
        for half in [attribute.id, len as u16, 1, 0] {
            call.extend(half.to_ne_bytes());
        }
        call.extend(data.to_ne_bytes());
    }
    call
}

fn check_every_attribute(call: &DecodedCall<'_>, method: &MethodInfo, data: u64) {
    assert_eq!(call.method().map(|method| method.rust), Some(method.rust));
    let decoded: Vec<_> = call.attributes().collect();
    assert_eq!(decoded.len(), method.attributes.len());
    for (decoded, declared) in decoded.iter().zip(method.attributes) {
        assert_eq!(decoded.name(), Some(declared.rust));
        match (declared.kind, decoded.value()) {
            (
                AttributeKind::Handle { object, access },
                DecodedValue::Handle { object: o, access: a, handle },
            ) => {
                assert_eq!((object, access, data), (o, a, handle));
            }
            (
                AttributeKind::Descriptor { object, access },
                DecodedValue::Descriptor { object: o, access: a, fd },
            ) => {
                assert_eq!((object, access, data as i64), (o, a, fd));
            }
            (AttributeKind::RawDescriptor, DecodedValue::RawDescriptor(fd)) => assert_eq!(fd, data as i64),
            (
                AttributeKind::Constant { .. } | AttributeKind::Flags { .. },
                DecodedValue::Number { value, .. } | DecodedValue::Command { number: value, .. },
            ) => assert_eq!(value, data),
            (AttributeKind::Enumeration { .. }, DecodedValue::Element { element: 0, .. }) => {}
            (AttributeKind::Input { .. }, DecodedValue::Input(payload)) => {
                let mut buffer = [0; 64];
                match payload.address() {
                    Some(address) => assert_eq!(address, data),
                    None => assert_eq!(
                        payload.read(&mut buffer).expect("it stands in the attribute"),
                        &data.to_ne_bytes()[..payload.len()]
                    ),
                }
            }
            (AttributeKind::Output { .. }, DecodedValue::Output { payload, written: false }) => {
                assert_eq!(payload.address(), Some(data));
            }
            (kind, _) => panic!("{}::{}: {kind:?} came back as another", method.rust, declared.rust),
        }
    }
}

proptest! {
    #[test]
    fn every_attribute_decodes_to_its_name_and_value(data: u64) {
        for method in OBJECTS.into_iter().flat_map(|object| object.methods) {
            let bytes = every_attribute(method, data);
            check_every_attribute(&decode(&bytes, &NoMemory).expect("the header is good"), method, data);
        }
    }

    #[test]
    fn encoded_calls_decode_to_the_same_values(
        pd: u32, cq: u32, user_handle: u64, kind: u32, flags: u32, fd: i32, caps: [u32; 5]
    ) {
        let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = caps;
        let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
        let mut call = Call::<QpCreate>::new(DriverId::RXE.0);
        call.handle(QpCreate::PD_HANDLE, pd)
            .handle(QpCreate::SEND_CQ_HANDLE, cq)
            .input(QpCreate::USER_HANDLE, &user_handle)
            .constant(QpCreate::TYPE, QpType(kind))
            .flags(QpCreate::FLAGS, QpCreateFlags::from_bits_retain(flags))
            .descriptor(QpCreate::EVENT_FD, fd)
            .input_struct(QpCreate::CAP, &cap);
        let decoded = decode(call.as_bytes(), &NoMemory).expect("the header is good");
        let mut values = decoded.attributes().map(|attribute| (attribute.name(), attribute.value()));
        assert!(matches!(values.next(), Some((Some("PD_HANDLE"),
            DecodedValue::Handle { object: 1, access: Access::Read, handle })) if handle == u64::from(pd)));
        assert!(matches!(values.next(), Some((Some("SEND_CQ_HANDLE"),
            DecodedValue::Handle { object: 3, handle, .. })) if handle == u64::from(cq)));
        let Some((Some("USER_HANDLE"), DecodedValue::Input(payload))) = values.next() else {
            panic!("the user handle is an input");
        };
        assert_eq!(payload.read(&mut [0; 8]), Some(&user_handle.to_ne_bytes()[..]));
        assert!(matches!(values.next(), Some((Some("TYPE"),
            DecodedValue::Number { names: Some(_), value })) if value == u64::from(kind)));
        assert!(matches!(values.next(), Some((Some("FLAGS"),
            DecodedValue::Number { names: Some(_), value })) if value == u64::from(flags)));
        assert!(matches!(values.next(), Some((Some("EVENT_FD"),
            DecodedValue::Descriptor { object: 16, fd: f, .. })) if f == i64::from(fd)));
        let memory = Buffers::of(&[cap.as_bytes()]);
        let printed = printed(call.as_bytes(), &memory);
        for value in caps {
            prop_assert!(printed.contains(&format!(": {value}")), "{printed}");
        }
    }

    #[test]
    fn every_command_decodes_to_its_request(index in 0_usize..47, fill: u8) {
        let command = COMMANDS[index];
        let size = command.request.map_or(0, |info| info.size);
        let request = vec![fill; size];
        let mut call = Call::<bareverbs_uapi::uverbs::InvokeWrite>::new(DriverId::RXE.0);
        call.constant(bareverbs_uapi::uverbs::InvokeWrite::WRITE_CMD, command.number)
            .input_slice(bareverbs_uapi::uverbs::InvokeWrite::CORE_IN, &request);
        let memory = Buffers::of(&[&request]);
        let decoded = decode(call.as_bytes(), &memory).expect("the header is good");
        prop_assert_eq!(decoded.command().map(|found| found.c), Some(command.c));
        let printed = decoded.to_string();
        for field in command.request.expect("every command has a request").fields {
            prop_assert!(
                field.size == 0
                    || field.rust.starts_with("reserved")
                    || printed.contains(&format!("{}: ", field.rust)),
                "{printed}"
            );
        }
    }

    #[test]
    fn modify_qp_prints_state_names(state in 0_u8..7, mask: u32) {
        let state = QpState(state);
        let request = ModifyQpReq {
            qp_state: state,
            attr_mask: QpAttrMask::from_bits_retain(mask),
            ..ModifyQpReq::zeroed()
        };
        let call = write::invoke_without_response::<write::ModifyQp>(DriverId::RXE.0, &request);
        let printed = printed(call.as_bytes(), &Buffers::of(&[request.as_bytes()]));
        let name = state.name().expect("it is in range");
        prop_assert!(printed.contains(&format!(" qp_state: {name},")), "{printed}");
    }

    #[test]
    fn decoder_never_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), fill: u8) {
        if let Ok(call) = decode(&bytes, &Filled(fill)) {
            let _ = (call.to_string(), format!("{call:#}"));
        }
    }

    #[test]
    fn decoder_never_panics_on_any_attributes(
        object in prop_oneof![0_u16..20, 0x1000_u16..0x1008, any::<u16>()],
        method in prop_oneof![0_u16..8, 0x1000_u16..0x1004, any::<u16>()],
        driver in prop_oneof![Just(1_u32), Just(14), any::<u32>()],
        attributes in prop::collection::vec(
            (
                prop_oneof![0_u16..20, 0x1000_u16..0x1006, any::<u16>()],
                prop_oneof![0_u16..100, any::<u16>()],
                any::<u16>(),
                any::<u16>(),
                prop_oneof![0_u64..60, 0x8000_0000_u64..0x8000_0040, any::<u64>()],
            ),
            0..30,
        ),
        fill: u8,
    ) {
        let n = attributes.len() as u16;
        let mut bytes = Vec::new();
        for half in [24 + 16 * n, object, method, n] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes.extend([0; 8]);
        bytes.extend(driver.to_ne_bytes());
        bytes.extend([0; 4]);
        for (id, len, flags, element, data) in attributes {
            for half in [id, len, flags, element] {
                bytes.extend(half.to_ne_bytes());
            }
            bytes.extend(data.to_ne_bytes());
        }
        for memory in [&Filled(fill) as &dyn Memory, &NoMemory] {
            let call = decode(&bytes, memory).expect("the header is good");
            prop_assert_eq!(call.attributes().count(), usize::from(n));
            let (line, lines) = (call.to_string(), format!("{call:#}"));
            prop_assert!(!line.contains('\n'));
            prop_assert!(lines.len() >= line.len());
        }
    }
}

#[test]
fn decoded_calls_return_header_and_attributes_unchanged() {
    let cap = QpCap { max_send_wr: 10, ..QpCap::zeroed() };
    let mut call = Call::<QpCreate>::new(DriverId::RXE.0);
    call.handle(QpCreate::PD_HANDLE, 6).input_struct(QpCreate::CAP, &cap);
    let decoded = decode(call.as_bytes(), &NoMemory).unwrap();
    let header = decoded.header();
    assert_eq!(
        (header.num_attrs, header.driver_id, usize::from(header.length)),
        (2, DriverId::RXE.0, 24 + 2 * 16)
    );
    let attributes: Vec<_> = decoded.attributes().collect();
    let [handle, cap] = &attributes[..] else { panic!("{decoded}") };
    assert_eq!((handle.raw().attr_id, handle.raw().len, handle.raw().data), (QpCreate::PD_HANDLE.id(), 0, 6));
    assert_eq!(handle.info().unwrap().c, "UVERBS_ATTR_CREATE_QP_PD_HANDLE");
    let DecodedValue::Input(payload) = cap.value() else { panic!("{decoded}") };
    assert!(!payload.is_empty());
    assert!(matches!(payload.layout(), Layout::One(_)), "{:?}", payload.layout());
}

#[test]
fn immediate_data_is_in_network_byte_order() {
    let wc = Wc { ex: u32::from_ne_bytes([0x12, 0x34, 0x56, 0x78]), ..Wc::zeroed() };
    assert_eq!(wc.imm_data(), 0x1234_5678);
}

#[test]
fn calls_under_construction_print_names_and_values() {
    let mut call = Call::<PdDestroy>::new(DriverId::RXE.0);
    call.destroy(PdDestroy::HANDLE, 7);
    assert_eq!(format!("{call:?}"), "Call(PdDestroy on RXE {HANDLE: destroy Pd 7})");
    assert_eq!(format!("{:?}", PdDestroy::HANDLE), "Attr(0x0)");
    // The header's length is not that of one attribute.
    call.as_mut_bytes()[..2].copy_from_slice(&24_u16.to_ne_bytes());
    let text = "Call(the header's length of 24 bytes does not match 1 attributes)";
    assert_eq!(format!("{call:?}"), text);
    call.as_mut_bytes()[..2].copy_from_slice(&u16::MAX.to_ne_bytes());
    let text = "Call(the header's length of 65535 bytes does not match 1 attributes)";
    assert_eq!(format!("{call:?}"), text);
}
