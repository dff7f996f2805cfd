#!/bin/sh
# engines.sh ENGINE ROOT BUSYBOX starts real containers with an engine whose files are below ROOT, prints "NAME GROUP" of
# each, and removes everything when its input ends. It is started in a new mount namespace.
set -eu
engine=$1 root=$2 busybox=$3
here=$root/engine
mkdir -p "$here/etc/containers" "$here/rootfs/bin" "$root/run" "$root/var/lib"
exec 3>&1 1>"$here/log" 2>&1
mount --make-rprivate /
trap 'set +e; stop; rm -rf "$root/var/lib" "$root/run" 2>/dev/null; true' EXIT

# Nothing of the machine's configuration is read, and nothing is written to it.
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$here/etc/passwd"
printf 'root:x:0:\n' >"$here/etc/group"
printf '127.0.0.1 localhost\n' >"$here/etc/hosts"
: >"$here/etc/resolv.conf"
printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$here/etc/containers/policy.json"
mount --bind "$here/etc" /etc
mount --bind "$root/var/lib" /var/lib
mount -t tmpfs tmpfs /run
mkdir /run/lock
mount -t tmpfs tmpfs /dev/shm

cp "$busybox" "$here/rootfs/bin/sleep"
chmod 755 "$here/rootfs/bin/sleep"
for d in proc sys dev etc run tmp; do mkdir -p "$here/rootfs/$d"; done

# report prints the group of a process. In a hierarchy that the engine does not use it is in the root.
report() {
	echo "$1 $(cut -d: -f3- "/proc/$2/cgroup" | sort | tail -n 1)" >&3
}

# await runs a command until it succeeds, for a minute at most.
await() {
	for _ in $(seq 120); do
		"$@" && return
		sleep 0.5
	done
	return 1
}

# end removes groups that are left empty, the deepest first.
end() {
	for h in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do
		[ ! -d "$h$1" ] || find "$h$1" -depth -type d -exec rmdir {} \; || true
	done
}

podman_() {
	podman --root "$root/var/lib/containers/storage" --runroot "$root/run/containers/storage" --tmpdir /run/libpod \
		--storage-driver vfs --cgroup-manager cgroupfs --events-backend file --runtime "$(command -v runc)" "$@"
}

# Default limits are above those of a root without CAP_SYS_RESOURCE.
limits="--ulimit nofile=1024:1024 --security-opt seccomp=unconfined"

start_podman() {
	stop() {
		podman_ rm -f -a -t 0
		end "$parent"
	}
	parent=tare-test-podman-$$
	tar -C "$here/rootfs" -c . | podman_ import - tare.test/box:1
	for name in web short; do
		rm=
		[ $name = web ] || rm=--rm
		podman_ run -d $rm $limits --ulimit nproc=1024:1024 --network host --cgroup-parent "/$parent" --label app=shop \
			--name $name tare.test/box:1 /bin/sleep 1000
		report $name "$(podman_ inspect -f '{{.State.Pid}}' $name)"
	done
}

docker_() { docker -H unix:///run/docker.sock "$@"; }

start_docker() {
	stop() {
		docker_ rm -f web
		kill "$daemon"
		wait "$daemon"
		end "$parent"
	}
	parent=tare-test-docker-$$
	dockerd --data-root "$root/var/lib/docker" --exec-root /run/docker -H unix:///run/docker.sock --pidfile /run/docker.pid \
		-b none --iptables=false --ip6tables=false --ip-forward=false --userland-proxy=false --storage-driver vfs &
	daemon=$!
	await docker_ version
	tar -C "$here/rootfs" -c . | docker_ import - tare.test/box:1
	docker_ run -d $limits --network none --cgroup-parent "/$parent" --label app=shop --name web tare.test/box:1 \
		/bin/sleep 1000
	report web "$(docker_ inspect -f '{{.State.Pid}}' web)"
}

ctr_() { ctr -a "$root/run/containerd/containerd.sock" "$@"; }

# containerd's pods are made by the test, through the socket that kubelets use.
start_containerd() {
	stop() {
		for n in $(ctr_ -n k8s.io task ls -q) $(ctr_ -n k8s.io container ls -q); do
			ctr_ -n k8s.io task rm -f "$n"
			ctr_ -n k8s.io container rm "$n"
		done
		kill "$daemon"
		wait "$daemon"
		end "$parent"
	}
	parent=tare-test-containerd-$$
	cat >"$here/config.toml" <<-T
		version = 2
		root = "$root/var/lib/containerd"
		state = "$root/run/containerd"
		[grpc]
		  address = "$root/run/containerd/containerd.sock"
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "tare.test/box:1"
		  disable_apparmor = true
		  restrict_oom_score_adj = true
		  [plugins."io.containerd.grpc.v1.cri".containerd]
		    snapshotter = "native"
	T
	containerd --config "$here/config.toml" &
	daemon=$!
	await ctr_ version
	ctr_ -n k8s.io images import --no-unpack "$here/image.tar"
	echo "parent /$parent" >&3
}

stop() { :; }
"start_$engine"
echo ready >&3
cat >/dev/null
