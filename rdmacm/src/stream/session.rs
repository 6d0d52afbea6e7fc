//! Both directions of a connected stream: words, grants and the bytes behind them.

use bareverbs::op::{Inline, PostTo};
use bareverbs::{
    Access, Buffer, Done, Endpoint, Error as VerbsError, Failed, Op, Pd, RegionMut, Remote, RemoteRegion,
};
use bareverbs_provider::copy::copy_slice;
use rustix::io::Errno;

use super::inbound::{Grant, Inbound};
use super::outbound::Outbound;
use super::ring::SendRing;
use super::wire::{CONTROL_RECVS, CONTROLS, IomapEntry, IomapSize, Offer, SLOTS, Span, Word, WordCarrier};
use super::{ProtocolError, Result, StreamError, StreamOptions};

/// Completions that one call handles at most.
pub(super) const BATCH: usize = 64;

/// Largest message.
const LARGEST: usize = 64 << 10;

/// Data is signalled when this part of the send ring was posted without a completion. So a full ring
/// has signalled messages, whose completions make room. Within the part, a completion would only wake
/// a thread that waits for the peer.
const SIGNAL_PART: usize = 4;

/// Tags of sends.
const DATA: u64 = 0;
const CONTROL: u64 = 1;
const DISCONNECT: u64 = 2;
/// What takes no room of its own: the word behind a write on iWARP, and a probe.
const NO_ROOM: u64 = 3;

/// Intervals of keepalives without an answer, after which a peer is dead on iWARP.
const SILENT: u32 = 3;

/// A write of 0 bytes accesses no memory, whatever its address and key.
const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };

/// A write of bytes that are copied into the request.
fn write_inline(bytes: &[u8], remote: Remote, imm: Option<u32>) -> Op<Inline<'_>> {
    match imm {
        Some(imm) => Op::write_imm_inline(bytes, remote, imm),
        None => Op::write_inline(bytes, remote),
    }
}

/// The memory of a stream, with its receives posted, before the peer's offer is known.
pub(super) struct Prepared {
    endpoint: Endpoint<RegionMut>,
    ring: RemoteRegion,
    table: RemoteRegion,
    sends: SendRing,
    carrier: WordCarrier,
    /// The memory of a probe.
    probe: RegionMut,
    options: StreamOptions,
}

impl Prepared {
    /// Registers memory and posts the receives on `endpoint`, whose QP is in INIT and has no
    /// operation outstanding.
    pub(super) fn new(mut endpoint: Endpoint<RegionMut>, pd: &Pd, options: StreamOptions) -> Result<Self> {
        let register = |len: usize| -> Result<RegionMut, VerbsError> {
            Ok(RegionMut::register(pd, Buffer::zeroed(len)?)?)
        };
        let expose = |part: RegionMut, access| part.expose(access).map_err(|refused| refused.error);
        let carrier = WordCarrier::of(pd);
        // The table has what the peer wrote there.
        let probed = if carrier == WordCarrier::Send { Access::REMOTE_READ } else { Access::empty() };
        let ring = expose(register(options.recv_buffer)?, Access::REMOTE_WRITE)?;
        let table = expose(register(options.table_len())?, Access::REMOTE_WRITE | probed)?;
        let sends = SendRing::new(register(options.send_buffer)?);
        // Immediate data needs no memory. A part of 4 bytes is valid on any device, where an empty SGE may
        // not be.
        let parts = register(4 * (usize::from(options.recvs) + CONTROL_RECVS as usize) + 4)?;
        let mut parts = parts.chunks(4);
        let probe = parts.next().expect("more than one part");
        for word in parts {
            endpoint.post(Op::recv(word)).map_err(VerbsError::from)?;
        }
        Ok(Self { endpoint, ring, table, sends, carrier, probe, options })
    }

    /// The private data for the peer.
    pub(super) fn offer(&self) -> Result<[u8; Offer::SIZE]> {
        let half = self.options.recv_buffer / 2;
        let (ring, table) = (self.ring.remote(0)?, self.table.remote(0)?);
        let offer = Offer {
            big_endian: cfg!(target_endian = "big"),
            iomap: true,
            readable: self.needs_reads(),
            credits: self.options.recvs,
            iomap_size: IomapSize::at_most(self.options.iomap_size),
            table: Span { addr: table.addr, key: table.rkey, len: SLOTS as u32 },
            data: Span { addr: ring.addr, key: ring.rkey, len: half as u32 },
        };
        Ok(offer.to_bytes())
    }

    /// Whether the stream probes its peer by reads.
    pub(super) fn needs_reads(&self) -> bool {
        self.carrier == WordCarrier::Send
    }

    /// The endpoint, to be connected.
    pub(super) fn endpoint(&mut self) -> &mut Endpoint<RegionMut> {
        &mut self.endpoint
    }

    /// The stream with a peer, whose private data is `offer`. `confirmed`: whether the peer can receive
    /// when the stream is used first. `reads`: whether both sides execute a read. A peer of another library
    /// does not permit it.
    pub(super) fn start(self, offer: &[u8], confirmed: bool, reads: bool) -> Result<Session> {
        let Self { endpoint, ring, table, sends, carrier, probe, options } = self;
        let peer = Offer::from_bytes(offer)?;
        let probes_by_reads = carrier == WordCarrier::Send && reads && peer.readable;
        Ok(Session {
            carrier,
            probe: probes_by_reads.then_some(probe),
            proves_delivery: probes_by_reads,
            awaits_answer: probes_by_reads && confirmed,
            probe_is_last: false,
            silent: 0,
            is_delivered: true,
            endpoint,
            ring,
            table,
            sends,
            inbound: Inbound::new(options.recv_buffer as u32 / 2, options.recvs),
            outbound: Outbound::new(&peer, carrier),
            data_free: u32::from(options.sends) - CONTROLS,
            control_free: CONTROLS,
            unsignaled: 0,
            own_iomap: vec![None; options.iomap_size as usize],
            peer_iomap: vec![false; if peer.iomap { peer.iomap_size.entries() as usize } else { 0 }],
            peer,
            options,
            confirmed,
            reads: true,
            writes: true,
            owed: None,
            phase: Phase::Open,
            has_left: false,
            error: None,
        })
    }
}

/// How far a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A direction may be open.
    Open,
    /// Both sides have said that they send no more. The peer still reads what is on its way.
    Finishing,
    /// The peer reads nothing more, or can't be reached.
    Ended,
}

/// A connected stream.
pub(super) struct Session {
    endpoint: Endpoint<RegionMut>,
    /// What the peer writes: the stream's bytes, and the entries that announce where this side
    /// may write.
    ring: RemoteRegion,
    table: RemoteRegion,
    sends: SendRing,
    inbound: Inbound,
    outbound: Outbound,
    peer: Offer,
    options: StreamOptions,
    carrier: WordCarrier,
    /// The memory of a read that probes the peer. `None`: it is outstanding, or probes are writes.
    probe: Option<RegionMut>,
    /// Whether a read shows that the peer has the sends before it. On iWARP they are complete when the
    /// local TCP has them.
    proves_delivery: bool,
    /// Whether nothing has come from the peer since this side connected. siw may overlook the first message
    /// until another one arrives (`docs/kernel-bugs.md`).
    awaits_answer: bool,
    /// Whether no send was posted behind the last read.
    probe_is_last: bool,
    /// Intervals of keepalives in which the peer has not answered the read.
    silent: u32,
    /// Whether the peer has all sends, or can't get them.
    is_delivered: bool,
    /// Whether the peer's QP can receive. That of the connecting side is moved to RTR after the response
    /// of this side has arrived. Its device drops what is sent before. On iWARP, the kernel of the
    /// connecting side takes what comes with the response for an error: its first word is awaited.
    confirmed: bool,
    /// Messages of either kind that may be posted before one completes.
    data_free: u32,
    control_free: u32,
    /// Bytes that were posted after the last signalled message. The endpoint limits the number of
    /// their messages to a quarter of its sends.
    unsignaled: usize,
    /// Memory of the peer that this side may write.
    own_iomap: Vec<Option<IomapEntry>>,
    /// Which entries of the peer's iomap table are in use.
    peer_iomap: Vec<bool>,
    /// Whether bytes may still come, and be sent.
    reads: bool,
    writes: bool,
    /// A word that waits for room among the control messages.
    owed: Option<Word>,
    phase: Phase,
    /// Whether completions may be left in the CQ.
    has_left: bool,
    error: Option<StreamError>,
}

impl Session {
    pub(super) fn endpoint(&mut self) -> &mut Endpoint<RegionMut> {
        &mut self.endpoint
    }

    /// Handles completions, at most [`BATCH`], and sends what is due. Returns the number of completions.
    /// A peer may send words without end that take no credits. If the number is [`BATCH`], completions
    /// may be left.
    pub(super) fn progress(&mut self) -> usize {
        let mut handled = 0;
        while handled < BATCH
            && let Some(result) = self.endpoint.poll()
        {
            handled += 1;
            let result = match result {
                Ok(done) => self.done(done),
                Err(failed) => self.failed(failed),
            };
            if let Err(error) = result {
                self.fail(error);
            }
        }
        self.has_left = handled == BATCH;
        if let Err(error) = self.send_due() {
            self.fail(error);
        }
        handled
    }

    /// Ends the stream. The first error is kept.
    fn fail(&mut self, error: StreamError) {
        if self.error.is_none() && self.phase == Phase::Open {
            self.error = Some(error);
        }
        self.end();
    }

    fn done(&mut self, done: Done<RegionMut>) -> Result<()> {
        if done.is_recv() {
            self.awaits_answer = false;
            // Its confirmation may be lost, or come later.
            self.confirmed = true;
            let word = self.received_word(&done)?;
            // The peer's last words may be found after the end of the connection: the device and the
            // connection manager report in no order.
            if self.error.is_none() {
                if self.phase != Phase::Ended {
                    match self.endpoint.post(Op::recv(done.into_buffer())).map_err(VerbsError::from) {
                        // The completions of the other receives report the end, after the last words.
                        Ok(()) | Err(VerbsError::Closed { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                self.word(word)?;
            }
            return Ok(());
        }
        match (done.tag, done.buffer) {
            (NO_ROOM, None) => {}
            (NO_ROOM, Some(memory)) => {
                (self.probe, self.silent, self.awaits_answer) = (Some(memory), 0, false);
                self.is_delivered |= self.probe_is_last;
            }
            (DATA, buffer) => {
                self.data_free += 1;
                buffer.into_iter().for_each(|part| self.sends.give(part));
            }
            (tag, _) => {
                self.control_free += 1;
                if tag == DISCONNECT {
                    self.phase = Phase::Ended;
                }
            }
        }
        Ok(())
    }

    /// The word of a message. A peer that sends none is no stream.
    fn received_word(&self, done: &Done<RegionMut>) -> Result<Word> {
        let word = match (self.carrier, done.imm, done.message()) {
            (WordCarrier::Immediate, Some(imm), _) => imm.0,
            (WordCarrier::Send, _, Some(&[a, b, c, d])) if self.peer.big_endian => {
                u32::from_be_bytes([a, b, c, d])
            }
            (WordCarrier::Send, _, Some(&[a, b, c, d])) => u32::from_le_bytes([a, b, c, d]),
            _ => return Err(ProtocolError::MissingWord.into()),
        };
        Ok(Word::from_imm(word))
    }

    /// The peer reads nothing more, or can't be reached.
    fn end(&mut self) {
        (self.phase, self.is_delivered) = (Phase::Ended, true);
    }

    fn failed(&mut self, failed: Failed<RegionMut>) -> Result<()> {
        if self.phase == Phase::Open {
            return Err(bareverbs::Error::from(failed).into());
        }
        // The operations that are left are flushed, or the peer has gone once it had read all.
        self.end();
        Ok(())
    }

    fn word(&mut self, word: Word) -> Result<()> {
        match word {
            Word::Data(len) => self.inbound.data(len)?,
            Word::Credits(limit) => self.outbound.grant(limit)?,
            Word::Iomap(index) => {
                self.inbound.iomap(self.carrier)?;
                self.take_iomap_entry(index)?;
            }
            Word::Disconnect => self.end(),
            Word::Shutdown if self.writes => self.reads = false,
            Word::Shutdown if self.phase == Phase::Open => self.phase = Phase::Finishing,
            Word::Shutdown => {}
            Word::Keepalive => {}
            Word::Unknown(word) => return Err(ProtocolError::UnknownWord(word).into()),
        }
        Ok(())
    }

    /// The peer has written an entry of the iomap table.
    fn take_iomap_entry(&mut self, index: u32) -> Result<()> {
        let entries = self.own_iomap.len();
        let Some(entry) = self.own_iomap.get_mut(index as usize) else {
            return Err(ProtocolError::IomapIndex { index, entries: entries as u32 }.into());
        };
        let mut bytes = [0; IomapEntry::SIZE];
        self.table.read(SLOTS * Span::SIZE + index as usize * IomapEntry::SIZE, &mut bytes)?;
        *entry = Some(IomapEntry::from_own_bytes(bytes));
        Ok(())
    }

    /// Reads the next data buffer of the peer, if it was announced.
    fn take_buffer(&mut self) -> Result<()> {
        if let Some(entry) = self.outbound.awaited_entry() {
            let mut bytes = [0; Span::SIZE];
            self.table.read(entry * Span::SIZE, &mut bytes)?;
            self.outbound.set_buffer(Span::from_own_bytes(bytes))?;
        }
        Ok(())
    }

    /// Sends grants, and the word that is owed.
    fn send_due(&mut self) -> Result<()> {
        if self.phase == Phase::Ended || !self.confirmed {
            return Ok(());
        }
        if self.control_free > 0
            && let Some(word) = self.owed.take()
        {
            self.post_word(word)?;
        }
        // A peer that sends no more needs no grants.
        while self.phase == Phase::Open
            && self.control_free > 0
            && let Some(grant) = self.inbound.take_grant()
        {
            self.post_grant(grant)?;
        }
        Ok(())
    }

    fn post_grant(&mut self, Grant { limit, half }: Grant) -> Result<()> {
        let Some(half) = half else { return self.post_word(Word::Credits(limit)) };
        let offset = half.offset as usize;
        let ring = self.ring.remote(offset)?;
        let span = Span { addr: ring.addr, key: ring.rkey, len: half.len };
        let remote = Remote { addr: self.peer.slot_addr(half.entry), rkey: self.peer.table.key };
        let bytes = span.to_bytes(self.peer.big_endian);
        self.control_free -= 1;
        self.post(|imm| write_inline(&bytes, remote, imm), Word::Credits(limit), CONTROL, true)
    }

    /// Posts a word without bytes.
    fn post_word(&mut self, word: Word) -> Result<()> {
        let tag = if word == Word::Disconnect { DISCONNECT } else { CONTROL };
        self.control_free -= 1;
        match self.carrier {
            WordCarrier::Immediate => self.post(|imm| write_inline(&[], NOWHERE, imm), word, tag, true),
            WordCarrier::Send => self.post_op(Op::send_inline(&word.to_imm().to_ne_bytes()), tag, true),
        }
    }

    /// Posts a write and its word: as its immediate data, or as a message behind it. The peer has the bytes
    /// in place when it receives either. `write` gets the immediate data.
    fn post<L>(
        &mut self,
        write: impl FnOnce(Option<u32>) -> Op<L>,
        word: Word,
        tag: u64,
        signaled: bool,
    ) -> Result<()>
    where
        Op<L>: PostTo<Endpoint<RegionMut>>,
    {
        match self.carrier {
            WordCarrier::Immediate => self.post_op(write(Some(word.to_imm())), tag, signaled),
            WordCarrier::Send => {
                self.post_op(write(None), tag, false)?;
                self.post_op::<Inline<'_>>(Op::send_inline(&word.to_imm().to_ne_bytes()), NO_ROOM, signaled)
            }
        }
    }

    fn post_op<L>(&mut self, op: Op<L>, tag: u64, signaled: bool) -> Result<()>
    where
        Op<L>: PostTo<Endpoint<RegionMut>>,
    {
        let op = op.tag(tag);
        let op = if signaled { op } else { op.unsignaled() };
        self.endpoint.post(op).map_err(Into::into)?;
        if signaled {
            self.unsignaled = 0;
        }
        self.probe_is_last = false;
        self.is_delivered = !self.proves_delivery;
        Ok(())
    }

    /// Posts `len` bytes of the stream.
    fn post_data<L>(&mut self, write: impl FnOnce(Option<u32>) -> Op<L>, len: usize) -> Result<()>
    where
        Op<L>: PostTo<Endpoint<RegionMut>>,
    {
        let signaled = self.signals(len);
        self.data_free -= 1;
        self.post(write, Word::Data(len as u32), DATA, signaled)
    }

    /// Whether a write of `len` bytes is signalled: its completion ends all messages before it.
    fn signals(&mut self, len: usize) -> bool {
        self.unsignaled += len;
        self.unsignaled >= self.options.send_buffer / SIGNAL_PART
    }

    /// Copies bytes that have arrived. `Ok(None)`: there are none yet. `Ok(Some(0))`: the end.
    pub(super) fn read(&mut self, into: &mut [u8]) -> Result<Option<usize>> {
        let mut copied = 0;
        while copied < into.len() {
            let (offset, len) = self.inbound.readable();
            let len = len.min(into.len() - copied);
            if len == 0 {
                break;
            }
            self.ring.read(offset, &mut into[copied..copied + len])?;
            self.inbound.consume(len);
            copied += len;
        }
        if copied > 0 {
            // The peer may be waiting for the room.
            if let Err(error) = self.send_due() {
                self.fail(error);
            }
            return Ok(Some(copied));
        }
        if into.is_empty() || self.is_at_end() {
            return self.error.clone().map_or(Ok(Some(0)), Err);
        }
        Ok(None)
    }

    /// Whether all bytes were read and no more can come.
    fn is_at_end(&self) -> bool {
        self.inbound.readable().1 == 0 && (self.phase != Phase::Open && !self.has_left || !self.reads)
    }

    /// Whether [`read`](Self::read) has a result.
    pub(super) fn is_readable(&self) -> bool {
        self.inbound.readable().1 > 0 || self.is_at_end()
    }

    /// Whether [`write`](Self::write) has a result.
    pub(super) fn is_writable(&mut self) -> bool {
        // An entry that can't be read shows as an error of the write.
        let may_send = self.take_buffer().is_err()
            || self.may_post_data() && self.outbound.may_send() && self.sends.has_room();
        self.phase != Phase::Open || !self.writes || may_send
    }

    fn check_writable(&self) -> Result<()> {
        match &self.error {
            // The end of the connection follows from it, and is not the peer's.
            _ if !self.writes => Err(StreamError::Shutdown),
            Some(error) => Err(error.clone()),
            None if self.phase != Phase::Open => Err(StreamError::Disconnected),
            None => Ok(()),
        }
    }

    /// Whether a message that is no word may be posted.
    fn may_post_data(&self) -> bool {
        self.confirmed && self.data_free > 0
    }

    /// Sends bytes from the beginning of `bytes`. `Ok(None)`: there is no room yet.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        self.check_writable()?;
        let mut sent = 0;
        while sent < bytes.len() {
            match self.send_message(&bytes[sent..]) {
                Ok(0) => break,
                Ok(len) => sent += len,
                Err(error) => {
                    self.fail(error.clone());
                    return Err(error);
                }
            }
        }
        Ok((sent > 0 || bytes.is_empty()).then_some(sent))
    }

    /// Sends one message. Returns 0 without a credit, a buffer of the peer or room for the message.
    fn send_message(&mut self, bytes: &[u8]) -> Result<usize> {
        self.take_buffer()?;
        if !self.may_post_data() || !self.outbound.may_send() {
            return Ok(0);
        }
        if bytes.len() <= self.options.inline as usize {
            let Some(piece) = self.outbound.take(bytes.len()) else { return Ok(0) };
            let remote = Remote { addr: piece.addr, rkey: piece.key };
            let bytes = &bytes[..piece.len as usize];
            self.post_data(|imm| write_inline(bytes, remote, imm), bytes.len())?;
            return Ok(bytes.len());
        }
        let Some(mut part) = self.sends.take(bytes.len().min(LARGEST)) else { return Ok(0) };
        let Some(piece) = self.outbound.take(part.len()) else {
            self.sends.give(part);
            return Ok(0);
        };
        let len = piece.len as usize;
        self.sends.give(part.split_off(len));
        copy_slice(&bytes[..len], part.bytes_mut());
        let remote = Remote { addr: piece.addr, rkey: piece.key };
        let write = |imm| match imm {
            Some(imm) => Op::write_imm(part, .., remote, imm),
            None => Op::write(part, .., remote),
        };
        self.post_data(write, len)?;
        Ok(len)
    }

    /// Lets the peer write `memory`, as the bytes from `offset` on. Returns the index of the entry.
    /// `Ok(None)`: there is no room in the send queue yet.
    ///
    /// The entry takes no credit: a peer counts data messages only as consumed. On iWARP it takes one, as in
    /// rdma-core: without a receive, its word would end the connection.
    pub(super) fn map(&mut self, memory: Remote, len: u32, offset: u64) -> Result<Option<u32>> {
        self.check_writable()?;
        if !self.may_post_data() || !self.outbound.may_send_iomap(self.carrier) {
            return Ok(None);
        }
        let Some(index) = self.peer_iomap.iter().position(|used| !used) else {
            return Err(StreamError::IomapFull { entries: self.peer_iomap.len() });
        };
        let entry = IomapEntry { offset, span: Span { addr: memory.addr, key: memory.rkey, len } };
        let bytes = entry.to_bytes(self.peer.big_endian);
        let number = index as u32;
        let remote = Remote { addr: self.peer.iomap_addr(number), rkey: self.peer.table.key };
        self.data_free -= 1;
        self.post(|imm| write_inline(&bytes, remote, imm), Word::Iomap(number), DATA, true)?;
        self.outbound.iomap(self.carrier);
        self.peer_iomap[index] = true;
        Ok(Some(number))
    }

    /// Frees the entry for other memory. The peer is not notified.
    pub(super) fn unmap(&mut self, index: u32) {
        if let Some(used) = self.peer_iomap.get_mut(index as usize) {
            *used = false;
        }
    }

    /// Writes to the memory that the peer has mapped at `offset`. `Ok(None)`: there is no room yet.
    pub(super) fn write_mapped(&mut self, bytes: &[u8], offset: u64) -> Result<Option<usize>> {
        self.check_writable()?;
        let mut sent = 0;
        while sent < bytes.len() && self.may_post_data() {
            let at = offset.saturating_add(sent as u64);
            let Some(span) = self.mapped(at) else {
                return if sent > 0 { Ok(Some(sent)) } else { Err(StreamError::NotMapped { offset }) };
            };
            let max = (bytes.len() - sent).min(span.len as usize).min(LARGEST);
            let Some(mut part) = self.sends.take(max) else { break };
            let len = part.len();
            copy_slice(&bytes[sent..sent + len], part.bytes_mut());
            let signaled = self.signals(len);
            self.data_free -= 1;
            self.post_op(Op::write(part, .., Remote { addr: span.addr, rkey: span.key }), DATA, signaled)?;
            sent += len;
        }
        Ok((sent > 0 || bytes.is_empty()).then_some(sent))
    }

    /// The peer's memory from `offset` on.
    fn mapped(&self, offset: u64) -> Option<Span> {
        self.own_iomap.iter().flatten().find_map(|entry| {
            let within = offset.checked_sub(entry.offset)?;
            let len = u64::from(entry.span.len).checked_sub(within).filter(|len| *len > 0)?;
            let Span { addr, key, .. } = entry.span;
            Some(Span { addr: addr.wrapping_add(within), key, len: len as u32 })
        })
    }

    /// Probes the connection by a write of 0 bytes, of which the peer's program sees nothing. Nothing is
    /// sent while the send queue is full, because its requests probe the connection too, nor before the
    /// peer has confirmed the connection, because the connection manager repeats its response.
    ///
    /// On iWARP it is a read of a byte of the peer's table: a write is complete when the local TCP has it.
    /// TCP retries for a quarter of an hour: without an answer in [`SILENT`] intervals the peer is dead,
    /// unless sends are outstanding, which may be slow.
    pub(super) fn probe(&mut self) -> Result<()> {
        if self.phase != Phase::Open || !self.may_post_data() {
            return Ok(());
        }
        if self.proves_delivery {
            // Nothing was sent before the first read, so its answer is not slow because of other requests.
            let may_be_slow = !self.awaits_answer && !self.sends_are_complete();
            if self.probe.is_some() || may_be_slow {
                return self.post_read();
            }
            self.silent += 1;
            if self.silent == SILENT {
                self.fail(crate::Error::Unreachable(Errno::TIMEDOUT).into());
                return Ok(());
            }
            if !self.awaits_answer {
                return Ok(());
            }
        }
        self.post_empty_write()
    }

    fn post_empty_write(&mut self) -> Result<()> {
        self.data_free -= 1;
        self.post_op(write_inline(&[], NOWHERE, None), DATA, true)
    }

    /// Asks the peer's device for an answer, and again when it is called again. Returns whether the answer
    /// is awaited. On InfiniBand and RoCE, and from a peer that permits no reads, none is.
    pub(super) fn ask_for_answer(&mut self) -> Result<bool> {
        let asks = self.awaits_answer && self.phase == Phase::Open;
        if asks && self.probe.is_some() {
            self.post_read()?;
        } else if asks && self.may_post_data() {
            // Any packet makes siw find what it has overlooked.
            self.post_empty_write()?;
        }
        Ok(asks)
    }

    /// Posts a read of a byte of the peer's table, unless one is outstanding. siw answers a read of no bytes
    /// with data if it is sending (`docs/kernel-bugs.md`).
    fn post_read(&mut self) -> Result<()> {
        if let Some(memory) = self.probe.take() {
            let remote = Remote { addr: self.peer.table.addr, rkey: self.peer.table.key };
            self.post_op(Op::read(memory, ..1, remote), NO_ROOM, true)?;
            self.probe_is_last = true;
        }
        Ok(())
    }

    /// Ends a direction, or both.
    pub(super) fn shutdown(&mut self, how: std::net::Shutdown) -> Result<()> {
        use std::net::Shutdown::{Read, Write};
        let word = match how {
            Write if !self.writes => None,
            Write if self.reads => Some(Word::Shutdown),
            Read if self.writes => None,
            _ => Some(Word::Disconnect),
        };
        self.reads &= how == Write;
        self.writes &= how == Read;
        if self.phase != Phase::Open {
            return Ok(());
        }
        self.owed = word.or(self.owed);
        self.send_due()
    }

    fn sends_are_complete(&self) -> bool {
        self.control_free == CONTROLS && self.data_free == u32::from(self.options.sends) - CONTROLS
    }

    /// Whether the peer's device has acknowledged all sends. `Ok(None)`: not yet. On iWARP, a read behind
    /// them is answered; without reads, the local TCP has them.
    pub(super) fn flushed(&mut self) -> Result<Option<()>> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let idle = self.owed.is_none() && self.sends_are_complete();
        if (idle || self.phase == Phase::Ended) && self.is_delivered {
            return Ok(Some(()));
        }
        if self.proves_delivery {
            // This side has said that it sends no more, perhaps.
            if self.confirmed && !self.probe_is_last && self.post_read().is_err() {
                self.end();
            }
        } else if self.unsignaled > 0 {
            // Nothing else reports the end of the last messages.
            self.probe()?;
        }
        Ok(None)
    }

    /// The error that has ended the stream.
    pub(super) fn error(&self) -> Option<&StreamError> {
        self.error.as_ref()
    }

    /// The connection manager has reported the confirmation of the peer. Returns whether that is new. On
    /// iWARP the local kernel confirms, and the peer does by its first word.
    pub(super) fn confirm(&mut self) -> bool {
        self.carrier == WordCarrier::Immediate && !std::mem::replace(&mut self.confirmed, true)
    }

    /// The connection manager has reported the end of the connection. Returns whether that is new.
    pub(super) fn connection_ended(&mut self, end: Result<()>) -> bool {
        let is_new = self.phase != Phase::Ended;
        match end {
            Ok(()) => self.end(),
            Err(error) => self.fail(error),
        }
        is_new
    }
}
