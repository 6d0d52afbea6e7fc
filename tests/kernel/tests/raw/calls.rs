//! Typed and untyped calls.

use std::os::fd::{FromRawFd, OwnedFd};

use bareverbs::error::ObjectClass;
use bareverbs::raw::uapi::method::{Access, AttributeKind, MethodInfo};
use bareverbs::raw::uapi::uverbs::types::GidEntry;
use bareverbs::raw::uapi::uverbs::{
    CountersCreate, PdDestroy, QueryGidEntry, QueryGidTable, QueryMr, QueryPort, object,
};
use bareverbs::raw::uapi::write::structs::{
    AllocPdReq, AllocPdResp, DeallocPdReq, QueryPortReq, QueryPortResp, QuerySrqReq, QuerySrqResp,
};
use bareverbs::raw::uapi::write::{AllocPd, DeallocPd, QueryPort as WriteQueryPort, QuerySrq};
use bareverbs::raw::{QueryError, RawContext, RawObject, UntypedCall};
use bareverbs::srq::SrqInit;
use bareverbs::{Access as Rights, Errno};
use bareverbs_kernel_tests::loopback::{domain, open, region};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

/// A handle and a descriptor that no object has.
const NO_OBJECT: u32 = 0x7fff_fff0;

/// The objects of a call that succeeded.
fn adopt(raw: &RawContext, method: &MethodInfo, call: &UntypedCall) -> Vec<RawObject> {
    let mut made = Vec::new();
    for info in method.attributes {
        let Some(attribute) = call.attribute(info.id) else { continue };
        match info.kind {
            AttributeKind::Handle { object, access: Access::New } => {
                // SAFETY: the call created the object, and nothing else has its handle.
                made.push(unsafe { RawObject::from_handle(raw, object, attribute.data as u32) });
            }
            AttributeKind::Descriptor { access: Access::New, .. } => {
                // SAFETY: the call created the descriptor, and nothing else has it.
                drop(unsafe { OwnedFd::from_raw_fd(attribute.data as i32) });
            }
            _ => {}
        }
    }
    made
}

/// The errors of methods whose handles name no object and whose numbers are 0.
const ANSWERS: [Errno; 10] = [
    Errno::INVAL,
    Errno::NOENT,
    Errno::BADF,
    Errno::PROTONOSUPPORT,
    Errno::OPNOTSUPP,
    Errno::NOSPC,
    Errno::FAULT,
    Errno::PERM,
    Errno::REMOTEIO,
    Errno::NODEV,
];

/// Every method of the core and of the driver, with its mandatory attributes of minimal size.
/// Handles name no object. So most methods fail, and each error is the kernel's.
#[kernel_test]
fn every_declared_method_is_answered_by_the_kernel() {
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        let counts = || -> Vec<(&str, usize)> {
            // Classes without handles, or that the kernel lacks, can't be counted.
            let count = |id| context.object_count(ObjectClass(id)).unwrap_or(0);
            raw.driver().objects().map(|class| (class.rust, count(class.id))).collect()
        };
        let before = counts();
        let (mut succeeded, mut missing_devx) = (Vec::new(), true);
        for method in raw.methods() {
            let mut call = UntypedCall::minimal(raw.driver_id(), method, NO_OBJECT);
            // SAFETY: handles and descriptors name no object. All addresses are buffers of the call
            // or 0, where nothing is mapped.
            let result = unsafe { raw.execute_untyped(&mut call) };
            println!("{result:?}: {call}");
            missing_devx &= !method.rust.starts_with("Devx") || result == Err(Errno::PROTONOSUPPORT);
            match result {
                Ok(()) => {
                    succeeded.push(method.rust);
                    for object in adopt(&raw, method, &call) {
                        object.destroy().unwrap_or_else(|refused| panic!("{}: {refused}", method.rust));
                    }
                }
                Err(errno) => assert!(ANSWERS.contains(&errno), "{}: {errno}", method.rust),
            }
        }
        println!("succeeded: {succeeded:?}");
        assert!(succeeded.contains(&"AsyncEventAlloc"));
        // rxe has no flow counters.
        assert_eq!(succeeded.contains(&"CountersCreate"), device::connectx().is_ok());
        // mlx5 registers the objects of DEVX only if the firmware supports user contexts
        // (`log_max_uctx`). The software ConnectX does not.
        let devx = succeeded.contains(&"DevxAsyncCmdFdAlloc");
        assert_eq!(!devx, missing_devx, "all methods of DEVX or none");
        assert_eq!(counts(), before);
    });
}

#[kernel_test]
fn queries_match_the_verbs() {
    nothing_leaks(|| {
        let pd = domain();
        let (context, raw) = (pd.context(), pd.context().raw());
        let mut entry = GidEntry::zeroed();
        let gid = context.default_gid(1).unwrap();
        raw.query::<QueryGidEntry>()
            .constant(QueryGidEntry::PORT, 1)
            .constant(QueryGidEntry::GID_INDEX, u32::from(gid.index))
            .flags(QueryGidEntry::FLAGS, 0)
            .output_struct(QueryGidEntry::RESP_ENTRY, &mut entry)
            .execute()
            .unwrap();
        assert_eq!((entry.gid, entry.gid_index), (gid.gid.0, u32::from(gid.index)));

        let (mut entries, mut count) = ([GidEntry::zeroed(); 64], 0);
        raw.query::<QueryGidTable>()
            .constant(QueryGidTable::ENTRY_SIZE, size_of::<GidEntry>() as u64)
            .flags(QueryGidTable::FLAGS, 0)
            .output_slice(QueryGidTable::RESP_ENTRIES, &mut entries)
            .output(QueryGidTable::RESP_NUM_ENTRIES, &mut count)
            .execute()
            .unwrap();
        assert_eq!(count as usize, context.gid_table().unwrap().len());

        let mr = region(&pd, &[7; 100], Rights::LOCAL_WRITE);
        let (mut lkey, mut rkey, mut length, mut iova) = (0, 0, 0, 0);
        let result = raw
            .query::<QueryMr>()
            .handle(QueryMr::HANDLE, mr.handle())
            .output(QueryMr::RESP_LKEY, &mut lkey)
            .output(QueryMr::RESP_RKEY, &mut rkey)
            .output(QueryMr::RESP_LENGTH, &mut length)
            .output(QueryMr::RESP_IOVA, &mut iova)
            .execute();
        result.unwrap();
        assert_eq!((lkey, rkey, length), (mr.lkey(), mr.rkey(), 100));

        let refused = raw.query::<PdDestroy>().execute();
        assert_eq!(refused, Err(QueryError::NotAQuery { method: "PdDestroy" }));
        let mut port = bareverbs::raw::uapi::uverbs::types::QueryPortRespEx::zeroed();
        let unknown = raw
            .query::<QueryPort>()
            .constant(QueryPort::PORT_NUM, 77)
            .output_struct(QueryPort::RESP, &mut port)
            .execute();
        assert_eq!(unknown, Err(QueryError::Kernel(Errno::INVAL)));
    });
}

#[kernel_test]
fn write_commands_match_the_verbs() {
    nothing_leaks(|| {
        let pd = domain();
        let raw = pd.context().raw();
        let request = QueryPortReq { port_num: 1, ..QueryPortReq::zeroed() };
        let mut response = QueryPortResp::zeroed();
        // SAFETY: the command only queries.
        unsafe { raw.invoke::<WriteQueryPort>(&request, &mut response) }.unwrap();
        assert_eq!(response.gid_tbl_len, pd.context().query_port(1).unwrap().gid_tbl_len);

        let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
        let mut attr = QuerySrqResp::zeroed();
        let request = QuerySrqReq { srq_handle: srq.handle(), ..QuerySrqReq::zeroed() };
        // SAFETY: the command only queries.
        unsafe { raw.invoke::<QuerySrq>(&request, &mut attr) }.unwrap();
        assert_eq!((attr.max_wr, attr.max_sge), (srq.query().unwrap().max_wr, srq.query().unwrap().max_sge));
        let request = QuerySrqReq { srq_handle: NO_OBJECT, ..QuerySrqReq::zeroed() };
        // SAFETY: the command only queries.
        let refused = unsafe { raw.invoke::<QuerySrq>(&request, &mut attr) };
        assert!(matches!(refused, Err(Errno::INVAL | Errno::NOENT)), "{refused:?}");
    });
}

#[kernel_test]
fn invalid_calls_get_the_kernels_errno() {
    nothing_leaks(|| {
        let pd = domain();
        let (raw, mr) = (pd.context().raw(), region(&pd, &[0; 64], Rights::LOCAL_WRITE));
        let info = raw.driver().method(ObjectClass::MR.0, 3).expect("QueryMr");
        let run = |handle, change: &dyn Fn(&mut UntypedCall)| {
            let mut call = UntypedCall::minimal(raw.driver_id(), info, handle);
            change(&mut call);
            // SAFETY: the call only queries the region, and the outputs are buffers of the call.
            let result = unsafe { raw.execute_untyped(&mut call) };
            println!("{call}: {result:?}");
            result
        };
        assert_eq!(run(mr.handle(), &|_| {}), Ok(()));
        assert_eq!(run(NO_OBJECT, &|_| {}), Err(Errno::NOENT));
        let header = |change: &dyn Fn(&mut bareverbs::raw::uapi::ioctl::Header)| {
            run(mr.handle(), &|call| change(call.header_mut())).unwrap_err()
        };
        assert_eq!(header(&|header| header.object_id = 0x777), Errno::PROTONOSUPPORT);
        assert_eq!(header(&|header| header.method_id = 0x777), Errno::PROTONOSUPPORT);
        assert_eq!(header(&|header| header.driver_id ^= 0x40), Errno::INVAL);
        assert_eq!(header(&|header| header.num_attrs = 2), Errno::INVAL);
        assert_eq!(header(&|header| header.length -= 1), Errno::INVAL);
        assert_eq!(header(&|header| header.length = u16::MAX), Errno::INVAL);
        assert_eq!(header(&|header| header.reserved1 = 1), Errno::PROTONOSUPPORT);
        // A shorter and a longer output, and a handle with a length.
        for (id, len) in
            [(QueryMr::RESP_LKEY.id(), 3), (QueryMr::RESP_LKEY.id(), 64), (QueryMr::HANDLE.id(), 4)]
        {
            let result = run(mr.handle(), &|call| call.attribute_mut(id).unwrap().len = len);
            assert_eq!(result, Err(Errno::INVAL), "attribute {id} of {len} bytes");
        }
    });
}

#[kernel_test]
fn unknown_attributes_are_rejected_if_mandatory() {
    nothing_leaks(|| {
        let pd = domain();
        let (raw, mr) = (pd.context().raw(), region(&pd, &[0; 64], Rights::LOCAL_WRITE));
        let info = raw.driver().method(ObjectClass::MR.0, 3).expect("QueryMr");
        let mut call = UntypedCall::minimal(raw.driver_id(), info, mr.handle());
        call.input(0x77, &[1; 4]);
        // SAFETY: the call only queries the region, and the outputs are buffers of the call.
        assert_eq!(unsafe { raw.execute_untyped(&mut call) }, Err(Errno::PROTONOSUPPORT));
        assert!(!call.wrote(QueryMr::RESP_LKEY.id()));
        call.attribute_mut(0x77).unwrap().flags = Default::default();
        // SAFETY: the call only queries the region, and the outputs are buffers of the call.
        assert_eq!(unsafe { raw.execute_untyped(&mut call) }, Ok(()));
        assert!(call.wrote(QueryMr::RESP_LKEY.id()));
        assert_eq!(call.answer(QueryMr::RESP_LKEY.id()), Some(&mr.lkey().to_ne_bytes()[..]));
    });
}

#[kernel_test]
fn created_objects_are_destroyed_by_their_class() {
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        let mut response = AllocPdResp::zeroed();
        let mut driver = [0; 8];
        let request = AllocPdReq::zeroed();
        let mut call =
            bareverbs::raw::uapi::write::invoke::<AllocPd>(raw.driver_id(), &request, &mut response);
        call.driver_output(&mut driver);
        // SAFETY: the command only creates an object.
        unsafe { raw.execute(&mut call) }.unwrap();
        let handle = response.pd_handle;
        // SAFETY: the command created the object, and nothing else has its handle.
        let pd = unsafe { RawObject::of::<object::Pd>(&raw, handle) };
        assert_eq!((pd.handle(), pd.class()), (handle, ObjectClass::PD.0));
        assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 1);
        drop(pd);
        assert_eq!(context.object_count(ObjectClass::PD).unwrap(), 0);
        let request = DeallocPdReq { pd_handle: handle };
        // SAFETY: no object has the handle any more.
        let refused = unsafe { raw.invoke::<DeallocPd>(&request, &mut ()) };
        assert!(matches!(refused, Err(Errno::INVAL | Errno::NOENT)), "{refused:?}");

        // A class that only some devices have.
        let mut call = raw.call::<CountersCreate>();
        call.make(CountersCreate::HANDLE);
        // SAFETY: a new object affects no other.
        match unsafe { raw.execute(&mut call) } {
            Ok(()) => {
                // SAFETY: the call created the object, and nothing else has its handle.
                let made =
                    unsafe { RawObject::of::<object::Counters>(&raw, call.made(CountersCreate::HANDLE)) };
                assert_eq!(made.destroy().unwrap(), []);
            }
            Err(refused) => assert_eq!((refused, device::posts_by_call()), (Errno::PROTONOSUPPORT, true)),
        }
    });
}
