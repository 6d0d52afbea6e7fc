//! Verbs as plain data: the generator makes them, the model predicts them, the driver executes
//! them.

use std::ops::Range;

use bareverbs::{Access, WcOpcode, WcStatus};

/// The id of an object of any type. Ids are unique in an iteration, so that lists of operations can
/// be shortened.
pub type Id = u32;

/// The bit in the `wr_id` of receives.
pub const RECEIVE: u64 = 1 << 63;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// A range of bytes of a region, or of an invalid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The region.
    pub mr: Option<Id>,
    /// The bytes, which may reach beyond the region.
    pub range: Range<usize>,
}

impl Piece {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// The key type of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The region's own key.
    Region,
    /// The key of a window.
    Window(Id),
    /// An invalid key.
    Invalid,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The key in the request.
    pub key: Key,
    /// The region whose address is in the request.
    pub mr: Id,
    /// The offset in the region.
    pub offset: usize,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// SEND, optionally with immediate data.
    Send(Option<u32>),
    /// SEND with invalidate of a window of the peer.
    SendInv(Id),
    /// RDMA WRITE, optionally with immediate data.
    Write(Target, Option<u32>),
    /// RDMA READ.
    Read(Target),
    /// Compare and swap.
    CmpSwp(Target, u64, u64),
    /// Fetch and add.
    FetchAdd(Target, u64),
    /// ATOMIC_WRITE of 8 bytes.
    AtomicWrite(Target, u64),
    /// FLUSH of so many bytes.
    Flush(Target, usize),
    /// Binds a window to a region with these rights.
    Bind(Id, Id, Access),
    /// Invalidates a window, or an invalid key.
    LocalInv(Option<Id>),
    /// A datagram to a queue pair, with the right or a wrong Q_Key, optionally with immediate data.
    Datagram(Id, bool, Option<u32>),
}

/// The memory of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// In registered memory.
    Pieces(Vec<Piece>),
    /// In the request.
    Inline(Vec<u8>),
}

impl Payload {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Pieces(pieces) => pieces.iter().map(Piece::len).sum(),
            Self::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A send request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its `wr_id`.
    pub wr_id: u64,
    /// Its operation.
    pub action: Action,
    /// Its data, or the memory of its result.
    pub payload: Payload,
    /// Whether it generates a completion.
    pub signalled: bool,
    /// Whether it waits for earlier reads and atomics.
    pub fence: bool,
    /// Whether it raises a solicited event.
    pub solicited: bool,
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Its `wr_id`.
    pub wr_id: u64,
    /// The memory of the message.
    pub pieces: Vec<Piece>,
}

/// The parameters of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpPlan {
    /// Its transport.
    pub kind: Kind,
    /// Its PD.
    pub pd: Id,
    /// The CQ of sends.
    pub send_cq: Id,
    /// The CQ of receives.
    pub recv_cq: Id,
    /// Its SRQ.
    pub srq: Option<Id>,
    /// Depth of the send queue, at least.
    pub sends: u32,
    /// Depth of the receive queue, at least.
    pub receives: u32,
    /// Maximum SGEs of a request.
    pub pieces: u32,
    /// Maximum inline bytes.
    pub inline: u32,
    /// Whether each send generates a completion.
    pub signal_all: bool,
}

/// The parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// One end.
    pub a: Id,
    /// The other.
    pub b: Id,
    /// Remote access rights, at both ends.
    pub access: Access,
    /// Path MTU in bytes: 256, 512 or 1024.
    pub mtu: u16,
    /// The first PSNs, a's and b's.
    pub psn: [u32; 2],
    /// Whether a message without a receive fails at once (RNR retry 0) instead of waiting.
    pub rnr_retry_zero: bool,
}

/// How a queue pair is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Modified to ERR.
    Error,
    /// Modified to RESET.
    Reset,
    /// It is destroyed.
    Destroy,
}

/// A verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocates a PD.
    AllocPd(Id),
    /// Deallocates it.
    DeallocPd(Id),
    /// Creates a CQ of this depth.
    MakeCq(Id, u32),
    /// Resizes it.
    ResizeCq(Id, u32),
    /// Destroys it.
    DestroyCq(Id),
    /// Creates an SRQ of this depth in a PD.
    MakeSrq(Id, Id, u32),
    /// Destroys it.
    DestroySrq(Id),
    /// Registers a region in a PD: bytes and access rights.
    Register(Id, Id, usize, Access),
    /// Deregisters it.
    Deregister(Id),
    /// Allocates a window in a PD, of type 2 or 1.
    AllocMw(Id, Id, bool),
    /// Deallocates it.
    DeallocMw(Id),
    /// Creates a queue pair.
    MakeQp(Id, QpPlan),
    /// Connects two queue pairs.
    Connect(Connection),
    /// Brings a UD queue pair to RTS.
    BringUp(Id),
    /// Stops an idle queue pair.
    End(Id, End),
    /// Stops both ends of a connection under traffic.
    Abort(Id, Id, End),
    /// Posts receives to a queue pair.
    PostRecv(Id, Vec<Receive>),
    /// Posts receives to an SRQ.
    PostSrq(Id, Vec<Receive>),
    /// Posts sends, with one doorbell.
    PostSend(Id, Vec<Request>),
    /// Waits for all expected completions, and compares memory.
    Settle,
}

/// A polled completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The queue pair.
    pub qp: Id,
    /// Of the request.
    pub wr_id: u64,
    /// The status.
    pub status: WcStatus,
    /// The opcode.
    pub opcode: WcOpcode,
    /// The length in bytes.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The window that the message invalidated.
    pub invalidated: Option<Id>,
    /// The sender of a datagram.
    pub sender: Option<Id>,
    /// The failure that the queue pair reports beside the completion.
    pub failure: Option<(u64, WcStatus)>,
}
