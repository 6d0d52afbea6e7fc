//! Types of ioctl attributes.

use crate::user_verbs::structs::QueryPortResp;
pub use crate::uverbs_values::*;

abi_structs! {
    header = "rdma/ib_user_ioctl_verbs.h";

    /// Attributes of a port: the older struct and its extensions.
    struct QueryPortRespEx = tag "ib_uverbs_query_port_resp_ex" {
        /// The response of the write command.
        legacy_resp: QueryPortResp;
        /// CapabilityMask2 of PortInfo.
        port_cap_flags2: u16;
        /// Zero.
        reserved: [u8; 2];
        /// Speed of one lane, including values that do not fit the older field; 0 before Linux
        /// 6.12.
        active_speed_ex: u32 as crate::verbs_values::PortSpeed = "active_speed_ex" since V6_12;
    }

    /// Sizes of a queue pair, requested or actual.
    struct QpCap = tag "ib_uverbs_qp_cap" {
        /// Maximum number of outstanding send requests.
        max_send_wr: u32;
        /// Maximum number of outstanding receive requests; 0 with an SRQ.
        max_recv_wr: u32;
        /// Maximum number of SGEs of a send request.
        max_send_sge: u32;
        /// Maximum number of SGEs of a receive request.
        max_recv_sge: u32;
        /// Maximum inline data of a send request in bytes.
        max_inline_data: u32;
    }

    /// One entry of a port's GID table.
    struct GidEntry align(8) = tag "ib_uverbs_gid_entry" {
        /// The GID, its bytes in network order.
        gid: [u8; 16];
        /// Index in the port's table.
        gid_index: u32;
        /// The port.
        port_num: u32;
        /// Type of the GID.
        gid_type: GidType;
        /// Index of its network interface; 0 for none.
        netdev_ifindex: u32;
    }

    /// A buffer of the caller: user memory or part of a dma-buf.
    struct BufferDesc = tag "ib_uverbs_buffer_desc" since V7_2 {
        /// Type of the buffer.
        buffer_type: BufferType = "type";
        /// Descriptor of the dma-buf.
        fd: i32;
        /// Flags that the kernel must know; none are defined.
        flags: u32;
        /// Flags that the kernel may ignore; none are defined.
        optional_flags: u32;
        /// Offset in the dma-buf, or address of the memory.
        addr: u64;
        /// Length in bytes.
        length: u64;
    }

    /// Key material of an ESP flow action.
    struct FlowActionEspKeymatAesGcm = tag "ib_uverbs_flow_action_esp_keymat_aes_gcm" {
        /// Initialisation vector.
        iv: u64;
        /// Algorithm of the initialisation vector.
        iv_algo: FlowActionIvAlgo;
        /// Salt of the cipher.
        salt: u32;
        /// Length of the integrity check value in bytes.
        icv_len: u32;
        /// Length of the key in bits.
        key_len: u32;
        /// The key.
        aes_key: [u32; 8];
    }

    /// A replay window of an ESP flow action.
    struct FlowActionEspReplayBmp = tag "ib_uverbs_flow_action_esp_replay_bmp" {
        /// Size of the window in packets.
        size: u32;
    }

    /// Encapsulation headers of ESP tunnel mode: a linked list.
    struct FlowActionEspEncap = tag "ib_uverbs_flow_action_esp_encap" {
        /// Address of the header's filter struct.
        val_ptr: u64;
        /// Address of the next element; 0 ends the list.
        next_ptr: u64;
        /// Size of the filter struct in bytes.
        len: u16;
        /// Kind of the header.
        encap_type: u16 as crate::verbs_values::FlowSpecType = "type";
        /// Zero.
        padding: [u8; 4] = "";
    }

    /// Parameters of an ESP flow action.
    struct FlowActionEsp = tag "ib_uverbs_flow_action_esp" {
        /// Security parameter index.
        spi: u32;
        /// Sequence number.
        seq: u32;
        /// Traffic flow confidentiality padding.
        tfc_pad: u32;
        /// Flags.
        flags: FlowActionEspFlags;
        /// Hard limit of the security association in packets.
        hard_limit_pkts: u64;
    }
}
