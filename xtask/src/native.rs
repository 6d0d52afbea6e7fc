//! `cargo xtask demo`: ping-pong between two processes with RoCE devices in user space. With `--native`, over
//! loopback on the machine's own RDMA device.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build;
use crate::print::{heading, microseconds};

const CLASS: &str = "/sys/class/infiniband";
const SERVER_LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn run() -> Result<ExitCode> {
    let device = usable_device(Path::new(CLASS), Path::new("/dev/infiniband"))?;
    heading("Set-up");
    let programs = build::released_guest_programs()?;
    let tool = build::tool(&programs)?;
    heading("Devices");
    run_to_end(Command::new(tool).arg("devices"))?;

    heading(&format!("bareverbs and bareverbs over {device}"));
    ping_pong(tool, [&device, &device], &[])
}

/// Two processes, each with a device of its own.
pub(crate) fn run_soft() -> Result<ExitCode> {
    heading("Set-up");
    let tool = build::native_tool()?;
    let devices = ["soft:127.0.0.1", "soft:127.0.0.2"];
    heading("Device");
    run_to_end(Command::new(&tool).args(["devinfo", "-d", devices[0]]))?;
    heading("RC ping-pong between two processes: RoCE v2, data verified");
    ping_pong(&tool, devices, &["-c", "-e"])
}

/// Runs a server on the first device and a client on the second.
fn ping_pong(tool: &Path, devices: [&str; 2], options: &[&str]) -> Result<ExitCode> {
    // The port is free again once the listener is dropped.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let command = |device, peer: &[&str]| {
        let mut command = Command::new(tool);
        command.args(["pingpong", "rc", "-p", &port.to_string(), "-d", device]).args(options).args(peer);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        println!("bareverbs {}", words.join(" "));
        command
    };
    let mut server =
        command(devices[0], &[]).stdout(Stdio::piped()).spawn().context("starting the server")?;
    let deadline = Instant::now() + SERVER_LIMIT;
    while !listens(port) && server.try_wait()?.is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = command(devices[1], &["localhost"]).output().context("starting the client")?;
    if !client.status.success() {
        server.kill()?;
    }
    let server = server.wait_with_output()?;
    print!("server:\n{}", String::from_utf8_lossy(&server.stdout));
    print!("client:\n{}", String::from_utf8_lossy(&client.stdout));
    if !client.status.success() || !server.status.success() {
        bail!("the ping-pong failed: {}", String::from_utf8_lossy(&client.stderr).trim_end());
    }
    let time = microseconds(&client.stdout).context("the client printed no time per iteration")?;
    println!("\n{time:.2} microseconds per iteration");
    Ok(ExitCode::SUCCESS)
}

/// The first device with an active port and an accessible device node; else the reason why there is
/// none.
fn usable_device(class: &Path, nodes: &Path) -> Result<String> {
    let mut devices: Vec<PathBuf> =
        fs::read_dir(class).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    devices.sort();
    if devices.is_empty() {
        bail!(
            "this machine has no RDMA device: {} is missing or empty. `rdma link add rxe0 type rxe netdev NAME` makes \
             one in software where the kernel has rdma_rxe; `cargo xtask demo` without --native needs none",
            class.display()
        );
    }
    let mut reasons = Vec::new();
    for device in devices {
        let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match why_not(&device, &name, nodes) {
            None => return Ok(name),
            Some(reason) => reasons.push(format!("{name}: {reason}")),
        }
    }
    bail!("no RDMA device of this machine can be used: {}", reasons.join("; "))
}

fn why_not(device: &Path, name: &str, nodes: &Path) -> Option<String> {
    let state = fs::read_to_string(device.join("ports/1/state")).unwrap_or_default();
    if !state.contains("ACTIVE") {
        return Some(format!("port 1 is not active ({})", state.trim()));
    }
    let verbs = fs::read_dir(device.join("device/infiniband_verbs"))
        .or_else(|_| fs::read_dir(Path::new("/sys/class/infiniband_verbs")))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let node = verbs
        .filter(|path| fs::read_to_string(path.join("ibdev")).is_ok_and(|of| of.trim() == name))
        .find_map(|path| Some(nodes.join(path.file_name()?)));
    let Some(node) = node else {
        return Some("it has no device node; is the module ib_uverbs loaded?".into());
    };
    let opened = OpenOptions::new().read(true).write(true).open(&node);
    opened.err().map(|error| format!("{} can't be opened: {error}", node.display()))
}

fn run_to_end(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {:?}", command.get_program()))?;
    if !status.success() {
        bail!("{:?} failed: {status}", command.get_program());
    }
    Ok(())
}

/// Whether a process listens on a TCP port.
pub(crate) fn listens(port: u16) -> bool {
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let table = fs::read_to_string(path).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1).unwrap_or_default();
            local.ends_with(&port) && fields.nth(1) == Some("0A")
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("bareverbs-native-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn missing_device_is_reported() {
        let error = usable_device(Path::new("/nonexistent"), Path::new("/dev")).unwrap_err().to_string();
        assert!(error.contains("no RDMA device") && error.contains("/nonexistent"), "{error}");
    }

    #[test]
    fn inactive_device_is_reported_with_reason() {
        let class = scratch("down");
        fs::create_dir_all(class.join("mlx5_0/ports/1")).unwrap();
        fs::write(class.join("mlx5_0/ports/1/state"), "1: DOWN\n").unwrap();
        let error = usable_device(&class, Path::new("/dev")).unwrap_err().to_string();
        assert!(error.contains("mlx5_0: port 1 is not active (1: DOWN)"), "{error}");
        fs::remove_dir_all(class).unwrap();
    }
}
