//! Interop runs: the C programs against each other, and ours against them.

use anyhow::{Context, Result, ensure};

use super::{READY, Testbed};
use crate::pyverbs;

/// Prints the driver's messages. Those caused by the HCA's missing vendor capability, slot speed
/// and flow rules for switches are filtered out.
const DMESG_ERRORS: &str = "dmesg -l emerg,alert,crit,err,warn | grep mlx5 |
grep -vE 'Failed to get valid vendor specific ID|available PCIe bandwidth|post_act_init.*support is missing' || true";

/// Runs a function for each program. Programs that answer each message run `count` of them.
const EACH_PROGRAM: &str = "
programs() {
    local program
    for program in rc uc ud srq xsrq; do \"$@\" ibv_${program}_pingpong $gid -n $count || return 1; done
    for program in rc srq; do \"$@\" ibv_${program}_pingpong $gid -e -c -n 50 || return 1; done
    for program in send_lat write_lat read_lat atomic_lat; do \"$@\" ib_$program -F $cm -n $count || return 1; done
    for program in send_bw write_bw read_bw; do \"$@\" ib_$program -F $cm -n 200 || return 1; done
}";

/// Our programs with themselves and with the C programs, in both roles.
const OURS: &str = "
programs() {
    local kind
    for kind in rc uc ud srq xsrq; do
        $1 \"bareverbs pingpong $kind\" \"bareverbs pingpong $kind\" || return 1
        $1 \"bareverbs pingpong $kind\" ibv_${kind}_pingpong || return 1
        $1 ibv_${kind}_pingpong \"bareverbs pingpong $kind\" || return 1
    done
    $1 'bareverbs pingpong rc -e -c' 'bareverbs pingpong rc -e -c'
}
serve_one() { serve $1 $gid -n 20; }
play_other() { play $2 $gid -n 20; }";

/// The modules of pyverbs that take seconds, not minutes: queues, keys, messages, and their
/// failures.
const SELECTED: [&str; 6] = ["test_mr", "test_atomic", "test_cqex", "test_qpex", "test_srq", "test_mlx5_cq"];

/// Tests that need an address of the RDMA device. IP traffic goes over the netdevs: on Ethernet,
/// the HCA segments it into frames and computes checksums; on InfiniBand, it is IPoIB. Then follow
/// the connection manager's programs: connections, several of them, datagrams, and byte streams
/// over either side's buffers.
const ADDRESSED_SERVERS: &str = r#"
await python3 -c '
import socket
connection, _ = socket.create_server(("0.0.0.0", 7777)).accept()
wanted, there = bytes(range(251)) * 16000, 0
while chunk := connection.recv(65536):
    assert chunk == wanted[there:there + len(chunk)], there
    there += len(chunk)
assert there == 4000000, there'
await rping -s -C 10 -v
await udaddy -c 4 -C 20
# The streams wait for their turn with a busy processor.
await sh -c 'ucmatose -p 7801 -c 4 -C 20 && rstream -p 7802 -S 4096 -I 20 -C 50 && riostream -p 7803 -S 4096 -I 20 -C 50'
listening 7777"#;
const ADDRESSED_CLIENTS: &str = r#"
try ping -q -c 2 -i 0.2 $net.$PEER || exit 1
timeout 120 python3 -c '
import socket
socket.create_connection(("'$net.$PEER'", 7777)).sendall((bytes(range(251)) * 16000)[:4000000])' || exit 1
try rping -c -a $net.$PEER -C 10 -v &&
    try udaddy -s $net.$PEER -c 4 -C 20 &&
    try ucmatose -s $net.$PEER -p 7801 -c 4 -C 20 &&
    try rstream -s $net.$PEER -p 7802 -T n -S 4096 -I 20 -C 50 &&
    try riostream -s $net.$PEER -p 7803 -S 4096 -I 20 -C 50"#;

/// Tools over the connection manager. `$server` and `$client` say whose they are. The datagrams of a
/// group come first, because their receiver waits for 10 seconds only. rping's server follows when the
/// receiver has them all. The servers without an end are killed when the client of the last tool has
/// ended, so their clients come before. Datagram sockets of librdmacm do not work over RoCE: it creates
/// an address handle without a GRH.
const TOOL_SERVERS: &str = r#"
await sh -c "$server mckey -m 239.7.7.7 -b $net.$PEER -C 4 && exec $server rping -s -v"
await $server udaddy -c 2 -C 10
await $server ucmatose -p 7811 -c 4 -C 20
await $server cmtime -p 7812 -L -b $net.$PEER -C $net.$PEER -c 10
await $server rstream -p 7813 -T b -S 4096 -I 5 -C 10
if [ $PORT = ib ]; then
    $server udpong -b $net.$PEER -p 7815 >/tmp/udpong 2>&1 &
    ponging=$!
fi
$server rcopy -p 7814 >/tmp/rcopy 2>&1 &
copying=$!"#;
const TOOL_CLIENTS: &str = r#"
pong() { [ $PORT = roce ] || try $client udpong -s $net.$PEER -p 7815 -C 100 -S 200 -T e; }
# librdmacm's mckey destroys its QP before its sends are out, so it sends until rping has a server.
ping_after_group() {
    local n=0
    until $client rping -c -a $net.$PEER -C 5 -V >/tmp/client 2>&1; do
        n=$((n + 1))
        [ $n -lt 12 ] || { echo "the group's messages do not arrive:"; cat /tmp/client; return 1; }
        $client mckey -m 239.7.7.7 -b $net.$HOST -C 4 -s || return
    done
}
ping_after_group &&
    try $client udaddy -s $net.$PEER -c 2 -C 10 &&
    try $client ucmatose -s $net.$PEER -p 7811 -c 4 -C 20 &&
    try $client cmtime -p 7812 -b $net.$HOST -C $net.$PEER -c 10 &&
    pong &&
    try $client rcopy /bin/ls $net.$PEER:/tmp/copy -p 7814 &&
    try $client rstream -s $net.$PEER -p 7813 -T b -S 4096 -I 5 -C 10"#;

/// Our tools over the connection manager with those of librdmacm, in both roles.
pub(super) fn tools_between(testbed: &mut Testbed<'_>) -> Result<()> {
    for (server, client) in [("bareverbs", ""), ("", "bareverbs")] {
        testbed.run_pair(
            0,
            &format!(
                "server={server}\n{TOOL_SERVERS}\nlistening 7812 || exit 1\necho {READY}\nserved || exit 1\n\
                 kill $copying $ponging; cmp /bin/ls /tmp/copy && rm /tmp/copy"
            ),
            &format!("client={client}\n{TOOL_CLIENTS}"),
        )?;
    }
    Ok(())
}

/// On one host, two programs share a processor, and each polls until its time slice ends.
pub(super) fn within(testbed: &mut Testbed<'_>) -> Result<()> {
    let programs = "
programs serve
await rping -s -C 10 -v
listening $(seq $first $((at - 2))) || exit 1
at=$first
programs play && try rping -c -a $net.$PEER -C 10 -v && served";
    testbed.script(0, &format!("count=20\n{EACH_PROGRAM}\n{programs}")).map(drop)
}

pub(super) fn bareverbs_within(testbed: &mut Testbed<'_>, host: usize) -> Result<()> {
    let programs = "programs serve_one\nlistening || exit 1\nat=$first\nprograms play_other && served";
    testbed.script(host, &format!("{OURS}\n{programs}")).map(drop)
}

pub(super) fn bareverbs_between(testbed: &mut Testbed<'_>) -> Result<()> {
    testbed.run_pair(
        0,
        &format!("{OURS}\nprograms serve_one\nlistening || exit 1\necho {READY}\nserved"),
        &format!("{OURS}\nprograms play_other"),
    )
}

pub(super) fn between(testbed: &mut Testbed<'_>) -> Result<()> {
    let programs = format!("count=200\n{EACH_PROGRAM}\nprograms");
    testbed.run_pair(0, &serving(&programs), &client_script(&programs))
}

/// Both directions, and by addresses. This suffices if the programs have run before.
pub(super) fn smoke(testbed: &mut Testbed<'_>) -> Result<()> {
    let program = "once() { $1 ibv_rc_pingpong $gid -n 50; }\nonce";
    testbed.run_pair(0, &serving(program), &client_script(program))?;
    one(testbed, 1)
}

/// One program, served by a host.
pub(super) fn one(testbed: &mut Testbed<'_>, server: usize) -> Result<()> {
    let program = "ibv_rc_pingpong $gid -n 50";
    testbed.run_pair(
        server,
        &format!("serve {program}\nlistening || exit 1\necho {READY}\nserved"),
        &format!("play {program}"),
    )
}

/// A script that serves these programs and those by address.
fn serving(programs: &str) -> String {
    format!("{programs} serve\nlistening || exit 1\n{ADDRESSED_SERVERS} || exit 1\necho {READY}\nserved")
}

/// The script of the clients.
fn client_script(programs: &str) -> String {
    format!("{programs} play || exit 1\n{ADDRESSED_CLIENTS}")
}

pub(super) fn dmesg_clean(testbed: &mut Testbed<'_>) -> Result<()> {
    (0..usize::from(testbed.hosts)).try_for_each(|host| dmesg_clean_of(testbed, host))
}

pub(super) fn dmesg_clean_of(testbed: &mut Testbed<'_>, host: usize) -> Result<()> {
    let said = testbed.script(host, DMESG_ERRORS)?;
    ensure!(said.trim().is_empty(), "host {}:\n{said}", host + 1);
    Ok(())
}

pub(super) fn pyverbs(testbed: &mut Testbed<'_>) -> Result<()> {
    let root = testbed.setup.rdma_core.clone().context("the hosts have the Debian root")?;
    let kind = testbed.kind();
    pyverbs::run_part(testbed.guests()?, &root, "mlx5_0", kind, &SELECTED)
}
