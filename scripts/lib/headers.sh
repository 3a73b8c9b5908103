# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The device headers that measurements compare: NCCL's, and those of an earlier revision. Sourced after setup.sh.

PEER_PACKAGE=nvidia-nccl-cu13==2.32.3

# peer_headers [PACKAGE]: prints the directory of NCCL's headers: without PACKAGE that in NCCL_INCLUDE, or else the PyPI
# package's, downloaded once: by the Python of scripts/cuda_toolchain.sh if it is there, because Debian's has no pip.
peer_headers() {
  local package=${1:-$PEER_PACKAGE} python=$ROOT/.cache/cuda/bin/python3 to
  if [[ -z ${1:-} && -n ${NCCL_INCLUDE:-} ]]; then
    printf '%s\n' "$NCCL_INCLUDE"
    return
  fi
  to=$ROOT/.cache/${package//==/-}
  [[ -x $python ]] || python=python3
  if [[ ! -e $to/.complete ]]; then
    rm -rf -- "$to"
    "$python" -m pip download --quiet --no-deps --disable-pip-version-check -d "$to" "$package" >&2 &&
      python3 -m zipfile -e "$to"/*.whl "$to" || return 1
    # The library itself has 250 MB.
    rm -rf -- "$to"/*.whl "$to"/nvidia/nccl/lib
    touch "$to/.complete"
  fi
  printf '%s\n' "$to/nvidia/nccl/include"
}

# earlier_headers REVISION DIR: unpacks the device headers of that revision below DIR.
earlier_headers() {
  rm -rf -- "$2"
  mkdir -p -- "$2"
  git -C "$ROOT" archive "$1" kernels/include third_party/efa_gda | tar -x -C "$2" || die "revision $1 has no headers"
}
