//! System calls of programs with a client and a server, as figures and tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use super::turns::NAMES;

/// Shell functions that count system calls of programs by the kernel's tracepoints, one trace instance
/// for each side. A traced program is not stopped: under ptrace, the threads of librdmacm's program
/// that poll until others are done would take most of the one processor's time.
///
/// Their `sched_yield` is not counted for the same reason: its number says how long they poll.
pub(crate) const COUNTING: &str = r#"
instances=/sys/kernel/tracing/instances
# kthreadd, which makes no system call.
idle_pid=2
prepare() {
    [ -e $instances ] || mount -t tracefs tracefs /sys/kernel/tracing
    for side in client server; do
        if mkdir $instances/$side 2> /dev/null; then
            echo $idle_pid > $instances/$side/set_event_pid
            echo 1 > $instances/$side/options/event-fork
            echo 16384 > $instances/$side/buffer_size_kb
            for call in $instances/$side/events/syscalls/sys_enter_*; do
                case $call in *_sched_yield) ;; *) echo 1 > $call/enable ;; esac
            done
        fi
        echo > $instances/$side/trace
    done
}
# Becomes a program of side $1.
become() {
    side=$1; shift
    [ $counted = yes ] || exec "$@"
    exec sh -c 'echo $$ > "$0"; exec "$@"' $instances/$side/set_event_pid "$@"
}
show_calls() {
    for side in client server; do
        echo "== $side"
        grep -m 1 entries-in-buffer $instances/$side/trace
        sed -n 's/.*: sys_\([a-z0-9_]*\)(.*/\1/p' $instances/$side/trace | sort | uniq -c
    done
}
[ $counted = no ] || prepare
"#;

/// Calls for a connection or a message, by name.
pub(crate) type Calls = BTreeMap<String, f64>;

/// The calls of both sides for one of `count` connections or messages, by which two runs differ.
pub(crate) fn calls_of_each(few: &[Calls; 2], many: &[Calls; 2], count: u32) -> [Calls; 2] {
    [0, 1].map(|side| {
        let few = &few[side];
        let difference = |(name, calls): (&String, &f64)| {
            (name.clone(), (calls - few.get(name).copied().unwrap_or(0.0)) / f64::from(count))
        };
        many[side].iter().map(difference).collect()
    })
}

/// A table of the calls of both programs.
pub(crate) fn calls_rows(title: &str, ours: &Calls, theirs: &Calls) -> String {
    let mut text = format!("{title:<24} {:>10} {:>10} {:>8}\n", NAMES[0], NAMES[1], "ratio");
    let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let get = |calls: &Calls| calls.get(name).copied().unwrap_or(0.0);
        if get(ours).max(get(theirs)) >= 0.05 {
            let _ = writeln!(text, "  {name:<22} {:>10.2} {:>10.2}", get(ours), get(theirs));
        }
    }
    let total = |calls: &Calls, without: &[&str]| -> f64 {
        calls.iter().filter(|(name, _)| !without.contains(&name.as_str())).map(|(_, calls)| calls).sum()
    };
    for (title, without) in [("all", &[][..]), ("without futex", &["futex"])] {
        let (ours, theirs) = (total(ours, without), total(theirs, without));
        let _ = writeln!(text, "  {title:<26} {ours:>6.1} {theirs:>10.1} {:>8.2}", theirs / ours);
    }
    text
}

/// The parts of the output for each side.
pub(crate) fn sides(text: &str) -> Result<[&str; 2]> {
    let client = text.split_once("== client\n").context("there is no client")?.1;
    let (client, server) = client.split_once("== server\n").context("there is no server")?;
    Ok([client, server])
}

/// The calls of both sides, as `show_calls` prints them.
pub(crate) fn parse_calls(text: &str) -> Result<[Calls; 2]> {
    let [client, server] = sides(text)?.map(|text| {
        let (head, rows) = text.split_once('\n').context("there is no trace")?;
        let words: Vec<_> = head.split([' ', '/']).collect();
        let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
        let [in_buffer, written] = numbers[..] else { bail!("{head}") };
        ensure!(in_buffer == written, "the trace has lost events: {head}");
        rows.lines()
            .map(|row| {
                let (calls, name) = row.trim().split_once(' ').with_context(|| row.to_owned())?;
                Ok((name.to_owned(), calls.parse()?))
            })
            .collect()
    });
    Ok([client?, server?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_rows_of_a_complete_trace() {
        let text = "== client
# entries-in-buffer/entries-written: 120/120   #P:1
    100 write
     20 ioctl
== server
# entries-in-buffer/entries-written: 0/0   #P:1
";
        let [client, server] = parse_calls(text).unwrap();
        assert_eq!(client, BTreeMap::from([("write".to_owned(), 100.0), ("ioctl".to_owned(), 20.0)]));
        assert!(server.is_empty());
        let lost = text.replace("120/120", "120/121");
        assert!(parse_calls(&lost).unwrap_err().to_string().contains("lost events"));
    }

    fn calls(rows: &[(&str, f64)]) -> Calls {
        rows.iter().map(|(name, calls)| ((*name).to_owned(), *calls)).collect()
    }

    #[test]
    fn calls_of_one_connection_are_the_difference_of_two_runs_of_a_side() {
        let few = [calls(&[("write", 10.0)]), calls(&[("write", 20.0), ("poll", 1.0)])];
        let many = [calls(&[("write", 30.0), ("ioctl", 5.0)]), calls(&[("write", 25.0), ("poll", 1.0)])];
        let [client, server] = calls_of_each(&few, &many, 5);
        assert_eq!(client, calls(&[("write", 4.0), ("ioctl", 1.0)]));
        assert_eq!(server, calls(&[("write", 1.0), ("poll", 0.0)]));
    }

    #[test]
    fn ratio_is_that_of_their_calls_to_ours() {
        let text = calls_rows("client", &calls(&[("write", 4.0)]), &calls(&[("write", 5.0), ("futex", 1.0)]));
        let ratio = |row: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(row)).unwrap();
            line.rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!((ratio("all"), ratio("without futex")), ("1.50".to_owned(), "1.25".to_owned()));
    }
}
