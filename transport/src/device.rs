//! The device under the transport: its queues, its memory, its events.

use std::fmt::Debug;

use crate::packet::{Flush, Packet, Route};
use crate::pool::Pool;
use crate::service::Service;
use crate::status::Status;
use crate::work::{AddressVector, Receive, RecvFetch, Work};

/// The queues of a QP in the device's format, and the parameters of the QP.
pub trait Queues {
    /// The device's name of a send WQE that is in execution.
    type SendWqe: Copy + Debug + PartialEq;

    /// The QPN.
    fn number(&self) -> u32;
    /// The service type. `None` for a QP that sends and receives no packets.
    fn service(&self) -> Option<Service>;
    /// The source QPN of the datagrams of an SQ that is no QP of its own. Such an SQ receives no packets.
    /// `None` for a QP.
    fn source_qp(&self) -> Option<u32> {
        None
    }
    /// Whether there is an SQ.
    fn has_send_queue(&self) -> bool;
    /// The receive queue.
    fn receive_queue(&self) -> ReceiveQueue;
    /// Whether multicast datagrams of the QP are not delivered to the QP itself.
    fn blocks_own_multicast(&self) -> bool;
    /// READ and atomic responses of one packet up to this many bytes are returned in the completion
    /// rather than in memory.
    fn inline_responses(&self) -> u32;
    /// Received messages of one packet up to this many bytes are returned in the completion rather
    /// than in memory.
    fn inline_receives(&self) -> usize;
    /// Fetches next the WQE behind this one.
    fn continue_after(&mut self, wqe: Self::SendWqe);
    /// Forgets all WQEs.
    fn reset(&mut self);
}

/// The receive queue of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveQueue {
    /// No receive queue.
    None,
    /// The QP's own RQ.
    Own {
        /// Maximum number of posted WQEs.
        size: u32,
    },
    /// An SRQ.
    Shared,
}

/// A device. The transport calls it for each step that depends on the format of queues, memory keys
/// or events.
pub trait Device: Sized {
    /// Maximum message size in bytes.
    const MAX_MESSAGE: u64;
    /// The behaviour that differs between devices.
    const POLICY: Policy;
    /// The queues of a QP.
    type Queues: Queues;
    /// An operation that is executed locally.
    type Local: Copy + Debug + Default;
    /// The device's name of a receive WQE.
    type RecvWqe: Copy + Debug;
    /// The context in which keys are checked, such as PD and QPN.
    type Accessor: Copy + Debug;

    /// The time in nanoseconds of a monotonic clock.
    fn now(&self) -> u64;
    /// Transmits a packet of a QP.
    fn transmit(&mut self, queues: &Self::Queues, packet: Packet);
    /// The buffers of payloads.
    fn pool(&mut self) -> &mut Pool;
    /// The port's LID; 0 on Ethernet.
    fn lid(&self) -> u16;
    /// Whether a packet with this route was sent by this port.
    fn is_own(&self, route: &Route) -> bool;
    /// The route of a datagram. `None` if the address vector is invalid.
    fn route(&self, address: &AddressVector) -> Option<Route>;

    /// Reads the producer index of the SQ.
    fn read_producer(&self, queues: &mut Self::Queues) -> Result<(), QueueFault>;
    /// Parses the next send WQE into `work`, unless it contains that WQE.
    fn fetch(&self, queues: &mut Self::Queues, work: &mut Work<Self::Local>) -> Fetched;
    /// Starts the execution of the WQE that was fetched.
    fn begin(&mut self, queues: &mut Self::Queues, work: &Work<Self::Local>) -> SendWqe<Self>;
    /// Parses a WQE in execution again, unless `work` contains it. Returns `false` if the driver has
    /// made it invalid.
    fn reload(&self, queues: &mut Self::Queues, work: &mut Work<Self::Local>, wqe: SendWqe<Self>) -> bool;
    /// Takes all posted send WQEs that have not begun.
    fn take_posted(&self, queues: &mut Self::Queues) -> Vec<SendWqe<Self>>;
    /// Executes a local operation. Returns the number of bytes that it sent.
    fn execute(&mut self, queues: &Self::Queues, work: &Work<Self::Local>) -> Result<u64, Status>;
    /// Reports the completion of a send WQE.
    fn complete_send(&mut self, queues: &Self::Queues, completion: &SendCompletion<'_, SendWqe<Self>>);

    /// Takes a receive WQE from the QP's receive queue, or from the given SRQ of an XRC request.
    fn take_receive(&mut self, queues: &mut Self::Queues, xrc: Option<u32>) -> RecvFetch<Self::RecvWqe>;
    /// Reports the completion of a receive WQE.
    fn complete_receive(
        &mut self,
        queues: &Self::Queues,
        receive: &Receive<Self::RecvWqe>,
        outcome: RecvOutcome<'_>,
    );
    /// Whether XRC requests to the QP may use this SRQ.
    fn accepts_xrc(&self, queues: &Self::Queues, srq: u32) -> bool;

    /// The context of accesses by the QP, or by receives of an SRQ.
    fn accessor(&self, queues: &Self::Queues, srq: Option<u32>) -> Self::Accessor;
    /// Checks key, rights and bounds without accessing memory.
    fn check(&self, range: &KeyRange<Self::Accessor>, length: u64) -> Result<(), AccessError>;
    /// Reads from the range of a key. A read of zero bytes needs no valid key.
    fn read(&self, range: &KeyRange<Self::Accessor>, to: &mut [u8]) -> Result<(), AccessError>;
    /// Writes to the range of a key.
    fn write(&self, range: &KeyRange<Self::Accessor>, from: &[u8]) -> Result<(), AccessError>;
    /// The address of the memory behind a range of a key, for a packet whose receiver copies it from
    /// there. `None`: the payload is [read](Self::read) into the packet.
    ///
    /// The transport asks on reliable transports only, whose requests succeed after the peer has copied
    /// them. The receiver copies when it gets the packet, so the device delivers such packets before the
    /// memory can be deregistered, and never stores them. A request may fail, or a window be invalidated,
    /// while its packets are on the way: the device shows no completion before their delivery. A packet may
    /// stand for several of a message.
    fn zero_copy(&self, _range: &KeyRange<Self::Accessor>, _length: u32) -> Option<u64> {
        None
    }
    /// Copies memory of the sender to the range of a key.
    fn copy(
        &self,
        _range: &KeyRange<Self::Accessor>,
        _address: u64,
        _length: u32,
    ) -> Result<(), AccessError> {
        Err(AccessError::Denied)
    }
    /// Atomically updates the little-endian operand of eight bytes at an aligned address. Returns
    /// its old value.
    fn update(
        &self,
        range: &KeyRange<Self::Accessor>,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, AccessError>;
    /// Places earlier writes to the range of an R_Key, or to all its memory (FLUSH). The device checks
    /// that the key permits FLUSHes of these placement types, and the range unless all memory is
    /// flushed. Only devices with [`Policy::memory_placement`] are asked.
    fn flush(
        &self,
        _who: Self::Accessor,
        _key: u32,
        _address: u64,
        _length: u32,
        _flush: Flush,
    ) -> Result<(), AccessError> {
        Err(AccessError::Denied)
    }
    /// Invalidates a key on request of the peer (SEND with invalidate). Returns `false` if the peer
    /// may not.
    fn invalidate(&mut self, queues: &Self::Queues, key: u32) -> bool;
    /// Asks for an absent page. `committed` is the number of bytes of the message that are done, and
    /// `packet` the length of the faulting packet. Returns a token, with which the QP is resumed by
    /// [`Scheduler::resume`](crate::Scheduler::resume), or `None` if the access fails.
    fn page_fault(
        &mut self,
        queues: &Self::Queues,
        fault: PageFault<SendWqe<Self>, Self::RecvWqe>,
        committed: u32,
        packet: usize,
    ) -> Option<u32>;

    /// Reports an asynchronous event of a QP.
    fn event(&mut self, queues: &Self::Queues, event: Event);
    /// Observes a step of a QP, for logs.
    fn observe(&mut self, _queues: &Self::Queues, _step: Step) {}
    /// A counter set.
    fn counters(&mut self, set: u8) -> &mut Counters;
    /// Counts a packet with a wrong P_Key.
    fn pkey_violation(&mut self);
    /// Counts a datagram with a wrong Q_Key.
    fn qkey_violation(&mut self);

    /// Increments a counter of a set.
    fn count(&mut self, set: u8, counter: impl FnOnce(&mut Counters) -> &mut u32) {
        let counter = counter(self.counters(set));
        *counter = counter.wrapping_add(1);
    }
}

/// Behaviour that differs between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether the responder executes FLUSH and ATOMIC WRITE (InfiniBand specification, annex A19).
    pub memory_placement: bool,
    /// Whether a failed send moves a UC or UD QP to SQE rather than ERR. In SQE it keeps receiving.
    pub send_queue_error: bool,
    /// The status of a receive of an RC QP that is shorter than its message.
    pub short_receive: Status,
    /// The syndrome of the NAK for such a message.
    pub short_receive_nak: u8,
    /// Whether a datagram that is longer than its receive is dropped. Otherwise the receive fails.
    pub drops_long_datagrams: bool,
    /// Whether a WRITE with immediate data of one packet that is refused for its R_Key completes a
    /// receive with [`Status::RemoteAccess`].
    pub refused_write_consumes_receive: bool,
    /// The status of a receive whose message invalidates a key that it may not:
    /// [`Status::RemoteInvalidRequest`] or [`Status::RemoteAccess`]. The NAK has the same reason.
    pub refused_invalidate: Status,
    /// Interval in nanoseconds at which a QP in ERR polls for receives to flush. Receive queues have no
    /// doorbell.
    pub receive_flush_interval: u64,
    /// Whether a retry halves the number of packets that a QP has in flight, down to 32. Each ACK
    /// raises it by one. Fits wires whose receivers have small buffers.
    pub adaptive_window: bool,
    /// Maximum number of packets that a QP sends in one turn.
    pub packets_per_turn: u32,
}

/// A device's name of a send WQE.
pub type SendWqe<D> = <<D as Device>::Queues as Queues>::SendWqe;

/// The memory of a queue is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFault;

/// Result of fetching a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The WQE was parsed.
    Work,
    /// The WQE is malformed.
    Malformed,
    /// No WQE is posted.
    Empty,
    /// The queue's memory is unreadable.
    Fault,
}

/// The completion of a send WQE.
#[derive(Clone, Copy, Debug)]
pub struct SendCompletion<'a, W> {
    /// The WQE.
    pub wqe: W,
    /// Length of the message in bytes.
    pub length: u32,
    /// Why it failed.
    pub failure: Option<Status>,
    /// The response, if it is [inline](Queues::inline_responses).
    pub inline: &'a [u8],
}

/// The outcome of a receive WQE.
#[derive(Clone, Copy, Debug)]
pub enum RecvOutcome<'a> {
    /// A message has arrived.
    Message {
        /// Its last packet.
        packet: &'a Packet,
        /// The message, if it is [inline](Queues::inline_receives).
        inline: &'a [u8],
    },
    /// The WQE failed.
    Failed(Status),
}

/// A right that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the InfiniBand specification")]
pub enum Access {
    LocalRead,
    LocalWrite,
    RemoteRead,
    RemoteWrite,
    RemoteAtomic,
}

/// The start of a range of a memory key, and the access to it.
#[derive(Clone, Copy, Debug)]
pub struct KeyRange<A> {
    /// The context of the access.
    pub who: A,
    /// The L_Key or R_Key.
    pub key: u32,
    /// Virtual address.
    pub address: u64,
    /// The access.
    pub access: Access,
}

/// Why an access to memory fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The key, its rights or its bounds don't allow the access.
    Denied,
    /// A page is not present. The device may fault it in.
    Absent,
}

/// The access that lacks a page. `S` and `R` are the device's names of send and receive WQEs.
#[derive(Clone, Copy, Debug)]
pub enum PageFault<S, R> {
    /// An SGE of a send WQE, which is read.
    Send(S),
    /// An SGE of a READ or atomic, to which its response is written.
    Response(S),
    /// An SGE of a receive WQE, and the SRQ that it was taken from.
    Receive(R, Option<u32>),
    /// Memory behind an R_Key.
    Remote {
        /// The R_Key.
        key: u32,
        /// Start of the message's range.
        address: u64,
        /// Length of that range in bytes.
        length: u32,
        /// Whether it is written.
        written: bool,
    },
}

/// Asynchronous events of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The QP has migrated to its alternate path.
    PathMigrated,
    /// The peer has asked for a migration to another path than the alternate one.
    PathMigrationFailed,
    /// The first packet has arrived in RTR.
    CommunicationEstablished,
    /// The SQ is drained.
    SendQueueDrained,
    /// The memory of a queue is unreadable.
    QueueFault,
    /// The responder has rejected an invalid request.
    InvalidRequest,
    /// The responder has rejected an access to its memory.
    AccessError,
    /// The QP has taken its last WQE from its SRQ.
    LastWqe,
}

/// A step of a QP that no other call reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The ACK timer has expired.
    AckTimeout,
    /// The peer has no receive WQE: the requester waits for this many nanoseconds.
    RnrWait(u64),
    /// The requester sends again from this PSN on.
    Retry(u32),
    /// The QP is in ERR.
    Error,
}

/// Counters of one set. QPs name their set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// WRITE requests.
    pub writes: u32,
    /// READ requests.
    pub reads: u32,
    /// Atomic requests.
    pub atomics: u32,
    /// Messages without a receive WQE.
    pub out_of_buffer: u32,
    /// Requests behind a gap.
    pub out_of_sequence: u32,
    /// Duplicate requests.
    pub duplicates: u32,
    /// RNR NAKs received.
    pub rnr_naks: u32,
    /// NAKs received for a gap.
    pub sequence_naks: u32,
    /// Responses behind a gap.
    pub implied_naks: u32,
    /// ACK timeouts.
    pub timeouts: u32,
}
