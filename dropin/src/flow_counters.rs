//! Counters of flows.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::{ptr, slice};

use bareverbs::flow::{FlowCount, FlowCounters};
use bareverbs::raw::uapi::uverbs::types::ReadCountersFlags;
use bareverbs::raw::uapi::verbs_values::CounterDescription;

use crate::abi::flow::{ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, callback, check_mask, required};
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

impl Attached {
    /// Adds a value to read at `index`, before the first flow.
    fn attach(&mut self, description: CounterDescription, index: u32) -> Result<(), Failure> {
        if index >= MOST_VALUES {
            return Err(Failure::INVALID);
        }
        if self.flows != 0 {
            return Err(Failure::BUSY);
        }
        self.values.push((description, index));
        Ok(())
    }

    /// Whether a list of `count` values has a place for each of them.
    fn fits(&self, count: u32) -> bool {
        self.values.iter().all(|(_, index)| *index < count)
    }

    /// Adds what was counted to the values of a list in which it fits.
    fn add_to(&self, values: &mut [u64], found: FlowCount) {
        for (description, index) in &self.values {
            let is_packets = *description == CounterDescription::PACKETS;
            values[*index as usize] += if is_packets { found.packets } else { found.bytes };
        }
    }
}

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
        lock(&counters.abi.attached).attach(description, attr.index)
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
        check_mask(flags.into(), ReadCountersFlags::PREFER_CACHED.into(), Failure::INVALID)?;
        if values.is_null() || !attached.fits(count) || count > MOST_VALUES {
            return Err(Failure::INVALID);
        }
        let found = counters.inner.read()?;
        // SAFETY: the program has `count` values.
        let values = unsafe {
            ptr::write_bytes(values, 0, count as usize);
            slice::from_raw_parts_mut(values, count as usize)
        };
        attached.add_to(values, found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_attached_before_the_first_flow_and_read_at_their_index() {
        let abi = ibv_counters { context: ptr::null_mut() };
        let counters = CountersHead { abi, attached: Mutex::default() };
        let attach = |description, index| lock(&counters.attached).attach(description, index);
        assert_eq!(counters.bind(|| Ok(())), Err(Failure::INVALID), "there is nothing to count");
        assert_eq!(attach(CounterDescription::BYTES, MOST_VALUES), Err(Failure::INVALID));
        for (description, index) in
            [(CounterDescription::BYTES, 0), (CounterDescription::PACKETS, 2), (CounterDescription::BYTES, 2)]
        {
            assert_eq!(attach(description, index), Ok(()));
        }
        assert_eq!(counters.bind(|| Err::<(), _>(Failure::BUSY)), Err(Failure::BUSY));
        assert_eq!(counters.bind(|| Ok(())), Ok(()));
        assert_eq!(attach(CounterDescription::BYTES, 1), Err(Failure::BUSY), "a flow uses them");
        counters.unbind();
        let attached = lock(&counters.attached);
        assert!(attached.fits(3) && !attached.fits(2));
        let mut found = FlowCount::default();
        (found.packets, found.bytes) = (3, 500);
        let mut values = [0; 4];
        attached.add_to(&mut values, found);
        assert_eq!(values, [500, 0, 503, 0]);
        drop(attached);
        assert_eq!(attach(CounterDescription::BYTES, 1), Ok(()), "no flow uses them");
    }
}
