//! Queues in memory that the caller names by an attribute (`UVERBS_ATTR_CREATE_CQ_BUF_UMEM`).

use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::mlx5::{CreateCqReq, CreateCqResp};
use bareverbs::raw::uapi::uverbs::types::{BufferDesc, BufferType};
use bareverbs::raw::uapi::uverbs::{CqCreate, object};
use bareverbs::{Buffer, Errno, MemoryOwner};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::open;
use bareverbs_kernel_tests::resources::nothing_leaks;
use zerocopy::IntoBytes;

const ENTRIES: u32 = 63;
const CQE: usize = 64;
const PAGE: usize = 4096;

/// mlx5 takes the ring of a CQ from the attribute since Linux 7.2. Older kernels reject the
/// attribute.
pub(crate) fn cq_ring_is_named_by_an_attribute() {
    nothing_leaks(|| {
        let context = open();
        let raw = context.raw();
        let mut ring = Buffer::zeroed((ENTRIES as usize + 1) * CQE).unwrap();
        let mut record = Buffer::zeroed(PAGE).unwrap();
        let address = |memory: &mut Buffer| memory.region().0.as_ptr().expose_provenance() as u64;
        let create = |buffer: BufferDesc, record: &mut Buffer| {
            let driver =
                CreateCqReq { db_addr: address(record), cqe_size: CQE as u32, ..CreateCqReq::zeroed() };
            let (mut response, mut entries) = (CreateCqResp::zeroed(), 0);
            let (zero, user) = (0, 0);
            let mut call = raw.call::<CqCreate>();
            call.make(CqCreate::HANDLE);
            call.input(CqCreate::CQE, &ENTRIES);
            call.input(CqCreate::USER_HANDLE, &user);
            call.input(CqCreate::COMP_VECTOR, &zero);
            call.input(CqCreate::BUF_UMEM, &buffer);
            call.output(CqCreate::RESP_CQE, &mut entries);
            call.driver_input(driver.as_bytes());
            call.driver_output(response.as_mut_bytes());
            // SAFETY: the buffers outlive the CQ, which is destroyed in this test, and nothing reads
            // them.
            unsafe { raw.execute(&mut call) }.map(|()| {
                // SAFETY: the call created the object, and nothing else has its handle.
                unsafe { RawObject::of::<object::Cq>(&raw, call.made(CqCreate::HANDLE)) }
            })
        };
        let whole = BufferDesc {
            buffer_type: BufferType::VA,
            addr: address(&mut ring),
            length: ring.len() as u64,
            ..BufferDesc::zeroed()
        };
        match create(whole, &mut record) {
            Ok(made) => {
                assert!(!device::is_soft_roce(), "rxe has no buffer of the caller's");
                made.destroy().unwrap();
                // A ring that is too short, flags that nobody knows, and no dma-buf.
                for wrong in [
                    BufferDesc { length: CQE as u64, ..whole },
                    BufferDesc { flags: 1, ..whole },
                    BufferDesc { buffer_type: BufferType::DMABUF, fd: -1, addr: 0, ..whole },
                ] {
                    let refused = create(wrong, &mut record).map(drop).unwrap_err();
                    assert!(matches!(refused, Errno::INVAL | Errno::BADF), "{wrong:?}: {refused}");
                }
            }
            Err(refused) => {
                println!("refused: {refused}");
                assert!(
                    matches!(refused, Errno::PROTONOSUPPORT | Errno::INVAL | Errno::OPNOTSUPP),
                    "{refused}"
                );
            }
        }
    });
}
