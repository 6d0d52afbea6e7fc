//! Safe posting: an operation owns its buffer until its completion is polled.
//!
//! An [`Endpoint`] is a connected QP with its CQ. A posted buffer moves into the endpoint and comes
//! back with its completion, so safe code can't touch a buffer while the device uses it.
//! `mem::forget` of an endpoint or a result leaks the buffer. The buffer then stays registered and
//! valid.
//!
//! ```
//! use bareverbs::{Access, Buffer, Device, Endpoint, Op};
//!
//! let pd = Device::find("soft0")?.open()?.alloc_pd()?;
//! let (mut alice, mut bob) = (Endpoint::new(&pd, 1, 16)?, Endpoint::new(&pd, 1, 16)?);
//! alice.connect(&bob.address())?;
//! bob.connect(&alice.address())?;
//!
//! bob.post(Op::recv(pd.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE)?))?;
//! let mut hello = pd.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE)?;
//! hello.write(0, b"hello, bob")?;
//! alice.post(Op::send(hello, ..10))?;
//!
//! assert_eq!(bob.next().wait()?.message(), Some(&b"hello, bob"[..]));
//! let hello = alice.next().wait()?.into_buffer();
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! The sender can't reach a posted buffer:
//!
//! ```compile_fail,E0382
//! # use bareverbs::{Buffer, Endpoint, Mr, Op};
//! # fn touch(endpoint: &mut Endpoint<Mr<Buffer>>, mut buffer: Mr<Buffer>) -> bareverbs::Result<()> {
//! endpoint.post(Op::send(buffer, ..))?;
//! buffer.write(0, b"too late")?;
//! # Ok(())
//! # }
//! ```
//!
//! Borrowed memory is posted in a [scope](Endpoint::scope), which waits for its operations.
//! Otherwise `mem::forget` of an endpoint would end the borrow while the device still uses the
//! memory. So posting requires an MR of a [`MemoryOwner`](crate::MemoryOwner),
//! which [`Borrowed`](crate::Borrowed) is not:
//!
//! ```compile_fail,E0277
//! # use bareverbs::{Borrowed, Endpoint, Mr, Op};
//! # fn lend<'a>(endpoint: &mut Endpoint<Mr<Borrowed<'a>>>, buffer: Mr<Borrowed<'a>>) {
//! endpoint.post(Op::recv(buffer)).unwrap();
//! # }
//! ```
//!
//! ```compile_fail,E0277
//! # use bareverbs::{Borrowed, Endpoint, Mr, Op};
//! # fn lend<'a>(endpoint: &mut Endpoint<Mr<Borrowed<'a>>>, buffer: Mr<Borrowed<'a>>) {
//! endpoint.post(Op::send(buffer, ..)).unwrap();
//! # }
//! ```
//!
//! [`RawMemory`](crate::RawMemory) does not own its bytes and does not implement it either:
//!
//! ```compile_fail,E0277
//! # use bareverbs::{Endpoint, Mr, Op, RawMemory};
//! # fn lend(endpoint: &mut Endpoint<Mr<RawMemory>>, buffer: Mr<RawMemory>) {
//! endpoint.post(Op::recv(buffer)).unwrap();
//! # }
//! ```

mod any_buffer;
mod batch;
mod buffer;
mod closing;
mod datagrams;
pub(crate) mod endpoint;
pub mod hub;
pub(crate) mod in_flight;
mod keepalive;
mod local_atomics;
pub mod op;
mod operation;
mod options;
mod park;
mod pool;
mod queue;
mod region;
mod remote_region;
mod removal;
pub(crate) mod resolve;
mod result;
mod scope;
pub mod server;
mod spin;
mod wait;

pub use self::any_buffer::AnyBuffer;
pub use self::batch::Batch;
pub use self::buffer::{Source, Target};
pub use self::closing::Closing;
pub use self::datagrams::{
    DatagramAddress, DatagramDone, DatagramOptions, DatagramSender, Datagrams, Destination, NextDatagram,
    PendingDestination, ReceivedDatagram, SendTo,
};
pub use self::endpoint::Endpoint;
pub use self::hub::pending::Pending;
pub use self::hub::{Connection, Hub};
pub use self::local_atomics::LocalAtomics;
pub use self::operation::Op;
pub use self::options::EndpointOptions;
pub use self::pool::{PendingPoolBuffer, Pool, PoolBuffer};
pub use self::region::{Chunks, Region, RegionMut};
pub use self::remote_region::{RemoteRegion, RemoteRegionSource, Word};
pub use self::result::{Completed, Done, Failed, Outcome};
pub use self::scope::{Lend, LendRange, Scope};
pub use self::spin::Spin;
pub(crate) use self::spin::Spinning;
pub use self::wait::Next;

/// Cooperative budget: one await in this many yields to the scheduler, even if its operation is complete.
pub(crate) const BUDGET: u32 = 128;

/// Spends one await of the budget. Returns whether it must yield.
#[inline(always)]
pub(crate) fn spend_budget(budget: &mut u32) -> bool {
    *budget -= 1;
    let is_spent = *budget == 0;
    if is_spent {
        *budget = BUDGET;
    }
    is_spent
}
