//! The connection manager for programs: the ABI of the kernel's `/dev/infiniband/rdma_cm`.
//!
//! | module | content |
//! |---|---|
//! | `namespace` | devices, ports, identifiers, files and their events |
//! | `id` | identifiers and memberships |
//! | `address` | addresses of commands, and the header of the IP addressing service |
//! | `resolve` | binding, ports, and the resolution of addresses and routes |
//! | `connect` | connections on the devices' communication managers, and their events |
//! | `attributes`, `query`, `multicast` | INIT_QP_ATTR; QUERY; groups |
//! | `commands` | the commands |
//!
//! Errnos and states are those of `drivers/infiniband/core/ucma.c` and `cma.c` of Linux 7.2.

mod address;
mod attributes;
mod commands;
mod connect;
mod id;
mod multicast;
mod namespace;
mod query;
mod resolve;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::process::ForkGuard;
use rustix::event::{EventfdFlags, eventfd};

pub(crate) use namespace::{CmPort, Namespace};

/// An open file of the connection manager of soft devices: the commands of the kernel's
/// `/dev/infiniband/rdma_cm`, non-blocking.
///
/// The numbers of its identifiers are [`FIRST_ID`](Self::FIRST_ID) and above. Its descriptor is
/// readable while an event is queued. The errnos are those of Linux 7.2, except:
///
/// - An address of 127.0.0.0/8 is that of a device, not of every device. Without one, binding to it is
///   `EADDRNOTAVAIL`.
/// - An address resolves at once, or RESOLVE_ADDR fails with `ENETUNREACH`: no device reaches it. A
///   device that reaches other processes reaches any address, also in 127.0.0.0/8: if no device has
///   it, the connection times out. There is no neighbour to wait for, so no `ADDR_ERROR` event.
/// - Addresses of the family `AF_IB` are `ENODEV`. Ports below 1024 need no
///   privilege.
///
/// The file serves the devices of a [`Fabric`](crate::Fabric) and of its
/// [siblings](crate::Fabric::sibling). Its identifiers are destroyed when it is dropped.
#[derive(Debug)]
pub struct CmFile {
    namespace: Arc<Namespace>,
    number: u64,
    ready: Arc<OwnedFd>,
    fork_guard: ForkGuard,
}

impl CmFile {
    /// The lowest number of an identifier. Those of the kernel are below.
    pub const FIRST_ID: u32 = namespace::FIRST_ID;

    /// Opens a file of a namespace.
    ///
    /// # Errors
    ///
    /// The error of `eventfd`, such as `EMFILE`; the error of `mmap` or `madvise`.
    pub(crate) fn new(namespace: &Arc<Namespace>) -> Result<Self, Errno> {
        let fork_guard = ForkGuard::new()?;
        let ready = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let namespace = Arc::clone(namespace);
        let number = namespace.open_file(Arc::clone(&ready));
        Ok(Self { namespace, number, ready, fork_guard })
    }

    /// Executes a command. The response goes to `response`, whatever address the request has.
    ///
    /// # Errors
    ///
    /// Those of the kernel's command; `EINVAL` if the request is shorter than that of the command;
    /// `ESTALE` in a forked child.
    pub fn execute(&self, command: u32, request: &[u8], response: &mut [u8]) -> Result<(), Errno> {
        let room = response.len();
        let mut reply = |_: u64, bytes: &[u8]| {
            let len = bytes.len().min(response.len());
            response[..len].copy_from_slice(&bytes[..len]);
            Ok(())
        };
        self.run(command, &commands::Request::Whole(request), room, &mut reply)
    }

    /// Writes a command, as to the kernel's file: a header, and the request with the address of its
    /// response.
    ///
    /// # Errors
    ///
    /// Those of the kernel; `ESTALE` in a forked child.
    ///
    /// # Safety
    ///
    /// The memory at the address of the response, if there is any, is that of an output of the call:
    /// nothing else accesses it.
    pub unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
        let (number, input, room) = commands::header(command)?;
        let request = commands::Request::Written { command, input };
        let mut reply = |address: u64, bytes: &[u8]| {
            let len = bytes.len().min(room);
            // SAFETY: the caller guarantees it.
            unsafe { crate::user::write(address, &bytes[..len]) }
        };
        self.run(number, &request, room, &mut reply)
    }

    /// Takes BIND back: the identifier has no address and no port. The kernel has no such command.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless the identifier is bound, and nothing followed; `ENOENT`, `ENXIO`, `ESTALE` as
    /// commands.
    pub fn unbind(&self, id: u32) -> Result<(), Errno> {
        self.check_same_process()?;
        self.namespace.unbind(self.number, id)
    }

    /// Takes LISTEN back: the identifier is bound only. Requests that were not read are rejected. The
    /// kernel has no such command.
    ///
    /// # Errors
    ///
    /// `EINVAL` unless the identifier listens; `ENOENT`, `ENXIO`, `ESTALE` as commands.
    pub fn unlisten(&self, id: u32) -> Result<(), Errno> {
        self.check_same_process()?;
        self.namespace.unlisten(self.number, id)
    }

    fn check_same_process(&self) -> Result<(), Errno> {
        if self.fork_guard.is_same_process() { Ok(()) } else { Err(Errno::STALE) }
    }

    fn run(
        &self,
        command: u32,
        request: &commands::Request<'_>,
        room: usize,
        reply: commands::Reply<'_>,
    ) -> Result<(), Errno> {
        self.check_same_process()?;
        commands::run(&self.namespace, self.number, command, request, room, reply)
    }
}

impl AsFd for CmFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsRawFd for CmFile {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.ready.as_raw_fd()
    }
}

impl Drop for CmFile {
    fn drop(&mut self) {
        // A forked child leaves the parent's identifiers alone.
        if self.fork_guard.is_same_process() {
            self.namespace.end_file(self.number);
        }
    }
}
