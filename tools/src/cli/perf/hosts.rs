//! The hosts of `--all-to-all`.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Result, bail, ensure};

/// A list of hosts. Each has the same list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts(Vec<Member>);

/// A host that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) host: String,
    /// The TCP port that it listens on; `None` for that of `-p`.
    port: Option<u16>,
}

impl Member {
    pub(crate) fn port(&self, default: u16) -> u16 {
        self.port.unwrap_or(default)
    }
}

impl FromStr for Hosts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let members = text.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
        if members.len() < 2 {
            return Err("needs at least two hosts".into());
        }
        for (index, member) in members.iter().enumerate() {
            if members[..index].contains(member) {
                return Err(format!("has {} twice", member.host));
            }
        }
        Ok(Self(members))
    }
}

/// `HOST`, `HOST:PORT`, an IPv6 address or `[ADDRESS]:PORT`.
fn member(text: &str) -> Result<Member, String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None if text.parse::<IpAddr>().is_ok() => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(|port| port.parse().map_err(|_| format!("\"{port}\" is not a TCP port")));
    if host.is_empty() {
        return Err(format!("\"{text}\" has no host"));
    }
    Ok(Member { host: host.to_owned(), port: port.transpose()? })
}

impl Hosts {
    pub(crate) fn members(&self) -> &[Member] {
        &self.0
    }

    /// The place of this host: `rank`, or that of the only member with an address of this host.
    pub(crate) fn place(&self, rank: Option<u32>) -> Result<usize> {
        if let Some(rank) = rank {
            let place = rank as usize;
            ensure!(place < self.0.len(), "--rank {rank}: --all-to-all has {} hosts", self.0.len());
            return Ok(place);
        }
        let local = |member: &Member| {
            let addresses = (member.host.as_str(), 0).to_socket_addrs();
            // Only an address of this host can be bound.
            addresses.into_iter().flatten().any(|address: SocketAddr| TcpListener::bind(address).is_ok())
        };
        let places: Vec<_> = (0..self.0.len()).filter(|&place| local(&self.0[place])).collect();
        match places[..] {
            [place] => Ok(place),
            [] => bail!("no host of --all-to-all has an address of this host: choose its place (--rank)"),
            _ => bail!("several hosts of --all-to-all are this host: choose its place (--rank)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_a_host_and_perhaps_a_port() {
        let hosts: Hosts = "10.1.0.1,node2:4711,fe80::1,[::1]:7,[::2]".parse().unwrap();
        let found: Vec<_> = hosts.members().iter().map(|one| (one.host.as_str(), one.port(18515))).collect();
        assert_eq!(
            found,
            [("10.1.0.1", 18515), ("node2", 4711), ("fe80::1", 18515), ("::1", 7), ("::2", 18515)]
        );
    }

    #[test]
    fn wrong_lists_are_explained() {
        for (text, words) in [
            ("10.1.0.1", "at least two"),
            ("a,b:x", "\"x\" is not a TCP port"),
            ("a,,b", "has no host"),
            ("a,b,a", "has a twice"),
        ] {
            let error = text.parse::<Hosts>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn place_is_given_or_found_by_address() {
        let hosts: Hosts = "192.0.2.1,127.0.0.1".parse().unwrap();
        assert_eq!(hosts.place(None).unwrap(), 1);
        assert_eq!(hosts.place(Some(0)).unwrap(), 0);
        assert!(hosts.place(Some(2)).unwrap_err().to_string().contains("has 2 hosts"));
        let several: Hosts = "127.0.0.1:1,127.0.0.1:2".parse().unwrap();
        assert!(several.place(None).unwrap_err().to_string().contains("--rank"));
    }
}
