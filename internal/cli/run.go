package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/self"
	"tare/internal/results/session"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/meter"
	"tare/internal/scale/profile"
)

func init() { register(newRun) }

// runFlags holds the flags of tare run, which tare try has as well.
type runFlags struct {
	session.Flags
	nodes nodesFlags
	pprof bool // sample stacks in each trial

	warnings []string // about the run as a whole
}

// registerPprof adds --pprof.
func (f *runFlags) registerPprof(fs *pflag.FlagSet) {
	fs.BoolVar(&f.pprof, "pprof", false, "sample stacks in each trial, keep them as pprof profiles in the run directory, "+
		"and say which functions make up a difference")
}

func newRun() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run NAME|FILE.yaml",
		Short: "Run an experiment, print its answer, and write the run directory",
		Long: `Run an experiment: a built-in one by name ('tare list' shows them) or a spec of your own. It compares arms in randomised
blocks, each trial with fresh processes in control groups of their own, and prints the answer with its intervals. The
run directory keeps every trial; 'tare report' reads it again.

A trial that the hypervisor, a neighbour or the load generator spoiled is run again in its block, within the budget of
the spec. The metrics that were spoiled are left out, and nothing else of the trial; the run is invalid (exit code 4)
only when nothing is left of what was asked.

With --precision the run adds whole blocks until intervals are this narrow: half the width, relative to the value, or
for a difference relative to the baseline's value. With --until alone it adds blocks until the time is up. Neither
looks at whether a difference is resolved.

--assert sets a budget: METRIC <= BOUND, or <, >=, >, ==. A bound with a sign limits the difference to the baseline.
Braces name an arm, a component or a level: 'memory_hard_bytes{component=agent} <= 50MB'. Judged by its interval, each
holds, fails (exit code 5) or is undecided (exit code 4). With --until the run goes on until all are decided.

Ctrl-C ends the run early: the trial under way is taken down, what was measured is kept and reported as partial, and the
exit code is 4.`,
		Example: `  tare run quickstart
  tare run quickstart --blocks 12 --set rate=500,1000,2000
  tare run quickstart --precision 5% --until 20m
  tare run quickstart --assert 'bpf_seconds_per_connection <= 5us' --until 10m
  tare run my-experiment.yaml --quick --out /tmp/my-run`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fault.New(fault.Usage, cmd.CommandPath(), "'tare list' shows the built-in experiments",
					"want one experiment, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Check(cmd.Flags()); err != nil {
				return err
			}
			if err := f.nodes.check(cmd.Flags().Changed); err != nil {
				return err
			}
			s, err := loadSpec(args[0])
			if err != nil {
				return err
			}
			if err := s.Apply(f.Overrides); err != nil {
				return err
			}
			return run(cmd.Context(), s, f, cmd.OutOrStdout())
		},
	}
	f.Register(c.Flags())
	f.RegisterSpec(c.Flags())
	f.registerPprof(c.Flags())
	c.Flags().IntVar(&f.Overrides.SampleHz, "hz", 0, "samples per second on each CPU, instead of the spec's")
	f.nodes.register(c.Flags())
	return c
}

// featureNames returns the names of the features that an experiment can list in its needs.
func featureNames() []string {
	return lists.Map(slices.Concat(features(), guestFeatures()), (*feature.Probe).Name)
}

// loadSpec loads an experiment: from a file if arg looks like a path, else the built-in one of that name.
func loadSpec(arg string) (*spec.Spec, error) {
	return session.LoadSpec("tare run", arg, featureNames(), readSpecFile)
}

// requireFeatures returns an error if the machine lacks a feature that the experiment needs: creating control groups,
// the features in the spec's needs, and those in more.
func requireFeatures(s *spec.Spec, more ...string) error {
	return require(s.Name, "this machine cannot run the experiment",
		slices.Concat([]string{"cgroup-create"}, s.Needs, more)...)
}

// require returns an error with the given place (where) and text (refusal) if the machine lacks one of the named
// features.
func require(where, refusal string, names ...string) error {
	for _, p := range slices.Concat(features(), guestFeatures()) {
		if !slices.Contains(names, p.Name()) {
			continue
		}
		if err := p.Err(); err != nil {
			return fault.Wrap(err, fault.Machine, where, p.Status().Hint, "%s", refusal)
		}
	}
	return nil
}

// run runs the experiment and prints its result.
func run(ctx context.Context, s *spec.Spec, f runFlags, out io.Writer) (err error) {
	defer func() { err = session.BegunOr(err) }()
	if err := requireFeatures(s); err != nil {
		return err
	}
	for _, sec := range s.Sections() {
		for name, part := range lists.ByKey(sec.Parts) {
			if _, marked := part.Kind.(kind.Marked); marked {
				return fault.New(fault.Usage, sec.Path(name), "run it with kubectl tare run",
					"%s weighs what is installed in a cluster, which tare run cannot", part.Name())
			}
		}
	}
	absent, err := s.LeaveOutAbsent(ctx)
	if err != nil {
		return err
	}
	layout, own, err := ground(ctx, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	m, err := meter.New(ctx, meterOptions(s))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()

	nodes := f.nodes.plan(s) // also adapts the spec to the nodes
	if nodes != nil && f.pprof {
		return fault.New(fault.Usage, "--pprof", "run without --pprof, or without nodes",
			"stacks are sampled on one machine, not on nodes")
	}
	if nodes != nil {
		if err := s.CheckShare(nodes.CPUs); err != nil {
			return err
		}
	}
	if nodes != nil && nodes.Local {
		if err := requireFeatures(s, "local-nodes"); err != nil {
			return err
		}
	}
	var gathered *fleet
	if nodes != nil && !nodes.Local {
		if gathered, err = f.nodes.gather(ctx, s, nodes, own.path, layout, stderr); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, gathered.close()) }()
	}
	r, err := f.Record(s, []string{"tare"}, os.Args[1:], environment(layout))
	if err != nil {
		return err
	}
	r.Nodes = nodes
	r.Absent = absent
	r.Warnings = f.warnings
	maps.Copy(r.Environment.Subjects, s.SubjectVersions(ctx, self.Version))
	named := fmt.Sprintf("tare-run-%s-%s", s.Name, r.Started.Format("20060102-150405"))
	w, err := record.Create(cmp.Or(f.Out, named), r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()

	if nodes != nil && nodes.Local {
		if gathered, err = f.nodes.gather(ctx, s, nodes, own.path, layout, stderr); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, gathered.close()) }()
	}
	o := output(out, f.Show)
	if others := placement.Others(layout); len(others) > 0 {
		o.Warnings = append(o.Warnings, engine.OtherRun(others))
	}
	machine := engine.Machine{Self: own.path, Cgroups: layout, Programs: bpf.Loaded,
		OpenWindow: func(ctx context.Context, at int64) (engine.Window, error) {
			return m.OpenAt(ctx, at)
		}}
	if f.pprof {
		machine.Stacks = func() (engine.Stacks, error) { return meter.OpenStacks(profile.Hz) }
	}
	if gathered != nil {
		machine.Nodes, machine.NodeShare = gathered, nodeShare(nodes)
	}
	return session.Run(ctx, &engine.Runner{Machine: machine, Spec: s, Record: &r}, w, o)
}

// output returns where a run reports its progress and results: out, and standard error.
func output(out io.Writer, show session.Show) session.Output {
	return session.Output{Out: out, Log: stderr, Terminal: os.Stderr, Show: show, Text: textOptions}
}

func environment(layout *cgroup.Layout) record.Environment {
	m := proc.FS{}.Machine()
	return record.Environment{
		Hostname: m.Hostname, Kernel: m.Kernel, Distro: m.Distro, CPUModel: m.CPUModel, CPUs: m.CPUs,
		MemoryBytes: m.MemoryBytes,
		Governor:    m.Governor, CgroupMode: layout.Mode, Lockdown: m.Lockdown, Clocksource: m.Clocksource,
		SwapBytes: m.SwapBytes,
		Virtual:   m.Virtual, Subjects: map[string]string{},
	}
}
