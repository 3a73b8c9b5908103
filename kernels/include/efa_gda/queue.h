/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The structs that kernels receive: a mapped queue, and the arguments of this library's kernels. CUDA kernels, the host
 * executor and Rust (through bindgen) share this definition. Plain C: no functions, one layout for host and device
 * compilers.
 *
 * The host that makes a queue must allocate it with its alignment (128 bytes), zero all of it, and then fill in the
 * members marked "Geometry". These are constant while device code can use the queue. The members marked "Engine" start
 * at zero. While device code can use the queue, only the device library writes them, as its headers state, and the host
 * may read them at any time: a snapshot of a hung queue is a copy of this struct. When a queue moves between host and
 * GPU, the host copies the "Engine" members and the contents of inbox and request table. If the GPU's copy of the
 * "Engine" members is lost, the host sets error.poison to EFA_GDA_NOT_RUN. If the contents of the inbox are lost, it
 * adds completion.inboxed - receive.taken to completion.lost and sets receive.taken to completion.inboxed. If the
 * contents of the request table are lost, it zeroes the member `requests`: the queue then has no table.
 */
#ifndef EFA_GDA_QUEUE_H
#define EFA_GDA_QUEUE_H

#if defined(__CUDACC_RTC__)
/* NVRTC has no system headers. A program with types of its own defines EFA_GDA_HAVE_STDINT. */
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

/* Bytes of a cache line of the GPU's L2. */
#define EFA_GDA_LINE 128
#ifdef __cplusplus
#define EFA_GDA_ALIGNED(bytes) alignas(bytes)
#else
#define EFA_GDA_ALIGNED(bytes) __attribute__((aligned(bytes)))
#endif

/* How a wait or a call ended. Values are stable: hosts read them from memory. A poisoned queue is out of service: a
 * Sender's later calls that have to wait or take a ticket return EFA_GDA_POISONED (post.h), and the adapter may still
 * access the buffers of its requests until the endpoint is destroyed. error.poison holds the first reason.
 *
 * The bound of a wait counts from the first time that the wait reads the clock, and again from each progress that it
 * reads: a request that completed and, for a turn, also a change of turn.word. (rq.h and signal.h state what counts as
 * progress there.) So a slow adapter ends a wait only if nothing completes for as long as the bound. Time in which the
 * waiting thread did not run does not count (Deadline in platform.h). */
enum efa_gda_status {
  EFA_GDA_OK = 0,
  /* The bound of a wait for completions ran out. If a Sender (post.h) returns this status or one of the next two, its
   * leader has poisoned the queue; the calls of rq.h poison nothing at a bound. */
  EFA_GDA_TIMEOUT_COMPLETION = 1,
  /* The bound of a wait for free slots of the send or receive queue ran out: too few requests or receives completed. */
  EFA_GDA_TIMEOUT_SLOTS = 2,
  /* The bound of a wait for a turn (turns.h), for receive.lock, for a lock of ibgda.h, or for a turn or a doorbell of
   * GIN (gin_post.h) ran out. */
  EFA_GDA_TIMEOUT_LOCK = 3,
  /* A request completed with a status other than 0, or may have (OVERWRITTEN STATUSES in requests.h).
   * error.completion_status and error.request_id describe the queue's first one. Does not poison the queue. */
  EFA_GDA_COMPLETION_ERROR = 4,
  /* The queue was poisoned before, or by a poll of this call that read a completion of another queue pair; error.poison
   * has the reason. */
  EFA_GDA_POISONED = 5,
  /* The host set the abort flag to 1. A wait of a Sender that ends so poisons the queue. */
  EFA_GDA_ABORTED = 6,
  /* An argument that no entry can express, or that exceeds a limit of the queue; a call on a closed handle; a group or
   * a queue that cannot post: a block of several dimensions, a warp or block with missing threads, sq.max_batch 0. */
  EFA_GDA_BAD_ARGUMENT = 7,
  /* The queue lacks a feature: inline write, RDMA, a receive queue, an inbox, a request table, or entries written by
   * stores of 16 bytes. */
  EFA_GDA_UNSUPPORTED = 8,
  /* A completion of another queue pair; or more completions than requests, or more requests in flight than the send
   * queue has slots: the counts are wrong. */
  EFA_GDA_BAD_COMPLETION = 9,
  /* A doorbell record ran backwards, or more than min(sq.num_entries, sq.max_batch) entries past the last doorbell, or
   * covered an entry that was not written. The doorbell proxy did not ring for it, and rings this queue no more. */
  EFA_GDA_BAD_RECORD = 10,
  /* The doorbell proxy has stopped or has detached the queue: it no longer rings for the queue, or no longer relays its
   * completions. */
  EFA_GDA_PROXY_STOPPED = 11,
  /* A group could not own the queue: another group owns it or posts to it, or an owner did not close it. As the reason
   * of a poison: another group took a ticket while a group owned the queue (post.h). */
  EFA_GDA_IN_USE = 12,
  /* Sender::test or, for a handle whose timeout is 0 on a queue with a request table, wait(), wait_own() and the
   * sending functions of signal.h: not all of the requests are done. Not a failure. */
  EFA_GDA_IN_FLIGHT = 13,
  /* The bound of a wait for a peer's signal ran out (signal.h); it counts from the last change of the word. Does not
   * poison the queue. */
  EFA_GDA_TIMEOUT_SIGNAL = 14,
  /* A post that does not wait (kPostTry in post.h): the queue has too few free slots. Posts nothing and harms nothing:
   * queue and handle remain usable. */
  EFA_GDA_NO_ROOM = 15,
  /* The kernel did not run, or did not write its result: the host stores this value before the launch. As the reason of
   * a poison: the queue's words were lost, or a kernel that failed may still write them. */
  EFA_GDA_NOT_RUN = 255
};

/* Operations of a request. */
enum efa_gda_op {
  EFA_GDA_OP_WRITE = 0,
  EFA_GDA_OP_WRITE_IMM = 1,
  /* RDMA write with the bytes in a 128-byte entry. */
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
  /* `doorbell` is a doorbell record: a word in memory from which the doorbell proxy rings. It takes all 32 bits of the
   * producer index. */
  EFA_GDA_SQ_RECORD = 1 << 1,
  /* The adapter executes RDMA writes with inline data (128-byte entries). */
  EFA_GDA_SQ_INLINE_WRITE = 1 << 2,
  /* Only stores of 8 bytes may write entries to the ring: the host sets it for an adapter's memory for which wider
   * stores were not qualified. */
  EFA_GDA_SQ_STORES_OF_8 = 1 << 3
};

/* Geometry: the send queue of the adapter, or a staging ring from which the doorbell proxy copies. */
struct efa_gda_sq {
  /* Slot 0, at its address for device code: num_entries * entry_size bytes, write-only. */
  uint8_t *buffer;
  /* Takes the low 16 bits of the producer index, zero-extended; with EFA_GDA_SQ_RECORD all 32 bits. */
  volatile uint32_t *doorbell;
  /* 64 or 128 bytes. */
  uint32_t entry_size;
  /* A power of two, at most 32768. */
  uint32_t num_entries;
  /* Batch window: entries that may be written past the last doorbell that the adapter has received. At least 1; may
   * exceed num_entries. */
  uint32_t max_batch;
  /* enum efa_gda_sq_flags */
  uint32_t flags;
};

/* Geometry: the receive queue. Its doorbell takes the low 16 bits of receive.posted, zero-extended. */
struct efa_gda_rq {
  uint8_t *buffer;
  volatile uint32_t *doorbell;
  /* 16 bytes. */
  uint32_t entry_size;
  /* A power of two, at most 32768; 0: the queue has no receive queue. */
  uint32_t num_entries;
  /* max_batch and flags are not used. */
  uint32_t max_batch;
  uint32_t flags;
};

/* Geometry: the completion queue. */
struct efa_gda_cq {
  /* Null where device code cannot read it. Such a queue needs completion counters. Once its error counter has counted
   * an error, no further request counts as completed, so waits end at their bound, unless counters.wrap is 0. */
  uint8_t *buffer;
  /* Takes the low 16 bits of the consumer index after entries were read. Null where the adapter has none or needs
   * none. */
  volatile uint32_t *doorbell;
  /* 16 or 32 bytes in practice. */
  uint32_t entry_size;
  /* A power of two; NO OVERRUN in cq.h and efa_gda_counters state the least. */
  uint32_t num_entries;
};

/* Geometry: hardware completion counters of the send queue; null pointers without any. Requests in flight = posted -
 * success - error. So both counters must be 0 when the queue is made, and count all requests of this queue and no
 * others. With only `error` null, failed requests are never counted, and waits for them run out.
 *   `wrap` must be 0 or a power of two of at least 4 * sq.num_entries. If it is not 0, each counter must wrap at `wrap`
 * or at a multiple of it. The completion queue is then read for errors only; it must have at least 2 * sq.num_entries
 * entries, and nothing else may complete on it. If it is 0, the counters never wrap, and device code does not read the
 * completion queue: an error only counts as a completion (cq.h). Without counters, `wrap` has no meaning. */
struct efa_gda_counters {
  const volatile uint64_t *success;
  const volatile uint64_t *error;
  uint64_t wrap;
};

/* Not used: earlier engines published entries here. It stays for the layout, and for programs that set it. */
struct efa_gda_publication {
  uint8_t *entries;
  uint64_t *flags;
  uint32_t num_entries;
  uint32_t reserved;
};

/* Geometry: the inbox, where the completion queue's reader copies completions of receives, as the adapter wrote
 * them, for take_received() (rq.h). Optional: without it they are only counted. */
struct efa_gda_inbox {
  /* num_entries * EFA_GDA_INBOX_ENTRY bytes, 16-byte aligned. */
  uint8_t *entries;
  /* A power of two; 0: no inbox. */
  uint32_t num_entries;
  uint32_t reserved;
};
/* Bytes of an inbox entry: a completion, followed by zeroes if the queue's completions are shorter. */
#define EFA_GDA_INBOX_ENTRY 32

/* Geometry: the request table, in memory of the GPU (requests.h): with it a group can wait for its own requests, and
 * is given the errors of its own requests. Optional, and only without completion counters: they say how many requests
 * completed, and the table needs to know which. A queue with a table needs a completion queue that device code
 * reads. */
struct efa_gda_requests {
  /* num_entries words of 16 bits, 8-byte aligned: by request, whether and how it completed. */
  uint16_t *done;
  /* num_entries words of 16 bits, 8-byte aligned: by request, the number of the handle that posted it. */
  uint16_t *posters;
  /* R: a power of two, at least 4 and sq.num_entries, at most 32768; 0: no table. LIMIT in requests.h relies on this.
   * All words start at zero, which is right only if the first request has index 0. So the host refuses a table once the
   * queue has posted. */
  uint32_t num_entries;
  uint32_t reserved;
};

/* Engine: the reserve word. */
struct EFA_GDA_ALIGNED(16) efa_gda_reserve_words {
  /* 2^32 * (calls that ring) + entries so far: one atomic add hands out a ticket, whose low half is the first slot of a
   * range (turns.h). While a group owns the queue, the low half is 2^31 away from the queue's next slot; the owner's
   * close() adds the owner's entries (post.h). */
  uint64_t word;
  uint64_t reserved;
};

/* A turn's word is its ticket, shifted left by this many bits, and in the low bits the entries that are not rung for.
 * */
#define EFA_GDA_TURN_BITS 12

/* Engine: the turn (turns.h). */
struct EFA_GDA_ALIGNED(16) efa_gda_turn_words {
  /* The low 52 bits of the ticket whose turn it is: all entries before its slot are in the ring. Low bits: how many of
   * these are not rung for. The adapter receives the last doorbell before all that is stored after a load of this word.
   * While a group owns the queue, the word is that of the moment at which it began. */
  uint64_t word;
  uint64_t reserved;
};

/* Engine: errors of the queue. */
struct efa_gda_error_words {
  /* Requests of this send queue that completed with a status other than 0, modulo 2^32. Failed receives are not
   * counted. It stays 0 on a queue whose cq.buffer is null, or with counters whose wrap is 0. */
  uint32_t count;
  /* 1: completion_status and request_id are valid. 2: they are being written. */
  uint32_t reported;
  /* enum efa_io_comp_status of the first error; may be a code that this enum lacks. */
  uint32_t completion_status;
  /* enum efa_gda_status that poisoned the queue first; 0: the queue is in service. */
  uint32_t poison;
  /* Request id of the first error. */
  uint64_t request_id;
  /* As completion_status and request_id, of the first error since the last put (efa_gda_put_args) began; put_status is
   * 0 without one. */
  uint64_t put_request_id;
  uint32_t put_status;
  uint32_t reserved;
};

/* Engine: the completion queue's consumer (cq.h). */
struct efa_gda_completion_words {
  /* 1 while a poller reads the completion queue or advances `consumed` (advance_completed() in cq.h). */
  uint32_t lock;
  /* The consumer index: completions read or, with counters, passed over unread, modulo 2^32. */
  uint32_t consumed;
  /* Requests that pollers have counted as completed, successfully or not, modulo 2^32. Waits of the send side see
   * progress by it. */
  uint32_t completed;
  /* Posted receives whose completions were read, modulo 2^32. */
  uint32_t received;
  /* Completions copied to the inbox, modulo 2^32. */
  uint32_t inboxed;
  /* Completions of receives dropped because the inbox was full, modulo 2^32. */
  uint32_t lost;
};

/* Engine: the request table's words (requests.h). */
struct efa_gda_request_words {
  /* All requests with an index before this one are done, modulo 2^32. */
  uint32_t oldest;
  /* Handles that took a number for the table, modulo 2^32. */
  uint32_t handles;
};

/* Engine: the receive queue's producer, and the inbox's consumer (rq.h). */
struct efa_gda_receive_words {
  /* 1 while a thread posts. */
  uint32_t lock;
  /* Producer index, modulo 2^32. */
  uint32_t posted;
  /* Doorbell producer index. */
  uint32_t doorbell_index;
  /* Completions taken from the inbox, modulo 2^32. */
  uint32_t taken;
  /* 1 while a thread takes. */
  uint32_t taking;
  uint32_t reserved;
};

/* A mapped queue. */
struct EFA_GDA_ALIGNED(EFA_GDA_LINE) efa_gda_queue {
  struct efa_gda_sq sq;
  struct efa_gda_rq rq;
  struct efa_gda_cq cq;
  struct efa_gda_counters counters;
  struct efa_gda_publication publication;
  /* Geometry: the abort flag; may be null. If it is not 0, it ends every wait that has a bound: a value from 2 to 14
   * with the enum efa_gda_status of that value, and any other with EFA_GDA_ABORTED. A wait of a GPU's kernel reads it
   * first in its ninth poll, and about one wait in 16 in the first; a wait for a turn some 100 us later. test(), and
   * wait() and wait_own() with timeout 0, read it only while they ring for deferred entries. The structs in host memory
   * and in a GPU's memory have one flag each. The host changes a flag between 0 and 1, by CAS. The proxy stores a
   * status over 0 or 1. When it detaches, it stores none to the flag of the struct in host memory, so that the queue
   * can change its doorbell mode; when a queue out of service is unmapped from the GPU, the host stores the proxy's
   * status to that flag. The first status stays. */
  const volatile uint32_t *abort;
  /* Geometry: the most bytes of an RDMA request, of a SEND, and of inline data. max_rdma_size = 0: no RDMA. */
  uint64_t max_rdma_size;
  uint32_t max_msg_size;
  uint32_t max_inline;
  /* Geometry: the queue pair's number, as its completions carry it. */
  uint32_t qpn;
  /* Geometry: enum efa_io_processing_hint of every entry, besides those that its make() sets (set_hints() in wqe.h). */
  uint32_t hints;
  struct efa_gda_inbox inbox;
  struct efa_gda_requests requests;

  /* Engine. Reserve word and turn are on lines of their own, because L2 executes the atomic operations on one line one
   * after the other. */
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_reserve_words reserve;
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_turn_words turn;
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_completion_words completion;
  struct efa_gda_request_words tracking;
  EFA_GDA_ALIGNED(EFA_GDA_LINE) struct efa_gda_receive_words receive;
  struct efa_gda_error_words error;
};

/* The destination of requests: address handle, queue pair number and qkey of a peer. */
struct efa_gda_peer {
  uint16_t ah;
  uint16_t qpn;
  uint32_t qkey;
};

/* efa_gda_put_args::flags */
enum efa_gda_put_flags {
  /* End when everything is rung for, without waiting for completions. */
  EFA_GDA_PUT_NO_WAIT = 1 << 1,
  /* The last request of each transfer carries the immediate, for every operation but a read. EFA_GDA_OP_WRITE_IMM and
   * EFA_GDA_OP_SEND_IMM carry it without this flag. */
  EFA_GDA_PUT_IMMEDIATE = 1 << 2,
  /* Where transfer i carries an immediate, it is immediate + i. This flag alone adds none. */
  EFA_GDA_PUT_COUNT_IMMEDIATE = 1 << 3
};

/* Result of a put. The kernel writes it when it ends, the status last. */
struct efa_gda_put_result {
  /* enum efa_gda_status */
  uint32_t status;
  /* enum efa_io_comp_status of the queue's first error since the put began; 0 without one. */
  uint32_t completion_status;
  /* Request id of that error. */
  uint64_t request_id;
  /* Requests of those calls of post() that returned EFA_GDA_OK; the requests may have failed. If the status is a
   * failure, up to 256 more may have been posted. */
  uint64_t posted;
  /* Requests of the queue that completed while the put owned it, modulo 2^32, as the queue counts them. */
  uint64_t completed;
};

/* Arguments of efa_gda_put_kernel: `count` transfers of `bytes` bytes, transfer i at address + i * stride on both
 * sides. An RDMA transfer, other than an inline write, of more than max_rdma_size or 2^32 - 1 bytes has several
 * requests, any other transfer one. */
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
  /* Bound of each wait, from its last progress (enum efa_gda_status). */
  uint64_t timeout_ns;
};

/* Result of the receive kernel, which writes it when it ends, the status last. */
struct efa_gda_receive_result {
  /* enum efa_gda_status */
  uint32_t status;
  /* Request id of the first receive that was posted. Completions carry the low 16 bits. */
  uint32_t first;
  /* Receives rung for, or completions taken. */
  uint32_t count;
  uint32_t reserved;
};

/* Arguments of efa_gda_receive_kernel (kernels/receive.cu). */
struct efa_gda_receive_args {
  struct efa_gda_queue *queue;
  struct efa_gda_receive_result *result;
  /* Null: the kernel posts `count` receives of `length` bytes, the i-th at address + i * stride. Otherwise it takes up
   * to `count` completions of receives, and copies EFA_GDA_INBOX_ENTRY bytes of each to this memory, which must be
   * 8-byte aligned. */
  uint8_t *into;
  uint64_t address;
  uint64_t stride;
  /* Bound of each wait (rq.h): for receive.lock, for free slots, and for the first completion. */
  uint64_t timeout_ns;
  uint32_t lkey;
  uint32_t length;
  uint32_t count;
  uint32_t reserved;
};

/* Queue, result and peer of __nvshmem_efa_test_put_kernel, whose parameters do not name them: the type of a variable of
 * the kernel's module, which the host sets before the launch. */
struct efa_gda_test_put {
  struct efa_gda_queue *queue;
  struct efa_gda_put_result *result;
  struct efa_gda_peer peer;
  uint64_t timeout_ns;
};

/* That variable's name. */
#define EFA_GDA_TEST_PUT_TARGET "efa_gda_test_put_target"

#endif
