//! Commands on soft devices, as providers send them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::mapping::Protection;
use bareverbs_soft::{Fabric, Resources, SoftDevice};
use bareverbs_uapi::rxe::{
    CreateCqResp as CqResp, CreateQpResp as QpResp, CreateSrqResp as SrqResp, ModifySrqCmd,
    ResizeCqResp as CqResizeResp,
};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::verbs_values::{
    EventType, MrReregFlags, Mtu, MwType, QpAttrMask as Mask, QpState, SrqAttrMask,
};
use bareverbs_uapi::write::structs::*;
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const RC: u8 = 2;
const UD: u8 = 4;

/// A context.
struct Opened {
    file: DeviceFile,
}

/// An object's handle and the driver's response.
type Made<T> = (u32, T);

impl Opened {
    fn new(device: &SoftDevice) -> Self {
        let file = device.open().unwrap();
        // SAFETY: no payload.
        unsafe { command::get_context(&file, DriverPayload::default()) }.unwrap();
        Self { file }
    }

    fn invoke<C: WriteCommand>(&self, request: &C::Request) -> Result<C::Response, Errno>
    where
        C::Response: FromZeros,
    {
        let mut response = C::Response::new_zeroed();
        // SAFETY: requests of these tests register memory that outlives the context only.
        unsafe { self.file.invoke::<C>(request, &mut response) }.map_err(|error| error.errno)?;
        Ok(response)
    }

    /// The same with a response of the driver.
    fn invoke_driver<C: WriteCommand, D: FromBytes + IntoBytes>(
        &self,
        request: &C::Request,
    ) -> Result<(C::Response, D), Errno>
    where
        C::Response: FromZeros,
    {
        let (mut response, mut driver) = (C::Response::new_zeroed(), D::new_zeroed());
        let mut call = write::invoke::<C>(self.file.driver_id(), request, &mut response);
        call.driver_output(driver.as_mut_bytes());
        // SAFETY: the responses are borrowed.
        unsafe { self.file.execute(&mut call) }.map_err(|error| error.errno)?;
        Ok((response, driver))
    }

    fn pd(&self) -> u32 {
        self.invoke::<write::AllocPd>(&AllocPdReq::zeroed()).unwrap().pd_handle
    }

    fn channel(&self) -> OwnedFd {
        command::create_comp_channel(&self.file).unwrap()
    }

    fn cq_on(&self, channel: i32, user_handle: u64, cqe: u32) -> Result<Made<CqResp>, Errno> {
        let request = CreateCqReq { user_handle, cqe, comp_channel: channel, ..CreateCqReq::zeroed() };
        self.invoke_driver::<write::CreateCq, CqResp>(&request)
            .map(|(response, driver)| (response.cq_handle, driver))
    }

    fn cq(&self) -> u32 {
        self.cq_on(-1, 0, 16).unwrap().0
    }

    fn qp(&self, pd: u32, cq: u32, qp_type: u8) -> Result<Made<QpResp>, Errno> {
        let mut request = CreateQpReq {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..CreateQpReq::zeroed()
        };
        request.qp_type = qp_type;
        self.invoke_driver::<write::CreateQp, QpResp>(&request)
            .map(|(response, driver)| (response.qp_handle, driver))
    }

    fn mr(&self, pd: u32, memory: &[u64]) -> Result<RegMrResp, Errno> {
        let start = memory.as_ptr().expose_provenance() as u64;
        let length = size_of_val(memory) as u64;
        let access_flags = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let request =
            RegMrReq { start, length, hca_va: start, pd_handle: pd, access_flags, ..RegMrReq::zeroed() };
        self.invoke::<write::RegMr>(&request)
    }
}

fn errno<T>(result: Result<T, IoctlError>) -> Result<T, Errno> {
    result.map_err(|error| error.errno)
}

/// Reads a record without waiting.
fn read<const N: usize>(fd: BorrowedFd<'_>) -> Result<[u8; N], Errno> {
    rustix::io::ioctl_fionbio(fd, true)?;
    let mut record = [0; N];
    match rustix::io::read(fd, &mut record) {
        Ok(0) => Err(Errno::IO),
        result => result.map(|_| record),
    }
}

#[test]
fn devices_of_a_fabric_have_addresses_of_their_own() {
    let fabric = Fabric::new();
    let (one, two) = (SoftDevice::new(&fabric), SoftDevice::new(&fabric));
    assert_eq!((one.name(), two.name()), ("soft0", "soft1"));
    let refused = SoftDevice::with_address(&fabric, two.address()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a device of this fabric has the address 127.0.0.2 or its link-local GID"
    );
    assert!(SoftDevice::with_address(&Fabric::new(), two.address()).is_ok());
    // An open file keeps the address.
    let file = one.open().unwrap();
    drop(one);
    assert!(SoftDevice::with_address(&fabric, [127, 0, 0, 1].into()).is_err());
    drop(file);
    assert!(SoftDevice::with_address(&fabric, [127, 0, 0, 1].into()).is_ok());
}

#[test]
fn objects_in_use_are_busy_and_the_others_are_destroyed() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let memory = [0_u64; 64];
    let (pd, cq) = (opened.pd(), opened.cq());
    let (qp, _) = opened.qp(pd, cq, UD).unwrap();
    let mr = opened.mr(pd, &memory).unwrap().mr_handle;
    let request = AllocMwReq { pd_handle: pd, mw_type: MwType::TYPE_1, ..AllocMwReq::zeroed() };
    let mw = opened.invoke::<write::AllocMw>(&request).unwrap().mw_handle;
    let mut group = AttachMcastReq { qp_handle: qp, ..AttachMcastReq::zeroed() };
    (group.gid[0], group.gid[1]) = (0xff, 0x0e);
    opened.invoke::<write::AttachMcast>(&group).unwrap();
    let file = &opened.file;
    // SAFETY: the objects have no rings in use.
    let (destroy_qp, destroy_cq, dealloc_pd) = unsafe {
        (
            || errno(command::destroy_qp(file, qp)).map(|response| response.events_reported),
            || errno(command::destroy_cq(file, cq)).map(|response| response.comp_events_reported),
            || errno(command::dealloc_pd(file, pd)),
        )
    };
    assert_eq!(destroy_qp(), Err(Errno::BUSY), "in a multicast group");
    assert_eq!(destroy_cq(), Err(Errno::BUSY));
    let detach = DetachMcastReq { gid: group.gid, qp_handle: qp, ..DetachMcastReq::zeroed() };
    opened.invoke::<write::DetachMcast>(&detach).unwrap();
    assert_eq!(opened.invoke::<write::DetachMcast>(&detach), Err(Errno::INVAL));
    assert_eq!((destroy_qp(), destroy_cq(), dealloc_pd()), (Ok(0), Ok(0), Err(Errno::BUSY)));
    opened.invoke::<write::DeallocMw>(&DeallocMwReq { mw_handle: mw }).unwrap();
    assert_eq!(dealloc_pd(), Err(Errno::BUSY));
    opened.invoke::<write::DeregMr>(&DeregMrReq { mr_handle: mr }).unwrap();
    assert_eq!(dealloc_pd(), Ok(()));
    for destroyed in [destroy_qp(), destroy_cq()] {
        assert_eq!(destroyed, Err(Errno::NOENT));
    }
    assert_eq!(dealloc_pd(), Err(Errno::NOENT));
    assert_eq!(device.resources().contexts, 1);
}

#[test]
fn qp_in_a_group_under_two_lids_is_destroyed_after_both_detaches() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let (qp, _) = opened.qp(opened.pd(), opened.cq(), UD).unwrap();
    let mut gid = [0; 16];
    (gid[0], gid[1]) = (0xff, 0x0e);
    for mlid in [0, 1] {
        let group = AttachMcastReq { gid, qp_handle: qp, mlid, ..AttachMcastReq::zeroed() };
        opened.invoke::<write::AttachMcast>(&group).unwrap();
    }
    // The device has one membership for both, as rxe.
    for (mlid, result) in [(0, Ok(())), (1, Err(Errno::INVAL))] {
        let group = DetachMcastReq { gid, qp_handle: qp, mlid, ..DetachMcastReq::zeroed() };
        assert_eq!(opened.invoke::<write::DetachMcast>(&group).map(drop), result);
    }
    // SAFETY: the QP's rings are not in use.
    assert!(unsafe { command::destroy_qp(&opened.file, qp) }.is_ok());
}

#[test]
fn transitions_of_a_qp_are_checked() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let (qp_handle, _) = opened.qp(opened.pd(), opened.cq(), RC).unwrap();
    let modify = |mask, request: ModifyQpReq| {
        let request = ModifyQpReq { qp_handle, attr_mask: Mask::STATE | mask, ..request };
        opened.invoke::<write::ModifyQp>(&request).map(drop)
    };
    let init = ModifyQpReq { qp_state: QpState::INIT, port_num: 1, ..ModifyQpReq::zeroed() };
    let of_init = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
    assert_eq!(modify(of_init, init), Ok(()));
    let mut rtr = ModifyQpReq { qp_state: QpState::RTR, path_mtu: Mtu::MTU_1024, ..ModifyQpReq::zeroed() };
    (rtr.dest.port_num, rtr.dest.is_global, rtr.dest.sgid_index) = (1, 1, 1);
    rtr.dest.dgid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 9]);
    let of_rtr = Mask::AV
        | Mask::PATH_MTU
        | Mask::DEST_QPN
        | Mask::RQ_PSN
        | Mask::MAX_DEST_RD_ATOMIC
        | Mask::MIN_RNR_TIMER;
    assert_eq!(modify(of_rtr, rtr), Ok(()));
    let rts = ModifyQpReq { qp_state: QpState::RTS, ..ModifyQpReq::zeroed() };
    let of_rts = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC;
    assert_eq!(modify(of_rts, ModifyQpReq { timeout: 32, ..rts }), Err(Errno::INVAL));
    // The state that the program assumes.
    for (cur_qp_state, result) in [(QpState::INIT, Err(Errno::INVAL)), (QpState::RTR, Ok(()))] {
        let request = ModifyQpReq { cur_qp_state, timeout: 31, ..rts };
        assert_eq!(modify(of_rts | Mask::CUR_STATE, request), result);
    }
}

#[test]
fn inline_capacity_is_limited() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let (pd, cq) = (opened.pd(), opened.cq());
    let create = |max_inline_data| {
        let request = CreateQpReq {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_wr: 1,
            max_inline_data,
            qp_type: RC,
            ..CreateQpReq::zeroed()
        };
        opened.invoke_driver::<write::CreateQp, QpResp>(&request).map(drop)
    };
    assert_eq!([512, 513].map(create), [Ok(()), Err(Errno::INVAL)]);
}

#[test]
fn qp_of_a_connection_joins_no_group() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let mut group = AttachMcastReq::zeroed();
    (group.gid[0], group.gid[1]) = (0xff, 0x0e);
    for (qp_type, result) in [(RC, Err(Errno::INVAL)), (UD, Ok(()))] {
        let (qp_handle, _) = opened.qp(opened.pd(), opened.cq(), qp_type).unwrap();
        let group = AttachMcastReq { qp_handle, ..group };
        assert_eq!(opened.invoke::<write::AttachMcast>(&group).map(drop), result);
    }
}

#[test]
fn region_that_moves_to_another_pd_leaves_its_own() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let memory = [0_u64; 64];
    let (own, other) = (opened.pd(), opened.pd());
    let mr_handle = opened.mr(own, &memory).unwrap().mr_handle;
    let request = ReregMrReq { mr_handle, flags: MrReregFlags::PD, pd_handle: other, ..ReregMrReq::zeroed() };
    opened.invoke::<write::ReregMr>(&request).unwrap();
    // SAFETY: the PDs are not used any more.
    let dealloc = |pd| errno(unsafe { command::dealloc_pd(&opened.file, pd) });
    assert_eq!([own, other].map(dealloc), [Ok(()), Err(Errno::BUSY)]);
}

#[test]
fn failed_resize_keeps_the_queue() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let (cq_handle, CqResp { mi }) = opened.cq_on(-1, 0, 100).unwrap();
    let request = ResizeCqReq { cq_handle, cqe: 200, ..ResizeCqReq::zeroed() };
    let mut response = ResizeCqResp::zeroed();
    let mut call = write::invoke::<write::ResizeCq>(opened.file.driver_id(), &request, &mut response);
    let mut place = [0; 16];
    call.driver_output(&mut place);
    // The driver's response has no memory.
    let bytes = call.as_mut_bytes();
    let last = bytes.len() - 8;
    bytes[last..].copy_from_slice(&64_u64.to_ne_bytes());
    // SAFETY: an address without memory is EFAULT.
    assert_eq!(unsafe { opened.file.execute_raw(bytes) }, Err(Errno::FAULT));
    assert!(opened.file.map(mi.offset, mi.size as usize, Protection::ReadWrite).is_ok());

    let request = CreateSrqReq { pd_handle: opened.pd(), max_wr: 10, max_sge: 1, ..CreateSrqReq::zeroed() };
    let (srq, _) = opened.invoke_driver::<write::CreateSrq, SrqResp>(&request).unwrap();
    let srq_handle = srq.srq_handle;
    let request =
        ModifySrqReq { srq_handle, attr_mask: SrqAttrMask::MAX_WR, max_wr: 100, ..ModifySrqReq::zeroed() };
    let driver = ModifySrqCmd { mmap_info_addr: 64 };
    let mut response = ();
    let mut call = write::invoke::<write::ModifySrq>(opened.file.driver_id(), &request, &mut response);
    call.driver_input(driver.as_bytes());
    // SAFETY: an address without memory is EFAULT.
    assert_eq!(errno(unsafe { opened.file.execute(&mut call) }), Err(Errno::FAULT));
    let query = QuerySrqReq { srq_handle, ..QuerySrqReq::zeroed() };
    assert_eq!(opened.invoke::<write::QuerySrq>(&query).unwrap().max_wr, 15);
}

#[test]
fn file_has_one_context() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    // SAFETY: no payload.
    let again = unsafe { command::get_context(&opened.file, DriverPayload::default()) };
    assert_eq!(errno(again.map(drop)), Err(Errno::INVAL));
    assert_eq!(device.resources().contexts, 1);
}

#[test]
fn handles_of_another_class_or_file_are_refused() {
    let device = SoftDevice::new(&Fabric::new());
    let (one, other) = (Opened::new(&device), Opened::new(&device));
    let (pd, cq) = (one.pd(), one.cq());
    assert_eq!(one.qp(cq, cq, RC).map(drop), Err(Errno::INVAL));
    assert_eq!(one.qp(pd, pd, RC).map(drop), Err(Errno::INVAL));
    assert_eq!(other.qp(pd, cq, RC).map(drop), Err(Errno::NOENT));
    let channel = one.channel();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&channel);
    assert_eq!(other.cq_on(fd, 0, 1).map(drop), Err(Errno::BADF));
    assert!(one.cq_on(fd, 0, 1).is_ok());
}

#[test]
fn failed_creation_leaves_no_object() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let (pd, before) = (opened.pd(), device.resources());
    let request = CreateCqReq { cqe: 4, comp_channel: -1, ..CreateCqReq::zeroed() };
    let mut response = CreateCqResp::zeroed();
    // The driver's response has no memory.
    let mut call = write::invoke::<write::CreateCq>(opened.file.driver_id(), &request, &mut response);
    let mut place = [0; 16];
    call.driver_output(&mut place);
    let bytes = call.as_mut_bytes();
    let last = bytes.len() - 8;
    bytes[last..].copy_from_slice(&64_u64.to_ne_bytes());
    // SAFETY: an address without memory is EFAULT.
    assert_eq!(unsafe { opened.file.execute_raw(bytes) }, Err(Errno::FAULT));
    let mut memory = RegMrReq { start: 4096, length: 1, hca_va: 4096, pd_handle: pd, ..RegMrReq::zeroed() };
    assert_eq!(opened.invoke::<write::RegMr>(&memory).map(drop), Err(Errno::FAULT));
    memory.hca_va = 1;
    assert_eq!(opened.invoke::<write::RegMr>(&memory).map(drop), Err(Errno::INVAL));
    assert_eq!(device.resources(), before);
    // The handle is free again.
    assert_eq!(opened.cq(), pd + 1);
}

#[test]
fn queue_is_mapped_once_and_only_by_its_own_file() {
    let device = SoftDevice::new(&Fabric::new());
    let (one, other) = (Opened::new(&device), Opened::new(&device));
    let (cq, CqResp { mi }) = one.cq_on(-1, 0, 100).unwrap();
    let map = |opened: &Opened, len| {
        errno(opened.file.map(mi.offset, len, Protection::ReadWrite)).map(|mapping| mapping.len())
    };
    let size = mi.size as usize;
    assert_eq!(map(&other, size), Err(Errno::INVAL));
    assert_eq!(map(&one, size + 1), Err(Errno::INVAL));
    assert_eq!(map(&one, size), Ok(size));
    assert_eq!(map(&one, size), Err(Errno::INVAL));
    let resize = ResizeCqReq { cq_handle: cq, cqe: 200, ..ResizeCqReq::zeroed() };
    let (response, resized) = one.invoke_driver::<write::ResizeCq, CqResizeResp>(&resize).unwrap();
    assert_eq!(response.cqe, 255);
    assert_ne!(resized.mi.offset, mi.offset);
    // SAFETY: nothing maps the queue.
    unsafe { command::destroy_cq(&one.file, cq) }.unwrap();
    let mapped = one.file.map(resized.mi.offset, resized.mi.size as usize, Protection::ReadWrite);
    assert_eq!(errno(mapped).map(drop), Err(Errno::INVAL));
}

#[test]
fn closed_files_leave_no_objects() {
    let device = SoftDevice::new(&Fabric::new());
    let memory = [0_u64; 8];
    let opened = Opened::new(&device);
    let (pd, cq) = (opened.pd(), opened.cq());
    opened.qp(pd, cq, RC).unwrap();
    opened.mr(pd, &memory).unwrap();
    assert_ne!(device.resources(), Resources::default());
    drop(opened);
    assert_eq!(device.resources(), Resources::default());
}

#[test]
fn removal_raises_device_fatal_and_ends_everything() {
    let fabric = Fabric::new();
    let device = SoftDevice::new(&fabric);
    let opened = Opened::new(&device);
    let events = command::async_event_alloc(&opened.file).unwrap();
    let channel = opened.channel();
    let pd = opened.pd();
    device.remove();
    let record: [u8; 16] = read(events.as_fd()).unwrap();
    assert_eq!(AsyncEventDesc::read_from_bytes(&record).unwrap().event_type, EventType::DEVICE_FATAL);
    assert_eq!(read::<16>(events.as_fd()), Err(Errno::IO));
    assert_eq!(read::<8>(channel.as_fd()), Err(Errno::IO));
    assert_eq!(opened.invoke::<write::AllocPd>(&AllocPdReq::zeroed()).map(drop), Err(Errno::IO));
    // SAFETY: the object is gone.
    let dealloc_pd = || errno(unsafe { command::dealloc_pd(&opened.file, pd) });
    assert_eq!((dealloc_pd(), dealloc_pd()), (Ok(()), Err(Errno::NOENT)));
    assert_eq!(errno(command::query_device(&opened.file)).map(drop), Err(Errno::IO));
    assert_eq!(errno(device.open()).map(drop), Err(Errno::NXIO));
    // Its address is free.
    assert_eq!(SoftDevice::new(&fabric).address(), device.address());
    device.remove();
}

#[test]
fn closed_channels_are_no_longer_listed() {
    let device = SoftDevice::new(&Fabric::new());
    let opened = Opened::new(&device);
    let count = || {
        let mut handles = [0; 8];
        command::info_handles(&opened.file, ObjectClass::COMP_CHANNEL, &mut handles).unwrap()
    };
    let (one, other) = (opened.channel(), opened.channel());
    opened.cq_on(std::os::fd::AsRawFd::as_raw_fd(&one), 0, 4).unwrap();
    assert_eq!(count(), 2);
    drop(other);
    assert_eq!(count(), 1);
    // A CQ keeps the channel, but the program can't read it.
    drop(one);
    assert_eq!(count(), 0);
}

#[test]
fn closed_files_leave_their_groups() {
    /// Members of a group.
    const LIMIT: usize = 56;
    let device = SoftDevice::new(&Fabric::new());
    let mut gid = [0; 16];
    (gid[0], gid[1]) = (0xff, 0x0e);
    for _ in 0..=LIMIT {
        let opened = Opened::new(&device);
        let (qp_handle, _) = opened.qp(opened.pd(), opened.cq(), UD).unwrap();
        let group = AttachMcastReq { gid, qp_handle, ..AttachMcastReq::zeroed() };
        opened.invoke::<write::AttachMcast>(&group).unwrap();
    }
}
