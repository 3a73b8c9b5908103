/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The one definition of the device state and of the calls of ibgda_calls.h, for a program that is compiled with
 * -rdc=true. Compile this file with -rdc=true -maxrregcount=64, which is what a block of 1,024 threads has. Otherwise
 * the device linker refuses kernels with such blocks, as DeepEP's are. The calls need no more: what ptxas counts as
 * their spills are registers that a function saves for its caller.
 */
#include "efa_gda/ibgda_calls.h"
#include "efa_gda/ibgda.h"

#if !defined(__CUDACC_RDC__)
#error "compile this file with -rdc=true; without it each source has its own definitions (efa_gda/ibgda_compat.cuh)"
#endif

__device__ struct efa_gda_ibgda_state efa_gda_ibgda_state_d;

/* Host code: copies the state to this program's variable. Returns a cudaError_t. */
extern "C" int efa_gda_nvshmem_publish(const struct efa_gda_ibgda_state *state) {
  return (int)cudaMemcpyToSymbol(efa_gda_ibgda_state_d, state, sizeof *state);
}
