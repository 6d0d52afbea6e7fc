"""Calls of libibverbs by the C ABI, for the scripts that print what each library returns.

Arguments: the device, and the index of a GID.
"""

import ctypes
import struct
import sys
import time
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_uint64, c_void_p

library = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for name in "open_device alloc_pd create_cq create_qp qp_to_qp_ex".split():
    getattr(library, "ibv_" + name).restype = c_void_p
library.ibv_get_device_name.restype = c_char_p
library.ibv_get_device_list.restype = POINTER(c_void_p)

# Offsets from `struct ibv_context`; functions of `struct verbs_context` are before it.
CREATE_QP_EX, CREATE_CQ_EX, QUERY_DEVICE_EX, QUERY_PORT, MODIFY_QP_RATE_LIMIT = -56, -120, -104, -320, -216
POST_SEND, POST_RECV = 208, 216
# Offsets in `struct ibv_qp`, `struct ibv_cq_ex` and `struct ibv_port_attr`.
QP_NUM, START_POLL, END_POLL, READ_WALL_CLOCK, LID = 52, 144, 160, 280, 34
# Sizes of `struct ibv_device_attr_ex` and `struct ibv_port_attr`.
DEVICE_ATTR_EX, PORT_ATTR = 400, 56
RC, UC, UD = 2, 3, 4


def pointer(address):
    return ctypes.cast(address, POINTER(c_void_p))[0]


def call(owner, offset, result, *arguments):
    """Calls a function of a context, of a CQ or of a QP."""
    return CFUNCTYPE(result, *[c_void_p] * len(arguments), use_errno=True)(pointer(owner + offset))(*arguments)


def struct_of(size, **fields):
    """A struct of C; a field is a format, an offset and values."""
    made = bytearray(size)
    for place in fields.values():
        struct.pack_into(place[0], made, *place[1:])
    return (ctypes.c_char * size).from_buffer(made)


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
query_device = call(context, QUERY_DEVICE_EX, c_int, context, None, byref(device), DEVICE_ATTR_EX)
port = ctypes.create_string_buffer(PORT_ATTR)
query_port = call(context, QUERY_PORT, c_int, context, 1, byref(port), PORT_ATTR)
pd = library.ibv_alloc_pd(c_void_p(context))


class Qp:
    def __init__(self, kind, cq, operations=None):
        """With the functions of `struct ibv_qp_ex` for these operations."""
        # As `struct ibv_qp_init_attr`, which the other one begins with.
        init = dict(cqs=("PP", 8, cq, cq), cap=("IIIII", 32, 4, 4, 1, 1, 8), kind=("II", 52, kind, 1))
        if operations is None:
            self.init = struct_of(64, **init)
            self.qp = library.ibv_create_qp(c_void_p(pd), byref(self.init))
        else:
            # The PD and the operations.
            more = dict(mask=("I", 60, 1 << 0 | 1 << 6), pd=("P", 64, pd), operations=("Q", 128, operations))
            self.init = struct_of(136, **init, **more)
            self.qp = call(context, CREATE_QP_EX, c_void_p, context, byref(self.init))
        self.kind = kind

    def modify(self, mask, state, **fields):
        """Modifies the state; a field is a place in `struct ibv_qp_attr`."""
        attr = struct_of(144, state=("I", 0, state), **fields)
        return library.ibv_modify_qp(c_void_p(self.qp), byref(attr), mask)

    def connect_to_itself(self):
        gid = ctypes.create_string_buffer(16)
        assert library.ibv_query_gid(c_void_p(context), 1, gid_index, gid) == 0
        (lid,) = struct.unpack_from("H", port.raw, LID)
        # With a GRH, by port 1.
        route = dict(gid=("16sIBBB", 56, gid.raw, 0, gid_index, 1, 0), path=("HBBBBB", 80, lid, 0, 0, 0, 1, 1))
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

    def destroy(self):
        return library.ibv_destroy_qp(c_void_p(self.qp))
