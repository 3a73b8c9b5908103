#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the commands of docs/c.md in order: installs the library into a new prefix, and outside the repository builds the
# page's program with pkg-config, with the shared library and with the static one, and with CMake where that is installed.
# Each program runs on the software adapter. Then device code and the header for NVSHMEM are compiled.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

have pkg-config || skipped 'building against the installed library needs pkg-config (Debian package pkgconf)'
have_libfabric || skipped 'running a program on the installed library needs libfabric (Debian package libfabric1)'
find_rust
choose_target_dir
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
unset CARGO_BUILD_TARGET EFA_GDA_NVCC LD_LIBRARY_PATH CMAKE_PREFIX_PATH

# block LANGUAGE NUMBER: prints a block of the page.
block() {
  awk -v wanted="$1" -v number="$2" '
    /^```/ { inside = !inside && $0 == "```" wanted && ++seen == number; next }
    inside' "$ROOT/docs/c.md"
}

# page NUMBER PROGRAMS: runs a block of commands of the page in the scratch directory; so many programs must report their
# bytes.
page() {
  local commands
  commands=$(block sh "$1")
  [[ -n $commands ]] || die "docs/c.md has no block of commands number $1"
  (cd -- "$SCRATCH" && PREFIX=$PREFIX FI_PROVIDER_PATH=$SCRATCH/provider timeout --kill-after=5 1500 \
    bash -euo pipefail -c "$commands") >"$SCRATCH/log" ||
    { cat "$SCRATCH/log"; die "the commands failed: $commands"; }
  [[ $(grep -c '^the bytes arrived$' "$SCRATCH/log") -eq $2 ]] || die "block $1 printed: $(cat "$SCRATCH/log")"
}

(cd "$ROOT" && cargo build --quiet --locked -p softefa)
mkdir "$SCRATCH/provider"
ln -s "$TARGET/debug/libsoftefa.so" "$SCRATCH/provider/softefa-fi.so"
ln -s "$ROOT/scripts" "$SCRATCH/scripts"
block c 1 >"$SCRATCH/put.c"
block cmake 1 >"$SCRATCH/CMakeLists.txt"
[[ -z $(block sh 5) ]] || die 'docs/c.md has more blocks of commands than this test runs'

PREFIX=$SCRATCH/first
page 1 0
# A prefix can be moved.
PREFIX=$SCRATCH/prefix
mv -- "$SCRATCH/first" "$PREFIX"
page 2 1
# The static program of block 3 needs the variable that block 2 exports.
export PKG_CONFIG_PATH=$PREFIX/lib/pkgconfig
page 3 1
[[ $(ldd "$SCRATCH/put-static") != *libefa_gda* ]] || die 'the static program needs libefa_gda.so'
if have cmake; then page 4 2; else echo "not run: the CMake commands of docs/c.md, because cmake is not installed"; fi
# shellcheck disable=SC2046 # words
c++ -std=c++17 -x c++ -fsyntax-only $(pkg-config --cflags efa_gda) - <<<'#include <efa_gda/put.h>'
# shellcheck disable=SC2046 # words
cc -x c -fsyntax-only $(pkg-config --cflags efa_gda) - <<<'#include <efa_gda_nvshmem.h>'
