//! Work requests of C as those of `bareverbs`.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::{ptr, slice};

use bareverbs::error::PostError;
use bareverbs::qp::{
    Batch, Datagram, Frame, Operation, Payload, RecvRequest, SendFlags, SendHalf, SendRequest, Sge,
};
use bareverbs::raw::uapi::uverbs::types::QpType;
use bareverbs::raw::uapi::verbs_values::SendFlags as WireFlags;
use bareverbs::raw::uapi::write::types::WrOpcode;
use bareverbs::untyped::{AnyOperation, AnyTransport, BuiltIn};
use bareverbs::xrc::XrcOperation;
use bareverbs::{AnyProvider, Imm, Remote};

use crate::abi::work::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::convention::{Failure, required};
use crate::cq::unsigned;
use crate::path::AhObject;
use crate::window::{self, MwObject};

/// The SGEs of a request.
///
/// # Safety
///
/// `list` has `count` elements, which stay unchanged for `'a`.
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], Failure> {
    match unsigned(count)? as usize {
        0 => Ok(&[]),
        _ if list.is_null() => Err(Failure::INVALID),
        // SAFETY: by the contract. Both types have the same layout.
        count => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
    }
}

/// The receives of a list of C, up to one whose SGEs are wrong.
pub(crate) struct Receives<'a> {
    next: *mut ibv_recv_wr,
    /// The last one that was taken, or the wrong one.
    current: *mut ibv_recv_wr,
    failure: Option<Failure>,
    _list: PhantomData<&'a ibv_recv_wr>,
}

impl<'a> Iterator for Receives<'a> {
    type Item = RecvRequest<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<RecvRequest<'a>> {
        self.current = self.next;
        // SAFETY: the element of the list is valid, by the contract of `post_receives`.
        let request = unsafe { self.current.as_ref() }?;
        // SAFETY: as above.
        let sges = unsafe {
            // Most have one SGE.
            let one = if request.num_sge == 1 { request.sg_list.cast::<Sge>().as_ref() } else { None };
            match one {
                Some(sge) => Ok(slice::from_ref(sge)),
                None => sges(request.sg_list, request.num_sge),
            }
        };
        match sges {
            Ok(sges) => {
                self.next = request.next;
                Some(RecvRequest { wr_id: request.wr_id, sges })
            }
            Err(failure) => {
                self.failure = Some(failure);
                None
            }
        }
    }
}

/// Posts a list of receives, by `post`, which takes none after the first one that is rejected. `bad` becomes
/// the first one that was not posted.
///
/// # Safety
///
/// `first` is null or the head of a list, whose structs and SGEs are valid. The contract of
/// `RecvHalf::post_recv` holds for the requests.
#[inline(always)]
pub(crate) unsafe fn post_receives<'a>(
    first: *mut ibv_recv_wr,
    bad: Option<&mut *mut ibv_recv_wr>,
    post: impl FnOnce(&mut Receives<'a>) -> Result<(), PostError>,
) -> Result<(), Failure> {
    let bad = required(bad)?;
    let mut receives = Receives { next: first, current: first, failure: None, _list: PhantomData };
    let posted = post(&mut receives).map_err(|refused| refused.reason.into());
    posted.and(receives.failure.map_or(Ok(()), Err)).inspect_err(|_| *bad = receives.current)
}

/// The operation of a request to a QP of this type.
fn operation(qp_type: QpType, request: &ibv_send_wr) -> Result<AnyOperation<'_>, Failure> {
    let imm = Imm::from_be(request.imm_data);
    let opcode = WrOpcode(request.opcode);
    match qp_type {
        QpType::UD => {
            // SAFETY: the peer of a request to a UD QP is an address handle.
            let peer = unsafe { request.wr.ud };
            // SAFETY: the handle exists, by the manual.
            let ah = unsafe { peer.ah.cast::<AhObject>().as_ref() }.ok_or(Failure::INVALID)?;
            let to = Datagram::new(&ah.inner, peer.remote_qpn, peer.remote_qkey);
            match opcode {
                WrOpcode::SEND => Ok(to.into()),
                WrOpcode::SEND_WITH_IMM => Ok(Datagram { imm: Some(imm), ..to }.into()),
                _ => Err(Failure::INVALID),
            }
        }
        QpType::RAW_PACKET => {
            let checksums = WireFlags::from_bits_retain(request.send_flags).contains(WireFlags::IP_CSUM);
            match opcode {
                WrOpcode::SEND => Ok(Frame { checksums, ..Frame::default() }.into()),
                WrOpcode::TSO => {
                    // SAFETY: a request with this opcode has a header.
                    let tso = unsafe { request.extra.tso };
                    if tso.hdr.is_null() {
                        return Err(Failure::INVALID);
                    }
                    // SAFETY: the header has this length, by the manual.
                    let header = unsafe { slice::from_raw_parts(tso.hdr.cast(), tso.hdr_sz.into()) };
                    Ok(Frame { header, checksums, mss: Some(tso.mss) }.into())
                }
                _ => Err(Failure::INVALID),
            }
        }
        QpType::XRC_INI => {
            let remote_srq = request.qp_type.remote_srqn;
            Ok(XrcOperation { remote_srq, operation: connected(opcode, imm, request)? }.into())
        }
        _ => Ok(connected(opcode, imm, request)?.into()),
    }
}

/// The operation of a request to a connected QP.
fn connected(opcode: WrOpcode, imm: Imm, request: &ibv_send_wr) -> Result<Operation, Failure> {
    // SAFETY: all bits of both are valid, and the union is as long as the longer one.
    let (rdma, atomic) = unsafe { (request.wr.rdma, request.wr.atomic) };
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let remote_atomic = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    Ok(match opcode {
        WrOpcode::SEND => Operation::Send,
        WrOpcode::SEND_WITH_IMM => Operation::SendImm(imm),
        WrOpcode::SEND_WITH_INV => Operation::SendInv(request.imm_data),
        WrOpcode::RDMA_WRITE => Operation::Write(remote),
        WrOpcode::RDMA_WRITE_WITH_IMM => Operation::WriteImm(remote, imm),
        WrOpcode::RDMA_READ => Operation::Read(remote),
        WrOpcode::ATOMIC_CMP_AND_SWP => {
            Operation::CmpSwp { remote: remote_atomic, compare: atomic.compare_add, swap: atomic.swap }
        }
        WrOpcode::ATOMIC_FETCH_AND_ADD => {
            Operation::FetchAdd { remote: remote_atomic, add: atomic.compare_add }
        }
        WrOpcode::LOCAL_INV => Operation::LocalInv(request.imm_data),
        WrOpcode::BIND_MW => {
            // SAFETY: a request with this opcode has a window.
            let bind = unsafe { request.extra.bind_mw };
            // SAFETY: the pointer is null or that of a window.
            let mw = unsafe { bind.mw.cast::<MwObject>().as_ref() };
            Operation::BindMw(window::bind(mw, bind.rkey, &bind.bind_info)?)
        }
        _ => return Err(Failure::INVALID),
    })
}

/// What takes the requests that the fast path of the queue of an RC or UC QP may take. It is compiled for
/// each kind of request, so operation and kind of payload are constants in it.
pub(crate) trait FastPath<P: BuiltIn> {
    type Output;

    /// Posts or pushes the request. `None`: the fast path declined it.
    ///
    /// # Safety
    ///
    /// As for `SendHalf::post_send`.
    unsafe fn take(self, request: &SendRequest<'_, AnyOperation<'_, P>>) -> Option<Self::Output>;
}

/// Posts by the fast path of a provider.
pub(crate) struct PostBy<'a, P: BuiltIn>(pub(crate) SendHalf<'a, AnyTransport, P>);

impl<P: BuiltIn> FastPath<P> for PostBy<'_, P> {
    type Output = Result<(), PostError>;

    #[inline(always)]
    unsafe fn take(mut self, request: &SendRequest<'_, AnyOperation<'_, P>>) -> Option<Self::Output> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.0.try_post_send(request) }
    }
}

impl FastPath<AnyProvider> for &mut Batch<'_, AnyTransport> {
    type Output = ();

    #[inline(always)]
    unsafe fn take(self, request: &SendRequest<'_, AnyOperation<'_>>) -> Option<()> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.try_push(request) }.then_some(())
    }
}

/// Passes a send or a write of one SGE or one piece of inline data to the fast path. `None` also for other
/// requests.
///
/// # Safety
///
/// As for [`with_send`] and [`FastPath::take`].
#[inline(always)]
pub(crate) unsafe fn frequent_send<P: BuiltIn, F: FastPath<P>>(
    request: &ibv_send_wr,
    fast: F,
) -> Option<F::Output> {
    if request.num_sge != 1 {
        return None;
    }
    // SAFETY: the list has one element, by the contract.
    let sge = unsafe { request.sg_list.cast::<Sge>().as_ref() }?;
    // SAFETY: the caller's contract is the same.
    unsafe {
        if WireFlags::from_bits_retain(request.send_flags).contains(WireFlags::INLINE) {
            frequent_send_of(request, Payload::Inline(&[bytes(sge)]), fast)
        } else {
            frequent_send_of(request, Payload::Sges(slice::from_ref(sge)), fast)
        }
    }
}

/// As [`frequent_send`], with this payload.
///
/// # Safety
///
/// As for [`frequent_send`].
#[inline(always)]
unsafe fn frequent_send_of<P: BuiltIn, F: FastPath<P>>(
    request: &ibv_send_wr,
    payload: Payload<'_>,
    fast: F,
) -> Option<F::Output> {
    let frequent = |operation: Operation| SendRequest {
        wr_id: request.wr_id,
        operation: operation.into(),
        flags: SendFlags::from_bits_truncate(request.send_flags),
        payload,
    };
    // SAFETY: the caller's contract is the same. All bits of the union are valid.
    unsafe {
        match WrOpcode(request.opcode) {
            WrOpcode::RDMA_WRITE => {
                let remote = request.wr.rdma;
                let remote = Remote { addr: remote.remote_addr, rkey: remote.rkey };
                fast.take(&frequent(Operation::Write(remote)))
            }
            WrOpcode::SEND => fast.take(&frequent(Operation::Send)),
            _ => None,
        }
    }
}

/// The receive of a list of one with one SGE, which the fast path of the queue may take.
///
/// # Safety
///
/// As for [`post_receives`].
#[inline(always)]
pub(crate) unsafe fn frequent_receive<'a>(first: *mut ibv_recv_wr) -> Option<RecvRequest<'a>> {
    // SAFETY: the element of the list is valid, by the contract.
    let request =
        unsafe { first.as_ref() }.filter(|request| request.next.is_null() && request.num_sge == 1)?;
    // SAFETY: the list of elements has one, by the contract.
    let sge = unsafe { request.sg_list.cast::<Sge>().as_ref() }?;
    Some(RecvRequest { wr_id: request.wr_id, sges: slice::from_ref(sge) })
}

/// Converts a send of a QP of type `qp_type`, and passes it on. A list of more than `max_sges` is rejected
/// as `too_long`, before it is read. `has_source`: the QP has a source QPN.
///
/// # Safety
///
/// The pointers of the request are valid: its SGEs, with `IBV_SEND_INLINE` the memory that they name, and
/// what its operation needs.
#[inline(never)]
pub(crate) unsafe fn with_send<R>(
    (qp_type, has_source): (QpType, bool),
    (max_sges, too_long): (u32, Failure),
    request: &ibv_send_wr,
    post: impl FnOnce(&SendRequest<'_, AnyOperation<'_>>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let operation = operation(qp_type, request)?;
    let flags = SendFlags::from_bits_truncate(request.send_flags);
    let wire = WireFlags::from_bits_retain(request.send_flags);
    let wr_id = request.wr_id;
    // Without this check, a datagram of IPoIB would be sent without its checksums.
    if has_source && wire.contains(WireFlags::IP_CSUM) {
        return Err(Failure::INVALID);
    }
    if unsigned(request.num_sge)? > max_sges {
        return Err(too_long);
    }
    // SAFETY: by the contract.
    let sges = unsafe { sges(request.sg_list, request.num_sge) }?;
    if !wire.contains(WireFlags::INLINE) {
        let length = match operation {
            AnyOperation::Frame(Frame { mss: None, .. }) => FRAME_HEADER,
            _ if has_source => IPOIB_HEADER,
            _ => return post(&SendRequest { wr_id, operation, flags, payload: Payload::Sges(sges) }),
        };
        let (mut header, mut rest) = ([0; FRAME_HEADER], sges.to_vec());
        // SAFETY: by the contract.
        let taken = unsafe { take_header(&mut rest, &mut header[..length]) };
        let header = &header[..taken];
        let operation = match operation {
            AnyOperation::Frame(frame) => Frame { header, ..frame }.into(),
            AnyOperation::Datagram(datagram) => Datagram { header, ..datagram }.into(),
            other => other,
        };
        return post(&SendRequest { wr_id, operation, flags, payload: Payload::Sges(&rest) });
    }
    let mut few: [&[u8]; FEW] = [&[]; FEW];
    let many: Vec<_>;
    let all = if let Some(few) = few.get_mut(..sges.len()) {
        // SAFETY: by the contract.
        few.iter_mut().zip(sges).for_each(|(part, sge)| *part = unsafe { bytes(sge) });
        few
    } else {
        // SAFETY: by the contract.
        many = sges.iter().map(|sge| unsafe { bytes(sge) }).collect();
        &many[..]
    };
    post(&SendRequest { wr_id, operation, flags, payload: Payload::Inline(all) })
}

/// The bytes of a frame that ConnectX devices require in the WQE: an Ethernet header with a VLAN tag.
pub(crate) const FRAME_HEADER: usize = 18;

/// The same of a datagram with a source QPN: the header of IPoIB.
const IPOIB_HEADER: usize = 4;

/// Copies the first bytes of a frame or datagram, as libmlx5 does, and takes them out of its SGEs. Returns
/// their number, which is less for a shorter one.
///
/// # Safety
///
/// The SGEs name memory of the program.
pub(crate) unsafe fn take_header(sges: &mut Vec<Sge>, header: &mut [u8]) -> usize {
    let mut taken = 0;
    sges.retain_mut(|sge| {
        let count = sge.length.min((header.len() - taken) as u32);
        // SAFETY: the first bytes of an SGE, by the contract.
        let first = unsafe { bytes(&Sge { length: count, ..*sge }) };
        header[taken..taken + first.len()].copy_from_slice(first);
        taken += first.len();
        sge.addr += u64::from(count);
        sge.length -= count;
        sge.length > 0
    });
    taken
}

/// Pieces of inline data that need no memory.
const FEW: usize = 16;

/// The bytes of an inline request.
///
/// # Safety
///
/// The SGE names memory of the program, which stays unchanged for `'a`.
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    let start = ptr::with_exposed_provenance(sge.addr as usize);
    // SAFETY: by the contract. Without bytes, the address may be any.
    if sge.length == 0 { &[] } else { unsafe { slice::from_raw_parts(start, sge.length as usize) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_receive_that_is_not_posted_is_the_bad_one() {
        let element = |wr_id, num_sge, next| ibv_recv_wr { wr_id, next, sg_list: ptr::null_mut(), num_sge };
        let mut last = element(3, 1, ptr::null_mut());
        let mut second = element(2, 0, &raw mut last);
        let mut first = element(1, 0, &raw mut second);
        let (first, last) = (&raw mut first, &raw mut last);
        let (mut found, mut posted) = (ptr::null_mut(), Vec::new());
        let post = |requests: &mut Receives<'_>| {
            posted.extend(requests.map(|request| request.wr_id));
            Ok(())
        };
        // SAFETY: the list is valid, and no queue gets the requests. The third one has one SGE without a
        // list.
        let outcome = unsafe { post_receives(first, Some(&mut found), post) };
        assert_eq!((outcome.unwrap_err(), found, &posted[..]), (Failure::INVALID, last, &[1, 2][..]));
    }

    #[test]
    fn header_is_taken_out_of_the_sges_of_a_frame() {
        let frame: [u8; 30] = std::array::from_fn(|byte| byte as u8);
        let sge = |at: usize, length| Sge {
            addr: frame[at..].as_ptr().expose_provenance() as u64,
            length,
            lkey: 1,
        };
        let mut header = [0xff; FRAME_HEADER];
        let mut sges = vec![sge(0, 10), sge(10, 20)];
        // SAFETY: the SGEs name the frame.
        assert_eq!(unsafe { take_header(&mut sges, &mut header) }, 18);
        assert_eq!((&header[..], &sges[..]), (&frame[..18], &[sge(18, 12)][..]));
        let mut sges = vec![sge(0, 5)];
        // SAFETY: as above.
        assert_eq!(unsafe { take_header(&mut sges, &mut header) }, 5);
        assert!(sges.is_empty());
    }
}
