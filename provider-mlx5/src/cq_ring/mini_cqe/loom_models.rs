//! Models of an owner that counts written CQEs while the poller expands a run.

use bareverbs_provider::mapping::Mapping;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::*;

const LOG: u32 = 2;
/// CQEs of the run, which starts at index 0.
const RUN: u32 = 3;

/// The words of CQEs that other threads than the poller read, as loom atomics.
struct Model {
    last: [AtomicU32; 1 << LOG],
    count: [AtomicU32; 1 << LOG],
    /// The consumer index in the doorbell record.
    consumed: AtomicU32,
}

fn entry(opcode: CqeOpcode, format: u8, owner: u8, count: u32) -> [u8; CQE] {
    let mut entry = [0; CQE];
    entry[BYTE_COUNT..BYTE_COUNT + 4].copy_from_slice(&count.to_be_bytes());
    entry[OP_OWN] = opcode.0 << 4 | format | owner;
    entry
}

/// The title CQE of the run.
fn title() -> [u8; CQE] {
    entry(CqeOpcode::RESP_SEND, COMPRESSED, 0, RUN)
}

impl Model {
    /// A ring with one run, followed by CQEs that were never written.
    fn new() -> Self {
        let unwritten = entry(CqeOpcode::INVALID, 0, OWNER, 0);
        let words = |offset: usize| {
            [0, 1, 2, 3].map(|index| {
                let entry = if index == 0 { title() } else { unwritten };
                AtomicU32::new(word_of(&entry, offset))
            })
        };
        Self { last: words(LAST_WORD), count: words(BYTE_COUNT), consumed: AtomicU32::new(0) }
    }

    fn word(&self, index: u32, offset: usize) -> Option<&AtomicU32> {
        let slot = (index & ((1 << LOG) - 1)) as usize;
        match offset {
            LAST_WORD => Some(&self.last[slot]),
            BYTE_COUNT => Some(&self.count[slot]),
            _ => None,
        }
    }
}

impl Words for Model {
    fn load(&self, index: u32, offset: usize) -> u32 {
        self.word(index, offset).expect("a word that others read").load(Ordering::Acquire)
    }

    fn store(&self, index: u32, offset: usize, word: u32) {
        if let Some(to) = self.word(index, offset) {
            to.store(word, Ordering::Release);
        }
    }

    /// The title, or an array whose byte counts would be those of a longer run.
    fn bytes(&self, index: u32) -> [u8; CQE] {
        if index == 0 {
            return title();
        }
        let mut array = [0; CQE];
        array.as_chunks_mut::<MINI_CQE>().0.iter_mut().for_each(|mini| mini[MINI_CQE - 1] = 1 << LOG);
        array
    }
}

fn model(run: impl Fn(Ring, Arc<Model>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(move || {
        let ring = Ring::new(Mapping::anonymous(CQE << LOG).expect("memory"), LOG, CQE);
        run(ring.compressed(Some(MiniCqeFormat::Hash)), Arc::new(Model::new()));
    });
}

fn first_unwritten(ring: &Ring, model: &Model) -> u32 {
    ring.first_unwritten_by(|index| CqeHeader::at(model, index), || model.consumed.load(Ordering::Relaxed))
}

#[test]
fn all_mini_cqes_are_counted_during_expansion() {
    model(|ring, model| {
        let poller = thread::spawn({
            let (ring, model) = (ring.clone(), Arc::clone(&model));
            move || assert!(ring.expand_in(&*model, 0))
        });
        assert_eq!(first_unwritten(&ring, &model), RUN);
        poller.join().expect("writing out does not panic");
        assert_eq!(first_unwritten(&ring, &model), RUN);
    });
}

#[test]
fn released_and_overwritten_mini_cqes_are_counted() {
    model(|ring, model| {
        let poller = thread::spawn({
            let (ring, model) = (ring.clone(), Arc::clone(&model));
            move || {
                assert!(ring.expand_in(&*model, 0));
                model.consumed.store(RUN, Ordering::Release);
                // The device continues after it has read the consumer index.
                for index in [3, 4] {
                    let entry = entry(CqeOpcode::RESP_SEND, 0, ring.owner(index), 1);
                    model.store(index, BYTE_COUNT, word_of(&entry, BYTE_COUNT));
                    model.store(index, LAST_WORD, word_of(&entry, LAST_WORD));
                }
            }
        });
        let end = first_unwritten(&ring, &model);
        assert!((RUN..=5).contains(&end), "{end}: all that was written before is counted");
        poller.join().expect("writing out does not panic");
        assert_eq!(first_unwritten(&ring, &model), 5);
    });
}
