/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A host compiler sees no device code and no state. */
#include "efa_device_fixed.cuh"

#if defined(EFA_GDA_ON_GPU) || defined(EFA_GDA_IBGDA_STATE)
#error "the header declared device code for a host compiler"
#endif

int host_only() { return 0; }
