//! Ping-pong between two programs in one guest.

use std::fs;
use std::net::Ipv6Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use bareverbs_test_support::device;

pub use crate::lines::Kind;
use crate::lines::{Address, Printed, RECORD};
use crate::program::{Finished, LIMIT, Program};

/// The address of the guest.
pub const HOST: &str = "10.1.0.1";
/// The TCP port of a ping-pong without `-p`.
pub const PORT: u16 = 18515;

/// A ping-pong program with its options.
#[derive(Clone, Copy, Debug)]
pub enum Pingpong<'a> {
    /// `bareverbs pingpong rc`.
    Bareverbs(&'a [&'a str]),
    /// `ibv_rc_pingpong` with the GID index that `bareverbs` selects by default.
    RdmaCore(&'a [&'a str]),
    /// `bareverbs pingpong` over this transport.
    BareverbsOf(Kind, &'a [&'a str]),
    /// The C program for this transport.
    RdmaCoreOf(Kind, &'a [&'a str]),
}

pub use Pingpong::{Bareverbs, BareverbsOf, RdmaCore, RdmaCoreOf};

impl Kind {
    /// The name of the subcommand of `bareverbs pingpong`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
        }
    }

    /// The name of rdma-core's program.
    pub fn c_program(self) -> String {
        format!("ibv_{}_pingpong", self.name())
    }
}

impl Pingpong<'_> {
    /// The transport of the program.
    pub fn kind(self) -> Kind {
        match self {
            Bareverbs(_) | RdmaCore(_) => Kind::Rc,
            BareverbsOf(kind, _) | RdmaCoreOf(kind, _) => kind,
        }
    }

    /// Whether the program is `bareverbs`.
    pub fn is_bareverbs(self) -> bool {
        matches!(self, Bareverbs(_) | BareverbsOf(..))
    }

    /// The command of a server, or of a client with the server's host.
    pub fn command(self, host: Option<&str>) -> Command {
        let kind = self.kind();
        let (mut command, options) = match self {
            Bareverbs(options) | BareverbsOf(_, options) => (Command::new("bareverbs"), options),
            RdmaCore(options) | RdmaCoreOf(_, options) => (Command::new(kind.c_program()), options),
        };
        match self.is_bareverbs() {
            true => command.args(["pingpong", kind.name()]),
            false if device::is_infiniband() => &mut command,
            false => command.args(["-g", &device::gid_index().to_string()]),
        };
        command.args(options).args(host);
        command
    }

    /// Starts the program as a server and waits until it listens.
    pub fn serve(self, port: u16) -> Program {
        let mut server = Program::start(&mut self.command(None));
        wait_until_listening(&mut server, port);
        server
    }
}

/// Waits until a server listens on this TCP port of the thread's network namespace, or has ended.
///
/// # Panics
/// If the server does neither within [`LIMIT`].
pub fn wait_until_listening(server: &mut Program, port: u16) {
    let deadline = Instant::now() + LIMIT;
    while !server.has_ended() && !is_listening(port) {
        assert!(Instant::now() < deadline, "no program listens on TCP port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An address record of a queue pair that does not exist.
pub fn record_of_absent_qp() -> [u8; RECORD] {
    let (lid, gid) = match device::is_infiniband() {
        true => (1, Ipv6Addr::UNSPECIFIED),
        false => (0, device::gid().0.into()),
    };
    Address { lid, qpn: 0xfffe, psn: 0x12_3456, gid }.record()
}

/// Whether any process listens on this TCP port.
pub fn is_listening(port: u16) -> bool {
    has_socket(port, "0A")
}

/// Waits until the server at the port has accepted a client's connection, or has ended.
///
/// # Panics
/// If that takes too long.
pub fn wait_until_connected(server: &mut Program, port: u16) {
    let deadline = Instant::now() + LIMIT;
    while !server.has_ended() && !has_socket(port, "01") {
        assert!(Instant::now() < deadline, "no client connects to TCP port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a socket of this local TCP port is in the state, in the kernel's numbers.
fn has_socket(port: u16, state: &str) -> bool {
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|path| {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{path}")).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_whitespace();
            fields.nth(1).is_some_and(|local| local.ends_with(&wanted)) && fields.nth(1) == Some(state)
        })
    })
}

/// Both sides of a run that has ended.
#[derive(Clone, Debug)]
pub struct PingpongRun {
    /// The transport.
    pub kind: Kind,
    /// The side that listened.
    pub server: Finished,
    /// The side that connected.
    pub client: Finished,
}

/// Runs a server and a client to completion.
pub fn run_pingpong(server: Pingpong<'_>, client: Pingpong<'_>) -> PingpongRun {
    run_pingpong_on(PORT, server, client)
}

/// Runs a server and a client to completion. The options specify this TCP port.
pub fn run_pingpong_on(port: u16, server: Pingpong<'_>, client: Pingpong<'_>) -> PingpongRun {
    let kind = server.kind();
    let server = server.serve(port);
    let client = Program::start(&mut client.command(Some(HOST))).finish();
    PingpongRun { kind, server: server.finish(), client }
}

/// Runs all pairings with the same options on both sides: `bareverbs` serves the C program, the C
/// program serves `bareverbs`, and `bareverbs` serves itself.
pub fn run_all_pairings(options: &[&str], size: u64, iters: u64) {
    run_all_pairings_of(Kind::Rc, options, size, iters);
}

/// Runs all pairings over the transport `kind`.
pub fn run_all_pairings_of(kind: Kind, options: &[&str], size: u64, iters: u64) {
    let (ours, theirs) = (BareverbsOf(kind, options), RdmaCoreOf(kind, options));
    for (server, client) in [(ours, theirs), (theirs, ours), (ours, ours)] {
        run_pingpong(server, client).expect_regular(size, iters);
    }
}

impl PingpongRun {
    /// Asserts a successful run on one device: both sides succeed, print exactly the lines of the C
    /// program, print each other's addresses, which differ, and count the same.
    ///
    /// # Panics
    /// If an assertion fails.
    pub fn expect_regular(self, size: u64, iters: u64) -> Self {
        let [server, client] = self.expect_success(size, iters);
        for address in &server.local {
            assert!(client.local.iter().all(|other| address.qpn != other.qpn), "{self:#?}");
        }
        self
    }

    /// Asserts the same of a run on two devices, whose QPNs may be equal. Returns what the server and the
    /// client printed.
    ///
    /// # Panics
    /// If an assertion fails.
    pub fn expect_success(&self, size: u64, iters: u64) -> [Printed; 2] {
        let sides = [&self.server, &self.client].map(|side| {
            assert!(side.status.success(), "{self:#?}");
            let printed = Printed::read(self.kind, &side.stdout);
            let printed =
                printed.unwrap_or_else(|| panic!("`{}` printed other lines: {self:#?}", side.title));
            assert_eq!((printed.bytes, printed.iters), (size * iters * 2, iters), "{self:#?}");
            printed
        });
        assert_eq!(sides[0].local, sides[1].remote, "{self:#?}");
        assert_eq!(sides[1].local, sides[0].remote, "{self:#?}");
        sides
    }
}
