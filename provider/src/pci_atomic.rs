//! Atomic operations of the PCI bus.

bitflags::bitflags! {
    /// Operand sizes of an atomic operation on the PCI bus. The CPU may change the same memory
    /// atomically.
    #[doc(alias = "ibv_pci_atomic_op_size")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PciAtomicSizes: u16 {
        /// 4 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP")]
        const BYTES_4 = 1 << 0;
        /// 8 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP")]
        const BYTES_8 = 1 << 1;
        /// 16 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP")]
        const BYTES_16 = 1 << 2;
    }
}

/// The atomic operations of the PCI bus that a device can use. Empty: it uses none.
#[doc(alias = "ibv_pci_atomic_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PciAtomicCaps {
    /// Fetch and add.
    pub fetch_add: PciAtomicSizes,
    /// Swap.
    pub swap: PciAtomicSizes,
    /// Compare and swap.
    pub compare_swap: PciAtomicSizes,
}

impl PciAtomicCaps {
    /// The operations with these operand sizes.
    #[must_use]
    pub fn new(fetch_add: PciAtomicSizes, swap: PciAtomicSizes, compare_swap: PciAtomicSizes) -> Self {
        Self { fetch_add, swap, compare_swap }
    }
}
