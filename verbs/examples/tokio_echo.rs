//! Echo over RDMA in two tasks of tokio: one sends messages, the other sends each back.
//!
//! `cargo run --example tokio_echo --features tokio`, on a machine with an RDMA device; with
//! `--features soft` and `-- -d soft0` on any.

#[path = "common/device.rs"]
mod device;

use bareverbs::runtime::Tokio;
use bareverbs::{Access, Buffer, Context, Done, Endpoint, Mr, Op, Pd, Report};
use clap::Parser;
use device::DeviceOption;

const MESSAGES: u32 = 1000;
const BYTES: usize = 64;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Report> {
    run(&DeviceOption::parse().open()?).await
}

pub(crate) async fn run(context: &Context) -> Result<(), Report> {
    let pd = context.alloc_pd()?;
    let mut client = Endpoint::new(&pd, 1, 2)?;
    let mut server = Endpoint::new(&pd, 1, 2)?;
    // Between two machines, the addresses go over a socket.
    client.connect(&server.address())?;
    server.connect(&client.address())?;
    client.attach(Tokio)?;
    server.attach(Tokio)?;
    server.post(Op::recv(buffer(&pd)?))?;

    let server = tokio::spawn(echo(server, vec![buffer(&pd)?, buffer(&pd)?]));
    ask(client, &pd).await?;
    server.await.expect("the server does not panic")?;
    println!("{MESSAGES} messages went there and back");
    Ok(())
}

fn buffer(pd: &Pd) -> bareverbs::Result<Mr<Buffer>> {
    Ok(pd.register(Buffer::zeroed(BYTES)?, Access::LOCAL_WRITE)?)
}

/// Sends each message back in its receive buffer.
async fn echo(mut endpoint: Endpoint<Mr<Buffer>>, mut spare: Vec<Mr<Buffer>>) -> bareverbs::Result<()> {
    let mut answered = 0;
    while answered < MESSAGES {
        let done = endpoint.next().await?;
        if done.message().is_none() {
            // A send has completed, so its buffer is free.
            answered += 1;
            spare.push(done.into_buffer());
            continue;
        }
        let length = done.len as usize;
        let next = spare.pop().expect("one buffer is posted, one is being sent, so one is spare");
        endpoint.post(Op::recv(next))?;
        endpoint.post(Op::send(done.into_buffer(), ..length))?;
    }
    Ok(())
}

/// Sends one message after the other and waits for each answer.
async fn ask(mut endpoint: Endpoint<Mr<Buffer>>, pd: &Pd) -> bareverbs::Result<()> {
    let (mut question, mut room) = (buffer(pd)?, buffer(pd)?);
    for number in 0..MESSAGES {
        let text = format!("message {number}");
        question.write(0, text.as_bytes())?;
        endpoint.post(Op::recv(room))?;
        endpoint.post(Op::send(question, ..text.len()))?;
        // The answer's completion may come before that of the send.
        let ended = [endpoint.next().await?, endpoint.next().await?];
        let answer = ended.iter().find_map(Done::message);
        assert_eq!(answer, Some(text.as_bytes()), "each message comes back as it was");
        [question, room] = ended.map(Done::into_buffer);
    }
    Ok(())
}
