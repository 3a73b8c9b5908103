#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Checks the manifests in deploy/kubernetes and the YAML of docs/fleets.md (deploy_test.py) with the API's schemas, which
# come from pip's package index.
#
#   deploy_test.sh PROBE
set -euo pipefail

# shellcheck source=scripts/lib/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

venv_or_skip deploy kubernetes-validate==1.37.0
"$VENV/bin/python" -B "$ROOT/scripts/lib/deploy_test.py" "$1"
