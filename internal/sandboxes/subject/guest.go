// Package subject is the subject "sandbox": a container, a gVisor sandbox or a virtual machine in which applications
// run. Any runtime with runc's command line can create it, from a bundle that Tare builds. The cost is reported by
// process, by component and by control group. The runtime `none` runs the application without a sandbox. It is measured
// in the same way, and is the baseline.
package subject

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/self"
	"tare/internal/sandboxes/oci"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/sandbox"
)

// name is the subject's name in specs.
const name = "sandbox"

// The settings.
const (
	settingRuntime  = "runtime"
	settingMemory   = "memory"
	settingOnly     = "sandbox-cgroup-only"
	settingNetwork  = "network"
	settingOptional = "optional"
	settingReady    = "ready-timeout"
)

// none is the name of the runtime that runs applications without a sandbox.
const none = "none"

const (
	ownNetwork  = "own"
	hostNetwork = "host"
)

// settings are the subject's own settings. init adds the known runtimes, and the settings of each.
var settings = []param.Setting{
	{Name: settingRuntime, Type: param.TypeText, Reach: param.ReachCommand, Default: "runc", Known: []string{none},
		Doc: "runtime of the application, by path or name: `none` (no sandbox)"},
	{Name: settingMemory, Type: param.TypeBytes, Min: 16 << 20,
		Doc: "memory limit in the sandbox's bundle; of a virtual machine, its size"},
	{Name: settingOnly, Type: param.TypeSwitch, Default: "true",
		Doc: "of virtual machines: whether all processes of a sandbox are in the pod's control group; false: only what " +
			"runs the virtual CPUs"},
	{Name: settingNetwork, Type: param.TypeWord, Default: ownNetwork, Words: []string{ownNetwork, hostNetwork},
		Doc: "`own`: a separate network namespace, with a veth pair if a load uses the application; `host`: this machine's " +
			"namespace"},
	{Name: settingReady, Type: param.TypeDuration, Default: role.ReadyTimeout.String(), Min: 1, Max: 3600,
		Doc: "longest time from a sandbox's launch until its application is ready"},
	{Name: settingOptional, Type: param.TypeSwitch, Default: "false",
		Doc: "skip the arm where the runtime is not installed or does not work"},
}

func init() {
	runtime := settings[0]
	for _, l := range sandbox.Launches() {
		runtime.Doc += ", `" + l.Program + "`"
		if l.Title != "" {
			runtime.Doc += " (" + l.Title + ")"
		}
		if l.Program != runtime.Default {
			runtime.Known = append(runtime.Known, l.Program)
		}
		settings = append(settings, l.Settings...)
	}
	settings[0] = runtime
	kind.Register(kind.Subject, guest{})
}

// guest implements the subject for the engine.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name: name, Summary: "a container or virtual machine that applications run in, by any OCI runtime",
		Settings: settings, Label: settingRuntime,

		BoundsMemory: func(o param.Values) bool { return o.Float(settingMemory) > 0 },
		TakesLonger:  booted,
		Trait:        func(o param.Values) string { return sandbox.LaunchOf(o[settingRuntime]).Config(o, "").Trait },
	}
}

// tried holds the results of Installed, by the runtime's command line and annotations, so that each combination is
// tried only once.
var tried struct {
	sync.Mutex
	errs map[string]error
}

// Installed runs an empty container with the runtime, so that a runtime that does not work here reports the reason
// itself.
func (guest) Installed(ctx context.Context, o param.Values) error {
	if o[settingRuntime] == none {
		return nil
	}
	launch := sandbox.LaunchOf(o[settingRuntime])
	if os.Geteuid() != 0 && !launch.Own {
		return fault.New(fault.Machine, o[settingRuntime], "run as root", "containers can only be made by root")
	}
	if o[settingNetwork] != hostNetwork && !proc.Capable(unix.CAP_NET_ADMIN) {
		return fault.New(fault.Machine, o[settingRuntime], "run as root, or with CAP_NET_ADMIN",
			"the interfaces of a network namespace cannot be brought up")
	}
	own, err := self.Path()
	if err != nil {
		return err
	}
	r, err := oci.Find(o[settingRuntime], own, o)
	if err != nil {
		return err
	}
	annotations := launch.Config(o, "").Annotations
	tried.Lock()
	defer tried.Unlock()
	key := fmt.Sprint(r.Argv, annotations)
	if err, known := tried.errs[key]; known {
		return err
	}
	err = oci.Probe(ctx, r, own, o.Duration(settingReady), annotations)
	if err != nil {
		hint := "name another runtime"
		if lacks := oci.Lacks(); len(lacks) > 0 && !launch.Own {
			hint = "run as root with " + strings.Join(lacks, ", ")
		}
		err = fault.Wrap(err, fault.Machine, o[settingRuntime], hint, "does not work on this machine")
	}
	if ctx.Err() != nil {
		return err // the error may not be the runtime's
	}
	if tried.errs == nil {
		tried.errs = map[string]error{}
	}
	tried.errs[key] = err
	return err
}

// booted estimates how long a sandbox takes to boot: for every virtual machine, as long as an emulated one takes
// (docs/experiments/sandbox-idle.md), and for a container, which takes a tenth of a second, 0.
func booted(o param.Values) time.Duration {
	if sandbox.LaunchOf(o[settingRuntime]).Main == sandbox.VMM {
		return 4 * time.Second
	}
	return 0
}

func (guest) Optional(o param.Values) bool { return o.On(settingOptional) }

// Version returns the runtime's name and version.
func (guest) Version(ctx context.Context, o param.Values, own string) (string, string) {
	runtime := o[settingRuntime]
	if runtime == none {
		return "", ""
	}
	if sandbox.LaunchOf(runtime).Own {
		return runtime, own
	}
	path, err := self.Path()
	if err != nil {
		return "", ""
	}
	r, err := oci.Find(runtime, path, o)
	if err != nil {
		return "", ""
	}
	return filepath.Base(r.Name), r.Version(ctx)
}

// rootDir is the name of the root file system's directory, in the directory of a run.
const rootDir = "rootfs"

// Prepare builds the root file system for all sandboxes of a run.
func (guest) Prepare(_ context.Context, p kind.Preparation) error {
	_, err := oci.NewRoot(filepath.Join(p.Dir, rootDir), p.Self)
	return err
}

func (guest) Join(t kind.Trial, _ string, part *kind.Part) (any, error) {
	j := &joined{trial: t, part: part, sandboxes: map[string]*sandboxed{}, links: map[string]int{}}
	j.evidence.Runtime = part.Options[settingRuntime]
	var err error
	if j.evidence.MachineBefore, err = settledMemory(); err != nil {
		return nil, err
	}
	j.evidence.AvailableBefore = j.evidence.MachineBefore.Available
	j.ownBefore = ownAnon()
	if j.plain() {
		return j, nil
	}
	if j.runtime, err = oci.Find(part.Options[settingRuntime], t.Self(), part.Options); err != nil {
		return nil, err
	}
	j.root, err = oci.NewRoot(filepath.Join(t.Prepared(kind.Subject, name), rootDir), t.Self())
	return j, err
}
