#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Measures the posting engine, an earlier revision of it and other posting engines on the GPU of this machine, in one
# process over the same ring, and checks the limits that the function judged states. A result is a line of fields that
# tabs separate: "row", the case, the batch window, what was measured, and the median, the lowest and the highest value.
# kernels/bench/post_rate.cu describes the modes; softefa is efa-gda/benches/soft_adapter:
#
#   scripts/bench_gpu.sh [--before REVISION] [bench [CASE]|check [ENTRIES]|soak [ENTRIES]|floor|softefa]
#                                             bench without an argument
#   scripts/bench_gpu.sh [--before REVISION] --build-only DIR
#                                             leaves post_rate, soft_adapter_nccl.cubin and
#                                             soft_adapter_drop_in.cubin in DIR
#
# --before REVISION compiles kernels/include of that revision too, without the bound of 1,024 threads for a block under
# which all other kernels are compiled (EFA_GDA_BENCH_BOUNDS in kernels/bench/rig.h). The headers of the other engines
# come from the PyPI package nvidia-nccl-cu13, unpacked below .cache; nothing of it is part of this project. If the
# package cannot be downloaded, the script reports that, and their columns are empty. NCCL_INCLUDE=DIR uses installed
# headers. EFA_GDA_BENCH_ARCH (default 90) is the GPU's compute capability without the dot.
#
# Exit status: 0; 1 the build or the measurement failed, or a limit is not kept; 2 usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/headers.sh
source "$ROOT/scripts/lib/headers.sh"

ARCH=${EFA_GDA_BENCH_ARCH:-90}
BEFORE=

# compile NAME SOURCE FLAG…: compiles kernels/bench/SOURCE to OUT/NAME.o.
compile() {
  local name=$1 source=$2
  shift 2
  "$TOOLKIT/bin/nvcc" "${FLAGS[@]}" "$@" -c -o "$OUT/$name.o" "$ROOT/kernels/bench/$source"
  OBJECTS+=("$OUT/$name.o")
}

# prepare DIR: sets what builds need, and leaves NCCL's kernels for softefa in DIR if its headers are there.
prepare() {
  local headers
  OUT=$1 OBJECTS=() PEERS=()
  FLAGS=(-O3 -std=c++17 -gencode "arch=compute_$ARCH,code=sm_$ARCH")
  OURS=(-I "$ROOT/kernels/include" -I "$ROOT/third_party/efa_gda")
  TOOLKIT=$("$ROOT/scripts/cuda_toolchain.sh")
  mkdir -p -- "$OUT"
  if ! headers=$(peer_headers ""); then
    say "$PEER_PACKAGE could not be downloaded: the other engines are left out"
    return
  fi
  PEERS=(-DEFA_GDA_BENCH_PEERS -I "$headers")
  # The same file with NCCL's post path and with this library's. Other networks' are left out of both.
  local only_efa=(-DNCCL_GIN_PROXY_ENABLE=0 -DNCCL_GIN_GDAKI_ENABLE=0 -DNCCL_GIN_GPI_ENABLE=0)
  "$TOOLKIT/bin/nvcc" "${FLAGS[@]}" "${PEERS[@]}" "${only_efa[@]}" -I "$ROOT/kernels/include" -cubin \
    -o "$OUT/soft_adapter_nccl.cubin" "$ROOT/kernels/bench/soft_adapter_nccl.cu"
  "$TOOLKIT/bin/nvcc" "${FLAGS[@]}" "${PEERS[@]}" "${only_efa[@]}" "${OURS[@]}" -include efa_gda/nccl_gin.h -cubin \
    -o "$OUT/soft_adapter_drop_in.cubin" "$ROOT/kernels/bench/soft_adapter_nccl.cu"
}

# build DIR: leaves DIR/post_rate.
build() {
  local before=()
  prepare "$1"
  if [[ -n $BEFORE ]]; then
    rm -rf -- "$OUT/before"
    mkdir -- "$OUT/before"
    git -C "$ROOT" archive "$BEFORE" kernels/include third_party/efa_gda | tar -x -C "$OUT/before" ||
      die "revision $BEFORE has no headers"
    before=(-DEFA_GDA_BENCH_BEFORE)
    compile engine_before engine.cu -DEFA_GDA_BENCH_ENGINE=engine_before -Defa_gda=efa_gda_before \
      -DEFA_GDA_BENCH_BOUNDS= -I "$OUT/before/kernels/include" -I "$OUT/before/third_party/efa_gda"
  fi
  compile engine_after engine.cu -DEFA_GDA_BENCH_ENGINE=engine_after "${OURS[@]}"
  compile post_rate post_rate.cu "${before[@]}" "${OURS[@]}"
  compile peers peers.cu "${PEERS[@]}"
  compile drop_in drop_in.cu "${PEERS[@]}" "${OURS[@]}" -DEFA_GDA_BENCH_DROP_IN=drop_in_launch
  compile drop_in_16 drop_in.cu "${PEERS[@]}" "${OURS[@]}" -DEFA_GDA_BENCH_DROP_IN=drop_in_16_launch \
    -DEFA_GDA_GIN_STORE_BYTES=16 -Defa_gda=efa_gda_16
  "$TOOLKIT/bin/nvcc" "${FLAGS[@]}" -o "$OUT/post_rate" "${OBJECTS[@]}" -lpthread
}

# judged COMMAND…: prints the results of the command, and a verdict for each limit that they have: of two medians of one
# row, the ratio.
judged() {
  "$@" | awk -F '\t' '
    function limit(what, ratio, least, most) {
      kept = least ? ratio >= least : ratio <= most
      failed += !kept
      printf "%s  %s, max_batch %s: %s: %.3f, at %s %g\n", kept ? "PASS" : "FAIL", name, batch, what, ratio,
        least ? "least" : "most", least ? least : most
    }
    # of DIVIDEND DIVISOR LEAST MOST
    function of(dividend, divisor, least, most) {
      if ((row, dividend) in median && median[row, divisor] > 0)
        limit(dividend ", of " divisor, median[row, dividend] / median[row, divisor], least, most)
    }
    { print }
    $1 == "row" { rows[$2 FS $3]; median[$2 FS $3, $4] = $5 }
    END {
      for (row in rows) {
        measured++
        split(row, part, FS)
        name = part[1]
        batch = part[2]
        if (name == "softefa, counters in GPU memory") {
          # 10^6 writes of 64 bytes a second.
          if ((row, "after") in median) limit("after", median[row, "after"], 2)
          if ((row, "nccl") in median) limit("nccl", median[row, "nccl"], 2)
        } else if (name ~ /^softefa/) {
          of("signal", "two completions", 0, 1.15)
          of("busy", "idle", 0, 1.5)
        } else {
          of("after", "before", 0.95)
          if (name ~ /shared/) of("after, 8-byte stores", "nccl", 1.6)
          else of("after", "nccl", 2)
          of("nccl drop-in, 16-byte stores", "nccl", name ~ /1 thread/ ? 1.5 : 2)
          if (batch == 64 && (name == "block of 8 warps owns its queue" || name == "16 x 1 warp, 16 queues"))
            of("after", "bare", 0.97)
        }
      }
      if (!measured) print "nothing was measured"
      exit failed > 0 || !measured
    }'
}

if [[ ${1:-} == --before ]]; then
  [[ $# -ge 2 ]] || wrong_usage '--before needs a revision'
  BEFORE=$(git -C "$ROOT" rev-parse --verify --quiet "$2^{commit}") || die "this repository has no revision $2"
  shift 2
fi
case ${1:-bench} in
--build-only)
  [[ $# -eq 2 ]] || wrong_usage '--build-only needs one directory'
  build "$2"
  exit 0
  ;;
bench | check | soak | floor | softefa) ;;
*) help_or_nothing "$1" ;;
esac
{ have nvidia-smi && nvidia-smi -L >&2; } ||
  die "this machine has no NVIDIA GPU; build with --build-only DIR and run DIR/post_rate on a machine with a GPU"
# Lazy loading may wait for a running kernel, and a kernel of the benchmark may wait for the host.
export CUDA_MODULE_LOADING=EAGER
OUT=$ROOT/target/bench_gpu
case ${1:-bench} in
softefa)
  prepare "$OUT"
  ((${#PEERS[@]} == 0)) || export EFA_GDA_BENCH_NCCL=$OUT/soft_adapter_nccl.cubin \
    EFA_GDA_BENCH_DROP_IN=$OUT/soft_adapter_drop_in.cubin
  judged cargo bench --locked --quiet -p efa-gda --bench soft_adapter
  ;;
bench)
  build "$OUT"
  judged "$OUT/post_rate" "${@:-bench}"
  ;;
*)
  build "$OUT"
  exec "$OUT/post_rate" "$@"
  ;;
esac
