//! The plan of a run: what the options of the command line resolve to.

mod conflict;

use std::time::Duration;

use bareverbs::Access;
use bareverbs::values::{AckTimeout, Mtu};

use super::order::Order;
use crate::cli::perf::choice::{AtomicType, Connection, Measure, Verb};
use crate::cli::perf::mix::Kind;
use crate::cli::perf::{Perf, PerfOptions};

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    /// After this many messages of each queue pair.
    Messages(u64),
    /// After `total`; without the `margin` at each end, it is measured.
    Time { total: Duration, margin: Duration },
}

/// The resolved options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) options: &'a PerfOptions,
    pub(crate) verb: Verb,
    pub(crate) measure: Measure,
    pub(crate) length: Length,
    /// The sizes to run, in order.
    pub(crate) sizes: Vec<u32>,
    pub(crate) num_qp: u32,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    /// The requests per signalled one. See [`Plan::cq_mod_of`].
    pub(crate) cq_mod: u32,
    pub(crate) timeout: AckTimeout,
    /// Whether this side connects to the other one.
    pub(crate) client: bool,
    /// The kinds of messages of `--mix`, and their weights.
    pub(crate) mix: Vec<(Kind, u32)>,
}

/// The depths of the queues of a run with messages of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) receive: u32,
}

/// The time without a completion after which a run has stalled, beside that of its large messages.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_STALL: Duration = Duration::from_secs(60);
/// The slowest path for which a run waits, in bytes per second.
const SLOWEST: u64 = 1 << 20;
/// Sizes above this have a completion for each message by default.
const CQ_MOD_LIMIT: u32 = 8192;
const RX_DEPTH: u32 = 512;
/// Default receives of a transport without RNR NAK, which drops messages that find no receive.
const RX_DEPTH_UNRELIABLE: u32 = 16000;
const LARGEST: u32 = 8 << 20;
/// Bytes of the messages of a queue pair in one direction that `--verify` compares.
const VERIFY_BUFFER: u32 = 4 << 20;

impl<'a> Plan<'a> {
    /// The plan of a command line.
    pub(crate) fn new(perf: &'a Perf) -> Result<Self, String> {
        let (verb, measure, options) = perf.parts();
        conflict::check(verb, measure, options)?;
        let bandwidth = measure == Measure::Bandwidth;
        let iters = options.iters.unwrap_or(match (verb, measure) {
            (Verb::Write | Verb::WriteImm, Measure::Bandwidth) => 5000,
            _ => 1000,
        });
        let length = length(iters, options)?;
        let most = match length {
            Length::Messages(_) => iters,
            Length::Time { .. } => u32::MAX,
        };
        let sizes = match (verb, options.all) {
            (Verb::Atomic, _) => vec![Verb::ATOMIC_SIZE],
            (_, true) => (1..=LARGEST.ilog2()).map(|bits| 1 << bits).collect(),
            (_, false) => vec![options.size.unwrap_or(if bandwidth { 65536 } else { 2 })],
        };
        let mix = options.mix.as_ref().map(|mix| mix.kinds(verb, sizes[0])).unwrap_or_default();
        conflict::check_mix(verb, options, &mix)?;
        let sizes = mix.iter().map(|(kind, _)| kind.size).max().map_or(sizes, |largest| vec![largest]);
        let plan = Self {
            options,
            verb,
            measure,
            length,
            num_qp: options.num_qp,
            tx_depth: if bandwidth { options.tx_depth.unwrap_or(128).min(most) } else { 1 },
            rx_depth: rx_depth(verb, measure, most, options),
            cq_mod: if bandwidth { cq_mod(sizes[0], options) } else { 1 },
            sizes,
            timeout: AckTimeout::new(options.qp_timeout).ok_or("the timeout (-u) is above 31")?,
            client: options.host.is_some(),
            mix,
        };
        conflict::check_list(&plan, iters)?;
        // With fewer signalled requests, a full send queue would have none.
        let cq_mod = plan.cq_mod.min(plan.tx_depth / options.post_list * options.post_list);
        Ok(Self { cq_mod, ..plan })
    }

    /// The option that needs a peer of this program, if any was given.
    pub(crate) fn needs_bareverbs(&self) -> Option<&'static str> {
        let mixed = self.verbs().any(|verb| verb != self.verb);
        let option = self.options.verify.then_some("--verify");
        option.or(mixed.then_some("--mix of several operations"))
    }

    /// The queue pairs of each thread.
    pub(crate) fn shares(&self) -> impl Iterator<Item = std::ops::Range<u32>> {
        let (threads, count) = (u64::from(self.options.threads), u64::from(self.num_qp));
        let start = move |thread: u64| (thread * count / threads) as u32;
        (0..threads).map(move |thread| start(thread)..start(thread + 1))
    }

    /// The operations of the run.
    pub(crate) fn verbs(&self) -> impl Iterator<Item = Verb> {
        let base = self.mix.is_empty().then_some(self.verb);
        self.mix.iter().map(|(kind, _)| kind.verb).chain(base)
    }

    /// The messages of a run of this size, in order.
    pub(crate) fn order(&self, size: u32) -> Order {
        if self.mix.is_empty() {
            return Order::single(Kind { verb: self.verb, size });
        }
        Order::weighted(&self.mix)
    }

    /// The depths of the queues: with `--verify`, as many messages as have memory of their own.
    pub(crate) fn depths(&self, size: u32) -> Depths {
        let limit = if self.options.verify { (VERIFY_BUFFER / size.max(64)).max(1) } else { u32::MAX };
        Depths { send: self.tx_depth.min(limit), receive: self.rx_depth.min(limit) }
    }

    /// The requests per signalled one in a run with messages of a size. With all sizes (`-a`), each
    /// large message is signalled: the default number of them takes longer than the stall timeout.
    pub(crate) fn cq_mod_of(&self, size: u32) -> u32 {
        let chosen = self.options.cq_mod.is_some() || self.options.events;
        let each = if chosen || size <= CQ_MOD_LIMIT {
            self.cq_mod
        } else {
            self.cq_mod.min(self.options.post_list)
        };
        let list = self.options.post_list;
        each.min(self.depths(size).send / list * list)
    }

    /// The time without a completion after which a run with messages of a size has stalled. Large
    /// messages take a while on a slow path.
    pub(crate) fn stall_timeout(&self, size: u32) -> Duration {
        let directions = if self.bidirectional() { 2 } else { 1 };
        let messages = u64::from(self.cq_mod_of(size)) * u64::from(self.num_qp) * directions;
        let bytes = messages.saturating_mul(size.into());
        (STALL_TIMEOUT + Duration::from_secs(bytes / SLOWEST)).min(LONGEST_STALL)
    }

    pub(crate) fn is_client(&self) -> bool {
        self.client
    }

    /// Whether this side sends requests. In a latency test, both sides are set up alike.
    pub(crate) fn requests(&self) -> bool {
        self.client || self.bidirectional() || self.measure == Measure::Latency
    }

    /// Whether this side executes the peer's requests.
    pub(crate) fn responds(&self) -> bool {
        !self.client || self.bidirectional() || self.measure == Measure::Latency
    }

    /// Whether the queue pairs of a thread receive into an SRQ.
    pub(crate) fn shares_receives(&self) -> bool {
        self.options.srq || self.verb.consumes_receives() && self.options.connection == Connection::Xrc
    }

    pub(crate) fn bidirectional(&self) -> bool {
        self.options.bidirectional
    }

    pub(crate) fn datagrams(&self) -> bool {
        self.options.connection == Connection::Ud
    }

    /// The kind of the atomic operations, if there are any.
    pub(crate) fn atomic_type(&self) -> Option<AtomicType> {
        let atomics = self.verbs().any(|verb| verb == Verb::Atomic);
        atomics.then(|| self.options.atomic_type.unwrap_or_default())
    }

    /// What the peer may do with the memory of this side.
    pub(crate) fn remote_access(&self) -> Access {
        self.verbs().fold(Access::empty(), |access, verb| {
            access
                | match verb {
                    Verb::Send => Access::empty(),
                    Verb::Write | Verb::WriteImm => Access::REMOTE_WRITE,
                    Verb::Read => Access::REMOTE_READ,
                    Verb::Atomic => Access::REMOTE_ATOMIC,
                }
        })
    }

    /// Whether there are operations of which a device limits how many are outstanding.
    pub(crate) fn has_responses(&self) -> bool {
        self.verbs().any(|verb| matches!(verb, Verb::Read | Verb::Atomic))
    }

    /// The largest size of a message.
    pub(crate) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Limits the messages to datagrams of one packet, if the transport has only these.
    pub(crate) fn limit_to(&mut self, mtu: Mtu) -> Result<(), String> {
        if !self.datagrams() || self.largest() <= mtu.bytes() {
            return Ok(());
        }
        match (self.options.all, self.options.size) {
            (true, _) => self.sizes.retain(|&size| size <= mtu.bytes()),
            (false, None) => self.sizes = vec![mtu.bytes()],
            (false, Some(size)) => {
                return Err(format!("a datagram of {size} bytes (-s) exceeds the MTU of {mtu} bytes"));
            }
        }
        Ok(())
    }

    /// What both sides must have in common, as words.
    pub(crate) fn settings(&self, form: &str) -> Vec<String> {
        let options = self.options;
        let mut words = vec![
            format!("op={}", self.verb.name()),
            format!("test={}", self.measure.name()),
            format!("-c={}", options.connection),
            format!("-q={}", self.num_qp),
            format!("-b={}", options.bidirectional),
            format!("--report_gbits={}", options.report_gbits),
            format!("address={form}"),
        ];
        words.push(match options.all {
            true => "-a".into(),
            false => format!("-s={}", self.largest()),
        });
        // A server that only serves memory does not count.
        let passive = self.measure == Measure::Bandwidth && !options.bidirectional
            || matches!(self.verb, Verb::Read | Verb::Atomic);
        if let Some(mix) = &options.mix {
            words.push(format!("--mix={mix}"));
        }
        if options.mcg {
            words.push("-g".into());
        }
        if options.verify {
            words.extend([
                "--verify".into(),
                format!("-t={}", self.tx_depth),
                format!("-r={}", self.rx_depth),
            ]);
        }
        if self.verb.consumes_receives() || !passive {
            words.push(match self.length {
                Length::Messages(messages) => format!("-n={messages}"),
                Length::Time { total, .. } => format!("-D={}", total.as_secs_f64()),
            });
        }
        words
    }
}

/// When a run ends. `iters`: the messages of each queue pair, unless it is timed.
fn length(iters: u32, options: &PerfOptions) -> Result<Length, String> {
    let Some(total) = options.duration else { return Ok(Length::Messages(iters.into())) };
    let margin = options.margin.unwrap_or(total / 4.0);
    let (total, margin) = (Duration::from_secs_f64(total), Duration::from_secs_f64(margin));
    if total <= 2 * margin {
        return Err("the duration (-D) must exceed twice the margin (-f)".into());
    }
    Ok(Length::Time { total, margin })
}

/// The receives of a queue pair. `most`: the messages of the run, or `u32::MAX`.
fn rx_depth(verb: Verb, measure: Measure, most: u32, options: &PerfOptions) -> u32 {
    match (verb.consumes_receives(), options.connection, options.rx_depth) {
        (false, ..) => 0,
        (true, _, Some(depth)) => depth,
        (true, connection, None) if connection.is_reliable() => RX_DEPTH.min(most),
        (true, _, None) if measure == Measure::Bandwidth && most != u32::MAX => most.min(RX_DEPTH_UNRELIABLE),
        (true, _, None) => RX_DEPTH.min(most),
    }
}

/// The requests per signalled one in a bandwidth test.
fn cq_mod(size: u32, options: &PerfOptions) -> u32 {
    let (list, datagrams) = (options.post_list, options.connection == Connection::Ud);
    match options.cq_mod {
        Some(cq_mod) => cq_mod,
        // Each latency is measured, and each message is compared when it completes.
        None if options.rate.is_some() || options.mix.is_some() || options.verify => list,
        None if list > 1 => list,
        None if size > CQ_MOD_LIMIT && !datagrams && !options.events => 1,
        None => 100,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::perf::PerfCommand;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn perf(line: &str) -> Perf {
        let words = ["bareverbs", "perf"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).command {
            Command::Perf(PerfCommand::Benchmark(perf)) => perf,
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn defaults_are_perftests() {
        for (line, size, iters, tx, rx, cq_mod) in [
            ("write bw", 65536, 5000, 128, 0, 1),
            ("read bw", 65536, 1000, 128, 0, 1),
            ("send bw", 65536, 1000, 128, 512, 1),
            ("send bw -s 4096", 4096, 1000, 128, 512, 100),
            ("send bw -n 10", 65536, 10, 10, 10, 1),
            ("atomic bw", 8, 1000, 128, 0, 100),
            ("write bw -s 8 -t 16", 8, 5000, 16, 0, 16),
            ("write bw -s 8 -l 20 -t 50", 8, 5000, 50, 0, 20),
            ("send lat", 2, 1000, 1, 512, 1),
            ("write lat", 2, 1000, 1, 0, 1),
            ("atomic lat", 8, 1000, 1, 0, 1),
        ] {
            let perf = perf(line);
            let plan = Plan::new(&perf).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(plan.sizes, [size], "{line}");
            assert_eq!(plan.length, Length::Messages(iters), "{line}");
            assert_eq!((plan.tx_depth, plan.rx_depth, plan.cq_mod), (tx, rx, cq_mod), "{line}");
        }
    }

    #[test]
    fn large_messages_are_signalled_and_have_time() {
        for (line, size, cq_mod, seconds) in [
            ("write bw -a -b", 4096, 100, 10),
            ("write bw -a -b", 16384, 1, 10),
            ("write bw -a -b", 8 << 20, 1, 26),
            ("write bw -a -l 20", 8 << 20, 20, 60),
            ("write bw -a -Q 4", 8 << 20, 4, 42),
            ("write bw -s 8388608 -e", 8 << 20, 100, 60),
            ("write bw -s 8388608 -q 2", 8 << 20, 1, 26),
            ("write bw -q 2000", 65536, 1, 60),
            ("write lat -s 8388608", 8 << 20, 1, 18),
        ] {
            let perf = perf(line);
            let plan = Plan::new(&perf).unwrap();
            let found = (plan.cq_mod_of(size), plan.stall_timeout(size));
            assert_eq!(found, (cq_mod, Duration::from_secs(seconds)), "{line}");
        }
    }

    #[test]
    fn every_option_of_perftest_is_accepted() {
        let perf = perf(
            "send bw -d rxe0 -i 1 -x 1 -s 64 -n 100 -q 2 -t 16 -r 32 -b -e -c UC -F -p 4711 -m 1024 -S 3 -u 14 -I 16 \
             -Q 5 -l 10 10.1.0.1",
        );
        let plan = Plan::new(&perf).unwrap();
        assert!(plan.is_client() && plan.bidirectional());
        assert_eq!((plan.num_qp, plan.tx_depth, plan.rx_depth, plan.cq_mod), (2, 16, 32, 5));
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        for (line, words) in [
            ("write bw --tclass 256", "must be between 0 and 255"),
            ("write bw --flow-label 1,0x100000", "must be between 0 and 1048575"),
            ("write bw --pkey-index 65536", "must be between 0 and 65535"),
            ("atomic bw -A SWAP", "possible values: FETCH_AND_ADD, CMP_AND_SWAP"),
            ("send bw -g -M 10.1.0.1", "::ffff:10.1.0.1 is not a multicast address"),
            ("send bw -g -M fe80::1", "fe80::1 is not a multicast address"),
            ("send bw -g -M 255:1:0:0:0:2:201:133:0:0:0:0:0:0:0", "16 numbers from 0 to 255"),
            ("send bw -g -M 255:1:0:0:0:2:201:133:0:0:0:0:0:0:0:256", "16 numbers from 0 to 255"),
            ("send bw -M 239.1.1.1", "--mcg"),
        ] {
            let words_of_line = ["bareverbs", "perf"].into_iter().chain(line.split_whitespace());
            let error = Cli::try_parse_from(words_of_line).unwrap_err().to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }

    #[test]
    fn multicast_is_over_ud_and_takes_the_groups_of_perftest() {
        for (group, expected) in [
            ("239.1.2.3", "::ffff:239.1.2.3"),
            ("ff02::7", "ff02::7"),
            ("0xff:1:0:0:0:2:201:133:0:0:0:0:0:0:0:07", "ff01:0:2:c985::7"),
            ("0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3", "::ffff:239.1.2.3"),
        ] {
            let perf = perf(&format!("send lat -g -M {group}"));
            let plan = Plan::new(&perf).unwrap();
            assert!(plan.datagrams() && plan.settings("gid").contains(&"-g".to_owned()), "{plan:?}");
            assert_eq!(plan.options.mgid.unwrap().to_string(), expected);
        }
        assert!(!Plan::new(&perf("send lat")).unwrap().datagrams());
    }

    #[test]
    fn atomics_of_a_mix_have_the_type() {
        let perf = perf("write bw --mix write:1,atomic:1 -A CMP_AND_SWAP");
        assert_eq!(Plan::new(&perf).unwrap().atomic_type(), Some(AtomicType::CmpAndSwap));
    }

    #[test]
    fn expectations_are_parsed() {
        let perf = perf("write lat --expect p99<5us --expect max<=1ms --junit /tmp/x.xml");
        assert_eq!(Plan::new(&perf).unwrap().options.expect.len(), 2);
        let words = ["bareverbs", "perf", "write", "lat", "--expect", "p98<5us"];
        let error = Cli::try_parse_from(words).unwrap_err().to_string();
        assert!(error.contains("there is no figure \"p98\""), "{error}");
    }

    #[test]
    fn all_sizes_are_perftests() {
        let perf = perf("write bw -a");
        let sizes = Plan::new(&perf).unwrap().sizes;
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
    }

    #[test]
    fn duration_has_a_margin_of_a_quarter() {
        let margin = |line: &str| match Plan::new(&perf(line)).map(|plan| plan.length) {
            Ok(Length::Time { total, margin }) => Ok((total.as_millis(), margin.as_millis())),
            Ok(other) => panic!("{line} gives {other:?}"),
            Err(message) => Err(message),
        };
        assert_eq!(margin("read bw -D 10"), Ok((10_000, 2500)));
        assert_eq!(margin("read bw -D 2 -f 0.5"), Ok((2000, 500)));
        assert!(margin("read bw -D 2 -f 1").unwrap_err().contains("twice the margin"));
    }

    #[test]
    fn contradictions_are_named() {
        for (line, words) in [
            ("write lat -q 2", "-q is for bandwidth tests only"),
            ("send lat -b", "-b is for bandwidth tests only"),
            ("read bw -c UC", "UC has no read operation"),
            ("write bw -c ud", "UD has no write operation"),
            ("atomic bw -s 16", "atomic operations have 8 bytes"),
            ("write bw -a -s 8", "-a runs all sizes"),
            ("write bw -D 5 -n 10", "excludes -n and -a"),
            ("write bw -f 1", "needs a duration"),
            ("write bw -D 0", "measures nothing"),
            ("write bw -l 200", "exceed the send queue"),
            ("write bw -l 3 -n 100", "must be a multiple"),
            ("write lat -e", "polls memory"),
            ("write lat --rate 10k", "--rate is for bandwidth tests only"),
            ("write bw --rate 1k -l 4", "omit -l"),
            ("write bw --threads 4 -q 3", "need as many queue pairs"),
            ("read bw --srq", "consumes no receives"),
            ("write bw --mix 8:1,send:1", "can't be mixed"),
            ("write bw --mix atomic/16:1", "atomic operations have 8 bytes"),
            ("write bw --mix 8:1 -a", "omit -a"),
            ("write bw -c uc --mix read:1,write:1", "UC has no read"),
            ("write bw --verify --mix read:1,write:1", "one operation"),
            ("write-imm bw -c uc --verify", "--verify of write-imm bw needs RC or XRC"),
            ("write lat --verify -s 1", "needs 2 bytes"),
            ("write bw --verify -l 100", "exceed the send queue with --verify"),
            ("write bw --verify -Q 4", "omit -Q"),
            ("write bw --all-to-all a,b", "both directions"),
            ("write bw -A CMP_AND_SWAP", "-A is for atomic"),
            ("send bw --cm -c ud", "--cm is for RC"),
            ("send bw -R --clients 2", "--cm is for one peer"),
            ("send bw --cm -m 1024", "the connection manager chooses the path"),
            ("send bw --cm -x 0", "the connection manager chooses the path"),
            ("send bw --cm -S 1", "the connection manager chooses the path"),
            ("send bw --cm --tclass 0", "the connection manager chooses the path"),
            ("send bw --cm --flow-label 0", "the connection manager chooses the path"),
            ("send bw --cm --pkey-index 0", "the connection manager chooses the path"),
            ("send lat -A FETCH_AND_ADD", "-A is for atomic"),
            ("write bw -g", "-g is for send"),
            ("send bw -g -R", "omit --cm"),
            ("send bw -g -c rc", "-g is for UD"),
            ("send bw -g -b", "-g has one direction"),
            ("send bw -g -q 2", "-g has one queue pair"),
            ("send bw -g --clients 2", "-g is for one peer"),
            ("write bw --dma-buf --odp", "omit --odp and --huge-pages"),
            ("send lat --dma-buf --huge-pages", "omit --odp and --huge-pages"),
            ("write lat --dma-buf", "a dma-buf is not mapped"),
        ] {
            let message = Plan::new(&perf(line)).expect_err(line);
            assert!(message.contains(words), "{line}: {message}");
        }
    }

    #[test]
    fn mix_decides_the_size_and_the_operations() {
        let perf = perf("write bw --mix write/64:3,read/4096:1");
        let plan = Plan::new(&perf).unwrap();
        assert_eq!((plan.largest(), plan.cq_mod), (4096, 1));
        assert_eq!(plan.verbs().collect::<Vec<_>>(), [Verb::Write, Verb::Read]);
        assert_eq!(plan.order(4096).kinds()[1], Kind { verb: Verb::Read, size: 4096 });
        assert!(plan.settings("gid").contains(&"--mix=write/64:3,read/4096:1".to_owned()));
    }

    #[test]
    fn sides_of_xrc_have_requesters_and_targets_where_perftest_has() {
        for (line, requests, responds, shares) in [
            ("send bw -c XRC a", true, false, true),
            ("send bw -c XRC", false, true, true),
            ("write bw -c xrc", false, true, false),
            ("write bw -c xrc -b a", true, true, false),
            ("write-imm lat --transport xrc", true, true, true),
            ("read lat -c xrc a", true, true, false),
        ] {
            let perf = perf(line);
            let plan = Plan::new(&perf).unwrap_or_else(|error| panic!("{line}: {error}"));
            let found = (plan.requests(), plan.responds(), plan.shares_receives());
            assert_eq!(found, (requests, responds, shares), "{line}");
        }
        let perf = perf("send bw -c xrc --verify");
        assert_eq!(Plan::new(&perf).unwrap().rx_depth, 512);
    }

    #[test]
    fn threads_share_all_queue_pairs() {
        let perf = perf("write bw -q 8 --threads 3");
        assert_eq!(Plan::new(&perf).unwrap().shares().collect::<Vec<_>>(), [0..2, 2..5, 5..8]);
    }

    #[test]
    fn verified_messages_have_memory_of_their_own() {
        let perf = perf("write bw --verify -a");
        let plan = Plan::new(&perf).unwrap();
        assert_eq!(plan.depths(64), Depths { send: 128, receive: 0 });
        assert_eq!(plan.depths(1 << 20).send, 4);
        assert_eq!(plan.depths(8 << 20).send, 1);
    }

    #[test]
    fn datagrams_are_limited_to_the_mtu() {
        let limited = |line: &str| {
            let perf = perf(line);
            let mut plan = Plan::new(&perf).unwrap();
            plan.limit_to(Mtu::Mtu1024).map(|()| plan.sizes)
        };
        assert_eq!(limited("send bw -c ud"), Ok(vec![1024]));
        assert_eq!(limited("send bw -c ud -a").unwrap().last(), Some(&1024));
        assert!(limited("send bw -c ud -s 4096").unwrap_err().contains("exceeds the MTU"));
        assert_eq!(limited("send bw"), Ok(vec![65536]));
    }

    #[test]
    fn settings_have_what_both_sides_need() {
        let settings = |line: &str| Plan::new(&perf(line)).unwrap().settings("gid").join(" ");
        assert!(settings("send bw -n 10").ends_with("address=gid -s=65536 -n=10"));
        assert!(!settings("write bw -n 10").contains("-n="));
        assert!(settings("write bw -b -n 10").contains("-n=10"));
        assert!(settings("write lat -D 2").contains("-D=2"));
        assert_eq!(settings("send bw -n 10"), settings("send bw -n 10 10.1.0.1"));
    }
}
