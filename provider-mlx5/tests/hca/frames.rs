//! TSO: one request that the device segments into frames.

use bareverbs_mlx5_testbed::{Qp, Testbed, poll};
use bareverbs_provider::traits::SendQueue;
use bareverbs_provider::work::{Frame, Payload, PushError, SendFlags, SendRequest, WcOpcode, WcStatus};
use bareverbs_uapi::uverbs::types::QpCap;
use proptest::prelude::*;

/// Few requests, so that the ring wraps often.
const CAP: QpCap =
    QpCap { max_send_wr: 3, max_recv_wr: 0, max_send_sge: 3, max_recv_sge: 0, max_inline_data: 64 };

const LONGEST_HEADER: u16 = 134;

const ETHERNET: usize = 14;

/// Headers of a TCP segment with `options` words of TCP options.
fn headers(ipv6: bool, options: usize, sequence: u32) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 7];
    if ipv6 {
        bytes.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
        bytes.extend_from_slice(&[[0xfd; 16], [0xfe; 16]].concat());
    } else {
        bytes.extend_from_slice(&[8, 0, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend_from_slice(&[10, 1, 0, 1, 10, 1, 0, 2]);
    }
    bytes.extend_from_slice(&[0x30, 0x39, 0, 80]);
    bytes.extend_from_slice(&sequence.to_be_bytes());
    // Acknowledgement number; data offset; FIN, PSH and ACK; window; checksum; urgent pointer.
    bytes.extend_from_slice(&[0, 0, 0, 1, ((5 + options) << 4) as u8, 0x19, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.resize(bytes.len() + options * 4, 1);
    bytes
}

/// Ones' complement sum, folded to 16 bits. It is 0xffff over data with a valid checksum.
fn sum(bytes: &[u8]) -> u32 {
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16)
}

/// Checks the headers of a frame and returns its payload.
fn checked(frame: &[u8], header: &[u8], at: usize, is_last: bool, number: u16) -> Vec<u8> {
    let ipv6 = header[12] == 0x86;
    let network = ETHERNET + if ipv6 { 40 } else { 20 };
    let short = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let end = if ipv6 { network + short(ETHERNET + 4) } else { ETHERNET + short(ETHERNET + 2) };
    assert!(
        frame.len() == end || frame.len() == 60 && end < 60,
        "{} bytes, of which {end} count",
        frame.len()
    );
    let (addresses, protocol) = if ipv6 { (22..54, 6) } else { (26..34, 6) };
    if !ipv6 {
        assert_eq!(short(18), usize::from(0xffffu16.wrapping_add(number)), "the identification counts on");
        assert_eq!(sum(&frame[ETHERNET..network]), 0xffff, "the checksum of the IP header");
    }
    let pseudo = [&frame[addresses], &[0, protocol], &((end - network) as u16).to_be_bytes()].concat();
    assert_eq!(sum(&[&pseudo, &frame[network..end]].concat()), 0xffff, "the checksum of TCP");
    let sequence = |bytes: &[u8]| u32::from_be_bytes(bytes[network + 4..network + 8].try_into().unwrap());
    assert_eq!(sequence(frame), sequence(header).wrapping_add(at as u32));
    assert_eq!(frame[network + 13], if is_last { 0x19 } else { 0x10 }, "FIN and PSH come last");
    // The device must not change any other header field.
    let mut like = frame[..header.len()].to_vec();
    let addresses = if ipv6 { [18..20, 18..20] } else { [16..20, 24..26] };
    for range in addresses.into_iter().chain([
        network + 4..network + 8,
        network + 13..network + 14,
        network + 16..network + 18,
    ]) {
        like[range.clone()].copy_from_slice(&header[range]);
    }
    assert_eq!(like, header);
    frame[header.len()..end].to_vec()
}

fn post(testbed: &Testbed, pair: &mut Qp, wr_id: u64, frame: Frame<'_>, payload: &[u8], cuts: [usize; 2]) {
    testbed.write(0x1000, payload);
    let (one, two) = (cuts[0].min(payload.len()), cuts[1].min(payload.len()));
    let (one, two) = (one.min(two), one.max(two));
    let pieces = [(0, one), (one, two - one), (two, payload.len() - two)];
    let sges = pieces.map(|(at, length)| testbed.sge(0x1000 + at, length as u32));
    let payload = Payload::Sges(&sges);
    let request = SendRequest { wr_id, operation: frame, flags: SendFlags::SIGNALED, payload };
    // SAFETY: the SGEs lie in the testbed's MR, which stays registered.
    unsafe { pair.sq.push_frame(&request) }.expect("room");
    pair.sq.ring().expect("doorbells are not refused");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tso_request_is_sent_as_tcp_segments(
        sends in prop::collection::vec(
            (any::<bool>(), 0usize..=10, any::<u32>(), prop::collection::vec(any::<u8>(), 0..3000), 1u16..2000, any::<[u16; 2]>()),
            1..24,
        ),
    ) {
        let mut testbed = Testbed::new();
        let mut cq = testbed.cq(6, 64);
        let mut pair = testbed.frames(&CAP, LONGEST_HEADER, &cq);
        for (wr_id, (ipv6, options, sequence, payload, mss, cuts)) in (0..).zip(&sends) {
            let header = headers(*ipv6, *options, *sequence);
            let frame = Frame { header: &header, checksums: true, mss: Some(*mss) };
            let cuts = cuts.map(|cut| usize::from(cut) % (payload.len() + 1));
            post(&testbed, &mut pair, wr_id, frame, payload, cuts);
            testbed.run();
            let ends = poll(&mut cq);
            let ends: Vec<_> = ends.iter().map(|end| (end.wr_id, end.status, end.opcode)).collect();
            prop_assert_eq!(ends, [(wr_id, WcStatus::SUCCESS, WcOpcode::TSO)]);
            let frames = testbed.hca().take_frames();
            let count = payload.len().div_ceil(usize::from(*mss)).max(1);
            prop_assert_eq!(frames.len(), count);
            let mut arrived = Vec::new();
            for (number, frame) in frames.iter().enumerate() {
                let part = checked(frame, &header, arrived.len(), number + 1 == count, number as u16);
                prop_assert!(number + 1 == count || part.len() == usize::from(*mss));
                arrived.extend(part);
            }
            prop_assert_eq!(&arrived, payload);
        }
    }
}

#[test]
fn inline_tso_and_plain_frame_share_a_queue() {
    let mut testbed = Testbed::new();
    let mut cq = testbed.cq(6, 64);
    let mut pair = testbed.frames(&CAP, LONGEST_HEADER, &cq);
    let header = headers(false, 0, 7);
    for round in 0..10 {
        let parts: [&[u8]; 2] = [b"cut into ", b"pieces"];
        let frame = Frame { header: &header, checksums: true, mss: Some(5) };
        let request =
            |wr_id, operation, payload| SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: no registered memory.
        unsafe { pair.sq.push_frame(&request(round, frame, Payload::Inline(&parts))) }.expect("room");
        let whole: &[&[u8]] = &[&header, b"as it is"];
        // SAFETY: no registered memory.
        unsafe { pair.sq.push_frame(&request(round, Frame::default(), Payload::Inline(whole))) }
            .expect("room");
        pair.sq.ring().expect("doorbells are not refused");
        testbed.run();
        let opcodes: Vec<_> = poll(&mut cq).iter().map(|end| end.opcode).collect();
        assert_eq!(opcodes, [WcOpcode::TSO, WcOpcode::SEND]);
        let frames = testbed.hca().take_frames();
        assert_eq!(frames.len(), 4);
        let cut: Vec<u8> = (0..3u16)
            .zip(&frames)
            .flat_map(|(number, frame)| checked(frame, &header, usize::from(number) * 5, number == 2, number))
            .collect();
        assert_eq!(cut, b"cut into pieces");
        assert_eq!(frames[3], whole.concat());
    }
}

#[test]
fn invalid_tso_is_rejected_without_side_effect() {
    let mut testbed = Testbed::new();
    let mut cq = testbed.cq(6, 64);
    let mut pair = testbed.frames(&CAP, LONGEST_HEADER, &cq);
    let mut without = testbed.frames(&CAP, 0, &cq);
    let refusal = |pair: &mut Qp, header: &[u8], mss, payload| {
        let operation = Frame { header, checksums: true, mss: Some(mss) };
        let request = SendRequest { wr_id: 0, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: a rejected request is not executed.
        unsafe { pair.sq.push_frame(&request) }.expect_err("a refusal")
    };
    let (header, none) = (headers(false, 0, 7), Payload::Sges(&[]));
    for length in [0, 13, 135, 1000, 1 << 17] {
        let refused = refusal(&mut pair, &vec![0; length], 100, none);
        assert_eq!(refused, PushError::TsoHeader { given: length, max: 134 });
    }
    for mss in [0, 0x4000, u16::MAX] {
        let refused = refusal(&mut pair, &header, mss, none);
        assert_eq!(refused, PushError::SegmentSize { given: mss, max: 0x3fff });
    }
    let sges = [testbed.sge(0, 0x8000), testbed.sge(0, 0x8000), testbed.sge(0, 1)];
    let refused = refusal(&mut pair, &header, 100, Payload::Sges(&sges));
    assert_eq!(refused, PushError::MessageTooLong { given: 0x1_0001, max: 0x1_0000 });
    let four = [sges[0]; 4];
    let refused = refusal(&mut pair, &header, 100, Payload::Sges(&four));
    assert_eq!(refused, PushError::TooManySges { given: 4, max: 3 });
    // The longest header reduces the room for inline data to 5 segments.
    let bytes: &[&[u8]] = &[&[0; 200]];
    let refused = refusal(&mut pair, &[0; 134], 100, Payload::Inline(bytes));
    assert_eq!(refused, PushError::InlineTooLong { given: 200, max: 76 });
    let refused = refusal(&mut without, &header, 100, none);
    assert!(matches!(refused, PushError::Unsupported { .. }), "{refused}");
    for pair in [&mut pair, &mut without] {
        pair.sq.ring().expect("doorbells are not refused");
    }
    testbed.run();
    assert!(poll(&mut cq).is_empty() && testbed.hca().take_frames().is_empty());
}

#[test]
fn tso_header_length_must_match_headers() {
    let mut testbed = Testbed::new();
    let mut cq = testbed.cq(6, 64);
    let whole = headers(false, 0, 7);
    for header in [&whole[..whole.len() - 1], &[&whole[..], &[0]].concat(), &[0; 54]] {
        let mut pair = testbed.frames(&CAP, LONGEST_HEADER, &cq);
        let frame = Frame { header, checksums: true, mss: Some(100) };
        post(&testbed, &mut pair, 1, frame, &[7; 300], [0, 0]);
        testbed.run();
        let ends: Vec<_> = poll(&mut cq).iter().map(|end| end.status).collect();
        assert_eq!(ends, [WcStatus::LOC_QP_OP_ERR], "{} bytes", header.len());
        assert!(testbed.hca().take_frames().is_empty());
    }
}
