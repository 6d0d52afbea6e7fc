//! Random verbs from a seed. Each has exactly one outcome, success or failure.

mod connected;
mod failing;
mod objects;
mod requests;

use fastrand::Rng;

use crate::model::Model;
use crate::op::{Id, Op};

/// The optional capabilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// FLUSH.
    pub flush: bool,
    /// ATOMIC_WRITE.
    pub atomic_write: bool,
    /// Whether packets are lost: only RC, which repeats them, messages with a receive, and no failing
    /// requests.
    pub lossy: bool,
}

/// How many times a generator tries to find a possible verb before it settles.
const TRIES: usize = 60;

/// Generates verbs.
#[derive(Debug)]
pub struct Generator {
    rng: Rng,
    capabilities: Capabilities,
    next_id: Id,
    next_wr: u64,
}

/// A kind of verb: its weight, and a function that generates one if that is possible.
type OpKind = (u32, fn(&mut Generator, &Model) -> Option<Op>);

const OP_KINDS: [OpKind; 20] = [
    (2, Generator::alloc_pd),
    (1, Generator::dealloc_pd),
    (4, Generator::make_cq),
    (6, Generator::resize_cq),
    (1, Generator::destroy_cq),
    (2, Generator::make_srq),
    (1, Generator::destroy_srq),
    (12, Generator::register),
    (5, Generator::deregister),
    (5, Generator::alloc_mw),
    (2, Generator::dealloc_mw),
    (12, Generator::make_qp),
    (20, Generator::connect),
    (10, Generator::bring_up),
    (8, Generator::end),
    (4, Generator::abort),
    (60, Generator::post_recv),
    (12, Generator::post_srq),
    (120, Generator::post_send),
    (24, Generator::settle),
];

impl Generator {
    /// The generator for a seed.
    #[must_use]
    pub fn new(seed: u64, capabilities: Capabilities) -> Self {
        Self { rng: Rng::with_seed(seed), capabilities, next_id: 1, next_wr: 1 }
    }

    /// The next verb.
    pub fn next(&mut self, model: &Model) -> Op {
        let total: u32 = OP_KINDS.iter().map(|(weight, _)| weight).sum();
        for _ in 0..TRIES {
            let mut ticket = self.rng.u32(..total);
            for (weight, make) in OP_KINDS {
                if ticket < weight {
                    if let Some(op) = make(self, model) {
                        return op;
                    }
                    break;
                }
                ticket -= weight;
            }
        }
        Op::Settle
    }

    fn settle(&mut self, _: &Model) -> Option<Op> {
        Some(Op::Settle)
    }

    fn id(&mut self) -> Id {
        self.next_id += 1;
        self.next_id
    }

    fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// True once in `times` calls, on average.
    fn one_in(&mut self, times: u32) -> bool {
        self.rng.u32(..times) == 0
    }

    /// A random element.
    fn pick<T>(&mut self, from: impl IntoIterator<Item = T>) -> Option<T> {
        self.rng.choice(from.into_iter().collect::<Vec<_>>())
    }
}
