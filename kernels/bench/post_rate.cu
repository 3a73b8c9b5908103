/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The rate at which the posting engine places 64-byte entries in send queues across PCIe and rings, compared with other
 * posting engines in one process and on the same ring. Pinned host memory takes the place of the adapter's BAR.
 * scripts/bench_gpu.sh builds and runs it.
 *
 *   post_rate bench    prints the table: medians, ranges, peers, store widths, backpressure
 *   post_rate check    runs each case while a host thread reads all entries and doorbells (checker.h); exit status 1 if
 *                      a rule is broken
 *   post_rate soak     the same with a billion entries that all multiprocessors post to shared queues
 *   post_rate floor    measures single operations: a fence, a store, coalesced stores without a protocol
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "checker.h"
#include "efa_gda/post.h"
#include "rig.h"

namespace {

using efa_gda::BlockGroup;
using efa_gda::Sharing;
using efa_gda::ThreadGroup;
using efa_gda::WarpGroup;

struct Load {
  efa_gda_queue *queues;
  uint32_t *status;
  int queue_count;
  int calls;
};

/* Each group posts `calls` times, one entry for each of its threads, with a doorbell for each call. */
template <Sharing S, class Group, int StoreBytes>
__global__ void post_kernel(Load load) {
  Group group;
  uint32_t index = (blockIdx.x * blockDim.x + threadIdx.x) / group.size();
  efa_gda::Sender<S, Group, StoreBytes> sender(load.queues + blockIdx.x % load.queue_count);
  efa_gda_status status = sender.status();
  /* Forces `index` into a register. Without this the compiler computes it again for each entry. */
  asm volatile("" : "+r"(index));
  efa_gda_peer peer = {3, 9, 0x1234};
  uint64_t base = (uint64_t)index << 48;
  for (int call = 0; call < load.calls && status == EFA_GDA_OK; call++) {
    uint64_t tag = base | (uint64_t)(uint32_t)call << 16;
    status = sender.post(group.size(), [&](uint32_t i) {
      return efa_gda::write_entry(peer, efa_gda::Memory{tag + i, 5, 64}, tag + i, 0xabc);
    });
  }
  efa_gda_status closed = sender.close();
  if (status == EFA_GDA_OK) status = closed;
  if (group.rank() == 0 && status != EFA_GDA_OK) efa_gda::store_relaxed(load.status, (uint32_t)status);
}

/* Acts as the adapter: each thread polls a doorbell and counts the entries that it covers as completed. */
__global__ void adapter_kernel(uint8_t *doorbells, uint64_t *completed, int queues, volatile uint32_t *stop,
                               uint32_t pause_ns) {
  int queue = threadIdx.x;
  if (queue >= queues) return;
  const volatile uint32_t *doorbell = (const volatile uint32_t *)(doorbells + queue * kDoorbellStride);
  uint64_t done = 0;
  for (;;) {
    bool last = efa_gda::load_system((const volatile uint32_t *)stop) != 0;
    uint32_t step = (efa_gda::load_system(doorbell) - (uint32_t)done) & 0xffff;
    if (step != 0) efa_gda::store_relaxed(completed + queue, done += step);
    if (last && step == 0) return;
    __nanosleep(pause_ns);
  }
}

/* Bare coalesced 16-byte stores over the rings of `gridDim.x` queues. */
__global__ void floor_kernel(uint8_t *ring, size_t bytes, int laps) {
  for (int lap = 0; lap < laps; lap++) {
    for (size_t o = (blockIdx.x * blockDim.x + threadIdx.x) * 16ull; o < bytes; o += gridDim.x * blockDim.x * 16ull) {
      efa_gda::store_quad(ring + o, efa_gda::Quad{(uint32_t)lap, 2, 3, 4});
    }
  }
}

/* The operations of a post by one thread, one selection of them for each `variant`. */
__global__ void operation_kernel(uint8_t *ring, volatile uint32_t *doorbell, uint64_t *word, int iterations, int variant) {
  uint64_t sum = 0;
  for (int i = 0; i < iterations; i++) {
    uint8_t *slot = ring + (i & 4095) * 64;
    if (variant <= 3) {
      for (int k = 0; k < 4; k++) efa_gda::store_quad(slot + 16 * k, efa_gda::Quad{(uint32_t)i, 1, 2, 3});
    }
    if (variant >= 1 && variant <= 3) efa_gda::fence_system();
    if (variant <= 3) efa_gda::store_doorbell(doorbell, (uint32_t)(i + 1) & 0xffff);
    if (variant == 2) efa_gda::fence_system();
    if (variant == 3) efa_gda::store_release(word, (uint64_t)i);
    if (variant == 4) sum += efa_gda::fetch_add_relaxed(word, (uint64_t)1 + (sum & 1));
    if (variant == 5) sum += efa_gda::load_acquire(word + (sum & 1));
  }
  if (sum == 1) *word = sum;
}

/* Stores and fences without a protocol: one warp for each queue stores `entries` entries as whole lines, fences, rings
 * and, with `fence_again`, fences once more. It makes no real entries. */
__global__ void bare_kernel(uint8_t *rings, uint8_t *doorbells, int iterations, int entries, bool fence_again) {
  uint8_t *ring = rings + (size_t)blockIdx.x * kDepth * kEntry;
  volatile uint32_t *doorbell = (volatile uint32_t *)(doorbells + blockIdx.x * kDoorbellStride);
  for (uint32_t next = 0; next != (uint32_t)(iterations * entries); next += entries) {
    for (uint32_t at = threadIdx.x * 16; at < entries * kEntry; at += 32 * 16) {
      efa_gda::store_quad(ring + (next * kEntry + at) % (kDepth * kEntry), efa_gda::Quad{next, 1, 2, 3});
    }
    __syncwarp();
    efa_gda::fence_system();
    if (threadIdx.x == 0) efa_gda::store_doorbell(doorbell, (next + entries) & 0xffff);
    if (!fence_again) continue;
    __syncwarp();
    efa_gda::fence_system();
  }
}

Rig g_rig;
efa_gda_queue *g_queues;
uint32_t *g_status;
uint8_t *g_published_entries;
uint64_t *g_published_flags;
uint32_t *g_stop, *g_stop_gpu;
uint64_t *g_host_completed, *g_host_completed_gpu;
cudaStream_t g_adapter_stream;

void *pinned(size_t bytes, void **gpu) {
  void *p = nullptr;
  if (posix_memalign(&p, 4096, bytes) != 0) exit(1);
  memset(p, 0, bytes);
  CHECK_CUDA(cudaHostRegister(p, bytes, cudaHostRegisterMapped));
  CHECK_CUDA(cudaHostGetDevicePointer(gpu, p, 0));
  return p;
}

void make_rig() {
  g_rig.ring = (uint8_t *)pinned((size_t)kQueues * kDepth * kEntry, (void **)&g_rig.ring_gpu);
  g_rig.doorbells = (uint8_t *)pinned(kQueues * kDoorbellStride, (void **)&g_rig.doorbells_gpu);
  g_stop = (uint32_t *)pinned(4096, (void **)&g_stop_gpu);
  g_host_completed = (uint64_t *)pinned(4096 * 2, (void **)&g_host_completed_gpu);
  CHECK_CUDA(cudaMalloc(&g_rig.completed, 8 * kQueues));
  CHECK_CUDA(cudaMalloc(&g_queues, sizeof(efa_gda_queue) * kQueues));
  CHECK_CUDA(cudaMalloc(&g_status, 4));
  CHECK_CUDA(cudaMalloc(&g_published_entries, (size_t)kQueues * kDepth * kEntry));
  CHECK_CUDA(cudaMalloc(&g_published_flags, (size_t)kQueues * kDepth * 8));
  CHECK_CUDA(cudaStreamCreateWithFlags(&g_adapter_stream, cudaStreamNonBlocking));
}

/* How slots become free: they always are, or adapter_kernel or a Checker completes entries. */
enum class FreeSlots { Unlimited, GpuAdapter, HostAdapter };

/* Makes new queues whose producer indices and counters begin at `start`. */
void reset(uint32_t max_batch, FreeSlots free_slots, uint32_t start = 0) {
  std::vector<efa_gda_queue> queues(kQueues);
  std::vector<uint64_t> completed(kQueues, start);
  for (int i = 0; i < kQueues; i++) {
    efa_gda_queue &q = queues[i];
    memset(&q, 0, sizeof q);
    q.sq.buffer = g_rig.ring_gpu + (size_t)i * kDepth * kEntry;
    q.sq.doorbell = (volatile uint32_t *)(g_rig.doorbells_gpu + i * kDoorbellStride);
    q.sq.entry_size = kEntry;
    q.sq.num_entries = kDepth;
    q.sq.max_batch = max_batch;
    q.publication.entries = g_published_entries + (size_t)i * kDepth * kEntry;
    q.publication.flags = g_published_flags + (size_t)i * kDepth;
    q.publication.num_entries = kDepth;
    q.counters.success = free_slots == FreeSlots::HostAdapter ? g_host_completed_gpu + i : g_rig.completed + i;
    q.max_rdma_size = 1 << 30;
    q.reserve.word = start;
    q.lock.serving = (uint64_t)start << EFA_GDA_LOCK_STATE_BITS;
    q.lock.doorbell_index = q.lock.confirmed_index = start;
    *g_rig.doorbell(i) = start & 0xffff;
    g_host_completed[i] = start;
    /* Far ahead of all posts: all slots are always free. */
    if (free_slots == FreeSlots::Unlimited) completed[i] = (uint64_t)1 << 30;
  }
  memset(g_rig.ring, 0xff, (size_t)kQueues * kDepth * kEntry);
  *g_stop = 0;
  CHECK_CUDA(cudaMemcpy(g_queues, queues.data(), sizeof(efa_gda_queue) * kQueues, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(g_rig.completed, completed.data(), 8 * kQueues, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(g_status, 0, 4));
  CHECK_CUDA(cudaMemset(g_published_flags, 0, (size_t)kQueues * kDepth * 8));
}

/* A shape of a launch: groups and queues. */
struct Case {
  const char *name;
  int blocks, threads, group, queues;
  void (*kernel)(Load);
  void (*kernel8)(Load);
};

#define CASE(name, sharing, group, blocks, threads, queues)                                     \
  {name,                                                                                       \
   blocks,                                                                                     \
   threads,                                                                                    \
   std::is_same_v<group, ThreadGroup> ? 1 : std::is_same_v<group, WarpGroup> ? 32 : threads,   \
   queues,                                                                                     \
   post_kernel<sharing, group, 16>,                                                            \
   post_kernel<sharing, group, 8>}
const Case kThreadOwned = CASE("1 thread owns its queue", Sharing::Thread, ThreadGroup, 1, 1, 1);
const Case kThreadShared = CASE("1 thread, shared queue", Sharing::Device, ThreadGroup, 1, 1, 1);
const Case kThreads16 = CASE("16 blocks x 1 thread, 1 shared queue", Sharing::Device, ThreadGroup, 16, 1, 1);
const Case kWarpOwned = CASE("1 warp owns its queue", Sharing::Warp, WarpGroup, 1, 32, 1);
const Case kWarpShared = CASE("1 warp, shared queue", Sharing::Device, WarpGroup, 1, 32, 1);
const Case kWarps8 = CASE("8 warps of 1 block, 1 shared queue", Sharing::Device, WarpGroup, 1, 256, 1);
const Case kWarps16 = CASE("16 blocks x 1 warp, 1 shared queue", Sharing::Device, WarpGroup, 16, 32, 1);
const Case kBlockOwned = CASE("block of 8 warps owns its queue", Sharing::Block, BlockGroup, 1, 256, 1);
const Case kWarp16Q = CASE("16 x 1 warp, 16 queues", Sharing::Warp, WarpGroup, 16, 32, 16);
const Case kWarp132Q = CASE("132 x 1 warp, 132 queues", Sharing::Warp, WarpGroup, 132, 32, 132);
const Case kBlock132Q = CASE("132 blocks x 8 warps, 132 queues", Sharing::Block, BlockGroup, 132, 256, 132);

const Case kBlocksOwned = CASE("8 blocks x 8 warps, 8 queues", Sharing::Block, BlockGroup, 8, 256, 8);
const Case kAllShare = CASE("132 blocks x 2 warps, 8 shared queues", Sharing::Device, WarpGroup, 132, 64, 8);

void launch(const Case &c, const Load &load, bool captured) {
  if (!captured) {
    c.kernel<<<c.blocks, c.threads>>>(load);
    return;
  }
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  c.kernel<<<c.blocks, c.threads, 0, stream>>>(load);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_CUDA(cudaGraphLaunch(executable, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
}

struct Times {
  double median, low, high;
};

Times summary(std::vector<double> ms, double entries) {
  std::sort(ms.begin(), ms.end());
  return {entries / ms[ms.size() / 2] / 1e3, entries / ms.back() / 1e3, entries / ms[0] / 1e3};
}

/* Runs `launch` eight times on new queues and drops the first run. Returns million entries a second. */
template <class Reset, class Launch>
Times measure(double entries, Reset fresh, Launch launch) {
  static cudaEvent_t begin = nullptr, end = nullptr;
  if (begin == nullptr) {
    CHECK_CUDA(cudaEventCreate(&begin));
    CHECK_CUDA(cudaEventCreate(&end));
  }
  std::vector<double> ms;
  for (int run = 0; run < 8; run++) {
    fresh();
    CHECK_CUDA(cudaEventRecord(begin));
    launch();
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    float t = 0;
    CHECK_CUDA(cudaEventElapsedTime(&t, begin, end));
    *g_stop = 1;
    CHECK_CUDA(cudaDeviceSynchronize());
    if (run != 0) ms.push_back(t);
  }
  return summary(ms, entries);
}

/* Checks the last lap of each ring, and the doorbells, after `calls` posts of each group. */
bool ring_is_right(const Case &c, int calls) {
  uint64_t total = (uint64_t)calls * c.blocks * c.threads / c.queues;
  for (int q = 0; q < c.queues; q++) {
    if (*g_rig.doorbell(q) != (total & 0xffff)) {
      printf("  queue %d: doorbell %u, wanted %u\n", q, *g_rig.doorbell(q), (unsigned)(total & 0xffff));
      return false;
    }
    for (uint64_t slot = total > kDepth ? total - kDepth : 0; slot < total; slot++) {
      std::string why = entry_fault(g_rig.ring + ((size_t)q * kDepth + slot % kDepth) * kEntry, (uint32_t)slot);
      if (!why.empty()) {
        printf("  queue %d slot %llu: %s\n", q, (unsigned long long)slot, why.c_str());
        return false;
      }
    }
  }
  return true;
}

bool g_failed = false;

/* The pause of adapter_kernel between two polls, in ns. It reads doorbells across PCIe, which a real adapter does not,
 * and each read delays the posters' fences. */
uint32_t adapter_pause(int queues) { return 3000 + 170 * (uint32_t)queues; }


Times run_case(const Case &c, uint32_t max_batch, int calls, bool by_eight, FreeSlots free_slots) {
  Load load = {g_queues, g_status, c.queues, calls};
  double entries = (double)calls * c.blocks * c.threads;
  Times times = measure(
      entries,
      [&] {
        reset(max_batch, free_slots);
        if (free_slots == FreeSlots::GpuAdapter) {
          adapter_kernel<<<1, 160, 0, g_adapter_stream>>>(g_rig.doorbells_gpu, g_rig.completed, c.queues, g_stop_gpu,
                                                       adapter_pause(c.queues));
        }
      },
      [&] { (by_eight ? c.kernel8 : c.kernel)<<<c.blocks, c.threads>>>(load); });
  uint32_t status = 0;
  CHECK_CUDA(cudaMemcpy(&status, g_status, 4, cudaMemcpyDeviceToHost));
  if (status != 0 || !ring_is_right(c, calls)) {
    printf("  %s, M %u: status %u\n", c.name, max_batch, status);
    g_failed = true;
  }
  return times;
}

Times run_peer(Peer peer, const Case &c, uint32_t max_batch, int calls, int batch) {
  return measure((double)calls * c.blocks * (peer == Peer::Nccl ? c.threads : 1),
                 [&] {
                   reset(max_batch, FreeSlots::Unlimited);
                   peers_reset(g_rig, max_batch);
                   CHECK_CUDA(cudaMemset(g_rig.completed, 0, 8 * kQueues));
                 },
                 [&] { peers_launch(peer, c.blocks, c.threads, c.queues, calls, batch); });
}

double run_floor() {
  size_t bytes = (size_t)kQueues * kDepth * kEntry;
  return measure((double)bytes / kEntry * 20, [] { reset(64, FreeSlots::Unlimited); },
                 [&] { floor_kernel<<<132, 256>>>(g_rig.ring_gpu, bytes, 20); })
      .median;
}

void row(const Case &c, uint32_t m, int calls, bool with_peer) {
  Times full = run_case(c, m, calls, false, FreeSlots::Unlimited);
  Times by8 = run_case(c, m, calls, true, FreeSlots::Unlimited);
  Times back = run_case(c, m, calls, false, FreeSlots::GpuAdapter);
  double peer = with_peer && peers_available() ? run_peer(Peer::Nccl, c, m, std::min(calls, 1000), 1).median : 0;
  std::string batch = m == 65535 ? "unlimited" : std::to_string(m);
  printf("| %s | %s | %.2f | %.2f to %.2f | %.0f | %.2f | %.2f (%.0f %%) | ", c.name, batch.c_str(), full.median,
         full.low, full.high, 1e3 / full.median, by8.median, back.median, 100 * back.median / full.median);
  if (peer != 0) printf("%.2f |\n", peer);
  else printf("- |\n");
  fflush(stdout);
}

int bench(const char *only) {
  struct Row {
    const Case &c;
    std::vector<uint32_t> batches;
    int calls;
  };
  const std::vector<Row> rows = {
      {kThreadOwned, {64}, 4000},     {kThreadShared, {64}, 4000},
      {kThreads16, {64}, 2000},       {kWarpOwned, {1, 16, 64, 65535}, 2000},
      {kWarpShared, {1, 16, 64, 65535}, 2000}, {kWarps8, {16, 64, 65535}, 1000},
      {kWarps16, {16, 64, 65535}, 1000},       {kBlockOwned, {1, 16, 64, 65535}, 1000},
      {kWarp16Q, {16, 64, 65535}, 2000},       {kWarp132Q, {16, 64, 65535}, 2000},
      {kBlock132Q, {16, 64, 65535}, 1000},
  };
  printf("| case | max_batch | M/s | range | ns/entry | 8-byte stores M/s | backpressure M/s | NCCL M/s |\n");
  printf("|---|---|---|---|---|---|---|---|\n");
  for (const Row &r : rows) {
    if (only != nullptr && strstr(r.c.name, only) == nullptr) continue;
    for (uint32_t m : r.batches) row(r.c, m, m == 1 ? r.calls / 10 : r.calls, true);
  }
  if (only == nullptr) {
    for (int batch : {1, 16}) {
      if (!peers_available()) break;
      Times t = run_peer(Peer::DpDirect, kThreadOwned, 64, 4000, batch);
      printf("efa-dp-direct, 1 thread, %d entries a doorbell: %.2f M/s (%.2f to %.2f)\n", batch, t.median, t.low, t.high);
    }
  }
  printf("store floor (coalesced 16-byte stores, 132 x 256 threads): %.1f M entries/s\n", run_floor());
  return g_failed ? 1 : 0;
}

int floors() {
  const char *names[] = {"entry and doorbell, no order", "entry, fence, doorbell", "entry, fence, doorbell, fence",
                         "entry, fence, doorbell, release", "atomic add, relaxed, used", "load, acquire, used"};
  for (int variant = 0; variant < 6; variant++) {
    Times t = measure(4000, [] { reset(64, FreeSlots::Unlimited); }, [&] {
      operation_kernel<<<1, 1>>>(g_rig.ring_gpu, (volatile uint32_t *)g_rig.doorbells_gpu, g_rig.completed, 4000, variant);
    });
    printf("one thread, %s: %.0f ns\n", names[variant], 1e3 / t.median);
  }
  struct Bare {
    int warps, entries;
    bool fence_again;
  };
  for (Bare b : {Bare{1, 8, false}, {1, 16, true}, {1, 32, false}, {1, 64, true}, {16, 32, false}, {16, 64, true}}) {
    Times t = measure(2000.0 * b.warps * b.entries, [] { reset(64, FreeSlots::Unlimited); }, [&] {
      bare_kernel<<<b.warps, 32>>>(g_rig.ring_gpu, g_rig.doorbells_gpu, 2000, b.entries, b.fence_again);
    });
    printf("bare, %d warps, %d entries and %s: %.1f M entries/s\n", b.warps, b.entries,
           b.fence_again ? "two fences" : "one fence", t.median);
  }
  return 0;
}

/* Runs a case with a Checker for each queue. The producer indices wrap during the run. `captured`: launched from a CUDA
 * graph. */
bool check_case(const Case &c, uint32_t m, uint64_t want, bool captured = false) {
  int groups = c.blocks * c.threads / c.group;
  uint64_t a_call = (uint64_t)c.blocks * c.threads;
  int calls = (int)(want / a_call + 1);
  uint32_t start = (uint32_t)0 - (uint32_t)std::min<uint64_t>(want / c.queues / 2, 1u << 20);
  reset(m, FreeSlots::HostAdapter, start);
  std::vector<std::unique_ptr<Checker>> checkers;
  for (int q = 0; q < c.queues; q++) {
    checkers.push_back(std::make_unique<Checker>(g_rig, q, m, start, groups, c.group, g_host_completed));
  }
  launch(c, Load{g_queues, g_status, c.queues, calls}, captured);
  cudaError_t error = cudaDeviceSynchronize();
  uint32_t status = 0;
  if (error == cudaSuccess) CHECK_CUDA(cudaMemcpy(&status, g_status, 4, cudaMemcpyDeviceToHost));
  uint64_t entries = 0, doorbells = 0, read_aheads = 0;
  bool good = error == cudaSuccess && status == 0;
  std::string report;
  for (auto &checker : checkers) {
    checker->finish();
    entries += checker->entries();
    doorbells += checker->doorbells();
    read_aheads += checker->read_aheads();
    report += checker->report();
    good = good && checker->clean();
  }
  good = good && entries == a_call * calls;
  printf("%s M %-5u %-38s %llu entries, %llu doorbells, %llu reads ahead, status %u, %s%s%s\n", good ? "ok    " : "FAILED",
         m, c.name, (unsigned long long)entries, (unsigned long long)doorbells, (unsigned long long)read_aheads, status,
         cudaGetErrorString(error), captured ? ", from a graph" : "", report.c_str());
  fflush(stdout);
  return good;
}

int check(uint64_t entries_each) {
  const Case *cases[] = {&kThreadOwned, &kThreadShared, &kThreads16, &kWarpOwned, &kWarpShared,
                         &kWarps8, &kWarps16, &kBlockOwned, &kBlocksOwned, &kAllShare};
  bool right = true;
  for (const Case *c : cases) {
    for (uint32_t m : {1u, 11u, 16u, 64u, 4095u, 65535u}) {
      right = check_case(*c, m, m == 1 ? entries_each / 20 : c->threads == 1 ? entries_each / 10 : entries_each) && right;
    }
  }
  right = check_case(kAllShare, 64, entries_each / 10, true) && right;
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char **argv) {
  std::string what = argc > 1 ? argv[1] : "bench";
  cudaDeviceProp properties;
  CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
  int driver = 0, runtime = 0;
  CHECK_CUDA(cudaDriverGetVersion(&driver));
  CHECK_CUDA(cudaRuntimeGetVersion(&runtime));
  printf("%s, %d multiprocessors, driver API %d, runtime %d, peers %s\n", properties.name,
         properties.multiProcessorCount, driver, runtime, peers_available() ? "built in" : "absent");
  make_rig();
  if (what == "check") return check(argc > 2 ? strtoull(argv[2], nullptr, 10) : 2000000);
  if (what == "soak") return check_case(kAllShare, 64, argc > 2 ? strtoull(argv[2], nullptr, 10) : 1000000000) ? 0 : 1;
  if (what == "floor") return floors();
  return bench(argc > 2 ? argv[2] : nullptr);
}
