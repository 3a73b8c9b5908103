# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prints the table of scripts/footprint.sh.

Arguments: files without their ending. FILE.cubin has one kernel, FILE.log the report of `ptxas -v`. Registers, stack and
code come from the cubin; spills only from the report.
"""

import re
import struct
import sys

# Attributes of a kernel in the section .nv.info.
REGISTERS, STACK = 0x2F, 0x12


class Cubin:
    """An ELF file of kernels."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        (table,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count, names = struct.unpack_from("<HHH", self.data, 0x3A)
        raw = [struct.unpack_from("<IIQQQQ", self.data, table + i * size) for i in range(count)]
        self.sections = {self.text(raw[names][4] + r[0]): (r[4], r[5]) for r in raw}

    def text(self, at):
        return self.data[at : self.data.index(b"\0", at)].decode()

    def symbols(self):
        offset, size = self.sections[".symtab"]
        names, _ = self.sections[".strtab"]
        return [
            self.text(names + struct.unpack_from("<I", self.data, at)[0]) for at in range(offset, offset + size, 24)
        ]

    def attributes(self):
        """Returns {kernel: {attribute: value}}."""
        symbols, found = self.symbols(), {}
        at, size = self.sections[".nv.info"]
        end = at + size
        while at < end:
            form, attribute, length = struct.unpack_from("<BBH", self.data, at)
            if form == 4 and length == 8:
                symbol, value = struct.unpack_from("<II", self.data, at + 4)
                found.setdefault(symbols[symbol], {})[attribute] = value
            at += 4 + (length if form == 4 else 0)
        return found

    def kernels(self):
        return {name[6:]: size for name, (_, size) in self.sections.items() if name.startswith(".text.")}


def spills(log):
    """Returns the bytes of spill stores and loads of the kernel, and those of the functions that it calls."""
    kernel, function, of_kernel, of_functions = None, None, 0, 0
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            kernel = next(iter(re.findall(r"Compiling entry function '(\w+)'", line)), kernel)
            function = next(iter(re.findall(r"Function properties for (\w+)", line)), function)
            bytes_of = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
            if bytes_of and function == kernel:
                of_kernel += sum(map(int, bytes_of.groups()))
            elif bytes_of:
                of_functions += sum(map(int, bytes_of.groups()))
    return of_kernel, of_functions


print("| GPU | group | queue | entry | registers | stack bytes | spill bytes | in functions | code bytes |")
print("|---|---|---|---|---|---|---|---|---|")
for file in sys.argv[1:]:
    architecture = file.rsplit(".", 1)[1]
    cubin, (spilled, in_functions) = Cubin(file + ".cubin"), spills(file + ".log")
    attributes = cubin.attributes()
    ((kernel, code),) = cubin.kernels().items()
    parts = ["NCCL's put", "shared", ""] if kernel.startswith("nccl") else kernel.split("_")
    entry = {
        "write": "64 or 128 bytes",
        "own": "64 or 128 bytes, wait_own",
        "inline": "inline, 128 bytes",
        "": "64 or 128 bytes",
    }[parts[2]]
    of = attributes.get(kernel, {})
    print(f"| {architecture} | {parts[0]} | {parts[1]} | {entry} | {of.get(REGISTERS)} | {of.get(STACK)} | "
          f"{spilled} | {in_functions} | {code:,} |")
