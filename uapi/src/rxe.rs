//! User ABI of Soft-RoCE (rxe): driver payloads, and queues shared with the kernel.
//!
//! A queue is a [`QueueBuf`] header and its slots. The number of slots and their size are powers of
//! 2, both in the header. A send slot has a [`SendWqe`] and its data, a receive slot a [`RecvWqe`]
//! and its [`Sge`]s, a completion slot a [`Wc`](crate::write::structs::Wc). One slot is always
//! empty.

use crate::abi::Be16;
use crate::rdma_cm::address::AddressFamily;
use crate::uverbs::types::AccessFlags;
use crate::verbs_values::{SendFlags, WcStatus};
use crate::write::types::{PlacementType, SelectivityLevel, WrOpcode};
use crate::{uverbs, write};
use zerocopy::{FromBytes, IntoBytes};

abi_structs! {
    header = "rdma/rdma_user_rxe.h";

    /// Global route of a path (GRH).
    struct GlobalRoute align(8) = tag "rxe_global_route" {
        /// Destination GID.
        dgid: [u8; 16];
        /// Flow label, 20 bits.
        flow_label: u32;
        /// Source GID index.
        sgid_index: u8;
        /// Hop limit.
        hop_limit: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Zero.
        padding: u8 = "";
    }

    /// A socket address of either family, in one layout.
    struct SocketAddress = expr "__typeof__(((struct rxe_av *)0)->sgid_addr)" {
        /// [`AddressFamily::INET`] or [`AddressFamily::INET6`].
        family: AddressFamily = "_sockaddr_in6.sin6_family";
        /// Port; unused.
        port: Be16 = "_sockaddr_in6.sin6_port";
        /// The address of family `AF_INET`; the flow label of `AF_INET6`.
        ipv4: [u8; 4] = "_sockaddr_in.sin_addr";
        /// The address of family `AF_INET6`.
        ipv6: [u8; 16] = "_sockaddr_in6.sin6_addr";
        /// Scope of family `AF_INET6`; unused.
        scope_id: u32 = "_sockaddr_in6.sin6_scope_id";
    }

    /// A path to a peer.
    struct Av = tag "rxe_av" {
        /// The port.
        port_num: u8;
        /// Network type: the type of the addresses below.
        network_type: NetworkType;
        /// Ethernet address of the next hop.
        dmac: [u8; 6];
        /// Global route (GRH).
        grh: GlobalRoute;
        /// Source address.
        sgid_addr: SocketAddress;
        /// Destination address.
        dgid_addr: SocketAddress;
    }

    /// [`SendWr::wr`] of a flush.
    struct FlushWr = expr "__typeof__(((struct rxe_send_wr *)0)->wr.flush)" since V6_12 {
        /// Remote address.
        remote_addr: u64;
        /// Length in bytes.
        length: u32;
        /// Remote key (rkey).
        rkey: u32;
        /// Placement type.
        placement: PlacementType = "type" since V6_12;
        /// Selectivity level.
        level: SelectivityLevel;
        /// Zero.
        padding: [u8; 6] = "";
    }

    /// [`SendWr::wr`] of RDMA READs, RDMA WRITEs and atomic writes.
    struct RdmaWr = expr "__typeof__(((struct rxe_send_wr *)0)->wr.rdma)" {
        /// Remote address.
        remote_addr: u64;
        /// Remote key (rkey).
        rkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// [`SendWr::wr`] of atomics.
    struct AtomicWr = expr "__typeof__(((struct rxe_send_wr *)0)->wr.atomic)" {
        /// Remote address, a multiple of 8.
        remote_addr: u64;
        /// Addend, or compare value.
        compare_add: u64;
        /// Swap value.
        swap: u64;
        /// Remote key (rkey).
        rkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// [`SendWr::wr`] of datagrams.
    struct UdWr = expr "__typeof__(((struct rxe_send_wr *)0)->wr.ud)" {
        /// QPN of the peer.
        remote_qpn: u32;
        /// Q_Key of the peer.
        remote_qkey: u32;
        /// P_Key index.
        pkey_index: u16;
        /// Zero.
        reserved: u16;
        /// Number of the address handle; if 0, the kernel reads `av`.
        ah_num: u32;
        /// Zero.
        pad: [u32; 4];
        /// The path, for address handles without a number.
        av: Av;
    }

    /// [`SendWr::wr`] of a bind of a memory window.
    struct MwWr = expr "__typeof__(((struct rxe_send_wr *)0)->wr.mw)" {
        /// First address of the window.
        addr: u64;
        /// Length in bytes.
        length: u64;
        /// Local key of the memory region.
        mr_lkey: u32;
        /// Current rkey of the window.
        mw_rkey: u32;
        /// New rkey of the window.
        rkey: u32;
        /// Access flags.
        access: AccessFlags;
    }

    /// A send request. [`SendWr::set`] and [`SendWr::get`] access `wr` as one of its forms.
    struct SendWr = tag "rxe_send_wr" {
        /// The `wr_id`.
        wr_id: u64;
        /// Zero.
        reserved: u32;
        /// Opcode.
        opcode: WrOpcode;
        /// Flags.
        send_flags: SendFlags;
        /// Immediate data in network byte order, or the rkey to invalidate.
        ex: u32;
        /// [`FlushWr`], [`RdmaWr`], [`AtomicWr`], [`UdWr`] or [`MwWr`].
        wr: [u64; 15];
    }

    /// A scatter/gather element.
    struct Sge = tag "rxe_sge" {
        /// Address of the first byte.
        addr: u64;
        /// Length in bytes.
        length: u32;
        /// Local key (lkey).
        lkey: u32;
    }

    /// Mapping of a queue shared with the kernel; valid for one `mmap`.
    struct MmapInfo = tag "mminfo" {
        /// Offset for `mmap` of the device file.
        offset: u64;
        /// Length of the mapping in bytes.
        size: u32;
        /// Zero.
        pad: u32;
    }

    /// DMA state of a request. The data follows in one of three forms.
    struct DmaInfo = tag "rxe_dma_info" {
        /// Total length in bytes.
        length: u32;
        /// Remaining length in bytes; initially `length`.
        resid: u32;
        /// Index of the current SGE; initially 0.
        cur_sge: u32;
        /// Number of SGEs.
        num_sge: u32;
        /// Offset in the current SGE; initially 0.
        sge_offset: u32;
        /// Zero.
        reserved: u32;
        /// Start of inline data.
        inline_data: [u8; 0];
        /// Value of an atomic write, 8 bytes.
        atomic_wr: [u8; 0] = "atomic_wr" since V6_12;
        /// Start of the SGEs.
        sge: [Sge; 0];
    }

    /// A slot of a send queue.
    struct SendWqe = tag "rxe_send_wqe" {
        /// The request.
        wr: SendWr;
        /// Status; written by the kernel.
        status: u32 as WcStatus;
        /// State; initially 0, then written by the kernel.
        state: u32;
        /// Copy of the remote address, which the kernel advances.
        iova: u64;
        /// Opcode flags; written by the kernel.
        mask: u32;
        /// First PSN; written by the kernel.
        first_psn: u32;
        /// Last PSN; written by the kernel.
        last_psn: u32;
        /// Acknowledged bytes; written by the kernel.
        ack_length: u32;
        /// Send sequence number (SSN); written by the kernel.
        ssn: u32;
        /// Whether it uses an RDMA READ and atomic resource; written by the kernel.
        has_rd_atomic: u32;
        /// Its data.
        dma: DmaInfo;
    }

    /// A slot of a receive queue or shared receive queue.
    struct RecvWqe = tag "rxe_recv_wqe" {
        /// The `wr_id`.
        wr_id: u64;
        /// Zero.
        reserved: u32;
        /// Zero.
        padding: u32;
        /// Its buffers.
        dma: DmaInfo;
    }

    /// Driver response of CREATE_AH.
    struct CreateAhResp = tag "rxe_create_ah_resp" {
        /// The number for [`UdWr::ah_num`].
        ah_num: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver response of CREATE_CQ.
    struct CreateCqResp = tag "rxe_create_cq_resp" {
        /// Its queue.
        mi: MmapInfo;
    }

    /// Driver response of RESIZE_CQ.
    struct ResizeCqResp = tag "rxe_resize_cq_resp" {
        /// Its new queue.
        mi: MmapInfo;
    }

    /// Driver response of CREATE_QP.
    struct CreateQpResp = tag "rxe_create_qp_resp" {
        /// The receive queue; zero with an SRQ.
        rq_mi: MmapInfo;
        /// The send queue.
        sq_mi: MmapInfo;
    }

    /// Driver response of CREATE_SRQ.
    struct CreateSrqResp = tag "rxe_create_srq_resp" {
        /// Its queue.
        mi: MmapInfo;
        /// Its number.
        srq_num: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver request of MODIFY_SRQ.
    struct ModifySrqCmd = tag "rxe_modify_srq_cmd" {
        /// Address to which the kernel writes the [`MmapInfo`] of a resized queue.
        mmap_info_addr: u64;
    }

    /// Header of a queue shared with the kernel. Indices are stored masked.
    struct QueueBuf = tag "rxe_queue_buf" {
        /// Log2 of the slot size in bytes.
        log2_elem_size: u32;
        /// Index mask: number of slots minus 1.
        index_mask: u32;
        /// Padding to the cache line of the producer index.
        pad_1: [u32; 30];
        /// Producer index.
        producer_index: u32;
        /// Padding to the cache line of the consumer index.
        pad_2: [u32; 31];
        /// Consumer index.
        consumer_index: u32;
        /// Padding to the cache line of the slots.
        pad_3: [u32; 31];
        /// Start of the slots.
        data: [u8; 0];
    }
}

abi_enums! {
    header = "rdma/rdma_user_rxe.h";

    /// The family of a path's addresses.
    enum NetworkType : u8 = "" {
        /// IPv4.
        IPV4 = 1, "RXE_NETWORK_TYPE_IPV4";
        /// IPv6.
        IPV6 = 2, "RXE_NETWORK_TYPE_IPV6";
    }
}

driver_payloads! {
    () => CreateAhResp, for [write::CreateAh];
    () => CreateCqResp, for [write::CreateCq, write::ex::CreateCq] methods [uverbs::CqCreate];
    () => ResizeCqResp, for [write::ResizeCq];
    () => CreateQpResp, for [write::CreateQp, write::ex::CreateQp] methods [uverbs::QpCreate];
    () => CreateSrqResp, for [write::CreateSrq, write::CreateXsrq] methods [uverbs::SrqCreate];
    ModifySrqCmd => (), for [write::ModifySrq];
}

/// A form of [`SendWr::wr`].
pub trait WrForm: FromBytes + IntoBytes + zerocopy::Immutable + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! wr_forms {
    ($($form:ident),*) => {$(
        impl sealed::Sealed for $form {}
        impl WrForm for $form {}
        const _: () = assert!(size_of::<$form>() <= size_of::<[u64; 15]>());
    )*};
}

wr_forms!(FlushWr, RdmaWr, AtomicWr, UdWr, MwWr);

impl SendWr {
    /// Writes a form to `wr`. The bytes beyond it are not changed.
    pub fn set<F: WrForm>(&mut self, form: &F) {
        self.wr.as_mut_bytes()[..size_of::<F>()].copy_from_slice(form.as_bytes());
    }

    /// Reads `wr` as a form. The opcode determines which form is valid.
    #[must_use]
    pub fn get<F: WrForm>(&self) -> F {
        let mut form = F::new_zeroed();
        form.as_mut_bytes().copy_from_slice(&self.wr.as_bytes()[..size_of::<F>()]);
        form
    }
}

impl SocketAddress {
    /// An IPv4 address.
    #[must_use]
    pub fn from_ipv4(address: [u8; 4]) -> Self {
        Self { family: AddressFamily::INET, ipv4: address, ..Self::zeroed() }
    }

    /// An IPv6 address.
    #[must_use]
    pub fn from_ipv6(address: [u8; 16]) -> Self {
        Self { family: AddressFamily::INET6, ipv6: address, ..Self::zeroed() }
    }
}
