#!/usr/bin/env bash
# Holds Tare's load generator against fortio and wrk: what each asks of its CPU for a request. nginx serves from the
# second CPU of the machine, the generators take turns on the first, 64 connections, as fast as answers come. Every
# figure is requests answered per second of CPU time (user and system, of the whole process, by GNU time); ratios are
# taken within a round, so that what the machine does from round to round cancels. Prints Markdown.
#
#	test/bench/load.sh [ROUNDS] [SECONDS]        7 rounds of 2 s by default: under 3 minutes
#
# Needs two CPUs, Go, and nginx, wrk, time and util-linux from Debian. TARE and FORTIO name the binaries, else the first
# is built and the second is fetched by go install into a directory that is removed at the end.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

rounds=${1:-7}
seconds=${2:-2}
needs "nginx-light wrk util-linux" nginx wrk taskset go
build
fortio=${FORTIO:-$dir/fortio}
[ -n "${FORTIO:-}" ] || fetch fortio.org/fortio@v1.66.5
serve

# measure NAME REQUESTS-PATTERN COMMAND... appends "ROUND NAME requests-per-CPU-second" to the results. The pattern is
# what sed finds the number of answers by.
measure() {
	local name=$1 pattern=$2 requests
	shift 2
	/usr/bin/time -f '%U %S' -o "$dir/cpu" taskset -c 0 "$@" >"$dir/out" 2>&1 || { cat "$dir/out" >&2; exit 1; }
	requests=$(sed -nE "$pattern" "$dir/out" | head -n 1)
	[ -n "$requests" ] || { echo "load.sh: $name did not say how many requests it made:" >&2; cat "$dir/out" >&2; exit 1; }
	tail -n 1 "$dir/cpu" | awk -v round="$round" -v name="$name" -v n="$requests" '{ print round, name, n / ($1 + $2) }' >>"$dir/results"
}

by_tare='s/^done +([0-9]+) of .*/\1/p'
by_fortio='s/^All done ([0-9]+) calls.*/\1/p'
by_wrk='s/^ *([0-9]+) requests in .*/\1/p'
load=("$tare" load http "$url" --mode closed --connections 64 --threads 1 --duration "${seconds}s")
for round in $(seq "$rounds"); do
	measure keep:tare "$by_tare" "${load[@]}"
	measure keep:fortio "$by_fortio" "$fortio" load -quiet -qps 0 -c 64 -t "${seconds}s" "$url"
	measure keep:wrk "$by_wrk" wrk -t 1 -c 64 -d "${seconds}s" "$url"
	measure close:tare "$by_tare" "${load[@]}" --keepalive=false
	measure close:recycle "$by_tare" "${load[@]}" --keepalive=false --recycle
	measure close:fortio "$by_fortio" "$fortio" load -quiet -qps 0 -c 64 -t "${seconds}s" -keepalive=false "$url"
	measure close:wrk "$by_wrk" wrk -t 1 -c 64 -d "${seconds}s" -H 'Connection: close' "$url"
done

awk -v rounds="$rounds" "$awk_median"'
	function row(title, a, b, target, scale, form, i, list, m) {
		for (i = 1; i <= rounds; i++) list[i] = b == "" ? v[i, a] / 1000 : v[i, a] / v[i, b]
		sorted(list, rounds)
		m = median(list, rounds)
		printf "| %s | " (b == "" ? "%.1f thousand/s | %.1f to %.1f" : "%.2f | %.2f to %.2f") " | %s |\n", title, m, list[1], list[rounds],
			target == "" ? "" : sprintf("at least %s: %s", target, m >= target ? "met" : "**missed**")
	}
	{ v[$1, $2] = $3 }
	END {
		print "| requests per CPU second | median of " rounds " rounds | range | target |\n|---|---|---|---|"
		row("keep-alive, tare", "keep:tare")
		row("keep-alive, fortio", "keep:fortio")
		row("keep-alive, wrk", "keep:wrk")
		row("**keep-alive, tare / fortio**", "keep:tare", "keep:fortio", 1)
		row("**keep-alive, tare / wrk**", "keep:tare", "keep:wrk", 0.9)
		row("a connection each, tare", "close:tare")
		row("a connection each, tare --recycle", "close:recycle")
		row("a connection each, fortio", "close:fortio")
		row("a connection each, wrk", "close:wrk")
		row("**a connection each, tare / fortio**", "close:tare", "close:fortio", 2)
		row("**a connection each, tare --recycle / fortio**", "close:recycle", "close:fortio", 2)
		row("a connection each, tare / wrk", "close:tare", "close:wrk")
	}' "$dir/results"
