#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds a release of the library for C and C++, and installs it with its headers and a pkg-config file.
#
#   install.sh --prefix DIR      DIR is created if it does not exist
#
#   DIR/include/efa_gda.h                functions for host programs
#   DIR/include/efa_gda/*.h              device code, for kernels
#   DIR/include/efa_io_defs.h            the adapter's descriptors, which the device code includes
#   DIR/lib/libefa_gda.so, libefa_gda.a
#   DIR/lib/pkgconfig/efa_gda.pc         finds the rest relative to itself, so that DIR can be moved
#
# EFA_GDA_NVCC=FILE, the absolute path of nvcc, compiles the kernels into the library. Needs Rust and a C++17 compiler;
# cargo downloads crates that this machine lacks, and nothing else uses the network. Prints the path of each installed
# file. Exit status: 0 installed, 1 not installed, 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

PREFIX=''

read_arguments() {
  while [[ $# -gt 0 ]]; do
    case $1 in
    -h | --help) print_help "${BASH_SOURCE[0]}"; exit 0 ;;
    --prefix)
      [[ -n ${2:-} ]] || wrong_usage 'the option --prefix needs a directory'
      PREFIX=$2
      shift
      ;;
    --prefix=?*) PREFIX=${1#*=} ;;
    *) wrong_usage "unknown argument \"$1\"" ;;
    esac
    shift
  done
  [[ -n $PREFIX ]] || wrong_usage 'the option --prefix is missing; name the directory to install to'
}

# build: builds the library, and sets BUILT to the directory that has it.
build() {
  have_c_compiler || die "no C compiler was found, which links the library (Debian packages gcc and libc6-dev)"
  have_cxx_compiler || die "no C++ compiler was found (Debian package g++)"
  find_rust || die "nothing was installed"
  choose_target_dir
  BUILT=${CARGO_TARGET_DIR:-$ROOT/target}/release
  say "building the library (a few minutes the first time)"
  (cd -- "$ROOT" && env -u CARGO_BUILD_TARGET cargo build --quiet --locked --release -p efa-gda-capi) ||
    die "the build failed; nothing was installed"
}

# put FILE DIRECTORY: installs a file and prints its path.
put() {
  install -m 644 -- "$1" "$2/" || die "$1 could not be installed to $2; the installation is not complete"
  printf '%s\n' "$2/${1##*/}"
}

# Libs.private has the libraries that rustc names for a static library (--print native-static-libs).
pkg_config_file() {
  cat <<PC
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: efa_gda
Description: Queues of an AWS EFA adapter that GPU kernels post to
Version: $1
Libs: -L\${libdir} -lefa_gda
Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl
Cflags: -I\${includedir}
PC
}

main() {
  local version file
  read_arguments "$@"
  build
  version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$ROOT/Cargo.toml")
  [[ -n $version ]] || die "the version is missing in $ROOT/Cargo.toml; nothing was installed"
  mkdir -p -- "$PREFIX/include/efa_gda" "$PREFIX/lib/pkgconfig" ||
    die "$PREFIX cannot be written; name another directory with --prefix"
  PREFIX=$(cd -- "$PREFIX" && pwd)
  put "$ROOT/efa-gda-capi/include/efa_gda.h" "$PREFIX/include"
  for file in "$ROOT"/kernels/include/efa_gda/*.h; do
    put "$file" "$PREFIX/include/efa_gda"
  done
  put "$ROOT/third_party/efa_gda/efa_io_defs.h" "$PREFIX/include"
  put "$BUILT/libefa_gda.so" "$PREFIX/lib"
  put "$BUILT/libefa_gda.a" "$PREFIX/lib"
  pkg_config_file "$version" >"$PREFIX/lib/pkgconfig/efa_gda.pc" ||
    die "$PREFIX/lib/pkgconfig/efa_gda.pc cannot be written; the installation is not complete"
  printf '%s\n' "$PREFIX/lib/pkgconfig/efa_gda.pc"
}

main "$@"
