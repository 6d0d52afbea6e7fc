"""Injects faults into the data path of a soft device, and reads its trace.

Arguments: the files of BAREVERBS_FAULTS and BAREVERBS_TRACE.
"""

import errno
import json
import os
import sys

rules, trace = sys.argv[1:]
with open(rules, "w") as file:
    # The first fails `ibv_post_send`, the third `ibv_wr_complete`. The third completion has failed before.
    file.write("PostSend 1 EIO\nPostSend 3 ENOSPC\ncompletion 2 REM_ACCESS_ERR\n")
    file.writelines(f"completion {number} REM_OP_ERR\n" for number in [3, 6, 8, 9, 10])
os.environ.update(BAREVERBS_FAULTS=rules, BAREVERBS_TRACE=trace)

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context
from pyverbs.libibverbs_enums import (
    ibv_access_flags as Access, ibv_create_cq_wc_flags as Fields, ibv_qp_attr_mask as QpMask,
    ibv_qp_create_send_ops_flags as SendOps, ibv_qp_init_attr_mask as InitMask, ibv_qp_state as State,
    ibv_qp_type as QpType, ibv_send_flags as SendFlags, ibv_wc_status as Status,
    ibv_wr_opcode as Opcode,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import RecvWR, SendWR, SGE

context = Context(name="soft0")
pd = PD(context)
mr = MR(pd, 4096, Access.IBV_ACCESS_LOCAL_WRITE)
sge = SGE(mr.buf, 64, mr.lkey)
route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
ah = AH(pd, attr=AHAttr(gr=route, is_global=1, port_num=1))

QKEY = 0x11111111

def ud(cq):
    """A QP in RTS, with four receives."""
    cap = QPCap(max_send_wr=4, max_recv_wr=4)
    init = QPInitAttrEx(qp_type=QpType.IBV_QPT_UD, scq=cq, rcq=cq, cap=cap, pd=pd,
                        comp_mask=InitMask.IBV_QP_INIT_ATTR_PD | InitMask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                        send_ops_flags=SendOps.IBV_QP_EX_WITH_SEND, sq_sig_all=1)
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    qp = QPEx(context, init, attr)
    for number in range(4):
        qp.post_recv(RecvWR(wr_id=100 + number, num_sge=1, sg=[SGE(mr.buf + 1024, 256, mr.lkey)]))
    return qp

def refused(number, call, *arguments):
    try:
        call(*arguments)
    except PyverbsRDMAError as error:
        assert error.error_code == number, error
        return
    raise AssertionError(f"{call} succeeds")

def send(wr_id):
    request = SendWR(wr_id=wr_id, num_sge=1, sg=[sge])
    request.set_wr_ud(ah, qp.qp_num, QKEY)
    return request

def send_ex(wr_id):
    qp.wr_start()
    qp.wr_id, qp.wr_flags = wr_id, SendFlags.IBV_SEND_SIGNALED
    qp.wr_send()
    qp.wr_set_ud_addr(ah, qp.qp_num, QKEY)
    qp.wr_set_sge(sge)
    qp.wr_complete()

def state():
    return qp.query(QpMask.IBV_QP_STATE)[0].qp_state

def poll(cq):
    while True:
        count, found = cq.poll()
        if count:
            return found[0].status

# A refused request is the bad one. A batch that is refused leaves the QP unlocked.
cq = CQ(context, 16)
qp = ud(cq)
bad = send(0)
refused(errno.EIO, qp.post_send, send(1), bad)
assert bad.wr_id == 1
qp.post_send(send(2))
refused(errno.ENOSPC, send_ex, 3)
assert [poll(cq), poll(cq)] == [Status.IBV_WC_SUCCESS, Status.IBV_WC_REM_ACCESS_ERR]
assert state() == State.IBV_QPS_ERR
# The flushed receives. They failed before, so no rule changes them.
assert [poll(cq) for _ in range(3)] == [Status.IBV_WC_WR_FLUSH_ERR] * 3
qp.close()

# A completion becomes an error by either function that polls, and its QP fails when polling ends.
for polled in [1, 2]:
    cq = CQEX(context, CqInitAttrEx(cqe=16, wc_flags=Fields.IBV_WC_EX_WITH_QP_NUM))
    qp = ud(cq)
    send_ex(4)
    while cq.start_poll(PollCqAttr()) != 0:
        pass
    for _ in range(polled - 1):
        assert cq.status == Status.IBV_WC_SUCCESS
        while cq.poll_next() != 0:
            pass
    assert cq.status == Status.IBV_WC_REM_OP_ERR
    assert state() == State.IBV_QPS_RTS
    cq.end_poll()
    assert state() == State.IBV_QPS_ERR
    # No datagram invalidates a key.
    request = SendWR(wr_id=6, num_sge=1, sg=[sge], opcode=Opcode.IBV_WR_SEND_WITH_INV, imm_data=0x01020304)
    refused(errno.EINVAL, qp.post_send, request)
    qp.close()
    cq.close()

# A completion becomes an error between `ibv_wr_start` and `ibv_wr_complete` of its QP, which fails behind them.
for end in [QPEx.wr_complete, QPEx.wr_abort]:
    cq = CQ(context, 16)
    qp = ud(cq)
    send_ex(7)
    qp.wr_start()
    assert poll(cq) == Status.IBV_WC_REM_OP_ERR
    end(qp)
    assert state() == State.IBV_QPS_ERR
    qp.close()
    cq.close()

# The trace does not read a list that the QP rejects: it may be longer than its memory.
cq = CQ(context, 16)
qp = ud(cq)
qp.wr_start()
qp.wr_id, qp.wr_flags = 8, SendFlags.IBV_SEND_SIGNALED
qp.wr_send()
qp.wr_set_ud_addr(ah, qp.qp_num, QKEY)
qp.wr_set_sge_list(200, [sge] * 200)
refused(errno.ENOSPC, qp.wr_complete)
qp.close()
cq.close()

srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=4)))
srq.post_recv(RecvWR(wr_id=5, num_sge=1, sg=[sge]))
srq.close()

with open(trace) as file:
    lines = [json.loads(line) for line in file]
requests = [line for line in lines if line["call"] == "post-send"]
posted = [(line["before"]["wr_id"], line["result"], line.get("error")) for line in requests]
# Requests that a rule refuses are not posted.
refused_by_device = (6, -errno.EINVAL, "EINVAL")
of_batches = [(7, 0, None), (7, 0, None), (8, -errno.ENOSPC, "ENOSPC")]
expected = [(2, 0, None), (4, 0, None), refused_by_device, (4, 0, None), refused_by_device, *of_batches]
assert posted == expected, posted
assert "sges" in requests[1]["before"] and "sges" not in requests[-1]["before"]
assert requests[2]["before"]["invalidate_rkey"] == 0x01020304
assert [line["before"]["wr_id"] for line in lines if line["call"] == "post-srq-recv"] == [5]
statuses = [line["name"] for line in lines if line["call"] == "poll-cq"]
flushed = ["WR_FLUSH_ERR"] * 3
of_batches = ["REM_OP_ERR", "REM_OP_ERR"]
expected = ["SUCCESS", "REM_ACCESS_ERR", *flushed, "REM_OP_ERR", "SUCCESS", "REM_OP_ERR", *of_batches]
assert statuses == expected, statuses
# pyverbs frees the SGEs of the bad request twice.
os._exit(0)
