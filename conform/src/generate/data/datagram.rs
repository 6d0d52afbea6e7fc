//! Datagrams: address handles, Q_Keys, lengths, and receives that are too short.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rxe::{RecvWqe, SendWqe, Sge, UdWr};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{WcFlags, WcStatus};
use bareverbs_uapi::write::types::WrOpcode;
use zerocopy::FromZeros;

use super::Device;
use super::operation::{LOCAL_BYTE, REMOTE_BYTE};
use super::trial::status;
use crate::answer::{self, Answer, Expect};
use crate::check::{Check, Row, row};
use crate::generate::pair::{LENGTH, Options, Pair, RECEIVED, RECV_ID, REGION, SEND_ID, loopback, one_sge};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

/// rxe drops datagrams that are longer than their receive.
static RXE_DATAGRAM_LENGTH: answer::Change = answer::Change {
    name: "rxe-datagram-length",
    since: Since::V6_12,
    why: "a datagram longer than its receive is dropped (sw/rxe/rxe_resp.c: rxe_resp_check_length); before, \
          the receive failed with LOC_QP_OP_ERR and the QP went to ERR",
};

/// Bytes of the GRH in front of a received datagram.
const GRH: u32 = 40;
/// The Q_Key of both QPs.
const QKEY: u32 = 0x1111_1111;
/// Identifier and immediate data of the datagram behind the judged one.
const LATER_ID: u64 = 0x1a7e;
const LATER: u32 = 0x1234_5678;

/// Two datagram QPs, and an address handle of their port.
struct Datagrams {
    pair: Pair,
    ah: u32,
}

impl Datagrams {
    fn new(session: &mut Session<'_>) -> Step<Self> {
        let mut pair = Pair::with(session, &Options::of(QpType::UD))?;
        session.fill(pair.sender.region.offset, REGION, LOCAL_BYTE);
        session.fill(pair.receiver.region.offset, REGION, REMOTE_BYTE);
        let path = loopback(session)?;
        let ah = pair.sender.address(session, pair.pd, path)?;
        Ok(Self { pair, ah })
    }

    /// Posts a receive with room for `length` bytes in addition to the GRH.
    fn post_recv(&mut self, length: u32) -> Step<()> {
        self.pair.post_recv(0, &|wqe: &mut RecvWqe, sge: &mut Sge| {
            one_sge(&mut wqe.dma, length + GRH);
            sge.length = length + GRH;
        })
    }

    /// Posts a datagram.
    fn send(&mut self, session: &mut Session<'_>, change: &Change) -> Step<()> {
        let (ah_num, remote_qpn) = (self.ah, self.pair.receiver.number);
        self.pair.post_send(session, &|wqe, sge| {
            let mut form = UdWr { remote_qpn, remote_qkey: QKEY, ah_num, ..UdWr::new_zeroed() };
            change(wqe, sge, &mut form);
            wqe.wr.set(&form);
        })
    }

    /// Whether the datagram arrives: if not, a later one takes its receive.
    fn arrives(&mut self, session: &mut Session<'_>) -> Step<bool> {
        self.send(session, &|wqe, _, _| {
            (wqe.wr.wr_id, wqe.wr.opcode, wqe.wr.ex) = (LATER_ID, WrOpcode::SEND_WITH_IMM, LATER);
            one_sge(&mut wqe.dma, 0);
            wqe.dma.num_sge = 0;
        })?;
        let wc = self.pair.completion(RECV_ID)?;
        if wc.status != WcStatus::SUCCESS {
            return fail(format!("the receive completed with {:?}", wc.status));
        }
        Ok(!(wc.wc_flags.contains(WcFlags::WITH_IMM) && wc.ex == LATER))
    }
}

type Change = dyn Fn(&mut SendWqe, &mut Sge, &mut UdWr);
type Case = (&'static str, u32, bool, fn(&mut SendWqe, &mut Sge, &mut UdWr));

/// Datagrams that the provider of mlx5 rejects, or that a work request of a provider can't express.
const RXE_ONLY: [&str; 3] = ["above-the-mtu", "p_key-index", "ah-unknown"];

/// Datagrams that are sent: name, length of the receive without GRH, whether they arrive, the change.
const CASES: [Case; 12] = [
    ("good", LENGTH, true, |_, _, _| {}),
    ("empty", LENGTH, true, |wqe, _, _| {
        one_sge(&mut wqe.dma, 0);
        wqe.dma.num_sge = 0;
    }),
    ("mtu", 1024, true, |wqe, sge, _| {
        one_sge(&mut wqe.dma, 1024);
        sge.length = 1024;
    }),
    ("receive-longer", 2 * LENGTH, true, |_, _, _| {}),
    ("receive-one-byte-short", LENGTH - 1, false, |_, _, _| {}),
    ("receive-without-room-for-data", 0, false, |_, _, _| {}),
    ("above-the-mtu", 8000, false, |wqe, sge, _| {
        one_sge(&mut wqe.dma, 8000);
        sge.length = 8000;
    }),
    ("q_key-other", LENGTH, false, |_, _, form| form.remote_qkey ^= 1),
    ("q_key-privileged", LENGTH, false, |_, _, form| form.remote_qkey |= 1 << 31),
    ("qpn-unknown", LENGTH, false, |_, _, form| form.remote_qpn = 0x00ff_fff0),
    ("qpn-of-the-sender", LENGTH, false, |_, _, form| form.remote_qpn -= 1),
    ("p_key-index", LENGTH, true, |_, _, form| form.pkey_index = 7),
];

fn name(rule: Rule, suffix: &str) -> String {
    format!("data::UD::SEND::{}-{suffix}", rule.id())
}

/// The status of a receive that is too short; `None` if it stays posted.
fn short(device: Device, series: Since) -> Option<WcStatus> {
    match device {
        Device::Mlx5 => Some(WcStatus::LOC_LEN_ERR),
        Device::Rxe => (series < RXE_DATAGRAM_LENGTH.since).then_some(WcStatus::LOC_QP_OP_ERR),
    }
}

fn of_sent(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Datagram;
    let expect: Expect = status(WcStatus::SUCCESS).into();
    for (suffix, room, arrives, change) in CASES {
        if device != Device::Rxe && RXE_ONLY.contains(&suffix) {
            continue;
        }
        // A request with a privileged Q_Key has that of its QP (IBTA). rxe sends the request's.
        let arrives = arrives || device == Device::Mlx5 && suffix == "q_key-privileged";
        checks.push(Check::new(name(rule, suffix), rule, expect, move |session| {
            let mut datagrams = Datagrams::new(session)?;
            datagrams.post_recv(room)?;
            datagrams.send(session, &change)?;
            let wc = datagrams.pair.completion(SEND_ID)?;
            let text = format!("a datagram: {suffix}");
            session.compare(&text, expect.on(session.series), Answer::Status(wc.status.0))?;
            if !arrives
                && suffix.starts_with("receive-")
                && let Some(expected) = short(device, session.series)
            {
                let wc = datagrams.pair.completion(RECV_ID)?;
                let (expected, got) = (status(expected), Answer::Status(wc.status.0));
                let text = format!("the receive of a datagram: {suffix}");
                return session.compare(&text, expected, got).map(drop);
            }
            match (datagrams.arrives(session)?, arrives) {
                (true, false) => fail("the datagram arrives"),
                (false, true) => fail("the datagram does not arrive"),
                _ => Ok(()),
            }
        }));
    }
}

const CONTENTS: Row = row("UD::SEND", Rule::Datagram, "contents", Answer::Value((LENGTH + GRH) as u64), {
    |session, expected| {
        let mut datagrams = Datagrams::new(session)?;
        datagrams.post_recv(LENGTH)?;
        datagrams.send(session, &|_, _, _| {})?;
        let wc = datagrams.pair.completion(RECV_ID)?;
        let sender = datagrams.pair.sender.number;
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, loopback(session)?.is_global != 0);
        if (wc.src_qp, wc.wc_flags) != (sender, flags) {
            return fail(format!("source QPN {}, flags {:?}", wc.src_qp, wc.wc_flags));
        }
        let start = datagrams.pair.receiver.region.offset + RECEIVED + GRH as usize;
        if session.bytes(start, LENGTH as usize) != [LOCAL_BYTE; LENGTH as usize] {
            return fail("the datagram has other bytes");
        }
        session
            .compare(&"the length of a received datagram", expected, Answer::Value(wc.byte_len.into()))
            .map(drop)
    }
});

type Refused = (&'static str, fn(&mut SendWqe, &mut Sge, &mut UdWr));

/// Datagrams that are not sent.
const REFUSED: [Refused; 3] = [
    ("ah-unknown", |_, _, form| form.ah_num = 0x0fff_fff0),
    ("l_key-unknown", |_, sge, _| sge.lkey = 0x00de_ad00),
    ("l_key-low-byte", |_, sge, _| sge.lkey ^= 0xff),
];

fn judge_refused(
    session: &mut Session<'_>,
    datagrams: &mut Datagrams,
    suffix: &str,
    expected: WcStatus,
) -> Step<()> {
    let wc = datagrams.pair.completion(SEND_ID)?;
    let got = status(datagrams.pair.sender.status_of(0, &wc)?);
    session.compare(&format!("a datagram: {suffix}"), status(expected), got).map(drop)
}

fn of_refused(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Datagram;
    let expected = match device {
        Device::Rxe => WcStatus::LOC_QP_OP_ERR,
        Device::Mlx5 => WcStatus::LOC_PROT_ERR,
    };
    for (suffix, change) in REFUSED {
        if device != Device::Rxe && RXE_ONLY.contains(&suffix) {
            continue;
        }
        checks.push(Check::new(name(rule, suffix), rule, status(expected), move |session| {
            let mut datagrams = Datagrams::new(session)?;
            datagrams.send(session, &change)?;
            judge_refused(session, &mut datagrams, suffix, expected)
        }));
    }
}

/// A WQE of mlx5 has the address, not the address handle.
const OF_ANOTHER_PD: Row =
    row("UD::SEND", Rule::Datagram, "ah-of-another-pd", status(WcStatus::LOC_QP_OP_ERR), |session, _| {
        let mut datagrams = Datagrams::new(session)?;
        let pd = session.pd()?;
        let path = loopback(session)?;
        datagrams.ah = datagrams.pair.sender.address(session, pd, path)?;
        datagrams.send(session, &|_, _, _| {})?;
        judge_refused(session, &mut datagrams, "an AH of another PD", WcStatus::LOC_QP_OP_ERR)
    });

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    of_sent(checks, device);
    checks.push(CONTENTS.check("data"));
    of_refused(checks, device);
    if device == Device::Rxe {
        checks.push(OF_ANOTHER_PD.check("data"));
    }
}
