/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A put beside another one, which opens the queue as soon as it is free and fails. */
#include "efa_gda/put.h"

namespace {

/* The adapter fails the first request. The other put changes the words that it would change. */
void step(void *context) {
  efa_gda_queue &q = *static_cast<efa_gda_queue *>(context);
  uint64_t failed = (uint64_t)7 << 16 | (uint64_t)(1 | 1 << 1 | 2 << 4) << 24 | (uint64_t)q.qpn << 32;
  if (*q.sq.doorbell == 1) {
    __atomic_store_n(reinterpret_cast<uint64_t *>(const_cast<uint8_t *>(q.cq.buffer)), failed, __ATOMIC_RELEASE);
  }
  if (q.reserve.word != 0 && q.turn.word == q.reserve.word << EFA_GDA_TURN_BITS) {
    __atomic_store_n(&q.error.put_request_id, (uint64_t)99, __ATOMIC_RELAXED);
    __atomic_store_n(&q.error.put_status, 9u, __ATOMIC_RELAXED);
    __atomic_store_n(&q.completion.completed, 2u, __ATOMIC_RELAXED);
  }
}

}  // namespace

extern "C" bool put_beside_another(const efa_gda_put_args *args, uint64_t seed) {
  efa_gda::host::interleave(seed);
  efa_gda::host::run_beside(step, args->queue);
  bool ran = efa_gda::host::run_block(0, 1, 32, [=] { efa_gda::put_block(*args); });
  efa_gda::host::run_beside(nullptr, nullptr);
  efa_gda::host::interleave(0);
  return ran;
}
