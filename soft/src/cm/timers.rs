//! Repetitions of messages, and the end of `TIMEWAIT`.

use super::{Cm, CmEvent, ConnState};

impl Cm {
    /// The time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(deadline, _)| *deadline)
    }

    /// Handles the timers that have expired at the time of the CM. Returns whether there were any.
    pub(crate) fn expire(&mut self) -> bool {
        let mut any = false;
        while let Some(&(deadline, id)) = self.timers.first()
            && deadline <= self.now
        {
            any = true;
            self.expire_one(id);
        }
        any
    }

    fn expire_one(&mut self, id: u32) {
        use ConnState::{DisconnectSent, Timewait};
        if self.repeat(id) {
            return;
        }
        self.cancel(id);
        let Some(connection) = self.connections.get(&id) else { return };
        match connection.state {
            Timewait if connection.sink.is_none() => self.remove(id),
            Timewait => {
                self.reset(id);
                self.raise(id, CmEvent::TimewaitExit);
            }
            DisconnectSent => {
                self.enter_timewait(id);
                self.raise(id, CmEvent::DisconnectUnanswered);
            }
            _ => {
                self.reset(id);
                self.raise(id, CmEvent::Unreachable);
            }
        }
    }
}
