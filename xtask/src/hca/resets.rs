//! Fault injection under traffic: link down, driver unbind, function reset, kill of guests and
//! HCAs.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bareverbs_lab::HcaPort;

use super::{READY, Testbed, interop};

/// Loopback traffic that only ends with the device.
const TRAFFIC: &str = "
serve ib_write_bw -F $cm -D 60
listening || exit 1
ib_write_bw -F $cm -D 60 -p $first 10.1.0.1 >/tmp/traffic 2>&1 & client=$!
sleep 1
kill -0 $client || { cat /tmp/traffic; exit 1; }";

/// Afterwards the device must work again, and its port must have its address.
const PLAYS: &str = "
kill ${waiting[@]} $client 2>/dev/null
wait
ready || exit 1
at=$first waiting=()
serve ibv_rc_pingpong $gid -n 50
listening || exit 1
at=$first
play ibv_rc_pingpong $gid -n 50 && served || exit 1";

/// Traffic from the second host to the first that only ends with one of them.
const SERVES_LONG: &str = "serve ib_write_bw -F $cm -D 60; listening && echo ready to play; wait";
const SENDS_LONG: &str = "
ib_write_bw -F $cm -D 60 -p $first 10.1.0.1 >/tmp/traffic 2>&1 & client=$!
sleep 1.5
kill -0 $client || { cat /tmp/traffic; exit 1; }
echo sending; wait";

pub(super) fn cable(testbed: &mut Testbed<'_>) -> Result<()> {
    // The driver of a RoCE port disables it until its netdev is up, which counts too.
    let downs = testbed.link_downs()?;
    testbed.until(0, "exec stdbuf -oL ibv_asyncwatch -d mlx5_0", "async event FD")?;
    for command in ["1 link down", "1 link up"] {
        testbed.control(command)?;
        let wanted = if command.ends_with("up") { "PORT_ACTIVE" } else { "PORT_ERR" };
        testbed.wait_for_event(0, wanted)?;
    }
    if testbed.port == HcaPort::Ib {
        testbed.control("1 lid 77")?;
        testbed.wait_for_event(0, "LID_CHANGE")?;
    }
    testbed.stop(0)?;
    let mut seen = testbed.script(0, "ready && cat $port/lid")?;
    let now = testbed.link_downs()?;
    ensure!(now == downs + 1, "link_downed is {now}, after {downs}");
    if testbed.port == HcaPort::Ib {
        // The kernel's cache drops the event of an InfiniBand port's GID (`ib_cache_event_task` in
        // its core/cache.c).
        testbed.control("1 prefix 0xfec0000000000000")?;
        let wait = "for n in $(seq 200); do grep fec0: $port/gids/0 && break; sleep 0.05; done";
        seen += &testbed.script(0, wait)?;
        ensure!(seen.contains("0x4d") && seen.contains("fec0:"), "the port shows {seen}");
        testbed.control("1 lid 1")?;
        testbed.control("1 prefix 0xfe80000000000000")?;
    }
    interop::one(testbed, 0)
}

/// Ends once the netdev is down, with the port's state, the device's link and the state after `up`.
const NETDEV_DOWN: &str = "
netdev=$(ls /sys/bus/pci/devices/$pci/net)
stdbuf -oL ibv_asyncwatch -d mlx5_0 >/tmp/events & watch=$!
until grep -q 'async event FD' /tmp/events; do kill -0 $watch || exit 1; sleep 0.05; done
# Waits until the events have a line with this text.
event() {
    local end=$((SECONDS + 60))
    until grep -q $1 /tmp/events; do [ $SECONDS -lt $end ] || { cat /tmp/events; return 1; }; sleep 0.05; done
}
ibv_rc_pingpong $gid -p 18700 -n 1000000000 >/tmp/server 2>&1 & server=$!
listening 18700 || exit 1
ibv_rc_pingpong $gid -p 18700 -n 1000000000 10.1.0.1 >/tmp/client 2>&1 & client=$!
sleep 1
kill -0 $client || { cat /tmp/client; exit 1; }
ip link set $netdev down || exit 1
event PORT_ERR || exit 1
cat $port/state
# Without packets the retries of the one that has sent are exceeded; the other waits for its message.
wait -n $server $client; cat /tmp/server /tmp/client
kill $server $client $watch
ready || exit 1
cat $port/state";

/// The driver disables the port of a netdev that is set down.
pub(super) fn netdev_down(testbed: &mut Testbed<'_>) -> Result<()> {
    let downs = testbed.link_downs()?;
    let seen = testbed.script(0, NETDEV_DOWN)?;
    for sign in ["1: DOWN", "transport retry counter exceeded", "4: ACTIVE"] {
        ensure!(seen.contains(sign), "the port shows no {sign:?}: {seen}");
    }
    let now = testbed.link_downs()?;
    ensure!(now == downs + 1, "link_downed is {now}, after {downs}");
    interop::one(testbed, 0)
}

/// A doctor that serves until another one has ended its checks.
const SERVES_DOCTOR: &str = "
ready || exit 1
bareverbs perf doctor -d mlx5_0 --serve >/tmp/doctor 2>&1 & doctor=$!
until grep -q 'waiting for clients on TCP' /tmp/doctor; do kill -0 $doctor || exit 1; sleep 0.1; done
echo ready to play
until grep -q 'has ended its checks' /tmp/doctor; do sleep 0.1; done
kill $doctor; wait; true";

/// The doctor of the second host on a link that is up, then the one of the first host, whose link is
/// down.
pub(super) fn doctor(testbed: &mut Testbed<'_>) -> Result<()> {
    let healthy =
        "ready && bareverbs perf doctor -d mlx5_0 10.1.0.1 >/tmp/healthy || { cat /tmp/healthy; exit 1; }
grep -q '200 arrived and 200 came back' /tmp/healthy";
    testbed.run_pair(0, SERVES_DOCTOR, healthy)?;
    testbed.control("1 link down")?;
    let faulty = testbed.script(0, "bareverbs perf doctor -d mlx5_0; [ $? = 1 ]");
    testbed.control("1 link up")?;
    let faulty = faulty?;
    ensure!(faulty.contains("mlx5_0/1") && faulty.contains("is DOWN"), "the doctor printed {faulty}");
    testbed.script(0, "ready").map(drop)
}

pub(super) fn unbind(testbed: &mut Testbed<'_>) -> Result<()> {
    let cycle = "echo $pci >$driver/unbind && echo $pci >$driver/bind";
    testbed.script(0, &format!("{TRAFFIC}\n{cycle}\n{PLAYS}\n{cycle} && {cycle}\n{PLAYS}")).map(drop)
}

pub(super) fn reload(testbed: &mut Testbed<'_>) -> Result<()> {
    let reload = "devlink dev reload pci/$pci || exit 1";
    testbed.script(0, &format!("{TRAFFIC}\n{reload}\n{PLAYS}\n{reload}\n{PLAYS}")).map(drop)
}

/// The driver detects the reset by the state of the interface, and recovers by itself.
pub(super) fn function_reset(testbed: &mut Testbed<'_>) -> Result<()> {
    let unbound =
        "echo $pci >$driver/unbind && echo 1 >/sys/bus/pci/devices/$pci/reset && echo $pci >$driver/bind";
    testbed.script(0, &format!("{unbound}\n{PLAYS}"))?;
    let bound = "
echo 1 >/sys/bus/pci/devices/$pci/reset
n=0
until dmesg | grep -q 'recovery succeeded'; do
    n=$((n + 1)); [ $n -lt 240 ] || { dmesg | tail -20; exit 1; }
    sleep 0.25
done";
    testbed.script(0, &format!("{TRAFFIC}\ndmesg -C\n{bound}\n{PLAYS}")).map(drop)
}

pub(super) fn killed_guest(testbed: &mut Testbed<'_>) -> Result<()> {
    testbed.until(0, SERVES_LONG, READY)?;
    testbed.until(1, SENDS_LONG, "sending")?;
    testbed.kill(0)?;
    // The HCA detects the kill at its next access to the socket.
    let begin = Instant::now();
    loop {
        let left = testbed.control("1 objects")?;
        if left.starts_with("eqs 0 cqs 0 qps 0 srqs 0 keys 0") {
            break;
        }
        ensure!(begin.elapsed() < Duration::from_secs(5), "the killed guest left {left}");
        sleep(Duration::from_millis(10));
    }
    // The other side's retries are exceeded, and the program ends.
    testbed.stop(1)?;
    testbed.restart(&[0])?;
    interop::smoke(testbed)
}

pub(super) fn replaced_hcas(testbed: &mut Testbed<'_>) -> Result<()> {
    testbed.until(0, SERVES_LONG, READY)?;
    testbed.until(1, SENDS_LONG, "sending")?;
    testbed.hca.replace()?;
    for host in 0..2 {
        testbed.kill(host)?;
    }
    testbed.restart(&[0, 1])?;
    interop::smoke(testbed)
}

impl Testbed<'_> {
    /// Waits until a running script prints `sign`.
    fn wait_for_event(&mut self, host: usize, sign: &str) -> Result<()> {
        let deadline = Some(Instant::now() + super::LIMIT);
        let guests = self.guests()?;
        let mut output = String::new();
        while guests.is_running(host) && !output.contains(sign) {
            let step = guests.step(deadline, &mut |_, _, bytes| {
                output += &String::from_utf8_lossy(bytes);
                Ok(())
            });
            step.with_context(|| format!("host {} has not printed `{sign}`, but:\n{output}", host + 1))?;
        }
        ensure!(output.contains(sign), "host {} printed no `{sign}`:\n{output}", host + 1);
        Ok(())
    }

    /// How often the link of the first host has gone down.
    fn link_downs(&mut self) -> Result<u32> {
        let count = self.script(0, "cat $port/counters/link_downed")?;
        count.trim().parse().with_context(|| format!("link_downed is {count:?}"))
    }

    /// Ends a running script.
    fn stop(&mut self, host: usize) -> Result<()> {
        let guests = self.guests()?;
        guests.end_command(host)?;
        let deadline = Some(Instant::now() + super::LIMIT);
        guests.wait(deadline, &mut |_, _, _| Ok(())).map(drop)
    }

    fn kill(&mut self, host: usize) -> Result<()> {
        self.guests()?.kill(host)
    }

    fn restart(&mut self, hosts: &[usize]) -> Result<()> {
        let mut guests = self.guests.take().context("the hosts were booted")?;
        guests.restart(&self.with_hca(), hosts)?;
        self.guests = Some(guests);
        Ok(())
    }
}
