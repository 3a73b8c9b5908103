#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Prints the bill of materials of a release in CycloneDX's format: the crates that packages are made of.

    bill_of_materials.py TARGET PACKAGE...

TARGET is the platform (x86_64-unknown-linux-gnu). Dependencies of other platforms, of tests and of build scripts are
left out. `cargo tree` names the crates, because only it knows their features; licences and edges come from
`cargo metadata`, checksums from Cargo.lock.
"""
import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def cargo(*arguments):
    command = ["cargo", arguments[0], "--locked", *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def crates(target, names):
    """Name and version of each crate."""
    options = [option for name in names for option in ("--package", name)]
    lines = cargo("tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--target", target, *options)
    return {(words[0], words[1].removeprefix("v")) for words in map(str.split, lines.splitlines()) if words}


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    part = {"type": "library", "bom-ref": reference(package), "name": package["name"], "version": package["version"],
            "purl": reference(package)}
    if package["license"]:
        # Old crates write "MIT/Apache-2.0", which is no expression of SPDX.
        part["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        part["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return part


def main(target, *names):
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", target))
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    wanted = crates(target, names)
    packages = {p["id"]: p for p in metadata["packages"] if (p["name"], p["version"]) in wanted}
    assert len(packages) == len(wanted), wanted - {(p["name"], p["version"]) for p in packages.values()}
    own = {packages[at]["name"]: packages[at] for at in metadata["workspace_members"] if at in packages}
    edges = {
        reference(packages[node["id"]]): sorted({reference(packages[to]) for to in node["dependencies"] if to in packages})
        for node in metadata["resolve"]["nodes"] if node["id"] in packages
    }
    edges["efa-gda"] = [reference(own[name]) for name in names]
    release = {"type": "application", "bom-ref": "efa-gda", "name": "efa-gda", "version": own[names[0]]["version"]}
    json.dump({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": release},
        "components": [component(package, checksums) for package in sorted(packages.values(), key=reference)],
        "dependencies": [{"ref": ref, "dependsOn": to} for ref, to in sorted(edges.items())],
    }, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
