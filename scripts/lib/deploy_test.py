#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks the Helm chart and the manifests in deploy/, with Helm's own renderer and the API's schemas.

deploy_test.py PROBE [--bless]

deploy/kubernetes holds what the chart renders with its default values; --bless writes it. Every rendering is valid under
the schemas of several releases of Kubernetes, asks for no privilege that the probe does not need, and gives PROBE, a
gda-probe, only command lines that it accepts. The YAML blocks of docs/fleets.md are valid too.
"""
import json
import pathlib
import re
import subprocess
import sys

import helm_python
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/gda-probe"
MANIFESTS = ROOT / "deploy/kubernetes"
RELEASES = ["1.29", "1.33", "1.37"]
VARIANTS = [
    {},
    {"lockMemory": True, "runtimeClassName": "nvidia", "hugepages": ""},
    {"gpus": 0, "stack": "fi-xpu", "adapters": 8, "instanceType": "p6-b200.48xlarge", "job": {"nodes": 4}},
    {"job": {"enabled": False}, "nodeProblemDetector": {"enabled": False}},
    {"daemonSet": {"enabled": False}},
]
WRONG = [{"efa": 16}, {"adapters": 0}, {"stack": "nvsmem"}, {"daemonSet": {"periodSeconds": 1}}]


def render(values):
    """The rendered files of the chart by their names, without empty ones."""
    chart = helm_python.Chart.load(CHART)
    # As `helm install` does first; render alone does not.
    chart.validate_schema(values)
    files = chart.render(values, name="gda-probe", namespace="default")
    return {pathlib.Path(path).name: text.strip() + "\n" for path, text in files.items() if text.strip()}


def compare(files, bless):
    """deploy/kubernetes has these files and no others."""
    if bless:
        for old in MANIFESTS.glob("*.yaml"):
            old.unlink()
        for name, text in files.items():
            (MANIFESTS / name).write_text(text)
    present = {file.name: file.read_text() for file in MANIFESTS.glob("*.yaml")}
    wrong = sorted(name for name in present.keys() | files.keys() if present.get(name) != files.get(name))
    assert not wrong, f"deploy/kubernetes differs from the chart in {wrong}; run scripts/lib/deploy_test.sh --bless"


def check(name, text, probe):
    for document in yaml.safe_load_all(text):
        for release in RELEASES:
            try:
                kubernetes_validate.validate(document, release, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise AssertionError(f"{name}: Kubernetes {release}: {error.path}: {error.message}") from None
        if document["kind"] in ("Job", "DaemonSet"):
            restricted(name, document["spec"]["template"]["spec"])
        for pod in pods(document):
            for container in pod.get("initContainers", []) + pod["containers"]:
                for command in command_lines(container):
                    accepted(name, probe, command)
        for data in document.get("data", {}).values():
            for rule in json.loads(data)["rules"]:
                accepted(name, probe, rule["args"])


def pods(document):
    if document["kind"] == "Pod":
        return [document["spec"]]
    template = document.get("spec", {}).get("template")
    return [template["spec"]] if template else []


def restricted(name, pod):
    """The Pod Security Standard "restricted", except for IPC_LOCK, which needs root."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        assert key not in pod, f"{name}: {key}"
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume], f"{name}: hostPath"
    assert pod["automountServiceAccountToken"] is False and pod["securityContext"]["seccompProfile"]
    for container in pod["containers"]:
        context = container["securityContext"]
        added = context["capabilities"].get("add", [])
        assert context["capabilities"]["drop"] == ["ALL"] and added in ([], ["IPC_LOCK"]), f"{name}: {context}"
        assert context["allowPrivilegeEscalation"] is False and "privileged" not in context, f"{name}: {context}"
        assert context["readOnlyRootFilesystem"] is True
        assert bool(added) == (pod["securityContext"]["runAsUser"] == 0), f"{name}: root and IPC_LOCK need each other"
        limits = container["resources"]["limits"]
        assert limits["vpc.amazonaws.com/efa"] > 0


def command_lines(container):
    """The arguments of each gda-probe that a container of this project's image starts."""
    readiness = container.get("readinessProbe", {}).get("exec", {}).get("command", [])
    for command in (container.get("args", []), readiness):
        if command and "gda-probe" in container["image"]:
            yield command[1:] if command[0] == "gda-probe" else command


def accepted(name, probe, arguments):
    # With --help, the command line is parsed and nothing runs.
    assert all(isinstance(argument, str) for argument in arguments), f"{name}: {arguments} are not all texts"
    ended = subprocess.run([probe, *arguments, "--help"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, f"{name}: gda-probe {arguments}: {ended.stderr}"


def main():
    probe = sys.argv[1]
    report = helm_python.lint(CHART, strict=True)
    assert not report["errors"], report
    compare(render({}), "--bless" in sys.argv)
    for values in VARIANTS:
        for name, text in render(values).items():
            check(f"{name} with {values}", text, probe)
    for values in WRONG:
        try:
            render(values)
        except helm_python.HelmError:
            continue
        raise AssertionError(f"the chart accepts {values}")
    guide = (ROOT / "docs/fleets.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert blocks, "docs/fleets.md has no YAML"
    for block in blocks:
        check("docs/fleets.md", block, probe)
    print(f"{len(VARIANTS)} renderings and {len(blocks)} blocks are valid for Kubernetes {', '.join(RELEASES)}")


main()
