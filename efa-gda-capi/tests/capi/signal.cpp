/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A transport in C++ on libefa_gda, with kernels of its own, which run on the host executor: a put with signal on a queue
 * with a request table, and the wait for own requests. Returns 0 and prints nothing if all of it worked.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "efa_gda.h"
#include "efa_gda/signal.h"
#include "efa_gda_nvshmem.h"

namespace {

constexpr uint64_t kAll = EFA_GDA_ACCESS_READ | EFA_GDA_ACCESS_WRITE | EFA_GDA_ACCESS_REMOTE_READ |
                          EFA_GDA_ACCESS_REMOTE_WRITE;
constexpr uint32_t kPieces = 40, kPieceBytes = 256, kRounds = 20;
constexpr uint64_t kSecond = 1000000000;

void check(int code, const char *what) {
  if (code == 0) return;
  std::fprintf(stderr, "%s returned %d: %s\n", what, code, efa_gda_last_error());
  std::exit(1);
}

void require(bool condition, const char *what) {
  if (condition) return;
  std::fprintf(stderr, "%s does not hold\n", what);
  std::exit(1);
}

/* A handle that is closed at the end of its scope. */
template <class T, int (*Close)(T *)>
struct Closes {
  void operator()(T *handle) const { check(Close(handle), "close"); }
};
using Region = std::unique_ptr<efa_gda_region, Closes<efa_gda_region, efa_gda_region_close>>;
using Queue = std::unique_ptr<efa_gda_queue_handle, Closes<efa_gda_queue_handle, efa_gda_queue_close>>;

efa_gda_queue_info describe(efa_gda_queue_handle *queue) {
  efa_gda_queue_info info = {};
  info.size = sizeof info;
  check(efa_gda_queue_describe(queue, &info, nullptr), "efa_gda_queue_describe");
  return info;
}

Queue open_queue(efa_gda_queue_handle *beside) {
  efa_gda_options options = {};
  options.size = sizeof options;
  options.gpu = -1;
  options.flags = EFA_GDA_QUEUE_REQUEST_TABLE;
  options.beside = beside;
  if (std::getenv("EFA_GDA_TEST_VERBS") != nullptr) options.source = EFA_GDA_SOURCE_RDMA_CORE;
  efa_gda_queue_handle *queue = nullptr;
  check(efa_gda_queue_open(&options, &queue), "efa_gda_queue_open");
  require(describe(queue).flags == EFA_GDA_QUEUE_REQUEST_TABLE, "the queue has a request table");
  return Queue(queue);
}

efa_gda_peer introduce(efa_gda_queue_handle *queue, efa_gda_queue_handle *other) {
  efa_gda_peer peer = {};
  check(efa_gda_queue_insert_peer(queue, describe(other).address, &peer), "efa_gda_queue_insert_peer");
  return peer;
}

/* What both kernels work on. The last 16 bytes of each buffer are the signal word and the word that it travels from. */
struct Rounds {
  efa_gda_queue *sends, *receives;
  efa_gda_peer peer;
  uint32_t lkey, rkey;
  unsigned char *source;
  const unsigned char *target;
  uint64_t *words;
  uint32_t *awaited;
  efa_gda_status sent, received;
  uint32_t wrong;
};

uint64_t address(const void *memory) { return reinterpret_cast<uintptr_t>(memory); }

/* One warp sends each round when the peer has confirmed the one before, by its word in `awaited`. */
void send(Rounds &all) {
  using namespace efa_gda;
  WarpGroup warp;
  Sender<Sharing::Device, WarpGroup> sender(all.sends, 10 * kSecond);
  efa_gda_status status = sender.status();
  uint64_t word = kPieces * kPieceBytes;
  for (uint64_t round = 1; round <= kRounds && status == EFA_GDA_OK; round++) {
    if (warp.rank() == 0) std::memset(all.source, (int)round, word);
    warp.sync();
    uint32_t signal = 0;
    status = put_signal(
        sender, kPieces,
        [&](uint32_t i) {
          uint64_t at = (uint64_t)i * kPieceBytes;
          return write_entry(all.peer, Memory{address(all.source) + at, all.lkey, kPieceBytes}, address(all.target) + at,
                             all.rkey);
        },
        [&] {
          return value_signal(all.sends, SignalTarget{all.peer, all.rkey, address(all.target) + word}, round,
                              SignalWord{all.words, address(all.source) + word, all.lkey});
        },
        nullptr, &signal);
    /* The own request: without a request table this would return EFA_GDA_UNSUPPORTED. */
    if (status == EFA_GDA_OK) status = sender.wait(signal, 1);
    if (status == EFA_GDA_OK) status = wait_until(all.sends, warp, all.awaited, Until::Equal, (uint32_t)round, 10 * kSecond);
  }
  efa_gda_status closed = sender.close();
  if (warp.rank() == 0) all.sent = status == EFA_GDA_OK ? closed : status;
}

/* The other warp checks each round, and confirms it. */
void receive(Rounds &all) {
  using namespace efa_gda;
  WarpGroup warp;
  const auto *word = reinterpret_cast<const uint64_t *>(all.target + kPieces * kPieceBytes);
  efa_gda_status status = EFA_GDA_OK;
  for (uint64_t round = 1; round <= kRounds && status == EFA_GDA_OK; round++) {
    status = wait_until(all.receives, warp, word, Until::Equal, round, 10 * kSecond);
    if (warp.rank() == 0) {
      for (uint32_t i = 0; i < kPieces * kPieceBytes; i++) all.wrong += all.target[i] != (unsigned char)round;
      store_system(all.awaited, (uint32_t)round);
    }
    warp.sync();
  }
  if (warp.rank() == 0) all.received = status;
}

void put_with_signal() {
  /* Closed after the queues, which retain them. */
  Region from, to;
  Queue first = open_queue(nullptr), second = open_queue(first.get());
  std::vector<uint64_t> source(kPieces * kPieceBytes / 8 + 2), target(source.size());
  uint32_t confirmed = 0;
  auto add = [&](std::vector<uint64_t> &memory, efa_gda_queue_handle *queue) {
    efa_gda_region *region = nullptr;
    check(efa_gda_region_register(queue, memory.data(), memory.size() * 8, kAll, &region), "register");
    check(efa_gda_queue_retain(queue, region), "efa_gda_queue_retain");
    return Region(region);
  };
  from = add(source, first.get());
  to = add(target, second.get());

  Rounds all = {};
  introduce(second.get(), first.get());
  all.peer = introduce(first.get(), second.get());
  check(efa_gda_region_keys(from.get(), &all.lkey, nullptr), "efa_gda_region_keys");
  check(efa_gda_region_keys(to.get(), nullptr, &all.rkey), "efa_gda_region_keys");
  check(efa_gda_queue_begin_launch(first.get(), &all.sends), "efa_gda_queue_begin_launch");
  check(efa_gda_queue_begin_launch(second.get(), &all.receives), "efa_gda_queue_begin_launch");
  all.source = reinterpret_cast<unsigned char *>(source.data());
  all.target = reinterpret_cast<const unsigned char *>(target.data());
  all.words = source.data() + kPieces * kPieceBytes / 8;
  all.awaited = &confirmed;
  using efa_gda::host::run_block;
  std::thread peer([&] { require(run_block(0, 1, 32, [&] { receive(all); }), "the receiver's block ran"); });
  require(run_block(0, 1, 32, [&] { send(all); }), "the sender's block ran");
  peer.join();
  check(efa_gda_queue_end_launch(first.get()), "efa_gda_queue_end_launch");
  check(efa_gda_queue_end_launch(second.get()), "efa_gda_queue_end_launch");
  require(all.sent == EFA_GDA_OK && all.received == EFA_GDA_OK, "both warps ended without an error");
  require(all.wrong == 0, "the data was there when the signal was seen");
}

}  // namespace

int main() {
  require(efa_gda_api_version() == EFA_GDA_API_VERSION, "the library has the header's version");
  put_with_signal();
  return 0;
}
