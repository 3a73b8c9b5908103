/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Declares the calls of ibgda.h. With -rdc=true the program has one definition of them, kernels/nvshmem/device.cu,
 * which is compiled for 64 registers, so that blocks of 1,024 threads can call them. Without -rdc, and for the host
 * executor, this file includes ibgda.h, and each source has its own definition.
 */
#ifndef EFA_GDA_IBGDA_CALLS_H
#define EFA_GDA_IBGDA_CALLS_H

#include "group.h"
#include "ibgda_state.h"

namespace efa_gda {

/* What ibgda_flag() does when the requests before it are done: those of the channels of the same number; for Set8 and
 * Drain those of all channels (ORDER in ibgda.h). */
enum class IbgdaFlag : uint32_t {
  /* Writes the low 4 bytes of the value to the remote word. */
  Set4,
  /* Writes 8 bytes. */
  Set8,
  /* Adds the value to the remote word of 8 bytes, whose other adds go through the same channel (ORDER in ibgda.h). */
  Add8,
  /* Nothing more. */
  Drain,
  /* Forgets the channel's sums. */
  Quiet,
  /* Fails with EFA_GDA_UNSUPPORTED, without a drain. */
  Refused
};

/* The address at which this GPU has mapped what PE `pe` has at `address` of this PE's heap (not checked); 0: only the
 * adapter reaches it. `rank`: this PE's number, or -1, with which this PE's own heap is looked up as a peer's. */
EFA_GDA_FN uint64_t ibgda_mapped(const efa_gda_ibgda_state *s, uint64_t address, int rank, int pe) {
  if (rank == pe) return address;
  if ((uint32_t)pe >= s->num_pes || s->peers[pe].mapped == 0) return 0;
  return s->peers[pe].mapped + (address - s->heap);
}

}  // namespace efa_gda

#if defined(__CUDACC_RDC__)
#define EFA_GDA_IBGDA_CALL __device__ __noinline__
namespace efa_gda {
/* Puts `bytes` bytes from `local` of this PE's heap. `remote`: the address in this PE's heap that corresponds to the
 * destination in the peer's. `qp`: a channel, modulo their number to a PE. One thread calls it. */
__device__ void ibgda_put(const efa_gda_ibgda_state *s, uint64_t remote, uint64_t local, uint64_t bytes, int pe,
                          int qp);
/* Waits until the requests before it are done, and then does `flag`. `remote`: the address in this PE's heap that
 * corresponds to the peer's word; for Drain, Quiet and Refused any address of the heap. One thread calls it. Threads of
 * one warp may call it at the same time, also for one channel. */
__device__ void ibgda_flag(const efa_gda_ibgda_state *s, IbgdaFlag flag, uint64_t remote, uint64_t value, int pe,
                           int qp);
}  // namespace efa_gda
#else
#define EFA_GDA_IBGDA_CALL EFA_GDA_COLD
#include "ibgda.h"
#endif

#endif
