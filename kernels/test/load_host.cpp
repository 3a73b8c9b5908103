/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The load generator on the host executor. efa-gda/src/executor/host.rs declares the same function. */
#include "load.cu"

/* Runs one block of efa_gda_load_kernel, or of efa_gda_load_mixed_kernel, on the calling thread. */
extern "C" bool efa_gda_host_load(const efa_gda_load_args *args, bool mixed, uint32_t block, uint32_t blocks,
                                  uint32_t lanes) {
  auto load = mixed ? efa_gda_load_mixed_kernel : efa_gda_load_kernel;
  return efa_gda::host::run_block(block, blocks, lanes, [=] { load(*args); });
}
