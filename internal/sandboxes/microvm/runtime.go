package microvm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/self"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Runtime manages the containers that were created with one root directory.
type Runtime struct{ root string }

// New returns a runtime for a root directory. An empty root means DefaultRoot.
func New(root string) (*Runtime, error) {
	root, err := filepath.Abs(cmp.Or(root, DefaultRoot))
	return &Runtime{root}, fault.Wrap(err, fault.Usage, "--root", "", "not a directory")
}

// Creation holds the arguments of Create.
type Creation struct {
	ID, Bundle string
	// PIDFile is the file to which the pid of the virtual machine is written; empty: none. For a container in a pod, it is
	// the pid of the shim, because engines wait for that process, and take its exit status for the container's.
	PIDFile string
	Options Options
	// The container's streams. The shim keeps them open.
	Stdin, Stdout, Stderr *os.File
}

// Create creates a sandbox with the bundle's container, and returns when everything has been set up. Start then starts
// the container's program. The error has the code fault.Usage if the bundle requires something unsupported, and
// fault.Machine if this machine cannot run it.
func (r *Runtime) Create(ctx context.Context, c Creation) (err error) {
	dir, err := dirOf(c.ID)
	if err != nil {
		return err
	}
	bundle, err := filepath.Abs(c.Bundle)
	if err != nil {
		return err
	}
	spec, config, err := loadSpec(bundle)
	if err != nil {
		return err
	}
	o, err := c.Options.annotated(spec.Annotations)
	if err != nil {
		return err
	}
	if err := canRun(o); err != nil {
		return err
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return err
	}
	self, err := processOf(os.Getpid())
	if err != nil {
		return err
	}
	box := &sandbox{
		ID: c.ID, RuntimeRoot: r.root, Bundle: bundle, OCIVersion: specs.Version, Annotations: spec.Annotations,
		Root: rootOf(spec, bundle), Options: o,
		Status: specs.StateCreating, Created: time.Now().UTC(), Creator: self, Run: runMark(), dir: dir,
		SandboxGroup: sandboxGroup(o, spec.Linux.CgroupsPath, c.ID), OverheadGroup: overheadGroup(o, c.ID),
	}
	if err := os.MkdirAll(sandboxDir, 0o700); err != nil {
		return fault.Wrap(err, fault.Machine, sandboxDir, rootHint, "cannot make a directory for sandboxes")
	}
	others, err := sandboxes()
	if err != nil {
		return err
	}
	if err := box.planGroups(layout, others); err != nil {
		return err
	}
	if err := box.settle(config); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		if now, e := readSandbox(dir); e == nil {
			box = now // the shim has recorded the processes that it started
		}
		err = errors.Join(err, box.destroy())
	}()
	if err := r.startShim(ctx, c, box); err != nil {
		return err
	}
	if c.PIDFile == "" {
		return nil
	}
	now, err := readSandbox(dir)
	if err != nil {
		return err
	}
	if inPod(spec) != "" {
		return writePIDFile(c.PIDFile, now.Shim.PID)
	}
	return writePIDFile(c.PIDFile, now.VMM.PID)
}

// settle creates the sandbox's directory, with its state and the bundle's configuration, atomically: if this process is
// killed while it does so, the name of the directory that is left identifies the process (newName).
func (box *sandbox) settle(config []byte) (err error) {
	dir := box.dir
	box.dir = filepath.Join(filepath.Dir(dir), newName(box.Creator, box.ID))
	defer func() {
		if err != nil {
			err = errors.Join(err, box.remove())
		}
		box.dir = dir
	}()
	if err := os.Mkdir(box.dir, 0o700); err != nil {
		return fault.Wrap(err, fault.Machine, box.dir, rootHint, "cannot make the sandbox's directory")
	}
	if err := errors.Join(box.write(), os.WriteFile(filepath.Join(box.dir, configName), config, 0o600)); err != nil {
		return err
	}
	err = os.Rename(box.dir, dir)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
		return fault.New(fault.Usage, box.ID, "use another id, or delete it: tare microvm delete "+box.ID,
			"a container with this id exists already")
	}
	return err
}

// canRun checks whether this machine can run a sandbox.
func canRun(o Options) error {
	if runtime.GOARCH != "amd64" {
		return fault.New(fault.Machine, runtime.GOARCH, "use another runtime",
			"sandboxes are x86-64 machines, and need such a host")
	}
	if _, err := findQEMU(); err != nil {
		return err
	}
	if o.Rootfs == RootfsShared {
		if err := canShare(); err != nil {
			return err
		}
	}
	_, err := FindKernel(o.Kernel)
	return err
}

// startShim starts the shim, and waits until the sandbox has been created.
func (r *Runtime) startShim(ctx context.Context, c Creation, box *sandbox) error {
	exe, err := self.Path()
	if err != nil {
		return err
	}
	theirs, ours, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	var shim child.Process
	err = child.Start(&shim, child.Command{
		Argv: []string{exe, "microvm", ShimCommand, "-id", c.ID}, Dir: "/", Env: []string{markVariable + "=" + box.dir},
		Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Files: []*os.File{theirs}, Session: true,
	}, child.Options{Name: "the shim", Outlives: true})
	_ = theirs.Close()
	if err != nil {
		return fmt.Errorf("starting the shim: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ours.Close() }) // the shim then assumes that its creator has ended
	defer stop()
	var a answer
	if err := json.NewDecoder(ours).Decode(&a); err != nil {
		_ = ours.Close()
		err = errors.Join(fmt.Errorf("the shim ended: %w", err), ignore(shim.Err()))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	if a.Error != "" {
		return errors.Join(a.err(), ignore(shim.Err()))
	}
	return nil
}

func writePIDFile(name string, pid int) error {
	err := files.Replace(name, []byte(strconv.Itoa(pid)), 0o644)
	return fault.Wrap(err, fault.Usage, "--pid-file", "", "cannot write the file with the pid")
}

// find reads the state of the sandbox with an id. If there is none, or if it belongs to a runtime with another root,
// the error matches fs.ErrNotExist and has the code fault.Usage.
func (r *Runtime) find(id string) (*sandbox, error) {
	dir, err := dirOf(id)
	if err != nil {
		return nil, err
	}
	box, err := readSandbox(dir)
	if err == nil && box.RuntimeRoot != r.root {
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, fault.Usage, id, "see 'tare microvm list'", "there is no such container")
	}
	return box, err
}

// ask sends a request to a shim.
func (box *sandbox) ask(r request) error {
	conn, err := net.Dial("unix", filepath.Join(box.dir, shimSocket))
	if err != nil {
		return errNotRunning(box.ID)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return errNotRunning(box.ID)
	}
	var a answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return errNotRunning(box.ID)
	}
	return a.err()
}

// Start starts the program of a container that has been created, and then runs the bundle's poststart hooks.
func (r *Runtime) Start(id string) error {
	box, err := r.find(id)
	if err != nil {
		return err
	}
	if status := box.status(); status != specs.StateCreated {
		return fault.New(fault.Usage, id, "", "cannot start a container that is %s, not created", status)
	}
	if err := box.ask(request{Op: "start"}); err != nil {
		return err
	}
	spec, _, err := readSpec(filepath.Join(box.dir, configName))
	if err != nil || spec.Hooks == nil {
		return nil // the container may have been deleted in the meantime
	}
	state := box.state()
	state.Status = specs.StateRunning
	return runHooks(spec.Hooks.Poststart, state)
}

// State returns the state of a container.
func (r *Runtime) State(id string) (specs.State, error) {
	box, err := r.find(id)
	if err != nil {
		return specs.State{}, err
	}
	return box.state(), nil
}

// Kill sends a signal to a container's first process, or to all of its processes.
func (r *Runtime) Kill(id string, signal unix.Signal, all bool) error {
	box, err := r.find(id)
	if err != nil {
		return err
	}
	if box.status() == specs.StateStopped {
		if all {
			return nil // as with runc
		}
		return errNotRunning(id)
	}
	return box.ask(request{Op: "kill", Signal: signal, All: all})
}

// ParseSignal parses a signal as kill(1) does: TERM, SIGTERM or 15.
func ParseSignal(s string) (unix.Signal, error) {
	n, err := strconv.Atoi(s)
	named := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG"))
	switch {
	case err == nil && n >= 0 && n <= 64:
		return unix.Signal(n), nil
	case err != nil && named != 0:
		return named, nil
	}
	return 0, fault.New(fault.Usage, s, "use a number from 1 to 64, or a name such as TERM", "no such signal")
}

// Delete removes a container that has stopped or has not been started, and then runs the bundle's poststop hooks. With
// force, it also removes a running container, and returns no error if no container has the ID.
func (r *Runtime) Delete(id string, force bool) error {
	box, err := r.find(id)
	if err != nil {
		if force && errors.Is(err, fs.ErrNotExist) && fault.CodeOf(err) == fault.Usage {
			return nil
		}
		return err
	}
	if status := box.status(); !force && status != specs.StateStopped && status != specs.StateCreated {
		return fault.New(fault.Usage, id, "kill it first, or use --force", "cannot delete a container that is %s", status)
	}
	spec, _, specErr := readSpec(filepath.Join(box.dir, configName))
	state := box.state()
	if err := box.destroy(); err != nil {
		return err
	}
	if specErr == nil && spec.Hooks != nil {
		state.Status = specs.StateStopped
		return runHooks(spec.Hooks.Poststop, state)
	}
	return nil
}

// Wait waits until a container has ended, and returns its exit code, which is 128 plus the signal's number if a signal
// ended the container. If the shim was killed, or the sandbox failed, Wait also returns an error of code fault.Machine.
func (r *Runtime) Wait(id string) (int, error) {
	box, err := r.find(id)
	if err != nil {
		return 0, err
	}
	_, _ = proc.Await(box.Shim.PID, box.Shim.alive, -1) // the result is in the state
	if box, err = r.find(id); err != nil {
		return 0, err
	}
	if box.ExitCode == nil {
		return failedCode, fault.New(fault.Machine, id, "tare clean", "the shim was killed")
	}
	if box.Failure != "" {
		return *box.ExitCode, fault.New(fault.Machine, id, "", "%s", box.Failure)
	}
	return *box.ExitCode, nil
}

// Container is one element of the result of List.
type Container struct {
	specs.State
	Created time.Time `json:"created"`
}

// List returns all containers of the runtime, sorted by id.
func (r *Runtime) List() ([]Container, error) {
	boxes, err := sandboxes()
	var list []Container
	for _, box := range boxes {
		if box.RuntimeRoot != r.root {
			continue
		}
		list = append(list, Container{box.state(), box.Created})
	}
	return list, err
}

// sandboxes reads the states of all sandboxes on this machine. It skips those that cannot be read.
func sandboxes() ([]*sandbox, error) {
	entries, err := os.ReadDir(sandboxDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for sandboxes: %w", err)
	}
	var list []*sandbox
	for _, e := range entries {
		if !e.IsDir() || !validID().MatchString(e.Name()) {
			continue
		}
		if box, err := readSandbox(filepath.Join(sandboxDir, e.Name())); err == nil {
			list = append(list, box)
		}
	}
	slices.SortFunc(list, func(a, b *sandbox) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Features returns the output of the command 'features', as defined by the runtime specification (features.md). Its
// annotations contain the programs and the kernel that sandboxes use here. Features may boot a kernel to find out
// whether KVM works.
func (r *Runtime) Features(ctx context.Context, o Options) (map[string]any, error) {
	notes := map[string]string{}
	features := map[string]any{
		"ociVersionMin": "1.0.0", "ociVersionMax": specs.Version,
		"hooks":        []string{"prestart", "createRuntime", "poststart", "poststop"},
		"mountOptions": slices.Sorted(maps.Keys(mountFlags)),
		"linux": map[string]any{
			"namespaces":   []string{"cgroup", "ipc", "mount", "network", "pid", "uts"},
			"capabilities": capabilities,
			"cgroup":       map[string]bool{"v1": true, "v2": true, "systemd": false, "systemdUser": false},
			"seccomp":      map[string]bool{"enabled": false}, "apparmor": map[string]bool{"enabled": false},
			"selinux": map[string]bool{"enabled": false},
		},
		"annotations": notes,
	}
	note := func(name, v string) { notes[Annotation+name] = v }
	if path, err := findVirtiofsd(); err == nil {
		note("virtiofsd", path)
	} else {
		note("virtiofsd_missing", virtiofsdHint)
	}
	qemu, err := findQEMU()
	if err != nil {
		note("qemu_missing", qemuHint)
		return features, nil
	}
	note("qemu", qemu)
	if version := cmdline.FirstLine(ctx, qemu, "--version"); version != "" {
		note("qemu_version", version)
	}
	kernel, err := FindKernel(o.Kernel)
	if err != nil {
		note("kernel_missing", kernelHint)
		return features, nil
	}
	note("kernel", kernel.Image)
	note("kernel_version", kernel.Version)
	accel, reason, err := chooseAccel(ctx, o.Accel, qemu, kernel)
	note("accel", accel)
	note("accel_reason", reason)
	return features, err
}

// ignore drops the error of a process that is expected to end. Its argument is evaluated because child.Process.Err
// waits until the process has ended.
func ignore(error) error { return nil }
