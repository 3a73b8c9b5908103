# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two processes with Mooncake's transfer engine over EFA, for scripts/lib/programs.sh.

The target registers memory and prints its engine's address and its memory's. The initiator writes to it and reads it
back. Both compare every byte, and the bytes around them. It uses no interface of softefa.
"""

import ctypes
import multiprocessing
import sys

from mooncake.engine import TransferEngine

AROUND = 4096
LENGTHS = (1, 80, 4096, 100_000, 1 << 20)
SPACE = AROUND + max(LENGTHS) + AROUND
UNTOUCHED = 0xEE


def pattern(seed, length):
    return bytes((seed * 37 + i * 11 + (i >> 8) * 7 + (i >> 16) * 13) & 0xFF for i in range(length))


def open_engine(space):
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "efa", "") != 0:
        sys.exit("the engine does not start")
    memory = ctypes.create_string_buffer(bytes([UNTOUCHED]) * space, space)
    if engine.register_memory(ctypes.addressof(memory), space) != 0:
        sys.exit("the engine refuses the memory")
    return engine, memory


def compare(what, memory, expected):
    """The bytes after AROUND are the expected ones, and all others are untouched."""
    whole = bytes([UNTOUCHED]) * AROUND + expected
    whole += bytes([UNTOUCHED]) * (len(memory.raw) - len(whole))
    if memory.raw != whole:
        index = next(i for i, (got, want) in enumerate(zip(memory.raw, whole)) if got != want)
        sys.exit(f"{what} of {len(expected)} bytes: byte {index - AROUND} is {memory.raw[index]}, not {whole[index]}")


def target(pipe):
    engine, memory = open_engine(SPACE)
    pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", ctypes.addressof(memory)))
    for seed, length in enumerate(LENGTHS):
        pipe.recv()
        compare("a write", memory, pattern(seed, length))
        reply = pattern(seed + 100, length)
        ctypes.memmove(ctypes.addressof(memory) + AROUND, reply, length)
        pipe.send(True)
        pipe.recv()
        ctypes.memset(memory, UNTOUCHED, SPACE)
        pipe.send(True)
    pipe.recv()


def initiator(pipe):
    engine, memory = open_engine(SPACE)
    peer, there = pipe.recv()
    here = ctypes.addressof(memory) + AROUND
    for seed, length in enumerate(LENGTHS):
        ctypes.memmove(here, pattern(seed, length), length)
        if engine.transfer_sync_write(peer, here, there + AROUND, length) != 0:
            sys.exit(f"a write of {length} bytes fails")
        pipe.send(True)
        pipe.recv()
        ctypes.memset(memory, UNTOUCHED, SPACE)
        if engine.transfer_sync_read(peer, here, there + AROUND, length) != 0:
            sys.exit(f"a read of {length} bytes fails")
        compare("a read", memory, pattern(seed + 100, length))
        ctypes.memset(memory, UNTOUCHED, SPACE)
        pipe.send(True)
        pipe.recv()
    print(f"Mooncake: {sum(LENGTHS)} bytes written and {sum(LENGTHS)} bytes read, compared", flush=True)
    pipe.send(True)


def main():
    ours, theirs = multiprocessing.Pipe()
    # A child that fails ends the initiator's wait, and the initiator's end stops the child.
    child = multiprocessing.get_context("fork").Process(target=target, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    initiator(ours)
    child.join()
    sys.exit(child.exitcode)


main()
