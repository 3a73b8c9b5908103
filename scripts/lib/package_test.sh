#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Packages every crate that is published, unpacks the packages outside the repository and builds them there as one
# workspace. Then a program that depends on the packaged efa-gda alone writes 4 KiB through the packaged softefa.
#
# Exit status: 0 everything passed, 77 with one line "SKIPPED: reason" where there is no libfabric to run the program
# on, another one on failure.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

find_rust
choose_target_dir
# External crates stay built from run to run.
BUILD=${CARGO_TARGET_DIR:-$ROOT/target}/package-test
export CARGO_TARGET_DIR=$BUILD CARGO_INCREMENTAL=0
# The build must not need them.
export LIBCLANG_PATH=/nonexistent
unset EFA_IO_DEFS_H EFA_GDA_NVCC CUDA_PATH CUDA_HOME

SCRATCH=$(mktemp -d)
NAMES=()

# Removes what was built of this run's packages: a later run unpacks them to other directories and cannot use it.
clean_up() {
  local name arguments=()
  for name in "${NAMES[@]}"; do
    arguments+=(-p "$name")
  done
  if [[ -e $SCRATCH/Cargo.toml ]]; then
    (cd "$SCRATCH" && cargo clean --quiet "${arguments[@]}" -p consumer) || true
  fi
  rm -rf -- "$SCRATCH" "$BUILD/package"
}
trap clean_up EXIT

# Prints "NAME VERSION" of each workspace member that is published.
published() {
  cargo metadata --locked --no-deps --format-version 1 | python3 -c 'import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["publish"] != []:
        print(package["name"], package["version"])'
}

# package NAME…: makes a tarball of each. Cargo resolves the members among themselves.
package() {
  local name arguments=()
  for name in "$@"; do
    arguments+=(-p "$name")
  done
  (cd "$ROOT" && cargo package --quiet --locked --no-verify --allow-dirty "${arguments[@]}")
}

# unpack NAME-VERSION: unpacks the tarball and checks that it is complete without the repository.
unpack() {
  local crate=$BUILD/package/$1.crate file
  tar -xzf "$crate" -C "$SCRATCH"
  for file in README.md LICENSE-APACHE LICENSE-MIT; do
    [[ -s $SCRATCH/$1/$file ]] || die "the package $1 has no $file; add it to the crate's directory and to its include list"
  done
  if [[ -n $(find "$SCRATCH/$1" -type l) ]]; then
    die "the package $1 has symbolic links: $(find "$SCRATCH/$1" -type l)"
  fi
}

# workspace NAME-VERSION…: a workspace of the packages and of the program. The packages name each other by version; the
# patches resolve these to the unpacked directories.
workspace() {
  local crate
  {
    echo '[workspace]'
    echo 'resolver = "3"'
    printf 'members = ["consumer"'
    printf ', "%s"' "$@"
    echo ']'
    echo '[profile.dev]'
    echo 'debug = false'
    echo '[patch.crates-io]'
    for crate in "$@"; do
      echo "${crate%-*} = { path = \"$crate\" }"
    done
  } >"$SCRATCH/Cargo.toml"
  cp -- "$ROOT/Cargo.lock" "$SCRATCH/Cargo.lock"
}

# consumer VERSION: the program, which depends on efa-gda alone.
consumer() {
  mkdir -p "$SCRATCH/consumer/src"
  cat >"$SCRATCH/consumer/Cargo.toml" <<TOML
[package]
name = "consumer"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
efa-gda = "=$1"
TOML
  cat >"$SCRATCH/consumer/src/main.rs" <<'RUST'
use std::error::Error;

use efa_gda::fabric::{Access, Bindings, Buffer, Fabric, Library, Query};
use efa_gda::queue::{MappedQueue, WorkRequest};

const BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let library = Library::load()?;
    let info = Query::new().first(&library)?;
    let fabric = Fabric::open(&library, &info)?;
    let domain = fabric.domain(&info)?;
    let addresses = domain.address_vector(16)?;
    let completions = domain.completion_queue(8192)?;
    let endpoint = domain.endpoint(&info)?.bind(Bindings::shared(&addresses, &completions))?.enable()?;
    let mut queue = MappedQueue::new(endpoint, &domain.gda_ops()?)?;
    let peer = queue.insert_peer(&queue.endpoint().address()?)?;

    let bytes: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    let source = Buffer::zeroed(BYTES).ok_or("no memory for the source")?;
    source.write(0, &bytes)?;
    let source = domain.register(source, Access::WRITE)?;
    let target = Buffer::zeroed(BYTES).ok_or("no memory for the target")?;
    let target = domain.register(target, Access::REMOTE_WRITE)?;
    let report = queue.execute(&WorkRequest::write(peer, &source, target.remote()))?;

    let mut arrived = vec![0; BYTES];
    target.buffer().ok_or("the target has no buffer")?.read(0, &mut arrived)?;
    if arrived != bytes {
        return Err("the target's bytes differ from the source's".into());
    }
    queue.close()?;
    println!("{BYTES} bytes arrived in {} completion(s)", report.completed);
    Ok(())
}
RUST
}

# The packages' dependencies must include nothing that needs libclang, and the program no library of others.
check_dependencies() {
  local tree found
  tree=$(cd "$SCRATCH" && cargo tree --workspace --edges normal,build --prefix none)
  found=$(grep -E '^(bindgen|clang-sys) ' <<<"$tree" || true)
  [[ -z $found ]] || die "a build of the packages needs libclang: $found is among the dependencies"
  if have readelf; then
    found=$(readelf -d "$BUILD/debug/consumer" | grep NEEDED | grep -E 'clang|cuda|nvrtc|fabric|ibverbs|libefa' || true)
    [[ -z $found ]] || die "the program is linked with a library that is to be loaded at run time: $found"
  fi
}

# run_consumer: the program on the packaged software adapter.
run_consumer() {
  mkdir -p "$SCRATCH/provider"
  ln -s "$BUILD/debug/libsoftefa.so" "$SCRATCH/provider/softefa-fi.so"
  FI_PROVIDER_PATH=$SCRATCH/provider timeout --kill-after=5 600 "$BUILD/debug/consumer" ||
    die "the program that depends on the packaged efa-gda failed"
}

main() {
  local name version listed crates=() efa_gda=
  listed=$(published) || die "cargo metadata failed"
  while read -r name version; do
    NAMES+=("$name")
    crates+=("$name-$version")
    [[ $name != efa-gda ]] || efa_gda=$version
  done <<<"$listed"
  [[ -n $efa_gda ]] || die "efa-gda is not among the published crates: ${NAMES[*]}"

  echo "packaging ${crates[*]}"
  package "${NAMES[@]}"
  for name in "${crates[@]}"; do
    unpack "$name"
  done
  workspace "${crates[@]}"
  consumer "$efa_gda"
  (cd "$SCRATCH" && cargo build --quiet --workspace) || die "the packages do not build outside the repository"
  check_dependencies
  "$BUILD/debug/gda-probe" explain GDA-001 >/dev/null || die "the packaged gda-probe does not explain GDA-001"
  if ! have_libfabric; then
    echo "SKIPPED: the packages were built; running a program on them needs libfabric (Debian package libfabric1)"
    exit 77
  fi
  run_consumer
}

main "$@"
