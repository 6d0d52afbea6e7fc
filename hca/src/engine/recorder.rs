//! Work requests as they were fetched, for whoever compares what drivers write.

/// The queue that a work request was fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Sends of a queue pair.
    Send(u32),
    /// Receives of a queue pair.
    Receive(u32),
    /// A shared receive queue.
    Shared(u32),
}

/// Is told each work request: its queue, its place there, and its bytes.
pub type Recorder = Box<dyn FnMut(Queue, u16, &[u8]) + Send>;

/// The recorder, if there is one.
#[derive(Default)]
pub(crate) struct Recording(pub(crate) Option<Recorder>);

impl Recording {
    pub(crate) fn record(&mut self, queue: Queue, place: u16, bytes: &[u8]) {
        if let Some(recorder) = &mut self.0 {
            recorder(queue, place, bytes);
        }
    }
}
