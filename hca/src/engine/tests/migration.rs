//! Automatic path migration: alternate paths, and the migration bit of packets.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::packet::{Route, Transport};
use crate::engine::wqe::opcode;
use crate::engine::{AlternatePath, EventKind, Migration, Packet, QpAttributes, State};

const FROM: u64 = DATA + 0x100;
const TO: u64 = DATA + 0x4_0000;
/// The LID of the alternate path. The primary path has LID 1.
const LID: u16 = 9;

/// A pair in RTS whose sides that are set have loaded an alternate path and rearmed.
fn rearmed(sides: [bool; 2]) -> Pair {
    let mut pair = Pair::new(Transport::Rc);
    for side in (0..2).filter(|side| sides[*side]) {
        let number = pair.qps[side];
        let attributes = pair.engine.qp_attributes(number).unwrap().1.clone();
        let route = Route { destination_lid: LID, ..attributes.route };
        let attributes = QpAttributes {
            alternate: Some(AlternatePath { route, pkey: 0xffff, ack_timeout: 11 }),
            migration: Migration::Rearm,
            retry_count: 2,
            ..attributes
        };
        pair.engine.modify_qp(number, State::ReadyToSend, attributes).unwrap();
    }
    pair
}

fn write(pair: &mut Pair, side: usize) {
    let key = pair.key;
    pair.post(side, opcode::WRITE, 0, &[remote(key, TO), data(key, FROM, 3000)].concat());
}

fn states(pair: &Pair) -> [Migration; 2] {
    pair.qps.map(|qp| pair.engine.qp_attributes(qp).unwrap().1.migration)
}

/// Both sides armed, and the port's LID changed to that of the alternate path.
fn armed() -> Pair {
    let mut pair = rearmed([true, true]);
    write(&mut pair, 0);
    pair.settle(|packets| packets);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0]);
    assert_eq!(states(&pair), [Migration::Armed; 2]);
    pair.engine.port_mut().lid = LID;
    pair
}

/// Only packets on the alternate path arrive.
fn primary_fails(packets: Vec<Packet>) -> Vec<Packet> {
    packets.into_iter().filter(|packet| packet.route.destination_lid == LID).collect()
}

fn count(pair: &mut Pair, kind: EventKind) -> usize {
    pair.events().iter().filter(|event| **event == kind as u8).count()
}

#[test]
fn rearmed_side_is_armed_once_the_peer_has_rearmed() {
    for (sides, expected) in [
        ([true, false], [Migration::Rearm, Migration::Migrated]),
        ([false, true], [Migration::Migrated, Migration::Rearm]),
        ([true, true], [Migration::Armed, Migration::Armed]),
    ] {
        let mut pair = rearmed(sides);
        write(&mut pair, 0);
        pair.settle(|packets| packets);
        assert_eq!(states(&pair), expected);
        assert_eq!(count(&mut pair, EventKind::PathMigrated), 0);
    }
}

#[test]
fn exceeded_retries_move_both_sides_to_the_alternate_path() {
    let mut pair = armed();
    pair.write(FROM, &[7; 3000]);
    write(&mut pair, 0);
    pair.settle(primary_fails);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0]);
    assert_eq!(pair.read(TO, 3000), [7; 3000]);
    assert_eq!(states(&pair), [Migration::Migrated; 2]);
    assert_eq!(count(&mut pair, EventKind::PathMigrated), 2);
    for qp in pair.qps {
        let attributes = pair.engine.qp_attributes(qp).unwrap().1;
        assert_eq!((attributes.route.source_lid, attributes.route.destination_lid), (LID, LID));
        assert_eq!((attributes.ack_timeout, attributes.on_alternate), (11, true));
        assert!(attributes.alternate.is_none());
    }
}

#[test]
fn side_without_an_armed_path_fails() {
    for sides in [[false, false], [true, false]] {
        let mut pair = rearmed(sides);
        write(&mut pair, 0);
        pair.settle(primary_fails);
        let syndromes: Vec<_> = pair.poll().iter().map(|cqe| cqe.syndrome).collect();
        assert_eq!(syndromes, [0x15], "retries exceeded");
        assert_eq!(count(&mut pair, EventKind::PathMigrated), 0);
    }
}

#[test]
fn armed_side_migrates_on_request_and_the_peer_follows() {
    let mut pair = armed();
    pair.engine.migrate_qp(pair.qps[0]).unwrap();
    assert_eq!(states(&pair), [Migration::Migrated, Migration::Armed]);
    assert!(pair.engine.migrate_qp(pair.qps[0]).is_err(), "it isn't armed");
    write(&mut pair, 0);
    pair.settle(primary_fails);
    assert_eq!(states(&pair), [Migration::Migrated; 2]);
    assert_eq!(count(&mut pair, EventKind::PathMigrated), 2);
}

#[test]
fn migration_to_another_path_is_refused() {
    let mut pair = armed();
    pair.engine.migrate_qp(pair.qps[0]).unwrap();
    write(&mut pair, 0);
    pair.settle(|mut packets| {
        packets.iter_mut().for_each(|packet| packet.route.source_lid = 1);
        packets
    });
    assert_eq!(states(&pair), [Migration::Migrated, Migration::Armed]);
    assert_ne!(count(&mut pair, EventKind::PathMigrationFailed), 0);
    assert_eq!(pair.poll().iter().map(|cqe| cqe.syndrome).collect::<Vec<_>>(), [0x15], "retries exceeded");
}
