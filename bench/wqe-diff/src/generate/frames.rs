//! Raw frames, and TSO sends, which the device segments into several frames.

use fastrand::Rng;

use super::{DATAGRAM, blank, bytes, pieces};
use crate::request::{FRAME_HEADER, FRAMES, INLINE, Kind, Request, SGES, Sender};

/// A frame of random bytes.
pub(super) fn frame(rng: &mut Rng) -> Request {
    let mut request = blank(Sender::Frames, Kind::Frame);
    request.signaled = rng.bool();
    request.solicited = rng.u8(..4) == 0;
    request.inline = rng.bool();
    request.checksums = rng.bool();
    request.pieces = pieces(rng, FRAMES, if request.inline { INLINE } else { DATAGRAM });
    if bytes(&request.pieces) < FRAME_HEADER {
        request.pieces.truncate(SGES - 1);
        request.pieces.push((FRAMES, FRAME_HEADER + rng.u32(..64)));
    }
    // rdma-core copies the inline header from any of the inline pieces.
    request.b = u64::from(if request.inline { rng.u32(..=FRAME_HEADER) } else { FRAME_HEADER });
    request
}

/// A TSO send over IPv4, with or without TCP options, or over IPv6.
///
/// Each takes two blocks of the ring, and so never wraps around its end. At a wrap rdma-core writes
/// the SGEs after a header of more than one block 32 bytes too late: `set_tso_eth_seg` in
/// rdma-core's `providers/mlx5/qp.c` has advanced by the Ethernet segment already, and its caller
/// advances again.
pub(super) fn large_send(rng: &mut Rng) -> Request {
    let mut request = blank(Sender::LargeSends, Kind::LargeSend);
    request.signaled = rng.bool();
    request.solicited = rng.u8(..4) == 0;
    request.inline = rng.bool();
    request.checksums = rng.bool();
    request.a = u64::from(rng.u32(1..1 << 14));
    let (v6, options) = match rng.u8(..3) {
        0 => (false, 0),
        1 => (false, 12),
        _ => (true, 0),
    };
    request.header = headers(rng, v6, options);
    // The segments of two blocks that remain after the control segment and the headers.
    let segments = 7 - (14 + request.header.len()).div_ceil(16);
    let most = if request.inline { 16 * segments as u32 - 4 } else { 16 * request.a.min(250) as u32 };
    request.pieces = pieces(rng, FRAMES, most);
    if !request.inline {
        request.pieces.truncate(segments);
    }
    request
}

/// Ethernet, IP and TCP headers, with the fields that a device checks. The destination is a
/// multicast group: all addresses but the port's own lead to the wire.
fn headers(rng: &mut Rng, v6: bool, options: usize) -> Vec<u8> {
    const TCP: u8 = 6;
    const NOTHING: u8 = 1;
    let mut all = vec![3, 0, 0, 0, 0, 0xb, 2, 0, 0, 0, 0, 0xa];
    if v6 {
        all.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, TCP, 64]);
        all.extend([0xfd; 16]);
        all.extend([0xfe; 16]);
    } else {
        all.extend([0x08, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 9, 8, 1, 10, 9, 8, 7]);
    }
    let sequence = rng.u32(..).to_be_bytes();
    all.extend([0x30, 0x39, 0, 80]);
    all.extend(sequence);
    all.extend([0, 0, 0, 1, (5 + options as u8 / 4) << 4, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    all.resize(all.len() + options, NOTHING);
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Rng, *};
    use crate::request::TSO_HEADER;

    proptest! {
        #[test]
        fn frame_has_inline_header(seed: u64) {
            let request = frame(&mut Rng::with_seed(seed));
            prop_assert!(bytes(&request.pieces) >= FRAME_HEADER && request.b <= u64::from(FRAME_HEADER));
        }

        #[test]
        fn tso_request_takes_two_basic_blocks(seed: u64) {
            let request = large_send(&mut Rng::with_seed(seed));
            let front = 16 + (14 + request.header.len()).next_multiple_of(16);
            let behind = match (request.inline, bytes(&request.pieces)) {
                (true, 0) => 0,
                (true, length) => 4 + length as usize,
                (false, _) => 16 * request.pieces.len(),
            };
            prop_assert!((65..=128).contains(&(front + behind)), "{front} and {behind}");
            prop_assert!(request.header.len() <= usize::from(TSO_HEADER));
            prop_assert!((1..1 << 14).contains(&request.a));
        }
    }
}
