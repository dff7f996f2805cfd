package screen

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"

	"tare/internal/scale/ledger"
)

var update = flag.Bool("update", false, "write the golden files anew")

// evil would clear the screen, return to the beginning of the line, reverse the direction of text, stack combining
// marks, and begin another line. It ends in a byte that is not valid UTF-8.
const evil = "e\x1b[2J\r\u202e\u0301\u0301\u0301\n\u009b2J\u200d漢字🇩🇪\xff"

// at returns a pointer to a value.
func at[T any](v T) *T { return &v }

// hostile returns the ledger of tick n: 3,000 control groups whose names contain odd bytes, and many unknown values.
func hostile(n int) *ledger.Ledger {
	begin := time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC).Add(time.Duration(n) * 2 * time.Second)
	used := float64(1 + n%5)
	l := &ledger.Ledger{
		Schema: ledger.Schema, Host: ledger.Host{Hostname: "h" + evil, Kernel: "6.18", CPUs: 8},
		Window: ledger.Window{Start: begin, End: begin.Add(2 * time.Second), Seconds: 2},
		CPU: ledger.Budget(ledger.Usage{Capacity: 16, Idle: 6, Steal: 0.5, Groups: 2 * used, Root: 1.5, Kernel: 0.25,
			NotSplit: 0.25, IdleInterrupts: at(0.0)}),
		Sandboxes: []ledger.Sandbox{
			{ID: strings.Repeat("a", 64), Runtime: evil, Pod: &ledger.SandboxPod{Namespace: evil, Name: "shop"},
				GrossCPU: at(1.0), NetCPU: at(0.75), TareCPU: at(0.25), NetMemory: at(uint64(1 << 20)),
				Components: []ledger.SandboxComponent{
					{Component: "workload", Charge: ledger.ChargeWorkload, Processes: 1, CPU: at(0.75)},
					{Component: "shim", Charge: ledger.ChargeTare, Processes: 1, CPU: at(0.25),
						Memory: &ledger.SandboxMemory{PSS: 4 << 20}},
				},
				Notes: []string{"not read: " + evil}},
			{ID: "vm", VM: true},
		},
		Maps: []ledger.Map{
			{ID: 7, Name: evil, Type: "hash", Bytes: at(uint64(1 << 30)), MaxEntries: 65536, BytesMethod: "exact",
				HeldBy: []ledger.Owner{{PID: 1, Comm: evil}}, UsedBy: []uint32{9}},
			{ID: 8, Type: "array"},
		},
	}
	l.Cgroups = []ledger.Cgroup{{Path: "/", CPUSeconds: at(2*used + 2)}, {Path: "/pods", CPUSeconds: at(2 * used)}}
	for i := range 3000 {
		g := ledger.Cgroup{Path: fmt.Sprintf("/pods/pod%04d%s", i, evil[:i%len(evil)])}
		if i%7 != 0 { // the counters of every seventh group are unknown
			g.CPUSeconds, g.Memory = at(float64(i)/3000), &ledger.Memory{Hard: at(int64(i) << 20)}
		}
		l.Cgroups = append(l.Cgroups, g)
	}
	l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/pods/pod0001" + evil[:1], Vanished: true},
		ledger.Cgroup{Path: strings.Repeat("/deep", 700), CPUSeconds: at(1e-6)}, ledger.Cgroup{Path: evil})
	payer := "/pods/pod0002"
	l.Programs = []ledger.Program{
		{ID: 9, Name: evil, Type: "tracing", RunCount: at(uint64(5000)), RunSeconds: at(0.5), NsPerRun: at(1e5),
			Attached: []string{evil}, Owners: []ledger.Owner{{PID: 12, Comm: "agent"}},
			Shares: []ledger.Share{
				{Cgroup: &payer, Context: ledger.Task, Seconds: 0.375, Lo: 0.3, Hi: 0.4, Samples: 30, Method: ledger.Sampled},
				{Seconds: 0.125, Note: "not split: " + evil},
			}},
		{ID: 10, Name: "uncounted", Type: "xdp"},
		{ID: 11, Name: "own", Own: true, RunSeconds: at(0.1)},
	}
	l.Settle()
	l.Warn("evil", "%s", strings.Repeat("a long warning of "+evil+" ", 30))
	return l
}

// recorded returns the ledger of a recorded trial.
func recorded(t *testing.T) *ledger.Ledger {
	t.Helper()
	f, err := os.Open("../../../test/runs/quickstart/trials.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var trial struct{ Ledger *ledger.Ledger }
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&trial)
	}
	if err != nil || trial.Ledger == nil {
		t.Fatalf("no ledger is recorded: %v", err)
	}
	return trial.Ledger
}

// newModel returns a Model of the given size that has been sent the ledgers.
func newModel(wide, high int, ledgers ...*ledger.Ledger) *Model {
	m := New(Options{Command: "tare top", Weigh: "tare weigh", Tables: LedgerTables(), Every: 2 * time.Second})
	m.Update(tea.WindowSizeMsg{Width: wide, Height: high})
	for _, l := range ledgers {
		m.Update(Tick{Picture: OfLedger(l)})
	}
	return m
}

// keys presses keys: each a character, or a name in angle brackets.
func keys(m *Model, all string) (then tea.Cmd) {
	named := map[string]rune{"<enter>": tea.KeyEnter, "<esc>": tea.KeyEscape, "<tab>": tea.KeyTab, "<down>": tea.KeyDown,
		"<end>": tea.KeyEnd, "<home>": tea.KeyHome, "<pgdown>": tea.KeyPgDown, "<backspace>": tea.KeyBackspace}
	for all != "" {
		var k tea.KeyPressMsg
		if all[0] == '<' {
			name, rest, _ := strings.Cut(all, ">")
			k, all = tea.KeyPressMsg{Code: named[name+">"]}, rest
		} else {
			r, size := utf8.DecodeRuneInString(all)
			k, all = tea.KeyPressMsg{Code: r, Text: all[:size]}, all[size:]
		}
		_, then = m.Update(k)
	}
	return then
}

// drawn returns the screen without styles. It fails the test if the screen differs in size from the terminal or could
// control it.
func drawn(t *testing.T, m *Model) string {
	t.Helper()
	content := m.View().Content
	plain := ansi.Strip(content)
	lines := strings.Split(plain, "\n")
	if small := m.width < leastWidth || m.height < leastHeight; len(lines) != m.height && !small {
		t.Errorf("%dx%d: %d lines", m.width, m.height, len(lines))
	}
	for i, line := range lines {
		if w := ansi.StringWidth(line); w > m.width || ansi.StringWidthWc(line) > m.width {
			t.Errorf("%dx%d: line %d takes %d cells: %q", m.width, m.height, i, w, line)
		}
	}
	if at := strings.IndexFunc(plain, func(r rune) bool {
		return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 || strings.ContainsRune("\u202e\u200d\u0301\ufffd", r)
	}); at >= 0 {
		t.Errorf("%dx%d: the screen has %q", m.width, m.height, plain[max(at-20, 0):at+5])
	}
	return plain
}

// TestScreens compares screens of 80x24 with golden files.
func TestScreens(t *testing.T) {
	for name, c := range map[string]struct {
		keys string
		ran  []*ledger.Ledger
	}{
		"components": {"", []*ledger.Ledger{hostile(0), hostile(1), hostile(2)}},
		"programs":   {"2<enter>", []*ledger.Ledger{hostile(0), hostile(1), hostile(2)}},
		"groups":     {"3j<enter>jj", []*ledger.Ledger{hostile(0), hostile(1), hostile(2)}},
		"sandboxes":  {"4<enter>", []*ledger.Ledger{hostile(0)}},
		"maps":       {"5<enter>", []*ledger.Ledger{hostile(0)}},
		"filter":     {"3/POD00<enter>", []*ledger.Ledger{hostile(0)}},
		"help":       {"?", []*ledger.Ledger{hostile(0)}},
		"warnings":   {"w", []*ledger.Ledger{hostile(0)}},
		"recorded":   {"2<enter>", []*ledger.Ledger{recorded(t)}},
		"first":      {"", nil},
		"unread":     {"2", []*ledger.Ledger{{Window: ledger.Window{Seconds: 1}}}},
	} {
		m := newModel(80, 24, c.ran...)
		keys(m, c.keys)
		got := drawn(t, m)
		file := filepath.Join("testdata", name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got != string(want) {
			t.Errorf("%s (%v): run the test with -update to accept:\n%s\nwant\n%s", name, err, got, want)
		}
	}
}

// TestSizes: whatever the size of the terminal, all keys work, no line is too wide, and there are not too many lines.
func TestSizes(t *testing.T) {
	m := newModel(80, 24, hostile(0), hostile(1))
	for _, size := range [][2]int{{80, 24}, {80, 16}, {81, 17}, {250, 100}, {131, 3000}, {79, 24}, {80, 15}, {10, 2},
		{1, 1}, {0, 0}, {80, 24}} {
		m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		for _, k := range []string{"1", "2", "3", "4", "5", "<enter>", "<end>", "s", "s", "r", "<home>", "<tab>", "w", "w",
			"?", "?", "/漢\u0301", "<enter>", "<esc>", "p", "p", "<pgdown>", "k", "+", "-"} {
			keys(m, k)
			drawn(t, m)
		}
	}
	m.Update(tea.WindowSizeMsg{Width: 60, Height: 10})
	if got := drawn(t, m); got != "tare top needs 80x16, not 60x10: enlarge the window, or q" {
		t.Errorf("a small terminal shows %q", got)
	}
}

// lineWith returns the first line of the screen that contains a text, with runs of spaces replaced by one.
func lineWith(t *testing.T, m *Model, part string) string {
	t.Helper()
	for line := range strings.Lines(drawn(t, m)) {
		if strings.Contains(line, part) {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	return ""
}

// TestUnknown: what is not known is a dash, and 0 is 0.
func TestUnknown(t *testing.T) {
	m := newModel(80, 24, hostile(0))
	keys(m, "2/uncounted<enter>")
	if got := lineWith(t, m, "uncounted"); !strings.HasPrefix(got, "> - - - 10 uncounted") {
		t.Errorf("a program that was not counted: %q", got)
	}
	keys(m, "<esc>3/pod0007<enter>jj")
	if got := lineWith(t, m, "pod0007"); !strings.HasPrefix(got, "> - - - - pod0007") {
		t.Errorf("a group without counters: %q", got)
	}
	keys(m, "<esc>/pod2998<enter>")
	if got := lineWith(t, m, "pod2998"); !strings.Contains(got, "0.4997 0.4997 - 3.14 GB pod2998") {
		t.Errorf("a group with counters: %q", got)
	}
	if got := lineWith(t, m, "ebpf"); !strings.Contains(got, "B ebpf - i interrupts 0 ") {
		t.Errorf("eBPF that was not split: %q", got)
	}
}

// TestChoices: sorting, folding and freezing work, and a row stays selected while others come and go and the order
// changes.
func TestChoices(t *testing.T) {
	m := newModel(80, 24, hostile(0))
	keys(m, "3j")
	selected := m.tabs[2].selected
	if selected != "/pods" {
		t.Fatalf("%q is selected", selected)
	}
	keys(m, "<enter>j")
	first := m.tabs[2].selected
	l := hostile(1)
	l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: "/pods/new", CPUSeconds: at(100.0)})
	m.Update(Tick{Picture: OfLedger(l)})
	if now := m.tabs[2].selected; now != first || m.tabs[2].at != 3 {
		t.Errorf("%q is selected at %d, was %q", now, m.tabs[2].at, first)
	}
	keys(m, "kkk<enter>") // the root
	if n := len(m.tabs[2].lines); n != 1 {
		t.Errorf("with the root folded there are %d lines", n)
	}
	keys(m, "2r")
	if got := m.tabs[1].lines[0].Name; !strings.HasPrefix(got, "e\x1b") {
		t.Errorf("reversed, what is not known comes first: %q", got)
	}
	keys(m, "rsss")
	if got := m.tabs[1].lines; len(got) != 2 || got[0].Key != "10 " {
		t.Errorf("by number the first is %q", got[0].Key)
	}

	keys(m, "p")
	before := m.picture
	m.Update(Tick{Picture: OfLedger(hostile(2))})
	if m.picture != before || len(m.history.ends) != 3 || !strings.Contains(drawn(t, m), "FROZEN") {
		t.Errorf("frozen: another ledger is shown, or the history has %d ticks", len(m.history.ends))
	}
	if keys(m, "p"); m.picture == before {
		t.Error("the frozen screen does not go on")
	}

	m.Update(Tick{Err: errors.New("gone" + evil)})
	if got := lineWith(t, m, "gone"); !strings.HasPrefix(got, `trying again: gonee\x1b[2J`) {
		t.Errorf("after an error: %q", got)
	}
	keys(m, "++-")
	if m.Every() != 5*time.Second {
		t.Errorf("a tick is %v after two steps up and one down", m.Every())
	}
	keys(m, "+++++++")
	longest := m.Every()
	keys(m, "-----------")
	if longest != time.Minute || m.Every() != 500*time.Millisecond {
		t.Errorf("ticks are from %v to %v", m.Every(), longest)
	}
	if then := keys(m, "q"); then == nil || then() != tea.Quit() {
		t.Error("q does not quit")
	}
	keys(m, "/q<backspace>x")
	if then := keys(m, "q"); then != nil || m.filter != "xq" {
		t.Errorf("the filter is %q", m.filter)
	}
}

// TestHistory: a sparkline ends with the last tick, is as wide as there is room for, and has a blank for an unknown
// value. Ticks older than ten minutes are dropped, and younger ones as well if there are very many rows.
func TestHistory(t *testing.T) {
	var h history
	begin := time.Now()
	for i := range 1000 {
		used := map[string]float64{"a": float64(i % 10)}
		if i >= 990 && i != 995 {
			used["new"] = 1
		}
		if i < 100 {
			used["gone"] = 1
		}
		h.add(begin.Add(time.Duration(i)*2*time.Second), used)
	}
	if len(h.ends) != 301 || h.span() != kept || len(h.rows["a"]) != 301 || len(h.rows["new"]) != 10 ||
		h.rows["gone"] != nil {
		t.Errorf("%d ticks, %v; %d values of a, %d of a new one, %d of one that went", len(h.ends), h.span(),
			len(h.rows["a"]), len(h.rows["new"]), len(h.rows["gone"]))
	}
	if got := sparkline(h.of("new")[285:], 1, 20); got != "      █████ ████" {
		t.Errorf("a row that came late is %q", got)
	}
	if got := sparkline([]float64{0, 1, 2, 3, 4, 5, 6, 7}, 7, 8); got != string(blocks) {
		t.Errorf("a ramp is %q", got)
	}
	if got := sparkline([]float64{9, 0, 1, 2, 3, 4, 5, 6, 7}, 7, 4); got != "█▅█" {
		t.Errorf("values in less room is %q", got)
	}
	if got := sparkline([]float64{0, 0}, 0, 5); got != "▁▁" {
		t.Errorf("nothing is %q", got)
	}
	many := map[string]float64{}
	for i := range 100_000 {
		many[fmt.Sprint(i)] = 1
	}
	h = history{}
	points := 0
	for i := range 20 {
		h.add(begin.Add(time.Duration(i)*time.Second), many)
	}
	for _, values := range h.rows {
		points += len(values)
	}
	if points > 2*mostPoints || len(h.ends) < 5 {
		t.Errorf("%d ticks of 100,000 rows are %d values", len(h.ends), points)
	}
}

// TestHistoryOfRows: the history of a share or a component follows it when its place in the list changes.
func TestHistoryOfRows(t *testing.T) {
	begin := time.Now()
	m := newModel(80, 24)
	for i, first := range []string{"/a", "/b", "/a"} {
		second := map[string]string{"/a": "/b", "/b": "/a"}[first]
		used := map[string]float64{"/a": 0.2, "/b": 0.1}
		l := &ledger.Ledger{Window: ledger.Window{End: begin.Add(time.Duration(i) * time.Second), Seconds: 1}}
		p := ledger.Program{ID: 7, RunSeconds: at(0.3)}
		for _, name := range []string{first, second} {
			p.Shares = append(p.Shares, ledger.Share{Cgroup: &name, Context: ledger.Task, Seconds: used[name]})
			l.Components = append(l.Components, ledger.Component{
				Charged: ledger.Charged{Charge: ledger.ChargeTare, Component: name}, CPUSeconds: at(used[name]),
			})
		}
		p.Shares = append(p.Shares, ledger.Share{Note: fmt.Sprintf("not split: %d places", i), Seconds: 0.04},
			ledger.Share{Note: "these threads ended", Seconds: 0.03})
		l.Programs = []ledger.Program{p}
		m.Update(Tick{Picture: OfLedger(l)})
	}
	found := 0
	for key := range m.history.rows {
		of := m.history.of(key)
		for _, v := range of[1:] {
			if strings.Contains(key, "/a") || strings.Contains(key, "/b") || strings.Contains(key, "share") {
				found++
				if v != of[0] {
					t.Errorf("the history of %q is %v", key, of)
				}
			}
		}
	}
	if found != 2*2*2+2*2 {
		t.Errorf("%d values in the history of rows: %v", found, m.history.rows)
	}
}

// faulty is a source. Each call uses the next element: it returns an error, panics, or returns the picture of a ledger.
type faulty []any

func (f *faulty) next(context.Context, time.Duration) (*Picture, error) {
	next := (*f)[0]
	*f = (*f)[1:]
	switch next := next.(type) {
	case error:
		return nil, next
	case *ledger.Ledger:
		return OfLedger(next), nil
	}
	panic(next)
}

// TestFeed: with retry, a source that fails is asked again if it has worked before. Otherwise the failure is returned.
// A panic becomes an error.
func TestFeed(t *testing.T) {
	gone, end := errors.New("gone"), errors.New("the end")
	for _, c := range []struct {
		retry bool
		from  faulty
		want  string
		ticks int
	}{
		{false, faulty{hostile(0), hostile(1), end}, "the end", 2},
		{true, faulty{end}, "the end", 0},
		{true, faulty{hostile(0), gone, gone, hostile(1), "panic"}, "panic: panic\n", 4},
	} {
		var got []tea.Msg
		atOnce, keep := func() time.Duration { return 0 }, func(m tea.Msg) { got = append(got, m) }
		err := feed(t.Context(), c.from.next, atOnce, c.retry, keep)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || len(got) != c.ticks {
			t.Errorf("%v after %d ticks, want %q after %d", err, len(got), c.want, c.ticks)
		}
	}
}

// TestColours: a terminal has the colours that its environment says, at most sixteen, and none with NO_COLOR.
func TestColours(t *testing.T) {
	for environment, want := range map[string]colorprofile.Profile{
		"TERM=xterm-256color": colorprofile.ANSI, "TERM=xterm-256color NO_COLOR=": colorprofile.ANSI,
		"TERM=xterm NO_COLOR=yes": colorprofile.ASCII, "TERM=xterm NO_COLOR=0": colorprofile.ASCII,
		"TERM=dumb NO_COLOR=1": colorprofile.NoTTY,
	} {
		if got := colours(strings.Fields(environment)); got != want {
			t.Errorf("%s: %v, want %v", environment, got, want)
		}
	}
}

// FuzzShown: a name of any bytes takes at most the given number of cells, counted in either of the ways that package
// ansi offers.
func FuzzShown(f *testing.F) {
	f.Add(evil, 10)
	f.Add("plain", 5)
	f.Add(strings.Repeat("\u0301", 5000), 80)
	f.Fuzz(func(t *testing.T, name string, cells int) {
		cells = max(0, min(cells, 200))
		s := shown(name, cells)
		if w := max(ansi.StringWidth(s), ansi.StringWidthWc(s)); w > cells || ansi.Strip(s) != s {
			t.Errorf("%q takes %d cells of %d: %q", name, w, cells, s)
		}
	})
}

// FuzzLedger: the screen can show any ledger that an agent sends, at least in part.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"cgroups":[{"path":"a//b"},{"path":"/"},{"path":"","cpu_seconds":1}],"programs":[{"run_seconds":-1,
		"shares":[{"cgroup":"","seconds":1e300}]}],"maps":[{"bytes":1}],"sandboxes":[{"components":[{}]}],
		"cpu":{"capacity_seconds":1,"lines":[{"name":"\u001b","seconds":1e308,"method":"not split"}]}}`))
	f.Add([]byte(`{"components":[{"charge":"tare","cpu_seconds":-0.00001}],"warnings":[{"message":"\n"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := &ledger.Ledger{}
		if json.Unmarshal(data, l) != nil || len(data) > 1<<14 {
			return
		}
		if !(l.Window.Seconds > 0) {
			l.Window.Seconds = 1
		}
		m := newModel(80, 24, l, l)
		for _, tab := range "12345" {
			keys(m, string(tab)+"<enter>j<enter><end>s")
			drawn(t, m)
		}
		keys(m, "w")
		drawn(t, m)
	})
}
