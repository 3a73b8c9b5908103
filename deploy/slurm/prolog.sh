#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prolog= in slurm.conf. A status other than 0 drains the node and requeues the job. The same script serves as
# HealthCheckProgram with HealthCheckNodeState=IDLE.
report=$(timeout 60 gda-probe check --json) && exit 0
node=${SLURMD_NODENAME:-$(hostname -s)}
for action in isolate restart; do
  case $report in
  *"\"action\": \"$action\""*)
    scontrol update nodename="$node" state=drain reason="gda-probe: $action"
    exit 1
    ;;
  esac
done
exit 0
