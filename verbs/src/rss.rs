//! Receive-side scaling (RSS): spreads frames over work queues by a hash of their headers.

use std::sync::Arc;

use bareverbs_provider::command::{self, QpHandle, TableHandle};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::request::RssQpRequest;
use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use crate::error::{Feature, Limit};
use crate::qp::flow::{FlowId, FlowRule, Flows};
use crate::qp::flow_counters::FlowCounters;
use crate::released::Released;
use crate::wq::WqShared;
use crate::{AnyProvider, Context, Error, Pd, Refused, Result};

pub use crate::wq::{Wq, WqInit};
pub use bareverbs_provider::rss::{HashFields, HashFunctions, TOEPLITZ_KEY};
pub use bareverbs_uapi::uverbs::types::WqFlags;
pub use bareverbs_uapi::verbs_values::WqState;

/// An indirection table of [work queues](Wq). A frame goes to the entry `hash % entries`. A WQ may
/// be in several entries.
///
/// The table keeps its WQs. Their owners still post to them.
#[doc(alias = "ibv_rwq_ind_table")]
pub struct IndirectionTable<P: Provider = AnyProvider> {
    shared: Arc<TableShared<P>>,
}

/// The part of a table that its QPs share.
struct TableShared<P: Provider> {
    context: Context<P>,
    handle: u32,
    table_num: u32,
    entries: usize,
    released: Released,
    /// The WQs are destroyed after the table.
    _wqs: Vec<Arc<WqShared<P>>>,
}

impl<P: Provider> Context<P> {
    /// Creates an indirection table of work queues for RSS QPs. [`RssQp`](crate::rss::RssQp) describes
    /// its use.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no indirection tables.
    /// - [`Error::Invalid`] if the number of queues is not a power of 2 or a queue belongs to
    ///   another context.
    /// - [`Error::Limit`] for more than
    ///   [`DeviceAttr::max_rwq_indirection_table_size`](crate::device::DeviceAttr::max_rwq_indirection_table_size).
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_rwq_ind_table")]
    #[doc(alias = "ibv_rwq_ind_table_init_attr")]
    pub fn create_indirection_table(&self, wqs: &[&Wq<P>]) -> Result<IndirectionTable<P>> {
        IndirectionTable::create(self, wqs)
    }
}

impl<P: Provider> IndirectionTable<P> {
    pub(crate) fn create(context: &Context<P>, wqs: &[&Wq<P>]) -> Result<Self> {
        const VERB: &str = "create_rwq_ind_table";
        let attr = &context.inner().device_attr;
        if !context.capabilities().rss {
            return Err(Error::unsupported(VERB, Feature::IndirectionTables));
        }
        if !wqs.len().is_power_of_two() {
            let reason = format!("the number of entries must be a power of two, not {}", wqs.len());
            return Err(Error::invalid(VERB, reason));
        }
        let max = attr.rss_caps.max_rwq_indirection_table_size;
        Error::check_limit(VERB, Limit::IndirectionEntries, wqs.len() as u64, max.into())?;
        for wq in wqs {
            context.check_same_context(VERB, "WQ", wq.shared().context().file())?;
        }
        let handles: Vec<u32> = wqs.iter().map(|wq| wq.shared().handle).collect();
        let TableHandle { handle, table_num } = command::create_rwq_ind_table(context.file(), &handles)
            .map_err(|refused| Error::kernel(VERB, format!("{} WQs", wqs.len()), refused))?;
        let shared = TableShared {
            context: context.clone(),
            handle,
            table_num,
            entries: wqs.len(),
            released: Released::default(),
            _wqs: wqs.iter().map(|wq| Arc::clone(wq.shared())).collect(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared.handle
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed. Its work queues stay in use.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared.released.set();
        self.shared.handle
    }

    /// The device's number of the table.
    #[must_use]
    pub fn table_num(&self) -> u32 {
        self.shared.table_num
    }

    /// The number of entries, a power of 2.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.shared.entries
    }

    /// Destroys the table. Drop ignores errors, and the table is destroyed after its last QP.
    ///
    /// # Errors
    /// The table and the reason:
    ///
    /// - [`Error::Invalid`]: QPs still use the table.
    /// - [`Error::Kernel`]: the kernel refuses to destroy it.
    #[doc(alias = "ibv_destroy_rwq_ind_table")]
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "destroy_rwq_ind_table";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "QPs still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        shared.destroy().map_err(|refused| {
            let error = Error::kernel(VERB, format!("indirection table handle {}", self.handle()), refused);
            Refused::new(error, self)
        })
    }
}

impl<P: Provider> TableShared<P> {
    fn destroy(&mut self) -> Result<(), IoctlError> {
        // SAFETY: the handle is this table's, which nothing shares. QPs of the table hold an `Arc` of it.
        let destroy = || unsafe { command::destroy_rwq_ind_table(self.context.file(), self.handle) };
        self.released.destroy(destroy)
    }
}

impl<P: Provider> Drop for TableShared<P> {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

/// The RSS hash: its fields and its key. The function is Toeplitz.
#[doc(alias = "ibv_rx_hash_conf")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssHash {
    /// Header fields that are hashed: of one IP version, and of one of TCP, UDP and IPsec. The
    /// device reports its fields in
    /// [`DeviceAttr::rx_hash_fields_mask`](crate::device::DeviceAttr::rx_hash_fields_mask). The device
    /// chooses the WQ of a frame without these fields.
    pub fields: HashFields,
    /// The Toeplitz key. Random bytes spread well.
    pub key: [u8; TOEPLITZ_KEY],
}

impl RssHash {
    /// Rejects fields that no device can hash, that are not in `device` (the fields of this
    /// device), or that cannot select one of `entries`.
    fn check(&self, verb: &'static str, device: HashFields, entries: usize) -> Result<()> {
        use HashFields as F;
        let fields = self.fields;
        if !device.contains(fields) {
            return Err(Error::unsupported(verb, Feature::RxHashFields));
        }
        let has = |which| usize::from(fields.intersects(which));
        if has(F::SRC_IPV4 | F::DST_IPV4) + has(F::SRC_IPV6 | F::DST_IPV6) > 1 {
            return Err(Error::invalid(verb, "IPv4 and IPv6 hash fields cannot be combined"));
        }
        let (tcp, udp) = (F::SRC_PORT_TCP | F::DST_PORT_TCP, F::SRC_PORT_UDP | F::DST_PORT_UDP);
        if has(tcp) + has(udp) + has(F::IPSEC_SPI) > 1 {
            let reason = "TCP, UDP and IPsec hash fields cannot be combined";
            return Err(Error::invalid(verb, reason));
        }
        if (fields - F::INNER).is_empty() && entries > 1 {
            let reason = format!("a table of {entries} entries requires hash fields");
            return Err(Error::invalid(verb, reason));
        }
        Ok(())
    }
}

/// Attributes for the creation of an RSS QP.
pub struct RssInit<'a, P: Provider = AnyProvider> {
    /// The indirection table.
    pub table: &'a IndirectionTable<P>,
    /// The hash.
    pub hash: RssHash,
    /// Value reported in [asynchronous events](crate::AsyncEvent::Qp).
    pub user_data: u64,
}

/// A QP that spreads Ethernet frames over the [work queues](Wq) of an indirection table. Frames of
/// one connection go to one WQ, in order. An RSS QP has no posting methods and no states. Flows
/// steer frames to it as to a [`Qp<RawPacket>`](crate::qp::RawPacket).
///
/// Requires `CAP_NET_RAW`, an Ethernet port, and a device with
/// [`Capabilities::rss`](crate::device::Capabilities::rss).
///
/// ```
/// # fn example(pd: &bareverbs::Pd, cq: &bareverbs::cq::Cq, key: [u8; 40]) -> bareverbs::Result<()> {
/// use bareverbs::flow::{EthernetMatch, FlowRule};
/// use bareverbs::rss::{HashFields, RssHash, RssInit, WqInit};
/// use bareverbs::values::MacAddress;
///
/// let mut wqs = (0..4).map(|_| pd.create_wq(&WqInit::new(cq, 64))).collect::<Result<Vec<_>, _>>()?;
/// for wq in &mut wqs {
///     wq.ready()?;
/// }
/// let table = pd.context().create_indirection_table(&wqs.iter().collect::<Vec<_>>())?;
/// let fields = HashFields::SRC_IPV4 | HashFields::DST_IPV4 | HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
/// let hash = RssHash { fields, key };
/// let mut qp = pd.create_rss_qp(&RssInit { table: &table, hash, user_data: 0 })?;
/// // Frames to this address consume the receives that are posted to the four WQs.
/// let own = Some(MacAddress([2, 0, 0, 0, 0, 7]));
/// qp.create_flow(&FlowRule::new(1, EthernetMatch { dst_mac: own, ..EthernetMatch::default() }))?;
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
/// # example::unsupported(example(&pd, &cq, [0; 40]));
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[doc(alias = "ibv_qp")]
#[doc(alias = "ibv_rx_hash_conf")]
pub struct RssQp<P: Provider = AnyProvider> {
    pd: Pd<P>,
    handle: u32,
    flows: Flows,
    user_data: u64,
    destroyed: bool,
    /// The table is destroyed after the QP.
    table: Arc<TableShared<P>>,
}

impl<P: Provider> Pd<P> {
    /// Creates an RSS QP over work queues.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no RSS QPs or does not hash the fields.
    /// - [`Error::Invalid`] for a set of fields that no frame has, or a table of another context.
    /// - [`Error::Kernel`], for example without the capability `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_rss_qp(&self, init: &RssInit<'_, P>) -> Result<RssQp<P>> {
        RssQp::create(self, init)
    }
}

impl<P: Provider> RssQp<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &RssInit<'_, P>) -> Result<Self> {
        const VERB: &str = "create_qp";
        let (context, table) = (pd.context(), &init.table.shared);
        if !context.capabilities().rss {
            return Err(Error::unsupported(VERB, Feature::RssQps));
        }
        context.check_same_context(VERB, "indirection table", table.context.file())?;
        let caps = context.provider().capabilities();
        if !caps.rx_hash_function.contains(HashFunctions::TOEPLITZ) {
            return Err(Error::unsupported(VERB, Feature::ToeplitzHash));
        }
        let RssHash { fields, key } = init.hash;
        init.hash.check(VERB, caps.rx_hash_fields_mask, table.entries)?;
        let request = RssQpRequest {
            pd: pd.domain().handle,
            table: table.handle,
            fields,
            key,
            user_handle: init.user_data,
        };
        let created = context.provider().create_rss_qp(&request).map_err(|reason| {
            let asked = format!("hash of {fields:?}, table of {} entries", table.entries);
            Error::create(VERB, asked, reason).or_hint(|errno| match errno {
                Errno::PERM => Some("raw packets require CAP_NET_RAW".into()),
                Errno::INVAL | Errno::OPNOTSUPP if fields.contains(HashFields::INNER) => {
                    Some("the device may not support tunnelled headers: omit INNER".into())
                }
                _ => None,
            })
        })?;
        let QpHandle { handle, .. } = created;
        Ok(Self {
            pd: pd.clone(),
            handle,
            flows: Flows::default(),
            user_data: init.user_data,
            destroyed: false,
            table: Arc::clone(table),
        })
    }

    /// The protection domain of the QP.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.pd
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Releases the handle: drop no longer destroys the kernel object and its flows. The kernel
    /// destroys them when the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(mut self) -> u32 {
        self.destroyed = true;
        self.handle
    }

    /// [`RssInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.user_data
    }

    /// The number of entries of the indirection table.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.table.entries
    }

    /// Steers frames that match `rule` to the WQs instead of the kernel's network stack. A frame is
    /// dropped if its WQ has no posted receive. The flow ends when the QP is destroyed, or with
    /// [`RssQp::destroy_flow`].
    ///
    /// # Errors
    /// As for [`Qp::create_flow`](crate::qp::Qp::create_flow).
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, rule: &FlowRule<'_>) -> Result<FlowId> {
        self.flows.create(self.pd.context(), self.handle, rule, None)
    }

    /// As [`RssQp::create_flow`], and counts the frames that match. Frames that the rule drops are
    /// counted too. Several flows can use the same counters.
    ///
    /// # Errors
    /// As for [`RssQp::create_flow`]; [`Error::Invalid`] for counters of another context;
    /// [`Error::Unsupported`] if the device has no flow counters.
    #[doc(alias = "ibv_attach_counters_point_flow")]
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
    pub fn create_counted_flow(&mut self, rule: &FlowRule<'_>, counters: &FlowCounters) -> Result<FlowId> {
        self.flows.create(self.pd.context(), self.handle, rule, Some(counters))
    }

    /// Destroys a flow.
    ///
    /// # Errors
    /// As for [`Qp::destroy_flow`](crate::qp::Qp::destroy_flow).
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy_flow(&mut self, flow: FlowId) -> Result<()> {
        self.flows.destroy(self.pd.context(), flow)
    }

    /// Destroys the QP. Returns the number of its [events](crate::AsyncEvent::Qp) that have been
    /// read. Drop ignores errors.
    ///
    /// # Errors
    /// The QP and [`Error::Kernel`]: the kernel refuses to destroy it. Its flows may be destroyed.
    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<u32, Refused<Self>> {
        // SAFETY: it was not destroyed before. If this succeeds, it is dropped next.
        match unsafe { self.destroy_inner() } {
            Ok(events) => Ok(events),
            Err(refused) => {
                let asked = format!("RSS QP handle {}", self.handle);
                Err(Refused::new(Error::kernel("destroy_qp", asked, refused), self))
            }
        }
    }

    /// # Safety
    ///
    /// It must not have been destroyed before. If this succeeds, it must not be used afterwards,
    /// except to drop it.
    unsafe fn destroy_inner(&mut self) -> Result<u32, IoctlError> {
        let file = self.pd.context().file();
        // The kernel refuses to destroy a QP that a flow steers to.
        self.flows.destroy_all(file);
        // SAFETY: `self` owns the QP, which is not used after success.
        let resp = unsafe { command::destroy_qp(file, self.handle) }?;
        self.destroyed = true;
        Ok(resp.events_reported)
    }
}

impl<P: Provider> Drop for RssQp<P> {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: it was not destroyed before, and is being dropped.
            let _ = unsafe { self.destroy_inner() };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(fields: HashFields, device: HashFields, entries: usize) -> Result<(), String> {
        let hash = RssHash { fields, key: [0; TOEPLITZ_KEY] };
        hash.check("create_qp", device, entries).map_err(|error| error.to_string())
    }

    #[test]
    fn empty_and_conflicting_rss_hash_fields_are_rejected() {
        use HashFields as F;
        let all = F::all();
        assert!(check(F::SRC_IPV4 | F::DST_PORT_UDP, all, 4).is_ok());
        assert!(check(F::SRC_IPV4 | F::DST_IPV6, all, 4).unwrap_err().contains("IPv4 and IPv6"));
        assert!(check(F::SRC_PORT_TCP | F::DST_PORT_UDP, all, 4).unwrap_err().contains("TCP, UDP and IPsec"));
        assert!(check(F::SRC_PORT_TCP | F::IPSEC_SPI, all, 4).unwrap_err().contains("TCP, UDP and IPsec"));
        assert!(check(F::empty(), all, 2).unwrap_err().contains("a table of 2 entries"));
        assert!(check(F::INNER, all, 2).unwrap_err().contains("a table of 2 entries"));
        assert!(check(F::empty(), all, 1).is_ok());
        assert!(check(F::IPSEC_SPI, all - F::IPSEC_SPI, 1).unwrap_err().contains("not supported"));
        assert!(check(F::from_bits_retain(1 << 40), all, 1).unwrap_err().contains("not supported"));
    }

    proptest! {
        #[test]
        fn accepted_rss_hash_has_one_ip_version_and_one_protocol(bits in 0u64..1 << 9, entries in 1usize..9) {
            use HashFields as F;
            let fields = F::from_bits_retain(bits);
            if check(fields, F::all(), entries).is_ok() {
                let has = |which| fields.intersects(which);
                prop_assert!(!has(F::SRC_IPV4 | F::DST_IPV4) || !has(F::SRC_IPV6 | F::DST_IPV6));
                prop_assert!(!has(F::SRC_PORT_TCP | F::DST_PORT_TCP) || !has(F::SRC_PORT_UDP | F::DST_PORT_UDP));
                prop_assert!(entries == 1 || !fields.is_empty());
            }
        }
    }
}
