/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a kernel receives: the one definition of a mapped queue and of the smoke-test
 * put's arguments, shared by CUDA kernels, the host executor and Rust (through bindgen).
 * Plain C: no functions, the same layout for host and device compilers.
 *
 * Rule for whoever makes a queue: allocate it at its alignment (128 bytes), zero all of
 * it, then fill in the parts marked "geometry". Everything marked "engine" starts at
 * zero and belongs to the code in sq.h, rq.h and cq.h from then on; others may read it
 * (a snapshot of a hung queue is a copy of this struct), never write it.
 */
#ifndef EFA_GDA_QUEUE_H
#define EFA_GDA_QUEUE_H

#if defined(__CUDACC_RTC__)
/* NVRTC has no system headers; a program that has its own types says so. */
#ifndef EFA_GDA_HAVE_STDINT
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;
#endif
#else
#include <stdint.h>
#endif

/* A cache line of the GPU's L2. */
#define EFA_GDA_LINE 128
#ifdef __cplusplus
#define EFA_GDA_ALIGNED(bytes) alignas(bytes)
#else
#define EFA_GDA_ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif

/* How a wait or a call ended. Values are stable: hosts read them from memory. */
enum efa_gda_status {
  EFA_GDA_OK = 0,
  /* The bound ran out while waiting for a completion, for room in the send queue, or
   * for the turn to ring. The queue is poisoned from then on. */
  EFA_GDA_TIMEOUT_COMPLETION = 1,
  EFA_GDA_TIMEOUT_SLOTS = 2,
  EFA_GDA_TIMEOUT_LOCK = 3,
  /* A completion came back with a status other than 0; the error report has it. */
  EFA_GDA_COMPLETION_ERROR = 4,
  /* An earlier wait on this queue ran out; the adapter may still own its buffers. */
  EFA_GDA_POISONED = 5,
  /* The host raised the abort flag. */
  EFA_GDA_ABORTED = 6,
  /* An argument that no entry can express, or that the queue's geometry rules out. */
  EFA_GDA_BAD_ARGUMENT = 7,
  /* The queue lacks what was asked: inline write, a receive queue, a completion queue. */
  EFA_GDA_UNSUPPORTED = 8,
  /* A completion that breaks the rules: another queue pair's, or a kind not expected. */
  EFA_GDA_BAD_COMPLETION = 9,
  /* The host found the doorbell record to run backwards or past the ring, or to cover an
   * entry that was not written. It rang for none of that, and rings no more. */
  EFA_GDA_BAD_RECORD = 10,
  /* The host thread that rings for this queue has stopped, or let go of the queue. */
  EFA_GDA_PROXY_STOPPED = 11,
  /* An owned queue that is open elsewhere, or was never closed; as a poison: others posted
   * to it while a group owned it (post.h). */
  EFA_GDA_IN_USE = 12,
  /* The kernel never ran, or never wrote its result: the host stores this beforehand. */
  EFA_GDA_NOT_RUN = 255
};

/* What one request does. */
enum efa_gda_op {
  EFA_GDA_OP_WRITE = 0,
  EFA_GDA_OP_WRITE_IMM = 1,
  /* RDMA write whose bytes travel in a 128-byte entry. */
  EFA_GDA_OP_INLINE_WRITE = 2,
  EFA_GDA_OP_READ = 3,
  EFA_GDA_OP_SEND = 4,
  EFA_GDA_OP_SEND_IMM = 5,
  EFA_GDA_OP_INLINE_SEND = 6
};

/* efa_gda_sq::flags */
enum efa_gda_sq_flags {
  /* Request ids are 64 bits wide, in the entry and in its completion. */
  EFA_GDA_SQ_REQ_ID_64 = 1 << 0,
  /* `doorbell` is a record in ordinary memory that a host thread reads and rings from.
   * It takes the full 32-bit producer counter. */
  EFA_GDA_SQ_RECORD = 1 << 1,
  /* The adapter executes RDMA writes with inline data (128-byte entries). */
  EFA_GDA_SQ_INLINE_WRITE = 1 << 2
};

/* Geometry: the send queue as the adapter, or a host thread that stages for it, exposes it. */
struct efa_gda_sq {
  /* Slot 0, as the poster addresses it: num_entries * entry_size bytes, write only. */
  uint8_t *buffer;
  /* Takes the producer counter, 16 bits zero-extended (see EFA_GDA_SQ_RECORD). */
  volatile uint32_t *doorbell;
  /* 64 or 128 bytes. */
  uint32_t entry_size;
  /* A power of two, at most 32768. */
  uint32_t num_entries;
  /* Entries that may be written past the last doorbell the adapter has. At least 1; may
   * be larger than the ring. */
  uint32_t max_batch;
  /* enum efa_gda_sq_flags */
  uint32_t flags;
};

/* Geometry: the receive queue. */
struct efa_gda_rq {
  uint8_t *buffer;
  volatile uint32_t *doorbell;
  /* 16 bytes. */
  uint32_t entry_size;
  /* A power of two; 0 where the queue takes no receives. */
  uint32_t num_entries;
  uint32_t max_batch;
  uint32_t flags;
};

/* Geometry: the completion queue. */
struct efa_gda_cq {
  /* Null where nobody may read it: completion counters then say what completed, and an
   * error that they count ends waits by their bound. */
  uint8_t *buffer;
  /* Takes the consumer index after entries were read; null where the adapter has none,
   * or does not need it. */
  volatile uint32_t *doorbell;
  /* 16 or 32 bytes in practice. */
  uint32_t entry_size;
  /* A power of two. */
  uint32_t num_entries;
};

/* Geometry: hardware completion counters of the send queue; null pointers where there
 * are none. In flight = posted - success - error, so both are 0 when the queue is made and
 * count all that it sends, reads and writes. Both wrap at `wrap`, or at a multiple of it: a
 * power of two of at least four rings. With them the completion queue is read for errors
 * alone: nothing else completes there, and it holds at least two rings. Where `wrap` is 0
 * they never wrap, and are believed as they are: from any count on, and no error is looked
 * for. */
struct efa_gda_counters {
  const volatile uint64_t *success;
  const volatile uint64_t *error;
  uint64_t wrap;
};

/* Geometry: memory of the GPU in which producers that share a queue leave entries for
 * whoever holds the turn. Optional: without it they wait for the turn one by one. */
struct efa_gda_publication {
  /* num_entries * entry_size bytes of the send queue's entries, 16-byte aligned. */
  uint8_t *entries;
  /* num_entries words, zero at first: which ticket published this slot. */
  uint64_t *flags;
  /* A power of two, at least 64; 0: no stage. */
  uint32_t num_entries;
  uint32_t reserved;
};

/* Geometry: memory in which whoever reads the completion queue leaves the completions of
 * receives, as the adapter wrote them, until somebody takes them (rq.h). Optional: without
 * it they are only counted. */
struct efa_gda_inbox {
  /* num_entries * EFA_GDA_INBOX_ENTRY bytes, 16-byte aligned. */
  uint8_t *entries;
  /* A power of two; 0: no inbox. */
  uint32_t num_entries;
  uint32_t reserved;
};
/* Bytes of one: a completion, with zeroes behind it where the queue's are shorter. */
#define EFA_GDA_INBOX_ENTRY 32

/* Engine: slots handed out. One 64-bit word, 2^32 times the number of calls plus the
 * number of entries, so that one atomic gives both a ticket and a range of slots. */
struct efa_gda_reserve_words {
  uint64_t word;
};

#define EFA_GDA_LOCK_STATE_BITS 2

/* Engine: who may write the ring and ring its doorbell, and what the adapter is known to
 * have. sq.h states the protocol. */
struct EFA_GDA_ALIGNED(16) efa_gda_lock_words {
  /* A reserve word, shifted left by EFA_GDA_LOCK_STATE_BITS: all before it are served. The low
   * bits say who has the turn (ticket_lock.h); 0: the owner of that word. */
  uint64_t serving;
  /* Producer counter of the last doorbell. */
  uint32_t doorbell_index;
  /* A doorbell that the adapter has for sure: rung before a system fence that completed. */
  uint32_t confirmed_index;
};

/* Engine: the first error, and how many there were. */
struct efa_gda_error_words {
  /* Completions with a status other than 0. */
  uint32_t count;
  /* 1 once the report below is whole. */
  uint32_t reported;
  /* enum efa_io_comp_status of the first one; unknown codes as they came. */
  uint32_t completion_status;
  uint32_t reserved;
  uint64_t request_id;
  /* enum efa_gda_status that poisoned the queue; 0: it is in order. */
  uint32_t poison;
};

/* Engine: the completion queue's consumer. */
struct efa_gda_completion_words {
  /* 1 while a thread polls. */
  uint32_t lock;
  /* Completions read, modulo 2^32: gives the index and the phase expected. */
  uint32_t consumed;
  /* Send completions read, good and bad, modulo 2^32. */
  uint32_t completed;
  /* Posted receives whose completions were read, modulo 2^32. */
  uint32_t received;
  /* Completions left in the inbox, modulo 2^32, and those that found it full. */
  uint32_t inboxed;
  uint32_t lost;
};

/* Engine: the receive queue's producer. */
struct efa_gda_receive_words {
  uint32_t lock;
  uint32_t posted;
  uint32_t doorbell_index;
  /* Completions taken from the inbox, modulo 2^32. */
  uint32_t taken;
};

/* A mapped queue. */
struct EFA_GDA_ALIGNED(EFA_GDA_LINE) efa_gda_queue {
  /* Geometry: constant while the queue lives. */
  struct efa_gda_sq sq;
  struct efa_gda_rq rq;
  struct efa_gda_cq cq;
  struct efa_gda_counters counters;
  struct efa_gda_publication publication;
  /* Geometry: a word that the host sets to stop every wait; may be null. 1 ends waits with
   * EFA_GDA_ABORTED, another enum efa_gda_status with that. */
  const volatile uint32_t *abort;
  /* Geometry: bytes that one RDMA request, one SEND, may carry. */
  uint64_t max_rdma_size;
  uint32_t max_msg_size;
  /* Geometry: inline bytes that one entry may carry. */
  uint32_t max_inline;
  /* Geometry: this queue pair's number, as completions name it. */
  uint32_t qpn;
  /* Geometry: enum efa_io_processing_hint for every entry. */
  uint32_t hints;
  struct efa_gda_inbox inbox;

  /* Engine. What everyone who posts looks at lies on one line, for one round trip; what
   * readers of completions, and who posts receives, write lies on others. */
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_reserve_words reserve;
  struct efa_gda_lock_words lock;
  struct efa_gda_error_words error;
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_completion_words completion;
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_receive_words receive;
};

/* Where requests go. */
struct efa_gda_peer {
  uint16_t ah;
  uint16_t qpn;
  uint32_t qkey;
};

/* efa_gda_put_args::flags */
enum efa_gda_put_flags {
  /* Write entries only, and ring once at the end (or where max_batch asks for it). */
  EFA_GDA_PUT_AGGREGATE = 1 << 0,
  /* Return when everything is rung, without waiting for completions. */
  EFA_GDA_PUT_NO_WAIT = 1 << 1,
  /* Every request carries the immediate, whatever the operation; not reads. */
  EFA_GDA_PUT_IMMEDIATE = 1 << 2,
  /* Request i carries immediate + i. */
  EFA_GDA_PUT_COUNT_IMMEDIATE = 1 << 3,
  /* Sends go on with second_bytes at second_address (EFA_GDA_OP_SEND, EFA_GDA_OP_SEND_IMM). */
  EFA_GDA_PUT_TWO_PIECES = 1 << 4
};

/* What a put did; written by the kernel when it ends. */
struct efa_gda_put_result {
  /* enum efa_gda_status */
  uint32_t status;
  /* enum efa_io_comp_status of the first error completion; 0 otherwise. */
  uint32_t completion_status;
  /* The request that failed, where status is EFA_GDA_COMPLETION_ERROR. */
  uint64_t request_id;
  /* Entries rung, and completions read, by this put. A request longer than the queue's
   * max_rdma_size takes several entries. */
  uint64_t posted;
  uint64_t completed;
};

/* Arguments of efa_gda_put_kernel: `count` requests of `bytes` bytes, request i at
 * address + i * stride on both sides. */
struct efa_gda_put_args {
  struct efa_gda_queue *queue;
  struct efa_gda_put_result *result;
  struct efa_gda_peer peer;
  /* enum efa_gda_op */
  uint32_t op;
  /* enum efa_gda_put_flags */
  uint32_t flags;
  uint64_t local_address;
  uint64_t remote_address;
  uint32_t lkey;
  uint32_t rkey;
  uint64_t bytes;
  uint64_t count;
  uint64_t local_stride;
  uint64_t remote_stride;
  uint32_t immediate;
  uint32_t reserved;
  /* Bound of each wait. */
  uint64_t timeout_ns;
  /* See EFA_GDA_PUT_TWO_PIECES; request i at second_address + i * local_stride. */
  uint64_t second_address;
  uint32_t second_lkey;
  uint32_t second_bytes;
};

/* What a call of the receive kernel did; written by the kernel when it ends. */
struct efa_gda_receive_result {
  /* enum efa_gda_status */
  uint32_t status;
  /* Of receives posted, the request id of the first; completions carry its low 16 bits. */
  uint32_t first;
  /* Receives rung, or completions taken. */
  uint32_t count;
  uint32_t reserved;
};

/* Arguments of efa_gda_receive_kernel (kernels/receive.cu). */
struct efa_gda_receive_args {
  struct efa_gda_queue *queue;
  struct efa_gda_receive_result *result;
  /* Null: posts `count` receives of `length` bytes, the i-th at address + i * stride.
   * Otherwise takes up to `count` completions of receives, EFA_GDA_INBOX_ENTRY bytes each,
   * into memory of as much, 16-byte aligned. */
  uint8_t *into;
  uint64_t address;
  uint64_t stride;
  /* Bound of the wait for room, or for the first completion. */
  uint64_t timeout_ns;
  uint32_t lkey;
  uint32_t length;
  uint32_t count;
  uint32_t reserved;
};

/* What __nvshmem_efa_test_put_kernel works on: a variable of its module, of this name
 * (EFA_GDA_TEST_PUT_TARGET), that the host sets before the launch. */
struct efa_gda_test_put {
  struct efa_gda_queue *queue;
  struct efa_gda_put_result *result;
  struct efa_gda_peer peer;
  uint64_t timeout_ns;
};
/* Arguments of efa_gda_load_kernel, which tests and benchmarks use to load queues: each
 * group of each block makes `calls` posts of `per_call` entries to queue (block modulo
 * queue_count). Entry i of call c of group g (counted over the grid) is an RDMA write of
 * 64 bytes whose remote address is g << 48 | c << 16 | i. */
struct efa_gda_load_args {
  struct efa_gda_queue *queues;
  /* One word for each group: the enum efa_gda_status it ended with. */
  uint32_t *status;
  struct efa_gda_peer peer;
  uint32_t queue_count;
  /* enum efa_gda_load_sharing */
  uint32_t sharing;
  /* Threads of a group: 1, or a warp (32), or 0 for the whole block. */
  uint32_t group;
  uint32_t calls;
  uint32_t per_call;
  /* Every how many calls one rings; the others leave the doorbell to it. 0 and 1: each. */
  uint32_t ring_every;
  /* Every how many calls a group waits for quiet, and EFA_GDA_BAD_COMPLETION is how it ends where
   * something that was posted before is not done then. 0: never. */
  uint32_t quiet_every;
  uint32_t reserved;
  uint32_t lkey;
  uint32_t rkey;
  uint64_t timeout_ns;
};
enum efa_gda_load_sharing { EFA_GDA_LOAD_OWNED = 0, EFA_GDA_LOAD_SHARED = 1 };

#define EFA_GDA_TEST_PUT_TARGET "efa_gda_test_put_target"

#endif
