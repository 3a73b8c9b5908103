/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The software adapter's own interface, exported by the provider's file
 * (libsoftefa.so) for tests and tools that load it beside libfabric: what the
 * strict checker found, statistics, and hooks. Not for applications: the real
 * provider has none of it. Load the same file that libfabric loads (the same
 * path, or a link to it), and both speak of the same adapters.
 *
 * Everything is about all adapters of the process together, in the order in
 * which they were made; an adapter is made when its first domain is opened and
 * stays until the process ends. All functions may be called from any thread.
 *
 * Written in Rust in softefa/src/libfabric/capi.rs.
 */
#ifndef SOFTEFA_H
#define SOFTEFA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What softefa_version() returns for this header. */
#define SOFTEFA_VERSION 2

struct fid_cq;

enum softefa_queue_kind {
  SOFTEFA_SEND_QUEUE = 0,
  SOFTEFA_RECEIVE_QUEUE = 1,
  SOFTEFA_COMPLETION_QUEUE = 2,
};

/* A rule that was broken. */
struct softefa_violation {
  /* Index of the adapter. */
  uint32_t adapter;
  /* enum softefa_queue_kind */
  uint32_t queue_kind;
  /* The queue pair's number, or the completion queue's. */
  uint32_t queue;
  /* The slot, or UINT32_MAX where the rule is not about one. */
  uint32_t slot;
  /* The count of the entry or doorbell, from 0, never reset. */
  uint64_t counter;
  /* The rule's short name, which does not change between versions: "phase". */
  char rule[32];
};

/* What the adapters did since the last reset. */
struct softefa_statistics {
  uint64_t doorbells;   /* doorbell movements seen on send queues */
  uint64_t entries;     /* send-queue entries fetched */
  uint64_t bytes;       /* moved by requests */
  uint64_t completions; /* written */
  uint64_t errors;      /* of those, with a status other than ok */
  uint64_t receives;    /* messages and writes with immediate delivered */
  uint64_t rnr_retries; /* tries that found no receive posted */
  uint64_t violations;  /* rules found broken, also those not kept */
  uint64_t overruns;    /* completions that found their queue full */
};

uint32_t softefa_version(void);
/* Adapters made so far. */
size_t softefa_adapter_count(void);

/* Violations since the last reset; an adapter keeps its first 1024. */
size_t softefa_violation_count(void);
/* 0, or -EINVAL where there is no violation of that index. */
int softefa_violation(size_t index, struct softefa_violation *violation);
/* Like snprintf: the length without the ending zero; 0 where there is none of that index. */
size_t softefa_violation_text(size_t index, char *text, size_t size);

/* Warnings since the last reset. */
size_t softefa_warning_count(void);
size_t softefa_warning_text(size_t index, char *text, size_t size);

/* 0, or -EINVAL for null. */
int softefa_statistics(struct softefa_statistics *statistics);
/* Forgets violations, warnings and statistics so far. */
void softefa_reset(void);

/*
 * Queue pairs enabled from now on count as if this many requests had been posted
 * and completed before: the first entry belongs in slot counter % depth, with
 * that lap's phase, and the doorbell starts at the counter's low 16 bits. 0, or
 * -EINVAL, with nothing changed, past 2^63.
 */
int softefa_preset_counter(uint64_t counter);
/* While held (not 0), requests are fetched and checked, and wait. */
void softefa_hold(int held);
/*
 * Ends the threads of all adapters made so far: what is posted stays unanswered, as
 * on an adapter that died. Objects are closed as usual.
 */
void softefa_stop(void);
/*
 * How many completions a client that polls the memory itself has consumed of an
 * open completion queue; from the first call on its overruns are found.
 */
int softefa_set_consumer_index(struct fid_cq *cq, uint64_t consumed);

#ifdef __cplusplus
}
#endif

#endif
