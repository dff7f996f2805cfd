package session

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/results/analysis"
	"tare/internal/results/flame"
)

// writeProfiles writes the sum of the profiles of each arm, and the page with flame graphs. It reports whether trials
// have profiles at all. As in the summary, only one attempt at each trial counts: the first in which the profiled
// metric is valid. The trials of an arm share a graph only if their CPU time has the same unit: it is per request, but
// not in trials whose number of requests is unknown.
func writeProfiles(w *record.Writer, s *analysis.Summary, run record.Run, trials []record.Trial) (bool, error) {
	type place struct{ level, arm, unit string }
	arms, graphs := map[string]*merged{}, map[place]*flame.Graph{}
	var order []place
	seen := map[int]bool{}
	for _, t := range trials {
		if t.Profile == nil || !t.Validity.Stands(t.Profile.Metric) || seen[t.Index] {
			continue
		}
		seen[t.Index] = true
		data, err := w.ReadProfile(path.Base(t.Profile.File))
		if err != nil {
			return false, err
		}
		p, err := pprof.ParseData(data)
		if err != nil {
			return false, fmt.Errorf("reading %s: %w", t.Profile.File, err)
		}
		at := place{record.LevelKey(t.Factors), t.Arm, t.Profile.Unit}
		g := graphs[at]
		if g == nil {
			g = &flame.Graph{Title: strings.TrimSpace(s.ArmName(t.Arm) + " " + s.At(t.Factors)), Unit: t.Profile.Unit}
			graphs[at] = g
			order = append(order, at)
		}
		g.Add(p, t.Profile.Divisor)
		if arms[t.Arm] == nil {
			arms[t.Arm] = &merged{}
		}
		if err := arms[t.Arm].add(p); err != nil {
			return false, err
		}
	}
	if len(arms) == 0 {
		return false, nil
	}
	for arm, m := range lists.ByKey(arms) {
		if err := m.write(w, arm); err != nil {
			return false, err
		}
	}
	slices.SortStableFunc(order, func(a, b place) int { return analysis.CompareArms(a.arm, b.arm) })
	var all []*flame.Graph
	for _, at := range order {
		if at.arm == record.AA {
			continue
		}
		g := graphs[at]
		if at.arm != record.Direct {
			g.Base = graphs[place{at.level, record.Direct, at.unit}]
		}
		all = append(all, g)
	}
	html, err := flame.Page(run.Experiment, all)
	if err != nil {
		return false, err
	}
	return true, w.WriteProfile(record.StacksFile, html)
}

// merged is the sum of the profiles of an arm's trials.
type merged struct {
	sum    *pprof.Profile
	trials int
}

func (m *merged) add(p *pprof.Profile) (err error) {
	for _, s := range p.Sample {
		s.NumLabel = nil // process IDs, which differ between trials
	}
	all := []*pprof.Profile{p}
	if m.sum != nil {
		all = append(all, m.sum)
	}
	m.trials++
	if m.sum, err = pprof.Merge(all); err != nil {
		return fmt.Errorf("merging profiles: %w", err)
	}
	return nil
}

func (m *merged) write(w *record.Writer, arm string) error {
	m.sum.Comments = append(m.sum.Comments,
		fmt.Sprintf("the sum of %s of the arm %s", quantity.Counted(m.trials, "trial"), arm))
	var b bytes.Buffer
	if err := m.sum.Write(&b); err != nil {
		return fmt.Errorf("encoding the profile of %s: %w", arm, err)
	}
	return w.WriteProfile(arm+".pb.gz", b.Bytes())
}
