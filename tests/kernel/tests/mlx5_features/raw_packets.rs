//! Raw frames, and the flows that steer them to queue pairs.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::cq::{Completion as _, Cq, CqInit, WorkCompletion};
use bareverbs::device::{DeviceCapFlags, RawPacketCaps};
use bareverbs::error::Feature;
use bareverbs::flow::{EthernetMatch, FlowCount, FlowRule, Ipv4Match, Ipv6Match, L4Match, PortMatch};
use bareverbs::qp::{
    Frame, Payload, Qp, QpCap, QpCreateFlags, QpInit, QpState, RateLimit, RawPacket, RecvRequest, SendFlags,
    SendRequest,
};
use bareverbs::values::MacAddress;
use bareverbs::{Access, Buffer, Error, Mr, Pd, PortNum, WcOpcode, WcStatus};
use bareverbs_kernel_tests::child::{self, drop_privileges};
use bareverbs_kernel_tests::loopback::{contents, domain, region, take};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};
use rustix::io::Errno;

pub(crate) const ALICE: MacAddress = MacAddress([2, 0, 0, 0, 0, 0xa]);
/// A multicast address: unicast addresses other than the port's lead to the wire.
pub(crate) const BOB: MacAddress = MacAddress([3, 0, 0, 0, 0, 0xb]);

/// The EtherType of local experiments (IEEE 802).
pub(crate) const EXPERIMENT: u16 = 0x88b5;

pub(crate) const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Bytes of a receive.
const ROOM: usize = 256;

pub(crate) fn frame(to: MacAddress, ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [&to.0[..], &ALICE.0, &ether_type.to_be_bytes(), payload].concat();
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

pub(crate) struct Side {
    pub(crate) qp: Qp<RawPacket>,
    pub(crate) cq: Cq,
    memory: Mr<Buffer>,
}

impl Side {
    pub(crate) fn new(pd: &Pd) -> Self {
        Self::cutting(pd, 0)
    }

    /// A side with TSO, for headers of at most `max_tso_header` bytes.
    pub(crate) fn cutting(pd: &Pd, max_tso_header: u16) -> Self {
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let cap = QpCap { max_inline_data: 128, max_send_sge: 3, ..QpCap::default() };
        let init = QpInit { cap, max_tso_header, ..QpInit::new(&cq, &cq) };
        let qp = pd.create_qp::<RawPacket>(&init).unwrap();
        Self::of(pd, qp, cq)
    }

    /// A side of this queue pair in RESET, which completes on `cq`.
    pub(crate) fn of(pd: &Pd, mut qp: Qp<RawPacket>, cq: Cq) -> Self {
        assert_eq!(qp.state(), QpState::RESET);
        qp.init(1).unwrap();
        qp.ready_to_receive().unwrap();
        qp.ready_to_send().unwrap();
        Self { qp, cq, memory: region(pd, &[0; 4 * ROOM], Access::LOCAL_WRITE) }
    }

    pub(crate) fn receive(&mut self, wr_id: u64) {
        let start = wr_id as usize % 4 * ROOM;
        let sges = [self.memory.sge(start..start + ROOM).unwrap()];
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { self.qp.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
    }

    /// The bytes of the next frame.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Vec<u8> {
        let done: WorkCompletion = take(&mut self.cq, 1)[0];
        assert_eq!((done.status, done.opcode), (WcStatus::SUCCESS, WcOpcode::RECV), "{done:?}");
        let start = done.wr_id as usize % 4 * ROOM;
        contents(&self.memory)[start..start + done.byte_len as usize].to_vec()
    }

    #[track_caller]
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let mut batch = self.qp.start_send();
        batch.send_frame_inline(9, frame, SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        self.sent();
    }

    #[track_caller]
    fn sent(&mut self) {
        let done = take(&mut self.cq, 1)[0];
        assert_eq!((done.wr_id, done.status, done.opcode), (9, WcStatus::SUCCESS, WcOpcode::SEND));
    }

    fn nothing_comes(&mut self) {
        sleep(Duration::from_millis(100));
        assert!(self.cq.poll_one().is_none());
    }
}

/// Two sides in different contexts: a context does not receive its own frames.
fn sides() -> (Side, Side) {
    (Side::new(&domain()), Side::new(&domain()))
}

pub(crate) fn to_bob() -> FlowRule<'static> {
    FlowRule::new(1, EthernetMatch { dst_mac: Some(BOB), ..EthernetMatch::default() })
}

#[kernel_test(device::raw_packets)]
fn flow_steers_frames_to_its_qp() {
    nothing_leaks(|| {
        let (mut a, mut b) = sides();
        (0..4).for_each(|wr_id| b.receive(wr_id));
        let hello = frame(BOB, EXPERIMENT, b"hello");
        a.send(&hello);
        b.nothing_comes();
        let flow = b.qp.create_flow(&to_bob()).unwrap();
        a.send(&hello);
        assert_eq!(b.next(), hello);
        a.send(&frame(ALICE, EXPERIMENT, b"to somebody else"));
        // From several SGEs, some of them in registered memory.
        let parts = region(a.qp.pd(), &frame(BOB, EXPERIMENT, b"gathered"), Access::empty());
        let sges = [parts.sge(18..20).unwrap(), parts.sge(20..).unwrap()];
        let whole = contents(&parts);
        let operation = Frame { header: &whole[..18], ..Frame::default() };
        let payload = Payload::Sges(&sges);
        let request = SendRequest { wr_id: 9, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the region outlives the completion.
        unsafe { a.qp.post_send(&[request]) }.unwrap();
        a.sent();
        assert_eq!(b.next(), contents(&parts));
        // From several inline parts of any length.
        let bytes = frame(BOB, EXPERIMENT, &[7; 40]);
        for cuts in [[0, 5], [3, 18], [18, 19], [17, 60], [20, 40]] {
            let [one, two] = cuts;
            let parts = [&bytes[..one], &bytes[one..two], &bytes[two..]];
            let (operation, payload) = (Frame::default(), Payload::Inline(&parts));
            let request = SendRequest { wr_id: 9, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: the request has only inline data.
            unsafe { a.qp.post_send(&[request]) }.unwrap();
            a.sent();
            b.receive(0);
            assert_eq!(b.next(), bytes, "{cuts:?}");
        }
        b.qp.destroy_flow(flow).unwrap();
        let refused = b.qp.destroy_flow(flow).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        a.send(&hello);
        b.nothing_comes();
        // Flows are destroyed with their queue pair.
        b.qp.create_flow(&to_bob()).unwrap();
    });
}

#[kernel_test(device::raw_packets)]
fn raw_packets_keep_to_their_rate() {
    /// Frames of 125 bytes are 1000 bits: one each millisecond at 1000 kbit/s.
    const FRAME: usize = 125;
    const RATE: RateLimit = RateLimit { rate: 1000, max_burst: 0, typical_packet: 0 };
    nothing_leaks(|| {
        let mut side = Side::new(&domain());
        let bytes = frame(BOB, EXPERIMENT, &[7; FRAME - 14]);
        let mut time = |limit: &RateLimit, count: usize| {
            side.qp.set_rate_limit(limit).unwrap();
            let begin = Instant::now();
            let mut batch = side.qp.start_send();
            for _ in 0..count {
                batch.send_frame_inline(9, &bytes, SendFlags::SIGNALED).unwrap();
            }
            batch.ring().unwrap();
            take(&mut side.cq, count);
            begin.elapsed()
        };
        // The first frame waits for nothing.
        let paced = time(&RATE, 16);
        assert!(paced >= Duration::from_millis(15), "{paced:?}");
        let slower = time(&RateLimit { rate: 250, ..RATE }, 16);
        assert!(slower >= Duration::from_millis(60), "{slower:?}");
        let burst = time(&RateLimit { rate: 10, max_burst: 16 * FRAME as u32, typical_packet: 125 }, 16);
        assert!(burst < Duration::from_millis(1600), "16 frames at 10 kbit/s: {burst:?}");
        let free = time(&RateLimit::default(), 16);
        assert!(free < slower, "{free:?} without a limit, {slower:?} with one");
    });
}

#[kernel_test(device::raw_packets)]
fn flows_match_by_headers() {
    nothing_leaks(|| {
        let ((mut a, mut b), mut c) = (sides(), Side::new(&domain()));
        let l4 = |port| Some(L4Match::Udp(PortMatch { dst_port: Some(port), ..PortMatch::default() }));
        let ipv4 = Some(Ipv4Match { dst_ip: Some(Ipv4Addr::new(10, 9, 8, 7)), ..Ipv4Match::default() });
        b.qp.create_flow(&FlowRule { ipv4, l4: l4(1000), ..to_bob() }).unwrap();
        c.qp.create_flow(&FlowRule { ipv4, l4: l4(1001), ..to_bob() }).unwrap();
        for side in [&mut b, &mut c] {
            side.receive(0);
            side.receive(1);
        }
        let (to_b, to_c, to_none) = (datagram(1000), datagram(1001), datagram(1002));
        a.send(&to_none);
        a.send(&to_c);
        a.send(&to_b);
        assert_eq!((b.next(), c.next()), (to_b, to_c));
        for side in [&mut b, &mut c] {
            side.nothing_comes();
        }
    });
}

/// A UDP datagram to 10.9.8.7 without checksums.
/// A UDP datagram over IPv6 to port 4791 of `::1`.
fn datagram_v6() -> Vec<u8> {
    let head = [&[0x60, 0, 0, 0, 0, 8, 17, 64][..], &[0; 16], &Ipv6Addr::LOCALHOST.octets()].concat();
    frame(BOB, IPV6, &[&head[..], &[0x12, 0x34, 0x12, 0xb7, 0, 8, 0, 0]].concat())
}

/// A frame with VLAN tag `id` and the payload of another frame.
fn tagged(id: u16, frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &id.to_be_bytes(), &frame[12..]].concat()
}

#[kernel_test(device::raw_packets)]
fn flows_match_vlan_tos_protocol_and_ipv6() {
    nothing_leaks(|| {
        let (mut a, mut b) = sides();
        let mut marked = datagram(4791);
        marked[15] = 0x2e;
        let other = datagram(4791);
        let v6 = datagram_v6();
        let ethernet = to_bob().ethernet.unwrap();
        let vlan = |id| EthernetMatch { vlan: Some(id), ..ethernet };
        let ipv4 = |tos, protocol| Some(Ipv4Match { tos, protocol, ..Ipv4Match::default() });
        let ipv6 = |dst_ip, next_header| Some(Ipv6Match { dst_ip, next_header, ..Ipv6Match::default() });
        let local = Some(Ipv6Addr::LOCALHOST);
        let port = Some(L4Match::Udp(PortMatch { dst_port: Some(4791), ..PortMatch::default() }));
        let (tag_5, tag_6) = (tagged(5, &other), tagged(6, &other));
        for (rule, hit, miss) in [
            (FlowRule::new(1, vlan(5)), &tag_5, &tag_6),
            (FlowRule { ipv4: ipv4(Some(0x2e), None), ..to_bob() }, &marked, &other),
            (FlowRule { ipv4: ipv4(None, Some(17)), ..to_bob() }, &other, &v6),
            (FlowRule { ipv6: ipv6(local, None), ..to_bob() }, &v6, &other),
            (FlowRule { ipv6: ipv6(None, Some(17)), ..to_bob() }, &v6, &other),
            (FlowRule { ipv6: ipv6(None, None), l4: port, ..to_bob() }, &v6, &other),
        ] {
            let flow = b.qp.create_flow(&rule).unwrap();
            (0..2).for_each(|wr_id| b.receive(wr_id));
            a.send(miss);
            a.send(hit);
            assert_eq!(b.next(), *hit, "{rule:?}");
            b.nothing_comes();
            b.qp.destroy_flow(flow).unwrap();
            let any = b.qp.create_flow(&to_bob()).unwrap();
            a.send(miss);
            assert_eq!(b.next(), *miss);
            b.qp.destroy_flow(any).unwrap();
        }
        let absent = FlowRule { ipv6: ipv6(Some(Ipv6Addr::UNSPECIFIED), None), ..to_bob() };
        b.qp.create_flow(&absent).unwrap();
        b.receive(0);
        a.send(&v6);
        b.nothing_comes();
    });
}

#[kernel_test(device::raw_packets)]
fn drop_flow_discards_frames_before_other_flows() {
    nothing_leaks(|| {
        let (mut a, mut b) = sides();
        (0..2).for_each(|wr_id| b.receive(wr_id));
        // mlx5_ib gives rules for multicast addresses the lowest priority.
        b.qp.create_flow(&to_bob()).unwrap();
        let ethernet = EthernetMatch { ether_type: Some(EXPERIMENT), ..EthernetMatch::default() };
        let rule = FlowRule::new(1, ethernet);
        let dropping = b.qp.create_flow(&FlowRule { drop: true, ..rule }).unwrap();
        let (experiment, other) = (frame(BOB, EXPERIMENT, b"dropped"), frame(BOB, EXPERIMENT + 1, b"kept"));
        a.send(&experiment);
        a.send(&other);
        assert_eq!(b.next(), other);
        b.nothing_comes();
        b.qp.destroy_flow(dropping).unwrap();
        a.send(&experiment);
        assert_eq!(b.next(), experiment);
    });
}

#[kernel_test(device::raw_packets)]
fn flow_counters_count_frames_of_their_flows() {
    nothing_leaks(|| {
        let (mut a, mut b) = sides();
        let counters = b.qp.pd().context().create_flow_counters().unwrap();
        let unused = counters.read().unwrap_err();
        assert!(matches!(unused, Error::Invalid { verb: "read_counters", .. }), "{unused}");
        let of = |ether_type| {
            let ethernet = EthernetMatch { ether_type: Some(ether_type), ..EthernetMatch::default() };
            FlowRule::new(1, EthernetMatch { dst_mac: Some(BOB), ..ethernet })
        };
        let (short, long) = (frame(BOB, EXPERIMENT, &[1; 60]), frame(BOB, EXPERIMENT + 1, &[2; 100]));
        let bytes = |frames: &[&Vec<u8>]| frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        let first = b.qp.create_counted_flow(&of(EXPERIMENT), &counters).unwrap();
        assert_eq!(counters.read().unwrap(), FlowCount::default());
        b.receive(0);
        a.send(&long);
        for _ in 0..3 {
            a.send(&short);
        }
        assert_eq!(b.next(), short);
        b.nothing_comes();
        // Frames without a receive count, too.
        let count = counters.read().unwrap();
        assert_eq!((count.packets, count.bytes), (3, bytes(&[&short; 3])));
        // A second flow with the same counters, which drops its frames.
        let dropping = FlowRule { drop: true, ..of(EXPERIMENT + 1) };
        let second = b.qp.create_counted_flow(&dropping, &counters).unwrap();
        b.receive(0);
        a.send(&long);
        b.nothing_comes();
        b.qp.destroy_flow(first).unwrap();
        // No flow matches it.
        a.send(&short);
        a.send(&long);
        let count = counters.read().unwrap();
        assert_eq!((count.packets, count.bytes), (5, bytes(&[&short, &short, &short, &long, &long])));
        // The first flow after the last one describes the counters again.
        b.qp.destroy_flow(second).unwrap();
        counters.read().unwrap_err();
        b.qp.create_counted_flow(&of(EXPERIMENT), &counters).unwrap();
        a.send(&short);
        assert_eq!(b.next(), short);
        assert_eq!(counters.read().unwrap().packets, 6);
        let foreign = a.qp.create_counted_flow(&to_bob(), &counters).unwrap_err();
        assert!(matches!(foreign, Error::Invalid { verb: "create_flow", .. }), "{foreign}");
        // The flow keeps its counters.
        let refused = counters.destroy().unwrap_err();
        assert!(matches!(refused.error, Error::Invalid { verb: "destroy_counters", .. }), "{refused}");
        drop(refused);
        a.send(&short);
        b.nothing_comes();
        a.qp.pd().context().create_flow_counters().unwrap().destroy().unwrap();
    });
}

#[kernel_test(device::rxe_abi)]
fn flow_counters_are_unsupported_without_the_driver() {
    nothing_leaks(|| {
        let refused = bareverbs_kernel_tests::device::open().create_flow_counters().unwrap_err();
        assert!(matches!(refused, Error::Unsupported { feature: Feature::FlowCounters, .. }), "{refused}");
    });
}

fn datagram(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    let ip = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 8, 1, 10, 9, 8, 7];
    let udp = [0, 7, high, low, 0, 12, 0, 0, b'd', b'a', b't', b'a'];
    frame(BOB, IPV4, &[&ip[..], &udp].concat())
}

#[kernel_test(device::raw_packets)]
fn device_computes_checksums() {
    nothing_leaks(|| {
        let (mut a, mut b) = sides();
        b.qp.create_flow(&to_bob()).unwrap();
        b.receive(0);
        let bytes = datagram(7);
        let (operation, payload) =
            (Frame { checksums: true, ..Frame::default() }, Payload::Inline(&[&bytes]));
        let request = SendRequest { wr_id: 9, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the request has only inline data.
        unsafe { a.qp.post_send(&[request]) }.unwrap();
        a.sent();
        let came = b.next();
        assert_ne!(came[40..42], [0, 0]);
        // The checksum covers the addresses, the protocol, the length, and the whole datagram.
        let summed = [&came[26..34], &[0, 17, 0, 12], &came[34..46]].concat();
        let words = summed.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{came:x?}");
    });
}

#[kernel_test(device::raw_packets)]
fn raw_packet_queues_wrap_and_restart_after_reset() {
    nothing_leaks(|| {
        let (mut a, mut b) = sides();
        b.qp.create_flow(&to_bob()).unwrap();
        for round in 0..100u8 {
            b.receive(round.into());
            let bytes = frame(BOB, EXPERIMENT, &[round; 70]);
            a.send(&bytes);
            assert_eq!(b.next(), bytes);
        }
        for side in [&mut a, &mut b] {
            side.qp.reset().unwrap();
            side.qp.init(1).unwrap();
            side.qp.ready_to_receive().unwrap();
            side.qp.ready_to_send().unwrap();
        }
        b.receive(1);
        let again = frame(BOB, EXPERIMENT, b"again");
        a.send(&again);
        assert_eq!(b.next(), again);
    });
}

#[kernel_test(device::raw_packets)]
fn invalid_flow_rules_are_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = Side::new(&pd);
        let l4 = Some(L4Match::Tcp(PortMatch::default()));
        let refused = side.qp.create_flow(&FlowRule { l4, ..to_bob() }).unwrap_err();
        assert!(refused.to_string().contains("set `ipv4`"), "{refused}");
        let refused = side.qp.create_flow(&FlowRule { port: PortNum(9), ..to_bob() }).unwrap_err();
        assert!(matches!(refused, Error::NoPort { .. }), "{refused}");
        // The highest priority number of mlx5_ib is `MLX5_IB_FLOW_LAST_PRIO`, 8.
        let refused = side.qp.create_flow(&FlowRule { priority: u16::MAX, ..to_bob() }).unwrap_err();
        assert!(refused.errno().is_some(), "the kernel refuses it: {refused}");
        assert!(refused.to_string().contains("ex::CreateFlow"), "{refused}");
        let refused = side.qp.init(1).unwrap_err();
        assert!(refused.to_string().contains("is in RTS, not in RESET"), "{refused}");
        let mut batch = side.qp.start_send();
        let refused = batch.send_frame_inline(1, &[0; 2000], SendFlags::empty()).unwrap_err();
        assert!(refused.to_string().contains("2000"), "{refused}");
        let operation = Frame { header: &[0; 19], ..Frame::default() };
        let (flags, payload) = (SendFlags::empty(), Payload::Sges(&[]));
        // SAFETY: the request has no SGEs.
        let refused =
            unsafe { batch.push(&SendRequest { wr_id: 1, operation, flags, payload }) }.unwrap_err();
        assert!(refused.to_string().contains("an inline header of more than 18 bytes"), "{refused}");
    });
}

#[kernel_test(device::raw_packets)]
fn raw_packet_qp_requires_cap_net_raw() {
    nothing_leaks(|| {
        child::run(|| {
            let context = bareverbs_kernel_tests::device::open();
            drop_privileges();
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(&CqInit::new(4)).unwrap();
            let refused = pd.create_qp::<RawPacket>(&QpInit::new(&cq, &cq)).map(drop).unwrap_err();
            assert_eq!(refused.errno(), Some(Errno::PERM), "{refused}");
            assert!(refused.to_string().contains("CAP_NET_RAW"), "{refused}");
        });
    });
}

#[kernel_test(device::no_raw_packets)]
fn raw_packets_are_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let refused = pd.create_qp::<RawPacket>(&QpInit::new(&cq, &cq)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("raw packet QPs are not supported"), "{refused}");
    });
}

/// A side that receives frames to [`BOB`] by a QP with these creation flags.
fn flagged(flags: QpCreateFlags) -> Side {
    let pd = domain();
    let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
    let qp = pd.create_qp::<RawPacket>(&QpInit { flags, ..QpInit::new(&cq, &cq) }).unwrap();
    let mut side = Side::of(&pd, qp, cq);
    side.qp.create_flow(&to_bob()).unwrap();
    side
}

/// The stripped VLAN tag and the bytes of the next frame.
#[track_caller]
fn next_with_tag(side: &mut Side) -> (Option<u16>, Vec<u8>) {
    let begin = Instant::now();
    loop {
        if let Some(done) = side.cq.poll().next() {
            assert_eq!((done.status(), done.opcode()), (WcStatus::SUCCESS, WcOpcode::RECV));
            let start = done.wr_id() as usize % 4 * ROOM;
            let bytes = contents(&side.memory)[start..start + done.byte_len() as usize].to_vec();
            return (done.cvlan(), bytes);
        }
        assert!(begin.elapsed() < TIMEOUT, "no frame");
    }
}

#[kernel_test(device::raw_packets)]
fn cvlan_stripping_qp_moves_the_tag_to_the_completion() {
    nothing_leaks(|| {
        let mut sender = Side::new(&domain());
        let bare = frame(BOB, EXPERIMENT, &[9; 60]);
        let with = tagged(0x2005, &bare);
        for (flags, expected) in
            [(QpCreateFlags::empty(), (None, &with)), (QpCreateFlags::CVLAN_STRIPPING, (Some(0x2005), &bare))]
        {
            let mut side = flagged(flags);
            (0..2).for_each(|wr_id| side.receive(wr_id));
            sender.send(&with);
            let (tag, bytes) = next_with_tag(&mut side);
            assert_eq!((tag, &bytes), expected, "{flags:?}");
            sender.send(&bare);
            assert_eq!(next_with_tag(&mut side), (None, bare.clone()), "{flags:?}");
        }
    });
}

/// The FCS of a frame on the wire: the CRC-32 of IEEE 802.3, least significant byte first.
fn fcs(frame: &[u8]) -> [u8; 4] {
    let step = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 };
    let crc = frame.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step));
    (!crc).to_le_bytes()
}

#[kernel_test(device::raw_packets)]
fn scatter_fcs_qp_receives_the_fcs_behind_the_frame() {
    nothing_leaks(|| {
        let mut sender = Side::new(&domain());
        let bare = frame(BOB, EXPERIMENT, &[9; 60]);
        let with = tagged(7, &bare);
        for bytes in [frame(BOB, EXPERIMENT, b"short"), frame(BOB, EXPERIMENT, &[5; 101]), with.clone()] {
            let mut side = flagged(QpCreateFlags::SCATTER_FCS);
            side.receive(0);
            sender.send(&bytes);
            assert_eq!(side.next(), [&bytes[..], &fcs(&bytes)].concat());
        }
        // The FCS of the frame as it was on the wire, behind the frame without its tag.
        let mut side = flagged(QpCreateFlags::SCATTER_FCS | QpCreateFlags::CVLAN_STRIPPING);
        side.receive(0);
        sender.send(&with);
        assert_eq!(next_with_tag(&mut side), (Some(7), [&bare[..], &fcs(&with)].concat()));
    });
}

#[kernel_test(device::raw_packets)]
fn end_padding_qp_receives_whole_frames() {
    nothing_leaks(|| {
        let mut sender = Side::new(&domain());
        let attr = sender.qp.pd().context().query_device().unwrap();
        assert!(attr.device_cap_flags.contains(DeviceCapFlags::PCI_WRITE_END_PADDING));
        let mut side = flagged(QpCreateFlags::PCI_WRITE_END_PADDING);
        // Not a multiple of a cache line. Padding may write up to the next line, never beyond the
        // receive's memory.
        let bytes = frame(BOB, EXPERIMENT, &[6; 101]);
        for wr_id in 0..4 {
            side.receive(wr_id);
            sender.send(&bytes);
            assert_eq!(side.next(), bytes);
        }
    });
}

#[kernel_test(device::raw_packets)]
fn creation_flags_that_the_device_reports_create_raw_packet_qps() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let attr = pd.context().query_device().unwrap();
        let caps = attr.raw_packet_caps;
        for (flags, reported) in [
            (QpCreateFlags::CVLAN_STRIPPING, caps.contains(RawPacketCaps::CVLAN_STRIPPING)),
            (QpCreateFlags::SCATTER_FCS, caps.contains(RawPacketCaps::SCATTER_FCS)),
            (
                QpCreateFlags::PCI_WRITE_END_PADDING,
                attr.device_cap_flags.contains(DeviceCapFlags::PCI_WRITE_END_PADDING),
            ),
        ] {
            let made = pd.create_qp::<RawPacket>(&QpInit { flags, ..QpInit::new(&cq, &cq) }).map(drop);
            assert!(reported, "the software ConnectX reports {flags:?}");
            made.unwrap_or_else(|refused| panic!("{flags:?}: {refused}"));
        }
    });
}
