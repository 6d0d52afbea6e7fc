//! The same seed gives the same packets, completions and events.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::process::Command;
use std::sync::Mutex;

use bareverbs_transport::{Fault, SplitMix64};
use proptest::prelude::*;

use super::*;

/// The address of the peers' memory in packets. That of the process differs between processes.
const IOVA: u64 = 0x10_0000;

/// Asks a process for the hash of a seed.
const VARIABLE: &str = "BAREVERBS_SEED";

/// What was captured.
#[derive(Clone, Default)]
struct Packets(Arc<Mutex<Vec<u8>>>);

impl Write for Packets {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a run of a program has shown.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Trace {
    packets: Vec<u8>,
    /// Completions, events and times.
    log: Vec<String>,
    faults: Vec<u64>,
}

impl Trace {
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }
}

/// A connection of a random program.
struct Connection {
    qp: Qp,
    ty: QpType,
    /// Of UD.
    ah: u32,
    peer: u32,
}

/// A random program on two devices.
struct Program {
    fabric: Fabric,
    random: SplitMix64,
    peers: [Peer; 2],
    remotes: [u32; 2],
    connections: Vec<[Connection; 2]>,
    srq: RxeRq<Memory>,
    next: u64,
    log: Vec<String>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let fabric = Fabric::seeded(seed);
        let peers = [2, 3].map(|last| Peer::new(&fabric, last, 1024));
        let remotes = peers.each_ref().map(|peer| {
            let attr = MrAttr {
                pd: PD,
                start: peer.start(),
                length: MEMORY as u64,
                iova: IOVA,
                access: all_rights(),
            };
            peer.with(|engine| engine.register(attr.prepare()?)).unwrap().rkey
        });
        let [a, b] = &peers;
        let (srq, ring) = b.with(|engine| engine.create_srq(PD, 16, 4, 2, b.sink())).unwrap();
        // SAFETY: the ring is that of the SRQ, and this is its only producer.
        let queue = unsafe { RxeRq::new(Memory(ring), 16, 4) }.unwrap();
        let mut connections = Vec::new();
        for (ty, srq) in [(QpType::RC, None), (QpType::RC, Some(srq)), (QpType::UC, None), (QpType::UD, None)]
        {
            let (qa, qb) = (a.qp(ty), b.qp_of(QpInit { srq, ..b.init(ty) }));
            let numbers = [qa.qpn, qb.qpn];
            for (peer, qp, to) in [(a, &qa, (3, qb.qpn)), (b, &qb, (2, qa.qpn))] {
                peer.connect_with(qp, &QpAttributes { rnr_retry: 3, ..peer.attributes(to) });
            }
            let sides = [(a, qa, 3, numbers[1]), (b, qb, 2, numbers[0])];
            connections.push(sides.map(|(peer, qp, last, number)| {
                let ah = peer.with(|engine| engine.create_ah(PD, av(last))).unwrap();
                Connection { qp, ty, ah, peer: number }
            }));
        }
        let random = SplitMix64::new(seed ^ 0x5eed);
        Self { fabric, random, peers, remotes, connections, srq: queue, next: 0, log: Vec::new() }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn send(&mut self) {
        let (which, side) = (self.below(self.connections.len() as u64) as usize, self.below(2) as usize);
        let (at, length) = (self.below(1 << 18) as usize, 1 + self.below(5000) as usize);
        let kind = self.below(5);
        let remote = Remote { addr: IOVA + (1 << 19) + at as u64 / 8 * 8, rkey: self.remotes[1 - side] };
        self.next += 1;
        let Connection { qp, ty, ah, peer } = &mut self.connections[which][side];
        let ty = *ty;
        let length = if ty == QpType::UD { length.min(MTU as usize) } else { length };
        let (flags, sges) = (SendFlags::SIGNALED, [self.peers[side].sge(at, length)]);
        let payload = Payload::Sges(&sges);
        // SAFETY: the memory of requests outlives the program.
        let pushed = unsafe {
            if ty == QpType::UD {
                let ah = RxeAh { number: *ah };
                let operation = Datagram { ah: &ah, qp_num: *peer, qkey: QKEY, imm: None, header: &[] };
                qp.sq.push_datagram(&SendRequest { wr_id: self.next, operation, flags, payload }).is_ok()
            } else {
                let operation = match kind {
                    0 | 1 => Operation::Send,
                    2 if ty == QpType::RC => Operation::Read(remote),
                    _ => Operation::Write(remote),
                };
                qp.sq.push(&SendRequest { wr_id: self.next, operation, flags, payload }).is_ok()
            }
        };
        let rung = pushed && qp.sq.ring().is_ok();
        self.log.push(format!("send {which} {side} {rung}"));
    }

    fn receive(&mut self) {
        let (which, side) = (self.below(self.connections.len() as u64) as usize, self.below(2) as usize);
        let at = (1 << 19) + self.below(1 << 18) as usize;
        self.next += 1;
        let request = RecvRequest { wr_id: self.next, sges: &[self.peers[side].sge(at, 6000)] };
        let queue = self.connections[which][side].qp.rq.as_mut().unwrap_or(&mut self.srq);
        // SAFETY: the memory of requests outlives the program.
        let pushed = unsafe { queue.push(&request) }.is_ok();
        queue.ring();
        self.log.push(format!("receive {which} {side} {pushed}"));
    }

    fn observe(&mut self) {
        for (side, peer) in self.peers.iter_mut().enumerate() {
            while let Some(done) = peer.poll() {
                let WorkCompletion { wr_id, status, opcode, byte_len, qp_num, .. } = done;
                self.log.push(format!("{side}: {wr_id} {status:?} {opcode:?} {byte_len} {qp_num}"));
            }
            self.log.extend(peer.events().iter().map(|event| format!("{side}: {event:?}")));
        }
        self.log.push(format!("{:?}", self.fabric.now()));
    }

    fn run(mut self, steps: u32) -> Trace {
        let packets = Packets::default();
        self.fabric.capture(packets.clone()).unwrap();
        let faults = [
            Fault::drop(),
            Fault::duplicate(),
            Fault::reorder(),
            Fault::jitter(Duration::from_micros(300)),
            Fault::corrupt(),
            Fault::rnr(),
        ];
        let faults = faults.map(|fault| self.fabric.inject(fault.probability(0.02)));
        for _ in 0..steps {
            match self.below(8) {
                0..=2 => self.send(),
                3 | 4 => self.receive(),
                5 => {
                    for _ in 0..self.below(20) {
                        self.fabric.step();
                    }
                }
                6 => self.fabric.run_until_idle(),
                _ => {
                    let time = Duration::from_micros(self.below(20_000));
                    self.fabric.advance(time);
                }
            }
            self.observe();
        }
        self.fabric.advance(Duration::from_secs(5));
        self.observe();
        let packets = packets.0.lock().unwrap().clone();
        Trace { packets, log: self.log, faults: faults.map(|fault| fault.count()).to_vec() }
    }
}

fn trace(seed: u64) -> Trace {
    Program::new(seed).run(150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn same_seed_gives_the_same_packets_completions_and_events(seed: u64) {
        let (one, other) = (trace(seed), trace(seed));
        prop_assert!(one == other, "seed {seed}");
    }
}

#[test]
fn seeds_give_different_packets_and_all_faults_happen() {
    let traces = [1, 2, 3].map(trace);
    assert_ne!(traces[0].packets, traces[1].packets);
    assert_ne!(traces[1].packets, traces[2].packets);
    let affected = (0..6).map(|which| traces.iter().map(|trace| trace.faults[which]).sum::<u64>());
    assert_eq!(affected.filter(|count| *count == 0).count(), 0, "{:?}", traces.map(|trace| trace.faults));
}

/// Prints the hash for a parent process. Nothing without one.
#[test]
fn hash_of_a_seed_is_printed_for_a_parent() {
    if let Some(seed) = std::env::var(VARIABLE).ok().and_then(|seed| seed.parse().ok()) {
        println!("hash {}", trace(seed).hash());
    }
}

#[test]
fn same_seed_gives_the_same_trace_in_another_process() {
    for seed in [4, u64::MAX] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "engine::tests::seeded::hash_of_a_seed_is_printed_for_a_parent",
            "--nocapture",
        ]);
        let output = child.env(VARIABLE, seed.to_string()).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let expected = format!("hash {}", trace(seed).hash());
        assert!(output.contains(&expected), "seed {seed}: {expected}\n{output}");
    }
}

#[test]
fn qp_that_ends_after_its_last_completion_has_acknowledged_it() {
    let ends: [fn(&mut Engine, u32); 3] = [
        |engine, qpn| engine.destroy_qp(qpn),
        |engine, qpn| engine.modify_qp(qpn, State::Error, QpAttributes::default()),
        |engine, qpn| engine.modify_qp(qpn, State::Reset, QpAttributes::default()),
    ];
    for (seed, end) in ends.into_iter().cycle().take(30).enumerate() {
        let fabric = Fabric::seeded(seed as u64);
        let [mut a, mut b] = [2, 3].map(|last| Peer::new(&fabric, last, 16));
        let (mut qa, mut qb) = (a.qp(QpType::RC), b.qp(QpType::RC));
        a.connect(&qa, (3, qb.qpn));
        b.connect(&qb, (2, qa.qpn));
        qb.receive(1, &[b.sge(0, 100)]);
        qa.post(2, Operation::Send, &[a.sge(0, 100)]);
        while b.poll().is_none() {
            assert!(fabric.step(), "the message arrives");
        }
        b.with(|engine| end(engine, qb.qpn));
        fabric.run_until_idle();
        assert_eq!(a.drain(), [(2, WcStatus::SUCCESS)]);
    }
}
