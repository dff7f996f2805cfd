package spec

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/assertion"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// A resolved spec, which Tare writes, has a line for every default and is up to twenty times as long as one that a
// person writes.
const (
	maxSpecBytes     = 16 << 10
	maxResolvedBytes = 1 << 20
)

var specLimit = document.Limit{
	What: "a spec", Bytes: maxSpecBytes, JSON: maxResolvedBytes, Depth: 8,
	Hint: "write parts that are alike once, with a count or a factor: see docs/spec.md",
}

// Parse reads a spec. file is its name in messages; features are the names that "needs" may use, or nil for any. Its
// error is a fault with the code Usage and the place: file:line:column, or as much of it as is known.
func Parse(file string, data []byte, features []string) (*Spec, error) {
	d := &decoder{File: document.File(file), features: features, places: map[string]document.Node{}}
	documents, err := d.Parse(data, specLimit)
	switch {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, fault.New(fault.Usage, file, "'tare list quickstart' prints one to start from", "the spec is empty")
	case len(documents) > 1:
		return nil, d.Fail(documents[1], "", "a spec is one document; this is a second")
	}
	s, err := d.spec(documents[0])
	if err != nil {
		return nil, err
	}
	s.places = map[string]string{}
	for path, n := range d.places {
		s.places[path] = d.Place(n)
	}
	return s, nil
}

type decoder struct {
	document.File
	features []string
	places   map[string]document.Node // where each part is defined, by the part's path
}

var specKeys = []string{
	"name", "question", "needs", "blocks", "warmup", "duration", "sampling", "statistics", "nodes", "applications",
	"loads", "arms", kind.BaselineKey, "factors", "gates", "repeat", "precision", "until", "assert", "quick", "cluster",
}

// spec decodes the whole document. Factors, assertions and the short form come last, wherever they stand in the file,
// because they refer to what the other keys define.
func (d *decoder) spec(root document.Node) (*Spec, error) {
	s := &Spec{
		Setup: kind.Setup{
			Applications: map[string]*kind.Part{}, Loads: map[string]*kind.Part{}, Arms: map[string]*kind.Part{},
			Gates: param.Defaults(measured.GateSettings),
		},
		Whole: param.Defaults([]param.Setting{nodesSetting}),
	}
	times, own := param.Defaults(timeSettings), param.Defaults(wholeSettings)
	found := map[string]document.Node{}
	err := d.Each(root, "a spec", func(key string, at, value document.Node) (err error) {
		found[key] = value
		switch key {
		case "name":
			if s.Name, err = d.Text(value, key); err == nil {
				err = d.checkName(value, "the experiment", s.Name)
			}
		case "question":
			s.Question, err = d.Text(value, key)
		case "needs":
			s.Needs, err = d.needs(value)
		case "nodes":
			err = d.Setting(value, nodesSetting, s.Whole)
		case "applications":
			err = d.parts(value, key, "an application", kind.Application, s.Applications)
		case "loads":
			err = d.parts(value, key, "a load", kind.Load, s.Loads)
		case "arms":
			err = d.parts(value, key, "an arm", kind.Subject, s.Arms)
		case kind.BaselineKey:
			d.places[key] = at
			s.Baseline, err = d.part(value, "the baseline", kind.Subject)
		case "gates":
			err = d.Settings(value, "gates", measured.GateSettings, s.Gates)
		case "precision":
			s.Precision, err = d.precision(value)
		case "cluster":
			s.Cluster, err = d.cluster(value)
		case "factors", "quick", "assert":
		default:
			if setting, ok := param.Find(timeSettings, key); ok {
				return d.Setting(value, setting, times)
			}
			if setting, ok := param.Find(wholeSettings, key); ok {
				return d.Setting(value, setting, own)
			}
			err = d.Unknown(at, key, "a spec", specKeys)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Blocks, s.Warmup, s.Duration = resolveTimes(times)
	s.SampleHz, s.Statistics = own.Int(samplingSetting.Name), own.On(statisticsSetting.Name)
	s.Repeat, s.Until = own.Part(repeatSetting.Name), own.Duration(untilSetting.Name)
	if err := s.checkOpen(); err != nil {
		return nil, d.Fail(found["precision"], "docs/metrics.md has the metrics", "%s", err)
	}
	if err := d.whole(root, found, s); err != nil {
		return nil, err
	}
	if s.Cluster != nil {
		if part, err := s.Cluster.check(&s.Setup); err != nil {
			return nil, d.Fail(d.places["cluster."+part], "", "%s", err)
		}
	}
	if n, ok := found["factors"]; ok {
		if err := d.factors(n, s); err != nil {
			return nil, err
		}
		root = n
	}
	if err := s.checkSize(); err != nil {
		return nil, d.Fail(root, "take fewer levels or blocks", "%s", err)
	}
	if path, err := s.checkParts(); err != nil {
		return nil, d.Fail(d.places[path], "", "%s", err)
	}
	if n, ok := found["assert"]; ok {
		if err := d.assert(n, s); err != nil {
			return nil, err
		}
	}
	if n, ok := found["quick"]; ok {
		if err := d.quick(n, s, times); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// assert reads the assertions, which name arms, factors and levels.
func (d *decoder) assert(n document.Node, s *Spec) error {
	list, ok, err := d.List(n, "assert")
	if err == nil && (!ok || len(list) == 0) {
		err = d.Fail(n, "write assert: ['memory_hard_bytes <= 50MB']", "%q must be a list of assertions, not %s", "assert",
			document.Describe(n))
	}
	for _, item := range list {
		if err := s.assert(item.Text); err != nil {
			return d.Fail(item.At, assertion.Hint, "the assertion %q %s", text.ClipTo(item.Text, 80), err)
		}
	}
	return err
}

// precision reads how narrow intervals must be: a fraction alone, or a fraction and the metrics that it applies to.
func (d *decoder) precision(n document.Node) (*Precision, error) {
	o, p := param.Values{}, &Precision{}
	if !document.IsMapping(n) {
		err := d.Setting(n, precisionSetting, o)
		p.Target = o.Part(precisionSetting.Name)
		return p, err
	}
	err := d.Each(n, `"precision"`, func(key string, at, value document.Node) error {
		switch key {
		case "target":
			target := precisionSetting
			target.Name = key
			err := d.Setting(value, target, o)
			p.Target = o.Part(key)
			return err
		case "metrics":
			list, _, err := d.List(value, key)
			if err == nil && len(list) == 0 {
				err = d.Fail(value, "write metrics: [latency_p50_seconds]", "%q must be a list of metrics", key)
			}
			p.Metrics = append(p.Metrics, document.Texts(list)...)
			return err
		}
		return d.Unknown(at, key, `"precision"`, []string{"target", "metrics"})
	})
	if err == nil && p.Target == 0 {
		err = d.Fail(n, "write target: 5%", "%q has no %q", "precision", "target")
	}
	return p, err
}

func resolveTimes(o param.Values) (blocks int, warmup, duration time.Duration) {
	return o.Int("blocks"), o.Duration("warmup"), o.Duration("duration")
}

// whole checks rules that concern several keys together.
func (d *decoder) whole(root document.Node, found map[string]document.Node, s *Spec) error {
	for _, key := range []string{"name", "question", "applications", "loads"} {
		if _, ok := found[key]; ok {
			continue
		}
		hint := ""
		if key == "applications" || key == "loads" {
			if s.WorksByItself() || key == "applications" && s.NeedsNoApplication() {
				continue
			}
			if slices.ContainsFunc(s.Subjects(), (*kind.Part).WorksAlone) {
				hint = "it can be left out only if every arm, the baseline included, is a subject that works by itself: " +
					"see docs/spec.md"
			}
		}
		return d.Fail(root, hint, "the spec has no %q", key)
	}
	for _, sec := range s.Sections() {
		if n, ok := found[sec.Name]; ok && len(sec.Parts) == 0 {
			return d.Fail(n, "", "%q is empty", sec.Name)
		}
	}
	for name, load := range lists.ByKey(s.Loads) {
		to := load.To
		if _, ok := s.Applications[to]; !ok && load.GoesTo() {
			return d.Fail(found["loads"], "", "the load %q goes to %q, which is not an application%s",
				name, to, text.DidYouMean(to, slices.Collect(maps.Keys(s.Applications))))
		}
		if _, ok := s.Applications[name]; ok {
			return d.Fail(found["loads"], "", "%q is the name of an application and of a load", name)
		}
	}
	return nil
}

func (d *decoder) needs(n document.Node) ([]string, error) {
	list, ok, err := d.List(n, "needs")
	if !ok {
		return nil, d.Fail(n, "", "%q must be a list of features, not %s", "needs", document.Describe(n))
	}
	var needs []string
	for _, item := range list {
		if d.features != nil && !slices.Contains(d.features, item.Text) {
			return nil, d.Fail(item.At, "'tare doctor' lists the features", "there is no feature %q%s",
				text.Clip(item.Text), text.DidYouMean(item.Text, d.features))
		}
		needs = append(needs, item.Text)
	}
	return needs, err
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// checkName checks a name that will be used in paths of files and of control groups.
func (d *decoder) checkName(n document.Node, what, name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return d.Fail(n, "", "the name of %s must be small letters, digits and -, at most 40, not %q", what, text.Clip(name))
}

func (d *decoder) parts(n document.Node, section, what string, as kind.Role, into map[string]*kind.Part) error {
	return d.Each(n, fmt.Sprintf("%q", section), func(name string, at, value document.Node) error {
		if err := d.checkName(at, what, name); err != nil {
			return err
		}
		if as == kind.Subject && (name == record.Direct || name == record.AA) {
			return d.Fail(at, "leave it out", "the arm %q is reserved for the baseline, which always runs", name)
		}
		d.places[section+"."+name] = at
		p, err := d.part(value, fmt.Sprintf("%s %q", what, name), as)
		into[name] = p
		return err
	})
}

// The keys by which a part names its kind.
const (
	kindKey    = "kind"
	subjectKey = "subject" // the key in arms
)

// part reads one application, load or arm. The kind is read first, because it decides which other keys there are.
func (d *decoder) part(n document.Node, what string, as kind.Role) (*kind.Part, error) {
	p, named := &kind.Part{Limits: param.Values{}}, kindKey
	if as == kind.Subject {
		named = subjectKey
	}
	err := d.Each(n, what, func(key string, _, value document.Node) error {
		if key != named {
			return nil
		}
		name, err := d.Text(value, key)
		if err != nil {
			return err
		}
		if p.Kind = kind.Find(as, name); p.Kind == nil {
			names := kind.Names(as)
			return d.Fail(value, "there are "+strings.Join(names, ", "), "there is no %s %q%s",
				named, text.Clip(name), text.DidYouMean(name, names))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.Kind == nil {
		hint := fmt.Sprintf("write %s: and one of %s", named, strings.Join(kind.Names(as), ", "))
		return nil, d.Fail(n, hint, "%s has no %q", what, named)
	}
	hasTo := as == kind.Load && p.TakesTo()
	settings := p.Settings()
	known := []string{named, "limits"}
	if as != kind.Subject {
		settings = slices.Concat(kind.CopySettings, settings)
	}
	if hasTo {
		known = append(known, "to")
	}
	p.Options = param.Defaults(settings)
	known = append(known, param.Names(settings)...)
	err = d.Each(n, what, func(key string, at, value document.Node) (err error) {
		switch {
		case key == named:
		case key == "limits" && !p.TakesLimits():
			err = d.Fail(at, "limit applications or loads; a variant can set server.limits.cpus",
				"%s cannot have %q: Tare starts nothing that they would apply to", what, key)
		case key == "limits":
			err = d.Settings(value, "limits", kind.LimitSettings, p.Limits)
		case key == "to" && hasTo:
			p.To, err = d.Text(value, key)
		default:
			if s, ok := param.Find(settings, key); ok {
				return d.Setting(value, s, p.Options)
			}
			err = d.Unknown(at, key, what, known)
		}
		return err
	})
	if err == nil && hasTo && p.To == "" && p.GoesTo() {
		err = d.Fail(n, "write to: and the name of the application", "%s has no %q", what, "to")
	}
	return p, err
}

func (d *decoder) factors(n document.Node, s *Spec) error {
	return d.Each(n, `"factors"`, func(name string, at, value document.Node) error {
		f, err := d.factor(name, at, value, s)
		if err != nil {
			return err
		}
		if s.overlaps(f) {
			return d.Fail(at, "", "the factor %q sets what another factor sets", name)
		}
		s.Factors = append(s.Factors, f)
		return nil
	})
}

// factor reads one factor: a list of levels, or cases that each set several settings.
func (d *decoder) factor(name string, at, value document.Node, s *Spec) (Factor, error) {
	if document.IsMapping(value) {
		return d.cases(name, at, value, s)
	}
	ts, err := s.find(name)
	if err != nil {
		return Factor{}, d.Fail(at, "", "the factor %q %s", text.Clip(name), err)
	}
	levels, err := d.levels(value, name, ts)
	return newFactor(name, ts, levels), err
}

// cases reads a factor with named levels; below each name are the settings that it sets.
func (d *decoder) cases(name string, at, value document.Node, s *Spec) (Factor, error) {
	f := Factor{Name: name, cases: map[string]map[string]string{}}
	if err := d.checkName(at, "a factor with cases", name); err != nil {
		return f, err
	}
	err := d.Each(value, fmt.Sprintf("the factor %q", name), func(level string, at, value document.Node) error {
		if err := d.checkName(at, "a case", level); err != nil {
			return err
		}
		f.Levels, f.cases[level] = append(f.Levels, level), map[string]string{}
		return d.Each(value, fmt.Sprintf("the case %q", level), func(setting string, at, value document.Node) error {
			ts, err := s.find(setting)
			if err != nil {
				return d.Fail(at, "", "%q %s", text.Clip(setting), err)
			}
			text, err := d.Scalar(value, setting)
			if err != nil {
				return err
			}
			for _, t := range ts {
				if _, twice := f.cases[level][t.path]; twice {
					return d.Fail(at, "", "%q is set twice", t.path)
				}
				if f.cases[level][t.path], err = t.setting.Canonical(text); err != nil {
					return d.Fail(value, t.setting.Hint(), "%q %s", setting, err)
				}
				if !slices.Contains(f.paths, t.path) {
					f.paths = append(f.paths, t.path)
				}
			}
			return nil
		})
	})
	slices.Sort(f.Levels) // sorted, as in a resolved spec
	if err == nil && len(f.paths) == 0 {
		err = d.Fail(value, "write name: {case: {setting: value}}", "the factor %q sets nothing", name)
	}
	return f, err
}

func (d *decoder) levels(n document.Node, name string, ts []target) ([]string, error) {
	list, _, err := d.List(n, name)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, d.Fail(n, fmt.Sprintf("write %s: [a, b]", name), "the factor %q must have a list of levels", name)
	}
	var levels []string
	for _, item := range list {
		c, err := level(ts, item.Text)
		if err != nil {
			return nil, d.Fail(item.At, ts[0].setting.Hint(), "a level of %q %s", name, err)
		}
		if slices.Contains(levels, c) {
			return nil, d.Fail(item.At, "", "the factor %q has the level %s twice", name, c)
		}
		levels = append(levels, c)
	}
	return levels, nil
}

// quick reads the short form, which keeps everything that it does not mention.
func (d *decoder) quick(n document.Node, s *Spec, times param.Values) error {
	times = times.Clone()
	q := &Quick{Levels: map[string][]string{}}
	known := append(param.Names(timeSettings), "factors", "arms")
	err := d.Each(n, `"quick"`, func(key string, at, value document.Node) error {
		setting, ok := param.Find(timeSettings, key)
		switch {
		case ok:
			return d.Setting(value, setting, times)
		case key == "arms":
			return d.quickArms(value, s, q)
		case key != "factors":
			return d.Unknown(at, key, `"quick"`, known)
		}
		return d.Each(value, `"factors"`, func(name string, at, value document.Node) error {
			f := s.factor(name)
			if f == nil {
				return d.Fail(at, "", "the short form has levels for %q, which is not a factor of the spec", text.Clip(name))
			}
			var err error
			q.Levels[name], err = d.quickLevels(value, f, s)
			return err
		})
	})
	q.Blocks, q.Warmup, q.Duration = resolveTimes(times)
	s.Quick = q
	return err
}

// quickLevels reads which levels of a factor the short form has.
func (d *decoder) quickLevels(n document.Node, f *Factor, s *Spec) ([]string, error) {
	if f.cases == nil {
		ts, err := s.find(f.Name)
		if err != nil {
			return nil, d.Fail(n, "", "the factor %q %s", text.Clip(f.Name), err)
		}
		return d.levels(n, f.Name, ts)
	}
	list, ok, err := d.List(n, f.Name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, d.Fail(n, "", "the factor %q must have a list of its cases", f.Name)
	}
	chosen := *f
	if err := chosen.choose(document.Texts(list)); err != nil {
		return nil, d.Fail(n, "", "%s", err)
	}
	return chosen.Levels, nil
}

// quickArms reads which arms the short form keeps.
func (d *decoder) quickArms(n document.Node, s *Spec, q *Quick) error {
	list, _, err := d.List(n, "arms")
	if err == nil && len(list) == 0 {
		err = d.Fail(n, "write arms: [a, b]", "%q must be a list of arms", "arms")
	}
	for _, item := range list {
		name := item.Text
		if s.Arms[name] == nil {
			return d.Fail(item.At, "the baseline always runs; name arms of the spec",
				"the short form has %q, which is not an arm of the spec%s",
				text.Clip(name), text.DidYouMean(name, slices.Collect(maps.Keys(s.Arms))))
		}
		if slices.Contains(q.Arms, name) {
			return d.Fail(item.At, "", "the short form has the arm %q twice", name)
		}
		q.Arms = append(q.Arms, name)
	}
	return err
}
