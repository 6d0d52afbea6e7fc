//! Virtual time: the steps of a seeded fabric, and waits that run it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bareverbs_provider::Errno;
use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::wait::limit_of;

use super::FabricInner;
use super::schedule::Choice;
use super::state::FabricState;
use super::transit::Origin;

/// How often time passes in a wait without a completion on any device before the wait fails. An RNR retry
/// without end, or a QP in ERR that polls for receives, has timers without end.
const MAX_TIMERS: u32 = 20_000;
/// How often time passes up to a limit without a completion on any device, before the rest passes at
/// once.
const MAX_TIMERS_UNTIL_END: u32 = 1 << 18;
/// The end of virtual time in nanoseconds, about 292 years. Later timers don't expire.
const END_OF_TIME: u64 = u64::MAX / 2;
/// How long a wait that nothing on the fabric can end looks for calls of other threads, in real time.
const GRACE: Duration = Duration::from_secs(1);
/// The same before time passes, if several threads use the fabric.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a wait looks meanwhile whether another thread has ended it.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl FabricState {
    /// Does one unit of work. Returns `false` if there is none at this time.
    ///
    /// Packets of a device stay in order. Otherwise the order is random by the seed.
    fn step(&mut self) -> bool {
        let now = self.now();
        let FabricState { devices, virtual_time: Some(time), packets, .. } = self else { return false };
        time.sent.resize_with(devices.len().max(time.sent.len()), VecDeque::new);
        time.choices.clear();
        for (device, (engine, sent)) in devices.iter_mut().zip(&mut time.sent).enumerate() {
            if let Some(engine) = engine {
                engine.expire_timers(now);
                let mut taken = engine.take_packets(std::mem::take(packets));
                sent.extend(taken.drain(..));
                *packets = taken;
                time.choices.extend(engine.has_work().then_some(Choice::Turn(device)));
            }
            time.choices.extend((!sent.is_empty()).then_some(Choice::Delivery(device)));
        }
        if self.deliver_due(now) {
            return true;
        }
        let Some(time) = &mut self.virtual_time else { return false };
        if time.choices.is_empty() {
            return self.release_held();
        }
        let choice = time.choices[time.random.below(time.choices.len() as u64) as usize];
        match choice {
            Choice::Turn(device) => {
                if let Some(Some(engine)) = self.devices.get_mut(device) {
                    engine.step();
                }
            }
            Choice::Delivery(device) => {
                if let Some(packet) = time.sent[device].pop_front() {
                    self.transmit(Origin::Device(device), packet);
                }
            }
        }
        true
    }

    /// Lets time pass until the next timer, unless it is later than `end`. Returns `false` if none is
    /// until then.
    fn pass_time(&mut self, end: u64) -> bool {
        let next = self.next_timer().filter(|next| *next <= end.min(END_OF_TIME));
        let (Some(next), Some(time)) = (next, &mut self.virtual_time) else { return false };
        time.now = time.now.max(next);
        time.activity += 1;
        true
    }

    /// Counts the times that time has passed since the last completion on any device.
    fn count_timer(&self, timers: &mut u32, completed: &mut u64) {
        let now_completed = self.devices.iter().flatten().map(|engine| engine.completed()).sum();
        *timers = if *completed == now_completed { *timers + 1 } else { 0 };
        *completed = now_completed;
    }
}

impl FabricInner {
    /// As [`Fabric::step`](super::Fabric::step).
    pub(super) fn step(&self) -> bool {
        self.assert_virtual();
        let mut state = self.lock();
        let worked = state.guarded(FabricState::step).unwrap_or(false);
        self.note_activity(&mut state, worked);
        worked
    }

    /// As [`Fabric::advance`](super::Fabric::advance).
    pub(super) fn advance(&self, by: Duration) {
        self.assert_virtual();
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let end = self.lock().now().saturating_add(by).min(END_OF_TIME);
        let (mut timers, mut completed) = (0, u64::MAX);
        loop {
            while self.step() {}
            let mut state = self.lock();
            state.count_timer(&mut timers, &mut completed);
            match state.guarded(|state| timers < MAX_TIMERS_UNTIL_END && state.pass_time(end)) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(time) = &mut state.virtual_time {
                        time.now = time.now.max(end);
                    }
                    break;
                }
                Err(_) => return,
            }
        }
        while self.step() {}
    }

    /// # Panics
    ///
    /// On a fabric of real time.
    fn assert_virtual(&self) {
        assert!(self.has_virtual_time, "the fabric has real time; only a seeded fabric has steps");
    }

    fn note_activity(&self, state: &mut FabricState, worked: bool) {
        if let Some(time) = &mut state.virtual_time
            && worked
        {
            time.activity += 1;
            self.activity.notify_all();
        }
    }

    /// Runs a fabric of virtual time until `is_ready`: until nothing is left to do, then until the
    /// next timer, and so on until the limit. The wait is ready at the time `alarm` of the fabric, too.
    /// Returns at once on a fabric of real time.
    ///
    /// # Errors
    ///
    /// `EDEADLK` if nothing on the fabric can end the wait; `EIO` if the fabric has failed.
    pub(super) fn before_wait(
        &self,
        end: Option<Instant>,
        alarm: Option<Duration>,
        is_ready: &dyn Fn() -> bool,
    ) -> Result<BeforeWait, Errno> {
        if !self.has_virtual_time {
            return Ok(BeforeWait::Block);
        }
        let mut state = self.lock();
        let Some(time) = &mut state.virtual_time else { return Ok(BeforeWait::Block) };
        time.note_call();
        let end = end.map_or(u64::MAX, |end| virtual_end(end, time.now));
        drop(state);
        let max_timers = if end == u64::MAX { MAX_TIMERS } else { MAX_TIMERS_UNTIL_END };
        let alarm = alarm.map_or(u64::MAX, |alarm| u64::try_from(alarm.as_nanos()).unwrap_or(u64::MAX));
        let (end, at_end) =
            if alarm < end { (alarm, BeforeWait::Ready) } else { (end, BeforeWait::TimedOut) };
        let (mut timers, mut completed) = (0, u64::MAX);
        loop {
            if is_ready() {
                return Ok(BeforeWait::Ready);
            }
            let mut state = self.lock();
            if state.guarded(FabricState::step)? {
                self.note_activity(&mut state, true);
                continue;
            }
            state.count_timer(&mut timers, &mut completed);
            if state.virtual_time.as_ref().is_some_and(|time| time.is_shared) {
                let active;
                (state, active) = self.was_active(state, PAUSE, is_ready);
                if active {
                    continue;
                }
            }
            if timers < max_timers && state.guarded(|state| state.pass_time(end))? {
                self.activity.notify_all();
                continue;
            }
            if end != u64::MAX {
                if let Some(time) = &mut state.virtual_time {
                    time.now = time.now.max(end);
                }
                return Ok(at_end);
            }
            if !self.was_active(state, GRACE, is_ready).1 {
                return Err(Errno::DEADLK);
            }
            timers = 0;
        }
    }

    /// Whether a thread calls a device, or ends the wait, within this real time.
    fn was_active<'a>(
        &'a self,
        mut state: MutexGuard<'a, FabricState>,
        time: Duration,
        is_ready: &dyn Fn() -> bool,
    ) -> (MutexGuard<'a, FabricState>, bool) {
        let activity = |state: &FabricState| state.virtual_time.as_ref().map(|time| time.activity);
        let (before, start) = (activity(&state), Instant::now());
        loop {
            let left = time.saturating_sub(start.elapsed());
            // It may use the fabric.
            drop(state);
            let is_ready = is_ready();
            state = self.lock();
            let active = is_ready || activity(&state) != before;
            if active || left.is_zero() {
                return (state, active);
            }
            let waited = self.activity.wait_timeout(state, left.min(POLL_INTERVAL));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The end of a wait in virtual time. The first call of a wait begins it.
fn virtual_end(end: Instant, now: u64) -> u64 {
    thread_local! {
        static WAIT: Cell<Option<(Instant, u64)>> = const { Cell::new(None) };
    }
    let limit = u64::try_from(limit_of(end).as_nanos()).unwrap_or(u64::MAX);
    let begun = WAIT.get().filter(|(other, _)| *other == end);
    let (_, virtual_end) = begun.unwrap_or((end, now.saturating_add(limit).min(END_OF_TIME)));
    WAIT.set(Some((end, virtual_end)));
    virtual_end
}
