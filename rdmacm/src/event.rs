//! Events: typed values with their parameters and private data.

use std::fmt;

use bareverbs::ah::AhAttr;
use bareverbs::qp::QpType;
use bareverbs_uapi::rdma_cm::structs::{EventResp, UdParam};
use bareverbs_uapi::rdma_cm::{EventParam, EventType};
use rustix::io::Errno;

use crate::error::private_data_text;
use crate::param::{PeerParam, PrivateData};
use crate::qp::ah_attr;
use crate::request::ConnectRequest;
use crate::{Addr, Key};

/// An event of an identifier or of a multicast membership.
///
/// It needs no acknowledgement: it names its identifier by a [`Key`], and may outlive it.
///
/// ```no_run
/// use bareverbs_rdmacm::EventChannel;
/// use bareverbs_rdmacm::event::EventKind;
///
/// let channel = EventChannel::new()?;
/// # let listener = bareverbs_rdmacm::CmId::new(&channel, bareverbs_rdmacm::PortSpace::Tcp)?;
/// loop {
///     let event = channel.next().wait()?;
///     match event.kind {
///         EventKind::ConnectRequest(request) if event.key == listener.key() => {
///             request.reject(b"not now")?;
///         }
///         kind => println!("{:?}: {kind:?}", event.key),
///     }
/// #   break;
/// }
/// # Ok::<(), bareverbs_rdmacm::Error>(())
/// ```
#[doc(alias = "rdma_cm_event")]
#[doc(alias = "rdma_ack_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The key of the identifier. For [`EventKind::ConnectRequest`] it is that of the listener, for
    /// [`EventKind::MulticastJoin`] and [`EventKind::MulticastError`] that of the membership.
    pub key: Key,
    /// The event, with its parameters.
    pub kind: EventKind,
}

/// An event of an identifier, with its parameters.
#[doc(alias = "rdma_cm_event_type")]
#[doc(alias = "rdma_event_str")]
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The peer's address is resolved: the identifier has a device and a port.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
    AddrResolved,
    /// The peer's address was not resolved. The identifier is bound, and may resolve again.
    ///
    /// - `ENODEV`: the network interface of the route has no RDMA device.
    /// - `ETIMEDOUT`: no neighbour answered.
    /// - `EINVAL`, for a datagram QP that connects: the Q_Key of the reply clashes.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
    AddrError(Errno),
    /// The route is resolved.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
    RouteResolved,
    /// The route was not resolved. The identifier may resolve it again.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError(RouteStatus),
    /// A peer asks for a connection, or for the QPN of a datagram QP.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest(ConnectRequest),
    /// The peer accepted. The caller moves its QP to RTS and calls
    /// [`CmId::establish`](crate::CmId::establish). No [`EventKind::Established`] follows.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse(PeerParam),
    /// Connecting failed. On InfiniBand and RoCE, the kernel reports it for its own QPs only
    /// (`cma_ib_handler` of `cma.c`).
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError(Errno),
    /// The peer did not answer, or refused the request for a datagram QP.
    ///
    /// On RoCE, an identifier that resolved a route gets it also whenever the MAC address of the
    /// neighbour changes (`ETIMEDOUT`). After the connection is established it is not final: the
    /// connection still works.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable(Unreachable),
    /// The peer, or the kernel for it, rejected the request or the response.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected(Rejected),
    /// The connection is established. It is an event of the passive side of a connected QP, with
    /// `None`, and of the active side of a datagram QP, with the address of the peer's QP.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established(Option<UdPeer>),
    /// The connection ended. If the peer ended it, [`CmId::disconnect`](crate::CmId::disconnect)
    /// or drop answers. `Some(ETIMEDOUT)`: the peer never answered the end.
    ///
    /// It may come without [`EventKind::Established`].
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected(Option<Errno>),
    /// The device is being removed. Calls of the identifier fail from now on: drop it.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
    /// The multicast group is joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoin(UdPeer),
    /// The group was not joined, or was left because of an error. `None`: only its address handle
    /// could not be prepared.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastError(Option<Errno>),
    /// The network interface of the address has another MAC address, after the failover of a bond.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddrChange,
    /// The QP number can be used for another connection to the same peer.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
    /// Services are resolved. Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_RESOLVED")]
    AddrinfoResolved,
    /// Services were not resolved. Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_ERROR")]
    AddrinfoError(Errno),
    /// An event that a program wrote: [`CmId::write_user_event`](crate::CmId::write_user_event).
    /// Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_USER")]
    User {
        /// The writer's argument.
        arg: u64,
        /// The writer's status.
        status: u32,
    },
    /// An event that a library wrote for its own use. Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_INTERNAL")]
    Internal {
        /// The writer's argument.
        arg: u64,
        /// The writer's status.
        status: u32,
    },
    /// An event of a later kernel.
    Unknown {
        /// Its number.
        event: u32,
        /// Its status.
        status: i32,
    },
}

/// Why the route was not resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteStatus {
    /// An error of the kernel; `ETIMEDOUT`: the subnet administrator did not answer.
    Errno(Errno),
    /// The status of the subnet administrator's answer.
    Sa(u32),
}

impl fmt::Display for RouteStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::Sa(status) => write!(f, "the subnet administrator answered with status {status:#x}"),
        }
    }
}

/// Why the peer is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "private data is inline by design")]
#[non_exhaustive]
pub enum Unreachable {
    /// The peer did not answer: `ETIMEDOUT`, or another error of the kernel.
    Errno(Errno),
    /// The peer refused the SIDR request for a datagram QP.
    Sidr(SidrStatus, PrivateData),
}

/// Status of a `SIDR_REP`: the answer to a request for a datagram QP (IBA 12.11.2).
#[doc(alias = "ib_cm_sidr_status")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SidrStatus {
    /// No application listens for the service ID.
    #[doc(alias = "IB_SIDR_UNSUPPORTED")]
    Unsupported,
    /// The application rejected it, or its backlog is full.
    #[doc(alias = "IB_SIDR_REJECT")]
    Rejected,
    /// There is no QP.
    #[doc(alias = "IB_SIDR_NO_QP")]
    NoQp,
    /// The service is at another port.
    #[doc(alias = "IB_SIDR_REDIRECT")]
    Redirect,
    /// The version is unsupported.
    #[doc(alias = "IB_SIDR_UNSUPPORTED_VERSION")]
    UnsupportedVersion,
    /// Another status.
    Other(u32),
}

impl From<u32> for SidrStatus {
    fn from(status: u32) -> Self {
        match status {
            1 => Self::Unsupported,
            2 => Self::Rejected,
            3 => Self::NoQp,
            4 => Self::Redirect,
            5 => Self::UnsupportedVersion,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for SidrStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => "no application listens on the port",
            Self::Rejected => "the application rejected it, or its backlog is full",
            Self::NoQp => "the application has no QP",
            Self::Redirect => "the service is at another port",
            Self::UnsupportedVersion => "the version is unsupported",
            Self::Other(status) => return write!(f, "status {status}"),
        })
    }
}

/// The rejection of a request or of a response.
#[doc(alias = "ib_cm_rej_event_param")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// The reason.
    pub reason: RejectReason,
    /// Data from the application of the peer.
    pub private_data: PrivateData,
    /// The address of the peer. `None` in an event, which names its identifier by a key:
    /// [`CmId::addresses`](crate::CmId::addresses).
    pub peer: Option<Addr>,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The kernel rejects for the application, without data (`cm_destroy_id` and
        // `cma_ib_req_handler`).
        if self.reason == RejectReason::Consumer && self.private_data.is_zero() {
            return write!(
                f,
                "the application rejected it, dropped the request, or listens on the port with another \
                 address (reason {})",
                self.reason.code()
            );
        }
        write!(f, "{}{}", self.reason, private_data_text(&self.private_data))
    }
}

macro_rules! reject_reasons {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Reason of a rejection (REJ message, IBA 12.6.7.2).
        #[doc(alias = "ib_cm_rej_reason")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum RejectReason {
            $($(#[$meta])* $name,)*
            /// Another reason.
            Other(u32),
        }

        impl RejectReason {
            /// The number in the message.
            #[must_use]
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Other(number) => number,
                }
            }
        }

        impl From<u32> for RejectReason {
            fn from(number: u32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                }
            }
        }

        impl fmt::Display for RejectReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => write!(f, "{} (reason {})", $text, $number),)*
                    Self::Other(number) => write!(f, "reason {number}"),
                }
            }
        }
    };
}

reject_reasons! {
    /// No QP is available.
    #[doc(alias = "IB_CM_REJ_NO_QP")]
    NoQp = 1, "no QP";
    /// No end-to-end context is available.
    #[doc(alias = "IB_CM_REJ_NO_EEC")]
    NoEec = 2, "no end-to-end context";
    /// No resources are available.
    #[doc(alias = "IB_CM_REJ_NO_RESOURCES")]
    NoResources = 3, "no resources";
    /// The peer gave up: it destroyed its identifier while connecting, or its time ran out.
    #[doc(alias = "IB_CM_REJ_TIMEOUT")]
    Timeout = 4, "timeout";
    /// The request is unsupported.
    #[doc(alias = "IB_CM_REJ_UNSUPPORTED")]
    Unsupported = 5, "unsupported request";
    /// The communication ID is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_COMM_ID")]
    InvalidCommId = 6, "invalid communication ID";
    /// The communication instance is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_COMM_INSTANCE")]
    InvalidCommInstance = 7, "invalid communication instance";
    /// No application listens on the port (service ID).
    #[doc(alias = "IB_CM_REJ_INVALID_SERVICE_ID")]
    InvalidServiceId = 8, "no application listens on the port";
    /// The transport type is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_TRANSPORT_TYPE")]
    InvalidTransportType = 9, "invalid transport type";
    /// The QP number is in use, or was until recently, for another connection of the two hosts.
    #[doc(alias = "IB_CM_REJ_STALE_CONN")]
    StaleConnection = 10, "stale connection";
    /// There is no RDC.
    #[doc(alias = "IB_CM_REJ_RDC_NOT_EXIST")]
    RdcNotExist = 11, "no RDC";
    /// The GID is not in the table of the port.
    #[doc(alias = "IB_CM_REJ_INVALID_GID")]
    InvalidGid = 12, "invalid GID";
    /// The LID is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_LID")]
    InvalidLid = 13, "invalid LID";
    /// The service level is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_SL")]
    InvalidSl = 14, "invalid service level";
    /// The traffic class is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_TRAFFIC_CLASS")]
    InvalidTrafficClass = 15, "invalid traffic class";
    /// The hop limit is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_HOP_LIMIT")]
    InvalidHopLimit = 16, "invalid hop limit";
    /// The packet rate is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_PACKET_RATE")]
    InvalidPacketRate = 17, "invalid packet rate";
    /// The GID of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_GID")]
    InvalidAltGid = 18, "invalid GID of the alternate path";
    /// The LID of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_LID")]
    InvalidAltLid = 19, "invalid LID of the alternate path";
    /// The service level of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_SL")]
    InvalidAltSl = 20, "invalid service level of the alternate path";
    /// The traffic class of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_TRAFFIC_CLASS")]
    InvalidAltTrafficClass = 21, "invalid traffic class of the alternate path";
    /// The hop limit of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_HOP_LIMIT")]
    InvalidAltHopLimit = 22, "invalid hop limit of the alternate path";
    /// The packet rate of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_PACKET_RATE")]
    InvalidAltPacketRate = 23, "invalid packet rate of the alternate path";
    /// The connection manager is at another port.
    #[doc(alias = "IB_CM_REJ_PORT_CM_REDIRECT")]
    PortCmRedirect = 24, "redirected to another port of the connection manager";
    /// The service is at another port.
    #[doc(alias = "IB_CM_REJ_PORT_REDIRECT")]
    PortRedirect = 25, "redirected to another port";
    /// The MTU is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_MTU")]
    InvalidMtu = 26, "invalid MTU";
    /// The responder resources are insufficient.
    #[doc(alias = "IB_CM_REJ_INSUFFICIENT_RESP_RESOURCES")]
    InsufficientResponderResources = 27, "insufficient responder resources";
    /// The application rejected it. Also: it dropped the request, it failed to accept, or it
    /// listens on the port with another address.
    #[doc(alias = "IB_CM_REJ_CONSUMER_DEFINED")]
    Consumer = 28, "the application rejected it";
    /// The RNR retry count is rejected.
    #[doc(alias = "IB_CM_REJ_INVALID_RNR_RETRY")]
    RnrRetryCount = 29, "rejected RNR retry count";
    /// The communication ID of the peer is a duplicate.
    #[doc(alias = "IB_CM_REJ_DUPLICATE_LOCAL_COMM_ID")]
    DuplicateLocalCommId = 30, "duplicate communication ID";
    /// The class version is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_CLASS_VERSION")]
    InvalidClassVersion = 31, "invalid class version";
    /// The flow label is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_FLOW_LABEL")]
    InvalidFlowLabel = 32, "invalid flow label";
    /// The flow label of the alternate path is invalid.
    #[doc(alias = "IB_CM_REJ_INVALID_ALT_FLOW_LABEL")]
    InvalidAltFlowLabel = 33, "invalid flow label of the alternate path";
    /// The ECE options are unsupported.
    #[doc(alias = "IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED")]
    VendorOptionNotSupported = 35, "unsupported ECE options";
}

/// Address of a datagram QP or of a multicast group.
#[doc(alias = "rdma_ud_param")]
#[doc(alias = "rdma_post_ud_send")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdPeer {
    /// QPN; 0xffffff for a multicast group.
    pub qp_num: u32,
    /// Q_Key.
    pub qkey: u32,
    /// The address for [`Pd::create_ah`](bareverbs::Pd::create_ah). For a multicast group its GID is
    /// the group, and its LID on InfiniBand the MLID.
    pub address: AhAttr,
    /// Data from the application of the peer; empty for a multicast group.
    pub private_data: PrivateData,
}

impl UdPeer {
    fn from_kernel(param: &UdParam) -> Self {
        Self {
            qp_num: param.qp_num,
            qkey: param.qkey,
            address: ah_attr(&param.ah_attr),
            private_data: PrivateData::new(param.private_data, param.private_data_len),
        }
    }
}

/// The errno of a negative status. Other statuses, which no kernel reports there, are `EIO`.
fn errno(status: i32) -> Errno {
    match status.checked_neg() {
        Some(errno @ 1..=4095) => Errno::from_raw_os_error(errno),
        _ => Errno::IO,
    }
}

/// As [`errno`], for events whose status is 0 without an error.
fn failure(status: i32) -> Option<Errno> {
    (status != 0).then(|| errno(status))
}

/// The kind of an event other than a connection request.
pub(crate) fn parse(resp: &EventResp, qp_type: QpType) -> EventKind {
    let status = resp.status.cast_signed();
    let param = resp.param(qp_type);
    match (resp.event, param) {
        (EventType::ADDR_RESOLVED, _) => EventKind::AddrResolved,
        (EventType::ADDR_ERROR, _) => EventKind::AddrError(errno(status)),
        (EventType::ROUTE_RESOLVED, _) => EventKind::RouteResolved,
        (EventType::ROUTE_ERROR, _) => EventKind::RouteError(match status {
            ..0 => RouteStatus::Errno(errno(status)),
            0.. => RouteStatus::Sa(status.cast_unsigned()),
        }),
        (EventType::CONNECT_RESPONSE, EventParam::Conn(param)) => {
            EventKind::ConnectResponse(PeerParam::from_kernel(&param, resp.ece))
        }
        (EventType::CONNECT_ERROR, _) => EventKind::ConnectError(errno(status)),
        (EventType::UNREACHABLE, EventParam::Ud(param)) if status > 0 => {
            let data = PrivateData::new(param.private_data, param.private_data_len);
            EventKind::Unreachable(Unreachable::Sidr(SidrStatus::from(status.cast_unsigned()), data))
        }
        (EventType::UNREACHABLE, _) => EventKind::Unreachable(Unreachable::Errno(errno(status))),
        (EventType::REJECTED, EventParam::Conn(param)) => EventKind::Rejected(Rejected {
            reason: RejectReason::from(status.cast_unsigned()),
            private_data: PrivateData::new(param.private_data, param.private_data_len),
            peer: None,
        }),
        (EventType::ESTABLISHED, EventParam::Ud(param)) => {
            EventKind::Established(Some(UdPeer::from_kernel(&param)))
        }
        (EventType::ESTABLISHED, _) => EventKind::Established(None),
        (EventType::DISCONNECTED, _) => EventKind::Disconnected(failure(status)),
        (EventType::DEVICE_REMOVAL, _) => EventKind::DeviceRemoval,
        (EventType::MULTICAST_JOIN, EventParam::Ud(param)) => {
            EventKind::MulticastJoin(UdPeer::from_kernel(&param))
        }
        (EventType::MULTICAST_ERROR, _) => EventKind::MulticastError(failure(status)),
        (EventType::ADDR_CHANGE, _) => EventKind::AddrChange,
        (EventType::TIMEWAIT_EXIT, _) => EventKind::TimewaitExit,
        (EventType::ADDRINFO_RESOLVED, _) => EventKind::AddrinfoResolved,
        (EventType::ADDRINFO_ERROR, _) => EventKind::AddrinfoError(errno(status)),
        (EventType::USER, EventParam::Arg(arg)) => EventKind::User { arg, status: resp.status },
        (EventType::INTERNAL, EventParam::Arg(arg)) => EventKind::Internal { arg, status: resp.status },
        (event, _) => EventKind::Unknown { event: event.0, status },
    }
}

/// The parameters of a connection request.
pub(crate) fn parse_request(resp: &EventResp, qp_type: QpType) -> RequestParam {
    match resp.param(qp_type) {
        EventParam::Ud(param) => {
            RequestParam::Datagram(PrivateData::new(param.private_data, param.private_data_len))
        }
        EventParam::Conn(param) => RequestParam::Connection(PeerParam::from_kernel(&param, resp.ece)),
        _ => RequestParam::Datagram(PrivateData::EMPTY),
    }
}

/// Parameters of a connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestParam {
    /// A peer asks to connect a QP.
    Connection(PeerParam),
    /// A peer asks for the address of a datagram QP.
    Datagram(PrivateData),
}

impl RequestParam {
    /// The private data of the peer's application.
    #[must_use]
    pub fn private_data(&self) -> &PrivateData {
        match self {
            Self::Connection(param) => &param.private_data,
            Self::Datagram(data) => data,
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::rdma_cm::structs::ConnParam;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    fn with_conn(event: EventType, status: i32, param: ConnParam) -> EventResp {
        let mut resp = EventResp { event, status: status.cast_unsigned(), ..EventResp::zeroed() };
        resp.ud.as_mut_bytes()[..size_of::<ConnParam>()].copy_from_slice(param.as_bytes());
        resp
    }

    proptest! {
        #[test]
        fn any_event_is_parsed(bytes: [[u8; 56]; 6], event in 0_u32..24, status: i32, ud: bool) {
            let mut resp = EventResp::read_from_bytes(bytes.as_flattened()).unwrap();
            (resp.event, resp.status) = (EventType(event), status.cast_unsigned());
            let qp_type = if ud { QpType::UD } else { QpType::RC };
            let data = &resp.ud.private_data[..resp.ud.private_data_len.into()];
            match parse(&resp, qp_type) {
                EventKind::Unknown { event: number, status: of } => {
                    prop_assert!(number > 19 || number == EventType::CONNECT_REQUEST.0);
                    prop_assert_eq!((number, of), (event, status));
                }
                EventKind::Established(Some(peer)) | EventKind::MulticastJoin(peer) => {
                    prop_assert_eq!((peer.qp_num, peer.qkey), (resp.ud.qp_num, resp.ud.qkey));
                    prop_assert_eq!(&*peer.private_data, data);
                }
                EventKind::Rejected(rejected) => {
                    prop_assert_eq!(rejected.reason.code(), status.cast_unsigned());
                    prop_assert_eq!(rejected.private_data.len(), usize::from(resp.conn().private_data_len));
                }
                EventKind::ConnectResponse(peer) => prop_assert_eq!(peer.qp_num, resp.conn().qp_num),
                EventKind::User { arg, .. } | EventKind::Internal { arg, .. } => {
                    prop_assert_eq!(arg, resp.arg());
                }
                _ => {}
            }
            prop_assert_eq!(matches!(parse_request(&EventResp { event: EventType::CONNECT_REQUEST, ..resp }, qp_type),
                RequestParam::Datagram(_)), ud);
        }

        #[test]
        fn reasons_round_trip(number: u32) {
            prop_assert_eq!(RejectReason::from(number).code(), number);
            prop_assert_eq!(RejectReason::from(number % 40).code(), number % 40);
        }
    }

    #[test]
    fn statuses_are_errnos_reasons_or_sidr_codes() {
        let status = |event, status: i32| {
            let resp = EventResp { event, status: status.cast_unsigned(), ..EventResp::zeroed() };
            (parse(&resp, QpType::RC), parse(&resp, QpType::UD))
        };
        let timeout = -Errno::TIMEDOUT.raw_os_error();
        assert!(matches!(status(EventType::ADDR_ERROR, timeout).0, EventKind::AddrError(Errno::TIMEDOUT)));
        assert!(matches!(status(EventType::ADDR_ERROR, i32::MIN).0, EventKind::AddrError(Errno::IO)));
        let (rc, ud) = status(EventType::UNREACHABLE, timeout);
        for kind in [rc, ud] {
            assert!(matches!(kind, EventKind::Unreachable(Unreachable::Errno(Errno::TIMEDOUT))), "{kind:?}");
        }
        let refused = status(EventType::UNREACHABLE, 1).1;
        assert!(matches!(refused, EventKind::Unreachable(Unreachable::Sidr(SidrStatus::Unsupported, _))));
        assert!(matches!(status(EventType::DISCONNECTED, 0).0, EventKind::Disconnected(None)));
        let late = status(EventType::DISCONNECTED, timeout).0;
        assert!(matches!(late, EventKind::Disconnected(Some(Errno::TIMEDOUT))));
        let sa = status(EventType::ROUTE_ERROR, 3).0;
        assert!(matches!(sa, EventKind::RouteError(RouteStatus::Sa(3))));
        assert!(matches!(status(EventType::MULTICAST_ERROR, 0).0, EventKind::MulticastError(None)));
    }

    #[test]
    fn rejection_has_reason_and_private_data() {
        let mut param = ConnParam { private_data_len: 148, ..ConnParam::zeroed() };
        param.private_data[..4].copy_from_slice(b"busy");
        let EventKind::Rejected(rejected) = parse(&with_conn(EventType::REJECTED, 28, param), QpType::RC)
        else {
            panic!("no rejection");
        };
        assert_eq!((rejected.reason, rejected.private_data.len()), (RejectReason::Consumer, 148));
        let text = "the application rejected it (reason 28), private data b\"busy\" in 148 bytes";
        assert_eq!(rejected.to_string(), text);
    }
}
