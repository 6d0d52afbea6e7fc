//! Capabilities of the device.

use super::bits::ViewMut;
use super::layout::caps::{
    AtomicCaps, DebugCap, DeviceMemoryCap, EthernetCap, FlowTableCap, HcaCap, NicFlowCap, OdpCap,
    OdpSchemeCap, OdpServiceCap, QosCap, RoceCap,
};
use super::limits as firmware;
use crate::engine::{LONGEST_RUN, Link, limits};
use crate::memory::{DEVICE_MEMORY_SIZE, DEVICE_MEMORY_START};

/// Timestamps and the free-running timer count nanoseconds.
pub(crate) const TIMER_KHZ: u32 = 1_000_000;
/// Number of ports.
pub(crate) const PORTS: u8 = 1;

const SIZE: usize = 0x1000;

mod kind {
    pub(super) const GENERAL: u16 = 0;
    pub(super) const ETHERNET: u16 = 1;
    pub(super) const ODP: u16 = 2;
    pub(super) const ATOMIC: u16 = 3;
    pub(super) const ROCE: u16 = 4;
    pub(super) const FLOW: u16 = 7;
    pub(super) const QOS: u16 = 0xc;
    pub(super) const DEBUG: u16 = 0xd;
    pub(super) const DEVICE_MEMORY: u16 = 0xf;
}

/// The capability block of a type. Returns `None` for an unsupported type.
pub(super) fn block(link: Link, cqe_version: u8, of: u16) -> Option<Vec<u8>> {
    let mut bytes = vec![0; SIZE];
    match (of, link) {
        (kind::GENERAL, _) => general(&mut ViewMut::new(&mut bytes)?, link, cqe_version),
        (kind::DEVICE_MEMORY, _) => device_memory(&mut ViewMut::new(&mut bytes)?),
        (kind::QOS, _) => packet_pacing(&mut ViewMut::new(&mut bytes)?),
        (kind::DEBUG, _) => {
            ViewMut::new(&mut bytes)?.set(DebugCap::RESOURCE_DUMP, 1u8);
        }
        (kind::ATOMIC, _) => atomic(&mut ViewMut::new(&mut bytes)?),
        (kind::ODP, _) => on_demand(&mut ViewMut::new(&mut bytes)?),
        (kind::ETHERNET, Link::Ethernet) => ethernet(&mut ViewMut::new(&mut bytes)?),
        (kind::ROCE, Link::Ethernet) => roce(&mut ViewMut::new(&mut bytes)?),
        (kind::FLOW, Link::Ethernet) => flow(&mut ViewMut::new(&mut bytes)?),
        // Programs ask for the block. There are no flow tables.
        (kind::FLOW, Link::InfiniBand) => {}
        _ => return None,
    }
    Some(bytes)
}

fn general(cap: &mut ViewMut<'_, HcaCap>, link: Link, cqe_version: u8) {
    cap.set(HcaCap::LOG_MAX_QP, limits::LOG_QPS)
        .set(HcaCap::LOG_MAX_QP_SZ, 15u8)
        .set(HcaCap::LOG_MAX_SRQ, limits::LOG_SRQS)
        .set(HcaCap::LOG_MAX_SRQ_SZ, 15u8)
        .set(HcaCap::LOG_MAX_RMP, limits::LOG_SRQS)
        .set(HcaCap::LOG_MAX_CQ, limits::LOG_CQS)
        .set(HcaCap::LOG_MAX_CQ_SZ, firmware::LOG_CQ_SIZE)
        .set(HcaCap::LOG_MAX_EQ, 6u8)
        .set(HcaCap::LOG_MAX_EQ_SZ, firmware::LOG_EQ_SIZE)
        .set(HcaCap::MAX_NUM_EQS, limits::EQS as u64)
        .set(HcaCap::LOG_MAX_MKEY, limits::LOG_MKEYS)
        .set(HcaCap::LOG_MAX_MRW_SZ, 36u8)
        .set(HcaCap::LOG_MAX_KLM_LIST_SIZE, 16u8)
        .set(HcaCap::MAX_INDIRECTION, 4u8)
        .set(HcaCap::FIXED_BUFFER_SIZE, 1u8)
        .set(HcaCap::UMR_EXTENDED_TRANSLATION_OFFSET, 1u8)
        .set(HcaCap::NULL_MKEY, 1u8)
        .set(HcaCap::MKEY_PCIE_TPH, 1u8)
        .set(HcaCap::DUMP_FILL_MKEY, 1u8)
        .set(HcaCap::TERMINATE_SCATTER_LIST_MKEY, 1u8)
        .set(HcaCap::IMAICL, 1u8)
        .set(HcaCap::RELAXED_ORDERING_WRITE, 1u8)
        .set(HcaCap::RELAXED_ORDERING_WRITE_UMR, 1u8)
        .set(HcaCap::RELAXED_ORDERING_READ_PCI_ENABLED, 1u8)
        .set(HcaCap::RELAXED_ORDERING_READ_UMR, 1u8)
        .set(HcaCap::DEBUG, 1u8)
        .set(HcaCap::QOS, 1u8)
        .set(HcaCap::LOG_MAX_RA_REQ_QP, 4u8)
        .set(HcaCap::LOG_MAX_RA_RES_QP, 4u8)
        .set(HcaCap::LOG_MAX_MSG, 30u8)
        .set(HcaCap::LOG_PG_SZ, 12u8)
        .set(HcaCap::LOG_MAX_PD, firmware::LOG_PDS)
        .set(HcaCap::LOG_MAX_XRCD, firmware::LOG_XRCDS)
        .set(HcaCap::LOG_MAX_TRANSPORT_DOMAIN, firmware::LOG_TRANSPORT_DOMAINS)
        .set(HcaCap::LOG_MAX_UCTX, firmware::LOG_USER_CONTEXTS)
        .set(HcaCap::LOG_MAX_UMEM, firmware::LOG_UMEMS)
        .set(HcaCap::LOG_MAX_MCG, 8u8)
        .set(HcaCap::MAX_QP_MCG, limits::QPS_PER_GROUP as u64)
        .set(HcaCap::MAX_WQE_SZ_SQ, 1024u16)
        .set(HcaCap::MAX_WQE_SZ_RQ, 512u16)
        .set(HcaCap::LOG_BF_REG_SIZE, 9u8)
        .set(HcaCap::DEVICE_FREQUENCY_KHZ, TIMER_KHZ)
        .set(HcaCap::DEVICE_FREQUENCY_MHZ, TIMER_KHZ / 1000)
        .set(HcaCap::NUM_PORTS, PORTS)
        .set(HcaCap::LOCAL_CA_ACK_DELAY, 15u8)
        .set(HcaCap::CQE_VERSION, cqe_version)
        .set(HcaCap::ECE_SUPPORT, 1u8)
        .set(HcaCap::SCTR_DATA_CQE, 1u8)
        .set(HcaCap::DEVICE_MEMORY, 1u8)
        .set(HcaCap::CQ_OI, 1u8)
        .set(HcaCap::CQ_RESIZE, 1u8)
        .set(HcaCap::CQ_MODERATION, 1u8)
        .set(HcaCap::PG, 1u8)
        .set(HcaCap::END_PAD, 1u8)
        .set(HcaCap::CQE_COMPRESSION, 1u8)
        .set(HcaCap::MINI_CQE_RESP_STRIDE_INDEX, 1u8)
        .set(HcaCap::CQE_COMPRESSION_TIMEOUT, 1u8)
        .set(HcaCap::CQE_COMPRESSION_MAX_NUM, LONGEST_RUN as u64)
        .set(HcaCap::BLOCK_LB_MC, 1u8)
        .set(HcaCap::ATOMIC, 1u8)
        .set(HcaCap::RC, 1u8)
        .set(HcaCap::UC, 1u8)
        .set(HcaCap::UD, 1u8)
        .set(HcaCap::XRC, 1u8)
        .set(HcaCap::PKV, 1u8)
        .set(HcaCap::QKV, 1u8)
        .set(HcaCap::VPORT_COUNTERS, 1u8)
        .set(HcaCap::MAX_QP_CNT, firmware::COUNTER_SETS as u64)
        .set(HcaCap::OUT_OF_SEQ_CNT, 1u8)
        .set(HcaCap::LOG_MAX_RQ, limits::LOG_RQS)
        .set(HcaCap::LOG_MAX_SQ, limits::LOG_RQS)
        .set(HcaCap::LOG_MAX_TIR, firmware::LOG_TIRS)
        .set(HcaCap::LOG_MAX_TIS, firmware::LOG_TISES)
        .set(HcaCap::LOG_MAX_STRIDE_SZ_RQ, 12u8)
        .set(HcaCap::LOG_MIN_STRIDE_SZ_RQ, 4u8)
        .set(HcaCap::LOG_MAX_STRIDE_SZ_SQ, 12u8)
        .set(HcaCap::LOG_MIN_STRIDE_SZ_SQ, 6u8)
        .set(HcaCap::LOG_MAX_WQ_SZ, firmware::LOG_WQ_SIZE)
        .set(HcaCap::BASIC_CYCLIC_RCV_WQE, 1u8);
    match link {
        Link::InfiniBand => {
            cap.set(HcaCap::IB_VIRT, 1u8).set(HcaCap::APM, 1u8);
        }
        Link::Ethernet => {
            cap.set(HcaCap::PORT_TYPE, 1u8)
                .set(HcaCap::ETH_VIRT, 1u8)
                .set(HcaCap::ETH_NET_OFFLOADS, 1u8)
                .set(HcaCap::NIC_FLOW_TABLE, 1u8)
                .set(HcaCap::ROCE, 1u8)
                .set(HcaCap::RTS2RTS_QP_UDP_SPORT, 1u8)
                .set(HcaCap::LOG_MAX_RQT, firmware::LOG_RQTS)
                .set(HcaCap::LOG_MAX_RQT_SIZE, firmware::LOG_RQT_SIZE)
                .set(HcaCap::LOG_MAX_L2_TABLE, 8u8)
                .set(HcaCap::LOG_MAX_CURRENT_UC_LIST, 7u8)
                .set(HcaCap::LOG_MAX_CURRENT_MC_LIST, 7u8)
                .set(HcaCap::LOG_MAX_VLAN_LIST, 10u8)
                .set(HcaCap::MAX_TC, 8u8);
        }
    }
}

fn packet_pacing(cap: &mut ViewMut<'_, QosCap>) {
    cap.set(QosCap::PACKET_PACING, 1u8)
        .set(QosCap::PACKET_PACING_BURST_BOUND, 1u8)
        .set(QosCap::PACKET_PACING_TYPICAL_SIZE, 1u8)
        .set(QosCap::PACKET_PACING_REQ_UD, 1u8)
        .set(QosCap::PACKET_PACING_REQ_UC, 1u8)
        .set(QosCap::PACKET_PACING_MAX_RATE, firmware::LARGEST_RATE)
        .set(QosCap::PACKET_PACING_MIN_RATE, firmware::SMALLEST_RATE)
        .set(QosCap::PACKET_PACING_RATE_TABLE_SIZE, firmware::RATES);
}

fn device_memory(cap: &mut ViewMut<'_, DeviceMemoryCap>) {
    /// Smallest allocation, log2 of bytes; largest alignment, log2 in units of the smallest
    /// allocation.
    const SMALLEST: u8 = 6;
    const LARGEST_ALIGNMENT: u8 = 6;
    cap.set(DeviceMemoryCap::MEMIC, 1u8)
        .set(DeviceMemoryCap::LOG_MIN_MEMIC_ALLOC_SIZE, SMALLEST)
        .set(DeviceMemoryCap::LOG_MAX_MEMIC_ADDR_ALIGNMENT, LARGEST_ALIGNMENT)
        .set(DeviceMemoryCap::MEMIC_BAR_START_ADDR, DEVICE_MEMORY_START)
        .set(DeviceMemoryCap::MEMIC_BAR_SIZE, DEVICE_MEMORY_SIZE)
        .set(DeviceMemoryCap::MAX_MEMIC_SIZE, DEVICE_MEMORY_SIZE);
}

fn atomic(cap: &mut ViewMut<'_, AtomicCaps>) {
    const COMPARE_SWAP: u16 = 1 << 0;
    const FETCH_ADD: u16 = 1 << 1;
    const MASKED: u16 = 3 << 2;
    const EIGHT_BYTES: u16 = 1 << 3;
    cap.set(AtomicCaps::ATOMIC_OPERATIONS, COMPARE_SWAP | FETCH_ADD | MASKED)
        .set(AtomicCaps::ATOMIC_SIZE_QP, EIGHT_BYTES)
        .set(AtomicCaps::ATOMIC_REQ_8B_ENDIANNESS_MODE, 1u8)
        .set(AtomicCaps::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1, 1u8);
}

fn on_demand(cap: &mut ViewMut<'_, OdpCap>) {
    let mut transports = cap.part(OdpCap::TRANSPORT_PAGE_FAULT_SCHEME_CAP);
    for transport in [OdpSchemeCap::RC_ODP_CAPS, OdpSchemeCap::XRC_ODP_CAPS] {
        transports
            .part(transport)
            .set(OdpServiceCap::SEND, 1u8)
            .set(OdpServiceCap::RECEIVE, 1u8)
            .set(OdpServiceCap::WRITE, 1u8)
            .set(OdpServiceCap::READ, 1u8)
            .set(OdpServiceCap::ATOMIC, 1u8)
            .set(OdpServiceCap::SRQ_RECEIVE, 1u8);
    }
    transports.part(OdpSchemeCap::UD_ODP_CAPS).set(OdpServiceCap::SEND, 1u8);
}

fn ethernet(cap: &mut ViewMut<'_, EthernetCap>) {
    cap.set(EthernetCap::CSUM_CAP, 1u8)
        .set(EthernetCap::VLAN_CAP, 1u8)
        .set(EthernetCap::MAX_LSO_CAP, limits::LOG_LARGE_SEND)
        .set(EthernetCap::RSS_IND_TBL_CAP, 7u8)
        .set(EthernetCap::SCATTER_FCS, 1u8)
        .set(EthernetCap::SELF_LB_EN_MODIFIABLE, 1u8)
        .set(EthernetCap::WQE_INLINE_MODE, 1u8);
}

fn roce(cap: &mut ViewMut<'_, RoceCap>) {
    const IPV4_AND_IPV6: u8 = 1 << 1 | 1 << 2;
    const V1_AND_V2: u8 = 1 << 0 | 1 << 2;
    cap.set(RoceCap::L3_TYPE, IPV4_AND_IPV6)
        .set(RoceCap::ROCE_VERSION, V1_AND_V2)
        .set(RoceCap::R_ROCE_DEST_UDP_PORT, 4791u16)
        .set(RoceCap::R_ROCE_MIN_SRC_UDP_PORT, 0xc000u16)
        .set(RoceCap::R_ROCE_MAX_SRC_UDP_PORT, 0xffffu16)
        .set(RoceCap::ROCE_ADDRESS_TABLE_SIZE, crate::engine::port::GIDS as u64);
}

fn flow(cap: &mut ViewMut<'_, NicFlowCap>) {
    /// Bit range of the supported match fields in the flow table properties.
    const FIELDS: std::ops::Range<usize> = 0x20..0x40;
    // An entry may forward to several TIRs and tables, and sniffers may use the TIRs of receive tables.
    cap.set(NicFlowCap::NIC_RX_MULTI_PATH_TIRS, 1u8)
        .set(NicFlowCap::ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR, 1u8);
    for sniffer in [
        NicFlowCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE_SNIFFER,
        NicFlowCap::FLOW_TABLE_PROPERTIES_NIC_TRANSMIT_SNIFFER,
    ] {
        flow_table(&mut cap.part(sniffer));
    }
    let mut table = cap.part(NicFlowCap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE);
    let mut bytes = [0; 0x40];
    // All outer headers, for field and bit mask matches.
    bytes[FIELDS.start..FIELDS.start + 2].fill(0xff);
    bytes[FIELDS.start + 16..FIELDS.start + 18].fill(0xff);
    table.fill(&bytes);
    flow_table(&mut table);
}

/// What all tables support.
fn flow_table(table: &mut ViewMut<'_, FlowTableCap>) {
    table
        .set(FlowTableCap::FT_SUPPORT, 1u8)
        .set(FlowTableCap::FLOW_COUNTER, 1u8)
        // One counter for each entry.
        .set(FlowTableCap::LOG_MAX_FLOW_COUNTER, 0u8)
        .set(FlowTableCap::FLOW_MODIFY_EN, 1u8)
        .set(FlowTableCap::MODIFY_ROOT, 1u8)
        .set(FlowTableCap::IDENTIFIED_MISS_TABLE_MODE, 1u8)
        .set(FlowTableCap::FLOW_TABLE_MODIFY, 1u8)
        .set(FlowTableCap::LOG_MAX_FT_SIZE, 20u8)
        .set(FlowTableCap::MAX_FT_LEVEL, 64u8)
        .set(FlowTableCap::LOG_MAX_FT_NUM, firmware::LOG_FLOW_TABLES)
        .set(FlowTableCap::LOG_MAX_DESTINATION, 6u8)
        .set(FlowTableCap::LOG_MAX_FLOW, 20u8);
}
