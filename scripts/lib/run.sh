# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs commands with a time limit, counts results, and ends every process at an interrupt. Sourced by test.sh, which sets
# LOGS and VERBOSE.
#
# Each command leads a session, in which its descendants stay, whatever process groups they make. Nothing of a session
# outlives its command.

PASSED=0
FAILED=0
SKIPPED=0
# Of each job: its process while it runs, and when it began.
declare -A JOB=() BEGAN=()

result() { printf '%-8s %s\n' "$1" "$2"; }
pass() { PASSED=$((PASSED + 1)); result ok "$1"; }
fail() { FAILED=$((FAILED + 1)); result FAILED "$1"; }
skip() { SKIPPED=$((SKIPPED + 1)); result SKIPPED "$1: $2"; }
summary() { printf '%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"; }

log_of() { echo "$LOGS/${1//[^A-Za-z0-9]/-}.log"; }

# ---- jobs ---------------------------------------------------------------------------

# start NAME LIMIT COMMAND…: starts a job without input, whose output goes to its log. A shell lets its background
# processes ignore SIGINT, which programs under test must not inherit.
start() {
  result running "$1"
  BEGAN[$1]=$SECONDS
  env --default-signal=INT,QUIT setsid timeout --kill-after=10 "${@:2}" </dev/null >"$(log_of "$1")" 2>&1 &
  JOB[$1]=$!
}

# await NAME: waits for a job and returns its status. A signal interrupts the wait.
await() {
  local process=${JOB[$1]} status=0
  wait "$process" || status=$?
  end_sessions "$process"
  unset 'JOB[$1]'
  return "$status"
}

# failed NAME STATUS: shows the end of the log.
failed() {
  local why="exit status $2"
  [[ $2 -ne 124 && $2 -ne 137 ]] || why='stopped at its time limit'
  tail -n 60 "$(log_of "$1")"
  fail "$1: $why; log: $(log_of "$1")"
}

# step NAME LIMIT COMMAND…: runs a job, or waits for it if it runs already. Exit status 77 with a line "SKIPPED: reason"
# is a skip, as setup.sh's function skipped ends a test. With EARLY, only starts it.
step() {
  local status=0 reason
  [[ -n ${JOB[$1]:-} ]] || start "$@"
  [[ -z ${EARLY:-} ]] || return 0
  await "$1" || status=$?
  reason=$(sed -n 's/^SKIPPED: //p' "$(log_of "$1")" | tail -n 1)
  if [[ $status -eq 0 ]]; then
    pass "$1 ($((SECONDS - ${BEGAN[$1]})) s)"
  elif [[ $status -eq 77 && -n $reason ]]; then
    skip "$1" "$reason"
  else
    failed "$1" "$status"
    return 1
  fi
}

# ---- tests of cargo -----------------------------------------------------------------

# cargo_tests NAME LIMIT ARGUMENT…: as step, of cargo test, and counts each test. A test that cannot run appends
# PROGRAM::NAME, a tab and the reason to the file EFA_GDA_TEST_SKIPS. Tests whose names contain LEAVE_OUT do not run.
cargo_tests() {
  local log skips status=0 passed broken ignored skipped
  log=$(log_of "$1")
  skips=${log%.log}.skips
  if [[ -z ${JOB[$1]:-} ]]; then
    : >"$skips"
    EFA_GDA_TEST_SKIPS=$skips start "$1" "$2" \
      cargo test --locked --no-fail-fast "${@:3}" ${LEAVE_OUT:+-- --skip "$LEAVE_OUT"}
  fi
  [[ -z ${EARLY:-} ]] || return 0
  await "$1" || status=$?
  # A test may record its skip more than once.
  sort -u -t "$(printf '\t')" -k 1,1 -o "$skips" "$skips"
  skipped=$(wc -l <"$skips")
  # Not in the output of a failed test, which may be that of a child.
  sed -n '/^---- /,/^ *Running/!s/^test \(.*\) \.\.\. ignored,\{0,1\} *\(.*\)/\1\t\2/p' "$log" >>"$skips"
  read -r passed broken ignored < <(tally "$log")
  PASSED=$((PASSED + passed - skipped)) SKIPPED=$((SKIPPED + skipped + ignored))
  report_skips "$1" "$skips"
  if [[ $status -eq 0 ]]; then
    result ok "$1: $((passed - skipped)) tests ($((SECONDS - ${BEGAN[$1]})) s)"
    return 0
  fi
  grep -E '^test .* \.\.\. FAILED$' "$log" || true
  FAILED=$((FAILED + (broken > 1 ? broken - 1 : 0)))
  failed "$1" "$status"
  return 1
}

# tally LOG: prints how many tests passed, failed and were ignored. Of each program the last result line counts, because
# the output of a failed test may hold that of a child; of rustdoc, which prints one for each group of examples, all.
tally() {
  awk '
    function add() { passed += p; failed += f; ignored += i; p = f = i = 0 }
    /^ +(Running|Doc-tests) / { add(); doc = /Doc-tests/ }
    /^test result:/ { if (doc) add(); p = $4; f = $6; i = $8 }
    END { add(); print passed + 0, failed + 0, ignored + 0 }' "$1"
}

# report_skips NAME FILE: one line for each reason; with -v, the names of the tests too.
report_skips() {
  local count reason
  while read -r count reason; do
    result SKIPPED "$1: $reason ($count test$([[ $count -eq 1 ]] || echo s))"
    [[ -z $VERBOSE ]] || awk -F '\t' -v reason="$reason" '$2 == reason { print "             " $1 }' "$2"
  done < <(cut -f 2- "$2" | sort | uniq -c)
}

# ---- interruption -------------------------------------------------------------------

# members SESSION…: the leaders of these sessions, their members and descendants that have not ended.
members() {
  { echo "$@"; cat /proc/[0-9]*/stat 2>/dev/null; } | awk '
    NR == 1 { for (i = 1; i <= NF; i++) wanted[$i]; next }
    { pid = $1; sub(/.*\) /, ""); if ($1 !~ /[ZX]/) { parent[pid] = $2; session[pid] = $4 } }
    END {
      do {
        more = 0
        for (pid in session) if (pid in wanted || session[pid] in wanted || parent[pid] in wanted) {
          print pid
          wanted[pid]
          delete session[pid]
          more = 1
        }
      } while (more)
    }' || true
}

# end_sessions SESSION…: SIGTERM first, so that programs remove their directories; SIGKILL after two seconds, or ten where
# containers are to be removed. Leaders are not sent SIGTERM: timeout would pass it on to clean-up that has begun.
end_sessions() {
  local turn signal=TERM patience=20 pid pids
  [[ -z ${JOB[containers]:-} ]] || patience=100
  for ((turn = 0; turn < patience + 30; turn++)); do
    mapfile -t pids < <(members "$@")
    [[ ${#pids[@]} -gt 0 ]] || return 0
    [[ $turn -lt $patience ]] || signal=KILL
    for pid in "${pids[@]}"; do
      [[ $signal == TERM && ($turn -gt 0 || " $* " == *" $pid "*) ]] || kill -s "$signal" "$pid" 2>/dev/null || true
    done
    # A descendant that made a session must be found when its parent has ended.
    set -- "$@" "${pids[@]}"
    sleep 0.1
  done
  echo "still running after SIGKILL: ${pids[*]}" >&2
}

# interrupted NAME NUMBER: ends the run after a signal.
interrupted() {
  trap '' HUP INT PIPE TERM
  trap - EXIT
  # The reader of the output has gone.
  [[ $1 != SIGPIPE ]] || exec >/dev/null 2>&1
  printf 'INTERRUPTED by %s\n' "$1${JOB[*]:+ while running ${!JOB[*]}}"
  end_sessions "${JOB[@]}"
  printf 'interrupted: '
  summary
  exit $((128 + $2))
}

guard() {
  trap 'interrupted SIGHUP 1' HUP
  trap 'interrupted SIGINT 2' INT
  trap 'interrupted SIGPIPE 13' PIPE
  trap 'interrupted SIGTERM 15' TERM
  trap 'end_sessions "${JOB[@]}"' EXIT
}
