//! Bringing a queue pair from state to state.

use bareverbs_provider::command;
use bareverbs_provider::contract::Provider;
use bareverbs_provider::device::Refused;
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::ExModifyQpResp;
use rustix::io::Errno;

use super::{
    AhAttr, Connected, InitAttr, Qp, QpAttr, Rc, RtrAttr, RtsAttr, Transport, Uc, UcRtrAttr, Ud, UdInitAttr,
};
use crate::{Context, Error, Mtu, QpAttrMask, QpState, Result};

/// The widest queue pair and packet numbers.
const MAX_24_BITS: u32 = 0xff_ffff;

const INIT: &str = "modify_qp RESET→INIT";
const RTR: &str = "modify_qp INIT→RTR";
const RTS: &str = "modify_qp RTR→RTS";

impl<T: Connected, P: Provider> Qp<T, P> {
    /// RESET → INIT: receives can be posted from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        self.check_state(INIT, QpState::RESET)?;
        self.context().port_for_qp(attr.port)?;
        let (all, mask) = attr.into();
        self.change(INIT, &all, mask).map_err(|error| {
            error.or_hint(|errno| {
                (errno == Errno::INVAL).then(|| {
                    format!("P_Key index {} or access {:?} is not possible", attr.pkey_index, attr.access)
                })
            })
        })
    }

    fn check_peer(&self, address: &AhAttr, path_mtu: Mtu, dest_qp_num: u32, rq_psn: u32) -> Result<()> {
        self.check_state(RTR, QpState::INIT)?;
        let port = self.context().port_for_qp(address.port)?;
        self.context().check_grh(RTR, address, &port)?;
        if path_mtu > port.active_mtu {
            let active = port.active_mtu;
            let reason = format!("path MTU {path_mtu} is above the port's active MTU {active}");
            return Err(Error::invalid(RTR, reason));
        }
        check_24_bits(RTR, "dest_qp_num", dest_qp_num)?;
        check_24_bits(RTR, "rq_psn", rq_psn)
    }

    fn connect(&mut self, (attr, mask): (QpAttr, QpAttrMask)) -> Result<()> {
        let address = attr.ah_attr;
        self.change(RTR, &attr, mask).map_err(|error| self.context().way_trouble(error, &address))
    }
}

impl<P: Provider> Qp<Rc, P> {
    /// INIT → RTR: what the peer sends is carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, without a global route on RoCE, for numbers of more than 24 bits or an
    /// MTU above the port's; [`Error::Limit`]; [`Error::NoPort`]; [`Error::NoGid`]; the kernel refuses.
    pub fn ready_to_receive(&mut self, attr: &RtrAttr) -> Result<()> {
        self.check_peer(&attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        let (asked, max) = (attr.max_dest_rd_atomic, self.context().limits().max_qp_rd_atom);
        Error::check_limit(RTR, "max_dest_rd_atomic", asked.into(), max.into())?;
        self.connect(attr.into())
    }

    /// RTR → RTS: sends are carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state or for a packet number of more than 24 bits; [`Error::Limit`]; the kernel
    /// refuses.
    pub fn ready_to_send(&mut self, attr: &RtsAttr) -> Result<()> {
        self.check_state(RTS, QpState::RTR)?;
        check_24_bits(RTS, "sq_psn", attr.sq_psn)?;
        for (what, asked, max) in [
            ("timeout", attr.timeout, 31),
            ("retry_cnt", attr.retry_cnt, 7),
            ("rnr_retry", attr.rnr_retry, 7),
        ] {
            if asked > max {
                return Err(Error::invalid(RTS, format!("{what} {asked} is above {max}")));
            }
        }
        let max = self.context().limits().max_qp_init_rd_atom;
        Error::check_limit(RTS, "max_rd_atomic", attr.max_rd_atomic.into(), max.into())?;
        let (all, mask) = attr.into();
        self.change(RTS, &all, mask)
    }
}

impl<P: Provider> Qp<Uc, P> {
    /// INIT → RTR: what the peer sends is carried out from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state, without a global route on RoCE, for numbers of more than 24 bits or an
    /// MTU above the port's; [`Error::NoPort`]; [`Error::NoGid`]; the kernel refuses.
    pub fn ready_to_receive(&mut self, attr: &UcRtrAttr) -> Result<()> {
        self.check_peer(&attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        self.connect(attr.into())
    }

    /// RTR → RTS: sends are carried out from here on, the first with the packet number `sq_psn`.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state or for a packet number of more than 24 bits; the kernel refuses.
    pub fn ready_to_send(&mut self, sq_psn: u32) -> Result<()> {
        self.start_sending(sq_psn)
    }
}

impl<P: Provider> Qp<Ud, P> {
    /// RESET → INIT: receives can be posted from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; [`Error::NoPort`]; the kernel refuses.
    pub fn init(&mut self, attr: &UdInitAttr) -> Result<()> {
        self.check_state(INIT, QpState::RESET)?;
        self.context().port_for_qp(attr.port)?;
        let (all, mask) = attr.into();
        self.change(INIT, &all, mask).map_err(|error| {
            error.or_hint(|errno| match errno {
                Errno::INVAL => Some(format!("there may be no P_Key index {}", attr.pkey_index)),
                Errno::PERM => Some("Q_Keys with the highest bit set are for the privileged".to_owned()),
                _ => None,
            })
        })
    }

    /// INIT → RTR: datagrams are received from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state; the kernel refuses.
    pub fn ready_to_receive(&mut self) -> Result<()> {
        self.check_state(RTR, QpState::INIT)?;
        let attr = QpAttr { qp_state: QpState::RTR, ..QpAttr::default() };
        self.change(RTR, &attr, QpAttrMask::STATE)
    }

    /// RTR → RTS: sends are carried out from here on, the first with the packet number `sq_psn`.
    ///
    /// # Errors
    /// [`Error::Invalid`] from another state or for a packet number of more than 24 bits; the kernel refuses.
    pub fn ready_to_send(&mut self, sq_psn: u32) -> Result<()> {
        self.start_sending(sq_psn)
    }
}

impl<T: Transport, P: Provider> Qp<T, P> {
    fn start_sending(&mut self, sq_psn: u32) -> Result<()> {
        self.check_state(RTS, QpState::RTR)?;
        check_24_bits(RTS, "sq_psn", sq_psn)?;
        let attr = QpAttr { qp_state: QpState::RTS, sq_psn, ..QpAttr::default() };
        self.change(RTS, &attr, QpAttrMask::STATE | QpAttrMask::SQ_PSN)
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

    pub(super) fn change(&mut self, verb: &'static str, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.ask_kernel(attr, mask).map_err(|refused| {
            Error::refused(verb, format!("QP {:#x} in {:?}, {mask:?}", self.qp_num, self.state()), refused)
        })?;
        if mask.contains(QpAttrMask::STATE) {
            self.send.state = attr.qp_state;
            self.recv.state = attr.qp_state;
            if attr.qp_state == QpState::RESET {
                self.queues_were_reset();
            }
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

    pub(super) fn check_state(&self, verb: &'static str, needed: QpState) -> Result<()> {
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
