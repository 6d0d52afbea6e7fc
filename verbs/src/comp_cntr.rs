//! Completion counters: numbers of completions, without a CQ.

use std::fmt;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::uverbs::comp_cntr::{CompCntrEntry, CompCntrModifyOp};

use crate::context::ContextInner;
use crate::error::Feature;
use crate::released::Released;
use crate::{Context, Error, Refused, Result};

pub use bareverbs_provider::command::CompCntrCaps;
pub use bareverbs_uapi::uverbs::comp_cntr::CompCntrOps;

/// A completion counter: the numbers of completions of QPs, with and without an error
/// ([`Qp::attach_comp_cntr`](crate::qp::Qp::attach_comp_cntr)). Linux has them since 7.3, for the
/// driver of EFA only, which has no provider here. All other devices are
/// [`Error::Unsupported`].
///
/// ```
/// # fn example(qp: &mut bareverbs::qp::Qp<bareverbs::qp::Rc>) -> bareverbs::Result<()> {
/// use bareverbs::comp_cntr::CompCntrOps;
///
/// let writes = qp.pd().context().create_comp_cntr()?;
/// qp.attach_comp_cntr(&writes, CompCntrOps::RDMA_WRITE)?;
/// // Later:
/// println!("{} writes succeeded, {} failed", writes.read()?, writes.read_errors()?);
/// # Ok(())
/// # }
/// # use bareverbs::{cq::CqInit, qp::{QpInit, Rc}};
/// # let pd = bareverbs_test_support::example::pd()?;
/// # let cq = pd.context().create_cq(&CqInit::new(4))?;
/// # let mut qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq))?;
/// # bareverbs_test_support::example::unsupported(example(&mut qp));
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// Cloning is cheap. The kernel object is destroyed when the last clone and the last QP that uses it
/// are dropped, or by [`CompCntr::destroy`].
#[doc(alias = "ibv_comp_cntr")]
#[derive(Clone, Debug)]
pub struct CompCntr {
    shared: Arc<CompCntrShared>,
}

pub(crate) struct CompCntrShared {
    context: Arc<ContextInner>,
    handle: u32,
    released: Released,
}

/// The error of a call that devices may lack.
fn error(verb: &'static str, asked: impl Into<String>, refused: IoctlError) -> Error {
    Error::kernel_lacks(verb, Feature::CompCntrs, asked, refused)
}

impl<P: Provider> Context<P> {
    /// Creates a completion counter, whose values are 0.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has none; [`Error::Kernel`].
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&self) -> Result<CompCntr> {
        let handle = command::create_comp_cntr(self.file())
            .map_err(|refused| error("create_comp_cntr", "a completion counter", refused))?;
        let (context, released) = (Arc::clone(self.inner()), Released::default());
        Ok(CompCntr { shared: Arc::new(CompCntrShared { context, handle, released }) })
    }

    /// Queries the limits of completion counters.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has none; [`Error::Kernel`].
    #[doc(alias = "ibv_query_comp_cntr_caps")]
    pub fn query_comp_cntr_caps(&self) -> Result<CompCntrCaps> {
        command::query_comp_cntr_caps(self.file())
            .map_err(|refused| error("query_comp_cntr_caps", "limits of completion counters", refused))
    }
}

impl CompCntr {
    /// The number of completions without an error.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn read(&self) -> Result<u64> {
        self.read_entry(CompCntrEntry::COMP)
    }

    /// The number of completions with an error.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read_errors(&self) -> Result<u64> {
        self.read_entry(CompCntrEntry::ERR)
    }

    /// Sets the number of completions without an error. One that is counted meanwhile may be lost.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command, for instance a value above
    /// [`CompCntrCaps::max_value`].
    #[doc(alias = "ibv_set_comp_cntr")]
    pub fn set(&self, value: u64) -> Result<()> {
        self.modify("set_comp_cntr", CompCntrEntry::COMP, CompCntrModifyOp::SET, value)
    }

    /// Sets the number of completions with an error, as [`CompCntr::set`].
    ///
    /// # Errors
    /// As for [`CompCntr::set`].
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set_errors(&self, value: u64) -> Result<()> {
        self.modify("set_err_comp_cntr", CompCntrEntry::ERR, CompCntrModifyOp::SET, value)
    }

    /// Adds to the number of completions without an error.
    ///
    /// # Errors
    /// As for [`CompCntr::set`].
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn add(&self, amount: u64) -> Result<()> {
        self.modify("inc_comp_cntr", CompCntrEntry::COMP, CompCntrModifyOp::INC, amount)
    }

    /// Adds to the number of completions with an error.
    ///
    /// # Errors
    /// As for [`CompCntr::set`].
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn add_errors(&self, amount: u64) -> Result<()> {
        self.modify("inc_err_comp_cntr", CompCntrEntry::ERR, CompCntrModifyOp::INC, amount)
    }

    fn read_entry(&self, entry: CompCntrEntry) -> Result<u64> {
        command::read_comp_cntr(&self.shared.context.file, self.shared.handle, entry)
            .map_err(|refused| error("read_comp_cntr", self.shared.asked(), refused))
    }

    fn modify(
        &self,
        verb: &'static str,
        entry: CompCntrEntry,
        op: CompCntrModifyOp,
        value: u64,
    ) -> Result<()> {
        command::modify_comp_cntr(&self.shared.context.file, self.shared.handle, entry, op, value)
            .map_err(|refused| error(verb, format!("{}, {value}", self.shared.asked()), refused))
    }

    /// Lets the counter count for the QP with the handle `qp`, which keeps what this returns.
    pub(crate) fn attach<P: Provider>(
        &self,
        context: &Context<P>,
        qp: u32,
        ops: CompCntrOps,
    ) -> Result<Arc<CompCntrShared>> {
        const VERB: &str = "qp_attach_comp_cntr";
        context.check_same_context(VERB, "completion counter", &self.shared.context.file)?;
        command::attach_comp_cntr(context.file(), qp, self.shared.handle, ops)
            .map_err(|refused| error(VERB, format!("{}, {ops:?}", self.shared.asked()), refused))?;
        Ok(Arc::clone(&self.shared))
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared.handle
    }

    /// Releases the handle, also for all clones: drop no longer destroys the kernel object. The
    /// kernel destroys it when the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared.released.set();
        self.handle()
    }

    /// Destroys the counter. Drop does the same once its last clone and QP are dropped, and ignores
    /// errors.
    ///
    /// # Errors
    /// The counter and the reason:
    ///
    /// - [`Error::Invalid`]: this process still has clones of the counter, or QPs that use it.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "destroy_comp_cntr";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "clones or QPs still use the counter: drop them first");
            return Err(Refused::new(error, self));
        };
        shared.destroy().map_err(|refused| {
            let error = Error::kernel(VERB, self.shared.asked(), refused);
            Refused::new(error, self)
        })
    }
}

impl CompCntrShared {
    fn asked(&self) -> String {
        format!("completion counter handle {}", self.handle)
    }

    fn destroy(&mut self) -> Result<(), IoctlError> {
        // SAFETY: the handle is this object's, which nothing shares. QPs that use it hold an `Arc` of it.
        self.released.destroy(|| unsafe { command::destroy_comp_cntr(&self.context.file, self.handle) })
    }
}

impl fmt::Debug for CompCntrShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompCntrShared").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Drop for CompCntrShared {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}
