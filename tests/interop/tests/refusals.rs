//! Unsupported features are rejected before an object is created or a connection is opened.

use std::process::Command;

use bareverbs::values::Mtu;
use bareverbs_interop_tests::calls::trace;
use bareverbs_interop_tests::pingpong::{Bareverbs, HOST};
use bareverbs_test_support::{Completion, Outcome, device, kernel_test, skip};

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// Asserts that `bareverbs` fails with an error that contains `words`, as server and as client, and
/// that it creates no object on the device.
fn refused(options: &[&str], words: &str) {
    for host in [None, Some(HOST)] {
        let calls = trace(&mut Bareverbs(options).command(host));
        assert_eq!(calls.status, Some(1), "{options:?}: {calls:#?}");
        assert!(calls.stderr.contains(words), "{options:?} should say `{words}`: {calls:#?}");
        let made = calls.making();
        assert!(made.is_empty(), "{options:?} made {made:?}: {calls:#?}");
        assert!(!calls.network(), "{options:?} called somebody: {calls:#?}");
    }
}

fn devinfo() -> String {
    let report = Command::new("ibv_devinfo").arg("-v").output().expect("the lab has ibv_devinfo");
    String::from_utf8_lossy(&report.stdout).into_owned()
}

fn odp_is_supported() -> bool {
    devinfo().contains("ODP_SUPPORT")
}

#[kernel_test]
fn strace_lists_the_objects_of_a_client() {
    let calls = trace(&mut Bareverbs(&["-p", "4713"]).command(Some(HOST)));
    assert!(calls.network() && calls.stderr.contains("Connection refused"), "{calls:#?}");
    let made = calls.making();
    for sign in ["CQ", "QP", "MODIFYQP"] {
        assert!(
            made.iter().any(|name| name.to_uppercase().contains(sign)),
            "no {sign} in {made:?}: {calls:#?}"
        );
    }
    let look = trace(Command::new("bareverbs").arg("devinfo"));
    assert_eq!(look.status, Some(0), "{look:#?}");
    assert!(look.making().is_empty(), "a look at the device made {:?}", look.making());
}

#[kernel_test]
fn implicit_on_demand_paging_is_refused_where_the_device_has_none() -> Outcome {
    if devinfo().contains("ODP_SUPPORT_IMPLICIT") {
        return skip("the device has implicit on-demand paging");
    }
    let words = if odp_is_supported() {
        "-O requires implicit on-demand paging (ODP_SUPPORT_IMPLICIT)"
    } else {
        "-o and -O require on-demand paging (ODP_SUPPORT)"
    };
    let words = format!("{}: {words}", device::name());
    refused(&["-O"], &words);
    refused(&["--iodp", "-P"], &words);
    Ok(Completion::Completed)
}

#[kernel_test]
fn completion_timestamps_are_refused_where_the_device_has_none() -> Outcome {
    if device::open().capabilities().completion_timestamps {
        return skip("the device has completion timestamps");
    }
    let words = "-t requires completion timestamps (completion_timestamp_mask)";
    for option in ["-t", "--ts"] {
        refused(&[option], &format!("{}: {words}", device::name()));
    }
    Ok(Completion::Completed)
}

#[kernel_test]
fn device_memory_is_refused_where_the_device_has_none() -> Outcome {
    if device::open().capabilities().device_memory {
        return skip("the device has memory of its own");
    }
    for option in ["-j", "--dm"] {
        refused(&[option], &format!("{}: -j requires device memory (max_dm_size)", device::name()));
    }
    Ok(Completion::Completed)
}

#[kernel_test]
fn odp_is_rejected_without_kernel_support() -> Outcome {
    if odp_is_supported() {
        return skip("the device has on-demand paging");
    }
    for options in [&["-o"][..], &["--odp", "--prefetch"], &["-o", "-P"]] {
        let words = "-o and -O require on-demand paging (ODP_SUPPORT)";
        refused(options, &format!("{}: {words}", device::name()));
    }
    Ok(Completion::Completed)
}

#[kernel_test]
fn limits_of_the_device_are_refused_with_the_limit() {
    let report = devinfo();
    let largest = report.lines().find_map(|line| line.trim().strip_prefix("max_msg_sz:")).unwrap().trim();
    let largest = u64::from_str_radix(largest.trim_start_matches("0x"), 16).unwrap();
    refused(
        &["-s", &(largest + 1).to_string()],
        &format!("exceeds the maximum of port 1 (max_msg_sz {largest})"),
    );
    refused(&["-r", "2000000"], "exceed the capacity of a QP (max_qp_wr ");
    if device::open().query_port(1).expect("the port").active_mtu < Mtu::Mtu4096 {
        refused(&["-m", "4096"], "exceeds the MTU of port 1 (active_mtu 1024)");
    }
}

#[kernel_test]
fn absent_port_or_gid_is_refused() {
    refused(&["-i", "3"], "port 3");
    refused(&["-g", "200"], "GID");
    refused(&["-g", "100000"], "GID");
    refused(&["-d", "rxe7"], "rxe7");
}
