/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The EFA half of libfabric's device API, FI_XPU (fi_xpu(3) of libfabric 2.7), for objects that softefa exported
 * (fi_xpu_layout.h). C++17: kernels include it, alone or after libfabric's header:
 *
 *   #include <rdma/fi_xpu_device.h>
 *   #include <efa_gda/fi_xpu_efa.h>
 *
 * With libfabric's header, calls on objects of EFA (prov_id FI_XPU_PROV_EFA) go to this file's functions and all others
 * to libfabric's. Alone, this file declares the handles, constants and completion entries that kernels need.
 *   fi_xpu_write, _read, _send, _recv
 *   fi_xpu_cntr_read, _readerr, _wait, _add, _set, _adderr, _seterr
 *   fi_xpu_cq_read, _readerr, _sread
 * An EFA adapter has no tagged messages and no atomics. fi_xpu_cq_readfrom and _sreadfrom are missing, because an
 * adapter does not report all of a sender's address. For all of these, libfabric's functions return -FI_ENOSYS on
 * objects of EFA; alone, this file does not declare them.
 *
 * RESULTS. 0 or a count; or
 *   -FI_EAGAIN     no free slot, all entries of the completion queue reserved (REQUESTS), no completion now, or another
 *                  thread reads: repeat, or first read completions
 *   -FI_EINVAL     a handle of another kind or layout, an argument that no entry can express, or threads that do not
 *                  meet the conditions of their scope (SCOPES)
 *   -FI_ENOSYS     without libfabric's header, a handle of another provider
 *   -FI_EMSGSIZE   longer than one request: nothing is split, because a call has one completion
 *   -FI_ETIMEDOUT  a wait ended at its bound. Of a request, for the adapter or the lock: the endpoint is then out of
 *                  service. Of a receive, for other threads: nothing was posted. Of a grid: the blocks did not meet
 *                  (SCOPES)
 *   -FI_ECANCELED  the endpoint is out of service, for another reason than that a wait of this call ran out
 *   -FI_EBADFLAGS, -FI_EOPNOTSUPP, -FI_EAVAIL (fi_xpu_cq_read: the next completion is an error)
 *
 * SCOPES. A call of scope FI_XPU_WORK_ITEM is the calling thread's. Of any other scope it is one call of all threads
 * of the full warp, block or grid, which must make it together with the same arguments: their leader (of a grid:
 * that of the block that arrives last) executes it, after all of them have arrived, and all get the result. So what
 * any of them stored before the call is ordered before it. With FI_XPU_DEVICE, memory to which the call stores must be
 * reachable by all blocks. A call of that scope is a barrier of the grid: all blocks must be resident at the same time
 * (a cooperative launch), and one grid at a time may make such calls on an object. If the blocks do not meet within the
 * object's bound, the call returns -FI_ETIMEDOUT, and so do all later ones of that scope on the object. For scopes
 * other than FI_XPU_WORK_ITEM, blocks must be one-dimensional; for FI_XPU_DEVICE, the grid too. A counter function that
 * returns a value returns 0 where others return an error.
 *
 * REQUESTS. `desc` points to what fi_mr_get_xpu_desc wrote, `dest_addr` and `src_addr` to what fi_av_lookup2 wrote,
 * in memory of the device, aligned to 4 bytes. `context` is any value whose upper 17 bits are equal, such as a
 * pointer of x86-64; an entry carries 48 bits of it. Flags: FI_REMOTE_CQ_DATA (32 bits of `data`), FI_INJECT (the
 * bytes are in the entry; `buf` may be a variable of the calling thread, and no other thread may store to it during
 * the call), and FI_MORE, FI_COMPLETION, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, which change nothing.
 *   The domain has resource management (FI_RM_ENABLED): each request and each posted receive reserves an entry of its
 * completion queue, if a device reads that queue, until its completion is read. While all entries are reserved, a call
 * returns -FI_EAGAIN, so that the queue is never overrun. Writes with immediate by peers use no receive and reserve
 * nothing, so nothing bounds them.
 *   When the endpoint is out of service, the adapter may still access the buffers until the endpoint is closed. A
 * request whose post failed keeps its reservation in the completion queue, because it may still complete.
 *
 * WAITS. All end. fi_xpu_cntr_wait ends when the counter has reached the threshold; when an error was counted since
 * a wait, fi_xpu_cntr_readerr or fi_xpu_cntr_seterr last saw the errors; when a thread changes their value during the
 * wait; or after `timeout` milliseconds, for which a negative number means EFA_GDA_XPU_FOREVER_NS. The caller reads the
 * counter and its errors to learn which. What the counted requests wrote is visible after it and after
 * fi_xpu_cntr_read, under the conditions of signal.h (RECEIVING SIDE). fi_xpu_cq_sread waits for min(threshold, count)
 * completions (threshold 0: one), for at most EFA_GDA_XPU_FOREVER_NS. At that bound, or before a failed completion, it
 * returns those it has read, or if it has none -FI_EAGAIN or -FI_EAVAIL.
 */
#ifndef EFA_GDA_FI_XPU_EFA_H
#define EFA_GDA_FI_XPU_EFA_H

#include "fi_xpu_completion.h"
#include "fi_xpu_post.h"

/* A call on an object of another provider: libfabric's if its header is there. */
#ifdef FI_XPU_DEVICE_H
#define EFA_GDA_XPU_OTHER(call, result) ::call
#else
#define EFA_GDA_XPU_OTHER(call, result) result
#endif

namespace efa_gda {
namespace xpu {

/* The calls on objects of EFA. */
EFA_GDA_FN int transfer(const fid_xpu_ep *ep, const Transfer &request, int scope) {
  efa_gda_xpu_ep *object = object_of<efa_gda_xpu_ep>(ep->fid, kClassEndpoint);
  if (object == nullptr) return -FI_EINVAL;
  return (int)at_scope(&object->object, scope, [&] { return post_transfer(object, &request); });
}
EFA_GDA_FN uint64_t counted(const fid_xpu_cntr *cntr, bool errors, int scope) {
  efa_gda_xpu_cntr *object = object_of<efa_gda_xpu_cntr>(cntr->fid, kClassCounter);
  if (object == nullptr) return 0;
  int64_t value = at_scope(&object->object, scope, [&] { return read_counter(object, errors); });
  /* A refused call reads 0: as a value, its error would satisfy any threshold. */
  return value < 0 && value >= -kLargestError ? 0 : (uint64_t)value;
}
EFA_GDA_FN int change(const fid_xpu_cntr *cntr, bool errors, bool add, uint64_t value, int scope) {
  efa_gda_xpu_cntr *object = object_of<efa_gda_xpu_cntr>(cntr->fid, kClassCounter);
  if (object == nullptr) return -FI_EINVAL;
  return (int)at_scope(&object->object, scope, [&] { return change_counter(object, errors, add, value); });
}
/* Calls `read(queue)`, which stores to `buf`. */
template <class Read>
EFA_GDA_FN int64_t read_by(const fid_xpu_cq *cq, const void *buf, int scope, Read read) {
  efa_gda_xpu_cq *object = object_of<efa_gda_xpu_cq>(cq->fid, kClassQueue);
  if (object == nullptr || buf == nullptr || !is_aligned(buf, 8)) return -FI_EINVAL;
  return at_scope(&object->object, scope, [&] { return read(object); });
}

EFA_GDA_FN bool is_efa(const fid_xpu &fid) { return fid.prov_id == FI_XPU_PROV_EFA; }

/* libfabric's functions, for objects of every provider. The macros below give them libfabric's names, which its header
 * may have defined. */
EFA_GDA_FN int dispatch_write(fid_xpu_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, void *dest_addr,
                              uint64_t addr, uint64_t key, void *context, uint64_t flags, int scope) {
  if (is_efa(ep->fid)) {
    return transfer(ep, {EFA_IO_RDMA_WRITE, buf, len, desc, data, dest_addr, addr, key, context, flags}, scope);
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_write(ep, buf, len, desc, data, dest_addr, addr, key, context, flags, scope),
                           -FI_ENOSYS);
}
EFA_GDA_FN int dispatch_read(fid_xpu_ep *ep, void *buf, size_t len, void *desc, void *src_addr, uint64_t addr,
                             uint64_t key, void *context, uint64_t flags, int scope) {
  if (is_efa(ep->fid)) {
    return transfer(ep, {EFA_IO_RDMA_READ, buf, len, desc, 0, src_addr, addr, key, context, flags}, scope);
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_read(ep, buf, len, desc, src_addr, addr, key, context, flags, scope), -FI_ENOSYS);
}
EFA_GDA_FN int dispatch_send(fid_xpu_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, void *dest_addr,
                             void *context, uint64_t flags, int scope) {
  if (is_efa(ep->fid)) {
    return transfer(ep, {EFA_IO_SEND, buf, len, desc, data, dest_addr, 0, 0, context, flags}, scope);
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_send(ep, buf, len, desc, data, dest_addr, context, flags, scope), -FI_ENOSYS);
}
EFA_GDA_FN int dispatch_recv(fid_xpu_ep *ep, void *buf, size_t len, void *desc, void *src_addr, void *context,
                             uint64_t flags, int scope) {
  if (is_efa(ep->fid)) {
    /* An EFA adapter gives a receive to any sender. */
    (void)src_addr;
    efa_gda_xpu_ep *object = object_of<efa_gda_xpu_ep>(ep->fid, kClassEndpoint);
    if (object == nullptr) return -FI_EINVAL;
    return (int)at_scope(&object->object, scope, [&] { return post_receive(object, buf, len, desc, context, flags); });
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_recv(ep, buf, len, desc, src_addr, context, flags, scope), -FI_ENOSYS);
}
EFA_GDA_FN uint64_t dispatch_cntr_read(fid_xpu_cntr *cntr, int scope) {
  if (is_efa(cntr->fid)) return counted(cntr, false, scope);
  return EFA_GDA_XPU_OTHER(fi_xpu_cntr_read(cntr, scope), 0);
}
EFA_GDA_FN uint64_t dispatch_cntr_readerr(fid_xpu_cntr *cntr, int scope) {
  if (is_efa(cntr->fid)) return counted(cntr, true, scope);
  return EFA_GDA_XPU_OTHER(fi_xpu_cntr_readerr(cntr, scope), 0);
}
EFA_GDA_FN void dispatch_cntr_wait(fid_xpu_cntr *cntr, uint64_t threshold, int timeout, int scope) {
  if (is_efa(cntr->fid)) {
    efa_gda_xpu_cntr *object = object_of<efa_gda_xpu_cntr>(cntr->fid, kClassCounter);
    if (object == nullptr) return;
    at_scope(&object->object, scope, [&] { return wait_for_counter(object, threshold, wait_ns(timeout)); });
  } else {
    EFA_GDA_XPU_OTHER(fi_xpu_cntr_wait(cntr, threshold, timeout, scope), (void)0);
  }
}
EFA_GDA_FN int dispatch_cntr_add(fid_xpu_cntr *cntr, uint64_t value, int scope) {
  if (is_efa(cntr->fid)) return change(cntr, false, true, value, scope);
  return EFA_GDA_XPU_OTHER(fi_xpu_cntr_add(cntr, value, scope), -FI_ENOSYS);
}
EFA_GDA_FN int dispatch_cntr_set(fid_xpu_cntr *cntr, uint64_t value, int scope) {
  if (is_efa(cntr->fid)) return change(cntr, false, false, value, scope);
  return EFA_GDA_XPU_OTHER(fi_xpu_cntr_set(cntr, value, scope), -FI_ENOSYS);
}
EFA_GDA_FN int dispatch_cntr_adderr(fid_xpu_cntr *cntr, uint64_t value, int scope) {
  if (is_efa(cntr->fid)) return change(cntr, true, true, value, scope);
  return EFA_GDA_XPU_OTHER(fi_xpu_cntr_adderr(cntr, value, scope), -FI_ENOSYS);
}
EFA_GDA_FN int dispatch_cntr_seterr(fid_xpu_cntr *cntr, uint64_t value, int scope) {
  if (is_efa(cntr->fid)) return change(cntr, true, false, value, scope);
  return EFA_GDA_XPU_OTHER(fi_xpu_cntr_seterr(cntr, value, scope), -FI_ENOSYS);
}
EFA_GDA_FN int64_t dispatch_cq_read(fid_xpu_cq *cq, void *buf, size_t count, int scope) {
  if (is_efa(cq->fid)) {
    uint64_t *to = static_cast<uint64_t *>(buf);
    return read_by(cq, buf, scope, [=](efa_gda_xpu_cq *queue) { return read_queue(queue, to, count, nullptr); });
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_cq_read(cq, buf, count, scope), -FI_ENOSYS);
}
EFA_GDA_FN int64_t dispatch_cq_readerr(fid_xpu_cq *cq, void *buf, uint64_t flags, int scope) {
  if (is_efa(cq->fid)) {
    if (flags != 0) return -FI_EBADFLAGS;
    fi_cq_err_entry *to = static_cast<fi_cq_err_entry *>(buf);
    return read_by(cq, buf, scope, [=](efa_gda_xpu_cq *queue) { return read_queue(queue, nullptr, 1, to); });
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_cq_readerr(cq, buf, flags, scope), -FI_ENOSYS);
}
EFA_GDA_FN int64_t dispatch_cq_sread(fid_xpu_cq *cq, void *buf, size_t count, uint64_t threshold, int scope) {
  if (is_efa(cq->fid)) {
    if (count == 0) return -FI_EINVAL;
    uint64_t *to = static_cast<uint64_t *>(buf);
    auto wait = [=](efa_gda_xpu_cq *queue) { return wait_for_completions(queue, to, count, threshold); };
    return read_by(cq, buf, scope, wait);
  }
  return EFA_GDA_XPU_OTHER(fi_xpu_cq_sread(cq, buf, count, threshold, scope), -FI_ENOSYS);
}

}  // namespace xpu
}  // namespace efa_gda

#define fi_xpu_write ::efa_gda::xpu::dispatch_write
#define fi_xpu_read ::efa_gda::xpu::dispatch_read
#define fi_xpu_send ::efa_gda::xpu::dispatch_send
#define fi_xpu_recv ::efa_gda::xpu::dispatch_recv
#define fi_xpu_cntr_read ::efa_gda::xpu::dispatch_cntr_read
#define fi_xpu_cntr_readerr ::efa_gda::xpu::dispatch_cntr_readerr
#define fi_xpu_cntr_wait ::efa_gda::xpu::dispatch_cntr_wait
#define fi_xpu_cntr_add ::efa_gda::xpu::dispatch_cntr_add
#define fi_xpu_cntr_set ::efa_gda::xpu::dispatch_cntr_set
#define fi_xpu_cntr_adderr ::efa_gda::xpu::dispatch_cntr_adderr
#define fi_xpu_cntr_seterr ::efa_gda::xpu::dispatch_cntr_seterr
#define fi_xpu_cq_read ::efa_gda::xpu::dispatch_cq_read
#define fi_xpu_cq_readerr ::efa_gda::xpu::dispatch_cq_readerr
#define fi_xpu_cq_sread ::efa_gda::xpu::dispatch_cq_sread

#endif
