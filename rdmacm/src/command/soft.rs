//! Files that serve soft devices, alone or beside the kernel's.
//!
//! An identifier of a file that serves both has the number of the kernel's. Beside it there is one of
//! the soft devices until an address decides for the kernel. If it decides for a soft device, commands
//! go to that one. An identifier that is bound to all devices listens on both.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bareverbs_soft::CmFile;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::write_to_kernel;
use crate::Addr;
use crate::ready::combine;

/// The kernel's file, and that of the soft devices.
#[derive(Debug)]
pub(super) struct KernelAndSoft {
    kernel: File,
    soft: CmFile,
    /// Readable while one of them is.
    ready: OwnedFd,
    /// By the kernel's number.
    soft_ids: Mutex<BTreeMap<u32, SoftId>>,
    /// Whether the next event is looked for in the kernel's file first.
    kernel_first: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct SoftId {
    number: u32,
    /// Whether the identifier is one of a soft device.
    is_soft: bool,
}

impl KernelAndSoft {
    pub(super) fn new(kernel: File, soft: CmFile) -> rustix::io::Result<Self> {
        let ready = combine(&[(kernel.as_fd(), 0), (soft.as_fd(), 1)])?;
        let (soft_ids, kernel_first) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { kernel, soft, ready, soft_ids, kernel_first })
    }

    fn soft_ids(&self) -> MutexGuard<'_, BTreeMap<u32, SoftId>> {
        // No call panics between two changes that belong together.
        self.soft_ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether commands of an identifier go to the soft devices.
    pub(super) fn is_soft(&self, id: u32) -> bool {
        id >= CmFile::FIRST_ID || self.soft_ids().get(&id).is_some_and(|soft_id| soft_id.is_soft)
    }

    pub(super) fn kernel(&self) -> &File {
        &self.kernel
    }

    pub(super) fn soft(&self) -> &CmFile {
        &self.soft
    }

    /// Executes a command.
    pub(super) fn execute<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        let number = C::INFO.number;
        if number == CreateId::INFO.number {
            return self.create::<C>(request, response);
        }
        if number == GetEvent::INFO.number {
            return self.next_event::<C>(request, response);
        }
        let Some(id) = id_of::<C>(&request) else {
            return write_to_kernel::<C>(&self.kernel, request, response);
        };
        if id >= CmFile::FIRST_ID {
            return self.soft.execute(number, request.as_bytes(), response);
        }
        // Memberships have numbers of their own.
        let soft_id = self.soft_ids().get(&id).copied().filter(|_| number != LeaveMcast::INFO.number);
        match soft_id {
            None => write_to_kernel::<C>(&self.kernel, request, response),
            Some(soft_id) if number == DestroyId::INFO.number => {
                self.soft_ids().remove(&id);
                let destroyed = self.execute_on_soft::<C>(soft_id, &request, response);
                // The kernel's identifier of a soft one was never used.
                let also = write_to_kernel::<C>(&self.kernel, request, response);
                if soft_id.is_soft { destroyed } else { also }
            }
            Some(soft_id) if soft_id.is_soft => self.execute_on_soft::<C>(soft_id, &request, response),
            Some(soft_id) => self.execute_undecided::<C>(id, soft_id, request, response),
        }
    }

    /// Executes a command of an identifier whose address is of no device yet, or of all devices.
    fn execute_undecided<C: Command>(
        &self,
        id: u32,
        soft_id: SoftId,
        request: C::Request,
        response: &mut [u8],
    ) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        let number = C::INFO.number;
        if number == Bind::INFO.number || number == BindIp::INFO.number {
            if address_of::<C>(&request)
                .is_some_and(|addr| addr.ip().is_some_and(|addr| addr.ip().is_unspecified()))
            {
                write_to_kernel::<C>(&self.kernel, request, response)?;
                return self.bind_soft_id(id, soft_id);
            }
            return self.decide::<C>(id, soft_id, request, response);
        }
        if number == ResolveAddr::INFO.number || number == ResolveIp::INFO.number {
            return self.decide::<C>(id, soft_id, request, response);
        }
        write_to_kernel::<C>(&self.kernel, request, response)?;
        if number == Listen::INFO.number {
            // An identifier that was not bound is bound now.
            match self.bind_soft_id(id, soft_id) {
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
            return self.execute_on_soft::<C>(soft_id, &request, response);
        }
        if number == SetOption::INFO.number {
            return self.execute_on_soft::<C>(soft_id, &request, response);
        }
        Ok(())
    }

    /// Lets the soft devices execute a command with an address. If no device has or reaches it, the
    /// kernel does.
    fn decide<C: Command>(
        &self,
        id: u32,
        soft_id: SoftId,
        request: C::Request,
        response: &mut [u8],
    ) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        match self.execute_on_soft::<C>(soft_id, &request, response) {
            Err(Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::NODEV) => {
                write_to_kernel::<C>(&self.kernel, request, response)?;
                self.soft_ids().remove(&id);
                let request = DestroyIdReq { id: soft_id.number, ..DestroyIdReq::zeroed() };
                let _ = self.soft.execute(DestroyId::INFO.number, request.as_bytes(), &mut [0; 4]);
                Ok(())
            }
            Ok(()) => {
                self.soft_ids().insert(id, SoftId { is_soft: true, ..soft_id });
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Binds the identifier of soft devices to the address and the port of the kernel's identifier.
    fn bind_soft_id(&self, id: u32, soft_id: SoftId) -> Result<(), Errno> {
        let mut bound = QueryAddrResp::new_zeroed();
        let request = QueryReq { id, option: QueryOption::ADDR, ..QueryReq::zeroed() };
        write_to_kernel::<Query>(&self.kernel, request, bound.as_mut_bytes())?;
        let (addr, addr_size) = (bound.src_addr, bound.src_size);
        let request = BindReq { id: soft_id.number, addr_size, addr, ..BindReq::zeroed() };
        self.soft.execute(Bind::INFO.number, request.as_bytes(), &mut [])
    }

    fn execute_on_soft<C: Command>(
        &self,
        soft_id: SoftId,
        request: &C::Request,
        response: &mut [u8],
    ) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        let mut bytes = request.as_bytes().to_vec();
        if let Some(at) = id_offset::<C>() {
            bytes[at..at + 4].copy_from_slice(&soft_id.number.to_ne_bytes());
        }
        self.soft.execute(C::INFO.number, &bytes, response)
    }

    fn create<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        write_to_kernel::<C>(&self.kernel, request, response)?;
        let mut soft_id = CreateIdResp::zeroed();
        self.soft.execute(C::INFO.number, request.as_bytes(), soft_id.as_mut_bytes())?;
        if let Some(id) = response.first_chunk() {
            self.soft_ids().insert(u32::from_ne_bytes(*id), SoftId { number: soft_id.id, is_soft: false });
        }
        Ok(())
    }

    /// The next event of either file, in turn.
    fn next_event<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        let kernel_first = self.kernel_first.fetch_xor(true, Ordering::Relaxed);
        for is_kernel in [kernel_first, !kernel_first] {
            let read = match is_kernel {
                true => write_to_kernel::<C>(&self.kernel, request, response),
                false => self.soft.execute(C::INFO.number, request.as_bytes(), response),
            };
            if read != Err(Errno::AGAIN) {
                return read;
            }
        }
        Err(Errno::AGAIN)
    }

    /// Moves an identifier of `old` to this file.
    pub(super) fn migrate(&self, id: u32, old: &Self) -> Result<(), Errno> {
        let soft_id = old.soft_ids().get(&id).copied();
        if id < CmFile::FIRST_ID {
            let request = MigrateIdReq { id, fd: fd(&old.kernel), ..MigrateIdReq::zeroed() };
            let mut response = MigrateIdResp::zeroed();
            write_to_kernel::<MigrateId>(&self.kernel, request, response.as_mut_bytes())?;
        }
        if id >= CmFile::FIRST_ID || soft_id.is_some() {
            let number = soft_id.map_or(id, |soft_id| soft_id.number);
            migrate(&self.soft, number, &old.soft)?;
        }
        if let Some(soft_id) = old.soft_ids().remove(&id) {
            self.soft_ids().insert(id, soft_id);
        }
        Ok(())
    }
}

impl AsFd for KernelAndSoft {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

fn fd(file: &impl AsRawFd) -> u32 {
    file.as_raw_fd().cast_unsigned()
}

/// Moves an identifier of soft devices to another file.
pub(super) fn migrate(file: &CmFile, id: u32, old: &CmFile) -> Result<(), Errno> {
    let request = MigrateIdReq { id, fd: fd(old), ..MigrateIdReq::zeroed() };
    let mut response = MigrateIdResp::zeroed();
    file.execute(MigrateId::INFO.number, request.as_bytes(), response.as_mut_bytes())
}

fn id_offset<C: Command>() -> Option<usize> {
    C::INFO.request.fields.iter().find(|field| field.rust == "id").map(|field| field.offset)
}

/// The identifier that a request names.
fn id_of<C: Command>(request: &C::Request) -> Option<u32> {
    let at = id_offset::<C>()?;
    request.as_bytes().get(at..)?.first_chunk().map(|id| u32::from_ne_bytes(*id))
}

/// The address of BIND or BIND_IP.
fn address_of<C: Command>(request: &C::Request) -> Option<Addr> {
    let bytes = request.as_bytes();
    match BindReq::read_from_bytes(bytes) {
        Ok(request) => Addr::from_kernel(&request.addr),
        Err(_) => Addr::from_ip_kernel(BindIpReq::read_from_bytes(bytes).ok()?.addr),
    }
}

/// The cause of a refusal and the remedy.
pub(super) fn hint(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::ADDRNOTAVAIL => {
            "no soft device of this process has the address, or another identifier uses the port: create the \
             device by `Device::find(\"soft:ADDRESS\")` before"
        }
        Errno::NETUNREACH | Errno::NODEV => {
            "no soft device of this process reaches the address: create one by `Device::find(\"soft:ADDRESS\")`, \
             or on the fabric of the peer"
        }
        Errno::ADDRINUSE => {
            "another identifier uses the address and the port in this port space: use another port, or port 0"
        }
        Errno::NXIO => "the soft device was removed; only destroy the identifier",
        Errno::NOENT => "no identifier has this number: it was destroyed",
        Errno::INVAL => "the state of the identifier does not allow the call",
        _ => return None,
    })
}
