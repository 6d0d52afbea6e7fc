//! A model of rxe's QPs and data path, with one rule broken on request.
//!
//! The calls that make objects succeed with any valid request; the rules of the parser have a model of
//! their own. Requests are executed by the doorbell.

mod execute;
mod queue;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use bareverbs_netlink::ResourceSummary;
use bareverbs_uapi::ioctl::{Attribute, Header};
use bareverbs_uapi::method::{Method, UHW_OUT};
use bareverbs_uapi::registry;
use bareverbs_uapi::rxe::{MmapInfo, RecvWqe, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::{AccessFlags, DriverId, GidEntry, GidType, QpType};
use bareverbs_uapi::uverbs::{
    AsyncEventAlloc, CqCreate, GetContext, InfoHandles, InvokeWrite, ObjectClass, QpCreate, QueryGidEntry,
    SrqCreate,
};
use bareverbs_uapi::verbs_values::{EventType, LinkLayer, QpAttrMask, QpState};
use bareverbs_uapi::write::structs::{
    AllocMwReq, AllocMwResp, CreateAhReq, ModifyQpReq, ModifySrqReq, PostSendReq, QueryPortResp, QueryQpReq,
    QueryQpResp, RegMrReq, RegMrResp, Wc,
};
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use self::queue::Queue;
use super::count;
use crate::environment::{Restricted, Restriction};
use crate::generate::qp_states::accepts;
use crate::map::Map;
use crate::own_memory::{read, store};
use crate::rules::Rule;
use crate::target::{CmFile, Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

/// The rules that the model can break.
pub(crate) const SEEDS: &[Rule] = &[
    Rule::Transition,
    Rule::TransitionRequired,
    Rule::TransitionExtra,
    Rule::RingRequest,
    Rule::QpAccess,
    Rule::RemoteKey,
    Rule::LocalKey,
    Rule::ReceiveBuffer,
    Rule::SharedReceive,
    Rule::Operation,
    Rule::Completion,
    Rule::Inline,
    Rule::Datagram,
    Rule::SendState,
    Rule::Window,
    Rule::Invalidate,
    Rule::Retry,
    Rule::AccessEvent,
    Rule::RingIndex,
];

/// A device of the model.
pub(crate) struct DataModel {
    broken: Option<Rule>,
    resources: RefCell<ResourceSummary>,
}

impl DataModel {
    pub(crate) fn new(broken: Option<Rule>) -> Self {
        Self { broken, resources: RefCell::default() }
    }

    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }
}

impl Target for DataModel {
    fn name(&self) -> String {
        "model0".into()
    }

    fn kernel(&self) -> String {
        "model".into()
    }

    fn driver_id(&self) -> u32 {
        DriverId::RXE.0
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno> {
        Ok(Box::new(DataFile { model: self, has_context: Cell::new(false), state: RefCell::default() }))
    }

    fn resources(&self) -> Result<ResourceSummary, String> {
        Ok(*self.resources.borrow())
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn open_cm(&self) -> Result<Box<dyn CmFile + '_>, Errno> {
        Err(Errno::NOSYS)
    }

    fn netlink(&self, _message: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn netlink_index(&self) -> u32 {
        0
    }

    fn restrict(&self, _restriction: Restriction) -> Result<Box<dyn Restricted>, String> {
        Err("the model has no restrictions".into())
    }
}

/// A memory region.
struct Region {
    pd: u32,
    start: u64,
    length: u64,
    access: AccessFlags,
    key: u32,
}

/// A memory window of type 2.
struct Window {
    pd: u32,
    key: u32,
    /// Its range, its rights and the number of its QP.
    bound: Option<(u64, u64, AccessFlags, u32)>,
}

/// A shared receive queue.
struct Srq {
    queue: Queue,
    /// The limit that raises an event; 0: none.
    limit: u32,
}

/// A queue pair.
struct Qp {
    qp_type: QpType,
    pd: u32,
    cq: u32,
    srq: Option<u32>,
    number: u32,
    send: Queue,
    recv: Option<Queue>,
    state: QpState,
    request: ModifyQpReq,
}

/// The objects of a file, by handle.
#[derive(Default)]
struct State {
    /// The class of each object.
    classes: BTreeMap<u32, u16>,
    made: u32,
    regions: BTreeMap<u32, Region>,
    windows: BTreeMap<u32, Window>,
    cqs: BTreeMap<u32, Queue>,
    srqs: BTreeMap<u32, Srq>,
    qps: BTreeMap<u32, Qp>,
    /// The PD of each address handle.
    addresses: BTreeMap<u32, u32>,
    events: VecDeque<EventType>,
    descriptors: Vec<i32>,
}

struct DataFile<'m> {
    model: &'m DataModel,
    has_context: Cell<bool>,
    state: RefCell<State>,
}

impl Drop for DataFile<'_> {
    fn drop(&mut self) {
        let mut resources = self.model.resources.borrow_mut();
        for class in self.state.borrow().classes.values() {
            count(&mut resources, *class, -1);
        }
        if self.has_context.get() {
            count(&mut resources, ObjectClass::DEVICE.0, -1);
        }
    }
}

/// The attributes of a call by id, each with its address.
struct Attributes(BTreeMap<u16, (Attribute, u64)>);

impl Attributes {
    fn word(&self, id: u16) -> Option<u64> {
        self.0.get(&id).map(|(raw, _)| raw.data)
    }

    fn handle(&self, id: u16) -> Result<u32, Errno> {
        self.word(id).map(|data| data as u32).ok_or(Errno::NOENT)
    }

    /// Writes a handle or a descriptor.
    fn make(&self, id: u16, value: u64) -> Result<(), Errno> {
        self.0.get(&id).map_or(Err(Errno::INVAL), |(_, at)| store(at + 8, &value.to_ne_bytes()))
    }

    fn input(&self, id: u16) -> Result<Vec<u8>, Errno> {
        let (raw, _) = self.0.get(&id).ok_or(Errno::INVAL)?;
        match usize::from(raw.len) {
            len @ 0..=8 => Ok(raw.data.to_ne_bytes()[..len].to_vec()),
            len => read(raw.data, len),
        }
    }

    fn output(&self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let Some((raw, _)) = self.0.get(&id) else { return Ok(()) };
        store(raw.data, &bytes[..bytes.len().min(raw.len.into())])
    }
}

fn id<M: Method>() -> (u16, u16) {
    (M::INFO.object, M::INFO.id)
}

/// The request of a command.
fn request<T: FromBytes>(bytes: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(bytes).map(|(request, _)| request).map_err(|_| Errno::NOSPC)
}

/// The slots of the queues that the checks make.
const SEND_SLOT: usize = 512;
const RECV_SLOT: usize = 64;
const ENTRIES: u32 = 4;
/// The largest inline data.
const MAX_INLINE: u32 = 128;

impl DataFile<'_> {
    fn breaks(&self, rule: Rule) -> bool {
        self.model.breaks(rule)
    }

    fn call(&self, address: u64) -> Result<(), Errno> {
        let header =
            Header::read_from_bytes(&read(address, size_of::<Header>())?).map_err(|_| Errno::FAULT)?;
        let mut attributes = BTreeMap::new();
        for position in 0..u64::from(header.num_attrs) {
            let at = address + size_of::<Header>() as u64 + position * size_of::<Attribute>() as u64;
            let raw =
                Attribute::read_from_bytes(&read(at, size_of::<Attribute>())?).map_err(|_| Errno::FAULT)?;
            attributes.insert(raw.attr_id, (raw, at));
        }
        let attributes = Attributes(attributes);
        let method = (header.object_id, header.method_id);
        if method == id::<GetContext>() {
            // The suite finds the series by the length of FD_ARR.
            if attributes.word(GetContext::FD_ARR.id()).is_some() {
                return Err(Errno::INVAL);
            }
            self.has_context.set(true);
            count(&mut self.model.resources.borrow_mut(), ObjectClass::DEVICE.0, 1);
            return Ok(());
        }
        if method == id::<InfoHandles>() {
            return self.list(&attributes);
        }
        if method == id::<AsyncEventAlloc>() {
            let mut state = self.state.borrow_mut();
            let fd = 1000 + state.descriptors.len() as i32;
            state.descriptors.push(fd);
            return attributes.make(AsyncEventAlloc::FD_HANDLE.id(), fd as u64);
        }
        if method == id::<QueryGidEntry>() {
            return gid_entry(&attributes);
        }
        if method == id::<CqCreate>() {
            let queue = Queue::new(size_of::<Wc>(), 32)?;
            let handle = self.add(ObjectClass::CQ.0);
            attributes.make(CqCreate::HANDLE.id(), handle.into())?;
            attributes.output(UHW_OUT, info(handle, 0, &queue).as_bytes())?;
            self.state.borrow_mut().cqs.insert(handle, queue);
            return Ok(());
        }
        if method == id::<SrqCreate>() {
            let queue = Queue::new(RECV_SLOT, ENTRIES + 1)?;
            let handle = self.add(ObjectClass::SRQ.0);
            attributes.make(SrqCreate::HANDLE.id(), handle.into())?;
            attributes.output(UHW_OUT, info(handle, 0, &queue).as_bytes())?;
            self.state.borrow_mut().srqs.insert(handle, Srq { queue, limit: 0 });
            return Ok(());
        }
        if method == id::<QpCreate>() {
            return self.create_qp(&attributes);
        }
        if method == id::<InvokeWrite>() {
            return self.command(&attributes);
        }
        let destroyed =
            [ObjectClass::PD, ObjectClass::CQ, ObjectClass::QP, ObjectClass::SRQ, ObjectClass::MR];
        for class in destroyed {
            if let Some((of, handle)) = registry::driver(DriverId::RXE.0).destructor(class.0)
                && (of.object, of.id) == method
            {
                let handle = attributes.handle(handle.id)?;
                self.remove(class.0, handle);
                return Ok(());
            }
        }
        Err(Errno::PROTONOSUPPORT)
    }

    /// Adds an object. Handles are not reused.
    fn add(&self, class: u16) -> u32 {
        let mut state = self.state.borrow_mut();
        let handle = state.made;
        state.made += 1;
        state.classes.insert(handle, class);
        count(&mut self.model.resources.borrow_mut(), class, 1);
        handle
    }

    fn remove(&self, class: u16, handle: u32) {
        let mut state = self.state.borrow_mut();
        if state.classes.remove(&handle).is_some() {
            count(&mut self.model.resources.borrow_mut(), class, -1);
        }
        state.regions.remove(&handle);
        state.qps.remove(&handle);
    }

    fn list(&self, attributes: &Attributes) -> Result<(), Errno> {
        let class = attributes.handle(InfoHandles::OBJECT_ID.id())? as u16;
        let state = self.state.borrow();
        let mut handles: Vec<u32> =
            state.classes.iter().filter(|(_, of)| **of == class).map(|(handle, _)| *handle).collect();
        if class == ObjectClass::ASYNC_EVENT.0 {
            handles.extend(state.descriptors.iter().map(|_| 0));
        }
        let bytes: Vec<u8> = handles.iter().flat_map(|handle| handle.to_ne_bytes()).collect();
        attributes.output(InfoHandles::HANDLES_LIST.id(), &bytes)?;
        attributes.output(InfoHandles::TOTAL_HANDLES.id(), &(handles.len() as u32).to_ne_bytes())
    }

    fn create_qp(&self, attributes: &Attributes) -> Result<(), Errno> {
        let send = Queue::new(SEND_SLOT, ENTRIES + 1)?;
        let srq = attributes.handle(QpCreate::SRQ_HANDLE.id()).ok();
        let recv = if srq.is_none() { Some(Queue::new(RECV_SLOT, ENTRIES + 1)?) } else { None };
        let handle = self.add(ObjectClass::QP.0);
        let number = 0x11 + handle;
        let mut response = MmapInfo::new_zeroed().as_bytes().to_vec();
        if let Some(recv) = &recv {
            response = info(handle, 0, recv).as_bytes().to_vec();
        }
        response.extend(info(handle, 1, &send).as_bytes());
        attributes.output(UHW_OUT, &response)?;
        attributes.output(QpCreate::RESP_QP_NUM.id(), &number.to_ne_bytes())?;
        attributes.make(QpCreate::HANDLE.id(), handle.into())?;
        let qp = Qp {
            qp_type: QpType(attributes.handle(QpCreate::TYPE.id())? as _),
            pd: attributes.handle(QpCreate::PD_HANDLE.id())?,
            cq: attributes.handle(QpCreate::SEND_CQ_HANDLE.id())?,
            srq,
            number,
            send,
            recv,
            state: QpState::RESET,
            request: ModifyQpReq::new_zeroed(),
        };
        self.state.borrow_mut().qps.insert(handle, qp);
        Ok(())
    }

    fn command(&self, attributes: &Attributes) -> Result<(), Errno> {
        let number = attributes.handle(InvokeWrite::WRITE_CMD.id())?;
        let input = attributes.input(InvokeWrite::CORE_IN.id())?;
        let answer = |bytes: &[u8]| attributes.output(InvokeWrite::CORE_OUT.id(), bytes);
        if number == write::AllocPd::INFO.number {
            return answer(&self.add(ObjectClass::PD.0).to_ne_bytes());
        }
        if number == write::RegMr::INFO.number {
            let of: RegMrReq = request(&input)?;
            let handle = self.add(ObjectClass::MR.0);
            let key = (handle + 1) << 8 | 0x5a;
            let region = Region {
                pd: of.pd_handle,
                start: of.hca_va,
                length: of.length,
                access: of.access_flags,
                key,
            };
            self.state.borrow_mut().regions.insert(handle, region);
            return answer(
                RegMrResp { mr_handle: handle, lkey: key, rkey: key, ..RegMrResp::new_zeroed() }.as_bytes(),
            );
        }
        if number == write::AllocMw::INFO.number {
            let of: AllocMwReq = request(&input)?;
            let handle = self.add(ObjectClass::MW.0);
            let key = (0x4000 + handle) << 8 | 0x21;
            self.state.borrow_mut().windows.insert(handle, Window { pd: of.pd_handle, key, bound: None });
            return answer(
                AllocMwResp { mw_handle: handle, rkey: key, ..AllocMwResp::new_zeroed() }.as_bytes(),
            );
        }
        if number == write::CreateAh::INFO.number {
            let of: CreateAhReq = request(&input)?;
            let handle = self.add(ObjectClass::AH.0);
            self.state.borrow_mut().addresses.insert(handle, of.pd_handle);
            attributes.output(UHW_OUT, &handle.to_ne_bytes())?;
            return answer(&handle.to_ne_bytes());
        }
        if number == write::QueryPort::INFO.number {
            let port = QueryPortResp { link_layer: LinkLayer::ETHERNET, ..QueryPortResp::new_zeroed() };
            return answer(port.as_bytes());
        }
        let mut state = self.state.borrow_mut();
        if number == write::ModifyQp::INFO.number {
            return self.modify(&mut state, &request(&input)?);
        }
        if number == write::QueryQp::INFO.number {
            let of: QueryQpReq = request(&input)?;
            let qp_state = state.qps.get(&of.qp_handle).ok_or(Errno::NOENT)?.state;
            return answer(QueryQpResp { qp_state, ..QueryQpResp::new_zeroed() }.as_bytes());
        }
        if number == write::ModifySrq::INFO.number {
            let of: ModifySrqReq = request(&input)?;
            state.srqs.get_mut(&of.srq_handle).ok_or(Errno::NOENT)?.limit = of.srq_limit;
            return Ok(());
        }
        if number == write::PostSend::INFO.number {
            let of: PostSendReq = request(&input)?;
            return self.doorbell(&mut state, of.qp_handle);
        }
        Err(Errno::OPNOTSUPP)
    }

    fn modify(&self, state: &mut State, of: &ModifyQpReq) -> Result<(), Errno> {
        let qp = state.qps.get_mut(&of.qp_handle).ok_or(Errno::NOENT)?;
        let mask = of.attr_mask;
        if mask.contains(QpAttrMask::STATE) {
            self.check_transition(qp, of)?;
        } else if mask.contains(QpAttrMask::ALT_PATH)
            || mask.contains(QpAttrMask::ACCESS_FLAGS) && qp.qp_type == QpType::UD
        {
            return Err(Errno::INVAL);
        }
        if mask.contains(QpAttrMask::ACCESS_FLAGS) {
            qp.request.qp_access_flags = of.qp_access_flags;
        }
        if mask.contains(QpAttrMask::DEST_QPN) {
            qp.request.dest_qp_num = of.dest_qp_num;
        }
        if mask.contains(QpAttrMask::QKEY) {
            qp.request.qkey = of.qkey;
        }
        if mask.contains(QpAttrMask::STATE) {
            qp.state = of.qp_state;
            if of.qp_state == QpState::ERR {
                self.enter_error(state, of.qp_handle);
            }
        }
        Ok(())
    }

    fn check_transition(&self, qp: &Qp, of: &ModifyQpReq) -> Result<(), Errno> {
        let (from, to, mask) = (qp.state, of.qp_state, of.attr_mask);
        let good = accepts(from, to, qp.qp_type, mask) && !mask.contains(QpAttrMask::ALT_PATH);
        let Some((required, _)) = crate::generate::qp_states::table(from, to, qp.qp_type) else {
            return if self.breaks(Rule::Transition) { Ok(()) } else { Err(Errno::INVAL) };
        };
        let rule = if mask.contains(required) { Rule::TransitionExtra } else { Rule::TransitionRequired };
        if good || self.breaks(rule) { Ok(()) } else { Err(Errno::INVAL) }
    }
}

/// Where a queue is mapped.
fn info(handle: u32, position: u64, queue: &Queue) -> MmapInfo {
    MmapInfo {
        offset: u64::from(handle) << 32 | position << 28,
        size: queue.length() as u32,
        ..MmapInfo::new_zeroed()
    }
}

/// The GIDs of the port: a link-local address, and 10.1.0.1.
fn gid_entry(attributes: &Attributes) -> Result<(), Errno> {
    let mut entry = GidEntry { gid_type: GidType::ROCE_V2, ..GidEntry::new_zeroed() };
    match attributes.handle(QueryGidEntry::GID_INDEX.id())? {
        0 => (entry.gid[0], entry.gid[1]) = (0xfe, 0x80),
        1 => entry.gid[10..].copy_from_slice(&[0xff, 0xff, 10, 1, 0, 1]),
        _ => return Err(Errno::NODATA),
    }
    attributes.output(QueryGidEntry::RESP_ENTRY.id(), entry.as_bytes())
}

impl UverbsFile for DataFile<'_> {
    unsafe fn ioctl(&self, _number: u32, address: u64) -> Result<(), Errno> {
        self.call(address)
    }

    unsafe fn write(&self, _command: &WriteBuffer) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    unsafe fn ioctl_in_child(&self, _number: u32, _address: u64) -> Result<Result<(), Errno>, String> {
        Err("the model has no children".into())
    }

    unsafe fn write_in_child(&self, _command: &WriteBuffer) -> Result<Result<(), Errno>, String> {
        Err("the model has no children".into())
    }

    fn close(&self, fd: i32) {
        self.state.borrow_mut().descriptors.retain(|known| *known != fd);
    }

    fn other_fds(&self) -> [i32; 2] {
        [3, 4]
    }

    fn read(&self, _fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
        let event = self.state.borrow_mut().events.pop_front().ok_or(Errno::AGAIN)?;
        buffer[8..12].copy_from_slice(&event.0.to_ne_bytes());
        Ok(buffer.len())
    }

    fn is_readable(&self, _fd: i32) -> Result<bool, Errno> {
        Err(Errno::NOSYS)
    }

    fn duplicate(&self) -> Result<OwnedFd, Errno> {
        Err(Errno::NOSYS)
    }

    fn map(&self, offset: u64, len: usize, protection: ProtFlags) -> Result<Map, Errno> {
        let state = self.state.borrow();
        let handle = (offset >> 32) as u32;
        let queue = match (state.cqs.get(&handle), state.srqs.get(&handle), state.qps.get(&handle)) {
            (Some(queue), ..) => Some(queue),
            (_, Some(srq), _) => Some(&srq.queue),
            (.., Some(qp)) if offset >> 28 & 1 == 1 => Some(&qp.send),
            (.., Some(qp)) => qp.recv.as_ref(),
            _ => None,
        };
        queue.ok_or(Errno::INVAL)?.map(len, protection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{data, qp_states, rings};
    use crate::{Filter, Results, Suite, Verdict};

    /// Whether the model has what a check needs.
    fn is_modelled(rule: Rule) -> bool {
        ![Rule::Mmap, Rule::QpAttributeRange, Rule::RequestHandle].contains(&rule)
    }

    fn is_of_states(rule: Rule) -> bool {
        [Rule::Transition, Rule::TransitionRequired, Rule::TransitionExtra].contains(&rule)
    }

    fn results(broken: Option<Rule>) -> Result<Results, String> {
        let checks = data::checks(data::Device::Rxe).into_iter();
        let checks = checks.chain(rings::checks()).chain(qp_states::checks());
        let checks = checks.filter(|check| is_modelled(check.rule));
        // The state table does not depend on the other faults: a part of its checks shows that.
        let part = |rule| is_of_states(rule) && broken.is_some_and(|broken| !is_of_states(broken));
        let checks = checks.enumerate().filter(|(at, check)| at % 16 == 0 || !part(check.rule));
        let checks = checks.map(|(_, check)| check).collect();
        let suite = Suite::of(Box::new(DataModel::new(broken)), checks).map_err(|error| error.to_string())?;
        Ok(suite.without_passed_calls().run(&Filter::default(), 0, |_, _, _| {}))
    }

    #[test]
    fn data_checks_pass_on_the_model_without_fault() {
        let results = results(None).unwrap();
        let failed: Vec<_> = results.checks.iter().filter(|one| one.verdict == Verdict::Failed).collect();
        let names: Vec<_> = failed.iter().map(|one| format!("{}: {}", one.name, one.reason)).collect();
        assert!(failed.is_empty(), "{} failed:\n{}", names.len(), names.join("\n"));
        assert!(results.count(Verdict::Passed) > 1500, "{}", results.count(Verdict::Passed));
        assert!(results.checks.iter().all(|one| !one.known_bug), "the model has no bugs");
    }

    #[test]
    fn suite_names_each_broken_rule_of_the_data_path() {
        let judge = |rule: &Rule| {
            let named = results(Some(*rule)).map(|results| results.broken_rule());
            let right = named.as_ref().map(|named| named.as_deref()) == Ok(Some(rule.id()));
            (!right).then(|| format!("{}: {named:?}", rule.id()))
        };
        let parts = SEEDS.chunks(SEEDS.len().div_ceil(2));
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let running: Vec<_> = parts
                .map(|part| scope.spawn(move || part.iter().filter_map(judge).collect::<Vec<_>>()))
                .collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(wrong.is_empty(), "{} of {} seeds:\n{}", wrong.len(), SEEDS.len(), wrong.join("\n"));
    }
}
