# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs commands with a time limit, progress lines and clean interruption; counts results. Sourced after setup.sh.
#
# Every process of a run carries EFA_GDA_TEST_RUN in its environment. A process that left its parent and its
# process group is found by that mark, so that an interrupt stops it as well.

PASSED=0
FAILED=0
SKIPPED=0

RUN_MARK=$$-$RANDOM
# A run may start another; the outer run must find the processes of the inner one.
export EFA_GDA_TEST_RUN=${EFA_GDA_TEST_RUN:+$EFA_GDA_TEST_RUN/}$RUN_MARK

# probe.sh sets these: its stdout belongs to gda-probe.
PROGRESS_FD=${PROGRESS_FD:-1}
PROGRESS_PREFIX=${PROGRESS_PREFIX:-running  }
RUNNING=''
STARTED=0
NEXT_REPORT=0
RUNNING_LOG=''

# ---- results ------------------------------------------------------------------------

result() {
  clear_progress
  printf '%-8s %s\n' "$1" "$2"
}

pass() {
  PASSED=$((PASSED + 1))
  result ok "$1 ($2 s)"
}

fail() {
  FAILED=$((FAILED + 1))
  result FAILED "$1: $2"
}

skip() {
  SKIPPED=$((SKIPPED + 1))
  result SKIPPED "$1: $2"
}

summary() { printf '%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"; }

# describe_status STATUS LIMIT: why a command ended.
describe_status() {
  case $1 in
  124 | 137) echo "stopped at its time limit of $2 s" ;;
  *) echo "exit status $1" ;;
  esac
}

# ---- progress -----------------------------------------------------------------------

on_terminal() { [[ -t $PROGRESS_FD && ${TERM:-dumb} != dumb ]]; }

clear_progress() { if on_terminal; then printf '\r\033[K' >&"$PROGRESS_FD"; fi; }

# begin NAME [DELAY]: progress reports NAME from now on, or after DELAY seconds.
begin() {
  RUNNING=$1
  STARTED=$SECONDS
  NEXT_REPORT=${2:-0}
  RUNNING_LOG=''
  progress
}

# A terminal shows the elapsed time in place. A pipe gets a line at the start and every 30 s.
progress() {
  local elapsed=$((SECONDS - STARTED)) time='…' detail=''
  ((elapsed >= NEXT_REPORT)) || return 0
  on_terminal || NEXT_REPORT=$((elapsed + 30))
  [[ $elapsed -lt 5 ]] || time=" $elapsed s"
  if [[ -s $RUNNING_LOG && $(tail -n 1 "$RUNNING_LOG") == *'Blocking waiting for file lock'* ]]; then
    detail=', waiting for another cargo'
  fi
  clear_progress
  printf '%s%s %s%s' "$PROGRESS_PREFIX" "$RUNNING" "$time" "$detail" >&"$PROGRESS_FD"
  on_terminal || echo >&"$PROGRESS_FD"
}

# ---- running ------------------------------------------------------------------------

# launch LOG LIMIT COMMAND…: starts a program in the background; $! is its process. Background processes of a shell
# ignore SIGINT, and programs under test must not inherit that.
launch() {
  local log=$1 limit=$2
  shift 2
  env --default-signal=INT,QUIT timeout --kill-after=10 "$limit" "$@" </dev/null >"$log" 2>&1 &
}

# await PROCESS: shows progress until a background process ends; returns its status. A signal interrupts the builtin
# wait. It would neither interrupt a foreground command nor run a trap safely within read -t.
await() {
  local tick status=0
  while kill -0 "$1" 2>/dev/null; do
    progress
    sleep 1 &
    tick=$!
    wait -n "$1" "$tick" || true
  done
  kill "${tick:-}" 2>/dev/null || true
  wait "$1" || status=$?
  return "$status"
}

# run_logged LOG LIMIT COMMAND…: without input.
run_logged() {
  launch "$@"
  RUNNING_LOG=$1
  await "$!"
}

log_of() { echo "$LOGS/${1//[^A-Za-z0-9]/-}.log"; }

# step NAME LIMIT COMMAND…: one line on success; the end of the log on failure. Exit status 77 with a line
# "SKIPPED: reason" is a skip.
step() {
  local name=$1 limit=$2 log status=0
  shift 2
  log=$(log_of "$name")
  begin "$name"
  run_logged "$log" "$limit" "$@" || status=$?
  case $status in
  0) pass "$name" "$((SECONDS - STARTED))" ;;
  77) skip "$name" "$(sed -n 's/^SKIPPED: //p' "$log" | tail -n 1)" ;;
  *)
    clear_progress
    tail -n 60 "$log"
    fail "$name" "$(describe_status "$status" "$limit"); log: $log"
    return 1
    ;;
  esac
}

# ---- interruption -------------------------------------------------------------------

# The processes of this run that have not ended: those that carry its mark, and all descendants of this shell and
# of those.
remaining() {
  local marked pid pids
  marked=$(env -u EFA_GDA_TEST_RUN grep -lzs "^EFA_GDA_TEST_RUN=.*$RUN_MARK" /proc/[0-9]*/environ |
    sed 's|/proc/\([0-9]*\)/.*|\1|' | tr '\n' ' ') || true
  # A process name may hold spaces and parentheses.
  pids=$(cat /proc/[0-9]*/stat 2>/dev/null | sed -nE 's/^([0-9]+) \(.*\) ([A-Z]) ([0-9]+) .*/\1 \2 \3/p' |
    awk -v shell=$$ -v marked="$marked" '
      BEGIN { split(marked, list); for (i in list) root[list[i]]; root[shell] }
      { state[$1] = $2; parent[$1] = $3 }
      END {
        for (pid in state) {
          if (pid == shell || state[pid] ~ /[ZX]/) continue
          for (up = pid; up > 1 && !(up in root); up = parent[up]);
          if (up > 1) print pid
        }
      }') || true
  for pid in $pids; do
    # The processes of this pipeline have ended by now; this subshell has not.
    if [[ -d /proc/$pid && $pid != "$BASHPID" ]]; then echo "$pid"; fi
  done
}

# any_alive PROCESS…: starts no process, because a scan takes long on a loaded machine.
any_alive() {
  local pid stat
  for pid in "$@"; do
    { read -r stat <"/proc/$pid/stat"; } 2>/dev/null || continue
    [[ ${stat##*) } == [ZX]* ]] || return 0
  done
  return 1
}

# SIGTERM first, so that programs remove their directories; SIGKILL after a second.
end_everything() {
  local signal turn pids
  for signal in TERM KILL KILL KILL; do
    mapfile -t pids < <(remaining)
    if [[ ${#pids[@]} -eq 0 ]]; then
      # A process that is executing another program has no environment, and so no mark, for a moment.
      sleep 0.2
      mapfile -t pids < <(remaining)
      [[ ${#pids[@]} -gt 0 ]] || return 0
    fi
    kill -s "$signal" "${pids[@]}" 2>/dev/null || true
    for ((turn = 0; turn < 10; turn++)); do
      any_alive "${pids[@]}" || break
      sleep 0.1
    done
  done
  any_alive "${pids[@]}" || return 0
  printf 'still running after SIGKILL: %s\n' "${pids[*]}" >&2
}

# on_signal NAME NUMBER: AFTER_INTERRUPT, a function, prints what the caller has to report.
on_signal() {
  trap '' INT TERM HUP PIPE
  trap - EXIT
  # The reader of the output has gone.
  [[ $1 != SIGPIPE ]] || exec >/dev/null 2>&1
  clear_progress
  end_everything
  ${AFTER_INTERRUPT:-:} "$1" || true
  exit $((128 + $2))
}

guard() {
  trap 'on_signal SIGHUP 1' HUP
  trap 'on_signal SIGINT 2' INT
  trap 'on_signal SIGPIPE 13' PIPE
  trap 'on_signal SIGTERM 15' TERM
  trap 'end_everything' EXIT
}
