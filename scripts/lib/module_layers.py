#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Holds the code against the layers that docs/architecture.md states.

Each ```layers block of that file has lines "FOLDER: a b < c < d". FOLDER holds a crate's or a module's
sources; its modules are listed in groups, lowest first. A module may use modules of lower groups only, so
modules of one group do not know each other and no cycle is possible. A line "crates: ..." states the same
of the workspace's packages. A module or package that is listed nowhere, or nowhere to be found, is an error.

The files of the library and of the C interface import each other in no circle either. A module may use its own
submodules, and they may use it. (The probe's rows name functions of modules that ask for rows.)

Exit status: 0 all arrows point down, 1 otherwise.
"""

import graphlib
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def code(file):
    """The text of a file without comments and without a trailing test module."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", file.read_text(), flags=re.S)
    return re.split(r"#\[cfg\((?:all\()?test[^\]]*\)\]\s*mod \w+ \{", text)[0]


def first_names(tree):
    """The first path segments of a use tree: "a::b" gives a, "{a, b::{c, d}}" gives a and b."""
    if not tree.startswith("{"):
        return re.findall(r"^\w+", tree)
    # Braces within braces, from the inside out.
    tree = tree[1:]
    while (inner := re.sub(r"\{[^{}]*\}", "", tree, count=1)) != tree and "{" in tree.split("}")[0]:
        tree = inner
    return re.findall(r"(?:^|,)\s*(\w+)", tree.split("}")[0])


def used(folder):
    """Yields (module, other module, file) for every path from one module of `folder` to another."""
    crate = next(p for p in (folder, *folder.parents) if p.name == "src")
    absolute = r"\bcrate::" + "".join(f"{part}::" for part in folder.relative_to(crate).parts)
    for file in sorted(folder.rglob("*.rs")):
        inside = file.relative_to(folder).with_suffix("").parts
        inside = inside[:-1] if inside[-1] == "mod" else inside
        if not inside or inside[0] in ("lib", "main"):
            continue
        relative = r"(?<!\w)(?<!::)" + "super::" * len(inside)
        text = code(file)
        for match in re.finditer(rf"(?:{absolute}|{relative})(?!super)", text):
            for name in first_names(text[match.end() :]):
                if name != inside[0]:
                    yield inside[0], name, file.relative_to(ROOT)


def imports(folder):
    """The modules or packages that there are, and (one, other, where) for each that uses another."""
    if folder != "crates":
        path = ROOT / folder
        there = {p.stem for p in path.iterdir() if p.is_dir() or p.suffix == ".rs"} - {"lib", "main", "mod", "bin"}
        return there, used(path)
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    manifests = [tomllib.loads((ROOT / member / "Cargo.toml").read_text()) for member in members]
    named = {manifest["package"]["name"]: manifest.get("dependencies", {}) for manifest in manifests}
    return set(named), ((name, other, "Cargo.toml") for name in named for other in named[name])


def leaves(tree, prefix=()):
    """The paths of a use tree: "a::{b, c::d}" gives (a, b) and (a, c, d)."""
    head, brace, rest = tree.partition("{")
    prefix += tuple(re.findall(r"\w+", head.split(" as ")[0]))
    if not brace:
        yield prefix
        return
    depth, start = 0, 0
    for at, letter in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if (letter == "," and depth == 0) or depth < 0:
            if rest[start:at].strip():
                yield from leaves(rest[start:at], prefix)
            start = at + 1


def circle(folder):
    """Files of `folder` that use each other in a circle, or None."""
    files = {}
    for file in folder.rglob("*.rs"):
        inside = file.relative_to(folder).with_suffix("").parts
        files[inside[:-1] if inside[-1] in ("mod", "lib", "main") else inside] = file
    graph = {module: set() for module in files}
    for module, file in files.items():
        for tree in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ((?:crate|super|self)::[^;]*);", code(file), re.M):
            for path in leaves(tree):
                at = () if path[0] == "crate" else module
                for step in path:
                    at = at if step in ("crate", "self") else at[:-1] if step == "super" else (*at, step)
                while at not in files:
                    at = at[:-1]
                if at != module[: len(at)] and module != at[: len(module)]:
                    graph[module].add(at)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return " uses ".join("::".join(module) for module in reversed(error.args[1]))
    return None


def main():
    problems = []
    for folder in ("efa-gda/src", "efa-gda-capi/src"):
        if found := circle(ROOT / folder):
            problems.append(f"{folder}: files use each other in a circle: {found}")
    lines = [line.partition(":") for block in
             re.findall(r"^```layers\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
             for line in block.splitlines()]
    assert lines, "docs/architecture.md has no layers block"
    for folder, _, groups in lines:
        level = {name: i for i, group in enumerate(groups.split("<")) for name in group.split()}
        there, edges = imports(folder.strip())
        for name in sorted(there ^ set(level)):
            where = "has no place in docs/architecture.md" if name in there else "does not exist"
            problems.append(f"{folder}: {name} {where}")
        for one, other, where in edges:
            if one in level and other in level and level[other] >= level[one]:
                problems.append(f"{where}: {one} must not use {other}")
    print("\n".join(dict.fromkeys(problems)) or f"{len(lines)} layer statements hold")
    sys.exit(1 if problems else 0)


main()
