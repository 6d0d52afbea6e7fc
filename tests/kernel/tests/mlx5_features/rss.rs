//! Work queues, and frames spread over them by a hash of their headers (receive-side scaling).

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread::sleep;
use std::time::Duration;

use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::device::{DeviceCapFlags, RawPacketCaps};
use bareverbs::error::{Limit, ObjectClass, PostReason};
use bareverbs::qp::{QueueMemory, RecvRequest, Sge};
use bareverbs::rss::{
    HashFields, HashFunctions, IndirectionTable, RssHash, RssInit, RssQp, TOEPLITZ_KEY, Wq, WqFlags, WqInit,
    WqState,
};
use bareverbs::{Access, Buffer, Error, Mr, Pd, PortNum, Result, WcOpcode, WcStatus};
use bareverbs_kernel_tests::child::{self, drop_privileges};
use bareverbs_kernel_tests::loopback::{contents, domain, region, take};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use rustix::io::Errno;

use crate::raw_packets::{BOB, EXPERIMENT, IPV4, Side, frame, to_bob};

/// Bytes of a receive.
const ROOM: usize = 256;

/// Receives of each queue.
const DEPTH: u64 = 4;

const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The key of Microsoft's published vectors.
const KEY: [u8; TOEPLITZ_KEY] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

const OF_IPV4: HashFields = HashFields::SRC_IPV4.union(HashFields::DST_IPV4);
const OF_IPV6: HashFields = HashFields::SRC_IPV6.union(HashFields::DST_IPV6);
const OF_TCP: HashFields = HashFields::SRC_PORT_TCP.union(HashFields::DST_PORT_TCP);
const OF_UDP: HashFields = HashFields::SRC_PORT_UDP.union(HashFields::DST_PORT_UDP);

/// An IPv4 frame with the start of a TCP segment or UDP datagram.
fn v4(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), protocol: u8) -> Vec<u8> {
    let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
    let addresses = [from.0.octets(), to.0.octets()].concat();
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    frame(BOB, IPV4, &[&ip[..], &addresses, &ports, &[0; 16]].concat())
}

fn v6(from: (&str, u16), to: (&str, u16)) -> Vec<u8> {
    let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    let ip = [0x60, 0, 0, 0, 0, 20, TCP, 64];
    frame(BOB, IPV6, &[&ip[..], &octets(from.0), &octets(to.0), &ports, &[0; 16]].concat())
}

/// Work queues on one CQ, and their receives.
pub(crate) struct Queues {
    wqs: Vec<Wq>,
    cq: Cq,
    memory: Mr<Buffer>,
}

impl Queues {
    fn new(pd: &Pd, count: usize) -> Self {
        Self::in_memory(pd, count, QueueMemory::BasePages)
    }

    fn in_memory(pd: &Pd, count: usize, memory: QueueMemory<'_>) -> Self {
        let cq = pd.context().create_cq(&CqInit::new(256)).unwrap();
        let init = WqInit { memory, ..WqInit::new(&cq, DEPTH as u32) };
        let create = |user_data| pd.create_wq(&WqInit { user_data, ..init }).unwrap();
        let wqs: Vec<_> = (7..7 + count as u64).map(create).collect();
        for (wq, user_data) in wqs.iter().zip(7..) {
            assert_eq!((wq.user_data(), u64::from(wq.capacity())), (user_data, DEPTH));
        }
        let numbers: HashSet<_> = wqs.iter().map(Wq::wq_num).collect();
        assert_eq!(numbers.len(), count, "each has a number of its own");
        assert!(wqs.iter().all(|wq| wq.max_recv_sge() >= init.max_recv_sge));
        let memory = region(pd, &vec![0; count * DEPTH as usize * ROOM], Access::LOCAL_WRITE);
        Self { wqs, cq, memory }
    }

    /// Work queues in RDY, each with its receives.
    fn ready(pd: &Pd, count: usize) -> Self {
        Self::ready_in(pd, count, QueueMemory::BasePages)
    }

    pub(crate) fn ready_in(pd: &Pd, count: usize, memory: QueueMemory<'_>) -> Self {
        let mut queues = Self::in_memory(pd, count, memory);
        for which in 0..count {
            queues.wqs[which].ready().unwrap();
            (0..DEPTH).for_each(|nth| queues.receive(which, nth));
        }
        queues
    }

    pub(crate) fn table(&self) -> IndirectionTable {
        let wqs: Vec<_> = self.wqs.iter().collect();
        self.wqs[0].pd().context().create_indirection_table(&wqs).unwrap()
    }

    fn sge(&self, wr_id: u64) -> Sge {
        self.memory.sge(wr_id as usize * ROOM..(wr_id as usize + 1) * ROOM).unwrap()
    }

    fn receive(&mut self, which: usize, nth: u64) {
        let wr_id = which as u64 * DEPTH + nth;
        let sges = [self.sge(wr_id)];
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { self.wqs[which].post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
    }

    /// The index of the queue that receives the next frame, and its bytes. The receive is posted
    /// again.
    #[track_caller]
    pub(crate) fn next(&mut self) -> (usize, Vec<u8>) {
        let done: WorkCompletion = take(&mut self.cq, 1)[0];
        assert_eq!((done.status, done.opcode), (WcStatus::SUCCESS, WcOpcode::RECV), "{done:?}");
        let start = done.wr_id as usize * ROOM;
        let bytes = contents(&self.memory)[start..start + done.byte_len as usize].to_vec();
        let which = (done.wr_id / DEPTH) as usize;
        self.receive(which, done.wr_id % DEPTH);
        (which, bytes)
    }

    #[track_caller]
    fn nothing_comes(&mut self) {
        sleep(Duration::from_millis(100));
        assert!(self.cq.poll_one().is_none());
    }
}

pub(crate) fn spread(pd: &Pd, table: &IndirectionTable, fields: HashFields) -> Result<RssQp> {
    pd.create_rss_qp(&RssInit { table, hash: RssHash { fields, key: KEY }, user_data: 0 })
}

/// RSS queues for frames to Bob, and their sender in another context.
fn spread_to_bob(count: usize, fields: HashFields) -> (Side, Queues, RssQp) {
    let pd = domain();
    let queues = Queues::ready(&pd, count);
    let mut qp = spread(&pd, &queues.table(), fields).unwrap();
    qp.create_flow(&to_bob()).unwrap();
    assert_eq!(qp.entries(), count);
    (Side::new(&domain()), queues, qp)
}

/// "Verifying the RSS hash calculation" in the documentation of Windows's network drivers.
#[kernel_test(device::work_queues)]
fn rss_matches_the_published_toeplitz_vectors() {
    const QUEUES: usize = 8;
    type Flow = ([u8; 4], u16, [u8; 4], u16, u32, u32);
    // Source and destination, the hash of the addresses, and the hash with the ports.
    let published: [Flow; 5] = [
        ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x323e_8fc2, 0x51cc_c178),
        ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718_262a, 0xc626_b0ea),
        ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0x8298_9176, 0xafc7_327f),
        ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x5d18_09c5, 0x10e8_28a2),
    ];
    let published_v6 = [
        (("3ffe:2501:200:1fff::7", 2794), ("3ffe:2501:200:3::1", 1766), 0x2cc1_8cd5u32, 0x4020_7d3du32),
        (("3ffe:501:8::260:97ff:fe40:efab", 14230), ("ff02::1", 4739), 0x0f0c_461c, 0xdde5_1bbf),
        (
            ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251),
            ("fe80::200:f8ff:fe21:67cf", 38024),
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];
    let expect = |fields: HashFields, frames: &[(Vec<u8>, u32)]| {
        let (mut sender, mut queues, _qp) = spread_to_bob(QUEUES, fields);
        for (frame, hash) in frames {
            sender.send(frame);
            assert_eq!(queues.next(), (*hash as usize % QUEUES, frame.clone()), "{fields:?} {hash:#x}");
        }
    };
    nothing_leaks(|| {
        let of_v4 = |protocol, all: bool| {
            let flow = |&(from, from_port, to, to_port, addresses, ports): &Flow| {
                let frame = v4((from.into(), from_port), (to.into(), to_port), protocol);
                (frame, if all { ports } else { addresses })
            };
            published.iter().map(flow).collect::<Vec<_>>()
        };
        expect(OF_IPV4, &of_v4(TCP, false));
        expect(OF_IPV4 | OF_TCP, &of_v4(TCP, true));
        expect(OF_IPV4 | OF_UDP, &of_v4(UDP, true));
        let of_v6 = |all: bool| {
            let flow = |&(from, to, addresses, ports): &((&str, u16), (&str, u16), u32, u32)| {
                (v6(from, to), if all { ports } else { addresses })
            };
            published_v6.iter().map(flow).collect::<Vec<_>>()
        };
        expect(OF_IPV6, &of_v6(false));
        expect(OF_IPV6 | OF_TCP, &of_v6(true));
    });
}

#[kernel_test(device::work_queues)]
fn rss_delivers_each_flow_to_one_queue_exactly_once() {
    const QUEUES: usize = 4;
    const FLOWS: u16 = 48;
    nothing_leaks(|| {
        let (mut sender, mut queues, qp) = spread_to_bob(QUEUES, OF_IPV4 | OF_UDP);
        let mut homes = HashMap::new();
        for round in 0..3 {
            for flow in 0..FLOWS {
                let (here, there) = (Ipv4Addr::new(10, 9, 8, 1), Ipv4Addr::new(10, 9, 8, 7));
                let bytes = v4((here, 1000 + flow), (there, 7), UDP);
                sender.send(&bytes);
                let (which, came) = queues.next();
                assert_eq!(came, bytes);
                assert_eq!(*homes.entry(flow).or_insert(which), which, "flow {flow} in round {round}");
            }
        }
        queues.nothing_comes();
        let used: HashSet<_> = homes.values().collect();
        assert_eq!(used.len(), QUEUES, "{homes:?}");
        // Frames without a hashed field arrive too.
        let other = frame(BOB, EXPERIMENT, b"neither IP nor UDP");
        sender.send(&other);
        assert_eq!(queues.next().1, other);
        // Its flows are destroyed with the queue pair.
        assert_eq!(qp.destroy().unwrap(), 0);
        sender.send(&other);
        queues.nothing_comes();
    });
}

#[kernel_test(device::work_queues)]
fn rss_with_one_entry_needs_no_hash_fields() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut sender, mut queues) = (Side::new(&domain()), Queues::ready(&pd, 1));
        let hash = RssHash { fields: HashFields::empty(), key: KEY };
        for user_data in [0, 9, u64::MAX] {
            let qp = pd.create_rss_qp(&RssInit { table: &queues.table(), hash, user_data }).unwrap();
            assert_eq!(qp.user_data(), user_data);
        }
        let mut qp = spread(&pd, &queues.table(), HashFields::empty()).unwrap();
        let hello = frame(BOB, EXPERIMENT, b"hello");
        sender.send(&hello);
        queues.nothing_comes();
        let flow = qp.create_flow(&to_bob()).unwrap();
        for _ in 0..3 * DEPTH {
            sender.send(&hello);
            assert_eq!(queues.next(), (0, hello.clone()));
        }
        qp.destroy_flow(flow).unwrap();
        let refused = qp.destroy_flow(flow).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        sender.send(&hello);
        queues.nothing_comes();
    });
}

#[kernel_test(device::work_queues)]
fn rss_work_queues_go_through_their_states() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut sender, mut queues) = (Side::new(&domain()), Queues::new(&pd, 1));
        let mut qp = spread(&pd, &queues.table(), HashFields::empty()).unwrap();
        qp.create_flow(&to_bob()).unwrap();
        let hello = frame(BOB, EXPERIMENT, b"hello");
        for _ in 0..3 {
            let sges = [queues.sge(0)];
            let request = RecvRequest { wr_id: 0, sges: &sges };
            let wq = &mut queues.wqs[0];
            assert_eq!(wq.state(), WqState::RESET);
            // SAFETY: the bytes are only copied.
            let refused = unsafe { wq.post_recv(&[request]) }.unwrap_err();
            assert_eq!((refused.accepted, refused.reason), (0, PostReason::WqState(WqState::RESET)));
            let refused = wq.set_error().unwrap_err();
            assert!(refused.to_string().contains("is in RESET"), "{refused}");
            wq.ready().unwrap();
            let refused = wq.ready().unwrap_err();
            assert!(refused.to_string().contains("is in RDY, not in RESET"), "{refused}");
            (0..DEPTH).for_each(|nth| queues.receive(0, nth));
            sender.send(&hello);
            assert_eq!(queues.next(), (0, hello.clone()));
            // The receive that was posted again is the last.
            let wq = &mut queues.wqs[0];
            wq.set_error().unwrap();
            assert_eq!(wq.state(), WqState::ERR);
            // SAFETY: the bytes are only copied, and the region outlives the work queue.
            let refused = unsafe { wq.post_recv(&[request]) }.unwrap_err();
            assert!(refused.to_string().contains("the WQ is in ERR"), "{refused}");
            let flushed: Vec<_> =
                take(&mut queues.cq, DEPTH as usize).iter().map(|done| (done.wr_id, done.status)).collect();
            assert_eq!(flushed, [1, 2, 3, 0].map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR)));
            sender.send(&hello);
            queues.nothing_comes();
            let wq = &mut queues.wqs[0];
            assert!(wq.ready().is_err());
            wq.reset().unwrap();
        }
        // From RDY with posted receives, which are discarded.
        let wq = &mut queues.wqs[0];
        wq.ready().unwrap();
        queues.receive(0, 0);
        queues.wqs[0].reset().unwrap();
        queues.nothing_comes();
    });
}

#[kernel_test(device::work_queues)]
fn rss_failed_work_queues_recover_by_reset() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut sender, mut queues) = (Side::new(&domain()), Queues::new(&pd, 1));
        let mut qp = spread(&pd, &queues.table(), HashFields::empty()).unwrap();
        qp.create_flow(&to_bob()).unwrap();
        queues.wqs[0].ready().unwrap();
        let good = queues.sge(0);
        for (wr_id, lkey) in [(0, good.lkey ^ 0xff00), (1, good.lkey)] {
            let sges = [Sge { lkey, ..good }];
            // SAFETY: the memory is only copied from, after the completion.
            unsafe { queues.wqs[0].post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
        }
        let hello = frame(BOB, EXPERIMENT, b"hello");
        sender.send(&hello);
        let ends: Vec<_> = take(&mut queues.cq, 2).iter().map(|done| (done.wr_id, done.status)).collect();
        assert_eq!(ends, [(0, WcStatus::LOC_PROT_ERR), (1, WcStatus::WR_FLUSH_ERR)]);
        queues.wqs[0].reset().unwrap();
        queues.wqs[0].ready().unwrap();
        queues.receive(0, 0);
        sender.send(&hello);
        assert_eq!(queues.next(), (0, hello));
    });
}

#[kernel_test(device::work_queues)]
fn rss_work_queues_strip_vlan_tags() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut sender, mut queues) = (Side::new(&domain()), Queues::ready(&pd, 1));
        let mut qp = spread(&pd, &queues.table(), HashFields::empty()).unwrap();
        qp.create_flow(&to_bob()).unwrap();
        let tagged = frame(BOB, VLAN, &[&[0x20, 5, 0x88, 0xb5], &[9; 60][..]].concat());
        let bare = [&tagged[..12], &tagged[16..]].concat();
        for strip in [false, true, false] {
            queues.wqs[0].set_cvlan_stripping(strip).unwrap();
            sender.send(&tagged);
            assert_eq!(queues.next().1, if strip { &bare } else { &tagged }[..], "{strip}");
        }
        // With the flag set at creation.
        drop((qp, queues));
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let init = WqInit { flags: WqFlags::CVLAN_STRIPPING, ..WqInit::new(&cq, 4) };
        let memory = region(&pd, &[0; 4 * ROOM], Access::LOCAL_WRITE);
        let mut queues = Queues { wqs: vec![pd.create_wq(&init).unwrap()], cq, memory };
        queues.wqs[0].ready().unwrap();
        queues.receive(0, 0);
        let mut qp = spread(&pd, &queues.table(), HashFields::empty()).unwrap();
        qp.create_flow(&to_bob()).unwrap();
        sender.send(&tagged);
        assert_eq!(queues.next().1, bare);
    });
}

#[kernel_test(device::work_queues)]
fn rss_objects_drop_in_any_order() {
    nothing_leaks(|| {
        let (mut sender, mut queues, qp) = spread_to_bob(2, OF_IPV4);
        let context = qp.pd().context().clone();
        let held = || {
            let count = |class| context.object_count(class).unwrap();
            (count(ObjectClass::WQ), count(ObjectClass::RWQ_IND_TBL))
        };
        assert_eq!(held(), (2, 1));
        let hello = frame(BOB, EXPERIMENT, b"hello");
        // The table keeps the queues alive, and their posted receives stay valid.
        for wq in queues.wqs.drain(..) {
            let refused = wq.destroy().unwrap_err();
            assert!(refused.to_string().contains("tables still use it"), "{refused}");
        }
        assert_eq!(held(), (2, 1));
        for _ in 0..DEPTH {
            sender.send(&hello);
            let done = take(&mut queues.cq, 1)[0];
            assert_eq!((done.status, done.byte_len as usize), (WcStatus::SUCCESS, hello.len()));
        }
        sender.send(&hello);
        queues.nothing_comes();
        // The CQ is dropped before the work queues that use it.
        drop(queues.cq);
        drop(qp);
        assert_eq!(held(), (0, 0));

        let queues = Queues::ready(&context.alloc_pd().unwrap(), 2);
        let table = queues.table();
        let qp = spread(queues.wqs[0].pd(), &table, OF_IPV4).unwrap();
        let refused = table.destroy().unwrap_err();
        assert!(refused.to_string().contains("QPs still use it"), "{refused}");
        assert_eq!(refused.object.entries(), 2, "the table is returned");
        drop(refused);
        assert_eq!(held(), (2, 1));
        drop(qp);
        assert_eq!(held(), (2, 0));
        let table = queues.table();
        assert_eq!(table.entries(), 2);
        table.destroy().unwrap();
        for wq in queues.wqs {
            assert_eq!(wq.destroy().unwrap(), 0);
        }
        assert_eq!(held(), (0, 0));
    });
}

#[kernel_test(device::work_queues)]
fn rss_invalid_arguments_are_rejected() {
    nothing_leaks(|| {
        let (pd, other) = (domain(), domain());
        let (queues, foreign) = (Queues::new(&pd, 2), Queues::new(&other, 1));
        let context = pd.context();
        let attr = context.query_device().unwrap();
        let held = || {
            let count = |class| context.object_count(class).unwrap();
            (count(ObjectClass::WQ), count(ObjectClass::RWQ_IND_TBL), count(ObjectClass::QP))
        };

        let wq = |change: fn(&mut WqInit<'_>)| {
            let mut init = WqInit::new(&queues.cq, 4);
            change(&mut init);
            pd.create_wq(&init).map(drop).unwrap_err()
        };
        let refused = wq(|init| init.max_recv_wr = 0);
        assert!(refused.to_string().contains("at least 1 receive"), "{refused}");
        let refused = wq(|init| init.max_recv_wr = u32::MAX);
        assert!(matches!(refused, Error::Limit { limit: Limit::MaxRecvWr, .. }), "{refused}");
        let refused = wq(|init| init.max_recv_sge = u32::MAX);
        assert!(matches!(refused, Error::Limit { limit: Limit::MaxRecvSge, .. }), "{refused}");
        let offered = |cap| attr.raw_packet_caps.contains(cap);
        for (flags, offered) in [
            (WqFlags::SCATTER_FCS, offered(RawPacketCaps::SCATTER_FCS)),
            (WqFlags::DELAY_DROP, offered(RawPacketCaps::DELAY_DROP)),
            (
                WqFlags::PCI_WRITE_END_PADDING,
                attr.device_cap_flags.contains(DeviceCapFlags::PCI_WRITE_END_PADDING),
            ),
        ] {
            let made = pd.create_wq(&WqInit { flags, ..WqInit::new(&queues.cq, 4) }).map(drop);
            match made {
                Ok(()) => assert!(offered, "{flags:?}"),
                Err(refused) => {
                    assert!(!offered && matches!(refused, Error::Unsupported { .. }), "{flags:?}: {refused}");
                }
            }
        }
        let refused = wq(|init| init.flags = WqFlags::from_bits_retain(1 << 30));
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let refused = pd.create_wq(&WqInit::new(&foreign.cq, 4)).map(drop).unwrap_err();
        assert!(refused.to_string().contains("CQ belongs to another context"), "{refused}");

        let [one, two] = &queues.wqs[..] else { panic!("two queues") };
        let table = |wqs: &[&Wq]| context.create_indirection_table(wqs).map(drop).unwrap_err();
        for count in [0, 3] {
            let refused = table(&[one; 3][..count]);
            assert!(refused.to_string().contains(&format!("not {count}")), "{refused}");
        }
        let most = attr.max_rwq_indirection_table_size as usize;
        let refused = table(&vec![one; (most + 1).next_power_of_two()]);
        assert!(matches!(refused, Error::Limit { .. }), "{refused}");
        let refused = table(&[one, &foreign.wqs[0]]);
        assert!(refused.to_string().contains("WQ belongs to another context"), "{refused}");
        // The longest table, with queues in several entries.
        let longest: Vec<_> = (0..most).map(|entry| if entry % 2 == 0 { one } else { two }).collect();
        assert_eq!(context.create_indirection_table(&longest).unwrap().entries(), most);

        let table = queues.table();
        let refused = |fields| spread(&pd, &table, fields).map(drop).unwrap_err();
        for fields in [HashFields::empty(), OF_IPV4 | OF_IPV6, OF_TCP | OF_UDP] {
            let refused = refused(fields);
            assert!(matches!(refused, Error::Invalid { verb: "create_qp", .. }), "{refused}");
        }
        for fields in [HashFields::IPSEC_SPI, HashFields::from_bits_retain(1 << 40)] {
            if !attr.rx_hash_fields_mask.contains(fields) {
                let refused = refused(fields);
                assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            }
        }
        // The driver reports it, but the device does not support it.
        if let Err(refused) = spread(&pd, &table, OF_IPV4 | HashFields::INNER) {
            assert!(refused.to_string().contains("omit INNER"), "{refused}");
        }
        let refused = spread(&other, &table, OF_IPV4).map(drop).unwrap_err();
        assert!(refused.to_string().contains("belongs to another context"), "{refused}");
        let mut qp = spread(&pd, &table, OF_IPV4).unwrap();
        let refused =
            qp.create_flow(&bareverbs::flow::FlowRule { port: PortNum(9), ..to_bob() }).unwrap_err();
        assert!(matches!(refused, Error::NoPort { .. }), "{refused}");
        drop((qp, table));
        assert_eq!(held(), (2, 0, 0), "of what was refused nothing is left");
    });
}

#[kernel_test(device::work_queues)]
fn rss_requires_cap_net_raw() {
    nothing_leaks(|| {
        child::run(|| {
            let context = bareverbs_kernel_tests::device::open();
            drop_privileges();
            let pd = context.alloc_pd().unwrap();
            let queues = Queues::ready(&pd, 2);
            let refused = spread(&pd, &queues.table(), OF_IPV4).map(drop).unwrap_err();
            assert_eq!(refused.errno(), Some(Errno::PERM), "{refused}");
            assert!(refused.to_string().contains("CAP_NET_RAW"), "{refused}");
        });
    });
}

#[kernel_test(device::work_queues)]
fn rss_limits_are_reported() {
    let attr = domain().context().query_device().unwrap();
    assert!(attr.max_rwq_indirection_tables > 0 && attr.max_rwq_indirection_table_size > 1, "{attr:?}");
    assert!(attr.max_wq_type_rq > 0, "{attr:?}");
    assert!(attr.rx_hash_function.contains(HashFunctions::TOEPLITZ), "{attr:?}");
    assert!(attr.rx_hash_fields_mask.contains(OF_IPV4 | OF_IPV6 | OF_TCP | OF_UDP), "{attr:?}");
}

#[kernel_test(device::no_work_queues)]
fn rss_is_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let refused = pd.create_wq(&WqInit::new(&cq, 4)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { verb: "create_wq", .. }), "{refused}");
        assert!(refused.to_string().contains("WQs are not supported"), "{refused}");
        let refused = pd.context().create_indirection_table(&[]).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("indirection tables are not supported"), "{refused}");
        let attr = pd.context().query_device().unwrap();
        assert_eq!((attr.max_wq_type_rq, attr.rx_hash_function), (0, HashFunctions::empty()));
    });
}
