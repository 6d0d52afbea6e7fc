//! Datagrams (UD) to a multicast group. Any number of hosts receive them.
//!
//! ```text
//! host 1: cargo run --example multicast -- receive
//! host 2: cargo run --example multicast -- send
//! ```
//!
//! Datagrams may be lost. A receiver counts them. Groups of InfiniBand subnets also have a LID, which
//! the subnet administrator assigns: `--lid`.

#![forbid(unsafe_code)]

#[path = "common/device.rs"]
mod device;

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bareverbs::datagram::DatagramAddress;
use bareverbs::qp::GRH_BYTES;
use bareverbs::{Datagrams, Gid, Op, Pool};
use clap::{Parser, ValueEnum};
use device::DeviceOption;

/// Datagrams with another Q_Key are dropped.
const QKEY: u32 = 0x1234;
/// The longest payload in bytes.
const PAYLOAD: usize = 64;
/// Posted receives.
const RECEIVES: u32 = 64;

#[derive(Parser)]
struct Options {
    role: Role,
    #[command(flatten)]
    device: DeviceOption,
    /// The group, an IPv4 or IPv6 multicast address.
    #[arg(long, default_value = "239.1.2.3")]
    group: Gid,
    /// The LID of the group. InfiniBand only.
    #[arg(long)]
    lid: Option<u16>,
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
    let Options { role, device, group, lid, messages } = Options::parse();
    let pd = device.open()?.alloc_pd()?;
    let options = Datagrams::options().qkey(QKEY).recvs(RECEIVES).inline(PAYLOAD as u32);
    let mut datagrams: Datagrams = options.build(&pd)?;
    match role {
        Role::Send => {
            let mut address = DatagramAddress::group(group, QKEY);
            address.lid = lid.unwrap_or(0);
            // A sender need not be a member of the group.
            let group = datagrams.destination(&address).wait()?;
            for number in 1..=messages {
                datagrams.post(Op::send_to_inline(&group, format!("datagram {number}").as_bytes()))?;
                // The device has sent it. UD has no acknowledgement.
                datagrams.next_send().wait()?;
                thread::sleep(Duration::from_millis(1));
            }
            println!("sent {messages} datagrams to {}", address.gid);
        }
        Role::Receive => {
            // Each buffer has space for the global route header (GRH) before the payload.
            let pool = Pool::new(&pd, RECEIVES as usize, GRH_BYTES + PAYLOAD)?;
            while let Some(buffer) = pool.take() {
                datagrams.post(Op::recv(buffer))?;
            }
            match lid {
                Some(lid) => datagrams.join_with_lid(group, lid)?,
                None => datagrams.join(group)?,
            }
            println!("listening to {group}");
            for number in 1..=messages {
                let received = datagrams.next_recv().wait_timeout(Duration::from_secs(10)).transpose()?;
                let received = received.context("no datagram for 10 seconds")?;
                let (text, sender) = (std::str::from_utf8(received.message())?, received.sender());
                let gid = sender.gid.context("a datagram without a GRH")?;
                println!("{} of {gid} sent: {text}", sender.qp_num);
                ensure!(text == format!("datagram {number}"), "a datagram is lost");
                datagrams.post(Op::recv(received.into_buffer()))?;
            }
            datagrams.leave(group)?;
        }
    }
    Ok(())
}
