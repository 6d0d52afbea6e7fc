//! Verbs as plain data: what the generator makes, the model predicts and the driver carries out.

use std::ops::Range;

use bareverbs::{Access, WcOpcode, WcStatus};

/// Names an object of any sort. No two objects of an iteration have the same, so that lists of
/// operations can be shortened.
pub type Id = u32;

/// Receives have this bit in their numbers.
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

/// A run of bytes of a region, or of none: a key that nobody has.
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

/// By what a peer's memory is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The region's own key.
    Region,
    /// The key of a window.
    Window(Id),
    /// A key that nobody has.
    Invalid,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The key in the request.
    pub key: Key,
    /// The region whose address is in the request.
    pub mr: Id,
    /// From there on.
    pub offset: usize,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A message, perhaps with immediate data.
    Send(Option<u32>),
    /// A message that invalidates a window of the peer.
    SendInv(Id),
    /// Bytes into the peer's memory, perhaps with immediate data.
    Write(Target, Option<u32>),
    /// Bytes from the peer's memory.
    Read(Target),
    /// Compare and swap.
    CmpSwp(Target, u64, u64),
    /// Fetch and add.
    FetchAdd(Target, u64),
    /// 8 bytes at once.
    AtomicWrite(Target, u64),
    /// A flush of so many bytes.
    Flush(Target, usize),
    /// Binds a window to a region with these rights.
    Bind(Id, Id, Access),
    /// Invalidates a window, or a key that nobody has.
    LocalInv(Option<Id>),
    /// A datagram to a queue pair, with its key or with another, perhaps with immediate data.
    Datagram(Id, bool, Option<u32>),
}

/// Where a request's bytes are.
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
    /// Its number.
    pub wr_id: u64,
    /// What it does.
    pub action: Action,
    /// Its bytes, or the place of its result.
    pub payload: Payload,
    /// Whether it makes a completion.
    pub signalled: bool,
    /// Whether it waits for reads and atomics before it.
    pub fence: bool,
    /// Whether it raises a solicited event.
    pub solicited: bool,
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Its number.
    pub wr_id: u64,
    /// Where a message goes.
    pub pieces: Vec<Piece>,
}

/// What a queue pair is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpPlan {
    /// Its transport.
    pub kind: Kind,
    /// Its domain.
    pub pd: Id,
    /// The queue for completions of sends.
    pub send_cq: Id,
    /// The queue for completions of receives.
    pub recv_cq: Id,
    /// Its shared receive queue.
    pub srq: Option<Id>,
    /// Sends that must have room.
    pub sends: u32,
    /// Receives that must have room.
    pub receives: u32,
    /// Pieces of a request.
    pub pieces: u32,
    /// Inline bytes.
    pub inline: u32,
    /// Whether every send makes a completion.
    pub signal_all: bool,
}

/// How a connection is brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// One end.
    pub a: Id,
    /// The other.
    pub b: Id,
    /// What the peer may do, at both ends.
    pub access: Access,
    /// Bytes of a packet: 256, 512 or 1024.
    pub mtu: u16,
    /// The first packet numbers, a's and b's.
    pub psn: [u32; 2],
    /// Whether a message that finds no receive fails at once rather than wait.
    pub impatient: bool,
}

/// Where a queue pair goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// To ERR.
    Error,
    /// To RESET.
    Reset,
    /// It is destroyed.
    Destroy,
}

/// A verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a domain.
    AllocPd(Id),
    /// Frees it.
    DeallocPd(Id),
    /// Makes a completion queue for so many.
    MakeCq(Id, u32),
    /// Resizes it.
    ResizeCq(Id, u32),
    /// Destroys it.
    DestroyCq(Id),
    /// Makes a shared receive queue in a domain, for so many.
    MakeSrq(Id, Id, u32),
    /// Destroys it.
    DestroySrq(Id),
    /// Registers a region in a domain: bytes, and what may be done with it.
    Register(Id, Id, usize, Access),
    /// Frees it.
    Deregister(Id),
    /// Makes a window in a domain, of type 2 or 1.
    AllocMw(Id, Id, bool),
    /// Frees it.
    DeallocMw(Id),
    /// Makes a queue pair.
    MakeQp(Id, QpPlan),
    /// Connects two.
    Connect(Connection),
    /// Brings up one for datagrams.
    BringUp(Id),
    /// Takes one that is at rest away from what it does.
    End(Id, End),
    /// Takes a connection away from what it does at this moment, both ends.
    Abort(Id, Id, End),
    /// Posts receives to a queue pair.
    PostRecv(Id, Vec<Receive>),
    /// Posts receives to a shared queue.
    PostSrq(Id, Vec<Receive>),
    /// Posts sends, with one doorbell.
    PostSend(Id, Vec<Request>),
    /// Waits for all that must happen, and compares.
    Settle,
}

/// A completion as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The queue pair.
    pub qp: Id,
    /// Of the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The window that the message invalidated.
    pub invalidated: Option<Id>,
    /// A datagram's sender.
    pub sender: Option<Id>,
    /// What the queue pair knows of the send that brought it down, beyond the completion.
    pub failure: Option<(u64, WcStatus)>,
}
