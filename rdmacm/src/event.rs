//! Events: typed values with their parameters and private data.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bareverbs::qp::QpType;
use bareverbs_provider::wait::Caller;
use bareverbs_uapi::rdma_cm::structs::EventResp;
use bareverbs_uapi::rdma_cm::{EventParam, EventType};
use rustix::io::Errno;

use crate::channel::RawEvent;
pub use crate::param::{EstablishedParam, RequestParam, UdPeer};
pub use crate::status::{RejectReason, Rejected, RouteStatus, SidrStatus, Unreachable};
use crate::waiting::Waiter;
use crate::{CmId, ConnectRequest, EventChannel, Key, PeerParam, PrivateData, Result, Waiting};

/// An event of an identifier or of a multicast membership.
///
/// It needs no acknowledgement: it names its identifier by a [`Key`], and may outlive it.
///
/// ```
/// # let _device = bareverbs_test_support::example::ip_device()?;
/// use bareverbs_rdmacm::EventChannel;
/// use bareverbs_rdmacm::event::EventKind;
///
/// let channel = EventChannel::new()?;
/// # let listener = bareverbs_rdmacm::CmId::new(&channel, bareverbs_rdmacm::PortSpace::Tcp)?;
/// # listener.bind_addr((std::net::Ipv4Addr::UNSPECIFIED, 7174))?;
/// # listener.listen(1)?;
/// # let (connector, options) = (bareverbs_rdmacm::Connector::new(), bareverbs::Endpoint::options());
/// # let connect = move || connector.connect::<bareverbs::PoolBuffer>("10.1.0.1:7174", &options).wait().map(drop);
/// # std::thread::spawn(connect);
/// loop {
///     let event = channel.next().wait()?;
///     match event.kind {
///         EventKind::ConnectRequest(request) if event.key == listener.key() => {
///             request.reject(b"not now")?;
///         }
///         kind => println!("{:?}: {kind:?}", event.key),
///     }
/// #   break;
/// }
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[doc(alias = "rdma_cm_event")]
#[doc(alias = "rdma_ack_cm_event")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Event {
    /// The key of the identifier. For [`EventKind::ConnectRequest`] it is that of the listener, for
    /// [`EventKind::MulticastJoin`] and [`EventKind::MulticastError`] that of the membership.
    pub key: Key,
    /// The event, with its parameters.
    pub kind: EventKind,
}

/// An event of an identifier, with its parameters.
#[doc(alias = "rdma_cm_event_type")]
#[doc(alias = "rdma_event_str")]
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The peer's address is resolved: the identifier has a device and a port.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
    AddrResolved,
    /// The peer's address was not resolved. The identifier is bound, and may resolve again.
    ///
    /// - `ENODEV`: the network interface of the route has no RDMA device.
    /// - `ETIMEDOUT`: no neighbour answered.
    /// - `EINVAL`, for a datagram QP that connects: the Q_Key of the reply clashes.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
    AddrError(Errno),
    /// The route is resolved.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
    RouteResolved,
    /// The route was not resolved. The identifier may resolve it again.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError(RouteStatus),
    /// A peer asks for a connection, or for the QPN of a datagram QP.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest(ConnectRequest),
    /// The peer accepted. The caller moves its QP to RTS and calls
    /// [`CmId::establish`](crate::CmId::establish). No [`EventKind::Established`] follows. On iWARP,
    /// [`EventKind::Established`] comes in place of it.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse(PeerParam),
    /// Connecting failed. On InfiniBand and RoCE, the kernel reports it for its own QPs only
    /// (`cma_ib_handler` of `cma.c`).
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError(Errno),
    /// The peer did not answer, or refused the request for a datagram QP.
    ///
    /// On RoCE, an identifier that resolved a route gets it also whenever the MAC address of the
    /// neighbour changes (`ETIMEDOUT`). After the connection is established it is not final: the
    /// connection still works.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable(Unreachable),
    /// The peer, or the kernel for it, rejected the request or the response.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected(Rejected),
    /// The connection is established. It is an event of the passive side of a connected QP, and of the
    /// active side of a datagram QP. On iWARP, it is an event of both sides of a connected QP, which the
    /// kernel has moved to RTS then: [`CmId::establish`](crate::CmId::establish) is not called.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established(EstablishedParam),
    /// The connection ended. If the peer ended it, [`CmId::disconnect`](crate::CmId::disconnect)
    /// or drop answers. `Some(ETIMEDOUT)`: the peer never answered the end.
    ///
    /// It may come without [`EventKind::Established`].
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected(Option<Errno>),
    /// The device is being removed. Calls of the identifier fail from now on: drop it.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
    /// The multicast group is joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoin(UdPeer),
    /// The group was not joined, or was left because of an error. `None`: only its address handle
    /// could not be prepared.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastError(Option<Errno>),
    /// The network interface of the address has another MAC address, after the failover of a bond.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddrChange,
    /// The QP number can be used for another connection to the same peer.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
    /// Services are resolved. Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_RESOLVED")]
    AddrinfoResolved,
    /// Services were not resolved. Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_ERROR")]
    AddrinfoError(Errno),
    /// An event that a program wrote: [`CmId::write_user_event`](crate::CmId::write_user_event).
    /// Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_USER")]
    User {
        /// The writer's argument.
        arg: u64,
        /// The writer's status.
        status: u32,
    },
    /// An event that a library wrote for its own use. Linux 7.2 and later.
    #[doc(alias = "RDMA_CM_EVENT_INTERNAL")]
    Internal {
        /// The writer's argument.
        arg: u64,
        /// The writer's status.
        status: u32,
    },
    /// An event of a later kernel.
    Unknown {
        /// Its number.
        event: u32,
        /// Its status.
        status: i32,
    },
}

impl EventChannel {
    /// Reads an event if there is one.
    ///
    /// Events of identifiers that have been destroyed are skipped. If one is a connection
    /// request, its child is destroyed, which rejects the request.
    ///
    /// # Errors
    /// [`Error::Command`](crate::Error::Command) with `ESTALE`: the channel was opened before fork. With
    /// `EACCES`: the credentials of the process changed.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn try_wait(&self) -> Result<Option<Event>> {
        self.try_event(None)
    }

    /// The next event of a key that is claimed, or else of any key that is not.
    pub(crate) fn try_event(&self, key: Option<Key>) -> Result<Option<Event>> {
        Ok(self.try_raw(key)?.map(|raw| Event::new(self, raw)))
    }

    /// Waits in a thread as [`poll_event`](Self::poll_event) does, at most until `end`.
    pub(crate) fn wait_event(&self, key: Option<Key>, end: Option<Instant>) -> Result<Option<Event>> {
        Ok(self.wait_raw(key, end)?.map(|raw| Event::new(self, raw)))
    }

    /// Waits for the next event of a key that is claimed, or else of any key that is not.
    pub(crate) fn poll_event(&self, key: Option<Key>, caller: Caller<'_>) -> Poll<Result<Event>> {
        match caller {
            Caller::Thread(end) => self.wait_event(key, end).transpose().map_or(Poll::Pending, Poll::Ready),
            Caller::Task(waker) => {
                let raw = ready!(self.poll_raw(key, &mut Context::from_waker(waker)))?;
                Poll::Ready(Ok(Event::new(self, raw)))
            }
        }
    }

    /// The same for the caller of a [`Waiting`].
    pub(crate) fn poll_event_by(
        &self,
        key: Option<Key>,
        waiter: &Waiter,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Event>> {
        let polled = self.poll_event(key, waiter.caller(cx));
        if polled.is_pending() {
            waiter.expire();
        }
        polled
    }

    /// Waits for an event. A wait that is dropped loses no event.
    ///
    /// # Errors
    /// As for [`EventChannel::try_wait`]. [`Error::Invalid`](crate::Error::Invalid) in a task: no runtime
    /// is [attached](Self::attach).
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "wait")]
    pub fn next(&self) -> Waiting<'_, Result<Event>> {
        Waiting::new(|waiter| poll_fn(move |cx| self.poll_event_by(None, &waiter, cx)))
    }
}

impl Event {
    /// The event of a channel. A request has a live identifier, whose drop rejects it.
    fn new(channel: &EventChannel, RawEvent { key, info, resp }: RawEvent) -> Self {
        let kind = if resp.event == EventType::CONNECT_REQUEST {
            let child = CmId::adopt(channel, resp.id, info);
            EventKind::ConnectRequest(ConnectRequest::new(child, key, parse_request(&resp, info.qp_type)))
        } else {
            parse(&resp, info.qp_type)
        };
        Self { key, kind }
    }
}

/// The errno of a negative status. Other statuses, which no kernel reports there, are `EIO`.
fn errno(status: i32) -> Errno {
    match status.checked_neg() {
        Some(errno @ 1..=4095) => Errno::from_raw_os_error(errno),
        _ => Errno::IO,
    }
}

/// As [`errno`], for events whose status is 0 without an error.
fn failure(status: i32) -> Option<Errno> {
    (status != 0).then(|| errno(status))
}

/// The kind of an event other than a connection request.
pub(crate) fn parse(resp: &EventResp, qp_type: QpType) -> EventKind {
    let status = resp.status.cast_signed();
    let param = resp.param(qp_type);
    match (resp.event, param) {
        (EventType::ADDR_RESOLVED, _) => EventKind::AddrResolved,
        (EventType::ADDR_ERROR, _) => EventKind::AddrError(errno(status)),
        (EventType::ROUTE_RESOLVED, _) => EventKind::RouteResolved,
        (EventType::ROUTE_ERROR, _) => EventKind::RouteError(match status {
            ..0 => RouteStatus::Errno(errno(status)),
            0.. => RouteStatus::Sa(status.cast_unsigned()),
        }),
        (EventType::CONNECT_RESPONSE, EventParam::Conn(param)) => {
            EventKind::ConnectResponse(PeerParam::from_kernel(&param, resp.ece))
        }
        (EventType::CONNECT_ERROR, _) => EventKind::ConnectError(errno(status)),
        (EventType::UNREACHABLE, EventParam::Ud(param)) if status > 0 => {
            let data = PrivateData::new(param.private_data, param.private_data_len);
            EventKind::Unreachable(Unreachable::Sidr(SidrStatus::from(status.cast_unsigned()), data))
        }
        (EventType::UNREACHABLE, _) => EventKind::Unreachable(Unreachable::Errno(errno(status))),
        (EventType::REJECTED, EventParam::Conn(param)) => EventKind::Rejected(Rejected {
            reason: RejectReason::from(status.cast_unsigned()),
            private_data: PrivateData::new(param.private_data, param.private_data_len),
            peer: None,
        }),
        (EventType::ESTABLISHED, EventParam::Ud(param)) => {
            EventKind::Established(EstablishedParam::Datagram(UdPeer::from_kernel(&param)))
        }
        (EventType::ESTABLISHED, EventParam::Conn(param)) => {
            EventKind::Established(EstablishedParam::Connection(PeerParam::from_kernel(&param, resp.ece)))
        }
        (EventType::DISCONNECTED, _) => EventKind::Disconnected(failure(status)),
        (EventType::DEVICE_REMOVAL, _) => EventKind::DeviceRemoval,
        (EventType::MULTICAST_JOIN, EventParam::Ud(param)) => {
            EventKind::MulticastJoin(UdPeer::from_kernel(&param))
        }
        (EventType::MULTICAST_ERROR, _) => EventKind::MulticastError(failure(status)),
        (EventType::ADDR_CHANGE, _) => EventKind::AddrChange,
        (EventType::TIMEWAIT_EXIT, _) => EventKind::TimewaitExit,
        (EventType::ADDRINFO_RESOLVED, _) => EventKind::AddrinfoResolved,
        (EventType::ADDRINFO_ERROR, _) => EventKind::AddrinfoError(errno(status)),
        (EventType::USER, EventParam::Arg(arg)) => EventKind::User { arg, status: resp.status },
        (EventType::INTERNAL, EventParam::Arg(arg)) => EventKind::Internal { arg, status: resp.status },
        (event, _) => EventKind::Unknown { event: event.0, status },
    }
}

/// The parameters of a connection request.
pub(crate) fn parse_request(resp: &EventResp, qp_type: QpType) -> RequestParam {
    match resp.param(qp_type) {
        EventParam::Ud(param) => {
            RequestParam::Datagram(PrivateData::new(param.private_data, param.private_data_len))
        }
        EventParam::Conn(param) => RequestParam::Connection(PeerParam::from_kernel(&param, resp.ece)),
        _ => RequestParam::Datagram(PrivateData::EMPTY),
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::rdma_cm::structs::ConnParam;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    fn with_conn(event: EventType, status: i32, param: ConnParam) -> EventResp {
        let mut resp = EventResp { event, status: status.cast_unsigned(), ..EventResp::zeroed() };
        resp.ud.as_mut_bytes()[..size_of::<ConnParam>()].copy_from_slice(param.as_bytes());
        resp
    }

    proptest! {
        #[test]
        fn any_event_is_parsed(bytes: [[u8; 56]; 6], event in 0_u32..24, status: i32, ud: bool) {
            let mut resp = EventResp::read_from_bytes(bytes.as_flattened()).unwrap();
            (resp.event, resp.status) = (EventType(event), status.cast_unsigned());
            let qp_type = if ud { QpType::UD } else { QpType::RC };
            let data = &resp.ud.private_data[..resp.ud.private_data_len.into()];
            match parse(&resp, qp_type) {
                EventKind::Unknown { event: number, status: of } => {
                    prop_assert!(number > 19 || number == EventType::CONNECT_REQUEST.0);
                    prop_assert_eq!((number, of), (event, status));
                }
                EventKind::Established(EstablishedParam::Datagram(peer)) | EventKind::MulticastJoin(peer) => {
                    prop_assert_eq!((peer.qp_num, peer.qkey), (resp.ud.qp_num, resp.ud.qkey));
                    prop_assert_eq!(&*peer.private_data, data);
                }
                EventKind::Rejected(rejected) => {
                    prop_assert_eq!(rejected.reason.code(), status.cast_unsigned());
                    prop_assert_eq!(rejected.private_data.len(), usize::from(resp.conn().private_data_len));
                }
                EventKind::ConnectResponse(peer)
                | EventKind::Established(EstablishedParam::Connection(peer)) => {
                    prop_assert_eq!(peer.qp_num, resp.conn().qp_num);
                }
                EventKind::User { arg, .. } | EventKind::Internal { arg, .. } => {
                    prop_assert_eq!(arg, resp.arg());
                }
                _ => {}
            }
            prop_assert_eq!(matches!(parse_request(&EventResp { event: EventType::CONNECT_REQUEST, ..resp }, qp_type),
                RequestParam::Datagram(_)), ud);
        }

        #[test]
        fn reasons_round_trip(number: u32) {
            prop_assert_eq!(RejectReason::from(number).code(), number);
            prop_assert_eq!(RejectReason::from(number % 40).code(), number % 40);
        }
    }

    #[test]
    fn statuses_are_errnos_reasons_or_sidr_codes() {
        let status = |event, status: i32| {
            let resp = EventResp { event, status: status.cast_unsigned(), ..EventResp::zeroed() };
            (parse(&resp, QpType::RC), parse(&resp, QpType::UD))
        };
        let timeout = -Errno::TIMEDOUT.raw_os_error();
        assert!(matches!(status(EventType::ADDR_ERROR, timeout).0, EventKind::AddrError(Errno::TIMEDOUT)));
        assert!(matches!(status(EventType::ADDR_ERROR, i32::MIN).0, EventKind::AddrError(Errno::IO)));
        let (rc, ud) = status(EventType::UNREACHABLE, timeout);
        for kind in [rc, ud] {
            assert!(matches!(kind, EventKind::Unreachable(Unreachable::Errno(Errno::TIMEDOUT))), "{kind:?}");
        }
        let refused = status(EventType::UNREACHABLE, 1).1;
        assert!(matches!(refused, EventKind::Unreachable(Unreachable::Sidr(SidrStatus::Unsupported, _))));
        assert!(matches!(status(EventType::DISCONNECTED, 0).0, EventKind::Disconnected(None)));
        let late = status(EventType::DISCONNECTED, timeout).0;
        assert!(matches!(late, EventKind::Disconnected(Some(Errno::TIMEDOUT))));
        let sa = status(EventType::ROUTE_ERROR, 3).0;
        assert!(matches!(sa, EventKind::RouteError(RouteStatus::Sa(3))));
        assert!(matches!(status(EventType::MULTICAST_ERROR, 0).0, EventKind::MulticastError(None)));
    }

    #[test]
    fn rejection_has_reason_and_private_data() {
        let mut param = ConnParam { private_data_len: 148, ..ConnParam::zeroed() };
        param.private_data[..4].copy_from_slice(b"busy");
        let EventKind::Rejected(rejected) = parse(&with_conn(EventType::REJECTED, 28, param), QpType::RC)
        else {
            panic!("no rejection");
        };
        assert_eq!((rejected.reason, rejected.private_data.len()), (RejectReason::Consumer, 148));
        let text = "the application rejected it (reason 28), private data b\"busy\" in 148 bytes";
        assert_eq!(rejected.to_string(), text);
    }
}
