/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libefa_gda.so for transports in C and C++: a queue of an EFA adapter that kernels post to.
 *
 *   efa_gda_domain_borrow   lend a fid_domain of efa-direct (or efa_gda_domain_open)
 *   efa_gda_mapped_open     a dedicated endpoint, exposed, checked, mapped (into a GPU)
 *   efa_gda_mapped_address  to the peers, by any means;  efa_gda_mapped_insert_peer  theirs
 *   efa_gda_region_register memory, and its keys (efa_gda_region_describe)
 *   efa_gda_mapped_begin_launch     the struct efa_gda_queue that kernels receive, until
 *   efa_gda_mapped_end_launch   the launch has ended
 *   efa_gda_mapped_close, efa_gda_region_close, efa_gda_domain_close
 *
 * Rules
 * - Every function but the first two returns 0 or a negative enum efa_gda_error. Words for the last
 *   error of this thread: efa_gda_last_error. Nothing is changed by a call that fails, unless it says
 *   otherwise. No exception or panic leaves the library.
 * - A wait that runs out or is aborted poisons its queue for good: the adapter may still reach memory.
 *   Every later post and wait answers EFA_GDA_ERROR_DEVICE, and efa_gda_mapped_destroy is the way out.
 * - Handles are checked: null, one of another kind and one that was closed give
 *   EFA_GDA_ERROR_ARGUMENT. Calls may be made from any thread; calls on one queue take turns, except
 *   efa_gda_mapped_abort.
 * - What is in use is not taken away: a region that a queue keeps, a queue that is lent or has
 *   requests in flight or entries that nobody rang for, a domain with anything open on it answer
 *   EFA_GDA_ERROR_BUSY.
 * - Structs that grow begin with `size`: set it to sizeof the struct.
 * - libfabric, CUDA's driver and NVRTC are opened at run time, when they are needed.
 *
 * Not in this version: queues through rdma-core alone, receives (the device library has them), and
 * endpoints that the caller opened; an endpoint that libfabric drives is not to be shared anyway.
 *
 * Compile with -I of this folder and of kernels/include.
 */
#ifndef EFA_GDA_H
#define EFA_GDA_H

#include <stddef.h>
#include <stdint.h>

#include "efa_gda/queue.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What efa_gda_api_version returns for this header. */
#define EFA_GDA_API_VERSION 2
/* Bound of a wait whose timeout_ns is 0: ten seconds. */
#define EFA_GDA_DEFAULT_TIMEOUT_NS 10000000000ull

struct fid_domain;
struct fi_info;

/* Handles. Their addresses lead nowhere. */
typedef struct efa_gda_domain efa_gda_domain;
typedef struct efa_gda_region efa_gda_region;
typedef struct efa_gda_mapped efa_gda_mapped;

enum efa_gda_error {
  /* Null, a bad handle, a number out of its range, text that is not UTF-8, a struct too short. */
  EFA_GDA_ERROR_ARGUMENT = -1,
  /* libfabric cannot be loaded, or has no such adapter on efa-direct. */
  EFA_GDA_ERROR_NO_ADAPTER = -2,
  /* A call into libfabric failed; the words hold its name and number. */
  EFA_GDA_ERROR_FABRIC = -3,
  /* The provider, the adapter or the queue lacks what was asked for. */
  EFA_GDA_ERROR_UNSUPPORTED = -4,
  /* What the endpoint exposes cannot be driven. */
  EFA_GDA_ERROR_EXPOSURE = -5,
  /* CUDA or its compiler failed. */
  EFA_GDA_ERROR_GPU = -6,
  /* The GPU's context is lost: destroy its queues, and start again in a new process. */
  EFA_GDA_ERROR_GPU_LOST = -7,
  /* Something still uses it. */
  EFA_GDA_ERROR_BUSY = -8,
  /* A wait ran out, was aborted, or the queue is out of service: enum efa_gda_status in words. */
  EFA_GDA_ERROR_DEVICE = -9,
  /* A request completed with an error. */
  EFA_GDA_ERROR_COMPLETION = -10,
  /* A defect of this library. */
  EFA_GDA_ERROR_INTERNAL = -11
};

uint32_t efa_gda_api_version(void);
/* Words for the last call of this thread that failed; never null, valid until its next call. */
const char *efa_gda_last_error(void);

/* Flags of efa_gda_domain_open. */
enum efa_gda_domain_flags {
  /* 128-byte entries, with inline RDMA writes. */
  EFA_GDA_DOMAIN_WIDE_ENTRIES = 1 << 0,
  /* Memory of a GPU can be registered by its address (FI_HMEM). */
  EFA_GDA_DOMAIN_GPU_MEMORY = 1 << 1
};
/* Loads libfabric and opens the adapter of that name, or the first one for null. */
int efa_gda_domain_open(const char *adapter, uint32_t flags, efa_gda_domain **domain);
/*
 * Uses a domain of the caller's, which stays open, with `info`, until what is returned is closed. It
 * is of efa-direct, and either allows calls from several threads (FI_THREAD_SAFE) or the caller makes
 * none meanwhile. It is never closed here.
 */
int efa_gda_domain_borrow(struct fid_domain *fid, struct fi_info *info, efa_gda_domain **domain);
int efa_gda_domain_close(efa_gda_domain *domain);

/* FI_SEND and its kin. */
enum efa_gda_access {
  EFA_GDA_ACCESS_READ = 1 << 8,
  EFA_GDA_ACCESS_WRITE = 1 << 9,
  EFA_GDA_ACCESS_RECEIVE = 1 << 10,
  EFA_GDA_ACCESS_SEND = 1 << 11,
  EFA_GDA_ACCESS_REMOTE_READ = 1 << 12,
  EFA_GDA_ACCESS_REMOTE_WRITE = 1 << 13
};
/* Registers memory of the host that stays mapped until the region is closed. */
int efa_gda_region_register(efa_gda_domain *domain, void *start, size_t length, uint64_t access,
                            efa_gda_region **region);
/*
 * Registers memory of the GPU that CUDA counts as `gpu`, which stays allocated until the region is
 * closed: as a dmabuf where `dmabuf` is a descriptor (it is duplicated) and the provider takes it, by
 * its address otherwise. `offset` is where in the dmabuf the memory begins. -1: no dmabuf.
 */
int efa_gda_region_register_gpu(efa_gda_domain *domain, uint64_t address, size_t length, int gpu, int dmabuf,
                                uint64_t offset, uint64_t access, efa_gda_region **region);
struct efa_gda_region_info {
  size_t size;
  uint64_t address;
  uint64_t length;
  /* For entries of this side, and of peers. */
  uint32_t lkey;
  uint32_t rkey;
  /* 1: registered as a dmabuf. */
  uint32_t is_dmabuf;
  uint32_t reserved;
};
int efa_gda_region_describe(efa_gda_region *region, struct efa_gda_region_info *info);
int efa_gda_region_close(efa_gda_region *region);

/* Who rings. */
enum efa_gda_doorbell_mode {
  /* The best that the machine has. */
  EFA_GDA_DOORBELL_AUTO = 0,
  /* The GPU. */
  EFA_GDA_DOORBELL_DIRECT = 1,
  /* A host thread, from a record that kernels leave. */
  EFA_GDA_DOORBELL_RECORD = 2,
  /* A host thread, which also copies the entries. */
  EFA_GDA_DOORBELL_STAGED = 3
};
struct efa_gda_mapped_attr {
  size_t size;
  /* Completions that the completion queue holds, at least; 0: 8192. */
  uint32_t completions;
  /* Peers that are expected; 0: 64. */
  uint32_t peers;
  /* The GPU that drives the queue, as CUDA counts; -1: this host's processor. */
  int32_t gpu;
  /* enum efa_gda_doorbell_mode; the host's processor takes AUTO and DIRECT. */
  uint32_t rung;
};
/* Opens an endpoint with a completion queue of its own (in the GPU's memory where that can be) and
 * maps its queues. */
int efa_gda_mapped_open(efa_gda_domain *domain, const struct efa_gda_mapped_attr *attr, efa_gda_mapped **queue);

struct efa_gda_mapped_info {
  size_t size;
  /* As the adapter exposes them. */
  uint32_t entry_size;
  uint32_t num_entries;
  uint32_t max_batch;
  uint32_t completion_size;
  uint32_t completions;
  uint32_t receives;
  /* This queue pair. */
  uint32_t qpn;
  /* enum efa_gda_doorbell_mode that was taken. */
  uint32_t rung;
  /* 1: completions lie in the GPU's memory. */
  uint32_t completions_in_gpu;
  uint32_t max_inline;
  uint64_t max_rdma_size;
  uint64_t max_msg_size;
};
int efa_gda_mapped_describe(efa_gda_mapped *queue, struct efa_gda_mapped_info *info);

/* The endpoint's raw address. *length: room, then bytes; too little room is ARGUMENT, with the length
 * set. */
int efa_gda_mapped_address(efa_gda_mapped *queue, void *address, size_t *length);
/* A peer by the raw address of its endpoint. Both sides insert each other. */
int efa_gda_mapped_insert_peer(efa_gda_mapped *queue, const void *address, size_t length,
                               struct efa_gda_peer *peer);
/* Keeps a region, of which kernels will post entries, until the queue is closed or destroyed. */
int efa_gda_mapped_retain(efa_gda_mapped *queue, efa_gda_region *region);

/*
 * Lends the queue to a launch: the struct that kernels receive, at an address of the GPU's where a GPU
 * drives the queue. As often as it is lent it must be returned, each time once the launch has ended.
 */
int efa_gda_mapped_begin_launch(efa_gda_mapped *queue, struct efa_gda_queue **device);
int efa_gda_mapped_end_launch(efa_gda_mapped *queue);

/*
 * A put to see that all is well: `count` RDMA writes of `bytes` bytes, from a region to a peer's memory,
 * request i at offset + i * bytes of both, posted and awaited by whoever drives the queue. A completion
 * with an error ends it early, and the words say how many of `count` were not posted. They, and
 * first_request below, name a request by its id, not by i: it counts the queue's entries from 0, in 16
 * bits where the adapter's ids have no more.
 */
struct efa_gda_write {
  size_t size;
  struct efa_gda_peer peer;
  efa_gda_region *local;
  uint64_t local_offset;
  uint64_t remote_address;
  uint32_t rkey;
  uint32_t reserved;
  uint64_t bytes;
  uint64_t count;
  /* Bound of each wait; 0: EFA_GDA_DEFAULT_TIMEOUT_NS. One that runs out poisons the queue. */
  uint64_t timeout_ns;
};
int efa_gda_mapped_write(efa_gda_mapped *queue, const struct efa_gda_write *write);

/*
 * Rings for what nobody rang for and waits until nothing is in flight; not while the queue is lent.
 * timeout_ns 0: EFA_GDA_DEFAULT_TIMEOUT_NS. A wait that runs out poisons the queue. 0 is also the answer where
 * a kernel read a completion with an error itself: efa_gda_progress::errors counts all of them.
 */
int efa_gda_mapped_wait(efa_gda_mapped *queue, uint64_t timeout_ns);

struct efa_gda_progress {
  size_t size;
  /* Modulo 2^32. */
  uint32_t reserved;
  uint32_t rung;
  uint32_t completed;
  uint32_t in_flight;
  /* Completions with an error; the first one's status (enum efa_io_comp_status) and request id. */
  uint32_t errors;
  uint32_t first_status;
  uint64_t first_request;
  /* enum efa_gda_status that put the queue out of service; 0: it is in order. */
  uint32_t poison;
  uint32_t lent;
};
/* Where the queue stands; may be called while a kernel runs. */
int efa_gda_mapped_poll(efa_gda_mapped *queue, struct efa_gda_progress *progress);
/*
 * The same for a hung job, in words, with requests that nobody rang for decoded. As snprintf: at most
 * `size` bytes with the ending zero, and *length is the length of all of it. `state`, where it is not
 * null, takes a copy of the struct that kernels work on.
 */
int efa_gda_mapped_snapshot(efa_gda_mapped *queue, char *text, size_t size, size_t *length,
                            struct efa_gda_queue *state);
/* Ends the waits of the queue's kernels (not 0), or lets waits run again (0). A wait that was ended poisoned
 * the queue, and 0 does not revive it. */
int efa_gda_mapped_abort(efa_gda_mapped *queue, int raise);

/* Closes the queue; busy while it is lent, requests are in flight, entries were posted that nobody rang for
 * (efa_gda_mapped_wait rings), or kernels do not end. */
int efa_gda_mapped_close(efa_gda_mapped *queue);
/*
 * Destroys the queue whatever is in flight, and lets go of what it kept; busy while it is lent or
 * kernels do not end.
 */
int efa_gda_mapped_destroy(efa_gda_mapped *queue);

#ifdef __cplusplus
}
#endif

#endif
