//! The environment of a process: capabilities, limits of pinned memory, cgroups, network namespaces and
//! forked children.

use bareverbs_uapi::method::Method;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};
use bareverbs_uapi::uverbs::{GetContext, InfoHandles, InvokeWrite, QpCreate};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::{AllocPdReq, AllocPdResp, ExCreateQp, ExCreateQpResp, RegMrResp};
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use zerocopy::{FromZeros, IntoBytes};

use super::qp_states::Qp;
use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::check::{Bug, Check, EVERY, Row, row};
use crate::environment::{Restricted, Restriction};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, Stop, fail, skip};

/// Restricts the process.
fn restrict(session: &Session<'_>, restriction: Restriction) -> Step<Box<dyn Restricted>> {
    session.target.restrict(restriction).or_else(skip)
}

const RAW: Restriction = Restriction::Without(CapabilitySet::NET_RAW);

/// A call that needs `CAP_NET_RAW`: its place, the answers with and without the capability, and what
/// makes the call.
type Privileged = (&'static str, [Answer; 2], Option<Bug>, fn(&mut Session<'_>) -> Step<Call>);

const PRIVILEGED: [Privileged; 3] = [
    ("QpCreate::RAW_PACKET", [Answer::OPNOTSUPP, Answer::PERM], None, |session| {
        let (pd, cq) = (session.pd()?, session.cq()?);
        Ok(session.qp_call(QpType::RAW_PACKET, pd, cq))
    }),
    // rxe takes no source QPN.
    (
        "QpCreate::SOURCE_QPN",
        [Answer::OPNOTSUPP, Answer::PERM],
        Some(Bug {
            page: "qp_create-takes-a-source-qpn-without-cap_net_raw",
            series: EVERY,
            answer: Answer::OPNOTSUPP,
        }),
        |session| {
            let (pd, cq) = (session.pd()?, session.cq()?);
            let number = Slot::input(QpCreate::SOURCE_QPN.id(), &7_u32.to_ne_bytes());
            Ok(session.qp_call(QpType::UD, pd, cq).with(number))
        },
    ),
    ("ExCreateQp::SOURCE_QPN", [Answer::OPNOTSUPP, Answer::PERM], None, |session| {
        let (pd, cq) = (session.pd()?, session.cq()?);
        let request = ExCreateQp {
            pd_handle: pd,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            qp_type: QpType::UD.0 as u8,
            // IB_QP_CREATE_SOURCE_QPN.
            create_flags: QpCreateFlags::from_bits_retain(1 << 10),
            source_qpn: 7,
            ..ExCreateQp::new_zeroed()
        };
        let number = write::ex::CreateQp::INFO.number;
        Ok(session.command(number, request.as_bytes(), size_of::<ExCreateQpResp>(), 32))
    }),
];

/// Q_Keys of a QP: the place, the value, and the answers with and without `CAP_NET_RAW`.
const QKEYS: [(&str, u32, [Answer; 2]); 2] = [
    ("ModifyQp::privileged-q_key", 1 << 31, [Answer::Ok, Answer::PERM]),
    ("ModifyQp::ordinary-q_key", 1 << 30, [Answer::Ok, Answer::Ok]),
];

fn of_capabilities(checks: &mut Vec<Check>) {
    let rule = Rule::Capability;
    for (position, suffix) in ["with-cap_net_raw", "without-cap_net_raw"].into_iter().enumerate() {
        let restricted =
            move |session: &Session<'_>| (position == 1).then(|| restrict(session, RAW)).transpose();
        for (place, answers, bug, build) in PRIVILEGED {
            let answer = answers[position];
            let mut check = Check::new(name(place, rule, suffix), rule, answer, move |session| {
                let mut call = build(session)?;
                let _restricted = restricted(session)?;
                session.judge(&mut call, answer).map(drop)
            });
            check.bug = bug;
            checks.push(check);
        }
        for (place, value, answers) in QKEYS {
            let answer = answers[position];
            checks.push(Check::new(name(place, rule, suffix), rule, answer, move |session| {
                session.needs_rxe_payloads()?;
                let mut qp = Qp::new(session, QpType::UD)?;
                qp.to(session, QpState::INIT)?;
                qp.request.qkey = value;
                let _restricted = restricted(session)?;
                qp.judge(session, QpState::INIT, QpAttrMask::STATE | QpAttrMask::QKEY, answer)
            }));
        }
    }
}

fn name(place: &str, rule: Rule, suffix: &str) -> String {
    format!("environment::{place}::{}-{suffix}", rule.id())
}

/// The call that registers pages of the memory.
fn register(session: &mut Session<'_>, pages: u64) -> Step<Call> {
    let pd = session.pd()?;
    let mut request = session.mr_request(pd, 1);
    // From the first whole page on, so that it spans as many pages as it has.
    request.start = request.start.next_multiple_of(PAGE);
    (request.hca_va, request.length) = (request.start, pages * PAGE);
    Ok(session.command(write::RegMr::INFO.number, request.as_bytes(), size_of::<RegMrResp>(), 0))
}

const PAGE: u64 = 4096;

fn judge_region(session: &mut Session<'_>, call: &mut Call, answer: Answer) -> Step<()> {
    session.judge(call, answer)?;
    if answer == Answer::Ok {
        session.note_new(ObjectClass::MR.0)?;
    }
    Ok(())
}

const NOMEM: Answer = Answer::errno(Errno::NOMEM);

/// One registration with a limit of pinned memory: a suffix, the limit and the size in pages.
const LIMITS: [(&str, u64, u64, Answer); 4] = [
    ("below-the-limit", 4, 3, Answer::Ok),
    ("at-the-limit", 4, 4, Answer::Ok),
    ("above-the-limit", 4, 5, NOMEM),
    ("limit-0", 0, 1, Answer::PERM),
];

const MEMLOCK: [Row; 3] = [
    row("RegMr::CAP_IPC_LOCK", Rule::Memlock, "above-the-limit", Answer::Ok, |session, answer| {
        let mut call = register(session, 5)?;
        judge_region(session, &mut call, answer)
    }),
    row("RegMr::RLIMIT_MEMLOCK", Rule::Memlock, "sum", NOMEM, |session, answer| {
        let _restricted = restrict(session, Restriction::Memlock(4 * PAGE))?;
        let mut first = register(session, 3)?;
        session.prepare(&mut first)?;
        session.note_new(ObjectClass::MR.0)?;
        let mut second = register(session, 2)?;
        judge_region(session, &mut second, answer)
    }),
    row("RegMr::RLIMIT_MEMLOCK", Rule::Memlock, "after-dereg", Answer::Ok, |session, answer| {
        let _restricted = restrict(session, Restriction::Memlock(4 * PAGE))?;
        let mut first = register(session, 3)?;
        session.prepare(&mut first)?;
        let handle = first.u32_of(InvokeWrite::CORE_OUT.id());
        session.note_object(ObjectClass::MR.0, handle);
        if session.destroy(ObjectClass::MR.0, handle)? != Answer::Ok {
            return fail("the region can't be deregistered");
        }
        let mut second = register(session, 3)?;
        judge_region(session, &mut second, answer)
    }),
];

fn of_memlock(checks: &mut Vec<Check>) {
    let rule = Rule::Memlock;
    for (suffix, limit, pages, answer) in LIMITS {
        checks.push(Check::new(name("RegMr::RLIMIT_MEMLOCK", rule, suffix), rule, answer, move |session| {
            let mut call = register(session, pages)?;
            let _restricted = restrict(session, Restriction::Memlock(limit * PAGE))?;
            judge_region(session, &mut call, answer)
        }));
    }
}

/// The classes whose objects a cgroup counts. Descriptors are not counted.
const COUNTED: [ObjectClass; 7] = [
    ObjectClass::PD,
    ObjectClass::CQ,
    ObjectClass::QP,
    ObjectClass::SRQ,
    ObjectClass::AH,
    ObjectClass::MR,
    ObjectClass::MW,
];

/// The answer of the call that makes an object: of the last one that it needs.
fn last_answer(session: &mut Session<'_>, class: ObjectClass) -> Step<Answer> {
    let made = match class {
        ObjectClass::COMP_CHANNEL | ObjectClass::ASYNC_EVENT => session.descriptor(class.0).map(|_| ()),
        class => session.object(class.0).map(|_| ()),
    };
    match made {
        Ok(()) => Ok(Answer::Ok),
        Err(Stop::Fail(_)) => Ok(session.last_answer),
        Err(stop) => Err(stop),
    }
}

/// The objects that `Session::object` makes for one of a class.
fn needed(class: ObjectClass) -> u32 {
    match class {
        ObjectClass::PD | ObjectClass::CQ => 1,
        ObjectClass::QP => 3,
        _ => 2,
    }
}

const fn objects(limit: u32) -> Restriction {
    Restriction::Cgroup { handles: None, objects: Some(limit) }
}

const fn handles(limit: u32) -> Restriction {
    Restriction::Cgroup { handles: Some(limit), objects: None }
}

/// The answer of `GET_CONTEXT` with a limit of contexts.
fn judge_context(session: &mut Session<'_>, limit: u32, answer: Answer) -> Step<()> {
    let _restricted = restrict(session, handles(limit))?;
    let mut call = Call::of(session.driver_id(), &GetContext::INFO);
    session.judge(&mut call, answer)?;
    if answer == Answer::Ok {
        session.note_context();
    }
    Ok(())
}

/// What a cgroup releases, and its limit of contexts.
const CGROUPS: [Row; 4] = [
    row("Pd::hca_object", Rule::Cgroup, "after-destroy", Answer::Ok, |session, answer| {
        session.context()?;
        let _restricted = restrict(session, objects(1))?;
        let pd = session.pd()?;
        if session.destroy(ObjectClass::PD.0, pd)? != Answer::Ok {
            return fail("the PD can't be destroyed");
        }
        let got = last_answer(session, ObjectClass::PD)?;
        session.compare(&"creation of a PD after another was destroyed", answer, got).map(drop)
    }),
    row("Pd::hca_object", Rule::Cgroup, "after-failure", Answer::Ok, |session, answer| {
        session.needs_rxe_payloads()?;
        session.context()?;
        let _restricted = restrict(session, objects(1))?;
        // A CQ without entries is refused.
        let mut call = session.cq_call(0);
        if session.execute(&mut call) == Answer::Ok {
            return fail("the driver made a CQ without entries");
        }
        let got = last_answer(session, ObjectClass::PD)?;
        session.compare(&"creation of a PD after a failed creation", answer, got).map(drop)
    }),
    row("GetContext::hca_handle", Rule::Cgroup, "at-the-limit", Answer::Ok, |session, answer| {
        judge_context(session, 1, answer)
    }),
    row("GetContext::hca_handle", Rule::Cgroup, "above-the-limit", Answer::AGAIN, |session, answer| {
        judge_context(session, 0, answer)
    }),
];

/// The creations of objects with a limit of their number: class, suffix, limit and answer.
fn creations() -> impl Iterator<Item = (ObjectClass, &'static str, u32, Answer)> {
    let counted = COUNTED.into_iter().flat_map(|class| {
        let needed = needed(class);
        [(class, "at-the-limit", needed, Answer::Ok), (class, "above-the-limit", needed - 1, Answer::AGAIN)]
    });
    let others = [ObjectClass::COMP_CHANNEL, ObjectClass::ASYNC_EVENT];
    counted.chain(others.map(|class| (class, "not-counted", 0, Answer::Ok)))
}

fn of_cgroups(checks: &mut Vec<Check>) {
    let rule = Rule::Cgroup;
    for (class, suffix, limit, answer) in creations() {
        let title = name(&format!("{class}::hca_object"), rule, suffix);
        checks.push(Check::new(title, rule, answer, move |session| {
            if COUNTED.contains(&class) {
                session.needs_rxe_payloads()?;
            }
            session.context()?;
            let _restricted = restrict(session, objects(limit))?;
            let got = last_answer(session, class)?;
            session.compare(&format!("creation of {class} with hca_object={limit}"), answer, got).map(drop)
        }));
    }
}

/// The default mode shares devices between namespaces.
const NAMESPACES: [Row; 2] = [
    row("open::shared", Rule::Namespace, "other-namespace", Answer::Ok, |session, answer| {
        let _restricted = restrict(session, Restriction::Namespace)?;
        let other = session.other();
        let got = if other.is_ok() { Answer::Ok } else { Answer::PERM };
        session.compare(&"open() of the device in another network namespace", answer, got).map(drop)
    }),
    row("QpCreate::shared", Rule::Namespace, "other-namespace", Answer::Ok, |session, answer| {
        session.needs_rxe_payloads()?;
        let (pd, cq) = (session.pd()?, session.cq()?);
        let mut call = session.qp_call(QpType::RC, pd, cq);
        let _restricted = restrict(session, Restriction::Namespace)?;
        session.judge(&mut call, answer)?;
        session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
        Ok(())
    }),
];

const OUT_OF_REACH: &str = "the device is out of reach of other namespaces while the check runs";

/// `ALLOC_PD` without its handle being noted.
fn alloc_pd(session: &mut Session<'_>) -> Step<Call> {
    session.context()?;
    let number = write::AllocPd::INFO.number;
    let request = AllocPdReq::new_zeroed();
    Ok(session.command(number, request.as_bytes(), size_of::<AllocPdResp>(), 0))
}

/// Devices that are exclusive to their namespaces. The mode is that of the whole machine.
const EXCLUSIVE: [Row; 3] = [
    row("open::exclusive", Rule::ExclusiveNamespace, "other-namespace", Answer::PERM, |session, answer| {
        let _restricted = restrict(session, Restriction::ExclusiveNamespace)?;
        let got = Answer::of(&session.target.open());
        session.compare(&"open() of the device in another network namespace", answer, got).map(drop)
    })
    .hazardous(OUT_OF_REACH),
    row("AllocPd::exclusive", Rule::ExclusiveNamespace, "opened-before", Answer::Ok, |session, answer| {
        let mut call = alloc_pd(session)?;
        let _restricted = restrict(session, Restriction::ExclusiveNamespace)?;
        session.judge(&mut call, answer)?;
        session.note_new(ObjectClass::PD.0)
    })
    .hazardous(OUT_OF_REACH),
    row("nldev::exclusive", Rule::ExclusiveNamespace, "other-namespace", Answer::INVAL, |session, answer| {
        let _restricted = restrict(session, Restriction::ExclusiveNamespace)?;
        super::nldev::judge_get(session, answer)
    })
    .hazardous(OUT_OF_REACH),
];

const CHILDREN: [Row; 3] = [
    row("InfoHandles::ioctl", Rule::Fork, "in-child", Answer::Ok, |session, answer| {
        session.pd()?;
        let mut call = Call::of(session.driver_id(), &InfoHandles::INFO)
            .with(Slot::number(InfoHandles::OBJECT_ID.id(), ObjectClass::PD.0.into()))
            .with(Slot::output(InfoHandles::TOTAL_HANDLES.id(), 4))
            .with(Slot::output(InfoHandles::HANDLES_LIST.id(), 64));
        let got = session.execute_in_child(&mut call)?;
        session.compare(&call, answer, got).map(drop)
    }),
    row("AllocPd::ioctl", Rule::Fork, "in-child", Answer::Ok, |session, answer| {
        let mut call = alloc_pd(session)?;
        let got = session.execute_in_child(&mut call)?;
        session.compare(&call, answer, got)?;
        // The object belongs to the file, and outlives the child.
        session.note_new(ObjectClass::PD.0)?;
        match session.handles(ObjectClass::PD.0)? {
            Some(handles) if handles.len() == 1 => Ok(()),
            handles => fail(format!("the file has the PDs {handles:?}")),
        }
    }),
    // write() is refused where the credentials are not those of open().
    row("write::write", Rule::Fork, "in-child", Answer::errno(Errno::ACCESS), |session, answer| {
        session.context()?;
        // DEALLOC_PD: 3 words.
        let mut command = 4_u32.to_ne_bytes().to_vec();
        command.extend(3_u16.to_ne_bytes());
        command.extend(0_u16.to_ne_bytes());
        command.extend(0x7fff_fff0_u32.to_ne_bytes());
        let got = session.write_in_child(&command)?;
        session.compare(&"write() of DEALLOC_PD in a forked child", answer, got).map(drop)
    }),
];

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_capabilities(&mut checks);
    of_memlock(&mut checks);
    of_cgroups(&mut checks);
    for table in [&MEMLOCK[..], &CGROUPS, &NAMESPACES, &EXCLUSIVE, &CHILDREN] {
        checks.extend(table.iter().map(|row| row.check("environment")));
    }
    checks
}
