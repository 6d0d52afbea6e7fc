//! State transitions.

use bareverbs_provider::device::IoctlError;
use bareverbs_provider::request::Burst;
use bareverbs_provider::traits::{Provider, QpControl};
use bareverbs_uapi::uverbs::types::{AccessFlags as Access, QpType};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{ExModifyQp, ExModifyQpResp};
use rustix::io::Errno;

use super::QpCore;
use super::state_table::{check_values, explain_invalid_modify};
use crate::ah_attr::AhAttr;
use crate::context::Context;
use crate::error::{Error, Limit, Result};
use crate::mr_hints::OPTIONAL_ACCESS;
use crate::qp::attr::{InitAttr, QpAttr, RtrAttr, RtsAttr, UdInitAttr};
use crate::values::{Mtu, PortNum};

pub(crate) use super::state_table::check_24_bits;

/// Access rights that a QP can grant. The others apply to MRs only.
const QP_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT)
    .union(Access::ON_DEMAND)
    .union(OPTIONAL_ACCESS);

pub(crate) const MODIFY: &str = "modify_qp";
pub(crate) const INIT: &str = "modify_qp RESET→INIT";
pub(crate) const RTR: &str = "modify_qp INIT→RTR";
pub(crate) const RTS: &str = "modify_qp RTR→RTS";

impl<P: Provider> QpCore<P> {
    pub(crate) fn reset_to_init(&mut self, attr: &InitAttr) -> Result<()> {
        self.kernel.check_state(INIT, QpState::RESET)?;
        check_init(self.context(), attr)?;
        let (all, mask) = attr.into();
        self.modify_qp(INIT, &all, mask).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL)
                    .then(|| format!("this kernel or device may not support access {:?}", attr.access))
            })
        })
    }

    /// Validates the attributes of the peer and returns the address vector for the kernel.
    pub(crate) fn check_peer(
        &self,
        address: &AhAttr,
        path_mtu: Mtu,
        dest_qp_num: u32,
        rq_psn: u32,
    ) -> Result<AhAttr> {
        self.kernel.check_state(RTR, QpState::INIT)?;
        check_peer(self.context(), address, path_mtu, dest_qp_num, rq_psn)
    }

    pub(crate) fn init_to_rtr(&mut self, (attr, mask): (QpAttr, QpAttrMask)) -> Result<()> {
        let address = attr.ah_attr;
        self.modify_qp(RTR, &attr, mask).map_err(|error| self.context().path_error(error, &address))
    }

    pub(crate) fn reset_to_init_datagrams(&mut self, attr: &UdInitAttr) -> Result<()> {
        self.kernel.check_state(INIT, QpState::RESET)?;
        check_pkey(self.context(), attr.port, attr.pkey_index)?;
        let (all, mask) = attr.into();
        self.modify_qp(INIT, &all, mask).map_err(|error| {
            error.or_hint(|errno| (errno == Errno::PERM).then(|| privileged_qkey(attr.qkey)))
        })
    }

    pub(crate) fn reset_to_init_frames(&mut self, port: PortNum) -> Result<()> {
        self.kernel.check_state(INIT, QpState::RESET)?;
        let port_num = self.context().check_port(port)?;
        let attr = QpAttr { qp_state: QpState::INIT, port_num, ..QpAttr::default() };
        self.modify_qp(INIT, &attr, QpAttrMask::STATE | QpAttrMask::PORT)
    }

    /// A transition that sets only the state.
    pub(crate) fn transition(&mut self, verb: &'static str, from: QpState, to: QpState) -> Result<()> {
        self.kernel.check_state(verb, from)?;
        self.modify_qp(verb, &QpAttr { qp_state: to, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    pub(crate) fn rtr_to_rts_reliable(&mut self, attr: &RtsAttr) -> Result<()> {
        self.kernel.check_state(RTS, QpState::RTR)?;
        check_24_bits(RTS, "sq_psn", attr.sq_psn)?;
        let max = self.context().limits().max_qp_init_rd_atom;
        Error::check_limit(RTS, Limit::MaxRdAtomic, attr.max_rd_atomic.into(), max.into())?;
        let (all, mask) = attr.into();
        self.modify_qp(RTS, &all, mask)
    }

    pub(crate) fn rtr_to_rts(&mut self, sq_psn: u32) -> Result<()> {
        self.kernel.check_state(RTS, QpState::RTR)?;
        check_24_bits(RTS, "sq_psn", sq_psn)?;
        let attr = QpAttr { qp_state: QpState::RTS, sq_psn, ..QpAttr::default() };
        self.modify_qp(RTS, &attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
    }

    /// As [`Qp::modify`](crate::qp::Qp::modify).
    ///
    /// # Errors
    /// As for [`Qp::modify`](crate::qp::Qp::modify).
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        check_modify(self.context(), self.state(), attr, mask)?;
        self.modify_qp(MODIFY, attr, mask).map_err(|error| {
            explain_modify(self.context(), error, self.qp_type(), || self.kernel.state_now(), attr, mask)
        })
    }

    pub(super) fn modify_qp(&mut self, verb: &'static str, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let request = attr.to_kernel(self.handle(), mask);
        self.sq.validate_modify(&request.base).map_err(|reason| Error::invalid(verb, reason))?;
        if mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::RESET {
            let times = if self.sq.needs_second_reset() { 2 } else { 1 };
            return self
                .bring_to_reset(&request, times)
                .map_err(|refused| self.kernel.refused(verb, mask, refused));
        }
        if self.reset_is_incomplete {
            self.complete_reset(verb)?;
        }
        // SAFETY: the request names this QP, and does not move it to RESET.
        unsafe { self.execute_modify(&request) }
            .map_err(|refused| self.kernel.refused(verb, mask, refused))?;
        self.sq.modified(&request.base);
        if mask.contains(QpAttrMask::STATE) {
            self.kernel.state = attr.qp_state;
        }
        Ok(())
    }

    /// Issues the request to RESET `times` times. If the kernel refuses only a later one, the QP is
    /// in RESET, and [`QpCore::complete_reset`] must issue it again.
    fn bring_to_reset(&mut self, request: &ExModifyQp, times: u32) -> Result<(), IoctlError> {
        // SAFETY: the request names this queue pair, and its queues are reset below.
        unsafe { self.execute_modify(request) }?;
        let mut outcome = Ok(());
        for _ in 1..times {
            // SAFETY: the request names this queue pair, and its queues are reset below.
            outcome = outcome.and_then(|()| unsafe { self.execute_modify(request) });
        }
        self.sq.modified(&request.base);
        self.kernel.state = QpState::RESET;
        self.reset_is_incomplete = outcome.is_err();
        // SAFETY: the kernel has executed a request to RESET, and no other request since.
        unsafe { self.reset_queues() };
        outcome
    }

    /// Issues the request to RESET that the kernel refused in [`QpCore::bring_to_reset`]. Without
    /// it, the kernel would execute requests that were posted before the reset after the QP is
    /// brought up again.
    fn complete_reset(&mut self, verb: &'static str) -> Result<()> {
        let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        let request = attr.to_kernel(self.handle(), QpAttrMask::STATE);
        self.bring_to_reset(&request, 1).map_err(|refused| {
            self.kernel.refused(verb, QpAttrMask::STATE, refused).or_hint(|_| {
                Some("the reset of the QP is incomplete: call `Qp::reset` again, or drop the QP".into())
            })
        })
    }

    /// # Safety
    ///
    /// The request must name this QP. After a successful request to RESET, the caller must reset
    /// both queues ([`QpCore::reset_queues`]).
    unsafe fn execute_modify(&mut self, request: &ExModifyQp) -> Result<(), IoctlError> {
        let file = &self.kernel.file;
        if !request.base.attr_mask.contains(QpAttrMask::RATE_LIMIT) {
            // SAFETY: `self` owns the QP, and the caller resets both queues after RESET.
            return unsafe { self.sq.modify(file, &request.base) };
        }
        // SAFETY: the command reads and writes only its structs. As for
        // `command::modify_qp`, `self` owns the QP, and the caller resets both queues after RESET.
        unsafe { file.invoke::<write::ex::ModifyQp>(request, &mut ExModifyQpResp::zeroed()) }
    }

    /// Sets the rate of sends in kbit/s, without a change of the state.
    pub(super) fn modify_rate(&mut self, verb: &'static str, rate_limit: u32, burst: Burst) -> Result<()> {
        let attr = QpAttr { qp_state: self.state(), rate_limit, ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::RATE_LIMIT;
        let request = attr.to_kernel(self.handle(), mask);
        // SAFETY: `self` owns the QP, and its state stays RTS.
        unsafe { self.sq.modify_rate(&self.kernel.file, &request, burst) }
            .map_err(|refused| self.kernel.refused(verb, mask, refused))
    }

    fn context(&self) -> &Context<P> {
        self.pd.context()
    }
}

pub(crate) fn check_init<P: Provider>(context: &Context<P>, attr: &InitAttr) -> Result<()> {
    check_pkey(context, attr.port, attr.pkey_index)?;
    let unknown = attr.access.difference(QP_ACCESS);
    if !unknown.is_empty() {
        let reason = format!("a QP cannot grant access {unknown:?}: these flags apply to MRs only");
        return Err(Error::invalid(INIT, reason));
    }
    Ok(())
}

pub(crate) fn check_peer<P: Provider>(
    context: &Context<P>,
    address: &AhAttr,
    path_mtu: Mtu,
    dest_qp_num: u32,
    rq_psn: u32,
) -> Result<AhAttr> {
    let port = context.query_port(address.port)?;
    if let Some(grh) = address.grh.filter(|grh| grh.dgid.is_multicast()) {
        let reason = format!("a connected QP cannot use the multicast group {}", grh.dgid);
        return Err(Error::invalid(RTR, reason));
    }
    let path = context.validate_path(RTR, address, &port)?;
    if path_mtu > port.active_mtu {
        let active = port.active_mtu;
        let reason = format!("path MTU {path_mtu} is above the port's active MTU {active}");
        return Err(Error::invalid(RTR, reason));
    }
    check_24_bits(RTR, "dest_qp_num", dest_qp_num)?;
    check_24_bits(RTR, "rq_psn", rq_psn)?;
    Ok(path)
}

fn check_pkey<P: Provider>(context: &Context<P>, port: PortNum, index: u16) -> Result<()> {
    // Every port has the first P_Key, so no query is needed.
    if index == 0 {
        return context.check_port(port).map(drop);
    }
    let length = context.query_port(port)?.pkey_tbl_len;
    if index < length {
        return Ok(());
    }
    let reason = format!("P_Key index {index} exceeds the table of {length} entries of port {port}");
    Err(Error::out_of_bounds(INIT, reason))
}

/// Validates the attributes of any transition: values that kernels truncate or do not check, and
/// limits of the device.
pub(crate) fn check_modify<P: Provider>(
    context: &Context<P>,
    state: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<()> {
    check_values(MODIFY, state, attr, mask)?;
    let limits = context.limits();
    for (bit, limit, asked, max) in [
        (QpAttrMask::MAX_QP_RD_ATOMIC, Limit::MaxRdAtomic, attr.max_rd_atomic, limits.max_qp_init_rd_atom),
        (
            QpAttrMask::MAX_DEST_RD_ATOMIC,
            Limit::MaxDestRdAtomic,
            attr.max_dest_rd_atomic,
            limits.max_qp_rd_atom,
        ),
    ] {
        if mask.contains(bit) {
            Error::check_limit(MODIFY, limit, asked.into(), max.into())?;
        }
    }
    Ok(())
}

/// Adds the cause of the kernel's refusal of any transition from the state `now`.
pub(crate) fn explain_modify<P: Provider>(
    context: &Context<P>,
    error: Error,
    qp_type: QpType,
    now: impl FnOnce() -> QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Error {
    let error = if mask.contains(QpAttrMask::AV) { context.path_error(error, &attr.ah_attr) } else { error };
    error.or_hint(|errno| match errno {
        Errno::INVAL => Some(explain_invalid_modify(qp_type, now(), attr, mask)),
        Errno::PERM if mask.contains(QpAttrMask::QKEY) => Some(privileged_qkey(attr.qkey)),
        _ => None,
    })
}

/// The cause of `EPERM`.
fn privileged_qkey(qkey: u32) -> String {
    format!(
        "Q_Key {qkey:#x} is privileged (highest bit set): clear the bit, run with CAP_NET_RAW, or permit it \
         by `rdma system set privileged-qkey on`"
    )
}

/// Validates the responder attributes of INIT → RTR.
pub(crate) fn check_rtr<P: Provider>(context: &Context<P>, attr: &RtrAttr) -> Result<()> {
    let (asked, max) = (attr.max_dest_rd_atomic, context.limits().max_qp_rd_atom);
    Error::check_limit(RTR, Limit::MaxDestRdAtomic, asked.into(), max.into())
}

#[cfg(test)]
mod tests {
    use crate::testing::Plain;

    use super::*;

    #[test]
    fn requester_and_responder_have_limits_of_their_own() {
        let pd = Plain::default().domain();
        let text = |checked: Result<()>| checked.err().map(|refused| refused.to_string());
        for (rd_atomic, requester, responder) in [(4, true, true), (5, false, true), (9, false, false)] {
            let attr =
                QpAttr { max_rd_atomic: rd_atomic, max_dest_rd_atomic: rd_atomic, ..QpAttr::default() };
            let modify = |mask| text(check_modify(pd.context(), QpState::RTR, &attr, mask));
            let above = |verb, name, max, is_valid: bool| {
                (!is_valid).then(|| format!("{verb}: {name} {rd_atomic} is above the maximum of {max}"))
            };
            let requests = modify(QpAttrMask::MAX_QP_RD_ATOMIC);
            assert_eq!(requests, above(MODIFY, "max_rd_atomic", 4, requester));
            let responses = modify(QpAttrMask::MAX_DEST_RD_ATOMIC);
            assert_eq!(responses, above(MODIFY, "max_dest_rd_atomic", 8, responder));
            let rtr = RtrAttr { max_dest_rd_atomic: rd_atomic, ..RtrAttr::new(AhAttr::local(1, 1), 1) };
            assert_eq!(text(check_rtr(pd.context(), &rtr)), above(RTR, "max_dest_rd_atomic", 8, responder));
        }
    }

    #[test]
    fn refused_transition_is_explained_from_the_state_before_it() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        plain.log().answers.push_back(Err(IoctlError::new("ModifyQp", Errno::INVAL)));
        let attr = QpAttr { qp_state: QpState::RTR, ..QpAttr::default() };
        let refused = qp.modify(&attr, QpAttrMask::STATE).unwrap_err().to_string();
        assert!(refused.contains("no transition from RTS to RTR"), "{refused}");
    }

    #[test]
    fn failed_second_reset_leaves_qp_in_reset_with_empty_queues() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let refused = IoctlError::new("ModifyQp", Errno::IO);
        plain.log().needs_second_reset = true;
        for (answers, failed, state, reset) in [
            // Nothing was reset.
            (vec![Err(refused)], true, QpState::RTS, 0),
            (vec![Ok(()), Err(refused)], true, QpState::RESET, 2),
            (vec![], false, QpState::RESET, 2),
        ] {
            plain.log().answers.extend(answers);
            let errno = qp.reset().err().and_then(|error| error.errno());
            assert_eq!((errno, qp.state()), (failed.then_some(Errno::IO), state));
            // Both queues of the QP.
            let queues = std::mem::take(&mut plain.log().reset);
            assert_eq!(queues.len(), reset);
        }
        let states = std::mem::take(&mut plain.log().states);
        assert_eq!(states, [QpState::RESET; 3]);
    }

    #[test]
    fn incomplete_reset_is_reissued_before_qp_leaves_reset() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        let refused = || Err(IoctlError::new("ModifyQp", Errno::IO));
        plain.log().needs_second_reset = true;
        plain.log().answers.extend([Ok(()), refused()]);
        qp.reset().unwrap_err();
        let (init, mask) = (&InitAttr::new(1)).into();

        // The kernel refuses it again.
        plain.log().answers.push_back(refused());
        let error = qp.modify(&init, mask).unwrap_err();
        assert!(error.to_string().contains("call `Qp::reset` again"), "{error}");
        assert_eq!(qp.state(), QpState::RESET);
        assert_eq!(plain.log().states, [QpState::RESET]);

        plain.log().reset.clear();
        qp.modify(&init, mask).unwrap();
        assert_eq!(qp.state(), QpState::INIT);
        assert_eq!(plain.log().states, [QpState::RESET, QpState::RESET, QpState::INIT]);
        assert_eq!(plain.log().reset.len(), 2, "both queues");

        // The request is issued once.
        plain.log().states.clear();
        qp.set_error().unwrap();
        assert_eq!(plain.log().states, [QpState::ERR]);
        qp.reset().unwrap();
        qp.modify(&init, mask).unwrap();
        assert_eq!(
            plain.log().states,
            [QpState::ERR, QpState::RESET, QpState::RESET, QpState::INIT],
            "a complete reset needs no further request"
        );
    }
}
