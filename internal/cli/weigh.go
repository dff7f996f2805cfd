package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/results/report"
	"tare/internal/results/session"
	"tare/internal/scale/charge"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
)

func init() { register(newWeigh) }

const longestWindow = 24 * time.Hour

func newWeigh() *cobra.Command {
	var window, every time.Duration
	var scale scaleFlags
	var show session.Show
	var top, depth int
	var match []string
	var stacks string
	cmd := &cobra.Command{
		Use:   "weigh",
		Short: "Weigh this machine: one ledger of who used what, eBPF time split by control group",
		Long: `Weigh reads every counter, waits, reads them again, and prints the account of that window: the CPU budget with
the unexplained remainder, eBPF programs with their run time split by control group and context,
maps, control groups and memory.

Sandboxes (containers, pods, gVisor, and virtual machines that stand for a pod) are listed with gross, net
and tare, by component and kind of page, with the overhead that was declared next to what was measured, and
with memory that is charged to the wrong groups. Reading the resident memory of their processes makes
the kernel walk their page tables; the ledger says what that cost. --sandboxes=false leaves them out. Containers
that runc or crun keeps elsewhere (--root DIR) are found with --runtime-root DIR.

The kernel's eBPF run statistics are on during the window (they cost each run of a program about 20 to 50 ns;
the ledger says how much that was), by a descriptor that ends with this process. Nothing else of the machine is
changed. Ctrl-C ends the window early.

Without root, the ledger has CPU time and memory by control group, and a warning for everything that needs more
privileges. 'tare doctor' lists what is missing and how to fix it.

--every takes one ledger after another, each for a window that begins where the last one ended, until Ctrl-C or for as
long as --for says. Where a CPU goes offline or comes online there is a gap, of which the next ledger warns. JSON then
has one document per line; CSV has one header and a further column, the beginning of the window. OpenMetrics holds one
moment only: for a scraper, run tare-agent.

--pprof FILE also says where the CPU time went: which functions of user code, of the kernel and which eBPF programs ran,
by process and control group, as a profile that 'go tool pprof' and Parca read. The samples of a group (99 per second
on each CPU) add up to the CPU time that the ledger says it used.

Rules say what is a workload and what is infrastructure. For each workload the ledger then shows gross (what it
uses in all), net (the application itself) and tare (what infrastructure uses on its behalf): gross = net + tare.
Each rule selects by one of

  namespace=NAME pod=NAME container=NAME    what Kubernetes, Docker or Podman call it; may stand together
  label=KEY=VALUE   a label of a container or its pod, where the engine keeps labels (CRI-O, Docker)
  unit=NAME         a unit of systemd
  cgroup=PATH    control groups, and those below them unless another rule names these
  comm=NAME      groups whose processes all have that name, and the eBPF programs and maps that such processes hold
  program=NAME   eBPF programs
  map=NAME       eBPF maps

where * matches any characters but a slash, ? matches one, and ** matches any number of parts of a path. A program or
map that no rule names belongs to the process that holds it, wherever it runs. A rule for a group takes precedence over
rules for the groups above it. If several rules match the same thing, the first on the command line applies; the rules
of a file have the position of its --rules. A warning names rules that match nothing.

At a terminal each table has the biggest rows (--top), and one row "other" for the rest. Control groups that hold
others come last, with what they use in themselves, so that rows add up; --depth and --match choose among the groups,
and those that a rule names are shown in any case. All other formats have everything.

With one workload, all infrastructure serves it. With several, infrastructure serves the workload that its rule
names by ,workload=NAME, or in whose groups it runs; the rest is shown as tare of no single workload.
--profile kubernetes has rules for a node, which come after yours (docs/charges.md).`,
		Example: `  tare weigh                    # ten seconds, for people
  tare weigh --for 1m --json    # a minute, for programs: schema tare.ledger/v1

  # a ledger every ten seconds for an hour, and what is unexplained in each
  tare weigh --every 10s --for 1h --json | jq -r '[.window.start, .cpu.unexplained_seconds] | @tsv'

  # a row for each pod, and no other groups; and services with what is below them
  tare weigh --top 30 --depth 3 --match '/kubepods.slice/*'
  tare weigh --depth 2

  # for node_exporter's textfile collector
  tare weigh --for 1m --format openmetrics > /var/lib/node_exporter/tare.prom

  # what a service costs with the infrastructure around it
  tare weigh --workload 'shop=namespace=shop' --tare 'namespace=kube-system' --tare 'unit=containerd.service'

  # a sidecar inside the workload's groups, and an eBPF program that nobody holds any more
  tare weigh --workload 'shop=namespace=shop' --tare 'container=istio-proxy,component=sidecar' --tare 'program=cil_*'

  # where the CPU time of the last 30 seconds went, as a flame graph in a browser, and the same of one group
  tare weigh --for 30s --pprof cpu.pb.gz && go tool pprof -http=: cpu.pb.gz
  go tool pprof -top -tagfocus group=/system.slice/nginx.service cpu.pb.gz

  # a node of Kubernetes: each pod is a workload, and sidecars, the CNI, the kubelet and the like are tare
  tare weigh --profile kubernetes

  # the same from a file: rules: [{charge: tare, namespace: kube-system}, ...]
  tare weigh --rules rules.yaml`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if window < leastWindow || window > longestWindow && every == 0 {
				return fault.New(fault.Usage, "--for "+window.String(), "try --for 10s",
					"a window lasts from %v to %v", leastWindow, longestWindow)
			}
			t := ticks{every: every}
			if cmd.Flags().Changed("for") {
				t.total = window
			}
			if cmd.Flags().Changed("every") {
				if err := t.check(); err != nil {
					return err
				}
			}
			seen, err := ledgerOptions(top, depth, match)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			o := textOptions(out, "", true)
			o.Ledger = seen
			// A window makes little garbage, but it shows in the scale's own memory: collecting at half the usual growth saves
			// 3 of 41 MB for no measurable CPU time.
			defer debug.SetGCPercent(debug.SetGCPercent(50))
			if every > 0 && stacks != "" {
				return fault.New(fault.Usage, "--pprof", "leave out --every", "a profile is of one window")
			}
			if every > 0 {
				return t.weigh(cmd.Context(), out, scale, show.Format, o)
			}
			p := profiler{file: stacks, say: cmd.ErrOrStderr()}
			if err := p.check(); err != nil {
				return err
			}
			return weighOnce(cmd.Context(), out, window, scale, show.Format, o, &p)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&window, "for", 10*time.Second, "length of the window; with --every, of all windows")
	f.DurationVar(&every, "every", 0, "one ledger after another, each of this length")
	registerFormat(cmd, &show, report.Ledgers)
	f.IntVar(&top, "top", 10, "rows to show of each table as text, the biggest first; 0 for all")
	f.IntVar(&depth, "depth", 0, "levels of groups to show as text; deeper ones count in their parents; 0 for all")
	f.StringArrayVar(&match, "match", nil,
		"control groups to show as text, with those below them, such as '/kubepods/*'; may be repeated")
	f.StringVar(&stacks, "pprof", "", "write where CPU time went to this file, as a profile for 'go tool pprof'")
	scale.register(f)
	return cmd
}

// weigh writes the ledgers of this machine.
func (t ticks) weigh(ctx context.Context, out io.Writer, f scaleFlags, format string, o report.Options) error {
	write, err := report.Series.Writer(format)
	if err != nil {
		return err
	}
	s, err := f.options(ctx)
	if err != nil {
		return err
	}
	w, err := openWatch(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(t.write(ctx, out, w, write, o), w.Close())
}

// weighOnce writes the ledger of one window of this machine.
func weighOnce(
	ctx context.Context, out io.Writer, window time.Duration, f scaleFlags, format string, o report.Options, p *profiler,
) error {
	write, err := report.Ledgers.Writer(format)
	if err != nil {
		return err
	}
	s, err := f.options(ctx)
	if err != nil {
		return err
	}
	l, err := weigh(ctx, window, s.meter, s.sandboxes, p)
	if err != nil {
		return err
	}
	s.names.Fill(l)
	if err := applyRules(s.rules, nil, l); err != nil {
		return err
	}
	return errors.Join(write(out, l, o), p.write(l))
}

// ledgerOptions checks the flags for printing a ledger, and returns the options that they select.
func ledgerOptions(top, depth int, match []string) (o report.LedgerOptions, err error) {
	for _, f := range []struct {
		name  string
		value int
	}{{"top", top}, {"depth", depth}} {
		if f.value < 0 {
			return o, fault.New(fault.Usage, fmt.Sprintf("--%s %d", f.name, f.value), "use 0 for all",
				"--%s must be 0 or more", f.name)
		}
	}
	for _, pattern := range match {
		if !strings.HasPrefix(pattern, "/") {
			return o, fault.New(fault.Usage, "--match "+text.Clip(pattern), "try --match '/"+text.Clip(pattern)+"', or '/**/"+
				text.Clip(pattern)+"' wherever it is", "the path of a control group begins with /")
		}
	}
	if o.Top, o.Depth, o.Match = top, depth, match; top == 0 {
		o.Top = -1
	}
	return o, nil
}

// runtimeRoots checks that directories exist, and returns their absolute paths.
func runtimeRoots(given []string) (roots []string, err error) {
	for _, dir := range given {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fault.New(fault.Usage, "--runtime-root "+dir, "name the directory that the runtime was given as --root",
				"there is no such directory")
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return nil, fmt.Errorf("finding the directory of a runtime: %w", err)
		}
		roots = append(roots, dir)
	}
	return roots, nil
}

// weigh returns the ledger of one window of the length d, with sandboxes and a profile unless those are nil. If ctx
// ends first, the window ends early, and the ledger has its actual length.
func weigh(
	ctx context.Context, d time.Duration, o meter.Options, sandboxes *sandbox.Options, p *profiler,
) (l *ledger.Ledger, err error) {
	if sandboxes != nil {
		o.Sandboxes = meter.NewSandboxes(*sandboxes)
		defer o.Sandboxes.Close()
	}
	m, err := meter.New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := m.Close(); err == nil {
			err = cerr
		}
	}()
	w, err := m.Open()
	if err != nil {
		return nil, err
	}
	err = p.begin()
	if err == nil {
		_ = pace.Sleep(ctx, d) // a window that is cut short is still a window
		err = p.end()
	}
	l, cerr := w.Close()
	if err = errors.Join(err, cerr); err != nil {
		return nil, err
	}
	if o.Sandboxes != nil {
		if err := o.Sandboxes.AddTo(l); err != nil { // the rest of the ledger is still valid
			l.Warn("no-sandboxes", "sandboxes could not be read: %v", err)
		}
	}
	return l, nil
}

// ruleFlag is a rule as given on the command line or, if charge is empty, the name of a file of rules.
type ruleFlag struct {
	charge ledger.Charge
	text   string
}

// ruleValue collects the rules of several flags in the order of the command line: of rules that match the same thing,
// the first applies.
type ruleValue struct {
	charge ledger.Charge
	given  *[]ruleFlag
}

func (v *ruleValue) Set(text string) error {
	*v.given = append(*v.given, ruleFlag{v.charge, text})
	return nil
}

func (v *ruleValue) String() string { return "" }

func (v *ruleValue) Type() string {
	if v.charge == "" {
		return "FILE"
	}
	return "RULE"
}

// readRules reads the given rules, and then those of a profile unless its name is empty.
func readRules(given []ruleFlag, profile string) (rules []charge.Rule, err error) {
	for _, g := range given {
		if g.charge != "" {
			r, err := charge.ParseFlag(g.charge, g.text)
			if err != nil {
				return nil, err
			}
			rules = append(rules, r)
			continue
		}
		data, err := readFile(g.text, "the file of rules", "docs/charges.md has one to start from")
		if err != nil {
			return nil, err
		}
		more, err := charge.ParseFile(g.text, data)
		if err != nil {
			return nil, err
		}
		rules = append(rules, more...)
	}
	return charge.Complete(rules, profile, "--profile "+text.Clip(profile))
}

// applyRules charges what the ledger holds by the rules. It must be called at the end of the window, because it lists
// the processes that run now. If layout is nil, it finds the control groups itself.
func applyRules(rules []charge.Rule, layout *cgroup.Layout, l *ledger.Ledger) (err error) {
	if len(rules) == 0 {
		return nil
	}
	if layout == nil {
		if layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
			return err
		}
	}
	running, err := charge.Running(layout)
	if err != nil {
		return err
	}
	charge.Apply(rules, l, running)
	l.AddComponents()
	return nil
}
