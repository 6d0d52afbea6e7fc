//! The functions of `ibv_qp_ex` of hooked QPs. Requests are traced when they are completed: then their
//! outcome is known.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bareverbs::qp::QpCap;

use super::trace::{self, Line, Message, add, add_sges};
use super::{Hooked, Hooks, hooks};
use crate::abi::Function;
use crate::abi::memory::ibv_mw_bind_info;
use crate::abi::qp::ibv_qp_ex;
use crate::abi::work::{ibv_data_buf, ibv_sge};
use crate::convention::{Convention, Failure, OrErrno};
use crate::faults::before;
use crate::object::lock;

/// Most requests of a batch that are traced: the memory is bounded.
const MAX_TRACED: usize = 4096;

/// What is posted between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
struct Batch {
    begin: Option<Instant>,
    /// Whether a completion of the QP became an error meanwhile. The QP is moved to ERR at the end: the thread
    /// that polled may be the one that holds the lock of the QP.
    fails_qp: bool,
    finished: Vec<Message>,
    /// The request that is built: its name, ID, flags and members.
    open: Option<(&'static str, u64, u32, String)>,
}

impl Batch {
    fn begin(&mut self, qp: &ibv_qp_ex, name: &'static str, members: String) {
        self.finish(qp);
        if self.finished.len() < MAX_TRACED {
            let (wr_id, flags) = (qp.wr_id.load(Ordering::Relaxed), qp.wr_flags.load(Ordering::Relaxed));
            self.open = Some((name, wr_id, flags, members));
        }
    }

    fn finish(&mut self, qp: &ibv_qp_ex) {
        if let Some((name, wr_id, flags, members)) = self.open.take() {
            self.finished.push(trace::request(name, qp.qp_base.qp_num, wr_id, flags, &members));
        }
    }

    fn set(&mut self, add: impl FnOnce(&mut String)) {
        if let Some((_, _, _, members)) = &mut self.open {
            add(members);
        }
    }
}

/// The members of these names and values.
macro_rules! members {
    ($($name:literal: $value:expr),*) => {{
        #[allow(unused_mut, reason = "a request without members")]
        let mut members = String::new();
        $( add(&mut members, $name, $value); )*
        members
    }};
}

/// Defines the hooks of a QP, and its functions that begin a request or set a part of it.
macro_rules! builders {
    (
        begin { $(
            $begin:ident($($argument:ident: $type:ty),*) =>
                $name:literal { $($member:literal: $value:expr),* };
        )* }
        set { $(
            $set:ident($($set_argument:ident: $set_type:ty),*) |$members:ident, $cap:ident| $how:block
        )* }
    ) => {
        /// The functions that a QP had before.
        pub(crate) struct QpHooks {
            hooks: &'static Hooks,
            cap: QpCap,
            $( $begin: Function, )*
            $( $set: Function, )*
            wr_start: Function,
            wr_complete: Function,
            wr_abort: Function,
            batch: Mutex<Batch>,
        }

        impl QpHooks {
            /// Replaces the functions of a QP that it has, if the environment asks for a trace or faults.
            pub(crate) fn replace(qp: &mut ibv_qp_ex, cap: QpCap) -> Option<Box<Self>> {
                let hooks = hooks()?;
                let replace = |place: &mut Function, by: *const ()| {
                    let by = if place.is_null() { Function::NULL } else { Function::new(by) };
                    std::mem::replace(place, by)
                };
                Some(Box::new(Self {
                    hooks,
                    cap,
                    $( $begin: replace(&mut qp.$begin, $begin as *const ()), )*
                    $( $set: replace(&mut qp.$set, $set as *const ()), )*
                    wr_start: replace(&mut qp.wr_start, wr_start as *const ()),
                    wr_complete: replace(&mut qp.wr_complete, wr_complete as *const ()),
                    wr_abort: replace(&mut qp.wr_abort, wr_abort as *const ()),
                    batch: Mutex::default(),
                }))
            }
        }

        $( unsafe extern "C" fn $begin(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: C calls the function with a live QP with hooks.
            let (qp_of_c, hooks) = unsafe { (&*qp, of_qp(qp)) };
            if hooks.hooks.trace.is_some() {
                lock(&hooks.batch).begin(qp_of_c, $name, members!($($member: $value),*));
            }
            type Begin = unsafe extern "C" fn(*mut ibv_qp_ex $(, $type)*);
            // SAFETY: the original has the type of this function.
            unsafe { hooks.$begin.cast::<Begin>()(qp $(, $argument)*) }
        } )*

        $( unsafe extern "C" fn $set(qp: *mut ibv_qp_ex $(, $set_argument: $set_type)*) {
            // SAFETY: C calls the function with a live QP with hooks.
            let hooks = unsafe { of_qp(qp) };
            if hooks.hooks.trace.is_some() {
                let $cap = hooks.cap;
                lock(&hooks.batch).set(|$members| $how);
            }
            type Set = unsafe extern "C" fn(*mut ibv_qp_ex $(, $set_type)*);
            // SAFETY: the original has the type of this function.
            unsafe { hooks.$set.cast::<Set>()(qp $(, $set_argument)*) }
        } )*
    };
}

builders! {
    begin {
        wr_send() => "SEND" {};
        wr_send_imm(imm: u32) => "SEND_WITH_IMM" { "imm_data": u32::from_be(imm) };
        wr_send_inv(rkey: u32) => "SEND_WITH_INV" { "invalidate_rkey": rkey };
        wr_send_tso(header: *mut c_void, length: u16, mss: u16) =>
            "TSO" { "header_length": length, "mss": mss };
        wr_rdma_write(rkey: u32, addr: u64) => "RDMA_WRITE" { "remote_addr": addr, "rkey": rkey };
        wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) =>
            "RDMA_WRITE_WITH_IMM" { "remote_addr": addr, "rkey": rkey, "imm_data": u32::from_be(imm) };
        wr_rdma_read(rkey: u32, addr: u64) => "RDMA_READ" { "remote_addr": addr, "rkey": rkey };
        wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =>
            "ATOMIC_CMP_AND_SWP" { "remote_addr": addr, "rkey": rkey, "compare_add": compare, "swap": swap };
        wr_atomic_fetch_add(rkey: u32, addr: u64, add_to: u64) =>
            "ATOMIC_FETCH_AND_ADD" { "remote_addr": addr, "rkey": rkey, "compare_add": add_to };
        wr_bind_mw(mw: *mut c_void, rkey: u32, info: *const ibv_mw_bind_info) => "BIND_MW" { "rkey": rkey };
        wr_local_inv(rkey: u32) => "LOCAL_INV" { "invalidate_rkey": rkey };
        wr_atomic_write(rkey: u32, addr: u64, value: *const c_void) =>
            "ATOMIC_WRITE" { "remote_addr": addr, "rkey": rkey };
        wr_flush(rkey: u32, addr: u64, length: usize, placement: u8, level: u8) =>
            "FLUSH" {
                "remote_addr": addr, "rkey": rkey, "length": length, "placement": placement, "level": level
            };
    }
    set {
        wr_set_ud_addr(ah: *mut c_void, qp_num: u32, qkey: u32) |members, _cap| {
            add(members, "remote_qpn", qp_num);
            add(members, "remote_qkey", qkey);
        }
        wr_set_xrc_srqn(remote_srq: u32) |members, _cap| { add(members, "remote_srqn", remote_srq); }
        wr_set_inline_data(addr: *const c_void, length: usize) |members, _cap| {
            add(members, "inline_length", length);
        }
        wr_set_inline_data_list(count: usize, buffers: *const ibv_data_buf) |members, cap| {
            let mut length = 0_usize;
            for at in 0..if buffers.is_null() { 0 } else { count } {
                // SAFETY: the list has this length. The queue reads it up to this element too.
                length = length.saturating_add(unsafe { (*buffers.add(at)).length });
                if length > cap.max_inline_data as usize {
                    break;
                }
            }
            add(members, "inline_length", length);
        }
        wr_set_sge(lkey: u32, addr: u64, length: u32) |members, _cap| {
            add_sges(members, &[ibv_sge { addr, length, lkey }]);
        }
        wr_set_sge_list(count: usize, sges: *const ibv_sge) |members, cap| {
            // The queue rejects a longer list without reading it.
            if count <= cap.max_send_sge as usize {
                // SAFETY: the list has this length.
                add_sges(members, unsafe { list(sges, count) });
            }
        }
    }
}

/// # Safety
///
/// The list has this length.
unsafe fn list<'a, T>(list: *const T, count: usize) -> &'a [T] {
    // SAFETY: by the contract.
    if list.is_null() || count == 0 { &[] } else { unsafe { slice::from_raw_parts(list, count) } }
}

/// The hooks of a QP.
///
/// # Safety
///
/// The QP is live, and has hooks.
unsafe fn of_qp<'a>(qp: *mut ibv_qp_ex) -> &'a QpHooks {
    // SAFETY: by the contract. The object begins with the struct.
    unsafe { Hooked::of(qp.cast::<Hooked<ibv_qp_ex, _>>()) }
}

impl QpHooks {
    /// Whether the QP can't be moved to ERR now, because requests are posted by `ibv_wr_*`. It is moved at
    /// their end.
    pub(crate) fn fails_later(&self) -> bool {
        let mut batch = lock(&self.batch);
        batch.fails_qp = batch.begin.is_some();
        batch.fails_qp
    }

    /// Ends a batch, whose requests are posted or taken back.
    fn end(&self, qp: &ibv_qp_ex, batch: &Batch) {
        if batch.fails_qp {
            self.hooks.fail_qp(qp.qp_base.qp_num);
        }
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: C calls the function with a live QP with hooks.
    let hooks = unsafe { of_qp(qp) };
    // SAFETY: the original has the type of this function.
    unsafe { hooks.wr_start.cast::<unsafe extern "C" fn(*mut ibv_qp_ex)>()(qp) };
    // Behind the lock of the queue: the batch is that of this thread.
    *lock(&hooks.batch) = Batch { begin: Some(Instant::now()), ..Batch::default() };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: C calls the function with a live QP with hooks.
    let (qp_of_c, hooks) = unsafe { (&*qp, of_qp(qp)) };
    let mut batch = std::mem::take(&mut *lock(&hooks.batch));
    batch.finish(qp_of_c);
    if let Err(errno) = before("wr_complete") {
        // SAFETY: the original has the type of `wr_abort`.
        unsafe { hooks.wr_abort.cast::<unsafe extern "C" fn(*mut ibv_qp_ex)>()(qp) };
        hooks.end(qp_of_c, &batch);
        return OrErrno::answer(Err(Failure::of_errno(errno)));
    }
    // SAFETY: the original has the type of this function.
    let result = unsafe { hooks.wr_complete.cast::<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>()(qp) };
    let errno = Failure::last_errno();
    if let (Some(trace), Some(begin)) = (&hooks.hooks.trace, batch.begin) {
        let line = Line { begin, call: "post-send", context: qp_of_c.qp_base.context, result: -result };
        batch.finished.iter().for_each(|request| trace.write(&line, Some(request), None));
    }
    hooks.end(qp_of_c, &batch);
    Failure::restore_errno(errno);
    result
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: C calls the function with a live QP with hooks. The original has its type.
    unsafe {
        let hooks = of_qp(qp);
        let batch = std::mem::take(&mut *lock(&hooks.batch));
        hooks.wr_abort.cast::<unsafe extern "C" fn(*mut ibv_qp_ex)>()(qp);
        hooks.end(&*qp, &batch);
    }
}
