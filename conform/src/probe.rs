//! The series of a kernel, found by calls and not by its version number.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::{Method, MethodInfo};
use bareverbs_uapi::uverbs::{GetContext, QueryCompCntrCaps};
use bareverbs_uapi::write::{self, WriteCommand, structs::RegMrResp};
use zerocopy::IntoBytes;

use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::generate::alone;
use crate::session::Session;
use crate::step::{Step, fail};
use crate::target::Target;

/// Whether the kernel has a method, which a call with a wrong attribute shows.
fn has(session: &mut Session<'_>, method: &'static MethodInfo) -> bool {
    method.attributes.first().is_some_and(|first| alone::is_known(session, method, first.id))
}

/// Flag of remote flush with global visibility, which kernels know since 6.12.
const FLUSH_GLOBAL: u32 = 1 << 8;

/// The newest checked series that the kernel is at least.
pub(crate) fn series(target: &dyn Target) -> Step<Since> {
    let mut session = Session::open(target, Since::V6_1)?;
    // GET_CONTEXT has the attribute FD_ARR since 7.2. Its length of 0 is invalid.
    let mut call =
        Call::of(target.driver_id(), &GetContext::INFO).with(Slot::input(GetContext::FD_ARR.id(), &[]));
    match session.execute(&mut call) {
        Answer::INVAL if has(&mut session, &QueryCompCntrCaps::INFO) => return Ok(Since::V7_3),
        Answer::INVAL => return Ok(Since::V7_2),
        Answer::PROTONOSUPPORT => {}
        got => return fail(format!("GET_CONTEXT with an empty FD_ARR: {got}")),
    }
    if let Some((method, id)) = alone::since_6_12(target.driver_id()) {
        // A known attribute has no reserved bytes.
        let mut slot = Slot::word(id, 0);
        slot.raw.attr_data = 0xffff;
        let known = session.execute(&mut Call::of(target.driver_id(), method).with(slot));
        return Ok(if known == Answer::PROTONOSUPPORT { Since::V6_1 } else { Since::V6_12 });
    }
    let pd = session.pd()?;
    let request = session.mr_request(pd, FLUSH_GLOBAL | 1);
    let mut call = session.command(write::RegMr::INFO.number, request.as_bytes(), size_of::<RegMrResp>(), 0);
    // A kernel that knows the flag may still refuse it for the device, with another error.
    Ok(if session.execute(&mut call) == Answer::INVAL { Since::V6_1 } else { Since::V6_12 })
}
