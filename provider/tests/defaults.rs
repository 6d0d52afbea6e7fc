//! The default methods of the provider traits, on a minimal provider.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use bareverbs_provider::caps::Capabilities;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::{CreateError, DoorbellError, Feature};
use bareverbs_provider::mapping::{HUGE_PAGE, Mapping};
use bareverbs_provider::request::{
    AhRequest, CqRequest, DmRequest, QpRequest, QueueMemory, SrqChange, SrqRequest, XrcTargetRequest,
};
use bareverbs_provider::request::{RssQpRequest, WqChange, WqRequest};
use bareverbs_provider::rss::{HashFields, TOEPLITZ_KEY};
use bareverbs_provider::traits::{
    Completion, CompletionQueue, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, Provider, QpControl, RecvQueue,
    SendQueue, Visitor,
};
use bareverbs_provider::work::{
    Datagram, Frame, Imm, Operation, Payload, PushError, RecvRequest, SendFlags, SendRequest, WcFlags,
    WcOpcode, WcStatus, WorkCompletion, XrcOperation,
};
use bareverbs_uapi::uverbs::types::{CoreSupport, DriverId, WqFlags};
use bareverbs_uapi::verbs_values::WqState;
use bareverbs_uapi::write::structs::ModifyQpReq;

/// A queue that counts its calls. If `fast`, the fast path accepts every request.
#[derive(Default)]
struct Queue {
    fast: bool,
    pushed: usize,
    rings: usize,
    releases: usize,
    completions: u64,
}

// SAFETY: the default bodies send requests unchanged, and there is nothing to resume.
unsafe impl QpControl for Queue {}

// SAFETY: neither the queue nor a device accesses memory of requests.
unsafe impl SendQueue for Queue {
    type Ah = ();

    fn capacity(&self) -> u32 {
        8
    }

    unsafe fn try_push(&mut self, _: &SendRequest<'_>) -> bool {
        self.pushed += usize::from(self.fast);
        self.fast
    }

    unsafe fn push(&mut self, _: &SendRequest<'_>) -> Result<(), PushError> {
        Ok(())
    }

    unsafe fn push_datagram(&mut self, _: &SendRequest<'_, Datagram<'_, ()>>) -> Result<(), PushError> {
        Ok(())
    }

    fn ring(&mut self) -> Result<(), DoorbellError> {
        self.rings += 1;
        Ok(())
    }

    fn abort(&mut self) {}

    unsafe fn reset(&mut self) {}
}

// SAFETY: neither the queue nor a device accesses memory of requests.
unsafe impl RecvQueue for Queue {
    fn capacity(&self) -> u32 {
        8
    }

    unsafe fn push(&mut self, _: &RecvRequest<'_>) -> Result<(), PushError> {
        Ok(())
    }

    fn ring(&mut self) {
        self.rings += 1;
    }

    fn abort(&mut self) {}

    unsafe fn reset(&mut self) {}
}

/// The completion with this `wr_id`.
struct Numbered(u64);

impl Completion for Numbered {
    fn wr_id(&self) -> u64 {
        self.0
    }

    fn status(&self) -> WcStatus {
        WcStatus::GENERAL_ERR
    }

    fn opcode(&self) -> WcOpcode {
        WcOpcode::SEND
    }

    fn byte_len(&self) -> u32 {
        0
    }

    fn qp_num(&self) -> u32 {
        0
    }

    fn src_qp(&self) -> u32 {
        0
    }

    fn imm(&self) -> Option<Imm> {
        None
    }

    fn invalidated_rkey(&self) -> Option<u32> {
        None
    }

    fn vendor_err(&self) -> u32 {
        0
    }

    fn wc_flags(&self) -> WcFlags {
        WcFlags::empty()
    }

    fn slid(&self) -> u16 {
        0
    }

    fn sl(&self) -> u8 {
        0
    }

    fn dlid_path_bits(&self) -> u8 {
        0
    }

    fn to_value(&self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.0,
            status: self.status(),
            opcode: self.opcode(),
            wc_flags: self.wc_flags(),
            ..WorkCompletion::default()
        }
    }
}

// SAFETY: the queue reports no success, and no device writes to memory.
unsafe impl CompletionQueue for Queue {
    type Completion<'a> = Numbered;

    fn capacity(&self) -> u32 {
        8
    }

    fn next(&mut self) -> Option<Numbered> {
        self.completions = self.completions.checked_sub(1)?;
        Some(Numbered(self.completions))
    }

    fn release(&mut self) {
        self.releases += 1;
    }

    fn arm(&mut self, _: bool) -> Result<(), IoctlError> {
        Ok(())
    }
}

/// A provider without a device.
struct Minimal;

// SAFETY: it creates no objects.
unsafe impl Provider for Minimal {
    type Cq = Queue;
    type Sq = Queue;
    type Rq = Queue;
    type Srq = Queue;
    type Ah = ();

    fn drives(_: u32) -> bool {
        true
    }

    fn open(_: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        Ok(Self)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        Ok(1)
    }

    unsafe fn create_cq(&self, _: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::QpType })
    }

    unsafe fn create_qp(&self, _: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::QpType })
    }

    unsafe fn create_srq(&self, _: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::QpType })
    }

    unsafe fn modify_srq(&self, _: u32, _: &mut Queue, _: SrqChange) -> Result<(), CreateError> {
        Err(CreateError::Unsupported { feature: Feature::QpType })
    }

    fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::QpType })
    }
}

/// A device file that rejects all verbs calls.
fn no_device() -> DeviceFile {
    let file = File::open("/dev/null").unwrap();
    // SAFETY: `/dev/null` fails every ioctl and mmap.
    unsafe { DeviceFile::from_fd_unchecked(file.into(), DriverId::RXE.0) }.unwrap()
}

fn refused<T>(answer: Result<T, CreateError>) -> bool {
    matches!(answer, Err(CreateError::Unsupported { .. }))
}

fn request<O>(operation: O) -> SendRequest<'static, O> {
    SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&[]) }
}

#[test]
fn minimal_provider_has_no_optional_features() {
    let provider = Minimal;
    let caps = provider.capabilities();
    assert!(!caps.shareable && !caps.ece && !caps.raw_packets && !caps.compressed_completions);
    assert_eq!(caps.null_key, None);
    assert_eq!((caps.max_tso, caps.qp_rate_limit_max), (0, 0));
    assert_eq!((caps.num_comp_vectors, caps.core_support), (0, CoreSupport::empty()));
}

#[test]
fn minimal_provider_rejects_optional_objects() {
    let provider = Minimal;
    assert!(refused(Minimal::import(Arc::new(no_device()))));
    assert!(refused(provider.import_pd(1)));
    assert!(refused(provider.import_dm(1)));
    assert!(refused(provider.read_clock()));
    assert!(refused(provider.alloc_td()));
    assert!(refused(provider.alloc_dm(&DmRequest { len: 64, log_align: 0 })));
    assert!(refused(provider.create_xrc_target(&XrcTargetRequest { xrcd: 1, user_handle: 0 })));
    let wq = WqRequest {
        pd: 1,
        cq: 1,
        max_wr: 1,
        max_sge: 1,
        flags: WqFlags::empty(),
        memory: QueueMemory::BasePages,
        user_handle: 0,
    };
    // SAFETY: the provider creates no object, so the caller has no queue to keep.
    assert!(refused(unsafe { provider.create_wq(&wq) }));
    let rss =
        RssQpRequest { pd: 1, table: 1, fields: HashFields::empty(), key: [0; TOEPLITZ_KEY], user_handle: 0 };
    assert!(refused(provider.create_rss_qp(&rss)));
    let change = WqChange::State { from: WqState::RESET, to: WqState::RDY };
    // SAFETY: the provider has no objects.
    unsafe {
        assert!(refused(provider.resize_cq(1, &mut Queue::default(), 8, QueueMemory::BasePages)));
        assert!(refused(provider.modify_wq(1, change)));
    }
}

#[test]
fn minimal_send_queue_rejects_optional_requests() {
    let mut queue = Queue::default();
    let xrc = request(XrcOperation { operation: Operation::Send, remote_srq: 1 });
    let frame = request(Frame::default());
    // SAFETY: the queue accesses no memory.
    unsafe {
        assert!(matches!(queue.push_xrc(&xrc), Err(PushError::Unsupported { .. })));
        assert!(matches!(queue.push_frame(&frame), Err(PushError::Unsupported { .. })));
    }
    queue.set_ece(7);
    assert_eq!((queue.ece(), SendQueue::failure(&queue)), (None, None));
    assert!(!queue.owns_doorbell() && !queue.needs_second_reset() && !queue.needs_error_before_destroy());
    let change = ModifyQpReq::zeroed();
    assert_eq!(queue.validate_modify(&change), Ok(()));
    queue.modified(&change);
    queue.resume().unwrap();
    assert_eq!(queue.rings, 0);
    // SAFETY: the file is not a device, so no QP is changed.
    assert!(unsafe { queue.modify(&no_device(), &change) }.is_err());
}

#[test]
fn minimal_send_queue_rings_for_deferred_requests() {
    let mut queue = Queue { fast: true, ..Queue::default() };
    let send = request(Operation::Send);
    // SAFETY: the queue accesses no memory.
    unsafe {
        assert_eq!(SendQueue::try_post(&mut queue, &send, true), Some(Ok(())));
        assert_eq!((queue.pushed, queue.rings, queue.deferred()), (1, 1, 0));
        assert_eq!(SendQueue::try_post(&mut queue, &send, false), Some(Ok(())));
        assert_eq!((queue.pushed, queue.rings), (2, 2));
        assert_eq!(SendQueue::try_push_all(&mut queue, &[send; 3]), 3);
        queue.fast = false;
        assert_eq!(SendQueue::try_push_all(&mut queue, &[send; 3]), 0);
        assert_eq!(SendQueue::try_post(&mut queue, &send, false), None);
    }
    assert_eq!((queue.pushed, queue.rings), (5, 2));
}

struct Visited;

impl Visitor for Visited {
    type Output = Option<(u64, bool)>;

    fn completion(self, completion: impl Completion) -> Self::Output {
        Some((completion.wr_id(), completion.is_recv()))
    }

    fn empty(self) -> Self::Output {
        None
    }

    fn declined(self) -> Self::Output {
        panic!("the default polls every completion");
    }
}

#[test]
fn minimal_completion_queue_releases_what_a_visitor_has_seen() {
    let mut queue = Queue { completions: 2, ..Queue::default() };
    for expected in [Some((1, false)), Some((0, false)), None] {
        assert_eq!(queue.visit_next(Visited), expected);
    }
    assert_eq!(queue.releases, 2);
}

#[test]
fn minimal_receive_queue_declines_the_fast_path() {
    let mut queue = Queue::default();
    let receive = RecvRequest { wr_id: 1, sges: &[] };
    // SAFETY: the queue accesses no memory.
    unsafe {
        assert!(!RecvQueue::try_push(&mut queue, &receive));
        assert_eq!(RecvQueue::try_push_all(&mut queue, &[receive; 2]), 0);
        assert!(!RecvQueue::try_post(&mut queue, &receive));
    }
    queue.abandon();
    assert_eq!((queue.posted(), queue.rings), (0, 0));
}

#[test]
fn completions_by_value_release_their_slots_once() {
    let mut queue = Queue { completions: 5, ..Queue::default() };
    assert_eq!(queue.next_value().map(|wc| wc.wr_id), Some(4));
    assert_eq!(queue.releases, 1);
    assert_eq!(queue.next_values(&mut []), 0);
    assert_eq!((queue.completions, queue.releases), (4, 1));
    let mut taken = [Numbered(99).to_value(); 3];
    assert_eq!(queue.next_values(&mut taken), 3);
    assert_eq!((taken.map(|wc| wc.wr_id), queue.releases), ([3, 2, 1], 2));
    assert_eq!(queue.next_values(&mut taken), 1);
    assert_eq!((taken.map(|wc| wc.wr_id), queue.releases), ([0, 2, 1], 3));
    assert_eq!((queue.next_values(&mut taken), queue.next_value()), (0, None));
    assert_eq!(queue.releases, 3);
    assert_eq!((Numbered(1).timestamp(), Numbered(1).cvlan()), (None, None));
    assert_eq!(Numbered(1).flow_tag(), None);
}

#[test]
fn device_file_keeps_its_first_event_stream() {
    let file = File::open("/dev/null").unwrap();
    let number = file.as_raw_fd();
    // SAFETY: `/dev/null` fails every ioctl and mmap.
    let device = unsafe { DeviceFile::from_fd_unchecked(file.into(), DriverId::RXE.0) }.unwrap();
    assert!(device.events().is_none());
    let [first, second] = [(); 2].map(|()| File::open("/dev/zero").unwrap());
    let stream = first.as_fd().as_raw_fd();
    device.send_events_to(first.into());
    device.send_events_to(second.into());
    assert_eq!(device.events().map(|events| events.as_raw_fd()), Some(stream));
    let device = device.with_driver_id(DriverId::MLX5.0);
    assert_eq!((device.as_fd().as_raw_fd(), device.driver_id()), (number, DriverId::MLX5.0));
}

#[test]
fn huge_mapping_is_whole_pages() {
    // Few machines have reserved huge pages.
    if let Ok(mapping) = Mapping::huge(1) {
        assert_eq!(mapping.len(), HUGE_PAGE);
    }
}
