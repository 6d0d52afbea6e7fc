//! Preempts threads at any instruction, far more often than the scheduler does.

use std::ffi::c_int;
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::thread::{Timespec, nanosleep};

const SIGNAL: Signal = Signal::SIGUSR2;
/// Nanoseconds of a stop. Most stops last for some instructions of other threads. Every eighth stop
/// lasts as long as the reset or destruction of a QP.
const STOPPED: i64 = 20_000;
const STOPPED_LONG: i64 = 1_000_000;
const RUNNING: Duration = Duration::from_micros(60);

/// Signal handler that sleeps. It makes one system call and counts, nothing else.
extern "C" fn stop_for_a_while(_signal: c_int) {
    static STOPS: AtomicU32 = AtomicU32::new(0);
    let is_long = STOPS.fetch_add(1, Ordering::Relaxed) % 8 == 7;
    let tv_nsec = if is_long { STOPPED_LONG } else { STOPPED };
    let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec });
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let handler = SigHandler::Handler(stop_for_a_while);
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler is async-signal-safe.
        unsafe { sigaction(SIGNAL, &action) }.expect("a handler");
    });
}

/// Preempts threads until it is dropped.
pub(crate) struct Preemption {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Preemption {
    /// Preempts `threads`. They must not be joined before this value is dropped.
    pub(crate) fn of<T>(threads: &[&JoinHandle<T>]) -> Self {
        install();
        let threads: Vec<Pthread> = threads.iter().map(|thread| thread.as_pthread_t()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for thread in &threads {
                    // Fails for a thread that has ended.
                    let _ = pthread_kill(*thread, SIGNAL);
                }
                std::thread::sleep(RUNNING);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Preemption {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
