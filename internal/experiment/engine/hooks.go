package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

// trial implements kind.Trial for the hooks of guests.
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

func (x *trial) Prepared(r kind.Role, guest string) string { return x.prepared.of(r, guest) }

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

// part returns an application or a load of the trial.
func (x *trial) part(name string) (*kind.Part, kind.Role) {
	if part := x.spec.Loads[name]; part != nil {
		return part, kind.Load
	}
	return x.spec.Applications[name], kind.Application
}

func (x *trial) Begin(ctx context.Context, name string, dirs ...string) (child.Starter, error) {
	g, err := x.PartGroup(name)
	if err != nil {
		return nil, err
	}
	l, launches := x.own.(kind.Launcher)
	part, as := x.part(name)
	if as == kind.Load {
		launches = launches && part.RunsInside()
	}
	if !launches {
		return x.starter(g, as, name)
	}
	return func(cmd *exec.Cmd) error {
		return l.Launch(ctx, kind.Launch{
			Name: name, Part: part, Dirs: dirs, Group: g,
			Argv: slices.Concat([]string{cmd.Path}, cmd.Args[1:]), Env: cmd.Env,
			Start: func(g kind.Group, network string, argv ...string) (int, error) {
				if len(argv) > 0 {
					cmd.Path, cmd.Args, cmd.Err = argv[0], argv, nil
				}
				if err := g.In(network)(cmd); err != nil {
					return 0, err
				}
				return cmd.Process.Pid, nil
			},
		})
	}, nil
}

// starter returns a function that starts a process in a group, and in the network namespace that the subject chooses
// for the named part.
func (x *trial) starter(g kind.Group, as kind.Role, name string) (child.Starter, error) {
	network, err := x.network(as, name)
	if err != nil {
		return nil, err
	}
	return g.In(network), nil
}

// network returns the path of the network namespace in which the subject wants the named part to run; empty: this
// machine's.
func (x *trial) network(as kind.Role, name string) (string, error) {
	if n, ok := x.own.(kind.Networked); ok {
		return n.Network(as, name)
	}
	return "", nil
}

func (x *trial) Host(app string) (string, error) {
	if h, ok := x.own.(kind.Hoster); ok {
		return h.Host(app)
	}
	return "127.0.0.1", nil
}

func (x *trial) PartGroup(name string) (kind.Group, error) {
	part, as := x.part(name)
	return x.group(path.Join(kind.WorkGroup, name), measured.NewRole(as, name), part.Limits)
}

func (x *trial) SubjectGroup(component string, limits param.Values) (kind.Group, error) {
	return x.subjectGroup(component, measured.NewRole(kind.Subject, component), limits)
}

func (x *trial) ServingGroup(component, app string, limits param.Values) (kind.Group, error) {
	as := measured.NewRole(kind.Subject, component)
	as.Workload = app
	return x.subjectGroup(path.Join(component, app), as, limits)
}

// subjectGroup makes a group of the subject. A group with a name is inside the group that has the subject's limits.
// Dots become dashes: names of components may contain dots, and names of groups may not.
func (x *trial) subjectGroup(name string, as measured.GroupRole, limits param.Values) (kind.Group, error) {
	name = strings.ReplaceAll(name, ".", "-")
	if name == "" && limits == nil && x.subject != nil {
		limits = x.subject.Limits // a caller may leave them out
	}
	if name == "" || x.subject == nil {
		return x.group(path.Join(kind.SubjectGroup, name), as, limits)
	}
	if _, err := x.group(kind.SubjectGroup, measured.NewRole(kind.Subject, ""), x.subject.Limits); err != nil {
		return nil, err
	}
	const pin = "pin" // applies to processes, so the outer group does not pass it on
	if all, set := x.subject.Limits[pin]; set && limits[pin] == "" {
		limits = maps.Clone(limits)
		if limits == nil {
			limits = param.Values{}
		}
		limits[pin] = all
	}
	return x.group(path.Join(kind.SubjectGroup, name), as, limits)
}

func (x *trial) Observe(as kind.Role, name, path string) error {
	if cgroup.Within(path, x.treePath()) || cgroup.Within(x.treePath(), path) {
		return fmt.Errorf("the group %s holds the trial, or is part of it, and cannot be observed", path)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.roles[path] = measured.NewRole(as, name)
	return nil
}

func (x *trial) StartSubject(
	ctx context.Context, component string, limits param.Values, argv []string,
) (kind.Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	g, err := x.SubjectGroup(component, limits)
	if err != nil {
		return nil, err
	}
	begin, err := x.starter(g, kind.Subject, component)
	if err != nil {
		return nil, err
	}
	p, err := x.start(strings.TrimSpace(x.arm+" "+component), argv, begin)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.worker == nil && x.subject != nil && x.subject.Works() {
		x.worker = p
	}
	return p, nil
}

func (x *trial) SetSubject(o kind.Objects, raw json.RawMessage) { x.objects, x.subjectRaw = &o, raw }

// Read opens a window and closes it after 10 ms (Machine.read), because memory is read at the second edge.
func (x *trial) Read(ctx context.Context, name string) error {
	l, err := x.machine.read(ctx)
	if err != nil {
		return fmt.Errorf("the reading %s: %w", name, err)
	}
	if x.record.Further == nil {
		x.record.Further = map[string]*ledger.Ledger{}
	}
	x.record.Further[name] = l
	return nil
}

func (x *trial) Warn(code, format string, args ...any) {
	if l := x.record.Ledger; l != nil {
		l.Warn(code, format, args...)
		return
	}
	x.record.Warnings = append(x.record.Warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// group returns the group with the given name in the tree, and makes it unless it exists.
func (x *trial) group(name string, as measured.GroupRole, limits param.Values) (kind.Group, error) {
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
	as.Limit = limits.Float("cpus")
	as.Limited = as.Limit > 0
	x.groups[name], x.roles[g.Path()] = g, as
	return g, nil
}

// start starts a process with begin, and records it for tearDown.
func (x *trial) start(name string, argv []string, begin child.Starter) (*role.Child, error) {
	p, err := role.Launch(name, argv, begin, x.cancel)
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.started = append(x.started, p)
	return p, nil
}

// processesByComponent returns the processes in the groups of the subject's components.
func (x *trial) processesByComponent() map[string][]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	pids := map[string][]int{}
	for _, g := range x.groups {
		if as := x.roles[g.Path()]; as.Component != "" {
			pids[as.Component] = append(pids[as.Component], g.Members()...)
		}
	}
	return pids
}
