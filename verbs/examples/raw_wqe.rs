//! Posts two raw WQEs to a ConnectX, built segment by segment: a NOP, which the verbs API does not
//! have, and an RDMA write.
//!
//! `cargo run --example raw_wqe` runs it on a machine with such a device. In the lab, with the
//! software ConnectX:
//!
//! ```text
//! cargo build --target x86_64-unknown-linux-musl --example raw_wqe   # or any other static target
//! cargo xtask lab run --kernel 7.2 --hca ib \
//!     --share target/x86_64-unknown-linux-musl/debug/examples -- /share/raw_wqe
//! ```

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit};
use bareverbs::qp::{InitAttr, Qp, QpInit, Rc, RtrAttr, RtsAttr, SendFlags};
use bareverbs::{Access, Buffer, Context, Mr, Pd, Report};
use bareverbs_mlx5::wqe::{self, BLOCK, Opcode, WqeDisplay};
use bareverbs_mlx5::{Mlx5, RawWqe};

pub(crate) fn main() -> Result<(), Report> {
    let context = Context::<Mlx5>::open_first_as()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(&CqInit::new(16))?;
    let (mut alice, mut bob) = (create(&pd, &cq)?, create(&pd, &cq)?);
    let (to_bob, to_alice) = (bob.qp_num(), alice.qp_num());
    connect(&mut alice, to_bob)?;
    connect(&mut bob, to_alice)?;

    let mut source: Mr<Buffer> = pd.register(Buffer::zeroed(64)?, Access::empty())?;
    source.write(0, b"written by hand")?;
    let target = pd.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    // The segments after the control segment: remote address and data.
    let write = [wqe::remote_address(target.remote(0)?), wqe::data(source.sge(..15)?)];
    let requests = [
        RawWqe { wr_id: 1, opcode: Opcode::NOP, imm: 0, flags: SendFlags::SIGNALED, segments: &[] },
        RawWqe { wr_id: 2, opcode: Opcode::RDMA_WRITE, imm: 0, flags: SendFlags::SIGNALED, segments: &write },
    ];
    let mut batch = alice.start_send();
    // SAFETY: the QP is in RTS; the queue is only pushed to and read.
    let queue = unsafe { batch.provider_queue() };
    for request in &requests {
        // SAFETY: both MRs outlive the completions, and no code accesses their bytes before.
        unsafe { queue.push_raw_wqe(request) }?;
    }
    // Each WQE takes one block; they are the first of the queue.
    let blocks: [[u8; BLOCK]; 2] = [queue.block(0), queue.block(1)];
    batch.ring()?;
    for block in &blocks {
        print!("{}", WqeDisplay::new(block));
    }

    let mut left = requests.len();
    while left > 0 {
        let mut completions = cq.poll();
        while let Some(completion) = completions.next() {
            println!("{}", completion.entry());
            left -= 1;
        }
    }
    let mut bytes = [0; 15];
    target.read(0, &mut bytes)?;
    assert_eq!(&bytes, b"written by hand");
    Ok(())
}

fn create(pd: &Pd<Mlx5>, cq: &Cq<Mlx5>) -> bareverbs::Result<Qp<Rc, Mlx5>> {
    pd.create_qp(&QpInit::new(cq, cq))
}

/// Connects `qp` to the QP `peer` of the same port.
pub(crate) fn connect(qp: &mut Qp<Rc, Mlx5>, peer: u32) -> bareverbs::Result<()> {
    let context = qp.pd().context();
    let gid = context.default_gid(1)?;
    let dlid = context.query_port(1)?.lid;
    let address = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
    qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) })?;
    qp.ready_to_receive(&RtrAttr::new(address, peer))?;
    qp.ready_to_send(&RtsAttr::default())
}
