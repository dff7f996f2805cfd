#!/bin/sh
# The first process of a test machine: sets up what a distribution would, runs /script, and powers off.
# The kernel log, this script's complaints and /script's standard error go to the first serial port; the framed standard output
# of /script goes to the second, where nothing else writes.

export PATH=/bin:/sbin:/usr/bin:/usr/sbin

# The kernel lets nobody change the root where that is its first file system, and runtimes do so for each container.
if [ "$tare_containers" = true ]; then
	mkdir /new
	mount -t ramfs root /new # what is mapped of it is page cache, and not shared memory
	for each in /*; do
		[ "$each" = /new ] || cp -a "$each" /new/
	done
	tare_containers=done exec switch_root /new /init
fi

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t bpf bpf /sys/fs/bpf
mount -t tracefs tracefs /sys/kernel/tracing
ip link set lo up
hostname tare-vm

mount_v2() { # directory
	mkdir -p "$1"
	mount -t cgroup2 cgroup2 "$1"
}

mount_v1() { # each controller that this kernel has, apart
	mount -t tmpfs cgroup /sys/fs/cgroup
	for controller in cpu cpuacct memory pids; do
		mkdir "/sys/fs/cgroup/$controller"
		mount -t cgroup -o "$controller" "$controller" "/sys/fs/cgroup/$controller"
	done
}

# tare_cgroups comes from the kernel command line: what the kernel does not know itself, it puts into our environment.
case "$tare_cgroups" in
v2)
	mount_v2 /sys/fs/cgroup
	# As systemd does; without it no child of the root has a CPU or memory controller.
	echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
	;;
v1) mount_v1 ;;
hybrid)
	mount_v1
	mount_v2 /sys/fs/cgroup/unified
	;;
none) ;;
*) echo "init: no cgroup layout is called '$tare_cgroups'" ;;
esac

stty -F /dev/ttyS1 raw -echo
cd /root || exit
echo "tare-vm: begin" >/dev/ttyS1
HOME=/root sh /script </dev/null >/dev/ttyS1
echo "tare-vm: end $?" >/dev/ttyS1
# The port is drained when the last writer closes it, so nothing is lost here.
poweroff -f
