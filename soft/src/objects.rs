//! The objects of a context: handles, references between objects, and their destruction.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs_provider::Errno;
use bareverbs_provider::mapping::Mapping;
use bareverbs_transport::QpAttributes;
use bareverbs_uapi::rxe::MmapInfo;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use bareverbs_uapi::verbs_values::EventType;
use bareverbs_uapi::write::structs::ModifyQpReq;

use crate::channel::{Channel, ChannelKind, ChannelUse, CqSink, ObjectSink};
use crate::engine::QueueMemory;
use crate::port::{PORT, Port};

/// What a handle names.
#[derive(Debug)]
pub(crate) enum Object {
    Pd(u32),
    Cq(Cq),
    Qp(Box<Qp>),
    Srq(Srq),
    Ah(u32),
    Mr(u32),
    Mw(u32),
}

#[derive(Debug)]
pub(crate) struct Cq {
    /// Of the engine.
    pub(crate) id: u32,
    pub(crate) sink: Arc<CqSink>,
    /// The offset of its queue.
    pub(crate) ring: u64,
}

#[derive(Debug)]
pub(crate) struct Srq {
    /// Of the engine.
    pub(crate) id: u32,
    pub(crate) sink: Arc<ObjectSink>,
    pub(crate) ring: u64,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) qp_type: QpType,
    pub(crate) sink: Arc<ObjectSink>,
    pub(crate) rings: [Option<u64>; 2],
    pub(crate) caps: QpCap,
    pub(crate) all_signaled: bool,
    pub(crate) groups: BTreeSet<([u8; 16], u16)>,
    /// The attributes as they were set.
    pub(crate) set: ModifyQpReq,
    /// The same for the transport.
    pub(crate) attributes: QpAttributes,
}

#[derive(Debug)]
struct Slot {
    class: ObjectClass,
    /// `None` until its creation has succeeded so far.
    object: Option<Object>,
    /// Objects that refer to it.
    users: u32,
    /// Handles of the objects that it refers to.
    uses: Vec<u32>,
}

/// Events that a destroyed object had raised and that were read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventCounts {
    pub(crate) completions: u32,
    pub(crate) asynchronous: u32,
}

/// Numbers of objects of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// Contexts.
    pub contexts: usize,
    /// Protection domains.
    pub pds: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Memory regions.
    pub mrs: usize,
}

/// A context: what an open device file has.
#[derive(Debug)]
pub(crate) struct ContextState {
    pub(crate) port: Arc<Port>,
    pub(crate) has_context: bool,
    slots: BTreeMap<u32, Slot>,
    /// Handles below `next` that name no object.
    free: BTreeSet<u32>,
    next: u32,
    channels: Vec<Arc<Channel>>,
    /// Whether there may be events that a channel had no room for.
    pub(crate) has_unsent: Arc<AtomicBool>,
    /// The first channel of asynchronous events.
    default_events: Option<ChannelUse>,
    /// Queues that were not mapped yet, by their offsets.
    rings: BTreeMap<u64, Arc<Mapping>>,
}

/// The classes of objects that Soft-RoCE has.
pub(crate) fn is_class(class: u16) -> bool {
    [
        ObjectClass::DEVICE,
        ObjectClass::PD,
        ObjectClass::COMP_CHANNEL,
        ObjectClass::CQ,
        ObjectClass::QP,
        ObjectClass::SRQ,
        ObjectClass::AH,
        ObjectClass::MR,
        ObjectClass::MW,
        ObjectClass::ASYNC_EVENT,
    ]
    .contains(&ObjectClass(class))
}

/// Defines the lookups of a class's objects.
macro_rules! lookups {
    ($($get:ident, $class:ident, $variant:ident => $ty:ty;)*) => {$(
        /// # Errors
        ///
        /// `ENOENT`, or `EINVAL` for an object of another class.
        pub(crate) fn $get(&self, handle: u32) -> Result<&$ty, Errno> {
            self.find(ObjectClass::$class, handle.into())?;
            match self.slots.get(&handle).and_then(|slot| slot.object.as_ref()) {
                Some(Object::$variant(object)) => Ok(object),
                _ => Err(Errno::NOENT),
            }
        }
    )*};
}

impl ContextState {
    pub(crate) fn new(port: Arc<Port>) -> Self {
        Self {
            port,
            has_context: false,
            slots: BTreeMap::new(),
            free: BTreeSet::new(),
            next: 0,
            channels: Vec::new(),
            has_unsent: Arc::default(),
            default_events: None,
            rings: BTreeMap::new(),
        }
    }

    lookups! {
        pd, PD, Pd => u32;
        cq, CQ, Cq => Cq;
        qp, QP, Qp => Box<Qp>;
        srq, SRQ, Srq => Srq;
        mr, MR, Mr => u32;
    }

    /// # Errors
    ///
    /// As for [`qp`](Self::qp).
    pub(crate) fn qp_mut(&mut self, handle: u32) -> Result<&mut Qp, Errno> {
        self.find(ObjectClass::QP, handle.into())?;
        match self.slots.get_mut(&handle).and_then(|slot| slot.object.as_mut()) {
            Some(Object::Qp(qp)) => Ok(qp),
            _ => Err(Errno::NOENT),
        }
    }

    /// # Errors
    ///
    /// `EINVAL` without a context.
    pub(crate) fn need_context(&self) -> Result<(), Errno> {
        if self.has_context { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Finds the object of a handle, as an attribute has it.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an object of another class, a negative handle or an absent class; `ENOENT`.
    pub(crate) fn find(&self, class: ObjectClass, handle: i64) -> Result<u32, Errno> {
        if !is_class(class.0) || handle < 0 {
            return Err(Errno::INVAL);
        }
        let handle = u32::try_from(handle).map_err(|_| Errno::NOENT)?;
        let slot = self.slots.get(&handle).filter(|slot| slot.object.is_some()).ok_or(Errno::NOENT)?;
        if slot.class == class { Ok(handle) } else { Err(Errno::INVAL) }
    }

    /// Reserves the lowest free handle.
    ///
    /// # Errors
    ///
    /// `EINVAL` without a context or for an absent class.
    pub(crate) fn reserve(&mut self, class: ObjectClass) -> Result<u32, Errno> {
        if !is_class(class.0) {
            return Err(Errno::INVAL);
        }
        self.need_context()?;
        let handle = match self.free.pop_first() {
            Some(handle) => handle,
            None => {
                let handle = self.next;
                self.next = handle.checked_add(1).ok_or(Errno::NOSPC)?;
                handle
            }
        };
        self.slots.insert(handle, Slot { class, object: None, users: 0, uses: Vec::new() });
        Ok(handle)
    }

    /// Fills a reserved handle. The object refers to the objects `uses`.
    pub(crate) fn fill(&mut self, handle: u32, object: Object, uses: &[u32]) {
        for used in uses {
            if let Some(slot) = self.slots.get_mut(used) {
                slot.users += 1;
            }
        }
        if let Some(slot) = self.slots.get_mut(&handle) {
            slot.object = Some(object);
            slot.uses = uses.to_vec();
        }
    }

    /// Refers to another protection domain.
    pub(crate) fn replace_pd(&mut self, handle: u32, pd: u32) {
        if let Some(slot) = self.slots.get_mut(&pd) {
            slot.users += 1;
        }
        let Some(slot) = self.slots.get_mut(&handle) else { return };
        let before = std::mem::replace(&mut slot.uses, vec![pd]);
        self.release(&before);
    }

    fn release(&mut self, uses: &[u32]) {
        for used in uses {
            if let Some(slot) = self.slots.get_mut(used) {
                slot.users -= 1;
            }
        }
    }

    /// Destroys an object, or frees a handle that was reserved only.
    ///
    /// # Errors
    ///
    /// `EBUSY` if another object uses it, `EINVAL` for a region with windows, `EIO`.
    pub(crate) fn destroy(&mut self, handle: u32) -> Result<EventCounts, Errno> {
        let slot = self.slots.get(&handle).ok_or(Errno::NOENT)?;
        let reported = match self.destroy_in_engine(slot) {
            // The device has taken the object with it.
            Err(_) if self.port.is_removed() => EventCounts::default(),
            reported => reported?,
        };
        self.forget(handle);
        Ok(reported)
    }

    fn destroy_in_engine(&self, slot: &Slot) -> Result<EventCounts, Errno> {
        if slot.users > 0 {
            return Err(Errno::BUSY);
        }
        let mut reported = EventCounts::default();
        match &slot.object {
            None | Some(Object::Pd(_)) => {}
            Some(Object::Cq(cq)) => {
                self.port.run(|engine| engine.destroy_cq(cq.id))?;
                (reported.completions, reported.asynchronous) = cq.sink.close();
            }
            Some(Object::Qp(qp)) => {
                if !qp.groups.is_empty() {
                    return Err(Errno::BUSY);
                }
                self.port.run(|engine| engine.destroy_qp(qp.qpn))?;
                reported.asynchronous = qp.sink.close();
            }
            Some(Object::Srq(srq)) => {
                self.port.run(|engine| engine.destroy_srq(srq.id))?;
                reported.asynchronous = srq.sink.close();
            }
            Some(Object::Ah(ah)) => self.port.run(|engine| engine.destroy_ah(*ah))?,
            Some(Object::Mr(mr)) => self.port.with(|engine| engine.deregister(*mr))?,
            Some(Object::Mw(mw)) => self.port.with(|engine| engine.free_window(*mw))?,
        }
        Ok(reported)
    }

    fn forget(&mut self, handle: u32) {
        let Some(slot) = self.slots.remove(&handle) else { return };
        self.free.insert(handle);
        self.release(&slot.uses);
        let rings = match &slot.object {
            Some(Object::Cq(cq)) => [Some(cq.ring), None],
            Some(Object::Srq(srq)) => [Some(srq.ring), None],
            Some(Object::Qp(qp)) => qp.rings,
            _ => [None, None],
        };
        for ring in rings.into_iter().flatten() {
            self.rings.remove(&ring);
        }
    }

    /// The handles of a class. A descriptor's is 0.
    pub(crate) fn handles(&self, class: ObjectClass) -> Vec<u32> {
        let kind = match class {
            ObjectClass::COMP_CHANNEL => ChannelKind::Completion,
            ObjectClass::ASYNC_EVENT => ChannelKind::Async,
            _ => {
                let objects = self.slots.iter().filter(|(_, slot)| slot.class == class);
                return objects
                    .filter(|(_, slot)| slot.object.is_some())
                    .map(|(handle, _)| *handle)
                    .collect();
            }
        };
        let channels =
            self.channels.iter().filter(|channel| channel.kind() == kind && !channel.is_abandoned());
        channels.map(|_| 0).collect()
    }

    /// Adds a channel. Those that the program has closed are forgotten.
    pub(crate) fn add_channel(
        &mut self,
        channel: Arc<Channel>,
        program: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        self.channels.retain(|channel| Arc::strong_count(channel) > 1 || !channel.is_closed());
        if channel.kind() == ChannelKind::Async && self.default_events.is_none() {
            self.default_events = Some(channel.used(program)?);
        }
        self.channels.push(channel);
        Ok(())
    }

    /// The channel behind a descriptor.
    ///
    /// # Errors
    ///
    /// `EBADF` if it is not a channel of this kind in this context.
    pub(crate) fn channel(&self, kind: ChannelKind, fd: BorrowedFd<'_>) -> Result<ChannelUse, Errno> {
        let known = self.channels.iter().find(|channel| channel.kind() == kind && channel.is(fd));
        known.ok_or(Errno::BADF)?.used(fd)
    }

    /// The channel of asynchronous events of a new object.
    pub(crate) fn default_events(&self) -> Option<ChannelUse> {
        self.default_events.clone()
    }

    /// Gives the memory of a queue an offset.
    pub(crate) fn add_ring(&mut self, memory: &QueueMemory) -> MmapInfo {
        let len = memory.len();
        let offset = self.port.new_offset(len as u64);
        self.rings.insert(offset, Arc::clone(memory.mapping()));
        MmapInfo { offset, size: len as u32, pad: 0 }
    }

    /// Replaces the queue of a CQ by a resized one.
    pub(crate) fn replace_cq_ring(&mut self, handle: u32, ring: u64) {
        if let Some(Object::Cq(cq)) = self.slots.get_mut(&handle).and_then(|slot| slot.object.as_mut()) {
            let before = std::mem::replace(&mut cq.ring, ring);
            self.rings.remove(&before);
        }
    }

    /// Replaces the queue of an SRQ by a resized one.
    pub(crate) fn replace_srq_ring(&mut self, handle: u32, ring: u64) {
        if let Some(Object::Srq(srq)) = self.slots.get_mut(&handle).and_then(|slot| slot.object.as_mut()) {
            let before = std::mem::replace(&mut srq.ring, ring);
            self.rings.remove(&before);
        }
    }

    /// Takes the memory of a queue.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no queue that was not mapped before has this offset, or if it is shorter.
    pub(crate) fn take_ring(&mut self, offset: u64, len: usize) -> Result<Arc<Mapping>, Errno> {
        match self.rings.get(&offset) {
            Some(memory) if (1..=memory.len()).contains(&len) => {
                self.rings.remove(&offset).ok_or(Errno::INVAL)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Destroys all objects.
    pub(crate) fn clear(&mut self) {
        // Objects before those that they use.
        let order = [
            ObjectClass::QP,
            ObjectClass::AH,
            ObjectClass::MW,
            ObjectClass::MR,
            ObjectClass::SRQ,
            ObjectClass::CQ,
            ObjectClass::PD,
        ];
        for class in order {
            for handle in self.handles(class) {
                self.detach_all(handle);
                if self.destroy(handle).is_err() {
                    self.forget(handle);
                }
            }
        }
    }

    fn detach_all(&mut self, handle: u32) {
        let Ok(qp) = self.qp_mut(handle) else { return };
        let (qpn, groups) = (qp.qpn, std::mem::take(&mut qp.groups));
        for (group, _) in groups {
            // An error means that the device is gone.
            let _ = self.port.with(|engine| engine.detach(qpn, group));
        }
    }

    /// Tells the program that the device fails, and ends the channels.
    pub(crate) fn end(&mut self) {
        self.raise(EventType::DEVICE_FATAL);
        self.channels.iter().for_each(|channel| channel.end());
    }

    /// Sends the events that there was no room for.
    pub(crate) fn send_unsent(&self) {
        if self.has_unsent.load(Ordering::Relaxed) && self.has_unsent.swap(false, Ordering::Acquire) {
            self.channels.iter().for_each(|channel| channel.resume());
        }
    }

    /// Raises an asynchronous event of the device or its port.
    pub(crate) fn raise(&self, event: EventType) {
        for channel in self.channels.iter().filter(|channel| channel.kind() == ChannelKind::Async) {
            channel.raise_of_port(PORT, event);
        }
    }
}

/// A descriptor that a call creates.
#[derive(Debug)]
pub(crate) struct NewChannel {
    channel: Arc<Channel>,
    program: OwnedFd,
}

/// A call in execution: the context, and what the call has created.
#[derive(Debug)]
pub(crate) struct Transaction<'s> {
    pub(crate) state: &'s mut ContextState,
    handles: Vec<u32>,
    channels: Vec<NewChannel>,
    creates_context: bool,
}

impl<'s> Transaction<'s> {
    pub(crate) fn new(state: &'s mut ContextState) -> Self {
        Self { state, handles: Vec::new(), channels: Vec::new(), creates_context: false }
    }

    /// Creates the context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is one.
    pub(crate) fn create_context(&mut self) -> Result<(), Errno> {
        if self.state.has_context {
            return Err(Errno::INVAL);
        }
        self.state.has_context = true;
        self.creates_context = true;
        Ok(())
    }

    /// Reserves a handle for an object of the call.
    ///
    /// # Errors
    ///
    /// As for [`ContextState::reserve`].
    pub(crate) fn reserve(&mut self, class: ObjectClass) -> Result<u32, Errno> {
        let handle = self.state.reserve(class)?;
        self.handles.push(handle);
        Ok(handle)
    }

    /// A new channel, which the context has once the call succeeds. Returns the program's descriptor.
    ///
    /// # Errors
    ///
    /// `EINVAL` without a context, `EMFILE`.
    pub(crate) fn new_channel(&mut self, kind: ChannelKind) -> Result<i32, Errno> {
        self.state.need_context()?;
        let (channel, program) = Channel::new(kind, Arc::clone(&self.state.has_unsent))?;
        let fd = program.as_raw_fd();
        self.channels.push(NewChannel { channel, program });
        Ok(fd)
    }

    /// Keeps what the call has created, or destroys it after an error.
    pub(crate) fn finish(mut self, result: Result<(), Errno>) -> Result<(), Errno> {
        let mut given = Vec::new();
        let result = result.and_then(|()| {
            for NewChannel { channel, program } in self.channels.drain(..) {
                self.state.add_channel(channel, program.as_fd())?;
                given.push(program);
            }
            Ok(())
        });
        match result {
            // The program owns the descriptors from here on.
            Ok(()) => given.into_iter().for_each(|program| {
                let _ = program.into_raw_fd();
            }),
            Err(_) => {
                for handle in self.handles.drain(..).rev() {
                    // Nothing refers to a new object.
                    let _ = self.state.destroy(handle);
                }
                if self.creates_context {
                    self.state.has_context = false;
                }
            }
        }
        result
    }
}
