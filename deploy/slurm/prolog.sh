#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prolog= in slurm.conf. A status other than 0 drains the node and requeues the job. The same script serves as
# HealthCheckProgram with HealthCheckNodeState=IDLE. gda-probe must be in the PATH of slurmd's scripts, for example at
# /usr/local/bin/gda-probe. If it cannot run, the job starts, and the system's log has a line of gda-probe.
status=0
report=$(timeout 60 gda-probe check --json) || status=$?
case $status in
0) exit 0 ;;
3 | 4) ;;
*)
  logger -t gda-probe "the prolog has no report: gda-probe check ended with status $status (124: it took more than" \
    "60 s; 126 or 127: install it as /usr/local/bin/gda-probe); the job starts"
  exit 0
  ;;
esac
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
