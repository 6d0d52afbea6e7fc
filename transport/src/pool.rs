//! Buffers for the payload of packets, which are used again.

/// A pool of buffers. Packets that a device receives give their buffers to the packets that it
/// sends.
#[derive(Debug, Default)]
pub struct Pool {
    buffers: Vec<Vec<u8>>,
}

impl Pool {
    /// Most buffers in the pool.
    const CAPACITY: usize = 256;

    /// A buffer of `length` bytes with any contents.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        if length == 0 {
            return Vec::new();
        }
        let mut buffer = self.buffers.pop().unwrap_or_default();
        // Bytes that were used before need not be cleared.
        buffer.resize(length, 0);
        buffer
    }

    /// Returns a buffer.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.buffers.len() < Self::CAPACITY {
            self.buffers.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_buffer_is_used_again() {
        let mut pool = Pool::default();
        let buffer = pool.take(100);
        let place = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(60);
        assert_eq!((again.as_ptr(), again.len()), (place, 60));
    }

    #[test]
    fn empty_buffers_are_not_kept() {
        let mut pool = Pool::default();
        pool.give(Vec::new());
        assert!(pool.buffers.is_empty());
        assert!((0..2 * Pool::CAPACITY).all(|_| {
            pool.give(vec![1]);
            pool.buffers.len() <= Pool::CAPACITY
        }));
    }
}
