/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Arguments of the host executor's C interface. efa-gda/src/executor/host.rs declares the same structs. */
#ifndef EFA_GDA_HOST_KERNELS_H
#define EFA_GDA_HOST_KERNELS_H

#include <stddef.h>

#include "efa_gda/queue.h"

/* One entry to format with the device code. Fields that the operation does not use are ignored. */
struct efa_gda_host_entry {
  struct efa_gda_peer peer;
  uint64_t local_address;
  uint64_t second_address;
  uint64_t remote_address;
  uint64_t request_id;
  uint32_t op;
  uint32_t lkey;
  uint32_t length;
  uint32_t second_lkey;
  uint32_t second_length;
  uint32_t rkey;
  uint32_t immediate;
  uint32_t hints;
  /* Local buffers of a SEND: 1 or 2. */
  uint32_t pieces;
  uint8_t has_immediate;
  uint8_t phase;
  uint8_t wide_id;
  uint8_t reserved;
};

#endif
