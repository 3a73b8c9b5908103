#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes a site of the repository's pages with mdBook, with one page for each check, and checks its links.
#
#   scripts/site.sh [PROBE]    PROBE: a gda-probe, which explains the checks; by default that of probe.sh
#
# The site is site/ in the target directory. mdBook is built from crates.io into .cache/tools if it is not installed.
# Exit status: 0 made, 77 with one line "SKIPPED: reason" if mdBook cannot be installed, 2 usage, another one on failure.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"

MDBOOK=0.5.4
TOOLS=$ROOT/.cache/tools

# A debug build takes a third of the time, and mdBook runs for seconds.
install_mdbook() {
  PATH=$TOOLS/bin:$PATH
  have mdbook && return 0
  say "building mdBook $MDBOOK (a few minutes)"
  find_rust
  CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --no-default-features \
    --root "$TOOLS" --target-dir "$TARGET/tools" "mdbook@$MDBOOK" >"$TARGET/mdbook.log" 2>&1 || true
  rm -rf -- "$TARGET/tools"
  have mdbook || { echo "SKIPPED: mdBook could not be installed: $(tail -n 1 "$TARGET/mdbook.log")"; exit 77; }
}

main() {
  local probe=${1:-$ROOT/scripts/probe.sh}
  case $probe in
  -h | --help) print_help "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) wrong_usage "unknown option \"$probe\"" ;;
  esac
  choose_target_dir
  TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
  mkdir -p -- "$TARGET"
  install_mdbook
  python3 -B "$ROOT/scripts/lib/site.py" make "$probe" "$TARGET/book"
  mdbook build --dest-dir "$TARGET/site" "$TARGET/book" >&2
  python3 -B "$ROOT/scripts/lib/site.py" check "$TARGET/site" >&2
  printf '%s\n' "$TARGET/site/index.html"
}

main "$@"
