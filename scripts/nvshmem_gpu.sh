#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Runs the NVSHMEM ring program on the GPUs of a machine without an EFA adapter, with softefa as the adapter of each
# process: once with all PEs, whose ring goes over NVLink while __nvshmem_efa_test_put_kernel puts through softefa; and
# once with one PE, all of whose puts go through softefa.
#
#   scripts/nvshmem_gpu.sh --build-only DIR    with Rust: leaves libefa_gda.so and softefa's provider in DIR
#   scripts/nvshmem_gpu.sh --run DIR [PES]     with GPUs, nvcc, NVSHMEM and libfabric; PES is 2 by default. Builds the
#                                              side library into DIR, which must be writable
#
# NVSHMEM_HOME and NVCC as install_into_nvshmem.sh takes them; NVSHMEM_HOME defaults to Python's package nvidia.nvshmem.
# Exit status: 0 every PE passed, 1 not, 2 usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

build() {
  local target
  find_rust
  choose_target_dir
  target=$TARGET/release
  (cd -- "$ROOT" && cargo build --quiet --locked --release -p efa-gda-capi -p softefa) || die 'the build failed'
  mkdir -p -- "$1/provider"
  "$ROOT/efa-gda-capi/link.sh" "$target/libefa_gda.a" "$1/libefa_gda.so" || die 'libefa_gda.so cannot be linked'
  install -m 644 -- "$target/libsoftefa.so" "$1/provider/softefa-fi.so"
}

# ring DIR PES OPTION…: every PE must pass.
ring() {
  local directory=$1 pes=$2 rank failed='' pids=()
  local -x EFA_GDA_RING_FILE=$directory/ring.$$.$2 WORLD_SIZE=$2
  for ((rank = 0; rank < pes; rank++)); do
    RANK=$rank LOCAL_RANK=$rank timeout --kill-after=5 120 "$directory/side/bin/efa_gda_nvshmem_ring" "${@:3}" &
    pids+=("$!")
  done
  for rank in "${pids[@]}"; do
    wait "$rank" || failed=yes
  done
  rm -f -- "$EFA_GDA_RING_FILE"
  [[ -z $failed ]] || die "a PE failed with: ${*:3}"
}

run() {
  local directory=$1 package='import nvidia.nvshmem as n; print(list(n.__path__)[0])'
  NVSHMEM_HOME=${NVSHMEM_HOME:-$(python3 -c "$package")} || die 'no NVSHMEM: set NVSHMEM_HOME'
  export NVSHMEM_HOME
  "$ROOT/scripts/install_into_nvshmem.sh" --prefix "$directory/side" >"$directory/environment"
  export EFA_GDA_LIBRARY=$directory/libefa_gda.so FI_PROVIDER_PATH=$directory/provider FI_PROVIDER=efa
  export SOFTEFA_HMEM=1 SOFTEFA_LOG=1 CUDA_MODULE_LOADING=EAGER
  export NVSHMEM_DISABLE_CUDA_VMM=1 NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_SYMMETRIC_SIZE=256M
  export LD_LIBRARY_PATH=$NVSHMEM_HOME/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # A softefa of one process does not reach that of another, so the test kernel puts to its own PE.
  ring "$directory" "$2" --test-own
  ring "$directory" 1 --own --adapter
}

case ${1:-} in
-h | --help) print_help "$0" ;;
--build-only) [[ -n ${2:-} ]] || wrong_usage 'name a directory'; build "$2" ;;
--run)
  [[ -d ${2:-} ]] || wrong_usage '--run needs the directory that --build-only made'
  run "$(cd -- "$2" && pwd)" "${3:-2}"
  ;;
*) wrong_usage 'give --build-only or --run' ;;
esac
