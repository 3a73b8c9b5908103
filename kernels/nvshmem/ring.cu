/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An NVSHMEM program: every PE puts a buffer to its right neighbour through its EFA adapter, with a signal behind it,
 * and checks what its left neighbour put; then __nvshmem_efa_test_put_kernel puts one value. NVSHMEM starts the PEs and
 * makes the barriers, and puts to a neighbour whose heap is mapped (NVLink) are stores. docs/nvshmem.md has commands.
 *
 *   efa_gda_nvshmem_ring [--adapter] [--own] [--test-own]
 *
 * --adapter: through the adapter also where the heap is mapped. --own: each PE is its own neighbour, for an adapter
 * that reaches only its own process, such as softefa; --test-own: only for the test kernel, which always uses the
 * adapter. One process for each GPU, started by NVSHMEM's launcher, mpirun or srun; or, with RANK, WORLD_SIZE and
 * EFA_GDA_RING_FILE in the environment, by any other: the file, on a file system that all processes share, must not
 * exist, and PE 0 writes NVSHMEM's identifier to it.
 *
 * Each PE prints a line, such as "[PE 1] PASS - Got expected value 0 from PE 0". Exit status: 0 all right, 1 not,
 * 2 unknown argument.
 */
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "efa_gda/nvshmem.cuh"
#include "efa_gda/put.h"
#include "efa_gda_nvshmem_heap.h"

/* kernels/put.cu. */
extern "C" __device__ struct efa_gda_test_put efa_gda_test_put_target;
extern "C" __global__ void __nvshmem_efa_test_put_kernel(void *raddr, const void *src, size_t n, uint32_t lkey,
                                                         uint32_t rkey);

constexpr uint64_t kSecond = 1000000000;
constexpr uint32_t kWords = 16384;

/* Each block puts its part, and sets its signal. */
__global__ void ring_put(uint64_t *target, uint64_t *source, uint64_t *signals, uint64_t value, int to) {
  uint32_t part = kWords / gridDim.x;
  uint64_t *from = source + part * blockIdx.x;
  for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) from[i] = value + part * blockIdx.x + i;
  efa_gda_nvshmem_put_signal_block(target + part * blockIdx.x, from, part * 8, signals + blockIdx.x, value + 1, to);
}

/* Each block waits for its signal, and compares its part. */
__global__ void ring_check(const uint64_t *target, const uint64_t *signals, uint64_t value, unsigned *wrong) {
  uint32_t part = kWords / gridDim.x;
  __shared__ bool arrived;
  if (threadIdx.x == 0) arrived = efa_gda_nvshmem_wait(signals + blockIdx.x, value + 1, 20 * kSecond);
  __syncthreads();
  unsigned found = arrived ? 0 : 1;
  for (uint32_t i = threadIdx.x; i < part; i += blockDim.x) {
    uint32_t at = part * blockIdx.x + i;
    found += efa_gda::load_system(static_cast<const volatile uint64_t *>(target + at)) != value + at;
  }
  if (found != 0) atomicAdd(wrong, found);
}

static void stop(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  if (nvshmemx_init_status() >= NVSHMEM_STATUS_IS_INITIALIZED) nvshmem_global_exit(1);
  exit(1);
}
#define CUDA(call)                                                            \
  do {                                                                        \
    cudaError_t code = (call);                                                \
    if (code != cudaSuccess) stop(#call, cudaGetErrorString(code));           \
  } while (0)

/* Puts the first word of `source` by the test kernel. Returns whether its request completed. */
static bool test_put(uint64_t *target, uint64_t *source, int to) {
  efa_gda_ibgda_state s = {};
  efa_gda_ibgda_peer peer = {};
  efa_gda_ibgda_queue queue = {};
  efa_gda_put_result *result = nullptr, *seen = nullptr;
  CUDA(cudaDeviceSynchronize());
  if (efa_gda_nvshmem_state(&s) != 0) stop("efa_gda_nvshmem_state", efa_gda_nvshmem_last_error());
  CUDA(cudaMemcpy(&peer, s.peers + to, sizeof peer, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(&queue, s.queues, sizeof queue, cudaMemcpyDeviceToHost));
  CUDA(cudaHostAlloc(&result, sizeof *result, cudaHostAllocMapped));
  result->status = EFA_GDA_NOT_RUN;
  CUDA(cudaHostGetDevicePointer((void **)&seen, result, 0));
  efa_gda_test_put put = {queue.queue, seen, peer.peer, 20 * kSecond};
  CUDA(cudaMemcpyToSymbol(efa_gda_test_put_target, &put, sizeof put));
  char *remote = (char *)(reinterpret_cast<uint64_t>(target) - s.heap + peer.heap);
  const char *local = (const char *)(reinterpret_cast<uint64_t>(source) - s.heap + s.heap_address);
  __nvshmem_efa_test_put_kernel<<<1, 32>>>(remote, local, 8, s.lkey, peer.rkey);
  CUDA(cudaDeviceSynchronize());
  if (result->status == EFA_GDA_OK) return true;
  fprintf(stderr, "[PE %u] the test kernel ended with status %u\n", s.rank, result->status);
  return false;
}

/* Initialises NVSHMEM by an identifier in a file, for at most a minute. */
static void init_by_file(const char *path) {
  const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
  if (rank == nullptr || size == nullptr) stop("EFA_GDA_RING_FILE", "RANK and WORLD_SIZE must be set as well");
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  nvshmemx_init_attr_t attr = NVSHMEMX_INIT_ATTR_INITIALIZER;
  std::string part = std::string(path) + ".part";
  if (atoi(rank) == 0) {
    nvshmemx_get_uniqueid(&id);
    FILE *file = fopen(part.c_str(), "wb");
    bool written = file != nullptr && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0;
    if (!written || rename(part.c_str(), path) != 0) stop(path, "cannot be written");
  }
  bool read = false;
  for (int tries = 0; tries < 600 && !read; tries++) {
    FILE *file = fopen(path, "rb");
    read = file != nullptr && fread(&id, sizeof id, 1, file) == 1;
    if (file != nullptr) fclose(file);
    if (!read) usleep(100000);
  }
  if (!read) stop(path, "PE 0 did not write it within a minute");
  nvshmemx_set_attr_uniqueid_args(atoi(rank), atoi(size), &id, &attr);
  if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attr) != 0) stop("nvshmemx_init_attr", "failed");
}

int main(int argc, char **argv) {
  bool own = false, adapter = false, test_own = false;
  for (int i = 1; i < argc; i++) {
    bool *option = strcmp(argv[i], "--own") == 0        ? &own
                   : strcmp(argv[i], "--adapter") == 0  ? &adapter
                   : strcmp(argv[i], "--test-own") == 0 ? &test_own
                                                        : nullptr;
    if (option == nullptr) {
      fprintf(stderr, "unknown argument \"%s\"; expected --adapter, --own or --test-own\n", argv[i]);
      return 2;
    }
    *option = true;
  }
  int gpus = 0;
  const char *local = getenv("LOCAL_RANK"), *file = getenv("EFA_GDA_RING_FILE");
  CUDA(cudaGetDeviceCount(&gpus));
  if (local != nullptr) CUDA(cudaSetDevice(atoi(local) % gpus));
  if (file != nullptr) {
    init_by_file(file);
  } else {
    nvshmem_init();
  }
  int pe = nvshmem_my_pe(), pes = nvshmem_n_pes();
  if (local == nullptr) CUDA(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus));
  int to = own ? pe : (pe + 1) % pes, from = own ? pe : (pe + pes - 1) % pes;
  uint64_t *target = (uint64_t *)nvshmem_calloc(kWords + 1, 8), *source = (uint64_t *)nvshmem_calloc(kWords, 8);
  uint64_t *signals = (uint64_t *)nvshmem_calloc(64, 8);
  if (target == nullptr || source == nullptr || signals == nullptr) stop("nvshmem_calloc", "the heap is full");
  efa_gda_nvshmem_attr attr = {};
  attr.size = sizeof attr;
  attr.symmetric = target;
  attr.flags = adapter ? EFA_GDA_NVSHMEM_ADAPTER_ONLY : 0;
  if (efa_gda_nvshmem_init(&attr) != 0) stop("efa_gda_nvshmem_init", efa_gda_nvshmem_last_error());

  unsigned *wrong = nullptr, host_wrong = 0;
  CUDA(cudaMalloc(&wrong, sizeof *wrong));
  CUDA(cudaMemset(wrong, 0, sizeof *wrong));
  nvshmem_barrier_all();
  ring_put<<<8, 256>>>(target, source, signals, 100 * (uint64_t)pe, to);
  ring_check<<<8, 256>>>(target, signals, 100 * (uint64_t)from, wrong);
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaMemcpy(&host_wrong, wrong, sizeof host_wrong, cudaMemcpyDeviceToHost));
  nvshmem_barrier_all();

  int test_to = test_own ? pe : to, test_from = test_own ? pe : from;
  bool put = test_put(target + kWords, source, test_to);
  nvshmem_barrier_all();
  uint64_t got = ~0ull, first = ~0ull;
  CUDA(cudaMemcpy(&first, target, sizeof first, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(&got, target + kWords, sizeof got, cudaMemcpyDeviceToHost));
  bool pass = host_wrong == 0 && put && first == 100 * (uint64_t)from && got == 100 * (uint64_t)test_from;
  efa_gda_ibgda_report failure = {};
  efa_gda_nvshmem_failure(&failure);
  if (pass) {
    printf("[PE %d] PASS - Got expected value %d from PE %d\n", pe, 100 * from, from);
  } else {
    printf("[PE %d] FAIL - Got %lld and %lld, expected %d from PE %d; %u words wrong; status %u of PE %u\n", pe,
           (long long)first, (long long)got, 100 * from, from, host_wrong, failure.status, failure.pe);
  }
  if (efa_gda_nvshmem_fini() != 0) stop("efa_gda_nvshmem_fini", efa_gda_nvshmem_last_error());
  nvshmem_finalize();
  return pass ? 0 : 1;
}
