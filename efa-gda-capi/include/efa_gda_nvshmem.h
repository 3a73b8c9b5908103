/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libefa_gda on a libfabric domain of another transport, such as NVSHMEM's: one queue for the process. efa_gda.h
 * states what holds for every function: errors, ownership, threads, and structs that start with `size`. The functions
 * of this header run one after another.
 */
#ifndef EFA_GDA_NVSHMEM_H
#define EFA_GDA_NVSHMEM_H

#include "efa_gda.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens the queue of this process on a libfabric domain of another transport, such as NVSHMEM's, and begins a launch
 * that lasts until nvshmemt_efa_gda_fini. `domain` is that transport's struct fid_domain, on efa-direct. `ep` is one
 * of its enabled endpoints, struct fid_ep, or null if the machine has one adapter.
 *
 * The endpoint is not used for posting, and is not changed: libfabric drives its queues with indices of its own, and a
 * kernel that posted there would corrupt them. Only its address is read (fi_getname), which names the adapter. This
 * function opens a dedicated endpoint, address vector and completion queue on the domain. Peers must insert that
 * endpoint's address (efa_gda_queue_describe), not the address of `ep`. The domain must stay open until fini has
 * returned 0, and must allow calls from several threads (FI_THREAD_SAFE), or the transport must make no call during a
 * call of this library.
 *
 * The GPU is that of the CUDA context current to the calling thread, or the one that the environment variable
 * EFA_GDA_GPU numbers; EFA_GDA_GPU=-1 selects the host's processor.
 *
 * Errors: BUSY for a second init without fini; ARGUMENT for a null domain, for memory that cannot be read or an object
 * of another class (fid.fclass), before any call through it, and without a GPU; UNSUPPORTED for a domain of the fabric
 * `efa` or of another provider, whose endpoints expose no queues; NO_ADAPTER if no adapter of efa-direct has the
 * address of `ep`; FABRIC, EXPOSURE, GPU and GPU_LOST as efa_gda_queue_open.
 */
int nvshmemt_efa_gda_init_on_ep(void *domain, void *ep);

/* What init published. */
struct nvshmemt_efa_gda_device_state {
  size_t size;
  /* For efa_gda_queue_describe, _insert_peer, _retain and _poll, and efa_gda_region_register. fini alone closes it:
   * efa_gda_queue_close and efa_gda_queue_destroy return BUSY. */
  efa_gda_queue_handle *handle;
  /* The struct for kernels, at an address of the processor that drives the queue. Valid until fini. The application
   * copies this pointer, not the struct, to its own __device__ symbol (cudaMemcpyToSymbol), because symbols of a
   * library that was loaded without RTLD_GLOBAL are not visible to its kernels. */
  struct efa_gda_queue *queue;
  /* The GPU, as CUDA counts; -1: the host's processor. */
  int32_t gpu;
  /* As efa_gda_queue_info::store_bytes. */
  uint32_t store_bytes;
};

/*
 * Fills in *state, whose `size` the caller must set.
 *
 * Errors: ARGUMENT without init, or if `size` is too small.
 */
int nvshmemt_efa_gda_state(struct nvshmemt_efa_gda_device_state *state);

/*
 * Ends what init began, after the kernels that use the queue have ended: waits until no request is in flight (at most
 * EFA_GDA_DEFAULT_TIMEOUT_NS), destroys the queue and its endpoint, and returns the borrowed domain, which stays open.
 * Regions of the caller stay registered: close them before the transport closes its domain. The first error is
 * returned; after an error all of it has ended too, except with BUSY.
 *
 * Errors: ARGUMENT without init, so also for a second fini; BUSY while the caller's own launches use the queue or
 * kernels do not end: nothing has ended; COMPLETION, DEVICE, FABRIC, GPU and GPU_LOST.
 */
int nvshmemt_efa_gda_fini(void);

#ifdef __cplusplus
}
#endif

#endif
