package spec

import (
	"encoding/json"
	"maps"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// MarshalJSON returns the form that run.json keeps.
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
		Name         string         `json:"name"`
		Question     string         `json:"question"`
		Needs        []string       `json:"needs,omitempty"`
		Blocks       int            `json:"blocks"`
		Warmup       string         `json:"warmup"`
		Duration     string         `json:"duration"`
		SampleHz     int            `json:"sampling"`
		Statistics   bool           `json:"statistics"`
		Nodes        int            `json:"nodes,omitempty"`
		Applications map[string]any `json:"applications,omitempty"`
		Loads        map[string]any `json:"loads,omitempty"`
		Arms         map[string]any `json:"arms,omitempty"`
		Baseline     map[string]any `json:"baseline,omitempty"`
		Factors      map[string]any `json:"factors,omitempty"`
		Gates        param.Values   `json:"gates"`
		Repeat       string         `json:"repeat"`
		Precision    *precision     `json:"precision,omitempty"`
		Until        string         `json:"until,omitempty"`
		Assert       []string       `json:"assert,omitempty"`
		Quick        *quick         `json:"quick,omitempty"`
		Cluster      map[string]any `json:"cluster,omitempty"`
	}{
		Name: s.Name, Question: s.Question, Needs: s.Needs,
		Blocks: s.Blocks, Warmup: s.Warmup.String(), Duration: s.Duration.String(),
		SampleHz: s.SampleHz, Statistics: s.Statistics, Nodes: s.Nodes(), Applications: partsJSON(s.Applications, kindKey),
		Loads: partsJSON(s.Loads, kindKey), Arms: partsJSON(s.Arms, subjectKey),
		Gates: s.Gates, Repeat: param.Part(s.Repeat),
	}
	if p := s.Precision; p != nil {
		out.Precision = &precision{param.Part(p.Target), p.Metrics}
	}
	if s.Until > 0 {
		out.Until = s.Until.String()
	}
	out.Assert, out.Cluster = s.Assertions(), s.Cluster.json()
	if s.Baseline != nil {
		out.Baseline = partJSON(s.Baseline, subjectKey)
	}
	for _, f := range s.Factors {
		if out.Factors == nil {
			out.Factors = map[string]any{}
		}
		out.Factors[f.Name] = f.Levels
		if f.cases != nil {
			cases := maps.Clone(f.cases)
			maps.DeleteFunc(cases, func(level string, _ map[string]string) bool { return !slices.Contains(f.Levels, level) })
			out.Factors[f.Name] = cases
		}
	}
	if q := s.Quick; q != nil {
		out.Quick = &quick{q.Blocks, q.Warmup.String(), q.Duration.String(), q.Levels, q.Arms}
	}
	return json.Marshal(out)
}

func partsJSON(parts map[string]*kind.Part, key string) map[string]any {
	out := map[string]any{}
	for name, p := range parts {
		out[name] = partJSON(p, key)
	}
	return out
}

func partJSON(p *kind.Part, key string) map[string]any {
	m := map[string]any{key: p.Name()}
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
