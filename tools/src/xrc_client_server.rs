//! `bareverbs rdma-xserver` and `bareverbs rdma-xclient`: a message from client to server over RC or
//! XRC, interoperable with `rdma_xserver` and `rdma_xclient` of librdmacm.

use std::os::fd::AsFd;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::cq::{Arm, CompChannel, Completion as _, Cq, CqInit, WorkCompletion};
use bareverbs::qp::{QpCap, QpInit, QpType, RecvRequest, SendFlags};
use bareverbs::srq::SrqInit;
use bareverbs::xrc::{XrcSend, XrcSrqInit, XrcdShare};
use bareverbs::{Access, Buffer, Context, PortNum, WcStatus};
use bareverbs_rdmacm::connection::{ConnectOptions, Connected, Incoming, Listener, Route};
use bareverbs_rdmacm::{IdOptions, Link};

use crate::cli::connected::{RdmaXclient, RdmaXserver, XTransport};
use crate::client_server::{MESSAGE, end, endpoint, receive, resolve, say, send};
use crate::session::address;
use crate::session::connected::{LIMIT, next_request, within, without_access};
use crate::session::status;
use crate::signal::{Interrupted, Stop, Wake};

/// The private data of a server's response: the number of its SRQ, or 0 for RC.
type SrqNumber = [u8; 4];

/// `bareverbs rdma-xserver`.
pub(crate) fn serve(options: &RdmaXserver) -> Result<()> {
    const NAME: &str = "rdma_xserver";
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let RdmaXserver { port, transport, json, .. } = *options;
    say(json, &format!("{NAME}: start"))?;
    let id_options = IdOptions {
        qp_type: match transport {
            XTransport::Rc => None,
            XTransport::Xrc => Some(QpType::XRC_TGT),
        },
        ..IdOptions::default()
    };
    let listener = Listener::bind_with(&id_options, address::to_bind(None, port)?)?;
    let incoming = next_request(&listener, stop)?;
    match transport {
        XTransport::Rc => {
            let device = incoming.device()?;
            let endpoint = endpoint(&listener.domains().pd(device)?, device.port)?;
            let accept = ConnectOptions { private_data: &SrqNumber::default(), ..without_access() };
            let mut connection = within(LIMIT, "accept", incoming.accept(endpoint, &accept))?;
            receive(&mut connection, stop)?;
            end(connection, NAME, "server", json)
        }
        XTransport::Xrc => {
            serve_xrc(&listener, incoming, stop, |connection| end(connection, NAME, "server", json))
        }
    }
}

/// `bareverbs rdma-xclient`.
pub(crate) fn connect(options: &RdmaXclient) -> Result<()> {
    const NAME: &str = "rdma_xclient";
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let RdmaXclient { server, port, transport, json, .. } = options;
    say(*json, &format!("{NAME}: start"))?;
    match transport {
        XTransport::Rc => {
            let route = resolve(&IdOptions::default(), server, *port)?;
            let device = route.device()?;
            let pd = device.find()?.open()?.alloc_pd()?;
            let options = without_access();
            let connecting = route.connect(endpoint(&pd, device.port)?, &options);
            let mut connection = within(LIMIT, "connect", connecting)?;
            send(&mut connection, stop)?;
            end(connection, NAME, "client", *json)
        }
        XTransport::Xrc => {
            let id_options = IdOptions { qp_type: Some(QpType::XRC_INI), ..IdOptions::default() };
            let route = resolve(&id_options, server, *port)?;
            connect_xrc(route, stop, |connection| end(connection, NAME, "client", *json))
        }
    }
}

/// Receives the message by an XRC SRQ. `end` ends the connection while the SRQ exists.
fn serve_xrc(
    listener: &Listener,
    incoming: Incoming,
    stop: &Stop,
    end: impl FnOnce(Connected<bareverbs::xrc::XrcTarget>) -> Result<()>,
) -> Result<()> {
    let (pd, port) = (listener.domains().pd(incoming.device()?)?, incoming.port()?);
    let xrcd = pd.context().open_xrcd(XrcdShare::Private)?;
    let mut completions = Completions::new(pd.context())?;
    // Declared before the queue, so that it is dropped later.
    let memory = pd.register(Buffer::zeroed(MESSAGE)?, Access::LOCAL_WRITE)?;
    let init = XrcSrqInit { srq: SrqInit::new(1), xrcd: &xrcd, cq: &completions.cq };
    let mut srq = pd.create_xrc_srq(&init)?;
    let sges = [memory.sge(..)?];
    // SAFETY: the region is dropped after the queue, and its bytes are never borrowed.
    unsafe { srq.post_recv(&[RecvRequest { wr_id: 0, sges: &sges }]) }.context("cannot post a receive")?;
    let number: SrqNumber = srq.srq_num().to_be_bytes();
    let accept = ConnectOptions { private_data: &number, ..without_access() };
    let mut connection = within(LIMIT, "accept", incoming.accept(xrcd.create_target(0)?, &accept))?;
    let done = loop {
        // Read before the poll: a message that the peer sent before its end is found then.
        let ended = connection.link.has_ended()?;
        if let Some(done) = completions.poll() {
            break done;
        }
        ensure!(!ended, "the peer has ended the connection without a message");
        completions.sleep(&connection.link, stop)?;
    };
    check(pd.context(), port, done.status, false)?;
    ensure!(
        done.byte_len as usize == MESSAGE,
        "the peer sent {} bytes, a message has {MESSAGE}",
        done.byte_len
    );
    end(connection)
}

/// Sends the message to the SRQ that the server names.
fn connect_xrc(
    route: Route,
    stop: &Stop,
    end: impl FnOnce(Connected<bareverbs::qp::Qp<XrcSend>>) -> Result<()>,
) -> Result<()> {
    let (pd, port) = (route.device()?.find()?.open()?.alloc_pd()?, route.port()?);
    let mut completions = Completions::new(pd.context())?;
    let cap = QpCap { max_send_wr: 1, max_inline_data: MESSAGE as u32, ..QpCap::default() };
    let qp = pd.create_qp::<XrcSend>(&QpInit { cap, ..QpInit::new(&completions.cq, &completions.cq) })?;
    let options = without_access();
    let mut connection = within(LIMIT, "connect", route.connect(qp, &options))?;
    let number: SrqNumber = connection
        .link
        .peer()
        .private_data
        .first_chunk()
        .copied()
        .context("the server's response does not name its SRQ")?;
    let mut batch = connection.queue.start_send();
    batch.send_to_srq_inline(0, u32::from_be_bytes(number), &[0; MESSAGE], SendFlags::SIGNALED)?;
    batch.ring()?;
    let done = loop {
        // The send completes also if the server ends the connection first.
        connection.link.has_ended()?;
        if let Some(done) = completions.poll() {
            break done;
        }
        completions.sleep(&connection.link, stop)?;
    };
    check(pd.context(), port, done.status, true)?;
    end(connection)
}

/// Fails unless the message has succeeded. `is_send`: this side has sent it.
fn check(context: &Context, port: PortNum, status: WcStatus, is_send: bool) -> Result<()> {
    if status == WcStatus::SUCCESS {
        return Ok(());
    }
    let (words, cause) = (status::words(status), status::cause(context, port, status, is_send));
    bail!("the message failed: {words} ({}): {cause}", status.0)
}

/// A CQ for one message, with its channel.
struct Completions {
    cq: Cq,
    channel: CompChannel,
}

impl Completions {
    fn new(context: &Context) -> Result<Self> {
        let channel = context.create_comp_channel()?;
        let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(1) })?;
        cq.arm(Arm::Any)?;
        Ok(Self { cq, channel })
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        Some(self.cq.poll().next()?.to_value())
    }

    /// Sleeps until there may be a completion, or an event of the connection.
    fn sleep(&mut self, link: &Link, stop: &Stop) -> Result<()> {
        let events = link.id().channel().as_fd();
        if stop.wait_either(self.channel.as_fd(), events, None)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
        if self.channel.try_wait()?.is_some() {
            self.cq.arm(Arm::Any)?;
        }
        Ok(())
    }
}
