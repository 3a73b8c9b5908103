/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * softefa's C interface, which the provider's file (libsoftefa.so) exports for
 * tests and tools that load it beside libfabric: the checker's violations,
 * statistics and test hooks. It is not for applications: the real provider does
 * not have it. Load the file that libfabric loads (the same path, or a link to
 * it), so that both use the same adapters.
 *
 * Every function covers all adapters of the process, in the order in which they
 * were created. An adapter is created when its first domain is opened and stays
 * until the process ends. Any thread may call any function.
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
  /* Index of the adapter. */
  uint32_t adapter;
  /* enum softefa_queue_kind */
  uint32_t queue_kind;
  /* The queue pair's number, or the completion queue's. */
  uint32_t queue;
  /* The slot, or UINT32_MAX if the rule is not about a slot. */
  uint32_t slot;
  /* The index of the entry or doorbell, counted from 0 and never reset. */
  uint64_t counter;
  /* The rule's short name, such as "phase". It does not change between versions. */
  char rule[32];
};

/* Counts of all adapters since the last reset. */
struct softefa_statistics {
  uint64_t doorbells;   /* doorbell changes observed on send queues */
  uint64_t entries;     /* send-queue entries fetched */
  uint64_t bytes;       /* bytes moved by requests */
  uint64_t completions; /* completions written */
  uint64_t errors;      /* completions with a status other than ok */
  uint64_t receives;    /* messages and writes with immediate delivered */
  uint64_t rnr_retries; /* attempts that found no posted receive */
  uint64_t violations;  /* broken rules that were found, including those not stored */
  uint64_t overruns;    /* completions whose queue was full */
};

uint32_t softefa_version(void);
/* The number of adapters created so far. */
size_t softefa_adapter_count(void);

/* The number of violations since the last reset. An adapter stores its first 1024. */
size_t softefa_violation_count(void);
/* Writes a violation. Returns 0, or -EINVAL if there is no violation of that index. */
int softefa_violation(size_t index, struct softefa_violation *violation);
/*
 * Writes a violation's text like snprintf. Returns the length of the whole text
 * without the terminating zero; 0 if there is no violation of that index.
 */
size_t softefa_violation_text(size_t index, char *text, size_t size);

/* The number of warnings since the last reset, and their texts. */
size_t softefa_warning_count(void);
size_t softefa_warning_text(size_t index, char *text, size_t size);

/* Writes the statistics. Returns 0, or -EINVAL for null. */
int softefa_statistics(struct softefa_statistics *statistics);
/* Discards the violations, warnings and statistics so far. */
void softefa_reset(void);

/*
 * Sets the producer index of queue pairs that are enabled from now on, as if this
 * many requests had been posted and completed: the first entry belongs in slot
 * counter % depth, with that lap's phase, and the doorbell starts at the
 * counter's low 16 bits. Returns 0, or -EINVAL and changes nothing if the counter
 * is above 2^63.
 */
int softefa_preset_counter(uint64_t counter);
/* While held is not 0, adapters fetch and check requests but do not execute them. */
void softefa_hold(int held);
/*
 * Stops the engines of all adapters created so far: posted requests do not
 * complete, as on a dead adapter. Objects are closed as usual.
 */
void softefa_stop(void);
/*
 * Sets the number of completions that a client has consumed by polling the
 * memory of an open completion queue itself. From the first call on, overruns of
 * the queue are found. Returns 0 or a negative error.
 */
int softefa_set_consumer_index(struct fid_cq *cq, uint64_t consumed);

#ifdef __cplusplus
}
#endif

#endif
