#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up and runs every test that it can run. What it cannot run is printed
# as SKIPPED with the reason. Logs stay in <target directory>/test-logs.
#
# The last line is "N passed, N failed, N skipped", where each test of cargo test counts
# as one, and so does each other step. Exit status: 0 nothing failed, 1 otherwise.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib/setup.sh"
# shellcheck source=scripts/lib/upstream.sh
source "$ROOT/scripts/lib/upstream.sh"
# shellcheck source=scripts/lib/quality.sh
source "$ROOT/scripts/lib/quality.sh"

PASSED=0
FAILED=0
SKIPPED=0

# What is built into .cache/tools where cargo-deny is not installed.
DENY_VERSION=0.20.2

# ---- reporting --------------------------------------------------------------------

pass() {
  PASSED=$((PASSED + 1))
  printf 'ok       %s (%s s)\n' "$1" "$2"
}

fail() {
  FAILED=$((FAILED + 1))
  printf 'FAILED   %s: %s\n' "$1" "$2"
}

skip() {
  SKIPPED=$((SKIPPED + 1))
  printf 'SKIPPED  %s: %s\n' "$1" "$2"
}

finish() {
  printf '%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"
  [[ $FAILED -eq 0 ]] || exit 1
  exit 0
}

# Why a command ended as it did, for a person.
describe_status() {
  case $1 in
  124 | 137) echo "ended by its time limit of $2 s" ;;
  *) echo "exit status $1" ;;
  esac
}

# run_logged LOG LIMIT COMMAND…: bounded in time, without input.
run_logged() {
  local log=$1 limit=$2
  shift 2
  timeout --kill-after=10 "$limit" "$@" </dev/null >"$log" 2>&1
}

# step NAME LIMIT COMMAND…: one line on success; the end of the log on failure.
step() {
  local name=$1 limit=$2 log status=0 start=$SECONDS
  shift 2
  log=$LOGS/${name//[^A-Za-z0-9]/-}.log
  run_logged "$log" "$limit" "$@" || status=$?
  if [[ $status -eq 0 ]]; then
    pass "$name" "$((SECONDS - start))"
    return 0
  fi
  tail -n 60 "$log"
  fail "$name" "$(describe_status "$status" "$limit"); the whole log is $log"
  return 1
}

# ---- the steps ----------------------------------------------------------------------

set_up() {
  want gcc have_c_compiler
  want libc6-dev have_c_compiler
  want g++ have_cxx_compiler
  want binutils have readelf
  want libclang-dev have_libclang
  want libfabric1 have_libfabric
  want libfabric-bin have fi_info
  want python3 have python3
  want python3-venv python3 -c 'import ensurepip, venv' 2>/dev/null
  # A check of the scripts alone: not a reason to stop where it cannot be installed.
  if have apt-get && can_be_root; then
    want shellcheck have shellcheck
  fi
  install_missing && find_rust || return 1
  choose_target_dir
  TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
  LOGS=$TARGET/test-logs
  mkdir -p "$LOGS"
  cd -- "$ROOT"
  # Some tests compare with rdma-core's headers; interfaces() says why where they cannot be had.
  if [[ -z ${RDMA_CORE_INCLUDE:-} ]] && fetch_upstream rdma-core libfabric >/dev/null 2>&1; then
    export RDMA_CORE_INCLUDE=$UPSTREAM/rdma-core/include
  fi
}

# Tests load libsoftefa.so from the target directory, so everything is built before they run.
build_all() { step 'build' 1500 cargo build --workspace --all-targets --locked; }

# Counts each test of cargo test, takes "SKIPPED …" lines of tests for skipped, prints the failures. Tests whose name
# has LEAVE_OUT in it are not run.
cargo_tests() {
  local name=$1 limit=$2 log status=0 passed failed count line start=$SECONDS
  shift 2
  log=$LOGS/${name//[^A-Za-z0-9]/-}.log
  run_logged "$log" "$limit" cargo test --locked --no-fail-fast "$@" -- --show-output ${LEAVE_OUT:+--skip "$LEAVE_OUT"} || status=$?
  read -r passed failed < <(awk '/^test result:/ { p += $4; f += $6 } END { print p+0, f+0 }' "$log")
  # Tests that found something missing count among the passed; one line for each reason.
  while read -r count line; do
    SKIPPED=$((SKIPPED + count - 1))
    passed=$((passed - count))
    skip "$name" "$line ($count tests)"
  done < <(sed -nE 's/^(SKIPPED|skipped):? *//p' "$log" | sort | uniq -c)
  while read -r count line; do
    SKIPPED=$((SKIPPED + count - 1))
    skip "$name" "$line ($count tests)"
  done < <(sed -nE 's/^test .* \.\.\. ignored,? ?//p' "$log" | sort | uniq -c)
  PASSED=$((PASSED + passed))
  if [[ $status -ne 0 ]]; then
    grep -E '^test .* \.\.\. FAILED$' "$log" || true
    [[ $failed -gt 0 ]] && FAILED=$((FAILED + failed - 1))
    tail -n 120 "$log"
    fail "$name" "$failed of $((passed + failed)) tests, $(describe_status "$status" "$limit"); the whole log is $log"
  else
    printf 'ok       %s: %d tests (%d s)\n' "$name" "$passed" "$((SECONDS - start))"
  fi
}

# The header comparison, and the bindings and entries built against rdma-core's own header.
interfaces() {
  step 'interface check finds planted mistakes' 300 scripts/lib/interfaces_test.sh || true
  local log=$LOGS/interfaces.log status=0 header=$UPSTREAM/rdma-core/source/providers/efa/efa_io_defs.h
  run_logged "$log" 300 scripts/check_interfaces.sh || status=$?
  if [[ $status -eq 77 ]]; then
    skip 'interfaces against upstream' "$(sed -n 's/^SKIPPED: //p' "$log")"
    skip 'wire against upstream' 'it needs the same headers'
    return
  fi
  grep -v '^note:' "$log" || true
  if [[ $status -ne 0 ]]; then
    fail 'interfaces against upstream' "exit status $status; the whole log is $log"
  else
    pass 'interfaces against upstream' 0
    if grep -q '^note: struct fi_efa_ops_gda: not in this upstream' "$log"; then
      skip 'GDA operations against upstream' \
        "Debian's libfabric is older than they are; scripts/check_interfaces.sh takes the directory of a newer one"
    fi
  fi
  # Another target directory: the header is an input of every crate above the bindings.
  EFA_IO_DEFS_H=$header CARGO_TARGET_DIR=$TARGET/upstream-header \
    cargo_tests "wire against rdma-core's header" 900 -p efa-gda-sys -p efa-gda-wire --features efa-gda-sys/regenerate
}

shell_scripts() {
  if have shellcheck; then
    step 'shellcheck' 120 shellcheck -x .ci/run scripts/*.sh scripts/lib/*.sh || true
  else
    skip 'shellcheck' 'not installed (Debian package shellcheck)'
  fi
}

dependencies() {
  local tools=$ROOT/.cache/tools
  if ! have cargo-deny && [[ ! -x $tools/bin/cargo-deny ]]; then
    local log=$LOGS/cargo-deny-install.log
    run_logged "$log" 900 cargo install --locked --quiet --no-default-features --root "$tools" \
      --target-dir "$TARGET/tools" "cargo-deny@$DENY_VERSION" || true
    rm -rf -- "$TARGET/tools"
    if [[ ! -x $tools/bin/cargo-deny ]]; then
      skip 'licences, bans and sources of dependencies' \
        "cargo-deny could not be installed: $(grep -m 1 '^error' "$log" || echo "see $log")"
      return
    fi
  fi
  PATH=$tools/bin:$PATH step 'licences, bans and sources of dependencies' 120 \
    cargo deny --locked check licenses bans sources || true
  PATH=$tools/bin:$PATH step 'licences, bans and sources of the fuzz targets' 120 cargo deny \
    --manifest-path fuzz/Cargo.toml --config "$ROOT/deny.toml" --locked check licenses bans sources || true
}

# rdma-core and libfabric of sid over the uverbs face.
real_stack() {
  local log=$LOGS/realstack.log status=0 start=$SECONDS
  run_logged "$log" 480 scripts/realstack.sh || status=$?
  case $status in
  0) pass 'the real stack over softefa' "$((SECONDS - start))" ;;
  77) skip 'the real stack over softefa' "$(sed -n 's/^SKIPPED: //p' "$log")" ;;
  *)
    sed -n '/^FAILED:/,$p' "$log"
    fail 'the real stack over softefa' "exit status $status; the whole log is $log"
    ;;
  esac
}

gpu() {
  if have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; then
    return
  fi
  skip 'kernels on a GPU' 'no NVIDIA GPU'
}

main() {
  if ! set_up; then
    fail 'setting up' 'see above'
    finish
  fi
  # CUDA's compilers need no GPU; tests say why themselves where these cannot be had. They come over the network while the
  # build keeps the processor busy.
  local toolkit='' built='' coming
  timeout 600 scripts/cuda_toolchain.sh >"$LOGS/cuda-toolchain" 2>"$LOGS/cuda-toolchain.log" </dev/null &
  coming=$!
  step 'rustfmt' 120 cargo fmt --all --check || true
  if build_all; then
    built=yes
    if wait "$coming"; then
      toolkit=$(<"$LOGS/cuda-toolchain")
    fi
    LD_LIBRARY_PATH=${toolkit:+$toolkit/lib}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} cargo_tests 'tests' 1200 --workspace
  else
    skip 'tests' 'the build failed'
  fi
  step 'clippy' 600 cargo clippy --workspace --all-targets --locked -- -D warnings || true
  RUSTDOCFLAGS='-D warnings' step 'documentation' 600 cargo doc --workspace --no-deps --locked || true
  step 'probe.sh' 900 scripts/lib/probe_test.sh || true
  libfabric_2_1
  interfaces
  real_stack
  shell_scripts
  dependencies
  sanitizers
  fuzzing
  if [[ -n $built ]]; then
    built_in "$toolkit"
  else
    skip 'kernels built in' 'the build failed'
  fi
  gpu
  finish
}

main "$@"
