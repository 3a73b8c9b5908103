#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes the files that the images of the Dockerfile add to their base. The Dockerfile calls it.
#
#   image_files.sh DIR [PROBE]    PROBE: a gda-probe that build_standalone_probe.sh built; without it, it is built for
#                                 this machine's C library
#
#   DIR/probe/usr/local/bin/gda-probe, softefa      DIR/probe/workspace/gda_probe
#   DIR/transport/usr/local/                        what install.sh installs, and share/efa_gda/kernels
#
# If target/image of this checkout holds files that this script made, they are copied instead.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

OUT=$1
PROBE=${2:-}

mkdir -p -- "$OUT"
if [[ -z $PROBE && -d $ROOT/target/image/probe ]]; then
  cp -a -- "$ROOT/target/image/." "$OUT/"
  exit 0
fi
[[ -n $PROBE ]] || PROBE=$("$ROOT/scripts/build_standalone_probe.sh" --glibc host)
mkdir -p -- "$OUT/probe/workspace" "$OUT/transport/usr/local/share/efa_gda/kernels"
install -D -m 755 -- "$PROBE" "$OUT/probe/usr/local/bin/gda-probe"
ln -sf gda-probe "$OUT/probe/usr/local/bin/softefa"
ln -sf /usr/local/bin/gda-probe "$OUT/probe/workspace/gda_probe"
"$ROOT/scripts/install.sh" --prefix "$OUT/transport/usr/local" >&2
install -m 644 -- "$ROOT"/kernels/*.cu "$OUT/transport/usr/local/share/efa_gda/kernels/"
