#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Packages every crate that is published. Cargo unpacks each package outside its crate and builds it there, with the other
# packages as its dependencies. No build needs libclang, and each package has its README and licences.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

find_rust
choose_target_dir
cd -- "$ROOT"
BUILD=$TARGET/package-test
# External crates stay built from run to run; the packages of this run do not.
trap 'rm -rf -- "$BUILD/package"' EXIT
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 LIBCLANG_PATH=/nonexistent
unset EFA_IO_DEFS_H EFA_GDA_NVCC CUDA_PATH CUDA_HOME

PRIVATE=()
for manifest in */Cargo.toml */*/Cargo.toml */*/*/Cargo.toml; do
  ! grep -q '^publish = false' "$manifest" || [[ $manifest == fuzz/* ]] ||
    PRIVATE+=(--exclude "$(sed -n 's/^name = "\(.*\)"/\1/p' "$manifest" | head -n 1)")
done
cargo package --locked --allow-dirty --workspace "${PRIVATE[@]}" --target-dir "$BUILD"
for crate in "$BUILD"/package/*.crate; do
  for file in README.md LICENSE-APACHE LICENSE-MIT; do
    tar -tzf "$crate" "$(basename "$crate" .crate)/$file" >/dev/null ||
      die "$crate has no $file; add it to the crate's directory and to its include list"
  done
done
