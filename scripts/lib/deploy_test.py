#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks the manifests in deploy/kubernetes and the YAML of docs/fleets.md.

deploy_test.py PROBE

Each document is valid for several releases of Kubernetes, and PROBE, a gda-probe, accepts the command lines in it. The
manifests name this version's image, and ask for no privilege that the probe does not need.
"""
import json
import pathlib
import re
import subprocess
import sys

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASES = ["1.29", "1.33", "1.37"]
VERSION = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def check(name, document, probe):
    for release in RELEASES:
        try:
            kubernetes_validate.validate(document, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f"{name}: Kubernetes {release}: {error.path}: {error.message}")
    spec = document.get("spec", {})
    pod = spec if document["kind"] == "Pod" else spec.get("template", {}).get("spec", {})
    commands = [rule["args"] for data in document.get("data", {}).values() for rule in json.loads(data)["rules"]]
    for container in pod.get("initContainers", []) + pod.get("containers", []):
        readiness = container.get("readinessProbe", {}).get("exec", {}).get("command", [])
        if "gda-probe" in container["image"]:
            commands += filter(None, (container.get("args", []), readiness[1:]))
    for command in commands:
        # With --help, the command line is parsed and nothing runs.
        ended = subprocess.run([probe, *command, "--help"], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, f"{name}: gda-probe {command}: {ended.stderr}"


def restricted(name, pod):
    """The Pod Security Standard "restricted"."""
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume], f"{name}: hostPath"
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["runAsNonRoot"] is True, name
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
    (container,) = pod["containers"]
    assert container["image"] == f"gda-probe:{VERSION}", f"{name}: {container['image']}"
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] > 0, name
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}, name


def main(probe):
    guide = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/fleets.md").read_text(), re.M | re.S)
    manifests = [(file.name, file.read_text()) for file in sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))]
    assert guide and manifests
    for name, text in manifests + [("docs/fleets.md", block) for block in guide]:
        for document in yaml.safe_load_all(text):
            check(name, document, probe)
            if document["kind"] in ("Job", "DaemonSet"):
                restricted(name, document["spec"]["template"]["spec"])
    print(f"{len(manifests)} manifests and {len(guide)} blocks are valid for Kubernetes {', '.join(RELEASES)}")


main(*sys.argv[1:])
