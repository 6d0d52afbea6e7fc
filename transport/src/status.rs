//! The status of failed work requests.

/// Why a work request failed (InfiniBand specification, volume 1, 10.10.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the InfiniBand specification")]
pub enum Status {
    LocalLength,
    LocalQpOperation,
    LocalProtection,
    Flushed,
    MemoryWindowBind,
    BadResponse,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetriesExceeded,
    RnrRetriesExceeded,
}
