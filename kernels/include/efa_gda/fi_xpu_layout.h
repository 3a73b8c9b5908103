/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What softefa's FI_XPU exports: the structs to which fid_xpu::prov_ctx points, in device memory. fi_xpu_efa.h uses
 * them; the provider fills them in. Plain C: no functions, one layout for host and device compilers.
 *
 * This is this project's own layout. No release of libfabric has a device half for EFA, and so none states what an EFA
 * provider's prov_ctx is. Each struct begins with a magic number and its length; the device functions refuse any other.
 *
 * The provider allocates each struct with its alignment, zeroes all of it, and fills in the members marked "Geometry",
 * which are constant while the object is exported. Only the device functions write the members marked "Device".
 */
#ifndef EFA_GDA_FI_XPU_LAYOUT_H
#define EFA_GDA_FI_XPU_LAYOUT_H

#include "queue.h"

/* efa_gda_xpu_object::magic: "efagxpu" and the layout's number, as ASCII in memory. */
#define EFA_GDA_XPU_MAGIC 0x3175707867616665ull

/* First member of each struct. */
struct efa_gda_xpu_object {
  /* Geometry. */
  uint64_t magic;
  /* Bytes of the whole struct. */
  uint32_t bytes;
  /* fid::fclass of the object. */
  uint32_t fclass;
  /* Bound of each wait for the adapter or for a lock, from its last progress; and of the blocks' meeting, from a
   * leader's arrival. */
  uint64_t timeout_ns;
  /* Device: the blocks' meeting in a call of scope FI_XPU_DEVICE, and the result of the last one (fi_xpu_efa.h). */
  uint64_t meeting;
  int64_t result;
};

/* A context of a posted receive; its index in the table is the request id. */
struct efa_gda_xpu_receive {
  /* Device: 1 from the post of the receive until its completion is read. */
  uint32_t used;
  uint32_t reserved;
  uint64_t context;
};

/* A completion queue. */
struct efa_gda_xpu_cq {
  struct efa_gda_xpu_object object;
  /* Geometry: the adapter's queue, and its doorbell for the consumer index, which may be null. */
  const uint8_t *buffer;
  volatile uint32_t *doorbell;
  uint32_t entry_size;
  /* A power of two. */
  uint32_t num_entries;
  /* Geometry: num_receives entries, a power of two, at most 65536: a receive's request id has 16 bits. */
  struct efa_gda_xpu_receive *receives;
  uint32_t num_receives;
  /* Geometry: enum fi_cq_format of the entries that reads return. */
  uint32_t format;
  /* Device: 1 while a thread reads; completions read, modulo 2^32. */
  uint32_t lock;
  uint32_t consumed;
  /* Device: requests and receives whose completions were not read yet: at most num_entries, but for posters that
   * are about to subtract again. */
  uint32_t outstanding;
  /* Device: where the next search for a free entry of `receives` begins. */
  uint32_t next_receive;
};

/* A counter. Its value is a word of the adapter plus an offset of the device, because only the adapter's host may
 * write the word. */
struct efa_gda_xpu_cntr {
  struct efa_gda_xpu_object object;
  /* Geometry: written by the adapter. */
  const volatile uint64_t *success;
  const volatile uint64_t *error;
  /* Device. */
  uint64_t success_offset;
  uint64_t error_offset;
  /* Device: the word `error` when a wait last ended because of it, or a program last read or set the errors. */
  uint64_t error_seen;
};

/* An endpoint. */
struct efa_gda_xpu_ep {
  struct efa_gda_xpu_object object;
  /* Geometry: the device's address of the completion queue of each side; null: a queue that the host reads. */
  struct efa_gda_xpu_cq *send_cq;
  struct efa_gda_xpu_cq *receive_cq;
  /* Geometry: the adapter's counts of receives that ended, successfully and not. */
  const volatile uint64_t *received;
  const volatile uint64_t *receive_errors;
  /* The queues. Its counters never wrap (wrap = 0) and count all requests; it has no completion queue, so this
   * library's engine reads none. Bit EFA_GDA_SQ_REQ_ID_64 is not set although the adapter's request ids have 64 bits:
   * the engine writes the low 16, and fi_xpu_post.h the caller's context into the others. */
  struct efa_gda_queue queue;
};

#endif
