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

use crate::call::Call;
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
        _ if method.is::<InvokeWrite>() => command::invoke(txn, call),
        _ if method.is::<GetContext>() => device::get_context(txn, call),
        _ if method.is::<InfoHandles>() => device::info_handles(txn, call),
        _ if method.is::<QueryPort>() => device::query_port(txn, call),
        _ if method.is::<QueryGidTable>() => device::query_gid_table(txn, call),
        _ if method.is::<QueryGidEntry>() => device::query_gid_entry(txn, call),
        _ if method.is::<QueryContext>() || method.is::<QueryPortSpeed>() => {
            txn.state.need_context()?;
            Err(Errno::OPNOTSUPP)
        }
        // Its descriptor is the whole result.
        _ if method.is::<AsyncEventAlloc>() => Ok(()),
        _ if method.is::<RegMr>() => memory::register(txn, call),
        _ if method.is::<QueryMr>() => memory::query(txn, call),
        // There is no on-demand paging, and no dma-buf.
        _ if method.is::<AdviseMr>() || method.is::<RegDmabufMr>() => Err(Errno::OPNOTSUPP),
        _ if method.is::<CqCreate>() => cq::create(txn, call),
        _ if method.is::<QpCreate>() => qp::create(txn, call),
        _ if method.is::<SrqCreate>() => srq::create(txn, call),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Reports the events of a destroyed object.
fn destroyed(call: &mut Call<'_>, reported: EventCounts) -> Result<(), Errno> {
    let method = call.method;
    let events_reported = reported.asynchronous;
    if method.is::<CqDestroy>() {
        call.write(CqDestroy::RESP.id(), cq::reported(reported).as_bytes())
    } else if method.is::<QpDestroy>() {
        call.write(QpDestroy::RESP.id(), DestroyQpResp { events_reported }.as_bytes())
    } else if method.is::<SrqDestroy>() {
        call.write(SrqDestroy::RESP.id(), DestroySrqResp { events_reported }.as_bytes())
    } else {
        Ok(())
    }
}
