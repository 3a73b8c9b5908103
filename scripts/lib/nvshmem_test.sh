#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the NVSHMEM side library and its ring program against NVSHMEM's wheel, a file in DeepEP's call shapes through
# the overlay's NVSHMEM directory, and a host program that includes the header. If DEEPEP_DIR names a DeepEP v1.2.1, its
# unmodified kernels compile and link as well. Nothing needs a GPU, and none is used.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

TOOLKIT=$("$ROOT/scripts/cuda_toolchain.sh") || skipped "no CUDA compilers"
if [[ -z ${NVSHMEM_HOME:-} ]]; then
  venv_or_skip nvshmem --no-deps nvidia-nvshmem-cu13==3.8.0
  NVSHMEM_HOME=$(compgen -G "$VENV/lib/python3.*/site-packages/nvidia/nvshmem")
fi
export NVSHMEM_HOME NVCC=$TOOLKIT/bin/nvcc
SCRATCH=$(mktemp -d)
trap 'rm -rf -- "$SCRATCH"' EXIT
COMPILE=("$NVCC" -std=c++17 -arch=sm_90 -O3)

# link OUTPUT SOURCE…: compiles and links as DeepEP's setup.py does, with the overlay's NVSHMEM directory alone.
link() {
  local output=$1 source objects=() library=$SCRATCH/overlay/nvshmem
  shift
  for source in "$@"; do
    objects+=("$SCRATCH/$(basename "$source").o")
    "${COMPILE[@]}" -rdc=true -Xcompiler -fPIC --expt-relaxed-constexpr -DDISABLE_AGGRESSIVE_PTX_INSTRS \
      --ptxas-options=--register-usage-level=10 -I "$library/include" -c "$source" -o "${objects[-1]}"
  done
  "$NVCC" -arch=sm_90 -Xcompiler -fPIC -dlink "${objects[@]}" "-L$library/lib" -lnvshmem_device -o "$SCRATCH/dlink.o"
  c++ -shared -o "$output" "${objects[@]}" "$SCRATCH/dlink.o" "-L$library/lib" -l:libnvshmem_host.so \
    -l:libnvshmem_device.a "-L$TOOLKIT/lib" -lcudart -lpthread -ldl -lrt
}

# The Python call finds the function, and reports its error.
python_call() {
  cat >"$SCRATCH/fake.c" <<'C'
int init_efa_device_state(int channels, int devices) { return -11; }
int init_efa_device_state_at(int channels, int devices, void *at) {
  return channels == 24 && devices == 2 && at == 0 ? 0 : -8;
}
int finalize_efa_device_state(void) { return 0; }
const char *efa_gda_nvshmem_last_error(void) { return "called already"; }
C
  cc -shared -fPIC -o "$SCRATCH/fake.so" "$SCRATCH/fake.c"
  PYTHONPATH=$ROOT/python python3 -B - "$SCRATCH/fake.so" <<'PY'
import sys
import efa_gda_deepep as e

def text(call, *arguments):
    try:
        call(*arguments)
    except (RuntimeError, ValueError) as error:
        return str(error)
    sys.exit(f"{arguments} were accepted")

library = sys.argv[1]
e.init_internode(24, 2, library)
e.finalize_internode(library)
assert text(e.init_internode, 1, 1, library) == "init_efa_device_state returned -8: called already"
assert "num_devices is 0" in text(e.init_internode, 1, 0, library)
assert "deep_ep_cpp was not found" in text(e.init_internode, 1, 1)
PY
}

python_call
# Without DEEPEP_DIR, a tree with the file that the overlay replaces.
DEEPEP_DIR_GIVEN=${DEEPEP_DIR:-}
export DEEPEP_DIR=${DEEPEP_DIR:-$SCRATCH/deepep}
mkdir -p "$SCRATCH/deepep/csrc/kernels"
: >"$SCRATCH/deepep/csrc/kernels/ibgda_device.cuh"
"$ROOT/scripts/overlay_deepep.sh" --out "$SCRATCH/overlay" >"$SCRATCH/environment"
grep -q '^export NVSHMEM_REMOTE_TRANSPORT=libfabric' "$SCRATCH/environment" || die 'the overlay printed no environment'
[[ -x $SCRATCH/overlay/side/bin/efa_gda_nvshmem_ring ]] || die 'the ring program was not installed'
link "$SCRATCH/shapes.so" "$ROOT"/efa-gda/tests/ibgda/{low_latency,normal}.cu
[[ $(nm -D --defined-only "$SCRATCH/shapes.so") == *' T init_efa_device_state'* ]] ||
  die 'the library has no init_efa_device_state'
c++ -std=c++17 -Wall -Wextra -Werror -I "$SCRATCH/overlay/nvshmem/include" -o "$SCRATCH/host_only.o" \
  -c "$ROOT/efa-gda/tests/ibgda/host_only.cpp"
echo 'int host_only(); int main() { return host_only(); }' >"$SCRATCH/main.cpp"
c++ -o "$SCRATCH/host_only" "$SCRATCH/main.cpp" "$SCRATCH/host_only.o" \
  "$SCRATCH/overlay/nvshmem/lib/libnvshmem_device.a"
"$SCRATCH/host_only"
if [[ -n $DEEPEP_DIR_GIVEN ]]; then
  link "$SCRATCH/deepep.so" "$SCRATCH"/overlay/deepep/csrc/kernels/{runtime,internode,internode_ll}.cu
else
  echo "not run: DeepEP's own kernels, because DEEPEP_DIR is not set"
fi
