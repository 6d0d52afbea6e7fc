//! Memberships in multicast groups. Joining prepares one: ATTACH_MCAST of a QP joins the group.

use std::net::IpAddr;

use bareverbs_provider::Errno;
use bareverbs_uapi::rdma_cm::structs::{EventResp, UdParam};
use bareverbs_uapi::rdma_cm::{EventType, JoinFlags};

use super::attributes::ah_attr;
use super::id::{IdState, Membership, UDP_QKEY};
use super::namespace::Namespace;
use super::resolve::{HOP_LIMIT, RATE};
use crate::cm::Path;
use crate::wire::gid;

/// `ENOTSUPP` of the kernel, which is no errno of user space.
const NOT_SUPPORTED: Errno = Errno::from_raw_os_error(524);

impl Namespace {
    /// JOIN_MCAST. Returns the number of the membership.
    pub(super) fn join(
        &self,
        file: u64,
        number: u32,
        uid: u64,
        group: IpAddr,
        flags: JoinFlags,
    ) -> Result<u32, Errno> {
        if ![JoinFlags::FULL_MEMBER, JoinFlags::SEND_ONLY_FULL_MEMBER].contains(&flags) {
            return Err(Errno::INVAL);
        }
        let index = self.lock().id(file, number)?.device.ok_or(Errno::INVAL)?;
        let port = self.device(index).ok_or(Errno::NXIO)?;
        let mut state = self.lock();
        let id = state.id(file, number)?;
        let is_bound = matches!(id.state, IdState::Bound | IdState::AddressResolved);
        if !is_bound || !id.is_datagram() || group.is_unspecified() {
            return Err(Errno::INVAL);
        }
        if group.is_ipv6() {
            return Err(NOT_SUPPORTED);
        }
        id.qkey = if id.qkey == 0 { UDP_QKEY } else { id.qkey };
        let path = Path {
            source: gid(port.address()),
            destination: gid(group),
            flow_label: 0,
            traffic_class: id.tos,
            hop_limit: HOP_LIMIT,
            service_level: 0,
            mtu: port.active_mtu(),
            rate: RATE,
            packet_life: 0,
            pkey: 0xffff,
        };
        let ah_attr = ah_attr(&path, port.gid_index());
        let ud = UdParam { qp_num: 0xff_ffff, qkey: id.qkey, ah_attr, ..UdParam::zeroed() };
        let membership = state.insert_membership(Membership { id: number, uid, reported: 0 })?;
        let event = EventType::MULTICAST_JOIN;
        state.raise_of_membership(membership, EventResp { event, ud, ..EventResp::zeroed() });
        Ok(membership)
    }

    /// LEAVE_MCAST. Returns the number of events that were read.
    pub(super) fn leave(&self, file: u64, membership: u32) -> Result<u32, Errno> {
        let mut state = self.lock();
        let id = state.memberships.get(&membership).ok_or(Errno::NOENT)?.id;
        state.id(file, id)?;
        state.drop_events(file, |event| event.membership == Some(membership));
        Ok(state.memberships.remove(&membership).map_or(0, |membership| membership.reported))
    }
}
