package clusterreport

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
	"tare/internal/results/screen"
	"tare/internal/scale/ledger"
	"tare/test/clustertest"
	"tare/test/schematest"
)

var update = flag.Bool("update", false, "write the golden files")

// example returns an account with a node that did not answer, one on which a container ended in the window, and a
// shared machine.
func example() *cluster.Cluster {
	pods := clustertest.Pods(5)
	m := cluster.New(pods, cluster.Options{Start: clustertest.Began.Add(-500 * time.Millisecond), Containers: true,
		End:      clustertest.Began.Add(9500 * time.Millisecond),
		Machines: map[string]string{"node-3": "boot-1", "node-4": "boot-1"}})
	for i := range 5 {
		l := clustertest.Ledger(i)
		switch i {
		case 3, 4: // half of the machine
			for j := range l.Cgroups {
				*l.Cgroups[j].CPUSeconds /= 4
			}
			l.CPU.Attributed, l.CPU.Idle, l.CPU.Unexplained = 3.6875, 34, 1.8125
		case 1:
			m.Add(&cluster.Node{Name: clustertest.Name(i), Failed: "the agent did not answer in 10 s"})
			continue
		case 2:
			l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/kubepods/job", Vanished: true,
				Name:    &ledger.Name{Namespace: "batch", Pod: "job-1", PodUID: "uid-job"},
				Charged: ledger.Charged{Charge: ledger.ChargeWorkload, Workload: "batch/job-1"}})
			l.Warn("samples-lost", "lost")
		}
		m.Add(clustertest.Node(i, l))
	}
	return m.Finish()
}

// TestJSON: documents conform to the schema, and can be read again.
func TestJSON(t *testing.T) {
	for _, c := range []*cluster.Cluster{example(), hostile(), cluster.New(nil, cluster.Options{}).Finish()} {
		var b bytes.Buffer
		format := formats[slices.Index(Names(), "json")]
		if err := format.Write(&b, c, Options{}); err != nil {
			t.Fatal(err)
		}
		if err := schematest.Check(b.Bytes()); err != nil {
			t.Error(err)
		}
		var again cluster.Cluster
		if err := json.Unmarshal(b.Bytes(), &again); err != nil || !reflect.DeepEqual(&again, c) {
			t.Errorf("the account that was read is another one: %v", err)
		}
	}
}

// TestGolden: the output of each format for people, and of CSV, equals its golden file.
func TestGolden(t *testing.T) {
	for _, f := range Formats() {
		for _, view := range cluster.Views() {
			if f.Name == "json" || view != "workload" && f.Name != "text" {
				continue
			}
			o := Options{By: view}
			if f.Name == "csv" {
				o.By = "" // all views
			}
			var b bytes.Buffer
			if err := f.Write(&b, example(), o); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", view+"."+f.Name)
			if *update {
				if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(want, b.Bytes()) {
				t.Errorf("%s is not what the format writes (-update writes it): %v", path, err)
			}
		}
	}
}

// TestNegative: if the counter of a group lags behind those of the groups in it, a row may be less than 0. A table that
// shows such a row explains it.
func TestNegative(t *testing.T) {
	for _, c := range []struct {
		behind float64 // seconds
		bytes  int64
		shown  bool
	}{{0, 0, false}, {0.001, 0, false}, {0.01, 0, true}, {0, 4096, true}} {
		l := clustertest.Ledger(0)
		*l.Cgroups[1].CPUSeconds = 7.5 - c.behind
		*l.Cgroups[1].Memory.Hard = 900e6 - c.bytes
		m := cluster.New(clustertest.Pods(1), cluster.Options{Containers: true})
		m.Add(clustertest.Node(0, l))
		var b bytes.Buffer
		if err := Text(&b, m.Finish(), Options{}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "what is less than 0 (pods that ended") != c.shown {
			t.Errorf("%+v:\n%s", c, b.String())
		}
	}
}

// TestKinds: two workloads of one name are distinguished by their kinds, on the screen too. Others have none.
func TestKinds(t *testing.T) {
	row := func(kind, name string) *cluster.Row {
		return &cluster.Row{Namespace: "shop", Kind: kind, Workload: name,
			Usage: cluster.Sum(nil)}
	}
	c := &cluster.Cluster{Asked: 1, Answered: 1, Total: cluster.Sum(nil),
		Workloads: []*cluster.Row{row("Deployment", "web"), row("StatefulSet", "db"), row("StatefulSet", "web")}}
	want := []string{"shop/web (Deployment)", "shop/db", "shop/web (StatefulSet)"}
	if got := titles("workload", c.Workloads); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var text bytes.Buffer
	if err := Text(&text, c, Options{}); err != nil {
		t.Fatal(err)
	}
	on := Picture(c).Rows[slices.Index(cluster.Views(), "workload")].All
	for i, name := range want {
		if !strings.Contains(text.String(), "  "+name+"\n") || on[i].Name != name {
			t.Errorf("no row of %s in %s, or on the screen: %+v", name, text.String(), on[i])
		}
	}
}

// TestInCPUs: tables round to thousandths of a CPU, and distinguish what is less from nothing.
func TestInCPUs(t *testing.T) {
	for v, want := range map[float64]string{0: "0.000", 0.0004: "<0.001", 1e-9: "<0.001", 0.0005: "0.001", 0.5: "0.500",
		-0.0004: "0.000", -0.0006: "-0.001", 99.9: "99.900", 100: "100.0"} {
		if got := inCPUs(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
}

// TestCSVBy: with a view, CSV has the rows of the view and the total.
func TestCSVBy(t *testing.T) {
	for _, view := range cluster.Views() {
		var all, one bytes.Buffer
		if err := cmp.Or(CSV(&all, example(), Options{}), CSV(&one, example(), Options{By: view})); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for line := range strings.Lines(all.String()) {
			if of, _, _ := strings.Cut(line, ","); slices.Contains([]string{"view", "total", view, "no answer"}, of) {
				want.WriteString(line)
			}
		}
		if one.String() != want.String() {
			t.Errorf("by %s:\n%s", view, one.String())
		}
	}
}

// TestFits: no line of text is longer than the terminal is wide. Without a terminal, rows have whole names.
func TestFits(t *testing.T) {
	for _, c := range []*cluster.Cluster{example(), hostile()} {
		for _, view := range cluster.Views() {
			for _, wide := range []int{80, 120} {
				var b bytes.Buffer
				if err := Text(&b, c, Options{By: view, Top: -1, Width: wide}); err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(b.String()) {
					if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > wide && strings.Contains(line, " ") {
						t.Errorf("%d columns of %d: %s", n, wide, line)
					}
				}
			}
			var b bytes.Buffer
			if err := Text(&b, c, Options{By: view, Top: -1}); err != nil {
				t.Fatal(err)
			}
			for _, name := range titles(view, c.By(view)) {
				if name = text.Clean(name); !strings.Contains(b.String(), "  "+name+"\n") {
					t.Errorf("no row of %s", name)
				}
			}
		}
	}
}

// names try to break out of their row.
var names = []string{"a\x1b[2Jb\nnode-9  1.0", "<script>alert(1)</script>", strings.Repeat("x", 253), "a\u202eb|c`d`",
	"=HYPERLINK(1)", "\"><svg onload=x>", strings.Repeat("\u00e9", 126)}

// hostile returns an account in which every name is one of names.
func hostile() *cluster.Cluster {
	pods := []cluster.Pod{}
	m := func() *cluster.Merger { return cluster.New(pods, cluster.Options{Containers: true}) }
	for i := range names {
		pods = append(pods, cluster.Pod{Namespace: names[(i+1)%len(names)], Name: names[i], UID: names[i],
			OwnerKind: names[(i+2)%len(names)], Owner: names[i]})
	}
	merger := m()
	l := clustertest.Ledger(0)
	for _, name := range names {
		l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/kubepods/" + name, CPUSeconds: new(0.01),
			Name:    &ledger.Name{PodUID: name, Container: name},
			Memory:  &ledger.Memory{Hard: new(int64(1e6)), Soft: new(int64(1)), WorkingSet: new(uint64(1))},
			Charged: ledger.Charged{Charge: ledger.ChargeWorkload, Workload: name}})
		l.Warn(name, "%s", name)
	}
	n := clustertest.Node(0, l)
	n.Name = names[0]
	merger.Add(n)
	merger.Add(&cluster.Node{Name: names[1], Failed: names[0]})
	return merger.Finish()
}

// TestHostileNames: hostile names do not break out of their rows in any format.
func TestHostileNames(t *testing.T) {
	c := hostile()
	for _, f := range Formats() {
		for _, view := range cluster.Views() {
			var b bytes.Buffer
			if err := f.Write(&b, c, Options{By: view, Top: -1}); err != nil {
				t.Fatal(err)
			}
			out := b.String()
			i := strings.IndexFunc(out, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f || r == '\u202e' })
			if i >= 0 && f.Name != "json" {
				t.Errorf("%s by %s: a control character at %d", f.Name, view, i)
			}
			for line := range strings.Lines(out) {
				if strings.HasPrefix(line, "node-9") || f.Name == "csv" && strings.HasPrefix(line, "=") {
					t.Errorf("%s by %s: a name left its row: %s", f.Name, view, line)
				}
			}
			if slices.Contains([]string{"html", "md"}, f.Name) &&
				(strings.Contains(out, "<script") || strings.Contains(out, "<svg onload")) {
				t.Errorf("%s by %s: a name is HTML", f.Name, view)
			}
		}
	}
}

// TestScreen: the screen of kubectl tare top shows each table, and a name stays in its row.
func TestScreen(t *testing.T) {
	o := screen.Options{Command: "kubectl tare top", Weigh: "kubectl tare weigh", Tables: ScreenTables()}
	for i, view := range cluster.Views() {
		m := screen.New(o)
		m.Update(screen.Tick{Picture: Picture(example())})
		for _, k := range string(rune('1'+i)) + " " { // shows the table, and what is below its first row
			m.Update(tea.KeyPressMsg{Code: k, Text: string(k)})
		}
		got := ansi.Strip(m.View().Content)
		path := filepath.Join("testdata", view+".screen")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || got != string(want) {
			t.Errorf("%s is not what the screen shows (-update writes it): %v\n%s", path, err, got)
		}
		m.Update(screen.Tick{Picture: Picture(hostile())})
		got = ansi.Strip(m.View().Content)
		if n := strings.Count(got, "\n"); n != 23 || strings.ContainsAny(got, "\x1b\u202e") {
			t.Errorf("by %s the hostile account takes %d lines:\n%q", view, n+1, got)
		}
	}
}

// TestPictureAddsUp: the parts of the bar add up to the CPU time of all machines, and the rows of a table have
// different keys.
func TestPictureAddsUp(t *testing.T) {
	for _, c := range []*cluster.Cluster{example(), hostile(), cluster.New(nil, cluster.Options{}).Finish()} {
		p := Picture(c)
		sum := 0.0
		for _, part := range p.Parts {
			sum += part.Seconds
		}
		if math.Abs(sum-p.Capacity) > 1e-6 {
			t.Errorf("the parts are %v s of %v s", sum, p.Capacity)
		}
		for i, rows := range p.Rows {
			seen := map[string]bool{}
			for _, r := range rows.All {
				if seen[r.Key] {
					t.Errorf("table %d has two rows %q", i, r.Key)
				}
				seen[r.Key] = true
			}
		}
	}
}
