//! Both ends in one process, on soft devices.

use std::thread;

use bareverbs::soft::{Fabric, SoftDevice};
use bareverbs::{Device, Error, Report, WcStatus};
use bareverbs_testing_example::{CHUNK, Transfer};

/// Two connected ends, each on a device of its own, and the second device.
fn connected(fabric: &Fabric) -> Result<(Transfer, Transfer, SoftDevice), Report> {
    let devices = [SoftDevice::new(fabric), SoftDevice::new(fabric)];
    let end = |device: &SoftDevice| Transfer::new(&Device::from(device.clone()).open()?.alloc_pd()?);
    let (mut sender, mut receiver) = (end(&devices[0])?, end(&devices[1])?);
    sender.connect(&receiver.address())?;
    receiver.connect(&sender.address())?;
    let [_, device] = devices;
    Ok((sender, receiver, device))
}

fn file(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

#[test]
fn files_of_all_lengths_arrive() -> Result<(), Report> {
    // A fabric for each test: tests run in parallel and see no devices of others.
    let (mut sender, mut receiver, _device) = connected(&Fabric::new())?;
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 100 * CHUNK] {
        let file = file(len);
        let received = thread::scope(|scope| {
            let receiving = scope.spawn(|| receiver.receive());
            sender.send(&file)?;
            receiving.join().expect("no panic")
        })?;
        assert!(received == file, "a file of {len} bytes");
    }
    Ok(())
}

#[test]
fn removed_device_ends_the_receiver_with_an_error() -> Result<(), Report> {
    let (_sender, mut receiver, device) = connected(&Fabric::new())?;
    device.remove();
    assert!(receiver.receive().is_err());
    Ok(())
}

#[test]
fn unplugged_cable_is_an_error_of_the_sender() -> Result<(), Report> {
    let (mut sender, _receiver, device) = connected(&Fabric::seeded(1))?;
    device.set_link(false);
    let error = sender.send(&file(1)).expect_err("no packet arrives");
    let Error::Completion { status, .. } = error else { panic!("{error}") };
    assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    Ok(())
}

#[test]
fn dead_receiver_is_an_error_of_the_sender() -> Result<(), Report> {
    let (mut sender, receiver, _device) = connected(&Fabric::seeded(1))?;
    drop(receiver);
    let error = sender.send(&file(1)).expect_err("nobody receives");
    let Error::Completion { status, .. } = error else { panic!("{error}") };
    assert_eq!(status, WcStatus::RETRY_EXC_ERR);
    Ok(())
}
