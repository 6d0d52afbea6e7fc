//! Work requests and completions as values.

mod remote;

use std::fmt;

pub use self::remote::{ParseRemoteError, Remote};
pub use bareverbs_uapi::uverbs::types::AccessFlags;
pub use bareverbs_uapi::verbs_values::{MwType, WcFlags, WcStatus};
pub use bareverbs_uapi::write::types::{PlacementType, SelectivityLevel, WcOpcode};

bitflags::bitflags! {
    /// Flags of a send request.
    #[doc(alias = "ibv_send_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait until earlier reads and atomics of the QP are complete.
        #[doc(alias = "IBV_SEND_FENCE")]
        const FENCE = 1 << 0;
        /// Generate a CQE on success. Without it, only a failure generates one.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the receiver.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        const SOLICITED = 1 << 2;
    }
}

/// Immediate data: a number that a message carries besides its payload.
///
/// The number is in host byte order. The requests and completions convert it to and from the
/// network byte order of the packet.
///
/// ```
/// use bareverbs_provider::work::{Imm, Operation};
///
/// assert_eq!(Operation::SendImm(7.into()), Operation::SendImm(Imm(7)));
/// assert_eq!(Imm(0x0102_0304).to_be_bytes(), [1, 2, 3, 4]);
/// ```
#[doc(alias = "imm_data")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Imm(pub u32);

impl Imm {
    /// The number of these bytes of a packet.
    #[must_use]
    #[inline]
    pub const fn from_be_bytes(bytes: [u8; 4]) -> Self {
        Self(u32::from_be_bytes(bytes))
    }

    /// The bytes in a packet.
    #[must_use]
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }

    /// The number from the field of a CQE, which the device fills in network byte order.
    #[must_use]
    #[inline]
    pub const fn from_be(field: u32) -> Self {
        Self(u32::from_be(field))
    }

    /// The field of a WQE, in network byte order.
    #[must_use]
    #[inline]
    pub const fn to_be(self) -> u32 {
        self.0.to_be()
    }
}

impl From<u32> for Imm {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

impl From<Imm> for u32 {
    fn from(imm: Imm) -> Self {
        imm.0
    }
}

impl fmt::Display for Imm {
    /// In hexadecimal, with a prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Scatter/gather element: a range of registered memory.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the MR's address space.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the MR.
    pub lkey: u32,
}

/// Operation of a send request.
#[doc(alias = "ibv_wr_opcode")]
#[doc(alias = "ibv_wr_opcode_str")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Sends a message to a receive of the peer.
    #[doc(alias = "IBV_WR_SEND")]
    #[doc(alias = "ibv_wr_send")]
    Send,
    /// Sends a message with immediate data.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "ibv_wr_send_imm")]
    SendImm(Imm),
    /// Sends a message that invalidates a remote key of the peer.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    #[doc(alias = "ibv_wr_send_inv")]
    SendInv(u32),
    /// RDMA write to memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[doc(alias = "ibv_wr_rdma_write")]
    Write(Remote),
    /// RDMA write that also completes a receive of the peer, with immediate data.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[doc(alias = "ibv_wr_rdma_write_imm")]
    WriteImm(Remote, Imm),
    /// RDMA read from memory of the peer.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[doc(alias = "ibv_wr_rdma_read")]
    Read(Remote),
    /// Replaces the peer's 8 bytes by `swap` if they equal `compare`; returns the old value.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "ibv_wr_atomic_cmp_swp")]
    CmpSwp {
        /// Address of the 8 bytes, a multiple of 8.
        remote: Remote,
        /// Compared value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to the peer's 8 bytes; returns the old value.
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[doc(alias = "ibv_wr_atomic_fetch_add")]
    FetchAdd {
        /// Address of the 8 bytes, a multiple of 8.
        remote: Remote,
        /// Addend.
        add: u64,
    },
    /// Invalidates a key of this process, such as that of a type 2 memory window. Has no payload.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[doc(alias = "ibv_wr_local_inv")]
    LocalInv(u32),
    /// Binds a memory window to part of an MR, or unbinds a type 1 window. Has no payload.
    #[doc(alias = "IBV_WR_BIND_MW")]
    BindMw(MwBind),
    /// Makes earlier writes to the peer's memory visible or persistent there. Has no payload.
    #[doc(alias = "IBV_WR_FLUSH")]
    #[doc(alias = "ibv_wr_flush")]
    Flush {
        /// Start of the range.
        remote: Remote,
        /// Length of the range in bytes.
        length: u32,
        /// Guarantee: visibility, persistence or both.
        placement: PlacementType,
        /// Flushes the range only, or the whole MR.
        level: SelectivityLevel,
    },
    /// Writes the peer's 8 bytes atomically: no reader sees part of them. Has no payload.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    #[doc(alias = "ibv_wr_atomic_write")]
    AtomicWrite {
        /// Address of the 8 bytes, a multiple of 8.
        remote: Remote,
        /// New value, in memory order.
        value: [u8; 8],
    },
}

impl Operation {
    /// Name for error messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Send => "a send",
            Self::SendImm(_) => "a send with immediate data",
            Self::SendInv(_) => "a send with invalidate",
            Self::Write(_) => "an RDMA write",
            Self::WriteImm(..) => "an RDMA write with immediate data",
            Self::Read(_) => "an RDMA read",
            Self::CmpSwp { .. } => "a compare-and-swap",
            Self::FetchAdd { .. } => "a fetch-and-add",
            Self::LocalInv(_) => "a local invalidate",
            Self::BindMw(_) => "a memory window bind",
            Self::Flush { .. } => "a flush",
            Self::AtomicWrite { .. } => "an atomic write",
        }
    }
}

/// An operation and the SRQ of the peer's XRC domain that it uses.
#[doc(alias = "ibv_wr_set_xrc_srqn")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcOperation {
    /// SRQ number, 24 bits. Sends and writes with immediate consume receives of this SRQ. RDMA and
    /// atomic requests access memory in the PD of this SRQ.
    pub remote_srq: u32,
    /// The operation.
    pub operation: Operation,
}

/// A whole Ethernet frame, from the destination address to the end of the payload. The device
/// appends the frame check sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame<'a> {
    /// First bytes of the frame, placed before the payload: at most 18, the length of an Ethernet
    /// header with a VLAN tag. They are copied when posted. Some devices require all 18 bytes here,
    /// unless the payload is inline.
    ///
    /// With [`mss`](Self::mss): all headers, from the Ethernet header to the end of the TCP header.
    pub header: &'a [u8],
    /// The device computes the checksums of the IP header and of the TCP or UDP header.
    #[doc(alias = "IBV_SEND_IP_CSUM")]
    pub checksums: bool,
    /// Maximum segment size of TCP segmentation offload (TSO), 1 to 16383 bytes. The device splits
    /// the payload into frames with at most this many payload bytes. It puts the header before
    /// each, with lengths, sequence number, identification and flags as TCP over IPv4 or IPv6
    /// requires. The caller must choose it so that frames fit the port's MTU.
    ///
    /// The QP must have been created with `max_tso_header`. The payload has at most `max_tso`
    /// bytes, a device attribute.
    #[doc(alias = "IBV_WR_TSO")]
    #[doc(alias = "ibv_wr_send_tso")]
    pub mss: Option<u16>,
}

/// Parameters of a memory window bind.
#[doc(alias = "ibv_mw_bind_info")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The window's type.
    pub mw_type: MwType,
    /// Current key of the window.
    pub mw_rkey: u32,
    /// New key of the window; only its low byte can differ.
    pub rkey: u32,
    /// Local key of the underlying MR.
    pub mr_lkey: u32,
    /// First address, in the MR's address space.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// Access rights through the window.
    pub access: AccessFlags,
}

/// Payload of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, gathered in order.
    #[doc(alias = "ibv_wr_set_sge")]
    #[doc(alias = "ibv_wr_set_sge_list")]
    Sges(&'a [Sge]),
    /// Bytes copied into the queue when posted; for sends and writes only.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[doc(alias = "ibv_wr_set_inline_data")]
    #[doc(alias = "ibv_wr_set_inline_data_list")]
    Inline(&'a [&'a [u8]]),
}

/// A datagram, with an address handle `A` of the provider.
pub struct Datagram<'a, A> {
    /// The path to the peer's port.
    pub ah: &'a A,
    /// QP number of the peer, 24 bits.
    pub qp_num: u32,
    /// Q_Key of the peer.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<Imm>,
    /// First bytes of the datagram, placed before the payload. They are copied when posted. Only QPs
    /// with a [source QPN](crate::request::QpRequest::source_qpn) have them, and require 4 to 18 bytes
    /// here, unless the payload is inline. Others reject them.
    pub header: &'a [u8],
}

// By hand, so that the address handle need not implement `Debug`.
impl<A> fmt::Debug for Datagram<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("qp_num", &self.qp_num)
            .field("qkey", &self.qkey)
            .field("imm", &self.imm)
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl<A> Clone for Datagram<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Datagram<'_, A> {}

impl<'a, A> Datagram<'a, A> {
    /// The same datagram with another address handle.
    #[must_use]
    #[inline]
    pub fn over<B>(&self, ah: &'a B) -> Datagram<'a, B> {
        Datagram { ah, qp_num: self.qp_num, qkey: self.qkey, imm: self.imm, header: self.header }
    }
}

/// A send request with an operation of type `O`.
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a, O = Operation> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub operation: O,
    /// Send flags.
    pub flags: SendFlags,
    /// The payload; for a read or an atomic, the memory of the result.
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

impl<'a> SendRequest<'a> {
    /// An unsignalled request for any operation.
    #[must_use]
    #[inline]
    pub const fn new(wr_id: u64, operation: Operation, payload: Payload<'a>) -> Self {
        Self { wr_id, operation, flags: SendFlags::empty(), payload }
    }

    /// A send of the bytes of `sges`.
    ///
    /// ```
    /// use bareverbs_provider::work::{Operation, SendFlags, SendRequest, Sge};
    ///
    /// let sges = [Sge { addr: 0x1000, length: 64, lkey: 7 }];
    /// let request = SendRequest::send(1, &sges).signaled();
    /// assert_eq!((request.wr_id, request.operation), (1, Operation::Send));
    /// assert_eq!(request.flags, SendFlags::SIGNALED);
    /// ```
    #[must_use]
    #[inline]
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::Send, Payload::Sges(sges))
    }

    /// A send with immediate data.
    #[must_use]
    #[inline]
    pub const fn send_imm(wr_id: u64, imm: Imm, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::SendImm(imm), Payload::Sges(sges))
    }

    /// An RDMA write of the bytes of `sges` to `remote`.
    #[must_use]
    #[inline]
    pub const fn write(wr_id: u64, remote: Remote, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::Write(remote), Payload::Sges(sges))
    }

    /// An RDMA write with immediate data.
    #[must_use]
    #[inline]
    pub const fn write_imm(wr_id: u64, remote: Remote, imm: Imm, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::WriteImm(remote, imm), Payload::Sges(sges))
    }

    /// An RDMA read from `remote` to the memory of `sges`.
    #[must_use]
    #[inline]
    pub const fn read(wr_id: u64, remote: Remote, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::Read(remote), Payload::Sges(sges))
    }

    /// Adds `add` to the 8 bytes at `remote`. The old value goes to the memory of `result`.
    #[must_use]
    #[inline]
    pub const fn fetch_add(wr_id: u64, remote: Remote, add: u64, result: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::FetchAdd { remote, add }, Payload::Sges(result))
    }

    /// Replaces the 8 bytes at `remote` by `swap` if they equal `compare`. The old value goes to
    /// the memory of `result`.
    #[must_use]
    #[inline]
    pub const fn compare_swap(
        wr_id: u64,
        remote: Remote,
        compare: u64,
        swap: u64,
        result: &'a [Sge],
    ) -> Self {
        Self::new(wr_id, Operation::CmpSwp { remote, compare, swap }, Payload::Sges(result))
    }

    /// A send of the bytes of `sges` that invalidates the key `rkey` of the peer, such as that of a
    /// type 2 memory window of which this process no longer makes use.
    #[doc(alias = "IBV_WR_SEND_WITH_INV")]
    #[doc(alias = "ibv_wr_send_inv")]
    #[must_use]
    #[inline]
    pub const fn send_inv(wr_id: u64, rkey: u32, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, Operation::SendInv(rkey), Payload::Sges(sges))
    }

    /// Invalidates the key `rkey` of this process.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    #[doc(alias = "ibv_wr_local_inv")]
    #[must_use]
    #[inline]
    pub const fn local_inv(wr_id: u64, rkey: u32) -> Self {
        Self::new(wr_id, Operation::LocalInv(rkey), Payload::Sges(&[]))
    }

    /// Binds a memory window, or unbinds one of type 1.
    #[doc(alias = "IBV_WR_BIND_MW")]
    #[doc(alias = "ibv_wr_bind_mw")]
    #[must_use]
    #[inline]
    pub const fn bind_mw(wr_id: u64, bind: MwBind) -> Self {
        Self::new(wr_id, Operation::BindMw(bind), Payload::Sges(&[]))
    }

    /// Makes earlier writes to the `length` bytes at `remote` visible, persistent or both.
    ///
    /// ```
    /// use bareverbs_provider::work::{PlacementType, Remote, SelectivityLevel, SendRequest};
    ///
    /// let written = Remote { addr: 0x1000, rkey: 7 };
    /// let (placement, level) = (PlacementType::PERSISTENT, SelectivityLevel::RANGE);
    /// let request = SendRequest::flush(1, written, 4096, placement, level).signaled();
    /// ```
    #[doc(alias = "IBV_WR_FLUSH")]
    #[doc(alias = "ibv_wr_flush")]
    #[must_use]
    #[inline]
    pub const fn flush(
        wr_id: u64,
        remote: Remote,
        length: u32,
        placement: PlacementType,
        level: SelectivityLevel,
    ) -> Self {
        Self::new(wr_id, Operation::Flush { remote, length, placement, level }, Payload::Sges(&[]))
    }

    /// Writes `value` to the 8 bytes at `remote`, a multiple of 8, atomically.
    #[doc(alias = "IBV_WR_ATOMIC_WRITE")]
    #[doc(alias = "ibv_wr_atomic_write")]
    #[must_use]
    #[inline]
    pub const fn atomic_write(wr_id: u64, remote: Remote, value: [u8; 8]) -> Self {
        Self::new(wr_id, Operation::AtomicWrite { remote, value }, Payload::Sges(&[]))
    }
}

impl<'a, O> SendRequest<'a, O> {
    /// The same request with [`SendFlags::SIGNALED`]: it generates a CQE on success.
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[must_use]
    #[inline]
    pub fn signaled(self) -> Self {
        self.flags(SendFlags::SIGNALED)
    }

    /// The same request with [`SendFlags::FENCE`]: it waits for earlier reads and atomics.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[must_use]
    #[inline]
    pub fn fenced(self) -> Self {
        self.flags(SendFlags::FENCE)
    }

    /// The same request with [`SendFlags::SOLICITED`]: it raises a solicited event at the receiver.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[must_use]
    #[inline]
    pub fn solicited(self) -> Self {
        self.flags(SendFlags::SOLICITED)
    }

    /// The same request with these flags too.
    #[must_use]
    #[inline]
    pub fn flags(self, flags: SendFlags) -> Self {
        Self { flags: self.flags | flags, ..self }
    }

    /// The same request with an inline payload: `bytes` are copied into the queue when posted.
    ///
    /// ```
    /// use bareverbs_provider::work::SendRequest;
    ///
    /// let request = SendRequest::send(1, &[]).inline(&[b"head", b"body"]).signaled();
    /// ```
    #[doc(alias = "IBV_SEND_INLINE")]
    #[must_use]
    #[inline]
    pub fn inline(self, bytes: &'a [&'a [u8]]) -> Self {
        Self { payload: Payload::Inline(bytes), ..self }
    }
}

impl<'a> RecvRequest<'a> {
    /// A receive into the memory of `sges`.
    #[must_use]
    #[inline]
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges }
    }
}

/// A receive request.
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Memory that the message is scattered to, in order.
    pub sges: &'a [Sge],
}

/// A completion by value.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Fields in the kernel's order, so that a completion is copied as a whole.
#[repr(C)]
pub struct WorkCompletion {
    /// `wr_id` of the request. 0, with the status [`WcStatus::GENERAL_ERR`], if the CQE matches no
    /// outstanding request.
    pub wr_id: u64,
    /// Completion status.
    pub status: WcStatus,
    /// Opcode; valid on success only.
    pub opcode: WcOpcode,
    /// Vendor-specific error code.
    pub vendor_err: u32,
    /// Number of bytes received, read or fetched. For datagrams it includes the 40 bytes of the
    /// GRH. The device reports it: check it before slicing a buffer.
    pub byte_len: u32,
    /// Immediate data in network byte order, or the invalidated key, as in the kernel's `ib_wc`.
    /// Read it by [`imm`](Self::imm) or [`invalidated_rkey`](Self::invalidated_rkey).
    pub ex: u32,
    /// Local QP number.
    pub qp_num: u32,
    /// QP number of the sender; datagrams only.
    pub src_qp: u32,
    /// Flags for the optional fields.
    pub wc_flags: WcFlags,
    /// P_Key index; only for management datagrams (QP 1).
    pub pkey_index: u16,
    /// The sender's LID.
    pub slid: u16,
    /// Service level on InfiniBand. On Ethernet the value is device-specific (mlx5: the type of the
    /// sender's header).
    pub sl: u8,
    /// Low bits of the destination LID.
    pub dlid_path_bits: u8,
}

/// A completion with an error status, from [`WorkCompletion::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request {wr_id:#x} failed: {status} (vendor error {vendor_err:#x})")]
#[non_exhaustive]
pub struct WcError {
    /// `wr_id` of the request.
    pub wr_id: u64,
    /// Completion status.
    pub status: WcStatus,
    /// Vendor-specific error code.
    pub vendor_err: u32,
}

impl WorkCompletion {
    /// Whether the request was successful.
    #[must_use]
    #[inline]
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::SUCCESS
    }

    /// Checks that the request was successful.
    ///
    /// ```
    /// # use bareverbs_provider::work::{WcError, WorkCompletion};
    /// fn received(completion: &WorkCompletion) -> Result<u32, WcError> {
    ///     completion.check()?;
    ///     Ok(completion.byte_len)
    /// }
    /// assert!(received(&WorkCompletion::default()).is_err());
    /// ```
    ///
    /// # Errors
    /// The status is not [`WcStatus::SUCCESS`]. The error converts to the `Error` of `bareverbs`.
    #[inline]
    pub fn check(&self) -> Result<(), WcError> {
        if self.is_success() {
            return Ok(());
        }
        let Self { wr_id, status, vendor_err, .. } = *self;
        Err(WcError { wr_id, status, vendor_err })
    }

    /// Immediate data, if the message has any.
    #[doc(alias = "imm_data")]
    #[must_use]
    #[inline]
    pub fn imm(&self) -> Option<Imm> {
        self.wc_flags.contains(WcFlags::WITH_IMM).then(|| Imm::from_be(self.ex))
    }

    /// The R_Key that the message invalidated, if any.
    #[must_use]
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.wc_flags.contains(WcFlags::WITH_INVALIDATE).then_some(self.ex)
    }
}

impl Default for WorkCompletion {
    /// A completion of no request, to be overwritten: all fields 0, with the status
    /// [`WcStatus::GENERAL_ERR`].
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::GENERAL_ERR,
            opcode: WcOpcode::SEND,
            vendor_err: 0,
            byte_len: 0,
            ex: 0,
            qp_num: 0,
            src_qp: 0,
            wc_flags: WcFlags::empty(),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

/// Reason why a request was not written into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The queue is full: every slot holds an outstanding request.
    #[error("the queue is full ({capacity} requests): poll completions first, or create a deeper queue")]
    QueueFull {
        /// Capacity in requests.
        capacity: u32,
    },
    /// The request has more SGEs than a request of this queue can hold.
    #[error("{given} SGEs exceed the maximum of {max} per request")]
    TooManySges {
        /// Number of SGEs in the request.
        given: usize,
        /// Maximum number of SGEs.
        max: usize,
    },
    /// The inline payload is longer than a request of this queue can hold.
    #[error("{given} inline bytes exceed the maximum of {max} per request")]
    InlineTooLong {
        /// Inline bytes in the request.
        given: usize,
        /// Maximum number of inline bytes.
        max: usize,
    },
    /// The header of a TSO send is shorter than an Ethernet header, or longer than the QP's
    /// `max_tso_header`.
    #[error("a TSO header has 14 to {max} bytes (the QP's `max_tso_header`), not {given}")]
    TsoHeader {
        /// Header bytes in the request.
        given: usize,
        /// Maximum number of header bytes.
        max: usize,
    },
    /// The segment size of a TSO send is out of range.
    #[error("TSO segments have 1 to {max} bytes, not {given}")]
    SegmentSize {
        /// Segment size in the request, in bytes.
        given: u16,
        /// Maximum segment size in bytes.
        max: u16,
    },
    /// A read or an atomic with an inline payload.
    #[error("an RDMA read or atomic cannot use inline data: pass an SGE for the result")]
    InlineResult,
    /// The message is longer than the maximum message size.
    #[error("a message of {given} bytes exceeds the maximum of {max}")]
    MessageTooLong {
        /// Bytes in the request.
        given: u64,
        /// Maximum message size in bytes.
        max: u64,
    },
    /// The result of an atomic is not 8 bytes long.
    #[error("the result of an atomic requires an SGE of 8 bytes, not {given}")]
    AtomicResult {
        /// Bytes in the request.
        given: u64,
    },
    /// The address of an atomic is not a multiple of 8.
    #[error("the remote address of an atomic must be a multiple of 8: {addr:#x}")]
    AtomicAddress {
        /// The address.
        addr: u64,
    },
    /// A payload for an operation without one.
    #[error("{operation} has no payload: pass neither SGEs nor inline data")]
    UnexpectedPayload {
        /// The operation's name.
        operation: &'static str,
    },
    /// The device or the kernel does not support the operation.
    #[error("{operation} is not supported by the transport of the QP or by the device")]
    Unsupported {
        /// The operation's name.
        operation: &'static str,
    },
    /// The payload is longer than the port's MTU. rxe would drop the datagram and report success
    /// (IBTA C10-93.1.1); ConnectX would report `LOC_LEN_ERR`.
    #[error("a datagram of {given} bytes exceeds the port's MTU of {max}")]
    DatagramTooLong {
        /// Bytes in the request.
        given: u64,
        /// The port's MTU in bytes.
        max: u32,
    },
    /// The address handle belongs to another device.
    #[error("the address handle belongs to another device: create one in the PD of the QP")]
    ForeignAh,
    /// A read or an atomic on a QP whose `max_rd_atomic` is 0. A device would never complete it.
    #[error("{operation} requires max_rd_atomic of at least 1; the QP was connected with 0")]
    MaxRdAtomicZero {
        /// The operation's name.
        operation: &'static str,
    },
    /// The QP number of a datagram exceeds 24 bits.
    #[error("QP number {qp_num:#x} exceeds 24 bits")]
    QpNumber {
        /// The number.
        qp_num: u32,
    },
    /// The SRQ number of an XRC request exceeds 24 bits.
    #[error("SRQ number {srq_num:#x} exceeds 24 bits")]
    SrqNumber {
        /// The number.
        srq_num: u32,
    },
    /// A flush with an invalid selectivity level, or with an invalid placement type.
    #[error("invalid flush: selectivity level {level}, placement type {placement:#x}")]
    Flush {
        /// Selectivity level in the request.
        level: u8,
        /// Placement type in the request.
        placement: u8,
    },
    /// The queue was resized, and its new memory could not be mapped.
    #[error("the queue has no memory after a failed resize: resize it again")]
    QueueLost,
}
