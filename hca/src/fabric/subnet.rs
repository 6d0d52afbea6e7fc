//! The subnet administrator of an InfiniBand fabric, as far as IPoIB and the connection manager use
//! it: path records and multicast member records.
//!
//! It has no state. It knows the LIDs of the fabric's own ports. The LIDs of other ports follow
//! from their GUIDs, and those of multicast groups from their GIDs. Every fabric of a tree
//! therefore answers its own ports, and all give the same answers. The record formats are those of
//! the InfiniBand specification, volume 1, chapter 15.

use crate::engine::packet::{Datagram, Headers, Operation, Packet, Route, Transport};
use crate::engine::port::{DEFAULT_PKEY, lid_of};

/// Its LID: the last unicast LID, which no port has.
pub(crate) const LID: u16 = 0xbfff;

/// The QPN and Q_Key of general management.
const MANAGEMENT: u32 = 1;
const MANAGEMENT_KEY: u32 = 0x8001_0000;

/// Length of a MAD, and offsets of its fields.
const MAD: usize = 256;
const CLASS: usize = 1;
const CLASS_VERSION: usize = 2;
const METHOD: usize = 3;
const STATUS: usize = 4;
const ATTRIBUTE: usize = 16;
/// The RMPP header; multi-packet transfers are not modelled.
const TRANSFER: std::ops::Range<usize> = 24..36;
/// Distance between records, in words of 8 bytes.
const RECORD_WORDS: usize = 44;
const COMPONENTS: usize = 48;
const RECORD: usize = 56;

const SUBNET_ADMINISTRATION: u8 = 3;
const GET: u8 = 0x01;
const SET: u8 = 0x02;
const DELETE: u8 = 0x15;
const RESPONSE: u8 = 0x80;
const CLASS_PORT_INFO: u16 = 0x01;
const PATH_RECORD: u16 = 0x35;
const MEMBER_RECORD: u16 = 0x38;
const UNSUPPORTED: u16 = 0x000c;
const NO_RECORDS: u16 = 0x0300;

/// The selector `exactly` with a value.
const fn exactly(value: u8) -> u8 {
    2 << 6 | value
}

/// Path MTU 4096 bytes, multicast MTU 2048 bytes, rate 10 Gb/s, packet lifetime about a second.
const PATH_MTU: u8 = exactly(5);
const GROUP_MTU: u8 = exactly(4);
const RATE: u8 = exactly(3);
const LIFE_TIME: u8 = exactly(18);

/// The response to a request, or `None` for other packets. `known` returns the LID of a port of
/// this fabric by its GID.
pub(super) fn answer(packet: &Packet, known: impl Fn(&[u8; 16]) -> Option<u16>) -> Option<Packet> {
    let request: &[u8; MAD] = packet.payload.as_slice().try_into().ok()?;
    let sender = packet.headers.datagram?;
    let meant = packet.destination == MANAGEMENT && sender.qkey == MANAGEMENT_KEY;
    if !meant || request[CLASS] != SUBNET_ADMINISTRATION || request[METHOD] & RESPONSE != 0 {
        return None;
    }
    let reply = reply(request, packet.route.source_lid, known);
    let route = Route { source_lid: LID, destination_lid: packet.route.source_lid, ..packet.route };
    let datagram = Datagram { qkey: MANAGEMENT_KEY, source_qp: MANAGEMENT };
    Some(Packet {
        // The response has no GRH.
        route: Route { global: None, ..route },
        transport: Transport::Ud,
        operation: Operation::SendOnly,
        solicited: true,
        migrated: true,
        ack_request: false,
        pkey: packet.pkey,
        destination: sender.source_qp,
        psn: packet.psn,
        headers: Headers { datagram: Some(datagram), ..Headers::default() },
        payload: reply.into(),
    })
}

fn reply(request: &[u8; MAD], from: u16, known: impl Fn(&[u8; 16]) -> Option<u16>) -> [u8; MAD] {
    let mut reply = *request;
    let (method, attribute) = (request[METHOD], get16(request, ATTRIBUTE));
    reply[METHOD] = if method == DELETE { DELETE | RESPONSE } else { GET | RESPONSE };
    reply[TRANSFER].fill(0);
    let status = match (method, attribute) {
        (GET, CLASS_PORT_INFO) => {
            reply[RECORD..].fill(0);
            reply[RECORD] = 1;
            reply[RECORD + 1] = request[CLASS_VERSION];
            reply[RECORD + 7] = LIFE_TIME & 0x1f;
            Ok(9)
        }
        (GET, PATH_RECORD) => path(&mut reply[RECORD..], from, known).map(|()| 8),
        (SET | DELETE, MEMBER_RECORD) => {
            let components = u64::from_be_bytes(std::array::from_fn(|at| request[COMPONENTS + at]));
            member(&mut reply[RECORD..], components).map(|()| 7)
        }
        _ => Err(UNSUPPORTED),
    };
    put16(&mut reply, STATUS, status.err().unwrap_or(0));
    put16(&mut reply, RECORD_WORDS, status.unwrap_or(0));
    reply
}

/// Completes a path record to a port or multicast group.
fn path(record: &mut [u8], from: u16, known: impl Fn(&[u8; 16]) -> Option<u16>) -> Result<(), u16> {
    const DESTINATION: usize = 8;
    let gid: [u8; 16] = std::array::from_fn(|at| record[DESTINATION + at]);
    let lid = if gid[0] == 0xff { Some(group_lid(&gid)) } else { known(&gid).or_else(|| lid_of(guid(&gid))) };
    put16(record, 40, lid.ok_or(NO_RECORDS)?);
    put16(record, 42, from);
    record[44..49].fill(0);
    // One reversible path.
    record[49] = 0x81;
    put16(record, 50, DEFAULT_PKEY);
    record[52..54].fill(0);
    record[54..58].copy_from_slice(&[PATH_MTU, RATE, LIFE_TIME, 0]);
    Ok(())
}

/// Completes a multicast member record. The creator may have set some of its fields.
fn member(record: &mut [u8], components: u64) -> Result<(), u16> {
    const QKEY: u64 = 1 << 2;
    const TRAFFIC_CLASS: u64 = 1 << 6;
    const PKEY: u64 = 1 << 7;
    /// The Q_Key of IPoIB's groups.
    const USUAL_QKEY: u32 = 0x0b1b;
    let gid: [u8; 16] = std::array::from_fn(|at| record[at]);
    if gid[0] != 0xff {
        return Err(NO_RECORDS);
    }
    if components & QKEY == 0 {
        record[32..36].copy_from_slice(&USUAL_QKEY.to_be_bytes());
    }
    put16(record, 36, group_lid(&gid));
    record[38] = GROUP_MTU;
    if components & TRAFFIC_CLASS == 0 {
        record[39] = 0;
    }
    if components & PKEY == 0 {
        put16(record, 40, DEFAULT_PKEY);
    }
    record[42..48].copy_from_slice(&[RATE, LIFE_TIME, 0, 0, 0, 0]);
    record[48] = gid[1] << 4 | record[48] & 0xf;
    Ok(())
}

/// The LID of a multicast group, from 0xc000 to 0xfffe. Two groups may share a LID; receivers
/// compare the GID.
fn group_lid(gid: &[u8; 16]) -> u16 {
    let sum = gid.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    0xc000 + (sum % 0x3fff) as u16
}

fn guid(gid: &[u8; 16]) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|at| gid[8 + at]))
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::packet::Link;
    use crate::engine::port::Port;

    fn request(method: u8, attribute: u16) -> [u8; MAD] {
        let mut mad = [0; MAD];
        mad[..4].copy_from_slice(&[1, SUBNET_ADMINISTRATION, 2, method]);
        put16(&mut mad, ATTRIBUTE, attribute);
        mad
    }

    fn packet(payload: Vec<u8>) -> Packet {
        Packet {
            route: Route { source_lid: 3, destination_lid: LID, ..Route::default() },
            transport: Transport::Ud,
            operation: Operation::SendOnly,
            solicited: false,
            migrated: true,
            ack_request: false,
            pkey: DEFAULT_PKEY,
            destination: MANAGEMENT,
            psn: 7,
            headers: Headers {
                datagram: Some(Datagram { qkey: MANAGEMENT_KEY, source_qp: MANAGEMENT }),
                ..Headers::default()
            },
            payload,
        }
    }

    #[test]
    fn path_record_names_port_lid() {
        for index in [0, 1, 200] {
            let port = Port::new(Link::InfiniBand, index);
            let mut mad = request(GET, PATH_RECORD);
            mad[RECORD + 8..RECORD + 24].copy_from_slice(&port.own_gid());
            let answer = answer(&packet(mad.to_vec()), |_| None).expect("an answer");
            assert_eq!((answer.route.destination_lid, answer.destination), (3, MANAGEMENT));
            assert_eq!((get16(&answer.payload, STATUS), answer.payload[METHOD]), (0, 0x81));
            assert_eq!(get16(&answer.payload, RECORD + 40), port.lid);
            assert_eq!(get16(&answer.payload, RECORD + 42), 3);
        }
    }

    #[test]
    fn path_record_follows_lid_change() {
        let port = Port::new(Link::InfiniBand, 0);
        let mut mad = request(GET, PATH_RECORD);
        mad[RECORD + 8..RECORD + 24].copy_from_slice(&port.own_gid());
        let known = |gid: &[u8; 16]| (*gid == port.own_gid()).then_some(77);
        let answer = answer(&packet(mad.to_vec()), known).expect("an answer");
        assert_eq!(get16(&answer.payload, RECORD + 40), 77);
    }

    #[test]
    fn path_record_of_unknown_gid_fails() {
        let answer = answer(&packet(request(GET, PATH_RECORD).to_vec()), |_| None).expect("an answer");
        assert_eq!(get16(&answer.payload, STATUS), NO_RECORDS);
    }

    #[test]
    fn multicast_group_lid_is_stable() {
        let lids = [SET, DELETE].map(|method| {
            let mut mad = request(method, MEMBER_RECORD);
            mad[RECORD..RECORD + 4].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b]);
            let answer = answer(&packet(mad.to_vec()), |_| None).expect("an answer");
            assert_eq!(
                (get16(&answer.payload, STATUS), answer.payload[METHOD]),
                (0, { if method == SET { 0x81 } else { 0x95 } })
            );
            get16(&answer.payload, RECORD + 36)
        });
        assert!(lids[0] == lids[1] && (0xc000..0xffff).contains(&lids[0]));
    }

    #[test]
    fn unsupported_mads_are_rejected() {
        for (method, attribute) in [(GET, 0x31), (SET, PATH_RECORD), (0x12, PATH_RECORD)] {
            let answer = answer(&packet(request(method, attribute).to_vec()), |_| None).expect("an answer");
            assert_eq!(get16(&answer.payload, STATUS), UNSUPPORTED);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_mads_do_not_panic(
            mut payload in prop_oneof![prop::collection::vec(any::<u8>(), MAD), prop::collection::vec(any::<u8>(), 0..300)],
            plausible in any::<bool>(), attribute in prop_oneof![Just(PATH_RECORD), Just(MEMBER_RECORD), any::<u16>()],
        ) {
            if plausible && payload.len() == MAD {
                payload[CLASS] = SUBNET_ADMINISTRATION;
                put16(&mut payload, ATTRIBUTE, attribute);
            }
            let fits = payload.len() == MAD;
            if let Some(answer) = answer(&packet(payload), |_| None) {
                prop_assert!(fits && answer.payload.len() == MAD && answer.payload[METHOD] & RESPONSE != 0);
            }
        }
    }
}
