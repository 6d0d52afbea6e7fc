//! Work requests and completions as values.

pub use bareverbs_uapi::uverbs::types::AccessFlags;
pub use bareverbs_uapi::verbs_values::{MwType, WcFlags, WcStatus};
pub use bareverbs_uapi::write::types::{PlacementType, SelectivityLevel, WcOpcode};

bitflags::bitflags! {
    /// How a send request is to be carried out.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait until earlier reads and atomics of the queue are complete.
        #[doc(alias = "IBV_SEND_FENCE")]
        const FENCE = 1 << 0;
        /// Make a completion; without it, only a failure makes one.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        const SOLICITED = 1 << 2;
    }
}

/// A run of registered memory.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the region's address space.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte, in the region's address space.
    pub addr: u64,
    /// Remote key of the region.
    pub rkey: u32,
}

/// What a send request does.
#[doc(alias = "ibv_wr_opcode")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// A message into a receive of the peer.
    Send,
    /// A message with four bytes of immediate data, which go over the wire as they lie in memory:
    /// pass `number.to_be()`.
    SendImm(u32),
    /// A message that invalidates a remote key of the peer.
    SendInv(u32),
    /// Bytes into memory of the peer.
    Write(Remote),
    /// Bytes into memory of the peer, and a receive with immediate data as in
    /// [`Operation::SendImm`].
    WriteImm(Remote, u32),
    /// Bytes from memory of the peer.
    Read(Remote),
    /// If the peer's 8 bytes equal `compare`, replaces them by `swap`; the old value comes back.
    CmpSwp {
        /// The 8 bytes, 8-byte aligned.
        remote: Remote,
        /// What they are compared with.
        compare: u64,
        /// What they become.
        swap: u64,
    },
    /// Adds to the peer's 8 bytes; the old value comes back.
    FetchAdd {
        /// The 8 bytes, 8-byte aligned.
        remote: Remote,
        /// What is added.
        add: u64,
    },
    /// Takes the rights of a key of this process: of a memory window of type 2, say. Has no
    /// payload.
    LocalInv(u32),
    /// Binds a memory window to part of a region, or a window of type 1 to nothing. Has no payload.
    BindMw(MwBind),
    /// Makes what was written to the peer's memory visible there, or persistent. Has no payload.
    Flush {
        /// First of the bytes.
        remote: Remote,
        /// How many.
        length: u32,
        /// What is guaranteed.
        placement: PlacementType,
        /// Whether just the bytes are meant, or all of the region.
        level: SelectivityLevel,
    },
    /// Writes the peer's 8 bytes at once: no reader sees part of them. Has no payload.
    AtomicWrite {
        /// The 8 bytes, 8-byte aligned.
        remote: Remote,
        /// What they become, as they lie in memory.
        value: [u8; 8],
    },
}

impl Operation {
    /// What it is called in messages to people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Send => "a send",
            Self::SendImm(_) => "a send with immediate data",
            Self::SendInv(_) => "a send that invalidates a key",
            Self::Write(_) => "an RDMA write",
            Self::WriteImm(..) => "an RDMA write with immediate data",
            Self::Read(_) => "an RDMA read",
            Self::CmpSwp { .. } => "a compare-and-swap",
            Self::FetchAdd { .. } => "a fetch-and-add",
            Self::LocalInv(_) => "an invalidation of a local key",
            Self::BindMw(_) => "a bind of a memory window",
            Self::Flush { .. } => "a flush",
            Self::AtomicWrite { .. } => "an atomic write",
        }
    }
}

/// What a request does, and with which of the shared receive queues of the peer's XRC domain.
#[doc(alias = "ibv_wr_set_xrc_srqn")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcOperation {
    /// Number of the shared receive queue, 24 bits: receives are taken from it. Operations that
    /// take none ignore it.
    pub remote_srq: u32,
    /// What to do.
    pub operation: Operation,
}

/// A whole Ethernet frame, from the address of its receiver to the end of its payload, as the bytes
/// of a request: the device puts the check sequence behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The first bytes of the frame, before those of the payload: at most 18, the length of an
    /// Ethernet header with a VLAN tag. They are copied when posted. Some devices want to have all
    /// 18 there, unless the payload is inline.
    ///
    /// With [`mss`](Self::mss): the whole headers, from that of Ethernet to the end of that of TCP.
    pub header: &'a [u8],
    /// The device fills in the checksums of the frame's IP header and of the TCP or UDP header
    /// behind it.
    #[doc(alias = "IBV_SEND_IP_CSUM")]
    pub checksums: bool,
    /// Makes it a large send (TCP segmentation offload): the device cuts the payload into frames
    /// with at most so many bytes of it, 1 to 16383, and puts the header before each, with lengths,
    /// sequence number, identification and flags as TCP over IPv4 or IPv6 has them there. The
    /// frames have no more than the port's MTU only if this is chosen so.
    ///
    /// For queue pairs made with room for such headers (`max_tso_header`); the payload may have as
    /// many bytes as the device's `max_tso` says.
    #[doc(alias = "IBV_WR_TSO")]
    pub mss: Option<u16>,
}

/// How a memory window is to be bound.
#[doc(alias = "ibv_mw_bind_info")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's type.
    pub mw_type: MwType,
    /// The window's key as it is.
    pub mw_rkey: u32,
    /// The window's key as it shall be; only its low byte can differ.
    pub rkey: u32,
    /// Local key of the region beneath.
    pub mr_lkey: u32,
    /// First address, in the region's address space.
    pub addr: u64,
    /// Bytes; 0 binds a window of type 1 to nothing.
    pub length: u64,
    /// What may be done through it.
    pub access: AccessFlags,
}

/// Where a send request's bytes are.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, gathered in order.
    Sges(&'a [Sge]),
    /// In any memory, copied into the queue when posted; for messages and writes only.
    Inline(&'a [&'a [u8]]),
}

/// A message to any queue pair, over an address handle `A` of the provider's.
pub struct Datagram<'a, A> {
    /// The path to the peer's port.
    pub ah: &'a A,
    /// The peer's queue pair, 24 bits.
    pub qp_num: u32,
    /// The peer's queue key.
    pub qkey: u32,
    /// Immediate data as in [`Operation::SendImm`].
    pub imm: Option<u32>,
}

impl<A> Clone for Datagram<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Datagram<'_, A> {}

impl<'a, A> Datagram<'a, A> {
    /// The same message over another handle.
    #[must_use]
    #[inline]
    pub fn over<B>(&self, ah: &'a B) -> Datagram<'a, B> {
        Datagram { ah, qp_num: self.qp_num, qkey: self.qkey, imm: self.imm }
    }
}

/// A send request; `O` is what it can do.
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a, O = Operation> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: O,
    /// How to do it.
    pub flags: SendFlags,
    /// The bytes; the target of a read or an atomic.
    pub payload: Payload<'a>,
}

impl<'a, O> SendRequest<'a, O> {
    /// The same request with another operation.
    #[must_use]
    #[inline]
    pub fn with<N>(&self, operation: N) -> SendRequest<'a, N> {
        SendRequest { wr_id: self.wr_id, operation, flags: self.flags, payload: self.payload }
    }
}

/// A receive request.
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a message is scattered to, in order.
    pub sges: &'a [Sge],
}

/// A completion by value.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// In the order of the kernel's own, so that it is copied as a whole.
#[repr(C)]
pub struct WorkCompletion {
    /// Of the request; 0, with the status [`WcStatus::GENERAL_ERR`], where the device reported what
    /// matches no request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was; meaningful on success only.
    pub opcode: WcOpcode,
    /// The device's own word on a failure.
    pub vendor_err: u32,
    /// Bytes received, read or fetched.
    pub byte_len: u32,
    /// Immediate data as on the wire, or the invalidated key, as [`WorkCompletion::wc_flags`] says.
    pub imm_data: u32,
    /// The local queue pair.
    pub qp_num: u32,
    /// The sender's queue pair; datagrams only.
    pub src_qp: u32,
    /// Which of the optional fields are set.
    pub wc_flags: WcFlags,
    /// Index of the partition key; of management datagrams (queue pair 1) only.
    pub pkey_index: u16,
    /// The sender's LID.
    pub slid: u16,
    /// Service level, of InfiniBand. What a device of Ethernet leaves here is its own (mlx5: the
    /// kind of the sender's header).
    pub sl: u8,
    /// Low bits of the destination LID.
    pub dlid_path_bits: u8,
}

/// Why a request was not written into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// Every slot holds a request that is not complete yet.
    #[error("the queue is full ({capacity} requests): poll completions first, or create the queue deeper")]
    QueueFull {
        /// Requests that the queue holds.
        capacity: u32,
    },
    /// More SGEs than a request of this queue can carry.
    #[error("{given} scatter/gather elements, but a request of this queue carries at most {max}")]
    TooManySges {
        /// SGEs asked for.
        given: usize,
        /// SGEs that fit.
        max: usize,
    },
    /// More bytes than a request of this queue can carry inline.
    #[error("{given} bytes inline, but a request of this queue carries at most {max}")]
    InlineTooLong {
        /// Bytes asked for.
        given: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// A large send whose header is no Ethernet header, or is longer than the queue pair was made
    /// for.
    #[error(
        "a header of {given} bytes, but that of a large send has 14 to {max}, as the queue pair's `max_tso_header` says"
    )]
    TsoHeader {
        /// Bytes given.
        given: usize,
        /// Bytes that fit.
        max: usize,
    },
    /// A large send in segments of a length that there is not.
    #[error("segments of {given} bytes, but a large send is cut into segments of 1 to {max}")]
    SegmentSize {
        /// Bytes asked for.
        given: u16,
        /// Most bytes of a segment.
        max: u16,
    },
    /// A read or an atomic with inline data.
    #[error("a read or an atomic needs registered memory for its result, not inline data")]
    InlineResult,
    /// More bytes than a message can have.
    #[error("{given} bytes, but a message has at most {max}")]
    MessageTooLong {
        /// Bytes asked for.
        given: u64,
        /// Bytes that a message can have.
        max: u64,
    },
    /// An atomic whose result is not 8 bytes long.
    #[error("the result of an atomic needs exactly 8 bytes of registered memory, not {given}")]
    AtomicResult {
        /// Bytes given.
        given: u64,
    },
    /// An atomic on an address that is not a multiple of 8.
    #[error("an atomic works on an address that is a multiple of 8, not on {addr:#x}")]
    AtomicAddress {
        /// The address.
        addr: u64,
    },
    /// A payload where the operation has none.
    #[error("{operation} has no payload: pass no elements and nothing inline")]
    UnexpectedPayload {
        /// The operation's name.
        operation: &'static str,
    },
    /// The device or the kernel does not know the operation.
    #[error("{operation} is not supported by this queue pair's transport or device")]
    Unsupported {
        /// The operation's name.
        operation: &'static str,
    },
    /// More bytes than a datagram can have. A device would drop them and report success.
    #[error("{given} bytes, but a datagram is one packet and has at most the port's MTU of {max}")]
    DatagramTooLong {
        /// Bytes asked for.
        given: u64,
        /// The MTU.
        max: u32,
    },
    /// An address handle of another device.
    #[error("the address handle is of another device: make one in the queue pair's own protection domain")]
    ForeignAddress,
    /// A read or an atomic where none may be outstanding. A device would wait for ever.
    #[error("{operation} counts as outstanding, and the queue pair was connected with max_rd_atomic 0")]
    NoReadsOutstanding {
        /// The operation's name.
        operation: &'static str,
    },
    /// A datagram to a queue pair whose number is none.
    #[error("queue pair numbers have 24 bits, which {qp_num:#x} exceeds")]
    QpNumber {
        /// The number.
        qp_num: u32,
    },
    /// A request to a shared receive queue whose number is none.
    #[error("shared receive queue numbers have 24 bits, which {srq_num:#x} exceeds")]
    SrqNumber {
        /// The number.
        srq_num: u32,
    },
    /// A flush of what is neither a range nor a region, or with no guarantee that there is.
    #[error("there is no flush of selectivity {level} and placement {placement:#x}")]
    Flush {
        /// What is meant.
        level: u8,
        /// What is asked for.
        placement: u8,
    },
    /// The queue was resized, and its new memory could not be mapped.
    #[error("the queue lost its memory when it was resized: resize it once more")]
    QueueLost,
}
