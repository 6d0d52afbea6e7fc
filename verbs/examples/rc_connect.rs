//! Reliable connected (RC) messages by hand: context, PD, CQs, MRs, QP; INIT, RTR, RTS; post, poll.
//!
//! ```text
//! host 1: cargo run --example rc_connect
//! host 2: cargo run --example rc_connect -- HOST1
//! ```
//!
//! It shows the verbs themselves. Posting is `unsafe` at this level, because the compiler can't see
//! how long the device uses the memory of a request. `bareverbs::Endpoint` does the same
//! without `unsafe`; see the example `file_copy`.

mod common;

use std::thread;

use anyhow::{Result, ensure};
use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::qp::{InitAttr, Qp, QpInit, Rc, RecvRequest, RtrAttr, RtsAttr, SendRequest};
use bareverbs::{Access, Address, Buffer, Context, Mr, WcStatus};
use clap::Parser;
use common::{Ends, Lines};

/// The port of the device. Ports are counted from 1.
const PORT: u8 = 1;
/// Length of the buffers in bytes.
const LEN: usize = 4096;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Messages in each direction; the same on both hosts.
    #[arg(short = 'n', long, default_value_t = 10)]
    messages: u64,
}

fn main() -> Result<()> {
    let Options { ends, messages } = Options::parse();
    // 1. The objects: device -> context -> protection domain -> everything else.
    let context = ends.open()?;
    let pd = context.alloc_pd()?;
    let send_cq = context.create_cq(&CqInit::new(16))?;
    let recv_cq = context.create_cq(&CqInit::new(16))?;
    let outgoing = pd.register(Buffer::zeroed(LEN)?, Access::empty())?;
    let incoming = pd.register(Buffer::zeroed(LEN)?, Access::LOCAL_WRITE)?;
    let qp = pd.create_qp::<Rc>(&QpInit::new(&send_cq, &recv_cq))?;
    let mut end = End { context, qp, send_cq, recv_cq, outgoing, incoming };

    // 2. RESET -> INIT. From here on, receives can be posted.
    end.qp.init(&InitAttr::new(PORT))?;
    let gid = end.context.default_gid(PORT)?;
    let local = end.qp.address(PORT, gid.index)?;

    // 3. The ends exchange their addresses. The server sends its address after it is in RTR, so the
    // client sends first.
    match &ends.host {
        None => {
            let mut client = Lines::new(ends.listen()?.accept()?.0);
            let remote = client.receive()?;
            end.post_recv()?;
            end.connect(&local, &remote)?;
            client.send(local)?;
            for _ in 0..messages {
                let question = end.wait_recv()?;
                end.post_recv()?;
                end.send(&question.to_uppercase())?;
            }
            client.send("all answers are acknowledged")?;
        }
        Some(host) => {
            let mut server = Lines::connect(host, ends.port)?;
            server.send(local)?;
            end.connect(&local, &server.receive()?)?;
            for number in 1..=messages {
                // The receive is posted before the peer can send the answer.
                end.post_recv()?;
                end.send(&format!("message {number}"))?;
                let answer = end.wait_recv()?;
                ensure!(answer == format!("MESSAGE {number}"), "the answer is {answer}");
            }
            // The QP acknowledges the last answer, too, so it must not be destroyed before.
            server.receive::<String>()?;
        }
    }
    println!("{messages} messages went there and back");
    Ok(())
}

/// One end of the connection. One send and one receive are in flight at a time.
struct End {
    context: Context,
    qp: Qp<Rc>,
    send_cq: Cq,
    recv_cq: Cq,
    outgoing: Mr<Buffer>,
    incoming: Mr<Buffer>,
}

impl End {
    /// INIT -> RTR -> RTS. `Qp::connect` does all of it in one call.
    fn connect(&mut self, local: &Address, remote: &Address) -> Result<()> {
        let gid = self.context.default_gid(PORT)?;
        let path = AhAttr { dlid: remote.lid, ..AhAttr::global(PORT, remote.gid, gid.index) };
        self.qp.ready_to_receive(&RtrAttr {
            rq_psn: remote.psn,
            path_mtu: local.mtu.min(remote.mtu),
            ..RtrAttr::new(path, remote.qp_num)
        })?;
        self.qp.ready_to_send(&RtsAttr { sq_psn: local.psn, ..RtsAttr::default() })?;
        Ok(())
    }

    fn post_recv(&mut self) -> Result<()> {
        let sges = [self.incoming.sge(..)?];
        // SAFETY: `incoming` stays registered until the QP is destroyed, because `End` drops its
        // fields in order. Its bytes are read by the copying `Mr::read` only.
        unsafe { self.qp.post_recv(&[RecvRequest::new(1, &sges)]) }?;
        Ok(())
    }

    /// Waits for the message of the posted receive.
    fn wait_recv(&mut self) -> Result<String> {
        let done = wait(&self.context, &mut self.recv_cq)?;
        // The device reports the length, so `read` checks it.
        let mut text = vec![0; done.byte_len as usize];
        self.incoming.read(0, &mut text)?;
        Ok(String::from_utf8(text)?)
    }

    /// Sends a message and waits until the peer's device has acknowledged it.
    fn send(&mut self, text: &str) -> Result<()> {
        self.outgoing.write(0, text.as_bytes())?;
        let sges = [self.outgoing.sge(..text.len())?];
        // SAFETY: `outgoing` stays registered until the QP is destroyed. It is not written before
        // `wait` returns.
        unsafe { self.qp.post_send(&[SendRequest::send(2, &sges).signaled()]) }?;
        wait(&self.context, &mut self.send_cq)?;
        Ok(())
    }
}

/// Polls until a request is complete.
fn wait(context: &Context, cq: &mut Cq) -> Result<WorkCompletion> {
    loop {
        if let Some(done) = cq.poll_one() {
            ensure!(done.status == WcStatus::SUCCESS, "{}", context.explain(done.status));
            return Ok(done);
        }
        // Soft-RoCE needs the processor, too.
        thread::yield_now();
    }
}
