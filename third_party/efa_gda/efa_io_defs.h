/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Descriptors that an EFA adapter reads and writes, little-endian throughout.
 *
 * Names, layouts and values are those of the interface (rdma-core's
 * providers/efa/efa_io_defs.h); README.md beside this file lists the versions
 * that they were compared with. The wording is this project's own. A build that
 * regenerates the bindings can use an upstream copy instead: EFA_IO_DEFS_H=FILE.
 *
 * "MBZ" marks a field that must be zero; the adapter may reject an entry that
 * sets it. The *_MASK constants at the end state the bit positions inside control
 * bytes.
 */
#ifndef EFA_GDA_THIRD_PARTY_EFA_IO_DEFS_H
#define EFA_GDA_THIRD_PARTY_EFA_IO_DEFS_H

#if !defined(__CUDACC_RTC__)
#include <stdint.h>
#endif

/* Scatter/gather elements that one SEND, and one RDMA request, may carry. */
#define EFA_IO_TX_DESC_NUM_BUFS 2
#define EFA_IO_TX_DESC_NUM_RDMA_BUFS 1
/* Inline bytes that fit a 64-byte and a 128-byte entry. */
#define EFA_IO_TX_DESC_INLINE_MAX_SIZE 32
#define EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 80
#define EFA_IO_TX_DESC_IMM_DATA_SIZE 4

/* Which queue of a queue pair a completion belongs to. */
enum efa_io_queue_type {
  EFA_IO_SEND_QUEUE = 1,
  EFA_IO_RECV_QUEUE = 2,
};

enum efa_io_send_op_type {
  EFA_IO_SEND = 0,
  EFA_IO_RDMA_READ = 1,
  EFA_IO_RDMA_WRITE = 2,
};

/* Outcome of a request: the status byte of its completion. */
enum efa_io_comp_status {
  EFA_IO_COMP_STATUS_OK = 0,
  /* The queue pair was destroyed before the request ran. */
  EFA_IO_COMP_STATUS_FLUSHED = 1,
  EFA_IO_COMP_STATUS_LOCAL_ERROR_QP_INTERNAL_ERROR = 2,
  EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP = 3,
  EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_AH = 4,
  /* The lkey is unknown, or its region does not contain the local address. */
  EFA_IO_COMP_STATUS_LOCAL_ERROR_INVALID_LKEY = 5,
  EFA_IO_COMP_STATUS_LOCAL_ERROR_BAD_LENGTH = 6,
  /* The rkey is unknown, or its region does not contain the remote address. */
  EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_ADDRESS = 7,
  EFA_IO_COMP_STATUS_REMOTE_ERROR_ABORT = 8,
  /* No such queue pair at the destination, or it is in an error state. */
  EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_DEST_QPN = 9,
  /* The destination had no receive posted. */
  EFA_IO_COMP_STATUS_REMOTE_ERROR_RNR = 10,
  /* The posted receive is shorter than the message. */
  EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_LENGTH = 11,
  EFA_IO_COMP_STATUS_REMOTE_ERROR_BAD_STATUS = 12,
  /* The remote responded before and no longer does. */
  EFA_IO_COMP_STATUS_LOCAL_ERROR_UNRESP_REMOTE = 13,
  /* The remote has no address handle for this sender. */
  EFA_IO_COMP_STATUS_REMOTE_ERROR_UNKNOWN_PEER = 14,
  /* The remote never responded. */
  EFA_IO_COMP_STATUS_LOCAL_ERROR_UNREACH_REMOTE = 15,
  EFA_IO_COMP_STATUS_REMOTE_ERROR_FEATURE_MISMATCH = 18,
};

/* Bits of efa_io_tx_meta_desc::ctrl3. */
enum efa_io_processing_hint {
  /* Prefer message rate over latency. */
  EFA_IO_PROCESSING_HINT_BURST_PPS_SENSITIVE = 1 << 0,
};

/* Bits 16 to 63 of a 64-bit request id, least significant word first. */
struct efa_io_req_id_ex {
  uint16_t w[3];
};

/* First 32 bytes of every send-queue entry. */
struct efa_io_tx_meta_desc {
  /* Returned in the completion; bits 0 to 15 of a 64-bit request id. */
  uint16_t req_id;
  /* op_type 3:0, has_imm 4, inline_msg 5, meta_extension 6 (MBZ), meta_desc 7 (set). */
  uint8_t ctrl1;
  /* phase 0, MBZ 1, first 2 (set), last 3 (set), comp_req 4, MBZ 7:5. */
  uint8_t ctrl2;
  uint16_t dest_qp_num;
  /* Number of buffer descriptors; if inline_msg is set, number of inline bytes. */
  uint16_t length;
  /* Valid if has_imm is set. */
  uint32_t immediate_data;
  uint16_t ah;
  /* processing_hints 1:0, MBZ 7:2. */
  uint8_t ctrl3;
  uint8_t reserved;
  uint32_t qkey;
  uint8_t reserved2[6];
  struct efa_io_req_id_ex req_id_ex;
};

/* Local memory of a send-queue entry. */
struct efa_io_tx_buf_desc {
  uint32_t length;
  /* lkey 23:0, MBZ 31:24. */
  uint32_t lkey;
  uint32_t buf_addr_lo;
  uint32_t buf_addr_hi;
};

/* Remote memory of an RDMA request. */
struct efa_io_remote_mem_addr {
  uint32_t length;
  uint32_t rkey;
  uint32_t buf_addr_lo;
  uint32_t buf_addr_hi;
};

struct efa_io_rdma_req {
  struct efa_io_remote_mem_addr remote_mem;
  struct efa_io_tx_buf_desc local_mem[1];
};

struct efa_io_rdma_req_128 {
  struct efa_io_remote_mem_addr remote_mem;
  union {
    struct efa_io_tx_buf_desc local_mem[1];
    uint8_t inline_data[80];
  };
};

/* A 64-byte send-queue entry. */
struct efa_io_tx_wqe {
  struct efa_io_tx_meta_desc meta;
  union {
    struct efa_io_tx_buf_desc sgl[2];
    uint8_t inline_data[32];
    struct efa_io_rdma_req rdma_req;
  } data;
};

/* A 128-byte send-queue entry. */
struct efa_io_tx_wqe_128 {
  struct efa_io_tx_meta_desc meta;
  union {
    struct efa_io_tx_buf_desc sgl[2];
    uint8_t inline_data[80];
    struct efa_io_rdma_req_128 rdma_req;
  } data;
};

/* A receive-queue entry is one or more of these; flags mark the first and the last. */
struct efa_io_rx_desc {
  uint32_t buf_addr_lo;
  uint32_t buf_addr_hi;
  uint16_t req_id;
  uint16_t length;
  /* lkey 23:0, MBZ 29:24, first 30, last 31. */
  uint32_t lkey_ctrl;
};

/* First six bytes of every completion. */
struct efa_io_cdesc_common {
  uint16_t req_id;
  /* enum efa_io_comp_status */
  uint8_t status;
  /* phase 0, q_type 2:1, has_imm 3, op_type 6:4, unsolicited 7 (receive side only). */
  uint8_t flags;
  /* The local queue pair. */
  uint16_t qp_num;
};

struct efa_io_tx_cdesc {
  struct efa_io_cdesc_common common;
  struct efa_io_req_id_ex req_id_ex;
  uint8_t reserved[4];
};

struct efa_io_rx_cdesc {
  struct efa_io_cdesc_common common;
  /* Bits 0 to 15 of the length received. */
  uint16_t length;
  /* The sender's address handle; 0xffff if the receiver has none. */
  uint16_t ah;
  uint16_t src_qp_num;
  uint32_t imm;
};

struct efa_io_rx_cdesc_rdma_write {
  /* Bits 16 to 31 of the length written. */
  uint16_t length_hi;
};

/* A receive completion in the 32-byte form. */
struct efa_io_rx_cdesc_ex {
  struct efa_io_rx_cdesc base;
  union {
    struct efa_io_rx_cdesc_rdma_write rdma_write;
    /* The sender's GID, if ah is 0xffff and the queue reports source addresses. */
    uint8_t src_addr[16];
  } u;
};

/* efa_io_tx_meta_desc::ctrl1 */
#define EFA_IO_TX_META_DESC_OP_TYPE_MASK 0x0f
#define EFA_IO_TX_META_DESC_HAS_IMM_MASK 0x10
#define EFA_IO_TX_META_DESC_INLINE_MSG_MASK 0x20
#define EFA_IO_TX_META_DESC_META_EXTENSION_MASK 0x40
#define EFA_IO_TX_META_DESC_META_DESC_MASK 0x80
/* efa_io_tx_meta_desc::ctrl2 */
#define EFA_IO_TX_META_DESC_PHASE_MASK 0x01
#define EFA_IO_TX_META_DESC_FIRST_MASK 0x04
#define EFA_IO_TX_META_DESC_LAST_MASK 0x08
#define EFA_IO_TX_META_DESC_COMP_REQ_MASK 0x10
/* efa_io_tx_meta_desc::ctrl3 */
#define EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK 0x03
/* efa_io_tx_buf_desc::lkey */
#define EFA_IO_TX_BUF_DESC_LKEY_MASK 0x00ffffff
/* efa_io_rx_desc::lkey_ctrl */
#define EFA_IO_RX_DESC_LKEY_MASK 0x00ffffff
#define EFA_IO_RX_DESC_FIRST_MASK 0x40000000
#define EFA_IO_RX_DESC_LAST_MASK 0x80000000
/* efa_io_cdesc_common::flags */
#define EFA_IO_CDESC_COMMON_PHASE_MASK 0x01
#define EFA_IO_CDESC_COMMON_Q_TYPE_MASK 0x06
#define EFA_IO_CDESC_COMMON_HAS_IMM_MASK 0x08
#define EFA_IO_CDESC_COMMON_OP_TYPE_MASK 0x70
#define EFA_IO_CDESC_COMMON_UNSOLICITED_MASK 0x80

#endif
