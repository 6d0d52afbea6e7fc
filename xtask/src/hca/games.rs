//! The C programs against each other, and ours against them.

use anyhow::{Context, Result, ensure};

use super::{Bench, READY};
use crate::pyverbs;

/// Prints what the driver has to say, but for what a card without a vendor capability, a slot's speed or flow rules for
/// switches brings about.
const COMPLAINTS: &str = "dmesg -l emerg,alert,crit,err,warn | grep mlx5 |
grep -vE 'Failed to get valid vendor specific ID|available PCIe bandwidth|post_act_init.*support is missing' || true";

/// Does something with each game. What answers messages one by one plays for `count` of them.
const GAMES: &str = "
games() {
    local game
    for game in rc uc ud srq xsrq; do \"$@\" ibv_${game}_pingpong $gid -n $count || return 1; done
    for game in rc srq; do \"$@\" ibv_${game}_pingpong $gid -e -c -n 50 || return 1; done
    for game in send_lat write_lat read_lat atomic_lat; do \"$@\" ib_$game -F $cm -n $count || return 1; done
    for game in send_bw write_bw read_bw; do \"$@\" ib_$game -F $cm -n 200 || return 1; done
}";

/// Our programs with themselves and with the C programs, in both roles.
const OURS: &str = "
games() {
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

/// What of pyverbs takes seconds and not minutes: whatever a queue, a key and a message can do, and how they fail.
const SELECTED: [&str; 6] = ["test_mr", "test_atomic", "test_cqex", "test_qpex", "test_srq", "test_mlx5_cq"];

/// What needs an address that the RDMA device has. Bytes go through the netdevs: with Ethernet, the card cuts them into
/// frames and sums them up; with InfiniBand, they are datagrams of IPoIB. Then come the connection manager's programs:
/// connections, several of them, datagrams, and streams of bytes over either side's buffers.
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

/// Within a host, two programs share a processor, and each looks for messages until its time is over.
pub(super) fn within(bench: &mut Bench<'_>) -> Result<()> {
    let games = "
games serve
await rping -s -C 10 -v
listening $(seq $first $((at - 2))) || exit 1
at=$first
games play && try rping -c -a $net.$PEER -C 10 -v && served";
    bench.script(0, &format!("count=20\n{GAMES}\n{games}")).map(drop)
}

pub(super) fn ours_within(bench: &mut Bench<'_>, host: usize) -> Result<()> {
    let games = "games serve_one\nlistening || exit 1\nat=$first\ngames play_other && served";
    bench.script(host, &format!("{OURS}\n{games}")).map(drop)
}

pub(super) fn ours_between(bench: &mut Bench<'_>) -> Result<()> {
    bench.play(
        0,
        &format!("{OURS}\ngames serve_one\nlistening || exit 1\necho {READY}\nserved"),
        &format!("{OURS}\ngames play_other"),
    )
}

pub(super) fn between(bench: &mut Bench<'_>) -> Result<()> {
    let games = format!("count=200\n{GAMES}\ngames");
    bench.play(0, &serving(&games), &playing(&games))
}

/// Both ways, and by addresses: enough where the games were played before.
pub(super) fn briefly(bench: &mut Bench<'_>) -> Result<()> {
    let game = "once() { $1 ibv_rc_pingpong $gid -n 50; }\nonce";
    bench.play(0, &serving(game), &playing(game))?;
    one(bench, 1)
}

/// One game, which a host serves.
pub(super) fn one(bench: &mut Bench<'_>, server: usize) -> Result<()> {
    let game = "ibv_rc_pingpong $gid -n 50";
    bench.play(
        server,
        &format!("serve {game}\nlistening || exit 1\necho {READY}\nserved"),
        &format!("play {game}"),
    )
}

/// A script that serves these games and those by addresses.
fn serving(games: &str) -> String {
    format!("{games} serve\nlistening || exit 1\n{ADDRESSED_SERVERS} || exit 1\necho {READY}\nserved")
}

/// The script that plays them.
fn playing(games: &str) -> String {
    format!("{games} play || exit 1\n{ADDRESSED_CLIENTS}")
}

pub(super) fn no_complaints(bench: &mut Bench<'_>) -> Result<()> {
    (0..usize::from(bench.hosts)).try_for_each(|host| no_complaints_of(bench, host))
}

pub(super) fn no_complaints_of(bench: &mut Bench<'_>, host: usize) -> Result<()> {
    let said = bench.script(host, COMPLAINTS)?;
    ensure!(said.trim().is_empty(), "host {}:\n{said}", host + 1);
    Ok(())
}

pub(super) fn pyverbs(bench: &mut Bench<'_>) -> Result<()> {
    let root = bench.setup.peers.clone().context("the hosts have the Debian root")?;
    let kind = bench.kind();
    pyverbs::run_part(bench.guests()?, &root, "mlx5_0", kind, &SELECTED)
}
