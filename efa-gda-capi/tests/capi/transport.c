/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A transport in C on libefa_gda, on the first adapter that libfabric finds. The argument names the test to run. Prints
 * nothing and returns 0 if the test passes.
 */
#define _GNU_SOURCE /* dlvsym */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "efa_gda.h"
#include "efa_gda_nvshmem.h"
#include "libfabric_abi.h"

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, efa_gda_last_error()); \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)

enum { BYTES = 64, COUNT = 1000 };

static const uint64_t ALL = EFA_GDA_ACCESS_READ | EFA_GDA_ACCESS_WRITE | EFA_GDA_ACCESS_SEND |
                            EFA_GDA_ACCESS_RECEIVE | EFA_GDA_ACCESS_REMOTE_READ | EFA_GDA_ACCESS_REMOTE_WRITE;

static efa_gda_queue_handle *first, *second;
static efa_gda_region *source, *target;
static struct efa_gda_peer peer;
static unsigned char from[BYTES * COUNT], to[BYTES * COUNT];

static void introduce(efa_gda_queue_handle *to_queue, efa_gda_queue_handle *of, struct efa_gda_peer *out) {
  struct efa_gda_queue_info info = {sizeof info};
  CHECK(efa_gda_queue_describe(of, &info, NULL) == 0);
  CHECK(efa_gda_queue_insert_peer(to_queue, info.address, out) == 0);
}

/* EFA_GDA_TEST_VERBS opens the adapter through rdma-core alone. */
static struct efa_gda_options for_host(void) {
  struct efa_gda_options options = {sizeof options, -1};
  if (getenv("EFA_GDA_TEST_VERBS") != NULL) options.source = EFA_GDA_SOURCE_RDMA_CORE;
  return options;
}

/* Opens the first queue with these flags, and the second one beside it, with a counter, or none. The GPU that
 * EFA_GDA_TEST_GPU numbers drives the first queue; without the variable, the host does. */
static void open_queues(uint32_t flags, uint32_t counted) {
  const char *gpu = getenv("EFA_GDA_TEST_GPU");
  struct efa_gda_options options = for_host();
  struct efa_gda_peer back;
  if (gpu != NULL) options.gpu = atoi(gpu);
  options.flags = flags;
  CHECK(efa_gda_queue_open(&options, &first) == 0);
  options = (struct efa_gda_options){sizeof options, -1};
  options.counted = counted;
  options.beside = first;
  CHECK(efa_gda_queue_open(&options, &second) == 0);
  introduce(second, first, &back);
  introduce(first, second, &peer);
  for (size_t i = 0; i < sizeof from; i++) from[i] = (unsigned char)(i * 131 + i / 251);
  CHECK(efa_gda_region_register(first, from, sizeof from, ALL, &source) == 0);
  CHECK(efa_gda_region_register(second, to, sizeof to, ALL, &target) == 0);
}

static void open_all(void) {
  open_queues(0, 0);
}

static struct efa_gda_work write_all(void) {
  struct efa_gda_work write = {sizeof write, peer, (uint64_t)(uintptr_t)to, 0, EFA_GDA_OP_WRITE, source};
  CHECK(efa_gda_region_keys(target, NULL, &write.rkey) == 0);
  write.bytes = BYTES;
  write.count = COUNT;
  return write;
}

static void close_all(void) {
  CHECK(efa_gda_queue_close(first) == 0);
  CHECK(efa_gda_queue_close(second) == 0);
  CHECK(efa_gda_region_close(source) == 0);
  CHECK(efa_gda_region_close(target) == 0);
}

static void is_refused(int code, int expected, const char *why) {
  CHECK(code == expected);
  CHECK(strstr(efa_gda_last_error(), why) != NULL);
}

static void put(void) {
  struct efa_gda_queue_info info = {sizeof info};
  struct efa_gda_progress progress = {sizeof progress};
  const char *why = NULL;
  const uint32_t relayed = getenv("EFA_GDA_TEST_RELAYED") ? EFA_GDA_QUEUE_RELAYED : 0;
  open_all();
  CHECK(efa_gda_queue_describe(first, &info, &why) == 0);
  CHECK(info.entry_size == 64 && info.num_entries > 0 && info.receives > 0 && info.max_rdma > 0 && info.max_message > 0);
  CHECK(info.doorbell == EFA_GDA_DOORBELL_DIRECT && info.qpn != peer.qpn && info.store_bytes >= 8);
  CHECK(info.source == (getenv("EFA_GDA_TEST_VERBS") ? EFA_GDA_SOURCE_RDMA_CORE : EFA_GDA_SOURCE_LIBFABRIC));
  CHECK((info.flags & ~(uint32_t)EFA_GDA_QUEUE_COMPLETIONS_IN_GPU) == relayed);
  CHECK(info.successes == 0 && info.failures == 0 && info.counter_gpu == -1 && strlen(info.adapter) > 0);
  if (getenv("EFA_GDA_TEST_GPU") == NULL) CHECK(strcmp(why, "") == 0);
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_queue_execute(first, &write) == 0);
  CHECK(memcmp(from, to, sizeof to) == 0);
  CHECK(efa_gda_queue_wait(first, 1000000000) == 0 && efa_gda_queue_wait(first, 0) == 0);
  CHECK(efa_gda_queue_poll(first, &progress, NULL) == 0);
  CHECK(progress.reserved == COUNT && progress.completed == COUNT);
  CHECK(progress.in_flight == 0 && progress.errors == 0 && progress.poison == EFA_GDA_OK);
  close_all();
}

/* A queue says what it could not use of what it would have preferred. */
static void refused(void) {
  const char *why = NULL, *none = NULL;
  struct efa_gda_queue_info info = {sizeof info};
  open_all();
  CHECK(efa_gda_queue_describe(first, &info, &why) == 0 && strstr(why, "completions in the GPU's memory") != NULL);
  CHECK(efa_gda_queue_describe(second, &info, &none) == 0 && strcmp(none, "") == 0);
  close_all();
}

/* Writes to a region with relaxed ordering are late on this software adapter, until the region is closed. */
static void relaxed(void) {
  efa_gda_region *region;
  size_t same = 0;
  open_all();
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(efa_gda_region_register(first, to, sizeof to, EFA_GDA_ACCESS_RELAXED_ORDERING, &region) ==
        EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(first, to, sizeof to, ALL | EFA_GDA_ACCESS_RELAXED_ORDERING, &target) == 0);
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_queue_execute(first, &write) == 0);
  for (size_t i = 0; i < COUNT; i++) same += memcmp(from + i * BYTES, to + i * BYTES, BYTES) == 0;
  CHECK(same > 0 && same < COUNT);
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(memcmp(from, to, sizeof to) == 0);
  CHECK(efa_gda_region_register(first, to, sizeof to, ALL, &target) == 0);
  close_all();
}

static void errors(void) {
  struct efa_gda_progress progress = {sizeof progress};
  open_all();
  struct efa_gda_work write = write_all();
  write.rkey ^= 0x5555;
  write.count = 1;
  CHECK(efa_gda_queue_execute(first, &write) == EFA_GDA_ERROR_COMPLETION);
  CHECK(strstr(efa_gda_last_error(), "remote") != NULL);
  CHECK(efa_gda_queue_poll(first, &progress, NULL) == 0);
  CHECK(progress.errors == 1 && progress.first_status == 7 && progress.first_request == 0);
  write.count = COUNT + 1;
  CHECK(efa_gda_queue_execute(first, &write) == EFA_GDA_ERROR_ARGUMENT);
  close_all();
}

/* Every operation once. The second queue receives. */
static void operations(void) {
  struct efa_gda_work receives = {sizeof receives};
  struct efa_gda_received got[8];
  uint32_t posted = 9, count = 9;
  open_all();
  struct efa_gda_work work = write_all();
  work.count = 1;
  receives.local = target;
  receives.local_offset = BYTES * 8;
  receives.bytes = BYTES;
  receives.count = 4;
  CHECK(efa_gda_queue_receive(second, got, 8, &count, 1000000) == EFA_GDA_ERROR_TIMEOUT && count == 0);
  CHECK(efa_gda_queue_post_receives(second, &receives, &posted) == 0 && posted == 4);
  work.op = EFA_GDA_OP_SEND;
  CHECK(efa_gda_queue_execute(first, &work) == 0);
  CHECK(efa_gda_queue_receive(second, got, 8, &count, 0) == 0 && count == 1);
  CHECK(got[0].flags == EFA_GDA_RECEIVED_CONSUMED && got[0].receive == 0 && got[0].status == 0);
  CHECK(got[0].length == BYTES && got[0].source_ah != 0xffff && got[0].source_qpn != peer.qpn);
  CHECK(memcmp(to + BYTES * 8, from, BYTES) == 0);
  work.op = EFA_GDA_OP_SEND_IMM;
  work.immediate = 0x12345678;
  CHECK(efa_gda_queue_execute(first, &work) == 0);
  work.op = EFA_GDA_OP_INLINE_SEND;
  work.bytes = 16;
  CHECK(efa_gda_queue_execute(first, &work) == 0);
  CHECK(efa_gda_queue_receive(second, got, 8, &count, 0) == 0);
  if (count == 1) {
    uint32_t rest = 0;
    CHECK(efa_gda_queue_receive(second, got + 1, 7, &rest, 0) == 0 && rest == 1);
  }
  CHECK(got[0].flags == (EFA_GDA_RECEIVED_CONSUMED | EFA_GDA_RECEIVED_IMMEDIATE) && got[0].immediate == 0x12345678);
  CHECK(got[1].flags == EFA_GDA_RECEIVED_CONSUMED && got[1].length == 16 && got[0].receive == 1 && got[1].receive == 2);
  CHECK(memcmp(to + BYTES * 10, from, 16) == 0);
  work.op = EFA_GDA_OP_WRITE_IMM;
  work.bytes = BYTES;
  CHECK(efa_gda_queue_execute(first, &work) == 0);
  CHECK(efa_gda_queue_receive(second, got, 8, &count, 0) == 0 && count == 1);
  CHECK((got[0].flags & EFA_GDA_RECEIVED_WRITE) != 0 && (got[0].flags & EFA_GDA_RECEIVED_IMMEDIATE) != 0);
  CHECK(got[0].immediate == 0x12345678 && memcmp(to, from, BYTES) == 0);
  /* A read of what the peer has into the beginning of the source. */
  to[0] ^= 0xff;
  work.op = EFA_GDA_OP_READ;
  CHECK(efa_gda_queue_execute(first, &work) == 0 && from[0] == to[0]);
  work.op = EFA_GDA_OP_INLINE_WRITE; /* Only 128-byte entries carry it. */
  CHECK(efa_gda_queue_execute(first, &work) == EFA_GDA_ERROR_UNSUPPORTED);
  CHECK(strstr(efa_gda_last_error(), "128-byte") != NULL);
  work.op = 7;
  CHECK(efa_gda_queue_execute(first, &work) == EFA_GDA_ERROR_ARGUMENT);
  /* A receive that reaches past the region, and one that is too long. */
  receives.local_offset = sizeof to - BYTES;
  CHECK(efa_gda_queue_post_receives(second, &receives, &posted) == EFA_GDA_ERROR_ARGUMENT && posted == 0);
  receives.bytes = 65536;
  CHECK(efa_gda_queue_post_receives(second, &receives, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_receive(second, got, 0, &count, 0) == EFA_GDA_ERROR_ARGUMENT);
  close_all();
}

/* A queue of 128-byte entries, which is its own peer, carries data in the entry. */
static void wide(void) {
  struct efa_gda_options options = for_host();
  struct efa_gda_queue_info info = {sizeof info};
  options.flags = EFA_GDA_QUEUE_WIDE_ENTRIES | EFA_GDA_QUEUE_WIDE_STORES;
  CHECK(efa_gda_queue_open(&options, &first) == 0);
  CHECK(efa_gda_queue_describe(first, &info, NULL) == 0);
  CHECK(info.flags == EFA_GDA_QUEUE_WIDE_ENTRIES && info.entry_size == 128 && info.max_inline >= 16);
  CHECK(efa_gda_queue_insert_peer(first, info.address, &peer) == 0);
  memset(from, 7, sizeof from);
  CHECK(efa_gda_region_register(first, from, sizeof from, ALL, &source) == 0);
  CHECK(efa_gda_region_register(first, to, sizeof to, ALL, &target) == 0);
  struct efa_gda_work write = write_all();
  write.op = EFA_GDA_OP_INLINE_WRITE;
  write.bytes = 16;
  CHECK(efa_gda_queue_execute(first, &write) == 0 && memcmp(from, to, 16 * COUNT) == 0 && to[16 * COUNT] == 0);
  CHECK(efa_gda_queue_close(first) == 0 && efa_gda_region_close(source) == 0 && efa_gda_region_close(target) == 0);
}

/* Run where the provider has counters. The queue counts its own requests, and its peer those that arrive. */
static void counters(void) {
  struct efa_gda_queue_info info = {sizeof info};
  struct efa_gda_received got;
  uint32_t count;
  int verbs = getenv("EFA_GDA_TEST_VERBS") != NULL;
  open_queues(verbs ? 0 : EFA_GDA_QUEUE_COUNTERS, EFA_GDA_ACCESS_REMOTE_WRITE);
  CHECK(efa_gda_queue_describe(first, &info, NULL) == 0 && info.successes == 0);
  if (!verbs) {
    CHECK(info.flags == EFA_GDA_QUEUE_COUNTERS && info.receives == 0);
    CHECK(efa_gda_queue_receive(first, &got, 1, &count, 1) == EFA_GDA_ERROR_UNSUPPORTED);
  }
  CHECK(efa_gda_queue_describe(second, &info, NULL) == 0 && info.counter_gpu == -1 && info.receives > 0);
  CHECK(info.successes % 8 == 0 && info.failures % 8 == 0 && info.successes != info.failures && info.failures != 0);
  const volatile uint64_t *successes = (const volatile uint64_t *)(uintptr_t)info.successes;
  const volatile uint64_t *failures = (const volatile uint64_t *)(uintptr_t)info.failures;
  CHECK(*successes == 0 && *failures == 0);
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_queue_execute(first, &write) == 0 && memcmp(from, to, sizeof to) == 0);
  CHECK(*successes == COUNT && *failures == 0);
  close_all();
}

static void busy(void) {
  struct efa_gda_queue *device = NULL;
  open_all();
  CHECK(efa_gda_queue_retain(first, source) == 0);
  CHECK(efa_gda_region_close(source) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_queue_begin_launch(first, &device) == 0);
  CHECK(device != NULL && device->sq.entry_size == 64 && device->sq.num_entries > 0);
  CHECK(efa_gda_queue_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_queue_destroy(first) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_queue_wait(first, 1000) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_queue_end_launch(first) == 0);
  CHECK(efa_gda_queue_end_launch(first) == EFA_GDA_ERROR_ARGUMENT);
  /* The state after a kernel that posted one entry and deferred its doorbell. */
  uint64_t before = device->reserve.word;
  device->reserve.word += 1;
  device->turn.word = device->reserve.word << EFA_GDA_TURN_BITS | 1;
  CHECK(efa_gda_queue_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(strstr(efa_gda_last_error(), "never rung for (1)") != NULL);
  CHECK(strstr(efa_gda_last_error(), "efa_gda_queue_wait") != NULL);
  device->reserve.word = before;
  device->turn.word = before << EFA_GDA_TURN_BITS;
  close_all();
}

/* Run with a GPU whose memory the host can write. */
static void abandoned(void) {
  struct efa_gda_queue *device = NULL, *again = NULL;
  open_all();
  CHECK(efa_gda_queue_begin_launch(first, &device) == 0);
  /* The state after a kernel that owned the queue and did not close its Sender. */
  device->reserve.word += (uint64_t)1 << 32;
  CHECK(efa_gda_queue_end_launch(first) == 0);
  CHECK(efa_gda_queue_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(strstr(efa_gda_last_error(), "without closing its Sender") != NULL);
  /* A call that fails changes nothing: the queue is still mapped into the GPU. */
  CHECK(efa_gda_queue_begin_launch(first, &again) == 0);
  CHECK(again == device && device->reserve.word >> 32 == 1);
  CHECK(efa_gda_queue_end_launch(first) == 0);
  CHECK(efa_gda_queue_destroy(first) == 0);
}

static void snapshot(void) {
  struct efa_gda_progress progress = {sizeof progress};
  const char *text = NULL;
  open_all();
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_queue_execute(first, &write) == 0);
  CHECK(efa_gda_queue_poll(first, &progress, &text) == 0 && progress.completed == COUNT);
  CHECK(text != NULL && strstr(text, "1000 reserved, 1000 rung") != NULL);
  /* The text of a call that fails is another one. */
  CHECK(efa_gda_queue_poll(first, NULL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(strstr(efa_gda_last_error(), "the progress") != NULL);
  close_all();
}

/* Run with SOFTEFA_DELAY_US, longer than the bound: requests do not complete in time. */
static void timeout(void) {
  struct efa_gda_progress progress = {sizeof progress};
  open_all();
  struct efa_gda_work write = write_all();
  write.count = 3;
  write.timeout_ns = 50000000;
  CHECK(efa_gda_queue_execute(first, &write) == EFA_GDA_ERROR_DEVICE);
  CHECK(efa_gda_queue_poll(first, &progress, NULL) == 0);
  CHECK(progress.in_flight == 3 && progress.poison == EFA_GDA_TIMEOUT_COMPLETION);
  CHECK(efa_gda_region_close(source) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_queue_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(strstr(efa_gda_last_error(), "destroy it (in C: efa_gda_queue_destroy)") != NULL);
  CHECK(strstr(efa_gda_last_error(), "wait") == NULL && strstr(efa_gda_last_error(), "::") == NULL);
  /* The queue stays poisoned. */
  CHECK(efa_gda_queue_abort(first, 1) == 0 && efa_gda_queue_abort(first, 0) == 0);
  CHECK(efa_gda_queue_wait(first, 0) == EFA_GDA_ERROR_DEVICE);
  CHECK(efa_gda_queue_execute(first, &write) == EFA_GDA_ERROR_DEVICE);
  CHECK(efa_gda_queue_destroy(first) == 0);
  CHECK(efa_gda_queue_close(second) == 0);
  CHECK(efa_gda_region_close(source) == 0);
  CHECK(efa_gda_region_close(target) == 0);
}

static void does_not_open(struct efa_gda_options options, int expected, const char *why) {
  efa_gda_queue_handle *queue = NULL;
  is_refused(efa_gda_queue_open(&options, &queue), expected, why);
  CHECK(queue == NULL);
}

static void misuse(void) {
  const int refused = EFA_GDA_ERROR_ARGUMENT;
  const struct efa_gda_options host = {sizeof host, -1};
  struct efa_gda_options options = host;
  struct efa_gda_queue_info info = {sizeof info};
  struct efa_gda_queue *device;
  efa_gda_queue_handle *queue;
  efa_gda_region *region;
  CHECK(efa_gda_api_version() == EFA_GDA_API_VERSION);
  CHECK(efa_gda_queue_open(NULL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_open(&options, NULL) == EFA_GDA_ERROR_ARGUMENT);
  /* Defaults. */
  CHECK(efa_gda_queue_open(NULL, &queue) == 0);
  CHECK(efa_gda_queue_describe(queue, &info, NULL) == 0 && info.flags == 0 && info.store_bytes == 8);
  CHECK(efa_gda_queue_close(queue) == 0);
  options.adapter = info.adapter;
  CHECK(efa_gda_queue_open(&options, &queue) == 0 && efa_gda_queue_close(queue) == 0);
  /* Options out of range, and options that exclude each other. */
  options.size = 8;
  does_not_open(options, refused, "the field size is 8");
  options = host, options.adapter = "\xff";
  does_not_open(options, refused, "UTF-8");
  options = host, options.adapter = "no-such-adapter";
  does_not_open(options, EFA_GDA_ERROR_NO_ADAPTER, "no-such-adapter");
  options = host, options.source = 3;
  does_not_open(options, refused, "enum efa_gda_source");
  options = host, options.doorbell = 9;
  does_not_open(options, refused, "enum efa_gda_doorbell_mode");
  options = host, options.gpu = -2;
  does_not_open(options, refused, "gpu = -2");
  options = host, options.gpu = 4096;
  does_not_open(options, EFA_GDA_ERROR_GPU, "gpu = -1 is for the host's processor");
  options = host, options.flags = 1u << 31;
  does_not_open(options, refused, "0x80000000");
  options = host, options.flags = EFA_GDA_QUEUE_RELAYED;
  does_not_open(options, refused, "only described");
  options = host, options.flags = EFA_GDA_QUEUE_COUNTERS | EFA_GDA_QUEUE_REQUEST_TABLE;
  does_not_open(options, EFA_GDA_ERROR_UNSUPPORTED, "");
  options = host, options.counted = 1;
  does_not_open(options, refused, "counted 0x1");
  options = host, options.requests = 64;
  does_not_open(options, refused, "requests and receives");
  options = host, options.completions = 16;
  does_not_open(options, refused, "");
  options = host, options.info = (struct fi_info *)&info;
  does_not_open(options, refused, "the fid_domain is null");
  options = host, options.domain = (struct fid_domain *)&info;
  does_not_open(options, refused, "no object of libfabric");
  open_all();
  options = host, options.beside = (efa_gda_queue_handle *)source;
  does_not_open(options, refused, "of another kind");
  options.beside = first, options.domain = (struct fid_domain *)&info;
  does_not_open(options, refused, "beside and domain");
  /* A handle of another kind, and null pointers. */
  CHECK(efa_gda_queue_describe((efa_gda_queue_handle *)source, &info, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_describe(first, NULL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_begin_launch(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_insert_peer(first, NULL, &peer) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_insert_peer(first, info.address, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_execute(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  uint32_t posted = 7;
  CHECK(efa_gda_queue_post_receives(first, NULL, &posted) == EFA_GDA_ERROR_ARGUMENT && posted == 0);
  CHECK(efa_gda_queue_receive(first, NULL, 1, NULL, 1) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_retain(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(NULL, to, 8, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(first, NULL, 8, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(first, to, 8, ALL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(first, to, 8, 0, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register_gpu(first, 0, 8, 0, -1, 0, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register_gpu(first, 4096, 8, -1, -1, 0, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register_gpu(first, 4096, 8, 0, -1, 0, ALL, &region) == EFA_GDA_ERROR_UNSUPPORTED);
  CHECK(efa_gda_region_keys(NULL, NULL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_keys(source, NULL, NULL) == 0);
  CHECK(efa_gda_region_close((efa_gda_region *)first) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_abort(first, 1) == 0 && efa_gda_queue_abort(first, 0) == 0);
  /* A region of another domain. */
  CHECK(efa_gda_queue_open(NULL, &queue) == 0);
  CHECK(efa_gda_queue_retain(queue, source) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_close(queue) == 0);
  efa_gda_queue_handle *closed = first;
  close_all();
  /* Closed handles. */
  CHECK(efa_gda_queue_close(closed) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_begin_launch(closed, &device) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_abort(closed, 1) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(closed, to, 8, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_close(source) == EFA_GDA_ERROR_ARGUMENT);
  options = host, options.beside = closed;
  does_not_open(options, refused, "not an open queue");
}

static void *receives_nothing(void *unused) {
  struct efa_gda_received got;
  uint32_t count = 1;
  int code = efa_gda_queue_receive(first, &got, 1, &count, 600000000000ull);
  CHECK(code == EFA_GDA_ERROR_DEVICE && count == 0 && strstr(efa_gda_last_error(), "ABORTED") != NULL);
  return unused;
}

/* While a thread waits on a queue, others register memory with it, end its launches and abort its wait. */
static void threads(void) {
  pthread_t waiting;
  open_all();
  CHECK(pthread_create(&waiting, NULL, receives_nothing, NULL) == 0);
  /* The wait has most likely begun. It ends by the abort alone, so a call that waited for it would never return. */
  CHECK(nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL) == 0);
  CHECK(efa_gda_region_close(source) == 0);
  CHECK(efa_gda_region_register(first, from, sizeof from, ALL, &source) == 0);
  CHECK(efa_gda_queue_end_launch(first) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_queue_abort(first, 1) == 0);
  CHECK(pthread_join(waiting, NULL) == 0);
  CHECK(efa_gda_queue_abort(first, 0) == 0);
  /* An aborted wait for receives poisons nothing. */
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_queue_execute(first, &write) == 0 && memcmp(from, to, sizeof to) == 0);
  close_all();
}

/* Regions may be closed before and after the queue that they were registered with, and another queue uses them. */
static void order(void) {
  struct efa_gda_queue_info info = {sizeof info};
  open_all();
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_queue_close(second) == 0);
  introduce(first, first, &write.peer);
  CHECK(efa_gda_queue_execute(first, &write) == 0 && memcmp(from, to, sizeof to) == 0);
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(efa_gda_queue_describe(first, &info, NULL) == 0);
  CHECK(efa_gda_queue_close(first) == 0);
  CHECK(efa_gda_region_close(source) == 0);
}

/* A domain that libfabric opens on a fabric, as another transport has it, and its info. Both stay. */
static struct fid_domain *opened_by_libfabric(const char *name, struct fi_info **info) {
  static const char *const versions[] = {"FABRIC_1.10", "FABRIC_1.9", "FABRIC_1.8", "FABRIC_1.7", "FABRIC_1.3"};
  const char *path = getenv("LIBFABRIC_PATH");
  void *library = dlopen(path != NULL && *path != 0 ? path : "libfabric.so.1", RTLD_NOW);
  fi_version_fn version = NULL;
  fi_getinfo_fn getinfo = NULL;
  fi_dupinfo_fn dupinfo = NULL;
  fi_fabric_fn open_fabric = NULL;
  struct fi_info *hints;
  struct fid_fabric *fabric = NULL;
  struct fid_domain *opened = NULL;
  CHECK(library != NULL);
  *(void **)&version = dlvsym(library, "fi_version", "FABRIC_1.0");
  *(void **)&open_fabric = dlvsym(library, "fi_fabric", "FABRIC_1.1");
  for (size_t i = 0; getinfo == NULL && i < sizeof versions / sizeof versions[0]; i++) {
    *(void **)&getinfo = dlvsym(library, "fi_getinfo", versions[i]);
    *(void **)&dupinfo = dlvsym(library, "fi_dupinfo", versions[i]);
  }
  CHECK(version != NULL && open_fabric != NULL && getinfo != NULL && dupinfo != NULL);
  uint32_t most = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), api = version() < most ? version() : most;
  hints = dupinfo(NULL);
  hints->mode = ~0ull;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup("efa");
  hints->fabric_attr->name = strdup(name);
  CHECK(getinfo(api, NULL, NULL, 0, hints, info) == 0 && strcmp((*info)->fabric_attr->name, name) == 0);
  CHECK(open_fabric((*info)->fabric_attr, &fabric, NULL) == 0);
  CHECK(fabric->ops->domain(fabric, *info, &opened, NULL) == 0 && opened != NULL);
  return opened;
}

/* An enabled endpoint on that domain. */
static struct fid_ep *enabled_endpoint(struct fid_domain *on, struct fi_info *info) {
  struct fi_av_attr vector = {.type = FI_AV_TABLE, .count = 16};
  struct fi_cq_attr queue = {.size = info->tx_attr->size + info->rx_attr->size, .format = FI_CQ_FORMAT_DATA};
  struct fid_av *addresses = NULL;
  struct fid_cq *completions = NULL;
  struct fid_ep *ep = NULL;
  CHECK(on->ops->av_open(on, &vector, &addresses, NULL) == 0 && on->ops->cq_open(on, &queue, &completions, NULL) == 0);
  CHECK(on->ops->endpoint(on, info, &ep, NULL) == 0);
  CHECK(ep->fid.ops->bind(&ep->fid, &addresses->fid, 0) == 0);
  CHECK(ep->fid.ops->bind(&ep->fid, &completions->fid, FI_TRANSMIT | FI_RECV) == 0);
  CHECK(ep->fid.ops->control(&ep->fid, FI_ENABLE, NULL) == 0);
  return ep;
}

/* Run with both fabrics, and with EFA_GDA_GPU=-1. */
static void borrowed(void) {
  const int refused = EFA_GDA_ERROR_ARGUMENT;
  struct nvshmemt_efa_gda_device_state state = {sizeof state};
  struct fi_info *info = NULL;
  static uint64_t zeroes[64];
  void *const unmapped = (void *)0x1000;
  is_refused(nvshmemt_efa_gda_fini(), refused, "nothing is initialised");
  is_refused(nvshmemt_efa_gda_state(&state), refused, "nothing is initialised");
  is_refused(nvshmemt_efa_gda_init_on_ep(NULL, NULL), refused, "the fid_domain is null");
  /* Memory that cannot be read, that is no object, and objects of another class. */
  is_refused(nvshmemt_efa_gda_init_on_ep(unmapped, NULL), refused, "cannot read");
  is_refused(nvshmemt_efa_gda_init_on_ep(zeroes, NULL), refused, "no object of libfabric");
  struct fid_domain *plain = opened_by_libfabric("efa", &info);
  struct efa_gda_options options = {sizeof options, -1};
  options.domain = plain, options.info = info;
  is_refused(nvshmemt_efa_gda_init_on_ep(plain, NULL), EFA_GDA_ERROR_UNSUPPORTED, "efa-direct");
  does_not_open(options, EFA_GDA_ERROR_UNSUPPORTED, "the fabric \"efa\"");
  struct fid_domain *direct = opened_by_libfabric("efa-direct", &info);
  struct fid_ep *ep = enabled_endpoint(direct, info);
  is_refused(nvshmemt_efa_gda_init_on_ep(direct, unmapped), refused, "cannot read");
  is_refused(nvshmemt_efa_gda_init_on_ep(direct, direct), refused, "is a fid_domain");
  is_refused(nvshmemt_efa_gda_init_on_ep(ep, NULL), refused, "is a fid_ep");
  options.domain = (struct fid_domain *)ep, options.info = info;
  does_not_open(options, refused, "is a fid_ep");
  options.domain = direct, options.info = unmapped;
  does_not_open(options, refused, "cannot read");
  options.info = NULL;
  does_not_open(options, refused, "the fi_info is null");
  CHECK(setenv("EFA_GDA_GPU", "first", 1) == 0);
  is_refused(nvshmemt_efa_gda_init_on_ep(direct, NULL), refused, "EFA_GDA_GPU=\"first\"");
  CHECK(unsetenv("EFA_GDA_GPU") == 0);
  is_refused(nvshmemt_efa_gda_init_on_ep(direct, NULL), refused, "no CUDA context");
  CHECK(setenv("EFA_GDA_GPU", "-1", 1) == 0);

  /* Nothing of the refused calls or of the first round is left. The queue pair is not that of the endpoint, whose
   * address begins with its GID and its number. */
  unsigned char address[64], after[64];
  size_t length = sizeof address;
  uint16_t number;
  CHECK(ep->cm->getname(&ep->fid, address, &length) == 0);
  memcpy(&number, address + 16, sizeof number);
  for (int round = 0; round < 2; round++) {
    CHECK(nvshmemt_efa_gda_init_on_ep(direct, ep) == 0);
    is_refused(nvshmemt_efa_gda_init_on_ep(direct, ep), EFA_GDA_ERROR_BUSY, "nvshmemt_efa_gda_fini");
    CHECK(nvshmemt_efa_gda_state(&state) == 0 && state.size == sizeof state);
    CHECK(state.handle != NULL && state.gpu == -1 && state.store_bytes == 8);
    CHECK(state.queue->sq.num_entries > 0 && state.queue->qpn != number);
    /* The caller can neither close the queue nor end the launch that init began. */
    is_refused(efa_gda_queue_close(state.handle), EFA_GDA_ERROR_BUSY, "nvshmemt_efa_gda_fini");
    is_refused(efa_gda_queue_end_launch(state.handle), refused, "no launch");
    is_refused(efa_gda_queue_destroy(state.handle), EFA_GDA_ERROR_BUSY, "nvshmemt_efa_gda_fini");
    CHECK(efa_gda_queue_begin_launch(state.handle, &state.queue) == 0);
    is_refused(nvshmemt_efa_gda_fini(), EFA_GDA_ERROR_BUSY, "1 launch(es)");
    CHECK(efa_gda_queue_end_launch(state.handle) == 0);
    CHECK(nvshmemt_efa_gda_fini() == 0);
  }
  is_refused(nvshmemt_efa_gda_fini(), refused, "nothing is initialised");
  CHECK(ep->cm->getname(&ep->fid, after, &length) == 0 && memcmp(address, after, length) == 0);

  /* Regions of the caller outlive the queue. */
  CHECK(nvshmemt_efa_gda_init_on_ep(direct, NULL) == 0 && nvshmemt_efa_gda_state(&state) == 0);
  CHECK(efa_gda_region_register(state.handle, from, sizeof from, ALL, &source) == 0);
  CHECK(nvshmemt_efa_gda_fini() == 0);
  is_refused(nvshmemt_efa_gda_fini(), refused, "nothing is initialised");
  CHECK(efa_gda_region_close(source) == 0);

  /* A queue on the domain of the caller, and one beside it. The domain stays open. */
  options.info = info;
  for (int round = 0; round < 2; round++) {
    efa_gda_queue_handle *beside;
    options.beside = NULL, options.domain = direct, options.info = info;
    CHECK(efa_gda_queue_open(&options, &first) == 0);
    options.beside = first, options.domain = NULL, options.info = NULL;
    CHECK(efa_gda_queue_open(&options, &beside) == 0);
    CHECK(efa_gda_region_register(beside, from, sizeof from, ALL, &source) == 0);
    CHECK(efa_gda_queue_retain(first, source) == 0);
    CHECK(efa_gda_queue_close(beside) == 0);
    CHECK(efa_gda_region_close(source) == EFA_GDA_ERROR_BUSY);
    CHECK(efa_gda_queue_close(first) == 0 && efa_gda_region_close(source) == 0);
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"put", put},           {"errors", errors},     {"busy", busy},       {"operations", operations},
               {"counters", counters}, {"snapshot", snapshot}, {"timeout", timeout}, {"misuse", misuse},
               {"relaxed", relaxed},   {"borrowed", borrowed}, {"abandoned", abandoned}, {"refused", refused},
               {"order", order},       {"threads", threads},   {"wide", wide}};
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
      tests[i].run();
      return 0;
    }
  }
  fprintf(stderr, "usage: %s TEST\n", argv[0]);
  return 2;
}
