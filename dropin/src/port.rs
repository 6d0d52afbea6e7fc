//! Attributes of devices and ports, their GIDs and P_Keys.

use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use bareverbs::device::{AtomicCap, DeviceAttr, GidType, PciAtomicCaps, PciAtomicSizes, PortAttr};
use bareverbs::raw::uapi::uverbs::types::GidEntry;
use bareverbs::raw::uapi::uverbs::{QueryGidEntry, QueryGidTable};
use zerocopy::{Immutable, IntoBytes};

use crate::abi::device::{
    ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_gid_entry, ibv_odp_caps,
    ibv_packet_pacing_caps, ibv_pci_atomic_caps, ibv_port_attr, ibv_query_device_ex_input, ibv_rss_caps,
    ibv_tm_caps, ibv_tso_caps, ibv_values_ex, odp_transport_caps,
};
use crate::abi::gid::ibv_gid;
use crate::abi::values::IBV_VALUES_MASK_RAW_CLOCK;
use crate::context::{ContextArgument, ContextObject};
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNegative, callback, export, required};
use crate::device::text;

/// The bytes of `ibv_port_attr` that the exported `ibv_query_port` writes: those of the first ABI.
const FIRST_PORT_ATTR: usize = 48;

/// `enum ibv_gid_type_sysfs`, which only `ibv_query_gid_type` reports.
const IB_OR_ROCE_V1: u32 = 0;
const ROCE_V2: u32 = 1;

fn device_attr(attr: &DeviceAttr) -> ibv_device_attr {
    ibv_device_attr {
        fw_ver: text(&attr.fw_ver),
        node_guid: u64::from_ne_bytes(attr.node_guid.0),
        sys_image_guid: u64::from_ne_bytes(attr.sys_image_guid.0),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: attr.max_qp,
        max_qp_wr: attr.max_qp_wr,
        // The lower half; `ibv_device_attr_ex` has all flags.
        device_cap_flags: attr.device_cap_flags.bits() as u32,
        max_sge: attr.max_sge,
        max_sge_rd: attr.max_sge_rd,
        max_cq: attr.max_cq,
        max_cqe: attr.max_cqe,
        max_mr: attr.max_mr,
        max_pd: attr.max_pd,
        max_qp_rd_atom: attr.max_qp_rd_atom,
        max_ee_rd_atom: attr.max_ee_rd_atom,
        max_res_rd_atom: attr.max_res_rd_atom,
        max_qp_init_rd_atom: attr.max_qp_init_rd_atom,
        max_ee_init_rd_atom: attr.max_ee_init_rd_atom,
        atomic_cap: attr.atomic_cap.0,
        max_ee: attr.max_ee,
        max_rdd: attr.max_rdd,
        max_mw: attr.max_mw,
        max_raw_ipv6_qp: attr.max_raw_ipv6_qp,
        max_raw_ethy_qp: attr.max_raw_ethy_qp,
        max_mcast_grp: attr.max_mcast_grp,
        max_mcast_qp_attach: attr.max_mcast_qp_attach,
        max_total_mcast_qp_attach: attr.max_total_mcast_qp_attach,
        max_ah: attr.max_ah,
        max_fmr: attr.max_fmr,
        max_map_per_fmr: attr.max_map_per_fmr,
        max_srq: attr.max_srq,
        max_srq_wr: attr.max_srq_wr,
        max_srq_sge: attr.max_srq_sge,
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
        padding: 0,
    }
}

fn device_attr_ex(attr: &DeviceAttr, pci: PciAtomicCaps) -> ibv_device_attr_ex {
    let mut orig_attr = device_attr(attr);
    // Atomics of 8 bytes on the bus are atomic for the CPU.
    let is_global = pci.fetch_add.intersection(pci.compare_swap).contains(PciAtomicSizes::BYTES_8);
    if attr.atomic_cap == AtomicCap::HCA && is_global {
        orig_attr.atomic_cap = AtomicCap::GLOB.0;
    }
    ibv_device_attr_ex {
        orig_attr,
        comp_mask: 0,
        padding: 0,
        odp_caps: ibv_odp_caps {
            general_caps: attr.odp_general_caps.bits(),
            per_transport_caps: odp_transport_caps {
                rc_odp_caps: attr.rc_odp_caps.bits(),
                uc_odp_caps: attr.uc_odp_caps.bits(),
                ud_odp_caps: attr.ud_odp_caps.bits(),
            },
            padding: 0,
        },
        completion_timestamp_mask: attr.completion_timestamp_mask,
        hca_core_clock: attr.hca_core_clock,
        device_cap_flags_ex: attr.device_cap_flags.bits(),
        tso_caps: ibv_tso_caps { max_tso: attr.max_tso, supported_qpts: attr.tso_supported_qpts },
        rss_caps: ibv_rss_caps {
            supported_qpts: attr.rss_supported_qpts,
            max_rwq_indirection_tables: attr.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: attr.max_rwq_indirection_table_size,
            padding: 0,
            rx_hash_fields_mask: attr.rx_hash_fields_mask.bits(),
            rx_hash_function: attr.rx_hash_function.bits(),
            more_padding: [0; 7],
        },
        max_wq_type_rq: attr.max_wq_type_rq,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: attr.qp_rate_limit_min,
            qp_rate_limit_max: attr.qp_rate_limit_max,
            supported_qpts: attr.rate_limit_supported_qpts,
        },
        raw_packet_caps: attr.raw_packet_caps.bits(),
        tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: attr.tm_max_rndv_hdr_size,
            max_num_tags: attr.tm_max_num_tags,
            flags: attr.tm_flags.bits(),
            max_ops: attr.tm_max_ops,
            max_sge: attr.tm_max_sge,
        },
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: attr.max_cq_count,
            max_cq_period: attr.max_cq_period,
        },
        more_padding: 0,
        max_dm_size: attr.max_dm_size,
        pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: pci.fetch_add.bits(),
            swap: pci.swap.bits(),
            compare_swap: pci.compare_swap.bits(),
        },
        last_padding: 0,
        xrc_odp_caps: attr.xrc_odp_caps.bits(),
        phys_port_cnt_ex: attr.phys_port_cnt.into(),
    }
}

fn port_attr(attr: &PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state.0.into(),
        max_mtu: attr.max_mtu as u32,
        active_mtu: attr.active_mtu as u32,
        gid_tbl_len: attr.gid_tbl_len,
        port_cap_flags: attr.port_cap_flags.bits(),
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width.0,
        // The speeds that 8 bits lack are in `active_speed_ex` only.
        active_speed: u8::try_from(attr.active_speed.0).unwrap_or(0),
        phys_state: attr.phys_state.0,
        link_layer: attr.link_layer.0,
        flags: attr.flags.bits(),
        port_cap_flags2: attr.port_cap_flags2,
        padding: 0,
        active_speed_ex: attr.active_speed.0,
    }
}

/// Writes a struct of which the program knows `size` bytes: the rest of a longer one is zero. Its
/// padding is zero too, as in C: programs compare and hash such structs, and no bytes of the stack leak.
///
/// # Safety
///
/// `into` is valid for writes of `size` bytes.
pub(crate) unsafe fn write_known<T: IntoBytes + Immutable>(value: &T, into: *mut T, size: usize) {
    let bytes = value.as_bytes();
    // SAFETY: the caller's contract covers both. The struct has at least the copied bytes.
    unsafe {
        ptr::write_bytes(into.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), size.min(bytes.len()));
    }
}

fn query_port_known(
    context: ContextArgument<'_>,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> Result<(), Failure> {
    let found = port_attr(&context.required()?.context.query_port(port)?);
    if attr.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: the program has a struct of this size.
    unsafe { write_known(&found, attr, size) };
    Ok(())
}

/// One entry of a GID table. `ENODATA`: it is empty.
fn gid_entry(context: &ContextObject, port: u32, index: u32, flags: u32) -> Result<GidEntry, Failure> {
    let mut entry = GidEntry::zeroed();
    let raw = context.context.raw();
    let query = raw
        .query::<QueryGidEntry>()
        .constant(QueryGidEntry::PORT, port)
        .constant(QueryGidEntry::GID_INDEX, index)
        .flags(QueryGidEntry::FLAGS, flags)
        .output_struct(QueryGidEntry::RESP_ENTRY, &mut entry);
    query.execute()?;
    Ok(entry)
}

/// Whether an entry that could not be queried is an empty one.
fn is_empty(failure: Failure) -> bool {
    failure.errno() == libc::ENODATA
}

export! {
    fn ibv_query_device(
        context: ContextArgument<'_>,
        attr: Option<&mut MaybeUninit<ibv_device_attr>>,
    ) -> OrErrno {
        let found = device_attr(&context.required()?.of_process()?.query_device()?);
        required(attr)?.write(found);
        Ok(())
    }

    fn ibv_query_port(context: ContextArgument<'_>, port: u8, attr: *mut ibv_port_attr) -> OrErrno {
        query_port_known(context, port, attr, FIRST_PORT_ATTR)
    }

    /// An empty entry is a GID of zeros.
    fn ibv_query_gid(
        context: ContextArgument<'_>,
        port: u8,
        index: c_int,
        gid: Option<&mut MaybeUninit<ibv_gid>>,
    ) -> OrMinusOne {
        let (context, gid) = (context.required()?, required(gid)?);
        let index = u32::try_from(index).map_err(|_| Failure::INVALID)?;
        let found = match gid_entry(context, port.into(), index, 0) {
            Ok(entry) => gid_bytes(&entry),
            Err(failure) if is_empty(failure) => [0; 16],
            Err(failure) => return Err(failure),
        };
        gid.write(ibv_gid(found));
        Ok(0)
    }

    fn _ibv_query_gid_ex(
        context: ContextArgument<'_>,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        size: usize,
    ) -> OrErrno {
        let context = context.required()?;
        if entry.is_null() || size < size_of::<ibv_gid_entry>() {
            return Err(Failure::INVALID);
        }
        let found = c_entry(&gid_entry(context, port, index, flags)?);
        // SAFETY: the program has a struct of this size.
        unsafe { write_known(&found, entry, size) };
        Ok(())
    }

    /// Empty entries are left out. More than `max` others are `EINVAL`.
    fn _ibv_query_gid_table(
        context: ContextArgument<'_>,
        entries: *mut c_char,
        max: usize,
        flags: u32,
        size: usize,
    ) -> OrNegative {
        let context = context.required()?;
        let is_invalid = entries.is_null() || max == 0 || size < size_of::<ibv_gid_entry>();
        if is_invalid || max.checked_mul(size).is_none() {
            return Err(Failure::INVALID);
        }
        // An attribute of a call has at most 65,535 bytes.
        let mut found = vec![GidEntry::zeroed(); max.min(usize::from(u16::MAX) / size_of::<GidEntry>())];
        let mut count = 0;
        let raw = context.context.raw();
        let query = raw
            .query::<QueryGidTable>()
            .constant(QueryGidTable::ENTRY_SIZE, size_of::<GidEntry>() as u64)
            .flags(QueryGidTable::FLAGS, flags)
            .output_slice(QueryGidTable::RESP_ENTRIES, &mut found)
            .output(QueryGidTable::RESP_NUM_ENTRIES, &mut count);
        query.execute()?;
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(found.len());
        for (index, entry) in found[..count].iter().enumerate() {
            // SAFETY: the program has `max` structs of this size, and there are no more entries.
            unsafe { write_known(&c_entry(entry), entries.add(index * size).cast(), size) };
        }
        Ok(count)
    }

    /// In network byte order.
    fn ibv_query_pkey(
        context: ContextArgument<'_>,
        port: u8,
        index: c_int,
        pkey: Option<&mut u16>,
    ) -> OrMinusOne {
        let (context, pkey) = (context.required()?, required(pkey)?);
        let index = u16::try_from(index).map_err(|_| Failure::INVALID)?;
        *pkey = context.context.pkey(port, index)?.to_be();
        Ok(0)
    }

    /// `pkey` is in network byte order.
    fn ibv_get_pkey_index(context: ContextArgument<'_>, port: u8, pkey: u16) -> OrMinusOne {
        Ok(context.required()?.context.pkey_index(port, u16::from_be(pkey))?.into())
    }

    /// In units of 100 Mbit/s.
    fn ibv_query_port_speed(context: ContextArgument<'_>, port: u32, speed: Option<&mut u64>) -> OrErrno {
        let (context, speed) = (context.required()?, required(speed)?);
        let port = u8::try_from(port).map_err(|_| Failure::INVALID)?;
        *speed = context.context.port_speed(port)? / 100;
        Ok(())
    }
}

fn gid_bytes(entry: &GidEntry) -> [u8; 16] {
    entry.gid
}

fn c_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid(gid_bytes(entry)),
        gid_index: entry.gid_index,
        port_num: entry.port_num,
        gid_type: entry.gid_type.0,
        ndev_ifindex: entry.netdev_ifindex,
    }
}

callback! {
    /// `ibv_query_rt_values_ex`. The clock counts ticks, which C has in `tv_nsec`.
    fn query_rt_values(context: ContextArgument<'_>, values: Option<&mut ibv_values_ex>) -> OrErrno {
        let (context, values) = (&context.required()?.context, required(values)?);
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK.cast_unsigned() != 0 {
            return Err(Failure::INVALID);
        }
        if values.comp_mask != 0 {
            let ticks = context.raw_clock()?;
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks.cast_signed() };
        }
        Ok(())
    }

    /// `ibv_query_gid_type`. An empty entry has the type of InfiniBand and RoCE v1.
    fn query_gid_type(
        context: ContextArgument<'_>,
        port: u8,
        index: u32,
        gid_type: Option<&mut u32>,
    ) -> OrMinusOne {
        let (context, gid_type) = (context.required()?, required(gid_type)?);
        *gid_type = match gid_entry(context, port.into(), index, 0) {
            Ok(entry) if entry.gid_type == GidType::ROCE_V2 => ROCE_V2,
            Ok(_) => IB_OR_ROCE_V1,
            Err(failure) if is_empty(failure) => IB_OR_ROCE_V1,
            Err(failure) => return Err(failure),
        };
        Ok(0)
    }

    /// `ibv_query_device_ex` of programs whose struct has `size` bytes.
    fn query_device_ex(
        context: ContextArgument<'_>,
        input: Option<&ibv_query_device_ex_input>,
        attr: *mut ibv_device_attr_ex,
        size: usize,
    ) -> OrErrno {
        let is_valid = !attr.is_null() && size >= size_of::<ibv_device_attr>();
        if !is_valid || input.is_some_and(|input| input.comp_mask != 0) {
            return Err(Failure::INVALID);
        }
        let context = context.required()?.of_process()?;
        let found = device_attr_ex(&context.query_device()?, context.query_pci_atomic_caps()?);
        // SAFETY: the program has a struct of this size.
        unsafe { write_known(&found, attr, size) };
        Ok(())
    }

    /// `ibv_query_port` of programs whose struct has `size` bytes.
    fn query_port(
        context: ContextArgument<'_>,
        port: u8,
        attr: *mut ibv_port_attr,
        size: usize,
    ) -> OrErrno {
        query_port_known(context, port, attr, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_gets_as_much_of_a_struct_as_it_knows() {
        let value = 0x0807_0605_0403_0201_u64.to_le();
        // A byte that is not written stays 9.
        for (size, expected) in
            [(10, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 9, 9]), (3, [1, 2, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9])]
        {
            let mut bytes = [9_u8; 12];
            // SAFETY: there are as many bytes, which have any alignment.
            unsafe { write_known(&value, bytes.as_mut_ptr().cast(), size) };
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn atomics_are_those_of_the_cpu_if_the_bus_has_both() {
        let mut attr = bareverbs::Device::find("soft0").unwrap().open().unwrap().query_device().unwrap();
        attr.atomic_cap = AtomicCap::HCA;
        let of = |fetch_add, compare_swap| {
            let mut pci = PciAtomicCaps::default();
            (pci.fetch_add, pci.compare_swap) = (fetch_add, compare_swap);
            device_attr_ex(&attr, pci).orig_attr.atomic_cap
        };
        let (none, all) = (PciAtomicSizes::empty(), PciAtomicSizes::BYTES_8);
        assert_eq!(of(all, all), AtomicCap::GLOB.0);
        assert_eq!((of(all, none), of(none, all)), (AtomicCap::HCA.0, AtomicCap::HCA.0));
    }
}
