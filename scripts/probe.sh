#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up, builds gda-probe and runs it with the arguments given;
# adds --soft where there is no EFA adapter. The exit status is gda-probe's, or 1,
# with a message that begins "probe.sh:", where setting up or building failed.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib/setup.sh"

# build_probe [-p CRATE…]: prints the path of the built program, from what cargo itself reports about it.
build_probe() {
  local messages
  [[ -x ${CARGO_TARGET_DIR:-$ROOT/target}/release/gda-probe ]] ||
    say "building gda-probe (a few minutes the first time)"
  messages=$(cd -- "$ROOT" && cargo build --quiet --release --locked -p gda-probe -p softefa "$@" \
    --message-format=json-render-diagnostics) || return 1
  sed -n 's/.*"executable":"\(\([^"\\]\|\\.\)*\)".*/\1/p' <<<"$messages" | sed 's/\\\(.\)/\1/g' |
    grep -E '/gda-probe$' | tail -n 1
}

main() {
  local soft=() more=() argument
  for argument in "$@"; do
    # Under rdma-core the software adapter is a program and a library beside gda-probe.
    [[ $argument != verbs && $argument != --via=verbs ]] || more=(-p softefa-uverbs -p softefa-preload)
  done
  if ! has_efa_adapter; then
    soft=(--soft)
    for argument in "$@"; do
      [[ $argument == --soft ]] && soft=()
    done
    want libfabric1 have_libfabric
  fi
  want gcc have_c_compiler
  want libc6-dev have_c_compiler
  want g++ have_cxx_compiler
  want libclang-dev have_libclang
  install_missing || die "setting up failed; gda-probe did not run"
  find_rust || die "setting up failed; gda-probe did not run"
  choose_target_dir

  local probe
  probe=$(build_probe "${more[@]}") || die "building failed; gda-probe did not run"
  [[ -x $probe ]] || die "the build left no gda-probe; it did not run"
  exec "$probe" "${soft[@]}" "$@"
}

main "$@"
