#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up and runs tests.
#
#   scripts/test.sh [-v]             the steps that a change needs: about 10 minutes on two idle cores
#   scripts/test.sh [-v] --all       every step that this machine can run: about 35 minutes
#   scripts/test.sh [-v] STEP…       these steps, and the steps that they need
#   scripts/test.sh --list           the steps
#
# -v names every skipped test. A step or test that this machine cannot run is printed as SKIPPED with the reason. The
# last line is "N passed, N failed, N skipped": each test of cargo test counts as one, and so does each other step.
# Logs are in <target directory>/test-logs.
#
# EFA_GDA_REQUIRE=gpu,verbs     tests that need one of these fail if the machine lacks it, instead of being skipped
# EFA_GDA_FUZZ_SECONDS=N        how long each fuzz target runs
# EFA_GDA_TEST_ARCHITECTURES=…  the GPUs that the step kernels compiles for, such as sm_80,sm_90
# CARGO_TARGET_DIR, CUDA_TOOLKIT, LIBFABRIC_PATH and RDMA_CORE_INCLUDE name existing directories or files.
#
# Exit status: 0 nothing failed; 1 a step failed, or the machine could not be set up; 2 usage; 130 SIGINT; 143 SIGTERM.
# After a signal no process of the run is left.
set -euo pipefail

LIB=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib
# shellcheck source=scripts/lib/setup.sh
source "$LIB/setup.sh"
# shellcheck source=scripts/lib/run.sh
source "$LIB/run.sh"
# shellcheck source=scripts/lib/count.sh
source "$LIB/count.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$LIB/fetch.sh"
# shellcheck source=scripts/lib/steps.sh
source "$LIB/steps.sh"

ALL=''
VERBOSE=''
CHOSEN=()
LEFT=()

# ---- the command line ---------------------------------------------------------------

# field STEP N: column N of the table.
field() { awk -v name="$1" -v column="$2" '$1 == name { print $column }' <<<"$STEPS"; }

# steps_of SET: the names of a set, in the table's order; every step for "all".
steps_of() { awk -v set="$1" 'NF && (set == "all" || $2 == set) { print $1 }' <<<"$STEPS"; }

list_steps() {
  awk 'BEGIN { print "STEP        RUN      DESCRIPTION" }
    NF { line = sprintf("%-11s %-8s", $1, $2 == "all" ? "--all" : $2); for (i = 6; i <= NF; i++) line = line " " $i; print line }' \
    <<<"$STEPS"
}

is_chosen() { [[ " ${CHOSEN[*]} " == *" $1 "* ]]; }

# Sets CHOSEN to the steps to run, in the table's order, with the steps that they need.
choose_steps() {
  local name needs
  for name in "$@"; do
    [[ -n $(field "$name" 1) ]] || wrong_usage "no step is called \"$name\"; scripts/test.sh --list names them"
  done
  CHOSEN=("$@")
  for name in "$@"; do
    needs=$(field "$name" 5)
    [[ $needs == - ]] || is_chosen "$needs" || CHOSEN+=("$needs")
  done
  mapfile -t CHOSEN < <(for name in $(steps_of all); do if is_chosen "$name"; then echo "$name"; fi; done)
}

read_arguments() {
  local argument names=()
  for argument in "$@"; do
    case $argument in
    -h | --help) print_help "${BASH_SOURCE[0]}"; exit 0 ;;
    --list) list_steps; exit 0 ;;
    --all) ALL=yes ;;
    -v | --verbose) VERBOSE=yes ;;
    -*) wrong_usage "unknown option \"$argument\"" ;;
    *) names+=("$argument") ;;
    esac
  done
  [[ -z $ALL || ${#names[@]} -eq 0 ]] || wrong_usage '--all runs every step; give either --all or steps'
  if [[ -n $ALL ]]; then
    mapfile -t names < <(steps_of all)
  elif [[ ${#names[@]} -eq 0 ]]; then
    mapfile -t names < <(steps_of default)
  fi
  choose_steps "${names[@]}"
}

# ---- setting up ---------------------------------------------------------------------

# What the run needs of the disk and of the user's time. Fails if the disk lacks it.
announce() {
  local name seconds=20 mb=0 used free
  for name in "${CHOSEN[@]}"; do
    seconds=$((seconds + $(field "$name" 3)))
    mb=$((mb + $(field "$name" 4)))
  done
  # CUDA's compilers and upstream headers.
  if is_chosen tests || is_chosen kernels || is_chosen asan || is_chosen nvcc; then mb=$((mb + 600)); fi
  used=$({ du -sm "$TARGET" "$ROOT/.cache" 2>/dev/null || true; } | awk '{ sum += $1 } END { print sum + 0 }')
  free=$(df -Pm "$TARGET" | awk 'NR == 2 { print $4 }')
  printf 'steps: %s\n' "${CHOSEN[*]}"
  printf 'from a fresh clone on two idle cores: about %d min and %d.%d GB; in use %d.%d GB, free %d.%d GB (%s)\n' \
    $(((seconds + 59) / 60)) $((mb / 1000)) $((mb % 1000 / 100)) $((used / 1000)) $((used % 1000 / 100)) \
    $((free / 1000)) $((free % 1000 / 100)) "$TARGET"
  if ((mb > used && free < mb - used)); then
    say "$TARGET has $free MB free, and this run needs $((mb - used)) MB more; free some, or name another directory with CARGO_TARGET_DIR"
    return 1
  fi
}

set_up() {
  choose_target_dir
  TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
  LOGS=$TARGET/test-logs
  mkdir -p "$LOGS" || return 1
  cd -- "$ROOT"
  announce || return 1
  want gcc have_c_compiler
  want libc6-dev have_c_compiler
  want g++ have_cxx_compiler
  want binutils have readelf
  want libfabric1 have_libfabric
  want libfabric-bin have fi_info
  want python3 have python3
  want python3-venv python3 -c 'import ensurepip, venv' 2>/dev/null
  # Without these a step is skipped.
  if have apt-get && can_be_root; then
    if is_chosen shellcheck; then want shellcheck have shellcheck; fi
    if is_chosen install; then want pkgconf have pkg-config; fi
    if is_chosen containers && have docker; then
      want debootstrap have debootstrap
      want docker-compose have_compose
    fi
    if is_chosen bindings || is_chosen upstream; then want libclang-dev have_libclang; fi
  fi
  if [[ ${#MISSING[@]} -gt 0 ]]; then
    begin 'installing packages'
    install_missing &
    await "$!" || return 1
  fi
  find_rust || return 1
  fetch_in_background
}

# Downloads run while the build keeps the processors busy. A step that needs one waits for it.
fetch_in_background() {
  local name
  for name in tests kernels asan nvcc; do
    if is_chosen "$name" && [[ -z ${TOOLKIT_FETCH:-} ]]; then
      launch "$LOGS/cuda-toolchain.log" 600 bash -c "scripts/cuda_toolchain.sh >\"\$1\"" - "$LOGS/cuda-toolchain"
      TOOLKIT_FETCH=$!
    fi
  done
  if is_chosen upstream || { [[ -z ${RDMA_CORE_INCLUDE:-} ]] && { is_chosen tests || is_chosen asan; }; }; then
    fetch_upstream rdma-core libfabric >"$LOGS/upstream-headers.log" 2>&1 </dev/null &
    HEADERS_FETCH=$!
  fi
}

TOOLKIT=''
NO_TOOLKIT=''
# Waits for CUDA's compilers. Tests record why they skip without them.
with_toolkit() {
  [[ -n ${TOOLKIT_FETCH:-} ]] || return 0
  begin "waiting for CUDA's compilers" 2
  if await "$TOOLKIT_FETCH"; then
    TOOLKIT=$(<"$LOGS/cuda-toolchain")
    export LD_LIBRARY_PATH=$TOOLKIT/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  else
    NO_TOOLKIT=$(tail -n 1 "$LOGS/cuda-toolchain.log")
  fi
  TOOLKIT_FETCH=''
}

# Waits for rdma-core's headers. The step upstream reports why they could not be fetched.
with_headers() {
  [[ -n ${HEADERS_FETCH:-} ]] || return 0
  begin 'waiting for upstream headers' 2
  if await "$HEADERS_FETCH" && [[ -z ${RDMA_CORE_INCLUDE:-} ]]; then
    export RDMA_CORE_INCLUDE=$UPSTREAM/rdma-core/include
  fi
  HEADERS_FETCH=''
}

# ---- running ------------------------------------------------------------------------

interrupted() {
  printf 'INTERRUPTED by %s%s\n' "$1" "${RUNNING:+ while running $RUNNING}"
  [[ ${#LEFT[@]} -eq 0 ]] || printf 'not completed: %s\n' "${LEFT[*]}"
  printf 'interrupted: '
  summary
}

main() {
  local name needs broken=' '
  read_arguments "$@"
  AFTER_INTERRUPT=interrupted
  guard
  LEFT=("${CHOSEN[@]}")
  if ! set_up; then
    fail 'setting up' 'the reason is above'
    LEFT=()
  fi
  while [[ ${#LEFT[@]} -gt 0 ]]; do
    name=${LEFT[0]}
    needs=$(field "$name" 5)
    if [[ $broken == *" $needs "* ]]; then
      skip "$name" "$needs failed"
    elif ! "step_$name"; then
      broken+="$name "
    fi
    RUNNING=''
    LEFT=("${LEFT[@]:1}")
  done
  summary
  [[ $FAILED -eq 0 ]]
}

main "$@"
