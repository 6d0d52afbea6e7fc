//! What the device keeps of the driver's objects, by the raw state of RDMA netlink.

use bareverbs::cq::CqInit;
use bareverbs::{Access, Mr};
use bareverbs_kernel_tests::loopback::{domain, region};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_netlink::{Error, Owner, RawObject, RdmaNetlink};
use rustix::io::Errno;

/// Segment types from this on are not objects.
const NO_OBJECT: u16 = 0xfff0;
/// Offset of the query command's output in an object's segment.
pub(crate) const OUTPUT: usize = 16;
/// Offset of the context in the output of QUERY_MKEY.
const MKEY_CONTEXT: usize = OUTPUT + 16;

/// The segment of the object in a resource dump of mlx5: a chain of segments, each with its length
/// in words and its type.
pub(crate) fn object_segment(mut dump: &[u8]) -> &[u8] {
    while dump.len() >= 4 {
        let words = u16::from_be_bytes([dump[0], dump[1]]);
        let (segment, rest) = dump.split_at(usize::from(words) * 4);
        if u16::from_be_bytes([dump[2], dump[3]]) < NO_OBJECT {
            return segment;
        }
        dump = rest;
    }
    panic!("the dump has no object");
}

/// The mkey context of the region with this L_Key (`mlx5_ifc_mkc_bits`).
pub(crate) fn mkey_context(lkey: u32) -> Vec<u8> {
    let mut netlink = RdmaNetlink::open().unwrap();
    let regions = netlink.memory_regions(device::name()).unwrap();
    let own = regions.iter().find(|listed| listed.lkey == Some(lkey)).unwrap();
    let dump = netlink.raw_state(device::name(), RawObject::Mr(own.number)).unwrap();
    object_segment(&dump)[MKEY_CONTEXT..][..64].to_vec()
}

/// Offset of the context in the output of QUERY_CQ, and of `log_cq_size` in it (`mlx5_ifc_cqc_bits`).
const CQ_CONTEXT: usize = OUTPUT + 16;
const LOG_CQ_SIZE: usize = 12;

#[kernel_test(device::connectx)]
fn raw_state_of_a_cq_has_its_size() {
    nothing_leaks(|| {
        let context = domain().context().clone();
        let mut netlink = RdmaNetlink::open().unwrap();
        for depth in [200, 3000] {
            let cq = context.create_cq(&CqInit::new(depth)).unwrap();
            let listed = netlink.completion_queues(device::name()).unwrap();
            let own = listed.iter().find(|listed| listed.cqe == cq.capacity()).unwrap();
            let dump = netlink.raw_state(device::name(), RawObject::Cq(own.number)).unwrap();
            let log_size = object_segment(&dump)[CQ_CONTEXT + LOG_CQ_SIZE] & 0x1f;
            assert_eq!(1 << log_size, (cq.capacity() + 1).next_power_of_two(), "{own:?}");
        }
    });
}

/// The bits `relaxed_ordering_write` and `relaxed_ordering_read`.
fn relaxed<M>(mr: &Mr<M>) -> (bool, bool) {
    let context = mkey_context(mr.lkey());
    (context[1] & 0x04 != 0, context[59] & 0x40 != 0)
}

#[kernel_test(device::connectx)]
fn relaxed_ordering_reaches_the_mkey() {
    nothing_leaks(|| {
        let pd = domain();
        let strict = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let access = strict | Access::RELAXED_ORDERING;
        // Small and large regions take different paths in the driver.
        for len in [8, 4096, 4 << 20] {
            let bytes = vec![0; len];
            assert_eq!(relaxed(&region(&pd, &bytes, strict)), (false, false), "{len} bytes");
            assert_eq!(relaxed(&region(&pd, &bytes, access)), (true, true), "{len} bytes");
        }
        let mut changed = region(&pd, &[0; 4096], strict);
        for (access, bits) in [(access, (true, true)), (strict, (false, false))] {
            changed.set_access(access).unwrap();
            assert_eq!(relaxed(&changed), bits, "{access:?}");
        }
    });
}

#[kernel_test(device::soft_roce)]
fn rxe_has_no_raw_state() {
    nothing_leaks(|| {
        let pd = domain();
        let mr = region(&pd, &[0; 8], Access::LOCAL_WRITE | Access::RELAXED_ORDERING);
        let mut netlink = RdmaNetlink::open().unwrap();
        let regions = netlink.memory_regions(device::name()).unwrap();
        let me = Owner::Process(std::process::id());
        let own = regions.iter().find(|listed| listed.owner == me).unwrap();
        assert_eq!(own.lkey, Some(mr.lkey()));
        match netlink.raw_state(device::name(), RawObject::Mr(own.number)) {
            Err(Error::Kernel(refused)) => assert_eq!(refused.errno, Errno::INVAL),
            other => panic!("{other:?}"),
        }
    });
}
