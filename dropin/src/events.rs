//! Completion channels and asynchronous events. Programs poll and read the descriptors themselves, so
//! the kernel's records name the objects by their addresses, and a read blocks.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use bareverbs::cq::CompChannel;
use bareverbs::device::EventType;

use crate::abi::cq::{ibv_comp_channel, ibv_cq};
use crate::abi::event::ibv_async_event;
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, Value, export, required};
use crate::cq::CqObject;
use crate::object::Object;
use crate::qp::QpObject;
use crate::srq::SrqObject;

pub(crate) type ChannelObject = Object<ibv_comp_channel, CompChannel>;

/// A completion: the address of the CQ.
const COMPLETION_RECORD: usize = 8;

/// An asynchronous event: its element, its type, and 4 bytes that are reserved.
const EVENT_RECORD: usize = 16;

/// Makes reads of the descriptor block. `bareverbs` makes them not block.
pub(crate) fn set_blocking(fd: BorrowedFd<'_>) -> Result<(), Failure> {
    let is_nonblocking: c_int = 0;
    // SAFETY: the ioctl reads an integer.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &raw const is_nonblocking) } {
        -1 => Err(Failure::last()),
        _ => Ok(()),
    }
}

/// Reads one record. `EINTR` and `EAGAIN` are failures, as in C.
fn read<const N: usize>(fd: c_int) -> Result<[u8; N], Failure> {
    let mut record = [0; N];
    // SAFETY: the array has `N` bytes.
    match unsafe { libc::read(fd, record.as_mut_ptr().cast(), N) } {
        -1 => Err(Failure::last()),
        length if length.cast_unsigned() == N => Ok(record),
        _ => Err(bareverbs::Errno::IO.into()),
    }
}

/// The object at this address.
fn object(address: [u8; 8]) -> *mut c_void {
    ptr::with_exposed_provenance_mut(u64::from_ne_bytes(address) as usize)
}

export! {
    fn ibv_create_comp_channel(context: ContextArgument<'_>) -> OrNull<ibv_comp_channel> {
        let created = Object::create(|_| {
            let channel = context.required()?.context.create_comp_channel()?;
            set_blocking(channel.as_fd())?;
            let fd = channel.as_fd().as_raw_fd();
            Ok((ibv_comp_channel { context: context.pointer(), fd, refcnt: AtomicI32::new(0) }, channel))
        });
        created.map(<*mut ChannelObject>::cast)
    }

    fn ibv_destroy_comp_channel(channel: Option<ptr::NonNull<ChannelObject>>) -> OrErrno {
        let channel = required(channel)?;
        // SAFETY: the argument is a live channel.
        if unsafe { channel.as_ref() }.abi.refcnt.load(Ordering::Acquire) != 0 {
            return Err(Failure::BUSY);
        }
        let close = |channel| {
            drop(channel);
            Ok::<_, bareverbs::Refused<_>>(())
        };
        // SAFETY: the argument is a live channel, which the program uses no longer.
        unsafe { Object::destroy(channel, close, |_, ()| ()) }
    }

    fn ibv_get_cq_event(
        channel: Option<&ChannelObject>,
        cq: Option<&mut *mut ibv_cq>,
        cq_context: Option<&mut *mut c_void>,
    ) -> OrMinusOne {
        let (channel, cq, cq_context) = (required(channel)?, required(cq)?, required(cq_context)?);
        let record = read::<COMPLETION_RECORD>(channel.abi.fd)?;
        *cq = object(record).cast();
        // SAFETY: the kernel has no events of destroyed CQs, and `ibv_destroy_cq` waits for the
        // acknowledgement of this one.
        *cq_context = unsafe { (**cq).cq_context };
        Ok(0)
    }

    fn ibv_ack_cq_events(cq: Option<&CqObject>, count: u32) -> Value<()> {
        required(cq)?.abi.completions.add(count);
        Ok(())
    }

    fn ibv_get_async_event(context: ContextArgument<'_>, event: Option<&mut ibv_async_event>) -> OrMinusOne {
        let (context, event) = (context.required()?, required(event)?);
        let events = context.context.async_events();
        let [e0, e1, e2, e3, e4, e5, e6, e7, t0, t1, t2, t3, ..] =
            read::<EVENT_RECORD>(events.as_fd().as_raw_fd())?;
        event.element = object([e0, e1, e2, e3, e4, e5, e6, e7]).expose_provenance() as u64;
        event.event_type = u32::from_ne_bytes([t0, t1, t2, t3]);
        Ok(0)
    }

    /// Only events of objects are counted.
    fn ibv_ack_async_event(event: Option<&ibv_async_event>) -> Value<()> {
        let event = required(event)?;
        let element = object(event.element.to_ne_bytes());
        // SAFETY: an event of a type of an object has the address of that object, which is not freed
        // before the acknowledgement.
        unsafe {
            match EventType(event.event_type) {
                EventType::CQ_ERR => (*element.cast::<CqObject>()).abi.events.add(1),
                EventType::QP_FATAL
                | EventType::QP_REQ_ERR
                | EventType::QP_ACCESS_ERR
                | EventType::COMM_EST
                | EventType::SQ_DRAINED
                | EventType::PATH_MIG
                | EventType::PATH_MIG_ERR
                | EventType::QP_LAST_WQE_REACHED => (*element.cast::<QpObject>()).abi.events.add(1),
                EventType::SRQ_ERR | EventType::SRQ_LIMIT_REACHED => {
                    (*element.cast::<SrqObject>()).abi.events.add(1);
                }
                _ => {}
            }
        }
        Ok(())
    }
}
