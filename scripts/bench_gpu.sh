#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Measures the posting engine and other posting engines on the GPU of this machine, in one process over the same ring.
# kernels/bench/post_rate.cu describes the modes:
#
#   scripts/bench_gpu.sh [bench|check [ENTRIES]|soak [ENTRIES]|floor]   bench without an argument
#   scripts/bench_gpu.sh --build-only DIR                  leaves DIR/post_rate for another machine
#
# The headers of the other engines come from the PyPI package nvidia-nccl-cu13, unpacked below .cache; nothing of it is
# part of this project. If the package cannot be downloaded, the script reports that, and their columns are empty.
# NCCL_INCLUDE=DIR uses installed headers. EFA_GDA_BENCH_ARCH (default 90) is the GPU's compute capability without the
# dot.
#
# Exit status: 0; 1 the build or the measurement failed; 2 usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

PEER_PACKAGE=nvidia-nccl-cu13==2.31.2
ARCH=${EFA_GDA_BENCH_ARCH:-90}

# Prints the directory of the other engines' headers, downloaded once.
peer_headers() {
  if [[ -n "${NCCL_INCLUDE:-}" ]]; then
    printf '%s\n' "$NCCL_INCLUDE"
    return
  fi
  local to=$ROOT/.cache/nccl
  if [[ ! -e $to/.complete ]]; then
    rm -rf -- "$to"
    mkdir -p -- "$to"
    python3 -m pip download --quiet --no-deps --disable-pip-version-check -d "$to" "$PEER_PACKAGE" >&2 || return 1
    python3 - "$to" <<'PY' || return 1
import glob, sys, zipfile
to = sys.argv[1]
with zipfile.ZipFile(glob.glob(to + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if "/include/" in name:
            wheel.extract(name, to)
PY
    rm -f -- "$to"/*.whl
    touch "$to/.complete"
  fi
  printf '%s\n' "$to/nvidia/nccl/include"
}

build() {
  local out=$1 toolkit headers peers=()
  toolkit=$("$ROOT/scripts/cuda_toolchain.sh")
  if headers=$(peer_headers); then
    peers=(-DEFA_GDA_BENCH_PEERS -I "$headers")
  else
    say "$PEER_PACKAGE could not be downloaded: the other engines are left out"
  fi
  local flags=(-O3 -std=c++17 -gencode "arch=compute_$ARCH,code=sm_$ARCH" -I "$ROOT/kernels/include")
  mkdir -p -- "$out"
  "$toolkit/bin/nvcc" "${flags[@]}" -I "$ROOT/third_party/efa_gda" -c -o "$out/post_rate.o" \
    "$ROOT/kernels/bench/post_rate.cu"
  "$toolkit/bin/nvcc" "${flags[@]}" "${peers[@]}" -c -o "$out/peers.o" "$ROOT/kernels/bench/peers.cu"
  "$toolkit/bin/nvcc" -gencode "arch=compute_$ARCH,code=sm_$ARCH" -o "$out/post_rate" \
    "$out/post_rate.o" "$out/peers.o" -lpthread
}

case ${1:-bench} in
--build-only)
  [[ $# -eq 2 ]] || wrong_usage '--build-only needs one directory'
  build "$2"
  exit 0
  ;;
bench | check | soak | floor) ;;
*) help_or_nothing "$1" ;;
esac
if ! have nvidia-smi || ! nvidia-smi -L >&2; then
  say "this machine has no NVIDIA GPU; build with --build-only DIR and run DIR/post_rate on one that has"
  exit 1
fi
build "$ROOT/target/bench_gpu"
exec "$ROOT/target/bench_gpu/post_rate" "${@:-bench}"
