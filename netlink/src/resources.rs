//! Objects of a device and their owners.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags};
use bareverbs_uapi::nldev::{Attribute, Command};
pub use bareverbs_uapi::rdma_cm::PortSpace;
pub use bareverbs_uapi::uverbs::types::{QpType, SrqType};
pub use bareverbs_uapi::verbs_values::{MigState, PollContext, QpState};

use crate::RdmaNetlink;
pub use crate::attrs::{DriverDetail, DriverValue, Owner};
use crate::attrs::{list, netlink_struct};
use crate::{PortNum, Result};

netlink_struct! {
    /// A queue pair in use.
    QpResource {
        /// Its port; `None` before INIT, and if its number is above 255.
        port: Option<PortNum> = PORT_INDEX;
        /// Its number.
        qp_num: u32 = RES_LQPN;
        /// QPN of its peer, 0 before RTR; connected transports only.
        remote_qp_num: Option<u32> = RES_RQPN;
        /// PSN of the next packet expected, 24 bits; connected transports only.
        rq_psn: Option<u32> = RES_RQ_PSN;
        /// PSN of the next packet sent, 24 bits.
        sq_psn: Option<u32> = RES_SQ_PSN;
        /// Its path migration state; connected transports only.
        path_mig_state: Option<MigState> = RES_PATH_MIG_STATE;
        /// Its transport.
        qp_type: Option<QpType> = RES_TYPE;
        /// Name of a driver-specific transport.
        subtype: Option<String> = RES_SUBTYPE;
        /// Its state.
        state: Option<QpState> = RES_STATE;
        /// Number of its PD, as in [`PdResource::number`]; `None` for kernel objects.
        pd: Option<u32> = RES_PDN;
        /// Its owner.
        owner: Owner = RES_PID;
        /// Driver-specific attributes.
        driver: Vec<DriverDetail> = DRIVER;
    }

    /// A completion queue in use.
    CqResource {
        /// Its number in the kernel.
        number: u32 = RES_CQN;
        /// Number of entries.
        cqe: u32 = RES_CQE;
        /// Number of queues that use it.
        users: u64 = RES_USECNT;
        /// Context in which the kernel polls it; kernel CQs only.
        poll_context: Option<PollContext> = RES_POLL_CTX;
        /// Whether adaptive moderation (DIM) is enabled.
        adaptive_moderation: Option<bool> = DEV_DIM;
        /// Number of its context, as in [`ContextResource::number`]; `None` for kernel objects.
        context: Option<u32> = RES_CTXN;
        /// Its owner.
        owner: Owner = RES_PID;
        /// Driver-specific attributes.
        driver: Vec<DriverDetail> = DRIVER;
    }

    /// A memory region in use.
    MrResource {
        /// Its number in the kernel.
        number: u32 = RES_MRN;
        /// Its remote key. The kernel reports it to callers with `CAP_NET_ADMIN` only.
        rkey: Option<u32> = RES_RKEY;
        /// Its local key; `CAP_NET_ADMIN` only.
        lkey: Option<u32> = RES_LKEY;
        /// Its IOVA. No kernel up to 7.2 reports it.
        iova: Option<u64> = RES_IOVA;
        /// Length in bytes.
        length: u64 = RES_MRLEN;
        /// Number of its PD; `None` for kernel objects.
        pd: Option<u32> = RES_PDN;
        /// Its owner.
        owner: Owner = RES_PID;
        /// Driver-specific attributes.
        driver: Vec<DriverDetail> = DRIVER;
    }

    /// A protection domain in use.
    PdResource {
        /// Its number in the kernel.
        number: u32 = RES_PDN;
        /// Local key for all kernel memory (`local_dma_lkey`); `CAP_NET_ADMIN` only.
        local_dma_lkey: Option<u32> = RES_LOCAL_DMA_LKEY;
        /// Remote key for all memory, if there is one (`unsafe_global_rkey`); `CAP_NET_ADMIN` only.
        unsafe_global_rkey: Option<u32> = RES_UNSAFE_GLOBAL_RKEY;
        /// Number of objects in it.
        users: u64 = RES_USECNT;
        /// Number of its context; `None` for kernel objects.
        context: Option<u32> = RES_CTXN;
        /// Its owner.
        owner: Owner = RES_PID;
    }

    /// A CM ID of rdma_cm in use.
    CmIdResource {
        /// Its number in the kernel.
        number: u32 = RES_CM_IDN;
        /// Its device port, if it is bound to one whose number is at most 255.
        port: Option<PortNum> = PORT_INDEX;
        /// Its QPN, if it has a QP.
        qp_num: Option<u32> = RES_LQPN;
        /// Transport of its QP.
        qp_type: Option<QpType> = RES_TYPE;
        /// Its port space.
        port_space: Option<PortSpace> = RES_PS;
        /// Its state, as the kernel's `enum rdma_cm_state` numbers it.
        state: Option<u8> = RES_STATE;
        /// Local address.
        source: Option<SocketAddr> = RES_SRC_ADDR;
        /// Remote address.
        destination: Option<SocketAddr> = RES_DST_ADDR;
        /// Its owner.
        owner: Owner = RES_PID;
        /// Driver-specific attributes.
        driver: Vec<DriverDetail> = DRIVER;
    }

    /// An open context of a process.
    ContextResource {
        /// Its number in the kernel.
        number: u32 = RES_CTXN;
        /// Its owner.
        owner: Owner = RES_PID;
    }

    /// A shared receive queue in use.
    SrqResource {
        /// Its number in the kernel.
        number: u32 = RES_SRQN;
        /// Its type.
        srq_type: Option<SrqType> = RES_TYPE;
        /// Number of its PD.
        pd: Option<u32> = RES_PDN;
        /// Number of its CQ, if its type has one.
        cq: Option<u32> = RES_CQN;
        /// Numbers of the QPs that use it.
        queue_pairs: Vec<RangeInclusive<u32>> = RES_QP;
        /// Its owner.
        owner: Owner = RES_PID;
        /// Driver-specific attributes.
        driver: Vec<DriverDetail> = DRIVER;
    }
}

/// Defines the methods that list the objects of one type.
macro_rules! lists {
    ($( $(#[$meta:meta])* $name:ident -> $entry:ident: $command:ident, $table:ident, $what:literal; )*) => {
        /// Lists of a device's objects with their owners, for all processes and the kernel.
        impl RdmaNetlink {
            $(
                $(#[$meta])*
                ///
                /// # Errors
                /// - [`Error::UnknownDevice`](crate::Error::UnknownDevice) if there is no such
                ///   device.
                /// - [`Error::Kernel`](crate::Error::Kernel) if the kernel refuses
                ///   the request.
                /// - [`Error::Malformed`](crate::Error::Malformed) if its response is malformed.
                pub fn $name(&mut self, device: &str) -> Result<Vec<$entry>> {
                    self.list_objects($what, device, Command::$command, Attribute::$table, $entry::read)
                }
            )*
        }
    };
}

lists! {
    /// The queue pairs of the device named `device`.
    ///
    /// ```
    /// # fn example() -> Result<(), bareverbs_netlink::Error> {
    /// use bareverbs_netlink::RdmaNetlink;
    ///
    /// for qp in RdmaNetlink::open()?.queue_pairs("rxe0")? {
    ///     println!("{qp:?}");
    /// }
    /// # Ok(())
    /// # }
    /// # // The kernel has no RDMA subsystem, or no such device.
    /// # let result = example();
    /// # use bareverbs_netlink::Error::{System, UnknownDevice};
    /// # assert!(matches!(result, Ok(()) | Err(System { .. } | UnknownDevice { .. })), "{result:?}");
    /// ```
    #[doc(alias = "rdma resource show qp")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_QP_GET")]
    queue_pairs -> QpResource: RES_QP_GET, RES_QP, "listing QPs";
    /// The completion queues of the device named `device`.
    #[doc(alias = "rdma resource show cq")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_CQ_GET")]
    completion_queues -> CqResource: RES_CQ_GET, RES_CQ, "listing CQs";
    /// The memory regions of the device named `device`.
    #[doc(alias = "rdma resource show mr")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_MR_GET")]
    memory_regions -> MrResource: RES_MR_GET, RES_MR, "listing MRs";
    /// The protection domains of the device named `device`.
    #[doc(alias = "rdma resource show pd")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_PD_GET")]
    protection_domains -> PdResource: RES_PD_GET, RES_PD, "listing PDs";
    /// The CM IDs of the device named `device`.
    #[doc(alias = "rdma resource show cm_id")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_CM_ID_GET")]
    cm_ids -> CmIdResource: RES_CM_ID_GET, RES_CM_ID, "listing CM IDs";
    /// The open contexts of the device named `device`.
    #[doc(alias = "rdma resource show ctx")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_CTX_GET")]
    contexts -> ContextResource: RES_CTX_GET, RES_CTX, "listing contexts";
    /// The shared receive queues of the device named `device`.
    #[doc(alias = "rdma resource show srq")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_SRQ_GET")]
    shared_receive_queues -> SrqResource: RES_SRQ_GET, RES_SRQ, "listing SRQs";
}

impl RdmaNetlink {
    fn list_objects<T>(
        &mut self,
        what: &str,
        device: &str,
        command: Command,
        table: Attribute,
        read: impl Fn(&Attributes<'_>) -> std::result::Result<T, Malformed>,
    ) -> Result<Vec<T>> {
        let index = self.index_of(device)?;
        let mut found = Vec::new();
        self.request(
            &format!("{what} of {device}"),
            command,
            MessageFlags::DUMP,
            |request| {
                request.put_u32(Attribute::DEV_INDEX.0, index);
            },
            |answer| {
                found.extend(list(answer, table, &read)?);
                Ok(())
            },
        )?;
        Ok(found)
    }
}

/// An object whose raw state a device can report: [`RdmaNetlink::raw_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RawObject {
    /// A queue pair; from INIT on, because the kernel finds a QP by port and number.
    Qp {
        /// Its number ([`QpResource::qp_num`]).
        qp_num: u32,
        /// Its port ([`QpResource::port`]).
        port: PortNum,
    },
    /// A completion queue, by its number in the kernel ([`CqResource::number`]).
    Cq(u32),
    /// A memory region, by its number in the kernel ([`MrResource::number`]).
    Mr(u32),
    /// A shared receive queue, by its number in the kernel ([`SrqResource::number`]); since Linux
    /// 6.12.
    Srq(u32),
}

impl RawObject {
    fn request(self) -> (&'static str, Command, Attribute, u32) {
        match self {
            Self::Qp { qp_num, .. } => ("QP", Command::RES_QP_GET_RAW, Attribute::RES_LQPN, qp_num),
            Self::Cq(number) => ("CQ", Command::RES_CQ_GET_RAW, Attribute::RES_CQN, number),
            Self::Mr(number) => ("MR", Command::RES_MR_GET_RAW, Attribute::RES_MRN, number),
            Self::Srq(number) => ("SRQ", Command::RES_SRQ_GET_RAW, Attribute::RES_SRQN, number),
        }
    }
}

impl RdmaNetlink {
    /// The state of an object as the device keeps it, in the device's own format.
    ///
    /// mlx5 returns the segments of its resource dump, which contain the object's context. It needs
    /// a device with resource dumps. rxe has no raw state. The kernel requires `CAP_NET_ADMIN`.
    ///
    /// ```
    /// # fn example() -> Result<(), bareverbs_netlink::Error> {
    /// use bareverbs_netlink::{RawObject, RdmaNetlink};
    ///
    /// let mut netlink = RdmaNetlink::open()?;
    /// for mr in netlink.memory_regions("mlx5_0")? {
    ///     println!("{:02x?}", netlink.raw_state("mlx5_0", RawObject::Mr(mr.number))?);
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
    /// - [`Error::UnknownDevice`](crate::Error::UnknownDevice) if there is no such device.
    /// - [`Error::Kernel`](crate::Error::Kernel) if the kernel refuses the request:
    ///   `EPERM` without the capability, `ENOENT` if there is no such object, `EINVAL` if the
    ///   driver has no raw state, `EOPNOTSUPP` if the device has none.
    /// - [`Error::Malformed`](crate::Error::Malformed) if the response is malformed.
    #[doc(alias = "rdma resource show -r")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_QP_GET_RAW")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_MR_GET_RAW")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_CQ_GET_RAW")]
    #[doc(alias = "RDMA_NLDEV_CMD_RES_SRQ_GET_RAW")]
    pub fn raw_state(&mut self, device: &str, object: RawObject) -> Result<Vec<u8>> {
        let index = self.index_of(device)?;
        let (kind, command, id, number) = object.request();
        let mut found = Vec::new();
        self.request(
            &format!("reading the raw state of {kind} {number} of {device}"),
            command,
            MessageFlags::empty(),
            |request| {
                request.put_u32(Attribute::DEV_INDEX.0, index).put_u32(id.0, number);
                if let RawObject::Qp { port, .. } = object {
                    request.put_u32(Attribute::PORT_INDEX.0, port.into());
                }
            },
            |answer| {
                if let Some(raw) = answer.find(Attribute::RES_RAW.0) {
                    found.extend_from_slice(raw.payload);
                }
                Ok(())
            },
        )?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_attributes;
    use super::*;
    use bareverbs_uapi::netlink::MessageWriter;
    use proptest::prelude::*;

    fn read<T>(
        fill: impl FnOnce(&mut MessageWriter<'_>),
        read: impl FnOnce(&Attributes<'_>) -> std::result::Result<T, Malformed>,
    ) -> T {
        with_attributes(fill, read)
    }

    #[test]
    fn qp_resource_has_peer_and_owner() {
        let qp = read(
            |writer| {
                writer
                    .put_u32(Attribute::PORT_INDEX.0, 1)
                    .put_u32(Attribute::RES_LQPN.0, 17)
                    .put_u32(Attribute::RES_PDN.0, 3)
                    .put_u32(Attribute::RES_PID.0, 4711)
                    .put_u32(Attribute::RES_RQPN.0, 18)
                    .put_u32(Attribute::RES_RQ_PSN.0, 5)
                    .put_u32(Attribute::RES_SQ_PSN.0, 6)
                    .put_u8(Attribute::RES_PATH_MIG_STATE.0, 0)
                    .put_u8(Attribute::RES_TYPE.0, 2)
                    .put_u8(Attribute::RES_STATE.0, 3)
                    .put_u32(0x3fff, 1);
            },
            QpResource::read,
        );
        assert_eq!(
            qp,
            QpResource {
                port: Some(PortNum(1)),
                qp_num: 17,
                remote_qp_num: Some(18),
                rq_psn: Some(5),
                sq_psn: Some(6),
                path_mig_state: Some(MigState::MIGRATED),
                qp_type: Some(QpType::RC),
                subtype: None,
                state: Some(QpState::RTS),
                pd: Some(3),
                owner: Owner::Process(4711),
                driver: Vec::new(),
            }
        );
    }

    #[test]
    fn kernel_cq_resource_has_name_and_poll_context() {
        let cq = read(
            |writer| {
                writer
                    .put_u32(Attribute::RES_CQE.0, 1023)
                    .put_u64(Attribute::RES_USECNT.0, 2)
                    .put_u8(Attribute::RES_POLL_CTX.0, 2)
                    .put_u8(Attribute::DEV_DIM.0, 0)
                    .put_u32(Attribute::RES_CQN.0, 1)
                    .put_str(Attribute::RES_KERN_NAME.0, "ib_core");
            },
            CqResource::read,
        );
        assert_eq!((cq.cqe, cq.users, cq.number, cq.context), (1023, 2, 1, None));
        assert_eq!(cq.poll_context, Some(PollContext::UNBOUND_WORKQUEUE));
        assert_eq!((cq.adaptive_moderation, cq.owner), (Some(false), Owner::Kernel("ib_core".into())));
    }

    #[test]
    fn srq_resource_lists_qps_as_ranges() {
        let srq = read(
            |writer| {
                writer.put_u32(Attribute::RES_SRQN.0, 4).put_u8(Attribute::RES_TYPE.0, 0).put_nested(
                    Attribute::RES_QP.0,
                    |writer| {
                        writer.put_nested(Attribute::RES_QP_ENTRY.0, |writer| {
                            writer.put_u32(Attribute::RES_LQPN.0, 17);
                        });
                        writer.put_nested(Attribute::RES_QP_ENTRY.0, |writer| {
                            writer.put_u32(Attribute::MIN_RANGE.0, 19).put_u32(Attribute::MAX_RANGE.0, 21);
                        });
                    },
                );
            },
            SrqResource::read,
        );
        assert_eq!(srq.queue_pairs, [17..=17, 19..=21]);
        assert_eq!((srq.number, srq.srq_type, srq.owner), (4, Some(SrqType::BASIC), Owner::Unknown));
    }

    #[test]
    fn driver_details_are_read_by_name() {
        let mr = read(
            |writer| {
                writer.put_u64(Attribute::RES_MRLEN.0, 1 << 33).put_nested(Attribute::DRIVER.0, |writer| {
                    writer
                        .put_str(Attribute::DRIVER_STRING.0, "mode")
                        .put_str(Attribute::DRIVER_STRING.0, "fast");
                    writer
                        .put_str(Attribute::DRIVER_STRING.0, "flags")
                        .put_u8(Attribute::DRIVER_PRINT_TYPE.0, 1);
                    writer.put_u32(Attribute::DRIVER_U32.0, 0x10);
                    writer
                        .put_str(Attribute::DRIVER_STRING.0, "balance")
                        .put_u32(Attribute::DRIVER_S32.0, -3i32 as u32);
                });
            },
            MrResource::read,
        );
        let detail = |name: &str, value, hex| DriverDetail { name: name.into(), value, hex };
        assert_eq!(
            mr.driver,
            [
                detail("mode", DriverValue::Text("fast".into()), false),
                detail("flags", DriverValue::Unsigned(0x10), true),
                detail("balance", DriverValue::Signed(-3), false),
            ]
        );
        assert_eq!((mr.length, mr.rkey), (1 << 33, None));
    }

    #[test]
    fn cm_id_resource_has_addresses() {
        let id = read(
            |writer| {
                let mut address = [0; 128];
                address[..8].copy_from_slice(&[2, 0, 0x48, 0x53, 10, 1, 0, 1]);
                writer
                    .put_u32(Attribute::RES_PS.0, 0x106)
                    .put_u8(Attribute::RES_STATE.0, 8)
                    .put_bytes(Attribute::RES_SRC_ADDR.0, &address);
                address[..2].copy_from_slice(&[10, 0]);
                address[8..24].copy_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
                writer.put_bytes(Attribute::RES_DST_ADDR.0, &address);
            },
            CmIdResource::read,
        );
        assert_eq!((id.port_space, id.state), (Some(PortSpace::TCP), Some(8)));
        assert_eq!(id.source, Some("10.1.0.1:18515".parse().unwrap()));
        assert_eq!(id.destination.map(|address| address.ip()), Some("::1".parse().unwrap()));
    }

    #[test]
    fn attribute_of_wrong_size_is_malformed() {
        let mut buffer = [0; 64];
        let mut writer = MessageWriter::new(&mut buffer);
        writer.begin(1, MessageFlags::empty(), 1).put_u8(Attribute::RES_LQPN.0, 17);
        let message = bareverbs_uapi::netlink::messages(writer.finish().unwrap()).next().unwrap().unwrap();
        QpResource::read(&message.attributes()).unwrap_err();
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_object_or_malformed(bytes: Vec<u8>) {
            let attributes = Attributes::new(&bytes);
            let _ = QpResource::read(&attributes);
            let _ = CqResource::read(&attributes);
            let _ = CmIdResource::read(&attributes);
            let _ = SrqResource::read(&attributes);
            let _ = list(&attributes, Attribute::RES_MR, MrResource::read);
        }

        #[test]
        fn unknown_attributes_are_skipped(
            qp_num: u32,
            length: u64,
            strange in proptest::collection::vec((200..0x3fffu16, any::<u64>()), 0..5),
        ) {
            let around = |writer: &mut MessageWriter<'_>| {
                for (kind, value) in &strange {
                    writer.put_u64(*kind, *value);
                }
            };
            let qp = read(|writer| { around(writer); writer.put_u32(Attribute::RES_LQPN.0, qp_num); }, QpResource::read);
            prop_assert_eq!(qp.qp_num, qp_num);
            let mr = read(|writer| { writer.put_u64(Attribute::RES_MRLEN.0, length); around(writer); }, MrResource::read);
            prop_assert_eq!(mr.length, length);
        }
    }
}
