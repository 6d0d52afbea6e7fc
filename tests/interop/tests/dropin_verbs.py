"""Prints what functions of libibverbs return. Each library prints the same. It follows `dropin_common.py`."""

print("query_device_ex", query_device)
words("device", device.raw)
print("query_port", query_port)
# Linux 6.1 has no `active_speed_ex`: the C library leaves 0 there, ours writes `active_speed`.
SPEED, SPEED_EX = 44, 52
if struct.unpack_from("I", port.raw, SPEED_EX) == (0,):
    struct.pack_into("I", port, SPEED_EX, port.raw[SPEED])
words("port", port.raw)


def ece(qp):
    found = (ctypes.c_uint32 * 3)()
    print("query_ece", library.ibv_query_ece(c_void_p(qp.qp), byref(found)), list(found))
    return found


def limit(qp, rate, burst=0, typical=0, comp_mask=0):
    attr = (ctypes.c_uint32 * 4)(rate, burst, typical, comp_mask)
    print("modify_qp_rate_limit", call(context, MODIFY_QP_RATE_LIMIT, c_int, qp.qp, byref(attr)))


cq = library.ibv_create_cq(c_void_p(context), 16, None, None, 0)
qp = Qp(RC, cq)
print("modify_qp of unknown attributes", qp.modify(0x39 | 1 << 29, 1, port=("B", 129, 1)))
found = ece(qp)
print("set_ece", library.ibv_set_ece(c_void_p(qp.qp), byref(found)))
qp.connect_to_itself()
ece(qp)
print("set_ece in RTS", library.ibv_set_ece(c_void_p(qp.qp), byref(found)))

smallest, largest, types = struct.unpack_from("III", device.raw, 332)
qp = Qp(UC, cq)
qp.connect_to_itself()
print("rate limits of UC", types >> UC & 1)
# The libraries differ in the errno for a type of QP that the device does not limit.
if not types or types >> UC & 1:
    limit(qp, smallest)
    limit(qp, largest, 1500, 64)
    limit(qp, 0)
    limit(qp, smallest, comp_mask=1)
    limit(qp, largest + 1)

# Requests with an SGE or a byte more than the QP has.
SEND = 2
IS_INLINE = 8
data = ctypes.create_string_buffer(1 << 16)
qp = Qp(RC, cq, operations=1 << 2)
qp.connect_to_itself()
_, _, max_sge, _, max_inline = struct.unpack_from("IIIII", qp.init, 32)
sges = (c_uint64 * (2 * max_sge + 2))()
one = struct_of(16, sge=("QI", 0, ctypes.addressof(data), max_inline + 1))
bad = c_void_p()
for title, count, list_of, flags in [("SGEs", max_sge + 1, sges, 0), ("inline data", 1, one, IS_INLINE)]:
    request = struct_of(128, sges=("PiII", 16, ctypes.addressof(list_of), count, SEND, flags))
    posted = call(context, POST_SEND, c_int, qp.qp, byref(request), byref(bad))
    print("post_send with too many", title, posted, bad.value == ctypes.addressof(request))
# Offsets in `struct ibv_qp_ex`.
WR_SEND, WR_SET_INLINE_DATA, WR_SET_SGE_LIST, WR_START, WR_COMPLETE = 240, 288, 312, 320, 328
extended = library.ibv_qp_to_qp_ex(c_void_p(qp.qp))
for title, setter, *arguments in [
    ("SGEs", WR_SET_SGE_LIST, max_sge + 1, byref(sges)),
    ("inline data", WR_SET_INLINE_DATA, byref(data), max_inline + 1),
]:
    call(extended, WR_START, None, extended)
    call(extended, WR_SEND, None, extended)
    call(extended, setter, None, extended, *arguments)
    print("wr_complete with too many", title, call(extended, WR_COMPLETE, c_int, extended))

# A QP in a multicast group.
qp = Qp(UD, cq)
group = (ctypes.c_ubyte * 16)(*bytes.fromhex("ff0e0000000000000000ffffe1010203"))
# The LIDs of groups begin there. RoCE has none.
mlid = 0xC001 if struct.unpack_from("H", port.raw, LID) != (0,) else 0
print("modify_qp", qp.modify(0x71, 1, port=("B", 129, 1)))
arguments = c_void_p(qp.qp), byref(group), mlid
print("attach_mcast", library.ibv_attach_mcast(*arguments), library.ibv_attach_mcast(*arguments))
print("destroy_qp in a group", qp.destroy(), ctypes.get_errno())
print("detach_mcast", library.ibv_detach_mcast(*arguments), library.ibv_detach_mcast(*arguments))
print("destroy_qp", qp.destroy())

# The clock of the device runs on while the guest has no processor, and its start is the boot.
HOUR = 3_600_000_000_000
init = struct_of(56, cqe=("I", 0, 16), fields=("Q", 32, 1 << 11))
cq = call(context, CREATE_CQ_EX, c_void_p, context, byref(init))
print("create_cq_ex with wall clock", bool(cq), 0 if cq else ctypes.get_errno())
if cq:
    qp = Qp(RC, cq)
    qp.connect_to_itself()
    request = (c_uint64 * 16)(7)
    assert call(context, POST_RECV, c_int, qp.qp, byref(request), byref(bad)) == 0
    # A signaled send without data.
    struct.pack_into("II", request, 28, 2, 2)
    assert call(context, POST_SEND, c_int, qp.qp, byref(request), byref(bad)) == 0
    attr, begin = ctypes.c_uint32(0), time.monotonic()
    while (status := call(cq, START_POLL, c_int, cq, byref(attr))) and time.monotonic() < begin + 20:
        pass
    wall_clock = call(cq, READ_WALL_CLOCK, c_uint64, cq)
    call(cq, END_POLL, None, cq)
    print("wall clock", status, abs(wall_clock - time.time_ns()) < HOUR)
