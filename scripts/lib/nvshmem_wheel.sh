#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Downloads NVSHMEM from pip's package index into .cache/nvshmem, once, and prints the directory that holds include/ and
# lib/. NVSHMEM_HOME=DIR prints DIR instead. Needs the Python of scripts/cuda_toolchain.sh. Exit status: 0, or 1 with
# the reason on stderr.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

PACKAGE=nvidia-nvshmem-cu13==3.8.0
PLACE=$ROOT/.cache/nvshmem-${PACKAGE##*=}

help_or_nothing "$@"
if [[ -n ${NVSHMEM_HOME:-} ]]; then
  printf '%s\n' "$NVSHMEM_HOME"
  exit 0
fi
exec 9>"$ROOT/.cache/nvshmem.lock"
flock 9
if [[ ! -e $PLACE/.complete ]]; then
  say "downloading $PACKAGE (180 MB) into $PLACE"
  rm -rf -- "$PLACE"
  "$ROOT/.cache/cuda/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$PLACE" "$PACKAGE" >&2 ||
    die "pip could not install $PACKAGE"
  touch "$PLACE/.complete"
fi
printf '%s\n' "$PLACE/nvidia/nvshmem"
