//! What the connection manager reports.

abi_enums! {
    header = "include/rdma/rdma_cm.h";

    /// What happened to an identifier: [`super::structs::EventResp::event`].
    enum EventType: u32 = "rdma_cm_event_type" {
        /// The peer's address was resolved.
        ADDR_RESOLVED = 0, "RDMA_CM_EVENT_ADDR_RESOLVED";
        /// It was not.
        ADDR_ERROR = 1, "RDMA_CM_EVENT_ADDR_ERROR";
        /// A route to the peer was found.
        ROUTE_RESOLVED = 2, "RDMA_CM_EVENT_ROUTE_RESOLVED";
        /// None was.
        ROUTE_ERROR = 3, "RDMA_CM_EVENT_ROUTE_ERROR";
        /// A peer asks to connect, or to be told a datagram QP.
        CONNECT_REQUEST = 4, "RDMA_CM_EVENT_CONNECT_REQUEST";
        /// The peer accepted, and the QP is the caller's to make ready.
        CONNECT_RESPONSE = 5, "RDMA_CM_EVENT_CONNECT_RESPONSE";
        /// Connecting failed.
        CONNECT_ERROR = 6, "RDMA_CM_EVENT_CONNECT_ERROR";
        /// The peer does not answer.
        UNREACHABLE = 7, "RDMA_CM_EVENT_UNREACHABLE";
        /// The peer refused; the status holds its reason.
        REJECTED = 8, "RDMA_CM_EVENT_REJECTED";
        /// The connection is up.
        ESTABLISHED = 9, "RDMA_CM_EVENT_ESTABLISHED";
        /// The connection is down.
        DISCONNECTED = 10, "RDMA_CM_EVENT_DISCONNECTED";
        /// The device is going away.
        DEVICE_REMOVAL = 11, "RDMA_CM_EVENT_DEVICE_REMOVAL";
        /// The multicast group was joined.
        MULTICAST_JOIN = 12, "RDMA_CM_EVENT_MULTICAST_JOIN";
        /// It was not, or was lost.
        MULTICAST_ERROR = 13, "RDMA_CM_EVENT_MULTICAST_ERROR";
        /// The address of the network device changed.
        ADDR_CHANGE = 14, "RDMA_CM_EVENT_ADDR_CHANGE";
        /// The QP may be used anew.
        TIMEWAIT_EXIT = 15, "RDMA_CM_EVENT_TIMEWAIT_EXIT";
        /// Services were found.
        ADDRINFO_RESOLVED = 16, "RDMA_CM_EVENT_ADDRINFO_RESOLVED" since V7_2;
        /// None was.
        ADDRINFO_ERROR = 17, "RDMA_CM_EVENT_ADDRINFO_ERROR" since V7_2;
        /// An event that the application wrote.
        USER = 18, "RDMA_CM_EVENT_USER" since V7_2;
        /// An event that the application's library wrote for itself.
        INTERNAL = 19, "RDMA_CM_EVENT_INTERNAL" since V7_2;
    }
}
