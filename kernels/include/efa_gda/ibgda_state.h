/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The device state of ibgda.h, which a host fills in and publishes to the kernels of its program. Plain C: host
 * compilers may include it. ibgda.h states the terms (PE, channel), and which
 * thread writes each word.
 */
#ifndef EFA_GDA_IBGDA_STATE_H
#define EFA_GDA_IBGDA_STATE_H

#include "queue.h"

/* A PE of the job, as one queue of this GPU reaches it. */
struct efa_gda_ibgda_peer {
  struct efa_gda_peer peer;
  /* Key of the peer's symmetric heap. */
  uint32_t rkey;
  uint32_t reserved;
  /* Where the peer's heap begins, as the adapter of the peer addresses it. */
  uint64_t heap;
  /* Where this GPU has the peer's heap mapped (NVLink); 0: not mapped. Device code reads it in the peers of queue 0. */
  uint64_t mapped;
};

/* The most remote words to which the adds of one channel may go between two calls of quiet. */
#define EFA_GDA_IBGDA_COUNTS 4

/* A channel: a virtual queue pair to one PE. The host zeroes it; from then on only device code writes it. */
struct efa_gda_ibgda_channel {
  /* The value of the last flag, which the adapter reads when it executes the write. */
  uint64_t word;
  /* 1 while one thread executes ibgda_flag() for this channel; others wait. */
  uint32_t lock;
  uint32_t reserved;
  /* Remote addresses, and the sums of the adds to them since the last quiet. Address 0: free. */
  struct {
    uint64_t address;
    uint64_t value;
  } counts[EFA_GDA_IBGDA_COUNTS];
};

/* A queue of this GPU, in its memory. */
struct efa_gda_ibgda_queue {
  /* A queue with a request table and RDMA (max_rdma_size is not 0), to which no other device code posts. */
  struct efa_gda_queue *queue;
  /* All requests with an index before this one are done, modulo 2^32. The host must store the queue's producer index,
   * while no request is in flight: 0 for a new queue of an adapter. */
  uint32_t done;
  uint32_t reserved;
};

/* Words that all threads of the GPU share, in its memory. */
struct efa_gda_ibgda_shared {
  /* enum efa_gda_status: the first failure, 0 at first. With one, every later call returns at once. */
  uint32_t failed;
  uint32_t reserved;
};

/* The first failure, in host memory that the GPU writes, for the host to read while kernels run. */
struct efa_gda_ibgda_report {
  /* enum efa_gda_status, written last: the host must load it with an acquire before the others. 0: no failure. With
   * EFA_GDA_COMPLETION_ERROR, efa_gda_queue_poll of the queue returns the status of its first failed request. The
   * queue is that of channel qp; if the call was Set8 or Drain, it may be any queue. */
  volatile uint32_t status;
  /* The PE and the channel of the call that failed, which need not be those of the failed request. */
  volatile uint32_t pe;
  volatile uint32_t qp;
  uint32_t reserved;
};

struct efa_gda_ibgda_state {
  /* Their product is the number of channels to each PE. They have these names because DeepEP reads them; neither counts
   * queues or adapters. */
  uint32_t num_rc_per_pe;
  int32_t num_devices_initialized;
  uint32_t num_pes;
  /* Local key of this PE's heap. */
  uint32_t lkey;
  /* num_queues queues; the channels, in their order, post to one after the other. */
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
  /* Bound of each wait, from its last progress (queue.h); not 0. */
  uint64_t timeout_ns;
  uint32_t channels_lkey;
  /* This PE's number. */
  uint32_t rank;
  /* From 1 to the number of channels to a PE. */
  uint32_t num_queues;
  uint32_t reserved;
};

#endif
