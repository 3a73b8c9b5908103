#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up, builds gda-probe and runs it with the arguments. If there is no EFA adapter and the command uses
# one, adds --soft and says so on stderr, except where the result is one about this machine: report, --npd,
# --prometheus and --root. The exit status is gda-probe's, or 1 after a message that begins "probe.sh:" if setting up or
# building failed.
#
# EFA_GDA_PROBE_DEV=1 runs the build of the tests instead of a release build.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

opens=yes soft=yes more=() build=release
for argument in "$@"; do
  case $argument in
  # These open no adapter.
  decode | explain | completions | man | -h | --help | -V | --version) opens='' ;;
  --soft) soft='' ;;
  # A reader takes the result for one about this machine.
  report | --npd | --prometheus | --prometheus=* | --root | --root=*) soft='' ;;
  # With rdma-core the software adapter is a program and a library in gda-probe's directory.
  verbs | --via=verbs) more=(-p softefa-uverbs -p softefa-preload) ;;
  esac
done
if [[ -z $opens ]] || has_efa_adapter; then
  soft=''
else
  want libfabric1 have_libfabric
fi
if [[ -n $soft ]]; then say 'this machine has no EFA adapter; adding --soft, which uses the software adapter'; fi
want 'gcc libc6-dev' have_c_compiler
want g++ have_cxx_compiler
{ install_missing && find_rust; } || die 'setting up failed; gda-probe did not run'
choose_target_dir
what=(--release -p gda-probe -p softefa "${more[@]}")
if [[ -n ${EFA_GDA_PROBE_DEV:-} ]]; then
  # What test.sh builds: fewer packages would have other features and be compiled again.
  what=(--workspace --lib --bins --tests --examples)
  build=debug
fi
# Messages and progress go to stderr: stdout belongs to gda-probe.
(cd -- "$ROOT" && exec env -u CARGO_BUILD_TARGET cargo build --locked --target-dir "$TARGET" "${what[@]}") \
  </dev/null >&2 || die 'building failed; gda-probe did not run'
PROBE=$TARGET/$build/gda-probe
[[ -x $PROBE ]] || die "the build made no $PROBE; does cargo's configuration set build.target?"
exec "$PROBE" ${soft:+--soft} "$@"
