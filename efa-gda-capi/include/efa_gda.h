/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libefa_gda, for transports in C and C++: a queue of an EFA adapter that kernels post to. The order of calls:
 *
 *   efa_gda_queue_open            open a queue with all that it needs, mapped into the processor that drives it
 *   efa_gda_queue_describe        its address, which the peers need, and its limits
 *   efa_gda_queue_insert_peer     insert each peer's address
 *   efa_gda_region_register       register memory; efa_gda_region_keys returns its keys
 *   efa_gda_queue_execute         post from the host, and wait; or
 *   efa_gda_queue_begin_launch    get the struct efa_gda_queue for kernels, launch them, and after they have ended
 *   efa_gda_queue_end_launch      end the launch
 *   efa_gda_queue_close, efa_gda_region_close
 *
 * Errors
 * - Every function except efa_gda_api_version and efa_gda_last_error returns 0 or a negative enum efa_gda_error.
 *   efa_gda_last_error returns the text of the calling thread's last error. A call that fails changes nothing, unless
 *   its comment states otherwise. No exception or panic leaves the library.
 * - Every function may return EFA_GDA_ERROR_ARGUMENT: for a null pointer (unless the comment allows it), a handle that
 *   was closed or is of another kind, a number out of range, an unknown value or flag; EFA_GDA_ERROR_FABRIC, if a call
 *   into libfabric or rdma-core failed; and for a queue that a GPU drives EFA_GDA_ERROR_GPU and EFA_GDA_ERROR_GPU_LOST.
 *   Comments below state what else it may return.
 * - An object in use is not closed: the call returns EFA_GDA_ERROR_BUSY, and the handle stays valid. A close that
 *   returns EFA_GDA_ERROR_FABRIC has closed the handle all the same.
 *
 * Ownership
 * - The caller closes each queue and each region, in any order.
 * - The caller owns registered memory, and must keep it allocated until the region is closed.
 * - A wait of the send side (for requests, free slots or a turn) that times out or is aborted poisons its
 *   queue: the adapter may still access the memory of its requests. The queue retains the regions of the requests that
 *   it posted. Later posts and waits return EFA_GDA_ERROR_DEVICE. While requests are in flight, only
 *   efa_gda_queue_destroy releases the queue.
 *
 * Threads
 * - Every function may be called from any thread, at the same time as every other. Calls with the same handle run one
 *   after another, so a call waits as long as those before it; efa_gda_queue_abort, efa_gda_queue_end_launch and the
 *   registration of memory wait for none.
 * - The thread that closes an object must know that no other thread uses its handle afterwards. A closed handle is
 *   refused, not dereferenced.
 * - No function may be called from a signal handler, or in a child process after fork.
 *
 * Structs that start with `size` may grow in later versions: the caller must set `size` to sizeof the struct, and
 * members that it does not use to 0. timeout_ns is the bound of a wait in nanoseconds, from the last request that
 * completed, so a slow adapter ends a wait only if nothing completes for as long; 0 selects EFA_GDA_DEFAULT_TIMEOUT_NS.
 * Other lengths and offsets are in bytes. libfabric, rdma-core, the CUDA driver and NVRTC are loaded when they are
 * first needed.
 */
#ifndef EFA_GDA_H
#define EFA_GDA_H

#include <stddef.h>
#include <stdint.h>

#include "efa_gda/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the interface in this header. Programs must refuse a library of another version. */
#define EFA_GDA_API_VERSION 6
uint32_t efa_gda_api_version(void);

#define EFA_GDA_DEFAULT_TIMEOUT_NS 10000000000ull /* ten seconds */
#define EFA_GDA_ADDRESS_BYTES 32                  /* of the raw address of a queue */

struct fid_domain;
struct fi_info;

/* Handles: of a queue (kernels receive its struct efa_gda_queue) and of registered memory. They are numbers, not
 * addresses. */
typedef struct efa_gda_queue_handle efa_gda_queue_handle;
typedef struct efa_gda_region efa_gda_region;

enum efa_gda_error {
  EFA_GDA_ERROR_ARGUMENT = -1,     /* the call is wrong: null, a bad handle, out of range, … */
  EFA_GDA_ERROR_NO_ADAPTER = -2,   /* libfabric or rdma-core is missing, or has no such adapter (on efa-direct) */
  EFA_GDA_ERROR_FABRIC = -3,       /* a call into libfabric or rdma-core failed; the text has its name and number */
  EFA_GDA_ERROR_UNSUPPORTED = -4,  /* the provider, the adapter, the queue or this build does not support it */
  EFA_GDA_ERROR_EXPOSURE = -5,     /* the endpoint exposes a queue that cannot be driven */
  EFA_GDA_ERROR_GPU = -6,          /* CUDA or its compiler failed */
  EFA_GDA_ERROR_GPU_LOST = -7,     /* the GPU's context is lost: destroy its queues, start again in a new process */
  EFA_GDA_ERROR_BUSY = -8,         /* the object is in use */
  EFA_GDA_ERROR_DEVICE = -9,       /* a wait timed out or was aborted, or the queue is poisoned (efa_gda_queue_poll) */
  EFA_GDA_ERROR_COMPLETION = -10,  /* a request completed with an error */
  EFA_GDA_ERROR_INTERNAL = -11,    /* this process has no more memory or threads, or a defect of this library */
  EFA_GDA_ERROR_TIMEOUT = -12,     /* nothing was received, or the receive queue stayed full; call again */
  EFA_GDA_ERROR_LOST = -13         /* completions of receives arrived while the inbox was full; the text counts them */
};

/* Returns the text of this thread's last error, or an empty string; never null. Like all strings of the library, it is
 * valid until the thread's next call. */
const char *efa_gda_last_error(void);

/* What opens a queue. Addresses of both have the same form, so queues of both reach each other. */
enum efa_gda_source {
  EFA_GDA_SOURCE_AUTO = 0,      /* libfabric; rdma-core if libfabric shows no adapter, or none that exposes queues */
  EFA_GDA_SOURCE_LIBFABRIC = 1, /* the fabric efa-direct of 2.3 or newer */
  EFA_GDA_SOURCE_RDMA_CORE = 2  /* 59 or newer; completions are in host memory, and GPU memory needs a dmabuf */
};

/* The side that writes entries, and the side that rings. */
enum efa_gda_doorbell_mode {
  EFA_GDA_DOORBELL_AUTO = 0,   /* the first of the modes below that works on this machine */
  EFA_GDA_DOORBELL_DIRECT = 1, /* the processor that drives the queue writes entries and rings */
  EFA_GDA_DOORBELL_RECORD = 2, /* it writes entries and a doorbell record, from which a host thread rings */
  EFA_GDA_DOORBELL_STAGED = 3  /* as RECORD, and the host thread copies the entries from a staging ring */
};

enum efa_gda_queue_flags {
  /* A request table, with which a kernel waits for its own requests (Sender::wait, put_signal). */
  EFA_GDA_QUEUE_REQUEST_TABLE = 1 << 0,
  /* Kernels compute free slots from a completion counter, and do not poll the completion queue. The queue takes no
   * receives. Not with rdma-core. */
  EFA_GDA_QUEUE_COUNTERS = 1 << 1,
  /* 128-byte entries, which can carry inline RDMA writes. */
  EFA_GDA_QUEUE_WIDE_ENTRIES = 1 << 2,
  /* Kernels and the host thread of STAGED may write entries by 16-byte stores: for adapters of a kind for which
   * `gda-probe put --qualify-stores` passed. Ordinary memory, such as the software adapter's, needs no flag. */
  EFA_GDA_QUEUE_WIDE_STORES = 1 << 3,
  /* Only described, not chosen: completions are in the GPU's memory; or the GPU cannot map the completion queue, so a
   * host thread relays each completion to memory that the GPU reads, and its latency delays completions. */
  EFA_GDA_QUEUE_COMPLETIONS_IN_GPU = 1 << 4,
  EFA_GDA_QUEUE_RELAYED = 1 << 5
};

/* What a region allows, and what a counter counts: READ, WRITE and SEND are requests of this side, RECEIVE is messages
 * that arrive, REMOTE_READ and REMOTE_WRITE are requests of peers. The values are libfabric's. */
enum efa_gda_access {
  EFA_GDA_ACCESS_READ = 1 << 8,
  EFA_GDA_ACCESS_WRITE = 1 << 9,
  EFA_GDA_ACCESS_RECEIVE = 1 << 10,
  EFA_GDA_ACCESS_SEND = 1 << 11,
  EFA_GDA_ACCESS_REMOTE_READ = 1 << 12,
  EFA_GDA_ACCESS_REMOTE_WRITE = 1 << 13
};

struct efa_gda_options {
  size_t size;
  int32_t gpu;         /* that drives the queue, as CUDA counts; -1: the host's processor */
  uint32_t source;     /* enum efa_gda_source */
  const char *adapter; /* its device's (rdmap79s0) or libfabric's name; null: the nearest to the GPU; the host's first */
  uint32_t doorbell;   /* enum efa_gda_doorbell_mode */
  uint32_t flags;      /* values of enum efa_gda_queue_flags */
  /* The least numbers of entries. 0 selects, for the send queue and the receive queue, 256 with rdma-core, and with
   * libfabric what its fi_info sets, the only choice; for the completion queue, as many as both have together, and
   * twice as many with EFA_GDA_QUEUE_COUNTERS. */
  uint32_t requests, receives, completions;
  /* What the queue's counter counts, a set of enum efa_gda_access; 0: it has none. The adapter adds to its two words,
   * both 0 at first (efa_gda_queue_info::successes), and a kernel waits for one with wait_until (signal.h), for example
   * for what peers write, without a receive. With EFA_GDA_QUEUE_COUNTERS: not READ, WRITE or SEND. */
  uint32_t counted;
  /* Another queue, or null: opens this one on its domain, so that both take the same regions. Its adapter, source and,
   * with libfabric, EFA_GDA_QUEUE_WIDE_ENTRIES hold for both. */
  efa_gda_queue_handle *beside;
  /* A domain of the caller, open, of fabric efa-direct, and the info that it was opened with, in place of adapter,
   * source and EFA_GDA_QUEUE_WIDE_ENTRIES; or null. The library never closes it: the caller must keep both until all
   * queues and regions on it are closed. It must allow calls from several threads (FI_THREAD_SAFE), or the caller must
   * make no call on it during a call of this library. */
  struct fid_domain *domain;
  struct fi_info *info;
};

/* Opens an endpoint with its own completion queue (in the GPU's memory if that is possible), checks the queues that it
 * exposes, and maps them for the processor that drives the queue. Null `options`: the host's, the first adapter. Errors: ARGUMENT also for a domain or an info that is no readable memory, or an object of another class (fid.fclass);
 * other memory that looks like one cannot be recognised. UNSUPPORTED if the source exposes no queues, the info is of
 * another provider or fabric, the queue cannot have the flags, the build has no CUDA, or the adapter no counters (which
 * need FI_EFA_USE_HW_CNTR=1 before libfabric 2.7; rdma-core 65 or the installer's 64.0amzn0). NO_ADAPTER; EXPOSURE, but UNSUPPORTED
 * for a size of entries that this version does not know. */
int efa_gda_queue_open(const struct efa_gda_options *options, efa_gda_queue_handle **queue);

struct efa_gda_queue_info {
  size_t size;
  uint8_t address[EFA_GDA_ADDRESS_BYTES]; /* send it to the peers, by any means */
  char adapter[64];                 /* its name, cut to this length */
  uint32_t source, doorbell;        /* what the queue took, not AUTO */
  uint32_t flags;                   /* enum efa_gda_queue_flags */
  uint32_t entry_size, num_entries; /* of the send queue: bytes of an entry, and entries */
  uint32_t receives;                /* entries of the receive queue; 0: the queue takes no receives */
  uint32_t qpn;                     /* the number of the queue pair */
  uint32_t store_bytes; /* of the widest stores by which kernels may write entries, 8 or 16; a Sender obeys it */
  uint64_t max_message; /* bytes of a message */
  uint64_t max_rdma;    /* bytes of an RDMA request; 0: the adapter has no RDMA */
  uint32_t max_inline;  /* bytes of an inline send */
  int32_t counter_gpu;  /* whose memory has the words of the counter, where that is possible; -1: host memory */
  uint64_t successes, failures; /* addresses of these words, of 8 bytes each; 0 without a counter */
};

/* Fills in *info. *refused, unless null, becomes the text of what the queue would have preferred and could not use, and
 * why, one a line: a source, doorbell modes, memory of the GPU. Words of a counter in host memory are not mapped into a GPU:
 * the caller must register them with CUDA before a kernel reads them. */
int efa_gda_queue_describe(efa_gda_queue_handle *queue, struct efa_gda_queue_info *info, const char **refused);

/* Inserts a peer by its raw address, and fills in *peer for entries to it, also during a launch. Both sides must insert
 * each other, because an adapter refuses requests of an unknown sender. A queue may be its own peer. */
int efa_gda_queue_insert_peer(efa_gda_queue_handle *queue, const void *address, struct efa_gda_peer *peer);

/* Registers `length` bytes of host memory for a queue and all others on its domain. `access` is a set of enum
 * efa_gda_access. Errors: UNSUPPORTED for remote access that the adapter does not have. */
int efa_gda_region_register(efa_gda_queue_handle *queue, void *start, size_t length, uint64_t access,
                            efa_gda_region **region);

/* In an access: the adapter's writes to the region may land after their completions, and in any order, so signals need
 * the forms with read-back. libfabric before 2.7 refuses it (FI_EFA_MR_RELAXED_ORDERING), old drivers of rdma-core
 * ignore it. */
#define EFA_GDA_ACCESS_RELAXED_ORDERING (1ULL << 61)

/* As above, for memory at an address of the GPU that CUDA counts as `gpu`. If `dmabuf` is an open descriptor in which
 * that memory begins at byte `offset`, and the provider accepts it, the memory is registered as a dmabuf. Otherwise, or
 * if `dmabuf` is -1, it is registered by its address, for which the provider needs FI_HMEM, and the queue a GPU or an
 * info with it. The library duplicates the descriptor, and needs no CUDA. Errors: UNSUPPORTED if neither works, with
 * both reasons in the text. */
int efa_gda_region_register_gpu(efa_gda_queue_handle *queue, uint64_t address, size_t length, int gpu, int dmabuf,
                                uint64_t offset, uint64_t access, efa_gda_region **region);

/* Returns the keys with which entries of this side and of peers name the region, beside an address in it. Either may be
 * null. */
int efa_gda_region_keys(efa_gda_region *region, uint32_t *lkey, uint32_t *rkey);

/* Keeps a region registered until the queue is closed or destroyed, also during a launch. The caller must retain each
 * region that kernels name in entries. Errors: ARGUMENT for a region of another domain. */
int efa_gda_queue_retain(efa_gda_queue_handle *queue, efa_gda_region *region);

/* Deregisters the memory. Errors: BUSY while a queue retains the region, or a call of another thread uses it. */
int efa_gda_region_close(efa_gda_region *region);

/* Begins a launch: sets *device to the struct that kernels receive, at an address of the processor that drives the
 * queue. The library owns the struct. Until efa_gda_queue_end_launch the queue stays mapped, and the host posts
 * nothing to it. Several launches may use a queue at once; each must be ended once, after its kernels have ended. */
int efa_gda_queue_begin_launch(efa_gda_queue_handle *queue, struct efa_gda_queue **device);

/* Ends one launch. Errors: ARGUMENT if no launch uses the queue. */
int efa_gda_queue_end_launch(efa_gda_queue_handle *queue);

/* With `raise` other than 0, ends the queue's waits that have a bound, in kernels and in other threads, until it is
 * called with 0. An aborted wait of the send side poisons the queue, which a call with 0 does not undo. */
int efa_gda_queue_abort(efa_gda_queue_handle *queue, int raise);

/* `count` transfers, or receives, that the library posts, for example to test a path or to send control messages.
 * Number i has `bytes` bytes from offset local_offset + i * bytes of `local`, and for RDMA from remote_address + i *
 * bytes. Each is one request; an RDMA transfer that is longer than a request may be is several. */
struct efa_gda_work {
  size_t size;
  struct efa_gda_peer peer; /* of efa_gda_queue_insert_peer; as the next two not for receives */
  uint64_t remote_address;  /* RDMA: an address in the peer's region, and its key */
  uint32_t rkey;
  uint32_t op;              /* enum efa_gda_op (efa_gda/queue.h); 0 is an RDMA write */
  efa_gda_region *local;
  uint64_t local_offset;
  uint64_t bytes;           /* of one transfer or receive */
  uint64_t count;
  uint64_t timeout_ns;      /* of each wait */
  uint32_t immediate;       /* which the peer's completion carries: EFA_GDA_OP_WRITE_IMM, EFA_GDA_OP_SEND_IMM */
};

/* Posts the transfers on the processor that drives the queue, and waits for their completions.
 *
 * Errors: ARGUMENT also for bytes outside the region or beyond a limit of the queue, and a region without the access
 * that `op` needs; UNSUPPORTED; BUSY during a launch. For these, nothing was posted. COMPLETION if a request completed
 * with an error: the requests that were posted before have completed, and the text has the number of transfers that
 * were not posted. The text names a request by its id, which counts the queue's entries from 0 in the adapter's width
 * (16 bits for some), not by i. DEVICE if a wait timed out, which poisons the queue, or if it was poisoned before. */
int efa_gda_queue_execute(efa_gda_queue_handle *queue, const struct efa_gda_work *work);

/* Rings for entries that were posted without a doorbell, and waits until no request is in flight. Errors: BUSY,
 * COMPLETION and DEVICE as above; COMPLETION only if this call read the completion, efa_gda_progress counts all. */
int efa_gda_queue_wait(efa_gda_queue_handle *queue, uint64_t timeout_ns);

/* Posts receives on the processor that drives the queue, each for a message of at most work->bytes, 65535 or less. Ids
 * count a queue's receives from 0, modulo 2^16. The queue retains the region until they have completed. *posted, unless
 * null, becomes the number that was posted, also after an error. Errors: ARGUMENT and BUSY as above; UNSUPPORTED if the
 * queue takes no receives, or its processor cannot post them; TIMEOUT if the receive queue stayed full; DEVICE. */
int efa_gda_queue_post_receives(efa_gda_queue_handle *queue, const struct efa_gda_work *work, uint32_t *posted);

enum efa_gda_received_flags {
  EFA_GDA_RECEIVED_CONSUMED = 1 << 0,  /* it consumed a receive, as every message does */
  EFA_GDA_RECEIVED_IMMEDIATE = 1 << 1, /* it carries immediate data */
  EFA_GDA_RECEIVED_WRITE = 1 << 2,     /* it is an RDMA write, whose bytes are at the address that the writer chose */
  EFA_GDA_RECEIVED_OTHER = 1 << 3      /* it is an operation that this version does not know */
};

/* What arrived: a message, in the memory of its receive, unless the flags state otherwise. It does not grow. */
struct efa_gda_received {
  uint32_t flags;      /* enum efa_gda_received_flags */
  uint32_t receive;    /* the id of the receive that it consumed */
  uint32_t status;     /* enum efa_io_comp_status; 0: no error */
  uint32_t length;     /* bytes that arrived */
  uint32_t immediate;
  uint32_t source_ah;  /* this adapter's address handle of the sender; 0xffff: it has none */
  uint32_t source_qpn; /* the sender's queue pair */
};

/* Waits for messages and RDMA writes with immediate data, and takes up to `capacity` of them, and at most 256, in the
 * order of their completions. *count becomes their number. A status other than 0 is no error of this call. Errors:
 * TIMEOUT if nothing arrived; LOST once after completions were lost, before anything is taken; UNSUPPORTED if the queue
 * takes no receives; BUSY during a launch, whose kernels take them (rq.h); DEVICE. */
int efa_gda_queue_receive(efa_gda_queue_handle *queue, struct efa_gda_received *received, uint32_t capacity,
                          uint32_t *count, uint64_t timeout_ns);

struct efa_gda_progress {
  size_t size;
  /* Entries that were reserved, requests that completed, both modulo 2^32, and requests that were rung for and have not
   * completed. A group of kernels stores the first, and what the third counts from, when it closes the Sender by which
   * it owns the queue, or when its turn ends, so both are too low until then, and after it failed with the turn. */
  uint32_t reserved, completed, in_flight;
  uint32_t poison;        /* the enum efa_gda_status that poisoned the queue; 0: it is not poisoned */
  uint32_t errors;        /* completions with an error */
  uint32_t first_status;  /* of the first one: enum efa_io_comp_status */
  uint64_t first_request; /* of the first one: its id */
};

/* Fills in *progress, also while kernels run; the numbers may then be of different moments. *snapshot, unless null,
 * becomes a text for a job that hangs: the progress, the last completions, and the decoded requests whose doorbell was
 * not rung. Abort the queue first if another thread waits on it. */
int efa_gda_queue_poll(efa_gda_queue_handle *queue, struct efa_gda_progress *progress, const char **snapshot);

/* Closes the queue and its endpoint, and releases the regions that it retains. Errors: BUSY during a launch, while
 * requests are in flight, while entries have no doorbell (efa_gda_queue_wait rings), if kernels do not end, or if a
 * kernel that owned the queue did not close its Sender, or a group failed in its turn on a shared queue. */
int efa_gda_queue_close(efa_gda_queue_handle *queue);

/* As efa_gda_queue_close, even if requests are in flight or the queue is poisoned. Errors: BUSY during a launch, or if
 * kernels do not end, whose waits stay aborted then. */
int efa_gda_queue_destroy(efa_gda_queue_handle *queue);

#ifdef __cplusplus
}
#endif

#endif
