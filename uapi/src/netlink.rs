//! Netlink: messages of a header, a fixed struct and attributes, in buffers of the caller.
//!
//! [`MessageWriter`] lays messages into a buffer, [`messages`] walks those of a received datagram.
//! Nothing here opens a socket. Everything is in the machine's byte order, as netlink has it.
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

mod read;
mod write;

pub use read::{Attribute, Attributes, Content, Malformed, Message, Messages, Report, messages};
pub use write::{MessageWriter, WriteError};

abi_structs! {
    header = "linux/netlink.h";

    /// The head of a message.
    struct MessageHeader = tag "nlmsghdr" {
        /// Bytes of the message with this header, without the padding after it.
        length: u32 = "nlmsg_len";
        /// What the message is: a [`ControlType`] below 16, else the protocol's own.
        kind: u16 = "nlmsg_type";
        /// Flags.
        flags: MessageFlags = "nlmsg_flags";
        /// Number chosen by the asker and repeated in every answer.
        seq: u32 = "nlmsg_seq";
        /// Port of the sender; 0 is the kernel.
        port: u32 = "nlmsg_pid";
    }

    /// The head of an attribute.
    struct AttributeHeader = tag "nlattr" {
        /// Bytes of the attribute with this header, without the padding after it.
        length: u16 = "nla_len";
        /// Number of the attribute, with the bits [`NESTED`] and [`NET_BYTE_ORDER`].
        kind: u16 = "nla_type";
    }

    /// The body of a [`ControlType::ERROR`] message.
    struct ErrorBody = tag "nlmsgerr" {
        /// 0 for an acknowledgement, else a negative errno.
        error: i32;
        /// The head of the message that this one answers.
        request: MessageHeader = "msg";
    }
}

abi_enums! {
    header = "linux/netlink.h";

    /// Message types that every netlink protocol shares.
    enum ControlType: u16 = "" {
        /// To be ignored.
        NOOP = 1, "NLMSG_NOOP";
        /// An error or, with error 0, an acknowledgement.
        ERROR = 2, "NLMSG_ERROR";
        /// The end of a multipart answer.
        DONE = 3, "NLMSG_DONE";
        /// Data was lost.
        OVERRUN = 4, "NLMSG_OVERRUN";
    }

    /// Attributes of an extended acknowledgement.
    enum ReportAttribute: u16 = "nlmsgerr_attrs" {
        /// What is wrong, in words.
        MESSAGE = 1, "NLMSGERR_ATTR_MSG";
        /// Where in the request the refused attribute starts, counted from the head of the message.
        OFFSET = 2, "NLMSGERR_ATTR_OFFS";
        /// Data of the protocol's own.
        COOKIE = 3, "NLMSGERR_ATTR_COOKIE";
        /// What the kernel accepts for the refused attribute.
        POLICY = 4, "NLMSGERR_ATTR_POLICY";
        /// Number of an attribute that was required and missing.
        MISSING_TYPE = 5, "NLMSGERR_ATTR_MISS_TYPE";
        /// Where the nest starts in which it was missing.
        MISSING_NEST = 6, "NLMSGERR_ATTR_MISS_NEST";
    }

    /// Options of a netlink socket, at level 270 (`SOL_NETLINK`).
    enum SocketOption: u32 = "" {
        /// Join a multicast group.
        ADD_MEMBERSHIP = 1, "NETLINK_ADD_MEMBERSHIP";
        /// Leave a multicast group.
        DROP_MEMBERSHIP = 2, "NETLINK_DROP_MEMBERSHIP";
        /// Leave the request out of an answer.
        CAP_ACK = 10, "NETLINK_CAP_ACK";
        /// Say in words what is wrong with a request.
        EXT_ACK = 11, "NETLINK_EXT_ACK";
        /// Refuse a dump request with unknown parts.
        GET_STRICT_CHECK = 12, "NETLINK_GET_STRICT_CHK";
    }
}

abi_flags! {
    header = "linux/netlink.h";

    /// [`MessageHeader::flags`]. The bits from 8 on mean different things in requests to read,
    /// requests to make, requests to delete, and answers.
    flags MessageFlags: u16 = "" {
        /// A request.
        REQUEST = 0x01, "NLM_F_REQUEST";
        /// Part of a multipart answer that [`ControlType::DONE`] ends.
        MULTI = 0x02, "NLM_F_MULTI";
        /// Answer with an acknowledgement.
        ACK = 0x04, "NLM_F_ACK";
        /// Send the asker the notices too that the request causes.
        ECHO = 0x08, "NLM_F_ECHO";
        /// What is dumped changed meanwhile.
        DUMP_INTERRUPTED = 0x10, "NLM_F_DUMP_INTR";
        /// The dump was filtered as asked.
        DUMP_FILTERED = 0x20, "NLM_F_DUMP_FILTERED";
        /// To read: give every entry.
        DUMP = 0x300, "NLM_F_DUMP";
        /// To make: only if it does not exist.
        EXCLUSIVE = 0x200, "NLM_F_EXCL";
        /// To make: if it does not exist.
        CREATE = 0x400, "NLM_F_CREATE";
        /// To make: at the end of a list.
        APPEND = 0x800, "NLM_F_APPEND";
        /// To make: in place of an existing one.
        REPLACE = 0x100, "NLM_F_REPLACE";
        /// To read: the whole tree.
        ROOT = 0x100, "NLM_F_ROOT";
        /// To read: all that match.
        MATCH = 0x200, "NLM_F_MATCH";
        /// To read: in one go.
        ATOMIC = 0x400, "NLM_F_ATOMIC";
        /// To delete: not what depends on it.
        NOT_RECURSIVE = 0x100, "NLM_F_NONREC";
        /// To delete: several.
        BULK = 0x200, "NLM_F_BULK";
        /// In an acknowledgement: the request was left out.
        CAPPED = 0x100, "NLM_F_CAPPED";
        /// In an acknowledgement: [`ReportAttribute`]s follow.
        ACK_ATTRIBUTES = 0x200, "NLM_F_ACK_TLVS";
    }
}

abi_consts! {
    header = "linux/netlink.h";

    /// The netlink protocol of the RDMA subsystem.
    const PROTOCOL_RDMA: u32 = 20, "NETLINK_RDMA";
    /// The netlink protocol of links, addresses and routes.
    const PROTOCOL_ROUTE: u32 = 0, "NETLINK_ROUTE";
    /// Message types below this are [`ControlType`]s.
    const MIN_TYPE: u16 = 0x10, "NLMSG_MIN_TYPE";
    /// Bit of [`AttributeHeader::kind`]: the payload is attributes.
    const NESTED: u16 = 1 << 15, "NLA_F_NESTED";
    /// Bit of [`AttributeHeader::kind`]: the payload is in network byte order.
    const NET_BYTE_ORDER: u16 = 1 << 14, "NLA_F_NET_BYTEORDER";
    /// Messages start at multiples of this.
    const MESSAGE_ALIGNMENT: usize = 4, "NLMSG_ALIGNTO";
    /// Attributes start at multiples of this.
    const ATTRIBUTE_ALIGNMENT: usize = 4, "NLA_ALIGNTO";
}

/// Up to the next multiple of 4, where messages and attributes start; saturating.
const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}
