//! A kernel that breaks the protocol of the rings that it shares with the rxe provider: headers,
//! indices, states, statuses and requests with any bytes, at any time, and resizes to memory with
//! any header.
//!
//! AddressSanitizer detects accesses outside of the memory. Accepted requests fit into the ring.
//! Polling ends after at most twice as many completions as the ring holds. A value equals the
//! content of its slot. The published indices are within the ring. When the kernel follows the
//! protocol again, requests are accepted again.

use bareverbs_provider::Errno;
use bareverbs_provider::error::{CreateError, DoorbellError};
use bareverbs_provider::traits::{Completion, CompletionQueue, QpControl, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Datagram, MwBind, Operation, Payload, RecvRequest, PushError, Remote, SendFlags, SendRequest, Sge,
    Imm, WorkCompletion,
};
use bareverbs_rxe::testing::{CountingArm, CountingDoorbell, PlainMemory};
use bareverbs_rxe::{RxeAh, RxeCq, RxeRq, RxeSq, SendLimits};
use bareverbs_uapi::rxe::QueueBuf;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{MwType, QpAttrMask, QpState};
use bareverbs_uapi::write::structs::{ModifyQpReq, Wc};
use bareverbs_uapi::write::types::{DeviceCapFlags, PlacementType, SelectivityLevel};

use crate::input::Input;

const HEADER: usize = size_of::<QueueBuf>();
const STEPS: usize = 300;
/// The inline data of the requests.
const INLINE: [u8; 80] = [0x5a; 80];

/// Memory with a header that is mostly valid.
fn memory(input: &mut Input<'_>, element: usize) -> (PlainMemory, u32) {
    let depth = u32::from(input.byte() % 9);
    if !input.one_in(4) {
        return (PlainMemory::new(depth, element), depth);
    }
    let size = HEADER + usize::from(input.half()) % 0x3000;
    let log2_slot = if input.one_in(2) { u32::from(input.byte() % 20) } else { input.word() };
    let mask = match input.byte() % 4 {
        0 => input.word(),
        1 => u32::MAX,
        2 => (1 << (input.byte() % 32)) - 1,
        _ => u32::from(input.byte()),
    };
    (PlainMemory::with_header(size, log2_slot, mask), depth)
}

/// Requests accepted since the kernel last wrote an index.
#[derive(Default)]
struct Accepted {
    /// Pushed requests that are neither deferred nor published.
    batch: u32,
    deferred: u32,
    published: u32,
    /// Whether the kernel broke the protocol. Its index counts twice then: as read earlier, and as
    /// it is.
    lied: bool,
    /// Whether the QP was reset, and no doorbell has succeeded since. A doorbell that fails then has
    /// published nothing.
    after_reset: bool,
}

impl Accepted {
    fn check(&self, capacity: u32) {
        let fits = if self.lied { 2 * capacity } else { capacity };
        assert!(self.batch + self.deferred + self.published <= fits, "no more is accepted than fits");
    }

    fn publish(&mut self) {
        self.published += std::mem::take(&mut self.deferred) + std::mem::take(&mut self.batch);
    }
}

/// Whether the published index word is within a ring of this capacity.
fn in_ring(index: *mut u32, capacity: u32) -> bool {
    // SAFETY: the word is in memory that the caller holds, and only this thread accesses it.
    unsafe { index.read_volatile() <= capacity }
}

/// The kernel writes an invalid value.
fn corrupt(memory: &PlainMemory, input: &mut Input<'_>) {
    match input.byte() % 4 {
        0 => memory.set_indices(input.word(), input.word()),
        1 => memory.set_indices(input.byte().into(), input.byte().into()),
        2 => {
            let (at, length) = (usize::from(input.half()) % 0x4000, input.byte() % 32);
            memory.overwrite(at, &input.bytes(length.into()));
        }
        _ => memory.fill(input.byte()),
    }
}

fn completion_queue(input: &mut Input<'_>) {
    let (mut ring, depth) = memory(input, size_of::<Wc>());
    // SAFETY: the memory is plain, and this is the only queue in it.
    let cq = unsafe { RxeCq::new(ring.clone(), depth, CountingArm::default()) };
    let Ok(mut cq) = cq else { return };
    assert!(cq.capacity() >= depth);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let capacity = cq.capacity();
        match input.byte() % 8 {
            0..3 => corrupt(&ring, input),
            3 => {
                // The kernel does not write during this loop.
                let mut taken = 0;
                while let Some(completion) = cq.next() {
                    taken += 1;
                    // The entries seen when the index was last read, and the entries there now.
                    assert!(taken <= 2 * capacity, "polling ends");
                    let value = completion.to_value();
                    assert_eq!(value.wr_id, completion.wr_id());
                    assert_eq!((value.status, value.opcode), (completion.status(), completion.opcode()));
                    assert_eq!((value.byte_len, value.qp_num), (completion.byte_len(), completion.qp_num()));
                    assert_eq!(value.wc_flags, completion.wc_flags());
                }
                cq.release();
                assert!(in_ring(ring.consumer(), capacity));
            }
            4 => {
                let mut values = vec![WorkCompletion::default(); usize::from(input.byte()) % 20];
                let taken = cq.next_values(&mut values);
                assert!(taken <= values.len() && taken <= capacity as usize);
                if taken > 0 {
                    assert!(in_ring(ring.consumer(), capacity));
                }
            }
            5 => {
                let (to, depth) = memory(input, size_of::<Wc>());
                // Polled entries are released before a resize.
                cq.release();
                // SAFETY: no kernel uses the old memory, and all polled entries are released.
                let followed = unsafe { cq.finish_resize(Ok(to.clone()), depth) };
                if followed.is_ok() {
                    ring = to;
                    assert!(cq.capacity() >= depth);
                } else {
                    assert_eq!(cq.capacity(), capacity, "the queue stays where it was");
                }
            }
            6 => drop(cq.next().map(|completion| completion.imm())),
            _ => cq.arm(input.byte() & 1 != 0).expect("this arm always succeeds"),
        }
    }
}

fn operation(input: &mut Input<'_>) -> Operation {
    let remote = Remote { addr: u64::from(input.half()), rkey: 7 };
    match input.byte() % 12 {
        0 => Operation::Send,
        1 => Operation::SendImm(Imm(1)),
        2 => Operation::SendInv(2),
        3 => Operation::Write(remote),
        4 => Operation::WriteImm(remote, Imm(3)),
        5 => Operation::Read(remote),
        6 => Operation::CmpSwp { remote, compare: 1, swap: 2 },
        7 => Operation::FetchAdd { remote, add: 1 },
        8 => Operation::LocalInv(4),
        9 => Operation::BindMw(MwBind {
            mw_type: MwType::TYPE_2,
            mw_rkey: 1,
            rkey: 2,
            mr_lkey: 3,
            addr: 0,
            length: 8,
            access: AccessFlags::REMOTE_READ,
        }),
        10 => Operation::Flush {
            remote,
            length: 8,
            placement: PlacementType::from_bits_retain(input.byte()),
            level: SelectivityLevel(input.byte()),
        },
        _ => Operation::AtomicWrite { remote, value: [1; 8] },
    }
}

fn send_queue(input: &mut Input<'_>) {
    let qp_type = input.one_of(&[QpType::RC, QpType::UC, QpType::UD]);
    let (max_sge, max_inline) = (u32::from(input.byte() % 6), u32::from(input.byte() % 70));
    let limits = SendLimits::new(qp_type, max_sge, max_inline)
        .expect("a type that rxe has")
        .with_capabilities(DeviceCapFlags::all())
        .with_mtu(1024);
    let element = 208 + (16 * max_sge as usize).max(max_inline as usize).max(8);
    let (ring, depth) = memory(input, element);
    let doorbell = CountingDoorbell::default();
    // SAFETY: the memory is plain, and this is the only queue in it.
    let sq = unsafe { RxeSq::new(ring.clone(), depth, limits, doorbell.clone()) };
    let Ok(mut sq) = sq else { return };
    let capacity = sq.capacity();
    assert!(capacity >= depth);
    let (mut next, mut accepted) = (0, Accepted::default());
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..6 => {
                let sges = [Sge { addr: 0x1000, length: u32::from(input.byte()) << (input.byte() % 25), lkey: 9 }; 8];
                let parts = [&INLINE[..usize::from(input.byte()) % INLINE.len()], &INLINE[..8]];
                let count = input.below(9);
                let payload = match input.byte() % 3 {
                    0 => Payload::Sges(&sges[..count]),
                    1 => Payload::Inline(&parts[..1]),
                    _ => Payload::Inline(&parts[..count % 3]),
                };
                let flags = SendFlags::from_bits_retain(input.byte().into());
                let pushed = if qp_type == QpType::UD {
                    let ah = RxeAh { number: 1 };
                    let to = Datagram { ah: &ah, qp_num: input.word() >> 7, qkey: 1, imm: None, header: &[] };
                    let request = SendRequest { wr_id: next, operation: to, flags, payload };
                    // SAFETY: no kernel executes the request.
                    unsafe { sq.push_datagram(&request) }
                } else {
                    let request = SendRequest { wr_id: next, operation: operation(input), flags, payload };
                    // SAFETY: no kernel executes the request.
                    let pushed = unsafe { sq.try_push(&request) };
                    // SAFETY: as for `try_push`: no kernel executes the request.
                    if pushed { Ok(()) } else { unsafe { sq.push(&request) } }
                };
                match pushed {
                    Ok(()) => (next, accepted.batch) = (next + 1, accepted.batch + 1),
                    Err(PushError::QueueFull { capacity: reported }) => assert_eq!(reported, capacity),
                    Err(_) => {}
                }
                accepted.check(capacity);
            }
            6 | 7 => {
                let errno = [None, None, Some(Errno::INVAL), Some(Errno::NOMEM)][input.below(4)];
                doorbell.answer(errno.map_or(Ok(()), Err));
                let before = doorbell.doorbells();
                let unpublished = match sq.ring() {
                    Err(DoorbellError::TakenBack(_)) => {
                        (accepted.deferred, accepted.batch) = (0, 0);
                        accepted.after_reset
                    }
                    _ => {
                        accepted.publish();
                        accepted.after_reset = false;
                        false
                    }
                };
                // One for each request, one before them, and one after a reset.
                assert!(doorbell.doorbells() - before <= capacity + 2, "ringing ends");
                doorbell.answer(Ok(()));
                if doorbell.doorbells() > before && !unpublished {
                    assert!(in_ring(ring.producer(), capacity));
                }
            }
            8 => {
                sq.defer().expect("nothing is rung");
                accepted.deferred += std::mem::take(&mut accepted.batch);
            }
            9 => {
                sq.abort();
                accepted.batch = 0;
            }
            10 => {
                let change = ModifyQpReq {
                    attr_mask: QpAttrMask::STATE | QpAttrMask::MAX_QP_RD_ATOMIC,
                    qp_state: if input.byte() & 1 == 0 { QpState::ERR } else { QpState::RTS },
                    max_rd_atomic: input.byte() % 3,
                    ..ModifyQpReq::zeroed()
                };
                let _ = sq.validate_modify(&change);
                sq.modified(&change);
            }
            11 => {
                // SAFETY: no kernel executes requests.
                unsafe { sq.reset() };
                accepted = Accepted { after_reset: true, ..Accepted::default() };
            }
            12 => drop(sq.failure()),
            _ => {
                corrupt(&ring, input);
                let after_reset = accepted.after_reset;
                accepted = Accepted { lied: true, after_reset, ..Accepted::default() };
            }
        }
        assert_eq!(sq.capacity(), capacity, "what the header says later has no effect");
        assert!(sq.deferred() <= capacity);
    }
    // The kernel has emptied the queue, as a reset does.
    ring.set_indices(0, 0);
    // SAFETY: no kernel executes requests.
    unsafe { sq.reset() };
    if capacity > 0 && qp_type != QpType::UD {
        let send = SendRequest {
            wr_id: next,
            operation: Operation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
        };
        // SAFETY: no kernel executes the request.
        assert_eq!(unsafe { sq.push(&send) }, Ok(()));
    }
}

fn receive_queue(input: &mut Input<'_>) {
    let max_sge = u32::from(input.byte() % 6);
    let element = 64 + 16 * max_sge as usize;
    let (mut ring, depth) = memory(input, element);
    // SAFETY: the memory is plain, and this is the only queue in it.
    let rq = unsafe { RxeRq::new(ring.clone(), depth, max_sge) };
    let Ok(mut rq) = rq else { return };
    let (mut accepted, mut lost) = (Accepted::default(), false);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let capacity = rq.capacity();
        match input.byte() % 12 {
            0..5 => {
                let sges = [Sge { addr: 0x1000, length: u32::from(input.byte()) << (input.byte() % 25), lkey: 9 }; 8];
                let request = RecvRequest { wr_id: input.long(), sges: &sges[..input.below(9)] };
                // SAFETY: no kernel executes the request.
                let pushed = unsafe {
                    if rq.try_push(&request) { Ok(()) } else { rq.push(&request) }
                };
                accepted.batch += u32::from(pushed.is_ok());
                accepted.check(capacity);
                assert!(!(lost && pushed.is_ok()), "a queue that is lost accepts nothing");
            }
            5 => {
                rq.ring();
                accepted.publish();
                assert!(in_ring(ring.producer(), capacity));
            }
            6 => {
                rq.abort();
                accepted.batch = 0;
            }
            7 => {
                let (to, depth) = memory(input, element);
                // SAFETY: no kernel reads the old memory.
                let moved = unsafe { rq.finish_resize(Ok(to.clone()), depth) };
                (lost, accepted) = (moved.is_err(), Accepted::default());
                if moved.is_ok() {
                    ring = to;
                    assert!(rq.capacity() >= depth);
                }
            }
            8 if !lost => {
                // SAFETY: no kernel executes requests.
                unsafe { rq.reset() };
                accepted = Accepted::default();
            }
            9 => assert!(rq.posted() <= capacity),
            10 if input.byte() == 0 => {
                let error = CreateError::Layout { queue: "receive queue", problem: "a test", value: 0 };
                // SAFETY: no kernel reads the old memory.
                let moved = unsafe { rq.finish_resize(Err(error), 0) };
                assert!(moved.is_err());
                lost = true;
            }
            _ => {
                corrupt(&ring, input);
                let after_reset = accepted.after_reset;
                accepted = Accepted { lied: true, after_reset, ..Accepted::default() };
            }
        }
    }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.byte() % 3 {
        0 => completion_queue(&mut input),
        1 => send_queue(&mut input),
        _ => receive_queue(&mut input),
    }
}
