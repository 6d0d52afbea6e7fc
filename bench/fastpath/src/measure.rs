//! The measured methods to post and to poll.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bareverbs::cq::{Completion, Cq, WorkCompletion};
use bareverbs::error::PostError;
use bareverbs::qp::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
use bareverbs::srq::SrqInit;
use bareverbs::{Context, Provider, WcStatus};
use bareverbs_test_support::TIMEOUT;

use crate::clock::Samples;
use crate::messages;
use crate::pair::Pair;
use crate::report::Report;

/// Samples of each quantity.
const RUNS: usize = 400;
/// Requests in a batch.
const BATCH: usize = 32;
/// Receives that are posted, one by one and in lists.
const RECEIVES: usize = 128;

/// How the program waits for requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    /// Sleeps, so that the kernel's workers run.
    Asleep,
    /// Spins for long. A clock that counts instructions skips a sleep at once, however long a
    /// device in another process needs.
    Awake,
}

impl Pause {
    /// Waits long enough for `count` requests.
    fn take(self, count: usize) {
        match self {
            Self::Asleep => std::thread::sleep(Duration::from_millis(if count > 1 { 10 } else { 2 })),
            Self::Awake => {
                for turn in 0..if count > 1 { 400_000 } else { 40_000 } {
                    black_box(turn);
                }
            }
        }
    }
}

/// Measures everything over the types of provider `P`, named `types` in the output.
pub(crate) fn all<P: Provider>(types: &str, context: &Context<P>, pause: Pause) -> Result<()> {
    let report = Report { types };
    let mut pair = Pair::new(context)?;
    sends(&report, &mut pair)?;
    polls(&report, &mut pair, pause)?;
    empty_polls(&report, &mut pair.cq)?;
    receives(&report, &mut pair)?;
    match pause {
        // They connect by addresses, which iWARP does not.
        Pause::Asleep if context.capabilities().iwarp => Ok(()),
        Pause::Asleep => messages::all(&report, context),
        // The device is another process, and the clock skips sleeps.
        Pause::Awake => Ok(()),
    }
}

/// Polls `count` completions of sends, which must be successful.
fn drain<P: Provider>(cq: &mut Cq<P>, count: usize) -> Result<()> {
    let begin = Instant::now();
    let mut left = count;
    while left > 0 {
        match cq.poll_one() {
            Some(completion) => {
                ensure!(completion.status == WcStatus::SUCCESS, "{completion:?}");
                left -= 1;
            }
            None => {
                ensure!(begin.elapsed() < TIMEOUT, "{left} of {count} requests do not complete");
                // This process may have a higher priority than the kernel's workers.
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
    Ok(())
}

/// Sleeps until the kernel's workers are idle.
fn settle() {
    std::thread::sleep(Duration::from_millis(1));
}

fn sends<P: Provider>(report: &Report<'_>, pair: &mut Pair<P>) -> Result<()> {
    let Pair { qp, cq, memory, remote, .. } = pair;
    let bytes = [7; 8];
    let parts = [&bytes[..]];
    let sges = [memory.sge(..8)?];
    let write = |payload| SendRequest {
        wr_id: 1,
        operation: Operation::Write(*remote),
        flags: SendFlags::SIGNALED,
        payload,
    };
    let inline = [write(Payload::Inline(&parts)); BATCH];
    let gathered = [write(Payload::Sges(&sges)); BATCH];

    // The compiler does not know the requests: it sees only a slice.
    for (name, requests) in [("post_send 1 inline", &inline[..1]), ("post_send 32 inline", &inline[..])] {
        let mut samples = Samples::new(RUNS);
        for _ in 0..RUNS {
            let requests = black_box(requests);
            // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
            samples.take(|| unsafe { qp.post_send(requests) })?;
            drain(cq, requests.len())?;
            settle();
        }
        report.line(name, samples, requests.len())?;
    }

    for (name, requests) in [("deferred inline", &inline[..1]), ("deferred sge", &gathered[..1])] {
        let mut samples = Samples::new(RUNS);
        for _ in 0..RUNS {
            let requests = black_box(requests);
            // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
            samples.take(|| unsafe { qp.post_send_deferred(requests) })?;
            qp.flush()?;
            drain(cq, 1)?;
        }
        report.line(name, samples, 1)?;
    }

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let (remote, bytes) = (black_box(*remote), black_box(&bytes[..]));
        samples.take(|| {
            let mut batch = qp.start_send();
            batch.write_inline(1, remote, bytes, SendFlags::SIGNALED).map_err(anyhow::Error::new)?;
            batch.defer().map_err(anyhow::Error::new)
        })?;
        qp.flush()?;
        drain(cq, 1)?;
    }
    report.line("deferred in place", samples, 1)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let (remote, bytes) = (black_box(*remote), black_box(&bytes));
        samples.take(|| {
            let (operation, payload) = (Operation::Write(remote), Payload::Inline(&[bytes]));
            let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: the request has no SGEs.
            unsafe { qp.post_send(&[request]) }
        })?;
        drain(cq, 1)?;
        settle();
    }
    report.line("post_send 1 in place", samples, 1)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let (remote, bytes) = (black_box(*remote), black_box(&bytes));
        samples.take(|| {
            let mut batch = qp.start_send();
            for wr_id in 0..BATCH as u64 {
                batch.write_inline(wr_id, remote, bytes, SendFlags::SIGNALED).map_err(anyhow::Error::new)?;
            }
            batch.ring().map_err(anyhow::Error::new)
        })?;
        drain(cq, BATCH)?;
        settle();
    }
    report.line("start_send 32 in place", samples, BATCH)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let requests = black_box(&inline[..]);
        samples.take(|| {
            for request in requests {
                // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
                unsafe { qp.post_send_deferred(std::slice::from_ref(request)) }?;
            }
            qp.flush()
        })?;
        drain(cq, BATCH)?;
        settle();
    }
    report.line("32 deferred, 1 flush", samples, BATCH)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let requests = black_box(&inline[..]);
        let found = samples.take(|| {
            for request in requests {
                // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
                unsafe { qp.post_send_deferred(std::slice::from_ref(request)) }?;
            }
            Ok::<_, PostError>(qp.flush_and_poll(cq)?.next().is_some())
        })?;
        drain(cq, BATCH - usize::from(found))?;
        settle();
    }
    report.line("32 deferred, 1 flush_and_poll", samples, BATCH)
}

fn polls<P: Provider>(report: &Report<'_>, pair: &mut Pair<P>, pause: Pause) -> Result<()> {
    let Pair { qp, cq, remote, .. } = pair;
    // Posts requests and waits until they are complete, without polling them.
    let mut complete = |count: usize| -> Result<()> {
        let mut batch = qp.start_send();
        for wr_id in 0..count as u64 {
            batch.write_inline(wr_id, *remote, &[7; 8], SendFlags::SIGNALED)?;
        }
        batch.ring()?;
        // Longer than the device needs. Late completions are detected below.
        pause.take(count);
        Ok(())
    };

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        complete(1)?;
        // A caller pays only for the fields that it reads; `poll_into` builds the whole value.
        let found = samples.take(|| {
            let found = cq.poll_one();
            black_box(found.map(|value| (value.wr_id, value.status, value.opcode, value.byte_len)))
        });
        if found.is_none() {
            samples.discard_last();
            drain(cq, 1)?;
        }
    }
    report.line("poll_one", samples, 1)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        complete(1)?;
        let found = samples.take(|| {
            let mut completions = cq.poll();
            let found = completions.next();
            black_box(found.map(|completion| (completion.wr_id(), completion.status())))
        });
        if found.is_none() {
            samples.discard_last();
            drain(cq, 1)?;
        }
    }
    report.line("poll, next", samples, 1)?;

    let mut into = [WorkCompletion::default(); BATCH];
    for (name, count, room) in
        [("poll_into 1", 1, 1), ("poll_into 1 of 32", 1, BATCH), ("poll_into 32", BATCH, BATCH)]
    {
        let mut samples = Samples::new(RUNS);
        for _ in 0..RUNS {
            complete(count)?;
            let room = black_box(&mut into[..room]);
            let found = samples.take(|| cq.poll_into(room));
            if found < count {
                samples.discard_last();
                drain(cq, count - found)?;
            }
        }
        report.line(name, samples, count)?;
    }
    Ok(())
}

fn empty_polls<P: Provider>(report: &Report<'_>, cq: &mut Cq<P>) -> Result<()> {
    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let found = samples.take(|| cq.poll_one().is_some());
        ensure!(!found, "a completion too many");
    }
    report.line("empty poll_one", samples, 1)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let found = samples.take(|| cq.poll().next().is_some());
        ensure!(!found, "a completion too many");
    }
    report.line("empty poll, next", samples, 1)?;

    let mut into = [WorkCompletion::default(); BATCH];
    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        let room = black_box(&mut into[..]);
        let found = samples.take(|| cq.poll_into(room));
        ensure!(found == 0, "{found} completions too many");
    }
    report.line("empty poll_into", samples, 1)
}

fn receives<P: Provider>(report: &Report<'_>, pair: &mut Pair<P>) -> Result<()> {
    let Pair { qp, memory, .. } = pair;
    let sges = [memory.sge(..8)?];
    let receives = [RecvRequest { wr_id: 1, sges: &sges }; BATCH];
    let mut samples = Samples::new(RECEIVES);
    for _ in 0..RECEIVES / 2 {
        let receive = black_box(&receives[..1]);
        // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
        samples.take(|| unsafe { qp.post_recv(receive) })?;
    }
    report.line("post_recv 1", samples, 1)?;
    let mut samples = Samples::new(RECEIVES);
    for _ in 0..RECEIVES / BATCH {
        let receives = black_box(&receives[..]);
        // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
        samples.take(|| unsafe { qp.post_recv(receives) })?;
    }
    report.line("post_recv 32", samples, BATCH)?;

    let mut srq = qp.pd().create_srq(&SrqInit::new(255))?;
    let mut samples = Samples::new(RECEIVES);
    for _ in 0..RECEIVES / 2 {
        let receive = black_box(&receives[..1]);
        // SAFETY: no message ever arrives, as no queue pair uses the SRQ.
        samples.take(|| unsafe { srq.post_recv(receive) })?;
    }
    report.line("srq post_recv 1", samples, 1)?;
    let mut samples = Samples::new(RECEIVES);
    for _ in 0..RECEIVES / BATCH {
        let receives = black_box(&receives[..]);
        // SAFETY: the memory outlives the queue pair and is not accessed meanwhile.
        samples.take(|| unsafe { srq.post_recv(receives) })?;
    }
    report.line("srq post_recv 32", samples, BATCH)
}
