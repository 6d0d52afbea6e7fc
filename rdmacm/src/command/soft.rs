//! Files that serve soft devices, alone or beside the kernel's.
//!
//! An identifier of a file that serves both has the number of the kernel's. Beside it there is one of the soft
//! devices, its twin, until an address decides for the kernel. If it decides for a soft device, commands go to
//! the twin. An identifier that is bound to all devices listens on both.

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

/// The first number of an identifier of soft devices. Those of the kernel are below.
pub(crate) const FIRST_SOFT: u32 = 0x8000_0000;

/// The kernel's file, and that of the soft devices.
#[derive(Debug)]
pub(super) struct Both {
    kernel: File,
    soft: CmFile,
    /// Readable while one of them is.
    ready: OwnedFd,
    /// By the kernel's number.
    twins: Mutex<BTreeMap<u32, Twin>>,
    /// Whether the next event is looked for in the kernel's file first.
    kernel_first: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Twin {
    number: u32,
    /// Whether the identifier is one of a soft device.
    is_soft: bool,
}

impl Both {
    pub(super) fn new(kernel: File, soft: CmFile) -> rustix::io::Result<Self> {
        let ready = combine(&[(kernel.as_fd(), 0), (soft.as_fd(), 1)])?;
        let (twins, kernel_first) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { kernel, soft, ready, twins, kernel_first })
    }

    fn twins(&self) -> MutexGuard<'_, BTreeMap<u32, Twin>> {
        // No call panics between two changes that belong together.
        self.twins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether commands of an identifier go to the soft devices.
    pub(super) fn is_soft(&self, id: u32) -> bool {
        id >= FIRST_SOFT || self.twins().get(&id).is_some_and(|twin| twin.is_soft)
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
        if id >= FIRST_SOFT {
            return self.soft.execute(number, request.as_bytes(), response);
        }
        // Memberships have numbers of their own.
        let twin = self.twins().get(&id).copied().filter(|_| number != LeaveMcast::INFO.number);
        match twin {
            None => write_to_kernel::<C>(&self.kernel, request, response),
            Some(twin) if number == DestroyId::INFO.number => {
                self.twins().remove(&id);
                let destroyed = self.execute_on_soft::<C>(twin, &request, response);
                // The kernel's identifier of a soft one was never used.
                let also = write_to_kernel::<C>(&self.kernel, request, response);
                if twin.is_soft { destroyed } else { also }
            }
            Some(twin) if twin.is_soft => self.execute_on_soft::<C>(twin, &request, response),
            Some(twin) => self.execute_undecided::<C>(id, twin, request, response),
        }
    }

    /// Executes a command of an identifier whose address is of no device yet, or of all devices.
    fn execute_undecided<C: Command>(
        &self,
        id: u32,
        twin: Twin,
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
                return self.bind_twin(id, twin);
            }
            return self.decide::<C>(id, twin, request, response);
        }
        if number == ResolveAddr::INFO.number || number == ResolveIp::INFO.number {
            return self.decide::<C>(id, twin, request, response);
        }
        write_to_kernel::<C>(&self.kernel, request, response)?;
        if number == Listen::INFO.number {
            // An identifier that was not bound is bound now.
            match self.bind_twin(id, twin) {
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
            return self.execute_on_soft::<C>(twin, &request, response);
        }
        if number == SetOption::INFO.number {
            return self.execute_on_soft::<C>(twin, &request, response);
        }
        Ok(())
    }

    /// Lets the soft devices execute a command with an address. If no device has or reaches it, the kernel does.
    fn decide<C: Command>(
        &self,
        id: u32,
        twin: Twin,
        request: C::Request,
        response: &mut [u8],
    ) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        match self.execute_on_soft::<C>(twin, &request, response) {
            Err(Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::NODEV) => {
                write_to_kernel::<C>(&self.kernel, request, response)?;
                self.twins().remove(&id);
                let request = DestroyIdReq { id: twin.number, ..DestroyIdReq::zeroed() };
                let _ = self.soft.execute(DestroyId::INFO.number, request.as_bytes(), &mut [0; 4]);
                Ok(())
            }
            Ok(()) => {
                self.twins().insert(id, Twin { is_soft: true, ..twin });
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Binds the twin to the address and the port of the kernel's identifier.
    fn bind_twin(&self, id: u32, twin: Twin) -> Result<(), Errno> {
        let mut bound = QueryAddrResp::new_zeroed();
        let request = QueryReq { id, option: QueryOption::ADDR, ..QueryReq::zeroed() };
        write_to_kernel::<Query>(&self.kernel, request, bound.as_mut_bytes())?;
        let (addr, addr_size) = (bound.src_addr, bound.src_size);
        let request = BindReq { id: twin.number, addr_size, addr, ..BindReq::zeroed() };
        self.soft.execute(Bind::INFO.number, request.as_bytes(), &mut [])
    }

    fn execute_on_soft<C: Command>(
        &self,
        twin: Twin,
        request: &C::Request,
        response: &mut [u8],
    ) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        let mut bytes = request.as_bytes().to_vec();
        if let Some(at) = id_offset::<C>() {
            bytes[at..at + 4].copy_from_slice(&twin.number.to_ne_bytes());
        }
        self.soft.execute(C::INFO.number, &bytes, response)
    }

    fn create<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        write_to_kernel::<C>(&self.kernel, request, response)?;
        let mut twin = CreateIdResp::zeroed();
        self.soft.execute(C::INFO.number, request.as_bytes(), twin.as_mut_bytes())?;
        if let Some(id) = response.first_chunk() {
            self.twins().insert(u32::from_ne_bytes(*id), Twin { number: twin.id, is_soft: false });
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
        let twin = old.twins().get(&id).copied();
        if id < FIRST_SOFT {
            let request = MigrateIdReq { id, fd: fd(&old.kernel), ..MigrateIdReq::zeroed() };
            let mut response = MigrateIdResp::zeroed();
            write_to_kernel::<MigrateId>(&self.kernel, request, response.as_mut_bytes())?;
        }
        if id >= FIRST_SOFT || twin.is_some() {
            let number = twin.map_or(id, |twin| twin.number);
            migrate(&self.soft, number, &old.soft)?;
        }
        if let Some(twin) = old.twins().remove(&id) {
            self.twins().insert(id, twin);
        }
        Ok(())
    }
}

impl AsFd for Both {
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
