#!/usr/bin/env bash
# Holds Tare's load generator against h2load (HTTP/2, gRPC) and ghz (gRPC): what they find of a server, and what each
# asks of its CPU for a request. The server has the second CPU of the machine: nginx for HTTP/2, Tare's application
# (grpc-go) for gRPC. The generators take turns on the first, 4 connections with 16 requests at once on each, as fast as
# answers come. For gRPC, h2load sends the same bytes as calls are made of. ghz is slower than the server, and its own
# bottleneck there; so it and Tare also call a server that answers after 5 ms, with 2 calls at once on each connection.
# Ratios are taken within a round, so that what the machine does from round to round cancels. Prints Markdown.
#
#	test/bench/http2.sh [ROUNDS] [SECONDS]        7 rounds of 2 s by default: under 2 minutes
#
# Needs two CPUs, Go, and nginx, nghttp2-client, time, jq and util-linux from Debian. TARE and GHZ name the binaries,
# else the first is built and the second is fetched by go install into a directory that is removed at the end. GHZ=none
# leaves ghz out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

rounds=${1:-7}
seconds=${2:-2}
needs "nginx-light nghttp2-client jq util-linux" nginx h2load jq taskset go
build
ghz=${GHZ:-$dir/ghz}
[ -n "${GHZ:-}" ] || fetch github.com/bojand/ghz/cmd/ghz@v0.120.0
serve http2
taskset -c 1 "$tare" app http --protocol grpc --listen "127.0.0.1:$((port + 1))" >/dev/null &
servers+=($!)
taskset -c 1 "$tare" app http --protocol grpc --delay 5ms --listen "127.0.0.1:$((port + 2))" >/dev/null &
servers+=($!)
grpc=127.0.0.1:$((port + 1))
slow=127.0.0.1:$((port + 2))
await "$((port + 1))" "$((port + 2))"

head -c 5 /dev/zero >"$dir/call" # a message without a value: not compressed, of 0 bytes

# measure NAME COMMAND... runs a generator; what it says is in $dir/out, and what it used of the CPU in $cpu.
measure() {
	/usr/bin/time -f '%U %S' -o "$dir/cpu" taskset -c 0 "$@" >"$dir/out" 2>"$dir/err" ||
		{ cat "$dir/out" "$dir/err" >&2; exit 1; }
	cpu=$(tail -n 1 "$dir/cpu" | awk '{ print $1 + $2 }')
}

# note NAME REQUESTS RATE MEAN appends to the results: rate, mean time of a request in us, requests per CPU second.
note() {
	awk -v round="$round" -v name="$1" -v n="$2" -v rate="$3" -v mean="$4" -v cpu="$cpu" \
		'BEGIN { print round, name, rate, mean, n / cpu }' >>"$dir/results"
}

by_tare() { # name, protocol, url, streams
	measure "$tare" load http "$3" --protocol "$2" --mode closed --connections 4 --streams "$4" --threads 1 \
		--duration "${seconds}s" --json
	read -r done rate mean < <(jq -r '"\(.done) \(.rate) \(.distributions.service.mean_seconds * 1e6)"' "$dir/out")
	note "$1" "$done" "$rate" "$mean"
}

by_h2load() { # name, url, options
	measure h2load -t 1 -c 4 -m 16 -D "$seconds" "${@:3}" "$2"
	read -r done rate mean < <(awk '
		function us(t) { return t ~ /us$/ ? t + 0 : t ~ /ms$/ ? 1e3 * t : 1e6 * t }
		/^finished in/ { rate = $4 } /^requests:/ { n = $8 } /^time for request:/ { mean = us($6) }
		END { print n, rate, mean }' "$dir/out")
	note "$1" "$done" "$rate" "$mean"
}

by_ghz() { # name, address, streams
	measure "$ghz" --insecure --proto internal/workloads/app/http/testdata/echo.proto --call tare.Echo.Echo -d '""' --cpus 1 \
		--connections 4 -c "$((4 * $3))" -z "${seconds}s" --duration-stop wait --format json "$2"
	read -r done rate mean < <(jq -r '"\(.statusCodeDistribution.OK) \(.rps) \(.average / 1e3)"' "$dir/out")
	note "$1" "$done" "$rate" "$mean"
}

for round in $(seq "$rounds"); do
	by_tare http2:tare http2 "$url" 16
	by_h2load http2:h2load "$url"
	by_tare grpc:tare grpc "http://$grpc/" 16
	by_h2load grpc:h2load "http://$grpc/tare.Echo/Echo" -d "$dir/call" \
		-H 'content-type: application/grpc' -H 'te: trailers'
	if [ "$ghz" != none ]; then
		by_ghz grpc:ghz "$grpc" 16
		by_tare slow:tare grpc "http://$slow/" 2
		by_ghz slow:ghz "$slow" 2
	fi
done

awk -v rounds="$rounds" "$awk_median"'
	function row(title, v, a, b, form, i, list) {
		if (!((1, a) in v) || b != "" && !((1, b) in v) || (title in shown)) return
		shown[title]
		for (i = 1; i <= rounds; i++) list[i] = b == "" ? v[i, a] : v[i, a] / v[i, b]
		sorted(list, rounds)
		printf "| %s | " form " | " form " to " form " |\n", title, median(list, rounds), list[1], list[rounds]
	}
	function rows(title, what, tool) {
		row(title ", tare: requests per CPU second", cpu, what ":tare", "", "%.0f")
		row(title ", " tool ": requests per CPU second", cpu, what ":" tool, "", "%.0f")
		row("**" title ", tare / " tool ": requests per CPU second**", cpu, what ":tare", what ":" tool, "%.2f")
		row("**" title ", tare / " tool ": requests answered per second**", rate, what ":tare", what ":" tool, "%.2f")
		row("**" title ", tare / " tool ": mean time of a request**", mean, what ":tare", what ":" tool, "%.2f")
	}
	{ rate[$1, $2] = $3; mean[$1, $2] = $4; cpu[$1, $2] = $5 }
	END {
		print "| 4 connections | median of " rounds " rounds | range |\n|---|---|---|"
		rows("HTTP/2", "http2", "h2load")
		rows("gRPC", "grpc", "h2load")
		rows("gRPC", "grpc", "ghz")
		rows("gRPC, answered after 5 ms", "slow", "ghz")
	}' "$dir/results"
