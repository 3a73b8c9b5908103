#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the side library for an installed NVSHMEM, and the ring program, and prints the environment to set. NVSHMEM
# itself is not changed.
#
#   NVSHMEM_HOME=DIR scripts/install_into_nvshmem.sh --prefix PREFIX [--arch sm_90]
#
# --arch names the GPU's architecture: sm_90 for p5 and p5en, the default; sm_100 for p6-b200.
#
#   PREFIX/lib/libefa_gda_nvshmem.a     link it with -rdc=true, before -lnvshmem_device -l:libnvshmem_host.so.3 -ldl
#   PREFIX/include/                     efa_gda/nvshmem.cuh and efa_gda/ibgda_compat.cuh for device code,
#                                       efa_gda_nvshmem_heap.h for the host
#   PREFIX/bin/efa_gda_nvshmem_ring     every PE puts to its right neighbour and checks (docs/nvshmem.md)
#
# NVSHMEM_HOME, or NVSHMEM_DIR, is an install tree, or the `src` directory of a build. NVCC names nvcc; by default that
# of CUDA_HOME, that of PATH, or the one of scripts/cuda_toolchain.sh. At run time the library loads libefa_gda.so,
# which scripts/install.sh installs.
#
# Exit status: 0 installed, 1 not installed, 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

PREFIX=''
ARCH=sm_90

# Sets INCLUDE and LIBRARIES to NVSHMEM's directories.
find_nvshmem() {
  local home=${NVSHMEM_HOME:-${NVSHMEM_DIR:-}} directory
  [[ -n $home ]] || wrong_usage 'set NVSHMEM_HOME to an NVSHMEM that is installed, or built'
  INCLUDE='' LIBRARIES=''
  for directory in "$home/include" "$home/src/include" "$home/../src/include"; do
    if [[ -e $directory/nvshmem.h ]]; then INCLUDE=$directory && break; fi
  done
  for directory in "$home/lib" "$home/lib64" "$home/src/lib" "$home/build/src/lib"; do
    if [[ -e $directory/libnvshmem_device.a ]]; then LIBRARIES=$directory && break; fi
  done
  [[ -n $INCLUDE ]] || die "$home has no include/nvshmem.h"
  [[ -n $LIBRARIES ]] || die "$home has no lib/libnvshmem_device.a"
}

find_nvcc() {
  [[ -z ${NVCC:-} ]] || return 0
  NVCC=${CUDA_HOME:-/nowhere}/bin/nvcc
  [[ -x $NVCC ]] || NVCC=$(command -v nvcc) || NVCC=$("$ROOT/scripts/cuda_toolchain.sh")/bin/nvcc
}

# compile SOURCE OBJECT OPTION…
compile() {
  "$NVCC" -std=c++17 "-arch=$ARCH" -rdc=true -Xcompiler -fPIC "${@:3}" -I "$PREFIX/include" -I "$ROOT/kernels/nvshmem" \
    -isystem "$INCLUDE" -c "$ROOT/kernels/$1" -o "$WORK/$2" || die "$1 did not compile; nothing was installed"
}

install_headers() {
  mkdir -p -- "$PREFIX/include/efa_gda" "$PREFIX/lib" "$PREFIX/bin"
  PREFIX=$(cd -- "$PREFIX" && pwd)
  install -m 644 -- "$ROOT"/kernels/include/efa_gda/*.{h,cuh} "$PREFIX/include/efa_gda/"
  install -m 644 -- "$ROOT"/efa-gda-capi/include/*.h "$ROOT/third_party/efa_gda/efa_io_defs.h" \
    "$ROOT/kernels/nvshmem/efa_gda_nvshmem_heap.h" "$ROOT"/kernels/deepep/*.cuh "$PREFIX/include/"
}

print_environment() {
  local library="# EFA_GDA_LIBRARY=FILE names the libefa_gda.so that scripts/install.sh installed."
  if [[ -e $PREFIX/lib/libefa_gda.so ]]; then library="export EFA_GDA_LIBRARY=$PREFIX/lib/libefa_gda.so"; fi
  cat <<TEXT
# Environment of programs that use $PREFIX/lib/libefa_gda_nvshmem.a:
$library
export LD_LIBRARY_PATH=$LIBRARIES\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
export NVSHMEM_REMOTE_TRANSPORT=libfabric     # NVSHMEM's own proxy, for barriers and collectives
export NVSHMEM_LIBFABRIC_PROVIDER=efa
export FI_PROVIDER=efa
export FI_EFA_USE_DEVICE_RDMA=1
export CUDA_MODULE_LOADING=EAGER
# NVSHMEM_DISABLE_CUDA_VMM=1 makes the heap one allocation, if it would have several chunks. Only for programs without
# DeepEP; gda-probe warns of it (ENV-007), and states that the stack nvshmem does not run.
# EFA_GDA_ADAPTER=NAME selects the adapter of this PE (default: the nearest to its GPU).
TEXT
}

read_options '--prefix --arch' 0 "$@"
[[ -n $PREFIX ]] || wrong_usage 'the option --prefix is missing; name the directory to install to'
find_nvshmem
find_nvcc
WORK=$(mktemp -d)
trap 'rm -rf -- "$WORK"' EXIT
install_headers
# What a block of 1,024 threads has.
compile deepep/efa_device_state.cu device.o -maxrregcount=64
compile nvshmem/host.cpp host.o
compile put.cu put.o
compile nvshmem/ring.cu ring.o
rm -f -- "$PREFIX/lib/libefa_gda_nvshmem.a"
ar rcs "$PREFIX/lib/libefa_gda_nvshmem.a" "$WORK"/{device,host,put}.o || die 'ar failed; nothing was installed'
# A wheel has only the name with the version.
host=$(compgen -G "$LIBRARIES/libnvshmem_host.so*" | head -n 1) || die "$LIBRARIES has no libnvshmem_host.so"
ln -s -- "$(readlink -f -- "$host")" "$WORK/libnvshmem_host.so"
"$NVCC" "-arch=$ARCH" "$WORK/ring.o" "$PREFIX/lib/libefa_gda_nvshmem.a" -L "$LIBRARIES" -L "$WORK" -lnvshmem_device \
  -lnvshmem_host -ldl -o "$PREFIX/bin/efa_gda_nvshmem_ring" || die 'the ring program did not link'
say "installed $PREFIX/lib/libefa_gda_nvshmem.a and $PREFIX/bin/efa_gda_nvshmem_ring"
print_environment
