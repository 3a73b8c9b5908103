/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel that posts without ringing and then waits for a word that the host sets, and a kernel that traps, which ends
 * its context.
 */
#include "efa_gda/post.h"

struct HangArgs {
  efa_gda_queue *queue;
  efa_gda_peer peer;
  uint32_t lkey;
  uint32_t rkey;
  uint64_t local;
  uint64_t remote;
  /* The kernel stores 1 when it has posted; the host stores 2 to make it continue. */
  uint32_t *word;
  /* The kernel's final enum efa_gda_status. */
  uint32_t *status;
};

EFA_GDA_KERNEL hang_kernel(HangArgs a) {
  using namespace efa_gda;
  Sender<Sharing::Device, ThreadGroup> sender(a.queue, kDefaultTimeoutNs, ThreadGroup());
  efa_gda_status status = sender.post(
      5,
      [&](uint32_t i) {
        return write_entry(a.peer, Memory{a.local + i * 8, a.lkey, 8}, a.remote + i * 8, a.rkey);
      },
      kPostDefer);
  fence_system();
  store_system(a.word, 1);
  /* About ten seconds at most. */
  for (uint64_t polls = 0; polls < 100000000 && *(volatile uint32_t *)a.word != 2; polls++) __nanosleep(100);
  if (status == EFA_GDA_OK) status = sender.quiet();
  *a.status = (uint32_t)status;
}

EFA_GDA_KERNEL trap_kernel(HangArgs a) {
  (void)a;
  asm volatile("trap;");
}
