# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Two processes with NIXL agents over EFA, for scripts/lib/programs.sh.

    nixl_transfer.py BACKEND        LIBFABRIC or UCX

The target registers memory and passes its agent's metadata and the description of its memory through a pipe. The
initiator writes to it and reads it back. Both compare every byte, and the bytes around them. It uses no interface of
softefa.
"""

import ctypes
import multiprocessing
import sys
import time

from nixl_cu12._api import nixl_agent, nixl_agent_config

BACKEND = sys.argv[1]
AROUND = 4096
LENGTHS = (1, 80, 4096, 100_000, 1 << 20)
SPACE = AROUND + max(LENGTHS) + AROUND
UNTOUCHED = 0xEE
# Of a transfer that never ends.
LIMIT_S = 120


def pattern(seed, length):
    return bytes((seed * 37 + i * 11 + (i >> 8) * 7 + (i >> 16) * 13) & 0xFF for i in range(length))


def open_agent(name):
    # The wheel has a libnuma of its own, and Debian's libfabric loads Debian's: without this, each calls functions of the
    # other before that is initialized, and the process exits.
    ctypes.CDLL("libnuma.so.1", ctypes.RTLD_GLOBAL)
    agent = nixl_agent(name, nixl_agent_config(backends=[BACKEND]))
    memory = ctypes.create_string_buffer(bytes([UNTOUCHED]) * SPACE, SPACE)
    agent.register_memory([(ctypes.addressof(memory), SPACE, 0, "")], mem_type="DRAM", backends=[BACKEND])
    return agent, memory


def compare(what, memory, expected):
    """The bytes after AROUND are the expected ones, and all others are untouched."""
    whole = bytes([UNTOUCHED]) * AROUND + expected
    whole += bytes([UNTOUCHED]) * (SPACE - len(whole))
    if memory.raw != whole:
        index = next(i for i, (got, want) in enumerate(zip(memory.raw, whole)) if got != want)
        sys.exit(f"{what} of {len(expected)} bytes: byte {index - AROUND} is {memory.raw[index]}, not {whole[index]}")


def await_notification(agent, peer, text):
    deadline = time.monotonic() + LIMIT_S
    while not agent.check_remote_xfer_done(peer, text):
        if time.monotonic() > deadline:
            sys.exit(f"no notification {text} of {peer}")


def transfer(agent, peer, operation, here, there, length, text):
    mine = agent.get_xfer_descs([(here, length, 0)], mem_type="DRAM")
    theirs = agent.get_xfer_descs([(there, length, 0)], mem_type="DRAM")
    handle = agent.initialize_xfer(operation, mine, theirs, peer, text)
    state = agent.transfer(handle)
    deadline = time.monotonic() + LIMIT_S
    while state == "PROC" and time.monotonic() < deadline:
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        sys.exit(f"{operation} of {length} bytes: {state}")
    agent.release_xfer_handle(handle)


def target(pipe):
    agent, memory = open_agent("target")
    pipe.send((agent.get_agent_metadata(), ctypes.addressof(memory)))
    agent.add_remote_agent(pipe.recv())
    for seed, length in enumerate(LENGTHS):
        await_notification(agent, "initiator", f"written {seed}".encode())
        compare("a write", memory, pattern(seed, length))
        ctypes.memmove(ctypes.addressof(memory) + AROUND, pattern(seed + 100, length), length)
        pipe.send(True)
        await_notification(agent, "initiator", f"read {seed}".encode())
        ctypes.memset(memory, UNTOUCHED, SPACE)
        pipe.send(True)
    pipe.recv()


def initiator(pipe):
    agent, memory = open_agent("initiator")
    metadata, there = pipe.recv()
    pipe.send(agent.get_agent_metadata())
    peer = agent.add_remote_agent(metadata)
    here = ctypes.addressof(memory) + AROUND
    for seed, length in enumerate(LENGTHS):
        ctypes.memmove(here, pattern(seed, length), length)
        transfer(agent, peer, "WRITE", here, there + AROUND, length, f"written {seed}".encode())
        pipe.recv()
        ctypes.memset(memory, UNTOUCHED, SPACE)
        transfer(agent, peer, "READ", here, there + AROUND, length, f"read {seed}".encode())
        compare("a read", memory, pattern(seed + 100, length))
        ctypes.memset(memory, UNTOUCHED, SPACE)
        pipe.recv()
    print(f"NIXL over {BACKEND}: {sum(LENGTHS)} bytes written and {sum(LENGTHS)} bytes read, compared", flush=True)
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
