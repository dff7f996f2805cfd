package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

// TestCheckShare: a limit above the CPUs of a node is rejected with the position of the part in the spec, at any level.
func TestCheckShare(t *testing.T) {
	const head = "name: x\nquestion: Q?\napplications:\n  server:\n    kind: http\n    count: 2\n    limits: " +
		"{cpus: 0.5}\n" +
		"loads:\n  client: {kind: http, to: server, count: 2, rate: 10, connections: 2}\n"
	for _, c := range []struct {
		name, spec string
		cpus       float64
		want       string // empty: accepted
	}{
		{"no limit of the node", head, 0, ""},
		{"just as much, for each copy", head, 0.25, ""},
		{"more", head, 0.2, "test:4:3: the limit of 0.25 CPUs of applications.server is above the 0.2 CPUs"},
		{"more at one level", head + "factors: {server.limits.cpus: [0.1, 0.6]}\n", 0.25, "test:4:3: the limit of 0.3 CPUs"},
		{"less at all", head + "factors: {server.limits.cpus: [0.1, 0.4]}\n", 0.25, ""},
	} {
		s, err := Parse("test", []byte(c.spec), nil)
		if err != nil {
			t.Fatal(err)
		}
		switch err := s.CheckShare(c.cpus); {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (fault.CodeOf(err) != fault.Usage || !strings.Contains(fmt.Sprint(err), c.want)):
			t.Errorf("%s: got %v; want %q", c.name, err, c.want)
		}
	}
}

// onNodes is an experiment on nodes.
const onNodes = `name: on-nodes
question: What does it cost at each node?
nodes: 3
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 50}}
`

func TestScaleNodes(t *testing.T) {
	sweep := onNodes + "factors: {nodes: [2, 12, 25, 37, 50]}\n"
	for _, c := range []struct {
		name, spec string
		n          int
		levels     []string // of the factor; nil: there is none
		most       int
		says       string
	}{
		{"all there", sweep, 50, []string{"2", "12", "25", "37", "50"}, 50, ""},
		{"some", sweep, 25, []string{"2", "12", "25"}, 25, "scaled to 25 nodes: the levels of 37, 50 nodes are left out"},
		{"between", sweep, 30, []string{"2", "12", "25"}, 25, "scaled to 30 nodes: the levels of 37, 50 nodes are left out"},
		{"fewer than any", sweep, 1, []string{"1"}, 1,
			"scaled to 1 node: the levels of 2, 12, 25, 37, 50 nodes are left out"},
		{"a number that fits", onNodes, 5, nil, 3, ""},
		{"a number that does not", onNodes, 2, nil, 2, "scaled to 2 nodes, from 3"},
		{"none asked for", strings.Replace(onNodes, "nodes: 3\n", "", 1), 4, nil, 4, ""},
	} {
		s := mustParse(t, c.spec)
		says := s.ScaleNodes(c.n)
		var levels []string
		for _, f := range s.Factors {
			levels = f.Levels
		}
		if says != c.says || s.MostNodes() != c.most || !slices.Equal(levels, c.levels) {
			t.Errorf("%s: %q, levels %v, at most %d", c.name, says, levels, s.MostNodes())
		}
	}
}
