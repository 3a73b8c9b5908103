/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Formats queue entries, as efa_io_defs.h lays them out. It accesses no queue, and no memory but the bytes of an inline
 * request. An entry is built in registers; set_ring_fields() adds phase and request id when its slot is known.
 *
 * Bytes that a request does not use are zero, as in rdma-core (providers/efa/verbs.c clears each entry before it fills
 * it).
 */
#ifndef EFA_GDA_WQE_H
#define EFA_GDA_WQE_H

#include "platform.h"

#include "efa_io_defs.h"

namespace efa_gda {

/* A send-queue entry of up to 128 bytes, as little-endian words. A 64-byte entry is the first sixteen. Indices must be
 * constants, so that it stays in registers. */
struct Entry {
  uint32_t word[32];
};

/* A buffer that the adapter may access with a local key. */
struct Memory {
  uint64_t address;
  uint32_t key;
  uint32_t length;
};

/* Indices of an entry's words. The meta descriptor: bits 15:0 of the request id and control, destination and length,
 * immediate, address handle and hints, qkey, and bits 63:16 of a 64-bit request id in the upper half of word 6 and in
 * word 7. Then the data, which depends on the operation. */
constexpr int kWordControl = 0, kWordLength = 1, kWordImmediate = 2, kWordHandle = 3, kWordQkey = 4,
              kWordIdMiddle = 6, kWordIdHigh = 7, kWordData = 8, kWordRdmaLocal = 12;
constexpr uint32_t kControl1Shift = 16, kControl2Shift = 24;

static_assert(sizeof(efa_io_tx_meta_desc) == 4 * kWordData, "data follows the meta descriptor");
static_assert(sizeof(efa_io_tx_wqe) == 64 && sizeof(efa_io_tx_wqe_128) == 128, "two entry sizes");

/* An entry without data. `length`: the number of its local buffers or, of an inline request, its bytes. */
EFA_GDA_FN Entry empty_entry(uint32_t op, const efa_gda_peer &peer, uint32_t length) {
  Entry e;
  EFA_GDA_UNROLL for (int i = 0; i < 32; i++) e.word[i] = 0;
  e.word[kWordControl] =
      (op & EFA_IO_TX_META_DESC_OP_TYPE_MASK) << kControl1Shift |
      (uint32_t)EFA_IO_TX_META_DESC_META_DESC_MASK << kControl1Shift |
      (uint32_t)(EFA_IO_TX_META_DESC_FIRST_MASK | EFA_IO_TX_META_DESC_LAST_MASK | EFA_IO_TX_META_DESC_COMP_REQ_MASK)
          << kControl2Shift;
  e.word[kWordLength] = peer.qpn | length << 16;
  e.word[kWordHandle] = peer.ah;
  e.word[kWordQkey] = peer.qkey;
  return e;
}

EFA_GDA_FN void set_local(Entry &e, int word, const Memory &m) {
  e.word[word] = m.length;
  e.word[word + 1] = m.key & EFA_IO_TX_BUF_DESC_LKEY_MASK;
  e.word[word + 2] = (uint32_t)m.address;
  e.word[word + 3] = (uint32_t)(m.address >> 32);
}

EFA_GDA_FN void set_remote(Entry &e, uint64_t address, uint32_t rkey, uint32_t length) {
  e.word[kWordData] = length;
  e.word[kWordData + 1] = rkey;
  e.word[kWordData + 2] = (uint32_t)address;
  e.word[kWordData + 3] = (uint32_t)(address >> 32);
}

/* Bytes of any alignment that no other thread stores to during the call. */
struct OwnBytes {
  const uint8_t *start;
  uint32_t length;
  /* Returns bytes 8 * i to 8 * i + 7. Those past the end are 0. Called for i = 0, 1, 2, … */
  EFA_GDA_FN uint64_t next_eight(uint32_t i) {
    uint64_t eight = 0;
    EFA_GDA_UNROLL for (uint32_t b = 0; b < 8; b++) {
      if (8 * i + b < length) eight |= (uint64_t)start[8 * i + b] << (8 * b);
    }
    return eight;
  }
};

/* Bytes of any alignment that other threads, of the host too, may store to meanwhile. They are loaded relaxed, and in
 * the parts in which Buffer::write of the library's host side stores the same range: aligned words of eight bytes, and
 * single bytes before the first and after the last of these. */
class SharedBytes {
 public:
  EFA_GDA_FN SharedBytes(const uint8_t *start, uint32_t length)
      : begin_(reinterpret_cast<uint64_t>(start)), end_(begin_ + length), word_(load_word(begin_ & ~7ull)) {}
  /* As OwnBytes. */
  EFA_GDA_FN uint64_t next_eight(uint32_t i) {
    uint32_t shift = 8 * (begin_ & 7);
    uint64_t low = word_ >> shift;
    word_ = load_word((begin_ & ~7ull) + 8 * i + 8);
    return shift == 0 ? low : low | word_ << (64 - shift);
  }

 private:
  /* Returns the aligned word at `address`, without what is outside of the range. */
  EFA_GDA_FN uint64_t load_word(uint64_t address) const {
    if (address >= begin_ && address + 8 <= end_) {
      return load_system(reinterpret_cast<const volatile uint64_t *>(address));
    }
    uint64_t word = 0;
    EFA_GDA_NO_UNROLL for (uint32_t b = 0; b < 8; b++) {
      if (address + b < begin_ || address + b >= end_) continue;
      word |= (uint64_t)load_system(reinterpret_cast<const volatile uint8_t *>(address + b)) << (8 * b);
    }
    return word;
  }
  uint64_t begin_, end_;
  uint64_t word_;
};

/* Copies `bytes`, at most 4 * Words of them, to the entry's words from word `first` on, and zeroes the rest of these
 * `Words` words. */
template <int Words, class Bytes>
EFA_GDA_FN void set_inline(Entry &e, int first, Bytes bytes) {
  static_assert(Words % 2 == 0, "copied by eight bytes");
  e.word[kWordControl] |= (uint32_t)EFA_IO_TX_META_DESC_INLINE_MSG_MASK << kControl1Shift;
  EFA_GDA_UNROLL for (int i = 0; i < Words; i += 2) {
    uint64_t eight = bytes.next_eight(i / 2);
    e.word[first + i] = (uint32_t)eight;
    e.word[first + i + 1] = (uint32_t)(eight >> 32);
  }
}

/* SEND from one buffer, and from two. */
EFA_GDA_FN Entry send_entry(const efa_gda_peer &peer, const Memory &local) {
  Entry e = empty_entry(EFA_IO_SEND, peer, 1);
  set_local(e, kWordData, local);
  return e;
}
EFA_GDA_FN Entry send_entry(const efa_gda_peer &peer, const Memory &first, const Memory &second) {
  Entry e = empty_entry(EFA_IO_SEND, peer, 2);
  set_local(e, kWordData, first);
  set_local(e, kWordData + 4, second);
  return e;
}

/* SEND with the bytes in the entry: at most 32 in a 64-byte entry, 80 in a 128-byte entry. */
template <class Bytes>
EFA_GDA_FN Entry inline_send_entry_of(const efa_gda_peer &peer, Bytes bytes, uint32_t length) {
  Entry e = empty_entry(EFA_IO_SEND, peer, length);
  set_inline<EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 / 4>(e, kWordData, bytes);
  return e;
}
EFA_GDA_FN Entry inline_send_entry(const efa_gda_peer &peer, const uint8_t *bytes, uint32_t length) {
  return inline_send_entry_of(peer, OwnBytes{bytes, length}, length);
}

/* RDMA WRITE of `local` to `remote`, or RDMA READ of `remote` into `local`, of local.length bytes. */
EFA_GDA_FN Entry rdma_entry(uint32_t op, const efa_gda_peer &peer, const Memory &local, uint64_t remote,
                            uint32_t rkey) {
  Entry e = empty_entry(op, peer, 1);
  set_remote(e, remote, rkey, local.length);
  set_local(e, kWordRdmaLocal, local);
  return e;
}
EFA_GDA_FN Entry write_entry(const efa_gda_peer &peer, const Memory &local, uint64_t remote, uint32_t rkey) {
  return rdma_entry(EFA_IO_RDMA_WRITE, peer, local, remote, rkey);
}
EFA_GDA_FN Entry read_entry(const efa_gda_peer &peer, const Memory &local, uint64_t remote, uint32_t rkey) {
  return rdma_entry(EFA_IO_RDMA_READ, peer, local, remote, rkey);
}

/* RDMA WRITE with the bytes in the entry: at most 80, in a 128-byte entry, with EFA_GDA_SQ_INLINE_WRITE. */
template <class Bytes>
EFA_GDA_FN Entry inline_write_entry_of(const efa_gda_peer &peer, Bytes bytes, uint32_t length, uint64_t remote,
                                       uint32_t rkey) {
  Entry e = empty_entry(EFA_IO_RDMA_WRITE, peer, length);
  set_remote(e, remote, rkey, length);
  set_inline<EFA_IO_TX_DESC_INLINE_MAX_SIZE_128 / 4>(e, kWordRdmaLocal, bytes);
  return e;
}
EFA_GDA_FN Entry inline_write_entry(const efa_gda_peer &peer, const uint8_t *bytes, uint32_t length,
                                    uint64_t remote, uint32_t rkey) {
  return inline_write_entry_of(peer, OwnBytes{bytes, length}, length, remote, rkey);
}

/* Adds an immediate: 32 bits for the completion at the peer (SEND and RDMA WRITE). */
EFA_GDA_FN void set_immediate(Entry &e, uint32_t immediate) {
  e.word[kWordControl] |= (uint32_t)EFA_IO_TX_META_DESC_HAS_IMM_MASK << kControl1Shift;
  e.word[kWordImmediate] = immediate;
}

/* `hints`: enum efa_io_processing_hint. Sender adds those of the queue (efa_gda_queue::hints). */
EFA_GDA_FN void set_hints(Entry &e, uint32_t hints) {
  e.word[kWordHandle] |= (hints & EFA_IO_TX_META_DESC_PROCESSING_HINTS_MASK) << 16;
}

EFA_GDA_FN Quad quad_of(const Entry &e, int i) {
  return Quad{e.word[4 * i], e.word[4 * i + 1], e.word[4 * i + 2], e.word[4 * i + 3]};
}

/* The phase bit in word 0 of an entry. */
EFA_GDA_FN uint32_t phase_bit(bool phase) {
  return phase ? (uint32_t)EFA_IO_TX_META_DESC_PHASE_MASK << kControl2Shift : 0;
}

/* Adds phase and request id to `quad`, the i-th of an entry. `phase` is 0 on the first lap and flips with each. `wide`:
 * the queue has 64-bit request ids (EFA_GDA_SQ_REQ_ID_64); otherwise the low 16 bits of `id` are used. */
EFA_GDA_FN void set_ring_fields(Quad &quad, uint32_t i, bool phase, uint64_t id, bool wide) {
  static_assert(kWordControl == 0 && kWordIdMiddle == 6 && kWordIdHigh == 7, "in quads 0 and 1");
  uint32_t bits = ((uint32_t)id & 0xffff) | phase_bit(phase);
  /* Selects instead of branches, because `i` differs between the threads of a warp. */
  quad.x |= i == 0 ? bits : 0;
  if (wide) {
    quad.z = i == 1 ? (uint32_t)(id >> 16) << 16 : quad.z;
    quad.w = i == 1 ? (uint32_t)(id >> 32) : quad.w;
  }
}

/* A receive of local.length bytes; a length above 65,535 is reduced to that (post_receives() refuses it before).
 * `first` and `last`: the buffer is the first and the last of the receive. */
EFA_GDA_FN Quad receive_descriptor(const Memory &local, uint16_t id, bool first, bool last) {
  Quad d;
  d.x = (uint32_t)local.address;
  d.y = (uint32_t)(local.address >> 32);
  d.z = id | (local.length > 0xffff ? 0xffffu : local.length) << 16;
  d.w = (local.key & EFA_IO_RX_DESC_LKEY_MASK) | (first ? EFA_IO_RX_DESC_FIRST_MASK : 0u) |
        (last ? EFA_IO_RX_DESC_LAST_MASK : 0u);
  return d;
}
static_assert(sizeof(efa_io_rx_desc) == sizeof(Quad), "a receive descriptor is one store");

}  // namespace efa_gda

#endif
