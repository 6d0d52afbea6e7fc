//! Netlink: encoder and decoder of messages with a header, a fixed struct and attributes, in
//! buffers of the caller.
//!
//! [`MessageWriter`] writes messages to a buffer. [`messages`] iterates over the messages of a
//! received datagram. This module opens no socket. Numbers are in host byte order, as in netlink.
//!
//! ```
//! use bareverbs_uapi::netlink::{MessageFlags, MessageWriter, messages};
//!
//! let mut buffer = [0; 64];
//! let mut writer = MessageWriter::new(&mut buffer);
//! writer.begin(0x1401, MessageFlags::REQUEST | MessageFlags::DUMP, 7).put_u32(1, 3).put_str(2, "rxe0");
//! let datagram = writer.finish()?;
//!
//! let message = messages(datagram).next().unwrap()?;
//! assert_eq!(message.header.seq, 7);
//! let mut attributes = message.attributes();
//! assert_eq!(attributes.next().unwrap()?.u32()?, 3);
//! assert_eq!(attributes.next().unwrap()?.str()?, "rxe0");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[deny(missing_debug_implementations)]
mod read;
#[deny(missing_debug_implementations)]
mod write;

pub use read::{Attribute, Attributes, Content, Malformed, Message, Messages, Report, messages};
pub use write::{MessageWriter, WriteError};

abi_structs! {
    header = "linux/netlink.h";

    /// The header of a message.
    struct MessageHeader = tag "nlmsghdr" {
        /// Length of the message in bytes, including this header, without padding.
        length: u32 = "nlmsg_len";
        /// Type: a [`ControlType`] below 16, else protocol-specific.
        kind: u16 = "nlmsg_type";
        /// Flags.
        flags: MessageFlags = "nlmsg_flags";
        /// Sequence number of the request, repeated in every response.
        seq: u32 = "nlmsg_seq";
        /// Port of the sender; 0 for the kernel.
        port: u32 = "nlmsg_pid";
    }

    /// The header of an attribute.
    struct AttributeHeader = tag "nlattr" {
        /// Length of the attribute in bytes, including this header, without padding.
        length: u16 = "nla_len";
        /// Type of the attribute, with the flags [`NESTED`] and [`NET_BYTE_ORDER`].
        kind: u16 = "nla_type";
    }

    /// The body of a [`ControlType::ERROR`] message.
    struct ErrorBody = tag "nlmsgerr" {
        /// 0 for an acknowledgement, else a negative errno.
        error: i32;
        /// The header of the request.
        request: MessageHeader = "msg";
    }
}

abi_enums! {
    header = "linux/netlink.h";

    /// Message types of all netlink protocols.
    enum ControlType: u16 = "" {
        /// No operation.
        NOOP = 1, "NLMSG_NOOP";
        /// An error or, with error 0, an acknowledgement.
        ERROR = 2, "NLMSG_ERROR";
        /// The end of a multipart response.
        DONE = 3, "NLMSG_DONE";
        /// Data was lost.
        OVERRUN = 4, "NLMSG_OVERRUN";
    }

    /// Attributes of an extended acknowledgement.
    enum ReportAttribute: u16 = "nlmsgerr_attrs" {
        /// Error text.
        MESSAGE = 1, "NLMSGERR_ATTR_MSG";
        /// Offset of the rejected attribute in the request, from the message header.
        OFFSET = 2, "NLMSGERR_ATTR_OFFS";
        /// Protocol-specific data.
        COOKIE = 3, "NLMSGERR_ATTR_COOKIE";
        /// Policy of the kernel for the rejected attribute.
        POLICY = 4, "NLMSGERR_ATTR_POLICY";
        /// Type of a missing mandatory attribute.
        MISSING_TYPE = 5, "NLMSGERR_ATTR_MISS_TYPE";
        /// Offset of the nested attribute that lacks it.
        MISSING_NEST = 6, "NLMSGERR_ATTR_MISS_NEST";
    }

    /// Options of a netlink socket, at level 270 (`SOL_NETLINK`).
    enum SocketOption: u32 = "" {
        /// Join a multicast group.
        ADD_MEMBERSHIP = 1, "NETLINK_ADD_MEMBERSHIP";
        /// Leave a multicast group.
        DROP_MEMBERSHIP = 2, "NETLINK_DROP_MEMBERSHIP";
        /// Omit the request in responses.
        CAP_ACK = 10, "NETLINK_CAP_ACK";
        /// Extended acknowledgements with error text.
        EXT_ACK = 11, "NETLINK_EXT_ACK";
        /// Strict checks of dump requests.
        GET_STRICT_CHECK = 12, "NETLINK_GET_STRICT_CHK";
    }
}

abi_flags! {
    header = "linux/netlink.h";

    /// [`MessageHeader::flags`]. The meaning of the bits from 8 on depends on the message: GET, NEW
    /// or DELETE requests, and acknowledgements.
    flags MessageFlags: u16 = "" {
        /// A request.
        REQUEST = 0x01, "NLM_F_REQUEST";
        /// Part of a multipart response, which [`ControlType::DONE`] ends.
        MULTI = 0x02, "NLM_F_MULTI";
        /// Request an acknowledgement.
        ACK = 0x04, "NLM_F_ACK";
        /// Send the notifications of this request to the requester too.
        ECHO = 0x08, "NLM_F_ECHO";
        /// The dump is inconsistent: the data changed during it.
        DUMP_INTERRUPTED = 0x10, "NLM_F_DUMP_INTR";
        /// The dump was filtered as requested.
        DUMP_FILTERED = 0x20, "NLM_F_DUMP_FILTERED";
        /// GET: return all entries.
        DUMP = 0x300, "NLM_F_DUMP";
        /// NEW: only if it does not exist.
        EXCLUSIVE = 0x200, "NLM_F_EXCL";
        /// NEW: create it if it does not exist.
        CREATE = 0x400, "NLM_F_CREATE";
        /// NEW: append to the list.
        APPEND = 0x800, "NLM_F_APPEND";
        /// NEW: replace an existing one.
        REPLACE = 0x100, "NLM_F_REPLACE";
        /// GET: the whole tree.
        ROOT = 0x100, "NLM_F_ROOT";
        /// GET: all that match.
        MATCH = 0x200, "NLM_F_MATCH";
        /// GET: atomically.
        ATOMIC = 0x400, "NLM_F_ATOMIC";
        /// DELETE: not recursively.
        NOT_RECURSIVE = 0x100, "NLM_F_NONREC";
        /// DELETE: multiple objects.
        BULK = 0x200, "NLM_F_BULK";
        /// Acknowledgement: the request is omitted.
        CAPPED = 0x100, "NLM_F_CAPPED";
        /// Acknowledgement: [`ReportAttribute`]s follow.
        ACK_ATTRIBUTES = 0x200, "NLM_F_ACK_TLVS";
    }
}

abi_consts! {
    header = "linux/netlink.h";

    /// The netlink protocol of the RDMA subsystem.
    const PROTOCOL_RDMA: u32 = 20, "NETLINK_RDMA";
    /// The netlink protocol of links, addresses, neighbours and routes.
    const PROTOCOL_ROUTE: u32 = 0, "NETLINK_ROUTE";
    /// Message types below this are [`ControlType`]s.
    const MIN_TYPE: u16 = 0x10, "NLMSG_MIN_TYPE";
    /// Flag of [`AttributeHeader::kind`]: the payload is nested attributes.
    const NESTED: u16 = 1 << 15, "NLA_F_NESTED";
    /// Flag of [`AttributeHeader::kind`]: the payload is in network byte order.
    const NET_BYTE_ORDER: u16 = 1 << 14, "NLA_F_NET_BYTEORDER";
    /// Alignment of messages.
    const MESSAGE_ALIGNMENT: usize = 4, "NLMSG_ALIGNTO";
    /// Alignment of attributes.
    const ATTRIBUTE_ALIGNMENT: usize = 4, "NLA_ALIGNTO";
}

/// Rounds up to the next multiple of 4, the alignment of messages and attributes; saturating.
const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}
