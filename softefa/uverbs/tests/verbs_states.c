// SPDX-License-Identifier: Apache-2.0 OR MIT
// What the kernel driver promises a program besides requests, seen through libibverbs and libefa alone. For
// scripts/realstack.sh. It uses no interface of softefa.
//
//   verbs_states drained    a program that reads every completion, and rings its completion queue's doorbell once
//   verbs_states datagram   a UD receive: 40 bytes, then the data
//   verbs_states states     changes of a queue pair's state, its attributes, and a queue pair that is used after RESET
#include <errno.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { QKEY = 7, DEPTH = 16, BUFFER = 4096, GRH = 40 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
static uint8_t *buffer;

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno));
  exit(1);
}

static void open_device(void) {
  struct ibv_device **devices = ibv_get_device_list(0);
  if (!devices || !devices[0]) die("no device");
  ctx = ibv_open_device(devices[0]);
  if (!ctx || !(pd = ibv_alloc_pd(ctx))) die("ibv_open_device or ibv_alloc_pd");
  union ibv_gid gid;
  if (ibv_query_gid(ctx, 1, 0, &gid)) die("ibv_query_gid");
  struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
  buffer = calloc(1, BUFFER);
  ah = ibv_create_ah(pd, &attr);
  mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE);
  if (!ah || !mr) die("ibv_create_ah or ibv_reg_mr");
}

static struct ibv_qp *create(struct ibv_cq *cq, int srd) {
  struct ibv_qp_init_attr attr = {
      .send_cq = cq, .recv_cq = cq, .cap = {DEPTH, DEPTH, 1, 1, 0}, .qp_type = srd ? IBV_QPT_DRIVER : IBV_QPT_UD};
  struct ibv_qp *qp =
      srd ? efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD) : ibv_create_qp(pd, &attr);
  if (!qp) die("a queue pair of type %s", srd ? "SRD" : "UD");
  return qp;
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask) {
  struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qkey = QKEY, .sq_psn = 0x45, .rnr_retry = 3};
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static void make_ready(struct ibv_qp *qp) {
  if (modify(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) || modify(qp, IBV_QPS_RTR, 0) ||
      modify(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN))
    die("a queue pair does not become ready");
}

// A SEND of `length` bytes from the start of the buffer to `at` of the buffer, on one queue pair.
static void post(struct ibv_qp *qp, uint32_t length, uint32_t at, uint32_t room) {
  struct ibv_sge to = {(uintptr_t)buffer + at, room, mr->lkey}, from = {(uintptr_t)buffer, length, mr->lkey};
  struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &to, .num_sge = 1}, *bad_receive;
  struct ibv_send_wr request = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
                                .send_flags = IBV_SEND_SIGNALED, .wr.ud = {ah, qp->qp_num, QKEY}},
                     *bad;
  if (ibv_post_recv(qp, &receive, &bad_receive) || ibv_post_send(qp, &request, &bad)) die("a post");
}

// The time in `seconds` seconds.
static time_t after(time_t seconds) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + seconds;
}

// Waits for the completions of a request and its receive. Returns the receive's length.
static uint32_t await_both(struct ibv_cq *cq) {
  uint32_t length = 0;
  time_t limit = after(60);
  for (int got = 0; got < 2;) {
    struct ibv_wc wc;
    int count = ibv_poll_cq(cq, 1, &wc);
    if (count < 0 || (count == 0 && after(0) > limit)) die("%d of 2 completions", got);
    if (count == 0) continue;
    if (wc.status) die("a completion has status %d, vendor status %d", wc.status, wc.vendor_err);
    if (wc.wr_id == 1) length = wc.byte_len;
    got++;
  }
  return length;
}

static void drained(void) {
  struct ibv_cq_init_attr_ex attr = {.cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS};
  struct efadv_cq_init_attr efa = {0};
  struct ibv_cq_ex *cq = efadv_create_cq(ctx, &attr, &efa, sizeof efa);
  if (!cq) die("efadv_create_cq");
  struct ibv_qp *qp = create(ibv_cq_ex_to_cq(cq), 1);
  make_ready(qp);
  int ends_early = 1;
  time_t limit = after(60);
  for (int round = 0; round < 500; round++) {
    post(qp, 16, 64, 64);
    for (int got = 0; got < 2;) {
      struct ibv_poll_cq_attr poll = {0};
      int error = ibv_start_poll(cq, &poll);
      if (error == ENOENT && after(0) <= limit) continue;
      if (error) die("round %d: ibv_start_poll returned %d", round, error);
      do {
        if (cq->status) die("round %d: status %d, vendor status %d", round, cq->status, ibv_wc_read_vendor_err(cq));
        got++;
        // A poll that ends on a current completion rings the doorbell. All later ones drain the queue.
      } while (!ends_early && (error = ibv_next_poll(cq)) == 0);
      ibv_end_poll(cq);
      ends_early = 0;
    }
  }
}

static void datagram(void) {
  struct ibv_cq *cq = ibv_create_cq(ctx, DEPTH * 2, 0, 0, 0);
  if (!cq) die("ibv_create_cq");
  const char text[16] = "sixteen bytes..";
  memcpy(buffer, text, sizeof text);
  for (int srd = 0; srd < 2; srd++) {
    struct ibv_qp *qp = create(cq, srd);
    make_ready(qp);
    memset(buffer + 2048, 0xee, 256);
    post(qp, sizeof text, 2048, 256);
    uint32_t length = await_both(cq), before = srd ? 0 : GRH;
    if (length != sizeof text + before) die("the receive has %u bytes, expected %u more than the data", length, before);
    if (memcmp(buffer + 2048 + before, text, sizeof text)) die("the data does not follow %u bytes", before);
    if (buffer[2048 + before + sizeof text] != 0xee) die("bytes after the data were written");
    if (ibv_destroy_qp(qp)) die("ibv_destroy_qp");
  }
}

static void expect(const char *what, int error, int expected) {
  if (error != expected) die("%s: %d (%s), expected %d (%s)", what, error, strerror(error), expected, strerror(expected));
}

static void states(void) {
  struct ibv_cq *cq = ibv_create_cq(ctx, DEPTH * 2, 0, 0, 0);
  if (!cq) die("ibv_create_cq");
  for (int srd = 0; srd < 2; srd++) {
    struct ibv_qp *qp = create(cq, srd);
    expect("RESET to RTS", modify(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN), EINVAL);
    expect("RESET to INIT without a queue key", modify(qp, IBV_QPS_INIT, IBV_QP_PORT), EINVAL);
    expect("an attribute of RC", modify(qp, IBV_QPS_INIT, IBV_QP_AV), EOPNOTSUPP);
    enum ibv_qp_state from[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR};
    for (unsigned count = 1; count <= sizeof from / sizeof *from; count++) {
      for (unsigned i = 0; i < count; i++) {
        int mask = from[i] == IBV_QPS_INIT  ? IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
                   : from[i] == IBV_QPS_RTS ? IBV_QP_SQ_PSN
                                            : 0;
        expect("a state on the way", modify(qp, from[i], mask), 0);
      }
      expect("RESET", modify(qp, IBV_QPS_RESET, 0), 0);
    }
    // With requests before and after: RESET empties the queues and starts their indexes anew. After an even number of
    // laps, because libefa keeps the phase bit of its send queue (docs/softefa.md).
    for (int life = 0; life < 3; life++) {
      make_ready(qp);
      for (int i = 0; i < 2 * DEPTH + 3; i++) {
        buffer[0] = (uint8_t)(life * 100 + i);
        post(qp, 1, 1024, 64);
        await_both(cq);
        if (buffer[1024 + (srd ? 0 : GRH)] != buffer[0]) die("request %d of life %d moved another byte", i, life);
      }
      struct ibv_qp_attr attr = {0};
      struct ibv_qp_init_attr init;
      expect("ibv_query_qp", ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_QKEY, &init), 0);
      if (attr.qp_state != IBV_QPS_RTS || attr.sq_psn != 0x45 || attr.qkey != QKEY)
        die("the query returned state %d, PSN %#x, key %u", attr.qp_state, attr.sq_psn, attr.qkey);
      expect("RNR retries at RTS", modify(qp, IBV_QPS_RTS, IBV_QP_RNR_RETRY), EINVAL);
      expect("RESET", modify(qp, IBV_QPS_RESET, 0), 0);
    }
    if (ibv_destroy_qp(qp)) die("ibv_destroy_qp");
  }
}

int main(int argc, char **argv) {
  const struct {
    const char *name;
    void (*run)(void);
  } parts[] = {{"drained", drained}, {"datagram", datagram}, {"states", states}};
  for (unsigned i = 0; argc == 2 && i < sizeof parts / sizeof *parts; i++) {
    if (strcmp(argv[1], parts[i].name)) continue;
    open_device();
    parts[i].run();
    printf("%s: ok\n", parts[i].name);
    return 0;
  }
  fprintf(stderr, "usage: verbs_states drained|datagram|states\n");
  return 2;
}
