//! Queues in memory that the caller names by attributes (`UVERBS_ATTR_CREATE_CQ_BUF_UMEM`, and
//! `BUFFER_VA` with `BUFFER_LENGTH`).

use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::mlx5::verbs::UarType;
use bareverbs::raw::uapi::mlx5::{CqFlags, CreateCqReq, UarObjAlloc};
use bareverbs::raw::uapi::uverbs::types::{BufferDesc, BufferType};
use bareverbs::raw::uapi::uverbs::{CqCreate, object};
use bareverbs::{Buffer, Errno, MemoryOwner};
use bareverbs_kernel_tests::loopback::open;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use zerocopy::IntoBytes;

const ENTRIES: u32 = 63;
const CQE: usize = 64;
const PAGE: usize = 4096;

/// How a call names the memory of the ring.
#[derive(Clone, Copy, Debug)]
enum Naming {
    Umem(BufferDesc),
    Va { addr: u64, length: Option<u64> },
    Both(BufferDesc, u64),
}

/// mlx5 takes the ring of a CQ from the attributes since Linux 7.2. Older kernels reject the
/// attributes; rxe ignores them.
#[kernel_test]
fn cq_ring_is_named_by_an_attribute() {
    let is_known = open().capabilities().queue_dmabufs;
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        let mut ring = Buffer::zeroed((ENTRIES as usize + 1) * CQE).unwrap();
        let mut record = Buffer::zeroed(PAGE).unwrap();
        let address = |memory: &mut Buffer| memory.region().0.as_ptr().expose_provenance() as u64;
        let db_addr = address(&mut record);
        // Closing the context frees it.
        let uar = device::connectx().is_ok().then(|| {
            let (mut offset, mut length, mut page) = (0, 0, 0);
            let mut call = raw.call::<UarObjAlloc>();
            call.make(UarObjAlloc::HANDLE);
            call.constant(UarObjAlloc::TYPE, UarType::NC);
            call.output(UarObjAlloc::MMAP_OFFSET, &mut offset);
            call.output(UarObjAlloc::MMAP_LENGTH, &mut length);
            call.output(UarObjAlloc::PAGE_ID, &mut page);
            // SAFETY: the method writes only its attributes.
            unsafe { raw.execute(&mut call) }.unwrap();
            page
        });
        // mlx5 takes the UAR by its index in a context with dynamic UARs.
        let (flags, uar_page_index) =
            uar.map_or((CqFlags::empty(), 0), |page: u32| (CqFlags::UAR_PAGE_INDEX, page as u16));
        let create = |naming: Naming| {
            let driver =
                CreateCqReq { db_addr, cqe_size: CQE as u32, flags, uar_page_index, ..CreateCqReq::zeroed() };
            // The longest of the responses: that of rxe.
            let (mut response, mut entries) = ([0; 64], 0);
            let (zero, user) = (0, 0);
            let mut call = raw.call::<CqCreate>();
            call.make(CqCreate::HANDLE);
            call.input(CqCreate::CQE, &ENTRIES);
            call.input(CqCreate::USER_HANDLE, &user);
            call.input(CqCreate::COMP_VECTOR, &zero);
            match &naming {
                Naming::Umem(buffer) => {
                    call.input(CqCreate::BUF_UMEM, buffer);
                }
                Naming::Va { addr, length } => {
                    call.input(CqCreate::BUFFER_VA, addr);
                    if let Some(length) = length {
                        call.input(CqCreate::BUFFER_LENGTH, length);
                    }
                }
                Naming::Both(buffer, addr) => {
                    call.input(CqCreate::BUF_UMEM, buffer);
                    call.input(CqCreate::BUFFER_VA, addr);
                    call.input(CqCreate::BUFFER_LENGTH, &buffer.length);
                }
            }
            call.output(CqCreate::RESP_CQE, &mut entries);
            call.driver_input(driver.as_bytes());
            call.driver_output(&mut response);
            // SAFETY: the buffers outlive the CQ, which is destroyed in this test, and nothing reads
            // them.
            unsafe { raw.execute(&mut call) }.map(|()| {
                // SAFETY: the call created the object, and nothing else has its handle.
                unsafe { RawObject::of::<object::Cq>(&raw, call.made(CqCreate::HANDLE)) }
            })
        };
        let (addr, length) = (address(&mut ring), ring.len() as u64);
        let whole = BufferDesc { buffer_type: BufferType::VA, addr, length, ..BufferDesc::zeroed() };
        let valid = [Naming::Umem(whole), Naming::Va { addr, length: Some(length) }];
        if !is_known {
            for naming in valid {
                match create(naming) {
                    // rxe and siw on Linux 7.2: the core knows the attributes, and the driver ignores them.
                    Ok(made) if device::posts_by_call() => drop(made.destroy().unwrap()),
                    Ok(_) => panic!("{naming:?}: a CQ in memory that the driver does not report"),
                    Err(refused) => assert_eq!(refused, Errno::PROTONOSUPPORT, "{naming:?}"),
                }
            }
            return;
        }
        for naming in valid {
            let made = create(naming).unwrap_or_else(|refused| panic!("{naming:?}: {refused}"));
            made.destroy().unwrap();
        }
        // A ring that is too short, unknown flags and types, no length, and two names at once.
        for wrong in [
            Naming::Umem(BufferDesc { length: CQE as u64, ..whole }),
            Naming::Umem(BufferDesc { flags: 1, ..whole }),
            Naming::Umem(BufferDesc { buffer_type: BufferType(2), ..whole }),
            Naming::Va { addr, length: Some(CQE as u64) },
            Naming::Va { addr, length: None },
            Naming::Both(whole, addr),
        ] {
            let refused = create(wrong).map(drop).unwrap_err();
            assert_eq!(refused, Errno::INVAL, "{wrong:?}");
        }
        let no_dmabuf = BufferDesc { buffer_type: BufferType::DMABUF, fd: -1, addr: 0, ..whole };
        let refused = create(Naming::Umem(no_dmabuf)).map(drop).unwrap_err();
        assert_eq!(refused, Errno::BADF);
    });
}
