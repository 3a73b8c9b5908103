#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up, builds gda-probe and runs it with the arguments. If there is no EFA adapter and the command uses
# one, adds --soft and says so on stderr, except where the result is one about this machine: report, --npd,
# --prometheus and --root. The exit status is gda-probe's, or 1 after a message that begins "probe.sh:" if setting up or
# building failed.
#
# EFA_GDA_PROBE_DEV=1 runs the build of the tests instead of a release build.
set -euo pipefail

# Messages and progress go to stderr: stdout belongs to gda-probe.
PROGRESS_FD=2
PROGRESS_PREFIX='probe.sh: '
LIB=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib
# shellcheck source=scripts/lib/setup.sh
source "$LIB/setup.sh"
# shellcheck source=scripts/lib/run.sh
source "$LIB/run.sh"

remove_scratch() { rm -rf -- "$SCRATCH"; }

# build_probe [-p CRATE…]: builds, and sets PROBE to the program that cargo reports.
build_probe() {
  local status=0 what=(--release -p gda-probe -p softefa "$@")
  # What test.sh builds: fewer packages would have other features and be compiled again.
  [[ -z ${EFA_GDA_PROBE_DEV:-} ]] || what=(--workspace --lib --bins --tests --examples)
  SCRATCH=$(mktemp -d)
  AFTER_INTERRUPT=remove_scratch
  # An up-to-date program needs no message.
  begin 'building gda-probe (a few minutes the first time)' 2
  RUNNING_LOG=$SCRATCH/log
  (cd -- "$ROOT" && exec cargo build --locked "${what[@]}" \
    --message-format=json-render-diagnostics) </dev/null >"$SCRATCH/messages" 2>"$SCRATCH/log" &
  await "$!" || status=$?
  clear_progress
  [[ $status -eq 0 ]] || cat "$SCRATCH/log" >&2
  PROBE=$(sed -n 's/.*"executable":"\(\([^"\\]\|\\.\)*\)".*/\1/p' "$SCRATCH/messages" | sed 's/\\\(.\)/\1/g' |
    grep -E '/gda-probe$' | tail -n 1) || true
  remove_scratch
  return "$status"
}

# uses_adapter ARGUMENT…: whether the command is one that opens an adapter.
uses_adapter() {
  local argument
  for argument in "$@"; do
    case $argument in
    decode | explain | completions | man | -h | --help | -V | --version) return 1 ;;
    esac
  done
}

# judges_machine ARGUMENT…: whether a reader takes the result for one about this machine.
judges_machine() {
  local argument
  for argument in "$@"; do
    case $argument in
    report | --npd | --prometheus | --prometheus=* | --root | --root=*) return 0 ;;
    esac
  done
  return 1
}

main() {
  local soft=() more=() argument
  for argument in "$@"; do
    # With rdma-core the software adapter is a program and a library in gda-probe's directory.
    [[ $argument != verbs && $argument != --via=verbs ]] || more=(-p softefa-uverbs -p softefa-preload)
  done
  if uses_adapter "$@" && ! has_efa_adapter; then
    want libfabric1 have_libfabric
    soft=(--soft)
    for argument in "$@"; do
      [[ $argument == --soft ]] && soft=()
    done
    judges_machine "$@" && soft=()
    [[ ${#soft[@]} -eq 0 ]] || say 'this machine has no EFA adapter; adding --soft, which uses the software adapter'
  fi
  want gcc have_c_compiler
  want libc6-dev have_c_compiler
  want g++ have_cxx_compiler
  install_missing || die "setting up failed; gda-probe did not run"
  find_rust || die "setting up failed; gda-probe did not run"
  choose_target_dir

  guard
  build_probe "${more[@]}" || die "building failed; gda-probe did not run"
  [[ -x $PROBE ]] || die "the build left no gda-probe; it did not run"
  unset EFA_GDA_TEST_RUN
  trap - EXIT HUP INT PIPE TERM
  exec "$PROBE" "${soft[@]}" "$@"
}

main "$@"
