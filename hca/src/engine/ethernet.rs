//! Ethernet frames: the netdev sends through SQ objects and receives through RQ objects.

use bareverbs_transport::Status;
use bareverbs_transport::checksum::ones_sum;

use super::core::Core;
use super::cq::{Completion, CqeOpcode, NO_USER_INDEX};
use super::limits::LOG_LARGE_SEND;
use super::mkey::{self, Accessor, access};
use super::ring::Ring;
use super::srq::scatter_list;
use super::wqe::Frame;

/// Minimum frame length without the FCS, in bytes.
const SHORTEST: usize = 60;
/// Maximum frame length in bytes.
const LONGEST: u64 = 65_536 + 14;
/// Maximum payload of a TSO send in bytes.
const LARGEST: u64 = 1 << LOG_LARGE_SEND;
const HEADER: usize = 14;
const L4_CHECKSUM: u8 = 1 << 7;

/// Parameters of an RQ of the netdev.
#[derive(Clone, Debug)]
pub struct RqSetup {
    /// The ring of receive WQEs.
    pub ring: Ring,
    /// Number of WQEs, log2.
    pub log_size: u8,
    /// WQE stride in bytes, log2.
    pub log_stride: u8,
    /// Whether each WQE begins with a next segment (linked list).
    pub linked: bool,
    /// Guest address of the doorbell record.
    pub doorbell: u64,
    /// The PD.
    pub pd: u32,
    /// The CQ.
    pub cq: u32,
    /// The user index in CQEs.
    pub user_index: u32,
    /// Whether posted WQEs are flushed with CQEs when the RQ enters ERR.
    pub flushes: bool,
    /// Whether the outer VLAN tag is stripped into the CQE.
    pub strips_vlan: bool,
    /// Whether the FCS of a frame is written behind it.
    pub scatters_fcs: bool,
}

/// State of an RQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RqState {
    /// RST: entering it restarts the ring at index 0.
    Reset,
    /// RDY: frames are received.
    Ready,
    /// ERR: no frames are received until a reset.
    Error,
}

/// An RQ of the netdev.
pub(crate) struct Rq {
    pub(crate) number: u32,
    pub(crate) setup: RqSetup,
    pub(crate) state: RqState,
    consumed: u16,
}

impl Rq {
    pub(crate) fn new(number: u32, setup: RqSetup) -> Self {
        Self { number, setup, state: RqState::Reset, consumed: 0 }
    }

    /// Moves the RQ to a state.
    pub(crate) fn enter(&mut self, core: &mut Core, state: RqState) {
        self.state = state;
        match state {
            RqState::Reset => self.consumed = 0,
            RqState::Ready => {}
            RqState::Error => self.flush(core),
        }
    }

    /// Flushes the posted WQEs if the RQ was created so.
    fn flush(&mut self, core: &mut Core) {
        let Ok(posted) = core.memory.read_be32(self.setup.doorbell) else { return };
        let left = (posted as u16).wrapping_sub(self.consumed);
        if self.setup.flushes && u32::from(left) <= 1 << self.setup.log_size {
            for _ in 0..left {
                self.fail_next(core, Status::Flushed);
            }
        }
    }

    /// Completes the next WQE with an error.
    fn fail_next(&mut self, core: &mut Core, status: Status) {
        let counter = self.consumed;
        self.consumed = counter.wrapping_add(1);
        self.fail(core, counter, status);
    }

    fn fail(&self, core: &mut Core, counter: u16, status: Status) {
        let (number, index) = (self.number, self.setup.user_index);
        let completion = Completion {
            status: Some(status),
            ..Completion::new(CqeOpcode::ResponderError, number, index, counter)
        };
        core.complete(self.setup.cq, &completion);
    }
}

/// Checks the length of a WQE's frame.
pub(crate) fn check_length(how: Frame, length: u64) -> Result<(), Status> {
    let longest = if how.segment.is_some() { u64::from(how.header) + LARGEST } else { LONGEST };
    if length > longest || length < HEADER as u64 { Err(Status::LocalLength) } else { Ok(()) }
}

/// Sends a frame of the send queue `sender`, segmented if it is a TSO send. Returns the number of
/// bytes on the wire.
pub(crate) fn send(core: &mut Core, sender: u32, how: Frame, frame: Vec<u8>) -> Result<u64, Status> {
    let before = core.frames.len();
    match how.segment {
        None => core.frames.push(finish(frame, how.checksum)),
        Some(size) => {
            // Only TCP is segmented, as on the device. The inline headers must be exactly all
            // headers of the frame, from Ethernet to TCP.
            let headers = headers_length(&frame).filter(|headers| *headers == usize::from(how.header));
            let headers = headers.ok_or(Status::LocalQpOperation)?;
            for frame in cut(&frame, headers, usize::from(size)) {
                core.frames.push(finish(frame, L4_CHECKSUM));
            }
        }
    }
    core.senders.resize(core.senders.len() + core.frames.len() - before, sender);
    Ok(core.frames[before..].iter().map(|frame| frame.len() as u64).sum())
}

/// Offset of the IPv4 or IPv6 payload, and its protocol.
fn network_header(frame: &[u8]) -> Option<(usize, u8)> {
    match (frame.get(12)?, frame.get(13)?) {
        (0x08, 0x00) => {
            let length = usize::from(frame.get(HEADER)? & 0xf) * 4;
            (length >= 20 && frame.len() >= HEADER + length).then(|| (HEADER + length, frame[HEADER + 9]))
        }
        (0x86, 0xdd) => (frame.len() >= HEADER + 40).then(|| (HEADER + 40, frame[HEADER + 6])),
        _ => None,
    }
}

/// Length of all headers of a TCP frame in bytes.
fn headers_length(frame: &[u8]) -> Option<usize> {
    const TCP: u8 = 6;
    let (transport, protocol) = network_header(frame)?;
    let length = usize::from(frame.get(transport + 12)? >> 4) * 4;
    (protocol == TCP && length >= 20 && frame.len() >= transport + length).then_some(transport + length)
}

/// Segments a TCP frame.
fn cut(frame: &[u8], headers: usize, size: usize) -> Vec<Vec<u8>> {
    const FIN_AND_PUSH: u8 = 0x09;
    let Some((transport, _)) = network_header(frame) else { return Vec::new() };
    let payload = &frame[headers..];
    let count = payload.len().div_ceil(size).max(1);
    let sequence = u32::from_be_bytes(frame[transport + 4..transport + 8].try_into().unwrap_or_default());
    let mut frames = Vec::with_capacity(count);
    for index in 0..count {
        let part = &payload[index * size..payload.len().min((index + 1) * size)];
        let mut piece = frame[..headers].to_vec();
        let at = (index * size) as u32;
        piece[transport + 4..transport + 8].copy_from_slice(&sequence.wrapping_add(at).to_be_bytes());
        if index + 1 < count {
            piece[transport + 13] &= !FIN_AND_PUSH;
        }
        piece.extend_from_slice(part);
        if piece[12] == 0x08 {
            let length = (piece.len() - HEADER) as u16;
            piece[HEADER + 2..HEADER + 4].copy_from_slice(&length.to_be_bytes());
            let identification = u16::from_be_bytes([frame[HEADER + 4], frame[HEADER + 5]]);
            let identification = identification.wrapping_add(index as u16);
            piece[HEADER + 4..HEADER + 6].copy_from_slice(&identification.to_be_bytes());
            piece[HEADER + 10..HEADER + 12].fill(0);
            let sum = !ones_sum(&piece[HEADER..transport]);
            piece[HEADER + 10..HEADER + 12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let length = (piece.len() - HEADER - 40) as u16;
            piece[HEADER + 4..HEADER + 6].copy_from_slice(&length.to_be_bytes());
        }
        frames.push(piece);
    }
    frames
}

/// Fills in the offloaded checksums, and pads the frame to its minimum length.
fn finish(mut frame: Vec<u8>, checksum: u8) -> Vec<u8> {
    if checksum & L4_CHECKSUM != 0 {
        fill_checksum(&mut frame);
    }
    if frame.len() < SHORTEST {
        frame.resize(SHORTEST, 0);
    }
    frame
}

fn fill_checksum(frame: &mut [u8]) {
    const UDP: u8 = 17;
    let Some((transport, protocol)) = network_header(frame) else { return };
    let place = transport + if protocol == UDP { 6 } else { 16 };
    if !matches!(protocol, 6 | UDP) || frame.len() < place + 2 {
        return;
    }
    let (addresses, length) = if frame[12] == 0x08 {
        let total = usize::from(u16::from_be_bytes([frame[HEADER + 2], frame[HEADER + 3]]));
        (HEADER + 12..HEADER + 20, total.saturating_sub(transport - HEADER))
    } else {
        (HEADER + 8..HEADER + 40, usize::from(u16::from_be_bytes([frame[HEADER + 4], frame[HEADER + 5]])))
    };
    let end = (transport + length).min(frame.len());
    if end < place + 2 {
        return;
    }
    frame[place..place + 2].fill(0);
    let mut summed = frame[addresses].to_vec();
    summed.extend_from_slice(&[0, protocol]);
    summed.extend_from_slice(&((end - transport) as u16).to_be_bytes());
    summed.extend_from_slice(&frame[transport..end]);
    let sum = match !ones_sum(&summed) {
        // In UDP a zero means that there is no checksum.
        0 if protocol == UDP => 0xffff,
        sum => sum,
    };
    frame[place..place + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Removes the outer VLAN tag of a frame. Returns `None` for an untagged frame.
fn without_tag(frame: &[u8]) -> Option<(u16, Vec<u8>)> {
    let [0x81, 0x00, high, low] = *frame.get(12..16)? else { return None };
    Some((u16::from_be_bytes([high, low]), [&frame[..12], &frame[16..]].concat()))
}

/// The FCS of a frame, in the byte order of the wire.
fn check_sequence(frame: &[u8]) -> [u8; 4] {
    crc32fast::hash(frame).to_le_bytes()
}

/// Writes a frame into the next receive WQE. Returns `false` if there is no usable WQE.
pub(crate) fn receive(rq: &mut Rq, core: &mut Core, tag: u32, frame: &[u8]) -> bool {
    let Ok(posted) = core.memory.read_be32(rq.setup.doorbell) else { return false };
    let counter = rq.consumed;
    if posted as u16 == counter {
        return false;
    }
    let index = u64::from(counter) & ((1 << rq.setup.log_size) - 1);
    let mut wqe = vec![0; 1 << rq.setup.log_stride];
    if rq.setup.ring.read(&core.memory, index << rq.setup.log_stride, &mut wqe).is_err() {
        return false;
    }
    rq.consumed = counter.wrapping_add(1);
    // The FCS that the frame had on the wire, with its VLAN tag.
    let fcs = rq.setup.scatters_fcs.then(|| check_sequence(frame));
    let stripped = if rq.setup.strips_vlan { without_tag(frame) } else { None };
    let (vlan, frame) = match &stripped {
        Some((tag, frame)) => (Some(*tag), &frame[..]),
        None => (None, frame),
    };
    let sges = scatter_list(if rq.setup.linked { &wqe[16..] } else { &wqe });
    let who = Accessor { pd: rq.setup.pd, qp: rq.number, reserved_lkey: true, any_pd: false };
    let with_fcs = fcs.map(|fcs| [frame, &fcs].concat());
    let bytes = with_fcs.as_deref().unwrap_or(frame);
    let mut left = bytes;
    for sge in &sges {
        let (now, rest) = left.split_at((sge.length as usize).min(left.len()));
        let place = (sge.key, sge.address);
        if mkey::write(&core.mkeys, &core.memory, who, place, access::LOCAL_WRITE, now).is_err() {
            rq.fail(core, counter, Status::LocalProtection);
            rq.enter(core, RqState::Error);
            return false;
        }
        left = rest;
    }
    if !left.is_empty() {
        rq.fail(core, counter, Status::LocalLength);
        return true;
    }
    // The CQE of a frame has the flow tag in the place of the queue's number, by which CQEs of version 0
    // name their queue.
    let number_or_tag = if rq.setup.user_index == NO_USER_INDEX { rq.number } else { tag };
    let completion = Completion {
        byte_count: bytes.len() as u32,
        checksum: ones_sum(frame.get(HEADER..).unwrap_or_default()),
        vlan,
        ..Completion::new(CqeOpcode::Receive, number_or_tag, rq.setup.user_index, counter)
    };
    core.complete(rq.setup.cq, &completion);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_frame(payload: usize) -> Vec<u8> {
        let mut frame = vec![0; HEADER + 20 + 20 + payload];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[HEADER] = 0x45;
        let total = (40 + payload) as u16;
        frame[HEADER + 2..HEADER + 4].copy_from_slice(&total.to_be_bytes());
        frame[HEADER + 9] = 6;
        frame[HEADER + 12..HEADER + 20].copy_from_slice(&[10, 1, 0, 1, 10, 1, 0, 2]);
        frame[HEADER + 20 + 12] = 0x50;
        frame[HEADER + 20 + 13] = 0x18;
        for (at, byte) in frame[HEADER + 40..].iter_mut().enumerate() {
            *byte = at as u8;
        }
        frame
    }

    /// Whether a checksum is valid: pseudo header and segment sum to all ones.
    fn is_right(frame: &[u8]) -> bool {
        let mut summed = frame[HEADER + 12..HEADER + 20].to_vec();
        let total = usize::from(u16::from_be_bytes([frame[HEADER + 2], frame[HEADER + 3]]));
        summed.extend_from_slice(&[0, 6]);
        summed.extend_from_slice(&((total - 20) as u16).to_be_bytes());
        summed.extend_from_slice(&frame[HEADER + 20..HEADER + total]);
        ones_sum(&summed) == 0xffff
    }

    #[test]
    fn l4_checksum_offload_fills_checksum() {
        let frame = tcp_frame(33);
        assert!(!is_right(&finish(frame.clone(), 0)));
        assert!(is_right(&finish(frame, L4_CHECKSUM)));
    }

    #[test]
    fn tso_frame_is_split_into_sequenced_segments() {
        let frame = tcp_frame(2500);
        let pieces: Vec<_> = cut(&frame, headers_length(&frame).unwrap(), 1000)
            .into_iter()
            .map(|piece| finish(piece, L4_CHECKSUM))
            .collect();
        assert_eq!(pieces.iter().map(|piece| piece.len() - 54).collect::<Vec<_>>(), [1000, 1000, 500]);
        for (index, piece) in pieces.iter().enumerate() {
            assert_eq!(piece[38..42], ((index * 1000) as u32).to_be_bytes());
            assert_eq!(ones_sum(&piece[HEADER..HEADER + 20]), 0xffff);
            assert!(is_right(piece));
        }
        assert_eq!(pieces[0][HEADER + 33] & 0x08, 0);
        assert_ne!(pieces[2][HEADER + 33] & 0x08, 0);
    }

    #[test]
    fn tso_without_payload_is_one_frame() {
        let frame = tcp_frame(0);
        assert_eq!(cut(&frame, headers_length(&frame).unwrap(), 1000).len(), 1);
    }

    #[test]
    fn vlan_tag_is_stripped_from_tagged_frames_only() {
        let frame = [&[7; 12][..], &[0x81, 0, 0x21, 0x23], &[8, 0], &[9; 50]].concat();
        assert_eq!(without_tag(&frame), Some((0x2123, [&[7; 12][..], &[8, 0], &[9; 50]].concat())));
        assert_eq!(without_tag(&tcp_frame(0)), None);
        assert_eq!(without_tag(&frame[..15]), None);
    }

    #[test]
    fn check_sequence_gives_the_residue_of_ethernet() {
        for length in [60, 61, 1514] {
            let frame: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
            let whole = [&frame[..], &check_sequence(&frame)].concat();
            // The residue of a frame with its FCS: 0xc704dd7b, reflected and inverted.
            assert_eq!(crc32fast::hash(&whole), 0x2144_df1c);
        }
    }

    #[test]
    fn malformed_frames_are_not_segmented_or_checksummed() {
        for length in 0..80 {
            let mut frame = vec![0x45; length];
            let before = frame.clone();
            fill_checksum(&mut frame);
            assert!(headers_length(&frame).is_none());
            assert_eq!(frame, before);
        }
    }
}
