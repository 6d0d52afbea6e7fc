//! A thousand queue pairs on one SRQ and one CQ, all sending at once.
//!
//! An RC queue pair has one peer, so traffic from each to each is modelled by nodes. A node is a
//! number that owns a queue pair for each other node. 32 nodes in a full mesh have 992 queue pairs;
//! four pairs of nodes are connected a second time, which makes 1,000.
//!
//! Each queue pair sends its share of the messages. A message has its source, its target, its
//! sequence number, and bytes that are computed from these three.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::qp::{Qp, QpCap, QpInit, Rc, RecvRequest, SendFlags, Sge};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::{Access, Buffer, Mr, WcOpcode, WcStatus};
use bareverbs_test_support::TIMEOUT;
use bareverbs_test_support::loopback::domain;

use crate::connect;

/// Bytes of the longest message.
const LONGEST: usize = 64;
/// Bytes of the header of a message.
const HEADER: usize = 16;
/// Receives in the SRQ, the maximum number of outstanding messages.
const RECEIVES: usize = 8192;
/// Messages per doorbell.
const BATCH: u64 = 16;
/// Receives per post.
const REPOST: usize = 64;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Nodes in a full mesh.
    pub nodes: u32,
    /// Pairs of nodes, counted from 0 and 1, that are connected a second time.
    pub doubled: u32,
    /// Total number of messages, rounded up to the same number for each queue pair.
    pub messages: u64,
}

impl Plan {
    /// 1,000 queue pairs.
    #[must_use]
    pub fn thousand(messages: u64) -> Self {
        Self { nodes: 32, doubled: 4, messages }
    }

    fn pairs(&self) -> Vec<(u32, u32)> {
        let mesh = (0..self.nodes).flat_map(|a| (a + 1..self.nodes).map(move |b| (a, b)));
        mesh.chain((0..self.doubled).map(|pair| (2 * pair, 2 * pair + 1))).collect()
    }
}

/// The results of a run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Queue pairs.
    pub qps: usize,
    /// Messages that arrived, in order and with the right bytes.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time to bring up the queue pairs.
    pub setup: Duration,
    /// Time to send and check.
    pub traffic: Duration,
}

/// One direction of a connection.
struct Flow {
    number: u32,
    source: u32,
    target: u32,
    sender: Qp<Rc>,
    sent: u64,
    under_way: bool,
    received: u64,
}

/// Writes a message. Returns its length.
fn message(flow: u32, source: u32, target: u32, sequence: u64, into: &mut [u8; LONGEST]) -> usize {
    into[..4].copy_from_slice(&source.to_le_bytes());
    into[4..8].copy_from_slice(&target.to_le_bytes());
    into[8..HEADER].copy_from_slice(&sequence.to_le_bytes());
    let ends = u64::from(source) << 40 ^ u64::from(target) << 20 ^ u64::from(flow) << 52;
    let mut rest = fastrand::Rng::with_seed(ends ^ sequence);
    let len = rest.usize(HEADER..=LONGEST);
    rest.fill(&mut into[HEADER..len]);
    len
}

/// The SRQ, its memory, and the receives to post again.
struct Receives {
    srq: Srq,
    memory: Mr<Buffer>,
    taken: Vec<u64>,
}

impl Receives {
    fn post(&mut self) -> Result<()> {
        let sges: Vec<[Sge; 1]> = self
            .taken
            .iter()
            .map(|slot| {
                let start = *slot as usize * LONGEST;
                self.memory.sge(start..start + LONGEST).map(|sge| [sge])
            })
            .collect::<bareverbs::Result<_>>()?;
        let requests: Vec<_> =
            self.taken.iter().zip(&sges).map(|(&wr_id, sges)| RecvRequest { wr_id, sges }).collect();
        // SAFETY: the memory is registered as long as the SRQ exists, and its bytes are only
        // copied.
        unsafe { self.srq.post_recv(&requests) }.context("the shared queue has room for what it gave")?;
        self.taken.clear();
        Ok(())
    }
}

/// Sends `plan` and checks each message.
///
/// # Errors
/// If an object can't be created, if a message is lost, out of order or has wrong bytes, or if a
/// completion is unexpected.
pub fn run(plan: &Plan) -> Result<Report> {
    let begin = Instant::now();
    let pd = domain();
    let mut cq = pd.context().create_cq(&CqInit::new(2 * RECEIVES as u32))?;
    let srq = pd.create_srq(&SrqInit::new(RECEIVES as u32))?;
    let memory = pd.register(Buffer::zeroed(RECEIVES * LONGEST)?, Access::LOCAL_WRITE)?;
    let mut receives = Receives { srq, memory, taken: (0..RECEIVES as u64).collect() };
    receives.post()?;
    let cap = QpCap {
        max_send_wr: BATCH as u32,
        max_recv_wr: 0,
        max_inline_data: LONGEST as u32,
        ..QpCap::default()
    };
    let mut flows: Vec<Flow> = Vec::new();
    for (a, b) in plan.pairs() {
        let init = QpInit { cap, srq: Some(&receives.srq), ..QpInit::new(&cq, &cq) };
        let (mut one, mut other) = (pd.create_qp::<Rc>(&init)?, pd.create_qp::<Rc>(&init)?);
        connect(&mut one, &mut other)?;
        for (sender, source, target) in [(one, a, b), (other, b, a)] {
            let number = flows.len() as u32;
            flows.push(Flow { number, source, target, sender, sent: 0, under_way: false, received: 0 });
        }
    }
    // The two directions of a connection are adjacent.
    let arriving_at: HashMap<u32, usize> =
        flows.iter().enumerate().map(|(index, flow)| (flow.sender.qp_num(), index ^ 1)).collect();
    ensure!(arriving_at.len() == flows.len(), "two queue pairs have the same number");
    let setup = begin.elapsed();
    let (traffic, bytes) = exchange(plan, &mut flows, &mut cq, &mut receives, &arriving_at)?;
    let messages = flows.iter().map(|flow| flow.received).sum();
    Ok(Report { qps: flows.len(), messages, bytes, setup, traffic })
}

fn exchange(
    plan: &Plan,
    flows: &mut [Flow],
    cq: &mut Cq,
    receives: &mut Receives,
    arriving_at: &HashMap<u32, usize>,
) -> Result<(Duration, u64)> {
    let each = plan.messages.div_ceil(flows.len() as u64);
    let mut credit = RECEIVES as u64;
    let (mut bytes, mut done, mut turn) = (0, 0, 0);
    let begin = Instant::now();
    let mut last = begin;
    while done < flows.len() {
        // Sends all that may be sent, starting with the next flow.
        for _ in 0..flows.len() {
            let flow = &mut flows[turn];
            let batch = BATCH.min(each - flow.sent);
            if credit < batch {
                break;
            }
            if !flow.under_way && batch > 0 {
                send(flow, batch)?;
                credit -= batch;
            }
            turn = (turn + 1) % flows.len();
        }
        let mut some = false;
        while let Some(completion) = cq.poll_one() {
            some = true;
            let &index = arriving_at.get(&completion.qp_num).context("a completion of an unknown QP")?;
            ensure!(completion.status == WcStatus::SUCCESS, "{completion:?}");
            match completion.opcode {
                WcOpcode::RECV => {
                    bytes += arrived(&mut flows[index], receives, &completion)? as u64;
                    credit += 1;
                    if receives.taken.len() == REPOST {
                        receives.post()?;
                    }
                }
                WcOpcode::SEND => {
                    let flow = &mut flows[index ^ 1];
                    ensure!(completion.wr_id == flow.sent, "flow {}: {completion:?}", flow.number);
                    // The peer's receive completed before the acknowledgement was sent, and both
                    // use the same CQ.
                    ensure!(flow.received == flow.sent, "a send completed before its messages had arrived");
                    flow.under_way = false;
                    done += usize::from(flow.sent == each);
                }
                other => bail!("a completion of {other:?}: {completion:?}"),
            }
        }
        if some {
            last = Instant::now();
            receives.post()?;
        } else if last.elapsed() > TIMEOUT {
            let arrived: u64 = flows.iter().map(|flow| flow.received).sum();
            bail!("nothing has arrived for {TIMEOUT:?}, after {arrived} messages");
        } else {
            // The remaining work is the kernel workers'.
            std::thread::yield_now();
        }
    }
    let traffic = begin.elapsed();
    ensure!(cq.poll_one().is_none(), "an unexpected completion");
    Ok((traffic, bytes))
}

/// Posts the next messages of a flow; the last one is signaled.
fn send(flow: &mut Flow, batch: u64) -> Result<()> {
    let mut bytes = [0; LONGEST];
    let end = flow.sent + batch;
    let mut requests = flow.sender.start_send();
    for sequence in flow.sent..end {
        let len = message(flow.number, flow.source, flow.target, sequence, &mut bytes);
        let flags = if sequence + 1 == end { SendFlags::SIGNALED } else { SendFlags::empty() };
        requests.send_inline(end, &bytes[..len], flags)?;
    }
    requests.ring()?;
    flow.sent = end;
    flow.under_way = true;
    Ok(())
}

/// Checks a message, and queues its receive to be posted again. Returns its length.
fn arrived(flow: &mut Flow, receives: &mut Receives, completion: &WorkCompletion) -> Result<usize> {
    let mut expected = [0; LONGEST];
    let len = message(flow.number, flow.source, flow.target, flow.received, &mut expected);
    let mut found = [0; LONGEST];
    ensure!(
        completion.byte_len as usize == len,
        "{} bytes in place of {len}: {completion:?}",
        completion.byte_len
    );
    receives.memory.read(completion.wr_id as usize * LONGEST, &mut found[..len])?;
    ensure!(
        found[..len] == expected[..len],
        "message {} from {} to {} is {:?} in place of {:?}",
        flow.received,
        flow.source,
        flow.target,
        &found[..len],
        &expected[..len]
    );
    flow.received += 1;
    receives.taken.push(completion.wr_id);
    Ok(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesh_of_32_nodes_plus_4_has_1000_qps() {
        let pairs = Plan::thousand(1).pairs();
        assert_eq!(2 * pairs.len(), 1000);
        let mut mesh = pairs[..pairs.len() - 4].to_vec();
        mesh.dedup();
        assert_eq!(mesh.len(), 32 * 31 / 2);
        assert!(pairs.iter().all(|(a, b)| a < b && *b < 32));
    }

    #[test]
    fn every_message_has_unique_bytes() {
        let bytes = |flow, source, target, sequence| {
            let mut into = [0; LONGEST];
            let len = message(flow, source, target, sequence, &mut into);
            assert!((HEADER..=LONGEST).contains(&len));
            into[..len].to_vec()
        };
        let one = bytes(0, 1, 2, 3);
        assert_eq!(one, bytes(0, 1, 2, 3));
        for other in [bytes(0, 2, 1, 3), bytes(0, 1, 2, 4), bytes(0, 1, 3, 3)] {
            assert_ne!(one, other);
        }
    }
}
