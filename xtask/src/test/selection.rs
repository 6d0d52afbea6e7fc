//! Which kernel tests run on which kernels.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use bareverbs_lab::Since;

use crate::filter::Filter;

/// Prefixes of tests that run on one kernel only when all tests run, because they take seconds to
/// minutes, and what they test is in user space or in the peer.
const ONE_KERNEL: [&str; 52] = [
    // Programs of this project beside those of rdma-core and perftest: their options and output.
    "perf::",
    "bad_peers::",
    "dropin::pingpongs_",
    "dropin::programs_",
    "every_transport::",
    "exchange::",
    "lost::",
    "rc_pingpong::another_tcp_port_and_long_names",
    "rc_pingpong::checked_data_in_both_directions",
    "rc_pingpong::deep_and_shallow_receive_queues",
    "rc_pingpong::large_messages",
    "rc_pingpong::requested_gid_index_is_used",
    "rc_pingpong::sends_through_a_batch",
    "rc_pingpong::service_level",
    "rc_pingpong::sizes_around_the_inline_limit",
    "reports::rc_json_output",
    "reports::small_messages_go_inline",
    "cm::cmtime_",
    "cm::rcopy_",
    "cm::riostream_runs_on_iwarp",
    "cm::rstream_interoperates_on_iwarp",
    "cm::signals_end_both_sides_of_transfers",
    // A fault of librdmacm, which takes its time limit.
    "cm::udpong_of_librdmacm_has_no_address_handle_on_roce",
    // Programs for two hosts, of what other tests run on each kernel.
    "examples::",
    // Random calls and large numbers.
    "conform::fuzzed_calls_break_no_rule_and_replay",
    "endurance::",
    "hub::a_thousand_clients_share_few_receives",
    "rdmacm::thousand_connections_share_one_file",
    "stream::accepting_side_of_a_stream_on_iwarp_writes_first",
    "stream::reader_gets_all_bytes_wherever_the_end_of_the_connection_finds_it",
    // The conformance suite, once for each broken rule.
    "conform::suite_names_broken_rules",
    // The decoder of `bareverbs trace` on hundreds of calls.
    "trace::devinfo_of_rdma_core_is_decoded",
    "trace::recorded_devinfo_replays",
    // Time-outs of devices and of the kernel.
    "environment::silent_neighbour_has_no_address",
    "rdmacm::lost_messages_are_unreachable_peers",
    "soft::connections_are_made_over_a_network_with_loss",
    "soft::killed_process_on_rxe_",
    "soft::killed_soft_process_",
    "soft::late_answers_are_announced",
    "soft::lost_messages_are_repeated",
    "soft::qpns_are_used_again",
    "stream::keepalive_notices_a_peer_that_is_cut_off",
    "stream::streams_lose_nothing_when_packets_are_lost",
    "verbs::client_notices_a_killed_server",
    "verbs::endpoint_of_a_killed_peer_fails_within_seconds",
    "verbs::endpoints_that_only_receive_notice_a_killed_peer",
    "verbs::hubs_that_only_receive_notice_a_killed_peer",
    "verbs::messages_to_a_killed_",
    "verbs::operations_of_a_hub_to_a_killed_peer_fail_within_seconds",
    "verbs::scope_of_a_killed_peer_ends_within_seconds",
    "verbs::send_to_a_killed_peer_fails_within_seconds",
    "verbs::server_notices_a_killed_client",
];
/// Prefixes of tests that mostly sleep: for retries, timeouts and silent neighbours. Their guest runs
/// beside the others.
const WAITING: [&str; 40] = [
    "bad_peers::misbehaving_peers_are_reported",
    "cm::mckey_",
    "cm::udpong_of_librdmacm_has_no_address_handle_on_roce",
    "environment::silent_neighbour_has_no_address",
    "every_transport::killed_peers_are_reported_on_every_transport",
    "lost::",
    "rdmacm::answer_of_a_neighbour_is_not_missed",
    "rdmacm::deleted_",
    "rdmacm::interface_down_",
    "rdmacm::listener_answers_after_an_interface_returns",
    "rdmacm::lost_messages_are_unreachable_peers",
    "rdmacm::removed_address_",
    "rdmacm::repeated_request_is_new_after_its_rejection",
    "rdmacm::request_while_the_interface_is_down_",
    "rdmacm::requests_above_the_backlog_",
    "rdmacm::resolution_without_an_answer_",
    "rdmacm::time_limit_ends_the_wait_for_a_peer_that_is_cut_off",
    "soft::connections_are_made_over_a_network_with_loss",
    "soft::killed_process_on_rxe_",
    "soft::killed_soft_process_",
    "soft::late_answers_are_announced",
    "soft::lost_messages_are_repeated",
    "soft::peer_of_a_killed_program_fails_and_the_address_is_free",
    "stream::bytes_are_acknowledged_before_a_stream_that_both_sides_ended_is_dropped",
    "stream::keepalive_notices_a_peer_that_is_cut_off",
    "stream::streams_lose_nothing_when_packets_are_lost",
    "stream::vanished_peer_is_noticed",
    "transports::connect_waits_for_a_late_neighbour",
    "transports::destination_of_a_silent_neighbour_",
    "transports::reply_waits_for_a_neighbour_",
    "transports::tasks_run_while_a_destination_is_resolved",
    "verbs::client_notices_a_killed_server",
    "verbs::endpoint_of_a_killed_peer_fails_within_seconds",
    "verbs::endpoints_that_only_receive_notice_a_killed_peer",
    "verbs::hubs_that_only_receive_notice_a_killed_peer",
    "verbs::messages_to_a_killed_",
    "verbs::operations_of_a_hub_to_a_killed_peer_fail_within_seconds",
    "verbs::scope_of_a_killed_peer_ends_within_seconds",
    "verbs::send_to_a_killed_peer_fails_within_seconds",
    "verbs::server_notices_a_killed_client",
];
/// The kernel of the tests that run on one.
const KERNEL: &str = Since::V7_2.name();
/// Prefix of the tests with perftest, of which only these run when all tests run.
const PERFTEST: &str = "perf::";
const PERFTEST_SHORT: &str = "perf::short";
/// They take minutes. `cargo test -p bareverbs-conform` does the same as the first on a soft device. The
/// second is a longer form of another test.
const LEFT_OUT: [&str; 2] = [
    "conform::suite_names_broken_rules_of_commands",
    "soft::large_messages_writes_and_reads_arrive_at_each_mtu",
];

/// Selects tests by name and kernel.
#[derive(Clone, Copy)]
pub(crate) struct Selection<'a> {
    /// Parts of the names.
    pub(crate) filter: Filter<'a>,
    /// Every test on every kernel, and flaky tests fail the run.
    pub(crate) everything: bool,
}

impl Selection<'_> {
    /// Whether the tests that take long are left out.
    pub(crate) fn is_short(self) -> bool {
        self.filter.takes_all() && !self.everything
    }

    /// Whether a test with a selected name runs on this kernel.
    pub(crate) fn runs_on(self, kernel: &str, title: &str) -> bool {
        if !self.is_short() {
            return true;
        }
        let long = title.starts_with(PERFTEST) && !title.starts_with(PERFTEST_SHORT);
        (kernel == KERNEL || group(title).is_none()) && !long && !LEFT_OUT.contains(&title)
    }

    /// What is left out of these tests on these kernels, one line for each group of tests.
    pub(crate) fn left_out<'a>(
        self,
        titles: impl Iterator<Item = &'a str> + Clone,
        kernels: &[&str],
    ) -> Vec<String> {
        let mut groups = BTreeMap::<(&str, Vec<&str>), usize>::new();
        for title in titles {
            let on: Vec<_> = kernels.iter().copied().filter(|kernel| !self.runs_on(kernel, title)).collect();
            if !on.is_empty() {
                *groups.entry((group(title).unwrap_or(title), on)).or_default() += 1;
            }
        }
        let line = |((group, on), count): (&(&str, Vec<&str>), &usize)| match *count {
            1 => format!("on {}: {group}", on.join(", ")),
            count => format!("on {}: {group} ({count} tests)", on.join(", ")),
        };
        groups.iter().map(line).collect()
    }
}

/// Whether a test mostly sleeps.
pub(crate) fn is_waiting(title: &str) -> bool {
    WAITING.iter().any(|prefix| title.starts_with(prefix))
}

/// Fails if one of the prefixes here fits none of these tests.
pub(crate) fn check_prefixes(titles: &[String]) -> Result<()> {
    let fits_none = |prefix: &&&str| !titles.iter().any(|title| title.starts_with(**prefix));
    match ONE_KERNEL.iter().chain(&WAITING).chain(&LEFT_OUT).find(fits_none) {
        Some(prefix) => bail!("{}: no test is named like {prefix}", file!()),
        None => Ok(()),
    }
}

/// The prefix of tests on one kernel that a test has.
fn group(title: &str) -> Option<&'static str> {
    ONE_KERNEL.into_iter().find(|prefix| title.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Selection<'_> = Selection { filter: Filter(&[]), everything: false };
    const EVERYTHING: Selection<'_> = Selection { everything: true, ..SHORT };

    #[test]
    fn slow_tests_run_on_one_kernel_unless_everything_is_selected() {
        assert!(SHORT.runs_on("6.1", "verbs::one") && SHORT.runs_on("7.2", "lost::one"));
        assert!(!SHORT.runs_on("6.1", "lost::one") && !SHORT.runs_on("6.12", "perf::short_one"));
        assert!(SHORT.runs_on("7.2", "perf::short_one") && !SHORT.runs_on("7.2", "perf::long_one"));
        for title in LEFT_OUT {
            assert!(!SHORT.runs_on("7.2", title) && EVERYTHING.runs_on("6.1", title));
        }
        assert!(EVERYTHING.runs_on("6.1", "lost::one") && EVERYTHING.runs_on("6.1", "perf::long_one"));
        let named = ["lost::".to_owned()];
        assert!(Selection { filter: Filter(&named), everything: false }.runs_on("6.1", "lost::one"));
    }

    #[test]
    fn prefixes_fit_existing_tests() {
        let mut titles: Vec<_> =
            ONE_KERNEL.iter().chain(&WAITING).chain(&LEFT_OUT).map(|prefix| format!("{prefix}x")).collect();
        check_prefixes(&titles).unwrap();
        titles.retain(|title| !title.starts_with("endurance::"));
        assert!(check_prefixes(&titles).unwrap_err().to_string().ends_with("named like endurance::"));
    }

    #[test]
    fn left_out_tests_are_listed_by_group_and_kernel() {
        let titles = ["lost::one", "lost::two", "perf::short_one", "perf::long_one", "verbs::one"];
        let lines = SHORT.left_out(titles.into_iter(), &["6.1", "7.2"]);
        assert_eq!(lines, ["on 6.1: lost:: (2 tests)", "on 6.1: perf::", "on 6.1, 7.2: perf::"]);
        assert!(EVERYTHING.left_out(titles.into_iter(), &["6.1", "7.2"]).is_empty());
    }
}
