//! DEVX: commands of the firmware, which the kernel passes on.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use bareverbs::cq::CqInit;
use bareverbs::qp::{QpInit, Rc};
use bareverbs::raw::uapi::mlx5::{
    DevxAsyncCmdFdAlloc, DevxObj, DevxObjAsyncQuery, DevxObjCreate, DevxObjQuery, DevxOther, DevxUmem,
    DevxUmemReg,
};
use bareverbs::raw::{RawContext, RawObject};
use bareverbs::{Access, Errno};
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

/// Opcodes (`MLX5_CMD_OP_*`).
mod opcode {
    pub(super) const QUERY_HCA_CAP: u16 = 0x100;
    pub(super) const QUERY_QP: u16 = 0x50b;
    pub(super) const ALLOC_Q_COUNTER: u16 = 0x771;
    pub(super) const QUERY_Q_COUNTER: u16 = 0x773;
    pub(super) const ENABLE_HCA: u16 = 0x104;
}

fn command<const N: usize>(opcode: u16, number: u32) -> [u8; N] {
    let mut command = [0; N];
    command[..2].copy_from_slice(&opcode.to_be_bytes());
    command[8..12].copy_from_slice(&number.to_be_bytes());
    command
}

fn execute(raw: &RawContext, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
    let mut call = raw.call::<DevxOther>();
    call.input_slice(DevxOther::CMD_IN, input).output_slice(DevxOther::CMD_OUT, output);
    // SAFETY: the buffers exist during the call, and the commands of these tests change nothing.
    unsafe { raw.execute(&mut call) }
}

fn create(raw: &RawContext, input: &[u8], output: &mut [u8]) -> Result<RawObject, Errno> {
    let mut call = raw.call::<DevxObjCreate>();
    call.make(DevxObjCreate::HANDLE);
    call.input_slice(DevxObjCreate::CMD_IN, input).output_slice(DevxObjCreate::CMD_OUT, output);
    // SAFETY: the buffers exist during the call, and the object has no memory.
    unsafe { raw.execute(&mut call) }?;
    // SAFETY: the call created the object, and nothing else has its handle.
    Ok(unsafe { RawObject::of::<DevxObj>(raw, call.made(DevxObjCreate::HANDLE)) })
}

fn query(raw: &RawContext, handle: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
    let mut call = raw.call::<DevxObjQuery>();
    call.handle(DevxObjQuery::HANDLE, handle);
    call.input_slice(DevxObjQuery::CMD_IN, input).output_slice(DevxObjQuery::CMD_OUT, output);
    // SAFETY: the buffers exist during the call, and a query changes nothing.
    unsafe { raw.execute(&mut call) }
}

#[kernel_test(device::connectx)]
fn firmware_executes_commands_of_a_devx_context() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        assert!(context.capabilities().devx);
        let raw = context.raw();

        // Capabilities: the port has the link layer that the context reports.
        let mut caps = [0; 0x1010];
        let mut input: [u8; 16] = command(opcode::QUERY_HCA_CAP, 0);
        input[7] = 1;
        execute(&raw, &input, &mut caps).unwrap();
        let (ports, log_uctx) = (caps[0x10 + 0x1b8 / 8], caps[0x10 + 0x460 / 8] & 0x1f);
        assert_eq!((ports, log_uctx > 0), (1, true));
        // A command that is none of a program.
        let disabled: [u8; 16] = command(opcode::ENABLE_HCA, 0);
        assert_eq!(execute(&raw, &disabled, &mut [0; 16]), Err(Errno::INVAL));

        // An object of the firmware.
        let mut output = [0; 16];
        let counter = create(&raw, &command::<16>(opcode::ALLOC_Q_COUNTER, 0), &mut output).unwrap();
        let mut input: [u8; 0x20] = command(opcode::QUERY_Q_COUNTER, 0);
        input[0x1f] = output[11];
        let mut counters = [0xff; 0x100];
        query(&raw, counter.handle(), &input, &mut counters).unwrap();
        assert_eq!(counters, [0; 0x100]);
        // A number that is none of the object.
        let mut other = input;
        other[0x1f] = !output[11];
        assert_eq!(query(&raw, counter.handle(), &other, &mut counters), Err(Errno::INVAL));

        // The same query, whose response comes by a descriptor.
        let mut call = raw.call::<DevxAsyncCmdFdAlloc>();
        call.make_descriptor(DevxAsyncCmdFdAlloc::HANDLE);
        // SAFETY: the call only creates a descriptor, which nothing else has.
        let mut responses = unsafe {
            raw.execute(&mut call).unwrap();
            File::from_raw_fd(call.made_descriptor(DevxAsyncCmdFdAlloc::HANDLE))
        };
        let id = 7_u64;
        let mut call = raw.call::<DevxObjAsyncQuery>();
        call.handle(DevxObjAsyncQuery::HANDLE, counter.handle());
        call.input_slice(DevxObjAsyncQuery::CMD_IN, &input);
        call.constant(DevxObjAsyncQuery::OUT_LEN, 0x100_u16).input(DevxObjAsyncQuery::WR_ID, &id);
        call.descriptor(DevxObjAsyncQuery::FD, responses.as_raw_fd());
        // SAFETY: the buffer exists during the call, and a query changes nothing.
        unsafe { raw.execute(&mut call) }.unwrap();
        let mut response = [0xff; 0x108];
        responses.read_exact(&mut response).unwrap();
        assert_eq!((&response[..8], &response[8..]), (&id.to_ne_bytes()[..], &[0; 0x100][..]));
        drop(responses);
        counter.destroy().unwrap();

        // The firmware's object behind a QP.
        let cq = context.create_cq(&CqInit::new(1)).unwrap();
        let qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
        let mut found = [0; 0x110];
        query(&raw, qp.handle(), &command::<16>(opcode::QUERY_QP, qp.qp_num()), &mut found).unwrap();
        assert_eq!(found[0x18] >> 4, 0, "the state RESET");
    });
}

#[kernel_test(device::connectx)]
fn firmware_knows_registered_user_memory() {
    const LENGTH: u64 = 0x3000;
    nothing_leaks(|| {
        let context = device::open();
        let raw = context.raw();
        let memory = vec![0_u8; LENGTH as usize];
        let addr = memory.as_ptr().expose_provenance() as u64;
        let register = |length: u64| {
            let mut id = 0;
            let mut call = raw.call::<DevxUmemReg>();
            call.make(DevxUmemReg::HANDLE).input(DevxUmemReg::ADDR, &addr).input(DevxUmemReg::LEN, &length);
            call.flags(DevxUmemReg::ACCESS, Access::LOCAL_WRITE).output(DevxUmemReg::OUT_ID, &mut id);
            // SAFETY: the memory exists longer than its registration, and no command names it.
            unsafe { raw.execute(&mut call) }?;
            // SAFETY: the call created the object, and nothing else has its handle.
            Ok::<_, Errno>((unsafe { RawObject::of::<DevxUmem>(&raw, call.made(DevxUmemReg::HANDLE)) }, id))
        };
        let (first, second) = (register(LENGTH).unwrap(), register(64).unwrap());
        assert!(first.1 != 0 && second.1 != 0 && first.1 != second.1);
        assert!(register(0).is_err());
        first.0.destroy().unwrap();
        second.0.destroy().unwrap();
    });
}
