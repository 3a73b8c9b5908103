/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The host executor's C interface: each function runs one block of a kernel on the calling thread
 * (efa_gda/host_executor.h), or formats one entry. efa-gda/src/executor/host.rs declares the same functions; it starts
 * a thread for each block.
 */
#include "executor.h"

#include "../put.cu"
#include "../receive.cu"
/* What tests and benches run: efa-gda's feature test-utils. */
#ifdef EFA_GDA_TEST_UTILS
#include "../bench.cu"
#endif

#include <string.h>

namespace {

using efa_gda::host::run_block;

#ifdef EFA_GDA_TEST_UTILS
efa_gda::Entry entry_of(const efa_gda_host_entry &h) {
  using namespace efa_gda;
  Memory first = {h.local_address, h.lkey, h.length};
  const uint8_t *bytes = reinterpret_cast<const uint8_t *>(h.local_address);
  switch (h.op) {
    case EFA_GDA_OP_SEND:
    case EFA_GDA_OP_SEND_IMM:
      if (h.pieces == 2) {
        return send_entry(h.peer, first, Memory{h.second_address, h.second_lkey, h.second_length});
      }
      return send_entry(h.peer, first);
    case EFA_GDA_OP_INLINE_SEND:
      return inline_send_entry(h.peer, bytes, h.length);
    case EFA_GDA_OP_INLINE_WRITE:
      return inline_write_entry(h.peer, bytes, h.length, h.remote_address, h.rkey);
    case EFA_GDA_OP_READ:
      return read_entry(h.peer, first, h.remote_address, h.rkey);
    default:
      return write_entry(h.peer, first, h.remote_address, h.rkey);
  }
}
#endif

}  // namespace

extern "C" {

bool efa_gda_host_put(const efa_gda_put_args *args, uint32_t lanes) {
  return run_block(0, 1, lanes, [=] { efa_gda_put_kernel(*args); });
}

#ifdef EFA_GDA_TEST_UTILS
bool efa_gda_host_test_put(const efa_gda_test_put *target, void *raddr, const void *src, size_t n,
                           uint32_t lkey, uint32_t rkey, uint32_t lanes) {
  efa_gda_test_put_target = *target;
  return run_block(0, 1, lanes, [=] { __nvshmem_efa_test_put_kernel(raddr, src, n, lkey, rkey); });
}

void efa_gda_host_interleave(uint64_t seed) { efa_gda::host::interleave(seed); }
void efa_gda_host_run_beside(void (*step)(void *), void *context) { efa_gda::host::run_beside(step, context); }
#endif

bool efa_gda_host_receive(const efa_gda_receive_args *args) {
  return run_block(0, 1, 1, [=] { efa_gda_receive_kernel(*args); });
}

#ifdef EFA_GDA_TEST_UTILS
bool efa_gda_host_bench(const efa_gda_bench_args *args, bool latency, uint32_t block, uint32_t blocks,
                        uint32_t lanes) {
  auto kernel = latency ? efa_gda_bench_latency_kernel : efa_gda_bench_rate_kernel;
  return run_block(block, blocks, lanes, [=] { kernel(*args); });
}

void efa_gda_host_encode(const efa_gda_host_entry *spec, uint8_t out[128]) {
  efa_gda::Entry e = entry_of(*spec);
  if (spec->has_immediate) efa_gda::set_immediate(e, spec->immediate);
  efa_gda::set_hints(e, spec->hints);
  for (int i = 0; i < 8; i++) {
    efa_gda::Quad quad = efa_gda::quad_of(e, i);
    efa_gda::set_ring_fields(quad, i, spec->phase, spec->request_id, spec->wide_id);
    memcpy(out + 16 * i, &quad, 16);
  }
}

void efa_gda_host_encode_receive(uint64_t address, uint32_t lkey, uint32_t length, uint16_t id, bool first,
                                 bool last, uint8_t out[16]) {
  efa_gda::Quad q = efa_gda::receive_descriptor({address, lkey, length}, id, first, last);
  memcpy(out, &q, 16);
}

void efa_gda_host_write_raw(const efa_gda_queue *queue, uint32_t slot, const uint8_t *bytes) {
  uint8_t *to = queue->sq.buffer + (uint64_t)(slot & (queue->sq.num_entries - 1)) * queue->sq.entry_size;
  for (uint32_t i = 0; i < queue->sq.entry_size; i += 16) {
    efa_gda::Quad q;
    memcpy(&q, bytes + i, 16);
    efa_gda::store_quad(to + i, q);
  }
}

void efa_gda_host_ring_raw(const efa_gda_queue *queue, uint32_t value) {
  efa_gda::fence_system();
  efa_gda::store_doorbell(queue->sq.doorbell, value);
}
#endif

}  // extern "C"
