"""Prints what functions of libmlx5 return, and those of libibverbs that a ConnectX has. Each library prints the
same. It follows `dropin_common.py`.
"""

import os

mlx5 = ctypes.CDLL("libmlx5.so.1", use_errno=True)
for name in "create_cq create_qp create_flow_matcher".split():
    getattr(mlx5, "mlx5dv_" + name).restype = c_void_p
mlx5.__dict__["create_flow"] = mlx5["__mlx5dv_create_flow"]
mlx5.create_flow.restype = c_void_p
for name in "import_device import_pd import_mr import_dm reg_mr create_ah create_srq".split():
    getattr(library, "ibv_" + name).restype = c_void_p
for name in "unimport_pd unimport_mr unimport_dm".split():
    getattr(library, "ibv_" + name).restype = None

# Offsets from `struct ibv_context`.
CREATE_WQ, MODIFY_WQ, DESTROY_WQ, CREATE_TABLE, DESTROY_TABLE = -136, -144, -152, -160, -168
DESTROY_FLOW, FREE_DM, ALLOC_DM, CREATE_COUNTERS, READ_COUNTERS, ADVISE_MR = -96, -248, -256, -280, -296, -312
CMD_FD = 264
# Offsets of handles in `struct ibv_pd`, `struct ibv_mr` and `struct ibv_dm`, and of the first key.
PD_HANDLE, MR_HANDLE, LKEY, DM_HANDLE = 8, 32, 36, 28
RAW_PACKET = 8
is_ethernet = struct.unpack_from("H", port.raw, LID) == (0,)


def word(address, offset, format="I"):
    return struct.unpack(format, ctypes.string_at(address + offset, struct.calcsize(format)))[0]


def outcome(title, made):
    """Prints whether a pointer was returned, or the errno."""
    print(title, "made" if made else ctypes.get_errno())
    return made


def refusal(title, code):
    print(title, code, ctypes.get_errno() if code else 0)


# Types of `struct mlx5dv_obj`, in which each has 16 bytes.
OF_QP, OF_CQ, OF_SRQ, OF_RWQ, OF_DM, OF_AH, OF_PD = range(7)


def initialized(kind, source, length, format, *places, **fields):
    """Values of the struct that `mlx5dv_init_obj` writes for an object of this type."""
    out = struct_of(length, **fields)
    obj = struct_of(128, of=("PP", 16 * kind, source, ctypes.addressof(out)))
    refusal(f"init_obj {kind}", mlx5.mlx5dv_init_obj(byref(obj), c_uint64(1 << kind)))
    return [struct.unpack_from(each, out, place)[0] for each, place in zip(format, places)]


def query(function, title, source, opcode, number, size=512):
    """Queries the firmware's object by its number, which the kernel checks. Returns the response."""
    request = struct_of(16, number=(">H6xI", 0, opcode, number))
    response = ctypes.create_string_buffer(size)
    refusal(title, function(c_void_p(source), byref(request), 16, byref(response), size))
    return response.raw


# The device. The address of the clock differs.
attr = struct_of(200, mask=("Q", 16, (1 << 17) - 1))
refusal("query_device", mlx5.mlx5dv_query_device(c_void_p(context), byref(attr)))
words("mlx5dv_context", attr.raw[:88] + bytes(8) + attr.raw[96:])
attr = struct_of(200, rest=("176s", 24, b"\xee" * 176))
refusal("query_device without a mask", mlx5.mlx5dv_query_device(c_void_p(context), byref(attr)))
words("mlx5dv_context", attr.raw)
info = ctypes.create_string_buffer(64)
refusal("query_port", mlx5._mlx5dv_query_port(c_void_p(context), 1, byref(info), 64))
words("mlx5dv_port", info.raw)
refusal("query_port 9", mlx5._mlx5dv_query_port(c_void_p(context), 9, byref(info), 64))
clock = ctypes.create_string_buffer(40)
refusal("get_clock_info", mlx5.mlx5dv_get_clock_info(c_void_p(context), byref(clock)))
# Factor, shift and mask.
print("clock", struct.unpack_from("IIQ", clock.raw, 24))

# Objects, and the numbers by which the firmware knows them.
pds = [pd, library.ibv_alloc_pd(c_void_p(context))]
numbers = [initialized(OF_PD, of, 16, "I", 0)[0] for of in pds]
print("pdn", numbers[0] != numbers[1])


def cq_of(title, mask=0, format=0, flags=0, size=0):
    init = struct_of(56, cqe=("I", 0, 16))
    attr = struct_of(24, all=("QB3xIH", 0, mask, format, flags, size))
    made = mlx5.mlx5dv_create_cq(c_void_p(context), byref(init), byref(attr))
    if outcome(title, made):
        count, size, register, number, mask = initialized(OF_CQ, made, 48, "IIPIQ", 16, 20, 24, 32, 40)
        print("CQ", count, size, register != 0, mask)
        query(mlx5.mlx5dv_devx_cq_query, "query CQ", made, 0x402, number)
    return made


cq = cq_of("CQ")
cq_of("CQ of 128 bytes", 1 << 2, size=128)
cq_of("CQ of 32 bytes", 1 << 2, size=32)
cq_of("CQ of unknown bits", 1 << 5)
cq_of("CQ of unknown flags", 1 << 1, flags=1 << 5)
cq_of("CQ of two formats", 1 << 0, format=3)
query(mlx5.mlx5dv_devx_cq_query, "query CQ of a wrong number", cq, 0x402, 0xFFFFFF)


def qp_of(title, mask=0, flags=0, operations=0, kind=RC):
    init = struct_of(136, cqs=("PP", 8, cq, cq), cap=("IIIIIIII", 32, 4, 4, 1, 1, 8, kind, 1, 1), pd=("P", 64, pd))
    attr = struct_of(40, flags=("QI", 0, mask, flags), operations=("Q", 32, operations))
    return outcome(title, mlx5.mlx5dv_create_qp(c_void_p(context), byref(init), byref(attr)))


def numbers_of(qp):
    """Prints the geometry of a QP. Returns the numbers of a raw packet QP: TIR, TIS, RQ, SQ."""
    queues = initialized(OF_QP, qp, 96, "IIII", 16, 20, 32, 36)
    places = 40, 56, 64, 72, 76, 80, 84, 88
    register, mask, offset, *numbers, address = initialized(OF_QP, qp, 96, "PQQIIIIQ", *places, mask=("Q", 56, 7))
    print("queues", queues, "register", register != 0, "mask", mask, offset != 0, address)
    return numbers


qp = qp_of("QP")
print("numbers", numbers_of(qp))
qpc = query(mlx5.mlx5dv_devx_qp_query, "query QP", qp, 0x50B, word(qp, QP_NUM))
print("PD of the QP", struct.unpack_from(">I", qpc, 0x1C)[0] & 0xFFFFFF == numbers[0])
query(mlx5.mlx5dv_devx_qp_query, "query QP of a wrong number", qp, 0x50B, 0xFFFFFF)
qp_of("QP with both flags", 1 << 0, flags=1 << 3 | 1 << 4)
qp_of("QP with unknown bits", 1 << 9)
qp_of("QP with unknown flags", 1 << 0, flags=1 << 31)
qp_of("QP with raw WQEs", 1 << 2, operations=1 << 3)
qp_of("QP with unknown operations", 1 << 2, operations=1 << 63)

init = struct_of(24, attr=("III", 8, 16, 1, 0))
srq = outcome("SRQ", library.ibv_create_srq(c_void_p(pd), byref(init)))
*queue, number = initialized(OF_SRQ, srq, 48, "IIIQI", 16, 20, 24, 32, 40, mask=("Q", 32, 1))
print("SRQ", queue)
query(mlx5.mlx5dv_devx_srq_query, "query SRQ", srq, 0x90F, number)

gid = ctypes.create_string_buffer(16)
assert library.ibv_query_gid(c_void_p(context), 1, gid_index, gid) == 0
(lid,) = struct.unpack_from("H", port.raw, LID)
# With a flow label, of which RoCE takes the UDP port.
init = struct_of(32, gid=("16sIBBB", 0, gid.raw, 0x12345, gid_index, 3, 4), path=("HBBBBB", 24, lid, 5, 0, 0, 1, 1))
ah = outcome("AH", library.ibv_create_ah(c_void_p(pd), byref(init)))
vector = bytearray(ctypes.string_at(initialized(OF_AH, ah, 16, "P", 0)[0], 48))
# Ours has the bit of a whole vector, which programs set with the number of the QP.
vector[8] &= 0x7F
print("AV", vector.hex())

init = struct_of(16, length=("QII", 0, 64, 0, 0))
dm = outcome("DM", call(context, ALLOC_DM, c_void_p, context, byref(init)))
if dm:
    start, *others = initialized(OF_DM, dm, 32, "PQQQ", 0, 8, 16, 24, mask=("Q", 16, 1))
    print("DM", others)
    # By `memcpy_to_dm`.
    print("memcpy", call(dm, 8, c_int, dm, 8, b"12345678", 8), word(start, 8, "Q"))
print("init_obj of nothing", mlx5.mlx5dv_init_obj(byref(struct_of(128)), c_uint64(1 << 20)))

# Regions: changed, and imported into another context of the same file.
memory = ctypes.create_string_buffer(3 * 4096)
start = (ctypes.addressof(memory) + 4095) & ~4095
mr = library.ibv_reg_mr(c_void_p(pd), c_void_p(start), 64, 1)


def keys(of):
    return struct.unpack("II", ctypes.string_at(of + LKEY, 8))


def rereg(flags, of=None, address=None, length=0, access=0):
    ctypes.set_errno(0)
    code = library.ibv_rereg_mr(c_void_p(mr), flags, c_void_p(of), c_void_p(address), c_uint64(length), access)
    refusal(f"rereg_mr {flags}", code)
    print("MR", word(mr, 8, "P") == pds[1], word(mr, 16, "P") - start, word(mr, 24, "Q"))


rereg(0)
rereg(8)
rereg(1, address=start)
rereg(1, length=64)
rereg(2, access=1)
rereg(4, access=3)
rereg(2, of=pds[1])
rereg(1, address=start + 64, length=128)
rereg(7, of=pd, address=start, length=256, access=1)

fd = os.dup(word(context, CMD_FD))
other = outcome("import_device", library.ibv_import_device(fd))
outcome("import_device of a pipe", library.ibv_import_device(os.pipe()[0]))
outcome("import_device of no file", library.ibv_import_device(-1))
imported = outcome("import_pd", library.ibv_import_pd(c_void_p(other), word(pd, PD_HANDLE)))
print("PD", word(imported, PD_HANDLE) == word(pd, PD_HANDLE))
outcome("import_pd of no PD", library.ibv_import_pd(c_void_p(other), 0xFFFF))
region = outcome("import_mr", library.ibv_import_mr(c_void_p(imported), word(mr, MR_HANDLE)))
print("MR", word(region, 16, "P"), word(region, 24, "Q"), keys(region) == keys(mr))
outcome("import_mr of no MR", library.ibv_import_mr(c_void_p(imported), 0xFFFF))
if dm:
    memory_of_device = outcome("import_dm", library.ibv_import_dm(c_void_p(other), word(dm, DM_HANDLE)))
    outcome("import_dm of no DM", library.ibv_import_dm(c_void_p(other), 0xFFFF))
    library.ibv_unimport_dm(c_void_p(memory_of_device))
    print("free_dm", call(context, FREE_DM, c_int, dm))
library.ibv_unimport_mr(c_void_p(region))
print("dereg_mr", library.ibv_dereg_mr(c_void_p(mr)))
library.ibv_unimport_pd(c_void_p(imported))
print("dealloc_pd", library.ibv_dealloc_pd(c_void_p(pds[1])))

sge = struct_of(16, all=("QII", 0, start, 64, keys(library.ibv_reg_mr(c_void_p(pd), c_void_p(start), 64, 1))[0]))
print("advise_mr with unknown flags", call(context, ADVISE_MR, c_int, pd, 0, 1 << 5, byref(sge), 1))

# WQs, their states, and a table of them.
init = struct_of(48, all=("IIIPPII", 8, 0, 16, 1, pd, cq, 0, 0))
wq = outcome("WQ", call(context, CREATE_WQ, c_void_p, context, byref(init)))
if wq:
    print("RWQ", initialized(OF_RWQ, wq, 32, "IIQ", 16, 20, 24))
    query(mlx5.mlx5dv_devx_wq_query, "query WQ", wq, 0x90B, word(wq, 32))
    # The mask, the state, the current state, flags and their mask.
    # The kernel doesn't unlock a WQ whose states it rejects: see docs/kernel-bugs.md.
    for attr in [(1, 1, 0, 0, 0), (3, 1, 2, 0, 0), (4, 0, 0, 1, 1), (4, 0, 0, 1, 32), (3, 2, 1, 0, 0), (1, 0, 0, 0, 0),
                 (8, 0, 0, 0, 0), (0, 0, 0, 0, 0)]:
        code = call(context, MODIFY_WQ, c_int, wq, byref(struct_of(20, all=("IIIII", 0, *attr))))
        # libmlx5 negates the errno of a wrong state.
        print("modify_wq", attr, abs(code), word(wq, 40))
    list_of = (c_void_p * 2)(wq, wq)
    init = struct_of(24, all=("IPI", 0, 1, ctypes.addressof(list_of), 0))
    table = outcome("table", call(context, CREATE_TABLE, c_void_p, context, byref(init)))
    query(mlx5.mlx5dv_devx_ind_tbl_query, "query table", table, 0x919, word(table, 12))
    print("destroy_wq of a table", call(context, DESTROY_WQ, c_int, wq))
    print("destroy_rwq_ind_table", call(context, DESTROY_TABLE, c_int, table))
    print("destroy_wq", call(context, DESTROY_WQ, c_int, wq))
    init = struct_of(48, all=("IIIPPII", 8, 0, 16, 1, pd, cq, 2, 0))
    outcome("WQ of unknown bits", call(context, CREATE_WQ, c_void_p, context, byref(init)))

# A raw packet QP: the numbers of its SQ, RQ, TIR and TIS.
if is_ethernet:
    raw = qp_of("raw packet QP", kind=RAW_PACKET)
    numbers = numbers_of(raw)
    for title, opcode, number in zip(("TIR", "TIS", "RQ", "SQ"), (0x903, 0x915, 0x90B, 0x907), numbers):
        query(mlx5.mlx5dv_devx_qp_query, f"query {title}", raw, opcode, number)
        query(mlx5.mlx5dv_devx_qp_query, f"query wrong {title}", raw, opcode, 0xFFFFFF)

    # Flows to it by the destination address: masks and values are the outer headers.
    mask = struct_of(72, length=("Q", 0, 64), dmac=("6s", 8 + 10, b"\xff" * 6))
    value = struct_of(72, length=("Q", 0, 64), dmac=("6s", 8 + 10, bytes(range(2, 8))))

    def matcher_of(title, kind=0, flags=0, priority=0, comp_mask=0, table=0):
        all = "IIHBP", 0, kind, flags, priority, 1, ctypes.addressof(mask)
        attr = struct_of(40, all=all, mask=("QI", 24, comp_mask, table))
        return outcome(title, mlx5.mlx5dv_create_flow_matcher(c_void_p(context), byref(attr)))

    def flow_of(title, *actions, size=24):
        all = ctypes.create_string_buffer(72)
        for index, (kind, target) in enumerate(actions):
            struct.pack_into("IP", all, 24 * index, kind, target)
        arguments = c_void_p(matcher), byref(value), c_uint64(len(actions)), byref(all), c_uint64(size)
        flow = outcome(title, mlx5.create_flow(*arguments))
        if flow:
            print("destroy_flow", call(context, DESTROY_FLOW, c_int, flow))

    matcher_of("matcher of another type", kind=1)
    matcher_of("matcher of unknown bits", comp_mask=1 << 5)
    matcher_of("matcher of an unknown table", comp_mask=1, table=77)
    matcher_of("matcher of unknown flags", flags=1 << 20)
    matcher = matcher_of("matcher")
    TO_QP, DROP, TAG, MISS = 0, 1, 4, 7
    flow_of("flow to a QP", (TO_QP, raw))
    flow_of("flow with a tag", (TAG, 7), (TO_QP, raw))
    flow_of("flow that drops", (DROP, 0))
    flow_of("flow with two tags", (TAG, 7), (TAG, 7), (TO_QP, raw))
    flow_of("flow that drops and misses", (DROP, 0), (MISS, 0))
    flow_of("flow of an unknown action", (77, 0))
    counters = outcome("counters", call(context, CREATE_COUNTERS, c_void_p, context, byref(c_uint64())))
    if counters:
        values = (c_uint64 * 1)()
        print("read_counters with unknown flags", call(context, READ_COUNTERS, c_int, counters, byref(values), 1, 1 << 5))
    print("destroy_flow_matcher", mlx5.mlx5dv_destroy_flow_matcher(c_void_p(matcher)))
