//! The one ioctl of a uverbs device file: a header and an array of attributes.

abi_structs! {
    header = "rdma/rdma_user_ioctl_cmds.h";

    /// The head of a call; the attributes follow it directly.
    struct Header = tag "ib_uverbs_ioctl_hdr" {
        /// Bytes of the whole call, header and attributes; at most one page.
        length: u16;
        /// The object the method belongs to.
        object_id: u16;
        /// The method.
        method_id: u16;
        /// Number of attributes that follow.
        num_attrs: u16;
        /// Must be 0.
        reserved1: u64;
        /// The driver whose namespace the call uses; checked against the device's.
        driver_id: u32;
        /// Must be 0.
        reserved2: u32;
    }

    /// One attribute of a call.
    struct Attribute = tag "ib_uverbs_attr" {
        /// Its number within the method; bit 12 marks a driver's own.
        attr_id: u16;
        /// Bytes of the payload; 0 for object handles and descriptors.
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
        /// Fail with `EPROTONOSUPPORT` where the kernel does not know the attribute, rather than
        /// ignore it.
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
