/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The device state of ibgda.h, which a host fills in and publishes to the kernels of its program. Plain C: host
 * compilers may include it.
 */
#ifndef EFA_GDA_IBGDA_STATE_H
#define EFA_GDA_IBGDA_STATE_H

#include "queue.h"

/* A peer (processing element, PE) of the job, as one queue of this GPU reaches it. */
struct efa_gda_ibgda_peer {
  struct efa_gda_peer peer;
  /* Key of the peer's symmetric heap. */
  uint32_t rkey;
  uint32_t reserved;
  /* Where the peer's heap begins, as the adapter of the peer addresses it. */
  uint64_t heap;
  /* Where this GPU has the peer's heap mapped (NVLink); 0: not mapped. */
  uint64_t mapped;
};

/* Words of a virtual queue pair to which 8-byte adds may go between two calls of quiet. */
#define EFA_GDA_IBGDA_COUNTS 4

/* A virtual queue pair to one PE. All zeroes at first; from then on only device code writes it. */
struct efa_gda_ibgda_channel {
  /* The source of the last flag, an adapter reads it. */
  uint64_t word;
  /* 1 while a thread sends a flag through this virtual queue pair. */
  uint32_t lock;
  uint32_t reserved;
  /* Remote words and their values after the adds so far. Address 0: free. */
  struct {
    uint64_t address;
    uint64_t value;
  } counts[EFA_GDA_IBGDA_COUNTS];
};

/* A queue of this GPU, in its memory. The virtual queue pairs are spread over the queues. */
struct efa_gda_ibgda_queue {
  /* A queue with a request table, to which no other device code posts. */
  struct efa_gda_queue *queue;
  /* All requests with an index before this one are done, modulo 2^32. At first the index of the queue's first request,
   * which is 0 for a new queue of an adapter. */
  uint32_t done;
  /* 1 while a thread posts to the queue. */
  uint32_t lock;
};

/* Words that all threads of the GPU share, in its memory. */
struct efa_gda_ibgda_shared {
  /* enum efa_gda_status: the first failure, 0 at first. With one, every later call returns at once. */
  uint32_t failed;
  uint32_t reserved;
};

/* The first failure, in host memory that the GPU writes, for the host to read while kernels run. */
struct efa_gda_ibgda_report {
  /* enum efa_gda_status, written last; 0: no failure. efa_gda_mapped_poll has the status of the failed request. */
  volatile uint32_t status;
  /* The PE and the virtual queue pair of the call that failed. */
  volatile uint32_t pe;
  volatile uint32_t qp;
  uint32_t reserved;
};

struct efa_gda_ibgda_state {
  /* Virtual counts, by these names because DeepEP reads them. Virtual queue pairs to a PE: their product. */
  uint32_t num_rc_per_pe;
  int32_t num_devices_initialized;
  uint32_t num_pes;
  uint32_t lkey;
  /* num_queues queues; virtual queue pair i of each PE is of queue i modulo num_queues. */
  struct efa_gda_ibgda_queue *queues;
  /* This PE's symmetric heap, at its addresses for the GPU, and where it begins as the adapter addresses it. */
  uint64_t heap;
  uint64_t heap_bytes;
  uint64_t heap_address;
  /* num_pes peers for queue 0, then num_pes for queue 1, and so on. */
  const struct efa_gda_ibgda_peer *peers;
  /* num_pes * num_rc_per_pe * num_devices_initialized channels, in memory registered with `channels_lkey`; and where
   * the adapter addresses the first. */
  struct efa_gda_ibgda_channel *channels;
  uint64_t channels_address;
  struct efa_gda_ibgda_shared *shared;
  struct efa_gda_ibgda_report *report;
  /* Bound of each wait, from its last progress (queue.h). */
  uint64_t timeout_ns;
  uint32_t channels_lkey;
  uint32_t rank;
  /* From 1 to the number of virtual queue pairs to a PE. */
  uint32_t num_queues;
  uint32_t reserved;
};

#endif
