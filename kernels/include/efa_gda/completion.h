/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What a poll found, and the head of a completion with its loads. cq.h states which functions use them, and what orders
 * the loads.
 */
#ifndef EFA_GDA_COMPLETION_H
#define EFA_GDA_COMPLETION_H

#include "wqe.h"

namespace efa_gda {

/* The `count` requests that a poller waits for, from producer index `first` on. A poll with ids needs a request table;
 * with count 0 it reads once. */
struct RequestIds {
  uint32_t first = 0, count = 0;
};

/* What a poll found. `count`: completions that it took from the completion queue. has_all: the completions of all
 * requests that it waits for, successful ones, each of whose ids names one request (R1 in requests.h). */
struct Polled {
  uint32_t count = 0;
  bool has_all = false;
};

/* First eight bytes of a completion: id 15:0, status 23:16, flags 31:24, queue pair 47:32. */
struct CompletionHead {
  uint64_t bits;
  EFA_GDA_FN uint32_t id() const { return (uint32_t)bits & 0xffff; }
  EFA_GDA_FN uint32_t status() const { return (uint32_t)(bits >> 16) & 0xff; }
  EFA_GDA_FN uint32_t flags() const { return (uint32_t)(bits >> 24) & 0xff; }
  EFA_GDA_FN uint32_t qpn() const { return (uint32_t)(bits >> 32) & 0xffff; }
  EFA_GDA_FN bool is_send() const {
    return (flags() & EFA_IO_CDESC_COMMON_Q_TYPE_MASK) == (uint32_t)EFA_IO_SEND_QUEUE << 1;
  }
  /* The phase, shifted as in `bits`, of completion `index` in a queue of `entries`. */
  EFA_GDA_FN static uint32_t phase_of(uint32_t index, uint32_t entries) { return (index & entries) == 0 ? kPhase : 0; }
  /* `phase`: phase_of() its index. */
  EFA_GDA_FN bool is_new(uint32_t phase) const { return (((uint32_t)bits ^ phase) & kPhase) == 0; }
  /* Whether it is new, and of a successful request. */
  EFA_GDA_FN bool is_good_send(uint32_t phase, uint32_t qpn_of_queue) const {
    constexpr uint32_t kMask = 0xff0000 | kPhase | (uint32_t)EFA_IO_CDESC_COMMON_Q_TYPE_MASK << 24;
    constexpr uint32_t kGood = (uint32_t)EFA_IO_COMP_STATUS_OK << 16 | (uint32_t)EFA_IO_SEND_QUEUE << 25;
    return (((uint32_t)bits ^ (kGood | phase)) & kMask) == 0 && qpn() == qpn_of_queue;
  }
  static constexpr uint32_t kPhase = (uint32_t)EFA_IO_CDESC_COMMON_PHASE_MASK << 24;
};

/* The most heads that one lane of a poller loads at once. A GPU's read of host memory takes 1.3 us, and several take
 * hardly longer. */
template <class Poller>
constexpr uint32_t kHeadsPerLane = Poller::kSingleThread ? 8 : 1;

EFA_GDA_FN const uint8_t *completion_at(const efa_gda_cq &cq, uint32_t index) {
  return cq.buffer + (index & (cq.num_entries - 1)) * cq.entry_size;
}
/* A lane that loads one head loads it with an acquire, which is faster than a fence of system scope. */
template <class Poller>
EFA_GDA_FN CompletionHead load_head(const uint8_t *entry) {
  const uint64_t *head = reinterpret_cast<const uint64_t *>(entry);
  return {kHeadsPerLane<Poller> == 1 ? load_system_acquire(head) : load_system(head)};
}

}  // namespace efa_gda

#endif
