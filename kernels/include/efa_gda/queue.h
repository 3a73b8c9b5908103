/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a kernel receives: the one definition of a mapped queue, shared by CUDA
 * kernels, the host executor and Rust (through bindgen). Plain C, no pointers to
 * functions, layout the same for host and device compilers.
 */
#ifndef EFA_GDA_QUEUE_H
#define EFA_GDA_QUEUE_H

#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
using cuda::std::uint16_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
#else
#include <stdint.h>
#endif

/* The send queue as the adapter exposes it. Constant while the queue lives. */
struct efa_gda_sq {
  /* Slot 0, as the poster addresses it: num_entries * entry_size bytes, write only. */
  uint8_t *buffer;
  /* Takes the producer counter, 16 bits zero-extended. */
  volatile uint32_t *doorbell;
  /* 64 or 128 bytes. */
  uint32_t entry_size;
  /* A power of two. */
  uint32_t num_entries;
  /* Entries that may be written between two doorbells. */
  uint32_t max_batch;
  uint32_t flags;
};

/* The completion queue as the adapter exposes it. Constant while the queue lives. */
struct efa_gda_cq {
  uint8_t *buffer;
  uint32_t entry_size;
  /* A power of two. */
  uint32_t num_entries;
};

#endif
