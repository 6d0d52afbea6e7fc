//! A server with one shared receive queue (SRQ) for all its clients, by hand. It sends each message
//! back.
//!
//! ```text
//! host 1: cargo run --example srq_server
//! host 2: cargo run --example srq_server -- HOST1
//! ```
//!
//! It shows the SRQ itself. Posting to it is `unsafe`, because the compiler can't see how long the
//! device uses the memory of a receive. `bareverbs::server` has such a server without
//! `unsafe`, with flow control and an orderly end; see the example `rpc_tokio`.

mod common;

use std::collections::HashMap;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use bareverbs::cq::CqInit;
use bareverbs::qp::{ConnectAttr, QpCap, QpInit, Rc, RecvRequest, SendFlags};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::{Access, Buffer, Endpoint, Mr, Op, Pd, Pool, WcOpcode, WcStatus};
use clap::Parser;
use common::{Ends, Lines};

/// The port of the device.
const PORT: u8 = 1;
/// The longest message in bytes.
const LEN: usize = 64;
/// Receives of the SRQ, for all clients.
const RECEIVES: u32 = 256;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Clients that the server waits for before it answers.
    #[arg(long, default_value_t = 4)]
    clients: u32,
    /// Messages of a client.
    #[arg(short = 'n', long, default_value_t = 100)]
    messages: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pd = options.ends.open()?.alloc_pd()?;
    match &options.ends.host {
        None => serve(&pd, &options),
        Some(host) => ask(&pd, host, &options),
    }
}

fn serve(pd: &Pd, options: &Options) -> Result<()> {
    let context = pd.context();
    let memory = pd.register(Buffer::zeroed(RECEIVES as usize * LEN)?, Access::LOCAL_WRITE)?;
    let mut srq = pd.create_srq(&SrqInit::new(RECEIVES))?;
    for slot in 0..RECEIVES {
        post_recv(&mut srq, &memory, slot.into())?;
    }
    // A client has one message on its way. Its next one can arrive before the send of the answer is
    // complete, so one send per QP is not enough.
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 0, max_inline_data: LEN as u32, ..QpCap::default() };
    // All completions fit: those of the receives, and of the sends that the QPs were granted.
    let mut cq = context.create_cq(&CqInit::new(RECEIVES))?;
    let gid = context.default_gid(PORT)?;

    let listener = options.ends.listen()?;
    let (mut qps, mut entries) = (HashMap::new(), RECEIVES);
    for _ in 0..options.clients {
        let mut client = Lines::new(listener.accept()?.0);
        let mut qp = pd.create_qp::<Rc>(&QpInit { cap, srq: Some(&srq), ..QpInit::new(&cq, &cq) })?;
        entries += qp.cap().max_send_wr;
        if cq.capacity() < entries {
            cq.resize(entries)?;
        }
        let local = qp.address(PORT, gid.index)?;
        qp.connect(&local, &client.receive()?, &ConnectAttr::new(PORT, gid.index))?;
        client.send(local)?;
        qps.insert(qp.qp_num(), (qp, client));
    }

    // Each message and each answer has a completion.
    let mut left = 2 * options.clients * options.messages;
    while left > 0 {
        let Some(done) = cq.poll_one() else {
            thread::yield_now();
            continue;
        };
        ensure!(done.status == WcStatus::SUCCESS, "QP {}: {}", done.qp_num, context.explain(done.status));
        left -= 1;
        if done.opcode != WcOpcode::RECV {
            continue;
        }
        let (mut bytes, len) = ([0; LEN], done.byte_len as usize);
        memory.read(done.wr_id as usize * LEN, &mut bytes[..len])?;
        post_recv(&mut srq, &memory, done.wr_id)?;
        // The completion names the QP that the message came to.
        let (qp, _) = qps.get_mut(&done.qp_num).context("a message of an unknown QP")?;
        let mut batch = qp.start_send();
        batch.send_inline(0, &bytes[..len], SendFlags::SIGNALED)?;
        batch.ring()?;
    }
    for (_, client) in qps.values_mut() {
        client.send("all answers are acknowledged")?;
    }
    println!("answered {} clients", options.clients);
    Ok(())
}

/// Posts the receive of a slot of the memory. Its `wr_id` is the number of the slot.
fn post_recv(srq: &mut Srq, memory: &Mr<Buffer>, slot: u64) -> Result<()> {
    let begin = slot as usize * LEN;
    let sges = [memory.sge(begin..begin + LEN)?];
    // SAFETY: the bytes of the slot are read by the copying `Mr::read` only. `memory` is dropped
    // after the QPs and the SRQ, because it was declared before them.
    unsafe { srq.post_recv(&[RecvRequest::new(slot, &sges)]) }?;
    Ok(())
}

fn ask(pd: &Pd, host: &str, options: &Options) -> Result<()> {
    let pool = Pool::new(pd, 1, LEN)?;
    let mut endpoint = Endpoint::options().inline(LEN as u32).build(pd)?;
    let mut server = Lines::connect(host, options.ends.port)?;
    server.send(endpoint.address())?;
    endpoint.connect(&server.receive()?)?;
    for number in 0..options.messages {
        let question = format!("message {number} of client {}", std::process::id());
        endpoint.post(Op::recv(pool.take().context("a free buffer")?))?;
        endpoint.post(Op::send_inline(question.as_bytes()))?;
        // The answer may be complete before the send.
        for done in [endpoint.next().wait()?, endpoint.next().wait()?] {
            let answer = done.message();
            ensure!(answer.is_none_or(|answer| answer == question.as_bytes()), "the answer is {answer:?}");
        }
    }
    // The endpoint acknowledges the last answer, too, so it must not be dropped before.
    server.receive::<String>()?;
    println!("{} messages came back", options.messages);
    Ok(())
}
