/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Posts receives, or takes what arrived, and says in memory how it ended. Compiled by nvcc,
 * NVRTC and, for the host executor, as C++17.
 */
#include "efa_gda/rq.h"

/* Launch one thread; nobody else uses the queue's receive side while it runs. */
EFA_GDA_KERNEL efa_gda_receive_kernel(struct efa_gda_receive_args args) {
  efa_gda::Completions found;
  uint32_t first = 0, count = 0;
  efa_gda_status status;
  if (args.into == nullptr) {
    status = efa_gda::post_receives(args.queue, {args.address, args.lkey, args.length}, args.stride, args.count, &first,
                                    &count, found, args.timeout_ns);
  } else {
    status = efa_gda::take_received(args.queue, args.into, args.count, &count, found, args.timeout_ns);
  }
  args.result->first = first;
  args.result->count = count;
  /* A host that polls the status finds the rest in place. */
  efa_gda::fence_system();
  efa_gda::store_system(&args.result->status, (uint32_t)status);
}
