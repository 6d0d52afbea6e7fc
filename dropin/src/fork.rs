//! Forks. The kernel copies pinned pages for a child, so no memory is excluded from it.

use std::ffi::{c_int, c_void};

use bareverbs_netlink::RdmaNetlink;

use crate::abi::values::{IBV_FORK_DISABLED, IBV_FORK_UNNEEDED};
use crate::convention::{Failure, OrErrno, Value, export};

/// Whether the kernel copies pinned pages at a fork (Linux 5.12). A kernel without RDMA pins none.
fn kernel_copies() -> bool {
    RdmaNetlink::open().and_then(|mut netlink| netlink.system()).map_or(true, |system| system.copy_on_fork)
}

pub(crate) fn init() -> Result<(), Failure> {
    if kernel_copies() { Ok(()) } else { Err(bareverbs::Errno::NOSYS.into()) }
}

export! {
    fn ibv_fork_init() -> OrErrno { init() }

    fn ibv_is_fork_initialized() -> Value<c_int> {
        Ok(if kernel_copies() { IBV_FORK_UNNEEDED } else { IBV_FORK_DISABLED })
    }

    fn ibv_dontfork_range(_start: *mut c_void, _size: usize) -> OrErrno { Ok(()) }

    fn ibv_dofork_range(_start: *mut c_void, _size: usize) -> OrErrno { Ok(()) }
}
