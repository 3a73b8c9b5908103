#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Measures the posting engine beside its peers on the GPU of this machine, in one process
# over the same ring (kernels/bench/post_rate.cu says what each mode does):
#
#   scripts/bench_gpu.sh [bench|check [ENTRIES]|soak [ENTRIES]|floor]   bench without an argument
#   scripts/bench_gpu.sh --build-only DIR                  leaves DIR/post_rate for another machine
#
# The peers' headers come from the PyPI package nvidia-nccl-cu13, unpacked below .cache;
# nothing of it is part of this project. Where it cannot be had the peers' column is
# empty, and that is said. NCCL_INCLUDE=DIR uses headers that are already there.
# EFA_GDA_BENCH_ARCH (default 90) is the GPU's compute capability without the dot.
set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
PEER_PACKAGE=nvidia-nccl-cu13==2.31.2
ARCH=${EFA_GDA_BENCH_ARCH:-90}

say() { printf 'bench_gpu: %s\n' "$1" >&2; }

# Where the peers' headers lie; fetched once.
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
    say "$PEER_PACKAGE could not be had: the peers are left out"
  fi
  local flags=(-O3 -std=c++17 -gencode "arch=compute_$ARCH,code=sm_$ARCH" -I "$ROOT/kernels/include")
  mkdir -p -- "$out"
  "$toolkit/bin/nvcc" "${flags[@]}" -I "$ROOT/third_party/efa_gda" -c -o "$out/post_rate.o" \
    "$ROOT/kernels/bench/post_rate.cu"
  "$toolkit/bin/nvcc" "${flags[@]}" "${peers[@]}" -c -o "$out/peers.o" "$ROOT/kernels/bench/peers.cu"
  "$toolkit/bin/nvcc" -gencode "arch=compute_$ARCH,code=sm_$ARCH" -o "$out/post_rate" \
    "$out/post_rate.o" "$out/peers.o" -lpthread
}

if [[ ${1:-} == --build-only ]]; then
  [[ $# -eq 2 ]] || { say "give a directory: scripts/bench_gpu.sh --build-only DIR"; exit 2; }
  build "$2"
  exit 0
fi
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >&2; then
  say "no NVIDIA GPU here; build with --build-only DIR and run DIR/post_rate where one is"
  exit 1
fi
build "$ROOT/target/bench_gpu"
exec "$ROOT/target/bench_gpu/post_rate" "${@:-bench}"
