#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets the machine up, builds gda-probe unless it is built from these sources, and runs it with the arguments. If there is
# no EFA adapter and the command uses one, adds --soft and says so on stderr, except where the result is one about this
# machine: report, --npd, --prometheus and --root. "explain CODE" builds nothing: without a probe it prints the page as
# the documentation has it. The exit status is gda-probe's, or 1 after a message that begins "probe.sh:" if setting up
# or building failed.
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
choose_target_dir
[[ -z ${EFA_GDA_PROBE_DEV:-} ]] || build=debug
PROBE=$TARGET/$build/gda-probe

# The probe, and what else the arguments need.
files=("$PROBE" "$TARGET/$build/libsoftefa.so")
[[ -z ${more[*]} ]] || files+=("$TARGET/$build"/{softefa,libsoftefa_preload.so})

# is_built: each of the files is newer than every source.
is_built() {
  local file
  # What these name becomes a part of the probe.
  [[ -z ${EFA_GDA_NVCC:-}${EFA_GDA_STANDALONE:-} ]] || return 1
  for file in "${files[@]}"; do
    [[ -x $file ]] || return 1
    [[ -z $(find "$ROOT"/{Cargo.toml,Cargo.lock,probe,efa-gda,efa-gda-sys,softefa,kernels,third_party,docs/{statuses,troubleshooting}.md} \
      -type f -newer "$file" -print -quit) ]] || return 1
  done
}

# page CODE: the section of the documentation; false if there is none.
page() {
  local code=${1^^}
  [[ ! $code =~ ^[0-9]+$ ]] || code=STATUS-$code
  awk -v code="$code" '
    /^##/ { on = $1 == "###" && $2 == code }
    on { sub(/^### /, ""); print; found = 1 }
    END { exit !found }' "$ROOT/docs/checks.md" "$ROOT/docs/statuses.md"
}

if [[ ${1:-} == explain && $# -gt 1 && " $* " != *' -'* ]]; then
  [[ ! -x $PROBE ]] || exec "$PROBE" "$@"
  page "${*:2}" && exit
  # Text to search for.
  grep -ihF -- "${*:2}" "$ROOT/docs/troubleshooting.md" "$ROOT/docs/checks.md" && exit
  say "${*:2} is not the code of a check or a status, and no page has this text; docs/checks.md and docs/statuses.md list all codes"
  exit 2
fi
if [[ -z $opens ]] || has_efa_adapter; then
  soft=''
else
  want libfabric1 have_libfabric
fi
if [[ -n $soft ]]; then say 'this machine has no EFA adapter; adding --soft, which uses the software adapter'; fi
built=''
if is_built; then
  built=yes
else
  want 'gcc libc6-dev' have_c_compiler
  want g++ have_cxx_compiler
fi
{ install_missing && { [[ -n $built ]] || find_rust; }; } || die 'setting up failed; gda-probe did not run'
if [[ -z $built ]]; then
  what=(--release -p gda-probe -p softefa "${more[@]}")
  # What test.sh builds: fewer packages would have other features and be compiled again.
  [[ -z ${EFA_GDA_PROBE_DEV:-} ]] || what=(--workspace --lib --bins --tests --examples)
  say "building gda-probe in $TARGET/$build (minutes the first time)"
  # Messages and progress go to stderr: stdout belongs to gda-probe.
  (cd -- "$ROOT" && exec env -u CARGO_BUILD_TARGET cargo build --locked --target-dir "$TARGET" "${what[@]}") \
    </dev/null >&2 || die 'building failed; gda-probe did not run'
  [[ -x $PROBE ]] || die "the build made no $PROBE; does cargo's configuration set build.target?"
  # A change that is no part of a file leaves it as it was.
  touch -- "${files[@]}"
fi
exec "$PROBE" ${soft:+--soft} "$@"
