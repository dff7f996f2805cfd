#!/usr/bin/env bash
# Runs a command for some seconds and prints what the kernel says of it, to compare with tare try:
#
#	test/bench/outside.sh SECONDS COMMAND [ARGS]
#
# Anonymous and resident memory: medians over readings every 0.1 s of /proc/PID/smaps_rollup, over all its processes.
# CPU time: /proc/PID/task/*/schedstat, from 2 s after the start until the end. Maps: memlock in
# /proc/PID/fdinfo, which bpftool map show prints as bytes_memlock, of the maps that the processes hold at the end. The
# command gets a session of its own, by which its processes are found and ended. It needs procps, and root for the rest.
set -euo pipefail
export PATH=$PATH:/usr/sbin

seconds=$1
shift
setsid "$@" >/dev/null 2>&1 &
session=$!
trap 'pkill -KILL -s "$session" 2>/dev/null || true' EXIT

# sum adds up a field of smaps_rollup over the processes, in bytes.
sum() {
	for pid in $(pgrep -s "$session"); do
		cat "/proc/$pid/smaps_rollup" 2>/dev/null || true
	done | awk -v field="$1:" '$1 == field {kb += $2} END {printf "%d\n", kb * 1024}'
}

# cpu adds up the CPU time of all threads, in nanoseconds. Threads that ended are lost.
cpu() {
	for pid in $(pgrep -s "$session"); do
		cat "/proc/$pid"/task/*/schedstat 2>/dev/null || true
	done | awk '{ns += $1} END {printf "%d\n", ns}'
}

median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

sleep 2
from=$(date +%s%N)
before=$(cpu)
anonymous=() resident=()
while (($(date +%s%N) - from < seconds * 1000000000)); do
	anonymous+=("$(sum Anonymous)")
	resident+=("$(sum Rss)")
	sleep 0.1
done
if ! pgrep -s "$session" >/dev/null; then
	echo "the command has ended: $*" >&2
	exit 1
fi
after=$(cpu)
to=$(date +%s%N)
printf 'anonymous  %s B\n' "$(printf '%s\n' "${anonymous[@]}" | median)"
printf 'resident   %s B\n' "$(printf '%s\n' "${resident[@]}" | median)"
awk -v ns=$((after - before)) -v of=$((to - from)) 'BEGIN {printf "CPUs       %.5f\n", ns / of}'
for pid in $(pgrep -s "$session"); do
	cat "/proc/$pid"/fdinfo/* 2>/dev/null || true
done | awk '$1 == "memlock:" {bytes = $2} $1 == "map_id:" && !seen[$2]++ {all += bytes}
	END {printf "maps       %d B\n", all}'
