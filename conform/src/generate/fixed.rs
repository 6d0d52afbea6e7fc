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
use crate::call::{Call, Slot, UNMAPPED};
use crate::check::{Check, Row, RowBody as Body, row};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

const SUCCESS: Answer = Answer::Status(WcStatus::SUCCESS.0);

const fn fixed(place: &'static str, answer: Answer, body: Body) -> Row {
    row(place, Rule::Fixed, "", answer, body)
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
fn post_send(session: &mut Session<'_>, wr_count: u32, wqe_size: u32, answer: Answer) -> Step<()> {
    let qp = session.qp(QpType::RC)?;
    let mut request = PostSendReq::new_zeroed();
    (request.qp_handle, request.wr_count, request.wqe_size) = (qp, wr_count, wqe_size);
    let mut call = session.command(write::PostSend::INFO.number, request.as_bytes(), 4, 0);
    session.judge(&mut call, answer).map(drop)
}

fn needs_rereg(session: &Session<'_>) -> Step<()> {
    if session.series < Since::V6_12 { skip("rxe has REREG_MR since 6.12") } else { Ok(()) }
}

fn rereg(session: &Session<'_>, request: &ReregMrReq) -> Call {
    session.command(write::ReregMr::INFO.number, request.as_bytes(), size_of::<ReregMrResp>(), 0)
}

/// The UDP port of RoCE v2.
const ROCE: u16 = 4791;

/// Sends a packet of an ordinary socket, which the receiver must drop. The first byte is the opcode.
fn packet(session: &mut Session<'_>, head: [u8; 2], title: &str, answer: Answer) -> Step<()> {
    let (_, gid) = session.ipv4_gid()?;
    let address = Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15]);
    let mut packet = [0; 48];
    packet[..2].copy_from_slice(&head);
    // The multicast QPN: no QP is needed.
    packet[5..8].fill(0xff);
    let sent = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.send_to(&packet, (address, ROCE)));
    if let Err(error) = sent {
        return skip(format!("a datagram can't be sent: {error}"));
    }
    still_works(session)?;
    session.compare(&title, answer, Answer::Ok).map(drop)
}

const FIXED: [Row; 7] = [
    fixed("PostSend::wqe_size-2^30", Answer::errno(Errno::NOMEM), |session, answer| {
        post_send(session, 0, 1 << 30, answer)
    }),
    fixed("PostSend::product-2^32", Answer::NOSPC, |session, answer| {
        post_send(session, 1 << 16, 1 << 16, answer)
    }),
    // A refused REREG_MR leaves the region in its PD.
    fixed("ReregMr::refused-keeps-the-pd", SUCCESS, |session, answer| {
        needs_rereg(session)?;
        let mut pair = Pair::new(session, QpType::RC, None)?;
        let mut request = ReregMrReq::new_zeroed();
        request.mr_handle = pair.sender.region.handle;
        request.pd_handle = session.pd()?;
        request.access_flags = AccessFlags::LOCAL_WRITE | AccessFlags::HUGETLB;
        request.flags = MrReregFlags::PD | MrReregFlags::ACCESS;
        let mut call = rereg(session, &request);
        if session.execute(&mut call) != Answer::OPNOTSUPP {
            return fail(format!("REREG_MR with HUGETLB: {}", session.last_answer));
        }
        pair.post_recv(0, &|_, _| {})?;
        pair.post_send(session, &|_, _| {})?;
        let got = Answer::Status(pair.completion(SEND_ID)?.status.0);
        session.compare(&"a send from the region after the refused call", answer, got).map(drop)
    }),
    // REREG_MR does not give a region that was pinned for reading the right to write.
    fixed("ReregMr::access-above-the-pinning", Answer::errno(Errno::ACCESS), |session, answer| {
        needs_rereg(session)?;
        let pd = session.pd()?;
        let region = session.mr_with(pd, 0)?;
        let mut request = ReregMrReq::new_zeroed();
        (request.mr_handle, request.access_flags) = (region.mr_handle, AccessFlags::LOCAL_WRITE);
        request.flags = MrReregFlags::ACCESS;
        let mut call = rereg(session, &request);
        session.judge(&mut call, answer).map(drop)
    }),
    // A failed resize leaves the SRQ usable.
    fixed("ModifySrq::failed-resize", Answer::Ok, |session, answer| {
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
        session.judge(&mut call, answer).map(drop)
    })
    .hazardous("6.1 before 6.1.191 and 6.12 before 6.12.63 dereference a null pointer"),
    fixed("packet::unknown-opcode", Answer::Ok, |session, answer| {
        packet(session, [0xff, 0], "a packet with unknown-opcode", answer)
    })
    .hazardous("6.1 before 6.1.175 and 6.12 before 6.12.88 compute a CRC of 4 GiB"),
    // RC SEND_ONLY with a pad of 3 bytes and no payload.
    fixed("packet::pad-above-the-payload", Answer::Ok, |session, answer| {
        packet(session, [0x04, 0x30], "a packet with pad-above-the-payload", answer)
    })
    .hazardous("6.1 before 6.1.175 and 6.12 before 6.12.86 have a length underflow"),
];

pub(crate) fn checks() -> Vec<Check> {
    FIXED.iter().map(|row| row.check("fixed")).collect()
}
