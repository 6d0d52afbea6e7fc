//! The state of the firmware, with an entry for each object of the driver.

use std::collections::BTreeMap;

use super::bits::Layout;
use super::command::{Result, Status};
use super::layout::object::{Cqc, Eqc};
use super::lifecycle::Lifecycle;
use super::nic::Nic;
use super::resources::Resources;
use super::steering::{Origin, Steered, Steering};
use crate::engine::{Engine, Link, NO_USER_INDEX, Rate};

/// Length of a node description in bytes.
pub(super) const NODE_DESCRIPTION: usize = 64;

/// Capability mask of an InfiniBand port without a subnet manager of its own (`IB_PORT_*_SUP` in
/// `include/rdma/ib_mad.h`).
const CAPABILITIES: u32 = 0x2651_e848;

/// Port attributes that the driver can modify.
pub(super) struct PortAttributes {
    pub(super) node_description: [u8; NODE_DESCRIPTION],
    /// The capability mask.
    pub(super) capabilities: u32,
    pub(super) node_guid: Option<u64>,
    pub(super) port_guid: Option<u64>,
}

impl Default for PortAttributes {
    fn default() -> Self {
        let mut node_description = [0; NODE_DESCRIPTION];
        node_description[..13].copy_from_slice(b"bareverbs-hca");
        Self { node_description, capabilities: CAPABILITIES, node_guid: None, port_guid: None }
    }
}

/// A QP.
pub(super) struct QpEntry {
    /// The context as the driver wrote it.
    pub(super) context: Vec<u8>,
    pub(super) uar: u32,
    /// The user memory of its buffer and its doorbell record.
    pub(super) umems: Vec<u32>,
}

/// A CQ.
pub(super) struct CqEntry {
    pub(super) context: [u8; Cqc::SIZE],
    pub(super) uar: u32,
    /// The user memory of its buffer and its doorbell record.
    pub(super) umems: Vec<u32>,
}

/// An EQ.
pub(super) struct EqEntry {
    pub(super) context: [u8; Eqc::SIZE],
    pub(super) uar: u32,
}

/// An SRQ.
pub(super) struct SrqEntry {
    pub(super) context: Vec<u8>,
    /// Whether it is an RMP rather than an XRC SRQ.
    pub(super) pool: bool,
}

/// The state of the firmware.
pub(crate) struct Firmware {
    pub(super) link: Link,
    /// CQE version, 0 or 1.
    pub(super) cqe_version: u8,
    pub(super) lifecycle: Lifecycle,
    /// Guest pages that the driver gave to the device.
    pub(super) pages: Vec<u64>,
    pub(super) resources: Resources,
    /// QP contexts as the driver wrote them, for QUERY_QP.
    pub(super) qps: BTreeMap<u32, QpEntry>,
    pub(super) cqs: BTreeMap<u32, CqEntry>,
    pub(super) eqs: BTreeMap<u32, EqEntry>,
    pub(super) srqs: BTreeMap<u32, SrqEntry>,
    pub(super) keys: BTreeMap<u32, [u8; 64]>,
    /// The rate table of packet pacing, without the entries that are not in use.
    pub(super) rates: BTreeMap<u16, Rate>,
    /// The EQ of command completion events.
    pub(super) command_eq: Option<u32>,
    pub(super) port: PortAttributes,
    pub(super) nic: Nic,
    pub(super) steering: Steering,
}

impl Firmware {
    /// The user index of a context. In CQE version 0 the field is reserved, and the result is
    /// [`NO_USER_INDEX`].
    pub(super) fn user_index(&self, user_index: u32) -> Result<u32> {
        match (self.cqe_version, user_index) {
            (0, 0) => Ok(NO_USER_INDEX),
            (0, _) => Err(Status::BadParameter),
            _ => Ok(user_index),
        }
    }

    pub(crate) fn new(link: Link) -> Self {
        Self::of_version(link, 1)
    }

    /// Firmware of a device with a CQE version, 0 or 1.
    pub(crate) fn of_version(link: Link, cqe_version: u8) -> Self {
        Self {
            link,
            cqe_version,
            lifecycle: Lifecycle::default(),
            pages: Vec::new(),
            resources: Resources::default(),
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            eqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            keys: BTreeMap::new(),
            rates: BTreeMap::new(),
            command_eq: None,
            port: PortAttributes::default(),
            nic: Nic::default(),
            steering: Steering::default(),
        }
    }

    /// The EQ of command completion events.
    pub(crate) fn command_eq(&self) -> Option<u32> {
        self.command_eq
    }

    #[cfg(test)]
    pub(crate) fn send_queue(&self) -> Option<u32> {
        self.nic.first_sq()
    }

    /// The number of the driver's objects of each kind.
    pub(crate) fn objects(&self) -> String {
        format!(
            "eqs {} cqs {} qps {} srqs {} keys {} {} pages {}",
            self.eqs.len(),
            self.cqs.len(),
            self.qps.len(),
            self.srqs.len(),
            self.keys.len(),
            self.resources.counts(),
            self.pages.len(),
        )
    }

    /// Whether a send queue belongs to this UAR page.
    pub(crate) fn sq_uses_uar(&self, qp: u32, uar: u32) -> bool {
        self.qps.get(&qp).is_some_and(|known| known.uar == uar) || self.nic.sq_uses_uar(qp, uar)
    }

    /// Whether a CQ belongs to this UAR page.
    pub(crate) fn cq_uses_uar(&self, cq: u32, uar: u32) -> bool {
        self.cqs.get(&cq).is_some_and(|known| known.uar == uar)
    }

    /// Whether an EQ belongs to this UAR page.
    pub(crate) fn eq_uses_uar(&self, eq: u32, uar: u32) -> bool {
        self.eqs.get(&eq).is_some_and(|known| known.uar == uar)
    }

    /// The receive queues that a received frame is steered to.
    pub(crate) fn steer(&self, engine: &Engine, frame: &[u8]) -> Vec<Steered> {
        self.steering.find(&self.nic, engine, Origin::Wire, frame)
    }

    /// The receive queues of this port that get a frame of its own send queue: those that it is
    /// looped back to, and those of sniffers.
    pub(crate) fn steer_sent(&self, engine: &Engine, sq: u32, frame: &[u8]) -> Vec<Steered> {
        let local =
            frame.first_chunk().is_some_and(|to: &[u8; 6]| to[0] & 1 != 0 || *to == engine.port().mac);
        let loopback = self.nic.domain_of(sq).filter(|_| local).map(Origin::Loopback);
        let origins = loopback.into_iter().chain([Origin::Sent]);
        origins.flat_map(|origin| self.steering.find(&self.nic, engine, origin, frame)).collect()
    }
}
