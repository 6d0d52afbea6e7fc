//! What only datagram queue pairs do: addressed messages and multicast groups.

use bareverbs_provider::command;
use bareverbs_provider::contract::Provider;
use bareverbs_provider::work;
use rustix::io::Errno;

use super::{Batch, PostReason, Qp, Ud};
use crate::{Ah, AnyProvider, Error, Gid, Payload, Result, SendFlags, SendRequest};

/// Bytes that every datagram finds before its payload in the receive's memory: the room of the
/// [global route header](crate::Grh).
pub const GRH_BYTES: usize = 40;

/// The queue pair number of multicast groups.
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// Who a datagram is for, and what it carries beside its bytes.
#[doc(alias = "ibv_wr_set_ud_addr")]
pub struct Datagram<'a, P: Provider = AnyProvider> {
    /// The way to the peer's port, of the queue pair's own protection domain. It has to exist until
    /// the request is complete; without it, the request fails.
    pub ah: &'a Ah<P>,
    /// The peer's queue pair, 24 bits; [`MULTICAST_QP`] for a multicast group.
    pub qp_num: u32,
    /// The peer's queue key. A datagram with another key than its receiver's is dropped.
    pub qkey: u32,
    /// Immediate data: four bytes that go over the wire as they lie in memory.
    pub imm: Option<u32>,
}

impl<P: Provider> Clone for Datagram<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for Datagram<'_, P> {}

impl<'a, P: Provider> Datagram<'a, P> {
    /// To queue pair `qp_num` with the queue key `qkey`.
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
    /// A datagram whose bytes are copied now, so that nothing has to stay registered.
    ///
    /// # Errors
    /// The request is refused, for instance since the queue pair was made for fewer bytes inline.
    #[inline]
    pub fn send_to_inline(
        &mut self,
        wr_id: u64,
        to: Datagram<'_, P>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<(), PostReason> {
        let request = SendRequest { wr_id, operation: to, flags, payload: Payload::Inline(&[bytes]) };
        // SAFETY: the request names no memory but what is copied before this returns.
        unsafe { self.push(&request) }
    }
}

impl<P: Provider> Qp<Ud, P> {
    /// Joins a multicast group: what is sent to it comes to this queue pair too, if it was sent
    /// with its queue key. Joining a group once more changes nothing. Groups are left when the
    /// queue pair is dropped.
    ///
    /// On InfiniBand a group has a LID too: [`Qp::attach_mcast_at`].
    ///
    /// On RoCE the group's GID is an IPv6 multicast address, or an IPv4 one in mapped form. The
    /// device takes part in the group on its network interface; where routers or switches forward
    /// groups to members only, somebody has to tell them by IGMP or MLD, for instance by joining
    /// the same group with an ordinary UDP socket.
    ///
    /// ```no_run
    /// # fn join(pd: &bareverbs::Pd, qp: &mut bareverbs::Qp<bareverbs::Ud>) -> Result<(), Box<dyn std::error::Error>> {
    /// use bareverbs::{AhAttr, Datagram, Gid, MULTICAST_QP, SendFlags};
    ///
    /// let group: Gid = "239.1.2.3".parse::<std::net::Ipv4Addr>()?.into();
    /// qp.attach_mcast(group)?;
    /// // To send to a group, one need not be in it.
    /// let own = pd.context().default_gid(1)?;
    /// let ah = pd.create_ah(&AhAttr::global(1, group, own.index as u8))?;
    /// let mut batch = qp.start_send();
    /// batch.send_to_inline(1, Datagram::new(&ah, MULTICAST_QP, 0x1234), b"to all", SendFlags::SIGNALED)?;
    /// batch.ring()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] where the GID is no group's; the kernel refuses, as beyond the device's
    /// number of groups.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, group: Gid) -> Result<()> {
        self.attach(group, 0)
    }

    /// Joins a multicast group of an InfiniBand subnet: receives what is sent to `group` and its
    /// LID, which the subnet administrator gives to those who join there. Otherwise the same as
    /// [`Qp::attach_mcast`]; who sends to the group names the LID as well, as
    /// [`AhAttr::dlid`](crate::AhAttr::dlid).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`]; [`Error::Invalid`] also for a LID that is no group's: those are
    /// 0xc000 to 0xfffe.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_at(&mut self, group: Gid, lid: u16) -> Result<()> {
        if !(0xc000..0xffff).contains(&lid) {
            return Err(Error::invalid(
                "attach_mcast",
                format!("the LID {lid:#x} is no group's (0xc000 to 0xfffe)"),
            ));
        }
        self.attach(group, lid)
    }

    fn attach(&mut self, group: Gid, lid: u16) -> Result<()> {
        const VERB: &str = "attach_mcast";
        if !group.is_multicast() {
            return Err(Error::invalid(VERB, format!("{group} is no multicast address")));
        }
        if self.groups.contains(&(group, lid)) {
            return Ok(());
        }
        command::attach_mcast(self.pd.context().file(), self.handle, group.0, lid).map_err(|refused| {
            Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num), refused).or_hint(|errno| {
                match errno {
                    Errno::NOMEM => {
                        Some("the device may have no more groups, or the group no more members".to_owned())
                    }
                    Errno::INVAL if lid == 0 => {
                        Some("on InfiniBand a group has a LID: name it (`attach_mcast_at`)".to_owned())
                    }
                    _ => None,
                }
            })
        })?;
        self.groups.push((group, lid));
        Ok(())
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it is not in the group; the kernel refuses.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, group: Gid) -> Result<()> {
        const VERB: &str = "detach_mcast";
        let Some(place) = self.groups.iter().position(|(joined, _)| *joined == group) else {
            let reason = format!("QP {:#x} is not in the group {group}", self.qp_num);
            return Err(Error::invalid(VERB, reason));
        };
        // SAFETY: the queue pair is this value's.
        unsafe {
            command::detach_mcast(self.pd.context().file(), self.handle, group.0, self.groups[place].1)
        }
        .map_err(|refused| Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num), refused))?;
        self.groups.swap_remove(place);
        Ok(())
    }
}
