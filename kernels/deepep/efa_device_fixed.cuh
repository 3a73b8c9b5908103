/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* An earlier name of efa_gda/ibgda_compat.cuh. */
#ifndef EFA_DEVICE_FIXED_CUH
#define EFA_DEVICE_FIXED_CUH

#include "efa_gda/ibgda_compat.cuh"

#endif
