#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes a release: programs and libraries for glibc 2.28 and newer.
#
#   release.sh [--output DIR] [--glibc VERSION|host]      DIR is by default release-files in the target directory;
#                                                         what is in it is removed first
#
#   DIR/efa-gda-VERSION-ARCH-linux.tar.gz     bin/gda-probe, bin/softefa, lib/softefa/, include/, lib/, share/doc/
#   DIR/gda-probe_VERSION_ARCH.deb            the self-contained probe
#   DIR/libefa-gda-dev_VERSION_ARCH.deb       libefa_gda, its headers, a pkg-config file and a CMake package
#   DIR/softefa_VERSION_ARCH.deb              the command softefa and its libraries
#   DIR/efa-gda-VERSION.cdx.json              the bill of materials (CycloneDX)
#   DIR/SHA256SUMS
#
# Needs what build_standalone_probe.sh needs, dpkg-deb, and Python 3.11 or newer. Prints the path of each file. Exit
# status: 0 made, 1 not made, 2 wrong usage. scripts/lib/release_test.sh tests the files.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/standalone.sh
source "$ROOT/scripts/lib/standalone.sh"

# stage: builds everything and lays it out in STAGE as an installation has it.
stage() {
  local doc=$STAGE/share/doc/efa-gda
  build_programs
  build -p efa-gda-capi
  EFA_GDA_BUILT=$BUILT CC=$LINKER "$ROOT/scripts/install.sh" --prefix "$STAGE" >/dev/null
  strip --strip-debug "$STAGE/lib/libefa_gda.a" "$STAGE/lib/libefa_gda.so"
  install -D -m 755 -t "$STAGE/bin" "$BUILT/gda-probe"
  install -D -m 755 -t "$STAGE/lib/softefa" "$BUILT/softefa"
  install -D -m 644 -t "$STAGE/lib/softefa" "$BUILT/libsoftefa.so" "$BUILT/libsoftefa_preload.so"
  install -D -m 644 -t "$STAGE/include" "$ROOT/softefa/include/softefa.h"
  ln -s ../lib/softefa/softefa "$STAGE/bin/softefa"
  install -D -m 644 -t "$doc" "$ROOT"/{README.md,CHANGELOG.md,LICENSE-APACHE,LICENSE-MIT} "$ROOT"/docs/*.md
}

# package NAME DESCRIPTION PATH…: a Debian package with these paths of the stage, below /usr.
package() {
  local name=$1 description=$2 root=$SCRATCH/$1 path file
  shift 2
  for path in "$@"; do
    mkdir -p "$root/usr/$(dirname -- "$path")"
    cp -a -- "$STAGE/$path" "$root/usr/$path"
  done
  mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$name"
  cat "$ROOT/LICENSE-MIT" "$ROOT/LICENSE-APACHE" >"$root/usr/share/doc/$name/copyright"
  cat >"$root/DEBIAN/control" <<CONTROL
Package: $name
Version: $VERSION
Architecture: $(dpkg --print-architecture)
Maintainer: The efa-gda developers <efa-gda@localhost>
Section: admin
Priority: optional
Depends: libc6$([[ $GLIBC == host ]] || printf ' (>= %s)' "$GLIBC")
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Description: $description
CONTROL
  file=$OUTPUT/${name}_${VERSION}_$(dpkg --print-architecture).deb
  dpkg-deb --root-owner-group -Zxz --build "$root" "$file" >/dev/null || die "$file could not be made"
}

prepare_build 0 "$@"
have dpkg-deb || die 'no dpkg-deb was found (Debian package dpkg)'
open_source "$ROOT"
VERSION=$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$ROOT/Cargo.toml")
NAME=efa-gda-$VERSION
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
STAGE=$SCRATCH/$NAME
OUTPUT=$(realpath -m -- "${OUTPUT:-$TARGET/release-files}")
rm -rf -- "$OUTPUT"
mkdir -p -- "$OUTPUT" "$STAGE"
build_tools
stage
tar -C "$SCRATCH" --owner=0 --group=0 --numeric-owner --sort=name -czf "$OUTPUT/$NAME-$(uname -m)-linux.tar.gz" "$NAME"
package gda-probe 'reports whether a GPU can drive an AWS EFA adapter on this machine' bin/gda-probe
package libefa-gda-dev 'queues of an AWS EFA adapter that GPU kernels post to: library and headers' \
  include/efa_gda include/efa_gda.h include/efa_gda_nvshmem.h include/efa_io_defs.h lib/libefa_gda.a \
  lib/libefa_gda.so lib/pkgconfig lib/cmake
package softefa 'software AWS EFA adapter that checks its clients strictly' bin/softefa lib/softefa include/softefa.h
python3 -B "$ROOT/scripts/lib/bill_of_materials.py" "${RUST_TARGET%".$GLIBC"}" gda-probe softefa softefa-preload \
  efa-gda-capi >"$OUTPUT/$NAME.cdx.json" || die 'the bill of materials could not be made'
(cd -- "$OUTPUT" && sha256sum -- * >SHA256SUMS)
printf '%s\n' "$OUTPUT"/*
