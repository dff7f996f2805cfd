package command

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
	"tare/internal/workloads/load/command/tool"
)

func TestOptions(t *testing.T) {
	for _, c := range []struct{ line, set, want string }{
		{"wrk http://x/", "", "wrk"}, {"taskset -c 1 wrk -R 10 http://x/", "", "wrk2"}, {"mine", "", ""},
		{"sh -c 'wrk http://x/'", "wrk", "wrk"}, {"wrk http://x/", noTool, ""},
	} {
		v := param.Values{"command": c.line}
		if c.set != "" {
			v[settingTool] = c.set
		}
		o, err := optionsOf(v)
		if err != nil || o.tool != c.want || !o.command.Finishes || (o.command.Capture > 0) != (c.want != "") {
			t.Errorf("%+v: %+v, %v", c, o, err)
		}
	}
}

// TestLetBegin: a file that another process has put in place of the begin file is not opened.
func TestLetBegin(t *testing.T) {
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	err := errors.Join(os.WriteFile(target, []byte("kept"), 0o600), os.Symlink(target, link), unix.Mkfifo(fifo, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for _, begin := range []string{link, fifo} {
		if err := (&joined{begin: begin}).letBegin(); !errors.Is(err, os.ErrExist) {
			t.Errorf("%s: got %v", begin, err)
		}
	}
	if text, err := os.ReadFile(target); string(text) != "kept" {
		t.Errorf("the target has %q, %v", text, err)
	}
	if err := (&joined{begin: filepath.Join(dir, "begin")}).letBegin(); err != nil {
		t.Error(err)
	}
}

func TestActiveOpens(t *testing.T) {
	if _, err := activeOpens("/proc"); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]uint64{
		"Ip: Forwarding ActiveOpens\nIp: 1 7\nTcp: RtoAlgorithm ActiveOpens PassiveOpens\nTcp: 1 42 3\n": 42,
		"Tcp: RtoAlgorithm PassiveOpens\nTcp: 1 3\n":                                                     0,
		"Tcp: RtoAlgorithm ActiveOpens\n":                                                                0,
		"":                                                                                               0,
	} {
		proc := t.TempDir()
		err := errors.Join(os.MkdirAll(filepath.Join(proc, "7", "net"), 0o700), os.Symlink("7", filepath.Join(proc, "self")),
			os.WriteFile(filepath.Join(proc, "7", "net", "snmp"), []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := activeOpens(proc); n != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func TestOpened(t *testing.T) {
	first, second := edge{at: 1e9, opened: 100}, edge{at: 3e9, opened: 150}
	if n, seconds := opened([2]edge{first, second}); n == nil || *n != 50 || seconds != 2 {
		t.Errorf("%v in %v s", n, seconds)
	}
	lost := second
	lost.err = errors.New("unreadable")
	for _, edges := range [][2]edge{{first, lost}, {second, first}} {
		if n, _ := opened(edges); n != nil {
			t.Errorf("%+v: %d", edges, *n)
		}
	}
}

func result(t *testing.T, own Own) load.Result {
	t.Helper()
	raw, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	return load.Result{Generator: Generator, Mode: load.Outside, Seconds: 2, Own: raw}
}

func said(requests, failed int64, rate, p50 float64) *tool.Reading {
	r := &tool.Reading{Tool: "wrk", Part: tool.Part{Requests: &requests, Errors: &failed, Rate: &rate}}
	if p50 > 0 {
		r.P50 = &p50
	}
	return r
}

// printed returns the reading of a file in the tools' testdata, without the duration that the tool printed.
func printed(t *testing.T, file string) *tool.Reading {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("tool", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(file, "-")
	r, err := tool.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	r.Seconds = nil
	return &r
}

func measurement(loads map[string]load.Result) *measured.Measured {
	return &measured.Measured{
		Setup: &kind.Setup{Gates: param.Values{"errors": "0.01"}}, Trial: record.Trial{
			Loads:  loads,
			Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 2}},
		},
	}
}

// TestMetrics: rates of several tools are summed, quantiles are not, and a tool with missing output is not ignored.
func TestMetrics(t *testing.T) {
	const rate, p50, errorsOf = "tool_rate_per_second", "tool_latency_p50_seconds", "tool_error_ratio"
	opens := uint64(30)
	one := Own{WallSeconds: 3, WindowSeconds: 2, Said: said(100, 5, 50, 0.1), Opened: &opens, OpenedSeconds: 2}
	other := Own{WallSeconds: 4, WindowSeconds: 2, Said: said(200, 0, 70, 0.2)}
	unknown := Own{WallSeconds: 2, WindowSeconds: 2}
	unread := Own{WindowSeconds: 2, Unread: "reading what wrk printed"}
	for name, c := range map[string]struct {
		loads []Own
		want  map[string]float64
		never []string
	}{
		"one": {[]Own{one}, map[string]float64{rate: 50, p50: 0.1, errorsOf: 0.05, "load_wall_seconds": 3,
			"machine_connections_per_second": 15}, nil},
		"two": {[]Own{one, other},
			map[string]float64{rate: 120, "load_wall_seconds": 4}, []string{p50, errorsOf}},
		"one that says less": {[]Own{one, {WindowSeconds: 2, Said: said(1, 0, 5, 0)}},
			map[string]float64{rate: 55, p50: 0.1}, nil},
		"unknown program":   {[]Own{unknown}, map[string]float64{"load_wall_seconds": 2}, []string{rate, p50, errorsOf}},
		"beside an unknown": {[]Own{one, unknown}, map[string]float64{rate: 50, p50: 0.1}, nil},
		"beside one unread": {[]Own{one, unread}, map[string]float64{p50: 0.1}, []string{rate}},
	} {
		t.Run(name, func(t *testing.T) {
			loads := map[string]load.Result{}
			for i, own := range c.loads {
				loads[string(rune('a'+i))] = result(t, own)
			}
			got := measurement(loads).Values()
			for metric, want := range c.want {
				if v, has := got[metric]; !has || v != want {
					t.Errorf("%s is %v, %v; want %v", metric, v, has, want)
				}
			}
			for _, metric := range append(c.never, "throughput_per_second", "error_ratio", "cpu_seconds_per_request") {
				if v, has := got[metric]; has {
					t.Errorf("%s is %v", metric, v)
				}
			}
		})
	}
}

func TestJudge(t *testing.T) {
	whole := func(own Own) Own { own.WindowSeconds = 2; return own }
	for name, c := range map[string]struct {
		own        Own
		gate, says string
		stolen     float64
	}{
		"disturbed": {own: whole(Own{Said: said(1000, 10, 500, 0.1)}), gate: "tool-disturbed", stolen: 0.5,
			says: "others took 12 % of the CPU time, and 10 % is allowed"},
		"hardly disturbed":            {own: whole(Own{Said: said(1000, 10, 500, 0.1)}), stolen: 0.3},
		"disturbed from outside only": {own: whole(Own{}), stolen: 2},
		"good":                        {whole(Own{Said: said(1000, 10, 500, 0.1)}), "", "", 0},
		"unknown":                     {whole(Own{}), "", "", 0},
		"ended early": {Own{WindowSeconds: 1.5, LastWords: "bye"}, "program-window",
			"client: it ran for 1.50 s of the 2 s of the window, and its last words were: bye;", 0},
		"unread": {whole(Own{Unread: "reading what wrk printed: it printed nothing"}), "tool-output",
			"client: reading what wrk printed: it printed nothing;", 0},
		"idle": {whole(Own{Said: said(0, 0, 0, 0)}), "idle",
			"not one request was answered without error, by wrk's own clock", 0},
		"all failed": {whole(Own{Said: printed(t, "hey-refused.txt")}), "idle errors", "4 of 4 requests failed", 0},
		"all broken": {whole(Own{Said: printed(t, "wrk-4.1.0-cut.txt")}), "idle errors", "1783 of 1783 requests failed", 0},
		"errors": {whole(Own{Said: said(1000, 11, 500, 0.1)}), "errors",
			"11 of 1000 requests failed, as wrk counts them", 0},
		"errors of which one may count twice": {whole(Own{Said: printed(t, "wrk-4.1.0-late.txt")}), "errors",
			"at least 18 of 36 requests failed, as wrk counts them", 0},
		"answers of another length and status": {whole(Own{Said: printed(t, "ab-2.4.68-kinds.txt")}), "errors",
			"at least 37 of 100 requests failed, as ab counts them", 0},
		"errors among answers that hey keeps": {whole(Own{Said: &tool.Reading{Tool: "hey", ErrorsAtLeast: 50_000,
			Part: tool.Part{Rate: new(1e6), Seconds: new(2.0)}}, WallSeconds: 2}), "errors",
			"at least 50000 of 2000000 requests failed", 0},
		"errors beside": {whole(Own{Said: &tool.Reading{Tool: "wrk", Part: tool.Part{Requests: new(int64(400)),
			Errors: new(int64(600)), Beside: 600}}}), "errors", "600 of 1000 requests failed", 0},
		"of another day": {whole(Own{WallSeconds: 3, Said: &tool.Reading{Tool: "wrk", Part: tool.Part{
			Requests: new(int64(400)), Errors: new(int64(0)), Seconds: new(60.0)}}}), "tool-output",
			"it says that it took 60 s, and its program was there for 3 s", 0},
		"a part of the window": {whole(Own{WallSeconds: 3, Said: &tool.Reading{Tool: "wrk", Part: tool.Part{
			Requests: new(int64(400)), Errors: new(int64(0)), Seconds: new(0.9)}}}), "program-window",
			"wrk says that it took 0.9 s, and the window has 2 s", 0},
		"the whole window": {whole(Own{WallSeconds: 2.1, Said: &tool.Reading{Tool: "wrk", Part: tool.Part{
			Requests: new(int64(400)), Errors: new(int64(0)), Seconds: new(2.2)}}}), "", "", 0},
		"errors of an unknown number of requests": {whole(Own{Said: &tool.Reading{Tool: "wrk", Part: tool.Part{
			Errors: new(int64(600)), P50: new(0.1)}}}), "tool-output", "600 requests failed, and wrk contradicts itself", 0},
		"errors apart": {whole(Own{Said: said(5, 10, 500, 0.1)}), "idle errors", "10 of 10 requests failed", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := measurement(map[string]load.Result{"client": result(t, c.own)})
			m.Setup.Loads = map[string]*kind.Part{"client": {Kind: guest{}}}
			m.Ledger.CPU = ledger.CPU{Capacity: 4, Steal: c.stolen}
			trips := guest{}.Judge(m, "client")
			gates := strings.Join(lists.Map(trips, func(t measured.Trip) string { return t.Gate.Name }), " ")
			messages := strings.Join(lists.Map(trips, func(t measured.Trip) string { return t.Message }), "; ")
			if gates != c.gate || !strings.Contains(messages, c.says) {
				t.Errorf("%+v, want %s: %s", trips, c.gate, c.says)
			}
		})
	}
}

// TestFailuresVoidTheRate: failures void the rate. Tools count failed requests in it, so a subject that refuses
// everything would look fast.
func TestFailuresVoidTheRate(t *testing.T) {
	all := func(string) bool { return true }
	for _, g := range []*measured.Gate{measured.GateIdle, measured.GateErrors} {
		if voids := g.Voids(ledger.Subject, all); !slices.Contains(voids, "tool_rate_per_second") ||
			slices.Contains(voids, "tool_error_ratio") {
			t.Errorf("%s voids %q", g.Name, voids)
		}
	}
}
