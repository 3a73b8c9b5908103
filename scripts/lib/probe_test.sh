#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs probe.sh as a user does: from another directory and through a link. stdout is JSON only, with a verdict and a
# verified put, a report for people ends in words on the result, the exit status is that of gda-probe, and
# --soft is not added in silence.
set -euo pipefail

LIB=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/setup.sh
source "$LIB/setup.sh"

SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
mkdir -- "$SCRATCH/a directory"
PROBE="$SCRATCH/a link"
ln -s -- "$LIB/../probe.sh" "$PROBE"
cd -- "$SCRATCH/a directory"

# probe FILE ARGUMENT…: writes stdout into FILE. Status 0: nothing failed; 4: warnings about this machine. The time limit
# suits a busy machine.
probe() {
  local file=$1 status=0
  shift
  "$PROBE" "$@" --time-limit 60000 >"$file" || status=$?
  if [[ $status -ne 0 && $status -ne 4 ]]; then
    cat "$file"
    echo "probe.sh $*: exit status $status, expected 0 or 4"
    return 1
  fi
}

# holds FILE EXPRESSION: the expression must be true of the document in FILE.
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

# A run for people ends in success.
probe check.txt --soft
[[ $(tail -n 2 check.txt) == *'software adapter: '* ]] || { cat check.txt; echo 'no words on success'; exit 1; }

# Commands without an adapter get no --soft, which they would refuse.
"$PROBE" explain GDA-001 >/dev/null

# Without an adapter, --soft is added and announced, except where the result is one about the machine.
if ! has_efa_adapter; then
  probe added.txt put --executor host 2>added.log
  grep -q 'adding --soft' added.log || { cat added.log; echo '--soft was added in silence'; exit 1; }
  status=0
  "$PROBE" --npd >npd.txt 2>npd.log || status=$?
  if [[ $status -ne 1 ]] || grep -q 'adding --soft' npd.log; then
    cat npd.txt npd.log
    echo "--npd without an adapter: exit status $status, expected 1 without --soft"
    exit 1
  fi
fi

# A step says when it begins, and a build that waits for another cargo says so.
printf '    Blocking waiting for file lock on build directory\n' >blocked.log
# shellcheck source=scripts/lib/run.sh
shown=$(source "$LIB/run.sh" && begin 'a step' && RUNNING_LOG=blocked.log && NEXT_REPORT=0 && progress)
expected=$'running  a step …\nrunning  a step …, waiting for another cargo'
[[ $shown == "$expected" ]] || { echo "a step that waits printed: $shown"; exit 1; }

# The exit status for an unknown option is gda-probe's 2, not one of probe.sh.
status=0
"$PROBE" --no-such-option >/dev/null 2>&1 || status=$?
if [[ $status -ne 2 ]]; then
  echo "an unknown option: exit status $status, expected gda-probe's 2"
  exit 1
fi
