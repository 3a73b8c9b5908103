#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares third_party/efa_gda/*.h with upstream copies of the same interfaces.

Both sides are compiled. Layouts (sizes, members, offsets, types, signatures of
function pointers) come from the debug information, constants from a program that
prints them, so that nothing here depends on how either side spells its header.

Upstream releases differ in age, and these interfaces grow at their tail:
an older upstream may lack the tail of what is stated here, a newer one may have
appended to it. Both are printed as notes; everything else is a difference.

Not for behaviour: what a call does, or which release has it, is not compared.
Exit status: 0 no difference, 1 differences, 2 something could not be compared.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

from layouts import CannotCompare, DebugInfo

LIBFABRIC_HEADERS = (
    "rdma/fabric.h",
    "rdma/fi_domain.h",
    "rdma/fi_eq.h",
    "rdma/fi_endpoint.h",
    "rdma/fi_cm.h",
    "rdma/fi_rma.h",
    "rdma/fi_errno.h",
    "rdma/providers/fi_prov.h",
)
# These state the API version of a header, so they differ by design.
VERSION_NAMES = {"FI_MAJOR_VERSION", "FI_MINOR_VERSION"}
# Merged into 2.7 last; libfabric's main branch of August 2026 already says 2.7 and lacks them.
LATE_IN_2_7 = {"FI_EFA_MR_RELAXED_ORDERING"}
# Parts of rdma-core that this project states besides the descriptors: our headers, upstream's, and our newest name. An
# upstream without that name is older.
RDMA_CORE_PARTS = {
    "verbs": (
        ("verbs_abi.h", "efadv.h"),
        ("infiniband/verbs.h", "infiniband/efadv.h"),
        "efadv_comp_cntr_init_attr",
    ),
    "kernel interface": (
        ("uverbs_abi.h", "efa_abi.h"),
        ("infiniband/verbs.h", "rdma/ib_user_verbs.h", "rdma/ib_user_ioctl_cmds.h",
         "rdma/ib_user_ioctl_verbs.h", "rdma/rdma_user_ioctl_cmds.h", "rdma/efa-abi.h"),
        "EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID",
    ),
}
# rdma-core takes these from its own utility headers.
IO_PRELUDE = """#include <stdint.h>
#define BIT(n) (1u << (n))
#define GENMASK(h, l) ((~0u >> (31 - (h))) & (~0u << (l)))
"""


# ---- one side of a comparison ------------------------------------------------


class Side:
    """A set of headers, compiled."""

    def __init__(self, compiler, source, flags, scratch, label):
        self.source, self.flags, self.scratch, self.compiler = source, flags, scratch, compiler
        file = self._write("layout.c", source)
        obj = os.path.join(scratch, "layout.o")
        self._run([compiler, "-w", "-c", "-gdwarf-4", "-fno-eliminate-unused-debug-types", *flags, file, "-o", obj],
                  label)
        info = self._run(["readelf", "--wide", "--debug-dump=info", obj], label)
        debug = DebugInfo(info)
        self.structs, self.enumerators = debug.structs, debug.enumerators
        macros = self._run([compiler, "-w", "-E", "-dM", *flags, file], label)
        self.macros = set(re.findall(r"^#define (\w+)", macros, flags=re.M))
        text = self._run([compiler, "-w", "-E", "-P", *flags, file], label)
        self.statics = set(re.findall(r"\bstatic const \w+ (\w+) =", text))
        self.names = self.enumerators | self.macros | self.statics

    def _write(self, name, text):
        path = os.path.join(self.scratch, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    @staticmethod
    def _run(command, label):
        environment = dict(os.environ, LC_ALL="C")
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode != 0:
            raise CannotCompare(f"{label}: `{command[0]}` failed:\n{done.stderr.strip()[:2000]}")
        return done.stdout

    def values(self, expressions, label):
        """The value of each expression according to the compiler: a number or a string."""
        lines = "\n".join(f'  SHOW("{e}", ({e}));' for e in expressions)
        program = f"""{self.source}
#include <stdio.h>
static void number_of(const char *name, unsigned long long value) {{ printf("%s\\t0x%llx\\n", name, value); }}
static void text_of(const char *name, const char *value) {{ printf("%s\\t\\"%s\\"\\n", name, value); }}
#define SHOW(name, value) _Generic((value), char *: text_of, const char *: text_of, default: number_of)(name, value)
int main(void) {{
{lines}
  return 0;
}}
"""
        file = self._write("values.c", program)
        binary = os.path.join(self.scratch, "values")
        self._run([self.compiler, "-w", *self.flags, file, "-o", binary], label)
        return dict(line.split("\t", 1) for line in self._run([binary], label).splitlines())


def stated_constants(files, side, prefixes):
    """Expressions for every constant that our headers define."""
    found = []
    for path in files:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for name, arguments in re.findall(r"^#define (\w+)(\([^)]*\))?[ \t]+\S", text, flags=re.M):
            count = arguments.count(",") + 1 if arguments else 0
            found.append(name + (f"({', '.join(str(2 * i + 3) for i in range(count))})" if count else ""))
        found += re.findall(r"^static const \w+ (\w+)", text, flags=re.M)
    found += sorted(side.enumerators)
    return [e for e in dict.fromkeys(found) if e.startswith(prefixes) and e not in VERSION_NAMES]


# ---- comparing ----------------------------------------------------------------


class Report:
    """Differences, notes and counts of one group of headers."""

    def __init__(self):
        self.differences, self.notes = [], []
        self.structs = self.members = self.constants = 0


def compare_struct(name, ours, theirs, age, fixed_size, report):
    """`age` is the age of the upstream: "older", "same" or "newer". See the module's first lines."""
    report.structs += 1
    grown = shrunk = False
    for path, (offset, size, text) in ours.members.items():
        report.members += 1
        full = f"{name}.{path}"
        if age == "older" and "reserved" in path and all(map(theirs.is_free, range(offset, offset + size))):
            shrunk = shrunk or offset >= theirs.size
        elif path in theirs.members:
            other_offset, _other_size, other = theirs.members[path]
            if offset != other_offset:
                report.differences.append(f"{full}: offset {offset} here, {other_offset} upstream")
            if text != other and not (text == "any function" and other.startswith("function")):
                report.differences.append(f"{full}: {text} here, {other} upstream")
        elif theirs.has_leaf(path, (offset, size, text)):
            pass  # an unnamed structure more, or less: the names and the bytes are the same
        elif theirs.is_free(offset) and age == "older":
            shrunk = True
            report.notes.append(f"{full}: not in this older upstream")
        elif age == "older" and ours.shares_union(offset, theirs.members):
            report.notes.append(f"{full}: not an alternative of the union in this older upstream")
        else:
            there = theirs.at(offset)
            holds = f"; offset {offset} is {there} there" if there else ""
            report.differences.append(f"{full}: not upstream{holds}")
    # A table may end after the last operation that this project uses; 2.2 had the GDA ops in the domain's table.
    table = name.startswith(("fi_ops", "fid_")) or (age == "older" and name.startswith("fi_efa_ops"))
    for path, (offset, size, text) in theirs.members.items():
        # A flexible array at the end has size zero.
        if path in ours.members or size == 0 or ours.has_leaf(path, (offset, size, text)):
            continue
        full = f"{name}.{path}"
        if age == "older" and "reserved" in path:
            continue
        if path in theirs.union_members and theirs.shares_union(offset, ours.members):
            report.notes.append(f"{full}: an alternative of a union, not stated here")
        elif ours.is_free(offset) and not fixed_size and (
                age == "newer" or ours.at(offset) or (offset >= ours.size and table)):
            grown = True
            report.notes.append(f"{full}: upstream at offset {offset}, not stated here")
        else:
            report.differences.append(f"{full}: upstream at offset {offset}, not stated here")
    growth_explained = (theirs.size < ours.size and shrunk) or (theirs.size > ours.size and grown)
    if ours.size != theirs.size and not growth_explained:
        report.differences.append(f"sizeof {name}: {ours.size} here, {theirs.size} upstream")


def compare(ours, theirs, expressions, age, complete, fixed_size, prefixes, label):
    """`complete`: whether all of upstream's headers are present, so that a missing name is a difference."""
    report = Report()
    absent_is_note = age == "older" or not complete
    for name, struct in sorted(ours.structs.items()):
        if not name.startswith(prefixes):
            continue
        if name in theirs.structs:
            compare_struct(name, struct, theirs.structs[name], age, fixed_size, report)
        elif absent_is_note:
            report.notes.append(f"struct {name}: not in this upstream")
        else:
            report.differences.append(f"struct {name}: not upstream")
    shared = {}
    for expression in expressions:
        name = expression.split("(")[0]
        # The kernel's names for constants that userspace calls IBV_.
        alias = re.sub("^IB_", "IBV_", expression)
        if name in theirs.names:
            shared[expression] = expression
        elif alias in theirs.names:
            shared[expression] = alias
        elif absent_is_note or (age == "same" and name in LATE_IN_2_7):
            report.notes.append(f"{name}: not in this upstream")
        else:
            report.differences.append(f"{name}: not upstream")
    mine, other = ours.values(shared, "third_party/efa_gda"), theirs.values(shared.values(), label)
    report.constants = len(shared)
    for expression, upstream in shared.items():
        if mine[expression] != other[upstream]:
            report.differences.append(f"{expression}: {mine[expression]} here, {other[upstream]} upstream")
    return report


# ---- the groups of headers ------------------------------------------------------


def io_group(compiler, ours_dir, upstream, scratch):
    prefixes = ("efa_io", "EFA_IO")
    file = os.path.join(ours_dir, "efa_io_defs.h")
    ours = Side(compiler, f'{IO_PRELUDE}#include "{file}"\n', [], subdir(scratch, "io_ours"), file)
    theirs = Side(compiler, f'{IO_PRELUDE}#include "{upstream}"\n', [], subdir(scratch, "io_theirs"), upstream)
    # 64-bit request ids, rdma-core 65: the newest interface that our header states.
    whole = "efa_io_req_id_ex" in theirs.structs
    expressions = stated_constants([file], ours, prefixes)
    return compare(ours, theirs, expressions, "same" if whole else "older", True, True, prefixes, upstream)


def rdma_core_group(compiler, ours_dir, tree, part, scratch):
    """One of RDMA_CORE_PARTS, from a source tree of rdma-core; None if we do not state it."""
    ours_names, upstream_names, newest = RDMA_CORE_PARTS[part]
    files = [os.path.join(ours_dir, name) for name in ours_names]
    if not all(map(os.path.isfile, files)):
        return None
    include = rdma_core_include(tree, subdir(scratch, "include"))
    source = "".join(f'#include "{file}"\n' for file in files)
    ours = Side(compiler, source, [], subdir(scratch, "ours"), files[0])
    label = f"{tree} ({part})"
    source = "".join(f"#include <{name}>\n" for name in upstream_names)
    theirs = Side(compiler, source, [f"-I{include}"], subdir(scratch, "theirs"), label)
    stated = set()
    for file in files:
        with open(file, encoding="utf-8") as text:
            stated |= set(re.findall(r"^(?:struct|union) (\w+) \{", text.read(), flags=re.M))
    # Our additions (tables of calls, names with our prefix) have no counterpart.
    ours.structs = {n: s for n, s in ours.structs.items() if n in stated and not n.startswith("efa_gda_")}
    prefixes = ("ib", "IB", "efa", "EFA", "UVERBS", "uverbs", "RDMA", "rdma")
    expressions = [e for e in stated_constants(files, ours, prefixes) if not e.startswith("EFA_GDA_")]
    age = "same" if newest in theirs.names or newest in theirs.structs else "older"
    return compare(ours, theirs, expressions, age, True, False, prefixes, label)


def rdma_core_include(tree, place):
    """The include directory that rdma-core's build would make: links, by installed name."""
    for folder, sources in {
        "infiniband": ("libibverbs", "providers/efa", "kernel-headers/rdma"),
        "rdma": ("kernel-headers/rdma",),
    }.items():
        os.makedirs(os.path.join(place, folder), exist_ok=True)
        for source in sources:
            path = os.path.join(tree, source)
            for name in os.listdir(path):
                taken = os.path.exists(os.path.join(place, folder, name))
                if name.endswith(".h") and not taken and (source != "providers/efa" or name == "efadv.h"):
                    os.symlink(os.path.join(path, name), os.path.join(place, folder, name))
    return place


def libfabric_group(compiler, ours_dir, include, ext, scratch):
    """`include`: a directory with rdma/fabric.h, or None; `ext`: fi_ext_efa.h, or None."""
    # Without fabric.h only the extension comes from upstream; comparing the rest would compare it with itself.
    prefixes = ("fi", "FI_") if include else ("fi_efa", "FI_EFA")
    files = [os.path.join(ours_dir, name) for name in ("libfabric_abi.h", "fi_ext_efa.h")]
    ours = Side(compiler, f'#include "{files[1]}"\n', ["-D_GNU_SOURCE"], subdir(scratch, "fi_ours"), files[1])
    label = include or ext
    flags, headers = ["-D_GNU_SOURCE"], []
    if include:
        flags.append(f"-I{include}")
        headers = [f"<{h}>" for h in LIBFABRIC_HEADERS if os.path.isfile(os.path.join(include, h))]
    else:
        # fi_ext_efa.h alone: our headers replace the ones that it includes.
        stub = subdir(scratch, "stub")
        os.makedirs(os.path.join(stub, "rdma"), exist_ok=True)
        for header in LIBFABRIC_HEADERS[:4]:
            with open(os.path.join(stub, header), "w", encoding="utf-8") as out:
                out.write(f'#include "{files[0]}"\n')
        flags.append(f"-I{stub}")
    if ext:
        headers.append(f'"{ext}"')
    complete = bool(ext) and (not include or len(headers) == len(LIBFABRIC_HEADERS) + 1)
    source = "".join(f"#include {h}\n" for h in headers)
    theirs = Side(compiler, source, flags, subdir(scratch, "fi_theirs"), label)
    expressions = stated_constants(files, ours, prefixes)
    age = libfabric_age(theirs, label, bool(include))
    return compare(ours, theirs, expressions, age, complete, False, prefixes, label)


def libfabric_age(theirs, label, has_version):
    """Age relative to API 2.7; without fabric.h, the names in fi_ext_efa.h determine it."""
    if not has_version:
        return "same" if "FI_EFA_WQ_CAPS_64_BIT_REQ_ID" in theirs.names else "older"
    values = theirs.values(sorted(VERSION_NAMES), label)
    version = (int(values["FI_MAJOR_VERSION"], 16), int(values["FI_MINOR_VERSION"], 16))
    return "older" if version < (2, 7) else "same" if version == (2, 7) else "newer"


def subdir(scratch, name):
    path = os.path.join(scratch, name)
    os.makedirs(path, exist_ok=True)
    return path


def find_libfabric(start):
    """(include directory, fi_ext_efa.h) for a directory, or for a header in a libfabric tree."""
    if os.path.isdir(start):
        candidates = [start, os.path.join(start, "include"), os.path.join(start, "usr/include")]
        ext = None
    else:
        # The tree that contains the header, but not this machine's installed headers.
        parents = [os.path.dirname(start)]
        while parents[-1] != os.path.dirname(parents[-1]):
            parents.append(os.path.dirname(parents[-1]))
        candidates = [c for parent in parents[:-1] for c in (parent, os.path.join(parent, "include"))]
        ext = start if os.path.basename(start) == "fi_ext_efa.h" else None
    include = next((c for c in candidates if os.path.isfile(os.path.join(c, "rdma/fabric.h"))), None)
    if include and not ext:
        names = [os.path.normpath(os.path.join(include, name))
                 for name in ("rdma/fi_ext_efa.h", "../prov/efa/src/fi_ext_efa.h", "fi_ext_efa.h")]
        ext = next((name for name in names if os.path.isfile(name)), None)
    return include, ext


def classify(argument):
    """Yields ("io", file), (part of rdma-core, tree) and ("libfabric", (include, ext)) for one argument."""
    path = os.path.abspath(argument)
    if os.path.isdir(path):
        found = False
        for candidate in ("efa_io_defs.h", "providers/efa/efa_io_defs.h"):
            file = os.path.join(path, candidate)
            if os.path.isfile(file):
                found = True
                yield "io", file
        if os.path.isfile(os.path.join(path, "libibverbs/verbs.h")):
            found = True
            for part in RDMA_CORE_PARTS:
                yield part, path
        include, ext = find_libfabric(path)
        if not include and os.path.isfile(os.path.join(path, "fi_ext_efa.h")):
            ext = os.path.join(path, "fi_ext_efa.h")
        if include or ext:
            found = True
            yield "libfabric", (include, ext)
        if not found:
            raise CannotCompare(f"{argument}: holds neither efa_io_defs.h, nor rdma/fabric.h, nor fi_ext_efa.h")
        return
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        raise CannotCompare(f"{argument}: {error.strerror}; give a header of rdma-core or libfabric") from error
    if "efa_io_tx_meta_desc" in text:
        yield "io", path
    elif "fi_efa_" in text:
        include, ext = find_libfabric(path)
        yield "libfabric", (include, ext or path)
    else:
        include, ext = find_libfabric(path)
        if not include:
            raise CannotCompare(
                f"{argument}: not a header this tool knows; give efa_io_defs.h, fi_ext_efa.h, "
                "or the directory that holds libfabric's rdma/fabric.h")
        yield "libfabric", (include, ext)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", required=True, help="directory of this project's headers")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    parser.add_argument("upstream", nargs="+", help="upstream headers, or directories that hold them")
    options = parser.parse_args()
    ours_dir = os.path.abspath(options.ours)
    failed = False
    with tempfile.TemporaryDirectory(prefix="efa-gda-interfaces.") as scratch:
        try:
            groups = dict.fromkeys(g for argument in options.upstream for g in classify(argument))
            for index, (kind, target) in enumerate(groups):
                place = subdir(scratch, str(index))
                if kind == "io":
                    name, report = target, io_group(options.cc, ours_dir, target, place)
                elif kind in RDMA_CORE_PARTS:
                    name, report = f"{target} ({kind})", rdma_core_group(options.cc, ours_dir, target, kind, place)
                    if report is None:
                        continue
                else:
                    name = target[0] or target[1]
                    report = libfabric_group(options.cc, ours_dir, *target, place)
                for line in report.notes:
                    print(f"note: {line}")
                for line in report.differences:
                    print(f"DIFFERENCE: {line}")
                print(f"{name}: {report.structs} structures, {report.members} members, {report.constants} constants "
                      f"compared; {len(report.differences)} differences, {len(report.notes)} notes")
                if report.structs + report.constants == 0:
                    raise CannotCompare(f"{name}: nothing in it could be compared")
                failed = failed or bool(report.differences)
        except CannotCompare as error:
            print(f"cannot compare: {error}", file=sys.stderr)
            return 2
        except (OSError, subprocess.SubprocessError) as error:
            print(f"cannot compare: {error}; the tool needs a C compiler and readelf (Debian: gcc binutils)",
                  file=sys.stderr)
            return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
