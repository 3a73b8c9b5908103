/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The host's side of efa_gda_nvshmem_heap.h: queues for this GPU, the registered heap, and the exchange of addresses
 * and keys through NVSHMEM.
 */
#include "efa_gda_nvshmem_heap.h"

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "library.h"

namespace {

using efa_gda_nvshmem::Allocation;
using efa_gda_nvshmem::Library;

/* What a PE sends to the others. */
struct Record {
  /* 0, or the error that ended this PE's preparation; the others then fail as well. */
  int32_t error;
  uint32_t rkey;
  uint64_t heap;
  uint32_t queues;
  uint32_t reserved;
  uint8_t address[EFA_GDA_NVSHMEM_QUEUES][EFA_GDA_ADDRESS_BYTES];
};

/* Between init and fini. */
struct Context {
  Library library = {};
  /* All on the domain of the first. */
  std::vector<efa_gda_queue_handle *> queues;
  efa_gda_region *heap_region = nullptr;
  efa_gda_region *channels_region = nullptr;
  Allocation heap;
  /* The queues whose launch has begun, as the GPU addresses them. */
  std::vector<efa_gda_ibgda_queue> launched;
  uint32_t flags = 0;
  /* An address of the heap, of the caller or `own`. */
  void *symmetric = nullptr;
  void *own = nullptr;
  /* Memory of this GPU: the channels, the peers, the queues and the shared words. */
  void *device = nullptr;
  efa_gda_ibgda_report *report = nullptr;
  efa_gda_ibgda_state state = {};
};

constexpr char kNoState[] =
    "no state: the pointer is null, efa_gda_nvshmem_init was not called, or efa_gda_nvshmem_fini was";

Context *context = nullptr;
std::string last_error;

int fail(int code, const std::string &text) {
  last_error = text;
  return code;
}

/* A call of libefa_gda, of CUDA and of NVSHMEM: returns 0, or the error with its text. */
int check(int code, const char *what) {
  return code == 0 ? 0 : fail(code, std::string(what) + ": " + context->library.efa_gda_last_error());
}
int check_cuda(cudaError_t code, const char *what) {
  return code == cudaSuccess ? 0
                             : fail(EFA_GDA_ERROR_GPU, std::string(what) + ": " + cudaGetErrorString(code));
}

size_t channels_bytes(const efa_gda_ibgda_state &s) {
  return sizeof(efa_gda_ibgda_channel) * s.num_pes * s.num_rc_per_pe * (size_t)s.num_devices_initialized;
}

/* Registers an allocation for the queues. */
int register_memory(Allocation &memory, int gpu, uint64_t access, efa_gda_region **region, uint32_t *lkey,
                    uint32_t *rkey) {
  const Library &l = context->library;
  int code = l.efa_gda_region_register_gpu(context->queues[0], memory.start, memory.bytes, gpu, memory.dmabuf, 0,
                                           access, region);
  if (memory.dmabuf >= 0) close(memory.dmabuf);
  if ((code = check(code, "efa_gda_region_register_gpu"))) return code;
  if ((code = check(l.efa_gda_region_keys(*region, lkey, rkey), "efa_gda_region_keys"))) return code;
  for (efa_gda_queue_handle *queue : context->queues) {
    if ((code = check(l.efa_gda_queue_retain(queue, *region), "efa_gda_queue_retain"))) return code;
  }
  return 0;
}

/* Registers the heap and the channels. */
int register_all(int gpu, Record &record) {
  Context &c = *context;
  Allocation channels;
  /* Whole pages of the GPU, as a dma-buf must have. */
  constexpr size_t kPage = 2 << 20;
  size_t bytes = channels_bytes(c.state) + sizeof(efa_gda_ibgda_peer) * c.state.num_pes * c.state.num_queues +
                 sizeof(efa_gda_ibgda_queue) * c.state.num_queues + sizeof(efa_gda_ibgda_shared);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  if (int code = check_cuda(cudaMalloc(&c.device, bytes), "cudaMalloc")) return code;
  if (int code = check_cuda(cudaMemset(c.device, 0, bytes), "cudaMemset")) return code;
  if (!c.heap.find(c.symmetric) || !channels.find(c.device)) {
    return fail(EFA_GDA_ERROR_GPU, "the CUDA driver does not know the allocation of the symmetric heap");
  }
  uint64_t access =
      EFA_GDA_ACCESS_READ | EFA_GDA_ACCESS_WRITE | EFA_GDA_ACCESS_REMOTE_READ | EFA_GDA_ACCESS_REMOTE_WRITE;
  if (int code = register_memory(c.heap, gpu, access, &c.heap_region, &c.state.lkey, &record.rkey)) return code;
  record.heap = c.heap.start;
  c.state.heap = c.heap.start;
  c.state.heap_bytes = c.heap.bytes;
  c.state.heap_address = c.heap.start;
  uint32_t *lkey = &c.state.channels_lkey;
  if (int code = register_memory(channels, gpu, EFA_GDA_ACCESS_WRITE, &c.channels_region, lkey, nullptr)) return code;
  c.state.channels = static_cast<efa_gda_ibgda_channel *>(c.device);
  c.state.channels_address = reinterpret_cast<uint64_t>(c.device);
  return 0;
}

/* Opens the queues, registers memory, and fills in this PE's record. */
int open_queues(Record &record) {
  Context &c = *context;
  std::string why;
  int gpu = 0;
  if (!c.library.load(why)) return fail(EFA_GDA_ERROR_NO_ADAPTER, why);
  if (int code = check_cuda(cudaGetDevice(&gpu), "cudaGetDevice")) return code;
  efa_gda_options options = {};
  options.size = sizeof options;
  options.gpu = gpu;
  options.source = EFA_GDA_SOURCE_LIBFABRIC;
  options.adapter = getenv("EFA_GDA_ADAPTER");
  options.flags = EFA_GDA_QUEUE_REQUEST_TABLE;
  for (uint32_t number = 0; number < c.state.num_queues; number++) {
    efa_gda_queue_handle *queue = nullptr;
    if (int code = check(c.library.efa_gda_queue_open(&options, &queue), "efa_gda_queue_open")) return code;
    c.queues.push_back(queue);
    options.beside = c.queues[0];
    efa_gda_queue_info info = {};
    info.size = sizeof info;
    int code = check(c.library.efa_gda_queue_describe(queue, &info, nullptr), "efa_gda_queue_describe");
    if (code != 0) return code;
    if (info.max_rdma == 0) {
      return fail(EFA_GDA_ERROR_UNSUPPORTED,
                  "the adapter has no RDMA, which puts need; set EFA_GDA_ADAPTER to an adapter with RDMA");
    }
    memcpy(record.address[number], info.address, sizeof info.address);
  }
  return register_all(gpu, record);
}

/* Every PE takes part, also one whose preparation failed. */
int collect(const Record &mine, std::vector<Record> &all) {
  int pes = nvshmem_n_pes();
  Record *table = static_cast<Record *>(nvshmem_malloc(sizeof(Record) * ((size_t)pes + 1)));
  if (table == nullptr) return fail(EFA_GDA_ERROR_GPU, "nvshmem_malloc: the symmetric heap is full");
  int code = check_cuda(cudaMemcpy(table + pes, &mine, sizeof mine, cudaMemcpyHostToDevice), "cudaMemcpy");
  int collected = nvshmemx_fcollectmem_on_stream(NVSHMEM_TEAM_WORLD, table, table + pes, sizeof mine, nullptr);
  if (code == 0 && collected != 0) code = fail(EFA_GDA_ERROR_GPU, "nvshmemx_fcollectmem_on_stream failed");
  all.resize((size_t)pes);
  if (code == 0) code = check_cuda(cudaStreamSynchronize(nullptr), "the exchange through NVSHMEM");
  size_t bytes = sizeof(Record) * all.size();
  if (code == 0) code = check_cuda(cudaMemcpy(all.data(), table, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  nvshmem_free(table);
  return code;
}

/* Each queue reaches the queue with its number at every PE. */
int insert_peers(const std::vector<Record> &all, std::vector<efa_gda_ibgda_peer> &peers) {
  Context &c = *context;
  for (size_t pe = 0; pe < all.size(); pe++) {
    if (all[pe].queues == c.state.num_queues) continue;
    return fail(EFA_GDA_ERROR_ARGUMENT, "PE " + std::to_string(pe) + " has " + std::to_string(all[pe].queues) +
                                            " queues, and PE " + std::to_string(c.state.rank) + " has " +
                                            std::to_string(c.state.num_queues) + "; pass the same attr on all PEs");
  }
  for (size_t number = 0; number < c.queues.size(); number++) {
    for (size_t pe = 0; pe < all.size(); pe++) {
      efa_gda_ibgda_peer peer = {};
      int code = c.library.efa_gda_queue_insert_peer(c.queues[number], all[pe].address[number], &peer.peer);
      if ((code = check(code, "efa_gda_queue_insert_peer"))) return code;
      peer.rkey = all[pe].rkey;
      peer.heap = all[pe].heap;
      bool only = (c.flags & EFA_GDA_NVSHMEM_ADAPTER_ONLY) != 0;
      /* The offset of an allocation in the heap is the same on all PEs. */
      uint64_t offset = reinterpret_cast<uint64_t>(c.symmetric) - c.heap.start;
      uint64_t there = only ? 0 : reinterpret_cast<uint64_t>(nvshmem_ptr(c.symmetric, (int)pe));
      peer.mapped = there == 0 ? 0 : there - offset;
      peers.push_back(peer);
    }
  }
  return 0;
}

/* Begins the launch of each queue. */
int launch() {
  Context &c = *context;
  for (efa_gda_queue_handle *handle : c.queues) {
    /* All requests before the queue's first one are done. */
    efa_gda_progress progress = {};
    progress.size = sizeof progress;
    efa_gda_ibgda_queue queue = {};
    int code = check(c.library.efa_gda_queue_poll(handle, &progress, nullptr), "efa_gda_queue_poll");
    if (code != 0) return code;
    code = check(c.library.efa_gda_queue_begin_launch(handle, &queue.queue), "efa_gda_queue_begin_launch");
    if (code != 0) return code;
    queue.done = progress.reserved;
    c.launched.push_back(queue);
  }
  return 0;
}

/* Fills in the memory that the state names, and publishes it. */
int publish(const std::vector<efa_gda_ibgda_peer> &peers) {
  Context &c = *context;
  char *to = static_cast<char *>(c.device) + channels_bytes(c.state);
  size_t bytes = sizeof(efa_gda_ibgda_peer) * peers.size();
  size_t queues = sizeof(efa_gda_ibgda_queue) * c.queues.size();
  void *report = nullptr, *seen = nullptr;
  int code = check_cuda(cudaHostAlloc(&report, sizeof *c.report, cudaHostAllocMapped), "cudaHostAlloc");
  if (code != 0) return code;
  c.report = static_cast<efa_gda_ibgda_report *>(report);
  memset(report, 0, sizeof *c.report);
  if ((code = check_cuda(cudaMemcpy(to, peers.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy"))) return code;
  if ((code = launch())) return code;
  code = check_cuda(cudaMemcpy(to + bytes, c.launched.data(), queues, cudaMemcpyHostToDevice), "cudaMemcpy");
  if (code == 0) code = check_cuda(cudaHostGetDevicePointer(&seen, report, 0), "cudaHostGetDevicePointer");
  if (code != 0) return code;
  c.state.peers = reinterpret_cast<const efa_gda_ibgda_peer *>(to);
  c.state.queues = reinterpret_cast<efa_gda_ibgda_queue *>(to + bytes);
  /* Zero, as all of the memory was at first: no failure. */
  c.state.shared = reinterpret_cast<efa_gda_ibgda_shared *>(to + bytes + queues);
  c.state.report = static_cast<efa_gda_ibgda_report *>(seen);
  cudaError_t copied = (cudaError_t)efa_gda_nvshmem_publish(&c.state);
  return check_cuda(copied, "cudaMemcpyToSymbol of efa_gda_ibgda_state_d");
}

/* All PEs call it with the result of a step. Returns 0 on all of them, or an error on all of them. */
int agree(int mine, Record &record, std::vector<Record> &all) {
  std::string text = last_error;
  record.error = mine;
  int code = collect(record, all);
  if (mine != 0) return fail(mine, text);
  for (size_t pe = 0; code == 0 && pe < all.size(); pe++) {
    if (all[pe].error == 0) continue;
    return fail(all[pe].error, "PE " + std::to_string(pe) + " failed; its own error has the reason");
  }
  return code;
}

int prepare() {
  std::vector<Record> all;
  std::vector<efa_gda_ibgda_peer> peers;
  Record record = {};
  record.queues = context->state.num_queues;
  int code = open_queues(record);
  if ((code = agree(code, record, all))) return code;
  code = insert_peers(all, peers);
  if (code == 0) code = publish(peers);
  /* No PE puts before all PEs know it. */
  return agree(code, record, all);
}

/* Releases what the context has; returns the first error. */
int release() {
  Context &c = *context;
  int code = 0;
  auto first = [&code](int next) { code = code != 0 ? code : next; };
  for (size_t number = 0; number < c.queues.size(); number++) {
    if (number < c.launched.size()) {
      first(check(c.library.efa_gda_queue_end_launch(c.queues[number]), "efa_gda_queue_end_launch"));
    }
    first(check(c.library.efa_gda_queue_destroy(c.queues[number]), "efa_gda_queue_destroy"));
  }
  for (efa_gda_region *region : {c.heap_region, c.channels_region}) {
    if (region != nullptr) first(check(c.library.efa_gda_region_close(region), "efa_gda_region_close"));
  }
  cudaFree(c.device);
  if (c.report != nullptr) cudaFreeHost(c.report);
  if (c.own != nullptr) nvshmem_free(c.own);
  delete context;
  context = nullptr;
  return code;
}

}  // namespace

extern "C" int efa_gda_nvshmem_init(const efa_gda_nvshmem_attr *attr) {
  efa_gda_nvshmem_attr given = {};
  if (context != nullptr) {
    return fail(EFA_GDA_ERROR_BUSY, "efa_gda_nvshmem_init was called already; call efa_gda_nvshmem_fini first");
  }
  if (attr != nullptr && attr->size != sizeof *attr) {
    return fail(EFA_GDA_ERROR_ARGUMENT, "attr->size is " + std::to_string(attr->size) + ", expected " +
                                            std::to_string(sizeof *attr));
  }
  if (attr != nullptr) given = *attr;
  uint32_t channels = given.num_channels != 0 ? given.num_channels : 32;
  uint32_t devices = given.num_devices != 0 ? given.num_devices : 1;
  uint64_t most = (uint64_t)channels * devices;
  if (most > EFA_GDA_NVSHMEM_QUEUES) most = EFA_GDA_NVSHMEM_QUEUES;
  if (given.num_queues > most) {
    return fail(EFA_GDA_ERROR_ARGUMENT, "attr->num_queues is " + std::to_string(given.num_queues) +
                                            ", expected at most " + std::to_string(most) +
                                            ": the number of virtual queue pairs, and EFA_GDA_NVSHMEM_QUEUES");
  }
  context = new Context;
  context->flags = given.flags;
  efa_gda_ibgda_state &s = context->state;
  s.num_rc_per_pe = channels;
  s.num_devices_initialized = (int32_t)devices;
  s.num_queues = given.num_queues != 0 ? given.num_queues : (uint32_t)most;
  s.num_pes = (uint32_t)nvshmem_n_pes();
  s.rank = (uint32_t)nvshmem_my_pe();
  s.timeout_ns = given.timeout_ns != 0 ? given.timeout_ns : EFA_GDA_DEFAULT_TIMEOUT_NS;
  /* Collective, so before anything that fails on one PE only. */
  if (given.symmetric == nullptr) context->own = nvshmem_malloc(64);
  context->symmetric = given.symmetric != nullptr ? given.symmetric : context->own;
  if (context->symmetric == nullptr) {
    delete context;
    context = nullptr;
    return fail(EFA_GDA_ERROR_GPU, "nvshmem_malloc: the symmetric heap is full (NVSHMEM_SYMMETRIC_SIZE)");
  }
  int code = prepare();
  if (code != 0) {
    std::string text = last_error;
    release();
    last_error = text;
  }
  return code;
}

extern "C" int efa_gda_nvshmem_state(efa_gda_ibgda_state *state) {
  if (context == nullptr || state == nullptr) return fail(EFA_GDA_ERROR_ARGUMENT, kNoState);
  *state = context->state;
  return 0;
}

extern "C" int efa_gda_nvshmem_failure(efa_gda_ibgda_report *report) {
  if (context == nullptr || report == nullptr) return fail(EFA_GDA_ERROR_ARGUMENT, kNoState);
  /* Device code stores the others first (ibgda.h). */
  report->status = __atomic_load_n(&context->report->status, __ATOMIC_ACQUIRE);
  report->pe = context->report->pe;
  report->qp = context->report->qp;
  return 0;
}

extern "C" int efa_gda_nvshmem_fini(void) {
  if (context == nullptr) return fail(EFA_GDA_ERROR_ARGUMENT, kNoState);
  cudaDeviceSynchronize();
  /* No peer puts to this heap any more. */
  nvshmem_barrier_all();
  return release();
}

extern "C" const char *efa_gda_nvshmem_last_error(void) { return last_error.c_str(); }
