# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The steps of test.sh, each a function step_NAME, and their table. Sourced by test.sh after setup.sh, run.sh,
# count.sh and fetch.sh.

# NAME SET SECONDS MB NEEDS DESCRIPTION: SET is "default" or "all", NEEDS is a step that must have passed before or "-".
# Seconds are for two idle cores and a fresh clone, downloads apart; MB is what the step adds to target and .cache.
# The limits in the steps below only end what hangs: they are ten times what a step takes on idle cores, or more.
# shellcheck disable=SC2034 # test.sh reads it
STEPS='
rustfmt    default   5    0 -     formatting of every crate
shellcheck default   5    0 -     the shell scripts under shellcheck
layers     default   5    0 -     which module may use which (scripts/lib/module_layers.py)
links      default   5    0 -     the links of README.md and of docs/
selftest   default  10    0 -     test.sh counts results, and an interrupt leaves no process
build      default 170 2600 -     every library, program, test and example
tests      default 270  600 build tests of every crate, and examples in their documentation
kernels    default  40   20 build the kernels compile with nvcc and NVRTC; for every GPU generation under --all
clippy     default  45  500 -     clippy without a warning
docs       default  10  100 -     rustdoc without a warning
probe      default  80  200 build probe.sh as a user runs it; a release build under --all
misuse     all      45  500 build programs that must not compile
features   all      25  200 -     efa-gda with each combination of its features, without a warning
libfabric  all       5  100 build gda-probe on libfabric 2.1 of Debian trixie
bindings   all      15  400 -     the checked-in bindings equal a fresh run of bindgen
upstream   all      30  200 -     headers, bindings and entries against rdma-core and libfabric of Debian sid
realstack  all      60  500 build rdma-core and libfabric of Debian sid over the software adapter
deny       all      60   50 -     licences, bans and sources of dependencies
asan       all     430 1500 -     tests that cross into C or raw memory under AddressSanitizer
hostile    all      65  600 -     programs that attack the software adapter beside an honest one, under AddressSanitizer too
fuzz       all     140  800 -     each fuzz target for EFA_GDA_FUZZ_SECONDS (default 10)
nvcc       all     105 1200 -     the library with kernels that nvcc compiled into it
nvshmem    all      20  700 -     the side library against the wheel of NVSHMEM, and calls in the shapes of DeepEP
packages   all      35  500 -     each published crate builds from its package
commands   all     170  300 build the commands of README.md and of docs/, as they are written there
site       all       5  150 build the site of the documentation, with a page for each check
deploy     all      10  230 build the Helm chart and the manifests of Kubernetes
install    all      20  400 -     a C program builds and runs with what install.sh installs
containers all     330 1200 -     the images, and the probe in containers that each have a fault
'

# Built into .cache/tools if cargo-deny is not installed.
DENY_VERSION=0.20.2

# ---- the default run ----------------------------------------------------------------

step_rustfmt() {
  step 'rustfmt' 120 cargo fmt --all --check || true
  step 'rustfmt of the fuzz targets' 120 cargo fmt --manifest-path fuzz/Cargo.toml --check
}

step_shellcheck() {
  if have shellcheck; then
    step 'shellcheck' 300 shellcheck -x .ci/run scripts/*.sh scripts/lib/*.sh efa-gda-capi/link.sh deploy/slurm/*
  else
    skip 'shellcheck' 'not installed (Debian package shellcheck)'
  fi
}

# if_present NAME LIMIT FILE COMMAND…
if_present() {
  if [[ -e $3 ]]; then step "$1" "$2" "${@:4}"; else skip "$1" "no $3"; fi
}

step_layers() { if_present 'module layers' 60 scripts/lib/module_layers.py python3 scripts/lib/module_layers.py; }

step_links() { step 'links of the documentation' 60 python3 -B scripts/lib/docs_test.py links; }

step_selftest() {
  step 'results are counted' 300 scripts/lib/report_test.sh || true
  step 'the limits of the GPU benchmark are checked' 300 scripts/lib/bench_limits_test.sh || true
  step 'help starts nothing' 300 scripts/lib/setup_test.sh || true
  step 'an interrupt stops every process' 600 scripts/lib/interrupt_test.sh
}

# Benchmarks are left to clippy. Tests load libsoftefa.so and programs from the target directory.
step_build() { step 'build' 2400 cargo build --workspace --lib --bins --tests --examples --locked; }

# Slow tests of compilers have steps of their own: kernels and misuse. The probe's tests run beside the others, and more
# of them than there are cores, because they mostly wait: for processes, and for time limits.
step_tests() {
  local file name probe=() targets=() first passed=yes
  with_headers
  with_toolkit
  for file in */tests/*.rs */*/tests/*.rs */tests/*/main.rs; do
    name=$(basename "${file%/main.rs}" .rs)
    case $file in probe/*) probe+=(--test "$name"); continue ;; esac
    case $name in kernels_compile | fabric_misuse | bindings | hostile) ;; *) targets+=(--test "$name") ;; esac
  done
  RUST_TEST_THREADS=4 start_tests 'tests of gda-probe' 2400 --workspace "${probe[@]}"
  first=$!
  cargo_tests 'tests' 2400 --workspace --lib --bins "${targets[@]}" || passed=''
  begin 'tests of gda-probe'
  finish_tests 'tests of gda-probe' 2400 "$first" || passed=''
  cargo_tests 'documentation examples' 600 --workspace --doc || passed=''
  [[ -n $passed ]]
}

step_kernels() {
  with_toolkit
  local -x EFA_GDA_TEST_ARCHITECTURES=${EFA_GDA_TEST_ARCHITECTURES:-sm_90}
  [[ -z $ALL ]] || unset EFA_GDA_TEST_ARCHITECTURES
  cargo_tests 'kernels' 900 --workspace --test kernels_compile
}

step_clippy() { step 'clippy' 600 cargo clippy --workspace --all-targets --locked -- -D warnings; }

step_docs() { RUSTDOCFLAGS='-D warnings' step 'docs' 600 cargo doc --workspace --no-deps --locked; }

step_probe() {
  local -x EFA_GDA_PROBE_DEV=1
  [[ -z $ALL ]] || unset EFA_GDA_PROBE_DEV
  step 'probe.sh' 900 scripts/lib/probe_test.sh
}

# ---- the rest of --all --------------------------------------------------------------

step_features() {
  local features
  for features in '' cuda verbs cuda,verbs test-utils; do
    step "efa-gda with features: ${features:-none}" 300 cargo clippy -p efa-gda --lib --locked --no-default-features \
      --features "$features" -- -D warnings || true
  done
}

step_misuse() { cargo_tests 'misuse' 900 --workspace --test fabric_misuse; }

# (libfabric 1.17 of Debian 12 is the one that the tests use there.)
step_libfabric() { step 'gda-probe on libfabric 2.1' 400 scripts/lib/trixie_test.sh "$TARGET/debug/gda-probe"; }

needs_libclang() {
  have_libclang || { skip "$1" 'no libclang (Debian package libclang-dev)'; return 1; }
}

step_bindings() {
  needs_libclang 'bindings' || return 0
  CARGO_INCREMENTAL=0 cargo_tests 'bindings' 900 --target-dir "$TARGET/variants" \
    -p efa-gda-sys -p softefa-abi --features regenerate --test bindings
}

step_upstream() {
  local header=$UPSTREAM/rdma-core/source/providers/efa/efa_io_defs.h log
  step 'interface check finds planted mistakes' 600 scripts/lib/interfaces_test.sh || true
  with_headers
  log=$(log_of 'interfaces against upstream')
  step 'interfaces against upstream' 600 scripts/check_interfaces.sh || return 0
  grep -v '^note:' "$log" || true
  if grep -q '^note: struct fi_efa_ops_gda: not in this upstream' "$log"; then
    skip 'GDA operations against upstream' \
      "Debian's libfabric is older than they are; scripts/check_interfaces.sh takes the directory of a newer one"
  fi
  if [[ ! -e $header ]]; then
    skip "wire against rdma-core's header" 'that header could not be fetched'
  elif needs_libclang "wire against rdma-core's header"; then
    EFA_IO_DEFS_H=$header CARGO_INCREMENTAL=0 cargo_tests "wire against rdma-core's header" 900 \
      --target-dir "$TARGET/variants" -p efa-gda-sys -p efa-gda-wire --features efa-gda-sys/regenerate
  fi
}

step_realstack() { step 'the real stack over softefa' 1800 scripts/realstack.sh; }

step_deny() {
  local tools=$ROOT/.cache/tools name='licences, bans and sources' log
  log=$(log_of 'cargo-deny install')
  if ! have cargo-deny && [[ ! -x $tools/bin/cargo-deny ]]; then
    begin 'building cargo-deny'
    # A debug build takes half the time, and cargo-deny runs for seconds.
    CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 run_logged "$log" 900 cargo install --locked --debug \
      --no-default-features --root "$tools" --target-dir "$TARGET/tools" "cargo-deny@$DENY_VERSION" || true
    rm -rf -- "$TARGET/tools"
    if [[ ! -x $tools/bin/cargo-deny ]]; then
      skip "$name" "cargo-deny could not be installed: $(grep -m 1 '^error' "$log" || echo "see $log")"
      return
    fi
  fi
  local -x PATH=$tools/bin:$PATH
  step "$name of dependencies" 300 cargo deny --locked check licenses bans sources || true
  step "$name of the fuzz targets" 300 cargo deny --manifest-path fuzz/Cargo.toml --config "$ROOT/deny.toml" \
    --locked check licenses bans sources
}

step_nvcc() {
  with_toolkit
  if [[ -z $TOOLKIT ]]; then
    skip 'kernels built in' "no CUDA compilers: $NO_TOOLKIT"
    return
  fi
  # The simulated driver of these tests refuses the compiled kernels, which proves that they are in the library.
  EFA_GDA_NVCC=$TOOLKIT/bin/nvcc CARGO_INCREMENTAL=0 LEAVE_OUT=doorbell:: \
    cargo_tests 'kernels built in' 1800 --target-dir "$TARGET/variants" -p efa-gda --lib --test doorbell_modes_pretended
}

step_nvshmem() { step 'NVSHMEM and DeepEP' 1800 scripts/lib/nvshmem_test.sh; }

step_packages() { if_present 'packages' 1800 scripts/lib/package_test.sh scripts/lib/package_test.sh; }

step_install() { step 'install' 1800 scripts/lib/install_test.sh; }

step_commands() {
  step 'commands of the documentation' 3600 python3 -B scripts/lib/docs_test.py run "$TARGET/debug/gda-probe"
}

step_site() { step 'site' 1800 scripts/site.sh "$TARGET/debug/gda-probe"; }

# With what Helm and Kubernetes themselves accept.
step_deploy() { step 'deploy' 600 scripts/lib/deploy_test.sh; }

step_containers() { step 'containers' 2400 scripts/lib/containers_test.sh; }

# ---- sanitizers and fuzzing ---------------------------------------------------------

# These need compiler options that stable Rust reserves: RUSTC_BOOTSTRAP=1, here only. They share a target directory, so
# that build scripts are compiled once.
rust_host() { rustc -vV | sed -n 's/^host: //p'; }

has_sanitizer() {
  case $(rust_host) in
  x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) return 0 ;;
  *)
    skip "$1" "Rust has no AddressSanitizer for $(rust_host)"
    return 1
    ;;
  esac
}

# The library, the adapter, device code that the host runs, and the provider's file as libfabric loads it, with leaks.
step_asan() {
  local host triple passed=yes
  has_sanitizer 'AddressSanitizer' || return 0
  with_toolkit
  with_headers
  host=$(rust_host)
  triple=${host//-/_}
  # -rdynamic: a library that is loaded later finds the sanitizer in the program.
  local -x RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 ASAN_OPTIONS=detect_leaks=1
  local -x RUSTFLAGS='-Zsanitizer=address -Clink-arg=-rdynamic' "CXXFLAGS_$triple=-fsanitize=address"
  local common=(--target "$host" --target-dir "$TARGET/sanitizer" -p efa-gda-sys -p efa-gda -p softefa)
  # Left out: loom's models, whose fibers never return and so leak their stacks.
  LEAVE_OUT=doorbell::model sanitized_unit_tests "CARGO_TARGET_${triple^^}_RUNNER" "${common[@]}" --lib || passed=''
  # Left out: tests that run compilers only.
  cargo_tests 'AddressSanitizer' 1500 "${common[@]}" --test 'fabric_[!m]*' --test 'queue_*' --test doorbell_proxy \
    --test 'kernels_e*' --test 'verbs_*' --test 'device_*' || passed=''
  # These are clients in the style of C, which leave objects to the end of their process. The library's own tests, above,
  # close theirs and so show leaks of the provider.
  ASAN_OPTIONS=detect_leaks=0 cargo_tests 'AddressSanitizer on the provider' 900 "${common[@]}" --test 'libfabric_*' ||
    passed=''
  [[ -n $passed ]]
}

# EFA_GDA_HOSTILE_SECONDS: the time of the attacks, 10 by default.
step_hostile() {
  local passed=yes
  cargo_tests 'hostile programs' 900 -p softefa-uverbs --test hostile || passed=''
  has_sanitizer 'hostile programs under AddressSanitizer' || return 0
  local -x RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 RUSTFLAGS='-Zsanitizer=address -Clink-arg=-rdynamic'
  # Programs that are killed free nothing.
  ASAN_OPTIONS=detect_leaks=0 cargo_tests 'hostile programs under AddressSanitizer' 900 --target "$(rust_host)" \
    --target-dir "$TARGET/sanitizer" -p softefa-uverbs --test hostile || passed=''
  [[ -n $passed ]]
}

# sanitized_unit_tests RUNNER ARGUMENT…: RUNNER is cargo's variable for a command that starts the test programs. NVRTC leaks
# what its initializers allocate. The suppression finds NVRTC by its name, which a library that was closed does not have
# any more, so it is loaded from start to end.
sanitized_unit_tests() {
  local runner=$1
  shift
  if [[ -n $TOOLKIT ]]; then
    echo 'leak:libnvrtc' >"$LOGS/leaks-of-nvrtc"
    local -x "$runner=env LD_PRELOAD=libnvrtc.so.13"
    local -x LSAN_OPTIONS="suppressions='$LOGS/leaks-of-nvrtc':print_suppressions=0"
  fi
  cargo_tests 'AddressSanitizer on unit tests' 1500 "$@"
}

# As cargo-fuzz passes them.
FUZZ_FLAGS=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0
  --cfg fuzzing -Zsanitizer=address)

# Two targets at a time, for two cores. The inputs are those that the wire encoder makes and those that earlier runs
# found. An input that breaks a target stays beside the logs.
step_fuzz() {
  local seconds=${EFA_GDA_FUZZ_SECONDS:-10} programs work=$TARGET/fuzz source names=()
  has_sanitizer 'fuzzing' || return 0
  if [[ ! $seconds =~ ^[1-9][0-9]*$ ]]; then
    fail 'fuzzing' "EFA_GDA_FUZZ_SECONDS is \"$seconds\"; expected a number of seconds, 1 or more"
    return
  fi
  # Not the sanitizer step's directory: the provider has one file name for both sets of flags.
  programs=$TARGET/fuzz-build/$(rust_host)/debug
  RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 RUSTFLAGS="${FUZZ_FLAGS[*]}" step 'fuzz targets build' 1800 cargo build --locked \
    --manifest-path fuzz/Cargo.toml --target "$(rust_host)" --target-dir "$TARGET/fuzz-build" || return 0
  step 'seeds of the fuzz targets' 300 "$programs/efa-gda-fuzz" "$work/seeds" || return 0
  for source in fuzz/src/bin/*.rs; do
    names+=("$(basename "$source" .rs)")
  done
  while [[ ${#names[@]} -gt 0 ]]; do
    fuzz_together "$programs" "$work" "$seconds" "${names[@]:0:2}"
    names=("${names[@]:2}")
  done
}

# fuzz_together PROGRAMS WORK SECONDS NAME…: at the same time.
fuzz_together() {
  local programs=$1 work=$2 seconds=$3 name log status runs=()
  shift 3
  begin "fuzz $*"
  for name in "$@"; do
    mkdir -p "$work/corpus/$name" "$work/seeds/$name"
    launch "$(log_of "fuzz $name")" $((seconds + 120)) "$programs/$name" "-max_total_time=$seconds" -max_len=4096 \
      -timeout=30 "-artifact_prefix=$LOGS/$name-" "$work/corpus/$name" "$work/seeds/$name"
    runs+=("$!")
  done
  for name in "$@"; do
    status=0
    log=$(log_of "fuzz $name")
    await "${runs[0]}" || status=$?
    runs=("${runs[@]:1}")
    if [[ $status -eq 0 ]]; then
      pass "fuzz $name: $(sed -n 's/^Done \([0-9]* runs\).*/\1/p' "$log")" "$seconds"
    else
      clear_progress
      tail -n 60 "$log"
      fail "fuzz $name" "$(describe_status "$status" $((seconds + 120))); log: $log"
    fi
  done
}
