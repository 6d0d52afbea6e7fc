//! Successful runs of `bareverbs pingpong rc` with `ibv_rc_pingpong`, in both roles, and with
//! itself.

use std::fs;
use std::process::Command;

use bareverbs::values::Mtu;
use bareverbs_interop_tests::pingpong::{
    Bareverbs, RdmaCore, run_all_pairings, run_pingpong, run_pingpong_on,
};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{Outcome, device, kernel_test, skip};

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// Iterations of tests for which the number does not matter.
const SOME: &[&str] = &["-n", "50"];

#[kernel_test]
fn default_rc_runs_match_ibv_rc_pingpong() {
    nothing_leaks(|| {
        for (server, client) in [
            (Bareverbs(&[]), RdmaCore(&[])),
            (RdmaCore(&[]), Bareverbs(&[])),
            (Bareverbs(&[]), Bareverbs(&[])),
        ] {
            let run = run_pingpong(server, client).expect_regular(4096, 1000);
            for (player, side) in [(server, &run.server), (client, &run.client)] {
                let said = side.stderr.trim_end();
                // On InfiniBand the LID suffices.
                let remark = match player.is_bareverbs() && !device::is_infiniband() {
                    true => format!("using GID index {} (::ffff:10.1.0.1, RoCE v2)", device::gid_index()),
                    false => String::new(),
                };
                assert_eq!(said, remark);
            }
        }
    });
}

#[kernel_test]
fn either_side_may_sleep_on_events() {
    let sleeping = &["-e", "-n", "50"][..];
    nothing_leaks(|| {
        run_all_pairings(sleeping, 4096, 50);
        for (server, client) in [
            (Bareverbs(sleeping), RdmaCore(SOME)),
            (Bareverbs(SOME), RdmaCore(sleeping)),
            (RdmaCore(sleeping), Bareverbs(SOME)),
            (RdmaCore(SOME), Bareverbs(sleeping)),
        ] {
            run_pingpong(server, client).expect_regular(4096, 50);
        }
    });
}

#[kernel_test]
fn sizes_around_the_inline_limit() {
    for size in ["1", "15", "16", "17", "64", "512"] {
        run_all_pairings(&["-n", "20", "-s", size], size.parse().unwrap(), 20);
    }
}

#[kernel_test]
fn one_receive_and_one_iteration() {
    run_all_pairings(&["-s", "128", "-r", "1", "-n", "1"], 128, 1);
}

#[kernel_test]
fn large_messages() {
    run_all_pairings(&["-s", "1048576", "-n", "3"], 1 << 20, 3);
    run_all_pairings(&["-s", "1048576", "-n", "2", "-e"], 1 << 20, 2);
}

/// Sets a link's MTU until it is dropped.
struct LinkMtu {
    before: Vec<(String, String)>,
}

impl LinkMtu {
    fn raise(mtu: &str) -> Self {
        let path = |link: &str| format!("/sys/class/net/{link}/mtu");
        let mut links = vec![device::netdev()];
        if device::has_peer_veth().is_ok() {
            links.push(device::FAR.to_owned());
        }
        let read = |link: &str| fs::read_to_string(path(link)).expect("the interface has an MTU");
        let before = links.iter().map(|link| (path(link), read(link).trim().to_owned())).collect();
        links.iter().for_each(|link| fs::write(path(link), mtu).expect("root may set the MTU"));
        Self { before }
    }
}

impl Drop for LinkMtu {
    fn drop(&mut self) {
        self.before.iter().for_each(|(path, mtu)| fs::write(path, mtu).expect("root may set the MTU"));
    }
}

#[kernel_test]
fn every_path_mtu() {
    for mtu in ["256", "512", "1024"] {
        run_all_pairings(&["-m", mtu, "-s", "3000", "-n", "5"], 3000, 5);
    }
    let _link = match device::open().query_port(1).expect("the port").active_mtu {
        Mtu::Mtu4096 => None,
        _ => {
            let refused = Bareverbs(&["-m", "2048"]).serve(18515).finish();
            refused.expect_failure("path MTU 2048 (-m) exceeds the MTU of port 1 (active_mtu 1024)");
            Some(LinkMtu::raise("4200"))
        }
    };
    for mtu in ["2048", "4096"] {
        run_all_pairings(&["-m", mtu, "-s", "10000", "-n", "5"], 10_000, 5);
    }
}

#[kernel_test]
fn checked_data_in_both_directions() {
    for size in ["1", "200", "4096", "100000"] {
        let options = &["-c", "-n", "10", "-s", size][..];
        let plain = &options[1..];
        let bytes = size.parse().unwrap();
        for (server, client) in [
            (Bareverbs(options), RdmaCore(options)),
            (RdmaCore(options), Bareverbs(options)),
            (Bareverbs(options), RdmaCore(plain)),
            (RdmaCore(plain), Bareverbs(options)),
            (Bareverbs(options), Bareverbs(options)),
            (Bareverbs(plain), Bareverbs(options)),
        ] {
            let run = run_pingpong(server, client).expect_regular(bytes, 10);
            for (player, side) in [(server, &run.server), (client, &run.client)] {
                let checks = matches!(player, Bareverbs(["-c", ..]));
                assert_eq!(side.stderr.contains("all bytes of 10 messages"), checks, "{run:#?}");
            }
        }
    }
}

#[kernel_test]
fn sends_through_a_batch() {
    run_all_pairings(&["-N", "-n", "50"], 4096, 50);
    run_all_pairings(&["-N", "-n", "50", "-s", "64"], 64, 50);
    run_all_pairings(&["-N", "-n", "50", "-s", "64", "-c", "-e"], 64, 50);
    // The C program is left out: rdma-core 65 on Soft-RoCE marks the SGE of a batch as inline data
    // and copies no data, so the message holds the SGE's address and key.
    let inline = Bareverbs(&["-N", "-n", "50", "-s", "16", "-c"]);
    run_pingpong(inline, inline).expect_regular(16, 50);
}

#[kernel_test]
fn requested_gid_index_is_used() {
    let index = device::gid_index().to_string();
    let options = ["-n", "20", "-g", &index];
    let ours = Bareverbs(&options);
    // On InfiniBand, the C program uses a GID only with `-g`. Without it, the C program can't reach
    // a peer with a GID.
    let theirs = RdmaCore(if device::is_infiniband() { &options } else { &options[..2] });
    let run = run_pingpong(ours, theirs).expect_regular(4096, 20);
    assert_eq!(run.server.stderr, "", "a given index needs no remark");
    run_pingpong(theirs, ours).expect_regular(4096, 20);
    run_pingpong(ours, ours).expect_regular(4096, 20);
    // The C program uses the last `-g`, so both sides use the link-local address.
    let link_local = &["-n", "20", "-g", "0"][..];
    let run = run_pingpong(RdmaCore(link_local), Bareverbs(link_local)).expect_regular(4096, 20);
    assert!(run.client.stdout.contains("GID fe80::"), "{run:#?}");
}

#[kernel_test]
fn service_level() {
    run_all_pairings(&["-l", "3", "-n", "20"], 4096, 20);
}

#[kernel_test]
fn another_tcp_port_and_long_names() {
    let options =
        &["--port=4711", "--ib-dev", device::name(), "--ib-port=1", "--iters=20", "--size=0x100"][..];
    for (server, client) in [(Bareverbs(options), RdmaCore(options)), (RdmaCore(options), Bareverbs(options))]
    {
        run_pingpong_on(4711, server, client).expect_regular(256, 20);
    }
}

#[kernel_test]
fn deep_and_shallow_receive_queues() {
    let (deep, shallow) = (&["-n", "50", "-r", "4000"][..], &["-n", "50", "-r", "2"][..]);
    run_pingpong(Bareverbs(deep), RdmaCore(shallow)).expect_regular(4096, 50);
    run_pingpong(RdmaCore(deep), Bareverbs(shallow)).expect_regular(4096, 50);
}

#[kernel_test]
fn odp_runs_with_kernel_support() -> Outcome {
    let report = Command::new("ibv_devinfo").arg("-v").output().expect("the lab has ibv_devinfo");
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    if !report.contains("ODP_SUPPORT") {
        return skip("this kernel's Soft-RoCE has no on-demand paging");
    }
    nothing_leaks(|| {
        run_all_pairings(&["-o", "-n", "20"], 4096, 20);
        run_all_pairings(&["-o", "-P", "-n", "20", "-s", "100000"], 100_000, 20);
        // Soft-RoCE of Linux 7.2 ignores the offset in the page in ODP copies (rxe_odp.c,
        // __rxe_odp_mr_copy), so only messages of one packet are intact.
        run_all_pairings(&["-o", "-P", "-n", "20", "-s", "1024", "-c"], 1024, 20);
        if !device::is_soft_roce() {
            run_all_pairings(&["-o", "-n", "20", "-s", "100000", "-c"], 100_000, 20);
        }
        if report.contains("ODP_SUPPORT_IMPLICIT") {
            run_all_pairings(&["-O", "-n", "20"], 4096, 20);
            run_all_pairings(&["-O", "-P", "-n", "20", "-s", "100000", "-c"], 100_000, 20);
        }
    });
    Ok(bareverbs_test_support::Completion::Completed)
}

#[kernel_test]
fn unprotected_memory_is_ordinary_memory_outside_of_confidential_guests() {
    let options = &["-U", "-n", "20"][..];
    // The provider of librxe has no parent domains, which the C program asks for.
    let theirs = RdmaCore(if device::is_soft_roce() { &options[1..] } else { options });
    let ours = Bareverbs(options);
    nothing_leaks(|| {
        for (server, client) in [(ours, theirs), (theirs, ours), (ours, ours)] {
            run_pingpong(server, client).expect_regular(4096, 20);
        }
    });
}

#[kernel_test(device::timestamps)]
fn completion_timestamps() {
    const STARTS: [&str; 3] = ["Max", "Min", "Average"];
    let options = &["-t", "-n", "50"][..];
    nothing_leaks(|| {
        for (server, client) in
            [(Bareverbs(options), RdmaCore(options)), (RdmaCore(options), Bareverbs(options))]
        {
            let mut run = run_pingpong(server, client);
            for side in [&mut run.server, &mut run.client] {
                let all: Vec<_> = side.stdout.lines().map(str::to_owned).collect();
                let (gaps, rest): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|line| line.contains(" receive completion clock cycles = "));
                let values = STARTS.map(|start| {
                    let line = gaps.iter().find(|line| line.starts_with(start));
                    let (_, value) = line.unwrap_or_else(|| panic!("{side:#?}")).split_once(" = ").unwrap();
                    value.parse::<f64>().unwrap()
                });
                let [most, least, average] = values;
                assert!(0.0 < least && least <= average && average <= most, "{side:#?}");
                side.stdout = rest.join("\n") + "\n";
            }
            run.expect_regular(4096, 50);
        }
        // A run of one message has no interval.
        let single = &["-t", "-n", "1", "-e"][..];
        run_pingpong(Bareverbs(single), Bareverbs(single)).expect_regular(4096, 1);
    });
}

#[kernel_test(device::device_memory)]
fn device_memory() {
    nothing_leaks(|| {
        for size in ["4096", "20000"] {
            run_all_pairings(&["-j", "-n", "20", "-s", size], size.parse().unwrap(), 20);
        }
        // The C program is left out: rdma-core 65 copies messages that fit inline from address 0,
        // and crashes.
        let short = Bareverbs(&["-j", "-n", "20", "-s", "4"]);
        run_pingpong(short, short).expect_regular(4, 20);
        let checked = &["-j", "-n", "10", "-s", "777", "-c"][..];
        run_pingpong(Bareverbs(checked), Bareverbs(checked)).expect_regular(777, 10);
        // Each side selects its memory independently.
        run_pingpong(Bareverbs(checked), RdmaCore(&["-n", "10", "-s", "777"])).expect_regular(777, 10);
        run_pingpong(RdmaCore(&["-n", "10", "-s", "777"]), Bareverbs(&["-j", "-n", "10", "-s", "777"]))
            .expect_regular(777, 10);
    });
}
