//! Random requests.

mod frames;

use fastrand::Rng;

use crate::request::{
    DEPTH, FRAME_HEADER, FRAMES, HANDLES, INLINE, IPOIB_HEADER, KINDS, Kind, Piece, QKEY, REGION, Request,
    SENDERS, SGES, Sender,
};

/// Bytes of the longest UD message and of the longest frame.
const DATAGRAM: u32 = 1000;
/// Bytes before a datagram in its receive.
const HEADER: u32 = 40;

/// About `count` requests, the same for the same seed. Raw frames are included if the port is
/// Ethernet, datagrams with a source QPN otherwise.
#[must_use]
pub fn generate(seed: u64, count: usize, ethernet: bool) -> Vec<Request> {
    let mut rng = Rng::with_seed(seed);
    let mut all = Vec::new();
    while all.len() < count {
        let mut list = match rng.u8(..10) {
            0 => windows(&mut rng),
            1 | 2 if ethernet => list(&mut rng, frames::frame),
            3 if ethernet => list(&mut rng, frames::large_send),
            1 if !ethernet => {
                let mut list = list(&mut rng, sourced);
                separate_whole_headers(&mut list);
                list
            }
            _ => plain(&mut rng),
        };
        if let Some(last) = list.last_mut() {
            // Its completion also completes the requests before it.
            (last.signaled, last.rings) = (true, true);
        }
        all.append(&mut list);
    }
    all
}

fn blank(sender: Sender, kind: Kind) -> Request {
    Request {
        sender,
        kind,
        signaled: false,
        solicited: false,
        fence: false,
        inline: false,
        rings: false,
        checksums: false,
        imm: 0,
        remote: 0,
        a: 0,
        b: 0,
        pieces: Vec::new(),
        receive: None,
        header: Vec::new(),
    }
}

/// Binds and invalidates one of the two windows; each step is a list of its own.
fn windows(rng: &mut Rng) -> Vec<Request> {
    const READ: u32 = 1 << 2;
    const WRITE: u32 = 1 << 1;
    const ATOMIC: u32 = 1 << 3;
    let by_peer = rng.bool();
    let (binder, last) = if by_peer { (Sender::RcPeer, Kind::SendInv) } else { (Sender::Rc, Kind::LocalInv) };
    let start = rng.u32(..REGION);
    let bind = Request {
        imm: [READ, WRITE, ATOMIC].into_iter().filter(|_| rng.bool()).fold(READ, |all, one| all | one),
        remote: start,
        a: u64::from(rng.u32(1..=REGION - start)),
        signaled: true,
        fence: rng.bool(),
        rings: true,
        ..blank(binder, Kind::Bind)
    };
    let mut end = Request { fence: rng.bool(), ..blank(Sender::Rc, last) };
    if by_peer {
        end.solicited = rng.bool();
        end.receive = Some(receive(rng, 0));
    }
    vec![bind, end]
}

/// A list of requests for one queue pair.
fn plain(rng: &mut Rng) -> Vec<Request> {
    let sender = SENDERS[rng.usize(..4)];
    let kinds = match sender {
        Sender::Ud => &KINDS[..2],
        Sender::Uc => &KINDS[..4],
        _ => &KINDS[..7],
    };
    list(rng, |rng| {
        let kind = kinds[rng.usize(..kinds.len())];
        one(rng, sender, kind)
    })
}

/// One request, or several.
fn list(rng: &mut Rng, one: impl Fn(&mut Rng) -> Request) -> Vec<Request> {
    let count = if rng.u8(..4) == 0 { rng.usize(1..=DEPTH / 2) } else { 1 };
    (0..count).map(|_| one(rng)).collect()
}

/// A datagram with a source QPN.
fn sourced(rng: &mut Rng) -> Request {
    let mut request = blank(Sender::Sourced, Kind::Send);
    request.signaled = rng.bool();
    request.solicited = rng.u8(..4) == 0;
    request.inline = rng.bool();
    request.pieces = pieces(rng, FRAMES, if request.inline { INLINE - IPOIB_HEADER } else { DATAGRAM });
    // rdma-core copies the inline header from the first piece.
    match request.pieces.first_mut() {
        Some((_, length)) if *length >= IPOIB_HEADER => {}
        Some(first) => *first = (FRAMES, IPOIB_HEADER),
        None => request.pieces.push((FRAMES, IPOIB_HEADER)),
    }
    (request.a, request.b) = (QKEY, rng.u64(..HANDLES));
    let length = bytes(&request.pieces) + HEADER;
    request.receive = Some(receive(rng, length));
    request
}

/// Posts each datagram alone whose inline header is the whole first piece. libmlx5 skips the first
/// piece of all datagrams behind it in a list (`sg_copy_ptr` of `_mlx5_post_send` in rdma-core 65).
fn separate_whole_headers(list: &mut [Request]) {
    let is_whole = |request: &Request| {
        let length = request.pieces.first().map_or(0, |(_, length)| *length);
        length == IPOIB_HEADER || request.inline && length == FRAME_HEADER
    };
    for at in 1..list.len() {
        if is_whole(&list[at - 1]) || is_whole(&list[at]) {
            (list[at - 1].signaled, list[at - 1].rings) = (true, true);
        }
    }
}

fn bytes(pieces: &[Piece]) -> u32 {
    pieces.iter().map(|(_, length)| length).sum()
}

fn one(rng: &mut Rng, sender: Sender, kind: Kind) -> Request {
    let mut request = blank(sender, kind);
    let copied = !matches!(kind, Kind::Read | Kind::CmpSwp | Kind::FetchAdd);
    request.signaled = rng.bool();
    request.solicited = rng.u8(..4) == 0 && Request::takes_receive(kind);
    request.fence = rng.u8(..4) == 0 && sender != Sender::Ud;
    request.inline = copied && rng.bool();
    if matches!(kind, Kind::SendImm | Kind::WriteImm) {
        request.imm = rng.u32(..);
    }
    let longest = match (request.inline, sender) {
        (true, _) => INLINE,
        (false, Sender::Ud) => DATAGRAM,
        _ => 8192,
    };
    request.pieces = match kind {
        Kind::CmpSwp | Kind::FetchAdd => vec![(rng.u32(..64) * 8, 8)],
        _ => pieces(rng, 0, longest),
    };
    // The upper half of the region belongs to the peer.
    request.remote = REGION / 2 + rng.u32(..128) * 8;
    (request.a, request.b) = match (kind, sender) {
        (_, Sender::Ud) => (u64::from(rng.u32(..1 << 31)), rng.u64(..HANDLES)),
        (Kind::CmpSwp | Kind::FetchAdd, _) => (rng.u64(..), rng.u64(..)),
        _ => (0, 0),
    };
    if sender == Sender::Ud {
        request.a = QKEY;
    }
    if Request::takes_receive(kind) {
        let length = bytes(&request.pieces);
        let length = if kind == Kind::WriteImm { 0 } else { length };
        request.receive = Some(receive(rng, if sender == Sender::Ud { length + HEADER } else { length }));
    }
    request
}

/// Pieces of at most `most` bytes in total, from `start` of the region on. Some have 0 bytes.
fn pieces(rng: &mut Rng, start: u32, most: u32) -> Vec<Piece> {
    let mut left = most;
    let count = rng.usize(..=SGES);
    let piece = |rng: &mut Rng, left: &mut u32| {
        // Short pieces are the most error-prone.
        let bound = if rng.bool() { (*left).min(40) } else { *left };
        let length = rng.u32(..=bound);
        *left -= length;
        (start + rng.u32(..1024), length)
    };
    (0..count).map(|_| piece(rng, &mut left)).collect()
}

/// A receive of at least `least` bytes.
fn receive(rng: &mut Rng, least: u32) -> Vec<Piece> {
    let mut list = pieces(rng, REGION / 2, least);
    if bytes(&list) < least || rng.bool() {
        list.truncate(SGES - 1);
        list.push((REGION / 2, least + rng.u32(..64)));
    }
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn generator_covers_every_kind_and_sender() {
        let all = [generate(1, 400, true), generate(1, 400, false)].concat();
        for kind in KINDS {
            assert!(all.iter().any(|request| request.kind == kind), "{kind:?}");
        }
        for sender in SENDERS {
            assert!(all.iter().any(|request| request.sender == sender), "{sender:?}");
        }
        assert_eq!(generate(1, 400, true), generate(1, 400, true));
        assert_ne!(generate(1, 400, true), generate(2, 400, true));
    }

    #[test]
    fn infiniband_port_generates_no_frames() {
        let frames = [Sender::Frames, Sender::LargeSends];
        assert!(generate(1, 400, false).iter().all(|request| !frames.contains(&request.sender)));
    }

    proptest! {
        #[test]
        fn request_line_round_trips(seed: u64, ethernet: bool) {
            for request in generate(seed, 50, ethernet) {
                prop_assert_eq!(Request::parse(&request.line()).unwrap(), request);
            }
        }

        #[test]
        fn generated_requests_fit_limits(seed: u64, ethernet: bool) {
            let (mut under_way, mut unseen) = (0, true);
            for request in generate(seed, 50, ethernet) {
                let length = bytes(&request.pieces);
                prop_assert!(request.pieces.iter().all(|(offset, length)| offset + length <= REGION));
                prop_assert!(!request.inline || length <= INLINE);
                prop_assert_eq!(request.receive.is_some(), Request::takes_receive(request.kind));
                if let Some(receive) = &request.receive {
                    let room: u32 = receive.iter().map(|(_, length)| length).sum();
                    let needs = match (request.kind, request.sender) {
                        (Kind::WriteImm, _) => 0,
                        (_, Sender::Ud | Sender::Sourced) => length + HEADER,
                        _ => length,
                    };
                    prop_assert!(room >= needs && receive.len() <= SGES);
                }
                under_way += 1;
                prop_assert!(under_way <= DEPTH);
                unseen = !request.signaled;
                if request.rings {
                    prop_assert!(!unseen);
                    under_way = 0;
                }
            }
            prop_assert!(!unseen);
        }
    }
}
