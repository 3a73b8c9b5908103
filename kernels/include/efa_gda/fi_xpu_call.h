/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What every call of fi_xpu_efa.h begins with: libfabric's names, the struct behind a handle, and the scope.
 *
 * WORDS: object.meeting and object.result, which meet() describes.
 */
#ifndef EFA_GDA_FI_XPU_CALL_H
#define EFA_GDA_FI_XPU_CALL_H

#ifndef __CUDACC_RTC__
#include <stddef.h>
#endif

#include "fi_xpu_layout.h"
#include "group.h"

#ifndef FI_XPU_DEVICE_H
/* As in rdma/fi_xpu.h, fi_eq.h, fabric.h and fi_errno.h of libfabric 2.7. */
enum { FI_XPU_WORK_ITEM, FI_XPU_SUBGROUP, FI_XPU_WORK_GROUP, FI_XPU_DEVICE };
enum { FI_XPU_PROV_EFA = 1 };
enum {
  FI_EAGAIN = 11,
  FI_EINVAL = 22,
  FI_ENOSYS = 38,
  FI_EMSGSIZE = 90,
  FI_EOPNOTSUPP = 95,
  FI_ETIMEDOUT = 110,
  FI_ECANCELED = 125,
  FI_EAVAIL = 259,
  FI_EBADFLAGS = 260
};
struct fid_xpu {
  uint32_t fclass;
  uint32_t prov_id;
  uint64_t prov_ctx;
};
struct fid_xpu_ep {
  struct fid_xpu fid;
};
struct fid_xpu_cq {
  struct fid_xpu fid;
};
struct fid_xpu_cntr {
  struct fid_xpu fid;
};
struct fi_cq_data_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
};
struct fi_cq_err_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
  uint64_t tag;
  size_t olen;
  int err;
  int prov_errno;
  void *err_data;
  size_t err_data_size;
  uint64_t src_addr;
};
#endif

static_assert(sizeof(fid_xpu_ep) == 16 && sizeof(fid_xpu_cq) == 16 && sizeof(fid_xpu_cntr) == 16,
              "rdma/fi_xpu.h of libfabric 2.7");
static_assert(sizeof(fi_cq_data_entry) == 40 && sizeof(fi_cq_err_entry) == 88, "rdma/fi_eq.h of libfabric 2.7");

namespace efa_gda {
namespace xpu {

/* rdma/fabric.h of libfabric 2.7: fid::fclass, and flags of calls and completions. */
constexpr uint32_t kClassEndpoint = 3, kClassQueue = 14, kClassCounter = 15;
constexpr uint64_t kMsg = 1ull << 1, kRma = 1ull << 2, kRead = 1ull << 8, kWrite = 1ull << 9, kRecv = 1ull << 10,
                   kSend = 1ull << 11, kRemoteWrite = 1ull << 13, kRemoteData = 1ull << 17, kMore = 1ull << 18,
                   kCompletion = 1ull << 24, kInject = 1ull << 25, kTransmitComplete = 1ull << 27,
                   kDeliveryComplete = 1ull << 28;
constexpr uint64_t kNoChange = kMore | kCompletion | kTransmitComplete | kDeliveryComplete;

EFA_GDA_FN bool is_aligned(const void *pointer, uint64_t bytes) {
  return (reinterpret_cast<uint64_t>(pointer) & (bytes - 1)) == 0;
}

/* Returns the struct of an exported object, or null if its layout is not this file's. */
template <class Object>
EFA_GDA_FN Object *object_of(const fid_xpu &fid, uint32_t fclass) {
  Object *object = reinterpret_cast<Object *>(fid.prov_ctx);
  if (fid.prov_id != FI_XPU_PROV_EFA || fid.fclass != fclass || object == nullptr) return nullptr;
  const efa_gda_xpu_object &head = object->object;
  bool known = head.magic == EFA_GDA_XPU_MAGIC && head.bytes == sizeof(Object) && head.fclass == fclass;
  return known ? object : nullptr;
}

/* The bound of a wait that has no queue, and so neither poison nor abort flag; it counts from the constructor. */
class Bound {
 public:
  EFA_GDA_FN explicit Bound(uint64_t bound_ns) : bound_ns_(bound_ns), start_(clock_ns()) {}
  /* To be called in each iteration. The caller must look once more after the first true (meet(): its CAS). */
  EFA_GDA_FN bool is_over() {
    pause();
    return clock_ns() - start_ >= bound_ns_;
  }

 private:
  uint64_t bound_ns_, start_;
};

/* Bit 31 of object.meeting: the blocks did not meet within the bound. */
constexpr uint64_t kBroken = 0x80000000u;

/* Executes `call` once for all blocks, when their leaders have called this. object.meeting has in its low half the
 * number of leaders that have arrived, and in its high half the number of meetings before; one word, so that a leader
 * can break only the meeting in which it waits. The last leader to arrive executes the call. All others have arrived by
 * then, so none still reads the result of the meeting before. The fences before and after an arrival order what the
 * blocks stored before the call. The bound is that of the arrivals, from a leader's own: the waits of the call have
 * bounds of their own. After a meeting that did not come about, all later ones on the object fail. */
template <class Call>
EFA_GDA_FN int64_t meet(efa_gda_xpu_object *object, Call call) {
  uint32_t blocks = block_count();
  fence_device();
  uint64_t word = fetch_add_relaxed(&object->meeting, (uint64_t)1), number = word >> 32;
  fence_device();
  if ((word & kBroken) != 0) {
    fetch_add_relaxed(&object->meeting, ~(uint64_t)0);
    return -FI_ETIMEDOUT;
  }
  if ((uint32_t)word + 1 == blocks) {
    int64_t result = call();
    store_relaxed(reinterpret_cast<uint64_t *>(&object->result), (uint64_t)result);
    store_release(&object->meeting, (number + 1) << 32);
    return result;
  }
  Bound bound(object->timeout_ns);
  while ((word = load_acquire(&object->meeting)) >> 32 == number) {
    if ((word & kBroken) != 0) return -FI_ETIMEDOUT;
    bool is_over = bound.is_over() && (uint32_t)word != blocks;
    if (is_over && compare_swap(&object->meeting, word, word | kBroken) == word) return -FI_ETIMEDOUT;
  }
  return (int64_t)load_relaxed(reinterpret_cast<const uint64_t *>(&object->result));
}

/* Executes `call` in the leader of `group` and returns its result to all threads. */
template <class Group, class Call>
EFA_GDA_FN int64_t together(Group group, Call call) {
  if (!one_dimensional() || !group.is_whole()) return -FI_EINVAL;
  group.sync();
  uint64_t result = 0;
  if (group.rank() == 0) result = (uint64_t)call();
  result = group.from_leader(result);
  group.sync();
  return (int64_t)result;
}

template <class Call>
EFA_GDA_FN int64_t at_scope(efa_gda_xpu_object *object, int scope, Call call) {
  switch (scope) {
    case FI_XPU_WORK_ITEM: return call();
    case FI_XPU_SUBGROUP: return together(WarpGroup(), call);
    case FI_XPU_WORK_GROUP: return together(BlockGroup(), call);
    case FI_XPU_DEVICE:
      return !one_dimensional_grid() ? -FI_EINVAL : together(BlockGroup(), [&] { return meet(object, call); });
    default: return -FI_EINVAL;
  }
}

}  // namespace xpu
}  // namespace efa_gda

#endif
