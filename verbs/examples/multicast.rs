//! Datagrams (UD) to a multicast group. Any number of hosts receive them.
//!
//! ```text
//! host 1: cargo run --example multicast -- receive
//! host 2: cargo run --example multicast -- send
//! ```
//!
//! Datagrams may be lost. A receiver counts them. Groups of InfiniBand ports also have a LID: see
//! `Qp::attach_mcast_with_lid`.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bareverbs::{
    Access, AhAttr, Arm, Buffer, CqInit, Datagram, Device, GRH_BYTES, Gid, Grh, MULTICAST_QP, Mr, Qp, QpCap,
    QpInit, RecvRequest, SendFlags, Ud, UdInitAttr, WcStatus, WorkCompletion,
};
use clap::{Parser, ValueEnum};

/// The port of the device.
const PORT: u8 = 1;
/// Datagrams with another Q_Key are dropped.
const QKEY: u32 = 0x1234;
/// The longest payload in bytes.
const PAYLOAD: usize = 64;
/// Posted receives. Each has space for the global route header (GRH) before the payload.
const RECEIVES: u32 = 64;
const RECEIVE: usize = GRH_BYTES + PAYLOAD;

#[derive(Parser)]
struct Options {
    role: Role,
    /// The group, an IPv4 or IPv6 multicast address.
    #[arg(long, default_value = "239.1.2.3")]
    group: Gid,
    /// Datagrams that are sent or received.
    #[arg(short = 'n', long, default_value_t = 100)]
    messages: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Send,
    Receive,
}

fn main() -> Result<()> {
    let Options { role, group, messages } = Options::parse();
    let context = Device::first()?.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let cap = QpCap { max_recv_wr: RECEIVES, max_inline_data: PAYLOAD as u32, ..QpCap::default() };
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(256) })?;
    let mut qp = pd.create_qp::<Ud>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
    qp.init(&UdInitAttr::new(PORT, QKEY))?;
    qp.ready_to_receive()?;
    qp.ready_to_send(0)?;

    // Waits for a completion, asleep.
    let mut wait = || -> Result<WorkCompletion> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            // An armed CQ raises an event for later completions only: poll after arming it.
            cq.arm(Arm::Any)?;
            if let Some(done) = cq.poll_one() {
                ensure!(done.status == WcStatus::SUCCESS, "{}", context.explain(done.status));
                return Ok(done);
            }
            let left = end.saturating_duration_since(Instant::now());
            channel.get_event_timeout(left)?.context("no datagram for 10 seconds")?;
        }
    };

    match role {
        Role::Send => {
            let gid = context.default_gid(PORT)?;
            let ah = pd.create_ah(&AhAttr::global(PORT, group, gid.index))?;
            for number in 1..=messages {
                let text = format!("datagram {number}");
                let mut batch = qp.start_send();
                let to = Datagram::new(&ah, MULTICAST_QP, QKEY);
                batch.send_to_inline(number.into(), to, text.as_bytes(), SendFlags::SIGNALED)?;
                batch.ring()?;
                // The device has sent it. UD has no acknowledgement.
                wait()?;
                thread::sleep(Duration::from_millis(1));
            }
            println!("sent {messages} datagrams to {group}");
        }
        Role::Receive => {
            let memory = pd.register(Buffer::zeroed(RECEIVES as usize * RECEIVE)?, Access::LOCAL_WRITE)?;
            for slot in 0..RECEIVES {
                post_recv(&mut qp, &memory, slot)?;
            }
            qp.attach_mcast(group)?;
            println!("listening to {group}");
            for number in 1..=messages {
                let done = wait()?;
                let (slot, len) = (done.wr_id as u32, done.byte_len as usize);
                ensure!((GRH_BYTES..=RECEIVE).contains(&len), "a datagram of {len} bytes");
                let mut bytes = [0; RECEIVE];
                memory.read(slot as usize * RECEIVE, &mut bytes[..len])?;
                let (header, payload) = bytes[..len].split_first_chunk().context("a GRH")?;
                let Some(from) = Grh::parse(header) else { bail!("a datagram without a GRH") };
                let text = std::str::from_utf8(payload)?;
                println!("{} of {} sent: {text}", done.src_qp, from.sgid);
                ensure!(text == format!("datagram {number}"), "a datagram is lost");
                post_recv(&mut qp, &memory, slot)?;
            }
            qp.detach_mcast(group)?;
        }
    }
    Ok(())
}

fn post_recv(qp: &mut Qp<Ud>, memory: &Mr<Buffer>, slot: u32) -> Result<()> {
    let begin = slot as usize * RECEIVE;
    let sges = [memory.sge(begin..begin + RECEIVE)?];
    // SAFETY: the bytes of the slot are read by the copying `Mr::read` only.
    unsafe { qp.post_recv(&[RecvRequest::new(slot.into(), &sges)]) }?;
    Ok(())
}
