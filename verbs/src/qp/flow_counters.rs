//! Counters of flows.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::request::CountedFlowRequest;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::{CounterDescription, FlowSpecType};
use bareverbs_uapi::write::structs::FlowAttr;
use zerocopy::IntoBytes;

use super::flow_specs::Specs;
use crate::context::ContextInner;
use crate::error::Feature;
use crate::released::Released;
use crate::{Context, Error, Refused, Result};

/// What a counters object counts. The index of a value is that of its description.
const VALUES: [CounterDescription; 2] = [CounterDescription::PACKETS, CounterDescription::BYTES];

/// Packets and bytes that flows have counted; see [`FlowCounters::read`].
#[doc(alias = "ibv_counter_description")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCount {
    /// Packets that matched.
    #[doc(alias = "IBV_COUNTER_PACKETS")]
    pub packets: u64,
    /// Their bytes, from the Ethernet header on. Whether the device counts the frame check sequence
    /// is not specified.
    #[doc(alias = "IBV_COUNTER_BYTES")]
    pub bytes: u64,
}

/// A counters object: counts the packets of one or more flows.
///
/// ```no_run
/// use bareverbs::flow::{EthernetMatch, FlowRule};
/// use bareverbs::qp::{Qp, RawPacket};
///
/// # fn example(qp: &mut Qp<RawPacket>) -> bareverbs::Result<()> {
/// let counters = qp.pd().context().create_flow_counters()?;
/// let all_of_vlan_5 = EthernetMatch { vlan: Some(5), ..EthernetMatch::default() };
/// qp.create_counted_flow(&FlowRule::new(1, all_of_vlan_5), &counters)?;
/// // Later:
/// println!("{} packets", counters.read()?.packets);
/// # Ok(())
/// # }
/// ```
///
/// Cloning is cheap. The kernel object is destroyed when the last clone and the last flow that uses
/// it are dropped, or by [`FlowCounters::destroy`].
#[doc(alias = "ibv_counters")]
#[derive(Clone, Debug)]
pub struct FlowCounters {
    shared: Arc<CountersShared>,
}

pub(crate) struct CountersShared {
    context: Arc<ContextInner>,
    handle: u32,
    /// The flows that use the object. The first one describes its values, and the driver forgets the
    /// description with the last one. Locked while a flow is created or destroyed.
    flows: Mutex<u32>,
    released: Released,
}

impl<P: Provider> Context<P> {
    /// Creates counters for flows; see
    /// [`Qp::create_counted_flow`](crate::qp::Qp::create_counted_flow).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no flow counters; [`Error::Kernel`].
    #[doc(alias = "ibv_create_counters")]
    pub fn create_flow_counters(&self) -> Result<FlowCounters> {
        FlowCounters::create(self)
    }
}

impl FlowCounters {
    pub(crate) fn create<P: Provider>(context: &Context<P>) -> Result<Self> {
        const VERB: &str = "create_counters";
        let handle = command::create_counters(context.file())
            .map_err(|refused| Error::kernel_lacks(VERB, Feature::FlowCounters, "flow counters", refused))?;
        let context = Arc::clone(context.inner());
        let (flows, released) = (Mutex::new(0), Released::default());
        Ok(Self { shared: Arc::new(CountersShared { context, handle, flows, released }) })
    }

    /// Destroys the object. Drop does the same once its last clone and flow are dropped, and
    /// ignores errors.
    ///
    /// # Errors
    /// The counters and the reason:
    ///
    /// - [`Error::Invalid`]: this process still has clones of the object, or flows that use it.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_destroy_counters")]
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "destroy_counters";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "clones or flows still use the counters: drop them first");
            return Err(Refused::new(error, self));
        };
        shared.destroy().map_err(|refused| {
            let error = Error::kernel(VERB, format!("counters handle {}", self.handle()), refused);
            Refused::new(error, self)
        })
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

    /// The packets and bytes that the flows have counted since the object was created.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: no flow uses the counters.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self) -> Result<FlowCount> {
        const VERB: &str = "read_counters";
        let flows = self.shared.lock();
        if *flows == 0 {
            return Err(Error::invalid(VERB, "no flow uses the counters"));
        }
        let mut values = [0; VALUES.len()];
        command::read_counters(&self.shared.context.file, self.shared.handle, &mut values).map_err(
            |refused| Error::kernel(VERB, format!("counters handle {}", self.shared.handle), refused),
        )?;
        let [packets, bytes] = values;
        Ok(FlowCount { packets, bytes })
    }

    /// Creates a flow that uses the counters. Returns its handle.
    pub(super) fn create_flow<P: Provider>(
        &self,
        (verb, asked): (&'static str, &str),
        context: &Context<P>,
        qp: u32,
        flow: FlowAttr,
        specs: &mut Specs,
    ) -> Result<u32> {
        context.check_same_context(verb, "flow counters", &self.shared.context.file)?;
        specs.push(FlowSpecType::ACTION_COUNT, &[self.shared.handle.as_bytes(), &[0; 4]]);
        let (flow, specs) = (specs.counted(flow), &specs.bytes);
        let mut flows = self.shared.lock();
        let counters = if *flows == 0 { &VALUES[..] } else { &[] };
        let made = context.provider().create_counted_flow(&CountedFlowRequest { qp, flow, specs, counters });
        let handle = made.map_err(|reason| Error::create(verb, asked, reason))?;
        *flows += 1;
        Ok(handle)
    }

    pub(super) fn shared(&self) -> &Arc<CountersShared> {
        &self.shared
    }
}

impl CountersShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, u32> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn destroy(&mut self) -> Result<(), IoctlError> {
        // SAFETY: the handle is this object's, which nothing shares. Flows that use it hold an `Arc` of it.
        self.released.destroy(|| unsafe { command::destroy_counters(&self.context.file, self.handle) })
    }

    /// Destroys a flow that uses the counters, by `destroy`.
    pub(super) fn destroy_flow<E>(&self, destroy: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut flows = self.lock();
        destroy()?;
        *flows -= 1;
        Ok(())
    }
}

impl fmt::Debug for CountersShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountersShared").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Drop for CountersShared {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plain;

    #[test]
    fn counters_without_flows_are_not_read() {
        let plain = Plain::default();
        let context = Arc::clone(plain.domain().context().inner());
        let shared =
            CountersShared { context, handle: 0x0102, flows: Mutex::new(0), released: Released::default() };
        let counters = FlowCounters { shared: Arc::new(shared) };
        let refused = counters.read().unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }
}
