/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The operations of NCCL's GIN on the endpoints that aws-ofi-nccl makes: put, put value, get, flush. gin_post.h states
 * the protocol by which they post. nccl_gin.h gives them the form that NCCL's headers expect; this header needs none of
 * NCCL's, so the host executor runs it too.
 */
#ifndef EFA_GDA_GIN_H
#define EFA_GDA_GIN_H

#include "gin_post.h"

namespace efa_gda {
namespace gin {

/* The most bytes of one RDMA operation (efadv_device_attr.max_rdma_size of today's adapters). */
constexpr uint64_t kMaxBytes = 1 << 30;

/* An RDMA operation of an endpoint. Operation i of several is `stride` bytes further than operation i - 1. */
struct Transfer {
  efa_gda_peer peer;
  Memory local;
  uint64_t remote, stride;
  uint32_t rkey, op;

  EFA_GDA_FN Entry entry(uint32_t i) const {
    Memory m = {local.address + i * stride, local.key, local.length};
    return rdma_entry(op, peer, m, remote + i * stride, rkey);
  }
};

/* Posts `count` operations of one thread, in posts of at most kMost entries. kBesideValues: other posts to the endpoint
 * use the plugin's memory for values (VALUES in gin_post.h). */
template <bool kBesideValues>
EFA_GDA_COLD efa_gda_status post_series(Endpoint *endpoint, uint32_t count, bool defer, const Transfer *transfer) {
  /* Bounds the entries that one post reserves. */
  constexpr uint32_t kMost = 1 << 16;
  ThreadGroup group;
  efa_gda_status status = EFA_GDA_OK;
  for (uint32_t from = 0; from < count && status == EFA_GDA_OK;) {
    uint32_t most = count - from < kMost ? count - from : kMost;
    auto write = [&](const Ring &ring, uint32_t done, uint32_t n, uint32_t slot) {
      for (uint32_t i = 0; i < n; i++) {
        Quad quads[4];
        make_quads(group, EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE, quads, 0, true,
                   [&](uint32_t) { return transfer->entry(from + done + i); }, [](const Entry &) {});
        ring.write(group, quads, 0, 1, slot + i);
      }
    };
    status = post_by<kBesideValues>(group, endpoint, most, defer, write);
    from += most;
  }
  return status;
}

/* Target `number` of `peer` (gin_handle.h), as `endpoint` addresses it. */
EFA_GDA_FN efa_gda_peer target(const Context *context, const Endpoint *endpoint, uint32_t number, uint32_t peer) {
  uint32_t i = number * (uint32_t)context->nranks + peer;
  efa_gda_peer to = efa_gda_peer();
  to.ah = endpoint->target_address_handles[i];
  to.qpn = endpoint->target_remote_qpns[i];
  to.qkey = endpoint->target_qkey[i];
  return to;
}

/* A write of no bytes to the memory that the plugin registers for such writes (scratch_*). */
EFA_GDA_FN Transfer empty_write(const Context *context, const efa_gda_peer &to, uint32_t peer) {
  return Transfer{to, {context->scratch_local_addr, context->scratch_lkey, 0}, context->scratch_remote_addrs[peer], 0,
                  context->scratch_remote_rkeys[peer], EFA_IO_RDMA_WRITE};
}

/* A signal: `writes` inbound writes of the peer's endpoint of signal `id`. kNone, or 0 writes: no signal. */
struct Signal {
  uint32_t id, writes;
  static constexpr uint32_t kNone = ~0u;
  EFA_GDA_FN uint32_t target() const { return id == kNone || writes == 0 ? 0 : 1 + id; }
};
constexpr uint32_t kNoCounter = ~0u;

/* Waits until no request of the endpoint, of those rung for, is in flight. The counter does not say which requests are
 * done, so only an idle endpoint proves that earlier requests are. The endpoint was idle when the counter was loaded if
 * the counter equals a submitted_count that was loaded afterwards. With the two loads in the other order, requests that
 * other groups post between them could be counted in place of earlier ones. NCCL's code adds to submitted_count after
 * its doorbell, so one of its requests may be in the counter and not yet in submitted_count: beside its posts, a drain
 * may end too early. Beside steady posts of any group the endpoint may never be idle.
 *   over(endpoint, progress) is called while requests are in flight. `progress` changes with each doorbell and
 * completion. A status other than EFA_GDA_OK ends the wait. */
template <class Over>
EFA_GDA_FN efa_gda_status drain(Endpoint *endpoint, Over over) {
  for (;;) {
    uint32_t counter = (uint32_t)load_system_acquire(endpoint->local_cntr_value);
    uint32_t submitted = (uint32_t)load_relaxed(&endpoint->submitted_count);
    if (load_relaxed(&endpoint->sq_lock) != 0) return EFA_GDA_POISONED;
    if (((submitted - counter) & kCounterMask) == 0) return EFA_GDA_OK;
    efa_gda_status status = over(endpoint, submitted + counter);
    if (status != EFA_GDA_OK) return status;
  }
}

/* The bound of a drain whose caller gave no timeout: EFA_GDA_GIN_TIMEOUT_NS without a doorbell or a completion. It then
 * takes the endpoint out of service. */
struct DrainBound {
  Bound bound;
  EFA_GDA_FN efa_gda_status operator()(Endpoint *endpoint, uint32_t progress) {
    efa_gda_status status = bound.over(endpoint, progress, EFA_GDA_TIMEOUT_COMPLETION);
    return status == EFA_GDA_OK ? status : take_out_of_service(endpoint, status);
  }
};

/* A call of more than one entry. With `bytes` above kMaxBytes it has leading parts of kMaxBytes, through the data
 * endpoint, and a last part. `endpoint` posts the last part, or the only one; null: no part. `more_from` posts the
 * signal's writes after the first. `announces`: the call has a signal or a counter. */
struct Parts {
  Endpoint *endpoint, *more_from;
  uint64_t bytes;
  Signal signal;
  uint32_t peer;
  bool announces, defer;
};

/* Posts a call of more than one entry, by one thread. `first` describes all of its parts->bytes bytes (above kMaxBytes
 * its length is not used); null: only the signal's further writes. If a signal or a counter announces the data, the
 * last part is posted when the others are done, because the network does not keep the order. */
EFA_GDA_COLD efa_gda_status post_parts(Context *context, const Parts *parts, const Transfer *first) {
  Transfer last = first != nullptr ? *first : Transfer();
  efa_gda_status status = EFA_GDA_OK;
  if (parts->bytes > kMaxBytes) {
    uint32_t leading = (uint32_t)((parts->bytes - 1) / kMaxBytes);
    Transfer transfer = last;
    transfer.peer = target(context, &context->data, 0, parts->peer);
    transfer.local.length = (uint32_t)kMaxBytes;
    transfer.stride = kMaxBytes;
    status = post_series<false>(&context->data, leading, false, &transfer);
    if (status == EFA_GDA_OK && parts->announces) status = drain(&context->data, DrainBound());
    last.local.address += leading * kMaxBytes;
    last.remote += leading * kMaxBytes;
    last.local.length = (uint32_t)(parts->bytes - leading * kMaxBytes);
  }
  if (status == EFA_GDA_OK && parts->endpoint != nullptr) {
    status = post_series<false>(parts->endpoint, 1, parts->defer, &last);
  }
  if (status != EFA_GDA_OK || parts->signal.writes <= 1) return status;
  efa_gda_peer to = target(context, parts->more_from, parts->signal.target(), parts->peer);
  Transfer more = empty_write(context, to, parts->peer);
  uint32_t writes = parts->signal.writes - 1;
  bool beside_values = parts->more_from == &context->pvdata && !has_wide_entries(context->pvdata.qp);
  return beside_values ? post_series<true>(parts->more_from, writes, parts->defer, &more)
                       : post_series<false>(parts->more_from, writes, parts->defer, &more);
}

/* ncclGinApi_Put. `lanes(endpoint, defer, body)` calls body(group) with the group of threads that post to `endpoint`
 * together; each thread has arguments of its own. `to` and `from` may be null if `bytes` is 0. A counter counts one
 * request of each put: leading parts, and the writes of a signal after the first, leave through the data endpoint. */
template <class Lanes>
EFA_GDA_FN efa_gda_status put(Lanes lanes, Context *context, uint32_t peer, const RegisteredMemory *to,
                              uint64_t to_offset, const RegisteredMemory *from, uint64_t from_offset, uint64_t bytes,
                              Signal signal, uint32_t counter, bool defer) {
  Endpoint *endpoint = counter == kNoCounter ? &context->data : &context->counter_handles[counter]->base;
  Transfer write = empty_write(context, target(context, endpoint, signal.target(), peer), peer);
  if (bytes != 0) {
    const RemoteMemory &remote = to->of_peer(peer);
    write.local = {from->local_addr + from_offset, from->lkey, (uint32_t)bytes};
    write.remote = remote.remote_addr + to_offset;
    write.rkey = remote.rkey;
  }
  if (!EFA_GDA_LIKELY(bytes <= kMaxBytes && signal.writes <= 1)) {
    bool announces = signal.id != Signal::kNone || counter != kNoCounter;
    Parts parts = {endpoint, &context->data, bytes, signal, peer, announces, defer};
    Transfer first = write;
    return post_parts(context, &parts, &first);
  }
  return lanes(endpoint, defer, [&](auto group) { return post(group, endpoint, defer, write.entry(0)); });
}

/* The bytes of a value in an entry. */
struct ValueBytes {
  uint64_t value;
  EFA_GDA_FN uint64_t next_eight(uint32_t i) const { return i == 0 ? value : 0; }
};

/* ncclGinApi_PutValue: `length` bytes, at most 8, of `value`. They lie in the entry if it has 128 bytes, otherwise in
 * the plugin's memory for the entry's slot (VALUES in gin_post.h). EFA_GDA_UNSUPPORTED: that memory is too small. */
template <class Lanes>
EFA_GDA_FN efa_gda_status put_value(Lanes lanes, Context *context, uint32_t peer, const RegisteredMemory *to,
                                    uint64_t to_offset, uint64_t value, uint32_t length, Signal signal) {
  Endpoint *endpoint = &context->pvdata;
  efa_gda_peer target_peer = target(context, endpoint, signal.target(), peer);
  const RemoteMemory &remote = to->of_peer(peer);
  uint64_t address = remote.remote_addr + to_offset;
  efa_gda_status status = EFA_GDA_OK;
  if (has_wide_entries(endpoint->qp)) {
    status = lanes(endpoint, false, [&](auto group) {
      return post(group, endpoint, false,
                  inline_write_entry_of(target_peer, ValueBytes{value}, length, address, remote.rkey));
    });
  } else {
    uint32_t stride = context->putvalue_slot_size;
    if (stride < length) return EFA_GDA_UNSUPPORTED;
    status = lanes(endpoint, false, [&](auto group) {
      auto write = [&](const Ring &ring, uint32_t done, uint32_t n, uint32_t slot) {
        uint32_t i = group.rank() - done, s = slot + i;
        if (i >= n) return;
        uint64_t local = endpoint->putvalue_slice_base + (uint64_t)(s % endpoint->sq_size) * stride;
        for (uint32_t b = 0; b < length; b++) reinterpret_cast<uint8_t *>(local)[b] = (uint8_t)(value >> 8 * b);
        Memory source = {local, context->putvalue_lkey, length};
        ThreadGroup self;
        Quad quads[4];
        make_quads(self, EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE, quads, 0, true,
                   [&](uint32_t) { return write_entry(target_peer, source, address, remote.rkey); },
                   [](const Entry &) {});
        ring.write(self, quads, 0, 1, s);
      };
      return post_by<true>(group, endpoint, group.size(), false, write);
    });
  }
  if (EFA_GDA_LIKELY(signal.writes <= 1) || status != EFA_GDA_OK) return status;
  Parts parts = {nullptr, endpoint, 0, signal, peer, true, false};
  return post_parts(context, &parts, nullptr);
}

/* ncclGinApi_Get. A get of no bytes is a request too. */
template <class Lanes>
EFA_GDA_FN efa_gda_status get(Lanes lanes, Context *context, uint32_t peer, const RegisteredMemory *from,
                              uint64_t from_offset, const RegisteredMemory *to, uint64_t to_offset, uint64_t bytes,
                              bool defer) {
  Endpoint *endpoint = &context->data;
  const RemoteMemory &remote = from->of_peer(peer);
  Transfer read = {target(context, endpoint, 0, peer),
                   {to->local_addr + to_offset, to->lkey, (uint32_t)bytes},
                   remote.remote_addr + from_offset,
                   0,
                   remote.rkey,
                   EFA_IO_RDMA_READ};
  if (!EFA_GDA_LIKELY(bytes <= kMaxBytes)) {
    Parts parts = {endpoint, nullptr, bytes, Signal{Signal::kNone, 1}, peer, false, defer};
    Transfer first = read;
    return post_parts(context, &parts, &first);
  }
  return lanes(endpoint, defer, [&](auto group) { return post(group, endpoint, defer, read.entry(0)); });
}

/* ncclGinApi_Flush: drains the context's endpoints that post, one after another. One thread calls it. It does not cover
 * entries whose doorbell is deferred. Each endpoint's drain has a copy of `over`. */
template <class Over>
EFA_GDA_FN efa_gda_status flush(Context *context, const Over &over) {
  efa_gda_status status = drain(&context->data, over);
  if (status == EFA_GDA_OK) status = drain(&context->pvdata, over);
  for (int32_t i = 0; i < context->nCounters && status == EFA_GDA_OK; i++) {
    status = drain(&context->counter_handles[i]->base, over);
  }
  return status;
}

/* Makes a signal or a counter count from 0 again, by its offset: device code cannot write the adapter's word. */
EFA_GDA_FN void reset(CounterEndpoint *counter) { counter->cntr_offset = load_system_acquire(counter->cntr_value); }

}  // namespace gin
}  // namespace efa_gda

#endif
