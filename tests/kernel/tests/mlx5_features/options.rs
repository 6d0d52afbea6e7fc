//! Limits of the device context, enhanced connection establishment (ECE) options, and send rates.

use std::sync::Arc;

use bareverbs::cq::CqInit;
use bareverbs::qp::{
    Ece, InitAttr, Operation, Payload, Qp, QpAttr, QpAttrMask, QpInit, RateLimit, RecvRequest, Transport, Uc,
    UcRtrAttr, Ud, UdInitAttr,
};
use bareverbs::{Access, Error, PortNum, WcStatus};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_kernel_tests::loopback::{Plan, contents, domain, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_mlx5::Mlx5;
use bareverbs_netlink::{QpType, RawObject, RdmaNetlink};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::uverbs::types::DriverId;

use crate::device_state::{OUTPUT, object_segment};

/// For tests of ECE.
///
/// # Errors
/// If the device or its driver does not support it.
pub(crate) fn options() -> Requirement {
    let has = device::open().capabilities().ece;
    if has { Ok(()) } else { Err("the device has no options beyond the standard".to_owned()) }
}

/// For tests that ECE is rejected as unsupported.
///
/// # Errors
/// If the device supports it.
pub(crate) fn no_options() -> Requirement {
    options().map_or(Ok(()), |()| Err("the device has options beyond the standard".to_owned()))
}

#[kernel_test(options)]
fn ece_options_are_negotiated() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = (side(&pd, Plan::default()), side(&pd, Plan::default()));
        let offered = a.qp.query_ece().unwrap();
        assert_ne!(offered.options, 0, "what the device can do, as it told when the queue pair was made");
        // More options than the device supports; it keeps a subset of them.
        let wished = Ece { options: offered.options | 0xffff, ..offered };
        b.qp.set_ece(wished).unwrap();
        assert_eq!(b.qp.query_ece().unwrap(), Ece { options: 0, ..offered }, "not told yet");
        b.connect(a.qp.qp_num());
        let agreed = b.qp.query_ece().unwrap();
        assert_eq!(agreed, offered, "of all that was wished for, what it has");
        a.qp.set_ece(agreed).unwrap();
        a.connect(b.qp.qp_num());
        assert_eq!(a.qp.query_ece().unwrap(), agreed);
        let (from, to) = (region(&pd, &[7; 8], Access::empty()), region(&pd, &[0; 8], Access::LOCAL_WRITE));
        b.recv(&[RecvRequest { wr_id: 1, sges: &[to.sge(..).unwrap()] }]).unwrap();
        a.send(&[request(2, Operation::Send, Payload::Sges(&[from.sge(..).unwrap()]))]).unwrap();
        assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
        assert_eq!(contents(&to), [7; 8]);
        // An unknown version.
        a.go_to(bareverbs::qp::QpState::RESET).unwrap();
        a.qp.set_ece(Ece { options: 0xf000_0000, ..offered }).unwrap();
        a.connect(b.qp.qp_num());
        assert_eq!(a.qp.query_ece().unwrap().options, 0);
    });
}

#[kernel_test(options)]
fn ece_rejects_another_vendors_options() {
    nothing_leaks(|| {
        let mut a = side(&domain(), Plan::default());
        let own = a.qp.query_ece().unwrap();
        let refused = a.qp.set_ece(Ece { vendor_id: 0x8086, ..own }).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        assert!(refused.to_string().contains("of vendor 0x8086"), "{refused}");
        assert_eq!(a.qp.query_ece().unwrap(), own);
    });
}

#[kernel_test(no_options)]
fn ece_is_unsupported_without_the_capability() {
    nothing_leaks(|| {
        let mut a = side(&domain(), Plan::default());
        for refused in [a.qp.query_ece().map(drop).unwrap_err(), a.qp.set_ece(Ece::default()).unwrap_err()] {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        }
    });
}

#[kernel_test(no_rates, device::moves_qps)]
fn rate_limit_is_rejected_without_packet_pacing() {
    nothing_leaks(|| {
        let pd = domain();
        let reported = pd.context().query_device().unwrap();
        assert_eq!((reported.qp_rate_limit_max, reported.rate_limit_supported_qpts), (0, 0));
        let (mut a, b) = (side(&pd, Plan::default()), side(&pd, Plan::default()));
        a.connect(b.qp.qp_num());
        let attr = QpAttr { rate_limit: 1000, ..QpAttr::default() };
        let refused = a.qp.modify(&attr, QpAttrMask::RATE_LIMIT).unwrap_err();
        assert!(refused.errno().is_some(), "{refused}");
    });
}

/// For tests of packet pacing for UC.
///
/// # Errors
/// If the device or its driver does not support it.
pub(crate) fn uc_rates() -> Requirement {
    rates_of(QpType::UC)
}

/// For tests of packet pacing for UD.
///
/// # Errors
/// If the device or its driver does not support it.
pub(crate) fn ud_rates() -> Requirement {
    rates_of(QpType::UD)
}

fn rates_of(qp_type: QpType) -> Requirement {
    let reported = device::open().query_device().map_err(|error| error.to_string())?;
    let has = reported.rate_limit_supported_qpts >> qp_type.0 & 1 != 0;
    if has { Ok(()) } else { Err(format!("the driver has no packet pacing for {qp_type:?}")) }
}

/// Offset of the QP context in the output of QUERY_QP, and of the rate table's index in it
/// (`packet_pacing_rate_limit_index`).
const QP_CONTEXT: usize = 0x18;
const RATE_INDEX: usize = 0x3b0 / 8;

/// The index into the rate table of the device's QP.
fn rate_index(qp_num: u32) -> u16 {
    let object = RawObject::Qp { qp_num, port: PortNum(1) };
    let dump = RdmaNetlink::open().unwrap().raw_state(device::name(), object).unwrap();
    let at = OUTPUT + QP_CONTEXT + RATE_INDEX;
    u16::from_be_bytes(object_segment(&dump)[at..at + 2].try_into().unwrap())
}

#[kernel_test(uc_rates)]
fn uc_rate_reaches_the_qp_context() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let mut qp = pd.create_qp::<Uc>(&QpInit::new(&cq, &cq)).unwrap();
        let own = qp.qp_num();
        let to = side(&pd, Plan::default()).towards(own);
        qp.init(&InitAttr::new(1)).unwrap();
        qp.ready_to_receive(&UcRtrAttr::new(to.address, own)).unwrap();
        qp.ready_to_send(0).unwrap();
        rates_reach_the_qp_context(&mut qp);
    });
}

#[kernel_test(ud_rates)]
fn ud_rate_reaches_the_qp_context() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let mut qp = pd.create_qp::<Ud>(&QpInit::new(&cq, &cq)).unwrap();
        qp.init(&UdInitAttr::new(1, 0x123)).unwrap();
        qp.ready_to_receive().unwrap();
        qp.ready_to_send(0).unwrap();
        rates_reach_the_qp_context(&mut qp);
    });
}

/// Sets and clears rates of a QP in RTS.
fn rates_reach_the_qp_context<T: Transport>(qp: &mut Qp<T>) {
    let own = qp.qp_num();
    assert_eq!(rate_index(own), 0);
    let limit = RateLimit { rate: 5000, max_burst: 8192, typical_packet: 1024 };
    qp.set_rate_limit(&limit).unwrap();
    let first = rate_index(own);
    assert_ne!(first, 0);
    // Another rate has another entry, and the same rate the same.
    qp.set_rate_limit(&RateLimit { rate: 6000, ..limit }).unwrap();
    assert_ne!(rate_index(own), 0);
    assert_ne!(rate_index(own), first);
    qp.set_rate_limit(&RateLimit::default()).unwrap();
    assert_eq!(rate_index(own), 0);
    let slow = qp.set_rate_limit(&RateLimit { rate: u32::MAX, ..limit }).unwrap_err();
    assert!(matches!(slow, Error::Limit { .. }), "{slow}");
}

/// For tests that a rate limit is rejected as unsupported.
///
/// # Errors
/// If the device supports rate limits.
pub(crate) fn no_rates() -> Requirement {
    let reported = device::open().query_device().map_err(|error| error.to_string())?;
    if reported.qp_rate_limit_max == 0 { Ok(()) } else { Err("the device holds sends to rates".to_owned()) }
}

#[kernel_test(device::connectx)]
fn ucontext_limits_match_query_device() {
    let attr = device::open().query_device().unwrap();
    let device = device::device();
    let path = device.uverbs_path().expect("a uverbs device");
    let file = Arc::new(DeviceFile::open(path, DriverId::MLX5.0).unwrap());
    let mlx5 = Mlx5::open(file).unwrap();
    let resp = mlx5.ucontext_resp();
    assert_eq!(resp.qp_tab_size, attr.max_qp);
    // Newer kernels divide `max_qp_wr` by the size of the largest WQE.
    assert_eq!(resp.max_recv_wr, resp.max_send_wqebb);
    assert!((1..=resp.max_recv_wr).contains(&attr.max_qp_wr), "{resp:?}");
    // The kernel reserves one WQE of each SRQ.
    assert_eq!(resp.max_srq_recv_wr, attr.max_srq_wr + 1);
    assert_eq!(u32::from(resp.num_ports), u32::from(attr.phys_port_cnt));
    assert!(resp.cqe_version <= 1);
    assert!(resp.max_sq_desc_sz >= 192 && resp.max_rq_desc_sz >= 16, "{resp:?}");
    assert!(resp.response_length as usize <= size_of_val(resp), "{resp:?}");
}
