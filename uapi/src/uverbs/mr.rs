//! Memory regions.

use crate::method::{Constant, DestroyHandle, Flags, Handle, In, InSlice, NewHandle, Out, RawDescriptor};
use crate::user_verbs::structs::Sge;
use crate::uverbs::ObjectClass;
use crate::uverbs::object::{Dm, Dmah, Pd};
use crate::uverbs::types::{AccessFlags, AdviseMrAdvice, AdviseMrFlag};

objects! {
    /// A memory region.
    object Mr = ObjectClass::MR.0, "UVERBS_OBJECT_MR" {
        /// Registers device memory.
        method DmMrReg = 0, "UVERBS_METHOD_DM_MR_REG" {
            /// Its handle.
            HANDLE: NewHandle<Mr> = 0, "UVERBS_ATTR_REG_DM_MR_HANDLE", mandatory;
            /// Offset in the device memory.
            OFFSET: In<u64> = 1, "UVERBS_ATTR_REG_DM_MR_OFFSET", mandatory;
            /// Length in bytes.
            LENGTH: In<u64> = 2, "UVERBS_ATTR_REG_DM_MR_LENGTH", mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 3, "UVERBS_ATTR_REG_DM_MR_PD_HANDLE", mandatory;
            /// Access flags; `ZERO_BASED` is required.
            ACCESS_FLAGS: Flags<AccessFlags> = 4, "UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS", optional;
            /// The device memory.
            DM_HANDLE: Handle<Dm> = 5, "UVERBS_ATTR_REG_DM_MR_DM_HANDLE", mandatory;
            /// Local key (lkey).
            RESP_LKEY: Out<u32> = 6, "UVERBS_ATTR_REG_DM_MR_RESP_LKEY", mandatory;
            /// Remote key (rkey).
            RESP_RKEY: Out<u32> = 7, "UVERBS_ATTR_REG_DM_MR_RESP_RKEY", mandatory;
        }
        /// Destroys it.
        method MrDestroy = 1, "UVERBS_METHOD_MR_DESTROY" {
            /// The memory region.
            HANDLE: DestroyHandle<Mr> = 0, "UVERBS_ATTR_DESTROY_MR_HANDLE", mandatory;
        }
        /// Gives advice for ranges of ODP regions.
        method AdviseMr = 2, "UVERBS_METHOD_ADVISE_MR" {
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 0, "UVERBS_ATTR_ADVISE_MR_PD_HANDLE", mandatory;
            /// The advice.
            ADVICE: Constant<AdviseMrAdvice> = 1, "UVERBS_ATTR_ADVISE_MR_ADVICE", mandatory;
            /// Flags.
            FLAGS: Flags<AdviseMrFlag> = 2, "UVERBS_ATTR_ADVISE_MR_FLAGS", mandatory;
            /// The ranges.
            SGE_LIST: InSlice<Sge, 16> = 3, "UVERBS_ATTR_ADVISE_MR_SGE_LIST", mandatory;
        }
        /// Queries a memory region.
        method QueryMr = 3, "UVERBS_METHOD_QUERY_MR" {
            /// The memory region.
            HANDLE: Handle<Mr> = 0, "UVERBS_ATTR_QUERY_MR_HANDLE", mandatory;
            /// Local key (lkey).
            RESP_LKEY: Out<u32> = 1, "UVERBS_ATTR_QUERY_MR_RESP_LKEY", mandatory;
            /// Remote key (rkey).
            RESP_RKEY: Out<u32> = 2, "UVERBS_ATTR_QUERY_MR_RESP_RKEY", mandatory;
            /// Length in bytes.
            RESP_LENGTH: Out<u64> = 3, "UVERBS_ATTR_QUERY_MR_RESP_LENGTH", mandatory;
            /// IOVA: address of the first byte in work requests.
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
            /// Length in bytes.
            LENGTH: In<u64> = 3, "UVERBS_ATTR_REG_DMABUF_MR_LENGTH", mandatory;
            /// IOVA: address of the first byte in work requests.
            IOVA: In<u64> = 4, "UVERBS_ATTR_REG_DMABUF_MR_IOVA", mandatory;
            /// Descriptor of the dma-buf.
            FD: In<u32> = 5, "UVERBS_ATTR_REG_DMABUF_MR_FD", mandatory;
            /// Access flags.
            ACCESS_FLAGS: Flags<AccessFlags> = 6, "UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS", optional;
            /// Local key (lkey).
            RESP_LKEY: Out<u32> = 7, "UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY", mandatory;
            /// Remote key (rkey).
            RESP_RKEY: Out<u32> = 8, "UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY", mandatory;
        }
        /// Registers user memory or part of a dma-buf.
        method RegMr = 5, "UVERBS_METHOD_REG_MR" since V7_2 with driver_payload {
            /// Its handle.
            HANDLE: NewHandle<Mr> = 0, "UVERBS_ATTR_REG_MR_HANDLE" since V7_2, mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 1, "UVERBS_ATTR_REG_MR_PD_HANDLE" since V7_2, mandatory;
            /// DMA handle: hints for the device's accesses.
            DMA_HANDLE: Handle<Dmah> = 2, "UVERBS_ATTR_REG_MR_DMA_HANDLE" since V7_2, optional;
            /// IOVA: address of the first byte in work requests.
            IOVA: In<u64> = 3, "UVERBS_ATTR_REG_MR_IOVA" since V7_2, mandatory;
            /// Address of the memory.
            ADDR: In<u64> = 4, "UVERBS_ATTR_REG_MR_ADDR" since V7_2, optional;
            /// Length in bytes.
            LENGTH: In<u64> = 5, "UVERBS_ATTR_REG_MR_LENGTH" since V7_2, mandatory;
            /// Access flags.
            ACCESS_FLAGS: Flags<AccessFlags> = 6, "UVERBS_ATTR_REG_MR_ACCESS_FLAGS" since V7_2, mandatory;
            /// Descriptor of a dma-buf instead of user memory.
            FD: RawDescriptor = 7, "UVERBS_ATTR_REG_MR_FD" since V7_2, optional;
            /// Offset in the dma-buf.
            FD_OFFSET: In<u64> = 8, "UVERBS_ATTR_REG_MR_FD_OFFSET" since V7_2, optional;
            /// Local key (lkey).
            RESP_LKEY: Out<u32> = 9, "UVERBS_ATTR_REG_MR_RESP_LKEY" since V7_2, mandatory;
            /// Remote key (rkey).
            RESP_RKEY: Out<u32> = 10, "UVERBS_ATTR_REG_MR_RESP_RKEY" since V7_2, mandatory;
        }
    }
}
