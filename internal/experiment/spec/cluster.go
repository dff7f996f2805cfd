package spec

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/lib/document"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// Cluster configures how an experiment runs in the pods of a cluster. It has no effect on one machine.
type Cluster struct {
	Settle time.Duration    // from the time all parts are ready until loads begin
	Where  map[string]Where // by the name of the application or load; a part without an entry runs anywhere
	// Accounts are the service accounts of pods, by the name of the application or load. Others have none.
	Accounts map[string]string
}

// Where constrains the node of a cluster on which a part runs. The zero value allows any.
type Where struct {
	On       string // the name of a node, or a label selector for nodes
	Apart    string // the name of a part on whose node it must not run
	Together string // the name of a part on whose node it must run
}

var settleSetting = param.Setting{Name: "settle", Type: param.TypeDuration, Default: "2s", Max: 600,
	Doc: "time from the readiness of all pods of a trial until its loads begin"}

var whereSettings = []param.Setting{
	{Name: "on", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "the node, by name or label selector: `node-role=edge`"},
	{Name: "apart", Type: param.TypeText, Reach: param.ReachNothing, Doc: "a part on whose node it does not run"},
	{Name: "together", Type: param.TypeText, Reach: param.ReachNothing, Doc: "a part on whose node it runs"},
}

// accountSetting describes an entry of "accounts".
var accountSetting = param.Setting{Name: "account", Type: param.TypeText, Reach: param.ReachNothing,
	Doc: "a service account in the run's namespace"}

// cluster reads the section "cluster". Cluster.check checks the names in it, once all parts are known.
func (d *decoder) cluster(n document.Node) (*Cluster, error) {
	c := &Cluster{Where: map[string]Where{}, Accounts: map[string]string{}}
	times := param.Defaults([]param.Setting{settleSetting})
	err := d.Each(n, `"cluster"`, func(key string, at, value document.Node) error {
		switch key {
		case settleSetting.Name:
			return d.Setting(value, settleSetting, times)
		case "where":
			return d.Each(value, `"where"`, func(part string, at, value document.Node) error {
				o := param.Values{}
				err := d.Settings(value, fmt.Sprintf("the place of %q", part), whereSettings, o)
				if err == nil && len(o) != 1 {
					err = d.Fail(value, "write "+part+": {apart: NAME}", "a place is one of on, apart and together")
				}
				d.places["cluster."+part] = at
				c.Where[part] = Where{On: o["on"], Apart: o["apart"], Together: o["together"]}
				return err
			})
		case "accounts":
			return d.Each(value, `"accounts"`, func(part string, at, value document.Node) error {
				o := param.Values{}
				err := d.Setting(value, accountSetting, o)
				d.places["cluster."+part] = at
				c.Accounts[part] = o[accountSetting.Name]
				return err
			})
		}
		return d.Unknown(at, key, `"cluster"`, []string{settleSetting.Name, "where", "accounts"})
	})
	c.Settle = times.Duration(settleSetting.Name)
	return c, err
}

// Settle returns the time from when all parts of a trial are ready in their pods until its loads begin.
func (s *Spec) Settle() time.Duration {
	if s.Cluster == nil {
		return param.Defaults([]param.Setting{settleSetting}).Duration(settleSetting.Name)
	}
	return s.Cluster.Settle
}

// Accounts returns Cluster.Accounts; nil if the spec has none.
func (s *Spec) Accounts() map[string]string {
	if s.Cluster == nil {
		return nil
	}
	return s.Cluster.Accounts
}

// check returns an error, and the part that it concerns, if the section names an unknown part, or a place depends on
// itself.
func (c *Cluster) check(s *kind.Setup) (part string, err error) {
	var names []string
	for _, parts := range []map[string]*kind.Part{s.Applications, s.Loads} {
		for name := range parts {
			names = append(names, name)
		}
	}
	for _, part := range slices.Sorted(maps.Keys(c.Accounts)) {
		if !slices.Contains(names, part) {
			return part, unknownPart(part, names)
		}
	}
	for part, w := range lists.ByKey(c.Where) {
		other := w.Apart + w.Together
		switch {
		case !slices.Contains(names, part):
			return part, unknownPart(part, names)
		case other == part:
			return part, fmt.Errorf("%q cannot be placed relative to itself", part)
		case other != "" && !slices.Contains(names, other):
			return part, fmt.Errorf("%q is placed relative to %q, which is not an application or a load%s", part,
				text.Clip(other), text.DidYouMean(other, names))
		}
		for at, steps := part, 0; at != ""; steps++ {
			at = c.Where[at].Apart + c.Where[at].Together
			if steps > len(c.Where) {
				return part, fmt.Errorf("the place of %q depends on itself", part)
			}
		}
	}
	return "", nil
}

func unknownPart(part string, names []string) error {
	return fmt.Errorf("there is no application or load %q%s", text.Clip(part), text.DidYouMean(part, names))
}

// json returns the section in the form that it has in a spec.
func (c *Cluster) json() map[string]any {
	if c == nil {
		return nil
	}
	where := map[string]any{}
	for part, w := range c.Where {
		one := map[string]string{}
		for key, value := range map[string]string{"on": w.On, "apart": w.Apart, "together": w.Together} {
			if value != "" {
				one[key] = value
			}
		}
		where[part] = one
	}
	out := map[string]any{settleSetting.Name: c.Settle.String()}
	if len(where) > 0 {
		out["where"] = where
	}
	if len(c.Accounts) > 0 {
		out["accounts"] = c.Accounts
	}
	return out
}
