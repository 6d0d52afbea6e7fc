//! Options that contradict each other.

use super::{Length, Plan};
use crate::cli::perf::PerfOptions;
use crate::cli::perf::choice::{Connection, Measure, Verb};
use crate::cli::perf::mix::{Kind, Mix};

/// Rejects options that contradict each other. `--mix` and lists have checks of their own.
pub(super) fn check(verb: Verb, measure: Measure, options: &PerfOptions) -> Result<(), String> {
    if measure == Measure::Latency {
        check_latency(options)?;
    }
    check_multicast(verb, options)?;
    check_transport(options.connection, verb)?;
    check_verify(verb, measure, options)?;
    let latency = measure == Measure::Latency;
    let by_cm = |conflict: bool| options.cm && conflict;
    let path = [options.mtu.is_some(), options.gid_index.is_some(), options.sl != 0];
    let grh = [options.tclass.is_some(), !options.flow_label.is_empty(), options.pkey_index.is_some()];
    let rules = [
        (by_cm(options.connection != Connection::Rc), "--cm is for RC (-c)"),
        (
            by_cm(options.clients.is_some() || options.all_to_all.is_some()),
            "--cm is for one peer: omit --clients and --all-to-all",
        ),
        (
            by_cm([path, grh].concat().contains(&true)),
            "--cm: the connection manager chooses the path: omit -m, -x, -S, --tclass, --flow-label and \
             --pkey-index",
        ),
        (
            options.dma_buf && (options.odp || options.huge_pages),
            "--dma-buf is another kind of memory: omit --odp and --huge-pages",
        ),
        (
            options.dma_buf && verb == Verb::Write && latency,
            "write lat polls memory, and a dma-buf is not mapped: omit --dma-buf",
        ),
        (options.rate.is_some() && options.post_list > 1, "--rate starts single messages: omit -l"),
        (options.mix.is_some() && options.all, "--mix has the sizes: omit -a"),
        (
            options.all_to_all.is_some() && (latency || !options.bidirectional),
            "--all-to-all needs a bandwidth test in both directions (bw -b)",
        ),
        (
            verb == Verb::Atomic && (options.all || options.size.is_some_and(|size| size != 8)),
            "atomic operations have 8 bytes: omit -s and -a",
        ),
        (options.all && options.size.is_some(), "-a runs all sizes: omit -s"),
        (
            options.duration.is_some() && (options.all || options.iters.is_some()),
            "a duration (-D) excludes -n and -a",
        ),
        (options.duration == Some(0.0) || options.interval == 0.0, "a time of 0 s measures nothing"),
        (options.margin.is_some() && options.duration.is_none(), "a margin (-f) needs a duration (-D)"),
        (
            options.events && verb == Verb::Write && latency,
            "write lat polls memory, so it has no completion events (-e)",
        ),
    ];
    let atomics = verb == Verb::Atomic || options.mix.as_ref().is_some_and(|mix| mix.has(Verb::Atomic));
    if options.atomic_type.is_some() && !atomics {
        return Err(format!("-A is for atomic: {} has no atomic operations", verb.name()));
    }
    if options.srq && !verb.consumes_receives() {
        return Err(format!("--srq is for send and write-imm: {} consumes no receives", verb.name()));
    }
    if options.threads > options.num_qp {
        let (threads, num_qp) = (options.threads, options.num_qp);
        return Err(format!("{threads} threads (--threads) need as many queue pairs (-q {num_qp})"));
    }
    first(&rules)
}

/// The message of the first rule that is broken.
fn first(rules: &[(bool, &str)]) -> Result<(), String> {
    rules.iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, message)| Err((*message).to_owned()))
}

/// Rejects options of bandwidth tests in a latency test.
fn check_latency(options: &PerfOptions) -> Result<(), String> {
    let given = [
        (options.num_qp > 1, "-q"),
        (options.bidirectional, "-b"),
        (options.tx_depth.is_some(), "-t"),
        (options.cq_mod.is_some(), "-Q"),
        (options.post_list > 1, "-l"),
        (options.threads > 1, "--threads"),
        (options.rate.is_some(), "--rate"),
        (options.mix.is_some(), "--mix"),
    ];
    first(&given).map_err(|option| {
        format!("{option} is for bandwidth tests only: a latency test has one message outstanding")
    })
}

/// Rejects what is not sent to a multicast group.
fn check_multicast(verb: Verb, options: &PerfOptions) -> Result<(), String> {
    if !options.mcg {
        return Ok(());
    }
    first(&[
        (verb != Verb::Send, "-g is for send: other operations have one target"),
        (options.cm, "-g has no connection: omit --cm"),
        (options.connection != Connection::Ud, "-g is for UD (-c)"),
        (options.bidirectional, "-g has one direction: omit -b"),
        (options.num_qp > 1, "-g has one queue pair: omit -q"),
        (
            options.clients.is_some() || options.all_to_all.is_some(),
            "-g is for one peer, because every member receives all messages: omit --clients and --all-to-all",
        ),
    ])
}

/// Rejects an operation that the transport does not have.
fn check_transport(connection: Connection, verb: Verb) -> Result<(), String> {
    match (connection, verb) {
        (Connection::Rc | Connection::Xrc, _) | (Connection::Ud, Verb::Send) => Ok(()),
        (Connection::Uc, Verb::Send | Verb::Write | Verb::WriteImm) => Ok(()),
        (transport, verb) => Err(format!("{transport} has no {} operation (-c)", verb.name())),
    }
}

/// Rejects comparisons that can't be made.
fn check_verify(verb: Verb, measure: Measure, options: &PerfOptions) -> Result<(), String> {
    if !options.verify {
        return Ok(());
    }
    let latency = measure == Measure::Latency;
    // A latency test waits for each message.
    if !options.connection.is_reliable() && verb != Verb::Send && !latency {
        return Err(format!(
            "--verify of {} bw needs RC or XRC: a write that {} loses can't be noticed",
            verb.name(),
            options.connection
        ));
    }
    first(&[
        (
            latency && verb == Verb::Write && options.size == Some(1),
            "--verify of write lat needs 2 bytes (-s): the last byte counts the messages",
        ),
        (options.cq_mod.is_some(), "--verify compares each message when it completes: omit -Q"),
    ])
}

/// Rejects mixes that both sides can't run alike.
pub(super) fn check_mix(verb: Verb, options: &PerfOptions, mix: &[(Kind, u32)]) -> Result<(), String> {
    if options.mix.as_ref().is_some_and(Mix::has_wrong_atomic) {
        return Err("atomic operations have 8 bytes: omit their size in --mix".into());
    }
    for (kind, _) in mix {
        if kind.verb.consumes_receives() != verb.consumes_receives() {
            return Err(format!(
                "--mix: {} and {} can't be mixed: only one of them consumes receives",
                verb.name(),
                kind.verb.name()
            ));
        }
        if options.verify && kind.verb != verb {
            return Err(
                "--verify compares the data of one operation: --mix may have several sizes only".into()
            );
        }
        check_transport(options.connection, kind.verb)?;
    }
    Ok(())
}

/// Rejects lists that do not fit the send queue or the number of messages.
pub(super) fn check_list(plan: &Plan<'_>, iters: u32) -> Result<(), String> {
    let (list, tx_depth) = (plan.options.post_list, plan.tx_depth);
    if list > tx_depth {
        return Err(format!("lists of {list} requests (-l) exceed the send queue (-t {tx_depth})"));
    }
    if !iters.is_multiple_of(list) && matches!(plan.length, Length::Messages(_)) {
        return Err(format!(
            "the number of messages (-n {iters}) must be a multiple of the list (-l {list})"
        ));
    }
    let depth = plan.depths(plan.largest()).send;
    if list > depth {
        return Err(format!("lists of {list} requests (-l) exceed the send queue with --verify ({depth})"));
    }
    Ok(())
}
