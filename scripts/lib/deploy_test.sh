#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checks deploy/: the Helm chart and its manifests (deploy_test.py). Helm's renderer and the API's schemas come from
# pip's package index.
#
#   deploy_test.sh [--bless]    --bless: write deploy/kubernetes from the chart first
#
# Exit status: 0 passed, 77 with one line "SKIPPED: reason" if that index does not answer, another one on failure.
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/setup.sh"

PACKAGES=(helm-python-sdk==0.2.2 kubernetes-validate==1.37.0)
VENV=$ROOT/.cache/deploy

# install LOG: installs the packages into VENV. Whatever keeps pip from reading its index, its last line is "No matching
# distribution", so the reason is taken from the first broken connection. Only an index that does not answer is a skip:
# an untrusted certificate and a missing package can be mended, on this machine or in the list above.
install() {
  local log=$1 library copy why
  rm -rf -- "$VENV"
  if ! { python3 -m venv "$VENV" &&
    "$VENV/bin/pip" install --quiet --only-binary :all: "${PACKAGES[@]}"; } >"$log" 2>&1; then
    why=$(sed -n "s/.*connection broken by '\(.*\)': .*/\1/p" "$log" | head -n 1)
    if [[ -n $why && $why != *CERTIFICATE_VERIFY_FAILED* ]]; then
      echo "SKIPPED: pip's package index does not answer: $why"
      exit 77
    fi
    cat "$log"
    [[ -z $why ]] || say "the certificate of pip's index is not trusted; set PIP_CERT to a bundle that has its issuer"
    die "${PACKAGES[*]} could not be installed; the messages of pip are above"
  fi
  # The wheel holds three copies of one library, each of 85 MB.
  library=$(find "$VENV" -name 'libhelm_c.so')
  for copy in "$library".?*; do ln -sf "$(basename "$library")" "$copy"; done
  echo "${PACKAGES[*]}" >"$VENV/complete"
}

if [[ ! -e $VENV/complete || $(<"$VENV/complete") != "${PACKAGES[*]}" ]]; then
  LOG=$(mktemp)
  trap 'rm -f -- "$LOG"' EXIT
  install "$LOG"
fi
choose_target_dir
"$VENV/bin/python" -B "$ROOT/scripts/lib/deploy_test.py" "${CARGO_TARGET_DIR:-$ROOT/target}/debug/gda-probe" "$@"
