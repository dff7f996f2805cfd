package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// Overrides holds the changes of the command line to a spec.
type Overrides struct {
	Blocks   int      // 0: as the spec says
	SampleHz int      // 0: as the spec says
	Quick    bool     // the short form
	Set      []string // factor=a,b: one value sets the setting, several sweep it

	Precision string        // as in a spec: 5%; empty: as the spec says
	Until     time.Duration // 0: as the spec says
	Assert    []string      // assertions in addition to the spec's
}

// Apply changes the spec. Its errors are faults with code Usage.
func (s *Spec) Apply(o Overrides) error {
	if o.Quick {
		s.applyQuick()
	}
	for _, set := range o.Set {
		if err := s.set(set); err != nil {
			return fault.New(fault.Usage, "--set "+set,
				"name a setting and its values: --set rate=1000 or --set rate=500,1000", "%s", err)
		}
	}
	if err := s.override(o); err != nil {
		return err
	}
	if err := s.checkSize(); err != nil {
		return fault.New(fault.Usage, s.Name, "take fewer levels or blocks", "%s", err)
	}
	if path, err := s.checkParts(); err != nil {
		return fault.New(fault.Usage, path, "see what --set changed", "%s", err)
	}
	for _, raw := range o.Assert {
		if err := s.assert(raw); err != nil {
			return fault.New(fault.Usage, "--assert", assertion.Hint, "%q %s", text.ClipTo(raw, 80), err)
		}
	}
	return nil
}

// override changes how often the run samples and when it ends.
func (s *Spec) override(o Overrides) error {
	var wrong error
	checked := func(flag string, setting param.Setting, text string) param.Values {
		text, err := setting.Canonical(text)
		if err != nil && wrong == nil {
			wrong = fault.New(fault.Usage, flag, setting.Hint(), "%q %s", setting.Name, err)
		}
		return param.Values{setting.Name: text}
	}
	if o.Blocks != 0 {
		s.Blocks = checked("--blocks", timeSettings[0], strconv.Itoa(o.Blocks)).Int(timeSettings[0].Name)
		s.Precision, s.Until = nil, 0
	}
	if o.SampleHz != 0 {
		s.SampleHz = checked("--hz", samplingSetting, strconv.Itoa(o.SampleHz)).Int(samplingSetting.Name)
	}
	if o.Precision != "" {
		p := Precision{Target: checked("--precision", precisionSetting, o.Precision).Part(precisionSetting.Name)}
		if s.Precision != nil {
			p.Metrics = s.Precision.Metrics
		}
		s.Precision = &p
	}
	if o.Until != 0 {
		s.Until = checked("--until", untilSetting, o.Until.String()).Duration(untilSetting.Name)
	}
	if wrong != nil {
		return wrong
	}
	if o.Blocks > 0 && (o.Precision != "" || o.Until > 0) {
		return fault.New(fault.Usage, "--blocks",
			"give either the number of blocks, or --precision and --until, which determine it",
			"cannot be combined with --precision or --until")
	}
	if err := s.checkOpen(); err != nil {
		return fault.New(fault.Usage, s.Name, "docs/metrics.md has the metrics", "%s", err)
	}
	return nil
}

func (s *Spec) applyQuick() {
	if s.Quick == nil {
		s.Blocks, s.Duration = min(s.Blocks, 6), min(s.Duration, time.Second)
		return
	}
	s.Blocks, s.Warmup, s.Duration = s.Quick.Blocks, s.Quick.Warmup, s.Quick.Duration
	for i, f := range s.Factors {
		if levels, ok := s.Quick.Levels[f.Name]; ok {
			s.Factors[i].Levels = levels
		}
	}
	if len(s.Quick.Arms) > 0 {
		maps.DeleteFunc(s.Arms, func(name string, _ *kind.Part) bool { return !slices.Contains(s.Quick.Arms, name) })
		s.dropIdleFactors()
	}
}

func (s *Spec) set(text string) error {
	name, list, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("there is no = in it")
	}
	if f := s.factor(name); f != nil && f.cases != nil {
		return f.choose(strings.Split(list, ","))
	}
	ts, err := s.find(name)
	if err != nil {
		return fmt.Errorf("%q %w", name, err)
	}
	var levels []string
	for _, v := range strings.Split(list, ",") {
		c, err := level(ts, v)
		if err != nil {
			return fmt.Errorf("%q %w", name, err)
		}
		if slices.Contains(levels, c) {
			return fmt.Errorf("%q has the value %s twice", name, c)
		}
		levels = append(levels, c)
	}
	f := newFactor(name, ts, levels)
	at := slices.IndexFunc(s.Factors, func(g Factor) bool { return slices.Equal(f.paths, g.paths) })
	if at < 0 && s.overlaps(f) {
		return fmt.Errorf("%q is swept by another factor of the spec", name)
	}
	switch {
	case at >= 0 && len(levels) > 1:
		s.Factors[at].Levels = levels
	case len(levels) > 1:
		s.Factors = append(s.Factors, f)
	default:
		if at >= 0 {
			s.Factors = slices.Delete(s.Factors, at, at+1)
		}
		for _, t := range ts {
			t.options[t.setting.Name] = levels[0]
		}
	}
	return nil
}

// overlaps reports whether f sets something that another factor sets too.
func (s *Spec) overlaps(f Factor) bool {
	return slices.ContainsFunc(f.paths, func(path string) bool { return s.sweeping(path) != nil })
}
