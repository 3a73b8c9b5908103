#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prints what a kernel needs that posts once, waits and closes, in blocks of up to 1,024 threads
# (kernels/bench/footprint.cu): registers, stack, spills and bytes of code, for each kind of group, sharing and entry,
# with NCCL's put beside it. Spills are bytes stored and loaded: the kernel's own, and "in functions" those of all
# functions that it calls, most of which are registers that a function saves for its callers and loads once. Needs no
# GPU.
#
#   scripts/footprint.sh [sm_XX …]          sm_80 sm_90 sm_100 sm_120 without arguments
#   scripts/footprint.sh --before REVISION [sm_XX …]   the same with the device library of an earlier revision
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

before=
case ${1:-} in
-h | --help) help_or_nothing "$1" ;;
--before)
  [[ $# -ge 2 ]] || wrong_usage '--before needs a revision'
  before=$2
  shift 2
  ;;
esac
for architecture in "$@"; do
  [[ $architecture =~ ^sm_[0-9]+[a-z]?$ ]] || wrong_usage "\"$architecture\" is not an architecture such as sm_90"
done
[[ $# -gt 0 ]] || set -- sm_80 sm_90 sm_100 sm_120

toolkit=$("$ROOT/scripts/cuda_toolchain.sh")
out=$(mktemp -d)
trap 'rm -rf -- "$out"' EXIT
headers=$ROOT
if [[ -n "$before" ]]; then
  headers=$out/before
  earlier_headers "$before" "$headers"
fi
peer=$(peer_headers "") || say "$PEER_PACKAGE could not be downloaded: NCCL's row is left out"

# compile SOURCE KERNEL ARCHITECTURE FLAG…: compiles kernels/bench/SOURCE.cu to $out/KERNEL.ARCHITECTURE.cubin, ptxas'
# report beside it.
compile() {
  local source=$1 kernel=$2 architecture=$3
  shift 3
  "$toolkit/bin/nvcc" -O3 -std=c++17 -arch="$architecture" "$@" -Xptxas -v -cubin \
    -o "$out/$kernel.$architecture.cubin" "$ROOT/kernels/bench/$source.cu" 2>"$out/$kernel.$architecture.log" ||
    die "kernels/bench/$source.cu does not compile for $architecture: $(cat "$out/$kernel.$architecture.log")"
  files+=("$out/$kernel.$architecture")
}

# compile_ours GROUP CLASS SHARING ARCHITECTURE: the kernel of one kind of group, for each kind of entry.
compile_ours() {
  local kernel=${1}_owned
  [[ $3 != Device ]] || kernel=${1}_shared
  for entry in "${entries[@]}"; do
    compile footprint "${kernel}_$entry" "$4" -DEFA_GDA_FOOTPRINT_KERNEL="${kernel}_$entry" \
      -DEFA_GDA_FOOTPRINT_SHARING="$3" -DEFA_GDA_FOOTPRINT_GROUP="$2" \
      -DEFA_GDA_FOOTPRINT_INLINED="$([[ $entry == inline ]] && echo true || echo false)" \
      -DEFA_GDA_FOOTPRINT_OWN="$([[ $entry == own ]] && echo true || echo false)" \
      -I "$headers/kernels/include" -I "$headers/third_party/efa_gda"
  done
}

# A group on a shared queue: compact with the headers of an earlier revision that has Compact.
shared_group() {
  if grep -q 'struct Compact ' "$headers/kernels/include/efa_gda/group.h"; then echo "Compact<$1>"; else echo "$1"; fi
}

# The kernel with entries of 64 or 128 bytes also waits for its own requests, unless the revision cannot.
entries=(inline write)
! grep -q wait_own "$headers/kernels/include/efa_gda/post.h" || entries+=(own)
files=()
for architecture in "$@"; do
  for group in Thread Warp Block; do
    compile_ours "${group,}" "${group}Group" "$group" "$architecture"
    compile_ours "${group,}" "$(shared_group "${group}Group")" Device "$architecture"
  done
  [[ -z "$peer" ]] || compile footprint_nccl nccl_shared_ "$architecture" -I "$peer"
done
python3 "$ROOT/scripts/lib/footprint.py" "${files[@]}"
