/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What differs between a GPU and the host executor: memory accesses with scope and
 * order, the system fence, the doorbell store, the clock. Nothing here knows a queue.
 *
 * Inline PTX instead of <cuda/atomic>, so that NVRTC needs no header of the toolkit.
 * Scope "gpu" where only threads of one GPU take part, "sys" where the adapter or a
 * host thread does.
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
#else
#define EFA_GDA_ON_GPU 0
#define EFA_GDA_FN inline
#define EFA_GDA_COLD inline
#define EFA_GDA_KERNEL extern "C" void
#define EFA_GDA_GLOBAL
#define EFA_GDA_UNROLL
#include <time.h>
#include "../../host/lanes.h"
#endif

/* Keep what seldom happens out of the way of what always does: a post is bound by one
 * warp's instructions as much as by its fence. A function that is EFA_GDA_COLD works on
 * copies, or what it is given could not stay in registers. */
#define EFA_GDA_LIKELY(x) __builtin_expect(!!(x), 1)

namespace efa_gda {

/* A compiler that drops the alignment would lay the queue out differently from the host's. */
static_assert(sizeof(efa_gda_queue) == 5 * EFA_GDA_LINE && alignof(efa_gda_queue) == EFA_GDA_LINE,
              "one layout for all compilers");

/* Sixteen bytes that travel in one store where the platform can. */
struct alignas(16) Quad {
  uint32_t x, y, z, w;
};

#if EFA_GDA_ON_GPU

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
/* Two neighbouring words; each is whole, but `b` may be older than `a`. */
EFA_GDA_FN void load_acquire_pair(const uint64_t *p, uint64_t &a, uint64_t &b) {
  asm volatile("ld.acquire.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
EFA_GDA_FN void load_relaxed_pair(const uint64_t *p, uint64_t &a, uint64_t &b) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
}
EFA_GDA_FN void store_relaxed(uint32_t *p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
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
EFA_GDA_FN uint32_t compare_swap_acquire(uint32_t *p, uint32_t expected, uint32_t v) {
  uint32_t old;
  asm volatile("atom.cas.acquire.gpu.global.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(p), "r"(expected), "r"(v)
               : "memory");
  return old;
}
/* Zero, which the compiler takes for another number in each thread. What it adds to the
 * same number in all of them, it adds up over the warp first, and waits for the answer at
 * once to hand it out. Blocks are one-dimensional. */
EFA_GDA_FN uint32_t zero_by_thread() {
  uint32_t v;
  asm volatile("mov.u32 %0, %%tid.y;" : "=r"(v));
  return v;
}
EFA_GDA_FN uint64_t compare_swap(uint64_t *p, uint64_t expected, uint64_t v) {
  uint64_t old;
  asm volatile("atom.cas.acq_rel.gpu.global.b64 %0, [%1], %2, %3;"
               : "=l"(old)
               : "l"(p), "l"(expected), "l"(v)
               : "memory");
  return old;
}
/* Words that the adapter or the host writes. */
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
EFA_GDA_FN void store_system(volatile uint32_t *p, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Orders everything this thread did or has acquired before everything it does after,
 * for every observer, the adapter included. */
EFA_GDA_FN void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/* The same among the threads of this GPU. */
EFA_GDA_FN void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/* Likewise, and one order of all such fences: of two threads that each write, fence and
 * read what the other wrote, one sees it. */
EFA_GDA_FN void fence_device_ordered() { asm volatile("fence.sc.gpu;" ::: "memory"); }
/* A register of the adapter: never split, merged or repeated. */
EFA_GDA_FN void store_doorbell(volatile uint32_t *p, uint32_t v) {
  asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
EFA_GDA_FN void store_quad(uint8_t *p, const Quad &v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
/* The same bytes as two stores of eight, as both peers do it. */
EFA_GDA_FN void store_quad_by_eight(uint8_t *p, const Quad &v) {
  uint64_t lo = v.x | (uint64_t)v.y << 32, hi = v.z | (uint64_t)v.w << 32;
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(lo) : "memory");
  asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(p + 8), "l"(hi) : "memory");
}
/* Memory of this GPU: what one thread leaves for another, ordered by a flag. */
EFA_GDA_FN void store_quad_local(uint8_t *p, const Quad &v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
EFA_GDA_FN Quad load_quad_local(const uint8_t *p) {
  Quad v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
EFA_GDA_FN uint32_t bits_in(uint32_t v) { return (uint32_t)__popc((int)v); }
/* Bits below the lowest that is 0; 32 where none is. */
EFA_GDA_FN uint32_t low_ones(uint32_t v) { return ~v == 0 ? 32 : (uint32_t)__ffs((int)~v) - 1; }
/* One more than the place of the highest bit; 0 for none. */
EFA_GDA_FN uint32_t bit_width(uint32_t v) { return 32 - (uint32_t)__clz((int)v); }
EFA_GDA_FN uint64_t clock_ns() {
  uint64_t v;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
  return v;
}
EFA_GDA_FN void pause() {}

#else

/* Each lets a test change lanes first: lanes.h. */
#define EFA_GDA_HOST_ACCESS(T)                                                                        \
  inline T load_relaxed(const T *p) { return host::step(), __atomic_load_n(p, __ATOMIC_RELAXED); }    \
  inline T load_acquire(const T *p) { return host::step(), __atomic_load_n(p, __ATOMIC_ACQUIRE); }    \
  inline void store_relaxed(T *p, T v) { host::step(), __atomic_store_n(p, v, __ATOMIC_RELAXED); }    \
  inline void store_release(T *p, T v) { host::step(), __atomic_store_n(p, v, __ATOMIC_RELEASE); }    \
  inline T fetch_add_relaxed(T *p, T v) { return host::step(), __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
EFA_GDA_HOST_ACCESS(uint32_t)
EFA_GDA_HOST_ACCESS(uint64_t)
#undef EFA_GDA_HOST_ACCESS
inline void load_acquire_pair(const uint64_t *p, uint64_t &a, uint64_t &b) {
  host::step();
  a = __atomic_load_n(p, __ATOMIC_ACQUIRE);
  b = __atomic_load_n(p + 1, __ATOMIC_ACQUIRE);
}
inline void load_relaxed_pair(const uint64_t *p, uint64_t &a, uint64_t &b) { load_acquire_pair(p, a, b); }
inline uint32_t zero_by_thread() { return 0; }
inline uint64_t compare_swap(uint64_t *p, uint64_t expected, uint64_t v) {
  host::step();
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
inline uint32_t compare_swap_acquire(uint32_t *p, uint32_t expected, uint32_t v) {
  host::step();
  __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
  return expected;
}
inline uint32_t load_system(const volatile uint32_t *p) { return host::step(), __atomic_load_n(p, __ATOMIC_RELAXED); }
inline uint64_t load_system(const volatile uint64_t *p) { return host::step(), __atomic_load_n(p, __ATOMIC_RELAXED); }
inline void store_system(volatile uint32_t *p, uint32_t v) { host::step(), __atomic_store_n(p, v, __ATOMIC_RELAXED); }
inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void fence_device() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
inline void fence_device_ordered() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
/* Release, although a fence comes before it: an emulated adapter is another thread of
 * this program, and this is what lets a race detector see the order. */
inline void store_doorbell(volatile uint32_t *p, uint32_t v) { host::step(), __atomic_store_n(p, v, __ATOMIC_RELEASE); }
inline void store_quad(uint8_t *p, const Quad &v) {
  host::step();
  uint64_t *w = reinterpret_cast<uint64_t *>(p);
  __atomic_store_n(w, v.x | (uint64_t)v.y << 32, __ATOMIC_RELAXED);
  __atomic_store_n(w + 1, v.z | (uint64_t)v.w << 32, __ATOMIC_RELAXED);
}
inline void store_quad_by_eight(uint8_t *p, const Quad &v) { store_quad(p, v); }
inline void store_quad_local(uint8_t *p, const Quad &v) { store_quad(p, v); }
inline Quad load_quad_local(const uint8_t *p) {
  host::step();
  const uint64_t *w = reinterpret_cast<const uint64_t *>(p);
  uint64_t lo = __atomic_load_n(w, __ATOMIC_RELAXED), hi = __atomic_load_n(w + 1, __ATOMIC_RELAXED);
  return Quad{(uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32)};
}
inline uint32_t bits_in(uint32_t v) { return (uint32_t)__builtin_popcount(v); }
inline uint32_t low_ones(uint32_t v) { return ~v == 0 ? 32 : (uint32_t)__builtin_ctz(~v); }
inline uint32_t bit_width(uint32_t v) { return v == 0 ? 0 : 32 - (uint32_t)__builtin_clz(v); }
inline uint64_t clock_ns() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
inline void pause() { host::yield(); }

#endif

/* The bound of one wait. Also ends it when another thread poisons the queue, or the host
 * raises the abort flag. Poison and clock are looked at every 32 turns. The flag lies in
 * the host's memory, and reads of that delay everybody's fences: it is looked at every
 * 100 us, at once only by those who wait for the adapter. Those who wait for their turn
 * are many, and see the poison that the one before them leaves. */
class Deadline {
 public:
  static constexpr uint64_t kLookNs = 100 * 1000;

  EFA_GDA_FN Deadline(const efa_gda_queue *queue, uint64_t bound_ns, uint64_t first_look_ns = 0)
      : queue_(queue), bound_ns_(bound_ns), first_look_ns_(first_look_ns), start_(0), look_(0), turns_(0) {}

  /* One turn of a waiting loop. EFA_GDA_OK: go on waiting. */
  EFA_GDA_FN efa_gda_status expired(efa_gda_status when_late) {
    pause();
    if (turns_++ % 32 != 0) return EFA_GDA_OK;
    if (load_relaxed(&queue_->error.poison) != EFA_GDA_OK) return EFA_GDA_POISONED;
    uint64_t now = clock_ns();
    if (start_ == 0) {
      start_ = now;
      look_ = now + first_look_ns_;
    }
    if (now >= look_ && queue_->abort != nullptr) {
      look_ = now + kLookNs;
      uint32_t stop = load_system(queue_->abort);
      if (stop != 0) return stop == 1 ? EFA_GDA_ABORTED : (efa_gda_status)stop;
    }
    return now - start_ >= bound_ns_ ? when_late : EFA_GDA_OK;
  }

 private:
  const efa_gda_queue *queue_;
  uint64_t bound_ns_, first_look_ns_, start_, look_;
  uint32_t turns_;
};

/* Takes a queue out of service; the first reason stays. */
EFA_GDA_FN void poison(efa_gda_queue *queue, efa_gda_status reason) {
  if (reason != EFA_GDA_POISONED) compare_swap_acquire(&queue->error.poison, EFA_GDA_OK, reason);
}

}  // namespace efa_gda

#endif
