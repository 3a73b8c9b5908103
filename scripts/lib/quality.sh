# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Steps of test.sh beyond building and cargo test: another libfabric, AddressSanitizer, fuzzing.
# Sourced by test.sh, whose pass, fail, skip, step and run_logged they call.

# step_or_skip NAME LIMIT COMMAND…: as step, and exit status 77 with a line "SKIPPED: reason" is a skip.
step_or_skip() {
  local name=$1 limit=$2 log status=0 start=$SECONDS
  shift 2
  log=$LOGS/${name//[^A-Za-z0-9]/-}.log
  run_logged "$log" "$limit" "$@" || status=$?
  case $status in
  0) pass "$name" "$((SECONDS - start))" ;;
  77) skip "$name" "$(sed -n 's/^SKIPPED: //p' "$log" | tail -n 1)" ;;
  *)
    tail -n 60 "$log"
    fail "$name" "$(describe_status "$status" "$limit"); the whole log is $log"
    ;;
  esac
}

# gda-probe on Debian trixie's libfabric. (Debian 12's, 1.17, is the one that cargo test runs it on there.)
libfabric_2_1() {
  step_or_skip 'gda-probe on libfabric 2.1' 400 scripts/lib/trixie_test.sh "$TARGET/debug/gda-probe"
}
