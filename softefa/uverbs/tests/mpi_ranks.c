// SPDX-License-Identifier: Apache-2.0 OR MIT
// An MPI program for scripts/programs.sh. Its ranks exchange messages, reduce arrays and access each other's windows;
// each rank compares every byte that it receives and every byte around them. It uses no interface of softefa.
//
//   mpi_ranks      two or more ranks, started by the launcher of an MPI library
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 1 << 20, AROUND = 64, WORDS = 4096 };

static int rank, size;
static uint64_t compared;

// The byte at an index of the message with this number from this rank.
static unsigned char pattern(int from, int number, size_t index) {
  uint64_t x = (uint64_t)from << 48 ^ (uint64_t)number << 32 ^ index;
  x *= 0x9e3779b97f4a7c15u;
  return (unsigned char)(x >> 56);
}

static void fill(unsigned char *bytes, int from, int number, size_t length) {
  for (size_t i = 0; i < length; i++) bytes[i] = pattern(from, number, i);
}

static void fail(const char *what, int from, size_t index, uint64_t got, uint64_t expected) {
  fprintf(stderr, "rank %d: %s of rank %d: index %zu holds %#llx instead of %#llx\n", rank, what, from, index,
          (unsigned long long)got, (unsigned long long)expected);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// AROUND bytes before the message and behind it keep the value 0xee.
static void expect(const char *what, const unsigned char *buffer, int from, int number, size_t length) {
  for (size_t i = 0; i < length; i++) {
    unsigned char expected = pattern(from, number, i);
    if (buffer[AROUND + i] != expected) fail(what, from, i, buffer[AROUND + i], expected);
  }
  for (size_t i = 0; i < AROUND; i++) {
    if (buffer[i] != 0xee) fail("memory before a message", from, i, buffer[i], 0xee);
    if (buffer[AROUND + length + i] != 0xee) fail("memory behind a message", from, i, buffer[AROUND + length + i], 0xee);
  }
  compared += length;
}

// Every rank sends a message of each length to every other rank, and receives theirs at the same time.
static void messages(void) {
  static const int lengths[] = {1, 80, 4096, 8929, 100000, LONGEST};
  MPI_Request *requests = malloc(2 * (size_t)size * sizeof *requests);
  unsigned char **in = malloc((size_t)size * sizeof *in), **out = malloc((size_t)size * sizeof *out);
  for (int peer = 0; peer < size; peer++) {
    in[peer] = malloc(LONGEST + 2 * AROUND);
    out[peer] = malloc(LONGEST);
  }
  for (int number = 0; number < (int)(sizeof lengths / sizeof *lengths); number++) {
    int length = lengths[number], count = 0;
    for (int peer = 0; peer < size; peer++) {
      if (peer == rank) continue;
      memset(in[peer], 0xee, LONGEST + 2 * AROUND);
      MPI_Irecv(in[peer] + AROUND, length, MPI_BYTE, peer, number, MPI_COMM_WORLD, &requests[count++]);
    }
    for (int peer = 0; peer < size; peer++) {
      if (peer == rank) continue;
      fill(out[peer], rank, number * size + peer, (size_t)length);
      MPI_Isend(out[peer], length, MPI_BYTE, peer, number, MPI_COMM_WORLD, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    for (int peer = 0; peer < size; peer++)
      if (peer != rank) expect("a message", in[peer], peer, number * size + rank, (size_t)length);
  }
  for (int peer = 0; peer < size; peer++) {
    free(in[peer]);
    free(out[peer]);
  }
  free(in);
  free(out);
  free(requests);
}

static void expect_words(const char *what, const int64_t *words, int from, int64_t factor, int64_t added) {
  for (size_t i = 0; i < WORDS; i++) {
    int64_t expected = (int64_t)i * factor + added;
    if (words[i] != expected) fail(what, from, i, (uint64_t)words[i], (uint64_t)expected);
  }
  compared += WORDS * sizeof *words;
}

static void reductions(void) {
  static int64_t in[WORDS], out[WORDS];
  int64_t ranks = (int64_t)size * (size - 1) / 2;
  for (int round = 0; round < 10; round++) {
    for (size_t i = 0; i < WORDS; i++) in[i] = (int64_t)i * (rank + 1) + round;
    memset(out, 0xee, sizeof out);
    MPI_Allreduce(in, out, WORDS, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    expect_words("a sum", out, 0, ranks + size, (int64_t)round * size);
  }
}

// Each rank puts to its right neighbour's window and gets from its left neighbour's.
static void windows(void) {
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  unsigned char *memory = malloc(LONGEST + 2 * AROUND), *local = malloc(LONGEST + 2 * AROUND);
  // In memory of this process: ranks of one host would share memory that MPI allocates, and use no adapter.
  MPI_Win window;
  MPI_Win_create(memory, LONGEST + 2 * AROUND, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  for (int number = 100; number < 110; number++) {
    size_t length = number % 2 ? LONGEST : 4096 + (size_t)number;
    memset(memory, 0xee, LONGEST + 2 * AROUND);
    fill(local, rank, number, length);
    MPI_Win_fence(0, window);
    MPI_Put(local, (int)length, MPI_BYTE, right, AROUND, (int)length, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    expect("a put", memory, left, number, length);
    memset(local, 0xee, LONGEST + 2 * AROUND);
    MPI_Win_fence(0, window);
    MPI_Get(local + AROUND, (int)length, MPI_BYTE, left, AROUND, (int)length, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    expect("a get", local, (left + size - 1) % size, number, length);
    MPI_Win_fence(0, window);
  }
  MPI_Win_free(&window);
  free(memory);
  free(local);
}

// All ranks add to the window of rank 0 at the same time, with accumulate, and count with fetch_and_op.
static void accumulates(void) {
  static int64_t addend[WORDS], words[WORDS + 1];
  int64_t one = 1, before, last = -1;
  const int rounds = 10;
  MPI_Win window;
  MPI_Win_create(words, sizeof words, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  for (size_t i = 0; i < WORDS; i++) addend[i] = (int64_t)i * (rank + 1) + 1;
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(0, window);
  for (int round = 0; round < rounds; round++) {
    MPI_Accumulate(addend, WORDS, MPI_INT64_T, 0, 0, WORDS, MPI_INT64_T, MPI_SUM, window);
    MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, WORDS, MPI_SUM, window);
    MPI_Win_flush(0, window);
    if (before <= last || before >= (int64_t)rounds * size) fail("a counter", 0, 0, (uint64_t)before, (uint64_t)last + 1);
    last = before;
  }
  MPI_Win_unlock_all(window);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    int64_t ranks = (int64_t)size * (size - 1) / 2;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    expect_words("accumulated words", words, 0, (ranks + size) * rounds, (int64_t)size * rounds);
    if (words[WORDS] != (int64_t)rounds * size)
      fail("the counter", 0, WORDS, (uint64_t)words[WORDS], (uint64_t)rounds * (uint64_t)size);
    MPI_Win_unlock(0, window);
  }
  MPI_Win_free(&window);
}

int main(int argc, char **argv) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  uint64_t total;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  messages();
  reductions();
  windows();
  accumulates();
  MPI_Reduce(&compared, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Get_library_version(version, &length);
  version[strcspn(version, "\n,")] = 0;
  if (rank == 0) printf("%s: %d ranks compared %llu bytes\n", version, size, (unsigned long long)total);
  MPI_Finalize();
  return 0;
}
