use std::io::{Seek, Write};
use std::num::NonZeroUsize;
use std::ptr;

use bareverbs::mr::LocalAccess;
use bareverbs::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
use bareverbs::{Access, Buffer, Error, Mr, Remote};
use bareverbs_kernel_tests::{device, kernel_test};
use memmap2::MmapMut;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::pair::{counts, kernel, message, open, pair, region};

#[kernel_test]
fn every_memory_owner_is_registered_and_returned() {
    let before = counts();
    let pd = open().alloc_pd().unwrap();

    let mut own = pd.register(Buffer::zeroed(10_000).unwrap(), Access::LOCAL_WRITE).unwrap();
    own.write(9_990, b"at the end").unwrap();
    assert_eq!(&own.into_inner().unwrap()[9_990..], b"at the end");

    let vector = pd.register(b"vector".to_vec(), Access::LOCAL_WRITE).unwrap();
    assert_eq!(vector.bytes(), Some(&b"vector"[..]));
    assert_eq!(vector.into_inner().unwrap(), b"vector");

    let boxed: Box<[u8]> = Box::from(&b"boxed"[..]);
    assert_eq!(&*pd.register(boxed, Access::empty()).unwrap().into_inner().unwrap(), b"boxed");

    let mut array = *b"borrowed";
    let mut borrowed = pd.register_borrowed(&mut array, LocalAccess::ReadWrite).unwrap();
    borrowed.bytes_mut().unwrap()[0] = b'B';
    assert_eq!(counts().mr, before.mr + 1);
    assert_eq!(borrowed.into_inner().unwrap().into_slice(), b"Borrowed");
    assert_eq!(&array, b"Borrowed");

    // At an odd address and of an odd length.
    let mut bytes = vec![7; 100];
    // SAFETY: the vector outlives the region and is not accessed meanwhile.
    let raw =
        unsafe { pd.register_raw(bytes.as_mut_ptr().wrapping_add(3), 5, None, Access::LOCAL_WRITE) }.unwrap();
    let mut five = [0; 5];
    raw.read(0, &mut five).unwrap();
    assert_eq!((raw.len(), five), (5, [7; 5]));
    drop(raw);

    drop(pd);
    assert_eq!(counts(), before);
}

#[kernel_test]
fn message_is_received_into_a_mapped_file() {
    let path = std::env::temp_dir().join("received");
    let mut file =
        std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    file.write_all(&[b'.'; 64]).unwrap();
    file.rewind().unwrap();
    // SAFETY: no other code uses the file.
    let map = unsafe { MmapMut::map_mut(&file) }.unwrap();

    let (pd, mut a, mut b) = pair();
    let target = pd.register(map, Access::LOCAL_WRITE).unwrap();
    let sges = [target.sge(8..32).unwrap()];
    // SAFETY: the region exists until the message has arrived.
    unsafe { b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]) }.unwrap();
    a.send(&message(2, Payload::Inline(&[b"into the file"])));
    a.completion();
    b.completion();

    let map = target.into_inner().unwrap();
    map.flush().unwrap();
    let text = std::fs::read(&path).unwrap();
    assert_eq!(&text[..24], b"........into the file...");
}

#[kernel_test]
fn reg_mr_failure_returns_the_memory() {
    let before = counts();
    let pd = open().alloc_pd().unwrap();
    let empty = pd.register(Vec::new(), Access::LOCAL_WRITE).unwrap_err();
    assert_eq!(empty.to_string(), "reg_mr: the length of an MR must be at least 1 byte");
    assert_eq!(empty.object, Vec::<u8>::new());

    let refused = pd.register(b"mine".to_vec(), Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(refused.object, b"mine");

    let register = |addr: usize, len| {
        // SAFETY: the range has no memory that could be used; the kernel must reject it.
        let refused =
            unsafe { pd.register_raw(ptr::without_provenance_mut(addr), len, None, Access::LOCAL_WRITE) };
        refused.map(drop).unwrap_err().to_string()
    };
    let wraps = register(usize::MAX - 4095, 8192);
    assert!(wraps.ends_with("exceed the address space"), "{wraps}");
    let kernel_half = register(1 << 63, 4096);
    assert!(kernel_half.contains(&format!("refused by {}", device::error_origin())), "{kernel_half}");
    drop(pd);
    assert_eq!(counts(), before);
}

#[kernel_test]
fn reg_mr_names_the_unusable_range() {
    const PAGE: usize = 4096;
    let pages = NonZeroUsize::new(4 * PAGE).unwrap();
    // SAFETY: a new mapping replaces nothing.
    let start = unsafe {
        mmap_anonymous(None, pages, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_PRIVATE)
    }
    .unwrap();
    let page = |index: usize| start.as_ptr().wrapping_byte_add(index * PAGE).cast::<u8>();
    let protect = |index: usize, protection| {
        let page = ptr::NonNull::new(page(index).cast()).unwrap();
        // SAFETY: nothing in the mapping is in use.
        unsafe { mprotect(page, PAGE, protection) }.unwrap();
    };
    protect(1, ProtFlags::PROT_READ);
    protect(3, ProtFlags::PROT_NONE);

    let pd = open().alloc_pd().unwrap();
    let register = |index, count, access| {
        // SAFETY: the mapping stays, and the region is never used.
        unsafe { pd.register_raw(page(index), count * PAGE, None, access) }.map(drop)
    };
    let part = |index: usize| format!("{:#x} to {:#x} is", page(index).addr(), page(index + 1).addr());
    // Up to Linux 6.1, the kernel gives a private mapping its own pages, whatever its protection.
    if kernel() > (6, 1) {
        let read_only = register(0, 2, Access::LOCAL_WRITE).unwrap_err().to_string();
        assert!(read_only.ends_with(&format!("{} not writable", part(1))), "{read_only}");
        let unreadable = register(2, 2, Access::empty()).unwrap_err().to_string();
        assert!(unreadable.ends_with(&format!("{} not readable", part(3))), "{unreadable}");
    }
    // SAFETY: nothing in the mapping is in use.
    unsafe { munmap(ptr::NonNull::new(page(3).cast()).unwrap(), PAGE) }.unwrap();
    let unmapped = register(2, 2, Access::empty()).unwrap_err().to_string();
    assert!(unmapped.ends_with(&format!("{} not mapped", part(3))), "{unmapped}");
    register(0, 2, Access::empty()).unwrap();
}

#[kernel_test]
fn remote_write_without_local_write_names_the_remedy() {
    let pd = open().alloc_pd().unwrap();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = pd.register(vec![0; 8], access).unwrap_err().to_string();
        assert!(refused.ends_with("requires LOCAL_WRITE: add it"), "{refused}");
    }
    let on_demand = pd.register(vec![0; 8], Access::ON_DEMAND | Access::LOCAL_WRITE);
    match on_demand {
        Ok(region) => {
            assert!(pd.context().capabilities().odp);
            region.prefetch(..).unwrap();
        }
        Err(refused) => {
            assert!(!pd.context().capabilities().odp);
            assert!(refused.to_string().ends_with("register without ON_DEMAND"), "{refused}");
        }
    }
}

#[kernel_test]
fn sges_outside_the_mr_are_rejected() {
    let pd = open().alloc_pd().unwrap();
    let mut region = region(&pd, &[0; 100]);
    let sge = region.sge(10..30).unwrap();
    assert_eq!((sge.addr, sge.length, sge.lkey), (region.addr() + 10, 20, region.lkey()));
    assert_eq!(region.sge(..).unwrap().length, 100);
    assert_eq!(region.sge(100..).unwrap().length, 0);
    for refused in [region.sge(90..101), region.sge(101..), region.sge(..=100), region.sge(..=usize::MAX)] {
        assert!(matches!(refused, Err(Error::Invalid { .. })));
    }
    assert!(region.remote(99).is_ok() && region.remote(100).is_err());
    assert!(region.read(96, &mut [0; 5]).is_err() && region.write(usize::MAX, &[0; 5]).is_err());
}

#[kernel_test]
fn remotely_writable_mr_is_read_by_copy() {
    let (pd, mut a, _b) = pair();
    let target: Mr<Buffer> = region(&pd, &[0; 16]);
    assert!(target.bytes().is_none(), "a peer may write it at any moment");
    let remote: Remote = target.remote(4).unwrap();
    a.send(&SendRequest {
        wr_id: 1,
        operation: Operation::Write(remote),
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(&[b"peer"]),
    });
    a.completion();
    let mut copy = [0; 10];
    target.read(0, &mut copy).unwrap();
    assert_eq!(&copy, b"\0\0\0\0peer\0\0");
}
