#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes a copy of DeepEP's tree (first generation, v1.2.1) that posts to an EFA adapter. The tree itself is not changed:
# the copy has links to its files, except ibgda_device.cuh. docs/deepep.md is the guide.
#
#   DEEPEP_DIR=DIR NVSHMEM_HOME=DIR scripts/overlay_deepep.sh --out OUT [--arch sm_90]
#
# --arch names the GPU's architecture: sm_90 for p5 and p5en, the default; sm_100 for p6-b200.
#
#   OUT/deepep/       the copy
#   OUT/nvshmem/      NVSHMEM's headers and libraries as links, with this project's beside them. libnvshmem_device.a is
#                     a copy with the device state and the posting engine added, so that DeepEP's setup.py links them
#
# Prints the command that builds DeepEP. Exit status: 0 made, 1 not made, 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

OUT=''
ARCH=sm_90

# links FROM TO: TO becomes a directory with a link to each file of FROM, instead of a link to one.
links() {
  local file
  [[ ! -L $2 ]] || rm -- "$2"
  mkdir -p -- "$2"
  for file in "$1"/* "$1"/.git; do
    [[ ! -e $file ]] || ln -s -- "$(readlink -f -- "$file")" "$2/"
  done
}

overlay_sources() {
  links "$DEEPEP_DIR" "$OUT/deepep"
  links "$DEEPEP_DIR/csrc" "$OUT/deepep/csrc"
  links "$DEEPEP_DIR/csrc/kernels" "$OUT/deepep/csrc/kernels"
  rm -- "$OUT/deepep/csrc/kernels/ibgda_device.cuh"
  # The headers that the replaced file includes, and this project's functions.
  cat >"$OUT/deepep/csrc/kernels/ibgda_device.cuh" <<'CUH'
#pragma once
#include "configs.cuh"
#include "exception.cuh"
#include "utils.cuh"
#include "efa_gda/ibgda_compat.cuh"
CUH
}

overlay_nvshmem() {
  local side=$OUT/side
  "$ROOT/scripts/install_into_nvshmem.sh" --prefix "$side" --arch "$ARCH" >"$OUT/environment"
  links "$NVSHMEM_HOME/include" "$OUT/nvshmem/include"
  links "$side/include" "$OUT/nvshmem/include"
  links "$NVSHMEM_HOME/lib" "$OUT/nvshmem/lib"
  rm -- "$OUT/nvshmem/lib/libnvshmem_device.a"
  cp -- "$NVSHMEM_HOME/lib/libnvshmem_device.a" "$OUT/nvshmem/lib/"
  chmod u+w -- "$OUT/nvshmem/lib/libnvshmem_device.a"
  (cd -- "$OUT" && ar x side/lib/libefa_gda_nvshmem.a device.o host.o &&
    ar rs nvshmem/lib/libnvshmem_device.a device.o host.o 2>/dev/null && rm -- device.o host.o)
  [[ -e $OUT/nvshmem/lib/libnvshmem_host.so ]] ||
    ln -s -- "$(readlink -f -- "$(compgen -G "$NVSHMEM_HOME/lib/libnvshmem_host.so*" | head -n 1)")" \
      "$OUT/nvshmem/lib/libnvshmem_host.so"
  # DeepEP's configs.cuh includes a header of rdma-core's mlx5 driver, of whose types NVSHMEM's headers need one.
  if [[ ! -e /usr/include/infiniband/mlx5dv.h ]]; then
    mkdir -p -- "$OUT/nvshmem/include/infiniband"
    cat >"$OUT/nvshmem/include/infiniband/mlx5dv.h" <<'H'
#pragma once
#include <stdint.h>
#include <linux/types.h>
/* Stands in for rdma-core's header: the type's size is that of its ABI. */
struct mlx5_wqe_av {
  uint8_t bytes[48];
};
H
  fi
}

read_options '--out --arch' 0 "$@"
[[ -n $OUT ]] || wrong_usage 'the option --out is missing; name the directory to make'
[[ $ARCH =~ ^sm_([0-9]+)([0-9][af]?)$ ]] || wrong_usage "--arch $ARCH: expected an architecture such as sm_90"
TORCH_ARCH=${BASH_REMATCH[1]}.${BASH_REMATCH[2]}
[[ -n ${DEEPEP_DIR:-} ]] || wrong_usage "set DEEPEP_DIR to DeepEP's source tree"
[[ -n ${NVSHMEM_HOME:-} ]] || wrong_usage 'set NVSHMEM_HOME to an NVSHMEM that is installed'
[[ -e $DEEPEP_DIR/csrc/kernels/ibgda_device.cuh ]] ||
  die "$DEEPEP_DIR has no csrc/kernels/ibgda_device.cuh; expected DeepEP v1.2.1, or another of the first generation"
[[ ! -e $OUT ]] || die "$OUT exists; remove it, or name another directory"
mkdir -p -- "$OUT"
OUT=$(cd -- "$OUT" && pwd)
overlay_sources
overlay_nvshmem
cat <<TEXT
# Build DeepEP:
cd $OUT/deepep && NVSHMEM_DIR=$OUT/nvshmem TORCH_CUDA_ARCH_LIST=$TORCH_ARCH python3 setup.py install
TEXT
cat "$OUT/environment"
