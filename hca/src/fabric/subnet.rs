//! The subnet administrator of an InfiniBand fabric, as far as IPoIB and the connection manager use
//! it: path records, multicast member records and service records.
//!
//! It knows the LIDs of the fabric's own ports. The LIDs of other ports follow from their GUIDs, and
//! those of multicast groups from their GIDs. Every fabric of a tree therefore answers its own ports,
//! and all give the same answers, except for [services](service): those of a fabric are known there
//! only. The record formats are those of the InfiniBand specification, volume 1, chapter 15.

pub(super) mod service;

use std::sync::{Mutex, PoisonError};

use self::service::Services;
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
/// The RMPP header: version, type, flags, status, segment number, payload length.
const TRANSFER: std::ops::Range<usize> = 24..36;
const TRANSFER_TYPE: usize = 25;
/// Distance between records, in words of 8 bytes.
const RECORD_WORDS: usize = 44;
const COMPONENTS: usize = 48;
const RECORD: usize = 56;

const SUBNET_ADMINISTRATION: u8 = 3;
const GET: u8 = 0x01;
const SET: u8 = 0x02;
const GET_TABLE: u8 = 0x12;
const DELETE: u8 = 0x15;
const RESPONSE: u8 = 0x80;
const CLASS_PORT_INFO: u16 = 0x01;
const SERVICE_RECORD: u16 = 0x31;
const PATH_RECORD: u16 = 0x35;
const MEMBER_RECORD: u16 = 0x38;
const UNSUPPORTED: u16 = 0x000c;
const NO_RESOURCES: u16 = 0x0100;
const INVALID_REQUEST: u16 = 0x0200;
const NO_RECORDS: u16 = 0x0300;
const TOO_MANY_RECORDS: u16 = 0x0400;

/// The RMPP header of a segment of a table: version 1, type DATA, no response time.
const TRANSFER_VERSION: u8 = 1;
const TRANSFER_DATA: u8 = 1;
const TRANSFER_FLAGS: u8 = 0x1f << 3 | TRANSFER_ACTIVE;
const TRANSFER_ACTIVE: u8 = 1 << 0;
const TRANSFER_FIRST: u8 = 1 << 1;
const TRANSFER_LAST: u8 = 1 << 2;
/// Bytes of a segment that count as payload besides the records.
const TRANSFER_OVERHEAD: usize = 20;

/// The selector `exactly` with a value.
const fn exactly(value: u8) -> u8 {
    2 << 6 | value
}

/// Path MTU 4096 bytes, multicast MTU 2048 bytes, rate 10 Gb/s, packet lifetime about a second.
const PATH_MTU: u8 = exactly(5);
const GROUP_MTU: u8 = exactly(4);
const RATE: u8 = exactly(3);
const LIFE_TIME: u8 = exactly(18);

/// The packets of the response to a request. There are none for other packets. `known` returns the LID
/// of a port of this fabric by its GID.
///
/// The segments of a table are sent at once, without waiting for acknowledgements: a table of
/// [`service::MOST`] records is within the first window of Linux, 64 segments.
pub(super) fn answer(
    packet: &Packet,
    known: impl Fn(&[u8; 16]) -> Option<u16>,
    services: &Mutex<Services>,
) -> Vec<Packet> {
    let Ok(request): Result<&[u8; MAD], _> = packet.payload.as_slice().try_into() else { return Vec::new() };
    let Some(sender) = packet.headers.datagram else { return Vec::new() };
    let meant = packet.destination == MANAGEMENT && sender.qkey == MANAGEMENT_KEY;
    // The receiver of a table acknowledges its segments by requests of another RMPP type.
    let is_request = request[METHOD] & RESPONSE == 0 && request[TRANSFER_TYPE] <= TRANSFER_DATA;
    if !meant || request[CLASS] != SUBNET_ADMINISTRATION || !is_request {
        return Vec::new();
    }
    let mut services = services.lock().unwrap_or_else(PoisonError::into_inner);
    let replies = match (request[METHOD], get16(request, ATTRIBUTE)) {
        (GET_TABLE, SERVICE_RECORD) => match services.find(&request[RECORD..], components(request)) {
            Ok(found) => table(request, &found),
            Err(status) => vec![reply_with(request, GET_TABLE, Err(status))],
        },
        _ => vec![reply(request, packet.route.source_lid, known, &mut services)],
    };
    let route = Route { source_lid: LID, destination_lid: packet.route.source_lid, ..packet.route };
    let datagram = Datagram { qkey: MANAGEMENT_KEY, source_qp: MANAGEMENT };
    let send = |(number, reply): (u32, [u8; MAD])| Packet {
        // The response has no GRH.
        route: Route { global: None, ..route },
        transport: Transport::Ud,
        operation: Operation::SendOnly,
        solicited: true,
        migrated: true,
        ack_request: false,
        pkey: packet.pkey,
        destination: sender.source_qp,
        psn: packet.psn.wrapping_add(number) & 0xff_ffff,
        headers: Headers { datagram: Some(datagram), ..Headers::default() },
        payload: reply.into(),
        zero_copy: None,
    };
    (0..).zip(replies).map(send).collect()
}

fn components(request: &[u8; MAD]) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|at| request[COMPONENTS + at]))
}

/// The response of one MAD.
fn reply(
    request: &[u8; MAD],
    from: u16,
    known: impl Fn(&[u8; 16]) -> Option<u16>,
    services: &mut Services,
) -> [u8; MAD] {
    let mut reply = *request;
    let (method, attribute) = (request[METHOD], get16(request, ATTRIBUTE));
    let record = &mut reply[RECORD..];
    let result = match (method, attribute) {
        (GET, CLASS_PORT_INFO) => {
            record.fill(0);
            record[0] = 1;
            record[1] = request[CLASS_VERSION];
            record[7] = LIFE_TIME & 0x1f;
            Ok(9)
        }
        (GET, PATH_RECORD) => path(record, from, known).map(|()| 8),
        (SET | DELETE, MEMBER_RECORD) => member(record, components(request)).map(|()| 7),
        (GET, SERVICE_RECORD) => services.get(record, components(request)).map(|()| service::WORDS),
        (SET, SERVICE_RECORD) => services.set(record).map(|()| service::WORDS),
        (DELETE, SERVICE_RECORD) => services.delete(record).map(|()| service::WORDS),
        _ => Err(UNSUPPORTED),
    };
    reply_with(&reply, if method == DELETE { DELETE } else { GET }, result)
}

/// A request as its response: the result is the distance of the records in words of 8 bytes, or a
/// status.
fn reply_with(request: &[u8; MAD], method: u8, result: Result<u16, u16>) -> [u8; MAD] {
    let mut reply = *request;
    reply[METHOD] = method | RESPONSE;
    reply[TRANSFER].fill(0);
    put16(&mut reply, STATUS, result.err().unwrap_or(0));
    put16(&mut reply, RECORD_WORDS, result.unwrap_or(0));
    reply
}

/// The segments of a table of service records, which may be empty.
fn table(request: &[u8; MAD], records: &[service::Record]) -> Vec<[u8; MAD]> {
    let bytes = records.concat();
    let mut pieces: Vec<&[u8]> = bytes.chunks(MAD - RECORD).collect();
    if pieces.is_empty() {
        pieces.push(&[]);
    }
    let count = pieces.len();
    let segment = |(index, piece): (usize, &&[u8])| {
        let mut reply = reply_with(request, GET_TABLE, Ok(service::WORDS));
        let (is_first, is_last) = (index == 0, index + 1 == count);
        // The first segment has the length of all.
        let length = match (is_first, is_last) {
            (_, true) => piece.len() + TRANSFER_OVERHEAD,
            (true, false) => bytes.len() + count * TRANSFER_OVERHEAD,
            (false, false) => 0,
        };
        let first = if is_first { TRANSFER_FIRST } else { 0 };
        let last = if is_last { TRANSFER_LAST } else { 0 };
        let transfer = &mut reply[TRANSFER];
        transfer[..3].copy_from_slice(&[TRANSFER_VERSION, TRANSFER_DATA, TRANSFER_FLAGS | first | last]);
        transfer[4..8].copy_from_slice(&(index as u32 + 1).to_be_bytes());
        transfer[8..].copy_from_slice(&(length as u32).to_be_bytes());
        reply[RECORD..].fill(0);
        reply[RECORD..RECORD + piece.len()].copy_from_slice(piece);
        reply
    };
    pieces.iter().enumerate().map(segment).collect()
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

    /// The response of one packet.
    fn answer_one(packet: &Packet, known: impl Fn(&[u8; 16]) -> Option<u16>) -> Packet {
        let mut answers = answer(packet, known, &Mutex::default());
        assert_eq!(answers.len(), 1);
        answers.remove(0)
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
            zero_copy: None,
        }
    }

    #[test]
    fn path_record_names_port_lid() {
        for index in [0, 1, 200] {
            let port = Port::new(Link::InfiniBand, index);
            let mut mad = request(GET, PATH_RECORD);
            mad[RECORD + 8..RECORD + 24].copy_from_slice(&port.own_gid());
            let answer = answer_one(&packet(mad.to_vec()), |_| None);
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
        let answer = answer_one(&packet(mad.to_vec()), known);
        assert_eq!(get16(&answer.payload, RECORD + 40), 77);
    }

    #[test]
    fn path_record_of_unknown_gid_fails() {
        let answer = answer_one(&packet(request(GET, PATH_RECORD).to_vec()), |_| None);
        assert_eq!(get16(&answer.payload, STATUS), NO_RECORDS);
    }

    #[test]
    fn multicast_group_lid_is_stable() {
        let lids = [SET, DELETE].map(|method| {
            let mut mad = request(method, MEMBER_RECORD);
            mad[RECORD..RECORD + 4].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b]);
            let answer = answer_one(&packet(mad.to_vec()), |_| None);
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
        for (method, attribute) in [(GET, 0x32), (SET, PATH_RECORD), (GET_TABLE, PATH_RECORD)] {
            let answer = answer_one(&packet(request(method, attribute).to_vec()), |_| None);
            assert_eq!(get16(&answer.payload, STATUS), UNSUPPORTED);
        }
    }

    /// The MAD of a request about a service.
    fn service(method: u8, id: u64, name: &str, components: u64) -> Packet {
        let mut mad = request(method, SERVICE_RECORD);
        mad[COMPONENTS..COMPONENTS + 8].copy_from_slice(&components.to_be_bytes());
        mad[RECORD..RECORD + 8].copy_from_slice(&id.to_be_bytes());
        mad[RECORD + 48..][..name.len()].copy_from_slice(name.as_bytes());
        packet(mad.to_vec())
    }

    /// RMPP header of a response, from type to flags, and its two numbers.
    fn transfer(packet: &Packet) -> ([u8; 3], [u32; 2]) {
        let bytes = &packet.payload[TRANSFER];
        let number = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        ([bytes[0], bytes[1], bytes[2] & 7], [number(4), number(8)])
    }

    const BY_ID: u64 = 1 << 0;
    const BY_NAME: u64 = 1 << 6;

    #[test]
    fn services_are_found_by_id_and_name_until_they_are_deleted() {
        let services = Mutex::default();
        let ask = |packet: &Packet| answer(packet, |_| None, &services);
        for (id, name) in [(1, "one"), (2, "two"), (3, "two")] {
            let set = ask(&service(SET, id, name, 0));
            assert_eq!((get16(&set[0].payload, STATUS), set[0].payload[METHOD]), (0, GET | RESPONSE));
        }
        let found = ask(&service(GET_TABLE, 2, "", BY_ID));
        assert_eq!((found.len(), found[0].payload[METHOD]), (1, GET_TABLE | RESPONSE));
        assert_eq!(transfer(&found[0]), ([1, 1, 7], [1, 196]));
        assert_eq!(found[0].payload[RECORD + 7], 2);
        assert_eq!(get16(&found[0].payload, RECORD_WORDS), 22);

        let found = ask(&service(GET_TABLE, 0, "two", BY_NAME));
        // Two records of 176 bytes in segments of 200.
        let headers: Vec<_> = found.iter().map(transfer).collect();
        assert_eq!(headers, [([1, 1, 3], [1, 352 + 40]), ([1, 1, 5], [2, 152 + 20])]);
        assert_eq!([found[0].psn, found[1].psn], [7, 8]);
        let bytes = [&found[0].payload[RECORD..], &found[1].payload[RECORD..]].concat();
        assert_eq!((bytes[7], bytes[176 + 7], &bytes[176 + 48..][..3]), (2, 3, &b"two"[..]));

        let status = |packet: &Packet| get16(&ask(packet)[0].payload, STATUS);
        assert_eq!(status(&service(GET, 0, "two", BY_NAME)), TOO_MANY_RECORDS);
        assert_eq!(status(&service(DELETE, 2, "", 0)), 0);
        assert_eq!(status(&service(DELETE, 2, "", 0)), NO_RECORDS);
        assert_eq!(status(&service(GET, 0, "two", BY_NAME)), 0);
        assert_eq!(status(&service(GET_TABLE, 0, "", 1 << 40)), INVALID_REQUEST);
    }

    #[test]
    fn table_without_records_is_empty() {
        let found = answer(&service(GET_TABLE, 9, "", BY_ID), |_| None, &Mutex::default());
        assert_eq!(found.iter().map(transfer).collect::<Vec<_>>(), [([1, 1, 7], [1, 20])]);
        assert_eq!(get16(&found[0].payload, STATUS), 0);
    }

    #[test]
    fn acknowledged_segments_are_not_answered() {
        let mut packet = service(GET_TABLE, 9, "", BY_ID);
        packet.payload[TRANSFER_TYPE] = 2;
        assert_eq!(answer(&packet, |_| None, &Mutex::default()).len(), 0);
    }

    proptest! {
        #[test]
        fn arbitrary_mads_do_not_panic(
            mut payload in prop_oneof![prop::collection::vec(any::<u8>(), MAD), prop::collection::vec(any::<u8>(), 0..300)],
            plausible in any::<bool>(), attribute in prop_oneof![Just(PATH_RECORD), Just(MEMBER_RECORD), Just(SERVICE_RECORD), any::<u16>()],
            method in prop_oneof![Just(GET), Just(SET), Just(GET_TABLE), Just(DELETE), any::<u8>()],
        ) {
            if plausible && payload.len() == MAD {
                payload[CLASS] = SUBNET_ADMINISTRATION;
                put16(&mut payload, ATTRIBUTE, attribute);
                payload[METHOD] = method;
            }
            let fits = payload.len() == MAD;
            for answer in answer(&packet(payload), |_| None, &Mutex::default()) {
                prop_assert!(fits && answer.payload.len() == MAD && answer.payload[METHOD] & RESPONSE != 0);
            }
        }
    }
}
