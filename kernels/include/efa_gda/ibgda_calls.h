/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The calls of ibgda.h, without the posting engine where that is possible. With -rdc=true the program has one
 * definition of them, kernels/nvshmem/device.cu, which is compiled for the registers of the largest block that calls
 * it. Without
 * -rdc, and for the host executor, each source has its own.
 */
#ifndef EFA_GDA_IBGDA_CALLS_H
#define EFA_GDA_IBGDA_CALLS_H

#include "group.h"
#include "ibgda_state.h"

namespace efa_gda {

/* What ibgda_flag() does when everything before is done. */
enum class IbgdaFlag : uint32_t {
  /* Writes 4 bytes of the value to the remote word. */
  Set4,
  /* Writes 8 bytes, behind the requests of all channels. */
  Set8,
  /* Adds the value to the remote word of 8 bytes, whose other adds go through the same channel (ORDER in ibgda.h). */
  Add8,
  /* Nothing more; "before" is the requests of all channels. */
  Drain,
  /* Forgets the channel's sums. */
  Quiet,
  /* Fails with EFA_GDA_UNSUPPORTED. */
  Refused
};

/* The address at which this GPU reaches `address` of PE `pe`; 0: only through the adapter. */
EFA_GDA_FN uint64_t ibgda_mapped(const efa_gda_ibgda_state *s, uint64_t address, int rank, int pe) {
  if (rank == pe) return address;
  if ((uint32_t)pe >= s->num_pes || s->peers[pe].mapped == 0) return 0;
  return s->peers[pe].mapped + (address - s->heap);
}

}  // namespace efa_gda

#if defined(__CUDACC_RDC__)
#define EFA_GDA_IBGDA_CALL __device__ __noinline__
namespace efa_gda {
/* Puts `bytes` bytes from `local` of this PE's heap. One thread calls it. */
__device__ void ibgda_put(const efa_gda_ibgda_state *s, uint64_t remote, uint64_t local, uint64_t bytes, int pe,
                          int qp);
/* Waits until everything before is done, and then does `flag`. One thread calls it. Threads of one warp may call it at
 * the same time, also for one channel. */
__device__ void ibgda_flag(const efa_gda_ibgda_state *s, IbgdaFlag flag, uint64_t remote, uint64_t value, int pe,
                           int qp);
}  // namespace efa_gda
#else
#define EFA_GDA_IBGDA_CALL EFA_GDA_COLD
#include "ibgda.h"
#endif

#endif
