//! Memory regions.

use crate::method::{Constant, DestroyHandle, Flags, Handle, In, InSlice, NewHandle, Out, RawDescriptor};
use crate::uverbs::ObjectClass;
use crate::uverbs::object::{Dm, Dmah, Pd};
use crate::uverbs::types::{AccessFlags, AdviseMrAdvice, AdviseMrFlag};
use crate::write::structs::Sge;

objects! {
    /// A memory region.
    object Mr = ObjectClass::MR.0, "UVERBS_OBJECT_MR" {
        /// Registers device memory.
        method DmMrReg = 0, "UVERBS_METHOD_DM_MR_REG" {
            /// Its handle.
            HANDLE: NewHandle<Mr> = 0, "UVERBS_ATTR_REG_DM_MR_HANDLE", mandatory;
            /// Offset in the device memory.
            OFFSET: In<u64> = 1, "UVERBS_ATTR_REG_DM_MR_OFFSET", mandatory;
            /// Bytes.
            LENGTH: In<u64> = 2, "UVERBS_ATTR_REG_DM_MR_LENGTH", mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 3, "UVERBS_ATTR_REG_DM_MR_PD_HANDLE", mandatory;
            /// What may be done with it; it must be zero based.
            ACCESS_FLAGS: Flags<AccessFlags> = 4, "UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS", optional;
            /// The device memory.
            DM_HANDLE: Handle<Dm> = 5, "UVERBS_ATTR_REG_DM_MR_DM_HANDLE", mandatory;
            /// Key for local use.
            RESP_LKEY: Out<u32> = 6, "UVERBS_ATTR_REG_DM_MR_RESP_LKEY", mandatory;
            /// Key for the peer's use.
            RESP_RKEY: Out<u32> = 7, "UVERBS_ATTR_REG_DM_MR_RESP_RKEY", mandatory;
        }
        /// Gives it back.
        method MrDestroy = 1, "UVERBS_METHOD_MR_DESTROY" {
            /// The memory region.
            HANDLE: DestroyHandle<Mr> = 0, "UVERBS_ATTR_DESTROY_MR_HANDLE", mandatory;
        }
        /// Says what will be done with ranges of on-demand memory.
        method AdviseMr = 2, "UVERBS_METHOD_ADVISE_MR" {
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 0, "UVERBS_ATTR_ADVISE_MR_PD_HANDLE", mandatory;
            /// The advice.
            ADVICE: Constant<AdviseMrAdvice> = 1, "UVERBS_ATTR_ADVISE_MR_ADVICE", mandatory;
            /// Options.
            FLAGS: Flags<AdviseMrFlag> = 2, "UVERBS_ATTR_ADVISE_MR_FLAGS", mandatory;
            /// The ranges.
            SGE_LIST: InSlice<Sge, 16> = 3, "UVERBS_ATTR_ADVISE_MR_SGE_LIST", mandatory;
        }
        /// Reads a memory region's attributes.
        method QueryMr = 3, "UVERBS_METHOD_QUERY_MR" {
            /// The memory region.
            HANDLE: Handle<Mr> = 0, "UVERBS_ATTR_QUERY_MR_HANDLE", mandatory;
            /// Key for local use.
            RESP_LKEY: Out<u32> = 1, "UVERBS_ATTR_QUERY_MR_RESP_LKEY", mandatory;
            /// Key for the peer's use.
            RESP_RKEY: Out<u32> = 2, "UVERBS_ATTR_QUERY_MR_RESP_RKEY", mandatory;
            /// Bytes.
            RESP_LENGTH: Out<u64> = 3, "UVERBS_ATTR_QUERY_MR_RESP_LENGTH", mandatory;
            /// Address by which work requests name the first byte.
            RESP_IOVA: Out<u64> = 4, "UVERBS_ATTR_QUERY_MR_RESP_IOVA", optional;
        }
        /// Registers part of a dma-buf.
        method RegDmabufMr = 4, "UVERBS_METHOD_REG_DMABUF_MR" {
            /// Its handle.
            HANDLE: NewHandle<Mr> = 0, "UVERBS_ATTR_REG_DMABUF_MR_HANDLE", mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 1, "UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE", mandatory;
            /// Offset in the dma-buf.
            OFFSET: In<u64> = 2, "UVERBS_ATTR_REG_DMABUF_MR_OFFSET", mandatory;
            /// Bytes.
            LENGTH: In<u64> = 3, "UVERBS_ATTR_REG_DMABUF_MR_LENGTH", mandatory;
            /// Address by which work requests name the first byte.
            IOVA: In<u64> = 4, "UVERBS_ATTR_REG_DMABUF_MR_IOVA", mandatory;
            /// The dma-buf's descriptor.
            FD: In<u32> = 5, "UVERBS_ATTR_REG_DMABUF_MR_FD", mandatory;
            /// What may be done with it.
            ACCESS_FLAGS: Flags<AccessFlags> = 6, "UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS", optional;
            /// Key for local use.
            RESP_LKEY: Out<u32> = 7, "UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY", mandatory;
            /// Key for the peer's use.
            RESP_RKEY: Out<u32> = 8, "UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY", mandatory;
        }
        /// Registers the caller's memory or part of a dma-buf.
        method RegMr = 5, "UVERBS_METHOD_REG_MR" since V7_2 with driver_payload {
            /// Its handle.
            HANDLE: NewHandle<Mr> = 0, "UVERBS_ATTR_REG_MR_HANDLE" since V7_2, mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 1, "UVERBS_ATTR_REG_MR_PD_HANDLE" since V7_2, mandatory;
            /// Hints for the device's accesses.
            DMA_HANDLE: Handle<Dmah> = 2, "UVERBS_ATTR_REG_MR_DMA_HANDLE" since V7_2, optional;
            /// Address by which work requests name the first byte.
            IOVA: In<u64> = 3, "UVERBS_ATTR_REG_MR_IOVA" since V7_2, mandatory;
            /// Address of the memory.
            ADDR: In<u64> = 4, "UVERBS_ATTR_REG_MR_ADDR" since V7_2, optional;
            /// Bytes.
            LENGTH: In<u64> = 5, "UVERBS_ATTR_REG_MR_LENGTH" since V7_2, mandatory;
            /// What may be done with it.
            ACCESS_FLAGS: Flags<AccessFlags> = 6, "UVERBS_ATTR_REG_MR_ACCESS_FLAGS" since V7_2, mandatory;
            /// The dma-buf's descriptor, in place of memory.
            FD: RawDescriptor = 7, "UVERBS_ATTR_REG_MR_FD" since V7_2, optional;
            /// Offset in the dma-buf.
            FD_OFFSET: In<u64> = 8, "UVERBS_ATTR_REG_MR_FD_OFFSET" since V7_2, optional;
            /// Key for local use.
            RESP_LKEY: Out<u32> = 9, "UVERBS_ATTR_REG_MR_RESP_LKEY" since V7_2, mandatory;
            /// Key for the peer's use.
            RESP_RKEY: Out<u32> = 10, "UVERBS_ATTR_REG_MR_RESP_RKEY" since V7_2, mandatory;
        }
    }
}
