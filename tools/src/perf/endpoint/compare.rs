//! The comparisons of `--verify`.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Endpoint, Next, Sends};
use crate::cli::perf::choice::Verb;
use crate::perf::memory::Memory;
use crate::perf::posting::Posting;
use crate::perf::transport::Service;
use crate::perf::verify::{Pattern, Place, Verifier};

/// The time in which all bytes of a message become visible after its last one.
const SETTLE: Duration = Duration::from_millis(200);

/// Writes the data of a message, or spoils the memory that a read or an atomic replaces.
pub(super) fn prepare(
    verifier: &mut Verifier,
    memory: &mut Memory,
    message: &mut [u8],
    posting: &Posting,
    sends: &Sends,
    next: &Next,
) -> Result<()> {
    let pattern = Pattern::new(sends.id, next.number);
    let start = (next.addr - memory.addr()) as usize;
    let bytes = start..start + next.kind.size as usize - usize::from(posting.polled);
    if matches!(next.kind.verb, Verb::Read | Verb::Atomic) {
        return verifier.spoil(memory, bytes, pattern);
    }
    let data = verifier.fill(memory, bytes, pattern)?;
    if let Some(message) = message.get_mut(..data.len()) {
        message.copy_from_slice(data);
    }
    Ok(())
}

impl<T: Service> Endpoint<T> {
    /// Messages that were compared since the last call; `None` without `--verify`.
    pub(crate) fn take_compared(&mut self) -> Option<u64> {
        self.verifier.as_mut().map(|verifier| std::mem::take(&mut verifier.compared))
    }

    /// Writes the memory that the peer reads, writes or counts in: patterns of the places for reads,
    /// otherwise zeros.
    pub(crate) fn fill_targets(&mut self, posting: &Posting) -> Result<()> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let reads = posting.order.kinds().iter().any(|kind| kind.verb == Verb::Read);
        let (base, steps) = (self.memory.addr(), posting.send_steps);
        for lane in &self.lanes {
            for place in 0..steps.places() {
                let start = (lane.target_at + steps.place_of(place) - base) as usize;
                let bytes = start..start + posting.size as usize;
                if reads {
                    verifier.fill(&mut self.memory, bytes, Pattern::new(lane.sends.id, place))?;
                } else {
                    self.memory.write(start, &vec![0; bytes.len()])?;
                }
            }
        }
        Ok(())
    }

    /// Compares what reads and atomics returned.
    pub(super) fn compare_responses(
        &mut self,
        index: usize,
        posting: &Posting,
        numbers: Range<u64>,
    ) -> Result<()> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let (sends, steps) = (&self.lanes[index].sends, posting.send_steps);
        for number in numbers {
            let kind = posting.order.kind(sends.id, number);
            let start = (sends.at - self.memory.addr() + steps.place_of(number)) as usize;
            let bytes = start..start + kind.size as usize;
            let (what, queue_pair) = ("the peer's memory, as read", sends.id);
            match kind.verb {
                Verb::Read => {
                    let place = Place { what, queue_pair, bytes };
                    verifier.compare(&self.memory, &place, number % steps.places())?;
                }
                // Nothing else adds to the counters.
                Verb::Atomic => {
                    let place = Place { what: "the value that an atomic returned", queue_pair, bytes };
                    verifier.compare_counter(&self.memory, &place, number, number / steps.places())?;
                }
                Verb::Send | Verb::Write | Verb::WriteImm => {}
            }
        }
        Ok(())
    }

    /// Compares a message that arrived: sent data in its receive at `offset`, or written data.
    pub(super) fn compare_received(
        &mut self,
        index: usize,
        posting: &Posting,
        offset: u64,
        size: u32,
    ) -> Result<()> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let lane = &mut self.lanes[index];
        let receives = self.shared.as_ref().map_or(&lane.receives, |shared| &shared.receives);
        let (at, what) = match posting.sends {
            true => (receives.at + offset + u64::from(T::HEADROOM), "a received message"),
            // The data lies where the peer wrote it, not in the receive.
            false => (lane.target_at + posting.send_steps.place_of(lane.next_number), "a written message"),
        };
        let start = (at - self.memory.addr()) as usize;
        let place = Place { what, queue_pair: lane.sends.id, bytes: start..start + size as usize };
        let next = lane.next_number;
        lane.next_number = match posting.lossy {
            true => verifier.compare_unreliable(&self.memory, &place, next)?,
            false => verifier.compare(&self.memory, &place, next).map(|()| next + 1)?,
        };
        Ok(())
    }

    /// Compares the message of a latency test of writes, but for its last byte. The bytes may become
    /// visible after the last one, so a difference counts only if it stays.
    pub(crate) fn compare_write(&mut self, posting: &Posting, number: u64) -> Result<()> {
        let start = self.offset_of(self.lanes[0].target_at);
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let bytes = start..start + posting.size as usize - 1;
        let place = Place { what: "a written message", queue_pair: self.lanes[0].sends.id, bytes };
        let deadline = Instant::now() + SETTLE;
        loop {
            match verifier.compare(&self.memory, &place, number) {
                Err(_) if Instant::now() < deadline => verifier.compared -= 1,
                result => return result,
            }
        }
    }

    /// Messages that each queue pair has sent.
    pub(crate) fn sent(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|lane| lane.sends.completed)
    }

    /// Compares what the peer wrote or counted at the end of a run. `sent` are its messages on each
    /// queue pair.
    pub(crate) fn compare_targets(&mut self, posting: &Posting, sent: &[u64]) -> Result<()> {
        let Some(verifier) = self.verifier.as_mut().filter(|_| !posting.polled) else { return Ok(()) };
        let (base, steps) = (self.memory.addr(), posting.send_steps);
        for (lane, &sent) in self.lanes.iter().zip(sent) {
            let queue_pair = lane.sends.id;
            for place in 0..steps.places().min(sent) {
                // The last message in this place.
                let number = place + (sent - 1 - place) / steps.places() * steps.places();
                let kind = posting.order.kind(queue_pair, number);
                let start = (lane.target_at + steps.place_of(place) - base) as usize;
                let bytes = start..start + kind.size as usize;
                match kind.verb {
                    Verb::Write => {
                        let place = Place { what: "memory that the peer wrote", queue_pair, bytes };
                        verifier.compare(&self.memory, &place, number)?;
                    }
                    Verb::Atomic => {
                        let place = Place { what: "the sum of the peer's atomics", queue_pair, bytes };
                        let count = (sent - 1 - number % steps.places()) / steps.places() + 1;
                        verifier.compare_counter(&self.memory, &place, number, count)?;
                    }
                    Verb::Send | Verb::WriteImm | Verb::Read => {}
                }
            }
        }
        Ok(())
    }
}
