//! `transfer DEVICE receive FILE` prints its TCP address; `transfer DEVICE send FILE ADDRESS` sends.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use bareverbs::{Address, Device, Report};
use bareverbs_testing_example::Transfer;

fn main() -> Result<(), Report> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [device, "receive", file] => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            println!("{}", listener.local_addr()?);
            let (mut transfer, mut stream) = connect(device, listener.accept()?.0)?;
            fs::write(file, transfer.receive()?)?;
            // The sender closes the socket when it has the acknowledgement of its last message.
            stream.read_to_end(&mut Vec::new())?;
        }
        [device, "send", file, address] => {
            let (mut transfer, _stream) = connect(device, TcpStream::connect(address)?)?;
            transfer.send(&fs::read(file)?)?;
        }
        _ => Err(std::io::Error::other("usage: transfer DEVICE receive FILE | DEVICE send FILE ADDRESS"))?,
    }
    Ok(())
}

/// Exchanges the addresses over TCP.
fn connect(device: &str, mut stream: TcpStream) -> Result<(Transfer, TcpStream), Report> {
    let mut transfer = Transfer::new(&Device::find(device)?.open()?.alloc_pd()?)?;
    stream.write_all(&transfer.address().to_bytes())?;
    let mut peer = [0; Address::LEN];
    stream.read_exact(&mut peer)?;
    transfer.connect(&Address::from_bytes(&peer)?)?;
    // Both ends are connected before one sends.
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;
    Ok((transfer, stream))
}
