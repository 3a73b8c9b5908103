#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the commands of docs/c.md in order: installs the library into a new prefix, and outside the repository builds the
# page's program with pkg-config, with the shared library and with the static one, and with CMake where that is installed.
# Each program runs on the software adapter. Then the same for the program of the tests and a file of device code.
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
unset CARGO_BUILD_TARGET EFA_GDA_NVCC LD_LIBRARY_PATH CMAKE_PREFIX_PATH

# refuses ARGUMENT…: install.sh must refuse the arguments before it builds.
refuses() {
  local status=0
  "$ROOT/scripts/install.sh" "$@" >"$SCRATCH/log" 2>&1 || status=$?
  [[ $status -eq 2 ]] || die "install.sh $*: exit status $status, expected 2: $(cat "$SCRATCH/log")"
}

# block LANGUAGE NUMBER: prints a block of the page.
block() {
  awk -v wanted="$1" -v number="$2" '
    /^```/ { inside = !inside && $0 == "```" wanted && ++seen == number; next }
    inside' "$ROOT/docs/c.md"
}

# page NUMBER: runs a block of commands of the page in the scratch directory.
page() {
  local commands
  commands=$(block sh "$1")
  [[ -n $commands ]] || die "docs/c.md has no block of commands number $1"
  (cd -- "$SCRATCH" && PREFIX=$PREFIX FI_PROVIDER_PATH=$SCRATCH/provider timeout --kill-after=5 1500 \
    bash -euo pipefail -c "$commands") || die "the commands failed: $commands"
}

# arrives NUMBER PROGRAMS: as page, and so many programs must report their bytes.
arrives() {
  page "$1" >"$SCRATCH/log"
  [[ $(grep -c '^the bytes arrived$' "$SCRATCH/log") -eq $2 ]] || die "block $1 printed: $(cat "$SCRATCH/log")"
}

refuses
refuses --prefix
refuses --prefix "$SCRATCH/other" --unknown
[[ ! -e $SCRATCH/other ]] || die 'install.sh installed although it refused its arguments'

(cd "$ROOT" && cargo build --quiet --locked -p softefa)
mkdir "$SCRATCH/provider"
ln -s "$TARGET/debug/libsoftefa.so" "$SCRATCH/provider/softefa-fi.so"
ln -s "$ROOT/scripts" "$SCRATCH/scripts"
block c 1 >"$SCRATCH/put.c"
block cmake 1 >"$SCRATCH/CMakeLists.txt"
[[ -z $(block sh 5) ]] || die 'docs/c.md has more blocks of commands than this test runs'

PREFIX=$SCRATCH/first
page 1 >"$SCRATCH/installed"
while read -r file; do
  [[ -s $file ]] || die "install.sh lists $file, which it did not install"
done <"$SCRATCH/installed"
# A prefix can be moved.
PREFIX=$SCRATCH/prefix
mv -- "$SCRATCH/first" "$PREFIX"
arrives 2 1
# The static program of block 3 needs the variable that block 2 exports.
export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig
arrives 3 1
[[ $(ldd "$SCRATCH/put-static") != *libefa_gda* ]] || die 'the static program needs libefa_gda.so'
if have cmake; then
  arrives 4 2
  [[ $(ldd "$SCRATCH/build/put-static") != *libefa_gda* ]] || die "CMake's static program needs libefa_gda.so"
else
  echo "not run: the CMake commands of docs/c.md, because cmake is not installed"
fi

cd "$SCRATCH"
read -r -a COMPILE < <(pkg-config --cflags efa_gda)
read -r -a SHARED < <(pkg-config --libs efa_gda)
# libfabric_abi.h is of the repository: the program's test of domains of another transport calls libfabric itself.
cc "${COMPILE[@]}" -idirafter "$ROOT/third_party/efa_gda" -o transport "$ROOT/efa-gda-capi/tests/capi/transport.c" \
  "${SHARED[@]}" -Wl,-rpath,"$PREFIX/lib"
FI_PROVIDER_PATH=$SCRATCH/provider timeout --kill-after=5 600 ./transport put || die 'transport put failed'
echo '#include <efa_gda/put.h>' >device.cpp
c++ -std=c++17 -fsyntax-only "${COMPILE[@]}" device.cpp
echo '#include <efa_gda_nvshmem.h>' >host.c
cc -fsyntax-only "${COMPILE[@]}" host.c
