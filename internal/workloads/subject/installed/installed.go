// Package installed is a subject that the user has installed in a cluster: a mesh, a runtime or a tracer. Tare does not
// start it. The settings of an arm are marks (labels, annotations, a RuntimeClass) that its pods get so that the
// subject applies to them, and rules that select the running pods whose use is the subject's cost.
package installed

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

func init() { kind.Register(kind.Subject, guest{}) }

type guest struct{}

const (
	labelsKey      = "labels"
	annotationsKey = "annotations"
	runtimeKey     = "runtime-class"
	appliedKey     = "applied"
	partsKey       = "parts"
	componentsKey  = "components"
)

var settings = []param.Setting{
	{Name: labelsKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "labels of this arm's pods: KEY=VALUE, separated by commas"},
	{Name: annotationsKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "annotations, likewise, or separated by semicolons if values contain commas"},
	{Name: runtimeKey, Type: param.TypeText, Reach: param.ReachNothing, Doc: "RuntimeClass of these pods"},
	{Name: appliedKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "annotations, likewise, that the installed program adds to pods: loads begin when all pods of this " +
			"arm have them; no pod of the baseline may"},
	{Name: partsKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "applications and loads whose pods get these marks, separated by commas; all by default"},
	Components,
}

// Components is the setting for the cost of an installed subject. Other kinds of installed subjects use it, too.
var Components = param.Setting{Name: componentsKey, Type: param.TypeText, Reach: param.ReachNothing,
	Doc: "rules that select its cost, as for `tare weigh --tare`, separated by semicolons, such as " +
		"`container=istio-proxy,component=sidecar; namespace=istio-system,component=controlplane`. A rule " +
		"with a container and no namespace selects from the trial's pods. May be omitted with a RuntimeClass, whose cost " +
		"is the difference between the pods"}

func (guest) About() kind.About {
	return kind.About{
		Name:     "installed",
		Summary:  "what is installed in a cluster, for kubectl tare run",
		Settings: settings,
		InPath: func(v param.Values) bool {
			m, err := Marks(v)
			return err == nil && (len(m.Applied) > 0 ||
				slices.ContainsFunc(m.Components, func(r charge.Rule) bool { return kind.InPods(&r) }))
		},
	}
}

// Check refuses settings that cannot be parsed, and an arm that has neither components nor a RuntimeClass.
func (guest) Check(v param.Values) error {
	_, err := Marks(v)
	return err
}

// Version implements kind.Versioned. It returns nothing, because trials record the images of the components.
func (guest) Version(context.Context, param.Values, string) (name, version string) { return "", "" }

// Marks implements kind.Marked.
func (guest) Marks(v param.Values) (kind.Marks, error) { return Marks(v) }

// Marks parses the values of the subject's settings, or of some of them.
func Marks(v param.Values) (m kind.Marks, err error) {
	if m.Labels, err = pairs(labelsKey, v[labelsKey]); err != nil {
		return m, err
	}
	if m.Annotations, err = pairs(annotationsKey, v[annotationsKey]); err != nil {
		return m, err
	}
	if m.Applied, err = pairs(appliedKey, v[appliedKey]); err != nil {
		return m, err
	}
	m.RuntimeClass = v[runtimeKey]
	for name := range strings.SplitSeq(v[partsKey], ",") {
		if name = strings.TrimSpace(name); name != "" {
			m.Parts = append(m.Parts, name)
		}
	}
	for rule := range strings.SplitSeq(v[componentsKey], ";") {
		if rule = strings.TrimSpace(rule); rule == "" {
			continue
		}
		r, err := charge.ParseFlag(ledger.ChargeTare, rule)
		if err != nil {
			return m, fmt.Errorf("%s: %w", componentsKey, err)
		}
		if r.Component == "" {
			return m, fmt.Errorf("%s: the rule %q names no component: add ,component=NAME", componentsKey, text.Clip(rule))
		}
		m.Components = append(m.Components, r)
	}
	if len(m.Components) == 0 && m.RuntimeClass == "" {
		return m, fmt.Errorf("%s: say what its cost is, such as 'container=istio-proxy,component=sidecar'", componentsKey)
	}
	return m, nil
}

// pairs parses KEY=VALUE pairs. They are separated by semicolons if the list contains any, and otherwise by commas.
func pairs(what, list string) (map[string]string, error) {
	separator := ","
	if strings.Contains(list, ";") {
		separator = ";"
	}
	all := map[string]string{}
	for pair := range strings.SplitSeq(list, separator) {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("%s: write KEY=VALUE, not %q", what, text.Clip(pair))
		}
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("%s: %q is there twice", what, text.Clip(key))
		}
		all[key] = value
	}
	return all, nil
}
