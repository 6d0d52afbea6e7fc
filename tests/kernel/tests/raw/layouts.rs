//! Addresses of rings, indices and doorbells.

use std::ptr::NonNull;

use bareverbs::Access;
use bareverbs::ah::AhAttr;
use bareverbs::qp::{Operation, Payload};
use bareverbs::raw::uapi::mlx5::PdQuery;
use bareverbs::raw::{DoorbellLayout, QueueLayout};
use bareverbs::srq::SrqInit;
use bareverbs_kernel_tests::loopback::{Plan, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::raw_level;

/// A word that the kernel or the device may write.
fn word(at: NonNull<u32>) -> u32 {
    // SAFETY: the address is that of a word of a queue that exists.
    unsafe { at.as_ptr().read_volatile() }
}

/// The bytes of the ring.
fn ring(layout: &QueueLayout) -> Vec<u8> {
    let len = layout.slots as usize * layout.stride as usize;
    // SAFETY: the ring has that many bytes, and the queue exists.
    (0..len).map(|at| unsafe { layout.ring.as_ptr().add(at).read_volatile() }).collect()
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The index that the device or the kernel sees. `which` is the word of a doorbell record.
fn published(layout: &QueueLayout, which: usize) -> u32 {
    match layout.doorbell {
        DoorbellLayout::Indices { producer, .. } => word(producer),
        // SAFETY: a record has two words.
        DoorbellLayout::Record { record, .. } => u32::from_be(word(unsafe { record.add(which) })),
        other => panic!("{other:?}"),
    }
}

#[kernel_test(device::moves_qps)]
fn raw_level_example_runs() {
    nothing_leaks(|| raw_level::run(&device::open()).unwrap());
}

#[kernel_test(device::queue_layout)]
fn layout_of_queues_matches_their_memory() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let (before, recv_before) = (a.qp.layout().send.unwrap(), b.qp.layout().recv.unwrap());
        assert_eq!((before.number, before.mask()), (Some(a.qp.qp_num()), before.slots - 1));
        assert!(before.slots.is_power_of_two() && before.slots >= a.qp.cap().max_send_wr);
        assert!(!contains(&ring(&before), b"greeting"));
        let sge = target.sge(..).unwrap();
        b.recv_into(7, 1, &[sge]);
        let recv = b.qp.layout().recv.unwrap();
        assert_eq!((recv.ring, recv.index), (recv_before.ring, recv_before.index + 1));
        assert_eq!(published(&recv, 0), recv.index);
        // The SGE is in the first slot, as the kernel or the device reads it.
        let key = if device::has_rxe_abi() { sge.lkey.to_ne_bytes() } else { sge.lkey.to_be_bytes() };
        assert!(contains(&ring(&recv)[..recv.stride as usize], &key));

        a.send(&[request(1, Operation::Send, Payload::Inline(&[b"greeting"]))]).unwrap();
        a.ends(1);
        b.ends(1);
        let after = a.qp.layout().send.unwrap();
        assert_eq!(after.index, before.index + 1);
        assert_eq!(published(&after, 1), after.index);
        assert!(contains(&ring(&after), b"greeting"));

        let cq = a.cq.layout().unwrap();
        assert_eq!(cq.slots, a.cq.capacity() + 1);
        match cq.doorbell {
            DoorbellLayout::Indices { producer, consumer } => {
                assert_eq!((word(consumer), word(producer)), (cq.index, cq.index));
            }
            DoorbellLayout::Record { record, register } => {
                assert_eq!(u32::from_be(word(record)), cq.index);
                let register = register.expect("CQs are armed by a register");
                assert_eq!((register.offset, register.blueflame, cq.number.is_some()), (0x20, 0, true));
                let DoorbellLayout::Record { register: Some(of_sends), .. } = after.doorbell else {
                    panic!("a send queue has a register");
                };
                assert_eq!(of_sends.offset, 0x800);
            }
            other => panic!("{other:?}"),
        }

        let srq = pd.create_srq(&SrqInit::new(16)).unwrap();
        let layout = srq.layout().unwrap();
        assert_eq!((layout.slots, layout.index), (srq.capacity() + 1, 0));
    });
}

#[kernel_test(device::ib_transports)]
fn address_vector_names_the_peer() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let (gid, dlid) = (context.default_gid(1).unwrap(), context.query_port(1).unwrap().lid);
        let ah = pd.create_ah(&AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) }).unwrap();
        let vector = ah.address_vector();
        if device::has_rxe_abi() {
            assert_eq!(vector.len(), 4);
        } else {
            assert_eq!((vector.len(), &vector[32..]), (48, &gid.gid.0[..]));
            let mut number = 0;
            let raw = context.raw();
            raw.query::<PdQuery>()
                .handle(PdQuery::HANDLE, pd.handle())
                .output(PdQuery::RESP_PDN, &mut number)
                .execute()
                .unwrap();
            assert_ne!(number, 0);
        }
    });
}
