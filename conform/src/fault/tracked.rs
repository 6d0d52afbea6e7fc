//! The objects that calls have created: what decides which rule a call breaks.

use std::collections::{BTreeMap, BTreeSet};

use bareverbs_uapi::method::{Access, AttributeKind, UHW_OUT};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{CqCreate, GetContext, InvokeWrite, ObjectClass, QpCreate, SrqCreate};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::{ModifyQpReq, RegMrReq, RegMrResp};
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::FromBytes;

use super::call::{ParsedCall, is_new};
use crate::fuzz::{created, destroyed};

/// The four bytes at a position.
pub(super) fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The purpose of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Completions,
    Sends,
    Receives,
    SharedReceives,
}

/// A queue in shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) purpose: Purpose,
    /// The handle of its object.
    pub(super) of: u32,
    /// The offset at which it is mapped.
    pub(super) offset: u64,
    /// Its address, once it is mapped.
    pub(super) address: Option<u64>,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Qp {
    pub(super) qp_type: QpType,
    pub(super) number: u32,
    pub(super) state: QpState,
    pub(super) qkey: u32,
    pub(super) peer: u32,
}

/// A memory region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) length: u64,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// The objects of an open file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) has_context: bool,
    /// The class of each object by handle.
    pub(super) objects: BTreeMap<u32, u16>,
    /// Handles of destroyed objects.
    pub(super) destroyed: BTreeSet<u32>,
    pub(super) qps: BTreeMap<u32, Qp>,
    pub(super) regions: Vec<Region>,
    pub(super) rings: Vec<Ring>,
}

impl File {
    /// Whether the handle was that of an object.
    pub(super) fn is_destroyed(&self, handle: u32) -> bool {
        self.destroyed.contains(&handle) && !self.objects.contains_key(&handle)
    }

    /// The mapped queues of a purpose, by their addresses.
    pub(super) fn mapped(&self, purpose: Purpose) -> impl Iterator<Item = (u32, u64)> {
        let of_purpose = self.rings.iter().filter(move |ring| ring.purpose == purpose);
        of_purpose.filter_map(|ring| Some((ring.of, ring.address?)))
    }

    fn add_rings(&mut self, call: &ParsedCall, of: u32, purposes: &[Purpose]) {
        let response = call.output(UHW_OUT);
        for (info, purpose) in response.chunks_exact(16).zip(purposes) {
            let offset = info.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            self.rings.push(Ring { purpose: *purpose, of, offset, address: None });
        }
    }

    fn remove(&mut self, handle: u32) {
        self.objects.remove(&handle);
        self.destroyed.insert(handle);
        self.qps.remove(&handle);
        self.rings.retain(|ring| ring.of != handle);
    }

    /// Follows a call that succeeded.
    fn follow(&mut self, call: &ParsedCall) {
        self.has_context |= call.is::<GetContext>();
        let handle_of = |id: u16| call.raw(id).map_or(u32::MAX, |raw| raw.data as u32);
        for (raw, kind) in call.known() {
            match kind {
                AttributeKind::Handle { object, access: Access::New } => {
                    self.objects.insert(raw.data as u32, object);
                }
                AttributeKind::Handle { access: Access::Destroy, .. } => self.remove(raw.data as u32),
                _ => {}
            }
        }
        if call.is::<CqCreate>() {
            self.add_rings(call, handle_of(CqCreate::HANDLE.id()), &[Purpose::Completions]);
        } else if call.is::<SrqCreate>() {
            self.add_rings(call, handle_of(SrqCreate::HANDLE.id()), &[Purpose::SharedReceives]);
        } else if call.is::<QpCreate>() {
            self.follow_new_qp(call, handle_of(QpCreate::HANDLE.id()));
        } else if let Some(command) = call.command() {
            let request = call.input(InvokeWrite::CORE_IN.id());
            let response = call.output(InvokeWrite::CORE_OUT.id());
            if let Some((class, at)) = created(command)
                && let Some(handle) = word_at(&response, at)
            {
                self.objects.insert(handle, class);
            } else if let Some((_, at)) = destroyed(command)
                && let Some(handle) = word_at(&request, at)
            {
                self.remove(handle);
            }
            self.follow_command(command.number, &request, &response);
        }
    }

    fn follow_new_qp(&mut self, call: &ParsedCall, handle: u32) {
        self.add_rings(call, handle, &[Purpose::Receives, Purpose::Sends]);
        if call.has(QpCreate::SRQ_HANDLE.id()) {
            self.rings.retain(|ring| ring.of != handle || ring.purpose == Purpose::Sends);
        }
        let qp_type = QpType(call.raw(QpCreate::TYPE.id()).map_or(0, |raw| raw.data as _));
        let number = word_at(&call.output(QpCreate::RESP_QP_NUM.id()), 0).unwrap_or(0);
        self.qps.insert(handle, Qp { qp_type, number, state: QpState::RESET, qkey: 0, peer: 0 });
    }

    fn follow_command(&mut self, number: u32, request: &[u8], response: &[u8]) {
        if number == write::RegMr::INFO.number
            && let Ok((request, _)) = RegMrReq::read_from_prefix(request)
            && let Ok((RegMrResp { lkey, rkey, .. }, _)) = RegMrResp::read_from_prefix(response)
        {
            self.regions.push(Region { start: request.hca_va, length: request.length, lkey, rkey });
        }
        if number == write::ModifyQp::INFO.number
            && let Ok((request, _)) = ModifyQpReq::read_from_prefix(request)
            && let Some(qp) = self.qps.get_mut(&request.qp_handle)
        {
            if request.attr_mask.contains(QpAttrMask::STATE) {
                qp.state = request.qp_state;
            }
            if request.attr_mask.contains(QpAttrMask::QKEY) {
                qp.qkey = request.qkey;
            }
            if request.attr_mask.contains(QpAttrMask::DEST_QPN) {
                qp.peer = request.dest_qp_num;
            }
        }
    }
}

/// The objects of all open files of a device.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    opened: u32,
    files: BTreeMap<u32, File>,
    /// The class of each open descriptor, and the number of its file.
    pub(super) descriptors: BTreeMap<i32, (u16, u32)>,
    /// Objects of closed files, if closing does not destroy them.
    pub(super) left: u64,
}

impl Tracked {
    /// Adds a file. Returns its number.
    pub(super) fn open(&mut self) -> u32 {
        self.opened += 1;
        self.files.insert(self.opened, File::default());
        self.opened
    }

    /// Removes a file. Returns the number of its objects.
    pub(super) fn close(&mut self, file: u32) -> usize {
        self.descriptors.retain(|_, (_, of)| *of != file);
        self.files.remove(&file).map_or(0, |file| file.objects.len())
    }

    pub(super) fn file(&self, number: u32) -> Option<&File> {
        self.files.get(&number)
    }

    /// Whether another file has an object with this handle.
    pub(super) fn is_foreign(&self, file: u32, handle: u32) -> bool {
        self.files.iter().any(|(number, other)| *number != file && other.objects.contains_key(&handle))
    }

    /// Notes the address of a mapped queue.
    pub(super) fn mapped(&mut self, file: u32, offset: u64, address: u64) {
        let rings = self.files.get_mut(&file).map(|file| &mut file.rings).into_iter().flatten();
        rings.filter(|ring| ring.offset == offset).for_each(|ring| ring.address = Some(address));
    }

    /// Follows a call that succeeded.
    pub(super) fn follow(&mut self, number: u32, call: &ParsedCall) {
        for (raw, kind) in call.known().filter(|(_, kind)| is_new(*kind)) {
            if let AttributeKind::Descriptor { object, .. } = kind {
                self.descriptors.insert(raw.data as i32, (object, number));
            }
        }
        if call.command().is_some_and(|command| command.number == write::CreateCompChannel::INFO.number) {
            let fd = word_at(&call.output(InvokeWrite::CORE_OUT.id()), 0);
            self.descriptors.extend(fd.map(|fd| (fd.cast_signed(), (ObjectClass::COMP_CHANNEL.0, number))));
        }
        if let Some(file) = self.files.get_mut(&number) {
            file.follow(call);
        }
    }
}
