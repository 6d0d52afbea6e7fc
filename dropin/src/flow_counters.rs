//! Counters of flows.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::{ptr, slice};

use bareverbs::flow::FlowCounters;
use bareverbs::raw::uapi::uverbs::types::ReadCountersFlags;
use bareverbs::raw::uapi::verbs_values::CounterDescription;

use crate::abi::flow::{ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, callback, required};
use crate::object::{Object, lock};

/// The struct of C, and the values that the program reads.
#[repr(C)]
pub(crate) struct CountersHead {
    abi: ibv_counters,
    attached: Mutex<Attached>,
}

#[derive(Default)]
struct Attached {
    /// What is counted, and the index of its value.
    values: Vec<(CounterDescription, u32)>,
    /// The flows that use the counters.
    flows: u32,
}

pub(crate) type CountersObject = Object<CountersHead, FlowCounters>;

/// The values that a program can read: an attribute of a call has at most 65,535 bytes.
const MOST_VALUES: u32 = u16::MAX as u32 / size_of::<u64>() as u32;

impl CountersHead {
    /// Creates a flow that uses the counters. Without values they are `EINVAL`.
    pub(crate) fn bind<R>(&self, create: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
        let mut attached = lock(&self.attached);
        if attached.values.is_empty() {
            return Err(Failure::INVALID);
        }
        let flow = create()?;
        attached.flows += 1;
        Ok(flow)
    }

    /// A flow that used the counters is destroyed.
    pub(crate) fn unbind(&self) {
        lock(&self.attached).flows -= 1;
    }
}

callback! {
    /// `ibv_create_counters`.
    fn create_counters(
        context: ContextArgument<'_>,
        init: Option<&ibv_counters_init_attr>,
    ) -> OrNull<ibv_counters> {
        if required(init)?.comp_mask != 0 {
            return Err(Failure::UNSUPPORTED);
        }
        Object::create(|_| {
            let counters = context.required()?.context.create_flow_counters()?;
            let abi = ibv_counters { context: context.pointer() };
            Ok((CountersHead { abi, attached: Mutex::default() }, counters))
        })
    }

    /// `ibv_destroy_counters`. Counters with flows are `EBUSY`.
    fn destroy_counters(counters: Option<NonNull<CountersObject>>) -> OrErrno {
        // SAFETY: the argument is a live object, which the program uses no longer.
        unsafe { Object::destroy(required(counters)?, FlowCounters::destroy, |_, ()| ()) }
    }

    /// `ibv_attach_counters_point_flow`: before the first flow, without a flow.
    fn attach_counters_point_flow(
        counters: Option<&CountersObject>,
        attr: Option<&ibv_counter_attach_attr>,
        flow: *const ibv_flow,
    ) -> OrErrno {
        let (counters, attr) = (required(counters)?, required(attr)?);
        let description = CounterDescription(attr.counter_desc);
        let is_known = matches!(description, CounterDescription::PACKETS | CounterDescription::BYTES);
        if !flow.is_null() || attr.comp_mask != 0 || !is_known {
            return Err(Failure::UNSUPPORTED);
        }
        if attr.index >= MOST_VALUES {
            return Err(Failure::INVALID);
        }
        let mut attached = lock(&counters.abi.attached);
        if attached.flows != 0 {
            return Err(Failure::BUSY);
        }
        attached.values.push((description, attr.index));
        Ok(())
    }

    /// `ibv_read_counters`. Values that nothing is attached to are 0.
    fn read_counters(
        counters: Option<&CountersObject>,
        values: *mut u64,
        count: u32,
        flags: u32,
    ) -> OrErrno {
        let counters = required(counters)?;
        let attached = lock(&counters.abi.attached);
        let has_all = attached.values.iter().all(|(_, index)| *index < count);
        let has_flags = ReadCountersFlags::from_bits(flags).is_some();
        if values.is_null() || !has_all || !has_flags || count > MOST_VALUES {
            return Err(Failure::INVALID);
        }
        let found = counters.inner.read()?;
        // SAFETY: the program has `count` values.
        let values = unsafe {
            ptr::write_bytes(values, 0, count as usize);
            slice::from_raw_parts_mut(values, count as usize)
        };
        for (description, index) in &attached.values {
            let is_packets = *description == CounterDescription::PACKETS;
            values[*index as usize] += if is_packets { found.packets } else { found.bytes };
        }
        Ok(())
    }
}
