#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs probe.sh as a user does: from another directory and through a link. stdout is JSON only, with a verdict and a
# verified put, the exit status is that of gda-probe, and --soft is not added in silence.
set -euo pipefail

LIB=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
# shellcheck source=scripts/lib/setup.sh
source "$LIB/setup.sh"

SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
mkdir -- "$SCRATCH/a directory"
ln -s -- "$LIB/../probe.sh" "$SCRATCH/a link"
cd -- "$SCRATCH/a directory"

# probe STATUSES ARGUMENT…: writes stdout and stderr into files; the exit status must be one of STATUSES.
probe() {
  local status=0
  "$SCRATCH/a link" "${@:2}" >stdout 2>stderr || status=$?
  [[ " $1 " == *" $status "* ]] || { cat stdout stderr; die "probe.sh ${*:2}: exit status $status, expected $1"; }
}

# 4: warnings about this machine. The time limits suit a busy one.
probe '0 4' --soft --json --time-limit 60000
holds stdout 'report["schema"] == "gda-probe/1" and report["soft"] is True'
holds stdout 'len(report["verdict"]) > 0 and all("result" in v for v in report["verdict"])'
holds stdout 'not any(c["state"] == "fail" for c in report["checks"])'
probe '0 4' put --soft --executor host --op write --bytes 4096 --count 1000 --json --time-limit 60000
holds stdout 'report["put"]["verified"] is True and report["put"]["count"] == 1000'
# The probe is built: the second run says so by not building.
! grep 'building gda-probe' stderr || die 'a probe that is built was built again'
# This command would refuse --soft.
probe 0 explain GDA-001
# Without a probe, the page comes from the documentation, and nothing is built.
CARGO_TARGET_DIR=$SCRATCH/empty probe 0 explain gda-001
grep -q '^GDA-001 The provider is new enough' stdout || die 'explain printed no page'
[[ -z $(find "$SCRATCH/empty" -mindepth 1 2>/dev/null) ]] || die 'explain built something'
CARGO_TARGET_DIR=$SCRATCH/empty probe 2 explain NOT-001
probe 2 --no-such-option
if ! has_efa_adapter; then
  probe '0 4' put --executor host --time-limit 60000
  grep -q 'adding --soft' stderr || die "--soft was added in silence"
  # Its result is one about this machine.
  probe 1 --npd
  ! grep 'adding --soft' stderr || die '--npd ran on the software adapter'
fi
