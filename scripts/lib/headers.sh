# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The device headers that measurements compare: NCCL's, and those of an earlier revision. Sourced after setup.sh.

PEER_PACKAGE=nvidia-nccl-cu13==2.32.3

# Prints the directory of NCCL's headers: NCCL_INCLUDE, or the PyPI package's, downloaded once.
peer_headers() {
  if [[ -n "${NCCL_INCLUDE:-}" ]]; then
    printf '%s\n' "$NCCL_INCLUDE"
    return
  fi
  local to=$ROOT/.cache/${PEER_PACKAGE//==/-}
  if [[ ! -e $to/.complete ]]; then
    rm -rf -- "$to"
    mkdir -p -- "$to"
    python3 -m pip download --quiet --no-deps --disable-pip-version-check -d "$to" "$PEER_PACKAGE" >&2 || return 1
    python3 - "$to" <<'PY' || return 1
import glob, sys, zipfile
to = sys.argv[1]
with zipfile.ZipFile(glob.glob(to + "/*.whl")[0]) as wheel:
    wheel.extractall(to, [name for name in wheel.namelist() if "/include/" in name])
PY
    rm -f -- "$to"/*.whl
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
