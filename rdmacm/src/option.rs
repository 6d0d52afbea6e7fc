//! Options of identifiers.

use bareverbs::qp::QpType;
use bareverbs::values::AckTimeout;
use bareverbs_uapi::rdma_cm::path::{PathFlags, PathRecData};
use bareverbs_uapi::rdma_cm::structs::SetOptionReq;
use bareverbs_uapi::rdma_cm::{IbOption, IdOption, OptionLevel};
use zerocopy::IntoBytes;

pub use bareverbs_uapi::rdma_cm::path::PathRecord;

use crate::id::CmId;
use crate::{Addr, Error, EventChannel, PortSpace, Result, command};

/// The use of a path that the kernel takes from a list: for management and data, as the primary
/// path, in both directions.
const PRIMARY: PathFlags = PathFlags::GMP.union(PathFlags::PRIMARY).union(PathFlags::BIDIRECTIONAL);

/// An option that is to be set, in the kernel's form.
struct Value {
    level: OptionLevel,
    option: u32,
    bytes: Vec<u8>,
}

impl Value {
    fn of_id(option: IdOption, bytes: &[u8]) -> Self {
        Self { level: OptionLevel::ID, option: option.0, bytes: bytes.to_vec() }
    }

    fn flag(option: IdOption, value: bool) -> Self {
        Self::of_id(option, &i32::from(value).to_ne_bytes())
    }

    fn path(record: &PathRecord) -> Self {
        let bytes = PathRecData::new(PRIMARY, record).as_bytes().to_vec();
        Self { level: OptionLevel::IB, option: IbOption::PATH.0, bytes }
    }
}

/// Options of an identifier that take effect only if set before it binds, listens or resolves.
///
/// ```
/// use bareverbs_rdmacm::IdOptions;
///
/// // A listener for IPv6 peers only, with room for 16 requests.
/// let options = IdOptions { ipv6_only: Some(true), backlog: 16, ..IdOptions::default() };
/// assert_eq!(options.tos, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdOptions {
    /// The type of the QPs of connections: RC; UC or XRC, whose identifiers are of
    /// [`PortSpace::Ib`]. An XRC listener is [`QpType::XRC_TGT`], its peers are
    /// [`QpType::XRC_INI`]. `None` is RC.
    pub qp_type: Option<QpType>,
    /// The local address that an identifier resolves from; `None` leaves the choice to the routing
    /// table. Listeners ignore it.
    pub source: Option<Addr>,
    /// The type of service of connections from this side: [`CmId::set_tos`]. A listener's connections
    /// have that of their requests.
    pub tos: Option<u8>,
    /// The local ACK timeout of the QP: [`CmId::set_ack_timeout`]. A listener sets it on the
    /// connections that it accepts.
    pub ack_timeout: Option<AckTimeout>,
    /// Whether several identifiers may bind to the address: [`CmId::set_reuse_addr`].
    pub reuse_addr: bool,
    /// Whether an IPv6 listener takes IPv6 peers only: [`CmId::set_ipv6_only`]. `None`: as the
    /// system's `net.ipv6.bindv6only` says.
    pub ipv6_only: Option<bool>,
    /// The number of requests that wait for a listener: [`CmId::listen`]. 0, or above
    /// `net.rdma_ucm.max_backlog` (default 1024), means that maximum. The kernel counts requests that no
    /// thread or task has read from the channel. Of those that were read, 4096 wait for the listener, or
    /// as many as the backlog if that is larger, at most 65,536. Further ones are rejected.
    pub backlog: u32,
}

impl IdOptions {
    /// An identifier of a connection, with the options.
    pub(crate) fn create_id(&self, channel: &EventChannel) -> Result<CmId> {
        self.create_id_of(channel, self.port_space()?)
    }

    /// The port space of connections.
    fn port_space(&self) -> Result<PortSpace> {
        match self.qp_type.unwrap_or(QpType::RC) {
            connected @ (QpType::RC | QpType::UC | QpType::XRC_INI | QpType::XRC_TGT) => {
                Ok(PortSpace::of(connected))
            }
            other => {
                let reason = format!("connections are of RC, UC or XRC queue pairs, not {other:?}");
                Err(Error::invalid("IdOptions", reason))
            }
        }
    }

    /// An identifier of a port space, with the options.
    pub(crate) fn create_id_of(&self, channel: &EventChannel, port_space: PortSpace) -> Result<CmId> {
        let qp_type = self.qp_type.unwrap_or(port_space.qp_type());
        let id = CmId::with_qp_type(channel, port_space, qp_type)?;
        self.apply(&id)?;
        Ok(id)
    }

    /// Sets them on an identifier that is not bound.
    ///
    /// # Errors
    /// The errors of [`CmId::set_tos`], [`CmId::set_ack_timeout`], [`CmId::set_reuse_addr`] and
    /// [`CmId::set_ipv6_only`].
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "with_options")]
    pub fn apply(&self, id: &CmId) -> Result<()> {
        if let Some(tos) = self.tos {
            id.set_tos(tos)?;
        }
        if self.reuse_addr {
            id.set_reuse_addr(true)?;
        }
        if let Some(only) = self.ipv6_only {
            id.set_ipv6_only(only)?;
        }
        self.apply_to_child(id)
    }

    /// Sets the options that the identifier of a request does not inherit from its listener.
    pub(crate) fn apply_to_child(&self, id: &CmId) -> Result<()> {
        self.ack_timeout.map_or(Ok(()), |timeout| id.set_ack_timeout(timeout))
    }
}

impl CmId {
    fn set(&self, value: &Value) -> Result<()> {
        let request = SetOptionReq {
            id: self.number(),
            level: value.level,
            optname: value.option,
            ..SetOptionReq::zeroed()
        };
        command::set_option(self.file(), request, &value.bytes)
    }

    /// Sets the type of service. On RoCE, the traffic class and the service level of the path. On
    /// InfiniBand, the QoS class of the path query for IPv4; IPv6 and `AF_IB` ignore it and use the
    /// traffic class of `flowinfo`. Set it before [`CmId::resolve_route`]. The default is the
    /// device's (configfs).
    ///
    /// ```
    /// # bareverbs::Device::find("soft0").unwrap();
    /// # let channel = bareverbs_rdmacm::EventChannel::new()?;
    /// # let id = bareverbs_rdmacm::CmId::new(&channel, bareverbs_rdmacm::PortSpace::Tcp)?;
    /// id.set_tos(0x68)?;
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command): the kernel refused it.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub fn set_tos(&self, tos: u8) -> Result<()> {
        self.set(&Value::of_id(IdOption::TOS, &[tos]))
    }

    /// Allows several identifiers to bind to one address and port. A listener needs the port for
    /// itself: [`CmId::listen`] ends the permission.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with `EINVAL`: the identifier listens, or `reuse`
    /// is `false` and the identifier is not new.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub fn set_reuse_addr(&self, reuse: bool) -> Result<()> {
        self.set(&Value::flag(IdOption::REUSE_ADDR, reuse))
    }

    /// Whether an IPv6 identifier is for IPv6 only. Otherwise a listener on `[::]` receives IPv4
    /// peers too. The default is the system's `net.ipv6.bindv6only`.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with `EINVAL`: the identifier is neither new nor
    /// just bound.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub fn set_ipv6_only(&self, only: bool) -> Result<()> {
        self.set(&Value::flag(IdOption::AF_ONLY, only))
    }

    /// Sets the local ACK timeout of the QP, in place of the one that the kernel computes from the
    /// path.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with `EINVAL`: the QP type is not RC or XRC send
    /// (`XRC_INI`).
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_ID_ACK_TIMEOUT")]
    pub fn set_ack_timeout(&self, timeout: AckTimeout) -> Result<()> {
        self.set(&Value::of_id(IdOption::ACK_TIMEOUT, &[timeout.into()]))
    }

    /// Sets the path, in place of [`CmId::resolve_route`]: the identifier then gets
    /// [`EventKind::RouteResolved`](crate::event::EventKind::RouteResolved). On RoCE the kernel
    /// replaces type and MAC address of the path only.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with `EINVAL`: the address is not resolved.
    #[doc(alias = "rdma_set_option")]
    #[doc(alias = "RDMA_OPTION_IB_PATH")]
    pub fn set_path(&self, path: &PathRecord) -> Result<()> {
        self.set(&Value::path(path))
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::rdma_cm::DecodedOption;

    use super::*;

    fn decoded(value: &Value) -> String {
        DecodedOption { level: value.level, option: value.option, bytes: &value.bytes }.to_string()
    }

    #[test]
    fn connections_are_of_the_port_space_of_their_queue_pairs() {
        let port_space = |qp_type| IdOptions { qp_type, ..IdOptions::default() }.port_space();
        assert_eq!(port_space(None).unwrap(), PortSpace::Tcp);
        assert_eq!(port_space(Some(QpType::RC)).unwrap(), PortSpace::Tcp);
        for qp_type in [QpType::UC, QpType::XRC_INI, QpType::XRC_TGT] {
            assert_eq!(port_space(Some(qp_type)).unwrap(), PortSpace::Ib);
        }
        let error = port_space(Some(QpType::UD)).unwrap_err();
        assert!(error.to_string().contains("not UD"), "{error}");
    }

    #[test]
    fn values_have_the_form_that_the_kernel_reads() {
        assert_eq!(decoded(&Value::of_id(IdOption::TOS, &[32])), "TOS = 32");
        assert_eq!(decoded(&Value::flag(IdOption::REUSE_ADDR, true)), "REUSE_ADDR = 1");
        assert_eq!(decoded(&Value::flag(IdOption::AF_ONLY, false)), "AF_ONLY = 0");
        let path = Value::path(&PathRecord { dlid: 7, ..PathRecord::default() });
        let text = decoded(&path);
        assert!(text.starts_with("PATH = [PathRecData { flags: GMP | PRIMARY | BIDIRECTIONAL,"), "{text}");
        assert_eq!((path.bytes.len(), path.bytes[0]), (72, 0x2b));
    }
}
