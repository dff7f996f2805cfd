package microvm

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// rlimits maps the limits of processes to their numbers (getrlimit(2)).
var rlimits = map[string]int{
	"RLIMIT_CPU": 0, "RLIMIT_FSIZE": 1, "RLIMIT_DATA": 2, "RLIMIT_STACK": 3, "RLIMIT_CORE": 4, "RLIMIT_RSS": 5,
	"RLIMIT_NPROC": 6, "RLIMIT_NOFILE": 7, "RLIMIT_MEMLOCK": 8, "RLIMIT_AS": 9, "RLIMIT_LOCKS": 10,
	"RLIMIT_SIGPENDING": 11, "RLIMIT_MSGQUEUE": 12, "RLIMIT_NICE": 13, "RLIMIT_RTPRIO": 14, "RLIMIT_RTTIME": 15,
}

var deviceTypes = map[string]int{"c": unix.S_IFCHR, "u": unix.S_IFCHR, "b": unix.S_IFBLK, "p": unix.S_IFIFO}

// capabilities are the kernel's capabilities, indexed by number (include/uapi/linux/capability.h).
var capabilities = strings.Fields(`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL
	CAP_SETGID CAP_SETUID CAP_SETPCAP CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN
	CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT
	CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE
	CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM
	CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF CAP_CHECKPOINT_RESTORE`)

// capabilityBits are the capability sets of a process as bit masks.
type capabilityBits struct{ bounding, effective, inheritable, permitted, ambient uint64 }

// capabilitySets converts capability sets to bit masks. Without a configuration, all sets are empty, as with runc. An
// unknown name is an error.
func capabilitySets(c *specs.LinuxCapabilities) (capabilityBits, error) {
	var bits capabilityBits
	if c == nil {
		return bits, nil
	}
	for _, set := range []struct {
		to    *uint64
		names []string
	}{
		{&bits.bounding, c.Bounding}, {&bits.effective, c.Effective}, {&bits.inheritable, c.Inheritable},
		{&bits.permitted, c.Permitted}, {&bits.ambient, c.Ambient},
	} {
		for _, name := range set.names {
			n := slices.Index(capabilities, name)
			if n < 0 {
				return bits, fmt.Errorf("process.capabilities: unknown capability %q", name)
			}
			*set.to |= 1 << n
		}
	}
	return bits, nil
}

// mountFlags maps mount options to the flags that they set and clear.
var mountFlags = map[string]struct {
	set, clear uintptr
}{
	"ro": {set: unix.MS_RDONLY}, "rw": {clear: unix.MS_RDONLY},
	"nosuid": {set: unix.MS_NOSUID}, "suid": {clear: unix.MS_NOSUID},
	"nodev": {set: unix.MS_NODEV}, "dev": {clear: unix.MS_NODEV},
	"noexec": {set: unix.MS_NOEXEC}, "exec": {clear: unix.MS_NOEXEC},
	"sync": {set: unix.MS_SYNCHRONOUS}, "async": {clear: unix.MS_SYNCHRONOUS},
	"dirsync": {set: unix.MS_DIRSYNC}, "mand": {set: unix.MS_MANDLOCK}, "nomand": {clear: unix.MS_MANDLOCK},
	"noatime": {set: unix.MS_NOATIME}, "atime": {clear: unix.MS_NOATIME},
	"nodiratime": {set: unix.MS_NODIRATIME}, "diratime": {clear: unix.MS_NODIRATIME},
	"relatime": {set: unix.MS_RELATIME}, "norelatime": {clear: unix.MS_RELATIME},
	"strictatime": {set: unix.MS_STRICTATIME}, "nostrictatime": {clear: unix.MS_STRICTATIME},
	"bind": {set: unix.MS_BIND}, "rbind": {set: unix.MS_BIND | unix.MS_REC}, "defaults": {},
	// Mount propagation from the host does not reach into the sandbox, so these options have no effect.
	"private": {}, "rprivate": {}, "slave": {}, "rslave": {},
}

// mountOption holds the parsed options of one mount.
type mountOption struct {
	flags uintptr
	data  string
}

func mountOptions(list []string) (mountOption, error) {
	var o mountOption
	var data []string
	for _, option := range list {
		f, ok := mountFlags[option]
		switch {
		case ok:
			o.flags = o.flags&^f.clear | f.set
		case slices.Contains([]string{"shared", "rshared", "unbindable", "runbindable", "idmap", "ridmap", "tmpcopyup"},
			option),
			strings.Contains(option, "\x00"):
			return o, fmt.Errorf("the option %q is not supported", option)
		default:
			data = append(data, option)
		}
	}
	o.data = strings.Join(data, ",")
	return o, nil
}

func isBind(m specs.Mount, o mountOption) bool { return m.Type == "bind" || o.flags&unix.MS_BIND != 0 }

// bind is a file or directory of the host that is mounted into the container.
type bind struct {
	source   string // on the host
	name     string // relative to the shared directory
	dir      bool
	readonly bool
}

// binds returns the bind mounts of a bundle, in order.
func binds(s *specs.Spec) ([]bind, error) {
	var list []bind
	for _, m := range s.Mounts {
		o, err := mountOptions(m.Options)
		if err != nil || !isBind(m, o) {
			continue
		}
		info, err := os.Stat(m.Source)
		if err != nil {
			return nil, err
		}
		readonly := o.flags&unix.MS_RDONLY != 0
		list = append(list, bind{m.Source, fmt.Sprintf("mount-%d", len(list)), info.IsDir(), readonly})
	}
	return list, nil
}

// firstBind is the register for the descriptor of the first bind mount.
const firstBind register = 16

// namespaces are the container's namespaces within the guest, as flags for clone(2). The container always has a PID
// namespace, because all of its processes end with that namespace. It uses the guest's network.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

const guestCgroups = "/cgroups"

// machinePlan returns the plan that prepares the guest for the container: it mounts shared files, and makes control
// groups.
func machinePlan(s *specs.Spec, shared bool) *plan {
	p := &plan{}
	// While it boots, the kernel logs harmless messages as errors. From now on, errors are printed, such as reports of
	// killed processes: see killLine.
	p.write("/proc/sys/kernel/printk", "4")
	if shared {
		p.mount(shareTag, guestShare, "virtiofs", 0, "")
	}
	p.mkdir(guestCgroups, 0o755)
	p.mount("cgroup2", guestCgroups, "cgroup2", 0, "")
	p.write(guestCgroups+"/cgroup.subtree_control", "+memory +pids +cpu")
	p.mkdir(guestCgroups+"/container", 0o755)
	if r := s.Linux.Resources; r != nil {
		set := func(file string, v int64) {
			value := "max"
			if v > 0 {
				value = strconv.FormatInt(v, 10)
			}
			p.write(guestCgroups+"/container/"+file, value)
		}
		if m := r.Memory; m != nil {
			if m.Limit != nil {
				set("memory.max", *m.Limit)
			}
			if m.Reservation != nil {
				set("memory.low", *m.Reservation)
			}
		}
		if r.Pids != nil && r.Pids.Limit != nil {
			set("pids.max", *r.Pids.Limit)
		}
	}
	return p
}

// containerPlan returns the plan of the container's first process, which ends by executing the program. env is the
// program's environment.
func containerPlan(s *specs.Spec, list []bind, env []string) (*plan, error) {
	p := &plan{}
	if v := s.Process.OOMScoreAdj; v != nil {
		p.write("/proc/self/oom_score_adj", strconv.Itoa(*v))
	}
	p.write(guestCgroups+"/container/cgroup.procs", "0")
	p.add("making a control group namespace", sysUnshare, unix.CLONE_NEWCGROUP)
	p.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	p.mount(guestShare+"/rootfs", guestRoot, "", unix.MS_BIND|unix.MS_REC, "")
	for i, b := range list {
		const openTreeClone, atRecursive = 1, 0x8000 // OPEN_TREE_CLONE, AT_RECURSIVE
		p.add("taking hold of "+b.source, sysOpenTree, unix.AT_FDCWD, guestShare+"/"+b.name,
			openTreeClone|atRecursive|unix.O_CLOEXEC).into = firstBind + register(i)
	}
	// pivot_root(2) cannot replace the root of a machine that booted from an initramfs, so the container's root is mounted
	// over it.
	p.add("entering the root", sysChdir, guestRoot)
	p.mount(".", "/", "", unix.MS_MOVE, "")
	p.add("changing the root", sysChroot, ".")
	p.add("changing the root", sysChdir, "/")
	if err := p.mounts(s, list); err != nil {
		return nil, err
	}
	p.devices(s.Linux.Devices)
	if s.Hostname != "" {
		p.add("setting the host name", sysSethostname, s.Hostname, len(s.Hostname))
	}
	if s.Domainname != "" {
		p.add("setting the domain name", sysSetdomainname, s.Domainname, len(s.Domainname))
	}
	for key, v := range s.Linux.Sysctl {
		p.write("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), v)
	}
	p.mkdirs(s.Process.Cwd)
	for _, dir := range s.Linux.ReadonlyPaths {
		absent := errnos{unix.ENOENT, unix.ENOTDIR, unix.EINVAL}
		p.mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, "").ignore = absent
		p.mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_REC, "").ignore = absent
	}
	for _, name := range s.Linux.MaskedPaths {
		// The first call succeeds for a file, and the second for a directory. The other call fails.
		other := errnos{unix.ENOENT, unix.ENOTDIR}
		p.mount("/dev/null", name, "", unix.MS_BIND, "").ignore = other
		p.mount("tmpfs", name, "tmpfs", unix.MS_RDONLY, "").ignore = other
	}
	if s.Root.Readonly {
		p.mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	p.credentials(s.Process)
	p.program(s.Process, env)
	return p, nil
}

// mkdirs makes a directory and its parents.
func (p *plan) mkdirs(dir string) {
	for i, c := range dir {
		if c == '/' && i > 0 {
			p.mkdir(dir[:i], 0o755)
		}
	}
	if dir != "/" {
		p.mkdir(dir, 0o755)
	}
}

func (p *plan) mounts(s *specs.Spec, list []bind) error {
	bound := 0
	for _, m := range s.Mounts {
		o, err := mountOptions(m.Options)
		if err != nil {
			return err
		}
		to := path.Clean(m.Destination)
		if isBind(m, o) {
			b := list[bound]
			if b.dir {
				p.mkdirs(to)
			} else {
				p.mkdirs(path.Dir(to))
				p.add("making the file "+to, sysOpen, to, unix.O_CREAT|unix.O_CLOEXEC, 0o644).into = scratch
				p.add("closing "+to, sysClose, scratch)
			}
			const fromEmptyPath = 4 // MOVE_MOUNT_F_EMPTY_PATH
			p.add("binding "+b.source+" to "+to, sysMoveMount, firstBind+register(bound), "", unix.AT_FDCWD, to,
				fromEmptyPath)
			if flags := o.flags &^ (unix.MS_BIND | unix.MS_REC); flags != 0 {
				p.mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
			}
			bound++
			continue
		}
		p.mkdirs(to)
		switch m.Type {
		case "cgroup", "cgroup2":
			p.mount("cgroup2", to, "cgroup2", o.flags, "")
		case "tmpfs":
			// A read-only mount is writable at first, because it must be filled: with the devices, if it is /dev.
			p.mount(m.Source, to, m.Type, o.flags&^unix.MS_RDONLY, o.data)
		default:
			p.mount(m.Source, to, m.Type, o.flags, o.data)
		}
	}
	p.mkdirs("/dev")
	p.defaultDevices()
	for _, m := range s.Mounts {
		if o, err := mountOptions(m.Options); err == nil && m.Type == "tmpfs" && o.flags&unix.MS_RDONLY != 0 {
			p.mount("", path.Clean(m.Destination), "", unix.MS_REMOUNT|unix.MS_BIND|o.flags, "")
		}
	}
	return nil
}

// defaultDevices makes the devices that the specification requires in every container, and the links that runc makes.
func (p *plan) defaultDevices() {
	for _, d := range []struct {
		path         string
		major, minor uint32
	}{
		{"/dev/null", 1, 3}, {"/dev/zero", 1, 5}, {"/dev/full", 1, 7}, {"/dev/random", 1, 8}, {"/dev/urandom", 1, 9},
		{"/dev/tty", 5, 0},
	} {
		p.device(d.path, unix.S_IFCHR, d.major, d.minor, 0o666, 0, 0)
	}
	for _, l := range [][2]string{
		{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"}, {"pts/ptmx", "/dev/ptmx"},
	} {
		p.add("linking "+l[1], sysSymlink, l[0], l[1]).ignore = errnos{unix.EEXIST}
	}
}

func (p *plan) device(name string, kind int, major, minor uint32, mode, uid, gid int) {
	p.add("making the device "+name, sysMknod, name, kind|mode, int(unix.Mkdev(major, minor))).ignore =
		errnos{unix.EEXIST}
	p.add("changing the mode of "+name, sysChmod, name, mode)
	p.add("changing the owner of "+name, sysChown, name, uid, gid)
}

func (p *plan) devices(list []specs.LinuxDevice) {
	for _, d := range list {
		mode, uid, gid := 0o666, 0, 0
		if d.FileMode != nil {
			mode = int(d.FileMode.Perm())
		}
		if d.UID != nil {
			uid = int(*d.UID)
		}
		if d.GID != nil {
			gid = int(*d.GID)
		}
		p.mkdirs(path.Dir(d.Path))
		p.device(d.Path, deviceTypes[d.Type], uint32(d.Major), uint32(d.Minor), mode, uid, gid)
	}
}

// credentials sets the process's limits, user, groups and capabilities.
func (p *plan) credentials(proc *specs.Process) {
	le := binary.LittleEndian
	for _, r := range proc.Rlimits {
		p.add("setting "+r.Type, sysPrlimit64, 0, rlimits[r.Type],
			le.AppendUint64(le.AppendUint64(nil, r.Soft), r.Hard), 0)
	}
	mask := 0o022
	if u := proc.User.Umask; u != nil {
		mask = int(*u)
	}
	p.add("setting the umask", sysUmask, mask)
	p.add("entering the working directory "+proc.Cwd, sysChdir, proc.Cwd)
	bits, _ := capabilitySets(proc.Capabilities) // cannot fail: check has already parsed them
	for n := range capabilities {
		if bits.bounding&(1<<n) == 0 {
			p.add("dropping "+capabilities[n], sysPrctl, unix.PR_CAPBSET_DROP, n).ignore = errnos{unix.EINVAL}
		}
	}
	var groups []byte
	for _, g := range proc.User.AdditionalGids {
		groups = le.AppendUint32(groups, g)
	}
	p.add("setting the groups", sysSetgroups, len(proc.User.AdditionalGids), groups)
	gid, uid := int(proc.User.GID), int(proc.User.UID)
	for fd := range 3 {
		p.add("giving the streams to the user", sysFchown, fd, uid, gid) // for programs that open /dev/stdout
	}
	p.add("setting the group", sysSetresgid, gid, gid, gid)
	p.add("keeping capabilities", sysPrctl, unix.PR_SET_KEEPCAPS, 1)
	p.add("setting the user", sysSetresuid, uid, uid, uid)
	header := le.AppendUint32(le.AppendUint32(nil, unix.LINUX_CAPABILITY_VERSION_3), 0)
	var sets []byte
	for shift := 0; shift < 64; shift += 32 {
		for _, set := range []uint64{bits.effective, bits.permitted, bits.inheritable} {
			sets = le.AppendUint32(sets, uint32(set>>shift))
		}
	}
	p.add("setting the capabilities", sysCapset, header, sets)
	for n := range capabilities {
		if bits.ambient&(1<<n) != 0 {
			// A capability that is not inheritable cannot be ambient. 'runc spec' writes such configurations, and runc ignores
			// the error.
			c := p.add("raising the ambient "+capabilities[n], sysPrctl,
				unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, n, 0, 0)
			c.ignore = errnos{unix.EPERM}
		}
	}
	if proc.NoNewPrivileges {
		p.add("giving up new privileges", sysPrctl, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
}

// program finds the program, reports that everything is ready, and executes the program once the process is released.
func (p *plan) program(proc *specs.Process, env []string) {
	paths := candidates(proc.Args[0], env)
	absent := errnos{unix.ENOENT, unix.EACCES, unix.ENOTDIR}
	what := fmt.Sprintf("looking for the program %q", proc.Args[0])
	for i, path := range paths {
		c := p.add(what, sysFaccessat, unix.AT_FDCWD, path, unix.X_OK)
		if c.skip = len(paths) - 1 - i; c.skip > 0 {
			c.ignore = absent
		}
	}
	p.add("getting ready", opReady)
	for i, path := range paths {
		c := p.add(fmt.Sprintf("running %q", proc.Args[0]), sysExecve, path, proc.Args, env)
		if i < len(paths)-1 {
			c.ignore = absent
		}
	}
}

// candidates returns the paths at which the program may be, according to PATH in its environment.
func candidates(program string, env []string) []string {
	if strings.Contains(program, "/") {
		return []string{program}
	}
	var list []string
	for dir := range strings.SplitSeq(lookup(env, "PATH"), ":") {
		list = append(list, path.Join("/", dir, program))
	}
	return list
}

// lookup returns the value of a variable in an environment. The last occurrence counts.
func lookup(env []string, name string) (value string) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// environment returns the process's environment. If the bundle does not set HOME, it comes from /etc/passwd in the
// container's root, as with runc.
func environment(proc *specs.Process, rootfs string) []string {
	env := slices.Clone(proc.Env)
	if lookup(env, "HOME") == "" {
		env = append(env, "HOME="+homeOf(rootfs, proc.User.UID))
	}
	return env
}

const passwdMax = 1 << 20

func homeOf(rootfs string, uid uint32) string {
	root, err := os.OpenRoot(rootfs) // so that links cannot lead out of it
	if err != nil {
		return "/"
	}
	defer root.Close()
	f, err := root.OpenFile("etc/passwd", os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a named pipe must not block
	if err != nil {
		return "/"
	}
	defer f.Close()
	b := make([]byte, passwdMax)
	n, _ := f.Read(b) // an unreadable file counts as empty
	for line := range strings.Lines(string(b[:n])) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) == 7 && fields[2] == strconv.FormatUint(uint64(uid), 10) && path.IsAbs(fields[5]) {
			return fields[5]
		}
	}
	return "/"
}
