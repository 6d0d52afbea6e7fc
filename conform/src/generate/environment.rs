//! The environment of a process: capabilities, limits of pinned memory, cgroups, network namespaces and
//! forked children.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::Method;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};
use bareverbs_uapi::uverbs::{GetContext, InfoHandles, InvokeWrite, QpCreate};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::{AllocPdReq, AllocPdResp, ExCreateQp, ExCreateQpResp, RegMrResp};
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::thread::CapabilitySet;
use zerocopy::{FromZeros, IntoBytes};

use super::qp_states::Qp;
use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::check::{Bug, Check};
use crate::environment::{Restricted, Restriction};
use crate::rules::Rule;
use crate::session::{Session, Step, Stop, fail, skip};

fn name(place: &str, kind: &str, rule: Rule, suffix: &str) -> String {
    format!("environment::{place}::{kind}::{}-{suffix}", rule.id())
}

/// Restricts the process.
fn restrict(session: &Session<'_>, restriction: Restriction) -> Step<Box<dyn Restricted>> {
    session.target.restrict(restriction).or_else(skip)
}

fn of_capabilities(checks: &mut Vec<Check>) {
    let rule = Rule::Capability;
    let raw = Restriction::Without(CapabilitySet::NET_RAW);
    for (suffix, restricted, answer) in
        [("with-cap_net_raw", false, Answer::OPNOTSUPP), ("without-cap_net_raw", true, Answer::PERM)]
    {
        let title = name("QpCreate", "RAW_PACKET", rule, suffix);
        checks.push(Check::new(title, rule, answer, move |session| {
            let (pd, cq) = (session.pd()?, session.cq()?);
            let mut call = session.qp_call(QpType::RAW_PACKET, pd, cq);
            let _restricted = restricted.then(|| restrict(session, raw)).transpose()?;
            session.judge(&mut call, answer).map(drop)
        }));
        // rxe takes no source QPN.
        let answer = if restricted { Answer::PERM } else { Answer::OPNOTSUPP };
        let title = name("QpCreate", "SOURCE_QPN", rule, suffix);
        let check = Check::new(title, rule, answer, move |session| {
            let (pd, cq) = (session.pd()?, session.cq()?);
            let mut call = session
                .qp_call(QpType::UD, pd, cq)
                .with(Slot::input(QpCreate::SOURCE_QPN.id(), &7_u32.to_ne_bytes()));
            let _restricted = restricted.then(|| restrict(session, raw)).transpose()?;
            session.judge(&mut call, answer).map(drop)
        });
        checks.push(check.of_bug(Bug {
            page: "qp_create-takes-a-source-qpn-without-cap_net_raw",
            series: &[Since::V6_1, Since::V6_12, Since::V7_2, Since::V7_3],
            answer: Answer::OPNOTSUPP,
        }));
        let title = name("ExCreateQp", "SOURCE_QPN", rule, suffix);
        checks.push(Check::new(title, rule, answer, move |session| {
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
            let mut call = session.command(number, request.as_bytes(), size_of::<ExCreateQpResp>(), 32);
            let _restricted = restricted.then(|| restrict(session, raw)).transpose()?;
            session.judge(&mut call, answer).map(drop)
        }));
        let answer = if restricted { Answer::PERM } else { Answer::Ok };
        for (qkey, value, answer) in [("privileged", 1 << 31, answer), ("ordinary", 1 << 30, Answer::Ok)] {
            let title = name("ModifyQp", &format!("{qkey}-q_key"), rule, suffix);
            checks.push(Check::new(title, rule, answer, move |session| {
                session.needs_rxe_payloads()?;
                let mut qp = Qp::new(session, QpType::UD)?;
                qp.to(session, QpState::INIT)?;
                qp.request.qkey = value;
                let _restricted = restricted.then(|| restrict(session, raw)).transpose()?;
                qp.judge(session, QpState::INIT, QpAttrMask::STATE | QpAttrMask::QKEY, answer)
            }));
        }
    }
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

fn of_memlock(checks: &mut Vec<Check>) {
    let rule = Rule::Memlock;
    let nomem = Answer::errno(rustix::io::Errno::NOMEM);
    for (suffix, limit, pages, answer) in [
        ("below-the-limit", 4, 3, Answer::Ok),
        ("at-the-limit", 4, 4, Answer::Ok),
        ("above-the-limit", 4, 5, nomem),
        ("limit-0", 0, 1, Answer::PERM),
    ] {
        checks.push(Check::new(
            name("RegMr", "RLIMIT_MEMLOCK", rule, suffix),
            rule,
            answer,
            move |session| {
                let mut call = register(session, pages)?;
                let _restricted = restrict(session, Restriction::Memlock(limit * PAGE))?;
                judge_region(session, &mut call, answer)
            },
        ));
    }
    checks.push(Check::new(
        name("RegMr", "CAP_IPC_LOCK", rule, "above-the-limit"),
        rule,
        Answer::Ok,
        |session| {
            let mut call = register(session, 5)?;
            judge_region(session, &mut call, Answer::Ok)
        },
    ));
    checks.push(Check::new(name("RegMr", "RLIMIT_MEMLOCK", rule, "sum"), rule, nomem, move |session| {
        let _restricted = restrict(session, Restriction::Memlock(4 * PAGE))?;
        let mut first = register(session, 3)?;
        session.prepare(&mut first)?;
        session.note_new(ObjectClass::MR.0)?;
        let mut second = register(session, 2)?;
        judge_region(session, &mut second, nomem)
    }));
    checks.push(Check::new(
        name("RegMr", "RLIMIT_MEMLOCK", rule, "after-dereg"),
        rule,
        Answer::Ok,
        |session| {
            let _restricted = restrict(session, Restriction::Memlock(4 * PAGE))?;
            let mut first = register(session, 3)?;
            session.prepare(&mut first)?;
            let handle = first.u32_of(InvokeWrite::CORE_OUT.id());
            session.note_object(ObjectClass::MR.0, handle);
            if session.destroy(ObjectClass::MR.0, handle)? != Answer::Ok {
                return fail("the region can't be deregistered");
            }
            let mut second = register(session, 3)?;
            judge_region(session, &mut second, Answer::Ok)
        },
    ));
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

fn of_cgroups(checks: &mut Vec<Check>) {
    let rule = Rule::Cgroup;
    let objects = |limit| Restriction::Cgroup { handles: None, objects: Some(limit) };
    for class in COUNTED {
        for (suffix, limit, answer) in [
            ("at-the-limit", needed(class), Answer::Ok),
            ("above-the-limit", needed(class) - 1, Answer::AGAIN),
        ] {
            let title = name(&class.to_string(), "hca_object", rule, suffix);
            checks.push(Check::new(title, rule, answer, move |session| {
                session.needs_rxe_payloads()?;
                session.context()?;
                let _restricted = restrict(session, objects(limit))?;
                let got = last_answer(session, class)?;
                session
                    .compare(&format!("creation of {class} with hca_object={limit}"), answer, got)
                    .map(drop)
            }));
        }
    }
    for class in [ObjectClass::COMP_CHANNEL, ObjectClass::ASYNC_EVENT] {
        let title = name(&class.to_string(), "hca_object", rule, "not-counted");
        checks.push(Check::new(title, rule, Answer::Ok, move |session| {
            session.context()?;
            let _restricted = restrict(session, objects(0))?;
            let got = last_answer(session, class)?;
            session.compare(&format!("creation of {class} with hca_object=0"), Answer::Ok, got).map(drop)
        }));
    }
    checks.push(Check::new(
        name("Pd", "hca_object", rule, "after-destroy"),
        rule,
        Answer::Ok,
        move |session| {
            session.context()?;
            let _restricted = restrict(session, objects(1))?;
            let pd = session.pd()?;
            if session.destroy(ObjectClass::PD.0, pd)? != Answer::Ok {
                return fail("the PD can't be destroyed");
            }
            let got = last_answer(session, ObjectClass::PD)?;
            session.compare(&"creation of a PD after another was destroyed", Answer::Ok, got).map(drop)
        },
    ));
    checks.push(Check::new(
        name("Pd", "hca_object", rule, "after-failure"),
        rule,
        Answer::Ok,
        move |session| {
            session.needs_rxe_payloads()?;
            session.context()?;
            let _restricted = restrict(session, objects(1))?;
            // A CQ without entries is refused.
            let mut call = session.cq_call(0);
            if session.execute(&mut call) == Answer::Ok {
                return fail("the driver made a CQ without entries");
            }
            let got = last_answer(session, ObjectClass::PD)?;
            session.compare(&"creation of a PD after a failed creation", Answer::Ok, got).map(drop)
        },
    ));
    for (suffix, limit, answer) in [("at-the-limit", 1, Answer::Ok), ("above-the-limit", 0, Answer::AGAIN)] {
        let title = name("GetContext", "hca_handle", rule, suffix);
        checks.push(Check::new(title, rule, answer, move |session| {
            let restriction = Restriction::Cgroup { handles: Some(limit), objects: None };
            let _restricted = restrict(session, restriction)?;
            let mut call = Call::of(session.driver_id(), &GetContext::INFO);
            session.judge(&mut call, answer)?;
            if answer == Answer::Ok {
                session.note_context();
            }
            Ok(())
        }));
    }
}

fn of_namespaces(checks: &mut Vec<Check>) {
    let rule = Rule::Namespace;
    // The default mode shares devices between namespaces.
    checks.push(Check::new(name("open", "shared", rule, "other-namespace"), rule, Answer::Ok, |session| {
        let _restricted = restrict(session, Restriction::Namespace)?;
        let other = session.other();
        let got = if other.is_ok() { Answer::Ok } else { Answer::PERM };
        session.compare(&"open() of the device in another network namespace", Answer::Ok, got).map(drop)
    }));
    checks.push(Check::new(
        name("QpCreate", "shared", rule, "other-namespace"),
        rule,
        Answer::Ok,
        |session| {
            session.needs_rxe_payloads()?;
            let (pd, cq) = (session.pd()?, session.cq()?);
            let mut call = session.qp_call(QpType::RC, pd, cq);
            let _restricted = restrict(session, Restriction::Namespace)?;
            session.judge(&mut call, Answer::Ok)?;
            session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
            Ok(())
        },
    ));
}

/// Devices that are exclusive to their namespaces. The mode is that of the whole machine.
fn of_exclusive_namespaces(checks: &mut Vec<Check>) {
    let rule = Rule::ExclusiveNamespace;
    let hazard = "the device is out of reach of other namespaces while the check runs";
    let exclusive = Restriction::ExclusiveNamespace;
    let check =
        Check::new(name("open", "exclusive", rule, "other-namespace"), rule, Answer::PERM, move |session| {
            let _restricted = restrict(session, exclusive)?;
            let got = Answer::of(&session.target.open());
            session.compare(&"open() of the device in another network namespace", Answer::PERM, got).map(drop)
        });
    checks.push(check.hazardous(hazard));
    let title = name("AllocPd", "exclusive", rule, "opened-before");
    checks.push(
        Check::new(title, rule, Answer::Ok, move |session| {
            session.context()?;
            let number = write::AllocPd::INFO.number;
            let request = AllocPdReq::new_zeroed();
            let mut call = session.command(number, request.as_bytes(), size_of::<AllocPdResp>(), 0);
            let _restricted = restrict(session, exclusive)?;
            session.judge(&mut call, Answer::Ok)?;
            session.note_new(ObjectClass::PD.0)
        })
        .hazardous(hazard),
    );
    let title = name("nldev", "exclusive", rule, "other-namespace");
    checks.push(
        Check::new(title, rule, Answer::INVAL, move |session| {
            let _restricted = restrict(session, exclusive)?;
            super::nldev::judge_get(session, Answer::INVAL)
        })
        .hazardous(hazard),
    );
}

fn of_children(checks: &mut Vec<Check>) {
    let rule = Rule::Fork;
    checks.push(Check::new(name("InfoHandles", "ioctl", rule, "in-child"), rule, Answer::Ok, |session| {
        session.pd()?;
        let mut call = Call::of(session.driver_id(), &InfoHandles::INFO)
            .with(Slot::number(InfoHandles::OBJECT_ID.id(), ObjectClass::PD.0.into()))
            .with(Slot::output(InfoHandles::TOTAL_HANDLES.id(), 4))
            .with(Slot::output(InfoHandles::HANDLES_LIST.id(), 64));
        let got = session.execute_in_child(&mut call)?;
        session.compare(&call, Answer::Ok, got).map(drop)
    }));
    checks.push(Check::new(name("AllocPd", "ioctl", rule, "in-child"), rule, Answer::Ok, |session| {
        session.context()?;
        let request = AllocPdReq::new_zeroed();
        let number = write::AllocPd::INFO.number;
        let mut call = session.command(number, request.as_bytes(), size_of::<AllocPdResp>(), 0);
        let got = session.execute_in_child(&mut call)?;
        session.compare(&call, Answer::Ok, got)?;
        // The object belongs to the file, and outlives the child.
        session.note_new(ObjectClass::PD.0)?;
        match session.handles(ObjectClass::PD.0)? {
            Some(handles) if handles.len() == 1 => Ok(()),
            handles => fail(format!("the file has the PDs {handles:?}")),
        }
    }));
    let access = Answer::errno(rustix::io::Errno::ACCESS);
    // write() is refused where the credentials are not those of open().
    checks.push(Check::new(name("write", "write", rule, "in-child"), rule, access, move |session| {
        session.context()?;
        // DEALLOC_PD: 3 words.
        let mut command = 4_u32.to_ne_bytes().to_vec();
        command.extend(3_u16.to_ne_bytes());
        command.extend(0_u16.to_ne_bytes());
        command.extend(0x7fff_fff0_u32.to_ne_bytes());
        let got = session.write_in_child(&command)?;
        session.compare(&"write() of DEALLOC_PD in a forked child", access, got).map(drop)
    }));
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_capabilities(&mut checks);
    of_memlock(&mut checks);
    of_cgroups(&mut checks);
    of_namespaces(&mut checks);
    of_exclusive_namespaces(&mut checks);
    of_children(&mut checks);
    checks
}
