//! Objects over queues without a kernel, for measurements of providers and for this crate's tests.
//!
//! The caller's [`Provider`] creates the queues, over a model of a device. The device file is
//! `/dev/null`, which fails every command: the destruction of objects fails, and the memory that they
//! own is leaked.

#[cfg(test)]
mod plain;

use std::sync::Arc;

use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::write::structs::ExQueryDeviceResp;

#[cfg(test)]
pub(crate) use self::plain::*;
use crate::buffer::Source;
use crate::cq::Cq;
use crate::device::DriverId;
use crate::qp::{Qp, QpState, Rc};
use crate::{Buffer, Connection, Context, Endpoint, Hub, MemoryOwner, Mr, Pd, Pool};

/// A protection domain of a new context. Its queues have at most `depth` requests, its CQs as many
/// entries as two queues.
///
/// # Panics
/// If there is not enough memory, or the provider refuses a domain.
#[must_use]
pub fn pd<P: Provider>(provider: P, depth: u32) -> Pd<P> {
    let mut limits = ExQueryDeviceResp::zeroed();
    let base = &mut limits.base;
    (base.max_qp_wr, base.max_sge, base.max_cqe) = (depth, 4, 2 * depth);
    pd_behind("/dev/null", DriverId::UNKNOWN, provider, limits)
}

/// A protection domain of a new context. Commands fail with the errno that `path`, `/dev/null` or
/// `/dev/urandom`, returns for an unknown ioctl.
fn pd_behind<P: Provider>(path: &str, driver: DriverId, provider: P, limits: ExQueryDeviceResp) -> Pd<P> {
    let file = std::fs::File::open(path).expect("a file that is there");
    // SAFETY: the file fails every ioctl and mmap: callers pass `/dev/null` and `/dev/urandom` only.
    let file = unsafe { DeviceFile::from_fd_unchecked(file.into(), driver.0) }.expect("memory");
    Context::for_test(Arc::new(file), provider, limits).alloc_pd().expect("a domain")
}

/// A region of all bytes of `memory`.
///
/// # Safety
///
/// The device must have registered the bytes with the L_Key `lkey`.
#[must_use]
pub unsafe fn mr<M: MemoryOwner, P: Provider>(pd: &Pd<P>, memory: M, lkey: u32) -> Mr<M> {
    Mr::without_kernel(pd.domain(), memory, lkey)
}

/// A pool of one buffer: all bytes of a region.
///
/// # Panics
/// If the region has remote rights, or no or more than `u32::MAX` bytes.
#[must_use]
pub fn pool(region: Mr<Buffer>) -> Pool {
    region.check_local("testing::pool").expect("local rights");
    let len = region.len();
    assert!(len > 0 && u32::try_from(len).is_ok(), "{len} bytes");
    Pool::of(region, 1, len, len)
}

/// An endpoint of a QP, assumed to be in RTS, and its CQ. Its waits never sleep.
///
/// # Panics
/// If there is not enough memory.
///
/// # Safety
///
/// `cq` is the CQ of both queues of `qp` and of no other QP. No request of `qp` is in use, and the
/// device takes its requests as in RTS.
#[must_use]
pub unsafe fn endpoint<B, P: Provider>(mut qp: Qp<Rc, P>, cq: Cq<P>) -> Endpoint<B, P> {
    qp.assume_state(QpState::RTS);
    Endpoint::of_queues(qp, cq)
}

/// A connection of a QP, assumed to be in RTS, in a new hub on its CQ.
///
/// # Panics
/// If there is not enough memory.
///
/// # Safety
///
/// As for [`endpoint`].
#[must_use]
pub unsafe fn connection<B: Source, P: Provider>(mut qp: Qp<Rc, P>, cq: Cq<P>) -> Connection<B, P> {
    qp.assume_state(QpState::RTS);
    let cap = qp.cap();
    let [sends, recvs] = [cap.max_send_wr, cap.max_recv_wr];
    let hub = Hub::of_cq(qp.pd(), cq, sends + recvs, ());
    hub.connection_for_test(qp, [sends as usize, recvs as usize], (0, ()))
}
