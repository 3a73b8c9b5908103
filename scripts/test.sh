#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up and runs tests.
#
#   scripts/test.sh [-v]             the steps that a change needs
#   scripts/test.sh [-v] --all       every step that this machine can run
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
# shellcheck source=scripts/lib/fetch.sh
source "$LIB/fetch.sh"
# shellcheck source=scripts/lib/steps.sh
source "$LIB/steps.sh"

ALL=''
VERBOSE=''
EARLY=''
CHOSEN=' '

# ---- the command line ---------------------------------------------------------------

# rows [SET]: the names of the steps, in the table's order, or those of one set.
rows() { awk -v set="${1:-}" 'NF && (set == "" || $2 == set) { print $1 }' <<<"$STEPS"; }

# needs STEP: the step that must have passed before, or "-". Fails for what is no step.
needs() { awk -v name="$1" '$1 == name { print $3; found = 1 } END { exit !found }' <<<"$STEPS"; }

is_chosen() { [[ $CHOSEN == *" $1 "* ]]; }

# read_arguments ARGUMENT…: sets CHOSEN.
read_arguments() {
  local argument name names=()
  for argument in "$@"; do
    case $argument in
    -h | --help) help_or_nothing "$argument" ;;
    --list) sed '/^$/d' <<<"$STEPS"; exit 0 ;;
    --all) ALL=yes ;;
    -v | --verbose) VERBOSE=yes ;;
    -*) wrong_usage "unknown option \"$argument\"" ;;
    *) names+=("$argument") ;;
    esac
  done
  [[ -z $ALL || ${#names[@]} -eq 0 ]] || wrong_usage '--all runs every step; give either --all or steps'
  if [[ -n $ALL ]]; then
    mapfile -t names < <(rows)
  elif [[ ${#names[@]} -eq 0 ]]; then
    mapfile -t names < <(rows default)
  fi
  for name in "${names[@]}"; do
    CHOSEN+="$(needs "$name") $name " || wrong_usage "no step is called \"$name\"; scripts/test.sh --list names them"
  done
}

# ---- setting up ---------------------------------------------------------------------

set_up() {
  choose_target_dir
  LOGS=$TARGET/test-logs
  mkdir -p "$LOGS" || return 1
  cd -- "$ROOT"
  want 'gcc libc6-dev' have_c_compiler
  want g++ have_cxx_compiler
  want binutils have readelf
  want libfabric1 have_libfabric
  want libfabric-bin have fi_info
  want python3-venv python3 -c 'import ensurepip, venv'
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
  # A signal interrupts the wait for a job, but not for apt-get.
  install_missing &
  JOB[packages]=$!
  await packages && find_rust || return 1
  fetch_in_background
}

# Downloads run while the build keeps the processors busy. A step that needs one waits for it.
fetch_in_background() {
  if is_chosen tests || is_chosen kernels || is_chosen asan || is_chosen nvcc; then
    start 'download of the CUDA compilers' 900 scripts/cuda_toolchain.sh
  fi
  if is_chosen upstream || { [[ -z ${RDMA_CORE_INCLUDE:-} ]] && { is_chosen tests || is_chosen asan; }; }; then
    start 'download of upstream headers' 900 \
      bash -c 'source scripts/lib/setup.sh; source scripts/lib/fetch.sh; fetch_upstream rdma-core libfabric'
  fi
}

TOOLKIT=''
# Waits for CUDA's compilers. Tests record why they skip without them.
with_toolkit() {
  [[ -n ${JOB['download of the CUDA compilers']:-} ]] || return 0
  await 'download of the CUDA compilers' || return 0
  TOOLKIT=$(tail -n 1 "$(log_of 'download of the CUDA compilers')")
  export LD_LIBRARY_PATH=$TOOLKIT/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

# Waits for rdma-core's headers. The step upstream reports why they could not be fetched.
with_headers() {
  [[ -n ${JOB['download of upstream headers']:-} ]] || return 0
  await 'download of upstream headers' || return 0
  export RDMA_CORE_INCLUDE=${RDMA_CORE_INCLUDE:-$UPSTREAM/rdma-core/include}
}

# ---- running ------------------------------------------------------------------------

main() {
  local name broken=' '
  read_arguments "$@"
  guard
  if set_up; then
    for name in $(rows); do
      if ! is_chosen "$name"; then
        continue
      elif [[ $broken == *" $(needs "$name") "* ]]; then
        skip "$name" "$(needs "$name") failed"
      elif ! "step_$name"; then
        broken+="$name "
      fi
    done
  else
    fail 'setting up: the reason is above'
  fi
  summary
  [[ $FAILED -eq 0 ]]
}

main "$@"
