#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Checks the pages for users: their links, and their commands as they are written.

docs_test.py links            every relative link leads to a file, and to a heading of it; every ● of docs/fidelity.md has
                              a test or a command in docs/fidelity.tsv, which exists
docs_test.py run PROBE PAGE…  runs the blocks of commands of these pages, all pages without PAGE

A page's blocks (```sh) run in order in one shell, in the repository's root. A block that cannot run there has a line before
it with the reason, <!-- not run: REASON -->; PROBE, a gda-probe, must still accept its command lines. Of gda-probe, the
exit status 4 (warnings about this machine) counts as success.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]
BLOCK = re.compile(r"(?:^ *<!-- not run: (?P<reason>[^\n]+) -->\n)?^(?P<indent> *)```sh\n(?P<text>.*?)^ *```$", re.M | re.S)
SETUP = """
warns() { local status=0; "$@" || status=$?; [[ $status -eq 0 || $status -eq 4 ]]; }
# The limit suits a busy machine; explain and the like refuse one.
patient() {
  local program=$1 limit=(--time-limit 60000)
  shift
  case ${1:-} in explain | decode | report | completions | man | ring | bench) limit=() ;; esac
  warns "$program" "$@" "${limit[@]}"
}
scripts/probe.sh() { patient "$PWD/scripts/probe.sh" "$@"; }
gda-probe() { patient "$PROBE" "$@"; }
"""


def slug(heading):
    """The anchor that GitHub and mdBook give a heading."""
    heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def without_code(text):
    return re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.M | re.S)


def links():
    anchors, wrong, count = {}, [], 0
    for page in TEXTS:
        text = without_code(page.read_text())
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in link:
                continue
            count += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                wrong.append(f"{page.name}: {link}: there is no such file")
            elif anchor and target.suffix == ".md":
                if target not in anchors:
                    headings = re.findall(r"^#+ (.*)$", without_code(target.read_text()), re.M)
                    anchors[target] = {slug(heading) for heading in headings}
                if anchor not in anchors[target]:
                    wrong.append(f"{page.name}: {link}: {target.name} has no such heading")
    assert count > 100, f"only {count} links were found"
    print(f"{count} links")
    return wrong


def exists(shown):
    """Whether PATH::TEST is a test, PATH::FUNCTION a function of a shell script, or PATH, with any arguments, a file."""
    path, _, name = shown.partition(" ")[0].partition("::")
    text = (ROOT / path).read_text() if (ROOT / path).is_file() else None
    if text is None or not name:
        return text is not None
    if path.endswith(".sh"):
        return re.search(rf"^{name}\(\)", text, re.M)
    # Macros write tests from a list of names.
    listed = "#[test] fn $name()" in text and re.search(rf"^ *{name}:$", text, re.M)
    return listed or re.search(rf"#\[test\]\s*(#\[.*\]\s*)*fn {name}\(", text)


def fidelity():
    marks, wrong, shown = set(), [], set()
    for line in (ROOT / "docs/fidelity.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0] == "claim":
            columns = cells
        marks |= {(cells[0], columns[at]) for at, cell in enumerate(cells) if "●" in cell}
    assert len(marks) > 100, f"only {len(marks)} ● were found"
    for line in (ROOT / "docs/fidelity.tsv").read_text().splitlines():
        claim, columns, test = line.split("\t")
        for column in columns.split(", "):
            found = [mark for mark in marks if mark[0].startswith(claim) and mark[1].startswith(column)]
            shown |= set(found)
            if len(found) != 1 or not exists(test):
                wrong.append(f"fidelity.tsv: {line}: {len(found)} ● of {column}, or there is no such test")
    wrong += [f"fidelity.md: {claim}: no test in fidelity.tsv for {column}" for claim, column in marks - shown]
    print(f"{len(marks)} ● of fidelity.md")
    return wrong


def blocks(page):
    text = page.read_text()
    found = list(BLOCK.finditer(text))
    assert len(found) == len(re.findall(r"^ *```sh$", text, re.M)), f"{page.name}: a block of commands is not closed"
    for match in found:
        line = text.count("\n", 0, match.start("text"))
        commands = re.sub(f"^{match['indent']}", "", match["text"], flags=re.M)
        yield f"{page.relative_to(ROOT)}:{line}", match["reason"], commands


def not_accepted(place, commands, probe):
    """Lines of gda-probe that it refuses. With --help, it parses the line and runs nothing."""
    for line in commands.replace("\\\n", " ").splitlines():
        match = re.search(r"(?:^|[/ ])(?:gda-probe|gda_probe)( [a-z-].*|)$", line.split("#")[0].rstrip())
        if match and not re.match(r"(?:cp|docker (?:build|cp)|kubectl|sbatch|ln|scripts/)", line):
            words = shlex.split(re.split(r"[|>;&]", match[1])[0])
            ended = subprocess.run([probe, *words, "--help"], capture_output=True, text=True, timeout=60)
            if ended.returncode != 0:
                yield f"{place}: {line}: {ended.stderr}"


def run(probe, pages):
    wrong, ran, left_out = [], 0, 0
    # scripts/probe.sh runs the build of the tests instead of a release build.
    variables = {**os.environ, "PROBE": probe, "EFA_GDA_PROBE_DEV": "1"}
    for page in pages:
        script = SETUP
        for place, reason, commands in blocks(page):
            if reason:
                left_out += 1
                print(f"not run: {place}: {reason}")
                wrong += not_accepted(place, commands, probe)
            else:
                ran += 1
                script += f"echo {shlex.quote('== ' + place)} >&2\n{commands}"
        if script == SETUP:
            continue
        with tempfile.TemporaryFile("w+") as log:
            shell = ["timeout", "--kill-after=10", "900", "bash", "-euo", "pipefail", "-c", script]
            status = subprocess.run(shell, cwd=ROOT, env=variables, stdout=log, stderr=log,
                                    stdin=subprocess.DEVNULL).returncode
            log.seek(0)
            if status:
                wrong.append(f"{log.read()[-6000:]}\n{page.name}: exit status {status} in the block that is named last")
    print(f"{ran} blocks of commands ran, {left_out} did not")
    return wrong


def main():
    if sys.argv[1:] == ["links"]:
        wrong = links() + fidelity()
    else:
        _, command, probe, *names = sys.argv
        assert command == "run", __doc__
        # The pages name cargo's own directory, which leads to CARGO_TARGET_DIR for the run if it does not exist.
        target, elsewhere = ROOT / "target", os.environ.pop("CARGO_TARGET_DIR", None)
        linked = elsewhere and not target.exists()
        if linked:
            target.symlink_to(elsewhere)
        try:
            wrong = run(probe, [ROOT / name for name in names] or PAGES)
        finally:
            if linked:
                target.unlink()
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


main()
