/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libefa_gda, for transports in C and C++: a queue of an EFA adapter that kernels post to. The order of calls:
 *
 *   efa_gda_domain_borrow         use a fid_domain of efa-direct; or efa_gda_domain_open, efa_gda_domain_open_verbs
 *   efa_gda_mapped_open           open a dedicated endpoint, check what it exposes, map it (into a GPU)
 *   efa_gda_mapped_address        send the queue's address to the peers, by any means
 *   efa_gda_mapped_insert_peer    insert each peer's address
 *   efa_gda_region_register       register memory; efa_gda_region_describe returns its keys
 *   efa_gda_mapped_retain         keep a region registered while kernels post entries with its keys
 *   efa_gda_mapped_begin_launch   get the struct efa_gda_queue for kernels, then launch them
 *   efa_gda_mapped_end_launch     after the kernels have ended
 *   efa_gda_mapped_close, efa_gda_region_close, efa_gda_domain_close, in this order
 *
 * efa_gda_nvshmem.h has functions that do all but the regions, for a process whose domain is another transport's.
 *
 * Errors
 * - Every function except efa_gda_api_version and efa_gda_last_error returns 0 or a negative enum efa_gda_error.
 *   efa_gda_last_error returns the text of the calling thread's last error. A call that fails changes nothing, unless
 *   its comment states otherwise. No exception or panic leaves the library.
 * - Every function with a handle or pointer returns EFA_GDA_ERROR_ARGUMENT if it is null (unless its comment allows
 *   that), or if the handle was closed or is of another kind. Comments below do not repeat this.
 * - An object in use is not closed: the call returns EFA_GDA_ERROR_BUSY, and the handle stays valid.
 *
 * Ownership
 * - Functions that open or register return a handle that the caller owns and must close.
 * - The caller owns registered memory, and must keep it allocated until the region is closed.
 * - A wait of the send side (for requests, free slots or a turn) that times out or is aborted poisons its
 *   queue: the adapter may still access the memory of its requests. The queue retains the regions of the requests that
 *   it posted. Later posts and waits return EFA_GDA_ERROR_DEVICE. While requests are in flight, only
 *   efa_gda_mapped_destroy releases the queue.
 *
 * Threads
 * - The comment of each function has a line "Threads:".
 *   any: may be called from any thread, at the same time as every other function.
 *   one by one: as any; it waits for other such calls on the same object, for as long as those wait.
 * - The thread that closes an object must know that no other thread uses its handle afterwards. A closed handle is
 *   refused, not dereferenced.
 * - No function may be called from a signal handler, or in a child process after fork.
 *
 * Structs that start with `size` may grow in later versions: the caller must set `size` to sizeof the struct.
 *
 * libfabric, rdma-core, the CUDA driver and NVRTC are loaded at run time, when they are first needed.
 *
 * Not in this version: endpoints that the caller opened, because libfabric posts to an endpoint's queues with indices
 * of its own, which cannot be shared with kernels; queues through libfabric's FI_XPU instead of its GDA operations
 * (docs/device-apis.md states why); and signals that the host sends (put_signal is device code, signal.h).
 */
#ifndef EFA_GDA_H
#define EFA_GDA_H

#include <stddef.h>
#include <stdint.h>

#include "efa_gda/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface in this header. Compare it with efa_gda_api_version. */
#define EFA_GDA_API_VERSION 5
/* The bound of a wait, in nanoseconds, that timeout_ns 0 selects: ten seconds. Bounds count from the last request that
 * completed, so a slow adapter ends a wait only if nothing completes for as long as the bound. */
#define EFA_GDA_DEFAULT_TIMEOUT_NS 10000000000ull

struct fid_domain;
struct fi_info;

/* Handles. They are numbers, not addresses, and must not be dereferenced. */
typedef struct efa_gda_domain efa_gda_domain;
typedef struct efa_gda_region efa_gda_region;
typedef struct efa_gda_counter efa_gda_counter;
typedef struct efa_gda_mapped efa_gda_mapped;

enum efa_gda_error {
  /* A null pointer, a bad handle, a number out of range, text that is not UTF-8, or a struct that is too short. */
  EFA_GDA_ERROR_ARGUMENT = -1,
  /* libfabric or rdma-core cannot be loaded, or has no such adapter (libfabric: on efa-direct). */
  EFA_GDA_ERROR_NO_ADAPTER = -2,
  /* A call into libfabric or rdma-core failed. The text has its name and its error number. */
  EFA_GDA_ERROR_FABRIC = -3,
  /* The provider, the adapter, the queue or this build of the library does not support the request. */
  EFA_GDA_ERROR_UNSUPPORTED = -4,
  /* The endpoint exposes a queue that cannot be driven. */
  EFA_GDA_ERROR_EXPOSURE = -5,
  /* CUDA or its compiler failed. */
  EFA_GDA_ERROR_GPU = -6,
  /* The GPU's context is lost. Destroy its queues, and start again in a new process. */
  EFA_GDA_ERROR_GPU_LOST = -7,
  /* The object is in use. */
  EFA_GDA_ERROR_BUSY = -8,
  /* A wait timed out or was aborted, or the queue is poisoned. The text has the status of this call, and
   * efa_gda_mapped_poll returns the status that poisoned the queue, if it is poisoned. */
  EFA_GDA_ERROR_DEVICE = -9,
  /* A request completed with an error. */
  EFA_GDA_ERROR_COMPLETION = -10,
  /* This process has no more memory or threads, or a defect of this library. */
  EFA_GDA_ERROR_INTERNAL = -11,
  /* Nothing was received, or the receive queue stayed full, within the bound. Nothing is poisoned: call again. */
  EFA_GDA_ERROR_TIMEOUT = -12,
  /* Completions of receives arrived while the inbox was full, and are lost. The text has their number. */
  EFA_GDA_ERROR_LOST = -13
};

/* Returns the version of the interface that the library implements. Programs must refuse a version other than
 * EFA_GDA_API_VERSION. Threads: any. */
uint32_t efa_gda_api_version(void);

/* Returns the text of this thread's last error, or an empty string. It is never null. The library owns the string; it
 * is valid until the thread's next call. Threads: any; each has its own text. */
const char *efa_gda_last_error(void);

/* ---- domains ---------------------------------------------------------------------- */

/* Flags of efa_gda_domain_open. */
enum efa_gda_domain_flags {
  /* 128-byte entries, which can carry inline RDMA writes. */
  EFA_GDA_DOMAIN_WIDE_ENTRIES = 1 << 0,
  /* GPU memory can be registered by its address (FI_HMEM). */
  EFA_GDA_DOMAIN_GPU_MEMORY = 1 << 1
};

/*
 * Loads libfabric and opens a domain of fabric efa-direct on the adapter with that name, or on the first one if
 * `adapter` is null. `flags` are values of enum efa_gda_domain_flags. The caller must close *domain.
 *
 * Errors: ARGUMENT for an unknown flag or a name that is not UTF-8; NO_ADAPTER if there is none with that name and
 * these flags; FABRIC; UNSUPPORTED if the provider does not expose queues.
 * Threads: any.
 */
int efa_gda_domain_open(const char *adapter, uint32_t flags, efa_gda_domain **domain);

/*
 * As efa_gda_domain_open, through rdma-core alone (59 or newer), without libfabric: opens the device with that name,
 * or the first EFA adapter if `device` is null, and a protection domain. All other functions take the domain as they
 * take libfabric's, with these differences: GPU memory is registered only as a dmabuf, for which
 * EFA_GDA_DOMAIN_GPU_MEMORY is not needed; the completion queue is in host memory; EFA_GDA_MAPPED_COUNTERS is refused;
 * counters are in host memory. Raw addresses have the same form, so queues of both kinds reach each other. The caller
 * must close *domain.
 *
 * Errors: ARGUMENT as above; NO_ADAPTER; UNSUPPORTED if this rdma-core does not expose queues; FABRIC.
 * Threads: any.
 */
int efa_gda_domain_open_verbs(const char *device, uint32_t flags, efa_gda_domain **domain);

/*
 * Uses a domain of the caller, which the library never closes. `fid` must be an open domain of fabric efa-direct that
 * was opened with `info`. The caller must keep both until efa_gda_domain_close has returned 0. The domain must allow
 * calls from several threads (FI_THREAD_SAFE), or the caller must make no call on it during a call of this library.
 * The caller must close *domain.
 *
 * Errors: ARGUMENT if `fid` or `info` is no readable memory, or `fid` is an object of another class (fid.fclass);
 * UNSUPPORTED if `info` is of another provider than efa or of another fabric than efa-direct, or the provider does not
 * expose queues; FABRIC. Nothing is called through `fid` before these checks; other memory that looks like a domain
 * cannot be recognised.
 * Threads: any.
 */
int efa_gda_domain_borrow(struct fid_domain *fid, struct fi_info *info, efa_gda_domain **domain);

/*
 * Closes the handle, and the domain itself if efa_gda_domain_open or efa_gda_domain_open_verbs opened it.
 *
 * Errors: BUSY while a region, a counter or a queue of the domain is open; FABRIC if libfabric or rdma-core cannot
 * close the domain, which closes the handle all the same.
 * Threads: one by one.
 */
int efa_gda_domain_close(efa_gda_domain *domain);

/* ---- regions ---------------------------------------------------------------------- */

/* Accesses that a region allows. The values are those of libfabric's FI_READ to FI_REMOTE_WRITE. */
enum efa_gda_access {
  EFA_GDA_ACCESS_READ = 1 << 8,
  EFA_GDA_ACCESS_WRITE = 1 << 9,
  EFA_GDA_ACCESS_RECEIVE = 1 << 10,
  EFA_GDA_ACCESS_SEND = 1 << 11,
  EFA_GDA_ACCESS_REMOTE_READ = 1 << 12,
  EFA_GDA_ACCESS_REMOTE_WRITE = 1 << 13
};

/* In an access: the adapter's writes to the region may land after their completions, and in any order, so signals need
 * the forms with read-back. It is libfabric's FI_EFA_MR_RELAXED_ORDERING, from 2.7 on; an older one refuses the
 * registration. Of rdma-core it is IBV_ACCESS_RELAXED_ORDERING, which older drivers ignore. */
#define EFA_GDA_ACCESS_RELAXED_ORDERING (1ULL << 61)

/*
 * Registers `length` bytes of host memory from `start`. `access` is a set of enum efa_gda_access, and
 * EFA_GDA_ACCESS_RELAXED_ORDERING if wanted. The caller must keep the memory mapped until the region is closed, and
 * must close *region.
 *
 * Errors: ARGUMENT for an access without a value of enum efa_gda_access, or with unknown bits; UNSUPPORTED, on a domain
 * of rdma-core, for remote access that the adapter does not have; FABRIC.
 * Threads: any.
 */
int efa_gda_region_register(efa_gda_domain *domain, void *start, size_t length, uint64_t access,
                            efa_gda_region **region);

/*
 * Registers `length` bytes of GPU memory from `address`, an address of the GPU that CUDA counts as `gpu`. If `dmabuf`
 * is an open descriptor in which that memory begins at byte `offset`, and the provider accepts it, the memory is
 * registered as a dmabuf. Otherwise, or if `dmabuf` is -1, it is registered by its address, which needs a domain
 * with GPU memory. The library duplicates the descriptor. The caller must keep the memory allocated until the region
 * is closed, and must close *region. libfabric registers the memory, so this works without the library's own CUDA
 * support.
 *
 * Errors: ARGUMENT for an address of 0, a negative `gpu`, a descriptor that cannot be duplicated, or an access as
 * above; UNSUPPORTED if neither way works, with both reasons in the text; FABRIC.
 * Threads: any.
 */
int efa_gda_region_register_gpu(efa_gda_domain *domain, uint64_t address, size_t length, int gpu, int dmabuf,
                                uint64_t offset, uint64_t access, efa_gda_region **region);

struct efa_gda_region_info {
  size_t size;
  /* The first byte. */
  uint64_t address;
  /* In bytes. */
  uint64_t length;
  /* The key for entries of this side. */
  uint32_t lkey;
  /* The key for entries of peers. */
  uint32_t rkey;
  /* 1 if the memory was registered as a dmabuf, else 0. */
  uint32_t is_dmabuf;
  /* 1 if writes to the region may land after their completions, else 0. */
  uint32_t relaxed_ordering;
};

/*
 * Fills in *info, whose `size` the caller must set.
 *
 * Errors: ARGUMENT if `size` is too small; FABRIC.
 * Threads: any.
 */
int efa_gda_region_describe(efa_gda_region *region, struct efa_gda_region_info *info);

/*
 * Deregisters the memory and closes the handle.
 *
 * Errors: BUSY while a queue retains the region, or a call of another thread uses it; FABRIC if libfabric or rdma-core
 * cannot deregister it, which closes the handle all the same.
 * Threads: one by one.
 */
int efa_gda_region_close(efa_gda_region *region);

/* ---- completion counters ---------------------------------------------------------- */

/*
 * Opens a completion counter: a word of successes and a word of errors, both 0, to which the adapter adds. It counts
 * for the queue whose efa_gda_mapped_attr::counter names it, for example what peers write
 * (EFA_GDA_ACCESS_REMOTE_WRITE), so that a kernel waits for a tick (wait_until in signal.h) without a receive. `gpu`
 * is the GPU that reads the words, as CUDA counts, or -1 for the host's processor: the words are in the GPU's memory
 * if that is possible, else in host memory. The caller must close *counter.
 *
 * Errors: ARGUMENT for a GPU below -1; UNSUPPORTED if the adapter or the provider has no counters (libfabric before
 * 2.7 needs FI_EFA_USE_HW_CNTR=1; rdma-core 65, or the EFA installer's 64.0amzn0), or for a GPU on a domain of
 * rdma-core; GPU and GPU_LOST; FABRIC.
 * Threads: any.
 */
int efa_gda_counter_open(efa_gda_domain *domain, int gpu, efa_gda_counter **counter);

struct efa_gda_counter_info {
  size_t size;
  /* Addresses of the words, of 8 bytes each. */
  uint64_t success;
  uint64_t error;
  /* The GPU whose memory has the words; -1 for host memory. */
  int32_t gpu;
  uint32_t reserved;
};

/*
 * Fills in *info, whose `size` the caller must set. The words stay there until the counter is closed.
 *
 * Errors: ARGUMENT if `size` is too small.
 * Threads: any.
 */
int efa_gda_counter_describe(efa_gda_counter *counter, struct efa_gda_counter_info *info);

/*
 * Reads both words.
 *
 * Errors: UNSUPPORTED if they are in a GPU's memory; FABRIC.
 * Threads: any, also while the adapter adds.
 */
int efa_gda_counter_read(efa_gda_counter *counter, uint64_t *successes, uint64_t *errors);

/*
 * Closes the counter.
 *
 * Errors: BUSY while a queue is open that it counts for; FABRIC if libfabric or rdma-core cannot close it, which closes
 * the handle all the same.
 * Threads: one by one.
 */
int efa_gda_counter_close(efa_gda_counter *counter);

/* ---- mapped queues ---------------------------------------------------------------- */

/* The doorbell mode of a queue: the side that writes entries, and the side that rings. */
enum efa_gda_doorbell_mode {
  /* The first of the modes below that works on this machine. */
  EFA_GDA_DOORBELL_AUTO = 0,
  /* The GPU writes entries and rings. */
  EFA_GDA_DOORBELL_DIRECT = 1,
  /* The GPU writes entries and a doorbell record, from which a host thread rings. */
  EFA_GDA_DOORBELL_RECORD = 2,
  /* As RECORD, and the GPU writes entries to a staging ring, from which the host thread copies them. */
  EFA_GDA_DOORBELL_STAGED = 3
};

/* The width of the widest stores by which kernels, and the host thread of mode STAGED, write entries. */
enum efa_gda_store_width {
  /* 16 bytes for ordinary memory, such as the software adapter's, and 8 for an adapter's I/O memory. */
  EFA_GDA_STORE_WIDTH_AUTO = 0,
  EFA_GDA_STORE_WIDTH_EIGHT = 8,
  /* For adapters of a kind for which `gda-probe put --qualify-stores` passed. */
  EFA_GDA_STORE_WIDTH_SIXTEEN = 16
};

enum efa_gda_mapped_flags {
  /* A request table: a group of device code waits for its own requests, and receives their errors, while other groups
   * continue to post (Sender::wait, wait_own and test; requests.h). A post and a completion cost a store more each. */
  EFA_GDA_MAPPED_REQUEST_TABLE = 1 << 0,
  /* Kernels compute free slots, and whether the queue is quiet, from a completion counter that the queue opens, instead
   * of polling the completion queue. The queue takes no receives and has no request table. Only on a domain of
   * libfabric. */
  EFA_GDA_MAPPED_COUNTERS = 1 << 1,
  /* Only in efa_gda_mapped_info: the GPU cannot map the completion queue, so a host thread relays each completion to
   * memory that the GPU reads. Its latency delays completions. */
  EFA_GDA_MAPPED_RELAYED = 1 << 2
};

struct efa_gda_mapped_attr {
  size_t size;
  /* The least number of entries of the completion queue; 0 selects as many as it needs: those of the send queue and of
   * the receive queue together, and twice as many with EFA_GDA_MAPPED_COUNTERS. */
  uint32_t completions;
  /* The expected number of peers; 0 selects 64. */
  uint32_t peers;
  /* The GPU that drives the queue, as CUDA counts; -1 for the host's processor. */
  int32_t gpu;
  /* enum efa_gda_doorbell_mode. The host's processor accepts AUTO and DIRECT. */
  uint32_t doorbell;
  /* enum efa_gda_store_width */
  uint32_t store_width;
  /* Values of enum efa_gda_mapped_flags. */
  uint32_t flags;
  /* The least number of entries of the send queue and of the receive queue on a domain of rdma-core; 0 selects 256. On
   * a domain of libfabric they must be 0: its fi_info sets them. */
  uint32_t requests;
  uint32_t receives;
  /* A counter of the same domain that counts for this queue, or null; and what it counts, as a set of enum
   * efa_gda_access: SEND, WRITE and READ are requests of this queue, RECEIVE is messages that arrive, REMOTE_WRITE and
   * REMOTE_READ are requests of peers. With EFA_GDA_MAPPED_COUNTERS it must not have SEND, WRITE or READ, which the
   * counter that the queue opens counts. */
  efa_gda_counter *counter;
  uint64_t counted;
};

/*
 * Opens an endpoint with its own completion queue (in the GPU's memory if that is possible), checks the queues that it
 * exposes, and maps them for the processor that drives the queue. If a GPU cannot map the completion queue, a host
 * thread relays the completions (EFA_GDA_MAPPED_RELAYED). `attr->size` must be set. The caller must close or
 * destroy *queue.
 *
 * Errors: ARGUMENT for an attribute out of range, a completion queue that is too small, or a counter of another
 * domain; FABRIC; EXPOSURE; GPU and GPU_LOST; UNSUPPORTED if the provider does not expose queues, for flags that the
 * queue cannot have, or for a GPU if the library was built without CUDA.
 * Threads: any.
 */
int efa_gda_mapped_open(efa_gda_domain *domain, const struct efa_gda_mapped_attr *attr, efa_gda_mapped **queue);

struct efa_gda_mapped_info {
  size_t size;
  /* Bytes of a send-queue entry, and the number of entries. */
  uint32_t entry_size;
  uint32_t num_entries;
  /* The batch window: entries that may be written past the last doorbell that the adapter has received. */
  uint32_t max_batch;
  /* Bytes of a completion, and the number of completion-queue entries. */
  uint32_t completion_size;
  uint32_t completions;
  /* The number of receive-queue entries; 0 if the queue takes no receives. */
  uint32_t receives;
  /* The number of the queue pair. */
  uint32_t qpn;
  /* The enum efa_gda_doorbell_mode that the queue uses, not AUTO. */
  uint32_t doorbell;
  /* 1 if completions are in the GPU's memory, else 0. */
  uint32_t completions_in_gpu;
  /* Limits in bytes: of an inline send, of an RDMA request, of a message. */
  uint32_t max_inline;
  uint64_t max_rdma_size;
  uint64_t max_msg_size;
  /* Bytes of the widest stores by which kernels may write entries: 8 or 16. A Sender obeys
   * it. */
  uint32_t store_bytes;
  /* The enum efa_gda_mapped_flags that the queue was opened with, and EFA_GDA_MAPPED_RELAYED. */
  uint32_t flags;
};

/*
 * Fills in *info, whose `size` the caller must set.
 *
 * Errors: ARGUMENT if `size` is too small.
 * Threads: one by one.
 */
int efa_gda_mapped_describe(efa_gda_mapped *queue, struct efa_gda_mapped_info *info);

/*
 * Copies the raw address of the queue's endpoint to `address`. *length is the capacity of `address` in bytes before
 * the call, and the length of the raw address after it.
 *
 * Errors: ARGUMENT if `address` is null or its capacity is too small; *length is set to the capacity that is needed.
 * FABRIC.
 * Threads: one by one.
 */
int efa_gda_mapped_address(efa_gda_mapped *queue, void *address, size_t *length);

/*
 * Inserts a peer by the raw address of its endpoint (`length` bytes from efa_gda_mapped_address), and fills in *peer
 * for entries to it. Both sides must insert each other, because an adapter refuses requests of an unknown sender.
 *
 * Errors: ARGUMENT for an address of another length or that the provider refuses; FABRIC.
 * Threads: one by one; also during a launch.
 */
int efa_gda_mapped_insert_peer(efa_gda_mapped *queue, const void *address, size_t length,
                               struct efa_gda_peer *peer);

/*
 * Keeps a region registered until the queue is closed or destroyed. The caller must retain each region that kernels
 * name in entries.
 *
 * Errors: ARGUMENT for a region of another domain; FABRIC.
 * Threads: one by one; also during a launch.
 */
int efa_gda_mapped_retain(efa_gda_mapped *queue, efa_gda_region *region);

/*
 * Begins a launch: sets *device to the struct that kernels receive, at an address of the processor that drives the
 * queue. The library owns the struct. Until efa_gda_mapped_end_launch the queue stays mapped, and the host posts
 * nothing to it. Several launches may use a queue at once; each must be ended once, after its kernels have ended.
 * Threads: one by one.
 */
int efa_gda_mapped_begin_launch(efa_gda_mapped *queue, struct efa_gda_queue **device);

/*
 * Ends one launch. The caller must call it after the kernels of that launch have ended.
 *
 * Errors: ARGUMENT if no launch uses the queue.
 * Threads: any, also during another call on the queue.
 */
int efa_gda_mapped_end_launch(efa_gda_mapped *queue);

/* `count` transfers that the library posts, for example to test a path or to send control messages. Transfer i has
 * `bytes` bytes, from offset local_offset + i * bytes of `local`, and for RDMA from remote_address + i * bytes. It is
 * one request; an RDMA transfer that is longer than a request may be is several. */
struct efa_gda_work {
  size_t size;
  /* From efa_gda_mapped_insert_peer. */
  struct efa_gda_peer peer;
  efa_gda_region *local;
  /* In bytes. */
  uint64_t local_offset;
  /* RDMA: address and rkey of the peer's region. Sends ignore them. */
  uint64_t remote_address;
  uint32_t rkey;
  /* enum efa_gda_op (efa_gda/queue.h). 0 is an RDMA write. */
  uint32_t op;
  /* Bytes of each transfer. */
  uint64_t bytes;
  /* The number of transfers. */
  uint64_t count;
  /* The bound of each wait, from its last progress, in nanoseconds; 0 selects EFA_GDA_DEFAULT_TIMEOUT_NS. */
  uint64_t timeout_ns;
  /* The immediate data of EFA_GDA_OP_WRITE_IMM and EFA_GDA_OP_SEND_IMM, which the peer's completion carries. */
  uint32_t immediate;
  uint32_t reserved;
};

/*
 * Posts the transfers on the processor that drives the queue, and waits for their completions. `work->size` must be
 * set.
 *
 * Errors: ARGUMENT for bytes outside the region or beyond a limit of the queue, an unknown `op`, or a region without
 * the access that `op` needs; UNSUPPORTED; BUSY during a launch. For these, nothing was posted. COMPLETION if a
 * request completed with an error: the requests that were posted before have completed, and the text has the number of
 * transfers that were not posted. The text names a request by its id, which counts the queue's entries from 0 in the
 * adapter's width (16 bits for some), not by i. DEVICE if a wait timed out, which poisons the queue, or if it was
 * poisoned before. GPU and GPU_LOST.
 * Threads: one by one.
 */
int efa_gda_mapped_execute(efa_gda_mapped *queue, const struct efa_gda_work *work);

/* Receives to post: receive i takes a message of at most `bytes` bytes at offset + i * stride of `region`, which must
 * allow EFA_GDA_ACCESS_RECEIVE. The queue retains the region until each has completed. */
struct efa_gda_receives {
  size_t size;
  efa_gda_region *region;
  /* In bytes. */
  uint64_t offset;
  /* Bytes of each receive, at most 65535. */
  uint64_t bytes;
  /* In bytes. */
  uint64_t stride;
  /* The bound of the wait for free slots in nanoseconds; 0 selects EFA_GDA_DEFAULT_TIMEOUT_NS. */
  uint64_t timeout_ns;
  /* The number of receives. */
  uint32_t count;
  uint32_t reserved;
};

/*
 * Posts receives on the processor that drives the queue. `receives->size` must be set. *first becomes the id of the
 * first receive; the ids of the others follow it, modulo 2^16. *posted becomes the number of receives that were
 * posted, also after an error. Both may be null.
 *
 * Errors: ARGUMENT for bytes outside the region or more than 65535, or a region without the access; UNSUPPORTED if the
 * queue takes no receives, or the processor that drives it cannot post them; BUSY during a launch; TIMEOUT if the
 * receive queue stayed full, and *posted were posted; DEVICE; GPU and GPU_LOST.
 * Threads: one by one.
 */
int efa_gda_mapped_post_receives(efa_gda_mapped *queue, const struct efa_gda_receives *receives, uint32_t *first,
                                 uint32_t *posted);

/* What arrived. It does not grow. */
struct efa_gda_received {
  /* enum efa_gda_received_flags */
  uint32_t flags;
  /* The id of the receive. */
  uint32_t receive;
  /* enum efa_io_comp_status; 0: no error. */
  uint32_t status;
  /* Bytes that arrived. */
  uint32_t length;
  /* The immediate data. */
  uint32_t immediate;
  /* The sender: this adapter's address handle of it, 0xffff if it has none, and its queue pair. */
  uint32_t source_ah;
  uint32_t source_qpn;
  /* enum efa_gda_arrival */
  uint32_t arrival;
};

enum efa_gda_received_flags {
  /* A receive was consumed; efa_gda_received::receive is its id. An RDMA write may need none. */
  EFA_GDA_RECEIVED_CONSUMED = 1 << 0,
  /* efa_gda_received::immediate is valid. */
  EFA_GDA_RECEIVED_IMMEDIATE = 1 << 1
};

enum efa_gda_arrival {
  /* A message, in the memory of the receive. */
  EFA_GDA_ARRIVAL_MESSAGE = 0,
  /* An RDMA write with immediate data. Its bytes are at the address that the writer chose. */
  EFA_GDA_ARRIVAL_WRITE = 1,
  /* An operation that this version does not know. */
  EFA_GDA_ARRIVAL_OTHER = 2
};

/*
 * Waits for the first message or RDMA write with immediate data, for at most `timeout_ns` nanoseconds (0 selects
 * EFA_GDA_DEFAULT_TIMEOUT_NS), and takes up to `capacity` of them, and at most 256, in the order of their completions.
 * *count becomes their number. A status other than 0 is no error of this call.
 *
 * Errors: ARGUMENT for a capacity of 0; TIMEOUT if nothing arrived; LOST once after completions were lost, before
 * anything is taken; UNSUPPORTED if the queue takes no receives; BUSY during a launch, whose kernels take them (rq.h);
 * DEVICE; GPU and GPU_LOST.
 * Threads: one by one.
 */
int efa_gda_mapped_receive(efa_gda_mapped *queue, struct efa_gda_received *received, uint32_t capacity,
                           uint32_t *count, uint64_t timeout_ns);

/*
 * Rings for entries that were posted without a doorbell, and waits until no request is in flight. The wait times out
 * if no request completes for `timeout_ns` nanoseconds; 0 selects EFA_GDA_DEFAULT_TIMEOUT_NS.
 *
 * Errors: BUSY during a launch; COMPLETION if this call read a completion with an error; DEVICE if the wait timed out,
 * which poisons the queue, or if it was poisoned before; GPU and GPU_LOST. Errors whose completions a kernel read are
 * not returned here; efa_gda_progress::errors counts all of them.
 * Threads: one by one.
 */
int efa_gda_mapped_wait(efa_gda_mapped *queue, uint64_t timeout_ns);

struct efa_gda_progress {
  size_t size;
  /* Entries that were reserved, the doorbell producer index, and requests that completed, each modulo 2^32. A kernel's
   * group stores the first two when it closes the Sender by which it owns the queue, or when its turn ends. */
  uint32_t reserved;
  uint32_t doorbell_index;
  uint32_t completed;
  /* doorbell_index - completed, at least 0: requests whose doorbell was rung and that have not completed. It is too low
   * while a group that has rung owns the queue or has the turn, and after one that failed with the turn. */
  uint32_t in_flight;
  /* The number of completions with an error; status (enum efa_io_comp_status) and request id of the first one. */
  uint32_t errors;
  uint32_t first_status;
  uint64_t first_request;
  /* The enum efa_gda_status that poisoned the queue; 0 if it is not poisoned. */
  uint32_t poison;
  /* Launches that have begun and not ended. */
  uint32_t launches;
};

/*
 * Fills in *progress, whose `size` the caller must set, also while kernels run. The numbers may then be of different
 * moments.
 *
 * Errors: ARGUMENT if `size` is too small; GPU and GPU_LOST.
 * Threads: one by one.
 */
int efa_gda_mapped_poll(efa_gda_mapped *queue, struct efa_gda_progress *progress);

/*
 * Describes the queue of a job that hangs as text, also while kernels run: the progress, the last completions, and the
 * decoded requests whose doorbell was not rung. Copies at most `size` bytes to `text`, including the final zero, and
 * sets *length to the length of the whole text without the zero. Copies the struct that kernels work on to *state.
 * `text`, `length` and `state` may be null.
 *
 * Errors: GPU and GPU_LOST.
 * Threads: one by one. Abort the queue first if another thread waits on it.
 */
int efa_gda_mapped_snapshot(efa_gda_mapped *queue, char *text, size_t size, size_t *length,
                            struct efa_gda_queue *state);

/*
 * With `raise` other than 0, ends the queue's waits that have a bound, in kernels and in other threads, until it is
 * called with 0. An aborted wait of the send side poisons the queue, which a call with 0 does not undo.
 * Threads: any, also during another call on the queue.
 */
int efa_gda_mapped_abort(efa_gda_mapped *queue, int raise);

/*
 * Closes the queue and its endpoint, and releases the regions that it retains.
 *
 * Errors: BUSY during a launch, while requests are in flight, while entries have no doorbell (efa_gda_mapped_wait
 * rings), if kernels do not end, or if a kernel that owned the queue did not close its Sender. FABRIC if libfabric or
 * rdma-core cannot close the endpoint, which closes the handle all the same. GPU and GPU_LOST.
 * Threads: one by one.
 */
int efa_gda_mapped_close(efa_gda_mapped *queue);

/*
 * Destroys the queue and its endpoint even if requests are in flight or the queue is poisoned, and releases the
 * regions that it retains.
 *
 * Errors: BUSY during a launch, or if kernels do not end, whose waits stay aborted then. FABRIC if libfabric or
 * rdma-core cannot close the endpoint, which closes the handle all the same.
 * Threads: one by one.
 */
int efa_gda_mapped_destroy(efa_gda_mapped *queue);

#ifdef __cplusplus
}
#endif

#endif
