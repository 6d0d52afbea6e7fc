//! Devices, ports and the clock.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use bareverbs::device::DriverId;
use bareverbs::raw::uapi::mlx5::verbs::PortInfo;
use bareverbs::raw::uapi::mlx5::{
    AllocUcontextResp, AllocUcontextRespMask, CLOCK_INFO_V1, ClockInfo, GetDataDirectSysfsPath, MmapCommand,
    MultiPacketSends, QueryDeviceFlags, QueryDeviceResp, QueryPort, attributes,
};
use bareverbs::raw::uapi::uverbs::QueryContext;
use bareverbs::raw::uapi::write;
use bareverbs::raw::uapi::write::structs::{ExQueryDevice, ExQueryDeviceResp};
use bareverbs::raw::{Mapping, Protection, RawContext};
use zerocopy::IntoBytes;

use super::hca_caps::{HcaCaps, LOG_MAX_RA_REQ_DC, LOG_MAX_RA_RES_DC, NUM_LAG_PORTS, group};
use super::{bytes_mut, context, export};
use crate::abi::device::ibv_context;
use crate::abi::mlx5::{
    mlx5dv_clock_info, mlx5dv_context, mlx5dv_context_attr, mlx5dv_cqe_comp_caps, mlx5dv_reg,
    mlx5dv_sw_parsing_caps,
};
use crate::abi::values::{
    MLX5DV_CONTEXT_FLAGS_BLUEFLAME, MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP, MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD,
    MLX5DV_CONTEXT_FLAGS_CQE_V1, MLX5DV_CONTEXT_FLAGS_DEVX, MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW,
    MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED, MLX5DV_CONTEXT_FLAGS_PACKET_BASED_CREDIT_MODE,
    MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS, MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE,
    MLX5DV_CONTEXT_MASK_CQE_COMPRESION, MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD, MLX5DV_CONTEXT_MASK_DC_ODP_CAPS,
    MLX5DV_CONTEXT_MASK_DCI_STREAMS, MLX5DV_CONTEXT_MASK_DYN_BFREGS, MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS,
    MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK, MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM,
    MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS, MLX5DV_CONTEXT_MASK_REG_C0, MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD,
    MLX5DV_CONTEXT_MASK_STRIDING_RQ, MLX5DV_CONTEXT_MASK_SWP, MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS,
    MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH,
};
use crate::context::{ContextArgument, ContextObject};
use crate::convention::{Failure, OrErrno, OrNull, Value, check_mask, required};
use crate::device::DeviceObject;
use crate::open;

/// The driver's response to the creation of the context.
pub(super) fn ucontext(raw: &RawContext) -> Result<AllocUcontextResp, Failure> {
    let mut resp = AllocUcontextResp::zeroed();
    let query = raw.query::<QueryContext>().output_struct(attributes::QueryContext::RESP_UCTX, &mut resp);
    query.execute()?;
    Ok(resp)
}

/// The driver's part of the device attributes.
pub(super) fn device_caps(raw: &RawContext) -> Result<QueryDeviceResp, Failure> {
    let request = ExQueryDevice::zeroed();
    let (mut response, mut driver) = (ExQueryDeviceResp::zeroed(), QueryDeviceResp::zeroed());
    let mut call = write::invoke::<write::ex::QueryDevice>(raw.driver_id(), &request, &mut response);
    call.driver_output(driver.as_mut_bytes());
    // SAFETY: the command writes to its outputs only, which have their full size.
    unsafe { raw.execute(&mut call) }?;
    Ok(driver)
}

/// Bytes of a page of the device.
const PAGE: usize = 4096;

/// Maps a page that the driver names by a command, and an index.
fn map(raw: &RawContext, command: MmapCommand, index: u8) -> Option<Mapping> {
    let offset = (u64::from(command.0) << 8 | u64::from(index)) * PAGE as u64;
    raw.map(offset, PAGE, Protection::Read).ok().filter(|mapping| mapping.len() >= PAGE)
}

/// The longest time between updates of the clock page in nanoseconds; `None` without the page.
fn clock_update_period(raw: &RawContext, ucontext: &AllocUcontextResp) -> Option<u64> {
    if ucontext.clock_info_versions >> CLOCK_INFO_V1 & 1 == 0 {
        return None;
    }
    let page = map(raw, MmapCommand::CLOCK_INFO, CLOCK_INFO_V1 as u8)?;
    // SAFETY: the struct lies in the page, aligned. The kernel writes the field by one store.
    Some(unsafe { page.as_ptr().add(offset_of!(ClockInfo, overflow_period)).cast::<u64>().read_volatile() })
}

/// The address of the device's clock, in a page that stays mapped as long as the context is open.
fn core_clock(object: &ContextObject, raw: &RawContext, ucontext: &AllocUcontextResp) -> Option<*mut c_void> {
    if !ucontext.comp_mask.contains(AllocUcontextRespMask::CORE_CLOCK_OFFSET) {
        return None;
    }
    let page = object.core_clock.get_or_init(|| map(raw, MmapCommand::CORE_CLOCK, 0)).as_ref()?;
    let offset = ucontext.hca_core_clock_offset as usize % PAGE;
    Some(page.as_ptr().as_ptr().wrapping_add(offset).cast())
}

/// The flags that are set.
fn flags<const N: usize>(all: [(bool, c_int); N]) -> u64 {
    all.into_iter()
        .filter(|(is_set, _)| *is_set)
        .fold(0, |bits, (_, flag)| bits | u64::from(flag.cast_unsigned()))
}

export! {
    fn mlx5dv_is_supported(device: Option<&DeviceObject>) -> Value<bool> {
        Ok(required(device)?.device.driver_id() == Some(DriverId::MLX5))
    }

    fn mlx5dv_open_device(
        device: Option<&'static DeviceObject>,
        attr: Option<&mlx5dv_context_attr>,
    ) -> OrNull<ibv_context> {
        let object = required(device)?;
        if object.device.driver_id() != Some(DriverId::MLX5) {
            return Err(Failure::UNSUPPORTED);
        }
        if let Some(attr) = attr {
            check_mask(attr.comp_mask, 0, Failure::UNSUPPORTED)?;
            check_mask(attr.flags.into(), MLX5DV_CONTEXT_FLAGS_DEVX.cast_unsigned().into(), Failure::INVALID)?;
        }
        // Contexts have DEVX where the device has it.
        let opened = object.device.open()?;
        if attr.is_some_and(|attr| attr.flags != 0) && !opened.capabilities().devx {
            return Err(Failure::UNSUPPORTED);
        }
        open::create(opened, object.reference(), None)
    }

    /// Returns the attributes that `comp_mask` asks for and this library knows. Its other bits are cleared.
    /// Those of features that this library refuses are 0, as of a device without them.
    fn mlx5dv_query_device(argument: ContextArgument<'_>, attr: *mut mlx5dv_context) -> OrErrno {
        let object = context(argument)?;
        let raw = object.context.raw();
        if attr.is_null() {
            return Err(Failure::INVALID);
        }
        let (ucontext, device) = (ucontext(&raw)?, device_caps(&raw)?);
        let has = |flag| device.flags.contains(flag);
        let sends = |flag| device.multi_pkt_send_wqes.contains(flag);
        let flags = flags([
            (ucontext.cqe_version > 0, MLX5DV_CONTEXT_FLAGS_CQE_V1),
            (sends(MultiPacketSends::ALLOW_MPW), MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED),
            (sends(MultiPacketSends::SUPPORT_EMPW), MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW),
            (has(QueryDeviceFlags::CQE_128B_COMP), MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP),
            (has(QueryDeviceFlags::CQE_128B_PAD), MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD),
            (
                has(QueryDeviceFlags::PACKET_BASED_CREDIT_MODE),
                MLX5DV_CONTEXT_FLAGS_PACKET_BASED_CREDIT_MODE,
            ),
            (
                ucontext.comp_mask.contains(AllocUcontextRespMask::REAL_TIME_TS),
                MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS,
            ),
            (ucontext.bf_reg_size > 0, MLX5DV_CONTEXT_FLAGS_BLUEFLAME),
        ]);
        let caps = device.cqe_comp_caps;
        let compression =
            mlx5dv_cqe_comp_caps { max_num: caps.max_num, supported_format: caps.supported_format.bits() };
        let caps = device.sw_parsing_caps;
        let parsing = mlx5dv_sw_parsing_caps {
            sw_parsing_offloads: caps.sw_parsing_offloads.bits(),
            supported_qpts: caps.supported_qpts,
        };
        let reg_c0 = mlx5dv_reg { value: device.reg_c0.value, mask: device.reg_c0.mask };
        let has_reg_c0 = reg_c0.mask != 0;
        let bit = |bit: c_int| u64::from(bit.cast_unsigned());
        let clock_bit = bit(MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE);
        let core_clock_bit = bit(MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK);
        let lag_bit = bit(MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS);
        // SAFETY: the program has the struct, and the fields of the bits that it sets.
        unsafe {
            let wanted = (*attr).comp_mask;
            let mut known = 0;
            let mut is_wanted = |bit: c_int, is_there: bool| {
                let bit = if is_there { u64::from(bit.cast_unsigned()) & wanted } else { 0 };
                known |= bit;
                bit != 0
            };
            if is_wanted(MLX5DV_CONTEXT_MASK_CQE_COMPRESION, true) {
                ptr::write(&raw mut (*attr).cqe_comp_caps, compression);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_SWP, true) {
                ptr::write(&raw mut (*attr).sw_parsing_caps, parsing);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS, true) {
                ptr::write(&raw mut (*attr).tunnel_offloads_caps, device.tunnel_offloads_caps.bits());
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_DYN_BFREGS, true) {
                ptr::write(&raw mut (*attr).max_dynamic_bfregs, ucontext.num_dyn_bfregs);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_STRIDING_RQ, true) {
                ptr::write_bytes(&raw mut (*attr).striding_rq_caps, 0, 1);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_DCI_STREAMS, true) {
                ptr::write_bytes(&raw mut (*attr).dci_streams_caps, 0, 1);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD, true) {
                ptr::write_bytes(&raw mut (*attr).sig_caps, 0, 1);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH, true) {
                ptr::write(&raw mut (*attr).max_wr_memcpy_length, 0);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD, true) {
                ptr::write_bytes(&raw mut (*attr).crypto_caps, 0, 1);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS, true) {
                ptr::write(&raw mut (*attr).flow_action_flags, ucontext.flow_action_flags.bits().into());
            }
            let period = if wanted & clock_bit != 0 { clock_update_period(&raw, &ucontext) } else { None };
            if is_wanted(MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE, period.is_some()) {
                ptr::write(&raw mut (*attr).max_clock_info_update_nsec, period.unwrap_or_default());
            }
            let clock = if wanted & core_clock_bit != 0 { core_clock(object, &raw, &ucontext) } else { None };
            if is_wanted(MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK, clock.is_some()) {
                ptr::write(&raw mut (*attr).hca_core_clock, clock.unwrap_or(ptr::null_mut()));
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_DC_ODP_CAPS, true) {
                let caps = HcaCaps::query(&raw, group::ODP).dc_odp_caps();
                ptr::write(&raw mut (*attr).dc_odp_caps, caps);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, true) {
                let caps = HcaCaps::query(&raw, group::GENERAL);
                let most = |log| 1 << caps.get(log);
                ptr::write(&raw mut (*attr).max_dc_rd_atom, most(LOG_MAX_RA_REQ_DC));
                ptr::write(&raw mut (*attr).max_dc_init_rd_atom, most(LOG_MAX_RA_RES_DC));
            }
            let ports = if wanted & lag_bit != 0 {
                HcaCaps::query(&raw, group::GENERAL).get(NUM_LAG_PORTS) as u8
            } else {
                0
            };
            if is_wanted(MLX5DV_CONTEXT_MASK_NUM_LAG_PORTS, ports != 0) {
                ptr::write(&raw mut (*attr).num_lag_ports, ports);
            }
            if is_wanted(MLX5DV_CONTEXT_MASK_REG_C0, has_reg_c0) {
                ptr::write(&raw mut (*attr).reg_c0, reg_c0);
            }
            ptr::write(&raw mut (*attr).version, 0);
            ptr::write(&raw mut (*attr).flags, flags);
            ptr::write(&raw mut (*attr).comp_mask, known);
        }
        Ok(())
    }

    fn mlx5dv_get_clock_info(argument: ContextArgument<'_>, info: Option<&mut mlx5dv_clock_info>) -> OrErrno {
        let (object, info) = (context(argument)?, required(info)?);
        let found = object.context.clock_info()?;
        *info = mlx5dv_clock_info {
            nsec: found.nsec,
            last_cycles: found.cycles,
            frac: found.frac,
            mult: found.mult,
            shift: found.shift,
            mask: found.mask,
        };
        Ok(())
    }

    /// Returns as much of the attributes as `length` has room for.
    fn _mlx5dv_query_port(
        argument: ContextArgument<'_>,
        port: u32,
        info: *mut c_void,
        length: usize,
    ) -> OrErrno {
        let raw = context(argument)?.context.raw();
        // SAFETY: the program has memory of this length.
        let into = unsafe { bytes_mut(info, length) }?;
        let mut found = PortInfo::zeroed();
        let query = raw.query::<QueryPort>().input(QueryPort::PORT_NUM, &port);
        query.output_struct(QueryPort::INFO, &mut found).execute()?;
        let found = found.as_bytes();
        let known = found.len().min(length);
        into[..known].copy_from_slice(&found[..known]);
        into[known..].fill(0);
        Ok(())
    }

    fn mlx5dv_get_data_direct_sysfs_path(
        argument: ContextArgument<'_>,
        path: *mut c_char,
        length: usize,
    ) -> OrErrno {
        let raw = context(argument)?.context.raw();
        // SAFETY: the program has memory of this length.
        let path = unsafe { bytes_mut(path.cast(), length) }?;
        let query = raw.query::<GetDataDirectSysfsPath>().output_slice(GetDataDirectSysfsPath::PATH, path);
        Ok(query.execute()?)
    }

    /// `bareverbs` takes the memory of a queue by parent domains only.
    fn mlx5dv_set_context_attr(argument: ContextArgument<'_>, _kind: u32, _attr: *const c_void) -> OrErrno {
        context(argument)?;
        Err(Failure::UNSUPPORTED)
    }
}
