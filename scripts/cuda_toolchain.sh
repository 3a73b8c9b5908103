#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Puts CUDA's compilers (nvcc, NVRTC; no driver, no GPU) into .cache/cuda, once, and prints
# the folder that holds bin/, include/ and lib/. A machine that has no CUDA toolkit can
# then compile the kernels. Needs python3 with venv and pip's default package index.
#
# CUDA_TOOLKIT=DIR uses a toolkit that is already there. Exit status: 0 with the folder on
# stdout; 1 with the reason on stderr.
set -euo pipefail

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
VENV="$ROOT/.cache/cuda"
# nvcc brings nvvm, crt and the runtime in the same version.
PACKAGES=(nvidia-cuda-nvcc==13.5.37 nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-cccl==13.3.5.0.6)
STAMP="$VENV/.complete-$(printf '%s\n' "${PACKAGES[@]}" | cksum | cut -d' ' -f1)"

fail() {
  printf 'cuda_toolchain: %s\n' "$1" >&2
  exit 1
}

if [[ -n "${CUDA_TOOLKIT:-}" ]]; then
  [[ -x "$CUDA_TOOLKIT/bin/nvcc" ]] || fail "CUDA_TOOLKIT=$CUDA_TOOLKIT has no bin/nvcc"
  printf '%s\n' "$CUDA_TOOLKIT"
  exit 0
fi

[[ "$(uname -m)" == x86_64 || "$(uname -m)" == aarch64 ]] || fail "no CUDA packages for $(uname -m)"
command -v python3 >/dev/null || fail "python3 is missing"
mkdir -p "$ROOT/.cache"
# Several tests may ask at once; one installs.
exec 9>"$ROOT/.cache/cuda.lock"
flock 9

if [[ ! -e "$STAMP" ]]; then
  rm -rf "$VENV"
  python3 -m venv "$VENV" >&2 || fail "python3 -m venv failed (Debian: python3-venv)"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check "${PACKAGES[@]}" >&2 ||
    fail "pip could not install ${PACKAGES[*]}"
  touch "$STAMP"
fi

for toolkit in "$VENV"/lib/python3.*/site-packages/nvidia/cu13; do
  [[ -x "$toolkit/bin/nvcc" ]] || fail "$toolkit/bin/nvcc is missing; remove $VENV and try again"
  # The wheels carry the versioned names alone, and lib where nvcc looks for lib64.
  [[ -e "$toolkit/lib/libcudart.so" ]] || ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
  [[ -e "$toolkit/lib64" ]] || ln -s lib "$toolkit/lib64"
  printf '%s\n' "$toolkit"
  exit 0
done
fail "the packages left no toolkit in $VENV; remove it and try again"
