// Package experiment turns a question into trials: a spec, as a person writes it, becomes a plan of randomised blocks, and each
// trial of the plan runs with fresh processes in control groups of their own, between the two edges of one window.
//
// Its rules: an A/A twin beside every baseline, a recorded seed, gates on every trial, and no trial dropped in silence.
package experiment

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/fault"
	"tare/internal/record"
)

// Spec is an experiment as resolved: every default is filled in. Its JSON form is itself a spec that Parse accepts, save that
// numbers inside the parts are strings.
type Spec struct {
	Name         string
	Question     string
	Needs        []string // features of the machine
	Blocks       int
	Warmup       time.Duration
	Duration     time.Duration
	SampleHz     int     // of the sampler that splits eBPF time by control group, per CPU
	Statistics   bool    // the kernel counts runs and run time of eBPF programs
	Whole        Options // settings of the whole that can be factors: see nodesKnob
	Applications map[string]*Part
	Loads        map[string]*Part
	Arms         map[string]*Part // beside record.Direct and record.AA, which every experiment has
	Baseline     *Part            // the subject that these two run; null: none
	Factors      []Factor
	Gates        Options
	Repeat       float64       // how long trials that were spoiled may be run again, as a part of the time that the plan takes
	Precision    *Precision    // how narrow intervals must be for the run to end; null: Blocks says when
	Until        time.Duration // how long a run without a number of blocks may take; 0: Blocks says when
	Quick        *Quick        // what --quick changes
}

// Precision is how narrow intervals must be for a run to end.
type Precision struct {
	Target  float64  // half-width as a part of the value; of a difference, as a part of the baseline's value
	Metrics []string // that must be so; none: those that answers speak of, without quantiles above the median
}

// Part is an application, a load or an arm's subject.
type Part struct {
	Kind    *Kind
	To      string // loads: the application it goes to
	Options Options
	Limits  Options // of its control group; empty: none
}

// Factor is what the experiment sweeps.
type Factor struct {
	Name   string   // as the spec calls it
	Levels []string // canonical
	paths  []string // the knobs that it sets
}

// Quick is the short form of an experiment.
type Quick struct {
	Blocks           int
	Warmup, Duration time.Duration
	Levels           map[string][]string // by factor; a factor that is not named keeps its levels
	Arms             []string            // those that run; none: all
}

// The knobs that are no part's own.
var (
	timeKnobs = []Knob{
		{Name: "blocks", Type: TypeCount, Default: "10", Min: 1, Max: 10_000, Doc: "how often every arm runs at every level; 6 are needed for intervals"},
		{Name: "warmup", Type: TypeDuration, Default: "500ms", Max: 600, Doc: "time under load before the window opens, which is not counted"},
		{Name: "duration", Type: TypeDuration, Default: "2s", Min: 0.05, Max: 3600, Doc: "length of the measured window of each trial"},
	}
	samplingKnob = Knob{Name: "sampling", Type: TypeCount, Default: "997", Min: 1, Max: 20_000,
		Doc: "samples per second and CPU, by which eBPF time is split by control group; short runs of programs need many, and each costs the machine about a microsecond"}
	statisticsKnob = Knob{Name: "statistics", Type: TypeSwitch, Default: "true",
		Doc: "whether the kernel counts how often and how long eBPF programs run; it makes each run 20 to 50 ns longer, so false where a subject times programs itself: there is no run time of eBPF in the record then"}
	countKnob = Knob{Name: "count", Type: TypeCount, Default: "1", Min: 1, Max: maxCopies,
		Doc: "how many copies run side by side, each a process in a control group of its own; rate, connections and limits are of all of them together, and each has an even part"}
	repeatKnob = Knob{Name: "repeat", Type: TypePart, Default: "50%", Max: 10,
		Doc: "how long trials that somebody other than the subject spoiled may be run again, as a part of the time that the plan takes; 0% never runs one again"}
	precisionKnob = Knob{Name: "precision", Type: TypePart, Min: 0.001, Max: 1,
		Doc: "half-width that intervals must reach for the run to end, as a part of the value, and of a difference as a part of the baseline's value; when left out, `blocks` says when it ends"}
	untilKnob = Knob{Name: "until", Type: TypeDuration, Min: 1, Max: 7 * 24 * 3600,
		Doc: "time after which no further block begins; with `precision` 30m when left out, and without it the run goes on until then"}
	limitKnobs = []Knob{
		{Name: "cpus", Type: TypeNumber, Min: 0.01, Max: 4096, Doc: "CPU seconds per second of the group, 1 is one whole CPU"},
		{Name: "memory", Type: TypeBytes, Min: 4 << 20, Doc: "memory of the group"},
		{Name: "pin", Type: TypeCount, Min: 1, Max: 4096, Doc: "the one CPU that its process runs on: the first of the machine is 1, and on a machine with fewer it goes round again"},
	}
	gateKnobs = []Knob{
		{Name: "rate", Type: TypeNumber, Default: "0.99", Max: 1, Doc: "part of the intended requests that must be answered within the window"},
		{Name: "errors", Type: TypeNumber, Default: "0.001", Max: 1, Doc: "part of the intended requests that may fail or stay unanswered"},
		{Name: "generator_cpu", Type: TypeNumber, Default: "0.7", Max: 1, Doc: "part of its CPUs that a load generator may use"},
		{Name: "lag", Type: TypeDuration, Default: "25ms", Max: 60, Doc: "how late the generator may start the 99th percentile of requests by its own fault"},
		{Name: "drift", Type: TypeNumber, Default: "0.5", Max: 1000, Doc: "how far apart the halves of the window may be, as a part of the smaller: in median latency, or in throughput when the load is closed"},
		{Name: "throttled", Type: TypeDuration, Default: "0s", Max: 3600, Doc: "time that a group without a CPU limit of its own may be throttled"},
		{Name: "held", Type: TypeNumber, Default: "0", Max: 1, Doc: "part of its periods in which a group with a CPU limit must be throttled, for experiments about the limit"},
		{Name: "connections", Type: TypeNumber, Default: "1", Max: 1, Doc: "part of the connections asked for that must be open at once, where the load holds them"},
		{Name: "nodes", Type: TypeNumber, Default: "0.5", Max: 1, Doc: "part of the nodes of a trial at which it may fail before it is invalid"},
		{Name: "invalid", Type: TypeNumber, Default: "0.25", Max: 1, Doc: "part of the trials of an arm at a level that a metric may lose before it is withheld"},
	}
)

// maxTrials bounds a plan: a year of trials is a slip of the pen.
const maxTrials = 100_000

// Level is one value of each factor, by its name.
type Level map[string]string

// Levels are all combinations of the factors' levels, the last factor changing fastest. Without factors there is one, empty.
func (s *Spec) Levels() []Level {
	levels := []Level{{}}
	// By name, whatever order the spec has them in: so the resolved spec, whose factors are an object, makes the same plan.
	for _, f := range slices.SortedFunc(slices.Values(s.Factors), func(a, b Factor) int { return strings.Compare(a.Name, b.Name) }) {
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

// AllArms are the names of all arms: the baseline, its twin, then the spec's own in order of name.
func (s *Spec) AllArms() []string {
	return append([]string{record.Direct, record.AA}, slices.Sorted(maps.Keys(s.Arms))...)
}

// Subject is what an arm weighs; null where it weighs none.
func (s *Spec) Subject(arm string) *Part {
	part := s.Arms[arm]
	if arm == record.Direct || arm == record.AA || part != nil && part.Kind.varies {
		return s.Baseline
	}
	return part
}

// Subjects are those of all arms.
func (s *Spec) Subjects() []*Part {
	all := slices.DeleteFunc(slices.Collect(maps.Values(s.Arms)), func(p *Part) bool { return p.Kind.varies })
	if s.Baseline != nil {
		all = append(all, s.Baseline)
	}
	return all
}

// worksByItself says whether all arms do measured work without any load.
func (s *Spec) worksByItself() bool {
	return s.Baseline != nil && !slices.ContainsFunc(s.Subjects(), func(p *Part) bool { return !p.Kind.Works })
}

// BaselineName is what reports call the baseline, where it is a subject: by the setting that its kind is told apart by.
func (s *Spec) BaselineName() string {
	switch b := s.Baseline; {
	case b == nil:
		return ""
	case b.Options[b.Kind.label] != "":
		return b.Options[b.Kind.label]
	default:
		return b.Kind.Name
	}
}

// Traits are what to know of arms wherever they are named, by arm. One that a factor changes has none.
func (s *Spec) Traits() map[string]string {
	traits := map[string]string{}
	add := func(arm, path string, p *Part) {
		swept := slices.ContainsFunc(s.Factors, func(f Factor) bool { return slices.Contains(f.paths, path+"."+p.Kind.label) })
		if p.Kind.trait != nil && !swept {
			traits[arm] = p.Kind.trait(p.Options)
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

// At is the spec with every factor set to its value in l.
func (s *Spec) At(l Level) *Spec {
	c := s.clone()
	for _, f := range s.Factors {
		for _, p := range f.paths {
			if t, ok := c.target(p); ok {
				t.options[t.knob.Name] = l[f.Name]
			}
		}
	}
	return c
}

// clone is a copy whose parts can be set.
func (s *Spec) clone() *Spec {
	c := *s
	c.Applications, c.Loads, c.Arms, c.Whole = cloneParts(s.Applications), cloneParts(s.Loads), cloneParts(s.Arms), s.Whole.clone()
	if s.Baseline != nil {
		c.Baseline = s.Baseline.clone()
	}
	return &c
}

func cloneParts(parts map[string]*Part) map[string]*Part {
	c := make(map[string]*Part, len(parts))
	for name, p := range parts {
		c[name] = p.clone()
	}
	return c
}

func (p *Part) clone() *Part {
	q := *p
	q.Options, q.Limits = p.Options.clone(), p.Limits.clone()
	return &q
}

// sections are the groups of parts, by their keys in a spec. The baseline is one part, without a name beside its key.
func (s *Spec) sections() []section {
	all := []section{{"applications", s.Applications}, {"loads", s.Loads}, {"arms", s.Arms}}
	if s.Baseline != nil {
		all = append(all, section{baselineKey, map[string]*Part{"": s.Baseline}})
	}
	return all
}

const baselineKey = "baseline"

// path is where a part stands in a spec.
func (sec section) path(name string) string {
	if name == "" {
		return sec.name
	}
	return sec.name + "." + name
}

type section struct {
	name  string
	parts map[string]*Part
}

// target is one place that a factor can set.
type target struct {
	path    string // loads.client.rate
	knob    Knob
	options Options
}

func (s *Spec) targets() []target {
	all := []target{{nodesKnob.Name, nodesKnob, s.Whole}}
	for _, sec := range s.sections() {
		for _, name := range slices.Sorted(maps.Keys(sec.parts)) {
			p := sec.parts[name]
			at := sec.path(name) + "."
			for _, k := range p.Kind.Knobs {
				all = append(all, target{at + k.Name, k, p.Options})
			}
			if sec.name == "applications" || sec.name == "loads" {
				all = append(all, target{at + countKnob.Name, countKnob, p.Options})
			}
			for _, k := range limitKnobs {
				all = append(all, target{at + "limits." + k.Name, k, p.Limits})
			}
		}
	}
	return all
}

func (s *Spec) target(path string) (target, bool) {
	for _, t := range s.targets() {
		if t.path == path {
			return t, true
		}
	}
	return target{}, false
}

// find gives the targets that a factor's name means: the end of one path ("rate", "client.rate", "loads.client.rate"), or several
// paths when the name has a * in it ("loads.*.rate"). The error reads on after the factor's name.
func (s *Spec) find(name string) ([]target, error) {
	var found []target
	var ends []string
	for _, t := range s.targets() {
		segments := strings.Split(t.path, ".")
		for i := range segments {
			end := strings.Join(segments[i:], ".")
			ends = append(ends, end)
			if match, err := path.Match(strings.ReplaceAll(name, ".", "/"), strings.ReplaceAll(end, ".", "/")); err == nil && match {
				found = append(found, t)
				break
			}
		}
	}
	if len(found) > 1 && !strings.Contains(name, "*") {
		isSet := func(t target) bool { _, ok := t.options[t.knob.Name]; return ok }
		if i := slices.IndexFunc(found, isSet); i >= 0 && !slices.ContainsFunc(found[i+1:], isSet) {
			found = found[i : i+1] // of a closed and an open load, only one has a rate
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("names no setting of this experiment%s", didYouMean(name, ends))
	case len(found) > 1 && !strings.Contains(name, "*"):
		return nil, fmt.Errorf("could mean %s; write one of them in full, or with a * to set all", joinPaths(found))
	}
	for _, t := range found[1:] {
		if t.knob.Type != found[0].knob.Type {
			return nil, fmt.Errorf("sets values of different types: %s", joinPaths(found))
		}
	}
	return found, nil
}

func joinPaths(ts []target) string {
	paths := make([]string, len(ts))
	for i, t := range ts {
		paths[i] = t.path
	}
	return strings.Join(paths, ", ")
}

// level gives the canonical form of one level for all targets.
func level(ts []target, text string) (string, error) {
	for _, t := range ts[1:] {
		if _, err := t.knob.Canonical(text); err != nil {
			return "", err
		}
	}
	return ts[0].knob.Canonical(text)
}

func newFactor(name string, ts []target, levels []string) Factor {
	f := Factor{Name: name, Levels: levels}
	for _, t := range ts {
		f.paths = append(f.paths, t.path)
	}
	return f
}

// checkSize refuses a plan that could never end.
func (s *Spec) checkSize() error {
	n := s.Blocks * len(s.AllArms())
	for _, f := range s.Factors {
		if n > maxTrials {
			break // before it overflows
		}
		n *= len(f.Levels)
	}
	if n > maxTrials {
		return fmt.Errorf("the plan has more than %d trials", maxTrials)
	}
	return nil
}

// checkParts checks the options of every part together, at every level. It gives the path of the part at fault.
func (s *Spec) checkParts() (path string, err error) {
	for _, l := range s.Levels() {
		c := s.At(l)
		if path, err := c.checkMesh(); err != nil {
			return path, err
		}
		if path, err := c.checkConnects(); err != nil {
			return path, err
		}
		if path, err := c.checkTraces(); err != nil {
			return path, err
		}
		if path, err := c.checkVariants(); err != nil {
			return path, err
		}
		for _, sec := range c.sections() {
			for _, name := range slices.Sorted(maps.Keys(sec.parts)) {
				p := sec.parts[name]
				check := c.checkCopies(p)
				if check == nil && p.Kind.check != nil {
					check = p.Kind.check(p.Options)
				}
				if check != nil {
					return sec.path(name), check
				}
			}
		}
	}
	return "", nil
}

// defaultUntil ends a run that never becomes precise.
const defaultUntil = 30 * time.Minute

// Open says whether the run ends by its precision or by the clock, and not after a number of blocks.
func (s *Spec) Open() bool { return s.Precision != nil || s.Until > 0 }

// checkOpen fills in and checks what a run needs that has no number of blocks. The error reads on after the spec's place.
func (s *Spec) checkOpen() error {
	if s.Precision == nil {
		return nil
	}
	if s.Until == 0 {
		s.Until = defaultUntil
	}
	for _, name := range s.Precision.Metrics {
		if !slices.ContainsFunc(Metrics, func(m Metric) bool { return m.Name == name }) {
			return fmt.Errorf("there is no metric %q%s", clip(name), didYouMean(name, metricNames()))
		}
	}
	return nil
}

func metricNames() []string {
	names := make([]string, len(Metrics))
	for i, m := range Metrics {
		names[i] = m.Name
	}
	return names
}

// Headlines are the metrics that the answer of the experiment speaks of, where trials have them.
func (s *Spec) Headlines() []string {
	var names []string
	for i := range Metrics {
		if s.speaksOf(&Metrics[i]) {
			names = append(names, Metrics[i].Name)
		}
	}
	return names
}

func (s *Spec) speaksOf(m *Metric) bool {
	free := slices.ContainsFunc(slices.Collect(maps.Values(s.Loads)), func(p *Part) bool { return p.Options["mode"] == "closed" || p.Kind.watches })
	return m.Headline && (free || !m.Free)
}

// PreciseMetrics are the metrics whose intervals decide when a run with a precision ends: those that the spec names, or else those that answers
// speak of. Quantiles above the median need many times the blocks, and parts that are pooled may be 0 for ever, so they are asked for by name.
func (s *Spec) PreciseMetrics() []string {
	if s.Precision == nil {
		return nil
	}
	if len(s.Precision.Metrics) > 0 {
		return s.Precision.Metrics
	}
	var names []string
	for i := range Metrics {
		if m := &Metrics[i]; s.speaksOf(m) && !m.Tail && m.count == nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// Overrides are what the command line changes in a spec.
type Overrides struct {
	Blocks   int      // 0: as the spec says
	SampleHz int      // 0: as the spec says
	Quick    bool     // the short form
	Set      []string // factor=a,b: one value sets the knob, several sweep it

	Precision string        // as in a spec: 5%; empty: as the spec says
	Until     time.Duration // 0: as the spec says
}

// Apply changes the spec. Its errors are faults with code Usage.
func (s *Spec) Apply(o Overrides) error {
	if o.Quick {
		s.applyQuick()
	}
	for _, set := range o.Set {
		if err := s.set(set); err != nil {
			return fault.New(fault.Usage, "--set "+set, "name a setting and its values: --set rate=1000 or --set rate=500,1000", "%s", err)
		}
	}
	for _, n := range []struct {
		flag  string
		value int
		knob  Knob
		into  *int
	}{{"--blocks", o.Blocks, timeKnobs[0], &s.Blocks}, {"--hz", o.SampleHz, samplingKnob, &s.SampleHz}} {
		if n.value == 0 {
			continue
		}
		if _, err := n.knob.Canonical(strconv.Itoa(n.value)); err != nil {
			return fault.New(fault.Usage, n.flag, n.knob.mend(), "%q %s", n.knob.Name, err)
		}
		*n.into = n.value
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
	return nil
}

// override changes when the run ends.
func (s *Spec) override(o Overrides) error {
	if o.Blocks > 0 {
		if o.Precision != "" || o.Until > 0 {
			return fault.New(fault.Usage, "--blocks", "give the number of blocks, or --precision and --until, which find it", "a run of %d blocks ends when these are done", o.Blocks)
		}
		s.Precision, s.Until = nil, 0
	}
	if o.Precision != "" {
		text, err := precisionKnob.Canonical(o.Precision)
		if err != nil {
			return fault.New(fault.Usage, "--precision", precisionKnob.mend(), "%q %s", precisionKnob.Name, err)
		}
		if s.Precision == nil {
			s.Precision = &Precision{}
		}
		s.Precision = &Precision{Target: Options{precisionKnob.Name: text}.part(precisionKnob.Name), Metrics: s.Precision.Metrics}
	}
	if o.Until != 0 {
		if _, err := untilKnob.Canonical(o.Until.String()); err != nil {
			return fault.New(fault.Usage, "--until", untilKnob.mend(), "%q %s", untilKnob.Name, err)
		}
		s.Until = o.Until
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
		maps.DeleteFunc(s.Arms, func(name string, _ *Part) bool { return !slices.Contains(s.Quick.Arms, name) })
	}
}

func (s *Spec) set(text string) error {
	name, list, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("there is no = in it")
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
			t.options[t.knob.Name] = levels[0]
		}
	}
	return nil
}

// overlaps says whether f sets what another factor sets too.
func (s *Spec) overlaps(f Factor) bool {
	return slices.ContainsFunc(s.Factors, func(g Factor) bool {
		return slices.ContainsFunc(g.paths, func(p string) bool { return slices.Contains(f.paths, p) })
	})
}

// MarshalJSON gives the form that run.json keeps.
func (s *Spec) MarshalJSON() ([]byte, error) {
	type quick struct {
		Blocks   int                 `json:"blocks"`
		Warmup   string              `json:"warmup"`
		Duration string              `json:"duration"`
		Factors  map[string][]string `json:"factors,omitempty"`
		Arms     []string            `json:"arms,omitempty"`
	}
	type precision struct {
		Target  string   `json:"target"`
		Metrics []string `json:"metrics,omitempty"`
	}
	out := struct {
		Name         string              `json:"name"`
		Question     string              `json:"question"`
		Needs        []string            `json:"needs,omitempty"`
		Blocks       int                 `json:"blocks"`
		Warmup       string              `json:"warmup"`
		Duration     string              `json:"duration"`
		SampleHz     int                 `json:"sampling"`
		Statistics   bool                `json:"statistics"`
		Nodes        int                 `json:"nodes,omitempty"`
		Applications map[string]any      `json:"applications,omitempty"`
		Loads        map[string]any      `json:"loads,omitempty"`
		Arms         map[string]any      `json:"arms,omitempty"`
		Baseline     map[string]any      `json:"baseline,omitempty"`
		Factors      map[string][]string `json:"factors,omitempty"`
		Gates        Options             `json:"gates"`
		Repeat       string              `json:"repeat"`
		Precision    *precision          `json:"precision,omitempty"`
		Until        string              `json:"until,omitempty"`
		Quick        *quick              `json:"quick,omitempty"`
	}{
		Name: s.Name, Question: s.Question, Needs: s.Needs, Blocks: s.Blocks, Warmup: s.Warmup.String(), Duration: s.Duration.String(),
		SampleHz: s.SampleHz, Statistics: s.Statistics, Nodes: s.nodes(), Applications: partsJSON(s.Applications, "kind"), Loads: partsJSON(s.Loads, "kind"), Arms: partsJSON(s.Arms, "subject"),
		Gates: s.Gates, Repeat: showPart(s.Repeat),
	}
	if p := s.Precision; p != nil {
		out.Precision = &precision{showPart(p.Target), p.Metrics}
	}
	if s.Until > 0 {
		out.Until = s.Until.String()
	}
	if s.Baseline != nil {
		out.Baseline = s.Baseline.json("subject")
	}
	for _, f := range s.Factors {
		if out.Factors == nil {
			out.Factors = map[string][]string{}
		}
		out.Factors[f.Name] = f.Levels
	}
	if q := s.Quick; q != nil {
		out.Quick = &quick{q.Blocks, q.Warmup.String(), q.Duration.String(), q.Levels, q.Arms}
	}
	return json.Marshal(out)
}

func partsJSON(parts map[string]*Part, kindKey string) map[string]any {
	out := map[string]any{}
	for name, p := range parts {
		out[name] = p.json(kindKey)
	}
	return out
}

func (p *Part) json(kindKey string) map[string]any {
	m := map[string]any{kindKey: p.Kind.Name}
	if p.To != "" {
		m["to"] = p.To
	}
	for k, v := range p.Options {
		m[k] = v
	}
	if len(p.Limits) > 0 {
		m["limits"] = p.Limits
	}
	return m
}
