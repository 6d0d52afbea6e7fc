//! The write commands, by `INVOKE_WRITE` and by `write()` (`core/uverbs_main.c`).

use bareverbs_provider::Errno;
use bareverbs_uapi::method::{UHW_IN, UHW_OUT};
use bareverbs_uapi::rules::CommandRules;
use bareverbs_uapi::uverbs::{InvokeWrite, ObjectClass};
use bareverbs_uapi::write::structs::{
    CmdHdr, DestroyCqReq, DestroyQpReq, DestroyQpResp, DestroySrqReq, DestroySrqResp, ExCmdHdr,
};
use bareverbs_uapi::write::{self, EXTENDED, WriteCommand, ex};
use zerocopy::FromBytes;

use super::write_command::Command;
use super::{cq, device, memory, path, qp, srq};
use crate::call::{Call, Sink, Source};
use crate::call_faults::Method;
use crate::objects::{EventCounts, Transaction};

/// The numbers that fit the command word.
const NUMBER: u32 = 0xff;

/// Numbers of the kernel's tables end here: beyond them not even the header is checked.
const END: u32 = 41;
const END_EXTENDED: u32 = 58;

type Handler = fn(&mut Transaction<'_>, &mut Command<'_>) -> Result<(), Errno>;

macro_rules! commands {
    ($($command:ty => $handler:expr,)*) => {
        /// The handler of a command, with its rules.
        fn find(number: u32) -> Option<(CommandRules, Handler)> {
            $(if number == <$command as WriteCommand>::INFO.number {
                return Some((const { CommandRules::of::<$command>() }, $handler));
            })*
            None
        }
    };
}

commands! {
    write::PostSend => qp::post_send,
    write::ReqNotifyCq => cq::request_notification,
    write::GetContext => device::get_context_by_command,
    write::QueryDevice => device::query,
    ex::QueryDevice => device::query_extended,
    write::QueryPort => device::query_port_by_command,
    write::CreateCompChannel => device::create_comp_channel,
    write::AllocPd => memory::allocate_pd,
    write::DeallocPd => |txn, command| {
        destroy(txn, ObjectClass::PD, command.request::<write::structs::DeallocPdReq>()?.pd_handle).map(drop)
    },
    write::RegMr => memory::register_by_command,
    write::ReregMr => memory::reregister,
    write::DeregMr => |txn, command| {
        destroy(txn, ObjectClass::MR, command.request::<write::structs::DeregMrReq>()?.mr_handle).map(drop)
    },
    write::AllocMw => memory::allocate_window,
    write::DeallocMw => |txn, command| {
        destroy(txn, ObjectClass::MW, command.request::<write::structs::DeallocMwReq>()?.mw_handle).map(drop)
    },
    write::CreateAh => path::create_ah,
    write::DestroyAh => |txn, command| {
        destroy(txn, ObjectClass::AH, command.request::<write::structs::DestroyAhReq>()?.ah_handle).map(drop)
    },
    write::AttachMcast => path::attach,
    write::DetachMcast => path::detach,
    write::CreateCq => cq::create_by_command,
    ex::CreateCq => cq::create_extended,
    write::ResizeCq => cq::resize,
    write::DestroyCq => |txn, command| {
        let reported = destroy(txn, ObjectClass::CQ, command.request::<DestroyCqReq>()?.cq_handle)?;
        command.respond(&cq::reported(reported))
    },
    write::CreateSrq => srq::create_by_command,
    write::CreateXsrq => srq::create_of_type,
    write::ModifySrq => srq::modify,
    write::QuerySrq => srq::query,
    write::DestroySrq => |txn, command| {
        let reported = destroy(txn, ObjectClass::SRQ, command.request::<DestroySrqReq>()?.srq_handle)?;
        command.respond(&DestroySrqResp { events_reported: reported.asynchronous })
    },
    write::CreateQp => qp::create_by_command,
    ex::CreateQp => qp::create_extended,
    write::ModifyQp => qp::modify,
    ex::ModifyQp => qp::modify_extended,
    write::QueryQp => qp::query,
    write::DestroyQp => |txn, command| {
        let reported = destroy(txn, ObjectClass::QP, command.request::<DestroyQpReq>()?.qp_handle)?;
        command.respond(&DestroyQpResp { events_reported: reported.asynchronous })
    },
}

/// The commands that don't fail after the removal of the device.
const DESTRUCTIONS: [u32; 7] = [
    write::DeallocPd::INFO.number,
    write::DeregMr::INFO.number,
    write::DeallocMw::INFO.number,
    write::DestroyAh::INFO.number,
    write::DestroyCq::INFO.number,
    write::DestroySrq::INFO.number,
    write::DestroyQp::INFO.number,
];

fn destroy(txn: &mut Transaction<'_>, class: ObjectClass, handle: u32) -> Result<EventCounts, Errno> {
    txn.state.find(class, handle.into())?;
    txn.state.destroy(handle)
}

/// Checks the bits of a command number, and whether the kernel's tables reach it.
fn check_number(number: u32) -> Result<(), Errno> {
    if number & !(EXTENDED | NUMBER) != 0 {
        return Err(Errno::INVAL);
    }
    let end = if number & EXTENDED == 0 { END } else { END_EXTENDED };
    if number & NUMBER >= end { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

/// `INVOKE_WRITE`.
pub(super) fn invoke(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let number = call.constant(InvokeWrite::WRITE_CMD.id())? as u32;
    check_number(number)?;
    let (rules, handler) = find(number).ok_or(Errno::OPNOTSUPP)?;
    if txn.state.port.is_removed() && !DESTRUCTIONS.contains(&number) {
        return Err(Errno::IO);
    }
    txn.state.port.call_faults.call(|| Method::of_command(number))?;
    let mut command = Command {
        input: call.source(InvokeWrite::CORE_IN.id()),
        output: call.sink(InvokeWrite::CORE_OUT.id()),
        driver_input: call.source(UHW_IN),
        driver_output: call.sink(UHW_OUT),
        has_responded: false,
        by_ioctl: true,
    };
    let is_extended = number & EXTENDED != 0;
    let is_short = command.input.len() < rules.request_minimum || command.output.len < rules.response_minimum;
    if is_short && !is_extended {
        return Err(Errno::NOSPC);
    }
    handler(txn, &mut command)?;
    if command.has_responded {
        call.mark_written(InvokeWrite::CORE_OUT.id());
    }
    call.mark_written(UHW_OUT);
    Ok(())
}

/// `write()`.
pub(crate) fn write(txn: &mut Transaction<'_>, bytes: &[u8]) -> Result<(), Errno> {
    let (header, rest) = CmdHdr::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
    check_number(header.command)?;
    let known = find(header.command);
    let (mut command, handler) = match known {
        Some((rules, handler)) if header.command & EXTENDED != 0 => {
            (extended(&header, rules, rest)?, handler)
        }
        Some((rules, handler)) => (plain(&header, rules, bytes)?, handler),
        None if usize::from(header.in_words) * 4 != bytes.len() => return Err(Errno::INVAL),
        None => return Err(Errno::OPNOTSUPP),
    };
    if txn.state.port.is_removed() {
        return Err(Errno::IO);
    }
    txn.state.port.call_faults.call(|| Method::of_command(header.command))?;
    handler(txn, &mut command)
}

fn plain<'a>(header: &CmdHdr, rules: CommandRules, bytes: &'a [u8]) -> Result<Command<'a>, Errno> {
    if usize::from(header.in_words) * 4 != bytes.len() {
        return Err(Errno::INVAL);
    }
    let output = usize::from(header.out_words) * 4;
    let bytes = &bytes[size_of::<CmdHdr>()..];
    if bytes.len() < rules.request_minimum || output < rules.response_minimum {
        return Err(Errno::NOSPC);
    }
    let (input, driver_input) =
        if rules.has_driver_data { bytes.split_at(rules.request_minimum) } else { (bytes, &[][..]) };
    let mut command = Command {
        input: Source::Slice(input),
        output: Sink { address: 0, len: output },
        driver_input: Source::Slice(driver_input),
        driver_output: Sink::EMPTY,
        has_responded: false,
        by_ioctl: false,
    };
    if rules.has_response {
        // The request begins with the address of the response.
        let address = u64::read_from_prefix(input).map_err(|_| Errno::FAULT)?.0;
        command.output.address = address;
        if rules.has_driver_data {
            let at = rules.response_minimum;
            command.output.len = at;
            command.driver_output = Sink { address: address.wrapping_add(at as u64), len: output - at };
        }
    }
    Ok(command)
}

fn extended<'a>(header: &CmdHdr, rules: CommandRules, rest: &'a [u8]) -> Result<Command<'a>, Errno> {
    let (extension, bytes) = ExCmdHdr::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
    let words = |words: u16| usize::from(words) * 8;
    let (input, driver_input) = (words(header.in_words), words(extension.provider_in_words));
    let (output, driver_output) = (words(header.out_words), words(extension.provider_out_words));
    if input + driver_input != bytes.len() || extension.cmd_hdr_reserved != 0 {
        return Err(Errno::INVAL);
    }
    debug_assert!(rules.number & EXTENDED != 0);
    let address = extension.response;
    if (address == 0) != (output + driver_output == 0) {
        return Err(Errno::INVAL);
    }
    // The upper half is the kernel's.
    let end = address.checked_add((output + driver_output) as u64).ok_or(Errno::FAULT)?;
    if end > i64::MAX as u64 {
        return Err(Errno::FAULT);
    }
    let (input, driver_input) = bytes.split_at(input);
    Ok(Command {
        input: Source::Slice(input),
        output: Sink { address, len: output },
        driver_input: Source::Slice(driver_input),
        driver_output: Sink { address: address.wrapping_add(output as u64), len: driver_output },
        has_responded: false,
        by_ioctl: false,
    })
}
