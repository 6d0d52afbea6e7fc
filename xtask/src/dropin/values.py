"""Compares functions that need no device with those of the C library.

Arguments: both libraries.
"""

import ctypes
import sys
from ctypes import Structure, c_int32, c_uint8, c_uint16, c_uint32, c_uint64

libraries = [ctypes.CDLL(path) for path in sys.argv[1:]]

def structure(name, *members):
    return type(name, (Structure,), {"_fields_": members})

def of(kind, names):
    return [(name, kind) for name in names.split()]

GID = c_uint64 * 2
Route = structure("Route", ("dgid", GID), ("flow_label", c_uint32),
                  *of(c_uint8, "sgid_index hop_limit traffic_class"))
Path = structure("Path", ("grh", Route), ("dlid", c_uint16),
                 *of(c_uint8, "sl src_path_bits static_rate is_global port_num"))
QpAttr = structure(
    "QpAttr",
    *of(c_uint32, """qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
        qp_access_flags max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data"""),
    ("ah_attr", Path), ("alt_ah_attr", Path), *of(c_uint16, "pkey_index alt_pkey_index"),
    *of(c_uint8, """en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num
        timeout retry_cnt rnr_retry alt_port_num alt_timeout"""),
    ("rate_limit", c_uint32))
PathRecord = structure(
    "PathRecord", ("dgid", GID), ("sgid", GID), *of(c_uint16, "dlid slid"), ("raw_traffic", c_int32),
    ("flow_label", c_uint32), ("hop_limit", c_uint8), ("traffic_class", c_uint8), ("reversible", c_int32),
    ("numb_path", c_uint8), ("pkey", c_uint16), *of(c_uint8, """sl mtu_selector mtu rate_selector rate
        packet_life_time_selector packet_life_time preference"""))
PathRecordOfKernel = c_uint8 * 64

def members(value):
    """The members of a struct, and of the structs in it. The padding between them is undefined."""
    if isinstance(value, Structure):
        return {name: members(getattr(value, name)) for name, _ in value._fields_}
    return list(value) if isinstance(value, ctypes.Array) else value

# Each byte is another one, so a member in the place of another is found.
SOURCE = (c_uint8 * 256)(*range(256))

def copy(library, name, kind):
    into = kind()
    ctypes.memset(ctypes.byref(into), 0xee, ctypes.sizeof(into))
    library[name](ctypes.byref(into), SOURCE)
    return members(into)

def equal(name, results):
    ours, theirs = results
    assert ours == theirs, f"{name}: {ours}, not {theirs}"

for name, kind in [("ibv_copy_ah_attr_from_kern", Path), ("ibv_copy_qp_attr_from_kern", QpAttr),
                   ("ibv_copy_path_rec_from_kern", PathRecord),
                   ("ibv_copy_path_rec_to_kern", PathRecordOfKernel)]:
    equal(name, [copy(library, name, kind) for library in libraries])

for to, of_number in [("ibv_rate_to_mult", "mult_to_ibv_rate"), ("ibv_rate_to_mbps", "mbps_to_ibv_rate")]:
    numbers = [[library[to](rate) for rate in range(-1, 32)] for library in libraries]
    equal(to, numbers)
    equal(of_number, [[library[of_number](number) for number in numbers[0] + [0, 7]] for library in libraries])
