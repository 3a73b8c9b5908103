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

# Sanitizers and fuzzing need compiler options that stable Rust keeps for itself: RUSTC_BOOTSTRAP=1, for these two alone.
# They share a target directory, so that what runs on the host is compiled once.
rust_host() { rustc -vV | sed -n 's/^host: //p'; }

has_sanitizer() {
  case $(rust_host) in
  x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) return 0 ;;
  *) return 1 ;;
  esac
}

# The tests that cross into C or raw memory, under AddressSanitizer with its leak checker: the library, the adapter, the
# device code that the host runs, and the provider's file as libfabric loads it.
sanitizers() {
  local host cxxflags
  host=$(rust_host)
  has_sanitizer || { skip 'AddressSanitizer' "Rust has none for $host"; return; }
  cxxflags=CXXFLAGS_${host//-/_}
  # -rdynamic: a library that is loaded later finds the sanitizer in the program that loads it.
  local -x RUSTC_BOOTSTRAP=1 RUSTFLAGS='-Zsanitizer=address -Clink-arg=-rdynamic' ASAN_OPTIONS=detect_leaks=1
  local -x "$cxxflags=-fsanitize=address"
  local common=(--target "$host" --target-dir "$TARGET/sanitizer")
  # Not among them: tests that compile only (fabric_misuse), or run other compilers (kernels_compile), and the models that
  # loom runs, whose fibres never return and so leak what is on them.
  LEAVE_OUT=doorbell::model cargo_tests 'AddressSanitizer' 1500 "${common[@]}" -p efa-gda-sys -p efa-gda -p softefa --lib --test 'fabric_[!m]*' \
    --test 'queue_*' --test doorbell_ringer --test 'kernels_e*' --test 'verbs_*' --test 'device_*'
  # Clients in C's manner, that leave infos and objects to the end of their process; what the library's own tests
  # close, above, shows the provider's leaks.
  ASAN_OPTIONS=detect_leaks=0 cargo_tests 'AddressSanitizer on the provider' 900 "${common[@]}" -p softefa \
    --test 'libfabric_*'
}

# built_in TOOLKIT: the library with kernels that nvcc compiled into it, which a driver that pretends then refuses. In a
# target directory of its own, since what it builds is not what the other steps build.
built_in() {
  if [[ -z $1 ]]; then
    skip 'kernels built in' "no CUDA compilers: $(tail -n 1 "$LOGS/cuda-toolchain.log")"
    return
  fi
  EFA_GDA_NVCC=$1/bin/nvcc LD_LIBRARY_PATH=$1/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} LEAVE_OUT=doorbell:: \
    cargo_tests 'kernels built in' 900 --target-dir "$TARGET/built-in" -p efa-gda --lib --test rungs_pretended
}

# As cargo-fuzz would pass them.
FUZZ_FLAGS=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0
  --cfg fuzzing -Zsanitizer=address)

build_fuzz_targets() {
  RUSTC_BOOTSTRAP=1 RUSTFLAGS="${FUZZ_FLAGS[*]}" step 'fuzz targets build' 900 cargo build --locked \
    --manifest-path fuzz/Cargo.toml --target "$(rust_host)" --target-dir "$TARGET/sanitizer"
}

# Each target of fuzz/ for EFA_GDA_FUZZ_SECONDS, a minute by default, from seeds that the wire encoder makes and from what
# earlier runs found. Two at a time, as the slowest machine that this suite is meant for has cores. An input that breaks
# something stays in test-logs.
fuzzing() {
  local seconds=${EFA_GDA_FUZZ_SECONDS:-60} programs work source names=()
  has_sanitizer || { skip 'fuzzing' "Rust has no AddressSanitizer for $(rust_host)"; return; }
  if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
    fail 'fuzzing' "EFA_GDA_FUZZ_SECONDS is \"$seconds\"; give a number of seconds from 1 on"
    return
  fi
  step 'rustfmt of the fuzz targets' 120 cargo fmt --manifest-path fuzz/Cargo.toml --check || true
  build_fuzz_targets || return 0
  programs=$TARGET/sanitizer/$(rust_host)/debug
  work=$TARGET/fuzz
  step 'seeds of the fuzz targets' 60 "$programs/seeds" "$work/seeds" || return 0
  for source in fuzz/fuzz_targets/*.rs; do
    names+=("$(basename "$source" .rs)")
  done
  while [[ ${#names[@]} -gt 0 ]]; do
    fuzz_together "$programs" "$work" "$seconds" "${names[@]:0:2}"
    names=("${names[@]:2}")
  done
}

# fuzz_together PROGRAMS WORK SECONDS NAME…: at the same time.
fuzz_together() {
  local programs=$1 work=$2 seconds=$3 name status runs=()
  shift 3
  for name in "$@"; do
    mkdir -p "$work/corpus/$name" "$work/seeds/$name"
    run_logged "$LOGS/fuzz-$name.log" $((seconds + 120)) "$programs/$name" "-max_total_time=$seconds" -max_len=4096 \
      -timeout=30 "-artifact_prefix=$LOGS/$name-" "$work/corpus/$name" "$work/seeds/$name" &
    runs+=($!)
  done
  for name in "$@"; do
    status=0
    wait "${runs[0]}" || status=$?
    runs=("${runs[@]:1}")
    if [[ $status -eq 0 ]]; then
      pass "fuzz $name: $(sed -n 's/^Done \([0-9]* runs\).*/\1/p' "$LOGS/fuzz-$name.log")" "$seconds"
    else
      tail -n 60 "$LOGS/fuzz-$name.log"
      fail "fuzz $name" "$(describe_status "$status" $((seconds + 120))); the whole log is $LOGS/fuzz-$name.log"
    fi
  done
}
