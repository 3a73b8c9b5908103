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

check_files() {
  local file version
  (cd -- "$FILES" && sha256sum --check --quiet --strict SHA256SUMS) || die 'a checksum is wrong'
  mkdir "$SCRATCH/unpacked"
  tar -C "$SCRATCH/unpacked" -xf "$FILES"/*.tar.gz
  for file in "$SCRATCH"/unpacked/*/{bin/gda-probe,lib/libefa_gda.so,lib/softefa/*}; do
    version=$(needs_glibc "$file")
    printf '%s\n' "$version" 2.28 | sort -VC || die "$file needs glibc $version; expected 2.28 or older"
  done
  [[ $(stat -c %s "$SCRATCH"/unpacked/*/bin/gda-probe) -le 12000000 ]] || die 'gda-probe has more than 12000000 bytes'
  # The bill names each crate whose sources a message in the probe names.
  grep -aohE 'registry/src/[^/]+/[A-Za-z0-9_-]+-[0-9][^/]*/' "$SCRATCH"/unpacked/*/bin/gda-probe | cut -d / -f 4 |
    sort -u >"$SCRATCH/crates"
  holds "$(compgen -G "$FILES/*.cdx.json")" "(set(open('$SCRATCH/crates').read().split()) <=
    {part['name'] + '-' + part['version'] for part in report['components']})"
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
ends 0 env LD_PRELOAD="$2" true
[ ! -s /tmp/output ] || { cat /tmp/output; exit 1; }
rm /tmp/output
[ -z "$(ls -A /tmp)" ] || { echo "left in /tmp: $(ls -A /tmp)"; exit 1; }
'

# test_root NAME ARCHIVE [packages]: the tarball in a root from an archive, and then the packages.
test_root() {
  local root=$SCRATCH/root
  mkdir -p "$root"
  tar -C "$root" -xf "$2"
  mkdir -p "$root"/{proc,sys,dev,tmp,opt/packages}
  cp -a -- "$SCRATCH"/unpacked/* "$root/opt/release"
  in_root "$root" sh -ec "$FIRST_STEPS" - /opt/release/bin/ /opt/release/lib/libefa_gda.so || die "$1: the tarball failed"
  if [[ -n ${3:-} ]]; then
    cp -- "$FILES"/*.deb "$root/opt/packages/"
    in_root "$root" sh -ec 'dpkg --install /opt/packages/*.deb' || die "$1: the packages cannot be installed"
    in_root "$root" sh -ec "$FIRST_STEPS" - '' /usr/lib/libefa_gda.so || die "$1: the packages failed"
  fi
  echo "ok: $1"
  rm -rf -- "$root"
}

SUITES='bullseye bookworm trixie sid'
read_options '--suites' 1000 "$@"
FILES=${OPERANDS[0]:-}
[[ -n $FILES ]] || wrong_usage 'no directory of release.sh was named'
[[ $(id -u) -eq 0 ]] || die 'debootstrap and chroot need root'
have debootstrap || die 'debootstrap was not found (Debian package debootstrap)'
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
check_files
for suite in $SUITES; do
  test_root "$suite" "$(debian_root "$suite")" packages
done
for root in "${OPERANDS[@]:1}"; do
  tar -C "$root" -cf "$SCRATCH/given.tar" .
  test_root "$root" "$SCRATCH/given.tar"
done
