//! The examples of `verbs/examples` on two hosts: rxe on a wire, or HCAs on one fabric.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bareverbs_lab::{Exec, Failure, Guests, Hca, HcaPort, Setup};

use crate::build;
use crate::experiment;
use crate::filter::Filter;

/// Prefix of the tests' names.
pub(crate) const PREFIX: &str = "examples::";
/// The folder of the examples in the guests.
const GUEST_FOLDER: &str = "/lab/examples";
/// Timeout of one example, and of a host after the other one has failed.
const LIMIT: Duration = Duration::from_secs(120);
const GRACE: Duration = Duration::from_secs(10);
/// The server's address.
const SERVER: &str = "10.1.0.1";
/// What a server prints when clients may start.
const LISTENING: &str = "listening";

/// A test of an example.
pub(crate) struct Example {
    /// The test's name, after the prefix.
    pub(crate) name: &'static str,
    /// The script of the first host. It prints `listening` when the second may start.
    server: &'static str,
    /// The script of the second host. `$1` is the address of the first one.
    client: &'static str,
    /// What the hosts print.
    prints: [&'static [&'static str]; 2],
    /// A line that each host prints, and that must be the same.
    same: Option<&'static str>,
}

const EXAMPLES: [Example; 11] = [
    Example {
        name: "rc_connect_answers_messages",
        server: "rc_connect -n 100",
        client: "rc_connect -n 100 $1",
        prints: [&["100 messages went there and back"]; 2],
        same: None,
    },
    Example {
        name: "file_copy_copies_64_mib",
        server: "file_copy /tmp/copy && echo sum $(sha256sum </tmp/copy) && rm /tmp/copy",
        client: "head -c 67108869 /dev/urandom >/tmp/file && file_copy /tmp/file $1 && \
                 echo sum $(sha256sum </tmp/file) && rm /tmp/file",
        prints: [&["copied 67108869 bytes"]; 2],
        same: Some("sum "),
    },
    Example {
        name: "kv_store_loses_no_update_of_concurrent_clients",
        server: "kv_store --clients 6",
        client: "kv_store $1 put colour green && \
                 { kv_store $1 add visits 40 & a=$!; kv_store $1 add visits 40 & b=$!; \
                   kv_store $1 add visits 40 && wait $a && wait $b; } && \
                 echo colour $(kv_store $1 get colour), visits $(kv_store $1 get visits)",
        prints: [&["the table has 2 keys"], &["colour green, visits 120"]],
        same: None,
    },
    Example {
        name: "rpc_tokio_serves_8_clients",
        server: "rpc_tokio --clients 8",
        client: "rpc_tokio --clients 8 --calls 50 $1",
        prints: [&["sent: 400", "failed: 0"], &["8 clients made 50 calls each"]],
        same: None,
    },
    Example {
        name: "multicast_datagrams_arrive",
        server: "multicast receive -n 100",
        client: "multicast send -n 100",
        prints: [&["sent: datagram 100\n"], &["sent 100 datagrams to ::ffff:239.1.2.3"]],
        same: None,
    },
    Example {
        name: "multicast_datagrams_arrive_by_the_lid_of_the_group",
        server: "multicast receive -n 100 --group ff12:401b::1:2:3 --lid 49155",
        client: "multicast send -n 100 --group ff12:401b::1:2:3 --lid 49155",
        prints: [&["sent: datagram 100\n"], &["sent 100 datagrams to ff12:401b::1:2:3"]],
        same: None,
    },
    Example {
        name: "datagram_server_answers_3_clients",
        server: "datagram --clients 3 -n 50",
        client: "datagram -n 50 $1 & a=$!; datagram -n 50 $1 & b=$!; \
                 datagram -n 50 $1 && wait $a && wait $b",
        prints: [&["answered 3 clients"], &["50 requests were answered"]],
        same: None,
    },
    Example {
        name: "srq_server_answers_4_clients",
        server: "srq_server --clients 4 -n 50",
        client: "for client in 1 2 3 4; do srq_server -n 50 $1 & clients+=($!); done; \
                 for client in ${clients[@]}; do wait $client || exit 1; done",
        prints: [&["answered 4 clients"], &["50 messages came back"]],
        same: None,
    },
    Example {
        name: "epoll_serves_3_clients",
        server: "epoll --clients 3",
        client: "epoll -n 50 $1 & a=$!; epoll -n 50 $1 & b=$!; epoll -n 50 $1 && wait $a && wait $b",
        prints: [&["3 clients were served"], &["50 messages came back"]],
        same: None,
    },
    // The receiver is killed in the middle of the messages, and is absent for a second.
    Example {
        name: "recovery_loses_no_message_of_a_killed_receiver",
        server: "recovery /tmp/log & receiver=$!; \
                 until [ \"$(tail -n 1 /tmp/log 2>/dev/null || echo 0)\" -ge 200 ] 2>/dev/null; \
                 do sleep 0.02; done; \
                 kill -9 $receiver; sleep 1; recovery /tmp/log && \
                 seq 600 | cmp - /tmp/log && echo the log is complete; rm /tmp/log",
        client: "recovery /tmp/unused -n 600 --pause 2 $1",
        prints: [
            &["the log is complete"],
            &["lost the receiver", "are sent again", "all 600 messages are acknowledged"],
        ],
        same: None,
    },
    Example {
        name: "shared_cq_serves_8_threads",
        server: "shared_cq --threads 8 -n 50",
        client: "shared_cq --threads 8 -n 50 $1",
        prints: [&["8 threads exchanged 50 messages each"]; 2],
        same: None,
    },
];

/// The examples that need Ethernet: IPv4 multicast groups.
const ETHERNET_ONLY: [&str; 1] = ["multicast_datagrams_arrive"];
/// The examples that need InfiniBand: multicast groups with a LID.
const INFINIBAND_ONLY: [&str; 1] = ["multicast_datagrams_arrive_by_the_lid_of_the_group"];

/// The selected tests that run on this link layer.
pub(crate) fn tests(filter: Filter<'_>, is_infiniband: bool) -> Vec<&'static Example> {
    let others: &[_] = if is_infiniband { &ETHERNET_ONLY } else { &INFINIBAND_ONLY };
    let runs = |example: &&Example| !others.contains(&example.name);
    EXAMPLES.iter().filter(runs).filter(|example| filter.takes(&example.title())).collect()
}

impl Example {
    /// The test's name.
    pub(crate) fn title(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }
}

/// Two hosts with the examples.
pub(crate) struct Hosts<'a> {
    setup: Setup<'a>,
    hca: Option<Hca>,
    guests: Option<Guests>,
}

impl<'a> Hosts<'a> {
    /// Builds the examples. The first test boots the hosts, with HCAs of this link type or else
    /// with rxe.
    pub(crate) fn new(setup: &Setup<'a>, port: Option<HcaPort>) -> Result<Self> {
        let folder = build::examples()?;
        let hca = experiment::start_hca(port, 2, &[])?;
        let setup = Setup { hosts: 2, shares: vec![(folder, GUEST_FOLDER.to_owned())], ..setup.clone() };
        Ok(Self { setup, hca, guests: None })
    }

    /// Runs an example. After a failure the next one gets new hosts.
    pub(crate) fn run(&mut self, example: &Example) -> Result<()> {
        let mut guests = match self.guests.take() {
            Some(guests) => guests,
            None => Guests::boot(&Setup { hca: self.hca.as_ref(), ..self.setup.clone() })?,
        };
        example.run(&mut guests)?;
        self.guests = Some(guests);
        Ok(())
    }

    /// Powers the hosts off.
    pub(crate) fn end(self) -> Result<()> {
        self.guests.map_or(Ok(()), |guests| guests.shut_down().map(drop))
    }
}

impl Example {
    fn run(&self, guests: &mut Guests) -> Result<()> {
        let mut output = [String::new(), String::new()];
        let exec = |script: &str| Exec {
            argv: ["bash", "-c", &format!("PATH={GUEST_FOLDER}:$PATH; {script}"), "bash", SERVER]
                .map(str::to_owned)
                .into(),
            ..Exec::default()
        };
        let mut deadline = Instant::now() + LIMIT;
        guests.start(0, exec(self.server))?;
        let (mut client, mut timed_out) = (Some(exec(self.client)), false);
        while (0..2).any(|host| guests.is_running(host)) {
            let stepped = guests.step(Some(deadline), &mut |host, _, bytes| {
                output[host] += &String::from_utf8_lossy(bytes);
                Ok(())
            });
            match stepped {
                Err(error) if matches!(error.downcast_ref(), Some(Failure::TimedOut(_))) => {
                    timed_out = true;
                    break;
                }
                stepped => stepped?,
            }
            if output[0].contains(LISTENING)
                && let Some(client) = client.take()
            {
                guests.start(1, client)?;
            }
            if (0..2).any(|host| !guests.is_running(host) && guests.status(host).is_some_and(|at| at != 0)) {
                deadline = deadline.min(Instant::now() + GRACE);
            }
        }
        let statuses = [0, 1].map(|host| guests.status(host));
        let report = || format!("statuses {statuses:?}\nhost 1:\n{}\nhost 2:\n{}", output[0], output[1]);
        ensure!(!timed_out, "the time limit passed: {}", report());
        ensure!(statuses == [Some(0); 2], report());
        for (host, prints) in self.prints.iter().enumerate() {
            for line in *prints {
                ensure!(output[host].contains(line), "host {} printed no `{line}`: {}", host + 1, report());
            }
        }
        if let Some(start) = self.same {
            let line = |host: usize| output[host].lines().find(|line| line.starts_with(start));
            ensure!(line(0).is_some() && line(0) == line(1), "`{start}` differs: {}", report());
        }
        Ok(())
    }
}
