/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Puts over NVSHMEM's symmetric heap through an EFA adapter that the GPU rings, for programs whose host called
 * efa_gda_nvshmem_init (kernels/nvshmem/efa_gda_nvshmem_heap.h). docs/nvshmem.md is the guide. Compile with -rdc=true,
 * as NVSHMEM needs it. ibgda.h states order and failures.
 *
 * Addresses are those of this PE's heap, as NVSHMEM's functions take them. The functions with a suffix must be called
 * by all threads of the warp or the block, the others by one thread.
 */
#ifndef EFA_GDA_NVSHMEM_CUH
#define EFA_GDA_NVSHMEM_CUH

#if defined(__CUDACC__)

#include "efa_gda/ibgda_calls.h"

#if !defined(__CUDACC_RDC__)
#error "efa_gda/nvshmem.cuh needs -rdc=true: the library that efa_gda_nvshmem_init belongs to defines its calls"
#endif

extern __device__ struct efa_gda_ibgda_state efa_gda_ibgda_state_d;

/* Copies by the threads `rank`, `rank` + `threads`, and so on, where the peer's heap is mapped (NVLink). */
EFA_GDA_FN void efa_gda_nvshmem_copy(uint64_t dest, const void *source, size_t bytes, uint32_t rank, uint32_t threads) {
  uint64_t from = reinterpret_cast<uint64_t>(source);
  if (((dest | from | bytes) & 15) == 0) {
    for (size_t at = 16 * (size_t)rank; at < bytes; at += 16 * (size_t)threads) {
      *reinterpret_cast<efa_gda::Quad *>(dest + at) = *reinterpret_cast<const efa_gda::Quad *>(from + at);
    }
  } else {
    for (size_t at = rank; at < bytes; at += threads) {
      *reinterpret_cast<uint8_t *>(dest + at) = *reinterpret_cast<const uint8_t *>(from + at);
    }
  }
}

/* Where this GPU has `dest` of PE `pe` mapped; 0: only the adapter reaches it. */
EFA_GDA_FN uint64_t efa_gda_nvshmem_mapped(const void *dest, int pe) {
  const efa_gda_ibgda_state *s = &efa_gda_ibgda_state_d;
  /* Its own heap is one of the peers'; no PE has the rank -1. */
  return efa_gda::ibgda_mapped(s, reinterpret_cast<uint64_t>(dest), -1, pe);
}

/* The channel of a thread's puts: warps of a block use channels one after the other. */
EFA_GDA_FN int efa_gda_nvshmem_channel_of_warp() { return (int)(threadIdx.x / 32 + blockIdx.x); }

/* Puts `bytes` bytes: by stores where the peer's heap is mapped, otherwise through the channel of the adapter. Returns
 * when they are stored or rung for; efa_gda_nvshmem_quiet() waits until they are at the peer. */
template <class Group>
EFA_GDA_FN void efa_gda_nvshmem_put_by(Group group, void *dest, const void *source, size_t bytes, int pe, int channel) {
  group.sync();
  uint64_t mapped = efa_gda_nvshmem_mapped(dest, pe);
  if (mapped != 0) {
    efa_gda_nvshmem_copy(mapped, source, bytes, group.rank(), group.size());
  } else if (group.rank() == 0) {
    efa_gda::ibgda_put(&efa_gda_ibgda_state_d, reinterpret_cast<uint64_t>(dest), reinterpret_cast<uint64_t>(source),
                       bytes, pe, channel);
  }
  group.sync();
}
EFA_GDA_FN void efa_gda_nvshmem_put(void *dest, const void *source, size_t bytes, int pe) {
  efa_gda_nvshmem_put_by(efa_gda::ThreadGroup(), dest, source, bytes, pe, efa_gda_nvshmem_channel_of_warp());
}
EFA_GDA_FN void efa_gda_nvshmem_put_warp(void *dest, const void *source, size_t bytes, int pe) {
  efa_gda_nvshmem_put_by(efa_gda::WarpGroup(), dest, source, bytes, pe, efa_gda_nvshmem_channel_of_warp());
}
EFA_GDA_FN void efa_gda_nvshmem_put_block(void *dest, const void *source, size_t bytes, int pe) {
  efa_gda_nvshmem_put_by(efa_gda::BlockGroup(), dest, source, bytes, pe, efa_gda_nvshmem_channel_of_warp());
}

/* The channel of a word: all adds to it go through one. */
EFA_GDA_FN int efa_gda_nvshmem_channel(const void *word) {
  return (int)(reinterpret_cast<uint64_t>(word) >> 3 & 0xffff);
}

/* Sets a word of 8 bytes behind all that this thread put or acquired before; through the adapter, when all that this
 * GPU put before is done, to all PEs. That does not order data of another channel's queue (ORDER in ibgda.h). */
EFA_GDA_FN void efa_gda_nvshmem_signal(uint64_t *word, uint64_t value, int pe) {
  uint64_t mapped = efa_gda_nvshmem_mapped(word, pe);
  if (mapped != 0) {
    efa_gda::fence_release_system();
    *reinterpret_cast<volatile uint64_t *>(mapped) = value;
  } else {
    efa_gda::ibgda_flag(&efa_gda_ibgda_state_d, efa_gda::IbgdaFlag::Set8, reinterpret_cast<uint64_t>(word), value, pe,
                        efa_gda_nvshmem_channel(word));
  }
}

/* Puts, and sets the word behind it. Through the adapter it waits for the put. Data and word go through the word's
 * channel, so to one endpoint of the peer, which the order between them needs (signal.h). */
template <class Group>
EFA_GDA_FN void efa_gda_nvshmem_put_signal_by(Group group, void *dest, const void *source, size_t bytes, uint64_t *word,
                                              uint64_t value, int pe) {
  efa_gda_nvshmem_put_by(group, dest, source, bytes, pe, efa_gda_nvshmem_channel(word));
  if (group.rank() == 0) efa_gda_nvshmem_signal(word, value, pe);
  group.sync();
}
EFA_GDA_FN void efa_gda_nvshmem_put_signal(void *dest, const void *source, size_t bytes, uint64_t *word, uint64_t value,
                                           int pe) {
  efa_gda_nvshmem_put_signal_by(efa_gda::ThreadGroup(), dest, source, bytes, word, value, pe);
}
EFA_GDA_FN void efa_gda_nvshmem_put_signal_warp(void *dest, const void *source, size_t bytes, uint64_t *word,
                                                uint64_t value, int pe) {
  efa_gda_nvshmem_put_signal_by(efa_gda::WarpGroup(), dest, source, bytes, word, value, pe);
}
EFA_GDA_FN void efa_gda_nvshmem_put_signal_block(void *dest, const void *source, size_t bytes, uint64_t *word,
                                                 uint64_t value, int pe) {
  efa_gda_nvshmem_put_signal_by(efa_gda::BlockGroup(), dest, source, bytes, word, value, pe);
}

/* Waits until all of this GPU's puts and signals through the adapter are done, and orders the stores of this thread. */
EFA_GDA_FN void efa_gda_nvshmem_quiet() {
  efa_gda::fence_system();
  const efa_gda_ibgda_state *s = &efa_gda_ibgda_state_d;
  efa_gda::ibgda_flag(s, efa_gda::IbgdaFlag::Drain, s->heap, 0, (int)s->rank, 0);
}

/* Waits until the word of this PE is `value`. Returns false if it is not within `timeout_ns`, or if a call of this GPU
 * failed. One thread calls it; data that was put before the signal is then visible to it. */
EFA_GDA_FN bool efa_gda_nvshmem_wait(const uint64_t *word, uint64_t value, uint64_t timeout_ns) {
  uint64_t start = efa_gda::clock_ns();
  bool seen = false, failed = false;
  while (!seen && !failed && efa_gda::clock_ns() - start < timeout_ns) {
    failed = efa_gda::load_relaxed(&efa_gda_ibgda_state_d.shared->failed) != EFA_GDA_OK;
    seen = efa_gda::load_system(static_cast<const volatile uint64_t *>(word)) == value;
  }
  efa_gda::fence_acquire_system();
  return seen;
}

#endif

#endif
