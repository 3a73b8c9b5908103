#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs the library for C into a new prefix, and outside the repository builds a program with the flags of pkg-config:
# with the shared library, and with the static one. Each program puts on the software adapter. A file of device code
# compiles with the same flags.
#
# Exit status: 0 everything passed, 77 with one line "SKIPPED: reason" without pkg-config or libfabric, another one on
# failure.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

if ! have pkg-config; then
  echo 'SKIPPED: building against the installed library needs pkg-config (Debian package pkgconf)'
  exit 77
fi
if ! have_libfabric; then
  echo 'SKIPPED: running a program on the installed library needs libfabric (Debian package libfabric1)'
  exit 77
fi
find_rust
choose_target_dir
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
unset CARGO_BUILD_TARGET EFA_GDA_NVCC LD_LIBRARY_PATH

# flags OPTION…: prints the flags of the installed library.
flags() { PKG_CONFIG_PATH=$SCRATCH/prefix/lib/pkgconfig pkg-config "$@" efa_gda; }

# puts PROGRAM: the program must write through the software adapter.
puts() {
  FI_PROVIDER_PATH=$SCRATCH/provider timeout --kill-after=5 60 "$1" put || die "$1 put failed"
  echo "$1: the put arrived"
}

# refuses ARGUMENT…: install.sh must refuse the arguments before it builds.
refuses() {
  local status=0
  "$ROOT/scripts/install.sh" "$@" >"$SCRATCH/log" 2>&1 || status=$?
  [[ $status -eq 2 ]] || die "install.sh $*: exit status $status, expected 2: $(cat "$SCRATCH/log")"
}

refuses
refuses --prefix
refuses --prefix "$SCRATCH/other" --unknown
[[ ! -e $SCRATCH/other ]] || die 'install.sh installed although it refused its arguments'
"$ROOT/scripts/install.sh" --prefix "$SCRATCH/first" >"$SCRATCH/installed"
while read -r file; do
  [[ -s $file ]] || die "install.sh lists $file, which it did not install"
done <"$SCRATCH/installed"
# A prefix can be moved.
mv -- "$SCRATCH/first" "$SCRATCH/prefix"

(cd "$ROOT" && cargo build --quiet --locked -p softefa)
mkdir "$SCRATCH/provider"
ln -s "$TARGET/debug/libsoftefa.so" "$SCRATCH/provider/softefa-fi.so"

cp -- "$ROOT/efa-gda-capi/tests/capi/transport.c" "$SCRATCH/"
cd "$SCRATCH"
read -r -a COMPILE < <(flags --cflags)
read -r -a SHARED < <(flags --libs)
# -l:FILE takes the static library although the shared one is beside it.
read -r -a STATIC < <(flags --static --libs | sed 's/-lefa_gda\b/-l:libefa_gda.a/')

cc "${COMPILE[@]}" -o shared transport.c "${SHARED[@]}" -Wl,-rpath,"$SCRATCH/prefix/lib"
puts ./shared
cc "${COMPILE[@]}" -o static transport.c "${STATIC[@]}"
[[ $(ldd ./static) != *libefa_gda* ]] || die 'the static program needs libefa_gda.so'
puts ./static
echo '#include <efa_gda/put.h>' >device.cpp
c++ -std=c++17 -fsyntax-only "${COMPILE[@]}" device.cpp
