#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Makes a site of the repository's pages with mdBook, with one page for each check, and checks its links.
#
#   scripts/site.sh [PROBE]    PROBE: a gda-probe, which explains the checks; by default that of probe.sh
#
# The site is site/ in the target directory. Where mdBook is not installed, that of Debian trixie is fetched.
# Exit status: 0 made, 77 with one line "SKIPPED: reason" if mdBook cannot be fetched, 2 usage, another one on failure.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/setup.sh"
# shellcheck source=scripts/lib/fetch.sh
source "$ROOT/scripts/lib/fetch.sh"

read_options '' 1 "$@"
choose_target_dir
MDBOOK=(mdbook)
if ! have mdbook; then
  why=$(fetch_suite trixie "${TRIXIE_PACKAGES[@]}" 2>&1) || skipped "mdBook could not be fetched: $why"
  MDBOOK=("$(suite_loader trixie)" --library-path "$(suite_lib trixie)" "$(suite_dir trixie)/root/usr/bin/mdbook")
fi
python3 -B "$ROOT/scripts/lib/site.py" make "${OPERANDS[0]:-$ROOT/scripts/probe.sh}" "$TARGET/book"
"${MDBOOK[@]}" build --dest-dir "$TARGET/site" "$TARGET/book" >&2
python3 -B "$ROOT/scripts/lib/site.py" check "$TARGET/site" >&2
printf '%s\n' "$TARGET/site/index.html"
