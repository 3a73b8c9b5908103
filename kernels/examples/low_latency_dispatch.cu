/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A dispatch of tokens to experts, in the shape of DeepEP's low-latency dispatch: one block of 32 warps in 64
 * registers, one warp for each destination, and for each destination a signal that lands after its tokens.
 *
 * Each rank has kPeers peers, and each peer has kExperts experts: kDestinations in all. The warps share one queue. Warp
 * w sends: it packs each token that is routed to destination w into a message, writes the messages to the peer, one
 * request each, and when they are done writes the number of messages to the peer's count word. Then warp w receives: it
 * waits for the count word of source w, and copies the messages to the output of their expert.
 *
 * Between two dispatches, when all ranks have ended the first, the host zeroes `counts` and `num_output`.
 */
#include "efa_gda/signal.h"

constexpr uint32_t kPeers = 8, kExperts = 4, kDestinations = kPeers * kExperts;

/* Begins each message; the token's bytes follow. */
struct dispatch_header {
  uint32_t source;
  uint32_t token;
  uint32_t reserved[2];
};

/* One peer, as this rank reaches it. */
struct dispatch_peer {
  struct efa_gda_peer peer;
  uint32_t rkey;
  uint32_t reserved;
  /* At the peer: kExperts buffers of max_tokens messages, and kExperts count words, that only this rank writes. */
  uint64_t messages;
  uint64_t counts;
};

struct dispatch_args {
  struct efa_gda_queue *queue;
  struct dispatch_peer peers[kPeers];
  uint32_t rank;
  uint32_t lkey;
  /* Tokens of token_bytes bytes, a multiple of 16. Token t is routed to destination kExperts * peer + expert of each of
   * the top_k numbers at routes[t * top_k]; a number of kDestinations or more is ignored. */
  uint32_t num_tokens;
  uint32_t max_tokens;
  uint32_t token_bytes;
  uint32_t top_k;
  const uint8_t *tokens;
  const uint32_t *routes;
  /* kDestinations buffers of max_tokens messages, registered with `lkey`, where this rank packs what it sends; and as
   * the adapter addresses them. */
  uint8_t *packed;
  uint64_t packed_address;
  /* kDestinations words for counts that the entries cannot carry, registered with `lkey`. */
  uint64_t *count_words;
  uint64_t count_words_address;
  /* What the peers write: for source kExperts * peer + expert, max_tokens messages and a count word. */
  const uint8_t *received;
  const uint64_t *counts;
  /* For each of this rank's experts: max_tokens * kPeers messages, and how many there are. */
  uint8_t *output;
  uint32_t *num_output;
  uint64_t timeout_ns;
  /* kDestinations words: each warp's final enum efa_gda_status. */
  uint32_t *status;
};

namespace {

using efa_gda::Quad;

/* A count word is never 0, so that a count of 0 is a signal as well. */
EFA_GDA_FN uint64_t count_signal(uint32_t messages) { return (uint64_t)messages + 1; }
EFA_GDA_FN uint32_t messages_of(uint64_t signal) { return (uint32_t)signal - 1; }

EFA_GDA_FN uint32_t message_bytes(const dispatch_args &a) { return (uint32_t)sizeof(dispatch_header) + a.token_bytes; }

EFA_GDA_FN bool is_routed_to(const dispatch_args &a, uint32_t token, uint32_t destination) {
  bool found = false;
  for (uint32_t k = 0; k < a.top_k; k++) found |= a.routes[token * a.top_k + k] == destination;
  return found;
}

/* All lanes copy; `bytes` is a multiple of 16. */
EFA_GDA_FN void copy(uint8_t *to, const uint8_t *from, uint32_t bytes) {
  efa_gda::WarpGroup warp;
  for (uint32_t at = 16 * warp.rank(); at < bytes; at += 16 * warp.size()) {
    *reinterpret_cast<Quad *>(to + at) = *reinterpret_cast<const Quad *>(from + at);
  }
}

EFA_GDA_FN void pack(const dispatch_args &a, uint8_t *message, uint32_t token) {
  if (efa_gda::WarpGroup().rank() == 0) *reinterpret_cast<dispatch_header *>(message) = {a.rank, token, {0, 0}};
  copy(message + sizeof(dispatch_header), a.tokens + (uint64_t)token * a.token_bytes, a.token_bytes);
}

EFA_GDA_FN efa_gda_status send(const dispatch_args &a, uint32_t destination) {
  using namespace efa_gda;
  WarpGroup warp;
  const dispatch_peer &to = a.peers[destination / kExperts];
  uint32_t expert = destination % kExperts, bytes = message_bytes(a);
  uint64_t packed = (uint64_t)destination * a.max_tokens * bytes;
  uint64_t remote = to.messages + (uint64_t)expert * a.max_tokens * bytes;
  Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
  efa_gda_status status = sender.status();
  uint32_t messages = 0, posted = 0;
  for (uint32_t token = 0; token < a.num_tokens && status == EFA_GDA_OK; token++) {
    bool routed = messages < a.max_tokens && is_routed_to(a, token, destination);
    if (routed) pack(a, a.packed + packed + (uint64_t)messages++ * bytes, token);
    /* A lane for each message of a post. */
    if (messages - posted < warp.size() && token + 1 != a.num_tokens) continue;
    uint64_t at = (uint64_t)posted * bytes;
    status = sender.post(messages - posted, [&](uint32_t i) {
      uint64_t message = at + (uint64_t)i * bytes;
      Memory local = {a.packed_address + packed + message, a.lkey, bytes};
      return write_entry(to.peer, local, remote + message, to.rkey);
    });
    posted = messages;
  }
  uint32_t signal = 0;
  if (status == EFA_GDA_OK) {
    SignalTarget target = {to.peer, to.rkey, to.counts + expert * sizeof(uint64_t)};
    SignalWord word = {a.count_words + destination, a.count_words_address + destination * sizeof(uint64_t), a.lkey};
    status = signal_own(sender, [&] { return value_signal(a.queue, target, count_signal(messages), word); }, nullptr,
                        &signal);
  }
  if (status == EFA_GDA_OK) status = sender.wait(signal, 1);
  if (status == EFA_GDA_UNSUPPORTED) status = sender.quiet();
  efa_gda_status closed = sender.close();
  return status == EFA_GDA_OK ? closed : status;
}

EFA_GDA_FN efa_gda_status receive(const dispatch_args &a, uint32_t source) {
  using namespace efa_gda;
  WarpGroup warp;
  uint64_t seen = 0;
  efa_gda_status status =
      wait_until(a.queue, warp, a.counts + source, Until::NotEqual, (uint64_t)0, a.timeout_ns, &seen);
  if (status != EFA_GDA_OK) return status;
  uint32_t messages = messages_of(seen), expert = source % kExperts, bytes = message_bytes(a), first = 0;
  if (warp.rank() == 0) first = fetch_add_relaxed(&a.num_output[expert], messages);
  first = warp.from_leader(first);
  const uint8_t *from = a.received + (uint64_t)source * a.max_tokens * bytes;
  uint8_t *to = a.output + ((uint64_t)expert * a.max_tokens * kPeers + first) * bytes;
  for (uint32_t i = 0; i < messages; i++) copy(to + (uint64_t)i * bytes, from + (uint64_t)i * bytes, bytes);
  return EFA_GDA_OK;
}

}  // namespace

#if EFA_GDA_ON_GPU
/* 32 warps, and one block on a multiprocessor: 64 registers for each thread. */
#define DISPATCH_BOUNDS __launch_bounds__(1024, 1)
#else
#define DISPATCH_BOUNDS
#endif

/* One block of kDestinations warps. */
EFA_GDA_KERNEL DISPATCH_BOUNDS low_latency_dispatch(struct dispatch_args a) {
  uint32_t warp = efa_gda::thread_index() / 32;
  if (warp >= kDestinations) return;
  efa_gda_status status = send(a, warp);
  if (status == EFA_GDA_OK) status = receive(a, warp);
  if (efa_gda::WarpGroup().rank() == 0) efa_gda::store_relaxed(a.status + warp, (uint32_t)status);
}

#if !EFA_GDA_ON_GPU
extern "C" bool low_latency_dispatch_on_host(const struct dispatch_args *args) {
  return efa_gda::host::run_block(0, 1, 32 * kDestinations, [=] { low_latency_dispatch(*args); });
}
#endif
