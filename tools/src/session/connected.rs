//! Connected queue pairs of the tools over the connection manager.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs::{Access, Done, Endpoint, Errno, Error, RegionMut, WcStatus};
use bareverbs_rdmacm::connection::{ConnectOptions, Connected, Incoming, Link, Listener};
use bareverbs_rdmacm::event::{Event, EventKind, Unreachable};
use bareverbs_rdmacm::{CmId, Error as CmError, EventChannel, Waiting};
use rustix::event::PollFlags;

use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Time limit of the resolution of an address and of a route, as in the C programs.
pub(crate) const RESOLVE_LIMIT: Duration = Duration::from_secs(2);

/// Time limit of the other steps of a connection.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Time limit from the flush of a queue pair to the report of the end of its connection.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The result of a step of a connection, within its time limit.
pub(crate) fn within<T>(
    limit: Duration,
    step: &str,
    mut waiting: Waiting<'_, Result<T, CmError>>,
) -> Result<T> {
    let ended = waiting.wait_timeout(limit);
    Ok(ended.with_context(|| format!("{step}: no answer within {limit:?}"))??)
}

/// The next event of a channel.
pub(crate) fn next_event(channel: &EventChannel, stop: &Stop) -> Result<Event> {
    loop {
        if let Some(event) = next_event_within(channel, stop, None)? {
            return Ok(event);
        }
    }
}

/// The next event of a channel. `None`: there is none within the limit.
pub(crate) fn next_event_within(
    channel: &EventChannel,
    stop: &Stop,
    mut limit: Option<&mut Timeout>,
) -> Result<Option<Event>> {
    loop {
        stop.check()?;
        if let Some(event) = channel.try_wait()? {
            return Ok(Some(event));
        }
        match stop.wait(channel.as_fd(), PollFlags::IN, limit.as_deref_mut())? {
            Wake::Ready => {}
            Wake::TimedOut => return Ok(None),
            Wake::Stopped => return Err(Interrupted.into()),
        }
    }
}

/// Why an event of an identifier ends a connection, or the attempt at one. `None` for the other events.
pub(crate) fn failure(kind: &EventKind, id: Option<&CmId>) -> Option<String> {
    let peer = || {
        let peer = id.and_then(|id| id.addresses().ok()?.peer);
        peer.map_or_else(String::new, |peer| format!(" {peer}"))
    };
    Some(match kind {
        EventKind::AddrError(errno) => CmError::Address(*errno).to_string(),
        EventKind::RouteError(status) => CmError::Route(*status).to_string(),
        EventKind::Rejected(rejected) => format!("the peer{} rejected the connection: {rejected}", peer()),
        EventKind::Unreachable(Unreachable::Errno(errno)) | EventKind::ConnectError(errno) => {
            format!("the peer{} is unreachable: {errno}", peer())
        }
        EventKind::Unreachable(Unreachable::Sidr(status, _)) => {
            format!("the service{} is unreachable: {status}", peer())
        }
        EventKind::MulticastError(errno) => CmError::Multicast(errno.unwrap_or(Errno::IO)).to_string(),
        EventKind::Disconnected(_) => format!("the peer{} has ended the connection", peer()),
        EventKind::DeviceRemoval => "the device was removed".into(),
        _ => return None,
    })
}

/// The next request to a listener.
pub(crate) fn next_request(listener: &Listener, stop: &Stop) -> Result<Incoming> {
    loop {
        stop.check()?;
        if let Some(request) = listener.request().wait_timeout(Duration::ZERO) {
            return Ok(request?);
        }
        if stop.wait(listener.id().channel().as_fd(), PollFlags::IN, None)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
    }
}

/// What a connection has for the program.
#[derive(Debug, PartialEq, Eq)]
enum Found<T> {
    Completion(T),
    /// The peer has ended the connection, and no completion is left.
    End,
    Nothing,
}

/// Looks for the end of a connection, and then polls: messages that the peer sent before it ended
/// the connection are found first.
fn look<C, T, E>(
    connection: &mut C,
    is_ended: impl FnOnce(&mut C) -> Result<bool, E>,
    poll: impl FnOnce(&mut C) -> Option<T>,
) -> Result<Found<T>, E> {
    let is_ended = is_ended(connection)?;
    Ok(match poll(connection) {
        Some(completion) => Found::Completion(completion),
        None if is_ended => Found::End,
        None => Found::Nothing,
    })
}

/// What a wait for a completion ended with.
pub(crate) enum Next {
    Completion(Done<RegionMut>),
    /// The peer has ended the connection.
    End,
    TimedOut,
}

/// The next completion of a connection. `None`: the peer has ended the connection.
pub(crate) fn next_completion(
    connection: &mut Connected<Endpoint<RegionMut>>,
    stop: &Stop,
) -> Result<Option<Done<RegionMut>>> {
    loop {
        match next_completion_within(connection, stop, None)? {
            Next::Completion(done) => return Ok(Some(done)),
            Next::End => return Ok(None),
            Next::TimedOut => {}
        }
    }
}

/// The next completion of a connection, up to a limit.
pub(crate) fn next_completion_within(
    connection: &mut Connected<Endpoint<RegionMut>>,
    stop: &Stop,
    mut limit: Option<&mut Timeout>,
) -> Result<Next> {
    let Connected { queue, link } = connection;
    loop {
        stop.check()?;
        let found = match queue.poll() {
            Some(ended) => Found::Completion(ended),
            None => {
                // Completions before the arming raise no event, so it is followed by a poll.
                queue.arm()?;
                look(&mut (&mut *link, &mut *queue), |both| both.0.has_ended(), |both| both.1.poll())?
            }
        };
        match found {
            Found::Completion(Ok(done)) => return Ok(Next::Completion(done)),
            Found::Completion(Err(failed)) => {
                // The end of the connection flushes what was posted.
                let flushed =
                    matches!(failed.error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. });
                return if flushed && ends(link, stop)? { Ok(Next::End) } else { Err(failed.into()) };
            }
            Found::End => return Ok(Next::End),
            Found::Nothing => {}
        }
        let events = link.id().channel().as_fd();
        match stop.wait_either(queue.as_fd(), events, limit.as_deref_mut())? {
            Wake::Ready => {}
            Wake::TimedOut => return Ok(Next::TimedOut),
            Wake::Stopped => return Err(Interrupted.into()),
        }
    }
}

/// Whether the peer has ended the connection, or its end is reported within [`END_LIMIT`]. siw flushes a
/// queue pair before it reports the end.
fn ends(link: &mut Link, stop: &Stop) -> Result<bool> {
    let mut limit = Timeout::after(END_LIMIT);
    while !link.has_ended()? {
        match stop.wait(link.id().channel().as_fd(), PollFlags::IN, Some(&mut limit))? {
            Wake::Ready => {}
            Wake::TimedOut => return Ok(false),
            Wake::Stopped => return Err(Interrupted.into()),
        }
    }
    Ok(true)
}

/// Connections without rights for the peer.
pub(crate) fn without_access() -> ConnectOptions<'static> {
    ConnectOptions { access: Access::empty(), ..ConnectOptions::default() }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::thread;

    use bareverbs::soft::{Fabric, SoftDevice};
    use bareverbs::{Buffer, Op, Remote};
    use bareverbs_rdmacm::IdOptions;
    use bareverbs_rdmacm::connection::{Connector, Domains};

    use super::*;

    /// Both ends of a connection between soft devices. A failed read has flushed a receive of the first.
    fn connection() -> [Connected<Endpoint<RegionMut>>; 2] {
        let fabric = Fabric::new();
        let devices = [(); 2].map(|()| SoftDevice::new(&fabric));
        let domains = Domains::on(&fabric);
        let server = (devices[1].address(), 0);
        let listener = Listener::bind_with_domains(&domains, &IdOptions::default(), server).unwrap();
        let (peer, options) = (listener.local_addr().unwrap(), Endpoint::options());
        thread::scope(|scope| {
            let accepted = scope.spawn(|| listener.accept(&options).wait().unwrap());
            let connected = Connector::with_domains(&domains).connect(peer, &options).wait().unwrap();
            let mut accepted: Connected<Endpoint<RegionMut>> = accepted.join().unwrap();
            let pd = accepted.queue.qp().pd().clone();
            let buffer = || RegionMut::register(&pd, Buffer::zeroed(16).unwrap()).unwrap();
            accepted.queue.post(Op::recv(buffer())).unwrap();
            accepted.queue.post(Op::read(buffer(), .., Remote { addr: 0, rkey: 0 })).unwrap();
            let _ = accepted.queue.next().wait().unwrap_err();
            [accepted, connected]
        })
    }

    #[test]
    fn flush_before_the_end_of_the_connection_is_the_end() {
        let [mut flushed, mut peer] = connection();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(END_LIMIT / 10);
                peer.link.disconnect().wait().unwrap();
            });
            assert!(next_completion(&mut flushed, &Stop::new().unwrap()).unwrap().is_none());
        });
    }

    #[test]
    fn flush_without_the_end_of_the_connection_is_an_error() {
        let [mut flushed, _peer] = connection();
        let error = next_completion(&mut flushed, &Stop::new().unwrap()).unwrap_err();
        assert!(error.to_string().contains("was flushed"), "{error:#}");
    }

    /// A connection whose peer sends a message and ends it, just before its end is looked for.
    #[derive(Default)]
    struct Connection {
        messages: Vec<u32>,
        is_ended: bool,
    }

    impl Connection {
        fn is_ended(&mut self) -> Result<bool, Infallible> {
            if !std::mem::replace(&mut self.is_ended, true) {
                self.messages.push(7);
            }
            Ok(true)
        }
    }

    #[test]
    fn message_is_found_before_the_end_of_the_connection() {
        let mut connection = Connection::default();
        let mut look = || look(&mut connection, Connection::is_ended, |c| c.messages.pop()).unwrap();
        assert_eq!(look(), Found::Completion(7));
        assert_eq!(look(), Found::End);
    }

    #[test]
    fn events_that_end_a_connection_have_a_reason() {
        for (kind, words) in [
            (EventKind::DeviceRemoval, "the device was removed"),
            (EventKind::ConnectError(Errno::TIMEDOUT), "the peer is unreachable"),
            (EventKind::Unreachable(Unreachable::Errno(Errno::HOSTUNREACH)), "the peer is unreachable"),
            (EventKind::AddrError(Errno::NODEV), "address"),
        ] {
            let reason = failure(&kind, None).unwrap_or_else(|| panic!("{kind:?} has no reason"));
            assert!(reason.contains(words), "{reason}");
        }
        assert_eq!(failure(&EventKind::AddrResolved, None), None);
    }

    #[test]
    fn idle_connection_has_no_completion_and_no_end() {
        assert_eq!(look(&mut (), |()| Ok::<_, Infallible>(false), |()| None::<u32>), Ok(Found::Nothing));
        assert_eq!(look(&mut (), |()| Err::<bool, _>("removed"), |()| Some(7)), Err("removed"));
    }
}
