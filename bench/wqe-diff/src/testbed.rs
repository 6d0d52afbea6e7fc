//! The queues, and posting to them.

mod frames;

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::ah::{Ah, AhAttr, GlobalRoute};
use bareverbs::cq::{Cq, CqInit};
use bareverbs::device::LinkLayer;
use bareverbs::mw::{Mw, MwType};
use bareverbs::qp::{
    Datagram, Frame, InitAttr, Operation, Payload, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, Rc,
    RecvRequest, RtrAttr, RtsAttr, SendFlags, SendRequest, Sge, Transport, Uc, UcOperation, UcRtrAttr, Ud,
    UdInitAttr,
};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::values::{AckTimeout, GidIndex};
use bareverbs::{Access, Buffer, Context, Imm, Mr, Pd, WcStatus};
use bareverbs_test_support::TIMEOUT;
use bareverbs_wqe_diff::request::{DEPTH, INLINE, Kind, Piece, QKEY, REGION, Request, SGES, Sender};
use frames::{Frames, in_front, split};

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

const CAP: QpCap = QpCap {
    max_send_wr: DEPTH as u32,
    max_recv_wr: DEPTH as u32,
    max_send_sge: SGES as u32,
    max_recv_sge: SGES as u32,
    max_inline_data: INLINE,
};

/// A queue pair and its peer.
type Pair<T> = [Qp<T>; 2];

pub(crate) struct Testbed {
    rc: Pair<Rc>,
    uc: Pair<Uc>,
    ud: Pair<Ud>,
    shared: Pair<Rc>,
    frames: Option<Frames>,
    /// On InfiniBand.
    sourced: Option<Qp<Ud>>,
    srq: Srq,
    handles: Vec<Ah>,
    windows: [Mw; 2],
    gid_index: GidIndex,
    memory: Mr<Buffer>,
    sends: Cq,
    receives: Cq,
}

fn pair<T: Transport>(pd: &Pd, init: &QpInit<'_>, srq: Option<&Srq>) -> Result<Pair<T>> {
    Ok([pd.create_qp(init)?, pd.create_qp(&QpInit { srq, ..*init })?])
}

/// Calls `connect` for each queue pair with the other's number.
fn both<T: Transport>(
    pair: &mut Pair<T>,
    mut connect: impl FnMut(&mut Qp<T>, u32) -> Result<()>,
) -> Result<()> {
    let numbers = [pair[1].qp_num(), pair[0].qp_num()];
    pair.iter_mut().zip(numbers).try_for_each(|(qp, peer)| connect(qp, peer))
}

/// A UD queue pair with a source QPN.
fn sourced(pd: &Pd, init: &QpInit<'_>, number: u32) -> Result<Qp<Ud>> {
    let mut qp = pd.create_qp(&QpInit { source_qp_num: Some(number), ..*init })?;
    for qp_state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        qp.modify(&QpAttr { qp_state, ..QpAttr::default() }, QpAttrMask::STATE)?;
    }
    Ok(qp)
}

impl Testbed {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let (sends, receives) =
            (context.create_cq(&CqInit::new(256))?, context.create_cq(&CqInit::new(256))?);
        let mut memory = pd.register(Buffer::zeroed(REGION as usize)?, ALL)?;
        memory.write(0, &(0..REGION).map(pattern).collect::<Vec<_>>())?;
        let srq = pd.create_srq(&SrqInit { max_sge: SGES as u32, ..SrqInit::new(DEPTH as u32) })?;
        let init = QpInit { cap: CAP, ..QpInit::new(&sends, &receives) };
        let (mut rc, mut uc, mut ud) =
            (pair(&pd, &init, None)?, pair(&pd, &init, None)?, pair(&pd, &init, None)?);
        let mut shared = pair(&pd, &init, Some(&srq))?;
        let port = context.query_port(1)?;
        let ethernet = port.link_layer == LinkLayer::ETHERNET;
        let frames = ethernet.then(|| Frames::new(&pd, &init)).transpose()?;
        let sourced = (!ethernet).then(|| sourced(&pd, &init, ud[0].qp_num())).transpose()?;

        let gid = context.default_gid(1)?;
        let dlid = port.lid;
        let here = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
        for pair in [&mut rc, &mut shared] {
            both(pair, |qp: &mut Qp<Rc>, peer| {
                qp.init(&InitAttr { access: ALL.difference(Access::MW_BIND), ..InitAttr::new(1) })?;
                qp.ready_to_receive(&RtrAttr { max_dest_rd_atomic: 4, ..RtrAttr::new(here, peer) })?;
                qp.ready_to_send(&RtsAttr {
                    timeout: AckTimeout::new(18).unwrap(),
                    max_rd_atomic: 4,
                    ..RtsAttr::default()
                })?;
                Ok(())
            })?;
        }
        both(&mut uc, |qp: &mut Qp<Uc>, peer| {
            qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) })?;
            qp.ready_to_receive(&UcRtrAttr::new(here, peer))?;
            Ok(qp.ready_to_send(0)?)
        })?;
        both(&mut ud, |qp: &mut Qp<Ud>, _| {
            qp.init(&UdInitAttr::new(1, QKEY as u32))?;
            qp.ready_to_receive()?;
            Ok(qp.ready_to_send(0)?)
        })?;
        let grh = here.grh.context("the way is a global one")?;
        let strange = GlobalRoute { flow_label: 0x54321, hop_limit: 7, traffic_class: 0x2c, ..grh };
        let ways = [
            here,
            AhAttr { sl: 3, grh: Some(strange), ..here },
            // Without a GRH if the LID suffices.
            AhAttr { grh: here.grh.filter(|_| dlid == 0), sl: 5, ..here },
        ];
        let handles = ways.iter().map(|way| pd.create_ah(way)).collect::<Result<_, _>>()?;
        let windows = [pd.alloc_mw(MwType::TYPE_2)?, pd.alloc_mw(MwType::TYPE_2)?];
        let gid_index = gid.index;
        Ok(Self {
            rc,
            uc,
            ud,
            shared,
            frames,
            sourced,
            srq,
            handles,
            windows,
            gid_index,
            memory,
            sends,
            receives,
        })
    }

    /// Prints the numbers of the queues, keys and the region.
    pub(crate) fn print_values(&self) {
        for (name, numbers) in [
            ("rc", [self.rc[0].qp_num(), self.rc[1].qp_num()]),
            ("uc", [self.uc[0].qp_num(), self.uc[1].qp_num()]),
            ("ud", [self.ud[0].qp_num(), self.ud[1].qp_num()]),
            ("shared", [self.shared[0].qp_num(), self.shared[1].qp_num()]),
        ] {
            println!("qp {name} {:#x}\nqp {name}-peer {:#x}", numbers[0], numbers[1]);
        }
        if let Some(frames) = &self.frames {
            frames.print_values();
        }
        if let Some(sourced) = &self.sourced {
            println!("qp ud-sourced {:#x}", sourced.qp_num());
        }
        println!("gid {:#x}", self.gid_index.0);
        println!("region {:#x} {:#x} {:#x}", self.memory.addr(), self.memory.lkey(), self.memory.rkey());
        println!("windows {:#x} {:#x}", self.windows[0].rkey(), self.windows[1].rkey());
    }

    fn sges(&self, pieces: &[Piece]) -> Vec<Sge> {
        let (addr, lkey) = (self.memory.addr(), self.memory.lkey());
        let sge = |(offset, length): &Piece| Sge { addr: addr + u64::from(*offset), length: *length, lkey };
        pieces.iter().map(sge).collect()
    }

    fn receive(&mut self, sender: Sender, pieces: &[Piece]) -> Result<()> {
        let sges = self.sges(pieces);
        let requests = [RecvRequest { wr_id: 1, sges: &sges }];
        // SAFETY: the memory outlives the queue pairs and is not accessed meanwhile.
        unsafe {
            match sender {
                Sender::Rc => self.rc[1].post_recv(&requests)?,
                Sender::Uc => self.uc[1].post_recv(&requests)?,
                Sender::Ud | Sender::Sourced => self.ud[1].post_recv(&requests)?,
                Sender::Shared => self.srq.post_recv(&requests)?,
                Sender::RcPeer => self.rc[0].post_recv(&requests)?,
                Sender::Frames | Sender::LargeSends => bail!("raw packet QPs post no receives"),
            }
        }
        Ok(())
    }

    /// Posts a list with one doorbell and waits until it is complete.
    pub(crate) fn post(&mut self, list: &[Request]) -> Result<()> {
        for request in list {
            if let Some(pieces) = &request.receive {
                self.receive(request.sender, pieces)?;
            }
        }
        let sender = list.first().context("a list has requests")?.sender;
        let pattern: Vec<u8> = (0..REGION).map(pattern).collect();
        let bytes = |(offset, length): &Piece| &pattern[*offset as usize..][..*length as usize];
        let cut: Vec<_> = list.iter().map(|request| split(&request.pieces, in_front(request))).collect();
        let sges: Vec<_> = cut.iter().map(|(_, rest)| self.sges(rest)).collect();
        let parts: Vec<Vec<&[u8]>> = cut.iter().map(|(_, rest)| rest.iter().map(bytes).collect()).collect();
        let requests = list.iter().zip(&sges).zip(&parts).map(|((request, sges), parts)| {
            let payload = if request.inline { Payload::Inline(parts) } else { Payload::Sges(sges) };
            let flags = [
                (request.signaled, SendFlags::SIGNALED),
                (request.solicited, SendFlags::SOLICITED),
                (request.fence, SendFlags::FENCE),
            ];
            let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| *flag).collect();
            (request, SendRequest { wr_id: 2, operation: (), flags, payload })
        });
        let headers: Vec<Vec<u8>> = (list.iter().zip(&cut))
            .map(|(request, (front, _))| match &request.header[..] {
                [] => front.iter().flat_map(bytes).copied().collect(),
                headers => headers.to_vec(),
            })
            .collect();
        match sender {
            Sender::Ud | Sender::Sourced => {
                let mut all = Vec::new();
                for ((request, plain), header) in requests.zip(&headers) {
                    let ah = self.handles.get(request.b as usize).context("no such handle")?;
                    let imm = (request.kind == Kind::SendImm).then_some(Imm(request.imm));
                    let to = Datagram::new(ah, self.ud[1].qp_num(), request.a as u32);
                    all.push(plain.with(Datagram { imm, header, ..to }));
                }
                let qp = match (sender, &mut self.sourced) {
                    (Sender::Sourced, Some(sourced)) => sourced,
                    (Sender::Sourced, None) => bail!("the port has no source QPNs"),
                    _ => &mut self.ud[0],
                };
                // SAFETY: the memory outlives the queue pairs and is not accessed meanwhile.
                unsafe { qp.post_send(&all)? };
            }
            Sender::Uc => {
                let mut all = Vec::new();
                for (request, plain) in requests {
                    all.push(plain.with(match self.operation(request)? {
                        Operation::Send => UcOperation::Send,
                        Operation::SendImm(imm) => UcOperation::SendImm(imm),
                        Operation::Write(remote) => UcOperation::Write(remote),
                        Operation::WriteImm(remote, imm) => UcOperation::WriteImm(remote, imm),
                        other => bail!("{other:?} on an unreliable connection"),
                    }));
                }
                // SAFETY: the memory outlives the queue pairs and is not accessed meanwhile.
                unsafe { self.uc[0].post_send(&all)? };
            }
            Sender::Frames | Sender::LargeSends => {
                let mut all = Vec::new();
                for ((request, plain), header) in requests.zip(&headers) {
                    let large = request.kind == Kind::LargeSend;
                    let mss = large.then(|| u16::try_from(request.a)).transpose()?;
                    all.push(plain.with(Frame { header, checksums: request.checksums, mss }));
                }
                let frames = self.frames.as_mut().context("the port has no frames")?;
                // SAFETY: the memory outlives the queue pairs and is not accessed meanwhile.
                unsafe { frames.of(sender).post_send(&all)? };
            }
            Sender::Rc | Sender::Shared | Sender::RcPeer => {
                let mut all = Vec::new();
                for (request, plain) in requests {
                    all.push(plain.with(self.operation(request)?));
                }
                let qp = match sender {
                    Sender::Rc => &mut self.rc[0],
                    Sender::Shared => &mut self.shared[0],
                    _ => &mut self.rc[1],
                };
                // SAFETY: the memory outlives the queue pairs and is not accessed meanwhile.
                unsafe { qp.post_send(&all)? };
                for request in &all {
                    if let Operation::BindMw(bind) = &request.operation {
                        self.windows[usize::from(sender == Sender::RcPeer)].bound(bind);
                    }
                }
            }
        }
        let signaled = list.iter().filter(|request| request.signaled).count();
        let receives = list.iter().filter(|request| request.receive.is_some()).count();
        take(&mut self.sends, signaled)?;
        take(&mut self.receives, receives)
    }

    fn operation(&self, request: &Request) -> Result<Operation> {
        let remote = || self.memory.remote(request.remote as usize);
        let imm = Imm(request.imm);
        Ok(match request.kind {
            Kind::Send => Operation::Send,
            Kind::SendImm => Operation::SendImm(imm),
            Kind::Write => Operation::Write(remote()?),
            Kind::WriteImm => Operation::WriteImm(remote()?, imm),
            Kind::Read => Operation::Read(remote()?),
            Kind::CmpSwp => Operation::CmpSwp { remote: remote()?, compare: request.b, swap: request.a },
            Kind::FetchAdd => Operation::FetchAdd { remote: remote()?, add: request.a },
            Kind::SendInv => Operation::SendInv(self.windows[1].rkey()),
            Kind::LocalInv => Operation::LocalInv(self.windows[0].rkey()),
            Kind::Bind => {
                let window = &self.windows[usize::from(request.sender == Sender::RcPeer)];
                let start = request.remote as usize;
                let range = start..start + request.a as usize;
                Operation::BindMw(window.bind(&self.memory, range, Access::from_bits_retain(request.imm))?)
            }
            Kind::Frame | Kind::LargeSend => bail!("a frame on a connection"),
        })
    }
}

/// The byte of inline data and of the initial region content, by offset.
fn pattern(place: u32) -> u8 {
    (place * 31 + 7) as u8
}

/// Polls `count` completions, which must be successful.
fn take(cq: &mut Cq, count: usize) -> Result<()> {
    let begin = Instant::now();
    for _ in 0..count {
        let completion = loop {
            match cq.poll_one() {
                Some(completion) => break completion,
                None => ensure!(begin.elapsed() < TIMEOUT, "a request does not complete"),
            }
        };
        ensure!(completion.status == WcStatus::SUCCESS, "{completion:?}");
    }
    Ok(())
}
