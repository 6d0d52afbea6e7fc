//! Services of the subnet: the connection manager of Linux 7.2 asks the subnet administrator for them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use bareverbs::{Errno, Gid};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{
    Addr, CmId, ConnParam, Error, EventChannel, IbAddr, IbService, PortSpace, ServiceKey,
};
use nix::libc::O_NONBLOCK;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::host::*;
use crate::options::kernel_is_7_2;

/// For tests that ask the subnet administrator for services.
///
/// # Errors
/// On RoCE, and before Linux 7.2.
pub(crate) fn has_services() -> Requirement {
    has_ip()?;
    device::infiniband()?;
    if kernel_is_7_2() { Ok(()) } else { Err("this kernel has no queries of services".into()) }
}

/// Methods of the subnet administrator (IBA 15.2.2).
const SET: u8 = 0x02;
const DELETE: u8 = 0x15;

/// `struct ib_user_mad_reg_req` of `rdma/ib_user_mad.h`.
#[repr(C)]
struct RegisterAgent {
    id: u32,
    method_mask: [u32; 4],
    qpn: u8,
    mgmt_class: u8,
    mgmt_class_version: u8,
    oui: [u8; 3],
    rmpp_version: u8,
}

nix::ioctl_readwrite!(register_agent, 0x1b, 1, RegisterAgent);

/// A program that registers services by MADs of its own.
struct Registrar {
    umad: File,
    agent: u32,
}

impl Registrar {
    /// Bytes of `struct ib_user_mad_hdr_old`, and of a MAD.
    const HEADER: usize = 56;
    const MAD: usize = 256;

    fn new() -> Self {
        let opened = OpenOptions::new().read(true).write(true).custom_flags(O_NONBLOCK).open(UMAD);
        let umad = opened.expect("ib_umad is loaded");
        let mut request = RegisterAgent {
            id: 0,
            method_mask: [0; 4],
            qpn: 1,
            mgmt_class: 3,
            mgmt_class_version: 2,
            oui: [0; 3],
            rmpp_version: 0,
        };
        // SAFETY: the request has the layout that the kernel reads and writes.
        unsafe { register_agent(umad.as_raw_fd(), &mut request) }.unwrap();
        Self { umad, agent: request.id }
    }

    /// Sends a request about a service. Returns the status of the response.
    fn ask(&mut self, method: u8, id: u64, gid: Gid, name: &str) -> u16 {
        let sm_lid = fs::read_to_string("/sys/class/infiniband/mlx5_0/ports/1/sm_lid").unwrap();
        let sm_lid = u16::from_str_radix(sm_lid.trim().trim_start_matches("0x"), 16).unwrap();
        let mut message = [0; Self::HEADER + Self::MAD];
        let (header, mad) = message.split_at_mut(Self::HEADER);
        header[..4].copy_from_slice(&self.agent.to_ne_bytes());
        header[8..12].copy_from_slice(&5000u32.to_ne_bytes());
        header[20..24].copy_from_slice(&1u32.to_be_bytes());
        header[24..28].copy_from_slice(&0x8001_0000u32.to_be_bytes());
        header[28..30].copy_from_slice(&sm_lid.to_be_bytes());
        mad[..4].copy_from_slice(&[1, 3, 2, method]);
        // Transaction, attribute (ServiceRecord), and the record.
        mad[12..16].copy_from_slice(&7u32.to_be_bytes());
        mad[16..18].copy_from_slice(&0x31u16.to_be_bytes());
        let record = &mut mad[56..];
        record[..8].copy_from_slice(&id.to_be_bytes());
        record[8..24].copy_from_slice(&gid.0);
        record[24..26].copy_from_slice(&[0xff, 0xff]);
        record[28..32].copy_from_slice(&[0xff; 4]);
        record[48..48 + name.len()].copy_from_slice(name.as_bytes());
        self.umad.write_all(&message).unwrap();
        let timeout = PollTimeout::try_from(TIMEOUT).unwrap();
        let fd = std::os::fd::AsFd::as_fd(&self.umad);
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout), Ok(1), "no response");
        assert_eq!(self.umad.read(&mut message).unwrap(), message.len());
        let mad = &message[Self::HEADER..];
        assert_eq!(message[4..8], [0; 4], "the request timed out");
        u16::from_be_bytes([mad[4], mad[5]])
    }
}

const UMAD: &str = "/dev/infiniband/umad0";

/// Resolves services on a new identifier.
fn resolved_services(key: ServiceKey<'_>) -> Result<(CmId, Vec<IbService>), Errno> {
    let id = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
    id.bind_addr((ip(), 0)).unwrap();
    id.resolve_ib_service(key).unwrap();
    match next_of(id.channel(), id.key()) {
        EventKind::AddrinfoResolved => {
            let services = id.ib_services().unwrap();
            Ok((id, services))
        }
        EventKind::AddrinfoError(errno) => Err(errno),
        other => panic!("{other:?}"),
    }
}

#[kernel_test(has_services)]
fn registered_services_are_resolved_by_id_and_name() {
    nothing_leaks(|| {
        let mut registrar = Registrar::new();
        let gid = device::open().default_gid(1).unwrap().gid;
        // Two of a name are more than one packet.
        for (id, name) in [(0x1001, "storage"), (0x1002, "mail"), (0x1003, "mail")] {
            assert_eq!(registrar.ask(SET, id, gid, name), 0);
        }
        let (id, found) = resolved_services(ServiceKey::Id(0x1001)).unwrap();
        let [service] = &found[..] else { panic!("{found:?}") };
        assert_eq!((service.id, service.gid, service.pkey), (0x1001, gid, 0xffff));
        assert_eq!((service.lease, &service.name[..]), (u32::MAX, &b"storage"[..]));
        let again = id.resolve_ib_service(ServiceKey::Id(0x1001)).unwrap_err();
        assert_eq!(again.errno(), Some(Errno::INVAL), "{again}");

        let (_, found) = resolved_services(ServiceKey::Name("mail")).unwrap();
        let ids: Vec<_> = found.iter().map(|service| service.id).collect();
        assert_eq!(ids, [0x1002, 0x1003]);

        assert_eq!(resolved_services(ServiceKey::Name("print")).unwrap_err(), Errno::NODATA);
        for id in [0x1001, 0x1002, 0x1003] {
            assert_eq!(registrar.ask(DELETE, id, gid, ""), 0);
        }
        assert_eq!(resolved_services(ServiceKey::Id(0x1001)).unwrap_err(), Errno::NODATA);
    });
}

#[kernel_test(has_services)]
fn route_leads_to_a_resolved_service() {
    nothing_leaks(|| {
        let mut registrar = Registrar::new();
        let (listener, addr) = listener(PortSpace::Tcp, 1);
        let gid = device::open().default_gid(1).unwrap().gid;
        let service_id = PortSpace::Tcp.service_id(addr.port());
        assert_eq!(registrar.ask(SET, service_id, gid, "echo"), 0);
        let (id, _) = resolved_services(ServiceKey::Name("echo")).unwrap();
        id.resolve_route(RESOLVE).unwrap();
        let kind = next_of(id.channel(), id.key());
        assert!(matches!(kind, EventKind::RouteResolved), "{kind:?}");
        let path = id.paths().unwrap()[0];
        assert_eq!((Gid(path.dgid), path.service_id), (gid, service_id));
        assert_eq!(registrar.ask(DELETE, service_id, gid, ""), 0);
        drop(listener);
    });
}

/// The service takes the place of the peer's address, which is then an InfiniBand address.
#[kernel_test(has_services)]
fn client_connects_to_a_resolved_service() {
    nothing_leaks(|| {
        let mut registrar = Registrar::new();
        let gid = device::open().default_gid(1).unwrap().gid;
        let new = || CmId::new(&EventChannel::new().unwrap(), PortSpace::Ib).unwrap();
        let listener = new();
        listener.bind_addr(IbAddr::new(gid, PortSpace::Ib, 0)).unwrap();
        listener.listen(1).unwrap();
        let Some(Addr::Ib(addr)) = listener.addresses().unwrap().local else { panic!() };
        assert_eq!(registrar.ask(SET, addr.service_id, gid, "echo"), 0);

        let active = new();
        active.bind_addr(IbAddr::new(gid, PortSpace::Ib, 0)).unwrap();
        active.resolve_ib_service(ServiceKey::Name("echo")).unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::AddrinfoResolved), "{kind:?}");
        active.resolve_route(RESOLVE).unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::RouteResolved), "{kind:?}");
        // More than fits with an IP address. The first byte is the kernel's.
        let mut data = [7; 92];
        active.connect(&ConnParam { private_data: &data, ..param() }).unwrap();
        let request = request(&listener);
        data[0] = 0;
        assert_eq!(request.private_data()[..], data);
        let passive = request.accept(&param()).unwrap();
        establish(&active, &passive);
        disconnect(&active, &passive);
        assert_eq!(registrar.ask(DELETE, addr.service_id, gid, ""), 0);
    });
}

#[kernel_test(crate::host::has_ip)]
fn services_need_a_subnet_administrator() {
    let id = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
    // An identifier without a device can't ask.
    match id.resolve_ib_service(ServiceKey::Id(1)) {
        Err(Error::Unsupported { .. }) => assert!(!kernel_is_7_2()),
        other => assert_eq!(errno(other), Errno::INVAL),
    }
}
