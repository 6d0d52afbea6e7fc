//! Soft-RoCE's user ABI: driver payloads, and the queues shared with the kernel.
//!
//! A queue is a [`QueueBuf`] and a power-of-two number of slots of a power-of-two size, both told
//! by the header. Send slots hold a [`SendWqe`] and its data, receive slots a [`RecvWqe`] and its
//! [`Sge`]s, completion slots a [`Wc`](crate::write::structs::Wc). One slot stays empty.

use crate::abi::Be16;
use crate::rdma_cm::address::AddressFamily;
use crate::uverbs::types::AccessFlags;
use crate::verbs_values::{SendFlags, WcStatus};
use crate::write::types::{PlacementType, SelectivityLevel, WrOpcode};
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
        /// Which addresses follow.
        network_type: NetworkType;
        /// The next hop's Ethernet address.
        dmac: [u8; 6];
        /// Global route (GRH).
        grh: GlobalRoute;
        /// The source's address.
        sgid_addr: SocketAddress;
        /// The destination's address.
        dgid_addr: SocketAddress;
    }

    /// [`SendWr::wr`] of a flush.
    struct FlushWr = expr "__typeof__(((struct rxe_send_wr *)0)->wr.flush)" since V6_12 {
        /// Remote address.
        remote_addr: u64;
        /// Bytes to flush.
        length: u32;
        /// Remote key (rkey).
        rkey: u32;
        /// What is guaranteed.
        placement: PlacementType = "type" since V6_12;
        /// How much is covered.
        level: SelectivityLevel;
        /// Zero.
        padding: [u8; 6] = "";
    }

    /// [`SendWr::wr`] of RDMA reads, RDMA writes and atomic writes.
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
        /// Number of the address handle; 0 has the kernel read `av`.
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
        /// Key of the memory region beneath.
        mr_lkey: u32;
        /// Key of the window as it is.
        mw_rkey: u32;
        /// Key of the window as it shall be.
        rkey: u32;
        /// What may be done through it.
        access: AccessFlags;
    }

    /// A send request; [`SendWr::set`] and [`SendWr::get`] see `wr` as one of its forms.
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

    /// What to map to share a queue with the kernel; good for one `mmap`.
    struct MmapInfo = tag "mminfo" {
        /// Offset to map the device file at.
        offset: u64;
        /// Bytes to map.
        size: u32;
        /// Zero.
        pad: u32;
    }

    /// Where a request's data are; they follow, in one of three forms.
    struct DmaInfo = tag "rxe_dma_info" {
        /// Bytes of the whole.
        length: u32;
        /// Bytes not yet moved; starts as `length`.
        resid: u32;
        /// The entry in work; starts as 0.
        cur_sge: u32;
        /// Number of entries.
        num_sge: u32;
        /// Offset in the entry in work; starts as 0.
        sge_offset: u32;
        /// Zero.
        reserved: u32;
        /// Where inline data start.
        inline_data: [u8; 0];
        /// Where the value of an atomic write is, 8 bytes.
        atomic_wr: [u8; 0] = "atomic_wr" since V6_12;
        /// Where scatter/gather entries start.
        sge: [Sge; 0];
    }

    /// A slot of a send queue.
    struct SendWqe = tag "rxe_send_wqe" {
        /// The request.
        wr: SendWr;
        /// How it ended; the kernel's.
        status: u32 as WcStatus;
        /// How far it is; starts as 0, then the kernel's.
        state: u32;
        /// The peer's address again, from where the kernel counts.
        iova: u64;
        /// Kind of the opcode; the kernel's.
        mask: u32;
        /// First packet number; the kernel's.
        first_psn: u32;
        /// Last packet number; the kernel's.
        last_psn: u32;
        /// Bytes acknowledged; the kernel's.
        ack_length: u32;
        /// Number of the request; the kernel's.
        ssn: u32;
        /// Whether it counts as a read or atomic; the kernel's.
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

    /// The driver's response to creation of an address handle.
    struct CreateAhResp = tag "rxe_create_ah_resp" {
        /// The number to put into [`UdWr::ah_num`].
        ah_num: u32;
        /// Zero.
        reserved: u32;
    }

    /// The driver's response to creation of a completion queue.
    struct CreateCqResp = tag "rxe_create_cq_resp" {
        /// Its queue.
        mi: MmapInfo;
    }

    /// The driver's response to a resize of a completion queue.
    struct ResizeCqResp = tag "rxe_resize_cq_resp" {
        /// Its new queue.
        mi: MmapInfo;
    }

    /// The driver's response to creation of a queue pair.
    struct CreateQpResp = tag "rxe_create_qp_resp" {
        /// The receive queue; zero with an SRQ.
        rq_mi: MmapInfo;
        /// The send queue.
        sq_mi: MmapInfo;
    }

    /// The driver's response to creation of a shared receive queue.
    struct CreateSrqResp = tag "rxe_create_srq_resp" {
        /// Its queue.
        mi: MmapInfo;
        /// Its number.
        srq_num: u32;
        /// Zero.
        reserved: u32;
    }

    /// The driver's request to change a shared receive queue.
    struct ModifySrqCmd = tag "rxe_modify_srq_cmd" {
        /// Address where the kernel writes the [`MmapInfo`] of a resized queue.
        mmap_info_addr: u64;
    }

    /// Head of a queue shared with the kernel. Indexes are stored masked.
    struct QueueBuf = tag "rxe_queue_buf" {
        /// Logarithm to base 2 of a slot's bytes.
        log2_elem_size: u32;
        /// Number of slots less 1.
        index_mask: u32;
        /// Keeps the producer's index in a cache line of its own.
        pad_1: [u32; 30];
        /// The slot that the producer fills next.
        producer_index: u32;
        /// Keeps the consumer's index in a cache line of its own.
        pad_2: [u32; 31];
        /// The slot that the consumer takes next.
        consumer_index: u32;
        /// Keeps the slots in cache lines of their own.
        pad_3: [u32; 31];
        /// Where the slots start.
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
    /// Writes a form into `wr`; what lies beyond it stays.
    pub fn set<F: WrForm>(&mut self, form: &F) {
        self.wr.as_mut_bytes()[..size_of::<F>()].copy_from_slice(form.as_bytes());
    }

    /// Reads `wr` as a form; whether it is that one depends on the opcode.
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
