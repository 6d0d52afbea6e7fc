//! The connections, their memory, and the run.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result};
use bareverbs::cq::WorkCompletion;
use bareverbs::device::LinkLayer;
use bareverbs::qp::{
    InitAttr, Operation, Payload, Qp, QpCap, QpInit, RecvRequest, RtrAttr, RtsAttr, SendFlags, SendRequest,
    UcRtrAttr,
};
use bareverbs::srq::SrqInit;
use bareverbs::values::{GidIndex, RnrRetry};
use bareverbs::xrc::{
    XrcOperation, XrcSend, XrcSrq, XrcSrqInit, XrcTarget, XrcTargetRtsAttr, Xrcd, XrcdShare,
};
use bareverbs::{Access, Buffer, Gid, Mr, Pd, WcStatus};

use super::record::XrcRecord;
use crate::cli::pingpong::XsrqPingpong;
use crate::pingpong::queues::ACK_TIMEOUT;
use crate::pingpong::state::{RECV_ID, SEND_ID};
use crate::pingpong::wait::{CompletionWaiter, WaitMode};
use crate::session::path::{LocalPort, ah_attr, random_psn};
use crate::session::{RETRY_CNT, Role, status};
use crate::signal::Stop;

/// An XRC QP for each direction.
struct Connection {
    sender: Qp<XrcSend>,
    target: XrcTarget,
    /// Outstanding messages of the connection.
    pending: u32,
}

/// One side of a run.
pub(super) struct Endpoint<'a> {
    options: &'a XsrqPingpong,
    side: Role,
    waiter: CompletionWaiter<'a>,
    links: Vec<Connection>,
    srq: XrcSrq,
    /// Declared after the queues, so that the queue pairs are destroyed first.
    memory: Mr<Buffer>,
    link_layer: LinkLayer,
    gid_index: Option<GidIndex>,
    local: Vec<XrcRecord>,
    remote: Vec<XrcRecord>,
    /// Messages posted to each peer.
    posted: Vec<u64>,
    /// Peers to which the next message is due.
    due: VecDeque<usize>,
    sent: u64,
    received: u64,
}

/// The send queue depth of a connection.
fn send_depth(clients: u32) -> u32 {
    clients + 1
}

impl<'a> Endpoint<'a> {
    /// Creates all objects, brings the queue pairs to INIT and posts the receives.
    pub(super) fn new(
        options: &'a XsrqPingpong,
        port: &LocalPort,
        domain: Option<&File>,
        stop: &'a Stop,
    ) -> Result<Self> {
        let (side, clients) = match options.host {
            Some(_) => (Role::Client, 1),
            None => (Role::Server, options.clients),
        };
        let context = &port.context;
        let pd = context.alloc_pd()?;
        let buffer = Buffer::zeroed(options.size as usize)?;
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::ON_DEMAND, options.odp);
        let memory = pd.register(buffer, access)?;
        let share = domain.map_or(XrcdShare::Private, |file| XrcdShare::JoinOrCreate(file.as_fd()));
        let xrcd = context.open_xrcd(share)?;
        let entries = clients.checked_mul(send_depth(clients)).and_then(|sends| sends.checked_add(clients));
        let entries = entries.context("too many clients")?;
        let mode = WaitMode { events: options.events, timestamps: false };
        let waiter = CompletionWaiter::new(context, entries, clients, mode, stop)?;
        let init = XrcSrqInit { srq: SrqInit::new(clients), xrcd: &xrcd, cq: &waiter.cq };
        let srq = pd.create_xrc_srq(&init)?;
        let links = (0..clients).map(|_| Connection::new(options, &pd, &xrcd, &waiter));
        let links = links.collect::<Result<Vec<_>>>()?;
        let local = links.iter().map(|link| {
            Ok(XrcRecord {
                lid: port.attr.lid,
                recv_qpn: link.target.qp_num(),
                send_qpn: link.sender.qp_num(),
                psn: random_psn()?,
                srqn: srq.srq_num(),
                gid: port.record_gid(),
            })
        });
        let mut endpoint = Self {
            options,
            side,
            local: local.collect::<Result<_>>()?,
            posted: vec![0; links.len()],
            waiter,
            links,
            srq,
            memory,
            link_layer: port.attr.link_layer,
            gid_index: port.gid.map(|(index, _)| index),
            remote: Vec::new(),
            due: VecDeque::new(),
            sent: 0,
            received: 0,
        };
        (0..clients).try_for_each(|_| endpoint.post_recv())?;
        endpoint.waiter.arm()?;
        Ok(endpoint)
    }

    pub(super) fn side(&self) -> Role {
        self.side
    }

    /// The addresses of this side, by connection.
    pub(super) fn local(&self) -> &[XrcRecord] {
        &self.local
    }

    /// The addresses of the connected peers.
    pub(super) fn remote(&self) -> &[XrcRecord] {
        &self.remote
    }

    /// The number of received messages.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// The number of events that ended a sleep; `None` when polling.
    pub(super) fn events(&self) -> Option<u64> {
        self.waiter.events()
    }

    /// Connects the next unused connection to this peer.
    pub(super) fn connect(&mut self, remote: XrcRecord) -> Result<()> {
        let place = self.remote.len();
        let (own, link) = (&self.local[place], &mut self.links[place]);
        let gid = remote.gid().map(|gid| Gid(gid.octets()));
        anyhow::ensure!(
            self.link_layer != LinkLayer::ETHERNET || gid.is_some(),
            "the peer sent no GID, which RoCE requires: set its GID index (-g)"
        );
        let XsrqPingpong { ib_port, sl, mtu, .. } = *self.options;
        let ah_attr = ah_attr((ib_port, sl), self.gid_index, remote.lid, gid)?;
        link.target.ready_to_receive(&RtrAttr {
            rq_psn: remote.psn,
            path_mtu: mtu,
            max_dest_rd_atomic: 0,
            ..RtrAttr::new(ah_attr, remote.send_qpn)
        })?;
        link.target.ready_to_send(&XrcTargetRtsAttr { sq_psn: own.psn, timeout: ACK_TIMEOUT })?;
        link.sender.ready_to_receive(&UcRtrAttr {
            rq_psn: remote.psn,
            path_mtu: mtu,
            ..UcRtrAttr::new(ah_attr, remote.recv_qpn)
        })?;
        link.sender.ready_to_send(&RtsAttr {
            sq_psn: own.psn,
            timeout: ACK_TIMEOUT,
            retry_cnt: RETRY_CNT,
            rnr_retry: RnrRetry::INFINITE,
            max_rd_atomic: 0,
        })?;
        self.remote.push(remote);
        Ok(())
    }

    /// Runs to the end. The server begins with a message to each client, and each client answers.
    pub(super) fn run(&mut self) -> Result<()> {
        let total = u64::from(self.options.num_tests) * self.links.len() as u64;
        if self.side == Role::Server {
            self.due.extend(0..self.links.len());
            self.send_due()?;
        }
        while self.received < total || self.sent < total {
            let Some((completion, _)) = self.waiter.next()? else {
                let (sent, received) = (self.sent, self.received);
                let down = self.waiter.context().link_down(self.options.ib_port);
                let cause = down.map_or_else(String::new, |down| format!("{down}; "));
                anyhow::bail!(
                    "no completion for {} s: {cause}{sent} of {total} messages were sent and {received} received",
                    self.waiter.timeout().as_secs()
                );
            };
            self.on_completion(completion)?;
        }
        Ok(())
    }

    fn on_completion(&mut self, completion: WorkCompletion) -> Result<()> {
        let WorkCompletion { wr_id, status, qp_num, byte_len, .. } = completion;
        if status != WcStatus::SUCCESS {
            let (context, port) = (self.waiter.context(), self.options.ib_port);
            let cause = status::cause(context, port, status, wr_id == SEND_ID);
            let text = status::words(status);
            anyhow::bail!("Failed status {text} ({}) for wr_id {wr_id}: {cause}", status.0);
        }
        if wr_id == SEND_ID {
            let link = self.links.iter_mut().find(|link| link.sender.qp_num() == qp_num);
            link.with_context(|| format!("a completion for unknown QP {qp_num:#x}"))?.pending -= 1;
            self.sent += 1;
        } else {
            anyhow::ensure!(
                byte_len == self.options.size,
                "received a message of {byte_len} bytes instead of {}: both sides need the same -s",
                self.options.size
            );
            self.received += 1;
            self.post_recv()?;
            let place = match self.links.len() {
                // A client may receive it over another client's connection.
                1 => 0,
                _ => self
                    .links
                    .iter()
                    .position(|link| link.target.qp_num() == qp_num)
                    .with_context(|| format!("a message to unknown QP {qp_num:#x}"))?,
            };
            self.due.push_back(place);
        }
        self.send_due()
    }

    /// Sends the messages that are due while the send queues have room: to each peer over all
    /// connections in turn, as the C program does.
    fn send_due(&mut self) -> Result<()> {
        while let Some(&place) = self.due.front() {
            if self.posted[place] < self.options.num_tests.into() {
                let over = (place as u64 + self.posted[place]) % self.links.len() as u64;
                let link = &mut self.links[over as usize];
                if link.pending == send_depth(self.local.len() as u32) {
                    return Ok(());
                }
                let remote_srq = self.remote[place].srqn;
                let sges = [self.memory.sge(..)?];
                let request = SendRequest {
                    wr_id: SEND_ID,
                    operation: XrcOperation { remote_srq, operation: Operation::Send },
                    flags: SendFlags::SIGNALED,
                    payload: Payload::Sges(&sges),
                };
                // SAFETY: the region outlives the queue pairs (field order), and its content does
                // not matter.
                unsafe { link.sender.post_send(&[request]) }.context("cannot post a send")?;
                link.pending += 1;
                self.posted[place] += 1;
            }
            self.due.pop_front();
        }
        Ok(())
    }

    fn post_recv(&mut self) -> Result<()> {
        let sges = [self.memory.sge(..)?];
        // SAFETY: the region outlives the queue (field order), and its bytes are never borrowed.
        let posted = unsafe { self.srq.post_recv(&[RecvRequest { wr_id: RECV_ID, sges: &sges }]) };
        posted.context("cannot post a receive")
    }
}

impl Connection {
    fn new(options: &XsrqPingpong, pd: &Pd, xrcd: &Xrcd, waiter: &CompletionWaiter<'_>) -> Result<Self> {
        let clients = if options.host.is_some() { 1 } else { options.clients };
        let cap = QpCap { max_send_wr: send_depth(clients), ..QpCap::default() };
        let mut target = xrcd.create_target(0)?;
        let init = QpInit { cap, ..QpInit::new(&waiter.cq, &waiter.cq) };
        let mut sender = pd.create_qp::<XrcSend>(&init)?;
        target.init(&InitAttr::new(options.ib_port))?;
        sender.init(&InitAttr::new(options.ib_port))?;
        Ok(Self { sender, target, pending: 0 })
    }
}
