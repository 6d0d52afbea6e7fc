//! Requests and responses of the connection manager.
//!
//! In a request, `response` is the address that the kernel writes the response to; [`super::Call`]
//! fills it.

use super::address::{SocketAddressIn6, SocketAddressStorage};
use super::path::{PathRec, PathRecData, ServiceRec};
use super::{EventType, IbServiceFlags, JoinFlags, OptionLevel, PortSpace, QueryOption};
use crate::uverbs::types::QpType;
use crate::verbs_values::{self, QpState};
use crate::write::structs::AhAttr;

abi_structs! {
    header = "rdma/rdma_user_cm.h";

    /// Request of [`super::CreateId`].
    struct CreateIdReq = tag "rdma_ucm_create_id" {
        /// The caller's own number for the identifier; events carry it.
        uid: u64;
        /// Where the response goes.
        response: u64;
        /// Port space.
        ps: PortSpace;
        /// Type of the QP, as in making one.
        qp_type: u8 as QpType;
        /// Must be 0.
        reserved: [u8; 5];
    }

    /// Response of [`super::CreateId`] and of joining a multicast group.
    struct CreateIdResp = tag "rdma_ucm_create_id_resp" {
        /// The kernel's number for the identifier or membership.
        id: u32;
    }

    /// Request of [`super::DestroyId`] and [`super::LeaveMcast`].
    struct DestroyIdReq = tag "rdma_ucm_destroy_id" {
        /// Where the response goes.
        response: u64;
        /// The identifier or membership.
        id: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// Response of [`super::DestroyId`] and [`super::LeaveMcast`].
    struct DestroyIdResp = tag "rdma_ucm_destroy_id_resp" {
        /// Events of it that were read so far; the caller waits until it has dealt with as many.
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
        /// Bytes of `addr` that count.
        addr_size: u16;
        /// Must be 0.
        reserved: u16;
        /// Address of any family.
        addr: SocketAddressStorage;
    }

    /// Request of [`super::ResolveIp`].
    struct ResolveIpReq = tag "rdma_ucm_resolve_ip" {
        /// Own address, or zero for any.
        src_addr: SocketAddressIn6;
        /// The peer's.
        dst_addr: SocketAddressIn6;
        /// The identifier.
        id: u32;
        /// How long to try, in milliseconds.
        timeout_ms: u32;
    }

    /// Request of [`super::ResolveAddr`].
    struct ResolveAddrReq = tag "rdma_ucm_resolve_addr" {
        /// The identifier.
        id: u32;
        /// How long to try, in milliseconds.
        timeout_ms: u32;
        /// Bytes of `src_addr` that count; 0 for any address.
        src_size: u16;
        /// Bytes of `dst_addr` that count.
        dst_size: u16;
        /// Must be 0.
        reserved: u32;
        /// Own address.
        src_addr: SocketAddressStorage;
        /// The peer's.
        dst_addr: SocketAddressStorage;
    }

    /// Request of [`super::ResolveRoute`].
    struct ResolveRouteReq = tag "rdma_ucm_resolve_route" {
        /// The identifier.
        id: u32;
        /// How long to try, in milliseconds.
        timeout_ms: u32;
    }

    /// Request of [`super::QueryRoute`] and [`super::Query`].
    struct QueryReq = tag "rdma_ucm_query" {
        /// Where the response goes.
        response: u64;
        /// The identifier.
        id: u32;
        /// What to ask for; not used by [`super::QueryRoute`].
        option: QueryOption;
    }

    /// Response of [`super::QueryRoute`]. A kernel is content with room up to `ibdev_index`.
    struct QueryRouteResp = tag "rdma_ucm_query_route_resp" {
        /// GUID of the device, in network byte order; 0 before there is one.
        node_guid: u64;
        /// The paths; as many count as `num_paths` says.
        ib_route: [PathRec; 2];
        /// Own address.
        src_addr: SocketAddressIn6;
        /// The peer's.
        dst_addr: SocketAddressIn6;
        /// Number of paths.
        num_paths: u32;
        /// Port of the device.
        port_num: u8;
        /// Zero.
        reserved: [u8; 3];
        /// Number of the device, as RDMA netlink has it.
        ibdev_index: u32;
        /// Zero.
        reserved1: u32;
    }

    /// Response of [`super::Query`] for addresses and GIDs. A kernel is content with room up to
    /// `ibdev_index`.
    struct QueryAddrResp = tag "rdma_ucm_query_addr_resp" {
        /// GUID of the device, in network byte order; 0 before there is one.
        node_guid: u64;
        /// Port of the device.
        port_num: u8;
        /// Zero.
        reserved: u8;
        /// P_Key, in network byte order.
        pkey: u16;
        /// Bytes of `src_addr` that count.
        src_size: u16;
        /// Bytes of `dst_addr` that count.
        dst_size: u16;
        /// Own address.
        src_addr: SocketAddressStorage;
        /// The peer's.
        dst_addr: SocketAddressStorage;
        /// Number of the device, as RDMA netlink has it.
        ibdev_index: u32;
        /// Zero.
        reserved1: u32;
    }

    /// Head of the response of [`super::Query`] for paths.
    struct QueryPathResp = tag "rdma_ucm_query_path_resp" {
        /// Number of paths, of which as many follow as there is room for.
        num_paths: u32;
        /// Zero.
        reserved: u32;
        /// The paths follow.
        path_data: [PathRecData; 0];
    }

    /// Head of the response of [`super::Query`] for services.
    struct QueryIbServiceResp = tag "rdma_ucm_query_ib_service_resp" since V7_2 {
        /// Number of records, of which as many follow as there is room for.
        num_service_recs: u32 = "num_service_recs" since V7_2;
        /// Zero.
        reserved: u32 = "reserved" since V7_2;
        /// The records follow.
        recs: [ServiceRec; 0] = "recs" since V7_2;
    }

    /// How one side wants a connection.
    struct ConnParam = tag "rdma_ucm_conn_param" {
        /// Number of its QP.
        qp_num: u32;
        /// Not used.
        qkey: u32;
        /// Bytes for the other side's application.
        private_data: [u8; 256];
        /// How many of them count.
        private_data_len: u8;
        /// Whether the QP has an SRQ.
        srq: u8;
        /// Reads and atomics that it answers at once.
        responder_resources: u8;
        /// Reads and atomics that it has under way at once.
        initiator_depth: u8;
        /// Whether the hardware does end-to-end flow control.
        flow_control: u8;
        /// Times that a send is tried again.
        retry_count: u8;
        /// Times that a send is tried again where the receiver is not ready; 7 is without end.
        rnr_retry_count: u8;
        /// Whether the rest counts.
        valid: u8;
    }

    /// How to reach a datagram QP.
    struct UdParam = tag "rdma_ucm_ud_param" {
        /// Number of the QP.
        qp_num: u32;
        /// Its Q_Key.
        qkey: u32;
        /// The way to it.
        ah_attr: AhAttr;
        /// Bytes from the other side's application.
        private_data: [u8; 256];
        /// How many of them count.
        private_data_len: u8;
        /// Zero.
        reserved: [u8; 7];
    }

    /// What a vendor adds to a connection: enhanced connection establishment.
    struct Ece = tag "rdma_ucm_ece" {
        /// The vendor.
        vendor_id: u32;
        /// Its options.
        attr_mod: u32;
    }

    /// Request of [`super::Connect`]. A kernel is content without `ece`.
    struct ConnectReq = tag "rdma_ucm_connect" {
        /// How to connect.
        conn_param: ConnParam;
        /// The identifier.
        id: u32;
        /// Must be 0.
        reserved: u32;
        /// The vendor's options.
        ece: Ece;
    }

    /// Request of [`super::Listen`].
    struct ListenReq = tag "rdma_ucm_listen" {
        /// The identifier.
        id: u32;
        /// Requests that may wait; 0 is the kernel's own bound.
        backlog: u32;
    }

    /// Request of [`super::Accept`]. A kernel is content without `ece`.
    struct AcceptReq = tag "rdma_ucm_accept" {
        /// The caller's own number for the new identifier.
        uid: u64;
        /// How to connect.
        conn_param: ConnParam;
        /// The identifier that the event named.
        id: u32;
        /// Must be 0.
        reserved: u32;
        /// The vendor's options.
        ece: Ece;
    }

    /// Request of [`super::Reject`].
    struct RejectReq = tag "rdma_ucm_reject" {
        /// The identifier that the event named.
        id: u32;
        /// How many bytes of `private_data` count.
        private_data_len: u8;
        /// Reason, as InfiniBand numbers it; 0 is 28, the application's own.
        reason: u8;
        /// Must be 0.
        reserved: [u8; 2];
        /// Bytes for the other side's application.
        private_data: [u8; 256];
    }

    /// Request of [`super::Disconnect`].
    struct DisconnectReq = tag "rdma_ucm_disconnect" {
        /// The identifier.
        id: u32;
    }

    /// Request of [`super::InitQpAttr`].
    struct InitQpAttrReq = tag "rdma_ucm_init_qp_attr" {
        /// Where the response goes.
        response: u64;
        /// The identifier.
        id: u32;
        /// State that the QP is to reach.
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
        /// Where the response goes.
        response: u64;
        /// The caller's own number for the membership.
        uid: u64;
        /// Address of the group.
        addr: SocketAddressIn6;
        /// The identifier.
        id: u32;
    }

    /// Request of [`super::JoinMcast`].
    struct JoinMcastReq = tag "rdma_ucm_join_mcast" {
        /// Where the response goes.
        response: u64;
        /// The caller's own number for the membership.
        uid: u64;
        /// The identifier.
        id: u32;
        /// Bytes of `addr` that count.
        addr_size: u16;
        /// How to take part.
        join_flags: JoinFlags;
        /// Address of the group.
        addr: SocketAddressStorage;
    }

    /// Request of [`super::GetEvent`].
    struct GetEventReq = tag "rdma_ucm_get_event" {
        /// Where the response goes.
        response: u64;
    }

    /// Response of [`super::GetEvent`].
    struct EventResp = tag "rdma_ucm_event_resp" {
        /// The caller's own number for the identifier or membership.
        uid: u64;
        /// The kernel's number for it, or for the new identifier of a connection request.
        id: u32;
        /// Type of the event.
        event: EventType;
        /// 0, a negative errno, or a reason of refusal.
        status: u32;
        /// What belongs to it: the widest member of a union, whose other members are
        /// [`EventResp::conn`] and [`EventResp::arg`].
        ud: UdParam = "param.ud";
        /// Zero.
        reserved: u32;
        /// The vendor's options of the other side.
        ece: Ece;
    }

    /// Request of [`super::SetOption`].
    struct SetOptionReq = tag "rdma_ucm_set_option" {
        /// Address of the value.
        optval: u64;
        /// The identifier.
        id: u32;
        /// The set of options.
        level: OptionLevel;
        /// The option, [`super::IdOption`] or [`super::IbOption`].
        optname: u32;
        /// Bytes of the value.
        optlen: u32;
    }

    /// Request of [`super::MigrateId`].
    struct MigrateIdReq = tag "rdma_ucm_migrate_id" {
        /// Where the response goes.
        response: u64;
        /// The identifier.
        id: u32;
        /// Descriptor of the file that it belongs to so far.
        fd: u32;
    }

    /// Response of [`super::MigrateId`].
    struct MigrateIdResp = tag "rdma_ucm_migrate_resp" {
        /// Events of it that were read so far.
        events_reported: u32;
    }

    /// A service to look for.
    struct IbService = tag "rdma_ucm_ib_service" since V7_2 {
        /// Its identifier.
        service_id: u64 = "service_id" since V7_2;
        /// Its name.
        service_name: [u8; 64] = "service_name" since V7_2;
        /// Which of the two counts.
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
        /// Status that the event is to carry.
        status: u32 = "status" since V7_2;
        /// The widest member of a union; [`WriteCmEventReq::set_arg`] fills the one in use.
        ud: UdParam = "param.ud" since V7_2;
    }
}

impl EventResp {
    /// What belongs to an event of a connection.
    #[doc(alias = "param.conn")]
    #[must_use]
    pub fn conn(&self) -> ConnParam {
        let bytes = zerocopy::IntoBytes::as_bytes(&self.ud);
        zerocopy::FromBytes::read_from_prefix(bytes).map_or_else(|_| ConnParam::zeroed(), |(conn, _)| conn)
    }

    /// What belongs to an event that the application wrote.
    #[doc(alias = "param.arg32")]
    #[must_use]
    pub fn arg(&self) -> u64 {
        halves_to_arg([self.ud.qp_num, self.ud.qkey])
    }
}

impl WriteCmEventReq {
    /// Sets what belongs to the event; [`EventResp::arg`] gives it back.
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
