// Package spec holds an experiment as a person writes it and as it is resolved. Parse reads the file and checks every
// key against the settings that guests (applications, loads and subjects) declare, Apply applies the command line, At
// returns the experiment at one level, and As returns it as one arm runs it. Nothing in the package starts anything.
package spec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/scale/host/perf"
)

// Spec is a resolved experiment: every default is filled in. Its JSON form is itself a spec that Parse accepts, except
// that numbers inside the parts are strings.
type Spec struct {
	Name     string
	Question string
	Needs    []string // features of the machine
	Blocks   int
	kind.Setup
	SampleHz  int          // samples per second on each CPU, by which eBPF time is divided among control groups
	Whole     param.Values // settings of the whole experiment that can be factors: see nodesSetting
	Factors   []Factor
	Repeat    float64       // how long spoiled trials may be repeated, as a fraction of the planned time
	Precision *Precision    // how narrow intervals must be for the run to end; nil: it ends whatever their width
	Until     time.Duration // how long a run without a number of blocks may take; 0: it ends after Blocks
	Assert    []assertion.Assertion
	Quick     *Quick   // the short form; nil: --quick only limits the blocks and the window
	Cluster   *Cluster // how it runs in pods; nil: on any nodes, with default times

	places map[string]string // where each part is defined (file:line:column), by the part's path
}

// Precision says how narrow intervals must be for a run to end.
type Precision struct {
	Target  float64  // half-width as a fraction of the value; for a difference, of the baseline's value
	Metrics []string // the metrics whose intervals must be this narrow; if empty, see Spec.PreciseMetrics
}

// Factor is a setting, or several, that the experiment sweeps.
type Factor struct {
	Name   string   // as written in the spec
	Levels []string // canonical
	paths  []string // the settings that it sets

	// cases holds the values of a factor whose levels each set several settings, by level and path. Nil: the level itself
	// is the value of every setting in paths.
	cases map[string]map[string]string
}

// sets returns the values that the factor sets at a level, by the path of the setting.
func (f *Factor) sets(level string) map[string]string {
	if f.cases != nil {
		return f.cases[level]
	}
	values := map[string]string{}
	for _, p := range f.paths {
		values[p] = level
	}
	return values
}

// Quick is the short form of an experiment.
type Quick struct {
	Blocks           int
	Warmup, Duration time.Duration
	Levels           map[string][]string // by factor; a factor without an entry keeps its levels
	Arms             []string            // the arms that run; none: all
}

// Settings of the whole experiment rather than of a part.
var (
	timeSettings = []param.Setting{
		{Name: "blocks", Type: param.TypeCount, Default: "10", Min: 1, Max: 10_000,
			Doc: "times every arm runs at every level; intervals need 6"},
		{Name: "warmup", Type: param.TypeDuration, Default: "500ms", Max: 600,
			Doc: "time under load before the measured window"},
		{Name: "duration", Type: param.TypeDuration, Default: "2s", Min: 0.05, Max: 3600,
			Doc: "measured window of each trial"},
	}
	samplingSetting = param.Setting{Name: "sampling", Type: param.TypeCount, Default: "997", Min: 1, Max: perf.MaxHz,
		Doc: "samples per second on each CPU, which split eBPF time by control group; each costs about 1 us"}
	statisticsSetting = param.Setting{Name: "statistics", Type: param.TypeSwitch, Default: "true",
		Doc: "whether the kernel counts run time of eBPF programs, at 20 to 50 ns a run"}
	repeatSetting = param.Setting{Name: "repeat", Type: param.TypePart, Default: "50%", Max: 10,
		Doc: "most time for repeating trials that something other than the subject spoiled, as a part of the planned " +
			"time; 0%: no trial is repeated"}
	precisionSetting = param.Setting{Name: "precision", Type: param.TypePart, Min: 0.001, Max: 1,
		Doc: "half-width of intervals at which the run ends, as a part of the value, or of the baseline's for a " +
			"difference"}
	untilSetting = param.Setting{Name: "until", Type: param.TypeDuration, Min: 1, Max: 7 * 24 * 3600,
		Doc: "time after which no further block begins; with `precision`, 30m when left out. Without `precision`, the run " +
			"goes on until then, whatever `blocks` is"}

	wholeSettings = []param.Setting{samplingSetting, statisticsSetting, repeatSetting, untilSetting}
)

// maxTrials and maxPlaces bound a plan, because its record is bounded.
const (
	maxTrials = record.MaxTrials
	maxPlaces = record.MaxPlaces // combinations of an arm and a level
)

// Level is one value of each factor, by its name.
type Level map[string]string

// Levels returns all combinations of the factors' levels; the last factor in order of name changes fastest. Without
// factors there is one empty level.
func (s *Spec) Levels() []Level {
	levels := []Level{{}}
	// Sorted by name, because the resolved spec keeps factors in an object, without an order, and must make the same
	// plan.
	byName := func(a, b Factor) int { return strings.Compare(a.Name, b.Name) }
	for _, f := range slices.SortedFunc(slices.Values(s.Factors), byName) {
		var next []Level
		for _, l := range levels {
			for _, v := range f.Levels {
				n := maps.Clone(l)
				n[f.Name] = v
				next = append(next, n)
			}
		}
		levels = next
	}
	return levels
}

// AllArms returns the names of all arms: the baseline, its A/A twin (a second baseline), then the spec's own arms in
// order of name.
func (s *Spec) AllArms() []string {
	return append([]string{record.Direct, record.AA}, slices.Sorted(maps.Keys(s.Arms))...)
}

// BaselineName returns the name in reports of a baseline that is a subject: the value of the setting that distinguishes
// subjects of its kind, or else the name of the kind. It returns "" for other baselines.
func (s *Spec) BaselineName() string {
	b := s.Baseline
	if b == nil {
		return ""
	}
	about := b.Kind.About()
	return cmp.Or(b.Options[about.Label], about.Name)
}

// Traits returns remarks that accompany an arm's name in reports, by arm. An arm whose trait a factor changes has
// none.
func (s *Spec) Traits() map[string]string {
	traits := map[string]string{}
	add := func(arm, path string, p *kind.Part) {
		label := path + "." + p.Kind.About().Label
		if trait := p.Kind.About().Trait; trait != nil && s.sweeping(label) == nil {
			traits[arm] = trait(p.Options)
		}
	}
	for name, p := range s.Arms {
		add(name, "arms."+name, p)
	}
	if s.Baseline != nil {
		add(record.Direct, "baseline", s.Baseline)
	}
	maps.DeleteFunc(traits, func(_, trait string) bool { return trait == "" })
	return traits
}

// Lacks returns, by arm, the work that the other arms in the comparison do and this one does not.
func (s *Spec) Lacks() map[string]string {
	lacks := map[string]string{}
	for name, p := range s.Arms {
		if lacking := p.Kind.About().Lacks; lacking != nil {
			lacks[name] = lacking(&s.Setup)
		}
	}
	maps.DeleteFunc(lacks, func(_, words string) bool { return words == "" })
	return lacks
}

// At returns a copy of the spec with every factor set to its value in l, without parts whose count is then 0.
func (s *Spec) At(l Level) *Spec {
	c := s.clone()
	for _, f := range s.Factors {
		c.assign(f.sets(l[f.Name]))
	}
	c.dropIdle()
	return c
}

// dropIdle removes the applications and loads whose count is 0.
func (s *Spec) dropIdle() {
	idle := func(_ string, p *kind.Part) bool { return p.Options[kind.CountSetting] == "0" }
	maps.DeleteFunc(s.Applications, idle)
	maps.DeleteFunc(s.Loads, idle)
}

// assign sets settings by their paths; unknown paths are ignored.
func (s *Spec) assign(values map[string]string) {
	for path, value := range values {
		if t, ok := s.target(path); ok {
			t.options[t.setting.Name] = value
		}
	}
}

// clone returns a copy whose settings can be changed without changing s.
func (s *Spec) clone() *Spec {
	c := *s
	c.Setup, c.Whole = s.Setup.Clone(), s.Whole.Clone()
	return &c
}

// WithCopies returns the spec with every part of a count above one replaced by its copies.
func (s *Spec) WithCopies() *Spec {
	c := *s
	c.Setup = s.Setup.Copies()
	return &c
}

// OnEach returns the spec with every part replaced by n copies, one for each of n nodes.
func (s *Spec) OnEach(n int) *Spec {
	c := *s
	c.Setup = s.Setup.OnEach(n)
	return &c
}

// target is one setting that a factor can set.
type target struct {
	path    string // such as loads.client.rate
	setting param.Setting
	options param.Values
}

func (s *Spec) targets() []target {
	all := []target{{nodesSetting.Name, nodesSetting, s.Whole}}
	for _, sec := range s.Sections() {
		for name, p := range lists.ByKey(sec.Parts) {
			at := sec.Path(name) + "."
			settings := p.Settings()
			if !sec.Weighs() {
				settings = slices.Concat(settings, kind.CopySettings)
			}
			for _, k := range settings {
				all = append(all, target{at + k.Name, k, p.Options})
			}
			if !p.TakesLimits() {
				continue
			}
			for _, k := range kind.LimitSettings {
				all = append(all, target{at + "limits." + k.Name, k, p.Limits})
			}
		}
	}
	return all
}

func (s *Spec) target(path string) (target, bool) {
	t := lists.Find(s.targets(), func(t *target) bool { return t.path == path })
	return known.Or(t, target{}), t != nil
}

// find returns the targets that a factor's name means: the end of one path ("rate", "client.rate",
// "loads.client.rate"), or several paths if the name has a * in it ("loads.*.rate"). The error continues a sentence
// that begins with the factor's name.
func (s *Spec) find(name string) ([]target, error) {
	var found []target
	var ends []string
	pattern := strings.ReplaceAll(name, ".", "/")
	for _, t := range s.targets() {
		segments := strings.Split(t.path, ".")
		for i := range segments {
			end := strings.Join(segments[i:], ".")
			ends = append(ends, end)
			if match, err := path.Match(pattern, strings.ReplaceAll(end, ".", "/")); err == nil && match {
				found = append(found, t)
				break
			}
		}
	}
	if len(found) > 1 && !strings.Contains(name, "*") {
		isSet := func(t target) bool { _, ok := t.options[t.setting.Name]; return ok }
		if i := slices.IndexFunc(found, isSet); i >= 0 && !slices.ContainsFunc(found[i+1:], isSet) {
			found = found[i : i+1] // of a closed and an open load, only the open one has a rate
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("names no setting of this experiment%s", text.DidYouMean(name, ends))
	case len(found) > 1 && !strings.Contains(name, "*"):
		return nil, fmt.Errorf("could mean %s; write one of them in full, or with a * to set all", joinPaths(found))
	}
	for _, t := range found[1:] {
		if t.setting.Type != found[0].setting.Type {
			return nil, fmt.Errorf("sets values of different types: %s", joinPaths(found))
		}
	}
	return found, nil
}

func pathsOf(ts []target) []string { return lists.Map(ts, func(t target) string { return t.path }) }

func joinPaths(ts []target) string {
	return strings.Join(pathsOf(ts), ", ")
}

// level returns the canonical form of one level, which must be valid for all targets.
func level(ts []target, text string) (string, error) {
	for _, t := range ts[1:] {
		if _, err := t.setting.Canonical(text); err != nil {
			return "", err
		}
	}
	return ts[0].setting.Canonical(text)
}

// factor returns the factor of that name, or nil.
func (s *Spec) factor(name string) *Factor {
	return lists.Find(s.Factors, func(f *Factor) bool { return f.Name == name })
}

// sweeping returns the factor that sets the setting at a path, or nil.
func (s *Spec) sweeping(path string) *Factor {
	return lists.Find(s.Factors, func(f *Factor) bool { return slices.Contains(f.paths, path) })
}

// choose keeps only the given cases of the factor, in the given order.
func (f *Factor) choose(levels []string) error {
	for i, level := range levels {
		if !slices.Contains(f.Levels, level) {
			return fmt.Errorf("%q has no case %q%s", f.Name, text.Clip(level), text.DidYouMean(level, f.Levels))
		}
		if slices.Contains(levels[:i], level) {
			return fmt.Errorf("%q has the case %s twice", f.Name, level)
		}
	}
	f.Levels = levels
	return nil
}

func newFactor(name string, ts []target, levels []string) Factor {
	return Factor{Name: name, Levels: levels, paths: pathsOf(ts)}
}

// checkSize refuses a plan that is too large for a record, or whose assertions need too many checks.
func (s *Spec) checkSize() error {
	places := len(s.AllArms())
	for _, f := range s.Factors {
		if places > maxPlaces {
			break // multiplying further could overflow
		}
		places *= len(f.Levels)
	}
	switch {
	case places > maxPlaces:
		return fmt.Errorf("the plan has arms at more than %d levels in all", maxPlaces)
	case s.Blocks > maxTrials/max(places, 1):
		return fmt.Errorf("the plan has more than %d trials", maxTrials)
	case places*len(s.Assert) > assertion.MostChecks:
		return fmt.Errorf("%d assertions of arms at %d levels are more than %d checks", len(s.Assert), places,
			assertion.MostChecks)
	}
	return nil
}

// checkParts checks all options of every part at every level. It returns the path of the part at fault.
func (s *Spec) checkParts() (path string, err error) {
	for _, l := range s.Levels() {
		c := s.At(l)
		if path, err := s.checkVariants(c); err != nil {
			return path, err
		}
		for _, sec := range c.Sections() {
			for name, p := range lists.ByKey(sec.Parts) {
				path := sec.Path(name)
				err := c.checkPart(path, p)
				if other := (*kind.ElsewhereError)(nil); errors.As(err, &other) {
					return other.Path, other.Err
				}
				if err != nil {
					return path, err
				}
			}
		}
	}
	return "", nil
}

// checkPart checks one part by itself and with the rest of the experiment.
func (s *Spec) checkPart(path string, p *kind.Part) error {
	to := s.Applications[p.To]
	if to == nil && p.To != "" {
		return fmt.Errorf("it goes to %q, which does not run at one of the levels", p.To)
	}
	if to != nil && !kind.Reaches(p.Kind.About(), to.Kind.About()) {
		return fmt.Errorf("a load of kind %s cannot go to an application of kind %s", p.Name(), to.Name())
	}
	if err := s.CheckCopies(p); err != nil {
		return err
	}
	if c, ok := p.Kind.(kind.Checker); ok {
		err := c.Check(p.Options)
		if hint := fault.HintOf(err); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
		if err != nil {
			return err
		}
	}
	if c, ok := p.Kind.(kind.SetupChecker); ok {
		return c.CheckSetup(&s.Setup, path, p)
	}
	return nil
}

// defaultUntil ends a run that never reaches its precision.
const defaultUntil = 30 * time.Minute

// Open reports whether the run ends by its precision or by the clock, and not after a number of blocks.
func (s *Spec) Open() bool { return s.Precision != nil || s.Until > 0 }

// checkOpen fills in and checks the settings of a run without a number of blocks. The error continues a sentence that
// begins with the spec's place.
func (s *Spec) checkOpen() error {
	if s.Precision == nil {
		return nil
	}
	if s.Until == 0 {
		s.Until = defaultUntil
	}
	for _, name := range s.Precision.Metrics {
		if _, known := measured.Find(name); !known {
			return fmt.Errorf("there is no metric %q%s", text.Clip(name), text.DidYouMean(name, names(measured.Metrics())))
		}
	}
	return nil
}

func names(metrics []measured.Metric) []string {
	return lists.Map(metrics, func(m measured.Metric) string { return m.Name })
}

// Headlines returns the names of the metrics that the experiment's answer contains if the trials have values of them.
func (s *Spec) Headlines() []string { return names(measured.Headlines(&s.Setup)) }

// PreciseMetrics returns the metrics whose intervals decide when a run with a precision ends: those that the spec
// names, or else the headlines. It leaves out two kinds that a spec must name: quantiles above the median, which need
// many times the blocks, and pooled fractions, which may stay 0 for ever.
func (s *Spec) PreciseMetrics() []string {
	if s.Precision == nil {
		return nil
	}
	if len(s.Precision.Metrics) > 0 {
		return s.Precision.Metrics
	}
	return names(slices.DeleteFunc(measured.Headlines(&s.Setup), func(m measured.Metric) bool {
		return m.Tail || m.Count != nil
	}))
}
