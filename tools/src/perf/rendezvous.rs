//! The common start of runs with several peers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use super::error::RunError;
use crate::signal::Stop;

/// The time between two looks at the other conditions.
const SLICE: Duration = Duration::from_millis(50);

/// A barrier that ends when another peer's run fails.
pub(crate) struct Rendezvous {
    missing: Mutex<usize>,
    complete: Condvar,
    /// Whether a run has failed.
    pub(crate) abort: AtomicBool,
}

impl Rendezvous {
    pub(crate) fn new(peers: usize) -> Self {
        Self { missing: Mutex::new(peers), complete: Condvar::new(), abort: AtomicBool::new(false) }
    }

    /// Waits until every peer's run is here.
    pub(crate) fn wait(&self, stop: &Stop) -> Result<()> {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        *missing = missing.saturating_sub(1);
        if *missing == 0 {
            self.complete.notify_all();
        }
        while *missing > 0 {
            stop.check()?;
            self.check()?;
            let waited = self.complete.wait_timeout(missing, SLICE);
            missing = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Fails if another run has failed.
    pub(crate) fn check(&self) -> Result<()> {
        anyhow::ensure!(!self.abort.load(Ordering::Relaxed), RunError::Aborted);
        Ok(())
    }

    /// Ends the runs with the other peers.
    pub(crate) fn abort(&self) {
        self.abort.store(true, Ordering::Relaxed);
    }
}

/// The error that explains a failed run: not that of a run that was aborted because of it.
pub(crate) fn cause(mut errors: Vec<anyhow::Error>) -> Option<anyhow::Error> {
    let is_cause = |error: &anyhow::Error| !matches!(error.downcast_ref(), Some(RunError::Aborted));
    let index = errors.iter().position(is_cause).unwrap_or(0);
    (index < errors.len()).then(|| errors.swap_remove(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_when_all_peers_have_connected() {
        let (stop, rendezvous) = (Stop::new().unwrap(), Rendezvous::new(2));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| rendezvous.wait(&stop));
            rendezvous.wait(&stop).unwrap();
            waiter.join().unwrap().unwrap();
        });
    }

    #[test]
    fn failure_of_another_run_ends_the_wait() {
        let (stop, rendezvous) = (Stop::new().unwrap(), Rendezvous::new(2));
        rendezvous.abort();
        let error = rendezvous.wait(&stop).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(RunError::Aborted)));
    }

    #[test]
    fn cause_is_not_an_aborted_run() {
        let errors = vec![RunError::Aborted.into(), RunError::CorruptAtPeer.into()];
        assert!(matches!(cause(errors).unwrap().downcast_ref(), Some(RunError::CorruptAtPeer)));
        assert!(matches!(
            cause(vec![RunError::Aborted.into()]).unwrap().downcast_ref(),
            Some(RunError::Aborted)
        ));
        assert!(cause(Vec::new()).is_none());
    }
}
