//! Parser of RDMA netlink responses, public for fuzzing.

use bareverbs_uapi::netlink::{Attributes, Malformed};
use bareverbs_uapi::nldev::Attribute;

use crate::attrs::{FromAttribute, list};
use crate::counters::{Counter, MrCounters, QpCounters};
use crate::events::{Uevent, read_rdma_events, read_route_events};
use crate::resources::{
    CmIdResource, ContextResource, CqResource, MrResource, PdResource, QpResource, SrqResource,
};
use crate::socket::read_answers;
use crate::{CharDevice, CounterBinding, CounterStatus, DeviceInfo, PortInfo, ResourceSummary, SystemInfo};

/// Parses a response to request `seq`, each message as a response to every request. Returns the
/// devices that it has, and the number of objects in its lists.
///
/// # Errors
/// The datagram is malformed.
pub fn read_nldev(datagram: &[u8], seq: u32) -> Result<(Vec<DeviceInfo>, usize), Malformed> {
    let (mut devices, mut objects) = (Vec::new(), 0);
    read_answers(datagram, seq, &mut |answer| {
        devices.extend(DeviceInfo::read(answer));
        objects += read_lists(answer);
        let _ = PortInfo::read(answer);
        let _ = CharDevice::read(answer);
        let _ = ResourceSummary::read(answer);
        let _ = SystemInfo::read(answer);
        let _ = CounterBinding::read(answer);
        Ok(())
    })?;
    Ok((devices, objects))
}

/// Parses a datagram as a notification of each source. Returns the number of notifications.
#[must_use]
pub fn read_notifications(datagram: &[u8]) -> usize {
    let rdma = read_rdma_events(datagram).map_or(0, |events| events.len());
    let route = read_route_events(datagram).map_or(0, |events| events.len());
    rdma + route + usize::from(Uevent::read(datagram).is_some())
}

fn read_lists(answer: &Attributes<'_>) -> usize {
    fn count<T>(list: Result<Vec<T>, Malformed>) -> usize {
        list.map_or(0, |list| list.len())
    }
    count(list(answer, Attribute::RES_QP, QpResource::read))
        + count(list(answer, Attribute::RES_CQ, CqResource::read))
        + count(list(answer, Attribute::RES_MR, MrResource::read))
        + count(list(answer, Attribute::RES_PD, PdResource::read))
        + count(list(answer, Attribute::RES_CM_ID, CmIdResource::read))
        + count(list(answer, Attribute::RES_CTX, ContextResource::read))
        + count(list(answer, Attribute::RES_SRQ, SrqResource::read))
        + count(list(answer, Attribute::STAT_COUNTER, QpCounters::read))
        + count(list(answer, Attribute::RES_MR, MrCounters::read))
        + count(list(answer, Attribute::STAT_HWCOUNTERS, CounterStatus::read))
        + count(Vec::<Counter>::from_attribute(answer, Attribute::STAT_HWCOUNTERS))
}
