#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Help and typos start nothing, and the advice on missing packages works on a fresh image.
set -euo pipefail

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
# In place of what scripts would start.
for tool in python3 pip apt-get cargo sudo flock; do
  printf '#!/bin/sh\necho "%s $*" >>"%s/calls"\nexit 1\n' "$tool" "$SCRATCH" >"$SCRATCH/$tool"
  chmod +x "$SCRATCH/$tool"
done
FAILED=0

problem() {
  echo "$1"
  FAILED=1
}

# ends STATUS SCRIPT ARGUMENT…: the script must end with this status, and start nothing.
ends() {
  local expected=$1 status=0
  shift
  rm -f -- "$SCRATCH/calls"
  PATH="$SCRATCH:$PATH" timeout 60 "$HERE/../$1" "${@:2}" >"$SCRATCH/output" 2>&1 || status=$?
  [[ $status -eq $expected ]] || problem "$*: exit status $status, expected $expected: $(cat "$SCRATCH/output")"
  [[ ! -e $SCRATCH/calls ]] || problem "$* started $(cat "$SCRATCH/calls")"
}

for script in cuda_toolchain.sh check_interfaces.sh realstack.sh footprint.sh install_into_nvshmem.sh overlay_deepep.sh \
  nvshmem_gpu.sh; do
  ends 0 "$script" --help
  grep -q "scripts/$script" "$SCRATCH/output" || problem "$script --help does not name its usage"
  ends 2 "$script" --nonsense
done

# Without root: the packages must be there to be installed.
advice=$(
  # shellcheck source=scripts/lib/setup.sh
  source "$HERE/setup.sh"
  can_be_root() { false; }
  MISSING=(one two)
  PATH="$SCRATCH:$PATH" install_missing 2>&1 && echo 'installed'
) || true
[[ $advice == *'apt-get update && apt-get install --no-install-recommends one two'* ]] || problem "advice: $advice"
exit "$FAILED"
