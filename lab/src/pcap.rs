//! Writes and reads packet captures in the classic pcap format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MAGIC: u32 = 0xa1b2_c3d4;
const ETHERNET: u32 = 1;
const SNAP_LENGTH: u32 = 262_144;
const ROCE_PORT: u16 = 4791;

/// A capture file being written; every packet is in the file when `record` returns.
#[derive(Debug)]
pub struct Recorder<W: Write = BufWriter<File>> {
    out: W,
}

impl Recorder {
    /// Starts a new file.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(BufWriter::new(File::create(path)?))
    }
}

impl<W: Write> Recorder<W> {
    /// Starts a capture of Ethernet frames on any writer.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut header = MAGIC.to_le_bytes().to_vec();
        header.extend_from_slice(&2_u16.to_le_bytes());
        header.extend_from_slice(&4_u16.to_le_bytes());
        for field in [0, 0, SNAP_LENGTH, ETHERNET] {
            header.extend_from_slice(&field.to_le_bytes());
        }
        out.write_all(&header)?;
        out.flush()?;
        Ok(Self { out })
    }

    /// Adds a frame that passed at `time`.
    pub fn record(&mut self, time: SystemTime, frame: &[u8]) -> io::Result<()> {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        for field in [time.as_secs() as u32, time.subsec_micros(), length, length] {
            self.out.write_all(&field.to_le_bytes())?;
        }
        self.out.write_all(frame)?;
        self.out.flush()
    }
}

/// The frames of a capture of either byte order; `None` if it is not a capture or is truncated.
pub fn frames(capture: &[u8]) -> Option<Vec<&[u8]>> {
    let word = |bytes: &[u8], swapped: bool| {
        let bytes: [u8; 4] = bytes.try_into().ok()?;
        Some(if swapped { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    };
    let swapped = match word(capture.get(..4)?, false)? {
        MAGIC => false,
        other if other.swap_bytes() == MAGIC => true,
        _ => return None,
    };
    let mut rest = capture.get(24..)?;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = word(rest.get(8..12)?, swapped)? as usize;
        frames.push(rest.get(16..16 + length)?);
        rest = &rest[16 + length..];
    }
    Some(frames)
}

/// The start of a RoCE v2 packet: addresses and the main BTH fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocePacket {
    /// IPv4 source address.
    pub source: [u8; 4],
    /// IPv4 destination address.
    pub destination: [u8; 4],
    /// BTH opcode, such as 4 (RC SEND ONLY) or 17 (RC ACKNOWLEDGE).
    pub opcode: u8,
    /// Destination queue pair.
    pub destination_qp: u32,
    /// Packet sequence number.
    pub psn: u32,
}

impl RocePacket {
    /// BTH opcode of an RC send in one packet.
    pub const RC_SEND_ONLY: u8 = 4;
    /// BTH opcode of a UC send in one packet.
    pub const UC_SEND_ONLY: u8 = 0x24;
    /// BTH opcode of a UD send.
    pub const UD_SEND_ONLY: u8 = 0x64;
    /// BTH opcode of an RC acknowledgement.
    pub const RC_ACKNOWLEDGE: u8 = 17;

    /// Parses an Ethernet frame; `None` unless it is IPv4, UDP to port 4791, with a complete BTH.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        let header = usize::from(ip.first()? & 0xf) * 4;
        if frame[12..14] != [0x08, 0x00] || ip[0] >> 4 != 4 || header < 20 || *ip.get(9)? != 17 {
            return None;
        }
        let udp = ip.get(header..)?;
        if u16::from_be_bytes([*udp.get(2)?, *udp.get(3)?]) != ROCE_PORT {
            return None;
        }
        let bth = udp.get(8..20)?;
        let low24 = |at: usize| u32::from_be_bytes([0, bth[at + 1], bth[at + 2], bth[at + 3]]);
        Some(Self {
            source: ip[12..16].try_into().ok()?,
            destination: ip[16..20].try_into().ok()?,
            opcode: bth[0],
            destination_qp: low24(4),
            psn: low24(8),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_only() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[0x08, 0x00]);
        frame.extend_from_slice(&[0x45, 0, 0, 52, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2]);
        frame.extend_from_slice(&[0xc0, 0, 0x12, 0xb7, 0, 32, 0, 0]);
        frame.extend_from_slice(&[4, 0x40, 0xff, 0xff, 0, 0, 0, 0x12, 0x80, 1, 2, 3]);
        frame
    }

    #[test]
    fn pcap_frames_round_trip() {
        let mut bytes = Vec::new();
        let mut recorder = Recorder::new(&mut bytes).unwrap();
        recorder.record(UNIX_EPOCH + Duration::from_millis(1500), b"one").unwrap();
        recorder.record(UNIX_EPOCH, &[9; 1500]).unwrap();
        assert_eq!(frames(&bytes), Some(vec![&b"one"[..], &[9; 1500][..]]));
        assert_eq!(bytes[24..32], [1, 0, 0, 0, 0x20, 0xa1, 7, 0], "seconds, microseconds");
    }

    #[test]
    fn truncated_or_foreign_pcap_is_rejected() {
        let mut bytes = Vec::new();
        Recorder::new(&mut bytes).unwrap().record(UNIX_EPOCH, b"packet").unwrap();
        bytes.pop();
        assert_eq!(frames(&bytes), None);
        assert_eq!(frames(b"#!/bin/sh"), None);
    }

    #[test]
    fn roce_packet_bth_is_parsed() {
        let packet = RocePacket::parse(&send_only()).unwrap();
        assert_eq!(packet.opcode, RocePacket::RC_SEND_ONLY);
        assert_eq!((packet.source, packet.destination), ([10, 1, 0, 1], [10, 1, 0, 2]));
        assert_eq!((packet.destination_qp, packet.psn), (0x12, 0x0001_0203));
    }

    #[test]
    fn other_packets_are_not_roce() {
        let mut dns = send_only();
        dns[36..38].copy_from_slice(&[0, 53]);
        assert_eq!(RocePacket::parse(&dns), None);
        assert_eq!(RocePacket::parse(&send_only()[..40]), None);
        assert_eq!(RocePacket::parse(&[]), None);
    }
}
