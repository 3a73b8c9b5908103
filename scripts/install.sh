#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds a release of the library for C and C++, and installs it with its headers, a pkg-config file and a CMake package.
#
#   install.sh --prefix DIR      DIR is created if it does not exist
#
#   DIR/include/efa_gda.h, efa_gda_nvshmem.h    functions for host programs
#   DIR/include/efa_gda/*.h, *.cuh       device code, for kernels
#   DIR/include/efa_io_defs.h            the adapter's descriptors, which the device code includes
#   DIR/lib/libefa_gda.so                with symbol versions (efa-gda-capi/efa_gda.map)
#   DIR/lib/libefa_gda.a
#   DIR/lib/pkgconfig/efa_gda.pc
#   DIR/lib/cmake/efa_gda/               find_package(efa_gda): the targets efa_gda::efa_gda and efa_gda::static
#
# The last two find the rest relative to themselves, so that DIR can be moved.
#
# EFA_GDA_BUILT=DIR takes libefa_gda.a from DIR instead of building it, and CC names the compiler that links.
# EFA_GDA_NVCC=FILE, the absolute path of nvcc, compiles the kernels into the library. Needs Rust and a C++17 compiler;
# cargo downloads crates that this machine lacks, and nothing else uses the network. Prints the path of each installed
# file. Exit status: 0 installed, 1 not installed, 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

PREFIX=''

# build: builds the library, and sets BUILT to the directory that has it.
build() {
  BUILT=${EFA_GDA_BUILT:-}
  [[ -z $BUILT ]] || return 0
  have_c_compiler || die "no C compiler was found, which links the library (Debian packages gcc and libc6-dev)"
  have_cxx_compiler || die "no C++ compiler was found (Debian package g++)"
  find_rust || die "nothing was installed"
  choose_target_dir
  BUILT=$TARGET/release
  say "building the library (a few minutes the first time)"
  (cd -- "$ROOT" && env -u CARGO_BUILD_TARGET cargo build --quiet --locked --release -p efa-gda-capi) ||
    die "the build failed; nothing was installed"
}

# Libraries that rustc names for a static library (--print native-static-libs).
PRIVATE='gcc_s util rt pthread m dl'

# pkg_config_file VERSION
pkg_config_file() {
  cat <<PC
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: efa_gda
Description: Queues of an AWS EFA adapter that GPU kernels post to
Version: $1
Libs: -L\${libdir} -lefa_gda
Libs.private: -l${PRIVATE// / -l}
Cflags: -I\${includedir}
PC
}

# The package's targets, whose files are relative to this one.
cmake_config() {
  cat <<CMAKE
get_filename_component(_efa_gda_prefix "\${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET efa_gda::efa_gda)
  add_library(efa_gda::efa_gda SHARED IMPORTED)
  set_target_properties(efa_gda::efa_gda PROPERTIES
    IMPORTED_LOCATION "\${_efa_gda_prefix}/lib/libefa_gda.so"
    IMPORTED_SONAME libefa_gda.so
    INTERFACE_INCLUDE_DIRECTORIES "\${_efa_gda_prefix}/include")
  add_library(efa_gda::static STATIC IMPORTED)
  set_target_properties(efa_gda::static PROPERTIES
    IMPORTED_LOCATION "\${_efa_gda_prefix}/lib/libefa_gda.a"
    INTERFACE_INCLUDE_DIRECTORIES "\${_efa_gda_prefix}/include"
    INTERFACE_LINK_LIBRARIES "${PRIVATE// /;}")
endif()
unset(_efa_gda_prefix)
CMAKE
}

# cmake_version VERSION: before 1.0, a minor version is compatible with itself only.
cmake_version() {
  cat <<CMAKE
set(PACKAGE_VERSION $1)
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION AND PACKAGE_FIND_VERSION_MAJOR EQUAL ${1%%.*}
   AND (PACKAGE_FIND_VERSION_COUNT LESS 2 OR PACKAGE_FIND_VERSION_MINOR EQUAL $(cut -d . -f 2 <<<"$1")))
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
CMAKE
}

read_options --prefix 0 "$@"
[[ -n $PREFIX ]] || wrong_usage 'the option --prefix is missing; name the directory to install to'
build
version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' "$ROOT/Cargo.toml")
[[ -n $version ]] || die "the version is missing in $ROOT/Cargo.toml; nothing was installed"
mkdir -p -- "$PREFIX/include/efa_gda" "$PREFIX/lib/pkgconfig" "$PREFIX/lib/cmake/efa_gda" ||
  die "$PREFIX cannot be written; name another directory with --prefix"
PREFIX=$(cd -- "$PREFIX" && pwd)
trap 'say "the installation to $PREFIX is not complete"' ERR
# The paths of the installed files, from what install reports.
{
  install -v -m 644 -t "$PREFIX/include" -- "$ROOT"/efa-gda-capi/include/*.h "$ROOT/third_party/efa_gda/efa_io_defs.h"
  install -v -m 644 -t "$PREFIX/include/efa_gda" -- "$ROOT"/kernels/include/efa_gda/*.{h,cuh}
  install -v -m 644 -t "$PREFIX/lib" -- "$BUILT/libefa_gda.a"
} | sed -n "s/.* -> '\(.*\)'$/\1/p"
"$ROOT/efa-gda-capi/link.sh" "$BUILT/libefa_gda.a" "$PREFIX/lib/libefa_gda.so"
pkg_config_file "$version" >"$PREFIX/lib/pkgconfig/efa_gda.pc"
cmake_config >"$PREFIX/lib/cmake/efa_gda/efa_gda-config.cmake"
cmake_version "$version" >"$PREFIX/lib/cmake/efa_gda/efa_gda-config-version.cmake"
printf '%s\n' "$PREFIX"/lib/{libefa_gda.so,pkgconfig/efa_gda.pc,cmake/efa_gda/efa_gda-config{,-version}.cmake}
