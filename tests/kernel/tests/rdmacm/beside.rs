//! Channels that serve the kernel's devices and soft devices.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;

use bareverbs::{Device, Endpoint, PoolBuffer};
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_kernel_tests::kernel_test;
use bareverbs_rdmacm::{CmId, Connector, EventChannel, Listener, PortSpace};

use crate::host::*;

fn has_kernel_ip() -> Requirement {
    device::has_device_node().and_then(|()| has_ip())
}

#[kernel_test(has_kernel_ip)]
fn channel_serves_kernel_and_soft_devices() {
    let soft = Device::find("soft9").unwrap();
    let soft_ip = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 10));
    assert_eq!(soft.soft().unwrap().address(), soft_ip);
    let listener = Listener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (connector, options) = (Connector::new(), Endpoint::options());
    for address in [ip(), soft_ip, ip(), soft_ip] {
        let server = SocketAddr::new(address, port);
        thread::scope(|scope| {
            let accepts = scope.spawn(|| listener.accept::<PoolBuffer>(&options).in_time().unwrap());
            let mut active = connector.connect::<PoolBuffer>(server, &options).in_time().unwrap();
            let mut passive = accepts.join().unwrap();
            let bound = active.link.id().addresses().unwrap().device.unwrap();
            assert_eq!(bound.find().unwrap().soft().is_some(), address == soft_ip);
            assert_eq!(passive.link.id().addresses().unwrap().local.unwrap().ip(), Some(server));
            // The twin of an identifier moves along.
            active.link.own_channel().unwrap();
            let ends = scope.spawn(move || passive.link.ended().in_time().unwrap());
            active.link.disconnect().in_time().unwrap();
            ends.join().unwrap();
        });
    }
    let channel = EventChannel::new().unwrap();
    for address in [ip(), soft_ip] {
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        id.bind_addr((address, 0)).unwrap();
        let bound = id.addresses().unwrap().device.unwrap();
        assert_eq!(bound.find().unwrap().soft().is_some(), address == soft_ip);
    }
}

/// A port of all devices is one of the kernel and one of the soft devices, or neither.
#[kernel_test(has_kernel_ip)]
fn port_that_one_side_has_not_free_stays_free_on_the_other() {
    let soft_ip = Device::find("soft9").unwrap().soft().unwrap().address();
    let channel = EventChannel::new().unwrap();
    let create = || CmId::new(&channel, PortSpace::Tcp).unwrap();
    let bound = |address: IpAddr, port: u16| {
        let id = create();
        id.bind_addr((address, port)).unwrap();
        let local = id.addresses().unwrap().local.unwrap();
        (id, local.port())
    };
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let listener = create();
    let (soft_owner, port) = bound(soft_ip, 0);
    listener.bind_addr((any, port)).unwrap_err();
    let (kernel_owner, _) = bound(ip(), port);
    drop(soft_owner);
    listener.bind_addr((any, port)).unwrap_err();
    let (soft_owner, _) = bound(soft_ip, port);
    drop((soft_owner, kernel_owner));
    listener.bind_addr((any, port)).unwrap();
    listener.listen(0).unwrap();
}
