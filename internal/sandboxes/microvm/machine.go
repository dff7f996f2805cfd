package microvm

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

// The name of QEMU's program, and hints for errors about what a sandbox needs of the host.
const (
	qemuProgram   = "qemu-system-x86_64"
	qemuHint      = "apt-get install qemu-system-x86"
	rootHint      = "run as root, or with CAP_DAC_OVERRIDE"
	virtiofsdHint = "apt-get install qemu-system-common, or pack the root into the guest's memory: --rootfs packed"
)

// findQEMU finds QEMU. The error has the code fault.Machine.
func findQEMU() (string, error) {
	path, err := child.Find(qemuProgram)
	return path, fault.Wrap(err, fault.Machine, "", qemuHint, "no QEMU on this machine")
}

// findVirtiofsd finds virtiofsd, which Debian installs in a directory that only QEMU's tools search.
func findVirtiofsd() (string, error) {
	for _, path := range []string{"/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"} {
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	path, err := child.Find("virtiofsd")
	return path, fault.Wrap(err, fault.Machine, "", virtiofsdHint, "no virtiofsd on this machine")
}

// shareNeeds are the capabilities that sharing a root requires: CAP_SYS_ADMIN for a mount namespace, CAP_SETPCAP so
// that virtiofsd can drop capabilities, and those that virtiofsd keeps (setup_capabilities in
// tools/virtiofsd/passthrough_ll.c of QEMU 7).
var shareNeeds = map[string]uint{
	"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_CHOWN": unix.CAP_CHOWN,
	"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_FOWNER": unix.CAP_FOWNER, "CAP_FSETID": unix.CAP_FSETID,
	"CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID, "CAP_MKNOD": unix.CAP_MKNOD,
	"CAP_SETFCAP": unix.CAP_SETFCAP,
}

// canShare returns an error of code fault.Machine if this process cannot share a container's root with a guest.
func canShare() error {
	if _, err := findVirtiofsd(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(shareNeeds)) {
		if !proc.Capable(shareNeeds[name]) {
			return fault.New(fault.Machine, "--rootfs "+RootfsShared,
				"run as root or with "+name+", or pack the root into the guest's memory: --rootfs packed",
				"virtiofsd lacks rights that it needs")
		}
	}
	return nil
}

// nic is a network interface of the guest: a tap device whose descriptor QEMU inherits.
type nic struct {
	tap *os.File
	mac string
}

// machine is the configuration of QEMU.
type machine struct {
	id        string
	accel     string // kvm or tcg
	cpus      int
	memoryMiB int
	kernel    string // path
	params    string // added to the kernel's command line
	initrd    *os.File
	console   *os.File
	qmp       *os.File
	ports     [4]*os.File // QEMU's ends of the ports: control, standard input, output, error
	fsSocket  string      // virtiofsd's socket; empty if there is none
	nic       *nic
	killed    func(cgroup bool, process string) // called for each OOM kill in the guest; may be nil
}

// portNames are the names of the ports, as in the guest's /sys/class/virtio-ports.
var portNames = [4]string{"tare.control", "tare.stdin", "tare.stdout", "tare.stderr"}

// shareTag is the tag by which the guest mounts the shared file system.
const shareTag = "shared"

// command returns QEMU's command. QEMU inherits m's descriptors.
//
// The name and debug-threads are as in Kata (virtcontainers/qemu.go in kata-containers), so that tools that look for
// sandboxes find the id in "-name sandbox-<id>", and virtual CPUs by the names of their threads.
func (m *machine) command(qemu string) (cmd child.Command) {
	fd := func(f *os.File) string {
		cmd.Files = append(cmd.Files, f)
		return strconv.Itoa(2 + len(cmd.Files))
	}
	cpu := "max"
	if m.accel == AccelKVM {
		cpu = "host"
	}
	args := []string{
		"-name", "sandbox-" + m.id + ",debug-threads=on",
		"-M", "microvm,acpi=on,memory-backend=memory,auto-kernel-cmdline=off", "-accel", m.accel, "-cpu", cpu,
		"-smp", strconv.Itoa(m.cpus), "-m", fmt.Sprintf("%dM", m.memoryMiB),
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,size=%dM,share=on", m.memoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.kernel, "-initrd", "/proc/self/fd/" + fd(m.initrd), "-append", m.cmdline(),
		"-global", "virtio-mmio.force-legacy=false",
		"-chardev", "socket,id=console,fd=" + fd(m.console), "-serial", "chardev:console",
		"-chardev", "socket,id=qmp,fd=" + fd(m.qmp), "-mon", "chardev=qmp,mode=control",
		"-device", "virtio-serial-device",
	}
	for i, port := range m.ports {
		args = append(args, "-chardev", fmt.Sprintf("socket,id=port%d,fd=%s", i+1, fd(port)),
			"-device", fmt.Sprintf("virtserialport,chardev=port%d,nr=%d,name=%s", i+1, i+1, portNames[i]))
	}
	if m.fsSocket != "" {
		args = append(args, "-chardev", "socket,id=fs,path="+escape(m.fsSocket),
			"-device", "vhost-user-fs-device,chardev=fs,tag="+shareTag)
	}
	if m.nic != nil {
		args = append(args, "-netdev", "tap,id=net,fd="+fd(m.nic.tap), "-device",
			"virtio-net-device,netdev=net,mac="+m.nic.mac)
	}
	cmd.Argv = append([]string{qemu}, args...)
	return cmd
}

// cmdline returns the kernel's command line. On an emulated processor, indirect calls need no mitigations, and zeroing
// memory before its use would take a sixth of the kernel's time. The emulated TSC is the host's, so its rate is passed
// to the kernel: a rate that the kernel measured at boot on a busy machine could be wrong by any factor. If the kernel
// panics, it ends the machine by a triple fault, the only reset that this machine type has.
func (m *machine) cmdline() string {
	words := []string{"console=ttyS0", "quiet", "loglevel=3", "panic=-1", "reboot=t", "no_timer_check", "rdinit=/init",
		"rcupdate.rcu_expedited=1", "cryptomgr.notests", "net.ifnames=0", "8250.nr_uarts=1", "audit=0"}
	if m.accel == AccelTCG {
		words = append(words, "mitigations=off", "init_on_alloc=0")
		if khz := tscKHz(); khz > 0 {
			words = append(words, "tsc=reliable", fmt.Sprintf("tsc_early_khz=%d", khz))
		}
	}
	words = append(words, strings.Fields(m.params)...)
	return strings.Join(append(words, "--", "/plan"), " ")
}

// escape doubles commas, because a single comma ends a value in QEMU's options.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }
