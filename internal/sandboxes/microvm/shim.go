package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// BootTimeout is the default time limit of a guest's boot, and bootTries is the maximum number of attempts to boot. On
// a busy machine, an emulated guest takes many times its usual two seconds.
const (
	BootTimeout = time.Minute
	bootTries   = 3
)

// ShimCommand is the command with which the binary runs as a sandbox's shim.
const ShimCommand = "_shim"

// shimFD is the descriptor of the shim's socket to the process that creates the sandbox.
const shimFD = 3

// markVariable is the environment variable that contains the sandbox's directory. All of the sandbox's processes have
// it.
const markVariable = "TARE_MICROVM"

// shim is the state of the process that runs one sandbox. That process also holds the container's streams. QEMU and
// virtiofsd are its children, and die with it.
type shim struct {
	box  *sandbox
	spec *specs.Spec
	t    thread // in the sandbox's namespaces; it starts the children

	groups  *cgroup.Layout
	vm      *vm
	fs      *child.Process // virtiofsd
	plan    *plan          // the container's plan
	streams sync.WaitGroup

	mu      sync.Mutex // guards box
	stopped context.CancelFunc
}

// answer is the shim's answer to a request, or to its creator.
type answer struct {
	Error string     `json:"error,omitempty"`
	Hint  string     `json:"mend,omitempty"`
	Code  fault.Code `json:"code,omitempty"`
}

func answerOf(err error) answer {
	if err == nil {
		return answer{}
	}
	return answer{err.Error(), fault.HintOf(err), fault.CodeOf(err)}
}

func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return fault.New(a.Code, "", a.Hint, "%s", a.Error)
}

// request is a request to the shim from another process.
type request struct {
	Op     string      `json:"op"` // start or kill
	Signal unix.Signal `json:"signal,omitempty"`
	All    bool        `json:"all,omitempty"`
}

// Shim runs a sandbox's shim (ShimCommand). Its arguments are -id and the id, as for Kata's shim. It returns when the
// sandbox has ended, with the exit code of the container (see Runtime.Wait).
func Shim(args []string) (code int, err error) {
	if len(args) != 2 || args[0] != "-id" {
		return failedCode, fault.New(fault.Usage, ShimCommand, "", "tare calls this command itself")
	}
	dir, err := dirOf(args[1])
	if err != nil {
		return failedCode, err
	}
	// The shim must survive the end of its terminal, and the end of the process that reads the container's output.
	signal.Ignore(unix.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	unix.CloseOnExec(shimFD)
	f := os.NewFile(shimFD, "creator")
	creator, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return failedCode, fmt.Errorf("the shim's socket: %w", err)
	}
	defer creator.Close()
	s := &shim{t: newThread()}
	if s.box, err = readSandbox(dir); err != nil {
		return failedCode, err
	}
	ctx, s.stopped = context.WithCancel(ctx)
	defer s.stopped()

	creating, abandon := context.WithCancel(ctx)
	defer abandon()
	go func() { // if the creator dies, the sandbox is not wanted any more
		_, _ = creator.Read(make([]byte, 1))
		abandon()
	}()
	listener, err := s.create(creating)
	if err != nil {
		s.end(nil, err)
		return failedCode, json.NewEncoder(creator).Encode(answerOf(err)) // the creator reports it
	}
	if err := json.NewEncoder(creator).Encode(answer{}); err != nil {
		s.end(nil, err)
		return failedCode, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.serve(listener)
	}()
	s.wait(ctx)
	err = listener.Close()
	<-served
	return *s.box.ExitCode, err
}

// set changes the sandbox's state and writes it to disk.
func (s *shim) set(change func(*sandbox)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.box)
	return s.box.write()
}

// create creates the sandbox, up to a container that is ready to be started. It returns the socket for requests.
func (s *shim) create(ctx context.Context) (_ net.Listener, err error) {
	began := time.Now()
	self, err := processOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	if err := s.set(func(b *sandbox) { b.Shim = self }); err != nil {
		return nil, err
	}
	box := s.box
	if s.spec, _, err = readSpec(filepath.Join(box.dir, configName)); err != nil {
		return nil, err
	}
	forPod(s.spec)
	if s.groups, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, err
	}
	if err := s.enterGroups(); err != nil {
		return nil, err
	}
	if err := runHooks(s.hostHooks(), box.state()); err != nil {
		return nil, err
	}
	m, archive, list, err := s.machine(ctx)
	if err != nil {
		return nil, err
	}
	l, err := s.boot(ctx, m, archive, list)
	if err != nil {
		return nil, err
	}
	booted := time.Since(s.vm.began)
	if err := s.container(list, l); err != nil {
		return nil, err
	}
	monitor, err := newQMP(s.vm.monitor)
	if err != nil {
		return nil, err
	}
	vcpus, err := monitor.vcpus()
	if err != nil {
		return nil, err
	}
	if !box.Options.SandboxCgroupOnly {
		if err := addThreads(groupHierarchies(s.groups), box.SandboxGroup, vcpus); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", filepath.Join(box.dir, shimSocket))
	if err != nil {
		return nil, fmt.Errorf("listening for requests: %w", err)
	}
	// s.end removes the socket, before others see that the sandbox has stopped.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return listener, s.set(func(b *sandbox) {
		b.Status = specs.StateCreated
		b.BootTook, b.CreateTook = booted.Seconds(), time.Since(began).Seconds()
	})
}

// boot boots the machine. On a busy host, an emulated machine sometimes hangs or panics in its first instructions. boot
// then starts it again, unless the machine was killed.
func (s *shim) boot(ctx context.Context, m *machine, archive []byte, list []bind) (l *link, err error) {
	for try := range bootTries {
		if try > 0 {
			if err := s.takeDown(); err != nil {
				return nil, err
			}
		}
		if l, err = s.start(m, archive, list); err != nil {
			return nil, err
		}
		if err = s.vm.hello(ctx, s.box.Options.BootTimeout); err == nil || ctx.Err() != nil || s.vm.killed() {
			return l, err
		}
	}
	return nil, err
}

// start starts virtiofsd, if the root is shared, and QEMU. It returns the network interface that it connected to the
// guest, or nil if there is none.
func (s *shim) start(m *machine, archive []byte, list []bind) (*link, error) {
	box := s.box
	env := []string{markVariable + "=" + box.dir}
	if box.RootfsBy == RootfsShared {
		if err := s.share(list, env); err != nil {
			return nil, err
		}
		m.fsSocket = filepath.Join(box.dir, fsSocket)
	}
	l, err := s.connect(m)
	if err != nil {
		return nil, err
	}
	qemu, err := findQEMU()
	if err != nil {
		return nil, err
	}
	if s.vm, err = startVM(s.t, m, qemu, archive, env); err != nil {
		return nil, err
	}
	if s.fs != nil {
		go endTogether(s.fs, s.vm)
	}
	vmm, err := processOf(s.vm.PID())
	if err != nil {
		return nil, fmt.Errorf("QEMU ended%s: %w", s.vm.words(), err)
	}
	if err := s.set(func(b *sandbox) { b.VMM = vmm }); err != nil || l == nil {
		return nil, err
	}
	return l, s.t.do(l.connect)
}

// endTogether kills QEMU when virtiofsd ends, because the guest would otherwise wait forever for its files. When QEMU
// exits, it closes its socket to virtiofsd first, so virtiofsd may end shortly before QEMU does.
func endTogether(fs *child.Process, v *vm) {
	select {
	case <-v.Ended():
		return
	case <-fs.Ended():
	}
	if !fs.Status().Signaled() {
		select {
		case <-v.Ended():
			return
		case <-time.After(endGrace):
		}
	}
	v.unserved.Store(true)
	v.Kill()
}

// takeDown ends QEMU and virtiofsd, and removes their sockets and the filters on the network interface.
func (s *shim) takeDown() (err error) {
	if s.vm != nil {
		s.vm.end()
	}
	if s.fs != nil {
		s.fs.Kill()
	}
	for _, l := range s.box.Links {
		err = errors.Join(err, l.disconnect(s.box.Network))
	}
	s.box.removeSockets()
	return err
}

// enterGroups makes the control groups, and enters the group in which everything starts.
func (s *shim) enterGroups() error {
	if err := s.box.makeGroups(); err != nil {
		return err
	}
	if err := s.box.limitGroup(s.groups, s.spec.Linux.Resources); err != nil {
		return err
	}
	if s.box.OverheadGroup != "" {
		return enter(s.groups, s.box.OverheadGroup)
	}
	return enter(s.groups, s.box.SandboxGroup)
}

// machine returns the virtual machine's configuration, its initramfs (a cpio archive), and the container's bind mounts.
func (s *shim) machine(ctx context.Context) (m *machine, archive []byte, list []bind, err error) {
	box := s.box
	kernel, err := FindKernel(box.Options.Kernel)
	if err != nil {
		return nil, nil, nil, err
	}
	qemu, err := findQEMU()
	if err != nil {
		return nil, nil, nil, err
	}
	accel, reason, err := chooseAccel(ctx, box.Options.Accel, qemu, kernel)
	if err != nil {
		return nil, nil, nil, err
	}
	by := box.Options.Rootfs
	if by == RootfsAuto {
		by = RootfsShared
		if canShare() != nil {
			by = RootfsPacked
		}
	}
	if list, err = binds(s.spec); err != nil {
		return nil, nil, nil, err
	}
	first, err := firstFS(kernel, openPorts(box.Options.BootTimeout))
	if err != nil {
		return nil, nil, nil, err
	}
	memory := box.Options.MemoryMiB
	if by == RootfsPacked {
		if len(list) > 0 {
			return nil, nil, nil, fault.New(fault.Usage, list[0].source, virtiofsdHint,
				"bind mounts need the root to be shared, not packed")
		}
		packed, err := pack(first, box.Root)
		if err != nil {
			return nil, nil, nil, err
		}
		memory += 2 * int(packed>>20) // for the archive and, while it is unpacked, for its files
	}
	archive = first.Bytes()
	memory += int(memoryLimit(s.spec) >> 20)
	m = &machine{killed: s.killed(memory), id: box.ID, accel: accel, cpus: cpus(box.Options, s.spec), memoryMiB: memory,
		kernel: kernel.Image, params: box.Options.KernelParams}
	return m, archive, list, s.set(func(b *sandbox) {
		b.Accel, b.AccelReason, b.RootfsBy = accel, reason, by
		b.KernelVersion = kernel.Version
	})
}

// cpus returns the number of virtual CPUs: Options.CPUs or, if that is 0, the container's CPU quota, rounded up, or 1
// if it has none. It is at most the number of CPUs that are available to this process.
func cpus(o Options, spec *specs.Spec) int {
	n := 1
	if r := spec.Linux.Resources; r != nil && r.CPU != nil && r.CPU.Quota != nil && *r.CPU.Quota > 0 {
		period := int64(100_000)
		if r.CPU.Period != nil && *r.CPU.Period > 0 {
			period = int64(*r.CPU.Period)
		}
		n = int(min((*r.CPU.Quota+period-1)/period, 64))
	}
	if o.CPUs > 0 {
		n = o.CPUs
	}
	return max(1, min(n, runtime.NumCPU()))
}

// share starts virtiofsd on a directory below which the container's root and its bind mounts are mounted. The mounts
// are in a mount namespace of the shim's children, so that they disappear with the children.
func (s *shim) share(list []bind, env []string) error {
	program, err := findVirtiofsd()
	if err != nil {
		return err
	}
	shared := filepath.Join(s.box.dir, sharedName)
	if s.fs == nil { // otherwise an earlier attempt has mounted it
		if err := s.mountShared(shared, append([]bind{s.root(list)}, list...)); err != nil {
			return err
		}
	}
	if s.fs, err = startVirtiofsd(s.t, program, filepath.Join(s.box.dir, fsSocket), shared, env); err != nil {
		return err
	}
	daemon, err := processOf(s.fs.PID())
	if err != nil {
		return fmt.Errorf("virtiofsd ended: %w", err)
	}
	return s.set(func(b *sandbox) { b.Virtiofsd = daemon })
}

// root returns the bind mount of the container's root, which is read-only if the bundle says so. Mounts inside it need
// mountpoints, which the guest would otherwise create, so root creates them. If one cannot be created, for example
// because a link leads out of the root, the bind mount stays writable.
func (s *shim) root(list []bind) bind {
	all := bind{source: s.box.Root, name: "rootfs", dir: true}
	if !s.spec.Root.Readonly {
		return all
	}
	root, err := os.OpenRoot(s.box.Root)
	if err != nil {
		return all
	}
	defer root.Close()
	bound := 0
	for _, m := range append(slices.Clone(s.spec.Mounts), specs.Mount{Destination: s.spec.Process.Cwd}) {
		isFile := false
		if o, err := mountOptions(m.Options); err == nil && isBind(m, o) && bound < len(list) {
			isFile = !list[bound].dir
			bound++
		}
		if err := makePlace(root, m.Destination, isFile); err != nil {
			return all
		}
	}
	all.readonly = true
	return all
}

// makePlace creates a directory or an empty file in root, unless it exists.
func makePlace(root *os.Root, at string, isFile bool) error {
	name := strings.TrimPrefix(path.Clean("/"+at), "/")
	if name == "" {
		return nil
	}
	if !isFile {
		return root.MkdirAll(name, 0o755)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// mountShared mounts each of the given directories and files below the directory shared, at its name. It does so in a
// new mount namespace, which only the shim's thread and the processes started from it are in.
func (s *shim) mountShared(shared string, all []bind) error {
	var err error
	if err := os.Mkdir(shared, 0o755); err != nil {
		return err
	}
	for _, b := range all {
		at := filepath.Join(shared, b.name)
		if b.dir {
			err = os.Mkdir(at, 0o755)
		} else {
			err = os.WriteFile(at, nil, 0o600)
		}
		if err != nil {
			return fmt.Errorf("making the place of %s: %w", b.source, err)
		}
	}
	return s.t.do(func() error {
		// CLONE_NEWNS implies CLONE_FS (unshare(2)): the thread gets a separate working directory and root.
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			return fmt.Errorf("making a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return fmt.Errorf("keeping mounts to the sandbox: %w", err)
		}
		for _, b := range all {
			at := filepath.Join(shared, b.name)
			if err := unix.Mount(b.source, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("sharing %s: %w", b.source, err)
			}
			if !b.readonly {
				continue
			}
			// The guest's kernel also mounts it read-only, but the guest can change that, and files in a root may be hard links
			// to programs of this machine.
			attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
			err := unix.MountSetattr(-1, at, unix.AT_RECURSIVE, &attr)
			if err == unix.ENOSYS { // before Linux 5.12
				err = unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
			}
			if err != nil {
				return fmt.Errorf("sharing %s read-only: %w", b.source, err)
			}
		}
		return nil
	})
}

// connect makes the machine's tap device in the bundle's network namespace, in which QEMU will run, and returns the
// interface to which link.connect will connect it. It returns nil if the bundle asks for a new network namespace, or if
// no interface in the namespace has addresses. The guest then has only a loopback interface.
func (s *shim) connect(m *machine) (l *link, err error) {
	path := networkPath(s.spec)
	if path == "" {
		return nil, nil
	}
	err = s.t.do(func() error {
		namespace, err := joinNetwork(path)
		if err != nil {
			return err
		}
		if l, err = findLink(namespace); l == nil {
			return err
		}
		if err := l.free(); err != nil {
			if inPod(s.spec) != "" {
				err = errSecond(err)
			}
			return err
		}
		tap, err := l.makeTap()
		m.nic = &nic{tap, l.mac}
		return err
	})
	if err != nil || l == nil {
		return nil, err
	}
	return l, s.set(func(b *sandbox) { b.Network, b.Links = path, []link{*l} })
}

// container prepares the guest, and then the container, up to executing its program.
func (s *shim) container(list []bind, l *link) error {
	a := s.vm.agent
	if err := a.run(networkPlan(l)); err != nil {
		return fmt.Errorf("the guest's network: %w", err)
	}
	if err := a.run(machinePlan(s.spec, s.box.RootfsBy == RootfsShared)); err != nil {
		return fmt.Errorf("readying the guest: %w", err)
	}
	env := environment(s.spec.Process, s.box.Root)
	var err error
	if s.plan, err = containerPlan(s.spec, list, env); err != nil {
		return err
	}
	s.carry()
	if err := a.spawn(namespaces, s.plan); err != nil {
		return fault.Wrap(err, fault.Usage, s.box.Bundle, "", "cannot create the container")
	}
	return nil
}

// carry forwards the container's streams.
func (s *shim) carry() {
	for i, to := range []io.Writer{os.Stdout, os.Stderr} {
		port := s.vm.streams[1+i]
		s.streams.Go(func() { _ = receiveFrames(to, port) }) // ends with the machine, or earlier
	}
	port := s.vm.streams[0]
	go func() { _ = sendFrames(port, os.Stdin) }() // ends with the shim
	go func() {
		// The guest sends only one message on this port: that the container's process has stopped reading. Standard input is
		// then replaced, which closes the shim's end of it, so that the program that writes to the container notices: once
		// the current read has ended, its next write fails.
		if _, err := io.ReadFull(port, make([]byte, 4)); err != nil {
			return
		}
		if null, err := os.Open(os.DevNull); err == nil {
			_ = unix.Dup3(int(null.Fd()), 0, 0)
			_ = null.Close()
		}
	}()
}

// serve answers requests until the listener is closed.
func (s *shim) serve(listener net.Listener) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer conn.Close()
			var r request
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			if err := json.NewDecoder(io.LimitReader(conn, 4096)).Decode(&r); err != nil {
				return
			}
			_ = json.NewEncoder(conn).Encode(answerOf(s.do(r)))
		})
	}
}

func (s *shim) do(r request) error {
	switch r.Op {
	case "start":
		s.mu.Lock()
		status := s.box.Status
		s.mu.Unlock()
		if status != specs.StateCreated {
			return fault.New(fault.Usage, s.box.ID, "", "cannot start a container that is %s, not created", status)
		}
		if err := s.vm.agent.release(s.plan); err != nil {
			return fault.Wrap(err, fault.Usage, s.box.Bundle, "", "cannot start the container")
		}
		return s.set(func(b *sandbox) {
			if b.Status == specs.StateCreated {
				b.Status = specs.StateRunning
			}
		})
	case "kill":
		err := s.vm.agent.signal(r.Signal, r.All)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, errGone) {
			return errNotRunning(s.box.ID)
		}
		return fault.Wrap(err, fault.Usage, s.box.ID, "", "sending the signal %d", r.Signal)
	}
	return fault.New(fault.Usage, r.Op, "", "no such request")
}

// wait waits until the container or its machine ends, or a signal ends the shim, and then takes everything down.
func (s *shim) wait(ctx context.Context) {
	select {
	case status := <-s.vm.agent.exit:
		s.streams.Wait()
		s.end(&status, nil)
	case <-s.vm.Ended():
		s.end(nil, s.whyEnded())
	case <-s.vm.agent.gone:
		select { // the agent may be gone because QEMU has ended
		case <-s.vm.Ended():
			s.end(nil, s.whyEnded())
		case <-time.After(endGrace):
			s.end(nil, fmt.Errorf("the guest's first process: %w", s.vm.agent.why))
		}
	case <-ctx.Done():
		s.end(nil, errors.New("the shim received SIGTERM or SIGINT"))
	}
}

// whyEnded returns the reason why QEMU has ended. QEMU and virtiofsd each end when the other does, so the reason
// depends on which of them ended first.
func (s *shim) whyEnded() error {
	if s.vm.unserved.Load() {
		status := s.fs.Status()
		if status.Signaled() {
			return fmt.Errorf("virtiofsd ended: %s", status.Signal())
		}
		return fmt.Errorf("virtiofsd ended with exit code %d: %s", status.ExitStatus(), s.fs.Tail())
	}
	how := ""
	if status, ok := s.vm.exit(); ok && status.Signaled() {
		how = ": " + status.Signal().String()
	}
	return fmt.Errorf("QEMU ended%s%s", how, s.vm.words())
}

// failedCode is the exit code of a container whose machine ended without reporting one.
const failedCode = 255

// end takes the sandbox down, and records how the container ended: its wait status, or an error. The sandbox's state,
// groups and directory stay until Delete removes them.
func (s *shim) end(status *uint32, why error) {
	failure := ""
	if err := s.takeDown(); err != nil {
		failure = err.Error()
	}
	s.streams.Wait()
	code := failedCode
	if status != nil {
		w := unix.WaitStatus(*status)
		if code = w.ExitStatus(); w.Signaled() {
			code = 128 + int(w.Signal())
		}
	}
	if why != nil {
		failure = why.Error()
	}
	_ = s.set(func(b *sandbox) { b.Status, b.ExitCode, b.Failure = specs.StateStopped, &code, failure })
}

func errNotRunning(id string) error {
	return fault.New(fault.Usage, id, "", "the container is not running")
}
