/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A libcuda for tests on machines without a GPU: the calls that softefa makes, over "device
 * memory" whose addresses the processor cannot read. Copies happen when the stream is asked
 * whether it is done, not before, so that who does not wait sees old bytes.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_READY = 600, CAPTURE_UNSUPPORTED = 900 };
enum { GLOBAL = 0, RELAXED = 2 };
enum { BLOCKS = 64 };

struct block {
  uint64_t address;
  size_t length;
  unsigned char *bytes;
};
struct stream {
  void *to;
  const void *from;
  size_t length;
  int asked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[BLOCKS];
static int failure, hangs, answer, captures;
static __thread int current, mode = GLOBAL;

/* Memory of the fake GPU: an address that faults, and bytes elsewhere. */
uint64_t fake_alloc(size_t length) {
  void *place = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BLOCKS; i++) {
    if (blocks[i].length == 0) {
      blocks[i] = (struct block){(uint64_t)place, length, calloc(1, length)};
      pthread_mutex_unlock(&lock);
      return (uint64_t)place;
    }
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

static unsigned char *find(uint64_t address, size_t length, struct block *found) {
  for (int i = 0; i < BLOCKS; i++) {
    struct block b = blocks[i];
    if (address - b.address < b.length && length <= b.length - (address - b.address)) {
      if (found) *found = b;
      return b.bytes + (address - b.address);
    }
  }
  return NULL;
}

/* What a kernel would see and do. */
int fake_peek(uint64_t address, void *into, size_t length) {
  unsigned char *bytes = find(address, length, NULL);
  if (bytes) memcpy(into, bytes, length);
  return bytes ? 0 : -1;
}
int fake_poke(uint64_t address, const void *from, size_t length) {
  unsigned char *bytes = find(address, length, NULL);
  if (bytes) memcpy(bytes, from, length);
  return bytes ? 0 : -1;
}
/* Every copy from now on answers this; no copy from now on ends. */
void fake_fail(int code) { failure = code; }
void fake_hang(int yes) { hangs = yes; }
/* Who asks whether a stream is done is answered this, and nothing about the copy, which goes on. */
void fake_answer(int code) { answer = code; }
/* Some other thread captures a graph in the global mode. */
void fake_capture(int yes) { captures = yes; }
int fake_mode(void) { return mode; }

static int refused(void) { return captures && mode != RELAXED; }

int cuInit(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = &blocks[device];
  return SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) {
  current += context != NULL;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(void **context) {
  *context = NULL;
  return current-- > 0 ? SUCCESS : INVALID_CONTEXT;
}
int cuStreamCreate(void **stream, unsigned flags) {
  if (refused()) return CAPTURE_UNSUPPORTED;
  *stream = calloc(1, sizeof(struct stream));
  return current > 0 && flags == 1 ? SUCCESS : INVALID_CONTEXT;
}
int cuStreamQuery(void *handle) {
  struct stream *stream = handle;
  if (refused()) return CAPTURE_UNSUPPORTED;
  if (answer) return answer;
  if (hangs || stream->asked++ == 0) return NOT_READY;
  memcpy(stream->to, stream->from, stream->length);
  stream->length = 0;
  return SUCCESS;
}
int cuMemHostAlloc(void **memory, size_t length, unsigned flags) {
  (void)flags;
  if (refused()) return CAPTURE_UNSUPPORTED;
  *memory = malloc(length);
  return current > 0 ? SUCCESS : INVALID_CONTEXT;
}
static int copy(void *handle, void *to, const void *from, size_t length) {
  if (current == 0) return INVALID_CONTEXT;
  if (failure) return failure;
  if (!to || !from) return INVALID_VALUE;
  *(struct stream *)handle = (struct stream){to, from, length, 0};
  return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t length, void *stream) {
  return copy(stream, find(to, length, NULL), from, length);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t length, void *stream) {
  return copy(stream, to, find(from, length, NULL), length);
}
int cuThreadExchangeStreamCaptureMode(int *exchanged) {
  int before = mode;
  mode = *exchanged;
  *exchanged = before;
  return SUCCESS;
}
int cuPointerGetAttribute(void *answer, int attribute, uint64_t address) {
  struct block block;
  if (!find(address, 1, &block)) return INVALID_VALUE;
  switch (attribute) {
    case 2: *(unsigned *)answer = 2; return SUCCESS;
    case 9: *(int *)answer = 0; return SUCCESS;
    case 11: *(uint64_t *)answer = block.address; return SUCCESS;
    case 12: *(size_t *)answer = block.length; return SUCCESS;
    default: return INVALID_VALUE;
  }
}
int cuGetErrorName(int code, const char **name) {
  *name = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == NOT_READY ? "CUDA_ERROR_NOT_READY" : NULL;
  return *name ? SUCCESS : INVALID_VALUE;
}
