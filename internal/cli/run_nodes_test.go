package cli

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/proc"
)

// TestNodesPlan: the flags and the spec determine how many nodes there are, what each may use, and which part of the
// spec is left out.
func TestNodesPlan(t *testing.T) {
	const head = "name: x\nquestion: Q?\nloads: {execs: {kind: exec}}\n"
	cpus := float64(proc.FS{}.Machine().CPUs)
	most := carries(int(cpus))
	for _, c := range []struct {
		name, spec string
		flags      nodesFlags
		count      int // 0: there are none
		cpus       float64
		local      bool
		scaled     bool
	}{
		{"none", head, nodesFlags{cpus: -1}, 0, 0, false, false},
		{"asked for by the spec", head + "nodes: 3\n", nodesFlags{cpus: -1}, 3, 0.9 * cpus / 3, true, false},
		{"more than the machine carries", head + "factors: {nodes: [1, 5000]}\n", nodesFlags{cpus: -1}, 1, 0.9 * cpus,
			true, true},
		{"all of them more", head + "nodes: 5000\n", nodesFlags{cpus: -1}, most, 0.9 * cpus / float64(most), true, true},
		{"by the flag alone", head, nodesFlags{local: 4, cpus: -1}, 4, 0.9 * cpus / 4, true, false},
		{"fewer than the flag", head + "nodes: 2\n", nodesFlags{local: 4, cpus: -1}, 2, 0.9 * cpus / 2, true, false},
		{"without a limit", head, nodesFlags{local: 4, cpus: 0}, 4, 0, true, false},
		{"with another", head, nodesFlags{local: 4, cpus: 0.25}, 4, 0.25, true, false},
		{"on other machines", head + "factors: {nodes: [2, 9]}\n", nodesFlags{listen: ":0", count: 4, cpus: -1}, 4, 0,
			false, true},
	} {
		s, err := spec.Parse("test", []byte(c.spec), nil)
		if err != nil {
			t.Fatal(err)
		}
		r := c.flags.plan(s)
		if c.count == 0 {
			if r != nil {
				t.Errorf("%s: %+v", c.name, r)
			}
			continue
		}
		if r == nil || r.Count != c.count || r.CPUs != c.cpus || r.Local != c.local || (r.Scaled != "") != c.scaled ||
			s.MostNodes() > c.count {
			t.Errorf("%s: %+v, at most %d; want %d with %g CPUs", c.name, r, s.MostNodes(), c.count, c.cpus)
		}
		share := nodeShare(r)
		if share.CPUs != c.cpus || c.local != (share.Weight > 0) {
			t.Errorf("%s: a node gets %+v", c.name, share)
		}
	}
}

// TestCheckReach: a spec that names commands is refused before the first trial, with the names of the nodes that would
// refuse it; nodes that allow it, and specs that name none, pass.
func TestCheckReach(t *testing.T) {
	const head = "name: x\nquestion: Q?\nloads: {w: {kind: write, rate: 1}}\n"
	nodes := func(allow ...bool) (all []cluster.Hello) {
		for i, a := range allow {
			all = append(all, cluster.Hello{Node: record.Node{Name: fmt.Sprintf("n%d", i+1)}, AllowCommands: a})
		}
		return all
	}
	for _, c := range []struct {
		name, spec string
		nodes      []cluster.Hello
		want       string
	}{
		{"no commands", head, nodes(false, false), ""},
		{"allowed by all", head + "arms: {a: {subject: command, command: /bin/true}}\n", nodes(true, true), ""},
		{"refused by one", head + "arms: {a: {subject: command, command: /bin/true}}\n", nodes(true, false, true), "n2: "},
		{"refused by many", head + "arms: {a: {subject: command, command: /bin/true}}\n", nodes(make([]bool, 7)...),
			"n1, n2, n3, n4, n5, 2 more: "},
	} {
		s, err := spec.Parse("test", []byte(c.spec), nil)
		if err != nil {
			t.Fatal(err)
		}
		err = checkReach(s, c.nodes)
		if c.want == "" && err != nil || c.want != "" && (fault.CodeOf(err) != fault.Usage ||
			!strings.HasPrefix(err.Error(), c.want) || !strings.Contains(err.Error(), "arms.a.command (a command)")) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}
