//! Atomic operations of this process on memory that peers update.

use std::fmt;

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::AtomicCap;

use super::{Endpoint, Op, RemoteRegion};
use crate::error::Feature;
use crate::{Access, AnyProvider, Buffer, Error, Mr, Pd, PortNum, Result};

/// Atomic operations on [`RemoteRegion`] words by the device, through a connection of the device to
/// itself. They are atomic with the atomic operations of peers.
///
/// Atomics of the CPU are atomic with those of peers only if
/// [`DeviceAttr::atomic_cap`](crate::device::DeviceAttr::atomic_cap) is [`AtomicCap::GLOB`]. Soft-RoCE and
/// ConnectX report [`AtomicCap::HCA`]: an operation is atomic with those of the same device only.
///
/// An operation is a round trip through the device: microseconds on hardware, and two system calls
/// or more on Soft-RoCE. It has one owner; several threads share it by a mutex or use one each.
///
/// ```
/// use bareverbs::buffer::LocalAtomics;
/// use bareverbs::{Access, Buffer, Device, RegionMut};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let lock = RegionMut::register(&pd, Buffer::zeroed(8)?)?.expose(Access::REMOTE_ATOMIC)?;
/// let mut atomics = LocalAtomics::new(&pd, 1)?;
/// // Peers take the lock by `compare_swap` too.
/// while atomics.compare_swap(&lock, 0, 0, 1)? != 0 {}
/// println!("locked");
/// atomics.compare_swap(&lock, 0, 1, 0)?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// The first failed operation ends the connection. Later operations fail with [`Error::Closed`].
pub struct LocalAtomics<P: Provider = AnyProvider> {
    requester: Endpoint<Mr<Buffer>, P>,
    /// The other end of the connection, which executes the operations.
    responder: Endpoint<Mr<Buffer>, P>,
    /// Receives the previous value. `None` after an operation that did not return it.
    result: Option<Mr<Buffer>>,
}

impl<P: Provider> LocalAtomics<P> {
    /// Creates the connection, at `port`: two QPs, two CQs and an MR of 8 bytes in `pd`.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the device has no atomic operations.
    /// - The errors of [`EndpointOptions::build`](super::EndpointOptions::build),
    ///   [`Endpoint::connect`] and [`Pd::register`].
    pub fn new(pd: &Pd<P>, port: impl Into<PortNum>) -> Result<Self> {
        if pd.domain().context.device_attr.base.atomic_cap == AtomicCap::NONE {
            return Err(Error::unsupported("LocalAtomics::new", Feature::Atomics));
        }
        let options = Endpoint::options().port(port).sends(1).recvs(1).rd_atomic(1);
        let mut requester = options.clone().access(Access::empty()).build(pd)?;
        let mut responder = options.access(Access::REMOTE_ATOMIC).build(pd)?;
        requester.connect(&responder.address())?;
        responder.connect(&requester.address())?;
        let result = Some(pd.register(Buffer::zeroed(8)?, Access::LOCAL_WRITE)?);
        Ok(Self { requester, responder, result })
    }

    /// Adds `add` to the word of 8 bytes at `offset` atomically. Returns the previous value. The sum
    /// wraps around.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the word exceeds the memory or is not aligned to 8 bytes, peers lack
    ///   [`Access::REMOTE_ATOMIC`], or the memory belongs to another protection domain.
    /// - [`Error::Completion`]: the operation failed. It is unknown whether it was executed.
    /// - [`Error::Closed`]: an earlier operation has failed.
    /// - The errors of [`Endpoint::next`].
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub fn fetch_add<M>(&mut self, exposed: &RemoteRegion<M>, offset: usize, add: u64) -> Result<u64> {
        const VERB: &str = "LocalAtomics::fetch_add";
        let remote = exposed.atomic_word(VERB, self.requester.qp().pd().domain(), offset)?;
        self.execute(VERB, |result| Op::fetch_add(result, remote, add))
    }

    /// Replaces the word of 8 bytes at `offset` by `swap` if it is `compare`, atomically. Returns
    /// the previous value.
    ///
    /// # Errors
    /// As for [`LocalAtomics::fetch_add`].
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    pub fn compare_swap<M>(
        &mut self,
        exposed: &RemoteRegion<M>,
        offset: usize,
        compare: u64,
        swap: u64,
    ) -> Result<u64> {
        const VERB: &str = "LocalAtomics::compare_swap";
        let remote = exposed.atomic_word(VERB, self.requester.qp().pd().domain(), offset)?;
        self.execute(VERB, |result| Op::compare_swap(result, remote, compare, swap))
    }

    /// Executes the operation that writes the previous value to the MR.
    fn execute(&mut self, verb: &'static str, op: impl FnOnce(Mr<Buffer>) -> Op<Mr<Buffer>>) -> Result<u64> {
        let closed =
            Error::Closed { verb, reason: "an earlier operation failed: create a new `LocalAtomics`" };
        let result = self.result.take().ok_or(closed)?;
        if let Err(refused) = self.requester.post(op(result)) {
            self.result = Some(refused.object.into_buffer());
            return Err(refused.error);
        }
        match self.requester.next().wait() {
            Ok(done) => {
                let result = self.result.insert(done.into_buffer());
                let mut old = [0; 8];
                result.read(0, &mut old)?;
                Ok(u64::from_ne_bytes(old))
            }
            Err(failed) => {
                self.result = failed.buffer;
                Err(failed.error)
            }
        }
    }
}

impl<P: Provider> fmt::Debug for LocalAtomics<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAtomics")
            .field("requester", &format_args!("{:#x}", self.requester.qp().qp_num()))
            .field("responder", &format_args!("{:#x}", self.responder.qp().qp_num()))
            .finish_non_exhaustive()
    }
}
