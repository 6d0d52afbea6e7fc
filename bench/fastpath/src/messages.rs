//! Whole messages by the raw objects and by the safe layer: post, sleep until the completion event,
//! poll. The work is the same on both: one CQ and one channel for each end, signalled sends.

use anyhow::{Result, ensure};
use bareverbs::cq::{Arm, CompChannel, Completion, Cq, CqInit};
use bareverbs::qp::{
    ConnectAttr, Operation, Payload, Qp, QpCap, QpInit, Rc, RecvRequest, SendFlags, SendRequest, Sge,
};
use bareverbs::{
    Access, Buffer, Context, Endpoint, Mr, Op, Pool, PoolBuffer, Provider, Remote, Spin, WcStatus,
};

use crate::clock::Samples;
use crate::report::Report;

/// Samples of each quantity.
const RUNS: usize = 200;
/// Writes of a batch.
const BATCH: usize = 16;
/// Bytes of a message.
const BYTES: usize = 64;

/// Measures both over the types of provider `P`.
pub(crate) fn all<P: Provider>(report: &Report<'_>, context: &Context<P>) -> Result<()> {
    by_qps(report, context)?;
    by_endpoints(report, context)
}

/// One end of a connection, as a program without the safe layer writes it.
struct Raw<P: Provider> {
    qp: Qp<Rc, P>,
    cq: Cq<P>,
    channel: CompChannel,
    memory: Mr<Buffer>,
}

impl<P: Provider> Raw<P> {
    fn new(context: &Context<P>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(64) })?;
        let memory = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let cap = QpCap { max_send_wr: 32, max_recv_wr: 16, ..QpCap::default() };
        let qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
        Ok(Self { qp, cq, channel, memory })
    }

    fn sge(&self) -> Result<[Sge; 1]> {
        Ok([self.memory.sge(..BYTES)?])
    }

    fn remote(&self) -> Result<Remote> {
        Ok(Remote { addr: self.memory.sge(BYTES..)?.addr, rkey: self.memory.rkey() })
    }

    fn post_recv(&mut self) -> Result<()> {
        let sges = self.sge()?;
        // SAFETY: the memory lives as long as the queue pair and is not accessed meanwhile.
        Ok(unsafe { self.qp.post_recv(&[RecvRequest { wr_id: 2, sges: &sges }]) }?)
    }

    fn post(&mut self, operation: Operation) -> Result<()> {
        let sges = self.sge()?;
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
        // SAFETY: as for `post_recv`.
        Ok(unsafe { self.qp.post_send(&[SendRequest { wr_id: 1, operation, flags, payload }]) }?)
    }

    fn post_writes(&mut self, remote: Remote) -> Result<()> {
        let sges = self.sge()?;
        let mut batch = self.qp.start_send();
        for wr_id in 0..BATCH as u64 {
            let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
            // SAFETY: as for `post_recv`.
            unsafe {
                batch.push(&SendRequest { wr_id, operation: Operation::Write(remote), flags, payload })
            }?;
        }
        Ok(batch.ring()?)
    }

    /// Polls at most `most` completions. Returns how many there were.
    fn poll(&mut self, most: usize) -> Result<usize> {
        let mut completions = self.cq.poll();
        let mut count = 0;
        while count < most
            && let Some(completion) = completions.next()
        {
            ensure!(completion.status() == WcStatus::SUCCESS, "{:?}", completion.status());
            count += 1;
        }
        Ok(count)
    }

    /// Polls `count` completions; sleeps while there is none.
    fn wait(&mut self, mut count: usize) -> Result<()> {
        loop {
            count -= self.poll(count)?;
            if count == 0 {
                return Ok(());
            }
            self.cq.arm(Arm::Any)?;
            count -= self.poll(count)?;
            if count == 0 {
                return Ok(());
            }
            self.channel.next().wait()?;
        }
    }
}

fn by_qps<P: Provider>(report: &Report<'_>, context: &Context<P>) -> Result<()> {
    let (mut alice, mut bob) = (Raw::new(context)?, Raw::new(context)?);
    let gid_index = context.default_gid(1)?.index;
    let (to_alice, to_bob) = (alice.qp.address(1, gid_index)?, bob.qp.address(1, gid_index)?);
    let attr = ConnectAttr { access: Access::REMOTE_WRITE, ..ConnectAttr::new(1, gid_index) };
    alice.qp.connect(&to_alice, &to_bob, &attr)?;
    bob.qp.connect(&to_bob, &to_alice, &attr)?;

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        samples.take(|| {
            bob.post_recv()?;
            alice.post(Operation::Send)?;
            bob.wait(1)?;
            alice.wait(1)
        })?;
    }
    report.line("message by Qp", samples, 1)?;

    let remote = bob.remote()?;
    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        samples.take(|| {
            alice.post_writes(remote)?;
            alice.wait(BATCH)
        })?;
    }
    report.line("writes by Qp", samples, BATCH)
}

fn by_endpoints<P: Provider>(report: &Report<'_>, context: &Context<P>) -> Result<()> {
    let pd = context.alloc_pd()?;
    let options = Endpoint::options().sends(32).recvs(16).spin(Spin::Never);
    let mut alice: Endpoint<PoolBuffer, P> = options.build(&pd)?;
    let mut bob: Endpoint<PoolBuffer, P> = options.build(&pd)?;
    alice.connect(&bob.address())?;
    bob.connect(&alice.address())?;
    let pool = Pool::new(&pd, 2 + BATCH, BYTES)?;
    let buffer = || pool.take().expect("a free buffer");

    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        samples.take(|| {
            bob.post(Op::recv(buffer()))?;
            alice.post(Op::send(buffer(), ..))?;
            bob.next().wait()?;
            alice.next().wait()?;
            anyhow::Ok(())
        })?;
    }
    report.line("message by Endpoint", samples, 1)?;

    let exposed = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let remote = Remote { addr: exposed.sge(..BYTES)?.addr, rkey: exposed.rkey() };
    let mut samples = Samples::new(RUNS);
    for _ in 0..RUNS {
        samples.take(|| {
            let mut batch = alice.batch();
            for _ in 0..BATCH {
                batch.post(Op::write(buffer(), .., remote))?;
            }
            batch.ring()?;
            for _ in 0..BATCH {
                alice.next().wait()?;
            }
            anyhow::Ok(())
        })?;
    }
    report.line("writes by Endpoint", samples, BATCH)
}
