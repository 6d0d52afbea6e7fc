//! TSO: sends that the device segments into frames of a TCP stream.

use bareverbs::cq::CqInit;
use bareverbs::error::{Feature, Limit};
use bareverbs::qp::{Frame, Payload, QpInit, RawPacket, Rc, SendFlags, SendRequest, Sge};
use bareverbs::{Access, Error, Pd, WcOpcode, WcStatus};
use bareverbs_kernel_tests::loopback::{domain, region, take};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::raw_packets::{ALICE, BOB, IPV4, Side, to_bob};

/// Bytes of the headers below.
const HEADER: usize = 14 + 20 + 20;

/// Ethernet, IPv4 and TCP headers: a segment with this sequence number and FIN, PSH and ACK,
/// without lengths and checksums.
fn headers(sequence: u32) -> Vec<u8> {
    let ip = [0x45, 0, 0, 0, 0x12, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 9, 8, 1, 10, 9, 8, 7];
    let [a, b, c, d] = sequence.to_be_bytes();
    let tcp = [0x30, 0x39, 0, 80, a, b, c, d, 0, 0, 0, 1, 0x50, 0x19, 0xff, 0xff, 0, 0, 0, 0];
    [&BOB.0[..], &ALICE.0, &IPV4.to_be_bytes(), &ip, &tcp].concat()
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}

fn large(header: &[u8], mss: u16) -> Frame<'_> {
    Frame { header, checksums: true, mss: Some(mss) }
}

#[track_caller]
fn post(side: &mut Side, operation: Frame<'_>, sges: &[Sge]) -> Result<(), bareverbs::error::PostError> {
    let request =
        SendRequest { wr_id: 9, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(sges) };
    // SAFETY: the callers do not modify their regions until the request completes.
    unsafe { side.qp.post_send(&[request]) }
}

#[track_caller]
fn sent(side: &mut Side) {
    let done = take(&mut side.cq, 1)[0];
    assert_eq!((done.wr_id, done.status, done.opcode), (9, WcStatus::SUCCESS, WcOpcode::TSO));
}

#[kernel_test(device::raw_packets)]
fn tso_send_arrives_as_tcp_segments() {
    nothing_leaks(|| {
        let (a_pd, b_pd) = (domain(), domain());
        let (mut a, mut b) = (Side::cutting(&a_pd, HEADER as u16), Side::cutting(&b_pd, 0));
        b.qp.create_flow(&to_bob()).unwrap();
        let message: Vec<u8> = (0..400u32).map(|at| (at * 7) as u8).collect();
        let memory = region(&a_pd, &message, Access::empty());
        // Often enough that the send ring wraps, and across a wrap of the sequence number.
        for round in 0..40u32 {
            let sequence = (round * 400).wrapping_sub(900);
            (0..3).for_each(|wr_id| b.receive(wr_id));
            let sges = [0..1, 1..300, 300..400].map(|part| memory.sge(part).unwrap());
            post(&mut a, large(&headers(sequence), 150), &sges).unwrap();
            sent(&mut a);
            let mut at = 0;
            for (number, length) in [150, 150, 100].into_iter().enumerate() {
                let frame = b.next();
                assert_eq!(frame.len(), HEADER + length);
                let segment = sequence.wrapping_add(at as u32).to_be_bytes();
                assert_eq!(frame[38..42], segment, "where it belongs in the stream");
                assert_eq!(frame[16..18], (40 + length as u16).to_be_bytes(), "length");
                assert_eq!(frame[18..20], (0x12ff + number as u16).to_be_bytes(), "identification");
                assert_eq!(frame[47], if number == 2 { 0x19 } else { 0x10 }, "FIN and PSH come last");
                assert_eq!(sum(&frame[14..34]), 0xffff, "the IP header's checksum");
                let pseudo = [&frame[26..34], &[0, 6], &(20 + length as u16).to_be_bytes()].concat();
                assert_eq!(sum(&[&pseudo, &frame[34..]].concat()), 0xffff, "the checksum of TCP");
                assert_eq!(frame[HEADER..], message[at..at + length]);
                at += length;
            }
        }
    });
}

#[kernel_test(device::raw_packets)]
fn invalid_tso_sends_are_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let mut a = Side::cutting(&pd, HEADER as u16);
        let max = pd.context().query_device().unwrap().max_tso;
        assert!(max > 0);
        let memory = region(&pd, &vec![0; max as usize + 1], Access::empty());
        let all = memory.sge(..).unwrap();
        let header = headers(0);
        let longer = [&header[..], &[0]].concat();
        for (frame, sges, said) in [
            (
                large(&longer, 100),
                &[][..],
                "a TSO header has 14 to 54 bytes (the QP's `max_tso_header`), not 55",
            ),
            (
                large(&header[..13], 100),
                &[],
                "a TSO header has 14 to 54 bytes (the QP's `max_tso_header`), not 13",
            ),
            (large(&header, 0), &[], "TSO segments have 1 to"),
            (large(&header, 100), &[all], "bytes exceeds the maximum of"),
            (large(&header, 100), &[all; 4], "4 SGEs exceed"),
        ] {
            let refused = post(&mut a, frame, sges).unwrap_err();
            assert_eq!(refused.accepted, 0);
            assert!(refused.to_string().contains(said), "{refused}");
        }
        let mut plain = Side::cutting(&pd, 0);
        let refused = post(&mut plain, large(&header, 100), &[]).unwrap_err();
        assert!(refused.to_string().contains("a TSO send without `max_tso_header`"), "{refused}");
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let refused = with_header::<RawPacket>(&pd, &cq, u16::MAX);
        assert!(
            matches!(refused, Error::Limit { limit: Limit::MaxTsoHeader, asked: 65535, .. }),
            "{refused}"
        );
        // The maximum length.
        let operation = large(&header, 8000);
        post(&mut a, operation, &[Sge { length: max, ..all }]).unwrap();
        sent(&mut a);
    });
}

#[kernel_test]
fn tso_is_rejected_where_unsupported() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let refused = with_header::<Rc>(&pd, &cq, 54);
        assert!(matches!(refused, Error::Unsupported { feature: Feature::Tso, .. }), "{refused}");
    });
}

fn with_header<T: bareverbs::qp::Transport>(pd: &Pd, cq: &bareverbs::cq::Cq, max_tso_header: u16) -> Error {
    let init = QpInit { max_tso_header, ..QpInit::new(cq, cq) };
    pd.create_qp::<T>(&init).map(drop).unwrap_err()
}
