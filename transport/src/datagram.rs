//! The UD responder.

use crate::checksum::ones_sum;
use crate::data::Data;
use crate::device::{Device, Queues, RecvOutcome};
use crate::error_state::enter_error;
use crate::packet::{Network, Packet};
use crate::qp::Qp;
use crate::receive_queue::{ScatterError, place, report_failure, take_receive};
use crate::responder::wait_for_receive;
use crate::service::{ManagementQp, Service};
use crate::status::Status;
use crate::work::RecvFetch;

/// Bytes of the largest datagram: the largest MTU of InfiniBand.
const LARGEST: usize = 4096;

/// Bytes at the start of every UD receive buffer that are reserved for the GRH.
const HEADER: usize = 40;

/// Receives a datagram.
pub(crate) fn receive<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) {
    let Some(datagram) = packet.headers.datagram else { return };
    let subnet = qp.queues.service() == Some(Service::Datagram(Some(ManagementQp::Smi)));
    if !qp.state.receives() || packet.payload.len() > LARGEST {
        return;
    }
    if !subnet && datagram.qkey != qp.attributes.qkey {
        device.qkey_violation();
        return;
    }
    let RecvFetch::Receive(mut receive) = take_receive(qp, device, None) else { return };
    let mut bytes = vec![0; HEADER];
    if let Some(header) = global_header(packet) {
        bytes.copy_from_slice(&header);
    }
    bytes.extend_from_slice(&packet.payload);
    let who = device.accessor(&qp.queues, receive.srq);
    let failure = match place(device, who, &mut receive, Data::Bytes(&bytes)) {
        Ok(()) => None,
        // The datagram is lost. Its receive WQE is kept.
        Err(ScatterError::Absent) if wait_for_receive(qp, device, &receive, bytes.len()) => return,
        Err(ScatterError::TooLong) if D::POLICY.drops_long_datagrams => {
            qp.responder.reusable_receive = Some(receive);
            return;
        }
        Err(ScatterError::TooLong) => Some(Status::LocalLength),
        Err(ScatterError::Protection | ScatterError::Absent) => Some(Status::LocalProtection),
    };
    if let Some(status) = failure {
        report_failure(qp, device, &receive, status);
        enter_error(qp, device);
        return;
    }
    device.complete_receive(&qp.queues, &receive, RecvOutcome::Message { packet, inline: &[] });
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
