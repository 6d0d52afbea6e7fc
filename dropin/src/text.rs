//! Names of values, as rdma-core words them.

use std::ffi::{CStr, c_char, c_int};

use crate::convention::{OrNull, callback, export};

/// The text at the index; `unknown` elsewhere.
fn text(texts: &'static [&'static CStr], index: c_int) -> *mut c_char {
    let text = usize::try_from(index).ok().and_then(|index| texts.get(index)).unwrap_or(&c"unknown");
    text.as_ptr().cast_mut()
}

const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic-write",
];

export! {
    fn ibv_node_type_str(node_type: c_int) -> OrNull<c_char> { Ok(text(&NODE_TYPES, node_type)) }
    fn ibv_port_state_str(state: c_int) -> OrNull<c_char> { Ok(text(&PORT_STATES, state)) }
    fn ibv_event_type_str(event: c_int) -> OrNull<c_char> { Ok(text(&EVENT_TYPES, event)) }
    fn ibv_wc_status_str(status: c_int) -> OrNull<c_char> { Ok(text(&STATUSES, status)) }
}

callback! {
    /// `ibv_wr_opcode_str`.
    fn wr_opcode_str(opcode: c_int) -> OrNull<c_char> { Ok(text(&OPCODES, opcode)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &'static [&'static CStr], index: c_int) -> &'static str {
        // SAFETY: the text is a constant.
        unsafe { CStr::from_ptr(text(texts, index)) }.to_str().unwrap()
    }

    #[test]
    fn values_without_a_name_are_unknown() {
        for (index, name) in
            [(-1, "unknown"), (0, "success"), (23, "TM software rendezvous"), (24, "unknown")]
        {
            assert_eq!(of(&STATUSES, index), name);
        }
        assert_eq!((of(&OPCODES, 12), of(&OPCODES, 15)), ("unknown", "atomic-write"));
        assert_eq!((of(&NODE_TYPES, 0), of(&NODE_TYPES, 1)), ("unknown", "InfiniBand channel adapter"));
    }
}
