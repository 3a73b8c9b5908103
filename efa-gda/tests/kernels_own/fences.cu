/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counts the fences of the device library on the host executor that have the order of fence_system(). */
#include <stdint.h>

static uint32_t fences, before_close;
#define __atomic_thread_fence(order) (fences += (order) == __ATOMIC_SEQ_CST, __atomic_thread_fence(order))

#include "efa_gda/post.h"

/* Returns the number of fences that a warp executed when it had posted two entries without a doorbell. */
extern "C" uint32_t fences_of_a_deferred_post(efa_gda_queue *queue) {
  efa_gda::host::run_block(0, 1, 32, [=] {
    using namespace efa_gda;
    Sender<Sharing::Device, WarpGroup> sender(queue);
    /* The first post polls for free slots, which fences. */
    auto make = [](uint32_t) { return write_entry(efa_gda_peer(), Memory{0, 1, 8}, 0, 1); };
    (void)sender.post(1, make, kPostDefer);
    fences = 0;
    WarpGroup().sync();
    (void)sender.post(1, make, kPostDefer);
    WarpGroup().sync();
    before_close = fences;
    /* The end of the scope fences again. */
    WarpGroup().sync();
  });
  return before_close;
}
