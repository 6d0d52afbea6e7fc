//! Datagram queue pairs of the tools over the connection manager.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::ah::{Ah, AhAttr};
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::qp::{
    Datagram, GRH_BYTES, Payload, Qp, QpAttr, QpCap, QpCreateFlags, QpInit, QpState, RecvRequest, SendFlags,
    SendRequest, Ud,
};
use bareverbs::{Access, Buffer, Context, Imm, Mr, PortNum, WcOpcode, WcStatus};
use bareverbs_rdmacm::CmId;
use bareverbs_rdmacm::event::{EventKind, UdPeer};

use crate::session::connected::{failure, next_event};
use crate::session::status;
use crate::signal::Stop;

/// How long a wait for a completion takes at most: datagrams may be lost.
const LIMIT: Duration = Duration::from_secs(10);

/// Polls of an empty CQ between two checks of the clock and of signals.
const SPINS: u32 = 1 << 12;

/// The bit of the `wr_id`s of sends.
const SEND: u64 = 1 << 32;

/// Number and size of the messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    pub(crate) count: u32,
    /// Bytes of a message.
    pub(crate) size: u32,
}

/// A datagram queue pair in RTS, whose receives share one buffer.
pub(crate) struct Node {
    /// Dropped before the memory that it uses.
    qp: Qp<Ud>,
    cq: Cq,
    memory: Mr<Buffer>,
    context: Context,
    port: PortNum,
    qkey: u32,
    messages: Messages,
    /// Where messages go.
    peer: Option<(Ah, u32, u32)>,
}

impl Node {
    /// A queue pair on the device of an identifier.
    pub(crate) fn new(id: &CmId, messages: Messages, flags: QpCreateFlags) -> Result<Self> {
        let device = id.addresses()?.device.context("the identifier has no device")?;
        let (QpAttr { qkey, .. }, _) = id.init_qp_attr(QpState::INIT)?;
        let context = device.find()?.open()?;
        let Messages { count, size } = messages;
        let mtu = context.query_port(device.port)?.active_mtu.bytes();
        ensure!(
            count == 0 || size <= mtu,
            "a message of {size} bytes (-S) exceeds the MTU of the port, {mtu} bytes"
        );
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(&CqInit::new((2 * count).max(2)))?;
        let cap = QpCap { max_send_wr: count.max(1), max_recv_wr: count.max(1), ..QpCap::default() };
        let mut qp = pd.create_qp::<Ud>(&QpInit { cap, flags, ..QpInit::new(&cq, &cq) })?;
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            let (attr, mask) = id.init_qp_attr(state)?;
            qp.modify(&attr, mask)?;
        }
        let memory = pd.register(Buffer::zeroed(GRH_BYTES + size as usize)?, Access::LOCAL_WRITE)?;
        Ok(Self { qp, cq, memory, context, port: device.port, qkey, messages, peer: None })
    }

    pub(crate) fn qp_num(&self) -> u32 {
        self.qp.qp_num()
    }

    /// Posts the receives of all messages.
    pub(crate) fn post_recvs(&mut self) -> Result<()> {
        let sges = [self.memory.sge(..)?];
        for wr_id in 0..self.messages.count.into() {
            // SAFETY: the memory outlives the queue pair, which is dropped first, and is accessed by
            // copying only.
            unsafe { self.qp.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }?;
        }
        Ok(())
    }

    /// Sends to the address of an event from now on.
    pub(crate) fn set_peer(&mut self, peer: &UdPeer) -> Result<()> {
        self.send_to(&peer.address, peer.qp_num, peer.qkey)
    }

    fn send_to(&mut self, address: &AhAttr, qp_num: u32, qkey: u32) -> Result<()> {
        self.peer = Some((self.qp.pd().create_ah(address)?, qp_num, qkey));
        Ok(())
    }

    /// Receives the datagrams of a multicast group.
    pub(crate) fn attach(&mut self, group: &UdPeer) -> Result<()> {
        Ok(group.attach(&mut self.qp)?)
    }

    /// Posts the sends of all messages. Their immediate data is the QPN.
    pub(crate) fn post_sends(&mut self, flags: SendFlags) -> Result<()> {
        let (ah, qp_num, qkey) = self.peer.as_ref().context("the address of the peer is unknown")?;
        let imm = Some(Imm::from(self.qp.qp_num()));
        let to = Datagram { imm, ..Datagram::new(ah, *qp_num, *qkey) };
        let sges = [self.memory.sge(..self.messages.size as usize)?];
        for number in 0..u64::from(self.messages.count) {
            let wr_id = SEND | number;
            let request = SendRequest { wr_id, operation: to, flags, payload: Payload::Sges(&sges) };
            // SAFETY: the memory outlives the queue pair, which is dropped first.
            unsafe { self.qp.post_send(&[request]) }?;
        }
        Ok(())
    }

    /// Waits for the completions of as many messages as there are. Replies go to the sender of the
    /// first one.
    pub(crate) fn wait_all(&mut self, stop: &Stop) -> Result<()> {
        let count = self.messages.count;
        for done in 0..count {
            let Some(completion) = self.poll(stop)? else {
                let cause = match self.context.link_down(self.port) {
                    Some(down) => down.to_string(),
                    None => "datagrams may be lost".into(),
                };
                bail!(
                    "{done} of {count} messages have completed, then none for {} s; {cause}",
                    LIMIT.as_secs()
                );
            };
            let status = completion.status;
            if status != WcStatus::SUCCESS {
                let is_send = completion.wr_id & SEND != 0;
                let cause = status::cause(&self.context, self.port, status, is_send);
                bail!("message {done} has failed: {} ({}): {cause}", status::words(status), status.0);
            }
            if self.peer.is_none() && completion.opcode == WcOpcode::RECV {
                self.reply_to(&completion)?;
            }
        }
        Ok(())
    }

    fn reply_to(&mut self, completion: &WorkCompletion) -> Result<()> {
        let imm = completion.imm().context("the client's message has no immediate data")?;
        let mut header = [0; GRH_BYTES];
        self.memory.read(0, &mut header)?;
        let address = self.context.ah_attr_from_wc(self.port, completion, &header)?;
        self.send_to(&address, imm.0, self.qkey)
    }

    /// The next completion. `None`: there is none within the limit.
    fn poll(&mut self, stop: &Stop) -> Result<Option<WorkCompletion>> {
        let end = Instant::now() + LIMIT;
        while Instant::now() < end {
            stop.check()?;
            for _ in 0..SPINS {
                if let Some(completion) = self.cq.poll_one() {
                    return Ok(Some(completion));
                }
            }
        }
        Ok(None)
    }
}

/// The event of a step of an identifier, or the error that it means.
pub(crate) fn step<T>(
    id: &CmId,
    stop: &Stop,
    what: &str,
    mut is_it: impl FnMut(EventKind) -> ControlFlow<T, EventKind>,
) -> Result<T> {
    loop {
        let event = next_event(id.channel(), stop)?;
        if let Some(reason) = failure(&event.kind, Some(id)) {
            bail!("{what}: {reason}");
        }
        match is_it(event.kind) {
            ControlFlow::Break(taken) => return Ok(taken),
            ControlFlow::Continue(EventKind::AddrChange) => {}
            ControlFlow::Continue(other) => bail!("{what}: event {other:?}"),
        }
    }
}
