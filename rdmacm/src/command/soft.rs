//! Files that serve soft devices, alone or beside the kernel's.
//!
//! An identifier of a file that serves both has the number of the kernel's. Beside it there is one of
//! the soft devices until an address decides for the kernel. If it decides for a soft device, commands
//! go to that one. An identifier that is bound to all devices listens on both.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bareverbs_provider::process::PerProcess;
use bareverbs_soft::CmFile;
use bareverbs_uapi::rdma_cm::address::SocketAddressStorage;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::write_to_kernel;
use crate::Addr;
use crate::ready::combine;

/// The open files that serve both, by descriptor: MIGRATE_ID names a file so.
static FILES: PerProcess<Mutex<Files>> = PerProcess::empty();

type Files = BTreeMap<RawFd, Weak<KernelAndSoft>>;

/// The number of ports from which a bind to port 0 takes one.
const EPHEMERAL_PORTS: usize = 60999 - 32768 + 1;

/// Those of this process.
fn files() -> Result<MutexGuard<'static, Files>, Errno> {
    Ok(FILES.get()?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The kernel's file.
#[derive(Debug)]
struct Kernel {
    file: File,
    #[cfg(test)]
    stand_in: Option<tests::StandIn>,
}

impl Kernel {
    fn execute<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno> {
        #[cfg(test)]
        if let Some(stand_in) = &self.stand_in {
            return stand_in.execute(C::INFO.number, request.as_bytes(), response);
        }
        write_to_kernel::<C>(&self.file, request, response)
    }
}

/// The kernel's file, and that of the soft devices.
///
/// Commands of both go to the soft devices first, where they can be taken back.
#[derive(Debug)]
pub(super) struct KernelAndSoft {
    kernel: Kernel,
    soft: CmFile,
    /// Readable while one of them is.
    ready: OwnedFd,
    soft_ids: Mutex<SoftIds>,
    /// Whether the next event is looked for in the kernel's file first.
    kernel_first: AtomicBool,
}

/// The identifiers of soft devices that have a number of the kernel.
#[derive(Debug, Default)]
struct SoftIds {
    /// By the kernel's number.
    by_kernel: BTreeMap<u32, SoftId>,
    /// The kernel's number by that of the soft devices.
    kernel_numbers: BTreeMap<u32, u32>,
}

impl SoftIds {
    fn insert(&mut self, kernel: u32, soft_id: SoftId) {
        self.kernel_numbers.insert(soft_id.number, kernel);
        self.by_kernel.insert(kernel, soft_id);
    }

    fn remove(&mut self, kernel: u32) -> Option<SoftId> {
        let soft_id = self.by_kernel.remove(&kernel)?;
        self.kernel_numbers.remove(&soft_id.number);
        Some(soft_id)
    }
}

#[derive(Clone, Copy, Debug)]
struct SoftId {
    number: u32,
    /// Whether the identifier is one of a soft device.
    is_soft: bool,
}

impl KernelAndSoft {
    pub(super) fn new(kernel: File, soft: CmFile) -> rustix::io::Result<Arc<Self>> {
        Self::with_kernel(
            Kernel {
                file: kernel,
                #[cfg(test)]
                stand_in: None,
            },
            soft,
        )
    }

    fn with_kernel(kernel: Kernel, soft: CmFile) -> rustix::io::Result<Arc<Self>> {
        let ready = combine(&[(kernel.file.as_fd(), 0), (soft.as_fd(), 1)])?;
        let descriptor = ready.as_raw_fd();
        let (soft_ids, kernel_first) = (Mutex::default(), AtomicBool::new(false));
        let file = Arc::new(Self { kernel, soft, ready, soft_ids, kernel_first });
        files()?.insert(descriptor, Arc::downgrade(&file));
        Ok(file)
    }

    fn soft_ids(&self) -> MutexGuard<'_, SoftIds> {
        // No call panics between two changes that belong together.
        self.soft_ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifier of soft devices with a number of the kernel.
    fn soft_id(&self, id: u32) -> Option<SoftId> {
        self.soft_ids().by_kernel.get(&id).copied()
    }

    /// Whether commands of an identifier go to the soft devices.
    pub(super) fn is_soft(&self, id: u32) -> bool {
        id >= CmFile::FIRST_ID || self.soft_id(id).is_some_and(|soft_id| soft_id.is_soft)
    }

    /// Whether an identifier is not one of the kernel alone.
    pub(super) fn has_soft_id(&self, id: u32) -> bool {
        id >= CmFile::FIRST_ID || self.soft_id(id).is_some()
    }

    pub(super) fn kernel(&self) -> &File {
        &self.kernel.file
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
        if let Ok(request) = MigrateIdReq::read_from_bytes(request.as_bytes())
            && number == MigrateId::INFO.number
        {
            return self.migrate(request, response);
        }
        let Some(id) = id_of::<C>(&request) else {
            return self.kernel.execute::<C>(request, response);
        };
        if id >= CmFile::FIRST_ID {
            return self.soft.execute(number, request.as_bytes(), response);
        }
        // Memberships have numbers of their own.
        let soft_id = self.soft_id(id).filter(|_| number != LeaveMcast::INFO.number);
        match soft_id {
            None => self.kernel.execute::<C>(request, response),
            Some(_) if number == DestroyId::INFO.number => self.destroy(id, response),
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
            return match bind_to_all::<C>(&request) {
                Some(request) => self.bind_both(id, soft_id, request),
                None => self.decide::<C>(id, soft_id, request, response),
            };
        }
        if number == ResolveAddr::INFO.number || number == ResolveIp::INFO.number {
            return self.decide::<C>(id, soft_id, request, response);
        }
        if number == Listen::INFO.number {
            self.bind_for_listen(id, soft_id)?;
            self.execute_on_soft::<C>(soft_id, &request, response)?;
            // The error is that of the kernel's command.
            return self
                .kernel
                .execute::<C>(request, response)
                .inspect_err(|_| _ = self.soft.unlisten(soft_id.number));
        }
        self.kernel.execute::<C>(request, response)?;
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
        let is_bound = self.soft_address(soft_id)?.is_some();
        let decided = self.execute_on_soft::<C>(soft_id, &request, response);
        if decided.is_err() && !is_bound {
            // A resolution that fails leaves its identifier bound. One that was not bound is not.
            let _ = self.soft.unbind(soft_id.number);
        }
        match decided {
            Err(Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::NODEV) => {
                self.kernel.execute::<C>(request, response)?;
                self.soft_ids().remove(id);
                // It fails only if another thread has destroyed the identifier.
                let _ = self.destroy_soft_id(soft_id);
                Ok(())
            }
            Ok(()) => {
                self.soft_ids().insert(id, SoftId { is_soft: true, ..soft_id });
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }

    /// Binds both identifiers to an unspecified address and the same port, or neither. For port 0, the
    /// soft devices propose free ports until the kernel has one free, too.
    fn bind_both(&self, id: u32, soft_id: SoftId, request: BindReq) -> Result<(), Errno> {
        let is_free_port = Addr::from_kernel(&request.addr).is_some_and(|addr| addr.port() == 0);
        for _ in 0..if is_free_port { EPHEMERAL_PORTS } else { 1 } {
            self.execute_on_soft::<Bind>(soft_id, &BindReq { id: soft_id.number, ..request }, &mut [])?;
            let bound = self.soft_address(soft_id).and_then(|bound| {
                let (addr, _) = bound.ok_or(Errno::INVAL)?;
                self.kernel.execute::<Bind>(BindReq { id, addr, ..request }, &mut [])
            });
            match bound {
                Ok(()) => return Ok(()),
                Err(errno) => {
                    let _ = self.soft.unbind(soft_id.number);
                    if !is_free_port || !matches!(errno, Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) {
                        return Err(errno);
                    }
                }
            }
        }
        Err(Errno::ADDRNOTAVAIL)
    }

    /// Binds both identifiers as the kernel's LISTEN does: to all devices and a free port, unless they
    /// are bound. A resolution that failed may have bound that of the kernel alone.
    fn bind_for_listen(&self, id: u32, soft_id: SoftId) -> Result<(), Errno> {
        if self.soft_address(soft_id)?.is_some() {
            return Ok(());
        }
        let request = |(addr, addr_size)| BindReq { id, addr_size, addr, ..BindReq::zeroed() };
        let mut bound = QueryAddrResp::new_zeroed();
        self.kernel.execute::<Query>(query_address(id), bound.as_mut_bytes())?;
        if bound.src_size == 0 {
            let any = Addr::from((std::net::Ipv4Addr::UNSPECIFIED, 0));
            return self.bind_both(id, soft_id, request(any.to_kernel()));
        }
        self.execute_on_soft::<Bind>(soft_id, &request((bound.src_addr, bound.src_size)), &mut [])
    }

    /// The address to which the identifier of soft devices is bound, with its size.
    fn soft_address(&self, soft_id: SoftId) -> Result<Option<(SocketAddressStorage, u16)>, Errno> {
        let mut bound = QueryAddrResp::new_zeroed();
        let request = query_address(soft_id.number);
        self.soft.execute(Query::INFO.number, request.as_bytes(), bound.as_mut_bytes())?;
        Ok((bound.src_size != 0).then_some((bound.src_addr, bound.src_size)))
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
        let mut soft_id = CreateIdResp::zeroed();
        self.soft.execute(C::INFO.number, request.as_bytes(), soft_id.as_mut_bytes())?;
        let soft_id = SoftId { number: soft_id.id, is_soft: false };
        let created = self.kernel.execute::<C>(request, response);
        let created = created.and_then(|()| response.first_chunk().ok_or(Errno::NOSPC));
        match created {
            Ok(id) => {
                self.soft_ids().insert(u32::from_ne_bytes(*id), soft_id);
                Ok(())
            }
            Err(errno) => {
                let _ = self.destroy_soft_id(soft_id);
                Err(errno)
            }
        }
    }

    /// Destroys an identifier of both. The response counts the events of both that were read.
    fn destroy(&self, id: u32, response: &mut [u8]) -> Result<(), Errno> {
        // Before the kernel gives the number to another identifier.
        let soft_id = self.soft_ids().remove(id);
        let mut destroyed = DestroyIdResp::zeroed();
        let request = DestroyIdReq { id, ..DestroyIdReq::zeroed() };
        if let Err(errno) = self.kernel.execute::<DestroyId>(request, destroyed.as_mut_bytes()) {
            soft_id.into_iter().for_each(|soft_id| self.soft_ids().insert(id, soft_id));
            return Err(errno);
        }
        let reported = soft_id.map_or(Ok(0), |soft_id| self.destroy_soft_id(soft_id))?;
        destroyed.events_reported = destroyed.events_reported.wrapping_add(reported);
        answer(response, destroyed.as_bytes());
        Ok(())
    }

    /// Destroys an identifier of soft devices. Returns the number of its events that were read.
    fn destroy_soft_id(&self, soft_id: SoftId) -> Result<u32, Errno> {
        let request = DestroyIdReq { id: soft_id.number, ..DestroyIdReq::zeroed() };
        let mut destroyed = DestroyIdResp::zeroed();
        self.soft.execute(DestroyId::INFO.number, request.as_bytes(), destroyed.as_mut_bytes())?;
        Ok(destroyed.events_reported)
    }

    /// The next event of either file, in turn.
    fn next_event<C: Command>(&self, request: C::Request, response: &mut [u8]) -> Result<(), Errno>
    where
        C::Request: Copy,
    {
        let kernel_first = self.kernel_first.fetch_xor(true, Ordering::Relaxed);
        for is_kernel in [kernel_first, !kernel_first] {
            let read = match is_kernel {
                true => self.kernel.execute::<C>(request, response),
                false => self.next_soft_event(request.as_bytes(), response),
            };
            if read != Err(Errno::AGAIN) {
                return read;
            }
        }
        Err(Errno::AGAIN)
    }

    /// The next event of soft devices. It has the kernel's number of its identifier, if there is one.
    fn next_soft_event(&self, request: &[u8], response: &mut [u8]) -> Result<(), Errno> {
        self.soft.execute(GetEvent::INFO.number, request, response)?;
        let mut event = EventResp::zeroed();
        let len = response.len().min(size_of::<EventResp>());
        event.as_mut_bytes()[..len].copy_from_slice(&response[..len]);
        let is_of_membership = [EventType::MULTICAST_JOIN, EventType::MULTICAST_ERROR].contains(&event.event);
        if let Some(kernel) = self.soft_ids().kernel_numbers.get(&event.id).filter(|_| !is_of_membership) {
            event.id = *kernel;
            answer(response, event.as_bytes());
        }
        Ok(())
    }

    /// MIGRATE_ID: moves an identifier of the file with a descriptor to this file, on both or neither.
    /// The response counts the events of both that were read.
    fn migrate(&self, request: MigrateIdReq, response: &mut [u8]) -> Result<(), Errno> {
        let MigrateIdReq { id, fd, .. } = request;
        let old = files()?.get(&fd.cast_signed()).and_then(Weak::upgrade);
        let (kernel_fd, soft_fd) =
            old.as_ref().map_or((fd, fd), |old| (raw_fd(&old.kernel.file), raw_fd(&old.soft)));
        let soft_id = old.as_ref().and_then(|old| old.soft_id(id));
        let mut migrated = MigrateIdResp::zeroed();
        if id >= CmFile::FIRST_ID {
            migrated.events_reported = migrate(&self.soft, id, soft_fd)?;
        }
        if let Some(soft_id) = soft_id {
            migrated.events_reported = migrate(&self.soft, soft_id.number, soft_fd)?;
        }
        if id < CmFile::FIRST_ID {
            let mut by_kernel = MigrateIdResp::zeroed();
            let request = MigrateIdReq { id, fd: kernel_fd, ..MigrateIdReq::zeroed() };
            if let Err(errno) = self.kernel.execute::<MigrateId>(request, by_kernel.as_mut_bytes()) {
                if let (Some(soft_id), Some(old)) = (soft_id, &old) {
                    let _ = migrate(&old.soft, soft_id.number, raw_fd(&self.soft));
                }
                return Err(errno);
            }
            migrated.events_reported = migrated.events_reported.wrapping_add(by_kernel.events_reported);
        }
        if let Some(old) = old {
            let soft_id = old.soft_ids().remove(id);
            soft_id.into_iter().for_each(|soft_id| self.soft_ids().insert(id, soft_id));
        }
        answer(response, migrated.as_bytes());
        Ok(())
    }
}

impl Drop for KernelAndSoft {
    fn drop(&mut self) {
        if let Ok(mut files) = files() {
            files.remove(&self.ready.as_raw_fd());
        }
    }
}

impl AsFd for KernelAndSoft {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

pub(super) fn raw_fd(file: &impl AsFd) -> u32 {
    file.as_fd().as_raw_fd().cast_unsigned()
}

/// Moves an identifier of soft devices from the file with a descriptor to another one. Returns the number
/// of its events that were read.
fn migrate(file: &CmFile, id: u32, fd: u32) -> Result<u32, Errno> {
    let request = MigrateIdReq { id, fd, ..MigrateIdReq::zeroed() };
    let mut response = MigrateIdResp::zeroed();
    file.execute(MigrateId::INFO.number, request.as_bytes(), response.as_mut_bytes())?;
    Ok(response.events_reported)
}

/// Writes a response.
fn answer(response: &mut [u8], bytes: &[u8]) {
    let len = bytes.len().min(response.len());
    response[..len].copy_from_slice(&bytes[..len]);
}

fn query_address(id: u32) -> QueryReq {
    QueryReq { id, option: QueryOption::ADDR, ..QueryReq::zeroed() }
}

fn id_offset<C: Command>() -> Option<usize> {
    C::INFO.request.fields.iter().find(|field| field.rust == "id").map(|field| field.offset)
}

/// The identifier that a request names.
fn id_of<C: Command>(request: &C::Request) -> Option<u32> {
    let at = id_offset::<C>()?;
    request.as_bytes().get(at..)?.first_chunk().map(|id| u32::from_ne_bytes(*id))
}

/// BIND of a request of BIND or BIND_IP to an unspecified address. `None` if it has another address.
fn bind_to_all<C: Command>(request: &C::Request) -> Option<BindReq> {
    let bytes = request.as_bytes();
    let request = match BindReq::read_from_bytes(bytes) {
        Ok(request) => request,
        Err(_) => {
            let BindIpReq { id, addr, .. } = BindIpReq::read_from_bytes(bytes).ok()?;
            let (addr, addr_size) = Addr::from_ip_kernel(addr)?.to_kernel();
            BindReq { id, addr_size, addr, ..BindReq::zeroed() }
        }
    };
    let addr = Addr::from_kernel(&request.addr)?.ip()?;
    addr.ip().is_unspecified().then_some(request)
}

#[cfg(test)]
mod tests;
