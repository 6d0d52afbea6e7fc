//! The functions of `ibv_qp_ex`: requests in place of structs.
//!
//! A request is pushed once the next one begins, or at `ibv_wr_complete`: its peer and its data may be set
//! in any order. Inline data is copied when it is set.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{ptr, slice};

use bareverbs::error::{PostError, PostReason};
use bareverbs::qp::{
    Batch, Datagram, Frame, Operation, Payload, QpCap, QpType, SendFlags, SendHalf, SendRequest, Sge,
};
use bareverbs::raw::uapi::verbs_values::SendFlags as WireFlags;
use bareverbs::raw::uapi::write::types::{PlacementType, SelectivityLevel, WcOpcode};
use bareverbs::untyped::{AnyOperation, AnyTransport, BuiltIn};
use bareverbs::xrc::XrcOperation;
use bareverbs::{Imm, Remote};
use bareverbs_mlx5::Mlx5;
use bareverbs_mlx5::wqe::{SEGMENT, Segment};

use super::queues::{Queues, Sends};
use super::{QpHead, QpObject};
use crate::abi::Function;
use crate::abi::memory::ibv_mw_bind_info;
use crate::abi::mlx5::mlx5dv_qp_ex;
use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use crate::abi::values::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE,
    IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO, IBV_WC_DRIVER2, has,
};
use crate::abi::work::{ibv_data_buf, ibv_sge};
use crate::convention::{Convention, Failure, OrErrno, Value, callback, required};
use crate::path::AhObject;
use crate::post::{FRAME_HEADER, take_header};
use crate::window::{self, MwObject};

/// The operations of UC.
const UC: c_int = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM;

/// The operations of RC and XRC on each device.
const RC: c_int = UC
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_SEND_WITH_INV;

/// The operations that a program can ask for at a QP of this type.
pub(super) fn operations(qp_type: QpType, has_flush: bool, has_atomic_write: bool) -> u64 {
    let of_device = |has: bool, flag| if has { flag } else { 0 };
    let all = match qp_type {
        QpType::RC => {
            RC | of_device(has_flush, IBV_QP_EX_WITH_FLUSH)
                | of_device(has_atomic_write, IBV_QP_EX_WITH_ATOMIC_WRITE)
        }
        QpType::XRC_INI => RC,
        QpType::UC => UC,
        QpType::UD => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
        QpType::RAW_PACKET => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO,
        _ => 0,
    };
    u64::from(all.cast_unsigned())
}

/// What a thread posts between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`. The send queue is
/// locked then, so only that thread uses the cell.
pub(super) struct Posting(UnsafeCell<Posted>);

struct Posted {
    is_started: bool,
    /// Whether requests were pushed, which no doorbell has published.
    has_pushed: bool,
    /// Of the first request that was rejected.
    failure: Option<Failure>,
    /// The request that is built. It is pushed when the next one begins.
    operation: Option<Operation>,
    wr_id: u64,
    flags: u32,
    data: Data,
    /// The elements of [`Data::Sges`].
    sges: Vec<Sge>,
    /// The bytes of [`Data::Bytes`].
    bytes: Vec<u8>,
    peer: Peer,
}

/// The data of a request.
enum Data {
    None,
    /// One SGE, which needs no list.
    Sge(Sge),
    /// Inline data of 8 bytes, which needs no memory.
    Word([u8; 8]),
    Sges,
    Bytes,
}

/// The peer of a request that is not of RC or UC, and what else such a request has.
struct Peer {
    /// Of a datagram: address handle, QPN and Q_Key.
    datagram: (*const AhObject, u32, u32),
    /// Of XRC.
    remote_srq: u32,
    /// Of a large send.
    header: Vec<u8>,
    mss: Option<u16>,
}

impl Peer {
    const NONE: Self = Self { datagram: (ptr::null(), 0, 0), remote_srq: 0, header: Vec::new(), mss: None };

    /// Removes what was set.
    fn clear(&mut self) {
        (self.datagram.0, self.remote_srq, self.mss) = (ptr::null(), 0, None);
        self.header.clear();
    }
}

/// The struct of C with the functions of these operations, and the one that posts them. `None`: it has none.
pub(super) fn functions(qp_base: ibv_qp, operations: Option<(u64, Function)>) -> ibv_qp_ex {
    let function = |is_wanted: bool, address| if is_wanted { Function::new(address) } else { Function::NULL };
    let always = |address: *const ()| function(operations.is_some(), address);
    let with = |flag: c_int, address: *const ()| {
        let is_wanted = operations.is_some_and(|(all, _)| has(all, flag));
        function(is_wanted, address)
    };
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: AtomicU64::new(0),
        wr_flags: AtomicU32::new(0),
        wr_atomic_cmp_swp: with(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, atomic_cmp_swp as *const ()),
        wr_atomic_fetch_add: with(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, atomic_fetch_add as *const ()),
        wr_bind_mw: with(IBV_QP_EX_WITH_BIND_MW, bind_mw as *const ()),
        wr_local_inv: with(IBV_QP_EX_WITH_LOCAL_INV, local_inv as *const ()),
        wr_rdma_read: with(IBV_QP_EX_WITH_RDMA_READ, rdma_read as *const ()),
        wr_rdma_write: with(IBV_QP_EX_WITH_RDMA_WRITE, rdma_write as *const ()),
        wr_rdma_write_imm: with(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, rdma_write_imm as *const ()),
        wr_send: with(IBV_QP_EX_WITH_SEND, send as *const ()),
        wr_send_imm: with(IBV_QP_EX_WITH_SEND_WITH_IMM, send_imm as *const ()),
        wr_send_inv: with(IBV_QP_EX_WITH_SEND_WITH_INV, send_inv as *const ()),
        wr_send_tso: with(IBV_QP_EX_WITH_TSO, send_tso as *const ()),
        wr_set_ud_addr: always(set_ud_addr as *const ()),
        wr_set_xrc_srqn: always(set_xrc_srqn as *const ()),
        wr_set_inline_data: always(set_inline_data as *const ()),
        wr_set_inline_data_list: always(set_inline_data_list as *const ()),
        wr_set_sge: always(set_sge as *const ()),
        wr_set_sge_list: always(set_sge_list as *const ()),
        wr_start: always(start as *const ()),
        wr_complete: operations.map_or(Function::NULL, |(_, wr_complete)| wr_complete),
        wr_abort: always(abort as *const ()),
        wr_atomic_write: with(IBV_QP_EX_WITH_ATOMIC_WRITE, atomic_write as *const ()),
        wr_flush: with(IBV_QP_EX_WITH_FLUSH, flush as *const ()),
    }
}

/// The struct of C with the functions of ConnectX devices.
pub(super) fn mlx5_functions(raw_wqes: bool) -> mlx5dv_qp_ex {
    let raw_wqe = if raw_wqes { Function::new(raw_wqe as *const ()) } else { Function::NULL };
    mlx5dv_qp_ex {
        comp_mask: 0,
        wr_set_dc_addr: Function::NULL,
        wr_mr_interleaved: Function::NULL,
        wr_mr_list: Function::NULL,
        wr_mkey_configure: Function::NULL,
        wr_set_mkey_access_flags: Function::NULL,
        wr_set_mkey_layout_list: Function::NULL,
        wr_set_mkey_layout_interleaved: Function::NULL,
        wr_set_mkey_sig_block: Function::NULL,
        wr_raw_wqe: raw_wqe,
        wr_set_dc_addr_stream: Function::NULL,
        wr_memcpy: Function::NULL,
        wr_set_mkey_crypto: Function::NULL,
    }
}

/// Pushes a WQE that the program built.
///
/// # Safety
///
/// As for [`Mlx5Sq::push_whole_wqe`](bareverbs_mlx5::Mlx5Sq::push_whole_wqe).
unsafe fn push_raw_wqe(
    batch: &mut Batch<'_, AnyTransport>,
    wr_id: u64,
    wqe: &[Segment],
) -> Result<(), Failure> {
    // SAFETY: the program posts in such a state. The queue is pushed to only.
    let queue = Mlx5::sq(unsafe { batch.provider_queue() }).ok_or(Failure::INVALID)?;
    let wc_opcode = WcOpcode(IBV_WC_DRIVER2.cast_unsigned());
    // SAFETY: by the contract.
    unsafe { queue.push_whole_wqe(wr_id, wqe, wc_opcode) }.map_err(|error| PostReason::from(error).into())
}

impl Default for Posting {
    /// For a QP without these functions.
    fn default() -> Self {
        Self::new(&QpCap { max_send_sge: 0, max_inline_data: 0, ..QpCap::default() })
    }
}

impl Posting {
    /// For requests within these capacities: they need no further memory.
    pub(super) fn new(cap: &QpCap) -> Self {
        Self(UnsafeCell::new(Posted {
            is_started: false,
            has_pushed: false,
            failure: None,
            operation: None,
            wr_id: 0,
            flags: 0,
            data: Data::None,
            sges: Vec::with_capacity(cap.max_send_sge as usize),
            bytes: Vec::with_capacity(cap.max_inline_data as usize),
            peer: Peer::NONE,
        }))
    }
}

impl Posted {
    /// Begins a request, after the one before it. The operation is a function of a few registers, so a new
    /// one is not built in memory.
    #[inline(always)]
    fn begin(&mut self, qp: &QpObject, operation: impl FnOnce() -> Operation) {
        if self.operation.is_some() {
            return self.begin_next(qp, operation);
        }
        self.operation = Some(operation());
        self.wr_id = qp.abi.abi.wr_id.load(Ordering::Relaxed);
        self.flags = qp.abi.abi.wr_flags.load(Ordering::Relaxed);
        self.data = Data::None;
    }

    /// Pushes the request that is built, and begins the next one.
    #[inline(never)]
    fn begin_next(&mut self, qp: &QpObject, operation: impl FnOnce() -> Operation) {
        self.push(qp);
        self.operation = None;
        self.begin(qp, operation);
    }

    /// Pushes the request that is built. After a failure, nothing is pushed.
    fn push(&mut self, qp: &QpObject) {
        self.take_header(qp);
        // SAFETY: the program keeps what the request names until it completes.
        self.push_by(qp, |this, batch| this.with_request(qp, |request| unsafe { batch.push(request) }));
        self.peer.clear();
    }

    /// Copies the first bytes of a frame into its header.
    fn take_header(&mut self, qp: &QpObject) {
        let is_frame = QpType(qp.abi.abi.qp_base.qp_type) == QpType::RAW_PACKET && self.peer.mss.is_none();
        if is_frame && self.operation.is_some() && matches!(self.data, Data::Sge(_) | Data::Sges) {
            let mut header = [0; FRAME_HEADER];
            // SAFETY: the program keeps what the request names until it completes.
            let taken = unsafe { take_header(self.list(), &mut header) };
            self.peer.header = header[..taken].to_vec();
        }
    }

    /// Pushes a request by `push`, unless one has failed.
    fn push_by(
        &mut self,
        qp: &QpObject,
        push: impl FnOnce(&Self, &mut Batch<'_, AnyTransport>) -> Result<(), Failure>,
    ) {
        if !self.is_started || self.failure.is_some() {
            return;
        }
        let Ok(queues) = qp.inner.queues() else { return };
        // SAFETY: `ibv_wr_start` has left the queue locked. It stays locked.
        let mut send = ManuallyDrop::new(unsafe { queues.locked_send() });
        let mut half = send.half();
        // The requests stay pushed.
        let mut batch = ManuallyDrop::new(half.start_send());
        match push(self, &mut batch) {
            Ok(()) => self.has_pushed = true,
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Passes the request that is built to `post`.
    fn with_request<R>(
        &self,
        qp: &QpObject,
        post: impl FnOnce(&SendRequest<'_, AnyOperation<'_>>) -> Result<R, PostReason>,
    ) -> Result<R, Failure> {
        let operation = self.operation.ok_or(Failure::INVALID)?;
        let operation = match QpType(qp.abi.abi.qp_base.qp_type) {
            QpType::RC | QpType::UC => operation.into(),
            qp_type => self.other_operation(qp_type, operation)?,
        };
        let (word, bytes): ([&[u8]; 1], [&[u8]; 1]);
        let payload = match &self.data {
            Data::None => Payload::Sges(&[]),
            Data::Sge(sge) => Payload::Sges(slice::from_ref(sge)),
            Data::Sges => Payload::Sges(&self.sges),
            Data::Word(all) => {
                word = [all];
                Payload::Inline(&word)
            }
            Data::Bytes => {
                bytes = [&self.bytes];
                Payload::Inline(&bytes)
            }
        };
        let flags = SendFlags::from_bits_truncate(self.flags);
        post(&SendRequest { wr_id: self.wr_id, operation, flags, payload })
            .map_err(|reason| qp.abi.no_room.failure_of_wr(reason))
    }

    /// The operation of a QP that is not RC or UC. A datagram needs an address handle.
    fn other_operation(&self, qp_type: QpType, operation: Operation) -> Result<AnyOperation<'_>, Failure> {
        Ok(match qp_type {
            QpType::UD => {
                let (ah, qp_num, qkey) = self.peer.datagram;
                // SAFETY: the program has set a live address handle, or none.
                let to = Datagram::new(&unsafe { ah.as_ref() }.ok_or(Failure::INVALID)?.inner, qp_num, qkey);
                let imm = if let Operation::SendImm(imm) = operation { Some(imm) } else { None };
                Datagram { imm, ..to }.into()
            }
            QpType::RAW_PACKET => {
                let checksums = WireFlags::from_bits_retain(self.flags).contains(WireFlags::IP_CSUM);
                Frame { header: &self.peer.header, checksums, mss: self.peer.mss }.into()
            }
            QpType::XRC_INI => XrcOperation { remote_srq: self.peer.remote_srq, operation }.into(),
            _ => operation.into(),
        })
    }

    /// Posts the only request by the fast path of a provider. `None`: the fast path declined it.
    #[inline(always)]
    fn post_only<P: BuiltIn>(&self, half: SendHalf<'_, AnyTransport, P>) -> Option<Result<(), PostError>> {
        if self.has_pushed || self.failure.is_some() {
            return None;
        }
        match &self.data {
            Data::Sge(sge) => self.post_only_of(Payload::Sges(slice::from_ref(sge)), half),
            Data::Word(word) => self.post_only_of(Payload::Inline(&[word]), half),
            _ => None,
        }
    }

    /// As [`post_only`](Self::post_only), with this payload. It is compiled for each payload and operation.
    #[inline(always)]
    fn post_only_of<P: BuiltIn>(
        &self,
        payload: Payload<'_>,
        mut half: SendHalf<'_, AnyTransport, P>,
    ) -> Option<Result<(), PostError>> {
        let (wr_id, flags) = (self.wr_id, SendFlags::from_bits_truncate(self.flags));
        let frequent =
            |operation: Operation| SendRequest { wr_id, operation: operation.into(), flags, payload };
        // SAFETY: the program keeps what the request names until it completes.
        unsafe {
            match self.operation? {
                Operation::Write(remote) => half.try_post_send(&frequent(Operation::Write(remote))),
                Operation::Send => half.try_post_send(&frequent(Operation::Send)),
                _ => None,
            }
        }
    }

    /// Posts the requests that were pushed, and the one that is built; none after a failure.
    fn post_all(&mut self, qp: &QpObject, mut batch: Batch<'_, AnyTransport>) -> Result<(), Failure> {
        // A drop of the batch takes the requests back.
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.operation.is_some() {
            self.take_header(qp);
            // SAFETY: the program keeps what the request names until it completes.
            self.with_request(qp, |request| unsafe { batch.push(request) })?;
        }
        batch.ring().map_err(|refused| refused.reason.into())
    }

    /// The list of the SGEs, to which more can be added.
    fn list(&mut self) -> &mut Vec<Sge> {
        if !matches!(self.data, Data::Sges) {
            self.sges.clear();
        }
        if let Data::Sge(sge) = mem::replace(&mut self.data, Data::Sges) {
            self.sges.push(sge);
        }
        &mut self.sges
    }

    #[inline(never)]
    fn add_sges(&mut self, sges: &[Sge]) {
        self.list().extend_from_slice(sges);
    }

    /// Adds inline data to the request.
    #[inline(never)]
    fn add_bytes(&mut self, bytes: &[u8]) {
        if !matches!(self.data, Data::Bytes) {
            self.bytes.clear();
        }
        if let Data::Word(word) = mem::replace(&mut self.data, Data::Bytes) {
            self.bytes.extend_from_slice(&word);
        }
        self.bytes.extend_from_slice(bytes);
    }
}

/// Uses what the calling thread posts.
#[inline(always)]
fn posted<R>(qp: &QpObject, call: impl FnOnce(&mut Posted) -> R) -> R {
    // SAFETY: C calls the functions between `ibv_wr_start` and `ibv_wr_complete` of the same thread, while
    // the queue is locked.
    call(unsafe { &mut *qp.abi.posting.0.get() })
}

/// As [`posted`], for functions of C.
#[inline(always)]
fn set(qp: &QpObject, call: impl FnOnce(&mut Posted)) -> Result<(), Failure> {
    posted(qp, call);
    Ok(())
}

/// Ends what the calling thread posts. Returns the queue, which is still locked; `None` if nothing was
/// started.
#[inline(always)]
fn end(qp: &QpObject) -> Option<Sends<'_>> {
    if !posted(qp, |posted| mem::take(&mut posted.is_started)) {
        return None;
    }
    let queues = qp.inner.queues().ok()?;
    // SAFETY: `ibv_wr_start` has left the queue locked, and nothing else unlocks it now.
    Some(unsafe { queues.locked_send() })
}

/// Begins what the calling thread posts, and leaves the queue locked.
#[inline(always)]
fn start_locked(qp: &QpObject, send: Sends<'_>) {
    send.leave_locked();
    posted(qp, |posted| {
        (posted.is_started, posted.has_pushed) = (true, false);
        (posted.failure, posted.operation) = (None, None);
    });
}

#[cold]
#[inline(never)]
fn start_contended(qp: &QpObject, queues: &Queues) {
    start_locked(qp, queues.send());
}

/// Posts any requests. The caller has left the send queue locked.
#[inline(never)]
fn complete_all(qp: &QpObject) -> c_int {
    let all = || {
        // SAFETY: the queue was left locked.
        let mut send = unsafe { qp.inner.queues()?.locked_send() };
        let mut half = send.half();
        posted(qp, |posted| {
            let all = posted.post_all(qp, half.start_send());
            posted.peer.clear();
            all
        })
    };
    OrErrno::answer(all())
}

/// Reports a request whose doorbell failed.
#[cold]
#[inline(never)]
fn refuse(send: Sends<'_>, refused: PostError) -> c_int {
    drop(send);
    OrErrno::answer(Err(refused.reason.into()))
}

#[inline(always)]
fn begin(qp: &QpObject, operation: impl FnOnce() -> Operation) -> Result<(), Failure> {
    set(qp, |posted| posted.begin(qp, operation))
}

/// Begins a request, or lets `ibv_wr_complete` fail.
fn begin_or_fail(qp: &QpObject, operation: Result<Operation, Failure>) -> Result<(), Failure> {
    set(qp, |posted| match operation {
        Ok(operation) => posted.begin(qp, || operation),
        Err(failure) => drop(posted.failure.get_or_insert(failure)),
    })
}

/// Lets `ibv_wr_complete` fail, because the QP has no room for a list of this length. It is not read.
#[cold]
fn reject_list(qp: &QpObject) -> Result<(), Failure> {
    set(qp, |posted| _ = posted.failure.get_or_insert(qp.abi.no_room.wr))
}

/// The elements of a list of C.
///
/// # Safety
///
/// `list` is null or has `count` elements, which stay unchanged for `'a`.
unsafe fn list<'a, T>(list: *const T, count: usize) -> &'a [T] {
    // SAFETY: by the contract.
    if list.is_null() || count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } }
}

callback! {
    /// `mlx5dv_wr_raw_wqe`. The control segment says how many segments there are.
    fn raw_wqe(mlx5: *mut mlx5dv_qp_ex, wqe: *const [u8; SEGMENT]) -> Value<()> {
        if mlx5.is_null() || wqe.is_null() {
            return Err(Failure::INVALID);
        }
        // SAFETY: the struct is that of a QP, which has a head at its start. The program has as many segments
        // as it says.
        let (qp, wqe) = unsafe {
            let qp = mlx5.wrapping_byte_sub(mem::offset_of!(QpHead, mlx5)).cast::<QpObject>();
            let count = usize::from((*wqe)[7] & 0x3f);
            (&*qp, slice::from_raw_parts(wqe, count))
        };
        let halves = |bytes: &[u8; SEGMENT]| {
            let [first, second] = [&bytes[..8], &bytes[8..]];
            [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("8 bytes")))
        };
        let segments: Vec<Segment> = wqe.iter().map(halves).collect();
        set(qp, |posted| {
            if posted.operation.is_some() {
                posted.push(qp);
                posted.operation = None;
            }
            let wr_id = qp.abi.abi.wr_id.load(Ordering::Relaxed);
            // SAFETY: the program answers for the WQE.
            posted.push_by(qp, |_, batch| unsafe { push_raw_wqe(batch, wr_id, &segments) });
        })
    }

    fn start(qp: &QpObject) -> Value<()> {
        let queues = qp.inner.queues()?;
        let Some(send) = queues.try_send(queues.are_elided()) else {
            start_contended(qp, queues);
            return Ok(());
        };
        start_locked(qp, send);
        Ok(())
    }

    /// Posts all requests, or none if one was rejected. Returns 0 or an errno. The fast path is that of one
    /// request.
    fn wr_complete<P: BuiltIn>(qp: &QpObject) -> Value<c_int> {
        let Some(mut send) = end(qp) else { return Ok(OrErrno::answer(Err(Failure::INVALID))) };
        // SAFETY: the device of the QP has this provider: see `data_path`.
        let half = unsafe { send.half().of_provider::<P>() };
        match posted(qp, |posted| posted.post_only(half)) {
            Some(Ok(())) => Ok(send.unlock_with(0)),
            Some(Err(refused)) => Ok(refuse(send, refused)),
            None => {
                send.leave_locked();
                Ok(complete_all(qp))
            }
        }
    }

    fn abort(qp: &QpObject) -> Value<()> {
        if let Some(mut send) = end(qp) {
            // Takes the requests back.
            drop(send.half().start_send());
            posted(qp, |posted| posted.peer.clear());
        }
        Ok(())
    }

    fn send(qp: &QpObject) -> Value<()> { begin(qp, || Operation::Send) }

    fn send_imm(qp: &QpObject, imm: u32) -> Value<()> {
        begin(qp, move || Operation::SendImm(Imm::from_be(imm)))
    }

    fn send_inv(qp: &QpObject, rkey: u32) -> Value<()> { begin(qp, move || Operation::SendInv(rkey)) }

    fn send_tso(qp: &QpObject, header: *const u8, length: u16, mss: u16) -> Value<()> {
        begin(qp, || Operation::Send)?;
        // SAFETY: the header has this length.
        let header = unsafe { list(header, length.into()) };
        set(qp, |posted| {
            posted.peer.header.extend_from_slice(header);
            posted.peer.mss = Some(mss);
        })
    }

    fn rdma_write(qp: &QpObject, rkey: u32, addr: u64) -> Value<()> {
        begin(qp, move || Operation::Write(Remote { addr, rkey }))
    }

    fn rdma_write_imm(qp: &QpObject, rkey: u32, addr: u64, imm: u32) -> Value<()> {
        begin(qp, move || Operation::WriteImm(Remote { addr, rkey }, Imm::from_be(imm)))
    }

    fn rdma_read(qp: &QpObject, rkey: u32, addr: u64) -> Value<()> {
        begin(qp, move || Operation::Read(Remote { addr, rkey }))
    }

    fn atomic_cmp_swp(qp: &QpObject, rkey: u32, addr: u64, compare: u64, swap: u64) -> Value<()> {
        begin(qp, move || Operation::CmpSwp { remote: Remote { addr, rkey }, compare, swap })
    }

    fn atomic_fetch_add(qp: &QpObject, rkey: u32, addr: u64, add: u64) -> Value<()> {
        begin(qp, move || Operation::FetchAdd { remote: Remote { addr, rkey }, add })
    }

    fn bind_mw(
        qp: &QpObject,
        mw: Option<&MwObject>,
        rkey: u32,
        info: Option<&ibv_mw_bind_info>,
    ) -> Value<()> {
        begin_or_fail(qp, required(info).and_then(|info| window::bind(mw, rkey, info)).map(Operation::BindMw))
    }

    fn local_inv(qp: &QpObject, rkey: u32) -> Value<()> { begin(qp, move || Operation::LocalInv(rkey)) }

    fn atomic_write(qp: &QpObject, rkey: u32, addr: u64, value: Option<&[u8; 8]>) -> Value<()> {
        let remote = Remote { addr, rkey };
        begin_or_fail(qp, required(value).map(|value| Operation::AtomicWrite { remote, value: *value }))
    }

    fn flush(qp: &QpObject, rkey: u32, addr: u64, length: usize, placement: u8, level: u8) -> Value<()> {
        let operation = Operation::Flush {
            remote: Remote { addr, rkey },
            // A longer one is rejected by its placement type.
            length: u32::try_from(length).unwrap_or(u32::MAX),
            placement: PlacementType::from_bits_retain(placement),
            level: SelectivityLevel(level),
        };
        begin(qp, || operation)
    }

    fn set_ud_addr(qp: &QpObject, ah: *const AhObject, qp_num: u32, qkey: u32) -> Value<()> {
        set(qp, |posted| posted.peer.datagram = (ah, qp_num, qkey))
    }

    fn set_xrc_srqn(qp: &QpObject, remote_srq: u32) -> Value<()> {
        set(qp, |posted| posted.peer.remote_srq = remote_srq)
    }

    fn set_sge(qp: &QpObject, lkey: u32, addr: u64, length: u32) -> Value<()> {
        let sge = Sge { addr, length, lkey };
        set(qp, |posted| match posted.data {
            Data::None => posted.data = Data::Sge(sge),
            _ => posted.add_sges(&[sge]),
        })
    }

    fn set_sge_list(qp: &QpObject, count: usize, sges: *const ibv_sge) -> Value<()> {
        if count > qp.abi.cap.max_send_sge as usize {
            return reject_list(qp);
        }
        // SAFETY: the list has this length. Both types have the same layout.
        let sges: &[Sge] = unsafe { list(sges.cast(), count) };
        set(qp, |posted| posted.add_sges(sges))
    }

    fn set_inline_data(qp: &QpObject, addr: *const c_void, length: usize) -> Value<()> {
        if length > qp.abi.cap.max_inline_data as usize {
            return reject_list(qp);
        }
        // SAFETY: the memory has this length.
        let bytes = unsafe { list(addr.cast(), length) };
        set(qp, |posted| match (&posted.data, bytes.try_into()) {
            (Data::None, Ok(word)) => posted.data = Data::Word(word),
            _ => posted.add_bytes(bytes),
        })
    }

    fn set_inline_data_list(qp: &QpObject, count: usize, buffers: *const ibv_data_buf) -> Value<()> {
        let mut room = qp.abi.cap.max_inline_data as usize;
        // SAFETY: the list has this length.
        let buffers = unsafe { list(buffers, count) };
        for buffer in buffers {
            match room.checked_sub(buffer.length) {
                Some(rest) => room = rest,
                None => return reject_list(qp),
            }
        }
        set(qp, |posted| {
            for buffer in buffers {
                // SAFETY: the memory has this length.
                posted.add_bytes(unsafe { list(buffer.addr.cast(), buffer.length) });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted() -> Posted {
        Posting::default().0.into_inner()
    }

    #[test]
    fn data_of_several_setters_is_joined() {
        let sge = |addr| Sge { addr, length: 8, lkey: 1 };
        let mut posted = posted();
        posted.data = Data::Sge(sge(1));
        posted.add_sges(&[sge(2), sge(3)]);
        posted.add_sges(&[sge(4)]);
        assert!(matches!(posted.data, Data::Sges));
        assert_eq!(posted.sges, [1, 2, 3, 4].map(sge));

        posted.data = Data::Word(*b"12345678");
        posted.add_bytes(b"9");
        posted.add_bytes(b"");
        assert!(matches!(posted.data, Data::Bytes));
        assert_eq!(posted.bytes, b"123456789");

        posted.data = Data::None;
        posted.add_sges(&[]);
        posted.add_bytes(b"a");
        assert_eq!((posted.sges.len(), &posted.bytes[..]), (0, &b"a"[..]));
    }

    #[test]
    fn peer_of_an_earlier_request_is_removed() {
        let mut posted = posted();
        posted.peer =
            Peer { datagram: (ptr::dangling(), 1, 2), remote_srq: 3, header: vec![4], mss: Some(5) };
        posted.peer.clear();
        let Peer { datagram: (ah, ..), remote_srq, header, mss } = posted.peer;
        assert_eq!((ah.is_null(), remote_srq, &header[..], mss), (true, 0, &[][..], None));
    }
}
