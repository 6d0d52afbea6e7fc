"""Prints what functions of libibverbs return, called by the C ABI. Each library prints the same.

Arguments: the device, and the index of a GID.
"""

import ctypes
import struct
import sys
import time
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_uint64, c_void_p

library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for name in "open_device alloc_pd create_cq create_qp".split():
    getattr(library, "ibv_" + name).restype = c_void_p
library.ibv_get_device_name.restype = c_char_p
library.ibv_get_device_list.restype = POINTER(c_void_p)

# Offsets from `struct ibv_context`; functions of `struct verbs_context` are before it.
CREATE_CQ_EX, QUERY_DEVICE_EX, QUERY_PORT, MODIFY_QP_RATE_LIMIT = -120, -104, -320, -216
POST_SEND, POST_RECV = 208, 216
# Offsets in `struct ibv_qp` and `struct ibv_cq_ex`.
QP_NUM, START_POLL, END_POLL, READ_WALL_CLOCK = 52, 144, 160, 280
# Sizes of `struct ibv_device_attr_ex` and `struct ibv_port_attr`.
DEVICE_ATTR_EX, PORT_ATTR = 400, 56
RC, UC = 2, 3


def pointer(address):
    return ctypes.cast(address, POINTER(c_void_p))[0]


def call(owner, offset, result, *arguments):
    """Calls a function of a context or of a CQ."""
    return CFUNCTYPE(result, *[c_void_p] * len(arguments), use_errno=True)(pointer(owner + offset))(*arguments)


def words(title, found):
    """Prints the words that are not zero, with their offsets."""
    for offset in range(0, len(found) // 4 * 4, 4):
        (word,) = struct.unpack_from("I", found, offset)
        if word:
            print(f"{title} {offset}: {word:#x}")


def open_device(name):
    devices = library.ibv_get_device_list(None)
    for index in range(64):
        if library.ibv_get_device_name(c_void_p(devices[index])) == name.encode():
            return library.ibv_open_device(c_void_p(devices[index]))


context = open_device(sys.argv[1])
gid_index = int(sys.argv[2])
device = ctypes.create_string_buffer(DEVICE_ATTR_EX)
print("query_device_ex", call(context, QUERY_DEVICE_EX, c_int, context, None, byref(device), DEVICE_ATTR_EX))
words("device", device.raw)
port = ctypes.create_string_buffer(PORT_ATTR)
print("query_port", call(context, QUERY_PORT, c_int, context, 1, byref(port), PORT_ATTR))
# Linux 6.1 has no `active_speed_ex`: the C library leaves 0 there, ours writes `active_speed`.
SPEED, SPEED_EX = 44, 52
if struct.unpack_from("I", port.raw, SPEED_EX) == (0,):
    struct.pack_into("I", port, SPEED_EX, port.raw[SPEED])
words("port", port.raw)

pd = library.ibv_alloc_pd(c_void_p(context))


class Qp:
    def __init__(self, kind, cq):
        init = bytearray(64)
        struct.pack_into("PPP", init, 8, cq, cq, 0)
        struct.pack_into("IIIII", init, 32, 4, 4, 1, 1, 0)
        struct.pack_into("II", init, 52, kind, 1)
        init = (ctypes.c_char * 64).from_buffer(init)
        self.kind = kind
        self.qp = library.ibv_create_qp(c_void_p(pd), byref(init))

    def modify(self, mask, state, **fields):
        """Modifies the state; a field is a format, an offset in `struct ibv_qp_attr` and values."""
        attr = bytearray(144)
        struct.pack_into("I", attr, 0, state)
        for place in fields.values():
            struct.pack_into(place[0], attr, *place[1:])
        return library.ibv_modify_qp(c_void_p(self.qp), byref((ctypes.c_char * 144).from_buffer(attr)), mask)

    def connect_to_itself(self):
        gid = ctypes.create_string_buffer(16)
        assert library.ibv_query_gid(c_void_p(context), 1, gid_index, gid) == 0
        # With a GRH, by port 1.
        route = dict(gid=("16sIBBB", 56, gid.raw, 0, gid_index, 1, 0), path=("HBBBBB", 80, 0, 0, 0, 0, 1, 1))
        (number,) = struct.unpack("I", ctypes.string_at(self.qp + QP_NUM, 4))
        of_rc = self.kind == RC
        print(
            "modify_qp",
            self.modify(0x39, 1, port=("B", 129, 1)),
            self.modify(
                0x129181 if of_rc else 0x101181, 2, mtu=("I", 8, 3), number=("I", 28, number), timer=("B", 128, 1), **route
            ),
            self.modify(0x12E01 if of_rc else 0x10001, 3, retries=("BBB", 130, 14, 7, 7)),
        )

    def ece(self):
        found = (ctypes.c_uint32 * 3)()
        print("query_ece", library.ibv_query_ece(c_void_p(self.qp), byref(found)), list(found))
        return found

    def limit(self, rate, burst=0, typical=0, comp_mask=0):
        attr = (ctypes.c_uint32 * 4)(rate, burst, typical, comp_mask)
        print("modify_qp_rate_limit", call(context, MODIFY_QP_RATE_LIMIT, c_int, self.qp, byref(attr)))


cq = library.ibv_create_cq(c_void_p(context), 16, None, None, 0)
qp = Qp(RC, cq)
ece = qp.ece()
print("set_ece", library.ibv_set_ece(c_void_p(qp.qp), byref(ece)))
qp.connect_to_itself()
qp.ece()
print("set_ece in RTS", library.ibv_set_ece(c_void_p(qp.qp), byref(ece)))

smallest, largest, types = struct.unpack_from("III", device.raw, 332)
qp = Qp(UC, cq)
qp.connect_to_itself()
print("rate limits of UC", types >> UC & 1)
# The libraries differ in the errno for a type of QP that the device does not limit.
if not types or types >> UC & 1:
    qp.limit(smallest)
    qp.limit(largest, 1500, 64)
    qp.limit(0)
    qp.limit(smallest, comp_mask=1)
    qp.limit(largest + 1)

init = bytearray(56)
struct.pack_into("I", init, 0, 16)
struct.pack_into("Q", init, 32, 1 << 11)
cq = call(context, CREATE_CQ_EX, c_void_p, context, byref((ctypes.c_char * 56).from_buffer(init)))
print("create_cq_ex with wall clock", bool(cq), 0 if cq else ctypes.get_errno())
if cq:
    qp = Qp(RC, cq)
    qp.connect_to_itself()
    request, bad = (c_uint64 * 16)(7), c_void_p()
    assert call(context, POST_RECV, c_int, qp.qp, byref(request), byref(bad)) == 0
    # A signaled send without data.
    struct.pack_into("II", request, 28, 2, 2)
    assert call(context, POST_SEND, c_int, qp.qp, byref(request), byref(bad)) == 0
    attr, begin = ctypes.c_uint32(0), time.monotonic()
    while (status := call(cq, START_POLL, c_int, cq, byref(attr))) and time.monotonic() < begin + 20:
        pass
    wall_clock = call(cq, READ_WALL_CLOCK, c_uint64, cq)
    call(cq, END_POLL, None, cq)
    print("wall clock", status, abs(wall_clock - time.time_ns()) < 10_000_000_000)
