//! Records WQEs as they are fetched, for the comparison of drivers.

/// The queue that a WQE was fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The SQ of a QP.
    Send(u32),
    /// The RQ of a QP.
    Receive(u32),
    /// An SRQ.
    Shared(u32),
}

/// Callback for each fetched WQE: its queue, its index and its bytes.
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
