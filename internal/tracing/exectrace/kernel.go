package exectrace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/bpf"
	"tare/internal/lib/fault"

	"tare/internal/scale/host/cgroup"
)

// kernel is the part of the tracer in the kernel. It disappears when it is closed, or when this process ends in any
// way.
type kernel struct {
	objects   objects
	link      link.Link // nil while not attached
	ring      *ring
	counts    []exectraceCounts // by CPU
	reader    *uint32           // the reader's state, in struct state
	wakeBytes uint64            // a resting reader is woken when the ring holds this many bytes
	mapped    bpf.Mapped
}

// objects holds all loaded objects except the variables: bpf2go's type would also load those, in a separate map.
type objects struct {
	exectracePrograms
	exectraceMaps
}

// load loads the program and its maps, without attaching the program. The caller must close the result.
func load(o Options, l *cgroup.Layout) (_ *kernel, err error) {
	k := &kernel{wakeBytes: uint64(o.Ring) / 2}
	defer func() {
		if err != nil {
			err = errors.Join(explain(err), k.close())
		}
	}()
	var group *os.File
	if o.CgroupDir != "" {
		if group, err = openGroup(o.CgroupDir, l); err != nil {
			return nil, err
		}
		defer group.Close()
	}
	spec, err := loadExectrace()
	if err != nil {
		return nil, fmt.Errorf("reading the embedded program: %w", err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("counting CPUs: %w", err)
	}
	spec.Maps[exectraceMapExecRing].MaxEntries = uint32(o.Ring)
	spec.Maps[exectraceMapExecCounts].MaxEntries = uint32(cpus)
	var filtered uint32
	if group != nil {
		filtered = 1
	}
	var namespace unix.Stat_t
	if o.Node {
		if err := unix.Stat("/proc/self/ns/pid", &namespace); err != nil {
			return nil, fmt.Errorf("looking for the tracer's PID namespace: %w", err)
		}
	}
	for name, value := range map[string]any{
		exectraceVarFiltered: filtered, exectraceVarNamespace: uint32(namespace.Ino),
		exectraceVarArgsBytes: uint32(max(o.Args, 0)), exectraceVarWakeBytes: k.wakeBytes,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	if err := spec.LoadAndAssign(&k.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the tracer: %w", err)
	}
	if group != nil {
		if err := k.objects.ExecGroups.Put(uint32(0), uint32(group.Fd())); err != nil {
			return nil, fmt.Errorf("setting the program's control group: %w", err)
		}
	}
	if k.counts, err = bpf.View[exectraceCounts](&k.mapped, k.objects.ExecCounts); err != nil {
		return nil, err
	}
	state, err := bpf.View[exectraceState](&k.mapped, k.objects.ExecState)
	if err != nil {
		return nil, err
	}
	k.reader = &state[0].Reader
	k.ring, err = newRing(k.objects.ExecRing)
	return k, err
}

// attach starts tracing.
func (k *kernel) attach() error {
	l, err := link.AttachTracing(link.TracingOptions{Program: k.objects.TareExectrace})
	if err != nil {
		return explain(fmt.Errorf("attaching the tracer: %w", err))
	}
	k.link = l
	return nil
}

// detach ends tracing. When it returns, no program of the tracer is running, so every event is in the ring or is
// counted as lost.
func (k *kernel) detach() error {
	if k.link == nil {
		return nil
	}
	err := k.link.Close()
	k.link = nil
	if err != nil {
		return fmt.Errorf("detaching the tracer: %w", err)
	}
	return bpf.WaitForPrograms()
}

// counted returns the number of execs that the program saw, and the number for which the ring had no room.
func (k *kernel) counted() (seen, lost uint64) {
	for i := range k.counts {
		lost += atomic.LoadUint64(&k.counts[i].Lost) // before seen: see struct counts
		seen += atomic.LoadUint64(&k.counts[i].Seen)
	}
	return seen, lost
}

// missed returns the number of runs that the kernel skipped (Statistics.Missed), or nil if that cannot be read.
func (k *kernel) missed() *uint64 {
	stats, err := k.objects.TareExectrace.Stats()
	if err != nil {
		return nil
	}
	return &stats.RecursionMisses
}

func (k *kernel) close() error {
	var errs []error
	if k.link != nil {
		errs = append(errs, k.link.Close())
	}
	if k.ring != nil {
		errs = append(errs, k.ring.close())
	}
	errs = append(errs, k.mapped.Close())
	k.link, k.ring, k.counts, k.reader = nil, nil, nil, nil
	return errors.Join(append(errs, k.objects.exectracePrograms.Close(), k.objects.exectraceMaps.Close())...)
}

// openGroup opens the directory of the control group to trace.
func openGroup(dir string, l *cgroup.Layout) (*os.File, error) {
	hidden := func(err error) error {
		return fault.Wrap(err, fault.Machine, dir, "run as root, or with CAP_DAC_READ_SEARCH",
			"the control group cannot be opened")
	}
	var fstype unix.Statfs_t
	if err := unix.Statfs(dir, &fstype); errors.Is(err, fs.ErrPermission) {
		return nil, hidden(err)
	} else if err != nil {
		return nil, fault.Wrap(err, fault.Usage, dir, "make it with mkdir, and move processes into it",
			"no such control group")
	}
	if fstype.Type != unix.CGROUP2_SUPER_MAGIC {
		h, ok := l.V2()
		if !ok {
			return nil, fault.New(fault.Machine, dir,
				"trace the whole machine, or "+cgroup.MountV2,
				"this machine has no cgroup v2 hierarchy mounted, which the program needs to distinguish groups")
		}
		return nil, fault.New(fault.Usage, dir, "name a directory below "+h.Mount, "this is not a cgroup v2 directory")
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, hidden(err)
	}
	return f, nil
}

// explain converts an error of the kernel to a fault with a hint.
func explain(err error) error {
	var verifier *ebpf.VerifierError
	var known *fault.Error
	const needs = "it needs Linux 5.12 with BTF (CONFIG_DEBUG_INFO_BTF)"
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrPermission):
		return fault.Wrap(err, fault.Machine, "exectrace",
			"run as root (it needs CAP_BPF and CAP_PERFMON); if you are, look at the container's seccomp profile and at "+
				"/sys/kernel/security/lockdown",
			"not permitted")
	case errors.As(err, &verifier):
		return fault.New(fault.Machine, "exectrace",
			needs+"; on a newer one this is a defect of Tare: report this text with uname -r",
			"the kernel's verifier refuses the program: %-12v", verifier)
	case errors.Is(err, unix.ENOMEM):
		return fault.Wrap(err, fault.Machine, "exectrace",
			"lower --ring, or raise the memory limit of the control group it runs in", "no memory")
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, fs.ErrNotExist):
		return fault.Wrap(err, fault.Machine, "exectrace", "boot one that has it: "+needs,
			"this kernel lacks what the tracer needs")
	}
	return fault.Wrap(err, fault.Machine, "exectrace", needs, "it cannot be loaded here")
}
