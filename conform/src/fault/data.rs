//! Faults of queue pairs and of the data path: values of requests and queues are changed before the
//! device reads them, and completions after it has written them.

use std::mem::offset_of;

use bareverbs_uapi::rxe::{AtomicWr, FlushWr, MwWr, QueueBuf, RdmaWr, RecvWqe, SendWqe, Sge, UdWr};
use bareverbs_uapi::uverbs::InvokeWrite;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{EventType, QpAttrMask, QpState, SendFlags, WcStatus};
use bareverbs_uapi::write::structs::{ModifyQpReq, PostSendReq, Wc};
use bareverbs_uapi::write::types::{WcOpcode, WrOpcode};
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::call::ParsedCall;
use super::tracked::{File, Purpose, Qp};
use super::{Fault, is_in};
use crate::generate::qp_states::table;
use crate::own_memory::{read, store};
use crate::rules::Rule;

/// The rules that these faults break.
#[cfg(test)]
pub(crate) const RULES: &[Rule] = &[
    Rule::Transition,
    Rule::TransitionRequired,
    Rule::TransitionExtra,
    Rule::RingRequest,
    Rule::QpAccess,
    Rule::RemoteKey,
    Rule::LocalKey,
    Rule::ReceiveBuffer,
    Rule::SharedReceive,
    Rule::Operation,
    Rule::Completion,
    Rule::Inline,
    Rule::Datagram,
    Rule::SendState,
    Rule::Window,
    Rule::Invalidate,
    Rule::Retry,
    Rule::AccessEvent,
    Rule::RingIndex,
];

/// A queue in shared memory.
#[derive(Clone, Copy)]
struct Queue {
    address: u64,
    log2: u32,
    mask: u32,
    producer: u32,
    consumer: u32,
}

impl Queue {
    fn at(address: u64) -> Option<Self> {
        let bytes = read(address, size_of::<QueueBuf>()).ok()?;
        let word = |at: usize| super::tracked::word_at(&bytes, at);
        let log2 = word(offset_of!(QueueBuf, log2_elem_size)).filter(|log2| *log2 <= 16)?;
        let mask = word(offset_of!(QueueBuf, index_mask))?;
        let producer = word(offset_of!(QueueBuf, producer_index))?;
        let consumer = word(offset_of!(QueueBuf, consumer_index))?;
        Some(Self { address, log2, mask, producer, consumer })
    }

    /// Whether both indices are below the size.
    fn is_in_range(&self) -> bool {
        self.producer <= self.mask && self.consumer <= self.mask
    }

    fn slot(&self, index: u32) -> u64 {
        self.address + size_of::<QueueBuf>() as u64 + (u64::from(index & self.mask) << self.log2)
    }

    /// The addresses of the filled slots, the oldest first.
    fn filled(&self) -> impl Iterator<Item = u64> {
        let count = self.producer.wrapping_sub(self.consumer) & self.mask;
        (0..count).map(move |position| self.slot(self.consumer.wrapping_add(position)))
    }
}

/// Changes a value in memory.
fn change<T: FromBytes + IntoBytes + Immutable>(address: u64, change: impl FnOnce(&mut T)) -> Option<()> {
    let mut value = T::read_from_bytes(&read(address, size_of::<T>()).ok()?).ok()?;
    change(&mut value);
    store(address, value.as_bytes()).ok()
}

/// The fault of a command on a queue pair. Changes its request or the queues.
pub(super) fn of_command(broken: Rule, call: &ParsedCall, file: &File) -> Option<Fault> {
    let number = call.command()?.number;
    if number == write::ModifyQp::INFO.number {
        return of_transition(broken, call, file);
    }
    if number != write::PostSend::INFO.number {
        return None;
    }
    let request = call.input(InvokeWrite::CORE_IN.id());
    let (request, _) = PostSendReq::read_from_prefix(&request).ok()?;
    let qp = file.qps.get(&request.qp_handle)?;
    let queues = |purpose| file.mapped(purpose).filter_map(|(_, address)| Queue::at(address));
    match broken {
        Rule::SendState => return Some(Fault::Error(Errno::INVAL, Errno::PERM)),
        Rule::Retry if qp.qp_type == QpType::RC => {
            let peer = file.qps.values().find(|peer| peer.number == qp.peer)?;
            return (peer.state == QpState::RESET).then_some(Fault::Refused(Errno::NOTCONN));
        }
        Rule::RingIndex => {
            let mut queues = queues(Purpose::Receives).chain(queues(Purpose::Completions));
            return queues.any(|queue| !queue.is_in_range()).then_some(Fault::Refused(Errno::INVAL));
        }
        Rule::ReceiveBuffer => {
            queues(Purpose::Receives).flat_map(|queue| queue.filled().collect::<Vec<_>>()).for_each(|slot| {
                change_sge(slot + size_of::<RecvWqe>() as u64, file);
            });
        }
        Rule::SharedReceive => queues(Purpose::SharedReceives).for_each(|queue| swap_receives(&queue)),
        _ => {
            let (_, sends) = file.mapped(Purpose::Sends).find(|(of, _)| *of == request.qp_handle)?;
            Queue::at(sends)?.filled().for_each(|slot| {
                change_send(broken, slot, qp, file);
            });
        }
    }
    None
}

/// Replaces an L_Key with another low byte by that of its region.
fn change_sge(address: u64, file: &File) -> Option<()> {
    change::<Sge>(address, |sge| {
        if let Some(region) = file.regions.iter().find(|region| region.lkey ^ 0xff == sge.lkey) {
            sge.lkey = region.lkey;
        }
    })
}

/// Swaps the oldest and the newest receive.
fn swap_receives(queue: &Queue) {
    let slots: Vec<u64> = queue.filled().collect();
    let [oldest, .., newest] = slots[..] else { return };
    let size = 1 << queue.log2;
    if let (Ok(first), Ok(last)) = (read(oldest, size), read(newest, size)) {
        let _ = store(oldest, &last).and_then(|()| store(newest, &first));
    }
}

/// Changes a request that was posted.
fn change_send(broken: Rule, slot: u64, qp: &Qp, file: &File) -> Option<()> {
    let data = slot + size_of::<SendWqe>() as u64;
    let is_connected = qp.qp_type != QpType::UD;
    match broken {
        Rule::LocalKey if is_connected => change_sge(data, file),
        Rule::Inline => {
            let wqe = SendWqe::read_from_bytes(&read(slot, size_of::<SendWqe>()).ok()?).ok()?;
            let is_inline = wqe.wr.send_flags.contains(SendFlags::INLINE);
            is_inline.then(|| change::<u8>(data, |byte| *byte ^= 0xff))?
        }
        Rule::Operation if is_connected => {
            let mut is_long = false;
            change::<SendWqe>(slot, |wqe| {
                is_long = wqe.dma.length > 1024;
                (wqe.dma.length, wqe.dma.resid) =
                    (wqe.dma.length - u32::from(is_long), wqe.dma.resid - u32::from(is_long));
            })?;
            change::<Sge>(data, |sge| sge.length -= u32::from(is_long))
        }
        _ => change::<SendWqe>(slot, |wqe| match broken {
            Rule::RemoteKey => confine(wqe, file),
            Rule::RingRequest if qp.qp_type == QpType::UC && is_reliable(wqe.wr.opcode) => {
                wqe.wr.opcode = WrOpcode::SEND;
            }
            Rule::Datagram if !is_connected => {
                let mut form: UdWr = wqe.wr.get();
                if let Some(peer) = file.qps.values().find(|peer| peer.number == form.remote_qpn) {
                    form.remote_qkey = peer.qkey;
                }
                wqe.wr.set(&form);
            }
            Rule::Window if wqe.wr.opcode == WrOpcode::BIND_MW => {
                let mut form: MwWr = wqe.wr.get();
                form.access |= AccessFlags::REMOTE_READ;
                wqe.wr.set(&form);
            }
            Rule::Invalidate if wqe.wr.opcode == WrOpcode::LOCAL_INV => {
                wqe.wr.opcode = WrOpcode::RDMA_WRITE;
                wqe.wr.set(&RdmaWr::new_zeroed());
            }
            _ => {}
        }),
    }
}

/// Whether only reliable transports have an operation.
fn is_reliable(opcode: WrOpcode) -> bool {
    [WrOpcode::RDMA_READ, WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD].contains(&opcode)
}

/// Moves the target of a request into the region of its R_Key.
fn confine(wqe: &mut SendWqe, file: &File) {
    let length = u64::from(wqe.dma.length);
    let inside = |remote_addr: u64, rkey: u32| {
        let region = file.regions.iter().find(|region| region.rkey == rkey);
        region.map_or(remote_addr, |region| {
            let last = region.start + region.length.saturating_sub(length);
            if (region.start..=last).contains(&remote_addr) { remote_addr } else { region.start }
        })
    };
    match wqe.wr.opcode {
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => {
            let form: AtomicWr = wqe.wr.get();
            wqe.wr.set(&AtomicWr { remote_addr: inside(form.remote_addr, form.rkey), ..form });
        }
        WrOpcode::FLUSH => {
            let form: FlushWr = wqe.wr.get();
            wqe.wr.set(&FlushWr { remote_addr: inside(form.remote_addr, form.rkey), ..form });
        }
        WrOpcode::RDMA_WRITE
        | WrOpcode::RDMA_WRITE_WITH_IMM
        | WrOpcode::RDMA_READ
        | WrOpcode::ATOMIC_WRITE => {
            let form: RdmaWr = wqe.wr.get();
            wqe.wr.set(&RdmaWr { remote_addr: inside(form.remote_addr, form.rkey), ..form });
        }
        _ => {}
    }
}

/// The fault of a change of a queue pair.
fn of_transition(broken: Rule, call: &ParsedCall, file: &File) -> Option<Fault> {
    let request = call.input(InvokeWrite::CORE_IN.id());
    let (request, _) = ModifyQpReq::read_from_prefix(&request).ok()?;
    let qp = file.qps.get(&request.qp_handle)?;
    if broken == Rule::QpAccess && request.attr_mask.contains(QpAttrMask::ACCESS_FLAGS) {
        let address = call.raw(InvokeWrite::CORE_IN.id())?.data;
        let all = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        change::<AccessFlags>(address + offset_of!(ModifyQpReq, qp_access_flags) as u64, |access| {
            *access |= all;
        });
    }
    if !request.attr_mask.contains(QpAttrMask::STATE) {
        return None;
    }
    let rule = match table(qp.state, request.qp_state, qp.qp_type) {
        None => Rule::Transition,
        Some((required, _)) if !request.attr_mask.contains(required) => Rule::TransitionRequired,
        Some(_) => Rule::TransitionExtra,
    };
    is_in(broken, rule, true).then_some(Fault::Error(Errno::INVAL, Errno::OPNOTSUPP))
}

/// The places of the next completions: each queue and its producer index.
pub(super) fn completions(broken: Rule, file: &File) -> Vec<(u64, u32)> {
    if broken != Rule::Completion {
        return Vec::new();
    }
    let queues = file.mapped(Purpose::Completions).filter_map(|(_, address)| Queue::at(address));
    queues.map(|queue| (queue.address, queue.producer)).collect()
}

/// Changes the completions since a call of [`completions`].
pub(super) fn change_completions(before: &[(u64, u32)]) {
    for (address, first) in before {
        let Some(queue) = Queue::at(*address) else { continue };
        let new = Queue { consumer: *first, ..queue };
        new.filled().for_each(|slot| {
            change::<Wc>(slot, |wc| {
                if wc.status == WcStatus::SUCCESS {
                    wc.opcode = WcOpcode::TSO;
                }
            });
        });
    }
}

/// Changes an event that was read.
pub(super) fn change_event(broken: Rule, event: &mut [u8]) {
    let kind = EventType::QP_ACCESS_ERR.0.to_ne_bytes();
    if broken == Rule::AccessEvent && event.get(8..12) == Some(&kind[..]) {
        event[8..12].copy_from_slice(&EventType::COMM_EST.0.to_ne_bytes());
    }
}
