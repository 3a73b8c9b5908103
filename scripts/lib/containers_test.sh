#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the images of the Dockerfile on a debootstrapped base, without a registry and without network, and runs the
# probe in containers that each have one fault. Each fault must fail its own check, with a fix for the role that can
# apply it. Sysfs is made up (two adapters); device nodes, limits, users and profiles are the container's own.
#
#   containers_test.sh [PROBE]    PROBE: a self-contained gda-probe; without it, it is built first
#
# Containers, images and networks of a run are removed at its end, except after SIGKILL: then remove containers with the
# label efa-gda-test-PID, images of that name, and networks and volumes of that compose project.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"

TAG=efa-gda-test-$$

# Containers of compose have the label too, from their image. An engine without BuildKit leaves the stage that compiles as
# an image without a name.
clean_up() {
  {
    docker ps -aq --filter "label=$TAG" | xargs -r docker rm -fv
    docker network ls -q --filter "label=com.docker.compose.project=$TAG" | xargs -r docker network rm
    docker volume ls -q --filter "label=com.docker.compose.project=$TAG" | xargs -r docker volume rm -f
    docker images --filter "reference=$TAG" --format '{{.Repository}}:{{.Tag}}' | xargs -r docker rmi -f
    docker image prune --force --filter label=efa-gda.stage=build
  } >/dev/null || true
  rm -rf -- "$SCRATCH"
}

# logged WHAT COMMAND…: a command whose output matters only if it fails.
logged() {
  "${@:2}" >"$SCRATCH/log" 2>&1 || { cat "$SCRATCH/log"; die "$1"; }
}

# ---- images -------------------------------------------------------------------------

# base: an image of this machine's Debian release without libfabric.
base() {
  local archive
  archive=$(debian_root "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" 2>"$SCRATCH/log") ||
    skipped "$(<"$SCRATCH/log")"
  docker import "$archive" "$TAG:base" >/dev/null
  timeout 60 docker run --rm --network none --label "$TAG" "$TAG:base" true >"$SCRATCH/log" 2>&1 ||
    skipped "the docker engine cannot run a container: $(tail -n 1 "$SCRATCH/log")"
}

# images: those of the Dockerfile. Nothing is compiled there and no package is added.
images() {
  local probe=$1 target
  [[ -n $probe ]] || probe=$("$ROOT/scripts/build_standalone_probe.sh" --glibc host)
  [[ $(stat -c %s "$probe") -le 12000000 ]] || die "$probe is larger than 12 MB"
  mkdir -p "$SCRATCH/context/scripts/lib"
  cp -- "$ROOT/Dockerfile" "$ROOT/.dockerignore" "$SCRATCH/context/"
  cp -- "$ROOT/scripts/lib/setup.sh" "$ROOT/scripts/lib/image_files.sh" "$SCRATCH/context/scripts/lib/"
  "$ROOT/scripts/lib/image_files.sh" "$SCRATCH/context/target/image" "$probe"
  for target in probe transport; do
    logged "the image $target could not be built" docker build --quiet --force-rm --network none --label "$TAG" \
      --target "$target" --tag "$TAG:$target" --build-arg "RUST=$TAG:base" --build-arg "BASE=$TAG:base" \
      --build-arg PACKAGES= --build-arg TOOLS= "$SCRATCH/context"
  done
  [[ $(docker image inspect --format '{{.Size}}' "$TAG:probe") -le 120000000 ]] || die 'the image probe is larger than 120 MB'
}

# ---- containers ---------------------------------------------------------------------

# adapters: sysfs of a machine with two adapters.
adapters() {
  local number pci sys=$SCRATCH/sys
  mkdir -p "$sys/module/efa"
  echo 3.3.1 >"$sys/module/efa/version"
  for number in 1 2; do
    pci=$sys/bus/pci/devices/0000:0$number:00.0
    mkdir -p "$pci/infiniband/rdmap${number}s0" "$pci/infiniband_verbs/uverbs$number" \
      "$sys/class/infiniband/rdmap${number}s0/ports/1"
    echo 0x1d0f >"$pci/vendor"
    echo 0xefa3 >"$pci/device"
    ln -s ../../../../bus/pci/drivers/efa "$pci/driver"
    echo '4: ACTIVE' >"$sys/class/infiniband/rdmap${number}s0/ports/1/state"
    mknod -m 666 "$SCRATCH/uverbs$number" c 1 3
  done
  mknod -m 600 "$SCRATCH/closed" c 1 3
}

# probe NAME STATUS OPTION… -- ARGUMENT…: the report of a container; the probe must end with STATUS.
probe() {
  local name=$1 wanted=$2 status=0 options=()
  shift 2
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  REPORT=$SCRATCH/$name.json
  timeout --kill-after=5 90 docker run --rm --network none --label "$TAG" "${options[@]}" "$TAG:probe" "$@" --json \
    --gpu none --time-limit 20000 >"$REPORT" 2>"$SCRATCH/log" || status=$?
  [[ $status -eq $wanted ]] || { cat "$REPORT" "$SCRATCH/log"; die "$name: exit status $status, expected $wanted"; }
  echo "ran: $name"
}

# on_hardware NAME OPTION…: a check on the machine with two adapters, which fails, if only because they are made up.
on_hardware() {
  local name=$1
  shift
  probe "$name" 3 -v "$SCRATCH/sys:/sys:ro" "$@" -- check
}

# reported EXPRESSION: of the last report. state(CODE) is the worst state of that code; names(CODE, WHO, TEXT) is whether
# it failed or warned, WHO can fix it, and the fix contains TEXT.
reported() {
  holds "$REPORT" "(state := lambda code: next(state for state in ('fail', 'warn', 'unknown', 'skip', 'pass')
      if state in [c['state'] for c in report['checks'] if c['code'] == code]),
    names := lambda code, who, text: any(c['code'] == code and c['state'] in ('fail', 'warn') and c['who'] == who
      and text in c['fix'] for c in report['checks']), $1)[-1]" || die "$1 does not hold"
}

devices() {
  on_hardware 'no device nodes'
  reported 'state("DEV-005") == "fail" and names("DEV-005", "pod", "vpc.amazonaws.com/efa")'
  reported 'state("LIB-001") == "fail" and names("LIB-001", "image", "libfabric")'
  local first=(--device "$SCRATCH/uverbs1:/dev/infiniband/uverbs1")
  local second=(--device "$SCRATCH/uverbs2:/dev/infiniband/uverbs2")
  on_hardware 'all device nodes' "${first[@]}" "${second[@]}"
  reported '{state(code) for code in ("DEV-005", "DEV-006", "DEV-007")} == {"pass"}'
  on_hardware 'some device nodes' "${first[@]}"
  reported 'state("DEV-007") == "warn" and names("DEV-007", "pod", "all EFA devices")'
  on_hardware 'a node that its user may not open' --user 65534 --device "$SCRATCH/closed:/dev/infiniband/uverbs1"
  reported 'names("DEV-006", "pod", "read and write permission")'
  on_hardware 'low memlock' --ulimit memlock=65536
  reported 'state("ENV-003") == "fail" and names("ENV-003", "pod", "memlock")'
  on_hardware 'low memlock and its fix' --ulimit memlock=65536 --cap-add IPC_LOCK
  reported 'state("ENV-003") == "pass"'
}

# works NAME OPTION…: the software adapter moves bytes, with a warning of libfabric only, which the image lacks.
works() {
  local name=$1
  shift
  probe "$name" 4 "$@" -- check --soft
  reported '[c["code"] for c in report["checks"] if c["state"] in ("fail", "warn")] == ["LIB-001"]'
  reported 'report["put"]["verified"] is True and names("LIB-001", "image", "install libfabric")'
}

restrictions() {
  works 'no libfabric'
  works 'a root that cannot be written' --read-only
  works 'another user than root' --user 65534
  works 'no capabilities' --cap-drop ALL --security-opt no-new-privileges
  works 'no shared memory and a temporary file system' --read-only --ipc none --tmpfs /tmp
  probe 'no directory that can be written' 3 --read-only --ipc none -- check --soft
  reported 'names("ENV-000", "pod", "--tmpfs /tmp")'
  printf '%s\n' '{"defaultAction": "SCMP_ACT_ALLOW",' \
    '"syscalls": [{"names": ["memfd_create"], "action": "SCMP_ACT_ERRNO"}]}' >"$SCRATCH/seccomp.json"
  probe 'a seccomp profile' 3 --security-opt "seccomp=$SCRATCH/seccomp.json" -- check --soft
  reported 'names("ENV-000", "pod", "seccomp")'
}

# copies: this machine's libfabric with the libraries that it needs, and another release of it. The check of copies reads
# the release from the name of the file.
copies() {
  local library trixie
  library=$(ldconfig -p | awk '/libfabric\.so\.1 / { print $NF; exit }')
  [[ -n $library ]] || { echo 'not run: libfabric, because this machine has none'; return 1; }
  mkdir -p "$SCRATCH/lib" "$SCRATCH/amazon"
  ldd "$library" | awk '$3 ~ /^\// && $3 !~ /lib[cm]\.so/ { print $3 }' | xargs cp -Lt "$SCRATCH/lib"
  cp -- "$(readlink -f "$library")" "$SCRATCH/lib/"
  ln -s "$(basename "$(readlink -f "$library")")" "$SCRATCH/lib/libfabric.so.1"
  fetch_suite trixie "${TRIXIE_PACKAGES[@]}" || { echo 'not run: two libfabrics'; return 0; }
  trixie=$(readlink -f "$(suite_lib trixie)/libfabric.so.1")
  cp -- "$trixie" "$SCRATCH/amazon/"
  ln -s "$(basename "$trixie")" "$SCRATCH/amazon/libfabric.so.1"
}

libraries() {
  copies || return 0
  local with=(-v "$SCRATCH/lib:/usr/local/lib/fabric:ro" -e LD_LIBRARY_PATH=/usr/local/lib/fabric)
  probe 'libfabric and the software adapter' 0 "${with[@]}" --read-only -- check --soft
  reported 'state("LIB-001") == "pass" and report["put"]["verified"] is True'
  on_hardware 'an old libfabric' "${with[@]}"
  reported 'names("GDA-001", "image", "install libfabric")'
  if [[ -e $SCRATCH/amazon/libfabric.so.1 ]]; then
    on_hardware 'two libfabrics' "${with[@]}" -v "$SCRATCH/amazon:/opt/amazon/efa/lib:ro"
    reported 'state("LIB-004") == "warn" and names("LIB-004", "image", "")'
  fi
}

# SIGTERM ends a container, and nothing else would within 20 s; it leaves no file.
stops() {
  local id turn
  mkdir "$SCRATCH/tmp" "$SCRATCH/shm"
  id=$(docker run -d --network none --label "$TAG" -v "$SCRATCH/tmp:/tmp" -v "$SCRATCH/shm:/dev/shm" "$TAG:probe" \
    bench --soft --gpu none --time-limit 60000)
  # The bench runs once its worker process has.
  for ((turn = 0; turn < 300; turn++)); do
    [[ $(docker top "$id" | wc -l) -lt 3 ]] || break
    sleep 0.1
  done
  docker stop --time 20 "$id" >/dev/null
  [[ $(docker inspect --format '{{.State.ExitCode}}' "$id") -eq 143 ]] || die "docker stop did not end the probe by SIGTERM"
  [[ -z $(find "$SCRATCH/tmp" "$SCRATCH/shm" -mindepth 1) ]] || die "files are left: $(find "$SCRATCH/tmp" "$SCRATCH/shm")"
}

# ---- two containers -----------------------------------------------------------------

compose() {
  local command=(docker compose)
  docker compose version >/dev/null 2>&1 || command=(docker-compose)
  EFA_GDA_JOB_TOKEN=0123456789abcdef GDA_PROBE_IMAGE=$TAG:stack PUTS=${PUTS:-100} timeout --kill-after=5 300 \
    "${command[@]}" --project-name "$TAG" --file "$ROOT/deploy/compose/compose.yaml" "$@"
}

# stack: the image probe with the C library and the rdma-core of Debian sid.
stack() {
  local why
  have_compose || { echo 'not run: compose, which is missing'; return 1; }
  why=$(fetch_suite sid "${STACK_PACKAGES[@]}" 2>&1) || { echo "not run: compose, because $why"; return 1; }
  mkdir "$SCRATCH/stack"
  cp -a -- "$(suite_dir sid)/root/usr" "$SCRATCH/stack/usr"
  rm -rf -- "$SCRATCH"/stack/usr/{include,share}
  printf 'FROM %s\nCOPY usr /usr\nRUN ldconfig\n' "$TAG:probe" >"$SCRATCH/stack/Dockerfile"
  logged 'the image with rdma-core of sid could not be built' \
    docker build --quiet --force-rm --network none --label "$TAG" --tag "$TAG:stack" "$SCRATCH/stack"
}

# service NAME: the container of a service.
service() { docker ps -aq --filter "label=com.docker.compose.project=$TAG" --filter "label=com.docker.compose.service=$1"; }

# Two containers put to each other over a broker in a third; then one of them is killed, and the other names it.
pair() {
  local turn status
  stack || return 0
  logged 'two containers: a put failed' compose up --exit-code-from first
  for line in '1000 × 65536 bytes (write) on rdmap0s7' 'PE 0\] PASS - Got expected value 100 from PE 1' \
    'PE 1\] PASS - Got expected value 0 from PE 0'; do
    grep -q "$line" "$SCRATCH/log" || { cat "$SCRATCH/log"; die "two containers: no line \"$line\""; }
  done
  compose down --volumes --timeout 1 >/dev/null 2>&1
  # More puts than end before the kill.
  PUTS=1000000000 logged 'two containers do not start' compose up --detach
  for ((turn = 0; turn < 600; turn++)); do
    [[ $(docker top "$(service second)" -o pid,args) != *' ring '*__ranks* ]] || break
    sleep 0.1
  done
  sleep 2
  docker kill "$(service second)" >/dev/null
  # A rank waits for the others for 30 s, and the puts end after 600 s.
  status=$(timeout 300 docker wait "$(service first)") || die 'the other container did not end'
  docker logs "$(service first)" >"$SCRATCH/log" 2>&1
  if [[ $status -ne 3 ]] || ! grep -q 'rank 1 left the exchange' "$SCRATCH/log"; then
    cat "$SCRATCH/log"
    die "one of two containers was killed: the other ended with $status; expected 3, and a line on rank 1"
  fi
  echo 'ran: two containers, and one that is killed'
}

have docker || skipped 'no docker on this machine'
timeout 20 docker info >/dev/null 2>&1 || skipped 'the docker engine does not answer'
PATH=$PATH:/sbin:/usr/sbin
have debootstrap || skipped 'debootstrap is not installed (Debian package debootstrap)'
[[ $(id -u) -eq 0 ]] || skipped 'debootstrap and device nodes need root'
SCRATCH=$(mktemp -d)
chmod 755 "$SCRATCH"
trap clean_up EXIT
base
images "${1:-}"
adapters
devices
restrictions
libraries
stops
pair
# A container's programs and headers are found where the documentation states them.
[[ $(docker run --rm --network none --entrypoint /workspace/gda_probe "$TAG:probe" --version) == *$'\nsoftefa: built in'* ]]
[[ $(docker run --rm --network none --entrypoint softefa "$TAG:probe" --version) == 'softefa '* ]]
docker run --rm --network none "$TAG:transport" sh -c 'test -e /usr/local/include/efa_gda.h &&
  test -e /usr/local/share/efa_gda/kernels/put.cu && ldconfig -p | grep -q libefa_gda.so'
