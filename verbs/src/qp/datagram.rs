//! UD QPs: datagrams and multicast groups.

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use bareverbs_provider::work;
use rustix::io::Errno;

use super::{Batch, PostReason, Qp, Ud};
use crate::{Ah, AnyProvider, Error, Gid, Imm, Payload, Result, SendFlags, SendRequest};

/// Bytes before the payload of a datagram in the receive's memory, reserved for the [global route
/// header](crate::Grh).
pub const GRH_BYTES: usize = 40;

/// The QPN of multicast groups.
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// Destination and immediate data of a datagram.
#[doc(alias = "ibv_wr_set_ud_addr")]
pub struct Datagram<'a, P: Provider = AnyProvider> {
    /// Address handle of the peer, of the QP's own protection domain. It must exist until the
    /// request completes; otherwise the request fails.
    pub ah: &'a Ah<P>,
    /// QPN of the peer, 24 bits; [`MULTICAST_QP`] for a multicast group.
    pub qp_num: u32,
    /// Q_Key of the peer. The receiver drops a datagram with another Q_Key than its own.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<Imm>,
}

impl<P: Provider> Clone for Datagram<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for Datagram<'_, P> {}

impl<'a, P: Provider> Datagram<'a, P> {
    /// A datagram to the QP `qp_num` with the Q_Key `qkey`.
    #[must_use]
    pub fn new(ah: &'a Ah<P>, qp_num: u32, qkey: u32) -> Self {
        Self { ah, qp_num, qkey, imm: None }
    }

    #[inline(always)]
    pub(super) fn to_provider(self) -> work::Datagram<'a, P::Ah> {
        work::Datagram { ah: self.ah.inner(), qp_num: self.qp_num, qkey: self.qkey, imm: self.imm }
    }
}

impl<P: Provider> Batch<'_, Ud, P> {
    /// A datagram whose bytes are copied now. They need not be registered.
    ///
    /// # Errors
    /// The [`PostReason`] of the rejection, for instance if the bytes exceed the QP's
    /// `max_inline_data`.
    #[inline]
    pub fn send_to_inline(
        &mut self,
        wr_id: u64,
        to: Datagram<'_, P>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let request = SendRequest { wr_id, operation: to, flags, payload: Payload::Inline(&[bytes]) };
        // SAFETY: the request names no memory except bytes that are copied before this returns.
        unsafe { self.push(&request) }
    }
}

impl<P: Provider> Qp<Ud, P> {
    /// Attaches the QP to a multicast group: the QP receives datagrams to the group that carry its
    /// Q_Key. A second attach to the same group does nothing. Dropping the QP detaches it.
    ///
    /// On InfiniBand a group also has a LID: [`Qp::attach_mcast_at`].
    ///
    /// On RoCE the group's GID is an IPv6 multicast address, or a mapped IPv4 one. The device joins
    /// the group on its network interface. If routers or switches forward a group to members only,
    /// the program must also join by IGMP or MLD, for instance with an ordinary UDP socket.
    ///
    /// ```no_run
    /// # fn join(pd: &bareverbs::Pd, qp: &mut bareverbs::Qp<bareverbs::Ud>) -> Result<(), Box<dyn std::error::Error>> {
    /// use bareverbs::{AhAttr, Datagram, Gid, MULTICAST_QP, SendFlags};
    ///
    /// let group: Gid = "239.1.2.3".parse::<std::net::Ipv4Addr>()?.into();
    /// qp.attach_mcast(group)?;
    /// // A sender to the group need not be attached to it.
    /// let own = pd.context().default_gid(1)?;
    /// let ah = pd.create_ah(&AhAttr::global(1, group, own.index))?;
    /// let mut batch = qp.start_send();
    /// batch.send_to_inline(1, Datagram::new(&ah, MULTICAST_QP, 0x1234), b"to all", SendFlags::SIGNALED)?;
    /// batch.ring()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `group` is not a multicast GID.
    /// - [`Error::Kernel`]: the kernel rejects the command, for instance above the device's number
    ///   of groups.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, group: Gid) -> Result<()> {
        self.attach(group, 0)
    }

    /// Attaches the QP to a multicast group of an InfiniBand subnet, named by `group` and its LID.
    /// The subnet administrator assigns the LID to members. Otherwise as [`Qp::attach_mcast`]. A
    /// sender to the group also names the LID, as [`AhAttr::dlid`](crate::AhAttr::dlid).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`]. [`Error::Invalid`] also if the LID is not a multicast LID
    /// (0xc000 to 0xfffe).
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_at(&mut self, group: Gid, lid: u16) -> Result<()> {
        if !(0xc000..0xffff).contains(&lid) {
            return Err(Error::invalid(
                "attach_mcast",
                format!("{lid:#x} is not a multicast LID (0xc000 to 0xfffe)"),
            ));
        }
        self.attach(group, lid)
    }

    fn attach(&mut self, group: Gid, lid: u16) -> Result<()> {
        const VERB: &str = "attach_mcast";
        if !group.is_multicast() {
            return Err(Error::invalid(VERB, format!("{group} is not a multicast GID")));
        }
        if self.groups.contains(&(group, lid)) {
            return Ok(());
        }
        command::attach_mcast(self.pd.context().file(), self.handle, group.0, lid).map_err(|refused| {
            Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num), refused).or_hint(|errno| {
                match errno {
                    Errno::NOMEM => {
                        Some("the device may have no free multicast group or member entry".to_owned())
                    }
                    Errno::INVAL if lid == 0 => {
                        Some("InfiniBand requires the LID of the group: use `attach_mcast_at`".to_owned())
                    }
                    _ => None,
                }
            })
        })?;
        self.groups.push((group, lid));
        Ok(())
    }

    /// Detaches the QP from a multicast group.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the QP is not attached to the group.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, group: Gid) -> Result<()> {
        const VERB: &str = "detach_mcast";
        let Some(place) = self.groups.iter().position(|(joined, _)| *joined == group) else {
            let reason = format!("QP {:#x} is not attached to group {group}", self.qp_num);
            return Err(Error::invalid(VERB, reason));
        };
        // SAFETY: `self` owns the QP.
        unsafe {
            command::detach_mcast(self.pd.context().file(), self.handle, group.0, self.groups[place].1)
        }
        .map_err(|refused| Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num), refused))?;
        self.groups.swap_remove(place);
        Ok(())
    }
}
