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

help_or_nothing "$@"
if [[ -z ${CUDA_TOOLKIT:-} ]]; then
  # nvcc brings nvvm, crt and the runtime in the same version.
  VENV=$(venv cuda nvidia-cuda-nvcc==13.5.37 nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-cccl==13.3.5.0.6) ||
    die "pip could not install CUDA's compilers (Debian package python3-venv)"
  CUDA_TOOLKIT=$(compgen -G "$VENV/lib/python3.*/site-packages/nvidia/cu13") || die "$VENV has no toolkit; remove it"
  # The wheels have versioned names only, and lib instead of the lib64 that nvcc reads.
  ln -sfn libcudart.so.13 "$CUDA_TOOLKIT/lib/libcudart.so"
  ln -sfn lib "$CUDA_TOOLKIT/lib64"
fi
[[ -x $CUDA_TOOLKIT/bin/nvcc ]] || die "$CUDA_TOOLKIT has no bin/nvcc"
printf '%s\n' "$CUDA_TOOLKIT"
