#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# An interrupted test.sh ends with the status of the signal and a summary, and leaves no process: neither a step nor its
# descendants, in process groups or sessions of their own or ignoring SIGTERM.
set -euo pipefail

LIB=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT

# Instead of cargo: each process names itself in a file and would run for ten minutes.
mkdir -p "$SCRATCH/bin" "$SCRATCH/target"
cat >"$SCRATCH/bin/cargo" <<'PROGRAM'
#!/bin/bash
leave() { echo "$BASHPID" >>"$PIDS"; exec sleep 600; }
export -f leave
timeout 600 bash -c leave &
setsid bash -c 'trap "" TERM INT; leave' &
leave
PROGRAM
chmod +x "$SCRATCH/bin/cargo"
export PIDS=$SCRATCH/pids PATH=$SCRATCH/bin:$PATH CARGO_TARGET_DIR=$SCRATCH/target

problem() {
  echo "$1; the output of test.sh:"
  cat "$SCRATCH/output"
  exit 1
}

for signal in INT:130 TERM:143; do
  : >"$PIDS"
  # A shell's background processes ignore SIGINT unless told otherwise.
  env --default-signal=INT "$LIB/../test.sh" rustfmt </dev/null >"$SCRATCH/output" 2>&1 &
  run=$!
  while [[ $(wc -l <"$PIDS") -lt 3 && -d /proc/$run ]]; do sleep 0.1; done
  kill -s "${signal%:*}" "$run" || problem 'the step did not start'
  status=0
  wait "$run" || status=$?
  [[ $status -eq ${signal#*:} ]] || problem "exit status $status after $signal"
  while read -r pid; do
    [[ ! -d /proc/$pid ]] || grep -q '^State:.[ZX]' "/proc/$pid/status" || problem "process $pid survived $signal"
  done <"$PIDS"
  [[ $(tail -n 1 "$SCRATCH/output") == 'interrupted: 0 passed, 0 failed, 0 skipped' ]] || problem 'no summary'
done
