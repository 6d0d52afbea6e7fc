//! The resource dump register and its segments.

use crate::firmware::bits::layout;

layout! {
    /// The register (`mlx5_ifc_resource_dump_bits`).
    ResourceDump: 0x100 {
        MORE_DUMP: 0x0, 1,
        SEQ_NUM: 0xc, 4,
        SEGMENT_TYPE: 0x10, 16,
        INDEX1: 0x40, 32,
        MKEY: 0x100, 32,
        SIZE: 0x120, 32,
        ADDRESS: 0x140, 64,
    }
}

layout! {
    /// The start of each segment (`mlx5_ifc_resource_dump_segment_header_bits`).
    SegmentHeader: 0x4 {
        LENGTH_DW: 0x0, 16,
        SEGMENT_TYPE: 0x10, 16,
    }
}

layout! {
    /// The request of the dump (`mlx5_ifc_resource_dump_command_segment_bits`).
    CommandSegment: 0x14 {
        SEGMENT_CALLED: 0x20, 16,
        INDEX1: 0x40, 32,
    }
}

layout! {
    /// Versions (`mlx5_ifc_resource_dump_info_segment_bits`).
    InfoSegment: 0x10 {
        DUMP_VERSION: 0x38, 8,
    }
}

layout! {
    /// The known segment types (`mlx5_ifc_resource_dump_menu_segment_bits`).
    MenuSegment: 0x8 {
        NUM_OF_RECORDS: 0x30, 16,
    }
}

layout! {
    /// A segment type (`mlx5_ifc_resource_dump_menu_record_bits`).
    MenuRecord: 0x34 {
        MUST_HAVE_INDEX1: 0xe, 1,
        SUPPORT_INDEX1: 0xf, 1,
        SEGMENT_TYPE: 0x10, 16,
        SEGMENT_NAME: 0x20, bytes 16,
        INDEX1_NAME: 0xa0, bytes 16,
    }
}

layout! {
    /// An object, followed by its payload (`mlx5_ifc_resource_dump_resource_segment_bits`).
    ResourceSegment: 0x10 {
        INDEX1: 0x40, 32,
    }
}
