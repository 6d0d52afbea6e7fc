//! Why a step of a connection failed: the statuses of events.

use std::fmt;

use rustix::io::Errno;

use crate::{Addr, PrivateData};

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
        write!(f, "{}{}", self.reason, self.private_data.suffix())
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
            /// On iWARP, which has no reasons: the application rejected it, or its host closed the TCP
            /// connection before it answered (`ECONNRESET`); the two sides differ in CRC or markers
            /// (`ECONNREFUSED`).
            Mpa(Errno),
            /// Another reason.
            Other(u32),
        }

        impl RejectReason {
            /// The number in the message.
            #[must_use]
            pub const fn code(self) -> u32 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Mpa(errno) => errno.raw_os_error().wrapping_neg().cast_unsigned(),
                    Self::Other(number) => number,
                }
            }
        }

        impl From<u32> for RejectReason {
            fn from(number: u32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => match other.cast_signed().checked_neg() {
                        Some(errno @ 1..=4095) => Self::Mpa(Errno::from_raw_os_error(errno)),
                        _ => Self::Other(other),
                    },
                }
            }
        }

        impl fmt::Display for RejectReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => write!(f, "{} (reason {})", $text, $number),)*
                    Self::Mpa(errno) => write!(f, "the application rejected it or has ended: {errno}"),
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
