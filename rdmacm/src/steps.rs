//! The steps of a connection, each of which waits for exactly its events.
//!
//! There is one implementation: `async` functions over [`Wait`]. Those of
//! [`Waiting`](crate::waiting::Waiting) block in a thread and pend in a task.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use bareverbs::qp::QpType;
use rustix::io::Errno;

use crate::event::{EstablishedParam, Event, EventKind, UdPeer, Unreachable};
use crate::waiting::Waiter;
use crate::{Addr, CmId, ConnParam, ConnectRequest, Error, EventChannel, Key, PeerParam, Result, command};

/// The time limit of the resolution of an address, and again of a route. The kernel divides that of a
/// path query by the number of its retries (`send_mad` in `sa_query.c`), so that a longer one repeats a
/// lost query later.
pub(crate) const RESOLVE: Duration = Duration::from_secs(10);

/// The kernel's time limit of one RESOLVE_ADDR, which is repeated. The kernel may miss the answer of a
/// neighbour, and then looks again at the end of this limit (`docs/kernel-bugs.md`).
pub(crate) const RESOLVE_TRY: Duration = Duration::from_millis(500);

/// A way to wait for the next event of a channel: one of the key if it is claimed, else one of any
/// key.
pub(crate) trait Wait: Sync {
    fn event(&self, channel: &EventChannel, key: Key) -> impl Future<Output = Result<Event>> + Send;
}

impl Wait for Waiter {
    async fn event(&self, channel: &EventChannel, key: Key) -> Result<Event> {
        poll_fn(|cx| channel.poll_event_by(Some(key), self, cx)).await
    }
}

/// The error that an event means for a step that waits for another event.
fn failure(kind: EventKind, verb: &'static str) -> Option<Error> {
    Some(match kind {
        EventKind::AddrError(errno) => Error::Address(errno),
        EventKind::RouteError(status) => Error::Route(status),
        EventKind::Rejected(rejected) => Error::Rejected(Box::new(rejected)),
        EventKind::ConnectError(errno) | EventKind::Unreachable(Unreachable::Errno(errno)) => {
            Error::Unreachable(errno)
        }
        EventKind::Unreachable(Unreachable::Sidr(status, data)) => {
            Error::Sidr { peer: None, status, private_data: Box::new(data) }
        }
        EventKind::Disconnected(_) => Error::Disconnected { verb },
        EventKind::DeviceRemoval => Error::DeviceRemoved { verb },
        EventKind::AddrinfoError(errno) => Error::Address(errno),
        EventKind::MulticastError(errno) => Error::Multicast(errno.unwrap_or(Errno::IO)),
        _ => return None,
    })
}

/// How long an event may come after a command that the kernel refuses because of it: the kernel changes
/// the state of an identifier first.
const PENDING: Duration = Duration::from_millis(100);

/// The error of a command of a handshake. If the connection has ended meanwhile, the kernel refuses the
/// command with `EINVAL`, and the event of the identifier has the cause.
pub(crate) fn refused(id: &CmId, verb: &'static str, error: Error) -> Error {
    let end = Instant::now().checked_add(PENDING);
    let events = std::iter::from_fn(|| id.channel().wait_event(Some(id.key()), end).ok().flatten());
    with_peer(id, cause(error, verb, id.key(), events))
}

/// Adds the address of the peer to a refusal of the peer.
fn with_peer(id: &CmId, mut error: Error) -> Error {
    if let Error::Rejected(rejected) = &mut error {
        rejected.peer = peer_of(id);
    } else if let Error::Sidr { peer, .. } = &mut error {
        *peer = peer_of(id);
    }
    error
}

/// The error that an event of the identifier means for a step that waits for another event.
pub(crate) fn failure_of(id: &CmId, kind: EventKind, verb: &'static str) -> Option<Error> {
    failure(kind, verb).map(|error| with_peer(id, error))
}

fn peer_of(id: &CmId) -> Option<Addr> {
    id.addresses().ok()?.peer
}

/// The error of the first of the events that means one, if `error` is `EINVAL` of a command.
fn cause(error: Error, verb: &'static str, key: Key, mut events: impl Iterator<Item = Event>) -> Error {
    let found = error
        .is_wrong_state()
        .then(|| events.find_map(|event| if event.key == key { failure(event.kind, verb) } else { None }));
    found.flatten().unwrap_or(error)
}

/// Takes one kind of event, or returns another one, for [`until`].
macro_rules! take {
    ($pattern:pat => $taken:expr) => {
        |kind| match kind {
            $pattern => ControlFlow::Break($taken),
            other => ControlFlow::Continue(other),
        }
    };
}

/// The claim of the events of a key, while a step waits for them.
struct Claim<'a>(&'a EventChannel, Key);

impl<'a> Claim<'a> {
    fn new(id: &'a CmId, key: Key) -> Self {
        id.channel().claim(key, id.backlog());
        Self(id.channel(), key)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.unclaim(self.1);
    }
}

/// Waits until `take` takes an event of `key`, which is that of the identifier or of a membership. An
/// event that means failure ends the wait; others are skipped. Those of other keys stay for those who
/// wait for them.
async fn until<T>(
    wait: &impl Wait,
    id: &CmId,
    key: Key,
    verb: &'static str,
    mut take: impl FnMut(EventKind) -> ControlFlow<T, EventKind> + Send,
) -> Result<T> {
    let _claim = Claim::new(id, key);
    loop {
        match take(wait.event(id.channel(), key).await?.kind) {
            ControlFlow::Break(taken) => return Ok(taken),
            ControlFlow::Continue(kind) => {
                if let Some(error) = failure_of(id, kind, verb) {
                    return Err(error);
                }
            }
        }
    }
}

/// Resolves address and route.
pub(crate) async fn resolve(wait: &impl Wait, id: &CmId, src: Option<Addr>, dst: Addr) -> Result<()> {
    // Before the commands: another reader of the channel would take their events.
    let _claim = Claim::new(id, id.key());
    resolve_addr(wait, id, src, dst, RESOLVE).await?;
    // It is not repeated: on RoCE the answer comes at once, and on InfiniBand the kernel repeats the
    // query within the limit.
    id.resolve_route(RESOLVE)?;
    until(wait, id, id.key(), "resolve_route", take!(EventKind::RouteResolved => ())).await
}

/// Resolves the address. After a failure the kernel's identifier is bound, and may resolve again.
async fn resolve_addr(
    wait: &impl Wait,
    id: &CmId,
    src: Option<Addr>,
    dst: Addr,
    limit: Duration,
) -> Result<()> {
    const VERB: &str = "resolve_addr";
    let begin = Instant::now();
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        id.resolve_addr(src, dst, resolve_try(left))?;
        match until(wait, id, id.key(), VERB, take!(EventKind::AddrResolved => ())).await {
            Err(Error::Address(Errno::TIMEDOUT)) if begin.elapsed() < limit => {}
            Err(Error::Address(Errno::TIMEDOUT)) => return Err(Error::TimedOut { verb: VERB, limit }),
            ended => return ended,
        }
    }
}

/// The kernel's time limit of the next try, if the call may wait for `left`. The last tries are shorter,
/// so that an answer that the kernel missed is found before the end.
fn resolve_try(left: Duration) -> Duration {
    (left / 2).clamp(Duration::from_millis(1), RESOLVE_TRY)
}

/// Sends the request of a connected QP. On iWARP, the command blocks until the peer's host has accepted the
/// TCP connection, and a task does not.
pub(crate) async fn connect(waiter: &Waiter, id: &CmId, param: &ConnParam<'_>) -> Result<()> {
    const VERB: &str = "connect";
    if !waiter.is_task() || !id.is_iwarp()? {
        return id.connect(param);
    }
    let (request, channel) = (id.connect_request(VERB, param)?, id.channel().clone());
    let connect = move || command::connect(channel.file(), request);
    waiter.blocking(id.channel().runtime(), connect).await?
}

/// Waits for the response of the peer of a connected QP.
pub(crate) async fn response(wait: &impl Wait, id: &CmId) -> Result<PeerParam> {
    if id.qp_type() == QpType::UD {
        return Err(Error::invalid("response", "the identifier is for datagrams: use `ud_peer`"));
    }
    until(wait, id, id.key(), "connect", |kind| match kind {
        EventKind::ConnectResponse(peer) => ControlFlow::Break(peer),
        // On iWARP, the kernel has moved the QP and confirmed the response.
        EventKind::Established(EstablishedParam::Connection(peer)) => {
            id.set_established();
            ControlFlow::Break(peer)
        }
        other => ControlFlow::Continue(other),
    })
    .await
}

/// Waits for the address of the peer's datagram QP.
pub(crate) async fn ud_peer(wait: &impl Wait, id: &CmId) -> Result<UdPeer> {
    if id.qp_type() != QpType::UD {
        return Err(Error::invalid("ud_peer", "the identifier is for a connection: use `response`"));
    }
    until(
        wait,
        id,
        id.key(),
        "connect",
        take!(EventKind::Established(EstablishedParam::Datagram(peer)) => peer),
    )
    .await
}

/// Waits until the peer has confirmed an accepted request.
pub(crate) async fn established(wait: &impl Wait, id: &CmId) -> Result<()> {
    if id.qp_type() == QpType::UD {
        return Err(Error::invalid("established", "the peer does not confirm the address of a datagram QP"));
    }
    until(wait, id, id.key(), "accept", take!(EventKind::Established(_) => ())).await
}

/// The next request to a listener, on the listener's channel.
pub(crate) async fn request(wait: &impl Wait, listener: &CmId) -> Result<ConnectRequest> {
    until(wait, listener, listener.key(), "request", take!(EventKind::ConnectRequest(request) => request))
        .await
}

/// Waits for the end of the connection. The result is the error of the end, if there was one.
pub(crate) async fn disconnected(wait: &impl Wait, id: &CmId, verb: &'static str) -> Result<Option<Errno>> {
    if id.qp_type() == QpType::UD {
        return Err(Error::invalid(verb, "a datagram QP has no connection"));
    }
    until(wait, id, id.key(), verb, |kind| match kind {
        EventKind::Disconnected(status) => ControlFlow::Break(status),
        // The end of TIMEWAIT comes after the end of the connection.
        EventKind::TimewaitExit => ControlFlow::Break(None),
        // On RoCE, a neighbour with another MAC address is reported so. The connection works.
        EventKind::Unreachable(_) => ControlFlow::Continue(EventKind::AddrChange),
        other => ControlFlow::Continue(other),
    })
    .await
}

/// Waits until a group is joined.
pub(crate) async fn joined(wait: &impl Wait, id: &CmId, membership: Key) -> Result<UdPeer> {
    until(wait, id, membership, "join_multicast", take!(EventKind::MulticastJoin(group) => group)).await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll, Wake, Waker};

    use bareverbs_uapi::rdma_cm::structs::{self, EventResp};
    use bareverbs_uapi::rdma_cm::{Accept, EventType};

    use super::*;
    use crate::PortSpace;
    use crate::PrivateData;
    use crate::error::CommandError;
    use crate::event::{RejectReason, Rejected, RouteStatus, SidrStatus};

    /// Events that come in this order, and then none.
    struct Script(Mutex<Vec<Event>>);

    impl Script {
        fn new(key: Key, kinds: impl IntoIterator<Item = EventKind>) -> Self {
            let mut events: Vec<_> = kinds.into_iter().map(|kind| Event { key, kind }).collect();
            events.reverse();
            Self(Mutex::new(events))
        }
    }

    impl Wait for Script {
        async fn event(&self, _: &EventChannel, _: Key) -> Result<Event> {
            let next = self.0.lock().unwrap().pop();
            next.ok_or(Error::System { what: "the script has no more events", errno: Errno::NOMSG })
        }
    }

    /// The output of a future that waits for a script only.
    fn run<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => unreachable!("a script does not pend"),
        }
    }

    fn new_id() -> CmId {
        CmId::new(&EventChannel::simulated(), PortSpace::Tcp).unwrap()
    }

    /// Waits for an event that means success, after these.
    fn after(kinds: impl IntoIterator<Item = EventKind>) -> Result<()> {
        let id = new_id();
        let script = Script::new(id.key(), kinds);
        run(until(&script, &id, id.key(), "connect", take!(EventKind::RouteResolved => ())))
    }

    #[test]
    fn events_without_meaning_for_the_step_are_skipped() {
        let skipped = [
            EventKind::AddrResolved,
            EventKind::TimewaitExit,
            EventKind::AddrChange,
            EventKind::User { arg: 1, status: 2 },
            EventKind::Unknown { event: 77, status: 0 },
            EventKind::RouteResolved,
        ];
        after(skipped).unwrap();
    }

    #[test]
    fn failures_end_the_step_with_their_error() {
        let rejected =
            Rejected { reason: RejectReason::Consumer, private_data: PrivateData::EMPTY, peer: None };
        let unreachable = |errno| EventKind::Unreachable(Unreachable::Errno(errno));
        let sidr = EventKind::Unreachable(Unreachable::Sidr(SidrStatus::NoQp, PrivateData::EMPTY));
        type IsIt = fn(&Error) -> bool;
        let failures: [(EventKind, IsIt); 10] = [
            (EventKind::AddrError(Errno::NODEV), |e| matches!(e, Error::Address(Errno::NODEV))),
            (EventKind::RouteError(RouteStatus::Sa(3)), |e| matches!(e, Error::Route(RouteStatus::Sa(3)))),
            (EventKind::Rejected(rejected), |e| matches!(e, Error::Rejected(_))),
            (EventKind::ConnectError(Errno::IO), |e| matches!(e, Error::Unreachable(Errno::IO))),
            (unreachable(Errno::TIMEDOUT), |e| matches!(e, Error::Unreachable(Errno::TIMEDOUT))),
            (sidr, |e| matches!(e, Error::Sidr { status: SidrStatus::NoQp, .. })),
            (EventKind::Disconnected(None), |e| matches!(e, Error::Disconnected { verb: "connect" })),
            (EventKind::DeviceRemoval, |e| matches!(e, Error::DeviceRemoved { verb: "connect" })),
            (EventKind::MulticastError(None), |e| matches!(e, Error::Multicast(Errno::IO))),
            (EventKind::AddrinfoError(Errno::IO), |e| matches!(e, Error::Address(Errno::IO))),
        ];
        for (kind, expected) in failures {
            let text = format!("{kind:?}");
            let error = after([EventKind::AddrChange, kind, EventKind::RouteResolved]).unwrap_err();
            assert!(expected(&error), "{text}: {error}");
        }
    }

    /// The error of a refused command, after which these events come.
    fn cause_of(errno: Errno, kinds: impl IntoIterator<Item = EventKind>) -> Error {
        let key = new_id().key();
        let command = CommandError::by_kernel("INIT_QP_ATTR", "", errno);
        let events = kinds.into_iter().map(|kind| Event { key, kind });
        let other = Event { key: new_id().key(), kind: EventKind::DeviceRemoval };
        cause(Error::Command(Box::new(command)), "connect", key, std::iter::once(other).chain(events))
    }

    #[test]
    fn event_explains_the_command_that_its_state_refuses() {
        let rejected =
            Rejected { reason: RejectReason::Consumer, private_data: PrivateData::EMPTY, peer: None };
        let error = cause_of(Errno::INVAL, [EventKind::AddrChange, EventKind::Rejected(rejected)]);
        assert!(matches!(error, Error::Rejected(_)), "{error}");
        let error = cause_of(Errno::INVAL, [EventKind::Disconnected(None)]);
        assert!(matches!(error, Error::Disconnected { verb: "connect" }), "{error}");
        for (errno, kind) in
            [(Errno::INVAL, EventKind::AddrChange), (Errno::NOMEM, EventKind::Disconnected(None))]
        {
            let error = cause_of(errno, [kind]);
            assert_eq!(error.errno(), Some(errno), "{error}");
        }
    }

    #[test]
    fn tries_end_before_the_time_limit() {
        let tries = [(3000, 500), (1000, 500), (300, 150), (20, 10), (1, 1), (0, 1)];
        for (left, expected) in tries.map(|(left, expected)| (left, Duration::from_millis(expected))) {
            assert_eq!(resolve_try(Duration::from_millis(left)), expected, "{left} ms are left");
        }
        assert_eq!(resolve_try(Duration::MAX), RESOLVE_TRY);
    }

    fn peer() -> Addr {
        "192.0.2.7:7174".parse::<std::net::SocketAddr>().unwrap().into()
    }

    #[test]
    fn address_is_resolved_again_within_the_time_limit() {
        // How the resolution ends after these events, and the time limits of its commands.
        let resolved = |limit, kinds: Vec<EventKind>| {
            let channel = EventChannel::simulated_private();
            let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
            let script = Script::new(id.key(), kinds);
            let ended = run(resolve_addr(&script, &id, None, peer(), limit));
            (ended, channel.file().kernel().resolved())
        };
        let late = || EventKind::AddrError(Errno::TIMEDOUT);
        let found = || [EventKind::AddrResolved];
        let long = Duration::from_secs(600);
        let (ended, limits) = resolved(long, [late(), late()].into_iter().chain(found()).collect());
        assert_eq!((ended.is_ok(), limits), (true, vec![500; 3]));
        // Both limits have passed when the event comes.
        for limit in [Duration::ZERO, Duration::from_nanos(1)] {
            let (ended, limits) = resolved(limit, [late()].into_iter().chain(found()).collect());
            let error = ended.unwrap_err();
            let is_late = matches!(error, Error::TimedOut { verb: "resolve_addr", limit: of } if of == limit);
            assert!(is_late, "{error:?}");
            assert_eq!(limits, [1]);
        }
        let unroutable = EventKind::AddrError(Errno::NODEV);
        let (ended, limits) = resolved(long, [unroutable].into_iter().chain(found()).collect());
        let error = ended.unwrap_err();
        assert!(matches!(error, Error::Address(Errno::NODEV)) && limits == [500], "{error:?}, {limits:?}");
    }

    /// A reader of the channel that reads at once when the kernel reports the next of the events.
    struct Reader {
        id: Key,
        channel: EventChannel,
        events: Mutex<Vec<EventType>>,
        taken: Mutex<Vec<Event>>,
    }

    impl Wake for Reader {
        fn wake(self: Arc<Self>) {
            let event = self.events.lock().unwrap().pop().expect("an event for each command");
            let uid = self.id.get();
            self.channel.file().kernel().report(EventResp { uid, event, ..EventResp::zeroed() });
            self.taken.lock().unwrap().extend(self.channel.try_wait().unwrap());
        }
    }

    #[test]
    fn resolution_gets_its_events_on_a_channel_that_another_reader_reads() {
        let channel = EventChannel::simulated();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        let events = Mutex::new(vec![EventType::ROUTE_RESOLVED, EventType::ADDR_RESOLVED]);
        let taken = Mutex::default();
        let reader = Arc::new(Reader { id: id.key(), channel: channel.clone(), events, taken });
        channel.file().kernel().wake_at_resolution(Some(Arc::clone(&reader).into()));
        let resolved = id.resolve(None, peer()).wait_timeout(Duration::from_secs(5));
        // The waker has the channel.
        channel.file().kernel().wake_at_resolution(None);
        assert!(reader.taken.lock().unwrap().is_empty(), "the reader took an event of the resolution");
        resolved.expect("the events were reported").unwrap();
    }

    #[test]
    fn refusals_of_the_peer_have_its_address() {
        let channel = EventChannel::simulated();
        channel.file().kernel().set_peer(peer());
        let [id, datagram] =
            [PortSpace::Tcp, PortSpace::Udp].map(|port_space| CmId::new(&channel, port_space).unwrap());
        let rejected =
            || Rejected { reason: RejectReason::Consumer, private_data: PrivateData::EMPTY, peer: None };
        let script = || Script::new(id.key(), [EventKind::Rejected(rejected())]);
        let sidr = EventKind::Unreachable(Unreachable::Sidr(SidrStatus::NoQp, PrivateData::EMPTY));
        let command = CommandError::by_kernel("ACCEPT", "", Errno::INVAL);
        let (uid, event) = (id.key().get(), EventType::REJECTED);
        channel.file().kernel().report(EventResp { uid, event, ..EventResp::zeroed() });
        for error in [
            run(response(&script(), &id)).unwrap_err(),
            run(established(&script(), &id)).unwrap_err(),
            refused(&id, "accept", command.into()),
            run(ud_peer(&Script::new(datagram.key(), [sidr]), &datagram)).unwrap_err(),
        ] {
            let found = match &error {
                Error::Rejected(rejected) => rejected.peer,
                Error::Sidr { peer, .. } => *peer,
                _ => None,
            };
            assert_eq!(found, Some(peer()), "{error:?}");
            assert!(error.to_string().contains(" to 192.0.2.7:7174"), "{error}");
        }
    }

    /// The response of iWARP: the kernel has confirmed it.
    fn established_by_kernel() -> EventKind {
        let mut param = structs::ConnParam { private_data_len: 5, ..structs::ConnParam::zeroed() };
        param.private_data[..5].copy_from_slice(b"hello");
        let peer = PeerParam::from_kernel(&param, structs::Ece::zeroed());
        EventKind::Established(EstablishedParam::Connection(peer))
    }

    #[test]
    fn response_on_iwarp_is_not_confirmed() {
        let channel = EventChannel::simulated();
        channel.file().kernel().set_iwarp();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        let peer = run(response(&Script::new(id.key(), [established_by_kernel()]), &id)).unwrap();
        assert_eq!(&*peer.private_data, b"hello");
        id.establish().unwrap();
        assert_eq!(channel.file().kernel().count::<Accept>(), 0);
        // On other devices it is.
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        id.establish().unwrap();
        assert_eq!(channel.file().kernel().count::<Accept>(), 1);
    }

    #[test]
    fn rejection_and_failure_on_iwarp_are_those_of_the_peer() {
        let id = new_id();
        let ended = |event, errno: Errno| {
            let status = errno.raw_os_error().wrapping_neg().cast_unsigned();
            let resp = EventResp { event, status, ..EventResp::zeroed() };
            let script = Script::new(id.key(), [crate::event::parse(&resp, QpType::RC)]);
            run(response(&script, &id)).unwrap_err()
        };
        let rejected = ended(EventType::REJECTED, Errno::CONNRESET);
        let Error::Rejected(rejected) = rejected else { panic!("{rejected}") };
        assert_eq!(rejected.reason, RejectReason::Mpa(Errno::CONNRESET));
        assert!(rejected.to_string().contains("Connection reset by peer"), "{rejected}");
        let error = ended(EventType::CONNECT_ERROR, Errno::INVAL);
        assert!(error.to_string().contains("before this host had read its MPA response"), "{error}");
        assert!(matches!(error, Error::Unreachable(Errno::INVAL)), "{error}");
    }

    #[test]
    fn end_of_a_connection_is_its_disconnection_or_the_exit_of_timewait() {
        let channel = EventChannel::simulated();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        let ended = |kinds: Vec<EventKind>| run(disconnected(&Script::new(id.key(), kinds), &id, "ended"));
        // The neighbour has another MAC address: the connection works.
        let moved = || EventKind::Unreachable(Unreachable::Errno(Errno::HOSTUNREACH));
        let late = EventKind::Disconnected(Some(Errno::TIMEDOUT));
        assert_eq!(ended(vec![moved(), EventKind::AddrChange, late]).unwrap(), Some(Errno::TIMEDOUT));
        assert_eq!(ended(vec![moved(), EventKind::TimewaitExit]).unwrap(), None);
        let removed = ended(vec![EventKind::DeviceRemoval]).unwrap_err();
        assert!(matches!(removed, Error::DeviceRemoved { verb: "ended" }), "{removed}");
    }

    #[test]
    fn wait_leaves_the_events_of_other_keys_on_a_shared_channel() {
        let channel = EventChannel::simulated();
        let [id, other] = [(); 2].map(|()| CmId::new(&channel, PortSpace::Tcp).unwrap());
        for key in [other.key(), id.key()] {
            let event = EventResp { uid: key.get(), event: EventType::ESTABLISHED, ..EventResp::zeroed() };
            channel.file().kernel().report(event);
        }
        id.established().wait().unwrap();
        assert!(channel.try_wait().unwrap().is_some_and(|event| event.key == other.key()));
        // Without a wait, events are for any caller.
        let event = EventResp { uid: id.key().get(), event: EventType::TIMEWAIT_EXIT, ..EventResp::zeroed() };
        channel.file().kernel().report(event);
        assert!(channel.try_wait().unwrap().is_some_and(|event| event.key == id.key()));
    }
}
