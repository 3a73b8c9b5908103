#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs gda-probe on libfabric 2.1 of Debian trixie, through trixie's dynamic loader: the probe finds and verifies the
# software adapter there, and without that adapter it reports that this release has no GDA operations.
#
#   trixie_test.sh PROBE      the built program; libsoftefa.so is in its directory
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"

REPORT=$(mktemp)
trap 'rm -f -- "$REPORT"' EXIT
WHY=$(fetch_suite trixie "${TRIXIE_PACKAGES[@]}" 2>&1) || skipped "$WHY"
LIBRARIES=$(suite_lib trixie)

# probe STATUS ARGUMENT…: writes REPORT; the program must end with STATUS.
probe() {
  local status=0
  env -u LD_LIBRARY_PATH -u LIBFABRIC_PATH "$(suite_loader trixie)" --library-path "$LIBRARIES" "$PROBE" "${@:2}" \
    --gpu none --time-limit 60000 --json >"$REPORT" || status=$?
  [[ $status -eq $1 ]] || { cat "$REPORT"; die "gda-probe ${*:2}: exit status $status, not $1"; }
}

PROBE=$(realpath -- "$1")
probe 0 check --soft
holds "$REPORT" '"libfabric 2.1," in check("LIB-002")["observed"]'
holds "$REPORT" "check('LIB-001')['observed'].startswith('$LIBRARIES/')"
holds "$REPORT" 'check("FAB-002")["observed"] == "efa-direct on softefa0-rdm"'
holds "$REPORT" 'report["put"]["verified"] is True'

# The probe names the missing operations and the fix. Status 3: the check fails on a machine with an adapter too.
probe 3 check
holds "$REPORT" '"libfabric 2.1," in check("LIB-002")["observed"]'
holds "$REPORT" 'check("GDA-001")["state"] == "fail" and "need libfabric 2.3" in check("GDA-001")["required"]'
holds "$REPORT" 'check("GDA-001")["fix"] and check("GDA-001")["who"] == "image"'
holds "$REPORT" "check('LIB-004')['observed'].startswith('$LIBRARIES/')"
