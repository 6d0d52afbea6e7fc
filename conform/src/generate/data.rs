//! The data path of rxe: operations on each transport, with the results at both sides.
//!
//! Two QPs of the same port are connected. A request is written to the send queue, and the statuses
//! of both sides, the memory of both regions and the states of both QPs are compared with those that
//! the specification requires.

mod datagram;
mod keys;
mod local;
mod messages;
mod operation;
mod receive;
mod rights;
mod trial;
mod windows;

use crate::check::Check;
pub(crate) use trial::wait_state;

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    rights::checks(&mut checks);
    keys::checks(&mut checks);
    local::checks(&mut checks);
    receive::checks(&mut checks);
    windows::checks(&mut checks);
    messages::checks(&mut checks);
    datagram::checks(&mut checks);
    checks
}
