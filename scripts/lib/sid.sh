# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Binary packages of Debian sid with all they depend on, unpacked side by side for programs that run
# through sid's own ld.so: without root, and without a change to this machine's packages. apt
# verifies the signatures. Sourced after setup.sh and upstream.sh.

SID=$ROOT/.cache/sid
SID_DAYS=7

# Not needed by any program here, and large.
sid_needless() { case $1 in systemd_* | libc-gconv-modules-extra_* | *-doc_*) return 0 ;; *) return 1 ;; esac; }

# fetch_sid PACKAGE…: leaves $SID/root with the packages and $SID/versions. Where it fails, one line
# on stderr says why; an older copy serves then, if there is one.
fetch_sid() {
  [[ -n $(find "$SID/versions" -mtime "-$SID_DAYS" 2>/dev/null) ]] && [[ $(<"$SID/packages") == "$*" ]] && return 0
  local scratch status=0
  scratch=$(mktemp -d)
  (fetch_sid_into "$scratch" "$@") || status=$?
  rm -rf -- "$scratch"
  [[ $status -eq 0 ]] && return 0
  [[ -e $SID/versions && $(<"$SID/packages") == "$*" ]] || return 1
  say "going on with a copy of sid of more than $SID_DAYS days"
}

fetch_sid_into() {
  local scratch=$1 package
  shift
  have dpkg-deb || { echo "no dpkg-deb on this system" >&2; return 1; }
  private_apt "$scratch" deb sid || return 1
  # As on a machine with nothing installed, so that everything is fetched.
  : >"$scratch/status"
  APT+=(-o "Dir::State::status=$scratch/status" -o "Dir::Etc::PreferencesParts=/dev/null")
  mkdir -p "$scratch/root"
  if ! "${APT[@]}" install --download-only -y --no-install-recommends "$@" >"$scratch/install.log" 2>&1 </dev/null; then
    echo "packages of sid could not be fetched: $(grep -m 1 '^E:' "$scratch/install.log" || tail -n 1 "$scratch/install.log")" >&2
    return 1
  fi
  for package in "$scratch"/cache/archives/*.deb; do
    sid_needless "${package##*/}" && continue
    dpkg-deb -x "$package" "$scratch/root" || { echo "${package##*/} does not unpack" >&2; return 1; }
    basename "$package" .deb >>"$scratch/versions"
  done
  printf '%s\n' "$*" >"$scratch/packages"
  rm -rf -- "$SID"
  mkdir -p "$SID"
  mv -- "$scratch/root" "$scratch/versions" "$scratch/packages" "$SID/"
}

# The libraries' directory, and the loader.
sid_lib() { printf '%s/root/usr/lib/%s' "$SID" "$(uname -m)-linux-gnu"; }
sid_loader() { compgen -G "$SID/root/usr/lib*/ld-linux-*.so.*" | head -n 1; }

# sid_version PACKAGE: its version.
sid_version() { sed -n "s/^$1_\(.*\)_[a-z0-9]*\$/\1/p" "$SID/versions" | sed 's/%3a/:/'; }
