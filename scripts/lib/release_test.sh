#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the files of release.sh in the systems that they are for: checksums, the newest symbol version of glibc, the
# probe's size, the bill of materials; then the tarball and the packages in root file systems that debootstrap makes,
# without a network. Not a step of test.sh, because a release build and the roots take about 15 minutes. As root:
#
#   release_test.sh FILES [--suites 'SUITE…'] [ROOT…]
#
# FILES      the directory that release.sh wrote
# --suites   releases of Debian, by default "bullseye bookworm trixie sid"
# ROOT       a root file system with another C library, for example glibc 2.28; it needs bin/sh, and is not changed
#
# Exit status: 0 passed, 1 on a failure, 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"
# shellcheck source=scripts/lib/standalone.sh
source "$ROOT/scripts/lib/standalone.sh"

OLDEST_GLIBC=2.28

# Programs and libraries of the tarball need no newer glibc.
check_symbols() {
  local file version
  while IFS= read -r -d '' file; do
    [[ $(head -c 4 "$file" | tr -d '\0') == $'\x7fELF' ]] || continue
    version=$(needs_glibc "$file")
    echo "${file#"$SCRATCH/unpacked/"} needs glibc ${version:-of any version}"
    [[ $(printf '%s\n%s\n' "$OLDEST_GLIBC" "${version:-0}" | sort -V | tail -n 1) == "$OLDEST_GLIBC" ]] ||
      die "$file needs glibc $version; expected $OLDEST_GLIBC or older"
  done < <(find "$SCRATCH/unpacked" -type f -print0)
}

# The bill names each crate whose sources a message in the probe names.
check_bill() {
  grep -aohE 'registry/src/[^/]+/[A-Za-z0-9_-]+-[0-9][^/]*/' "$SCRATCH"/unpacked/*/bin/gda-probe | cut -d / -f 4 |
    sort -u >"$SCRATCH/crates"
  python3 -c 'import json, sys
bill = json.load(open(sys.argv[1]))
assert bill["bomFormat"] == "CycloneDX", bill["bomFormat"]
named = {part["name"] + "-" + part["version"] for part in bill["components"]}
found = set(open(sys.argv[2]).read().split())
assert found and found <= named, f"the bill of materials lacks {found - named}"
print(len(named), "components in the bill of materials; the probe names", len(found))' "$1" "$SCRATCH/crates"
}

check_files() {
  (cd -- "$FILES" && sha256sum --check --quiet --strict SHA256SUMS) || die 'a checksum is wrong'
  mkdir "$SCRATCH/unpacked"
  tar -C "$SCRATCH/unpacked" -xf "$TARBALL"
  check_symbols
  [[ $(stat -c %s "$SCRATCH"/unpacked/*/bin/gda-probe) -le 12000000 ]] || die 'gda-probe has more than 12000000 bytes'
  check_bill "$FILES"/*.cdx.json
}

# in_root ROOT COMMAND…: runs a command with a root, in namespaces that end with it: without network, and with /proc,
# /sys and /dev of their own.
in_root() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --pid --ipc --net --fork --kill-child sh -ec 'root=$1; shift
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/tmp"
    exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/ timeout 300 chroot "$root" "$@"' - "$@"
}

# What a user does first. A root without libfabric and without an adapter has failures (status 3); on the software
# adapter the lack of libfabric is a warning (status 4).
# shellcheck disable=SC2016 # expanded in the root
FIRST_STEPS='
ends() {
  wanted=$1 status=0
  shift
  "$@" >/tmp/output 2>&1 || status=$?
  [ "$status" -eq "$wanted" ] || { cat /tmp/output; echo "$*: exit status $status, expected $wanted"; exit 1; }
}
ends 0 "$1gda-probe" --version
ends 3 "$1gda-probe" check --gpu none
ends 4 "$1gda-probe" check --soft --gpu none
ends 4 "$1gda-probe" put --soft --executor host
ends 0 "$1softefa" doctor
cat /tmp/output
ends 0 env LD_PRELOAD="$2" true
[ ! -s /tmp/output ] || { cat /tmp/output; exit 1; }
rm /tmp/output
[ -z "$(ls -A /tmp)" ] || { echo "left in /tmp: $(ls -A /tmp)"; exit 1; }
'

# test_tarball ROOT
test_tarball() {
  cp -a -- "$SCRATCH/unpacked" "$1/opt/release"
  in_root "$1" sh -ec "$FIRST_STEPS" - "/opt/release/$NAME/bin/" "/opt/release/$NAME/lib/libefa_gda.so"
}

# test_packages ROOT
test_packages() {
  mkdir "$1/opt/packages"
  cp -- "$FILES"/*.deb "$1/opt/packages/"
  in_root "$1" sh -ec 'dpkg --install /opt/packages/*.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }' || return 1
  in_root "$1" sh -ec "$FIRST_STEPS" - '' /usr/lib/libefa_gda.so
}

# in_copy NAME ARCHIVE TEST…: runs tests in a root from an archive, which is removed afterwards.
in_copy() {
  local name=$1 archive=$2 root=$SCRATCH/root run
  shift 2
  mkdir "$root"
  tar -C "$root" -xf "$archive"
  mkdir -p "$root"/{proc,sys,dev,tmp,opt}
  for run in "$@"; do
    "$run" "$root" || die "$name: $run failed; the messages are above"
    echo "ok: $name: $run"
  done
  rm -rf -- "$root"
}

main() {
  local suite root archive
  SUITES='bullseye bookworm trixie sid'
  read_options '--suites' 1000 "$@"
  FILES=${OPERANDS[0]:-}
  [[ -n $FILES ]] || wrong_usage 'no directory of release.sh was named'
  TARBALL=$(compgen -G "$FILES/*.tar.gz") || die "$FILES has no tarball; make it with scripts/release.sh --output $FILES"
  [[ $(id -u) -eq 0 ]] || die 'debootstrap and chroot need root'
  have debootstrap || die 'debootstrap was not found (Debian package debootstrap)'
  SCRATCH=$(mktemp -d)
  trap 'rm -rf -- "$SCRATCH"' EXIT
  check_files
  NAME=$(basename "$SCRATCH"/unpacked/*)
  for suite in $SUITES; do
    archive=$(debian_root "$suite") || die "no root of $suite could be made"
    in_copy "$suite" "$archive" test_tarball test_packages
  done
  for root in "${OPERANDS[@]:1}"; do
    tar -C "$root" -cf "$SCRATCH/given.tar" .
    in_copy "$root" "$SCRATCH/given.tar" test_tarball
  done
}

main "$@"
