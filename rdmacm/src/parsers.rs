//! Parsers of kernel responses, public for fuzzing.

use bareverbs::qp::QpType;
use bareverbs_uapi::rdma_cm::address::SocketAddressStorage;
use bareverbs_uapi::rdma_cm::structs::EventResp;

use crate::Addr;
use crate::event::{EventKind, RequestParam};

/// The kind of an event of an identifier with QPs of a type. A connection request is
/// [`EventKind::Unknown`] here.
#[must_use]
pub fn parse_event(resp: &EventResp, qp_type: QpType) -> EventKind {
    crate::event::parse(resp, qp_type)
}

/// The parameters of a connection request.
#[must_use]
pub fn parse_request(resp: &EventResp, qp_type: QpType) -> RequestParam {
    crate::event::parse_request(resp, qp_type)
}

/// An address in the kernel's form; `None` without a known family.
#[must_use]
pub fn parse_addr(storage: &SocketAddressStorage) -> Option<Addr> {
    Addr::from_kernel(storage)
}

/// The kernel's form of an address, and its length.
#[must_use]
pub fn encode_addr(addr: Addr) -> (SocketAddressStorage, u16) {
    addr.to_kernel()
}
