package session

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/results/flame"
)

// writeProfiles writes, where trials have profiles, one of each arm and the page with flame graphs. It says whether
// there are any.
func writeProfiles(w *record.Writer, s *analysis.Summary, run record.Run, trials []record.Trial) (bool, error) {
	type place struct{ level, arm string }
	arms, graphs := map[string][]*pprof.Profile{}, map[place]*flame.Graph{}
	var order []place
	for _, t := range trials {
		if t.Profile == nil || !t.Validity.Stands(t.Profile.Metric) {
			continue
		}
		data, err := w.ReadProfile(path.Base(t.Profile.File))
		if err != nil {
			return false, err
		}
		p, err := pprof.ParseData(data)
		if err != nil {
			return false, fmt.Errorf("reading %s: %w", t.Profile.File, err)
		}
		for _, sample := range p.Sample {
			sample.NumLabel = nil // processes, of which each trial has others
		}
		arms[t.Arm] = append(arms[t.Arm], p)
		at := place{record.LevelKey(t.Factors), t.Arm}
		g := graphs[at]
		if g == nil {
			g = &flame.Graph{
				Title: strings.TrimSpace(s.ArmName(t.Arm) + " " + s.At(t.Factors)),
				Unit:  run.Defined().Of(t.Profile.Metric).Unit,
			}
			graphs[at] = g
			order = append(order, at)
		}
		g.Profiles, g.Divisor = append(g.Profiles, p), g.Divisor+t.Profile.Divisor
	}
	if len(arms) == 0 {
		return false, nil
	}
	for _, arm := range slices.Sorted(maps.Keys(arms)) {
		if err := writeProfile(w, arm, arms[arm]); err != nil {
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
			g.Base = graphs[place{at.level, record.Direct}]
		}
		all = append(all, g)
	}
	html, err := flame.Page(run.Experiment, all)
	if err != nil {
		return false, err
	}
	return true, w.WriteProfile(record.StacksFile, html)
}

// writeProfile writes the mean of the profiles of an arm's trials, so that those of two arms can be compared:
// go tool pprof -diff_base direct.pb.gz ARM.pb.gz.
func writeProfile(w *record.Writer, arm string, all []*pprof.Profile) error {
	merged, err := pprof.Merge(all)
	if err != nil {
		return fmt.Errorf("merging the profiles of %s: %w", arm, err)
	}
	merged.Scale(1 / float64(len(all)))
	merged.Comments = append(merged.Comments, fmt.Sprintf("the mean of %d trials of the arm %s", len(all), arm))
	var b bytes.Buffer
	if err := merged.Write(&b); err != nil {
		return fmt.Errorf("encoding the profile of %s: %w", arm, err)
	}
	return w.WriteProfile(arm+".pb.gz", b.Bytes())
}
