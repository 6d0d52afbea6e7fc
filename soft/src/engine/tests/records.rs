//! Captures and logs of a fabric.

use std::io::{self, Write};
use std::sync::Mutex;

use bareverbs_transport::packet::{Operation as PacketOperation, Packet, syndrome};
use bareverbs_transport::roce::{self, NetworkHeaders};
use bareverbs_uapi::verbs_values::QpState;
use bareverbs_uapi::write::types::{PlacementType, SelectivityLevel, WcOpcode};

use super::*;
use crate::event_log::QpAction;

/// A writer whose bytes the test reads.
#[derive(Clone, Default)]
pub(super) struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    /// The packets of a capture, with their times. Checks lengths, checksums and ICRCs.
    pub(super) fn packets(&self) -> Vec<(Duration, Packet)> {
        let capture = self.0.lock().unwrap();
        let (header, mut rest) = capture.split_at(24);
        let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[4 * at..][..4].try_into().unwrap());
        assert_eq!((word(header, 0), word(header, 5)), (0xa1b2_3c4d, 1));
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (record, after) = rest.split_at(16);
            let time = Duration::new(word(record, 0).into(), word(record, 1));
            assert_eq!(word(record, 2), word(record, 3));
            let (frame, after) = after.split_at(word(record, 2) as usize);
            found.push((time, roce::decode(frame).expect("a valid frame")));
            rest = after;
        }
        found
    }
}

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn capture_has_all_packets_in_order_until_its_end() {
    let fabric = Fabric::new();
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    let file = Bytes::default();
    fabric.capture(file.clone()).unwrap();
    pair.a.fill(0, b"a message");
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 3000)]);
    pair.qa.post(2, Operation::Read(pair.b.remote(0)), &[pair.a.sge(4096, 10)]);
    fabric.end_capture().unwrap();
    pair.qa.post(3, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 1)]);
    let found = file.packets();
    let operations: Vec<_> = found.iter().map(|(_, packet)| packet.operation).collect();
    use PacketOperation::{Acknowledge, ReadRequest, ReadResponseOnly, WriteFirst, WriteLast, WriteMiddle};
    assert!(operations.starts_with(&[
        WriteFirst,
        WriteMiddle,
        WriteLast,
        Acknowledge,
        ReadRequest,
        ReadResponseOnly
    ]));
    assert_eq!(&found[0].1.payload[..9], b"a message");
    let addresses = |at: usize| found[at].1.route.global.map(|global| (global.source, global.destination));
    assert_eq!((addresses(0), addresses(3)), (Some((gid(2), gid(3))), Some((gid(3), gid(2)))));
    assert!(found.is_sorted_by_key(|(time, _)| *time));
    assert!(found[0].0 > Duration::from_secs(1 << 30), "the time is that of UNIX");
}

#[test]
fn flush_in_a_capture_has_the_icrc_of_soft_roce() {
    let fabric = Fabric::new();
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    let file = Bytes::default();
    fabric.capture(file.clone()).unwrap();
    let flush = Operation::Flush {
        remote: pair.b.remote(0),
        length: 16,
        placement: PlacementType::GLOBAL,
        level: SelectivityLevel::RANGE,
    };
    pair.qa.post(1, flush, &[]);
    assert_eq!(pair.a.wait().status, WcStatus::SUCCESS);
    fabric.end_capture().unwrap();
    let Packet { operation, route, .. } = file.packets()[0].1;
    assert_eq!(operation, PacketOperation::Flush);
    let capture = file.0.lock().unwrap();
    let length = u32::from_le_bytes(capture[32..36].try_into().unwrap()) as usize;
    let (ip, icrc) = capture[40 + 14..40 + length].split_last_chunk().unwrap();
    let transport = &ip[28..];
    let headers = NetworkHeaders::new(&route.global.unwrap(), route.udp_source, transport.len());
    assert_eq!(u32::from_le_bytes(*icrc), headers.icrc_of_flush(transport).unwrap());
}

#[test]
fn times_of_a_capture_are_those_of_the_fabric() {
    const TIME: Duration = Duration::from_nanos(1_001_234_567);
    let fabric = Fabric::seeded(1);
    let mut pair = Pair::on(&fabric, QpType::UC, |_| {});
    let file = Bytes::default();
    fabric.capture(file.clone()).unwrap();
    fabric.advance(TIME);
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
    fabric.run_until_idle();
    let times: Vec<_> = file.packets().iter().map(|(time, _)| *time).collect();
    assert_eq!(times, [TIME]);
}

#[test]
fn panic_of_a_captures_writer_is_its_error() {
    struct Panics(bool);
    impl Write for Panics {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert!(!std::mem::replace(&mut self.0, true), "a packet");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let fabric = Fabric::new();
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    fabric.capture(Panics(false)).unwrap();
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
    assert_eq!(pair.a.drain(), [(1, WcStatus::SUCCESS)]);
    assert!(fabric.end_capture().unwrap_err().to_string().contains("panicked"));
}

#[test]
fn replaced_capture_is_dropped_without_the_lock() {
    struct Uses(Fabric);
    impl Write for Uses {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Drop for Uses {
        fn drop(&mut self) {
            let _ = self.0.now();
        }
    }
    let fabric = Fabric::new();
    fabric.capture(Uses(fabric.clone())).unwrap();
    fabric.capture(io::sink()).unwrap();
}

#[test]
fn error_of_a_capture_is_returned_at_its_end() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.0.checked_sub(bytes.len());
            // There is room again after the error.
            self.0 = left.unwrap_or(usize::MAX);
            left.map_or(Err(io::ErrorKind::StorageFull.into()), |_| Ok(bytes.len()))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let fabric = Fabric::new();
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    assert_eq!(fabric.capture(Full(4)).unwrap_err().kind(), io::ErrorKind::StorageFull);
    fabric.capture(Full(50)).unwrap();
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.wait().status, WcStatus::SUCCESS);
    assert_eq!(fabric.end_capture().unwrap_err().kind(), io::ErrorKind::StorageFull);
    fabric.end_capture().unwrap();
}

#[test]
fn log_has_the_actions_of_each_qp_in_order() {
    let fabric = Fabric::new();
    let log = fabric.log(100);
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    let (a, b) = ([127, 0, 0, 2].into(), [127, 0, 0, 3].into());
    let state = QpAction::State;
    let actions = |device, qpn| log.of_qp(device, qpn).into_iter().map(|entry| entry.action);
    assert!(actions(a, pair.qa.qpn).eq([state(QpState::INIT), state(QpState::RTR), state(QpState::RTS)]));
    log.clear();
    // Without a receive, the message is retried once.
    pair.qa.post(5, Operation::Send, &[pair.a.sge(0, 8)]);
    pair.qb.receive(6, &[pair.b.sge(0, 8)]);
    pair.a.wait();
    pair.b.wait();
    let sender: Vec<_> = actions(a, pair.qa.qpn).collect();
    assert_eq!(sender[0], QpAction::Fetched { wr_id: 5, opcode: WcOpcode::SEND });
    let code = |action: &QpAction| match action {
        QpAction::Received(packet) => packet.syndrome,
        _ => None,
    };
    assert!(matches!(sender[1], QpAction::Sent(packet) if packet.destination == pair.qb.qpn));
    assert_eq!(code(&sender[2]).map(|code| code & 0xe0), Some(syndrome::RNR));
    assert_eq!(sender[3], QpAction::RnrWait(Duration::from_micros(10)));
    let completed = |wr_id, opcode| QpAction::Completed { wr_id, opcode, status: WcStatus::SUCCESS };
    assert_eq!(sender.last(), Some(&completed(5, WcOpcode::SEND)));
    let receiver: Vec<_> = actions(b, pair.qb.qpn).collect();
    assert!(receiver.contains(&completed(6, WcOpcode::RECV)));
    let text = log.to_string();
    for line in
        ["fetches WQE 0x5, SEND", "RNR NAK with timer 1", "waits 10µs", "completes WQE 0x6, RECV, SUCCESS"]
    {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[test]
fn failure_of_a_qp_is_in_its_log() {
    let fabric = Fabric::new();
    let mut pair = Pair::on(&fabric, QpType::RC, |attributes| {
        (attributes.retry_count, attributes.ack_timeout) = (1, 1);
    });
    let log = fabric.log(100);
    pair.b.remove();
    pair.qa.post(1, Operation::Send, &[]);
    pair.a.wait();
    let actions: Vec<_> = log.entries().iter().map(|entry| entry.action).collect();
    let psn = 0xff_fff8;
    let is_step = |action: &&QpAction| !matches!(action, QpAction::Sent(_) | QpAction::Fetched { .. });
    let status = WcStatus::RETRY_EXC_ERR;
    let steps: Vec<_> = actions.iter().filter(is_step).copied().collect();
    assert_eq!(
        steps,
        [
            QpAction::AckTimeout,
            QpAction::Retry { psn },
            QpAction::AckTimeout,
            QpAction::Completed { wr_id: 1, opcode: WcOpcode::SEND, status },
            QpAction::State(QpState::ERR),
        ]
    );
}
