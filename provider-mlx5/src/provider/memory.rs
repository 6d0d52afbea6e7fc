//! Memory of rings and doorbell records.

use std::alloc::Layout;

use bareverbs_provider::Errno;
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::mapping::{HUGE_PAGE, Mapping};
use bareverbs_provider::queue_allocator::QueueResource;
use bareverbs_provider::queue_buffer::{QUEUE_BUFFER_ALIGN, QueueBuffer};
use bareverbs_provider::request::QueueMemory;

use super::ioctl_error;
use crate::doorbell::{DoorbellRecord, DoorbellRecords};

/// The memory of a ring, and the buffer that it is if that is part of a dma-buf.
type RingMemory = (Mapping, Option<QueueBuffer>);

/// Allocates the memory of a ring, in bytes.
///
/// The kernel takes the address of a ring, or a dma-buf if `takes_dmabufs`.
pub(super) fn ring(
    resource: QueueResource,
    bytes: usize,
    memory: QueueMemory<'_>,
    takes_dmabufs: bool,
) -> Result<RingMemory, CreateError> {
    let base_pages = || Mapping::anonymous(bytes).map_err(ioctl_error("mmap"));
    match memory {
        QueueMemory::BasePages => Ok((base_pages()?, None)),
        QueueMemory::HugePages => match Mapping::huge(bytes) {
            Ok(mapping) => Ok((mapping, None)),
            Err(Errno::NOMEM) => Err(CreateError::NoHugePages { pages: bytes.div_ceil(HUGE_PAGE) as u64 }),
            Err(errno) => Err(ioctl_error("mmap (huge pages)")(errno).into()),
        },
        QueueMemory::From(allocator) => {
            let layout = Layout::from_size_align(bytes, QUEUE_BUFFER_ALIGN)
                .map_err(|_| CreateError::NoMemory { bytes })?;
            let Some(buffer) = allocator.allocate(resource, layout)? else {
                return Ok((base_pages()?, None));
            };
            if buffer.is_dmabuf() && !takes_dmabufs {
                return Err(CreateError::Unsupported { feature: Feature::QueueDmabufs });
            }
            let mapping = buffer.lease(layout)?;
            Ok((mapping, buffer.is_dmabuf().then_some(buffer)))
        }
    }
}

/// Allocates the memory of a ring that the kernel takes by its address only: of an SRQ, of a WQ, and
/// of a CQ at a resize.
pub(super) fn addressed_ring(
    resource: QueueResource,
    bytes: usize,
    memory: QueueMemory<'_>,
) -> Result<Mapping, CreateError> {
    ring(resource, bytes, memory, false).map(|(mapping, _)| mapping)
}

/// Allocates the doorbell record of a queue whose ring is in `memory`.
pub(super) fn doorbell_record(
    records: &DoorbellRecords,
    memory: QueueMemory<'_>,
) -> Result<DoorbellRecord, CreateError> {
    if let QueueMemory::From(allocator) = memory {
        let layout = DoorbellRecord::LAYOUT;
        if let Some(buffer) = allocator.allocate(QueueResource::DoorbellRecord, layout)? {
            if buffer.is_dmabuf() {
                return Err(CreateError::Unsupported { feature: Feature::QueueDmabufs });
            }
            return Ok(DoorbellRecord::in_memory(buffer.lease(layout)?));
        }
    }
    Ok(records.take().map_err(ioctl_error("mmap"))?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use bareverbs_provider::queue_allocator::{Allocation, QueueAllocator};

    use super::*;
    use crate::doorbell::{PAGE, Word};

    /// Returns memory, and knows the calls and how much memory is in use.
    #[derive(Debug, Default)]
    struct Allocator {
        asked: Mutex<Vec<(QueueResource, usize, usize)>>,
        in_use: Arc<AtomicUsize>,
    }

    struct Memory {
        _mapping: Mapping,
        in_use: Arc<AtomicUsize>,
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            self.in_use.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl QueueAllocator for Allocator {
        fn allocate(&self, resource: QueueResource, layout: Layout) -> Allocation {
            self.asked.lock().unwrap().push((resource, layout.size(), layout.align()));
            self.in_use.fetch_add(1, Ordering::Relaxed);
            let mapping = Mapping::anonymous(layout.size()).unwrap();
            let start = mapping.as_ptr();
            let memory = Memory { _mapping: mapping, in_use: Arc::clone(&self.in_use) };
            // SAFETY: the mapping has the bytes, and nothing else accesses them.
            Ok(Some(unsafe { QueueBuffer::new(start, layout.size(), Box::new(memory)) }.unwrap()))
        }
    }

    #[derive(Debug)]
    struct Fixed(Option<CreateError>);

    impl QueueAllocator for Fixed {
        fn allocate(&self, _: QueueResource, _: Layout) -> Allocation {
            self.0.map_or(Ok(None), Err)
        }
    }

    #[test]
    fn allocator_gives_ring_and_doorbell_record() {
        let (allocator, records) = (Allocator::default(), DoorbellRecords::default());
        let memory = QueueMemory::From(&allocator);
        let ring = addressed_ring(QueueResource::Srq, 256, memory).unwrap();
        let record = doorbell_record(&records, memory).unwrap();
        record.set(Word::Second, 7);
        assert_eq!((record.get(Word::First), record.get(Word::Second)), (0, 7));
        assert_eq!(
            *allocator.asked.lock().unwrap(),
            [(QueueResource::Srq, 256, PAGE), (QueueResource::DoorbellRecord, 8, 8)]
        );
        assert_eq!(allocator.in_use.load(Ordering::Relaxed), 2);
        drop(ring);
        assert_eq!(allocator.in_use.load(Ordering::Relaxed), 1);
        drop(record);
        assert_eq!(allocator.in_use.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn declined_memory_is_that_of_the_provider() {
        let declines = Fixed(None);
        let memory = QueueMemory::From(&declines);
        assert_eq!(addressed_ring(QueueResource::Cq, 64, memory).unwrap().len(), 64);
        let record = doorbell_record(&DoorbellRecords::default(), memory).unwrap();
        assert!(record.address().is_multiple_of(64), "a record of a page");
    }

    #[test]
    fn failure_of_the_allocator_is_returned() {
        let failure = CreateError::NoMemory { bytes: 64 };
        let fails = Fixed(Some(failure));
        let memory = QueueMemory::From(&fails);
        assert_eq!(addressed_ring(QueueResource::Qp, 64, memory).map(drop), Err(failure));
        assert_eq!(doorbell_record(&DoorbellRecords::default(), memory).map(drop), Err(failure));
    }
}
