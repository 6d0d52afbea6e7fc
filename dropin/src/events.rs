//! Asynchronous events.

use std::os::fd::{AsFd, AsRawFd};

use bareverbs::device::EventType;

use crate::abi::event::ibv_async_event;
use crate::context::ContextArgument;
use crate::convention::{OrMinusOne, Value, export, required};
use crate::cq::CqObject;
use crate::qp::QpObject;
use crate::record;
use crate::srq::SrqObject;
use crate::wq::WqObject;

/// A record of an event: its element, its type, and 4 bytes that are reserved.
const RECORD: usize = 16;

export! {
    fn ibv_get_async_event(context: ContextArgument<'_>, event: Option<&mut ibv_async_event>) -> OrMinusOne {
        let (context, event) = (context.required()?, required(event)?);
        let events = context.context.async_events();
        let [e0, e1, e2, e3, e4, e5, e6, e7, t0, t1, t2, t3, ..] =
            record::read::<RECORD>(events.as_fd().as_raw_fd())?;
        event.element = record::object([e0, e1, e2, e3, e4, e5, e6, e7]).expose_provenance() as u64;
        event.event_type = u32::from_ne_bytes([t0, t1, t2, t3]);
        Ok(0)
    }

    /// Only events of objects are counted.
    fn ibv_ack_async_event(event: Option<&ibv_async_event>) -> Value<()> {
        let event = required(event)?;
        let element = record::object(event.element.to_ne_bytes());
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
                EventType::WQ_FATAL => (*element.cast::<WqObject>()).abi.events.add(1),
                _ => {}
            }
        }
        Ok(())
    }
}
