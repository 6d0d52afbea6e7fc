//! What the examples of the documentation run on: a soft device on a fabric of its own.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::{self, Thread};

use bareverbs::cq::{Cq, CqInit};
use bareverbs::datagram::DatagramAddress;
use bareverbs::qp::{ConnectAttr, Qp, QpCap, QpInit, Rc, RecvRequest, SendFlags};
use bareverbs::server::{Client, PeerId, Server};
use bareverbs::soft::{Fabric, SoftDevice, named_fabric};
use bareverbs::srq::Srq;
use bareverbs::{
    Access, Buffer, Connection, Context, Datagrams, Device, Endpoint, Error, Hub, Op, Pd, Pool, PoolBuffer,
    RegionMut, RemoteRegion, Result,
};

/// All remote access rights.
const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A context of a new device.
pub fn context() -> Result<Context> {
    Device::from(SoftDevice::new(&Fabric::new())).open()
}

/// A PD of a new device.
pub fn pd() -> Result<Pd> {
    context()?.alloc_pd()
}

/// Two endpoints in `pd`, connected to each other: all remote rights, 2 SGEs, 64 bytes of inline data.
pub fn endpoints<B: Send>(pd: &Pd) -> Result<[Endpoint<B>; 2]> {
    let options = Endpoint::options().access(REMOTE).max_sge(2).inline(64);
    let (mut a, mut b) = (options.build(pd)?, options.build(pd)?);
    a.connect(&b.address())?;
    b.connect(&a.address())?;
    Ok([a, b])
}

/// Two connections of a hub, connected to each other, with the options of [`endpoints`].
pub fn connections<B: Send>(pd: &Pd) -> Result<[Connection<B>; 2]> {
    let options = Endpoint::options().access(REMOTE).max_sge(2).inline(64);
    let hub = Hub::new(pd, 64)?;
    let (a, b) = (hub.connection_with(&options)?, hub.connection_with(&options)?);
    a.connect(&b.address())?;
    b.connect(&a.address())?;
    Ok([a, b])
}

/// A server, the name of its client, and the client, connected.
pub fn server(pd: &Pd) -> Result<(Server, PeerId, Client)> {
    let server = Server::options().peers(4).inline(8).access(REMOTE).build(pd)?;
    let client = Client::options().access(REMOTE).build(pd)?;
    let (peer, address) = server.handle().admit(&client.address())?;
    client.connect(&address)?;
    Ok((server, peer, client))
}

/// Two RC QPs in `pd`, connected to each other, and their CQs.
pub fn qps(pd: &Pd) -> Result<[(Qp<Rc>, Cq); 2]> {
    let create = || {
        let cq = pd.context().create_cq(&CqInit::new(32))?;
        let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
        Ok::<_, Error>((pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?, cq))
    };
    let (mut a, mut b) = (create()?, create()?);
    let gid = pd.context().default_gid(1)?.index;
    let (to_a, to_b) = (a.0.address(1, gid)?, b.0.address(1, gid)?);
    let attr = ConnectAttr { access: REMOTE | Access::LOCAL_WRITE, ..ConnectAttr::new(1, gid) };
    a.0.connect(&to_a, &to_b, &attr)?;
    b.0.connect(&to_b, &to_a, &attr)?;
    Ok([a, b])
}

/// Consumes one receive of `srq`, which has none.
pub fn receive_one(srq: &mut Srq) -> Result<()> {
    let pd = srq.pd().clone();
    let cq = pd.context().create_cq(&CqInit::new(32))?;
    let cap = QpCap { max_inline_data: 64, ..QpCap::default() };
    let mut qp = pd.create_qp::<Rc>(&QpInit { cap, srq: Some(srq), ..QpInit::new(&cq, &cq) })?;
    let gid = pd.context().default_gid(1)?.index;
    let own = qp.address(1, gid)?;
    qp.connect(&own, &own, &ConnectAttr::new(1, gid))?;
    // SAFETY: the request has no memory.
    unsafe { srq.post_recv(&[RecvRequest::new(1, &[])]) }?;
    let mut batch = qp.start_send();
    batch.send_inline(1, b"", SendFlags::SIGNALED)?;
    batch.ring()?;
    Ok(())
}

/// Buffers of 4096 bytes.
pub fn buffers<const N: usize>(pd: &Pd) -> Result<[PoolBuffer; N]> {
    let pool = Pool::new(pd, N, 4096)?;
    Ok([(); N].map(|()| pool.take().expect("a buffer of its own")))
}

/// Memory for a peer, of `len` bytes.
pub fn exposed(pd: &Pd, len: usize) -> Result<RemoteRegion> {
    Ok(RegionMut::register(pd, Buffer::zeroed(len)?)?.expose(REMOTE)?)
}

/// The address of a thread that answers one datagram with its bytes.
pub fn datagram_echo(pd: &Pd) -> Result<DatagramAddress> {
    let mut datagrams: Datagrams = Datagrams::options().build(pd)?;
    let [request, answer] = buffers(pd)?;
    datagrams.post(Op::recv(request))?;
    let address = datagrams.address();
    thread::spawn(move || -> Result<()> {
        let request = datagrams.next_recv().wait()?;
        let (peer, len, mut answer) = (request.reply_to(&datagrams).wait()?, request.message().len(), answer);
        answer.bytes_mut()[..len].copy_from_slice(request.message());
        datagrams.post(Op::send_to(&peer, answer, ..len))?;
        datagrams.next_send().wait().map(drop).map_err(Error::from)
    });
    Ok(address)
}

/// A soft device of the address 10.1.0.1, which the process reaches by IP address.
pub fn ip_device() -> Result<SoftDevice> {
    // Connections by IP address are between the devices that the process has created by name, and others
    // of their fabric.
    Device::find("soft0")?;
    let fabric = named_fabric()?.expect("the fabric of soft0");
    Ok(SoftDevice::with_address(&fabric, [10, 1, 0, 1].into()).expect("no other device has the address"))
}

/// Asserts that the device doesn't support what an example shows.
#[track_caller]
pub fn unsupported<T>(result: Result<T>) {
    match result {
        Ok(_) => panic!("a soft device supports it: let the example run to its end"),
        Err(Error::Unsupported { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// Runs `future` on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}
