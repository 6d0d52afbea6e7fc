//! Values of fields and attributes that a device is likely to accept.

use bareverbs_uapi::abi::{FieldInfo, FieldKind, StructInfo};

use super::memory::LENGTH;
use super::program::Choices;

/// What the values of a call depend on.
#[derive(Clone, Copy)]
pub(super) struct Environment {
    /// The address of the memory for calls.
    pub(super) memory: u64,
    /// A GID of the port, for paths to the port itself.
    pub(super) gid: [u8; 16],
}

/// Values by the name of a field or attribute, the usual one first. `Owner.name` precedes `name`.
const VALUES: &[(&str, &[u64])] = &[
    ("cqe", &[16, 1, 2, 64, 1000]),
    ("comp_channel", &[0xffff_ffff]),
    ("max_send_wr", &[4, 1, 16, 64]),
    ("max_recv_wr", &[4, 1, 16, 64]),
    ("max_wr", &[4, 1, 16, 64]),
    ("max_send_sge", &[1, 2, 4]),
    ("max_recv_sge", &[1, 2, 4]),
    ("max_sge", &[1, 2, 4]),
    ("max_inline_data", &[0, 16, 64]),
    ("QpCreate.type", &[2, 3, 4, 8, 9, 10, 0xff]),
    ("qp_type", &[2, 3, 4, 8, 9, 10, 0xff]),
    ("srq_type", &[0, 1, 2]),
    ("mw_type", &[1, 2]),
    ("port", &[1]),
    ("port_num", &[1]),
    ("port_index", &[1]),
    ("ib_port", &[1]),
    ("gid_index", &[0, 1, 2]),
    ("entry_size", &[32]),
    ("length", &[4096, 1, 64, 8192, 65536]),
    ("len", &[4096, 64, 65536]),
    ("buffer_length", &[4096, 8192]),
    ("access_flags", &[1, 0, 7, 15, 0x41]),
    ("qp_access_flags", &[0, 7, 15]),
    ("access", &[1, 0, 7]),
    ("alignment", &[0, 3, 6]),
    ("is_global", &[1]),
    ("hop_limit", &[64, 1]),
    ("ModifySrqReq.attr_mask", &[2, 1, 3]),
    ("ExModifyCq.attr_mask", &[1]),
    ("ExModifyWq.attr_mask", &[1, 3, 4]),
    ("wq_state", &[1, 0, 2]),
    ("path_mtu", &[3, 1, 5]),
    ("dest_qp_num", &[17, 1, 2]),
    ("max_rd_atomic", &[1, 0, 16]),
    ("max_dest_rd_atomic", &[1, 0, 16]),
    ("min_rnr_timer", &[12]),
    ("timeout", &[14]),
    ("retry_cnt", &[7]),
    ("rnr_retry", &[6]),
    ("ReregMrReq.flags", &[2, 4, 1, 6]),
    ("wqe_size", &[128, 16]),
    ("oflags", &[0o100]),
    ("OpenXrcdReq.fd", &[0xffff_ffff]),
    ("log_ind_tbl_size", &[0, 1]),
    // The parts of mlx5.
    ("total_num_bfregs", &[16]),
    ("num_low_latency_bfregs", &[4]),
    ("AllocUcontextReqV2.flags", &[0, 1]),
    ("max_cqe_version", &[1, 0]),
    ("lib_caps", &[1, 0, 3]),
    ("cqe_size", &[64, 128]),
    ("sq_wqe_count", &[16, 64]),
    ("rq_wqe_count", &[4, 16]),
    ("rq_wqe_shift", &[4, 6]),
    ("uidx", &[0xff_ffff, 1]),
    ("user_index", &[0xff_ffff, 1]),
    ("match_criteria", &[0, 1]),
    ("pgsz_bitmap", &[0x1000]),
    ("out_len", &[16, 64]),
    ("type_num_list", &[0]),
    ("FlowAttr.type", &[0]),
    ("size", &[16]),
];

/// Fields with an address.
const ADDRESSES: &[&str] =
    &["start", "hca_va", "addr", "iova", "buffer_va", "buf_addr", "db_addr", "sq_buf_addr", "va"];

/// Masks of QP attributes with the state that each leads to.
const TRANSITIONS: [(u64, u64); 12] = [
    // INIT of RC and UC, RTR and RTS of RC.
    (0x39, 1),
    (0x12_9181, 2),
    (0x1_2e01, 3),
    // RTR and RTS of UC.
    (0x10_1181, 2),
    (0x1_0001, 3),
    // INIT and RTR of UD; RTS is that of UC.
    (0x71, 1),
    (0x1, 2),
    // RESET, SQD, ERR.
    (0x1, 0),
    (0x1, 4),
    (0x1, 6),
    // Changes without a transition.
    (0x8, 0),
    (0x8000, 0),
];

/// A mask of QP attributes, and a state.
pub(super) fn transition(choices: &mut Choices<'_>) -> (u64, u64) {
    let index = usize::from(choices.next()) % TRANSITIONS.len();
    let (mask, state) = TRANSITIONS[index];
    let state = if choices.rarely(1) { choices.next().into() } else { state };
    (mask, state)
}

/// Extreme values of fields of up to 4 bytes.
const EXTREMES: [u64; 14] =
    [0, 1, 2, 7, 255, 256, 4095, 4096, 0xffff, 0x1_0000, 0x00ff_ffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// An extreme value. Values of 8 bytes are not an address of this process's memory, except the memory of
/// calls: the kernel may write to the address in such a field.
pub(super) fn extreme(size: usize, choice: u8, environment: &Environment) -> u64 {
    let index = usize::from(choice);
    if size < 8 {
        return EXTREMES[index % EXTREMES.len()];
    }
    let last = environment.memory + LENGTH as u64;
    let wide = [
        0,
        1,
        0x10,
        0xfff,
        environment.memory,
        environment.memory + 1,
        last - 1,
        last - 4096,
        1 << 63,
        0xffff_8000_0000_0000,
        u64::MAX - 4095,
        u64::MAX,
    ];
    wide[index % wide.len()]
}

/// Whether a number can't be the address of memory that belongs to other parts of this process: it is
/// below `vm.mmap_min_addr`, not an address of user space, or in the memory of calls.
pub(super) fn is_confined(number: u64, environment: &Environment) -> bool {
    let within = environment.memory..environment.memory + LENGTH as u64;
    number < 0x1000 || number >> 47 != 0 || within.contains(&number)
}

/// A value for a field or attribute of this name.
pub(super) fn plausible(
    owner: &str,
    name: &str,
    kind: Option<FieldKind>,
    choices: &mut Choices<'_>,
    environment: &Environment,
) -> u64 {
    let name = name.to_lowercase();
    if ADDRESSES.contains(&name.as_str()) {
        let page = u64::from(choices.next()) % 16;
        // The doorbell record and the queue of an object of mlx5 are apart.
        let base = environment.memory + if name == "db_addr" { LENGTH as u64 / 2 } else { 0 };
        return base + page * 4096;
    }
    let owned = VALUES
        .iter()
        .find(|(known, _)| known.split_once('.').is_some_and(|(of, field)| of == owner && field == name));
    if let Some((_, values)) = owned.or_else(|| VALUES.iter().find(|(known, _)| *known == name)) {
        return choices.among(values).unwrap_or(0);
    }
    match kind {
        Some(FieldKind::Named(info)) if info.flags => match choices.rarely(3) {
            true => choices.among(info.values).map_or(0, |value| value.value),
            false => 0,
        },
        Some(FieldKind::Named(info)) => {
            let first =
                if info.name(0).is_some() { 0 } else { info.values.first().map_or(0, |value| value.value) };
            match choices.rarely(4) {
                true => choices.among(info.values).map_or(first, |value| value.value),
                false => first,
            }
        }
        _ => match choices.rarely(1) {
            true => u64::from(choices.next()),
            false => 0,
        },
    }
}

/// The fields without fields of their own: name, position, size, interpretation.
pub(super) fn leaves(
    info: &'static StructInfo,
    at: usize,
    each: &mut dyn FnMut(&'static StructInfo, &'static FieldInfo, usize),
) {
    for field in info.fields {
        match field.kind {
            FieldKind::Struct(nested) => leaves(nested, at + field.offset, each),
            _ => each(info, field, at + field.offset),
        }
    }
}

/// The bytes of a struct with plausible values. `handle` gives the values of fields with handles.
pub(super) fn fill(
    info: &'static StructInfo,
    choices: &mut Choices<'_>,
    environment: &Environment,
    handle: &mut dyn FnMut(&'static str, &mut Choices<'_>) -> Option<u64>,
) -> Vec<u8> {
    let mut bytes = vec![0; info.size];
    leaves(info, 0, &mut |owner, field, at| {
        let Some(target) = bytes.get_mut(at..at + field.size) else { return };
        match field.kind {
            FieldKind::Array(..) if field.rust == "dgid" || field.rust == "gid" => {
                target.copy_from_slice(&environment.gid[..field.size.min(16)]);
            }
            FieldKind::Array(..) | FieldKind::Struct(_) => {}
            kind => {
                let value = handle(field.rust, choices)
                    .unwrap_or_else(|| plausible(owner.rust, field.rust, Some(kind), choices, environment));
                let value = match kind {
                    FieldKind::BigEndian(size) => value.swap_bytes() >> (64 - 8 * size),
                    _ => value,
                };
                target.copy_from_slice(&value.to_le_bytes()[..field.size]);
            }
        }
    });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_values_are_no_addresses_of_this_process() {
        let environment = Environment { memory: 0x7f00_0000_0000, gid: [0; 16] };
        let here = std::ptr::from_ref(&environment).addr() as u64;
        assert!(!is_confined(here, &environment) && is_confined(0x7f00_0000_0001, &environment));
        for choice in 0..=u8::MAX {
            let value = extreme(8, choice, &environment);
            assert!(is_confined(value, &environment), "{value:#x}");
        }
    }

    #[test]
    fn choice_zero_gives_the_usual_value() {
        let environment = Environment { memory: 0x7f00_0000_0000, gid: [0; 16] };
        let value = |owner, name| plausible(owner, name, None, &mut Choices::new(&[]), &environment);
        assert_eq!(value("QpCreate", "TYPE"), 2);
        assert_eq!(value("SrqCreate", "TYPE"), 0);
        assert_eq!(value("RegMrReq", "start"), environment.memory);
        assert_eq!(value("CqCreate", "CQE"), 16);
    }
}
