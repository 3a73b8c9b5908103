#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs gda-probe on libfabric 2.1 of Debian trixie, through trixie's dynamic loader: the probe finds and verifies the
# software adapter there, and without that adapter it reports that this release has no GDA operations.
#
#   trixie_test.sh PROBE      the built program; libsoftefa.so is in its directory
#
# Exit status 77, with one line that begins "SKIPPED: ", if the packages cannot be fetched.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"

PROBE=$(realpath -- "$1")
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT

if ! fetch_suite trixie "${TRIXIE_PACKAGES[@]}" 2>"$SCRATCH/why"; then
  echo "SKIPPED: $(tail -n 1 "$SCRATCH/why")"
  exit 77
fi
LIBRARIES=$(suite_lib trixie)
LOADER=$(suite_loader trixie)

# probe STATUS FILE ARGUMENT…: writes stdout into FILE; the program must end with STATUS.
probe() {
  local wanted=$1 file=$2 status=0
  shift 2
  env -u LD_LIBRARY_PATH -u LIBFABRIC_PATH "$LOADER" --library-path "$LIBRARIES" "$PROBE" "$@" --gpu none \
    --time-limit 60000 --json >"$file" || status=$?
  [[ $status -eq $wanted ]] && return 0
  cat "$file"
  echo "gda-probe $*: exit status $status, not $wanted"
  return 1
}

# holds FILE EXPRESSION: the expression must be true of the document in FILE; check(CODE) is the check with that code.
holds() {
  python3 -c 'import json, sys
report = json.load(open(sys.argv[1]))
def check(code): return next(c for c in report["checks"] if c["code"] == code)
assert eval(sys.argv[2]), f"{sys.argv[2]} does not hold in {report}"' "$1" "$2"
}

CHECK=$SCRATCH/check.json
probe 0 "$CHECK" check --soft
holds "$CHECK" '"libfabric 2.1," in check("LIB-002")["observed"]'
holds "$CHECK" "check('LIB-001')['observed'].startswith('$LIBRARIES/')"
holds "$CHECK" 'check("FAB-002")["observed"] == "efa-direct on softefa0-rdm"'
holds "$CHECK" 'report["put"]["verified"] is True'

PUT=$SCRATCH/put.json
probe 0 "$PUT" put --soft --executor host --op write --bytes 4096 --count 1000
holds "$PUT" 'report["put"]["verified"] is True and report["put"]["completed"] == 1000'

# Without the software adapter, the probe names the release, the missing operations and the fix. Status 3: the check
# fails on a machine with an adapter too.
BARE=$SCRATCH/bare.json
probe 3 "$BARE" check
holds "$BARE" '"libfabric 2.1," in check("LIB-002")["observed"]'
holds "$BARE" 'check("GDA-001")["state"] == "fail" and "need libfabric 2.3" in check("GDA-001")["required"]'
holds "$BARE" 'check("GDA-001")["fix"] and check("GDA-001")["who"] == "image"'
holds "$BARE" "check('LIB-004')['observed'].startswith('$LIBRARIES/')"
