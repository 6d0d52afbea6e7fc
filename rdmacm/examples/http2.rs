//! HTTP/2 over RDMA byte streams, with hyper.
//!
//! ```sh
//! http2 server 10.1.0.1:7471
//! http2 client 10.1.0.1:7471 /hello
//! ```
//!
//! The streams implement the traits of tokio, so that hyper needs to know nothing about RDMA.
//!
//! With the feature `soft`, `-d` makes a soft device, which needs no RDMA device:
//!
//! ```sh
//! http2 -d soft:127.0.0.2 server 127.0.0.2:7471
//! http2 -d soft:127.0.0.3 client 127.0.0.2:7471 /hello
//! ```

use std::convert::Infallible;
use std::net::SocketAddr;

use bareverbs::runtime::Tokio;
use bareverbs::{Device, Report};
use bareverbs_rdmacm::stream::{RdmaListener, StreamOptions};
use clap::{Parser, Subcommand};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};

/// Answers with the path and the body of the request.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let mut text = format!("{} {}\n", request.method(), request.uri().path()).into_bytes();
    text.extend(request.into_body().collect().await?.to_bytes());
    Ok(Response::new(Full::new(text.into())))
}

/// Serves connections, until accepting one fails.
pub(crate) async fn serve(listener: &RdmaListener) -> Result<Infallible, Report> {
    loop {
        let stream = TokioIo::new(listener.accept().await?);
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            if let Err(error) = server.serve_connection(stream, service_fn(answer)).await {
                eprintln!("a connection has failed: {error}");
            }
        });
    }
}

/// Sends `requests`, each a path and a body, at the same time over one connection. Returns the
/// answers in their order.
pub(crate) async fn fetch(peer: SocketAddr, requests: &[(&str, Vec<u8>)]) -> Result<Vec<Bytes>, Report> {
    let stream = TokioIo::new(StreamOptions::default().runtime(Tokio).connect(peer).await?);
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?;
    let connection = tokio::spawn(connection);
    let mut sent = Vec::new();
    for (path, body) in requests {
        let uri = format!("http://{peer}{path}");
        let request = Request::post(uri).body(Full::<Bytes>::new(body.clone().into()))?;
        let mut sender = sender.clone();
        sent.push(tokio::spawn(async move { sender.send_request(request).await }));
    }
    let mut answers = Vec::new();
    for response in sent {
        answers.push(response.await??.into_body().collect().await?.to_bytes());
    }
    drop(sender);
    connection.await??;
    Ok(answers)
}

/// HTTP/2 over RDMA byte streams.
#[derive(Parser)]
struct Arguments {
    /// The soft device that the stream uses, such as soft:127.0.0.2. Default: the device of the address.
    #[arg(short, long)]
    device: Option<String>,
    #[command(subcommand)]
    side: Side,
}

#[derive(Subcommand)]
enum Side {
    /// Answers requests.
    Server {
        /// The address to listen on, with a port.
        address: SocketAddr,
    },
    /// Sends one request.
    Client {
        /// The server's address, with its port.
        address: SocketAddr,
        /// The path of the request, such as /hello.
        path: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Report> {
    let arguments = Arguments::parse();
    if let Some(device) = &arguments.device {
        Device::find(device)?;
    }
    match arguments.side {
        Side::Server { address } => {
            let listener = StreamOptions::default().runtime(Tokio).listen(address)?;
            println!("listening at {}", listener.local_addr());
            match serve(&listener).await? {}
        }
        Side::Client { address, path } => {
            let answers = fetch(address, &[(&path, b"hello over RDMA".to_vec())]).await?;
            println!("{}", String::from_utf8_lossy(&answers[0]));
            Ok(())
        }
    }
}
