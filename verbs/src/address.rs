//! Addresses of connected QPs.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::Remote;
use crate::error::{Error, ParseAddressError, Result};
use crate::gid::Gid;
use crate::values::Mtu;

/// The largest message of every RDMA device, in bytes.
const MAX_MESSAGE: u32 = 1 << 31;

/// The tag of the memory of probes in private data.
const PROBE_TAG: [u8; 4] = *b"PRB1";
/// Length of the tag and the memory in bytes.
pub(crate) const PROBE_OFFER: usize = PROBE_TAG.len() + Remote::LEN;

/// The memory that probes of the peer read, as private data.
pub(crate) fn probe_offer(probe: Remote) -> [u8; PROBE_OFFER] {
    let mut offer = [0; PROBE_OFFER];
    offer[..PROBE_TAG.len()].copy_from_slice(&PROBE_TAG);
    offer[PROBE_TAG.len()..].copy_from_slice(&probe.to_bytes());
    offer
}

/// The memory of [`probe_offer`]. `None` if `data` is something else.
pub(crate) fn offered_probe(data: &[u8]) -> Option<Remote> {
    Remote::from_bytes(data.strip_prefix(&PROBE_TAG)?).ok()
}

/// Address of a QP, with what its peer must know to connect to it.
///
/// Addresses are equal if their [bytes](Self::to_bytes) are.
///
/// The two ends exchange their addresses before they connect: as text, as [bytes](Self::to_bytes)
/// or with serde (feature `serde`: text in human-readable formats, else bytes).
///
/// ```
/// use bareverbs::{Address, Gid};
///
/// let address = Address::new("fe80::1".parse::<std::net::Ipv6Addr>().unwrap().into(), 17);
/// let text = address.to_string();
/// assert_eq!(text, "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=2147483648/write=0/flow=0");
/// assert_eq!(text.parse(), Ok(address));
/// assert_eq!(Address::from_bytes(&address.to_bytes()), Ok(address));
/// assert_eq!(address.gid, Gid::from("fe80::1".parse::<std::net::Ipv6Addr>().unwrap()));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Address {
    /// GID of the port.
    pub gid: Gid,
    /// LID of the port; 0 on RoCE.
    pub lid: u16,
    /// QP number, 24 bits.
    pub qp_num: u32,
    /// PSN of the first packet that the QP sends, 24 bits.
    pub psn: u32,
    /// Largest path MTU that the QP can use. A connection uses the smaller one of both ends.
    pub mtu: Mtu,
    /// Reads and atomics of the peer that the QP executes at a time, and that it issues at a time.
    /// A connection uses the smaller number of both ends.
    pub rd_atomic: u8,
    /// Receives that the QP can have posted; 0 if unknown.
    pub recvs: u32,
    /// Longest message that the QP receives, in bytes.
    pub max_message: u32,
    /// Whether the QP permits RDMA writes of its peer ([`Access::REMOTE_WRITE`](crate::Access)). A
    /// [keepalive](crate::owned::EndpointOptions::keepalive) is such a write, of length 0.
    pub remote_write: bool,
    /// Version of the flow control of a [`Server`](crate::owned::server::Server) or a
    /// [`Client`](crate::owned::server::Client), which connect to each other only, and to the same
    /// version only. 0 if the QP belongs to neither.
    pub flow_control: u8,
    /// Whether the kernel's connection manager connects the two QPs, as on iWARP. It is not part of the
    /// bytes or of the text.
    pub(crate) over_cm: bool,
    /// Memory of the QP's process that the peer's probes read, on iWARP. It is not part of the bytes or of
    /// the text.
    pub(crate) probe: Option<Remote>,
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_bytes().hash(state);
    }
}

impl Address {
    /// Length of an address in bytes.
    pub const LEN: usize = 48;

    /// Version of the format of the bytes.
    const VERSION: u8 = 1;

    /// The address of the QP `qp_num` at the port with `gid`: LID 0, MTU 1024, one read or atomic,
    /// messages of up to 2 GiB, no RDMA writes, no flow control. Its PSN is its QP number.
    #[must_use]
    pub const fn new(gid: Gid, qp_num: u32) -> Self {
        Self {
            gid,
            lid: 0,
            qp_num,
            psn: qp_num,
            mtu: Mtu::Mtu1024,
            rd_atomic: 1,
            recvs: 0,
            max_message: MAX_MESSAGE,
            remote_write: false,
            flow_control: 0,
            over_cm: false,
            probe: None,
        }
    }

    /// Marks the address of a peer to which the kernel's connection manager (rdma_cm) connects the QP.
    /// `bareverbs-rdmacm` marks the addresses that it passes on.
    ///
    /// On iWARP, the `connect` of a queue fails with [`Error::Unsupported`] without this mark. With it,
    /// `connect` moves no QP by a command, and takes it as connected. On other devices the mark has no
    /// effect. The bytes and the text of an address do not contain it, so equality ignores it.
    ///
    /// ```
    /// use bareverbs::{Address, Gid};
    ///
    /// let peer = Address::new(Gid([1; 16]), 17);
    /// assert_eq!(peer.of_cm_peer(), peer);
    /// ```
    #[must_use]
    pub fn of_cm_peer(self) -> Self {
        Self { over_cm: true, ..self }
    }

    /// The address as private data of the kernel's connection manager, for `bareverbs-rdmacm`: the
    /// bytes, and on iWARP the memory that the peer's probes read.
    #[doc(hidden)]
    #[must_use]
    pub fn to_private_data(&self) -> Vec<u8> {
        let mut data = self.to_bytes().to_vec();
        if let Some(probe) = self.probe {
            data.extend_from_slice(&probe_offer(probe));
        }
        data
    }

    /// The address of a peer to which the kernel's connection manager connects the QP, from the peer's
    /// private data, which may be padded.
    ///
    /// # Errors
    /// As for [`Address::from_bytes`].
    #[doc(hidden)]
    pub fn from_private_data(data: &[u8]) -> Result<Self, ParseAddressError> {
        let (bytes, more) = data.split_at(data.len().min(Self::LEN));
        let probe = more.get(..PROBE_OFFER).and_then(offered_probe);
        Ok(Self { probe, ..Self::from_bytes(bytes)? }.of_cm_peer())
    }

    /// The address as bytes. The first byte is the version of the format. Numbers are big-endian.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | version, 1 |
    /// | 1 | MTU, 1 (256 bytes) to 5 (4096 bytes) |
    /// | 2 | `rd_atomic` |
    /// | 3 | `remote_write`, 0 or 1 |
    /// | 4–5 | LID |
    /// | 6 | `flow_control` |
    /// | 7 | 0 |
    /// | 8–11 | QP number |
    /// | 12–15 | PSN |
    /// | 16–31 | GID |
    /// | 32–35 | `recvs` |
    /// | 36–39 | `max_message` |
    /// | 40–47 | 0 |
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&[
            Self::VERSION,
            self.mtu as u8,
            self.rd_atomic,
            self.remote_write.into(),
        ]);
        bytes[4..6].copy_from_slice(&self.lid.to_be_bytes());
        bytes[6] = self.flow_control;
        bytes[8..12].copy_from_slice(&self.qp_num.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.psn.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.gid.0);
        bytes[32..36].copy_from_slice(&self.recvs.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.max_message.to_be_bytes());
        bytes
    }

    /// The address with these bytes, as [`Address::to_bytes`] returns them.
    ///
    /// # Errors
    /// [`ParseAddressError`]: the length or the version differs, a number is out of range, or a
    /// byte that must be 0 is not.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseAddressError> {
        let Ok(bytes) = <&[u8; Self::LEN]>::try_from(bytes) else {
            return Err(ParseAddressError("an address has 48 bytes"));
        };
        let u32_at = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[0] != Self::VERSION {
            return Err(ParseAddressError("the version of the address is not 1"));
        }
        if bytes[7..8].iter().chain(&bytes[40..]).any(|byte| *byte != 0) {
            return Err(ParseAddressError("a reserved byte of the address is not 0"));
        }
        if bytes[3] > 1 {
            return Err(ParseAddressError("`remote_write` is not 0 or 1"));
        }
        let mut gid = Gid::default();
        gid.0.copy_from_slice(&bytes[16..32]);
        Self {
            gid,
            lid: u16::from_be_bytes([bytes[4], bytes[5]]),
            qp_num: u32_at(8),
            psn: u32_at(12),
            mtu: Mtu::from_raw(bytes[1]).ok_or(ParseAddressError("the MTU is not 1 to 5"))?,
            rd_atomic: bytes[2],
            recvs: u32_at(32),
            max_message: u32_at(36),
            remote_write: bytes[3] == 1,
            flow_control: bytes[6],
            over_cm: false,
            probe: None,
        }
        .checked()
    }

    /// Rejects the address of a `Server` or `Client`.
    pub(crate) fn check_no_flow_control(&self, verb: &'static str) -> Result<()> {
        let reason = "the address is that of a `Server` or `Client`, whose messages carry flow control";
        if self.flow_control != 0 { Err(Error::invalid(verb, reason)) } else { Ok(()) }
    }

    /// Rejects numbers that no packet can carry.
    fn checked(self) -> Result<Self, ParseAddressError> {
        if self.qp_num >> 24 != 0 {
            return Err(ParseAddressError("the QP number has more than 24 bits"));
        }
        if self.psn >> 24 != 0 {
            return Err(ParseAddressError("the PSN has more than 24 bits"));
        }
        Ok(self)
    }
}

impl fmt::Display for Address {
    /// `QPN@GID/lid=…/psn=…/mtu=…/rd=…/recvs=…/max=…/write=…/flow=…`, numbers in decimal, the MTU
    /// in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gid, lid, qp_num, psn, mtu, rd_atomic, recvs, max_message, .. } = self;
        let (mtu, write, flow) = (mtu.bytes(), u8::from(self.remote_write), self.flow_control);
        write!(f, "{qp_num}@{gid}/lid={lid}/psn={psn}/mtu={mtu}/rd={rd_atomic}")?;
        write!(f, "/recvs={recvs}/max={max_message}/write={write}/flow={flow}")
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    /// The address in the form of its `Display`.
    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let parse = || {
            let mut fields = text.split('/');
            let (qp_num, gid) = fields.next()?.split_once('@')?;
            let address = Self {
                gid: gid.parse::<Ipv6Addr>().ok()?.into(),
                qp_num: number(qp_num)?,
                lid: field(&mut fields, "lid")?.try_into().ok()?,
                psn: field(&mut fields, "psn")?,
                mtu: Mtu::from_bytes(field(&mut fields, "mtu")?)?,
                rd_atomic: field(&mut fields, "rd")?.try_into().ok()?,
                recvs: field(&mut fields, "recvs")?,
                max_message: field(&mut fields, "max")?,
                remote_write: flag(&mut fields, "write")?,
                flow_control: field(&mut fields, "flow")?.try_into().ok()?,
                over_cm: false,
                probe: None,
            };
            fields.next().is_none().then_some(address)
        };
        let reason =
            "the text is not of the form `QPN@GID/lid=…/psn=…/mtu=…/rd=…/recvs=…/max=…/write=…/flow=…`";
        parse().ok_or(ParseAddressError(reason))?.checked()
    }
}

/// The number of the field `NAME=NUMBER` that is next.
pub(crate) fn field<'a>(fields: &mut impl Iterator<Item = &'a str>, name: &str) -> Option<u32> {
    number(fields.next()?.strip_prefix(name)?.strip_prefix('=')?)
}

/// The flag of the field `NAME=0` or `NAME=1` that is next.
fn flag<'a>(fields: &mut impl Iterator<Item = &'a str>, name: &str) -> Option<bool> {
    match field(fields, name)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// A number in decimal. `parse` would accept a sign.
pub(crate) fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Implements serde's traits for an address: text in human-readable formats, else bytes.
#[cfg(feature = "serde")]
macro_rules! address_serde {
    ($address:ident, $expected:literal) => {
        mod serde {
            use std::fmt;

            use serde_core::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
            use serde_core::ser::{Serialize, Serializer};

            use super::$address;

            impl Serialize for $address {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    if serializer.is_human_readable() {
                        serializer.collect_str(self)
                    } else {
                        serializer.serialize_bytes(&self.to_bytes())
                    }
                }
            }

            struct Form;

            impl<'de> Visitor<'de> for Form {
                type Value = $address;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str($expected)
                }

                fn visit_str<E: Error>(self, text: &str) -> Result<$address, E> {
                    text.parse().map_err(E::custom)
                }

                fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<$address, E> {
                    $address::from_bytes(bytes).map_err(E::custom)
                }

                /// Formats without byte strings use a sequence.
                fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<$address, A::Error> {
                    let mut all = [0; $address::LEN];
                    for (at, byte) in all.iter_mut().enumerate() {
                        *byte = bytes.next_element()?.ok_or_else(|| A::Error::invalid_length(at, &self))?;
                    }
                    if bytes.next_element::<u8>()?.is_some() {
                        return Err(A::Error::invalid_length($address::LEN + 1, &self));
                    }
                    self.visit_bytes(&all)
                }
            }

            impl<'de> Deserialize<'de> for $address {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    if deserializer.is_human_readable() {
                        deserializer.deserialize_str(Form)
                    } else {
                        deserializer.deserialize_bytes(Form)
                    }
                }
            }
        }
    };
}
#[cfg(feature = "serde")]
pub(crate) use address_serde;

#[cfg(feature = "serde")]
address_serde!(Address, "the address of a QP, as text or as 48 bytes");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_address() -> impl Strategy<Value = Address> {
        let numbers = (any::<[u8; 16]>(), any::<u16>(), 0u32..1 << 24, 0u32..1 << 24);
        let sizes = (0usize..5, any::<u8>(), any::<u32>(), any::<u32>(), any::<(bool, u8)>());
        (numbers, sizes).prop_map(|((gid, lid, qp_num, psn), (mtu, rd_atomic, recvs, max_message, flags))| {
            Address {
                gid: Gid(gid),
                lid,
                qp_num,
                psn,
                mtu: Mtu::ALL[mtu],
                rd_atomic,
                recvs,
                max_message,
                remote_write: flags.0,
                flow_control: flags.1,
                over_cm: false,
                probe: None,
            }
        })
    }

    #[test]
    fn private_data_has_the_memory_of_probes() {
        let plain = Address::new(Gid([7; 16]), 17);
        let probed = Address { probe: Some(Remote { addr: 0x1234_5678_9abc, rkey: 0x8765 }), ..plain };
        for address in [plain, probed] {
            let mut data = address.to_private_data();
            // InfiniBand pads it.
            for length in [data.len(), 196] {
                data.resize(length, 0);
                let read = Address::from_private_data(&data).unwrap();
                assert_eq!((read, read.probe, read.over_cm), (address, address.probe, true));
            }
            assert_eq!(Address::from_bytes(&data[..Address::LEN]), Ok(plain));
        }
        let data = probed.to_private_data();
        assert_eq!(Address::from_private_data(&data[..data.len() - 1]).unwrap().probe, None);
        assert!(Address::from_private_data(&data[..Address::LEN - 1]).is_err());
    }

    #[test]
    fn addresses_of_one_qp_are_equal_whatever_the_connection_manager_adds() {
        let plain = Address::new(Gid([7; 16]), 17);
        let probed = Address { probe: Some(Remote { addr: 0x1000, rkey: 0x8765 }), ..plain };
        let known = std::collections::HashSet::from([plain]);
        for same in [probed, plain.of_cm_peer(), probed.of_cm_peer()] {
            assert_eq!(same, plain);
            assert!(known.contains(&same));
        }
        for other in [Address { qp_num: 18, ..plain }, Address { remote_write: true, ..plain }] {
            assert_ne!(other, plain);
            assert!(!known.contains(&other));
        }
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        let good = Address::new(Gid([7; 16]), 0xab_cdef).to_bytes();
        assert!(Address::from_bytes(&good).is_ok());
        for (at, value) in [(0, 0), (0, 2), (1, 0), (1, 6), (3, 2), (7, 1), (8, 1), (12, 1), (47, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(Address::from_bytes(&bytes).is_err(), "byte {at} = {value}");
        }
        for len in [0, 1, 47] {
            assert!(Address::from_bytes(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(Address::from_bytes(&[good, good].concat()).is_err());
    }

    #[test]
    fn malformed_text_is_rejected() {
        let good = "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=2147483648/write=1/flow=0";
        assert!(good.parse::<Address>().is_ok());
        for bad in [
            "",
            "@",
            "17@fe80::1",
            "17@10.0.0.1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "+17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "16777216@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "17@fe80::1/lid=65536/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "17@fe80::1/lid=0/psn=16777216/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "17@fe80::1/lid=0/psn=17/mtu=1000/rd=1/recvs=0/max=1/write=0/flow=0",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=256/recvs=0/max=1/write=0/flow=0",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=4294967296/write=0/flow=0",
            "17@fe80::1/psn=17/lid=0/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0/",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=2/flow=0",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=0 ",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/write=0/flow=256",
            "17@fe80::1/lid=0/psn=17/mtu=1024/rd=1/recvs=0/max=1/flow=0/write=0",
        ] {
            assert!(bad.parse::<Address>().is_err(), "{bad:?}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_uses_text_in_readable_formats() {
        let address = Address::new(Gid([7; 16]), 0xab_cdef);
        let text = serde_json::to_string(&address).unwrap();
        assert_eq!(text, format!("\"{address}\""));
        assert_eq!(serde_json::from_str::<Address>(&text).unwrap(), address);
        assert!(serde_json::from_str::<Address>("\"17@::1\"").is_err());
        assert!(serde_json::from_str::<Address>("[1, 2]").is_err());
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_uses_bytes_in_other_formats() {
        use serde_core::de::value::{BytesDeserializer, Error, SeqDeserializer};
        use serde_core::de::{Deserialize, IntoDeserializer, Visitor};

        /// A format that is not human-readable.
        struct Binary<D>(D);

        impl<'de, D: serde_core::Deserializer<'de>> serde_core::Deserializer<'de> for Binary<D> {
            type Error = D::Error;

            fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                self.0.deserialize_any(visitor)
            }

            fn is_human_readable(&self) -> bool {
                false
            }

            serde_core::forward_to_deserialize_any! {
                bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
                unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
            }
        }

        let address = Address::new(Gid([7; 16]), 0xab_cdef);
        let bytes = address.to_bytes();
        let whole: BytesDeserializer<'_, Error> = bytes.as_slice().into_deserializer();
        assert_eq!(Address::deserialize(Binary(whole)), Ok(address));
        for (given, ok) in [(&bytes[..], true), (&bytes[..47], false), (&[bytes, bytes].concat()[..], false)]
        {
            let sequence = SeqDeserializer::<_, Error>::new(given.iter().copied());
            assert_eq!(Address::deserialize(Binary(sequence)).is_ok(), ok);
        }
    }

    proptest! {
        #[test]
        fn bytes_and_text_round_trip(address in any_address()) {
            prop_assert_eq!(Address::from_bytes(&address.to_bytes()), Ok(address));
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn accepted_bytes_are_canonical(mut bytes: [u8; Address::LEN], plausible: bool) {
            if plausible {
                (bytes[0], bytes[1], bytes[3], bytes[8], bytes[12]) = (1, bytes[1] % 7, bytes[3] % 3, 0, 0);
                bytes[7] = 0;
                bytes[40..].fill(0);
            }
            if let Ok(address) = Address::from_bytes(&bytes) {
                prop_assert_eq!(address.to_bytes(), bytes);
            }
        }

        #[test]
        fn any_text_is_parsed_or_rejected(text in "\\PC*|[0-9@:/=.a-z]{0,80}") {
            let _ = text.parse::<Address>();
        }
    }
}
