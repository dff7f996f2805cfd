package cli

import (
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/test/port"
)

// TestWrongUseOfGuests: what the settings of a guest do not allow is wrong use, with a hint, and prints nothing.
func TestWrongUseOfGuests(t *testing.T) {
	for line, says := range map[string]string{
		"load http http://127.0.0.1:1/":                        `an open load needs a "rate"`,
		"load http http://127.0.0.1:1/ --mode open":            `an open load needs a "rate"`,
		"load http http://127.0.0.1:1/ --mode closed --rate 5": `"rate" does not apply`,
		"load http http://127.0.0.1:1/ --mode both":            `must be one of open, closed, not "both"`,
		"load http http://127.0.0.1:1/ --rate 0":               "must be at least 0.1, not 0",
		"load http --url http://[::1]:1/ --connections 100001": "must be at most 100000, not 100001",
		"load http --rate 5":                                   "there is nothing to put under load",
		"load http gopher://x --rate 5":                        "only http and https URLs",
		"load http http://127.0.0.1:1/ --rate 5 --seed -1":     "must be at least 0",
		"load http http://127.0.0.1:1/ --rate 5 --duration 0s": "there is no time to measure in",
		"load write":                                        `an open load needs a "rate"`,
		"load write --mode closed --rate 5":                 `"rate" does not apply`,
		"load write --rate 5 --sync often":                  `not "often"`,
		"load write --rate 5 --limit 5":                     "5 bytes are too few",
		"load write --rate 5 --duration 0s":                 "there is no time to measure in",
		"load exec --rate -1":                               "--rate",
		"load exec --rate gale":                             `not "gale"`,
		"load exec --workers -1":                            "--workers",
		"load exec --workers 1024":                          "--workers",
		"load exec --duration 0s":                           "there is no time to measure in",
		"load connect":                                      "there is no service to connect to",
		"load connect nowhere":                              `"nowhere" is not an address`,
		"load connect 127.64.7.1:80 127.64.7.2:80":          "unexpected argument",
		"load connect 127.64.7.1:80 --services 0":           "--services",
		"load connect --service 127.64.7.1:80 --replacer 1": "a replacer has services already",
		"load connect 127.64.7.1:80 --duration 0s":          "there is no time to measure in",
		"load push":                                         "there is no mesh",
		"load htpt":                                         `there is no load "htpt"`,
		"app http --delay-dist gauss:1ms":                   "not a distribution of delays",
		"app http --stall 1s":                               "is not possible",
		"app burn --share 2":                                "--share",
		"app http more":                                     "unexpected argument",
		"subject kernelmsh":                                 `there is no subject "kernelmsh"`,
		"subject store":                                     `a store needs a "store"`,
		"subject exectrace --for 1ms --ring 1MB":            "power of two",
		"subject exectrace --for 1ms --ring 0":              "power of two",
		"subject exectrace --for 1ms --output xml":          "--output",
		"subject exectrace --for 1ms --latency 0s1":         "--latency",
		"subject exectrace --for 1ms --latency 1h":          "--latency",
		"subject exectrace --for 1ms --args 100000":         "--args",
		"subject exectrace --for 1ms --args -1":             "--args",
		"subject exectrace --for 1ms --args 0 --latency 0s": "--latency",
		"subject exectrace --for 1ms more":                  "more",
		"subject exectrace --for -1s":                       "--for",
	} {
		out, err := ran(t, strings.Fields(line)...)
		if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" || !strings.Contains(err.Error(), says) || out != "" {
			t.Errorf("%s: %v, want %q\n%s", line, err, says, out)
		}
	}
}

// TestLoads: loads run by themselves, and leave nothing behind.
func TestLoads(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	// A window of a busy machine may have no work in it: then a longer one is tried.
	windows := []struct{ flag, printed string }{{"300ms", "0.3 s"}, {"2s", "2 s"}, {"10s", "10 s"}}
	for line, wants := range map[string][]string{
		"http " + server.URL + " --mode closed --connections 2 --for WINDOW": {
			"http: closed loop, WINDOW\nrate ", "\nerrors        none\n", "p50 ", "  latency "},
		"http " + server.URL + " " + server.URL + " --rate 100 --header A:b --header C:d --duration WINDOW": {
			"100/s asked for\n"},
		"write --mode closed --workers 1 --duration WINDOW": {
			"write: closed loop, WINDOW\n", "  latency ", "\nwritten "},
		"exec --workers 1 --duration WINDOW": {
			"exec: closed loop, WINDOW\n", "  latency ", "\nexecs made "},
		"connect 127.64.7.1:80 --services 3 --duration WINDOW": {"connect: closed loop, WINDOW\n", "  connect "},
		"probe --duration WINDOW":                              {"probe: ", "  delay "},
		"syscalls --duration WINDOW":                           {"syscalls: WINDOW\n", "\nsyscall getpid "},
		"write --rate 100 --arrivals constant --for 300ms --json": {
			`"generator":"write"`, `"intended":30,`, `"written_bytes":`},
		"exec --rate 100 --duration 50ms --json":                  {`"generator":"exec","mode":"open"`, `"execs_made":`},
		"connect --service 127.64.7.1:80 --duration 300ms --json": {`"generator":"connect","mode":"closed"`},
	} {
		var out, lacks string
		for _, w := range windows {
			var err error
			out, err = ran(t, append([]string{"load"}, strings.Fields(strings.ReplaceAll(line, "WINDOW", w.flag))...)...)
			if err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			lacks = ""
			for _, want := range wants {
				if want = strings.ReplaceAll(want, "WINDOW", w.printed); !strings.Contains(out, want) {
					lacks = want
				}
			}
			if lacks == "" || !strings.Contains(line, "WINDOW") {
				break
			}
		}
		if lacks != "" {
			t.Errorf("%s lacks %q:\n%s", line, lacks, out)
		}
		if strings.HasSuffix(line, "--json") != strings.HasPrefix(out, `{"schema":"tare.load/v1"`) {
			t.Errorf("%s:\n%s", line, out)
		}
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("they left %v, %v", left, err)
	}
}

// TestLoadFails: a load that cannot begin gives the guest's own error.
func TestLoadFails(t *testing.T) {
	out, err := ran(t, "load", "http", "http://"+port.Free(t)+"/", "--rate", "10", "--duration", "100ms")
	if fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
}

func histogram(t *testing.T, r *load.Result, name string, samples, step int64) {
	t.Helper()
	h := hdrhistogram.New(1, 100e9, 3)
	for i := range samples {
		if err := h.RecordValue(i * step); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.SetHistogram(name, h); err != nil {
		t.Fatal(err)
	}
}

func TestPrintResult(t *testing.T) {
	r := &load.Result{
		Generator: "http", Mode: load.Open, Arrivals: "poisson", Seconds: 2, TargetRate: 1000, Rate: 990, Intended: 2000,
		Sent: 1990, Done: 1980, Late: 3, Unfinished: 4, Connections: 8, MaxConnections: 8, Opened: 5,
		MeanConnections: 2.34, Finished: new(int64(2000)),
		Errors: map[string]int64{"connect": 2, "timeout": 4}, CPUSeconds: 0.5, CPUs: 1,
	}
	histogram(t, r, load.Latency, 1980, 1000)
	histogram(t, r, load.OwnLag, 1980, 10)
	histogram(t, r, "push_sent", 50, 1e6)
	var b strings.Builder
	if err := printResult(&b, kind.Find(kind.Load, "http"), nil, r); err != nil {
		t.Fatal(err)
	}
	const want = `http: open loop, poisson arrivals, 2 s
rate          990/s, 1000/s asked for
done          1980 of 2000, 3 of them after the end
not started   10: no connection or worker was free in time
unfinished    4 when the drain ended
errors        4 timeout, 2 connect
connections   8, 2.34 on average, 5 opened in the window
own CPU time  500 ms, 25 % of what it could use, 250 us for each completed operation
                 p50      p90      p99  p99.9      max
    latency   999 us  1.80 ms  1.98 ms      -        -
    own lag  9.89 us  17.8 us  19.6 us      -  19.8 us
  push sent  24.0 ms        -        -      -  49.0 ms
latency: 20 requests without an answer count as the slowest; what is among them is not given (-)
p90: not given (-) with fewer than 100 samples
p99: not given (-) with fewer than 1,000 samples
p99.9: not given (-) with fewer than 100,000 samples
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}

// TestPrintSlowRate: a rate below one operation in two seconds is not printed as 0.
func TestPrintSlowRate(t *testing.T) {
	var b strings.Builder
	printWork(&b, "http", &load.Result{Mode: load.Open, Seconds: 10, TargetRate: 0.4, Rate: 0.4, Intended: 4, Done: 4})
	if want := "rate          0.40/s, 0.4/s asked for\n"; !strings.Contains(b.String(), want) {
		t.Errorf("no %q in\n%s", want, b.String())
	}
}

// TestPrintMetrics: a guest's own metrics, except quantiles of times, are printed as an experiment reports them.
func TestPrintMetrics(t *testing.T) {
	for _, c := range []struct {
		role         kind.Role
		name         string
		counts       map[string]float64
		wants, lacks []string
	}{
		{kind.Subject, "store", map[string]float64{"flushes": 2000, "flush_seconds": 0.5, "records": 90_000},
			[]string{"flush time         250 us\n", "records per flush  45\n"}, []string{"p50", "lookup"}},
		{kind.Load, "connect", map[string]float64{"judged": 2000, "stale": 6},
			[]string{"wrong connect share     0.300 %, 6 of 2000\n"}, nil},
		{kind.Load, "exec", map[string]float64{"execs_made": 2100, "workers": 4}, []string{"execs made  2100\n"}, nil},
		{kind.Load, "http", nil, nil, []string{" "}},
	} {
		var b strings.Builder
		r := &load.Result{Generator: c.name, Seconds: 2, Counts: c.counts}
		printValues(&b, kind.Find(c.role, c.name), param.Values{}, r)
		for _, want := range c.wants {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s lacks %q:\n%s", c.name, want, b.String())
			}
		}
		for _, lack := range c.lacks {
			if strings.Contains(b.String(), lack) {
				t.Errorf("%s has %q:\n%s", c.name, lack, b.String())
			}
		}
	}
}

// TestLoadJSON: the JSON of a load has its quantiles as numbers, in seconds, next to the histograms. A quantile for
// which there are too few requests is left out; it is not 0.
func TestLoadJSON(t *testing.T) {
	r := &load.Result{Generator: "http", Mode: load.Open}
	histogram(t, r, load.Latency, 2000, 1000)
	var b strings.Builder
	if err := encodeLoad(&b, r); err != nil {
		t.Fatal(err)
	}
	var got struct {
		load.Result
		Distributions map[string]map[string]float64 `json:"distributions"`
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatalf("%v: %s", err, b.String())
	}
	d := got.Distributions[load.Latency]
	for name, want := range map[string]float64{
		"p50_seconds": 1e-3, "p90_seconds": 1.8e-3, "p99_seconds": 1.98e-3, "max_seconds": 2e-3,
	} {
		if math.Abs(d[name]/want-1) > 0.01 {
			t.Errorf("%s is %v, want %v", name, d[name], want)
		}
	}
	if _, has := d["p999_seconds"]; has || d["count"] != 2000 {
		t.Errorf("of 2000 requests: %v", slices.Sorted(maps.Keys(d)))
	}
	if got.Histograms[load.Latency] == "" || got.Mode != load.Open {
		t.Errorf("got %s", b.String())
	}
}
