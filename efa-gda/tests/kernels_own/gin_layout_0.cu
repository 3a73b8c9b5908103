/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* gin.cu for the queues of efa-dp-direct 0.0.1. */
#define EFA_GDA_GIN_LAYOUT 0
#define GIN_NAME(name) gin_layout_0##name
#include "gin.cu"
