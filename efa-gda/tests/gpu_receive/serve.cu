/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A kernel that takes messages, copies each out, and posts its receive again, until `total` messages have arrived.
 */
#include "efa_gda/rq.h"

struct ServeArgs {
  efa_gda_queue *queue;
  /* Memory of `window` receives of `bytes` bytes each, one after the other. `bytes` must be a multiple of 8. */
  uint64_t memory;
  /* Memory for kAtOnce completions, EFA_GDA_INBOX_ENTRY bytes each. */
  uint8_t *taken;
  /* The bytes of the message with immediate i are copied to i * bytes, and came[i] counts such messages. */
  uint64_t *out;
  uint32_t *came;
  /* The number of the buffer of each receive, by its id: 65536 words. */
  uint32_t *buffers;
  /* The kernel's final enum efa_gda_status. */
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
  uint32_t first = 0, posted = 0;
  Memory whole = {a.memory, a.lkey, a.bytes};
  efa_gda_status status = post_receives(a.queue, whole, a.bytes, a.window, &first, &posted, a.timeout_ns);
  for (uint32_t k = 0; k < posted; k++) a.buffers[(first + k) & 0xffff] = k;
  for (uint32_t done = 0; status == EFA_GDA_OK && done < a.total;) {
    uint32_t count = 0;
    status = take_received(a.queue, a.taken, kAtOnce, &count, a.timeout_ns);
    for (uint32_t i = 0; status == EFA_GDA_OK && i < count; i++) {
      const uint32_t *completion = reinterpret_cast<const uint32_t *>(a.taken + i * EFA_GDA_INBOX_ENTRY);
      uint32_t head = load_relaxed(completion), immediate = load_relaxed(completion + 3), again = 0;
      uint32_t buffer = a.buffers[head & 0xffff];
      if ((head >> 16 & 0xff) != 0 || immediate >= a.total) {
        status = EFA_GDA_BAD_COMPLETION;
        break;
      }
      uint64_t at = a.memory + (uint64_t)buffer * a.bytes;
      const volatile uint64_t *from = reinterpret_cast<const volatile uint64_t *>(at);
      for (uint32_t k = 0; k < a.bytes / 8; k++) a.out[(uint64_t)immediate * (a.bytes / 8) + k] = from[k];
      a.came[immediate]++;
      status = post_receive(a.queue, Memory{at, a.lkey, a.bytes}, &again, a.timeout_ns);
      a.buffers[again & 0xffff] = buffer;
    }
    done += count;
  }
  *a.status = (uint32_t)status;
}
