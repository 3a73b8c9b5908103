// SPDX-License-Identifier: Apache-2.0 OR MIT
// An EFA program on libibverbs and libefa alone, for scripts/realstack.sh. It posts requests of every kind, verifies
// the bytes and completions, and writes its requests to a file, so that the entries that libefa wrote can be compared
// with this project's encoding. It uses no interface of softefa.
//
//   verbs_requests random SEED COUNT ENTRY_BYTES REQUESTS_FILE [external]
//   verbs_requests many COUNT          small writes, in batches
//   verbs_requests large               8 MiB written and read
//   verbs_requests errors              statuses of invalid requests, and calls that the kernel refuses
//   verbs_requests sleeping COUNT      writes by a program that sleeps until its completion channel has an event
//   verbs_requests stranger            requests to an adapter without an address handle for the sender
//   verbs_requests broken              rings a doorbell past the ring
//   verbs_requests cycles COUNT        every object created and destroyed
//   verbs_requests target              prints its GID, QPN, address and rkey, and sleeps
//   verbs_requests writer GID QPN ADDRESS RKEY   writes to a target until a write fails
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { QKEY = 0x11223344, SLOT = 4096, SLOTS = 16, DEPTH = 64, RX = 64 };
enum { SEND_OPS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
                  IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static uint64_t seed = 1;
static FILE *requests;

static void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno));
  exit(1);
}

static uint64_t draw(uint64_t bound) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (seed >> 33) % bound;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct queue {
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_qp_ex *ex;
  void *external;
  uint32_t entry;
};

static struct ibv_comp_channel *channel;

static struct ibv_cq *make_cq(int entries, struct queue *queue, int external) {
  struct ibv_cq_init_attr_ex attr = {
      .cqe = (uint32_t)entries, .wc_flags = IBV_WC_STANDARD_FLAGS, .channel = channel, .cq_context = &channel};
  struct efadv_cq_init_attr efa = {0};
  if (external) {
    size_t length = (size_t)entries * 32;
    int fd = memfd_create("cq", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)length)) die("memory file for an external CQ");
    queue->external = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    efa.flags = EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF;
    efa.ext_mem_dmabuf.buffer = queue->external;
    efa.ext_mem_dmabuf.length = length;
    efa.ext_mem_dmabuf.fd = fd;
  }
  // efadv_create_cq counts no user of the channel.
  struct ibv_cq_ex *cq = channel ? ibv_create_cq_ex(ctx, &attr) : efadv_create_cq(ctx, &attr, &efa, sizeof efa);
  if (!cq) die("efadv_create_cq or ibv_create_cq_ex");
  return ibv_cq_ex_to_cq(cq);
}

static struct queue make_queue(uint32_t entry_bytes, int external) {
  struct queue queue = {0};
  queue.cq = make_cq(1024, &queue, external);
  struct ibv_qp_init_attr_ex attr = {
      .send_cq = queue.cq, .recv_cq = queue.cq, .qp_type = IBV_QPT_DRIVER, .pd = pd, .send_ops_flags = SEND_OPS,
      .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
      .cap = {.max_send_wr = DEPTH, .max_recv_wr = RX, .max_send_sge = 2, .max_recv_sge = 1,
              .max_inline_data = entry_bytes == 128 ? 80 : 32}};
  struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
  if (entry_bytes == 128) efa.flags |= EFADV_QP_FLAGS_INLINE_WRITE;
  queue.qp = efadv_create_qp_ex(ctx, &attr, &efa, sizeof efa);
  if (!queue.qp) die("efadv_create_qp_ex");
  queue.ex = ibv_qp_to_qp_ex(queue.qp);
  struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
  if (ibv_modify_qp(queue.qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
    die("ibv_modify_qp to INIT");
  to.qp_state = IBV_QPS_RTR;
  if (ibv_modify_qp(queue.qp, &to, IBV_QP_STATE)) die("ibv_modify_qp to RTR");
  to.qp_state = IBV_QPS_RTS;
  to.rnr_retry = 3;
  if (ibv_modify_qp(queue.qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY)) die("ibv_modify_qp to RTS");
  struct efadv_wq_attr sq = {0}, rq = {0};
  if (efadv_query_qp_wqs(queue.qp, &sq, &rq, sizeof sq)) die("efadv_query_qp_wqs");
  if (sq.entry_size != entry_bytes) die("the queue has entries of %u bytes, expected %u", sq.entry_size, entry_bytes);
  queue.entry = sq.entry_size;
  if (requests) fprintf(requests, "Q %u %u %u\n", queue.qp->qp_num, sq.entry_size, sq.num_entries);
  return queue;
}

static void destroy_queue(struct queue *queue) {
  if (ibv_destroy_qp(queue->qp) || ibv_destroy_cq(queue->cq)) die("ibv_destroy_qp or ibv_destroy_cq");
}

static struct ibv_ah *make_ah(const union ibv_gid *gid, uint16_t *number) {
  struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid}};
  struct ibv_ah *ah = ibv_create_ah(pd, &attr);
  struct efadv_ah_attr efa = {0};
  if (!ah || efadv_query_ah(ah, &efa, sizeof efa)) die("ibv_create_ah or efadv_query_ah");
  *number = efa.ahn;
  return ah;
}

// Waits for one completion, for at most a minute.
static struct ibv_wc await(struct ibv_cq *cq) {
  struct ibv_wc wc;
  for (double limit = now() + 60; now() < limit;) {
    int count = ibv_poll_cq(cq, 1, &wc);
    if (count < 0) die("ibv_poll_cq");
    if (count) return wc;
    usleep(20);
  }
  die("no completion within a minute");
  return wc;
}

struct region {
  uint8_t *bytes;
  struct ibv_mr *mr;
};

static struct region make_region(size_t length, int access) {
  // The addresses are the same in each run, so that libefa writes the same entries.
  static uintptr_t next = 1ull << 44;
  void *bytes = mmap((void *)next, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (bytes != (void *)next) die("mmap at %p", (void *)next);
  next += 1ull << 32;
  struct region region = {.bytes = bytes};
  region.mr = ibv_reg_mr(pd, region.bytes, length, access);
  if (!region.mr) die("ibv_reg_mr");
  return region;
}

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static uint64_t address(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

struct request {
  const char *kind;
  int immediate, read, send, rdma, inlined, segments;
  uint32_t length, first, imm;
  uint64_t id;
};

// efa-gda/tests/kernels_entries.rs draws the same requests.
static struct request draw_request(uint32_t entry_bytes) {
  uint64_t high = draw(1u << 31);
  struct request r = {.id = high << 32 | draw(1u << 31), .segments = 1};
  r.kind = (const char *[]){"send", "write", "read"}[draw(3)];
  r.send = r.kind[0] == 's';
  r.read = r.kind[0] == 'r';
  r.rdma = !r.send;
  r.immediate = !r.read && draw(2);
  r.imm = (uint32_t)draw(1u << 31);
  r.inlined = draw(3) == 0 && (r.send || (!r.read && entry_bytes == 128));
  uint32_t limit = r.inlined ? (entry_bytes == 128 ? 80 : 32) : SLOT;
  r.length = (uint32_t)draw(limit) + 1;
  r.first = r.length;
  if (r.send && !r.inlined && r.length > 1 && draw(2)) {
    r.segments = 2;
    r.first = (uint32_t)draw(r.length - 1) + 1;
  }
  return r;
}

static void post(struct queue *queue, struct request *r, struct ibv_ah *ah, uint16_t ahn, uint32_t dest,
                 struct region *local, struct region *remote, int slot) {
  struct ibv_qp_ex *ex = queue->ex;
  uint8_t *source = local->bytes + slot * SLOT, *target = remote->bytes + slot * SLOT;
  uint32_t lkey = local->mr->lkey, rkey = remote->mr->rkey;
  ex->wr_id = r->id;
  ex->wr_flags = IBV_SEND_SIGNALED;
  if (r->send && r->immediate) ibv_wr_send_imm(ex, htobe32(r->imm));
  else if (r->send) ibv_wr_send(ex);
  else if (r->read) ibv_wr_rdma_read(ex, rkey, address(target));
  else if (r->immediate) ibv_wr_rdma_write_imm(ex, rkey, address(target), htobe32(r->imm));
  else ibv_wr_rdma_write(ex, rkey, address(target));
  struct ibv_sge sge[2] = {{address(source), r->first, lkey}, {address(source + r->first), r->length - r->first, lkey}};
  if (r->inlined) ibv_wr_set_inline_data(ex, source, r->length);
  else if (r->segments == 2) ibv_wr_set_sge_list(ex, 2, sge);
  else ibv_wr_set_sge(ex, lkey, address(source), r->length);
  ibv_wr_set_ud_addr(ex, ah, dest, QKEY);
  if (!requests) return;
  fprintf(requests, "R %u %s %" PRIu64 " %u %u %u ", queue->qp->qp_num, r->kind, r->id, ahn, dest, QKEY);
  if (r->immediate) fprintf(requests, "%u ", r->imm);
  else fprintf(requests, "- ");
  if (r->rdma) fprintf(requests, "%" PRIu64 " %u ", address(target), rkey);
  else fprintf(requests, "- - ");
  if (r->inlined) {
    fprintf(requests, "inline ");
    for (uint32_t i = 0; i < r->length; i++) fprintf(requests, "%02x", source[i]);
  } else {
    for (int i = 0; i < r->segments; i++)
      fprintf(requests, "%s%" PRIu64 ":%u:%u", i ? " " : "", sge[i].addr, sge[i].length, lkey);
  }
  fputc('\n', requests);
}

static union ibv_gid local_gid(void) {
  union ibv_gid gid;
  if (ibv_query_gid(ctx, 1, 0, &gid)) die("ibv_query_gid");
  return gid;
}

static void random_requests(long count, uint32_t entry_bytes, int external) {
  struct queue sender = make_queue(entry_bytes, external), receiver = make_queue(64, 0);
  struct region local = make_region(SLOT * SLOTS, ALL), remote = make_region(SLOT * SLOTS, ALL);
  struct region inbox = make_region(SLOT * SLOTS, IBV_ACCESS_LOCAL_WRITE);
  union ibv_gid gid = local_gid();
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&gid, &ahn);
  for (long done = 0; done < count;) {
    struct request r[SLOTS];
    int batch = (int)draw(SLOTS) + 1, receives = 0, order[SLOTS];
    uint8_t before[SLOTS][SLOT];
    for (int i = 0; i < SLOT * SLOTS; i++) local.bytes[i] = (uint8_t)draw(256), remote.bytes[i] = (uint8_t)draw(256);
    for (int i = 0; i < batch; i++) {
      r[i] = draw_request(entry_bytes);
      memcpy(before[i], r[i].read ? remote.bytes + i * SLOT : local.bytes + i * SLOT, SLOT);
      if (!r[i].send && !r[i].immediate) continue;
      struct ibv_sge sge = {address(inbox.bytes + receives * SLOT), SLOT, inbox.mr->lkey};
      struct ibv_recv_wr wr = {.wr_id = (uint64_t)receives, .sg_list = &sge, .num_sge = 1}, *bad;
      if (ibv_post_recv(receiver.qp, &wr, &bad)) die("ibv_post_recv");
      order[receives++] = i;
    }
    ibv_wr_start(sender.ex);
    for (int i = 0; i < batch; i++)
      post(&sender, &r[i], ah, ahn, receiver.qp->qp_num, &local, &remote, i);
    if (ibv_wr_complete(sender.ex)) die("ibv_wr_complete");
    for (int i = 0; i < batch; i++) {
      struct ibv_wc wc = await(sender.cq);
      if (wc.status || wc.wr_id != r[i].id)
        die("request %d: status %d, id %" PRIx64 ", expected status 0 and its id", i, wc.status, wc.wr_id);
    }
    for (int k = 0; k < receives; k++) {
      struct ibv_wc wc = await(receiver.cq);
      struct request *from = &r[order[k]];
      if (wc.status || wc.byte_len != from->length || wc.src_qp != sender.qp->qp_num)
        die("receive %d: wrong status, length or source", k);
      if (!!(wc.wc_flags & IBV_WC_WITH_IMM) != from->immediate) die("receive %d: wrong immediate flag", k);
      if (from->immediate && be32toh(wc.imm_data) != from->imm) die("receive %d: wrong immediate", k);
      if (from->send && memcmp(inbox.bytes + wc.wr_id * SLOT, before[order[k]], from->length))
        die("receive %d: the bytes differ from those sent", k);
    }
    for (int i = 0; i < batch; i++) {
      uint8_t *written = r[i].read ? local.bytes + i * SLOT : remote.bytes + i * SLOT;
      if (r[i].rdma && memcmp(written, before[i], r[i].length))
        die("%s of %u bytes: the bytes differ", r[i].kind, r[i].length);
    }
    done += batch;
  }
  destroy_queue(&sender);
  destroy_queue(&receiver);
  if (ibv_destroy_ah(ah) || ibv_dereg_mr(local.mr) || ibv_dereg_mr(remote.mr) || ibv_dereg_mr(inbox.mr))
    die("ibv_destroy_ah or ibv_dereg_mr");
  printf("random: %ld requests in entries of %u bytes, verified\n", count, entry_bytes);
}

static void many(long count) {
  struct queue sender = make_queue(64, 0), receiver = make_queue(64, 0);
  struct region local = make_region(SLOT, ALL), remote = make_region(SLOT, ALL);
  union ibv_gid gid = local_gid();
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&gid, &ahn);
  for (long posted = 0, done = 0; done < count;) {
    if (posted < count && posted - done <= DEPTH - 16) {
      ibv_wr_start(sender.ex);
      for (int i = 0; i < 16 && posted < count; i++, posted++) {
        sender.ex->wr_id = (uint64_t)posted;
        sender.ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(sender.ex, remote.mr->rkey, address(remote.bytes));
        ibv_wr_set_sge(sender.ex, local.mr->lkey, address(local.bytes), 8);
        ibv_wr_set_ud_addr(sender.ex, ah, receiver.qp->qp_num, QKEY);
      }
      if (ibv_wr_complete(sender.ex)) die("ibv_wr_complete");
    }
    struct ibv_wc wc[16];
    int polled = ibv_poll_cq(sender.cq, 16, wc);
    if (polled < 0) die("ibv_poll_cq");
    for (int i = 0; i < polled; i++, done++)
      if (wc[i].status || wc[i].wr_id != (uint64_t)done)
        die("write %ld: status %d, or not in order", done, wc[i].status);
  }
  printf("many: %ld writes\n", count);
  destroy_queue(&sender);
  destroy_queue(&receiver);
}

static struct ibv_wc one(struct queue *queue, struct ibv_ah *ah, uint32_t dest, uint32_t qkey, int op, uint64_t remote,
                         uint32_t rkey, uint64_t local, uint32_t length, uint32_t lkey) {
  ibv_wr_start(queue->ex);
  queue->ex->wr_id = 7;
  queue->ex->wr_flags = IBV_SEND_SIGNALED;
  if (op == 's') ibv_wr_send(queue->ex);
  else if (op == 'w') ibv_wr_rdma_write(queue->ex, rkey, remote);
  else ibv_wr_rdma_read(queue->ex, rkey, remote);
  ibv_wr_set_sge(queue->ex, lkey, local, length);
  ibv_wr_set_ud_addr(queue->ex, ah, dest, qkey);
  if (ibv_wr_complete(queue->ex)) die("ibv_wr_complete");
  return await(queue->cq);
}

static void large(void) {
  const uint32_t length = 8u << 20;
  struct queue sender = make_queue(64, 0), receiver = make_queue(64, 0);
  struct region local = make_region(length, ALL), remote = make_region(length, ALL);
  union ibv_gid gid = local_gid();
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&gid, &ahn);
  for (uint32_t i = 0; i < length; i++) local.bytes[i] = (uint8_t)draw(256);
  struct ibv_wc wc = one(&sender, ah, receiver.qp->qp_num, QKEY, 'w', address(remote.bytes), remote.mr->rkey,
                         address(local.bytes), length, local.mr->lkey);
  if (wc.status || memcmp(local.bytes, remote.bytes, length))
    die("write of 8 MiB: status %d, or the bytes differ", wc.status);
  memset(local.bytes, 0, length);
  wc = one(&sender, ah, receiver.qp->qp_num, QKEY, 'r', address(remote.bytes), remote.mr->rkey, address(local.bytes),
           length, local.mr->lkey);
  if (wc.status || memcmp(local.bytes, remote.bytes, length))
    die("read of 8 MiB: status %d, or the bytes differ", wc.status);
  puts("large: 8 MiB written and read");
}

static void expect(const char *request, struct ibv_wc wc, uint32_t vendor) {
  if (wc.vendor_err != vendor) die("%s: device status %u, expected %u", request, wc.vendor_err, vendor);
  printf("errors: %s: %s (device status %u)\n", request, ibv_wc_status_str(wc.status), wc.vendor_err);
}

static void errors(void) {
  struct queue sender = make_queue(64, 0), receiver = make_queue(64, 0);
  struct region local = make_region(SLOT, ALL), remote = make_region(SLOT, ALL);
  struct region guarded = make_region(SLOT, IBV_ACCESS_LOCAL_WRITE);
  union ibv_gid gid = local_gid(), unused = gid;
  unused.raw[15] ^= 0x77;
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&gid, &ahn), *unreachable = make_ah(&unused, &ahn);
  uint32_t to = receiver.qp->qp_num, rkey = remote.mr->rkey, lkey = local.mr->lkey;
  uint64_t target = address(remote.bytes), source = address(local.bytes);
  expect("a valid write", one(&sender, ah, to, QKEY, 'w', target, rkey, source, 64, lkey), 0);
  expect("an rkey that does not exist", one(&sender, ah, to, QKEY, 'w', target, rkey ^ 0x5a0000, source, 64, lkey), 7);
  expect("a region without remote access",
         one(&sender, ah, to, QKEY, 'w', address(guarded.bytes), guarded.mr->rkey, source, 64, lkey), 7);
  expect("a write past the end of a region",
         one(&sender, ah, to, QKEY, 'w', target + SLOT - 32, rkey, source, 64, lkey), 7);
  expect("an lkey that does not exist", one(&sender, ah, to, QKEY, 'w', target, rkey, source, 64, lkey ^ 0x5a0000), 5);
  expect("a queue pair that does not exist", one(&sender, ah, to + 500, QKEY, 's', 0, 0, source, 64, lkey), 9);
  expect("a wrong queue key", one(&sender, ah, to, QKEY + 1, 's', 0, 0, source, 64, lkey), 9);
  expect("a receiver without a posted receive", one(&sender, ah, to, QKEY, 's', 0, 0, source, 64, lkey), 10);
  struct ibv_sge sge = {address(guarded.bytes), 16, guarded.mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
  if (ibv_post_recv(receiver.qp, &wr, &bad)) die("ibv_post_recv");
  expect("a receive that is too short", one(&sender, ah, to, QKEY, 's', 0, 0, source, 64, lkey), 11);
  // The memory of the receive is not registered, which is an error on both sides.
  sge.lkey ^= 0x5a0000;
  if (ibv_post_recv(receiver.qp, &wr, &bad)) die("ibv_post_recv");
  expect("a receive that cannot be written", one(&sender, ah, to, QKEY, 's', 0, 0, source, 16, lkey), 8);
  sge.lkey = guarded.mr->lkey;
  expect("a GID without an adapter", one(&sender, unreachable, to, QKEY, 's', 0, 0, source, 64, lkey), 15);
  struct ibv_port_attr port;
  if (ibv_query_port(ctx, 1, &port)) die("ibv_query_port");
  struct region longer = make_region((size_t)port.max_msg_sz + 1, ALL);
  expect("a message one byte too long",
         one(&sender, ah, to, QKEY, 's', 0, 0, address(longer.bytes), port.max_msg_sz + 1, longer.mr->lkey), 6);
  // The address handle is destroyed after its number is in the request, and before the request is posted.
  ibv_wr_start(sender.ex);
  sender.ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(sender.ex, rkey, target);
  ibv_wr_set_sge(sender.ex, lkey, source, 64);
  ibv_wr_set_ud_addr(sender.ex, unreachable, to, QKEY);
  if (ibv_destroy_ah(unreachable) || ibv_wr_complete(sender.ex))
    die("destroying an address handle that a request names");
  expect("an address handle that was destroyed", await(sender.cq), 4);
  ibv_dereg_mr(remote.mr);
  expect("a deregistered region", one(&sender, ah, to, QKEY, 'w', target, rkey, source, 64, lkey), 7);
  struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
  if (ibv_post_recv(receiver.qp, &wr, &bad) || ibv_modify_qp(receiver.qp, &error, IBV_QP_STATE))
    die("ibv_modify_qp to ERR, or ibv_post_recv before it");
  struct ibv_wc wc = await(receiver.cq);
  while (wc.vendor_err != 1) wc = await(receiver.cq);
  expect("a receive that is flushed", wc, 1);
  // Calls that the kernel refuses.
  if (ibv_reg_mr(pd, (void *)8, 64, ALL) || errno != EFAULT)
    die("unmapped memory was registered, or the error is not EFAULT");
  if (ibv_reg_mr(pd, local.bytes, SLOT, IBV_ACCESS_REMOTE_WRITE) || errno != EINVAL)
    die("remote write without local write was accepted, or the error is not EINVAL");
  if (ibv_dealloc_pd(pd) != EBUSY) die("a domain in use was freed, or the error is not EBUSY");
  puts("errors: the device refuses what the kernel refuses");
}

// Uses two adapters. `ctx` and `pd` are those of the adapter that the next calls are for.
static void stranger(struct ibv_device *other) {
  struct queue sender = make_queue(64, 0);
  struct region local = make_region(SLOT, ALL);
  union ibv_gid sender_gid = local_gid();
  struct ibv_context *sender_ctx = ctx;
  struct ibv_pd *sender_pd = pd, *receiver_pd;
  if (!other || !(ctx = ibv_open_device(other)) || !(pd = receiver_pd = ibv_alloc_pd(ctx)))
    die("the second device is missing or cannot be opened");
  struct queue receiver = make_queue(64, 0);
  struct region remote = make_region(SLOT, ALL);
  union ibv_gid receiver_gid = local_gid();
  ctx = sender_ctx, pd = sender_pd;
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&receiver_gid, &ahn);
  uint32_t to = receiver.qp->qp_num, rkey = remote.mr->rkey, lkey = local.mr->lkey;
  uint64_t target = address(remote.bytes), source = address(local.bytes);
  local.bytes[0] = 1;
  expect("a write from an adapter without an address handle at the target",
         one(&sender, ah, to, QKEY, 'w', target, rkey, source, 64, lkey), 14);
  expect("a read from an adapter without an address handle at the target",
         one(&sender, ah, to, QKEY, 'r', target, rkey, source, 64, lkey), 14);
  if (remote.bytes[0] || !local.bytes[0]) die("a refused write or read moved bytes");
  pd = receiver_pd;
  make_ah(&sender_gid, &ahn);
  expect("a write from an adapter with an address handle at the target",
         one(&sender, ah, to, QKEY, 'w', target, rkey, source, 64, lkey), 0);
  if (!remote.bytes[0]) die("the write completed, but its bytes did not arrive");
}

static void broken(void) {
  struct queue queue = make_queue(64, 0);
  struct efadv_cq_attr cq = {0};
  if (efadv_query_cq(queue.cq, &cq, sizeof cq)) die("efadv_query_cq");
  struct efadv_wq_attr sq = {0}, rq = {0};
  if (efadv_query_qp_wqs(queue.qp, &sq, &rq, sizeof sq)) die("efadv_query_qp_wqs");
  *(volatile uint32_t *)sq.doorbell = sq.num_entries + 1;
  struct ibv_qp_attr attr = {0};
  struct ibv_qp_init_attr init;
  for (double limit = now() + 60; now() < limit; usleep(1000)) {
    if (ibv_query_qp(queue.qp, &attr, IBV_QP_STATE, &init)) die("ibv_query_qp");
    // libefa posted no such requests, so it cannot report their completions. The status is a completion's third byte.
    uint8_t status = ((volatile uint8_t *)cq.buffer)[2];
    if (attr.qp_state != IBV_QPS_ERR || !status) continue;
    if (status != 2) die("doorbell past the ring: device status %u, expected 2", status);
    return (void)puts("broken: the queue pair is in error (device status 2)");
  }
  die("doorbell past the ring: the queue pair is in state %d, expected the error state and a completion",
      attr.qp_state);
}

static void cycles(long count) {
  static uint8_t bytes[SLOT];
  union ibv_gid gid = local_gid();
  for (long i = 0; i < count; i++) {
    if (!(pd = ibv_alloc_pd(ctx))) die("cycle %ld: ibv_alloc_pd", i);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, ALL);
    uint16_t ahn;
    struct ibv_ah *ah = make_ah(&gid, &ahn);
    struct queue queue = make_queue(i % 2 ? 128 : 64, 0);
    destroy_queue(&queue);
    if (!mr || ibv_destroy_ah(ah) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
      die("cycle %ld: an object could not be created or destroyed", i);
  }
  printf("cycles: %ld, with every kind of object\n", count);
}

static void target(void) {
  struct queue queue = make_queue(64, 0);
  struct region region = make_region(1 << 20, ALL);
  union ibv_gid gid = local_gid();
  uint16_t ahn;
  make_ah(&gid, &ahn);
  for (int i = 0; i < 16; i++) printf("%02x", gid.raw[i]);
  printf(" %u %" PRIu64 " %u\n", queue.qp->qp_num, address(region.bytes), region.mr->rkey);
  fflush(stdout);
  sleep(600);
}

static void writer(char **argument) {
  union ibv_gid gid;
  for (int i = 0; i < 16; i++) sscanf(argument[0] + 2 * i, "%2hhx", &gid.raw[i]);
  struct queue queue = make_queue(64, 0);
  struct region local = make_region(1 << 20, ALL);
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&gid, &ahn);
  uint32_t qpn = (uint32_t)strtoul(argument[1], 0, 10), rkey = (uint32_t)strtoul(argument[3], 0, 10);
  uint64_t target = strtoull(argument[2], 0, 10);
  long written = 0;
  for (double limit = now() + 120; now() < limit; written++) {
    struct ibv_wc wc =
        one(&queue, ah, qpn, QKEY, 'w', target, rkey, address(local.bytes), 1 << 20, local.mr->lkey);
    if (written == 0) puts("writing"), fflush(stdout);
    if (!wc.status) continue;
    printf("writer: after %ld writes: %s (device status %u)\n", written, ibv_wc_status_str(wc.status), wc.vendor_err);
    return;
  }
  die("no write failed within 120 seconds");
}

// Waits for an event of the queue, for at most a minute.
static void sleep_until_event(struct ibv_cq *cq) {
  struct pollfd poll_fd = {.fd = channel->fd, .events = POLLIN};
  struct ibv_cq *of;
  void *context;
  if (poll(&poll_fd, 1, 60000) != 1) die("no event within a minute");
  if (ibv_get_cq_event(channel, &of, &context) || of != cq || context != &channel) die("ibv_get_cq_event");
}

// Sleeps as the manual page of ibv_get_cq_event shows: arm, poll until nothing is left, wait.
static void sleeping(long count) {
  if (!(channel = ibv_create_comp_channel(ctx))) die("ibv_create_comp_channel");
  struct queue queue = make_queue(64, 0), unread = make_queue(64, 0);
  if (ibv_req_notify_cq(queue.cq, 1) != EOPNOTSUPP) die("libefa has no solicited events");
  struct region region = make_region(SLOT, ALL);
  union ibv_gid gid = local_gid();
  uint16_t ahn;
  struct ibv_ah *ah = make_ah(&gid, &ahn);
  long done = 0, posted = 0;
  unsigned events = 0;
  if (ibv_req_notify_cq(queue.cq, 0) || ibv_req_notify_cq(unread.cq, 0)) die("ibv_req_notify_cq");
  while (done < count) {
    // Between one and 16 writes, so that some complete before the queue is armed and some after.
    for (long more = 1 + (long)draw(16); posted < count && posted - done < more; posted++) {
      ibv_wr_start(queue.ex);
      queue.ex->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(queue.ex, region.mr->rkey, address(region.bytes));
      ibv_wr_set_ud_addr(queue.ex, ah, queue.qp->qp_num, QKEY);
      ibv_wr_set_sge(queue.ex, region.mr->lkey, address(region.bytes) + 64, 8);
      if (ibv_wr_complete(queue.ex)) die("ibv_wr_complete");
    }
    sleep_until_event(queue.cq);
    events++;
    if (ibv_req_notify_cq(queue.cq, 0)) die("ibv_req_notify_cq");
    struct ibv_wc wc;
    while (ibv_poll_cq(queue.cq, 1, &wc) > 0) {
      if (wc.status) die("a write completed with %s", ibv_wc_status_str(wc.status));
      done++;
    }
  }
  // One event of another queue stays unread.
  struct ibv_wc wc = one(&unread, ah, unread.qp->qp_num, QKEY, 'w', address(region.bytes), region.mr->rkey,
                         address(region.bytes) + 64, 8, region.mr->lkey);
  if (wc.status) die("a write completed with %s", ibv_wc_status_str(wc.status));
  if (!ibv_destroy_comp_channel(channel)) die("a channel in use was destroyed");
  // These calls wait until as many events are acknowledged as were read.
  ibv_ack_cq_events(queue.cq, events);
  destroy_queue(&queue);
  destroy_queue(&unread);
  if (ibv_destroy_comp_channel(channel)) die("ibv_destroy_comp_channel");
  struct pollfd async = {.fd = ctx->async_fd, .events = POLLIN};
  if (poll(&async, 1, 0)) die("an asynchronous event, of which EFA has none");
  printf("sleeping: %ld writes, %u events\n", count, events);
}

int main(int count, char **argument) {
  struct ibv_device **devices = ibv_get_device_list(0);
  if (count < 2 || !devices || !devices[0] || !(ctx = ibv_open_device(devices[0])))
    die("usage: verbs_requests COMMAND, with an EFA device that can be opened");
  const char *command = argument[1];
  if (!strcmp(command, "cycles")) return cycles(atol(argument[2])), ibv_close_device(ctx);
  if (!(pd = ibv_alloc_pd(ctx))) die("ibv_alloc_pd");
  if (!strcmp(command, "random") && count >= 6) {
    seed = strtoull(argument[2], 0, 10);
    if (!(requests = fopen(argument[5], "a"))) die("%s cannot be opened", argument[5]);
    random_requests(atol(argument[3]), (uint32_t)atol(argument[4]), count > 6);
    return fclose(requests);
  }
  if (!strcmp(command, "many")) many(atol(argument[2]));
  else if (!strcmp(command, "large")) large();
  else if (!strcmp(command, "sleeping")) sleeping(atol(argument[2]));
  else if (!strcmp(command, "errors")) errors();
  else if (!strcmp(command, "stranger")) stranger(devices[1]);
  else if (!strcmp(command, "broken")) broken();
  else if (!strcmp(command, "target")) target();
  else if (!strcmp(command, "writer") && count == 6) writer(argument + 2);
  else die("%s: unknown command, or too few arguments", command);
  return 0;
}
