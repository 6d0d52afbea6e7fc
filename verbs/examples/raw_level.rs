//! The raw level: methods of the kernel's ABI with any attributes, adopted handles, and the rings of
//! a queue pair in memory.
//!
//! `cargo run --example raw_level` runs it on a machine with any RDMA device; with `--features
//! soft` and `-- -d soft0` on any machine.

#[path = "common/device.rs"]
mod device;

use std::io;

use bareverbs::ah::AhAttr;
use bareverbs::cq::CqInit;
use bareverbs::qp::{InitAttr, Qp, QpInit, Rc, RtrAttr, RtsAttr, SendFlags};
use bareverbs::raw::uapi::method::Method;
use bareverbs::raw::uapi::uverbs::{QueryMr, object};
use bareverbs::raw::uapi::write;
use bareverbs::raw::uapi::write::structs::{AllocPdReq, AllocPdResp};
use bareverbs::raw::uapi::write::{AllocPd, WriteCommand};
use bareverbs::raw::{DoorbellLayout, QueueLayout, RawContext, RawObject, UntypedCall};
use bareverbs::{Access, Buffer, Context, Pd, Report};
use clap::Parser;
use device::DeviceOption;

type Result<T> = std::result::Result<T, Report>;

const GREETING: &[u8] = b"hello, ring";

fn main() -> Result<()> {
    run(&DeviceOption::parse().open()?)
}

pub(crate) fn run(context: &Context) -> Result<()> {
    let pd = adopted_pd(context)?;
    let mr = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
    call_by_types(&context.raw(), mr.handle(), mr.lkey())?;
    call_by_numbers(&context.raw(), mr.handle(), mr.lkey())?;
    drop(mr);
    read_a_ring(&pd)?;
    destroy_by_handle(context, pd)
}

/// Creates a PD by a raw command, and adopts its handle. Drop deallocates the PD.
fn adopted_pd(context: &Context) -> Result<Pd> {
    let raw = context.raw();
    let (request, mut response) = (AllocPdReq::zeroed(), AllocPdResp::zeroed());
    let mut call = write::invoke::<AllocPd>(raw.driver_id(), &request, &mut response);
    // mlx5 returns the number of the PD here, rxe nothing.
    let mut driver = [0; 8];
    call.driver_output(&mut driver);
    // SAFETY: the command only creates an object, and writes its two responses.
    unsafe { raw.execute(&mut call) }?;
    println!("PD {} was allocated by {}", response.pd_handle, AllocPd::INFO.c);
    // SAFETY: the command has created the PD, and nothing else has its handle.
    Ok(unsafe { Pd::from_handle(context, response.pd_handle) })
}

/// A method with typed attributes. It only queries, so it needs no `unsafe`.
fn call_by_types(raw: &RawContext, mr: u32, expected: u32) -> Result<()> {
    let (mut lkey, mut rkey, mut length, mut iova) = (0, 0, 0, 0);
    raw.query::<QueryMr>()
        .handle(QueryMr::HANDLE, mr)
        .output(QueryMr::RESP_LKEY, &mut lkey)
        .output(QueryMr::RESP_RKEY, &mut rkey)
        .output(QueryMr::RESP_LENGTH, &mut length)
        .output(QueryMr::RESP_IOVA, &mut iova)
        .execute()?;
    println!("MR {mr}: lkey {lkey:#x}, rkey {rkey:#x}, {length} bytes");
    assert_eq!((lkey, length), (expected, 4096));
    Ok(())
}

/// The same method with ids and lengths as numbers, and an attribute that the kernel does not know.
fn call_by_numbers(raw: &RawContext, mr: u32, expected: u32) -> Result<()> {
    let mut call = UntypedCall::minimal(raw.driver_id(), &QueryMr::INFO, mr);
    call.input(0x77, b"unknown");
    // SAFETY: the method writes only to its outputs, which are buffers of the call.
    let refused = unsafe { raw.execute_untyped(&mut call) };
    println!("{call}: {refused:?}");
    refused.expect_err("an unknown attribute that is mandatory is refused");

    let mut call = UntypedCall::minimal(raw.driver_id(), &QueryMr::INFO, mr);
    // SAFETY: as above.
    unsafe { raw.execute_untyped(&mut call) }?;
    assert_eq!(call.answer(QueryMr::RESP_LKEY.id()), Some(&expected.to_ne_bytes()[..]));
    println!("{} methods can be called on this device", raw.methods().count());
    Ok(())
}

/// Sends to itself, and reads the request where the kernel or the device reads it.
fn read_a_ring(pd: &Pd) -> Result<()> {
    let context = pd.context();
    let mut cq = context.create_cq(&CqInit::new(16))?;
    let mut init = QpInit::new(&cq, &cq);
    init.cap.max_inline_data = 64;
    let mut qp: Qp<Rc> = pd.create_qp(&init)?;
    let (gid, lid) = (context.default_gid(1)?, context.query_port(1)?.lid);
    let itself = AhAttr { dlid: lid, ..AhAttr::global(1, gid.gid, gid.index) };
    let (rtr, rts) = (RtrAttr::new(itself, qp.qp_num()), RtsAttr::default());
    qp.bring_up(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) }, &rtr, &rts)?;
    let target = pd.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    let before = qp.layout().send.ok_or_else(|| io::Error::other("the queue has no ring in memory"))?;
    let mut batch = qp.start_send();
    batch.write_inline(1, target.remote(0)?, GREETING, SendFlags::SIGNALED)?;
    batch.ring()?;
    println!("request in slot {} of {} at {:?}", before.index & before.mask(), before.slots, before.ring);
    assert!(slots(&before).windows(GREETING.len()).any(|bytes| bytes == GREETING), "not in the ring");
    match before.doorbell {
        DoorbellLayout::Indices { producer, consumer } => println!("indices at {producer:?}, {consumer:?}"),
        DoorbellLayout::Record { record, register } => {
            println!("doorbell record at {record:?}, {register:?}");
        }
        other => println!("{other:?}"),
    }
    let completion = loop {
        if let Some(completion) = cq.poll_one() {
            break completion;
        }
    };
    Ok(completion.check()?)
}

/// The bytes of the next slots of a queue, up to the end of the ring.
fn slots(layout: &QueueLayout) -> Vec<u8> {
    let stride = layout.stride as usize;
    let start = (layout.index & layout.mask()) as usize * stride;
    let end = layout.slots as usize * stride;
    // SAFETY: the bytes are within the ring, and the queue exists. The device or the kernel may write
    // them at the same time, so they are read one by one, and volatile.
    (start..end).map(|at| unsafe { layout.ring.as_ptr().add(at).read_volatile() }).collect()
}

/// Releases the handle of a PD, and destroys the PD by its class.
fn destroy_by_handle(context: &Context, pd: Pd) -> Result<()> {
    let handle = pd.into_handle();
    // SAFETY: the handle was released, and nothing else has it.
    let object = unsafe { RawObject::of::<object::Pd>(&context.raw(), handle) };
    object.destroy()?;
    println!("PD {handle} was destroyed");
    Ok(())
}
