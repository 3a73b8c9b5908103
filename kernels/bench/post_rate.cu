/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The rate at which posting engines place 64-byte entries in send queues across PCIe and ring: this project's engine,
 * an earlier revision of it, and peers, in one process and on the same memory. Pinned host memory takes the place of
 * the adapter's BAR. scripts/bench_gpu.sh builds and runs it.
 *
 *   post_rate bench [CASE]  measures every case whose name contains CASE, and the bare loops, as lines for
 *                           scripts/bench_gpu.sh (Contest)
 *   post_rate check         runs each case while a host thread reads all entries and doorbells (checker.h); exit
 *                           status 1 if a rule is broken
 *   post_rate soak          the same with a billion entries that all multiprocessors post to shared queues
 *   post_rate floor         measures single operations: a fence, a store, coalesced stores without a protocol
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checker.h"
#include "efa_gda/post.h"
#include "rig.h"

#ifdef EFA_GDA_BENCH_BEFORE
constexpr bool kHasBefore = true;
#else
constexpr bool kHasBefore = false;
const Engine engine_before = {};
#endif

namespace {

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
__global__ void operation_kernel(uint8_t *ring, volatile uint32_t *doorbell, uint64_t *word, int iterations,
                                 int variant) {
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
uint32_t *g_stop, *g_stop_gpu;
cudaStream_t g_adapter_stream;
bool g_failed = false;

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
  g_rig.host_completed = (uint64_t *)pinned(4096 * 2, (void **)&g_rig.host_completed_gpu);
  CHECK_CUDA(cudaMalloc(&g_rig.completed, 8 * kQueues));
  CHECK_CUDA(cudaMalloc(&g_rig.queues, kQueueBytes * kQueues));
  CHECK_CUDA(cudaMalloc(&g_rig.status, 4));
  CHECK_CUDA(cudaMalloc(&g_rig.published_entries, (size_t)kQueues * kDepth * kEntry));
  CHECK_CUDA(cudaMalloc(&g_rig.published_flags, (size_t)kQueues * kDepth * 8));
  CHECK_CUDA(cudaStreamCreateWithFlags(&g_adapter_stream, cudaStreamNonBlocking));
}

/* How slots become free: the posters count their own entries as completed, soon after they posted them, so that no
 * adapter slows them down; or adapter_kernel or a Checker completes entries. */
enum class FreeSlots { Unlimited, GpuAdapter, HostAdapter };

/* Makes new memory for the first `count` queues, whose producer indices and counters begin at `start`. The caller makes
 * the queues. */
void reset(int count, uint32_t start = 0) {
  std::vector<uint64_t> completed(count, start);
  for (int i = 0; i < count; i++) {
    *g_rig.doorbell(i) = start & 0xffff;
    g_rig.host_completed[i] = start;
  }
  memset(g_rig.ring, 0xff, (size_t)count * kDepth * kEntry);
  *g_stop = 0;
  CHECK_CUDA(cudaMemcpy(g_rig.completed, completed.data(), 8 * count, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(g_rig.status, 0, 4));
  CHECK_CUDA(cudaMemset(g_rig.published_flags, 0, (size_t)count * kDepth * 8));
}

void reset(const Engine &engine, int count, uint32_t max_batch, FreeSlots free_slots, uint32_t start = 0,
           uint32_t flags = 0) {
  reset(count, start);
  bool host = free_slots == FreeSlots::HostAdapter;
  engine.reset(g_rig, Fresh{count, max_batch, start, flags, host ? g_rig.host_completed_gpu : g_rig.completed});
}

const Shape kThreadOwned = {"1 thread owns its queue", Poster::Thread, true, 1, 1, 1};
const Shape kThreadShared = {"1 thread, shared queue", Poster::Thread, false, 1, 1, 1};
const Shape kThreads16 = {"16 blocks x 1 thread, 1 shared queue", Poster::Thread, false, 16, 1, 1};
const Shape kWarpOwned = {"1 warp owns its queue", Poster::Warp, true, 1, 32, 1};
const Shape kWarpShared = {"1 warp, shared queue", Poster::Warp, false, 1, 32, 1};
const Shape kWarps8 = {"8 warps of 1 block, 1 shared queue", Poster::Warp, false, 1, 256, 1};
const Shape kWarps16 = {"16 blocks x 1 warp, 1 shared queue", Poster::Warp, false, 16, 32, 1};
const Shape kBlockOwned = {"block of 8 warps owns its queue", Poster::Block, true, 1, 256, 1};
const Shape kWarp16Q = {"16 x 1 warp, 16 queues", Poster::Warp, true, 16, 32, 16};
const Shape kWarp132Q = {"132 x 1 warp, 132 queues", Poster::Warp, true, 132, 32, 132};
const Shape kBlock132Q = {"132 blocks x 8 warps, 132 queues", Poster::Block, true, 132, 256, 132};

const Shape kBlocksOwned = {"8 blocks x 8 warps, 8 queues", Poster::Block, true, 8, 256, 8};
const Shape kAllShare = {"132 blocks x 2 warps, 8 shared queues", Poster::Warp, false, 132, 64, 8};

/* Checks the last lap of each ring, and the doorbells, after `calls` posts of each group. */
bool ring_is_right(const Shape &shape, int calls) {
  uint64_t total = (uint64_t)calls * shape.blocks * shape.threads / shape.queues;
  for (int q = 0; q < shape.queues; q++) {
    if (*g_rig.doorbell(q) != (total & 0xffff)) {
      fprintf(stderr, "  queue %d: doorbell %u, wanted %u\n", q, *g_rig.doorbell(q), (unsigned)(total & 0xffff));
      return false;
    }
    for (uint64_t slot = total > kDepth ? total - kDepth : 0; slot < total; slot++) {
      std::string why = entry_fault(g_rig.ring + ((size_t)q * kDepth + slot % kDepth) * kEntry, (uint32_t)slot);
      if (!why.empty()) {
        fprintf(stderr, "  queue %d slot %llu: %s\n", q, (unsigned long long)slot, why.c_str());
        return false;
      }
    }
  }
  return true;
}

/* What one entrant of a contest posts. */
struct Entrant {
  const char *name;
  double entries;
  std::function<void()> reset, launch;
  /* Checks the result of the last run. */
  std::function<bool()> right;
};

/* Entrants that are measured in turns, so that all have the same machine: one run of each that does not count, then
 * kRuns of each, in alternating order. For each entrant, prints a line of fields that tabs separate: "row", the name of
 * the case, the batch window, the entrant, and the median, the lowest and the highest rate in million entries a
 * second. */
class Contest {
 public:
  Contest(const char *name, uint32_t max_batch)
      : name_(name), batch_(max_batch == 65535 ? "unlimited" : std::to_string(max_batch)) {}

  void add(Entrant entrant) { entrants_.push_back(std::move(entrant)); }

  void run() {
    std::vector<std::vector<double>> rates(entrants_.size());
    for (int round = 0; round <= kRuns; round++) {
      for (size_t turn = 0; turn < entrants_.size(); turn++) {
        size_t index = round % 2 == 0 ? turn : entrants_.size() - 1 - turn;
        double rate = once(entrants_[index], round == kRuns);
        if (round != 0) rates[index].push_back(rate);
      }
    }
    for (size_t index = 0; index < entrants_.size(); index++) {
      std::vector<double> &all = rates[index];
      std::sort(all.begin(), all.end());
      printf("row\t%s\t%s\t%s\t%.4f\t%.4f\t%.4f\n", name_, batch_.c_str(), entrants_[index].name,
             all[all.size() / 2], all.front(), all.back());
    }
    fflush(stdout);
  }

 private:
  static constexpr int kRuns = 11;

  double once(Entrant &entrant, bool last) {
    static cudaEvent_t begin = nullptr, end = nullptr;
    if (begin == nullptr) {
      CHECK_CUDA(cudaEventCreate(&begin));
      CHECK_CUDA(cudaEventCreate(&end));
    }
    entrant.reset();
    CHECK_CUDA(cudaEventRecord(begin));
    entrant.launch();
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaEventRecord(end));
    CHECK_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    *g_stop = 1;
    CHECK_CUDA(cudaDeviceSynchronize());
    if (last && entrant.right != nullptr && !entrant.right()) {
      fprintf(stderr, "%s, max_batch %s, %s: the ring is wrong\n", name_, batch_.c_str(), entrant.name);
      g_failed = true;
    }
    return entrant.entries / ms / 1e3;
  }

  const char *name_;
  std::string batch_;
  std::vector<Entrant> entrants_;
};

/* The pause of adapter_kernel between two polls, in ns. It reads doorbells across PCIe, which a real adapter does not,
 * and each read delays the posters' fences. */
uint32_t adapter_pause(int queues) { return 3000 + 170 * (uint32_t)queues; }

Entrant of_engine(const char *name, const Engine &engine, const Shape &shape, uint32_t max_batch, int calls,
                  int store_bytes = 16, FreeSlots free_slots = FreeSlots::Unlimited, uint32_t flags = 0) {
  if (store_bytes == 8) flags |= EFA_GDA_SQ_STORES_OF_8;
  auto fresh = [=, &engine] {
    reset(engine, shape.queues, max_batch, free_slots, 0, flags);
    if (free_slots == FreeSlots::GpuAdapter) {
      adapter_kernel<<<1, 160, 0, g_adapter_stream>>>(g_rig.doorbells_gpu, g_rig.completed, shape.queues, g_stop_gpu,
                                                   adapter_pause(shape.queues));
    }
  };
  auto right = [=] {
    uint32_t status = 0;
    CHECK_CUDA(cudaMemcpy(&status, g_rig.status, 4, cudaMemcpyDeviceToHost));
    if (status != 0) fprintf(stderr, "  enum efa_gda_status %u\n", status);
    return status == 0 && ring_is_right(shape, calls);
  };
  uint64_t *completed = free_slots == FreeSlots::Unlimited ? g_rig.completed : nullptr;
  auto launch = [=, &engine] { engine.launch(g_rig, shape, calls, store_bytes, completed, nullptr); };
  return {name, (double)calls * shape.blocks * shape.threads, fresh, launch, right};
}

Entrant of_peer(const char *name, Peer peer, const Shape &shape, uint32_t max_batch, int calls, int batch) {
  auto fresh = [=] {
    reset(shape.queues);
    peers_reset(g_rig, max_batch);
  };
  /* The low 16 bits: peers ring with all 32 bits of the producer index. */
  double entries = (double)calls * shape.blocks * (peer == Peer::DpDirect ? 1 : shape.threads);
  auto right = [=] { return (*g_rig.doorbell(0) & 0xffff) == ((uint64_t)(entries / shape.queues) & 0xffff); };
  auto launch = [=] { peers_launch(peer, shape.blocks, shape.threads, shape.queues, calls, batch); };
  return {name, entries, fresh, launch, right};
}

/* `warps` warps with a queue each: bare_kernel. */
Entrant of_bare(const char *name, int warps, int entries, bool fence_again) {
  int iterations = 2000;
  auto fresh = [=] { reset(warps); };
  auto launch = [=] {
    bare_kernel<<<warps, 32>>>(g_rig.ring_gpu, g_rig.doorbells_gpu, iterations, entries, fence_again);
  };
  return {name, (double)iterations * warps * entries, fresh, launch, nullptr};
}

void bench_row(const Shape &shape, uint32_t m, int calls) {
  Contest contest(shape.name, m);
  contest.add(of_engine("after", engine_after, shape, m, calls));
  if (kHasBefore) contest.add(of_engine("before", engine_before, shape, m, calls));
  /* NCCL's rates do not depend on the number of calls, and some take long. */
  int few = std::min(calls, shape.blocks * shape.threads > 4096 ? 250 : 1000);
  if (peers_available()) {
    contest.add(of_peer("nccl", Peer::Nccl, shape, m, few, 1));
    contest.add(of_peer("nccl drop-in", Peer::DropIn, shape, m, few, 1));
    contest.add(of_peer("nccl drop-in, 16-byte stores", Peer::DropIn16, shape, m, few, 1));
  }
  contest.add(of_engine("after, 8-byte stores", engine_after, shape, m, calls, 8));
  contest.add(of_engine("after, 64-bit ids", engine_after, shape, m, calls, 16, FreeSlots::Unlimited,
                        EFA_GDA_SQ_REQ_ID_64));
  contest.add(of_engine("after, backpressure", engine_after, shape, m, calls, 16, FreeSlots::GpuAdapter));
  /* As many entries for each fence as the batch window allows: docs/benchmarks.md, "What bounds it". */
  if (&shape == &kBlockOwned && m == 64) contest.add(of_bare("bare", 1, 64, true));
  if (&shape == &kWarp16Q && m == 64) contest.add(of_bare("bare", 16, 32, false));
  contest.run();
}

Entrant of_stores() {
  size_t bytes = (size_t)kQueues * kDepth * kEntry;
  auto launch = [=] { floor_kernel<<<132, 256>>>(g_rig.ring_gpu, bytes, 20); };
  return {"132 blocks x 8 warps, coalesced 16-byte stores", (double)bytes / kEntry * 20,
          [] { reset(kQueues); }, launch, nullptr};
}

int bench(const char *only) {
  struct Row {
    const Shape &shape;
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
  for (const Row &r : rows) {
    if (only != nullptr && strstr(r.shape.name, only) == nullptr) continue;
    for (uint32_t m : r.batches) bench_row(r.shape, m, m == 1 ? r.calls / 10 : r.calls);
  }
  if (only != nullptr) return g_failed ? 1 : 0;
  Contest others("others", 64);
  if (peers_available()) {
    others.add(of_peer("efa-dp-direct, 1 thread, a doorbell each", Peer::DpDirect, kThreadOwned, 64, 4000, 1));
    others.add(of_peer("efa-dp-direct, 1 thread, a doorbell for 16", Peer::DpDirect, kThreadOwned, 64, 4000, 16));
  }
  others.add(of_stores());
  others.run();
  return g_failed ? 1 : 0;
}

int floors() {
  const char *names[] = {"entry and doorbell, no order", "entry, fence, doorbell", "entry, fence, doorbell, fence",
                         "entry, fence, doorbell, release", "atomic add, relaxed, used", "load, acquire, used"};
  Contest operations("one thread", 64);
  for (int variant = 0; variant < 6; variant++) {
    auto launch = [=] {
      auto *doorbell = (volatile uint32_t *)g_rig.doorbells_gpu;
      operation_kernel<<<1, 1>>>(g_rig.ring_gpu, doorbell, g_rig.completed, 4000, variant);
    };
    operations.add({names[variant], 4000, [] { reset(1); }, launch, nullptr});
  }
  operations.run();
  Contest bare("bare loops", 64);
  bare.add(of_bare("1 warp, 8 entries, one fence", 1, 8, false));
  bare.add(of_bare("1 warp, 16 entries, two fences", 1, 16, true));
  bare.add(of_bare("1 warp, 32 entries, one fence", 1, 32, false));
  bare.add(of_bare("1 warp, 64 entries, two fences", 1, 64, true));
  bare.add(of_bare("16 warps, 32 entries, one fence", 16, 32, false));
  bare.add(of_bare("16 warps, 64 entries, two fences", 16, 64, true));
  bare.run();
  return 0;
}

/* Launches a case from a CUDA graph. */
void launch_from_graph(const Shape &shape, int calls) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  engine_after.launch(g_rig, shape, calls, 16, nullptr, stream);
  CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  CHECK_CUDA(cudaGraphLaunch(executable, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
}

/* Runs a case with a Checker for each queue. The producer indices wrap during the run. `captured`: launched from a CUDA
 * graph. */
bool check_case(const Shape &c, uint32_t m, uint64_t want, bool captured = false) {
  uint64_t a_call = (uint64_t)c.blocks * c.threads;
  int calls = (int)(want / a_call + 1);
  uint32_t start = (uint32_t)0 - (uint32_t)std::min<uint64_t>(want / c.queues / 2, 1u << 20);
  reset(engine_after, c.queues, m, FreeSlots::HostAdapter, start);
  std::vector<std::unique_ptr<Checker>> checkers;
  for (int q = 0; q < c.queues; q++) {
    checkers.push_back(std::make_unique<Checker>(g_rig, q, m, start, c.groups(), c.group(), g_rig.host_completed));
  }
  captured ? launch_from_graph(c, calls) : engine_after.launch(g_rig, c, calls, 16, nullptr, nullptr);
  cudaError_t error = cudaDeviceSynchronize();
  uint32_t status = 0;
  if (error == cudaSuccess) CHECK_CUDA(cudaMemcpy(&status, g_rig.status, 4, cudaMemcpyDeviceToHost));
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
  printf("%s M %-5u %-38s %llu entries, %llu doorbells, %llu reads ahead, status %u, %s%s%s\n",
         good ? "ok    " : "FAILED",
         m, c.name, (unsigned long long)entries, (unsigned long long)doorbells, (unsigned long long)read_aheads, status,
         cudaGetErrorString(error), captured ? ", from a graph" : "", report.c_str());
  fflush(stdout);
  return good;
}

int check(uint64_t entries_each) {
  const Shape *cases[] = {&kThreadOwned, &kThreadShared, &kThreads16, &kWarpOwned, &kWarpShared,
                         &kWarps8, &kWarps16, &kBlockOwned, &kBlocksOwned, &kAllShare};
  bool right = true;
  for (const Shape *c : cases) {
    for (uint32_t m : {1u, 11u, 16u, 64u, 4095u, 65535u}) {
      uint64_t entries = m == 1 ? entries_each / 20 : c->threads == 1 ? entries_each / 10 : entries_each;
      right = check_case(*c, m, entries) && right;
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
  printf("%s, %d multiprocessors, driver API %d, runtime %d, peers %s, engine before %s\n", properties.name,
         properties.multiProcessorCount, driver, runtime, peers_available() ? "built in" : "absent",
         kHasBefore ? "built in" : "absent");
  make_rig();
  if (what == "check") return check(argc > 2 ? strtoull(argv[2], nullptr, 10) : 2000000);
  if (what == "soak") return check_case(kAllShare, 64, argc > 2 ? strtoull(argv[2], nullptr, 10) : 1000000000) ? 0 : 1;
  if (what == "floor") return floors();
  return bench(argc > 2 ? argv[2] : nullptr);
}
