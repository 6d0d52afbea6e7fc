//! DMA handles: hints for the device's memory accesses.

use std::sync::Arc;

use bareverbs_provider::command::{self, DmahRequest};
pub use bareverbs_uapi::uverbs::dmah::TphMemType;
use rustix::io::Errno;

use crate::context::ContextInner;
use crate::{Error, Feature, Result};

/// Hints of a [DMA handle](Dmah): TLP processing hints of PCI Express.
#[doc(alias = "ibv_dmah_init_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmahInit {
    /// The processing hint, 0 to 3. mlx5 requires it.
    pub processing_hint: Option<u8>,
    /// The CPU whose cache the data is intended for, and the type of the memory.
    pub cpu: Option<(u32, TphMemType)>,
}

/// A DMA handle: hints for the device's accesses to a region, which is registered with it by
/// [`Pd::register_with_hints`](crate::Pd::register_with_hints).
///
/// Dropping it releases it once its last region is dropped.
#[doc(alias = "ibv_dmah")]
#[derive(Clone)]
pub struct Dmah {
    shared: Arc<DmahShared>,
}

/// The kernel object.
pub(crate) struct DmahShared {
    context: Arc<ContextInner>,
    handle: u32,
}

impl Dmah {
    pub(crate) fn alloc(context: &Arc<ContextInner>, init: &DmahInit) -> Result<Self> {
        const VERB: &str = "alloc_dmah";
        let DmahInit { processing_hint, cpu } = *init;
        if let Some(hint) = processing_hint.filter(|hint| *hint > 3) {
            return Err(Error::invalid(VERB, format!("processing hint {hint} is above 3")));
        }
        let made = command::alloc_dmah(&context.file, &DmahRequest { processing_hint, cpu });
        let handle = made.map_err(|refused| match refused.errno {
            Errno::OPNOTSUPP | Errno::PROTONOSUPPORT => Error::unsupported(VERB, Feature::DmaHandles),
            _ => Error::kernel(VERB, format!("{init:?}"), refused).or_hint(|errno| match errno {
                Errno::PERM => Some("the calling thread may not run on this CPU".into()),
                Errno::INVAL => {
                    Some("the driver may require a processing hint, or the CPU is unknown".into())
                }
                _ => None,
            }),
        })?;
        Ok(Self { shared: Arc::new(DmahShared { context: Arc::clone(context), handle }) })
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared.handle
    }

    pub(crate) fn shared(&self) -> &Arc<DmahShared> {
        &self.shared
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.shared.context, context)
    }
}

impl Drop for DmahShared {
    fn drop(&mut self) {
        // If the kernel refuses, closing the file releases it.
        // SAFETY: the handle is this value's, and the regions that use it keep this value.
        let _ = unsafe { command::free_dmah(&self.context.file, self.handle) };
    }
}
