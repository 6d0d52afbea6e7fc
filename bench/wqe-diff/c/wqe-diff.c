// The libibverbs counterpart of ../src/testbed.rs: posts the requests of a list and prints the
// numbers of its QPs and keys. It runs with the drop-in library and with libmlx5.
// cc wqe-diff.c -libverbs; run as: wqe-diff DEVICE LIST GID-INDEX
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>

#define REGION (1 << 16)
#define SGES 4
#define DEPTH 16
#define INLINE 200
#define QKEY 0x13572468
#define TSO_HEADER 74

enum { RC, UC, UD, SHARED, BACK, FRAMES, LARGE_SENDS, SOURCED };
enum { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, CMP_SWP, FETCH_ADD, SEND_INV, BIND, LOCAL_INV, FRAME, LARGE_SEND };
enum { SIGNALED = 1, SOLICITED = 2, FENCE = 4, INLINED = 8, RINGS = 16, CHECKSUMS = 32 };

static const enum ibv_wr_opcode opcodes[] = {
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV,
    IBV_WR_SEND, IBV_WR_TSO};

static struct ibv_qp *qps[4][2], *frames, *large_sends, *sourced;
static struct ibv_srq *srq;
static struct ibv_ah *handles[3];
static struct ibv_mw *windows[2];
static struct ibv_mr *mr;
static struct ibv_cq *sends, *receives;
static char *memory;
// The byte at an offset of the MR, and of inline data.
static unsigned char pattern[REGION];

static void must(int well, const char *what) {
    if (!well) {
        perror(what);
        exit(1);
    }
}

static void take(struct ibv_cq *cq, int count) {
    struct ibv_wc wc;
    time_t begin = time(NULL);
    while (count > 0) {
        int found = ibv_poll_cq(cq, 1, &wc);
        must(found >= 0 && time(NULL) - begin < 20, "completion");
        if (found && wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
            exit(1);
        }
        count -= found;
    }
}

static void up(int kind, struct ibv_qp *qp, struct ibv_qp *peer, const struct ibv_ah_attr *way) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
        .qp_access_flags = kind == UC ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (kind == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    must(!ibv_modify_qp(qp, &init, mask), "INIT");
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = *way};
    int path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    mask = IBV_QP_STATE | (kind == UD ? 0 : path) |
        (kind == RC || kind == SHARED ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    must(!ibv_modify_qp(qp, &rtr, mask), "RTR");
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN | (kind == RC || kind == SHARED ?
        IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
    must(!ibv_modify_qp(qp, &rts, mask), "RTS");
}

// Creates a raw packet QP, with TSO if headers are requested.
static struct ibv_qp *frames_with(struct ibv_pd *pd, int max_tso_header) {
    struct ibv_qp_init_attr_ex attr = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RAW_PACKET,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (max_tso_header ? IBV_QP_INIT_ATTR_MAX_TSO_HEADER : 0), .pd = pd,
        .max_tso_header = max_tso_header,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = SGES, .max_recv_sge = SGES,
                .max_inline_data = INLINE}};
    struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &attr);
    must(qp != NULL, "frames");
    struct ibv_qp_attr step = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    must(!ibv_modify_qp(qp, &step, IBV_QP_STATE | IBV_QP_PORT), "INIT");
    step.qp_state = IBV_QPS_RTR;
    must(!ibv_modify_qp(qp, &step, IBV_QP_STATE), "RTR");
    step.qp_state = IBV_QPS_RTS;
    must(!ibv_modify_qp(qp, &step, IBV_QP_STATE), "RTS");
    return qp;
}

// Creates a UD QP with a source QPN.
static struct ibv_qp *sourced_by(struct ibv_pd *pd, uint32_t number) {
    struct ibv_qp_init_attr_ex attr = {.send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_UD,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .pd = pd,
        .create_flags = IBV_QP_CREATE_SOURCE_QPN, .source_qpn = number,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = SGES, .max_recv_sge = SGES,
                .max_inline_data = INLINE}};
    struct ibv_qp *qp = ibv_create_qp_ex(pd->context, &attr);
    must(qp != NULL, "source QPN");
    for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
        struct ibv_qp_attr step = {.qp_state = state};
        must(!ibv_modify_qp(qp, &step, IBV_QP_STATE), "state");
    }
    return qp;
}

static void set_up(struct ibv_context *context, int index) {
    struct ibv_port_attr port;
    union ibv_gid gid;
    must(!ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, index, &gid), "port");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    sends = ibv_create_cq(context, 256, NULL, NULL, 0);
    receives = ibv_create_cq(context, 256, NULL, NULL, 0);
    memory = aligned_alloc(4096, REGION);
    memcpy(memory, pattern, REGION);
    mr = ibv_reg_mr(pd, memory, REGION, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    struct ibv_srq_init_attr srq_attr = {.attr = {.max_wr = DEPTH, .max_sge = SGES}};
    srq = ibv_create_srq(pd, &srq_attr);
    must(sends && receives && mr && srq, "set-up");
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC};
    const char *names[] = {"rc", "uc", "ud", "shared"};
    struct ibv_ah_attr way = {.port_num = 1, .dlid = port.lid, .is_global = 1,
        .grh = {.dgid = gid, .sgid_index = index, .hop_limit = 1}};
    for (int kind = RC; kind <= SHARED; kind++) {
        for (int side = 0; side < 2; side++) {
            struct ibv_qp_init_attr attr = {.send_cq = sends, .recv_cq = receives, .qp_type = types[kind],
                .srq = kind == SHARED && side ? srq : NULL,
                .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = SGES, .max_recv_sge = SGES,
                        .max_inline_data = INLINE}};
            must((qps[kind][side] = ibv_create_qp(pd, &attr)) != NULL, names[kind]);
        }
        for (int side = 0; side < 2; side++)
            up(kind, qps[kind][side], qps[kind][!side], &way);
        printf("qp %s 0x%x\nqp %s-peer 0x%x\n", names[kind], qps[kind][0]->qp_num, names[kind], qps[kind][1]->qp_num);
    }
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        frames = frames_with(pd, 0);
        large_sends = frames_with(pd, TSO_HEADER);
        printf("qp frames 0x%x\nqp large 0x%x\n", frames->qp_num, large_sends->qp_num);
    } else {
        sourced = sourced_by(pd, qps[UD][0]->qp_num);
        printf("qp ud-sourced 0x%x\n", sourced->qp_num);
    }
    handles[0] = ibv_create_ah(pd, &way);
    struct ibv_ah_attr strange = way;
    strange.sl = 3;
    strange.grh.flow_label = 0x54321;
    strange.grh.hop_limit = 7;
    strange.grh.traffic_class = 0x2c;
    handles[1] = ibv_create_ah(pd, &strange);
    struct ibv_ah_attr plain = way;
    plain.sl = 5;
    plain.is_global = port.lid == 0;
    if (!plain.is_global)
        memset(&plain.grh, 0, sizeof plain.grh);
    handles[2] = ibv_create_ah(pd, &plain);
    for (int i = 0; i < 2; i++)
        must((windows[i] = ibv_alloc_mw(pd, IBV_MW_TYPE_2)) != NULL, "window");
    must(handles[0] && handles[1] && handles[2], "address handle");
    printf("region 0x%lx 0x%x 0x%x\n", (unsigned long)(uintptr_t)memory, mr->lkey, mr->rkey);
    printf("windows 0x%x 0x%x\n", windows[0]->rkey, windows[1]->rkey);
}

static long long number(FILE *list) {
    unsigned long long value;
    char word[32];
    must(fscanf(list, "%31s", word) == 1, "a number");
    value = word[0] == '-' ? (unsigned long long)strtoll(word, NULL, 10) : strtoull(word, NULL, 10);
    return value;
}

// Parses the SGEs of a line; -1 if there is none.
static int elements(FILE *list, struct ibv_sge *sges) {
    int count = number(list);
    must(count <= SGES, "elements");
    for (int i = 0; i < count; i++) {
        sges[i].addr = (uintptr_t)memory + number(list);
        sges[i].length = number(list);
        sges[i].lkey = mr->lkey;
    }
    return count;
}

static void receive(int sender, struct ibv_sge *sges, int count) {
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = sges, .num_sge = count}, *bad;
    if (sender == SHARED)
        must(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
    else
        must(!ibv_post_recv(sender == BACK ? qps[RC][0] : qps[sender == SOURCED ? UD : sender][1], &wr, &bad),
             "ibv_post_recv");
}

int main(int argc, char **argv) {
    must(argc == 4, "DEVICE LIST GID-INDEX");
    struct ibv_device **device = ibv_get_device_list(NULL);
    while (device && *device && strcmp(ibv_get_device_name(*device), argv[1]))
        device++;
    must(device && *device, argv[1]);
    struct ibv_context *context = ibv_open_device(*device);
    FILE *list = fopen(argv[2], "r");
    must(context && list, argv[2]);
    for (int i = 0; i < REGION; i++)
        pattern[i] = i * 31 + 7;
    set_up(context, atoi(argv[3]));

    struct ibv_send_wr wrs[DEPTH], *bad;
    struct ibv_sge sges[DEPTH][SGES], taken[SGES];
    unsigned char headers[DEPTH][TSO_HEADER];
    int count = 0, signaled = 0, received = 0, sender;
    while (fscanf(list, "%d", &sender) == 1) {
        must(count < DEPTH, "a list");
        struct ibv_send_wr *wr = &wrs[count];
        int kind = number(list), flags = number(list);
        uint32_t imm = number(list), remote = number(list);
        uint64_t a = number(list), b = number(list);
        struct ibv_mw *window = windows[sender == BACK];
        memset(wr, 0, sizeof *wr);
        wr->wr_id = 2;
        wr->opcode = opcodes[kind];
        wr->sg_list = sges[count];
        wr->num_sge = elements(list, sges[count]);
        wr->send_flags = (flags & SIGNALED ? IBV_SEND_SIGNALED : 0) | (flags & SOLICITED ? IBV_SEND_SOLICITED : 0) |
            (flags & FENCE ? IBV_SEND_FENCE : 0) | (flags & INLINED ? IBV_SEND_INLINE : 0) |
            (flags & CHECKSUMS ? IBV_SEND_IP_CSUM : 0);
        for (int i = 0; i < wr->num_sge && flags & INLINED; i++)
            sges[count][i].addr += (uintptr_t)pattern - (uintptr_t)memory;
        if (kind == SEND_IMM || kind == WRITE_IMM)
            wr->imm_data = htonl(imm);
        if (sender == UD || sender == SOURCED) {
            wr->wr.ud.ah = handles[b];
            wr->wr.ud.remote_qpn = qps[UD][1]->qp_num;
            wr->wr.ud.remote_qkey = a;
        } else if (kind == WRITE || kind == WRITE_IMM || kind == READ) {
            wr->wr.rdma.remote_addr = (uintptr_t)memory + remote;
            wr->wr.rdma.rkey = mr->rkey;
        } else if (kind == CMP_SWP || kind == FETCH_ADD) {
            wr->wr.atomic.remote_addr = (uintptr_t)memory + remote;
            wr->wr.atomic.rkey = mr->rkey;
            wr->wr.atomic.compare_add = kind == CMP_SWP ? b : a;
            wr->wr.atomic.swap = kind == CMP_SWP ? a : 0;
        } else if (kind == SEND_INV) {
            wr->invalidate_rkey = windows[1]->rkey;
        } else if (kind == LOCAL_INV) {
            wr->invalidate_rkey = windows[0]->rkey;
        } else if (kind == BIND) {
            wr->bind_mw.mw = window;
            wr->bind_mw.rkey = ibv_inc_rkey(window->rkey);
            wr->bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = mr, .addr = (uintptr_t)memory + remote, .length = a,
                .mw_access_flags = imm};
        }
        int places = elements(list, taken);
        if (places >= 0) {
            receive(sender, taken, places);
            received++;
        }
        int header = number(list);
        must(header <= TSO_HEADER, "headers");
        for (int i = 0; i < header; i++)
            headers[count][i] = number(list);
        if (kind == LARGE_SEND) {
            wr->tso.hdr = headers[count];
            wr->tso.hdr_sz = header;
            wr->tso.mss = a;
        }
        signaled += flags & SIGNALED;
        if (count)
            wrs[count - 1].next = wr;
        count++;
        if (!(flags & RINGS))
            continue;
        struct ibv_qp *qp = sender == BACK ? qps[RC][1] : sender == FRAMES ? frames :
            sender == LARGE_SENDS ? large_sends : sender == SOURCED ? sourced : qps[sender][0];
        must(qp && !ibv_post_send(qp, wrs, &bad), "ibv_post_send");
        take(sends, signaled);
        take(receives, received);
        if (kind == BIND)
            window->rkey = wr->bind_mw.rkey;
        count = signaled = received = 0;
    }
    return 0;
}
