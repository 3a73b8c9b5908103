# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Building the self-contained gda-probe and what a release has beside it. Sourced after setup.sh. The caller sets
# TARGET, the target directory, and GLIBC: the oldest C library to run with, or "host". Each has its own directory in
# TARGET.

# shellcheck disable=SC2034 # the callers read OUTPUT
ZIG_PACKAGES=(cargo-zigbuild==0.24.0 ziglang==0.17.1)

# read_build_arguments MOST ARGUMENT…: sets OUTPUT and GLIBC from the options, and SOURCE from the other argument, if
# there is one and MOST is 1.
read_build_arguments() {
  OUTPUT='' GLIBC=2.28
  read_options '--output --glibc' "$@"
  SOURCE=${OPERANDS[0]:-}
  [[ $GLIBC == host || $GLIBC =~ ^2\.[0-9]+$ ]] ||
    wrong_usage "--glibc $GLIBC: expected a version such as 2.28, or host"
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

# commit_of TREE: the commit, with a mark if files differ from it; nothing outside of git.
commit_of() {
  local commit
  commit=$(git -C "$1" rev-parse --short=12 HEAD 2>/dev/null) || return 0
  git -C "$1" diff --quiet HEAD -- 2>/dev/null || commit+=-modified
  printf '%s\n' "$commit"
}

# build_tools: sets CARGO, the command that builds, and RUST_TARGET, cargo's name for what it builds for.
build_tools() {
  local host venv=$ROOT/.cache/zig
  host=$(rustc -vV | sed -n 's/^host: //p')
  CARGO=(cargo build)
  RUST_TARGET=$host
  export CARGO_INCREMENTAL=0 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_STRIP=symbols
  unset CARGO_BUILD_TARGET EFA_GDA_STANDALONE
  [[ $GLIBC != host ]] || return 0
  if ! have cargo-zigbuild; then
    if [[ ! -x $venv/bin/cargo-zigbuild ]]; then
      say "installing Zig, the linker for glibc $GLIBC, into $venv"
      { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet "${ZIG_PACKAGES[@]}"; } >&2 ||
        die "${ZIG_PACKAGES[*]} could not be installed (Debian package python3-venv); --glibc host builds without it"
    fi
    PATH=$venv/bin:$PATH
  fi
  mkdir -p -- "$TARGET/standalone/$GLIBC"
  cargo-zigbuild zig cc -- -target "${host%%-*}-linux-gnu.$GLIBC" -O2 -fPIC -c "$ROOT/scripts/lib/gettid.c" \
    -o "$TARGET/standalone/$GLIBC/gettid.o" || die "Zig cannot compile for glibc $GLIBC"
  CARGO=(cargo-zigbuild zigbuild)
  RUST_TARGET=$host.$GLIBC
  export RUSTFLAGS="-Clink-arg=$TARGET/standalone/$GLIBC/gettid.o"
}

# linker: the C compiler that links for GLIBC.
linker() {
  [[ $GLIBC != host ]] || { echo cc; return; }
  cat >"$TARGET/standalone/$GLIBC/cc" <<CC
#!/bin/sh
exec cargo-zigbuild zig cc -- -target $(uname -m)-linux-gnu.$GLIBC "\$@" "$TARGET/standalone/$GLIBC/gettid.o"
CC
  chmod +x "$TARGET/standalone/$GLIBC/cc"
  printf '%s\n' "$TARGET/standalone/$GLIBC/cc"
}

# build_programs: builds gda-probe with softefa in it, and sets BUILT to the directory that has the programs and
# libraries. The files of softefa are built first, because cargo cannot make one crate's library a part of another's.
build_programs() {
  BUILT=$TARGET/standalone/$GLIBC/${RUST_TARGET%".$GLIBC"}/release
  EFA_GDA_COMMIT=${EFA_GDA_COMMIT:-$(commit_of "$TREE")}
  export EFA_GDA_COMMIT
  say "building softefa (a few minutes the first time)"
  build -p softefa -p softefa-preload -p softefa-uverbs
  say "building gda-probe"
  EFA_GDA_STANDALONE=$BUILT build -p gda-probe
}

# build ARGUMENT…: a release build of packages.
build() {
  (cd -- "$TREE" && "${CARGO[@]}" --quiet --locked --release --target "$RUST_TARGET" \
    --target-dir "$TARGET/standalone/$GLIBC" "$@") >&2 || die "the build failed; the compiler's messages are above"
}

# needs_glibc FILE: the newest symbol version of glibc that FILE needs.
needs_glibc() { objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d _ -f 2; }
