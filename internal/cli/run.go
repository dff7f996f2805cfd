package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/experiments"
	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/self"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/meter"
)

func init() { register(newRun) }

// runFlags are the flags of tare run.
type runFlags struct {
	out       string
	seed      uint64
	seeded    bool
	overrides spec.Overrides
	nodes     nodesFlags
	show      shown
}

// shown is what of a run is printed.
type shown struct {
	format string
	all    bool // of the report everything, instead of the answer and the headlines
}

// json reports whether one JSON document is printed, and nothing else.
func (s *shown) json() bool { return s.format == "json" }

func (s *shown) registerJSON(fs *pflag.FlagSet, usage string) {
	fs.BoolFunc("json", usage, func(value string) error {
		is, err := strconv.ParseBool(value)
		if is {
			s.format = "json"
		}
		return err
	})
}

func (s *shown) registerAll(fs *pflag.FlagSet) {
	fs.BoolVar(&s.all, "all", false, "print every metric, note and model, not only the answer and what it rests on")
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

With --precision the run goes on, in whole blocks, until intervals are this narrow: half their width, as a part of the
value, or for a difference as a part of the baseline's value. With --until alone it goes on until the time is up.
Neither looks at whether a difference is resolved.

--assert sets a budget: METRIC <= BOUND, or <, >=, >, ==. A bound with a sign limits the difference to the baseline.
Braces name an arm, a component or a level: 'memory_hard_bytes{component=agent} <= 50MB'. By its interval each holds,
fails (exit code 5) or is undecided (exit code 4). With --until the run goes on until all are decided.

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
			if err := f.checkLength(cmd.Flags()); err != nil {
				return err
			}
			if err := f.nodes.check(cmd.Flags().Changed); err != nil {
				return err
			}
			s, err := loadSpec(args[0])
			if err != nil {
				return err
			}
			if err := s.Apply(f.overrides); err != nil {
				return err
			}
			return run(cmd.Context(), s, f, cmd.OutOrStdout())
		},
	}
	f.registerLength(c.Flags())
	c.Flags().BoolVar(&f.overrides.Quick, "quick", false, "the short form of the experiment")
	c.Flags().IntVar(&f.overrides.SampleHz, "hz", 0, "samples per second and CPU, instead of the spec's")
	f.nodes.register(c.Flags())
	c.Flags().StringArrayVar(&f.overrides.Set, "set", nil, "setting=value, or setting=a,b to sweep; may be repeated")
	return c
}

// registerLength adds the flags of every run: where it goes, how long it is, and its seed.
func (f *runFlags) registerLength(fs *pflag.FlagSet) {
	f.show.registerJSON(fs, "print the summary as one JSON document instead of the report")
	f.show.registerAll(fs)
	fs.StringVar(&f.out, "out", "", "run directory; default tare-run-NAME-TIME here")
	fs.IntVar(&f.overrides.Blocks, "blocks", 0, "number of blocks, instead of the spec's")
	fs.StringVar(&f.overrides.Precision, "precision", "",
		"run until intervals are this narrow, such as 5%, instead of for the spec's blocks")
	fs.DurationVar(&f.overrides.Until, "until", 0,
		"begin no block after this time, such as 10m; with --precision the default is 30m")
	fs.StringArrayVar(&f.overrides.Assert, "assert", nil,
		"budget that decides the exit code, such as 'memory_hard_bytes <= 50MB' or 'latency_p99_seconds <= +10%'; may "+
			"be repeated")
	fs.Uint64Var(&f.seed, "seed", 0,
		"seed of the order of trials and of the arrivals; default: a new one, which is recorded")
}

// checkLength refuses a run without blocks, and notes whether it was given a seed.
func (f *runFlags) checkLength(fs *pflag.FlagSet) error {
	f.seeded = fs.Changed("seed")
	if n := f.overrides.Blocks; n <= 0 && fs.Changed("blocks") {
		return fault.New(fault.Usage, "--blocks", "give 1 or more; 6 are needed for intervals", "%d blocks make no run", n)
	}
	return nil
}

// featureNames are what the needs of an experiment may name.
func featureNames() []string {
	return lists.Map(slices.Concat(features(), guestFeatures()), (*feature.Probe).Name)
}

// loadSpec finds an experiment: a path if it looks like one, else a built-in name.
func loadSpec(arg string) (*spec.Spec, error) {
	file, data, ok := experiments.File(arg)
	if !ok {
		if !strings.ContainsAny(arg, "/.") {
			return nil, noSuchExperiment("run", arg, "; a file is named with its ending, .yaml")
		}
		var err error
		file = arg
		if data, err = readSpecFile(arg); err != nil {
			return nil, err
		}
	}
	return spec.Parse(file, data, featureNames())
}

// noSuchExperiment says which there are, and which was most likely meant.
func noSuchExperiment(command, name, more string) error {
	hint := "the built-in experiments are " + strings.Join(experiments.Names(), ", ") + more
	if n := text.Nearest(name, experiments.Names()); n != "" {
		hint = fmt.Sprintf("did you mean %q? %s", n, hint)
	}
	return fault.New(fault.Usage, "tare "+command+" "+name, hint, "no such experiment")
}

// requireFeatures refuses to begin what cannot work: experiments make control groups, and may need more by their specs
// or by how they are run.
func requireFeatures(s *spec.Spec, more ...string) error {
	return require(s.Name, "this machine cannot run the experiment",
		slices.Concat([]string{"cgroup-create"}, s.Needs, more)...)
}

// require refuses, in these words, to begin what cannot work here without some features.
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

// run runs the experiment and says what came of it.
func run(ctx context.Context, s *spec.Spec, f runFlags, out io.Writer) (err error) {
	defer func() { err = begunOr(err) }()
	if err := requireFeatures(s); err != nil {
		return err
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

	nodes := f.nodes.plan(s) // it fits the spec to them
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
	r, err := newRecord(s, f, layout)
	if err != nil {
		return err
	}
	r.Nodes = nodes
	r.Absent = absent
	maps.Copy(r.Environment.Subjects, s.SubjectVersions(ctx, self.Version))
	named := fmt.Sprintf("tare-run-%s-%s", s.Name, r.Started.Format("20060102-150405"))
	w, err := record.Create(cmp.Or(f.out, named), r)
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
	p := newProgress(os.Stderr, s, r, w.Dir())
	defer context.AfterFunc(ctx, p.interrupted)()
	if others := placement.Others(layout); len(others) > 0 {
		p.warn(engine.OtherRun(others))
	}
	machine := engine.Machine{Self: own.path, Cgroups: layout,
		OpenWindow: func(ctx context.Context, at int64) (engine.Window, error) {
			return m.OpenAt(ctx, at)
		}}
	if gathered != nil {
		machine.Nodes, machine.NodeShare = gathered, nodeShare(nodes)
	}
	runner := &engine.Runner{Machine: machine, Spec: s, Record: &r, Writer: w, Progress: p.say,
		Enough: func(trials []record.Trial) (bool, string) {
			enough, why, err := enough(r, trials)
			if err != nil {
				return false, err.Error()
			}
			return enough, why
		}}
	trials, runErr := runner.Run(ctx)
	p.done()
	return conclude(out, w, r, trials, runErr, f.show)
}

// enough reports whether a run without a number of blocks may end, and why, or what is missing.
func enough(r record.Run, trials []record.Trial) (bool, string, error) {
	var reached []string
	if r.Precision != nil {
		precise, why, err := analysis.Enough(r, trials)
		if err != nil || !precise {
			return false, why, err
		}
		reached = append(reached, "precise")
	}
	if len(r.Assert) > 0 {
		decided, why, err := analysis.Decided(r, trials)
		if err != nil || !decided {
			return false, why, err
		}
		reached = append(reached, "decided")
	}
	return len(reached) > 0, strings.Join(reached, " and "), nil
}

// newRecord is run.json.
func newRecord(s *spec.Spec, f runFlags, layout *cgroup.Layout) (record.Run, error) {
	resolved, err := json.Marshal(s)
	if err != nil {
		return record.Run{}, fmt.Errorf("encoding the spec: %w", err)
	}
	now := time.Now()
	if !f.seeded {
		f.seed = uint64(rand.Uint32()) // small enough for every reader of JSON
	}
	r := record.Run{
		Schema: record.RunSchema, ID: fmt.Sprintf("%s-%s-%d", s.Name, now.UTC().Format("20060102T150405Z"), os.Getpid()),
		Experiment: s.Name, Question: s.Question, Spec: resolved, Baseline: s.BaselineName(), Seed: f.seed, Blocks: s.Blocks,
		Plan:    engine.Plan(s, f.seed),
		Started: now, Version: self.Version, Build: self.Build(), Environment: environment(layout),
		Command: again(os.Args[1:]),
	}
	r.Headline, r.Metrics, r.Until = s.Headlines(), measured.Definitions(), s.Until.Seconds()
	r.Phrases, r.Traits, r.Lacks = s.Phrases(), s.Traits(), s.Lacks()
	r.Assert = s.Assertions()
	if s.Precision != nil {
		r.Precision = &record.Precision{Target: s.Precision.Target, Metrics: s.PreciseMetrics()}
	}
	if s.Open() {
		first := *s
		first.Blocks = 1 // the run adds the others
		r.Blocks, r.Plan = 1, engine.Plan(&first, f.seed)
	}
	if !f.seeded {
		r.Command = withFlag(r.Command, "--seed="+strconv.FormatUint(f.seed, 10))
	}
	return r, nil
}

// withFlag adds a flag to a command, before the arguments that are no flags of its own.
func withFlag(command []string, flag string) []string {
	at := slices.Index(command, "--")
	if at < 0 {
		at = len(command)
	}
	return slices.Insert(command, at, flag)
}

// again is the command that runs an experiment once more. A run never writes over another, so it goes into another
// directory.
func again(args []string) []string {
	command := []string{"tare"}
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--":
			return append(command, args[i:]...)
		case args[i] == "--out":
			i++
		case strings.HasPrefix(args[i], "--out="):
		default:
			command = append(command, args[i])
		}
	}
	return command
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

// conclude writes the summary, prints it or the report, and turns what went wrong into one error.
func conclude(out io.Writer, w *record.Writer, r record.Run, trials []record.Trial, runErr error, as shown) error {
	if len(trials) == 0 {
		return ended(r, trials, w.Dir(), runErr)
	}
	summary, err := analysis.Summarize(r, trials)
	if err != nil {
		return errors.Join(runErr, fmt.Errorf("summarizing %s: %w", w.Dir(), err))
	}
	if n := w.Trimmed(); n > 0 {
		summary.Warnings = append(summary.Warnings,
			fmt.Sprintf("%s too large for the record, which is without some details of them: "+
				"the warnings of their ledgers say which", several(n, "trial was", "trials were")))
	}
	written := errors.Join(w.WriteSummary(summary), writePage(w, summary, r, trials))
	show := func() error { return report.Text(out, summary, r, textOptions(out, w.Dir(), as.all)) }
	if as.json() {
		show = func() error { return report.JSON(out, summary) }
	}
	if err := show(); err != nil {
		written = errors.Join(written, fmt.Errorf("printing the report: %w", err))
	}
	if written == nil && !as.json() {
		fmt.Fprintf(out, "report:    %s\n", filepath.Join(w.Dir(), record.ReportFile))
	}
	if summary.Valid && runErr == nil {
		written = errors.Join(written, produce(out, w, r, trials, as.json()))
	}
	switch {
	case runErr != nil:
		return errors.Join(ended(r, trials, w.Dir(), runErr), written)
	case written != nil:
		return written
	}
	return concluded(w.Dir(), summary)
}

// concluded is the error of a run that is invalid, or whose assertions do not all hold. That one fails is a result, of
// whatever else the run cannot tell.
func concluded(dir string, s *analysis.Summary) error {
	if !s.Valid && s.Result() != analysis.Fails {
		return fault.New(fault.Invalid, dir, "change that and run it again; 'tare report' shows this run again",
			"the run is invalid: %s", strings.Join(s.InvalidReasons, "; "))
	}
	if s.Partial && s.Result() == analysis.Holds {
		return fault.New(fault.Invalid, dir, "run it again to its end", "the run is partial: %d of %d trials were done",
			s.Trials.Done, s.Trials.Planned)
	}
	return judged(dir, s)
}

// judged is the error of a run whose assertions do not all hold.
func judged(dir string, s *analysis.Summary) error {
	var not []string
	var advice string
	result := s.Result()
	for _, v := range s.Verdicts {
		if v.Result != result {
			continue
		}
		not = append(not, v.Assertion)
		for i := range v.Checks {
			advice = cmp.Or(advice, v.Checks[i].Advice())
		}
	}
	switch result {
	case analysis.Fails:
		return fault.New(fault.Exceeded, dir, "the table of assertions says by how much", "%s: %s",
			several(len(not), "assertion fails", "assertions fail"), strings.Join(not, "; "))
	case analysis.Undecided:
		return fault.New(fault.Invalid, dir, cmp.Or(advice, "the table of assertions says why"), "%s: %s",
			several(len(not), "assertion is undecided", "assertions are undecided"), strings.Join(not, "; "))
	}
	return nil
}

func several(n int, one, many string) string {
	if n == 1 {
		return "an " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// produce writes what guests make of the run, and says what that is.
func produce(out io.Writer, w *record.Writer, r record.Run, trials []record.Trial, silent bool) error {
	for _, g := range kind.All(kind.Subject) {
		p, ok := g.(measured.Producer)
		if !ok {
			continue
		}
		for _, made := range p.Produce(r, trials) {
			if err := w.WriteFile(made.File, []byte(made.Text)); err != nil {
				return err
			}
			if !silent {
				fmt.Fprintf(out, "made:      %s: %s\n", filepath.Join(w.Dir(), made.File), made.Says)
			}
		}
	}
	return nil
}

// writePage writes the run's page, the report for people who would rather look than read.
func writePage(w *record.Writer, s *analysis.Summary, r record.Run, trials []record.Trial) error {
	var b bytes.Buffer
	if err := report.HTML(&b, s, r, trials, report.HTMLOptions{Dir: w.Dir()}); err != nil {
		return err
	}
	return w.WriteFile(record.ReportFile, b.Bytes())
}

// begunOr gives the error of a run that was interrupted before its first trial, as while nodes join, the exit code of
// one that was interrupted later.
func begunOr(err error) error {
	if !errors.Is(err, context.Canceled) || fault.CodeOf(err) != fault.Internal {
		return err
	}
	return fault.New(fault.Invalid, "", "run it again", "interrupted before the first trial: nothing was measured")
}

// ended says that the run ended before its time. One that was interrupted is not what was asked for, and whoever waits
// for it must not take it for that: its exit code is that of an invalid run.
func ended(r record.Run, trials []record.Trial, dir string, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	whole := map[int]bool{}
	for _, t := range trials {
		if t.Validity.Failed == "" {
			whole[t.Index] = true
		}
	}
	return fault.New(fault.Invalid, dir, "'tare report "+dir+"' shows what there is",
		"interrupted: the run is partial, with %d of %d trials", len(whole), len(r.Plan))
}

// progress says on standard error how the run goes: one line that changes on a terminal, else a line for each block.
// What goes wrong is said in a line of its own on both.
type progress struct {
	w        io.Writer // for text
	raw      io.Writer // the same, for what steers the terminal
	terminal bool
	block    int  // last said
	warned   bool // that another run is under way
}

func newProgress(f *os.File, s *spec.Spec, r record.Run, dir string) *progress {
	p := &progress{w: stderr, raw: f, terminal: isatty.IsTerminal(f.Fd()), block: -1}
	for arm, why := range lists.ByKey(r.Absent) {
		fmt.Fprintf(p.w, "%s: the arm %s is left out: %s\n", s.Name, arm, why)
	}
	fmt.Fprintf(p.w, "%s: %s, into %s\n", s.Name, extent(s, r), filepath.Clean(dir))
	if r.Nodes != nil && r.Nodes.Scaled != "" {
		fmt.Fprintf(p.w, "%s: %s\n", s.Name, r.Nodes.Scaled)
	}
	for _, text := range engine.TooShort(s) {
		fmt.Fprintf(p.w, "%s: %s\n", s.Name, text)
	}
	return p
}

// extent is how long the run will be.
func extent(s *spec.Spec, r record.Run) string {
	block := quantity.Counted(len(r.Plan)/max(r.Blocks, 1), "trial")
	switch {
	case s.Precision != nil:
		return fmt.Sprintf("blocks of %s until intervals are within %.3g %%, at most about %s", block, 100*s.Precision.Target,
			quantity.Wait(s.Until))
	case s.Open():
		return fmt.Sprintf("blocks of %s for about %s", block, quantity.Wait(s.Until))
	}
	text := fmt.Sprintf("%s in %s, about %s", quantity.Counted(len(r.Plan), "trial"), quantity.Counted(r.Blocks, "block"),
		quantity.Wait(engine.Estimate(s)))
	if s.Repeat > 0 {
		text += fmt.Sprintf(" and at most %s more to repeat spoiled trials",
			quantity.Wait(time.Duration(s.Repeat*float64(engine.Estimate(s)))))
	}
	return text
}

// warn says once that another run is under way: its numbers and ours are not what they would be alone.
func (p *progress) warn(text string) {
	if p.warned {
		return
	}
	p.warned = true
	p.note("warning: %s; end one of them and run again", text)
}

// note writes a line in place of the one that changes.
func (p *progress) note(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *progress) say(at engine.Progress) {
	if t := at.Last; t != nil {
		for _, w := range t.Warned() {
			if w.Code == record.OtherRun || w.Code == record.LeftBehind {
				p.warn(w.Message)
			}
		}
	}
	if t := at.Last; t != nil && t.Validity.Failed == "" {
		if failed := t.FailedNodes(len(t.Nodes)); failed != "" {
			p.note("%s failed at nodes: %s", attemptOf(t, at), text.Line(failed))
		}
	}
	if t := at.Last; t != nil && !t.Validity.Valid {
		p.note("%s %s", attemptOf(t, at), whatIsWrong(t.Validity))
		if t.Validity.Failed != "" { // its warnings may say why
			for _, w := range t.Warnings {
				fmt.Fprintf(p.w, "  warning: %s\n", text.Line(w.Message))
			}
		}
	}
	if at.Note != "" {
		p.note("%s", at.Note)
	}
	if at.Next.Arm == "" {
		return
	}
	n := at.Next
	trial := fmt.Sprintf("trial %d", n.Index+1)
	where := fmt.Sprintf("block %d of %d", n.Block+1, at.Blocks)
	left := quantity.Wait(at.Left) + " left"
	if at.Open {
		where, left = fmt.Sprintf("block %d", n.Block+1), "at most "+left
		if at.Look > 0 {
			left += fmt.Sprintf(", looked at after block %d", at.Look)
		}
		if at.Why != "" {
			left += "; " + at.Why
		}
	} else {
		trial += fmt.Sprintf(" of %d", at.Total)
	}
	if at.Attempt > 0 {
		trial += " again"
	}
	switch {
	case p.terminal:
		arm := n.Arm
		if level := record.LevelName(n.Factors); level != "" {
			arm += ", " + level
		}
		p.clear()
		fmt.Fprintf(p.w, "%s, %s: %s; %s", trial, where, arm, left)
	case n.Block != p.block:
		fmt.Fprintf(p.w, "%s, %s; %s\n", where, trial, left)
	}
	p.block = n.Block
}

// attemptOf names an attempt at a trial.
func attemptOf(t *record.Trial, at engine.Progress) string {
	text := fmt.Sprintf("trial %d of %d (%s)", t.Index+1, at.Total, t.Arm)
	if at.Open {
		text = fmt.Sprintf("trial %d (%s)", t.Index+1, t.Arm)
	}
	if t.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d,", t.Attempt+1)
	}
	return text
}

// whatIsWrong says which gates a trial tripped, who did it, and what it cannot tell for that.
func whatIsWrong(v record.Validity) string {
	if v.Failed != "" {
		return "failed: " + v.Failed
	}
	var messages []string
	for _, r := range v.Reasons {
		text := r.Message
		if r.CauseShare != nil {
			text += fmt.Sprintf(" (%s: %.0f %% of the CPU time)", r.Cause, 100**r.CauseShare)
		} else if r.Cause != "" {
			text += fmt.Sprintf(" (cause: %s)", r.Cause)
		}
		messages = append(messages, text)
	}
	what := "is invalid: "
	switch voids, all := v.Voided(); {
	case all:
	case voids == 0:
		what = "tripped a gate, but all its metrics are good: "
	default:
		what = fmt.Sprintf("has lost %s: ", quantity.Counted(voids, "metric"))
	}
	return what + strings.Join(messages, "; ")
}

// clear takes back the line that changes.
func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.raw, "\r\x1b[K")
	}
}

func (p *progress) done() { p.clear() }

// interrupted may be called while say is: both write with one call each.
func (p *progress) interrupted() {
	text := "tare: interrupted; taking the trial down\n"
	if p.terminal {
		text = "\r\x1b[K" + text
	}
	fmt.Fprint(p.raw, text)
}
