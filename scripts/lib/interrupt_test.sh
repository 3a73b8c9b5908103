#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# An interrupted test.sh ends within seconds with the status of the signal, prints a summary, and leaves no process:
# neither a step nor its descendants, in the step's process group, in a session of their own, or ignoring SIGTERM.
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
bash -c 'leave' &
setsid bash -c 'leave' &
setsid bash -c 'setsid bash -c "trap \"\" TERM INT; leave" & exit' &
setsid env -i PIDS="$PIDS" bash -c 'echo $$ >>"$PIDS"; exec sleep 600' &
leave
PROGRAM
chmod +x "$SCRATCH/bin/cargo"
export PIDS=$SCRATCH/pids PATH=$SCRATCH/bin:$PATH CARGO_TARGET_DIR=$SCRATCH/target

# is_alive PID: a zombie has ended.
is_alive() { [[ -d /proc/$1 ]] && ! grep -q '^State:.[ZX]' "/proc/$1/status" 2>/dev/null; }

problem() {
  echo "$1; the output of test.sh:"
  cat "$SCRATCH/output"
  exit 1
}

# interrupt SIGNAL STATUS
interrupt() {
  local signal=$1 status=0 run pid began
  : >"$PIDS"
  # A shell's background processes ignore SIGINT unless told otherwise.
  env --default-signal=INT "$LIB/../test.sh" rustfmt </dev/null >"$SCRATCH/output" 2>&1 &
  run=$!
  for _ in $(seq 1200); do
    [[ $(wc -l <"$PIDS") -lt 5 ]] || break
    sleep 0.1
  done
  [[ $(wc -l <"$PIDS") -eq 5 ]] || problem 'the step did not start'
  grep -q '^running  rustfmt' "$SCRATCH/output" || problem 'no line says that the step runs'
  began=$SECONDS
  kill -s "$signal" "$run"
  wait "$run" || status=$?
  # On an idle machine this takes 2 seconds, on a loaded one many times that; the programs would run for 600.
  [[ $((SECONDS - began)) -lt 200 ]] || problem "$signal took effect after $((SECONDS - began)) seconds"
  [[ $status -eq $2 ]] || problem "exit status $status after $signal, not $2"
  while read -r pid; do
    ! is_alive "$pid" || problem "process $pid survived $signal"
  done <"$PIDS"
  grep -q "^INTERRUPTED by $signal while running rustfmt" "$SCRATCH/output" || problem 'no line says what was interrupted'
  [[ $(tail -n 1 "$SCRATCH/output") == 'interrupted: 0 passed, 0 failed, 0 skipped' ]] || problem 'no summary'
}

interrupt SIGINT 130
interrupt SIGTERM 143
