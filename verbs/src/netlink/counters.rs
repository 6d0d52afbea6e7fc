//! What a device counts.

use std::ops::RangeInclusive;

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags, MessageWriter};
use bareverbs_uapi::nldev::{Attribute, Command};
pub use bareverbs_uapi::nldev::{CounterMask, CounterMode};
use bareverbs_uapi::uverbs::types::QpType;
use rustix::io::Errno;

use super::RdmaNetlink;
use super::attrs::{FromAttribute, Owner, list, netlink_struct};
use crate::Result;

netlink_struct! {
    /// A counter's name and value.
    Counter {
        /// Its name, such as `sent_pkts`.
        name: String = STAT_HWCOUNTER_ENTRY_NAME;
        /// How much it has counted.
        value: u64 = STAT_HWCOUNTER_ENTRY_VALUE;
    }

    /// A counter that a port has, whether it counts or not.
    CounterStatus {
        /// Its name.
        name: String = STAT_HWCOUNTER_ENTRY_NAME;
        /// Its place among the counters of the port.
        index: u32 = STAT_HWCOUNTER_INDEX;
        /// Whether it counts; `None` for one that always does.
        enabled: Option<bool> = STAT_HWCOUNTER_DYNAMIC;
    }

    /// How queue pairs of a port come to counters of their own.
    CounterBinding {
        /// By themselves, by hand or not at all.
        mode: Option<CounterMode> = STAT_MODE;
        /// What queue pairs share that share a counter; only where they come to it by themselves.
        shared_by: Option<CounterMask> = STAT_AUTO_MODE_MASK;
        /// Whether optional counters are among those; from 7.2 on.
        with_optional: Option<bool> = STAT_OPCOUNTER_ENABLED;
    }

    /// A set of counters that queue pairs are bound to.
    QpCounters {
        /// Its number.
        number: u32 = STAT_COUNTER_ID;
        /// The port of its queue pairs.
        port: u32 = PORT_INDEX;
        /// How they came to it.
        mode: Option<CounterMode> = STAT_MODE;
        /// The transport that they share, if they came to it by that.
        qp_type: Option<QpType> = RES_TYPE;
        /// The owner that they share, if they came to it by that.
        owner: Owner = RES_PID;
        /// Their numbers.
        queue_pairs: Vec<RangeInclusive<u32>> = RES_QP;
        /// What was counted of them together.
        counters: Vec<Counter> = STAT_HWCOUNTERS;
    }

    /// What is counted of a memory region.
    MrCounters {
        /// The kernel's number for the region, as in
        /// [`MrResource::number`](super::MrResource::number).
        number: u32 = RES_MRN;
        /// What was counted.
        counters: Vec<Counter> = STAT_HWCOUNTERS;
    }
}

impl FromAttribute for Vec<Counter> {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> std::result::Result<Self, Malformed> {
        list(object, attribute, Counter::read)
    }
}

/// What a device counts.
impl RdmaNetlink {
    /// The counters of a port, with their values; `None` where the driver has none.
    ///
    /// ```no_run
    /// use bareverbs::netlink::RdmaNetlink;
    ///
    /// for counter in RdmaNetlink::open()?.port_counters("rxe0", 1)?.into_iter().flatten() {
    ///     println!("{counter:?}");
    /// }
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no such device or port, or the answer could not be read.
    pub fn port_counters(&mut self, device: &str, port: u32) -> Result<Option<Vec<Counter>>> {
        let what = format!("reading the counters of port {port} of {device}");
        self.request_port(
            &what,
            device,
            port,
            Command::STAT_GET,
            |_| {},
            |answer| Vec::from_attribute(answer, Attribute::STAT_HWCOUNTERS),
        )
    }

    /// The counters that a port has, the optional ones that are switched off among them; `None`
    /// where the driver has none.
    ///
    /// # Errors
    /// There is no such device or port, or the answer could not be read.
    pub fn counter_status(&mut self, device: &str, port: u32) -> Result<Option<Vec<CounterStatus>>> {
        let what = format!("asking which counters port {port} of {device} has");
        self.request_port(
            &what,
            device,
            port,
            Command::STAT_GET_STATUS,
            |_| {},
            |answer| list(answer, Attribute::STAT_HWCOUNTERS, CounterStatus::read),
        )
    }

    /// How queue pairs of a port come to counters of their own; `None` where the driver has none
    /// for them.
    ///
    /// # Errors
    /// There is no such device or port, or the answer could not be read.
    #[doc(alias = "rdma_nl_counter_mode")]
    pub fn counter_binding(&mut self, device: &str, port: u32) -> Result<Option<CounterBinding>> {
        let what = format!("asking how queue pairs of port {port} of {device} are counted");
        let fill = |request: &mut MessageWriter<'_>| {
            request
                .put_u32(Attribute::STAT_RES.0, Attribute::RES_QP.0.into())
                .put_u32(Attribute::STAT_MODE.0, CounterMode::NONE.0);
        };
        self.request_port(&what, device, port, Command::STAT_GET, fill, CounterBinding::read)
    }

    /// The sets of counters that queue pairs of a device are bound to.
    ///
    /// # Errors
    /// There is no such device, or the answer could not be read.
    pub fn qp_counters(&mut self, device: &str) -> Result<Vec<QpCounters>> {
        self.dump_counters(device, Attribute::RES_QP, Attribute::STAT_COUNTER, QpCounters::read)
    }

    /// What is counted of each memory region of a device; drivers that count nothing of them give
    /// empty lists.
    ///
    /// # Errors
    /// There is no such device, or the answer could not be read.
    pub fn mr_counters(&mut self, device: &str) -> Result<Vec<MrCounters>> {
        self.dump_counters(device, Attribute::RES_MR, Attribute::RES_MR, MrCounters::read)
    }

    fn dump_counters<T>(
        &mut self,
        device: &str,
        of: Attribute,
        table: Attribute,
        read: impl Fn(&Attributes<'_>) -> std::result::Result<T, Malformed>,
    ) -> Result<Vec<T>> {
        let index = self.index_of(device)?;
        let mut found = Vec::new();
        self.request(
            &format!("reading counters of {device}"),
            Command::STAT_GET,
            MessageFlags::DUMP,
            |request| {
                request.put_u32(Attribute::DEV_INDEX.0, index).put_u32(Attribute::STAT_RES.0, of.0.into());
            },
            |answer| {
                found.extend(list(answer, table, &read)?);
                Ok(())
            },
        )?;
        Ok(found)
    }

    /// Asks about a port. Where there is that port and the kernel says "invalid", the driver has
    /// nothing of the kind.
    fn request_port<T>(
        &mut self,
        what: &str,
        device: &str,
        port: u32,
        command: Command,
        fill: impl FnOnce(&mut MessageWriter<'_>),
        read: impl Fn(&Attributes<'_>) -> std::result::Result<T, Malformed>,
    ) -> Result<Option<T>> {
        let index = self.index_of(device)?;
        let mut found = None;
        let asked = self.request(
            what,
            command,
            MessageFlags::empty(),
            |request| {
                request.put_u32(Attribute::DEV_INDEX.0, index).put_u32(Attribute::PORT_INDEX.0, port);
                fill(request);
            },
            |answer| {
                found = Some(read(answer)?);
                Ok(())
            },
        );
        match asked {
            Ok(()) => Ok(found),
            Err(error) if matches!(error.errno(), Some(Errno::INVAL | Errno::OPNOTSUPP)) => {
                match self.ports(index)?.iter().any(|found| found.port == port) {
                    true => Ok(None),
                    false => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_attributes;
    use super::*;

    fn put_counters(writer: &mut MessageWriter<'_>, counters: &[(&str, u64)]) {
        writer.put_nested(Attribute::STAT_HWCOUNTERS.0, |writer| {
            for (name, value) in counters {
                writer.put_nested(Attribute::STAT_HWCOUNTER_ENTRY.0, |writer| {
                    writer
                        .put_str(Attribute::STAT_HWCOUNTER_ENTRY_NAME.0, name)
                        .put_u64(Attribute::STAT_HWCOUNTER_ENTRY_VALUE.0, *value);
                });
            }
        });
    }

    #[test]
    fn counters_are_read_by_name_in_their_order() {
        let counters = with_attributes(
            |writer| put_counters(writer, &[("sent_pkts", 1 << 40), ("rcvd_pkts", 0)]),
            |answer| Vec::<Counter>::from_attribute(answer, Attribute::STAT_HWCOUNTERS),
        );
        let counters: Vec<_> =
            counters.iter().map(|counter| (counter.name.as_str(), counter.value)).collect();
        assert_eq!(counters, [("sent_pkts", 1 << 40), ("rcvd_pkts", 0)]);
    }

    #[test]
    fn qp_counters_are_read_with_their_binding() {
        let counters = with_attributes(
            |writer| {
                writer
                    .put_u32(Attribute::PORT_INDEX.0, 1)
                    .put_u32(Attribute::STAT_COUNTER_ID.0, 3)
                    .put_u32(Attribute::STAT_MODE.0, 1)
                    .put_u8(Attribute::RES_TYPE.0, 2)
                    .put_nested(Attribute::RES_QP.0, |writer| {
                        for number in [17, 19] {
                            writer.put_nested(Attribute::RES_QP_ENTRY.0, |writer| {
                                writer.put_u32(Attribute::RES_LQPN.0, number);
                            });
                        }
                    });
                put_counters(writer, &[("rx_write_requests", 5)]);
            },
            QpCounters::read,
        );
        assert_eq!((counters.number, counters.port, counters.mode), (3, 1, Some(CounterMode::AUTO)));
        assert_eq!((counters.qp_type, &counters.owner), (Some(QpType::RC), &Owner::Unknown));
        assert_eq!(counters.queue_pairs, [17..=17, 19..=19]);
        assert_eq!(counters.counters[0].value, 5);
    }

    #[test]
    fn optional_counters_report_enabled() {
        let read = |fill: fn(&mut MessageWriter<'_>)| with_attributes(fill, CounterStatus::read);
        let off = read(|writer| {
            writer
                .put_u32(Attribute::STAT_HWCOUNTER_INDEX.0, 4)
                .put_u8(Attribute::STAT_HWCOUNTER_DYNAMIC.0, 0);
        });
        assert_eq!((off.index, off.enabled), (4, Some(false)));
        assert_eq!(read(|_| {}).enabled, None);
    }
}
