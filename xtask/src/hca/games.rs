//! The C programs against each other.

use anyhow::{Result, ensure};

use super::Bench;
use crate::pyverbs;

/// Prints what the driver has to say, but for what a card without a vendor capability, a slot's speed or flow rules for
/// switches brings about.
pub(super) const COMPLAINTS: &str = "dmesg -l emerg,alert,crit,err,warn | grep mlx5 |
grep -vE 'Failed to get valid vendor specific ID|available PCIe bandwidth|post_act_init.*support is missing' || true";

const SERVERS: &str = "
for kind in rc uc ud srq xsrq; do ibv_${kind}_pingpong $gid -n 200 >/tmp/server 2>&1 || { echo $kind; cat /tmp/server; exit 1; }; done
for events in rc srq; do ibv_${events}_pingpong $gid -e -c -n 50 >/tmp/server 2>&1 || { echo $events -e; cat /tmp/server; exit 1; }; done
for test in send_lat write_lat read_lat atomic_lat send_bw write_bw read_bw; do
    ib_$test -F $cm -n 200 >/tmp/server 2>&1 || { echo $test; cat /tmp/server; exit 1; }
done";

const CLIENTS: &str = "
for kind in rc uc ud srq xsrq; do try ibv_${kind}_pingpong $gid -n 200 10.1.0.1 || exit 1; done
for events in rc srq; do try ibv_${events}_pingpong $gid -e -c -n 50 10.1.0.1 || exit 1; done
for test in send_lat write_lat read_lat atomic_lat send_bw write_bw read_bw; do try ib_$test -F $cm -n 200 10.1.0.1 || exit 1; done";

/// What of pyverbs takes seconds and not minutes: whatever a queue, a key and a message can do, and how they fail.
const SELECTED: [&str; 6] = ["test_mr", "test_atomic", "test_cqex", "test_qpex", "test_srq", "test_mlx5_cq"];

/// The connection manager's, which need an address that the RDMA device has.
const CM_SERVER: &str = "rping -s -C 10 -v >/tmp/server 2>&1 || { cat /tmp/server; exit 1; }";
const CM_CLIENT: &str = "try rping -c -a $net.1 -C 10 -v";

/// Bytes through the netdevs. With Ethernet, the card cuts them into frames and sums them up; with InfiniBand, they are
/// datagrams of IPoIB.
const TCP_SERVER: &str = r#"timeout 60 python3 -c '
import socket
connection, _ = socket.create_server(("0.0.0.0", 7777)).accept()
count = 0
while chunk := connection.recv(65536):
    assert chunk == bytes(i % 251 for i in range(count, count + len(chunk))) if count < 200000 else True
    count += len(chunk)
assert count == 4000000, count'"#;
const TCP_CLIENT: &str = r#"try ping -q -c 2 $net.1 || exit 1
try timeout 60 python3 -c '
import socket
socket.create_connection(("'$net'.1", 7777)).sendall(bytes(i % 251 for i in range(4000000)))'"#;

pub(super) fn within(bench: &mut Bench<'_>) -> Result<()> {
    bench.script(0, &format!("({SERVERS}) & server=$!\n{CLIENTS}\nwait $server"))?;
    bench.script(0, &format!("({CM_SERVER}) & server=$!\n{CM_CLIENT} && wait $server")).map(drop)
}

pub(super) fn between(bench: &mut Bench<'_>) -> Result<()> {
    bench.scripts(SERVERS, CLIENTS)?;
    bench.scripts(TCP_SERVER, TCP_CLIENT)?;
    bench.scripts(CM_SERVER, CM_CLIENT)
}

pub(super) fn no_complaints(bench: &mut Bench<'_>) -> Result<()> {
    for host in 0..usize::from(bench.hosts) {
        let said = bench.script(host, COMPLAINTS)?;
        ensure!(said.trim().is_empty(), "host {}:\n{said}", host + 1);
    }
    Ok(())
}

pub(super) fn pyverbs(bench: &mut Bench<'_>) -> Result<()> {
    pyverbs::run_part(bench.guests()?, "mlx5_0", &SELECTED)
}
