# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Functions that the scripts share: messages, options, installing missing packages, finding Rust. Sourced, not run.
# Every message goes to stderr, because a caller's stdout may be data.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# print_help FILE: prints the comment at the head of a script.
print_help() { sed -n '3,/^[^#]/{/^[^#]/d;s/^# \{0,1\}//;p}' "$1"; }

# wrong_usage MESSAGE: refuses the command line before anything runs.
wrong_usage() {
  print_help "$0" >&2
  printf '\n' >&2
  say "$1"
  exit 2
}

# help_or_nothing ARGUMENT…: for scripts without options of their own.
help_or_nothing() {
  case ${1:-} in
  -h | --help)
    print_help "$0"
    exit 0
    ;;
  '') ;;
  *) wrong_usage "unknown argument \"$1\"" ;;
  esac
}

# read_options OPTIONS MOST ARGUMENT…: reads a command line. OPTIONS lists the options: "--prefix" stands for --prefix
# VALUE and --prefix=VALUE, which set PREFIX, and "--" for arguments after --, which REST receives. OPERANDS receives
# the other arguments, of which there may be MOST. -h and --help print the help and end the script.
# shellcheck disable=SC2034 # the callers read OPERANDS and REST
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

# ---- packages -----------------------------------------------------------------

MISSING=()

# want PACKAGE TEST…: adds a Debian package to the missing ones if TEST fails.
want() {
  local package=$1
  shift
  "$@" || MISSING+=("$package")
}

have() { command -v "$1" >/dev/null 2>&1; }

have_glob() { compgen -G "$1" >/dev/null; }

# If the headers are in their usual directory, the compiler need not run.
have_c_compiler() {
  have cc || return 1
  [[ -e /usr/include/stdio.h ]] ||
    printf '#include <stdio.h>\nint main(void){return 0;}\n' | cc -x c -fsyntax-only - >/dev/null 2>&1
}

have_cxx_compiler() {
  have c++ || return 1
  have_glob '/usr/include/c++/*/atomic' ||
    printf '#include <atomic>\nint main(){}\n' | c++ -x c++ -fsyntax-only - >/dev/null 2>&1
}

have_compose() { docker compose version >/dev/null 2>&1 || have docker-compose; }

# bindgen needs libclang and the compiler's own headers.
have_libclang() {
  [[ -n ${LIBCLANG_PATH:-} ]] && return 0
  { have_glob '/usr/lib/llvm-*/lib/libclang*.so*' || have_glob '/usr/lib*/libclang*.so*' ||
    have_glob '/usr/lib/*/libclang*.so*' || have_glob '/usr/local/lib/libclang*.so*'; } &&
    { have_glob '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' || have_glob '/usr/lib*/clang/*/include/stddef.h' ||
      have_glob '/usr/local/lib/clang/*/include/stddef.h'; }
}

# The loader, the EFA installer or the user provides a libfabric.
have_libfabric() {
  [[ -n ${LIBFABRIC_PATH:-} ]] && return 0
  local dir
  local -a dirs
  IFS=: read -r -a dirs <<<"${LD_LIBRARY_PATH:-}"
  for dir in "${dirs[@]}" /opt/amazon/efa/lib /opt/amazon/efa/lib64; do
    [[ -n $dir && -e $dir/libfabric.so.1 ]] && return 0
  done
  # All of the output is read: grep -q would end ldconfig by SIGPIPE, and pipefail would make that a failure.
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep 'libfabric\.so\.1 ' >/dev/null
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

can_be_root() { [[ $(id -u) -eq 0 ]] || { have sudo && sudo -n true 2>/dev/null; }; }

# Installs the packages that `want` found missing. Returns 1, after a message, if it cannot.
install_missing() {
  [[ ${#MISSING[@]} -eq 0 ]] && return 0
  local list="${MISSING[*]}"
  MISSING=()
  if ! have apt-get; then
    say "missing: $list (Debian package names); install them with this system's package manager, then run again"
    return 1
  fi
  if ! can_be_root; then
    say "missing: $list; as root, run: apt-get update && apt-get install --no-install-recommends $list"
    return 1
  fi
  say "installing $list"
  local log copy
  log=$(mktemp)
  copy=$(copy_certificates)
  # shellcheck disable=SC2086 # a list of package names
  if ! { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
      install --no-install-recommends $list; } </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    restore_certificates "$copy"
    say "could not install $list; the output of apt-get is above"
    return 1
  fi
  rm -f "$log"
  restore_certificates "$copy"
}

CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

# A certificate bundle may be present without the package ca-certificates. Installing that package as a dependency
# replaces the bundle, and registries behind it are no longer reachable. Copies the bundle and prints the copy's name.
copy_certificates() {
  local copy
  [[ -s $CERTIFICATES ]] || return 0
  [[ $(dpkg-query -W -f '${Status}' ca-certificates 2>/dev/null) == *'ok installed'* ]] && return 0
  copy=$(mktemp)
  cp -- "$CERTIFICATES" "$copy"
  printf '%s\n' "$copy"
}

restore_certificates() {
  [[ -n $1 ]] || return 0
  if ! cmp -s -- "$1" "$CERTIFICATES"; then
    as_root cp -- "$1" "$CERTIFICATES"
    say "restored $CERTIFICATES, which a package had replaced"
  fi
  rm -f -- "$1"
}

# ---- Rust -----------------------------------------------------------------------

# Puts cargo on PATH and checks that it is new enough for the workspace.
find_rust() {
  if [[ -z ${HOME:-} ]]; then
    HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
    export HOME=${HOME:-/}
  fi
  if ! have cargo; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    export PATH
  fi
  local wanted version
  wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$ROOT/Cargo.toml")
  if ! have cargo || ! version=$(cd "$ROOT" && rustc --version 2>&1); then
    say "no Rust toolchain was found${version:+ ($version)}; install Rust $wanted or newer, for example with rustup"
    return 1
  fi
  version=${version#rustc }
  version=${version%% *}
  if [[ $(printf '%s\n%s\n' "$wanted" "${version%%-*}" | sort -V | head -n 1) != "$wanted" ]]; then
    say "Rust $version is too old; the workspace needs $wanted or newer (rustup update)"
    return 1
  fi
}

# Chooses a writable target directory and makes its path absolute, because cargo runs in $ROOT.
choose_target_dir() {
  if [[ -n ${CARGO_TARGET_DIR:-} ]]; then
    [[ $CARGO_TARGET_DIR == /* ]] || CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR
    export CARGO_TARGET_DIR
  elif ! mkdir -p "$ROOT/target" 2>/dev/null || [[ ! -w $ROOT/target ]]; then
    export CARGO_TARGET_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/efa-gda/target
    say "$ROOT/target cannot be written; building in $CARGO_TARGET_DIR"
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
