/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel of a program that drives EFA through libfabric's FI_XPU, written from fi_xpu(3). It posts requests or
 * receives, and waits for them by a counter or a completion queue. softefa/tests/libfabric_xpu.rs has the host's part.
 */
#ifdef FI_XPU_EXAMPLE_WITH_LIBFABRIC
#include <rdma/fi_xpu_device.h>
#endif
#include "efa_gda/fi_xpu_efa.h"

enum fi_xpu_operation { kXpuWrite, kXpuRead, kXpuSend, kXpuReceive };

/* Each group of threads, as `scope` defines it, makes `calls` calls. All groups' calls are numbered from 0. Call i
 * moves `bytes` bytes between local + i * bytes and remote + i * bytes, and has the context i + 1. */
struct fi_xpu_example {
  struct fid_xpu_ep *ep;
  /* `cq` and `cntr` may be null. If neither is, the kernel waits by the counter. */
  struct fid_xpu_cq *cq;
  struct fid_xpu_cntr *cntr;
  /* What fi_av_lookup2 and fi_mr_get_xpu_desc wrote. */
  void *peer;
  void *desc;
  uint8_t *local;
  uint64_t remote;
  uint64_t rkey;
  uint64_t bytes;
  uint64_t flags;
  uint32_t operation;
  int32_t scope;
  uint32_t calls;
  /* Timeout of the wait for the counter, in milliseconds. */
  int32_t timeout;
  /* The value to wait for; 0: does not wait. */
  uint64_t threshold;
  /* By thread: the first result other than 0; -FI_EAGAIN only after kMostTries. */
  int32_t *status;
  /* The *read completions that threads have read, in any order. */
  struct fi_cq_data_entry *entries;
  uint32_t *read;
};

namespace {

/* At least a minute on a GPU. */
constexpr uint32_t kMostTries = 1u << 26;

/* Reads completions into the next free entries. Each thread calls it for itself, whatever the scope of the requests. */
EFA_GDA_FN int64_t drain(const fi_xpu_example &a) {
  struct fi_cq_data_entry few[4];
  int64_t count = fi_xpu_cq_read(a.cq, few, 4, FI_XPU_WORK_ITEM);
  for (int64_t i = 0; i < count; i++) a.entries[efa_gda::fetch_add_relaxed(a.read, 1u)] = few[i];
  return count;
}

EFA_GDA_FN int call(const fi_xpu_example &a, uint32_t i) {
  uint8_t *local = a.local + i * a.bytes;
  uint64_t remote = a.remote + i * a.bytes;
  void *context = reinterpret_cast<void *>((uint64_t)i + 1);
  switch (a.operation) {
    case kXpuWrite:
      return fi_xpu_write(a.ep, local, a.bytes, a.desc, i, a.peer, remote, a.rkey, context, a.flags, a.scope);
    case kXpuRead: return fi_xpu_read(a.ep, local, a.bytes, a.desc, a.peer, remote, a.rkey, context, a.flags, a.scope);
    case kXpuSend: return fi_xpu_send(a.ep, local, a.bytes, a.desc, i, a.peer, context, a.flags, a.scope);
    default: return fi_xpu_recv(a.ep, local, a.bytes, a.desc, nullptr, context, a.flags, a.scope);
  }
}

}  // namespace

EFA_GDA_KERNEL fi_xpu_requests(struct fi_xpu_example a) {
  using namespace efa_gda;
  uint32_t thread = block_index() * block_threads() + thread_index();
  uint32_t group = a.scope == FI_XPU_WORK_ITEM    ? thread
                   : a.scope == FI_XPU_SUBGROUP   ? thread / 32
                   : a.scope == FI_XPU_WORK_GROUP ? block_index()
                                                  : 0;
  int status = 0;
  for (uint32_t i = 0; i < a.calls && status == 0; i++) {
    /* All threads of a group must repeat a call equally often. Their clocks may differ, so the number of tries ends
     * this loop. */
    uint32_t tries = 0;
    while ((status = call(a, group * a.calls + i)) == -FI_EAGAIN && tries++ < kMostTries) {
      if (a.cq != nullptr) drain(a);
      pause();
    }
  }
  a.status[thread] = status;
  if (a.threshold == 0 || thread != 0) return;
  if (a.cntr != nullptr) {
    fi_xpu_cntr_wait(a.cntr, a.threshold, a.timeout, FI_XPU_WORK_ITEM);
  } else {
    uint64_t start = clock_ns();
    while (load_relaxed(a.read) < a.threshold && clock_ns() - start < EFA_GDA_XPU_FOREVER_NS) {
      int64_t count = drain(a);
      if (count < 0 && count != -FI_EAGAIN) {
        a.status[thread] = (int32_t)count;
        return;
      }
      pause();
    }
  }
}

#if !EFA_GDA_ON_GPU
extern "C" bool fi_xpu_requests_on_host(const struct fi_xpu_example *args, uint32_t block, uint32_t blocks,
                                        uint32_t threads, uint64_t seed) {
  efa_gda::host::interleave(seed);
  return efa_gda::host::run_block(block, blocks, threads, [=] { fi_xpu_requests(*args); });
}

/* Single calls of one thread of the device. */
template <class Call>
int64_t once(Call call) {
  int64_t result = 0;
  efa_gda::host::run_block(0, 1, 1, [&] { result = call(); });
  return result;
}
extern "C" int64_t fi_xpu_call_on_host(const struct fi_xpu_example *args) {
  return once([=] { return (int64_t)call(*args, 0); });
}
extern "C" uint64_t fi_xpu_cntr_read_on_host(struct fid_xpu_cntr *cntr, int scope) {
  return (uint64_t)once([=] { return (int64_t)fi_xpu_cntr_read(cntr, scope); });
}
extern "C" uint64_t fi_xpu_cntr_readerr_on_host(struct fid_xpu_cntr *cntr, int scope) {
  return (uint64_t)once([=] { return (int64_t)fi_xpu_cntr_readerr(cntr, scope); });
}
extern "C" int64_t fi_xpu_cntr_change_on_host(struct fid_xpu_cntr *cntr, uint32_t how, uint64_t value) {
  return once([=]() -> int64_t {
    switch (how) {
      case 0: return fi_xpu_cntr_add(cntr, value, FI_XPU_WORK_ITEM);
      case 1: return fi_xpu_cntr_set(cntr, value, FI_XPU_WORK_ITEM);
      case 2: return fi_xpu_cntr_adderr(cntr, value, FI_XPU_WORK_ITEM);
      default: return fi_xpu_cntr_seterr(cntr, value, FI_XPU_WORK_ITEM);
    }
  });
}
extern "C" void fi_xpu_cntr_wait_on_host(struct fid_xpu_cntr *cntr, uint64_t threshold, int timeout) {
  once([=] { return fi_xpu_cntr_wait(cntr, threshold, timeout, FI_XPU_WORK_ITEM), (int64_t)0; });
}
/* One block of a grid that waits together and then makes one more call together, whose result this returns. */
extern "C" int fi_xpu_grid_waits_on_host(struct fid_xpu_cntr *cntr, int timeout, uint32_t block, uint32_t blocks) {
  int result = 0;
  efa_gda::host::run_block(block, blocks, 1, [&] {
    fi_xpu_cntr_wait(cntr, ~0ull, timeout, FI_XPU_DEVICE);
    result = fi_xpu_cntr_add(cntr, 0, FI_XPU_DEVICE);
  });
  return result;
}
extern "C" int fi_xpu_error_of_on_host(uint32_t status) { return efa_gda::xpu::error_of(status); }
extern "C" int64_t fi_xpu_cq_read_on_host(struct fid_xpu_cq *cq, void *buf, size_t count) {
  return once([=] { return fi_xpu_cq_read(cq, buf, count, FI_XPU_WORK_ITEM); });
}
extern "C" int64_t fi_xpu_cq_sread_on_host(struct fid_xpu_cq *cq, void *buf, size_t count, uint64_t threshold) {
  return once([=] { return fi_xpu_cq_sread(cq, buf, count, threshold, FI_XPU_WORK_ITEM); });
}
extern "C" int64_t fi_xpu_cq_readerr_on_host(struct fid_xpu_cq *cq, void *buf) {
  return once([=] { return fi_xpu_cq_readerr(cq, buf, 0, FI_XPU_WORK_ITEM); });
}
#endif
