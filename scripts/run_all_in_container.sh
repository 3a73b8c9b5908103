#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds everything within a container, runs the probe there, and installs the library for transports.
#
#   run_all_in_container.sh [--workspace DIR] [SOURCE] [-- ARGUMENT…]
#
# SOURCE is a checkout or a source archive (tar), by default the checkout of this script. DIR is /workspace by default:
#
#   DIR/gda_probe        the probe as one file; DIR/softefa is a link to it, which runs the command softefa
#   DIR/gda_probe.json   its report, of "check" or of the ARGUMENTs; with --soft where there is no EFA adapter
#   DIR/efa_gda/         headers, libraries, a pkg-config file and a CMake package (install.sh)
#
# Prints shell commands on stdout that set the variables by which builds and programs find these, so that
# eval "$(scripts/run_all_in_container.sh)" integrates them; messages and the probe's report go to stderr. Needs Rust, a
# C++17 compiler and binutils. Exit status: the probe's; 1 also if something could not be built; 2 wrong usage.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/standalone.sh
source "$ROOT/scripts/lib/standalone.sh"

WORKSPACE=/workspace

# Runs the probe: a report for people on stderr, and one for programs in a file.
run_probe() {
  local soft=() status=0
  [[ ${#CHECK[@]} -gt 0 ]] || CHECK=(check)
  if ! has_efa_adapter && [[ " ${CHECK[*]} " != *" --soft "* ]]; then
    say 'no EFA adapter: the probe uses the software adapter (--soft)'
    soft=(--soft)
  fi
  "$WORKSPACE/gda_probe" "${CHECK[@]}" "${soft[@]}" >&2 || status=$?
  "$WORKSPACE/gda_probe" "${CHECK[@]}" "${soft[@]}" --json >"$WORKSPACE/gda_probe.json" || true
  return "$status"
}

print_exports() {
  local home=$WORKSPACE/efa_gda
  # shellcheck disable=SC2016 # the reader's shell expands them
  printf 'export %s\n' "EFA_GDA_HOME='$home'" "PATH='$WORKSPACE'"'"${PATH:+:$PATH}"' \
    "PKG_CONFIG_PATH='$home/lib/pkgconfig'"'"${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"' \
    "CMAKE_PREFIX_PATH='$home'"'"${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"' \
    "LD_LIBRARY_PATH='$home/lib'"'"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
}

status=0
read_options '--workspace --' 1 "$@"
CHECK=("${REST[@]}")
mkdir -p -- "$WORKSPACE" || die "$WORKSPACE cannot be written; name another directory with --workspace"
WORKSPACE=$(cd -- "$WORKSPACE" && pwd)
choose_target_dir
open_source "${OPERANDS[0]:-$ROOT}"
"$TREE/scripts/build_standalone_probe.sh" --glibc host --output "$WORKSPACE/gda_probe" >&2
ln -sf gda_probe "$WORKSPACE/softefa"
run_probe || status=$?
[[ $status -ne 1 ]] || die "the probe could not run; its message is above"
say "the probe's exit status is $status; its report for programs is $WORKSPACE/gda_probe.json"
"$TREE/scripts/install.sh" --prefix "$WORKSPACE/efa_gda" >&2
print_exports
exit "$status"
