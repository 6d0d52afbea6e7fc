//! Hubs and servers of the safe layer, connected by IP address.

use std::net::SocketAddr;
use std::thread;

use bareverbs::runtime::Tokio;
use bareverbs::server::{Client, Event, Server};
use bareverbs::{Endpoint, Hub, Op, Pd, Pool, PoolBuffer};
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::{Connector, Error, Listener, PortSpace};

use crate::host::*;

fn listen() -> (Listener, SocketAddr) {
    let listener = Listener::bind(SocketAddr::new(ip(), 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn domain() -> Pd {
    device::open().alloc_pd().unwrap()
}

fn buffer(pool: &Pool, bytes: &[u8]) -> PoolBuffer {
    let mut buffer = pool.take().expect("a free buffer");
    buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    buffer
}

#[kernel_test(crate::host::has_ip)]
pub(crate) fn connections_of_hubs_are_made_by_ip_address() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = domain();
        let (hub, pool): (Hub, _) = (Hub::new(&pd, 64).unwrap(), Pool::new(&pd, 8, 64).unwrap());
        let options = Endpoint::options().sends(2).recvs(2);
        thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let request = listener.request().in_time().unwrap();
                request.accept_on(&hub, &options).in_time().unwrap()
            });
            let connector = Connector::new();
            let route = connector.resolve(addr).in_time().unwrap();
            let mut client = route.connect_on(&hub, &options).in_time().unwrap();
            let mut server = accepted.join().unwrap();
            assert_eq!(client.link.peer().qp_num, server.queue.address().qp_num);
            let received = server.queue.post(Op::recv(pool.take().unwrap()));
            client.queue.post(Op::send(buffer(&pool, b"by address"), ..10)).wait().unwrap();
            assert_eq!(received.wait().unwrap().message(), Some(&b"by address"[..]));
            // The end of the connection is that of the connection manager.
            let end = scope.spawn(move || client.link.disconnect().in_time().unwrap());
            server.link.ended().in_time().unwrap();
            server.queue.abort();
            end.join().unwrap();
        });
    });
}

#[kernel_test(crate::host::has_ip)]
pub(crate) fn clients_are_admitted_by_ip_address() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = domain();
        let mut server: Server = Server::options().peers(4).message_size(64).build(&pd).unwrap();
        let connector = Connector::new();
        // The drop of a link ends its connection, and may lose a message that is under way.
        let (clients, links): (Vec<(Client, _)>, _) = thread::scope(|scope| {
            let handle = server.handle();
            let admit = || listener.request().in_time().unwrap().admit(handle).in_time().unwrap();
            let admitted = scope.spawn(move || (0..3).map(|_| admit()).collect::<Vec<_>>());
            let clients = (0..3u8).map(|number| {
                let client: Client = Client::options().message_size(64).build(&pd).unwrap();
                let route = connector.resolve(addr).in_time().unwrap();
                let connection = route.connect_client(&client).in_time().unwrap();
                let mut hello = client.take().unwrap();
                hello.bytes_mut()[0] = number;
                client.send(hello, ..1).wait().unwrap();
                (client, connection)
            });
            let clients = clients.collect();
            let admitted = admitted.join().unwrap();
            assert_eq!(admitted.len(), handle.peers().len());
            (clients, admitted)
        });
        let mut seen = Vec::new();
        while seen.len() < 3 {
            match server.next().wait().unwrap() {
                Event::Message(message) => seen.push(message.bytes()[0]),
                event => panic!("{event:?}"),
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        drop((clients, links));
    });
}

#[kernel_test(crate::host::has_ip)]
pub(crate) fn tasks_connect_hubs_by_ip_address() {
    nothing_leaks(|| {
        let pd = domain();
        let (hub, pool): (Hub, _) = (Hub::new(&pd, 64).unwrap(), Pool::new(&pd, 8, 64).unwrap());
        let options = Endpoint::options().sends(2).recvs(2);
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (listener, addr) = listen();
            let connector = Connector::new();
            listener.attach(Tokio).unwrap();
            connector.attach(Tokio).unwrap();
            let accept = async { listener.request().await?.accept_on(&hub, &options).await };
            let connect = async { connector.resolve(addr).await?.connect_on(&hub, &options).await };
            let (server, client) = ::tokio::join!(accept, connect);
            // The drop of a link ends its connection.
            let (server, client) = (server.unwrap(), client.unwrap());
            let received = server.queue.post(Op::recv(pool.take().unwrap()));
            client.queue.post(Op::send(buffer(&pool, b"task"), ..4)).wait().unwrap();
            assert_eq!(received.wait().unwrap().message(), Some(&b"task"[..]));
        });
    });
}

#[kernel_test(crate::host::has_ip)]
fn private_data_that_is_no_address_is_rejected() {
    nothing_leaks(|| {
        let (listener, addr) = listen();
        let pd = domain();
        let hub: Hub = Hub::new(&pd, 64).unwrap();
        let options = Endpoint::options();
        for private_data in [&b""[..], &b"hello"[..], &[1; 56][..]] {
            let active = resolved(addr, PortSpace::Tcp);
            active.connect(&bareverbs_rdmacm::ConnParam { private_data, ..param() }).unwrap();
            let request = listener.request().in_time().unwrap();
            let refused = request.accept_on(&hub, &options).in_time().unwrap_err();
            assert!(matches!(refused, Error::PeerAddress { verb: "exchange", .. }), "{refused}");
            let kind = next_of(active.channel(), active.key());
            let bareverbs_rdmacm::event::EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
            assert_eq!(rejected.reason, by_application());
        }
    });
}
