//! Connected queue pairs of the tools over the connection manager.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use bareverbs::owned::{Done, Endpoint, Part};
use bareverbs::{Access, MinRnrTimer, QpState};
use bareverbs_rdmacm::connection::{ConnectOptions, Connection, Incoming, Listener};
use bareverbs_rdmacm::event::{EventKind, Unreachable};
use bareverbs_rdmacm::{CmId, Error as CmError};
use rustix::event::PollFlags;

use crate::signal::{Interrupted, Stop, Wake};

/// Time limit of the resolution of an address and of a route, as in the C programs.
pub(crate) const RESOLVE_LIMIT: Duration = Duration::from_secs(2);

/// Time limit of the other steps of a connection.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Moves an endpoint to RTS by the attributes of its identifier.
pub(crate) fn bring_up(id: &CmId, endpoint: &mut Endpoint<Part>) -> Result<()> {
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        let (mut attr, mask) = id.init_qp_attr(state)?;
        // The kernel's value is 655 ms.
        attr.min_rnr_timer = MinRnrTimer::MIN;
        endpoint.connect_by(&attr, mask)?;
    }
    Ok(())
}

/// Why an event ends a connection, or the attempt at one. `None` for the other events.
pub(crate) fn failure(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::AddrError(errno) => format!("cannot resolve the address: {errno}"),
        EventKind::RouteError(status) => format!("cannot resolve the route: {status}"),
        EventKind::Rejected(rejected) => format!("the peer rejected the connection: {rejected}"),
        EventKind::Unreachable(Unreachable::Errno(errno)) | EventKind::ConnectError(errno) => {
            format!("the peer is unreachable: {errno}")
        }
        EventKind::Unreachable(Unreachable::Sidr(status, _)) => {
            format!("the service is unreachable: {status}")
        }
        EventKind::Disconnected(_) => "the peer has ended the connection".into(),
        EventKind::DeviceRemoval => "the device was removed".into(),
        _ => return None,
    })
}

/// The next request to a listener.
pub(crate) fn next_request(listener: &Listener, stop: &Stop) -> Result<Incoming> {
    loop {
        match listener.get_request(Duration::ZERO) {
            Err(CmError::TimedOut { .. }) => {}
            request => return Ok(request?),
        }
        if stop.wait(listener.id().channel().as_fd(), PollFlags::IN, None)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
    }
}

/// The next completion of a connection. `None`: the peer has ended the connection.
pub(crate) fn next_completion(
    connection: &mut Connection<Endpoint<Part>>,
    stop: &Stop,
) -> Result<Option<Done<Part>>> {
    loop {
        if let Some(ended) = connection.poll() {
            return Ok(Some(ended?));
        }
        stop.check()?;
        connection.arm()?;
        // Completions before the arming raise no event.
        if let Some(ended) = connection.poll() {
            return Ok(Some(ended?));
        }
        if connection.is_disconnected()? {
            return Ok(None);
        }
        let events = connection.id().channel().as_fd();
        if stop.wait_either(connection.as_fd(), events, None)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
    }
}

/// Connections without rights for the peer.
pub(crate) fn without_access() -> ConnectOptions<'static> {
    ConnectOptions { access: Access::empty(), ..ConnectOptions::default() }
}
