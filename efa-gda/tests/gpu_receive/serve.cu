/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel that takes messages as long as they come, and posts each receive again as soon
 * as its message was taken and copied out.
 */
#include "efa_gda/rq.h"

struct ServeArgs {
  efa_gda_queue *queue;
  /* `window` receives of `bytes` bytes, a multiple of 8, one after the other. */
  uint64_t memory;
  /* Completions as they are taken, EFA_GDA_INBOX_ENTRY bytes each. */
  uint8_t *taken;
  /* The bytes of the message with immediate i at i * bytes, and how often that came. */
  uint64_t *out;
  uint32_t *came;
  /* Which piece of the memory each receive has, by its id: 65536 words. */
  uint32_t *pieces;
  /* The enum efa_gda_status that the kernel ended with. */
  uint32_t *status;
  uint64_t timeout_ns;
  uint32_t lkey;
  uint32_t bytes;
  uint32_t window;
  uint32_t total;
};

EFA_GDA_KERNEL serve_kernel(ServeArgs a) {
  using namespace efa_gda;
  constexpr uint32_t kAtOnce = 16;
  Completions found;
  uint32_t first = 0, posted = 0;
  Memory whole = {a.memory, a.lkey, a.bytes};
  efa_gda_status status = post_receives(a.queue, whole, a.bytes, a.window, &first, &posted, found, a.timeout_ns);
  for (uint32_t k = 0; k < posted; k++) a.pieces[(first + k) & 0xffff] = k;
  for (uint32_t done = 0; status == EFA_GDA_OK && done < a.total;) {
    uint32_t count = 0;
    status = take_received(a.queue, a.taken, kAtOnce, &count, found, a.timeout_ns);
    for (uint32_t i = 0; status == EFA_GDA_OK && i < count; i++) {
      const uint32_t *completion = reinterpret_cast<const uint32_t *>(a.taken + i * EFA_GDA_INBOX_ENTRY);
      uint32_t head = load_relaxed(completion), immediate = load_relaxed(completion + 3), again = 0;
      uint32_t piece = a.pieces[head & 0xffff];
      if ((head >> 16 & 0xff) != 0 || immediate >= a.total) {
        status = EFA_GDA_BAD_COMPLETION;
        break;
      }
      uint64_t at = a.memory + (uint64_t)piece * a.bytes;
      const volatile uint64_t *from = reinterpret_cast<const volatile uint64_t *>(at);
      for (uint32_t k = 0; k < a.bytes / 8; k++) a.out[(uint64_t)immediate * (a.bytes / 8) + k] = from[k];
      a.came[immediate]++;
      status = post_receive(a.queue, Memory{at, a.lkey, a.bytes}, &again, found, a.timeout_ns);
      a.pieces[again & 0xffff] = piece;
    }
    done += count;
  }
  *a.status = (uint32_t)status;
}
