#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# bench_limits.py passes results that keep every limit, fails each limit that a result breaks, and names the row.
set -euo pipefail

LIMITS=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/bench_limits.py
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT

row() { printf 'row\t%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "$4" "$4"; }

# Each value is at its limit.
{
  row '1 thread owns its queue' 64 after 0.95
  row '1 thread owns its queue' 64 before 1
  row '1 thread owns its queue' 64 nccl 0.475
  row '1 thread owns its queue' 64 'after, 8-byte stores' 0.5
  row '1 thread owns its queue' 64 'nccl drop-in, 16-byte stores' 0.7125
  row 'block of 8 warps owns its queue' 64 after 97
  row 'block of 8 warps owns its queue' 64 before 100
  row 'block of 8 warps owns its queue' 64 nccl 1
  row 'block of 8 warps owns its queue' 64 bare 100
  row 'block of 8 warps owns its queue' 64 'nccl drop-in, 16-byte stores' 2
  row 'softefa, counters in GPU memory' - after 2
  row 'softefa, counters in GPU memory' - nccl 2
  row 'softefa, put with signal, 4 KiB' - signal 11.5
  row 'softefa, put with signal, 4 KiB' - 'two completions' 10
  row "softefa, waiting for one's own call" - busy 15
  row "softefa, waiting for one's own call" - idle 10
} >"$SCRATCH/kept"

# expect STATUS LINE FILE: LINE is in the output for FILE.
expect() {
  local status=0
  python3 "$LIMITS" "$3" >"$SCRATCH/out" 2>&1 || status=$?
  if [[ $status -ne $1 ]] || ! grep -qF -- "$2" "$SCRATCH/out"; then
    printf 'wanted exit status %s and "%s", got %s and:\n' "$1" "$2" "$status"
    cat -- "$SCRATCH/out"
    exit 1
  fi
}

expect 0 'PASS  after, of NCCL: 2.000, at least 2' "$SCRATCH/kept"
[[ $(grep -c '^PASS' "$SCRATCH/out") -eq 9 ]] || { echo 'not every limit passed'; exit 1; }

# broken FROM TO LINE: with a value changed, LINE is printed and the check fails.
broken() {
  sed "s/$1/$2/" "$SCRATCH/kept" >"$SCRATCH/broken"
  expect 1 "$3" "$SCRATCH/broken"
}
broken '\tbefore\t1\t' '\tbefore\t1.01\t' 'FAIL  after, of before: 0.941, at least 0.95, the worst of 2 rows: 1 thread owns its queue'
broken '\tnccl\t0.475\t' '\tnccl\t0.5\t' 'FAIL  after, of NCCL: 1.900'
broken '\tbare\t100\t' '\tbare\t101\t' 'FAIL  after, of the bare loop: 0.960'
broken 'stores\t2\t' 'stores\t1.9\t' 'FAIL  drop-in, 16-byte stores, of NCCL: 1.900'
broken 'stores\t0.7125\t' 'stores\t0.7\t' 'FAIL  drop-in, 16-byte stores, of NCCL, one thread: 1.474'
broken '\tafter\t2\t' '\tafter\t1.9\t' "FAIL  softefa, counters in GPU memory: this engine's 64-byte writes: 1.900"
broken '\tnccl\t2\t' '\tnccl\t1.9\t' "FAIL  softefa, counters in GPU memory: NCCL's 64-byte writes: 1.900"
broken '\tsignal\t11.5\t' '\tsignal\t11.6\t' 'FAIL  softefa, put with signal, 4 KiB: signal, of two completions: 1.160'
broken '\tbusy\t15\t' '\tbusy\t16\t' "FAIL  softefa, waiting for one's own call: 15 warps post on, of an idle queue: 1.600"

grep -v before "$SCRATCH/kept" >"$SCRATCH/less"
expect 0 'SKIP  after, of before: not measured' "$SCRATCH/less"
echo 'no rows' >"$SCRATCH/empty"
expect 1 'nothing was measured' "$SCRATCH/empty"
