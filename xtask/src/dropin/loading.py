"""Loads the library as NCCL does, closes it, and ends while threads poll.

Arguments: the library, and the libmlx5 of rdma-core, which is loaded as well.
"""

import ctypes
import os
import sys
import threading
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_void_p

NCCL = {
    b"IBVERBS_1.1": """fork_init get_device_list free_device_list get_device_name open_device close_device
        get_async_event ack_async_event query_device query_port query_gid query_qp alloc_pd dealloc_pd reg_mr
        dereg_mr create_cq destroy_cq create_qp modify_qp destroy_qp event_type_str""",
    b"IBVERBS_1.8": "reg_mr_iova2",
    b"IBVERBS_1.10": "query_ece set_ece",
    b"IBVERBS_1.12": "reg_dmabuf_mr",
    b"IBVERBS_1.16": "query_port_speed",
}

# The offset of `poll_cq` in `struct ibv_context`.
POLL_CQ = 96

libc = ctypes.CDLL(None)
libc.dlopen.restype = libc.dlvsym.restype = c_void_p
libc.dlopen.argtypes = [c_char_p, c_int]
libc.dlvsym.argtypes = [c_void_p, c_char_p, c_char_p]
libc.dlclose.argtypes = [c_void_p]

def load(path):
    handle = libc.dlopen(path.encode(), os.RTLD_NOW)
    assert handle, path
    functions = {}
    for version, names in NCCL.items():
        for name in names.split():
            address = libc.dlvsym(handle, b"ibv_" + name.encode(), version)
            assert address, name
            functions[name] = address
    def call(name, result, *arguments):
        function = CFUNCTYPE(result, *[c_void_p if type(it) is not int else c_int for it in arguments])
        return function(functions[name])(*arguments)
    return handle, call

def open_soft(call):
    count = c_int()
    devices = call("get_device_list", POINTER(c_void_p), byref(count))
    assert count.value >= 1
    device = devices[count.value - 1]
    context = call("open_device", c_void_p, c_void_p(device))
    assert context
    call("free_device_list", None, devices)
    return device, context

library, libmlx5 = sys.argv[1:]
# It stays loaded: threads of soft devices run its code after `dlclose`.
handle = libc.dlopen(library.encode(), os.RTLD_NOW)
assert handle and libc.dlclose(handle) == 0
assert libc.dlopen(library.encode(), os.RTLD_NOW | os.RTLD_NOLOAD) == handle
assert libc.dlclose(handle) == 0
for _ in range(3):
    handle, call = load(library)
    device, context = open_soft(call)
    pd = call("alloc_pd", c_void_p, c_void_p(context))
    assert pd and call("dealloc_pd", c_int, c_void_p(pd)) == 0
    assert call("close_device", c_int, c_void_p(context)) == 0
    assert libc.dlclose(handle) == 0

handle, call = load(library)
mlx5 = ctypes.CDLL(libmlx5)
mlx5.mlx5dv_is_supported.restype = ctypes.c_bool
device, context = open_soft(call)
assert not mlx5.mlx5dv_is_supported(c_void_p(device))

cq = call("create_cq", c_void_p, c_void_p(context), 1, c_void_p(), c_void_p(), 0)
poll = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)(c_void_p.from_address(context + POLL_CQ).value)
polls = [threading.Event() for _ in range(2)]

def poll_without_end(event):
    while True:
        assert poll(cq, 1, None) == 0
        event.set()

for event in polls:
    threading.Thread(target=poll_without_end, args=[event], daemon=True).start()
for event in polls:
    event.wait()
print("polling", flush=True)
libc.exit(0)
