/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The receive kernel: posts receives, or takes completions of receives, and writes its result to memory. nvcc, NVRTC
 * and, for the host executor, a C++17 compiler compile this file.
 */
#include "efa_gda/rq.h"

/* Launch one thread. Nothing else may use the queue's receive side while it runs. */
EFA_GDA_KERNEL efa_gda_receive_kernel(struct efa_gda_receive_args args) {
  uint32_t first = 0, count = 0;
  efa_gda_status status;
  if (args.into == nullptr) {
    status = efa_gda::post_receives(args.queue, {args.address, args.lkey, args.length}, args.stride, args.count, &first,
                                    &count, args.timeout_ns);
  } else {
    status = efa_gda::take_received(args.queue, args.into, args.count, &count, args.timeout_ns);
  }
  args.result->first = first;
  args.result->count = count;
  /* The status comes last, for a host that polls it. */
  efa_gda::fence_system();
  efa_gda::store_system(&args.result->status, (uint32_t)status);
}
