//! Messages of the CM, and the management datagrams (MADs) that carry them.
//!
//! One declaration per message of its fields' places (IBTA volume 1, chapter 12; the kernel's
//! `ibta_vol1_c12.h`) generates its type, encoder and decoder.

/// Length of a MAD in bytes.
pub(crate) const MAD_LENGTH: usize = 256;

/// Length of a MAD's header in bytes.
const HEADER: usize = 24;

const BASE_VERSION: u8 = 1;
/// The management class of the CM, and its version.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;
/// The method of all its messages: `Send`.
const METHOD: u8 = 3;

/// The part of a MAD after its header.
type Body = [u8; MAD_LENGTH - HEADER];

/// A MAD of the CM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mad {
    /// The transaction id. An answer has that of its request.
    pub(crate) transaction: u64,
    pub(crate) message: Message,
}

impl Mad {
    pub(crate) fn encode(&self) -> [u8; MAD_LENGTH] {
        let mut mad = [0; MAD_LENGTH];
        mad[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        mad[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        mad[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        mad[20..HEADER].copy_from_slice(&self.message.modifier().to_be_bytes());
        mad[HEADER..].copy_from_slice(&self.message.encode());
        mad
    }

    /// Decodes a MAD. `None` if it isn't a whole MAD of the CM, or a message that RoCE doesn't use:
    /// LAP, APR.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, body) = bytes.split_at_checked(HEADER)?;
        if header[..4] != [BASE_VERSION, CLASS, CLASS_VERSION, METHOD] {
            return None;
        }
        let transaction = u64::from_be_bytes(header[8..16].try_into().ok()?);
        let attribute = u16::from_be_bytes(header[16..18].try_into().ok()?);
        let modifier = u32::from_be_bytes(header[20..].try_into().ok()?);
        let message = Message::decode(attribute, modifier, body.try_into().ok()?)?;
        Some(Self { transaction, message })
    }
}

/// A value of some bits.
trait Bits: Sized {
    fn from_bits(bits: u64) -> Self;
    fn bits(&self) -> u64;
}

macro_rules! integer_bits {
    ($($ty:ty)*) => {$(
        impl Bits for $ty {
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }

            fn bits(&self) -> u64 {
                u64::from(*self)
            }
        }
    )*};
}
integer_bits!(u8 u16 u32 u64);

impl Bits for bool {
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }

    fn bits(&self) -> u64 {
        u64::from(*self)
    }
}

/// Reads bits. Bit 0 is the most significant one of byte 0.
fn get(body: &Body, first: usize, width: usize) -> u64 {
    (first..first + width).fold(0, |value, bit| value << 1 | u64::from(body[bit / 8] >> (7 - bit % 8) & 1))
}

/// Writes bits over zeros.
fn set(body: &mut Body, first: usize, width: usize, value: u64) {
    for bit in first..first + width {
        let value = (value >> (first + width - 1 - bit) & 1) as u8;
        body[bit / 8] |= value << (7 - bit % 8);
    }
}

/// Declares messages: the attribute id of each, its fields as type, first byte (and bit), width in
/// bits, its byte fields as a range, and its field in the attribute modifier of the MAD.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $Message:ident = $attribute:literal {
            $($field:ident: $ty:ty = $byte:literal $(+ $bit:literal)?, $width:literal;)*
            $([$bytes:ident = $start:literal .. $end:literal];)*
            $((modifier $modifier:ident);)?
        }
    )*) => {
        /// A message of the CM.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Message {
            $($Message($Message),)*
        }

        impl Message {
            fn attribute(&self) -> u16 {
                match self {
                    $(Self::$Message(_) => $attribute,)*
                }
            }

            fn modifier(&self) -> u32 {
                match self {
                    $($(Self::$Message(message) => message.$modifier,)?)*
                    _ => 0,
                }
            }

            fn encode(&self) -> Body {
                match self {
                    $(Self::$Message(message) => message.encode(),)*
                }
            }

            fn decode(attribute: u16, modifier: u32, body: &Body) -> Option<Self> {
                match attribute {
                    $($attribute => Some(Self::$Message($Message {
                        $($modifier: modifier,)?
                        ..$Message::decode(body)
                    })),)*
                    _ => None,
                }
            }
        }

        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub(crate) struct $Message {
                $(pub(crate) $field: $ty,)*
                $(pub(crate) $bytes: [u8; $end - $start],)*
                $(pub(crate) $modifier: u32,)?
            }

            impl $Message {
                /// The message with all fields zero.
                pub(crate) fn zero() -> Self {
                    Self {
                        $($field: Bits::from_bits(0),)*
                        $($bytes: [0; $end - $start],)*
                        $($modifier: 0,)?
                    }
                }

                fn encode(&self) -> Body {
                    let mut body = [0; MAD_LENGTH - HEADER];
                    $(set(&mut body, $byte * 8 $(+ $bit)?, $width, self.$field.bits());)*
                    $(body[$start..$end].copy_from_slice(&self.$bytes);)*
                    body
                }

                fn decode(body: &Body) -> Self {
                    let mut message = Self::zero();
                    $(message.$field = Bits::from_bits(get(body, $byte * 8 $(+ $bit)?, $width));)*
                    $(message.$bytes.copy_from_slice(&body[$start..$end]);)*
                    message
                }
            }
        )*
    };
}

messages! {
    /// REQ: asks for a connection.
    Req = 0x10 {
        local_id: u32 = 0, 32;
        ece_vendor: u32 = 5, 24;
        service_id: u64 = 8, 64;
        ca_guid: u64 = 16, 64;
        qkey: u32 = 28, 32;
        qpn: u32 = 32, 24;
        responder_resources: u8 = 35, 8;
        initiator_depth: u8 = 39, 8;
        remote_response_timeout: u8 = 43, 5;
        transport: u8 = 43 + 5, 2;
        flow_control: bool = 43 + 7, 1;
        starting_psn: u32 = 44, 24;
        local_response_timeout: u8 = 47, 5;
        retry_count: u8 = 47 + 5, 3;
        pkey: u16 = 48, 16;
        mtu: u8 = 50, 4;
        rnr_retry_count: u8 = 50 + 5, 3;
        max_retries: u8 = 51, 4;
        srq: bool = 51 + 4, 1;
        local_lid: u16 = 52, 16;
        remote_lid: u16 = 54, 16;
        flow_label: u32 = 88, 20;
        rate: u8 = 91 + 2, 6;
        traffic_class: u8 = 92, 8;
        hop_limit: u8 = 93, 8;
        service_level: u8 = 94, 4;
        subnet_local: bool = 94 + 4, 1;
        ack_timeout: u8 = 95, 5;
        [local_gid = 56..72];
        [remote_gid = 72..88];
        [private_data = 140..232];
        (modifier ece_options);
    }
    /// MRA: asks for more time.
    Mra = 0x11 {
        local_id: u32 = 0, 32;
        remote_id: u32 = 4, 32;
        delayed: u8 = 8, 2;
        service_timeout: u8 = 9, 5;
    }
    /// REJ: rejects a connection.
    Rej = 0x12 {
        local_id: u32 = 0, 32;
        remote_id: u32 = 4, 32;
        rejected: u8 = 8, 2;
        info_length: u8 = 9, 7;
        reason: u16 = 10, 16;
        [info = 12..84];
        [private_data = 84..232];
    }
    /// REP: accepts a connection.
    Rep = 0x13 {
        local_id: u32 = 0, 32;
        remote_id: u32 = 4, 32;
        qkey: u32 = 8, 32;
        qpn: u32 = 12, 24;
        ece_vendor_high: u8 = 15, 8;
        ece_vendor_middle: u8 = 19, 8;
        starting_psn: u32 = 20, 24;
        ece_vendor_low: u8 = 23, 8;
        responder_resources: u8 = 24, 8;
        initiator_depth: u8 = 25, 8;
        ack_delay: u8 = 26, 5;
        failover: u8 = 26 + 5, 2;
        flow_control: bool = 26 + 7, 1;
        rnr_retry_count: u8 = 27, 3;
        srq: bool = 27 + 3, 1;
        ca_guid: u64 = 28, 64;
        [private_data = 36..232];
        (modifier ece_options);
    }
    /// RTU: the connection is ready to use.
    Rtu = 0x14 {
        local_id: u32 = 0, 32;
        remote_id: u32 = 4, 32;
        [private_data = 8..232];
    }
    /// DREQ: ends a connection.
    Dreq = 0x15 {
        local_id: u32 = 0, 32;
        remote_id: u32 = 4, 32;
        remote_qpn: u32 = 8, 24;
        [private_data = 12..232];
    }
    /// DREP: answers a DREQ.
    Drep = 0x16 {
        local_id: u32 = 0, 32;
        remote_id: u32 = 4, 32;
        [private_data = 8..232];
    }
    /// SIDR_REQ: asks for the QP of a service.
    SidrReq = 0x17 {
        request_id: u32 = 0, 32;
        pkey: u16 = 4, 16;
        service_id: u64 = 8, 64;
        [private_data = 16..232];
    }
    /// SIDR_REP: answers a SIDR_REQ.
    SidrRep = 0x18 {
        request_id: u32 = 0, 32;
        status: u8 = 4, 8;
        info_length: u8 = 5, 8;
        qpn: u32 = 8, 24;
        service_id: u64 = 12, 64;
        qkey: u32 = 20, 32;
        [info = 24..96];
        [private_data = 96..232];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A MAD with any body.
    fn mad(attribute: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD]);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..].fill(0xec);
        bytes.extend_from_slice(body);
        bytes
    }

    proptest! {
        #[test]
        fn messages_round_trip(attribute in 0x10..0x19_u16, body in proptest::collection::vec(any::<u8>(), 232)) {
            let decoded = Mad::decode(&mad(attribute, &body)).unwrap();
            let encoded = decoded.encode();
            prop_assert_eq!(&encoded[16..18], &attribute.to_be_bytes());
            prop_assert_eq!(Mad::decode(&encoded), Some(decoded));
            // No bit is written that isn't of a field.
            prop_assert!(encoded[HEADER..].iter().zip(&body).all(|(encoded, given)| encoded & !given == 0));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(mad) = Mad::decode(&bytes) {
                prop_assert_eq!(Mad::decode(&mad.encode()), Some(mad));
            }
        }
    }

    #[test]
    fn only_whole_mads_of_the_cm_are_decoded() {
        let body = [0; MAD_LENGTH - HEADER];
        assert!(Mad::decode(&mad(0x10, &body)).is_some());
        assert_eq!(Mad::decode(&mad(0x10, &body[1..])), None);
        assert_eq!(Mad::decode(&mad(0x10, &[0; MAD_LENGTH])), None);
        // LAP and APR, and unknown ones.
        for attribute in [0x0f, 0x19, 0x1a, 0x1b] {
            assert_eq!(Mad::decode(&mad(attribute, &body)), None);
        }
        for wrong in 0..4 {
            let mut bytes = mad(0x10, &body);
            bytes[wrong] += 1;
            assert_eq!(Mad::decode(&bytes), None);
        }
    }

    #[test]
    fn fields_are_at_their_places() {
        let request = Req {
            transport: 1,
            flow_control: true,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            retry_count: 7,
            mtu: 3,
            rnr_retry_count: 7,
            max_retries: 15,
            srq: true,
            qpn: 0x1a_2b_3c,
            ece_vendor: 0x00_15_b3,
            ece_options: 0x5a00_0001,
            ..Req::zero()
        };
        let mad = Mad { transaction: 0x0102_0304_0506_0708, message: Message::Req(request) }.encode();
        assert_eq!(mad[8..24], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0x5a, 0, 0, 1]);
        let body = &mad[HEADER..];
        assert_eq!(body[4..8], [0, 0, 0x15, 0xb3]);
        assert_eq!(body[32..36], [0x1a, 0x2b, 0x3c, 0]);
        assert_eq!((body[43], body[47]), (20 << 3 | 1 << 1 | 1, 20 << 3 | 7));
        assert_eq!((body[50], body[51]), (3 << 4 | 7, 15 << 4 | 1 << 3));
    }
}
