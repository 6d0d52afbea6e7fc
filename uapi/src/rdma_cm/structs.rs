//! Requests and responses of the connection manager.
//!
//! The field `response` of a request is the address of the response buffer. [`super::Call`] sets
//! it.

use super::address::{SocketAddressIn6, SocketAddressStorage};
use super::event_type::EventType;
use super::path::{PathRec, PathRecData, ServiceRec};
use super::{IbServiceFlags, JoinFlags, OptionLevel, PortSpace, QueryOption};
use crate::uverbs::types::QpType;
use crate::verbs_values::{self, QpState};
use crate::write::structs::AhAttr;

abi_structs! {
    header = "rdma/rdma_user_cm.h";

    /// Request of [`super::CreateId`].
    struct CreateIdReq = tag "rdma_ucm_create_id" {
        /// User id of the identifier, which its events carry.
        uid: u64;
        /// Address of the response buffer.
        response: u64;
        /// Port space.
        ps: PortSpace;
        /// QP type, as in CREATE_QP.
        qp_type: u8 as QpType;
        /// Must be 0.
        reserved: [u8; 5];
    }

    /// Response of [`super::CreateId`] and of joining a multicast group.
    struct CreateIdResp = tag "rdma_ucm_create_id_resp" {
        /// Kernel id of the identifier or membership.
        id: u32;
    }

    /// Request of [`super::DestroyId`] and [`super::LeaveMcast`].
    struct DestroyIdReq = tag "rdma_ucm_destroy_id" {
        /// Address of the response buffer.
        response: u64;
        /// The identifier or membership.
        id: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// Response of [`super::DestroyId`] and [`super::LeaveMcast`].
    struct DestroyIdResp = tag "rdma_ucm_destroy_id_resp" {
        /// Number of its events that were read so far. The caller must wait until all of them are
        /// acknowledged.
        events_reported: u32;
    }

    /// Request of [`super::BindIp`].
    struct BindIpReq = tag "rdma_ucm_bind_ip" {
        /// Not used.
        response: u64;
        /// IPv4 or IPv6 address.
        addr: SocketAddressIn6;
        /// The identifier.
        id: u32;
    }

    /// Request of [`super::Bind`].
    struct BindReq = tag "rdma_ucm_bind" {
        /// The identifier.
        id: u32;
        /// Length of `addr` in bytes.
        addr_size: u16;
        /// Must be 0.
        reserved: u16;
        /// Address of any family.
        addr: SocketAddressStorage;
    }

    /// Request of [`super::ResolveIp`].
    struct ResolveIpReq = tag "rdma_ucm_resolve_ip" {
        /// Local address, or zero for any.
        src_addr: SocketAddressIn6;
        /// Remote address.
        dst_addr: SocketAddressIn6;
        /// The identifier.
        id: u32;
        /// Timeout in milliseconds.
        timeout_ms: u32;
    }

    /// Request of [`super::ResolveAddr`].
    struct ResolveAddrReq = tag "rdma_ucm_resolve_addr" {
        /// The identifier.
        id: u32;
        /// Timeout in milliseconds.
        timeout_ms: u32;
        /// Length of `src_addr` in bytes; 0 for any address.
        src_size: u16;
        /// Length of `dst_addr` in bytes.
        dst_size: u16;
        /// Must be 0.
        reserved: u32;
        /// Local address.
        src_addr: SocketAddressStorage;
        /// Remote address.
        dst_addr: SocketAddressStorage;
    }

    /// Request of [`super::ResolveRoute`].
    struct ResolveRouteReq = tag "rdma_ucm_resolve_route" {
        /// The identifier.
        id: u32;
        /// Timeout in milliseconds.
        timeout_ms: u32;
    }

    /// Request of [`super::QueryRoute`] and [`super::Query`].
    struct QueryReq = tag "rdma_ucm_query" {
        /// Address of the response buffer.
        response: u64;
        /// The identifier.
        id: u32;
        /// Query option; not used by [`super::QueryRoute`].
        option: QueryOption;
    }

    /// Response of [`super::QueryRoute`]. The kernel requires a buffer up to `ibdev_index`,
    /// exclusive.
    struct QueryRouteResp = tag "rdma_ucm_query_route_resp" {
        /// GUID of the device, in network byte order; 0 if no device is bound yet.
        node_guid: u64;
        /// The paths; the first `num_paths` are valid.
        ib_route: [PathRec; 2];
        /// Local address.
        src_addr: SocketAddressIn6;
        /// Remote address.
        dst_addr: SocketAddressIn6;
        /// Number of paths.
        num_paths: u32;
        /// Port of the device.
        port_num: u8;
        /// Zero.
        reserved: [u8; 3];
        /// Index of the device, as in RDMA netlink.
        ibdev_index: u32;
        /// Zero.
        reserved1: u32;
    }

    /// Response of [`super::Query`] for addresses and GIDs. The kernel requires a buffer up to
    /// `ibdev_index`, exclusive.
    struct QueryAddrResp = tag "rdma_ucm_query_addr_resp" {
        /// GUID of the device, in network byte order; 0 if no device is bound yet.
        node_guid: u64;
        /// Port of the device.
        port_num: u8;
        /// Zero.
        reserved: u8;
        /// P_Key, in network byte order.
        pkey: u16;
        /// Length of `src_addr` in bytes.
        src_size: u16;
        /// Length of `dst_addr` in bytes.
        dst_size: u16;
        /// Local address.
        src_addr: SocketAddressStorage;
        /// Remote address.
        dst_addr: SocketAddressStorage;
        /// Index of the device, as in RDMA netlink.
        ibdev_index: u32;
        /// Zero.
        reserved1: u32;
    }

    /// Header of the response of [`super::Query`] for paths.
    struct QueryPathResp = tag "rdma_ucm_query_path_resp" {
        /// Number of paths. The paths that fit the buffer follow.
        num_paths: u32;
        /// Zero.
        reserved: u32;
        /// Start of the paths.
        path_data: [PathRecData; 0];
    }

    /// Header of the response of [`super::Query`] for services.
    struct QueryIbServiceResp = tag "rdma_ucm_query_ib_service_resp" since V7_2 {
        /// Number of records. The records that fit the buffer follow.
        num_service_recs: u32 = "num_service_recs" since V7_2;
        /// Zero.
        reserved: u32 = "reserved" since V7_2;
        /// Start of the records.
        recs: [ServiceRec; 0] = "recs" since V7_2;
    }

    /// Connection parameters of one side.
    struct ConnParam = tag "rdma_ucm_conn_param" {
        /// QPN.
        qp_num: u32;
        /// Not used.
        qkey: u32;
        /// Private data for the application of the peer.
        private_data: [u8; 256];
        /// Length of the private data in bytes.
        private_data_len: u8;
        /// Whether the QP has an SRQ.
        srq: u8;
        /// Maximum outstanding RDMA READs and atomics as responder.
        responder_resources: u8;
        /// Maximum outstanding RDMA READs and atomics as requester.
        initiator_depth: u8;
        /// Whether the hardware has end-to-end flow control.
        flow_control: u8;
        /// Retry count.
        retry_count: u8;
        /// RNR retry count; 7 means without limit.
        rnr_retry_count: u8;
        /// Whether the parameters are valid.
        valid: u8;
    }

    /// Address parameters of a datagram QP.
    struct UdParam = tag "rdma_ucm_ud_param" {
        /// QPN.
        qp_num: u32;
        /// Its Q_Key.
        qkey: u32;
        /// Path to the QP.
        ah_attr: AhAttr;
        /// Private data from the application of the peer.
        private_data: [u8; 256];
        /// Length of the private data in bytes.
        private_data_len: u8;
        /// Zero.
        reserved: [u8; 7];
    }

    /// ECE (enhanced connection establishment) options.
    struct Ece = tag "rdma_ucm_ece" {
        /// Vendor id.
        vendor_id: u32;
        /// Vendor options.
        attr_mod: u32;
    }

    /// Request of [`super::Connect`]. The kernel accepts it without `ece`.
    struct ConnectReq = tag "rdma_ucm_connect" {
        /// Connection parameters.
        conn_param: ConnParam;
        /// The identifier.
        id: u32;
        /// Must be 0.
        reserved: u32;
        /// ECE options.
        ece: Ece;
    }

    /// Request of [`super::Listen`].
    struct ListenReq = tag "rdma_ucm_listen" {
        /// The identifier.
        id: u32;
        /// Backlog of pending requests; 0 means the kernel's default.
        backlog: u32;
    }

    /// Request of [`super::Accept`]. The kernel accepts it without `ece`.
    struct AcceptReq = tag "rdma_ucm_accept" {
        /// User id of the new identifier.
        uid: u64;
        /// Connection parameters.
        conn_param: ConnParam;
        /// The identifier from the event.
        id: u32;
        /// Must be 0.
        reserved: u32;
        /// ECE options.
        ece: Ece;
    }

    /// Request of [`super::Reject`].
    struct RejectReq = tag "rdma_ucm_reject" {
        /// The identifier from the event.
        id: u32;
        /// Length of `private_data` in bytes.
        private_data_len: u8;
        /// Rejection reason in InfiniBand encoding; 0 means 28 (consumer-defined).
        reason: u8;
        /// Must be 0.
        reserved: [u8; 2];
        /// Private data for the application of the peer.
        private_data: [u8; 256];
    }

    /// Request of [`super::Disconnect`].
    struct DisconnectReq = tag "rdma_ucm_disconnect" {
        /// The identifier.
        id: u32;
    }

    /// Request of [`super::InitQpAttr`].
    struct InitQpAttrReq = tag "rdma_ucm_init_qp_attr" {
        /// Address of the response buffer.
        response: u64;
        /// The identifier.
        id: u32;
        /// Target state of the QP.
        qp_state: u32 as QpState;
    }

    /// Request of [`super::Notify`].
    struct NotifyReq = tag "rdma_ucm_notify" {
        /// The identifier.
        id: u32;
        /// The asynchronous event of its QP.
        event: verbs_values::EventType;
    }

    /// Request of [`super::JoinIpMcast`].
    struct JoinIpMcastReq = tag "rdma_ucm_join_ip_mcast" {
        /// Address of the response buffer.
        response: u64;
        /// User id of the membership.
        uid: u64;
        /// Address of the group.
        addr: SocketAddressIn6;
        /// The identifier.
        id: u32;
    }

    /// Request of [`super::JoinMcast`].
    struct JoinMcastReq = tag "rdma_ucm_join_mcast" {
        /// Address of the response buffer.
        response: u64;
        /// User id of the membership.
        uid: u64;
        /// The identifier.
        id: u32;
        /// Length of `addr` in bytes.
        addr_size: u16;
        /// Join mode.
        join_flags: JoinFlags;
        /// Address of the group.
        addr: SocketAddressStorage;
    }

    /// Request of [`super::GetEvent`].
    struct GetEventReq = tag "rdma_ucm_get_event" {
        /// Address of the response buffer.
        response: u64;
    }

    /// Response of [`super::GetEvent`].
    struct EventResp = tag "rdma_ucm_event_resp" {
        /// User id of the identifier or membership.
        uid: u64;
        /// Kernel id of it, or of the new identifier of a connection request.
        id: u32;
        /// Type of the event.
        event: EventType;
        /// 0, a negative errno, or a rejection reason.
        status: u32;
        /// Parameters of the event: the largest member of a union. [`EventResp::conn`] and
        /// [`EventResp::arg`] return the other members.
        ud: UdParam = "param.ud";
        /// Zero.
        reserved: u32;
        /// ECE options of the peer.
        ece: Ece;
    }

    /// Request of [`super::SetOption`].
    struct SetOptionReq = tag "rdma_ucm_set_option" {
        /// Address of the value.
        optval: u64;
        /// The identifier.
        id: u32;
        /// Level of the option.
        level: OptionLevel;
        /// The option, [`super::IdOption`] or [`super::IbOption`].
        optname: u32;
        /// Bytes of the value.
        optlen: u32;
    }

    /// Request of [`super::MigrateId`].
    struct MigrateIdReq = tag "rdma_ucm_migrate_id" {
        /// Address of the response buffer.
        response: u64;
        /// The identifier.
        id: u32;
        /// Descriptor of its current file.
        fd: u32;
    }

    /// Response of [`super::MigrateId`].
    struct MigrateIdResp = tag "rdma_ucm_migrate_resp" {
        /// Number of its events that were read so far.
        events_reported: u32;
    }

    /// A service to resolve.
    struct IbService = tag "rdma_ucm_ib_service" since V7_2 {
        /// Its identifier.
        service_id: u64 = "service_id" since V7_2;
        /// Its name.
        service_name: [u8; 64] = "service_name" since V7_2;
        /// Mask of the valid fields.
        flags: IbServiceFlags = "flags" since V7_2;
        /// Must be 0.
        reserved: u32 = "reserved" since V7_2;
    }

    /// Request of [`super::ResolveIbService`].
    struct ResolveIbServiceReq = tag "rdma_ucm_resolve_ib_service" since V7_2 {
        /// The identifier.
        id: u32 = "id" since V7_2;
        /// Must be 0.
        reserved: u32 = "reserved" since V7_2;
        /// The service.
        ibs: IbService = "ibs" since V7_2;
    }

    /// Request of [`super::WriteCmEvent`].
    struct WriteCmEventReq align(8) = tag "rdma_ucm_write_cm_event" since V7_2 {
        /// The identifier.
        id: u32 = "id" since V7_2;
        /// Must be 0.
        reserved: u32 = "reserved" since V7_2;
        /// [`EventType::USER`] or [`EventType::INTERNAL`].
        event: EventType = "event" since V7_2;
        /// Status of the event.
        status: u32 = "status" since V7_2;
        /// The largest member of a union; [`WriteCmEventReq::set_arg`] sets the member in use.
        ud: UdParam = "param.ud" since V7_2;
    }
}

impl EventResp {
    /// Parameters of a connection event.
    #[doc(alias = "param.conn")]
    #[must_use]
    pub fn conn(&self) -> ConnParam {
        let bytes = zerocopy::IntoBytes::as_bytes(&self.ud);
        zerocopy::FromBytes::read_from_prefix(bytes).map_or_else(|_| ConnParam::zeroed(), |(conn, _)| conn)
    }

    /// Parameter of an application event.
    #[doc(alias = "param.arg32")]
    #[must_use]
    pub fn arg(&self) -> u64 {
        halves_to_arg([self.ud.qp_num, self.ud.qkey])
    }
}

impl WriteCmEventReq {
    /// Sets the parameter of the event, which [`EventResp::arg`] returns.
    #[doc(alias = "param.arg")]
    pub fn set_arg(&mut self, arg: u64) {
        let bytes = arg.to_ne_bytes();
        let half = |i| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        self.ud.qp_num = half(0);
        self.ud.qkey = half(4);
    }
}

fn halves_to_arg(halves: [u32; 2]) -> u64 {
    let [a, b] = halves.map(u32::to_ne_bytes);
    u64::from_ne_bytes([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
}

const _: () = assert!(size_of::<EventResp>() == 336);
