#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Compares every size, offset and constant of third_party/efa_gda/ with upstream copies:
#
#   scripts/check_interfaces.sh [FILE|DIR …]
#
# FILE is rdma-core's efa_io_defs.h or libfabric's fi_ext_efa.h; DIR holds libfabric's
# rdma/fabric.h, or is a source tree of either. Without arguments, the source packages of
# rdma-core and libfabric are fetched from Debian sid through this machine's own apt
# configuration, signatures verified, and kept for a week in .cache/upstream.
#
# Exit status: 0 no difference, 1 differences, 2 an upstream that cannot be read,
# 77 SKIPPED, because nothing could be fetched.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib/setup.sh"
# shellcheck source=scripts/lib/upstream.sh
source "$ROOT/scripts/lib/upstream.sh"

main() {
  case ${1:-} in
  -h | --help)
    sed -n '3,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
  esac
  want gcc have_c_compiler
  want libc6-dev have_c_compiler
  want binutils have readelf
  want python3 have python3
  install_missing || exit 2

  local -a upstream=("$@")
  if [[ $# -eq 0 ]]; then
    local reason
    if ! reason=$(fetch_upstream rdma-core libfabric 2>&1); then
      echo "SKIPPED: $reason"
      exit 77
    fi
    [[ -z $reason ]] || say "$reason"
    upstream=("$UPSTREAM/rdma-core/source" "$UPSTREAM/libfabric/source")
    echo "rdma-core $(<"$UPSTREAM/rdma-core/version"), libfabric $(<"$UPSTREAM/libfabric/version"), from Debian sid"
  fi
  exec python3 "$ROOT/scripts/lib/interfaces.py" --ours "$ROOT/third_party/efa_gda" --cc "${CC:-cc}" \
    "${upstream[@]}"
}

main "$@"
