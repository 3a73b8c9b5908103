#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checks deploy/: the Helm chart and its manifests (deploy_test.py). Helm's renderer and the API's schemas come from PyPI.
#
#   deploy_test.sh [--bless]    --bless: write deploy/kubernetes from the chart first
#
# Exit status: 0 passed, 77 with one line "SKIPPED: reason" if PyPI cannot be reached, another one on failure.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

PACKAGES=(helm-python-sdk==0.2.2 kubernetes-validate==1.37.0)
VENV=$ROOT/.cache/deploy

if [[ ! -e $VENV/complete || $(<"$VENV/complete") != "${PACKAGES[*]}" ]]; then
  rm -rf -- "$VENV"
  log=$(mktemp)
  if ! { python3 -m venv "$VENV" && "$VENV/bin/pip" install --quiet --only-binary :all: "${PACKAGES[@]}"; } >"$log" 2>&1; then
    echo "SKIPPED: ${PACKAGES[*]} could not be installed: $(tail -n 1 "$log")"
    rm -f -- "$log"
    exit 77
  fi
  rm -f -- "$log"
  # The wheel holds three copies of one library, each of 85 MB.
  library=$(find "$VENV" -name 'libhelm_c.so')
  for copy in "$library".?*; do ln -sf "$(basename "$library")" "$copy"; done
  echo "${PACKAGES[*]}" >"$VENV/complete"
fi
choose_target_dir
"$VENV/bin/python" -B "$ROOT/scripts/lib/deploy_test.py" "${CARGO_TARGET_DIR:-$ROOT/target}/debug/gda-probe" "$@"
