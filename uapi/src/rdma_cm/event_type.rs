//! Types of events. Public in [`super::event`].

abi_enums! {
    header = "include/rdma/rdma_cm.h";

    /// Type of an event of an identifier: [`super::structs::EventResp::event`].
    enum EventType: u32 = "rdma_cm_event_type" {
        /// The peer's address was resolved.
        ADDR_RESOLVED = 0, "RDMA_CM_EVENT_ADDR_RESOLVED";
        /// Address resolution failed.
        ADDR_ERROR = 1, "RDMA_CM_EVENT_ADDR_ERROR";
        /// A route to the peer was resolved.
        ROUTE_RESOLVED = 2, "RDMA_CM_EVENT_ROUTE_RESOLVED";
        /// Route resolution failed.
        ROUTE_ERROR = 3, "RDMA_CM_EVENT_ROUTE_ERROR";
        /// Connection request, or request for a datagram QP.
        CONNECT_REQUEST = 4, "RDMA_CM_EVENT_CONNECT_REQUEST";
        /// Connection response: the peer accepted; the caller must move its QP to RTS.
        CONNECT_RESPONSE = 5, "RDMA_CM_EVENT_CONNECT_RESPONSE";
        /// Connecting failed.
        CONNECT_ERROR = 6, "RDMA_CM_EVENT_CONNECT_ERROR";
        /// The peer is unreachable.
        UNREACHABLE = 7, "RDMA_CM_EVENT_UNREACHABLE";
        /// The peer rejected the connection; the status is its reason.
        REJECTED = 8, "RDMA_CM_EVENT_REJECTED";
        /// The connection is established.
        ESTABLISHED = 9, "RDMA_CM_EVENT_ESTABLISHED";
        /// The connection is disconnected.
        DISCONNECTED = 10, "RDMA_CM_EVENT_DISCONNECTED";
        /// The device is being removed.
        DEVICE_REMOVAL = 11, "RDMA_CM_EVENT_DEVICE_REMOVAL";
        /// The multicast group was joined.
        MULTICAST_JOIN = 12, "RDMA_CM_EVENT_MULTICAST_JOIN";
        /// The multicast group was not joined, or was left because of an error.
        MULTICAST_ERROR = 13, "RDMA_CM_EVENT_MULTICAST_ERROR";
        /// The address of the network device changed.
        ADDR_CHANGE = 14, "RDMA_CM_EVENT_ADDR_CHANGE";
        /// The QP can be reused (TIMEWAIT exit).
        TIMEWAIT_EXIT = 15, "RDMA_CM_EVENT_TIMEWAIT_EXIT";
        /// Services were resolved.
        ADDRINFO_RESOLVED = 16, "RDMA_CM_EVENT_ADDRINFO_RESOLVED" since V7_2;
        /// Service resolution failed.
        ADDRINFO_ERROR = 17, "RDMA_CM_EVENT_ADDRINFO_ERROR" since V7_2;
        /// An event written by the application.
        USER = 18, "RDMA_CM_EVENT_USER" since V7_2;
        /// An event written by the user-space library for internal use.
        INTERNAL = 19, "RDMA_CM_EVENT_INTERNAL" since V7_2;
    }
}
