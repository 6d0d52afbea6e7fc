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
