//! The data path: operations on each transport, with the results at both sides.
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
mod shared;
mod trial;
mod windows;

use bareverbs_uapi::verbs_values::WcStatus;

use crate::check::Check;
use operation::{OPERATIONS, Operation};
pub(crate) use trial::wait_state;
pub(crate) use windows::bound_window;

/// The device families whose results the checks know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Soft-RoCE: the data path is in the kernel. The WQEs are written by this crate.
    Rxe,
    /// ConnectX: requests that its provider does not accept have no checks.
    Mlx5,
}

impl Device {
    /// The operations of its data path.
    fn operations(self) -> impl Iterator<Item = &'static Operation> {
        // mlx5 has no FLUSH and no ATOMIC_WRITE.
        OPERATIONS.iter().filter(move |operation| self == Self::Rxe || operation.has_sges())
    }

    /// The status of a receive whose message has an R_Key that does not allow the access. rxe reports
    /// the violation there; IBTA and mlx5 leave the receive to the flush.
    fn receive_of_violation(self) -> WcStatus {
        match self {
            Self::Rxe => WcStatus::REM_ACCESS_ERR,
            Self::Mlx5 => WcStatus::WR_FLUSH_ERR,
        }
    }
}

pub(crate) fn checks(device: Device) -> Vec<Check> {
    let mut checks = Vec::new();
    rights::checks(&mut checks, device);
    keys::checks(&mut checks, device);
    local::checks(&mut checks, device);
    receive::checks(&mut checks, device);
    shared::checks(&mut checks, device);
    windows::checks(&mut checks, device);
    messages::checks(&mut checks, device);
    datagram::checks(&mut checks, device);
    checks
}
