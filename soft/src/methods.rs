//! The handlers of the ioctl methods. Those of write commands are in [`command`].

pub(crate) mod command;
mod cq;
mod device;
mod memory;
mod path;
mod qp;
mod srq;
mod state_table;
mod write_command;

use bareverbs_provider::Errno;
use bareverbs_uapi::uverbs::{
    AdviseMr, AsyncEventAlloc, CqCreate, CqDestroy, GetContext, InfoHandles, InvokeWrite, QpCreate,
    QpDestroy, QueryContext, QueryGidEntry, QueryGidTable, QueryMr, QueryPort, QueryPortSpeed, RegDmabufMr,
    RegMr, SrqCreate, SrqDestroy,
};
use bareverbs_uapi::write::structs::{DestroyQpResp, DestroySrqResp};
use zerocopy::IntoBytes;

use crate::call::{Call, is};
use crate::call_faults::Method;
use crate::objects::{EventCounts, Transaction};

/// Executes a call that passed the parser.
///
/// # Errors
///
/// The kernel's.
pub(crate) fn execute(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    txn.state.port.call_faults.call(|| Method::of_ioctl(call.method))?;
    if let Some(handle) = call.destroyed {
        let reported = txn.state.destroy(handle)?;
        return destroyed(call, reported);
    }
    let method = call.method;
    match method {
        _ if is::<InvokeWrite>(method) => command::invoke(txn, call),
        _ if is::<GetContext>(method) => device::get_context(txn, call),
        _ if is::<InfoHandles>(method) => device::info_handles(txn, call),
        _ if is::<QueryPort>(method) => device::query_port(txn, call),
        _ if is::<QueryGidTable>(method) => device::query_gid_table(txn, call),
        _ if is::<QueryGidEntry>(method) => device::query_gid_entry(txn, call),
        _ if is::<QueryContext>(method) || is::<QueryPortSpeed>(method) => {
            txn.state.need_context()?;
            Err(Errno::OPNOTSUPP)
        }
        // Its descriptor is the whole result.
        _ if is::<AsyncEventAlloc>(method) => Ok(()),
        _ if is::<RegMr>(method) => memory::register(txn, call),
        _ if is::<QueryMr>(method) => memory::query(txn, call),
        // There is no on-demand paging, and no dma-buf.
        _ if is::<AdviseMr>(method) || is::<RegDmabufMr>(method) => Err(Errno::OPNOTSUPP),
        _ if is::<CqCreate>(method) => cq::create(txn, call),
        _ if is::<QpCreate>(method) => qp::create(txn, call),
        _ if is::<SrqCreate>(method) => srq::create(txn, call),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Reports the events of a destroyed object.
fn destroyed(call: &mut Call<'_>, reported: EventCounts) -> Result<(), Errno> {
    let method = call.method;
    let events_reported = reported.asynchronous;
    if is::<CqDestroy>(method) {
        call.write(CqDestroy::RESP.id(), cq::reported(reported).as_bytes())
    } else if is::<QpDestroy>(method) {
        call.write(QpDestroy::RESP.id(), DestroyQpResp { events_reported }.as_bytes())
    } else if is::<SrqDestroy>(method) {
        call.write(SrqDestroy::RESP.id(), DestroySrqResp { events_reported }.as_bytes())
    } else {
        Ok(())
    }
}
