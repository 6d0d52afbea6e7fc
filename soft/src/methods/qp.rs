//! Queue pairs.

use std::collections::BTreeSet;
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Flush;
use bareverbs_transport::{QpAttributes, State};
use bareverbs_uapi::method::UHW_OUT;
use bareverbs_uapi::rxe::{CreateQpResp as DriverResp, MmapInfo};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::uverbs::{ObjectClass, QpCreate};
use bareverbs_uapi::verbs_values::{MigState, QpAttrMask as Mask, QpState};
use bareverbs_uapi::write::structs::{
    CreateQpReq, CreateQpResp, ExCreateQp, ExCreateQpResp, ExModifyQp, ExModifyQpResp, ModifyQpReq,
    PostSendReq, PostSendResp, QueryQpReq, QueryQpResp, SendWr, Sge,
};
use bareverbs_uapi::write::types::CreateQpMask;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::device::check_port;
use super::path::resolve;
use super::state_table::is_allowed;
use super::write_command::Command;
use crate::call::{Call, Sink, named};
use crate::channel::{ChannelKind, ChannelUse, ObjectSink};
use crate::engine::{QpInit, state_of};
use crate::objects::{Object, Qp, Transaction};
use crate::port::{MAX_INLINE, MAX_MTU, MAX_RD_ATOMIC, MAX_SGE, MAX_WR};

/// A QP to create.
struct Request {
    qp_type: QpType,
    pd: u32,
    send_cq: u32,
    recv_cq: u32,
    srq: Option<u32>,
    user_handle: u64,
    caps: QpCap,
    all_signaled: bool,
    flags: QpCreateFlags,
    events: Option<ChannelUse>,
}

/// Checks a type of QPs (`ib_uverbs_create_qp`).
fn check_type(qp_type: QpType) -> Result<(), Errno> {
    match qp_type {
        QpType::RC | QpType::UC | QpType::UD => Ok(()),
        QpType::RAW_PACKET | QpType::XRC_INI | QpType::DRIVER => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::INVAL),
    }
}

fn check_caps(caps: &QpCap, has_srq: bool) -> Result<(), Errno> {
    let sends = caps.max_send_wr <= MAX_WR && caps.max_send_sge <= MAX_SGE;
    let receives = has_srq || (caps.max_recv_wr <= MAX_WR && caps.max_recv_sge <= MAX_SGE);
    if sends && receives && caps.max_inline_data <= MAX_INLINE { Ok(()) } else { Err(Errno::INVAL) }
}

/// Creates a QP. Returns its QPN and capacities.
fn make(
    txn: &mut Transaction<'_>,
    handle: u32,
    request: Request,
    driver: Sink,
    driver_in: usize,
) -> Result<(u32, QpCap), Errno> {
    let state = &mut *txn.state;
    let init = |sink| -> Result<QpInit, Errno> {
        let caps = &request.caps;
        Ok(QpInit {
            pd: *state.pd(request.pd)?,
            qp_type: request.qp_type,
            send_cq: state.cq(request.send_cq)?.id,
            recv_cq: state.cq(request.recv_cq)?.id,
            srq: request.srq.map(|srq| state.srq(srq).map(|srq| srq.id)).transpose()?,
            max_send_wr: caps.max_send_wr,
            max_recv_wr: caps.max_recv_wr,
            max_send_sge: caps.max_send_sge,
            max_recv_sge: caps.max_recv_sge,
            max_inline: caps.max_inline_data,
            all_signaled: request.all_signaled,
            sink,
        })
    };
    let sink = Arc::new(ObjectSink::new(request.events.clone(), request.user_handle));
    let init = init(Arc::clone(&sink))?;
    if driver_in != 0 || driver.len < size_of::<DriverResp>() {
        return Err(Errno::INVAL);
    }
    if !request.flags.is_empty() {
        return Err(Errno::OPNOTSUPP);
    }
    check_type(request.qp_type)?;
    check_caps(&request.caps, request.srq.is_some())?;
    let created = state.port.with(|engine| engine.create_qp(init))?;
    let mut caps = request.caps;
    (caps.max_send_wr, caps.max_send_sge) = (created.max_send_wr, created.max_send_sge);
    caps.max_inline_data = created.max_inline;
    let sq_mi = state.add_ring(&created.sq);
    let rq_mi = created.rq.as_ref().map(|rq| {
        caps.max_recv_wr = created.max_recv_wr;
        state.add_ring(rq)
    });
    let qp = Qp {
        qpn: created.qpn,
        qp_type: request.qp_type,
        sink,
        rings: [Some(sq_mi.offset), rq_mi.map(|mi| mi.offset)],
        caps,
        all_signaled: request.all_signaled,
        groups: BTreeSet::new(),
        set: ModifyQpReq::new_zeroed(),
        attributes: QpAttributes::default(),
    };
    let uses: Vec<u32> =
        [request.pd, request.send_cq, request.recv_cq].into_iter().chain(request.srq).collect();
    state.fill(handle, Object::Qp(Box::new(qp)), &uses);
    let response = DriverResp { rq_mi: rq_mi.unwrap_or(MmapInfo::zeroed()), sq_mi };
    driver.write(0, response.as_bytes())?;
    Ok((created.qpn, caps))
}

pub(super) fn create(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let caps: QpCap = call.value(QpCreate::CAP.id())?;
    let user_handle: u64 = call.value(QpCreate::USER_HANDLE.id())?;
    let qp_type = QpType(call.constant(QpCreate::TYPE.id())? as u32);
    let has = |id| call.has(id);
    match qp_type {
        QpType::XRC_TGT => {
            let others = [
                QpCreate::RECV_CQ_HANDLE.id(),
                QpCreate::SEND_CQ_HANDLE.id(),
                QpCreate::PD_HANDLE.id(),
                QpCreate::IND_TABLE_HANDLE.id(),
            ];
            return Err(if others.into_iter().any(has) { Errno::INVAL } else { Errno::NOENT });
        }
        QpType::RC | QpType::UC | QpType::UD | QpType::RAW_PACKET | QpType::XRC_INI | QpType::DRIVER => {}
        _ => return Err(Errno::INVAL),
    }
    if qp_type == QpType::XRC_INI && has(QpCreate::SRQ_HANDLE.id()) {
        return Err(Errno::INVAL);
    }
    let pd = call.handle(QpCreate::PD_HANDLE.id())?;
    let send_cq = call.handle(QpCreate::SEND_CQ_HANDLE.id())?;
    let recv_cq = match qp_type {
        QpType::XRC_INI => send_cq,
        _ => call.handle(QpCreate::RECV_CQ_HANDLE.id())?,
    };
    let flags = call.flags(QpCreate::FLAGS.id(), named(&QpCreateFlags::INFO))?;
    let mut flags = QpCreateFlags::from_bits_retain(flags);
    let all_signaled = flags.contains(QpCreateFlags::SQ_SIG_ALL);
    flags.remove(QpCreateFlags::SQ_SIG_ALL);
    if has(QpCreate::SOURCE_QPN.id()) {
        call.value::<u32>(QpCreate::SOURCE_QPN.id())?;
        return Err(Errno::OPNOTSUPP);
    }
    let srq = has(QpCreate::SRQ_HANDLE.id()).then(|| call.handle(QpCreate::SRQ_HANDLE.id())).transpose()?;
    let events = call.channel(txn.state, QpCreate::EVENT_FD.id(), ChannelKind::Async)?;
    let events = events.or_else(|| txn.state.default_events());
    let request =
        Request { qp_type, pd, send_cq, recv_cq, srq, user_handle, caps, all_signaled, flags, events };
    let driver_in = call.source(bareverbs_uapi::method::UHW_IN).len();
    let handle = call.handle(QpCreate::HANDLE.id())?;
    let (qpn, caps) = make(txn, handle, request, call.sink(UHW_OUT), driver_in)?;
    call.write_struct(QpCreate::RESP_CAP.id(), caps.as_bytes())?;
    call.write(QpCreate::RESP_QP_NUM.id(), qpn.as_bytes())?;
    call.mark_written(UHW_OUT);
    Ok(())
}

/// The flags of the extended command, which are those of `ib_qp_create_flags`.
const FLAGS: u32 = 0xf1e;

fn create_of(
    txn: &mut Transaction<'_>,
    command: &mut Command<'_>,
    request: &ExCreateQp,
) -> Result<(), Errno> {
    let qp_type = QpType(request.qp_type.into());
    let handle = txn.reserve(ObjectClass::QP)?;
    if request.comp_mask.contains(CreateQpMask::IND_TABLE) {
        return Err(Errno::INVAL);
    }
    match qp_type {
        QpType::RC | QpType::UC | QpType::UD | QpType::RAW_PACKET | QpType::XRC_INI | QpType::DRIVER => {}
        // There are no XRC domains.
        _ => return Err(Errno::INVAL),
    }
    let srq = match request.is_srq {
        0 => None,
        _ if qp_type == QpType::XRC_INI => None,
        _ => {
            txn.state.srq(request.srq_handle)?;
            Some(request.srq_handle)
        }
    };
    txn.state.cq(request.recv_cq_handle)?;
    txn.state.cq(request.send_cq_handle)?;
    txn.state.pd(request.pd_handle)?;
    if request.create_flags.bits() & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    let caps = QpCap {
        max_send_wr: request.max_send_wr,
        max_recv_wr: request.max_recv_wr,
        max_send_sge: request.max_send_sge,
        max_recv_sge: request.max_recv_sge,
        max_inline_data: request.max_inline_data,
    };
    let wanted = Request {
        qp_type,
        pd: request.pd_handle,
        send_cq: request.send_cq_handle,
        recv_cq: request.recv_cq_handle,
        srq,
        user_handle: request.user_handle,
        caps,
        all_signaled: request.sq_sig_all != 0,
        flags: request.create_flags,
        events: txn.state.default_events(),
    };
    let (qpn, caps) = make(txn, handle, wanted, command.driver_output, command.driver_input.len())?;
    let base = CreateQpResp {
        qp_handle: handle,
        qpn,
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
        ..CreateQpResp::zeroed()
    };
    let response_length = command.response_length(size_of::<ExCreateQpResp>());
    command.respond(&ExCreateQpResp { base, comp_mask: 0, response_length })
}

pub(super) fn create_by_command(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: CreateQpReq = command.request()?;
    let request = ExCreateQp {
        user_handle: request.user_handle,
        pd_handle: request.pd_handle,
        send_cq_handle: request.send_cq_handle,
        recv_cq_handle: request.recv_cq_handle,
        srq_handle: request.srq_handle,
        max_send_wr: request.max_send_wr,
        max_recv_wr: request.max_recv_wr,
        max_send_sge: request.max_send_sge,
        max_recv_sge: request.max_recv_sge,
        max_inline_data: request.max_inline_data,
        sq_sig_all: request.sq_sig_all,
        qp_type: request.qp_type,
        is_srq: request.is_srq,
        ..ExCreateQp::zeroed()
    };
    create_of(txn, command, &request)
}

pub(super) fn create_extended(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: ExCreateQp = command.request()?;
    if request.comp_mask.bits() & !CreateQpMask::IND_TABLE.bits() != 0 || request.reserved != 0 {
        return Err(Errno::INVAL);
    }
    create_of(txn, command, &request)
}

/// The attributes that all kernels know.
const STANDARD: u32 = (1 << 21) - 1;

pub(super) fn modify(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: ModifyQpReq = command.request()?;
    modify_to(txn, request)
}

pub(super) fn modify_extended(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: ExModifyQp = command.request()?;
    modify_to(txn, request.base)?;
    let response_length = command.response_length(size_of::<ExModifyQpResp>());
    command.respond(&ExModifyQpResp { comp_mask: 0, response_length })
}

/// The state of a QP as the transport has it.
fn transport_state(state: QpState) -> Option<State> {
    Some(match state {
        QpState::RESET => State::Reset,
        QpState::INIT => State::Init,
        QpState::RTR => State::ReadyToReceive,
        QpState::RTS => State::ReadyToSend,
        QpState::SQD => State::SendQueueDrained,
        QpState::SQE => State::SendQueueError,
        QpState::ERR => State::Error,
        _ => return None,
    })
}

fn modify_to(txn: &mut Transaction<'_>, mut request: ModifyQpReq) -> Result<(), Errno> {
    if request.attr_mask.bits() & !STANDARD != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let port = Arc::clone(&txn.state.port);
    let qp = txn.state.qp_mut(request.qp_handle)?;
    complete_ports(&mut request, qp)?;
    let mask = request.attr_mask;
    let is_state = |state: QpState| state.0 <= QpState::ERR.0;
    if (mask.contains(Mask::CUR_STATE) && !is_state(request.cur_qp_state))
        || (mask.contains(Mask::STATE) && !is_state(request.qp_state))
    {
        return Err(Errno::INVAL);
    }
    let path = if mask.contains(Mask::AV) { Some(resolve(&port, &request.dest)?) } else { None };
    // Alternate paths are of InfiniBand.
    if mask.contains(Mask::ALT_PATH) {
        resolve(&port, &request.alt_dest)?;
        return Err(Errno::INVAL);
    }
    request.rq_psn &= 0xff_ffff;
    request.sq_psn &= 0xff_ffff;
    check_attributes(qp, &request)?;
    let (qpn, qp_type) = (qp.qpn, qp.qp_type);
    let (mut set, mut attributes) = (qp.set, qp.attributes.clone());
    store(&mut set, &mut attributes, &request);
    // A timer may move the QP to ERR at any time, so the check and the change are under one lock.
    let attributes = port.with(|engine| {
        let current = engine.qp_state(qpn).ok_or(Errno::INVAL)?;
        let from = state_of(current);
        let mut to = current;
        if mask.contains(Mask::STATE) {
            let assumed = mask.contains(Mask::CUR_STATE).then_some(request.cur_qp_state);
            let is_right = assumed.is_none_or(|assumed| assumed == from);
            if !is_right || !is_allowed(qp_type, from, request.qp_state, mask) {
                return Err(Errno::INVAL);
            }
            to = transport_state(request.qp_state).ok_or(Errno::INVAL)?;
        }
        if let Some(path) = path {
            attributes.route = engine.route(&path).ok_or(Errno::INVAL)?;
            attributes.route.service_level = request.dest.sl;
        }
        engine.modify_qp(qpn, to, attributes.clone());
        Ok(attributes)
    })?;
    (qp.set, qp.attributes) = (set, attributes);
    Ok(())
}

/// Checks the ports, and completes the mask (`modify_qp` of `core/uverbs_cmd.c`).
fn complete_ports(request: &mut ModifyQpReq, qp: &Qp) -> Result<(), Errno> {
    let mask = request.attr_mask;
    if mask.contains(Mask::PORT) {
        check_port(request.port_num.into())?;
    }
    if mask.contains(Mask::AV) {
        check_port(request.dest.port_num.into())?;
        if mask.contains(Mask::STATE) && request.qp_state == QpState::RTR {
            if request.dest.port_num != qp.set.port_num {
                return Err(Errno::INVAL);
            }
        } else if !mask.contains(Mask::PORT) {
            request.attr_mask |= Mask::PORT;
            request.port_num = request.dest.port_num;
        } else if request.port_num != request.dest.port_num {
            return Err(Errno::INVAL);
        }
    }
    if mask.contains(Mask::ALT_PATH) {
        check_port(request.alt_port_num.into())?;
        check_port(request.alt_dest.port_num.into())?;
    }
    Ok(())
}

/// The remote rights of QPs.
const QP_ACCESS: AccessFlags = AccessFlags::REMOTE_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC)
    .union(AccessFlags::LOCAL_WRITE)
    .union(AccessFlags::MW_BIND)
    .union(AccessFlags::FLUSH_GLOBAL)
    .union(AccessFlags::FLUSH_PERSISTENT);

/// Checks values (`rxe_qp_chk_attr`).
fn check_attributes(qp: &Qp, request: &ModifyQpReq) -> Result<(), Errno> {
    let mask = request.attr_mask;
    let access = request.qp_access_flags;
    let wrong = (mask.contains(Mask::ACCESS_FLAGS)
        && (qp.qp_type == QpType::UD || !QP_ACCESS.contains(access)))
        || (mask.contains(Mask::PATH_MTU) && request.path_mtu.0 > MAX_MTU.0)
        || (mask.contains(Mask::MAX_QP_RD_ATOMIC) && request.max_rd_atomic > MAX_RD_ATOMIC)
        || (mask.contains(Mask::TIMEOUT) && request.timeout > 31);
    if wrong { Err(Errno::INVAL) } else { Ok(()) }
}

/// Stores the attributes that the mask names.
fn store(set: &mut ModifyQpReq, attributes: &mut QpAttributes, request: &ModifyQpReq) {
    let mask = request.attr_mask;
    let has = |attribute| mask.contains(attribute);
    if has(Mask::ACCESS_FLAGS) {
        let access = request.qp_access_flags;
        set.qp_access_flags = access;
        attributes.remote_write = access.contains(AccessFlags::REMOTE_WRITE);
        let placement =
            [(AccessFlags::FLUSH_GLOBAL, Flush::GLOBAL), (AccessFlags::FLUSH_PERSISTENT, Flush::PERSISTENT)];
        let allowed = placement.into_iter().filter(|(flag, _)| access.contains(*flag));
        attributes.remote_flush = allowed.fold(0, |all, (_, placement)| all | placement);
    }
    if has(Mask::PKEY_INDEX) {
        set.pkey_index = request.pkey_index;
    }
    if has(Mask::PORT) {
        set.port_num = request.port_num;
    }
    if has(Mask::QKEY) {
        set.qkey = request.qkey;
        attributes.qkey = request.qkey;
    }
    if has(Mask::AV) {
        set.dest = request.dest;
    }
    if has(Mask::PATH_MTU) {
        set.path_mtu = request.path_mtu;
        attributes.mtu = 128 << request.path_mtu.0.min(MAX_MTU.0);
    }
    if has(Mask::TIMEOUT) {
        set.timeout = request.timeout;
        attributes.ack_timeout = request.timeout;
    }
    if has(Mask::RETRY_CNT) {
        set.retry_cnt = request.retry_cnt;
        attributes.retry_count = request.retry_cnt;
    }
    if has(Mask::RNR_RETRY) {
        set.rnr_retry = request.rnr_retry;
        attributes.rnr_retry = request.rnr_retry;
    }
    if has(Mask::RQ_PSN) {
        attributes.receive_psn = request.rq_psn;
    }
    if has(Mask::MIN_RNR_TIMER) {
        set.min_rnr_timer = request.min_rnr_timer;
        attributes.min_rnr_timer = request.min_rnr_timer.0;
    }
    if has(Mask::SQ_PSN) {
        attributes.send_psn = request.sq_psn;
    }
    if has(Mask::MAX_QP_RD_ATOMIC) {
        // rxe rounds both depths up.
        set.max_rd_atomic = rounded(request.max_rd_atomic);
        attributes.max_rd_atomic = set.max_rd_atomic;
    }
    if has(Mask::MAX_DEST_RD_ATOMIC) {
        set.max_dest_rd_atomic = rounded(request.max_dest_rd_atomic);
        attributes.max_dest_rd_atomic = set.max_dest_rd_atomic;
    }
    // Without depth, rxe refuses them as it does without the right.
    let executes = |right| set.max_dest_rd_atomic > 0 && set.qp_access_flags.contains(right);
    attributes.remote_read = executes(AccessFlags::REMOTE_READ);
    attributes.remote_atomic = executes(AccessFlags::REMOTE_ATOMIC);
    if has(Mask::PATH_MIG_STATE) {
        set.path_mig_state = request.path_mig_state;
    }
    if has(Mask::DEST_QPN) {
        set.dest_qp_num = request.dest_qp_num;
        attributes.remote_qp = request.dest_qp_num;
    }
}

/// A depth, rounded up to a power of two.
fn rounded(depth: u8) -> u8 {
    match depth {
        0 => 0,
        depth => depth.checked_next_power_of_two().unwrap_or(MAX_RD_ATOMIC),
    }
}

pub(super) fn query(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let QueryQpReq { qp_handle, .. } = command.request()?;
    let qp = txn.state.qp(qp_handle)?;
    let (state, (rq_psn, sq_psn)) = txn.state.port.with(|engine| {
        let state = engine.qp_state(qp.qpn).ok_or(Errno::INVAL)?;
        Ok((state_of(state), engine.psns(qp.qpn)))
    })?;
    let (set, caps) = (&qp.set, &qp.caps);
    let response = QueryQpResp {
        dest: set.dest,
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline_data,
        qkey: set.qkey,
        rq_psn,
        sq_psn,
        dest_qp_num: set.dest_qp_num,
        qp_access_flags: set.qp_access_flags,
        pkey_index: set.pkey_index,
        qp_state: state,
        cur_qp_state: state,
        path_mtu: set.path_mtu,
        path_mig_state: MigState::MIGRATED,
        max_rd_atomic: set.max_rd_atomic,
        max_dest_rd_atomic: set.max_dest_rd_atomic,
        min_rnr_timer: set.min_rnr_timer,
        port_num: set.port_num,
        timeout: set.timeout,
        retry_cnt: set.retry_cnt,
        rnr_retry: set.rnr_retry,
        sq_sig_all: qp.all_signaled.into(),
        ..QueryQpResp::zeroed()
    };
    command.respond(&response)
}

/// The most that the kernel allocates for a work request.
const MAX_ALLOCATION: usize = 4 << 20;

/// The doorbell. Work requests in the command are checked but not executed: rxe reads the ring.
pub(super) fn post_send(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let mut request = PostSendReq::new_zeroed();
    let len = size_of::<PostSendReq>();
    if command.input.len() < len {
        return Err(Errno::NOSPC);
    }
    command.input.read(0, request.as_mut_bytes())?;
    let (wqes, sges) = (request.wqe_size as usize, size_of::<Sge>());
    let sizes = (wqes.checked_mul(request.wr_count as usize), sges.checked_mul(request.sge_count as usize));
    let (Some(requests), Some(elements)) = sizes else { return Err(Errno::NOSPC) };
    let end = len.checked_add(requests).and_then(|end| end.checked_add(elements)).ok_or(Errno::NOSPC)?;
    if end > command.input.len() {
        return Err(Errno::NOSPC);
    }
    if !command.input.is_zero_from(end)? {
        return Err(Errno::OPNOTSUPP);
    }
    if wqes < size_of::<SendWr>() {
        return Err(Errno::INVAL);
    }
    if wqes > MAX_ALLOCATION {
        return Err(Errno::NOMEM);
    }
    let qpn = txn.state.qp(request.qp_handle)?.qpn;
    let mut used = 0_u64;
    for at in 0..request.wr_count as usize {
        let mut bytes = [0; size_of::<SendWr>()];
        command.input.read(len + at * wqes, &mut bytes)?;
        let wr = SendWr::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)?;
        used += u64::from(wr.num_sge);
        if used > request.sge_count.into() {
            return Err(Errno::INVAL);
        }
    }
    let result = txn.state.port.with(|engine| engine.post_send(qpn));
    let bad_wr = if result.is_err() { request.wr_count } else { 0 };
    command.respond(&PostSendResp { bad_wr })?;
    result
}
