#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Prolog= in slurm.conf. A status other than 0 drains the node and requeues the job. The same script serves as
# HealthCheckProgram, with HealthCheckInterval=600 and HealthCheckNodeState=IDLE: it then drains the node itself and
# exits with 0, because slurmd may repeat a check that fails at its start. If gda-probe cannot run, the job starts, and
# the system's log has a line of gda-probe.

# Slurm gives its scripts no PATH, and a shell does not export the one that it then searches.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin
# slurmd ends a health check after 60 s.
status=0
report=$(timeout 50 gda-probe check --json) || status=$?
case $status in
0) exit 0 ;;
3 | 4) ;;
*)
  logger -t gda-probe "the prolog has no report: gda-probe check ended with status $status (124: it took more than" \
    "50 s; 126 or 127: install it as /usr/local/bin/gda-probe); the job starts"
  exit 0
  ;;
esac
node=${SLURMD_NODENAME:-$(hostname -s)}
for action in isolate restart; do
  case $report in
  *"\"action\": \"$action\""*)
    scontrol update nodename="$node" state=drain reason="gda-probe: $action"
    # Only a prolog has a job.
    [ -z "${SLURM_JOB_ID:-}" ] || exit 1
    exit 0
    ;;
  esac
done
exit 0
