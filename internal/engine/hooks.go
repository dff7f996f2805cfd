package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"time"

	"tare/internal/host/cgroup"
	"tare/internal/kind"
	"tare/internal/ledger"
	"tare/internal/load"
	"tare/internal/measured"
	"tare/internal/pace"
	"tare/internal/param"
	"tare/internal/placement"
	"tare/internal/record"
	"tare/internal/role"
)

// What guests' hooks see of a trial: trial is a kind.Trial.
var _ kind.Trial = (*trial)(nil)

func (x *trial) Self() string                   { return x.machine.Self }
func (x *trial) Dir() string                    { return x.dir }
func (x *trial) Arm() string                    { return x.arm }
func (x *trial) Setup() *kind.Setup             { return &x.spec.Setup }
func (x *trial) WorkDir() string                { return x.work.V2Dir() }
func (x *trial) Cgroups() *cgroup.Layout        { return x.machine.Cgroups }
func (x *trial) Joined(name string) any         { return x.joined[name] }
func (x *trial) Record() *record.Trial          { return x.record }
func (x *trial) Fail(err error)                 { x.cancel(err) }
func (x *trial) Result(name string) load.Result { return x.record.Loads[name] }

func (x *trial) Applications() map[string]kind.App {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.apps)
}

func (x *trial) Process(name string) kind.Process {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.loads[name]; p != nil {
		return p
	}
	return nil
}

func (x *trial) LoadGroup(name string) (*placement.Group, error) {
	return x.group(path.Join(kind.WorkGroup, name), x.spec.Loads[name].Limits)
}

func (x *trial) SubjectGroup(component string, limits param.Values) (*placement.Group, error) {
	g, err := x.group(path.Join(kind.SubjectGroup, component), limits)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.roles[g.Path()] = measured.NewRole(kind.Subject, component)
	return g, nil
}

func (x *trial) ObserveGroup(path string) error {
	if measured.Within(path, x.treePath()) || measured.Within(x.treePath(), path) {
		return fmt.Errorf("the group %s holds the trial, or is part of it, and cannot be observed as its subject", path)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.roles[path] = measured.NewRole(kind.Subject, "")
	return nil
}

func (x *trial) StartSubject(ctx context.Context, component string, limits param.Values, argv []string) (kind.Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	name := x.arm
	if component != "" {
		name += " " + component
	}
	r := measured.NewRole(kind.Subject, component)
	p, err := x.start(path.Join(kind.SubjectGroup, component), r, name, limits, argv)
	if err != nil {
		return nil, err
	}
	x.processes = append(x.processes, p)
	return p, nil
}

func (x *trial) SetSubject(o kind.Objects, raw json.RawMessage) { x.objects, x.subjectRaw = &o, raw }

// Read opens a window only to close it: memory is what it is at the second edge.
func (x *trial) Read(ctx context.Context, name string) error {
	w, err := x.machine.OpenWindow()
	if err != nil {
		return fmt.Errorf("opening the window %s: %w", name, err)
	}
	slept := sleep(ctx, 10*time.Millisecond) // a window of no length has no rates
	l, err := w.Close()
	if err = errors.Join(slept, err); err != nil {
		return err
	}
	if x.record.Further == nil {
		x.record.Further = map[string]*ledger.Ledger{}
	}
	x.record.Further[name] = l
	return nil
}

func (x *trial) Warn(code, format string, args ...any) {
	if l := x.record.Ledger; l != nil {
		l.Warnings = append(l.Warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// group makes a group, if it is not there yet.
func (x *trial) group(name string, limits param.Values) (*placement.Group, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if g := x.groups[name]; g != nil {
		return g, nil
	}
	g, err := x.tree.Group(name, placement.Limits{
		CPUs: limits.Float("cpus"), MemoryBytes: uint64(limits.Float("memory")), Pin: int(limits.Float("pin")),
	})
	if err != nil {
		return nil, err
	}
	x.groups[name] = g
	return g, nil
}

// start starts one process in a group of its own.
func (x *trial) start(group string, as measured.GroupRole, name string, limits param.Values, argv []string) (*role.Child, error) {
	g, err := x.group(group, limits)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	p, err := role.Launch(name, argv, g.Start, x.cancel)
	if err != nil {
		return nil, err
	}
	x.started = append(x.started, p)
	x.roles[g.Path()] = as
	return p, nil
}

// urgent has this process run before others until the function that it returns is called. A failure is a warning.
func (x *trial) urgent() (done func()) {
	early := pace.RunFirst(true)
	return func() {
		_ = pace.RunFirst(false) // what could be set can be taken back
		if early != nil {
			x.Warn("not-first", "%v; a storm of execs may have held up the reading of counters", early)
		}
	}
}
