//! Messages from the host during a command.

use std::io::BufReader;
use std::sync::mpsc;

use bareverbs_lab_init::frame::ToGuest;

use crate::exec::Current;
use crate::port::Receiver;

/// Dispatches the host's frames: input and signals to the running command, all others to the queue.
pub(crate) fn listen(receiver: Receiver, commands: &mpsc::Sender<ToGuest>, current: &Current) {
    let mut input = BufReader::new(receiver);
    while let Ok(Some(frame)) = ToGuest::read_from(&mut input) {
        match frame {
            ToGuest::Stdin(bytes) => current.input(bytes),
            ToGuest::Resize(size) => current.resize(size),
            ToGuest::Kill => current.kill(),
            other => {
                if commands.send(other).is_err() {
                    return;
                }
            }
        }
    }
}
