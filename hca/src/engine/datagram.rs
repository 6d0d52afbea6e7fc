//! The UD responder.

use super::core::Core;
use super::cq::{CqeOpcode, Syndrome};
use super::error_state::enter_error;
use super::packet::{Network, Packet};
use super::qp::Qp;
use super::receive_queue::{ScatterError, place, receive_accessor, report, report_failure, take_receive};
use super::responder::wait_for_receive;
use super::service::{ManagementQp, Service};
use super::srq::RecvFetch;
use crate::checksum::ones_sum;

/// Bytes at the start of every UD receive buffer that are reserved for the GRH.
const HEADER: usize = 40;

/// Receives a datagram.
pub(crate) fn receive(qp: &mut Qp, core: &mut Core, packet: &Packet) {
    let Some(datagram) = packet.headers.datagram else { return };
    let subnet = matches!(qp.setup.service, Service::Datagram(Some(ManagementQp::Smi)));
    if !qp.state.receives() {
        return;
    }
    if !subnet && datagram.qkey != qp.attributes.qkey {
        core.port.qkey_violations = core.port.qkey_violations.saturating_add(1);
        return;
    }
    let RecvFetch::Receive(mut receive) = take_receive(qp, core, None) else { return };
    let mut bytes = vec![0; HEADER];
    if let Some(header) = global_header(packet) {
        bytes.copy_from_slice(&header);
    }
    bytes.extend_from_slice(&packet.payload);
    let who = receive_accessor(qp, core, receive.srq);
    let failure = match place(core, who, &mut receive, &bytes) {
        Ok(()) => None,
        // The datagram is lost. Its receive WQE is kept.
        Err(ScatterError::Absent) if wait_for_receive(qp, core, &receive, bytes.len()) => return,
        Err(ScatterError::TooLong) => Some(Syndrome::LocalLength),
        Err(ScatterError::Protection | ScatterError::Absent) => Some(Syndrome::LocalProtection),
    };
    if let Some(syndrome) = failure {
        report_failure(qp, core, &receive, syndrome);
        enter_error(qp, core);
        return;
    }
    let immediate = packet.operation.has_immediate();
    let opcode = if immediate { CqeOpcode::ReceiveImmediate } else { CqeOpcode::Receive };
    let flags = flags(packet) | datagram.source_qp & 0xff_ffff;
    let management = matches!(qp.setup.service, Service::Datagram(Some(_)));
    report(qp, core, &receive, opcode, |completion| {
        // CQEs of management QPs carry the P_Key in place of immediate data.
        completion.immediate =
            if management { u32::from(packet.pkey) } else { packet.headers.immediate.unwrap_or(0) };
        completion.solicited = packet.solicited;
        completion.source_lid = packet.route.source_lid;
        completion.flags_rqpn = flags;
    });
}

/// The flags of the CQE: service level, and the kind of the GRH if there is one.
fn flags(packet: &Packet) -> u32 {
    const GLOBAL: u32 = 1 << 28;
    let kind = match packet.route.global.map(|global| global.network) {
        None => 0,
        Some(Network::Grh) => GLOBAL,
        Some(Network::Ipv6) => GLOBAL | 1 << 24,
        Some(Network::Ipv4) => GLOBAL | 2 << 24,
    };
    // On InfiniBand the bits above the source QPN are the service level.
    if packet.route.destination_lid != 0 {
        kind | u32::from(packet.route.service_level & 0xf) << 24
    } else {
        kind
    }
}

/// The GRH as the receiver sees it.
fn global_header(packet: &Packet) -> Option<[u8; HEADER]> {
    /// Bytes of BTH, DETH and ICRC.
    const AROUND: u16 = 12 + 8 + 4;
    let global = packet.route.global?;
    let length = packet.payload.len() as u16;
    let mut header = [0; HEADER];
    if global.network == Network::Ipv4 {
        const UDP: u16 = 8;
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[1] = global.traffic_class;
        ip[2..4].copy_from_slice(&(20 + UDP + AROUND + length).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = global.hop_limit;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&global.source[12..]);
        ip[16..20].copy_from_slice(&global.destination[12..]);
        let sum = !ones_sum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        let first = 6 << 28 | u32::from(global.traffic_class) << 20 | global.flow_label & 0xf_ffff;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&(length + AROUND).to_be_bytes());
        header[6] = if global.network == Network::Ipv6 { 17 } else { 0x1b };
        header[7] = global.hop_limit;
        header[8..24].copy_from_slice(&global.source);
        header[24..40].copy_from_slice(&global.destination);
    }
    Some(header)
}
