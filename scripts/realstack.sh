#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs unmodified rdma-core and libfabric of Debian sid, and other people's programs on them, over the uverbs frontend of
# the software adapter:
#
#   scripts/realstack.sh            everything
#   scripts/realstack.sh programs   other people's programs alone
#
# The script fetches the packages from sid through this machine's apt configuration, verifies their signatures, unpacks
# them without root into .cache/sid, and reuses them for a week. Programs run through sid's loader. LIBFABRIC_DIR=DIR,
# where DIR holds lib/libfabric.so.1 of 2.3 or newer, built against rdma-core 59 or newer, also runs the probe and the
# library's tests through the efa provider of that libfabric. Every program has a time limit. The log of a failed
# program is printed.
#
# Exit status: 0 all passed, 1 a program failed, 2 usage, 77 SKIPPED, because nothing could be fetched.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"
# shellcheck source=scripts/lib/programs.sh
source "$ROOT/scripts/lib/programs.sh"

# Time limits of the probe that suit a busy machine.
PATIENT=(--time-limit 60000)

# failed NAME REASON: prints the log of NAME and ends the script.
failed() {
  echo "FAILED: $1 $2; its log:"
  sed 's/^/    /' "$SCRATCH/$1.log"
  exit 1
}

# run NAME SECONDS COMMAND…: under a time limit; prints the log on failure.
run() {
  local name=$1 limit=$2 status=0 log
  shift 2
  log=$SCRATCH/$name.log
  timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
  case $status in
  0) ;;
  124 | 137) failed "$name" "did not end within $limit seconds" ;;
  *) failed "$name" "ended with status $status" ;;
  esac
  printf 'passed: %-28s %s\n' "$name" "$(grep -m 1 'rdmap0s6: ' "$log" | sed 's/^softefa: //' || true)"
}

# softefa NAME SECONDS COMMAND…: as run, on software adapters.
softefa() {
  local name=$1 limit=$2
  shift 2
  run "$name" "$limit" "$SOFTEFA" run --adapters "${ADAPTERS:-1}" -- "$@"
}

# wants NAME PATTERN: the log must have a line that matches, or a sentence that the program wrapped.
wants() {
  local log=$SCRATCH/$1.log
  grep -q -- "$2" "$log" || tr -s ' \n' ' ' <"$log" | grep -- "$2" >/dev/null || failed "$1" "printed no line like \"$2\""
}

# program NAME: a shell program from stdin.
program() {
  { echo '#!/bin/bash'; cat; } >"$SCRATCH/$1"
  chmod +x "$SCRATCH/$1"
}

# use_suite SUITE: sets SID and SID_LIB, and makes the program sid, which runs programs of that directory through its
# loader; libibverbs finds its drivers by name on the library path.
use_suite() {
  SID=$(suite_dir "$1")
  SID_LIB=$(suite_lib "$1")
  program sid <<PROGRAM
program=\$1
shift
case \$program in */*) ;; *) program=$SID/root/usr/bin/\$program ;; esac
exec $(suite_loader "$1") --library-path \${LIBRARIES:+\$LIBRARIES:}$SID_LIB:$SID_LIB/libibverbs "\$program" "\$@"
PROGRAM
}

# build_tests NAME…: test files of efa-gda; cargo prints the paths of the programs, which test_file reads.
build_tests() {
  (cd "$ROOT" && cargo test --no-run --locked --workspace "${@/#/--test=}") >"$SCRATCH/tests" 2>&1 ||
    { cat "$SCRATCH/tests" >&2; die "the library's tests do not build"; }
}

build() {
  say "building"
  # What test.sh builds: fewer packages would have other features and be compiled again.
  (cd "$ROOT" && cargo build --locked -q --workspace --lib --bins --tests --examples) || die "the build failed"
  build_tests verbs_adapter verbs_cycles
  SOFTEFA=$TARGET/debug/softefa
  PROBE=${SOFTEFA%/*}/gda-probe
  # Against sid's headers and libraries; the program runs with sid's C library, which is newer.
  local name
  for name in verbs_requests verbs_states; do
    cc -O1 -Wall -I"$SID/root/usr/include" "$ROOT/softefa/uverbs/tests/$name.c" \
      -o "$SCRATCH/$name" -L"$SID_LIB" -Wl,--unresolved-symbols=ignore-in-shared-libs \
      -l:libefa.so.1 -l:libibverbs.so.1 || die "$name.c does not compile against sid's rdma-core"
  done
  # Starts a server and, when it listens, its client. OPTION: of the server's, of the client's port.
  program served <<'PROGRAM'
# A port that differs between concurrent runs, below those of outgoing connections.
port=$((10000 + $$ % 20000))
server=$1 client=$2
shift 2
"$@" "$server" "$port" & pid=$!
for _ in $(seq 1000); do
  grep -q "$(printf ':%04X [0-9A-F]*:0000 0A ' "$port")" /proc/net/tcp && break
  sleep 0.1
done
"$@" "$client" "$port" 127.0.0.1 || { status=$?; kill "$pid"; exit "$status"; }
wait "$pid"
PROGRAM
}

# Two processes, a server and a client, through the adapter: by default libfabric uses shared memory between processes of
# one host.
pingpong() {
  FI_EFA_ENABLE_SHM_TRANSFER=0 softefa "fi_pingpong-$1" 300 \
    "$SCRATCH/served" -B -P "$SCRATCH/sid" fi_pingpong -p efa "${@:2}"
  wants "fi_pingpong-$1" 'rdmap0s6: [1-9][0-9]* doorbells'
}

# A process is killed during traffic: its peer gets an error, and the adapter continues.
killed() {
  program killed <<'PROGRAM'
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
await() { for _ in $(seq 1000); do grep -q . "$1" 2>/dev/null && return; sleep 0.1; done; echo "$1 is empty"; exit 1; }
"$@" target >"$out/target" & target=$!
await "$out/target"
# shellcheck disable=SC2046 # words
"$@" writer $(cat "$out/target") >"$out/writer" & writer=$!
await "$out/writer"
kill -9 "$target"
wait "$writer" || exit
cat "$out/writer"
"$@" random 5 500 64 /dev/null
PROGRAM
  softefa killed 300 "$SCRATCH/killed" "$SCRATCH/sid" "$SCRATCH/verbs_requests"
  wants killed 'writer: after .*: .* (device status [1-9]'
}

# test_file NAME: the path of a program that build_tests built.
test_file() {
  local file
  file=$(sed -n "s|.*Executable tests/$1\.rs (\(.*\))\$|\1|p" "$SCRATCH/tests")
  [[ $file == /* ]] || file=$ROOT/$file
  echo "$file"
}

# library_test NAME SECONDS ARGUMENT…: a test file of efa-gda, over rdma-core.
library_test() {
  local skips=$SCRATCH/skips
  : >"$skips"
  EFA_GDA_VERBS_ADAPTER=any EFA_GDA_TEST_SKIPS=$skips softefa "$1" "$2" "$SCRATCH/sid" "$(test_file "$1")" "${@:3}"
  wants "$1" '^test result: ok. [1-9]'
  [[ ! -s $skips ]] || failed "$1" "skipped $(cut -f 1 "$skips" | paste -s -d ' ')"
}

# moves NAME ARGUMENT…: every operation of gda-probe put, each byte compared.
moves() {
  local name=$1 op
  shift
  for op in write write-imm inline-write read send; do
    softefa "$name-$op" 300 "$SCRATCH/sid" "$PROBE" put --executor host --op "$op" --bytes 80 --count 20000 \
      "${PATIENT[@]}" "$@"
    wants "$name-$op" 'Put: 20000 × .*: verified'
  done
}

# What rdma-core alone exposes.
probe_verbs() {
  check gda-probe-verbs -v --via verbs
  wants gda-probe-verbs "pass  VRB-002 .*: rdma-core $(suite_version sid libibverbs1 | grep -o '^[0-9]*')"
  local code
  for code in VRB-011 VRB-012 VRB-013 VRB-014 VRB-015 QUE-005 PUT-001 PUT-002 PUT-004 PUT-005; do
    wants gda-probe-verbs "pass  $code "
  done
  moves put-verbs --via verbs
  # Where the platform drops loopback, puts go to the other adapter, and a warning says so.
  local op
  for op in write inline-write send; do
    # shellcheck disable=SC2016 # the inner shell's
    ADAPTERS=2 SOFTEFA_DROP_LOOPBACK=1 softefa "put-loopback-$op" 60 sh -c '"$@"; test $? -eq 4' - "$SCRATCH/sid" \
      "$PROBE" put --via verbs --executor host --op "$op" --count 1000 --time-limit 4000
    wants "put-loopback-$op" 'Put: 1000 × .*: verified'
  done
}

# fabric_tests FILE TEST…: tests of efa-gda that were written for softefa's libfabric provider, on the provider of
# LIBFABRIC_DIR. Both are called efa and the higher version wins, so softefa's, which the tests load, reports version 1.0.
fabric_tests() {
  local file=$1 name
  shift
  mkdir -p "$SCRATCH/providers"
  ln -sf "${SOFTEFA%/*}/deps/libsoftefa.so" "$SCRATCH/providers/softefa-fi.so"
  for name in "$@"; do
    EFA_GDA_TEST_CHILD=$name EFA_GDA_TEST_CALL=0 FI_EFA_USE_HW_CNTR=1 SOFTEFA_PROV_VERSION=1.0 \
      FI_PROVIDER_PATH=$SCRATCH/providers \
      softefa "$name" 300 "$SCRATCH/sid" "$(test_file "$file")" "$name" --exact --nocapture
    wants "$name" '^test result: ok. 1 passed'
    wants "$name" 'rdmap0s6: '
  done
}

# The library's tests through LIBFABRIC_DIR.
library_libfabric_dir() {
  build_tests fabric_counters queue_operations queue_external_completions fabric_soft doorbell_soft
  fabric_tests queue_operations a_read_copies_remote_bytes_to_local_memory \
    an_inline_write_of_80_bytes_travels_in_its_entry \
    an_inline_send_carries_its_immediate receives_wrap_around_their_ring_many_times \
    unsolicited_writes_do_not_consume_posted_receives
  fabric_tests queue_external_completions completions_arrive_in_memory_of_the_caller
  fabric_tests fabric_soft two_hundred_thousand_puts_arrive_across_every_wrap \
    one_put_of_a_mebibyte_and_a_byte_arrives_whole every_object_closes_without_an_error
  fabric_tests doorbell_soft a_queue_changes_its_doorbell_mode_between_work_requests
  if grep -q efadv_create_comp_cntr "$LIBFABRIC_DIR/lib/libfabric.so.1"; then
    fabric_tests fabric_counters successes_and_errors_are_counted_separately \
      a_target_counts_the_writes_of_its_peers a_counter_in_unmapped_memory_is_not_read \
      closing_a_bound_counter_returns_busy_until_its_endpoint_is_closed
  else
    echo "not run: tests of completion counters, because this libfabric was built without them"
  fi
}

# check NAME ARGUMENT…: gda-probe check, which ends with status 3 because of DEV-001: the PCI bus has no adapter, and the
# probe runs without --soft.
check() {
  # shellcheck disable=SC2016 # the inner shell's
  softefa "$1" 300 sh -c '"$@"; test $? -eq 3' - "$SCRATCH/sid" "$PROBE" check --gpu none "${PATIENT[@]}" "${@:2}"
}

# The interface for C over rdma-core: the tests' programs in C and C++, with the library as install.sh links it.
c_interface() {
  local tests=$ROOT/efa-gda-capi/tests/capi folder=$SCRATCH/capi name
  local compile=(-Wall -I "$ROOT/efa-gda-capi/include" -I "$ROOT/kernels/include" -I "$ROOT/third_party/efa_gda")
  mkdir -p "$folder"
  "$ROOT/efa-gda-capi/link.sh" "${SOFTEFA%/*}/libefa_gda.a" "$folder/libefa_gda.so" || die "libefa_gda.so does not link"
  cc -std=c11 "${compile[@]}" -o "$folder/transport" "$tests/transport.c" -L"$folder" -lefa_gda ||
    die "transport.c does not compile"
  c++ -std=c++17 -O1 "${compile[@]}" -o "$folder/signal" "$tests/signal.cpp" "$ROOT/kernels/host/lanes.cpp" \
    -L"$folder" -lefa_gda -lpthread || die "signal.cpp does not compile"
  cc -std=c11 "${compile[@]}" -o "$folder/put" "$ROOT/efa-gda-capi/examples/put.c" -L"$folder" -lefa_gda ||
    die "put.c does not compile"
  for name in put errors operations counters busy snapshot relaxed order; do
    SOFTEFA_LATE_WRITE_US=3600000000 EFA_GDA_TEST_VERBS=1 LIBRARIES=$folder softefa "c-$name" 300 \
      "$SCRATCH/sid" "$folder/transport" "$name"
  done
  EFA_GDA_TEST_VERBS=1 LIBRARIES=$folder softefa cplusplus-signal 300 "$SCRATCH/sid" "$folder/signal"
  for name in '' record staged; do
    LIBRARIES=$folder softefa "c-example-$name" 300 "$SCRATCH/sid" "$folder/put" rdma-core ${name:+"$name"}
    wants "c-example-$name" '^the bytes arrived$'
  done
}

# The example transport: two processes, connected by two pipes. (It starts its peer itself on other machines; sid's loader
# cannot.)
# The same source as over libfabric; the words choose how the queue is opened.
example_put() {
  local mode
  for mode in '' record staged; do
    softefa "example-put-$mode" 300 "$SCRATCH/sid" "${SOFTEFA%/*}/examples/put" rdma-core ${mode:+"$mode"}
    wants "example-put-$mode" '^65536 bytes arrived in 1 completion'
    wants "example-put-$mode" ' 0 violations'
  done
}

example_transport() {
  program pair <<'PROGRAM'
pipe=$(mktemp -u)
mkfifo "$pipe"
trap 'rm -f "$pipe"' EXIT
"$@" 0 <"$pipe" | "$@" 1 >"$pipe"
ended=("${PIPESTATUS[@]}")
[[ ${ended[0]} -eq 0 && ${ended[1]} -eq 0 ]]
PROGRAM
  softefa example-transport 300 "$SCRATCH/pair" "$SCRATCH/sid" "${SOFTEFA%/*}/examples/transport"
  wants example-transport '^rank .: the sum of 32768 elements is right, on the host executor'
  wants example-transport ' 0 violations'
  # Requests overtake each other.
  SOFTEFA_REORDER=48 SOFTEFA_INTERVAL_US=20 \
    softefa example-reordered 300 "$SCRATCH/pair" "$SCRATCH/sid" "${SOFTEFA%/*}/examples/transport"
  # A rank whose peer never starts says so.
  # shellcheck disable=SC2016 # the inner shell's
  run example-alone 300 "$SOFTEFA" run -- sh -c '! "$@" </dev/null >/dev/null' - \
    "$SCRATCH/sid" "${SOFTEFA%/*}/examples/transport" 1
  wants example-alone 'transport: the peer sent too little'
}

# Ranks in processes of their own, and a put from one process to another, through one broker.
rings() {
  local size
  for size in 2 4 8; do
    ADAPTERS=2 softefa "ring-$size" 600 "$SCRATCH/sid" "$PROBE" \
      ring --via verbs --spawn "$size" --bytes 100000 --count 20 "${PATIENT[@]}"
    wants "ring-$size" "^$size of $size ranks passed"
  done
  EFA_GDA_JOB_TOKEN=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
  export EFA_GDA_JOB_TOKEN
  program listen_and_put <<'PROGRAM'
# In two network namespaces where this machine can make them, otherwise in one.
here=(env)
there=(env)
host=127.0.0.1
out=$(mktemp)
trap 'rm -f "$out"; kill "$holder" 2>/dev/null' EXIT
if [[ ${NAMESPACES:-} == 1 ]]; then
  unshare -n sleep 600 & holder=$!
  there=(nsenter -t "$holder" -n)
  own=$(readlink /proc/$$/ns/net)
  for _ in $(seq 1000); do [[ $(readlink "/proc/$holder/ns/net") != "$own" ]] && break; sleep 0.05; done
  set -e
  ip link add left type veth peer name right netns "$holder"
  ip address add 10.99.0.1/24 dev left
  ip link set left up
  # The listener's own rank reaches it through the loopback device.
  ip link set lo up
  "${there[@]}" ip address add 10.99.0.2/24 dev right
  "${there[@]}" ip link set right up
  set +e
  host=10.99.0.1
fi
port=$((10000 + $$ % 20000))
"${here[@]}" "$@" put --via verbs --time-limit 60000 --listen "$host:$port" >"$out" & listener=$!
"${there[@]}" "$@" put --via verbs --time-limit 60000 --peer "$host:$port" --bytes 5000 --count 1000 || exit
wait "$listener" || exit
cat "$out"
"${here[@]}" "$@" put --via verbs --time-limit 60000 --listen "$host:$port" >"$out" & listener=$!
"${there[@]}" "$@" bench --via verbs --time-limit 10000 --peer "$host:$port" || exit
wait "$listener" || exit
cat "$out"
PROGRAM
  softefa pair 300 "$SCRATCH/listen_and_put" "$SCRATCH/sid" "$PROBE"
  wants pair 'PE 0. PASS - Got expected value 100 from PE 1'
  wants pair 'Bandwidth, 10^9 bytes a second'
  if unshare -Urn ip link add left type veth peer name right 2>/dev/null; then
    NAMESPACES=1 softefa pair-namespaces 300 unshare -Urn "$SCRATCH/listen_and_put" "$SCRATCH/sid" "$PROBE"
    wants pair-namespaces 'PE 0. PASS - Got expected value 100 from PE 1'
    wants pair-namespaces 'Bandwidth, 10^9 bytes a second'
  else
    echo "not run: put --peer and bench --peer between two network namespaces, because this machine cannot make them (unshare, ip link)"
  fi
}

# Without privileges, if the script runs as root and other users can read the files.
unprivileged() {
  local nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all)
  chmod 755 "$SCRATCH"
  if [[ $(id -u) -ne 0 ]] || ! have setpriv || ! "${nobody[@]}" test -x "$PROBE" -a -x "$SID/root" 2>/dev/null; then
    return
  fi
  TMPDIR=/tmp run unprivileged 300 "${nobody[@]}" "$SOFTEFA" run -- \
    "$SCRATCH/sid" "$PROBE" put --via verbs --executor host --count 1000 "${PATIENT[@]}"
  wants unprivileged 'Put: 1000 × .*: verified'
}

# The probe through LIBFABRIC_DIR, which has the GDA operations.
probe_libfabric_dir() {
  check gda-probe-dir -v
  local code
  for code in GDA-001 GDA-002 GDA-003 GDA-004 GDA-005 GDA-006 GDA-008 GDA-009 QUE-005 PUT-001 PUT-002 PUT-004 PUT-005; do
    wants gda-probe-dir "pass  $code "
  done
  sed -n 's/.*\(libfabric [0-9.]*, used at API.*\)/        \1/p' "$SCRATCH/gda-probe-dir.log"
  moves put-dir --via libfabric
}

# The probe reports the versions of these releases, what this libfabric lacks, and the fix.
probe() {
  check gda-probe-check -v
  wants gda-probe-check "libfabric $(suite_version sid libfabric1 | grep -o '^[0-9]*\.[0-9]*')"
  wants gda-probe-check 'FAIL  GDA-001 '
  wants gda-probe-check 'pass  FAB-010 '
  wants gda-probe-check 'pass  VRB-011 '
  wants gda-probe-check 'rdma-core exposes the queues, this libfabric does not'
}

# libefa's entries equal this project's, and their hash is the one that the tests of the device code compare with.
compared() {
  local entry=$1 hash recorded=efa-gda/tests/kernels_entries.rs
  SOFTEFA_SEED=1 SOFTEFA_CAPTURE=$SCRATCH/capture.$entry softefa "requests-$entry" 300 \
    "$SCRATCH/sid" "$SCRATCH/verbs_requests" random "$entry" 5000 "$entry" "$SCRATCH/requests.$entry"
  run "compare-$entry" 300 "$SOFTEFA" compare "$SCRATCH/capture.$entry" "$SCRATCH/requests.$entry"
  sed 's/^/        /' "$SCRATCH/compare-$entry.log"
  hash=$(cut -d ' ' -f 4 "$SCRATCH/capture.$entry" | sha256sum | cut -d ' ' -f 1)
  grep -qF -- "$hash" "$ROOT/$recorded" || failed "compare-$entry" "has entries of hash $hash, which $recorded has not"
}

main() {
  [[ ${1:-} == programs ]] || help_or_nothing "$@"
  want 'gcc libc6-dev' have_c_compiler
  want g++ have_cxx_compiler
  install_missing || exit 1
  find_rust
  choose_target_dir
  local reason
  reason=$(fetch_suite sid "${STACK_PACKAGES[@]}" 2>&1) || skipped "$reason"
  [[ -z $reason ]] || say "$reason"
  echo "rdma-core $(suite_version sid libibverbs1), libfabric $(suite_version sid libfabric1), glibc $(suite_version sid libc6), from Debian sid"
  SCRATCH=$(mktemp -d)
  trap 'rm -rf -- "$SCRATCH"' EXIT
  use_suite sid
  # Of rdma-core's drivers only efa's is unpacked; the machine's list names others.
  export IBV_DRIVERS=efa RDMAV_DRIVERS=efa
  build
  if [[ ${1:-} == programs ]]; then
    programs
    [[ -z $NOT_RUN ]] || skipped "$NOT_RUN"
    echo "all passed"
    return
  fi

  ADAPTERS=2 softefa ibv_devinfo 300 "$SCRATCH/sid" ibv_devinfo -v
  wants ibv_devinfo 'hca_id:.*rdmap0s7'
  ADAPTERS=2 softefa fi_info 300 "$SCRATCH/sid" fi_info -p efa
  wants fi_info 'fabric: efa-direct'
  pingpong small -e rdm -I 50
  # With verified bytes; and tagged, up to 6 MiB.
  pingpong checked -e rdm -S all -I 5 -c
  pingpong tagged -e rdm -m tagged -S all -I 5
  pingpong datagram -e dgram -I 20
  probe
  probe_verbs
  c_interface
  example_put
  example_transport
  rings
  unprivileged
  # One test needs an adapter without RDMA read.
  local lacking=a_read_on_an_adapter_without_rdma_read_is_refused
  # Late writes to regions with relaxed ordering land only when something lands them.
  SOFTEFA_LATE_WRITE_US=3600000000 library_test verbs_adapter 300 --skip "$lacking"
  SOFTEFA_RDMA_READ=0 library_test verbs_adapter 300 --exact "$lacking"
  compared 64
  compared 128
  softefa external-cq 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" random 9 3000 64 /dev/null external
  # Programs that sleep until their completion channel has an event. With a delay they do sleep.
  softefa sleeping 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" sleeping 20000
  SOFTEFA_DELAY_US=2000 softefa sleeping-delayed 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" sleeping 500
  softefa large 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" large
  softefa errors 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" errors
  wants errors 'completions\? with status 5: the lkey is unknown'
  local part
  for part in drained datagram states; do
    softefa "verbs-$part" 300 "$SCRATCH/sid" "$SCRATCH/verbs_states" "$part"
    wants "verbs-$part" ' 0 violations'
  done
  ADAPTERS=2 softefa stranger 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" stranger
  softefa wrap-16 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" many 70000
  # The counter starts 65,536 before 2^32.
  SOFTEFA_FIRST_COUNTER=4294901760 softefa wrap-32 300 "$SCRATCH/sid" "$SCRATCH/verbs_requests" many 70000
  SOFTEFA_REORDER=8 softefa delayed 300 env SOFTEFA_DELAY_US=10 "$SCRATCH/sid" "$SCRATCH/verbs_requests" large
  # softefa names a broken rule and turns exit status 0 into 3.
  # shellcheck disable=SC2016 # the inner shell's
  run violation 300 sh -c '"$@"; test $? -eq 3' - "$SOFTEFA" run -- "$SCRATCH/sid" "$SCRATCH/verbs_requests" broken
  wants violation 'VIOLATION: doorbell-past-ring'
  wants violation 'device status 2'
  killed
  # A leak exhausts these limits of descriptors and memory.
  (
    ulimit -n 64
    # An open device reserves 1 GiB of addresses for its rings, of which only used pages take memory.
    ulimit -v 2800000
    softefa cycles 600 "$SCRATCH/sid" "$SCRATCH/verbs_requests" cycles 10000
  )
  library_test verbs_cycles 600
  programs
  if [[ -n ${LIBFABRIC_DIR:-} ]]; then
    export LIBRARIES=$LIBFABRIC_DIR/lib
    probe_libfabric_dir
    library_libfabric_dir
  fi
  echo "all passed${NOT_RUN:+, but not run: $NOT_RUN}"
}

main "$@"
