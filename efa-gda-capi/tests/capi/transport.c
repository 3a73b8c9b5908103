/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A transport in C on libefa_gda, on the first adapter that libfabric finds. The argument names the test to run. Prints
 * nothing and returns 0 if the test passes.
 */
#define _GNU_SOURCE /* dlvsym */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static efa_gda_domain *domain;
static efa_gda_mapped *first, *second;
static efa_gda_region *source, *target;
static struct efa_gda_peer peer;
static unsigned char from[BYTES * COUNT], to[BYTES * COUNT];

static void introduce(efa_gda_mapped *to_queue, efa_gda_mapped *of, struct efa_gda_peer *out) {
  unsigned char address[64];
  size_t length = 1;
  CHECK(efa_gda_mapped_address(of, address, &length) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(length > 1 && length <= sizeof address);
  CHECK(efa_gda_mapped_address(of, address, &length) == 0);
  CHECK(efa_gda_mapped_insert_peer(to_queue, address, length, out) == 0);
}

/* The GPU that EFA_GDA_TEST_GPU numbers drives the first queue; without the variable, the host does. EFA_GDA_TEST_VERBS
 * opens the adapter through rdma-core alone. */
static void open_domain(void) {
  if (getenv("EFA_GDA_TEST_VERBS") != NULL) {
    CHECK(efa_gda_domain_open_verbs(NULL, 0, &domain) == 0);
  } else {
    CHECK(efa_gda_domain_open(NULL, 0, &domain) == 0);
  }
}

/* Opens the first queue with these flags, and the second one with a counter, or none. */
static void open_queues(uint32_t flags, efa_gda_counter *counter, uint64_t counted) {
  const char *gpu = getenv("EFA_GDA_TEST_GPU");
  struct efa_gda_mapped_attr attr = {sizeof attr, 0, 0, -1, EFA_GDA_DOORBELL_AUTO};
  struct efa_gda_peer back;
  if (gpu != NULL) attr.gpu = atoi(gpu);
  attr.flags = flags;
  CHECK(efa_gda_mapped_open(domain, &attr, &first) == 0);
  attr.gpu = -1;
  attr.flags = 0;
  attr.counter = counter;
  attr.counted = counted;
  CHECK(efa_gda_mapped_open(domain, &attr, &second) == 0);
  introduce(second, first, &back);
  introduce(first, second, &peer);
  for (size_t i = 0; i < sizeof from; i++) from[i] = (unsigned char)(i * 131 + i / 251);
  CHECK(efa_gda_region_register(domain, from, sizeof from, ALL, &source) == 0);
  CHECK(efa_gda_region_register(domain, to, sizeof to, ALL, &target) == 0);
}

static void open_all(void) {
  open_domain();
  open_queues(0, NULL, 0);
}

static struct efa_gda_work write_all(void) {
  struct efa_gda_region_info info = {sizeof info};
  CHECK(efa_gda_region_describe(target, &info) == 0);
  CHECK(info.address == (uint64_t)(uintptr_t)to && info.length == sizeof to && info.is_dmabuf == 0);
  /* The last 0 is timeout_ns: the default bound. */
  struct efa_gda_work write = {sizeof write, peer, source, 0, info.address, info.rkey, EFA_GDA_OP_WRITE, BYTES, COUNT, 0};
  return write;
}

static void close_all(void) {
  CHECK(efa_gda_mapped_close(first) == 0);
  CHECK(efa_gda_mapped_close(second) == 0);
  CHECK(efa_gda_region_close(source) == 0);
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(efa_gda_domain_close(domain) == 0);
}

static void put(void) {
  struct efa_gda_mapped_info info = {sizeof info};
  struct efa_gda_progress progress = {sizeof progress};
  open_all();
  CHECK(efa_gda_mapped_describe(first, &info) == 0);
  CHECK(info.entry_size == 64 && info.num_entries > 0 && info.max_batch > 0 && info.completions >= info.num_entries);
  CHECK(info.doorbell == EFA_GDA_DOORBELL_DIRECT && info.completions_in_gpu <= 1 && info.qpn != peer.qpn);
  CHECK((info.flags & EFA_GDA_MAPPED_RELAYED) == (getenv("EFA_GDA_TEST_RELAYED") ? EFA_GDA_MAPPED_RELAYED : 0));
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_mapped_execute(first, &write) == 0);
  CHECK(memcmp(from, to, sizeof to) == 0);
  CHECK(efa_gda_mapped_wait(first, 1000000000) == 0 && efa_gda_mapped_wait(first, 0) == 0);
  CHECK(efa_gda_mapped_poll(first, &progress) == 0);
  CHECK(progress.reserved == COUNT && progress.doorbell_index == COUNT && progress.completed == COUNT);
  CHECK(progress.in_flight == 0 && progress.errors == 0 && progress.poison == EFA_GDA_OK);
  close_all();
}

/* Writes to a region with relaxed ordering are late on this software adapter, until the region is closed. */
static void relaxed(void) {
  struct efa_gda_region_info info = {sizeof info};
  efa_gda_region *region;
  size_t same = 0;
  open_all();
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(efa_gda_region_register(domain, to, sizeof to, EFA_GDA_ACCESS_RELAXED_ORDERING, &region) ==
        EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(domain, to, sizeof to, ALL | EFA_GDA_ACCESS_RELAXED_ORDERING, &target) == 0);
  CHECK(efa_gda_region_describe(target, &info) == 0 && info.relaxed_ordering == 1);
  CHECK(efa_gda_region_describe(source, &info) == 0 && info.relaxed_ordering == 0);
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_mapped_execute(first, &write) == 0);
  for (size_t i = 0; i < COUNT; i++) same += memcmp(from + i * BYTES, to + i * BYTES, BYTES) == 0;
  CHECK(same > 0 && same < COUNT);
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(memcmp(from, to, sizeof to) == 0);
  CHECK(efa_gda_region_register(domain, to, sizeof to, ALL, &target) == 0);
  close_all();
}

static void errors(void) {
  struct efa_gda_progress progress = {sizeof progress};
  open_all();
  struct efa_gda_work write = write_all();
  write.rkey ^= 0x5555;
  write.count = 1;
  CHECK(efa_gda_mapped_execute(first, &write) == EFA_GDA_ERROR_COMPLETION);
  CHECK(strstr(efa_gda_last_error(), "remote") != NULL);
  CHECK(efa_gda_mapped_poll(first, &progress) == 0);
  CHECK(progress.errors == 1 && progress.first_status == 7 && progress.first_request == 0);
  write.count = COUNT + 1;
  CHECK(efa_gda_mapped_execute(first, &write) == EFA_GDA_ERROR_ARGUMENT);
  close_all();
}

/* Every operation once. The second queue receives. */
static void operations(void) {
  struct efa_gda_receives receives = {sizeof receives, NULL, 0, BYTES, BYTES, 0, 4, 0};
  struct efa_gda_received got[8];
  uint32_t id = 9, posted = 9, count = 9;
  open_all();
  struct efa_gda_work work = write_all();
  work.count = 1;
  receives.region = target;
  receives.offset = BYTES * 8;
  CHECK(efa_gda_mapped_receive(second, got, 8, &count, 1000000) == EFA_GDA_ERROR_TIMEOUT && count == 0);
  CHECK(efa_gda_mapped_post_receives(second, &receives, &id, &posted) == 0 && id == 0 && posted == 4);
  work.op = EFA_GDA_OP_SEND;
  CHECK(efa_gda_mapped_execute(first, &work) == 0);
  CHECK(efa_gda_mapped_receive(second, got, 8, &count, 0) == 0 && count == 1);
  CHECK(got[0].flags == EFA_GDA_RECEIVED_CONSUMED && got[0].receive == 0 && got[0].status == 0);
  CHECK(got[0].length == BYTES && got[0].arrival == EFA_GDA_ARRIVAL_MESSAGE && got[0].source_ah != 0xffff);
  CHECK(memcmp(to + BYTES * 8, from, BYTES) == 0);
  work.op = EFA_GDA_OP_SEND_IMM;
  work.immediate = 0x12345678;
  CHECK(efa_gda_mapped_execute(first, &work) == 0);
  work.op = EFA_GDA_OP_INLINE_SEND;
  work.bytes = 16;
  CHECK(efa_gda_mapped_execute(first, &work) == 0);
  CHECK(efa_gda_mapped_receive(second, got, 8, &count, 0) == 0);
  if (count == 1) {
    uint32_t rest = 0;
    CHECK(efa_gda_mapped_receive(second, got + 1, 7, &rest, 0) == 0 && rest == 1);
  }
  CHECK(got[0].flags == (EFA_GDA_RECEIVED_CONSUMED | EFA_GDA_RECEIVED_IMMEDIATE) && got[0].immediate == 0x12345678);
  CHECK(got[1].flags == EFA_GDA_RECEIVED_CONSUMED && got[1].length == 16);
  CHECK(memcmp(to + BYTES * 10, from, 16) == 0);
  work.op = EFA_GDA_OP_WRITE_IMM;
  work.bytes = BYTES;
  CHECK(efa_gda_mapped_execute(first, &work) == 0);
  CHECK(efa_gda_mapped_receive(second, got, 8, &count, 0) == 0 && count == 1);
  CHECK(got[0].arrival == EFA_GDA_ARRIVAL_WRITE && got[0].immediate == 0x12345678 && memcmp(to, from, BYTES) == 0);
  /* A read of what the peer has into the beginning of the source. */
  to[0] ^= 0xff;
  work.op = EFA_GDA_OP_READ;
  CHECK(efa_gda_mapped_execute(first, &work) == 0 && from[0] == to[0]);
  work.op = EFA_GDA_OP_INLINE_WRITE; /* Only 128-byte entries carry it. */
  CHECK(efa_gda_mapped_execute(first, &work) == EFA_GDA_ERROR_UNSUPPORTED);
  work.op = 7;
  CHECK(efa_gda_mapped_execute(first, &work) == EFA_GDA_ERROR_ARGUMENT);
  /* A receive that reaches past the region, and one that is too long. */
  receives.offset = sizeof to - BYTES;
  CHECK(efa_gda_mapped_post_receives(second, &receives, &id, &posted) == EFA_GDA_ERROR_ARGUMENT && posted == 0);
  receives.bytes = 65536;
  CHECK(efa_gda_mapped_post_receives(second, &receives, NULL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_receive(second, got, 0, &count, 0) == EFA_GDA_ERROR_ARGUMENT);
  close_all();
}

/* Run where the provider has counters. The queue counts its own requests, and its peer those that arrive. */
static void counters(void) {
  struct efa_gda_counter_info words = {sizeof words};
  struct efa_gda_mapped_info info = {sizeof info};
  struct efa_gda_received got;
  efa_gda_counter *counter;
  uint64_t successes = 9, failed = 9;
  uint32_t count;
  int verbs = getenv("EFA_GDA_TEST_VERBS") != NULL;
  open_domain();
  CHECK(efa_gda_counter_open(domain, -1, &counter) == 0);
  CHECK(efa_gda_counter_describe(counter, &words) == 0);
  CHECK(words.gpu == -1 && words.success % 8 == 0 && words.error % 8 == 0 && words.success != words.error);
  open_queues(verbs ? 0 : EFA_GDA_MAPPED_COUNTERS, counter, EFA_GDA_ACCESS_REMOTE_WRITE);
  CHECK(efa_gda_mapped_describe(first, &info) == 0);
  if (!verbs) {
    CHECK(info.flags == EFA_GDA_MAPPED_COUNTERS && info.receives == 0);
    CHECK(efa_gda_mapped_receive(first, &got, 1, &count, 1) == EFA_GDA_ERROR_UNSUPPORTED);
  }
  CHECK(efa_gda_counter_close(counter) == EFA_GDA_ERROR_BUSY);
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_mapped_execute(first, &write) == 0 && memcmp(from, to, sizeof to) == 0);
  CHECK(efa_gda_counter_read(counter, &successes, &failed) == 0 && successes == COUNT && failed == 0);
  CHECK(*(const volatile uint64_t *)(uintptr_t)words.success == COUNT);
  CHECK(efa_gda_mapped_close(first) == 0 && efa_gda_mapped_close(second) == 0);
  CHECK(efa_gda_region_close(source) == 0 && efa_gda_region_close(target) == 0);
  CHECK(efa_gda_domain_close(domain) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_counter_close(counter) == 0);
  CHECK(efa_gda_counter_close(counter) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_domain_close(domain) == 0);
}

static void busy(void) {
  struct efa_gda_queue *device = NULL;
  open_all();
  CHECK(efa_gda_mapped_retain(first, source) == 0);
  CHECK(efa_gda_region_close(source) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_domain_close(domain) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_mapped_begin_launch(first, &device) == 0);
  CHECK(device != NULL && device->sq.entry_size == 64 && device->sq.num_entries > 0);
  CHECK(efa_gda_mapped_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_mapped_destroy(first) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_mapped_wait(first, 1000) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_mapped_end_launch(first) == 0);
  CHECK(efa_gda_mapped_end_launch(first) == EFA_GDA_ERROR_ARGUMENT);
  /* The state after a kernel that posted one entry and deferred its doorbell. */
  uint64_t before = device->reserve.word;
  device->reserve.word += 1;
  device->turn.word = device->reserve.word << EFA_GDA_TURN_BITS | 1;
  CHECK(efa_gda_mapped_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(strstr(efa_gda_last_error(), "never rung for (1)") != NULL);
  CHECK(strstr(efa_gda_last_error(), "efa_gda_mapped_wait") != NULL);
  device->reserve.word = before;
  device->turn.word = before << EFA_GDA_TURN_BITS;
  close_all();
}

/* Run with a GPU whose memory the host can write. */
static void abandoned(void) {
  struct efa_gda_queue *device = NULL, *again = NULL;
  open_all();
  CHECK(efa_gda_mapped_begin_launch(first, &device) == 0);
  /* The state after a kernel that owned the queue and did not close its Sender. */
  device->reserve.word += (uint64_t)1 << 32;
  CHECK(efa_gda_mapped_end_launch(first) == 0);
  CHECK(efa_gda_mapped_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(strstr(efa_gda_last_error(), "without closing its Sender") != NULL);
  /* A call that fails changes nothing: the queue is still mapped into the GPU. */
  CHECK(efa_gda_mapped_begin_launch(first, &again) == 0);
  CHECK(again == device && device->reserve.word >> 32 == 1);
  CHECK(efa_gda_mapped_end_launch(first) == 0);
  CHECK(efa_gda_mapped_destroy(first) == 0);
}

static void snapshot(void) {
  char text[4096], small[8];
  size_t length = 0;
  struct efa_gda_queue state;
  open_all();
  struct efa_gda_work write = write_all();
  CHECK(efa_gda_mapped_execute(first, &write) == 0);
  CHECK(efa_gda_mapped_snapshot(first, text, sizeof text, &length, &state) == 0);
  CHECK(length == strlen(text) && strstr(text, "1000 reserved, 1000 rung") != NULL);
  CHECK((uint32_t)(state.turn.word >> EFA_GDA_TURN_BITS) == COUNT && state.completion.completed == COUNT);
  CHECK(efa_gda_mapped_snapshot(first, small, sizeof small, &length, NULL) == 0);
  CHECK(strlen(small) == sizeof small - 1 && length > sizeof small && memcmp(small, text, 7) == 0);
  CHECK(efa_gda_mapped_snapshot(first, NULL, 0, NULL, NULL) == 0);
  close_all();
}

/* Run with SOFTEFA_DELAY_US, longer than the bound: requests do not complete in time. */
static void timeout(void) {
  struct efa_gda_progress progress = {sizeof progress};
  open_all();
  struct efa_gda_work write = write_all();
  write.count = 3;
  write.timeout_ns = 50000000;
  CHECK(efa_gda_mapped_execute(first, &write) == EFA_GDA_ERROR_DEVICE);
  CHECK(efa_gda_mapped_poll(first, &progress) == 0);
  CHECK(progress.in_flight == 3 && progress.poison == EFA_GDA_TIMEOUT_COMPLETION);
  CHECK(efa_gda_region_close(source) == EFA_GDA_ERROR_BUSY);
  CHECK(efa_gda_mapped_close(first) == EFA_GDA_ERROR_BUSY);
  CHECK(strstr(efa_gda_last_error(), "destroy it (in C: efa_gda_mapped_destroy)") != NULL);
  CHECK(strstr(efa_gda_last_error(), "wait") == NULL && strstr(efa_gda_last_error(), "::") == NULL);
  /* The queue stays poisoned. */
  CHECK(efa_gda_mapped_abort(first, 1) == 0 && efa_gda_mapped_abort(first, 0) == 0);
  CHECK(efa_gda_mapped_wait(first, 0) == EFA_GDA_ERROR_DEVICE);
  CHECK(efa_gda_mapped_execute(first, &write) == EFA_GDA_ERROR_DEVICE);
  CHECK(efa_gda_mapped_destroy(first) == 0);
  CHECK(efa_gda_mapped_close(second) == 0);
  CHECK(efa_gda_region_close(source) == 0);
  CHECK(efa_gda_region_close(target) == 0);
  CHECK(efa_gda_domain_close(domain) == 0);
}

static void misuse(void) {
  struct efa_gda_mapped_attr attr = {sizeof attr, 0, 0, -1, EFA_GDA_DOORBELL_AUTO};
  struct efa_gda_mapped_info info = {sizeof info};
  struct efa_gda_queue *device;
  efa_gda_mapped *queue;
  efa_gda_domain *none;
  efa_gda_region *region;
  efa_gda_counter *counter;
  size_t length = 0;
  CHECK(efa_gda_api_version() == EFA_GDA_API_VERSION);
  CHECK(efa_gda_domain_open(NULL, 0, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_domain_open(NULL, 1u << 31, &none) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_domain_open("\xff", 0, &none) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_domain_open("no-such-adapter", 0, &none) == EFA_GDA_ERROR_NO_ADAPTER);
  CHECK(strstr(efa_gda_last_error(), "no-such-adapter") != NULL);
  CHECK(efa_gda_domain_borrow(NULL, NULL, &none) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_domain_close(NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_open(NULL, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  open_all();
  CHECK(efa_gda_mapped_open(domain, NULL, &queue) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_open(domain, &attr, NULL) == EFA_GDA_ERROR_ARGUMENT);
  attr.size = 8;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.size = sizeof attr;
  attr.doorbell = 9;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.doorbell = 0;
  attr.gpu = -2;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.gpu = 4096;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_GPU);
  CHECK(strstr(efa_gda_last_error(), "gpu = -1 is for the host's processor") != NULL);
  attr.gpu = -1;
  attr.flags = 1u << 31;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.flags = EFA_GDA_MAPPED_COUNTERS | EFA_GDA_MAPPED_REQUEST_TABLE;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) < 0);
  attr.flags = 0;
  attr.counted = EFA_GDA_ACCESS_WRITE;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.counted = 0;
  attr.flags = EFA_GDA_MAPPED_RELAYED;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.flags = 0;
  attr.store_width = 4;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.store_width = EFA_GDA_STORE_WIDTH_EIGHT;
  attr.requests = 64;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  attr.requests = 0;
  attr.completions = 16;
  CHECK(efa_gda_mapped_open(domain, &attr, &queue) == EFA_GDA_ERROR_ARGUMENT);
  /* A handle of another kind, and null pointers. */
  CHECK(efa_gda_mapped_describe((efa_gda_mapped *)domain, &info) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_describe(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_begin_launch(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_address(first, NULL, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_address(first, NULL, &length) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_insert_peer(first, "x", 0, &peer) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_insert_peer(first, "xyz", 3, &peer) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(strstr(efa_gda_last_error(), "length 3;") != NULL && strstr(efa_gda_last_error(), "32") != NULL);
  CHECK(efa_gda_mapped_insert_peer(first, NULL, 32, &peer) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_execute(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  uint32_t posted = 7;
  CHECK(efa_gda_mapped_post_receives(first, NULL, NULL, &posted) == EFA_GDA_ERROR_ARGUMENT && posted == 0);
  CHECK(efa_gda_mapped_receive(first, NULL, 1, NULL, 1) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_counter_open(domain, -2, &counter) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_counter_open(domain, -1, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_counter_close((efa_gda_counter *)first) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_retain(first, NULL) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(domain, NULL, 8, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register(domain, to, 8, 0, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register_gpu(domain, 0, 8, 0, -1, 0, ALL, &region) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_region_register_gpu(domain, 4096, 8, 0, -1, 0, ALL, &region) == EFA_GDA_ERROR_UNSUPPORTED);
  CHECK(efa_gda_mapped_abort(first, 1) == 0 && efa_gda_mapped_abort(first, 0) == 0);
  efa_gda_mapped *closed = first;
  close_all();
  /* Closed handles. */
  CHECK(efa_gda_mapped_close(closed) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_begin_launch(closed, &device) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_mapped_abort(closed, 1) == EFA_GDA_ERROR_ARGUMENT);
  CHECK(efa_gda_domain_close(domain) == EFA_GDA_ERROR_ARGUMENT);
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

static void is_refused(int code, int expected, const char *why) {
  CHECK(code == expected);
  CHECK(strstr(efa_gda_last_error(), why) != NULL);
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
  is_refused(nvshmemt_efa_gda_init_on_ep(plain, NULL), EFA_GDA_ERROR_UNSUPPORTED, "efa-direct");
  is_refused(efa_gda_domain_borrow(plain, info, &domain), EFA_GDA_ERROR_UNSUPPORTED, "the fabric \"efa\"");
  struct fid_domain *direct = opened_by_libfabric("efa-direct", &info);
  struct fid_ep *ep = enabled_endpoint(direct, info);
  is_refused(nvshmemt_efa_gda_init_on_ep(direct, unmapped), refused, "cannot read");
  is_refused(nvshmemt_efa_gda_init_on_ep(direct, direct), refused, "is a fid_domain");
  is_refused(nvshmemt_efa_gda_init_on_ep(ep, NULL), refused, "is a fid_ep");
  is_refused(efa_gda_domain_borrow((struct fid_domain *)ep, info, &domain), refused, "is a fid_ep");
  is_refused(efa_gda_domain_borrow(direct, unmapped, &domain), refused, "cannot read");
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
    CHECK(nvshmemt_efa_gda_state(&state) == 0 && state.size == sizeof state && state.domain != NULL);
    CHECK(state.mapped != NULL && state.gpu == -1 && state.store_bytes == 8);
    CHECK(state.queue->sq.num_entries > 0 && state.queue->qpn != number);
    /* The caller can neither close the queue nor end the launch that init began. */
    is_refused(efa_gda_mapped_close(state.mapped), EFA_GDA_ERROR_BUSY, "nvshmemt_efa_gda_fini");
    is_refused(efa_gda_mapped_end_launch(state.mapped), refused, "no launch");
    is_refused(efa_gda_mapped_destroy(state.mapped), EFA_GDA_ERROR_BUSY, "nvshmemt_efa_gda_fini");
    is_refused(efa_gda_domain_close(state.domain), EFA_GDA_ERROR_BUSY, "");
    CHECK(efa_gda_mapped_begin_launch(state.mapped, &state.queue) == 0);
    is_refused(nvshmemt_efa_gda_fini(), EFA_GDA_ERROR_BUSY, "1 launch(es)");
    CHECK(efa_gda_mapped_end_launch(state.mapped) == 0);
    CHECK(nvshmemt_efa_gda_fini() == 0);
  }
  is_refused(nvshmemt_efa_gda_fini(), refused, "nothing is initialised");
  CHECK(ep->cm->getname(&ep->fid, after, &length) == 0 && memcmp(address, after, length) == 0);

  /* Regions keep the domain's handle, which the caller then closes. */
  CHECK(nvshmemt_efa_gda_init_on_ep(direct, NULL) == 0 && nvshmemt_efa_gda_state(&state) == 0);
  CHECK(efa_gda_region_register(state.domain, from, sizeof from, ALL, &source) == 0);
  is_refused(nvshmemt_efa_gda_fini(), EFA_GDA_ERROR_BUSY, "1 region");
  is_refused(nvshmemt_efa_gda_fini(), refused, "nothing is initialised");
  CHECK(efa_gda_region_close(source) == 0 && efa_gda_domain_close(state.domain) == 0);

  /* The borrowed domain stays open after its handle is closed. */
  for (int round = 0; round < 2; round++) {
    CHECK(efa_gda_domain_borrow(direct, info, &domain) == 0);
    CHECK(efa_gda_region_register(domain, from, sizeof from, ALL, &source) == 0);
    CHECK(efa_gda_domain_close(domain) == EFA_GDA_ERROR_BUSY);
    CHECK(efa_gda_region_close(source) == 0 && efa_gda_domain_close(domain) == 0);
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(void);
  } tests[] = {{"put", put},           {"errors", errors},     {"busy", busy},       {"operations", operations},
               {"counters", counters}, {"snapshot", snapshot}, {"timeout", timeout}, {"misuse", misuse},
               {"relaxed", relaxed},   {"borrowed", borrowed}, {"abandoned", abandoned}};
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
    if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
      tests[i].run();
      return 0;
    }
  }
  fprintf(stderr, "usage: %s put|errors|busy|operations|counters|snapshot|timeout|misuse|relaxed|borrowed|abandoned\n",
          argv[0]);
  return 2;
}
