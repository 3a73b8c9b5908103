/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A substitute for libcuda and libnvrtc: one "GPU" whose memory is this process's memory and whose kernels run on the
 * host executor, each on threads of its own that are joined when a call waits for them. It tests the code around a GPU
 * on machines without one. It does not model a GPU's speed, memory ordering or caches.
 *
 * PRETEND_GPU_REFUSES=N,...: the Nth (from 1) distinct address whose registration is requested is refused each time, as
 * a driver refuses a BAR that it cannot map.
 * PRETEND_GPU_ATTRIBUTES=N,...: these attributes of the device are 1.
 * PRETEND_GPU_TWO=1: there are two GPUs.
 * PRETEND_GPU_FAILS_COPY=N: asynchronous copies of N bytes to the host fail.
 *
 * Tests change results, and read counts, with the functions pretend_gpu_* at the end.
 *
 * It has only the functions that this project and cudarc call. Results and constants are those of cuda.h.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../../kernels/test/load.h"
#include "efa_gda/queue.h"

struct efa_gda_bench_args;

/* kernels/host/executor.cpp and kernels/test/load_host.cpp. */
extern "C" {
bool efa_gda_host_put(const efa_gda_put_args *args, uint32_t lanes);
bool efa_gda_host_load(const efa_gda_load_args *args, bool mixed, uint32_t block, uint32_t blocks, uint32_t lanes);
bool efa_gda_host_receive(const efa_gda_receive_args *args);
bool efa_gda_host_bench(const efa_gda_bench_args *args, bool latency, uint32_t block, uint32_t blocks, uint32_t lanes);
}

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kNotSupported = 801, kAlreadyRegistered = 712;
constexpr int kCaptureUnsupported = 900;
/* CUstreamCaptureMode: global is 0. */
constexpr int kRelaxed = 2;
/* Attributes and their values: compute capability 9.0, dmabuf, writes in order for all. */
constexpr int kAttributes[][2] = {{75, 9}, {76, 0}, {124, 1}, {118, 200}};
constexpr char kImage[] = "\x7f" "ELF of a pretended GPU";
/* Bytes of `struct efa_gda_bench_args` (kernels/bench.cu). */
constexpr size_t kBenchArgs = 56;

/* Runs one block of a kernel with a copy of its argument. */
using Body = void (*)(const void *argument, uint32_t block, uint32_t blocks, uint32_t lanes);
struct Kernel {
  const char *name;
  size_t argument;
  Body body;
};
const Kernel kKernels[] = {
    /* Runs until the word is not 0, and uses no queue. */
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

/* Kernels that run. All streams are one: a call that waits, waits for all kernels. */
struct Running {
  std::mutex lock;
  std::vector<std::thread> threads;

  void wait() {
    std::vector<std::thread> all;
    {
      std::lock_guard<std::mutex> locked(lock);
      all.swap(threads);
    }
    for (auto &one : all) one.join();
  }
} running;

/* Whether `number` is in the comma-separated list of the environment variable. */
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
  std::vector<uintptr_t> requested;
  std::set<uintptr_t> registered;

  bool refused(uintptr_t address) {
    size_t number = 0;
    while (number < requested.size() && requested[number] != address) number++;
    if (number == requested.size()) requested.push_back(address);
    return listed("PRETEND_GPU_REFUSES", number + 1);
  }
} registrations;

/* Results that tests set: a call returns its result and does nothing. */
struct Results {
  std::mutex lock;
  std::map<std::string, int> refused;

  int of(const char *call) {
    std::lock_guard<std::mutex> locked(lock);
    auto result = refused.find(call);
    return result == refused.end() ? kSuccess : result->second;
  }
} results;

/* Whether a thread captures a graph, and the capture mode of this thread. */
std::atomic<bool> capturing;
thread_local int capture_mode;
std::atomic<uint32_t> synchronizations;

bool capture_refuses() { return capturing && capture_mode != kRelaxed; }

template <class T>
int set(T *to, T value) {
  *to = value;
  return kSuccess;
}

int allocate(uint64_t *to, size_t bytes) {
  return set(to, (uint64_t)aligned_alloc(256, (bytes + 255) & ~(size_t)255));
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return kSuccess; }
int cuDriverGetVersion(int *version) { return set(version, 13000); }
int cuGetErrorName(int, const char **name) { return set<const char *>(name, "PRETENDED_ERROR"); }
int cuGetErrorString(int code, const char **text) {
  return set<const char *>(text, code == kInvalidValue ? "invalid argument" : "pretended");
}

int cuDeviceGetCount(int *count) { return set(count, listed("PRETEND_GPU_TWO", 1) ? 2 : 1); }
int cuDeviceGet(int *device, int number) {
  int count;
  cuDeviceGetCount(&count);
  return number >= 0 && number < count ? set(device, number) : 101;
}
int cuDeviceGetName(char *name, int length, int) {
  strncpy(name, "pretended GPU", (size_t)length);
  return kSuccess;
}
int cuDeviceGetPCIBusId(char *address, int length, int) {
  strncpy(address, "0000:00:00.0", (size_t)length);
  return kSuccess;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
  *value = listed("PRETEND_GPU_ATTRIBUTES", (unsigned long)attribute);
  for (auto &known : kAttributes) {
    if (known[0] == attribute) *value = known[1];
  }
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void **context, int) { return set<void *>(context, &token); }
int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
int cuCtxSetCurrent(void *) { return kSuccess; }
int cuCtxGetCurrent(void **context) { return set<void *>(context, &token); }
int cuCtxSynchronize() {
  if (capture_refuses()) return kCaptureUnsupported;
  if (int refused = results.of("cuCtxSynchronize")) return refused;
  synchronizations++;
  return running.wait(), kSuccess;
}
int cuStreamCreate(void **stream, unsigned) { return set<void *>(stream, &token); }
int cuStreamDestroy_v2(void *) { return results.of("cuStreamDestroy"); }
int cuStreamSynchronize(void *) { return running.wait(), kSuccess; }
int cuThreadExchangeStreamCaptureMode(int *mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
int cuStreamQuery(void *) {
  if (capture_refuses()) return kCaptureUnsupported;
  return results.of("cuStreamQuery");
}
int cuStreamWaitEvent(void *, void *, unsigned) { return kSuccess; }
int cuEventCreate(void **event, unsigned) { return set<void *>(event, &token); }
int cuEventRecord(void *, void *) { return kSuccess; }
int cuEventSynchronize(void *) { return kSuccess; }
int cuEventDestroy_v2(void *) { return kSuccess; }

int cuMemAlloc_v2(uint64_t *to, size_t bytes) { return allocate(to, bytes); }
int cuMemAllocAsync(uint64_t *to, size_t bytes, void *) { return allocate(to, bytes); }
int cuMemFree_v2(uint64_t at) { return running.wait(), free((void *)at), kSuccess; }
int cuMemFreeAsync(uint64_t at, void *) { return cuMemFree_v2(at); }
int cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  return memset((void *)at, value, bytes), kSuccess;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, void *) {
  return cuMemsetD8_v2(at, value, bytes);
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  running.wait();
  return memcpy((void *)to, from, bytes), kSuccess;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
  running.wait();
  return memcpy(to, (void *)from, bytes), kSuccess;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *) {
  const char *size = getenv("PRETEND_GPU_FAILS_COPY");
  if (size != nullptr && strtoul(size, nullptr, 10) == bytes) return 700;
  return cuMemcpyDtoH_v2(to, from, bytes);
}
/* This GPU exports no memory. */
int cuMemGetHandleForAddressRange(void *, uint64_t, size_t, int, uint64_t) { return kNotSupported; }
int cuMemHostAlloc(void **to, size_t bytes, unsigned) { return allocate((uint64_t *)to, bytes); }
int cuMemFreeHost(void *at) { return free(at), kSuccess; }

int cuMemHostRegister_v2(void *start, size_t, unsigned) {
  std::lock_guard<std::mutex> locked(registrations.lock);
  if (registrations.refused((uintptr_t)start)) return kInvalidValue;
  return registrations.registered.insert((uintptr_t)start).second ? kSuccess : kAlreadyRegistered;
}
int cuMemHostUnregister(void *start) {
  if (capture_refuses()) return kCaptureUnsupported;
  std::lock_guard<std::mutex> locked(registrations.lock);
  return registrations.registered.erase((uintptr_t)start) == 1 ? kSuccess : kInvalidValue;
}
int cuMemHostGetDevicePointer_v2(uint64_t *to, void *at, unsigned) { return set(to, (uint64_t)at); }
int cuPointerGetAttribute(void *, int, uint64_t) { return kInvalidValue; }

int cuModuleLoadData(void **module, const void *image) {
  return strcmp((const char *)image, kImage) == 0 ? set<void *>(module, &token) : kNotSupported;
}
int cuModuleUnload(void *) { return kSuccess; }
int cuModuleGetFunction(void **function, void *, const char *name) {
  for (auto &kernel : kKernels) {
    if (strcmp(name, kernel.name) == 0) return set(function, (void *)&kernel);
  }
  return kNotFound;
}
int cuLaunchKernel(void *function, unsigned blocks, unsigned, unsigned, unsigned lanes, unsigned, unsigned, unsigned,
                   void *, void **arguments, void **) {
  const Kernel &kernel = *(const Kernel *)function;
  std::shared_ptr<void> argument(aligned_alloc(16, (kernel.argument + 15) & ~(size_t)15), free);
  memcpy(argument.get(), arguments[0], kernel.argument);
  running.wait();
  std::lock_guard<std::mutex> locked(running.lock);
  for (unsigned block = 0; block < blocks; block++) {
    running.threads.emplace_back([=, &kernel] { kernel.body(argument.get(), block, blocks, lanes); });
  }
  return kSuccess;
}

/* Makes `call` return `code` and do nothing; 0 ends that. */
void pretend_gpu_answer(const char *call, int code) {
  std::lock_guard<std::mutex> locked(results.lock);
  results.refused[call] = code;
}
/* Sets whether a thread captures a graph in the global mode: only threads in the relaxed mode may then synchronise or
 * query. */
void pretend_gpu_capture(bool begun) { capturing = begun; }
/* Returns the number of calls of cuCtxSynchronize that waited. */
uint32_t pretend_gpu_synchronizations() { return synchronizations; }
/* Returns the number of registered addresses. */
uint32_t pretend_gpu_registered() {
  std::lock_guard<std::mutex> locked(registrations.lock);
  return (uint32_t)registrations.registered.size();
}

/* No compiler has version 0.0, so no cached image of a real GPU matches. */
int nvrtcVersion(int *major, int *minor) { return *major = *minor = 0; }
int nvrtcCreateProgram(void **program, const char *, const char *, int, const char *const *, const char *const *) {
  return set<void *>(program, &token);
}
int nvrtcDestroyProgram(void **) { return kSuccess; }
int nvrtcCompileProgram(void *, int, const char *const *) { return kSuccess; }
int nvrtcGetProgramLogSize(void *, size_t *size) { return set<size_t>(size, 1); }
int nvrtcGetProgramLog(void *, char *log) { return *log = 0; }
int nvrtcGetCUBINSize(void *, size_t *size) { return set(size, sizeof kImage); }
int nvrtcGetCUBIN(void *, char *to) { return memcpy(to, kImage, sizeof kImage), kSuccess; }

}  // extern "C"
