# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs cargo test and counts passed, failed and skipped tests. Sourced after run.sh.

# tally LOG: prints "passed failed ignored" of a cargo test log, then for each ignored test its name, a tab and its reason.
# Each program's last result line counts: the output of a failed test may hold the result lines of a child. rustdoc
# prints one line for each group of examples, and all of them count.
tally() {
  awk '
    function flush() { passed += p; failed += f; ignored += i; p = f = i = 0 }
    /^ +(Running|Doc-tests) / { flush(); doc = /Doc-tests/; output = 0 }
    /^---- .* ----$/ { output = 1 }
    /^test .* \.\.\. ignored/ && !output {
      reason = $0
      sub(/^test .* \.\.\. ignored,? ?/, "", reason)
      lines = lines $2 "\t" (reason == "" ? "ignored without a reason" : reason) "\n"
    }
    /^test result:/ { if (doc) { p += $4; f += $6; i += $8 } else { p = $4; f = $6; i = $8 } }
    END { flush(); printf "%d %d %d\n%s", passed, failed, ignored, lines }' "$1"
}

# report_skips NAME FILE: one line for each reason; with -v, the names of the tests too.
report_skips() {
  local name=$1 file=$2 count reason
  while read -r count reason; do
    result SKIPPED "$name: $reason ($count test$([[ $count -eq 1 ]] || echo s))"
    [[ -z $VERBOSE ]] || awk -F '\t' -v reason="$reason" '$2 == reason { print "             " $1 }' "$file"
  done < <(cut -f 2- "$file" | sort | uniq -c)
}

# cargo_tests NAME LIMIT ARGUMENT…: counts each test. A test that cannot run appends PROGRAM::NAME, a tab and the reason to
# the file EFA_GDA_TEST_SKIPS. Tests whose names contain LEAVE_OUT do not run.
cargo_tests() {
  begin "$1"
  start_tests "$@"
  finish_tests "$1" "$2" "$!"
}

# start_tests NAME LIMIT ARGUMENT…: in the background; $! is the process, which finish_tests awaits.
start_tests() {
  local log skips
  log=$(log_of "$1")
  skips=${log%.log}.skips
  : >"$skips"
  EFA_GDA_TEST_SKIPS=$skips launch "$log" "$2" \
    cargo test --locked --no-fail-fast "${@:3}" ${LEAVE_OUT:+-- --skip "$LEAVE_OUT"}
}

# finish_tests NAME LIMIT PROCESS
finish_tests() {
  local name=$1 limit=$2 log skips status=0 passed failed ignored skipped
  log=$(log_of "$name")
  skips=${log%.log}.skips
  # shellcheck disable=SC2034 # run.sh reads it
  RUNNING_LOG=$log
  await "$3" || status=$?
  # A test may record its skip more than once.
  sort -u -t "$(printf '\t')" -k 1,1 -o "$skips" "$skips"
  skipped=$(wc -l <"$skips")
  tally "$log" >"$log.tally"
  read -r passed failed ignored <"$log.tally"
  tail -n +2 "$log.tally" >>"$skips"
  rm -f -- "$log.tally"
  passed=$((passed > skipped ? passed - skipped : 0))
  PASSED=$((PASSED + passed))
  SKIPPED=$((SKIPPED + skipped + ignored))
  report_skips "$name" "$skips"
  if [[ $status -eq 0 ]]; then
    result ok "$name: $passed tests ($((SECONDS - STARTED)) s)"
    return 0
  fi
  clear_progress
  grep -E '^test .* \.\.\. FAILED$' "$log" || true
  tail -n 120 "$log"
  ((failed < 2)) || FAILED=$((FAILED + failed - 1))
  fail "$name" "$failed of $((passed + failed)) tests, $(describe_status "$status" "$limit"); log: $log"
  return 1
}
