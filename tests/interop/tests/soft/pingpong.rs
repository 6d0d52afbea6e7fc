//! The ping-pongs of rdma-core on rxe with `bareverbs pingpong` on a soft device, in both roles.

use bareverbs_interop_tests::namespace::{
    Namespace, RXE, RXE_IP, RXE_IP6, SOFT, SOFT_IP, SOFT6, rxe_gid_index,
};
use bareverbs_interop_tests::pingpong::{BareverbsOf, Kind, PORT, PingpongRun, RdmaCoreOf};
use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::{device, kernel_test};

const KINDS: [Kind; 4] = [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq];

/// Runs both roles with these options on both sides, and asserts that all data was checked.
fn run_both_roles(
    namespace: &Namespace,
    kind: Kind,
    (soft, rxe_ip): (&str, &str),
    size: u64,
    options: &[&str],
) {
    let index = rxe_gid_index(rxe_ip.parse().expect("an address")).expect("rxe has the address").to_string();
    let (size_text, iters) = (size.to_string(), 20);
    let common = [&["-c", "-n", "20", "-s", &size_text], options].concat();
    let ours = [&["-d", soft], &common[..]].concat();
    // The C program uses the last `-g`.
    let theirs = [&["-d", RXE, "-g", &index], &common[..]].concat();
    let (ours, theirs) = (BareverbsOf(kind, &ours), RdmaCoreOf(kind, &theirs));

    let server = namespace.run(|| ours.serve(PORT));
    let client = Program::start(&mut theirs.command(Some(SOFT_IP))).finish();
    let soft_serves = PingpongRun { kind, client, server: server.finish() };

    let server = theirs.serve(PORT);
    // A C server waits without end for a client that has failed.
    let client = namespace.run(|| Program::start(&mut ours.command(Some(RXE_IP)))).finish().expect_success();
    let rxe_serves = PingpongRun { kind, client, server: server.finish() };

    for (run, checked) in [(&soft_serves, &soft_serves.server), (&rxe_serves, &rxe_serves.client)] {
        run.expect_success(size, iters);
        assert!(checked.stderr.contains("all bytes of "), "{run:#?}");
    }
}

#[kernel_test(device::soft_roce)]
fn pingpongs_of_all_transports_run_with_rxe() {
    let namespace = Namespace::new();
    for kind in KINDS {
        let size = if kind == Kind::Ud { 1000 } else { 4097 };
        run_both_roles(&namespace, kind, (SOFT, RXE_IP), size, &[]);
        run_both_roles(&namespace, kind, (SOFT6, RXE_IP6), 1, &["-e"]);
    }
}
