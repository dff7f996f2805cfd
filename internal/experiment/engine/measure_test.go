package engine

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
	"tare/test/lines"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

func histogram(t *testing.T, r *load.Result, name string, n int64, ns int64) {
	t.Helper()
	h := hdrhistogram.New(1, 100_000_000_000, 3)
	if err := h.RecordValues(ns, n); err != nil {
		t.Fatal(err)
	}
	if err := r.SetHistogram(name, h); err != nil {
		t.Fatal(err)
	}
}

// rising sets a histogram with n times of 200 us and slow times of 1 ms.
func rising(t *testing.T, r *load.Result, name string, n, slow int64) {
	t.Helper()
	h := hdrhistogram.New(1, load.Longest, 3)
	err := errors.Join(h.RecordValues(200_000, n), h.RecordValues(1_000_000, slow), r.SetHistogram(name, h))
	if err != nil {
		t.Fatal(err)
	}
}

func ptr[T any](v T) *T { return &v }

// goodMeasurement returns a trial of 2 s at 1000 connections per second without any problem.
func goodMeasurement(t *testing.T) *measured.Measured {
	t.Helper()
	r := load.Result{
		Mode: load.Open, Seconds: 2, TargetRate: 1000, Rate: 999, Intended: 2000, Sent: 2000, Done: 1998, Late: 1,
		Connections: 64, MaxConnections: 64, Opened: 2000,
		CPUSeconds: 0.2, CPUs: 1, Errors: map[string]int64{"timeout": 2},
	}
	histogram(t, &r, load.Latency, 2000, 200_000)
	histogram(t, &r, load.Service, 2000, 190_000)
	histogram(t, &r, load.Lag, 2000, 10_000)
	histogram(t, &r, load.OwnLag, 2000, 10_000)
	const tree = "/tare-trial-p1-t1"
	group := func(path, role string, cpu float64) ledger.Cgroup {
		return ledger.Cgroup{Path: path, Role: role, CPUSeconds: &cpu, ThrottledSeconds: ptr(0.0)}
	}
	subject := group(tree+"/subject", "subject", 0.01)
	subject.Memory = &ledger.Memory{Hard: ptr(int64(5 << 20)), Soft: ptr(int64(1 << 20))}
	client, server := tree+"/work/client", tree+"/work/server"
	setup := &mustParse(t, shortSpec[:strings.Index(shortSpec, "gates:")]+"gates: {errors: 0.002}\n").Setup
	setup.Duration = 2 * time.Second
	return &measured.Measured{
		Setup: setup,
		Trial: record.Trial{
			Loads: map[string]load.Result{"client": r},
			Ledger: &ledger.Ledger{
				Window: ledger.Window{Seconds: 2.002},
				Cgroups: []ledger.Cgroup{
					group("/", "", 3), group("/system.slice", "", 1), group("/system.slice/cron.service", "", 0.1),
					group(tree, "", 0.5), group(tree+"/work", "", 0.49), group(client, "load", 0.2), group(server, "app", 0.29),
					subject,
				},
				Programs: []ledger.Program{
					{ID: 1, RunCount: ptr(uint64(10)), RunSeconds: ptr(1.0), MapIDs: []uint32{90}},
					{ID: 2, RunCount: ptr(uint64(2002)), RunSeconds: ptr(0.006006), MapIDs: []uint32{91, 92}, Seen: []ledger.Seen{
						{Cgroup: &client, Samples: 14}, {Cgroup: &client, Context: ledger.Softirq, Samples: 2},
						{Cgroup: &server, Samples: 3}, {Samples: 1},
					}},
					{ID: 3, RunCount: ptr(uint64(0)), RunSeconds: ptr(0.0), MapIDs: []uint32{92}},
					{ID: 4, RunCount: ptr(uint64(0)), RunSeconds: ptr(0.0), MapIDs: []uint32{99}},
				},
				Maps: []ledger.Map{
					{ID: 90, Bytes: ptr(uint64(1 << 30))}, {ID: 91, Bytes: ptr(uint64(1000)), Inner: []uint32{93}},
					{ID: 92, Bytes: ptr(uint64(200))},
					{ID: 93, Bytes: ptr(uint64(30))}, {ID: 94, Bytes: ptr(uint64(4))}, {ID: 99, Bytes: ptr(uint64(1))},
				},
			},
		},
		Tree:    tree,
		Subject: &kind.Objects{Programs: []kind.Object{{ID: 2}, {ID: 3}}, Maps: []kind.Object{{ID: 92}, {ID: 94}}},
		Start:   0.3,
	}
}

// overload makes the load one of 10,000 requests/s to a subject that answers fewer: 5,000 of 20,000 answers come after
// the window. finished is the number of answers in the window, including those to requests of the warm-up; -1: the load
// does not count them.
func overload(finished int64) func(*measured.Measured) {
	return func(m *measured.Measured) {
		r := m.Loads["client"]
		r.TargetRate, r.Rate, r.Opened, r.Errors = 10_000, float64(finished)/2, 0, nil
		r.Intended, r.Sent, r.Done, r.Late = 20_000, 20_000, 20_000, 5000
		if finished >= 0 {
			r.Finished = &finished
		}
		m.Loads["client"], m.Setup.Loads["client"].Options["keepalive"] = r, "true"
	}
}

func TestMetrics(t *testing.T) {
	absent := math.NaN()
	good := map[string]float64{
		// p999 is absent because only 2 of 2000 requests lie beyond it.
		"latency_p50_seconds": 200e-6, "latency_p99_seconds": 200e-6, "latency_p999_seconds": absent,
		"lag_p50_seconds": 10e-6, "own_lag_p99_seconds": 10e-6, "connect_p50_seconds": absent, "throughput_per_second": 999,
		"error_ratio":                0.001,
		"bpf_seconds_per_connection": 3e-6, "bpf_seconds_per_request": absent,
		"cpu_seconds_per_connection": 0.5 / 2.002 / 1000, "map_bytes": 1234, "memory_hard_bytes": 5 << 20,
		"memory_soft_bytes": 1 << 20, "start_seconds": 0.3,
	}
	for _, c := range []struct {
		name   string
		change func(*measured.Measured)
		want   map[string]float64
	}{
		{"good", func(*measured.Measured) {}, good},
		{"baseline", func(m *measured.Measured) { m.Subject = nil }, map[string]float64{
			"bpf_seconds_per_connection": 0, "map_bytes": 0, "memory_hard_bytes": 0, "start_seconds": absent,
			"latency_p50_seconds": 200e-6}},
		{"no run statistics", func(m *measured.Measured) { m.Ledger.Programs[1].RunSeconds = nil },
			map[string]float64{"bpf_seconds_per_connection": absent, "map_bytes": 1234}},
		{"program not seen", func(m *measured.Measured) {
			m.Subject.Programs = append(m.Subject.Programs,
				kind.Object{ID: 77})
		}, map[string]float64{"bpf_seconds_per_connection": absent}},
		{"no map bytes", func(m *measured.Measured) { m.Ledger.Maps[3].Bytes = nil },
			map[string]float64{"map_bytes": absent}},
		{"map not seen", func(m *measured.Measured) { m.Subject.Maps[1].ID = 78 }, map[string]float64{"map_bytes": absent}},
		{"no memory controller", func(m *measured.Measured) { m.Ledger.Cgroups[7].Memory = nil },
			map[string]float64{"memory_hard_bytes": absent, "memory_soft_bytes": absent}},
		{"some connections missed", func(m *measured.Measured) {
			r := m.Loads["client"]
			r.Opened = 1900
			m.Loads["client"] = r
		},
			map[string]float64{"bpf_seconds_per_connection": 0.003 / 950, "bpf_seconds_per_request": absent,
				"cpu_seconds_per_request": absent}},
		{"no new connections", func(m *measured.Measured) {
			r := m.Loads["client"]
			r.Opened, m.Setup.Loads["client"].Options["keepalive"] = 0, "true"
			m.Loads["client"] = r
		}, map[string]float64{"bpf_seconds_per_connection": absent, "bpf_seconds_per_request": 0.003 / 999}},
		{"connections that are opened again", func(m *measured.Measured) {
			r := m.Loads["client"]
			r.Opened, m.Setup.Loads["client"].Options["keepalive"] = 20, "true"
			m.Loads["client"] = r
		}, map[string]float64{"bpf_seconds_per_connection": absent, "cpu_seconds_per_connection": absent,
			"cpu_seconds_per_request": 0.5 / 2.002 / 999}},
		{"more than the subject can do", overload(16000), map[string]float64{"throughput_per_second": 8000,
			"cpu_seconds_per_request": 0.5 / 2.002 / 8000, "bpf_seconds_per_request": 0.003 / 8000, "error_ratio": 0}},
		{"more than the subject can do, in an older record", overload(-1), map[string]float64{
			"throughput_per_second": absent, "cpu_seconds_per_request": absent, "bpf_seconds_per_request": absent,
			"error_ratio": 0}},
		{"no CPU counter", func(m *measured.Measured) { m.Ledger.Cgroups[3].CPUSeconds = nil },
			map[string]float64{"cpu_seconds_per_connection": absent}},
		{"nothing", func(m *measured.Measured) {
			*m = measured.Measured{Setup: m.Setup, Trial: record.Trial{Ledger: &ledger.Ledger{}}}
		}, map[string]float64{"throughput_per_second": absent, "latency_p50_seconds": absent, "error_ratio": absent}},
		{"a load without requests", func(m *measured.Measured) {
			m.Loads["client"] = load.Result{Mode: "probe", Seconds: 2}
		}, map[string]float64{"throughput_per_second": absent, "error_ratio": absent}},
		{"requests without an answer are the slowest", func(m *measured.Measured) {
			r := m.Loads["client"] // of 200,000 requests, 90 timed out, and 111 took longer than 1 ms
			r.Intended, r.Done = 200_000, 199_910
			rising(t, &r, load.Latency, 199_799, 111)
			m.Loads["client"] = r
		}, map[string]float64{"latency_p99_seconds": 200e-6, "latency_p999_seconds": 1e-3}},
		{"a quantile without an answer", func(m *measured.Measured) {
			r := m.Loads["client"]
			r.Intended, r.Done = 200_000, 199_799
			rising(t, &r, load.Latency, 199_799, 0)
			m.Loads["client"] = r
		}, map[string]float64{"latency_p99_seconds": 200e-6, "latency_p999_seconds": absent}},
		{"broken histogram", func(m *measured.Measured) { m.Loads["client"].Histograms[load.Latency] = "!" },
			map[string]float64{"latency_p50_seconds": absent}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := goodMeasurement(t)
			c.change(m)
			got := m.Values()
			for name, want := range c.want {
				v, ok := got[name]
				if ok == math.IsNaN(want) || ok && math.Abs(v-want) > 0.002*math.Abs(want) {
					t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
				}
			}
		})
	}
}

func TestCounts(t *testing.T) {
	m := goodMeasurement(t)
	want := map[string]record.Count{"bpf_client_share": {In: 16, Of: 20}, "bpf_server_share": {In: 3, Of: 20}}
	if got := m.Counts(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	m.Subject = nil
	if got := m.Counts(); len(got) != 0 {
		t.Errorf("the baseline, which has no subject, counts %v", got)
	}
}

func TestTrim(t *testing.T) {
	m := goodMeasurement(t)
	m.Trim()
	if n := len(m.Ledger.Cgroups); n != 7 ||
		slices.ContainsFunc(m.Ledger.Cgroups, func(g ledger.Cgroup) bool { return strings.Contains(g.Path, "cron") }) {
		t.Errorf("%d groups are kept", n)
	}
	if n := len(m.Ledger.Programs); n != 3 { // the one that ran, and the subject's two
		t.Errorf("%d programs are kept", n)
	}
	if n := len(m.Ledger.Maps); n != 5 {
		t.Errorf("%d maps are kept", n)
	}
	m = goodMeasurement(t)
	for id := uint32(1000); id < 1000+measured.MaxInnerKept; id++ { // a pool: its maps are counted but not listed
		m.Ledger.Maps = append(m.Ledger.Maps, ledger.Map{ID: id, Bytes: ptr(uint64(10))})
		m.Ledger.Maps[1].Inner = append(m.Ledger.Maps[1].Inner, id)
	}
	if v, ok := m.MapBytes(); !ok || v != 1234+10*measured.MaxInnerKept {
		t.Errorf("maps with a pool have %g bytes (%v)", v, ok)
	}
	m.Trim()
	if n := len(m.Ledger.Maps); n != 4 || len(m.Ledger.Warnings) != 1 || m.Ledger.Warnings[0].Code != "inner-maps" {
		t.Errorf("with a pool %d maps are kept: %+v", n, m.Ledger.Warnings)
	}
}

// halves returns the slices of a window whose halves differ; within a half, slices differ by 1 %.
func halves(done1 int64, p50First float64, done2 int64, p50Second float64) []load.Slice {
	s := make([]load.Slice, load.Slices)
	for i := range s {
		s[i] = load.Slice{Done: done1, P50: p50First * (1 + 0.001*(float64(i%10)-4.5))}
		if i >= load.Slices/2 {
			s[i] = load.Slice{Done: done2, P50: p50Second * (1 + 0.001*(float64(i%10)-4.5))}
		}
	}
	return s
}

// TestRateAdvice: a load without connections gets no advice to use more of them.
func TestRateAdvice(t *testing.T) {
	m := goodMeasurement(t)
	r := m.Loads["client"]
	r.Done, r.Late, r.Errors, r.Connections, r.MaxConnections = 1970, 0, nil, 0, 0
	m.Loads["client"] = r
	reasons := m.Judge()
	if len(reasons) != 1 || !strings.HasSuffix(reasons[0].Message, "; lower the rate") {
		t.Errorf("tripped %+v", reasons)
	}
}

// TestGates: every gate trips for its reason, and none without one.
func TestGates(t *testing.T) {
	change := func(f func(*load.Result)) func(*measured.Measured) {
		return func(m *measured.Measured) { r := m.Loads["client"]; f(&r); m.Loads["client"] = r }
	}
	held := func(m *measured.Measured) { m.Setup.Loads["client"].Options["keepalive"] = "true" }
	for _, c := range []struct {
		name   string
		change func(*measured.Measured)
		gate   string
		says   string
	}{
		{"good", func(*measured.Measured) {}, "", ""},
		{"good baseline", func(m *measured.Measured) { m.Subject = nil }, "", ""},
		{"rate", change(func(r *load.Result) { r.Done, r.Late, r.Errors = 1970, 0, nil }), "rate",
			"client: requests were answered at 98.50 % of the intended rate, and 99 % is required; lower the rate or give " +
				"the load more connections"},
		{"answered too late", change(func(r *load.Result) { r.Late = 100 }), "rate",
			"client: requests were answered at 94.95 %"},
		{"more than the subject can do", overload(16000), "rate", "client: requests were answered at 80.00 %"},
		{"as many in flight at the end as at the begin", change(func(r *load.Result) {
			r.Late, r.Finished = 100, ptr(int64(1990))
		}), "", ""},
		{"under way at the end", change(func(r *load.Result) {
			r.Late = 1000
			histogram(t, r, load.Service, 2000, 500_000_000)
			r.Connections = 1000
		}), "", ""},
		{"nothing intended", change(func(r *load.Result) { *r = load.Result{Mode: load.Open} }), "idle",
			"raise the rate or the duration"},
		{"closed and dead", change(func(r *load.Result) { r.Mode, r.Done = load.Closed, 0 }), "idle",
			"client: not one request was answered"},
		{"errors", change(func(r *load.Result) { r.Errors["read"] = 3 }), "errors",
			"client: 5 of 2000 requests failed (read 3, timeout 2); lower the rate, or see what the application says"},
		{"drain", change(func(r *load.Result) { r.Unfinished = 5 }), "drain",
			"client: 5 of 2000 requests were still without an answer after the drain"},
		{"some failed, and some without an answer", change(func(r *load.Result) {
			r.Errors, r.Unfinished = map[string]int64{"timeout": 2}, 3
		}), "drain", "client: 3 of 2000 requests were still without an answer after the drain, and 2 failed; lower the rate"},
		{"failed, and some without an answer", change(func(r *load.Result) {
			r.Errors, r.Unfinished = map[string]int64{"timeout": 5}, 1
		}), "errors", "client: 5 of 2000 requests failed"},
		{"never sent", change(func(r *load.Result) { // the server hangs 15 ms before the end
			r.Intended, r.Sent, r.Done, r.Unfinished, r.Errors = 20_000, 19_866, 19_850, 16, nil
		}), "drain", "client: 134 of 20000 requests were not sent by the end of the drain, and 16 had no answer"},
		{"lag", change(func(r *load.Result) { histogram(t, r, load.OwnLag, 2000, 33_000_000) }), "lag",
			"late, and 25ms is allowed; lower the rate or give the load a CPU of its own"},
		{"lag of the server's making", change(func(r *load.Result) { histogram(t, r, load.Lag, 2000, 130_000_000) }), "", ""},
		{"drift", change(func(r *load.Result) { r.Slices = halves(100, 200e-6, 100, 400e-6) }), "drift",
			"client: the median latency went from 200µs in the first half of the window to 400µs in the second, 100 % apart, " +
				"and 50 % is allowed; lengthen the warm-up, lower the rate, or pin"},
		{"drift to the better", change(func(r *load.Result) { r.Slices = halves(100, 400e-6, 100, 200e-6) }), "drift",
			"from 400µs in the first half of the window to 200µs"},
		{"drift within what is allowed", change(func(r *load.Result) { r.Slices = halves(100, 200e-6, 100, 280e-6) }), "",
			""},
		{"drift of one slice alone", change(func(r *load.Result) {
			r.Slices = halves(100, 200e-6, 100, 200e-6)
			r.Slices[15].P50 = 1
		}), "", ""},
		{"halves that differ by chance", change(func(r *load.Result) {
			r.Slices = halves(100, 200e-6, 100, 400e-6)
			for _, i := range []int{0, 3, 6, 9} { // with that many slices exchanged, the difference may be chance
				r.Slices[i].P50, r.Slices[i+10].P50 = 410e-6, 190e-6
			}
		}), "", ""},
		{"too few to see drift", change(func(r *load.Result) { r.Slices = halves(4, 200e-6, 4, 900e-6) }), "", ""},
		{"closed and slowing down", change(func(r *load.Result) {
			r.Mode, r.Slices = load.Closed, halves(200, 200e-6, 100, 400e-6)
		}), "drift", "client: throughput went from 2000/s in the first half of the window to 1000/s in the second, 100 % " +
			"apart, and 50 % is allowed; lengthen the warm-up, use fewer connections, or pin"},
		{"closed and stuck", change(func(r *load.Result) { r.Mode, r.Slices = load.Closed, halves(200, 200e-6, 0, 0) }),
			"drift", "from 2000/s in the first half of the window to 0/s"},
		{"closed and steady", change(func(r *load.Result) {
			r.Mode, r.Slices = load.Closed, halves(200, 200e-6, 200, 400e-6)
		}), "", ""},
		{"generator", change(func(r *load.Result) { r.CPUSeconds = 1.5 }), "generator-cpu",
			"client: the generator used 75 % of its CPUs, and 70 % is allowed; lower the rate or give it more threads"},
		{"connections", func(m *measured.Measured) { held(m); change(func(r *load.Result) { r.MaxConnections = 60 })(m) },
			"connections", "client: 60 of 64 connections were open at once; ask for fewer"},
		{"connections closed when idle", func(m *measured.Measured) {
			held(m)
			change(func(r *load.Result) { r.MeanConnections = 16.25 })(m)
		}, "connections", "client: 16.2 of 64 connections were open on average, because they were closed when idle"},
		{"connections replaced", func(m *measured.Measured) {
			held(m)
			change(func(r *load.Result) { r.MeanConnections = 63 })(m)
		}, "", ""},
		{"connections not held", change(func(r *load.Result) { r.MaxConnections = 3 }), "", ""},
		{"counters read late", func(m *measured.Measured) { m.Ledger.Window.Seconds = 0.001 }, "window",
			"counters were read 0.001 s apart, and the load's window is "},
		{"counters read after the load", func(m *measured.Measured) { m.Ledger.Window.Seconds = 3.5 }, "window",
			"counters were read 3.500 s apart, and the load's window is 2s (the second was late, after the load had ended)"},
		{"counters read a little after the load", func(m *measured.Measured) { m.Ledger.Window.Seconds = 2.9 }, "", ""},
		{"counters read a little late", func(m *measured.Measured) { m.Ledger.Window.Seconds *= 0.8 }, "", ""},
		{"counters of a node that shares its machine",
			func(m *measured.Measured) { m.Ledger.Window.Seconds, m.Shared = 0.001, true }, "", ""},
		{"throttled", func(m *measured.Measured) { m.Ledger.Cgroups[5].ThrottledSeconds = ptr(0.5) }, "throttled",
			"/tare-trial-p1-t1/work/client was throttled for 0.500 s, and no CPU limit was asked for it; raise the limit of " +
				"the group that tare runs in"},
		{"throttled as asked", func(m *measured.Measured) {
			m.Ledger.Cgroups[5].ThrottledSeconds = ptr(0.5)
			limited := measured.NewRole(kind.Load, "client")
			limited.Limited = true
			m.SetRoles(map[string]measured.GroupRole{m.Ledger.Cgroups[5].Path: limited})
		}, "", ""},
		// v2 counts throttling only in the group that has the limit
		{"throttled by the trial's own limit below", func(m *measured.Measured) {
			m.Ledger.Cgroups[1].ThrottledSeconds = ptr(0.5)
		}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := goodMeasurement(t)
			c.change(m)
			reasons := m.Judge()
			if c.gate == "" {
				if len(reasons) > 0 {
					t.Errorf("tripped %+v", reasons)
				}
				return
			}
			if len(reasons) != 1 || reasons[0].Gate != c.gate || !strings.Contains(reasons[0].Message, c.says) {
				t.Errorf("got %+v\nwant %s: %s", reasons, c.gate, c.says)
			}
		})
	}
}

func docs(name string) string { return filepath.Join("..", "..", "..", "docs", name) }

// TestMetricsPage: docs/metrics.md agrees with the definitions.
func TestMetricsPage(t *testing.T) {
	var b bytes.Buffer
	writeMetrics(&b)
	if *update {
		if err := os.WriteFile(docs("metrics.md"), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(docs("metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, b.Bytes()) {
		t.Error("docs/metrics.md is not current: go test ./internal/experiment/engine -run TestMetricsPage -update")
	}
	form := regexp.MustCompile(`^[a-z0-9_]+_(seconds|bytes|cpus|ratio|share|count|per_second|per_connection|per_request|per_flush|per_kiloevent)$|^events_[a-z_]+$|^nodes_failed$`)
	for _, m := range measured.Metrics() {
		if !form.MatchString(m.Name) || m.Unit == "" || m.How == "" {
			t.Errorf("%q is not well defined", m.Name)
		}
	}
}

// TestWithoutStatistics: if the kernel's run statistics are off, no metric includes the run time of programs.
func TestWithoutStatistics(t *testing.T) {
	m := goodMeasurement(t)
	if _, ok := m.Values()["bpf_seconds_per_connection"]; !ok {
		t.Error("with them there is no time of eBPF")
	}
	m.Setup.Statistics = false
	for name := range m.Values() {
		if strings.HasPrefix(name, "bpf_") {
			t.Errorf("without them there is %s", name)
		}
	}
}

// writeMetrics writes docs/metrics.md. Metrics whose definitions differ only in a statistic or a component share an
// entry, and what many metrics need is in footnotes.
func writeMetrics(b *bytes.Buffer) {
	b.WriteString(`# Metrics

Each trial has one value of each, in "metrics" of its line in trials.jsonl. A name ends in its unit and means the same
in every experiment. Definitions of the version that made a run are in "metrics" of its run.json.

## Gates

A tripped gate voids the metrics that depend on what it watches: ` + "`voids`" + ` in the record of the trial lists them, and
` + "`needs`" + ` of their definitions in run.json has one of the words in parentheses. [The spec](spec.md#gates) says which
gates have a setting. A subject that alone tripped a gate was too slow, which is a result: its throughput and the part
of its requests that failed stand.

`)
	for _, g := range measured.Gates() {
		b.WriteString(lines.Wrap(fmt.Sprintf("- `%s` (%s): %s", g.Name, needWords(g.Breaks), g.Why), "  "))
	}
	b.WriteString(`
## All metrics

An entry has names, with marks in brackets; in parentheses how values of several
[nodes](nodes.md#metrics-on-several-nodes) are pooled, if neither as their mean nor as the name says; and a definition,
to which the text of the marks belongs.

- **a**: answers speak of it; unless pooled or a quantile above the median, it decides a run's precision
- **h**: higher is better; **n**: neither is; without these, lower is better
- **+**: a cost: models are fitted to it
- **c**: also given for each component of the subject, in "components" of the trial
`)
	for _, n := range footnotes {
		b.WriteString(lines.Wrap(fmt.Sprintf("- **%s**: %s", n.mark, n.text), "  "))
	}
	b.WriteString(`
A metric is absent, never 0, where this machine does not have its source, and where the trial has no load or subject of
the kind that it is about (except with the mark 0). p50 to p999 are quantiles, max is the longest, and a time with
neither is the mean, each of all requests, changes or events of the trial, all loads merged. A quantile is absent when
fewer than 10 (p999: 100) lie beyond it. "The same" refers to the entry before.

`)
	type entry struct {
		names        []string
		family, rest string
	}
	var entries []entry
	for _, m := range measured.Metrics() {
		how, marks := m.How, ""
		for _, mark := range []struct {
			of   bool
			mark string
		}{
			{m.Headline, "a"}, {m.Better == "higher", "h"}, {m.Better == "", "n"}, {m.Cost, "+"},
			{m.Component != nil, "c"},
		} {
			if mark.of {
				marks += mark.mark
			}
		}
		for _, n := range footnotes {
			if cut := strings.ReplaceAll(how, " "+n.text, ""); cut != how {
				how = cut
				marks += n.mark
			}
		}
		name := "`" + m.Name + "`"
		if marks != "" {
			name += "[" + marks + "]"
		}
		how = beyond.ReplaceAllString(member.ReplaceAllString(how, "$1"), "")
		family := string(m.Better)
		if strings.HasPrefix(how, "The same") { // like the entry before it
			family += quantileOf.ReplaceAllString(m.Name, "")
		}
		rest := ": " + how
		byName := strings.HasSuffix(m.Name, "_"+strings.ReplaceAll(string(m.Pool), " ", "_"))
		if m.Pool != metric.Mean && !byName {
			rest = " (" + string(m.Pool) + ")" + rest
		}
		same := func(e entry) bool { return e.rest == rest && e.family == family }
		if i := slices.IndexFunc(entries, same); i >= 0 {
			entries[i].names = append(entries[i].names, name)
		} else {
			entries = append(entries, entry{[]string{name}, family, rest})
		}
	}
	for _, e := range entries {
		b.WriteString(lines.Wrap("- "+strings.Join(e.names, ", ")+e.rest, "  "))
	}
}

// footnotes are what several definitions have in common.
var footnotes = []struct{ mark, text string }{
	{"0", "0 in a baseline without a subject."},
	{"g", "Of the subject's control groups at the end of the window."},
	{"b", "By samples, pooled over the trials of an arm; absent below 25 samples."},
	{"r", "Of the requests that no stall of the machine touched, weighted because long ones are touched more often; " +
		"absent when they are too few or no fair sample."},
	{"p", "Only in experiments with a subject in the path of requests."},
	{"t", "By the tool's clock, over its whole run, warm-up included: not comparable with Tare's own loads, which " +
		"measure between the edges of the window. docs/commands.md says what each tool's clock measures."},
	{"o", "Absent where the tool does not print it, and where several loads or nodes do."},
	{"k", "Part of the connections that a load of kind `connect` makes while configuration is replaced, pooled over the " +
		"trials of an arm."},
	{"v", "Only in experiments in which an arm has `services`."},
	{"s", "Of all sandboxes of the trial together, with what runs in them, at the end of the window."},
	{"y", "Median over the batches of calls that a load of kind `syscalls` made in the window; of several such loads the " +
		"mean."},
}

var (
	// member matches what differs between the definitions of a family: a statistic, or a component.
	member = regexp.MustCompile(`: (?:mean|maximum|p[0-9.]+ quantile)|\b(of the component|are the component) [a-z]+`)
	beyond = regexp.MustCompile(` Left out when fewer than [0-9]+ (?:requests )?lie beyond it\.|` +
		`, as when fewer than [0-9]+ of them lie beyond it|; left out when fewer than [0-9]+ changes lie beyond it`)
	quantileOf = regexp.MustCompile(`(_p[0-9]+|_max)?_seconds$`)
)

func needWords(needs []measured.Need) string {
	return strings.Join(lists.Map(needs, func(n measured.Need) string { return string(n) }), ", ")
}
