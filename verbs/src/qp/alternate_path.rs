//! Alternate paths of connected QPs: automatic path migration (APM).

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::MigState;

use super::{Connected, Qp, QpAttr};
use crate::ah::AhAttr;
use crate::device::{DeviceCapFlags, LinkLayer};
use crate::error::Feature;
use crate::qp::{QpAttrMask, QpState};
use crate::values::AckTimeout;
use crate::{Error, Result};

/// A second path to the peer of a connection: [`Qp::load_alternate_path`].
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

impl<T: Connected, P: Provider> Qp<T, P> {
    /// Loads an alternate path in RTS, in place of the last one. The path migration state becomes
    /// [`MigState::REARM`], and [`MigState::ARMED`] when the peer has loaded its alternate path too
    /// and sends a packet.
    ///
    /// An armed QP moves to the alternate path
    /// - after its retries on the primary path are exceeded,
    /// - when the peer has moved and sends a packet,
    /// - when the program calls [`Qp::migrate`].
    ///
    /// It then raises [`EventType::PATH_MIG`](crate::device::EventType), and its path migration state is
    /// [`MigState::MIGRATED`]. No request fails. The program loads the next alternate path, such as
    /// the old primary one once it works again. The peer's move to another path than the loaded one
    /// raises [`EventType::PATH_MIG_ERR`](crate::device::EventType).
    ///
    /// ```no_run
    /// # use bareverbs::Result;
    /// # use bareverbs::ah::AhAttr;
    /// # use bareverbs::qp::{AlternatePath, Qp, Rc};
    /// # fn example(qp: &mut Qp<Rc>, dlid: u16) -> Result<()> {
    /// // The peer's second port, or another LID of its port, through the local port 1.
    /// qp.load_alternate_path(&AlternatePath::new(AhAttr::local(1, dlid)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the port is Ethernet, where the kernel rejects alternate paths, or
    ///   the device has no path migration.
    /// - [`Error::Invalid`]: the state is not RTS, or the address is invalid.
    /// - [`Error::NoPort`], [`Error::NoGid`]
    /// - [`Error::Kernel`]: the kernel or the device rejects the path.
    #[doc(alias = "IBV_QP_ALT_PATH")]
    #[doc(alias = "IBV_MIG_REARM")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn load_alternate_path(&mut self, path: &AlternatePath) -> Result<()> {
        const VERB: &str = "modify_qp (alternate path)";
        self.check_state(VERB, QpState::RTS)?;
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

    /// Moves an armed QP to its alternate path. The peer follows with the next packet.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTS, or the QP is not armed.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "IBV_MIG_MIGRATED")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn migrate(&mut self) -> Result<()> {
        const VERB: &str = "modify_qp (path migration)";
        self.check_state(VERB, QpState::RTS)?;
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

    /// The path migration state, as the device reports it.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the query fails.
    #[doc(alias = "path_mig_state")]
    pub fn path_migration(&self) -> Result<MigState> {
        Ok(self.query()?.0.path_mig_state)
    }
}
