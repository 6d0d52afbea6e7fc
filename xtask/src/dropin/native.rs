//! Debian's programs with the library, on this machine: each with a soft device.

use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::build;
use crate::c_functions::LIBRARY_FOLDER;
use crate::native::listens;

/// Timeout of a program, many times the usual duration.
const LIMIT: Duration = Duration::from_secs(60);

/// The programs of a Debian root.
pub(crate) struct NativePrograms {
    pub(crate) root: PathBuf,
    /// The folder of the library.
    pub(crate) library: PathBuf,
}

impl NativePrograms {
    /// A program with the loader and the libraries of the root, but for ours.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut libraries = self.library.as_os_str().to_owned();
        libraries.push(":");
        libraries.push(self.root.join(LIBRARY_FOLDER));
        let mut command = Command::new(self.root.join("usr/lib64/ld-linux-x86-64.so.2"));
        // Programs that start themselves look for their own name.
        command.arg("--library-path").arg(libraries).args(["--argv0", program]);
        command.arg(self.root.join("usr/bin").join(program));
        command.args(arguments).env_remove(SOFT);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Python with the library, for a script of this text.
    pub(crate) fn python(&self, script: &str, arguments: &[&str]) -> Command {
        let mut command = self.command("python3", &[&["-c", script], arguments].concat());
        command.env("PYTHONHOME", self.root.join("usr")).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Runs a program, on a soft device with this address.
    fn run(&self, program: &str, arguments: &[&str], address: Option<&str>) -> Result<Output> {
        let mut command = self.command(program, arguments);
        command.envs(address.map(|address| (SOFT, address)));
        finish(program, command.spawn().with_context(|| format!("starting {program}"))?, LIMIT)
    }

    /// Runs a program that must succeed. Returns what it printed.
    fn succeed(&self, program: &str, arguments: &[&str], address: &str) -> Result<String> {
        let output = self.run(program, arguments, Some(address))?;
        ensure!(output.status.success(), "{program} failed: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts a program with provider libraries of an older release, all of whose functions are looked up.
    fn load_providers(&self, folder: &Path, address: &str) -> Result<()> {
        let providers = ["libefa.so.1", "libmlx4.so.1", "libmlx5.so.1"].map(|name| folder.join(name));
        let list = providers.map(|path| path.display().to_string()).join(":");
        let mut command = self.command("ibv_devices", &[]);
        command.env("LD_PRELOAD", list).env("LD_BIND_NOW", "1").env(SOFT, address);
        let output = finish("ibv_devices", command.spawn().context("starting ibv_devices")?, LIMIT)?;
        let is_silent = output.status.success() && output.stderr.is_empty();
        ensure!(is_silent, "ibv_devices with {}: {output:?}", folder.display());
        Ok(())
    }

    /// Runs a server, and a client of it on this host, to their ends, with these variables. Both take a
    /// port by `-p`. If one fails, the other is killed.
    fn sides(
        &self,
        program: &str,
        options: &[&str],
        addresses: [&str; 2],
        variables: &[(&str, &Path)],
    ) -> Result<[Output; 2]> {
        // The port is free again once the listener is dropped.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let number = port.to_string();
        let arguments = [options, &["-p", &number]].concat();
        let variables = || variables.iter().copied();
        let mut server =
            self.command(program, &arguments).env(SOFT, addresses[0]).envs(variables()).spawn()?;
        let begin = Instant::now();
        while !listens(port) && server.try_wait()?.is_none() && begin.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(5));
        }
        let mut client = self.command(program, &[&arguments[..], &["localhost"]].concat());
        let client = client.env(SOFT, addresses[1]).envs(variables()).spawn()?;
        let client = finish(program, client, LIMIT);
        if !client.as_ref().is_ok_and(|client| client.status.success()) {
            // It may wait for a client without end.
            server.kill()?;
        }
        Ok([finish(program, server, LIMIT)?, client?])
    }

    /// Runs a server and a client that must succeed.
    fn pair(
        &self,
        program: &str,
        options: &[&str],
        addresses: [&str; 2],
        variables: &[(&str, &Path)],
    ) -> Result<[Output; 2]> {
        let sides = self.sides(program, options, addresses, variables)?;
        let succeed = sides.iter().all(|side| side.status.success());
        ensure!(succeed, "{program} {options:?}: {sides:?}");
        Ok(sides)
    }

    /// Runs a ping-pong, whose data both sides check.
    fn ping_pong(&self, program: &str, options: &[&str], addresses: [&str; 2]) -> Result<()> {
        let options = [&["-g", "0", "-c", "-n", "100"], options].concat();
        for side in self.pair(program, &options, addresses, &[])? {
            let printed = String::from_utf8_lossy(&side.stdout);
            let is_complete = printed.contains("100 iters in") && !printed.contains("invalid data");
            ensure!(is_complete, "{program} {options:?}: {side:?}");
        }
        Ok(())
    }
}

/// The variable with the addresses of the soft devices.
pub(crate) const SOFT: &str = "BAREVERBS_SOFT";

/// Waits until a program ends, and kills it at the limit. Its output is read meanwhile: a full pipe would
/// stop it.
pub(crate) fn finish(program: &str, mut child: Child, limit: Duration) -> Result<Output> {
    let stdout = child.stdout.take().map(read_in_thread);
    let stderr = child.stderr.take().map(read_in_thread);
    let begin = Instant::now();
    let mut is_late = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if !is_late && begin.elapsed() > limit {
            child.kill()?;
            is_late = true;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let read = |pipe: Option<JoinHandle<Vec<u8>>>| pipe.and_then(|pipe| pipe.join().ok()).unwrap_or_default();
    let output = Output { status, stdout: read(stdout), stderr: read(stderr) };
    ensure!(!is_late, "{program} runs longer than {limit:?}: {output:?}");
    Ok(output)
}

fn read_in_thread(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is output too.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Two addresses of this host that no other process has: process ids have at most 22 bits.
pub(crate) fn addresses() -> [String; 2] {
    let first = u32::from(Ipv4Addr::new(127, 128, 0, 0)) | std::process::id() << 1;
    [first, first | 1].map(|address| Ipv4Addr::from(address).to_string())
}

pub(super) fn check(programs: &NativePrograms, older: &[PathBuf]) -> Result<()> {
    let addresses = addresses();
    let [one, other] = addresses.each_ref().map(String::as_str);

    let devices = programs.succeed("ibv_devices", &[], &format!("{one},{other}"))?;
    let names: Vec<_> = devices.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(names == ["soft0", "soft1"], "ibv_devices printed {devices}");

    let info = programs.succeed("ibv_devinfo", &["-v"], one)?;
    for line in ["hca_id:\tsoft0", "state:\t\t\tPORT_ACTIVE (4)", &format!("::ffff:{one}, RoCE v2")] {
        ensure!(info.contains(line), "ibv_devinfo printed no `{line}`: {info}");
    }

    for folder in older {
        programs.load_providers(folder, one)?;
    }

    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        let size = if program.contains("ud") { "1000" } else { "5000" };
        for options in [&["-s", size][..], &["-e"]] {
            programs.ping_pong(program, options, [one, other])?;
        }
    }

    // Posts by the functions of `ibv_qp_ex`.
    programs.ping_pong("ibv_rc_pingpong", &["-N"], [one, other])?;
    for program in ["ib_send", "ib_write", "ib_read", "ib_atomic"] {
        let common = ["-d", "soft0", "-x", "0", "-F", "-n", "10"];
        for (kind, options) in [("bw", &["-q", "4"][..]), ("lat", &[])] {
            programs.pair(&format!("{program}_{kind}"), &[&common, options].concat(), [one, other], &[])?;
        }
    }
    programs.pair(
        "ib_send_lat",
        &["-d", "soft0", "-x", "0", "-F", "-n", "10", "-e", "-c", "UD"],
        [one, other],
        &[],
    )?;
    let libraries =
        [programs.library.join("libibverbs.so.1"), programs.root.join(LIBRARY_FOLDER).join("libmlx5.so.1")];
    let libraries = libraries.each_ref().map(|path| path.to_str().unwrap_or_default());
    let mut loading = programs.python(include_str!("loading.py"), &libraries);
    let loaded = finish("loading.py", loading.env(SOFT, one).spawn().context("starting Python")?, LIMIT)?;
    ensure!(loaded.status.success() && loaded.stdout == b"polling\n", "loading.py: {loaded:?}");
    let libraries = [&programs.library, &programs.root.join(LIBRARY_FOLDER)];
    let libraries = libraries.map(|folder| folder.join("libibverbs.so.1"));
    let libraries = libraries.each_ref().map(|path| path.to_str().unwrap_or_default());
    let mut comparing = programs.python(include_str!("values.py"), &libraries);
    let compared = finish("values.py", comparing.spawn().context("starting Python")?, LIMIT)?;
    ensure!(compared.status.success(), "values.py: {compared:?}");
    check_hooks(programs, [one, other])?;
    let refused = programs.run("ibv_xsrq_pingpong", &["-g", "0"], Some(one))?;
    let reason = String::from_utf8_lossy(&refused.stderr);
    ensure!(refused.status.code() == Some(1) && !reason.contains("panicked"), "XRC: {refused:?}");
    let none = programs.run("ibv_devices", &[], Some("192.0.2.1"))?;
    let reason = String::from_utf8_lossy(&none.stderr);
    ensure!(
        reason.contains("BAREVERBS_SOFT: device soft:192.0.2.1: "),
        "an address of another host: {none:?}"
    );
    Ok(())
}

/// The data path is traced, and faults are injected.
fn check_hooks(programs: &NativePrograms, addresses: [&str; 2]) -> Result<()> {
    let folder = build::target_folder();
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let (trace, faults) = (folder.join("dropin-trace"), folder.join("dropin-faults"));
    let pingpong = |options: &[&str], variables: &[(&str, &Path)]| {
        let options = [&["-g", "0", "-n", "20", "-s", "100"], options].concat();
        programs.sides("ibv_rc_pingpong", &options, addresses, variables)
    };
    // By `ibv_post_send`, and by the functions of `ibv_qp_ex`.
    for options in [&[][..], &["-N"]] {
        let _ = fs::remove_file(&trace);
        let sides = pingpong(options, &[("BAREVERBS_TRACE", &trace)])?;
        ensure!(sides.iter().all(|side| side.status.success()), "with a trace: {sides:?}");
        let text = fs::read_to_string(&trace).with_context(|| format!("reading {}", trace.display()))?;
        let lines = text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        let count = |call: &str, name: &str| {
            let is = |line: &&Value| line["call"] == call && line["name"] == name && line["file"] == "soft0";
            lines.iter().filter(is).count()
        };
        // Each side sends 20 messages, receives 20, and posts 500 receives at first.
        let counts = [count("post-send", "SEND"), count("poll-cq", "SUCCESS"), count("post-recv", "RECV")];
        ensure!(counts == [40, 80, 1000], "{options:?}: {counts:?} lines");
        let send = lines.iter().find(|line| line["call"] == "post-send").context("a send")?;
        let request = &send["before"];
        let is_whole = request["wr_id"] == 2 && request["sges"][0]["length"] == 100 && send["result"] == 0;
        ensure!(is_whole && request["flags"]["flags"][0] == "SIGNALED", "{send}");
    }
    for (rules, options, errors) in [
        ("CreateQp 1 ENOMEM", &[][..], "Couldn't create QP"),
        ("CreateQp 1 ENOMEM", &["-N"], "Couldn't create QP"),
        ("PostSend 3 EIO", &[], "Couldn't post send"),
        ("completion 6 REM_ACCESS_ERR", &[], "Failed status remote access error (10)"),
        ("RegMr 2 EIO", &[], ""),
        ("AllocPd 1 1ms", &[], ""),
    ] {
        fs::write(&faults, rules).with_context(|| format!("writing {}", faults.display()))?;
        let sides = pingpong(options, &[("BAREVERBS_FAULTS", &faults)])?;
        let is_expected = |side: &Output| {
            let printed = String::from_utf8_lossy(&side.stderr);
            if errors.is_empty() { side.status.success() } else { printed.contains(errors) }
        };
        ensure!(sides.iter().any(is_expected), "{rules}: {sides:?}");
    }
    let _ = fs::remove_file(&trace);
    let files = [&faults, &trace].map(|path| path.to_str().unwrap_or_default());
    let mut script = programs.python(include_str!("hooks.py"), &files);
    let script = script.env(SOFT, addresses[0]).spawn().context("starting Python")?;
    let finished = finish("hooks.py", script, LIMIT)?;
    ensure!(finished.status.success(), "hooks.py: {finished:?}");
    Ok(())
}
