#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prints what a kernel needs that posts once, waits and closes, in blocks of up to 1,024 threads
# (kernels/bench/footprint.cu): registers, stack, spills and bytes of code, for each kind of group, sharing and entry,
# with NCCL's put beside it. Spills are bytes stored and loaded: the kernel's own, and "in functions" those of all
# functions that it calls, most of which are registers that a function saves for its callers and loads once. Needs no
# GPU.
#
#   scripts/footprint.sh [sm_XX …]          sm_80 sm_90 sm_100 sm_120 without arguments
#
# NCCL's headers come from the PyPI package nvidia-nccl-cu13, unpacked below .cache; if it cannot be downloaded, its row
# is left out. NCCL_INCLUDE=DIR uses installed headers.
#
# Exit status: 0; 1 the build failed; 2 usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/headers.sh
source "$ROOT/scripts/lib/headers.sh"

read_options '' 9 "$@"
[[ $# -gt 0 ]] || set -- sm_80 sm_90 sm_100 sm_120

toolkit=$("$ROOT/scripts/cuda_toolchain.sh")
out=$(mktemp -d)
trap 'rm -rf -- "$out"' EXIT
peer=$(peer_headers "") || say "$PEER_PACKAGE could not be downloaded: NCCL's row is left out"

# row NAME GROUP QUEUE ENTRY SOURCE ARCHITECTURE FLAG…: compiles the kernel NAME of kernels/bench/SOURCE.cu, and prints
# its row from the report of ptxas and from the size of its section.
row() {
  local name=$1 group=$2 queue=$3 entry=$4 source=$5 architecture=$6
  "$toolkit/bin/nvcc" -O3 -std=c++17 -arch="$architecture" "${@:7}" -Xptxas -v -cubin -o "$out/cubin" \
    "$ROOT/kernels/bench/$source.cu" >"$out/log" 2>&1 ||
    die "kernels/bench/$source.cu does not compile for $architecture: $(cat "$out/log")"
  code=$(readelf -SW "$out/cubin" 2>/dev/null |
    sed -n "s/.* \.text\.$name *PROGBITS *[0-9a-f]* [0-9a-f]* \([0-9a-f]*\) .*/\1/p")
  awk -v name="$name" -v row="| $architecture | $group | $queue | $entry |" -v code=$((16#$code)) '
    /Function properties for/ { function_name = $NF }
    /spill stores/ { if (function_name == name) own += $5 + $9; else called += $5 + $9 }
    / Used / {
      for (i = 2; i < NF; i++) {
        if ($i == "registers,") registers = $(i - 1)
        if ($i == "cumulative") stack = $(i - 2)
      }
    }
    END { print row, registers, "|", stack + 0, "|", own + 0, "|", called + 0, "|", code, "|" }' "$out/log"
}

# our_row GROUP SHARING QUEUE KIND ENTRY ARCHITECTURE
our_row() {
  local name=${1,}_$3_$4
  row "$name" "${1,}" "$3" "$5" footprint "$6" -DEFA_GDA_FOOTPRINT_KERNEL="$name" -DEFA_GDA_FOOTPRINT_SHARING="$2" \
    -DEFA_GDA_FOOTPRINT_GROUP="${1}Group" -DEFA_GDA_FOOTPRINT_INLINED="$([[ $4 != inline ]]; echo $?)" \
    -DEFA_GDA_FOOTPRINT_OWN="$([[ $4 != own ]]; echo $?)" \
    -I "$ROOT/kernels/include" -I "$ROOT/third_party/efa_gda"
}

echo '| GPU | group | queue | entry | registers | stack bytes | spill bytes | in functions | code bytes |'
echo '|---|---|---|---|---|---|---|---|---|'
for architecture in "$@"; do
  for group in Thread Warp Block; do
    for sharing in "$group owned" 'Device shared'; do
      # shellcheck disable=SC2086 # two words
      for entry in 'inline:inline, 128 bytes' 'write:64 or 128 bytes' 'own:64 or 128 bytes, wait_own'; do
        our_row "$group" $sharing "${entry%%:*}" "${entry#*:}" "$architecture"
      done
    done
  done
  [[ -z "$peer" ]] || row nccl_put "NCCL's put" shared '64 or 128 bytes' footprint_nccl "$architecture" -I "$peer"
done
