//! Operations of several buffers.
//!
//! Each buffer has a slot and a [`Pending`] of its own. Its slot is queued, so that no completion ends
//! it but that of the request (`HubInner::end_parts`).

use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{Payload, RecvRequest, SendFlags, SendRequest, Sge};
use smallvec::SmallVec;

use super::connection::{Connection, PostOn};
use super::connection_inner::{ConnectionInner, full};
use super::reaper::service::{RESERVED, Service};
use super::reaper::{Failure, OpEntry, SlotKind};
use crate::error::PostError;
use crate::owned::in_flight::{ListOperation, sges};
use crate::owned::operation::{Parts, Receive};
use crate::owned::{Op, Pending, Source};
use crate::qp::{Qp, Rc};
use crate::{Error, WcOpcode};

impl<B: Source, P: Provider, S: Service<P>, R: RangeBounds<usize>, const N: usize> PostOn<B, P, S>
    for Op<Parts<B, R, N>>
{
    type Pending = [Pending<B, P, S>; N];

    fn post_on(self, connection: &Connection<B, P, S>) -> Self::Pending {
        let Self { operation, payload, tag, flags, .. } = self;
        let flags = flags | SendFlags::SIGNALED;
        connection.post_parts((SlotKind::Send, operation.opcode()), payload, tag, |qp, wr_id, sges| {
            // SAFETY: as in `Connection::post_send`, for each buffer. The table keeps all of them until
            // the provider reports the completion of `wr_id` or the QP is destroyed.
            unsafe { qp.post_send(&[SendRequest { wr_id, operation, flags, payload: Payload::Sges(sges) }]) }
        })
    }
}

impl<B: Source, P: Provider, S: Service<P>, R: RangeBounds<usize>, const N: usize> PostOn<B, P, S>
    for Op<Parts<B, R, N>, Receive>
{
    type Pending = [Pending<B, P, S>; N];

    fn post_on(self, connection: &Connection<B, P, S>) -> Self::Pending {
        let Self { payload, tag, .. } = self;
        connection.post_parts((SlotKind::Recv, WcOpcode::RECV), payload, tag, |qp, wr_id, sges| {
            // SAFETY: as above. `Op::recv_parts` requires a `Target`.
            unsafe { qp.post_recv(&[RecvRequest { wr_id, sges }]) }
        })
    }
}

impl<B: Source, P: Provider, S: Service<P>> Connection<B, P, S> {
    /// Moves the buffers into the table and posts their request by `post`.
    fn post_parts<R: RangeBounds<usize>, const N: usize>(
        &self,
        (kind, opcode): (SlotKind, WcOpcode),
        Parts(parts): Parts<B, R, N>,
        tag: u64,
        post: impl FnOnce(&mut Qp<Rc, P>, u64, &[Sge]) -> Result<(), PostError>,
    ) -> [Pending<B, P, S>; N] {
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        let refuse = |parts: [(B, R); N], error: &mut dyn FnMut() -> Error| {
            parts.map(|(buffer, _)| Pending::refused(error(), Some(buffer), tag))
        };
        let sges = match sges(S::verb(opcode), &parts, hub.pd.domain()) {
            Ok(sges) => sges,
            Err(error) => {
                let other = || Error::invalid(S::verb(opcode), "another buffer of the operation was refused");
                let mut error = Some(error);
                return refuse(parts, &mut || error.take().unwrap_or_else(other));
            }
        };
        // They are of the application, and so are dropped without the lock.
        let mut ranges = [const { None }; N];
        let mut state = conn.lock();
        let qp = match state.open_qp() {
            Ok(qp) => qp,
            Err(failure) => {
                drop(state);
                return refuse(parts, &mut || failure.into());
            }
        };
        let Some(slots) = conn.take_slots::<N>(kind) else {
            drop(state);
            return refuse(parts, &mut || full(conn, kind));
        };
        let mut at = 0;
        // The table owns the buffers before the request is posted, so a panic in between does not free
        // them.
        let wr_ids = parts.map(|(buffer, range)| {
            let (slot, len) = (slots[at], sges[at].length);
            ranges[at] = Some(range);
            at += 1;
            hub.table.insert_queued(slot, OpEntry { buffer: Some(buffer), opcode, kind, tag, len })
        });
        let posted = post(qp, RESERVED | wr_ids[0], &sges);
        if posted.is_ok() || matches!(posted, Err(error) if error.accepted > 0) {
            // Before its completion is handled, which needs the lock.
            state.parts.push(SmallVec::from_slice(&wr_ids));
        }
        drop(state);
        match posted {
            Ok(()) => {}
            // A request that counts as posted completes when the connection ends.
            Err(error) if error.accepted > 0 => hub.end(conn, Failure::Post(error)),
            Err(error) => return wr_ids.map(|wr_id| self.take_back(wr_id, error.into())),
        }
        wr_ids.map(|wr_id| Pending::posted(Arc::clone(&self.inner), wr_id))
    }
}
