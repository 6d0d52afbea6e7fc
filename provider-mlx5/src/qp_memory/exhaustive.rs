//! Compares every small ring layout with a model.

use super::*;
use bareverbs_provider::error::Limit;

/// A device with small limits, so that the test reaches every limit.
const SMALL: Limits = Limits { send_bytes: 256, recv_bytes: 64, send_blocks: 8, receives: 4 };

const TYPES: [QpType; 5] = [QpType::RC, QpType::UC, QpType::UD, QpType::XRC_INI, QpType::RAW_PACKET];

/// Segments before the data.
fn head(qp_type: QpType) -> u64 {
    if matches!(qp_type, QpType::UD | QpType::XRC_INI) { 4 } else { 3 }
}

/// Bytes of the longest WQE of a queue, in whole blocks.
fn request_bytes(qp_type: QpType, cap: &QpCap) -> u64 {
    let elements = u64::from(cap.max_send_sge.max(1));
    let inline = match cap.max_inline_data {
        0 => 0,
        bytes => (u64::from(bytes) + 4).div_ceil(16),
    };
    let bind = if matches!(qp_type, QpType::RC | QpType::UC) { 1 + wqe::BIND_SEGMENTS as u64 } else { 0 };
    let segments = (head(qp_type) + elements.max(inline)).max(bind);
    segments.div_ceil(4) * 64
}

fn caps() -> impl Iterator<Item = QpCap> {
    let sends = (0..=9).flat_map(|wr| (0..=14).map(move |sge| (wr, sge)));
    let inlines = [0, 1, 11, 12, 13, 27, 28, 29, 44, 60, 76, 140, 141, 188, 204, 205, 220, u32::MAX - 4];
    sends.flat_map(move |(max_send_wr, max_send_sge)| {
        inlines.into_iter().map(move |max_inline_data| QpCap {
            max_send_wr,
            max_recv_wr: max_send_wr % 6,
            max_send_sge,
            max_recv_sge: max_send_sge % 6,
            max_inline_data,
        })
    })
}

#[test]
fn every_small_send_ring_has_minimal_size() {
    for qp_type in TYPES {
        for cap in caps() {
            let each = request_bytes(qp_type, &cap) / 64;
            let fits = each * 64 <= SMALL.send_bytes.into();
            let blocks = (u64::from(cap.max_send_wr.max(1)) * each).next_power_of_two();
            let fits = fits && blocks <= SMALL.send_blocks.into();
            match Layout::new(qp_type, &cap, 0, true, SMALL) {
                Ok(layout) => {
                    assert!(fits, "{qp_type:?} {cap:?}");
                    assert_eq!(u64::from(layout.send_blocks), blocks);
                    assert_eq!(u64::from(layout.sends), blocks / each);
                    assert_eq!(layout.send_sge, cap.max_send_sge.max(1));
                    // Inline data may fill the longest WQE, except for their header of 4 bytes.
                    assert_eq!(u64::from(layout.inline), each * 64 - head(qp_type) * 16 - 4);
                    assert_eq!((layout.recv_slots, layout.recv_sge, layout.send_offset()), (0, 0, 0));
                    assert_eq!(layout.bytes() as u64, blocks * 64);
                }
                Err(error) => {
                    assert!(!fits, "{qp_type:?} {cap:?}: {error}");
                    check_limit(qp_type, &cap, 0, &error);
                }
            }
        }
    }
}

/// Asserts that the `max` of an error is accepted, and that `max + 1` is rejected.
fn check_limit(qp_type: QpType, cap: &QpCap, header: u16, error: &CreateError) {
    let CreateError::Limit { limit, asked, max } = *error else { panic!("{error}") };
    assert!(max < asked, "{error}");
    let with = |value: u64| {
        let (mut cap, mut header) = (*cap, header);
        let place = match limit {
            Limit::MaxSendSge => &mut cap.max_send_sge,
            Limit::MaxInlineData => &mut cap.max_inline_data,
            Limit::MaxSendWr => &mut cap.max_send_wr,
            Limit::MaxRecvSge => &mut cap.max_recv_sge,
            Limit::MaxRecvWr => &mut cap.max_recv_wr,
            _ => {
                header = value as u16;
                &mut 0
            }
        };
        *place = value as u32;
        Layout::new(qp_type, &cap, header, false, SMALL)
    };
    let names = |layout: &Result<Layout, CreateError>| matches!(layout, Err(CreateError::Limit { limit: named, .. }) if *named == limit);
    assert!(with(max + 1).is_err(), "{qp_type:?} {cap:?}: {error}");
    // The number of blocks is rounded up to a power of 2, so fewer sends may be rejected too.
    if limit != Limit::MaxSendWr {
        assert!(!names(&with(max)), "{qp_type:?} {cap:?}: {error}");
    }
}

#[test]
fn every_small_receive_ring_has_minimal_size() {
    for (max_wr, max_sge) in (0..=6).flat_map(|wr| (0..=6).map(move |sge| (wr, sge))) {
        // SGEs of a slot: a power of 2.
        let elements = max_sge.max(1u32).next_power_of_two();
        let fits = elements * 16 <= SMALL.recv_bytes && max_wr <= SMALL.receives;
        match ReceiveLayout::new(max_wr, max_sge, SMALL) {
            Ok(layout) => {
                assert!(fits, "{max_wr} {max_sge}");
                assert_eq!((layout.sge, 1 << layout.shift), (elements, elements * 16));
                let slots = max_wr.next_power_of_two().max(64 / (elements * 16));
                assert_eq!((layout.slots, layout.bytes() as u32), (slots, slots * elements * 16));
                assert_eq!(1 << layout.log_segments(), elements);
            }
            Err(error) => {
                assert!(!fits, "{max_wr} {max_sge}: {error}");
                let cap = QpCap { max_recv_wr: max_wr.max(1), max_recv_sge: max_sge, ..QpCap::zeroed() };
                check_limit(QpType::RC, &QpCap { max_send_wr: 1, max_inline_data: 0, ..cap }, 0, &error);
            }
        }
    }
}

#[test]
fn receive_ring_precedes_send_ring_and_raw_packet_rings_are_page_aligned() {
    for (qp_type, cap) in TYPES.into_iter().flat_map(|qp_type| caps().map(move |cap| (qp_type, cap))) {
        let Ok(layout) = Layout::new(qp_type, &cap, 0, false, SMALL) else { continue };
        let receives = match cap.max_recv_wr {
            0 => 0,
            wr => ReceiveLayout::new(wr, cap.max_recv_sge, SMALL).unwrap().bytes(),
        };
        let align = if qp_type == QpType::RAW_PACKET { 4096 } else { 64 };
        assert_eq!(layout.send_offset(), receives.next_multiple_of(align));
        assert_eq!(layout.bytes(), layout.send_offset() + layout.send_blocks as usize * 64);
        assert_eq!(layout.rq_wqe_shift(), if receives == 0 { 0 } else { layout.recv_shift });
        assert_eq!(layout.cap().max_recv_wr, layout.recv_slots);
        assert_eq!(layout.cap().max_recv_sge, layout.recv_sge);
        assert_eq!(layout.cap().max_send_wr, layout.sends);
        assert_eq!(layout.cap().max_send_sge, layout.send_sge);
        assert_eq!(layout.cap().max_inline_data, layout.inline);
    }
}

#[test]
fn tso_header_fits_before_max_sges() {
    for (sge, header) in (1..=14).flat_map(|sge| (0..=230).map(move |header| (sge, header))) {
        let cap =
            QpCap { max_send_wr: 1, max_recv_wr: 0, max_send_sge: sge, max_recv_sge: 0, max_inline_data: 0 };
        let plain = request_bytes(QpType::RAW_PACKET, &cap);
        // The control segment, the first 14 bytes of the Ethernet segment, and the header.
        let large = match header {
            0 => 0,
            header => (1 + sge + wqe::header_segments(header as usize) as u32).div_ceil(4) * 64,
        };
        let fits = plain <= SMALL.send_bytes.into() && large <= SMALL.send_bytes;
        match Layout::new(QpType::RAW_PACKET, &cap, header, true, SMALL) {
            Ok(layout) => {
                assert!(fits, "{sge} {header}");
                let each = plain.max(large.into()) / 64;
                assert_eq!(u64::from(layout.send_blocks), each.next_power_of_two());
            }
            Err(error) => {
                assert!(!fits, "{sge} {header}: {error}");
                if plain <= SMALL.send_bytes.into() {
                    check_limit(QpType::RAW_PACKET, &cap, header, &error);
                }
            }
        }
    }
}
