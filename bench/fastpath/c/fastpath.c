// The libibverbs counterpart of ../src/measure.rs: measures the same calls and prints the same lines.
// cc -O2 fastpath.c -libverbs
// Usage: fastpath DEVICE GID-INDEX [asleep|awake [extended]]; with `awake` it polls without sleeping.
// With -DRDMA_CM and -lrdmacm: fastpath ADDRESS; librdmacm connects the queue pairs.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#ifdef RDMA_CM
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#endif
#include <x86intrin.h>

#define RUNS 400
#define BATCH 32
#define RECEIVES 64

static uint64_t samples[RUNS], empty;
static int awake;

static inline uint64_t now(void) {
    _mm_lfence();
    uint64_t at = __rdtsc();
    _mm_lfence();
    return at;
}

static void must(int well, const char *what) {
    if (!well) {
        perror(what);
        exit(1);
    }
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void line(const char *name, int count, int parts) {
    must(count > 0, name);
    qsort(samples, count, sizeof samples[0], ascending);
    printf("c.%s\t%.1f\t%.1f\n", name, (samples[0] - empty) / (double)parts, (samples[count / 2] - empty) / (double)parts);
}

// Polls completions, which must be successful. Sleeps if there is none: the kernel's workers may
// have a lower priority.
static void drain(struct ibv_cq *cq, int left) {
    struct ibv_wc wc;
    while (left > 0) {
        int found = ibv_poll_cq(cq, 1, &wc);
        if (found == 0)
            usleep(50);
        must(found >= 0 && (found == 0 || wc.status == IBV_WC_SUCCESS), found > 0 ? ibv_wc_status_str(wc.status) : "completion");
        left -= found;
    }
}

// Waits long enough for `count` requests; see `Pause` in ../src/measure.rs.
static void wait_for(int count) {
    if (awake)
        for (volatile int turn = 0; turn < (count > 1 ? 400000 : 40000); turn++)
            ;
    else
        usleep(count > 1 ? 10000 : 2000);
}

#ifdef RDMA_CM
// The next event of a channel, which must be this one. Returns its identifier.
static struct rdma_cm_id *event_of(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted) {
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
    struct rdma_cm_id *id = event->id;
    must(event->event == wanted, rdma_event_str(event->event));
    must(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
    return id;
}

// An identifier with a route to a listener of this process, which `listener` gets.
static struct rdma_cm_id *routed(const char *address, struct rdma_cm_id **listener) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    must(inet_pton(AF_INET, address, &to.sin_addr) == 1, address);
    struct rdma_event_channel *channels[] = {rdma_create_event_channel(), rdma_create_event_channel()};
    struct rdma_cm_id *active;
    must(channels[0] && channels[1] && !rdma_create_id(channels[0], &active, NULL, RDMA_PS_TCP) &&
         !rdma_create_id(channels[1], listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(!rdma_bind_addr(*listener, (struct sockaddr *)&to) && !rdma_listen(*listener, 1), "rdma_listen");
    to.sin_port = rdma_get_src_port(*listener);
    must(!rdma_resolve_addr(active, NULL, (struct sockaddr *)&to, 10000), "rdma_resolve_addr");
    event_of(active->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    must(!rdma_resolve_route(active, 10000), "rdma_resolve_route");
    event_of(active->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return active;
}

// Connects the queue pair of `active` to a new one with `peer_attr`.
static void connect_by_cm(struct rdma_cm_id *active, struct rdma_cm_id *listener, struct ibv_pd *pd, struct ibv_qp_init_attr *peer_attr) {
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    must(!rdma_connect(active, &param), "rdma_connect");
    struct rdma_cm_id *passive = event_of(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    must(!rdma_create_qp(passive, pd, peer_attr) && !rdma_accept(passive, &param), "rdma_accept");
    event_of(listener->channel, RDMA_CM_EVENT_ESTABLISHED);
    event_of(active->channel, RDMA_CM_EVENT_ESTABLISHED);
}
#else
static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, const union ibv_gid *gid, int index, int lid) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    must(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.port_num = 1, .dlid = lid, .is_global = 1, .grh = {.dgid = *gid, .sgid_index = index, .hop_limit = 64}}};
    must(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    must(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

// The functions of ibv_qp_ex and of ibv_cq_ex, which ../src/measure.rs does not have.
static void extended(struct ibv_context *context, struct ibv_pd *pd, struct ibv_mr *mr, char *bytes, const union ibv_gid *gid,
                     int index, int lid) {
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 1024, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(context, &cq_attr);
    struct ibv_cq *peer_cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
    must(cq_ex && peer_cq, "extended CQ");
    struct ibv_cq *cq = ibv_cq_ex_to_cq(cq_ex);
    struct ibv_qp_init_attr_ex attr = {.send_cq = cq, .recv_cq = peer_cq, .qp_type = IBV_QPT_RC, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
        .cap = {.max_send_wr = 255, .max_recv_wr = 255, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
    attr.send_cq = peer_cq;
    struct ibv_qp *peer = ibv_create_qp_ex(context, &attr);
    must(qp && peer, "extended queue pair");
    connect_to(qp, peer, gid, index, lid);
    connect_to(peer, qp, gid, index, lid);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    must(ex != NULL, "ibv_qp_to_qp_ex");

    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = 64, .lkey = mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad_receive;
    for (int i = 0; i < RUNS; i++) {
        must(!ibv_post_recv(peer, &receive, &bad_receive), "ibv_post_recv");
        uint64_t begin = now();
        ibv_wr_start(ex);
        ex->wr_id = 1;
        // librxe copies inline data with this flag only.
        ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
        ibv_wr_send(ex);
        ibv_wr_set_inline_data(ex, bytes, 8);
        int refused = ibv_wr_complete(ex);
        samples[i] = now() - begin;
        must(!refused, "ibv_wr_complete");
        drain(cq, 1);
        drain(peer_cq, 1);
        usleep(1000);
    }
    line("wr send inline", RUNS, 1);
    for (int i = 0; i < RUNS; i++) {
        uint64_t begin = now();
        ibv_wr_start(ex);
        ex->wr_id = 1;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)bytes + 4096);
        ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)bytes, 64);
        int refused = ibv_wr_complete(ex);
        samples[i] = now() - begin;
        must(!refused, "ibv_wr_complete");
        drain(cq, 1);
        usleep(1000);
    }
    line("wr write sge", RUNS, 1);

    struct ibv_send_wr send = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED}, *bad;
    send.wr.rdma.remote_addr = (uintptr_t)bytes + 4096;
    send.wr.rdma.rkey = mr->rkey;
    struct ibv_poll_cq_attr poll = {0};
    int taken = 0;
    for (int i = 0; i < RUNS; i++) {
        must(!ibv_post_send(qp, &send, &bad), "ibv_post_send");
        wait_for(1);
        volatile uint64_t fields = 0;
        uint64_t begin = now();
        int found = ibv_start_poll(cq_ex, &poll);
        if (!found) {
            fields = cq_ex->wr_id + cq_ex->status + ibv_wc_read_opcode(cq_ex) + ibv_wc_read_byte_len(cq_ex);
            ibv_end_poll(cq_ex);
        }
        samples[taken] = now() - begin;
        if (!found)
            taken++;
        else
            drain(cq, 1);
    }
    line("start_poll", taken, 1);
    for (int i = 0; i < RUNS; i++) {
        uint64_t begin = now();
        int found = ibv_start_poll(cq_ex, &poll);
        samples[i] = now() - begin;
        must(found != 0, "a completion too many");
    }
    line("empty start_poll", RUNS, 1);
}

/* The memory that no other process shares, in KiB. */
static void private_memory(void) {
    char text[128];
    long kib = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(text, sizeof text, file) && sscanf(text, "Private_Dirty: %ld", &kib) != 1)
        ;
    must(kib >= 0, "smaps_rollup");
    printf("c.private memory\t%ld\t%ld\n", kib, kib);
    fclose(file);
}

#endif

int main(int argc, char **argv) {
#ifdef RDMA_CM
    must(argc == 2, "ADDRESS");
    struct rdma_cm_id *listener, *active = routed(argv[1], &listener);
    struct ibv_context *context = active->verbs;
#else
    must(argc >= 3, "DEVICE GID-INDEX");
    awake = argc > 3 && !strcmp(argv[3], "awake");
    struct ibv_device **device = ibv_get_device_list(NULL);
    while (device && *device && strcmp(ibv_get_device_name(*device), argv[1]))
        device++;
    must(device && *device, argv[1]);
    struct ibv_context *context = ibv_open_device(*device);
    union ibv_gid gid;
    struct ibv_port_attr port;
    must(context && !ibv_query_gid(context, 1, atoi(argv[2]), &gid) && !ibv_query_port(context, 1, &port), "device");
    if (argc > 4 && !strcmp(argv[4], "extended"))
        private_memory();
#endif
    struct ibv_pd *pd = ibv_alloc_pd(context);
    char *bytes = aligned_alloc(4096, 8192);
    memset(bytes, 7, 8192);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_cq *cq = ibv_create_cq(context, 1024, NULL, NULL, 0), *peer_cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
    must(mr && cq && peer_cq, "set-up");
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = peer_cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 255, .max_recv_wr = 255, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64}};
#ifdef RDMA_CM
    must(!rdma_create_qp(active, pd, &attr), "rdma_create_qp");
    struct ibv_qp *qp = active->qp;
    attr.send_cq = peer_cq;
    connect_by_cm(active, listener, pd, &attr);
#else
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    attr.send_cq = peer_cq;
    struct ibv_qp *peer = ibv_create_qp(pd, &attr);
    must(qp && peer, "queue pair");
    connect_to(qp, peer, &gid, atoi(argv[2]), port.lid);
    connect_to(peer, qp, &gid, atoi(argv[2]), port.lid);
#endif

    for (int i = 0; i < RUNS; i++) {
        uint64_t begin = now();
        samples[i] = now() - begin;
    }
    qsort(samples, RUNS, sizeof samples[0], ascending);
    empty = samples[RUNS / 2];

    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr sends[BATCH] = {0}, *bad;
    for (int i = 0; i < BATCH; i++) {
        sends[i] = (struct ibv_send_wr){.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED, .next = i + 1 < BATCH ? &sends[i + 1] : NULL};
        sends[i].wr.rdma.remote_addr = (uintptr_t)bytes + 4096;
        sends[i].wr.rdma.rkey = mr->rkey;
    }
    struct ibv_wc wc[BATCH];
    int counts[] = {1, BATCH};
    for (int which = 0; which < 2; which++) {
        int count = counts[which];
        sends[0].next = count > 1 ? &sends[1] : NULL;
        for (int i = 0; i < RUNS; i++) {
            uint64_t begin = now();
            int refused = ibv_post_send(qp, sends, &bad);
            samples[i] = now() - begin;
            must(!refused, "ibv_post_send");
            drain(cq, count);
            usleep(1000);
        }
        line(count > 1 ? "post_send 32 inline" : "post_send 1 inline", RUNS, count);
    }
    for (int which = 0; which < 2; which++) {
        int count = counts[which], taken = 0;
        sends[0].next = count > 1 ? &sends[1] : NULL;
        for (int i = 0; i < RUNS; i++) {
            must(!ibv_post_send(qp, sends, &bad), "ibv_post_send");
            wait_for(count);
            uint64_t begin = now();
            int found = ibv_poll_cq(cq, count, wc);
            samples[taken] = now() - begin;
            if (found == count)
                taken++;
            else
                drain(cq, count - found);
        }
        line(count > 1 ? "poll_into 32" : "poll_into 1", taken, count);
    }
    for (int i = 0; i < RUNS; i++) {
        uint64_t begin = now();
        int found = ibv_poll_cq(cq, 1, wc);
        samples[i] = now() - begin;
        must(found == 0, "a completion too many");
    }
    line("empty poll_into", RUNS, 1);

    struct ibv_recv_wr receives[BATCH], *bad_receive;
    for (int i = 0; i < BATCH; i++)
        receives[i] = (struct ibv_recv_wr){.wr_id = 1, .sg_list = &sge, .num_sge = 1, .next = i + 1 < BATCH ? &receives[i + 1] : NULL};
    receives[0].next = NULL;
    for (int i = 0; i < RECEIVES; i++) {
        uint64_t begin = now();
        int refused = ibv_post_recv(qp, receives, &bad_receive);
        samples[i] = now() - begin;
        must(!refused, "ibv_post_recv");
    }
    line("post_recv 1", RECEIVES, 1);
    receives[0].next = &receives[1];
    for (int i = 0; i < 4; i++) {
        uint64_t begin = now();
        int refused = ibv_post_recv(qp, receives, &bad_receive);
        samples[i] = now() - begin;
        must(!refused, "ibv_post_recv");
    }
    line("post_recv 32", 4, BATCH);

    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 255, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &shared);
    must(srq != NULL, "shared receive queue");
    receives[0].next = NULL;
    for (int i = 0; i < RECEIVES; i++) {
        uint64_t begin = now();
        int refused = ibv_post_srq_recv(srq, receives, &bad_receive);
        samples[i] = now() - begin;
        must(!refused, "ibv_post_srq_recv");
    }
    line("srq post_recv 1", RECEIVES, 1);
    receives[0].next = &receives[1];
    for (int i = 0; i < 4; i++) {
        uint64_t begin = now();
        int refused = ibv_post_srq_recv(srq, receives, &bad_receive);
        samples[i] = now() - begin;
        must(!refused, "ibv_post_srq_recv");
    }
    line("srq post_recv 32", 4, BATCH);
#ifndef RDMA_CM
    if (argc > 4)
        extended(context, pd, mr, bytes, &gid, atoi(argv[2]), port.lid);
#endif
    return 0;
}
