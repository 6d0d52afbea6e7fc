//! Files of the kernel and of soft devices, with a stand-in for the kernel whose commands fail.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;

use bareverbs_soft::{Fabric, SoftDevice};
use rustix::event::{EventfdFlags, eventfd};

use super::*;

/// A kernel that executes some commands, and refuses others.
#[derive(Debug, Default)]
pub(super) struct StandIn(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The errnos of the next calls of commands.
    failures: BTreeMap<u32, Vec<Errno>>,
    created: u32,
    /// The identifiers, with their addresses and the events that were read.
    ids: BTreeMap<u32, (Option<SocketAddr>, u32)>,
    listening: Vec<u32>,
}

/// The port that the stand-in gives to an identifier that is bound to none.
const OWN_PORT: u16 = 40_000;

impl StandIn {
    pub(super) fn execute(&self, number: u32, request: &[u8], response: &mut [u8]) -> Result<(), Errno> {
        fn parse<T: FromBytes>(request: &[u8]) -> T {
            T::read_from_bytes(request).expect("a request of this command")
        }
        let mut state = self.0.lock().unwrap();
        if let Some(errno) = state.failures.get_mut(&number).and_then(Vec::pop) {
            return Err(errno);
        }
        if number == CreateId::INFO.number {
            state.created += 1;
            let id = state.created;
            state.ids.insert(id, (None, 0));
            answer(response, CreateIdResp { id }.as_bytes());
        } else if number == DestroyId::INFO.number {
            let id = parse::<DestroyIdReq>(request).id;
            let (_, events_reported) = state.ids.remove(&id).ok_or(Errno::NOENT)?;
            answer(response, DestroyIdResp { events_reported }.as_bytes());
        } else if number == Bind::INFO.number {
            let request: BindReq = parse(request);
            state.ids.get_mut(&request.id).ok_or(Errno::NOENT)?.0 =
                Addr::from_kernel(&request.addr).and_then(|addr| addr.ip());
        } else if number == ResolveAddr::INFO.number {
            let request: ResolveAddrReq = parse(request);
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, OWN_PORT));
            state.ids.get_mut(&request.id).ok_or(Errno::NOENT)?.0.get_or_insert(any);
        } else if number == Query::INFO.number {
            let (addr, _) = state.ids[&parse::<QueryReq>(request).id];
            let (src_addr, src_size) =
                addr.map_or((SocketAddressStorage::zeroed(), 0), |addr| Addr::from(addr).to_kernel());
            answer(response, QueryAddrResp { src_addr, src_size, ..QueryAddrResp::zeroed() }.as_bytes());
        } else if number == Listen::INFO.number {
            state.listening.push(parse::<ListenReq>(request).id);
        } else if number == MigrateId::INFO.number {
            let (_, events_reported) = state.ids[&parse::<MigrateIdReq>(request).id];
            answer(response, MigrateIdResp { events_reported }.as_bytes());
        } else if number == GetEvent::INFO.number {
            return Err(Errno::AGAIN);
        }
        Ok(())
    }
}

/// A device, and a file for it and for a stand-in.
struct Setup {
    fabric: Fabric,
    device: SoftDevice,
    file: Arc<KernelAndSoft>,
}

impl Setup {
    fn new() -> Self {
        let fabric = Fabric::new();
        let device = SoftDevice::new(&fabric);
        let file = open(&fabric);
        Self { fabric, device, file }
    }

    fn address(&self, port: u16) -> SocketAddr {
        (self.device.address(), port).into()
    }
}

fn open(fabric: &Fabric) -> Arc<KernelAndSoft> {
    let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap().into();
    let kernel = Kernel { file, stand_in: Some(StandIn::default()) };
    KernelAndSoft::with_kernel(kernel, CmFile::on(fabric).unwrap()).unwrap()
}

/// A thread of the parent, which the child doesn't have, may hold the lock.
#[test]
#[expect(unsafe_code, reason = "the test forks")]
fn forked_child_opens_and_drops_files_without_locks_of_its_parent() {
    let Setup { file, .. } = Setup::new();
    let files = files().unwrap();
    // SAFETY: glibc makes its allocator usable in the child, which ends by a signal or `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no handler of the signal is installed.
        unsafe { libc::alarm(10) };
        let work = || drop((file, open(&Fabric::new())));
        let ended_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(i32::from(!ended_well)) }
    }
    drop(files);
    let mut status = -1;
    // SAFETY: the status is that of the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

impl KernelAndSoft {
    fn stand_in(&self) -> MutexGuard<'_, State> {
        self.kernel.stand_in.as_ref().unwrap().0.lock().unwrap()
    }

    /// Lets the next calls of a command of the stand-in fail.
    fn fail<C: Command>(&self, errnos: &[Errno]) {
        self.stand_in().failures.insert(C::INFO.number, errnos.iter().rev().copied().collect());
    }

    fn call<C: Command>(&self, request: C::Request) -> Result<C::Response, Errno>
    where
        C::Request: Copy,
    {
        let mut response = C::Response::new_zeroed();
        self.execute::<C>(request, response.as_mut_bytes()).map(|()| response)
    }

    fn create_id(&self, uid: u64) -> u32 {
        self.call::<CreateId>(CreateIdReq { uid, ps: PortSpace::TCP, ..CreateIdReq::zeroed() }).unwrap().id
    }

    fn bind_id(&self, id: u32, addr: impl Into<SocketAddr>) -> Result<(), Errno> {
        let (addr, addr_size) = Addr::from(addr.into()).to_kernel();
        self.call::<Bind>(BindReq { id, addr_size, addr, ..BindReq::zeroed() })
    }

    fn resolve(&self, id: u32, addr: impl Into<SocketAddr>) -> Result<(), Errno> {
        let (dst_addr, dst_size) = Addr::from(addr.into()).to_kernel();
        let request = ResolveAddrReq { id, timeout_ms: 100, dst_size, dst_addr, ..ResolveAddrReq::zeroed() };
        self.call::<ResolveAddr>(request)
    }

    fn listen(&self, id: u32) -> Result<(), Errno> {
        self.call::<Listen>(ListenReq { id, backlog: 0 })
    }

    fn destroy_id(&self, id: u32) -> Result<u32, Errno> {
        Ok(self.call::<DestroyId>(DestroyIdReq { id, ..DestroyIdReq::zeroed() })?.events_reported)
    }

    fn next(&self) -> Result<EventResp, Errno> {
        self.call::<GetEvent>(GetEventReq::zeroed())
    }

    fn soft_port(&self, id: u32) -> Option<u16> {
        let (addr, _) = self.soft_address(self.soft_id(id)?).unwrap()?;
        Some(Addr::from_kernel(&addr)?.port())
    }

    fn kernel_port(&self, id: u32) -> Option<u16> {
        self.stand_in().ids[&id].0.map(|addr| addr.port())
    }
}

fn any(port: u16) -> (Ipv4Addr, u16) {
    (Ipv4Addr::UNSPECIFIED, port)
}

#[test]
fn destroy_reports_the_events_of_both() {
    let setup = Setup::new();
    for is_soft in [true, false] {
        let id = setup.file.create_id(7);
        let soft_number = setup.file.soft_id(id).unwrap().number;
        if is_soft {
            setup.file.resolve(id, setup.address(1)).unwrap();
        } else {
            let event =
                WriteCmEventReq { id: soft_number, event: EventType::USER, ..WriteCmEventReq::zeroed() };
            setup.file.soft.execute(WriteCmEvent::INFO.number, event.as_bytes(), &mut []).unwrap();
        }
        // The event has the number that the program knows.
        let event = setup.file.next().unwrap();
        assert_eq!((event.uid, event.id), (7, id));
        setup.file.stand_in().ids.get_mut(&id).unwrap().1 = 2;
        assert_eq!(setup.file.destroy_id(id), Ok(3));
        assert!(setup.file.stand_in().ids.is_empty());
        assert_eq!(setup.file.soft.unbind(soft_number), Err(Errno::NOENT));
        assert_eq!(setup.file.destroy_id(id), Err(Errno::NOENT));
    }
}

#[test]
fn identifier_that_the_kernel_does_not_destroy_stays() {
    let setup = Setup::new();
    let id = setup.file.create_id(7);
    setup.file.resolve(id, setup.address(1)).unwrap();
    setup.file.fail::<DestroyId>(&[Errno::ACCESS]);
    assert_eq!(setup.file.destroy_id(id), Err(Errno::ACCESS));
    assert!(setup.file.is_soft(id));
    assert_eq!(setup.file.destroy_id(id), Ok(0));
}

#[test]
fn identifier_is_created_on_both_or_neither() {
    let setup = Setup::new();
    setup.file.fail::<CreateId>(&[Errno::NOMEM]);
    let request = CreateIdReq { uid: 1, ps: PortSpace::TCP, ..CreateIdReq::zeroed() };
    assert_eq!(setup.file.call::<CreateId>(request).map(|created| created.id), Err(Errno::NOMEM));
    assert_eq!(setup.file.soft.unbind(CmFile::FIRST_ID), Err(Errno::NOENT));
    // The soft devices know no such port space.
    let request = CreateIdReq { ps: bareverbs_uapi::rdma_cm::PortSpace(1), ..request };
    assert_eq!(setup.file.call::<CreateId>(request).map(|created| created.id), Err(Errno::INVAL));
    assert!(setup.file.stand_in().ids.is_empty());
}

#[test]
fn identifier_is_bound_to_all_devices_of_both_or_neither() {
    let setup = Setup::new();
    let (id, other) = (setup.file.create_id(1), setup.file.create_id(2));
    setup.file.fail::<Bind>(&[Errno::ACCESS]);
    assert_eq!(setup.file.bind_id(id, any(800)), Err(Errno::ACCESS));
    assert_eq!(setup.file.soft_port(id), None);
    // The port of the soft devices is free again.
    setup.file.bind_id(other, any(800)).unwrap();
    // Now it is not: the kernel's identifier stays unbound.
    assert_eq!(setup.file.bind_id(id, any(800)), Err(Errno::ADDRNOTAVAIL));
    assert_eq!([setup.file.soft_port(id), setup.file.kernel_port(id)], [None; 2]);
    setup.file.bind_id(id, any(801)).unwrap();
    assert_eq!([setup.file.soft_port(id), setup.file.kernel_port(id)], [Some(801); 2]);
}

#[test]
fn free_port_is_free_on_both() {
    let setup = Setup::new();
    let id = setup.file.create_id(1);
    setup.file.fail::<Bind>(&[Errno::ADDRNOTAVAIL, Errno::ADDRINUSE]);
    setup.file.bind_id(id, any(0)).unwrap();
    let port = setup.file.soft_port(id).unwrap();
    assert_eq!(setup.file.kernel_port(id), Some(port));
    // The ports that the kernel refused are free.
    let other = setup.file.create_id(2);
    setup.file.bind_id(other, any(port - 2)).unwrap();
    let unbound = setup.file.create_id(3);
    setup.file.fail::<Bind>(&[Errno::NODEV]);
    assert_eq!(setup.file.bind_id(unbound, any(0)), Err(Errno::NODEV));
    assert_eq!(setup.file.soft_port(unbound), None);
    setup.file.fail::<Bind>(&[Errno::ADDRINUSE; EPHEMERAL_PORTS]);
    assert_eq!(setup.file.bind_id(unbound, any(0)), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(setup.file.soft_port(unbound), None);
}

#[test]
fn identifier_listens_on_both_or_neither() {
    let setup = Setup::new();
    let id = setup.file.create_id(1);
    setup.file.fail::<Listen>(&[Errno::NOMEM]);
    assert_eq!(setup.file.listen(id), Err(Errno::NOMEM));
    let port = setup.file.soft_port(id).unwrap();
    // As on the kernel, it is bound.
    assert_eq!(setup.file.kernel_port(id), Some(port));
    let number = setup.file.soft_id(id).unwrap().number;
    assert_eq!(setup.file.soft.unlisten(number), Err(Errno::INVAL));
    setup.file.listen(id).unwrap();
    assert_eq!(setup.file.stand_in().listening, [id]);
    setup.file.soft.unlisten(number).unwrap();
    // The soft devices refuse it: the kernel is not asked.
    let bound = setup.file.create_id(2);
    setup.file.bind_id(bound, any(0)).unwrap();
    setup.file.soft.unbind(setup.file.soft_id(bound).unwrap().number).unwrap();
    let taken = setup.file.kernel_port(bound).unwrap();
    let other = setup.file.create_id(3);
    setup.file.bind_id(other, setup.address(taken)).unwrap();
    assert_eq!(setup.file.listen(bound), Err(Errno::ADDRNOTAVAIL));
    assert_eq!(setup.file.stand_in().listening, [id]);
    setup.file.destroy_id(other).unwrap();
    setup.file.listen(bound).unwrap();
    assert_eq!(setup.file.soft_port(bound), Some(taken));
}

#[test]
fn failed_resolution_leaves_the_ports_of_both_alike() {
    let setup = Setup::new();
    let id = setup.file.create_id(1);
    let far = SocketAddr::from((IpAddr::from([192, 0, 2, 1]), 5));
    setup.file.fail::<ResolveAddr>(&[Errno::NODEV]);
    assert_eq!(setup.file.resolve(id, far), Err(Errno::NODEV));
    assert_eq!([setup.file.soft_port(id), setup.file.kernel_port(id)], [None; 2]);
    // A kernel that leaves it bound.
    setup.file.stand_in().ids.get_mut(&id).unwrap().0 = Some(any(OWN_PORT).into());
    setup.file.listen(id).unwrap();
    assert_eq!(setup.file.soft_port(id), Some(OWN_PORT));
    let id = setup.file.create_id(2);
    setup.file.resolve(id, far).unwrap();
    assert!(!setup.file.has_soft_id(id));
}

#[test]
fn identifier_moves_with_both_or_neither() {
    let setup = Setup::new();
    let (old, new) = (&setup.file, open(&setup.fabric));
    // Numbers of the kernel are unique in the system.
    new.stand_in().created = 100;
    let id = old.create_id(7);
    new.stand_in().ids.insert(id, (None, 2));
    old.resolve(id, setup.address(1)).unwrap();
    old.next().unwrap();
    let request = MigrateIdReq { id, fd: raw_fd(&**old), ..MigrateIdReq::zeroed() };
    new.fail::<MigrateId>(&[Errno::NOMEM]);
    let migrated = |request| new.call::<MigrateId>(request).map(|migrated| migrated.events_reported);
    assert_eq!(migrated(request), Err(Errno::NOMEM));
    assert!(old.is_soft(id) && !new.is_soft(id));
    let route = ResolveRouteReq { id, timeout_ms: 1 };
    old.call::<ResolveRoute>(route).unwrap();
    assert_eq!(migrated(request), Ok(3));
    assert!(new.is_soft(id) && !old.is_soft(id));
    // The event that was not read moves along.
    assert_eq!(old.next().map(drop), Err(Errno::AGAIN));
    let event = new.next().unwrap();
    assert_eq!((event.id, event.event), (id, EventType::ROUTE_RESOLVED));
    // To the file that it is on.
    assert_eq!(migrated(MigrateIdReq { fd: raw_fd(&*new), ..request }), Ok(4));
    assert!(new.is_soft(id));
    let unknown = MigrateIdReq { id: CmFile::FIRST_ID + 99, ..request };
    assert_eq!(migrated(unknown), Err(Errno::NOENT));
}

#[test]
fn closed_files_are_forgotten() {
    let setup = Setup::new();
    let fd = setup.file.as_fd().as_raw_fd();
    let weak = Arc::downgrade(&setup.file);
    assert!(files().unwrap()[&fd].ptr_eq(&weak));
    drop(setup.file);
    assert!(files().unwrap().get(&fd).is_none_or(|other| !other.ptr_eq(&weak)));
}
