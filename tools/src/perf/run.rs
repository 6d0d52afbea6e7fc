//! The loops of the tests.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::endpoint::Endpoint;
use super::measure::{Completed, Recorder};
use super::pace::Pace;
use super::plan::{Length, Plan};
use super::posting::Posting;
use super::transport::Service;
use super::watch::{Verdict, Watch};
use crate::cli::perf::choice::Verb;

/// The time in which requests that are outstanding at the end of a timed run complete.
const DRAIN: Duration = Duration::from_millis(500);
/// The same with `--verify`, where the peer still serves them.
const DRAIN_VERIFIED: Duration = Duration::from_secs(10);

/// What a side does in a bandwidth test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) sends: bool,
    pub(crate) receives: bool,
    /// The first message is sent after the first one was received.
    pub(crate) answers: bool,
}

impl Flow {
    pub(crate) fn new(plan: &Plan<'_>) -> Self {
        let (client, both) = (plan.is_client(), plan.bidirectional());
        let receives = plan.verb.consumes_receives();
        Self { sends: client || both, receives: receives && (!client || both), answers: receives && !client }
    }
}

/// The time after which a run stops, in nanoseconds.
fn end_of(plan: &Plan<'_>) -> u64 {
    match plan.length {
        Length::Messages(_) => u64::MAX,
        Length::Time { total, .. } => u64::try_from(total.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// A bandwidth test. Without a pace, each queue pair keeps its send queue full.
pub(crate) fn bandwidth<T: Service>(
    endpoint: &mut Endpoint<T>,
    plan: &Plan<'_>,
    flow: Flow,
    mut pace: Option<Pace>,
    posting: &Posting,
    recorder: &mut Recorder<'_>,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let (list, end) = (u64::from(plan.options.post_list), end_of(plan));
    let mut sending = flow.sends && !flow.answers;
    if sending {
        recorder.begin();
    }
    loop {
        let mut progress = match &mut pace {
            Some(pace) if sending => post_due(endpoint, pace, posting, recorder)?,
            None if sending => post_all(endpoint, list, posting, recorder)?,
            _ => false,
        };
        progress |= poll_sends(endpoint, posting, recorder)?;
        if flow.receives {
            progress |= poll_receives(endpoint, flow, posting, recorder)?;
            if flow.sends && !sending && endpoint.any_received() {
                sending = true;
                if let Some(pace) = &mut pace {
                    pace.start(recorder.now());
                }
            }
        }
        let sent = !flow.sends || endpoint.all_sent(posting);
        let done = sent && (!flow.receives || endpoint.all_received(posting));
        if done || end != u64::MAX && recorder.now() >= end {
            break;
        }
        if progress {
            endpoint.note_progress(watch)?;
            continue;
        }
        let until = pace.as_ref().filter(|_| sending).map(|pace| pace.wait(recorder.now()));
        if until.is_some() && endpoint.drained() {
            watch.idle();
        }
        endpoint.pause(watch, until)?;
    }
    if end != u64::MAX && flow.sends {
        let limit = if plan.options.verify { DRAIN_VERIFIED } else { DRAIN };
        drain(endpoint, posting, flow, limit)?;
    }
    Ok(())
}

/// Fills the send queues with lists of `list` messages. Returns whether there was room for some.
#[inline]
fn post_all<T: Service>(
    endpoint: &mut Endpoint<T>,
    list: u64,
    posting: &Posting,
    recorder: &Recorder<'_>,
) -> Result<bool> {
    let mut progress = false;
    for index in 0..endpoint.count() {
        while endpoint.room(index, posting) >= list {
            endpoint.post_sends(index, posting, list, recorder.now())?;
            progress = true;
        }
    }
    Ok(progress)
}

/// Records sends that have completed. Returns whether there were some. Requests of all queue pairs complete
/// in one queue: not more than a send queue has are polled before the queues are filled again.
#[inline]
fn poll_sends<T: Service>(
    endpoint: &mut Endpoint<T>,
    posting: &Posting,
    recorder: &mut Recorder<'_>,
) -> Result<bool> {
    let mut progress = false;
    for _ in 0..posting.tx_depth {
        let Some((completed, time)) = endpoint.poll_send(posting)? else { break };
        let now = recorder.now();
        recorder.record(now, Completed { latency: Some(now - time), ..completed });
        progress = true;
    }
    Ok(progress)
}

/// Takes messages that have arrived, and posts receives in their place. Returns whether there were some.
#[inline]
fn poll_receives<T: Service>(
    endpoint: &mut Endpoint<T>,
    flow: Flow,
    posting: &Posting,
    recorder: &mut Recorder<'_>,
) -> Result<bool> {
    let mut progress = false;
    for _ in 0..posting.rx_depth {
        let Some((index, received)) = endpoint.poll_receive(posting)? else { break };
        recorder.begin();
        // With both directions, the sends are measured.
        if !flow.sends {
            recorder.record(recorder.now(), received);
        }
        endpoint.repost(index, posting)?;
        progress = true;
    }
    Ok(progress)
}

/// Posts the messages that are due, on the queue pairs in turn. Their latencies count from the time
/// at which they were due. Returns whether there were some.
#[inline]
fn post_due<T: Service>(
    endpoint: &mut Endpoint<T>,
    pace: &mut Pace,
    posting: &Posting,
    recorder: &Recorder<'_>,
) -> Result<bool> {
    let (count, mut progress) = (endpoint.count(), false);
    while let Some(time) = pace.due(recorder.now()) {
        let start = pace.turn(count);
        let free = (start..start + count).map(|index| index % count);
        let Some(index) = free.into_iter().find(|&index| endpoint.room(index, posting) > 0) else { break };
        endpoint.post_sends(index, posting, 1, time)?;
        pace.advance();
        progress = true;
    }
    Ok(progress)
}

/// Polls the requests that are outstanding at the end of a timed run. The peer may have stopped
/// already, so they need not complete.
fn drain<T: Service>(
    endpoint: &mut Endpoint<T>,
    posting: &Posting,
    flow: Flow,
    limit: Duration,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !endpoint.drained() && Instant::now() < deadline {
        while endpoint.poll_send(posting)?.is_some() {}
        if flow.receives {
            while let Some((index, _)) = endpoint.poll_receive(posting)? {
                endpoint.repost(index, posting)?;
            }
        }
    }
    Ok(())
}

/// The state of a latency test: counts, times, and its end.
struct Turns<'t, 'r> {
    recorder: &'t mut Recorder<'r>,
    bytes: u64,
    limit: u64,
    end: u64,
    sent: u64,
    received: u64,
    last: Option<u64>,
}

impl<'t, 'r> Turns<'t, 'r> {
    fn new(recorder: &'t mut Recorder<'r>, plan: &Plan<'_>, posting: &Posting) -> Self {
        recorder.begin();
        let (bytes, limit) = (posting.size.into(), posting.limit);
        Self { recorder, bytes, limit, end: end_of(plan), sent: 0, received: 0, last: None }
    }

    fn is_over(&self) -> bool {
        self.sent >= self.limit && self.received >= self.limit || self.time_is_over()
    }

    fn time_is_over(&self) -> bool {
        self.end != u64::MAX && self.recorder.now() >= self.end
    }

    /// Sends a message. The time since the last one is a round trip, which is recorded while this
    /// message is under way.
    #[inline(always)]
    fn send(&mut self, post: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let now = self.recorder.now();
        post(now)?;
        if let Some(last) = self.last.replace(now) {
            let latency = Some(now - last);
            self.recorder.record(now, Completed { messages: 1, bytes: self.bytes, latency, kind: 0 });
        }
        self.sent += 1;
        Ok(())
    }
}

/// A latency test of messages or of writes with immediate data.
pub(crate) fn message_latency<T: Service>(
    endpoint: &mut Endpoint<T>,
    plan: &Plan<'_>,
    posting: &Posting,
    recorder: &mut Recorder<'_>,
    watch: &mut Watch<'_>,
) -> Result<()> {
    // The client of a send test begins; with immediate data it is the server.
    let begins = plan.is_client() == (plan.verb == Verb::Send);
    let mut turns = Turns::new(recorder, plan, posting);
    while !turns.is_over() {
        if turns.received < turns.limit && !(begins && turns.sent == 0) {
            let index = loop {
                match endpoint.poll_receive(posting) {
                    Ok(Some((index, _))) => break index,
                    Ok(None) => {}
                    Err(error) => {
                        // A failed send flushes the receives.
                        endpoint.poll_send(posting)?;
                        return Err(error);
                    }
                }
                if turns.time_is_over() {
                    return Ok(());
                }
                endpoint.pause_for_receives(watch)?;
            };
            endpoint.note_progress(watch)?;
            turns.received += 1;
            endpoint.repost(index, posting)?;
        }
        if turns.sent < turns.limit {
            if !wait_until_sent(endpoint, posting, &turns, watch)? {
                return Ok(());
            }
            turns.send(|now| endpoint.post_sends(0, posting, 1, now))?;
        }
    }
    wait_until_sent(endpoint, posting, &turns, watch)?;
    Ok(())
}

/// Waits until all messages of a latency test have completed. The answer to one usually comes after that.
/// Returns `false` if the time is over before.
fn wait_until_sent<T: Service>(
    endpoint: &mut Endpoint<T>,
    posting: &Posting,
    turns: &Turns<'_, '_>,
    watch: &mut Watch<'_>,
) -> Result<bool> {
    while !endpoint.drained() {
        if endpoint.poll_send(posting)?.is_some() {
            endpoint.note_progress(watch)?;
        } else if turns.time_is_over() {
            return Ok(false);
        } else {
            endpoint.pause(watch, None)?;
        }
    }
    Ok(true)
}

/// A latency test of writes: each side polls the last byte of its memory.
pub(crate) fn write_latency<T: Service>(
    endpoint: &mut Endpoint<T>,
    plan: &Plan<'_>,
    posting: &Posting,
    recorder: &mut Recorder<'_>,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let begins = !plan.is_client();
    let mut turns = Turns::new(recorder, plan, posting);
    while !turns.is_over() {
        if turns.received < turns.limit && !(begins && turns.sent == 0) {
            let expected = (turns.received + 1) as u8;
            while endpoint.last_byte(posting.size)? != expected {
                match watch.spin()? {
                    None => {}
                    // The clock is read as rarely as the other conditions.
                    Some(Verdict::Wait) if turns.time_is_over() => return Ok(()),
                    Some(Verdict::Wait) => {}
                    Some(verdict) => return Err(endpoint.verdict(verdict)),
                }
            }
            endpoint.note_progress(watch)?;
            endpoint.compare_write(posting, turns.received)?;
            turns.received += 1;
        }
        if turns.sent < turns.limit {
            endpoint.set_last_byte(posting.size, (turns.sent + 1) as u8)?;
            turns.send(|now| endpoint.post_sends(0, posting, 1, now))?;
            // The peer ends as soon as it has the last message, perhaps before it acknowledges it.
            let acknowledged = wait_for_send(endpoint, posting, &turns, watch);
            match acknowledged {
                Err(error) if turns.sent < turns.limit || turns.received < turns.limit => return Err(error),
                _ => {}
            }
            endpoint.note_progress(watch)?;
        }
    }
    Ok(())
}

/// Polls until a message of a write latency test completes, or the time is over.
fn wait_for_send<T: Service>(
    endpoint: &mut Endpoint<T>,
    posting: &Posting,
    turns: &Turns<'_, '_>,
    watch: &mut Watch<'_>,
) -> Result<()> {
    while endpoint.poll_send(posting)?.is_none() {
        match watch.spin()? {
            Some(Verdict::Wait) if turns.time_is_over() => break,
            None | Some(Verdict::Wait) => {}
            Some(verdict) => return Err(endpoint.verdict(verdict)),
        }
    }
    Ok(())
}

/// A latency test of reads and atomics, which the client alone runs.
pub(crate) fn response_latency<T: Service>(
    endpoint: &mut Endpoint<T>,
    plan: &Plan<'_>,
    posting: &Posting,
    recorder: &mut Recorder<'_>,
    watch: &mut Watch<'_>,
) -> Result<()> {
    recorder.begin();
    let end = end_of(plan);
    let mut sent = 0;
    while sent < posting.limit {
        let begin = recorder.now();
        if begin >= end {
            break;
        }
        endpoint.post_sends(0, posting, 1, begin)?;
        while endpoint.poll_send(posting)?.is_none() {
            endpoint.pause(watch, None)?;
        }
        endpoint.note_progress(watch)?;
        let now = recorder.now();
        let (bytes, latency) = (posting.size.into(), Some(now - begin));
        recorder.record(now, Completed { messages: 1, bytes, latency, kind: 0 });
        sent += 1;
    }
    Ok(())
}
