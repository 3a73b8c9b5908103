/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Scenarios of correct and incorrect use of Sender, by the warps of one block. Each warp stores the statuses of its
 * calls, in order. */
#include "efa_gda/post.h"

struct handles_args {
  struct efa_gda_queue *queue;
  struct efa_gda_peer peer;
  uint32_t scenario;
  uint64_t timeout_ns;
  /* kMaxCalls words for each warp. */
  uint32_t *status;
};

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
      /* An owner does not close its handle. */
      Sender<Sharing::Warp> sender(a.queue, a.timeout_ns);
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
      /* A group posts to the queue while another group owns it. The ring has free slots, as the last writer found it. The
       * owner rings for its entries when the other group has published its own. */
      efa_gda_queue *q = a.queue;
      if (warp == 0) {
        if (WarpGroup().rank() == 0) efa_gda::store_relaxed(efa_gda::limit_word(q), (uint64_t)q->sq.num_entries);
        WarpGroup().sync();
        Sender<Sharing::Warp> sender(q, a.timeout_ns);
        log.add(post(a, sender, 4, kPostDefer));
        block.sync();
        if (WarpGroup().rank() == 0) await(a, [&] { return efa_gda::load_acquire(&q->publication.flags[3]) != 0; });
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
      /* Two calls are served: the post, and the flush of quiet(). */
      await(a, [&] { return efa_gda::load_acquire(&q->lock.serving) >> (32 + EFA_GDA_LOCK_STATE_BITS) == 2; });
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
      /* Warp 1 acts as a lock owner, and passes the lock to warp 0 when that has published its call. Warp 0 also logs
       * how often it made an entry. */
      efa_gda_queue *q = a.queue;
      constexpr uint32_t kCount = 32;
      constexpr uint64_t kTicket = efa_gda::kOneCall << EFA_GDA_LOCK_STATE_BITS;
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
      if (WarpGroup().rank() == 0) {
        efa_gda::fetch_add_relaxed(&q->reserve.word, efa_gda::kOneCall);
        efa_gda::store_relaxed(&q->lock.serving, kTicket | efa_gda::kClosing);
      }
      block.sync();
      if (WarpGroup().rank() != 0) return;
      await(a, [&] { return efa_gda::load_acquire(&q->publication.flags[kCount - 1]) != 0; });
      efa_gda::store_release(&q->lock.serving, kTicket | efa_gda::kPassedMustCombine);
      return;
    }
    case 10:
    case 11: {
      /* Warp 1 acts as a lock owner with free slots, of which it knows in case 10. Warp 0 publishes two calls, one that
       * fits the batch window and one that does not, and returns early. Warp 1 logs whether each is in the ring, and
       * combines them. */
      efa_gda_queue *q = a.queue;
      constexpr uint32_t kCounts[2] = {12, 6};
      if (warp == 0) {
        block.sync();
        Sender<Sharing::Device, WarpGroup> sender(q, a.timeout_ns);
        log.add(post(a, sender, kCounts[0]));
        log.add(post(a, sender, kCounts[1]));
        log.add(sender.close());
        return;
      }
      bool leads = WarpGroup().rank() == 0;
      uint64_t ticket = efa_gda::kOneCall << EFA_GDA_LOCK_STATE_BITS;
      if (leads) {
        efa_gda::fetch_add_relaxed(&q->reserve.word, efa_gda::kOneCall);
        efa_gda::store_relaxed(efa_gda::limit_word(q), (uint64_t)(a.scenario == 10 ? q->sq.num_entries : 0));
        efa_gda::store_relaxed(&q->lock.serving, ticket | efa_gda::kOpen);
      }
      block.sync();
      for (uint32_t slot = 0, call = 0; call < 2; call++) {
        slot += kCounts[call];
        uint64_t flag = 0;
        if (leads) await(a, [&] { return (flag = efa_gda::load_acquire(&q->publication.flags[slot - 1])) != 0; });
        const uint64_t *entry = reinterpret_cast<const uint64_t *>(q->sq.buffer + (slot - 1) * q->sq.entry_size);
        bool in_ring = leads && efa_gda::load_relaxed(entry) != 0;
        bool is_ahead = (flag & efa_gda::kPlacedAhead) != 0;
        log.add(in_ring == is_ahead ? is_ahead ? EFA_GDA_OK : EFA_GDA_IN_FLIGHT : EFA_GDA_BAD_ARGUMENT);
      }
      if (!leads) return;
      efa_gda::SharedCall call;
      call.timeout_ns = a.timeout_ns;
      efa_gda::Ring<efa_gda::Shared<efa_gda::ThreadGroup>> ring(q, efa_gda::Shared<efa_gda::ThreadGroup>());
      ring.inherit(0, q->sq.num_entries);
      ring.resume(0);
      call.combining.ring = ring.state();
      call.combining.publication = efa_gda::PublicationSlots(q);
      call.combining.serving = ticket;
      log.add(efa_gda::combine_as<efa_gda::Shared<efa_gda::ThreadGroup>, EFA_GDA_STORE_BYTES>(q, &call));
      return;
    }
    case 12: {
      /* A flush receives the lock and must combine. */
      efa_gda_queue *q = a.queue;
      if (WarpGroup().rank() == 0) {
        efa_gda::fetch_add_relaxed(&q->reserve.word, efa_gda::kOneCall);
        uint64_t next = efa_gda::kOneCall << EFA_GDA_LOCK_STATE_BITS;
        efa_gda::store_relaxed(&q->lock.serving, next | efa_gda::kPassedMustCombine);
      }
      Sender<Sharing::Device, WarpGroup> sender(q, a.timeout_ns);
      log.add(sender.flush());
      log.add(sender.close());
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
      /* Warp 0 waits for the lock for ten times its bound. Meanwhile warp 1 acts as lock owners: requests of one
       * complete, slowly, and then other calls are served. */
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
            efa_gda::store_release(&q->lock.serving, (step * efa_gda::kOneCall + 20) << EFA_GDA_LOCK_STATE_BITS);
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
