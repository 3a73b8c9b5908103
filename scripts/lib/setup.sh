# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# What the scripts share: messages, finding Rust, installing what is missing.
# Sourced, not run. Everything here speaks on stderr, so that a caller's stdout stays its own.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# ---- packages -----------------------------------------------------------------

MISSING=()

# want PACKAGE TEST…: remembers a Debian package whose TEST fails.
want() {
  local package=$1
  shift
  "$@" || MISSING+=("$package")
}

have() { command -v "$1" >/dev/null 2>&1; }

have_glob() { compgen -G "$1" >/dev/null; }

# The file tests save a run of the compiler, where headers lie in the usual place.
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

# bindgen needs the library and the headers that come with it.
have_libclang() {
  [[ -n ${LIBCLANG_PATH:-} ]] && return 0
  { have_glob '/usr/lib/llvm-*/lib/libclang*.so*' || have_glob '/usr/lib*/libclang*.so*' ||
    have_glob '/usr/lib/*/libclang*.so*' || have_glob '/usr/local/lib/libclang*.so*'; } &&
    { have_glob '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' || have_glob '/usr/lib*/clang/*/include/stddef.h' ||
      have_glob '/usr/local/lib/clang/*/include/stddef.h'; }
}

# A libfabric that the loader, the installer of EFA, or the user provides.
have_libfabric() {
  [[ -n ${LIBFABRIC_PATH:-} ]] && return 0
  local dir
  local -a dirs
  IFS=: read -r -a dirs <<<"${LD_LIBRARY_PATH:-}"
  for dir in "${dirs[@]}" /opt/amazon/efa/lib /opt/amazon/efa/lib64; do
    [[ -n $dir && -e $dir/libfabric.so.1 ]] && return 0
  done
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libfabric\.so\.1 '
}

as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

can_be_root() { [[ $(id -u) -eq 0 ]] || { have sudo && sudo -n true 2>/dev/null; }; }

# Installs what `want` found missing, or says what it is and fails.
install_missing() {
  [[ ${#MISSING[@]} -eq 0 ]] && return 0
  local list="${MISSING[*]}"
  MISSING=()
  if ! have apt-get; then
    say "missing: $list (names of Debian packages); install them with this system's package manager, then run again"
    return 1
  fi
  if ! can_be_root; then
    say "missing: $list; install them (apt-get install --no-install-recommends $list), then run again"
    return 1
  fi
  say "installing $list"
  local log kept
  log=$(mktemp)
  kept=$(keep_certificates)
  # shellcheck disable=SC2086 # a list of package names
  if ! { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 update &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
      install --no-install-recommends $list; } </dev/null >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    restore_certificates "$kept"
    say "could not install $list; what apt-get said is above"
    return 1
  fi
  rm -f "$log"
  restore_certificates "$kept"
}

CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

# A bundle of certificates that was put there without the package ca-certificates is lost when
# another package brings that one in, and with it the way to the registries. Prints a copy's name.
keep_certificates() {
  local copy
  [[ -s $CERTIFICATES ]] || return 0
  dpkg-query -W -f '${Status}' ca-certificates 2>/dev/null | grep -q 'ok installed' && return 0
  copy=$(mktemp)
  cp -- "$CERTIFICATES" "$copy"
  printf '%s\n' "$copy"
}

restore_certificates() {
  [[ -n $1 ]] || return 0
  if ! cmp -s -- "$1" "$CERTIFICATES"; then
    as_root cp -- "$1" "$CERTIFICATES"
    say "kept $CERTIFICATES as it was, which a package had replaced"
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

# A target directory that can be written, made absolute, because cargo runs in $ROOT.
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
