#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Compares every size, offset and constant of third_party/efa_gda/ with upstream copies:
#
#   scripts/check_interfaces.sh [FILE|DIR …]
#
# FILE is rdma-core's efa_io_defs.h. DIR contains libfabric's rdma/fabric.h, or is a source tree of either. Without
# arguments, the script fetches the source packages of rdma-core and libfabric from Debian sid through this machine's
# apt configuration, verifies their signatures, and reuses them for a week (.cache/upstream).
#
# Exit status: 0 no difference, 1 differences, 2 usage or an upstream that cannot be read, 77 SKIPPED, because nothing
# could be fetched.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"

main() {
  case ${1:-} in -*) help_or_nothing "$1" ;; esac
  want g++ have_cxx_compiler
  want python3 have python3
  install_missing || exit 2

  local -a upstream=("$@")
  if [[ $# -eq 0 ]]; then
    local reason
    reason=$(fetch_upstream rdma-core libfabric 2>&1) || skipped "$reason"
    [[ -z $reason ]] || say "$reason"
    upstream=("$UPSTREAM/rdma-core/source" "$UPSTREAM/libfabric/source")
    echo "rdma-core $(<"$UPSTREAM/rdma-core/version"), libfabric $(<"$UPSTREAM/libfabric/version"), from Debian sid"
  fi
  exec python3 -B "$ROOT/scripts/lib/interfaces.py" "$ROOT/third_party/efa_gda" "${upstream[@]}"
}

main "$@"
