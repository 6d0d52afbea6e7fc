//! Completion queues.

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::error::{CreateError, Feature, Limit};
use bareverbs_provider::queue_allocator::QueueResource;
use bareverbs_provider::request::{CqRequest, CqeSize, QueueMemory};
use bareverbs_provider::traits::{CompletionQueue, CreatedCq};
use bareverbs_uapi::mlx5::{CqFlags, CreateCqReq, CreateCqResp, ResizeCqReq};
use zerocopy::IntoBytes;

use super::{Mlx5, memory, track};
use crate::cq::Mlx5Cq;
use crate::cq_ring::Ring;
use crate::cqe::CQE;

/// The device counts CQEs modulo 2^24. One of the 24 bits distinguishes a full CQ from an empty
/// one.
const MAX_CQE_LOG: u32 = 22;

/// The UAR page index of a create request. It has 16 bits there, and 32 bits in the kernel's
/// response to the page's allocation.
fn uar_page_index(page_id: u32) -> Result<u16, CreateError> {
    u16::try_from(page_id).map_err(|_| CreateError::Layout {
        queue: "CQ",
        problem: "the doorbell page index exceeds 16 bits",
        value: page_id.into(),
    })
}

/// Log2 of the CQEs of a ring for at least `entries` completions.
fn log_size(entries: u32) -> Result<u32, CreateError> {
    // One entry always stays free.
    let log = u64::from(entries).saturating_add(1).next_power_of_two().trailing_zeros();
    if log > MAX_CQE_LOG {
        let max = (1 << MAX_CQE_LOG) - 1;
        return Err(CreateError::Limit { limit: Limit::CqEntries, asked: entries.into(), max });
    }
    Ok(log)
}

/// The number of completions that a ring of this size holds.
fn capacity(log: u32) -> u32 {
    (1 << log) - 1
}

impl Mlx5 {
    /// # Safety
    ///
    /// As for [`Provider::create_cq`](bareverbs_provider::traits::Provider::create_cq).
    pub(super) unsafe fn do_create_cq(
        &self,
        request: &CqRequest<'_>,
    ) -> Result<CreatedCq<Self>, CreateError> {
        let log = log_size(request.entries)?;
        let cqe_size = match request.cqe_size {
            CqeSize::Bytes64 => CQE,
            CqeSize::Bytes128 => 2 * CQE,
        };
        let bytes = cqe_size << log;
        let mini_cqe_format = if request.compressed {
            let format = self.mini_cqe_format;
            Some(format.ok_or(CreateError::Unsupported { feature: Feature::CompressedCompletions })?)
        } else {
            None
        };
        let (mapping, dmabuf) =
            memory::ring(QueueResource::Cq, bytes, request.memory, self.caps.queue_dmabufs)?;
        let ring = Ring::new(mapping, log, cqe_size)
            .compressed(mini_cqe_format.map(|(mini_cqe_format, _)| mini_cqe_format));
        let doorbell = memory::doorbell_record(&self.records, request.memory)?;
        let driver = CreateCqReq {
            buf_addr: ring.address(),
            db_addr: doorbell.address(),
            cqe_size: cqe_size as u32,
            cqe_comp_en: mini_cqe_format.is_some().into(),
            cqe_comp_res_format: mini_cqe_format.map_or(0, |(_, format)| format.bits() as u8),
            flags: CqFlags::UAR_PAGE_INDEX,
            uar_page_index: uar_page_index(self.uar.page_id())?,
            ..CreateCqReq::zeroed()
        };
        let mut response = CreateCqResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        let buffer = dmabuf.map(|dmabuf| dmabuf.desc(0, bytes));
        let request = CqRequest { entries: capacity(log), ..*request };
        // SAFETY: the ring has the size that the kernel computes from the entries (`create_cq_user`
        // of its `cq.c`), and so has the description of its memory. The returned queue keeps the ring
        // and the doorbell record. The caller keeps the queue until the kernel has destroyed the CQ.
        let made = unsafe { command::create_cq(&self.file, &request, buffer.as_ref(), payload) }?;
        let queue = Mlx5Cq::new(ring, response.cqn, &self.table, doorbell, &self.uar);
        track(&self.cqs, made.handle, queue.shared());
        Ok(CreatedCq { handle: made.handle, entries: queue.capacity(), queue })
    }

    /// Resizes a CQ.
    ///
    /// # Safety
    ///
    /// As for [`Provider::resize_cq`](bareverbs_provider::traits::Provider::resize_cq).
    pub(super) unsafe fn do_resize_cq(
        &self,
        cq: u32,
        queue: &mut Mlx5Cq,
        entries: u32,
        memory: QueueMemory<'_>,
    ) -> Result<u32, CreateError> {
        let log = log_size(entries)?;
        let entries = capacity(log);
        let cqe_size = queue.cqe_size();
        if entries == queue.capacity() {
            return Ok(entries);
        }
        let mapping = memory::addressed_ring(QueueResource::Cq, cqe_size << log, memory)?;
        let ring = Ring::new(mapping, log, cqe_size);
        queue.resize_by(ring, |ring| {
            let driver =
                ResizeCqReq { buf_addr: ring.address(), cqe_size: cqe_size as u16, ..ResizeCqReq::zeroed() };
            let payload = DriverPayload { input: driver.as_bytes(), output: &mut [] };
            // SAFETY: the ring has the size that the kernel computes from the entries
            // (`resize_user` of its `cq.c`). `resize_by` installs it in the queue, which belongs to
            // `cq`, as the caller promises.
            unsafe { command::resize_cq(&self.file, cq, entries, payload) }.map(drop)
        })?;
        Ok(queue.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uar_page_index_is_not_truncated() {
        assert_eq!((uar_page_index(0), uar_page_index(0xffff)), (Ok(0), Ok(0xffff)));
        for page_id in [0x1_0000, u32::MAX] {
            let refused = uar_page_index(page_id);
            assert!(matches!(refused, Err(CreateError::Layout { value, .. }) if value == u64::from(page_id)));
        }
    }
}
