/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * softefa's C interface, which the provider's file (libsoftefa.so) exports for
 * tests and tools that load it beside libfabric: the checker's violations,
 * statistics and test hooks. It is not for applications: the real provider does
 * not have it. Load the file that libfabric loads (the same path, or a link to
 * it), so that both use the same adapters.
 *
 * Unless its comment says otherwise, a function covers all adapters that the
 * process has created. An adapter is created when the first domain on it is
 * opened, and stays until the process ends. Its index is its place in the order
 * of creation, from 0. Any thread may call any function.
 *
 * softefa/src/libfabric/capi.rs implements it.
 */
#ifndef SOFTEFA_H
#define SOFTEFA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The value that softefa_version() returns if the library matches this header. */
#define SOFTEFA_VERSION 2

struct fid_cq;

enum softefa_queue_kind {
  SOFTEFA_SEND_QUEUE = 0,
  SOFTEFA_RECEIVE_QUEUE = 1,
  SOFTEFA_COMPLETION_QUEUE = 2,
};

/* A violation: a rule that the program broke. */
struct softefa_violation {
  /* Index of the adapter, from 0. */
  uint32_t adapter;
  /* enum softefa_queue_kind */
  uint32_t queue_kind;
  /* The queue pair's number, or the completion queue's. */
  uint32_t queue;
  /* The slot, or UINT32_MAX if the rule is not about a slot. */
  uint32_t slot;
  /*
   * Of a send or receive queue: the index of the entry, or, if the rule is about a
   * doorbell, the doorbell producer index before it. Of a completion queue: the
   * index of the completion that found the queue full, or the consumer index.
   * Indexes do not wrap, and softefa_reset() does not change them. The first is 0,
   * or, of a send or receive queue, what softefa_preset_counter() set.
   */
  uint64_t counter;
  /* The rule's short name, such as "phase". It does not change between versions. */
  char rule[32];
};

/* Counts of all adapters since the last reset. */
struct softefa_statistics {
  uint64_t doorbells;   /* doorbell changes observed on send queues */
  uint64_t entries;     /* send-queue entries fetched */
  uint64_t bytes;       /* bytes moved by requests */
  uint64_t completions; /* completions, also those for full queues */
  uint64_t errors;      /* requests and receives that failed or were flushed */
  uint64_t receives;    /* messages and writes with immediate, also failed */
  uint64_t rnr_retries; /* attempts that found no posted receive */
  uint64_t violations;  /* all violations, also those that were not stored */
  uint64_t overruns;    /* completions that found their queue full */
};

uint32_t softefa_version(void);
/* The number of adapters created so far. */
size_t softefa_adapter_count(void);

/*
 * The number of violations that were stored since the last reset. An adapter
 * stores its first 1024; a reset makes no room for more. The statistics count all.
 * Stored violations have the indexes from 0 on: those of adapter 0 first, of each
 * adapter the oldest first. So a new violation can change the indexes of others.
 */
size_t softefa_violation_count(void);
/*
 * Writes the violation of an index. Returns 0, or -EINVAL if there is none or
 * `violation` is null.
 */
int softefa_violation(size_t index, struct softefa_violation *violation);
/*
 * Writes the text of the violation of an index as snprintf does: at most `size`
 * bytes with the terminating zero, nothing if `text` is null. Returns the length of
 * the whole text without the zero; 0 if there is no violation of that index.
 */
size_t softefa_violation_text(size_t index, char *text, size_t size);

/*
 * The same for warnings: conditions that break no rule but can cause failures.
 * Each adapter stores its first 1024.
 */
size_t softefa_warning_count(void);
size_t softefa_warning_text(size_t index, char *text, size_t size);

/* Writes the statistics. Returns 0, or -EINVAL for null. */
int softefa_statistics(struct softefa_statistics *statistics);
/* Discards the violations and warnings so far, and counts statistics from 0. */
void softefa_reset(void);

/*
 * Sets the producer index of both queues of queue pairs that are enabled from now
 * on, as if this many entries had been posted and completed: the first entry
 * belongs in slot counter % depth, with that lap's phase, and the doorbell starts
 * at the counter's low 16 bits. Returns 0, or -EINVAL and changes nothing if the counter is above 2^63.
 */
int softefa_preset_counter(uint64_t counter);
/*
 * Holds the adapters created so far if held is not 0, and releases them if it is 0.
 * A held adapter fetches and checks requests but does not execute them; it does so
 * after its release.
 */
void softefa_hold(int held);
/*
 * Stops all adapters created so far, for good: posted requests do
 * not complete, as on a dead adapter. Objects can still be closed; closing an
 * endpoint flushes its requests and receives.
 */
void softefa_stop(void);
/*
 * Sets the consumer index of an open completion queue: the number of completions
 * that a client has consumed, since the queue was opened, by polling its memory
 * itself. From the first call on, overruns of the queue are found. An index below
 * the last one, or ahead of the completions, is a violation and is not stored.
 * fi_cq_read() and fi_cq_readerr() set the index themselves. Returns 0, or -EINVAL
 * if `cq` is null or no completion queue of softefa.
 */
int softefa_set_consumer_index(struct fid_cq *cq, uint64_t consumed);

#ifdef __cplusplus
}
#endif

#endif
