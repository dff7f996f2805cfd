# What the benchmarks of the load generator have in common; load.sh and http2.sh source it. It changes into the root of
# the tree, and makes a directory, $dir. When the script ends, the directory is removed, and the processes in the array
# servers are ended.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
script=$(basename "$0")
port=${PORT:-18080}
url=http://127.0.0.1:$port/
export PATH=$PATH:/usr/sbin

# needs PACKAGES COMMAND... ends the script where a command is missing; PACKAGES are Debian's that have them.
needs() {
	local packages=$1 command
	shift
	for command in "$@"; do
		command -v "$command" >/dev/null && continue
		echo "$script: $command is missing: apt-get install $packages, and Go" >&2
		exit 3
	done
	[ -x /usr/bin/time ] || { echo "$script: /usr/bin/time is missing: apt-get install time" >&2; exit 3; }
	[ "$(nproc)" -ge 2 ] || { echo "$script: needs two CPUs, one for the server and one for the generator" >&2; exit 3; }
}

dir=$(mktemp -d -t tare-bench-XXXXXX)
servers=()
end() {
	for server in "${servers[@]}"; do { kill "$server" && wait "$server"; } 2>/dev/null || true; done
	rm -rf "$dir"
}
trap end EXIT

# build sets $tare, the binary that TARE names or else one that it builds.
build() {
	tare=${TARE:-$dir/tare}
	[ -n "${TARE:-}" ] || CGO_ENABLED=0 GOFLAGS="-trimpath -ldflags=-w" go build -o "$tare" ./cmd/tare
}

# fetch MODULE@VERSION has the command of a module in $dir.
fetch() { (cd "$dir" && GOBIN=$dir go install "$1") 2>"$dir/install" || { cat "$dir/install" >&2; exit 3; }; }

# await PORT... waits until somebody listens at each.
await() {
	local at
	for at in "$@"; do
		for _ in $(seq 100); do
			if (exec 3<>"/dev/tcp/127.0.0.1/$at") 2>/dev/null; then continue 2; fi
			sleep 0.05
		done
		echo "$script: nobody listens at port $at" >&2
		cat "$dir/errors" >&2
		exit 3
	done
}

# serve [OPTION] has nginx answer at $port from the second CPU; OPTION is one of its directive listen, such as http2.
serve() {
	cat >"$dir/nginx.conf" <<CONF
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
		listen 127.0.0.1:$port ${1:-} backlog=4096;
		location / { return 200 "$(printf 'x%.0s' $(seq 128))"; }
	}
}
CONF
	taskset -c 1 nginx -e "$dir/errors" -p "$dir" -c "$dir/nginx.conf" &
	servers+=($!)
	await "$port"
}

# Functions for awk: the rounds of one figure in order, and their median.
awk_median='
	function sorted(list, n, i, j, x) {
		for (i = 2; i <= n; i++) {
			x = list[i]
			for (j = i - 1; j > 0 && list[j] > x; j--) list[j + 1] = list[j]
			list[j + 1] = x
		}
	}
	function median(list, n) { return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2 }
'
