/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NVSHMEM's symmetric heap through an EFA adapter that the GPU rings. A side library: NVSHMEM is not changed, and its
 * own transport stays in use for barriers, collectives and its own puts. docs/nvshmem.md is the guide.
 *
 * All functions but efa_gda_nvshmem_last_error return 0 or a negative enum efa_gda_error (efa_gda.h). One thread at a
 * time may call them.
 */
#ifndef EFA_GDA_NVSHMEM_HEAP_H
#define EFA_GDA_NVSHMEM_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include "efa_gda/ibgda_state.h"

#ifdef __cplusplus
extern "C" {
#endif

enum efa_gda_nvshmem_flags {
  /* Device code puts through the adapter also to PEs whose heap this GPU has mapped (NVLink), itself included. */
  EFA_GDA_NVSHMEM_ADAPTER_ONLY = 1 << 0
};

struct efa_gda_nvshmem_attr {
  size_t size;
  /* An address of the symmetric heap, the same object on all PEs, or null on all. The allocation that contains it is
   * registered: the chunk of the heap, or with NVSHMEM_DISABLE_CUDA_VMM=1 the whole heap. Null: the one of a new
   * nvshmem_malloc. Puts from or to other chunks fail with EFA_GDA_BAD_ARGUMENT. */
  void *symmetric;
  /* Virtual queue pairs to each PE: num_channels * num_devices. 0 selects 32 and 1. They are numbers only: each queue
   * pair of the adapter reaches all PEs, and the virtual queue pairs, one PE after the other, are of one queue after
   * the other. */
  uint32_t num_channels;
  uint32_t num_devices;
  /* Bound of each wait of device code, from its last progress, in nanoseconds; 0 selects ten seconds. */
  uint64_t timeout_ns;
  /* Values of enum efa_gda_nvshmem_flags. */
  uint32_t flags;
  /* Queues of the adapter to open, the same number on all PEs. One thread at a time posts to a queue. At most
   * EFA_GDA_NVSHMEM_QUEUES, and at most as many as virtual queue pairs; 0 selects the most. */
  uint32_t num_queues;
};

/* The most queues. */
#define EFA_GDA_NVSHMEM_QUEUES 32

/*
 * Opens queues of the adapter EFA_GDA_ADAPTER (by default the one nearest to the GPU) for the current GPU, registers
 * the heap, exchanges addresses and keys through NVSHMEM, and publishes the device state. A collective call of all PEs,
 * after nvshmem_init and cudaSetDevice. If it fails on one PE, it fails on all, and the text of the others names that
 * PE. Exception: with BUSY, and with ARGUMENT for `size` or for a num_queues out of range, it fails on that PE alone,
 * and the others wait for it in NVSHMEM without a bound. libefa_gda.so is loaded at run time, from EFA_GDA_LIBRARY if
 * that is set. `attr` may be null.
 *
 * Errors: ARGUMENT for another `size`, for a num_queues out of range, or if another PE has another number of queues;
 * BUSY if it was called already; NO_ADAPTER if libefa_gda.so cannot be loaded or has another version; UNSUPPORTED if
 * the adapter has no RDMA; those of efa_gda_queue_open and efa_gda_region_register_gpu; GPU if CUDA or NVSHMEM failed.
 */
int efa_gda_nvshmem_init(const struct efa_gda_nvshmem_attr *attr);

/* Copies the device state that init published. Errors: ARGUMENT without init. */
int efa_gda_nvshmem_state(struct efa_gda_ibgda_state *state);

/* Copies the first failure of device code, also while kernels run; its status is 0 if there is none. Errors: ARGUMENT
 * without init. */
int efa_gda_nvshmem_failure(struct efa_gda_ibgda_report *report);

/* Destroys the queues. A collective call, after the kernels have ended and before nvshmem_finalize. Errors: ARGUMENT
 * without init, so also for a second fini; those of efa_gda_queue_destroy. */
int efa_gda_nvshmem_fini(void);

/* The text of the last error. The library owns it; valid until the next call. */
const char *efa_gda_nvshmem_last_error(void);

/* Copies the state to the program's variable efa_gda_ibgda_state_d. Returns a cudaError_t. Used by init. */
int efa_gda_nvshmem_publish(const struct efa_gda_ibgda_state *state);

#ifdef __cplusplus
}
#endif

#endif
