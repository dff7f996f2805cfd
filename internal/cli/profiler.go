package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/quantity"
	"tare/internal/results/report"
	"tare/internal/scale/host/ksym"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
	"tare/internal/scale/profile"
)

// stacksHz is how many samples of stacks are taken in a second on each CPU. It is odd, so that samples do not keep step
// with timers of round rates.
const stacksHz = 99

// profiler takes a profile beside a window, and writes it to a file. With no file, or nil, it does nothing.
type profiler struct {
	file string
	say  io.Writer // how many samples there are

	stacks *meter.Stacks
	window *profile.Window
}

func (p *profiler) begin() (err error) {
	if p != nil && p.file != "" {
		p.stacks, err = meter.OpenStacks(stacksHz)
	}
	return err
}

func (p *profiler) end() (err error) {
	if p != nil && p.stacks != nil {
		p.window, err = p.stacks.End()
	}
	return err
}

// write writes the profile, with the CPU time and the charges of groups as a ledger of the same window has them.
func (p *profiler) write(l *ledger.Ledger) error {
	if p == nil || p.window == nil {
		return nil
	}
	tree, groups := report.NewGroupTree(l.Cgroups), map[string]profile.Group{}
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		labels := map[string]string{"charge": string(g.Charge), "component": g.Component, "workload": g.Workload}
		if g.Name != nil {
			labels["namespace"], labels["pod"], labels["container"] = g.Name.Namespace, g.Name.Pod, g.Name.Container
			labels["unit"] = g.Name.Unit
		}
		is := profile.Group{Seconds: tree.OwnCPU(i), Labels: labels}
		if was, twice := groups[g.Path]; twice { // it was removed and made again
			if is.Seconds = sumOfKnown(was.Seconds, is.Seconds); g.Vanished {
				is.Labels = was.Labels
			}
		}
		groups[g.Path] = is
	}
	table := ksym.Open()
	defer table.Close()
	hidden := false
	names := func(addresses []uint64) ([]string, error) {
		names, err := table.Resolve(addresses)
		if hidden = errors.Is(err, ksym.ErrHidden); hidden {
			return make([]string, len(addresses)), nil
		}
		return names, err
	}
	built, err := profile.Build(p.window, profile.NewFiles(names), groups)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := errors.Join(built.Write(&b), files.Replace(p.file, b.Bytes(), 0o644)); err != nil {
		return fault.Wrap(err, fault.Machine, "--pprof "+p.file, "", "the profile cannot be written")
	}
	samples, ns := 0, int64(0)
	for _, s := range built.Sample {
		samples, ns = samples+int(s.Value[0]), ns+s.Value[1]
	}
	fmt.Fprintf(p.say, "%s: %s, for %s of CPU time: go tool pprof -http=: %[1]s\n", p.file,
		quantity.Counted(samples, "sample"), quantity.Value(float64(ns)/1e9, quantity.Seconds))
	for _, c := range built.Comments {
		fmt.Fprintln(p.say, c)
	}
	if hidden {
		fmt.Fprintf(p.say, "functions of the kernel have no names: %v\n", ksym.ErrHidden)
	}
	return nil
}

// sumOfKnown is the sum of what is known, unlike known.Sum; nil where nothing is.
func sumOfKnown(a, b *float64) *float64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return new(*a + *b)
}
