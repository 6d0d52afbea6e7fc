//! The core's methods and the write commands: completeness, and the encoding of calls.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::{
    self, Access, Attr, AttributeKind, Call, HandleWrite, MAX_ATTRIBUTES, MethodInfo, PayloadSize,
};
use bareverbs_uapi::mlx5::resources::PpObjAlloc;
use bareverbs_uapi::mlx5::steering::CreateFlow;
use bareverbs_uapi::registry::{self, COMMANDS, OBJECTS};
use bareverbs_uapi::uverbs::dmah::TphMemType;
use bareverbs_uapi::uverbs::types::{BufferDesc, BufferType, DriverId, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::uverbs::{CqCreate, DmahAlloc, QpCreate, object::Qp};
use bareverbs_uapi::write::structs::{ModifyQpReq, PostSendReq, PostSendResp};
use bareverbs_uapi::write::types::CqCreateFlags;
use bareverbs_uapi::write::{self, EXTENDED, WriteCommand};
use bareverbs_uapi::{method::Object, verbs_values::QpState};

fn methods() -> impl Iterator<Item = &'static MethodInfo> {
    OBJECTS.into_iter().flat_map(|object| object.methods).copied()
}

fn attributes(method: &MethodInfo, series: Since) -> usize {
    let own = method.attributes.iter().filter(|attribute| attribute.since <= series).count();
    own + if method.driver_payload { 2 } else { 0 }
}

#[test]
fn object_method_and_attribute_counts_match_each_kernel() {
    for (series, expected) in [
        (Since::V6_1, (17, 33, 133)),
        (Since::V6_12, (17, 33, 133)),
        (Since::V7_2, (19, 38, 164)),
        (Since::V7_3, (20, 44, 180)),
    ] {
        let counted = (
            OBJECTS.iter().filter(|object| object.since <= series).count(),
            methods().filter(|method| method.since <= series).count(),
            methods()
                .filter(|method| method.since <= series)
                .map(|method| attributes(method, series))
                .sum::<usize>(),
        );
        assert_eq!(counted, expected, "{series:?}");
    }
}

#[test]
fn each_write_command_is_declared_once() {
    let classic = COMMANDS.iter().filter(|command| command.number & EXTENDED == 0).count();
    assert_eq!((classic, COMMANDS.len() - classic), (35, 12));
    let mut numbers = COMMANDS.map(|command| command.number);
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
    for without_handler in [6, 7, 10, 12, 15, 22] {
        assert!(registry::command(without_handler).is_none());
    }
}

#[test]
fn write_commands_have_the_minimum_struct_sizes() {
    let minima =
        |number| registry::command(number).map(|found| (found.request_minimum, found.response_minimum));
    for (number, expected) in [
        (3, (8, 4)),
        (26, (112, 0)),
        (EXTENDED | 1, (8, 184)),
        (EXTENDED | 18, (32, 16)),
        (EXTENDED | 24, (52, 40)),
        (EXTENDED | 26, (112, 8)),
        (EXTENDED | 50, (24, 8)),
        (EXTENDED | 52, (32, 24)),
        (EXTENDED | 53, (16, 0)),
        (EXTENDED | 54, (8, 16)),
        (EXTENDED | 55, (8, 16)),
        (EXTENDED | 57, (16, 0)),
    ] {
        assert_eq!(minima(number), Some(expected), "{number:#x}");
    }
}

#[test]
fn every_object_number_from_0_to_19_is_one_class() {
    let mut ids = OBJECTS.map(|object| object.id);
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(0..20));
    assert_eq!(Qp::ID, Qp::INFO.id);
}

#[test]
fn numbers_within_a_class_and_within_a_method_are_unique_and_fit_a_call() {
    for object in OBJECTS {
        let ids: Vec<_> = object.methods.iter().map(|method| method.id).collect();
        assert!((0..ids.len()).all(|i| !ids[..i].contains(&ids[i])), "{}", object.rust);
        for method in object.methods {
            assert_eq!(method.object, object.id);
            assert!(attributes(method, Since::V7_3) <= MAX_ATTRIBUTES, "{}", method.rust);
            let mut ids: Vec<_> = method.attributes.iter().map(|attribute| attribute.id).collect();
            ids.sort_unstable();
            assert!(ids.iter().copied().eq(0..ids.len() as u16), "{}", method.rust);
        }
    }
}

#[test]
fn since_is_never_older_than_the_parents() {
    for object in OBJECTS {
        for method in object.methods {
            assert!(method.since >= object.since, "{}", method.rust);
            for attribute in method.attributes {
                assert!(attribute.since >= method.since, "{}::{}", method.rust, attribute.rust);
                assert!(!attribute.mandatory || attribute.since == method.since);
            }
        }
    }
}

#[test]
fn extensible_structs_require_at_most_their_size() {
    for method in methods() {
        for attribute in method.attributes {
            if let AttributeKind::Input { size: PayloadSize::Extensible { minimum, known }, .. }
            | AttributeKind::Output { size: PayloadSize::Extensible { minimum, known }, .. } =
                attribute.kind
            {
                assert!(minimum <= known, "{}::{}", method.rust, attribute.rust);
            }
        }
    }
}

/// An attribute in the kernel's layout: id, length, flags, data word of the element, data.
fn raw(id: u16, len: u16, element: u8, data: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(id.to_ne_bytes());
    bytes.extend(len.to_ne_bytes());
    bytes.extend(1_u16.to_ne_bytes());
    bytes.extend([element, 0]);
    bytes.extend(data.to_ne_bytes());
    bytes
}

fn header(attributes: u16, object: u16, method: u16, driver: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((24 + 16 * attributes).to_ne_bytes());
    bytes.extend(object.to_ne_bytes());
    bytes.extend(method.to_ne_bytes());
    bytes.extend(attributes.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(driver.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn address<T>(of: &T) -> u64 {
    core::ptr::from_ref(of).expose_provenance() as u64
}

/// A data word that begins with the 4 bytes of `value`.
fn word(value: u32) -> u64 {
    let [a, b, c, d] = value.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
}

#[test]
fn every_attribute_of_qp_create_is_laid_out_as_the_kernel_reads_it() {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 2, max_send_sge: 3, max_recv_sge: 4, max_inline_data: 5 };
    let umem = BufferDesc { buffer_type: BufferType::VA, ..BufferDesc::zeroed() };
    let (user_handle, source_qpn) = (0x1122_3344_5566_7788, 0x00ab_cdef);
    let (mut granted, mut number) = (QpCap::zeroed(), 0_u32);
    let (request, mut response) = ([9_u8; 3], [0_u8; 32]);
    let places = (address(&granted), address(&number), address(&response));

    let mut call = Call::<QpCreate>::new(DriverId::RXE.0);
    call.make(QpCreate::HANDLE)
        .handle(QpCreate::XRCD_HANDLE, 11)
        .handle(QpCreate::PD_HANDLE, 12)
        .handle(QpCreate::SRQ_HANDLE, 13)
        .handle(QpCreate::SEND_CQ_HANDLE, 14)
        .handle(QpCreate::RECV_CQ_HANDLE, 15)
        .handle(QpCreate::IND_TABLE_HANDLE, 16)
        .input(QpCreate::USER_HANDLE, &user_handle)
        .input_struct(QpCreate::CAP, &cap)
        .constant(QpCreate::TYPE, QpType::RC)
        .flags(QpCreate::FLAGS, QpCreateFlags::SQ_SIG_ALL)
        .input(QpCreate::SOURCE_QPN, &source_qpn)
        .descriptor(QpCreate::EVENT_FD, 17)
        .output_struct(QpCreate::RESP_CAP, &mut granted)
        .output(QpCreate::RESP_QP_NUM, &mut number)
        .input(QpCreate::BUF_UMEM, &umem)
        .input(QpCreate::RQ_BUF_UMEM, &umem)
        .input(QpCreate::SQ_BUF_UMEM, &umem)
        .driver_input(&request)
        .driver_output(&mut response);

    let expected = [
        header(20, 4, 0, 14),
        raw(0, 0, 0, 0),
        raw(1, 0, 0, 11),
        raw(2, 0, 0, 12),
        raw(3, 0, 0, 13),
        raw(4, 0, 0, 14),
        raw(5, 0, 0, 15),
        raw(6, 0, 0, 16),
        raw(7, 8, 0, 0x1122_3344_5566_7788),
        raw(8, 20, 0, address(&cap)),
        raw(9, 8, 0, 2),
        raw(10, 8, 0, 1 << 12),
        raw(11, 4, 0, word(0x00ab_cdef)),
        raw(12, 0, 0, 17),
        raw(13, 20, 0, places.0),
        raw(14, 4, 0, places.1),
        raw(15, 32, 0, address(&umem)),
        raw(16, 32, 0, address(&umem)),
        raw(17, 32, 0, address(&umem)),
        raw(0x1000, 3, 0, u64::from_ne_bytes([9, 9, 9, 0, 0, 0, 0, 0])),
        raw(0x1001, 32, 0, places.2),
    ]
    .concat();
    assert_eq!(call.as_bytes(), expected);
}

#[test]
fn descriptor_attributes_have_length_zero() {
    let mut call = Call::<CqCreate>::new(DriverId::MLX5.0);
    call.raw_descriptor(CqCreate::BUFFER_FD, -1).flags(CqCreate::FLAGS, CqCreateFlags::IGNORE_OVERRUN);
    assert_eq!(call.as_bytes(), [header(2, 3, 0, 1), raw(10, 0, 0, u64::MAX), raw(5, 8, 0, 2)].concat());

    let mut call = Call::<DmahAlloc>::new(DriverId::MLX5.0);
    call.enumeration(DmahAlloc::TPH_MEM_TYPE, TphMemType::PERSISTENT, &[]);
    assert_eq!(call.as_bytes(), [header(1, 17, 0, 1), raw(2, 0, 1, 0)].concat());
}

#[test]
fn optional_attribute_is_not_marked_mandatory() {
    let va = 7;
    let mut call = Call::<CqCreate>::new(DriverId::MLX5.0);
    call.make(CqCreate::HANDLE).input(CqCreate::BUFFER_VA, &va).optional();
    assert_eq!(call.as_bytes()[24 + 4..][..2], 1_u16.to_ne_bytes());
    assert_eq!(call.as_bytes()[24 + 16 + 4..][..2], 0_u16.to_ne_bytes());
}

#[test]
fn write_access_handles_are_encoded_inline() {
    // No kernel method has a handle attribute with write access so far.
    let attribute = Attr::<CqCreate, HandleWrite<Qp>>::new(0x1003);
    let mut call = Call::<CqCreate>::new(DriverId::MLX5.0);
    call.handle_write(attribute, 77);
    assert_eq!(call.as_bytes(), [header(1, 3, 0, 1), raw(0x1003, 0, 0, 77)].concat());
}

#[test]
fn handle_arrays_are_encoded_as_pointers() {
    let actions = [3_u32, 9];
    let mut call = Call::<CreateFlow>::new(DriverId::MLX5.0);
    call.handles(CreateFlow::ARR_FLOW_ACTIONS, &actions);
    let numbers = u64::from_ne_bytes([3_u32.to_ne_bytes(), 9_u32.to_ne_bytes()].concat().try_into().unwrap());
    assert_eq!(call.as_bytes(), [header(1, 9, 0x1000, 1), raw(0x1005, 8, 0, numbers)].concat());
}

#[test]
fn struct_prefixes_are_encoded_with_their_length() {
    let limits = [7; 48];
    let mut call = Call::<PpObjAlloc>::new(DriverId::MLX5.0);
    call.input_part(PpObjAlloc::CTX, &limits);
    assert_eq!(
        call.as_bytes(),
        [header(1, 0x1007, 0x1000, 1), raw(0x1001, 48, 0, address(&limits))].concat()
    );
}

#[test]
fn output_is_valid_after_the_kernel_marked_it() {
    /// The flags of the first attribute of a call.
    const FLAGS: std::ops::Range<usize> = 24 + 4..24 + 6;
    let mut cqe = 0;
    let mut call = Call::<CqCreate>::new(DriverId::MLX5.0);
    assert!(!call.wrote(CqCreate::RESP_CQE), "the call has no such attribute");
    call.output(CqCreate::RESP_CQE, &mut cqe);
    assert!(!call.wrote(CqCreate::RESP_CQE));
    // UVERBS_ATTR_F_VALID_OUTPUT
    call.as_mut_bytes()[FLAGS].copy_from_slice(&2_u16.to_ne_bytes());
    assert!(call.wrote(CqCreate::RESP_CQE));
}

#[test]
fn invoke_write_encodes_number_request_and_response() {
    let request = PostSendReq { qp_handle: 3, wqe_size: 56, ..PostSendReq::zeroed() };
    let mut response = PostSendResp::zeroed();
    let place = address(&response);
    let call = write::invoke::<write::PostSend>(DriverId::RXE.0, &request, &mut response);
    let expected =
        [header(3, 0, 0, 14), raw(2, 8, 0, 28), raw(0, 24, 0, address(&request)), raw(1, 4, 0, place)]
            .concat();
    assert_eq!(call.as_bytes(), expected);
}

#[test]
fn invoke_write_without_response_omits_the_attribute() {
    let request = ModifyQpReq { qp_state: QpState::INIT, ..ModifyQpReq::zeroed() };
    let call = write::invoke_without_response::<write::ModifyQp>(DriverId::RXE.0, &request);
    let expected = [header(2, 0, 0, 14), raw(2, 8, 0, 26), raw(0, 112, 0, address(&request))].concat();
    assert_eq!(call.as_bytes(), expected);
    assert_eq!(write::ex::ModifyQp::INFO.number, 0x8000_001a);
}

#[test]
fn queries_change_nothing_and_take_no_addresses() {
    let queries = |driver: DriverId| -> Vec<&str> {
        registry::driver(driver.0)
            .methods()
            .filter(|method| method.is_query())
            .map(|method| method.rust)
            .collect()
    };
    let core = [
        "InfoHandles",
        "QueryPort",
        "QueryContext",
        "QueryGidTable",
        "QueryGidEntry",
        "QueryPortSpeed",
        "QueryCompCntrCaps",
        "QueryMr",
        "CountersRead",
        "CompCntrRead",
    ];
    assert_eq!(queries(DriverId::RXE), core);
    let mlx5 = [
        "DevxQueryUar",
        "DevxQueryEqn",
        "QueryPort",
        "GetDataDirectSysfsPath",
        "PdQuery",
        "DmMapOpAddr",
        "DmQuery",
    ];
    assert_eq!(queries(DriverId::MLX5)[core.len()..], mlx5);
}

#[test]
fn every_class_with_handles_has_a_destructor() {
    for (_, driver) in registry::DRIVERS {
        let creates = |object: u16| {
            let new = |info: &method::AttributeInfo| matches!(info.kind, AttributeKind::Handle { object: of, access: Access::New } if of == object);
            driver.methods().any(|method| method.attributes.iter().any(new))
        };
        for object in driver.objects().filter(|object| creates(object.id)) {
            let (method, handle) = driver.destructor(object.id).expect(object.rust);
            assert_eq!(method.object, object.id);
            // The other mandatory attributes are outputs, so that a destructor needs the handle
            // only.
            for other in method.attributes.iter().filter(|other| other.id != handle.id && other.mandatory) {
                assert!(matches!(other.kind, AttributeKind::Output { .. }), "{} {}", method.rust, other.rust);
            }
        }
    }
}
