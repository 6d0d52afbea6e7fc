//! Alternate paths of connected QPs: automatic path migration (APM).

use bareverbs_provider::traits::Provider;

use super::{AlternatePath, Connected, MigState, Qp};
#[cfg(doc)]
use crate::Error;
use crate::error::Result;

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
    /// ```
    /// # use bareverbs::Result;
    /// # use bareverbs::ah::AhAttr;
    /// # use bareverbs::qp::{AlternatePath, Qp, Rc};
    /// # fn example(qp: &mut Qp<Rc>, dlid: u16) -> Result<()> {
    /// // The peer's second port, or another LID of its port, through the local port 1.
    /// qp.load_alternate_path(&AlternatePath::new(AhAttr::local(1, dlid)))?;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [(mut qp, _cq), _peer] = example::qps(&pd)?;
    /// # example::unsupported(example(&mut qp, 1));
    /// # Ok::<(), bareverbs::Report>(())
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
        self.core.load_alternate_path(path)
    }

    /// Moves an armed QP to its alternate path. The peer follows with the next packet.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTS, or the QP is not armed.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "IBV_MIG_MIGRATED")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn migrate(&mut self) -> Result<()> {
        self.core.migrate()
    }

    /// The path migration state, as the device reports it.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the query fails.
    #[doc(alias = "path_mig_state")]
    pub fn path_migration(&self) -> Result<MigState> {
        self.core.path_migration()
    }
}
