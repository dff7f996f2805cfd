package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/lib/fault"
	"tare/internal/results/report"
	"tare/internal/scale/charge"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/names"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/sandbox"
	"tare/internal/scale/ledger"
	"tare/internal/scale/live"
	"tare/internal/scale/meter"
)

// scaleFlags holds the flags of the commands that weigh this machine.
type scaleFlags struct {
	hz        int
	given     []ruleFlag
	profile   string
	sandboxes bool
	roots     []string
}

func (f *scaleFlags) register(fs *pflag.FlagSet) {
	fs.Var(&ruleValue{ledger.ChargeWorkload, &f.given}, string(ledger.ChargeWorkload),
		"what belongs to an application: 'NAME=/PATH' or 'NAME=SELECTOR'; may be repeated")
	fs.Var(&ruleValue{ledger.ChargeTare, &f.given}, string(ledger.ChargeTare),
		"what is infrastructure: 'SELECTOR[,workload=NAME][,component=NAME]'; may be repeated")
	fs.Var(&ruleValue{ledger.ChargeLoad, &f.given}, string(ledger.ChargeLoad),
		"what generates load for workloads: 'SELECTOR'; may be repeated")
	fs.Var(&ruleValue{"", &f.given}, "rules", "a YAML file of rules; may be repeated")
	fs.StringVar(&f.profile, "profile", "", "built-in rules, applied after yours: "+
		strings.Join(charge.Profiles(), ", ")+" (the infrastructure of a node)")
	fs.BoolVar(&f.sandboxes, "sandboxes", true, "list containers, pods and virtual machines")
	fs.StringArrayVar(&f.roots, "runtime-root", nil,
		"--root directory of runc or crun, in addition to the usual ones; may be repeated")
	fs.IntVar(&f.hz, "hz", perf.DefaultHz,
		"samples per second on each CPU; with 0, eBPF time is not split by who pays for it")
}

// scaleOptions holds what scaleFlags select, ready for use.
type scaleOptions struct {
	meter     meter.Options
	rules     []charge.Rule
	names     *names.Resolver
	sandboxes *sandbox.Options // nil: sandboxes are not looked for
}

// options checks the flags and returns what they select. Before it reads any file, it gives up the privileges that
// weighing does not need.
func (f *scaleFlags) options(ctx context.Context) (o scaleOptions, err error) {
	if f.hz < 0 || f.hz > perf.MaxHz {
		return o, fault.New(fault.Usage, fmt.Sprintf("--hz %d", f.hz), "try --hz 449",
			"the sampling rate must be from 0 (none) to %d per second on each CPU", perf.MaxHz)
	}
	if o.meter.SampleHz = f.hz; f.hz == 0 {
		o.meter.SampleHz = -1
	}
	if err := keepOnly(ctx, cap.DAC_READ_SEARCH, cap.SYS_PTRACE, cap.IPC_LOCK); err != nil {
		return o, err
	}
	if o.rules, err = readRules(f.given, f.profile); err != nil {
		return o, err
	}
	o.names = names.Open(names.Options{})
	found := sandbox.Options{}
	if found.RuntimeRoots, err = runtimeRoots(f.roots); err != nil {
		return o, err
	}
	if f.sandboxes {
		o.sandboxes = &found
	}
	return o, nil
}

// watch weighs this machine and its sandboxes repeatedly, and applies rules to the ledgers. It is not safe for
// concurrent use.
type watch struct {
	scaleOptions

	scale  *live.Scale
	layout *cgroup.Layout // needed to apply rules; nil without rules
}

// openWatch begins the first window. The caller must close the watch.
func openWatch(ctx context.Context, o scaleOptions) (w *watch, err error) {
	w = &watch{scaleOptions: o}
	if len(o.rules) > 0 {
		if w.layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
			return nil, err
		}
	}
	if o.sandboxes != nil {
		w.meter.Sandboxes = meter.NewSandboxes(*o.sandboxes)
	}
	if w.scale, err = live.Open(ctx, w.meter, live.Duty{}); err != nil {
		w.closeSandboxes()
		return nil, err
	}
	return w, nil
}

func (w *watch) closeSandboxes() {
	if w.meter.Sandboxes != nil {
		w.meter.Sandboxes.Close()
	}
}

// Next returns the ledger of the current window, which ends after d or when the context ends.
func (w *watch) Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error) {
	l, err := w.scale.Next(ctx, d)
	if err != nil {
		return nil, err
	}
	if w.meter.Sandboxes != nil {
		if err := w.meter.Sandboxes.Tick(l); err != nil {
			l.Warn("no-sandboxes", "sandboxes could not be read: %v", err)
		}
	}
	w.names.Fill(l)
	return l, applyRules(w.rules, w.layout, l)
}

// Close closes the scale and the sandboxes.
func (w *watch) Close() error {
	w.closeSandboxes()
	return w.scale.Close()
}

// source yields consecutive ledgers: from this machine (watch), or from an agent on another one.
type source interface {
	Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error)
	Close() error
}

// leastWindow is the shortest window: in a shorter one, too much of the time would go into reading the counters at its
// edges.
const leastWindow = 100 * time.Millisecond

// ticks are consecutive windows of one length.
type ticks struct {
	every time.Duration
	total time.Duration // of all windows; 0: until the context ends
}

// check returns an error for lengths that a window cannot have.
func (t ticks) check() error {
	if t.every < leastWindow || t.every > longestWindow {
		return fault.New(fault.Usage, "--every "+t.every.String(), "try --every 10s", "a window lasts from %v to %v",
			leastWindow, longestWindow)
	}
	if t.total > 0 && t.total < t.every {
		return fault.New(fault.Usage, fmt.Sprintf("--for %v --every %v", t.total, t.every),
			"--for is the length of all windows together: leave it out to go on until Ctrl-C",
			"--for must be at least --every")
	}
	return nil
}

// write writes a ledger for each tick. When the context ends, the last ledger covers the time until then.
func (t ticks) write(
	ctx context.Context, out io.Writer, s source, write report.Writer[iter.Seq[*ledger.Ledger]], o report.Options,
) error {
	var failed error
	err := write(out, func(yield func(*ledger.Ledger) bool) {
		for tick := range t.lengths(ctx) {
			l, err := s.Next(ctx, tick)
			if err != nil && ctx.Err() == nil || err != nil && !errors.Is(err, context.Canceled) {
				failed = err
			}
			if err != nil || !yield(l) || unheard(out) {
				return
			}
		}
	}, o)
	return cmp.Or(failed, err)
}

// lengths yields how long each tick still has to last. The ticks follow a clock, so after a late tick the next one is
// shorter. If it would be too short, it has its full length instead, and all later ticks shift. With a total, the last
// tick ends when the total does, so that tick may be shorter than the others, or up to leastWindow longer.
func (t ticks) lengths(ctx context.Context) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		begin := time.Now()
		at := begin
		for last := false; !last && ctx.Err() == nil; {
			if at = at.Add(t.every); time.Until(at) < min(leastWindow, t.every/2) {
				at = time.Now().Add(t.every)
			}
			if end := begin.Add(t.total); t.total > 0 && end.Sub(at) < leastWindow {
				at, last = end, true
			}
			if !yield(time.Until(at)) {
				return
			}
		}
	}
}
