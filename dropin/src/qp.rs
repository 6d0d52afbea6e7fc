//! Queue pairs.

mod extended;
mod kind;
mod posting;
mod queues;
mod rss;

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bareverbs::ah::AhAttr;
use bareverbs::device::DriverId;
use bareverbs::error::{PostReason, PushError};
use bareverbs::mw::inc_rkey;
use bareverbs::qp::{
    DoorbellChoice, Ece, MigState, Operation, Payload, QpAttr, QpAttrMask, QpCap, QpCreateFlags, QpInit,
    QpState, QpType, RateLimit, SendFlags, SendRequest,
};
use bareverbs::untyped::QpCore;
use bareverbs::values::{AckTimeout, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::xrc::{XrcTarget, Xrcd};
use bareverbs::{Access, Error, Gid, PortNum};

use self::extended::Posting;
pub(crate) use self::extended::wr_complete;
pub(crate) use self::kind::AnyQp;
pub(crate) use self::posting::{post_recv, post_send};
use self::queues::Queues;
use crate::abi::Function;
use crate::abi::device::ibv_context;
use crate::abi::gid::ibv_gid;
use crate::abi::memory::{ibv_mw_bind, ibv_pd};
use crate::abi::mlx5::mlx5dv_qp_ex;
use crate::abi::qp::{
    ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr,
};
use crate::abi::srq::ibv_xrcd;
use crate::abi::values::{
    IBV_QP_CREATE_SOURCE_QPN, IBV_QP_INIT_ATTR_CREATE_FLAGS, IBV_QP_INIT_ATTR_IND_TABLE,
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_RX_HASH,
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QP_INIT_ATTR_XRCD, IBV_QP_OPEN_ATTR_CONTEXT, IBV_QP_OPEN_ATTR_NUM,
    IBV_QP_OPEN_ATTR_TYPE, IBV_QP_OPEN_ATTR_XRCD,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, Value, callback, export, inject_faults, required};
use crate::cq::CqObject;
use crate::domain::ParentDomain;
use crate::environment::environment;
use crate::faults;
use crate::hooks::{Hooked, QpHooks};
use crate::memory::PdObject;
use crate::object::{Acknowledged, Object, pointer};
use crate::path;
use crate::srq::{AnySrq, SrqObject};
use crate::window::{self, MwObject};
use crate::xrc::XrcdObject;

/// The struct of C, the acknowledged events of the QP, and the state of `ibv_wr_start`.
#[repr(C)]
pub(crate) struct QpHead {
    abi: ibv_qp_ex,
    /// Behind the struct: see [`Hooked`].
    hooks: Option<Box<QpHooks>>,
    pub(crate) events: Acknowledged,
    /// The flows that steer to the QP.
    pub(crate) flows: AtomicU32,
    posting: Posting,
    /// The granted capacities of a QP with queues.
    cap: QpCap,
    no_room: NoRoom,
    /// Whether the QP has a source QPN.
    has_source: bool,
    /// The functions of ConnectX devices.
    pub(crate) mlx5: mlx5dv_qp_ex,
    /// Whether the QP has the functions of `ibv_qp_ex`.
    is_extended: bool,
    _parent: Option<Arc<ParentDomain>>,
}

const _: () = assert!(offset_of!(QpHead, hooks) == offset_of!(Hooked<ibv_qp_ex, QpHooks>, hooks));

pub(crate) type QpObject = Object<QpHead, AnyQp>;

/// The failures of requests that a QP has no room for. The C providers have one each.
#[derive(Clone, Copy)]
struct NoRoom {
    /// Of `ibv_post_send`, with more SGEs or inline data than the QP has.
    post: Failure,
    /// Of `ibv_wr_complete`, also if the queue is full.
    wr: Failure,
}

impl NoRoom {
    fn of(driver: DriverId) -> Self {
        match driver {
            DriverId::MLX5 => Self { post: Failure::NO_MEMORY, wr: Failure::NO_MEMORY },
            _ => Self { post: Failure::INVALID, wr: Failure::NO_SPACE },
        }
    }

    fn failure_of_post(self, reason: PostReason) -> Failure {
        match reason {
            PostReason::Queue(PushError::TooManySges { .. } | PushError::InlineTooLong { .. }) => self.post,
            reason => reason.into(),
        }
    }

    fn failure_of_wr(self, reason: PostReason) -> Failure {
        use PushError::{InlineTooLong, QueueFull, TooManySges};
        match reason {
            PostReason::Queue(TooManySges { .. } | InlineTooLong { .. } | QueueFull { .. }) => self.wr,
            reason => reason.into(),
        }
    }
}

impl QpObject {
    /// Its context, and the kernel's handle.
    pub(crate) fn kernel_object(&self) -> (*mut ibv_context, u32) {
        (self.abi.abi.qp_base.context, self.abi.abi.qp_base.handle)
    }

    /// Its type, its last known state and its number.
    pub(crate) fn numbers(&self) -> (QpType, QpState, u32) {
        let base = &self.abi.abi.qp_base;
        let state = u8::try_from(base.state.load(Ordering::Relaxed)).unwrap_or(u8::MAX);
        (QpType(base.qp_type), QpState(state), base.qp_num)
    }
}

impl QpHead {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.abi.qp_base.context
    }
}

fn cap_from_c(cap: &ibv_qp_cap) -> QpCap {
    let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = *cap;
    QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

fn cap_to_c(cap: &QpCap) -> ibv_qp_cap {
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = *cap;
    ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
}

/// What `ibv_create_qp_ex` adds.
#[derive(Default)]
struct Extended {
    flags: QpCreateFlags,
    source_qp_num: Option<u32>,
    max_tso_header: u16,
    /// The operations of `ibv_qp_ex`.
    operations: Option<u64>,
    mlx5: Mlx5Options,
}

/// What `mlx5dv_create_qp` adds to `ibv_create_qp_ex`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mlx5Options {
    /// Whether `mlx5dv_qp_ex` has a function for WQEs that the program builds.
    pub(crate) raw_wqes: bool,
    /// Whether the device places short messages into CQEs; `None`: the environment says it.
    pub(crate) scatters_to_cqe: Option<bool>,
}

/// Whether the device places short messages into CQEs. That is asked of QPs that can have it only.
fn scatters_to_cqe(pd: &PdObject, init: &ibv_qp_init_attr, options: Mlx5Options) -> bool {
    let is_possible = [QpType::RC, QpType::UC].contains(&QpType(init.qp_type))
        && init.srq.is_null()
        && init.sq_sig_all == 0
        && pd.inner.context().device().driver_id() == Some(DriverId::MLX5);
    is_possible && options.scatters_to_cqe.unwrap_or(environment().scatters_to_cqe)
}

fn create(pd: &PdObject, init: &mut ibv_qp_init_attr, extended: &Extended) -> Result<*mut ibv_qp, Failure> {
    let context = ContextArgument::of(pd.abi.context).required()?;
    // An XRC initiator has no receives, and so no CQ for them.
    let recv_cq = if QpType(init.qp_type) == QpType::XRC_INI { init.send_cq } else { init.recv_cq };
    // SAFETY: the pointers are those of objects of the program.
    let (send_cq, recv_cq, srq) = unsafe {
        let send_cq = required(init.send_cq.cast::<CqObject>().as_ref())?;
        let recv_cq = required(recv_cq.cast::<CqObject>().as_ref())?;
        (send_cq, recv_cq, init.srq.cast::<SrqObject>().as_ref())
    };
    let (sends, receives, parent) = (send_cq.reference()?, recv_cq.reference()?, pd.abi.parent());
    let created = Object::create(|address| {
        let srq_of_qp = srq.map(|srq| srq.inner.lock());
        let attr = QpInit {
            srq: srq_of_qp.as_deref().map(AnySrq::basic).transpose()?,
            cap: cap_from_c(&init.cap),
            signal_all: init.sq_sig_all != 0,
            flags: extended.flags,
            source_qp_num: extended.source_qp_num,
            max_tso_header: extended.max_tso_header,
            user_data: address,
            scatter_to_cqe: scatters_to_cqe(pd, init, extended.mlx5),
            doorbell: match parent.and_then(|parent| parent.td()) {
                Some(td) => DoorbellChoice::Domain(td),
                None if environment().shares_doorbells => DoorbellChoice::Shared,
                None => DoorbellChoice::Any,
            },
            memory: ParentDomain::memory(parent),
            ..QpInit::with_cqs(&sends, &receives)
        };
        let core = QpCore::create(&pd.inner, QpType(init.qp_type), &attr)?;
        init.cap = cap_to_c(&core.cap());
        let base = ibv_qp {
            qp_context: init.qp_context,
            pd: pointer(Some(pd)),
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            ..bare(pd.abi.context, core.handle(), core.qp_num(), core.state(), init.qp_type)
        };
        let mlx5 = extended::mlx5_functions(extended.mlx5.raw_wqes);
        let (cap, posting) = (core.cap(), Posting::new(&core.cap()));
        let is_single_threaded =
            context.is_single_threaded || parent.is_some_and(|parent| parent.td().is_some());
        let wr_complete = context.data_paths.of(is_single_threaded).wr_complete;
        let operations = extended.operations.map(|operations| (operations, wr_complete));
        let no_room = NoRoom::of(context.context.driver());
        let has_source = extended.source_qp_num.is_some();
        let head = QpHead { mlx5, posting, no_room, has_source, ..head(base, cap, operations, parent) };
        Ok((head, AnyQp::Queues(Queues::new(core, is_single_threaded))))
    });
    created.inspect(|qp: &*mut ibv_qp| {
        // SAFETY: the QP exists until `ibv_destroy_qp`, which forgets it.
        unsafe { faults::remember(*qp, move_to_error) };
    })
}

/// The struct of a QP without other objects.
fn bare(context: *mut ibv_context, handle: u32, qp_num: u32, state: QpState, qp_type: u32) -> ibv_qp {
    ibv_qp {
        context,
        qp_context: ptr::null_mut(),
        pd: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        handle,
        qp_num,
        state: AtomicU32::new(state.0.into()),
        qp_type,
        mutex: MaybeUninit::zeroed(),
        cond: MaybeUninit::zeroed(),
        events_completed: 0,
    }
}

/// With the functions of these operations, and the one that posts them.
fn head(
    base: ibv_qp,
    cap: QpCap,
    operations: Option<(u64, Function)>,
    parent: Option<&Arc<ParentDomain>>,
) -> QpHead {
    let mut abi = extended::functions(base, operations);
    let hooks = QpHooks::replace(&mut abi, cap);
    QpHead {
        abi,
        events: Acknowledged::default(),
        flows: AtomicU32::new(0),
        posting: Posting::default(),
        cap,
        no_room: NoRoom::of(DriverId::UNKNOWN),
        has_source: false,
        mlx5: extended::mlx5_functions(false),
        is_extended: operations.is_some(),
        _parent: parent.cloned(),
        hooks,
    }
}

/// Creates an XRC target or opens one, by `make`.
fn create_target(
    context: ContextArgument<'_>,
    (qp_context, pd): (*mut c_void, *mut ibv_pd),
    xrcd: *mut ibv_xrcd,
    make: impl FnOnce(&Xrcd, u64) -> Result<XrcTarget, Error>,
) -> Result<*mut ibv_qp, Failure> {
    // SAFETY: the pointer is null or that of an XRC domain.
    let xrcd = required(unsafe { xrcd.cast::<XrcdObject>().as_ref() })?;
    Object::create(|address| {
        let target = make(&xrcd.inner, address)?;
        let qp_type = QpType::XRC_TGT.0;
        let of_target = bare(context.pointer(), target.handle(), target.qp_num(), target.state(), qp_type);
        let base = ibv_qp { qp_context, pd, ..of_target };
        Ok((head(base, QpCap::default(), None, None), AnyQp::Target(Mutex::new(target))))
    })
}

/// `ibv_create_qp_ex` of an XRC target. It has no queues, so their attributes are not read.
fn create_xrc_target(
    context: ContextArgument<'_>,
    init: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Failure> {
    if !context.required()?.context.capabilities().xrc {
        return Err(Failure::UNSUPPORTED);
    }
    let mask = init.comp_mask.cast_signed();
    if mask & !(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD) != 0 || mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(Failure::INVALID);
    }
    let pd = if mask & IBV_QP_INIT_ATTR_PD != 0 { init.pd } else { ptr::null_mut() };
    create_target(context, (init.qp_context, pd), init.xrcd, Xrcd::create_target)
}

/// The attributes that `mask` selects. The values of the others are not looked at.
fn attr_from_c(attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, Failure> {
    let has = |bit| mask.contains(bit);
    let path = |bit, attr| if has(bit) { path::from_c(attr) } else { AhAttr::default() };
    let state = |state: u32| u8::try_from(state).map(QpState).map_err(|_| Failure::INVALID);
    let mtu = |mtu: u32| u8::try_from(mtu).ok().and_then(Mtu::from_raw);
    let timeout = |bit, code| selected(has(bit), AckTimeout::new(code), AckTimeout::INFINITE);
    Ok(QpAttr {
        qp_state: if has(QpAttrMask::STATE) { state(attr.qp_state)? } else { QpState::RESET },
        cur_qp_state: if has(QpAttrMask::CUR_STATE) { state(attr.cur_qp_state)? } else { QpState::RESET },
        path_mtu: selected(has(QpAttrMask::PATH_MTU), mtu(attr.path_mtu).map(Some), None)?,
        path_mig_state: match u8::try_from(attr.path_mig_state) {
            Ok(state) => MigState(state),
            Err(_) if !has(QpAttrMask::PATH_MIG_STATE) => MigState::MIGRATED,
            Err(_) => return Err(Failure::INVALID),
        },
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        access: Access::from_bits_retain(attr.qp_access_flags),
        cap: cap_from_c(&attr.cap),
        ah_attr: path(QpAttrMask::AV, &attr.ah_attr),
        alt_ah_attr: path(QpAttrMask::ALT_PATH, &attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: selected(
            has(QpAttrMask::MIN_RNR_TIMER),
            MinRnrTimer::new(attr.min_rnr_timer),
            MinRnrTimer::MAX,
        )?,
        port_num: PortNum(attr.port_num),
        timeout: timeout(QpAttrMask::TIMEOUT, attr.timeout)?,
        retry_cnt: selected(has(QpAttrMask::RETRY_CNT), RetryCount::new(attr.retry_cnt), RetryCount::ZERO)?,
        rnr_retry: selected(has(QpAttrMask::RNR_RETRY), RnrRetry::new(attr.rnr_retry), RnrRetry::ZERO)?,
        alt_port_num: PortNum(attr.alt_port_num),
        alt_timeout: timeout(QpAttrMask::ALT_PATH, attr.alt_timeout)?,
        rate_limit: attr.rate_limit,
    })
}

/// A value that must be valid if it is selected.
fn selected<T>(is_selected: bool, value: Option<T>, other: T) -> Result<T, Failure> {
    if is_selected { value.ok_or(Failure::INVALID) } else { Ok(other) }
}

fn attr_to_c(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state.0.into(),
        cur_qp_state: attr.cur_qp_state.0.into(),
        path_mtu: attr.path_mtu.map_or(0, |mtu| mtu as u32),
        path_mig_state: attr.path_mig_state.0.into(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.access.bits(),
        cap: cap_to_c(&attr.cap),
        ah_attr: path::to_c(&attr.ah_attr),
        alt_ah_attr: path::to_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer.into(),
        port_num: attr.port_num.0,
        timeout: attr.timeout.into(),
        retry_cnt: attr.retry_cnt.into(),
        rnr_retry: attr.rnr_retry.into(),
        alt_port_num: attr.alt_port_num.0,
        alt_timeout: attr.alt_timeout.into(),
        rate_limit: attr.rate_limit,
    }
}

/// `ibv_create_qp_ex` and `mlx5dv_create_qp`. Returns the granted capacities in `init`.
pub(crate) fn create_extended(
    context_argument: ContextArgument<'_>,
    init: &mut ibv_qp_init_attr_ex,
    mlx5: Mlx5Options,
) -> Result<*mut ibv_qp, Failure> {
    let context = &context_argument.required()?.context;
    let mask = init.comp_mask.cast_signed();
    let has = |flag| mask & flag != 0;
    if has(IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH) {
        return rss::create(init);
    }
    if QpType(init.qp_type) == QpType::XRC_TGT {
        return create_xrc_target(context_argument, init);
    }
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if !has(IBV_QP_INIT_ATTR_PD) || has(!known) {
        return Err(Failure::INVALID);
    }
    let flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) { init.create_flags } else { 0 };
    let source = IBV_QP_CREATE_SOURCE_QPN.cast_unsigned();
    let has_source = flags & source != 0;
    let flags = QpCreateFlags::from_bits_retain(flags & !source);
    let capabilities = context.capabilities();
    let operations = if has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        Some(init.send_ops_flags)
    } else {
        mlx5.raw_wqes.then_some(0)
    };
    let supported = extended::operations(QpType(init.qp_type), capabilities.flush, capabilities.atomic_write);
    if operations.is_some_and(|operations| operations & !supported != 0 || has_source) {
        return Err(Failure::UNSUPPORTED);
    }
    let extended = Extended {
        flags,
        source_qp_num: has_source.then_some(init.source_qpn),
        max_tso_header: if has(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) { init.max_tso_header } else { 0 },
        operations,
        mlx5,
    };
    // SAFETY: the pointer is null or that of a PD.
    let pd = unsafe { init.pd.cast::<PdObject>().as_ref() };
    let ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, .. } = *init;
    let mut base = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
    let created = create(required(pd)?, &mut base, &extended)?;
    init.cap = base.cap;
    Ok(created)
}

/// Moves a QP to ERR, at once or by `ibv_wr_complete`.
///
/// # Safety
///
/// The QP is live. The caller holds none of its locks, but that of `ibv_wr_start`.
unsafe fn move_to_error(qp: *const ibv_qp) {
    // SAFETY: by the contract.
    let hooks = unsafe { &*qp.cast::<QpObject>() }.abi.hooks.as_deref();
    if hooks.is_some_and(QpHooks::fails_later) {
        return;
    }
    // SAFETY: the struct consists of numbers.
    let mut attr: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attr.qp_state = QpState::ERR.0.into();
    let mask = QpAttrMask::STATE.bits().cast_signed();
    // SAFETY: by the contract. A QP that can't be in ERR stays in its state.
    unsafe { ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask) };
}

export! {
    /// Returns the granted capacities in `init`.
    fn ibv_create_qp(pd: Option<&PdObject>, init: Option<&mut ibv_qp_init_attr>) -> OrNull<ibv_qp> {
        create(required(pd)?, required(init)?, &Extended::default())
    }

    fn ibv_modify_qp(qp: Option<&QpObject>, attr: Option<&ibv_qp_attr>, mask: c_int) -> OrErrno {
        let qp = required(qp)?;
        let mask = QpAttrMask::from_bits_retain(mask.cast_unsigned());
        let attr = attr_from_c(required(attr)?, mask)?;
        let state = qp.inner.modify(&attr, mask)?;
        qp.abi.abi.qp_base.state.store(state.0.into(), Ordering::Relaxed);
        Ok(())
    }

    fn ibv_query_qp(
        qp: Option<&QpObject>,
        attr: Option<&mut MaybeUninit<ibv_qp_attr>>,
        _mask: c_int,
        init: Option<&mut MaybeUninit<ibv_qp_init_attr>>,
    ) -> OrErrno {
        let qp = required(qp)?;
        let (found, cap, signal_all) = qp.inner.query()?;
        let abi = &qp.abi.abi.qp_base;
        required(attr)?.write(attr_to_c(&found));
        required(init)?.write(ibv_qp_init_attr {
            qp_context: abi.qp_context,
            send_cq: abi.send_cq,
            recv_cq: abi.recv_cq,
            srq: abi.srq,
            cap: cap_to_c(&cap),
            qp_type: abi.qp_type,
            sq_sig_all: signal_all.into(),
        });
        abi.state.store(found.qp_state.0.into(), Ordering::Relaxed);
        Ok(())
    }

    /// A QP with flows or multicast groups is `EBUSY`: `bareverbs` would destroy and detach them.
    fn ibv_destroy_qp(qp: Option<NonNull<QpObject>>) -> OrErrno {
        // SAFETY: the argument is a live QP, of which other calls use the head only, to acknowledge events.
        let (head, inner) = unsafe { (&(*required(qp)?.as_ptr()).abi, &mut (*required(qp)?.as_ptr()).inner) };
        if head.flows.load(Ordering::Relaxed) != 0 || inner.has_groups() {
            return Err(Failure::BUSY);
        }
        faults::forget(required(qp)?.as_ptr().cast());
        // SAFETY: the argument is a live QP, which the program uses no longer, but to acknowledge events.
        unsafe { Object::destroy(required(qp)?, AnyQp::destroy, |head, read| head.events.wait_for(read)) }
    }

    /// Null, if the QP was created without the functions of `ibv_qp_ex`.
    fn ibv_qp_to_qp_ex(qp: Option<&QpObject>) -> OrNull<ibv_qp_ex> {
        let extended = required(qp)?;
        if extended.abi.is_extended { Ok(pointer(Some(extended))) } else { Err(Failure::UNSUPPORTED) }
    }

    /// No order is promised.
    fn ibv_query_qp_data_in_order(_qp: Option<&QpObject>, _opcode: u32, _flags: u32) -> Value<c_int> {
        Ok(0)
    }

    fn ibv_query_ece(qp: Option<&QpObject>, ece: Option<&mut MaybeUninit<ibv_ece>>) -> OrErrno {
        let (qp, ece) = (required(qp)?, required(ece)?);
        let Ece { vendor_id, options } = qp.inner.with_core(|core| core.query_ece())?;
        ece.write(ibv_ece { vendor_id, options, comp_mask: 0 });
        Ok(())
    }

    fn ibv_set_ece(qp: Option<&QpObject>, ece: Option<&ibv_ece>) -> OrErrno {
        let (qp, ece) = (required(qp)?, required(ece)?);
        if ece.vendor_id == 0 {
            return Err(Failure::UNSUPPORTED);
        }
        let asked = Ece { vendor_id: ece.vendor_id, options: ece.options };
        qp.inner.queues()?.with_core(|core| {
            // A device without ECE refuses all options.
            core.query_ece()?;
            if ece.comp_mask != 0 {
                return Err(Failure::INVALID);
            }
            Ok(core.set_ece(asked)?)
        })
    }

    fn ibv_attach_mcast(qp: Option<&QpObject>, gid: Option<&ibv_gid>, lid: u16) -> OrErrno {
        let (qp, group) = (required(qp)?, Gid(required(gid)?.0));
        let attach = |core: &mut QpCore| match lid {
            0 => core.attach_mcast_without_join(group),
            lid => core.attach_mcast_with_lid(group, lid),
        };
        qp.inner.with_core(attach)
    }

    fn ibv_detach_mcast(qp: Option<&QpObject>, gid: Option<&ibv_gid>, _lid: u16) -> OrErrno {
        let (qp, group) = (required(qp)?, Gid(required(gid)?.0));
        qp.inner.with_core(|core| core.detach_mcast(group))
    }
}

callback! {
    /// `ibv_create_qp_ex`. Returns the granted capacities in `init`.
    fn create_qp_ex(context: ContextArgument<'_>, init: Option<&mut ibv_qp_init_attr_ex>) -> OrNull<ibv_qp> {
        inject_faults("create_qp_ex")?;
        create_extended(context, required(init)?, Mlx5Options::default())
    }

    /// `ibv_open_qp`, of XRC targets.
    fn open_qp(context: ContextArgument<'_>, attr: Option<&ibv_qp_open_attr>) -> OrNull<ibv_qp> {
        let (found, attr) = (&context.required()?.context, required(attr)?);
        let mask = attr.comp_mask.cast_signed();
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if !found.capabilities().xrc || mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(Failure::UNSUPPORTED);
        }
        if mask & needed != needed || QpType(attr.qp_type) != QpType::XRC_TGT {
            return Err(Failure::INVALID);
        }
        let has_context = mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if has_context { attr.qp_context } else { ptr::null_mut() };
        create_target(context, (qp_context, ptr::null_mut()), attr.xrcd, |xrcd, address| {
            xrcd.open_target(attr.qp_num, address)
        })
    }

    /// `ibv_modify_qp_rate_limit`.
    fn modify_qp_rate_limit(qp: Option<&QpObject>, attr: Option<&ibv_qp_rate_limit_attr>) -> OrErrno {
        let (qp, attr) = (required(qp)?, required(attr)?);
        if attr.comp_mask != 0 {
            let device = qp.inner.with_core(|core| core.pd().context().query_device())?;
            let has_limits = device.rate_limit_supported_qpts != 0;
            return Err(if has_limits { Failure::INVALID } else { Failure::UNSUPPORTED });
        }
        let limit = RateLimit {
            rate: attr.rate_limit,
            max_burst: attr.max_burst_sz,
            typical_packet: attr.typical_pkt_sz,
        };
        qp.inner.with_core(|core| core.set_rate_limit(&limit))
    }

    /// `ibv_bind_mw`, of windows of type 1. The key of the struct is the new one at once.
    fn bind_mw(qp: Option<&QpObject>, mw: Option<&MwObject>, bind: Option<&ibv_mw_bind>) -> OrErrno {
        let (qp, mw, bind) = (required(qp)?, required(mw)?, required(bind)?);
        if Access::from_bits_retain(bind.bind_info.mw_access_flags).contains(Access::ZERO_BASED) {
            return Err(Failure::INVALID);
        }
        let rkey = inc_rkey(mw.abi.rkey.load(Ordering::Relaxed));
        let request = SendRequest {
            wr_id: bind.wr_id,
            operation: Operation::BindMw(window::bind(Some(mw), rkey, &bind.bind_info)?).into(),
            flags: SendFlags::from_bits_truncate(bind.send_flags),
            payload: Payload::Sges(&[]),
        };
        // SAFETY: the program keeps the region while the window is bound.
        let posted = unsafe { qp.inner.queues()?.send().half().post_send(&[request]) };
        posted.map_err(|refused| Failure::from(refused.reason))?;
        mw.abi.rkey.store(rkey, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_room_have_the_errno_of_the_c_provider() {
        let full = || PostReason::from(PushError::QueueFull { capacity: 1 });
        let too_long = || {
            let (given, max) = (2, 1);
            [PushError::TooManySges { given, max }, PushError::InlineTooLong { given, max }]
                .map(PostReason::from)
        };
        for (driver, long_of_post, of_wr) in
            [(DriverId::MLX5, libc::ENOMEM, libc::ENOMEM), (DriverId::RXE, libc::EINVAL, libc::ENOSPC)]
        {
            let no_room = NoRoom::of(driver);
            assert_eq!(no_room.failure_of_post(full()).errno(), libc::ENOMEM);
            assert_eq!(no_room.failure_of_wr(full()).errno(), of_wr);
            assert_eq!(too_long().map(|reason| no_room.failure_of_post(reason).errno()), [long_of_post; 2]);
            assert_eq!(too_long().map(|reason| no_room.failure_of_wr(reason).errno()), [of_wr; 2]);
            assert_eq!(no_room.failure_of_wr(PostReason::UsesSrq).errno(), libc::EINVAL);
        }
    }
}
