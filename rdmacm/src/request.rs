//! Connection requests.

use crate::id::CmId;
use crate::param::{ConnParam, RequestParam};
use crate::{EventChannel, Key, PrivateData, Result};

/// A request of a peer, with the identifier that the kernel created for it.
///
/// The kernel drops copies of a request while the connection of the request exists. It forgets the
/// request when it was rejected, or when its connection has ended (`cm_reset_to_idle` and
/// `cm_enter_timewait` of `cm.c`). A copy that the network delivers later is a new request. Its peer
/// ignores a rejection, and does not answer when the copy is accepted: the identifier gets
/// [`EventKind::Unreachable`](crate::event::EventKind::Unreachable).
///
/// Drop destroys the identifier, which rejects the request with
/// [`RejectReason::Consumer`](crate::event::RejectReason::Consumer).
///
/// ```no_run
/// use bareverbs_rdmacm::{CmId, ConnParam, ConnectRequest};
///
/// fn answer(request: ConnectRequest, qp_num: u32) -> bareverbs_rdmacm::Result<CmId> {
///     // With a QP: move it to RTS by the attributes of `request.id()` first.
///     request.accept(&ConnParam { private_data: b"welcome", ..ConnParam::new(qp_num) })
/// }
/// ```
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
#[derive(Debug)]
#[must_use = "drop rejects the request"]
pub struct ConnectRequest {
    id: CmId,
    listener: Key,
    param: RequestParam,
}

impl ConnectRequest {
    pub(crate) fn new(id: CmId, listener: Key, param: RequestParam) -> Self {
        Self { id, listener, param }
    }

    /// The identifier of the connection. It is on the channel of the listener.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The identifier of the connection, to migrate it for instance. Answer by
    /// [`CmId::accept`] or [`CmId::reject`].
    #[must_use = "drop rejects the request"]
    pub fn into_id(self) -> CmId {
        self.id
    }

    /// Moves the identifier to another channel, before it is accepted.
    ///
    /// # Errors
    /// As for [`CmId::migrate`].
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.id.migrate(channel)
    }

    /// Moves the identifier to a channel that no other identifier has.
    pub(crate) fn move_to_own_channel(&mut self) -> Result<()> {
        let channel = self.id.channel().private_for_same_devices()?;
        self.id.move_to(&channel)
    }

    /// The key of the listener.
    #[must_use]
    pub fn listener(&self) -> Key {
        self.listener
    }

    /// The parameters of the peer.
    #[must_use]
    pub fn param(&self) -> &RequestParam {
        &self.param
    }

    /// Data from the application of the peer.
    #[must_use]
    pub fn private_data(&self) -> &PrivateData {
        self.param.private_data()
    }

    /// Accepts the request. For a connected QP the identifier gets
    /// [`EventKind::Established`](crate::event::EventKind::Established) next; a datagram QP gets no
    /// event.
    ///
    /// # Errors
    /// [`Error::Withdrawn`](crate::Error::Withdrawn): the peer gave up. The errors of [`CmId::accept`]
    /// otherwise. The request is rejected then.
    #[doc(alias = "rdma_accept")]
    pub fn accept(self, param: &ConnParam<'_>) -> Result<CmId> {
        self.id.accept(param).map_err(|error| error.withdrawn("accept"))?;
        Ok(self.id)
    }

    /// Rejects the request, with data for the application of the peer.
    ///
    /// # Errors
    /// [`Error::Withdrawn`](crate::Error::Withdrawn): the peer gave up. The errors of [`CmId::reject`]
    /// otherwise. The request is rejected without the data then.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data).map_err(|error| error.withdrawn("reject"))
    }

    /// Rejects the request because of its ECE options.
    ///
    /// # Errors
    /// As for [`ConnectRequest::reject`].
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(self, private_data: &[u8]) -> Result<()> {
        self.id.reject_ece(private_data).map_err(|error| error.withdrawn("reject"))
    }
}
