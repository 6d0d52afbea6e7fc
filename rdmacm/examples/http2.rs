//! HTTP/2 over RDMA byte streams, with hyper.
//!
//! ```sh
//! http2 server 10.1.0.1:7471
//! http2 client 10.1.0.1:7471 /hello
//! ```
//!
//! The streams implement the traits of tokio, so that hyper needs to know nothing about RDMA.
//!
//! With the feature `soft`, the last argument may be a soft device:
//!
//! ```sh
//! http2 server 127.0.0.2:7471 soft:127.0.0.2
//! http2 client 127.0.0.2:7471 /hello soft:127.0.0.3
//! ```

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bareverbs::runtime::Tokio;
use bareverbs::{Device, Report};
use bareverbs_rdmacm::stream::{RdmaListener, StreamOptions};
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Report> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    if let Some(device) = arguments.pop_if(|last| last.starts_with("soft:")) {
        Device::find(device)?;
    }
    match arguments[..] {
        ["server", addr] => {
            let listener = StreamOptions::default().runtime(Tokio).listen(addr)?;
            println!("listening at {}", listener.local_addr());
            match serve(&listener).await? {}
        }
        ["client", addr, path] => {
            let answers = fetch(addr.parse()?, &[(path, b"hello over RDMA".to_vec())]).await?;
            println!("{}", String::from_utf8_lossy(&answers[0]));
            Ok(())
        }
        _ => Err(io::Error::other(
            "usage: http2 server ADDR:PORT [DEVICE] | http2 client ADDR:PORT PATH [DEVICE]",
        ))?,
    }
}
