#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Downloads CUDA's compilers (nvcc and NVRTC, no driver) into .cache/cuda, once, and prints the directory that holds
# bin/, include/ and lib/. A machine without a GPU or a CUDA toolkit can then compile the kernels.
#
#   scripts/cuda_toolchain.sh         about 400 MB of downloads from pip's package index; needs python3 with venv
#   CUDA_TOOLKIT=DIR                  prints DIR instead, an installed toolkit
#
# Exit status: 0 with the directory on stdout; 1 with the reason on stderr; 2 usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

VENV="$ROOT/.cache/cuda"
# nvcc brings nvvm, crt and the runtime in the same version.
PACKAGES=(nvidia-cuda-nvcc==13.5.37 nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-cccl==13.3.5.0.6)
STAMP="$VENV/.complete-$(printf '%s\n' "${PACKAGES[@]}" | cksum | cut -d' ' -f1)"

help_or_nothing "$@"

if [[ -n "${CUDA_TOOLKIT:-}" ]]; then
  [[ -x "$CUDA_TOOLKIT/bin/nvcc" ]] || die "CUDA_TOOLKIT=$CUDA_TOOLKIT has no bin/nvcc"
  printf '%s\n' "$CUDA_TOOLKIT"
  exit 0
fi

[[ "$(uname -m)" == x86_64 || "$(uname -m)" == aarch64 ]] || die "no CUDA packages for $(uname -m)"
have python3 || die "python3 is missing (Debian package python3-venv)"
mkdir -p "$ROOT/.cache"
# Several tests may call this script at once; the lock lets one of them install.
exec 9>"$ROOT/.cache/cuda.lock"
flock --nonblock 9 || { say "waiting for another download of CUDA's compilers"; flock 9; }

if [[ ! -e "$STAMP" ]]; then
  say "downloading CUDA's compilers (about 400 MB) into $VENV"
  rm -rf "$VENV"
  python3 -m venv "$VENV" >&2 || die "python3 -m venv failed (Debian package python3-venv)"
  "$VENV/bin/pip" install --quiet --disable-pip-version-check "${PACKAGES[@]}" >&2 ||
    die "pip could not install ${PACKAGES[*]}"
  touch "$STAMP"
fi

for toolkit in "$VENV"/lib/python3.*/site-packages/nvidia/cu13; do
  [[ -x "$toolkit/bin/nvcc" ]] || die "$toolkit/bin/nvcc is missing; remove $VENV and run again"
  # The wheels have versioned names only, and lib instead of the lib64 that nvcc reads.
  [[ -e "$toolkit/lib/libcudart.so" ]] || ln -s libcudart.so.13 "$toolkit/lib/libcudart.so"
  [[ -e "$toolkit/lib64" ]] || ln -s lib "$toolkit/lib64"
  printf '%s\n' "$toolkit"
  exit 0
done
die "the packages left no toolkit in $VENV; remove it and run again"
