/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An RDMA write of 64 KiB from one buffer to another, through a queue to itself. Words change how the queue is opened:
 * gpu (the first GPU posts), rdma-core (without libfabric), record and staged (a host thread rings).
 */
#include <stdio.h>
#include <string.h>

#include <efa_gda.h>

#define TRY(call) \
  if ((call) != 0) return fprintf(stderr, "%s: %s\n", #call, efa_gda_last_error()), 1

int main(int argc, char **argv) {
  static unsigned char source[64 << 10], target[64 << 10];
  struct efa_gda_options options = {.size = sizeof options, .gpu = -1}; /* the host's processor drives the queue */
  struct efa_gda_queue_info info = {.size = sizeof info};
  struct efa_gda_work work = {.size = sizeof work, .op = EFA_GDA_OP_WRITE, .bytes = sizeof source, .count = 1};
  efa_gda_queue_handle *queue;
  efa_gda_region *from, *to;

  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "gpu") == 0) options.gpu = 0;
    if (strcmp(argv[i], "rdma-core") == 0) options.source = EFA_GDA_SOURCE_RDMA_CORE;
    if (strcmp(argv[i], "record") == 0) options.doorbell = EFA_GDA_DOORBELL_RECORD;
    if (strcmp(argv[i], "staged") == 0) options.doorbell = EFA_GDA_DOORBELL_STAGED;
  }
  for (size_t i = 0; i < sizeof source; i++) source[i] = (unsigned char)(i % 251);

  TRY(efa_gda_queue_open(&options, &queue));
  TRY(efa_gda_region_register(queue, source, sizeof source, EFA_GDA_ACCESS_WRITE, &from));
  TRY(efa_gda_region_register(queue, target, sizeof target, EFA_GDA_ACCESS_REMOTE_WRITE, &to));
  /* The peer is this queue. Two processes would send each other info.address, and the target's address and key. */
  TRY(efa_gda_queue_describe(queue, &info, NULL));
  TRY(efa_gda_queue_insert_peer(queue, info.address, &work.peer));
  TRY(efa_gda_region_keys(to, NULL, &work.rkey));
  work.remote_address = (uintptr_t)target;
  work.local = from;
  TRY(efa_gda_queue_execute(queue, &work));
  if (memcmp(source, target, sizeof source) != 0) return fprintf(stderr, "the target has other bytes\n"), 1;
  puts("the bytes arrived");

  TRY(efa_gda_queue_close(queue));
  TRY(efa_gda_region_close(from));
  TRY(efa_gda_region_close(to));
  return 0;
}
