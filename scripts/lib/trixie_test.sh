#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs gda-probe on libfabric 2.1, Debian trixie's, through trixie's own dynamic loader: the software adapter is
# found and verified there, and without it the probe says that this release has no GDA operations.
#
#   trixie_test.sh PROBE      the built program; libsoftefa.so lies beside it
#
# Exit status 77, with one line that begins "SKIPPED: ", where the packages cannot be had.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=scripts/lib/upstream.sh
source "$ROOT/scripts/lib/upstream.sh"

PROBE=$(realpath -- "$1")
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT

if ! fetch_trixie_libfabric 2>"$SCRATCH/why"; then
  echo "SKIPPED: $(tail -n 1 "$SCRATCH/why")"
  exit 77
fi
LIBRARIES=$(dirname -- "$(compgen -G "$TRIXIE/root/usr/lib/*/libfabric.so.1")")
LOADER=$(compgen -G "$LIBRARIES/ld-linux-*.so.*" || compgen -G "$TRIXIE/root/usr/lib*/ld-linux-*.so.*")

# probe STATUS FILE ARGUMENT…: stdout into FILE, and the exit status that it must end with.
probe() {
  local wanted=$1 file=$2 status=0
  shift 2
  env -u LD_LIBRARY_PATH -u LIBFABRIC_PATH "$LOADER" --library-path "$LIBRARIES" "$PROBE" "$@" --gpu none \
    --time-limit 30000 --json >"$file" || status=$?
  [[ $status -eq $wanted ]] && return 0
  cat "$file"
  echo "gda-probe $*: exit status $status, not $wanted"
  return 1
}

# holds FILE EXPRESSION: a statement about the document in FILE; check(CODE) is the check with that code.
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

# Without the software adapter: the release is named, and what it lacks, with the fix. (Status 3: this fails, on a
# machine with an adapter too.)
BARE=$SCRATCH/bare.json
probe 3 "$BARE" check
holds "$BARE" '"libfabric 2.1," in check("LIB-002")["observed"]'
holds "$BARE" 'check("GDA-001")["state"] == "fail" and "need libfabric 2.3" in check("GDA-001")["required"]'
holds "$BARE" 'check("GDA-001")["fix"] and check("GDA-001")["who"] == "image"'
holds "$BARE" "check('LIB-004')['observed'].startswith('$LIBRARIES/')"
