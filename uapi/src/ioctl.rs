//! The ioctl of uverbs device files: a header and an array of attributes.

abi_structs! {
    header = "rdma/rdma_user_ioctl_cmds.h";

    /// The header of a call. The attributes follow it directly.
    struct Header = tag "ib_uverbs_ioctl_hdr" {
        /// Length of the header and the attributes in bytes; at most one page.
        length: u16;
        /// The object class.
        object_id: u16;
        /// The method.
        method_id: u16;
        /// Number of attributes that follow.
        num_attrs: u16;
        /// Must be 0.
        reserved1: u64;
        /// The driver id. The kernel compares it with that of the device.
        driver_id: u32;
        /// Must be 0.
        reserved2: u32;
    }

    /// One attribute of a call.
    struct Attribute = tag "ib_uverbs_attr" {
        /// Its id within the method; bit 12 is set for driver-specific attributes.
        attr_id: u16;
        /// Length of the payload in bytes; 0 for object handles and descriptors.
        len: u16;
        /// In: whether the kernel must know it. Out: whether the kernel wrote it.
        flags: AttributeFlags;
        /// Element of an enumeration attribute in the low byte, else 0.
        attr_data: u16;
        /// A payload of up to 8 bytes, a handle, a descriptor, or the address of the payload.
        data: u64;
    }
}

abi_flags! {
    header = "rdma/rdma_user_ioctl_cmds.h";

    /// [`Attribute::flags`].
    flags AttributeFlags: u16 = "" {
        /// Mandatory: the kernel fails with `EPROTONOSUPPORT` if it does not know the attribute,
        /// instead of ignoring it.
        MANDATORY = 1 << 0, "UVERBS_ATTR_F_MANDATORY";
        /// Set by the kernel on an output attribute that it wrote.
        VALID_OUTPUT = 1 << 1, "UVERBS_ATTR_F_VALID_OUTPUT";
    }
}

abi_consts! {
    header = "rdma/rdma_user_ioctl_cmds.h";

    /// Type of the ioctl number.
    const MAGIC: u32 = 0x1b, "RDMA_IOCTL_MAGIC";
    /// The ioctl number: read and write, [`Header`]'s 24 bytes, type [`MAGIC`], number 1.
    const VERBS_IOCTL: u32 = 0xc018_1b01, "RDMA_VERBS_IOCTL";
}
