//! Kernel objects: attributes, wrong keys, destruction.

use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_provider::command;
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::request::{CqRequest, CqeSize, QueueMemory};
use bareverbs_provider::traits::{Provider, SendQueue};
use bareverbs_provider::work::{Operation, Payload, Sge, WcStatus};
use bareverbs_uapi::uverbs::ObjectClass;

use crate::host::{Host, Memory};
use crate::pair::{CAP, Pair, poll};

#[kernel_test(device::rxe_abi)]
fn mr_has_the_registered_range() {
    let host = Host::new();
    let memory = Memory::new(&host, 8192);
    let info = command::query_mr(&host.file, memory.mr.handle).unwrap();
    assert_eq!((info.lkey, info.rkey), (memory.mr.lkey, memory.mr.rkey));
    assert_eq!((info.length, info.iova), (8192, memory.addr(0)));
}

#[kernel_test(device::rxe_abi)]
fn query_device_and_query_device_ex_agree() {
    let host = Host::new();
    let (base, extended) =
        (command::query_device(&host.file).unwrap(), command::query_device_ex(&host.file).unwrap().base);
    assert_eq!(base, extended);
    assert!(base.max_qp > 0);
}

#[kernel_test(device::rxe_abi)]
fn lkey_of_another_pd_fails() {
    let mut pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let wrong = Sge { lkey: memory.mr.lkey ^ 0x5500, ..memory.sge(0, 8) };
    pair.send(1, Operation::Write(memory.remote(64)), Payload::Sges(&[wrong]));
    let completion = poll(&mut pair.client_cq);
    assert_eq!(completion.wr_id, 1);
    // Newer kernels put the queue pair into ERR first and then flush the failing request.
    let reported = match completion.status {
        WcStatus::WR_FLUSH_ERR => pair.client.sq.failure(),
        status => Some((completion.wr_id, status)),
    };
    assert!(matches!(reported, Some((1, WcStatus::LOC_PROT_ERR | WcStatus::LOC_QP_OP_ERR))), "{reported:?}");
}

#[kernel_test(device::rxe_abi)]
fn destroyed_objects_leave_no_handles() {
    let count = |host: &Host, class| command::info_handles(&host.file, class, &mut [0; 64]).unwrap();
    let pair = Pair::new(CAP);
    let memory = Memory::new(&pair.host, 4096);
    let classes = [ObjectClass::QP, ObjectClass::CQ, ObjectClass::MR, ObjectClass::PD];
    assert_eq!(classes.map(|class| count(&pair.host, class)), [2, 2, 1, 1]);

    // Depths above the device's limit are rejected, and no object is left.
    let request = CqRequest {
        entries: 1 << 31,
        user_handle: 0,
        channel: None,
        vector: 0,
        compressed: false,
        cqe_size: CqeSize::Bytes64,
        flags: bareverbs_uapi::write::types::CqCreateFlags::empty(),
        memory: QueueMemory::BasePages,
    };
    // SAFETY: there is no queue to keep.
    assert!(unsafe { pair.host.rxe.create_cq(&request) }.is_err());
    // And so are CQEs of 128 bytes.
    let request = CqRequest { entries: 16, cqe_size: CqeSize::Bytes128, ..request };
    // SAFETY: there is no queue to keep.
    let refused = unsafe { pair.host.rxe.create_cq(&request) }.map(drop);
    assert!(matches!(refused, Err(CreateError::Unsupported { feature: Feature::CqeSize })), "{refused:?}");
    assert_eq!(count(&pair.host, ObjectClass::CQ), 2);

    let Pair { host, client, client_cq, server, server_cq } = pair;
    host.destroy([client, server], [client_cq, server_cq]);
    memory.deregister(&host);
    // SAFETY: this test owns the PD and no longer uses it.
    unsafe { command::dealloc_pd(&host.file, host.pd) }.unwrap();
    assert_eq!(classes.map(|class| count(&host, class)), [0; 4]);
}
