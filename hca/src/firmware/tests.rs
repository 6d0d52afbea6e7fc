//! Commands of a malicious driver.

use proptest::prelude::*;

use super::bits::{Layout, View, ViewMut};
use super::caps;
use super::command::Status;
use super::layout::caps::HcaCap;
use super::layout::command::{
    CreateCqIn, CreateMkeyIn, CreateUmemIn, ModifyRqIn, ModifySqIn, Rqtc, RxHashFieldSelect,
    SetPpRateLimitContext, SetPpRateLimitIn, Tirc, Tisc, Umem,
};
use super::layout::dump::{MenuRecord, MenuSegment, ResourceDump, ResourceSegment, SegmentHeader};
use super::layout::object::{Cqc, Mkc, Rqc, Sqc, Wq};
use super::opcode::*;
use super::state::Firmware;
use super::steering::Steered;
use crate::FirmwareHarness;
use crate::engine::{Engine, Interrupts, Link, NO_USER_INDEX, Port, QpAttributes, Service, State};

struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u16) {}
}

fn hca(link: Link) -> (Firmware, Engine) {
    let mut engine = Engine::new(Port::new(link, 0), Box::new(NoInterrupts));
    engine.memory().map_zeroed(0, 0x10_0000).unwrap();
    (Firmware::new(link), engine)
}

fn run(hca: &mut (Firmware, Engine), input: &[u8], output: usize) -> (Result<(), Status>, Vec<u8>) {
    let mut answer = vec![0; output];
    let result = hca.0.execute(&mut hca.1, input, &mut answer);
    (result, answer)
}

fn command(opcode: u16, modifier: u16, rest: &[u8]) -> Vec<u8> {
    let mut input = opcode.to_be_bytes().to_vec();
    input.extend_from_slice(&[0, 0, 0, 0]);
    input.extend_from_slice(&modifier.to_be_bytes());
    input.extend_from_slice(rest);
    input.resize(input.len().max(16), 0);
    input
}

fn ready(link: Link) -> (Firmware, Engine) {
    let mut hca = hca(link);
    for opcode in [ENABLE_HCA, INIT_HCA, ALLOC_PD, ALLOC_UAR, ALLOC_XRCD] {
        run(&mut hca, &command(opcode, 0, &[]), 16).0.unwrap();
    }
    hca
}

#[test]
fn commands_fail_before_enable_and_init_hca() {
    let mut hca = hca(Link::InfiniBand);
    assert_eq!(run(&mut hca, &command(ALLOC_PD, 0, &[]), 16).0, Err(Status::BadSystemState));
    run(&mut hca, &command(ENABLE_HCA, 0, &[]), 16).0.unwrap();
    assert_eq!(run(&mut hca, &command(ALLOC_PD, 0, &[]), 16).0, Err(Status::BadSystemState));
    run(&mut hca, &command(INIT_HCA, 0, &[]), 16).0.unwrap();
    run(&mut hca, &command(ALLOC_PD, 0, &[]), 16).0.unwrap();
}

#[test]
fn unsupported_opcode_returns_syndrome() {
    let mut hca = ready(Link::InfiniBand);
    for opcode in [0x0, 0x10d, 0x710, 0xa02, SET_ROCE_ADDRESS] {
        let (result, answer) = run(&mut hca, &command(opcode, 0, &[]), 16);
        assert_eq!(result, Err(Status::BadOpcode), "{opcode:#x}");
        assert_eq!(answer[0], Status::BadOpcode as u8);
        assert_ne!(answer[4..8], [0; 4]);
    }
}

#[test]
fn short_commands_return_bad_length() {
    let mut hca = ready(Link::InfiniBand);
    assert_eq!(run(&mut hca, &command(CREATE_QP, 0, &[]), 16).0, Err(Status::BadInputLength));
    assert_eq!(run(&mut hca, &command(ALLOC_PD, 0, &[]), 8).0, Err(Status::BadOutputLength));
    assert_eq!(run(&mut hca, &[], 16).0, Err(Status::BadInputLength));
    assert_eq!(run(&mut hca, &command(ALLOC_PD, 0, &[]), 0).0, Err(Status::BadOutputLength));
}

#[test]
fn unallocated_numbers_are_rejected() {
    let mut hca = ready(Link::InfiniBand);
    for opcode in [
        DESTROY_QP,
        DESTROY_CQ,
        DESTROY_MKEY,
        DESTROY_XRC_SRQ,
        DESTROY_RMP,
        DEALLOC_PD,
        DEALLOC_UAR,
        QUERY_QP,
        PAGE_FAULT_RESUME,
        DESTROY_UCTX,
        DESTROY_UMEM,
    ] {
        let result = run(&mut hca, &command(opcode, 0, &[0, 0xff, 0xff, 0xfe]), 0x200).0;
        assert_eq!(result, Err(Status::BadResource), "{}", name(opcode));
    }
}

/// Creates user memory of two pages, which begins at an offset in the first one.
fn umem(hca: &mut (Firmware, Engine), offset: u64) -> (Result<(), Status>, u32) {
    let mut input = command(CREATE_UMEM, 0, &[]);
    input.resize(CreateUmemIn::SIZE, 0);
    let mut view = ViewMut::<CreateUmemIn>::new(&mut input).unwrap();
    view.part(CreateUmemIn::UMEM).set(Umem::NUM_OF_MTT, 2u8).set(Umem::PAGE_OFFSET, offset);
    for page in [0x2_0003u64, 0x4_0003] {
        input.extend_from_slice(&page.to_be_bytes());
    }
    let (result, answer) = run(hca, &input, 16);
    (result, u32::from_be_bytes(answer[8..12].try_into().unwrap()))
}

#[test]
fn queues_and_doorbell_records_are_in_user_memory() {
    let mut hca = ready(Link::InfiniBand);
    assert_eq!(umem(&mut hca, 0x1000).0, Err(Status::BadParameter), "outside of the first page");
    let (buffer, record) = (umem(&mut hca, 0).1, umem(&mut hca, 0x40).1);
    assert_eq!(hca.0.umem(record).unwrap().record(8), Ok(0x2_0048));
    assert_eq!(hca.0.umem(record).unwrap().record(0xfc8), Ok(0x4_0008));
    assert_eq!(hca.0.umem(record).unwrap().record(4), Err(Status::BadParameter));
    assert_eq!(hca.0.umem(record).unwrap().record(0x1fc0), Err(Status::BadParameter));

    let eq = FirmwareHarness::example(CREATE_EQ);
    run(&mut hca, &eq, 16).0.unwrap();
    let mut create_cq = |log_size: u8, memory: u32| {
        let mut input = FirmwareHarness::example(CREATE_CQ);
        let mut view = ViewMut::<CreateCqIn>::new(&mut input).unwrap();
        view.set(CreateCqIn::CQ_UMEM_VALID, 1u8)
            .set(CreateCqIn::CQ_UMEM_ID, memory)
            .set(CreateCqIn::CQ_UMEM_OFFSET, 0x1000u64);
        view.part(CreateCqIn::CQ_CONTEXT)
            .set(Cqc::LOG_CQ_SIZE, log_size)
            .set(Cqc::DBR_UMEM_VALID, 1u8)
            .set(Cqc::DBR_UMEM_ID, record)
            .set(Cqc::DBR_ADDR, 8u8);
        let (result, answer) = run(&mut hca, &input, 16);
        result.map(|()| answer[8..12].to_vec())
    };
    assert_eq!(create_cq(7, buffer), Err(Status::BadParameter), "longer than the memory");
    assert_eq!(create_cq(6, 0xffff), Err(Status::BadResource));
    let cq = create_cq(6, buffer).unwrap();
    for memory in [buffer, record] {
        let destroy = command(DESTROY_UMEM, 0, &memory.to_be_bytes());
        assert_eq!(run(&mut hca, &destroy, 16).0, Err(Status::BadResourceState));
    }
    run(&mut hca, &command(DESTROY_CQ, 0, &cq), 16).0.unwrap();
    for memory in [buffer, record] {
        run(&mut hca, &command(DESTROY_UMEM, 0, &memory.to_be_bytes()), 16).0.unwrap();
    }
}

#[test]
fn reclaimed_pages_match_given_pages() {
    let mut hca = hca(Link::InfiniBand);
    let mut give = vec![0, 0, 0, 0, 0, 0, 0, 2];
    give.extend_from_slice(&0x1000u64.to_be_bytes());
    give.extend_from_slice(&0x5000u64.to_be_bytes());
    run(&mut hca, &command(MANAGE_PAGES, 1, &give), 16).0.unwrap();
    let (result, answer) = run(&mut hca, &command(MANAGE_PAGES, 2, &[0, 0, 0, 0, 0, 0, 0, 9]), 64);
    result.unwrap();
    assert_eq!(answer[8..12], 2u32.to_be_bytes());
    assert_eq!(answer[16..32], [0x1000u64.to_be_bytes(), 0x5000u64.to_be_bytes()].concat());
}

/// A device on which every example was executed.
fn with_examples() -> FirmwareHarness {
    let mut hca = FirmwareHarness::new(Link::Ethernet).unwrap();
    for &opcode in FirmwareHarness::examples() {
        let status = hca.command(&FirmwareHarness::example(opcode), &mut [0; 0x400]);
        assert_eq!(status, 0, "{}", name(opcode));
    }
    hca
}

#[test]
fn example_commands_succeed() {
    assert_eq!(with_examples().objects(), "eqs 1 cqs 1 qps 1 srqs 2 keys 1 pds 1 uars 1 xrcds 1 pages 0");
}

#[test]
fn referenced_objects_are_busy_until_teardown() {
    let mut hca = with_examples();
    let numbers = [
        (DEALLOC_PD, 1),
        (DEALLOC_UAR, super::FIRST_UAR),
        (DEALLOC_XRCD, 1),
        (DESTROY_EQ, 1),
        (DESTROY_CQ, 0x400),
        (DESTROY_TIS, 1),
        (DESTROY_RQ, 0x10),
    ];
    for (opcode, number) in numbers {
        let status = hca.command(&command(opcode, 0, &number.to_be_bytes()), &mut [0; 16]);
        assert_eq!(status, Status::BadResourceState as u8, "{}", name(opcode));
    }
    assert_eq!(hca.command(&command(TEARDOWN_HCA, 0, &[]), &mut [0; 16]), 0);
    assert_eq!(hca.objects(), "eqs 0 cqs 0 qps 0 srqs 0 keys 0 pds 0 uars 0 xrcds 0 pages 0");
    assert_eq!(hca.command(&command(ALLOC_PD, 0, &[]), &mut [0; 16]), Status::BadSystemState as u8);
}

#[test]
fn truncated_command_returns_bad_input_length() {
    for &opcode in FirmwareHarness::examples() {
        let whole = FirmwareHarness::example(opcode);
        let mut hca = with_examples();
        let before = hca.objects();
        let status = hca.command(&whole[..8], &mut [0; 0x400]);
        if whole.len() > 16 || whole[8..] != [0; 8] {
            assert_eq!(status, Status::BadInputLength as u8, "{}", name(opcode));
            assert_eq!(hca.objects(), before, "{}", name(opcode));
        }
    }
}

#[test]
fn self_loopback_is_opt_in() {
    const OWN: u32 = 0;
    const ANOTHER: u32 = 7;
    const ALL: u8 = 3;
    let broadcast = [0xff; 60];
    // Transport domain and loopback setting of the TIR. The sender is in domain 0.
    for (domain, takes_own, comes_back) in [(OWN, 0, false), (OWN, ALL, true), (ANOTHER, 0, true)] {
        let mut hca = ready(Link::Ethernet);
        for &opcode in FirmwareHarness::examples() {
            let mut input = super::example::command(opcode, 0);
            if opcode == CREATE_TIR {
                input[0x44..0x48].copy_from_slice(&(u32::from(takes_own) << 24 | domain).to_be_bytes());
            }
            let _ = run(&mut hca, &input, 0x400);
        }
        let (firmware, engine) = &hca;
        let sq = firmware.send_queue().unwrap();
        assert_eq!(firmware.steer(engine, &broadcast), [Steered { rq: 0x10, tag: 0 }]);
        assert_eq!(!firmware.steer_sent(engine, sq, &broadcast).is_empty(), comes_back, "domain {domain}");
        // A frame to another port is not looped back.
        assert!(firmware.steer_sent(engine, sq, &[0x02; 60]).is_empty());
    }
}

#[test]
fn sniffers_get_the_frames_of_their_direction() {
    const TABLE_TYPE: usize = 0x10;
    let unicast = [0x02; 60];
    for (kind, received, sent) in [(0, true, false), (5, true, false), (6, false, true)] {
        let mut hca = ready(Link::Ethernet);
        for &opcode in FirmwareHarness::examples() {
            let mut input = super::example::command(opcode, 0);
            if matches!(opcode, CREATE_FLOW_TABLE | SET_FLOW_TABLE_ROOT) {
                input[TABLE_TYPE] = kind;
            }
            let _ = run(&mut hca, &input, 0x400);
        }
        let (firmware, engine) = &hca;
        let sq = firmware.send_queue().unwrap();
        assert_eq!(!firmware.steer(engine, &unicast).is_empty(), received, "table type {kind}");
        assert_eq!(!firmware.steer_sent(engine, sq, &unicast).is_empty(), sent, "table type {kind}");
    }
}

#[test]
fn flow_entry_matches_a_tunnel_and_tags_its_frames() {
    /// Places of the match parameters in the commands, and of the identifier in them.
    const MASK: usize = 0x40;
    const VALUE: usize = 0x80;
    const VXLAN_VNI: usize = 0x54;
    /// The place of the tag in the command.
    const TAG: std::ops::Range<usize> = 0x49..0x4c;
    let mut hca = ready(Link::Ethernet);
    for &opcode in FirmwareHarness::examples() {
        let mut input = super::example::command(opcode, 0);
        match opcode {
            CREATE_FLOW_GROUP => input[MASK + VXLAN_VNI..][..3].fill(0xff),
            SET_FLOW_TABLE_ENTRY => {
                input[VALUE + VXLAN_VNI..][..3].copy_from_slice(&[0, 0, 5]);
                input[TAG].copy_from_slice(&[1, 2, 3]);
            }
            _ => {}
        }
        let _ = run(&mut hca, &input, 0x400);
    }
    let (firmware, engine) = &hca;
    // UDP over IPv4 to port 4789.
    let mut frame = vec![0; 34];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[23] = 17;
    frame.extend_from_slice(&[0, 7, 0x12, 0xb5, 0, 16, 0, 0, 8, 0, 0, 0, 0, 0, 5, 0]);
    frame.resize(100, 0);
    let steered = firmware.steer(engine, &frame);
    assert_eq!(steered, [Steered { rq: 0x10, tag: 0x01_0203 }]);
    frame[48] = 6;
    assert_eq!(firmware.steer(engine, &frame), []);
}

#[test]
fn flow_counter_counts_frames_that_match() {
    const CLEAR: usize = 0x18;
    let mut hca = ready(Link::Ethernet);
    for &opcode in FirmwareHarness::examples() {
        let _ = run(&mut hca, &super::example::command(opcode, 0), 0x400);
    }
    for length in [60, 100] {
        let (firmware, engine) = &hca;
        assert_eq!(firmware.steer(engine, &vec![0xff; length]), [Steered { rq: 0x10, tag: 0 }]);
    }
    let mut query = super::example::command(QUERY_FLOW_COUNTER, 0);
    query[CLEAR] = 0x80;
    for (packets, octets) in [(2_u64, 160_u64), (0, 0)] {
        let (status, answer) = run(&mut hca, &query, 0x20);
        assert_eq!(status, Ok(()));
        assert_eq!(answer[0x10..], [packets.to_be_bytes(), octets.to_be_bytes()].concat());
    }
    // The flow entry uses the counter.
    let free = command(DEALLOC_FLOW_COUNTER, 0, &[0, 0, 0, 1]);
    assert_eq!(run(&mut hca, &free, 0x10).0, Err(Status::BadResourceState));
    let mut delete = command(DELETE_FLOW_TABLE_ENTRY, 0, &[0; 0x38]);
    delete[0x17] = 1;
    assert_eq!(run(&mut hca, &delete, 0x10).0, Ok(()));
    assert_eq!(run(&mut hca, &free, 0x10).0, Ok(()));
    assert_eq!(run(&mut hca, &query, 0x20).0, Err(Status::BadResource));
    // An entry needs a counter that exists.
    let entry = super::example::command(SET_FLOW_TABLE_ENTRY, 0);
    assert_eq!(run(&mut hca, &entry, 0x10).0, Err(Status::BadResource));
}

#[test]
fn illegal_qp_transitions_are_rejected() {
    let mut hca = with_examples();
    for opcode in [RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP, SQERR2RTS_QP, INIT2INIT_QP] {
        let mut transition = FirmwareHarness::example(RTS2RTS_QP);
        transition[..2].copy_from_slice(&opcode.to_be_bytes());
        assert_eq!(hca.command(&transition, &mut [0; 16]), Status::BadQpState as u8, "{}", name(opcode));
    }
}

#[test]
fn udp_source_port_is_the_only_parameter_of_the_second_mask() {
    /// Offset of the mask, and of the port in the primary path.
    const MASK: usize = 0x108;
    const PORT: usize = 0x52;
    for (mask, status) in [(1_u64 << 2, 0), (1 << 2 | 1 << 3, Status::BadParameter as u8)] {
        let mut hca = with_examples();
        let mut input = FirmwareHarness::example(RTS2RTS_QP);
        input.resize(MASK + 8, 0);
        input[MASK..MASK + 8].copy_from_slice(&mask.to_be_bytes());
        input[PORT..PORT + 2].copy_from_slice(&55555_u16.to_be_bytes());
        assert_eq!(hca.command(&input, &mut [0; 16]), status);
    }
}

#[test]
fn query_qp_fits_6_1_output_length() {
    // Linux 6.1 passes an output that ends with the context.
    assert_eq!(with_examples().command(&FirmwareHarness::example(QUERY_QP), &mut [0; 0x110]), 0);
    assert_eq!(
        with_examples().command(&FirmwareHarness::example(QUERY_QP), &mut [0; 0x10f]),
        Status::BadOutputLength as u8
    );
}

/// A CREATE_RQT with these queues, `actual` of `max` entries.
fn table(actual: u16, max: u16, queues: &[u32]) -> Vec<u8> {
    let mut input = command(CREATE_RQT, 0, &[]);
    input.resize(0x20 + Rqtc::SIZE, 0);
    ViewMut::<Rqtc>::new(&mut input[0x20..])
        .unwrap()
        .set(Rqtc::RQT_ACTUAL_SIZE, actual)
        .set(Rqtc::RQT_MAX_SIZE, max);
    input.extend(queues.iter().flat_map(|queue| queue.to_be_bytes()));
    input
}

/// A modified CREATE_TIR over RQT 1 with the Toeplitz hash.
fn receiver(change: impl FnOnce(&mut ViewMut<'_, Tirc>)) -> Vec<u8> {
    let mut input = command(CREATE_TIR, 0, &[]);
    input.resize(0x20 + Tirc::SIZE, 0);
    let mut context = ViewMut::<Tirc>::new(&mut input[0x20..]).unwrap();
    context.set(Tirc::DISP_TYPE, 1u8).set(Tirc::INDIRECT_TABLE, 1u8).set(Tirc::RX_HASH_FN, 2u8);
    change(&mut context);
    input
}

#[test]
fn unsupported_rqt_and_hash_are_rejected() {
    const QUEUE: u32 = 0x10;
    let mut hca = with_examples();
    let mut answer = |input: &[u8]| hca.command(input, &mut [0; 16]);
    let bad = Status::BadParameter as u8;
    assert_eq!(answer(&table(0, 4, &[])), bad, "no entries");
    assert_eq!(answer(&table(2, 1, &[QUEUE; 2])), bad, "more than its room");
    assert_eq!(answer(&table(1, 513, &[QUEUE])), bad, "more room than there is");
    assert_eq!(answer(&table(2, 2, &[QUEUE])), Status::BadInputLength as u8);
    assert_eq!(answer(&table(2, 2, &[QUEUE, QUEUE + 1])), Status::BadResource as u8, "no such queue");
    assert_eq!(answer(&receiver(|_| {})), Status::BadResource as u8, "no table yet");
    assert_eq!(answer(&table(2, 512, &[QUEUE; 2])), 0);

    assert_eq!(
        answer(&receiver(|tir| {
            tir.set(Tirc::RX_HASH_FN, 3u8);
        })),
        bad,
        "no such function"
    );
    assert_eq!(
        answer(&receiver(|tir| {
            tir.set(Tirc::TUNNELED_OFFLOAD_EN, 1u8);
        })),
        bad
    );
    for (selector, fields) in
        [(Tirc::RX_HASH_FIELD_SELECTOR_OUTER, 1u32 << 5), (Tirc::RX_HASH_FIELD_SELECTOR_INNER, 1)]
    {
        let input = receiver(|tir| {
            tir.part(selector).set(RxHashFieldSelect::SELECTED_FIELDS, fields);
        });
        assert_eq!(answer(&input), bad, "{fields:#x}");
    }
    assert_eq!(answer(&receiver(|_| {})), 0);
    let in_use = command(DESTROY_RQT, 0, &1u32.to_be_bytes());
    assert_eq!(answer(&in_use), Status::BadResourceState as u8);
}

#[test]
fn unsupported_rq_attributes_are_rejected() {
    let mut hca = with_examples();
    type Change = fn(&mut ViewMut<'_, Rqc>);
    let changes: [Change; 6] = [
        |rq| {
            rq.set(Rqc::MEM_RQ_TYPE, 1u8);
        },
        |rq| {
            rq.set(Rqc::HAIRPIN, 1u8);
        },
        |rq| {
            rq.set(Rqc::DELAY_DROP_EN, 1u8);
        },
        |rq| {
            rq.set(Rqc::STATE, 3u8);
        },
        |rq| {
            rq.part(Rqc::WQ).set(Wq::END_PADDING_MODE, 2u8);
        },
        |rq| {
            rq.part(Rqc::WQ).set(Wq::WQ_SIGNATURE, 1u8);
        },
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let mut input = FirmwareHarness::example(CREATE_RQ);
        change(&mut ViewMut::new(&mut input[0x20..]).unwrap());
        assert_eq!(hca.command(&input, &mut [0; 16]), Status::BadParameter as u8, "{which}");
    }
    assert_eq!(hca.command(&FirmwareHarness::example(CREATE_RQ), &mut [0; 16]), 0);
}

#[test]
fn rq_allows_only_legal_state_changes() {
    const QUEUE: u32 = 0x10;
    let mut hca = with_examples();
    let mut step = |from: u8, to: u8, mask: u64| {
        let mut input = command(MODIFY_RQ, 0, &[]);
        input.resize(0x110, 0);
        let mut view = ViewMut::<ModifyRqIn>::new(&mut input).unwrap();
        view.set(ModifyRqIn::RQ_STATE, from)
            .set(ModifyRqIn::RQN, QUEUE)
            .set(ModifyRqIn::MODIFY_BITMASK, mask);
        ViewMut::<Rqc>::new(&mut input[0x20..]).unwrap().set(Rqc::STATE, to);
        hca.command(&input, &mut [0; 16])
    };
    let (reset, ready, error, refused) = (0, 1, 3, Status::BadResourceState as u8);
    assert_eq!(step(reset, ready, 0), refused, "it is ready");
    assert_eq!(step(ready, 2, 0), refused, "no such state");
    assert_eq!(step(ready, ready, 1 << 4), Status::BadParameter as u8, "no such attribute");
    assert_eq!(step(ready, ready, 1 << 2), 0);
    assert_eq!(step(ready, ready, 1 << 1), 0);
    assert_eq!(step(ready, error, 0), 0);
    assert_eq!(step(error, ready, 0), refused);
    assert_eq!(step(error, reset, 0), 0);
    assert_eq!(step(reset, error, 0), refused);
    assert_eq!(step(reset, ready, 0), 0);
}

fn known_opcode() -> impl Strategy<Value = u16> {
    prop_oneof![
        0x100u16..0x110,
        0x200u16..0x207,
        0x300u16..0x304,
        0x400u16..0x404,
        0x500u16..0x510,
        0x700u16..0x710,
        0x750u16..0x775,
        0x800u16..0x830,
        0x900u16..0x93d,
        any::<u16>()
    ]
}

#[test]
fn cqe_version_0_is_reported_and_rejects_uidx() {
    for (version, taken) in [(0, Err(Status::BadParameter)), (1, Ok(5))] {
        let block = caps::block(Link::InfiniBand, version, 0).unwrap();
        let reported = View::<HcaCap>::new(&block).unwrap().get8(HcaCap::CQE_VERSION);
        assert_eq!(reported, version);
        let firmware = Firmware::of_version(Link::InfiniBand, version);
        assert_eq!(firmware.user_index(5), taken);
    }
    assert_eq!(Firmware::of_version(Link::InfiniBand, 0).user_index(0), Ok(NO_USER_INDEX));
}

proptest! {
    #[test]
    fn mutated_commands_are_answered_and_torn_down(
        lies in proptest::collection::vec((0..=FirmwareHarness::examples().len(), proptest::collection::vec((0usize..0x120, any::<u8>()), 0..4), 0usize..0x400), 1..40),
        stores in proptest::collection::vec((0u32..12, prop_oneof![Just(0x20u16), Just(0x40), Just(0x48), Just(0x800)], any::<[u8; 8]>()), 0..20),
    ) {
        let mut hca = with_examples();
        for (which, changes, output) in lies {
            // An answer to a page fault that doesn't exist.
            let opcode = FirmwareHarness::examples().get(which).copied().unwrap_or(PAGE_FAULT_RESUME);
            let mut input = FirmwareHarness::example(opcode);
            for (at, byte) in changes {
                if let Some(place) = input.get_mut(at) {
                    *place = byte;
                }
            }
            let mut answer = vec![0xee; output];
            answer.fill(0);
            let status = hca.command(&input, &mut answer);
            prop_assert_eq!(answer.first().copied().unwrap_or(status), status);
        }
        for (time, (uar, offset, bytes)) in stores.into_iter().enumerate() {
            hca.store(uar, offset, &bytes);
            hca.run(time as u64 * 1000);
        }
        // One of the commands may have disabled the device.
        hca.command(&command(ENABLE_HCA, 0, &[]), &mut [0; 16]);
        prop_assert_eq!(hca.command(&command(TEARDOWN_HCA, 0, &[]), &mut [0; 16]), 0);
        prop_assert!(hca.objects().starts_with("eqs 0 cqs 0 qps 0 srqs 0 keys 0 pds 0 uars 0"));
    }

    #[test]
    fn arbitrary_commands_are_answered(
        ethernet: bool,
        commands in proptest::collection::vec((known_opcode(), 0u16..9, proptest::collection::vec(any::<u8>(), 0..900), 0usize..600), 1..40),
    ) {
        let mut hca = ready(if ethernet { Link::Ethernet } else { Link::InfiniBand });
        for (opcode, modifier, rest, output) in commands {
            let (result, answer) = run(&mut hca, &command(opcode, modifier, &rest), output);
            if let (Err(status), Some(first)) = (result, answer.first()) {
                prop_assert_eq!(*first, status as u8);
            }
            hca.1.run(1);
        }
    }

    #[test]
    fn objects_survive_invalid_commands(
        commands in proptest::collection::vec((0usize..12, proptest::collection::vec(0u8..8, 0x200), 0u8..4), 1..60),
    ) {
        const OPCODES: [u16; 12] = [CREATE_EQ, CREATE_CQ, CREATE_MKEY, CREATE_QP, CREATE_XRC_SRQ, CREATE_RMP, CREATE_RQ,
            CREATE_SQ, RST2INIT_QP, INIT2RTR_QP, RTR2RTS_QP, MODIFY_CQ];
        let mut hca = ready(Link::Ethernet);
        for (which, mut rest, number) in commands {
            // QPNs start at 0x48, CQNs at 0x400.
            rest[..4].copy_from_slice(&(0x48 + u32::from(number)).to_be_bytes());
            let _ = run(&mut hca, &command(OPCODES[which], 0, &rest), 0x200);
            for qp in 0x48..0x4c {
                hca.1.ring_qp(qp);
            }
            hca.1.run(1);
        }
    }
}

/// Registers a key for all memory and runs the resource dump register with it.
fn dump(hca: &mut (Firmware, Engine), kind: u16, index: u32, length: u32) -> (Result<(), Status>, Vec<u8>) {
    const ADDRESS: u64 = 0x8_0000;
    let mut key = command(CREATE_MKEY, 0, &[0; 0x108]);
    let mut view = ViewMut::<CreateMkeyIn>::new(&mut key).unwrap();
    let mut context = view.part(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
    context.set(Mkc::LW, 1u8).set(Mkc::LR, 1u8).set(Mkc::PD, 1u8).set(Mkc::LEN, 0x10_0000u32);
    context.set(Mkc::QPN, 0xff_ffffu32);
    let (created, answer) = run(hca, &key, 16);
    created.unwrap();
    let key = u32::from_be_bytes(answer[8..12].try_into().unwrap()) << 8;
    let mut input = command(ACCESS_REG, 1, &[0, 0, 0xc0, 0, 0, 0, 0, 0]);
    input.resize(16 + 0x100, 0);
    ViewMut::<ResourceDump>::new(&mut input[16..])
        .unwrap()
        .set(ResourceDump::SEGMENT_TYPE, kind)
        .set(ResourceDump::INDEX1, index)
        .set(ResourceDump::MKEY, key)
        .set(ResourceDump::SIZE, length)
        .set(ResourceDump::ADDRESS, ADDRESS);
    let (result, answer) = run(hca, &input, 16 + 0x100);
    let length = View::<ResourceDump>::new(&answer[16..]).map_or(0, |view| view.get(ResourceDump::SIZE));
    let mut bytes = vec![0; if result.is_ok() { length as usize } else { 0 }];
    hca.1.memory().read(ADDRESS, &mut bytes).unwrap();
    (result, bytes)
}

/// The segments of a dump: types and bytes.
fn segments(mut dump: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while let Some(header) = View::<SegmentHeader>::new(dump) {
        let (segment, rest) = dump.split_at(header.get(SegmentHeader::LENGTH_DW) as usize * 4);
        found.push((header.get(SegmentHeader::SEGMENT_TYPE), segment));
        dump = rest;
    }
    found
}

#[test]
fn resource_dump_of_an_mkey_has_its_ordering_and_hint_bits() {
    let mut hca = ready(Link::InfiniBand);
    let mut key = command(CREATE_MKEY, 0, &[0; 0x108]);
    ViewMut::<CreateMkeyIn>::new(&mut key)
        .unwrap()
        .part(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
        .set(Mkc::RELAXED_ORDERING_WRITE, 1u8)
        .set(Mkc::RELAXED_ORDERING_READ, 1u8)
        .set(Mkc::PD, 1u8);
    // Processing hint 2 (`pcie_tph_en`, `pcie_tph_ph`), steering tag index 5.
    key[16 + 60..][..2].copy_from_slice(&[0x06, 0x05]);
    let (created, answer) = run(&mut hca, &key, 16);
    created.unwrap();
    let index = u32::from_be_bytes(answer[8..12].try_into().unwrap());

    let (result, menu) = dump(&mut hca, 0xffff, 0, 4096);
    assert_eq!(result, Ok(()));
    let found = segments(&menu);
    assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0xfffe, 0xfffa, 0xffff, 0xfffb]);
    let records = found[2].1[MenuSegment::SIZE..].chunks(MenuRecord::SIZE);
    let named = |name: &[u8]| {
        let view = records.clone().map(|record| View::<MenuRecord>::new(record).unwrap());
        let mut of_name = view.filter(|view| view.bytes(MenuRecord::SEGMENT_NAME).starts_with(name));
        of_name.next().unwrap().get(MenuRecord::SEGMENT_TYPE) as u16
    };
    let kind = named(b"PRM_QUERY_MKEY\0");

    let (result, bytes) = dump(&mut hca, kind, index, 4096);
    assert_eq!(result, Ok(()));
    let found = segments(&bytes);
    let payload =
        &found.iter().find(|(found, _)| *found == u64::from(kind)).unwrap().1[ResourceSegment::SIZE..];
    let context = View::<Mkc>::new(&payload[16..]).unwrap();
    assert!(context.flag(Mkc::RELAXED_ORDERING_WRITE) && context.flag(Mkc::RELAXED_ORDERING_READ));
    assert!(!context.flag(Mkc::LW));
    assert_eq!(context.raw()[60..62], [0x06, 0x05]);

    assert_eq!(dump(&mut hca, kind, 0xfff, 4096).0, Err(Status::BadResource), "no such key");
    assert_eq!(dump(&mut hca, kind, index, 64).0, Err(Status::BadParameter), "no room");
    assert_eq!(dump(&mut hca, 0x1fff, index, 4096).0, Err(Status::BadParameter), "no such type");
}

#[test]
fn rate_table_entries_are_checked_and_used_by_send_queues() {
    let mut hca = ready(Link::Ethernet);
    for opcode in super::example::OPCODES {
        run(&mut hca, &super::example::command(opcode, 0), 0x400).0.unwrap();
    }
    let sq = hca.0.send_queue().unwrap();
    let set = |hca: &mut (Firmware, Engine), index: u16, kilobits: u32| {
        let mut input = command(SET_PP_RATE_LIMIT, 0, &[]);
        input.resize(0x40, 0);
        let mut view = ViewMut::<SetPpRateLimitIn>::new(&mut input).unwrap();
        view.set(SetPpRateLimitIn::RATE_LIMIT_INDEX, index);
        view.part(SetPpRateLimitIn::CTX).set(SetPpRateLimitContext::RATE_LIMIT, kilobits);
        run(hca, &input, 16).0
    };
    assert_eq!(set(&mut hca, 0, 1000), Err(Status::BadIndex), "no limit");
    assert_eq!(set(&mut hca, 128, 1000), Err(Status::BadIndex), "no such entry");
    assert_eq!(set(&mut hca, 1, u32::MAX), Err(Status::BadParameter), "too fast");
    let modify = |hca: &mut (Firmware, Engine), from: u8, to: u8, index: u16| {
        let mut input = command(MODIFY_SQ, 0, &[]);
        input.resize(0x110, 0);
        let mut view = ViewMut::<ModifySqIn>::new(&mut input).unwrap();
        view.set(ModifySqIn::SQ_STATE, from).set(ModifySqIn::SQN, sq).set(ModifySqIn::MODIFY_BITMASK, 1u8);
        ViewMut::<Sqc>::new(&mut input[0x20..])
            .unwrap()
            .set(Sqc::STATE, to)
            .set(Sqc::PACKET_PACING_RATE_LIMIT_INDEX, index);
        run(hca, &input, 16).0
    };
    let rate = |hca: &(Firmware, Engine)| hca.1.qp_attributes(sq).unwrap().1.rate;
    let (reset, ready) = (0, 1);
    assert_eq!(modify(&mut hca, reset, ready, 7), Err(Status::BadIndex), "the entry is not set");
    set(&mut hca, 7, 1000).unwrap();
    modify(&mut hca, reset, ready, 7).unwrap();
    assert_eq!(rate(&hca).unwrap().kilobits, 1000);
    set(&mut hca, 7, 2000).unwrap();
    assert_eq!(rate(&hca).unwrap().kilobits, 2000);
    modify(&mut hca, ready, ready, 0).unwrap();
    assert_eq!(rate(&hca), None);
}

/// A device on which every example was executed, with this underlay QP in the TIS.
fn with_underlay(link: Link, underlay_qp: u32) -> (Firmware, Engine) {
    const UNDERLAY: std::ops::Range<usize> = 0x48..0x4c;
    let mut hca = ready(link);
    for &opcode in FirmwareHarness::examples() {
        let mut input = super::example::command(opcode, 0);
        if opcode == CREATE_TIS {
            input[UNDERLAY].copy_from_slice(&underlay_qp.to_be_bytes());
        }
        let _ = run(&mut hca, &input, 0x400);
    }
    hca
}

#[test]
fn underlay_qp_makes_an_sq_one_of_ipoib() {
    const QP: u32 = 0x48;
    let service = |(firmware, engine): &(Firmware, Engine)| {
        firmware.send_queue().map(|sq| engine.qp_setup(sq).unwrap().service)
    };
    assert_eq!(service(&with_underlay(Link::Ethernet, 0)), Some(Service::Ethernet));
    assert_eq!(service(&with_underlay(Link::Ethernet, QP)), None, "there is no IPoIB on Ethernet");
    assert_eq!(service(&with_underlay(Link::InfiniBand, 0)), None, "there are no frames on InfiniBand");
    let mut hca = with_underlay(Link::InfiniBand, QP);
    assert_eq!(service(&hca), Some(Service::Ipoib { underlay_qp: QP }));
    let (result, output) = run(&mut hca, &command(QUERY_TIS, 0, &1u32.to_be_bytes()), 0x10 + 0xa0);
    result.unwrap();
    assert_eq!(View::<Tisc>::new(&output[0x10..]).unwrap().get32(Tisc::UNDERLAY_QPN), QP);
    assert!(
        run(&mut hca, &command(QUERY_TIS, 0, &2u32.to_be_bytes()), 0x10 + 0xa0).0.is_err(),
        "no such TIS"
    );

    let sq = hca.0.send_queue().unwrap();
    let attributes = QpAttributes { pkey: 0x8005, qkey: 7, ..QpAttributes::default() };
    hca.1.modify_qp(QP, State::Init, attributes).unwrap();
    let mut input = command(MODIFY_SQ, 0, &[]);
    input.resize(0x110, 0);
    ViewMut::<ModifySqIn>::new(&mut input).unwrap().set(ModifySqIn::SQN, sq);
    ViewMut::<Sqc>::new(&mut input[0x20..]).unwrap().set(Sqc::STATE, 1u8);
    run(&mut hca, &input, 16).0.unwrap();
    let attributes = hca.1.qp_attributes(sq).unwrap().1;
    assert_eq!((attributes.pkey, attributes.qkey), (0x8005, 7));
}
