#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Compares third_party/efa_gda/*.h with upstream copies of the same interfaces.

    interfaces.py OURS UPSTREAM...    UPSTREAM: efa_io_defs.h, a source tree of rdma-core or libfabric, or a directory
                                      that holds libfabric's rdma/fabric.h

One C++ program is compiled with our headers and with upstream's. It prints the size of each structure that we state,
the offset and type of each member, with the signature of a pointer to a function, and the value of each constant. So
the comparison does not depend on how either side spells its header. Types are compared by kind and size, without the
sign of an integer. What a call does is not compared, nor are members that we state as reserved, except in descriptors,
where a new member of upstream takes reserved bytes: there each member of upstream must be one of ours.

An upstream that lacks the newest name of a group is older: it may lack other names, and the tails of structures.
libfabric's own structures may be longer upstream. Both are printed as notes; everything else is a difference.

Exit status: 0 no difference, 1 differences, 2 something could not be compared.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# A group: our headers, upstream's, and the newest name.
GROUPS = {
    "descriptors": (["efa_io_defs.h"], ["efa_io_defs.h"], "efa_io_req_id_ex"),
    "verbs": (
        ["verbs_abi.h", "efadv.h"], ["infiniband/verbs.h", "infiniband/efadv.h"], "efadv_comp_cntr_init_attr"),
    "kernel interface": (
        ["uverbs_abi.h", "efa_abi.h"],
        ["infiniband/verbs.h", "rdma/ib_user_verbs.h", "rdma/ib_user_ioctl_cmds.h", "rdma/ib_user_ioctl_verbs.h",
         "rdma/rdma_user_ioctl_cmds.h", "rdma/efa-abi.h"],
        "EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID"),
    "libfabric": (
        ["libfabric_abi.h", "fi_ext_efa.h"],
        ["rdma/fabric.h", "rdma/fi_domain.h", "rdma/fi_eq.h", "rdma/fi_endpoint.h", "rdma/fi_cm.h", "rdma/fi_rma.h",
         "rdma/fi_errno.h", "rdma/providers/fi_prov.h", "fi_ext_efa.h"],
        # Late in 2.7: libfabric's main branch had that version before this name.
        "FI_EFA_MR_RELAXED_ORDERING"),
}
# Versions differ by design; names with our prefix have no counterpart.
NOT_COMPARED = re.compile("FI_(MAJOR|MINOR)_VERSION$|_H$|EFA_GDA_|efa_gda_")
# Upstream has these members in a structure without a name of its own.
INNER = {"ib_uverbs_odp_caps": "per_transport_caps."}
MAY_GROW = re.compile("fid?_(?!efa_)")
# A body in braces, with two levels of braces inside.
BODY = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"

# BIT and GENMASK are of rdma-core's own utility headers.
PRELUDE = """#include <cstddef>
#include <cstdint>
#define BIT(n) (1u << (n))
#define GENMASK(h, l) ((~0u >> (31 - (h))) & (~0u << (l)))
"""
PROGRAM = """
#include <cstdio>
#include <string>
#include <type_traits>
template <class T> struct Text {
  static std::string get() {
    if constexpr (std::is_void_v<T>) return "void";
    else if constexpr (std::is_same_v<T, bool>) return "bool";
    else if constexpr (std::is_class_v<T> || std::is_union_v<T>) return "structure of " + std::to_string(sizeof(T));
    else return "int" + std::to_string(8 * sizeof(T));
  }
};
template <class T> struct Text<T *> { static std::string get() { return "pointer"; } };
template <class T> struct Text<T[]> { static std::string get() { return Text<T>::get() + "[]"; } };
template <class T, size_t N> struct Text<T[N]> {
  static std::string get() { return Text<T>::get() + "[" + std::to_string(N) + "]"; }
};
template <class R, class... A> struct Text<R (*)(A...)> {
  static std::string get() {
    return "function(" + ((Text<A>::get() + ", ") + ... + std::string()) + ") to " + Text<R>::get();
  }
};
template <class T> void value(const char *name, T v) {
  if constexpr (std::is_pointer_v<T>) printf("%s\\t\\"%s\\"\\n", name, (const char *)v);
  else printf("%s\\t0x%llx\\n", name, (unsigned long long)v);
}
#define MEMBER(NAME, M) if constexpr (requires(T t) { t.M; }) printf(NAME "\\toffset %zu, %s\\n", offsetof(T, M), \\
  Text<std::remove_cv_t<decltype(static_cast<T *>(nullptr)->M)>>::get().c_str());
"""


class CannotCompare(Exception):
    """A side that does not compile, or is none; the message says why."""


def members(body, prefix=""):
    """The paths of the members that a structure declares."""
    while match := re.match(rf"\s*(?:(?:struct|union)\s*{BODY}([^;]*)|([^;{{}}]+));", body):
        body = body[match.end() :]
        inner, name, plain = match.groups()
        if inner is not None:
            yield from members(inner, f"{prefix}{name.strip()}." if name.strip() else prefix)
        else:
            found = re.findall(r"\(\*(\w+)\)", plain) or re.findall(r"(\w+)(?:\[[^]]*\])*\s*(?:,|$)", plain)
            yield from (prefix + name for name in found)
    assert not body.strip(), f"not understood: {body}"


def stated(files, reserved):
    """What headers state: {name: (kind, members)} and expressions of constants."""
    text = "".join(pathlib.Path(file).read_text() for file in files)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    constants = []
    for name, arguments in re.findall(r"^#define (\w+)(\([^)]*\))?[ \t]+\S", text, re.M):
        values = ", ".join(str(2 * i + 3) for i in range(arguments.count(",") + 1))
        constants.append(f"{name}({values})" if arguments else name)
    constants += re.findall(r"^static const \w+ (\w+)", text, re.M)
    text = re.sub(r"^ *#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    for body in re.findall(r"\benum(?: \w+)? \{([^}]*)\}", text):
        constants += re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", body.strip())
    structures = {name: (kind, [path for path in members(body) if reserved or "reserved" not in path])
                  for kind, name, body in re.findall(rf"^(struct|union) (\w+) {BODY}", text, re.M)
                  if not NOT_COMPARED.match(name)}
    return structures, [c for c in dict.fromkeys(constants) if not NOT_COMPARED.match(c)]


class Side:
    """A set of headers."""

    def __init__(self, headers, include, scratch):
        self.headers = "".join(f'#include "{header}"\n' for header in headers)
        self.flags = ["-std=gnu++20", "-fpermissive", "-w", "-D_GNU_SOURCE", *(f"-I{path}" for path in include)]
        self.file = pathlib.Path(scratch) / "side.cpp"
        self.text = self.compile(PRELUDE + self.headers, "-E", "-dD", "-o-")
        self.words = set(re.findall(r"\w+", self.text))

    def compile(self, text, *options):
        self.file.write_text(text)
        done = subprocess.run(["c++", *self.flags, str(self.file), *options], capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotCompare(f"{self.headers}{done.stderr[:2000]}")
        return done.stdout

    def has(self, structure):
        return re.search(rf"\b(?:struct|union) {structure}\s*\{{", self.text)

    def print(self, structures, constants):
        """What the program prints: {name: value}."""
        functions, calls = "", ""
        for name, (kind, paths) in structures.items():
            functions += f'template <class T> void show_{name}(T *) {{\n  printf("sizeof {name}\\t%zu\\n", sizeof(T));\n'
            functions += "".join(f'  MEMBER("{name}.{path}", {inner}{path})\n'
                                 for path in paths for inner in {"", INNER.get(name, "")}) + "}\n"
            calls += f"  show_{name}(({kind} {name} *)nullptr);\n"
        # A constant of the kernel may have another name in userspace; both are printed under ours.
        calls += "".join(f'  value("{ours}", {theirs});\n' for ours, theirs in constants.items())
        binary = self.file.with_suffix("")
        self.compile(f"{PRELUDE}{self.headers}{PROGRAM}{functions}int main() {{\n{calls}}}\n", "-o", str(binary))
        output = subprocess.run([binary], capture_output=True, text=True, check=True).stdout
        return dict(line.split("\t") for line in output.splitlines())


def compare(name, ours_dir, headers, include, scratch):
    """Prints notes and differences of one group; returns whether there are differences."""
    files = [ours_dir / file for file in GROUPS[name][0]]
    whole = name == "descriptors"
    structures, constants = stated(files, whole)
    ours, theirs = Side(files, [], scratch), Side(headers, include, scratch)
    older = GROUPS[name][2] not in theirs.words
    notes, differences = [], []
    absent = notes if older else differences
    absent += [f"{name}: not upstream" for name in structures if not theirs.has(name)]
    for structure, (_, paths) in stated(headers, True)[0].items() if whole else ():
        known = structures.get(structure, (None, paths))[1]
        differences += [f"{structure}.{path}: upstream only" for path in paths if path not in known]
    shared = {}
    for constant in constants:
        # The kernel's names for constants that userspace calls IBV_.
        spellings = [s for s in (constant, re.sub("^IB_", "IBV_", constant)) if s.split("(")[0] in theirs.words]
        if spellings:
            shared[constant] = spellings[0]
        else:
            absent.append(f"{constant}: not upstream")
    mine = ours.print(structures, {constant: constant for constant in shared})
    other = theirs.print({name: value for name, value in structures.items() if theirs.has(name)}, shared)
    missing = {f"{name}.{path}" for name, (_, paths) in structures.items() for path in paths} - mine.keys()
    assert not missing, f"our own headers have no {missing}"
    for what, value in mine.items():
        there = other.get(what)
        structure = re.sub(r"^sizeof |\..*", "", what)
        if there == value or (there is None and structure in structures and not theirs.has(structure)):
            continue
        if there is None:
            absent.append(f"{what}: not upstream")
        elif what.startswith("sizeof"):
            grown = int(there) > int(value) and MAY_GROW.match(structure)
            (notes if grown or (older and int(there) < int(value)) else differences).append(
                f"{what}: {value} here, {there} upstream")
        # An operation that we do not call is stated without its signature.
        elif not (value.endswith("function() to void") and there.startswith(value.split("function")[0] + "function")):
            differences.append(f"{what}: {value} here, {there} upstream")
    print(*(f"note: {note}" for note in notes), *(f"DIFFERENCE: {difference}" for difference in differences),
          f"{headers[0]} ({name}): {len(mine)} sizes, members and constants; {len(differences)} differences, "
          f"{len(notes)} notes", sep="\n")
    return bool(differences)


def find(path, scratch):
    """Yields (group, headers, include directories) for one argument."""
    for file in (path, path / "efa_io_defs.h", path / "providers/efa/efa_io_defs.h"):
        if file.is_file():
            yield "descriptors", [file], []
    if (path / "libibverbs/verbs.h").is_file():
        # The include directory that rdma-core's build would make.
        for folder, sources in {"infiniband": ("libibverbs", "kernel-headers/rdma", "providers/efa"),
                                "rdma": ("kernel-headers/rdma",)}.items():
            (pathlib.Path(scratch) / folder).mkdir(exist_ok=True)
            for file in (file for source in sources for file in (path / source).glob("*.h")):
                link = pathlib.Path(scratch) / folder / file.name
                if not link.exists():
                    link.symlink_to(file)
        for name in ("verbs", "kernel interface"):
            yield name, GROUPS[name][1], [scratch]
    for include in (path, path / "include", path / "usr/include"):
        if (include / "rdma/fabric.h").is_file():
            places = [include, include / "rdma", include.parent / "prov/efa/src"]
            yield "libfabric", [h for h in GROUPS["libfabric"][1] if any((p / h).is_file() for p in places)], places
            break


def main(ours, *arguments):
    differs = False
    with tempfile.TemporaryDirectory() as scratch:
        for argument in arguments:
            groups = list(find(pathlib.Path(argument).resolve(), scratch))
            if not groups:
                raise CannotCompare(f"{argument}: expected efa_io_defs.h, or a directory of rdma-core or libfabric")
            for group, headers, include in groups:
                differs |= compare(group, pathlib.Path(ours).resolve(), headers, include, scratch)
    return int(differs)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except CannotCompare as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        sys.exit(2)
