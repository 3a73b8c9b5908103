/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Groups that share or own a queue with a request table post calls and wait for their own requests, in several ways. */
#include "efa_gda/post.h"

/* How a group ended. */
struct waits_result {
  /* Its final enum efa_gda_status. EFA_GDA_BAD_COMPLETION: a wait returned before a request was done. */
  uint32_t status;
  /* Waits that returned EFA_GDA_COMPLETION_ERROR, and what the last of them named. */
  uint32_t errors;
  uint32_t failed_index;
  uint32_t failed_status;
};

struct waits_args {
  struct efa_gda_queue *queue;
  /* One for each group. */
  struct waits_result *results;
  /* By producer index modulo 65536: the index + 1, stored by the adapter before the request's completion. Null: the
   * adapter moves bytes, and the words at `target` must be those at `source`. */
  const uint32_t *ended;
  const uint64_t *source;
  const uint64_t *target;
  /* Each entry writes 8 bytes, one after the other: entry i of call c of group g from word (g * calls + c) * per_call +
   * i. */
  uint64_t local;
  uint64_t remote;
  struct efa_gda_peer peer;
  /* Threads of a group: 1, 32 (a warp), or 0 for the whole block. */
  uint32_t group;
  uint32_t owned;
  uint32_t calls;
  uint32_t per_call;
  /* enum Mode */
  uint32_t mode;
  uint32_t lkey;
  uint32_t rkey;
  uint32_t reserved;
  uint64_t timeout_ns;
};

namespace {

enum Mode : uint32_t {
  kWaitEachCall = 0,
  kWaitOwnEveryThirdCall = 1,
  kTestEachCall = 2,
  kDeferAndWait = 3,
  /* The first call is waited for when all others have ended. */
  kWaitLate = 4,
  kWaitNever = 5,
  /* Group 0 makes one call and waits for it; the others post until it has ended. */
  kWaitWhileOthersPost = 6,
  /* Waits for no requests after each call. */
  kWaitForNone = 7,
  /* Every kind of wait in turn, among calls that defer and calls that are not waited for. */
  kMixed = 8,
  /* Calls wait_own until it returns something else than EFA_GDA_IN_FLIGHT, which a handle with timeout 0 gets. */
  kPollOwn = 9,
  /* Tests all requests at the end, many times. */
  kTestAll = 10,
};

template <efa_gda::Sharing S, class Group>
EFA_GDA_FN void post_and_wait(const waits_args &a, Group group, uint32_t index) {
  using namespace efa_gda;
  Sender<S, Group> sender(a.queue, a.timeout_ns, group);
  waits_result result = {(uint32_t)sender.status(), 0, 0, 0};
  uint32_t first = 0, late_first = 0;
  bool early = false, posts_until_group_0_ends = a.mode == kWaitWhileOthersPost && index != 0;
  /* The first word of a call. */
  auto word_of = [&](uint32_t call) { return ((uint64_t)index * a.calls + call % a.calls) * a.per_call; };
  auto is_early = [&](uint32_t call, uint32_t from, uint32_t i) {
    if (a.ended != nullptr) return (int32_t)(load_acquire(a.ended + ((from + i) & 0xffff)) - (from + i + 1)) < 0;
    uint64_t word = word_of(call) + i;
    return load_relaxed(a.target + word) != load_relaxed(a.source + word);
  };
  auto check = [&](uint32_t status, uint32_t call, uint32_t from, const FailedRequest &failed) {
    result.status = status == EFA_GDA_COMPLETION_ERROR ? (uint32_t)EFA_GDA_OK : status;
    if (status == EFA_GDA_COMPLETION_ERROR) {
      result.errors++;
      result.failed_index = failed.index;
      result.failed_status = failed.status;
    }
    if (status != EFA_GDA_OK) return;
    for (uint32_t i = group.rank(); i < a.per_call; i += group.size()) early |= is_early(call, from, i);
  };
  for (uint32_t call = 0; result.status == EFA_GDA_OK; call++) {
    if (posts_until_group_0_ends) {
      if (group.from_leader(load_acquire(&a.results[0].status)) != EFA_GDA_NOT_RUN) break;
    } else if (call == a.calls) {
      break;
    }
    result.status = sender.post(
        a.per_call,
        [&](uint32_t i) {
          uint64_t at = 8 * (word_of(call) + i);
          return write_entry(a.peer, Memory{a.local + at, a.lkey, 8}, a.remote + at, a.rkey);
        },
        a.mode == kDeferAndWait || (a.mode == kMixed && call % 3 == 1) ? kPostDefer : kPostDefault, &first);
    if (call == 0) late_first = first;
    if (result.status != EFA_GDA_OK || posts_until_group_0_ends) continue;
    FailedRequest failed;
    uint32_t status = EFA_GDA_IN_FLIGHT;
    switch (a.mode) {
      case kWaitOwnEveryThirdCall:
        if (call % 3 == 2) check(sender.wait_own(&failed), call, first, failed);
        break;
      case kTestEachCall:
        for (; status == EFA_GDA_IN_FLIGHT; pause()) status = sender.test(first, a.per_call, &failed);
        check(status, call, first, failed);
        break;
      case kPollOwn:
        for (; status == EFA_GDA_IN_FLIGHT; pause()) status = sender.wait_own(&failed);
        check(status, call, first, failed);
        break;
      case kWaitLate:
        if (call != 0) check(sender.wait(first, a.per_call, &failed), call, first, failed);
        break;
      case kWaitNever:
      case kTestAll:
        break;
      case kMixed:
        switch ((call + index) % 5) {
          case 0: check(sender.wait(first, a.per_call, &failed), call, first, failed); break;
          case 1: break;
          case 2: check(sender.wait_own(&failed), call, first, failed); break;
          case 3: check(sender.quiet(), call, first, failed); break;
          default:
            status = sender.test(first, a.per_call, &failed);
            if (status != EFA_GDA_IN_FLIGHT) check(status, call, first, failed);
        }
        break;
      case kWaitForNone:
        status = sender.wait(0, 0, &failed);
        result.errors += status == EFA_GDA_COMPLETION_ERROR;
        if (status != EFA_GDA_COMPLETION_ERROR) result.status = status;
        break;
      default:
        check(sender.wait(first, a.per_call, &failed), call, first, failed);
    }
  }
  if (a.mode == kWaitLate && result.status == EFA_GDA_OK) {
    FailedRequest failed;
    check(sender.wait(late_first, a.per_call, &failed), 0, late_first, failed);
  }
  if ((a.mode == kWaitOwnEveryThirdCall || a.mode == kMixed) && result.status == EFA_GDA_OK) {
    FailedRequest failed;
    check(sender.wait_own(&failed), a.calls - 1, first, failed);
  }
  if (a.mode == kTestAll && result.status == EFA_GDA_OK) {
    FailedRequest failed;
    for (uint32_t look = 0; look < 10000; look++) {
      result.status = sender.test(late_first, a.calls * a.per_call, &failed);
      if (result.status != EFA_GDA_IN_FLIGHT) break;
      pause();
    }
    result.failed_index = failed.index;
    result.failed_status = failed.status;
  }
  efa_gda_status closed = sender.close();
  if (result.status == EFA_GDA_OK) result.status = closed;
  if (early) store_relaxed(&a.results[index].errors, ~0u);
  group.sync();
  if (group.rank() != 0) return;
  if (load_relaxed(&a.results[index].errors) == ~0u) result.status = EFA_GDA_BAD_COMPLETION;
  store_relaxed(&a.results[index].errors, result.errors);
  store_relaxed(&a.results[index].failed_index, result.failed_index);
  store_relaxed(&a.results[index].failed_status, result.failed_status);
  store_release(&a.results[index].status, result.status);
}

}  // namespace

EFA_GDA_KERNEL waits(struct waits_args a) {
  using namespace efa_gda;
  uint32_t groups = a.group == 0 ? 1 : block_threads() / a.group;
  uint32_t index = block_index() * groups + (a.group == 0 ? 0 : thread_index() / a.group);
  switch (a.group) {
    case 0: return a.owned ? post_and_wait<Sharing::Block>(a, BlockGroup(), index)
                           : post_and_wait<Sharing::Device>(a, BlockGroup(), index);
    case 1: return a.owned ? post_and_wait<Sharing::Thread>(a, ThreadGroup(), index)
                           : post_and_wait<Sharing::Device>(a, ThreadGroup(), index);
    default: return a.owned ? post_and_wait<Sharing::Warp>(a, WarpGroup(), index)
                            : post_and_wait<Sharing::Device>(a, WarpGroup(), index);
  }
}

#if !EFA_GDA_ON_GPU
/* `step` may be null (host_executor.h, run_beside). */
extern "C" bool waits_on_host(const struct waits_args *args, uint32_t block, uint32_t blocks, uint32_t threads,
                              uint64_t seed, void (*step)(void *), void *context) {
  efa_gda::host::interleave(seed);
  efa_gda::host::run_beside(step, context);
  bool ran = efa_gda::host::run_block(block, blocks, threads, [=] { waits(*args); });
  efa_gda::host::run_beside(nullptr, nullptr);
  return ran;
}
#endif
