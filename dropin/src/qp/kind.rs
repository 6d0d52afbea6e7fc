//! What a QP of C stands for.

use std::sync::{Mutex, PoisonError};

use bareverbs::error::Refused;
use bareverbs::qp::{QpAttr, QpAttrMask, QpCap, QpState};
use bareverbs::rss::RssQp;
use bareverbs::untyped::QpCore;
use bareverbs::xrc::XrcTarget;
use bareverbs::{Errno, Error};

use super::queues::Queues;
use crate::convention::Failure;
use crate::object::lock;

/// A QP of any type.
#[expect(clippy::large_enum_variant, reason = "the queues of the data path need no further pointer")]
pub(crate) enum AnyQp {
    Queues(Queues),
    /// An XRC target, which has no queues.
    Target(Mutex<XrcTarget>),
    /// An RSS QP, which has neither queues nor states. The lock is for its flows.
    Rss(Mutex<RssQp>),
}

impl AnyQp {
    /// Its queues. No function for posting takes a QP without any.
    pub(crate) fn queues(&self) -> Result<&Queues, Failure> {
        match self {
            Self::Queues(queues) => Ok(queues),
            Self::Target(_) | Self::Rss(_) => Err(Failure::INVALID),
        }
    }

    /// Uses the core of a QP with queues, while no thread uses them.
    pub(super) fn with_core<R>(
        &self,
        call: impl FnOnce(&mut QpCore) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        Ok(self.queues()?.with_core(call)?)
    }

    /// Returns the new state.
    pub(super) fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<QpState, Failure> {
        match self {
            Self::Queues(queues) => Ok(queues.with_core(|core| {
                core.modify(attr, mask)?;
                let state = core.state();
                // The C library asks for no state on iWARP, where the connection manager moves the QP: it
                // posts from INIT on, and the requests wait in the queue.
                if core.pd().context().capabilities().iwarp && matches!(state, QpState::INIT | QpState::RTR) {
                    core.set_cm_state(QpState::RTS)?;
                }
                Ok::<_, Error>(state)
            })?),
            Self::Target(target) => {
                let mut target = lock(target);
                target.modify(attr, mask)?;
                Ok(target.state())
            }
            // The errno of the kernel.
            Self::Rss(_) => Err(Errno::NOSYS.into()),
        }
    }

    /// Its attributes, its capacities, and whether each send has a completion.
    pub(super) fn query(&self) -> Result<(QpAttr, QpCap, bool), Failure> {
        match self {
            Self::Queues(queues) => {
                let (attr, created) = queues.with_core(|core| core.query())?;
                Ok((attr, created.cap, created.signal_all))
            }
            Self::Target(target) => Ok((lock(target).query()?, QpCap::default(), false)),
            Self::Rss(_) => Err(Errno::NOSYS.into()),
        }
    }

    /// Whether it is attached to multicast groups.
    pub(super) fn has_groups(&mut self) -> bool {
        match self {
            Self::Queues(queues) => queues.core().has_mcast_groups(),
            Self::Target(_) | Self::Rss(_) => false,
        }
    }

    /// Returns the number of events that were read.
    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    pub(super) fn destroy(self) -> Result<u32, Refused<Self>> {
        match self {
            Self::Queues(queues) => queues.destroy().map_err(|refused| refused.map(Self::Queues)),
            Self::Target(target) => target
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .destroy()
                .map_err(|refused| refused.map(|target| Self::Target(Mutex::new(target)))),
            Self::Rss(qp) => qp
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .destroy()
                .map_err(|refused| refused.map(|qp| Self::Rss(Mutex::new(qp)))),
        }
    }
}
