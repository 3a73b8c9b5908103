/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What gda-probe's bench times: RDMA writes that are really made, by any number of groups,
 * each until all of its completions came. Times are taken here, beside the calls, and
 * turned into figures by the host (efa-gda/src/queue/measure.rs). Not for applications.
 */
#include "efa_gda/put.h"

/* Arguments of both kernels; efa-gda/src/executor/host.rs declares the same. */
struct efa_gda_bench_args {
  /* One for each queue: request i at address + (i modulo count) * stride on both sides; count is a
   * power of two. */
  const efa_gda_put_args *puts;
  /* Two words for each group, in ns: when it began to post, and when all had completed. */
  uint64_t *spans;
  /* The latency kernel's: for each call two words in ticks, of the post (to the doorbell's store),
   * and from there to the completion; then two, the ticks of the first and the last moment. */
  uint64_t *samples;
  /* One for each group: the enum efa_gda_status it ended with. */
  uint32_t *status;
  uint32_t queue_count;
  /* enum efa_gda_load_sharing */
  uint32_t sharing;
  /* Threads of a group: 1, or a warp (32), or 0 for the whole block. */
  uint32_t group;
  uint32_t calls;
  uint32_t per_call;
  uint32_t reserved;
};
static_assert(sizeof(efa_gda_bench_args) == 56, "one layout for all compilers");

namespace {

/* Finer than clock_ns on a GPU, whose ns clock may step by a microsecond; of one
 * multiprocessor alone. */
EFA_GDA_FN uint64_t ticks() {
#if EFA_GDA_ON_GPU
  uint64_t v;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(v)::"memory");
  return v;
#else
  return efa_gda::clock_ns();
#endif
}

EFA_GDA_FN efa_gda::Entry bench_entry(const efa_gda_put_args &put, uint64_t request) {
  uint64_t place = request & (put.count - 1);
  efa_gda::Memory local = {put.local_address + place * put.local_stride, put.lkey, (uint32_t)put.bytes};
  return efa_gda::write_entry(put.peer, local, put.remote_address + place * put.remote_stride, put.rkey);
}

/* The status of a group: of its calls, or of what it deferred to the end. */
template <class AnySender>
EFA_GDA_FN efa_gda_status bench_end(AnySender &sender, efa_gda_status status) {
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

template <efa_gda::Sharing S, class Group>
EFA_GDA_FN void bench_rate(const efa_gda_bench_args &a, Group group, uint32_t index) {
  using namespace efa_gda;
  /* A copy, in registers: what is timed is the post and not the reading of its arguments. */
  const efa_gda_put_args put = a.puts[block_index() % a.queue_count];
  Sender<S, Group> sender(put.queue, put.timeout_ns, group);
  efa_gda_status status = sender.status();
  uint64_t begin = clock_ns();
  for (uint32_t call = 0; call < a.calls && status == EFA_GDA_OK; call++) {
    uint64_t first = (uint64_t)call * a.per_call;
    status = sender.post(a.per_call, [&](uint32_t i) { return bench_entry(put, first + i); });
  }
  if (status == EFA_GDA_OK) status = sender.quiet();
  uint64_t end = clock_ns();
  status = bench_end(sender, status);
  if (group.rank() == 0) {
    a.spans[2 * index] = begin;
    a.spans[2 * index + 1] = end;
    store_relaxed(a.status + index, (uint32_t)status);
  }
}

template <efa_gda::Sharing S, class Group>
EFA_GDA_FN void bench_latency(const efa_gda_bench_args &a, Group group) {
  using namespace efa_gda;
  const efa_gda_put_args put = a.puts[0];
  Sender<S, Group> sender(put.queue, put.timeout_ns, group);
  efa_gda_status status = sender.status();
  uint64_t begin = clock_ns(), first = ticks();
  for (uint32_t call = 0; call < a.calls && status == EFA_GDA_OK; call++) {
    uint64_t before = ticks();
    status = sender.post(a.per_call, [&](uint32_t i) { return bench_entry(put, (uint64_t)call * a.per_call + i); });
    uint64_t posted = ticks();
    if (status == EFA_GDA_OK) status = sender.quiet();
    uint64_t done = ticks();
    if (group.rank() == 0) {
      a.samples[2 * call] = posted - before;
      a.samples[2 * call + 1] = done - posted;
    }
  }
  uint64_t last = ticks(), end = clock_ns();
  status = bench_end(sender, status);
  if (group.rank() == 0) {
    a.samples[2 * a.calls] = first;
    a.samples[2 * a.calls + 1] = last;
    a.spans[0] = begin;
    a.spans[1] = end;
    store_relaxed(a.status, (uint32_t)status);
  }
}

}  // namespace

/* Blocks of as many threads as are wanted; block b posts to queue b modulo queue_count. */
EFA_GDA_KERNEL efa_gda_bench_rate_kernel(struct efa_gda_bench_args a) {
  using namespace efa_gda;
  uint32_t groups = a.group == 0 ? 1 : (block_threads() + a.group - 1) / a.group;
  uint32_t index = block_index() * groups + (a.group == 0 ? 0 : thread_index() / a.group);
  bool shared = a.sharing == EFA_GDA_LOAD_SHARED;
  if (a.group == 0) {
    if (shared) {
      bench_rate<Sharing::Device>(a, BlockGroup(), index);
    } else {
      bench_rate<Sharing::Block>(a, BlockGroup(), index);
    }
  } else if (a.group == 1) {
    if (shared) {
      bench_rate<Sharing::Device>(a, ThreadGroup(), index);
    } else if (thread_index() == 0) {
      bench_rate<Sharing::Thread>(a, ThreadGroup(), index);
    }
  } else {
    if (shared) {
      bench_rate<Sharing::Device>(a, WarpGroup(), index);
    } else if (thread_index() < 32) {
      bench_rate<Sharing::Warp>(a, WarpGroup(), index);
    }
  }
}

/* One block that is one group, which owns the first queue. */
EFA_GDA_KERNEL efa_gda_bench_latency_kernel(struct efa_gda_bench_args a) {
  using namespace efa_gda;
  if (a.group == 0) {
    bench_latency<Sharing::Block>(a, BlockGroup());
  } else if (a.group == 1) {
    if (thread_index() == 0) bench_latency<Sharing::Thread>(a, ThreadGroup());
  } else if (thread_index() < 32) {
    bench_latency<Sharing::Warp>(a, WarpGroup());
  }
}
