/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libefa_gda.so and the CUDA driver, loaded at run time, for host.cpp: a program that links the side library needs
 * neither at link time.
 */
#ifndef EFA_GDA_NVSHMEM_LIBRARY_H
#define EFA_GDA_NVSHMEM_LIBRARY_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#include <string>

#include "efa_gda.h"

namespace efa_gda_nvshmem {

/* The functions that host.cpp calls. */
#define EFA_GDA_NVSHMEM_FUNCTIONS(F)                                                                              \
  F(efa_gda_api_version)                                                                                          \
  F(efa_gda_last_error)                                                                                           \
  F(efa_gda_queue_open)                                                                                           \
  F(efa_gda_queue_describe)                                                                                       \
  F(efa_gda_queue_insert_peer)                                                                                    \
  F(efa_gda_queue_retain)                                                                                         \
  F(efa_gda_queue_begin_launch)                                                                                   \
  F(efa_gda_queue_end_launch)                                                                                     \
  F(efa_gda_queue_poll)                                                                                           \
  F(efa_gda_queue_destroy)                                                                                        \
  F(efa_gda_region_register_gpu)                                                                                  \
  F(efa_gda_region_keys)                                                                                          \
  F(efa_gda_region_close)

struct Library {
#define EFA_GDA_NVSHMEM_POINTER(name) decltype(&::name) name;
  EFA_GDA_NVSHMEM_FUNCTIONS(EFA_GDA_NVSHMEM_POINTER)
#undef EFA_GDA_NVSHMEM_POINTER

  /* Returns false, with the reason in `why`. The library stays loaded. */
  bool load(std::string &why) {
    const char *name = getenv("EFA_GDA_LIBRARY");
    void *library = dlopen(name != nullptr ? name : "libefa_gda.so", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      why = std::string(dlerror()) + "; install it (scripts/install.sh) and set EFA_GDA_LIBRARY to its file";
      return false;
    }
#define EFA_GDA_NVSHMEM_FIND(name)                                            \
  this->name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));    \
  if (this->name == nullptr) {                                                \
    why = "libefa_gda.so has no function " #name "; install the version of this header"; \
    return false;                                                             \
  }
    EFA_GDA_NVSHMEM_FUNCTIONS(EFA_GDA_NVSHMEM_FIND)
#undef EFA_GDA_NVSHMEM_FIND
    if (efa_gda_api_version() == EFA_GDA_API_VERSION) return true;
    why = "libefa_gda.so implements version " + std::to_string(efa_gda_api_version()) +
          " of the interface, and the program was compiled for version " + std::to_string(EFA_GDA_API_VERSION) +
          "; install the libefa_gda.so of the same release as this header, or compile the program again with the header "
          "of that library (EFA_GDA_LIBRARY names the file that is loaded)";
    return false;
  }
};

/* The allocation that contains `pointer`. */
struct Allocation {
  uint64_t start = 0;
  size_t bytes = 0;
  /* A dma-buf descriptor of it, or -1. */
  int dmabuf = -1;

  /* Returns false if the driver does not know the pointer. */
  bool find(const void *pointer) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) return false;
    /* cuda.h: CUresult cuMemGetAddressRange_v2(CUdeviceptr *, size_t *, CUdeviceptr). */
    using Range = int (*)(unsigned long long *, size_t *, unsigned long long);
    auto range = reinterpret_cast<Range>(dlsym(driver, "cuMemGetAddressRange_v2"));
    unsigned long long first = 0;
    if (range == nullptr || range(&first, &bytes, reinterpret_cast<unsigned long long>(pointer)) != 0) return false;
    start = first;
    /* CUresult cuMemGetHandleForAddressRange(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
     * 1 is CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD. */
    using Handle = int (*)(void *, unsigned long long, size_t, int, unsigned long long);
    auto handle = reinterpret_cast<Handle>(dlsym(driver, "cuMemGetHandleForAddressRange"));
    if (handle != nullptr && handle(&dmabuf, first, bytes, 1, 0) != 0) dmabuf = -1;
    return true;
  }
};

}  // namespace efa_gda_nvshmem

#endif
