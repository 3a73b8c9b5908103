#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs probe.sh as a person would: from another directory, with nothing but JSON on stdout,
# ending in a verdict and a verified put, and with gda-probe's own exit status.
set -euo pipefail

PROBE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)/probe.sh
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
mkdir -- "$SCRATCH/a place"
cd -- "$SCRATCH/a place"

# probe FILE ARGUMENT…: stdout into FILE; 0 is nothing failed, 4 is warnings about this machine.
probe() {
  local file=$1 status=0
  shift
  "$PROBE" "$@" >"$file" || status=$?
  if [[ $status -ne 0 && $status -ne 4 ]]; then
    cat "$file"
    echo "probe.sh $*: exit status $status"
    return 1
  fi
}

# holds FILE EXPRESSION: a statement about the document in FILE.
holds() {
  python3 -c 'import json, sys
report = json.load(open(sys.argv[1]))
assert eval(sys.argv[2]), f"{sys.argv[2]} does not hold in {report}"' "$1" "$2"
}

probe check.json --soft --json
holds check.json 'report["schema"] == "gda-probe/1" and report["soft"] is True'
holds check.json 'len(report["verdict"]) > 0 and all("result" in v for v in report["verdict"])'
holds check.json 'not any(c["state"] == "fail" for c in report["checks"])'

probe put.json put --soft --executor host --op write --bytes 4096 --count 1000 --json
holds put.json 'report["put"]["verified"] is True and report["put"]["count"] == 1000'

# An argument that gda-probe refuses is its exit status 2, not one of probe.sh.
status=0
"$PROBE" --no-such-option >/dev/null 2>&1 || status=$?
if [[ $status -ne 2 ]]; then
  echo "an unknown option must end with gda-probe's exit status 2, not $status"
  exit 1
fi
