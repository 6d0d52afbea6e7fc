//! DMA handles: hints for the device's memory accesses.

use std::sync::Arc;

use bareverbs_provider::command::{self, DmahRequest};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;
pub use bareverbs_uapi::uverbs::dmah::TphMemType;
use rustix::io::Errno;

use crate::context::{Context, ContextInner};
use crate::error::{Error, Feature, Refused, Result};
use crate::released::Released;

/// Hints of a [DMA handle](Dmah): TLP processing hints of PCI Express.
#[doc(alias = "ibv_dmah_init_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmahInit {
    /// The processing hint, 0 to 3. mlx5 requires it.
    #[doc(alias = "ph")]
    pub processing_hint: Option<u8>,
    /// The CPU whose cache the data is intended for, and the type of the memory.
    #[doc(alias = "cpu_id")]
    #[doc(alias = "tph_mem_type")]
    #[doc(alias = "ibv_tph_mem_type")]
    pub cpu: Option<(u32, TphMemType)>,
}

/// A DMA handle: hints for the device's accesses to a region, which is registered with it by
/// [`Pd::register_with_hints`](crate::Pd::register_with_hints).
///
/// Cloning is cheap. The kernel object is deallocated when the last clone and the last region with
/// it is dropped, or by [`Dmah::dealloc`].
#[doc(alias = "ibv_dmah")]
#[derive(Clone)]
pub struct Dmah {
    shared: Arc<DmahShared>,
}

/// The kernel object.
pub(crate) struct DmahShared {
    context: Arc<ContextInner>,
    handle: u32,
    released: Released,
}

impl<P: Provider> Context<P> {
    /// Creates a DMA handle: hints for the device's accesses to regions.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] before Linux 7.2, from a kernel without TLP processing hints
    ///   (`CONFIG_PCIE_TPH`, which Debian's kernels lack), and from a device or a slot without them.
    /// - [`Error::Invalid`]: the processing hint is above 3.
    /// - [`Error::Kernel`]: the kernel rejects the hints; `ENODEV` for a CPU, if the device has no
    ///   root port, whose firmware knows the steering tags of CPUs.
    #[doc(alias = "ibv_alloc_dmah")]
    pub fn alloc_dmah(&self, init: &DmahInit) -> Result<Dmah> {
        Dmah::alloc(self.inner(), init)
    }
}

impl Dmah {
    pub(crate) fn alloc(context: &Arc<ContextInner>, init: &DmahInit) -> Result<Self> {
        const VERB: &str = "alloc_dmah";
        let DmahInit { processing_hint, cpu } = *init;
        Error::check_range(VERB, "processing hint", processing_hint.unwrap_or(0).into(), 3)?;
        let made = command::alloc_dmah(&context.file, &DmahRequest { processing_hint, cpu });
        let handle = made.map_err(|refused| {
            let error = Error::kernel_lacks(VERB, Feature::DmaHandles, format!("{init:?}"), refused);
            error.or_hint(|errno| match errno {
                Errno::PERM => Some("the calling thread may not run on this CPU".into()),
                Errno::NODEV => Some("the device has no root port, so no CPU has a steering tag".into()),
                Errno::INVAL => Some(
                    "the driver may require a processing hint, the CPU is unknown, or the platform \
                     reports no steering tags"
                        .into(),
                ),
                _ => None,
            })
        })?;
        let (context, released) = (Arc::clone(context), Released::default());
        Ok(Self { shared: Arc::new(DmahShared { context, handle, released }) })
    }

    /// Deallocates it. Drop does the same once its last clone and region are dropped, and ignores
    /// errors.
    ///
    /// # Errors
    /// The DMA handle and the reason:
    ///
    /// - [`Error::Invalid`]: this process still has clones or regions of the handle.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_dealloc_dmah")]
    pub fn dealloc(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "dealloc_dmah";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "clones or MRs still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        shared.dealloc().map_err(|refused| {
            let error = Error::kernel(VERB, format!("DMA handle {}", self.handle()), refused);
            Refused::new(error, self)
        })
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared.handle
    }

    /// Releases the handle, also for all clones: drop no longer deallocates the kernel object. The
    /// kernel deallocates it when the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared.released.set();
        self.handle()
    }

    pub(crate) fn shared(&self) -> &Arc<DmahShared> {
        &self.shared
    }

    pub(crate) fn is_of(&self, context: &Arc<ContextInner>) -> bool {
        Arc::ptr_eq(&self.shared.context, context)
    }
}

impl DmahShared {
    fn dealloc(&mut self) -> Result<(), IoctlError> {
        // SAFETY: the handle is this value's, which nothing shares. Regions that use it hold an `Arc` of it.
        self.released.destroy(|| unsafe { command::free_dmah(&self.context.file, self.handle) })
    }
}

impl Drop for DmahShared {
    fn drop(&mut self) {
        // If the kernel refuses, closing the file releases it.
        let _ = self.dealloc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plain;
    use crate::{Access, Pd};

    /// A DMA handle of the PD's context, without a kernel object.
    fn dmah(pd: &Pd<Plain>) -> Dmah {
        let context = Arc::clone(pd.context().inner());
        Dmah { shared: Arc::new(DmahShared { context, handle: 7, released: Released::default() }) }
    }

    #[test]
    fn hints_of_another_context_are_rejected() {
        let (pd, other) = (Plain::default().domain(), Plain::default().domain());
        let (own, foreign) = (dmah(&pd), dmah(&other));
        let register = |hints: &Dmah| {
            pd.register_with_hints(vec![0; 64], Access::LOCAL_WRITE, hints).map(drop).unwrap_err().error
        };
        assert!(matches!(register(&foreign), Error::Invalid { .. }));
        assert!(matches!(register(&own), Error::Kernel { .. }));
        let memory = std::fs::File::open("/dev/null").unwrap();
        let register = |hints: &Dmah| {
            pd.register_dmabuf_with_hints(&memory, 0, 64, 0, Access::LOCAL_WRITE, hints)
                .map(drop)
                .unwrap_err()
        };
        assert!(matches!(register(&foreign), Error::Invalid { .. }));
        assert!(matches!(register(&own), Error::Kernel { .. }));
    }

    #[test]
    fn dealloc_returns_a_handle_that_is_in_use_or_was_refused() {
        let hints = dmah(&Plain::default().domain());
        let clone = hints.clone();
        let Refused { error, object, .. } = hints.dealloc().unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        drop(clone);
        let Refused { error, object, .. } = object.dealloc().unwrap_err();
        assert!(matches!(error, Error::Kernel { .. }), "{error}");
        assert_eq!((object.handle(), object.into_handle()), (7, 7));
    }

    #[test]
    fn released_handle_is_not_deallocated() {
        let hints = dmah(&Plain::default().domain());
        assert_eq!(hints.clone().into_handle(), 7);
        hints.dealloc().unwrap();
    }
}
