/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A pretended libcuda and libnvrtc, for tests of the code around a GPU on machines without one. It proves nothing
 * about a GPU's speed, ordering or caches.
 *
 * The pretended GPU has two kinds of memory. Memory of cuMemAlloc is this process's; the host executor runs kernels
 * on it, each block on a thread, until something waits for their stream or, as cuMemFree does, for all streams. Memory of pretend_gpu_alloc is at addresses that the
 * processor cannot read, as a GPU's is; only copies reach it, and a copy happens when its stream is queried the second
 * time or synchronized, so that a caller that does not wait reads old bytes.
 *
 * PRETEND_GPU_REFUSES=N,...: of the distinct addresses whose registration is requested, the Nth (from 1) is refused,
 * each time, as a driver refuses a BAR that it may not map.
 *
 * PRETEND_GPU_ATTRIBUTES=N,...: these attributes of the device are 1.
 *
 * PRETEND_GPU_TWO=1: there are two GPUs.
 *
 * PRETEND_GPU_PEERS=1: the driver reports that GPUs can map each other's memory.
 *
 * PRETEND_GPU_IPC=1: other processes can map memory of cuMemAlloc whose length is a multiple of 2 MiB.
 *
 * PRETEND_GPU_KNOWS_MEMORY=1: cuPointerGetAttribute knows memory of cuMemAlloc, too.
 *
 * PRETEND_GPU_FAILS_COPY=N: copies of N bytes to the host fail.
 *
 * Tests change results and read what was done through pretend_gpu_* at the end.
 *
 * Only what this project and cudarc call is here; results and constants are those of cuda.h.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../kernels/test/load.h"
#include "efa_gda/queue.h"

struct efa_gda_bench_args;

/* The host executor (kernels/host/executor.cpp, kernels/test/load_host.cpp). */
extern "C" {
bool efa_gda_host_put(const efa_gda_put_args *args, uint32_t lanes);
bool efa_gda_host_load(const efa_gda_load_args *args, bool mixed, uint32_t block, uint32_t blocks, uint32_t lanes);
bool efa_gda_host_receive(const efa_gda_receive_args *args);
bool efa_gda_host_bench(const efa_gda_bench_args *args, bool latency, uint32_t block, uint32_t blocks, uint32_t lanes);
}

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kNotSupported = 801, kAlreadyRegistered = 712;
constexpr int kInvalidContext = 201, kNotReady = 600, kIllegalAddress = 700, kCaptureUnsupported = 900;
/* CUstreamCaptureMode: global is 0. */
constexpr int kRelaxed = 2;
/* Attributes and their values: compute capability 9.0, memory pools, dmabuf, writes in order for all. */
constexpr int kAttributes[][2] = {{75, 9}, {76, 0}, {115, 1}, {124, 1}, {118, 200}};
constexpr char kImage[] = "\x7f" "ELF of a pretended GPU";
/* Bytes of `struct efa_gda_bench_args` (kernels/bench.cu). */
constexpr size_t kBenchArgs = 56;

/* One block of a kernel, with its copy of the argument. */
using Body = void (*)(const void *argument, uint32_t block, uint32_t blocks, uint32_t lanes);
struct Kernel {
  const char *name;
  size_t argument;
  Body body;
};
const Kernel kKernels[] = {
    /* Runs until the word is not 0, and waits for no queue. */
    {"pretend_gpu_hold_kernel", sizeof(std::atomic<uint32_t> *),
     [](const void *a, uint32_t, uint32_t, uint32_t) {
       auto *word = *(std::atomic<uint32_t> *const *)a;
       while (word->load() == 0) std::this_thread::yield();
     }},
    {"efa_gda_put_kernel", sizeof(efa_gda_put_args),
     [](const void *a, uint32_t, uint32_t, uint32_t lanes) { efa_gda_host_put((const efa_gda_put_args *)a, lanes); }},
    {"efa_gda_load_kernel", sizeof(efa_gda_load_args),
     [](const void *a, uint32_t block, uint32_t blocks, uint32_t lanes) {
       efa_gda_host_load((const efa_gda_load_args *)a, false, block, blocks, lanes);
     }},
    {"efa_gda_receive_kernel", sizeof(efa_gda_receive_args),
     [](const void *a, uint32_t, uint32_t, uint32_t) { efa_gda_host_receive((const efa_gda_receive_args *)a); }},
    {"efa_gda_bench_rate_kernel", kBenchArgs,
     [](const void *a, uint32_t block, uint32_t blocks, uint32_t lanes) {
       efa_gda_host_bench((const efa_gda_bench_args *)a, false, block, blocks, lanes);
     }},
    {"efa_gda_bench_latency_kernel", kBenchArgs,
     [](const void *a, uint32_t block, uint32_t blocks, uint32_t lanes) {
       efa_gda_host_bench((const efa_gda_bench_args *)a, true, block, blocks, lanes);
     }},
};

int token;

/* The process with a file of shared memory, its descriptor there, and its length. */
struct CUipcMemHandle {
  int process, file;
  size_t length;
  char rest[48];
};

/* Kernels that run, by their streams. */
struct Running {
  struct Block {
    const void *stream;
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> ended;
  };
  std::mutex lock;
  std::vector<Block> blocks;

  /* Waits for the blocks of one stream, or of all. */
  void wait(const void *stream, bool all = false) {
    std::vector<Block> found, others;
    {
      std::lock_guard<std::mutex> locked(lock);
      for (Block &block : blocks) (all || block.stream == stream ? found : others).push_back(std::move(block));
      blocks.swap(others);
    }
    for (Block &block : found) block.thread.join();
  }
  void wait_for_all() { wait(nullptr, true); }

  /* At the end of the process nothing waits for kernels. */
  ~Running() {
    for (Block &block : blocks) block.thread.detach();
  }

  bool ended(const void *stream) {
    std::lock_guard<std::mutex> locked(lock);
    for (Block &block : blocks) {
      if (block.stream == stream && !*block.ended) return false;
    }
    return true;
  }

  template <class Body>
  void start(const void *stream, Body body) {
    auto ended = std::make_shared<std::atomic<bool>>(false);
    std::lock_guard<std::mutex> locked(lock);
    blocks.push_back({stream, std::thread([body, ended] { body(), *ended = true; }), ended});
  }
} running;

/* Whether a variable, numbers with commas between them, names this one. */
bool listed(const char *variable, unsigned long number) {
  const char *numbers = getenv(variable);
  for (char *next; numbers != nullptr && *numbers != 0; numbers = *next == ',' ? next + 1 : next) {
    if (strtoul(numbers, &next, 10) == number) return true;
    if (next == numbers) break;
  }
  return false;
}

struct Registrations {
  std::mutex lock;
  std::vector<uintptr_t> addresses;
  std::set<uintptr_t> registered;

  bool refused(uintptr_t address) {
    size_t number = 0;
    while (number < addresses.size() && addresses[number] != address) number++;
    if (number == addresses.size()) addresses.push_back(address);
    return listed("PRETEND_GPU_REFUSES", number + 1);
  }
} registrations;

/* Results that calls return in place of doing their work. */
struct Results {
  std::mutex lock;
  std::map<std::string, int> set;

  int of(const char *call) {
    std::lock_guard<std::mutex> locked(lock);
    auto found = set.find(call);
    return found == set.end() ? kSuccess : found->second;
  }
} results;

/* Whether some thread captures a graph, and this thread's capture mode. */
std::atomic<bool> capturing;
thread_local int capture_mode;

bool captured_from() { return capturing && capture_mode != kRelaxed; }

/* Whether this thread has a context. */
thread_local int contexts;

/* Memory at an address that the processor cannot read, and where its bytes are. */
struct Unreadable {
  uint64_t address;
  size_t length;
  unsigned char *bytes;
};

struct UnreadableMemory {
  std::mutex lock;
  std::vector<Unreadable> blocks;

  /* The block around these bytes. Without one, its length is 0. */
  Unreadable around(uint64_t address, size_t length) {
    std::lock_guard<std::mutex> locked(lock);
    for (const Unreadable &block : blocks) {
      uint64_t offset = address - block.address;
      if (offset < block.length && length <= block.length - offset) return block;
    }
    return {};
  }

  unsigned char *bytes(uint64_t address, size_t length) {
    Unreadable block = around(address, length);
    return block.length == 0 ? nullptr : block.bytes + (address - block.address);
  }
} unreadable;

/* A stream, and the copy that it has not done. */
struct Stream {
  void *to;
  const void *from;
  size_t length;
  bool queried;

  void copy() {
    if (length != 0) memcpy(to, from, length);
    length = 0;
  }
};

/* All streams, which are never freed: a queue that was leaked may still use its own. The first is the default stream. */
struct Streams {
  std::mutex lock;
  std::deque<Stream> all = std::deque<Stream>(1);

  Stream *create() {
    std::lock_guard<std::mutex> locked(lock);
    return &all.emplace_back();
  }
  Stream *of(void *handle) { return handle == nullptr ? &all.front() : (Stream *)handle; }
} streams;

/* What happens to copies of unreadable memory. */
std::atomic<bool> copies_hang;

/* Copies now, or later where the memory is unreadable: `unreadable_bytes` is then not null. */
int copy(void *stream, void *to, const void *from, size_t length, const void *unreadable_bytes) {
  if (unreadable_bytes == nullptr) {
    running.wait(stream);
    return memcpy(to, from, length), kSuccess;
  }
  if (contexts == 0) return kInvalidContext;
  if (int result = results.of("copy")) return result;
  *streams.of(stream) = Stream{to, from, length, false};
  return kSuccess;
}

template <class T>
int give(T *to, T value) {
  *to = value;
  return kSuccess;
}

int allocate(uint64_t *to, size_t bytes) {
  return give(to, (uint64_t)aligned_alloc(256, (bytes + 255) & ~(size_t)255));
}

/* Memory of cuMemAlloc. */
struct Allocations {
  std::mutex lock;
  std::map<uint64_t, size_t> lengths;
  /* The files of memory that processes share. */
  std::map<uint64_t, int> files;

  int add(uint64_t *to, size_t bytes) {
    if (listed("PRETEND_GPU_IPC", 1) && bytes % (2 << 20) == 0) {
      int file = memfd_create("pretended GPU", 0);
      return ftruncate(file, (off_t)bytes) == 0 ? map(to, file, bytes) : kInvalidValue;
    }
    allocate(to, bytes);
    std::lock_guard<std::mutex> locked(lock);
    lengths[*to] = bytes;
    return kSuccess;
  }
  int map(uint64_t *to, int file, size_t bytes) {
    void *start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) return kInvalidValue;
    std::lock_guard<std::mutex> locked(lock);
    lengths[(uint64_t)start] = bytes, files[(uint64_t)start] = file;
    return give(to, (uint64_t)start);
  }
  int remove(uint64_t at) {
    std::lock_guard<std::mutex> locked(lock);
    if (auto shared = files.find(at); shared != files.end()) {
      munmap((void *)at, lengths[at]);
      close(shared->second);
      files.erase(shared);
    } else {
      free((void *)at);
    }
    lengths.erase(at);
    return kSuccess;
  }
  CUipcMemHandle handle(uint64_t at) {
    std::lock_guard<std::mutex> locked(lock);
    auto shared = files.find(at);
    return shared == files.end() ? CUipcMemHandle{} : CUipcMemHandle{getpid(), shared->second, lengths[at], {}};
  }
  /* The block around an address, if the environment has the driver know it. Without one, its length is 0. */
  Unreadable around(uint64_t address) {
    std::lock_guard<std::mutex> locked(lock);
    auto after = lengths.upper_bound(address);
    if (after == lengths.begin() || !listed("PRETEND_GPU_KNOWS_MEMORY", 1)) return {};
    auto [start, length] = *std::prev(after);
    return address - start < length ? Unreadable{start, length, nullptr} : Unreadable{};
  }
} allocations;

}  // namespace

extern "C" {

int cuInit(unsigned flags) { return flags == 0 ? kSuccess : kInvalidValue; }
int cuDriverGetVersion(int *version) { return give(version, 13000); }
int cuGetErrorName(int code, const char **name) {
  *name = code == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == kNotReady ? "CUDA_ERROR_NOT_READY" : nullptr;
  return *name == nullptr ? kInvalidValue : kSuccess;
}
int cuGetErrorString(int code, const char **text) {
  return give<const char *>(text, code == kInvalidValue ? "invalid argument" : "pretended");
}

int cuDeviceGetCount(int *count) { return give(count, listed("PRETEND_GPU_TWO", 1) ? 2 : 1); }
int cuDeviceGet(int *device, int number) {
  int count;
  cuDeviceGetCount(&count);
  return number >= 0 && number < count ? give(device, number) : 101;
}
int cuDeviceGetName(char *name, int length, int) {
  strncpy(name, "pretended GPU", (size_t)length);
  return kSuccess;
}
int cuDeviceGetPCIBusId(char *address, int length, int device) {
  strncpy(address, device == 0 ? "0000:00:00.0" : "0000:00:01.0", (size_t)length);
  return kSuccess;
}
int cuDeviceGetByPCIBusId(int *device, const char *address) {
  return cuDeviceGet(device, strcmp(address, "0000:00:01.0") == 0);
}
int cuDeviceCanAccessPeer(int *can, int, int) { return give<int>(can, listed("PRETEND_GPU_PEERS", 1)); }
int cuDeviceGetAttribute(int *value, int attribute, int) {
  *value = listed("PRETEND_GPU_ATTRIBUTES", (unsigned long)attribute);
  for (auto &known : kAttributes) {
    if (known[0] == attribute) *value = known[1];
  }
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void **context, int) { return give<void *>(context, &token); }
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxSetCurrent(void *context) {
  contexts = context != nullptr;
  return kSuccess;
}
int cuCtxGetCurrent(void **context) { return give<void *>(context, contexts > 0 ? &token : nullptr); }
int cuCtxPushCurrent_v2(void *context) {
  contexts += context != nullptr;
  return kSuccess;
}
int cuCtxPopCurrent_v2(void **context) {
  *context = nullptr;
  return contexts-- > 0 ? kSuccess : kInvalidContext;
}
int cuCtxSynchronize() {
  if (captured_from()) return kCaptureUnsupported;
  return running.wait_for_all(), kSuccess;
}
int cuStreamCreate(void **stream, unsigned flags) {
  if (captured_from()) return kCaptureUnsupported;
  /* CU_STREAM_NON_BLOCKING, so that no copy waits for a program's default stream. */
  if (flags != 1) return kInvalidValue;
  if (contexts == 0) return kInvalidContext;
  return give<void *>(stream, streams.create());
}
int cuStreamDestroy_v2(void *) { return results.of("cuStreamDestroy"); }
int cuStreamSynchronize(void *stream) {
  running.wait(stream);
  return streams.of(stream)->copy(), kSuccess;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
int cuStreamQuery(void *handle) {
  Stream *stream = streams.of(handle);
  if (captured_from()) return kCaptureUnsupported;
  if (int result = results.of("cuStreamQuery")) return result;
  if (!running.ended(handle)) return kNotReady;
  if (stream->length != 0 && (copies_hang || !std::exchange(stream->queried, true))) return kNotReady;
  return stream->copy(), kSuccess;
}
/* An event is the stream that it was recorded on. Whoever waits for it waits for all of that stream. */
int cuEventCreate(void **event, unsigned) { return give<void *>(event, new const void *(&token)); }
int cuEventRecord(void *event, void *stream) { return give<const void *>((const void **)event, stream); }
int cuEventSynchronize(void *event) { return running.wait(*(const void **)event), kSuccess; }
int cuStreamWaitEvent(void *, void *event, unsigned) { return cuEventSynchronize(event); }
int cuEventDestroy_v2(void *event) { return delete (const void **)event, kSuccess; }

int cuMemAlloc_v2(uint64_t *to, size_t bytes) { return allocations.add(to, bytes); }
int cuMemAllocAsync(uint64_t *to, size_t bytes, void *) { return allocations.add(to, bytes); }
int cuMemFree_v2(uint64_t at) { return running.wait_for_all(), allocations.remove(at); }
int cuMemFreeAsync(uint64_t at, void *stream) { return running.wait(stream), allocations.remove(at); }
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  return memset((void *)at, value, bytes), kSuccess;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *) {
  return cuMemsetD8_v2(at, value, bytes);
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  running.wait_for_all();
  return memcpy((void *)to, from, bytes), kSuccess;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  unsigned char *unreadable_to = unreadable.bytes(to, bytes);
  return copy(stream, unreadable_to != nullptr ? unreadable_to : (void *)to, from, bytes, unreadable_to);
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  running.wait_for_all();
  return memcpy(to, (void *)from, bytes), kSuccess;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  const char *size = getenv("PRETEND_GPU_FAILS_COPY");
  if (size != nullptr && strtoul(size, nullptr, 10) == bytes) return kIllegalAddress;
  const unsigned char *unreadable_from = unreadable.bytes(from, bytes);
  return copy(stream, to, unreadable_from != nullptr ? unreadable_from : (const void *)from, bytes, unreadable_from);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  return copy(stream, (void *)to, (const void *)from, bytes, nullptr);
}
int cuIpcGetMemHandle(CUipcMemHandle *handle, uint64_t at) { return give(handle, allocations.handle(at)); }
int cuIpcOpenMemHandle_v2(uint64_t *to, CUipcMemHandle handle, unsigned) {
  if (handle.process == 0) return kNotSupported;
  if (handle.process == getpid()) return kInvalidContext;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  int file = open(path, O_RDWR);
  return file < 0 ? kInvalidValue : allocations.map(to, file, handle.length);
}
int cuIpcCloseMemHandle(uint64_t at) { return allocations.remove(at); }
int cuMemGetAddressRange_v2(uint64_t *start, size_t *length, uint64_t at) {
  std::lock_guard<std::mutex> locked(allocations.lock);
  auto after = allocations.lengths.upper_bound(at);
  if (after == allocations.lengths.begin()) return kNotFound;
  auto [first, bytes] = *std::prev(after);
  if (at - first >= bytes) return kNotFound;
  return give(start, first), give(length, bytes);
}
/* The pretended GPU exports none of its memory. */
int cuMemGetHandleForAddressRange(void *, uint64_t, size_t, int, uint64_t) { return kNotSupported; }
int cuMemHostAlloc(void **to, size_t bytes, unsigned) {
  if (captured_from()) return kCaptureUnsupported;
  return contexts == 0 ? kInvalidContext : allocate((uint64_t *)to, bytes);
}
int cuMemFreeHost(void *at) { return free(at), kSuccess; }

int cuMemHostRegister_v2(void *start, size_t, unsigned) {
  std::lock_guard<std::mutex> locked(registrations.lock);
  if (registrations.refused((uintptr_t)start)) return kInvalidValue;
  return registrations.registered.insert((uintptr_t)start).second ? kSuccess : kAlreadyRegistered;
}
int cuMemHostUnregister(void *start) {
  if (captured_from()) return kCaptureUnsupported;
  std::lock_guard<std::mutex> locked(registrations.lock);
  return registrations.registered.erase((uintptr_t)start) == 1 ? kSuccess : kInvalidValue;
}
int cuMemHostGetDevicePointer_v2(uint64_t *to, void *at, unsigned) { return give(to, (uint64_t)at); }
int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
  Unreadable block = unreadable.around(address, 1);
  if (block.length == 0) block = allocations.around(address);
  if (block.length == 0) return kInvalidValue;
  switch (attribute) {
    case 2: return give((unsigned *)value, 2u);                /* memory type: device */
    case 9: return give((int *)value, 0);                      /* ordinal */
    case 11: return give((uint64_t *)value, block.address);    /* range start */
    case 12: return give((size_t *)value, block.length);       /* range size */
    default: return kInvalidValue;
  }
}

/* A module is its image. */
int cuModuleLoadData(void **module, const void *image) {
  return strcmp((const char *)image, kImage) == 0 ? give(module, (void *)kImage) : kNotSupported;
}
int cuModuleUnload(void *) { return kSuccess; }
int cuModuleGetFunction(void **function, void *, const char *name) {
  for (auto &kernel : kKernels) {
    if (strcmp(name, kernel.name) == 0) return give(function, (void *)&kernel);
  }
  return kNotFound;
}
int cuLaunchKernel(void *function, unsigned blocks, unsigned, unsigned, unsigned lanes, unsigned, unsigned, unsigned,
                   void *stream, void **arguments, void **) {
  const Kernel &kernel = *(const Kernel *)function;
  std::shared_ptr<void> argument(aligned_alloc(16, (kernel.argument + 15) & ~(size_t)15), free);
  memcpy(argument.get(), arguments[0], kernel.argument);
  running.wait(stream);
  for (unsigned block = 0; block < blocks; block++) {
    running.start(stream, [=, &kernel] { kernel.body(argument.get(), block, blocks, lanes); });
  }
  return kSuccess;
}

/* Makes `call` return `code` without doing its work; 0 ends that. "copy": copies of unreadable memory. */
void pretend_gpu_result(const char *call, int code) {
  std::lock_guard<std::mutex> locked(results.lock);
  results.set[call] = code;
}
/* Copies of unreadable memory do not end while this is set. */
void pretend_gpu_hang(bool hang) { copies_hang = hang; }
/* A thread captures a graph in the global mode, so that only threads in the relaxed mode may query. */
void pretend_gpu_capture(bool begun) { capturing = begun; }
/* This thread's capture mode. */
int pretend_gpu_capture_mode() { return capture_mode; }
/* Addresses that are registered. */
uint32_t pretend_gpu_registered() {
  std::lock_guard<std::mutex> locked(registrations.lock);
  return (uint32_t)registrations.registered.size();
}
/* Unreadable memory of zeros, for the life of the process; 0 where there is none. */
uint64_t pretend_gpu_alloc(size_t length) {
  void *start = mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return 0;
  std::lock_guard<std::mutex> locked(unreadable.lock);
  unreadable.blocks.push_back({(uint64_t)start, length, (unsigned char *)calloc(1, length)});
  return (uint64_t)start;
}
/* Reads and writes unreadable memory, as a kernel would. */
bool pretend_gpu_read(uint64_t address, void *into, size_t length) {
  unsigned char *bytes = unreadable.bytes(address, length);
  if (bytes != nullptr) memcpy(into, bytes, length);
  return bytes != nullptr;
}
bool pretend_gpu_write(uint64_t address, const void *from, size_t length) {
  unsigned char *bytes = unreadable.bytes(address, length);
  if (bytes != nullptr) memcpy(bytes, from, length);
  return bytes != nullptr;
}

/* No compiler has version 0.0, so that nothing that is cached on disk passes for kernels of a GPU. */
int nvrtcVersion(int *major, int *minor) { return *major = *minor = 0; }
/* A program is its image. */
int nvrtcCreateProgram(const void **program, const char *, const char *, int, const char *const *,
                       const char *const *) {
  return give<const void *>(program, kImage);
}
int nvrtcDestroyProgram(void **) { return kSuccess; }
int nvrtcCompileProgram(void *, int, const char *const *) { return kSuccess; }
int nvrtcGetProgramLogSize(void *, size_t *size) { return give<size_t>(size, 1); }
int nvrtcGetProgramLog(void *, char *log) { return *log = 0; }
int nvrtcGetCUBINSize(const char *program, size_t *size) { return give(size, strlen(program) + 1); }
int nvrtcGetCUBIN(const char *program, char *to) { return strcpy(to, program), kSuccess; }

}  // extern "C"
