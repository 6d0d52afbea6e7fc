//! The rules of the ABI, each with its place in the kernel.

macro_rules! rules {
    ($($(#[$meta:meta])* $name:ident = $id:literal, $text:literal, $source:literal;)*) => {
        /// A rule of the ABI.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum Rule { $($(#[$meta])* $name,)* }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its short name, the last part of the names of its checks.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)* }
            }

            /// The rule in one sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// File and function of the kernel that implement it, in the newest checked series.
            #[must_use]
            pub const fn source(self) -> &'static str {
                match self { $(Self::$name => $source,)* }
            }
        }
    };
}

impl Rule {
    /// [`Rule::source`] from the root of its tree.
    pub(crate) fn path(self) -> String {
        let source = self.source();
        let folder =
            if source.starts_with("core/") || source.starts_with("sw/") { "drivers/infiniband/" } else { "" };
        format!("{folder}{source}")
    }
}

rules! {
    IoctlNumber = "ioctl-number", "An ioctl number other than RDMA_VERBS_IOCTL fails with ENOTTY.",
        "core/uverbs_ioctl.c: ib_uverbs_ioctl";
    HeaderUnreadable = "header-unreadable", "An unreadable header fails with EFAULT.",
        "core/uverbs_ioctl.c: ib_uverbs_ioctl";
    HeaderLength = "header-length",
        "A length that is not 24 + 16 × num_attrs, or exceeds a page, fails with EINVAL.",
        "core/uverbs_ioctl.c: ib_uverbs_ioctl";
    HeaderReserved = "header-reserved",
        "A reserved field of the header that is not 0 fails with EPROTONOSUPPORT.",
        "core/uverbs_ioctl.c: ib_uverbs_ioctl";
    DriverId = "driver-id", "A driver id other than the device's fails with EINVAL.",
        "core/uverbs_ioctl.c: ib_uverbs_cmd_verbs";
    UnknownMethod = "unknown-method",
        "An unknown object class or method, or one that the driver does not support, fails with \
         EPROTONOSUPPORT.",
        "core/uverbs_ioctl.c: ib_uverbs_cmd_verbs";
    MethodPresent = "method-present",
        "A method that the table declares for this series and driver exists: it never fails with \
         EPROTONOSUPPORT.",
        "core/uverbs_uapi.c: uverbs_finalize_ioctl_method";
    AttributePresent = "attribute-present",
        "A method has exactly the attributes that the table declares for the kernel series.",
        "core/uverbs_std_types_*.c: the method's declaration";
    AttributesUnreadable = "attributes-unreadable", "An unreadable attribute array fails with EFAULT.",
        "core/uverbs_ioctl.c: ib_uverbs_run_method";
    UnknownMandatory = "unknown-mandatory",
        "An unknown attribute with the mandatory flag fails with EPROTONOSUPPORT.",
        "core/uverbs_ioctl.c: uverbs_set_attr";
    UnknownOptional = "unknown-optional", "An unknown attribute without the mandatory flag is ignored.",
        "core/uverbs_ioctl.c: uverbs_set_attr";
    AttributeFlags = "attribute-flags", "Undefined bits of the flags of an attribute are ignored.",
        "core/uverbs_ioctl.c: uverbs_set_attr";
    KnownOptional = "known-optional", "The mandatory flag of a known attribute has no effect.",
        "core/uverbs_ioctl.c: uverbs_set_attr";
    AttributeOrder = "attribute-order", "Attributes may have any order.",
        "core/uverbs_ioctl.c: ib_uverbs_run_method";
    Duplicate = "duplicate", "An attribute given twice fails with EINVAL.",
        "core/uverbs_ioctl.c: uverbs_set_attr";
    Missing = "missing", "A missing mandatory attribute fails with EINVAL.",
        "core/uverbs_ioctl.c: ib_uverbs_run_method";
    MissingForHandler = "missing-for-handler",
        "An optional attribute that the handler needs fails with its documented error when it is missing.",
        "core/uverbs_std_types_*.c: the method's handler; uverbs_attr_get";
    AttributeReserved = "attribute-reserved",
        "attr_data that is not 0 fails with EINVAL, except for enumerations.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    EnumElement = "enum-element", "An enumeration element out of range fails with EOPNOTSUPP.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    EnumReserved = "enum-reserved", "The reserved byte of an enumeration fails with EINVAL if it is not 0.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    TooShort = "too-short", "A payload shorter than its minimum fails with EINVAL.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    TooLong = "too-long", "A payload longer than its fixed size fails with EINVAL.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    ZeroTail = "zero-tail", "A struct longer than the kernel's is accepted if the tail is zero.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    NonZeroTail = "nonzero-tail",
        "A struct longer than the kernel's fails with EOPNOTSUPP if the tail is not zero or not readable.",
        "core/uverbs_ioctl.c: uverbs_process_attr, uverbs_is_attr_cleared";
    InputUnreadable = "input-unreadable",
        "An input of more than 8 bytes that can't be read fails with EFAULT.",
        "core/uverbs_ioctl.c: uverbs_process_attr; include/rdma/uverbs_ioctl.h: _uverbs_copy_from";
    OutputUnwritable = "output-unwritable",
        "An output that can't be written fails with EFAULT, and a partially created object is destroyed.",
        "core/ib_core_uverbs.c: uverbs_copy_to";
    OutputFlag = "output-flag", "The kernel sets UVERBS_ATTR_F_VALID_OUTPUT on the outputs that it wrote.",
        "core/uverbs.h: uverbs_set_output";
    OutputTail = "output-tail", "An output longer than the kernel's struct is filled with zeros.",
        "core/ib_core_uverbs.c: uverbs_copy_to_struct_or_zero";
    ConstantRange = "constant-range", "A constant above the range of its type fails with EINVAL.",
        "core/ib_core_uverbs.c: _uverbs_get_const_unsigned";
    FlagsLength = "flags-length", "Flags of a length other than 4 or 8 bytes fail with EINVAL.",
        "core/ib_core_uverbs.c: uverbs_get_flags64";
    FlagsFourBytes = "flags-4-bytes", "Flags may have 4 bytes.",
        "core/ib_core_uverbs.c: uverbs_get_flags64";
    FlagsUnknown = "flags-unknown", "An undefined flag fails with EINVAL.",
        "core/ib_core_uverbs.c: uverbs_get_flags64, uverbs_get_flags32";
    HandleUnknown = "handle-unknown", "A handle without an object fails with ENOENT.",
        "core/rdma_core.c: lookup_get_idr_uobject";
    HandleNegative = "handle-negative", "A negative handle fails with EINVAL.",
        "core/rdma_core.c: lookup_get_idr_uobject";
    HandleWide = "handle-wide", "A handle of more than 32 bits is not truncated: it fails with ENOENT.",
        "core/rdma_core.c: lookup_get_idr_uobject";
    HandleType = "handle-type", "A handle of an object of another class fails with EINVAL.",
        "core/rdma_core.c: rdma_lookup_get_uobject";
    HandleDestroyed = "handle-destroyed", "The handle of a destroyed object fails with ENOENT.",
        "core/rdma_core.c: lookup_get_idr_uobject";
    HandleForeign = "handle-foreign", "A handle of another open file fails with ENOENT.",
        "core/rdma_core.c: lookup_get_idr_uobject";
    HandleAbsentClass = "handle-absent-class",
        "A handle of a class that the driver does not support fails with EINVAL.",
        "core/rdma_core.c: rdma_lookup_get_uobject";
    HandleLength = "handle-length", "A handle or descriptor with a length other than 0 fails with EINVAL.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    HandleArray = "handle-array",
        "An array of handles has a multiple of 4 bytes and a number of elements in its range, else EINVAL.",
        "core/uverbs_ioctl.c: uverbs_process_idrs_array";
    NewHandleInput = "new-handle-input", "The data of a new handle or descriptor is ignored on input.",
        "core/uverbs_ioctl.c: uverbs_process_attr";
    FdClosed = "fd-closed", "A descriptor that is not open fails with EBADF.",
        "core/rdma_core.c: lookup_get_fd_uobject";
    FdOtherFile = "fd-other-file", "A descriptor of another file type or class fails with EBADF.",
        "core/rdma_core.c: lookup_get_fd_uobject";
    FdForeign = "fd-foreign", "A descriptor that another open file of the device created fails with EBADF.",
        "core/rdma_core.c: lookup_get_fd_uobject";
    FdWide = "fd-wide", "A descriptor out of the range of an int fails with EINVAL.",
        "core/rdma_core.c: lookup_get_fd_uobject; core/uverbs_ioctl.c: uverbs_process_attr";
    NeedsContext = "needs-context", "A call that needs a context fails with EINVAL before GET_CONTEXT.",
        "core/rdma_core.c: alloc_uobj; core/ib_core_uverbs.c: ib_uverbs_get_ucontext_file";
    GoodCall = "good-call", "A valid call succeeds, or fails with the documented error of the driver.",
        "the method's handler";
    DriverPayload = "driver-payload", "The driver's payload has the length that the driver requires.",
        "the driver";
    SecondContext = "second-context", "A file has one context: a second GET_CONTEXT fails with EINVAL.",
        "core/uverbs_cmd.c: ib_init_ucontext";
    CheckOrder = "check-order", "Of several faults, the one that the kernel tests first decides the error.",
        "core/uverbs_ioctl.c: ib_uverbs_ioctl, ib_uverbs_cmd_verbs, ib_uverbs_run_method";
    Undo = "undo", "A call that fails after it created an object destroys it.",
        "core/uverbs_ioctl.c: bundle_destroy";
    Busy = "busy", "An object can't be destroyed while another object uses it: EBUSY.",
        "core/rdma_core.c: uverbs_destroy_uobject; core/verbs.c: the usecnt of each object";
    DestroyTwice = "destroy-twice", "A destroyed object can't be destroyed again: ENOENT.",
        "core/rdma_core.c: lookup_get_idr_uobject";
    CloseFrees = "close-frees", "Closing the file destroys all its objects.",
        "core/rdma_core.c: uverbs_destroy_ufile_hw";
    WriteUnknown = "command-unknown",
        "A command number without a handler, or that the driver does not support, fails with EOPNOTSUPP.",
        "core/uverbs_uapi.c: uapi_get_method";
    WriteNumber = "command-number", "A command number with undefined bits fails with EINVAL.",
        "core/rdma_core.h: uapi_get_method";
    RequestShort = "request-short", "A request shorter than the command's struct fails with ENOSPC.",
        "core/uverbs_std_types_device.c: UVERBS_METHOD_INVOKE_WRITE";
    ExtendedShort = "extended-short",
        "An extended command takes a short request as if the rest were 0, and truncates its response: \
         the kernel does not apply the declared minimum.",
        "core/uverbs_uapi.c: uapi_create_write";
    ResponseShort = "response-short",
        "A response buffer shorter than the command's minimum fails with ENOSPC.",
        "core/uverbs_std_types_device.c: UVERBS_METHOD_INVOKE_WRITE";
    RequestUnreadable = "request-unreadable", "An unreadable request fails with EFAULT.",
        "core/uverbs_cmd.c: uverbs_request";
    ResponseUnwritable = "response-unwritable",
        "An unwritable response fails with EFAULT, and the new object is destroyed.",
        "core/uverbs_cmd.c: uverbs_response";
    RequestZeroTail = "request-zero-tail",
        "A request longer than the kernel's struct is accepted if its tail is zero.",
        "core/uverbs_cmd.c: uverbs_request";
    RequestTail = "request-nonzero-tail",
        "A request longer than the kernel's struct with a tail that is not zero fails with EOPNOTSUPP.",
        "core/uverbs_cmd.c: uverbs_request";
    RequestHandle = "request-handle",
        "A handle in a request that names no object fails with ENOENT, one of another class with EINVAL.",
        "core/rdma_core.c: rdma_lookup_get_uobject";
    ResponseTail = "response-tail", "A response buffer longer than the kernel's struct is filled with zeros.",
        "core/uverbs_cmd.c: uverbs_response";
    RequestField = "request-field",
        "A field of a request that must be 0, or is out of range, fails as documented.",
        "core/uverbs_cmd.c: the command's handler";
    Transition = "transition", "A transition that the state table does not have fails with EINVAL.",
        "core/verbs.c: ib_modify_qp_is_ok, qp_state_table";
    TransitionRequired = "required-attribute",
        "A transition without one of its required attributes fails with EINVAL.",
        "core/verbs.c: ib_modify_qp_is_ok, qp_state_table";
    TransitionExtra = "other-attribute",
        "A transition accepts its optional attributes and fails with EINVAL for any other.",
        "core/verbs.c: ib_modify_qp_is_ok, qp_state_table";
    QpAttributeRange = "qp-attribute-range", "A QP attribute out of range fails as documented.",
        "core/uverbs_cmd.c: modify_qp; the driver's modify_qp";
    Limit = "limit", "A size within the device's limit is accepted, one above it fails with EINVAL.",
        "the driver's create methods; core/uverbs_cmd.c";
    Mmap = "mmap", "A queue is mapped once, at its offset, with at most its length.",
        "sw/rxe/rxe_mmap.c: rxe_mmap; core/uverbs_main.c: ib_uverbs_mmap";
    EventFd = "event-fd", "Reads and polls of an event descriptor follow the state of its queue.",
        "core/uverbs_main.c: ib_uverbs_event_read, ib_uverbs_event_poll";
    WriteHeader = "write-header", "A write() with an inconsistent header fails as documented.",
        "core/uverbs_main.c: ib_uverbs_write, verify_hdr";
    WriteParity = "write-parity", "A command has the same result by write() and by INVOKE_WRITE.",
        "core/uverbs_main.c: ib_uverbs_write; core/uverbs_std_types_device.c: UVERBS_METHOD_INVOKE_WRITE";
    WriteOverread = "write-overread",
        "A write() of DESTROY_CQ with 16 bytes takes the handle from the bytes behind them.",
        "core/uverbs_main.c: verify_hdr (works around rdma-core 18 and 19)";
    MrAccess = "mr-access", "Access flags of a memory region are checked as documented.",
        "include/rdma/ib_verbs.h: ib_check_mr_access; the driver's reg_user_mr";
    RingRequest = "ring-request",
        "A request in a shared queue that its transport or its memory does not allow completes with an \
         error.",
        "sw/rxe/rxe_req.c: rxe_requester; sw/rxe/rxe_resp.c: rxe_receiver";
    QpAccess = "qp-access",
        "A request that the peer's QP does not allow completes with REM_INV_REQ_ERR on RC and is dropped on \
         UC. It changes no memory.",
        "sw/rxe/rxe_resp.c: check_op_valid";
    RemoteKey = "remote-key",
        "A request that its R_Key does not allow completes with REM_ACCESS_ERR on RC and is dropped on UC. \
         It changes no memory.",
        "sw/rxe/rxe_resp.c: check_rkey";
    LocalKey = "local-key",
        "A request that its L_Key does not allow is not sent. A response that can't be stored completes with \
         LOC_PROT_ERR.",
        "sw/rxe/rxe_mr.c: copy_data; sw/rxe/rxe_comp.c: do_read, do_atomic";
    ReceiveBuffer = "receive-buffer",
        "A message longer than its receive, or for memory that the receive may not use, fails at both sides \
         on RC and at the receiver on UC.",
        "sw/rxe/rxe_resp.c: send_data_in";
    SharedReceive = "shared-receive",
        "A message of a QP with an SRQ takes the oldest receive of the SRQ. The completion names the QP.",
        "sw/rxe/rxe_resp.c: get_srq_wqe";
    Operation = "operation",
        "A valid operation completes with SUCCESS at both sides and moves exactly its bytes.",
        "sw/rxe/rxe_req.c: rxe_requester; sw/rxe/rxe_resp.c: execute";
    Completion = "completion",
        "A completion has the opcode, length, flags and immediate data of its operation.",
        "sw/rxe/rxe_comp.c: make_send_cqe; sw/rxe/rxe_resp.c: do_complete";
    Inline = "inline", "Inline data is sent from the WQE, up to max_inline_data bytes.",
        "sw/rxe/rxe_req.c: finish_packet";
    Datagram = "datagram",
        "A datagram that no QP accepts is dropped, and its request completes with SUCCESS. One without a \
         usable address handle is not sent.",
        "sw/rxe/rxe_av.c: rxe_get_av; sw/rxe/rxe_recv.c: check_keys";
    SendState = "send-state", "A doorbell fails with EINVAL before RTS. Sends in ERR are flushed.",
        "sw/rxe/rxe_verbs.c: rxe_post_send";
    Window = "memory-window",
        "A window is bound within its region and PD. It grants its QP its own range with its own rights.",
        "sw/rxe/rxe_mw.c: rxe_check_bind_mw, rxe_lookup_mw";
    Invalidate = "invalidate",
        "A request with an invalidated key fails. The invalidation of a key without an MR or MW fails.",
        "sw/rxe/rxe_mw.c: rxe_invalidate_mw; sw/rxe/rxe_mr.c: rxe_invalidate_mr";
    Retry = "retry",
        "A request without a receive or a peer fails after its retries on RC and is dropped on UC.",
        "sw/rxe/rxe_comp.c: rxe_completer";
    AccessEvent = "access-event",
        "An R_Key violation raises QP_ACCESS_ERR at the responder, unless a receive reports it.",
        "sw/rxe/rxe_resp.c: get_rkey_violation_state";
    RingIndex = "ring-index", "The kernel uses the indices of a shared queue modulo its size.",
        "sw/rxe/rxe_queue.h: queue_addr_from_index, queue_empty";
    QueryValue = "query-value", "A query returns the values that the object was created with.",
        "core/uverbs_cmd.c: ib_uverbs_query_qp, ib_uverbs_query_srq; core/uverbs_std_types_mr.c: QUERY_MR";
    CmHeader = "cm-header",
        "A command of the connection manager with an inconsistent header fails as documented.",
        "core/ucma.c: ucma_write";
    CmResponse = "cm-response",
        "A response buffer that is too short fails with ENOSPC, an unwritable one with EFAULT.",
        "core/ucma.c: the command's handler";
    CmId = "cm-id",
        "An identifier that does not exist fails with ENOENT, one of another file with EINVAL.",
        "core/ucma.c: ucma_get_ctx, _ucma_find_context";
    CmState = "cm-state", "A command that the state of the identifier does not allow fails with EINVAL.",
        "core/ucma.c: ucma_get_ctx_dev; core/cma.c: the command's function";
    CmField = "cm-field", "A field of a command that is out of range fails as documented.",
        "core/ucma.c: the command's handler";
    NetlinkType = "netlink-type", "A message of an unknown client or command fails with EINVAL.",
        "core/netlink.c: is_nl_valid, rdma_nl_rcv_msg";
    NetlinkAttribute = "netlink-attribute",
        "A message without a mandatory attribute, or with one that is too short, fails with EINVAL.",
        "core/nldev.c: the command's doit, nldev_policy";
    NetlinkUnknown = "netlink-unknown-attribute",
        "A command either ignores unknown attributes or fails with EINVAL.",
        "core/nldev.c: the command's doit";
    NetlinkObject = "netlink-object",
        "A device or port that does not exist fails with EINVAL, an object with ENOENT, a QP without that \
         port with EAGAIN.",
        "core/nldev.c: the command's doit, res_get_common_doit";
    NetlinkPermission = "netlink-permission",
        "A command that changes the system fails with EPERM without CAP_NET_ADMIN, whatever it contains.",
        "core/netlink.c: rdma_nl_rcv_msg";
    Capability = "capability", "A call that needs a capability fails with EPERM without it.",
        "core/uverbs_std_types_qp.c: QP_CREATE; core/uverbs_cmd.c: create_qp, modify_qp";
    Memlock = "memlock",
        "Without CAP_IPC_LOCK, the regions of a process span at most RLIMIT_MEMLOCK bytes, else ENOMEM.",
        "core/umem.c: __ib_umem_get_va";
    Cgroup = "cgroup-limit",
        "A context or object above the limit of the process's rdma cgroup fails with EAGAIN.",
        "core/rdma_core.c: alloc_begin_idr_uobject; core/uverbs_cmd.c: ib_alloc_ucontext; \
         ../../kernel/cgroup/rdma.c";
    Namespace = "namespace",
        "In shared mode, a device is accessible in every network namespace.",
        "core/device.c: rdma_dev_access_netns";
    ExclusiveNamespace = "exclusive-namespace",
        "In exclusive mode, a device is opened and found in its own network namespace only. Open files stay \
         usable.",
        "core/uverbs_main.c: ib_uverbs_open; core/device.c: rdma_dev_access_netns";
    Fork = "fork",
        "A forked child may execute ioctls on its parent's file. write() fails with EACCES.",
        "include/rdma/ib.h: ib_safe_file_access";
    KnownBug = "known-bug", "A known bug of the kernel, in kernels that may have it.",
        "docs/kernel-bugs.md of bareverbs";
    Fixed = "fixed-bug", "A bug that a kernel update fixed.", "docs/findings/fixed-bugs.md of bareverbs";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{self, data, parser};

    /// Rules that no seeded fault breaks, with the reason.
    const UNSEEDED: [(Rule, &str); 2] = [
        (Rule::KnownBug, "each check shows one defect: kernels with it are the proof"),
        (Rule::Fixed, "each check shows one defect: kernels before the fix are the proof"),
    ];

    #[test]
    fn only_sources_of_the_driver_folder_are_in_it() {
        assert_eq!(
            Rule::WriteHeader.path(),
            "drivers/infiniband/core/uverbs_main.c: ib_uverbs_write, verify_hdr"
        );
        assert_eq!(Rule::KnownBug.path(), "docs/kernel-bugs.md of bareverbs");
        assert!(Rule::MrAccess.path().starts_with("include/rdma/ib_verbs.h"));
    }

    #[test]
    fn each_rule_has_a_seeded_fault_or_a_reason() {
        let seeds = [parser::RULES, data::RULES, fault::SOFT_ROCE, fault::CONNECTX];
        for rule in Rule::ALL {
            let faults = seeds.iter().filter(|seeds| seeds.contains(rule)).count();
            let reasons = UNSEEDED.iter().filter(|(of, _)| of == rule).count();
            assert_eq!(faults + reasons, 1, "{rule:?}");
        }
    }

    #[test]
    fn each_rule_has_a_check() {
        // Each check looks for leaks.
        let of_each = [Rule::Undo];
        use bareverbs_uapi::uverbs::types::DriverId;
        let checks = [DriverId::RXE, DriverId::MLX5].map(|id| crate::generate::checks(id.0));
        let is_checked = |rule: &&Rule| checks.iter().flatten().any(|check| check.rule == **rule);
        let unchecked = Rule::ALL.iter().filter(|rule| !of_each.contains(rule) && !is_checked(rule));
        let unchecked: Vec<_> = unchecked.collect();
        assert!(unchecked.is_empty(), "{unchecked:?}");
    }
}
