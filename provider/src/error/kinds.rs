//! Features that a device may lack, and limits that a request can exceed.

use std::fmt;

/// Declares an enum of which each variant has a text.
macro_rules! texts {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name { $( $(#[$vmeta])* $variant, )* }

        impl $name {
            /// Every variant.
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$variant),*];

            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

texts! {
    /// A feature that a kernel, a driver, a provider or a device may not support.
    ///
    /// `Display` prints a sentence without a full stop, such as "memory windows are not supported
    /// by this kernel or device".
    Feature {
        /// Address handles: the kernel or the driver lacks what the provider needs.
        AddressHandles = "address handles are",
        /// Paths without a GID on Ethernet ports.
        EthernetPathsWithoutGid = "Ethernet paths without a GID are",
        /// Effective port speeds.
        PortSpeed = "effective port speeds are",
        /// The use of a port without a network interface where one is needed.
        PortsWithoutNetdev = "ports without a network interface are",
        /// Reads of the device clock.
        DeviceClock = "reads of the device clock are",
        /// Conversion of the device clock to nanoseconds.
        ClockInfo = "wall-clock times of the device clock are",
        /// Import of a context of another process.
        ImportedContexts = "imported contexts are",
        /// Import of objects of another process.
        ImportedObjects = "imported objects are",
        /// Memory windows.
        MemoryWindows = "memory windows are",
        /// The null MR.
        NullMr = "null MRs are",
        /// MRs of dma-bufs.
        DmabufMrs = "dma-buf MRs are",
        /// Device memory exported as a dma-buf.
        DmabufExport = "dma-bufs of device memory are",
        /// DMA handles with hints for the device's accesses.
        DmaHandles = "DMA handles are",
        /// Implicit ODP MRs.
        ImplicitOdp = "implicit ODP MRs are",
        /// A change of an MR's access or PD.
        MrRereg = "changes of an MR's access or PD are",
        /// Replacement of an MR's memory.
        MrReplacement = "replacements of an MR's memory are",
        /// Advice about an MR's pages.
        MrAdvice = "MR advice is",
        /// Allocation of device memory.
        DeviceMemory = "device memory allocations are",
        /// Atomic operations of a device.
        Atomics = "atomic operations are",
        /// Atomic operations of CPU and device on the same word.
        GlobalAtomics = "atomic operations of the CPU on words that the device updates (use those of \
                         the device, by `LocalAtomics`) are",
        /// Completion timestamps.
        CompletionTimestamps = "completion timestamps are",
        /// Compressed completions.
        CompressedCompletions = "compressed completions are",
        /// CQEs of 128 bytes.
        CqeSize = "CQEs of 128 bytes are",
        /// CQs that ignore overruns.
        CqIgnoreOverrun = "CQs that ignore overruns are",
        /// Moderation of CQ events.
        CqModeration = "moderated CQs are",
        /// Resize of CQs.
        CqResize = "resized CQs are",
        /// Resize of SRQs.
        SrqResize = "resized SRQs are",
        /// Connections by the addresses of QPs, on iWARP.
        ConnectByAddress = "connections by addresses without the kernel's connection manager (use the crate \
                            bareverbs-rdmacm) are",
        /// QPs of the requested type.
        QpType = "QPs of this type are",
        /// XRC QPs.
        XrcQps = "XRC QPs are",
        /// XRC domains.
        XrcDomains = "XRC domains are",
        /// Raw packet QPs.
        RawPacketQps = "raw packet QPs are",
        /// The requested creation flags or the source QP number of a QP.
        QpCreateFlags = "these QP creation flags are",
        /// Scatter to CQE. mlx5 supports it for RC and UC QPs with an RQ of their own and without
        /// `signal_all`.
        ScatterToCqe = "scatter to CQE for this QP is",
        /// TCP segmentation offload (TSO) of this QP.
        Tso = "TSO of this QP is",
        /// Doorbell registers of a QP's own.
        DedicatedDoorbells = "dedicated doorbells are",
        /// Thread domains: doorbell registers that chosen QPs share.
        ThreadDomains = "thread domains are",
        /// Queues in huge pages.
        HugePageQueues = "queues in huge pages are",
        /// Queues in memory of the caller.
        QueueBuffers = "queues in the caller's memory are",
        /// Queues in dma-bufs.
        QueueDmabufs = "queues in dma-bufs are",
        /// Packet pacing.
        RateLimit = "rate limits of QPs are",
        /// Alternate paths of connections (APM).
        AlternatePath = "alternate paths are",
        /// Enhanced connection establishment (ECE).
        Ece = "ECE options are",
        /// Completion counters.
        CompCntrs = "completion counters are",
        /// Counters of flows.
        FlowCounters = "flow counters are",
        /// Work queues (WQs).
        Wqs = "WQs are",
        /// WQ flags that are unknown.
        WqFlags = "unknown WQ flags are",
        /// WQs with CVLAN stripping.
        WqCvlanStripping = "WQs with CVLAN stripping are",
        /// WQs with FCS scattering.
        WqScatterFcs = "WQs with FCS scattering are",
        /// WQs with delay drop.
        WqDelayDrop = "WQs with delay drop are",
        /// WQs with PCI write end padding.
        WqPciWriteEndPadding = "WQs with PCI write end padding are",
        /// Indirection tables.
        IndirectionTables = "indirection tables are",
        /// RSS QPs.
        RssQps = "RSS QPs are",
        /// The requested RX hash fields.
        RxHashFields = "some of these RX hash fields are",
        /// Toeplitz hashes.
        ToeplitzHash = "Toeplitz hashes are",
        /// Objects of another provider.
        ForeignObjects = "objects of another provider are",
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} not supported by this kernel or device", self.text())
    }
}

texts! {
    /// A quantity with a limit. `Display` prints its name, for most the field of C.
    Limit {
        /// Number of sends of a QP.
        #[doc(alias = "max_send_wr")]
        MaxSendWr = "max_send_wr",
        /// Number of receives of a QP or WQ.
        #[doc(alias = "max_recv_wr")]
        MaxRecvWr = "max_recv_wr",
        /// SGEs of a send.
        #[doc(alias = "max_send_sge")]
        MaxSendSge = "max_send_sge",
        /// SGEs of a receive of a QP or WQ.
        #[doc(alias = "max_recv_sge")]
        MaxRecvSge = "max_recv_sge",
        /// Bytes of inline data of a send.
        #[doc(alias = "max_inline_data")]
        MaxInlineData = "max_inline_data",
        /// Bytes of a TSO header.
        #[doc(alias = "max_tso_header")]
        MaxTsoHeader = "max_tso_header",
        /// Number of receives of an SRQ.
        #[doc(alias = "max_wr")]
        SrqMaxWr = "max_wr",
        /// SGEs of a receive of an SRQ.
        #[doc(alias = "max_sge")]
        SrqMaxSge = "max_sge",
        /// Entries of a CQ.
        #[doc(alias = "cqe")]
        CqEntries = "cqe",
        /// Bytes of a queue in a buffer of the caller; the maximum is the buffer's length.
        QueueBytes = "the queue's size in bytes (at most that of its buffer)",
        /// CQ moderation: completions per event.
        #[doc(alias = "cq_count")]
        CqCount = "cq_count",
        /// CQ moderation: delay of an event in microseconds.
        #[doc(alias = "cq_period")]
        CqPeriod = "cq_period in microseconds",
        /// Outstanding reads and atomics as requester.
        #[doc(alias = "max_rd_atomic")]
        MaxRdAtomic = "max_rd_atomic",
        /// Outstanding reads and atomics as responder.
        #[doc(alias = "max_dest_rd_atomic")]
        MaxDestRdAtomic = "max_dest_rd_atomic",
        /// Packet pacing: rate in kbit/s.
        Rate = "rate in kbit/s",
        /// Bytes of device memory.
        DmLen = "length of device memory in bytes",
        /// Entries of an indirection table.
        IndirectionEntries = "entries of the indirection table",
        /// Ranges of one call of MR advice.
        AdviseRanges = "ranges of MR advice",
        /// Objects that can be counted.
        Objects = "number of objects",
        /// Outstanding sends of an endpoint.
        Sends = "sends",
        /// Outstanding receives of an endpoint.
        Recvs = "recvs",
        /// Outstanding operations of an endpoint: one CQ entry each.
        SendsAndRecvs = "sends + recvs",
        /// Outstanding reads and atomics of an endpoint.
        RdAtomic = "rd_atomic",
        /// Longest run of unsignalled sends of an endpoint.
        SignalEvery = "signal_every (at most sends)",
        /// Completions of all peers of a server: one CQ entry each.
        PeerCompletions = "peers * (window + sends + 8) CQ entries",
        /// Completions of a new connection of a hub: one free CQ entry each.
        HubCompletions = "sends + recvs (one free CQ entry of the hub each)",
        /// Bytes of a message.
        MessageLen = "message length in bytes (the peer's message_size)",
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_feature_has_its_own_sentence() {
        let sentences: HashSet<_> = Feature::ALL.iter().map(Feature::to_string).collect();
        assert_eq!(sentences.len(), Feature::ALL.len());
        for feature in Feature::ALL {
            let text = feature.text();
            assert!(text.ends_with(" are") || text.ends_with(" is"), "{text}");
        }
        let sentence = "memory windows are not supported by this kernel or device";
        assert_eq!(Feature::MemoryWindows.to_string(), sentence);
    }

    #[test]
    fn each_limit_has_its_own_name() {
        let names: HashSet<_> = Limit::ALL.iter().map(Limit::to_string).collect();
        assert_eq!(names.len(), Limit::ALL.len());
    }
}
