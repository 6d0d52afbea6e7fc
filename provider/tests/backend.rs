//! A device file over a device of this process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bareverbs_provider::Errno;
use bareverbs_provider::command;
use bareverbs_provider::device::{Backend, DeviceFile, ErrorOrigin, IoctlError};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::GetContext;
use bareverbs_uapi::uverbs::types::DriverId;
use zerocopy::FromBytes;

const OFFSET: u64 = 0x1000;
const LEN: usize = 100;

/// A device that records its calls.
#[derive(Debug)]
struct Recorder {
    ioctls: Arc<Mutex<Vec<Vec<u8>>>>,
    writes: Arc<Mutex<Vec<Vec<u8>>>>,
    result: Result<(), Errno>,
    /// Descriptor of the next ioctl's first attribute.
    event: Mutex<Option<OwnedFd>>,
    queue: Arc<Mapping>,
    /// Memory of the queue until it is mapped.
    unmapped: Mutex<Option<Arc<Mapping>>>,
    fd: std::io::PipeReader,
    drops: Arc<AtomicUsize>,
}

impl Recorder {
    fn new(result: Result<(), Errno>) -> Self {
        let queue = Arc::new(Mapping::anonymous(LEN).unwrap());
        Self {
            ioctls: Arc::default(),
            writes: Arc::default(),
            result,
            event: Mutex::default(),
            unmapped: Mutex::new(Some(Arc::clone(&queue))),
            queue,
            fd: std::io::pipe().unwrap().0,
            drops: Arc::default(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: it accesses a call's own bytes only. A descriptor is given away once, and the queue's memory
// is unused.
unsafe impl Backend for Recorder {
    unsafe fn ioctl(&self, call: &mut [u8]) -> Result<(), Errno> {
        self.ioctls.lock().unwrap().push(call.to_vec());
        if let Some(event) = self.event.lock().unwrap().take() {
            let (attr, _) = Attribute::mut_from_prefix(&mut call[size_of::<Header>()..]).unwrap();
            attr.data = event.into_raw_fd() as u64;
            attr.flags |= AttributeFlags::VALID_OUTPUT;
        }
        self.result
    }

    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
        self.writes.lock().unwrap().push(command.to_vec());
        self.result
    }

    fn map(&self, offset: u64, _: usize) -> Result<Arc<Mapping>, Errno> {
        if offset != OFFSET {
            return Err(Errno::INVAL);
        }
        self.unmapped.lock().unwrap().take().ok_or(Errno::INVAL)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn open(recorder: Recorder) -> (Arc<Recorder>, DeviceFile) {
    let recorder = Arc::new(recorder);
    let file = DeviceFile::with_backend(Arc::clone(&recorder) as Arc<dyn Backend>, DriverId::RXE.0);
    (recorder, file.unwrap())
}

#[test]
fn ioctls_reach_the_backend_with_header_and_attributes() {
    let (recorder, file) = open(Recorder::new(Ok(())));
    let mut vectors = 0;
    let mut call = Call::<GetContext>::new(file.driver_id());
    call.output(GetContext::NUM_COMP_VECTORS, &mut vectors);
    let bytes = call.as_bytes().to_vec();
    // SAFETY: the device accesses no memory but the call.
    unsafe { file.execute(&mut call) }.unwrap();
    assert_eq!(recorder.ioctls.lock().unwrap().as_slice(), std::slice::from_ref(&bytes));
    let (header, _) = Header::ref_from_prefix(&bytes).unwrap();
    assert_eq!((header.driver_id, header.num_attrs), (DriverId::RXE.0, 1));
    assert!(recorder.writes.lock().unwrap().is_empty());
}

#[test]
fn write_commands_reach_the_backend() {
    let (recorder, file) = open(Recorder::new(Ok(())));
    // SAFETY: the device accesses no memory but the command.
    unsafe { file.write_raw(&[1, 2, 3]) }.unwrap();
    assert_eq!(*recorder.writes.lock().unwrap(), [vec![1, 2, 3]]);
    assert!(recorder.ioctls.lock().unwrap().is_empty());
}

fn refused_by_device(method: &'static str, errno: Errno) -> IoctlError {
    IoctlError { method, errno, origin: ErrorOrigin::Device }
}

#[test]
fn errors_of_the_backend_are_those_of_the_call() {
    let (_, file) = open(Recorder::new(Err(Errno::NOSPC)));
    let mut call = Call::<GetContext>::new(file.driver_id());
    // SAFETY: the device accesses no memory but the call.
    let refused = unsafe { file.execute(&mut call) };
    assert_eq!(refused, Err(refused_by_device("GetContext", Errno::NOSPC)));
    let text = refused.unwrap_err().to_string();
    assert!(text.starts_with("GetContext was refused by the device: "), "{text}");
    // SAFETY: the device accesses no memory but the command.
    assert_eq!(unsafe { file.write_raw(&[0; 8]) }, Err(Errno::NOSPC));
}

#[test]
fn descriptors_of_the_backend_are_owned_by_the_caller() {
    let recorder = Recorder::new(Ok(()));
    let (read, _write) = std::io::pipe().unwrap();
    let number = read.as_raw_fd();
    *recorder.event.lock().unwrap() = Some(read.into());
    let (_, file) = open(recorder);
    let events = command::async_event_alloc(&file).unwrap();
    assert_eq!(events.as_raw_fd(), number);
    // The backend makes no second one, so the call's descriptor stays -1.
    let refused = command::async_event_alloc(&file).unwrap_err();
    assert_eq!(refused, IoctlError::new("AsyncEventAlloc", Errno::BADF));
}

#[test]
fn queue_memory_is_mapped_once_and_outlives_the_file() {
    let (recorder, file) = open(Recorder::new(Ok(())));
    let mapping = file.map(OFFSET, LEN, Protection::ReadWrite).unwrap();
    assert_eq!((mapping.as_ptr(), mapping.len()), (recorder.queue.as_ptr(), LEN));
    let refused = file.map(OFFSET, LEN, Protection::ReadWrite).map(drop);
    assert_eq!(refused, Err(refused_by_device("mmap", Errno::INVAL)));
    drop(file);
    let drops = Arc::clone(&recorder.drops);
    drop(recorder);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    // SAFETY: the mapping has at least one byte, and the device doesn't access it.
    unsafe { mapping.as_ptr().write_volatile(7) };
}

#[test]
fn queue_memory_is_mapped_from_its_beginning_for_reading_and_writing() {
    let (_recorder, file) = open(Recorder::new(Ok(())));
    assert_eq!(file.map(OFFSET, LEN - 1, Protection::ReadWrite).unwrap().len(), LEN - 1);

    for (offset, len, protection, errno) in [
        (OFFSET + 1, LEN, Protection::ReadWrite, Errno::INVAL),
        (OFFSET, LEN + 1, Protection::ReadWrite, Errno::INVAL),
        (OFFSET, LEN, Protection::Read, Errno::PERM),
        (OFFSET, LEN, Protection::Write, Errno::PERM),
    ] {
        let (_, file) = open(Recorder::new(Ok(())));
        let refused = file.map(offset, len, protection).map(drop);
        assert_eq!(refused, Err(refused_by_device("mmap", errno)), "{offset:#x} {len} {protection:?}");
    }
}

#[test]
fn device_file_has_the_descriptor_of_the_backend() {
    let (recorder, file) = open(Recorder::new(Ok(())));
    assert_eq!(file.as_fd().as_raw_fd(), recorder.fd.as_raw_fd());
    assert_eq!(file.with_driver_id(DriverId::MLX5.0).driver_id(), DriverId::MLX5.0);
}

#[test]
fn forked_child_neither_calls_nor_drops_the_backend() {
    let (recorder, file) = open(Recorder::new(Ok(())));
    let drops = Arc::clone(&recorder.drops);
    let (ioctls, writes) = (Arc::clone(&recorder.ioctls), Arc::clone(&recorder.writes));
    let mapping = file.map(OFFSET, LEN, Protection::ReadWrite).unwrap();
    // The file has the last reference.
    drop(recorder);
    // SAFETY: the child allocates nothing and ends by `_exit`.
    match unsafe { libc::fork() } {
        -1 => panic!("no process more"),
        0 => {
            // SAFETY: the call does not leave the child.
            let ioctl = unsafe { file.execute_raw(&mut []) };
            // SAFETY: as above.
            let write = unsafe { file.write_raw(&[]) };
            let map = file.map(OFFSET, LEN, Protection::ReadWrite).map(drop);
            let stale = ioctl == Err(Errno::STALE)
                && write == Err(Errno::STALE)
                && map == Err(refused_by_device("mmap", Errno::STALE));
            drop((mapping, file));
            let calls = ioctls.lock().unwrap().len() + writes.lock().unwrap().len();
            let unused = calls + drops.load(Ordering::Relaxed) == 0;
            // SAFETY: `_exit` may be called at any time.
            unsafe { libc::_exit(i32::from(!(stale && unused))) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "{status:#x}");
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
    drop((mapping, file));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}
