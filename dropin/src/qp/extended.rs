//! The functions of `ibv_qp_ex`: requests in place of structs.
//!
//! A request is pushed once the next one begins, or at `ibv_wr_complete`: its peer and its data may be set
//! in any order. Inline data is copied when it is set.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{self, ManuallyDrop};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{ptr, slice};

use bareverbs::error::PostReason;
use bareverbs::qp::{Batch, Datagram, Frame, Operation, Payload, QpType, SendFlags, SendRequest, Sge};
use bareverbs::raw::uapi::verbs_values::SendFlags as WireFlags;
use bareverbs::raw::uapi::write::types::{PlacementType, SelectivityLevel, WcOpcode};
use bareverbs::untyped::{AnyOperation, AnyTransport};
use bareverbs::xrc::XrcOperation;
use bareverbs::{Imm, Remote};
use bareverbs_mlx5::wqe::{SEGMENT, Segment};

use super::queues::Send;
use super::{QpHead, QpObject};
use crate::abi::Function;
use crate::abi::memory::ibv_mw_bind_info;
use crate::abi::mlx5::mlx5dv_qp_ex;
use crate::abi::qp::{ibv_qp, ibv_qp_ex};
use crate::abi::values::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_WRITE,
    IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH, IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ,
    IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND,
    IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_INV, IBV_QP_EX_WITH_TSO, IBV_WC_DRIVER2,
};
use crate::abi::work::{ibv_data_buf, ibv_sge};
use crate::convention::{Failure, OrErrno, Value, callback, required};
use crate::path::AhObject;
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

/// What a thread posts between `ibv_wr_start` and `ibv_wr_complete` or `ibv_wr_abort`. It holds the lock of
/// the send queue, so only that thread uses the cell.
#[derive(Default)]
pub(super) struct Posting(UnsafeCell<Posted>);

#[derive(Default)]
struct Posted {
    open: Option<Open>,
    /// The data of the request that is built. Its memory is used again.
    sges: Vec<Sge>,
    bytes: Vec<u8>,
}

struct Open {
    /// Dropped before the guard.
    batch: ManuallyDrop<Batch<'static, AnyTransport>>,
    _send: MutexGuard<'static, Send>,
    /// Of the first request that was rejected.
    failure: Option<Failure>,
    /// The batch does not count them.
    has_raw_wqes: bool,
    request: Option<Request>,
}

/// A request that is built.
struct Request {
    wr_id: u64,
    flags: u32,
    operation: Operation,
    /// Of a datagram: address handle, QPN and Q_Key.
    peer: (*const AhObject, u32, u32),
    /// Of XRC.
    remote_srq: u32,
    /// Of a large send.
    header: Vec<u8>,
    mss: Option<u16>,
    is_inline: bool,
}

/// The struct of C with the functions of these operations. `None`: it has none.
pub(super) fn functions(qp_base: ibv_qp, operations: Option<u64>) -> ibv_qp_ex {
    let function = |is_wanted: bool, address| if is_wanted { Function::new(address) } else { Function::NULL };
    let always = |address: *const ()| function(operations.is_some(), address);
    let with = |flag: c_int, address: *const ()| {
        let is_wanted = operations.is_some_and(|all| all & u64::from(flag.cast_unsigned()) != 0);
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
        wr_complete: always(complete as *const ()),
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
unsafe fn push_raw_wqe(open: &mut Open, wr_id: u64, wqe: &[Segment]) -> Result<(), Failure> {
    // SAFETY: the program posts in such a state. The queue is pushed to only.
    let queue = unsafe { open.batch.provider_queue() }.mlx5().ok_or(Failure::INVALID)?;
    let wc_opcode = WcOpcode(IBV_WC_DRIVER2.cast_unsigned());
    // SAFETY: by the contract.
    unsafe { queue.push_whole_wqe(wr_id, wqe, wc_opcode) }.map_err(|error| PostReason::from(error).into())
}

impl Posted {
    /// Begins a request, after the one before it.
    fn begin(&mut self, head: &QpHead, operation: Operation) {
        self.push(head);
        if let Some(open) = &mut self.open {
            open.request = Some(Request {
                wr_id: head.abi.wr_id.load(Ordering::Relaxed),
                flags: head.abi.wr_flags.load(Ordering::Relaxed),
                operation,
                peer: (ptr::null(), 0, 0),
                remote_srq: 0,
                header: Vec::new(),
                mss: None,
                is_inline: false,
            });
        }
        self.sges.clear();
        self.bytes.clear();
    }

    /// Pushes the request that is built, if there is one. After a failure, nothing is pushed.
    fn push(&mut self, head: &QpHead) {
        let Self { open: Some(open), sges, bytes } = self else { return };
        let Some(request) = open.request.take().filter(|_| open.failure.is_none()) else { return };
        let Some(operation) = request.operation(QpType(head.abi.qp_base.qp_type)) else {
            open.failure = Some(Failure::INVALID);
            return;
        };
        let inline: [&[u8]; 1] = [bytes];
        let payload = if request.is_inline { Payload::Inline(&inline) } else { Payload::Sges(sges) };
        let flags = SendFlags::from_bits_truncate(request.flags);
        let request = SendRequest { wr_id: request.wr_id, operation, flags, payload };
        // SAFETY: the program keeps what the request names until it completes.
        open.failure = unsafe { open.batch.push(&request) }.err().map(Failure::from);
    }

    /// Adds inline data to the request.
    fn inline(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if let Some(request) = self.request() {
            request.is_inline = true;
        }
    }

    fn request(&mut self) -> Option<&mut Request> {
        self.open.as_mut()?.request.as_mut()
    }
}

impl Request {
    /// `None` for a datagram without an address handle.
    fn operation(&self, qp_type: QpType) -> Option<AnyOperation<'_>> {
        let operation = self.operation;
        Some(match qp_type {
            QpType::UD => {
                let (ah, qp_num, qkey) = self.peer;
                // SAFETY: the program has set a live address handle, or none.
                let to = Datagram::new(&unsafe { ah.as_ref() }?.inner, qp_num, qkey);
                let imm = if let Operation::SendImm(imm) = operation { Some(imm) } else { None };
                Datagram { imm, ..to }.into()
            }
            QpType::RAW_PACKET => {
                let checksums = WireFlags::from_bits_retain(self.flags).contains(WireFlags::IP_CSUM);
                Frame { header: &self.header, checksums, mss: self.mss }.into()
            }
            QpType::XRC_INI => XrcOperation { remote_srq: self.remote_srq, operation }.into(),
            _ => operation.into(),
        })
    }
}

/// Uses what the calling thread posts.
fn posted<R>(qp: Option<&QpObject>, call: impl FnOnce(&mut Posted, &QpHead) -> R) -> Result<R, Failure> {
    let head = &required(qp)?.abi;
    // SAFETY: C calls the functions between `ibv_wr_start` and `ibv_wr_complete` of the same thread, which
    // holds the lock.
    Ok(call(unsafe { &mut *head.posting.0.get() }, head))
}

fn begin(qp: Option<&QpObject>, operation: Operation) -> Result<(), Failure> {
    posted(qp, |posted, head| posted.begin(head, operation))
}

/// Begins a request, or lets `ibv_wr_complete` fail.
fn begin_or_fail(qp: Option<&QpObject>, operation: Result<Operation, Failure>) -> Result<(), Failure> {
    posted(qp, |posted, head| match operation {
        Ok(operation) => posted.begin(head, operation),
        Err(failure) => {
            if let Some(open) = &mut posted.open {
                open.failure.get_or_insert(failure);
            }
        }
    })
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
        posted(Some(qp), |posted, head| {
            posted.push(head);
            let wr_id = head.abi.wr_id.load(Ordering::Relaxed);
            if let Some(open) = posted.open.as_mut().filter(|open| open.failure.is_none()) {
                // SAFETY: the program answers for the WQE.
                open.failure = unsafe { push_raw_wqe(open, wr_id, &segments) }.err();
                open.has_raw_wqes = true;
            }
        })
    }

    fn start(qp: Option<&'static QpObject>) -> Value<()> {
        let qp = required(qp)?;
        let mut send = qp.inner.queues()?.send();
        let half: *mut Send = &raw mut *send;
        // SAFETY: the half exists as long as the guard, which is not used before the batch is gone.
        let batch = unsafe { &mut *half }.start_send();
        // SAFETY: the QP exists until `ibv_wr_complete` or `ibv_wr_abort`, which drop both.
        let send = unsafe { mem::transmute::<MutexGuard<'_, Send>, MutexGuard<'static, Send>>(send) };
        let open = Open { batch: ManuallyDrop::new(batch), _send: send, failure: None, has_raw_wqes: false, request: None };
        posted(Some(qp), |posted, _| posted.open = Some(open))
    }

    /// Posts all requests, or none if one was rejected.
    fn complete(qp: Option<&QpObject>) -> OrErrno {
        // The cell is not borrowed any more when the lock is released.
        let open = posted(qp, |posted, head| {
            posted.push(head);
            posted.open.take()
        })?;
        let Open { batch, _send, failure, has_raw_wqes, .. } = open.ok_or(Failure::INVALID)?;
        let batch = ManuallyDrop::into_inner(batch);
        match failure {
            // The drop of the batch takes the requests back.
            Some(failure) => Err(failure),
            None if batch.is_empty() && !has_raw_wqes => Ok(()),
            None => batch.ring().map_err(|refused| refused.reason.into()),
        }
    }

    fn abort(qp: Option<&QpObject>) -> Value<()> {
        if let Some(Open { batch, _send, .. }) = posted(qp, |posted, _| posted.open.take())? {
            // Takes the requests back.
            drop(ManuallyDrop::into_inner(batch));
        }
        Ok(())
    }

    fn send(qp: Option<&QpObject>) -> Value<()> { begin(qp, Operation::Send) }

    fn send_imm(qp: Option<&QpObject>, imm: u32) -> Value<()> {
        begin(qp, Operation::SendImm(Imm::from_be(imm)))
    }

    fn send_inv(qp: Option<&QpObject>, rkey: u32) -> Value<()> { begin(qp, Operation::SendInv(rkey)) }

    fn send_tso(qp: Option<&QpObject>, header: *const u8, length: u16, mss: u16) -> Value<()> {
        begin(qp, Operation::Send)?;
        // SAFETY: the header has this length.
        let header = unsafe { list(header, length.into()) };
        posted(qp, |posted, _| {
            if let Some(request) = posted.request() {
                (request.header, request.mss) = (header.to_vec(), Some(mss));
            }
        })
    }

    fn rdma_write(qp: Option<&QpObject>, rkey: u32, addr: u64) -> Value<()> {
        begin(qp, Operation::Write(Remote { addr, rkey }))
    }

    fn rdma_write_imm(qp: Option<&QpObject>, rkey: u32, addr: u64, imm: u32) -> Value<()> {
        begin(qp, Operation::WriteImm(Remote { addr, rkey }, Imm::from_be(imm)))
    }

    fn rdma_read(qp: Option<&QpObject>, rkey: u32, addr: u64) -> Value<()> {
        begin(qp, Operation::Read(Remote { addr, rkey }))
    }

    fn atomic_cmp_swp(qp: Option<&QpObject>, rkey: u32, addr: u64, compare: u64, swap: u64) -> Value<()> {
        begin(qp, Operation::CmpSwp { remote: Remote { addr, rkey }, compare, swap })
    }

    fn atomic_fetch_add(qp: Option<&QpObject>, rkey: u32, addr: u64, add: u64) -> Value<()> {
        begin(qp, Operation::FetchAdd { remote: Remote { addr, rkey }, add })
    }

    fn bind_mw(
        qp: Option<&QpObject>,
        mw: Option<&MwObject>,
        rkey: u32,
        info: Option<&ibv_mw_bind_info>,
    ) -> Value<()> {
        begin_or_fail(qp, required(info).and_then(|info| window::bind(mw, rkey, info)).map(Operation::BindMw))
    }

    fn local_inv(qp: Option<&QpObject>, rkey: u32) -> Value<()> { begin(qp, Operation::LocalInv(rkey)) }

    fn atomic_write(qp: Option<&QpObject>, rkey: u32, addr: u64, value: Option<&[u8; 8]>) -> Value<()> {
        let remote = Remote { addr, rkey };
        begin_or_fail(qp, required(value).map(|value| Operation::AtomicWrite { remote, value: *value }))
    }

    fn flush(qp: Option<&QpObject>, rkey: u32, addr: u64, length: usize, placement: u8, level: u8) -> Value<()> {
        let operation = Operation::Flush {
            remote: Remote { addr, rkey },
            // A longer one is rejected by its placement type.
            length: u32::try_from(length).unwrap_or(u32::MAX),
            placement: PlacementType::from_bits_retain(placement),
            level: SelectivityLevel(level),
        };
        begin(qp, operation)
    }

    fn set_ud_addr(qp: Option<&QpObject>, ah: *const AhObject, qp_num: u32, qkey: u32) -> Value<()> {
        posted(qp, |posted, _| {
            if let Some(request) = posted.request() {
                request.peer = (ah, qp_num, qkey);
            }
        })
    }

    fn set_xrc_srqn(qp: Option<&QpObject>, remote_srq: u32) -> Value<()> {
        posted(qp, |posted, _| {
            if let Some(request) = posted.request() {
                request.remote_srq = remote_srq;
            }
        })
    }

    fn set_sge(qp: Option<&QpObject>, lkey: u32, addr: u64, length: u32) -> Value<()> {
        posted(qp, |posted, _| posted.sges.push(Sge { addr, length, lkey }))
    }

    fn set_sge_list(qp: Option<&QpObject>, count: usize, sges: *const ibv_sge) -> Value<()> {
        // SAFETY: the list has this length. Both types have the same layout.
        let sges: &[Sge] = unsafe { list(sges.cast(), count) };
        posted(qp, |posted, _| posted.sges.extend_from_slice(sges))
    }

    fn set_inline_data(qp: Option<&QpObject>, addr: *const c_void, length: usize) -> Value<()> {
        // SAFETY: the memory has this length.
        let bytes = unsafe { list(addr.cast(), length) };
        posted(qp, |posted, _| posted.inline(bytes))
    }

    fn set_inline_data_list(qp: Option<&QpObject>, count: usize, buffers: *const ibv_data_buf) -> Value<()> {
        // SAFETY: the list has this length.
        let buffers = unsafe { list(buffers, count) };
        posted(qp, |posted, _| {
            for buffer in buffers {
                // SAFETY: the memory has this length.
                posted.inline(unsafe { list(buffer.addr.cast(), buffer.length) });
            }
        })
    }
}
