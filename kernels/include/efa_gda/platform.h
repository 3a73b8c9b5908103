/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What differs between a GPU and the host executor: memory accesses with scope and order, fences, the doorbell store,
 * the clock; and what all waits share: Deadline and poison().
 *
 * The GPU's accesses are inline PTX and not <cuda/atomic>, so that NVRTC needs no header of the toolkit. Their scope is
 * "gpu" where threads of one GPU synchronise by the word, "sys" where they do so with the adapter or a host thread.
 * Accesses of 16 bytes to entries, and those to the queue's geometry, are weak: other words and fences order them.
 *
 * The host's accesses call host::interleave_point() first (host_executor.h), so that a test can switch lanes there. The
 * fences that the protocols need between threads of the program are also fences of C++, so that a race detector sees
 * them.
 */
#ifndef EFA_GDA_PLATFORM_H
#define EFA_GDA_PLATFORM_H

#include "queue.h"

#if defined(__CUDA_ARCH__) || defined(__CUDACC__)
#define EFA_GDA_ON_GPU 1
#define EFA_GDA_FN __device__ __forceinline__
#define EFA_GDA_COLD inline __device__ __noinline__
#define EFA_GDA_KERNEL extern "C" __global__ void
#define EFA_GDA_GLOBAL __device__
#define EFA_GDA_UNROLL _Pragma("unroll")
#define EFA_GDA_NO_UNROLL _Pragma("unroll 1")
#else
#define EFA_GDA_ON_GPU 0
#define EFA_GDA_FN inline
#define EFA_GDA_COLD inline
#define EFA_GDA_KERNEL extern "C" void
#define EFA_GDA_GLOBAL
#define EFA_GDA_UNROLL
#define EFA_GDA_NO_UNROLL
#include "host_executor.h"
#endif

/* Marks the usual case. A post is bound by one warp's instructions as much as by its fence. So instructions of rare
 * cases are kept out of its way, by this macro and in functions marked EFA_GDA_COLD. Callers hand such a function a
 * copy of each object by address, because an object whose address is taken cannot stay in registers. */
#define EFA_GDA_LIKELY(x) __builtin_expect(!!(x), 1)

namespace efa_gda {

/* Fails where a compiler ignores the alignment and lays the queue out differently from the host's. */
static_assert(sizeof(efa_gda_queue) == 6 * EFA_GDA_LINE && alignof(efa_gda_queue) == EFA_GDA_LINE,
              "one layout for all compilers");

/* Sixteen bytes of an entry, which a GPU stores at once or as two times eight. */
struct alignas(16) Quad {
  uint32_t x, y, z, w;
};

/* What a post needs of efa_gda_sq. */
struct SendQueueGeometry {
  uint8_t *buffer;
  volatile uint32_t *doorbell;
  uint32_t entry_size, num_entries, max_batch, flags;
};

#if EFA_GDA_ON_GPU

/* The asm is volatile, so that each call loads anew and no register keeps the geometry from one call to the next. */
EFA_GDA_FN SendQueueGeometry load_geometry(const efa_gda_queue *queue) {
  uint64_t buffer, doorbell;
  SendQueueGeometry out;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(buffer), "=l"(doorbell) : "l"(&queue->sq));
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.entry_size), "=r"(out.num_entries), "=r"(out.max_batch), "=r"(out.flags)
               : "l"(&queue->sq.entry_size));
  out.buffer = reinterpret_cast<uint8_t *>(buffer);
  out.doorbell = reinterpret_cast<volatile uint32_t *>(doorbell);
  return out;
}
EFA_GDA_FN volatile uint32_t *load_doorbell(const efa_gda_queue *queue) {
  uint64_t doorbell;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(doorbell) : "l"(&queue->sq.doorbell));
  return reinterpret_cast<volatile uint32_t *>(doorbell);
}
EFA_GDA_FN uint32_t load_relaxed(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint64_t load_relaxed(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint16_t load_relaxed(const uint16_t *p) {
  uint16_t v;
  asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint64_t load_acquire(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint32_t load_acquire(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint16_t load_acquire(const uint16_t *p) {
  uint16_t v;
  asm volatile("ld.acquire.gpu.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
  return v;
}
/* Four neighbouring words in one access, the first in the lowest bits. Each is whole; they may be of different ages. */
EFA_GDA_FN uint64_t load_relaxed_four(const uint16_t *p) {
  uint16_t a, b, c, d;
  asm volatile("ld.relaxed.gpu.global.v4.u16 {%0, %1, %2, %3}, [%4];"
               : "=h"(a), "=h"(b), "=h"(c), "=h"(d)
               : "l"(p)
               : "memory");
  return a | (uint32_t)b << 16 | (uint64_t)(c | (uint32_t)d << 16) << 32;
}
EFA_GDA_FN void store_relaxed(uint32_t *p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
EFA_GDA_FN void store_relaxed(uint16_t *p, uint16_t v) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(p), "h"(v) : "memory");
}
EFA_GDA_FN void store_relaxed(uint64_t *p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
EFA_GDA_FN void store_release(uint32_t *p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
EFA_GDA_FN void store_release(uint64_t *p, uint64_t v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
EFA_GDA_FN uint64_t fetch_add_relaxed(uint64_t *p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.add.relaxed.gpu.global.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
EFA_GDA_FN uint32_t fetch_add_relaxed(uint32_t *p, uint32_t v) {
  uint32_t old;
  asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
EFA_GDA_FN uint64_t fetch_or_acquire(uint64_t *p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.or.acquire.gpu.global.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
EFA_GDA_FN uint32_t compare_swap_acquire(uint32_t *p, uint32_t expected, uint32_t v) {
  uint32_t old;
  asm volatile("atom.cas.acquire.gpu.global.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(p), "r"(expected), "r"(v)
               : "memory");
  return old;
}
/* Has the compiler keep `v` in a register, instead of computing it again where it is used. */
EFA_GDA_FN void keep(uint32_t &v) { asm volatile("" : "+r"(v)); }
/* Returns 0 in a form that the compiler takes for a different number in each thread. The addend of an atomic add
 * contains it: for an addend that is equal in all threads the compiler adds up the warp's addends first, and waits for
 * the result at once to distribute it. Blocks must be one-dimensional. */
EFA_GDA_FN uint32_t zero_by_thread() {
  uint32_t v;
  asm volatile("mov.u32 %0, %%tid.y;" : "=r"(v));
  return v;
}
/* The same in blocks of any dimensions; ptxas may see through it. */
EFA_GDA_FN uint32_t zero_by_lane() {
  uint32_t v;
  asm volatile("mov.u32 %0, %%laneid;\n\tshr.u32 %0, %0, 5;" : "=r"(v));
  return v;
}
EFA_GDA_FN uint64_t exchange_relaxed(uint64_t *p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.exch.relaxed.gpu.global.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
EFA_GDA_FN uint64_t compare_swap(uint64_t *p, uint64_t expected, uint64_t v) {
  uint64_t old;
  asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(p), "l"(expected), "l"(v)
               : "memory");
  return old;
}
/* Words that the adapter or the host also accesses. */
EFA_GDA_FN uint8_t load_system(const volatile uint8_t *p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return (uint8_t)v;
}
EFA_GDA_FN uint32_t load_system(const volatile uint32_t *p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint64_t load_system(const volatile uint64_t *p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN uint64_t load_system_acquire(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
EFA_GDA_FN void store_system(volatile uint32_t *p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Fences that are a release, an acquire, or both. A release orders all that this thread has done or acquired before the
 * stores that it makes afterwards; an acquire orders its earlier loads before all that it does afterwards. None orders
 * a store before a later load. _system: for every observer, the adapter included;
 * _device: among the threads of this GPU. A release waits until what it orders is performed. An acquire waits for no
 * store, but empties L1. nvcc and NVRTC have fences of one kind for sm_90 and newer GPUs, from CUDA 12.8 on; without
 * them each is both. */
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
#define EFA_GDA_FENCE(kind, scope) asm volatile("fence." #kind "." #scope ";" ::: "memory")
#else
#define EFA_GDA_FENCE(kind, scope) asm volatile("fence.acq_rel." #scope ";" ::: "memory")
#endif
EFA_GDA_FN void fence_system() { EFA_GDA_FENCE(acq_rel, sys); }
EFA_GDA_FN void fence_release_system() { EFA_GDA_FENCE(release, sys); }
EFA_GDA_FN void fence_acquire_system() { EFA_GDA_FENCE(acquire, sys); }
EFA_GDA_FN void fence_device() { EFA_GDA_FENCE(acq_rel, gpu); }
EFA_GDA_FN void fence_release_device() { EFA_GDA_FENCE(release, gpu); }
EFA_GDA_FN void fence_acquire_device() { EFA_GDA_FENCE(acquire, gpu); }
#undef EFA_GDA_FENCE
/* Stores to a doorbell, the adapter's or a doorbell record. The access is never split, merged or repeated. */
EFA_GDA_FN void store_doorbell(volatile uint32_t *p, uint32_t v) {
  asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* The same if `condition` holds: without a branch, which would keep the other lanes of the warp waiting. */
EFA_GDA_FN void store_doorbell_if(bool condition, volatile uint32_t *p, uint32_t v) {
  asm volatile(
      "{\n\t"
      ".reg .pred p;\n\t"
      "setp.ne.u32 p, %2, 0;\n\t"
      "@p st.mmio.relaxed.sys.global.u32 [%0], %1;\n\t"
      "}" ::"l"(p),
      "r"(v), "r"((uint32_t)condition)
      : "memory");
}
EFA_GDA_FN void store_quad(uint8_t *p, const Quad &v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
/* The same bytes in two stores of eight, as NCCL and efa-dp-direct store them. */
EFA_GDA_FN void store_quad_by_eight(uint8_t *p, const Quad &v) {
  uint64_t lo = v.x | (uint64_t)v.y << 32, hi = v.z | (uint64_t)v.w << 32;
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(lo) : "memory");
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(p + 8), "l"(hi) : "memory");
}
EFA_GDA_FN uint32_t bits_in(uint32_t v) { return (uint32_t)__popc((int)v); }
/* Number of ones below the lowest zero; 32 without a zero. */
EFA_GDA_FN uint32_t low_ones(uint32_t v) { return ~v == 0 ? 32 : (uint32_t)__ffs((int)~v) - 1; }
/* Number of zeroes below the lowest one; 64 without a one. */
EFA_GDA_FN uint32_t low_zeros(uint64_t v) { return v == 0 ? 64 : (uint32_t)__ffsll((long long)v) - 1; }
EFA_GDA_FN uint64_t clock_ns() {
  uint64_t v;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
  return v;
}
EFA_GDA_FN void pause() {}

#else

inline SendQueueGeometry load_geometry(const efa_gda_queue *queue) {
  const efa_gda_sq &sq = queue->sq;
  return {sq.buffer, sq.doorbell, sq.entry_size, sq.num_entries, sq.max_batch, sq.flags};
}
inline volatile uint32_t *load_doorbell(const efa_gda_queue *queue) { return queue->sq.doorbell; }
#define EFA_GDA_HOST_ACCESS(T)                                                                                 \
  inline T load_relaxed(const T *p) { return host::interleave_point(), __atomic_load_n(p, __ATOMIC_RELAXED); } \
  inline T load_acquire(const T *p) { return host::interleave_point(), __atomic_load_n(p, __ATOMIC_ACQUIRE); } \
  inline void store_relaxed(T *p, T v) { host::interleave_point(), __atomic_store_n(p, v, __ATOMIC_RELAXED); } \
  inline void store_release(T *p, T v) { host::interleave_point(), __atomic_store_n(p, v, __ATOMIC_RELEASE); } \
  inline T fetch_add_relaxed(T *p, T v) {                                                                      \
    return host::interleave_point(), __atomic_fetch_add(p, v, __ATOMIC_RELAXED);                               \
  }
EFA_GDA_HOST_ACCESS(uint16_t)
EFA_GDA_HOST_ACCESS(uint32_t)
EFA_GDA_HOST_ACCESS(uint64_t)
#undef EFA_GDA_HOST_ACCESS
inline uint64_t load_relaxed_four(const uint16_t *p) {
  uint64_t v = 0;
  for (int i = 0; i < 4; i++) v |= (uint64_t)load_relaxed(p + i) << (16 * i);
  return v;
}
inline void keep(uint32_t &) {}
inline uint32_t zero_by_thread() { return 0; }
inline uint32_t zero_by_lane() { return 0; }
inline uint64_t fetch_or_acquire(uint64_t *p, uint64_t v) {
  return host::interleave_point(), __atomic_fetch_or(p, v, __ATOMIC_ACQUIRE);
}
inline uint64_t exchange_relaxed(uint64_t *p, uint64_t v) {
  return host::interleave_point(), __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
inline uint64_t compare_swap(uint64_t *p, uint64_t expected, uint64_t v) {
  host::interleave_point();
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
inline uint32_t compare_swap_acquire(uint32_t *p, uint32_t expected, uint32_t v) {
  host::interleave_point();
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
  return expected;
}
#define EFA_GDA_HOST_LOAD_SYSTEM(T)               \
  inline T load_system(const volatile T *p) {     \
    host::interleave_point();                     \
    return __atomic_load_n(p, __ATOMIC_RELAXED);  \
  }
EFA_GDA_HOST_LOAD_SYSTEM(uint8_t)
EFA_GDA_HOST_LOAD_SYSTEM(uint32_t)
EFA_GDA_HOST_LOAD_SYSTEM(uint64_t)
#undef EFA_GDA_HOST_LOAD_SYSTEM
inline uint64_t load_system_acquire(const uint64_t *p) {
  uint64_t v = load_acquire(p);
#if defined(__aarch64__)
  /* See fence_system(). */
  __asm__ volatile("dmb oshld" ::: "memory");
#endif
  return v;
}
inline void store_system(volatile uint32_t *p, uint32_t v) {
  host::interleave_point();
  __atomic_store_n(p, v, __ATOMIC_RELAXED);
}
/* On AArch64 a fence of C++ orders threads, those of the inner shareable domain. A device is in the outer one, and an
 * adapter's memory may be write-combining. So the barriers there are those of rdma-core (util/udma_barrier.h): "dsb st"
 * is its mmio_flush_writes, and does what its udma_to_device_barrier, "dmb oshst", does; "dmb oshld" is its
 * udma_from_device_barrier. On x86-64 the instruction of the fence of C++ does the work of all of them. */
inline void fence_system() {
#if defined(__aarch64__)
  __asm__ volatile("dsb st" ::: "memory");
  __asm__ volatile("dmb oshld" ::: "memory");
#endif
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void fence_release_system() { fence_system(); }
inline void fence_acquire_system() { fence_system(); }
inline void fence_device() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void fence_release_device() { fence_device(); }
inline void fence_acquire_device() { fence_device(); }
/* A release, although a fence precedes it: a software adapter may be another thread of this program, and a race
 * detector recognises the order by the release. */
inline void store_doorbell(volatile uint32_t *p, uint32_t v) {
  host::interleave_point();
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
inline void store_doorbell_if(bool condition, volatile uint32_t *p, uint32_t v) {
  if (condition) store_doorbell(p, v);
}
inline void store_quad(uint8_t *p, const Quad &v) {
  host::interleave_point();
  uint64_t *w = reinterpret_cast<uint64_t *>(p);
  __atomic_store_n(w, v.x | (uint64_t)v.y << 32, __ATOMIC_RELAXED);
  __atomic_store_n(w + 1, v.z | (uint64_t)v.w << 32, __ATOMIC_RELAXED);
}
inline void store_quad_by_eight(uint8_t *p, const Quad &v) { store_quad(p, v); }

inline uint32_t bits_in(uint32_t v) { return (uint32_t)__builtin_popcount(v); }
inline uint32_t low_ones(uint32_t v) { return ~v == 0 ? 32 : (uint32_t)__builtin_ctz(~v); }
inline uint32_t low_zeros(uint64_t v) { return v == 0 ? 64 : (uint32_t)__builtin_ctzll(v); }
inline uint64_t clock_ns() { return host::clock_ns(); }
inline void pause() { host::yield(); }

#endif

/* The lowest `n` bits, at most 32. */
EFA_GDA_FN uint32_t low_bits(uint32_t n) { return n < 32 ? (1u << n) - 1 : ~0u; }

/* The bound of a wait: how long it may last without progress. Progress is a change of `*progress`, or a call of
 * restart(). A Deadline also ends the wait when the queue is poisoned, or when the abort flag is raised.
 *
 * Only the time in which the waiting thread runs counts: between two looks at the clock at most a sixteenth of the
 * bound. So if a debugger, a checkpoint or another process suspends all threads for longer than the bound, none of them
 * ends a wait because of it when they go on.
 *
 * The ninth call of expired(), each 32nd call after it and, when the bound is over, the next call read poison, clock
 * and `*progress`: most waits end before that. So that a kernel of short waits ends too, on a GPU about one wait in 16,
 * and on the host each wait, does so in the first call already. The abort flag is in host memory, and reading it delays
 * the fences of all groups: these calls read it first when the clock is at State's `first_abort_poll`, then every
 * kAbortPollNs, and when the bound is over. Waits for a turn pass a time that is kAbortPollNs away: many groups wait
 * there, and they see the poison that the group with the turn leaves when it is aborted. All other waits pass 0. */
class Deadline {
 public:
  static constexpr uint64_t kAbortPollNs = 100 * 1000;

  /* The part of a Deadline that few calls need. It is in the thread's memory, to which an access is slow after each
   * acquire; so the Deadline itself is another object. */
  struct State {
    uint64_t bound_ns, waited, last, next_abort_poll;
    uint32_t seen;
    bool is_over;

    EFA_GDA_FN explicit State(uint64_t bound, uint64_t first_abort_poll = 0)
        : bound_ns(bound), waited(0), last(0), next_abort_poll(first_abort_poll), seen(0), is_over(false) {}
  };

  /* `progress`: a word of the queue, or null. */
  EFA_GDA_FN Deadline(State &state, const efa_gda_queue *queue, const uint32_t *progress = nullptr)
      : state_(&state), queue_(queue), progress_(progress == nullptr ? 0 : offset_of(queue, progress)),
        calls_(looks_at_once() ? 0 : 24) {}

  /* To be called in each iteration of a waiting loop. EFA_GDA_OK: continue to wait. Otherwise the reason to stop:
   * EFA_GDA_POISONED, the abort flag's status, or `at_bound`. The bound counts from the first reading of the clock, or
   * from the reading that showed the last progress. When it is over, one call returns EFA_GDA_OK, so that the
   * caller looks once more. The next call returns `at_bound`, unless it reads progress and the bound is not 0: a thread
   * that did not run for a while has perhaps not seen what happened meanwhile. */
  EFA_GDA_FN efa_gda_status expired(efa_gda_status at_bound) {
    pause();
    if (EFA_GDA_LIKELY(calls_++ % 32 != 0)) return EFA_GDA_OK;
    uint32_t status = look(state_, queue_, progress_, at_bound);
    if (status == kIsOver) calls_ = 0;
    return status == kIsOver ? EFA_GDA_OK : (efa_gda_status)status;
  }

  /* The caller has seen progress: the bound counts from the next time that the clock is read. */
  EFA_GDA_FN void restart() { state_->last = 0; }

 private:
  /* What look() returns if the bound is over, and was not in the look before. It is not a status. */
  static constexpr uint32_t kIsOver = ~0u;

  EFA_GDA_FN static uint32_t offset_of(const efa_gda_queue *queue, const uint32_t *word) {
    return (uint32_t)(reinterpret_cast<const uint8_t *>(word) - reinterpret_cast<const uint8_t *>(queue));
  }

  /* Whether the first call looks. The clock's low bits choose, of which a GPU's clock moves in steps of 32 ns. On the
   * host a look is cheap, and a test repeats a run. */
  EFA_GDA_FN static bool looks_at_once() { return EFA_GDA_ON_GPU == 0 || (clock_ns() >> 5 & 15) == 0; }

  /* Reads poison, clock, progress and, at its time, the abort flag. */
  EFA_GDA_COLD static uint32_t look(State *s, const efa_gda_queue *queue, uint32_t progress, efa_gda_status at_bound) {
    if (load_relaxed(&queue->error.poison) != EFA_GDA_OK) return EFA_GDA_POISONED;
    uint64_t now = clock_ns();
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(queue);
    uint32_t seen = progress != 0 ? load_relaxed(reinterpret_cast<const uint32_t *>(bytes + progress)) : 0;
    uint64_t most = s->bound_ns / 16 + 1, since = now - s->last;
    s->waited = s->last == 0 || seen != s->seen ? 0 : s->waited + (since < most ? since : most);
    s->last = now;
    s->seen = seen;
    bool was_over = s->is_over, is_over = s->waited >= s->bound_ns;
    s->is_over = is_over;
    if ((is_over || now >= s->next_abort_poll) && queue->abort != nullptr) {
      s->next_abort_poll = now + kAbortPollNs;
      uint32_t stop = load_system(queue->abort);
      /* A value that no status has counts as 1. */
      if (stop != 0) return stop == 1 || stop > EFA_GDA_TIMEOUT_SIGNAL ? (uint32_t)EFA_GDA_ABORTED : stop;
    }
    if (!is_over) return EFA_GDA_OK;
    return was_over ? (uint32_t)at_bound : kIsOver;
  }

  State *state_;
  const efa_gda_queue *queue_;
  /* The offset of `*progress` in the queue, which takes one register in place of two; 0: none. */
  uint32_t progress_;
  uint32_t calls_;
};

/* Takes the queue out of service. The first reason stays in error.poison; EFA_GDA_POISONED is not a reason. */
EFA_GDA_FN void poison(efa_gda_queue *queue, efa_gda_status reason) {
  if (reason != EFA_GDA_POISONED) compare_swap_acquire(&queue->error.poison, EFA_GDA_OK, reason);
}

}  // namespace efa_gda

#endif
