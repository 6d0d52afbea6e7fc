//! Bugs that kernel updates fixed within the last two years: a kernel without the fix fails the check.
//! docs/findings/fixed-bugs.md lists them with their versions.

use std::net::{Ipv4Addr, UdpSocket};

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::UHW_IN;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{MrReregFlags, SrqAttrMask, WcStatus};

use bareverbs_uapi::write::structs::{ModifySrqReq, PostSendReq, ReregMrReq, ReregMrResp};
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::pair::{Pair, SEND_ID};
use crate::answer::Answer;
use crate::call::{Slot, UNMAPPED};
use crate::check::Check;
use crate::rules::Rule;
use crate::session::{Session, Step, fail, skip};

fn name(place: &str, suffix: &str) -> String {
    format!("fixed::{place}::{suffix}::{}", Rule::Fixed.id())
}

/// Sends one message over a pair, which shows that the device still works.
fn still_works(session: &mut Session<'_>) -> Step<()> {
    let mut pair = Pair::new(session, QpType::RC, None)?;
    pair.post_recv(0, &|_, _| {})?;
    pair.post_send(session, &|_, _| {})?;
    match pair.completion(SEND_ID)?.status {
        WcStatus::SUCCESS => Ok(()),
        got => fail(format!("a send afterwards completes with {got:?}")),
    }
}

/// POST_SEND with sizes whose product or allocation overflows.
fn of_post_send(checks: &mut Vec<Check>) {
    let rule = Rule::Fixed;
    let cases = [
        ("wqe_size-2^30", 0, 1 << 30, Answer::errno(Errno::NOMEM)),
        ("product-2^32", 1 << 16, 1 << 16, Answer::NOSPC),
    ];
    for (suffix, wr_count, wqe_size, answer) in cases {
        checks.push(Check::new(name("PostSend", suffix), rule, answer, move |session| {
            let qp = session.qp(QpType::RC)?;
            let mut request = PostSendReq::new_zeroed();
            (request.qp_handle, request.wr_count, request.wqe_size) = (qp, wr_count, wqe_size);
            let number = write::PostSend::INFO.number;
            let mut call = session.command(number, request.as_bytes(), 4, 0);
            session.judge(&mut call, answer).map(drop)
        }));
    }
}

/// A refused REREG_MR leaves the region in its PD.
fn of_rereg(checks: &mut Vec<Check>) {
    let rule = Rule::Fixed;
    let success = Answer::Status(WcStatus::SUCCESS.0);
    checks.push(Check::new(name("ReregMr", "refused-keeps-the-pd"), rule, success, move |session| {
        if session.series < Since::V6_12 {
            return skip("rxe has REREG_MR since 6.12");
        }
        let mut pair = Pair::new(session, QpType::RC, None)?;
        let mut request = ReregMrReq::new_zeroed();
        request.mr_handle = pair.sender.region.handle;
        request.pd_handle = session.pd()?;
        request.access_flags = AccessFlags::LOCAL_WRITE | AccessFlags::HUGETLB;
        request.flags = MrReregFlags::PD | MrReregFlags::ACCESS;
        let number = write::ReregMr::INFO.number;
        let mut call = session.command(number, request.as_bytes(), size_of::<ReregMrResp>(), 0);
        if session.execute(&mut call) != Answer::OPNOTSUPP {
            return fail(format!("REREG_MR with HUGETLB: {}", session.last_answer));
        }
        pair.post_recv(0, &|_, _| {})?;
        pair.post_send(session, &|_, _| {})?;
        let got = Answer::Status(pair.completion(SEND_ID)?.status.0);
        session.compare(&"a send from the region after the refused call", success, got).map(drop)
    }));
}

/// A failed resize leaves the SRQ usable.
fn of_srq(checks: &mut Vec<Check>) {
    let check = Check::new(name("ModifySrq", "failed-resize"), Rule::Fixed, Answer::Ok, |session| {
        session.needs_rxe_payloads()?;
        let srq = session.srq()?;
        let number = write::ModifySrq::INFO.number;
        let mut resize = ModifySrqReq::new_zeroed();
        (resize.srq_handle, resize.max_wr) = (srq, 16);
        // The response goes to unmapped memory.
        resize.attr_mask = SrqAttrMask::MAX_WR;
        let mut call = session.command(number, resize.as_bytes(), 0, 0).with(Slot::number(UHW_IN, UNMAPPED));
        if session.execute(&mut call) != Answer::FAULT {
            return fail(format!("a resize without room for its response: {}", session.last_answer));
        }
        let mut limit = ModifySrqReq::new_zeroed();
        (limit.srq_handle, limit.srq_limit) = (srq, 1);
        limit.attr_mask = SrqAttrMask::LIMIT;
        let mut call = session.command(number, limit.as_bytes(), 0, 0).with(Slot::number(UHW_IN, 0));
        session.judge(&mut call, Answer::Ok).map(drop)
    });
    checks.push(check.hazardous("6.1 before 6.1.191 and 6.12 before 6.12.63 dereference a null pointer"));
}

/// A packet: its name, what it does to kernels without the fix, and its contents.
type Packet = (&'static str, &'static str, fn(&mut [u8; 48]));

/// The UDP port of RoCE v2.
const ROCE: u16 = 4791;

/// Packets of an ordinary socket, which the receiver must drop. The first byte is the opcode.
fn of_packets(checks: &mut Vec<Check>) {
    let packets: [Packet; 2] = [
        ("unknown-opcode", "6.1 before 6.1.175 and 6.12 before 6.12.88 compute a CRC of 4 GiB", |packet| {
            packet[0] = 0xff;
        }),
        (
            "pad-above-the-payload",
            "6.1 before 6.1.175 and 6.12 before 6.12.86 have a length underflow",
            |packet| {
                // RC SEND_ONLY with a pad of 3 bytes and no payload.
                (packet[0], packet[1]) = (0x04, 0x30);
            },
        ),
    ];
    for (suffix, hazard, change) in packets {
        let check = Check::new(name("packet", suffix), Rule::Fixed, Answer::Ok, move |session| {
            let (_, gid) = session.ipv4_gid()?;
            let address = Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15]);
            let mut packet = [0; 48];
            // The multicast QPN: no QP is needed.
            packet[5..8].fill(0xff);
            change(&mut packet);
            let sent = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
                .and_then(|socket| socket.send_to(&packet, (address, ROCE)));
            if let Err(error) = sent {
                return skip(format!("a datagram can't be sent: {error}"));
            }
            still_works(session)?;
            session.compare(&format!("a packet with {suffix}"), Answer::Ok, Answer::Ok).map(drop)
        });
        checks.push(check.hazardous(hazard));
    }
}

/// REREG_MR does not give a region that was pinned for reading the right to write.
fn of_access(checks: &mut Vec<Check>) {
    let (rule, access) = (Rule::Fixed, Answer::errno(Errno::ACCESS));
    checks.push(Check::new(name("ReregMr", "access-above-the-pinning"), rule, access, move |session| {
        if session.series < Since::V6_12 {
            return skip("rxe has REREG_MR since 6.12");
        }
        let pd = session.pd()?;
        let region = session.mr_with(pd, 0)?;
        let mut request = ReregMrReq::new_zeroed();
        (request.mr_handle, request.access_flags) = (region.mr_handle, AccessFlags::LOCAL_WRITE);
        request.flags = MrReregFlags::ACCESS;
        let number = write::ReregMr::INFO.number;
        let mut call = session.command(number, request.as_bytes(), size_of::<ReregMrResp>(), 0);
        session.judge(&mut call, access).map(drop)
    }));
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_post_send(&mut checks);
    of_rereg(&mut checks);
    of_access(&mut checks);
    of_srq(&mut checks);
    of_packets(&mut checks);
    checks
}
