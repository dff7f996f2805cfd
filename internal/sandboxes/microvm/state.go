package microvm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/host/proc"
)

// sandboxDir contains the directories of sandboxes, named by id. Ids are unique on the whole machine, because a
// sandbox's processes and control groups are named after them. The state of a sandbox contains the runtime root to
// which its container belongs.
const sandboxDir = "/run/tare-microvm"

// DefaultRoot is the default root directory of a runtime.
const DefaultRoot = sandboxDir

// process identifies a process uniquely: it is proc.Identity in JSON. Older versions of Tare did not record Namespace.
type process struct {
	PID       int    `json:"pid"`
	Start     uint64 `json:"start"` // in the unit of proc.Process
	Namespace uint64 `json:"pid_namespace,omitempty"`
}

func processOf(pid int) (process, error) {
	p, err := proc.FS{}.Process(pid)
	if err != nil {
		return process{}, err
	}
	self, err := proc.FS{}.Identify()
	return process{pid, p.Start, self.Namespace}, err
}

// find returns the pid of the process in this PID namespace, if the process is running.
func (p process) find() (pid int, fate proc.Fate) {
	if p.PID == 0 {
		return 0, proc.Ended
	}
	return proc.FS{}.Find(proc.Identity(p))
}

// alive reports whether the process is running. It returns true if that is unknown.
func (p process) alive() bool {
	_, fate := p.find()
	return fate != proc.Ended
}

// sandbox is the content of state.json in a sandbox's directory. The process that creates the sandbox writes it until
// the shim runs, and then the shim does.
type sandbox struct {
	ID          string               `json:"id"`
	RuntimeRoot string               `json:"runtime_root"` // the root of its Runtime
	Bundle      string               `json:"bundle"`
	OCIVersion  string               `json:"oci_version"`
	Annotations map[string]string    `json:"annotations,omitempty"`
	Status      specs.ContainerState `json:"status"`
	Created     time.Time            `json:"created"`
	Root        string               `json:"root"` // the container's root on the host
	Options     Options              `json:"options"`

	Creator   process `json:"creator"`
	Shim      process `json:"shim"`
	VMM       process `json:"vmm"`
	Virtiofsd process `json:"virtiofsd"`

	Accel         string   `json:"accel,omitempty"`
	AccelReason   string   `json:"accel_reason,omitempty"`
	KernelVersion string   `json:"kernel_version,omitempty"`
	RootfsBy      string   `json:"rootfs_by,omitempty"`
	Groups        []string `json:"groups,omitempty"`  // directories of the control groups that Tare made, parents first
	SandboxGroup  string   `json:"sandbox_group"`     // relative to the hierarchies' mounts
	OverheadGroup string   `json:"overhead_group"`    // empty if there is none
	Network       string   `json:"network,omitempty"` // path of the network namespace
	Links         []link   `json:"links,omitempty"`   // interfaces in that namespace that are connected to the guest
	Run           string   `json:"run,omitempty"`     // the run of Tare to which the sandbox belongs (child.Mark)
	ExitCode      *int     `json:"exit_code"`         // of the container; nil until it has ended
	Failure       string   `json:"failure,omitempty"` // why the container was not created, ended early or was not removed
	OutOfMemory   []Kill   `json:"out_of_memory,omitempty"`
	CreateTook    float64  `json:"create_seconds"` // from the start of the shim until the container was created
	BootTook      float64  `json:"boot_seconds"`   // from the start of QEMU until the guest's first message
	dir           string   // the sandbox's directory
}

var validID = text.LazyRegexp(`^[A-Za-z0-9_+.-]{1,128}$`)

// socketPathMax is the maximum length of the path of a Unix socket, without the zero byte (unix(7)).
const socketPathMax = 107

const (
	stateName  = "state.json"
	shimSocket = "shim.sock"
	fsSocket   = "vhost-fs.sock"
	sharedName = "shared"
)

func dirOf(id string) (string, error) {
	if !validID().MatchString(id) || id == "." || id == ".." {
		return "", fault.New(fault.Usage, id, "use letters, digits and _ + - .", "not a valid container id")
	}
	dir := filepath.Join(sandboxDir, id)
	if len(dir)+1+len(fsSocket) > socketPathMax {
		return "", fault.New(fault.Usage, id, "use a shorter id", "the path of its socket would be too long")
	}
	return dir, nil
}

const stateMax = 4 << 20

// readSandbox reads a sandbox's state. If there is none, the error matches fs.ErrNotExist.
func readSandbox(dir string) (*sandbox, error) {
	return settle(func() (*sandbox, error) {
		b, err := readBounded(filepath.Join(dir, stateName), stateMax)
		if err != nil {
			return nil, err
		}
		s := &sandbox{dir: dir}
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, stateName), err)
		}
		return s, nil
	})
}

// settle reads a state, and reads it again if the processes that change it have ended since. The shim records how the
// container ended just before it exits. A state read before that would lack the exit code, although the container
// already counts as stopped.
func settle(read func() (*sandbox, error)) (*sandbox, error) {
	s, err := read()
	if err == nil && s.Status != specs.StateStopped && s.status() == specs.StateStopped {
		return read()
	}
	return s, err
}

// write replaces the state on disk atomically.
func (s *sandbox) write() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(s.dir, stateName)
	if err := os.WriteFile(name+".new", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the sandbox's state: %w", err)
	}
	return os.Rename(name+".new", name)
}

// status returns the status in the state, or "stopped" if the processes that would update the state have ended.
func (s *sandbox) status() specs.ContainerState {
	if s.Status == specs.StateStopped {
		return s.Status
	}
	if s.Shim.PID == 0 && s.Creator.alive() || s.Shim.alive() {
		return s.Status
	}
	return specs.StateStopped
}

// state returns a sandbox's state as the runtime specification defines it, with further information as annotations. The
// pid is that of the virtual machine's process.
func (s *sandbox) state() specs.State {
	state := specs.State{Version: s.OCIVersion, ID: s.ID, Status: s.status(), Bundle: s.Bundle,
		Annotations: map[string]string{}}
	if state.Status != specs.StateStopped {
		state.Pid = s.VMM.PID
	}
	maps.Copy(state.Annotations, s.Annotations)
	put := func(name, v string) {
		if v != "" {
			state.Annotations[Annotation+name] = v
		}
	}
	put("accel", s.Accel)
	put("accel_reason", s.AccelReason)
	put("kernel_version", s.KernelVersion)
	put("rootfs", s.RootfsBy)
	put("sandbox_cgroup_only", strconv.FormatBool(s.Options.SandboxCgroupOnly))
	put("sandbox_cgroup", s.SandboxGroup)
	put("overhead_cgroup", s.OverheadGroup)
	put("failure", s.Failure)
	if len(s.OutOfMemory) > 0 {
		if text, err := json.Marshal(s.OutOfMemory); err == nil {
			state.Annotations[OutOfMemory] = string(text)
		}
	}
	if s.BootTook > 0 {
		put("boot_seconds", strconv.FormatFloat(s.BootTook, 'f', 3, 64))
		put("create_seconds", strconv.FormatFloat(s.CreateTook, 'f', 3, 64))
	}
	if state.Status != specs.StateStopped {
		for name, p := range map[string]process{"shim_pid": s.Shim, "vmm_pid": s.VMM, "virtiofsd_pid": s.Virtiofsd} {
			if p.PID > 0 {
				put(name, strconv.Itoa(p.PID))
			}
		}
	}
	if s.ExitCode != nil {
		put("exit_code", strconv.Itoa(*s.ExitCode))
	}
	return state
}

// remove removes the sandbox's directory. It removes only files that sandboxes create; if there are others, the
// directory stays.
func (s *sandbox) remove() error {
	var errs []error
	for _, name := range []string{
		shimSocket, fsSocket, stateName + ".new", configName, stateName,
	} {
		errs = append(errs, os.Remove(filepath.Join(s.dir, name)))
	}
	errs = append(errs, s.removeShared(), os.Remove(s.dir))
	for i, err := range errs {
		if errors.Is(err, fs.ErrNotExist) {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// removeShared removes the shared directory. Mounts in it exist only for the shim's children. For this process it
// contains empty directories and files, and removeShared removes only empty ones.
func (s *sandbox) removeShared() error {
	dir := filepath.Join(s.dir, sharedName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			return fmt.Errorf("%s is not empty", path)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// removeSockets removes the files that a sandbox needs only while it runs. One is a file with virtiofsd's pid, which
// virtiofsd names after its socket and leaves behind (fv_socket_lock in tools/virtiofsd/fuse_virtio.c of QEMU 7).
func (s *sandbox) removeSockets() {
	for _, path := range []string{
		filepath.Join(s.dir, shimSocket), filepath.Join(s.dir, fsSocket),
		virtiofsdLock(filepath.Join(s.dir, fsSocket)),
	} {
		_ = os.Remove(path) // it may not exist
	}
}

// runMark returns the run of Tare to which this process belongs, or "" if there is none.
func runMark() string { return os.Getenv(child.Mark) }
