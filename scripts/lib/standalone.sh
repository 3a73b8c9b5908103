# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Building the self-contained gda-probe and what a release has beside it. Sourced after setup.sh. GLIBC is the oldest C
# library to run with, or "host"; each has its own directory in the target directory.

# prepare_build MOST ARGUMENT…: sets OUTPUT and GLIBC from the options, and SOURCE from the other argument, of which there
# may be MOST. Checks what builds need.
# shellcheck disable=SC2034 # the callers read OUTPUT and SOURCE
prepare_build() {
  OUTPUT='' GLIBC=2.28
  read_options '--output --glibc' "$@"
  SOURCE=${OPERANDS[0]:-$ROOT}
  [[ $GLIBC == host || $GLIBC =~ ^2\.[0-9]+$ ]] ||
    wrong_usage "--glibc $GLIBC: expected a version such as 2.28, or host"
  have_cxx_compiler || die 'no C++ compiler was found (Debian package g++)'
  have objdump || die 'no objdump was found (Debian package binutils)'
  find_rust || die 'nothing was built'
  choose_target_dir
}

# open_source PATH: sets TREE to the checkout PATH, or to what the source archive PATH holds.
open_source() {
  TREE=$1
  if [[ -f $1 ]]; then
    UNPACKED=$(mktemp -d)
    trap 'rm -rf -- "$UNPACKED"' EXIT
    tar -xf "$1" -C "$UNPACKED" || die "$1 is not a source archive that tar can unpack"
    TREE=$(find "$UNPACKED" -maxdepth 2 -name Cargo.lock -printf '%h\n' -quit)
  fi
  [[ -n $TREE && -e $TREE/probe/Cargo.toml ]] ||
    die "$1 holds no source of efa-gda; expected a checkout or an archive of one"
  TREE=$(cd -- "$TREE" && pwd)
}

# build_tools: sets CARGO, the command that builds, RUST_TARGET, cargo's name for what it builds for, and LINKER, the C
# compiler that links for it.
build_tools() {
  local host place=$TARGET/standalone/$GLIBC zig
  host=$(rustc -vV | sed -n 's/^host: //p')
  CARGO=(cargo build)
  RUST_TARGET=$host
  LINKER=cc
  export CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols
  unset CARGO_BUILD_TARGET EFA_GDA_STANDALONE
  [[ $GLIBC != host ]] || return 0
  if ! have cargo-zigbuild; then
    zig=$(venv zig cargo-zigbuild==0.24.0 ziglang==0.17.1) ||
      die "Zig could not be installed (Debian package python3-venv); --glibc host builds without it"
    PATH=$zig/bin:$PATH
  fi
  mkdir -p -- "$place"
  LINKER=$place/cc
  printf '#!/bin/sh\nexec cargo-zigbuild zig cc -- -target %s "$@" "%s"\n' "${host%%-*}-linux-gnu.$GLIBC" \
    "$place/gettid.o" >"$LINKER"
  chmod +x "$LINKER"
  cargo-zigbuild zig cc -- -target "${host%%-*}-linux-gnu.$GLIBC" -O2 -fPIC -c "$ROOT/scripts/lib/gettid.c" \
    -o "$place/gettid.o" || die "Zig cannot compile for glibc $GLIBC"
  CARGO=(cargo-zigbuild zigbuild)
  RUST_TARGET=$host.$GLIBC
  export RUSTFLAGS="-Clink-arg=$place/gettid.o"
}

# build_programs: builds gda-probe with softefa in it, and sets BUILT to the directory that has the programs and
# libraries. The files of softefa are built first, because cargo cannot make one crate's library a part of another's.
build_programs() {
  BUILT=$TARGET/standalone/$GLIBC/${RUST_TARGET%".$GLIBC"}/release
  # Nothing outside of git.
  EFA_GDA_COMMIT=${EFA_GDA_COMMIT:-$(git -C "$TREE" describe --always --abbrev=12 --exclude '*' --dirty=-modified \
    2>/dev/null)} || true
  export EFA_GDA_COMMIT
  say "building softefa and gda-probe (a few minutes the first time)"
  build -p softefa -p softefa-preload -p softefa-uverbs
  EFA_GDA_STANDALONE=$BUILT build -p gda-probe
}

# build ARGUMENT…: a release build of packages.
build() {
  (cd -- "$TREE" && "${CARGO[@]}" --quiet --locked --release --target "$RUST_TARGET" \
    --target-dir "$TARGET/standalone/$GLIBC" "$@") >&2 || die "the build failed; the compiler's messages are above"
}

# needs_glibc FILE: the newest symbol version of glibc that FILE needs.
needs_glibc() { objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d _ -f 2; }
