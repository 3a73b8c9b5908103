/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Scenarios of correct and incorrect use of Sender, by the warps of one block. Each warp stores the statuses of its
 * calls, in order. */
#include "efa_gda/post.h"

#include <type_traits>

struct handles_args {
  struct efa_gda_queue *queue;
  struct efa_gda_peer peer;
  uint32_t scenario;
  uint64_t timeout_ns;
  /* kMaxCalls words for each warp. */
  uint32_t *status;
};

/* A copy would overwrite entries of the handle that it is a copy of. */
static_assert(!std::is_copy_constructible<efa_gda::Sender<efa_gda::Sharing::Thread>>::value &&
                  !std::is_copy_assignable<efa_gda::Sender<efa_gda::Sharing::Device>>::value,
              "a handle cannot be copied");

namespace {

using efa_gda::kPostDefault;
using efa_gda::kPostDefer;
using efa_gda::Sender;
using efa_gda::Sharing;
using efa_gda::WarpGroup;

constexpr uint32_t kMaxCalls = 8;

struct Log {
  uint32_t *next;
  EFA_GDA_FN void add(efa_gda_status status) {
    if (WarpGroup().rank() == 0) efa_gda::store_relaxed(next, (uint32_t)status);
    next++;
  }
};

template <class AnySender>
EFA_GDA_FN efa_gda_status post(const handles_args &a, AnySender &sender, uint32_t count, uint32_t flags = kPostDefault) {
  return sender.post(
      count, [&](uint32_t i) { return efa_gda::write_entry(a.peer, efa_gda::Memory{i, 1, 8}, i, 1); }, flags);
}

/* Waits, with the default bound, until `condition` holds by the actions of another warp. */
template <class Condition>
EFA_GDA_FN void await(const handles_args &a, Condition condition) {
  efa_gda::Deadline::State state(efa_gda::kDefaultTimeoutNs);
  efa_gda::Deadline deadline(state, a.queue);
  while (!condition() && deadline.expired(EFA_GDA_TIMEOUT_LOCK) == EFA_GDA_OK) {
  }
}

}  // namespace

EFA_GDA_KERNEL handles(struct handles_args a) {
  uint32_t warp = efa_gda::thread_index() / 32;
  efa_gda::BlockGroup block;
  Log log = {a.status + warp * kMaxCalls};
  switch (a.scenario) {
    case 0: {
      /* close() rings for what a handle of a shared queue deferred. */
      Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
      log.add(post(a, sender, 3, kPostDefer));
      log.add(post(a, sender, 2));
      log.add(post(a, sender, 3, kPostDefer));
      log.add(sender.close());
      return;
    }
    case 1: {
      /* An owner does not close its handle, which it never deletes. */
      auto &sender = *new Sender<Sharing::Warp>(a.queue, a.timeout_ns);
      log.add(post(a, sender, 4));
      log.add(sender.quiet());
      return;
    }
    case 2: {
      /* Two groups open the queue as its owner. */
      Sender<Sharing::Warp> sender(a.queue, a.timeout_ns);
      block.sync();
      log.add(post(a, sender, 4));
      log.add(sender.quiet());
      log.add(sender.close());
      log.add(sender.close());
      return;
    }
    case 3: {
      /* A group posts to the queue while another group owns it. */
      efa_gda_queue *q = a.queue;
      if (warp == 0) {
        Sender<Sharing::Warp> sender(q, a.timeout_ns);
        uint64_t owned = efa_gda::load_relaxed(&q->reserve.word);
        log.add(post(a, sender, 4, kPostDefer));
        block.sync();
        if (WarpGroup().rank() == 0) await(a, [&] { return efa_gda::load_relaxed(&q->reserve.word) != owned; });
        WarpGroup().sync();
        log.add(sender.quiet());
        log.add(sender.close());
      } else {
        block.sync();
        Sender<Sharing::Device, WarpGroup> sender(q, a.timeout_ns);
        log.add(sender.post(4, [&](uint32_t i) {
          return efa_gda::write_entry(a.peer, efa_gda::Memory{i, 1, 8}, 100 + i, 1);
        }));
      }
      return;
    }
    case 4: {
      /* One group opens the queue as its owner, and another as a shared queue, in any order. */
      if (warp == 0) {
        Sender<Sharing::Warp> sender(a.queue, a.timeout_ns);
        log.add(post(a, sender, 4));
        log.add(sender.quiet());
        log.add(sender.close());
      } else {
        Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
        log.add(post(a, sender, 4));
        log.add(sender.quiet());
        log.add(sender.close());
      }
      return;
    }
    case 6: {
      /* A shared handle posts request 0, an owner posts request 1, and request 1 completes first (this test completes
       * it). The quiet() for request 0 does not return because of that completion. */
      if (warp == 0) {
        Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
        log.add(post(a, sender, 1));
        log.add(sender.quiet());
        return;
      }
      efa_gda_queue *q = a.queue;
      /* The post has had its turn. */
      await(a, [&] { return efa_gda::load_acquire(&q->turn.word) >> EFA_GDA_TURN_BITS == efa_gda::kOneCall + 1; });
      Sender<Sharing::Warp> sender(q, a.timeout_ns);
      log.add(post(a, sender, 1));
      if (WarpGroup().rank() == 0) {
        uint64_t flags = EFA_IO_CDESC_COMMON_PHASE_MASK | (uint64_t)EFA_IO_SEND_QUEUE << 1;
        efa_gda::store_release(reinterpret_cast<uint64_t *>(q->cq.buffer), 1 | flags << 24 | (uint64_t)q->qpn << 32);
      }
      await(a, [&] { return efa_gda::load_relaxed(a.status + 1) != EFA_GDA_NOT_RUN; });
      log.add(sender.close());
      return;
    }
    case 7: {
      /* Warp 1 keeps the turn until warp 0 has written its entries, and logs the doorbell that is rung until then. Warp 0
       * also logs how often it made an entry. */
      efa_gda_queue *q = a.queue;
      constexpr uint32_t kCount = 16;
      if (warp == 0) {
        uint32_t *makes = a.status + 1;
        if (WarpGroup().rank() == 0) efa_gda::store_relaxed(makes, 0u);
        block.sync();
        Sender<Sharing::Device, WarpGroup> sender(q, a.timeout_ns);
        log.add(sender.post(kCount, [&](uint32_t i) {
          efa_gda::fetch_add_relaxed(makes, 1u);
          return efa_gda::write_entry(a.peer, efa_gda::Memory{i, 1, 8}, i, 1);
        }));
        return;
      }
      if (WarpGroup().rank() == 0) efa_gda::fetch_add_relaxed(&q->reserve.word, efa_gda::kOneCall);
      block.sync();
      if (WarpGroup().rank() != 0) return;
      const uint64_t *last = reinterpret_cast<const uint64_t *>(q->sq.buffer + (kCount - 1) * q->sq.entry_size);
      await(a, [&] { return efa_gda::load_acquire(last) != 0; });
      log.add((efa_gda_status)efa_gda::load_system(q->sq.doorbell));
      efa_gda::fence_release_device();
      efa_gda::exchange_relaxed(&q->turn.word, efa_gda::kOneCall << EFA_GDA_TURN_BITS);
      return;
    }
    case 10:
    case 11: {
      /* Posts that do not wait, until there is no room for a further one, and once more; by a group that shares the queue
       * or owns it. */
      auto fill = [&](auto &sender) {
        for (int call = 0; call < 6; call++) {
          log.add(sender.post(
              16, [&](uint32_t i) { return efa_gda::write_entry(a.peer, efa_gda::Memory{i, 1, 8}, i, 1); },
              efa_gda::kPostTry));
        }
      };
      if (a.scenario == 10) {
        Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
        fill(sender);
      } else {
        Sender<Sharing::Warp> sender(a.queue, a.timeout_ns);
        fill(sender);
      }
      return;
    }
    case 8: {
      /* A lane of each warp has left. Warp 0 posts as a warp, and both as a block. */
      if (WarpGroup().rank() == 31) return;
      if (warp == 0) {
        Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
        log.add(post(a, sender, 32));
        log.add(sender.close());
      }
      Sender<Sharing::Device, efa_gda::BlockGroup> sender(a.queue, a.timeout_ns);
      log.add(post(a, sender, 64));
      log.add(sender.close());
      return;
    }
    case 9: {
      /* Warp 0 waits for its turn for ten times its bound. Meanwhile warp 1 acts as groups whose turns come before:
       * requests complete, slowly, and then turns end. */
      efa_gda_queue *q = a.queue;
      if (warp == 1) {
        if (WarpGroup().rank() != 0) return;
        efa_gda::fetch_add_relaxed(&q->reserve.word, 40 * efa_gda::kOneCall + 20);
        efa_gda::store_relaxed(a.status + kMaxCalls, (uint32_t)EFA_GDA_OK);
        for (uint64_t step = 1; step <= 40; step++) {
          uint64_t begin = efa_gda::clock_ns();
          while (efa_gda::clock_ns() - begin < a.timeout_ns / 4) efa_gda::pause();
          if (step <= 20) {
            efa_gda::fetch_add_relaxed(&q->completion.completed, 1u);
          } else {
            efa_gda::fence_release_device();
            efa_gda::exchange_relaxed(&q->turn.word, (step * efa_gda::kOneCall + 20) << EFA_GDA_TURN_BITS);
          }
        }
        return;
      }
      await(a, [&] { return efa_gda::load_relaxed(a.status + kMaxCalls) == EFA_GDA_OK; });
      Sender<Sharing::Device, WarpGroup> sender(q, a.timeout_ns);
      log.add(post(a, sender, 1, kPostDefer));
      return;
    }
    default: {
      /* The first request fails. quiet() reports it once to each handle that shares the queue, also to those that did
       * not post it. */
      Sender<Sharing::Device, WarpGroup> sender(a.queue, a.timeout_ns);
      block.sync();
      if (warp == 0) {
        log.add(post(a, sender, 4));
        log.add(sender.quiet());
      }
      block.sync();
      if (warp == 1) log.add(sender.quiet());
      log.add(sender.quiet());
      log.add(post(a, sender, 4));
      log.add(sender.quiet());
      log.add(sender.close());
    }
  }
}

#if !EFA_GDA_ON_GPU
extern "C" bool handles_on_host(const struct handles_args *args, uint32_t threads, uint64_t seed) {
  efa_gda::host::interleave(seed);
  /* Scenarios 6 and 9 have no adapter beside them, and end by their bounds. Their clock stands still while the machine
   * runs something else. */
  bool alone = args->scenario == 6 || args->scenario == 9;
  if (alone) efa_gda::host::run_beside([](void *) {}, nullptr);
  bool ran = efa_gda::host::run_block(0, 1, threads, [=] { handles(*args); });
  efa_gda::host::run_beside(nullptr, nullptr);
  return ran;
}
#endif
