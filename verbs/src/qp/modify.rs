//! Bringing a queue pair from state to state.

use bareverbs_provider::command;
use bareverbs_provider::contract::Provider;
use bareverbs_provider::device::Refused;
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::ExModifyQpResp;
use rustix::io::Errno;

use super::{InitAttr, Qp, QpAttr, RtrAttr, RtsAttr, Transport};
use crate::{Context, Error, QpAttrMask, QpState, Result};

/// The widest queue pair and packet numbers.
const MAX_24_BITS: u32 = 0xff_ffff;

impl<T: Transport, P: Provider> Qp<T, P> {
    /// RESET → INIT: receives can be posted from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        const VERB: &str = "modify_qp RESET→INIT";
        self.check_state(VERB, QpState::RESET)?;
        self.context().port_for_qp(attr.port)?;
        let (all, mask) = attr.into();
        self.change(VERB, &all, mask).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    format!("P_Key index {} or access {:?} is not possible", attr.pkey_index, attr.access)
                })
            })
        })
    }

    /// INIT → RTR: what the peer sends is carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, without a global route on RoCE, for numbers of more than 24 bits or an
    /// MTU above the port's; [`Error::Limit`]; [`Error::NoPort`]; [`Error::NoGid`]; the kernel refuses.
    pub fn ready_to_receive(&mut self, attr: &RtrAttr) -> Result<()> {
        const VERB: &str = "modify_qp INIT→RTR";
        self.check_state(VERB, QpState::INIT)?;
        let context = self.context();
        let port = context.port_for_qp(attr.address.port)?;
        if attr.address.grh.is_none() && Context::<P>::needs_grh(&port) {
            let reason = "RoCE reaches a peer by its GID only: give the address a global route";
            return Err(Error::invalid(VERB, reason));
        }
        if attr.path_mtu > port.active_mtu {
            let (asked, active) = (attr.path_mtu, port.active_mtu);
            let reason = format!("path MTU {asked} is above the port's active MTU {active}");
            return Err(Error::invalid(VERB, reason));
        }
        check_24_bits(VERB, "dest_qp_num", attr.dest_qp_num)?;
        check_24_bits(VERB, "rq_psn", attr.rq_psn)?;
        let (asked, max) = (attr.max_dest_rd_atomic, context.limits().max_qp_rd_atom);
        Error::check_limit(VERB, "max_dest_rd_atomic", asked.into(), max.into())?;
        let (all, mask) = attr.into();
        match self.change(VERB, &all, mask) {
            Err(error) => Err(self.rtr_trouble(error, attr)),
            Ok(()) => Ok(()),
        }
    }

    /// Says what the kernel's refusal of RTR is about.
    fn rtr_trouble(&self, error: Error, attr: &RtrAttr) -> Error {
        let (Some(errno), Some(grh)) = (error.errno(), attr.address.grh) else { return error };
        match errno {
            Errno::NODATA | Errno::INVAL | Errno::NOENT => {
                let (port, index) = (attr.address.port.into(), grh.sgid_index.into());
                match self.context().gid(port, index) {
                    Err(no_gid @ Error::NoGid { .. }) => no_gid,
                    _ => error,
                }
            }
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT | Errno::ADDRNOTAVAIL => {
                error.or_hint(|_| {
                    Some(format!(
                        "no way to {} from the GID at index {}: check the address, the link and the route",
                        grh.dgid, grh.sgid_index
                    ))
                })
            }
            _ => error,
        }
    }

    /// RTR → RTS: sends are carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state or for a packet number of more than 24 bits; [`Error::Limit`]; the kernel
    /// refuses.
    pub fn ready_to_send(&mut self, attr: &RtsAttr) -> Result<()> {
        const VERB: &str = "modify_qp RTR→RTS";
        self.check_state(VERB, QpState::RTR)?;
        check_24_bits(VERB, "sq_psn", attr.sq_psn)?;
        for (what, asked, max) in [
            ("timeout", attr.timeout, 31),
            ("retry_cnt", attr.retry_cnt, 7),
            ("rnr_retry", attr.rnr_retry, 7),
        ] {
            if asked > max {
                return Err(Error::invalid(VERB, format!("{what} {asked} is above {max}")));
            }
        }
        let max = self.context().limits().max_qp_init_rd_atom;
        Error::check_limit(VERB, "max_rd_atomic", attr.max_rd_atomic.into(), max.into())?;
        let (all, mask) = attr.into();
        self.change(VERB, &all, mask)
    }

    /// Any change, checked by the kernel alone.
    ///
    /// # Errors
    /// The kernel refuses: `EINVAL` for a step that is not possible from the present state, or a mask that lacks what
    /// the step requires or holds what it does not allow.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.change("modify_qp", attr, mask)
    }

    fn change(&mut self, verb: &'static str, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.ask_kernel(attr, mask).map_err(|refused| {
            Error::refused(verb, format!("QP {:#x} in {:?}, {mask:?}", self.qp_num, self.state()), refused)
        })?;
        if mask.contains(QpAttrMask::STATE) {
            self.send.state = attr.qp_state;
            self.recv.state = attr.qp_state;
        }
        Ok(())
    }

    fn ask_kernel(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Refused> {
        let file = self.context().file();
        let request = attr.to_kernel(self.handle, mask);
        if !mask.contains(QpAttrMask::RATE_LIMIT) {
            return command::modify_qp(file, &request.base);
        }
        // SAFETY: the command reads and writes nothing but its structs.
        unsafe { file.invoke::<write::ex::ModifyQp>(&request, &mut ExModifyQpResp::zeroed()) }
    }

    fn context(&self) -> &Context<P> {
        self.pd.context()
    }

    fn check_state(&self, verb: &'static str, needed: QpState) -> Result<()> {
        if self.state() == needed {
            return Ok(());
        }
        Err(Error::invalid(verb, format!("the queue pair is in {:?}, not in {needed:?}", self.state())))
    }
}

fn check_24_bits(verb: &'static str, what: &'static str, asked: u32) -> Result<()> {
    if asked <= MAX_24_BITS {
        Ok(())
    } else {
        Err(Error::invalid(verb, format!("{what} {asked:#x} has more than 24 bits")))
    }
}
