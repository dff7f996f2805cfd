package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"tare/internal/fault"
	"tare/internal/kind"
	"tare/internal/near"
	"tare/internal/param"
	"tare/internal/record"
)

// maxSpecBytes bounds a spec that a person writes, and with it what hostile nesting costs the YAML parser, whose time grows with the square
// of the depth. What we wrote ourselves, a resolved spec, is JSON: there every default is filled in, a line for each, which makes it up to
// twenty times as long, and it nests no deeper than maxResolvedDepth.
const (
	maxSpecBytes     = 16 << 10
	maxResolvedBytes = 1 << 20
	maxResolvedDepth = 8
)

// checkBytes refuses what is too long to be a spec.
func checkBytes(file string, data []byte) error {
	if len(data) <= maxSpecBytes || len(data) <= maxResolvedBytes && resolved(data) {
		return nil
	}
	return fault.New(fault.Usage, file, "a count or a factor says in one line what parts that are alike say in many: see docs/spec.md",
		"a spec has at most %d KiB; this has %d", maxSpecBytes>>10, len(data)>>10)
}

// resolved says whether data may be a resolved spec: JSON of little depth.
func resolved(data []byte) bool {
	if data = bytes.TrimSpace(data); len(data) == 0 || data[0] != '{' {
		return false
	}
	depth := 0
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.Token()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth > maxResolvedDepth {
			return false
		}
	}
}

// Parse reads a spec. file is its name in messages; features are the names that "needs" may use. Its error is a fault with code
// Usage and the place as file:line:column.
func Parse(file string, data []byte, features []string) (*Spec, error) {
	d := &decoder{file: file, features: features, places: map[string]ast.Node{}}
	if err := checkBytes(file, data); err != nil {
		return nil, err
	}
	tree, err := parser.ParseBytes(data, 0)
	if err != nil {
		var y yaml.Error
		if errors.As(err, &y) && y.GetToken() != nil {
			p := y.GetToken().Position
			return nil, fault.New(fault.Usage, fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column), "", "this is not YAML: %s", y.GetMessage())
		}
		return nil, fault.New(fault.Usage, file, "", "this is not YAML: %s", err)
	}
	if len(tree.Docs) == 0 || tree.Docs[0].Body == nil {
		return nil, fault.New(fault.Usage, file, "'tare list quickstart' prints one to start from", "the spec is empty")
	}
	if len(tree.Docs) > 1 && tree.Docs[1].Body != nil {
		return nil, d.fail(tree.Docs[1].Body, "", "a spec is one document; this is a second")
	}
	return d.spec(tree.Docs[0].Body)
}

type decoder struct {
	file     string
	features []string
	places   map[string]ast.Node // of the parts, by path
}

func (d *decoder) fail(n ast.Node, mend, format string, args ...any) error {
	for { // the token of a mapping is its first colon, or brace: its first key is what a reader sees
		m, ok := n.(*ast.MappingNode)
		if !ok || m.IsFlowStyle || len(m.Values) == 0 {
			break
		}
		n = m.Values[0].Key
	}
	where := d.file
	if t := n.GetToken(); t != nil && t.Position != nil {
		where = fmt.Sprintf("%s:%d:%d", d.file, t.Position.Line, t.Position.Column)
	}
	return fault.New(fault.Usage, where, mend, format, args...)
}

// each visits the entries of a mapping.
func (d *decoder) each(n ast.Node, what string, visit func(key string, at, value ast.Node) error) error {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return d.fail(n, "", "%s must be keys with values, not %s", what, describe(n))
	}
	for _, v := range m.Values {
		s, ok := v.Key.(*ast.StringNode)
		if !ok {
			return d.fail(v.Key, "", "a key must be a plain word, not %s", describe(v.Key))
		}
		if err := visit(s.Value, v.Key, v.Value); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) unknown(at ast.Node, key, what string, known []string) error {
	return d.fail(at, "the keys of "+what+" are "+strings.Join(known, ", "), "there is no key %q in %s%s", near.Clip(key), what, near.Meant(key, known))
}

// scalar is the text of a single value.
func (d *decoder) scalar(n ast.Node, key string) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	}
	return "", d.fail(n, "", "%q must be a single value, not %s", key, describe(n))
}

// text is the text of a value that must not be empty.
func (d *decoder) text(n ast.Node, key string) (string, error) {
	s, err := d.scalar(n, key)
	if err == nil && strings.TrimSpace(s) == "" {
		err = d.fail(n, "", "%q must not be empty", key)
	}
	return s, err
}

func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or an alias"
	case *ast.TagNode:
		return "a tag"
	}
	return "a single value"
}

// knob reads one knob into o.
func (d *decoder) knob(n ast.Node, k param.Setting, o param.Values) error {
	s, err := d.scalar(n, k.Name)
	if err != nil {
		return err
	}
	if o[k.Name], err = k.Canonical(s); err != nil {
		return d.fail(n, k.Hint(), "%q %s", k.Name, err)
	}
	return nil
}

// knobs reads a mapping that holds only knobs.
func (d *decoder) knobs(n ast.Node, what string, knobs []param.Setting, o param.Values) error {
	return d.each(n, what, func(key string, at, value ast.Node) error {
		i := slices.IndexFunc(knobs, func(k param.Setting) bool { return k.Name == key })
		if i < 0 {
			return d.unknown(at, key, what, param.Names(knobs))
		}
		return d.knob(value, knobs[i], o)
	})
}

var specKeys = []string{"name", "question", "needs", "blocks", "warmup", "duration", "sampling", "statistics", "nodes", "applications", "loads", "arms", kind.BaselineKey, "factors", "gates", "repeat", "precision", "until", "quick"}

// spec reads the whole. Factors and the short form come last whatever their place in the file, for they name what the others hold.
func (d *decoder) spec(root ast.Node) (*Spec, error) {
	s := &Spec{
		Setup: kind.Setup{
			Applications: map[string]*kind.Part{}, Loads: map[string]*kind.Part{}, Arms: map[string]*kind.Part{},
			Gates: param.Defaults(gateKnobs),
		},
		Whole: param.Defaults([]param.Setting{nodesKnob}),
	}
	times, sampling := param.Defaults(timeKnobs), param.Defaults([]param.Setting{samplingKnob, statisticsKnob})
	ending := param.Defaults([]param.Setting{repeatKnob, untilKnob})
	found := map[string]ast.Node{}
	err := d.each(root, "a spec", func(key string, at, value ast.Node) (err error) {
		found[key] = value
		switch key {
		case "name":
			if s.Name, err = d.text(value, key); err == nil {
				err = d.checkName(value, "the experiment", s.Name)
			}
		case "question":
			s.Question, err = d.text(value, key)
		case "needs":
			s.Needs, err = d.needs(value)
		case "blocks", "warmup", "duration":
			err = d.knob(value, timeKnobs[slices.IndexFunc(timeKnobs, func(k param.Setting) bool { return k.Name == key })], times)
		case "sampling":
			err = d.knob(value, samplingKnob, sampling)
		case "statistics":
			err = d.knob(value, statisticsKnob, sampling)
		case "nodes":
			err = d.knob(value, nodesKnob, s.Whole)
		case "applications":
			err = d.parts(value, key, "an application", "kind", kind.Application, s.Applications)
		case "loads":
			err = d.parts(value, key, "a load", "kind", kind.Load, s.Loads)
		case "arms":
			err = d.parts(value, key, "an arm", "subject", kind.Subject, s.Arms)
		case kind.BaselineKey:
			d.places[key] = at
			s.Baseline, err = d.part(value, "the baseline", "subject", kind.Subject, false)
		case "gates":
			err = d.knobs(value, "gates", gateKnobs, s.Gates)
		case "repeat":
			err = d.knob(value, repeatKnob, ending)
		case "until":
			err = d.knob(value, untilKnob, ending)
		case "precision":
			s.Precision, err = d.precision(value)
		case "factors", "quick":
		default:
			err = d.unknown(at, key, "a spec", specKeys)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Blocks, s.Warmup, s.Duration = resolveTimes(times)
	s.SampleHz, s.Statistics = int(sampling.Float(samplingKnob.Name)), sampling[statisticsKnob.Name] == "true"
	s.Repeat, s.Until = ending.Part(repeatKnob.Name), ending.Duration(untilKnob.Name)
	if err := s.checkOpen(); err != nil {
		return nil, d.fail(found["precision"], "docs/metrics.md has the metrics", "%s", err)
	}
	if err := d.whole(root, found, s); err != nil {
		return nil, err
	}
	if n, ok := found["factors"]; ok {
		if err := d.factors(n, s); err != nil {
			return nil, err
		}
		root = n
	}
	if err := s.checkSize(); err != nil {
		return nil, d.fail(root, "take fewer levels or blocks", "%s", err)
	}
	if path, err := s.checkParts(); err != nil {
		return nil, d.fail(d.places[path], "", "%s", err)
	}
	if n, ok := found["quick"]; ok {
		if err := d.quick(n, s, times); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// precision reads how narrow intervals must be: a part, or that and the metrics that it is asked of.
func (d *decoder) precision(n ast.Node) (*Precision, error) {
	o, p := param.Values{}, &Precision{}
	if _, ok := n.(*ast.MappingNode); !ok {
		err := d.knob(n, precisionKnob, o)
		p.Target = o.Part(precisionKnob.Name)
		return p, err
	}
	err := d.each(n, `"precision"`, func(key string, at, value ast.Node) error {
		switch key {
		case "target":
			target := precisionKnob
			target.Name = key
			err := d.knob(value, target, o)
			p.Target = o.Part(key)
			return err
		case "metrics":
			list, ok := value.(*ast.SequenceNode)
			if !ok || len(list.Values) == 0 {
				return d.fail(value, "write metrics: [latency_p50_seconds]", "%q must be a list of metrics", key)
			}
			for _, v := range list.Values {
				name, err := d.text(v, key)
				if err != nil {
					return err
				}
				p.Metrics = append(p.Metrics, name)
			}
			return nil
		}
		return d.unknown(at, key, `"precision"`, []string{"target", "metrics"})
	})
	if err == nil && p.Target == 0 {
		err = d.fail(n, "write target: 5%", "%q has no %q", "precision", "target")
	}
	return p, err
}

func resolveTimes(o param.Values) (blocks int, warmup, duration time.Duration) {
	blocks, _ = strconv.Atoi(o["blocks"]) // canonical, all three
	warmup, _ = time.ParseDuration(o["warmup"])
	duration, _ = time.ParseDuration(o["duration"])
	return blocks, warmup, duration
}

// whole checks what no single key can be blamed for.
func (d *decoder) whole(root ast.Node, found map[string]ast.Node, s *Spec) error {
	for _, key := range []string{"name", "question", "applications", "loads"} {
		if _, ok := found[key]; ok {
			continue
		}
		mend := ""
		if key == "applications" || key == "loads" {
			if s.worksByItself() || key == "applications" && s.needsNoApplication() {
				continue
			}
			if slices.ContainsFunc(s.Subjects(), (*kind.Part).WorksAlone) {
				mend = "only where every arm is a subject that works by itself, the baseline too, can it be left out: see docs/spec.md"
			}
		}
		return d.fail(root, mend, "the spec has no %q", key)
	}
	for _, sec := range s.Sections() {
		if n, ok := found[sec.Name]; ok && len(sec.Parts) == 0 {
			return d.fail(n, "", "%q is empty", sec.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Loads)) {
		to := s.Loads[name].To
		if _, ok := s.Applications[to]; !ok && s.Loads[name].GoesTo() {
			return d.fail(found["loads"], "", "the load %q goes to %q, and there is no such application%s", name, to, near.Meant(to, slices.Collect(maps.Keys(s.Applications))))
		}
		if _, ok := s.Applications[name]; ok {
			return d.fail(found["loads"], "", "%q is the name of an application and of a load", name)
		}
	}
	return nil
}

func (d *decoder) needs(n ast.Node) ([]string, error) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, d.fail(n, "", "%q must be a list of features, not %s", "needs", describe(n))
	}
	var needs []string
	for _, v := range list.Values {
		s, err := d.text(v, "needs")
		if err != nil {
			return nil, err
		}
		if !slices.Contains(d.features, s) {
			return nil, d.fail(v, "'tare doctor' lists the features", "there is no feature %q%s", near.Clip(s), near.Meant(s, d.features))
		}
		needs = append(needs, s)
	}
	return needs, nil
}

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// checkName checks a name that will stand in paths of files and of control groups.
func (d *decoder) checkName(n ast.Node, what, name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return d.fail(n, "", "the name of %s must be small letters, digits and -, at most 40, not %q", what, near.Clip(name))
}

func (d *decoder) parts(n ast.Node, section, what, kindKey string, as kind.Role, into map[string]*kind.Part) error {
	return d.each(n, fmt.Sprintf("%q", section), func(name string, at, value ast.Node) error {
		if err := d.checkName(at, what, name); err != nil {
			return err
		}
		if kindKey == "subject" && (name == record.Direct || name == record.AA) {
			return d.fail(at, "leave it out", "the arm %q is there without being named: it is the baseline", name)
		}
		d.places[section+"."+name] = at
		p, err := d.part(value, fmt.Sprintf("%s %q", what, name), kindKey, as, section == "loads")
		into[name] = p
		return err
	})
}

// part reads one application, load or arm. Its kind decides which keys it has, so it is looked for first.
func (d *decoder) part(n ast.Node, what, kindKey string, as kind.Role, hasTo bool) (*kind.Part, error) {
	p := &kind.Part{Limits: param.Values{}}
	err := d.each(n, what, func(key string, _, value ast.Node) error {
		if key != kindKey {
			return nil
		}
		name, err := d.text(value, key)
		if err != nil {
			return err
		}
		if p.Kind = kind.Find(as, name); p.Kind == nil {
			names := kind.Names(as)
			return d.fail(value, "there are "+strings.Join(names, ", "), "there is no %s %q%s",
				kindKey, near.Clip(name), near.Meant(name, names))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if p.Kind == nil {
		return nil, d.fail(n, fmt.Sprintf("write %s: and one of %s", kindKey, strings.Join(kind.Names(as), ", ")), "%s has no %q", what, kindKey)
	}
	hasTo = hasTo && p.TakesTo()
	p.Options = param.Defaults(p.Settings())
	known := []string{kindKey, "limits"}
	if kindKey == "kind" {
		p.Options[kind.CountSetting] = countKnob.Default
		known = append(known, kind.CountSetting)
	}
	if hasTo {
		known = append(known, "to")
	}
	known = append(known, param.Names(p.Settings())...)
	err = d.each(n, what, func(key string, at, value ast.Node) (err error) {
		switch {
		case key == kindKey:
		case key == "limits":
			err = d.knobs(value, "limits", limitKnobs, p.Limits)
		case key == "to" && hasTo:
			p.To, err = d.text(value, key)
		case key == kind.CountSetting && slices.Contains(known, key):
			err = d.knob(value, countKnob, p.Options)
		case slices.Contains(known, key):
			err = d.knob(value, p.Settings()[slices.IndexFunc(p.Settings(), func(k param.Setting) bool { return k.Name == key })], p.Options)
		default:
			err = d.unknown(at, key, what, known)
		}
		return err
	})
	if err == nil && hasTo && p.To == "" && p.GoesTo() {
		err = d.fail(n, "write to: and the name of the application", "%s has no %q", what, "to")
	}
	return p, err
}

func (d *decoder) factors(n ast.Node, s *Spec) error {
	return d.each(n, `"factors"`, func(name string, at, value ast.Node) error {
		f, err := d.factor(name, at, value, s)
		if err != nil {
			return err
		}
		if s.overlaps(f) {
			return d.fail(at, "", "the factor %q sets what another factor sets", name)
		}
		s.Factors = append(s.Factors, f)
		return nil
	})
}

// factor reads one factor: a list of levels, or cases, of which each sets several settings.
func (d *decoder) factor(name string, at, value ast.Node, s *Spec) (Factor, error) {
	if _, ok := value.(*ast.MappingNode); ok {
		return d.cases(name, at, value, s)
	}
	ts, err := s.find(name)
	if err != nil {
		return Factor{}, d.fail(at, "", "the factor %q %s", near.Clip(name), err)
	}
	levels, err := d.levels(value, name, ts)
	return newFactor(name, ts, levels), err
}

// cases reads a factor whose levels have names, and under each the settings that it sets.
func (d *decoder) cases(name string, at, value ast.Node, s *Spec) (Factor, error) {
	f := Factor{Name: name, cases: map[string]map[string]string{}}
	if err := d.checkName(at, "a factor with cases", name); err != nil {
		return f, err
	}
	err := d.each(value, fmt.Sprintf("the factor %q", name), func(level string, at, value ast.Node) error {
		if err := d.checkName(at, "a case", level); err != nil {
			return err
		}
		f.Levels, f.cases[level] = append(f.Levels, level), map[string]string{}
		return d.each(value, fmt.Sprintf("the case %q", level), func(setting string, at, value ast.Node) error {
			ts, err := s.find(setting)
			if err != nil {
				return d.fail(at, "", "%q %s", near.Clip(setting), err)
			}
			text, err := d.scalar(value, setting)
			if err != nil {
				return err
			}
			for _, t := range ts {
				if f.cases[level][t.path], err = t.knob.Canonical(text); err != nil {
					return d.fail(value, t.knob.Hint(), "%q %s", setting, err)
				}
				if !slices.Contains(f.paths, t.path) {
					f.paths = append(f.paths, t.path)
				}
			}
			return nil
		})
	})
	slices.Sort(f.Levels) // whatever order the spec has them in, as those of a resolved one
	if err == nil && len(f.paths) == 0 {
		err = d.fail(value, "write name: {case: {setting: value}}", "the factor %q sets nothing", name)
	}
	return f, err
}

func (d *decoder) levels(n ast.Node, name string, ts []target) ([]string, error) {
	list, ok := n.(*ast.SequenceNode)
	if !ok || len(list.Values) == 0 {
		return nil, d.fail(n, fmt.Sprintf("write %s: [a, b]", name), "the factor %q must have a list of levels", name)
	}
	var levels []string
	for _, v := range list.Values {
		text, err := d.scalar(v, name)
		if err != nil {
			return nil, err
		}
		c, err := level(ts, text)
		if err != nil {
			return nil, d.fail(v, ts[0].knob.Hint(), "a level of %q %s", name, err)
		}
		if slices.Contains(levels, c) {
			return nil, d.fail(v, "", "the factor %q has the level %s twice", name, c)
		}
		levels = append(levels, c)
	}
	return levels, nil
}

// quick reads the short form, which keeps what it does not name.
func (d *decoder) quick(n ast.Node, s *Spec, times param.Values) error {
	times = times.Clone()
	q := &Quick{Levels: map[string][]string{}}
	known := append(param.Names(timeKnobs), "factors", "arms")
	err := d.each(n, `"quick"`, func(key string, at, value ast.Node) error {
		i := slices.IndexFunc(timeKnobs, func(k param.Setting) bool { return k.Name == key })
		switch {
		case i >= 0:
			return d.knob(value, timeKnobs[i], times)
		case key == "arms":
			return d.quickArms(value, s, q)
		case key != "factors":
			return d.unknown(at, key, `"quick"`, known)
		}
		return d.each(value, `"factors"`, func(name string, at, value ast.Node) error {
			i := slices.IndexFunc(s.Factors, func(f Factor) bool { return f.Name == name })
			if i < 0 {
				return d.fail(at, "", "the short form has levels for %q, which is no factor of the spec", near.Clip(name))
			}
			var err error
			q.Levels[name], err = d.quickLevels(value, &s.Factors[i], s)
			return err
		})
	})
	q.Blocks, q.Warmup, q.Duration = resolveTimes(times)
	s.Quick = q
	return err
}

// quickLevels reads which levels of a factor the short form has.
func (d *decoder) quickLevels(n ast.Node, f *Factor, s *Spec) ([]string, error) {
	if f.cases == nil {
		ts, err := s.find(f.Name)
		if err != nil {
			return nil, d.fail(n, "", "the factor %q %s", near.Clip(f.Name), err)
		}
		return d.levels(n, f.Name, ts)
	}
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, d.fail(n, "", "the factor %q must have a list of its cases", f.Name)
	}
	var levels []string
	for _, v := range list.Values {
		level, err := d.text(v, f.Name)
		if err != nil {
			return nil, err
		}
		levels = append(levels, level)
	}
	chosen := *f
	if err := chosen.choose(levels); err != nil {
		return nil, d.fail(n, "", "%s", err)
	}
	return levels, nil
}

// quickArms reads which arms the short form keeps.
func (d *decoder) quickArms(n ast.Node, s *Spec, q *Quick) error {
	list, ok := n.(*ast.SequenceNode)
	if !ok || len(list.Values) == 0 {
		return d.fail(n, "write arms: [a, b]", "%q must be a list of arms", "arms")
	}
	for _, v := range list.Values {
		name, err := d.text(v, "arms")
		if err != nil {
			return err
		}
		if s.Arms[name] == nil {
			return d.fail(v, "the baseline always runs; name arms of the spec", "the short form has %q, which is no arm of the spec%s", near.Clip(name), near.Meant(name, slices.Collect(maps.Keys(s.Arms))))
		}
		if slices.Contains(q.Arms, name) {
			return d.fail(v, "", "the short form has the arm %q twice", name)
		}
		q.Arms = append(q.Arms, name)
	}
	return nil
}
