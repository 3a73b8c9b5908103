#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prints the bill of materials of a release in CycloneDX's format: the crates that packages are made of.

    bill_of_materials.py TARGET PACKAGE...

TARGET is the platform (x86_64-unknown-linux-gnu). Dependencies of other platforms, of tests and of build scripts are
left out. Checksums come from Cargo.lock.
"""
import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main(target, *names):
    # A line is DEPTH, NAME vVERSION, LICENCES; a crate's dependencies follow it, one deeper, at least once.
    tree = subprocess.run(
        ["cargo", "tree", "--locked", "--edges", "normal", "--prefix", "depth", "--format", "\t{p}\t{l}", "--target",
         target, *(option for name in names for option in ("--package", name))],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    components, edges, path = {}, {"efa-gda": set()}, ["efa-gda"]
    for depth, crate, licence in (line.split("\t") for line in tree.splitlines() if line):
        name, version = crate.split()[0], crate.split()[1].removeprefix("v")
        reference = f"pkg:cargo/{name}@{version}"
        path[int(depth) + 1 :] = [reference]
        edges[path[-2]].add(reference)
        edges.setdefault(reference, set())
        part = {"type": "library", "bom-ref": reference, "name": name, "version": version, "purl": reference}
        # Old crates write "MIT/Apache-2.0", which is no expression of SPDX.
        if licence := licence.removesuffix(" (*)").replace("/", " OR "):
            part["licenses"] = [{"expression": licence}]
        if checksum := checksums[name, version]:
            part["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components[reference] = part
    json.dump({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "efa-gda", "name": "efa-gda",
                                   "version": components[path[1]]["version"]}},
        "components": [components[reference] for reference in sorted(components)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(to)} for ref, to in sorted(edges.items())],
    }, sys.stdout, indent=1)
    print()


main(*sys.argv[1:])
