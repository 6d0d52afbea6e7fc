//! Posting. The methods that are generic over the operations are those of [`Qp`](crate::qp::Qp)
//! too.

use bareverbs_provider::traits::{Provider, RecvQueue};
use bareverbs_provider::work::{RecvRequest, SendRequest};
use bareverbs_uapi::verbs_values::QpState;

use super::QpCore;
use super::kernel_qp::KernelQp;
use crate::cq::{Completions, Cq};
use crate::error::PostError;
use crate::post_error::doorbell_error;
use crate::qp::any::{AnyOperation, AnyTransport};
use crate::qp::post::{Batch, RecvHalf, SendHalf, post_receives_in, post_sends};
use crate::qp::transport::Operations;

impl<P: Provider> QpCore<P> {
    /// As [`Qp::split`](crate::qp::Qp::split).
    #[must_use]
    #[inline]
    pub fn split(&mut self) -> (SendHalf<'_, AnyTransport, P>, RecvHalf<'_, AnyTransport, P>) {
        self.split_as(self.transport)
    }

    /// The send half of a QP whose halves have locks of their own. [`QpCore::split`] borrows the QP as
    /// a whole, so the halves could not be kept beside it.
    ///
    /// ```
    /// use std::cell::UnsafeCell;
    /// use std::sync::Mutex;
    ///
    /// use bareverbs::error::PostError;
    /// use bareverbs::qp::{Operation, Payload, SendFlags, SendRequest};
    /// use bareverbs::untyped::QpCore;
    ///
    /// /// A QP to which any thread posts.
    /// struct SharedQp {
    ///     send: Mutex<()>,
    ///     recv: Mutex<()>,
    ///     core: UnsafeCell<QpCore>,
    /// }
    ///
    /// // SAFETY: each half is used with its lock held, and the whole with both.
    /// unsafe impl Sync for SharedQp {}
    ///
    /// fn send(qp: &SharedQp, bytes: &[u8]) -> Result<(), PostError> {
    ///     let request = SendRequest {
    ///         wr_id: 1,
    ///         operation: Operation::Send.into(),
    ///         flags: SendFlags::SIGNALED,
    ///         payload: Payload::Inline(&[bytes]),
    ///     };
    ///     let _locked = qp.send.lock().unwrap();
    ///     // SAFETY: the lock of this half is held.
    ///     let mut half = unsafe { QpCore::send_half(qp.core.get()) };
    ///     // SAFETY: the bytes are copied.
    ///     unsafe { half.post_send(&[request]) }
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// `core` points to a QP that stays valid and in place for `'q`. Until then, nothing else accesses
    /// it, but for its [receive half](Self::recv_half).
    #[must_use]
    #[inline(always)]
    pub unsafe fn send_half<'q>(core: *mut Self) -> SendHalf<'q, AnyTransport, P> {
        // SAFETY: the QP is valid. The receive half shares only fields that both read.
        let (sq, state, transport) = unsafe { (&mut (*core).sq, &(*core).kernel.state, (*core).transport) };
        SendHalf::new(&mut **sq, state, transport)
    }

    /// The receive half of a QP whose halves have locks of their own, as [`QpCore::send_half`].
    ///
    /// # Safety
    ///
    /// `core` points to a QP that stays valid and in place for `'q`. Until then, nothing else accesses
    /// it, but for its [send half](Self::send_half).
    #[must_use]
    #[inline(always)]
    pub unsafe fn recv_half<'q>(core: *mut Self) -> RecvHalf<'q, AnyTransport, P> {
        // SAFETY: the QP is valid. The send half shares only fields that both read.
        let (rq, state, transport) = unsafe { (&mut (*core).rq, &(*core).kernel.state, (*core).transport) };
        RecvHalf::new(rq.as_deref_mut(), state, transport)
    }

    /// As [`Qp::start_send`](crate::qp::Qp::start_send).
    #[inline]
    pub fn start_send(&mut self) -> Batch<'_, AnyTransport, P> {
        self.start_send_as(self.transport)
    }

    /// As [`Qp::post_send`](crate::qp::Qp::post_send).
    ///
    /// # Errors
    /// As for [`SendHalf::post_send`]. An operation that the transport lacks is
    /// [`PushError::Unsupported`](crate::error::PushError::Unsupported).
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline]
    pub unsafe fn post_send(
        &mut self,
        requests: &[SendRequest<'_, AnyOperation<'_, P>>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.post_send_as(self.transport, requests) }
    }

    /// As [`Qp::post_send_deferred`](crate::qp::Qp::post_send_deferred).
    ///
    /// # Errors
    /// As for [`QpCore::post_send`].
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline]
    pub unsafe fn post_send_deferred(
        &mut self,
        requests: &[SendRequest<'_, AnyOperation<'_, P>>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.post_send_deferred_as(self.transport, requests) }
    }

    /// As [`Qp::flush`](crate::qp::Qp::flush).
    ///
    /// # Errors
    /// As for [`Qp::flush`](crate::qp::Qp::flush).
    #[inline]
    pub fn flush(&mut self) -> Result<(), PostError> {
        self.split().0.flush()
    }

    /// As [`Qp::flush_and_poll`](crate::qp::Qp::flush_and_poll).
    ///
    /// # Errors
    /// As for [`Qp::flush`](crate::qp::Qp::flush).
    #[inline]
    pub fn flush_and_poll<'c>(&mut self, cq: &'c mut Cq<P>) -> Result<Completions<'c, P>, PostError> {
        self.split().0.flush_and_poll(cq)
    }

    /// As [`Qp::post_recv`](crate::qp::Qp::post_recv).
    ///
    /// # Errors
    /// As for [`RecvHalf::post_recv`].
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.post_recv_as(self.transport, requests) }
    }

    #[inline(always)]
    pub(crate) fn split_as<T: Operations>(
        &mut self,
        transport: T,
    ) -> (SendHalf<'_, T, P>, RecvHalf<'_, T, P>) {
        let Self { sq, rq, kernel: KernelQp { state, .. }, .. } = self;
        (SendHalf::new(&mut **sq, state, transport), RecvHalf::new(rq.as_deref_mut(), state, transport))
    }

    #[inline(always)]
    pub(crate) fn start_send_as<T: Operations>(&mut self, transport: T) -> Batch<'_, T, P> {
        Batch::new(&mut *self.sq, self.kernel.state, transport)
    }

    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    pub(crate) unsafe fn post_send_as<T: Operations>(
        &mut self,
        transport: T,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        // The fast path is duplicated here and not called through a half, and the slow path takes
        // the QP as its only other argument: a view costs registers.
        if let [request] = requests
            // SAFETY: the caller upholds the contract for the request.
            && let Some(posted) = unsafe { transport.try_post::<P>(&mut self.sq, request, false) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the caller upholds the contract for every request; none of them has been posted.
        unsafe { self.post_send_slow(transport, requests, false) }
    }

    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    pub(crate) unsafe fn post_send_deferred_as<T: Operations>(
        &mut self,
        transport: T,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
    ) -> Result<(), PostError> {
        if let [request] = requests
            // SAFETY: the caller upholds the contract for the request.
            && let Some(posted) = unsafe { transport.try_post::<P>(&mut self.sq, request, true) }
        {
            return posted.map_err(|error| doorbell_error(error, 1));
        }
        // SAFETY: the caller upholds the contract for every request; none of them has been posted.
        unsafe { self.post_send_slow(transport, requests, true) }
    }

    /// Posts requests that the fast path declined.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(always)]
    unsafe fn post_send_slow<T: Operations>(
        &mut self,
        transport: T,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        defer: bool,
    ) -> Result<(), PostError> {
        match requests {
            // Copied, so that the fast path need not keep a request in memory if it is known at the
            // call site.
            // SAFETY: the caller's contract is the same, and a copy names the same memory.
            [request] => unsafe { self.post_send_list(transport, &[*request], defer) },
            // SAFETY: the caller's contract is the same.
            _ => unsafe { self.post_send_list(transport, requests, defer) },
        }
    }

    /// Posts any requests in any state. `defer` leaves the doorbell to a later call.
    ///
    /// # Safety
    ///
    /// As for [`SendHalf::post_send`].
    #[inline(never)]
    unsafe fn post_send_list<T: Operations>(
        &mut self,
        transport: T,
        requests: &[SendRequest<'_, T::Operation<'_, P>>],
        defer: bool,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { post_sends::<T, P>(transport, &mut self.sq, self.kernel.state, requests, defer) }
    }

    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline(always)]
    pub(crate) unsafe fn post_recv_as<T: Operations>(
        &mut self,
        transport: T,
        requests: &[RecvRequest<'_>],
    ) -> Result<(), PostError> {
        let posted = if let ([request], Some(queue)) = (requests, &mut self.rq)
            // SAFETY: the caller upholds the contract for the request.
            && unsafe { queue.try_post(request) }
        {
            Ok(())
        } else {
            match requests {
                // Copied with its SGE, as sends are.
                [RecvRequest { wr_id, sges: [sge] }] => {
                    let (wr_id, sge) = (*wr_id, *sge);
                    // SAFETY: the caller upholds the contract for the request, which was not
                    // posted; the copy names the same memory.
                    unsafe { self.post_recv_list(transport, &[RecvRequest { wr_id, sges: &[sge] }]) }
                }
                // SAFETY: the caller upholds the contract for every request; none of them has been
                // posted.
                _ => unsafe { self.post_recv_list(transport, requests) },
            }
        };
        if self.kernel.state == QpState::ERR {
            // A device need not process the receive queue in ERR by itself. If the command fails,
            // the device is gone.
            let _ = self.set_error();
        }
        posted
    }

    /// Posts any receives in any state.
    ///
    /// # Safety
    ///
    /// As for [`RecvHalf::post_recv`].
    #[inline(never)]
    unsafe fn post_recv_list<T: Operations>(
        &mut self,
        transport: T,
        requests: &[RecvRequest<'_>],
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { post_receives_in(transport, self.rq.as_deref_mut(), self.kernel.state, requests) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::CqInit;
    use crate::qp::{Operation, Payload, QpInit, QpState, QpType, SendFlags};
    use crate::testing::Plain;

    #[test]
    fn halves_are_used_at_the_same_time() {
        let plain = Plain::default();
        let pd = plain.domain();
        let cq = pd.context().create_cq(&CqInit::new(8)).unwrap();
        let mut qp = QpCore::create(&pd, QpType::RC, &QpInit::new(&cq, &cq)).unwrap();
        qp.assume_state(QpState::RTS);
        let core = &raw mut qp;
        // SAFETY: the QP is not used otherwise while the halves exist.
        let (mut send, mut recv) = unsafe { (QpCore::send_half(core), QpCore::recv_half(core)) };
        let request = SendRequest {
            wr_id: 1,
            operation: Operation::Send.into(),
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
        };
        // SAFETY: the requests name no memory.
        unsafe {
            send.post_send(&[request]).unwrap();
            recv.post_recv(&[RecvRequest { wr_id: 2, sges: &[] }]).unwrap();
            send.post_send(&[request]).unwrap();
        }
        assert_eq!(plain.log().sent.len(), 2);
    }

    #[test]
    fn receive_in_err_is_flushed_by_another_transition_to_err() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair(&plain.domain());
        for (state, transitions) in [(QpState::RTS, &[][..]), (QpState::ERR, &[QpState::ERR])] {
            qp.assume_state(state);
            // SAFETY: the request names no memory.
            unsafe { qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }.unwrap();
            let states = plain.log().states.clone();
            assert_eq!(states, transitions);
        }
    }
}
