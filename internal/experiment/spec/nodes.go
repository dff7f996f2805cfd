package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
)

// nodesSetting is a setting of the whole experiment. Like the settings of parts, it can be a factor.
var nodesSetting = param.Setting{Name: "nodes", Type: param.TypeCount, Default: "0", Max: 10_000,
	Phrase: map[string]string{"": "on {} nodes", "0": "on this machine alone", "1": "on one node"},
	Doc: "machines that each run the whole of every trial, at the same time; 0: this machine alone. See " +
		"docs/nodes.md"}

// Nodes returns the number of nodes on which trials run.
func (s *Spec) Nodes() int { return int(s.Whole.Float(nodesSetting.Name)) }

// MostNodes returns the largest number of nodes of any level.
func (s *Spec) MostNodes() int {
	most := 0
	for _, l := range s.Levels() {
		most = max(most, s.At(l).Nodes())
	}
	return most
}

// CheckShare returns an error if the CPU limit of a part is above cpus, the number of CPUs that all groups of a node
// may use together (0: any number). The part could not use more than that share: cgroup v1 refuses such a limit, and v2
// accepts it without effect. The error is a fault with the code Usage and the place of the part in the spec.
func (s *Spec) CheckShare(cpus float64) error {
	if cpus == 0 {
		return nil
	}
	for _, l := range s.Levels() {
		whole := s.At(l)
		for _, sec := range whole.Sections() {
			for name, p := range lists.ByKey(sec.Parts) {
				each := p.Limits.Float("cpus") / float64(p.Count())
				if each <= cpus {
					continue
				}
				path := sec.Path(name)
				return fault.New(fault.Usage, cmp.Or(s.places[path], path),
					"use fewer local nodes, or give each more with --node-cpus, or 0 for no limit",
					"the limit of %.3g CPUs of %s is above the %.3g CPUs that all groups of a local node may use together",
					each, path, cpus)
			}
		}
	}
	return nil
}

// ScaleNodes adapts the spec to n available nodes. It returns a sentence about the reduction, or "" if the spec needs
// no more than n nodes. A spec that does not ask for nodes gets all n.
func (s *Spec) ScaleNodes(n int) string {
	at := slices.IndexFunc(s.Factors, func(f Factor) bool { return slices.Equal(f.paths, []string{nodesSetting.Name}) })
	if at < 0 {
		asked := s.Nodes()
		if asked > 0 && asked <= n {
			return ""
		}
		s.Whole[nodesSetting.Name] = strconv.Itoa(n)
		if asked == 0 {
			return ""
		}
		return fmt.Sprintf("scaled to %s, from %d", quantity.Counted(n, "node"), asked)
	}
	var kept, left []string
	for _, l := range s.Factors[at].Levels {
		if nodes, _ := strconv.Atoi(l); nodes <= n {
			kept = append(kept, l)
		} else {
			left = append(left, l)
		}
	}
	if len(left) == 0 {
		return ""
	}
	if len(kept) == 0 {
		kept = []string{strconv.Itoa(n)}
	}
	s.Factors[at].Levels = kept
	return fmt.Sprintf("scaled to %s: the levels of %s nodes are left out", quantity.Counted(n, "node"),
		strings.Join(left, ", "))
}

// OneTrial returns the part of s that one node runs: s without factors, short form and number of nodes, and without
// assertions and places in a cluster, because they can name factors, and parts that do not run at this level. s must be
// the spec at one level (see At).
func (s *Spec) OneTrial() *Spec {
	one := *s
	one.Factors, one.Quick, one.Whole = nil, nil, param.Defaults([]param.Setting{nodesSetting})
	one.Assert, one.Cluster = nil, nil
	return &one
}
