#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds gda-probe as one self-contained file: with its kernels, softefa (the provider library, the preloaded library and
# the command) and its documentation. The file starts with nothing but a C library. With EFA_GDA_NVCC=FILE, the absolute
# path of nvcc, its kernels are compiled; without, the container needs libnvrtc to post from a GPU.
#
#   build_standalone_probe.sh [--output FILE] [--glibc VERSION|host] [SOURCE]
#
# SOURCE is a checkout or a source archive (tar), by default the checkout of this script. FILE is by default
# gda-probe-standalone in the target directory. --glibc names the oldest C library that the file has to run with, 2.28
# by default: then Zig is the linker, which is installed from PyPI into .cache/zig if it is missing; "host" means this
# machine's C library and its own linker. Needs Rust, a C++17 compiler and binutils.
#
# Prints the path of the file. Exit status: 0 built, 1 not built, 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/standalone.sh
source "$ROOT/scripts/lib/standalone.sh"

prepare_build 1 "$@"
open_source "$SOURCE"
build_tools
build_programs
OUTPUT=${OUTPUT:-$TARGET/gda-probe-standalone}
install -D -m 755 -- "$BUILT/gda-probe" "$OUTPUT" || die "$OUTPUT cannot be written; name another file with --output"
say "built $OUTPUT: $(stat -c %s -- "$OUTPUT") bytes, needs glibc $(needs_glibc "$OUTPUT")"
printf '%s\n' "$OUTPUT"
