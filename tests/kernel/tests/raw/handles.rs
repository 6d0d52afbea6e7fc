//! Handles that are adopted and given up.

use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Arm, CompChannel, CqInit};
use bareverbs::dm::Dm;
use bareverbs::error::ObjectClass;
use bareverbs::mw::{Mw, MwType};
use bareverbs::qp::{Operation, Payload, QpInit, Rc};
use bareverbs::raw::uapi::method::Object;
use bareverbs::raw::uapi::uverbs::types::AccessFlags;
use bareverbs::raw::uapi::uverbs::{DmAlloc, object};
use bareverbs::raw::uapi::write::structs::{
    AllocMwReq, AllocMwResp, AllocPdReq, AllocPdResp, CreateCompChannelReq, CreateCompChannelResp,
};
use bareverbs::raw::uapi::write::{AllocMw, AllocPd, CreateCompChannel};
use bareverbs::raw::uapi::{mlx5, write};
use bareverbs::raw::{RawContext, RawMr, RawObject};
use bareverbs::srq::SrqInit;
use bareverbs::{Access, Buffer, Context, Errno, Mr, Pd};
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, join, open, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

fn alloc_pd(raw: &RawContext) -> u32 {
    let (request, mut response, mut driver) = (AllocPdReq::zeroed(), AllocPdResp::zeroed(), [0; 8]);
    let mut call = write::invoke::<AllocPd>(raw.driver_id(), &request, &mut response);
    call.driver_output(&mut driver);
    // SAFETY: the command only creates an object.
    unsafe { raw.execute(&mut call) }.unwrap();
    response.pd_handle
}

#[kernel_test]
fn adopted_handles_work_and_are_destroyed() {
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        // SAFETY: the handle is that of a new domain, and nothing else has it.
        let pd: Pd = unsafe { Pd::from_handle(&context, alloc_pd(&raw)) };
        // A region that was given up is adopted with the memory that its owner leaked.
        let own = region(&pd, &[5; 4096], Access::LOCAL_WRITE);
        let object = RawMr {
            handle: own.handle(),
            lkey: own.lkey(),
            rkey: own.rkey(),
            iova: own.addr(),
            access: own.access(),
        };
        let (start, len) = (own.as_ptr(), own.len());
        assert_eq!(own.into_handle().unwrap(), object.handle);
        assert_eq!(context.object_count(ObjectClass::MR).unwrap(), 1);
        // SAFETY: the region was given up, and its memory is leaked, so it stays valid.
        let mr = unsafe { Mr::from_handle(&pd, &object, start, len) };
        let mut bytes = [0; 4];
        mr.read(0, &mut bytes).unwrap();
        assert_eq!((bytes, mr.lkey()), ([5; 4], object.lkey));
        drop(mr);
        assert_eq!(context.object_count(ObjectClass::MR).unwrap(), 0);

        if device::memory_windows().is_ok() {
            let pd_handle = pd.handle();
            let request = AllocMwReq { pd_handle, mw_type: MwType::TYPE_1, ..AllocMwReq::zeroed() };
            let mut response = AllocMwResp::zeroed();
            // SAFETY: the command only creates an object.
            unsafe { raw.invoke::<AllocMw>(&request, &mut response) }.unwrap();
            // SAFETY: the handle is that of a new window, and nothing else has it.
            let mw = unsafe { Mw::from_handle(&pd, response.mw_handle, response.rkey, MwType::TYPE_1) };
            assert_eq!((mw.handle(), mw.rkey()), (response.mw_handle, response.rkey));
            mw.dealloc().unwrap();
        }

        let (handle, clone) = (pd.handle(), pd.clone());
        assert_eq!(pd.into_handle(), handle);
        drop(clone);
        assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 1);
        // SAFETY: the domain was given up.
        unsafe { RawObject::of::<object::Pd>(&raw, handle) }.destroy().unwrap();
        assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 0);
    });
}

/// Destroys an object that was given up, and checks that it existed until then.
fn destroy<O: Object>(context: &Context, handle: u32) {
    let class = ObjectClass(O::ID);
    assert_eq!(context.object_count(class).unwrap(), 1, "{class:?}");
    // SAFETY: the object was given up, and nothing else has its handle.
    let destroyed = unsafe { RawObject::of::<O>(&context.raw(), handle) }.destroy();
    destroyed.unwrap_or_else(|refused| panic!("{class:?}: {refused}"));
    assert_eq!(context.object_count(class).unwrap(), 0, "{class:?}");
}

#[kernel_test]
fn given_up_objects_stay_until_they_are_destroyed() {
    // The queues that are given up keep the device file open, so nothing is counted afterwards.
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(16)).unwrap();
    let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
    let qp = pd.create_qp::<Rc>(&QpInit { srq: Some(&srq), ..QpInit::new(&cq, &cq) }).unwrap();
    let gid = context.default_gid(1).unwrap();
    let dlid = context.query_port(1).unwrap().lid;
    let attr = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
    let ah = device::ib_transports().is_ok().then(|| pd.create_ah(&attr).unwrap());
    let mw = device::memory_windows().is_ok().then(|| pd.alloc_mw(MwType::TYPE_1).unwrap());
    let mr = pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();

    let qp = qp.into_handle();
    // The kernel object still uses its queues.
    // SAFETY: the handle is still this CQ's, and the kernel refuses.
    let refused = unsafe { RawObject::of::<object::Cq>(&context.raw(), cq.handle()) }.destroy().unwrap_err();
    assert_eq!(refused.errno, Errno::BUSY);
    assert_eq!(refused.object.into_handle(), cq.handle());
    destroy::<object::Qp>(&context, qp);
    destroy::<object::Srq>(&context, srq.into_handle());
    destroy::<object::Cq>(&context, cq.into_handle());
    if let Some(ah) = ah {
        destroy::<object::Ah>(&context, ah.into_handle());
    }
    if let Some(mw) = mw {
        destroy::<object::Mw>(&context, mw.into_handle());
    }
    destroy::<object::Mr>(&context, mr.into_handle().unwrap());
    if let Ok(counters) = context.create_flow_counters() {
        let handle = counters.handle();
        assert_eq!(counters.clone().into_handle(), handle);
        drop(counters);
        destroy::<object::Counters>(&context, handle);
    }
    destroy::<object::Pd>(&context, pd.into_handle());
}

#[kernel_test]
fn adopted_channels_deliver_events() {
    nothing_leaks(|| {
        let pd = domain();
        let (context, raw) = (pd.context(), pd.context().raw());
        let mut response = CreateCompChannelResp::zeroed();
        // SAFETY: the command only creates a descriptor.
        unsafe { raw.invoke::<CreateCompChannel>(&CreateCompChannelReq::zeroed(), &mut response) }.unwrap();
        // SAFETY: the descriptor is new, and nothing else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(response.fd as i32) };
        let channel = CompChannel::from_fd(context, fd).unwrap();
        let init = CqInit { channel: Some(&channel), user_data: 42, ..CqInit::new(16) };
        let cq = context.create_cq(&init).unwrap();
        let (mut a, mut b) = (Side::on(&pd, Plan::default(), cq), side(&pd, Plan::default()));
        join(&mut a, &mut b);
        a.cq.arm(Arm::Any).unwrap();
        let region = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        b.recv_into(1, 1, &[region.sge(..).unwrap()]);
        a.send(&[request(1, Operation::Send, Payload::Inline(&[b"hello"]))]).unwrap();
        let event =
            channel.next().wait_timeout(Duration::from_secs(30)).transpose().unwrap().expect("an event");
        assert_eq!(event.user_data, 42);
        a.ends(1);
        b.ends(1);
    });
}

#[kernel_test(device::device_memory)]
fn adopted_device_memory_is_freed() {
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        let (length, alignment, mut start, mut page) = (256, 0, 0, 0);
        let mut call = raw.call::<DmAlloc>();
        call.make(DmAlloc::HANDLE)
            .input(DmAlloc::LENGTH, &length)
            .input(DmAlloc::ALIGNMENT, &alignment)
            .output(mlx5::attributes::DmAlloc::RESP_START_OFFSET, &mut start)
            .output(mlx5::attributes::DmAlloc::RESP_PAGE_INDEX, &mut page);
        // SAFETY: a new object affects no other.
        unsafe { raw.execute(&mut call) }.unwrap();
        let handle = call.made(DmAlloc::HANDLE);
        // SAFETY: the handle is that of new memory, and nothing else has it.
        let mut dm = unsafe { Dm::from_handle(&context, handle) }.unwrap();
        assert_eq!((dm.handle(), dm.len()), (handle, 256));
        dm.write(0, &[1, 2, 3, 4]).unwrap();
        // SAFETY: the word lies in the memory, and is accessed as an atomic.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(dm.as_ptr().cast()) };
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed).to_ne_bytes(), [1, 2, 3, 4]);
        let pd = context.alloc_pd().unwrap();
        let mr = pd.register_dm(&dm, .., AccessFlags::LOCAL_WRITE).unwrap();
        assert_eq!(dm.into_handle(), handle);
        let mr = mr.into_handle();
        destroy::<object::Mr>(&context, mr);
        destroy::<object::Dm>(&context, handle);
    });
}
