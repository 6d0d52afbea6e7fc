//! Completion channels.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, Ordering};

use bareverbs::cq::CompChannel;

use crate::abi::cq::{ibv_comp_channel, ibv_cq};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, export, required};
use crate::object::Object;
use crate::record;

pub(crate) type ChannelObject = Object<ibv_comp_channel, CompChannel>;

/// A record of a completion channel: the address of the CQ.
const RECORD: usize = 8;

export! {
    fn ibv_create_comp_channel(context: ContextArgument<'_>) -> OrNull<ibv_comp_channel> {
        Object::create(|_| {
            let channel = context.required()?.context.create_comp_channel()?;
            record::set_blocking(channel.as_fd())?;
            let fd = channel.as_fd().as_raw_fd();
            Ok((ibv_comp_channel { context: context.pointer(), fd, refcnt: AtomicI32::new(0) }, channel))
        })
    }

    fn ibv_destroy_comp_channel(channel: Option<NonNull<ChannelObject>>) -> OrErrno {
        let channel = required(channel)?;
        // SAFETY: the argument is a live channel.
        if unsafe { channel.as_ref() }.abi.refcnt.load(Ordering::Acquire) != 0 {
            return Err(Failure::BUSY);
        }
        // SAFETY: the argument is a live channel, which the program uses no longer.
        unsafe { Object::free(channel) };
        Ok(())
    }

    fn ibv_get_cq_event(
        channel: Option<&ChannelObject>,
        cq: Option<&mut *mut ibv_cq>,
        cq_context: Option<&mut *mut c_void>,
    ) -> OrMinusOne {
        let (channel, cq, cq_context) = (required(channel)?, required(cq)?, required(cq_context)?);
        *cq = record::object(record::read::<RECORD>(channel.abi.fd)?).cast();
        // SAFETY: the kernel has no events of destroyed CQs, and `ibv_destroy_cq` waits for the
        // acknowledgement of this one.
        *cq_context = unsafe { (**cq).cq_context };
        Ok(0)
    }
}
