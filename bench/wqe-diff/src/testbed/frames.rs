//! Raw packet queue pairs.

use bareverbs::qp::{Qp, QpInit, RawPacket};
use bareverbs::{Pd, Result};
use bareverbs_wqe_diff::request::{FRAME_HEADER, IPOIB_HEADER, Kind, Piece, Request, Sender, TSO_HEADER};

pub(super) struct Frames {
    plain: Qp<RawPacket>,
    large: Qp<RawPacket>,
}

impl Frames {
    pub(super) fn new(pd: &Pd, init: &QpInit<'_>) -> Result<Self> {
        let up = |max_tso_header| -> Result<_> {
            let mut qp = pd.create_qp::<RawPacket>(&QpInit { max_tso_header, ..*init })?;
            qp.init(1)?;
            qp.ready_to_receive()?;
            qp.ready_to_send()?;
            Ok(qp)
        };
        Ok(Self { plain: up(0)?, large: up(TSO_HEADER)? })
    }

    pub(super) fn print_values(&self) {
        println!("qp frames {:#x}\nqp large {:#x}", self.plain.qp_num(), self.large.qp_num());
    }

    pub(super) fn of(&mut self, sender: Sender) -> &mut Qp<RawPacket> {
        if sender == Sender::LargeSends { &mut self.large } else { &mut self.plain }
    }
}

/// The bytes of a request that are the header of its frame or datagram. rdma-core copies as many as the
/// device requires from its SGEs. With us, header bytes that are not inline are passed separately.
pub(super) fn in_front(request: &Request) -> u32 {
    match (request.kind, request.inline) {
        (Kind::Frame, true) => request.b as u32,
        (Kind::Frame, false) => FRAME_HEADER,
        (_, false) if request.sender == Sender::Sourced => IPOIB_HEADER,
        _ => 0,
    }
}

/// Splits pieces into the first `front` bytes and the rest.
pub(super) fn split(pieces: &[Piece], front: u32) -> (Vec<Piece>, Vec<Piece>) {
    let mut left = front;
    let halves = pieces.iter().map(|(offset, length)| {
        let now = left.min(*length);
        left -= now;
        ((*offset, now), (offset + now, length - now))
    });
    halves.unzip()
}
