//! Valid commands, which tests mutate.

use super::bits::{Field, Layout, ViewMut};
use super::layout::command::{
    CreateCqIn, CreateEqIn, CreateFlowGroupIn, CreateFlowTableIn, CreateMkeyIn, CreateQpIn, CreateUmemIn,
    CreateXrcSrqIn, FlowContext, PageFaultResumeIn, QueryFlowCounterIn, RoceAddrLayout, SetFlowTableRootIn,
    SetFteIn, TransPageFaultInfo, Umem,
};
use super::layout::object::{AddressPath, Cqc, Eqc, Mkc, Qpc, Rmpc, Rqc, Sqc, Wq, XrcSrqc};
use super::opcode::*;
use super::resources::FIRST_UAR;
use crate::engine::page_fault::kind;

/// Commands that initialize a device.
pub(crate) const BEGINNING: [u16; 2] = [ENABLE_HCA, INIT_HCA];

/// Commands in an order in which all succeed. The last ones need an Ethernet port.
pub(crate) const OPCODES: [u16; 43] = [
    ALLOC_PD,
    ALLOC_UAR,
    ALLOC_XRCD,
    ALLOC_TRANSPORT_DOMAIN,
    CREATE_UCTX,
    CREATE_UMEM,
    ALLOC_Q_COUNTER,
    CREATE_EQ,
    CREATE_CQ,
    CREATE_MKEY,
    CREATE_XRC_SRQ,
    CREATE_RMP,
    SET_ROCE_ADDRESS,
    CREATE_QP,
    RST2INIT_QP,
    INIT2RTR_QP,
    RTR2RTS_QP,
    QUERY_QP,
    RTS2RTS_QP,
    QUERY_CQ,
    QUERY_EQ,
    QUERY_MKEY,
    QUERY_XRC_SRQ,
    QUERY_RMP,
    MODIFY_CQ,
    ARM_XRC_SRQ,
    QUERY_HCA_VPORT_GID,
    QUERY_HCA_VPORT_PKEY,
    QUERY_Q_COUNTER,
    QUERY_VPORT_COUNTER,
    ACCESS_REG,
    QUERY_PAGES,
    CREATE_TIS,
    CREATE_RQ,
    CREATE_SQ,
    CREATE_TIR,
    CREATE_FLOW_TABLE,
    CREATE_FLOW_GROUP,
    ALLOC_FLOW_COUNTER,
    SET_FLOW_TABLE_ENTRY,
    QUERY_FLOW_COUNTER,
    SET_FLOW_TABLE_ROOT,
    QUERY_TIS,
];

/// The number of the first object of each kind.
const PD: u32 = 1;
const XRCD: u32 = 1;
const EQ: u32 = 1;
const CQ: u32 = 0x400;
const QP: u32 = 0x48;
const KEY: u32 = 0x1800;
const SRQ: u32 = 1;
const TIS: u32 = 1;
const RQ: u32 = 0x10;
const TIR: u32 = 1;
/// The flow table, and its flow group.
const FLOW: u32 = 1;
/// The flow counter of the flow entry.
const FLOW_COUNTER: u32 = 1;
/// The device's own GID, for 10.1.0.1.
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 1];
/// Rings have 16 entries, each ring in its own pages, and a doorbell record.
const LOG_SIZE: u8 = 4;
const RINGS: u64 = 0x4_0000;
const RECORDS: u64 = 0x2_0000;
/// Offset of the page list in commands with one.
const PAGES: usize = 0x110;
/// Offset of the context in commands about work queues.
const CONTEXT: usize = 0x20;

/// A valid command for a device whose memory starts at `memory`.
pub(crate) fn command(opcode: u16, memory: u64) -> Vec<u8> {
    let mut input = vec![0; 16];
    input[..2].copy_from_slice(&opcode.to_be_bytes());
    match opcode {
        CREATE_EQ => create_eq(&mut input, memory),
        CREATE_CQ | MODIFY_CQ => create_cq(&mut input, memory),
        CREATE_MKEY => create_mkey(&mut input, memory),
        CREATE_XRC_SRQ => create_xrc_srq(&mut input, memory),
        CREATE_RMP | CREATE_RQ | CREATE_SQ => create_work_queue(&mut input, opcode, memory),
        CREATE_QP | RST2INIT_QP | INIT2RTR_QP | RTR2RTS_QP | RTS2RTS_QP => {
            queue_pair(&mut input, opcode, memory);
        }
        CREATE_TIS | CREATE_TIR => {
            const INLINE_RQN: usize = CONTEXT + 0x1c;
            input.resize(CONTEXT + 0xf0, 0);
            if opcode == CREATE_TIR {
                input[INLINE_RQN..INLINE_RQN + 4].copy_from_slice(&RQ.to_be_bytes());
            }
        }
        CREATE_FLOW_TABLE | CREATE_FLOW_GROUP | SET_FLOW_TABLE_ENTRY | SET_FLOW_TABLE_ROOT
        | QUERY_FLOW_COUNTER => {
            steer(&mut input, opcode);
        }
        SET_ROCE_ADDRESS => set_roce_address(&mut input),
        CREATE_UMEM => create_umem(&mut input, memory),
        QUERY_PAGES => input[7] = 1,
        QUERY_Q_COUNTER | QUERY_VPORT_COUNTER => input.resize(0x20, 0),
        ACCESS_REG => read_counters(&mut input),
        QUERY_HCA_VPORT_GID | QUERY_HCA_VPORT_PKEY => {}
        QUERY_QP => name(&mut input, QP),
        QUERY_CQ => name(&mut input, CQ),
        QUERY_EQ => name(&mut input, EQ),
        QUERY_MKEY => name(&mut input, KEY),
        PAGE_FAULT_RESUME => fill::<PageFaultResumeIn>(&mut input, |view| {
            let mut fault = view.part(PageFaultResumeIn::PAGE_FAULT_INFO);
            set(
                &mut fault,
                &[
                    (TransPageFaultInfo::PAGE_FAULT_TYPE, kind::RECEIVE.into()),
                    (TransPageFaultInfo::WQ_NUMBER, QP.into()),
                    (TransPageFaultInfo::FAULT_TOKEN, 1),
                ],
            );
        }),
        QUERY_XRC_SRQ | ARM_XRC_SRQ => name(&mut input, SRQ),
        QUERY_RMP => name(&mut input, SRQ + 1),
        QUERY_TIS => name(&mut input, TIS),
        _ => {}
    }
    input
}

/// Reads the PPCNT register with the group of error counters.
fn read_counters(input: &mut Vec<u8>) {
    const READ: u8 = 1;
    const PPCNT: u16 = 0x5008;
    const GROUP: u8 = 0x20;
    input[7] = READ;
    input[10..12].copy_from_slice(&PPCNT.to_be_bytes());
    input.extend_from_slice(&[0, 1, 0, GROUP]);
    input.resize(16 + 0x100, 0);
}

/// Sets the object number in the third word.
fn name(input: &mut [u8], number: u32) {
    input[9..12].copy_from_slice(&number.to_be_bytes()[1..]);
}

/// Extends the command to the size of a structure and writes it at the start.
fn fill<L: Layout>(input: &mut Vec<u8>, write: impl FnOnce(&mut ViewMut<'_, L>)) {
    input.resize(input.len().max(L::SIZE), 0);
    if let Some(mut view) = ViewMut::new(input) {
        write(&mut view);
    }
}

fn set<L: Layout>(view: &mut ViewMut<'_, L>, fields: &[(Field<L>, u64)]) {
    for (field, value) in fields {
        view.set(*field, *value);
    }
}

/// Appends the page list of the `index`th ring.
fn pages(input: &mut Vec<u8>, memory: u64, index: u64) {
    input.resize(PAGES, 0);
    for page in 0..2 {
        input.extend_from_slice(&(memory + RINGS + (2 * index + page) * 0x1000).to_be_bytes());
    }
}

fn create_umem(input: &mut Vec<u8>, memory: u64) {
    fill::<CreateUmemIn>(input, |view| {
        set(&mut view.part(CreateUmemIn::UMEM), &[(Umem::NUM_OF_MTT, 1), (Umem::PAGE_OFFSET, 0x100)]);
    });
    input.extend_from_slice(&(memory + RECORDS).to_be_bytes());
}

fn create_eq(input: &mut Vec<u8>, memory: u64) {
    const EVENTS: usize = 0x58;
    fill::<CreateEqIn>(input, |view| {
        let mut context = view.part(CreateEqIn::EQ_CONTEXT_ENTRY);
        set(&mut context, &[(Eqc::LOG_EQ_SIZE, LOG_SIZE.into()), (Eqc::UAR_PAGE, FIRST_UAR.into())]);
    });
    input[EVENTS..EVENTS + 8].fill(0xff);
    pages(input, memory, 0);
}

fn create_cq(input: &mut Vec<u8>, memory: u64) {
    let modify = input[1] == MODIFY_CQ as u8;
    fill::<CreateCqIn>(input, |view| {
        let mut context = view.part(CreateCqIn::CQ_CONTEXT);
        set(
            &mut context,
            &[
                (Cqc::LOG_CQ_SIZE, LOG_SIZE.into()),
                (Cqc::UAR_PAGE, FIRST_UAR.into()),
                (Cqc::C_EQN_OR_APU_ELEMENT, EQ.into()),
                (Cqc::DBR_ADDR, memory + RECORDS),
            ],
        );
    });
    if modify {
        name(input, CQ);
    }
    pages(input, memory, 1);
}

fn create_mkey(input: &mut Vec<u8>, memory: u64) {
    /// Access mode MTT, all access rights, any QP.
    const RIGHTS: [u8; 4] = [0x00, 0x00, 0x7c, 0x00];
    fill::<CreateMkeyIn>(input, |view| {
        view.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, 1u8);
        let mut context = view.part(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY);
        context.fill(&RIGHTS);
        set(
            &mut context,
            &[(Mkc::QPN, 0xff_ffff), (Mkc::PD, PD.into()), (Mkc::LEN, 0x2000), (Mkc::LOG_PAGE_SIZE, 12)],
        );
    });
    // The number of entries in the list, in units of 16 bytes.
    const ENTRIES: usize = 16 + 0x34;
    input[ENTRIES..ENTRIES + 4].copy_from_slice(&1u32.to_be_bytes());
    pages(input, memory, 8);
}

fn create_xrc_srq(input: &mut Vec<u8>, memory: u64) {
    fill::<CreateXrcSrqIn>(input, |view| {
        let mut context = view.part(CreateXrcSrqIn::XRC_SRQ_CONTEXT_ENTRY);
        set(
            &mut context,
            &[
                (XrcSrqc::LOG_XRC_SRQ_SIZE, LOG_SIZE.into()),
                (XrcSrqc::LOG_RQ_STRIDE, 1),
                (XrcSrqc::XRCD, XRCD.into()),
                (XrcSrqc::PD, PD.into()),
                (XrcSrqc::CQN, CQ.into()),
                (XrcSrqc::DB_RECORD_ADDR_L, (memory + RECORDS + 0x40) >> 2),
            ],
        );
    });
    pages(input, memory, 2);
}

fn create_work_queue(input: &mut Vec<u8>, opcode: u16, memory: u64) {
    const CYCLIC: u64 = 1;
    let (log_stride, ring) = match opcode {
        CREATE_RMP => (5, 3),
        CREATE_RQ => (4, 4),
        _ => (6, 5),
    };
    pages(input, memory, ring);
    let at = input.split_at_mut(CONTEXT).1;
    let work_queue = |wq: &mut ViewMut<'_, Wq>| {
        let kind = if opcode == CREATE_RMP { 0 } else { CYCLIC };
        set(
            wq,
            &[
                (Wq::WQ_TYPE, kind),
                (Wq::PD, PD.into()),
                (Wq::UAR_PAGE, FIRST_UAR.into()),
                (Wq::DBR_ADDR, memory + RECORDS + 0x40 * ring),
                (Wq::LOG_WQ_STRIDE, log_stride),
                (Wq::LOG_WQ_SZ, LOG_SIZE.into()),
            ],
        );
    };
    match opcode {
        CREATE_RMP => {
            if let Some(mut context) = ViewMut::<Rmpc>::new(at) {
                work_queue(&mut context.part(Rmpc::WQ));
            }
        }
        CREATE_RQ => {
            if let Some(mut context) = ViewMut::<Rqc>::new(at) {
                context.set(Rqc::CQN, CQ).set(Rqc::STATE, 1u8);
                work_queue(&mut context.part(Rqc::WQ));
            }
        }
        _ => {
            if let Some(mut context) = ViewMut::<Sqc>::new(at) {
                context.set(Sqc::CQN, CQ).set(Sqc::TIS_LST_SZ, 1u8).set(Sqc::TIS_NUM_0, TIS);
                work_queue(&mut context.part(Sqc::WQ));
            }
        }
    }
}

/// Steers all frames to the TIR.
fn steer(input: &mut Vec<u8>, opcode: u16) {
    const FORWARD_AND_COUNT: u64 = 1 << 2 | 1 << 3;
    const ENTRY: usize = 0x40;
    const DESTINATIONS: usize = ENTRY + 0x300;
    const TO_TIR: u32 = 2 << 24;
    match opcode {
        CREATE_FLOW_TABLE => fill::<CreateFlowTableIn>(input, |_| {}),
        CREATE_FLOW_GROUP => fill::<CreateFlowGroupIn>(input, |view| {
            set(view, &[(CreateFlowGroupIn::TABLE_ID, FLOW.into()), (CreateFlowGroupIn::END_FLOW_INDEX, 3)]);
        }),
        QUERY_FLOW_COUNTER => fill::<QueryFlowCounterIn>(input, |view| {
            set(view, &[(QueryFlowCounterIn::FLOW_COUNTER_ID, FLOW_COUNTER.into())]);
        }),
        SET_FLOW_TABLE_ROOT => fill::<SetFlowTableRootIn>(input, |view| {
            set(view, &[(SetFlowTableRootIn::TABLE_ID, FLOW.into())]);
        }),
        _ => {
            fill::<SetFteIn>(input, |view| set(view, &[(SetFteIn::TABLE_ID, FLOW.into())]));
            input.resize(DESTINATIONS + 16, 0);
            if let Some(mut context) = ViewMut::<FlowContext>::new(&mut input[ENTRY..]) {
                context
                    .set(FlowContext::GROUP_ID, FLOW)
                    .set(FlowContext::ACTION, FORWARD_AND_COUNT)
                    .set(FlowContext::DESTINATION_LIST_SIZE, 1u8)
                    .set(FlowContext::FLOW_COUNTER_LIST_SIZE, 1u8);
            }
            input[DESTINATIONS..DESTINATIONS + 4].copy_from_slice(&(TO_TIR | TIR).to_be_bytes());
            input[DESTINATIONS + 8..DESTINATIONS + 12].copy_from_slice(&FLOW_COUNTER.to_be_bytes());
        }
    }
}

fn set_roce_address(input: &mut Vec<u8>) {
    const ADDRESS: usize = 16;
    const V2: u8 = 2;
    input.resize(ADDRESS + RoceAddrLayout::SIZE, 0);
    input[ADDRESS..ADDRESS + GID.len()].copy_from_slice(&GID);
    if let Some(mut address) = ViewMut::<RoceAddrLayout>::new(&mut input[ADDRESS..]) {
        address.set(RoceAddrLayout::ROCE_VERSION, V2);
    }
}

/// An RC QP connected to itself.
fn queue_pair(input: &mut Vec<u8>, opcode: u16, memory: u64) {
    fill::<CreateQpIn>(input, |view| {
        let mut context = view.part(CreateQpIn::QPC);
        set(
            &mut context,
            &[
                (Qpc::PD, PD.into()),
                (Qpc::MTU, 3),
                (Qpc::LOG_RQ_SIZE, LOG_SIZE.into()),
                (Qpc::LOG_SQ_SIZE, LOG_SIZE.into()),
                (Qpc::UAR_PAGE, FIRST_UAR.into()),
                (Qpc::REMOTE_QPN, QP.into()),
                (Qpc::CQN_SND, CQ.into()),
                (Qpc::CQN_RCV, CQ.into()),
                (Qpc::DBR_ADDR, memory + RECORDS + 0x200),
                (Qpc::RRE, 1),
                (Qpc::RWE, 1),
                (Qpc::RAE, 1),
                (Qpc::RETRY_COUNT, 7),
                (Qpc::RNR_RETRY, 7),
            ],
        );
        context
            .part(Qpc::PRIMARY_ADDRESS_PATH)
            .set(AddressPath::RLID, 1u8)
            .set_bytes(AddressPath::RGID_RIP, &GID);
    });
    if opcode == CREATE_QP {
        pages(input, memory, 6);
    } else {
        name(input, QP);
    }
}
