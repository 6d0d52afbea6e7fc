//! A valid call of every method that Soft-RoCE has, with the objects that it needs.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::{Access, AttributeInfo, AttributeKind, MethodInfo, PayloadSize, UHW_OUT};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{
    AdviseMr, CqCreate, GetContext, InfoHandles, InvokeWrite, ObjectClass, QpCreate, QueryGidTable,
    RegDmabufMr, RegMr, SrqCreate,
};
use bareverbs_uapi::write::WriteCommand;
use zerocopy::IntoBytes;

use crate::answer::{Answer, Change, Expect};
use crate::call::{Call, Slot};
use crate::session::Session;
use crate::step::{Step, fail, skip};

/// rxe has the methods since 7.2.
pub(crate) static RXE_ADVISE_MR: Change = Change {
    name: "rxe-advise-mr",
    since: Since::V7_2,
    why: "rxe supports on-demand paging and ADVISE_MR since 7.2 (sw/rxe/rxe_odp.c: rxe_ib_advise_mr)",
};

/// The effect of a successful call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// Makes an object; the attribute returns its handle.
    Makes {
        class: u16,
        id: u16,
    },
    /// Makes a descriptor.
    MakesFd {
        class: u16,
        id: u16,
    },
    /// Destroys an object.
    Destroys {
        class: u16,
        handle: u32,
    },
    /// Makes the context of the file.
    MakesContext,
}

/// An attribute that a valid call has or may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attr {
    pub(crate) name: &'static str,
    pub(crate) id: u16,
    pub(crate) kind: AttributeKind,
    /// Whether the valid call has it.
    pub(crate) in_base: bool,
    /// The answer of the call without it; `None` if that of the valid call.
    pub(crate) missing: Option<Answer>,
    /// Whether a successful call writes it.
    pub(crate) written: bool,
    /// Whether the handler or the driver reads it.
    pub(crate) read: bool,
    /// First kernel series that knows it.
    pub(crate) since: Since,
    /// The answer of a call with it, if not that of the valid call.
    pub(crate) with: Option<Answer>,
    /// Whether the parser reads the payload, not the handler (`UA_ALLOC_AND_COPY`).
    pub(crate) copied: bool,
}

impl Attr {
    pub(crate) fn of(info: &'static AttributeInfo) -> Self {
        Self {
            name: info.rust,
            id: info.id,
            kind: info.kind,
            in_base: info.mandatory,
            missing: info.mandatory.then_some(Answer::INVAL),
            written: matches!(info.kind, AttributeKind::Output { .. }),
            read: true,
            since: info.since,
            with: None,
            copied: false,
        }
    }
}

/// The valid calls of a method.
pub(crate) struct Base {
    pub(crate) method: &'static MethodInfo,
    pub(crate) attributes: Vec<Attr>,
    /// The answer of a valid call.
    pub(crate) answer: Expect,
    /// The answer without a context; `None` if the call needs an object, whose handle is unknown.
    pub(crate) without_context: Option<Answer>,
}

fn is(method: &MethodInfo, other: &MethodInfo) -> bool {
    (method.object, method.id) == (other.object, other.id)
}

macro_rules! method {
    ($method:expr, $ty:ty) => {
        is($method, &<$ty as bareverbs_uapi::method::Method>::INFO)
    };
}

impl Base {
    /// The valid calls of a method on Soft-RoCE; `None` for methods that it lacks.
    pub(crate) fn on_rxe(method: &'static MethodInfo) -> Option<Self> {
        if !is_on_rxe(method) {
            return None;
        }
        let mut attributes: Vec<_> = method.attributes.iter().map(Attr::of).collect();
        let mut set = |id: u16, change: &dyn Fn(&mut Attr)| {
            attributes.iter_mut().filter(|attr| attr.id == id).for_each(change);
        };
        let needed = |answer| {
            move |attr: &mut Attr| {
                attr.in_base = true;
                attr.missing = Some(answer);
            }
        };
        if method!(method, InfoHandles) {
            set(InfoHandles::TOTAL_HANDLES.id(), &needed(Answer::NOENT));
            set(InfoHandles::HANDLES_LIST.id(), &needed(Answer::INVAL));
        } else if method!(method, InvokeWrite) {
            set(InvokeWrite::CORE_IN.id(), &needed(Answer::NOSPC));
            set(InvokeWrite::CORE_OUT.id(), &needed(Answer::NOSPC));
        } else if method!(method, QpCreate) {
            for id in [QpCreate::PD_HANDLE.id(), QpCreate::SEND_CQ_HANDLE.id(), QpCreate::RECV_CQ_HANDLE.id()]
            {
                set(id, &needed(Answer::NOENT));
            }
            // rxe has no creation flags, and a source QPN sets one.
            set(QpCreate::SOURCE_QPN.id(), &|attr| attr.with = Some(Answer::OPNOTSUPP));
        } else if method!(method, SrqCreate) {
            // Only SRQs of type XRC have a number.
            set(SrqCreate::RESP_SRQ_NUM.id(), &|attr| attr.written = false);
        } else if method!(method, RegMr) {
            set(RegMr::ADDR.id(), &needed(Answer::INVAL));
        } else if method!(method, AdviseMr) {
            set(AdviseMr::SGE_LIST.id(), &|attr| attr.copied = true);
        }
        // rxe does not read buffer descriptors of queues.
        let buffers = [
            (CqCreate::INFO_IDS, &[8, 9, 10, 11, 12][..]),
            (QpCreate::INFO_IDS, &[15, 16, 17][..]),
            (SrqCreate::INFO_IDS, &[14][..]),
        ];
        for ((object, id), ids) in buffers {
            if (method.object, method.id) == (object, id) {
                for id in ids {
                    set(*id, &|attr| attr.read = false);
                }
            }
        }
        let room = [(CqCreate::INFO_IDS, 16), (QpCreate::INFO_IDS, 32), (SrqCreate::INFO_IDS, 24)];
        if room.iter().any(|(ids, _)| *ids == (method.object, method.id)) {
            attributes.push(Attr {
                name: "UHW_OUT",
                id: UHW_OUT,
                kind: AttributeKind::Output { size: PayloadSize::AtLeast(0), payload: None },
                in_base: true,
                missing: Some(Answer::INVAL),
                written: true,
                read: true,
                since: Since::V6_1,
                with: None,
                copied: false,
            });
        }
        Some(Self {
            method,
            answer: answer_on_rxe(method),
            without_context: without_context(method),
            attributes,
        })
    }

    /// Builds a valid call, with the objects that it needs.
    pub(crate) fn build(&self, session: &mut Session<'_>) -> Step<(Call, Effect)> {
        let method = self.method;
        if !method!(method, GetContext) {
            session.context()?;
        }
        let mut call = match method {
            _ if method!(method, CqCreate) => session.cq_call(16),
            _ if method!(method, QpCreate) => {
                let pd = session.pd()?;
                let cq = session.cq()?;
                session.qp_call(QpType::RC, pd, cq)
            }
            _ if method!(method, SrqCreate) => {
                let pd = session.pd()?;
                session.srq_call(pd)
            }
            _ => Call::of(session.driver_id(), method),
        };
        for attr in self.attributes.iter().filter(|attr| attr.in_base) {
            if call.slot(attr.id).is_none() {
                let slot = self.slot(session, attr)?;
                call.slots.push(slot);
            }
        }
        let effect = self.effect(&call);
        Ok((call, effect))
    }

    fn effect(&self, call: &Call) -> Effect {
        if method!(self.method, GetContext) {
            return Effect::MakesContext;
        }
        for attr in &self.attributes {
            let data = call.slot(attr.id).map_or(0, |slot| slot.raw.data);
            match attr.kind {
                AttributeKind::Handle { object: class, access: Access::New } => {
                    return Effect::Makes { class, id: attr.id };
                }
                AttributeKind::Handle { object: class, access: Access::Destroy } => {
                    return Effect::Destroys { class, handle: data as u32 };
                }
                AttributeKind::Descriptor { object: class, access: Access::New } => {
                    return Effect::MakesFd { class, id: attr.id };
                }
                _ => {}
            }
        }
        Effect::Nothing
    }

    /// A valid value of an attribute.
    pub(crate) fn slot(&self, session: &mut Session<'_>, attr: &Attr) -> Step<Slot> {
        let (method, id) = (self.method, attr.id);
        if let Some(slot) = special(session, method, id)? {
            return Ok(slot);
        }
        Ok(match attr.kind {
            AttributeKind::Handle { access: Access::New, .. } => Slot::word(id, 0),
            AttributeKind::Descriptor { access: Access::New, .. } => Slot::word(id, 0),
            AttributeKind::Handle { object, .. } => {
                let handle = session.object(object)?;
                Slot::word(id, handle.into())
            }
            AttributeKind::Descriptor { object, .. } => {
                let fd = session.descriptor(object)?;
                Slot::word(id, i64::from(fd).cast_unsigned())
            }
            AttributeKind::RawDescriptor => Slot::word(id, 0),
            AttributeKind::Constant { .. } | AttributeKind::Flags { .. } => Slot::number(id, 0),
            AttributeKind::Input { size, .. } => Slot::input(id, &vec![0; length(size)]),
            AttributeKind::Output { size, .. } => Slot::output(id, length(size)),
            AttributeKind::Handles { .. } | AttributeKind::Enumeration { .. } => {
                return skip("the suite has no valid value of this kind");
            }
        })
    }

    /// Whether the suite has a valid value of an attribute on Soft-RoCE.
    pub(crate) fn has_value(&self, attr: &Attr) -> bool {
        match attr.kind {
            AttributeKind::Handle { object, access: Access::Read | Access::Write | Access::Destroy } => {
                is_class_on_rxe(object)
            }
            AttributeKind::RawDescriptor => !method!(self.method, RegMr),
            _ if method!(self.method, RegMr) && attr.id == RegMr::FD_OFFSET.id() => false,
            _ if method!(self.method, GetContext) && attr.id == GetContext::FD_ARR.id() => false,
            _ => true,
        }
    }
}

/// Ids of a method as a constant.
trait Ids {
    const INFO_IDS: (u16, u16);
}

impl<M: bareverbs_uapi::method::Method> Ids for M {
    const INFO_IDS: (u16, u16) = (M::INFO.object, M::INFO.id);
}

/// The full length of a payload.
pub(crate) fn length(size: PayloadSize) -> usize {
    match size {
        PayloadSize::Exact(len) | PayloadSize::AtLeast(len) => len,
        PayloadSize::Within { maximum, .. } => maximum,
        PayloadSize::Extensible { known, .. } => known,
    }
}

/// Values that the kind of an attribute does not give.
fn special(session: &mut Session<'_>, method: &MethodInfo, id: u16) -> Step<Option<Slot>> {
    use bareverbs_uapi::uverbs::{QueryGidEntry, QueryPort, QueryPortSpeed};
    let slot = if method!(method, InvokeWrite) {
        match id {
            _ if id == InvokeWrite::WRITE_CMD.id() => {
                Slot::number(id, bareverbs_uapi::write::QueryDevice::INFO.number.into())
            }
            _ if id == InvokeWrite::CORE_IN.id() => Slot::input(id, &[0; 8]),
            _ => Slot::output(id, size_of::<bareverbs_uapi::write::structs::QueryDeviceResp>()),
        }
    } else if method!(method, InfoHandles) {
        match id {
            _ if id == InfoHandles::OBJECT_ID.id() => {
                // Without an object, nothing is written to the list.
                session.pd()?;
                Slot::number(id, ObjectClass::PD.0.into())
            }
            _ if id == InfoHandles::HANDLES_LIST.id() => Slot::output(id, 64),
            _ => return Ok(None),
        }
    } else if method!(method, QueryPort) && id == QueryPort::PORT_NUM.id()
        || method!(method, QueryPortSpeed) && id == QueryPortSpeed::PORT_NUM.id()
        || method!(method, QueryGidEntry) && id == QueryGidEntry::PORT.id()
    {
        Slot::number(id, 1)
    } else if method!(method, QueryGidTable) {
        match id {
            _ if id == QueryGidTable::ENTRY_SIZE.id() => Slot::number(id, 32),
            _ if id == QueryGidTable::RESP_ENTRIES.id() => Slot::output(id, 32 * 64),
            _ => return Ok(None),
        }
    } else if method!(method, RegMr) {
        let memory = session.memory();
        match id {
            _ if id == RegMr::IOVA.id() || id == RegMr::ADDR.id() => Slot::number(id, memory),
            _ if id == RegMr::LENGTH.id() => Slot::number(id, 4096),
            _ if id == RegMr::ACCESS_FLAGS.id() => Slot::number(id, 1),
            _ => return Ok(None),
        }
    } else if method!(method, RegDmabufMr) && id == RegDmabufMr::FD.id() {
        Slot::input(id, &0_u32.to_ne_bytes())
    } else if method!(method, AdviseMr) {
        match id {
            _ if id == AdviseMr::FLAGS.id() => Slot::number(id, 1),
            _ if id == AdviseMr::SGE_LIST.id() => Slot::input(id, &[0; 16]),
            // The region must be on demand: `rxe_ib_prefetch_sg_list` of 7.2 does not test it.
            _ if id == AdviseMr::PD_HANDLE.id() => {
                let pd = session.pd()?;
                return Ok(Some(Slot::word(id, pd.into())));
            }
            _ => return Ok(None),
        }
    } else {
        return Ok(None);
    };
    Ok(Some(slot))
}

/// Completes a call of ADVISE_MR: an on-demand region of the PD, if the kernel has such regions.
pub(crate) fn complete(session: &mut Session<'_>, base: &Base, call: &mut Call) -> Step<()> {
    if !method!(base.method, AdviseMr) || session.series < RXE_ADVISE_MR.since {
        return Ok(());
    }
    let pd = call.slot(AdviseMr::PD_HANDLE.id()).map_or(0, |slot| slot.raw.data as u32);
    let region = session.mr_with(pd, 0x41)?;
    let start = session.memory();
    let mut sge = bareverbs_uapi::write::structs::Sge::zeroed();
    (sge.addr, sge.length, sge.lkey) = (start, 4096, region.lkey);
    match call.slot_mut(AdviseMr::SGE_LIST.id()) {
        Some(slot) => *slot = Slot::input(AdviseMr::SGE_LIST.id(), sge.as_bytes()),
        None => return fail("the call has no list"),
    }
    Ok(())
}

/// The classes that rxe has.
pub(crate) fn is_class_on_rxe(class: u16) -> bool {
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

/// Whether rxe has the method, on a kernel that has it. The kernel drops methods with a mandatory
/// handle of a class that the driver lacks (`core/uverbs_uapi.c`: `uapi_finalize_disable`).
pub(crate) fn is_on_rxe(method: &MethodInfo) -> bool {
    is_class_on_rxe(method.object)
        && !method!(method, bareverbs_uapi::uverbs::DmMrReg)
        && !method!(method, bareverbs_uapi::uverbs::QpAttachCompCntr)
        && registry::OBJECTS.iter().any(|object| object.id == method.object)
}

fn answer_on_rxe(method: &MethodInfo) -> Expect {
    use bareverbs_uapi::uverbs::{QueryCompCntrCaps, QueryContext, QueryPortSpeed};
    if method!(method, QueryContext)
        || method!(method, QueryPortSpeed)
        || method!(method, QueryCompCntrCaps)
        || method!(method, RegDmabufMr)
    {
        Answer::OPNOTSUPP.into()
    } else if method!(method, AdviseMr) {
        Expect::Changed { change: &RXE_ADVISE_MR, before: Answer::OPNOTSUPP, after: Answer::Ok }
    } else {
        Answer::Ok.into()
    }
}

fn without_context(method: &MethodInfo) -> Option<Answer> {
    use bareverbs_uapi::uverbs::{
        AsyncEventAlloc, QueryCompCntrCaps, QueryContext, QueryGidEntry, QueryPort, QueryPortSpeed,
    };
    let needs = method!(method, CqCreate)
        || method!(method, AsyncEventAlloc)
        || method!(method, QueryPort)
        || method!(method, QueryPortSpeed)
        || method!(method, QueryCompCntrCaps)
        || method!(method, QueryContext)
        || method!(method, QueryGidEntry)
        || method!(method, QueryGidTable)
        || method!(method, InvokeWrite);
    if needs {
        Some(Answer::INVAL)
    } else if method!(method, InfoHandles) {
        Some(Answer::Ok)
    } else {
        None
    }
}
