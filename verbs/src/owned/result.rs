//! Results of operations.

use std::fmt;

use super::operation::OpPayload;
use super::{Op, Source};
use crate::error::explain;
use crate::{Error, Imm, PortNum, Refused, WcOpcode, WcStatus};

/// An operation that has ended, and its buffer. `D` is a successful one.
pub type Completed<B, D = Done<B>> = Result<D, Failed<B>>;

/// A successful operation, with its buffer.
#[non_exhaustive]
pub struct Done<B> {
    /// The caller's number of the operation.
    pub tag: u64,
    /// The buffer. `None` for an inline operation, a receive [without a buffer](Op::recv_empty), and an
    /// operation of a [scope](super::Endpoint::scope).
    pub buffer: Option<B>,
    /// Bytes sent, written, read or received. The device reports the length of a received message, or
    /// of the peer's write with immediate data.
    pub len: u32,
    /// Immediate data of a received message.
    pub imm: Option<Imm>,
    /// Opcode of the completion. `RECV` and `RECV_RDMA_WITH_IMM` are receives.
    pub opcode: WcOpcode,
}

impl<B> Done<B> {
    /// Whether the operation was a receive.
    #[must_use]
    pub fn is_recv(&self) -> bool {
        matches!(self.opcode, WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM)
    }

    /// The buffer.
    ///
    /// # Panics
    /// If the operation had none: it was inline, or was posted in a scope.
    #[must_use]
    pub fn into_buffer(self) -> B {
        self.buffer.expect("an operation that was posted with a buffer")
    }
}

impl<B: Source> Done<B> {
    /// The received message. `None` if the operation was not the receive of a send, or if peers may
    /// write the buffer.
    #[must_use]
    pub fn message(&self) -> Option<&[u8]> {
        let bytes = self.buffer.as_ref().filter(|_| self.opcode == WcOpcode::RECV)?.try_bytes()?;
        bytes.get(..usize::try_from(self.len).ok()?)
    }
}

/// Whether a failed operation was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The request was not posted: it was rejected in user space, or the kernel refused its doorbell
    /// and the request was taken back.
    NotExecuted,
    /// The peer rejected the request: `REM_ACCESS_ERR` or `REM_INV_REQ_ERR`. Of a message of several
    /// packets, earlier packets may have been written.
    Refused,
    /// It is unknown whether the peer executed it, in whole or in part. This includes local errors
    /// such as `LOC_PROT_ERR`: a device may find them after its first packet, or in the response to a
    /// read or an atomic that the peer has executed.
    Unknown,
}

impl Outcome {
    pub(super) fn of(status: WcStatus) -> Self {
        match status {
            WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR => Self::Refused,
            _ => Self::Unknown,
        }
    }
}

/// An operation that failed, or an error of waiting.
#[non_exhaustive]
#[must_use = "it holds the buffer of the operation"]
pub struct Failed<B> {
    /// The cause.
    pub error: Error,
    /// The caller's number of the operation; 0 if the error belongs to no operation.
    pub tag: u64,
    /// The buffer. `None` if the operation had none, or if the error belongs to no outstanding
    /// operation, such as [`Error::UnknownCompletion`].
    pub buffer: Option<B>,
    /// Whether the operation was executed.
    pub outcome: Outcome,
    /// The status that moved the QP to ERR. Outstanding operations are flushed.
    pub cause: Option<WcStatus>,
    pub(super) operation: bool,
    pub(super) recv: bool,
    /// Whether this side has ended the connection, and nothing failed before.
    pub(super) ended_here: bool,
}

impl<B> Failed<B> {
    /// An operation that has failed.
    pub(super) fn new(error: Error, (buffer, tag): (Option<B>, u64), outcome: Outcome, recv: bool) -> Self {
        Self { error, tag, buffer, outcome, cause: None, operation: true, recv, ended_here: false }
    }

    /// Whether an operation has ended. Otherwise the wait failed, such as in a forked child, or the
    /// device completed an unknown operation ([`Error::UnknownCompletion`]).
    ///
    /// [`Failed::buffer`] does not say that: it is `None` for inline operations, too.
    ///
    /// ```
    /// use bareverbs::{Error, Failed};
    ///
    /// let failed: Failed<()> = Error::UnknownCompletion { wr_id: 1 }.into();
    /// assert!(!failed.is_operation());
    /// ```
    #[must_use]
    pub fn is_operation(&self) -> bool {
        self.operation
    }

    /// Whether the connection failed because the peer did not respond to any retry: it is dead or
    /// unreachable. An operation that was flushed behind the failed one counts, too.
    ///
    /// ```
    /// use bareverbs::Failed;
    ///
    /// fn should_reconnect<B>(failed: &Failed<B>) -> bool {
    ///     failed.is_peer_lost()
    /// }
    /// ```
    #[must_use]
    pub fn is_peer_lost(&self) -> bool {
        self.cause == Some(WcStatus::RETRY_EXC_ERR) || self.error.is_peer_lost()
    }

    /// Whether the operation was a posted receive. The receives of a connection that ends are
    /// flushed: that is not a loss of data.
    #[must_use]
    pub fn is_recv(&self) -> bool {
        self.recv
    }

    /// Whether the operation was refused because the queue of the connection was full: the same
    /// post may succeed after another operation of the connection was awaited.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.error.is_full()
    }
}

impl<B> From<Error> for Failed<B> {
    fn from(error: Error) -> Self {
        Self { operation: false, ..Self::new(error, (None, 0), Outcome::Unknown, false) }
    }
}

/// An operation that was not executed.
impl<B, L: OpPayload<B>, O> From<Refused<Op<L, O>>> for Failed<B> {
    fn from(Refused { error, object, .. }: Refused<Op<L, O>>) -> Self {
        let (buffer, Op { tag, .. }) = object.split();
        Self::new(error, (buffer, tag), Outcome::NotExecuted, false)
    }
}

impl<B> Failed<B> {
    /// The same with the status that moved the QP to ERR, and the port whose link was down then.
    #[cold]
    #[inline(never)]
    pub(super) fn because_of(mut self, cause: Option<WcStatus>, port_down: Option<PortNum>) -> Self {
        if let Error::Completion { link_down, .. } = &mut self.error {
            *link_down = port_down;
        }
        Self { cause, ..self }
    }

    /// The status that moved the QP to ERR, if the operation was flushed.
    fn cause_of_flush(&self) -> Option<WcStatus> {
        if self.is_flushed() { self.cause } else { None }
    }

    pub(super) fn is_flushed(&self) -> bool {
        matches!(self.error, Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. })
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause_of_flush(), &self.error) {
            (_, Error::Completion { verb, .. }) if self.ended_here && self.is_flushed() => {
                write!(f, "{verb} was flushed, because this side has ended the connection")
            }
            (Some(cause), Error::Completion { verb, driver, link_down, .. }) => {
                let text = explain(cause, *driver, *link_down);
                write!(f, "{verb} was flushed, because the QP had failed: {cause:?}, {text}")
            }
            _ => fmt::Display::fmt(&self.error, f),
        }
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<B> From<Failed<B>> for Error {
    /// The error of a flushed operation gets the [`cause`](Failed::cause) as its status, so that
    /// [`Error::is_peer_lost`] is true for a dead peer, too. The vendor error of the cause is unknown:
    /// it is 0. If this side has ended the connection, it is [`Error::Closed`]. The buffer is dropped.
    fn from(mut failed: Failed<B>) -> Self {
        if failed.ended_here && failed.is_flushed() {
            let verb = failed.error.verb().unwrap_or_default();
            return Self::Closed { verb, reason: "this side has ended the connection" };
        }
        if let Some(cause) = failed.cause_of_flush()
            && let Self::Completion { status, vendor_err, .. } = &mut failed.error
        {
            (*status, *vendor_err) = (cause, 0);
        }
        failed.error
    }
}

// Written by hand, so that `B` need not implement `Debug`.
macro_rules! debug {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl<B> fmt::Debug for $name<B> {
            /// Of the buffer it prints whether there is one.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field))*
                    .field("has_buffer", &self.buffer.is_some())
                    .finish_non_exhaustive()
            }
        }
    )*};
}

debug! {
    Done { tag, len, imm, opcode }
    Failed { error, tag, outcome, cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_peer_is_seen_in_the_cause_or_in_the_error() {
        let failed = |status, cause| {
            let error = Error::Completion {
                verb: "Endpoint::recv",
                status,
                vendor_err: 0,
                driver: crate::device::DriverId::RXE,
                link_down: None,
            };
            Failed::<()> { cause, ..error.into() }.is_peer_lost()
        };
        assert!(failed(WcStatus::RETRY_EXC_ERR, None));
        assert!(failed(WcStatus::WR_FLUSH_ERR, Some(WcStatus::RETRY_EXC_ERR)));
        assert!(!failed(WcStatus::RNR_RETRY_EXC_ERR, None));
        assert!(!failed(WcStatus::WR_FLUSH_ERR, Some(WcStatus::REM_ACCESS_ERR)));
    }

    #[test]
    fn error_of_a_flushed_operation_has_the_cause() {
        let failed = |status, cause| {
            let error = Error::Completion {
                verb: "Endpoint::post(Op::recv)",
                status,
                vendor_err: 0xf9,
                driver: crate::device::DriverId::MLX5,
                link_down: None,
            };
            Failed::<()> { cause, ..error.into() }
        };
        let converted = |status, cause| match Error::from(failed(status, cause)) {
            Error::Completion { status, vendor_err, .. } => (status, vendor_err),
            error => panic!("{error}"),
        };
        let (flushed, lost) = (WcStatus::WR_FLUSH_ERR, WcStatus::RETRY_EXC_ERR);
        assert_eq!(converted(flushed, Some(lost)), (lost, 0));
        assert_eq!(converted(flushed, None), (flushed, 0xf9));
        assert_eq!(converted(WcStatus::LOC_PROT_ERR, Some(lost)), (WcStatus::LOC_PROT_ERR, 0xf9));
        assert!(Error::from(failed(flushed, Some(lost))).is_peer_lost());
        let text = failed(flushed, Some(lost)).to_string();
        let start = "Endpoint::post(Op::recv) was flushed, because the QP had failed: RETRY_EXC_ERR, the peer did not \
                     respond to any retry: ";
        assert!(text.starts_with(start), "{text}");
        assert_eq!(failed(flushed, None).to_string(), failed(flushed, None).error.to_string());
    }

    #[test]
    fn flush_by_an_own_end_names_no_failure() {
        let failed = |status, ended_here| {
            let error = Error::Completion {
                verb: "Endpoint::post(Op::recv)",
                status,
                vendor_err: 0,
                driver: crate::device::DriverId::RXE,
                link_down: None,
            };
            Failed::<()> { ended_here, ..error.into() }
        };
        let flushed = failed(WcStatus::WR_FLUSH_ERR, true);
        let text = "Endpoint::post(Op::recv) was flushed, because this side has ended the connection";
        assert_eq!(flushed.to_string(), text);
        assert!(matches!(Error::from(flushed), Error::Closed { verb: "Endpoint::post(Op::recv)", .. }));
        // Another failure is one, and so is a flush for another reason.
        for (status, ended_here) in [(WcStatus::LOC_PROT_ERR, true), (WcStatus::WR_FLUSH_ERR, false)] {
            let failed = failed(status, ended_here);
            assert_eq!(failed.to_string(), failed.error.to_string());
            assert!(matches!(Error::from(failed), Error::Completion { .. }));
        }
    }

    #[test]
    fn debug_says_whether_there_is_a_buffer() {
        struct Opaque;
        for (buffer, printed) in [(Some(Opaque), "has_buffer: true"), (None, "has_buffer: false")] {
            let failed = Failed { buffer, ..Failed::from(Error::UnknownCompletion { wr_id: 1 }) };
            assert!(format!("{failed:?}").contains(printed), "{failed:?}");
        }
    }
}
