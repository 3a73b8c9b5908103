# shellcheck shell=bash disable=SC2034 # callers read the variables that functions set
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Functions that the scripts share: messages, options, installing missing packages, finding Rust. Sourced, not run.
# Every message goes to stderr, because a caller's stdout may be data.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# skipped REASON: ends a test that this machine cannot run.
skipped() {
  echo "SKIPPED: $*"
  exit 77
}

# print_help: prints the comment at the head of the script.
print_help() { sed -n '3,/^[^#]/{/^[^#]/d;s/^# \{0,1\}//;p}' "$0"; }

# wrong_usage MESSAGE: refuses the command line before anything runs.
wrong_usage() {
  print_help >&2
  printf '\n' >&2
  say "$1"
  exit 2
}

# help_or_nothing ARGUMENT…: for scripts without options of their own.
help_or_nothing() {
  case ${1:-} in
  -h | --help) print_help; exit 0 ;;
  '') ;;
  *) wrong_usage "unknown argument \"$1\"" ;;
  esac
}

# read_options OPTIONS MOST ARGUMENT…: reads a command line. OPTIONS lists the options: "--prefix" stands for --prefix
# VALUE and --prefix=VALUE, which set PREFIX, and "--" for arguments after --, which REST receives. OPERANDS receives
# the other arguments, of which there may be MOST. -h and --help print the help and end the script.
read_options() {
  local options=" $1 " most=$2 name value
  shift 2
  OPERANDS=() REST=()
  while [[ $# -gt 0 ]]; do
    name=${1%%=*}
    case $1 in
    -h | --help) help_or_nothing "$1" ;;
    -*)
      [[ $options == *" $name "* ]] || wrong_usage "unknown option \"$1\""
      if [[ $1 == -- ]]; then
        REST=("${@:2}")
        return
      fi
      value=${1#"$name"}
      if [[ $value == =* ]]; then value=${value#=}; else value=${2:-}; fi
      [[ -n $value ]] || wrong_usage "the option $name needs a value"
      [[ $1 == *=* ]] || shift
      name=${name#--}
      printf -v "${name^^}" '%s' "$value"
      ;;
    *)
      OPERANDS+=("$1")
      [[ ${#OPERANDS[@]} -le $most ]] || wrong_usage "unknown argument \"$1\""
      ;;
    esac
    shift
  done
}

# holds FILE EXPRESSION: the expression of Python must be true of the JSON in FILE, which it calls report. check(CODE) is
# the check with that code.
holds() {
  python3 -c 'import json, sys
report = json.load(open(sys.argv[1]))
def check(code): return next(c for c in report["checks"] if c["code"] == code)
assert eval(sys.argv[2]), sys.argv[2] + " does not hold in " + json.dumps(report, indent=1)' "$1" "$2"
}

# ---- packages -----------------------------------------------------------------

MISSING=()

# want PACKAGES TEST…: adds Debian packages to the missing ones if TEST fails.
want() { "${@:2}" >/dev/null 2>&1 || MISSING+=("$1"); }

have() { command -v "$1" >/dev/null 2>&1; }

have_c_compiler() { cc -x c -fsyntax-only - <<<'#include <stdio.h>' >/dev/null 2>&1; }

have_cxx_compiler() { c++ -x c++ -fsyntax-only - <<<'#include <atomic>' >/dev/null 2>&1; }

have_compose() { docker compose version >/dev/null 2>&1 || have docker-compose; }

# bindgen needs libclang and the compiler's own headers, which have the same version.
have_libclang() {
  [[ -n ${LIBCLANG_PATH:-} ]] || compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null ||
    compgen -G '/usr/lib*/clang/*/include/stddef.h' >/dev/null
}

# The loader, the EFA installer or the user provides a libfabric.
have_libfabric() {
  local dir dirs
  [[ -z ${LIBFABRIC_PATH:-} ]] || return 0
  IFS=: read -r -a dirs <<<"${LD_LIBRARY_PATH:-}"
  for dir in "${dirs[@]}" /opt/amazon/efa/lib /opt/amazon/efa/lib64; do
    [[ ! -e $dir/libfabric.so.1 ]] || return 0
  done
  [[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) == *'libfabric.so.1 '* ]]
}

as_root() { if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi; }

can_be_root() { as_root true 2>/dev/null; }

CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

# Installs the packages that `want` found missing. Returns 1, after a message, if it cannot.
install_missing() {
  local list="${MISSING[*]}" scratch status=0
  [[ -n $list ]] || return 0
  MISSING=()
  if ! have apt-get || ! can_be_root; then
    say "missing: $list (Debian packages); as root, run: apt-get update && apt-get install --no-install-recommends $list"
    return 1
  fi
  say "installing $list"
  scratch=$(mktemp -d)
  # A certificate bundle may be present without its package. Installing that package as a dependency replaces the bundle,
  # and registries behind it are no longer reachable. (dpkg-query also finds packages that are recommended only.)
  [[ $(dpkg-query -W -f '${Status}' ca-certificates 2>/dev/null) == *'ok installed' ]] ||
    cp -- "$CERTIFICATES" "$scratch/bundle" 2>/dev/null || true
  # shellcheck disable=SC2086 # a list of package names
  { as_root apt-get -q -o DPkg::Lock::Timeout=300 update && as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
    -o DPkg::Lock::Timeout=300 install --no-install-recommends $list; } </dev/null >"$scratch/log" 2>&1 || status=1
  [[ ! -s $scratch/bundle ]] || as_root cp -- "$scratch/bundle" "$CERTIFICATES"
  if [[ $status -ne 0 ]]; then
    tail -n 20 "$scratch/log" >&2
    say "could not install $list; the output of apt-get is above"
  fi
  rm -rf -- "$scratch"
  return "$status"
}

# venv NAME PACKAGE…: prints .cache/NAME, a Python environment with these packages of pip's index, installed once.
# Fails with pip's message.
venv() {
  local place=$ROOT/.cache/$1 stamp
  shift
  stamp=$place/.complete-$(printf '%s\n' "$@" | cksum | cut -d' ' -f1)
  mkdir -p -- "$ROOT/.cache"
  # Several tests may ask at once; the lock lets one of them install.
  (
    flock 9
    [[ ! -e $stamp ]] || exit 0
    say "installing $* into $place"
    rm -rf -- "$place"
    python3 -m venv "$place" && "$place/bin/pip" install --quiet --disable-pip-version-check "$@" && touch "$stamp"
  ) 9>"$place.lock" >&2 || return 1
  printf '%s\n' "$place"
}

# venv_or_skip NAME PACKAGE…: sets VENV to such an environment, for a test. Without an index that answers, it is skipped.
venv_or_skip() {
  local messages
  if messages=$(venv "$@" 2>&1); then
    VENV=${messages##*$'\n'}
  elif [[ $messages == *'connection broken'* && $messages != *CERTIFICATE_VERIFY_FAILED* ]]; then
    skipped "pip's index does not answer: ${messages##*$'\n'}"
  else
    die "$messages"
  fi
}

# ---- Rust -----------------------------------------------------------------------

# Puts cargo on PATH and checks that it is new enough for the workspace.
find_rust() {
  local wanted version
  export HOME=${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}
  have cargo || export PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
  wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$ROOT/Cargo.toml")
  if ! have cargo || ! version=$(cd "$ROOT" && rustc --version 2>&1); then
    say "no Rust toolchain was found${version:+ ($version)}; install Rust $wanted or newer, for example with rustup"
    return 1
  fi
  version=$(cut -d ' ' -f 2 <<<"$version")
  if ! printf '%s\n' "$wanted" "${version%%-*}" | sort -VC; then
    say "Rust $version is too old; the workspace needs $wanted or newer (rustup update)"
    return 1
  fi
}

# Sets TARGET to a writable target directory, with an absolute path, because cargo runs in $ROOT.
choose_target_dir() {
  TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
  if [[ -n ${CARGO_TARGET_DIR:-} ]]; then
    TARGET=$(realpath -m -- "$TARGET")
    export CARGO_TARGET_DIR=$TARGET
  elif ! mkdir -p "$TARGET" 2>/dev/null || [[ ! -w $TARGET ]]; then
    say "$TARGET cannot be written; building in ${XDG_CACHE_HOME:-$HOME/.cache}/efa-gda/target"
    TARGET=${XDG_CACHE_HOME:-$HOME/.cache}/efa-gda/target
    export CARGO_TARGET_DIR=$TARGET
  fi
}

# ---- the machine ------------------------------------------------------------------

has_efa_adapter() {
  local dir vendor device
  for dir in /sys/bus/pci/devices/*; do
    { read -r vendor <"$dir/vendor" && read -r device <"$dir/device"; } 2>/dev/null || continue
    [[ $vendor == 0x1d0f && $device == 0xefa* ]] && return 0
  done
  return 1
}
