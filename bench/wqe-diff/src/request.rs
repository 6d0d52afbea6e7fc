//! Requests and their text form.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

/// Bytes of the region of all requests. Its first half is sent from and received into; the second
/// half belongs to the peer.
pub const REGION: u32 = 1 << 16;
/// The inline capacity of the queue pairs, in bytes.
pub const INLINE: u32 = 200;
/// Maximum SGEs of a send and of a receive.
pub const SGES: usize = 4;
/// Depth of a queue pair's send queue.
pub const DEPTH: usize = 16;
/// The Q_Key of all UD messages.
pub const QKEY: u64 = 0x1357_2468;
/// The number of address handles.
pub const HANDLES: u64 = 3;
/// The offset in the region of the bytes of frames and of datagrams with a source QPN. No other request
/// uses them, because a header is copied when it is posted.
pub const FRAMES: u32 = 1 << 14;
/// Bytes of a frame that the device requires inline: an Ethernet header with a VLAN tag.
pub const FRAME_HEADER: u32 = 18;
/// Bytes of a datagram with a source QPN that the device requires inline: the header of IPoIB.
pub const IPOIB_HEADER: u32 = 4;
/// Bytes of the longest TSO headers: Ethernet, IPv6, TCP.
pub const TSO_HEADER: u16 = 14 + 40 + 20;

/// The queue pair that posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// RC.
    Rc,
    /// UC.
    Uc,
    /// UD.
    Ud,
    /// RC to a peer on the SRQ.
    Shared,
    /// The peer of the RC queue pair.
    RcPeer,
    /// Raw frames; like the next, on Ethernet ports only.
    Frames,
    /// TSO sends, which the device segments into frames.
    LargeSends,
    /// UD with a source QPN, on InfiniBand ports only.
    Sourced,
}

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of `Operation`")]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwp,
    FetchAdd,
    /// Invalidates the second window's key.
    SendInv,
    /// Binds the first window, or the second if posted by [`Sender::RcPeer`].
    Bind,
    /// Invalidates the first window's key.
    LocalInv,
    /// Posted by [`Sender::Frames`] only.
    Frame,
    /// Posted by [`Sender::LargeSends`] only.
    LargeSend,
}

pub(crate) const SENDERS: [Sender; 8] = [
    Sender::Rc,
    Sender::Uc,
    Sender::Ud,
    Sender::Shared,
    Sender::RcPeer,
    Sender::Frames,
    Sender::LargeSends,
    Sender::Sourced,
];
pub(crate) const KINDS: [Kind; 12] = [
    Kind::Send,
    Kind::SendImm,
    Kind::Write,
    Kind::WriteImm,
    Kind::Read,
    Kind::CmpSwp,
    Kind::FetchAdd,
    Kind::SendInv,
    Kind::Bind,
    Kind::LocalInv,
    Kind::Frame,
    Kind::LargeSend,
];

/// The bits of `flags` in the text form.
mod flag {
    pub(super) const SIGNALED: u32 = 1;
    pub(super) const SOLICITED: u32 = 2;
    pub(super) const FENCE: u32 = 4;
    pub(super) const INLINE: u32 = 8;
    pub(super) const RINGS: u32 = 16;
    pub(super) const CHECKSUMS: u32 = 32;
}

/// Offset and length within the region.
pub type Piece = (u32, u32);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The queue pair that posts it.
    pub sender: Sender,
    /// Its operation.
    pub kind: Kind,
    /// Whether it generates a completion.
    pub signaled: bool,
    /// Whether it raises a solicited event.
    pub solicited: bool,
    /// Whether it waits for earlier reads and atomics.
    pub fence: bool,
    /// Whether its data is inline.
    pub inline: bool,
    /// Whether it is the last of a list, which rings the doorbell.
    pub rings: bool,
    /// Whether the device computes a frame's checksums.
    pub checksums: bool,
    /// Immediate data; for a bind, the access rights.
    pub imm: u32,
    /// The offset of the peer's bytes in the region.
    pub remote: u32,
    /// The add or swap operand; for UD, the Q_Key; for a bind, the length; for a TSO send, the MSS.
    pub a: u64,
    /// The compare operand; for UD, the address handle; for a frame, the number of bytes that we
    /// post separately as its header.
    pub b: u64,
    /// The data.
    pub pieces: Vec<Piece>,
    /// The receive that the peer posts before the list, if the request uses one.
    pub receive: Option<Vec<Piece>>,
    /// The headers of a large send.
    pub header: Vec<u8>,
}

impl Request {
    /// Whether it consumes a receive of the peer.
    #[must_use]
    pub fn takes_receive(kind: Kind) -> bool {
        matches!(kind, Kind::Send | Kind::SendImm | Kind::WriteImm | Kind::SendInv)
    }

    /// The text form: a line of numbers.
    #[must_use]
    pub fn line(&self) -> String {
        let place = |found: Option<usize>| found.expect("each is in its table");
        let sender = place(SENDERS.iter().position(|one| *one == self.sender));
        let kind = place(KINDS.iter().position(|one| *one == self.kind));
        let flags = [
            (self.signaled, flag::SIGNALED),
            (self.solicited, flag::SOLICITED),
            (self.fence, flag::FENCE),
            (self.inline, flag::INLINE),
            (self.rings, flag::RINGS),
            (self.checksums, flag::CHECKSUMS),
        ];
        let flags: u32 = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
        let Self { imm, remote, a, b, .. } = self;
        let mut line = format!("{sender} {kind} {flags} {imm} {remote} {a} {b} {}", self.pieces.len());
        let mut list = |pieces: &[Piece]| {
            for (offset, length) in pieces {
                let _ = write!(line, " {offset} {length}");
            }
        };
        list(&self.pieces);
        let receive = self.receive.as_deref();
        let _ = write!(line, " {}", receive.map_or(-1, |pieces| pieces.len() as i64));
        for (offset, length) in receive.unwrap_or_default() {
            let _ = write!(line, " {offset} {length}");
        }
        let _ = write!(line, " {}", self.header.len());
        for byte in &self.header {
            let _ = write!(line, " {byte}");
        }
        line
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// If the line has another format.
    pub fn parse(line: &str) -> Result<Self> {
        let numbers: Vec<i128> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .context("not all fields are numbers")?;
        let mut words = Words { left: numbers.into_iter() };
        let sender = *SENDERS.get(words.next::<usize>()?).context("unknown sender")?;
        let kind = *KINDS.get(words.next::<usize>()?).context("no such kind")?;
        let flags: u32 = words.next()?;
        let is = |bit| flags & bit != 0;
        Ok(Self {
            sender,
            kind,
            signaled: is(flag::SIGNALED),
            solicited: is(flag::SOLICITED),
            fence: is(flag::FENCE),
            inline: is(flag::INLINE),
            rings: is(flag::RINGS),
            checksums: is(flag::CHECKSUMS),
            imm: words.next()?,
            remote: words.next()?,
            a: words.next()?,
            b: words.next()?,
            pieces: words.pieces()?.context("a request has elements or none")?,
            receive: words.pieces()?,
            header: words.bytes()?,
        })
    }
}

struct Words {
    left: std::vec::IntoIter<i128>,
}

impl Words {
    fn next<T: TryFrom<i128>>(&mut self) -> Result<T> {
        let number = self.left.next().context("the line is too short")?;
        T::try_from(number).ok().with_context(|| format!("{number} exceeds its field"))
    }

    fn pieces(&mut self) -> Result<Option<Vec<Piece>>> {
        let count: i8 = self.next()?;
        ensure!(count <= SGES as i8, "{count} SGEs are too many");
        (count >= 0).then(|| (0..count).map(|_| Ok((self.next()?, self.next()?))).collect()).transpose()
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let count: u8 = self.next()?;
        (0..count).map(|_| self.next()).collect()
    }
}
