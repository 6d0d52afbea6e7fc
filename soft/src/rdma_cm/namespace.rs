//! What the files of a connection manager share: devices, ports, identifiers and their events.
//!
//! The lock of a fabric comes before that of the namespace: events of connections arrive under the
//! former. An [`Arc`] of a port is dropped without a lock, because the last one removes its device.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bareverbs_provider::Errno;
use bareverbs_uapi::rdma_cm::structs::EventResp;
use bareverbs_uapi::rdma_cm::{EventType, PortSpace};
use bareverbs_uapi::values::Guid;

use super::id::{Id, IdState, Membership};
use crate::cm::ConnId;
use crate::engine::Engine;

/// The lowest number of an identifier. Those of the kernel are below.
pub(super) const FIRST_ID: u32 = 0x8000_0000;

/// Most identifiers of a namespace.
const MAX_IDS: usize = 1 << 20;

/// The port of a device, as the connection manager uses it.
pub(crate) trait CmPort: Send + Sync + Debug {
    /// The index of the device, which is unique in the process.
    fn index(&self) -> u32;

    fn address(&self) -> IpAddr;

    fn node_guid(&self) -> Guid;

    /// The index of the GID of the address.
    fn gid_index(&self) -> u8;

    /// The MTU: 1 for 256 bytes to 5 for 4096 bytes.
    fn active_mtu(&self) -> u8;

    /// Whether it reaches other processes.
    fn has_wire(&self) -> bool;

    /// A number that ports on the same fabric share.
    fn fabric(&self) -> usize;

    fn is_removed(&self) -> bool;

    /// Calls `f` with the engine, under the lock of the fabric. `EIO` if the device was removed.
    fn with_engine(&self, f: &mut dyn FnMut(&mut Engine)) -> Result<(), Errno>;
}

impl dyn CmPort + '_ {
    /// Calls `f` with the engine, under the lock of the fabric.
    ///
    /// # Errors
    ///
    /// Those of `f`; `EIO` if the device was removed.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Engine) -> Result<R, Errno>) -> Result<R, Errno> {
        let (mut f, mut result) = (Some(f), Err(Errno::IO));
        self.with_engine(&mut |engine| {
            if let Some(f) = f.take() {
                result = f(engine);
            }
        })?;
        result
    }
}

#[derive(Debug, Default)]
pub(crate) struct Namespace {
    state: Mutex<State>,
}

/// A device.
#[derive(Debug)]
struct Known {
    index: u32,
    /// The index of the GID of its address.
    gid_index: u8,
    port: Weak<dyn CmPort>,
}

/// A listener of a device: the identifiers on one service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) connection: ConnId,
    pub(super) ids: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct State {
    devices: Vec<Known>,
    next_id: u32,
    next_membership: u32,
    next_file: u64,
    pub(super) next_port: u16,
    pub(super) ids: BTreeMap<u32, Id>,
    pub(super) memberships: BTreeMap<u32, Membership>,
    /// The identifiers that are bound to a port.
    pub(super) ports: BTreeMap<(u16, u16), Vec<u32>>,
    /// By device and service.
    pub(super) services: BTreeMap<(u32, u64), Service>,
    /// By device.
    pub(super) connections: BTreeMap<(u32, ConnId), u32>,
    files: BTreeMap<u64, File>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            next_id: FIRST_ID,
            next_membership: FIRST_ID,
            next_file: 0,
            next_port: 0,
            ids: BTreeMap::new(),
            memberships: BTreeMap::new(),
            ports: BTreeMap::new(),
            services: BTreeMap::new(),
            connections: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }
}

/// An open file: its events, and an eventfd that is readable while there are any.
#[derive(Debug)]
struct File {
    ready: Arc<OwnedFd>,
    events: VecDeque<Event>,
}

/// A queued event.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// The identifier, that of the listener for a request.
    pub(super) id: u32,
    pub(super) membership: Option<u32>,
    pub(super) resp: EventResp,
}

impl Event {
    /// Whether it is the request of a child of a listener.
    pub(super) fn is_request(&self) -> bool {
        self.resp.event == EventType::CONNECT_REQUEST
    }
}

impl File {
    fn push(&mut self, event: Event) {
        self.events.push_back(event);
        // It fails only if the counter is at its maximum, and then the descriptor is readable.
        let _ = rustix::io::write(&*self.ready, &1_u64.to_ne_bytes());
    }

    /// Ends the readiness if no event is left.
    fn settle(&self) {
        if self.events.is_empty() {
            // It fails if there was no event.
            let _ = rustix::io::read(&*self.ready, &mut [0_u8; 8]);
        }
    }
}

impl Namespace {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No call panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The devices, the oldest first.
    pub(super) fn devices(&self) -> Vec<Arc<dyn CmPort>> {
        self.lock().devices.iter().filter_map(|device| device.port.upgrade()).collect()
    }

    /// The device with an index.
    pub(super) fn device(&self, index: u32) -> Option<Arc<dyn CmPort>> {
        self.lock().devices.iter().find(|device| device.index == index)?.port.upgrade()
    }

    /// Calls `f` with the device of an identifier, under the lock of its fabric.
    ///
    /// # Errors
    ///
    /// Those of [`State::id`] and of `f`; `EINVAL` if the identifier has no device.
    pub(super) fn on_device<R>(
        &self,
        file: u64,
        number: u32,
        f: impl FnOnce(&mut Engine, &dyn CmPort) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let index = self.lock().id(file, number)?.device.ok_or(Errno::INVAL)?;
        let port = self.device(index).ok_or(Errno::NXIO)?;
        port.with(|engine| f(engine, &*port))
            .map_err(|errno| if port.is_removed() { Errno::NXIO } else { errno })
    }

    pub(super) fn open_file(&self, ready: Arc<OwnedFd>) -> u64 {
        let mut state = self.lock();
        let number = state.next_file;
        state.next_file += 1;
        state.files.insert(number, File { ready, events: VecDeque::new() });
        number
    }

    pub(super) fn close_file(&self, number: u64) {
        self.lock().files.remove(&number);
    }

    pub(crate) fn add_device(&self, port: &Arc<dyn CmPort>) {
        let (index, gid_index) = (port.index(), port.gid_index());
        self.lock().devices.push(Known { index, gid_index, port: Arc::downgrade(port) });
    }

    /// Reports the removal of a device to the identifiers that are bound to it.
    pub(crate) fn remove_device(&self, index: u32) {
        let mut state = self.lock();
        state.devices.retain(|device| device.index != index);
        state.services.retain(|(device, _), _| *device != index);
        state.connections.retain(|(device, _), _| *device != index);
        let bound: Vec<u32> =
            state.ids.iter().filter(|(_, id)| id.device == Some(index)).map(|(number, _)| *number).collect();
        for number in bound {
            if state.ids[&number].is_undelivered {
                state.forget_request(number);
                state.ids.remove(&number);
                continue;
            }
            state.raise(number, EventResp { event: EventType::DEVICE_REMOVAL, ..EventResp::zeroed() });
            if let Some(id) = state.ids.get_mut(&number) {
                (id.is_closed, id.connection) = (true, None);
            }
        }
    }
}

impl State {
    /// The identifier with a number.
    ///
    /// # Errors
    ///
    /// `ENOENT`; `EINVAL` if it is on another file; `ENXIO` after its device was removed.
    pub(super) fn id(&mut self, file: u64, number: u32) -> Result<&mut Id, Errno> {
        let id = self.ids.get_mut(&number).filter(|id| !id.is_undelivered).ok_or(Errno::NOENT)?;
        match id.file == file {
            false => Err(Errno::INVAL),
            true if id.is_closed => Err(Errno::NXIO),
            true => Ok(id),
        }
    }

    /// # Errors
    ///
    /// `ENOMEM`: there are too many.
    pub(super) fn insert_id(&mut self, id: Id) -> Result<u32, Errno> {
        if self.ids.len() >= MAX_IDS {
            return Err(Errno::NOMEM);
        }
        while self.ids.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1).max(FIRST_ID);
        }
        let number = self.next_id;
        self.next_id = number.wrapping_add(1).max(FIRST_ID);
        self.ids.insert(number, id);
        Ok(number)
    }

    pub(super) fn insert_membership(&mut self, membership: Membership) -> Result<u32, Errno> {
        if self.memberships.len() >= MAX_IDS {
            return Err(Errno::NOMEM);
        }
        while self.memberships.contains_key(&self.next_membership) {
            self.next_membership = self.next_membership.wrapping_add(1).max(FIRST_ID);
        }
        let number = self.next_membership;
        self.next_membership = number.wrapping_add(1).max(FIRST_ID);
        self.memberships.insert(number, membership);
        Ok(number)
    }

    /// Queues an event of an identifier. One whose `uid` is 0 gets none.
    pub(super) fn raise(&mut self, number: u32, resp: EventResp) {
        let Some(id) = self.ids.get(&number).filter(|id| id.uid != 0 && !id.is_undelivered) else { return };
        let resp = EventResp { uid: id.uid, id: number, ..resp };
        if let Some(file) = self.files.get_mut(&id.file) {
            file.push(Event { id: number, membership: None, resp });
        }
    }

    /// Queues an event of a membership.
    pub(super) fn raise_of_membership(&mut self, number: u32, resp: EventResp) {
        let Some(membership) = self.memberships.get(&number) else { return };
        let resp = EventResp { uid: membership.uid, id: number, ..resp };
        let file = self.ids.get(&membership.id).map(|id| id.file);
        if let Some(file) = file.and_then(|file| self.files.get_mut(&file)) {
            file.push(Event { id: membership.id, membership: Some(number), resp });
        }
    }

    /// Queues the request of a child of a listener. `false` if its backlog is exhausted.
    pub(super) fn raise_request(&mut self, listener: u32, child: u32, resp: EventResp) -> bool {
        let Some(id) = self.ids.get_mut(&listener).filter(|id| id.backlog > 0) else { return false };
        let Some(file) = self.files.get_mut(&id.file) else { return false };
        id.backlog -= 1;
        let resp = EventResp { uid: id.uid, id: child, event: EventType::CONNECT_REQUEST, ..resp };
        file.push(Event { id: listener, membership: None, resp });
        true
    }

    /// The next event of a file, which stays queued.
    pub(super) fn next_event(&self, file: u64) -> Option<&Event> {
        self.files.get(&file)?.events.front()
    }

    /// Takes the next event of a file off the queue, and counts it.
    pub(super) fn take_event(&mut self, file: u64) {
        let Some(file) = self.files.get_mut(&file) else { return };
        let Some(event) = file.events.pop_front() else { return };
        file.settle();
        if event.is_request()
            && let Some(child) = self.ids.get_mut(&event.resp.id)
        {
            child.is_undelivered = false;
        }
        if let Some(id) = self.ids.get_mut(&event.id) {
            id.reported = id.reported.wrapping_add(1);
            id.backlog += u32::from(event.is_request());
        }
        let membership = event.membership.and_then(|number| self.memberships.get_mut(&number));
        membership.into_iter().for_each(|membership| membership.reported += 1);
    }

    /// Drops the events of a file for which `is_dropped` holds. Returns them.
    pub(super) fn drop_events(&mut self, file: u64, is_dropped: impl Fn(&Event) -> bool) -> Vec<Event> {
        let Some(file) = self.files.get_mut(&file) else { return Vec::new() };
        let (dropped, left): (Vec<_>, Vec<_>) = file.events.drain(..).partition(is_dropped);
        file.events = left.into();
        file.settle();
        dropped
    }

    /// Drops the request of a child that was not delivered.
    fn forget_request(&mut self, child: u32) {
        let Some(file) = self.ids.get(&child).map(|id| id.file) else { return };
        let is_it = |event: &Event| event.is_request() && event.resp.id == child;
        for event in self.drop_events(file, is_it) {
            if let Some(listener) = self.ids.get_mut(&event.id) {
                listener.backlog += 1;
            }
        }
    }

    /// Moves an identifier with its events, and the children in them, to another file.
    pub(super) fn migrate(&mut self, number: u32, to: u64) {
        let Some(id) = self.ids.get_mut(&number) else { return };
        let from = std::mem::replace(&mut id.file, to);
        let events = self.drop_events(from, |event| event.id == number);
        for event in events.iter().filter(|event| event.is_request()) {
            self.ids.get_mut(&event.resp.id).into_iter().for_each(|child| child.file = to);
        }
        if let Some(file) = self.files.get_mut(&to) {
            events.into_iter().for_each(|event| file.push(event));
        }
    }

    /// Frees the port of an identifier.
    pub(super) fn unbind(&mut self, number: u32) {
        self.ports.retain(|_, owners| {
            owners.retain(|owner| *owner != number);
            !owners.is_empty()
        });
    }

    /// The devices on which an identifier has services.
    pub(super) fn devices_of_services(&self, number: u32) -> Vec<u32> {
        let has = self.services.iter().filter(|(_, service)| service.ids.contains(&number));
        has.map(|((device, _), _)| *device).collect()
    }

    /// Takes an identifier off the services of a device. Returns the listeners of those without
    /// another one.
    pub(super) fn leave_services(&mut self, device: u32, number: u32) -> Vec<ConnId> {
        let mut ended = Vec::new();
        self.services.retain(|(of, _), service| {
            service.ids.retain(|id| *of != device || *id != number);
            if service.ids.is_empty() {
                ended.push(service.connection);
            }
            !service.ids.is_empty()
        });
        ended
    }

    /// The identifiers that listen on all devices, with their services.
    pub(super) fn wildcards(&self) -> Vec<(u32, u64)> {
        let listens = |id: &&u32| {
            let id = &self.ids[*id];
            id.state == IdState::Listening && id.device.is_none()
        };
        let service = |number: &u32| {
            let id = &self.ids[number];
            (*number, super::address::service_id(id.space, id.source.map_or(0, |source| source.port())))
        };
        self.ids.keys().filter(listens).map(service).collect()
    }

    /// The index of the GID of a device's address.
    pub(super) fn gid_index(&self, index: u32) -> u8 {
        self.devices.iter().find(|device| device.index == index).map_or(0, |device| device.gid_index)
    }

    /// The file with a descriptor.
    pub(super) fn file_of(&self, descriptor: RawFd) -> Option<u64> {
        let of = self.files.iter().find(|(_, file)| file.ready.as_raw_fd() == descriptor);
        of.map(|(number, _)| *number)
    }

    /// The owners of a port.
    pub(super) fn owners(&mut self, space: PortSpace, port: u16) -> &mut Vec<u32> {
        self.ports.entry((space.0, port)).or_default()
    }
}
