/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A host thread that acts as a strict adapter for one queue. It polls the doorbell, reads each entry that the doorbell
 * covers, and reads ahead of it for entries beyond the batch window. It reads ring and doorbell while the GPU writes
 * them. Host code only.
 */
#ifndef EFA_GDA_BENCH_CHECKER_H
#define EFA_GDA_BENCH_CHECKER_H

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "efa_io_defs.h"
#include "rig.h"

/* Describes what is wrong with the benchmark's entry for `slot`; empty if it is right. */
inline std::string entry_fault(const uint8_t *bytes, uint32_t slot) {
  efa_io_tx_wqe e;
  memcpy(&e, bytes, sizeof e);
  uint64_t local = e.data.rdma_req.local_mem[0].buf_addr_lo | (uint64_t)e.data.rdma_req.local_mem[0].buf_addr_hi << 32;
  uint64_t remote = e.data.rdma_req.remote_mem.buf_addr_lo | (uint64_t)e.data.rdma_req.remote_mem.buf_addr_hi << 32;
  uint8_t ctrl2 = 0x1c | ((slot / kDepth) & 1);
  if (e.meta.req_id != (slot & 0xffff)) return "request id " + std::to_string(e.meta.req_id);
  if (e.meta.ctrl2 != ctrl2) return "ctrl2 " + std::to_string(e.meta.ctrl2);
  if (e.meta.ctrl1 != 0x82 || e.meta.dest_qp_num != 9 || e.meta.length != 1 || e.meta.ah != 3) return "meta words";
  if (e.meta.qkey != 0x1234 || e.meta.ctrl3 != 0) return "qkey or ctrl3";
  if (e.data.rdma_req.remote_mem.length != 64 || e.data.rdma_req.remote_mem.rkey != 0xabc) return "remote memory";
  if (e.data.rdma_req.local_mem[0].length != 64 || e.data.rdma_req.local_mem[0].lkey != 5) return "local memory";
  if (local != remote) return "torn: local and remote tags differ";
  return "";
}

class Checker {
 public:
  /* `groups` groups post calls of `per_call` entries to `queue`. The thread counts completions in completed[queue]. */
  Checker(const Rig &rig, int queue, uint32_t max_batch, uint32_t start, int groups, int per_call, uint64_t *completed)
      : ring_(rig.ring + (size_t)queue * kDepth * kEntry),
        doorbell_(rig.doorbell(queue)),
        completed_(completed + queue),
        max_batch_(max_batch),
        start_(start),
        per_call_(per_call),
        next_(groups, 0),
        thread_([this] { run(); }) {}

  ~Checker() { finish(); }
  void finish() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool clean() const { return faults_ == 0; }
  uint64_t entries() const { return entries_; }
  uint64_t doorbells() const { return doorbells_; }
  uint64_t read_aheads() const { return read_aheads_; }
  std::string report() const { return report_; }

 private:
  void fault(const std::string &what) {
    if (faults_++ < 3) report_ += "\n    " + what;
  }

  void run() {
    uint32_t doorbell_index = start_;
    for (;;) {
      bool last = stop_;
      uint32_t value = *doorbell_;
      std::atomic_thread_fence(std::memory_order_acquire);
      if (value > 0xffff) fault("doorbell wider than 16 bits");
      uint32_t step = (value - doorbell_index) & 0xffff;
      if (step > kDepth) {
        fault("doorbell from " + std::to_string(doorbell_index) + " to " + std::to_string(value) +
              ": backwards, or past the ring");
        return;
      }
      if (step == 0) {
        if (last) return;
        read_ahead(doorbell_index);
        continue;
      }
      doorbells_++;
      read_ahead(doorbell_index + step);
      for (uint32_t i = 0; i < step; i++) read(doorbell_index + i);
      doorbell_index += step;
      __atomic_store_n(completed_, (uint64_t)doorbell_index, __ATOMIC_RELEASE);
    }
  }

  /* Checks an entry that the doorbell covers: it must be complete, and the next one of its group. */
  void read(uint32_t slot) {
    const uint8_t *bytes = ring_ + (size_t)(slot % kDepth) * kEntry;
    std::string why = entry_fault(bytes, slot);
    if (!why.empty()) fault("slot " + std::to_string(slot) + ": " + why);
    uint64_t tag = *(const volatile uint32_t *)(bytes + 40) | (uint64_t)*(const volatile uint32_t *)(bytes + 44) << 32;
    uint64_t group = tag >> 48, request = (tag >> 16 & 0xffffffff) * per_call_ + (tag & 0xffff);
    if (group >= next_.size() || request != next_[group]) {
      fault("slot " + std::to_string(slot) + ": group " + std::to_string(group) + " request " +
            std::to_string(request));
    } else {
      next_[group]++;
    }
    entries_++;
  }

  /* Searches for entries beyond the batch window. Entries are read before the doorbell is read again, so the doorbell
   * is at least as new as they are. */
  void read_ahead(uint32_t doorbell_index) {
    if (max_batch_ >= kDepth) return;
    uint32_t far = 0;
    bool written = false;
    uint32_t span = kDepth - max_batch_ < 192 ? kDepth - max_batch_ : 192;
    for (uint32_t k = 0; k < span; k++) {
      uint32_t slot = doorbell_index + max_batch_ + k;
      /* Request id and operation: a slot that was not written yet has others. */
      uint32_t head = *(const volatile uint32_t *)(ring_ + (size_t)(slot % kDepth) * kEntry);
      if ((head & 0xffffff) == ((slot & 0xffff) | 0x820000)) {
        far = slot;
        written = true;
      }
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    uint32_t now = doorbell_index + ((*doorbell_ - doorbell_index) & 0xffff);
    if (written && (int32_t)(far - now) >= (int32_t)max_batch_) {
      fault("slot " + std::to_string(far) + " written with the doorbell at " + std::to_string(now));
    }
    read_aheads_++;
  }

  const uint8_t *ring_;
  const volatile uint32_t *doorbell_;
  uint64_t *completed_;
  uint32_t max_batch_, start_;
  uint64_t per_call_;
  std::vector<uint64_t> next_;
  std::atomic<bool> stop_{false};
  uint64_t entries_ = 0, doorbells_ = 0, read_aheads_ = 0, faults_ = 0;
  std::string report_;
  std::thread thread_;
};

#endif
