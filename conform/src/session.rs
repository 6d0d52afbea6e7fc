//! One open file of the device, and the objects on it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::rc::Rc;

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::ioctl::VERBS_IOCTL;
use bareverbs_uapi::method::Method;
use bareverbs_uapi::mlx5;
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::{AccessFlags, DriverId, GidEntry, GidType, QpType};
use bareverbs_uapi::uverbs::{
    AsyncEventAlloc, CqCreate, GetContext, InfoHandles, InvokeWrite, ObjectClass, QpCreate, SrqCreate,
};
use bareverbs_uapi::write::structs::{
    AhAttr, AllocMwReq, AllocMwResp, AllocPdReq, AllocPdResp, CreateAhReq, CreateAhResp,
    CreateCompChannelReq, CreateCompChannelResp, RegMrReq, RegMrResp,
};
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::answer::{Answer, Expect};
use crate::call::{Call, Slot};
use crate::provided::Provided;
use crate::step::{Step, fail, skip};
use crate::target::{Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

/// The judged call of a check.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) call: String,
    pub(crate) expected: Answer,
    pub(crate) got: Answer,
}

/// The classes whose handles are listed after a check.
const CLASSES: [ObjectClass; 10] = [
    ObjectClass::PD,
    ObjectClass::COMP_CHANNEL,
    ObjectClass::CQ,
    ObjectClass::QP,
    ObjectClass::SRQ,
    ObjectClass::AH,
    ObjectClass::MR,
    ObjectClass::MW,
    ObjectClass::XRCD,
    ObjectClass::ASYNC_EVENT,
];

/// Number of bytes that memory regions of checks may register.
const MEMORY: usize = 1 << 16;

/// An open file, its objects, and what the current check observed.
pub(crate) struct Session<'t> {
    file: Box<dyn UverbsFile + 't>,
    pub(crate) target: &'t dyn Target,
    pub(crate) series: Since,
    /// The driver's provider on this file, if the check needs it.
    provider: Option<Rc<Provided>>,
    /// Memory for regions. Declared after the fields that hold the file open: dropped after them.
    memory: Box<[u8]>,
    has_context: bool,
    /// Objects with a handle, by class.
    objects: BTreeSet<(u16, u32)>,
    /// Descriptors that calls made, with their classes.
    descriptors: Vec<(u16, i32)>,
    pub(crate) judged: Option<Judged>,
    /// The answer of a known bug, which passes as well.
    pub(crate) bug: Option<Answer>,
    /// Whether a judged call had that answer.
    pub(crate) shows_bug: bool,
    /// The answer of the last call.
    pub(crate) last_answer: Answer,
    /// Whether calls with the expected answer are decoded too.
    pub(crate) records_passed: bool,
    /// Other open files, which stay open as long as this one.
    kept: Vec<Session<'t>>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        for (_, fd) in self.descriptors.drain(..) {
            self.file.close(fd);
        }
    }
}

impl<'t> Session<'t> {
    /// Opens the device, without a context.
    pub(crate) fn open(target: &'t dyn Target, series: Since) -> Step<Self> {
        let file = target
            .open()
            .or_else(|errno| fail(format!("the device can't be opened: {}", Answer::errno(errno))))?;
        Ok(Self {
            file,
            target,
            series,
            provider: None,
            memory: vec![0; MEMORY].into_boxed_slice(),
            has_context: false,
            objects: BTreeSet::new(),
            descriptors: Vec::new(),
            judged: None,
            bug: None,
            shows_bug: false,
            last_answer: Answer::Ok,
            records_passed: true,
            kept: Vec::new(),
        })
    }

    /// Another open file of the same device, with a context.
    pub(crate) fn other(&self) -> Step<Session<'t>> {
        let mut other = Session::open(self.target, self.series)?;
        other.context()?;
        Ok(other)
    }

    /// Keeps another open file as long as this one.
    pub(crate) fn keep(&mut self, other: Session<'t>) {
        self.kept.push(other);
    }

    pub(crate) fn file(&self) -> &dyn UverbsFile {
        &*self.file
    }

    pub(crate) fn driver_id(&self) -> u32 {
        self.target.driver_id()
    }

    pub(crate) fn is_rxe(&self) -> bool {
        self.driver_id() == DriverId::RXE.0
    }

    /// The address of the memory for regions.
    pub(crate) fn memory(&mut self) -> u64 {
        self.memory.as_mut_ptr().expose_provenance() as u64
    }

    /// Fills bytes of the memory for regions.
    pub(crate) fn fill(&mut self, offset: usize, len: usize, byte: u8) {
        self.memory[offset..offset + len].fill(byte);
        // The kernel accesses the memory through the address that it was given.
        self.memory();
    }

    /// Copies bytes of the memory for regions.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= MEMORY, "within the memory");
        let start = self.memory.as_mut_ptr().wrapping_add(offset);
        // SAFETY: within the memory. The kernel may have changed it, so each byte is read anew.
        (0..len).map(|position| unsafe { start.wrapping_add(position).read_volatile() }).collect()
    }

    /// Executes a call.
    pub(crate) fn execute(&mut self, call: &mut Call) -> Answer {
        let mut bytes = call.encode();
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: calls are built in this crate. Their addresses are those of their own buffers,
        // which are as long as the attributes say, of the session's memory, which outlives the
        // file's objects, or without memory.
        let result = unsafe { self.file.ioctl(VERBS_IOCTL, address) };
        call.read_back(&bytes);
        self.last_answer = Answer::of(&result);
        self.last_answer
    }

    /// Executes a call in a forked child. The child's memory is lost: the call has no outputs.
    pub(crate) fn execute_in_child(&mut self, call: &mut Call) -> Step<Answer> {
        let mut bytes = call.encode();
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: as for `execute`. The child has a copy of the buffers.
        let result = unsafe { self.file.ioctl_in_child(VERBS_IOCTL, address) };
        result.map(|result| Answer::of(&result)).or_else(skip)
    }

    /// Writes a command in a forked child.
    pub(crate) fn write_in_child(&mut self, command: &[u8]) -> Step<Answer> {
        // SAFETY: the commands of checks in children contain no addresses.
        let result = unsafe { self.file.write_in_child(&WriteBuffer::new(command)) };
        result.map(|result| Answer::of(&result)).or_else(skip)
    }

    /// Executes a call of a check and compares its answer. Execution continues only with the
    /// expected answer.
    pub(crate) fn judge(&mut self, call: &mut Call, expect: impl Into<Expect>) -> Step<Answer> {
        let expected = expect.into().on(self.series);
        let got = self.execute(call);
        self.compare(call, expected, got)
    }

    /// Compares the answer of a call of a check.
    pub(crate) fn compare(&mut self, call: &impl Display, expected: Answer, got: Answer) -> Step<Answer> {
        let text = if self.records_passed || got != expected { call.to_string() } else { String::new() };
        self.judged = Some(Judged { call: text, expected, got });
        let shows_bug = got != expected && self.bug == Some(got);
        self.shows_bug |= shows_bug;
        if got == expected || shows_bug { Ok(got) } else { fail(format!("expected {expected}, got {got}")) }
    }

    /// Executes a call that prepares a check, which must succeed.
    pub(crate) fn prepare(&mut self, call: &mut Call) -> Step<()> {
        match self.execute(call) {
            Answer::Ok => Ok(()),
            got => fail(format!("a call that prepares the check failed with {got}: {call}")),
        }
    }

    /// Makes the context of the file, if it has none. The driver's provider makes it where it needs
    /// a request of the driver.
    pub(crate) fn context(&mut self) -> Step<()> {
        if !self.has_context && !self.is_rxe() {
            self.provider().map(drop)
        } else if !self.has_context {
            let mut call = Call::of(self.driver_id(), &GetContext::INFO);
            self.prepare(&mut call)?;
            self.has_context = true;
            Ok(())
        } else {
            Ok(())
        }
    }

    /// The driver's provider on this file, which has made the context.
    pub(crate) fn provider(&mut self) -> Step<Rc<Provided>> {
        if let Some(provider) = &self.provider {
            return Ok(Rc::clone(provider));
        }
        let provider = Rc::new(Provided::open(&*self.file, self.driver_id())?);
        self.has_context = true;
        Ok(Rc::clone(self.provider.insert(provider)))
    }

    /// Notes that a call of the check made the context.
    pub(crate) fn note_context(&mut self) {
        self.has_context = true;
    }

    /// Notes an object that a call of the check made.
    pub(crate) fn note_object(&mut self, class: u16, handle: u32) {
        self.objects.insert((class, handle));
    }

    /// Notes a descriptor that a call of the check made.
    pub(crate) fn note_descriptor(&mut self, class: u16, fd: i32) {
        self.descriptors.push((class, fd));
    }

    /// Notes that a call of the check destroyed an object.
    pub(crate) fn forget(&mut self, class: u16, handle: u32) {
        self.objects.remove(&(class, handle));
    }

    /// Does not close a descriptor with this file. The caller closes it.
    pub(crate) fn leave_open(&mut self, fd: i32) {
        self.descriptors.retain(|(_, known)| *known != fd);
    }

    /// Closes a descriptor that a call made.
    pub(crate) fn close(&mut self, fd: i32) {
        self.descriptors.retain(|(_, known)| *known != fd);
        self.file.close(fd);
    }

    /// A command through `INVOKE_WRITE`, with the driver's payloads.
    pub(crate) fn command(&self, number: u32, request: &[u8], response: usize, uhw_out: usize) -> Call {
        let mut call = Call::of(self.driver_id(), &InvokeWrite::INFO)
            .with(Slot::number(InvokeWrite::WRITE_CMD.id(), number.into()));
        if !request.is_empty() {
            call = call.with(Slot::input(InvokeWrite::CORE_IN.id(), request));
        }
        if response > 0 {
            call = call.with(Slot::output(InvokeWrite::CORE_OUT.id(), response));
        }
        if uhw_out > 0 {
            call = call.with(Slot::output(bareverbs_uapi::method::UHW_OUT, uhw_out));
        }
        call
    }

    /// Executes a command that prepares a check.
    pub(crate) fn invoke<C: WriteCommand>(&mut self, request: &C::Request) -> Step<C::Response>
    where
        C::Request: Immutable,
    {
        self.invoke_with::<C>(request, 0)
    }

    pub(crate) fn invoke_with<C: WriteCommand>(
        &mut self,
        request: &C::Request,
        uhw_out: usize,
    ) -> Step<C::Response> {
        self.context()?;
        let mut call = self.command(C::INFO.number, request.as_bytes(), size_of::<C::Response>(), uhw_out);
        self.prepare(&mut call)?;
        let bytes = call.slot(InvokeWrite::CORE_OUT.id()).map(Slot::bytes).unwrap_or_default();
        match C::Response::read_from_prefix(bytes) {
            Ok((response, _)) => Ok(response),
            Err(_) => fail("a response is shorter than its struct"),
        }
    }

    pub(crate) fn pd(&mut self) -> Step<u32> {
        // mlx5 fails with EFAULT if there is no room for its response.
        let room = if self.is_rxe() { 0 } else { size_of::<mlx5::AllocPdResp>() };
        let AllocPdResp { pd_handle, .. } =
            self.invoke_with::<write::AllocPd>(&AllocPdReq::new_zeroed(), room)?;
        self.note_object(ObjectClass::PD.0, pd_handle);
        Ok(pd_handle)
    }

    pub(crate) fn comp_channel(&mut self) -> Step<i32> {
        let response: CreateCompChannelResp =
            self.invoke::<write::CreateCompChannel>(&CreateCompChannelReq::new_zeroed())?;
        let fd = response.fd.cast_signed();
        self.note_descriptor(ObjectClass::COMP_CHANNEL.0, fd);
        Ok(fd)
    }

    pub(crate) fn async_fd(&mut self) -> Step<i32> {
        self.context()?;
        let id = AsyncEventAlloc::FD_HANDLE.id();
        let mut call = Call::of(self.driver_id(), &AsyncEventAlloc::INFO).with(Slot::word(id, 0));
        self.prepare(&mut call)?;
        let fd = call.slot(id).map_or(-1, |slot| slot.raw.data as i32);
        self.note_descriptor(ObjectClass::ASYNC_EVENT.0, fd);
        Ok(fd)
    }

    /// Skips a check on a driver whose payloads of creation requests are unknown here.
    pub(crate) fn needs_rxe_payloads(&self) -> Step<()> {
        if self.is_rxe() { Ok(()) } else { skip("the suite has no creation requests of this driver") }
    }

    pub(crate) fn cq_call(&self, entries: u32) -> Call {
        Call::of(self.driver_id(), &CqCreate::INFO)
            .with(Slot::word(CqCreate::HANDLE.id(), 0))
            .with(Slot::input(CqCreate::CQE.id(), &entries.to_ne_bytes()))
            .with(Slot::number(CqCreate::USER_HANDLE.id(), 0x1234))
            .with(Slot::input(CqCreate::COMP_VECTOR.id(), &[0; 4]))
            .with(Slot::output(CqCreate::RESP_CQE.id(), 4))
            .with(Slot::output(bareverbs_uapi::method::UHW_OUT, 16))
    }

    pub(crate) fn cq(&mut self) -> Step<u32> {
        self.context()?;
        self.needs_rxe_payloads()?;
        let mut call = self.cq_call(16);
        self.prepare(&mut call)?;
        Ok(self.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id()))
    }

    /// Notes the object that a successful call made.
    pub(crate) fn made(&mut self, call: &Call, class: ObjectClass, id: u16) -> u32 {
        let handle = call.slot(id).map_or(u32::MAX, |slot| slot.raw.data as u32);
        self.note_object(class.0, handle);
        handle
    }

    pub(crate) fn qp_call(&self, qp_type: QpType, pd: u32, cq: u32) -> Call {
        let mut cap = [0; 20];
        for (word, value) in cap.chunks_exact_mut(4).zip([4_u32, 4, 1, 1, 0]) {
            word.copy_from_slice(&value.to_ne_bytes());
        }
        Call::of(self.driver_id(), &QpCreate::INFO)
            .with(Slot::word(QpCreate::HANDLE.id(), 0))
            .with(Slot::word(QpCreate::PD_HANDLE.id(), pd.into()))
            .with(Slot::word(QpCreate::SEND_CQ_HANDLE.id(), cq.into()))
            .with(Slot::word(QpCreate::RECV_CQ_HANDLE.id(), cq.into()))
            .with(Slot::number(QpCreate::USER_HANDLE.id(), 0x5678))
            .with(Slot::input(QpCreate::CAP.id(), &cap))
            .with(Slot::number(QpCreate::TYPE.id(), qp_type.0.into()))
            .with(Slot::output(QpCreate::RESP_CAP.id(), 20))
            .with(Slot::output(QpCreate::RESP_QP_NUM.id(), 4))
            .with(Slot::output(bareverbs_uapi::method::UHW_OUT, 32))
    }

    /// A new QP with its PD and CQ.
    pub(crate) fn qp(&mut self, qp_type: QpType) -> Step<u32> {
        let pd = self.pd()?;
        let cq = self.cq()?;
        self.qp_on(qp_type, pd, cq)
    }

    pub(crate) fn qp_on(&mut self, qp_type: QpType, pd: u32, cq: u32) -> Step<u32> {
        let mut call = self.qp_call(qp_type, pd, cq);
        self.prepare(&mut call)?;
        Ok(self.made(&call, ObjectClass::QP, QpCreate::HANDLE.id()))
    }

    pub(crate) fn srq_call(&self, pd: u32) -> Call {
        let number = |id: u16, value: u32| Slot::input(id, &value.to_ne_bytes());
        Call::of(self.driver_id(), &SrqCreate::INFO)
            .with(Slot::word(SrqCreate::HANDLE.id(), 0))
            .with(Slot::word(SrqCreate::PD_HANDLE.id(), pd.into()))
            .with(Slot::number(SrqCreate::TYPE.id(), 0))
            .with(Slot::number(SrqCreate::USER_HANDLE.id(), 0x9abc))
            .with(number(SrqCreate::MAX_WR.id(), 4))
            .with(number(SrqCreate::MAX_SGE.id(), 1))
            .with(number(SrqCreate::LIMIT.id(), 0))
            .with(Slot::output(SrqCreate::RESP_MAX_WR.id(), 4))
            .with(Slot::output(SrqCreate::RESP_MAX_SGE.id(), 4))
            .with(Slot::output(bareverbs_uapi::method::UHW_OUT, 24))
    }

    pub(crate) fn srq(&mut self) -> Step<u32> {
        let pd = self.pd()?;
        self.srq_on(pd)
    }

    pub(crate) fn srq_on(&mut self, pd: u32) -> Step<u32> {
        self.needs_rxe_payloads()?;
        let mut call = self.srq_call(pd);
        self.prepare(&mut call)?;
        Ok(self.made(&call, ObjectClass::SRQ, SrqCreate::HANDLE.id()))
    }

    pub(crate) fn mr_request(&mut self, pd: u32, access: u32) -> RegMrReq {
        let start = self.memory();
        RegMrReq {
            start,
            length: 4096,
            hca_va: start,
            pd_handle: pd,
            access_flags: AccessFlags::from_bits_retain(access),
            ..RegMrReq::new_zeroed()
        }
    }

    pub(crate) fn mr_with(&mut self, pd: u32, access: u32) -> Step<RegMrResp> {
        let request = self.mr_request(pd, access);
        let response: RegMrResp = self.invoke::<write::RegMr>(&request)?;
        self.note_object(ObjectClass::MR.0, response.mr_handle);
        Ok(response)
    }

    pub(crate) fn mr(&mut self) -> Step<u32> {
        let pd = self.pd()?;
        Ok(self.mr_with(pd, AccessFlags::LOCAL_WRITE.bits())?.mr_handle)
    }

    pub(crate) fn mw(&mut self) -> Step<u32> {
        let pd = self.pd()?;
        self.mw_on(pd)
    }

    pub(crate) fn mw_on(&mut self, pd: u32) -> Step<u32> {
        let mut request = AllocMwReq::new_zeroed();
        request.pd_handle = pd;
        request.mw_type.0 = 1;
        let response: AllocMwResp = self.invoke::<write::AllocMw>(&request)?;
        self.note_object(ObjectClass::MW.0, response.mw_handle);
        Ok(response.mw_handle)
    }

    /// The address of the port's first GID, for paths to the port itself.
    pub(crate) fn path(&mut self) -> Step<AhAttr> {
        use bareverbs_uapi::uverbs::QueryGidEntry;
        self.context()?;
        let mut call = Call::of(self.driver_id(), &QueryGidEntry::INFO)
            .with(Slot::number(QueryGidEntry::PORT.id(), 1))
            .with(Slot::number(QueryGidEntry::GID_INDEX.id(), 0))
            .with(Slot::number(QueryGidEntry::FLAGS.id(), 0))
            .with(Slot::output(QueryGidEntry::RESP_ENTRY.id(), 32));
        self.prepare(&mut call)?;
        let mut attr = AhAttr::new_zeroed();
        let bytes = call.slot(QueryGidEntry::RESP_ENTRY.id()).map(Slot::bytes).unwrap_or_default();
        attr.grh.dgid.copy_from_slice(&bytes[..16]);
        attr.grh.hop_limit = 64;
        attr.is_global = 1;
        attr.port_num = 1;
        Ok(attr)
    }

    /// Index and value of the first GID of RoCE v2 that is an IPv4 address.
    pub(crate) fn ipv4_gid(&mut self) -> Step<(u8, [u8; 16])> {
        use bareverbs_uapi::uverbs::QueryGidEntry;
        self.context()?;
        for index in 0..16 {
            let mut call = Call::of(self.driver_id(), &QueryGidEntry::INFO)
                .with(Slot::number(QueryGidEntry::PORT.id(), 1))
                .with(Slot::number(QueryGidEntry::GID_INDEX.id(), index))
                .with(Slot::number(QueryGidEntry::FLAGS.id(), 0))
                .with(Slot::output(QueryGidEntry::RESP_ENTRY.id(), 32));
            if self.execute(&mut call) != Answer::Ok {
                continue;
            }
            let bytes = call.slot(QueryGidEntry::RESP_ENTRY.id()).map(Slot::bytes).unwrap_or_default();
            let Ok((entry, _)) = GidEntry::read_from_prefix(bytes) else {
                return fail("a GID entry is shorter than its struct");
            };
            let is_ipv4 = entry.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            if is_ipv4 && entry.gid_type == GidType::ROCE_V2 {
                return Ok((index as u8, entry.gid));
            }
        }
        skip("the port has no IPv4 address")
    }

    /// Sends a message to RDMA netlink.
    pub(crate) fn netlink(&self, message: &[u8]) -> Step<Answer> {
        match self.target.netlink(message) {
            Err(Errno::NOSYS) => skip("the target has no RDMA netlink"),
            result => Ok(Answer::of(&result)),
        }
    }

    pub(crate) fn ah(&mut self) -> Step<u32> {
        let pd = self.pd()?;
        self.ah_on(pd)
    }

    pub(crate) fn ah_on(&mut self, pd: u32) -> Step<u32> {
        let mut request = CreateAhReq::new_zeroed();
        request.pd_handle = pd;
        request.attr = self.path()?;
        let response: CreateAhResp = self.invoke_with::<write::CreateAh>(&request, 8)?;
        self.note_object(ObjectClass::AH.0, response.ah_handle);
        Ok(response.ah_handle)
    }

    /// A new object of a class, with the objects that it needs.
    pub(crate) fn object(&mut self, class: u16) -> Step<u32> {
        match ObjectClass(class) {
            ObjectClass::PD => self.pd(),
            ObjectClass::CQ => self.cq(),
            ObjectClass::QP => {
                self.needs_rxe_payloads()?;
                self.qp(QpType::RC)
            }
            ObjectClass::SRQ => self.srq(),
            ObjectClass::AH => self.ah(),
            ObjectClass::MR => self.mr(),
            ObjectClass::MW => self.mw(),
            other => skip(format!("the suite makes no object of class {other}")),
        }
    }

    /// A new descriptor of a class.
    pub(crate) fn descriptor(&mut self, class: u16) -> Step<i32> {
        match ObjectClass(class) {
            ObjectClass::COMP_CHANNEL => self.comp_channel(),
            ObjectClass::ASYNC_EVENT => self.async_fd(),
            other => skip(format!("the suite makes no descriptor of class {other}")),
        }
    }

    /// The call that destroys an object.
    pub(crate) fn destroy_call(&self, class: u16, handle: u32) -> Step<Call> {
        use bareverbs_uapi::method::{AttributeKind, PayloadSize};
        let Some((method, id)) = registry::driver(self.driver_id()).destructor(class) else {
            return skip("the class has no method that destroys its objects");
        };
        let mut call = Call::of(self.driver_id(), method).with(Slot::word(id.id, handle.into()));
        for info in method.attributes {
            if let AttributeKind::Output { size: PayloadSize::Exact(len), .. } = info.kind {
                call = call.with(Slot::output(info.id, len));
            }
        }
        Ok(call)
    }

    /// Destroys an object by its method.
    pub(crate) fn destroy(&mut self, class: u16, handle: u32) -> Step<Answer> {
        let mut call = self.destroy_call(class, handle)?;
        let answer = self.execute(&mut call);
        if answer == Answer::Ok {
            self.forget(class, handle);
        }
        Ok(answer)
    }

    /// The handles of a class, as the kernel lists them; `None` if the class is absent.
    pub(crate) fn handles(&mut self, class: u16) -> Step<Option<Vec<u32>>> {
        let mut call = Call::of(self.driver_id(), &InfoHandles::INFO)
            .with(Slot::number(InfoHandles::OBJECT_ID.id(), class.into()))
            .with(Slot::output(InfoHandles::TOTAL_HANDLES.id(), 4))
            .with(Slot::output(InfoHandles::HANDLES_LIST.id(), 1024));
        match self.execute(&mut call) {
            Answer::Ok => {}
            Answer::NOENT => return Ok(None),
            got => return fail(format!("INFO_HANDLES failed with {got}: {call}")),
        }
        let total = call.u32_of(InfoHandles::TOTAL_HANDLES.id()) as usize;
        let list = call.slot(InfoHandles::HANDLES_LIST.id()).map(Slot::bytes).unwrap_or_default();
        let handles = list.as_chunks::<4>().0.iter().take(total);
        Ok(Some(handles.map(|bytes| u32::from_ne_bytes(*bytes)).collect()))
    }

    /// Notes the objects of a class that a call made without returning their handles.
    pub(crate) fn note_new(&mut self, class: u16) -> Step<()> {
        for handle in self.handles(class)?.unwrap_or_default() {
            self.note_object(class, handle);
        }
        Ok(())
    }

    /// Compares the kernel's handles with those of the objects that the check made.
    pub(crate) fn check_handles(&mut self) -> Step<()> {
        for class in CLASSES {
            let Some(listed) = self.handles(class.0)? else { continue };
            let objects = self.objects.iter().filter(|(of, _)| *of == class.0);
            let mut known: Vec<u32> = objects.map(|(_, handle)| *handle).collect();
            // The kernel lists 0 for each object with a descriptor (`alloc_commit_fd_uobject`).
            known.extend(self.descriptors.iter().filter(|(of, _)| *of == class.0).map(|_| 0));
            let mut listed = listed;
            listed.sort_unstable();
            if listed != known {
                return fail(format!("the file has handles {listed:?} of class {class}, expected {known:?}"));
            }
        }
        Ok(())
    }
}
