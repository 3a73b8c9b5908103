#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Holds the code against the layers that docs/architecture.md states.

Each ```layers block of that file has lines "FOLDER: a b < c < d". FOLDER holds a crate's or a module's
sources; its modules are listed in groups, lowest first. A module may use modules of lower groups only, so
modules of one group do not know each other and no cycle is possible. A line "crates: ..." states the same
of the workspace's packages. A module or package that is listed nowhere, or nowhere to be found, is an error.

Exit status: 0 all arrows point down, 1 otherwise.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stated(document):
    """Yields (folder, [group, ...]) for each line of the document's layers blocks."""
    for block in re.findall(r"^```layers\n(.*?)^```", document.read_text(), re.M | re.S):
        for line in block.splitlines():
            folder, _, groups = line.partition(":")
            yield folder.strip(), [group.split() for group in groups.split("<")]


def code(text):
    """The text without comments and without a trailing test module."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    return re.split(r"#\[cfg\((?:all\()?test[^\]]*\)\]\s*mod \w+ \{", text)[0]


def first_names(tree):
    """The first path segments of a use tree: "a::b" gives a, "{a, b::{c, d}}" gives a and b."""
    tree = tree.strip()
    if not tree.startswith("{"):
        return re.findall(r"^\w+", tree)
    names, depth = [], 0
    for part in re.findall(r"[{}]|\w+|,", tree):
        if part == "{":
            depth += 1
        elif part == "}":
            depth -= 1
            if depth == 0:
                break
        elif part == "," and depth == 1:
            names.append(None)
        elif depth == 1 and (not names or names[-1] is None):
            names[-1:] = [part]
    return [name for name in names if name]


def used(folder, crate_root):
    """Yields (module, other module, file) for every path from one module of `folder` to another."""
    above = folder.relative_to(crate_root).parts
    for file in sorted(folder.rglob("*.rs")):
        inside = file.relative_to(folder).with_suffix("").parts
        inside = inside[:-1] if inside[-1] == "mod" else inside
        if not inside or inside[0] in ("lib", "main"):
            continue
        text = code(file.read_text())
        absolute = r"\bcrate::" + "".join(f"{part}::" for part in above)
        relative = r"(?<!\w)(?<!::)" + "super::" * len(inside)
        for start in (absolute, relative):
            for match in re.finditer(start + r"(?!super)", text):
                for name in first_names(text[match.end() :]):
                    if name != inside[0] and name[0].islower():
                        yield inside[0], name, file.relative_to(ROOT)


def check_modules(folder, groups, problems):
    path = ROOT / folder
    crate_root = next(p for p in (path, *path.parents) if p.name == "src")
    level = {name: i for i, group in enumerate(groups) for name in group}
    there = {p.stem for p in path.glob("*.rs")} | {p.name for p in path.iterdir() if p.is_dir()}
    there -= {"lib", "main", "mod", "bin"}
    for name in sorted(there ^ set(level)):
        where = "has no place in docs/architecture.md" if name in there else "does not exist"
        problems.append(f"{folder}: module {name} {where}")
    for module, other, file in used(path, crate_root):
        if other in level and module in level and level[other] >= level[module]:
            problems.append(f"{file}: {module} must not use {other}")


def check_crates(groups, problems):
    members = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    manifests = [tomllib.loads((ROOT / member / "Cargo.toml").read_text()) for member in members]
    level = {name: i for i, group in enumerate(groups) for name in group}
    for name in {manifest["package"]["name"] for manifest in manifests} ^ set(level):
        problems.append(f"crates: {name} is in one of Cargo.toml and docs/architecture.md only")
    for manifest in manifests:
        name = manifest["package"]["name"]
        for other in manifest.get("dependencies", {}):
            if level.get(other, -1) >= level.get(name, len(groups)):
                problems.append(f"crates: {name} must not depend on {other}")


def main():
    problems, lines = [], list(stated(ROOT / "docs/architecture.md"))
    if not lines:
        sys.exit("docs/architecture.md has no layers block")
    for folder, groups in lines:
        if folder == "crates":
            check_crates(groups, problems)
        else:
            check_modules(folder, groups, problems)
    print("\n".join(dict.fromkeys(problems)) or f"{len(lines)} layer statements hold")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
