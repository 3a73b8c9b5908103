# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The steps of test.sh, each a function step_NAME, and their table. Sourced by test.sh after setup.sh, run.sh and
# fetch.sh. The limits only end what hangs: they are ten times what a step takes on idle cores, or more.

# NAME SET NEEDS DESCRIPTION: SET is "default" or "all", NEEDS is a step that must have passed before or "-".
# shellcheck disable=SC2034 # test.sh reads it
STEPS='
rustfmt    default -     formatting of every crate
shellcheck default -     the shell scripts under shellcheck
layers     default -     which module may use which (scripts/lib/module_layers.py)
links      default -     the links of README.md and of docs/
interrupt  default -     an interrupt of test.sh leaves no process
build      default -     every library, program, test and example
tests      default build tests of every crate, and examples in their documentation
kernels    default build the kernels compile with nvcc and NVRTC; for every GPU generation under --all
clippy     default -     clippy without a warning
docs       default -     rustdoc without a warning
probe      default -     probe.sh as a user runs it; a release build under --all
misuse     all     build programs that must not compile
features   all     -     efa-gda with each combination of its features, without a warning
libfabric  all     build gda-probe on libfabric 2.1 of Debian trixie
bindings   all     -     the checked-in bindings equal a fresh run of bindgen
upstream   all     -     headers, bindings and entries against rdma-core and libfabric of Debian sid
realstack  all     build rdma-core and libfabric of Debian sid over the software adapter
deny       all     -     licences, bans and sources of dependencies
asan       all     -     tests that cross into C or raw memory under AddressSanitizer
fuzz       all     -     each fuzz target for EFA_GDA_FUZZ_SECONDS (default 10)
nvcc       all     -     the library with kernels that nvcc compiled into it
nvshmem    all     -     the side library against the wheel of NVSHMEM, and calls in the shapes of DeepEP
packages   all     -     each published crate builds from its package
commands   all     build the commands of README.md and of docs/, as they are written there
site       all     build the site of the documentation, with a page for each check
deploy     all     build the manifests of Kubernetes
install    all     -     a C program builds and runs with what install.sh installs
containers all     -     the images, and the probe in containers that each have a fault
'

# Built into .cache/tools if cargo-deny is not installed.
DENY_VERSION=0.20.2

# early STEP…: starts those of the steps that are chosen, which then run beside the next one.
early() {
  local EARLY=yes name
  for name in "$@"; do
    if is_chosen "$name"; then "step_$name"; fi
  done
}

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

step_layers() { step 'module layers' 60 python3 scripts/lib/module_layers.py; }

step_links() { step 'links of the documentation' 60 python3 -B scripts/lib/docs_test.py links; }

step_interrupt() { step 'an interrupt leaves no process' 600 scripts/lib/interrupt_test.sh; }

# Benchmarks are left to clippy. Tests load libsoftefa.so and programs from the target directory.
step_build() {
  step 'build' 2400 cargo build --workspace --lib --bins --tests --examples --locked || return 1
  # shellcheck disable=SC2016 # the arguments of bash
  step 'libraries are loaded at run time' 60 bash -c 'linked=$(readelf -d "$@") &&
    ! grep -E "NEEDED.*(clang|cuda|nvrtc|fabric|ibverbs|libefa)" <<<"$linked"' - \
    "$TARGET"/debug/{gda-probe,libsoftefa.so} || true
}

# The probe's tests mostly wait, for processes and for time limits: they run beside the others, more of them than there
# are cores, and so do steps that only compile. Slow tests of compilers have steps of their own: kernels and misuse.
step_tests() {
  local file name probe=() targets=() passed=yes
  with_headers
  with_toolkit
  for file in */tests/*.rs */*/tests/*.rs */tests/*/main.rs; do
    name=$(basename "${file%/main.rs}" .rs)
    case $file,$name in
    probe/*) probe+=(--test "$name") ;;
    *,kernels_compile | *,fabric_misuse | *,bindings) ;;
    *) targets+=(--test "$name") ;;
    esac
  done
  local probe_tests=('tests of gda-probe' 2400 --workspace "${probe[@]}")
  local other_tests=('tests' 2400 --workspace --lib --bins "${targets[@]}")
  EARLY=yes RUST_TEST_THREADS=4 cargo_tests "${probe_tests[@]}"
  EARLY=yes cargo_tests "${other_tests[@]}"
  # Until its programs run, a cargo keeps others from building.
  until [[ -z $(members "${JOB[tests]}") ]] || grep -qs '^ *Running' "$(log_of tests)"; do sleep 1; done
  early kernels clippy docs
  cargo_tests "${other_tests[@]}" || passed=''
  cargo_tests "${probe_tests[@]}" || passed=''
  cargo_tests 'documentation examples' 600 --workspace --doc || passed=''
  [[ -n $passed ]]
}

step_kernels() {
  with_toolkit
  local -x EFA_GDA_TEST_ARCHITECTURES=${EFA_GDA_TEST_ARCHITECTURES:-sm_90}
  [[ -z $ALL ]] || unset EFA_GDA_TEST_ARCHITECTURES
  cargo_tests 'kernels' 2400 --workspace --test kernels_compile
}

step_clippy() { step 'clippy' 2400 cargo clippy --workspace --all-targets --locked -- -D warnings; }

step_docs() { RUSTDOCFLAGS='-D warnings' step 'docs' 2400 cargo doc --workspace --no-deps --locked; }

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
  local header=$UPSTREAM/rdma-core/source/providers/efa/efa_io_defs.h
  with_headers
  step 'interfaces against upstream' 600 scripts/check_interfaces.sh || return 0
  if grep -q '^note: fi_efa_ops_gda: not upstream' "$(log_of 'interfaces against upstream')"; then
    skip 'GDA operations against upstream' \
      "Debian's libfabric is older than they are; scripts/check_interfaces.sh takes the directory of a newer one"
  fi
  if [[ ! -e $header ]]; then
    skip 'wire against the header of rdma-core' 'that header could not be fetched'
  elif needs_libclang 'wire against the header of rdma-core'; then
    EFA_IO_DEFS_H=$header CARGO_INCREMENTAL=0 cargo_tests 'wire against the header of rdma-core' 900 \
      --target-dir "$TARGET/variants" -p efa-gda-sys -p efa-gda-wire --features efa-gda-sys/regenerate
  fi
}

step_realstack() { step 'the real stack over softefa' 1800 scripts/realstack.sh; }

# A debug build of cargo-deny takes half the time of a release build, and cargo-deny runs for seconds.
step_deny() {
  local tools=$ROOT/.cache/tools
  if ! have cargo-deny && [[ ! -x $tools/bin/cargo-deny ]]; then
    CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 step 'installing cargo-deny' 900 cargo install --locked --debug \
      --no-default-features --root "$tools" --target-dir "$TARGET/tools" "cargo-deny@$DENY_VERSION" || return 0
    rm -rf -- "$TARGET/tools"
  fi
  local -x PATH=$tools/bin:$PATH
  step 'licences, bans and sources of dependencies' 300 cargo deny --locked check licenses bans sources || true
  step 'licences, bans and sources of the fuzz targets' 300 cargo deny --manifest-path fuzz/Cargo.toml \
    --config "$ROOT/deny.toml" --locked check licenses bans sources
}

step_nvcc() {
  with_toolkit
  if [[ -z $TOOLKIT ]]; then
    skip 'kernels built in' "no CUDA compilers: $(tail -n 1 "$(log_of 'download of the CUDA compilers')")"
    return
  fi
  # The simulated driver of these tests refuses the compiled kernels, which proves that they are in the library.
  EFA_GDA_NVCC=$TOOLKIT/bin/nvcc CARGO_INCREMENTAL=0 LEAVE_OUT=doorbell:: \
    cargo_tests 'kernels built in' 1800 --target-dir "$TARGET/variants" -p efa-gda --lib --test doorbell_modes_pretended
}

step_nvshmem() { step 'NVSHMEM and DeepEP' 1800 scripts/lib/nvshmem_test.sh; }

step_packages() { step 'packages' 1800 scripts/lib/package_test.sh; }

step_install() { step 'install' 1800 scripts/lib/install_test.sh; }

step_commands() {
  step 'commands of the documentation' 3600 python3 -B scripts/lib/docs_test.py run "$TARGET/debug/gda-probe"
}

step_site() { step 'site' 1800 scripts/site.sh "$TARGET/debug/gda-probe"; }

step_deploy() { step 'deploy' 600 scripts/lib/deploy_test.sh "$TARGET/debug/gda-probe"; }

step_containers() { step 'containers' 2400 scripts/lib/containers_test.sh; }

# ---- sanitizers and fuzzing ---------------------------------------------------------

# These need compiler options that stable Rust reserves: RUSTC_BOOTSTRAP=1, here only.
rust_host() { rustc -vV | sed -n 's/^host: //p'; }

has_sanitizer() {
  case $(rust_host) in
  x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu) ;;
  *) skip "$1" "Rust has no AddressSanitizer for $(rust_host)"; return 1 ;;
  esac
}

# The library, the adapter under it, device code that the host runs, and the provider's file as libfabric loads it, with
# leaks. nvcc runs beside it, because it uses one core.
step_asan() {
  local host triple passed=yes
  has_sanitizer 'AddressSanitizer' || return 0
  with_toolkit
  with_headers
  [[ -z $TOOLKIT ]] || early nvcc
  host=$(rust_host)
  triple=${host//-/_}
  # -rdynamic: a library that is loaded later finds the sanitizer in the program.
  local -x RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 ASAN_OPTIONS=detect_leaks=1
  local -x RUSTFLAGS='-Zsanitizer=address -Clink-arg=-rdynamic' "CXXFLAGS_$triple=-fsanitize=address"
  local common=(--target "$host" --target-dir "$TARGET/sanitizer" -p efa-gda-sys -p efa-gda -p softefa)
  # Left out: loom's models, whose fibers never return and so leak their stacks.
  LEAVE_OUT=doorbell::model sanitized_unit_tests "CARGO_TARGET_${triple^^}_RUNNER" "${common[@]}" --lib || passed=''
  # Left out: tests that run compilers only, and most of the adapter's core, which the queues' tests run too.
  cargo_tests 'AddressSanitizer' 1500 "${common[@]}" --test 'fabric_[!m]*' --test 'queue_*' --test doorbell_proxy \
    --test 'kernels_e*' --test 'verbs_*' --test 'device_[bg]*' || passed=''
  # Clients in the style of C, and clients that are killed, leave objects to the end of their process. The library's own
  # tests, above, close theirs and so show leaks of the provider.
  ASAN_OPTIONS=detect_leaks=0 cargo_tests 'AddressSanitizer on the provider' 900 "${common[@]}" -p softefa-uverbs \
    --test 'libfabric_*' --test hostile || passed=''
  [[ -n $passed ]]
}

# sanitized_unit_tests RUNNER ARGUMENT…: RUNNER is cargo's variable for a command that starts the test programs. NVRTC leaks
# what its initializers allocate. The suppression finds NVRTC by its name, which a library that was closed does not have
# any more, so it is loaded from start to end.
sanitized_unit_tests() {
  if [[ -n $TOOLKIT ]]; then
    echo 'leak:libnvrtc' >"$LOGS/leaks-of-nvrtc"
    local -x "$1=env LD_PRELOAD=libnvrtc.so.13"
    local -x LSAN_OPTIONS="suppressions='$LOGS/leaks-of-nvrtc':print_suppressions=0"
  fi
  cargo_tests 'AddressSanitizer on unit tests' 1500 "${@:2}"
}

# As cargo-fuzz passes them.
FUZZ_FLAGS=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0
  --cfg fuzzing -Zsanitizer=address)

# Two targets at a time, for two cores. The inputs are those that the wire encoder makes and those that earlier runs
# found. An input that breaks a target stays beside the logs.
step_fuzz() {
  local seconds=${EFA_GDA_FUZZ_SECONDS:-10} programs work=$TARGET/fuzz names=() index
  has_sanitizer 'fuzzing' || return 0
  [[ $seconds =~ ^[1-9][0-9]*$ ]] || { fail "EFA_GDA_FUZZ_SECONDS=$seconds: expected a number of seconds"; return; }
  # Not the sanitizer step's directory: the provider has one file name for both sets of flags.
  programs=$TARGET/fuzz-build/$(rust_host)/debug
  RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0 RUSTFLAGS="${FUZZ_FLAGS[*]}" step 'fuzz targets build' 1800 cargo build --locked \
    --manifest-path fuzz/Cargo.toml --target "$(rust_host)" --target-dir "$TARGET/fuzz-build" || return 0
  step 'seeds of the fuzz targets' 300 "$programs/efa-gda-fuzz" "$work/seeds" || return 0
  mapfile -t names < <(basename -s .rs fuzz/src/bin/*.rs)
  for ((index = 0; index < ${#names[@]}; index += 2)); do
    EARLY=yes fuzz "${names[@]:index:2}"
    fuzz "${names[@]:index:2}"
  done
}

# fuzz NAME…
fuzz() {
  local name
  for name in "$@"; do
    mkdir -p "$work/corpus/$name" "$work/seeds/$name"
    step "fuzz $name" "$((seconds + 120))" "$programs/$name" "-max_total_time=$seconds" -max_len=4096 \
      -timeout=30 -error_exitcode=1 "-artifact_prefix=$LOGS/$name-" "$work/corpus/$name" "$work/seeds/$name" || true
  done
}
