//! Ping-pong between two programs in one guest.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lines::Printed;
use crate::program::{Finished, LIMIT, Program};

/// The address of the guest.
pub const HOST: &str = "10.1.0.1";
/// The TCP port of a ping-pong without `-p`.
pub const PORT: u16 = 18515;

/// A ping-pong program with its options.
#[derive(Clone, Copy, Debug)]
pub enum Player<'a> {
    /// `bareverbs pingpong rc`.
    Ours(&'a [&'a str]),
    /// `ibv_rc_pingpong`, which is told the GID that ours finds by itself.
    Theirs(&'a [&'a str]),
}

pub use Player::{Ours, Theirs};

impl Player<'_> {
    /// The command of a server, or of a client with the server's host.
    pub fn command(self, host: Option<&str>) -> Command {
        let (mut command, options) = match self {
            Ours(options) => (Command::new("bareverbs"), options),
            Theirs(options) => (Command::new("ibv_rc_pingpong"), options),
        };
        match self {
            Ours(_) => command.args(["pingpong", "rc"]),
            Theirs(_) => command.args(["-g", "1"]),
        };
        command.args(options).args(host);
        command
    }

    /// Starts it as a server, and waits until it listens.
    pub fn serve(self, port: u16) -> Program {
        let mut server = Program::start(&mut self.command(None));
        wait_until_listening(&mut server, port);
        server
    }
}

fn wait_until_listening(server: &mut Program, port: u16) {
    let deadline = Instant::now() + LIMIT;
    while !server.has_ended() && !is_listening(port) {
        assert!(Instant::now() < deadline, "nobody listens on TCP port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether any process listens on this TCP port.
pub fn is_listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let table = fs::read_to_string(path).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split_whitespace();
            fields.nth(1).is_some_and(|local| local.ends_with(&wanted)) && fields.nth(1) == Some("0A")
        })
    })
}

/// Both sides of a game that has ended.
#[derive(Clone, Debug)]
pub struct Game {
    /// The side that listened.
    pub server: Finished,
    /// The side that connected.
    pub client: Finished,
}

/// Plays to the end.
pub fn play(server: Player<'_>, client: Player<'_>) -> Game {
    play_on(PORT, server, client)
}

/// Plays to the end; the options name this TCP port.
pub fn play_on(port: u16, server: Player<'_>, client: Player<'_>) -> Game {
    let server = server.serve(port);
    let client = Program::start(&mut client.command(Some(HOST))).finish();
    Game { server: server.finish(), client }
}

/// Plays the games that the same options on both sides make: ours serves theirs, theirs serves ours, ours plays ours.
pub fn play_all(options: &[&str], size: u64, iters: u64) {
    for (server, client) in
        [(Ours(options), Theirs(options)), (Theirs(options), Ours(options)), (Ours(options), Ours(options))]
    {
        play(server, client).expect_regular(size, iters);
    }
}

impl Game {
    /// Asserts a regular game: both sides succeed, print the four lines of the C program and nothing else, name each
    /// other's addresses, and count the same.
    ///
    /// # Panics
    /// If anything is different.
    pub fn expect_regular(self, size: u64, iters: u64) -> Self {
        let sides = [&self.server, &self.client].map(|side| {
            assert!(side.status.success(), "{self:#?}");
            let printed = Printed::read(&side.stdout);
            let printed =
                printed.unwrap_or_else(|| panic!("`{}` printed other lines: {self:#?}", side.title));
            assert_eq!((printed.bytes, printed.iters), (size * iters * 2, iters), "{self:#?}");
            printed
        });
        assert_eq!(sides[0].local, sides[1].remote, "{self:#?}");
        assert_eq!(sides[1].local, sides[0].remote, "{self:#?}");
        assert_ne!(sides[0].local.qpn, sides[1].local.qpn, "{self:#?}");
        self
    }
}
