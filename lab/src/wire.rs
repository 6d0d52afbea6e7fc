//! The wire between hosts: a hub in this process. Each guest's NIC is one end of a datagram socket
//! pair.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::pcap::Recorder;

/// Buffer size of a frame in bytes, larger than any frame of a NIC.
const FRAME: usize = 64 * 1024;

/// The recorder of packets, if any.
pub(crate) type Recording = Option<Arc<Mutex<Recorder>>>;

/// Creates a wire with `hosts` ends and starts forwarding. Returns the guests' ends.
pub(crate) fn join(hosts: usize, recording: &Recording) -> Result<Vec<OwnedFd>> {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..hosts {
        let (our, their) = UnixDatagram::pair().context("creating a socket pair for the wire")?;
        ours.push(Arc::new(our));
        theirs.push(their.into());
    }
    for (number, end) in ours.iter().enumerate() {
        let end = end.clone();
        let others: Vec<_> = ours
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != number)
            .map(|(_, other)| other.clone())
            .collect();
        let recording = recording.clone();
        std::thread::spawn(move || forward(&end, &others, &recording));
    }
    Ok(theirs)
}

/// Adds a packet to the recording. Errors are ignored: a full disk must not stop the guests.
pub(crate) fn record(recording: &Recording, frame: &[u8]) {
    if let Some(recorder) = recording {
        let mut recorder = recorder.lock().expect("no recorder panics");
        if let Err(error) = recorder.record(SystemTime::now(), frame) {
            eprintln!("lab: recording the wire: {error}");
        }
    }
}

/// Forwards frames of one end to all others. Frames to a guest that has ended are lost.
fn forward(end: &UnixDatagram, others: &[Arc<UnixDatagram>], recording: &Recording) {
    let mut frame = vec![0; FRAME];
    loop {
        match end.recv(&mut frame) {
            Ok(0) => return,
            Ok(length) => {
                record(recording, &frame[..length]);
                for other in others {
                    let _ = other.send(&frame[..length]);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Keeps a file descriptor open across the exec of a child.
pub(crate) fn inheritable(fd: impl AsFd) -> Result<()> {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).context("passing a descriptor on")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_forwards_frames_to_all_other_ends() {
        let ends: Vec<UnixDatagram> = join(3, &None).unwrap().into_iter().map(UnixDatagram::from).collect();
        ends[1].send(b"hello").unwrap();
        let mut buffer = [0; 16];
        for end in [&ends[0], &ends[2]] {
            let length = end.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"hello");
        }
        ends[1].set_nonblocking(true).unwrap();
        assert_eq!(ends[1].recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
