/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The kernels of `gda-probe bench`: groups post RDMA writes and wait for all their completions. The kernels read the
 * clocks next to the calls; the host computes rates and latencies (efa-gda/src/queue/measure.rs). Not for applications.
 */
#include "efa_gda/put.h"

/* Arguments of both kernels. efa-gda/src/executor/host.rs declares the same struct. */
struct efa_gda_bench_args {
  /* One for each queue: request i is at address + (i modulo count) * stride on both sides. count must be a power of
   * two. */
  const efa_gda_put_args *puts;
  /* Two words for each group, in ns: the time at which it began to post, and at which all its requests had completed. */
  uint64_t *spans;
  /* Latency kernel only. For each call two words, in ticks: the duration of the post, up to the doorbell's store, and
   * from there to the completion. Then two words, the clock in ticks at the start and at the end. */
  uint64_t *samples;
  /* One word for each group: its final enum efa_gda_status. */
  uint32_t *status;
  uint32_t queue_count;
  /* kShared: groups share their queue. 0: each group owns its queue. */
  uint32_t sharing;
  /* Threads of a group: 1, 32 (a warp), or 0 for the whole block. */
  uint32_t group;
  uint32_t calls;
  uint32_t per_call;
  uint32_t reserved;
};
static_assert(sizeof(efa_gda_bench_args) == 56, "one layout for all compilers");

namespace {

constexpr uint32_t kShared = 1;

/* A clock finer than clock_ns(), which may step by a microsecond on a GPU. Valid within one multiprocessor. */
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
  uint64_t number = request & (put.count - 1);
  efa_gda::Memory local = {put.local_address + number * put.local_stride, put.lkey, (uint32_t)put.bytes};
  return efa_gda::write_entry(put.peer, local, put.remote_address + number * put.remote_stride, put.rkey);
}

/* Closes the handle. Returns the status of the calls before it, or of close() if they succeeded. */
template <class AnySender>
EFA_GDA_FN efa_gda_status bench_close(AnySender &sender, efa_gda_status status) {
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

template <efa_gda::Sharing S, class Group>
EFA_GDA_FN void bench_rate(const efa_gda_bench_args &a, Group group, uint32_t index) {
  using namespace efa_gda;
  /* A copy in registers, so that reading the arguments is not timed. */
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
  status = bench_close(sender, status);
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
  status = bench_close(sender, status);
  if (group.rank() == 0) {
    a.samples[2 * a.calls] = first;
    a.samples[2 * a.calls + 1] = last;
    a.spans[0] = begin;
    a.spans[1] = end;
    store_relaxed(a.status, (uint32_t)status);
  }
}

}  // namespace

/* Blocks of any number of threads. Block b posts to queue b modulo queue_count. */
EFA_GDA_KERNEL efa_gda_bench_rate_kernel(struct efa_gda_bench_args a) {
  using namespace efa_gda;
  uint32_t groups = a.group == 0 ? 1 : (block_threads() + a.group - 1) / a.group;
  uint32_t index = block_index() * groups + (a.group == 0 ? 0 : thread_index() / a.group);
  bool shared = a.sharing == kShared;
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

/* One block with one group, which owns queue 0. */
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
