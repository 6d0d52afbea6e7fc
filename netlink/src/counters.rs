//! Counters of a device.

use std::ops::RangeInclusive;

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags, MessageWriter};
use bareverbs_uapi::nldev::{Attribute, Command};
pub use bareverbs_uapi::nldev::{CounterMask, CounterMode};
use bareverbs_uapi::uverbs::types::QpType;
use rustix::io::Errno;

use crate::RdmaNetlink;
use crate::attrs::{FromAttribute, Owner, list, netlink_struct};
use crate::error::with_hint;
use crate::{Error, PortNum, Result};

netlink_struct! {
    /// A counter's name and value.
    Counter {
        /// Its name, such as `sent_pkts`.
        name: String = STAT_HWCOUNTER_ENTRY_NAME;
        /// Its value.
        value: u64 = STAT_HWCOUNTER_ENTRY_VALUE;
    }

    /// A counter of a port, enabled or disabled.
    CounterStatus {
        /// Its name.
        name: String = STAT_HWCOUNTER_ENTRY_NAME;
        /// Its index among the counters of the port.
        index: u32 = STAT_HWCOUNTER_INDEX;
        /// Whether it is enabled; `None` for a counter that is not optional.
        enabled: Option<bool> = STAT_HWCOUNTER_DYNAMIC;
    }

    /// Binding mode of QPs of a port to QP counters.
    CounterBinding {
        /// Automatic, manual or none.
        mode: Option<CounterMode> = STAT_MODE;
        /// Properties that QPs of a counter have in common; automatic mode only.
        shared_by: Option<CounterMask> = STAT_AUTO_MODE_MASK;
        /// Whether optional counters are included. Linux 7.2 and later.
        with_optional: Option<bool> = STAT_OPCOUNTER_ENABLED;
    }

    /// A set of counters that QPs are bound to.
    QpCounters {
        /// Its id.
        number: u32 = STAT_COUNTER_ID;
        /// Port of its QPs; `None` if its number is above 255.
        port: Option<PortNum> = PORT_INDEX;
        /// Mode in which the QPs were bound.
        mode: Option<CounterMode> = STAT_MODE;
        /// Transport that the QPs have in common, if they were bound by transport.
        qp_type: Option<QpType> = RES_TYPE;
        /// Owner that the QPs have in common, if they were bound by owner.
        owner: Owner = RES_PID;
        /// QP numbers.
        queue_pairs: Vec<RangeInclusive<u32>> = RES_QP;
        /// Counters of all these QPs together.
        counters: Vec<Counter> = STAT_HWCOUNTERS;
    }

    /// Counters of a memory region.
    MrCounters {
        /// Number of the region, as in [`MrResource::number`](super::MrResource::number).
        number: u32 = RES_MRN;
        /// The counters.
        counters: Vec<Counter> = STAT_HWCOUNTERS;
    }
}

impl FromAttribute for Vec<Counter> {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> std::result::Result<Self, Malformed> {
        list(object, attribute, Counter::read)
    }
}

/// Counters of a device.
impl RdmaNetlink {
    /// The counters of a port with their values; `None` if the driver has none.
    ///
    /// ```
    /// # fn example() -> Result<(), bareverbs_netlink::Error> {
    /// use bareverbs_netlink::RdmaNetlink;
    ///
    /// for counter in RdmaNetlink::open()?.port_counters("rxe0", 1)?.into_iter().flatten() {
    ///     println!("{counter:?}");
    /// }
    /// # Ok(())
    /// # }
    /// # // The kernel has no RDMA subsystem, or no such device.
    /// # let result = example();
    /// # use bareverbs_netlink::Error::{System, UnknownDevice};
    /// # assert!(matches!(result, Ok(()) | Err(System { .. } | UnknownDevice { .. })), "{result:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if there is no such device;
    /// [`Error::Kernel`] if there is no such port;
    /// [`Error::Malformed`] if the response is malformed.
    #[doc(alias = "rdma statistic show")]
    #[doc(alias = "RDMA_NLDEV_CMD_STAT_GET")]
    pub fn port_counters(&mut self, device: &str, port: impl Into<PortNum>) -> Result<Option<Vec<Counter>>> {
        let port = port.into();
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

    /// The counters of a port, including disabled optional ones; `None` if the driver has none.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if there is no such device;
    /// [`Error::Kernel`] if there is no such port;
    /// [`Error::Malformed`] if the response is malformed.
    #[doc(alias = "rdma statistic mode")]
    #[doc(alias = "RDMA_NLDEV_CMD_STAT_GET_STATUS")]
    pub fn counter_status(
        &mut self,
        device: &str,
        port: impl Into<PortNum>,
    ) -> Result<Option<Vec<CounterStatus>>> {
        let port = port.into();
        let what = format!("listing the counters of port {port} of {device}");
        self.request_port(
            &what,
            device,
            port,
            Command::STAT_GET_STATUS,
            |_| {},
            |answer| list(answer, Attribute::STAT_HWCOUNTERS, CounterStatus::read),
        )
    }

    /// Binding mode of QPs of a port to QP counters; `None` if the driver has no QP counters.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if there is no such device;
    /// [`Error::Kernel`] if there is no such port;
    /// [`Error::Malformed`] if the response is malformed.
    #[doc(alias = "rdma_nl_counter_mode")]
    pub fn counter_binding(
        &mut self,
        device: &str,
        port: impl Into<PortNum>,
    ) -> Result<Option<CounterBinding>> {
        let port = port.into();
        let what = format!("querying the QP counter mode of port {port} of {device}");
        let fill = |request: &mut MessageWriter<'_>| {
            request
                .put_u32(Attribute::STAT_RES.0, Attribute::RES_QP.0.into())
                .put_u32(Attribute::STAT_MODE.0, CounterMode::NONE.0);
        };
        self.request_port(&what, device, port, Command::STAT_GET, fill, CounterBinding::read)
    }

    /// The sets of counters that QPs of a device are bound to.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if there is no such device;
    /// [`Error::Malformed`] if the response is malformed.
    #[doc(alias = "rdma statistic qp show")]
    pub fn qp_counters(&mut self, device: &str) -> Result<Vec<QpCounters>> {
        self.dump_counters(device, Attribute::RES_QP, Attribute::STAT_COUNTER, QpCounters::read)
    }

    /// The counters of each memory region of a device. The lists are empty if the driver has no MR
    /// counters.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if there is no such device;
    /// [`Error::Malformed`] if the response is malformed.
    #[doc(alias = "rdma statistic mr show")]
    pub fn mr_counters(&mut self, device: &str) -> Result<Vec<MrCounters>> {
        self.dump_counters(device, Attribute::RES_MR, Attribute::RES_MR, MrCounters::read)
    }

    /// Enables the optional counters of a port that `names` lists, and disables all others. Without
    /// names, it disables all.
    ///
    /// rxe has no optional counters. [`RdmaNetlink::counter_status`] lists them.
    ///
    /// ```no_run
    /// use bareverbs_netlink::RdmaNetlink;
    ///
    /// RdmaNetlink::open()?.set_optional_counters("mlx5_0", 1, &["cc_rx_ce_pkts", "cc_rx_cnp_pkts"])?;
    /// # Ok::<(), bareverbs_netlink::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::UnknownDevice`].
    /// - [`Error::NoPort`].
    /// - [`Error::Invalid`] if a name is not that of an optional counter of the port.
    /// - [`Error::Kernel`] with `EPERM` without `CAP_NET_ADMIN`.
    #[doc(alias = "rdma statistic set link optional-counters")]
    #[doc(alias = "RDMA_NLDEV_CMD_STAT_SET")]
    pub fn set_optional_counters(
        &mut self,
        device: &str,
        port: impl Into<PortNum>,
        names: &[&str],
    ) -> Result<()> {
        const VERB: &str = "RdmaNetlink::set_optional_counters";
        let port = port.into();
        let index = self.index_of_port(device, port)?;
        let status = self.counter_status(device, port)?.unwrap_or_default();
        let optional: Vec<_> = status.iter().filter(|counter| counter.enabled.is_some()).collect();
        let mut wanted = Vec::new();
        for name in names {
            let found = optional.iter().find(|counter| counter.name == *name).ok_or_else(|| {
                let known: Vec<_> = optional.iter().map(|counter| counter.name.as_str()).collect();
                let known = match &known[..] {
                    [] => "it has no optional counters".to_owned(),
                    known => format!("optional counters: {}", known.join(", ")),
                };
                Error::invalid(
                    VERB,
                    format!("port {port} of {device} has no optional counter {name:?}; {known}"),
                )
            })?;
            wanted.push(found.index);
        }
        let what = format!("setting the optional counters of port {port} of {device}");
        self.change(&what, Command::STAT_SET, |request| {
            request
                .put_u32(Attribute::DEV_INDEX.0, index)
                .put_u32(Attribute::PORT_INDEX.0, port.into())
                .put_nested(Attribute::STAT_HWCOUNTERS.0, |counters| {
                    for index in wanted {
                        counters.put_u32(Attribute::STAT_HWCOUNTER_INDEX.0, index);
                    }
                });
        })
    }

    /// Binds all QPs of a port to QP counters: one counter for QPs that have the properties
    /// `shared_by` in common. Without properties, it turns automatic binding off.
    ///
    /// `with_optional`: whether the counters include the optional ones (Linux 7.2 and later);
    /// `None` leaves it to the kernel.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::NoPort`]; [`Error::Kernel`] with
    /// - `EPERM`: no `CAP_NET_ADMIN`;
    /// - `EOPNOTSUPP`: the driver has no QP counters;
    /// - `EBUSY`: counters are in use.
    #[doc(alias = "rdma statistic qp set link auto")]
    #[doc(alias = "RDMA_COUNTER_MODE_AUTO")]
    pub fn set_counter_auto(
        &mut self,
        device: &str,
        port: impl Into<PortNum>,
        shared_by: CounterMask,
        with_optional: Option<bool>,
    ) -> Result<()> {
        let port = port.into();
        let index = self.index_of_port(device, port)?;
        let what = format!("setting the QP counter mode of port {port} of {device}");
        let set = self.change(&what, Command::STAT_SET, |request| {
            put_qp_counter(request, index, port, CounterMode::AUTO);
            request.put_u32(Attribute::STAT_AUTO_MODE_MASK.0, shared_by.bits());
            if let Some(with_optional) = with_optional {
                request.put_u8(Attribute::STAT_OPCOUNTER_ENABLED.0, with_optional.into());
            }
        });
        with_hint(set, qp_counter_hint)
    }

    /// Binds a QP to a QP counter, manually. Returns the id of the counter, which is a new one if
    /// `counter` is `None`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::NoPort`]; [`Error::Kernel`] with
    /// - `EPERM`: no `CAP_NET_ADMIN`;
    /// - `ENOENT`: no such QP or counter;
    /// - `EOPNOTSUPP`: the driver has no QP counters;
    /// - `EINVAL`: the port is in automatic mode, or the QP is bound already.
    #[doc(alias = "rdma statistic qp bind")]
    #[doc(alias = "RDMA_COUNTER_MODE_MANUAL")]
    pub fn bind_counter(
        &mut self,
        device: &str,
        port: impl Into<PortNum>,
        qp_num: u32,
        counter: Option<u32>,
    ) -> Result<u32> {
        let port = port.into();
        let index = self.index_of_port(device, port)?;
        let mut bound = counter.unwrap_or(0);
        let what = format!("binding QP {qp_num} of port {port} of {device} to a counter");
        let asked = self.request(
            &what,
            Command::STAT_SET,
            MessageFlags::ACK,
            |request| {
                put_qp_counter(request, index, port, CounterMode::MANUAL);
                request.put_u32(Attribute::RES_LQPN.0, qp_num);
                if let Some(counter) = counter {
                    request.put_u32(Attribute::STAT_COUNTER_ID.0, counter);
                }
            },
            |answer| {
                bound = Option::from_attribute(answer, Attribute::STAT_COUNTER_ID)?.unwrap_or(bound);
                Ok(())
            },
        );
        with_hint(asked, qp_counter_hint)?;
        Ok(bound)
    }

    /// Unbinds a QP from a QP counter that [`RdmaNetlink::bind_counter`] bound it to.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::NoPort`]; [`Error::Kernel`] with
    /// - `EPERM`: no `CAP_NET_ADMIN`;
    /// - `ENOENT`: no such QP or counter;
    /// - `EINVAL`: the port is in automatic mode, or the QP is not bound to the counter.
    #[doc(alias = "rdma statistic qp unbind")]
    #[doc(alias = "RDMA_NLDEV_CMD_STAT_DEL")]
    pub fn unbind_counter(
        &mut self,
        device: &str,
        port: impl Into<PortNum>,
        qp_num: u32,
        counter: u32,
    ) -> Result<()> {
        let port = port.into();
        let index = self.index_of_port(device, port)?;
        let what = format!("unbinding QP {qp_num} of port {port} of {device} from counter {counter}");
        let unbound = self.change(&what, Command::STAT_DEL, |request| {
            request
                .put_u32(Attribute::DEV_INDEX.0, index)
                .put_u32(Attribute::PORT_INDEX.0, port.into())
                .put_u32(Attribute::STAT_RES.0, Attribute::RES_QP.0.into())
                .put_u32(Attribute::STAT_COUNTER_ID.0, counter)
                .put_u32(Attribute::RES_LQPN.0, qp_num);
        });
        with_hint(unbound, qp_counter_hint)
    }

    /// The index of the device, if it has that port.
    fn index_of_port(&mut self, device: &str, port: PortNum) -> Result<u32> {
        let index = self.index_of(device)?;
        let ports = self.ports(index)?;
        if ports.iter().any(|found| found.port == port) {
            return Ok(index);
        }
        Err(Error::NoPort {
            device: device.to_owned(),
            port,
            count: u8::try_from(ports.len()).unwrap_or(u8::MAX),
        })
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

    /// Sends a request about a port. If the port exists and the kernel returns `EINVAL` or
    /// `EOPNOTSUPP`, the driver does not support the request: the result is `None`.
    fn request_port<T>(
        &mut self,
        what: &str,
        device: &str,
        port: PortNum,
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
                request.put_u32(Attribute::DEV_INDEX.0, index).put_u32(Attribute::PORT_INDEX.0, port.into());
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

fn put_qp_counter(request: &mut MessageWriter<'_>, index: u32, port: PortNum, mode: CounterMode) {
    request
        .put_u32(Attribute::DEV_INDEX.0, index)
        .put_u32(Attribute::PORT_INDEX.0, port.into())
        .put_u32(Attribute::STAT_RES.0, Attribute::RES_QP.0.into())
        .put_u32(Attribute::STAT_MODE.0, mode.0);
}

fn qp_counter_hint(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::OPNOTSUPP => Some("the driver has no QP counters"),
        Errno::BUSY => Some("QP counters are in use: unbind the QPs, or close their processes"),
        Errno::NOENT => Some("there is no such QP or counter"),
        Errno::INVAL => Some(
            "the driver has no QP counters, the port is in another mode, or the QP's binding is different",
        ),
        _ => None,
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
        assert_eq!(
            (counters.number, counters.port, counters.mode),
            (3, Some(PortNum(1)), Some(CounterMode::AUTO))
        );
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
