//! Remote procedure calls with many clients, in tasks of tokio. The procedure turns text into upper
//! case.
//!
//! ```text
//! host 1: cargo run --example rpc_tokio --features tokio
//! host 2: cargo run --example rpc_tokio --features tokio -- HOST1
//! ```

#![forbid(unsafe_code)]

#[path = "common/device.rs"]
mod device;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::runtime::Tokio;
use bareverbs::server::{Client, Event, Handle, Server};
use bareverbs::{Address, Pd};
use clap::Parser;
use device::DeviceOption;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

#[derive(Parser)]
struct Options {
    /// The server's host. Without it, run as server.
    host: Option<String>,
    /// The server's TCP port.
    #[arg(short, long, default_value_t = 7471)]
    port: u16,
    #[command(flatten)]
    device: DeviceOption,
    /// Client: the number of clients. Server: end after so many.
    #[arg(long)]
    clients: Option<u32>,
    /// Calls of each client.
    #[arg(long, default_value_t = 100)]
    calls: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse();
    let pd = options.device.open()?.alloc_pd()?;
    let Some(host) = options.host else {
        return serve(&pd, options.port, options.clients.unwrap_or(u32::MAX)).await;
    };
    let clients = options.clients.unwrap_or(8);
    let mut tasks = JoinSet::new();
    for number in 0..clients {
        tasks.spawn(ask(pd.clone(), host.clone(), options.port, number, options.calls));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    println!("{clients} clients made {} calls each", options.calls);
    Ok(())
}

async fn serve(pd: &Pd, port: u16, clients: u32) -> Result<()> {
    let mut server = Server::options().peers(64).build(pd)?;
    // The driver wakes the tasks that wait for messages.
    tokio::spawn(server.handle().drive(Tokio)?);
    let listener = TcpListener::bind(("::", port)).await?;
    println!("listening on TCP port {port}");
    let (mut ended, mut closing) = (0, None);
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (handle, (stream, _)) = (server.handle().clone(), accepted?);
                tokio::spawn(async move {
                    if let Err(error) = admit(&handle, stream).await {
                        eprintln!("a client was not admitted: {error:#}");
                    }
                });
            }
            // A client that dies while it has no call ends with an event, because idle clients are
            // probed.
            event = server.next() => match event? {
                Event::Message(message) => {
                    let Some(mut answer) = server.handle().take() else { bail!("more calls than buffers") };
                    let len = message.bytes().len();
                    answer.bytes_mut()[..len].copy_from_slice(message.bytes());
                    answer.bytes_mut()[..len].make_ascii_uppercase();
                    message.reply(answer, ..len).detach();
                }
                Event::Failed(peer, error) => {
                    eprintln!("{peer:?} failed: {error}");
                    ended += 1;
                }
                Event::Closed(_) => ended += 1,
                // The server was shut down, and all clients have ended.
                Event::Ended => break,
                _ => {}
            }
        }
        if ended >= clients && closing.is_none() {
            closing = Some(server.handle().shutdown());
        }
    }
    println!("{:?}", closing.context("the server was shut down")?.await?);
    Ok(())
}

/// Reads a client's address from its TCP connection and connects a QP to it.
async fn admit(handle: &Handle, mut stream: TcpStream) -> Result<()> {
    let mut client = [0; Address::LEN];
    stream.read_exact(&mut client).await?;
    let (_peer, address) = handle.admit(&Address::from_bytes(&client)?)?;
    Ok(stream.write_all(&address.to_bytes()).await?)
}

async fn ask(pd: Pd, host: String, port: u16, number: u32, calls: u32) -> Result<()> {
    let mut client = Client::options().build(&pd)?;
    let handle = client.handle();
    tokio::spawn(handle.drive(Tokio)?);
    let (mut stream, mut server) = (TcpStream::connect((host, port)).await?, [0; Address::LEN]);
    stream.write_all(&client.address().to_bytes()).await?;
    stream.read_exact(&mut server).await?;
    client.connect(&Address::from_bytes(&server)?)?;

    for call in 0..calls {
        let answer = call_server(&mut client, &format!("call {call} of client {number}")).await?;
        ensure!(answer == format!("CALL {call} OF CLIENT {number}"), "the answer is `{answer}`");
    }
    // Until its last event, the server needs the connection.
    let closing = client.shutdown();
    while !matches!(client.next().await?, Event::Ended) {}
    closing.await?;
    Ok(())
}

async fn call_server(client: &mut Client, text: &str) -> Result<String> {
    let mut question = client.acquire().await?;
    question.bytes_mut()[..text.len()].copy_from_slice(text.as_bytes());
    client.send(question, ..text.len()).detach();
    match client.next().await? {
        Event::Message(answer) => Ok(String::from_utf8(answer.bytes().to_vec())?),
        Event::Failed(_, error) => Err(error.into()),
        _ => bail!("the server has closed the connection"),
    }
}
