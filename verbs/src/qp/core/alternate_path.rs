//! Alternate paths of connected QPs: automatic path migration (APM).

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::{LinkLayer, MigState, QpAttrMask, QpState};
use bareverbs_uapi::write::types::DeviceCapFlags;

use super::QpCore;
use crate::ah_attr::AhAttr;
use crate::error::{Error, Feature, Result};
use crate::qp::attr::QpAttr;
use crate::values::AckTimeout;

/// A second path to the peer of a connection:
/// [`Qp::load_alternate_path`](crate::qp::Qp::load_alternate_path).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The peer's address on this path, and the local port.
    pub address: AhAttr,
    /// Index into the P_Key table of that port; 0 by default.
    pub pkey_index: u16,
    /// Local ACK timeout on this path; the default of [`AckTimeout`] by default.
    pub timeout: AckTimeout,
}

impl AlternatePath {
    /// A path with the first P_Key and the default timeout.
    #[must_use]
    pub fn new(address: AhAttr) -> Self {
        Self { address, pkey_index: 0, timeout: AckTimeout::default() }
    }
}

impl<P: Provider> QpCore<P> {
    /// As [`Qp::load_alternate_path`](crate::qp::Qp::load_alternate_path).
    ///
    /// # Errors
    /// As for [`Qp::load_alternate_path`](crate::qp::Qp::load_alternate_path).
    pub fn load_alternate_path(&mut self, path: &AlternatePath) -> Result<()> {
        const VERB: &str = "modify_qp (alternate path)";
        self.kernel.check_state(VERB, QpState::RTS)?;
        let context = self.pd().context();
        let port = context.query_port(path.address.port)?;
        let migrates = context.query_device()?.device_cap_flags.contains(DeviceCapFlags::AUTO_PATH_MIG);
        if !migrates || port.link_layer == LinkLayer::ETHERNET {
            return Err(Error::unsupported(VERB, Feature::AlternatePath));
        }
        let attr = QpAttr {
            alt_ah_attr: context.validate_path(VERB, &path.address, &port)?,
            alt_port_num: path.address.port,
            alt_pkey_index: path.pkey_index,
            alt_timeout: path.timeout,
            path_mig_state: MigState::REARM,
            ..QpAttr::default()
        };
        self.modify_qp(VERB, &attr, QpAttrMask::ALT_PATH | QpAttrMask::PATH_MIG_STATE)
    }

    /// As [`Qp::migrate`](crate::qp::Qp::migrate).
    ///
    /// # Errors
    /// As for [`Qp::migrate`](crate::qp::Qp::migrate).
    pub fn migrate(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp (path migration)";
        self.kernel.check_state(VERB, QpState::RTS)?;
        let state = self.path_migration()?;
        if state != MigState::ARMED {
            return Err(Error::wrong_state(
                VERB,
                format!("the path migration state is {state:?}, not ARMED"),
            ));
        }
        let attr = QpAttr { path_mig_state: MigState::MIGRATED, ..QpAttr::default() };
        self.modify_qp(VERB, &attr, QpAttrMask::PATH_MIG_STATE)
    }

    /// As [`Qp::path_migration`](crate::qp::Qp::path_migration).
    ///
    /// # Errors
    /// As for [`Qp::path_migration`](crate::qp::Qp::path_migration).
    pub fn path_migration(&self) -> Result<MigState> {
        Ok(self.query()?.0.path_mig_state)
    }
}
