/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel and its host program in one file, for the host executor: one warp writes a buffer to another.
 * docs/kernels.md has the commands that build and run it.
 */
#include <cstdio>
#include <cstring>

#include "efa_gda.h"
#include "efa_gda/post.h"

struct own_put_args {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint64_t local, remote;
  uint32_t lkey, rkey;
  uint32_t *status;
};

/* One warp writes 32 pieces of 64 bytes, and waits for them. */
EFA_GDA_KERNEL own_put(own_put_args a) {
  using namespace efa_gda;
  Sender<Sharing::Warp> sender(a.queue, /* timeout_ns */ 10000000000);
  efa_gda_status status = sender.post(32, [&](uint32_t i) {
    return write_entry(a.peer, Memory{a.local + 64 * i, a.lkey, 64}, a.remote + 64 * i, a.rkey);
  });
  if (status == EFA_GDA_OK) status = sender.quiet();
  efa_gda_status closed = sender.close();
  if (thread_index() == 0) *a.status = (uint32_t)(status == EFA_GDA_OK ? closed : status);
}

#define TRY(call) \
  if ((call) != 0) return std::fprintf(stderr, "%s: %s\n", #call, efa_gda_last_error()), 1

int main() {
  static char source[32 * 64] = "the bytes", target[32 * 64];
  efa_gda_options options{};
  efa_gda_queue_info info{};
  options.size = sizeof options, options.gpu = -1; /* the host executor runs the kernels */
  info.size = sizeof info;
  efa_gda_queue_handle *queue;
  efa_gda_region *local, *remote;
  uint32_t status = EFA_GDA_NOT_RUN;
  own_put_args args{};
  args.status = &status;

  TRY(efa_gda_queue_open(&options, &queue));
  TRY(efa_gda_queue_describe(queue, &info, nullptr));
  TRY(efa_gda_queue_insert_peer(queue, info.address, &args.peer)); /* the queue is its own peer */
  TRY(efa_gda_region_register(queue, source, sizeof source, EFA_GDA_ACCESS_WRITE, &local));
  TRY(efa_gda_region_register(queue, target, sizeof target, EFA_GDA_ACCESS_REMOTE_WRITE, &remote));
  TRY(efa_gda_region_keys(local, &args.lkey, nullptr));
  TRY(efa_gda_region_keys(remote, nullptr, &args.rkey));
  args.local = reinterpret_cast<uintptr_t>(source), args.remote = reinterpret_cast<uintptr_t>(target);
  TRY(efa_gda_queue_retain(queue, local));

  TRY(efa_gda_queue_begin_launch(queue, &args.queue));
  if (!efa_gda::host::run_block(/* block */ 0, /* blocks */ 1, /* threads */ 32, [&] { own_put(args); })) return 1;
  TRY(efa_gda_queue_end_launch(queue));

  TRY(efa_gda_queue_close(queue));
  bool arrived = status == EFA_GDA_OK && std::memcmp(source, target, sizeof source) == 0;
  std::printf(arrived ? "the bytes arrived\n" : "status %u (docs/kernels.md)\n", status);
  return !arrived;
}
