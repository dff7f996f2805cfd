#!/usr/bin/env bash
# Holds Tare's load generator against fortio and wrk: what each asks of its CPU for a request. nginx serves from the second CPU of the
# machine, the generators take turns on the first, 64 connections, as fast as answers come. Every figure is requests answered per
# second of CPU time (user and system, of the whole process, by GNU time); ratios are taken within a round, so that what the
# machine does from round to round cancels. Prints Markdown.
#
#	test/bench/load.sh [ROUNDS] [SECONDS]        7 rounds of 2 s by default: under 3 minutes
#
# Needs two CPUs, Go, and nginx, wrk, time and util-linux from Debian. TARE and FORTIO name the binaries, else the first is built and
# the second is fetched by go install into a directory that is removed at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

rounds=${1:-7}
seconds=${2:-2}
fortio_version=v1.66.5
port=${PORT:-18080}
url=http://127.0.0.1:$port/
export PATH=$PATH:/usr/sbin

for command in nginx wrk taskset go; do
	command -v "$command" >/dev/null || { echo "load.sh: $command is missing: apt-get install nginx-light wrk util-linux, and Go" >&2; exit 3; }
done
[ -x /usr/bin/time ] || { echo "load.sh: /usr/bin/time is missing: apt-get install time" >&2; exit 3; }
[ "$(nproc)" -ge 2 ] || { echo "load.sh: needs two CPUs, one for the server and one for the generator" >&2; exit 3; }

dir=$(mktemp -d -t tare-bench-XXXXXX)
server=
end() {
	[ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
	rm -rf "$dir"
}
trap end EXIT

tare=${TARE:-$dir/tare}
[ -n "${TARE:-}" ] || CGO_ENABLED=0 go build -o "$tare" ./cmd/tare
fortio=${FORTIO:-$dir/fortio}
[ -n "${FORTIO:-}" ] || (cd "$dir" && GOBIN=$dir go install "fortio.org/fortio@$fortio_version" 2>"$dir/install") || { cat "$dir/install" >&2; exit 3; }

cat >"$dir/nginx.conf" <<EOF
daemon off;
worker_processes 1;
worker_cpu_affinity 10;
pid $dir/pid;
error_log $dir/errors;
events { worker_connections 4096; }
http {
	access_log off;
	keepalive_requests 1000000000;
	keepalive_timeout 1h;
	client_body_temp_path $dir/body;
	proxy_temp_path $dir/proxy;
	fastcgi_temp_path $dir/fastcgi;
	uwsgi_temp_path $dir/uwsgi;
	scgi_temp_path $dir/scgi;
	server {
		listen 127.0.0.1:$port backlog=4096;
		location / { return 200 "$(printf 'x%.0s' $(seq 128))"; }
	}
}
EOF
taskset -c 1 nginx -e "$dir/errors" -p "$dir" -c "$dir/nginx.conf" &
server=$!
for _ in $(seq 100); do
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
	kill -0 "$server" 2>/dev/null || { cat "$dir/errors" >&2; exit 3; }
	sleep 0.05
done

# measure NAME REQUESTS-PATTERN COMMAND... appends "ROUND NAME requests-per-CPU-second" to the results. The pattern is what sed finds
# the number of answers by.
measure() {
	local name=$1 pattern=$2 requests
	shift 2
	/usr/bin/time -f '%U %S' -o "$dir/cpu" taskset -c 0 "$@" >"$dir/out" 2>&1 || { cat "$dir/out" >&2; exit 1; }
	requests=$(sed -nE "$pattern" "$dir/out" | head -n 1)
	[ -n "$requests" ] || { echo "load.sh: $name did not say how many requests it made:" >&2; cat "$dir/out" >&2; exit 1; }
	tail -n 1 "$dir/cpu" | awk -v round="$round" -v name="$name" -v n="$requests" '{ print round, name, n / ($1 + $2) }' >>"$dir/results"
}

by_tare='s/^([0-9]+) of [0-9]+ requests answered.*/\1/p'
by_fortio='s/^All done ([0-9]+) calls.*/\1/p'
by_wrk='s/^ *([0-9]+) requests in .*/\1/p'
load=("$tare" load http --url "$url" --mode closed --connections 64 --threads 1 --duration "${seconds}s")
for round in $(seq "$rounds"); do
	measure keep:tare "$by_tare" "${load[@]}"
	measure keep:fortio "$by_fortio" "$fortio" load -quiet -qps 0 -c 64 -t "${seconds}s" "$url"
	measure keep:wrk "$by_wrk" wrk -t 1 -c 64 -d "${seconds}s" "$url"
	measure close:tare "$by_tare" "${load[@]}" --keepalive=false
	measure close:recycle "$by_tare" "${load[@]}" --keepalive=false --recycle
	measure close:fortio "$by_fortio" "$fortio" load -quiet -qps 0 -c 64 -t "${seconds}s" -keepalive=false "$url"
	measure close:wrk "$by_wrk" wrk -t 1 -c 64 -d "${seconds}s" -H 'Connection: close' "$url"
done

awk -v rounds="$rounds" '
	function sorted(list, n, i, j, x) {
		for (i = 2; i <= n; i++) {
			x = list[i]
			for (j = i - 1; j > 0 && list[j] > x; j--) list[j + 1] = list[j]
			list[j + 1] = x
		}
	}
	function median(list, n) { return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
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
