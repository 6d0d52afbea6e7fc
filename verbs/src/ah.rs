//! Address handles: paths to peers, for datagrams.

pub(crate) mod grh;

use std::net::Ipv4Addr;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::request::AhRequest;
use bareverbs_provider::traits::{CreatedAh, Provider};
use bareverbs_provider::work::{WcFlags, WorkCompletion};
use bareverbs_uapi::uverbs::types::GidType;

use self::grh::GRH_BYTES;
use crate::gid::GidEntry;
use crate::released::Released;
use crate::{AnyProvider, Context, Error, Gid, Pd, PortNum, Refused, Result};

pub use crate::ah_attr::{AhAttr, GlobalRoute};
pub use bareverbs_uapi::verbs_values::Rate;

/// Hop limit of a reply: the largest, because the header of the received datagram has only its
/// remaining hops.
const ANSWER_HOP_LIMIT: u8 = 255;
/// Next header value of RoCE v2.
const UDP: u8 = 17;

/// An address handle: the path to a peer's port, for any number of [datagrams](crate::qp::Datagram).
///
/// ```
/// use bareverbs::ah::AhAttr;
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::{Datagram, QpCap, QpInit, SendFlags, Ud, UdInitAttr};
/// use bareverbs::{Device, Gid};
///
/// # let (peer_gid, peer_qp_num) = (Gid::from(std::net::Ipv4Addr::new(127, 0, 0, 2)), 17);
/// let context = Device::find("soft0")?.open()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(&CqInit::new(32))?;
/// let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
/// let mut qp = pd.create_qp::<Ud>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
/// qp.init(&UdInitAttr::new(1, 0x1111_1111))?;
/// qp.ready_to_receive()?;
/// qp.ready_to_send(0)?;
///
/// let gid = context.default_gid(1)?;
/// let ah = pd.create_ah(&AhAttr::global(1, peer_gid, gid.index))?;
/// let mut batch = qp.start_send();
/// let to = Datagram::new(&ah, peer_qp_num, 0x1111_1111);
/// batch.send_to_inline(1, to, b"hello", SendFlags::SIGNALED).unwrap();
/// batch.ring()?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[doc(alias = "ibv_ah")]
#[doc(alias = "ibv_destroy_ah")]
pub struct Ah<P: Provider = AnyProvider> {
    inner: P::Ah,
    handle: u32,
    attr: AhAttr,
    released: Released,
    pd: Pd<P>,
}

impl<P: Provider> Pd<P> {
    /// Creates an address handle.
    ///
    /// On RoCE the kernel resolves the peer's GID to an Ethernet address. This may wait for the
    /// response to a neighbour solicitation. [`Context::ah_attr_from_wc`] returns the attributes
    /// for a reply to a received datagram.
    ///
    /// # Errors
    /// - [`Error::Invalid`] on RoCE without a global route, for a GID of zeros, or for a service
    ///   level or flow label of too many bits.
    /// - [`Error::NoPort`].
    /// - [`Error::NoGid`].
    /// - [`Error::Kernel`], for example if there is no route to the peer.
    #[doc(alias = "ibv_create_ah")]
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah<P>> {
        Ah::create(self, attr)
    }
}

impl<P: Provider> Ah<P> {
    pub(crate) fn create(pd: &Pd<P>, attr: &AhAttr) -> Result<Self> {
        const VERB: &str = "create_ah";
        let context = pd.context();
        let port = context.query_port(attr.port)?;
        let path = context.validate_path(VERB, attr, &port)?;
        let request = AhRequest { pd: pd.domain().handle, attr: path.to_handle() };
        let CreatedAh { handle, ah } = context.provider().create_ah(&request).map_err(|reason| {
            let asked = attr.grh.map_or(format!("LID {}", attr.dlid), |grh| {
                format!("{} from the GID at index {}", grh.dgid, grh.sgid_index)
            });
            context.path_error(Error::create(VERB, asked, reason), attr)
        })?;
        Ok(Self { inner: ah, handle, attr: *attr, released: Released::default(), pd: pd.clone() })
    }

    /// Destroys it. Datagrams to it that are posted and not complete may fail, or go to another
    /// address. Drop does the same, and ignores errors.
    ///
    /// # Errors
    /// The handle and [`Error::Kernel`]: the kernel rejects the command, for instance because the
    /// device was removed.
    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    #[doc(alias = "ibv_destroy_ah")]
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        self.destroy_inner().map_err(|refused| {
            let error = Error::kernel("destroy_ah", format!("AH handle {}", self.handle), refused);
            Refused::new(error, self)
        })
    }

    fn destroy_inner(&mut self) -> Result<(), IoctlError> {
        // SAFETY: this value owns the address handle.
        self.released.destroy(|| unsafe { command::destroy_ah(self.pd.context().file(), self.handle) })
    }

    /// An address handle without a kernel object.
    #[cfg(test)]
    pub(crate) fn for_test(pd: &Pd<P>, inner: P::Ah) -> Self {
        Self { inner, handle: 1, attr: AhAttr::default(), released: Released::default(), pd: pd.clone() }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &P::Ah {
        &self.inner
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.released.set();
        self.handle
    }

    /// The address vector as send requests contain it. On ConnectX these are the 48 bytes of
    /// `mlx5_wqe_av` without QPN and Q_Key. On rxe, requests name the address handle by a number of
    /// 4 bytes in host byte order.
    ///
    /// ```
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let own = pd.context().default_gid(1)?;
    /// # let ah = pd.create_ah(&bareverbs::ah::AhAttr::global(1, own.gid, own.index))?;
    /// // The LID or the UDP source port of `mlx5_wqe_av`.
    /// let bytes = ah.address_vector();
    /// if bytes.len() == 48 {
    ///     println!("{:#06x}", u16::from_be_bytes([bytes[14], bytes[15]]));
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "mlx5dv_ah")]
    #[must_use]
    pub fn address_vector(&self) -> Vec<u8> {
        P::address_vector(&self.inner)
    }

    /// The attributes that it was created from.
    #[must_use]
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// The protection domain that it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.pd
    }
}

impl<P: Provider> Drop for Ah<P> {
    fn drop(&mut self) {
        // It fails only if the device was removed, which destroys the handle too.
        let _ = self.destroy_inner();
    }
}

impl<P: Provider> Context<P> {
    /// The path to the sender of a datagram that was received on `port`. `header` is the first 40
    /// bytes of the receive buffer, before the payload.
    ///
    /// # Errors
    /// - [`Error::Invalid`] if the header is neither an IPv4 nor an IPv6 header, if the datagram
    ///   has no GRH and the port needs one, or if the destination GID is not in the port's table.
    /// - [`Error::NoPort`].
    /// - [`Error::NoGid`].
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn ah_attr_from_wc(
        &self,
        port: impl Into<PortNum>,
        completion: &WorkCompletion,
        header: &[u8; GRH_BYTES],
    ) -> Result<AhAttr> {
        const VERB: &str = "init_ah_from_wc";
        let port = self.check_port(port)?;
        let attr = AhAttr {
            sl: completion.sl,
            src_path_bits: completion.dlid_path_bits,
            ..AhAttr::local(port, completion.slid)
        };
        if !completion.wc_flags.contains(WcFlags::GRH) {
            self.validate_path(VERB, &attr, &self.query_port(port)?)?;
            return Ok(attr);
        }
        let Some(header) = Grh::parse(header) else {
            let reason = "the 40 bytes of the GRH are neither an IPv4 nor an IPv6 header";
            return Err(Error::invalid(VERB, reason));
        };
        let own = self.local_gid(port, &header)?;
        let grh = GlobalRoute {
            dgid: header.sgid,
            sgid_index: own.index,
            flow_label: header.flow_label,
            hop_limit: ANSWER_HOP_LIMIT,
            traffic_class: header.traffic_class,
        };
        // Ethernet has no service levels. mlx5 reports the header type in this field.
        let sl = if own.gid_type == GidType::IB { attr.sl } else { 0 };
        Ok(AhAttr { grh: Some(grh), sl, ..attr })
    }

    /// The local GID for a reply: the datagram's destination GID, or for a multicast datagram the
    /// best GID of its family.
    fn local_gid(&self, port: PortNum, header: &Grh) -> Result<GidEntry> {
        let receiver = header.dgid;
        let routable = header.next_header == UDP;
        let table = self.gid_table()?;
        let mut own = table
            .iter()
            .filter(|entry| entry.port == port && (entry.gid_type == GidType::ROCE_V2) == routable)
            .copied();
        if receiver.is_multicast() {
            own.filter(|entry| entry.gid.ipv4().is_some() == receiver.ipv4().is_some())
                .min_by_key(|entry| (entry.gid.is_link_local(), entry.index))
                .map_or_else(|| self.default_gid(port), Ok)
        } else {
            own.find(|entry| entry.gid == receiver).ok_or_else(|| {
                let reason = format!("its destination {receiver} is not in the GID table of port {port}");
                Error::invalid("init_ah_from_wc", reason)
            })
        }
    }
}

/// The header of a received datagram: the 40 bytes of the receive buffer before the payload.
///
/// They are a global route header, which has the format of an IPv6 header, or have an IPv4 header
/// in the last 20 bytes.
#[doc(alias = "ibv_grh")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grh {
    /// Source GID.
    pub sgid: Gid,
    /// Destination GID: a GID of the local port or a multicast GID.
    pub dgid: Gid,
    /// Protocol of the next header: 17 (UDP) for RoCE v2; 0x1b (InfiniBand transport) for
    /// InfiniBand and RoCE v1.
    #[doc(alias = "next_hdr")]
    pub next_header: u8,
    /// Flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Remaining hop limit.
    pub hop_limit: u8,
}

impl Grh {
    /// Parses a header; `None` if it is neither IPv4 nor IPv6.
    ///
    /// The bytes before an IPv4 header may have any value. If they look like an IPv6 header, the
    /// IPv4 checksum decides.
    ///
    /// ```
    /// use bareverbs::Gid;
    /// use bareverbs::ah::Grh;
    /// use bareverbs::qp::GRH_BYTES;
    /// use std::net::Ipv4Addr;
    ///
    /// let mut bytes = [0; GRH_BYTES];
    /// bytes[20] = 0x45;
    /// bytes[32..36].copy_from_slice(&[10, 1, 0, 1]);
    /// bytes[36..40].copy_from_slice(&[10, 1, 0, 2]);
    /// let header = Grh::parse(&bytes).unwrap();
    /// assert_eq!(header.sgid, Gid::from(Ipv4Addr::new(10, 1, 0, 1)));
    /// ```
    #[must_use]
    pub fn parse(bytes: &[u8; GRH_BYTES]) -> Option<Self> {
        let ipv4 = &bytes[20..];
        match (bytes[0] >> 4, ipv4[0]) {
            (6, 0x45) if checksum(ipv4) == 0xffff => Some(Self::ipv4(ipv4)),
            (6, _) => Some(Self::ipv6(bytes)),
            (_, 0x45..=0x4f) => Some(Self::ipv4(ipv4)),
            _ => None,
        }
    }

    fn ipv4(bytes: &[u8]) -> Self {
        let address =
            |at: usize| Gid::from(Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]));
        Self {
            sgid: address(12),
            dgid: address(16),
            next_header: bytes[9],
            flow_label: 0,
            traffic_class: bytes[1],
            hop_limit: bytes[8],
        }
    }

    fn ipv6(bytes: &[u8; GRH_BYTES]) -> Self {
        let gid = |at: usize| Gid(std::array::from_fn(|i| bytes[at + i]));
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Self {
            sgid: gid(8),
            dgid: gid(24),
            next_header: bytes[6],
            flow_label: word & 0xf_ffff,
            traffic_class: (word >> 20) as u8,
            hop_limit: bytes[7],
        }
    }
}

/// The one's complement sum of a header's 16-bit words: 0xffff if its checksum is correct.
fn checksum(header: &[u8]) -> u16 {
    let sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// The UDP source port of the RoCE v2 packets of a flow label of 20 bits: 49152 to 65535. Switches
/// choose among paths of equal cost by it.
///
/// ```
/// assert_eq!(bareverbs::ah::flow_label_to_udp_sport(0x0_0001), 0xc001);
/// ```
#[doc(alias = "ibv_flow_label_to_udp_sport")]
#[doc(alias = "rdma_flow_label_to_udp_sport")]
#[must_use]
pub const fn flow_label_to_udp_sport(flow_label: u32) -> u16 {
    let (low, high) = (flow_label & 0x3fff, flow_label >> 14 & 0x3f);
    (low ^ high) as u16 | 0xc000
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn udp_source_port_folds_the_flow_label() {
        assert_eq!(flow_label_to_udp_sport(0), 0xc000);
        assert_eq!(flow_label_to_udp_sport(0x03fff), 0xffff);
        assert_eq!(flow_label_to_udp_sport(0xfc000), 0xc03f);
        assert_eq!(flow_label_to_udp_sport(0xfffff), 0xffc0);
        assert_eq!(flow_label_to_udp_sport(0xfff0_0001), 0xc001, "bits above 20 are ignored");
    }

    /// An IPv4 header of a packet from 10.1.0.2 to 10.1.0.1.
    fn ipv4() -> [u8; 20] {
        let mut header = [0x45, 0x08, 0, 76, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 1, 0, 1];
        let sum = !checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn ipv6() -> [u8; GRH_BYTES] {
        let mut header = [0; GRH_BYTES];
        header[..8].copy_from_slice(&[0x61, 0x2a, 0xbc, 0xde, 0, 36, 17, 63]);
        header[8..24].copy_from_slice(&"fe80::2".parse::<Ipv6Addr>().unwrap().octets());
        header[24..].copy_from_slice(&"fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        header
    }

    #[test]
    fn ipv6_grh_is_parsed() {
        let header = Grh::parse(&ipv6()).unwrap();
        assert_eq!((header.sgid.to_string(), header.dgid.to_string()), ("fe80::2".into(), "fe80::1".into()));
        assert_eq!((header.flow_label, header.traffic_class, header.hop_limit), (0xabcde, 0x12, 63));
        assert_eq!(header.next_header, UDP);
    }

    #[test]
    fn ipv4_header_is_parsed_from_the_last_20_bytes() {
        let mut bytes = [0; GRH_BYTES];
        bytes[20..].copy_from_slice(&ipv4());
        let header = Grh::parse(&bytes).unwrap();
        assert_eq!(header.sgid, Ipv4Addr::new(10, 1, 0, 2).into());
        assert_eq!(header.dgid, Ipv4Addr::new(10, 1, 0, 1).into());
        assert_eq!((header.flow_label, header.traffic_class, header.hop_limit), (0, 8, 64));
        assert_eq!(header.next_header, UDP);

        bytes[30..32].fill(0);
        assert_eq!(Grh::parse(&bytes), Some(header), "a device may leave the checksum out");
    }

    #[test]
    fn ipv4_header_is_detected_by_its_checksum() {
        let mut bytes = ipv6();
        bytes[20..].copy_from_slice(&ipv4());
        assert_eq!(Grh::parse(&bytes).unwrap().sgid, Ipv4Addr::new(10, 1, 0, 2).into());
        bytes[39] ^= 1;
        assert_eq!(Grh::parse(&bytes).unwrap().hop_limit, 63, "the IPv6 header's");
    }

    #[test]
    fn other_bytes_are_not_a_grh() {
        assert_eq!(Grh::parse(&[0; GRH_BYTES]), None);
        assert_eq!(Grh::parse(&[0xff; GRH_BYTES]), None);
    }
}
