//! The virtio-serial port to the host.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::PORT_NAME;
use bareverbs_lab_init::frame::FromGuest;

/// Sends frames; clones share the port.
#[derive(Clone)]
pub(crate) struct Sender(Arc<Mutex<File>>);

impl Sender {
    pub(crate) fn send(&self, frame: &FromGuest) -> Result<()> {
        let mut port = self.0.lock().expect("no sender panics");
        frame.write_to(&mut *port).context("writing to the host")
    }
}

/// Reads the port, and waits while the host's side is not connected.
pub(crate) struct Receiver(File);

impl Read for Receiver {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // The driver returns 0 while the other side is not connected.
            match self.0.read(buffer)? {
                0 => std::thread::sleep(Duration::from_millis(10)),
                count => return Ok(count),
            }
        }
    }
}

/// Opens the lab's port, which appears shortly after its driver.
pub(crate) fn open() -> Result<(Sender, Receiver)> {
    let path = find()?;
    let port = OpenOptions::new().read(true).write(true).open(&path);
    let port = port.with_context(|| format!("opening {}", path.display()))?;
    let reader = port.try_clone()?;
    Ok((Sender(Arc::new(Mutex::new(port))), Receiver(reader)))
}

fn find() -> Result<PathBuf> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten() {
            let entry = entry?;
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            let device = PathBuf::from("/dev").join(entry.file_name());
            if name.trim_end() == PORT_NAME && device.exists() {
                return Ok(device);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("no virtio port named {PORT_NAME}");
}
