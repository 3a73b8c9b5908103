# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# NCCL's device headers, for measurements and tests. Sourced after setup.sh.

PEER_PACKAGE=nvidia-nccl-cu13==2.32.3

# peer_headers [PACKAGE]: prints the directory of NCCL's headers: without PACKAGE that in NCCL_INCLUDE, or else the PyPI
# package's, downloaded once.
peer_headers() {
  local package=${1:-$PEER_PACKAGE} place
  if [[ -z ${1:-} && -n ${NCCL_INCLUDE:-} ]]; then
    printf '%s\n' "$NCCL_INCLUDE"
    return
  fi
  place=$(venv "nccl-${package##*=}" --no-deps "$package") || return 1
  place=$(compgen -G "$place/lib/python3.*/site-packages/nvidia/nccl")
  # The library itself has 250 MB.
  rm -rf -- "${place:?}/lib"
  printf '%s\n' "$place/include"
}
