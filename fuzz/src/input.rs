//! Values from the bytes that a fuzzer chooses.

/// The remaining bytes, read from the front. Past the end, reads give zeros.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from(self.half()) << 16 | u32::from(self.half())
    }

    pub(crate) fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.byte())
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    /// At most `length` of the remaining bytes.
    pub(crate) fn slice(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number below `count`, which is not 0 and at most 256.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }

    /// True once in `times` calls, on average.
    pub(crate) fn one_in(&mut self, times: u8) -> bool {
        self.byte().is_multiple_of(times)
    }

    /// An element of a list that is not empty.
    pub(crate) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[usize::from(self.half()) % list.len()]
    }
}
